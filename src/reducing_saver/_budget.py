"""Keep a checkpoint within the bytes that a store takes: what it weighs, and what is tried.

The ladder: shorter and shorter excerpts, then fewer and fewer messages, then an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._contents import Contents
from ._errors import ReducingSaverError
from ._reduction import Proposal, Reduction, Setting, shortening, tightened
from .engine import Excerpt, Window
from .engine.counters import count_bytes

NEAR = 0.8
"""From this share of the limit on a checkpoint is written to know its size, not estimated."""

LEVELS = (0.9, 0.8)
CAPS = (1_000, 250, 64)

_MESSAGE_BYTES = 320
"""What the serializer adds to a message: the names of its class and fields."""

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


@dataclass(frozen=True, slots=True)
class Budget:
    """Hold how many bytes a checkpoint may have, as the serializer writes it with its metadata."""

    limit: int
    serde: SerializerProtocol
    window: Window

    def size(self, reduction: Reduction) -> int:
        """Return the bytes of a checkpoint, an estimate where that is far below the limit."""
        estimate = self._estimate(reduction)
        if estimate is not None and estimate < NEAR * self.limit:
            return estimate
        return self._weigh(reduction.checkpoint) + self._weigh(reduction.metadata)

    def channels(self, reduction: Reduction) -> dict[str, int]:
        """Return the bytes of each channel."""
        values = reduction.checkpoint["channel_values"]
        return {name: self._weigh(value) for name, value in values.items()}

    def _weigh(self, value: Any) -> int:
        return len(self.serde.dumps_typed(value)[1])

    def _estimate(self, reduction: Reduction) -> int | None:
        total = count_bytes(reduction.checkpoint["versions_seen"]) + 2_000
        for value in (*reduction.checkpoint["channel_values"].values(), reduction.metadata):
            estimate = _estimate(value, self.window)
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
                caps={tool: min(cap, other) for tool, other in own.caps.items()},
                spare_last=0,
                include=None,
                exclude=(),
                humans=own.humans or cap == CAPS[-1],
                media="older" if cap == CAPS[0] else "all",
                history_max_tokens=None,
            )
            for cap in CAPS
        )

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


def _estimate(value: object, window: Window, depth: int = 0) -> int | None:
    """Return about what a value is written as; None where only the serializer knows."""
    if isinstance(value, BaseMessage):
        return window.sizes("bytes").of(value) + _MESSAGE_BYTES
    if isinstance(value, str | bytes | int | float | bool | None):
        return count_bytes(value) + 9
    if depth > 9 or not isinstance(value, dict | list | tuple | set):
        return None
    if isinstance(value, list) and all(isinstance(one, BaseMessage) for one in value):
        return _list_bytes(value, window) + (len(value) + 1) * _MESSAGE_BYTES
    items = [*value, *value.values()] if isinstance(value, dict) else value
    total = 9
    for item in items:
        estimate = _estimate(item, window, depth + 1)
        if estimate is None:
            return None
        total += estimate
    return total
