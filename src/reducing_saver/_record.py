"""Write into a checkpoint's metadata what it evicted in the middle of a run, and read it back.

Pending writes may name a message that their checkpoint no longer holds. In another process only
the store can tell that it was evicted. So the checkpoint of a crossing carries digests of what left
in it, once, and the later ones of the run name the checkpoint before them that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata

from .engine.messages import Message, Role, answers, calls, identifier, role

KEY = "reducing_saver"
"""Key in the metadata of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Record:
    """Hold digests of what one checkpoint evicted, by channel, and where the run's last record is.

    `before` is the id of an earlier checkpoint of the same thread and namespace. `segments` are
    the ids of the newest archived segments of the checkpoint's line, by channel. `ancestor` is the
    nearest checkpoint before this one that was kept when the ones between them were deleted: so a
    checkpoint that was gone on from is not taken for the end of a branch. `owed` are the ids of
    checkpoints that hold messages which the graph has removed and no archive has taken yet.
    """

    evicted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    before: str | None = None
    segments: Mapping[str, str] = field(default_factory=dict)
    ancestor: str | None = None
    owed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.evicted or self.before or self.segments or self.ancestor or self.owed)

    def written(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Return the metadata with this record in it."""
        held: dict[str, Any] = {}
        if self.evicted:
            held["evicted"] = {name: sorted(digests) for name, digests in self.evicted.items()}
        if self.before:
            held["before"] = self.before
        if self.segments:
            held["segments"] = dict(self.segments)
        if self.ancestor:
            held["ancestor"] = self.ancestor
        if self.owed:
            held["owed"] = [*self.owed]
        return cast(CheckpointMetadata, {**metadata, KEY: held})

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> Record:
        """Return the record in a checkpoint's metadata; an empty one where there is none."""
        held = metadata.get(KEY)
        if not isinstance(held, Mapping):
            return _EMPTY
        evicted = held.get("evicted") or {}
        digests = {name: frozenset(names) for name, names in evicted.items()}
        segments, owed = held.get("segments") or {}, tuple(held.get("owed") or ())
        return cls(digests, held.get("before"), segments, held.get("ancestor"), owed)


_EMPTY = Record()


def digest(name: str) -> str:
    """Return 16 hex digits for the name of a message or call."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def names(message: Message) -> list[str]:
    """Return what a pending write can name a message by: its id, and the calls it makes."""
    own = identifier(message)
    asked = [_call_name(call.id) for call in calls(message) if call.id]
    return [own, *asked] if own else asked


def referred(message: Message) -> list[str]:
    """Return the names a message in a pending write refers to: its id, and calls it answers."""
    own = identifier(message)
    found = [own] if own else []
    if role(message) is Role.TOOL:
        found += [_call_name(answer.id) for answer in answers(message) if answer.id]
    return found


def digests(gone: Iterable[Message], kept: Iterable[Message] = ()) -> frozenset[str]:
    """Return digests of the names of these messages that no kept one has."""
    left = {name for message in gone for name in names(message)}
    left.difference_update(name for message in kept for name in names(message))
    return frozenset(map(digest, left))


def _call_name(call_id: str) -> str:
    return f"call {call_id}"
