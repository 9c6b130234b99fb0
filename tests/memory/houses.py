"""Savers with an archive beside them, on real stores; and graphs that know what they were told.

A house is a LangGraph saver and a LangGraph store of one kind behind one door: both in one SQLite
file, in one Postgres database, or in memory. `house.saver()` is a new `ReducingSaver` on them, as
another process would make it: nothing that the last one remembered is in it.

The graphs keep a second channel, `log`, with the id of every message that was ever added. It forks,
rolls back and replays with its checkpoint, so it is what a transcript must be equal to.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import operator
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from services.door import DOORS, Door
from services.savers import Stores, open_saver
from typing_extensions import TypedDict

from reducing_saver import Eviction, ReducingSaver, StoreArchive, Summary, Window
from reducing_saver._ledger import LONGEST_PAUSE
from reducing_saver.engine.messages import is_summary

HOUSES = (
    "memory-sync",
    "memory-async",
    "memory_int-sync",
    "sqlite-sync",
    "aiosqlite-async",
    "postgres-sync",
    "apostgres-async",
)
FILES = ("sqlite-sync", "aiosqlite-async", "postgres-sync", "apostgres-async")

WINDOW = Window(("messages", 4), ("messages", 6), ("messages", 12))


def open_store(kind: str, door: Door, stores: Stores, name: str) -> BaseStore:
    """Open a store that is ready to use, beside the saver of the same kind and name."""
    path = str(stores.folder / f"{name}.db")
    match kind:
        case "memory" | "memory_int":
            return stores.get(f"{name} store", InMemoryStore)
        case "sqlite":
            from langgraph.store.sqlite import SqliteStore

            store = door.open(SqliteStore.from_conn_string(path))
        case "aiosqlite":
            from langgraph.store.sqlite.aio import AsyncSqliteStore

            store = door.open(AsyncSqliteStore.from_conn_string(path))
        case "postgres":
            from langgraph.store.postgres import PostgresStore

            store = door.open(
                PostgresStore.from_conn_string(stores.get(name, stores.make_database))
            )
        case "apostgres":
            from langgraph.store.postgres.aio import AsyncPostgresStore

            dsn = stores.get(name, stores.make_database)
            store = door.open(AsyncPostgresStore.from_conn_string(dsn))
        case _:
            raise ValueError(f"no such kind of store: {kind}")
    door.finish(store.setup())
    return store


class House:
    """A saver and a store behind a door."""

    def __init__(self, name: str, door: Door, stores: Stores) -> None:
        self.name, self.door, self.stores = name, door, stores
        self.kind = name.split("-")[0]
        if "postgres" in self.kind:
            self.dsn = stores.get("house", stores.make_database)
        self.inner = open_saver(self.kind, door, stores, "house")
        self.store = open_store(self.kind, door, stores, "house")

    def saver(self, window: Window = WINDOW, **options: Any) -> ReducingSaver:
        """Make a saver that remembers nothing yet."""
        given = {"archive": StoreArchive(self.store), "strict": True, **options}
        clock = given.pop("clock", None)
        saver = ReducingSaver(given.pop("inner", self.inner), window, **given)
        return ticking(saver, clock) if clock else saver

    def elsewhere(self, name: str) -> House:
        """Open another, empty house of the same kind behind the same door."""
        found = object.__new__(House)
        found.name, found.door, found.stores, found.kind = self.name, self.door, self.stores, ""
        found.kind = self.kind
        if "postgres" in self.kind:
            found.dsn = self.stores.get(name, self.stores.make_database)
        found.inner = open_saver(self.kind, self.door, self.stores, name)
        found.store = open_store(self.kind, self.door, self.stores, name)
        return found

    # What is there

    def transcript(self, saver: ReducingSaver, config: Any, **options: Any) -> list[Any]:
        return self.door.collect(saver, "transcript", config, **options)

    def state(self, config: Any) -> Any:
        """Return the values of a stored checkpoint, read past the wrapper."""
        found = self.door.get_tuple(self.inner, config)
        return found.checkpoint["channel_values"] if found else {}

    def checkpoints(self, thread: str, namespace: str | None = None) -> list[Any]:
        """Return what is stored of a thread, newest first; by default of the root graph."""
        where: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": namespace or ""}
        return self.door.list(self.inner, {"configurable": where})

    def rows(self, thread: str | None = None) -> list[Any]:
        """Return what the archive's store holds, of one thread or of all."""
        found: list[Any] = []
        prefix = ("reducing_saver",) if thread is None else ("reducing_saver", thread)
        while page := self.door.call(self.store, "search", prefix, limit=500, offset=len(found)):
            found += page
        return found

    def entries(self, thread: str) -> list[str]:
        """Return the keys of the archived messages of a thread."""
        return [item.key for item in self.rows(thread) if item.namespace[-1] == "messages"]

    def dump(self) -> bytes:
        """Return everything that is stored, of all tables, with what is encoded decoded as well."""
        found = b"\n".join(self._dump())
        coded = re.findall(rb"[A-Za-z0-9+/]{16,}={0,2}", found)
        decoded = [
            base64.b64decode(one + b"=" * (-len(one) % 4)) for one in coded if len(one) % 4 != 1
        ]
        return b"\n".join([found, *decoded])

    def _dump(self) -> Iterator[bytes]:
        match self.kind:
            case "memory":
                held = (self.inner.storage, self.inner.writes, self.inner.blobs, self.store._data)
                yield repr([{**one} for one in held]).encode()
            case "memory_int":
                yield repr([self.inner.checkpoints, self.inner.writes, self.store._data]).encode()
            case "sqlite" | "aiosqlite":
                with contextlib.closing(sqlite3.connect(self.stores.folder / "house.db")) as db:
                    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                    for (table,) in tables.fetchall():
                        for row in db.execute(f'SELECT * FROM "{table}"'):  # noqa: S608
                            yield from (v if isinstance(v, bytes) else str(v).encode() for v in row)
            case _:
                import psycopg
                from psycopg import sql

                with psycopg.connect(self.dsn) as db:
                    tables = db.execute(
                        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
                    )
                    for (table,) in tables.fetchall():
                        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))
                        for row in db.execute(query):
                            yield from (v if isinstance(v, bytes) else str(v).encode() for v in row)


