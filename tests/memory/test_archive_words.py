"""What is said of an archive that fails or cannot work, and of what needs one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from memory.houses import thread_config
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from reducing_saver import (
    ConfigurationError,
    Discard,
    ReducingSaver,
    SelectorError,
    StoreArchive,
    Window,
)
from reducing_saver._notices import Notices

AT_ONCE = Window(("messages", 2), ("messages", 3))


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (sqlite3.OperationalError("secret"), ["sqlite3.OperationalError", "isolation_level=None"]),
        (psycopg.errors.UndefinedTable("secret"), ["psycopg.UndefinedTable", "store.setup()"]),
        (psycopg.OperationalError("secret"), ["psycopg.OperationalError", "is the database"]),
        (NotImplementedError("secret"), [": NotImplementedError; ", "as AsyncSqliteStore"]),
        (ValueError("secret"), [": ValueError (said once of it"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_may_help_a_failing_archive_is_said_without_its_text(
    error: Exception, parts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    Notices().archive_failed(thread_config("t"), error)
    (said,) = (one.getMessage() for one in caplog.records)
    assert "secret" not in said
    for part in ["thread 't'", *parts]:
        assert part in said


def test_what_was_said_of_threads_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reducing_saver._notices._MOST_SAID", 3)
    notices = Notices()
    for thread in ("a", "b", "c", "a", "d", "a"):
        notices.archive_failed(thread_config(thread), OSError())
    said = [one.getMessage().partition("thread '")[2][0] for one in caplog.records]
    assert said == ["a", "b", "c", "d", "a"]


def test_what_a_selector_raised_is_said_once_a_cause_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notices = Notices()
    for error in (ValueError("secret"), SelectorError("empty"), ValueError("secret"), OSError()):
        notices.selector_failed(error)
    said = [one.getMessage().partition(": ")[2] for one in caplog.records]
    assert [one.partition(" (")[0] for one in said] == ["ValueError", "empty", "OSError"]


async def test_a_store_without_async_methods_is_refused_under_an_async_saver() -> None:
    with SqliteStore.from_conn_string(":memory:") as store:
        async with AsyncSqliteSaver.from_conn_string(":memory:") as inner:
            with pytest.raises(ConfigurationError) as refused:
                ReducingSaver(inner, AT_ONCE, archive=StoreArchive(store))
            assert "SqliteStore has no async methods" in str(refused.value)
            assert "use AsyncSqliteStore" in str(refused.value)

            class Awaited(SqliteStore):
                async def abatch(self, ops: Any) -> Any:
                    return await asyncio.to_thread(self.batch, ops)

            ReducingSaver(inner, AT_ONCE, archive=StoreArchive(Awaited(store.conn)))
        assert ReducingSaver(InMemorySaver(), AT_ONCE, archive=StoreArchive(store)).enabled


async def test_a_sync_store_of_postgres_works_under_an_async_saver(
    make_database: Callable[[], str],
) -> None:
    dsn, config = make_database(), thread_config()
    with PostgresStore.from_conn_string(dsn) as store:
        store.setup()
        async with AsyncPostgresSaver.from_conn_string(dsn) as inner:
            await inner.setup()
            saver = ReducingSaver(inner, AT_ONCE, archive=StoreArchive(store))
            builder = StateGraph(MessagesState).add_node("reply", lambda _: {"messages": ["ok"]})
            graph = builder.add_edge(START, "reply").compile(checkpointer=saver)
            for turn in range(6):
                await graph.ainvoke({"messages": [("human", f"{turn}")]}, config)
            assert saver.stats().archive_failures == 0
            assert saver.stats().total.evicted > 0
            assert len([m async for m in saver.atranscript(config)]) == 12


@pytest.mark.parametrize("archive", [Discard(), None], ids=["discards", "has none"])
@pytest.mark.filterwarnings("ignore:no archive is set")
def test_what_needs_an_archive_says_so(archive: Any) -> None:
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive)
    for method, call in (
        ("transcript", lambda: saver.transcript(thread_config())),
        ("original", lambda: saver.original(thread_config(), "key")),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert str(refused.value).startswith(
            f"{method}() needs an archive; this saver discards what leaves: pass "
            "archive=StoreArchive(store)"
        )


@pytest.mark.parametrize("given", ["r", {}, {"configurable": {"api_key": "secret"}}, None])
async def test_what_is_no_config_is_refused(given: Any) -> None:
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()))
    thread = given if isinstance(given, str) else "..."
    config = f'{{"configurable": {{"thread_id": "{thread}"}}}}'
    for call in (
        lambda: saver.transcript(given),
        lambda: saver.original(given, "key"),
        lambda: saver.new_messages(given, []),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert f"give the run's config, {config}" in str(refused.value)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="give the run's config"):
        await saver.aoriginal(given, "key")
    with pytest.raises(ConfigurationError, match="give the run's config"):
        await saver.anew_messages(given, [])
    with pytest.raises(ConfigurationError, match="give the run's config"):
        await anext(saver.atranscript(given))


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "a pool"])
def test_a_store_on_the_connection_of_the_saver_is_refused(
    kind: str, make_database: Callable[[], str]
) -> None:
    """Each has a lock of its own: two threads of a run break a connection that both use."""
    if kind == "sqlite":
        connection: Any = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        inner: Any = SqliteSaver(connection)
        store: Any = SqliteStore(connection)
    elif kind == "postgres":
        connection = psycopg.connect(make_database(), autocommit=True, row_factory=dict_row)
        inner, store = PostgresSaver(connection), PostgresStore(connection)
    else:
        connection = ConnectionPool(make_database(), open=False)
        inner, store = PostgresSaver(connection), PostgresStore(connection)
        ReducingSaver(inner, AT_ONCE, archive=StoreArchive(store))
        return
    with pytest.raises(ConfigurationError, match="give it one of its own, or both a pool"):
        ReducingSaver(inner, AT_ONCE, archive=StoreArchive(store))
    connection.close()
