"""Compose the steps of a put, without doing any: a checkpoint in, what to store out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from ._channel import Place, at_rest, interrupts_seen, move, read, successor, write
from ._copies import bound_checkpoint
from ._delta import snapshot
from ._lineage import NOTHING, Evicted, Trace
from ._record import Record, digests
from ._stats import ChannelStats
from .engine import Plan, When, Window, apply, plan, split
from .engine.messages import Message, identifier


@dataclass(frozen=True, slots=True)
class Setting:
    """Hold what a saver was told: the window, where the lists are, and what repeats them."""

    window: Window
    places: Mapping[str, Place]
    copies: tuple[Place, ...] = ()

    def keys(self) -> set[str]:
        """Return the names under which a sent state holds a list."""
        return {place.key or place.channel for place in self.places.values()}

    def bound(self, lines: Iterable[Evicted]) -> Callable[[list[Message]], list[Message]]:
        """Return what bounds a copy: above the cap, it holds what a crossing leaves."""

        def bounded(messages: list[Message]) -> list[Message]:
            if not plan(messages, self.window, when=When.RUN).changes:
                return messages
            left = messages
            for line in lines:
                left = line.without(left) or left
            return apply(plan(left, self.window, when=When.RUN, crossing=True))

        return bounded


@dataclass(frozen=True, slots=True)
class Offer:
    """Hold what `put` was given, and what is known of the parent checkpoint.

    `folded` are the lists of delta channels, which a checkpoint does not carry; `readmitted` is
    what the writes that made this checkpoint keep on purpose.
    """

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    namespace: str
    parent: Trace
    next_version: Callable[[Any, None], Any]
    folded: Mapping[str, list[Message]] = field(default_factory=dict)
    readmitted: Mapping[str, frozenset[str | int]] = field(default_factory=dict)

    def when(self) -> When:
        """Tell at which point of a run this checkpoint is.

        The call of a subgraph (a namespace with a task id) comes to rest before its parent has
        its result, so it counts as the middle of a run.
        """
        if ":" in self.namespace:
            return When.RUN
        if at_rest(self.checkpoint):
            return When.REST
        return When.RESUME if self.resumed() else When.RUN

    def resumed(self) -> bool:
        """Tell whether a resumed run has stored no list yet.

        LangGraph marks every channel as seen by `__interrupt__` when it resumes a run, and at no
        other time (`PregelLoop._first` in langgraph 1.2.24).
        """
        before = self.parent.interrupts_seen
        if before is None:
            return False
        return self.parent.resumed or interrupts_seen(self.checkpoint) != before


@dataclass(frozen=True, slots=True)
class Reduction:
    """Hold what to store, what to remember of it, and what was done, by channel."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    trace: Trace | None = None
    done: Mapping[str, ChannelStats] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def as_shadow(self, untouched: Reduction, setting: Setting) -> Reduction:
        """Return this decision with everything stored as it was offered."""
        done = {
            name: s._replace(evicted=0, would_evict=s.evicted, repeated=0, stored=s.offered)
            for name, s in self.done.items()
        }
        trace = self.trace and replace(
            self.trace,
            versions=versions_of(untouched.checkpoint, setting.places),
            interrupts_seen=interrupts_seen(untouched.checkpoint),
        )
        return replace(untouched, trace=trace, done=done, plans=self.plans)


def reduce_checkpoint(offer: Offer, setting: Setting) -> Reduction:
    """Reduce every message list of a checkpoint. Pure: nothing that was offered is changed."""
    when = offer.when()
    result = Reduction(offer.checkpoint, offer.metadata, offer.new_versions)
    evicted = dict(offer.parent.evicted)
    done: dict[str, ChannelStats] = {}
    plans: dict[str, Plan] = {}
    for name, place in setting.places.items():
        messages = _offered(offer, name, place)
        if messages is None:
            continue
        line = _readmit(evicted.get(name, NOTHING), messages, offer.readmitted.get(name, ()))
        step = _reduce_list(offer, place, line.without(messages), setting.window, when)
        result = _stored(result, place, messages, step, delta=name in offer.folded)
        if step.plan and step.plan.changes:
            plans[name] = step.plan
            line = _extend(line, step.plan)
        evicted[name] = line
        done[name] = _count(messages, step)
    bound = setting.bound(evicted.values())
    checkpoint = bound_checkpoint(result.checkpoint, setting.copies, setting.keys(), bound)
    record = _record(offer, when, plans)
    metadata = record.written(result.metadata) if record else result.metadata
    trace = _trace(offer, setting, evicted, record, when, result.checkpoint)
    return replace(
        result, checkpoint=checkpoint, metadata=metadata, trace=trace, done=done, plans=plans
    )


