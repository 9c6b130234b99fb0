"""Compose the steps of a put, without doing any: a checkpoint in, what to store out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from ._channel import Place, at_rest, interrupts_seen, move, read, successor, write
from ._lineage import NOTHING, Evicted, Trace
from ._stats import ChannelStats
from .engine import Plan, When, Window, apply, plan, split
from .engine.messages import Message


@dataclass(frozen=True, slots=True)
class Offer:
    """Hold what `put` was given, and what is known of the parent checkpoint."""

    checkpoint: Checkpoint
    new_versions: ChannelVersions
    namespace: str
    parent: Trace | None
    next_version: Callable[[Any, None], Any]

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
        if self.parent is None:
            return False
        return self.parent.resumed or (
            interrupts_seen(self.checkpoint) != self.parent.interrupts_seen
        )


@dataclass(frozen=True, slots=True)
class Reduction:
    """Hold what to store, what to remember of it, and what was done, by channel."""

    checkpoint: Checkpoint
    new_versions: ChannelVersions
    trace: Trace | None = None
    done: Mapping[str, ChannelStats] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def as_shadow(self, untouched: Reduction) -> Reduction:
        """Return this decision with everything stored as it was offered."""
        done = {
            name: replace(s, evicted=0, would_evict=s.evicted, repeated=0, stored=s.offered)
            for name, s in self.done.items()
        }
        return replace(untouched, trace=self.trace, done=done, plans=self.plans)


def reduce_checkpoint(offer: Offer, places: Mapping[str, Place], window: Window) -> Reduction:
    """Reduce every message list of a checkpoint. Pure: nothing that was offered is changed."""
    when = offer.when()
    checkpoint, new_versions = offer.checkpoint, offer.new_versions
    evicted = dict(offer.parent.evicted) if offer.parent else {}
    done: dict[str, ChannelStats] = {}
    plans: dict[str, Plan] = {}
    moved = False
    for name, place in places.items():
        messages = read(offer.checkpoint, place)
        if not isinstance(messages, list):
            continue
        line = _readmit(evicted.get(name, NOTHING), messages)
        moved = moved or place.channel in offer.new_versions
        step = _reduce_list(offer, place, line.without(messages), window, when)
        if step.messages is not messages:
            checkpoint = write(checkpoint, place, step.messages)
        if step.version is not None:
            checkpoint, new_versions = move(checkpoint, new_versions, place.channel, step.version)
        if step.plan and step.plan.changes:
            plans[name] = step.plan
            line = _extend(line, step.plan)
        evicted[name] = line
        done[name] = _count(messages, step, offer)
    seen = interrupts_seen(offer.checkpoint)
    trace = Trace(evicted, seen, resumed=offer.resumed() and not moved)
    return Reduction(checkpoint, new_versions, trace, done, plans)


@dataclass(frozen=True, slots=True)
class _Step:
    messages: list[Message]
    plan: Plan | None = None
    version: str | int | float | None = None
    unmoved: bool = False


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


def _readmit(line: Evicted, messages: list[Message]) -> Evicted:
    """Forget as evicted what has come back as the newest of the list: somebody sent it again."""
    if not messages or messages[-1] not in line:
        return line
    newest = next(u for u in split(messages) if u.indices[-1] == len(messages) - 1)
    return line.minus(newest.messages)


def _extend(line: Evicted, decided: Plan) -> Evicted:
    # An id may stand in a list twice: what is also kept is not gone.
    gone = Evicted().plus(m for unit in decided.evicted for m in unit.messages)
    gone = gone.minus(m for unit in decided.kept for m in unit.messages if m in gone)
    return line.plus(m for unit in decided.evicted for m in unit.messages if m in gone)


def _count(messages: list[Message], step: _Step, offer: Offer) -> ChannelStats:
    gone = sum(len(unit.messages) for unit in step.plan.evicted) if step.plan else 0
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
