"""Processes are killed (`kill -9`) and frozen while they compact: each thread is done once.

The suite has a few kills of each kind; the long form has fifty:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/jobs/test_kills.py -s -n 0
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs.chats import Chat, archived, counted, live
from jobs.kill_child import JOB, POLICY, WINDOW, Errand, go

from reducing_saver import compact, status
from reducing_saver.jobs.ledger import DONE, TABLES

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
KILLS = 50 if CAMPAIGN else 3
THREADS = 60
TURNS = 6
SEED = 5

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signals here"),
]


class Processes:
    """Start children, and end those that are left."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["jobs.kill_child"])
        self.started: list[Any] = []

    def start(self, errand: Errand) -> Any:
        child = self.context.Process(target=go, args=(errand,))
        child.start()
        self.started.append(child)
        return child

    def run(self, errand: Errand, seconds: float = 60) -> int:
        child = self.start(errand)
        child.join(seconds)
        assert child.exitcode is not None, "it hangs"
        return int(child.exitcode)

    def close(self) -> None:
        for child in self.started:
            if child.is_alive():
                os.kill(child.pid, signal.SIGCONT)
                child.kill()
            child.join()


@pytest.fixture
def processes(monkeypatch: Any) -> Iterator[Processes]:
    here = Path(__file__).parents[1]
    source = here.parent / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (source, here))))
    found = Processes()
    yield found
    found.close()


class Site:
    """Fill a house with copies of one real thread, and say what must be left of them."""

    def __init__(self, house: Any, folder: Path) -> None:
        self.house, self.folder = house, folder
        self.chat = Chat("tools", "t000", house.saver)
        for _ in range(TURNS):
            self.chat.say()
        self.tables = ["checkpoints", house.writes]
        if house.kind == "postgres":
            self.tables.append("checkpoint_blobs")
        self.columns = {table: self._columns(table) for table in self.tables}
        for table in self.tables:
            names = ", ".join(self.columns[table])
            house.run(f"CREATE TABLE kept_{table} AS SELECT {names} FROM {table}")  # noqa: S608
        self.checkpoints = house.count("checkpoints")
        self.threads = [f"t{number:03}" for number in range(THREADS)]
        self.log = str(folder / "told")

    def _columns(self, table: str) -> list[str]:
        if self.house.kind == "sqlite":
            rows = self.house.run("SELECT name FROM pragma_table_info(?)", (table,))
        else:
            rows = self.house.run(
                "SELECT column_name FROM information_schema.columns WHERE table_name = ?", (table,)
            )
        return [row[0] for row in rows]

    def fill(self) -> None:
        """Put all threads back as they were, with nothing else."""
        Path(self.log).unlink(missing_ok=True)
        for table in (*self.tables, "store", *TABLES):
            with contextlib.suppress(Exception):  # not made yet
                self.house.run(f"DELETE FROM {table}")  # noqa: S608
        for table in self.tables:
            names = self.columns[table]
            values = ", ".join("n.id" if name == "thread_id" else name for name in names)
            several = (
                "(SELECT value AS id FROM json_each(?))"
                if self.house.kind == "sqlite"
                else "(SELECT jsonb_array_elements_text(?::jsonb) AS id)"
            )
            self.house.run(
                f"INSERT INTO {table} ({', '.join(names)}) "  # noqa: S608
                f"SELECT {values} FROM kept_{table} CROSS JOIN {several} AS n",
                ('["' + '", "'.join(self.threads) + '"]',),
            )

    def errand(self, role: str, **given: Any) -> Errand:
        return Errand(role, self.house.dsn, self.log, **given)

    def left(self) -> int:
        found = [one for one in status(self.house.dsn) if one.job == JOB]
        return found[0].left if found else len(self.threads)

    def is_open(self) -> bool:
        """Tell whether threads are left, or values of those that were done."""
        return bool(self.left() or self.house.count("reducing_saver_freed"))

    def check(self, *, archives: bool = True, told: bool = False) -> None:
        """Assert that each thread was compacted once, and that nothing is lost or there twice."""
        ledger = self.house.run(
            "SELECT thread_id, outcome, evicted, deleted FROM reducing_saver_threads"
        )
        evicted = len(self.chat.said) - 4
        done = {(thread, DONE, evicted, self.checkpoints - 1) for thread in self.threads}
        assert {*map(tuple, ledger)} == done
        assert len(ledger) == len(self.threads)
        (job,) = status(self.house.dsn)
        assert (job.done, job.left) == (THREADS, 0)
        # Of all rounds: one that was killed at its very end is followed by one without work.
        assert job.evicted == evicted * THREADS
        assert job.deleted == (self.checkpoints - 1) * THREADS
        assert self.house.count("checkpoints") == THREADS
        assert not any(counted(self.house).values())
        for thread in self.threads:
            held = live(self.house.saver, Chat("tools", thread, self.house.saver))
            assert held == self.chat.said[-4:]
            if archives:
                assert archived(self.house, thread) == {*self.chat.said[:-4]}
        if told:
            lines = Counter(Path(self.log).read_text().splitlines())
            assert {*lines} == {f"{t} {m}" for t in self.threads for m in self.chat.said[:-4]}

    def rerun_changes_nothing(self) -> None:
        given = {"archive": "same", "idle": "0", "dry_run": False, "job": JOB}
        report = compact(self.house.dsn, POLICY, **given)
        assert report.skipped == {"compacted before": THREADS}
        assert report.deleted == report.evicted == 0


