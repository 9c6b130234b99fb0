"""Say what a job and retention need of a database: the same for Postgres and SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore

from .._archive import Parcel
from .._delta import fold, snapshotted
from .._retain import Key, Row
from .packed import Typed, dumper
from .rewrite import Rewrite
from .thread import Bytes, Kept, Look, Thread, chosen

T = TypeVar("T")

_PASSING = {"SerializationFailure", "DeadlockDetected", "LockNotAvailable"}

ValueKey = tuple[str, str, str]
"""The name of a stored value within its thread: a namespace, a channel and a version."""


class Value(NamedTuple):
    """Hold a stored value that takes the place of another: `name` is a channel, or a checkpoint."""

    namespace: str
    name: str
    version: str
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Edit:
    """Hold what is to be written of one thread, as the database holds it.

    `snapshots` are values of delta channels, where none need be stored yet.
    """

    thread: Thread
    rewrite: Rewrite
    values: tuple[Value, ...]
    bytes: Bytes
    snapshots: tuple[Value, ...] = ()

    @property
    def deleted(self) -> int:
        """Return how many checkpoints go."""
        return len(self.thread.rows) - len(self.thread.kept)

    @property
    def changes(self) -> bool:
        """Tell whether anything is written or deleted."""
        thread = self.thread
        return bool(self.deleted or self.rewrite.changes or thread.severed or thread.swept)

    def dumper(self, serde: SerializerProtocol) -> Callable[[Any], Typed]:
        """Return what dumps messages that leave: as they are stored, where they are."""
        held = {one.key: one for one in self.thread.kept}
        left = {(one.segment.namespace, one.segment.checkpoint) for one in self.rewrite.leaves}
        lists = [
            (*held[change.key].placed(name), old)
            for change in self.rewrite.changes
            if change.key in left and held[change.key].stored
            for name, (old, _) in change.lists.items()
        ]
        return dumper(lists, serde)


class Head(NamedTuple):
    """Name a thread and its newest checkpoint."""

    thread: str
    id: str


class Rows(Protocol):
    """Read and write the stored rows of threads over one connection. Not safe to share.

    `shares_values`: checkpoints name values that are stored apart, and whoever deletes the
    checkpoints leaves them. Only then there are `free`, `unnamed` and `free_still`.
    """

    name: str
    shares_values: bool
    serde: SerializerProtocol

    def writing(self) -> AbstractContextManager[None]:
        """Do what is within in one transaction that sees one state of the database."""

    def reading(self) -> AbstractContextManager[None]:
        """Read what is within from one state of the database, and write nothing."""

    def has_tables(self) -> bool:
        """Tell whether a saver has ever stored something here."""

    def heads(self, threads: Sequence[str] | None = None) -> list[Head]:
        """Return all threads, or those of these that are there, oldest head first."""

    def orphaned(self, threads: Sequence[str]) -> set[str]:
        """Return those of these threads that have writes of a checkpoint that is not stored."""

    def load(self, threads: Sequence[str], look: Look) -> list[Thread]:
        """Return what has to be known of threads; one that cannot be read says so."""

    def edit(self, thread: Thread, rewrite: Rewrite) -> Edit:
        """Return what is to be written of a thread. Writes nothing."""

    def apply(self, edits: Sequence[Edit]) -> None:
        """Rewrite what stays and delete what goes; only within `writing`."""

    def free(self, threads: Sequence[str]) -> None:
        """Delete the values of threads that no checkpoint names; only within `writing`."""

    def unnamed(self, thread: str) -> list[ValueKey]:
        """Return the values of a thread that no checkpoint names."""

    def free_still(self, thread: str, values: Sequence[ValueKey]) -> None:
        """Delete those of these values that no checkpoint names; only within `writing`."""

    def delete(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete these checkpoints of a thread with their writes."""

    def sweep(self, thread: str, keys: Iterable[Key]) -> None:
        """Delete the writes of these checkpoints of a thread."""

    def describe(self, thread: str, key: Key, metadata: Mapping[str, Any]) -> None:
        """Put other metadata into a checkpoint."""

    def archive(self, parcels: Sequence[Parcel]) -> None:
        """Write segments and messages into the store of the database; only within `writing`."""

    def has_archive(self) -> bool:
        """Tell whether anything was ever archived here, or a job has run."""

    def has_store(self) -> bool:
        """Tell whether the tables of the store are there."""

    def prepare_store(self) -> None:
        """Make the tables of the store, outside of any transaction."""

    def store(self) -> BaseStore:
        """Return LangGraph's store in the same database, over this connection."""

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's saver over this connection."""

    def close(self) -> None:
        """Close the connection, where it was opened for this."""


