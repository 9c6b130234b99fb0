"""Deliver what left to hooks: after its checkpoint is stored, and again where a hook failed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive, Entry
from ._hooks import Background, Eviction, Hook, atell, tell
from ._record import Record
from ._segment import Leave, Segment
from ._stats import Counts

logger = logging.getLogger("reducing_saver")

_MOST_THREADS = 10_000

Load = Callable[[RunnableConfig], CheckpointTuple | None]
LoadAsync = Callable[[RunnableConfig], Awaitable[CheckpointTuple | None]]


@dataclass(frozen=True, slots=True)
class Parcel:
    """Hold a segment on its way to the hooks, with its messages and their keys."""

    segment: Segment
    keys: tuple[str, ...]
    messages: tuple[Any, ...]
    edited: tuple[int, ...] = ()

    def eviction(self) -> Eviction:
        """Return what a hook is given."""
        s = self.segment
        return Eviction(
            thread=s.thread,
            namespace=s.namespace,
            channel=s.channel,
            checkpoint=s.checkpoint,
            segment=s.id,
            memory_namespace=s.memory_namespace,
            messages=self.messages,
            why=s.why,
            summary=s.summary,
            edited=self.edited,
        )


class Ledger:
    """Remember in this process which segments wait, run or failed. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked: OrderedDict[str, None] = OrderedDict()
        self._failed: dict[str, dict[str, Segment]] = {}
        self._running: set[str] = set()

    def first_look(self, thread: str) -> bool:
        """Tell whether nobody has asked the archive about this thread yet, and note it."""
        with self._lock:
            new = thread not in self._looked
            self._looked[thread] = None
            if len(self._looked) > _MOST_THREADS:
                self._looked.popitem(last=False)
            return new

    def retries(self, thread: str) -> list[Segment]:
        """Take the segments whose hooks failed."""
        with self._lock:
            return list(self._failed.pop(thread, {}).values())

    def start(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return those that are not with a hook at this moment, oldest first, and note them."""
        with self._lock:
            fresh = {s.id: s for s in segments if s.id not in self._running}
            self._running.update(fresh)
        return sorted(fresh.values(), key=lambda s: s.checkpoint)

    def finish(self, segment: Segment, *, failed: bool) -> None:
        """Note that the hooks are done with a segment."""
        with self._lock:
            self._running.discard(segment.id)
            if failed:
                self._failed.setdefault(segment.thread, {})[segment.id] = segment

    def forget_thread(self, thread: str) -> None:
        """Forget a thread that was deleted."""
        with self._lock:
            self._looked.pop(thread, None)
            self._failed.pop(thread, None)


class Delivery:
    """Hand parcels to hooks and note in the archive what they acknowledged.

    A hook that raises is logged, counted and called again later; it never hurts a put.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        archive: Archive | None,
        counts: Counts,
        serde: SerializerProtocol,
    ) -> None:
        self.hooks = tuple(hooks)
        self.archive = archive
        self.ledger = Ledger()
        self._counts = counts
        self._serde = serde

    def after_put(self, thread: str, leaves: Sequence[Leave], load: Load) -> None:
        """Deliver what left in a put that was stored, and what waits of its thread."""
        if not self.hooks:
            return
        try:
            leaves = [leave for leave in leaves if not leave.segment.silent]
            if self.archive is None:
                for leave in leaves:
                    self._hand_over(Parcel(leave.segment, leave.segment.keys, leave.messages))
                return
            due = [*(leave.segment for leave in leaves), *self.ledger.retries(thread)]
            if self.ledger.first_look(thread):
                due += self._named(thread, load)
            self._deliver(due)
        except Exception as error:
            _log_failure(thread, error)

    async def aafter_put(self, thread: str, leaves: Sequence[Leave], load: LoadAsync) -> None:
        """Deliver what left in a put that was stored, and what waits of its thread."""
        if not self.hooks:
            return
        try:
            leaves = [leave for leave in leaves if not leave.segment.silent]
            if self.archive is None:
                for leave in leaves:
                    parcel = Parcel(leave.segment, leave.segment.keys, leave.messages)
                    await self._ahand_over(parcel)
                return
            due = [*(leave.segment for leave in leaves), *self.ledger.retries(thread)]
            if self.ledger.first_look(thread):
                due += await self._anamed(thread, load)
            await self._adeliver(due)
        except Exception as error:
            _log_failure(thread, error)

    def deliver(self, load: Load) -> None:
        """Deliver what waits of all threads."""
        for thread in self.archive.waiting() if self.archive and self.hooks else ():
            self._deliver([*self.ledger.retries(thread), *self._named(thread, load)])

    async def adeliver(self, load: LoadAsync) -> None:
        """Deliver what waits of all threads."""
        for thread in await self.archive.awaiting() if self.archive and self.hooks else ():
            waiting = await self._anamed(thread, load)
            await self._adeliver([*self.ledger.retries(thread), *waiting])

    def close(self) -> None:
        """Wait for the hooks in the background, and stop them."""
        for hook in self.hooks:
            if isinstance(hook, Background):
                hook.close()

    def _deliver(self, due: Sequence[Segment]) -> None:
        archive = _there(self.archive)
        for segment in self.ledger.start(due):
            try:
                entries = archive.read(segment.thread, segment.keys)
                told = archive.told(segment.thread, segment.keys)
                self._hand_over(unpack(segment, entries, told, self._serde))
            except Exception:
                self.ledger.finish(segment, failed=True)
                raise

    async def _adeliver(self, due: Sequence[Segment]) -> None:
        archive = _there(self.archive)
        for segment in self.ledger.start(due):
            try:
                entries = await archive.aread(segment.thread, segment.keys)
                told = await archive.atold(segment.thread, segment.keys)
                await self._ahand_over(unpack(segment, entries, told, self._serde))
            except Exception:
                self.ledger.finish(segment, failed=True)
                raise

    def _named(self, thread: str, load: Load) -> list[Segment]:
        """Return the waiting segments of a thread that a stored checkpoint names."""
        archive = _there(self.archive)
        named: list[Segment] = []
        for segment in archive.undelivered(thread):
            found = load(_config(segment)) or load(_config(segment, head=True))
            line = archive.chain(thread, newest_segment(found, segment.channel))
            named += [segment] if segment.id in {s.id for s in line} else []
        return named

    async def _anamed(self, thread: str, load: LoadAsync) -> list[Segment]:
        """Return the waiting segments of a thread that a stored checkpoint names."""
        archive = _there(self.archive)
        named: list[Segment] = []
        for segment in await archive.aundelivered(thread):
            found = await load(_config(segment)) or await load(_config(segment, head=True))
            line = await archive.achain(thread, newest_segment(found, segment.channel))
            named += [segment] if segment.id in {s.id for s in line} else []
        return named

    def _hand_over(self, parcel: Parcel) -> None:
        if not parcel.messages or self._call(parcel):
            self._acknowledge(parcel)

    async def _ahand_over(self, parcel: Parcel) -> None:
        if not parcel.messages or await self._acall(parcel):
            await self._aacknowledge(parcel)

    def _call(self, parcel: Parcel) -> bool:
        """Tell whether all hooks have run; those in the background acknowledge by themselves."""
        eviction, errors = parcel.eviction(), []
        for hook in self._plain():
            try:
                tell(hook, eviction)
            except Exception as error:
                errors.append(error)
        return self._settled(parcel, eviction, errors)

    async def _acall(self, parcel: Parcel) -> bool:
        """Tell whether all hooks have run; those in the background acknowledge by themselves."""
        eviction, errors = parcel.eviction(), []
        for hook in self._plain():
            try:
                await atell(hook, eviction)
            except Exception as error:
                errors.append(error)
        return self._settled(parcel, eviction, errors)

    def _plain(self) -> list[Hook]:
        return [hook for hook in self.hooks if not isinstance(hook, Background)]

    def _settled(self, parcel: Parcel, eviction: Eviction, errors: list[Exception]) -> bool:
        for error in errors:
            self._failed(parcel, error)
        background = [hook for hook in self.hooks if isinstance(hook, Background)]
        if errors or not background:
            self._counts.add_delivery(failed=bool(errors))
            self.ledger.finish(parcel.segment, failed=bool(errors))
            return not errors
        _Join(self, parcel, len(background)).submit(background, eviction)
        return False

    def _failed(self, parcel: Parcel, error: BaseException) -> None:
        # The text of the error may quote a message.
        logger.warning(
            "a hook failed on segment %s of thread %r and is called again later: %s",
            parcel.segment.id,
            parcel.segment.thread,
            type(error).__name__,
        )

    def _acknowledge(self, parcel: Parcel) -> None:
        self.ledger.finish(parcel.segment, failed=False)
        if self.archive is not None:
            segment = parcel.segment
            self.archive.mark_delivered(segment.thread, segment.id, parcel.keys)

    async def _aacknowledge(self, parcel: Parcel) -> None:
        self.ledger.finish(parcel.segment, failed=False)
        if self.archive is not None:
            segment = parcel.segment
            await self.archive.amark_delivered(segment.thread, segment.id, parcel.keys)


