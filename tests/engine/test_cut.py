"""A plan that cuts from the tail says the same as one that looks at every unit (E8, E9)."""

from __future__ import annotations

from engine.strategies import Case, cases, write
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reducing_saver.engine import Window, plan
from reducing_saver.engine.plan import Plan, When, _Decision
from reducing_saver.engine.window import Measure

_ROOMS: list[dict[Measure, int]] = [{}, {"messages": 1, "tokens": 20}]
_SMALL = Window(("messages", 1), ("messages", 2), ("messages", 8))


def test_a_plain_cut_is_the_full_decision() -> None:
    compared = 0
    examples = max(1500, settings().max_examples)

    @settings(settings.get_profile("engine"), max_examples=examples)
    # A call id that is used again: its second result answers the call before the cut.
    @example(Case(write("H A(a,b) T(b) H H A(a,b) T(a) A T(a)"), _SMALL, When.REST), {})
    @given(cases(pins=False), st.sampled_from(_ROOMS))
    def compare(case: Case, room: dict[Measure, int]) -> None:
        nonlocal compared
        quick = plan(case.messages, case.window, when=When.REST, room=room)
        if quick._cut is None:
            return
        compared += 1
        decision = _Decision(quick.units, quick.window, quick.when, quick.passed, room=room)
        reasons = decision.reasons()
        full = Plan(case.messages, case.window, When.REST, _decided=(quick.units, reasons))
        assert [id(m) for m in quick.leaving] == [id(m) for m in full.leaving]
        assert [id(m) for m in quick.staying] == [id(m) for m in full.staying]
        assert quick.changes
        assert quick.actions == full.actions

    compare()
    assert compared > 50
