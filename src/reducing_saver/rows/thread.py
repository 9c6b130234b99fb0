"""Hold what has to be known of a stored thread to rewrite it, whatever stores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from .._channel import Place, at_rest
from .._delta import Reducer
from .._record import Record
from .._retain import Key, Retain, Row, kept
from .late import Deleted, nobody_knows


class Skip(StrEnum):
    """Say why a thread was left as it is."""

    YOUNG = "younger than idle"
    PAUSED = "paused"
    PENDING = "with pending writes"
    UNPUT = "with writes of a checkpoint not stored yet"
    DONE = "compacted before"
    UNREADABLE = "unreadable"
    REFUSED = "a pending write names what would leave, or its archive is behind"
    DELTA = "a delta channel without messages_reducer"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Hold what each part takes in the database now; the first four are what leaves."""

    old_versions: int = 0
    writes: int = 0
    checkpoints: int = 0
    evicted: int = 0
    stays: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(
            self.old_versions + other.old_versions,
            self.writes + other.writes,
            self.checkpoints + other.checkpoints,
            self.evicted + other.evicted,
            self.stays + other.stays,
        )

    @property
    def freed(self) -> int:
        """Return what leaves."""
        return self.old_versions + self.writes + self.checkpoints + self.evicted

    @property
    def before(self) -> int:
        """Return what all of it takes now."""
        return self.freed + self.stays


@dataclass(frozen=True, slots=True)
class Look:
    """Say what to read of threads.

    - `retain`, `now`: which checkpoints stay.
    - `young`: ids from here on are too young; None takes all.
    - `places`: where lists are, by name; empty reads none.
    - `reducer`: of the delta channels among them.
    - `inherits`: older checkpoints may name archived segments that those after them do not: a
      bare saver carries none forward.
    - `deleted`: says which checkpoints of a thread were deleted lately.
    """

    retain: Retain
    now: datetime
    young: str | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    reducer: Reducer | None = None
    inherits: bool = False
    deleted: Deleted = nobody_knows

    @property
    def channels(self) -> frozenset[str]:
        """Return the channels that hold lists."""
        return frozenset(place.channel for place in self.places.values())


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold a checkpoint that stays.

    - `checkpoint`: with the values of the channels that hold lists, and of those that tell whether
      it is at rest; the backend may leave out others.
    - `writes`: what pending writes say of lists; `pending`: how many pending writes there are.
    - `deltas`: delta channels whose value is made from older checkpoints; `folded`: the lists of
      those that could be made.
    - `tip`: no stored checkpoint follows it.
    - `segments`: the newest archived ones of its line, by channel, which its own metadata or that
      of an older checkpoint names.
    - `stored`: values as the serializer wrote them, by channel (or one, under `""`), and `sizes`
      what they take.
    """

    key: Key
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent: str | None = None
    writes: tuple[tuple[str, Any], ...] = ()
    pending: int = 0
    deltas: tuple[str, ...] = ()
    folded: Mapping[str, list[Any]] = field(default_factory=dict)
    tip: bool = True
    segments: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def placed(self, name: str) -> tuple[tuple[str, bytes], list[str]]:
        """Return the stored value that holds a list, and the path to it in there."""
        channel, _, key = name.partition(".")
        path = [key] if key else []
        if "" in self.stored:
            return self.stored[""], ["channel_values", channel, *path]
        return self.stored[channel], path

    @property
    def rests(self) -> bool:
        """Tell whether nothing waits to run."""
        return at_rest(self.checkpoint)

    @property
    def frozen(self) -> bool:
        """Tell whether a run stopped here and may go on, so that nothing in it may change."""
        return self.tip and (self.pending > 0 or not self.rests)

    @property
    def record(self) -> Record:
        """Return what the saver noted in its metadata."""
        return Record.read(self.metadata)


class Severed(NamedTuple):
    """Name a checkpoint that stays while its parent goes, and the nearest before that stays."""

    key: Key
    ancestor: str | None


@dataclass(frozen=True, slots=True)
class Thread:
    """Hold what was read of a thread: all its rows, and the checkpoints that stay, in line order.

    `skip` says why it must be left as it is; `waits` that a run stopped at its head, so that at
    most its history may go. `swept` name checkpoints that are not stored and whose writes go.
    """

    id: str
    rows: tuple[Row, ...] = ()
    kept: tuple[Kept, ...] = ()
    bytes: Bytes = field(default_factory=Bytes)
    severed: tuple[Severed, ...] = ()
    skip: Skip | None = None
    waits: Skip | None = None
    swept: tuple[Key, ...] = ()

    @property
    def keys(self) -> frozenset[Key]:
        """Return the names of what stays."""
        return frozenset(one.key for one in self.kept)

    @property
    def gone(self) -> frozenset[Key]:
        """Return the names of what goes."""
        keys = self.keys
        return frozenset(row.key for row in self.rows if row.key not in keys)

    @property
    def head(self) -> str:
        """Return the newest id of all namespaces."""
        return max((row.key.id for row in self.rows), default="")

    def skipped(self, reason: Skip) -> Thread:
        """Return it with a reason to leave it as it is."""
        return replace(self, skip=reason)


def severed(kept: Sequence[Kept], rows: Mapping[Key, Row]) -> tuple[Severed, ...]:
    """Return whose parents go while they stay."""
    keys = {one.key for one in kept}
    found = []
    for one in kept:
        space = one.key.namespace
        if one.parent is None or Key(space, one.parent) in keys:
            continue
        before, seen = one.parent, {one.key.id}
        # Of a single one nothing before it stays.
        while len(keys) > 1 and before and Key(space, before) not in keys and before not in seen:
            seen.add(before)
            row = rows.get(Key(space, before))
            before = (row.parent or "") if row else ""
        found.append(Severed(one.key, before if Key(space, before) in keys else None))
    return tuple(found)


def followed(rows: Iterable[Row]) -> set[tuple[str, str | None]]:
    """Return the names of the checkpoints that others follow."""
    return {(row.key.namespace, row.parent) for row in rows}


def chosen(rows: Iterable[Row], look: Look) -> frozenset[Key]:
    """Return the names of the rows that stay."""
    return kept(rows, look.retain, now=look.now)


def state_of(kept: Sequence[Kept], look: Look) -> tuple[Skip | None, Skip | None]:
    """Return why a thread must be left as it is, and why at most its history may go."""
    if look.places and any(set(one.deltas) - one.folded.keys() for one in kept):
        return Skip.DELTA if look.reducer is None else Skip.PAUSED, None
    head = max((one for one in kept if one.key.namespace == ""), key=_id, default=None)
    if head is None or not head.frozen:
        return None, None
    return None, Skip.PENDING if head.rests else Skip.PAUSED


def _id(one: Kept) -> str:
    return one.key.id