@pytest.fixture
def site(house: Any, tmp_path: Path) -> Site:
    return Site(house, tmp_path)


def test_a_killed_driver_is_run_again(site: Site, processes: Processes, capsys: Any) -> None:
    chance, met = random.Random(SEED), 0
    for _ in range(KILLS):
        site.fill()
        for _ in range(2):
            before = site.left()
            child = processes.start(site.errand("driver"))
            _wait(lambda child=child, at=before: site.left() < at or not child.is_alive())
            child.join(chance.uniform(0.0, 0.4))
            child.kill()
            child.join()
            met += 0 < site.left() < before
        assert processes.run(site.errand("driver")) == 0
        site.check(told=True)
    site.rerun_changes_nothing()
    with capsys.disabled():
        print(f"\n{site.house.kind}: {2 * KILLS} kills of drivers, {met} in the middle")  # noqa: T201


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_killed_workers_leave_their_chunk_to_others(
    site: Site, processes: Processes, capsys: Any
) -> None:
    chance, met = random.Random(SEED), 0
    for _ in range(KILLS):
        site.fill()
        driver = processes.start(site.errand("quiet driver"))
        while site.left() == THREADS and driver.is_alive():
            time.sleep(0.01)
        workers = [processes.start(site.errand("worker")) for _ in range(2)]
        time.sleep(chance.uniform(0.0, 0.3))
        for child in (driver, *workers) if chance.random() < 0.3 else workers:
            met += child.is_alive()
            child.kill()
        for child in (driver, *workers):
            child.join(60)
        # The database may not have noticed yet that somebody who held a chunk is gone.
        began = time.monotonic()
        while site.is_open():
            assert time.monotonic() - began < 30
            assert processes.run(site.errand("worker")) in (0, 3)
        site.check()
    site.rerun_changes_nothing()
    with capsys.disabled():
        print(f"\n{KILLS} rounds of a driver and two workers, {met} killed alive")  # noqa: T201


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_killed_process_of_a_pool(site: Site, processes: Processes, capsys: Any) -> None:
    """The pool is broken then; the same job goes on with another."""
    chance, codes = random.Random(SEED), Counter[int]()
    for _ in range(KILLS):
        site.fill()
        driver = processes.start(site.errand("pool"))
        while site.left() == THREADS and driver.is_alive():
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.3))
        if children := _children(driver.pid):
            os.kill(chance.choice(children), signal.SIGKILL)
        driver.join(60)
        assert driver.exitcode is not None, "it hangs"
        codes[driver.exitcode] += 1
        if driver.exitcode:
            assert processes.run(site.errand("quiet driver")) == 0
        site.check()
    with capsys.disabled():
        print(f"\n{KILLS} pools with a killed process; exit codes {dict(codes)}")  # noqa: T201


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_killed_driver_leaves_no_processes(site: Site, processes: Processes) -> None:
    """Those that a driver starts by itself end with it, whatever they are at."""
    site.fill()
    driver = processes.start(site.errand("processes"))
    _wait(lambda: site.left() < THREADS or not driver.is_alive())
    workers = [one for one in _children(driver.pid) if _is_pool_worker(one)]
    assert workers
    driver.kill()
    driver.join()
    _wait(lambda: not any(map(_is_pool_worker, workers)))
    began = time.monotonic()
    while site.is_open():
        assert time.monotonic() - began < 30
        assert processes.run(site.errand("quiet driver")) in (0, 3)
    site.check()


