"""LangGraph's own conformance suite reports the same for a wrapped saver as for the bare one.

The suite is async only, so sync savers stand behind a bridge: `Bridge(wrapper(SqliteSaver))` tests
the wrapper's sync door.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from services.savers import IntMemorySaver
from services.wrappers import WRAPPERS

Saver = BaseCheckpointSaver[Any]
Wrapper = Callable[[Saver], Saver]
BASE = {"put", "put_writes", "get_tuple", "list", "delete_thread"}


class Bridge(BaseCheckpointSaver[Any]):
    """Offer a saver's sync door as an async one."""

    def __init__(self, saver: Saver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def aput(self, *args: Any) -> Any:
        return self.saver.put(*args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.saver.put_writes(*args, **kwargs)

    async def aget_tuple(self, config: Any) -> Any:
        return self.saver.get_tuple(config)

    async def alist(self, config: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for found in self.saver.list(config, **kwargs):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)


class PruningBridge(Bridge):
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)


Opened = contextlib.AbstractAsyncContextManager[Saver]
Opener = Callable[[Wrapper, Callable[[], str]], Opened]


@contextlib.asynccontextmanager
async def memory(wrap: Wrapper, _: Callable[[], str]) -> AsyncIterator[Saver]:
    yield wrap(InMemorySaver())


@contextlib.asynccontextmanager
async def memory_int(wrap: Wrapper, _: Callable[[], str]) -> AsyncIterator[Saver]:
    yield wrap(IntMemorySaver())


@contextlib.asynccontextmanager
async def aiosqlite(wrap: Wrapper, _: Callable[[], str]) -> AsyncIterator[Saver]:
    async with AsyncSqliteSaver.from_conn_string(":memory:") as inner:
        yield wrap(inner)


@contextlib.asynccontextmanager
async def apostgres(wrap: Wrapper, database: Callable[[], str]) -> AsyncIterator[Saver]:
    async with AsyncPostgresSaver.from_conn_string(database()) as inner:
        await inner.setup()
        yield wrap(inner)


@contextlib.asynccontextmanager
async def sqlite_bridged(wrap: Wrapper, _: Callable[[], str]) -> AsyncIterator[Saver]:
    with SqliteSaver.from_conn_string(":memory:") as inner:
        yield Bridge(wrap(inner))


@contextlib.asynccontextmanager
async def sqlite_unbridged(wrap: Wrapper, _: Callable[[], str]) -> AsyncIterator[Saver]:
    with SqliteSaver.from_conn_string(":memory:") as inner:
        yield wrap(inner)


@contextlib.asynccontextmanager
async def postgres_bridged(wrap: Wrapper, database: Callable[[], str]) -> AsyncIterator[Saver]:
    with PostgresSaver.from_conn_string(database()) as inner:
        inner.setup()
        yield PruningBridge(wrap(inner))


async def report(opener: Opener, wrap: Wrapper, make_database: Callable[[], str]) -> Any:
    """Give what the suite says about each capability, all of them on one database."""
    database = functools.cache(make_database)

    @checkpointer_test(name="saver")
    async def factory() -> AsyncIterator[Saver]:
        async with opener(wrap, database) as saver:
            yield saver

    return (await validate(factory)).to_dict()


CASES: dict[Opener, set[str]] = {
    memory: BASE,
    memory_int: BASE,
    aiosqlite: BASE,
    apostgres: {*BASE, "prune"},
    sqlite_bridged: BASE,
    postgres_bridged: {*BASE, "prune"},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("opener", CASES, ids=lambda opener: opener.__name__)
async def test_the_reports_are_equal(
    opener: Opener, wrapper: str, make_database: Callable[[], str]
) -> None:
    bare = await report(opener, lambda saver: saver, make_database)
    wrapped = await report(opener, WRAPPERS[wrapper], make_database)
    assert bare["conformance_level"] == "FULL"
    for capability in Capability:
        assert wrapped["results"][capability.value] == bare["results"][capability.value]
    detected = {name for name, result in bare["results"].items() if result["detected"]}
    assert detected == CASES[opener]
    assert wrapped == bare


@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_a_sync_saver_fails_alike_without_a_bridge(wrapper: str) -> None:
    """The suite detects its async methods, which are there and raise."""
    bare = await report(sqlite_unbridged, lambda saver: saver, str)
    wrapped = await report(sqlite_unbridged, WRAPPERS[wrapper], str)
    assert bare["conformance_level"] == wrapped["conformance_level"] == "NONE"
    for capability in Capability:
        one, two = (found["results"][capability.value] for found in (bare, wrapped))
        assert {**one, "failures": len(one["failures"])} == {
            **two,
            "failures": len(two["failures"]),
        }
