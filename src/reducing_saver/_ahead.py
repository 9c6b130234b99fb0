"""Make summaries off the path of a put: one put begins a summary, a later one uses it.

A summary belongs to what it was made of, not to a moment: whoever finds those messages in its list
behind the same previous summary may use it. So nothing depends on when it is ready, and nothing is
lost where it never is, since until then the messages are stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from contextvars import Context
from typing import NamedTuple

from ._counts import Counts
from ._forks import renew_in_forks
from ._origin import origin_of
from ._segment import entry_key
from ._summary import Summarised, Summary
from .engine.messages import Message, identifier

logger = logging.getLogger("reducing_saver")

_FAILED = "the summary of thread %r failed in the background (%s); nothing has left for it"

MOST_LINES = 1_000
MOST_FORKS = 4
MOST_WAITING = 256


class Line(NamedTuple):
    """Name the list that a summary is made for; its forks share the name."""

    thread: str
    namespace: str
    channel: str


class Job:
    """Hold one summary on its way: what it is made of, and what became of it.

    `length` is how long the list was then. The messages are held until the summary is made, then
    only digests of them.
    """

    __slots__ = (
        "_first",
        "_keys",
        "_previous",
        "failed",
        "length",
        "line",
        "made",
        "messages",
        "previous",
    )

    def __init__(
        self, line: Line, messages: Sequence[Message], previous: Message | None, length: int
    ) -> None:
        self.line = line
        self.length = length
        self.messages: tuple[Message, ...] = (*messages,)
        self.previous = previous
        self.made: Summarised | None = None
        self.failed = False
        self._first = identifier(messages[0])
        self._keys = tuple(_key(message) for message in messages)
        self._previous = _key(previous) if previous is not None else None

    def settle(self, made: Summarised | None) -> None:
        """Note what became of it, and let go of the messages."""
        self.made, self.failed = made, made is None
        self.messages, self.previous = (), None

    def places(self, messages: Sequence[Message], previous: Message | None) -> list[int]:
        """Return where the messages it is made of stand in a list; nothing where one is missing."""
        if not self._may_be_in(messages):
            return []
        if (_key(previous) if previous is not None else None) != self._previous:
            return []
        found: list[int] = []
        for place, message in enumerate(messages):
            if _key(message) == self._keys[len(found)]:
                found.append(place)
                if len(found) == len(self._keys):
                    return found
        return []

    def _may_be_in(self, messages: Sequence[Message]) -> bool:
        """Look at ids first: this runs at every put until the summary is used."""
        first = self._first
        return first is None or any(identifier(message) == first for message in messages)


def _key(message: Message) -> str:
    """Return what an edit of the message does not have; equals without ids do."""
    return entry_key(message, None, 0)


class Ahead:
    """Make summaries in worker threads, and keep them until a put uses them.

    Of each line at most four, one for a fork; of at most 1,000 lines. At most 256 wait to be made:
    where it is full, nothing is begun and the next put tries again. Safe to use from threads and
    loops; nothing here blocks.
    """

    def __init__(self, summary: Summary, counts: Counts, *, workers: int = 2) -> None:
        self.summary = summary
        self.workers = workers
        self._counts = counts
        self.renew()
        renew_in_forks(self)

    def renew(self) -> None:
        """Begin anew in a forked process: what is on its way in another one never comes here."""
        self._lock = threading.Lock()
        self._jobs: OrderedDict[Line, list[Job]] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._threads: list[threading.Thread] = []

    def made(self, line: Line) -> list[Job]:
        """Return the summaries of a line that can be used, newest first."""
        with self._lock:
            return [job for job in reversed(self._jobs.get(line, ())) if job.made is not None]

    def begun(
        self, line: Line, messages: Sequence[Message], previous: Message | None
    ) -> Job | None:
        """Return the newest summary, made or not, of what stands in a list."""
        with self._lock:
            jobs = [*reversed(self._jobs.get(line, ()))]
        return next((job for job in jobs if job.places(messages, previous)), None)

    def begin(
        self, line: Line, messages: Sequence[Message], previous: Message | None, *, length: int
    ) -> Job | None:
        """Begin to make a summary; None where too many are waiting."""
        job = Job(line, messages, previous, length)
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                return None
            jobs = self._jobs.setdefault(line, [])
            jobs.append(job)
            self._jobs.move_to_end(line)
            self._waiting.append(job)
            self._shrink(jobs)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < self.workers:
                self._start(job)
        return job

    def _start(self, job: Job) -> None:
        # Threads of newer Python versions may inherit a context.
        thread = threading.Thread(
            target=Context().run, args=(self._work,), name="reducing_saver-ahead", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the process may have no more
            self._drop(job)
            raise
        self._threads.append(thread)

    def drop(self, jobs: Iterable[object]) -> None:
        """Forget summaries that were used or have failed."""
        with self._lock:
            for job in jobs:
                if isinstance(job, Job):
                    self._drop(job)

    def forget_thread(self, thread: str) -> None:
        """Forget a thread that was deleted; a summary on its way is thrown away."""
        with self._lock:
            for line in [line for line in self._jobs if line.thread == thread]:
                for job in [*self._jobs[line]]:
                    self._drop(job)

    def close(self) -> None:
        """Begin nothing that still waits; a call that runs may end, and nobody waits for it."""
        with self._lock:
            for job in [*self._waiting]:
                self._drop(job)

    def _drop(self, job: Job) -> None:
        jobs = self._jobs.get(job.line, [])
        if job in jobs:
            jobs.remove(job)
        if not jobs:
            self._jobs.pop(job.line, None)
        if job in self._waiting:
            self._waiting.remove(job)

    def _shrink(self, jobs: list[Job]) -> None:
        if len(jobs) > MOST_FORKS:
            self._drop(jobs[0])
        if len(self._jobs) > MOST_LINES:
            for job in [*next(iter(self._jobs.values()))]:
                self._drop(job)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            started, made = time.perf_counter(), None
            try:
                made = self.summary.summarise(job.messages, job.previous, thread=job.line.thread)
            except BaseException as error:  # whatever it is, the worker goes on
                logger.warning(_FAILED, job.line.thread, origin_of(error))
            seconds, calls = time.perf_counter() - started, made.calls if made else None
            with self._lock:
                job.settle(made)
            self._counts.add_summary(job.line.channel, seconds, calls)

    def _next(self) -> Job | None:
        """Take what waits longest; where nothing does, the worker ends."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads.remove(threading.current_thread())
            return None
