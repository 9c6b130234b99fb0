"""The engine's rules (E1 to E6, E8 to E11), each as a property over generated histories.

Short and the same on every run; thousands of examples each with

    pytest tests/engine -m campaign --hypothesis-profile campaign
"""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from engine.strategies import (
    Case,
    Form,
    Ids,
    Move,
    Spec,
    Writer,
    cases,
    count_text,
    histories,
    media_blocks,
    patterns,
    plain_specs,
    render,
    render_all,
    rounds,
    says_pin,
    windows,
    write,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from reducing_saver.engine import (
    Kind,
    Mark,
    Plan,
    Unit,
    Verdict,
    When,
    Window,
    apply,
    join,
    plan,
    problems,
    reduce_messages,
    split,
)
from reducing_saver.engine.messages import holds_messages

pytestmark = pytest.mark.campaign


def _examples(share: float = 1.0) -> settings:
    """Take the examples of the chosen profile; `share` is for rules that cost more each."""
    current = settings()
    chosen = current if current.max_examples > 1000 else settings.get_profile("engine")
    return settings(chosen, max_examples=int(chosen.max_examples * share))


# -------------------------------------------------------------------------- what the rules say


def _same(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _is_leading(unit: Unit) -> bool:
    return unit.turn == -1 and unit.kind is Kind.SYSTEM


def _total(decided: Plan, units: Sequence[Unit], measure: str) -> int:
    """Measure what marks count: everything but leading system messages."""
    return sum(decided.size(unit, measure) for unit in units if not _is_leading(unit))


def _current(units: Sequence[Unit]) -> int:
    return max((unit.turn for unit in units), default=0)


def _pinned(units: Sequence[Unit], window: Window) -> set[tuple[int, ...]]:
    """Name the units that the window's options pin."""
    names = {item for item in window.pinned if isinstance(item, str)}
    predicates = [item for item in window.pinned if callable(item)]
    pinned = {
        unit.indices
        for unit in units
        if names.intersection(unit.tools)
        or any(says(message) for says in predicates for message in unit.messages)
    }
    for tool in window.keep_latest_of:
        pinned.update([unit.indices for unit in units if tool in unit.tools][-1:])
    if window.pin_first_human:
        pinned.update([unit.indices for unit in units if unit.kind is Kind.HUMAN][:1])
    return pinned


def _protected(case: Case, units: Sequence[Unit], kept: Sequence[Unit]) -> set[tuple[int, ...]]:
    """Name the units that never leave, whatever the marks say."""
    current, last = _current(units), len(case.messages) - 1
    stays = _pinned(units, case.window)
    stays |= {unit.indices for unit in units if _is_leading(unit) or last in unit.indices}
    stays |= {
        unit.indices
        for unit in units
        if unit.open and (case.when is not When.REST or unit.turn == current)
    }
    turns = {unit.turn for unit in units if unit.indices in stays} | {current}
    questions = {u.indices for u in units if u.kind is Kind.HUMAN and u.turn in turns}
    if current == 0:  # nobody asked: what speaks last stays, lest only system messages are left
        spoken = [u for u in units if u.kind not in (Kind.SYSTEM, Kind.OTHER)]
        questions = {unit.indices for unit in spoken[-1:]}
    # the summary stays, unless a newer one is now the first after it
    head = [unit for unit in units if unit.kind is Kind.SUMMARY and unit.turn == -1]
    behind = [u for u in kept if head and u.indices > head[0].indices][:1]
    return stays | questions | {u.indices for u in head if not _are_summaries(behind)}


def _are_summaries(units: Sequence[Unit]) -> bool:
    return bool(units) and all(unit.kind is Kind.SUMMARY for unit in units)


def _over(decided: Plan, units: Sequence[Unit], mark: Mark) -> bool:
    return _total(decided, units, mark.measure) > mark.value


def _seen(messages: Sequence[object]) -> Counter[tuple[str, str, int | None]]:
    """Count what each provider would refuse, by rule and by message."""
    seen: Counter[tuple[str, str, int | None]] = Counter()
    for problem in problems(messages):
        whole = problem.rule in ("first message is not human", "no messages")
        about = None if whole else id(messages[problem.index])
        seen.update((problem.rule, provider, about) for provider in problem.providers)
    return seen


def _reduce(case: Case) -> list[object]:
    return reduce_messages(case.messages, case.window, when=case.when).messages


def _late_and_nameless() -> list[object]:
    """Write a late second result after a call without an id, which might have answered that."""
    calls: list[dict[str, object]] = [
        {"name": "todo", "args": {}, "id": None},
        {"name": "read_file", "args": {}, "id": "c3"},
    ]
    tail = [HumanMessage("q"), AIMessage("", tool_calls=calls), *write("T(c3) A T(call_0)")]
    return [*write("A(call_0) T(call_0) H"), *tail]


_TURNS_IN_SIX_MESSAGES = Window(("turns", 1), ("turns", 2), ("messages", 6))


# -------------------------------------------------------------------------------------- E1, E2


@_examples()
@given(histories())
def test_e1_split_and_join_give_the_same_list(messages: list[object]) -> None:
    """E1: join(split(m)) == m, object by object."""
    assert _same(join(split(messages)), messages)


@_examples()
@given(histories())
def test_e1_units_cover_every_message_once(messages: list[object]) -> None:
    """E1: every message is in exactly one unit, and units are ordered by their first message."""
    units = split(messages)
    assert sorted(i for unit in units for i in unit.indices) == list(range(len(messages)))
    for unit in units:
        assert list(unit.indices) == sorted(unit.indices)
        assert _same(unit.messages, [messages[i] for i in unit.indices])
    assert all(a.indices[0] < b.indices[0] for a, b in pairwise(units))


@_examples()
@given(histories())
def test_e1_turns_are_numbered_from_human_messages(messages: list[object]) -> None:
    """E1: a turn is a human message and all units up to the next one."""
    units = split(messages)
    head = [unit for unit in units if unit.turn == -1]
    numbers = [unit.turn for unit in units if unit.turn >= 0]
    assert numbers == sorted(numbers)
    humans = [unit.turn for unit in units if unit.kind is Kind.HUMAN]
    assert humans == list(range(1, len(humans) + 1))
    for before, unit in pairwise(units):
        if unit.turn > max(before.turn, 0):
            assert unit.kind is Kind.HUMAN
    assert [unit.kind for unit in head if unit.kind is not Kind.SYSTEM] in ([], [Kind.SUMMARY])
    for unit in units[: units.index(head[-1])] if head else ():
        assert unit.kind is Kind.SYSTEM or _is_summary(unit.messages[0])
    for unit in units:
        if unit.kind in (Kind.TOOLS,):
            assert unit.tools
        else:
            assert not unit.open
            assert unit.kind is Kind.SUMMARY or len(unit.messages) == 1


@_examples()
@given(plain_specs(), st.sampled_from([None, *Form]), st.integers(0, 9))
def test_e1_a_result_lives_with_the_call_it_answers(
    said: list[Spec], form: Form | None, seed: int
) -> None:
    """E1: in a history without accidents each unit is a call with exactly its results."""
    messages = render_all(said, form, seed=seed)
    owner = {call.id: index for index, spec in enumerate(said) for call in spec.calls}
    for unit in split(messages):
        first = said[unit.indices[0]]
        answers = [i for i, spec in enumerate(said) if owner.get(spec.answers) == unit.indices[0]]
        assert list(unit.indices) == [unit.indices[0], *answers]
        assert unit.kind is (Kind.TOOLS if first.calls else _PLAIN_KINDS[first.role])
        assert list(unit.tools) == [call.name for call in first.calls]
        assert not unit.open


_PLAIN_KINDS = {
    "system": Kind.SYSTEM,
    "developer": Kind.SYSTEM,
    "human": Kind.HUMAN,
    "ai": Kind.AI,
}


@_examples()
@given(plain_specs(max_moves=12), st.randoms(use_true_random=False))
def test_e1_late_results_are_matched_by_id(said: list[Spec], random: object) -> None:
    """E1: results are matched by id wherever they arrive after their call."""
    spoken = [spec for spec in said if spec.role != "result"]
    answers = {spec.answers: spec for spec in said if spec.role == "result"}
    late: list[Spec] = []
    waiting: list[Spec] = []
    for spec in spoken:
        while waiting and random.random() < 0.4:  # type: ignore[attr-defined]
            late.append(waiting.pop(random.randrange(len(waiting))))  # type: ignore[attr-defined]
        late.append(spec)
        waiting += [answers[call.id] for call in spec.calls]
    late += waiting
    messages = render_all(late, Form.LANGCHAIN)
    for unit in split(messages):
        calls = {call.id for call in late[unit.indices[0]].calls}
        assert {late[i].answers for i in unit.indices[1:]} == calls
        assert not unit.open


@_examples()
@given(plain_specs(), windows(), st.sampled_from(list(When)))
def test_e1_every_form_of_a_history_is_cut_alike(
    said: list[Spec], window: Window, when: When
) -> None:
    """E1: how a message is stored does not change what leaves (marks in messages and turns)."""
    assume({mark.measure for mark in (window.keep, *window.triggers, window.cap)} <= _COUNTED)
    assume(not window.pinned)
    cuts = {
        form: [unit.indices for unit in plan(render_all(said, form), window, when=when).kept]
        for form in Form
    }
    assert len({tuple(cut) for cut in cuts.values()}) == 1, cuts


_COUNTED = {"messages", "turns"}


@_examples()
@given(cases())
@example(Case(_late_and_nameless(), Window(("messages", 1), ("messages", 2)), When.REST))
@example(Case(write("H A(c) H T(c) H"), Window(("messages", 2), ("messages", 4)), When.REST))
def test_e2_the_output_is_an_ordered_subsequence(case: Case) -> None:
    """E2: what is kept stands in its old order, and nothing is added."""
    reduced = reduce_messages(case.messages, case.window, when=case.when)
    kept = sorted(i for unit in reduced.plan.kept for i in unit.indices)
    assert _same(reduced.messages, [case.messages[i] for i in kept])
    gone = sorted(i for unit in reduced.plan.evicted for i in unit.indices)
    assert _same(reduced.evicted, [case.messages[i] for i in gone])
    assert sorted(kept + gone) == list(range(len(case.messages)))


@_examples()
@given(cases())
def test_e2_a_plan_accounts_for_every_unit(case: Case) -> None:
    """E2: a plan decides on every unit, gives a reason, adds up and can be printed."""
    decided = plan(case.messages, case.window, when=case.when)
    assert [action.unit for action in decided.actions] == list(decided.units)
    assert [a.unit for a in decided.actions if a.verdict is Verdict.KEEP] == list(decided.kept)
    assert [a.unit for a in decided.actions if a.verdict is Verdict.EVICT] == list(decided.evicted)
    assert all(action.reason for action in decided.actions)
    assert decided.changes == bool(decided.evicted)
    assert decided.when is case.when
    assert decided.window is case.window
    assert decided.messages is case.messages
    assert str(decided)
    for measure in ("messages", "turns", "tokens", "bytes"):
        kept, gone = (decided.total(measure, v) for v in (Verdict.KEEP, Verdict.EVICT))
        assert kept + gone == decided.total(measure)
    assert decided.total("turns") == sum(u.kind is Kind.HUMAN for u in decided.units)


# -------------------------------------------------------------------------------------- E3, E4


@_examples()
@given(cases())
def test_e3_problems_never_get_worse(case: Case) -> None:
    """E3: nothing that a provider would refuse is in the output that was not in the input."""
    worse = _seen(_reduce(case)) - _seen(case.messages)
    assert not worse


@_examples()
@given(plain_specs(), windows(), st.sampled_from(list(When)), st.integers(0, 9))
def test_e3_a_valid_history_stays_valid(
    said: list[Spec], window: Window, when: When, seed: int
) -> None:
    """E3: what every provider accepts is accepted after every cut."""
    messages = render_all([*said[:0], *_from_first_human(said)], None, seed=seed)
    assume(messages)
    assert problems(messages) == ()
    assert problems(reduce_messages(messages, window, when=when).messages) == ()


def _from_first_human(said: list[Spec]) -> list[Spec]:
    lead = [spec for spec in said if spec.role in ("system", "developer")]
    rest = [spec for spec in said if spec.role not in ("system", "developer")]
    while rest and rest[0].role != "human":
        rest = rest[1:]
    return [*lead, *rest] if rest else []


@_examples()
@given(cases())
@example(Case(write("S A S"), Window(("messages", 1), ("messages", 1), ("messages", 1)), When.REST))
@example(Case(write("S S A"), Window(("messages", 1), ("messages", 2)), When.REST))
def test_e4_reducing_twice_is_reducing_once(case: Case) -> None:
    """E4: reduce(reduce(x)) is reduce(x), the same list object."""
    once = _reduce(case)
    assert reduce_messages(once, case.window, when=case.when).messages is once


@_examples()
@given(cases())
def test_e4_what_is_kept_has_the_same_units_again(case: Case) -> None:
    """E4: the kept units are the units of the reduced list; nothing falls apart or merges."""
    decided = plan(case.messages, case.window, when=case.when)
    again = split(apply(decided))
    kept = [[id(message) for message in unit.messages] for unit in decided.kept]
    assert [[id(message) for message in unit.messages] for unit in again] == kept


@_examples()
@given(cases())
def test_e4_equal_inputs_are_reduced_alike(case: Case) -> None:
    """E4: deterministic: the same again, with equal copies, and whatever the window counted."""
    first = plan(case.messages, case.window, when=case.when)
    second = plan(list(case.messages), case.window, when=case.when)
    copied = plan(copy.deepcopy(case.messages), case.window, when=case.when)
    kept = [unit.indices for unit in first.kept]
    assert [unit.indices for unit in second.kept] == kept
    assert [unit.indices for unit in copied.kept] == kept
    assert str(first) == str(second) == str(copied)


@_examples()
@given(cases())
def test_e4_a_no_op_returns_the_same_list(case: Case) -> None:
    """E4: where nothing leaves, the list handed in is handed back."""
    decided = plan(case.messages, case.window, when=case.when)
    changed = apply(decided)
    assert (changed is case.messages) is not decided.changes
    assert decided.changes == (len(changed) < len(case.messages))
    assert (_reduce(case) is case.messages) is not decided.changes


@_examples()
@given(cases())
def test_e4_inputs_are_never_changed(case: Case) -> None:
    """E4: neither the list nor any message is touched, by any function of the engine."""
    before, objects = copy.deepcopy(case.messages), list(case.messages)
    decided = plan(case.messages, case.window, when=case.when)
    apply(decided)
    join(split(case.messages))
    problems(case.messages)
    str(decided)
    for unit in decided.units:
        decided.size(unit, "tokens")
        decided.size(unit, "bytes")
    assert _same(case.messages, objects)
    assert case.messages == before


@_examples()
@given(cases())
def test_e4_a_list_handed_out_is_nobody_elses(case: Case) -> None:
    """E4: changing a reduced list changes neither the plan nor the next answer."""
    decided = plan(case.messages, case.window, when=case.when)
    assume(decided.changes)
    first = apply(decided)
    expected = list(first)
    first.clear()
    assert _same(apply(decided), expected)
    assert _same(_reduce(case), expected)


# -------------------------------------------------------------------------------------- E5, E6


@_examples()
@given(cases())
@example(Case(write("S S A"), Window(("messages", 1), ("messages", 2)), When.REST))
def test_e5_leading_systems_pins_and_the_last_message_stay(case: Case) -> None:
    """E5: leading systems, pins with the human of their turn and the last message never leave."""
    decided = plan(case.messages, case.window, when=case.when)
    protected = _protected(case, decided.units, decided.kept)
    assert not [unit for unit in decided.evicted if unit.indices in protected]
    out = apply(decided)
    assert bool(out) == bool(case.messages)
    assert not case.messages or out[-1] is case.messages[-1]


@_examples()
@given(cases())
def test_e5_the_current_turn_stays_up_to_the_cap(case: Case) -> None:
    """E5: units of the current turn leave only above the cap, and only when nothing else can."""
    decided = plan(case.messages, case.window, when=case.when)
    current = _current(decided.units)
    cut = [unit for unit in decided.evicted if unit.turn == current]
    if not cut:
        return
    cap = decided.window.cap
    whole = [*decided.kept, *cut]
    assert _over(decided, whole, cap)
    protected = _protected(case, decided.units, decided.kept)
    earlier = [unit for unit in decided.kept if unit.turn < current]
    assert all(unit.indices in protected for unit in earlier)


@_examples()
@given(cases())
def test_e5_nothing_is_kept_for_its_role_alone(case: Case) -> None:
    """E5: below the oldest turn that is kept whole only protected units are left."""
    decided = plan(case.messages, case.window, when=case.when)
    if not decided.changes:
        return
    protected = _protected(case, decided.units, decided.kept)
    newest = max(unit.turn for unit in decided.evicted)
    earlier = [u for u in decided.kept if u.turn < newest and u.indices not in protected]
    assert not earlier
    if newest < _current(decided.units):
        assert not [u for u in decided.kept if u.turn == newest and u.indices not in protected]


@_examples()
@given(cases())
def test_e6_kept_messages_are_the_same_objects_and_equal(case: Case) -> None:
    """E6: a kept message is the very object handed in, equal to it in every field."""
    before = {id(message): copy.deepcopy(message) for message in case.messages}
    for message in _reduce(case):
        assert id(message) in before
        assert message == before[id(message)]
        assert repr(message) == repr(before[id(message)])


# ------------------------------------------------------------------------------------------ E8


def _evictable(case: Case, decided: Plan, *, earlier: bool) -> list[Unit]:
    protected, current = _protected(case, decided.units, decided.kept), _current(decided.units)
    return [
        unit
        for unit in decided.units
        if unit.indices not in protected and (unit.turn < current) is earlier
    ]


@_examples()
@given(cases())
def test_e8_nothing_leaves_until_a_mark_is_passed(case: Case) -> None:
    """E8: at or below every trigger (in a run: the cap) nothing leaves, as `passed` says."""
    decided = plan(case.messages, case.window, when=case.when)
    marks = () if case.when is When.RUN else case.window.triggers
    over = [mark for mark in (*marks, case.window.cap) if _over(decided, decided.units, mark)]
    if not holds_messages(case.messages):  # E11: what nothing is known of is no history
        over = []
    assert set(decided.passed) <= set(over)
    assert bool(decided.passed) == bool(over)
    if not over:
        assert not decided.changes
        assert not decided.stuck


@_examples()
@given(cases())
def test_e8_afterwards_at_most_keep_is_left(case: Case) -> None:
    """E8: after a crossing keep is held, or nothing but protected units is left to take."""
    decided = plan(case.messages, case.window, when=case.when)
    if not decided.passed:
        return
    left = [u for u in _evictable(case, decided, earlier=True) if u not in decided.evicted]
    if left:
        assert not _over(decided, decided.kept, case.window.keep)
        assert not _over(decided, decided.kept, case.window.cap)


@_examples()
@given(cases())
def test_e8_mixed_measures_go_to_half_of_the_trigger(case: Case) -> None:
    """E8: where keep and trigger differ in measure, at most half of the trigger is left."""
    decided = plan(case.messages, case.window, when=case.when)
    left = [u for u in _evictable(case, decided, earlier=True) if u not in decided.evicted]
    for mark in decided.passed:
        if mark in case.window.triggers and mark.measure != case.window.keep.measure and left:
            assert 2 * _total(decided, decided.kept, mark.measure) <= mark.value


@_examples()
@given(cases())
def test_e8_no_more_leaves_than_needed(case: Case) -> None:
    """E8: with the newest of the evicted turns still there some mark would not be held."""
    decided = plan(case.messages, case.window, when=case.when)
    current, window = _current(decided.units), case.window
    gone = [unit for unit in decided.evicted if unit.turn < current]
    if not gone:
        return
    newest = max(unit.turn for unit in gone)
    whole = [u for u in decided.units if u not in gone or u.turn == newest]
    halves = [m for m in window.triggers if m.measure != window.keep.measure]
    if _over(decided, decided.units, window.cap):
        halves.append(window.cap)
    assert _over(decided, whole, window.keep) or any(
        2 * _total(decided, whole, mark.measure) > mark.value for mark in halves
    )


@_examples()
@given(cases())
def test_e8_a_turn_goes_or_stays_as_a_whole(case: Case) -> None:
    """E8: of an earlier turn everything unprotected goes, or nothing."""
    decided = plan(case.messages, case.window, when=case.when)
    stays = {unit.turn for unit in _evictable(case, decided, earlier=True) if unit in decided.kept}
    goes = {unit.turn for unit in decided.evicted if unit.turn < _current(decided.units)}
    assert not stays & goes
    assert not stays or not goes or max(goes) < min(stays)


@_examples()
@given(cases())
def test_e8_above_the_cap_the_current_turn_goes_to_half_of_it(case: Case) -> None:
    """E8: still above the cap, the oldest units of the current turn go, down to half of the cap."""
    decided = plan(case.messages, case.window, when=case.when)
    cap, current = case.window.cap, _current(decided.units)
    able = _evictable(case, decided, earlier=False)
    gone = [unit for unit in able if unit in decided.evicted]
    assert gone == able[: len(gone)]
    earlier_gone = [unit for unit in decided.evicted if unit.turn < current]
    before = _total(decided, [u for u in decided.units if u not in earlier_gone], cap.measure)
    if decided.passed and before > cap.value:
        assert gone == able or 2 * _total(decided, decided.kept, cap.measure) <= cap.value
    if gone:
        assert before > cap.value
        # a system message that would now lead the list goes too, whatever the size
        newest = max((i for i, u in enumerate(gone) if u.kind is not Kind.SYSTEM), default=0)
        with_newest = [*decided.kept, *gone[newest:]]
        assert 2 * _total(decided, with_newest, cap.measure) > cap.value


@_examples()
@given(cases())
def test_e8_run_never_evicts_below_the_cap(case: Case) -> None:
    """E8: in the middle of a run nothing leaves at or below the cap, and never an open unit."""
    decided = plan(case.messages, case.window, when=When.RUN)
    if not _over(decided, decided.units, case.window.cap):
        assert not decided.changes
    assert not [unit for unit in decided.evicted if unit.open]


@_examples()
@given(cases())
def test_e8_resume_takes_earlier_turns_only(case: Case) -> None:
    """E8: a resumed run loses earlier turns only, unless above the cap, and never an open unit."""
    decided = plan(case.messages, case.window, when=When.RESUME)
    assert not [unit for unit in decided.evicted if unit.open]
    if not _over(decided, decided.units, case.window.cap):
        current = _current(decided.units)
        assert all(unit.turn < current for unit in decided.evicted)


@_examples()
@given(cases())
def test_e8_stuck_says_that_a_mark_cannot_be_held(case: Case) -> None:
    """E8: a plan is stuck when it passed a mark and is above one even so."""
    decided = plan(case.messages, case.window, when=case.when)
    after = reduce_messages(apply(decided), case.window, when=case.when).plan
    if after.passed:
        assert decided.stuck
        assert after.stuck
    if decided.stuck:
        assert decided.passed
        able = [u for u in _evictable(case, decided, earlier=True) if u not in decided.evicted]
        assert not able
    if decided.passed and not decided.changes:
        assert decided.stuck


@_examples()
@given(histories(), windows())
def test_e8_a_summary_is_pinned_and_counted_but_no_turn(
    messages: list[object], window: Window
) -> None:
    """E8: a summary counts as a message, is never a turn, and stays."""
    summary = render(Spec("summary", "so far"), Form.LANGCHAIN)
    rest = [m for m in messages if not isinstance(m, SystemMessage) and not _is_summary(m)]
    said = [SystemMessage("be kind"), summary, HumanMessage("hi"), *rest, HumanMessage("bye")]
    decided = plan(said, window)
    assert [unit.kind for unit in decided.units[:3]] == [Kind.SYSTEM, Kind.SUMMARY, Kind.HUMAN]
    assert decided.units[1].messages == (summary,)
    assert decided.size(decided.units[1], "turns") == 0
    assert decided.size(decided.units[1], "messages") == 1
    assert apply(decided)[1] is summary


@_examples()
# What is left of whole turns is just within the cap.
@example(Case(write("H H A(a) T(a) A(b) T(b) A"), _TURNS_IN_SIX_MESSAGES, When.REST))
@given(cases())
def test_e8_with_its_new_summary_a_list_does_not_cross_again(case: Case) -> None:
    """E8: room for a summary is left below every mark, so what was cut once is cut no further."""
    messages = [m for m in case.messages if not _is_summary(m)]
    summary = render(Spec("summary", "so far"), Form.LANGCHAIN)
    measured = plan([summary], case.window)
    sizes = {m: measured.total(m) for m in ("messages", "turns", "tokens", "bytes")}
    decided = plan(messages, case.window, when=case.when, room=sizes)
    if not decided.changes:
        return
    left = apply(decided)
    lead = sum(_is_leading(unit) for unit in split(left))
    again = plan([*left[:lead], summary, *left[lead:]], case.window, when=case.when, room=sizes)
    assert not again.changes


def _is_summary(message: object) -> bool:
    return "summarization" in repr(message)


@_examples()
@given(histories(), windows())
def test_e8_marks_do_not_count_leading_system_messages(
    messages: list[object], window: Window
) -> None:
    """E8: however long the leading system messages are, the same units leave."""
    assume(not messages or split(messages)[0].turn >= 0)
    lead = [SystemMessage("x" * 5000), SystemMessage("y" * 5000)]
    bare, led = plan(messages, window), plan([*lead, *messages], window)
    assert [a.verdict for a in led.actions] == [
        *(a.verdict for a in led.actions if _is_leading(a.unit)),
        *(a.verdict for a in bare.actions),
    ]


# ------------------------------------------------------------------------------------------ E9


class _Counter:
    """A user's token counter that knows how often it was asked about each message."""

    def __init__(self, count: Callable[[object], int] = count_text) -> None:
        self.calls: Counter[int] = Counter()
        self._count = count

    def __call__(self, message: object) -> int:
        self.calls[id(message)] += 1
        return self._count(message)

    def built(self, *args: object, **options: object) -> Window:
        """Build a window with this counter, which it may try when it is built."""
        window = Window(*args, **options, token_counter=self)  # type: ignore[arg-type]
        self.calls.clear()
        return window

    def since(self, before: int) -> int:
        return self.calls.total() - before


@_examples()
@given(
    histories(),
    st.integers(1, 60),
    st.integers(0, 60),
    st.sampled_from(list(When)),
    st.sampled_from([(), (says_pin,), ("todo",)]),
)
def test_e9_each_message_is_counted_once_at_most(
    messages: list[object], keep: int, more: int, when: When, pinned: tuple[object, ...]
) -> None:
    """E9: one call of the counter per message object, ever; none for leading system messages."""
    counter = _Counter()
    window = counter.built(("tokens", keep), ("tokens", keep + more), pinned=pinned)
    decided = plan(messages, window, when=when)
    assert max(counter.calls.values(), default=0) <= 1
    leading = {id(m) for unit in decided.units if _is_leading(unit) for m in unit.messages}
    shared = {id(m) for unit in decided.units if not _is_leading(unit) for m in unit.messages}
    assert not (leading - shared) & set(counter.calls)
    asked = counter.calls.total()
    plan(list(messages), window, when=when)
    reduce_messages(messages, window, when=when)
    assert counter.since(asked) == 0


@_examples()
@given(histories(), st.integers(1, 20), st.integers(0, 20), st.sampled_from(list(When)))
def test_e9_no_tokens_are_counted_without_a_mark_in_tokens(
    messages: list[object], keep: int, more: int, when: When
) -> None:
    """E9: windows in messages and turns count no tokens."""
    counter = _Counter()
    for measure in ("messages", "turns"):
        window = counter.built((measure, keep), (measure, keep + more))
        apply(plan(messages, window, when=when))
    assert not counter.calls


def _long(number: int) -> list[object]:
    """Write turns of four messages, ten tokens each."""
    return [
        message
        for n in range(number // 4)
        for message in (
            HumanMessage(f"q{n}"),
            AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": f"c{n}"}]),
            ToolMessage("r", tool_call_id=f"c{n}"),
            AIMessage("a"),
        )
    ]


@pytest.mark.parametrize(
    ("when", "options", "bound"),
    [
        (When.REST, {"keep": ("tokens", 400), "trigger": ("tokens", 800)}, 80 + 4 + 1),
        (When.RESUME, {"keep": ("tokens", 400), "trigger": ("tokens", 800)}, 80 + 4 + 1),
        (When.RUN, {"keep": ("tokens", 400), "cap": ("tokens", 800)}, 80 + 4 + 1),
        (When.REST, {"keep": ("tokens", 400), "trigger": ("messages", 100)}, 40 + 4 + 1),
        (When.REST, {"keep": ("messages", 20), "trigger": ("tokens", 800)}, 80 + 4 + 1),
        (When.REST, {"keep": ("turns", 5), "trigger": ("tokens", 800)}, 80 + 4 + 1),
    ],
    ids=str,
)
def test_e9_tokens_are_counted_from_the_tail_and_no_further_than_needed(
    when: When, options: dict[str, tuple[str, int]], bound: int
) -> None:
    """E9: of 10,000 messages only the tail that decides is counted."""
    counter = _Counter(lambda message: 10)
    window = counter.built(**options)
    reduced = reduce_messages(_long(10_000), window, when=when)
    assert reduced.evicted
    assert counter.calls.total() <= bound


def test_e9_pinned_messages_cost_a_count_each_and_no_more() -> None:
    """E9: what is pinned far back is counted too, what lies between is not."""
    counter = _Counter(lambda message: 10)
    messages = _long(10_000)
    pins = {id(messages[i]) for i in (0, 4000, 8000)}
    pinned = (lambda message: id(message) in pins,)
    window = counter.built(("tokens", 400), ("tokens", 800), pinned=pinned)
    assert reduce_messages(messages, window).evicted
    assert counter.calls.total() <= 80 + 4 + 1 + 3


def test_e9_one_more_message_costs_one_more_count() -> None:
    """E9: on a window that is full, each put counts the new messages only."""
    counter = _Counter(lambda message: 10)
    window = counter.built(("tokens", 400), ("tokens", 800))
    history = _long(4000)
    stored: list[object] = []
    seen: set[int] = set()
    for message in history:
        before = counter.calls.total()
        stored = reduce_messages([*stored, message], window).messages
        seen.add(id(message))
        assert counter.since(before) <= 1
    assert max(counter.calls.values()) == 1
    assert len(stored) <= 80


def test_e9_an_edited_message_is_counted_again() -> None:
    """E9: counts belong to a message object and its content, never to an id alone."""
    counter = _Counter(lambda message: len(message.content))
    window = counter.built(("tokens", 1000))
    first = HumanMessage("short", id="same")
    other = HumanMessage("s" * 500, id="same")
    sizes = [plan([m], window).total("tokens") for m in (first, other, first)]
    assert sizes == [5, 500, 5]
    first.content = "l" * 700
    assert plan([first], window).total("tokens") == 700


def test_e9_a_message_that_is_gone_does_not_lend_its_count() -> None:
    """E9: a new message at the address of an old one is counted for itself."""
    window = Window(("tokens", 10_000), token_counter=lambda message: len(message["content"]))
    for length in range(1, 400):
        messages = [{"role": "user", "content": "x" * length}]
        assert plan(messages, window).total("tokens") == length


class _Text(str):
    """A text that can be watched."""


@pytest.mark.parametrize("form", [Form.LANGCHAIN, Form.OPENAI])
def test_e9_a_window_does_not_keep_what_it_counted(form: Form) -> None:
    """E9: counts are remembered, messages are not: a window lives as long as the process."""
    window = Window(("tokens", 10), ("tokens", 20))
    watched: list[weakref.ref[_Text]] = []
    for _ in range(2_000):
        text = _Text("x" * 10_000)
        watched.append(weakref.ref(text))
        message = HumanMessage("") if form is Form.LANGCHAIN else {"role": "user", "content": text}
        if isinstance(message, HumanMessage):
            message.content = text
        reduce_messages([message], window)
    del text, message
    gc.collect()
    alive = sum(ref() is not None for ref in watched)
    assert alive * 10_000 <= 8_000_000


_LONG: dict[str, Callable[[int], list[object]]] = {
    "turns": lambda n: _long(n),
    "one turn": lambda n: [HumanMessage("go"), *[m for m in _long(n) if m.type != "human"]],
    "humans": lambda n: write("H", Form.OPENAI) * n,
    "orphans": lambda n: [ToolMessage("r", tool_call_id="lost") for _ in range(n)],
    "reused ids": lambda n: [*write("H"), *write("A(call_0) T(call_0)", Form.OPENAI) * (n // 2)],
    "open calls, reused": lambda n: [*write("H"), *write("A(call_0)", Form.OPENAI) * n],
    "late results": lambda n: [*write("H"), *_calls(n // 2), *_results(n // 2)],
    "late results, backwards": lambda n: [*write("H"), *_calls(n // 2), *_results(n // 2)[::-1]],
    "duplicates": lambda n: [*write("H A(a)"), *write("T(a)") * n],
    "no ids": lambda n: [*write("H"), *[_nameless_call()] * (n // 2), *[_NAMELESS] * (n // 2)],
    "one wide call": lambda n: [*write("H"), _wide(n), *_results(n)[::-1]],
    "one wide call, no ids": lambda n: [*write("H"), _nameless_call(n), *[_NAMELESS] * n],
    "pins": lambda n: [m for _ in range(n // 4) for m in write("H A(a) T(a)", say="PIN")],
}


@pytest.mark.parametrize("shape", _LONG)
def test_e9_a_long_history_takes_linear_time(shape: str) -> None:
    """E9: nothing is quadratic: eight times the messages, far from 64 times the time."""
    window = Window(
        ("tokens", 2000), ("messages", 100), ("messages", 150), pinned=("todo", says_pin)
    )
    times = [_seconds(_LONG[shape](number), window) for number in (1_000, 8_000)]
    assert times[1] < 24 * max(times[0], 0.01)


def _seconds(messages: list[object], window: Window) -> float:
    """Time a reduction, without what the collector does for the rest of the test suite."""
    gc.disable()
    try:
        start = time.process_time()
        problems(messages)
        problems(reduce_messages(messages, window).messages)
        return time.process_time() - start
    finally:
        gc.enable()


_NAMELESS = {"role": "tool", "content": "r"}


def _nameless_call(number: int = 1) -> dict[str, object]:
    call = {"type": "function", "function": {"name": "search", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call] * number}


def _wide(number: int) -> AIMessage:
    calls = [{"name": "f", "args": {}, "id": f"c{n}"} for n in range(number)]
    return AIMessage("", tool_calls=calls)


def _calls(number: int) -> list[object]:
    return [
        AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": f"c{n}"}]) for n in range(number)
    ]


def _results(number: int) -> list[object]:
    return [ToolMessage("r", tool_call_id=f"c{n}") for n in range(number)]


# ----------------------------------------------------------------------------------------- E10

_SIZES = st.integers(1, 4000)
_HOLDERS = ("human", "result", "ai")


@_examples()
@given(
    st.sampled_from(list(media_blocks(""))),
    st.sampled_from(_HOLDERS),
    st.sampled_from(list(Form)),
    _SIZES,
    _SIZES,
)
def test_e10_media_have_one_flat_token_cost(
    shape: str, role: str, form: Form, small: int, large: int
) -> None:
    """E10: tokens do not depend on the bytes of an image, sound or file, nor on its shape."""
    window = Window(("tokens", 100_000))
    answers = "a" if role == "result" else None
    messages = [
        render(Spec(role, "see", blocks=(blocks[name],), answers=answers), form)
        for name, blocks in (
            (shape, media_blocks("QUJD" * small)),
            (shape, media_blocks("QUJD" * large)),
            ("image_url", media_blocks("QUJD")),
        )
    ]
    first, second, image = (plan([message], window) for message in messages)
    assert first.total("tokens") == second.total("tokens") == image.total("tokens")
    grown = second.total("bytes") - first.total("bytes")
    assert grown == 4 * (large - small)
    assert second.total("bytes") >= 4 * large


@_examples()
@given(st.sampled_from(list(media_blocks(""))), st.integers(1, 500), st.integers(1, 500))
def test_e10_the_cost_of_media_is_the_windows(shape: str, one: int, two: int) -> None:
    """E10: `media_tokens` is what each block costs."""
    block = media_blocks("QUJD" * 50)[shape]
    single = [HumanMessage([{"type": "text", "text": "see"}, block])]
    double = [HumanMessage([{"type": "text", "text": "see"}, block, block])]
    cheap = Window(("tokens", 100_000), media_tokens=one)
    dear = Window(("tokens", 100_000), media_tokens=two)
    costs = [plan(m, w).total("tokens") for m in (single, double) for w in (cheap, dear)]
    assert costs[1] - costs[0] == two - one
    assert costs[2] - costs[0] == one
    assert costs[3] - costs[1] == two


# ----------------------------------------------------------------------------------------- E11

_STRANGERS: tuple[object, ...] = (
    None,
    7,
    3.5,
    "loose text",
    b"bytes",
    object(),
    {},
    {"role": "critic", "content": "hm"},
    {"role": None, "content": "hm"},
    {"role": 3},
    {"type": "banana"},
    {"content": "no role"},
    ["user", "hi"],
    ("user", "hi"),
    {"lc": 1, "type": "constructor", "id": ["x", "Banana"], "kwargs": {}},
    {"lc": 1, "type": "constructor", "id": [], "kwargs": {}},
    {"lc": 1, "type": "not_implemented", "id": ["a"], "repr": "?"},
    {"type": "human", "data": None},
    {"role": "assistant", "tool_calls": "call me"},
    {"role": "assistant", "tool_calls": [None, 3, {}]},
    {"role": "assistant", "content": [None, 3, "text", {"type": "tool_use"}]},
    {"role": "tool", "content": None, "tool_call_id": 5},
    {"role": "user", "content": {"nested": True}},
    {"role": "user", "content": [{"type": "tool_result"}]},
    {"role": "user", "content": [{"type": ["text"]}, {"type": {}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": None}]},
    {"role": "user", "content": [{"type": "image", "source": "x"}], "additional_kwargs": None},
    {"role": "assistant", "tool_calls": [{"id": ["x"], "function": {"name": ["f"]}}]},
    {"role": "assistant", "tool_calls": [{"id": 5, "name": 5, "args": None}]},
    {"role": "assistant", "tool_calls": {"id": "x"}, "function_call": "f"},
    {"role": "assistant", "parts": [None, {"function_call": None}, {"function_response": 3}]},
    {"role": "tool", "tool_call_id": ["x"], "content": [[]]},
    {"role": "function", "name": None},
    {"type": "ai", "data": {"content": None, "tool_calls": None}},
    {"type": "tool", "data": {"content": {}, "tool_call_id": {}}},
)


@_examples()
@given(histories(), windows(pins=False), st.sampled_from(list(When)), st.data())
def test_e11_strange_things_are_left_as_they_are(
    messages: list[object], window: Window, when: When, data: st.DataObject
) -> None:
    """E11: what cannot be understood is left in its place, never changed, and nothing raises."""
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(messages)))
        messages.insert(place, data.draw(st.sampled_from(_STRANGERS)))
    before = copy.copy(messages)
    reduced = reduce_messages(messages, window, when=when)
    assert _same(messages, before)
    assert _same(join(split(messages)), messages)
    kept = sorted(i for unit in reduced.plan.kept for i in unit.indices)
    assert _same(reduced.messages, [messages[i] for i in kept])
    assert not _seen(reduced.messages) - _seen(messages)
    assert reduce_messages(reduced.messages, window, when=when).messages is reduced.messages


@pytest.mark.parametrize("number", range(len(_STRANGERS)))
def test_e11_nothing_strange_raises(number: int) -> None:
    """E11: every function of the engine takes what it does not understand, wherever it stands."""
    stranger = _STRANGERS[number]
    said = write("sys H A(a) T(a) H A")
    for place in range(len(said) + 1):
        messages = [*said[:place], stranger, *said[place:]]
        problems(messages)
        assert _same(join(split(messages)), messages)
        for measure in ("messages", "turns", "tokens", "bytes"):
            cap = ("messages", 2)
            decided = plan(messages, Window((measure, 1), (measure, 1), cap, pinned=(says_pin,)))
            assert str(decided)
            assert decided.total("tokens") >= 0
            assert decided.total("bytes") >= 0
            assert apply(decided)[-1] is messages[-1]


@_examples(0.3)
@given(
    st.lists(st.sampled_from((None, 7, 3.5, "loose text", b"bytes", ())), max_size=60), windows()
)
def test_e11_a_list_that_holds_no_messages_is_returned(
    things: list[object], window: Window
) -> None:
    """E11: a list without any message is none of our business."""
    assert reduce_messages(things, window).messages is things


@_examples()
@given(histories())
def test_e11_unknown_roles_start_no_turn_and_belong_to_no_call(messages: list[object]) -> None:
    """E11: a message of an unknown role is a unit of its own in the turn where it stands."""
    place = len(messages) // 2
    stranger = {"role": "critic", "content": "hm"}
    said = [*messages[:place], stranger, *messages[place:]]
    unit = next(unit for unit in split(said) if place in unit.indices)
    assert unit.kind is Kind.OTHER
    assert unit.indices == (place,)
    turns = [unit.turn for unit in split(said) if unit.kind is Kind.HUMAN]
    assert turns == [unit.turn for unit in split(messages) if unit.kind is Kind.HUMAN]


# ------------------------------------------------------------------------- nothing is immortal

_SMALL = (
    Window(("messages", 6), ("messages", 12), ("messages", 24)),
    Window(("turns", 2), ("turns", 4), ("messages", 24)),
    Window(("tokens", 6), ("tokens", 12), ("tokens", 24), token_counter=lambda message: 1),
    Window(("turns", 2), ("messages", 12), ("messages", 24)),
    Window(("messages", 6), ("turns", 4), ("messages", 24)),
)


@_examples(0.5)
@given(
    patterns(),
    st.sampled_from(list(Ids)),
    st.sampled_from(_SMALL),
    st.sampled_from(list(When)),
    st.sampled_from([None, Form.LANGCHAIN, Form.OPENAI, Form.ANTHROPIC]),
)
@example([(Move.AI, 1), (Move.SYSTEM, 1)], Ids.UNIQUE, _SMALL[0], When.REST, Form.LANGCHAIN)
@example([(Move.HUMAN, 1), (Move.SUMMARY, 1)], Ids.UNIQUE, _SMALL[0], When.REST, Form.LANGCHAIN)
@example([(Move.SUMMARY, 1), (Move.AI, 1)], Ids.UNIQUE, _SMALL[0], When.REST, Form.LANGCHAIN)
@example([(Move.ORPHAN, 1)], Ids.UNIQUE, _SMALL[0], When.REST, Form.LANGCHAIN)
@example([(Move.UNKNOWN, 0), (Move.HUMAN, 0)], Ids.UNIQUE, _SMALL[0], When.REST, Form.LANGCHAIN)
def test_nothing_is_immortal_by_its_role(
    pattern: list[tuple[Move, int]], ids: Ids, window: Window, when: When, form: Form | None
) -> None:
    """E5, E8: an endless history, put by put, stays within the cap, whatever roles it repeats."""
    assume(any(_is_ordinary(move, v) for move, v in pattern))
    writer = Writer(ids)
    stored: list[object] = []
    widest = 0
    for number, added in enumerate(rounds(pattern, 60, writer)):
        new = render_all(added, form, seed=number)
        widest = max(widest, len(new))
        stored = reduce_messages([*stored, *new], window, when=when).messages
        leading = sum(_is_leading(unit) for unit in split(stored))
        assert leading <= len(pattern)
        assert len(stored) <= 24 + widest + leading


@_examples(0.5)
@given(
    patterns(),
    st.sampled_from(list(Ids)),
    st.sampled_from(_SMALL),
    st.sampled_from(list(When)),
)
def test_what_is_left_of_a_long_history_does_not_depend_on_its_length(
    pattern: list[tuple[Move, int]], ids: Ids, window: Window, when: When
) -> None:
    """E5, E8: in one cut too, what is left is bounded by the window and not by the history."""
    assume(any(_is_ordinary(move, v) for move, v in pattern))
    writer = Writer(ids)
    said = [spec for added in rounds(pattern, 80, writer) for spec in added]
    messages = render_all(said, None)
    left = reduce_messages(messages, window, when=when).messages
    leading = sum(_is_leading(unit) for unit in split(left))
    assert len(left) <= 24 + len(said) // 80 + leading


def _is_ordinary(move: Move, v: int) -> bool:
    """Tell whether a move says more than leading systems and what nobody understands."""
    said = Writer(Ids.UNIQUE)
    said.move(move, v)
    return any(u.kind not in (Kind.OTHER, Kind.SYSTEM) for u in split(render_all(said.specs)))
