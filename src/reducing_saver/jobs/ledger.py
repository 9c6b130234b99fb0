"""Keep account of a job in the database it works on, in the transactions that do the work.

What is in the ledger was done, and what was done is in the ledger: a worker or a driver may die at
any moment. Totals are sums over the ledger; nobody counts. The statements are the same for
Postgres and SQLite, but for the claim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from .._errors import JobError
from .._retain import Key, floor
from ..rows import unnamed
from ..rows.backend import Head
from ..rows.late import PATIENCE
from ..rows.thread import Bytes
from .report import MOST_ERRORS, JobStatus, Skip, ThreadSize

DONE = "done"
TABLES = (
    "reducing_saver_jobs",
    "reducing_saver_rounds",
    "reducing_saver_chunks",
    "reducing_saver_threads",
    "reducing_saver_deleted",
    "reducing_saver_freed",
)
_OF_THREADS = ("reducing_saver_threads", "reducing_saver_deleted", "reducing_saver_freed")

_CREATE = (
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_jobs (
        job TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, spec TEXT NOT NULL, round BIGINT NOT NULL,
        before BIGINT NOT NULL, young BIGINT NOT NULL, started DOUBLE PRECISION NOT NULL,
        changed DOUBLE PRECISION NOT NULL
    )""",
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_chunks (
        job TEXT NOT NULL, round BIGINT NOT NULL, chunk BIGINT NOT NULL, threads TEXT NOT NULL,
        amount BIGINT NOT NULL, done INTEGER NOT NULL DEFAULT 0,
        leased DOUBLE PRECISION NOT NULL DEFAULT 0, PRIMARY KEY (job, round, chunk)
    )""",
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_threads (
        job TEXT NOT NULL, thread_id TEXT NOT NULL, round BIGINT NOT NULL, chunk BIGINT NOT NULL,
        head TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL,
        old_versions BIGINT NOT NULL, writes BIGINT NOT NULL, checkpoints BIGINT NOT NULL,
        evicted_bytes BIGINT NOT NULL, stays BIGINT NOT NULL, archived BIGINT NOT NULL,
        evicted BIGINT NOT NULL, deleted BIGINT NOT NULL, amount BIGINT NOT NULL,
        PRIMARY KEY (job, thread_id)
    )""",
    """
    CREATE INDEX IF NOT EXISTS reducing_saver_threads_chunk
    ON reducing_saver_threads (job, round, chunk)
    """,
    # What was done in the rounds before the last one: their threads are done again.
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_rounds (
        job TEXT NOT NULL, round BIGINT NOT NULL, compacted BIGINT NOT NULL,
        old_versions BIGINT NOT NULL, writes BIGINT NOT NULL, checkpoints BIGINT NOT NULL,
        evicted_bytes BIGINT NOT NULL, archived BIGINT NOT NULL, evicted BIGINT NOT NULL,
        deleted BIGINT NOT NULL, PRIMARY KEY (job, round)
    )""",
    # Of any job: young checkpoints, whose writes may still come. One row for a thread each time.
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_deleted (
        thread_id TEXT NOT NULL, newest TEXT NOT NULL, checkpoints TEXT NOT NULL,
        PRIMARY KEY (thread_id, newest)
    )""",
    # Of any job: threads whose values go that nobody names, from then on by the database's clock.
    """
    CREATE TABLE IF NOT EXISTS reducing_saver_freed (
        thread_id TEXT PRIMARY KEY, due DOUBLE PRECISION NOT NULL
    )""",
)
_JOB = "SELECT fingerprint, spec, round, before, young, started, changed FROM reducing_saver_jobs"
_RECORD = """
    INSERT INTO reducing_saver_threads (job, thread_id, round, chunk, head, outcome, error,
        old_versions, writes, checkpoints, evicted_bytes, stays, archived, evicted, deleted, amount)
    {rows}
    ON CONFLICT (job, thread_id) DO UPDATE SET round = excluded.round, chunk = excluded.chunk,
        head = excluded.head, outcome = excluded.outcome, error = excluded.error,
        old_versions = excluded.old_versions, writes = excluded.writes,
        checkpoints = excluded.checkpoints, evicted_bytes = excluded.evicted_bytes,
        stays = excluded.stays, archived = excluded.archived, evicted = excluded.evicted,
        deleted = excluded.deleted, amount = excluded.amount
    """
