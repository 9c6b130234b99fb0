"""Decide what the checkpoints of a stored thread hold from now on. Pure.

The steps are those of a put (`_reduction`), on a checkpoint that is stored already: it keeps its
id, its versions and its parent, so that interrupts, finished siblings and paused subgraphs find
their tasks again. Each checkpoint stands for itself: what leaves it is chained to the segments
that its own metadata names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointMetadata

from .._delta import snapshot
from .._lineage import Trace
from .._pending import named
from .._record import Record, names
from .._reduction import Offer, Proposal, Reduction, Setting, Step, propose, settle
from .._retain import Key
from .._segment import Leave, identity
from ..engine import When
from ..engine.apply import apply
from ..engine.messages import identifier
from .thread import Kept, Skip, Thread

_ORDER = (When.REST, When.RESUME, When.RUN)


@dataclass(frozen=True, slots=True)
class StoredOffer(Offer):
    """Offer a checkpoint that is stored already; others may share its lists."""

    at: When = When.REST

    def when(self) -> When:
        """Tell at which point of a run all that share its lists are."""
        return self.at


@dataclass(frozen=True, slots=True)
class Change:
    """Hold what changes in a checkpoint that stays.

    `lists` are old and new by the name of their place, `snapshots` the lists of delta channels by
    channel; `metadata` is None where it stays as it is.
    """

    key: Key
    metadata: CheckpointMetadata | None = None
    lists: Mapping[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    snapshots: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Hold what changes in a thread, what leaves it, and how many messages that are."""

    changes: tuple[Change, ...] = ()
    leaves: tuple[Leave, ...] = ()
    evicted: int = 0


class Shared(NamedTuple):
    """Name a list: checkpoints with the same version of a channel hold the same."""

    namespace: str
    name: str
    version: str


def decide(thread: Thread, setting: Setting, *, namespace_key: str) -> list[Proposal]:
    """Return what would be done to each checkpoint that stays and may change."""
    whens = _whens(thread.kept, setting)
    found = []
    for one in thread.kept:
        at = whens[one.key]
        if at is not None:
            found.append(propose(_offer(thread.id, one, at, setting, namespace_key), setting))
    return found


def summarise(
    proposals: Sequence[Proposal], make: Callable[[Proposal], Proposal]
) -> list[Proposal]:
    """Return the proposals with summaries, one for each list, whoever shares it."""
    made: dict[Shared, Step] = {}
    found = []
    for proposal in proposals:
        keys = [shared(proposal.offer, step) for step in proposal.steps]
        if not all(key in made for key in keys):
            proposal = make(proposal)
            made |= zip(keys, proposal.steps, strict=True)
        steps = tuple(
            _like(step, made[key]) for key, step in zip(keys, proposal.steps, strict=True)
        )
        found.append(replace(proposal, steps=steps))
    return found


def again(proposals: Sequence[Proposal], before: Sequence[Proposal]) -> list[Proposal] | None:
    """Return the proposals with the summaries that were made for the same lists, else None."""
    made = {shared(p.offer, step): step for p in before for step in p.steps}
    found = []
    for proposal in proposals:
        steps = []
        for step in proposal.steps:
            known = made.get(shared(proposal.offer, step))
            if known is None or _said(known.left) != _said(step.left):
                return None
            steps.append(_like(step, known))
        found.append(replace(proposal, steps=tuple(steps)))
    return found


def rewrite(thread: Thread, proposals: Sequence[Proposal], setting: Setting) -> Rewrite | Skip:
    """Return what changes, or why nothing may.

    A list stays whole where a pending write of its checkpoint names what would leave: a subgraph,
    say, repeats all that it was given. And where the archive has not taken yet what the graph
    removed: that is found by comparing lists, at the thread's next put.
    """
    stored = {one.key: one for one in thread.kept}
    behind = {id for one in thread.kept for id in one.record.owed}
    refused = {
        shared(proposal.offer, step)
        for proposal in proposals
        for step in proposal.steps
        if _refuses(stored[_key(proposal)], step, behind)
    }
    if refused:
        proposals = [_without(proposal, refused) for proposal in proposals]
    changes: dict[Key, Change] = {}
    leaves: dict[str, Leave] = {}
    gone: set[tuple[str, str, str]] = set()
    for proposal in proposals:
        one = stored[_key(proposal)]
        settled = settle(proposal, setting)
        changes[one.key] = _change(one, proposal, settled)
        leaves |= {leave.segment.id: leave for leave in settled.leaves}
        gone |= {
            (one.key.namespace, step.name, identifier(message) or identity(message))
            for step in proposal.steps
            if step.evicts
            for message in step.summarisable()
        }
    for one in thread.kept:
        owed = _owed(one, changes.get(one.key, Change(one.key)))
        changes[one.key] = _carried(one, owed)
    for key, ancestor in thread.severed:
        if ancestor is not None:
            changes[key] = _following(stored[key], changes[key], ancestor)
    altered = [c for c in changes.values() if c.lists or c.snapshots or c.metadata is not None]
    if refused and not altered and len(thread.kept) == len(thread.rows):
        return Skip.REFUSED
    return Rewrite(tuple(altered), tuple(leaves.values()), len(gone))


def shared(offer: Offer, step: Step) -> Shared:
    """Return the name of the list that a step is about."""
    version = offer.checkpoint["channel_versions"].get(step.place.channel)
    return Shared(offer.namespace, step.name, str(version))


