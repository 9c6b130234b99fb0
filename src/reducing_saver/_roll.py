"""Make the summaries that a proposal needs, and decide what happens where one cannot be made."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ._reduction import Offer, Proposal, Step
from ._stats import Counts
from ._summary import Summarised, Summary
from ._summary_message import newest_summary
from .engine import Window
from .engine.plan import exceeds

logger = logging.getLogger("reducing_saver")


def patience(window: Window) -> int:
    """Return how many messages longer a list has to be before a failed eviction is tried again."""
    keep, trigger = window.keep, window.triggers[0]
    alike = keep.measure == trigger.measure == "messages"
    return max(1, trigger.value - keep.value) if alike else 10


def summarise(proposal: Proposal, summary: Summary, window: Window, counts: Counts) -> Proposal:
    """Return the proposal with a summary of everything that leaves."""
    steps = []
    for step in proposal.steps:
        if _needs_one(proposal.offer, step):
            started = time.perf_counter()
            try:
                previous = newest_summary(step.left)
                thread = proposal.offer.thread
                made = summary.summarise(step.summarisable(), previous, thread=thread)
                step = _made(step, summary, made, counts, started)
            except Exception as error:
                step = _failed(step, summary, window, counts, started, error)
        steps.append(step)
    return replace(proposal, steps=tuple(steps))


async def asummarise(
    proposal: Proposal, summary: Summary, window: Window, counts: Counts
) -> Proposal:
    """Return the proposal with a summary of everything that leaves."""
    steps = []
    for step in proposal.steps:
        if _needs_one(proposal.offer, step):
            started = time.perf_counter()
            try:
                previous = newest_summary(step.left)
                thread = proposal.offer.thread
                made = await summary.asummarise(step.summarisable(), previous, thread=thread)
                step = _made(step, summary, made, counts, started)
            except Exception as error:
                step = _failed(step, summary, window, counts, started, error)
        steps.append(step)
    return replace(proposal, steps=tuple(steps))


def _needs_one(offer: Offer, step: Step) -> bool:
    """Tell whether a summary is made: not for a call of a subgraph, whose result is on its way."""
    return step.evicts and ":" not in offer.namespace and bool(step.summarisable())


def _made(step: Step, summary: Summary, made: Summarised, counts: Counts, started: float) -> Step:
    counts.add_summary(time.perf_counter() - started, made.calls)
    block = made.messages if summary.place == "state" else ()
    return replace(step, summary=block, summary_text=made.text)


def _failed(
    step: Step,
    summary: Summary,
    window: Window,
    counts: Counts,
    started: float,
    error: Exception,
) -> Step:
    counts.add_summary(time.perf_counter() - started, None)
    logger.warning("a summary failed: %s", type(error).__name__)
    twice = window.cap._replace(value=2 * window.cap.value)
    if summary.on_failure == "evict" or exceeds(step.left, twice, window):
        return step
    return step.held_back(patience(window))
