"""Find the messages in a checkpoint, and tell whether it is at rest. Inputs are never changed.

The names of LangGraph's own channels are learnt from langgraph 1.2.24; a test compares `at_rest`
with the `next` of every checkpoint of every graph in the suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.base import ChannelVersions, Checkpoint

Version = str | int | float

TASKS = "__pregel_tasks"
_START, _BRANCH, _JOIN = "__start__", "branch:", "join:"
_INTERRUPT, _BUMPS = "__interrupt__", "__snapshot_bumps__"


class Place(NamedTuple):
    """Name where a message list is: a channel, or a key in the dict that a channel holds."""

    channel: str
    key: str | None = None

    @classmethod
    def parse(cls, name: str) -> Place:
        """Read `"messages"` or, for the functional API, `"__previous__.messages"`."""
        channel, _, key = name.partition(".")
        return cls(channel, key or None)


def read(checkpoint: Checkpoint, place: Place) -> object:
    """Return what is at this place, or None."""
    value = checkpoint["channel_values"].get(place.channel)
    if place.key is None:
        return value
    return value.get(place.key) if isinstance(value, dict) else None


def write(checkpoint: Checkpoint, place: Place, messages: list[object]) -> Checkpoint:
    """Return a shallow copy of the checkpoint with another list at this place."""
    values = checkpoint["channel_values"]
    value: object = messages
    if place.key is not None:
        value = {**values[place.channel], place.key: messages}
    return {**checkpoint, "channel_values": {**values, place.channel: value}}


def at_rest(checkpoint: Checkpoint) -> bool:
    """Tell whether nothing waits to run in a checkpoint of a `StateGraph` or an `@entrypoint`.

    The triggers of a raw Pregel graph cannot be seen in its checkpoints.
    """
    return not any(_waits(name, value) for name, value in checkpoint["channel_values"].items())


def may_wait(name: str) -> bool:
    """Tell whether the value of a channel may say that something waits to run."""
    return name in (TASKS, _START) or name.startswith((_JOIN, _BRANCH))


def _waits(name: str, value: object) -> bool:
    if name == TASKS:
        return bool(value)
    if name.startswith(_JOIN):
        return _join_is_complete(name, value)
    return name == _START or name.startswith(_BRANCH)


def _join_is_complete(name: str, value: object) -> bool:
    # A deferred join stores (seen, finished). A plain one stores the nodes that were seen, and
    # its key lists all of them: join:first+second:target.
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], bool):
        return value[1]
    if not isinstance(value, set | frozenset | list | tuple):
        return False
    awaited = name.removeprefix(_JOIN).rpartition(":")[0]
    return len("+".join(map(str, value))) == len(awaited)


def interrupts_seen(checkpoint: Checkpoint) -> int:
    """Return a digest of what LangGraph has marked as seen when it last resumed a run."""
    seen: Mapping[str, Version] = (checkpoint.get("versions_seen") or {}).get(_INTERRUPT, {})
    return hash(frozenset(seen.items()))


def state_of(checkpoint: Checkpoint) -> int:
    """Return a digest of the versions in a checkpoint; a copy of it has the same, and few others.

    Few, since a saver that counts in plain numbers gives the same versions to two branches.
    """
    versions = checkpoint.get("channel_versions") or {}
    return hash((frozenset(versions.items()), interrupts_seen(checkpoint)))


def successor(old: Version | None, next_version: Callable[[Any, None], Any]) -> Version | None:
    """Return the version after `old`, or None where none can be made.

    LangGraph's server makes string versions of its own and its saver cannot count them on; then
    the number they start with is raised.
    """
    try:
        made: Version = next_version(old, None)
        return made
    except NotImplementedError:
        pass
    if isinstance(old, str) and (found := re.match(r"\d+(?=\.|$)", old)):
        digits = found.group()
        return f"{int(digits) + 1:0{len(digits)}}{old[len(digits) :]}"
    return old + 1 if isinstance(old, int | float) else None


def move(
    checkpoint: Checkpoint, new_versions: ChannelVersions, channel: str, new: Version
) -> tuple[Checkpoint, ChannelVersions]:
    """Return both with the channel under another version that nobody takes for a new write.

    Whoever had seen the old version has seen the new one, with the marks that LangGraph leaves
    when it moves a version itself (`_mark_bumps_seen`): no node runs again.
    """
    old = checkpoint["channel_versions"].get(channel)
    seen = dict(checkpoint["versions_seen"])
    marks = dict(seen.pop(_BUMPS, {}))
    for node, versions in seen.items():
        if versions.get(channel) == old:
            advanced, read_mark = f"{node}|{channel}", f"{node}:{channel}"
            if old is not None and marks.get(advanced) != old:
                marks[read_mark] = old
            marks[advanced] = new
            seen[node] = {**versions, channel: new}
    if marks:
        seen[_BUMPS] = marks
    moved: Checkpoint = {
        **checkpoint,
        "channel_versions": {**checkpoint["channel_versions"], channel: new},
        "versions_seen": seen,
    }
    return moved, {**new_versions, channel: new}
