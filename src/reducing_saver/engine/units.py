"""Cut a message list into units: the messages that live or die together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from .messages import (
    Answer,
    Call,
    Message,
    Role,
    answers,
    calls,
    identifier,
    is_summary,
    role,
    stands_beside,
)


class Kind(StrEnum):
    """Say what a unit is."""

    SYSTEM = "system"
    SUMMARY = "summary"
    HUMAN = "human"
    AI = "ai"
    TOOLS = "tools"
    RESULT = "result"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Unit:
    """Hold one message, or an AI message with every tool result that answers it.

    `indices` are ascending positions in the list that was split; they need not be adjacent.
    `turn` is -1 for leading system messages and the newest summary after them, with what stands
    beside it; 0 for what stands before the first human message, then 1, 2, ... `open` means that
    a call has no result yet.
    """

    kind: Kind
    indices: tuple[int, ...]
    messages: tuple[Message, ...]
    turn: int
    tools: tuple[str, ...] = ()
    open: bool = False


def split(messages: Sequence[Message]) -> list[Unit]:
    """Cut a list into units, ordered by their first message; every message is in exactly one."""
    drafts = _drafts(messages)
    head = [draft for draft in takewhile(_opens, drafts) if draft.kind is Kind.SUMMARY]
    _set_apart(head, messages)
    units = [draft.finish(messages) for draft in drafts if draft.merged is None]
    return sorted(units, key=lambda unit: unit.indices[0])


def joins_across(messages: Sequence[Message], cut: int) -> bool:
    """Tell whether a unit stands on both sides of a cut, or may answer a call before the list."""
    return any(draft.stands_across(cut) for draft in _drafts(messages) if draft.merged is None)


def _drafts(messages: Sequence[Message]) -> list[_Draft]:
    lead = leading(messages)
    matcher = _Matcher()
    drafts: list[_Draft] = []
    turn = 0
    for index, message in enumerate(messages):
        if index < lead:
            drafts.append(_Draft(Kind.SYSTEM, index, -1))
            continue
        kind = _kind(message)
        if kind is Kind.RESULT and matcher.join(index, message):
            continue
        if kind is Kind.HUMAN:
            turn += 1
        draft = _Draft(kind, index, turn)
        if kind is Kind.AI:
            matcher.ask(draft, message)
        drafts.append(draft)
    return drafts


def _set_apart(summaries: list[_Draft], messages: Sequence[Message]) -> None:
    """Take the newest summary, with what stands beside it, out of its turn."""
    alone = [d for d in summaries if stands_beside(messages[d.indices[0]]) is None]
    if not alone:
        return
    alone[-1].turn = -1
    own = identifier(messages[alone[-1].indices[0]])
    for draft in summaries:
        if own and stands_beside(messages[draft.indices[0]]) == own:
            draft.turn = -1


def _opens(draft: _Draft) -> bool:
    """Tell whether a unit stands at the head, with the leading system messages and summaries."""
    return draft.turn < 0 or draft.kind is Kind.SUMMARY


def join(units: Iterable[Unit]) -> list[Message]:
    """Put units back together in the order of the list they were cut from."""
    placed = [pair for unit in units for pair in zip(unit.indices, unit.messages, strict=True)]
    placed.sort(key=lambda pair: pair[0])
    return [message for _, message in placed]


def leading(messages: Sequence[Message]) -> int:
    """Count the system messages at the head of the list."""
    for index, message in enumerate(messages):
        if role(message) is not Role.SYSTEM or is_summary(message):
            return index
    return len(messages)


def starts_turn(message: Message) -> bool:
    """Tell whether a turn begins here: a human message that is no summary."""
    return role(message) is Role.HUMAN and not is_summary(message)


_KINDS = {
    Role.SYSTEM: Kind.SYSTEM,
    Role.HUMAN: Kind.HUMAN,
    Role.AI: Kind.AI,
    Role.TOOL: Kind.RESULT,
    Role.OTHER: Kind.OTHER,
}


def _kind(message: Message) -> Kind:
    return Kind.SUMMARY if is_summary(message) else _KINDS[role(message)]


class _Waiting:
    """Hold the calls of a unit that have no result yet, so that each result is found at once."""

    __slots__ = ("_by_id", "_by_name", "_calls", "_order")

    def __init__(self, asked: Iterable[Call]) -> None:
        self._calls = dict(enumerate(asked))
        # Filled when more than one call waits; read from the end, emptied of what is struck.
        self._order: list[int] = []
        self._by_id: dict[str, list[int]] = {}
        self._by_name: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls.values())

    def add(self, more: Iterable[Call]) -> None:
        """Add the calls of a unit that is merged into this one."""
        key = max(self._calls, default=0) + 1
        self._calls.update(enumerate(more, key))
        self._order, self._by_id, self._by_name = [], {}, {}

    def strike(self, answer: Answer) -> bool:
        """Take off the call that is answered: by id, else by name, else the first.

        Returns whether one was found that surely is the one: with the id, or both without.
        """
        if not self._order:
            self._index()
        if answer.id:
            pools = (self._by_id.get(answer.id), self._by_id.get(""))
        else:
            pools = (self._by_name.get(answer.name), self._order)
        for pool in pools:
            key = self._next(pool)
            if key is not None:
                return self._calls.pop(key).id == answer.id
        return False

    def has_nameless(self) -> bool:
        """Tell whether a call without an id waits."""
        if not self._order:
            self._index()
        return self._next(self._by_id.get("")) is not None

    def _index(self) -> None:
        self._order = list(reversed(self._calls))
        for key in self._order:
            call = self._calls[key]
            self._by_id.setdefault(call.id, []).append(key)
            self._by_name.setdefault(call.name, []).append(key)

    def _next(self, pool: list[int] | None) -> int | None:
        while pool:
            if pool[-1] in self._calls:
                return pool[-1]
            pool.pop()
        return None


_NONE_WAITING = _Waiting(())


class _Draft:
    """Collect a unit while the list is walked; `sure` where each result answers a call of it."""

    __slots__ = ("calls", "indices", "kind", "merged", "sure", "turn", "waiting")

    def __init__(self, kind: Kind, index: int, turn: int) -> None:
        self.kind = kind
        self.indices = [index]
        self.turn = turn
        self.calls: list[Call] = []
        self.waiting = _NONE_WAITING
        self.merged: _Draft | None = None
        self.sure = kind is not Kind.RESULT

    def stands_across(self, cut: int) -> bool:
        return not self.sure or min(self.indices) < cut <= max(self.indices)

    def finish(self, messages: Sequence[Message]) -> Unit:
        if not self.calls:
            index = self.indices[0]
            return Unit(self.kind, (index,), (messages[index],), self.turn)
        indices = tuple(sorted(self.indices))
        members = tuple(messages[i] for i in indices)
        names = tuple(call.name for call in self.calls)
        return Unit(self.kind, indices, members, self.turn, names, bool(self.waiting))

    def absorb(self, other: _Draft) -> None:
        self.turn = min(self.turn, other.turn)
        self.indices += other.indices
        self.calls += other.calls
        self.sure = self.sure and other.sure
        self.waiting.add(other.waiting)
        other.merged = self


class _Matcher:
    """Match results to calls by id and position, so that ids may repeat, be missing or be late.

    A result answers the newest open call with its id; where none is open it joins the newest unit
    that had that id. A result or a call without an id is matched with the newest open call.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[_Draft]] = {}
        self._newest: dict[str, _Draft] = {}
        self._asked: list[_Draft] = []

    def ask(self, draft: _Draft, message: Message) -> None:
        draft.calls = calls(message)
        if not draft.calls:
            return
        draft.kind = Kind.TOOLS
        draft.waiting = _Waiting(draft.calls)
        self._asked.append(draft)
        for call in draft.calls:
            if call.id:
                self._open.setdefault(call.id, []).append(draft)
                self._newest[call.id] = draft

    def join(self, index: int, message: Message) -> _Draft | None:
        """Add a result to the unit it answers; None where it answers nothing."""
        home: _Draft | None = None
        sure = True
        for answer in answers(message):
            draft = self._find(answer)
            if draft is None:
                sure = False
                continue
            sure = draft.waiting.strike(answer) and sure
            if home is None:
                home = draft
                draft.indices.append(index)
            elif draft is not home:
                # The larger one absorbs, so that a chain of merges stays linear.
                small, home = sorted((home, draft), key=lambda d: len(d.indices) + len(d.calls))
                home.absorb(small)
        if home is not None:
            home.sure = home.sure and sure
        return home

    def _find(self, answer: Answer) -> _Draft | None:
        if answer.id:
            if still_open := self._open.get(answer.id):
                return _resolve(still_open.pop())
            if answer.id in self._newest:
                return _resolve(self._newest[answer.id])
        while self._asked and not _resolve(self._asked[-1]).waiting:
            self._asked.pop()
        draft = _resolve(self._asked[-1]) if self._asked else None
        if draft and answer.id and not draft.waiting.has_nameless():
            return None
        return draft


def _resolve(draft: _Draft) -> _Draft:
    while draft.merged is not None:
        draft = draft.merged
    return draft