def _is_pool_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("freezes", ["apply", "free"])
def test_another_takes_over_from_a_frozen_worker(
    site: Site, processes: Processes, tmp_path: Path, freezes: str
) -> None:
    for number in range(max(1, KILLS // 10)):
        site.fill()
        mark = tmp_path / f"frozen {number}"
        frozen = site.errand("quiet driver", freeze=str(mark), freezes=freezes, idle_timeout="1s")
        stopped = processes.start(frozen)
        _wait(lambda mark=mark: mark.exists() and mark.read_text())
        began = time.monotonic()
        while site.is_open():
            assert time.monotonic() - began < 30
            assert processes.run(site.errand("worker")) in (0, 3)
        site.check()
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.join(30)
        assert stopped.exitcode is not None
        site.check()
    site.rerun_changes_nothing()


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_pool_goes_on_without_its_frozen_process(
    site: Site, processes: Processes, tmp_path: Path
) -> None:
    site.fill()
    mark = tmp_path / "frozen"
    driver = processes.start(site.errand("pool", freeze=str(mark), idle_timeout="1s"))
    _wait(lambda: mark.exists() and mark.read_text())
    try:
        _wait(lambda: not site.is_open())
        site.check()
    finally:
        os.kill(int(mark.read_text()), signal.SIGCONT)
    # The pool waits for its processes, until somebody ends or wakes them.
    driver.join(30)
    assert driver.exitcode == 0
    site.check()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_frozen_driver_holds_the_file_until_it_goes_on(
    site: Site, processes: Processes, tmp_path: Path
) -> None:
    site.fill()
    mark = tmp_path / "frozen"
    stopped = processes.start(site.errand("quiet driver", freeze=str(mark)))
    _wait(lambda: mark.exists() and mark.read_text())
    other = processes.start(site.errand("quiet driver"))
    other.join(1)
    os.kill(stopped.pid, signal.SIGCONT)
    for child in (stopped, other):
        child.join(60)
        assert child.exitcode == 0
    site.check()


def test_a_killed_job_with_an_archive_elsewhere(
    site: Site, processes: Processes, tmp_path: Path
) -> None:
    from langgraph.store.sqlite import SqliteStore

    from reducing_saver import ReducingSaver, StoreArchive

    chance = random.Random(SEED)
    elsewhere = str(tmp_path / "archive.db")
    for _ in range(max(2, KILLS // 10)):
        site.fill()
        child = processes.start(site.errand("elsewhere", elsewhere=elsewhere))
        _wait(lambda child=child: site.left() < THREADS or not child.is_alive())
        child.join(chance.uniform(0.0, 0.2))
        child.kill()
        child.join()
        assert processes.run(site.errand("elsewhere", elsewhere=elsewhere)) == 0
        site.check(archives=False)
        with SqliteStore.from_conn_string(elsewhere) as store:
            saver = ReducingSaver(site.house.saver, WINDOW, archive=StoreArchive(store))
            for thread in site.threads:
                config = {"configurable": {"thread_id": thread}}
                assert [m.id for m in saver.transcript(config)] == site.chat.said


def _wait(ready: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
