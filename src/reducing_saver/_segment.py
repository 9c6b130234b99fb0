"""Describe what one eviction removed, so that it can be archived, told and read back in order.

Segments form a chain: each names the one before it in its line of checkpoints, and every checkpoint
names the newest of its line. A fork so has its own true past, and a segment that no stored
checkpoint names was never evicted. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from .engine.excerpt import marked_key
from .engine.messages import Message, field, identifier, role

Why: TypeAlias = Literal["window", "removed"]


@dataclass(frozen=True, slots=True)
class Span:
    """Hold the keys of messages that stood together, and the identities of their neighbours."""

    keys: tuple[str, ...]
    after: str | None
    before: str | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Hold what one eviction removed from one channel; `why` is `"window"` or `"removed"`.

    `previous` is the id of the segment before in the line, `checkpoint` the id of the checkpoint
    that evicted it, `memory_namespace` where long-term memory of it belongs.
    """

    id: str
    previous: str | None
    thread: str
    namespace: str
    channel: str
    checkpoint: str
    why: Why
    memory_namespace: tuple[str, ...]
    spans: tuple[Span, ...]
    summarised: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of all messages, in order."""
        return tuple(key for span in self.spans for key in span.keys)

    @property
    def summary_key(self) -> str:
        """Return the key under which the text of its summary is archived."""
        return f"{self.id}.summary"

    @property
    def silent(self) -> bool:
        """Tell whether hooks are not told: of a subgraph's call, whose result is on its way."""
        return ":" in self.namespace

    def as_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        spans = [{"keys": s.keys, "after": s.after, "before": s.before} for s in self.spans]
        return {**plain, "spans": spans}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Segment:
        """Return the segment that `as_dict` wrote."""
        spans = tuple(Span(tuple(s["keys"]), s["after"], s["before"]) for s in data["spans"])
        memory = tuple(data["memory_namespace"])
        return cls(**{**data, "spans": spans, "memory_namespace": memory})


@dataclass(frozen=True, slots=True)
class Leave:
    """Hold a segment with its messages, in order, and its summary, on their way to the archive."""

    segment: Segment
    messages: tuple[Message, ...]
    summary: str | None = None


def identity(message: Message) -> str:
    """Return what a message is known by: its id, or a digest of what it says."""
    own = identifier(message)
    return _digest("id", own) if own else _digest("said", _said(message))


def entry_key(message: Message, previous: str | None, place: int, *, shared: bool = False) -> str:
    """Return the key of an archived message: its identity, and a digest of its content.

    An edited message has another key. One without an id, or with one that it shares with another
    of its list, is told from its equals by where it was evicted, which is the same for whoever
    evicts it again from the same list. That of an excerpt is the key of what it was made of.
    """
    if whole := marked_key(message):
        return whole
    who = identity(message)
    if shared or not identifier(message):
        who = f"{who}-{_digest(previous or '', str(place))}"
    return f"{who}.{_digest('content', _said(message))}"


def cut_spans(
    messages: Sequence[Message],
    positions: Sequence[int],
    previous: str | None,
    *,
    unnamed: Container[int] = (),
) -> tuple[Span, ...]:
    """Return what leaves a list at these ascending positions, in runs of neighbours.

    What is at the `unnamed` ones leaves too and gets no key: a message that is there twice has one.
    """
    named = [position for position in positions if position not in unnamed]
    shared = _shared(messages, named)
    spans = (_span(messages, run, previous, shared, unnamed) for run in _runs(positions))
    return tuple(span for span in spans if span.keys)


