"""Several workers share a job: processes, threads, other machines; connections of every kind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from jobs.graphs import finished, turn
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from reducing_saver import (
    ConfigurationError,
    Discard,
    JobError,
    Policy,
    ReducingSaver,
    StoreArchive,
    Summary,
    Window,
    compact,
    status,
    worker,
)
from reducing_saver.jobs import run

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
POLICY = Policy(WINDOW)
THREADS = 24


def fill(house: Any, amount: int = THREADS) -> None:
    """Make threads: one by a real graph, the others copies of its rows."""
    play = finished(house.saver)
    play.thread = "t000"
    play.start()
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        names = house.run(
            "SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) FROM "
            "information_schema.columns WHERE table_name = ? AND column_name <> 'thread_id'",
            (table,),
        )[0][0]
        house.run(
            f"INSERT INTO {table} (thread_id, {names}) "  # noqa: S608 - names of columns
            f"SELECT to_char(n, '\"t\"FM000'), {names} "
            f"FROM {table}, generate_series(1, {amount - 1}) n"
        )


def is_whole(house: Any, amount: int = THREADS) -> None:
    """Assert that every thread was compacted exactly once, and nothing is lost or left over."""
    assert house.count("checkpoints") == amount
    assert house.orphans() == 0
    done = house.run("SELECT count(*) FROM reducing_saver_threads WHERE outcome = 'done'")
    assert done[0][0] == amount
    saver = ReducingSaver(house.saver, WINDOW, archive=StoreArchive(house.store))
    whole = [f"{kind}h{i}" for i in range(6) for kind in ("", "a.", "b.")]
    for i in range(0, amount, 7):
        config: Any = {"configurable": {"thread_id": f"t{i:03}"}}
        assert [m.id for m in saver.transcript(config)] == whole


@pytest.fixture
def kind() -> str:
    return "postgres"


@pytest.fixture
def small_chunks(monkeypatch: Any) -> None:
    monkeypatch.setitem(run.CHUNK, "postgres", 3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_an_executor(house: Any, pool: str) -> None:
    fill(house)
    make: Any = ThreadPoolExecutor
    if pool == "processes":
        make = lambda n: ProcessPoolExecutor(n, mp_context=get_context("spawn"))  # noqa: E731
    seen: list[Any] = []
    told: list[Any] = []
    with make(3) as executor:
        report = compact(
            house.dsn,
            POLICY,
            archive="same",
            idle="0",
            dry_run=False,
            executor=executor,
            progress=seen.append,
            on_evict=[told.append],
        )
    assert report.exit_code == 0
    assert report.compacted == report.threads == THREADS
    assert seen[-1].done == seen[-1].total == THREADS
    assert sorted(e.thread for e in told) == [f"t{i:03}" for i in range(THREADS)]
    is_whole(house)


@pytest.mark.usefixtures("small_chunks")
def test_two_processes(house: Any) -> None:
    fill(house)
    report = compact(
        house.dsn, POLICY, archive="same", idle="0", dry_run=False, executor="processes"
    )
    assert report.compacted == THREADS
    is_whole(house)


@pytest.mark.parametrize(
    ("executor", "starts", "says"),
    [
        ("None", 1, ""),
        ('"processes"', 3, "no worker process could do anything"),
        ("ProcessPoolExecutor(2, get_context('spawn'))", 3, "JobError: no worker process could"),
    ],
    ids=["none", "processes", "a pool"],
)
def test_a_script_without_a_guard(
    house: Any, tmp_path: Path, executor: str, starts: int, says: str
) -> None:
    """A process runs the script again that starts it: by default nothing of a script runs twice."""
    fill(house)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(dsn=house.dsn, executor=executor))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert len((tmp_path / "started").read_text()) <= starts
    assert says in done.stderr
    assert ("JobError" in says) == bool(done.returncode)
    if not done.returncode:
        assert not says or starts > 1
        is_whole(house)


_SCRIPT = """
import logging
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from reducing_saver import Policy, Window, compact
from reducing_saver.jobs import run

