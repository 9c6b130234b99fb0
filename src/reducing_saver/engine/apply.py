"""Carry out a plan: a plan in, a new message list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .messages import Message
from .plan import Plan, When, plan
from .window import Window


@dataclass(frozen=True, slots=True)
class Reduced:
    """Hold a reduced list, what left it in order, and the plan that says why."""

    messages: list[Message]
    evicted: tuple[Message, ...]
    plan: Plan


def apply(decided: Plan) -> list[Message]:
    """Return the list without what the plan evicts; the same object where nothing leaves."""
    return decided.staying


def reduce_messages(
    messages: Sequence[Message], window: Window, *, when: When = When.REST
) -> Reduced:
    """Reduce a message list to a window.

    Pure: the list and its messages are never changed, and kept messages are the same objects.
    Where nothing leaves, the same list object comes back.
    """
    decided = plan(messages, window, when=when)
    return Reduced(apply(decided), decided.leaving, decided)
