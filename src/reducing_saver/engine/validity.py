"""Name what a model provider would refuse in a message list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from .messages import Message, Role, answers, calls, is_summary, role
from .units import Kind, Unit, leading, split

Provider: TypeAlias = Literal["openai", "anthropic", "gemini"]

PROVIDERS: tuple[Provider, ...] = get_args(Provider)

_STRICT: tuple[Provider, ...] = ("anthropic", "gemini")
RULES: dict[str, tuple[Provider, ...]] = {
    "no messages": PROVIDERS,
    "first message is not human": _STRICT,
    "system message in the middle": _STRICT,
    "orphan result": PROVIDERS,
    "unanswered call": PROVIDERS,
    "separated result": PROVIDERS,
    "duplicate result": PROVIDERS,
}
"""Which provider refuses what. A call at the tail is not unanswered: it is being worked on."""

_SPOKEN = (Role.HUMAN, Role.AI, Role.TOOL)


@dataclass(frozen=True, slots=True)
class Problem:
    """Name a rule that is broken, by the message at `index` (-1: by the list)."""

    index: int
    rule: str
    providers: tuple[Provider, ...]
    detail: str


def problems(messages: Sequence[Message], provider: Provider | None = None) -> tuple[Problem, ...]:
    """Return what a provider would refuse in this list; all three providers by default."""
    if provider is not None and provider not in PROVIDERS:
        raise ValueError(f"provider={provider!r}: must be one of {', '.join(PROVIDERS)}, or None")
    found = (Problem(index, rule, RULES[rule], detail) for index, rule, detail in _broken(messages))
    chosen = (p for p in found if provider is None or provider in p.providers)
    return tuple(sorted(chosen, key=lambda problem: (problem.index, problem.rule)))


def _broken(messages: Sequence[Message]) -> Iterator[tuple[int, str, str]]:
    lead = leading(messages)
    if not any(role(message) in _SPOKEN for message in messages):
        yield -1, "no messages", "nobody but the system speaks"
    if lead == len(messages):
        return
    first = messages[lead]
    if role(first) is not Role.HUMAN and not is_summary(first):
        yield lead, "first message is not human", f"it is one of role {role(first)}"
    for index in range(lead, len(messages)):
        if role(messages[index]) is Role.SYSTEM and not is_summary(messages[index]):
            yield index, "system message in the middle", "only leading ones are accepted"
    for unit in split(messages):
        if unit.kind is Kind.RESULT:
            yield unit.indices[0], "orphan result", "no call before it has its id"
        elif unit.kind is Kind.TOOLS:
            yield from _broken_calls(unit, len(messages))


def _broken_calls(unit: Unit, count: int) -> Iterator[tuple[int, str, str]]:
    first, last = unit.indices[0], unit.indices[-1]
    expected = range(first, first + len(unit.indices))
    if unit.open and (last != count - 1 or tuple(expected) != unit.indices):
        yield first, "unanswered call", f"of {', '.join(unit.tools) or 'a tool'}"
    for place, index in zip(expected, unit.indices, strict=True):
        if place != index:
            yield index, "separated result", "other messages stand between it and its call"
    asked = sum(len(calls(m)) for m in unit.messages if role(m) is Role.AI)
    given = 0
    for index, message in zip(unit.indices, unit.messages, strict=True):
        if role(message) is Role.TOOL:
            given += len(answers(message))
            if given > asked:
                yield index, "duplicate result", "its call is answered already"
