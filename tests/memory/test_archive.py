"""StoreArchive over LangGraph's real stores, behind both doors."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import BaseStore, Item, SearchOp
from langgraph.store.memory import InMemoryStore
from services.door import AsyncDoor, Door
from services.savers import Backend

from reducing_saver import ConfigurationError
from reducing_saver._archive import Archive, Discard, StoreArchive
from reducing_saver._entry import Entry
from reducing_saver._segment import Segment, Span, cut_spans, segment_id
from reducing_saver._stores import needs_autocommit

STORES = (
    "memory-sync",
    "memory-async",
    "sqlite-sync",
    "aiosqlite-async",
    "postgres-sync",
    "apostgres-async",
)
EVERY_STORE = pytest.mark.parametrize("backend", STORES, indirect=True)
CANARY = "canary7d1f"
# What SQLite is built with by default; some distributions allow more.
SQLITE_VARIABLES = 32_766

MakeArchive = Callable[..., StoreArchive]
Index = dict[str, Any]


@pytest.fixture
def make_archive(
    backend: Backend, door: Door, tmp_path: Path, make_database: Callable[[], str]
) -> MakeArchive:
    """Open an archive; the same name twice opens the same store through two connections."""
    known: dict[str, Any] = {}

    def make(name: str = "store", *, index: Index | None = None) -> StoreArchive:
        store = open_store(backend.kind, door, name, known, tmp_path, make_database, index)
        return StoreArchive(store, index_text=index is not None)

    return make


@pytest.fixture
def archive(make_archive: MakeArchive) -> StoreArchive:
    return make_archive()


def open_store(
    kind: str,
    door: Door,
    name: str,
    known: dict[str, Any],
    folder: Path,
    make_database: Callable[[], str],
    index: Index | None,
) -> BaseStore:
    match kind:
        case "memory":
            return known.setdefault(name, InMemoryStore(index=index))  # type: ignore[arg-type]
        case "sqlite":
            from langgraph.store.sqlite import SqliteStore

            opened = SqliteStore.from_conn_string(str(folder / f"{name}.db"), index=index)
            store = door.open(opened)
            store.conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, SQLITE_VARIABLES)
        case "aiosqlite":
            from langgraph.store.sqlite.aio import AsyncSqliteStore

            opened = AsyncSqliteStore.from_conn_string(str(folder / f"{name}.db"), index=index)
            store = door.open(opened)
            limit = (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, SQLITE_VARIABLES)
            door.finish(store.conn._execute(store.conn._conn.setlimit, *limit))
        case "postgres":
            from langgraph.store.postgres import PostgresStore

            dsn = known.get(name) or known.setdefault(name, make_database())
            store = door.open(PostgresStore.from_conn_string(dsn))
        case _:
            from langgraph.store.postgres.aio import AsyncPostgresStore

            dsn = known.get(name) or known.setdefault(name, make_database())
            store = door.open(AsyncPostgresStore.from_conn_string(dsn))
    door.finish(store.setup())
    return store


def segment(
    keys: Sequence[str],
    thread: str = "t",
    previous: str | None = None,
    *,
    memory: tuple[str, ...] = ("memories", "t"),
) -> Segment:
    spans = (Span(tuple(keys), None, None),)
    return Segment(
        segment_id(thread, "", "messages", previous, spans),
        previous,
        thread=thread,
        namespace="",
        channel="messages",
        checkpoint="c",
        why="window",
        memory_namespace=memory,
        spans=spans,
    )


def entries(keys: Iterable[str], said: str = "data") -> list[Entry]:
    return [Entry(key, "msgpack", f"{said} of {key} \x00\xff".encode()) for key in keys]


def keys(count: int, start: int = 0) -> list[str]:
    return [f"m{number:06}.content" for number in range(start, start + count)]


def write(
    door: Door,
    archive: StoreArchive,
    count: int,
    thread: str = "t",
    previous: str | None = None,
    *,
    start: int = 0,
    tell: bool = True,
) -> Segment:
    """Archive so many messages in one segment."""
    named = keys(count, start)
    one = segment(named, thread, previous)
    door.call(archive, "write", one, entries(named), tell=tell)
    return one


def rows(archive: StoreArchive, door: Door) -> dict[str, list[str]]:
    """Return all that a store holds, as text, by table."""
    store: Any = archive.store
    if isinstance(store, InMemoryStore):
        # An empty namespace stays in its dicts, by its name.
        tables = {"items": store._data, "vectors": store._vectors}
        return {
            name: [
                f"{place} {key} {item}"
                for place, held in table.items()
                for key, item in held.items()
            ]
            for name, table in tables.items()
        }
    if "Sqlite" in type(store).__name__:
        tables = sql(store, door, "SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        tables = sql(store, door, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    names = [next(iter(row.values() if isinstance(row, dict) else row)) for row in tables]
    everything = 'SELECT * FROM "{}"'
    return {name: [*map(str, sql(store, door, everything.format(name)))] for name in names}


def sql(store: Any, door: Door, query: str) -> list[Any]:
    if not isinstance(door, AsyncDoor):
        return store.conn.execute(query).fetchall()

    async def asked() -> list[Any]:
        return [*await (await store.conn.execute(query)).fetchall()]

    return door.run(asked())


# --------------------------------------------------------------------------- reading and writing


def test_what_is_an_archive() -> None:
    assert isinstance(StoreArchive(InMemoryStore()), Archive)
    assert not isinstance(Discard(), Archive)
    with pytest.raises(TypeError, match="is no LangGraph store"):
        StoreArchive({})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SqliteStore", "AsyncSqliteStore"])
def test_a_store_that_is_not_opened_is_refused_with_the_right_line(name: str) -> None:
    from langgraph.store.sqlite import SqliteStore
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    store: Any = {"SqliteStore": SqliteStore, "AsyncSqliteStore": AsyncSqliteStore}[name]
    keyword = "async with" if name.startswith("Async") else "with"
    line = (
        f"\n    {keyword} {name}.from_conn_string(...) as store:\n        archive = StoreArchive("
    )
    with pytest.raises(TypeError, match=re.escape(line)):
        StoreArchive(store.from_conn_string(":memory:"))


def test_a_connection_that_begins_by_itself_is_refused() -> None:
    """SqliteStore begins a transaction of its own: every call would fail."""
    from langgraph.store.sqlite import SqliteStore

    connection = sqlite3.connect(":memory:", check_same_thread=False)
    with pytest.raises(ConfigurationError) as refused:
        StoreArchive(SqliteStore(connection))
    assert str(refused.value) == (
        "SqliteStore needs a connection with isolation_level=None; "
        "write `with SqliteStore.from_conn_string(path) as store:`"
    )
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
        SqliteStore(connection).put(("any",), "key", {})
    connection.close()


def test_a_connection_without_an_isolation_level_is_taken() -> None:
    from langgraph.store.sqlite import SqliteStore

    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    archive = StoreArchive(SqliteStore(connection))
    archive.write(segment(keys(2)), entries(keys(2)), tell=False)
    assert archive.read("t", keys(2)) == entries(keys(2))
    connection.close()


def test_a_connection_of_another_thread_is_taken() -> None:
    """From Python 3.12 on it tells nobody else whether it begins by itself."""
    from langgraph.store.sqlite import SqliteStore

    class OfAnother(sqlite3.Connection):
        @property
        def autocommit(self) -> int:
            raise sqlite3.ProgrammingError("created in another thread")

    for level in (None, "DEFERRED"):
        connection = sqlite3.connect(":memory:", isolation_level=level, factory=OfAnother)
        assert needs_autocommit(SqliteStore(connection)) == (level is not None)
        connection.close()


async def test_an_async_connection_that_begins_by_itself_is_refused() -> None:
    import aiosqlite
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    async with aiosqlite.connect(":memory:") as connection:
        store = AsyncSqliteStore(connection)
        with pytest.raises(ConfigurationError, match=r"`async with AsyncSqliteStore\.from_conn"):
            StoreArchive(store)
    async with aiosqlite.connect(":memory:", isolation_level=None) as connection:
        assert not await StoreArchive(AsyncSqliteStore(connection)).aholds("t")


@EVERY_STORE
def test_what_is_written_is_read(door: Door, archive: StoreArchive) -> None:
    write(door, archive, 20)
    assert door.call(archive, "read", "t", keys(20)) == entries(keys(20))


@EVERY_STORE
def test_reading_keeps_the_order_of_the_keys_and_leaves_holes_out(
    door: Door, archive: StoreArchive
) -> None:
    write(door, archive, 20)
    asked = [keys(20)[7], "not.there", keys(20)[3], "m999999.content", keys(20)[19]]
    found = door.call(archive, "read", "t", asked)
    assert [entry.key for entry in found] == [asked[0], asked[2], asked[4]]
    assert door.call(archive, "read", "t", []) == []
    assert door.call(archive, "read", "nobody", asked) == []


@EVERY_STORE
def test_which_keys_exist(door: Door, archive: StoreArchive) -> None:
    write(door, archive, 20)
    there, missing = keys(20)[3:9], ["not.there", "m000003.edited"]
    assert door.call(archive, "exist", "t", [*there, *missing]) == {*there}
    assert door.call(archive, "exist", "t", []) == set()
    assert door.call(archive, "exist", "nobody", there) == set()


@EVERY_STORE
def test_writing_again_changes_nothing(
    door: Door, archive: StoreArchive, make_archive: MakeArchive
) -> None:
    one = write(door, archive, 20)
    before = {name: len(held) for name, held in rows(archive, door).items()}
    write(door, archive, 20)
    write(door, make_archive(), 20)
    assert {name: len(held) for name, held in rows(archive, door).items()} == before
    assert door.call(archive, "chain", "t", one.id) == [one]
    assert door.call(archive, "undelivered", "t") == [one]


@EVERY_STORE
def test_another_connection_reads_it(
    door: Door, archive: StoreArchive, make_archive: MakeArchive
) -> None:
    one = write(door, archive, 20)
    other = make_archive()
    assert door.call(other, "read", "t", keys(20)) == entries(keys(20))
    assert door.call(other, "chain", "t", one.id) == [one]


@EVERY_STORE
def test_a_segment_comes_back_equal(door: Door, archive: StoreArchive) -> None:
    messages = [HumanMessage(f"say {n}", id=f"m{n}") for n in range(6)]
    spans = cut_spans(messages, [1, 2, 4], None)
    full = Segment(
        segment_id("t", "child:1|other", "__previous__.messages", None, spans),
        None,
        thread="t",
        namespace="child:1|other",
        channel="__previous__.messages",
        checkpoint="1f1ec71a-ed7f-6ba8-8001-07e3d392d1bc",
        why="removed",
        memory_namespace=("users", "a.b/ü", ""),
        spans=spans,
        summarised=True,
    )
    door.call(archive, "write", full, entries(full.keys), tell=True)
    assert door.call(archive, "chain", "t", full.id) == [full]
    assert door.call(archive, "undelivered", "t") == [full]


@EVERY_STORE
def test_a_chain_is_a_line_newest_first(door: Door, archive: StoreArchive) -> None:
    first = write(door, archive, 3)
    second = write(door, archive, 3, previous=first.id, start=3)
    third = write(door, archive, 3, previous=second.id, start=6)
    fork = write(door, archive, 3, previous=first.id, start=9)
    assert door.call(archive, "chain", "t", third.id) == [third, second, first]
    assert door.call(archive, "chain", "t", fork.id) == [fork, first]
    assert door.call(archive, "chain", "t", None) == []
    assert door.call(archive, "chain", "t", "unknown") == []


@EVERY_STORE
def test_a_chain_ends_where_a_segment_is_missing(door: Door, archive: StoreArchive) -> None:
    orphan = write(door, archive, 3, previous="never-written")
    assert door.call(archive, "chain", "t", orphan.id) == [orphan]


# ------------------------------------------------------------------------------------- deliveries


@EVERY_STORE
def test_what_waits_for_hooks(door: Door, archive: StoreArchive) -> None:
    first = write(door, archive, 3)
    second = write(door, archive, 3, previous=first.id, start=3)
    untold = write(door, archive, 3, previous=second.id, start=6, tell=False)
    waiting = door.call(archive, "undelivered", "t")
    assert sorted(one.id for one in waiting) == sorted([first.id, second.id])
    assert door.call(archive, "told", "t", first.keys) == {}

    door.call(archive, "mark_delivered", "t", first.id, first.keys)
    assert door.call(archive, "undelivered", "t") == [second]
    named = (*first.keys, *untold.keys)
    assert door.call(archive, "told", "t", named) == {
        key.partition(".")[0]: key for key in first.keys
    }
    door.call(archive, "mark_delivered", "t", second.id, second.keys)
    assert door.call(archive, "undelivered", "t") == []


@EVERY_STORE
def test_an_edit_is_told_under_the_same_identity(door: Door, archive: StoreArchive) -> None:
    first = write(door, archive, 2)
    door.call(archive, "mark_delivered", "t", first.id, first.keys)
    edited = ["m000001.edited"]
    second = segment(edited, previous=first.id)
    door.call(archive, "write", second, entries(edited), tell=True)
    assert door.call(archive, "told", "t", edited) == {"m000001": "m000001.content"}
    door.call(archive, "mark_delivered", "t", second.id, second.keys)
    assert door.call(archive, "told", "t", first.keys) == {
        "m000000": "m000000.content",
        "m000001": "m000001.edited",
    }
    both = door.call(archive, "read", "t", [*first.keys, *edited])
    assert [entry.key for entry in both] == [*first.keys, *edited]


@EVERY_STORE
def test_marking_twice_or_what_never_waited(door: Door, archive: StoreArchive) -> None:
    one = write(door, archive, 2)
    for _ in range(2):
        door.call(archive, "mark_delivered", "t", one.id, one.keys)
    door.call(archive, "mark_delivered", "t", "unknown", [])
    assert door.call(archive, "undelivered", "t") == []
    assert len(door.call(archive, "told", "t", one.keys)) == 2


@EVERY_STORE
def test_what_was_told_stays_told_where_it_is_written_again(
    door: Door, archive: StoreArchive
) -> None:
    one = write(door, archive, 2)
    door.call(archive, "mark_delivered", "t", one.id, one.keys)
    write(door, archive, 2)
    assert {*door.call(archive, "told", "t", one.keys).values()} == {*one.keys}


@EVERY_STORE
def test_the_threads_that_wait(door: Door, archive: StoreArchive) -> None:
    names = ["plain", "a.b", "a/b ü", "%25", "", "~", "~~", "~2e", "A_b", "é" * 300]
    for name in names:
        write(door, archive, 2, name)
    write(door, archive, 2, "silent", tell=False)
    assert sorted(door.call(archive, "waiting")) == sorted(names)


@EVERY_STORE
def test_many_threads_wait(door: Door, archive: StoreArchive) -> None:
    names = [f"thread-{number}" for number in range(130)]
    for name in names:
        write(door, archive, 1, name)
    assert sorted(door.call(archive, "waiting")) == sorted(names)


@EVERY_STORE
def test_many_segments(door: Door, archive: StoreArchive) -> None:
    chain: list[Segment] = []
    for number in range(130):
        previous = chain[-1].id if chain else None
        chain.append(write(door, archive, 1, previous=previous, start=number))
    assert door.call(archive, "chain", "t", chain[-1].id) == chain[::-1]
    assert {one.id for one in door.call(archive, "undelivered", "t")} == {one.id for one in chain}
    for source, target in (("t", "copy"), ("copy", "copy of the copy")):
        door.call(archive, "copy_thread", source, target)
        copied = door.call(archive, "chain", target, chain[-1].id)
        assert [one.id for one in copied] == [one.id for one in chain[::-1]]
        assert len(door.call(archive, "undelivered", target)) == len(chain)


class Batches(StoreArchive):
    """An archive that counts how often its store is asked."""

    asked = 0

    def _batch(self, ops: Any) -> Any:
        self.asked += 1
        return super()._batch(ops)


@pytest.mark.parametrize(("length", "most"), [(1, 1), (8, 8), (17, 17), (1_000, 20)])
def test_a_long_line_is_read_in_pages(length: int, most: int) -> None:
    archive, door = Batches(InMemoryStore()), Door()
    chain: list[Segment] = []
    for number in range(length):
        previous = chain[-1].id if chain else None
        chain.append(write(door, archive, 1, previous=previous, start=number, tell=False))
    fork = write(door, archive, 1, previous=chain[0].id, start=9_999, tell=False)
    archive.asked = 0
    assert archive.chain("t", chain[-1].id) == chain[::-1]
    assert archive.asked <= most
    assert archive.chain("t", fork.id) == [fork, chain[0]]


@EVERY_STORE
def test_a_segment_has_names_that_databases_refuse(door: Door, archive: StoreArchive) -> None:
    one = replace(segment(keys(1)), memory_namespace=("users", "\x00", "\udc00"), namespace="a\x00")
    door.call(archive, "write", one, entries(keys(1)), tell=True)
    assert door.call(archive, "chain", "t", one.id) == [one]
    assert door.call(archive, "undelivered", "t") == [one]
    assert door.call(archive, "waiting") == ["t"]


# --------------------------------------------------------------------------- threads, each its own


THREADS = (
    "a.b..c",
    "users/a/b",
    "日本語 é 🙂",
    " ",
    "",
    "%",
    "%2E",
    "*?[a-z]_%",
    "*",
    'it\'s "so" \\',
    "langgraph",
    "thread-" * 100,
    "a\nb",
    "12345",
    "a\x00b",
    "half \ud83d of a character",
    "\x00" * 400,
)


@EVERY_STORE
def test_any_thread_id(door: Door, archive: StoreArchive) -> None:
    for thread in THREADS:
        one = write(door, archive, 3, thread)
        assert door.call(archive, "read", thread, one.keys) == entries(keys(3))
        assert door.call(archive, "chain", thread, one.id) == [one]
        assert door.call(archive, "undelivered", thread) == [one]
        door.call(archive, "mark_delivered", thread, one.id, one.keys)
        assert len(door.call(archive, "told", thread, one.keys)) == 3
    for thread in THREADS:
        door.call(archive, "copy_thread", thread, f"copy of {thread}")
        door.call(archive, "delete_thread", thread)
        assert door.call(archive, "read", thread, one.keys) == []
        assert len(door.call(archive, "read", f"copy of {thread}", one.keys)) == 3


@EVERY_STORE
def test_threads_with_the_same_message_ids_never_mix(door: Door, archive: StoreArchive) -> None:
    names = ["a", "b", "a.b", "A", "a%2Eb", "aX2Eb", "u_1", "uX1", "", "%00", "*", "b.messages"]
    for name in names:
        one = segment(keys(2), name)
        door.call(archive, "write", one, entries(keys(2), said=f"thread {name}"), tell=True)
    assert_own(door, archive, names)
    for name in names:
        door.call(archive, "mark_delivered", name, segment(keys(2), name).id, keys(1))
        break
    assert door.call(archive, "told", names[0], keys(2)) == {"m000000": "m000000.content"}
    assert all(door.call(archive, "told", name, keys(2)) == {} for name in names[1:])
    while names:
        door.call(archive, "delete_thread", names.pop())
        assert_own(door, archive, names)


def assert_own(door: Door, archive: StoreArchive, names: Sequence[str]) -> None:
    for name in names:
        found = door.call(archive, "read", name, keys(2))
        assert found == entries(keys(2), said=f"thread {name}")
        chain = door.call(archive, "chain", name, segment(keys(2), name).id)
        assert [one.thread for one in chain] == [name]


class LooseStore(InMemoryStore):
    """Search as stores whose LIKE is not escaped: `_` is any character, capitals are small."""

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        do = super().batch
        return [self._loose(op) if isinstance(op, SearchOp) else do([op])[0] for op in ops]

    def _loose(self, op: SearchOp) -> list[Item]:
        like = re.escape(".".join(op.namespace_prefix)).replace("_", ".").replace("%", ".*")
        places = [p for p in self._data if re.match(like, ".".join(p), re.IGNORECASE)]
        return [item for place in places for item in self._data[place].values()][: op.limit]


def test_threads_never_mix_where_a_store_searches_loosely() -> None:
    archive, names = StoreArchive(LooseStore()), ["u_1", "uX1", "ux1", "u%", "U_1", "u~1"]
    archive.store.put(("reducingXsaver", "ux1", "messages"), "key", {"somebody": "else's"})
    for name in names:
        archive.write(segment(keys(1_200), name), entries(keys(1_200)), tell=True)
    archive.delete_thread("u_1")
    archive.delete_thread("ux1")
    archive.copy_thread("uX1", "copy")
    for name in ("uX1", "u%", "U_1", "u~1", "copy"):
        assert len(archive.read(name, keys(1_200))) == 1_200
        assert len(archive.undelivered(name)) == 1
    assert not archive.read("u_1", keys(1_200)) + archive.read("ux1", keys(1_200))
    assert {*archive.waiting()} >= {"U_1", "copy", "u%", "uX1", "u~1"}
    assert archive.store.get(("reducingXsaver", "ux1", "messages"), "key")


# ---------------------------------------------------------------------------- copying and erasing


@EVERY_STORE
def test_copying_a_thread(door: Door, archive: StoreArchive) -> None:
    first = write(door, archive, 3)
    second = write(door, archive, 3, previous=first.id, start=3)
    door.call(archive, "mark_delivered", "t", first.id, first.keys)
    door.call(archive, "copy_thread", "t", "copy")
    assert door.call(archive, "read", "copy", keys(6)) == entries(keys(6))
    chain = door.call(archive, "chain", "copy", second.id)
    assert [(one.id, one.thread) for one in chain] == [(second.id, "copy"), (first.id, "copy")]
    assert [one.id for one in door.call(archive, "undelivered", "copy")] == [second.id]
    assert len(door.call(archive, "told", "copy", keys(6))) == 3

    door.call(archive, "delete_thread", "t")
    assert door.call(archive, "read", "copy", keys(6)) == entries(keys(6))
    door.call(archive, "copy_thread", "nobody", "copy")
    assert door.call(archive, "read", "copy", keys(6)) == entries(keys(6))


@EVERY_STORE
def test_a_copy_has_a_memory_namespace_of_its_own(door: Door, archive: StoreArchive) -> None:
    """Where nobody named one, it is made of the thread, and the copy is another thread."""
    named = segment(keys(1), memory=("users", "alice"))
    unnamed = segment(keys(1, 1), previous=named.id, memory=("memories", "t"))
    for one in (named, unnamed):
        door.call(archive, "write", one, entries(one.keys), tell=True)
    door.call(archive, "copy_thread", "t", "copy")
    chain = door.call(archive, "chain", "copy", unnamed.id)
    assert [one.memory_namespace for one in chain] == [("memories", "copy"), ("users", "alice")]


@EVERY_STORE
def test_copying_thousands_of_messages(door: Door, archive: StoreArchive) -> None:
    one = write(door, archive, 5_000)
    door.call(archive, "copy_thread", "t", "copy")
    assert len(door.call(archive, "read", "copy", one.keys)) == 5_000


@EVERY_STORE
def test_nothing_is_left_of_an_erased_thread(door: Door, archive: StoreArchive) -> None:
    said = f"{CANARY} said"
    for number in range(3):
        named = [f"{CANARY}{number}-{each}.content" for each in range(110)]
        one = segment(named, f"thread-{CANARY}", memory=(CANARY,))
        written = entries([*named, one.summary_key], said)
        door.call(archive, "write", one, written, tell=True)
        if number:
            door.call(archive, "mark_delivered", one.thread, one.id, named)
    kept = write(door, archive, 3, "other")
    assert any(CANARY in row for held in rows(archive, door).values() for row in held)

    door.call(archive, "delete_thread", f"thread-{CANARY}")
    assert not [row for held in rows(archive, door).values() for row in held if CANARY in row]
    assert door.call(archive, "read", "other", kept.keys) == entries(kept.keys)
    door.call(archive, "delete_thread", f"thread-{CANARY}")


def can_load_extensions() -> bool:
    return hasattr(sqlite3.Connection, "enable_load_extension")


INDEXED = pytest.mark.parametrize(
    "backend", STORES[:4] if can_load_extensions() else STORES[:2], indirect=True
)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Give each text a vector by its letters."""
    return [[1.0 + text.lower().count(letter) for letter in "aeiou"] for text in texts]


