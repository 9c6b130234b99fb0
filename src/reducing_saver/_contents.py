"""Make the excerpts of a proposal: ask the selector, archive the wholes, remember what was made."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import uuid4

from langgraph.checkpoint.serde.base import SerializerProtocol

from ._channel import Place
from ._copies import bound_writes
from ._entry import Entry
from ._reduction import Proposal, Setting, Step
from ._segment import Leave, entry_key
from ._select import HeadTail, Selector, Words, is_late, understood
from .engine import Excerpt, Short, Window
from .engine.contents import with_fields
from .engine.counters import plain_text
from .engine.excerpt import Oversize, Why, marked_key
from .engine.messages import Message, Role, identifier, role
from .engine.messages import field as read
from .engine.oversize import find, kept_history, without_history
from .engine.shorten import Cut

_MOST_HELD = 64


class Made(NamedTuple):
    """Hold the excerpt of a message, None where none was made, and what was asked for."""

    asked: tuple[object, ...]
    short: Short | None


class Stamp(NamedTuple):
    """Hold what betrays that a message was edited in place."""

    content: object
    length: int
    beside: tuple[object, ...]

    @classmethod
    def of(cls, message: Message) -> Stamp:
        """Return the stamp of a message as it is now."""
        content, extra = read(message, "content"), read(message, "additional_kwargs")
        beside = (identifier(message), read(message, "name"), read(message, "status"))
        copied = dict(extra) if isinstance(extra, dict) else extra
        return cls(content, len(content) if isinstance(content, list) else -1, (*beside, copied))

    def still(self, message: Message) -> bool:
        """Tell whether a message is as it was."""
        now = Stamp.of(message)
        return now.content is self.content and now[1:] == self[1:]


class Excerpts:
    """Remember the excerpt of each message object, since a run offers its messages at every step.

    By object and what it holds, never by id. Messages are referred to weakly; dicts cannot be and
    are held, at most 64. Safe to use from threads: at worst an excerpt is made twice.
    """

    def __init__(self) -> None:
        self._weak: dict[int, tuple[weakref.ref[Any], Stamp, Made]] = {}
        self._held: OrderedDict[int, tuple[Message, Stamp, Made]] = OrderedDict()

    def find(self, message: Message) -> Made | None:
        """Return what is remembered of this object, None where nothing is or it was edited."""
        if type(message) is dict:
            held = self._held.get(id(message))
            found = held and held[0] is message and held[1].still(message)
            return held[2] if held and found else None
        known = self._weak.get(id(message))
        if known is None or known[0]() is not message:
            return None
        return known[2] if known[1].still(message) else None

    def remember(self, message: Message, made: Made) -> None:
        """Keep what was made of a message."""
        key = id(message)
        try:
            reference = weakref.ref(message, lambda gone: self._leave(key, gone))
        except TypeError:
            self._held[key] = (message, Stamp.of(message), made)
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)
            return
        self._weak[key] = (reference, Stamp.of(message), made)

    def _leave(self, key: int, gone: weakref.ref[Any]) -> None:
        known = self._weak.get(key)
        if known is not None and known[0] is gone:
            del self._weak[key]


@dataclass(slots=True)
class Job:
    """Hold one excerpt on its way: what to cut, where, and what became of it."""

    place: tuple[int, int]
    cut: Cut
    short: Short | None = None
    entry: Entry | None = None


@dataclass(slots=True)
class Batch:
    """Hold the excerpts that a proposal needs and nobody has made yet."""

    ready: dict[tuple[int, int], Short] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """Return what the archive has to take before an excerpt is used."""
        return [job.entry for job in self.jobs if job.entry is not None]


class Contents:
    """Hold how contents are shortened, for both doors.

    `failed` is told what a selector raised. Safe to use from threads.
    """

    def __init__(
        self,
        excerpt: Excerpt,
        selector: Selector,
        *,
        window: Window,
        serde: SerializerProtocol,
        archives: bool,
        failed: Callable[[Exception], None],
    ) -> None:
        self.excerpt, self.selector = excerpt, selector
        self._older = Words(ends=0) if isinstance(selector, Words) else selector
        self._count = window.sizes("tokens").of
        self._serde, self._archives = serde, archives
        self._made = Excerpts()
        self._failed = failed

    def known(self, message: Message) -> Short | None:
        """Return the excerpt that was made of this object."""
        made = self._made.find(message)
        return made.short if made else None

    # The two doors

    def rank_all(self, proposal: Proposal) -> Batch:
        """Return the excerpts that are needed, made with the selector."""
        batch = self._begin(proposal, [self._history(step) for step in proposal.steps])
        for place, job in enumerate(batch.jobs):
            parts = self._parts(job)
            try:
                ranking = self.selector.rank(parts, job.cut.oversize.task)
                named = understood(ranking, len(parts))
            except Exception as error:
                late = is_late(error)
                self._fail(batch.jobs[place:] if late else [job], error)
                if late:
                    break
            else:
                self._finish(job, named)
        return batch

    async def arank_all(self, proposal: Proposal) -> Batch:
        """Return the excerpts that are needed, made with the selector."""
        batch = self._begin(proposal, [await self._ahistory(step) for step in proposal.steps])
        for place, job in enumerate(batch.jobs):
            parts = self._parts(job)
            try:
                ranking = await self.selector.arank(parts, job.cut.oversize.task)
                named = understood(ranking, len(parts))
            except Exception as error:
                late = is_late(error)
                self._fail(batch.jobs[place:] if late else [job], error)
                if late:
                    break
            else:
                self._finish(job, named)
        return batch

    def _history(self, step: Step) -> Sequence[Oversize]:
        older = older_results(step)
        try:
            texts = [plain_text(one.message) for one in older]
            ranking = self._older.rank(texts, older[-1].task) if older else ()
            ranking = understood(ranking, len(older))
        except Exception as error:
            self._failed(error)
            return without_history(step.oversize, self._count)
        return self._with_history(step, older, ranking)

    async def _ahistory(self, step: Step) -> Sequence[Oversize]:
        older = older_results(step)
        try:
            texts = [plain_text(one.message) for one in older]
            ranking = await self._older.arank(texts, older[-1].task) if older else ()
            ranking = understood(ranking, len(older))
        except Exception as error:
            self._failed(error)
            return without_history(step.oversize, self._count)
        return self._with_history(step, older, ranking)

    def _with_history(
        self, step: Step, older: Sequence[Oversize], ranking: Sequence[int]
    ) -> Sequence[Oversize]:
        if not older:
            return step.oversize
        staying = _staying(step)
        kept = [one for one in step.oversize if one.why is not Why.HISTORY or one.index in staying]
        return kept_history(kept, ranking, self.excerpt, self._count)

    # What both share

    def _parts(self, job: Job) -> Sequence[str]:
        """Return what is ranked; head and tail look at nothing."""
        return () if isinstance(self.selector, HeadTail) else job.cut.parts

    def _begin(self, proposal: Proposal, oversize: Sequence[Sequence[Oversize]]) -> Batch:
        batch = Batch()
        for number, (step, found) in enumerate(zip(proposal.steps, oversize, strict=True)):
            staying = _staying(step)
            for one in found:
                if one.index not in staying:
                    continue
                made = self._made.find(one.message)
                if made is None or made.asked != _asked(one):
                    key = entry_key(one.message, None, one.index) if self._archives else None
                    job = Job((number, one.index), Cut(one, self._count, key))
                    batch.jobs.append(job)
                elif made.short is not None:
                    batch.ready[number, one.index] = made.short
            for index, short in step.known.items():
                batch.ready[number, index] = short
        return batch

    def _finish(self, job: Job, ranking: Sequence[int]) -> None:
        one = job.cut.oversize
        job.short = job.cut.shorten(ranking)
        if job.short is None:
            self._made.remember(one.message, Made(_asked(one), None))
        elif self._archives and marked_key(one.message) is None:
            job.entry = self._packed(str(job.cut.key), one.message)

    def _packed(self, key: str, message: Message) -> Entry:
        try:
            return Entry.of(key, self._serde.dumps_typed(message))
        except Exception:
            # Of a tool result with an artifact that nobody can write, what can be is kept.
            if getattr(message, "artifact", None) is None:
                raise
            bare = message.model_copy(update={"artifact": None})  # type: ignore[attr-defined]
            return Entry.of(key, self._serde.dumps_typed(bare))

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """Leave contents whole, and do not ask again for them in this run."""
        for job in jobs:
            self._failed(error)
            one = job.cut.oversize
            self._made.remember(one.message, Made(_asked(one), None))

    def settled(self, proposal: Proposal, batch: Batch, *, archived: bool) -> Proposal:
        """Return the proposal with its excerpts; without those whose whole was not archived."""
        used = dict(batch.ready)
        made: dict[int, tuple[int, int]] = {}
        for job in batch.jobs:
            if job.short is None or (job.entry is not None and not archived):
                continue
            used[job.place] = job.short
            one = job.cut.oversize
            before = self.known(one.message)
            # A result may lose its artifact first, and be cut when it is no longer spared.
            count, saved = made.get(job.place[0], (0, 0))
            saved += job.short.saved - (before.saved if before else 0)
            made[job.place[0]] = (count + (before is None), saved)
            self._made.remember(one.message, Made(_asked(one), job.short))
        steps = []
        for number, step in enumerate(proposal.steps):
            mine = {index: short for (owner, index), short in used.items() if owner == number}
            count, saved = made.get(number, (0, 0))
            steps.append(step.with_excerpts(mine, made=count, saved=saved))
        return replace(proposal, steps=tuple(steps))

    @property
    def looks_at_writes(self) -> bool:
        """Tell whether pending writes are looked at: for an artifact that nobody can write, too."""
        return self.excerpt.writes or self.excerpt.artifact != "keep"

    def short_writes(
        self, writes: Sequence[tuple[str, Any]], places: Mapping[str, Place]
    ) -> tuple[list[tuple[str, Any]], list[Entry]]:
        """Return pending writes with excerpts, head and tail, and what has to be archived."""
        channels = {place.channel for place in places.values() if place.key is None}
        entries: list[Entry] = []
        found = []
        for channel, value in writes:
            listed = value if isinstance(value, list) else [value]
            short = self._short_list(listed, entries, name=_named) if channel in channels else None
            if short is not None:
                value = short if isinstance(value, list) else short[0]
            found.append((channel, value))
        return found, entries

    def short_copy(self, write: tuple[str, Any], setting: Setting) -> tuple[Any, list[Entry]]:
        """Return a write that repeats a list, as a `Send`, with excerpts, and what to archive."""
        entries: list[Entry] = []

        def bound(messages: list[Message]) -> list[Message]:
            return self._short_list(messages, entries) or messages

        [(_, value)] = bound_writes([write], setting.copies, setting.keys(), bound)
        return value, entries

    def _short_list(
        self,
        messages: list[Message],
        entries: list[Entry],
        *,
        name: Callable[[Message], Message] = lambda message: message,
    ) -> list[Message] | None:
        found = find(messages, self.excerpt, self._count, running=False)
        oversize = [one for one in found if self._may_cut(one)]
        if not self.excerpt.writes:
            oversize = [_artifact_alone(one) for one in oversize if one.artifact]
        left = list(messages)
        for one in oversize:
            made = self._made.find(one.message)
            if made is not None and made.asked == _asked(one):
                left[one.index] = made.short.message if made.short else one.message
                continue
            one = replace(one, message=name(one.message))
            key = entry_key(one.message, None, one.index) if self._archives else None
            if short := Cut(one, self._count, key).shorten():
                left[one.index] = short.message
                if key is not None and marked_key(one.message) is None:
                    entries.append(self._packed(key, one.message))
        return left if oversize else None

    def _may_cut(self, one: Oversize) -> bool:
        """Tell whether a result without a name may be cut: its call is in no pending write."""
        rules = self.excerpt
        by_name = rules.never or rules.exclude or rules.caps or rules.include is not None
        return not by_name or bool(one.task.tool) or role(one.message) is not Role.TOOL


def older_results(step: Step) -> list[Oversize]:
    """Return the results of earlier turns that stay and are to be held against the task."""
    staying = _staying(step) if step.oversize else frozenset()
    return [one for one in step.oversize if one.why is Why.HISTORY and one.index in staying]


def _named(message: Message) -> Message:
    """Return a message with an id, which its whole in the archive shares.

    LangGraph gives ids later, as it applies writes: to this copy where the run was broken off.
    """
    if identifier(message) is not None:
        return message
    return with_fields(message, {"id": str(uuid4())}) or message


def _artifact_alone(one: Oversize) -> Oversize:
    return replace(one, why=Why.ARTIFACT, cap=None, media=False)


def keys_of_wholes(leave: Leave) -> list[str]:
    """Return the keys under which the wholes of leaving excerpts are archived."""
    pairs = zip(leave.segment.keys, leave.messages, strict=True)
    return [key for key, message in pairs if marked_key(message) == key]


def with_wholes(leave: Leave, wholes: Sequence[Entry], serde: SerializerProtocol) -> Leave:
    """Return what leaves with whole messages in the place of excerpts."""
    if not wholes:
        return leave
    found = {entry.key: entry.load(serde) for entry in wholes}
    pairs = zip(leave.segment.keys, leave.messages, strict=True)
    return replace(leave, messages=tuple(found.get(key, message) for key, message in pairs))


def _staying(step: Step) -> frozenset[int]:
    gone = frozenset(step.plan.leaving_at) if step.plan and step.plan.changes else frozenset()
    return frozenset(one.index for one in step.oversize if one.index not in gone)


def _asked(one: Oversize) -> tuple[object, ...]:
    return (one.cap, one.media, one.artifact, one.collapses)
