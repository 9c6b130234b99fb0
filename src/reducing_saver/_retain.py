"""Say which checkpoints of a thread stay, and find them. Pure.

What goes with what is `PostgresSaver.prune`'s rule (langgraph-checkpoint-postgres 3.2.0): the call
of a subgraph, whose namespace has a task id after a `:`, goes with the root checkpoint that it
started from, but only once that one is stored; a `checkpointer=True` subgraph stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ._errors import ConfigurationError

_LARGEST = 10**9
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_LONGEST = timedelta(days=365_000)
# UUIDv6 counts tenths of a microsecond since the Gregorian calendar began.
_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)


class Key(NamedTuple):
    """Name a checkpoint within its thread."""

    namespace: str
    id: str


class Row(NamedTuple):
    """Hold what has to be known of a stored checkpoint to tell whether it stays.

    `root` is the checkpoint of the root graph that a subgraph's call started from; `needs` are ids
    in the same namespace that stay if it stays.
    """

    key: Key
    parent: str | None = None
    source: str | None = None
    root: str | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retain:
    """Say which checkpoints stay: what any of these names.

    - `last`: so many of the newest of every namespace, at least 1.
    - `newer`: those younger than this, as `"24h"` or a `timedelta` (units s, m, h, d, w). Time
      travel and forks by hand need a checkpoint for as long as somebody may go back to it.
    - `tips`: the ends of all branches, so that a fork is never lost.
    - `ids`: these, by name.
    - `turn_starts`: so many of the newest that begin a turn of the root graph (their source is
      `"input"`).

    What a checkpoint that stays needs, to be loaded and resumed, stays with it.
    """

    last: int = 1
    newer: timedelta | str | None = None
    tips: bool = True
    ids: Collection[str] = ()
    turn_starts: int = 0

    def __post_init__(self) -> None:
        _whole("last", self.last, least=1)
        _whole("turn_starts", self.turn_starts, least=0)
        if not isinstance(self.tips, bool):
            raise ConfigurationError("tips", self.tips, "True or False")
        if self.newer is not None:
            object.__setattr__(self, "newer", span("newer", self.newer))
        named = list(self.ids) if isinstance(self.ids, Collection) else [None]
        if isinstance(self.ids, str | bytes) or not all(isinstance(i, str) and i for i in named):
            raise ConfigurationError("ids", self.ids, "several ids of checkpoints")
        object.__setattr__(self, "ids", tuple(sorted({*named})))

    @property
    def sources(self) -> bool:
        """Tell whether the source of a checkpoint matters."""
        return self.turn_starts > 0

    def __str__(self) -> str:
        parts = [f"last {self.last}"]
        if isinstance(self.newer, timedelta):
            parts.append(f"newer than {spelled(self.newer)}")
        parts += ["tips"] if self.tips else []
        parts += [f"{len(self.ids)} named"] if self.ids else []
        parts += [f"{self.turn_starts} turn starts"] if self.turn_starts else []
        return ", ".join(parts)


def kept(checkpoints: Iterable[Row], retain: Retain, *, now: datetime) -> frozenset[Key]:
    """Return the names of the checkpoints that stay. Pure.

    The newest of a namespace is the one with the greatest id, never with the greatest step: forks
    repeat steps.
    """
    thread = _Thread(checkpoints)
    after = floor(now - retain.newer) if isinstance(retain.newer, timedelta) else None
    chosen: set[Key] = set()
    for namespace, rows in thread.spaces.items():
        ordered = sorted(rows, key=_id, reverse=True)
        stays = ordered[: retain.last]
        if retain.tips:
            parents = {row.parent for row in rows}
            stays += [row for row in rows if row.key.id not in parents]
        if namespace == "" and retain.turn_starts:
            stays += [row for row in ordered if row.source == "input"][: retain.turn_starts]
        chosen.update(row.key for row in stays)
    if not retain.ids and after is None:
        return thread.closed(chosen, set())
    asked = {
        key
        for key in thread.rows
        if key.id in retain.ids or (after is not None and not is_older(key.id, after))
    }
    return thread.closed(chosen, asked)


def _id(row: Row) -> str:
    return row.key.id


@dataclass(slots=True)
class _Thread:
    """Look rows up by name, namespace and root."""

    checkpoints: Iterable[Row]
    rows: dict[Key, Row] = field(default_factory=dict)
    spaces: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.checkpoints:
            self.rows[row.key] = row
            self.spaces.setdefault(row.key.namespace, []).append(row)

    def closed(self, chosen: set[Key], asked: set[Key]) -> frozenset[Key]:
        """Return what stays with what it needs, and without calls whose root goes."""
        roots = {key for key in chosen | asked if ":" not in key.namespace}
        # Somebody asked for a checkpoint of a call: without its root it could not be loaded.
        roots |= {Key("", root) for key in asked if (root := self._root(key.namespace))}
        roots = self._needed(roots & self.rows.keys())
        calls = {
            key
            for key in chosen | asked
            if ":" in key.namespace and self._stays(key.namespace, roots)
        }
        return frozenset(self._needed(roots | calls))

    def _stays(self, call: str, roots: set[Key]) -> bool:
        root = self._root(call)
        return root is None or Key("", root) in roots

    def _root(self, namespace: str) -> str | None:
        """Return the stored root checkpoint that a call started from."""
        if ":" not in namespace:
            return None
        newest = max(self.spaces[namespace], key=_id)
        return newest.root if Key("", newest.root or "") in self.rows else None

    def _needed(self, keys: set[Key]) -> set[Key]:
        found, look = set(keys), list(keys)
        while look:
            key = look.pop()
            needs = {Key(key.namespace, id) for id in self.rows[key].needs}
            fresh = (needs & self.rows.keys()) - found
            found |= fresh
            look += fresh
        return found


def span(name: str, value: object) -> timedelta:
    """Return a time span that is written as `"24h"` or is a `timedelta`, not negative."""
    allowed = 'a time span, as "90s", "30m", "24h", "7d", "2w", or a timedelta that is not negative'
    found = value
    if isinstance(value, str):
        parts = _SPAN.fullmatch(value.strip()) if value != "0" else None
        found = timedelta() if value == "0" else None
        if parts:
            found = _timedelta(_UNITS[parts.group(2)], float(parts.group(1)))
    elif type(value) is int and value == 0:
        found = timedelta()
    if not isinstance(found, timedelta) or not timedelta() <= found <= _LONGEST:
        raise ConfigurationError(name, value, allowed)
    return found


def _timedelta(unit: str, number: float) -> timedelta | None:
    try:
        return timedelta(**{unit: number})
    except OverflowError:
        return None


def spelled(value: timedelta) -> str:
    """Return a time span as `span` reads it."""
    seconds = value.total_seconds()
    for unit, length in (("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds:g}s"


def floor(moment: datetime) -> str:
    """Return the least UUIDv6 of a moment: ids sort by time, so no row has to be read."""
    ticks = max(0, (moment - _GREGORIAN) // timedelta(microseconds=1) * 10)
    high, low = divmod(ticks, 1 << 12)
    return f"{high >> 16:08x}-{high & 0xFFFF:04x}-6{low:03x}-0000-000000000000"


def after(checkpoint: str) -> str:
    """Return the id that sorts next after a UUIDv6, before any that is made later."""
    digits = checkpoint.replace("-", "")
    ticks = (int(digits[:12], 16) << 12 | int(digits[13:16], 16)) + 1
    high, low = divmod(ticks, 1 << 12)
    return f"{high >> 16:08x}-{high & 0xFFFF:04x}-6{low:03x}-{checkpoint[19:]}"


def is_older(checkpoint: str, floor: str) -> bool:
    """Tell whether an id is surely from before a floor; one that is no UUIDv6 has no time."""
    return len(checkpoint) == 36 and checkpoint[14] == "6" and checkpoint < floor


def moment(checkpoint: str) -> datetime | None:
    """Return when a checkpoint was made, or None where its id does not tell."""
    digits = checkpoint.replace("-", "")
    if len(checkpoint) != 36 or checkpoint[14] != "6":
        return None
    try:
        ticks = int(digits[:12], 16) << 12 | int(digits[13:16], 16)
    except ValueError:
        return None
    return _GREGORIAN + timedelta(microseconds=ticks // 10)


def _whole(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise ConfigurationError(name, value, f"a whole number from {least} to {_LARGEST:,}")


def describe(retain: Retain) -> Mapping[str, object]:
    """Return plain data that JSON can hold."""
    newer = retain.newer.total_seconds() if isinstance(retain.newer, timedelta) else None
    return {
        "last": retain.last,
        "newer": newer,
        "tips": retain.tips,
        "ids": list(retain.ids),
        "turn_starts": retain.turn_starts,
    }
