"""Read and write the rows of `SqliteSaver` (langgraph-checkpoint-sqlite 3.1).

The whole state stands in every row of `checkpoints`. What is within `writing` is one
`BEGIN IMMEDIATE`: nobody else writes meanwhile, so it should be short.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore

from .._archive import Parcel, StoreArchive
from .._record import Record
from .._retain import Key, Row, is_older
from .backend import (
    Edit,
    Head,
    Value,
    at,
    deltas_of,
    folded_lists,
    inherited,
    may_fold,
    owed_to,
    whole_lists,
)
from .late import sort_out
from .packed import put_list, put_value
from .rewrite import Change, Rewrite
from .thread import Bytes, Kept, Look, Skip, Thread, chosen, followed, severed, state_of

_BUSY_SECONDS = 30.0
_TASKS = "__pregel_tasks"

_ORPHANED = """
    SELECT DISTINCT w.thread_id FROM writes AS w WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    )
    """
_DELETE_WRITES = (
    "DELETE FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
)
_DELETE_CHECKPOINT = (
    "DELETE FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
)


def connect(path: str, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a file; `read_only` leaves it and its log as they are."""
    mode = "ro" if read_only else "rw"
    return sqlite3.connect(
        f"file:{quote(str(Path(path).absolute()))}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_SECONDS,
    )


