"""Print trials for people.

One conversation is shown unit by unit; of several only those that change, in one line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._console import Cell, Column, say, table
from ._trial import LEFT, SIZES, Fault, Trial, begins, level, measured, reason, why
from ._words import NAMES, count, listed, place
from .engine import Action, Plan, Verdict

_COLOURS = {Verdict.KEEP: "green", Verdict.EXCERPT: "yellow", Verdict.EVICT: "red"}

FAULTS = 12
"""How many problems of a conversation are listed; `--json` has all."""


def show(trials: Sequence[Trial], *, every: bool) -> None:
    """Print the plan of one conversation; of several a summary, and every plan where asked for."""
    several = len(trials) > 1
    if several:
        _show_summary(trials)
    if several and not every:
        _show_changing(trials)
        return
    for trial in trials:
        if several:
            say()
        _show_plan(trial)


# Several conversations


def _show_summary(trials: Sequence[Trial]) -> None:
    plans = [trial.plan for trial in trials]
    changed = sum(trial.changes for trial in trials)
    gone = sum(len(made.leaving) for made in plans)
    total = sum(len(made.messages) for made in plans)
    say(
        f"{changed} of {len(plans)} conversations would change; {gone:,} of {total:,} messages "
        "would leave.",
        style="bold",
    )
    if not any(made.passed for made in plans):
        say(_largest(plans), style="yellow")
    if stuck := sum(made.stuck for made in plans):
        say(f"{stuck} would stay above a mark: {LEFT}.", style="yellow")
    say(f"{sum(t.worse for t in trials)} would get a provider problem that they do not have now.")
    _say_unknown(sum(trial.unknown for trial in trials))


def _largest(plans: Sequence[Plan]) -> str:
    triggers = plans[0].window.triggers
    largest = (max(plans, key=lambda made: measured(made, mark.measure)) for mark in triggers)
    levels = (level(made, mark) for made, mark in zip(largest, triggers, strict=True))
    return f"The largest conversation has {'; '.join(levels)}: lower the trigger."


def _show_changing(trials: Sequence[Trial]) -> None:
    changing = [trial for trial in trials if trial.changes]
    if changing:
        say()
        names = ("messages", "", "tokens", "", "problems", "")
        columns = (Column(name, right=True) for name in names)
        table((Column("conversation", most=24), *columns), map(_change, changing))
    say("\n--only ID shows the plan of one conversation, --all every plan", style="dim")


def _change(trial: Trial) -> Iterator[Cell]:
    yield trial.id
    for measure in ("messages", "tokens"):
        yield f"{trial.plan.total(measure):,}"
        yield f"-> {trial.plan.total(measure, Verdict.KEEP):,}"
    yield str(sum(fault.before for fault in trial.faults))
    yield f"-> {sum(fault.after for fault in trial.faults)}", "red" if trial.worse else ""


# One conversation


def _show_plan(trial: Trial) -> None:
    made = trial.plan
    titles = (trial.id, "bold"), (count(len(made.messages), "message"), "dim")
    table((Column(), Column()), [titles])
    numbers = (Column(name, right=True) for name in ("msgs", "tokens", "bytes"))
    reason, begins = Column("reason"), Column("begins with", rest=True)
    columns = (Column(), Column("turn", right=True), Column("unit"), *numbers, reason, begins)
    table(columns, (_row(action, made) for action in made.actions), gap=1)
    table((Column(), *(Column(right=True) for _ in SIZES)), _totals(trial))
    for fault in trial.faults[:FAULTS]:
        say(f"  {_said(fault)}")
    if (more := len(trial.faults) - FAULTS) > 0:
        say(f"  and {more} more (--json lists them)")
    _say_unknown(trial.unknown)
    if made.excerpted:
        say(f"{count(len(made.excerpted), 'content')} would be stored as excerpts.")
    say(why(made), style="" if made.changes and not made.stuck else "yellow")


def _row(action: Action, made: Plan) -> Iterator[Cell]:
    unit, leaves = action.unit, action.verdict is Verdict.EVICT
    style = "dim" if leaves else ""
    yield str(action.verdict), _COLOURS[action.verdict]
    yield str(unit.turn) if unit.turn >= 0 else "", style
    yield str(unit.kind), style
    for measure in SIZES:
        yield f"{made.size(unit, measure):,}", style
    yield reason(action), style
    yield begins(action), style


def _totals(trial: Trial) -> Iterator[list[Cell]]:
    for name, verdict in (("kept", Verdict.KEEP), ("evicted", Verdict.EVICT)):
        yield [name, *(f"{trial.plan.total(size, verdict):,} {size}" for size in SIZES)]
    counts = ((trial.broken(key, after=False), trial.broken(key, after=True)) for key in NAMES)
    pairs = zip(NAMES.values(), counts, strict=True)
    yield ["problems", *(f"{name} {before} -> {after}" for name, (before, after) in pairs)]


def _said(fault: Fault) -> str:
    fate = "" if fault.before and fault.after else "; it is new" if fault.after else "; it leaves"
    names = listed([NAMES[key] for key in fault.providers])
    return f"{fault.rule}{place(fault.index)} ({names}){fate}"


def _say_unknown(number: int) -> None:
    if number:
        say(f"note: messages of a role that no provider knows: {number}", style="yellow")
