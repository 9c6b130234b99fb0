"""Make the summaries that a proposal needs, and decide what happens where one cannot be made."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from langgraph.checkpoint.serde.base import SerializerProtocol

from ._ahead import Ahead, Job, Line
from ._archive import Archive
from ._counts import Counts
from ._entry import Entry
from ._origin import origin_of
from ._reduction import Offer, Proposal, Step, evicting
from ._segment import Segment
from ._summary import Coverage, Summarised, Summary
from ._summary_message import carried, newest_summary, summary_id
from .engine import Message, When, Window
from .engine.plan import exceeds

logger = logging.getLogger("reducing_saver")

_STAYS = "the summary of thread %r failed (%s); nothing leaves, it is tried again"
_LEAVES = "the summary of thread %r failed (%s); what leaves goes without one"


@dataclass(frozen=True, slots=True)
class Roll:
    """Hold what summaries are made with; `ahead` where they are made off the path of a put."""

    summary: Summary
    window: Window
    counts: Counts
    archive: Archive | None
    serde: SerializerProtocol
    ahead: Ahead | None = None


def patience(window: Window) -> int:
    """Return how many messages longer a list has to be before a failed eviction is tried again."""
    keep, trigger = window.keep, window.triggers[0]
    alike = keep.measure == trigger.measure == "messages"
    return max(1, trigger.value - keep.value) if alike else 10


def summarise(proposal: Proposal, roll: Roll) -> Proposal:
    """Return the proposal with a summary of everything that leaves."""
    steps = []
    for offered in proposal.steps:
        step = _made_ahead(proposal, offered, roll)
        if _needs_one(proposal.offer, step):
            started = time.perf_counter()
            try:
                step = _told_before(proposal.offer, step, roll)
                previous = _previous(proposal.offer, step, roll)
                if roll.ahead is not None:
                    step = _begun(proposal, step, previous, roll, roll.ahead)
                else:
                    thread = proposal.offer.thread
                    leaving = step.summarisable()
                    made = roll.summary.summarise(leaving, previous, thread=thread)
                    step = _made(step, made, roll, started)
            except Exception as error:
                step = _failed(step, roll, started, error, proposal.offer.thread)
        steps.append(step)
    return replace(proposal, steps=tuple(steps))


async def asummarise(proposal: Proposal, roll: Roll) -> Proposal:
    """Return the proposal with a summary of everything that leaves."""
    steps = []
    for offered in proposal.steps:
        step = _made_ahead(proposal, offered, roll)
        if _needs_one(proposal.offer, step):
            started = time.perf_counter()
            try:
                step = await _atold_before(proposal.offer, step, roll)
                previous = _previous(proposal.offer, step, roll)
                if roll.ahead is not None:
                    step = _begun(proposal, step, previous, roll, roll.ahead)
                else:
                    thread = proposal.offer.thread
                    leaving = step.summarisable()
                    made = await roll.summary.asummarise(leaving, previous, thread=thread)
                    step = _made(step, made, roll, started)
            except Exception as error:
                step = _failed(step, roll, started, error, proposal.offer.thread)
        steps.append(step)
    return replace(proposal, steps=tuple(steps))


def _needs_one(offer: Offer, step: Step) -> bool:
    """Tell whether a summary is made: not for a call of a subgraph, whose result is on its way."""
    if step.summary_text is not None or not step.evicts:
        return False
    return ":" not in offer.namespace and bool(step.summarisable())


def _previous(offer: Offer, step: Step, roll: Roll) -> Message | None:
    """Return the summary to go on from: in the list, or the one that hooks were told last."""
    told: tuple[Message, ...] = ()
    if roll.summary.place == "hooks":
        told = step.told or offer.parent.told.get(step.name, ())
    return newest_summary(told) or newest_summary(step.left)


def _told_before(offer: Offer, step: Step, roll: Roll) -> Step:
    """Return the step with what hooks were told last, where only the archive knows it."""
    archive, newest = roll.archive, _unknown(offer, step, roll)
    if archive is None or newest is None:
        return step
    summarised = _newest_summarised(archive.chain(offer.thread, newest))
    entries = archive.read(offer.thread, [one.summary_key for one in summarised])
    return _as_told(offer, step, roll, entries)


async def _atold_before(offer: Offer, step: Step, roll: Roll) -> Step:
    """Return the step with what hooks were told last, where only the archive knows it."""
    archive, newest = roll.archive, _unknown(offer, step, roll)
    if archive is None or newest is None:
        return step
    summarised = _newest_summarised(await archive.achain(offer.thread, newest))
    entries = await archive.aread(offer.thread, [one.summary_key for one in summarised])
    return _as_told(offer, step, roll, entries)


def _unknown(offer: Offer, step: Step, roll: Roll) -> str | None:
    """Return the segment from which to look for a summary in the archive; None where not to."""
    known = roll.summary.place == "state" or step.name in offer.parent.told
    return None if known else offer.parent.segments.get(step.name)


def _newest_summarised(line: list[Segment]) -> list[Segment]:
    return [segment for segment in line if segment.summarised][:1]


def _as_told(offer: Offer, step: Step, roll: Roll, entries: list[Entry]) -> Step:
    told: tuple[Message, ...] = ()
    for entry in entries:
        text = entry.load(roll.serde)
        # What it covers is not archived, and nobody asks: it never stands in a list.
        told = carried("human", text, summary_id(offer.thread), Coverage(complete=False))
    return replace(step, told=told)


def _made(step: Step, made: Summarised, roll: Roll, started: float) -> Step:
    roll.counts.add_summary(step.name, time.perf_counter() - started, made.calls)
    return _with(step, made, roll.summary)


def _with(step: Step, made: Summarised, summary: Summary) -> Step:
    if summary.place == "state":
        return replace(step, summary=made.messages, summary_text=made.text)
    return replace(step, told=made.messages, summary_text=made.text)


def _failed(step: Step, roll: Roll, started: float, error: Exception, thread: str) -> Step:
    roll.counts.add_summary(step.name, time.perf_counter() - started, None)
    if roll.summary.on_failure == "evict" or _is_large(step, roll.window):
        logger.warning(_LEAVES, thread, origin_of(error))
        return step
    logger.warning(_STAYS, thread, origin_of(error))
    return step.kept_back(patience(roll.window))


def _is_large(step: Step, window: Window) -> bool:
    """Tell whether a list is so large that it is not kept for want of a summary."""
    return exceeds(step.left, window.cap._replace(value=2 * window.cap.value), window)


def _made_ahead(proposal: Proposal, step: Step, roll: Roll) -> Step:
    """Return a step that evicts what a summary was made of meanwhile, where the list holds it."""
    if roll.ahead is None:
        return step
    for job in roll.ahead.made(_line(proposal.offer, step)):
        places = job.places(step.left, _previous(proposal.offer, step, roll))
        left = evicting(proposal, step, roll.window, places) if places else None
        if left is not None and job.made is not None:
            return replace(_with(left, job.made, roll.summary), used=job)
    return step


def _begun(
    proposal: Proposal, step: Step, previous: Message | None, roll: Roll, ahead: Ahead
) -> Step:
    """Return a step that keeps its messages, and see that a summary of them is being made."""
    line, when = _line(proposal.offer, step), proposal.when
    if step.told and (used := _made_ahead(proposal, step, roll)).used is not None:
        return used  # of what hooks were told last, which only the archive knew
    job = ahead.begun(line, step.left, previous)
    if job is not None and job.failed:
        ahead.drop([job])
        if roll.summary.on_failure == "evict" or _is_large(step, roll.window):
            return step
        if when is not When.REST:
            return _kept(step, patience(roll.window))
        job = None
    if job is None:
        leaving, length = step.summarisable(), len(step.left)
        job = ahead.begin(line, leaving, previous, length=length)
    return step if _is_late(job, step, roll.window, when) else _kept(step)


def _kept(step: Step, patience: int = 0) -> Step:
    """Return the step with nothing evicted, and with what hooks were told last."""
    return replace(step.kept_back(patience), told=step.told)


def _is_late(job: Job | None, step: Step, window: Window, when: When) -> bool:
    """Tell whether a run has gone on for so long that its list is not kept for a summary."""
    if when is When.REST:
        return False
    if job is None:
        return _is_large(step, window)
    return exceeds(step.left[job.length :], window.cap, window)


def _line(offer: Offer, step: Step) -> Line:
    return Line(offer.thread, offer.namespace, step.name)
