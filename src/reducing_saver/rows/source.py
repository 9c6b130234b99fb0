"""Find the database behind a saver or a connection string, and open connections to it.

Jobs and retention have connections of their own. A saver's may be in pipeline mode or shared with a
store: what another thread writes meanwhile would be rolled back with our transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from .._errors import ConfigurationError
from .._forwarding import ForwardingSaver, opening_of

_ALLOWED = (
    "a PostgresSaver, a SqliteSaver, their async twins, a ReducingSaver around one, "
    "a postgresql:// URL, or the path of a SQLite file"
)
_PATIENCE = 30.0
_SQLITE = ("langgraph.checkpoint.sqlite", "langgraph.checkpoint.sqlite.aio")

Kind = Literal["postgres", "sqlite"]


@dataclass(frozen=True, slots=True)
class Source:
    """Hold how a database is reached.

    - `backend`: its kind; `dsn`: what opens it anywhere, None where only `shared` does.
    - `own_serde`: what wrote its values, where that is not the default one.
    - `shared`: a saver's connection, where the database is in memory, and its lock.
    - `path`: of schemas, as a saver has set it (Postgres).
    """

    backend: Kind
    dsn: str | None
    own_serde: SerializerProtocol | None = None
    shared: tuple[Any, Any] | None = None
    path: str | None = None

    @property
    def serde(self) -> SerializerProtocol:
        """Return what reads and writes its values."""
        return JsonPlusSerializer() if self.own_serde is None else self.own_serde

    @contextmanager
    def open(self, *, read_only: bool = False) -> Iterator[Any]:
        """Give rows over a connection of their own, closed at the end."""
        rows = self.connect(read_only=read_only)
        try:
            yield rows
        finally:
            rows.close()

    def connect(self, *, read_only: bool = False) -> Any:
        """Return rows over a connection of their own, to be closed."""
        if self.backend == "postgres":
            from .postgres import PostgresRows
            from .postgres import connect as connect_postgres

            return PostgresRows(connect_postgres(self.dsn or "", path=self.path), self.serde)
        from .sqlite import SqliteRows, connect

        if self.shared is not None:
            connection, lock = self.shared
            return SqliteRows(connection, self.serde, lock=lock)
        return SqliteRows(connect(self.dsn or "", read_only=read_only), self.serde)


def source_of(given: object, *, serde: SerializerProtocol | None = None) -> Source:
    """Return how the database of a saver, or behind a connection string, is reached."""
    while isinstance(given, ForwardingSaver):
        given = given.inner
    if isinstance(given, str | Path):
        return _named(str(given), serde)
    if opening := opening_of(given, "saver", "report = compact(saver, ...)"):
        hint = f"saver is a context manager that opens one, and no saver.{opening}"
        raise ConfigurationError("saver", given, _ALLOWED, said=hint)
    if not isinstance(given, BaseCheckpointSaver) or kind_of(given) is None:
        raise ConfigurationError("saver", given, _ALLOWED)
    said = place(given)
    answer = said if isinstance(said, str) else _ask(given, said)
    return placed(given, answer, serde=serde)


def kind_of(saver: object) -> Kind | None:
    """Return what a saver stores into, where its rows are known."""
    modules = [kind.__module__ for kind in type(saver).__mro__]
    if "langgraph.checkpoint.postgres.shallow" in modules:
        raise ConfigurationError("saver", saver, "a PostgresSaver: a shallow one has no history")
    if any(name.startswith("langgraph.checkpoint.postgres") for name in modules):
        return "postgres"
    return "sqlite" if any(name in modules for name in _SQLITE) else None


def place(saver: Any) -> str | Callable[[], Coroutine[Any, Any, str]]:
    """Ask a saver for its schemas, or for its file; an async one is to be asked on its loop."""
    asks_later = hasattr(saver, "loop")
    if kind_of(saver) == "postgres":
        return (lambda: _path_of(saver)) if asks_later else _path(saver)
    if asks_later:
        return lambda: _file_of(saver)
    with saver.lock:
        return _main(saver.conn.execute("PRAGMA database_list").fetchall())


def placed(saver: Any, answer: str, *, serde: SerializerProtocol | None = None) -> Source:
    """Return how the database of a saver is reached, with what it said of its place."""
    serde = _own(serde or saver.serde)
    if kind_of(saver) == "postgres":
        return Source("postgres", _dsn(saver), serde, path=answer)
    if answer:
        return Source("sqlite", answer, serde)
    if hasattr(saver, "loop"):
        raise ConfigurationError("saver", saver, "an async saver of a file, not of memory")
    return Source("sqlite", None, serde, shared=(saver.conn, saver.lock))


def _own(serde: SerializerProtocol) -> SerializerProtocol | None:
    """Return a serializer unless it is LangGraph's: that cannot be sent to another process.

    One made by a process for itself reads the same lists: a saver's allow-lists are about the
    types of other channels, which keep their bytes.
    """
    plain = type(serde) is JsonPlusSerializer and not serde.pickle_fallback
    return None if plain else serde


def _named(text: str, serde: SerializerProtocol | None) -> Source:
    used = None if serde is None else _own(serde)
    if text.startswith(("postgresql://", "postgres://")) or "dbname=" in text:
        return Source("postgres", text, used)
    if "://" in text and not text.startswith("sqlite://"):
        raise ConfigurationError("saver", text.partition("://")[0] + "://...", _ALLOWED)
    path = unquote(text.removeprefix("sqlite://").removeprefix("/")) if "://" in text else text
    if not Path(path).is_file():
        raise ConfigurationError("saver", text, "the path of a SQLite file that is there")
    return Source("sqlite", path, used)


async def _file_of(saver: Any) -> str:
    async with saver.conn.execute("PRAGMA database_list") as cursor:
        return _main(await cursor.fetchall())


def _main(listed: Any) -> str:
    return str(next((row[2] for row in listed if row[1] == "main"), ""))


def _dsn(saver: Any) -> str:
    from psycopg.conninfo import make_conninfo

    held = saver.conn
    if hasattr(held, "conninfo"):  # a pool; its keywords are for connecting
        names = {"autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"}
        given, more = _told(held.conninfo), _told(held.kwargs) or {}
        return make_conninfo(given, **{k: v for k, v in more.items() if k not in names})
    known = held.info.get_parameters()
    password = held.info.password
    return make_conninfo("", **known, **({"password": password} if password else {}))


def _told(value: Any) -> Any:
    """Return what a pool was told, or what the function says that it was given instead."""
    return value() if callable(value) else value


def _path(saver: Any) -> str:
    with saver._cursor() as cursor:
        return str(cursor.execute("SHOW search_path").fetchone()["search_path"])


async def _path_of(saver: Any) -> str:
    async with saver._cursor() as cursor:
        await cursor.execute("SHOW search_path")
        return str((await cursor.fetchone())["search_path"])


def _ask(saver: Any, make: Callable[[], Any]) -> str:
    """Ask an async saver something on its own loop."""
    loop = saver.loop
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        allowed = "called in a thread, as await asyncio.to_thread(compact, saver, ...)"
        raise ConfigurationError("saver", saver, allowed)
    if not loop.is_running():
        return str(loop.run_until_complete(make()))
    return str(asyncio.run_coroutine_threadsafe(make(), loop).result(_PATIENCE))
