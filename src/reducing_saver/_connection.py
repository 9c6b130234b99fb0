"""Open what a connection string names, to read; say in one line why it cannot be opened.

A password is never printed: what is said of a connection string is said of `masked(dsn)`.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore

from ._console import FailedError, RefusedError

ALLOWED = "postgresql://USER@HOST/DATABASE, or the path of a SQLite file"
AES_KEY = "LANGGRAPH_AES_KEY"
"""The environment variable that LangGraph's encrypting serializer reads."""

_SCHEME = re.compile(r"([a-z][a-z0-9]*)(?:\+\w+)?://", re.IGNORECASE)
_SECRET = re.compile(r"((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", re.IGNORECASE)
_SETTINGS = re.compile(r"\s*(host|hostaddr|dbname|user|service|port|password)\s*=")
_CONNECT_SECONDS = "10"


@dataclass(frozen=True, slots=True)
class Opened:
    """Hold a saver on a database, and its store where it has the tables of one."""

    saver: BaseCheckpointSaver[Any]
    store: BaseStore | None


def masked(dsn: str) -> str:
    """Return a connection string without its password, printable."""
    scheme, mark, rest = dsn.partition("://")
    if mark:
        end = re.search(r"[/?#]", rest)
        until = end.start() if end and "@" in rest[: end.start()] else len(rest)
        authority, path = rest[:until], rest[until:]
        users, at, host = authority.rpartition("@")
        user, colon, _ = users.partition(":")
        rest = f"{user}{':***' if colon else ''}{at}{host}{path}"
    hidden = _SECRET.sub(r"\1***", f"{scheme}{mark}{rest}")
    return "".join(letter if letter.isprintable() else "?" for letter in hidden)


def is_postgres(dsn: str) -> bool:
    """Tell whether this names a Postgres database; the path of a SQLite file otherwise.

    Raises `RefusedError` for what is neither.
    """
    scheme = _scheme(dsn)
    if scheme in ("postgres", "postgresql") or (_SETTINGS.match(dsn) and not Path(dsn).exists()):
        return True
    if scheme not in ("", "sqlite") or not dsn:
        raise RefusedError(f"{masked(dsn)!r} is no database; allowed is {ALLOWED}")
    return False


def plain(dsn: str) -> str:
    """Return what the libraries below understand: libpq's URL, or a path."""
    if is_postgres(dsn):
        return _SCHEME.sub("postgresql://", dsn, count=1)
    return _SCHEME.sub("", dsn, count=1).removeprefix("/") if _scheme(dsn) else dsn


@contextmanager
def opened(dsn: str, *, needs_store: bool = False) -> Iterator[Opened]:
    """Open a database to read; its checkpoints, or with `needs_store` only its store.

    Raises `RefusedError` where that is not there or cannot be read.
    """
    name, place = masked(dsn), plain(dsn)
    open_it = _postgres if is_postgres(dsn) else _sqlite
    needed = "store" if needs_store else "checkpoints"
    with failing(dsn, error_type=RefusedError), open_it(place, name, needed) as found:
        yield found


def check(dsn: str) -> None:
    """Raise `RefusedError` where a database cannot be reached or has no checkpoints."""
    with opened(dsn):
        pass


@contextmanager
def failing(dsn: str, *, error_type: type[Exception] = FailedError) -> Iterator[None]:
    """Raise this error, with one line, where the database fails while the block runs."""
    try:
        yield
    except Exception as error:
        kinds = [kind.__module__.partition(".")[0] for kind in type(error).__mro__]
        if not {"psycopg", "sqlite3"} & {*kinds}:
            raise
        raise error_type(f"{masked(dsn)}: {_said(error, dsn)}") from None


def _said(error: Exception, dsn: str) -> str:
    """Return what a database says, in one line and without the password."""
    said = (str(error).splitlines() or [""])[0] or type(error).__name__
    if is_postgres(dsn):
        from psycopg.conninfo import conninfo_to_dict

        if secret := str(conninfo_to_dict(plain(dsn)).get("password") or ""):
            return said.replace(secret, "***")
    return said


def _scheme(dsn: str) -> str:
    found = _SCHEME.match(dsn)
    return found[1].lower() if found else ""


def serde() -> SerializerProtocol | None:
    """Return the encrypting serializer where its key is set; it reads plain rows too."""
    if not os.environ.get(AES_KEY):
        return None
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    try:
        return EncryptedSerializer.from_pycryptodome_aes()
    except ImportError:
        raise RefusedError(f"{AES_KEY} is set; run: pip install pycryptodome") from None
    except ValueError:
        raise RefusedError(f"{AES_KEY} must be 16, 24 or 32 bytes long") from None


# SQLite


@contextmanager
def _sqlite(path: str, name: str, needed: str) -> Iterator[Opened]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.store.sqlite import SqliteStore
    except ModuleNotFoundError as error:
        raise _not_installed(error, "sqlite") from None
    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "no such file"
        raise RefusedError(f"{name}: {what}; allowed is {ALLOWED}")
    with closing(_read_only(path)) as connection, closing(_read_only(path)) as other:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        _require(tables, needed, name)
        saver, store = SqliteSaver(connection, serde=serde()), None
        saver.is_setup = True  # nothing is created in a file that is only read
        if "store" in tables:
            store = SqliteStore(other)
            store.is_setup = True
        yield Opened(saver, store)


def _read_only(path: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
    # Like the savers' own connections: used from other threads, under their lock.
    return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)


# Postgres


@contextmanager
def _postgres(dsn: str, name: str, needed: str) -> Iterator[Opened]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.store.postgres import PostgresStore
        from psycopg.rows import dict_row
    except ModuleNotFoundError as error:
        raise _not_installed(error, "postgres") from None
    settings = _settings(dsn, name)

    def connect() -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(
            **settings, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )

    with connect() as connection, connect() as other:
        connection.execute("SET default_transaction_read_only = on")
        tables = {one for one in ("checkpoints", "store") if _has(connection, one)}
        _require(tables, needed, name)
        # Not read-only: what reads of a store may renew the time to live of what is read.
        store = PostgresStore(other) if "store" in tables else None
        yield Opened(PostgresSaver(connection, serde=serde()), store)


def _settings(dsn: str, name: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        settings: dict[str, Any] = {**conninfo_to_dict(dsn)}
    except psycopg.Error:  # its text may quote a part of the password
        raise RefusedError(
            f"{name}: not understood; special characters in it are written as %XX"
        ) from None
    if "@" in str(settings.get("host") or ""):
        raise RefusedError(f"{name}: not understood; an @ in a password is written as %40")
    settings.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", _CONNECT_SECONDS))
    return settings


def _has(connection: Any, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS there", (table,)).fetchone()
    return bool(found["there"])


# Both


def _require(tables: set[str], needed: str, name: str) -> None:
    if needed not in tables:
        what = "checkpoint tables" if needed == "checkpoints" else "store tables"
        raise RefusedError(f"{name}: the database has no {what} of LangGraph")


def _not_installed(error: ModuleNotFoundError, extra: str) -> RefusedError:
    return RefusedError(
        f"{error.name} is not installed; run: pip install 'reducing-saver[{extra}]'"
    )
