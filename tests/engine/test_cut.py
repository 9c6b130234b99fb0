"""A plan that cuts from the tail says the same as one that looks at every unit (E8, E9)."""

from __future__ import annotations

from engine.strategies import Case, cases
from hypothesis import given, settings

from reducing_saver.engine import plan
from reducing_saver.engine.plan import Plan, When, _Decision


def test_a_plain_cut_is_the_full_decision() -> None:
    compared = 0

    @settings(settings.get_profile("engine"), max_examples=1500)
    @given(cases(pins=False))
    def compare(case: Case) -> None:
        nonlocal compared
        quick = plan(case.messages, case.window, when=When.REST)
        if quick._cut is None:
            return
        compared += 1
        reasons = _Decision(quick.units, quick.window, quick.when, quick.passed).reasons()
        full = Plan(case.messages, case.window, When.REST, _decided=(quick.units, reasons))
        assert [id(m) for m in quick.leaving] == [id(m) for m in full.leaving]
        assert [id(m) for m in quick.staying] == [id(m) for m in full.staying]
        assert quick.changes
        assert quick.actions == full.actions

    compare()
    assert compared > 50