def _runs(positions: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for position in positions:
        if run and position != run[-1] + 1:
            yield run
            run = []
        run.append(position)
    if run:
        yield run


def _shared(messages: Sequence[Message], positions: Sequence[int]) -> set[int]:
    """Return which of these positions hold another content than the one that keeps their id.

    That is the last with this id that stays, or where none does, the last that leaves.
    """
    own_ids = [own for message in messages if (own := identifier(message))]
    if len({*own_ids}) == len(own_ids):
        return set()
    owner: dict[str | None, int] = {}
    leaving = frozenset(positions)
    staying = (place for place in range(len(messages)) if place not in leaving)
    for place in (*positions, *staying):
        owner[identifier(messages[place])] = place
    others = ((place, owner[own]) for place in positions if (own := identifier(messages[place])))
    return {
        place
        for place, other in others
        if place != other and _said(messages[place]) != _said(messages[other])
    }


def _span(
    messages: Sequence[Message],
    run: Sequence[int],
    previous: str | None,
    shared: set[int],
    unnamed: Container[int],
) -> Span:
    named = (p for p in run if p not in unnamed)
    keys = tuple(entry_key(messages[p], previous, p, shared=p in shared) for p in named)
    after, before = run[0] - 1, run[-1] + 1
    return Span(
        keys,
        identity(messages[after]) if after >= 0 else None,
        identity(messages[before]) if before < len(messages) else None,
    )


def segment_id(
    thread: str, namespace: str, channel: str, previous: str | None, spans: Sequence[Span]
) -> str:
    """Return an id that the same eviction from the same line has again, and no other has.

    The neighbours count: two forks may let the same messages go from different places.
    """
    placed = ((*span.keys, span.after or "", span.before or "") for span in spans)
    parts = (part for span in placed for part in span)
    return _digest(thread, namespace, channel, previous or "", *parts)


def in_order(segments: Sequence[Segment], state: Sequence[Message]) -> list[str | int]:
    """Put archived messages back where they stood, around those in the state.

    `segments` are a chain, newest first. Returns keys of archived messages, and indices of the
    state. Linear in all of them.
    """
    chain = _Chain()
    for index, message in enumerate(state):
        chain.append(index, identity(message))
    for segment in segments:
        for span in segment.spans:
            chain.insert(span)
    return list(chain)


class _Node:
    __slots__ = ("item", "next", "prior")

    def __init__(self, item: str | int) -> None:
        self.item = item
        self.next: _Node = self
        self.prior: _Node = self


class _Chain:
    """Hold a list in which a place is found by the identity that stands there."""

    def __init__(self) -> None:
        self._ends = _Node(-1)
        self._places: dict[str, _Node] = {}

    def append(self, item: str | int, who: str) -> None:
        self._put(item, who, before=self._ends)

    def insert(self, span: Span) -> None:
        place = self._places.get(span.before or "")
        if place is None and span.after in self._places:
            place = self._places[span.after].next
        if place is None:
            place = self._ends.next
        for key in reversed(span.keys):
            who = key.partition(".")[0]
            if who not in self._places:
                place = self._put(key, who, before=place)
                # Of equals without an id, the one that left before stood next to this one.
                self._places[who.partition("-")[0]] = place

    def _put(self, item: str | int, who: str, *, before: _Node) -> _Node:
        node = _Node(item)
        node.prior, node.next = before.prior, before
        before.prior.next = before.prior = node
        self._places.setdefault(who, node)
        return node

    def __iter__(self) -> Iterator[str | int]:
        node = self._ends.next
        while node is not self._ends:
            yield node.item
            node = node.next


def _said(message: Message) -> str:
    if isinstance(message, BaseMessage):
        spoken = message.model_dump()
    elif isinstance(message, dict):
        spoken = {**message}
    else:
        names = ("content", "name", "tool_calls", "tool_call_id")
        spoken = {name: field(message, name) for name in names}
    spoken.pop("id", None)
    return _text([role(message), spoken])


def _text(value: object) -> str:
    """Return the same text for the same value in every process."""
    try:
        return _encode(value)
    except TypeError:  # keys of several types, or no keys that JSON knows
        return _encode(_named(value))


def _odd(value: object) -> object:
    return sorted(map(_text, value)) if isinstance(value, set | frozenset) else repr(value)


_encode = json.JSONEncoder(sort_keys=True, default=_odd).encode


def _named(value: object) -> object:
    """Return the value with text as every key."""
    if isinstance(value, dict):
        return {repr(key): _named(held) for key, held in value.items()}
    return [*map(_named, value)] if isinstance(value, list | tuple) else value


def _digest(*parts: str) -> str:
    text = "\x00".join(parts).encode(errors="surrogatepass")
    return blake2b(text, digest_size=12).hexdigest()
