"""Make the excerpts of a proposal: ask the selector, archive the wholes, remember what was made."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Entry
from ._channel import Place
from ._reduction import Proposal, Step
from ._segment import Leave, entry_key
from ._select import Selector, SelectorError, Words
from .engine import Excerpt, Short, Window
from .engine.counters import plain_text
from .engine.excerpt import Oversize, Why, marked_key
from .engine.messages import Message, identifier
from .engine.oversize import find, kept_history
from .engine.shorten import Cut

_MOST_HELD = 64


class Made(NamedTuple):
    """Hold the excerpt of a message, None where none was made, and what was asked for."""

    asked: tuple[object, ...]
    short: Short | None


class Excerpts:
    """Remember the excerpt of each message object, since a run offers its messages at every step.

    By object and content, never by id. Messages are referred to weakly; dicts cannot be and are
    held, at most 64. Safe to use from threads: at worst an excerpt is made twice.
    """

    def __init__(self) -> None:
        self._weak: dict[int, tuple[weakref.ref[Any], object, Made]] = {}
        self._held: OrderedDict[int, tuple[Message, Made]] = OrderedDict()

    def find(self, message: Message) -> Made | None:
        """Return what is remembered of this object, None where nothing is or it was edited."""
        if type(message) is dict:
            held = self._held.get(id(message))
            return held[1] if held and held[0] is message else None
        known = self._weak.get(id(message))
        if known is None or known[0]() is not message:
            return None
        return known[2] if known[1] is getattr(message, "content", None) else None

    def remember(self, message: Message, made: Made) -> None:
        """Keep what was made of a message."""
        key = id(message)
        try:
            reference = weakref.ref(message, lambda gone: self._leave(key, gone))
        except TypeError:
            self._held[key] = (message, made)
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)
            return
        self._weak[key] = (reference, getattr(message, "content", None), made)

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

    `count_failure` is told why a selector failed. Safe to use from threads.
    """

    def __init__(
        self,
        excerpt: Excerpt,
        selector: Selector,
        *,
        window: Window,
        serde: SerializerProtocol,
        archives: bool,
        count_failure: Callable[[str], None],
    ) -> None:
        self.excerpt, self.selector = excerpt, selector
        self._older = Words(ends=0) if isinstance(selector, Words) else selector
        self._count = window.sizes("tokens").of
        self._serde, self._archives = serde, archives
        self._made = Excerpts()
        self._failed = count_failure

    def known(self, message: Message) -> Short | None:
        """Return the excerpt that was made of this object."""
        made = self._made.find(message)
        return made.short if made else None

    # The two doors

    def rank_all(self, proposal: Proposal) -> Batch:
        """Return the excerpts that are needed, made with the selector."""
        batch = self._begin(proposal, [self._history(step) for step in proposal.steps])
        for job in batch.jobs:
            try:
                ranking = self.selector.rank(job.cut.parts, job.cut.oversize.task)
            except Exception as error:
                self._fail(job, error)
            else:
                self._finish(job, ranking)
        return batch

    async def arank_all(self, proposal: Proposal) -> Batch:
        """Return the excerpts that are needed, made with the selector."""
        batch = self._begin(proposal, [await self._ahistory(step) for step in proposal.steps])
        for job in batch.jobs:
            try:
                ranking = await self.selector.arank(job.cut.parts, job.cut.oversize.task)
            except Exception as error:
                self._fail(job, error)
            else:
                self._finish(job, ranking)
        return batch

    def _history(self, step: Step) -> Sequence[Oversize]:
        older = older_results(step)
        try:
            texts = [plain_text(one.message) for one in older]
            ranking = self._older.rank(texts, older[-1].task) if older else ()
        except Exception as error:
            self._failed(_reason(error))
            return [one for one in step.oversize if one.why is not Why.HISTORY]
        return self._with_history(step, older, ranking)

    async def _ahistory(self, step: Step) -> Sequence[Oversize]:
        older = older_results(step)
        try:
            texts = [plain_text(one.message) for one in older]
            ranking = await self._older.arank(texts, older[-1].task) if older else ()
        except Exception as error:
            self._failed(_reason(error))
            return [one for one in step.oversize if one.why is not Why.HISTORY]
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
            return Entry(key, *self._serde.dumps_typed(message))
        except Exception:
            # Of a tool result with an artifact that nobody can write, what can be is kept.
            if getattr(message, "artifact", None) is None:
                raise
            bare = message.model_copy(update={"artifact": None})  # type: ignore[attr-defined]
            return Entry(key, *self._serde.dumps_typed(bare))

    def _fail(self, job: Job, error: Exception) -> None:
        """Leave a content whole, and do not ask again for it in this run."""
        self._failed(_reason(error))
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
            if channel in channels and (short := self._short_list(listed, entries)):
                value = short if isinstance(value, list) else short[0]
            found.append((channel, value))
        return found, entries

    def _short_list(self, messages: list[Message], entries: list[Entry]) -> list[Message] | None:
        oversize = [
            one
            for one in find(messages, self.excerpt, self._count, running=False)
            if identifier(one.message) is not None
        ]
        if not self.excerpt.writes:
            oversize = [_artifact_alone(one) for one in oversize if one.artifact]
        left = list(messages)
        for one in oversize:
            key = entry_key(one.message, None, one.index) if self._archives else None
            if short := Cut(one, self._count, key).shorten():
                left[one.index] = short.message
                if key is not None and marked_key(one.message) is None:
                    entries.append(self._packed(key, one.message))
        return left if oversize else None


def older_results(step: Step) -> list[Oversize]:
    """Return the results of earlier turns that stay and are to be held against the task."""
    staying = _staying(step) if step.oversize else frozenset()
    return [one for one in step.oversize if one.why is Why.HISTORY and one.index in staying]


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
    found = {entry.key: serde.loads_typed((entry.kind, entry.data)) for entry in wholes}
    pairs = zip(leave.segment.keys, leave.messages, strict=True)
    return replace(leave, messages=tuple(found.get(key, message) for key, message in pairs))


def _staying(step: Step) -> frozenset[int]:
    gone = frozenset(step.plan.leaving_at) if step.plan and step.plan.changes else frozenset()
    return frozenset(one.index for one in step.oversize if one.index not in gone)


def _asked(one: Oversize) -> tuple[object, ...]:
    return (one.cap, one.media, one.artifact, one.collapses)


def _reason(error: Exception) -> str:
    # The text of an error may quote a content; a type's name does not.
    return error.reason if isinstance(error, SelectorError) else type(error).__name__