class SqliteRows:
    """Read and write threads over a connection.

    - `lock`: held in every transaction, where a saver uses the connection too.
    """

    name = "sqlite"
    shares_values = False

    def __init__(
        self,
        connection: sqlite3.Connection,
        serde: SerializerProtocol,
        *,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.connection, self.serde = connection, serde
        self._lock = lock
        self._store: BaseStore | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do what is within in one transaction that sees one state of the database."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what is within from one state of the database, and write nothing."""
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        with self._lock or nullcontext():
            self.connection.execute(begin)
            try:
                yield
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()

    def has_tables(self) -> bool:
        """Tell whether a saver has ever stored something here."""
        found = self.connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
            "AND name IN ('checkpoints', 'writes')"
        ).fetchone()
        return int(found[0]) == 2

    def heads(self, threads: Sequence[str] | None = None) -> list[Head]:
        """Return all threads, or those of these that are there, oldest head first."""
        if threads is None:
            rows = self.connection.execute(
                "SELECT thread_id, max(checkpoint_id) FROM checkpoints "
                "GROUP BY thread_id ORDER BY 2, 1"
            )
            return [Head(*row) for row in rows]
        # One by one: SQLite's JSON ends an id at a NUL.
        newest = "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?"
        found = [
            Head(thread, self.connection.execute(newest, (thread,)).fetchone()[0])
            for thread in dict.fromkeys(threads)
        ]
        return sorted(
            (head for head in found if head.id is not None), key=lambda h: (h.id, h.thread)
        )

    def orphaned(self, threads: Sequence[str]) -> set[str]:
        """Return those of these threads that have writes of a checkpoint that is not stored."""
        return {thread for (thread,) in self.connection.execute(_ORPHANED)} & {*threads}

    def load(self, threads: Sequence[str], look: Look) -> list[Thread]:
        """Return what has to be known of threads; one that cannot be read says so."""
        found = []
        for thread in threads:
            try:
                found.append(self._load(thread, look))
            except sqlite3.Error:
                raise
            except Exception:
                found.append(Thread(thread, skip=Skip.UNREADABLE))
        return found

    def _load(self, thread: str, look: Look) -> Thread:
        rows, sizes, segments = self._rows(thread, look)
        if look.young and not all(is_older(key.id, look.young) for key in rows):
            return Thread(thread, tuple(rows.values()), skip=Skip.YOUNG)
        parents = followed(rows.values())
        held: dict[Key, Kept] = {}
        while fresh := chosen(rows.values(), look) - held.keys():
            for key in fresh:
                one = replace(self._kept(thread, key, look), tip=key not in parents)
                one = replace(one, folded=self._folded(thread, one, look))
                one = replace(one, segments=inherited(one, rows, segments))
                held[key] = one
                rows[key] = rows[key]._replace(needs=self._needs(thread, one, rows))
        kept = [held[key] for key in sorted(chosen(rows.values(), look), key=lambda k: k.id)]
        skip, waits = state_of(kept, look)
        written = self._written(thread)
        late = sort_out(
            written.keys() - rows.keys(), rows, now=look.now, deleted=lambda: look.deleted(thread)
        )
        skip = Skip.UNPUT if late.unput else skip
        cut = severed(kept, rows)
        whole = (*rows.values(),)
        read = Thread(
            thread, whole, tuple(kept), severed=cut, skip=skip, waits=waits, swept=late.swept
        )
        return replace(read, bytes=_bytes(read, sizes, written))

    def _rows(
        self, thread: str, look: Look
    ) -> tuple[dict[Key, Row], dict[Key, tuple[int, int]], dict[Key, Mapping[str, str]]]:
        rows: dict[Key, Row] = {}
        segments: dict[Key, Mapping[str, str]] = {}
        sizes: dict[Key, tuple[int, int]] = {}
        listed = self.connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, "
            "length(checkpoint), length(metadata) FROM checkpoints WHERE thread_id = ?",
            (thread,),
        )
        for namespace, id, parent, state, metadata in listed:
            rows[Key(namespace, id)] = Row(Key(namespace, id), parent)
            sizes[Key(namespace, id)] = (state or 0, metadata or 0)
        # The metadata stands behind the state, so reading it means to pass over that.
        described = self.connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, metadata FROM checkpoints WHERE thread_id = ? "
            "AND (? OR parent_checkpoint_id IS NULL OR instr(checkpoint_ns, ':') > 0)",
            (thread, look.retain.sources or look.inherits),
        )
        for namespace, id, text in described:
            metadata, key = _metadata(text), Key(namespace, id)
            record = Record.read(metadata)
            if record.segments:
                segments[key] = record.segments
            rows[key] = rows[key]._replace(
                parent=rows[key].parent or record.ancestor,
                source=metadata.get("source"),
                root=(metadata.get("parents") or {}).get(""),
            )
        return rows, sizes, segments

    def _kept(self, thread: str, key: Key, look: Look) -> Kept:
        kind, data, text, parent = self.connection.execute(
            "SELECT type, checkpoint, metadata, parent_checkpoint_id FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, *key),
        ).fetchone()
        checkpoint = self.serde.loads_typed((kind, data))
        writes = self.connection.execute(
            "SELECT channel, type, value FROM writes "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, *key),
        ).fetchall()
        said = [
            (channel, self.serde.loads_typed((kind, value)))
            for channel, kind, value in writes
            if channel in look.channels
        ]
        metadata = _metadata(text)
        return Kept(
            key,
            checkpoint,
            metadata,
            parent,
            tuple(said),
            len(writes),
            deltas_of(checkpoint, metadata, checkpoint["channel_values"]),
            stored={"": (kind, data)},
            sizes={"": len(data)},
        )

    def _folded(self, thread: str, one: Kept, look: Look) -> dict[str, list[Any]]:
        if not may_fold(one, look):
            return whole_lists(one, look)
        saver = self.saver()
        return folded_lists(saver, saver.get_tuple(at(thread, one.key)), one, look)

    def _needs(self, thread: str, one: Kept, rows: Mapping[Key, Row]) -> tuple[str, ...]:
        needs = [*one.record.owed, *filter(None, [one.record.before])]
        needs += owed_to(one, rows)
        if one.checkpoint.get("v", 4) < 4 and one.parent and self._sends(thread, one):
            needs.append(one.parent)
        return tuple(needs)

    def _sends(self, thread: str, one: Kept) -> bool:
        """Tell whether its parent holds what an old checkpoint has sent."""
        found = self.connection.execute(
            "SELECT EXISTS (SELECT 1 FROM writes WHERE thread_id = ? AND checkpoint_ns = ? "
            "AND checkpoint_id = ? AND channel = ?)",
            (thread, one.key.namespace, one.parent, _TASKS),
        ).fetchone()
        return bool(found[0])

    def _written(self, thread: str) -> dict[Key, int]:
        """Return how many bytes are written for each checkpoint, stored or not."""
        found = self.connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, sum(length(value)) FROM writes "
            "WHERE thread_id = ? GROUP BY 1, 2",
            (thread,),
        )
        return {Key(namespace, id): size or 0 for namespace, id, size in found}

    def edit(self, thread: Thread, rewrite: Rewrite) -> Edit:
        """Return what is to be written of a thread. Writes nothing."""
        held = {one.key: one for one in thread.kept}
        values, freed = [], 0
        for change in rewrite.changes:
            one = held[change.key]
            kind, data = self._value(one, change)
            freed += one.sizes[""] - len(data)
            values.append(Value(*change.key, "", kind, data))
        size = replace(thread.bytes, evicted=freed, stays=thread.bytes.stays - freed)
        return Edit(thread, rewrite, tuple(values), size)

    def _value(self, one: Kept, change: Change) -> tuple[str, bytes]:
        stored = one.stored[""]
        for name, (old, new) in change.lists.items():
            _, path = one.placed(name)
            stored = put_list(stored, path, old, new, self.serde)
        for channel, messages in change.snapshots.items():
            from langgraph.checkpoint.serde.types import _DeltaSnapshot

            path = ["channel_values", channel]
            stored = put_value(stored, path, _DeltaSnapshot(messages), self.serde)
        return stored

    def apply(self, edits: Sequence[Edit]) -> None:
        """Rewrite what stays and delete what goes; only within `writing`."""
        for edit in edits:
            self._rewrite(edit)
            self._remove(edit.thread.id, edit.thread.gone)
            self.sweep(edit.thread.id, edit.thread.swept)
            for cut in edit.thread.severed:
                self._sever(edit.thread.id, cut.key)

    def _rewrite(self, edit: Edit) -> None:
        for change, value in zip(edit.rewrite.changes, edit.values, strict=True):
            self.connection.execute(
                "UPDATE checkpoints SET type = ?, checkpoint = ? "
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                (value.kind, value.data, edit.thread.id, *change.key),
            )
            if change.metadata is not None:
                self.describe(edit.thread.id, change.key, change.metadata)

    def describe(self, thread: str, key: Key, metadata: Mapping[str, Any]) -> None:
        """Put other metadata into a checkpoint."""
        text = json.dumps(metadata, ensure_ascii=False).encode("utf-8", "ignore")
        self.connection.execute(
            "UPDATE checkpoints SET metadata = ? "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (text, thread, *key),
        )

    def _sever(self, thread: str, key: Key) -> None:
        self.connection.execute(
            "UPDATE checkpoints SET parent_checkpoint_id = NULL "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, *key),
        )

    def _remove(self, thread: str, keys: Iterable[Key]) -> None:
        named = [(thread, *key) for key in keys]
        self.connection.executemany(_DELETE_WRITES, named)
        self.connection.executemany(_DELETE_CHECKPOINT, named)

    def sweep(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete the writes of these checkpoints of a thread."""
        self.connection.executemany(_DELETE_WRITES, [(thread, *key) for key in keys])

    def delete(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete these checkpoints of a thread, and what only they name."""
        gone = {*keys}
        listed = self.connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, "
            "CASE WHEN parent_checkpoint_id IS NULL THEN metadata END FROM checkpoints "
            "WHERE thread_id = ?",
            (thread,),
        ).fetchall()
        parents = {
            Key(space, id): parent or Record.read(_metadata(text)).ancestor
            for space, id, parent, text in listed
        }
        self._remove(thread, gone)
        for key, parent in parents.items():
            if key in gone or parent is None or Key(key.namespace, parent) not in gone:
                continue
            before, seen = parent, set[str]()
            while before and Key(key.namespace, before) in gone and before not in seen:
                seen.add(before)
                before = parents.get(Key(key.namespace, before))
            self._sever(thread, key)
            if before and Key(key.namespace, before) in parents:
                self._follow(thread, key, before)

    def _follow(self, thread: str, key: Key, ancestor: str) -> None:
        (text,) = self.connection.execute(
            "SELECT metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, *key),
        ).fetchone()
        metadata: Any = _metadata(text)
        record = replace(Record.read(metadata), ancestor=ancestor)
        self.describe(thread, key, record.written(metadata))

    def has_archive(self) -> bool:
        """Tell whether anything was ever archived here, or a job has run."""
        if self.connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
            "AND name = 'reducing_saver_jobs'"
        ).fetchone()[0]:
            return True
        if not self.has_store():
            return False
        found = self.connection.execute(
            "SELECT EXISTS (SELECT 1 FROM store WHERE prefix >= ? AND prefix < ?)",
            ("reducing_saver.", "reducing_saver/"),
        ).fetchone()
        return bool(found[0])

    def has_store(self) -> bool:
        """Tell whether the tables of the store are there."""
        found = self.connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'store'"
        ).fetchone()
        return bool(found[0])

    def archive(self, parcels: Sequence[Parcel]) -> None:
        """Write segments and messages into the store, in this transaction."""
        StoreArchive(self.store()).write_all(parcels)

    def prepare_store(self) -> None:
        """Make the tables of the store, outside of any transaction."""
        from langgraph.store.sqlite import SqliteStore

        with self._lock or nullcontext():
            SqliteStore(self.connection).setup()
            self.connection.commit()

    def store(self) -> BaseStore:
        """Return LangGraph's store in the same database, over this connection."""
        if self._store is None:
            from langgraph.store.sqlite import SqliteStore

            joined: Any = _Joined(self.connection)
            store = SqliteStore(joined)
            store.is_setup = True
            self._store = store
        return self._store

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's saver over this connection."""
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(self.connection, serde=self.serde)
        saver.is_setup = True  # its setup commits
        return saver

    def close(self) -> None:
        """Close the connection, where it was opened for this."""
        if self._lock is None:
            self.connection.close()


class _Joined:
    """Let a store work within the transaction that is open, which it would begin and commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._within = False

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if statement == "BEGIN":
            self._within = self._connection.in_transaction
        if statement in ("BEGIN", "COMMIT") and self._within:
            return self._connection.cursor()
        return self._connection.execute(statement, parameters)

    def cursor(self) -> sqlite3.Cursor:
        return self._connection.cursor()

    def create_function(self, *arguments: Any, **options: Any) -> None:
        self._connection.create_function(*arguments, **options)


def _bytes(
    thread: Thread, sizes: Mapping[Key, tuple[int, int]], written: Mapping[Key, int]
) -> Bytes:
    keys, gone, total = thread.keys, thread.gone | {*thread.swept}, Bytes()
    for key, (state, metadata) in sizes.items():
        if key in keys:
            total += Bytes(stays=state + metadata)
        else:
            total += Bytes(old_versions=state, checkpoints=metadata)
    for key, size in written.items():
        total += Bytes(writes=size) if key in gone else Bytes(stays=size)
    return total


def _metadata(text: bytes | str | None) -> Any:
    return json.loads(text) if text else {}
