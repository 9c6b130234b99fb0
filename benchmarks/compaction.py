"""Compare compacting stored threads with the least that any tool must do: delete the same rows."""

from __future__ import annotations

import os
import resource
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.postgres import PostgresStore

from reducing_saver import Discard, Policy, Window, compact
from tests.services import postgres

from .report import Cell, Goal, Report, Table, main, progress
from .threads import fill

THREADS, SHORT_THREADS = 20_000, 1_000
ROUNDS = 5
POLICY = Policy(Window(("turns", 2), ("turns", 4)))

_FLOOR = """
WITH heads AS MATERIALIZED (
    SELECT thread_id, max(checkpoint_id) AS id FROM checkpoints
    WHERE thread_id = ANY(%(threads)s) AND checkpoint_ns = '' GROUP BY thread_id
), stays AS MATERIALIZED (
    SELECT c.thread_id, v.key AS channel, v.value AS version
    FROM heads JOIN checkpoints c ON c.thread_id = heads.thread_id AND c.checkpoint_id = heads.id,
    jsonb_each_text(c.checkpoint -> 'channel_versions') v
), blobs AS (
    DELETE FROM checkpoint_blobs b WHERE b.thread_id = ANY(%(threads)s) AND NOT EXISTS (
        SELECT FROM stays s
        WHERE s.thread_id = b.thread_id AND s.channel = b.channel AND s.version = b.version
    )
), writes AS (
    DELETE FROM checkpoint_writes w USING heads
    WHERE w.thread_id = ANY(%(threads)s) AND w.thread_id = heads.thread_id
    AND w.checkpoint_id <> heads.id
)
DELETE FROM checkpoints c USING heads
WHERE c.thread_id = ANY(%(threads)s) AND c.thread_id = heads.thread_id
AND c.checkpoint_id <> heads.id
"""


Work = Callable[[list[str]], Any]


class Cost(NamedTuple):
    """Hold what some work took: seconds, CPU seconds of client and server, bytes of WAL."""

    seconds: float
    client: float
    server: float
    wal: int

    @property
    def cpu(self) -> float:
        return self.client + self.server


def run(short: bool) -> Report:
    """Compact threads and delete rows by turns, then time live turns next to the job."""
    report = Report("compaction")
    threads = SHORT_THREADS if short else THREADS
    with postgres.server() as server, postgres.database(server) as dsn:
        fill(dsn, threads)
        _without_autovacuum(dsn)
        _against_the_floor(report, dsn, threads)
        _next_to_live_turns(report, dsn)
    return report


