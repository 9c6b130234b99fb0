"""Compose the steps of a put, without doing any: a checkpoint in, what to store out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from ._channel import Place, at_rest, interrupts_seen, move, read, state_of, successor, write
from ._copies import bound_checkpoint
from ._delta import snapshot
from ._lineage import NOTHING, Evicted, Trace
from ._record import Record, digests
from ._segment import Leave, Segment, Why, cut_spans, segment_id
from ._stats import ChannelStats
from ._summary_message import is_older, newest_summary
from .engine import Excerpt, Measure, Plan, Short, When, Window, apply, plan, split
from .engine.apply import with_summary
from .engine.excerpt import Oversize
from .engine.messages import Message, identifier, is_summary, summaries
from .engine.oversize import find, kept_history, with_history
from .engine.plan import plan_leaving
from .engine.shorten import stand_in
from .engine.sizes import Sizes

Known = Callable[[Message], Short | None]

# Where more leave at once, their size is estimated from so many: old threads have thousands.
_MOST_COUNTED = 128


@dataclass(frozen=True, slots=True)
class Setting:
    """Hold what a saver was told: the window, where the lists are, and what repeats them.

    `excerpt` says which contents are too large, where any may be. Without `puts` no checkpoint is
    put: only what leaves and what stays of its lists is asked for.
    """

    window: Window
    places: Mapping[str, Place]
    copies: tuple[Place, ...] = ()
    archives: bool = False
    archives_removed: bool = False
    room: Mapping[Measure, int] = field(default_factory=dict)
    excerpt: Excerpt | None = None
    puts: bool = True

    def keys(self) -> set[str]:
        """Return the names under which a sent state holds a list."""
        return {place.key or place.channel for place in self.places.values()}

    def bound(
        self, lines: Iterable[Evicted], known: Known | None = None
    ) -> Callable[[list[Message]], list[Message]]:
        """Return what bounds a copy: above the cap, it holds what a crossing leaves.

        Excerpts that are known take the places of their messages.
        """

        def bounded(messages: list[Message]) -> list[Message]:
            messages = _with_known(messages, known) if known else messages
            if not plan(messages, self.window, when=When.RUN).changes:
                return messages
            left = messages
            for line in lines:
                left = line.without(left) or left
            return apply(plan(left, self.window, when=When.RUN, crossing=True))

        return bounded


@dataclass(frozen=True, slots=True)
class Stored:
    """Hold the lists of a stored checkpoint, by channel."""

    checkpoint: str
    lists: Mapping[str, list[Message]]


@dataclass(frozen=True, slots=True)
class Offer:
    """Hold what `put` was given, and what is known of the parent checkpoint.

    `folded` are the lists of delta channels, which a checkpoint does not carry; `readmitted` is
    what the writes that made this checkpoint keep on purpose; `stored_before` are lists that hold
    messages the graph has removed since, of the parent and of checkpoints before it; `owed` are
    more of them, for later puts, and `owed_next` the lists of the first of those; `archived` are
    ids that this line has evicted in another process.
    """

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    namespace: str
    parent: Trace
    next_version: Callable[[Any, None], Any]
    folded: Mapping[str, list[Message]] = field(default_factory=dict)
    readmitted: Mapping[str, frozenset[str | int]] = field(default_factory=dict)
    stored_before: Sequence[Stored] = ()
    owed: tuple[str, ...] = ()
    owed_next: Sequence[Stored] = ()
    archived: Mapping[str, frozenset[str]] = field(default_factory=dict)
    thread: str = ""
    memory_namespace: tuple[str, ...] = ()
    known: Known | None = None

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
class Removed:
    """Hold what the graph itself removed, and the stored list it was removed from."""

    checkpoint: str
    stored: list[Message]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Hold what is to be done with one list: what was offered, what had left before, the plan.

    `summary` takes the place of the one in the list, `told` is one that only hooks are told, and
    `used` what was made of it off the path; `waits` is how long the list has to be before an
    eviction that failed is tried again. `version` is the one the list is moved to where nobody
    wrote it; `unmoved` that none could be made. `owed` are the checkpoints that still store what
    the graph removed and the archive has not taken.

    `oversize` is what of the list is to be shortened, `known` are excerpts that the parent stores
    as well; the plan's are made of them. `excerpts` new ones were made, which save `saved` tokens.
    """

    name: str
    place: Place
    offered: list[Message]
    left: list[Message]
    line: Evicted
    plan: Plan | None = None
    version: str | int | float | None = None
    unmoved: bool = False
    removed: tuple[Removed, ...] = ()
    owed: tuple[str, ...] = ()
    summary: tuple[Message, ...] = ()
    summary_text: str | None = None
    told: tuple[Message, ...] = ()
    used: object | None = None
    waits: int = 0
    oversize: tuple[Oversize, ...] = ()
    known: Mapping[int, Short] = field(default_factory=dict)
    excerpts: int = 0
    saved: int = 0

    @property
    def shortens(self) -> bool:
        """Tell whether anything is stored as an excerpt."""
        return self.plan is not None and bool(self.plan.shorter)

    def with_excerpts(self, shorter: Mapping[int, Short], *, made: int, saved: int) -> Step:
        """Return this step with excerpts of what stays, and of nothing else."""
        if self.plan is None or not (shorter or self.plan.shorter):
            return self
        return replace(self, plan=replace(self.plan, shorter=shorter), excerpts=made, saved=saved)

    @property
    def evicts(self) -> bool:
        """Tell whether anything leaves by the window."""
        return self.plan is not None and self.plan.changes

    def summarisable(self) -> list[Message]:
        """Return what a summary would be made of."""
        leaving = self.plan.leaving if self.plan else ()
        return [message for message in leaving if not is_summary(message)]

    def kept_back(self, patience: int = 0) -> Step:
        """Return this step with nothing evicted, until the list is that much longer or at rest."""
        waits = len(self.left) + patience if self.evicts and patience else self.waits
        plan = self.plan.keeping_all() if self.plan and self.plan.shorter else None
        version = self.version if plan else None
        kept = replace(self, plan=plan, version=version, waits=waits)
        return replace(kept, summary=(), summary_text=None, told=(), used=None)

    def held_back(self, patience: int) -> Step:
        """Return this step with nothing evicted and nothing archived."""
        owed = tuple(removed.checkpoint for removed in self.removed)
        return replace(self.kept_back(patience), removed=(), owed=owed)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Hold what a put would do."""

    offer: Offer
    when: When
    steps: tuple[Step, ...]

    def held_back(self, patience: int) -> Proposal:
        """Return a proposal that evicts and archives nothing."""
        return replace(self, steps=tuple(step.held_back(patience) for step in self.steps))


@dataclass(frozen=True, slots=True)
class Reduction:
    """Hold what to store, what to remember of it, what was done by channel, and what left."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    trace: Trace | None = None
    done: Mapping[str, ChannelStats] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)
    leaves: tuple[Leave, ...] = ()
    used: tuple[object, ...] = ()

    def as_shadow(self, untouched: Reduction, setting: Setting) -> Reduction:
        """Return this decision with everything stored as it was offered."""
        done = {
            name: s._replace(
                evicted=0,
                would_evict=s.evicted,
                repeated=0,
                stored=s.offered,
                excerpted=0,
                would_excerpt=s.excerpted,
                tokens_saved=0,
                would_save=s.tokens_saved,
            )
            for name, s in self.done.items()
        }
        trace = self.trace and replace(
            self.trace,
            recorded=untouched.trace.recorded if untouched.trace else None,
            segments=untouched.trace.segments if untouched.trace else {},
            versions=versions_of(untouched.checkpoint, setting.places),
            state=state_of(untouched.checkpoint),
            interrupts_seen=interrupts_seen(untouched.checkpoint),
        )
        return replace(untouched, trace=trace, done=done, plans=self.plans)


