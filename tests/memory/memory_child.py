"""Processes with an archive, a summary and hooks that are killed: each goes on with one thread.

Run as a script it is a server, as `savers.crash_child`: a job, one line of JSON, comes in; a fork
does it; one line of JSON says how the fork ended. What happens in a fork is in a log file:

- `told`: a hook was called, with the segment and the ids of its messages;
- `read`: the summariser was called, with the ids of what it read;
- `ended`: the transcript, the state and what was ever said, and how many points the run had.

Before and after each call of the saver, of the store, of the hook and of the summariser there is a
point. A job names one, by its number, and the time after it at which the process is killed: with
none the call is never made, with some it is killed somewhere in what comes next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from memory.houses import Listing, ask, covered, ids, talk
from savers.crash_child import Log, opened

from reducing_saver import Eviction, ReducingSaver, StoreArchive, Summary, Window

WINDOW = Window(("messages", 4), ("messages", 6), ("messages", 9))
TURNS = (0, 2, 0, 5, 1, 0, 0)
"""Rounds of a tool, by turn: one of five is cut before it is done."""


class Job(NamedTuple):
    kind: str
    door: str
    durability: str
    store: str
    thread: str
    log: str
    kill: tuple[int, float] | None = None


class Points:
    """Count what happens, and kill the process at one point or a little later."""

    def __init__(self, kill: tuple[int, float] | None) -> None:
        self.number, self.delay = kill or (0, 0.0)
        self.count = 0
        self._lock = threading.Lock()

    def pass_(self) -> None:
        with self._lock:
            self.count += 1
            here = self.count == self.number
        if not here:
            return
        if not self.delay:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=self._later, daemon=True).start()

    def _later(self) -> None:
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


def pointed(kind: type[Any], points: Points, *names: str) -> type[Any]:
    """Return a class with a point before and after each of these methods."""

    def around(name: str) -> Callable[..., Any]:
        original = getattr(kind, name)

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            points.pass_()
            result = original(self, *args, **kwargs)
            points.pass_()
            return result

        async def arun(self: Any, *args: Any, **kwargs: Any) -> Any:
            points.pass_()
            result = await original(self, *args, **kwargs)
            points.pass_()
            return result

        made = arun if name.startswith("a") else run
        made.__wrapped__ = original  # type: ignore[attr-defined]  # LangGraph looks for `task_path`
        return made

    return type(kind.__name__, (kind,), {name: around(name) for name in names})


def wrapped(inner: Any, store: Any, points: Points, log: Log) -> ReducingSaver:
    listing = Listing()

    def summarise(messages: list[Any], previous: str | None) -> str:
        points.pass_()
        log("read", ids=[m.id for m in messages])
        return listing(messages, previous)

    def hook(eviction: Eviction) -> None:
        points.pass_()
        log("told", segment=eviction.segment, ids=[m.id for m in eviction.messages])
        points.pass_()

    return ReducingSaver(
        inner,
        WINDOW,
        archive=StoreArchive(store),
        summary=Summary(summarise, max_tokens=100_000, max_input_tokens=1_000_000),
        on_evict=[hook],
        strict=True,
    )


def next_input(state: Any) -> Any:
    """Return what goes on with the thread: the next turn, or nothing; raise at its end."""
    if state.tasks:
        return None
    turn = sum(name.startswith("h.") for name in state.values.get("log", ()))
    if turn == len(TURNS):
        raise StopIteration
    return ask(f"t{turn}", TURNS[turn])


def ended(state: Any, transcript: list[Any], points: Points, stored: list[Any]) -> dict[str, Any]:
    bad = []
    for found in stored:
        values = found.checkpoint["channel_values"]
        held = values.get("messages", [])
        both = sorted(covered(held) + ids(held))
        if both != sorted(values.get("log", [])):
            bad.append([found.metadata["step"], covered(held), ids(held), values.get("log")])
    return {
        "said": state.values["log"],
        "held": ids(state.values["messages"]),
        "transcript": [m.id for m in transcript],
        "points": points.count,
        "not covered": bad,
    }


def play(job: Job, log: Log) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.store.postgres import PostgresStore
    from langgraph.store.sqlite import SqliteStore

    points = Points(job.kill and tuple(job.kill))
    savers = {"sqlite": SqliteSaver, "postgres": PostgresSaver}
    stores = {"sqlite": SqliteStore, "postgres": PostgresStore}
    saver_kind = pointed(savers[job.kind], points, "put", "put_writes")
    store_kind = pointed(stores[job.kind], points, "batch")
    config = {"configurable": {"thread_id": job.thread}}
    with (
        saver_kind.from_conn_string(job.store) as inner,
        store_kind.from_conn_string(job.store) as store,
    ):
        inner.setup()
        store.setup()
        points.count = 0
        saver = wrapped(inner, store, points, log)
        graph = talk().compile(checkpointer=saver)
        while True:
            try:
                given = next_input(graph.get_state(config))
            except StopIteration:
                break
            graph.invoke(given, config, durability=job.durability)
        saver.deliver()
        transcript = [*saver.transcript(config)]
        log("ended", **ended(graph.get_state(config), transcript, points, [*inner.list(config)]))


async def aplay(job: Job, log: Log) -> None:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    points = Points(job.kill and tuple(job.kill))
    savers = {"sqlite": AsyncSqliteSaver, "postgres": AsyncPostgresSaver}
    stores = {"sqlite": AsyncSqliteStore, "postgres": AsyncPostgresStore}
    saver_kind = pointed(savers[job.kind], points, "aput", "aput_writes")
    store_kind = pointed(stores[job.kind], points, "abatch")
    config = {"configurable": {"thread_id": job.thread}}
    async with (
        saver_kind.from_conn_string(job.store) as inner,
        store_kind.from_conn_string(job.store) as store,
    ):
        await inner.setup()
        await store.setup()
        points.count = 0
        saver = wrapped(inner, store, points, log)
        graph = talk().compile(checkpointer=saver)
        while True:
            try:
                given = next_input(await graph.aget_state(config))
            except StopIteration:
                break
            await graph.ainvoke(given, config, durability=job.durability)
        await saver.adeliver()
        transcript = [message async for message in saver.atranscript(config)]
        stored = [found async for found in inner.alist(config)]
        log("ended", **ended(await graph.aget_state(config), transcript, points, stored))


def run(job: Job) -> None:
    log = opened(job.log)
    try:
        if job.door == "async":
            asyncio.run(aplay(job, log))
        else:
            play(job, log)
    except BaseException:
        log("error", text=traceback.format_exc())
        raise


def serve() -> None:
    """Do jobs, each in a fork, until there are no more."""
    for line in sys.stdin:
        job = Job(**json.loads(line))
        child = os.fork()
        if not child:
            code = 1
            signal.alarm(60)
            with contextlib.suppress(BaseException):
                run(job)
                code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201


class Server:
    """Run this file as a server, and give it jobs."""

    def __init__(self) -> None:
        import subprocess

        tests = Path(__file__).parents[1]
        path = [str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # warnings; what goes wrong is in the log
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )

    def do(self, job: Job) -> tuple[int, list[dict[str, Any]]]:
        """Return how a job ended (0, or minus a signal) and its events."""
        assert self._process.stdin
        assert self._process.stdout
        before = os.path.getsize(job.log) if os.path.exists(job.log) else 0
        self._process.stdin.write(json.dumps(job._asdict()) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())["status"]
        with open(job.log, encoding="utf-8") as file:
            file.seek(before)
            return status, [json.loads(line) for line in file]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    serve()
