"""Carry out a plan: a plan in, a new message list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .excerpt import Excerpt
from .messages import Message, is_summary
from .plan import Plan, When, plan
from .shorten import shorten
from .units import leading
from .window import Window


@dataclass(frozen=True, slots=True)
class Reduced:
    """Hold a reduced list, what left it in order, and the plan that says why."""

    messages: list[Message]
    evicted: tuple[Message, ...]
    plan: Plan


def apply(decided: Plan, summary: Sequence[Message] = ()) -> list[Message]:
    """Return the list without what the plan evicts; the same object where nothing leaves.

    A new summary takes the place of the old one, right after the leading system messages.
    """
    return with_summary(decided.staying, summary) if summary else decided.staying


def with_summary(messages: Sequence[Message], summary: Sequence[Message]) -> list[Message]:
    """Return a list with this summary, and without any other."""
    left = [message for message in messages if not is_summary(message)]
    head = leading(left)
    return [*left[:head], *summary, *left[head:]]


def reduce_messages(
    messages: Sequence[Message],
    window: Window,
    *,
    when: When = When.REST,
    excerpt: Excerpt | None = None,
) -> Reduced:
    """Reduce a message list to a window, and with an `Excerpt` what is too large in it.

    Pure: the list and its messages are never changed, and kept messages are the same objects, but
    for excerpts. Where nothing changes, the same list object comes back.
    """
    count = window.sizes("tokens").of
    running = when is not When.REST
    shorter = shorten(messages, excerpt, count, running=running) if excerpt else {}
    decided = plan(messages, window, when=when, shorter=shorter)
    return Reduced(apply(decided), decided.leaving, decided)
