"""Deliver what left to hooks: after its checkpoint is stored, and again where a hook failed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive
from ._counts import Counts
from ._entry import Entry
from ._hooks import Background, Eviction, Hook, atell, name_of, tell
from ._ledger import Ledger, Tried
from ._line import Load, LoadAsync, aline_segments, line_segments
from ._origin import origin_of
from ._segment import Leave, Segment
from .engine.excerpt import marked_key

logger = logging.getLogger("reducing_saver")

_LATER = (
    "what left thread %r waits, and is handed over again in %g seconds at the soonest, or by "
    "deliver(): %s"
)
_LOST = "what left thread %r is not told again, as there is no archive: %s"

Failure: TypeAlias = tuple[Hook, BaseException]


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
        self.counts = counts
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
        due = self.ledger.take(thread, [leave.segment for leave in leaves])
        if due is None:
            return
        if not self.ledger.looked(thread):
            self._deliver_all(thread, due, load)
            return
        self._deliver(thread, due)

    async def aafter_put(self, thread: str, leaves: Sequence[Leave], load: LoadAsync) -> None:
        """Deliver what left in a put that was stored, and what waits of its thread."""
        if not self.hooks:
            return
        leaves = [leave for leave in leaves if not leave.segment.silent]
        if self.archive is None:
            for leave in leaves:
                await self._ahand_over(_parcel(leave))
            return
        due = self.ledger.take(thread, [leave.segment for leave in leaves])
        if due is None:
            return
        if not self.ledger.looked(thread):
            await self._adeliver_all(thread, due, load)
            return
        await self._adeliver(thread, due)

    def doubt(self, thread: str) -> None:
        """Note that a put failed or was cancelled, and may have stored its checkpoint all the same.

        What left in it is found in the archive then, at the thread's next put.
        """
        self.ledger.unlook(thread)

    def deliver(self, load: Load) -> None:
        """Deliver what waits of all threads."""
        for thread in self.archive.waiting() if self.archive and self.hooks else ():
            due = self.ledger.take(thread, (), asked=True) or []
            self._deliver_all(thread, due, load, asked=True)

    async def adeliver(self, load: LoadAsync) -> None:
        """Deliver what waits of all threads."""
        for thread in await self.archive.awaiting() if self.archive and self.hooks else ():
            due = self.ledger.take(thread, (), asked=True) or []
            await self._adeliver_all(thread, due, load, asked=True)

    def close(self) -> None:
        """Wait for the hooks in the background, and stop them."""
        for hook in self.hooks:
            if isinstance(hook, Background):
                hook.close()

    def _deliver_all(
        self, thread: str, due: list[Segment], load: Load, *, asked: bool = False
    ) -> None:
        """Deliver what is due, and what the archive knows of the thread."""
        try:
            due += self._named(thread, load)
            self.ledger.look(thread)
        except Exception as error:
            self.ledger.wait(due)
            _log_later(thread, self.ledger.fail_thread(thread), origin_of(error))
            return
        except BaseException:
            self.ledger.wait(due)
            raise
        self._deliver(thread, due, asked=asked)

    def _deliver(self, thread: str, due: Sequence[Segment], *, asked: bool = False) -> None:
        """Hand over one segment after the other, up to the first that fails.

        Of a thread that has failed nothing more is handed over before the first has returned,
        from the background say, but where the user asks for it.
        """
        archive = _there(self.archive)
        started = self.ledger.start(due)
        if not due:
            self.ledger.recover(thread)
        for place, segment in enumerate(started):
            try:
                entries = archive.read(segment.thread, asked_keys(segment))
                told = archive.told(segment.thread, segment.keys)
                parcel = unpack(segment, entries, told, self._serde)
                failed = not self._hand_over(parcel)
            except Exception as error:
                failed = True
                self.wait_for(segment, error)
            except BaseException:  # the run was cancelled, or the program is interrupted
                self.ledger.cut_off(started[place:])
                raise
            if failed or (not asked and self.ledger.pauses(thread)):
                self.ledger.put_back(started[place + 1 :])
                return

    async def _adeliver_all(
        self, thread: str, due: list[Segment], load: LoadAsync, *, asked: bool = False
    ) -> None:
        """Deliver what is due, and what the archive knows of the thread."""
        try:
            due += await self._anamed(thread, load)
            self.ledger.look(thread)
        except Exception as error:
            self.ledger.wait(due)
            _log_later(thread, self.ledger.fail_thread(thread), origin_of(error))
            return
        except BaseException:
            self.ledger.wait(due)
            raise
        await self._adeliver(thread, due, asked=asked)

    async def _adeliver(self, thread: str, due: Sequence[Segment], *, asked: bool = False) -> None:
        """Hand over one segment after the other, up to the first that fails.

        Of a thread that has failed nothing more is handed over before the first has returned,
        from the background say, but where the user asks for it.
        """
        archive = _there(self.archive)
        started = self.ledger.start(due)
        if not due:
            self.ledger.recover(thread)
        for place, segment in enumerate(started):
            try:
                entries = await archive.aread(segment.thread, asked_keys(segment))
                told = await archive.atold(segment.thread, segment.keys)
                parcel = unpack(segment, entries, told, self._serde)
                failed = not await self._ahand_over(parcel)
            except Exception as error:
                failed = True
                self.wait_for(segment, error)
            except BaseException:  # the run was cancelled, or the program is interrupted
                self.ledger.cut_off(started[place:])
                raise
            if failed or (not asked and self.ledger.pauses(thread)):
                self.ledger.put_back(started[place + 1 :])
                return

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

    def _hand_over(self, parcel: Parcel) -> bool:
        """Tell whether no hook has failed yet; those in the background acknowledge later."""
        tried = self.ledger.tried(parcel.segment)
        self.counts.add_retries(tried is not None)
        took = tried.took if tried and tried.keys == parcel.keys else frozenset[int]()
        handing = _Handing(self, parcel, took)
        if parcel.messages:
            self._call(handing)
        if handing.failures:
            handing.fail()
        elif background := handing.background():
            handing.submit(background)
        else:
            self.acknowledge(parcel)
        return not handing.failures

    async def _ahand_over(self, parcel: Parcel) -> bool:
        """Tell whether no hook has failed yet; those in the background acknowledge later."""
        tried = self.ledger.tried(parcel.segment)
        self.counts.add_retries(tried is not None)
        took = tried.took if tried and tried.keys == parcel.keys else frozenset[int]()
        handing = _Handing(self, parcel, took)
        if parcel.messages:
            await self._acall(handing)
        if handing.failures:
            handing.fail()
        elif background := handing.background():
            handing.submit(background)
        else:
            await self.aacknowledge(parcel)
        return not handing.failures

    def _call(self, handing: _Handing) -> None:
        """Call the hooks that are not in the background, and note how that went."""
        for place, hook in handing.plain():
            try:
                tell(hook, handing.eviction)
            except (Exception, asyncio.CancelledError) as error:
                handing.note(place, error)
            else:
                handing.note(place, None)

    async def _acall(self, handing: _Handing) -> None:
        """Call the hooks that are not in the background, and note how that went."""
        for place, hook in handing.plain():
            try:
                await atell(hook, handing.eviction)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                handing.note(place, error)
            else:
                handing.note(place, None)

    def acknowledge(self, parcel: Parcel) -> None:
        """Note in the archive what was told, unless its thread was deleted meanwhile."""
        segment = parcel.segment
        self._count(parcel)
        if self.archive is not None and self.ledger.runs(segment):
            self.archive.mark_delivered(segment.thread, segment.id, parcel.keys)
        self.ledger.finish(segment)

    async def aacknowledge(self, parcel: Parcel) -> None:
        """Note in the archive what was told, unless its thread was deleted meanwhile."""
        segment = parcel.segment
        self._count(parcel)
        if self.archive is not None and self.ledger.runs(segment):
            await self.archive.amark_delivered(segment.thread, segment.id, parcel.keys)
        self.ledger.finish(segment)

    def _count(self, parcel: Parcel) -> None:
        if parcel.messages:
            self.counts.add_delivery(failed=False)

    def fail(self, segment: Segment, tried: Tried, failures: Sequence[Failure]) -> None:
        """Note that hooks failed on a segment, and have it handed over later."""
        self.counts.add_delivery(failed=True)
        why = f"{', '.join(map(_named_failure, failures))} failed on segment {segment.id}"
        if self.archive is None:
            logger.warning(_LOST, segment.thread, why)
            return
        _log_later(segment.thread, self.ledger.fail(segment, tried), why)

    def wait_for(self, segment: Segment, error: Exception) -> None:
        """Have a segment handed over later for which the archive failed."""
        _log_later(segment.thread, self.ledger.fail(segment), origin_of(error))


class _Handing:
    """Hand one parcel to the hooks that have not taken it; it is settled when all have returned.

    Safe to use from threads.
    """

    def __init__(self, delivery: Delivery, parcel: Parcel, took: frozenset[int]) -> None:
        self._delivery, self._parcel = delivery, parcel
        self.eviction = parcel.eviction()
        self.failures: list[Failure] = []
        self._took = {*took}
        self._left = 0
        self._lock = threading.Lock()

    def plain(self) -> list[tuple[int, Hook]]:
        """Return the hooks that run now, with their places."""
        return [(place, hook) for place, hook in self._hooks() if not isinstance(hook, Background)]

    def background(self) -> list[tuple[int, Background]]:
        """Return the hooks that run in the background, with their places."""
        return [(place, hook) for place, hook in self._hooks() if isinstance(hook, Background)]

    def _hooks(self) -> list[tuple[int, Hook]]:
        hooks = self._delivery.hooks if self._parcel.messages else ()
        return [(place, hook) for place, hook in enumerate(hooks) if place not in self._took]

    def note(self, place: int, error: BaseException | None) -> None:
        """Note that a hook has returned, or that it failed."""
        if error is None:
            self._took.add(place)
            return
        hook = self._delivery.hooks[place]
        self.failures.append((hook, error))
        self._delivery.counts.add_hook_failure(name_of(hook))

    def submit(self, hooks: Sequence[tuple[int, Background]]) -> None:
        """Have hooks run in the background; the last one that returns settles the parcel."""
        self._left = len(hooks)
        for place, hook in hooks:
            done = partial(self._done, place)
            if not hook.submit(self.eviction, done):
                done(BufferError("too many evictions are pending"))

    def _done(self, place: int, error: BaseException | None) -> None:
        with self._lock:
            self.note(place, error)
            self._left -= 1
            last = self._left == 0
        if not last:
            return
        if self.failures:
            self.fail()
            return
        try:
            self._delivery.acknowledge(self._parcel)
        except Exception as error:
            self._delivery.wait_for(self._parcel.segment, error)

    def fail(self) -> None:
        """Have the parcel handed over later, to those hooks that have not taken it."""
        tried = Tried(self._parcel.keys, frozenset(self._took))
        self._delivery.fail(self._parcel.segment, tried, self.failures)


def _named_failure(failure: Failure) -> str:
    hook, error = failure
    return f"the hook {name_of(hook)} ({origin_of(error)})"


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


def _log_later(thread: str, pause: float | None, why: str) -> None:
    """Say once in each pause that a thread waits, and why."""
    if pause is not None:
        logger.warning(_LATER, thread, pause, why)


def pack(
    leave: Leave,
    dump: Callable[[Any], tuple[str, bytes]],
    text: Callable[[Any], str] | None,
    *,
    lost: Collection[str] = (),
) -> list[Entry]:
    """Return the entries of what leaves, as the saver's serializer dumps them.

    The whole of an excerpt is archived under its key already, and is not written over, but for
    those that are lost.
    """
    packed = [
        Entry.of(key, dump(message), text(message) if text else None)
        for key, message in zip(leave.segment.keys, leave.messages, strict=True)
        if key in lost or marked_key(message) != key
    ]
    if leave.summary is not None:
        packed.append(Entry.of(leave.segment.summary_key, dump(leave.summary)))
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
        tuple(entry.load(serde) for entry in fresh),
        tuple(i for i, entry in enumerate(fresh) if entry.who in told),
        next((entry.load(serde) for entry in summary), None),
    )