class _Join:
    """Wait for the background hooks of one parcel, and acknowledge it when all have returned."""

    def __init__(self, delivery: Delivery, parcel: Parcel, waiting: int) -> None:
        self._delivery, self._parcel = delivery, parcel
        self._waiting = waiting
        self._failed = False
        self._lock = threading.Lock()

    def submit(self, hooks: Sequence[Background], eviction: Eviction) -> None:
        for hook in hooks:
            if not hook.submit(eviction, self.done):
                self.done(BufferError("too many evictions are pending"))

    def done(self, error: BaseException | None) -> None:
        with self._lock:
            self._waiting -= 1
            self._failed = self._failed or error is not None
            last = self._waiting == 0
        if error is not None:
            self._delivery._failed(self._parcel, error)
        if last:
            if not self._failed:
                self._delivery._acknowledge(self._parcel)
            self._delivery._counts.add_delivery(failed=self._failed)
            self._delivery.ledger.finish(self._parcel.segment, failed=self._failed)


def newest_segment(found: CheckpointTuple | None, channel: str) -> str | None:
    """Return the id of the newest segment in a checkpoint's line."""
    return Record.read(found.metadata).segments.get(channel) if found else None


def _config(segment: Segment, *, head: bool = False) -> RunnableConfig:
    configurable = {"thread_id": segment.thread, "checkpoint_ns": segment.namespace}
    if not head:
        configurable["checkpoint_id"] = segment.checkpoint
    return {"configurable": configurable}


def _there(archive: Archive | None) -> Archive:
    if archive is None:
        raise LookupError("there is no archive")
    return archive


def _log_failure(thread: str, error: Exception) -> None:
    logger.warning(
        "what left thread %r could not be delivered and is delivered later: %s",
        thread,
        type(error).__name__,
    )


def pack(leave: Leave, serde: SerializerProtocol, text: Callable[[Any], str] | None) -> list[Entry]:
    """Return the entries of what leaves, as the saver's serializer writes them."""
    return [
        Entry(key, *serde.dumps_typed(message), text(message) if text else None)
        for key, message in zip(leave.segment.keys, leave.messages, strict=True)
    ]


def unpack(
    segment: Segment, entries: Sequence[Entry], told: dict[str, str], serde: SerializerProtocol
) -> Parcel:
    """Return what of a segment was not told yet, with what was told with another content."""
    fresh = [entry for entry in entries if told.get(entry.who) != entry.key]
    messages = tuple(serde.loads_typed((entry.kind, entry.data)) for entry in fresh)
    edited = tuple(i for i, entry in enumerate(fresh) if entry.who in told)
    return Parcel(segment, tuple(entry.key for entry in fresh), messages, edited)