def carried(offered: Reduction, parent: Trace, setting: Setting) -> Reduction:
    """Return a put that stores all it was offered, and carries on what its line has archived."""
    checkpoint = offered.checkpoint
    before = None if at_rest(checkpoint) else parent.recorded
    record = Record(before=before, segments=parent.segments, owed=parent.owed)
    held = dict[str, frozenset[str]]()
    with contextlib.suppress(Exception):  # the list may be what reducing has just failed on
        held = _held(checkpoint, setting) if setting.archives_removed else {}
    trace = Trace(
        recorded=record.before,
        segments=record.segments,
        owed=record.owed,
        told=parent.told,
        versions=versions_of(checkpoint, setting.places),
        state=state_of(checkpoint),
        elsewhere=bool(record.segments),
        held=held,
        interrupts_seen=interrupts_seen(checkpoint),
    )
    metadata = record.written(offered.metadata) if record else offered.metadata
    return replace(offered, metadata=metadata, trace=trace)


def propose(offer: Offer, setting: Setting) -> Proposal:
    """Decide what a put does with every list of a checkpoint. Pure."""
    when = offer.when()
    steps = []
    for name, place in setting.places.items():
        messages = _offered(offer, name, place)
        if messages is None:
            continue
        line = offer.parent.evicted.get(name, NOTHING)
        if name in offer.archived:
            line = line.plus_ids(offer.archived[name])
        line = _readmit(line, messages, offer.readmitted.get(name, ()))
        removed = _removed(offer, name, messages)
        left = _with_known_summary(offer, name, messages, line.without(messages))
        step = Step(name, place, messages, left, line, removed=removed)
        if setting.excerpt is not None:
            step = _with_oversize(step, setting.excerpt, setting.window, when)
        waits = offer.parent.waits.get(name, 0)
        # A message that the graph removed finds its place between what is still in the list.
        if offer.owed or (when is not When.REST and len(left) < waits):
            steps.append(replace(_idle(offer, step, setting, when), waits=waits))
        elif when is not When.REST and name in offer.folded:
            # LangGraph's own snapshot, too large for its store: nothing of it leaves.
            steps.append(_idle(offer, step, setting, when))
        else:
            steps.append(_planned(offer, step, setting, when))
    return Proposal(offer, when, tuple(steps))