def _against_the_floor(report: Report, dsn: str, threads: int) -> None:
    """Give each its own threads of the same age, round by round."""
    works: dict[str, Work] = {
        "job": lambda some: _compact(dsn, Discard(), some),
        "job, archive": lambda some: _compact(dsn, "same", some),
        "floor": lambda some: _delete(dsn, some),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    shares = _shares(dsn, threads // 2, ROUNDS * len(works))
    count = threads // 2 // len(shares)
    freed = before = archived = 0
    for number in range(ROUNDS):
        progress(f"compaction: round {number + 1} of {ROUNDS}, {count:,} threads each")
        for name, work in works.items():
            cost, done = _cost(dsn, partial(work, shares.pop(0)))
            costs[name].append(cost)
            if done is not None:
                assert done.compacted == count, done
                freed, before = freed + done.bytes.freed, before + done.bytes.before
                archived += done.archived
    rows: list[tuple[Cell, ...]] = []
    for name, measured in costs.items():
        cpu = median(cost.cpu for cost in measured)
        rows.append(
            (
                name,
                count / cpu,
                count / median(cost.seconds for cost in measured),
                1e3 * median(cost.client for cost in measured) / count,
                1e3 * median(cost.server for cost in measured) / count,
                median(cost.wal for cost in measured) / count / 1e3,
                median(f.cpu / c.cpu for f, c in zip(costs["floor"], measured, strict=True)),
            )
        )
    columns = (
        "work",
        "threads / s and core",
        "threads / s",
        "client ms",
        "server ms",
        "WAL KB",
        "of the floor's speed",
    )
    note = (
        f"{threads:,} threads of 24 messages in 30 checkpoints, 480 KB of lists; per thread, "
        f"medians of {ROUNDS} rounds of {count:,} threads, 100 in a transaction; CPU of client and "
        "server together; one process, which waits a second at its end. Floor: deletes the same "
        "rows and rewrites nothing. Autovacuum, which would come in any of them, is off."
    )
    report.tables.append(Table("Postgres, against a pure DELETE", columns, rows, (note,)))
    by_name = {row[0]: row[-1] for row in rows}
    report.goals.append(
        Goal(
            "floor's CPU over the job's, as 1 / (speed against the floor)",
            1 / by_name["job"],
            1 / 0.6,
        )
    )
    report.goals.append(Goal("bytes that stay", 1 - freed / before, 0.03))
    # Only every second thread that was compacted is archived.
    done = 2 * ROUNDS * count
    sizes = (before / done / 1e3, freed / done / 1e3, archived / (ROUNDS * count) / 1e3)
    share = Table("Bytes of a thread", ("before KB", "freed KB", "archived KB"), [sizes])
    report.tables.append(share)


def _without_autovacuum(dsn: str) -> None:
    off = "autovacuum_enabled = off, toast.autovacuum_enabled = off"
    with PostgresStore.from_conn_string(dsn) as store:
        store.setup()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "store"):
            connection.execute(f"ALTER TABLE {table} SET ({off})")


def _shares(dsn: str, threads: int, count: int) -> list[list[str]]:
    """Return the oldest threads in equal parts, in the order of their time."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT thread_id FROM checkpoints GROUP BY 1 ORDER BY max(checkpoint_id) LIMIT %s",
            (threads,),
        ).fetchall()
    size = len(found) // count
    return [[thread for (thread,) in found[i * size : (i + 1) * size]] for i in range(count)]


def _compact(dsn: str, archive: Any, threads: list[str] | None = None) -> Any:
    job = str(uuid.uuid4())
    with PostgresSaver.from_conn_string(dsn) as saver:
        return compact(
            saver, POLICY, archive=archive, dry_run=False, idle="0s", job=job, threads=threads
        )


def _delete(dsn: str, threads: list[str]) -> None:
    with psycopg.connect(dsn) as connection:
        for start in range(0, len(threads), 100):
            connection.execute(_FLOOR, {"threads": threads[start : start + 100]})
            connection.commit()


def _cost(dsn: str, work: Callable[[], Any]) -> tuple[Cost, Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        postmaster = _parent(connection.info.backend_pid)
        log = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        client, server, begun = _client_cpu(), _server_cpu(postmaster), time.perf_counter()
        done = work()
        seconds = time.perf_counter() - begun
        wal = connection.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (log[0],)
        ).fetchone()
        used = _client_cpu() - client, _server_cpu(postmaster) - server
        return Cost(seconds, *used, int(wal[0])), done


def _client_cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _server_cpu(postmaster: int) -> float:
    """Return the CPU seconds of all processes of a Postgres on this machine (Linux)."""
    ticks = sum(_ticks(postmaster))
    for name in os.listdir("/proc"):
        if name.isdigit() and _parent(int(name)) == postmaster:
            ticks += sum(_ticks(int(name))[:2])
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """Return user and system time, and those of children that have ended."""
    return [int(word) for word in _stat(pid)[11:15]]


def _parent(pid: int) -> int:
    found = _stat(pid)
    return int(found[1]) if found else 0


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _next_to_live_turns(report: Report, dsn: str) -> None:
    """Time turns of a live thread alone, then next to the job."""
    progress("compaction: live turns")
    alone = _turns(dsn, "alone", 150)
    stop = threading.Event()

    def jobs() -> None:
        for some in _shares(dsn, THREADS, 100):
            if not stop.is_set():
                _compact(dsn, "same", some)

    beside = threading.Thread(target=jobs)
    beside.start()
    try:
        next_to_it = _turns(dsn, "beside", 150)
    finally:
        stop.set()
        beside.join()
    rows: list[tuple[Cell, ...]] = [
        (name, median(times), quantiles(times, n=100)[98])
        for name, times in (("alone", alone), ("next to the job", next_to_it))
    ]
    note = "One turn stores three checkpoints; the job runs in a thread of the same process."
    table = Table("Live turns", ("turns", "median ms", "99 % ms"), rows, (note,))
    report.tables.append(table)


def _turns(dsn: str, thread: str, count: int) -> list[float]:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [("ai", "yes")]})
    builder.add_edge(START, "agent")
    times = []
    with PostgresSaver.from_conn_string(dsn) as saver:
        graph = builder.compile(checkpointer=saver)
        for number in range(count):
            begun = time.perf_counter()
            graph.invoke(
                {"messages": [("human", f"turn {number}")]},
                {"configurable": {"thread_id": thread}},
            )
            times.append(1e3 * (time.perf_counter() - begun))
    return times


if __name__ == "__main__":
    main([run])
