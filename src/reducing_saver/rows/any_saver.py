"""Rewrite the threads of any saver through its public API, as a probe found that it can.

There is no transaction, so every step may be done again, and a step that is missing harms nothing:
what leaves is archived, then stored lists are replaced, then the saver's own `prune` deletes. An
old list that nobody names any more stays in a saver that stores values by version, as the one that
a run beside it may still name. Writes of a checkpoint that is not stored yet cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)

from .._archive import Parcel
from .._channel import Place, move, successor, write
from .._delta import snapshot
from .._record import Record
from .._retain import Key, Row, after, is_older
from .backend import (
    Edit,
    Head,
    at,
    deltas_of,
    folded_lists,
    inherited,
    may_fold,
    owed_to,
    whole_lists,
)
from .rewrite import Change, Rewrite
from .thread import Bytes, Kept, Look, Skip, Thread, chosen, followed, state_of


class Way(StrEnum):
    """Say how a saver's checkpoints can be rewritten."""

    SAME_ID = "the same checkpoint is put again"
    NEW_ID = "a new checkpoint is put after the newest, of threads that are finished"
    NONE = "nothing can be rewritten"


class ChangedError(Exception):
    """Say that a thread went on while it was looked at."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """Hold what was read of a thread's checkpoints without their values."""

    rows: Mapping[Key, Row]
    sizes: Mapping[Key, int]
    segments: dict[Key, Mapping[str, str]]


