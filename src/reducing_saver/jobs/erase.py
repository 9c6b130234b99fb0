"""Erase threads with all that belongs to them, then look whether anything is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from .._archive import Archive, place_of
from .._errors import ConfigurationError
from .ledger import TABLES
from .report import Erased
from .source import Source, source_of

_OWN = {
    "postgres": ("checkpoints", "checkpoint_blobs", "checkpoint_writes"),
    "sqlite": ("checkpoints", "writes"),
}
_COLUMNS = """
    SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema = ANY(current_schemas(false))
    AND data_type IN ('text', 'character varying', 'character', 'jsonb', 'json', 'uuid', 'ARRAY')
    ORDER BY 1, 2, 3
    """


def erase(
    saver_or_dsn: BaseCheckpointSaver[Any] | str,
    thread_ids: Sequence[str],
    *,
    archive: Archive | str | None = None,
    dry_run: bool = True,
    serde: SerializerProtocol | None = None,
) -> Erased:
    """Erase threads: checkpoints, writes, blobs, ledger, archive; a dry run by default.

    The archive in the same database is always erased; `archive` is one elsewhere. Afterwards
    every column of text or JSON in every table is searched for the ids, and what is still found is
    reported: rows of other tables of yours, say.
    """
    source = source_of(saver_or_dsn, serde=serde)
    if isinstance(thread_ids, str) or not isinstance(thread_ids, Sequence):
        raise ConfigurationError("thread_ids", thread_ids, "several thread ids")
    threads = [*dict.fromkeys(thread_ids)]
    if not all(isinstance(thread, str) and thread for thread in threads):
        raise ConfigurationError("thread_ids", thread_ids, "several thread ids, none empty")
    if not (archive is None or archive == "same" or isinstance(archive, Archive)):
        raise ConfigurationError("archive", archive, 'None, "same", or an archive')
    if not isinstance(dry_run, bool):
        raise ConfigurationError("dry_run", dry_run, "True or False")
    started = time.monotonic()
    with source.open(read_only=dry_run) as rows:
        tables = _Tables(source, rows)
        if dry_run:
            with rows.reading():
                counted = tables.count(threads)
            looked: Mapping[str, int] = {}
        else:
            # First the archive, as `delete_thread`: of what is half done, the thread is left.
            if isinstance(archive, Archive):
                for thread in threads:
                    archive.delete_thread(thread)
            with rows.writing():
                counted = tables.count(threads)
                tables.delete(threads)
            with rows.reading():
                looked = tables.search(threads)
        columns = tuple(f"{table}.{column}" for table, column, _ in tables.columns())
    found = {name: amount for name, amount in looked.items() if amount}
    spent = time.monotonic() - started
    return Erased(dry_run, source.backend, tuple(threads), counted, found, columns, spent)


class _Tables:
    """Count, delete and look for threads in the tables of a database."""

    def __init__(self, source: Source, rows: Any) -> None:
        self.is_postgres = source.backend == "postgres"
        self.connection = rows.connection
        self.ledger = source.ledger(rows)
        self.own = _OWN[source.backend]
        self.names = {table for table, _, _ in self.columns()}

    def count(self, threads: Sequence[str]) -> dict[str, int]:
        """Return how many rows of each table belong to the threads."""
        found = {}
        for table in (*self.own, *TABLES):
            if table in self.names and ("thread_id" in self._columns_of(table)):
                statement = self._count_statement(table, "thread_id")
                found[table] = sum(self._one(statement, (thread,)) for thread in threads)
        if "store" in self.names:
            found["store"] = sum(
                self._one(self._count_statement("store", "prefix"), (place,))
                for thread in threads
                for place in _places(thread)
            )
        return found

    def delete(self, threads: Sequence[str]) -> None:
        """Delete the rows that belong to the threads."""
        for thread in threads:
            for table in self.own:
                if table in self.names:
                    self._execute(self._delete_statement(table, "thread_id"), (thread,))
            for place in _places(thread) if "store" in self.names else ():
                self._execute(self._delete_statement("store", "prefix"), (place,))
        if TABLES[0] in self.names:
            self.ledger.forget(threads)

    def search(self, threads: Sequence[str]) -> dict[str, int]:
        """Return in how many rows of each column the ids, or labels made of them, stand."""
        found: dict[str, int] = {}
        for table, column, kind in self.columns():
            for thread in threads:
                for wanted in (thread, *(_places(thread) if column == "prefix" else ())):
                    amount = self._holds(table, column, kind, wanted)
                    name = f"{table}.{column}"
                    found[name] = found.get(name, 0) + amount
        return found

    def columns(self) -> list[tuple[str, str, str]]:
        """Return the columns that may hold an id: table, column, type."""
        if self.is_postgres:
            return [(t, c, kind) for _, t, c, kind in self.connection.execute(_COLUMNS).fetchall()]
        found = []
        tables = self.connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
            "ORDER BY name"
        ).fetchall()
        for (table,) in tables:
            listed = self.connection.execute(
                "SELECT name, type FROM pragma_table_info(?)", (table,)
            )
            found += [(table, name, kind) for name, kind in listed.fetchall()]
        return found

    def _columns_of(self, table: str) -> set[str]:
        return {column for name, column, _ in self.columns() if name == table}

    def _holds(self, table: str, column: str, kind: str, wanted: str) -> int:
        if self.is_postgres:
            from psycopg import sql

            names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
            text = {
                "jsonb": _IN_JSON,
                "json": _IN_JSON,
                "ARRAY": "SELECT count(*) FROM {table} WHERE %s = ANY({column}::text[])",
            }.get(kind, "SELECT count(*) FROM {table} WHERE {column}::text = %s")
            values = (wanted, wanted) if text is _IN_JSON else (wanted,)
            return self._one(sql.SQL(text).format(**names), values)
        if kind.upper() not in ("TEXT", "BLOB", "JSON", ""):
            return 0
        statement = _IN_SQLITE.format(table=_quoted(table), column=_quoted(column))
        return self._one(statement, (wanted, wanted, wanted))

    def _count_statement(self, table: str, column: str) -> Any:
        return self._statement("SELECT count(*) FROM {table} WHERE {column} = ", table, column)

    def _delete_statement(self, table: str, column: str) -> Any:
        return self._statement("DELETE FROM {table} WHERE {column} = ", table, column)

    def _statement(self, text: str, table: str, column: str) -> Any:
        """Return a statement of two constants of this module; the value is a parameter."""
        mark = "%s" if self.is_postgres else "?"
        return text.format(table=table, column=column) + mark

    def _one(self, statement: Any, values: Iterable[Any]) -> int:
        return int(self.connection.execute(statement, tuple(values)).fetchone()[0])

    def _execute(self, statement: Any, values: Iterable[Any]) -> None:
        self.connection.execute(statement, tuple(values))


_IN_JSON = """
    SELECT count(*) FROM {table} WHERE position(%s in {column}::text) > 0
    AND jsonb_path_exists({column}::jsonb, '$.** ? (@ == $id)', jsonb_build_object('id', %s::text))
    """
_IN_SQLITE = """
    SELECT count(*) FROM {table} WHERE CAST({column} AS TEXT) = ? OR (
        instr({column}, ?) > 0 AND json_valid(CAST({column} AS TEXT)) AND EXISTS (
            SELECT 1 FROM json_tree(CAST({table}.{column} AS TEXT)) WHERE atom = ?
        )
    )
    """


def _places(thread: str) -> list[str]:
    """Return where a store keeps the archive of a thread, as its tables write it."""
    return [
        ".".join(place_of(thread, kind))
        for kind in ("pending", "told", "segments", "wholes", "messages")
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