@dataclass(frozen=True, slots=True)
class _Step:
    messages: list[Message]
    plan: Plan | None = None
    version: str | int | float | None = None
    unmoved: bool = False


def _offered(offer: Offer, name: str, place: Place) -> list[Message] | None:
    if name in offer.folded:
        return offer.folded[name]
    value = read(offer.checkpoint, place)
    return value if isinstance(value, list) else None


def _reduce_list(
    offer: Offer, place: Place, messages: list[Message], window: Window, when: When
) -> _Step:
    moved = place.channel in offer.new_versions
    if not moved and when is not When.REST:
        # Postgres stores nothing here, SQLite the whole state: both must hold the parent's list.
        return _Step(messages)
    decided = plan(messages, window, when=when)
    if not decided.changes or moved:
        return _Step(apply(decided), decided)
    old = offer.checkpoint["channel_versions"].get(place.channel)
    version = successor(old, offer.next_version)
    if version is None:
        return _Step(messages, unmoved=True)
    return _Step(apply(decided), decided, version)


def _stored(
    result: Reduction, place: Place, offered: list[Message], step: _Step, *, delta: bool
) -> Reduction:
    checkpoint, metadata, new_versions = result.checkpoint, result.metadata, result.new_versions
    if delta:
        if step.plan and step.plan.changes:
            checkpoint, metadata = snapshot(checkpoint, metadata, place.channel, step.messages)
    elif step.messages is not offered:
        checkpoint = write(checkpoint, place, step.messages)
    if step.version is not None:
        checkpoint, new_versions = move(checkpoint, new_versions, place.channel, step.version)
    return replace(result, checkpoint=checkpoint, metadata=metadata, new_versions=new_versions)


def _readmit(line: Evicted, messages: list[Message], kept: Iterable[str | int]) -> Evicted:
    """Forget as evicted what was kept on purpose, or came back as the newest of the list."""
    again = {name for name in kept if line.has(name)}
    if messages and messages[-1] in line:
        last = len(messages) - 1
        newest = next(unit for unit in split(messages) if unit.indices[-1] == last)
        again |= {identifier(message) or id(message) for message in newest.messages}
    return line.minus(again) if again else line


def _extend(line: Evicted, decided: Plan) -> Evicted:
    # An id may stand in a list twice: what is also kept is not gone.
    kept = {identifier(message) for message in decided.staying} - {None}
    gone = (m for m in decided.leaving if identifier(m) not in kept)
    return line.plus(gone, with_calls=decided.when is not When.REST)


def _record(offer: Offer, when: When, plans: Mapping[str, Plan]) -> Record | None:
    """Return what the checkpoint must carry for pending writes; at rest there are none."""
    if when is When.REST:
        return None
    evicted = {name: digests(p.leaving, p.staying) for name, p in plans.items()}
    before = offer.parent.recorded
    return Record(evicted, before) if evicted or before else None


def _trace(
    offer: Offer,
    setting: Setting,
    evicted: Mapping[str, Evicted],
    record: Record | None,
    when: When,
    stored: Checkpoint,
) -> Trace:
    recorded = None
    if record is not None:
        recorded = offer.checkpoint["id"] if record.evicted else record.before
    stores_a_list = any(p.channel in offer.new_versions for p in setting.places.values())
    return Trace(
        evicted,
        recorded=recorded,
        interrupts_seen=interrupts_seen(stored),
        versions=versions_of(stored, setting.places),
        resumed=when is not When.REST and offer.resumed() and not stores_a_list,
    )


def versions_of(checkpoint: Checkpoint, places: Mapping[str, Place]) -> dict[str, object]:
    """Return the versions of the channels that hold lists."""
    known = checkpoint.get("channel_versions") or {}
    return {name: known.get(place.channel) for name, place in places.items()}


def _count(messages: list[Message], step: _Step) -> ChannelStats:
    gone = len(step.plan.leaving) if step.plan else 0
    return ChannelStats(
        puts=1,
        reductions=int(gone > 0),
        evicted=gone,
        repeated=len(messages) - len(step.messages) - gone,
        offered=len(messages),
        stored=len(step.messages),
        stuck=int(step.plan.stuck) if step.plan else 0,
        unmoved=int(step.unmoved),
    )