@INDEXED
def test_the_index_of_an_erased_thread_is_erased(door: Door, make_archive: MakeArchive) -> None:
    archive = make_archive(index={"dims": 5, "embed": embed, "fields": ["text"]})
    named = keys(150)
    texts = [Entry(key, "msgpack", b"1", f"{CANARY} {key}") for key in named]
    door.call(archive, "write", segment(named), texts, tell=False)
    assert door.call(archive, "read", "t", named) == texts
    assert any(CANARY in row for held in rows(archive, door).values() for row in held)
    door.call(archive, "delete_thread", "t")
    held = rows(archive, door)
    assert not [row for found in held.values() for row in found if CANARY in row]
    assert not held.get("store_vectors")
    assert not held.get("vectors")


@EVERY_STORE
def test_a_plain_text_that_databases_refuse(door: Door, archive: StoreArchive) -> None:
    (key,) = keys(1)
    text = "a NUL \x00 and half a character \ud800"
    door.call(archive, "write", segment([key]), [Entry(key, "x", b"1", text)], tell=False)
    (found,) = door.call(archive, "read", "t", [key])
    assert found.text == "a NUL   and half a character ?"


@INDEXED
def test_a_copy_is_found_by_meaning(door: Door, make_archive: MakeArchive) -> None:
    archive = make_archive(index={"dims": 5, "embed": embed, "fields": ["text"]})
    texts = [Entry("a.1", "x", b"1", "aaaa"), Entry("u.1", "x", b"1", "uuuu")]
    door.call(archive, "write", segment(["a.1", "u.1"]), texts, tell=False)
    door.call(archive, "copy_thread", "t", "copy")
    place = ("reducing_saver", "copy", "messages")
    found = door.call(archive.store, "search", place, query="uuu", limit=1)
    assert [item.key for item in found] == ["u.1"]


