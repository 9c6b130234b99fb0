"""Find the database behind a saver or a connection string, and open connections to it.

A job has connections of its own: a saver's may be in use, in another thread's hands, or in
pipeline mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from .._errors import ConfigurationError
from .._forwarding import ForwardingSaver
from .ledger import Ledger

_ALLOWED = (
    "a PostgresSaver, a SqliteSaver, their async twins, a ReducingSaver around one, "
    "a postgresql:// URL, or the path of a SQLite file"
)
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Source:
    """Hold how a database is reached.

    - `backend`: its kind; `dsn`: what opens it anywhere, None where only `shared` does.
    - `own_serde`: what wrote its values, where that is not the default one.
    - `shared`: a saver's connection, where the database is in memory, and its lock.
    - `path`: of schemas, as a saver has set it (Postgres).
    """

    backend: Literal["postgres", "sqlite"]
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
        rows = self._rows(read_only=read_only)
        try:
            yield rows
        finally:
            rows.close()

    def _rows(self, *, read_only: bool) -> Any:
        if self.backend == "postgres":
            from ..rows.postgres import PostgresRows
            from ..rows.postgres import connect as connect_postgres

            return PostgresRows(connect_postgres(self.dsn or "", path=self.path), self.serde)
        from ..rows.sqlite import SqliteRows, connect

        if self.shared is not None:
            connection, lock = self.shared
            return SqliteRows(connection, self.serde, lock=lock)
        return SqliteRows(connect(self.dsn or "", read_only=read_only), self.serde)

    def ledger(self, rows: Any) -> Ledger:
        """Return the ledger over the connection of rows."""
        return Ledger(rows.connection, postgres=self.backend == "postgres")


def source_of(given: object, *, serde: SerializerProtocol | None = None) -> Source:
    """Return how the database of a saver, or behind a connection string, is reached."""
    while isinstance(given, ForwardingSaver):
        given = given.inner
    if isinstance(given, str | Path):
        return _named(str(given), serde)
    if not isinstance(given, BaseCheckpointSaver):
        raise ConfigurationError("saver", given, _ALLOWED)
    serde = _own(serde or given.serde)
    modules = [kind.__module__ for kind in type(given).__mro__]
    if any(name.startswith("langgraph.checkpoint.postgres") for name in modules):
        return _of_postgres(given, modules, serde)
    if "langgraph.checkpoint.sqlite" in modules:
        return _of_sqlite(given, serde)
    if "langgraph.checkpoint.sqlite.aio" in modules:
        path = _ask(given, lambda: _file_of(given))
        return Source("sqlite", _there(path, given), serde)
    raise ConfigurationError("saver", given, _ALLOWED)


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


def _of_sqlite(saver: Any, serde: SerializerProtocol | None) -> Source:
    with saver.lock:
        path = _main(saver.conn.execute("PRAGMA database_list").fetchall())
    if path:
        return Source("sqlite", path, serde)
    return Source("sqlite", None, serde, shared=(saver.conn, saver.lock))


async def _file_of(saver: Any) -> str:
    async with saver.conn.execute("PRAGMA database_list") as cursor:
        return _main(await cursor.fetchall())


def _main(listed: Any) -> str:
    return str(next((row[2] for row in listed if row[1] == "main"), ""))


def _there(path: str, saver: object) -> str:
    if not path:
        raise ConfigurationError("saver", saver, "an async saver of a file, not of memory")
    return path


def _of_postgres(saver: Any, modules: list[str], serde: SerializerProtocol | None) -> Source:
    if "langgraph.checkpoint.postgres.shallow" in modules:
        raise ConfigurationError("saver", saver, "a PostgresSaver: a shallow one has no history")
    from psycopg.conninfo import make_conninfo

    held = saver.conn
    if hasattr(held, "conninfo"):  # a pool; its keywords are for connecting
        names = {"autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"}
        more = {k: v for k, v in (held.kwargs or {}).items() if k not in names}
        dsn = make_conninfo(held.conninfo, **more)
    else:
        known = held.info.get_parameters()
        password = held.info.password
        dsn = make_conninfo("", **known, **({"password": password} if password else {}))
    path = _ask(saver, lambda: _path_of(saver)) if "aio" in modules[0] else _path(saver)
    return Source("postgres", dsn, serde, path=path)


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
