"""Play recordings bare and wrapped, and measure what the two SQLite files hold."""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .._archive import Discard
from .._saver import ReducingSaver
from ..engine import Problem, Window, problems
from ..engine.validity import Provider
from .agent import play, thread_config
from .turns import Recording

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    Saver: TypeAlias = BaseCheckpointSaver[Any]

LOADS = 51
"""How often a thread is loaded. The fastest counts: on a busy machine medians vary by factors."""


class Head(NamedTuple):
    """Hold the newest checkpoint of a thread, measured in its file."""

    messages: int
    bytes: int
    load_ms: float
    problems: tuple[Problem, ...]


class Thread(NamedTuple):
    """Hold one conversation's newest checkpoint, bare and wrapped."""

    id: str
    turns: int
    bare: Head
    wrapped: Head


class File(NamedTuple):
    """Hold one SQLite file, with the time of all runs that filled it."""

    path: Path
    bytes: int
    checkpoints: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Hold what the two runs left behind.

    `notes` count what was not played as it was recorded; `warnings` are what the saver logged.
    """

    window: Window
    threads: tuple[Thread, ...]
    bare: File
    wrapped: File
    seconds: float
    notes: dict[str, int]
    warnings: list[str]

    def refused(self, provider: Provider) -> list[tuple[Thread, Problem]]:
        """Return what a provider would refuse in the wrapped histories."""
        return [
            (thread, problem)
            for thread in self.threads
            for problem in thread.wrapped.problems
            if provider in problem.providers
        ]


def compare(
    recordings: Sequence[Recording],
    window: Window,
    folder: Path,
    *,
    tick: Callable[[str], None] = lambda side: None,
) -> Report:
    """Play the recordings into `bare.db` and `wrapped.db` of a folder, and measure both.

    `tick` is called after each turn with the name of the side.
    """
    start = time.perf_counter()
    notes = sum((Counter(dict(played.notes)) for played in recordings), Counter[str]())
    with _warnings() as warnings:
        bare = _fill(folder / "bare.db", recordings, None, lambda: tick("bare"))
        wrapped = _fill(folder / "wrapped.db", recordings, window, lambda: tick("wrapped"))
        threads = tuple(_threads(recordings, bare.path, wrapped.path, window))
    seconds = time.perf_counter() - start
    return Report(window, threads, bare, wrapped, seconds, dict(notes), warnings)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what the saver logs, so that it stands below the table and not across the bars."""
    heard, said = BufferingHandler(capacity=10_000), list[str]()
    heard.setLevel(logging.WARNING)
    logger = logging.getLogger("reducing_saver")
    logger.addHandler(heard)
    try:
        yield said
    finally:
        logger.removeHandler(heard)
        said += dict.fromkeys(record.getMessage() for record in heard.buffer)


def _fill(
    path: Path, recordings: Sequence[Recording], window: Window | None, tick: Callable[[], None]
) -> File:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(path)) as sqlite:
        start = time.perf_counter()
        play(recordings, _saver(sqlite, window), tick)
        seconds = time.perf_counter() - start
    with closing(sqlite3.connect(path)) as connection:  # closed above: nothing is left in its WAL
        (checkpoints,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    return File(path, path.stat().st_size, checkpoints, seconds)


def _saver(sqlite: Saver, window: Window | None) -> Saver:
    return sqlite if window is None else ReducingSaver(sqlite, window, archive=Discard())


def _threads(
    recordings: Iterable[Recording], bare: Path, wrapped: Path, window: Window
) -> Iterator[Thread]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with (
        SqliteSaver.from_conn_string(str(bare)) as left,
        SqliteSaver.from_conn_string(str(wrapped)) as right,
    ):
        files = (left, right)
        savers = (left, _saver(right, window))
        for played in recordings:
            times = _load_ms(savers, played.id)
            heads = [_head(*each, played.id) for each in zip(savers, files, times, strict=True)]
            yield Thread(played.id, played.humans, *heads)


def _head(saver: Saver, file: SqliteSaver, load_ms: float, thread: str) -> Head:
    found = saver.get_tuple(thread_config(thread))
    messages = found.checkpoint["channel_values"].get("messages", []) if found else []
    return Head(len(messages), _head_bytes(file.conn, thread), load_ms, problems(messages))


def _head_bytes(connection: sqlite3.Connection, thread: str) -> int:
    query = (
        "SELECT length(checkpoint) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = '' "
        "ORDER BY checkpoint_id DESC LIMIT 1"
    )
    (size,) = connection.execute(query, (thread,)).fetchone()
    return int(size)


def _load_ms(savers: Sequence[Saver], thread: str) -> list[float]:
    fastest = [math.inf for _ in savers]
    for _ in range(LOADS):  # in turns: a machine that is busy for a moment slows all of them
        for place, saver in enumerate(savers):
            start = time.perf_counter()
            saver.get_tuple(thread_config(thread))
            fastest[place] = min(fastest[place], 1000 * (time.perf_counter() - start))
    return fastest
