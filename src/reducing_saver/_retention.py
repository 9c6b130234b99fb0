"""Delete old checkpoints of live threads in the background, a few at a time.

It is no part of a put: a put only names its thread. One thread of the process does the rest over a
connection of its own, by the code of a job, and ends when nothing is left to do. What is not done,
since the process ended say, is done after the thread's next run. Values, where checkpoints name
them, go a second after the checkpoints: see `rows.unnamed`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from ._errors import ConfigurationError
from ._forwarding import ForwardingSaver
from ._lineage import CheckpointKey
from ._retain import Key, Retain
from .rows import unnamed
from .rows.backend import ValueKey, free_still, retried
from .rows.backend import retain as delete_old
from .rows.late import remembered
from .rows.source import Source, kind_of, place, placed
from .rows.thread import Look

logger = logging.getLogger("reducing_saver")

T = TypeVar("T")

MOST_A_PASS = 50
"""Checkpoints that one transaction deletes."""

EVERY = 20
"""Puts of a thread that does not come to rest, as a long run or a chat in `interrupt()`."""

GRACE_SECONDS = 0.5
"""How old a checkpoint is that is deleted: writes of its tasks may be on their way until then."""

HELD_SECONDS = 3_600.0
"""How long a checkpoint stays that was loaded by its id, unless a run has gone on from it."""

_MOST_THREADS = 10_000
_MOST_HELD = 1_000
_MOST_DELETED = 1_000
_LINGER_SECONDS = 5.0
_LOOP_SECONDS = 10.0
_CLOSE_SECONDS = 30.0
_EXIT_SECONDS = 2.0
_TRIES = 6
_ALLOWED = (
    "None for this saver: retain= works with a PostgresSaver, a SqliteSaver and their async "
    "twins; compact() shortens threads of any other"
)
_FAILED = (
    "old checkpoints of thread %r could not be deleted, and are after its next run: %s (said "
    "once; stats() counts the others)"
)


@dataclass(frozen=True, slots=True)
class Retained:
    """Hold how many checkpoints were deleted, and how many passes over a thread failed."""

    deleted: int = 0
    failures: int = 0


class _Due(NamedTuple):
    """Hold a thread that waits: its saver, when it is looked after, and when once more.

    `unnamed` are its values that nobody named when they were looked for; they may go from `frees`
    on.
    """

    inner: Any
    at: float
    then: float | None = None
    unnamed: Sequence[ValueKey] = ()
    frees: float = 0.0


class Retention:
    """Keep what `retain` says of every thread that is put. Safe to use from threads and loops."""

    def __init__(self, inner: BaseCheckpointSaver[Any], retain: Retain) -> None:
        if not isinstance(retain, Retain):
            raise ConfigurationError("retain", retain, "a Retain, as Retain(last=3), or None")
        if kind_of(_stored_by(inner)) is None:
            raise ConfigurationError("retain", retain, _ALLOWED)
        self.retain = retain
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, _Due] = OrderedDict()
        self._puts: OrderedDict[str, int] = OrderedDict()
        self._held: OrderedDict[CheckpointKey, float] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._hurries = self._gives_up = False
        self._place: str | Future[str] | None = None
        self._deleted: OrderedDict[str, tuple[Key, ...]] = OrderedDict()
        self._done = Retained()
        self._said: set[str] = set()
        _open.add(self)

    def hold(self, key: CheckpointKey) -> None:
        """Note that somebody has loaded a checkpoint by its id and may go on from it."""
        if not key.checkpoint:
            return
        with self._changed:
            self._held[key] = time.monotonic() + HELD_SECONDS
            self._held.move_to_end(key)
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)

    def after_put(
        self, inner: BaseCheckpointSaver[Any], before: CheckpointKey, *, rests: bool
    ) -> None:
        """Note a checkpoint that was stored after another one; never waits and never raises.

        A SQLite in memory is looked after at once: it has one connection, and that may be closed
        while another thread uses it, which SQLite does not survive.
        """
        thread, inner = before.thread, _stored_by(inner)
        try:
            if not self._is_due(before, rests=rests and before.namespace == ""):
                return
            if self._place is None and (kind_of(inner) == "sqlite" or hasattr(inner, "loop")):
                self._ask(inner)
            if self._place == "":
                self._done_now(inner, thread)
            else:
                self._queue(thread, inner)
        except Exception as error:
            self._failed(thread, error)

    def _is_due(self, before: CheckpointKey, *, rests: bool) -> bool:
        thread = before.thread
        with self._changed:
            self._held.pop(before, None)
            puts = self._puts.pop(thread, 0) + 1
            if rests or puts >= EVERY:
                return True
            self._puts[thread] = puts
            if len(self._puts) > _MOST_THREADS:
                self._puts.popitem(last=False)
            return False

    def _queue(self, thread: str, inner: Any) -> None:
        with self._changed:
            at = time.monotonic() + GRACE_SECONDS
            known = self._waiting.get(thread)
            due = known._replace(inner=inner, then=at) if known else _Due(inner, at)
            self._waiting[thread] = due
            if len(self._waiting) > _MOST_THREADS:
                self._waiting.popitem(last=False)
            if self._is_idle():
                self._worker = threading.Thread(target=self._work, daemon=True)
                self._worker.start()
            elif known is None:
                self._changed.notify_all()

    def _done_now(self, inner: Any, thread: str) -> None:
        self._add(self._delete(placed(inner, "").connect(), thread) or 0)

    def read(self) -> Retained:
        """Return what was done so far."""
        return self._done

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Do what is left to do, without pauses, and close the connection; a later put opens it."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_idle, seconds)
            self._hurries = False

    def give_up(self) -> None:
        """Finish the pass that has begun, and no other."""
        with self._changed:
            self._waiting.clear()
            self._gives_up = True
        self.close(_EXIT_SECONDS)
        self._gives_up = False

    def _is_idle(self) -> bool:
        # No thread survives a fork.
        return self._worker is None or not self._worker.is_alive()

    def _ask(self, inner: Any) -> None:
        """Ask where a saver stores; an async one on its loop, which runs: it has just stored."""
        said = place(inner)
        if isinstance(said, str):
            self._place = said
        else:
            self._place = asyncio.run_coroutine_threadsafe(said(), inner.loop)

    def _work(self) -> None:
        rows: Any = None
        while True:
            found = self._next()
            if found is None:
                _close(rows)
                rows = None
                if self._ends():
                    return
                continue
            thread, due = found
            began = time.monotonic()
            try:
                if rows is None:
                    rows = self._source(due.inner).connect()
                rows.serde = due.inner.serde
                freed = self._freed(rows, thread, due)
                deleted = self._delete(rows, thread)
                due = self._looked(rows, thread, freed, but=due.unnamed)
            except Exception as error:
                _close(rows)
                rows = None
                self._failed(thread, error)
                continue
            self._go_on(thread, due, deleted)
            self._pause(time.monotonic() - began)

    def _next(self) -> tuple[str, _Due] | None:
        """Take the next thread, when it is due; None where there is none for a while."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._hurries, _LINGER_SECONDS)
            while self._waiting:
                thread, due = min(self._waiting.items(), key=lambda item: item[1].at)
                left = due.at - time.monotonic()
                if left <= 0:
                    del self._waiting[thread]
                    return thread, due
                self._changed.wait(left)
            return None

    def _ends(self) -> bool:
        with self._changed:
            if self._waiting:
                return False
            self._worker = None
            self._changed.notify_all()
            return True

    def _source(self, inner: Any) -> Source:
        if self._place is None:
            self._ask(inner)
        found = self._place
        if isinstance(found, Future):
            try:
                found = found.result(_LOOP_SECONDS)
            except BaseException:
                self._place = None  # its loop has ended; the next put asks again
                raise
            self._place = found
        return placed(inner, found or "")

    def _freed(self, rows: Any, thread: str, due: _Due) -> _Due:
        """Delete the values that nobody named a while ago, and still nobody does."""
        if not due.unnamed or due.frees > time.monotonic():
            return due
        self._patiently(lambda: free_still(rows, thread, due.unnamed))
        return due._replace(unnamed=(), frees=0.0)

    def _looked(self, rows: Any, thread: str, due: _Due, *, but: Sequence[ValueKey]) -> _Due:
        """Look for values that nobody names, unless some have been found that wait.

        Whoever has deleted what named them: another process may have, a moment ago. `but` are
        those just tried: where a database keeps them, they are not tried on and on.
        """
        if due.unnamed or not rows.shares_values:
            return due
        found = {*rows.unnamed(thread)}.difference(but)
        if not found:
            return due
        frees = time.monotonic() + unnamed.GRACE_SECONDS
        return due._replace(unnamed=tuple(found), frees=frees)

    def _delete(self, rows: Any, thread: str) -> int | None:
        gone = self._patiently(lambda: self._deleted_now(rows, thread))
        return None if gone is None else self._remember(thread, gone)

    def _deleted_now(self, rows: Any, thread: str) -> Sequence[Key] | None:
        look = Look(self._for(thread), datetime.now(UTC), deleted=self._lately)
        return delete_old(rows, thread, look, most=MOST_A_PASS)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do it once; where a live run has written the same rows, again."""
        return retried(act, tries=_TRIES, pause=lambda nth: self._pause(0.02 * nth))

    def _remember(self, thread: str, gone: Sequence[Key]) -> int:
        """Note what was deleted, as writes of it may still come; return how many there were."""
        now = datetime.now(UTC)
        with self._changed:
            known = remembered((*self._deleted.pop(thread, ()), *gone), now=now)
            if known:
                newest = sorted(known, key=lambda key: key.id)[-_MOST_DELETED:]
                self._deleted[thread] = tuple(newest)
            if len(self._deleted) > _MOST_DELETED:
                self._deleted.popitem(last=False)
        return len(gone)

    def _lately(self, thread: str) -> tuple[Key, ...]:
        with self._changed:
            return self._deleted.get(thread, ())

    def _for(self, thread: str) -> Retain:
        """Return what stays of a thread, with what was loaded by its id and may be gone on from."""
        now = time.monotonic()
        with self._changed:
            for key in [key for key, until in self._held.items() if until <= now]:
                del self._held[key]
            held = [key.checkpoint for key in self._held if key.thread == thread]
        least = timedelta(seconds=GRACE_SECONDS)
        newer = self.retain.newer
        young = max(newer, least) if isinstance(newer, timedelta) else least
        return replace(self.retain, newer=young, ids=(*self.retain.ids, *held))

    def _go_on(self, thread: str, due: _Due, deleted: int | None) -> None:
        """Count a pass, and note when the thread is looked after again, where it is."""
        self._add(deleted or 0)
        with self._changed:
            at, then = due.then or due.frees, None
            if deleted is None:
                self._puts[thread] = EVERY  # the next put is due
                at = due.frees
            elif deleted == MOST_A_PASS:  # there may be more
                at, then = time.monotonic(), due.then
            if at and not self._gives_up:
                known = self._waiting.get(thread, due._replace(at=at, then=then))
                self._waiting[thread] = known._replace(unnamed=due.unnamed, frees=due.frees)

    def _add(self, deleted: int) -> None:
        self._done = replace(self._done, deleted=self._done.deleted + deleted)

    def _failed(self, thread: str, error: Exception) -> None:
        self._done = replace(self._done, failures=self._done.failures + 1)
        name = type(error).__name__
        if name not in self._said:
            self._said.add(name)
            # The text of the error may quote a value.
            logger.warning(_FAILED, thread, name)

    def _pause(self, seconds: float) -> None:
        """Let others have the database as long as it was used."""
        with self._changed:
            self._changed.wait_for(lambda: self._hurries, seconds)


def _stored_by(saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
    while isinstance(saver, ForwardingSaver):
        saver = saver.inner
    return saver


def _close(rows: Any) -> None:
    if rows is None:
        return
    try:
        rows.close()
    except Exception as error:
        logger.debug("a connection could not be closed: %s", type(error).__name__)


_open: weakref.WeakSet[Retention] = weakref.WeakSet()


@atexit.register
def _give_up_all() -> None:
    for retention in list(_open):
        retention.give_up()
