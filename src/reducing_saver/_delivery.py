"""Deliver what left to hooks: after its checkpoint is stored, and again where a hook failed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive, Entry
from ._counts import Counts
from ._forks import renew_in_forks
from ._hooks import Background, Eviction, Hook, atell, name_of, tell
from ._line import Load, LoadAsync, aline_segments, line_segments
from ._segment import Leave, Segment
from .engine.excerpt import marked_key

logger = logging.getLogger("reducing_saver")

_MOST_THREADS = 10_000


@dataclass(frozen=True, slots=True)
class Parcel:
    """Hold a segment on its way to the hooks, with its messages and their keys."""

    segment: Segment
    keys: tuple[str, ...]
    messages: tuple[Any, ...]
    edited: tuple[int, ...] = ()
    summary: str | None = None

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
            summary=self.summary,
            edited=self.edited,
        )


class Ledger:
    """Remember in this process which segments wait, run or failed. Safe to use from threads."""

    def __init__(self) -> None:
        self.renew()
        renew_in_forks(self)

    def renew(self) -> None:
        """Begin anew in a forked process, which asks the archive as any other does."""
        self._lock = threading.Lock()
        self._looked: OrderedDict[str, None] = OrderedDict()
        self._failed: OrderedDict[str, dict[str, Segment]] = OrderedDict()
        self._running: dict[str, dict[str, frozenset[str]]] = {}

    def looked(self, thread: str) -> bool:
        """Tell whether the archive was asked about this thread in this process."""
        with self._lock:
            return thread in self._looked

    def look(self, thread: str) -> None:
        """Note that the archive was asked about this thread."""
        with self._lock:
            self._looked[thread] = None
            if len(self._looked) > _MOST_THREADS:
                self._looked.popitem(last=False)

    def unlook(self, thread: str) -> None:
        """Have the archive asked about this thread again, at its next put."""
        with self._lock:
            self._looked.pop(thread, None)

    def retries(self, thread: str) -> list[Segment]:
        """Take the segments whose hooks failed."""
        with self._lock:
            return list(self._failed.pop(thread, {}).values())

    def start(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return those that may go to the hooks now, oldest first, and note them.

        One with a message that is with a hook at this moment, from another namespace say, waits
        for the thread's next put: only then is it known whether it was told.
        """
        fresh: list[Segment] = []
        with self._lock:
            for segment in sorted(segments, key=lambda segment: segment.checkpoint):
                running = self._running.setdefault(segment.thread, {})
                if segment.id in running:
                    continue
                if any(_whos(segment) & told for told in running.values()):
                    self._fail(segment)
                    continue
                running[segment.id] = _whos(segment)
                fresh.append(segment)
        return fresh

    def runs(self, segment: Segment) -> bool:
        """Tell whether a segment is with its hooks, and its thread was not deleted meanwhile."""
        with self._lock:
            return segment.id in self._running.get(segment.thread, ())

    def finish(self, segment: Segment, *, failed: bool) -> None:
        """Note that the hooks are done with a segment."""
        with self._lock:
            running = self._running.get(segment.thread, {})
            if running.pop(segment.id, None) is None:
                return
            if not running:
                del self._running[segment.thread]
            if failed:
                self._fail(segment)

    def postpone(self, segments: Iterable[Segment]) -> None:
        """Note segments that whoever was about to hand them over could not: it was cancelled."""
        with self._lock:
            for segment in segments:
                running = self._running.get(segment.thread, {})
                running.pop(segment.id, None)
                if not running:
                    self._running.pop(segment.thread, None)
                self._fail(segment)

    def _fail(self, segment: Segment) -> None:
        """Have a segment handed over at its thread's next put; of many threads, the archive knows.

        Hooks may fail for days.
        """
        self._failed.setdefault(segment.thread, {})[segment.id] = segment
        if len(self._failed) > _MOST_THREADS:
            thread, _ = self._failed.popitem(last=False)
            self._looked.pop(thread, None)

    def forget_thread(self, thread: str) -> None:
        """Forget a thread that was deleted."""
        with self._lock:
            self._looked.pop(thread, None)
            self._failed.pop(thread, None)
            self._running.pop(thread, None)