def shortening(proposal: Proposal, setting: Setting, excerpt: Excerpt, known: Known) -> Proposal:
    """Return a proposal in which contents are cut to other sizes; what leaves, leaves as before."""
    offer = replace(proposal.offer, known=known)
    cut = replace(setting, excerpt=excerpt)
    steps = []
    for step in proposal.steps:
        found = _with_oversize(step, excerpt, setting.window, When.REST)
        shorter = _stand_ins(offer, found, cut)
        decided = step.plan or Plan(step.left, setting.window, proposal.when)
        steps.append(_with_plan(offer, found, replace(decided, shorter=shorter)))
    return Proposal(offer, proposal.when, tuple(steps))


def tightened(proposal: Proposal, window: Window) -> Proposal:
    """Return a proposal in which more leaves, down to half of a window; nothing is summarised."""
    steps = []
    for step in proposal.steps:
        if proposal.when is not When.REST and step.name in proposal.offer.folded:
            steps.append(step)
            continue
        shorter = step.plan.shorter if step.plan else {}
        decided = plan(step.left, window, when=proposal.when, crossing=True, shorter=shorter)
        steps.append(_with_plan(proposal.offer, step, decided))
    return replace(proposal, steps=tuple(steps))


def settle(proposal: Proposal, setting: Setting) -> Reduction:
    """Return what a put stores. Pure: nothing that was offered is changed."""
    offer, steps = proposal.offer, proposal.steps
    result = Reduction(offer.checkpoint, offer.metadata, offer.new_versions)
    segments = dict(offer.parent.segments)
    leaves: list[Leave] = []
    for step in steps:
        result = _stored(result, step, delta=step.name in offer.folded)
        if setting.archives:
            leaves += _leaves(offer, step, segments)
    record = _record(offer, proposal.when, steps, segments)
    result = replace(
        result,
        metadata=record.written(result.metadata) if record else result.metadata,
        plans={s.name: s.plan for s in steps if s.plan and s.plan.changes},
        leaves=tuple(leaves),
        used=tuple(step.used for step in steps if step.used is not None),
    )
    return _followed(result, proposal, setting, record) if setting.puts else result


def _followed(result: Reduction, proposal: Proposal, setting: Setting, record: Record) -> Reduction:
    """Return a result with copies bounded, and what the next put and the statistics need."""
    offer, when, steps = proposal.offer, proposal.when, proposal.steps
    evicted = {**offer.parent.evicted, **{step.name: _extend(step) for step in steps}}
    bound = setting.bound(evicted.values(), offer.known)
    return replace(
        result,
        checkpoint=bound_checkpoint(result.checkpoint, setting.copies, setting.keys(), bound),
        trace=_trace(offer, setting, evicted, record, steps, when, result.checkpoint),
        done={step.name: _count(step, setting.window) for step in steps},
    )


