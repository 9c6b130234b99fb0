"""Open the savers that are measured: SQLite in a file, Postgres in a database of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from reducing_saver import Discard, ReducingSaver, Window
from tests.services import postgres

from .report import progress

Saver = BaseCheckpointSaver[Any]


class Store(NamedTuple):
    """Name a kind of store; `open` makes an empty one, `size` tells what it takes on the disk."""

    name: str
    open: Callable[[], AbstractContextManager[Saver]]
    size: Callable[[Saver], int]


def wrapped(saver: Saver, window: Window) -> Saver:
    """Return the saver wrapped; strict, since a saver whose engine fails is fast."""
    return ReducingSaver(saver, window, archive=Discard(), strict=True)


class Hollow(InMemorySaver):
    """Take what is put and store nothing: what is left of a put is the wrapper's own time."""

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: Any, new_versions: Any
    ) -> RunnableConfig:
        found = config["configurable"]
        return {"configurable": {**found, "checkpoint_id": checkpoint["id"]}}

    def put_writes(
        self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        return


@contextlib.contextmanager
def stores() -> Iterator[Sequence[Store]]:
    """Give SQLite, and Postgres where one can be had (see tests/services/postgres.py)."""
    with contextlib.ExitStack() as stack:
        found = [Store("SQLite", _open_sqlite, _size_of_sqlite)]
        try:
            dsn = stack.enter_context(postgres.server())
        except postgres.UnavailableError as reason:
            progress(f"without Postgres: {reason}")
        else:
            found.append(Store("Postgres", lambda: _open_postgres(dsn), _size_of_postgres))
        yield found


@contextlib.contextmanager
def _open_sqlite() -> Iterator[Saver]:
    with (
        tempfile.TemporaryDirectory(prefix="reducing-saver-benchmark-") as folder,
        SqliteSaver.from_conn_string(str(Path(folder) / "chat.db")) as saver,
    ):
        saver.setup()
        yield saver


@contextlib.contextmanager
def _open_postgres(dsn: str) -> Iterator[Saver]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with postgres.database(dsn) as own, PostgresSaver.from_conn_string(own) as saver:
        saver.setup()
        yield saver


def _size_of_sqlite(saver: Saver) -> int:
    saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (file,) = (row[2] for row in saver.conn.execute("PRAGMA database_list"))
    return Path(file).stat().st_size


def _size_of_postgres(saver: Saver) -> int:
    query = (
        "SELECT sum(pg_total_relation_size(oid))::bigint AS size FROM pg_class "
        "WHERE relname IN ('checkpoints', 'checkpoint_blobs', 'checkpoint_writes')"
    )
    return int(saver.conn.execute(query).fetchone()["size"])
