"""Look up what a put needs to know and was not given. Reads only what nobody remembers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, DeltaChannelHistory

from ._archive import Archive
from ._channel import interrupts_seen, read, state_of
from ._delta import Reducer, fold, needs_folding, snapshotted
from ._line import Load, LoadAsync, above, asegments_before, at, segments_before
from ._lineage import CheckpointKey, Lineage, Trace
from ._record import Record, digests
from ._reduction import Reduction, Setting, Stored, ids, lacks, versions_of
from ._segment import entry_key
from .engine.messages import Message, identifier

MOST_OWED = 8
"""Lists with what a graph removed that one put looks through."""


class History(Protocol):
    """Read the writes of delta channels, as a saver does."""

    def __call__(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]: ...


class HistoryAsync(Protocol):
    """Read the writes of delta channels, as an async saver does."""

    def __call__(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Awaitable[Mapping[str, DeltaChannelHistory]]: ...


def key_of(config: RunnableConfig) -> CheckpointKey:
    """Return the key of the checkpoint that a config names; an empty id where it names none."""
    configurable = config["configurable"]
    thread, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
    return CheckpointKey(str(thread), namespace, configurable.get("checkpoint_id") or "")


def traced(found: CheckpointTuple | None, setting: Setting) -> Trace:
    """Return what a stored checkpoint says of itself."""
    if found is None:
        return Trace()
    record = Record.read(found.metadata)
    lists = lists_of(found, setting)
    own = found.checkpoint["id"] if record.evicted else record.before
    trace = Trace(
        recorded=own,
        back={n: digests(m) for n, m in lists.items()} if record.before else {},
        segments=record.segments,
        above=above(found),
        owed=record.owed,
        versions=versions_of(found.checkpoint, setting.places),
        state=state_of(found.checkpoint),
        elsewhere=bool(record.segments),
        held=_ids(lists) if setting.archives_removed else {},
        interrupts_seen=interrupts_seen(found.checkpoint),
    )
    return trace.reading(record)


def find_trace(
    lineage: Lineage,
    load: Load,
    config: RunnableConfig,
    setting: Setting,
    archive: Archive | None,
) -> Trace:
    """Return what is known of a checkpoint."""
    key = key_of(config)
    if not key.checkpoint:
        return Trace()
    known = lineage.find(key)
    trace = traced(load(config), setting) if known is None else known
    while trace.unread:
        trace = trace.reading(_record(load(at(config, trace.unread))))
    if trace.above and archive is not None:
        trace = _with_line(trace, config, archive, load)
    if trace is not known:
        lineage.remember(key, trace)
    return trace


async def afind_trace(
    lineage: Lineage,
    load: LoadAsync,
    config: RunnableConfig,
    setting: Setting,
    archive: Archive | None,
) -> Trace:
    """Return what is known of a checkpoint."""
    key = key_of(config)
    if not key.checkpoint:
        return Trace()
    known = lineage.find(key)
    trace = traced(await load(config), setting) if known is None else known
    while trace.unread:
        trace = trace.reading(_record(await load(at(config, trace.unread))))
    if trace.above and archive is not None:
        trace = await _awith_line(trace, config, archive, load)
    if trace is not known:
        lineage.remember(key, trace)
    return trace


def _with_line(trace: Trace, config: RunnableConfig, archive: Archive, load: Load) -> Trace:
    """Return a trace that goes on from the segments of a checkpoint before it."""
    try:
        found = segments_before(config, trace.above, archive, load)
    except Exception:
        # Nothing leaves while the archive fails, and the next put looks again.
        return trace
    return replace(trace, above=None, segments=found, elsewhere=bool(found))


async def _awith_line(
    trace: Trace, config: RunnableConfig, archive: Archive, load: LoadAsync
) -> Trace:
    """Return a trace that goes on from the segments of a checkpoint before it."""
    try:
        found = await asegments_before(config, trace.above, archive, load)
    except Exception:
        # Nothing leaves while the archive fails, and the next put looks again.
        return trace
    return replace(trace, above=None, segments=found, elsewhere=bool(found))


def find_archived(
    archive: Archive, thread: str, messages: Sequence[Message], newest: str | None
) -> frozenset[str]:
    """Return the ids of messages that this line has evicted, as the archive knows it."""
    keys = {entry_key(m, None, 0): own for m in messages if (own := identifier(m))}
    hits = archive.exist(thread, [*keys])
    line = archive.chain(thread, newest) if hits else []
    return frozenset(keys[key] for segment in line for key in segment.keys if key in hits)


async def afind_archived(
    archive: Archive, thread: str, messages: Sequence[Message], newest: str | None
) -> frozenset[str]:
    """Return the ids of messages that this line has evicted, as the archive knows it."""
    keys = {entry_key(m, None, 0): own for m in messages if (own := identifier(m))}
    hits = await archive.aexist(thread, [*keys])
    line = await archive.achain(thread, newest) if hits else []
    return frozenset(keys[key] for segment in line for key in segment.keys if key in hits)


def fold_lists(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    deltas: Mapping[str, str],
    reducer: Reducer,
    load: Load,
    history: History,
) -> dict[str, list[object]]:
    """Return the lists of delta channels in a checkpoint that is about to be stored, by name."""
    folded = {name: snapshotted(checkpoint, channel) for name, channel in deltas.items()}
    for name, channel in deltas.items():
        if needs_folding(checkpoint, channel) and key_of(config).checkpoint:
            past = history(config=config, channels=[channel])
            folded[name] = fold(load(config), past, channel, reducer)
    return {name: value for name, value in folded.items() if value is not None}


async def afold_lists(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    deltas: Mapping[str, str],
    reducer: Reducer,
    load: LoadAsync,
    history: HistoryAsync,
) -> dict[str, list[object]]:
    """Return the lists of delta channels in a checkpoint that is about to be stored, by name."""
    folded = {name: snapshotted(checkpoint, channel) for name, channel in deltas.items()}
    for name, channel in deltas.items():
        if needs_folding(checkpoint, channel) and key_of(config).checkpoint:
            past = await history(config=config, channels=[channel])
            folded[name] = fold(await load(config), past, channel, reducer)
    return {name: value for name, value in folded.items() if value is not None}


def _record(found: CheckpointTuple | None) -> Record:
    return Record.read(found.metadata) if found else Record()


def alike(
    lineage: Lineage, key: CheckpointKey, offered: Reduction, parent: Trace, setting: Setting
) -> Trace:
    """Return the trace of what a fork is a copy of: its parent is the one before."""
    if offered.metadata.get("source") != "fork":
        return parent
    copied = parent
    if parent.versions != versions_of(offered.checkpoint, setting.places):
        lists = _lists(offered.checkpoint, setting)
        traces = lineage.find_alike(key, state_of(offered.checkpoint))
        copied = next((trace for trace in traces if _holds(trace, lists)), parent)
    evicted = dict(copied.evicted)
    for name, line in copied.evicted.items():
        messages = read(offered.checkpoint, setting.places[name])
        if isinstance(messages, list):
            # What the copied checkpoint holds was stored, whatever a line says of its id.
            here = {identifier(m) or id(m) for m in messages if m in line}
            evicted[name] = line.minus(here) if here else line
    return replace(copied, evicted=evicted)


def resent(
    offered: Reduction, parent: Trace, setting: Setting
) -> Iterator[tuple[str, list[Message], str | None]]:
    """Yield lists of several new messages that a client may have sent again, by channel.

    What this process evicted is remembered; the archive is to be asked about the rest, along the
    line of the segment that comes with them.
    """
    for name, held in parent.held.items() if parent.elsewhere else ():
        messages = read(offered.checkpoint, setting.places[name])
        if isinstance(messages, list):
            new = [message for message in messages if identifier(message) not in held]
            if len(new) > 1:
                yield name, new, parent.segments.get(name)


def misses(offered: Reduction, parent: Trace, setting: Setting) -> bool:
    """Tell whether a list lacks messages that the parent holds: the graph removed them."""
    for name, held in parent.held.items():
        messages = read(offered.checkpoint, setting.places[name])
        if isinstance(messages, list) and lacks(messages, held):
            return True
    return False


def owed_by(
    key: CheckpointKey, offered: Reduction, parent: Trace, setting: Setting
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ids of checkpoints that hold what the graph removed: for this put, and for later.

    While an archive fails they become more and more, and each is a list to load.
    """
    owed = parent.owed
    if key.checkpoint and misses(offered, parent, setting):
        owed = (*owed, key.checkpoint)
    return owed[:MOST_OWED], owed[MOST_OWED:]


def stored_before(found: Sequence[CheckpointTuple | None], setting: Setting) -> tuple[Stored, ...]:
    """Return the lists of the checkpoints that are still there."""
    there = [one for one in found if one is not None]
    return tuple(Stored(one.checkpoint["id"], lists_of(one, setting)) for one in there)


def lists_of(found: CheckpointTuple | None, setting: Setting) -> dict[str, list[Message]]:
    """Return the message lists of a stored checkpoint, by name."""
    return _lists(found.checkpoint, setting) if found else {}


def _lists(checkpoint: Checkpoint, setting: Setting) -> dict[str, list[Message]]:
    read_of = {name: read(checkpoint, place) for name, place in setting.places.items()}
    return {name: value for name, value in read_of.items() if isinstance(value, list)}


def _holds(trace: Trace, lists: Mapping[str, list[Message]]) -> bool:
    """Tell whether a trace is of a checkpoint with these lists, as far as it knows."""
    return all(trace.held.get(name, own) == own for name, own in _ids(lists).items())


def _ids(lists: Mapping[str, list[Message]]) -> dict[str, frozenset[str]]:
    return {name: ids(messages) for name, messages in lists.items()}
