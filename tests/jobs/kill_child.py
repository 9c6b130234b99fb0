"""What the processes do that `test_kills` kills: a driver, a driver with a pool, a worker.

Chunks are small, so that a kill meets many of them. With `freeze` a process stops itself (SIGSTOP)
once, in the middle of its transaction, if it makes the file first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from reducing_saver import Policy, Retain, StoreArchive, Window, compact
from reducing_saver.jobs import run
from reducing_saver.rows import postgres, sqlite

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
POLICY = Policy(WINDOW, Retain())
JOB = "kills"
CHUNK = 5


@dataclass(frozen=True)
class Errand:
    """Say what a process does: as a `driver`, one with `processes` or a `pool`, a `worker`."""

    role: str
    dsn: str
    log: str
    freeze: str | None = None
    freezes: str = "apply"
    elsewhere: str | None = None
    idle_timeout: str = "60s"


def go(errand: Errand) -> None:
    """Do an errand; what the process is started with."""
    prepare(errand)
    given: dict[str, Any] = {"idle": "0", "dry_run": False, "job": JOB, "archive": "same"}
    if errand.role != "processes":
        given["max_time"] = "1h"  # so it is done in this process
    match errand.role:
        case "driver":
            report = compact(errand.dsn, POLICY, on_evict=[Told(errand.log)], **given)
        case "quiet driver" | "processes":
            own = "processes" if errand.role == "processes" else None
            report = compact(errand.dsn, POLICY, executor=own, **given)
        case "elsewhere":
            from langgraph.store.sqlite import SqliteStore

            with SqliteStore.from_conn_string(str(errand.elsewhere)) as store:
                store.setup()
                report = compact(errand.dsn, POLICY, **{**given, "archive": StoreArchive(store)})
        case "pool":
            context = get_context("fork")
            with ProcessPoolExecutor(2, context, prepare, (errand,)) as pool:
                report = compact(errand.dsn, POLICY, executor=pool, **given)
        case "worker":
            report = run.worker(errand.dsn, job=JOB)
        case _:
            raise ValueError(errand.role)
    sys.exit(report.exit_code)


def prepare(errand: Errand) -> None:
    """Make chunks small, the time-out short, and stop where it is asked."""
    run.CHUNK.update(postgres=CHUNK, sqlite=CHUNK)
    run._CHUNKS_A_CALL, run._STALLED_SECONDS = 4, 3.0
    postgres._IDLE_TIMEOUT = errand.idle_timeout
    for kind in (postgres.PostgresRows, sqlite.SqliteRows):
        slow_down(kind)
        if errand.freeze and hasattr(kind, errand.freezes):
            freeze_once(kind, errand.freezes, errand.freeze)


def slow_down(kind: Any) -> None:
    """Let a kill meet a transaction before and after it has written."""
    apply = kind.apply

    def slowly(self: Any, edits: Any) -> None:
        time.sleep(0.02)
        apply(self, edits)
        time.sleep(0.02)

    kind.apply = slowly


def freeze_once(kind: Any, name: str, mark: str) -> None:
    act = getattr(kind, name)

    def stop(self: Any, given: Any) -> None:
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            Path(mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0)
        act(self, given)

    setattr(kind, name, stop)


@dataclass(frozen=True)
class Told:
    """Write down what it is told, so that it outlives the process."""

    log: str

    def __call__(self, eviction: Any) -> None:
        line = "".join(f"{eviction.thread} {message.id}\n" for message in eviction.messages)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