class Rot13(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


@EVERY_STORE
def test_an_encrypted_message_is_in_no_row(door: Door, archive: StoreArchive) -> None:
    """C43."""
    serde = EncryptedSerializer(Rot13(), JsonPlusSerializer())
    message = HumanMessage(f"my secret is {CANARY}", id="m1")
    spans = cut_spans([message], [0], None)
    one = segment(spans[0].keys)
    door.call(archive, "write", one, [Entry(one.keys[0], *serde.dumps_typed(message))], tell=True)
    door.call(archive, "mark_delivered", "t", one.id, one.keys)
    assert not [row for held in rows(archive, door).values() for row in held if CANARY in row]
    (found,) = door.call(archive, "read", "t", one.keys)
    assert serde.loads_typed((found.kind, found.data)) == message


# ---------------------------------------------------------------------------- many, and at once


@EVERY_STORE
def test_thousands_of_messages_in_one_eviction(door: Door, archive: StoreArchive) -> None:
    one = write(door, archive, 5_000)
    found = door.call(archive, "read", "t", one.keys)
    assert found == entries(one.keys)
    door.call(archive, "mark_delivered", "t", one.id, one.keys)
    assert len(door.call(archive, "told", "t", one.keys)) == 5_000
    door.call(archive, "delete_thread", "t")
    assert door.call(archive, "read", "t", one.keys) == []


@EVERY_STORE
def test_the_first_eviction_of_an_old_thread(door: Door, archive: StoreArchive) -> None:
    one = write(door, archive, 22_000)
    assert len(door.call(archive, "read", "t", one.keys)) == 22_000


@EVERY_STORE
def test_concurrent_writers(door: Door, archive: StoreArchive, make_archive: MakeArchive) -> None:
    """Each of them, through two connections, writes into its own thread and into a shared one."""
    archives, jobs = [archive, make_archive()], range(16)
    written = {
        (thread, number): segment(keys(30, 30 * number if thread == "shared" else 0), thread)
        for number in jobs
        for thread in ("shared", f"own-{number}")
    }
    if isinstance(door, AsyncDoor):
        door.run(write_all(archives, written))
    else:
        with ThreadPoolExecutor(8) as pool:
            done = [
                pool.submit(archives[number % 2].write, one, entries(one.keys), tell=True)
                for (_, number), one in written.items()
            ]
            assert [one.result() for one in done] == [None] * len(written)
    for one in written.values():
        assert door.call(archive, "read", one.thread, one.keys) == entries(one.keys)
    assert len(door.call(archive, "undelivered", "shared")) == len(jobs)


async def write_all(
    archives: Sequence[StoreArchive], written: dict[tuple[str, int], Segment]
) -> None:
    await asyncio.gather(
        *(
            archives[number % 2].awrite(one, entries(one.keys), tell=True)
            for (_, number), one in written.items()
        )
    )


@pytest.mark.parametrize("backend", ["memory-sync", "sqlite-sync", "postgres-sync"], indirect=True)
def test_threads_write_while_others_read_copy_and_erase(door: Door, archive: StoreArchive) -> None:
    old = write(door, archive, 200, "old")

    def work(number: int) -> None:
        thread = f"own-{number}"
        for start in range(0, 60, 20):
            one = segment(keys(20, start), thread)
            archive.write(one, entries(one.keys), tell=True)
            assert len(archive.read(thread, one.keys)) == 20
            archive.mark_delivered(thread, one.id, one.keys)
        assert len(archive.read("old", old.keys)) == 200
        archive.delete_thread(thread)
        assert archive.read(thread, keys(60)) == []

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(24)]:
            done.result()
    assert door.call(archive, "read", "old", old.keys) == entries(old.keys)