def _whos(segment: Segment) -> frozenset[str]:
    return frozenset(key.partition(".")[0] for key in segment.keys)


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
        leaves = [leave for leave in leaves if not leave.segment.silent]
        if self.archive is None:
            for leave in leaves:
                self._hand_over(_parcel(leave))
            return
        due = [*(leave.segment for leave in leaves), *self._again(thread)]
        try:
            if not self.ledger.looked(thread):
                due += self._named(thread, load)
                self.ledger.look(thread)
        except Exception as error:
            _log_failure(thread, error)
        except BaseException:
            self.ledger.postpone(due)
            raise
        self._deliver(due)

    async def aafter_put(self, thread: str, leaves: Sequence[Leave], load: LoadAsync) -> None:
        """Deliver what left in a put that was stored, and what waits of its thread."""
        if not self.hooks:
            return
        leaves = [leave for leave in leaves if not leave.segment.silent]
        if self.archive is None:
            for leave in leaves:
                await self._ahand_over(_parcel(leave))
            return
        due = [*(leave.segment for leave in leaves), *self._again(thread)]
        try:
            if not self.ledger.looked(thread):
                due += await self._anamed(thread, load)
                self.ledger.look(thread)
        except Exception as error:
            _log_failure(thread, error)
        except BaseException:
            self.ledger.postpone(due)
            raise
        await self._adeliver(due)

    def doubt(self, thread: str) -> None:
        """Note that a put failed or was cancelled, and may have stored its checkpoint all the same.

        What left in it is found in the archive then, at the thread's next put.
        """
        self.ledger.unlook(thread)

    def deliver(self, load: Load) -> None:
        """Deliver what waits of all threads."""
        for thread in self.archive.waiting() if self.archive and self.hooks else ():
            due = self._again(thread)
            try:
                due += self._named(thread, load)
            except Exception as error:
                _log_failure(thread, error)
            except BaseException:
                self.ledger.postpone(due)
                raise
            self._deliver(due)

    async def adeliver(self, load: LoadAsync) -> None:
        """Deliver what waits of all threads."""
        for thread in await self.archive.awaiting() if self.archive and self.hooks else ():
            due = self._again(thread)
            try:
                due += await self._anamed(thread, load)
            except Exception as error:
                _log_failure(thread, error)
            except BaseException:
                self.ledger.postpone(due)
                raise
            await self._adeliver(due)

    def _again(self, thread: str) -> list[Segment]:
        again = self.ledger.retries(thread)
        self._counts.add_retries(len(again))
        return again

    def close(self) -> None:
        """Wait for the hooks in the background, and stop them."""
        for hook in self.hooks:
            if isinstance(hook, Background):
                hook.close()

    def _deliver(self, due: Sequence[Segment]) -> None:
        archive = _there(self.archive)
        started = self.ledger.start(due)
        for place, segment in enumerate(started):
            try:
                entries = archive.read(segment.thread, asked_keys(segment))
                told = archive.told(segment.thread, segment.keys)
                self._hand_over(unpack(segment, entries, told, self._serde))
            except Exception as error:
                self.ledger.finish(segment, failed=True)
                _log_failure(segment.thread, error)
            except BaseException:  # the run was cancelled, or the program is interrupted
                self.ledger.postpone(started[place:])
                raise

    async def _adeliver(self, due: Sequence[Segment]) -> None:
        archive = _there(self.archive)
        started = self.ledger.start(due)
        for place, segment in enumerate(started):
            try:
                entries = await archive.aread(segment.thread, asked_keys(segment))
                told = await archive.atold(segment.thread, segment.keys)
                await self._ahand_over(unpack(segment, entries, told, self._serde))
            except Exception as error:
                self.ledger.finish(segment, failed=True)
                _log_failure(segment.thread, error)
            except BaseException:  # the run was cancelled, or the program is interrupted
                self.ledger.postpone(started[place:])
                raise

    def _named(self, thread: str, load: Load) -> list[Segment]:
        """Return the waiting segments of a thread that a stored checkpoint names."""
        archive = _there(self.archive)
        named: list[Segment] = []
        lines: dict[str | None, set[str]] = {}
        for segment in archive.undelivered(thread):
            found = load(_config(segment)) or load(_config(segment, head=True))
            newest = line_segments(found, archive, load).get(segment.channel)
            # Mostly it is the newest of the checkpoint that let it go; else many share the head's.
            if newest != segment.id and newest not in lines:
                lines[newest] = {one.id for one in archive.chain(thread, newest)}
            named += [segment] if newest == segment.id or segment.id in lines[newest] else []
        return named

    async def _anamed(self, thread: str, load: LoadAsync) -> list[Segment]:
        """Return the waiting segments of a thread that a stored checkpoint names."""
        archive = _there(self.archive)
        named: list[Segment] = []
        lines: dict[str | None, set[str]] = {}
        for segment in await archive.aundelivered(thread):
            found = await load(_config(segment)) or await load(_config(segment, head=True))
            newest = (await aline_segments(found, archive, load)).get(segment.channel)
            # Mostly it is the newest of the checkpoint that let it go; else many share the head's.
            if newest != segment.id and newest not in lines:
                lines[newest] = {one.id for one in await archive.achain(thread, newest)}
            named += [segment] if newest == segment.id or segment.id in lines[newest] else []
        return named

    def _hand_over(self, parcel: Parcel) -> None:
        if not parcel.messages or self._call(parcel):
            self._acknowledge(parcel)

    async def _ahand_over(self, parcel: Parcel) -> None:
        if not parcel.messages or await self._acall(parcel):
            await self._aacknowledge(parcel)

    def _call(self, parcel: Parcel) -> bool:
        """Tell whether all hooks have run; those in the background acknowledge by themselves."""
        eviction = parcel.eviction()
        errors: list[BaseException] = []
        for hook in self._plain():
            try:
                tell(hook, eviction)
            except (Exception, asyncio.CancelledError) as error:
                errors.append(error)
                self._failed(hook, parcel, error)
        return self._settled(parcel, eviction, errors)

    async def _acall(self, parcel: Parcel) -> bool:
        """Tell whether all hooks have run; those in the background acknowledge by themselves."""
        eviction = parcel.eviction()
        errors: list[BaseException] = []
        for hook in self._plain():
            try:
                await atell(hook, eviction)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                errors.append(error)
                self._failed(hook, parcel, error)
        return self._settled(parcel, eviction, errors)

    def _plain(self) -> list[Hook]:
        return [hook for hook in self.hooks if not isinstance(hook, Background)]

    def _settled(self, parcel: Parcel, eviction: Eviction, errors: Sequence[BaseException]) -> bool:
        background = [hook for hook in self.hooks if isinstance(hook, Background)]
        if errors or not background:
            self._counts.add_delivery(failed=bool(errors))
            if errors:
                self.ledger.finish(parcel.segment, failed=True)
            return not errors
        _Join(self, parcel, len(background)).submit(background, eviction)
        return False

    def _failed(self, hook: Hook, parcel: Parcel, error: BaseException) -> None:
        self._counts.add_hook_failure(name_of(hook))
        # The text of the error may quote a message.
        logger.warning(
            "the hook %s failed on segment %s of thread %r and is called again later: %s",
            name_of(hook),
            parcel.segment.id,
            parcel.segment.thread,
            type(error).__name__,
        )

    def _acknowledge(self, parcel: Parcel) -> None:
        """Note in the archive what was told, unless its thread was deleted meanwhile."""
        segment = parcel.segment
        if self.archive is not None and self.ledger.runs(segment):
            self.archive.mark_delivered(segment.thread, segment.id, parcel.keys)
        self.ledger.finish(segment, failed=False)

    async def _aacknowledge(self, parcel: Parcel) -> None:
        """Note in the archive what was told, unless its thread was deleted meanwhile."""
        segment = parcel.segment
        if self.archive is not None and self.ledger.runs(segment):
            await self.archive.amark_delivered(segment.thread, segment.id, parcel.keys)
        self.ledger.finish(segment, failed=False)