def retain(rows: Rows, thread: str, look: Look, *, most: int) -> Sequence[Key] | None:
    """Delete at most `most` checkpoints that do not stay, oldest first, in one transaction.

    Returns which were deleted; None where the thread has to be left alone for now, as between
    the writes of a task and their checkpoint. Writes that came after their checkpoint was deleted
    go too, and are not counted. Lists are not read. Of what stays only metadata
    changes: a record takes over what the records before it say, so that in a chat that never rests
    they may go too.
    """
    with rows.writing():
        (found,) = rows.load([thread], replace(look, places={}))
        if found.skip is not None:
            return None
        keys = _without_chains(found, look)
        gone = sorted({row.key for row in found.rows} - keys, key=_age)[:most]
        if gone:
            for one in _folded(found, keys):
                rows.describe(thread, one.key, one.metadata)
            rows.delete(thread, gone)
        if found.swept:
            rows.sweep(thread, found.swept)
        return gone


def free_still(rows: Rows, thread: str, values: Sequence[ValueKey]) -> None:
    """Delete those of these values that still no checkpoint names, in one transaction."""
    with rows.writing():
        rows.free_still(thread, values)


def retried(act: Callable[[], T], *, tries: int, pause: Callable[[int], None]) -> T:
    """Return what is done, again where another transaction stood against it.

    `pause` waits after a try, and is told which one it was, from 1 on.
    """
    for nth in range(1, tries):
        try:
            return act()
        except Exception as error:
            if not is_passing(error):
                raise
            pause(nth)
    return act()


def is_passing(error: Exception) -> bool:
    """Tell whether a transaction failed for what another one did, and may be tried again."""
    if type(error).__module__ == "sqlite3":
        return "locked" in str(error) or "busy" in str(error)
    return type(error).__name__ in _PASSING


def _without_chains(thread: Thread, look: Look) -> frozenset[Key]:
    """Return what stays where a record says all that the records before it do."""
    held = {one.key: one for one in thread.kept}
    loose = [_loose(row, held.get(row.key)) for row in thread.rows]
    direct = {held[key].record.before for key in chosen(loose, look)} - {None}
    named = replace(look.retain, ids=(*look.retain.ids, *(id for id in direct if id)))
    return chosen(loose, replace(look, retain=named))


def _loose(row: Row, one: Kept | None) -> Row:
    """Return a row that does not need its record, unless something else of it is needed."""
    before = one.record.before if one is not None else None
    if one is None or before is None or one.deltas or before in (one.parent, *one.record.owed):
        return row
    return row._replace(needs=tuple(id for id in row.needs if id != before))


def _folded(thread: Thread, keys: frozenset[Key]) -> Iterator[Kept]:
    """Yield those whose records lie before what stays, with all of them in their own."""
    held = {one.key: one for one in thread.kept}
    for key in sorted(keys):
        record = held[key].record
        evicted, before = dict(record.evicted), record.before
        if before is None or Key(key.namespace, before) in keys:
            continue
        seen = set[str]()
        while before and before not in seen and (one := held.get(Key(key.namespace, before))):
            seen.add(before)
            for name, digests in one.record.evicted.items():
                evicted[name] = evicted.get(name, frozenset()) | digests
            before = one.record.before
        record = replace(record, evicted=evicted, before=None)
        yield replace(held[key], metadata=record.written(held[key].metadata))