def _whens(kept: Sequence[Kept], setting: Setting) -> dict[Key, When | None]:
    """Return at which point each checkpoint is looked at; None leaves it as it is.

    Those that share a list are looked at alike: as one of them waits, the list is kept longer.
    """
    found = {one.key: _when(one) for one in kept}
    groups: dict[Shared, list[Key]] = {}
    for one in kept:
        for name, place in setting.places.items():
            version = one.checkpoint["channel_versions"].get(place.channel)
            if version is not None:
                name_of = Shared(one.key.namespace, name, str(version))
                groups.setdefault(name_of, []).append(one.key)
    settled = False
    while not settled:
        settled = True
        for keys in groups.values():
            last = max((found[key] for key in keys), key=_rank)
            for key in keys:
                settled = settled and found[key] == last
                found[key] = last
    return found


def _when(one: Kept) -> When | None:
    if one.frozen:
        return None
    if ":" in one.key.namespace:
        return When.RUN
    return When.REST if one.rests else When.RESUME


def _rank(when: When | None) -> int:
    return len(_ORDER) if when is None else _ORDER.index(when)


def _offer(thread: str, one: Kept, at: When, setting: Setting, namespace_key: str) -> StoredOffer:
    record = one.record
    versions = one.checkpoint["channel_versions"]
    channels = {place.channel for place in setting.places.values()}
    given = one.metadata.get(namespace_key)
    return StoredOffer(
        one.checkpoint,
        one.metadata,
        # As if each list was just written: then it is reduced under the version it has.
        {channel: versions[channel] for channel in channels if channel in versions},
        namespace=one.key.namespace,
        parent=Trace(recorded=record.before, segments=one.segments),
        next_version=_none,
        folded=one.folded if at is When.REST else {},
        thread=thread,
        memory_namespace=(given,) if isinstance(given, str) else ("memories", thread),
        at=at,
    )


def _none(old: Any, channel: None) -> Any:
    raise NotImplementedError("a stored checkpoint keeps its versions")


def _like(step: Step, made: Step) -> Step:
    """Return a step with the plan and the summary of another on the same list."""
    if made.plan is None or not made.plan.changes:
        return step.held_back(0) if step.evicts else step
    return replace(step, summary=made.summary, summary_text=made.summary_text)


def _said(messages: Iterable[Any]) -> list[str]:
    return [identity(message) for message in messages]


def _key(proposal: Proposal) -> Key:
    return Key(proposal.offer.namespace, proposal.offer.checkpoint["id"])


def _without(proposal: Proposal, refused: Collection[Shared]) -> Proposal:
    steps = tuple(
        step.held_back(0) if shared(proposal.offer, step) in refused else step
        for step in proposal.steps
    )
    return replace(proposal, steps=steps)


def _refuses(one: Kept, step: Step, owed: Collection[str]) -> bool:
    if step.evicts and (one.record.owed or one.key.id in owed):
        return True
    if step.plan is None or not step.evicts or not one.writes or step.place.key is not None:
        return False
    left = {name for message in step.plan.staying for name in names(message)}
    gone = {name for message in step.plan.leaving for name in names(message)} - left
    return not gone.isdisjoint(named(one.writes, step.place.channel))


def _change(one: Kept, proposal: Proposal, settled: Reduction) -> Change:
    lists, snapshots = {}, {}
    for step in proposal.steps:
        if not step.evicts or step.plan is None:
            continue
        staying = apply(step.plan, step.summary)
        if step.name in proposal.offer.folded:
            snapshots[step.place.channel] = staying
        else:
            lists[step.name] = (step.offered, staying)
    if not lists and not snapshots:
        return Change(one.key)
    return Change(one.key, _noted(one, proposal, settled), lists, snapshots)


def _noted(one: Kept, proposal: Proposal, settled: Reduction) -> CheckpointMetadata:
    """Return the metadata with the new record, and what the old one said for pending writes."""
    old, new = one.record, Record.read(settled.metadata)
    if proposal.when is not When.REST:
        names = {*old.evicted, *new.evicted}
        none = frozenset[str]()
        evicted = {n: old.evicted.get(n, none) | new.evicted.get(n, none) for n in names}
        new = replace(new, evicted=evicted, before=old.before)
    return replace(new, ancestor=old.ancestor, owed=old.owed).written(settled.metadata)


def _owed(one: Kept, change: Change) -> Change:
    """Return a change that needs no older checkpoint: delta channels hold snapshots."""
    metadata, snapshots = change.metadata or one.metadata, dict(change.snapshots)
    for channel in one.deltas:
        if channel in one.folded and channel not in snapshots:
            snapshots[channel] = one.folded[channel]
            _, metadata = snapshot(one.checkpoint, metadata, channel, [])
    return replace(change, metadata=metadata, snapshots=snapshots) if snapshots else change


def _carried(one: Kept, change: Change) -> Change:
    """Return a change that carries on what an older checkpoint of the line has archived."""
    if change.metadata is not None and Record.read(change.metadata).segments:
        return change
    if not one.segments or one.record.segments:
        return change
    metadata = one.metadata if change.metadata is None else change.metadata
    record = replace(Record.read(metadata), segments=one.segments)
    return replace(change, metadata=record.written(metadata))


def _following(one: Kept, change: Change, ancestor: str) -> Change:
    metadata = one.metadata if change.metadata is None else change.metadata
    record = replace(Record.read(metadata), ancestor=ancestor)
    return replace(change, metadata=record.written(metadata))