open("started", "a").write(".")
run.CHUNK["postgres"] = 3
policy = Policy(Window(keep=("messages", 4), trigger=("messages", 6)))
logging.basicConfig()
compact("{dsn}", policy, archive="same", idle="0", dry_run=False, executor={executor})
"""


@pytest.mark.usefixtures("small_chunks")
def test_workers_share_a_job(house: Any) -> None:
    fill(house)
    first = compact(
        house.saver, POLICY, archive="same", idle="0", dry_run=False, job="j", max_threads=3
    )
    assert (first.compacted, first.left, first.exit_code) == (3, THREADS - 3, 3)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(worker, house.dsn, job="j") for _ in range(3)]
        reports = [call.result() for call in calls]
    assert max(report.compacted for report in reports) == THREADS
    assert status(house.dsn, job="j")[0].left == 0
    is_whole(house)
    compact(house.saver, POLICY, archive="same", job="other")  # a dry run starts none
    with pytest.raises(JobError, match=r"compact\(..., job='other', dry_run=False\) starts it"):
        worker(house.dsn, job="other")
    with pytest.raises(JobError, match="policy"):
        worker(house.dsn, job="j", policy=Policy())


def test_two_jobs_at_once_are_refused(house: Any) -> None:
    fill(house, 3)
    connection = run.source_of(house.dsn)
    with connection.open() as rows, run._planning(connection, rows, "first") as got:
        assert got
        assert not status(house.dsn)
        with pytest.raises(JobError, match="another job"):
            compact(house.dsn, POLICY, archive="same", idle="0", dry_run=False)
    assert compact(house.dsn, POLICY, archive="same", idle="0", dry_run=False).compacted == 3


def test_what_cannot_be_shared_is_refused(house: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        for settings in (
            {"archive": StoreArchive(house.store)},
            {"archive": Discard(), "on_evict": [print]},
            {"archive": "same", "summary": Summary(lambda messages, previous: "said")},
        ):
            with pytest.raises(ConfigurationError, match="executor"):
                compact(house.dsn, POLICY, executor=pool, **settings)


CHILD = """
import sys
from reducing_saver import worker
from reducing_saver.rows import postgres
from reducing_saver.rows.postgres import PostgresRows
import os, signal
postgres._IDLE_TIMEOUT = "2s"
whole = PostgresRows.apply
def apply(self, edits):
    whole(self, edits)
    print("applied", flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
PostgresRows.apply = apply
worker(sys.argv[1], job="j")
"""


def wait_for_its_session_to_end(house: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    while house.run(f"{idle} AND datname = current_database()")[0][0]:
        assert time.monotonic() < end, "the session of a worker that is gone does not end"
        time.sleep(0.1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_dies_in_its_transaction(house: Any, how: str) -> None:
    fill(house)
    compact(house.saver, POLICY, archive="same", idle="0", dry_run=False, job="j", max_threads=3)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, house.dsn, how], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "applied\n"
        wait_for_its_session_to_end(house)
        report = worker(house.dsn, job="j")
    finally:
        if how == "SIGSTOP":
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(0.5)
        child.kill()
        child.wait()
    assert report.left == 0
    is_whole(house)


def test_a_schema_of_ones_own(make_database: Any) -> None:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.store.postgres import PostgresStore
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    dsn = make_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA own")
    settings = {"autocommit": True, "row_factory": dict_row, "options": "-c search_path=own"}
    with ConnectionPool(dsn, kwargs=settings, min_size=1, max_size=3) as pool:
        saver, store = PostgresSaver(pool), PostgresStore(pool)
        saver.setup()
        store.setup()
        play = finished(saver)
        play.start()
        report = compact(saver, POLICY, archive="same", idle="0", dry_run=False)
        assert report.compacted == 1
        kept = ReducingSaver(saver, WINDOW, archive=StoreArchive(store))
        assert len([*kept.transcript(play.config)]) == 18
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT to_regclass('public.checkpoints')").fetchone()
        assert found == (None,)


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_session_with_a_search_path(make_database: Any, pipeline: bool) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    dsn = make_database()
    path = "SET search_path TO own, public"
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.conn.execute("CREATE SCHEMA own")
        saver.conn.execute(path)
        saver.setup()
    with PostgresSaver.from_conn_string(dsn, pipeline=pipeline) as saver:
        saver.conn.execute(path)
        finished(saver).start()
        report = compact(saver, POLICY, archive="same", idle="0", dry_run=False)
        assert report.compacted == 1
        assert len([*saver.list({"configurable": {"thread_id": "t"}})]) == 1


class Rot:
    """A cipher that is none, but that nobody takes for plain text."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


@pytest.mark.parametrize("base", ["postgres", "sqlite"])
def test_an_encrypting_saver(base: str, make_database: Any, tmp_path: Any) -> None:
    serde = EncryptedSerializer(Rot(), JsonPlusSerializer())
    if base == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.store.postgres import PostgresStore

        dsn = make_database()
        opened: Any = (PostgresSaver.from_conn_string(dsn), PostgresStore.from_conn_string(dsn))
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.store.sqlite import SqliteStore

        dsn = str(tmp_path / "x.db")
        opened = (SqliteSaver.from_conn_string(dsn), SqliteStore.from_conn_string(dsn))
    with opened[0] as saver, opened[1] as store:
        saver.serde = serde
        saver.setup()
        store.setup()
        play = finished(saver)
        play.start()
        blind = compact(dsn, POLICY, archive="same", idle="0")
        assert blind.skipped == {"unreadable": 1}
        assert compact(saver, POLICY, archive="same", idle="0", dry_run=False).compacted == 1
        kept = ReducingSaver(saver, WINDOW, archive=StoreArchive(store))
        assert len([*kept.transcript(play.config)]) == 18
        assert len(play.graph.get_state(play.config).values["messages"]) <= 4
        rows = store.search(("reducing_saver",), limit=100)
        assert rows
        assert not any("question" in str(row.value) for row in rows)
        play.graph.invoke(turn(7), play.config)


@pytest.mark.parametrize("base", ["postgres", "sqlite"])
async def test_async_savers(base: str, make_database: Any, tmp_path: Any) -> None:
    if base == "postgres":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        opened: Any = AsyncPostgresSaver.from_conn_string(make_database())
    else:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        opened = AsyncSqliteSaver.from_conn_string(str(tmp_path / "x.db"))
    async with opened as saver:
        await saver.setup()
        graph = finished(saver).graph
        config: Any = {"configurable": {"thread_id": "t"}}
        for i in range(6):
            await graph.ainvoke(turn(i), config)
        with pytest.raises(ConfigurationError, match="to_thread"):
            compact(saver, POLICY, archive="same")
        settings = {"archive": "same", "idle": "0", "dry_run": False}
        report = await asyncio.to_thread(compact, saver, POLICY, **settings)
        assert report.compacted == 1
        assert len((await graph.aget_state(config)).values["messages"]) <= 4
