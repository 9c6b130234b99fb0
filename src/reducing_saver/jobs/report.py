"""Hold what a job did or would do, as data: the terminal, the page and `--json` show the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ..rows.thread import Bytes, Skip

__all__ = [
    "Bytes",
    "Erased",
    "JobStatus",
    "Progress",
    "Report",
    "Skip",
    "Swept",
    "ThreadSize",
    "curve",
    "largest",
]

MOST_LARGEST = 12
MOST_CURVE = 200
MOST_ERRORS = 20


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """Hold the bytes of one thread before and after, and how many checkpoints it has before."""

    thread: str
    before: int
    after: int
    checkpoints: int

    @property
    def freed(self) -> int:
        """Return what leaves."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Report:
    """Hold what a job did, or with `dry_run` would do.

    - `threads`: how many were seen; `compacted`: of how many something left or would leave.
    - `skipped`: threads by the value of a `Skip`.
    - `errors`: thread and type of error, never content.
    - `archived`: bytes added to the archive; `returned`: to the disk; `wal`: bytes of write-ahead
      log, where the database tells.
    - `evicted`: messages; `deleted`: checkpoints.
    - `largest`: at most 12 threads by freed bytes; `curve`: at most 200 pairs of bytes before and
      after, sorted by before, sampled evenly.
    - `estimate_seconds`: of a dry run, how long applying it may take.
    - `left`: threads still to do.
    """

    dry_run: bool
    backend: str
    job: str
    policy: str
    archive: str
    threads: int = 0
    compacted: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    bytes: Bytes = field(default_factory=Bytes)
    archived: int = 0
    returned: int = 0
    wal: int | None = None
    evicted: int = 0
    deleted: int = 0
    largest: tuple[ThreadSize, ...] = ()
    curve: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0
    estimate_seconds: float | None = None
    left: int = 0

    @property
    def exit_code(self) -> int:
        """Return 1 after errors, 3 where it stopped with work left, else 0."""
        if self.errors or self.skipped.get(Skip.FAILED):
            return 1
        return 3 if self.left else 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Hold how far a job is."""

    done: int
    total: int
    freed: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Return threads a second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def eta(self) -> float | None:
        """Return the seconds that are left at this rate, or None before there is one."""
        return max(0, self.total - self.done) / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Hold what the ledger says of a job: totals are derived from its threads, never counted.

    A job that is started again once it is done begins a new round: `done`, `total`, `skipped` and
    `errors` are of the last one, what was freed, archived, evicted and deleted of all `rounds`.
    `started` and `changed` are times of the database's clock; `running` tells that a worker holds
    one of its chunks now.
    """

    job: str
    policy: str
    backend: str
    done: int
    total: int
    skipped: Mapping[str, int]
    errors: tuple[str, ...]
    bytes: Bytes
    archived: int
    evicted: int
    deleted: int
    started: datetime | None
    changed: datetime | None
    running: bool
    rounds: int = 1

    @property
    def left(self) -> int:
        """Return how many threads are still to do."""
        return self.total - self.done


@dataclass(frozen=True, slots=True)
class Swept:
    """Hold what `gc` removed, or with `dry_run` would remove.

    `waiting` are blobs that nobody names and that are younger than the grace.
    """

    dry_run: bool
    backend: str
    blobs: int = 0
    blob_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0
    archives: int = 0
    waiting: int = 0
    errors: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def found(self) -> int:
        """Return how much there is to sweep: blobs, writes and archives."""
        return self.blobs + self.writes + self.archives

    @property
    def exit_code(self) -> int:
        """Return 1 after errors, else 0."""
        return 1 if self.errors else 0


@dataclass(frozen=True, slots=True)
class Erased:
    """Hold what `erase` removed, or with `dry_run` would remove, by table.

    `rows` are the rows by table; `found` is what a second look, in every text column of every
    table, still found: by `table.column`, how many rows hold the id of an erased thread.
    """

    dry_run: bool
    backend: str
    threads: tuple[str, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    found: Mapping[str, int] = field(default_factory=dict)
    looked_at: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 1 where something of an erased thread is still there, else 0."""
        return 1 if self.found and not self.dry_run else 0


def largest(sizes: Iterable[ThreadSize]) -> tuple[ThreadSize, ...]:
    """Return the threads of which most leaves."""
    return tuple(sorted(sizes, key=lambda s: (-s.freed, s.thread))[:MOST_LARGEST])


def curve(sizes: Sequence[ThreadSize]) -> tuple[tuple[int, int], ...]:
    """Return pairs of before and after, sorted by before, sampled evenly with both ends."""
    ordered = sorted((s.before, s.after) for s in sizes)
    if len(ordered) <= MOST_CURVE:
        return tuple(ordered)
    last = len(ordered) - 1
    return tuple(ordered[round(i * last / (MOST_CURVE - 1))] for i in range(MOST_CURVE))
