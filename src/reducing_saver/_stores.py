"""Know what LangGraph's stores can do: from beside an event loop, on one, on a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from time import monotonic
from typing import Any, TypeVar

from langgraph.store.base import BaseStore

T = TypeVar("T")

_SQLITE = "langgraph.store.sqlite"
# A loop that runs now and then is waited for as long; not when the program ends.
_PATIENCE = 2.0


def loop_beside(store: BaseStore) -> asyncio.AbstractEventLoop | None:
    """Return the loop that an async store works on, where that is not the one running here."""
    loop = getattr(store, "_loop", None)
    return loop if isinstance(loop, asyncio.AbstractEventLoop) and loop is not _here() else None


def has_async_door(store: BaseStore) -> bool:
    """Tell whether a store can be awaited; LangGraph's `SqliteStore` only raises then."""
    awaited = type(store).abatch
    own = awaited.__module__.startswith(_SQLITE) and awaited.__qualname__ == "SqliteStore.abatch"
    return not own


def needs_autocommit(store: BaseStore) -> bool:
    """Tell whether a SQLite store has a connection on which its own BEGIN fails.

    Every batch of langgraph-checkpoint-sqlite 3.1 starts with one, and reads and writes alike fail
    where Python has begun a transaction by itself.
    """
    if not any(kind.__module__.startswith(_SQLITE) for kind in type(store).__mro__):
        return False
    import sqlite3  # not with the library: a Python may lack it

    connection: Any = getattr(store, "conn", None)
    if type(connection).__module__.startswith("aiosqlite"):
        connection = connection._connection
    if not isinstance(connection, sqlite3.Connection):
        return False
    try:
        autocommit = getattr(connection, "autocommit", None)  # Python 3.12
    except sqlite3.ProgrammingError:
        # Only the thread of an aiosqlite connection may ask that; anyone the other.
        autocommit = None
    if isinstance(autocommit, bool):
        return not autocommit
    return connection.isolation_level is not None


def shares_connection(store: BaseStore, saver: object) -> bool:
    """Tell whether a store works on the one connection of a saver.

    Each of LangGraph's has a lock of its own, and a run calls them from several threads at once.
    """
    held = getattr(store, "conn", None)
    return held is not None and held is getattr(saver, "conn", None) and not _is_pool(held)


def _is_pool(connection: object) -> bool:
    return type(connection).__module__.startswith("psycopg_pool")


def runs_on_loop() -> bool:
    """Tell whether an event loop runs in this thread."""
    return _here() is not None


def run_on(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the loop of another thread and wait; RuntimeError where it has stopped."""
    _wait_for(loop)
    asked = asyncio.run_coroutine_threadsafe(make(), loop)
    while not wait([asked], timeout=0.5).done:
        try:
            _wait_for(loop)
        except RuntimeError:
            asked.cancel()
            raise
    return asked.result()


def _wait_for(loop: asyncio.AbstractEventLoop) -> None:
    end = monotonic() + _PATIENCE
    while not loop.is_running():
        if loop.is_closed() or monotonic() > end or not threading.main_thread().is_alive():
            raise RuntimeError("the event loop of the store has stopped")
        threading.Event().wait(0.02)


def _here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