def _offered(offer: Offer, name: str, place: Place) -> list[Message] | None:
    if name in offer.folded:
        return offer.folded[name]
    value = read(offer.checkpoint, place)
    return value if isinstance(value, list) else None


def _removed(offer: Offer, name: str, messages: list[Message]) -> tuple[Removed, ...]:
    """Return what is in lists of stored checkpoints and no longer here, each message once.

    What the next one that is owed holds too was removed after it, and is archived with it.
    """
    found = list[Removed]()
    seen = set(ids(messages)) if offer.stored_before else set[str]()
    for later in offer.owed_next:
        seen |= ids(later.lists.get(name, []))
    for stored in offer.stored_before:
        held = stored.lists.get(name, [])
        gone = [
            place
            for place, message in enumerate(held)
            if (own := identifier(message)) and own not in seen and not is_summary(message)
        ]
        if gone:
            seen |= ids([held[place] for place in gone])
            found.append(Removed(stored.checkpoint, held, tuple(gone)))
    return tuple(found)


def _with_known_summary(
    offer: Offer, name: str, offered: list[Message], left: list[Message]
) -> list[Message]:
    """Put back the summary that this run made, and of which its own list has an older one or none.

    It is gone for good where what it was made of has left that list too.
    """
    known = offer.parent.summaries.get(name, ())
    if not known:
        return left
    carried = newest_summary(left)
    if carried is None and left is offered:
        return left
    if carried is None or is_older(carried, known):
        return with_summary(left, known)
    return left


def _with_known(messages: list[Message], known: Known) -> list[Message]:
    left = [short.message if (short := known(message)) else message for message in messages]
    return messages if all(new is old for new, old in zip(left, messages, strict=True)) else left


def _with_oversize(step: Step, excerpt: Excerpt, window: Window, when: When) -> Step:
    count = window.sizes("tokens").of
    running = when is not When.REST
    found = find(step.left, excerpt, count, running=running)
    if not running:
        found = with_history(found, step.left, excerpt, count)
    return replace(step, oversize=tuple(found))


def _stand_ins(offer: Offer, step: Step, setting: Setting) -> dict[int, Short]:
    """Return what to plan with: an excerpt is made only of what stays."""
    if setting.excerpt is None or not step.oversize:
        return {}
    count = setting.window.sizes("tokens").of
    decided = kept_history(step.oversize, (), setting.excerpt, count)
    known = offer.known or _nothing_known
    return {one.index: known(one.message) or stand_in(one, count) for one in decided}


def _nothing_known(message: Message) -> None:
    return None


def _idle(offer: Offer, step: Step, setting: Setting, when: When) -> Step:
    """Return the step with a plan in which nothing leaves, where there are excerpts to store.

    Where nobody wrote the list, those are stored that the parent stores.
    """
    if not step.oversize:
        return step
    if step.place.channel in offer.new_versions:
        shorter = _stand_ins(offer, step, setting)
        return replace(step, plan=Plan(step.left, setting.window, when, shorter=shorter))
    known = offer.known or _nothing_known
    found = {o.index: short for o in step.oversize if (short := known(o.message))}
    idle = Plan(step.left, setting.window, when, shorter=found)
    return replace(step, plan=idle, oversize=(), known=found)


def _planned(offer: Offer, step: Step, setting: Setting, when: When) -> Step:
    moved = step.place.channel in offer.new_versions
    if not moved and when is not When.REST:
        # Postgres stores nothing here, SQLite the whole state: both must hold the parent's list.
        return _idle(offer, step, setting, when)
    room = {} if ":" in offer.namespace else setting.room
    shorter = _stand_ins(offer, step, setting)
    decided = plan(step.left, setting.window, when=when, room=room, shorter=shorter)
    return _with_plan(offer, step, decided)


def evicting(
    proposal: Proposal, step: Step, window: Window, positions: Sequence[int]
) -> Step | None:
    """Return a step in which exactly the messages at these positions leave; None where not now."""
    moved = step.place.channel in proposal.offer.new_versions
    if not moved and proposal.when is not When.REST:
        return None  # as in `_planned`
    decided = plan_leaving(step.left, window, positions, when=proposal.when)
    if decided is not None and step.plan is not None and step.plan.shorter:
        decided = replace(decided, shorter=step.plan.shorter)
    left = None if decided is None else _with_plan(proposal.offer, step, decided)
    return left if left is not None and left.evicts else None