class AnyRows:
    """Read and write threads of a saver, one at a time. Not safe to share."""

    name = "any"

    def __init__(self, saver: BaseCheckpointSaver[Any], way: Way) -> None:
        self._saver, self._way = saver, way
        self.serde = saver.serde

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do what is within; there is no transaction."""
        yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what is within; there is no transaction."""
        yield

    def has_archive(self) -> bool:
        """Tell that older checkpoints may name segments: it costs nothing to look."""
        return True

    def heads(self, threads: Sequence[str] | None = None) -> list[Head]:
        """Return those of these threads that are there, oldest head first."""
        found = []
        for thread in threads or ():
            head = self._saver.get_tuple({"configurable": {"thread_id": thread}})
            if head is not None:
                found.append(Head(thread, head.checkpoint["id"]))
        return sorted(found, key=lambda head: (head.id, head.thread))

    def load(self, threads: Sequence[str], look: Look) -> list[Thread]:
        """Return what has to be known of threads; one that cannot be read says so."""
        found = []
        for thread in threads:
            try:
                found.append(self._load(thread, look))
            except Exception:
                found.append(Thread(thread, skip=Skip.UNREADABLE))
        return found

    def _load(self, thread: str, look: Look) -> Thread:
        listed = self._list(thread)
        rows, whole = dict(listed.rows), (*listed.rows.values(),)
        if look.young is not None and not all(is_older(key.id, look.young) for key in rows):
            return Thread(thread, whole, skip=Skip.YOUNG)
        parents = followed(whole)
        held: dict[Key, Kept] = {}
        while fresh := chosen(rows.values(), look) - held.keys():
            for key in fresh:
                one = replace(self._kept(thread, key, look), tip=key not in parents)
                one = replace(one, segments=inherited(one, rows, listed.segments))
                held[key] = one
                needs = [*one.record.owed, *filter(None, [one.record.before])]
                rows[key] = rows[key]._replace(needs=(*needs, *owed_to(one, rows)))
        kept = tuple(held[key] for key in sorted(held, key=lambda key: (key.id, key.namespace)))
        skip, waits = state_of(kept, look)
        read = Thread(thread, (*rows.values(),), kept, skip=skip, waits=waits)
        return self._fitted(read, listed.sizes)

    def _fitted(self, read: Thread, sizes: Mapping[Key, int]) -> Thread:
        """Return a thread as far as this saver can follow its policy.

        Where it cannot delete just what goes, all rows stay. New checkpoints are only put where
        nothing waits, and then those they take the place of stay as they are. A subgraph with a
        memory of its own gets one too: it would bring back what has left the root.
        """
        if self._way is Way.NEW_ID:
            heads = [one for one in read.kept if one.key in _newest(read)]
            own = tuple(one for one in heads if ":" not in one.key.namespace)
            if any(one.frozen for one in own):
                return read.skipped(read.waits or Skip.PAUSED)
            read = replace(read, kept=own)
        if not self._prunes(read):
            read = replace(read, rows=tuple(row for row in read.rows if row.key in read.keys))
        named = {row.key for row in read.rows} - read.keys
        gone = sum(size for key, size in sizes.items() if key in named)
        return replace(read, bytes=Bytes(old_versions=gone, stays=sum(sizes.values()) - gone))

    def _prunes(self, thread: Thread) -> bool:
        """Tell whether the saver's `prune` deletes just what goes: it keeps the newest.

        It is not asked where a list is made from older checkpoints.
        """
        if not prunes(self._saver) or any(one.deltas or one.folded for one in thread.kept):
            return False
        return thread.keys <= _newest(thread)

    def _list(self, thread: str) -> _Listed:
        rows: dict[Key, Row] = {}
        sizes: dict[Key, int] = {}
        segments: dict[Key, Mapping[str, str]] = {}
        # Some savers hold their lock while they list: nothing is asked meanwhile.
        for found in self._saver.list({"configurable": {"thread_id": thread}}):
            named, metadata = found.config["configurable"], found.metadata
            key = Key(named.get("checkpoint_ns", ""), found.checkpoint["id"])
            before = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
            record = Record.read(metadata)
            if record.segments:
                segments[key] = record.segments
            sizes[key] = len(self.serde.dumps_typed(found.checkpoint)[1])
            rows[key] = Row(
                key,
                before or record.ancestor,
                metadata.get("source"),
                (metadata.get("parents") or {}).get(""),
            )
        return _Listed(rows, sizes, segments)

    def _kept(self, thread: str, key: Key, look: Look) -> Kept:
        found = self._saver.get_tuple(at(thread, key))
        if found is None:
            raise ChangedError(thread)
        before = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        writes = found.pending_writes or []
        one = Kept(
            key,
            found.checkpoint,
            found.metadata,
            before,
            tuple((channel, value) for _, channel, value in writes if channel in look.channels),
            len(writes),
            deltas_of(found.checkpoint, found.metadata, found.checkpoint["channel_values"]),
        )
        if not may_fold(one, look):
            return replace(one, folded=whole_lists(one, look))
        return replace(one, folded=folded_lists(self._saver, found, one, look))

    def edit(self, thread: Thread, rewrite: Rewrite) -> Edit:
        """Return what is to be written of a thread. Writes nothing."""
        held = {one.key: one for one in thread.kept}
        freed = 0
        if self._way is Way.SAME_ID:
            for change in rewrite.changes:
                old = held[change.key].checkpoint
                new = _changed(old, held[change.key].metadata, change)[0]
                freed += len(self.serde.dumps_typed(old)[1]) - len(self.serde.dumps_typed(new)[1])
        size = replace(thread.bytes, evicted=freed, stays=thread.bytes.stays - freed)
        return Edit(thread, rewrite, (), size)

    def archive(self, parcels: Sequence[Parcel]) -> None:
        """Refuse: there is no store beside the checkpoints."""
        raise NotImplementedError("a saver has no archive of its own")

    def apply(self, edits: Sequence[Edit]) -> None:
        """Put what stays, oldest first, and let the saver delete what goes.

        The thread is looked at again before and after: what went on is left alone.
        """
        for edit in edits:
            self._check(edit.thread, edit.thread.head)
            held = {one.key: one for one in edit.thread.kept}
            newest = edit.thread.head
            for change in sorted(edit.rewrite.changes, key=lambda change: change.key.id):
                put = self._put(edit.thread.id, held[change.key], change)
                newest = max(put, newest)
            self._check(edit.thread, newest)
            if edit.deleted:
                self._saver.prune([edit.thread.id], strategy="keep_latest")

    def _check(self, thread: Thread, newest: str) -> None:
        listed = self._saver.list({"configurable": {"thread_id": thread.id}}, limit=1)
        found = [one.checkpoint["id"] for one in listed]
        head = self._saver.get_tuple({"configurable": {"thread_id": thread.id}})
        if head is None or max([head.checkpoint["id"], *found]) > newest:
            raise ChangedError(thread.id)

    def _put(self, thread: str, one: Kept, change: Change) -> str:
        checkpoint, metadata, channels = _changed(one.checkpoint, one.metadata, change)
        versions: ChannelVersions = {}
        for channel in channels:
            old = cast(Any, checkpoint["channel_versions"].get(channel))
            new = successor(old, self._saver.get_next_version)
            if new is None:
                raise ValueError("this saver counts no version on")
            checkpoint, versions = move(checkpoint, versions, channel, new)
        before = one.parent
        if self._way is Way.NEW_ID:
            before = checkpoint["id"]
            checkpoint = {**checkpoint, "id": after(before)}
            step = metadata.get("step", 0) + 1
            metadata = cast(CheckpointMetadata, {**metadata, "source": "update", "step": step})
        named: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": one.key.namespace}
        if before is not None:
            named["checkpoint_id"] = before
        self._saver.put({"configurable": named}, checkpoint, metadata, versions)
        return checkpoint["id"]


def _newest(thread: Thread) -> set[Key]:
    """Return the newest of every namespace."""
    newest: dict[str, str] = {}
    for space, id in (row.key for row in thread.rows):
        newest[space] = max(id, newest.get(space, ""))
    return {Key(space, id) for space, id in newest.items()}


def prunes(saver: BaseCheckpointSaver[Any]) -> bool:
    """Tell whether a saver can delete old checkpoints itself."""
    return type(saver).prune is not BaseCheckpointSaver.prune


def _changed(
    checkpoint: Checkpoint, metadata: CheckpointMetadata, change: Change
) -> tuple[Checkpoint, CheckpointMetadata, list[str]]:
    """Return both with the change, and the channels that hold something else now."""
    metadata = metadata if change.metadata is None else change.metadata
    channels: dict[str, None] = {}
    for name, (_, messages) in change.lists.items():
        place = Place.parse(name)
        checkpoint = write(checkpoint, place, messages)
        channels[place.channel] = None
    for channel, messages in change.snapshots.items():
        checkpoint, metadata = snapshot(checkpoint, metadata, channel, messages)
        channels[channel] = None
    return checkpoint, metadata, [*channels]
