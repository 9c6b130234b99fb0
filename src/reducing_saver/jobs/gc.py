"""Sweep what nobody names: blobs, writes of no checkpoint, archives whose thread is gone.

Nothing in a table of blobs tells when one was stored. So blobs go from threads that nobody has
gone on with for the grace; writes and archives name a checkpoint, whose id tells the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from .._archive import Archive, StoreArchive
from .._errors import ConfigurationError
from .._retain import floor, is_older, span
from ..rows.unnamed import LIST_UNNAMED
from .report import Swept
from .source import Source, source_of

_ORPHANS = """
    SELECT w.thread_id, w.checkpoint_ns, w.checkpoint_id, count(*), sum({length}) FROM {writes} AS w
    WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    ) GROUP BY 1, 2, 3
    """
_ORPHANS_POSTGRES = _ORPHANS.format(length="pg_column_size(w.blob)", writes="checkpoint_writes")
_ORPHANS_SQLITE = _ORPHANS.format(length="length(w.value)", writes="writes")
_DELETE_WRITES = """
    DELETE FROM {writes} WHERE thread_id = {p} AND checkpoint_ns = {p} AND checkpoint_id = {p}
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = {writes}.thread_id
        AND c.checkpoint_ns = {writes}.checkpoint_ns AND c.checkpoint_id = {writes}.checkpoint_id
    )
    """
_DELETE_POSTGRES = _DELETE_WRITES.format(writes="checkpoint_writes", p="%s")
_DELETE_SQLITE = _DELETE_WRITES.format(writes="writes", p="?")
_BLOB_THREADS = "SELECT DISTINCT thread_id FROM checkpoint_blobs ORDER BY 1"
_NEWEST = """
    SELECT thread_id, max(checkpoint_id) FROM checkpoints WHERE thread_id = ANY(%s) GROUP BY 1
    """
_DELETE_BLOBS = """
    DELETE FROM checkpoint_blobs AS b USING unnest(%s::text[], %s::text[], %s::text[], %s::text[])
        AS g(thread, space, channel, version)
    WHERE b.thread_id = g.thread AND b.checkpoint_ns = g.space AND b.channel = g.channel
    AND b.version = g.version
    """
_PAGE = 200


def gc(
    saver_or_dsn: BaseCheckpointSaver[Any] | str,
    *,
    archive: Archive | str | None = None,
    dry_run: bool = True,
    grace: str | timedelta = "24h",
    serde: SerializerProtocol | None = None,
) -> Swept:
    """Sweep what nobody names and that is older than the grace; a dry run by default.

    - `archive`: `"same"` or a `StoreArchive`: also the archives of threads that are gone.

    What is younger is counted as `waiting`: its checkpoint may be on its way.
    """
    source = source_of(saver_or_dsn, serde=serde)
    if not (archive is None or archive == "same" or isinstance(archive, StoreArchive)):
        allowed = 'None, "same", or a StoreArchive'
        raise ConfigurationError("archive", archive, allowed)
    if not isinstance(dry_run, bool):
        raise ConfigurationError("dry_run", dry_run, "True or False")
    before = floor(datetime.now(UTC) - span("grace", grace))
    started = time.monotonic()
    with source.open(read_only=dry_run) as rows:
        if not rows.has_tables():
            return Swept(dry_run, source.backend)
        sweep = _Sweep(source, rows, before, dry_run)
        sweep.writes()
        if source.backend == "postgres":
            sweep.blobs()
        if isinstance(archive, StoreArchive):
            sweep.archives(archive)
        elif archive == "same" and rows.has_store():
            sweep.archives(StoreArchive(rows.store()))
    return Swept(
        dry_run,
        source.backend,
        sweep.found["blobs"],
        sweep.found["blob_bytes"],
        sweep.found["writes"],
        sweep.found["write_bytes"],
        sweep.found["archives"],
        sweep.found["waiting"],
        seconds=time.monotonic() - started,
    )


class _Sweep:
    """Count what is swept, and with `dry_run` only that."""

    def __init__(self, source: Source, rows: Any, before: str, dry_run: bool) -> None:
        self.rows, self.before, self.dry_run = rows, before, dry_run
        self.is_postgres = source.backend == "postgres"
        names = ("blobs", "blob_bytes", "writes", "write_bytes", "archives", "waiting")
        self.found = dict.fromkeys(names, 0)

    def writes(self) -> None:
        """Sweep writes of no checkpoint."""
        with self.rows.reading():
            statement = _ORPHANS_POSTGRES if self.is_postgres else _ORPHANS_SQLITE
            orphans = self.rows.connection.execute(statement).fetchall()
        for *key, amount, size in orphans:
            if not is_older(key[2], self.before):
                self.found["waiting"] += amount
                continue
            self.found["writes"] += amount
            self.found["write_bytes"] += int(size or 0)
            if not self.dry_run:
                with self.rows.writing():
                    delete = _DELETE_POSTGRES if self.is_postgres else _DELETE_SQLITE
                    self.rows.connection.execute(delete, key)

    def blobs(self) -> None:
        """Sweep blobs that no checkpoint of an idle thread names."""
        threads = [row[0] for row in self.rows.connection.execute(_BLOB_THREADS).fetchall()]
        for start in range(0, len(threads), _PAGE):
            page = threads[start : start + _PAGE]
            if self.dry_run:
                with self.rows.reading():
                    self._unnamed(page)
            else:
                with self.rows.writing():
                    self._delete(self._unnamed(page))

    def _unnamed(self, threads: Sequence[str]) -> list[Sequence[Any]]:
        connection = self.rows.connection
        newest = dict(connection.execute(_NEWEST, ([*threads],)).fetchall())
        idle = []
        for *key, size in connection.execute(LIST_UNNAMED, {"threads": [*threads]}).fetchall():
            # A blob and its checkpoint are stored at once: without any, nobody is on the way.
            if key[0] in newest and not is_older(newest[key[0]], self.before):
                self.found["waiting"] += 1
                continue
            self.found["blobs"] += 1
            self.found["blob_bytes"] += int(size or 0)
            idle.append(key)
        return idle

    def _delete(self, keys: Sequence[Sequence[Any]]) -> None:
        if keys:
            columns = [list(column) for column in zip(*keys, strict=True)]
            self.rows.connection.execute(_DELETE_BLOBS, columns)

    def archives(self, archive: StoreArchive) -> None:
        """Sweep archives of threads that have no checkpoint, and have had time to store one."""
        archived = archive.threads()
        for start in range(0, len(archived), _PAGE):
            page = archived[start : start + _PAGE]
            there = {head.thread for head in self.rows.heads(page)}
            for thread in page:
                if thread in there:
                    continue
                if not all(is_older(id, self.before) for id in archive.checkpoints(thread)):
                    self.found["waiting"] += 1
                    continue
                self.found["archives"] += 1
                if not self.dry_run:
                    archive.delete_thread(thread)
