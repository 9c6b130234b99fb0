"""Read and write the rows of `PostgresSaver` (langgraph-checkpoint-postgres 3.2).

What is within `writing` is one REPEATABLE READ transaction: at READ COMMITTED a delete sees what a
live run stored since the kept checkpoints were chosen (191 of 401 turns were lost in a trial). A
list is rewritten in its row, under the version it has, so no checkpoint, stored or about to be,
names a row that is not there. Every statement works on all threads of a chunk at once, and asks
for them by `thread_id`, which is what the primary keys begin with. What a checkpoint that is
deleted named stays until a later transaction looks again who names it (`unnamed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import orjson
import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import BaseStore
from psycopg.types.json import Jsonb

from .._archive import Parcel, rows_of
from .._channel import may_wait
from .._retain import Key, Row, is_older
from . import unnamed
from .backend import (
    Edit,
    Head,
    Value,
    ValueKey,
    at,
    deltas_of,
    folded_lists,
    inherited,
    may_fold,
    owed_to,
    whole_lists,
)
from .late import NONE_LATE, Late, sort_out
from .packed import put_list
from .rewrite import Rewrite
from .thread import Bytes, Kept, Look, Skip, Thread, chosen, followed, severed, state_of

_LOCK_TIMEOUT = "5s"
_IDLE_TIMEOUT = "60s"
_TASKS = "__pregel_tasks"
_PAGE = 1_000

_LIMITS = """
    SELECT set_config('lock_timeout', %s, true),
        set_config('idle_in_transaction_session_timeout', %s, true)
    """
_HEADS = """
    SELECT thread_id, max(checkpoint_id) FROM checkpoints
    WHERE %(threads)s::text[] IS NULL OR thread_id = ANY(%(threads)s::text[])
    GROUP BY thread_id ORDER BY 2, 1
    """
# Metadata is asked for where it decides: who starts a turn, what a call started from, and what
# stands before a checkpoint whose parent is gone.
_ROWS = """
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,
        CASE WHEN %(sources)s THEN metadata ->> 'source' END,
        CASE WHEN checkpoint_ns LIKE '%%:%%' THEN metadata #>> '{parents,""}' END,
        CASE WHEN parent_checkpoint_id IS NULL THEN metadata #>> '{reducing_saver,ancestor}' END,
        CASE WHEN %(inherits)s THEN metadata #> '{reducing_saver,segments}' END,
        pg_column_size(checkpoint) + pg_column_size(metadata)
    FROM checkpoints WHERE thread_id = ANY(%(threads)s)
    """
# One row for the writes of all checkpoints that are stored, and one for each that is not.
_WRITES = """
    SELECT w.thread_id, CASE WHEN c.thread_id IS NULL THEN w.checkpoint_ns END,
        CASE WHEN c.thread_id IS NULL THEN w.checkpoint_id END, sum(pg_column_size(w.blob))
    FROM checkpoint_writes AS w LEFT JOIN checkpoints AS c
    ON c.thread_id = ANY(%(threads)s) AND c.thread_id = w.thread_id
    AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    WHERE w.thread_id = ANY(%(threads)s) GROUP BY 1, 2, 3
    """
_ORPHANED = """
    SELECT DISTINCT w.thread_id FROM checkpoint_writes AS w
    WHERE w.thread_id = ANY(%(threads)s) AND NOT EXISTS (
        SELECT 1 FROM checkpoints AS c
        WHERE c.thread_id = ANY(%(threads)s) AND c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    )
    """
_VALUES = """
    SELECT thread_id, sum(pg_column_size(blob)) FROM checkpoint_blobs
    WHERE thread_id = ANY(%s) GROUP BY 1
    """
_KEPT = """
    SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.checkpoint, c.metadata,
        (c.checkpoint ->> 'v')::int < 4 AND EXISTS (
            SELECT 1 FROM checkpoint_writes w
            WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
            AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = %s
        )
    FROM unnest(%b::text[], %b::text[], %b::text[]) AS k(thread, space, id)
    CROSS JOIN LATERAL (
        SELECT * FROM checkpoints
        WHERE thread_id = k.thread AND checkpoint_ns = k.space AND checkpoint_id = k.id LIMIT 1
    ) AS c
    """
_NAMED_VALUES = """
    SELECT b.thread_id, b.checkpoint_ns, b.channel, b.version, b.type, pg_column_size(b.blob),
        CASE WHEN n.wanted THEN b.blob END
    FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %s::bool[])
        AS n(thread, space, channel, version, wanted)
    CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blobs
        WHERE thread_id = n.thread AND checkpoint_ns = n.space AND channel = n.channel
        AND version = n.version LIMIT 1
    ) AS b
    """
_SAID = """
    SELECT w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.channel, w.type,
        pg_column_size(w.blob), CASE WHEN w.channel = ANY(%s) THEN w.blob END
    FROM unnest(%b::text[], %b::text[], %b::text[]) AS k(thread, space, id)
    JOIN checkpoint_writes AS w
    ON w.thread_id = k.thread AND w.checkpoint_ns = k.space AND w.checkpoint_id = k.id
    """
_REWRITE = """
    UPDATE checkpoint_blobs AS b SET type = u.type, blob = u.blob
    FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[])
        AS u(thread, space, channel, version, type, blob)
    WHERE b.thread_id = u.thread AND b.checkpoint_ns = u.space AND b.channel = u.channel
    AND b.version = u.version
    """
_SNAPSHOT = """
    INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[])
    ON CONFLICT (thread_id, checkpoint_ns, channel, version)
    DO UPDATE SET type = excluded.type, blob = excluded.blob
    """
_DESCRIBE = """
    UPDATE checkpoints AS c SET
        parent_checkpoint_id = CASE WHEN u.severed THEN NULL ELSE c.parent_checkpoint_id END,
        metadata = coalesce(u.metadata, c.metadata),
        checkpoint = CASE WHEN u.snapshots IS NULL THEN c.checkpoint
            ELSE jsonb_set(c.checkpoint, '{channel_values}',
                coalesce(c.checkpoint -> 'channel_values', '{}') || u.snapshots) END
    FROM unnest(%b::text[], %b::text[], %b::text[], %s::bool[], %b::jsonb[], %b::jsonb[])
        AS u(thread, space, id, severed, metadata, snapshots)
    WHERE c.thread_id = u.thread AND c.checkpoint_ns = u.space AND c.checkpoint_id = u.id
    """
# Writes go by the checkpoints deleted: a run may have stored some before their checkpoint.
_DELETE_CHECKPOINTS = """
    WITH gone AS (
        DELETE FROM checkpoints AS c WHERE c.thread_id = ANY(%(threads)s) AND NOT EXISTS (
            SELECT 1 FROM unnest(%(kept)b::text[], %(spaces)b::text[], %(ids)b::text[])
                AS k(thread, space, id)
            WHERE k.thread = c.thread_id AND k.space = c.checkpoint_ns AND k.id = c.checkpoint_id
        ) RETURNING c.thread_id, c.checkpoint_ns, c.checkpoint_id
    )
    DELETE FROM checkpoint_writes AS w USING gone AS g
    WHERE w.thread_id = ANY(%(threads)s) AND w.thread_id = g.thread_id
    AND w.checkpoint_ns = g.checkpoint_ns AND w.checkpoint_id = g.checkpoint_id
    """
# Of one thread, a few at a time: rows are looked up by their keys, never joined.
_GONE = """
    DELETE FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = ANY(%s)
    """
_GONE_WRITES = """
    DELETE FROM checkpoint_writes
    WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = ANY(%s)
    """
_LEFT = """
    SELECT checkpoint_id,
        coalesce(parent_checkpoint_id, metadata #>> '{reducing_saver,ancestor}')
    FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s
    """
_FOLLOW = """
    UPDATE checkpoints SET parent_checkpoint_id = NULL, metadata = CASE
        WHEN %(before)s::text IS NULL THEN metadata
        ELSE jsonb_set(metadata, '{reducing_saver}', coalesce(metadata -> 'reducing_saver', '{}')
            || jsonb_build_object('ancestor', %(before)s::text)) END
    WHERE thread_id = %(thread)s AND checkpoint_ns = %(space)s AND checkpoint_id = %(id)s
    """


_ARCHIVE = """
    INSERT INTO store (prefix, key, value, created_at, updated_at)
    SELECT u.prefix, u.key, u.value::jsonb, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP
    FROM unnest(%b::text[], %b::text[], %b::text[]) AS u(prefix, key, value)
    ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
    """


class Blob(NamedTuple):
    """Hold a stored value, what it takes, and the value itself where it was asked for."""

    kind: str
    size: int
    data: bytes | None


@dataclass(slots=True)
class _Read:
    """Gather what is read of one thread."""

    rows: dict[Key, Row] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)
    held: dict[Key, Kept] = field(default_factory=dict)
    blobs: dict[ValueKey, Blob] = field(default_factory=dict)
    parentless: set[Key] = field(default_factory=set)
    segments: dict[Key, Mapping[str, str]] = field(default_factory=dict)
    orphans: dict[Key, int] = field(default_factory=dict)
    late: Late = NONE_LATE
    writes: int = 0
    values: int = 0
    kept_writes: int = 0
    skip: Skip | None = None
    keys: frozenset[Key] = frozenset()
    followed: Collection[tuple[str, str | None]] = frozenset()

    def needs(self, key: Key) -> bool:
        return self.skip is None and bool(self.rows[key].needs)

    def is_young(self, floor: str | None) -> bool:
        return floor is not None and not all(is_older(key.id, floor) for key in self.rows)

    def bytes(self, keys: frozenset[Key]) -> Bytes:
        kept = sum(self.sizes[key] for key in keys)
        named = {
            (key.namespace, channel, str(version))
            for key in keys
            for channel, version in self.held[key].checkpoint["channel_versions"].items()
        }
        stays = sum(self.blobs[place].size for place in named & self.blobs.keys())
        waiting = self.orphans.keys() - {*self.late.swept}
        written = self.kept_writes + sum(self.orphans[key] for key in waiting)
        return Bytes(
            old_versions=max(0, self.values - stays),
            writes=max(0, self.writes - written),
            checkpoints=sum(self.sizes.values()) - kept,
            stays=stays + written + kept,
        )


def connect(dsn: str, *, path: str | None = None) -> psycopg.Connection[Any]:
    """Open a connection; `path` are the schemas to look in, as `search_path` says them."""
    connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
    try:
        if path is not None:
            connection.execute("SELECT set_config('search_path', %s, false)", (path,))
    except BaseException:
        connection.close()
        raise
    return connection


class PostgresRows:
    """Read and write threads over a connection, which it closes."""

    name = "postgres"
    shares_values = True

    def __init__(self, connection: psycopg.Connection[Any], serde: SerializerProtocol) -> None:
        self.connection, self.serde = connection, serde

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do what is within in one transaction that sees one state of the database."""
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.connection.execute(_LIMITS, (_LOCK_TIMEOUT, _IDLE_TIMEOUT))
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what is within from one state of the database, and write nothing."""
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self.connection.execute(_LIMITS, (_LOCK_TIMEOUT, _IDLE_TIMEOUT))
            yield

    def has_tables(self) -> bool:
        """Tell whether a saver was set up here."""
        found = self._all("SELECT to_regclass('checkpoints') IS NOT NULL", ())
        return bool(found[0][0])

    def heads(self, threads: Sequence[str] | None = None) -> list[Head]:
        """Return all threads, or those of these that are there, oldest head first.

        UUIDv6 sorts by time, and rows of one time stand together: in any other order the log is
        twice as long.
        """
        asked = {"threads": None if threads is None else [*threads]}
        return [Head(*row) for row in self._all(_HEADS, asked)]

    def orphaned(self, threads: Sequence[str]) -> set[str]:
        """Return those of these threads that have writes of a checkpoint that is not stored."""
        found = set[str]()
        for start in range(0, len(threads), _PAGE):
            page = {"threads": [*threads[start : start + _PAGE]]}
            found |= {thread for (thread,) in self._all(_ORPHANED, page)}
        return found

    def load(self, threads: Sequence[str], look: Look) -> list[Thread]:
        """Return what has to be known of threads; one that cannot be read says so."""
        found = {thread: _Read() for thread in threads}
        self._list(found, look)
        for read in found.values():
            read.skip = Skip.YOUNG if read.is_young(look.young) else None
        todo = {thread: read for thread, read in found.items() if read.skip is None}
        for read in todo.values():
            read.followed = followed(read.rows.values())
        self._weigh(todo)
        for thread, read in todo.items():
            read.late = sort_out(
                read.orphans.keys(),
                read.rows,
                now=look.now,
                deleted=partial(look.deleted, thread),
            )
            read.skip = Skip.UNPUT if read.late.unput else None
        self._keep(todo, look)
        return [_thread(thread, read, look) for thread, read in found.items()]

    def _list(self, found: Mapping[str, _Read], look: Look) -> None:
        asked = {
            "sources": look.retain.sources,
            "inherits": look.inherits,
            "threads": [*found],
        }
        for thread, space, id, parent, source, root, ancestor, segments, size in self._all(
            _ROWS, asked
        ):
            key, read = Key(space, id), found[thread]
            read.rows[key] = Row(key, parent or ancestor, source, root)
            if ancestor:
                read.parentless.add(key)
            if segments:
                read.segments[key] = segments
            read.sizes[key] = size

    def _weigh(self, found: Mapping[str, _Read]) -> None:
        for thread, space, id, size in self._all(_WRITES, {"threads": [*found]}):
            found[thread].writes += int(size or 0)
            if id is not None:
                found[thread].orphans[Key(space, id)] = int(size or 0)
        for thread, size in self._all(_VALUES, ([*found],)):
            found[thread].values = int(size or 0)

    def _keep(self, found: Mapping[str, _Read], look: Look) -> None:
        """Read the checkpoints that stay, and those that they need, until there are no more."""
        open_threads = {thread: read for thread, read in found.items() if read.skip is None}
        while open_threads:
            fresh = []
            for thread, read in open_threads.items():
                read.keys = chosen(read.rows.values(), look)
                fresh += [(thread, key) for key in read.keys - read.held.keys()]
            if not fresh:
                return
            rows = self._all(_KEPT, (_TASKS, *_columns([(t, *key) for t, key in fresh], 3)))
            said = self._values(found, rows, fresh, look)
            for row in rows:
                if found[row[0]].skip is None:
                    self._read(found[row[0]], row, said, look)
            again = {thread for thread, key in fresh if found[thread].needs(key)}
            open_threads = {thread: found[thread] for thread in again}

    def _values(
        self,
        found: Mapping[str, _Read],
        rows: Sequence[Any],
        keys: Sequence[tuple[str, Key]],
        look: Look,
    ) -> dict[tuple[str, Key], list[Any]]:
        """Read what checkpoints name, and return what pending writes say."""
        channels = look.channels
        named = {
            (thread, space, channel, str(version), channel in channels or may_wait(channel))
            for thread, space, _, checkpoint, *_ in rows
            for channel, version in checkpoint["channel_versions"].items()
        }
        columns = _columns([(t, *key) for t, key in keys], 3)
        said: dict[tuple[str, Key], list[Any]] = defaultdict(list)
        for thread, space, channel, version, kind, size, data in self._all(
            _NAMED_VALUES, _columns(sorted(named), 5)
        ):
            found[thread].blobs[space, channel, version] = Blob(kind, size or 0, data)
        for thread, space, id, channel, kind, size, data in self._all(
            _SAID, ([*channels], *columns)
        ):
            said[thread, Key(space, id)].append((channel, kind, data))
            found[thread].kept_writes += size or 0
        return said

    def _read(
        self,
        read: _Read,
        row: Sequence[Any],
        said: Mapping[tuple[str, Key], list[Any]],
        look: Look,
    ) -> None:
        thread, space, id, checkpoint, metadata, sends = row
        key = Key(space, id)
        try:
            one = self._kept(read, key, checkpoint, metadata, said.get((thread, key), []), look)
            folded = self._folded(thread, one, look)
        except psycopg.Error:
            raise
        except Exception:
            read.skip = Skip.UNREADABLE
            return
        segments = inherited(one, read.rows, read.segments)
        if folded or segments:
            one = replace(one, folded=folded, segments=segments)
        read.held[key] = one
        needs = [*one.record.owed, *filter(None, [one.record.before])]
        needs += owed_to(one, read.rows)
        if sends and one.parent:
            needs.append(one.parent)
        read.rows[key] = read.rows[key]._replace(needs=tuple(needs))

    def _kept(
        self,
        read: _Read,
        key: Key,
        checkpoint: Any,
        metadata: Any,
        said: Sequence[tuple[str, str, bytes | None]],
        look: Look,
    ) -> Kept:
        values = dict(checkpoint.get("channel_values") or {})
        stored: dict[str, tuple[str, bytes]] = {}
        sizes: dict[str, int] = {}
        known = {*values}
        for channel, version in checkpoint["channel_versions"].items():
            blob = read.blobs.get((key.namespace, channel, str(version)))
            if blob is None or blob.kind == "empty":
                known -= {channel} if values.get(channel) is True else set()
                continue
            known.add(channel)
            if blob.data is not None:
                values[channel] = self.serde.loads_typed((blob.kind, blob.data))
                stored[channel], sizes[channel] = (blob.kind, blob.data), blob.size
        writes = [
            (channel, self.serde.loads_typed((kind, data)))
            for channel, kind, data in said
            if data is not None
        ]
        whole = cast(Checkpoint, {**checkpoint, "channel_values": values})
        return Kept(
            key,
            whole,
            metadata,
            None if key in read.parentless else read.rows[key].parent,
            tuple(writes),
            len(said),
            deltas_of(checkpoint, metadata, known),
            tip=key not in read.followed,
            stored=stored,
            sizes=sizes,
        )

    def _folded(self, thread: str, one: Kept, look: Look) -> dict[str, list[Any]]:
        if not may_fold(one, look):
            return whole_lists(one, look)
        saver = self.saver()
        return folded_lists(saver, saver.get_tuple(at(thread, one.key)), one, look)

    def edit(self, thread: Thread, rewrite: Rewrite) -> Edit:
        """Return what is to be written of a thread. Writes nothing."""
        held = {one.key: one for one in thread.kept}
        values: dict[ValueKey, Value] = {}
        snapshots: dict[ValueKey, Value] = {}
        freed = 0
        for change in rewrite.changes:
            one, space = held[change.key], change.key.namespace
            for name, (old, new) in change.lists.items():
                channel, _, key = name.partition(".")
                version = str(one.checkpoint["channel_versions"][channel])
                place = (space, channel, version)
                if place in values and not key:
                    continue  # another checkpoint shares it
                before, path = one.placed(name)
                if place in values:
                    before = values[place][3:]
                stored = put_list(before, path, old, new, self.serde)
                values[place] = Value(*place, *stored)
                freed += one.sizes[channel] * (len(before[1]) - len(stored[1])) // len(before[1])
            for channel, messages in change.snapshots.items():
                version = str(one.checkpoint["channel_versions"][channel])
                stored = self.serde.dumps_typed(_DeltaSnapshot(messages))
                snapshots[space, channel, version] = Value(space, channel, version, *stored)
        size = replace(thread.bytes, evicted=freed, stays=thread.bytes.stays - freed)
        return Edit(thread, rewrite, tuple(values.values()), size, tuple(snapshots.values()))

    def apply(self, edits: Sequence[Edit]) -> None:
        """Rewrite what stays and delete what goes; only within `writing`."""
        if not edits:
            return
        threads = [edit.thread.id for edit in edits]
        values = [(edit.thread.id, *value) for edit in edits for value in edit.values]
        snapshots = [(edit.thread.id, *value) for edit in edits for value in edit.snapshots]
        described = [row for edit in edits for row in _described(edit)]
        kept = [(edit.thread.id, *key) for edit in edits for key in edit.thread.keys]
        owners, spaces, ids = _columns(kept, 3)
        gone = {"threads": threads, "kept": owners, "spaces": spaces, "ids": ids}
        if values:
            self._do(_REWRITE, _columns(values, 6))
        if snapshots:
            self._do(_SNAPSHOT, _columns(snapshots, 6))
        if described:
            self._do(_DESCRIBE, _columns(described, 6))
        self._do(_DELETE_CHECKPOINTS, gone)
        for edit in edits:
            self.sweep(edit.thread.id, edit.thread.swept)

    def free(self, threads: Sequence[str]) -> None:
        """Delete the values of threads that no checkpoint names; only within `writing`."""
        self._do(unnamed.DELETE_UNNAMED, {"threads": [*threads]})

    def unnamed(self, thread: str) -> list[ValueKey]:
        """Return the values of a thread that no checkpoint names."""
        found = self._all(unnamed.LIST_UNNAMED, {"threads": [thread]})
        return [(space, channel, version) for _, space, channel, version, _ in found]

    def free_still(self, thread: str, values: Sequence[ValueKey]) -> None:
        """Delete those of these values that no checkpoint names; only within `writing`."""
        spaces, channels, versions = _columns(values, 3)
        listed = {"spaces": spaces, "channels": channels, "versions": versions}
        self._do(unnamed.DELETE_STILL_UNNAMED, {"threads": [thread], **listed})

    def delete(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete these checkpoints of a thread with their writes; their values are left.

        Also by a job that has deleted others of the thread before, and will delete values soon.
        """
        for space, ids in _by_space(keys).items():
            self._delete(thread, space, ids)
        if self._all(unnamed.HAS_NOTES, ())[0][0]:
            self.connection.execute(unnamed.POSTPONE, (unnamed.GRACE_SECONDS, thread))

    def sweep(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete the writes of these checkpoints of a thread."""
        for space, ids in _by_space(keys).items():
            self.connection.execute(_GONE_WRITES, (thread, space, ids))

    def _delete(self, thread: str, space: str, ids: Sequence[str]) -> None:
        parents = dict(self._all(_LEFT, (thread, space)))
        self.connection.execute(_GONE_WRITES, (thread, space, [*ids]))
        self.connection.execute(_GONE, (thread, space, [*ids]))
        gone = {*ids}
        for id, parent in parents.items():
            if id in gone or parent not in gone:
                continue
            before, seen = parent, set[str]()
            while before and before in gone and before not in seen:
                seen.add(before)
                before = parents.get(before)
            values = {"before": before if before in parents else None}
            self.connection.execute(_FOLLOW, {**values, "thread": thread, "space": space, "id": id})

    def describe(self, thread: str, key: Key, metadata: Mapping[str, Any]) -> None:
        """Put other metadata into a checkpoint."""
        self.connection.execute(
            "UPDATE checkpoints SET metadata = %s "
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            (Jsonb(metadata), thread, *key),
        )

    def has_archive(self) -> bool:
        """Tell whether anything was ever archived here, or a job has run."""
        if self._all("SELECT to_regclass('reducing_saver_jobs') IS NOT NULL", ())[0][0]:
            return True
        statement = "SELECT EXISTS (SELECT 1 FROM store WHERE prefix LIKE 'reducing_saver.%%')"
        return self.has_store() and bool(self._all(statement, ())[0][0])

    def has_store(self) -> bool:
        """Tell whether the tables of the store are there."""
        return bool(self._all("SELECT to_regclass('store') IS NOT NULL", ())[0][0])

    def archive(self, parcels: Sequence[Parcel]) -> None:
        """Write segments and messages into the store, in one statement and this transaction.

        What LangGraph's store would write, by its orjson, without thousands of parameters.
        """
        items = {(".".join(place), key): value for place, key, value in rows_of(parcels)}
        rows = [(*name, orjson.dumps(value).decode()) for name, value in items.items()]
        self._do(_ARCHIVE, _columns(rows, 3))

    def prepare_store(self) -> None:
        """Make the tables of the store, outside of any transaction."""
        from langgraph.store.postgres import PostgresStore

        PostgresStore(self.connection).setup()

    def store(self) -> BaseStore:
        """Return LangGraph's store in the same database, over this connection."""
        from langgraph.store.postgres import PostgresStore

        return PostgresStore(self.connection)

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's saver over this connection."""
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(self.connection, serde=self.serde)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _all(self, statement: Any, values: Any) -> list[Any]:
        return self._do(statement, values).fetchall()

    def _do(self, statement: Any, values: Any) -> psycopg.Cursor[Any]:
        # Unprepared: a plan that knows the arrays, as in `PostgresSaver.prune`. Not in a pipeline:
        # what psycopg sends after its end stops the timer that ends the session of a frozen worker.
        # Binary: as text, a list is twice as long.
        return self.connection.execute(statement, values, prepare=False, binary=True)


def _thread(thread: str, read: _Read, look: Look) -> Thread:
    rows = tuple(read.rows.values())
    if read.skip is not None:
        size = Bytes(stays=read.values + read.writes + sum(read.sizes.values()))
        return Thread(thread, rows, bytes=size, skip=read.skip)
    keys = read.keys
    kept = tuple(read.held[key] for key in sorted(keys, key=lambda key: key.id))
    skip, waits = state_of(kept, look)
    cut = severed(kept, read.rows)
    return Thread(thread, rows, kept, read.bytes(keys), cut, skip, waits, read.late.swept)


def _described(edit: Edit) -> Iterator[tuple[Any, ...]]:
    """Yield what changes in rows of `checkpoints`: parents, metadata, marks of snapshots."""
    cut = {one.key for one in edit.thread.severed}
    changes = {change.key: change for change in edit.rewrite.changes}
    for key in sorted(cut | changes.keys()):
        change = changes.get(key)
        metadata = None if change is None or change.metadata is None else Jsonb(change.metadata)
        marks = (
            Jsonb(dict.fromkeys(change.snapshots, True)) if change and change.snapshots else None
        )
        if key in cut or metadata is not None or marks is not None:
            yield edit.thread.id, *key, key in cut, metadata, marks


def _by_space(keys: Iterable[Key]) -> dict[str, list[str]]:
    spaces: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        spaces[key.namespace].append(key.id)
    return spaces


def _columns(rows: Sequence[Sequence[Any]], amount: int) -> list[list[Any]]:
    """Return the columns of rows, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * amount
