"""Keep a checkpoint within the bytes that a store takes: what it weighs, and what is tried.

The ladder: shorter and shorter excerpts, then fewer and fewer messages, then an error. A pending
write goes up its first part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._contents import Contents
from ._entry import Entry
from ._errors import ReducingSaverError
from ._reduction import Proposal, Reduction, Setting, shortening, tightened
from .engine import Excerpt, Window
from .engine.counters import count_bytes
from .engine.oversize import is_plain
from .engine.sizes import Sizes

NEAR = 0.8
"""From this share of the limit on a checkpoint is written to know its size, not estimated."""

LEVELS = (0.9, 0.8)
CAPS = (1_000, 250, 64)

_MESSAGE_BYTES = 320
"""What the serializer adds to a message: the names of its class and fields."""

_UNKNOWN = 1 << 60

_EVICTIONS = 8


class CheckpointTooLargeError(ReducingSaverError):
    """Say that a checkpoint does not fit, whatever is cut; sizes are bytes, by channel."""

    def __init__(
        self, thread: str, namespace: str, *, size: int, limit: int, channels: Mapping[str, int]
    ) -> None:
        self.thread, self.namespace = thread, namespace
        self.size, self.limit, self.channels = size, limit, dict(channels)
        largest = sorted(channels.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {weight:,}" for name, weight in largest)
        super().__init__(
            f"the checkpoint of thread {thread!r}, namespace {namespace!r} has {size:,} bytes "
            f"where max_bytes={limit:,}; its channels: {named}"
        )


class Fitted(NamedTuple):
    """Hold a pending write, its size in bytes, and what has to be archived before it is used."""

    value: Any
    size: int
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """Hold how many bytes a checkpoint may have, as the serializer writes it with its metadata."""

    limit: int
    serde: SerializerProtocol
    window: Window
    sizes: Sizes = field(default_factory=lambda: Sizes(_written_bytes), init=False, repr=False)

    def size(self, reduction: Reduction) -> int:
        """Return the bytes of a checkpoint, an estimate where that is far below the limit."""
        estimate = self._estimate(reduction)
        if estimate is not None and estimate < NEAR * self.limit:
            return estimate
        return self._weigh(reduction.checkpoint) + self._weigh(reduction.metadata)

    def may_exceed(self, value: object) -> bool:
        """Tell whether a value alone comes near to the limit."""
        estimate = _estimate(value, self.sizes)
        return estimate is None or estimate * 9 // 8 >= NEAR * self.limit

    def channels(self, reduction: Reduction) -> dict[str, int]:
        """Return the bytes of each channel."""
        values = reduction.checkpoint["channel_values"]
        return {name: self._weigh(value) for name, value in values.items()}

    def _weigh(self, value: Any) -> int:
        return len(self.serde.dumps_typed(value)[1])

    def _estimate(self, reduction: Reduction) -> int | None:
        total = count_bytes(reduction.checkpoint["versions_seen"]) + 2_000
        for value in (*reduction.checkpoint["channel_values"].values(), reduction.metadata):
            estimate = _estimate(value, self.sizes)
            if estimate is None:
                return None
            total += estimate
        return total * 9 // 8

    def excerpts(self, base: Excerpt | None) -> tuple[Excerpt, ...]:
        """Return what is cut to fit, in the order in which it is tried."""
        own = base or Excerpt()
        return tuple(
            replace(
                own,
                max_tokens=min(cap, own.max_tokens),
                caps={tool: other for tool, other in own.caps.items() if other < cap},
                artifact="drop" if cap == CAPS[-1] else own.artifact,
                spare_last=0,
                include=None,
                exclude=(),
                humans=own.humans or cap == CAPS[-1],
                media="older" if cap == CAPS[0] else "all",
                history_max_tokens=None,
                writes=True,
            )
            for cap in CAPS
        )

    def fitted(
        self,
        write: tuple[str, Any],
        cut: tuple[str, Any],
        setting: Setting,
        ladder: tuple[Contents, ...],
    ) -> Fitted:
        """Return a pending write that fits, where excerpts can make it fit.

        `cut` is what is stored of it where the store takes that.
        """
        size = self._write_size(cut[1])
        if size <= self.limit:
            return Fitted(cut[1], size)
        for contents in ladder:
            [(_, short)], entries = contents.short_writes([write], setting.places)
            if short is write[1]:
                short, entries = contents.short_copy(write, setting)
            if short is write[1]:
                break
            smaller = self._write_size(short)
            if smaller <= self.limit:
                return Fitted(short, smaller, entries)
        return Fitted(cut[1], size)

    def _write_size(self, value: Any) -> int:
        if not self.may_exceed(value):
            return 0
        try:
            return self._weigh(value)
        except Exception:  # what the serializer does not write is for the store to refuse
            return 0

    def rungs(
        self, proposal: Proposal, setting: Setting, ladder: tuple[Contents, ...], size: int
    ) -> Iterator[tuple[Proposal, Contents]]:
        """Yield proposals that store less and less, each with what is to make its excerpts."""
        for contents in ladder:
            yield shortening(proposal, setting, contents.excerpt, contents.known), contents
        last = ladder[-1]
        cut = shortening(proposal, setting, last.excerpt, last.known)
        held = max((_list_bytes(step.left, self.window) for step in cut.steps), default=0)
        room = max(1, held - (size - int(NEAR * self.limit)))
        for _ in range(_EVICTIONS):
            yield tightened(cut, self._smaller(room)), last
            room //= 2
        yield tightened(cut, self._smaller(1)), last

    def _smaller(self, room: int) -> Window:
        window = self.window
        most = ("bytes", max(1, room))
        return Window(
            most,
            most,
            most,
            pinned=window.pinned,
            keep_latest_of=window.keep_latest_of,
            pin_first_human=window.pin_first_human,
        )


def _list_bytes(messages: list[object], window: Window) -> int:
    return sum(map(window.sizes("bytes").of, messages))


def _written_bytes(message: object) -> int:
    """Count the bytes of a message; more than any store takes where they cannot be counted."""
    fields = vars(message) if isinstance(message, BaseMessage) else message
    return count_bytes(message) + _MESSAGE_BYTES if is_plain(fields) else _UNKNOWN


def _estimate(value: object, sizes: Sizes, depth: int = 0) -> int | None:
    """Return about what a value is written as; None where only the serializer knows."""
    if isinstance(value, BaseMessage):
        return sizes.of(value)
    if isinstance(value, str | bytes | int | float | bool | None):
        return count_bytes(value) + 9
    if isinstance(sent := getattr(value, "arg", None), dict):  # a `Send`
        value = sent
    if depth > 9 or not isinstance(value, dict | list | tuple | set):
        return None
    if isinstance(value, list) and all(isinstance(one, BaseMessage) for one in value):
        return sum(map(sizes.of, value)) + _MESSAGE_BYTES
    items = [*value, *value.values()] if isinstance(value, dict) else value
    total = 9
    for item in items:
        estimate = _estimate(item, sizes, depth + 1)
        if estimate is None:
            return None
        total += estimate
    return total