@contextlib.contextmanager
def opened(name: str, folder: Path, make_database: Callable[[], str]) -> Iterator[House]:
    """Open a house, and close it with all that was opened there."""
    door = DOORS[name.split("-")[1]]()
    try:
        yield House(name, door, Stores(folder, make_database))
    finally:
        door.close()


# Graphs


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]


def said(*messages: Any) -> dict[str, Any]:
    """Return what adds messages to a state, and their ids to its log."""
    return {"messages": [*messages], "log": [m.id for m in messages]}


def ask(label: str, rounds: int = 0) -> dict[str, Any]:
    """Return an input: a human message, on which the graph makes so many tool calls one by one."""
    return said(HumanMessage(f"{label} {rounds}", id=f"h.{label}"))


def thread_config(thread: str | None = None, **configurable: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread or uuid.uuid4().hex, **configurable}}


def talk() -> Any:
    """Build a graph that answers, after as many rounds of a tool as the question says.

    It does not look at the list but for the newest question and what came after it.
    """

    def model(state: State) -> dict[str, Any]:
        messages = state["messages"]
        start = max(i for i, m in enumerate(messages) if m.type == "human" and not is_summary(m))
        label, rounds = messages[start].content.split()
        step = get_config()["metadata"]["langgraph_step"]
        calls = [{"name": "look", "args": {}, "id": f"c.{label}.{step}"}]
        done = state["log"][::-1].index(messages[start].id) // 2
        more = calls if done < int(rounds) else []
        return said(AIMessage(f"{label} {step}", id=f"a.{label}.{step}", tool_calls=more))

    def look(state: State) -> dict[str, Any]:
        call = state["messages"][-1].tool_calls[0]["id"]
        return said(ToolMessage(f"found {call}", tool_call_id=call, id=f"t{call[1:]}"))

    def more(state: State) -> str:
        return "look" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("look", look)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", more, ["look", END])
    builder.add_edge("look", "model")
    return builder


def ids(messages: Sequence[Any]) -> list[Any]:
    return [m.id for m in messages if not is_summary(m)]


def summaries(messages: Sequence[Any]) -> list[str]:
    return [m.content for m in messages if is_summary(m)]


# Scripted summarisers and hooks


class Listing:
    """Summarise by naming: the summary is the ids of everything it was ever made of."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, messages: list[Any], previous: str | None) -> str:
        self.calls.append([m.id for m in messages])
        return " ".join([*(previous or "").split(), *(m.id for m in messages)])


def listing(**options: Any) -> tuple[Listing, Summary]:
    made = Listing()
    return made, Summary(made, max_tokens=100_000, max_input_tokens=1_000_000, **options)


def covered(messages: Sequence[Any]) -> list[str]:
    """Return the ids that the summary of a list names, as `Listing` wrote them."""
    texts = summaries(messages)
    return texts[-1].partition("\n\n")[2].split() if texts else []


class Clock:
    """A clock that stands still until it is moved, so that no test waits for a pause."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    def move(self, seconds: float = LONGEST_PAUSE) -> None:
        self.seconds += seconds


def ticking(saver: ReducingSaver, clock: Clock) -> ReducingSaver:
    """Return a saver whose pauses between failing hooks go by a clock."""
    saver._delivery.ledger.clock = clock
    return saver


class Told:
    """A hook that remembers what it was told, and fails as often as it is asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.events: list[Eviction] = []
        self.failures = failures

    def __call__(self, eviction: Eviction) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("secret words in an error")
        self.events.append(eviction)

    @property
    def ids(self) -> list[str]:
        return [m.id for event in self.events for m in event.messages]


class AsyncTold(Told):
    """The same as an async hook."""

    async def __call__(self, eviction: Eviction) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().__call__(eviction)
