"""Try a window on a person's own transcripts: what would leave, why, and what a provider says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from ._transcripts import Conversation
from ._words import NAMES, line, listed, sized
from .engine import (
    Action,
    Excerpt,
    Kind,
    Mark,
    Measure,
    Plan,
    Problem,
    Reason,
    Unit,
    Verdict,
    Window,
    apply,
    problems,
    reduce_messages,
)
from .engine.validity import Provider

TEXT = 200
"""How many letters of a unit are shown at most."""

LEFT = "what is left is the current turn, or pinned"

SIZES: tuple[Measure, ...] = ("messages", "tokens", "bytes")


@dataclass(frozen=True, slots=True)
class Fault:
    """Hold a provider problem, and whether it is there before and after; `index` is the file's."""

    index: int
    rule: str
    providers: tuple[Provider, ...]
    before: bool
    after: bool


@dataclass(frozen=True)
class Trial:
    """Hold one conversation and what a window would do to it."""

    id: str
    plan: Plan

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """Return the problems that a provider has with it, before or after."""
        made = self.plan
        if not made.units:
            return ()
        places = sorted(index for unit in made.kept for index in unit.indices)
        before = {_key(p): p for p in problems(made.messages)}
        after = {_key(p, places): p for p in problems(apply(made))}
        return tuple(
            Fault(*key, found.providers, key in before, key in after)
            for key, found in sorted((before | after).items())
        )

    def broken(self, provider: Provider, *, after: bool) -> int:
        """Count what a provider would refuse."""
        asked = [fault for fault in self.faults if provider in fault.providers]
        return sum(fault.after if after else fault.before for fault in asked)

    @property
    def worse(self) -> bool:
        """Tell whether some provider would refuse more than now."""
        return any(self.broken(key, after=True) > self.broken(key, after=False) for key in NAMES)

    @property
    def changes(self) -> bool:
        """Tell whether anything leaves or becomes an excerpt."""
        return self.plan.changes or bool(self.plan.excerpted)

    @property
    def unknown(self) -> int:
        """Count the messages that are not understood."""
        return sum(len(unit.messages) for unit in self.plan.units if unit.kind is Kind.OTHER)


def _key(problem: Problem, places: Sequence[int] | None = None) -> tuple[int, str]:
    index = problem.index
    return (index if index < 0 or places is None else places[index]), problem.rule


def try_window(
    conversations: Sequence[Conversation], window: Window, excerpt: Excerpt | None = None
) -> list[Trial]:
    """Plan what a window, and an excerpt, would do to each conversation at rest."""
    return [
        Trial(each.id, reduce_messages(list(each.messages), window, excerpt=excerpt).plan)
        for each in conversations
    ]


def why(made: Plan) -> str:
    """Say in a sentence which mark was passed or not, and what was aimed at."""
    if not made.units:
        return "Nothing would leave: the conversation has no messages."
    if not made.passed:
        marks = (level(made, mark) for mark in made.window.triggers)
        return f"Nothing would leave: no trigger passed ({'; '.join(marks)})."
    passed = "; ".join(level(made, mark) for mark in made.passed)
    if not made.changes:
        return f"Nothing can leave although {passed}: it is the current turn, or pinned."
    if made.stuck:
        return f"Still above the mark ({passed}; {_aim(made)}): {LEFT}."
    return f"Passed: {passed}; {_aim(made)}."


def level(made: Plan, mark: Mark) -> str:
    """Say how much there is of what a mark measures, and what the mark is."""
    kind = "trigger" if mark in made.window.triggers else "cap"
    level = sized(mark._replace(value=measured(made, mark.measure)))
    systems = sum(map(_leads, made.units)) if mark.measure != "turns" else 0
    without = f" without the system message{'s' * (systems > 1)}" if systems else ""
    return f"{level}{without}, {kind} {mark.value:,}"


def measured(made: Plan, measure: Measure) -> int:
    """Return the size as marks count it, without leading system messages."""
    return sum(made.size(unit, measure) for unit in made.units if not _leads(unit))


def _leads(unit: Unit) -> bool:
    return unit.kind is Kind.SYSTEM and unit.turn < 0


def _aim(made: Plan) -> str:
    keep, cap = made.window.keep, made.window.cap
    most = {keep.measure: keep.value}
    for mark in (*made.window.triggers, *(mark for mark in made.passed if mark == cap)):
        if mark.measure != keep.measure:
            half = mark.value // 2
            most[mark.measure] = min(half, most.get(mark.measure, half))
    aim = f"down to {listed([sized(Mark(*mark)) for mark in most.items()])}"
    split = any(action.reason is Reason.ABOVE_CAP for action in made.actions)
    if split and most.get(cap.measure) != cap.value // 2:
        aim += f", and in the current turn to {sized(cap._replace(value=cap.value // 2))}"
    return aim


def reason(action: Action) -> str:
    """Say why a unit stays or leaves."""
    return "no trigger passed" if action.reason is Reason.BELOW else str(action.reason)


def begins(action: Action) -> str:
    """Say what the messages of a unit begin with."""
    return " ".join(line(message) for message in action.unit.messages[:9])[:TEXT]


def as_json(trials: Sequence[Trial]) -> dict[str, object]:
    """Return the plans for programs."""
    return {"conversations": [_trial_as_json(trial) for trial in trials]}


def _trial_as_json(trial: Trial) -> dict[str, object]:
    made = trial.plan
    before, after = (
        {key: trial.broken(key, after=side) for key in NAMES} for side in (False, True)
    )
    return {
        "id": trial.id,
        "changes": trial.changes,
        "excerpts": len(made.excerpted),
        "passed": [mark._asdict() for mark in made.passed],
        "stuck": made.stuck,
        "why": why(made),
        "units": [_action_as_json(action, made) for action in made.actions],
        **{
            name: {measure: made.total(measure, verdict) for measure in SIZES}
            for name, verdict in (("kept", Verdict.KEEP), ("evicted", Verdict.EVICT))
        },
        "problems": {
            "before": before,
            "after": after,
            "found": [asdict(fault) for fault in trial.faults],
        },
    }


def _action_as_json(action: Action, made: Plan) -> dict[str, object]:
    unit = action.unit
    return {
        "verdict": str(action.verdict),
        "reason": reason(action),
        "kind": str(unit.kind),
        "turn": unit.turn,
        "indices": list(unit.indices),
        "tools": list(unit.tools),
        "open": unit.open,
        **{measure: made.size(unit, measure) for measure in SIZES},
        "text": begins(action),
    }
