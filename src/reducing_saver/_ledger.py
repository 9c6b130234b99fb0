"""Remember in this process what waits for its hooks, and when a thread's hooks are tried again.

After a failure the thread is tried again by one put in each pause, and each pause is twice as long
as the one before. What leaves meanwhile waits with what failed, in its order.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ._forks import renew_in_forks
from ._segment import Segment

FIRST_PAUSE = 1.0
"""Seconds: a hook that fails for a moment is called again by one of the next puts of a chat."""

LONGEST_PAUSE = 300.0
"""Seconds: a hook that is down for hours costs each thread one call in that time, and one line of
the log; and what waits is told so soon after it is back."""

_MOST_THREADS = 10_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold until when a thread waits after a failure; `tried` says that a put tries it now."""

    until: float
    seconds: float
    tried: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """Hold which keys of a segment were handed over, and the places of the hooks that took them."""

    keys: tuple[str, ...] = ()
    took: frozenset[int] = frozenset()


class Ledger:
    """Remember which segments wait, run or failed, and which threads. Safe to use from threads.

    `clock` gives seconds that never go back.
    """

    def __init__(self) -> None:
        self.clock = time.monotonic
        self.renew()
        renew_in_forks(self)

    def renew(self) -> None:
        """Begin anew in a forked process, which asks the archive as any other does."""
        self._lock = threading.Lock()
        self._looked: OrderedDict[str, None] = OrderedDict()
        self._waiting: OrderedDict[str, dict[str, Segment]] = OrderedDict()
        self._tried: dict[str, dict[str, Tried]] = {}
        self._pauses: OrderedDict[str, Pause] = OrderedDict()
        self._running: dict[str, dict[str, frozenset[str]]] = {}

    def looked(self, thread: str) -> bool:
        """Tell whether the archive was asked about this thread in this process."""
        with self._lock:
            return thread in self._looked

    def look(self, thread: str) -> None:
        """Note that the archive was asked about this thread."""
        with self._lock:
            self._looked[thread] = None
            _shrink(self._looked)

    def unlook(self, thread: str) -> None:
        """Have the archive asked about this thread again, at its next put."""
        with self._lock:
            self._looked.pop(thread, None)

    def take(
        self, thread: str, fresh: Iterable[Segment], *, asked: bool = False
    ) -> list[Segment] | None:
        """Take what of a thread may be handed over now; None in a pause, in which it waits.

        With `asked` there is no pause.
        """
        with self._lock:
            now, pause = self.clock(), self._pauses.get(thread)
            if pause is not None and now < pause.until and not asked:
                for segment in fresh:
                    self._wait(segment)
                return None
            if pause is not None:
                # Another put of the thread does not try meanwhile.
                self._pauses[thread] = Pause(now + pause.seconds, pause.seconds, tried=True)
            return [*fresh, *self._waiting.pop(thread, {}).values()]

    def start(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return those that may go to the hooks now, oldest first, and note them.

        One with a message that is with a hook at this moment, from another namespace say, waits
        for the thread's next put: only then is it known whether it was told.
        """
        fresh: list[Segment] = []
        with self._lock:
            busy: dict[str, set[str]] = {}
            for segment in sorted(segments, key=lambda segment: segment.checkpoint):
                thread, whos = segment.thread, _whos(segment)
                running = self._running.setdefault(thread, {})
                if thread not in busy:
                    busy[thread] = {who for told in running.values() for who in told}
                if segment.id in running:
                    continue
                if not whos.isdisjoint(busy[thread]):
                    self._wait_again(segment)
                    continue
                running[segment.id] = whos
                busy[thread] |= whos
                fresh.append(segment)
        return fresh

    def tried(self, segment: Segment) -> Tried | None:
        """Return what is known of a segment that is handed over again; None for the first time."""
        with self._lock:
            return self._tried.get(segment.thread, {}).get(segment.id)

    def runs(self, segment: Segment) -> bool:
        """Tell whether a segment is with its hooks, and its thread was not deleted meanwhile."""
        with self._lock:
            return segment.id in self._running.get(segment.thread, ())

    def pauses(self, thread: str) -> bool:
        """Tell whether a failure of a thread is outstanding."""
        with self._lock:
            return thread in self._pauses

    def finish(self, segment: Segment) -> None:
        """Note that all hooks have taken a segment; the thread's pause ends where it was tried."""
        with self._lock:
            if not self._stop(segment):
                return
            tried = self._tried.get(segment.thread, {})
            tried.pop(segment.id, None)
            if not tried:
                self._tried.pop(segment.thread, None)
            self._recover(segment.thread)

    def fail(self, segment: Segment, tried: Tried | None = None) -> float | None:
        """Note that a segment failed; return the seconds of the pause that begins with it, if so.

        What failed beside it, as a hook in the background may, begins no other one.
        """
        with self._lock:
            if not self._stop(segment):
                return None
            if tried is not None:
                self._tried.setdefault(segment.thread, {})[segment.id] = tried
            self._wait_again(segment)
            return self._pause(segment.thread)

    def fail_thread(self, thread: str) -> float | None:
        """Note that what waits of a thread could not be found out, as `fail` does."""
        with self._lock:
            return self._pause(thread)

    def recover(self, thread: str) -> None:
        """Note that nothing of a thread that was tried again waits any more."""
        with self._lock:
            self._recover(thread)

    def wait(self, segments: Iterable[Segment]) -> None:
        """Have segments wait that were taken and not started."""
        with self._lock:
            for segment in segments:
                self._wait(segment)

    def put_back(self, started: Iterable[Segment]) -> None:
        """Have segments wait that were started and not handed over."""
        with self._lock:
            for segment in started:
                if self._stop(segment):
                    self._wait(segment)

    def cut_off(self, started: Sequence[Segment]) -> None:
        """Put back what was started by someone who was cancelled with the first on its way.

        That is no failure of its hooks.
        """
        with self._lock:
            if self._stop(started[0]):
                self._wait_again(started[0])
        self.put_back(started[1:])

    def forget_thread(self, thread: str) -> None:
        """Forget a thread that was deleted."""
        with self._lock:
            self._looked.pop(thread, None)
            self._waiting.pop(thread, None)
            self._tried.pop(thread, None)
            self._pauses.pop(thread, None)
            self._running.pop(thread, None)

    def _stop(self, segment: Segment) -> bool:
        running = self._running.get(segment.thread, {})
        ran = running.pop(segment.id, None) is not None
        if not running:
            self._running.pop(segment.thread, None)
        return ran

    def _wait_again(self, segment: Segment) -> None:
        """Have a segment handed over later that was, or almost was, before."""
        self._tried.setdefault(segment.thread, {}).setdefault(segment.id, Tried())
        self._wait(segment)

    def _wait(self, segment: Segment) -> None:
        """Have a segment handed over later; of many threads, the archive knows.

        Hooks may fail for days.
        """
        self._waiting.setdefault(segment.thread, {})[segment.id] = segment
        for thread in _shrink(self._waiting):
            self._tried.pop(thread, None)
            self._looked.pop(thread, None)

    def _pause(self, thread: str) -> float | None:
        now, pause = self.clock(), self._pauses.get(thread)
        if pause is not None and now < pause.until and not pause.tried:
            return None
        seconds = min(2 * pause.seconds, LONGEST_PAUSE) if pause else FIRST_PAUSE
        self._pauses[thread] = Pause(now + seconds, seconds)
        _shrink(self._pauses)
        return seconds

    def _recover(self, thread: str) -> None:
        # What was with a hook since before the failure says nothing about it.
        if (pause := self._pauses.get(thread)) is not None and pause.tried:
            del self._pauses[thread]


def _whos(segment: Segment) -> frozenset[str]:
    return frozenset(key.partition(".")[0] for key in segment.keys)


def _shrink(threads: OrderedDict[str, _T]) -> list[str]:
    """Let the oldest threads go where there are too many, and return them."""
    return [threads.popitem(last=False)[0] for _ in range(len(threads) - _MOST_THREADS)]