_RECORD_EACH = _RECORD.format(
    rows="VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
# All rows at once: psycopg sends many statements in a pipeline, which stops the timer that ends the
# session of a frozen worker.
_RECORD_ALL = _RECORD.format(
    rows="SELECT * FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::text[], "
    "%b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], "
    "%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])"
)
_TOTALS = """
    SELECT outcome, count(*), sum(old_versions), sum(writes), sum(checkpoints), sum(evicted_bytes),
        sum(stays), sum(archived), sum(evicted), sum(deleted)
    FROM reducing_saver_threads WHERE job = %s AND round = %s GROUP BY outcome
    """
_END_ROUND = """
    INSERT INTO reducing_saver_rounds
    SELECT job, round, count(*), sum(old_versions), sum(writes), sum(checkpoints),
        sum(evicted_bytes), sum(archived), sum(evicted), sum(deleted)
    FROM reducing_saver_threads WHERE job = %s AND round = %s AND outcome = %s GROUP BY job, round
    ON CONFLICT (job, round) DO NOTHING
    """
_EARLIER = """
    SELECT count(*), coalesce(sum(compacted), 0), coalesce(sum(old_versions), 0),
        coalesce(sum(writes), 0), coalesce(sum(checkpoints), 0), coalesce(sum(evicted_bytes), 0),
        coalesce(sum(archived), 0), coalesce(sum(evicted), 0), coalesce(sum(deleted), 0)
    FROM reducing_saver_rounds WHERE job = %s
    """
_STAYS = """
    SELECT coalesce(sum(stays), 0) FROM reducing_saver_threads WHERE job = %s AND round < %s
    """
_NOTE_DELETED = """
    INSERT INTO reducing_saver_deleted VALUES (%s, %s, %s)
    ON CONFLICT (thread_id, newest) DO NOTHING
    """
_NOTE_ALL_DELETED = """
    INSERT INTO reducing_saver_deleted SELECT * FROM unnest(%b::text[], %b::text[], %b::text[])
    ON CONFLICT (thread_id, newest) DO NOTHING
    """
_NOTE_FREED = """
    INSERT INTO reducing_saver_freed
    SELECT thread, extract(epoch FROM clock_timestamp()) + %s FROM unnest(%s::text[]) AS t(thread)
    ON CONFLICT (thread_id) DO UPDATE SET due = excluded.due
    """
_LEFT_TO_FREE = """
    SELECT count(*), min(due) - extract(epoch FROM clock_timestamp()) FROM reducing_saver_freed
    WHERE due <= %s
    """
_TAKE_FREED = """
    DELETE FROM reducing_saver_freed WHERE thread_id IN (
        SELECT thread_id FROM reducing_saver_freed
        WHERE due <= extract(epoch FROM clock_timestamp())
        ORDER BY due, thread_id LIMIT %s FOR UPDATE SKIP LOCKED
    ) RETURNING thread_id
    """
_CLAIM = """
    SELECT chunk, threads FROM reducing_saver_chunks
    WHERE job = %s AND round = %s AND done = 0 AND leased < %s ORDER BY chunk LIMIT 1
    """
_CLAIM_ONE = """
    SELECT chunk, threads FROM reducing_saver_chunks
    WHERE job = %s AND round = %s AND done = 0 AND chunk = %s
    """
_SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"


class Claim(NamedTuple):
    """Hold the threads that a worker does next."""

    chunk: int
    threads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what became of one thread: `DONE`, or the value of a `Skip`.

    `lately` names deleted checkpoints that were so young that writes of theirs may still come.
    """

    thread: str
    head: str
    outcome: str
    error: str = ""
    bytes: Bytes = field(default_factory=Bytes)
    archived: int = 0
    evicted: int = 0
    deleted: int = 0
    checkpoints: int = 0
    lately: tuple[Key, ...] = ()

    @property
    def size(self) -> ThreadSize:
        """Return its bytes before and after."""
        done = self.outcome == DONE
        after = self.bytes.stays if done else self.bytes.before
        return ThreadSize(self.thread, self.bytes.before, after, self.checkpoints)


@dataclass(frozen=True, slots=True)
class Totals:
    """Hold the sums over a round of a job."""

    done: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    bytes: Bytes = field(default_factory=Bytes)
    archived: int = 0
    evicted: int = 0
    deleted: int = 0

    @property
    def seen(self) -> int:
        """Return how many threads are through."""
        return self.done + sum(self.skipped.values())


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job as the ledger has it.

    `before` threads were done before this round, `young` were too young when it was planned.
    """

    name: str
    fingerprint: str
    spec: Mapping[str, Any]
    round: int
    before: int
    young: int
    started: float
    changed: float


class Ledger:
    """Read and write the ledger over a connection of psycopg (autocommit) or sqlite3."""

    def __init__(self, connection: Any, *, postgres: bool) -> None:
        self._connection = connection
        self._postgres = postgres

    def create(self) -> None:
        """Make the tables, where they are not there."""
        for statement in _CREATE:
            self._run(statement)

    def exists(self) -> bool:
        """Tell whether there is a ledger."""
        return self._has(TABLES[0])

    def _has(self, table: str) -> bool:
        if self._postgres:
            found = self._run("SELECT to_regclass(%s) IS NOT NULL", (table,))
        else:
            found = self._run(
                "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = %s", (table,)
            )
        return bool(found[0][0])

    def find(self, name: str) -> Job | None:
        """Return a job, or None where there is none of this name."""
        rows = self._run(f"{_JOB} WHERE job = %s", (name,))
        return Job(name, rows[0][0], json.loads(rows[0][1]), *rows[0][2:]) if rows else None

    def names(self) -> list[str]:
        """Return the names of all jobs, in order."""
        return [row[0] for row in self._run("SELECT job FROM reducing_saver_jobs ORDER BY job")]

    def plan(
        self,
        name: str,
        fingerprint: str,
        spec: Mapping[str, Any],
        heads: Sequence[Head],
        *,
        size: int,
        young: int,
        orphaned: Callable[[Sequence[str]], set[str]],
    ) -> Job:
        """Return the job, with chunks of threads to do; only within a transaction.

        An unfinished round goes on. Otherwise a new round takes the threads that are new, or have
        a new head since they were done, or were skipped, or to which writes came of a checkpoint
        that is not there: `orphaned` says which of threads.
        """
        known, now = self.find(name), time.time()
        if known is not None and known.fingerprint != fingerprint:
            raise JobError(
                f"job {name!r} was started with another policy, archive or channels: choose "
                "another name, or give what it was started with"
            )
        if known is not None and self.left(known):
            if known.spec.get("threads") != spec.get("threads"):
                raise JobError(
                    f"job {name!r} has stopped with other threads to do: finish it with those, or "
                    "choose another name"
                )
            # The one who had leased a chunk is gone, or has only to make its summaries again.
            self._run(
                "UPDATE reducing_saver_chunks SET leased = 0 "
                "WHERE job = %s AND leased > 0 AND done = 0",
                (name,),
            )
            return known
        number = known.round + 1 if known else 1
        self._run(_END_ROUND, (name, number - 1, DONE))
        done = dict(
            self._run(
                "SELECT thread_id, head FROM reducing_saver_threads "
                "WHERE job = %s AND outcome IN (%s, %s)",
                (name, DONE, Skip.DONE.value),
            )
        )
        same = {head.thread for head in heads if done.get(head.thread) == head.id}
        same -= orphaned([*same]) if same else set()
        todo = [head.thread for head in heads if head.thread not in same]
        before = len(heads) - len(todo)
        self._run(
            "INSERT INTO reducing_saver_jobs VALUES (%s, %s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (job) DO UPDATE SET spec = excluded.spec, round = excluded.round, "
            "before = excluded.before, young = excluded.young, started = excluded.started, "
            "changed = excluded.changed",
            (name, fingerprint, json.dumps(spec), number, before, young, now, now),
        )
        self._run("DELETE FROM reducing_saver_chunks WHERE job = %s", (name,))
        soon = floor(datetime.now(UTC) - PATIENCE)
        self._run("DELETE FROM reducing_saver_deleted WHERE newest < %s", (soon,))
        chunks = [todo[start : start + size] for start in range(0, len(todo), size)]
        self._many(
            "INSERT INTO reducing_saver_chunks (job, round, chunk, threads, amount) "
            "VALUES (%s, %s, %s, %s, %s)",
            [(name, number, i, json.dumps(c), len(c)) for i, c in enumerate(chunks)],
        )
        return Job(name, fingerprint, spec, number, before, young, now, now)

    def claim(self, job: Job, chunk: int | None = None) -> Claim | None:
        """Take the next chunk for this transaction, or a certain one; None where there is none."""
        lock = _SKIP_LOCKED if self._postgres else ""
        if chunk is None:
            rows = self._run(_CLAIM + lock, (job.name, job.round, time.time()))
        else:
            rows = self._run(_CLAIM_ONE + lock, (job.name, job.round, chunk))
        if not rows:
            return None
        through = self._run(
            "SELECT thread_id FROM reducing_saver_threads "
            "WHERE job = %s AND round = %s AND chunk = %s",
            (job.name, job.round, rows[0][0]),
        )
        done = {row[0] for row in through}
        threads = [thread for thread in json.loads(rows[0][1]) if thread not in done]
        return Claim(rows[0][0], tuple(threads))

    def lease(self, job: Job, chunk: int, seconds: float) -> None:
        """Keep others away from a chunk for a while, beyond this transaction."""
        self._run(
            "UPDATE reducing_saver_chunks SET leased = %s "
            "WHERE job = %s AND round = %s AND chunk = %s",
            (time.time() + seconds, job.name, job.round, chunk),
        )

    def record(self, job: Job, chunk: int, outcomes: Sequence[Outcome]) -> None:
        """Note what became of threads, in the transaction that did it."""
        rows = [
            (
                job.name,
                one.thread,
                job.round,
                chunk,
                one.head,
                one.outcome,
                one.error,
                one.bytes.old_versions,
                one.bytes.writes,
                one.bytes.checkpoints,
                one.bytes.evicted,
                one.bytes.stays,
                one.archived,
                one.evicted,
                one.deleted,
                one.checkpoints,
            )
            for one in outcomes
        ]
        gone = [_noted(one) for one in outcomes if one.lately]
        self._store(_RECORD_ALL, _RECORD_EACH, rows)
        self._store(_NOTE_ALL_DELETED, _NOTE_DELETED, gone)

    def _store(self, whole: str, each: str, rows: Sequence[Sequence[Any]]) -> None:
        if self._postgres and rows:
            self._run(whole, [[*column] for column in zip(*rows, strict=True)])
        else:
            self._many(each, rows)

    def deleted(self, thread: str) -> frozenset[Key]:
        """Return the checkpoints of a thread that jobs have deleted lately."""
        if not self._has("reducing_saver_deleted"):
            return frozenset()
        rows = self._run(
            "SELECT checkpoints FROM reducing_saver_deleted WHERE thread_id = %s", (thread,)
        )
        return frozenset(Key(*key) for (text,) in rows for key in json.loads(text))

    def note_freed(self, threads: Sequence[str]) -> None:
        """Note that threads have values that nobody names, in the transaction that did it."""
        if threads:
            self._run(_NOTE_FREED, (unnamed.GRACE_SECONDS, [*threads]))

    def take_freed(self, most: int) -> list[str]:
        """Take threads whose values may go by now, for this transaction (Postgres)."""
        return [thread for (thread,) in self._run(_TAKE_FREED, (most,))]

    def last_freed(self) -> float:
        """Return when the values of all threads may go that are noted by now."""
        ((last,),) = self._run("SELECT coalesce(max(due), 0) FROM reducing_saver_freed")
        return float(last)

    def left_to_free(self, until: float) -> tuple[int, float]:
        """Return how many threads have values that go by then, and seconds until some may."""
        ((amount, seconds),) = self._run(_LEFT_TO_FREE, (until,))
        return int(amount), max(0.0, float(seconds or 0.0))

    def finish(self, job: Job, chunk: int) -> None:
        """Note that all threads of a chunk are through."""
        self._run(
            "UPDATE reducing_saver_chunks SET done = 1 "
            "WHERE job = %s AND round = %s AND chunk = %s",
            (job.name, job.round, chunk),
        )

    def left(self, job: Job) -> int:
        """Return how many threads are still to do."""
        rows = self._run(
            "SELECT coalesce(sum(c.amount - (SELECT count(*) FROM reducing_saver_threads AS t "
            "WHERE t.job = c.job AND t.round = c.round AND t.chunk = c.chunk)), 0) "
            "FROM reducing_saver_chunks AS c WHERE c.job = %s AND c.round = %s AND c.done = 0",
            (job.name, job.round),
        )
        return int(rows[0][0])

    def totals(self, job: Job) -> Totals:
        """Return the sums over this round."""
        known = {Skip.DONE.value: job.before, Skip.YOUNG.value: job.young}
        skipped = {reason: amount for reason, amount in known.items() if amount}
        found = Totals(skipped=skipped)
        for outcome, amount, *sums in self._run(_TOTALS, (job.name, job.round)):
            old, writes, checkpoints, evicted, stays, archived, messages, deleted = map(int, sums)
            if outcome != DONE:
                skipped[outcome] = skipped.get(outcome, 0) + amount
                whole = Bytes(stays=old + writes + checkpoints + evicted + stays)
                found = _plus(found, 0, whole, 0, 0, 0)
                continue
            size = Bytes(old, writes, checkpoints, evicted, stays)
            found = _plus(found, amount, size, archived, messages, deleted)
        return found

    def sizes(self, job: Job) -> list[ThreadSize]:
        """Return the bytes of the threads that were done, before and after."""
        rows = self._run(
            "SELECT thread_id, old_versions + writes + checkpoints + evicted_bytes, stays, amount "
            "FROM reducing_saver_threads WHERE job = %s AND round = %s AND outcome = %s",
            (job.name, job.round, DONE),
        )
        return [ThreadSize(row[0], row[1] + row[2], row[2], row[3]) for row in rows]

    def errors(self, job: Job) -> tuple[str, ...]:
        """Return the newest threads that failed, with the type of the error."""
        rows = self._run(
            "SELECT thread_id, error FROM reducing_saver_threads "
            "WHERE job = %s AND round = %s AND error <> '' ORDER BY thread_id LIMIT %s",
            (job.name, job.round, MOST_ERRORS),
        )
        return tuple(f"{thread}: {error}" for thread, error in rows)

    def status(self, name: str, backend: str, *, running: bool) -> JobStatus:
        """Return what the ledger says of a job."""
        job = self.find(name)
        if job is None:
            raise JobError(f"there is no job {name!r}")
        totals, left = self.totals(job), self.left(job)
        whole = self._with_earlier(job, totals)
        return JobStatus(
            name,
            str(job.spec.get("said", "")),
            backend,
            totals.seen,
            totals.seen + left,
            totals.skipped,
            self.errors(job),
            whole.bytes,
            whole.archived,
            whole.evicted,
            whole.deleted,
            datetime.fromtimestamp(job.started, UTC),
            datetime.fromtimestamp(job.changed, UTC),
            running,
            job.round,
        )

    def _with_earlier(self, job: Job, totals: Totals) -> Totals:
        """Return the sums over all rounds; what stays is what the last look at a thread left."""
        if not self._has("reducing_saver_rounds"):
            return totals
        ((_, done, *sums),) = self._run(_EARLIER, (job.name,))
        ((stays,),) = self._run(_STAYS, (job.name, job.round))
        old, writes, checkpoints, evicted, archived, messages, deleted = map(int, sums)
        size = Bytes(old, writes, checkpoints, evicted, int(stays))
        return _plus(totals, int(done), size, archived, messages, deleted)

    def touch(self, job: Job) -> None:
        """Note that the job has gone on."""
        self._run(
            "UPDATE reducing_saver_jobs SET changed = %s WHERE job = %s", (time.time(), job.name)
        )

    def known(self, name: str, threads: Iterable[str]) -> list[str]:
        """Return which of these threads a job has done."""
        statement = "SELECT 1 FROM reducing_saver_threads WHERE job = %s AND thread_id = %s"
        return [thread for thread in threads if self._run(statement, (name, thread))]

    def forget(self, threads: Sequence[str]) -> int:
        """Erase threads; returns how many rows named them."""
        gone = 0
        for thread in threads:
            for table in _OF_THREADS:
                if self._has(table):
                    gone += self._count(f"DELETE FROM {table} WHERE thread_id = %s", (thread,))  # noqa: S608
        wanted = {*threads}
        listed = self._run("SELECT job, round, chunk, threads FROM reducing_saver_chunks")
        for name, number, chunk, text in listed:
            left = [thread for thread in json.loads(text) if thread not in wanted]
            if len(left) != len(json.loads(text)):
                gone += self._count(
                    "UPDATE reducing_saver_chunks SET threads = %s, amount = %s "
                    "WHERE job = %s AND round = %s AND chunk = %s",
                    (json.dumps(left), len(left), name, number, chunk),
                )
        return gone

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.execute(self._said(statement), values)
        return list(cursor.fetchall()) if cursor.description else []

    def _many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        if values:
            cursor = self._connection.cursor()
            cursor.executemany(self._said(statement), values)

    def _count(self, statement: str, values: Sequence[Any]) -> int:
        return int(self._connection.execute(self._said(statement), values).rowcount)

    def _said(self, statement: str) -> str:
        return statement if self._postgres else statement.replace("%s", "?")


def _noted(one: Outcome) -> tuple[str, str, str]:
    return one.thread, max(key.id for key in one.lately), json.dumps(one.lately)


def _plus(
    found: Totals, done: int, size: Bytes, archived: int, evicted: int, deleted: int
) -> Totals:
    return Totals(
        found.done + done,
        found.skipped,
        found.bytes + size,
        found.archived + archived,
        found.evicted + evicted,
        found.deleted + deleted,
    )