class _Join:
    """Wait for the background hooks of one parcel, and acknowledge it when all have returned."""

    def __init__(self, delivery: Delivery, parcel: Parcel, waiting: int) -> None:
        self._delivery, self._parcel = delivery, parcel
        self._waiting = waiting
        self._failed = False
        self._lock = threading.Lock()

    def submit(self, hooks: Sequence[Background], eviction: Eviction) -> None:
        for hook in hooks:
            done = partial(self.done, hook)
            if not hook.submit(eviction, done):
                done(BufferError("too many evictions are pending"))

    def done(self, hook: Hook, error: BaseException | None) -> None:
        with self._lock:
            self._waiting -= 1
            self._failed = self._failed or error is not None
            last = self._waiting == 0
        if error is not None:
            self._delivery._failed(hook, self._parcel, error)
        if last:
            self._delivery._counts.add_delivery(failed=self._failed)
            if self._failed:
                self._delivery.ledger.finish(self._parcel.segment, failed=True)
                return
            try:
                self._delivery._acknowledge(self._parcel)
            except Exception as error:
                self._delivery.ledger.finish(self._parcel.segment, failed=True)
                _log_failure(self._parcel.segment.thread, error)


def _is_cancelled() -> bool:
    """Tell whether it is this task that is cancelled, and not only something that a hook awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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


def pack(
    leave: Leave,
    serde: SerializerProtocol,
    text: Callable[[Any], str] | None,
    *,
    lost: Collection[str] = (),
) -> list[Entry]:
    """Return the entries of what leaves, as the saver's serializer writes them.

    The whole of an excerpt is archived under its key already, and is not written over, but for
    those that are lost.
    """
    packed = [
        Entry(key, *serde.dumps_typed(message), text(message) if text else None)
        for key, message in zip(leave.segment.keys, leave.messages, strict=True)
        if key in lost or marked_key(message) != key
    ]
    if leave.summary is not None:
        packed.append(Entry(leave.segment.summary_key, *serde.dumps_typed(leave.summary)))
    return packed


def _parcel(leave: Leave) -> Parcel:
    keys = leave.segment.keys
    return Parcel(leave.segment, keys, leave.messages, summary=leave.summary)


def asked_keys(segment: Segment) -> list[str]:
    """Return the keys of everything that was archived with a segment."""
    return [*segment.keys, *([segment.summary_key] if segment.summarised else [])]


def unpack(
    segment: Segment, entries: Sequence[Entry], told: dict[str, str], serde: SerializerProtocol
) -> Parcel:
    """Return what of a segment was not told yet, with what was told with another content."""
    messages = [entry for entry in entries if entry.key != segment.summary_key]
    fresh = [entry for entry in messages if told.get(entry.who) != entry.key]
    summary = [entry for entry in entries if entry.key == segment.summary_key]
    return Parcel(
        segment,
        tuple(entry.key for entry in fresh),
        tuple(serde.loads_typed((entry.kind, entry.data)) for entry in fresh),
        tuple(i for i, entry in enumerate(fresh) if entry.who in told),
        next((serde.loads_typed((entry.kind, entry.data)) for entry in summary), None),
    )