def _with_plan(offer: Offer, step: Step, decided: Plan) -> Step:
    """Return the step with a plan, and with a new version where nobody has moved the list's."""
    channel = step.place.channel
    if not (decided.changes or decided.shorter) or channel in offer.new_versions:
        return replace(step, plan=decided)
    version = successor(offer.checkpoint["channel_versions"].get(channel), offer.next_version)
    if version is None:
        return replace(step, unmoved=True, oversize=())
    return replace(step, plan=decided, version=version)


def _staying(step: Step) -> list[Message]:
    return apply(step.plan, step.summary) if step.plan else step.left


def _stored(result: Reduction, step: Step, *, delta: bool) -> Reduction:
    checkpoint, metadata, new_versions = result.checkpoint, result.metadata, result.new_versions
    channel, messages = step.place.channel, _staying(step)
    if delta:
        if step.evicts or step.shortens:
            checkpoint, metadata = snapshot(checkpoint, metadata, channel, messages)
    elif messages is not step.offered:
        checkpoint = write(checkpoint, step.place, messages)
    if step.version is not None:
        checkpoint, new_versions = move(checkpoint, new_versions, channel, step.version)
    if checkpoint is result.checkpoint:
        return result
    return replace(result, checkpoint=checkpoint, metadata=metadata, new_versions=new_versions)


def _readmit(line: Evicted, messages: list[Message], kept: Iterable[str | int]) -> Evicted:
    """Forget as evicted what was kept on purpose, or came back as the newest of the list."""
    again = {name for name in kept if line.has(name)}
    if messages and messages[-1] in line:
        last = len(messages) - 1
        newest = next(unit for unit in split(messages) if unit.indices[-1] == last)
        again |= {identifier(message) or id(message) for message in newest.messages}
    return line.minus(again) if again else line


def _extend(step: Step) -> Evicted:
    if step.plan is None or not step.plan.changes:
        return step.line
    # An id may stand in a list twice: what is also kept is not gone.
    kept = {identifier(message) for message in step.plan.staying} - {None}
    gone = (m for m in step.plan.leaving if identifier(m) not in kept)
    return step.line.plus(gone, with_calls=step.plan.when is not When.REST)


def _leaves(offer: Offer, step: Step, segments: dict[str, str]) -> Iterator[Leave]:
    """Yield what goes into the archive, and name it the newest of its line."""
    for removed in step.removed:
        yield _leave(offer, step, segments, "removed", removed.stored, removed.positions)
    if step.plan and step.summarisable():
        yield _leave(offer, step, segments, "window", step.left, step.plan.leaving_at)


def _leave(
    offer: Offer,
    step: Step,
    segments: dict[str, str],
    why: Why,
    messages: Sequence[Message],
    positions: Sequence[int],
) -> Leave:
    previous = segments.get(step.name)
    told = _once(messages, [p for p in positions if not is_summary(messages[p])])
    unnamed = frozenset(positions).difference(told)
    spans = cut_spans(messages, positions, previous, unnamed=unnamed)
    segment = Segment(
        segment_id(offer.thread, offer.namespace, step.name, previous, spans),
        previous,
        thread=offer.thread,
        namespace=offer.namespace,
        channel=step.name,
        checkpoint=offer.checkpoint["id"],
        why=why,
        memory_namespace=offer.memory_namespace,
        spans=spans,
        summarised=step.summary_text is not None,
    )
    segments[step.name] = segment.id
    return Leave(segment, tuple(messages[position] for position in told), step.summary_text)


def _once(messages: Sequence[Message], positions: Sequence[int]) -> list[int]:
    """Leave out what stands in a list twice, equal in every field and with one id."""
    seen: dict[str, list[Message]] = {}
    kept = []
    for position in positions:
        message = messages[position]
        alike = seen.setdefault(own, []) if (own := identifier(message)) else []
        if message not in alike:
            kept.append(position)
            alike.append(message)
    return kept


def _record(offer: Offer, when: When, steps: Sequence[Step], segments: Mapping[str, str]) -> Record:
    """Return what the checkpoint carries; at rest nothing for pending writes, there are none."""
    owed = (*dict.fromkeys([*(one for step in steps for one in step.owed), *offer.owed]),)
    if when is When.REST:
        return Record(segments=segments, owed=owed)
    evicted = {
        step.name: digests(step.plan.leaving, step.plan.staying)
        for step in steps
        if step.plan and step.plan.changes
    }
    return Record(evicted, offer.parent.recorded, segments, owed=owed)


