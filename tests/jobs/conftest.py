"""Fixtures for jobs: a saver of each kind that a job can open, with the archive beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from reducing_saver import ReducingSaver, StoreArchive, Window
from reducing_saver.rows import unnamed

ORPHANS = """
    SELECT count(*) FROM {} w WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    )"""
UNNAMED = """
    SELECT count(*) FROM checkpoint_blobs b WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = b.thread_id
        AND c.checkpoint_ns = b.checkpoint_ns
        AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version
    )"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values go at once: hundreds of tests would wait a second each.

    So live runs of these tests meet the job more closely than outside. Processes that they start
    wait.
    """
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 0.0)


@dataclass
class House:
    """Hold a saver with its database and the store in it."""

    kind: str
    dsn: str
    saver: BaseCheckpointSaver[Any]
    store: Any

    def wrap(self, window: Window, **settings: Any) -> ReducingSaver:
        return ReducingSaver(self.saver, window, archive=StoreArchive(self.store), **settings)

    def run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement written with `?` over a connection of its own."""
        if self.kind == "postgres":
            import psycopg

            with psycopg.connect(self.dsn, autocommit=True) as connection:
                cursor = connection.execute(statement.replace("?", "%s"), values)
                return cursor.fetchall() if cursor.description else []
        import sqlite3

        with contextlib.closing(sqlite3.connect(self.dsn)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    @property
    def writes(self) -> str:
        return "checkpoint_writes" if self.kind == "postgres" else "writes"

    def count(self, table: str) -> int:
        return int(self.run(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608

    def digest(self, table: str) -> str:
        """Return a digest of all rows of a table (Postgres)."""
        said = f"SELECT md5(string_agg(t::text, '' ORDER BY t::text)) FROM {table} t"  # noqa: S608
        return str(self.run(said)[0][0])

    def orphans(self) -> int:
        """Count writes of no checkpoint, and blobs that no checkpoint names."""
        lost = self.run(ORPHANS.format(self.writes))[0][0]
        if self.kind == "postgres":
            lost += self.run(UNNAMED)[0][0]
        return int(lost)


Build = Callable[[], House]


@pytest.fixture
def build(make_database: Callable[[], str], tmp_path: Path, kind: str) -> Iterator[Build]:
    with contextlib.ExitStack() as stack:
        numbers = iter(range(1_000))

        def make() -> House:
            if kind == "postgres":
                from langgraph.checkpoint.postgres import PostgresSaver
                from langgraph.store.postgres import PostgresStore

                dsn = make_database()
                saver: Any = stack.enter_context(PostgresSaver.from_conn_string(dsn))
                store: Any = stack.enter_context(PostgresStore.from_conn_string(dsn))
            else:
                from langgraph.checkpoint.sqlite import SqliteSaver
                from langgraph.store.sqlite import SqliteStore

                dsn = str(tmp_path / f"{next(numbers)}.db")
                saver = stack.enter_context(SqliteSaver.from_conn_string(dsn))
                store = stack.enter_context(SqliteStore.from_conn_string(dsn))
            saver.setup()
            store.setup()
            return House(kind, dsn, saver, store)

        yield make


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def house(build: Build) -> House:
    return build()