def _age(key: Key) -> tuple[str, str]:
    return key.id, key.namespace


def at(thread: str, key: Key) -> Any:
    """Return the config that names a checkpoint."""
    named = {"thread_id": thread, "checkpoint_ns": key.namespace, "checkpoint_id": key.id}
    return {"configurable": named}


def deltas_of(
    checkpoint: Checkpoint, metadata: Mapping[str, Any], known: Collection[str]
) -> tuple[str, ...]:
    """Return the delta channels of a checkpoint that carries no value for them.

    `known` are channels for which a value is stored. LangGraph counts the updates of a delta
    channel in the metadata, but for the checkpoint that has just stored it whole; LangGraph.js
    marks threads otherwise and is not understood.
    """
    counted = metadata.get("counters_since_delta_snapshot") or {}
    versions = checkpoint["channel_versions"]
    found = {channel for channel in counted if channel in versions and channel not in known}
    if "delta_writes_versioned" in metadata:
        found.add("*")
    return tuple(sorted(found))


def whole_lists(one: Kept, look: Look) -> dict[str, list[Any]]:
    """Return the lists of delta channels that a checkpoint carries whole."""
    found = {name: snapshotted(one.checkpoint, name) for name in look.channels}
    return {name: messages for name, messages in found.items() if messages is not None}


def may_fold(one: Kept, look: Look) -> bool:
    """Tell whether lists of delta channels are to be made from older checkpoints."""
    if look.reducer is None or one.frozen or not one.deltas:
        return False
    return look.channels.issuperset(one.deltas)


def folded_lists(
    saver: BaseCheckpointSaver[Any], found: CheckpointTuple | None, one: Kept, look: Look
) -> dict[str, list[Any]]:
    """Return the lists of delta channels: those carried whole, and those that could be made."""
    lists = whole_lists(one, look)
    if found is None or look.reducer is None:
        return lists
    for channel in one.deltas:
        past = saver.get_delta_channel_history(config=found.config, channels=[channel])
        folded = fold(found._replace(pending_writes=[]), past, channel, look.reducer)
        if folded is not None:
            lists[channel] = folded
    return lists


def inherited(
    one: Kept, rows: Mapping[Key, Row], segments: dict[Key, Mapping[str, str]]
) -> Mapping[str, str]:
    """Return the newest segments of a checkpoint's line: its own, or those of the nearest before.

    `segments` are what the rows name that name any, and what was found for those on the way.
    """
    own = one.record.segments
    if own or not segments:
        return own
    walked: list[Key] = []
    found: Mapping[str, str] = {}
    for id in _line(rows[one.key], rows):
        key = Key(one.key.namespace, id)
        if key in segments:
            found = segments[key]
            break
        walked.append(key)
    segments |= dict.fromkeys(walked, found)
    return found


def owed_to(one: Kept, rows: Mapping[Key, Row]) -> tuple[str, ...]:
    """Return the ids of the checkpoints before one that its delta channels are made from.

    LangGraph counts the super-steps since a channel was last stored whole. Each of those before
    that has no whole value either says what it needs itself, so a count that is short does no harm.
    """
    owed = {*one.deltas} - one.folded.keys()
    if not owed:
        return ()
    counted = one.metadata.get("counters_since_delta_snapshot") or {}
    found = ancestors(rows[one.key], rows)
    if not owed <= counted.keys():
        return found
    return found[: max(1, *(steps for _, steps in (counted[name] for name in owed)))]


def ancestors(row: Row, rows: Mapping[Key, Row]) -> tuple[str, ...]:
    """Return the ids of all stored checkpoints before one."""
    return tuple(_line(row, rows))


def _line(row: Row, rows: Mapping[Key, Row]) -> Iterator[str]:
    space, seen, before = row.key.namespace, {row.key.id}, row.parent
    while before and before not in seen and (held := rows.get(Key(space, before))):
        seen.add(before)
        yield before
        before = held.parent