def _trace(
    offer: Offer,
    setting: Setting,
    evicted: Mapping[str, Evicted],
    record: Record,
    steps: Sequence[Step],
    when: When,
    stored: Checkpoint,
) -> Trace:
    stores_a_list = any(p.channel in offer.new_versions for p in setting.places.values())
    held = {step.name: ids(_staying(step)) for step in steps} if setting.archives_removed else {}
    return Trace(
        evicted,
        recorded=offer.checkpoint["id"] if record.evicted else record.before,
        segments=record.segments,
        versions=versions_of(stored, setting.places),
        state=state_of(stored),
        elsewhere=offer.parent.elsewhere,
        held=held,
        summaries={s.name: tuple(summaries(_staying(s))) for s in steps} if setting.room else {},
        told=_told(offer, steps),
        owed=record.owed,
        waits={step.name: step.waits for step in steps if step.waits},
        interrupts_seen=interrupts_seen(stored),
        resumed=when is not When.REST and offer.resumed() and not stores_a_list,
    )


def _told(offer: Offer, steps: Sequence[Step]) -> Mapping[str, tuple[Message, ...]]:
    told = {step.name: step.told for step in steps if step.told}
    return {**offer.parent.told, **told} if told else offer.parent.told


def versions_of(checkpoint: Checkpoint, places: Mapping[str, Place]) -> dict[str, object]:
    """Return the versions of the channels that hold lists."""
    known = checkpoint.get("channel_versions") or {}
    return {name: known.get(place.channel) for name, place in places.items()}


def ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of messages that have one; a summary is nobody's message."""
    return frozenset(own for m in messages if (own := identifier(m)) and not is_summary(m))


def _held(checkpoint: Checkpoint, setting: Setting) -> dict[str, frozenset[str]]:
    lists = {name: read(checkpoint, place) for name, place in setting.places.items()}
    return {name: ids(value) for name, value in lists.items() if isinstance(value, list)}


def lacks(messages: list[Message], held: frozenset[str]) -> bool:
    """Tell whether a list lacks a message that was held before; looks at its tail first."""
    tail = messages[-2 * len(held) - 10 :]
    return not (held <= ids(tail) or held <= ids(messages))


def _count(step: Step, window: Window) -> ChannelStats:
    gone = len(step.plan.leaving) if step.plan else 0
    done = ChannelStats(
        puts=1,
        reductions=int(gone > 0),
        evicted=gone,
        removed=sum(len(removed.positions) for removed in step.removed),
        repeated=len(step.offered) - len(step.left),
        offered=len(step.offered),
        stored=len(_staying(step)),
        stuck=int(step.plan.stuck) if step.plan else 0,
        unmoved=int(step.unmoved),
        excerpted=step.excerpts,
        tokens_saved=step.saved,
    )
    return _sized(done, step, window) if gone else done


def _sized(done: ChannelStats, step: Step, window: Window) -> ChannelStats:
    """Add how large the list was and is; the window remembers what it has counted."""
    before, after = _sizes(step, window.sizes("bytes"))
    done = done._replace(bytes_before=before, bytes_after=after)
    with contextlib.suppress(Exception):  # a counter of the user's, which no mark may need
        before, after = _sizes(step, window.sizes("tokens"))
        return done._replace(tokens_before=before, tokens_after=after)
    return done


def _sizes(step: Step, sizes: Sizes) -> tuple[int, int]:
    plan = step.plan
    if plan is None:
        return 0, 0
    gone = _total(plan.leaving, sizes)
    stay = [(message, sizes.of(message)) for message in plan.staying]
    left = sum(size for _, size in stay)
    if not step.summary:
        return gone + left, left
    replaced = sum(size for message, size in stay if is_summary(message))
    return gone + left, left - replaced + sum(map(sizes.of, step.summary))


def _total(leaving: Sequence[Message], sizes: Sizes) -> int:
    """Return the size of what leaves; where that is much at once, as large as a part of it is."""
    every = 1 + len(leaving) // (_MOST_COUNTED + 1)
    counted = leaving[::every]
    return sum(map(sizes.once, counted)) * len(leaving) // len(counted)
