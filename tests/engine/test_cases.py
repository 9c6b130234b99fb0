"""Cases from public reports, restated for the engine; each test is the case and its kind.

`keep=n` in the reports is a window of n messages with the trigger at n too.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
from engine.strategies import (
    SERVER_BLOCKS,
    THINKING_BLOCKS,
    Form,
    media_blocks,
    write,
)
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from reducing_saver.engine import (
    Kind,
    Unit,
    Verdict,
    When,
    Window,
    apply,
    plan,
    problems,
    reduce_messages,
    split,
)

FORMS = pytest.mark.parametrize("form", list(Form))
MOMENTS = pytest.mark.parametrize("when", list(When))


def keep(number: int, **options: object) -> Window:
    """Build the window that the reports call `keep=n`."""
    return Window(("messages", number), ("messages", number), **options)  # type: ignore[arg-type]


def cut(text: str, window: Window, *, form: Form = Form.LANGCHAIN, when: When = When.REST) -> str:
    """Reduce a history in notation, and say what is left in notation."""
    words = text.split()
    messages = write(text, form)
    left = reduce_messages(messages, window, when=when).messages
    places = {id(message): index for index, message in enumerate(messages)}
    return " ".join(words[places[id(message)]] for message in left)


def rules(messages: list[object]) -> list[str]:
    return [problem.rule for problem in problems(messages)]


# ---------------------------------------------------------------------------------- C10 to C19


@FORMS
@MOMENTS
@pytest.mark.parametrize("number", range(1, 8))
def test_c10_a_result_never_outlives_its_call(number: int, when: When, form: Form) -> None:
    """langchain#38352: a kept result has its AI message kept and earlier."""
    messages = write("S T(x) A(a) T(a) T(x') H", form)
    window = keep(number, cap=("messages", number))
    left = reduce_messages(messages, window, when=when).messages
    place = {id(message): index for index, message in enumerate(left)}
    if id(messages[3]) in place:
        assert place[id(messages[2])] < place[id(messages[3])]
    assert (id(messages[2]) in place) == (id(messages[3]) in place)
    assert rules(left).count("orphan result") <= rules(messages).count("orphan result") == 2
    assert left[-1] is messages[5]


def test_c10_orphans_leave_with_the_turn_they_stand_in() -> None:
    assert cut("S T(x) A(a) T(a) T(x') H", keep(2)) == "S H"
    assert cut("H T(x) A H T(y) A", keep(3)) == "H T(y) A"
    assert cut("H A(a) T(x) T(a) H", keep(2)) == "H"


@FORMS
@MOMENTS
@pytest.mark.parametrize("number", range(1, 13))
def test_c11_a_unit_is_whole(number: int, when: When, form: Form) -> None:
    """langchain#34282: ten parallel calls are kept or evicted with all their results."""
    calls = "abcdefghij"
    text = f"H A({','.join(calls)}) " + " ".join(f"T({call})" for call in calls)
    unit = text.removeprefix("H ")
    assert cut(text, keep(number), form=form, when=when) == text  # the current turn
    later = cut(f"{text} H A", keep(number), form=form, when=when)
    assert later in (f"{text} H A", f"H {unit} H A", "H A")
    if when is not When.RUN:
        assert later == "H A"
    longer = cut(f"{text} A", keep(number, cap=("messages", number)), form=form, when=when)
    assert longer in (f"{text} A", "H A")
    assert (longer == "H A") == (number < 13)


@FORMS
@MOMENTS
@pytest.mark.parametrize("measure", ["messages", "tokens", "bytes", "turns"])
def test_c12_the_newest_question_and_the_current_turn_stay(
    measure: str, when: When, form: Form
) -> None:
    """langmem#111, first half: a window below the newest result keeps the current turn."""
    text = "sys H A H A(r) T(r)"
    messages = write(text, form)
    window = Window((measure, 1), (measure, 1))
    left = reduce_messages(messages, window, when=when).messages
    assert left[-3:] == messages[-3:]
    assert left[0] is messages[0]
    if when is not When.RUN and measure != "turns":
        assert len(left) == 4


@FORMS
@pytest.mark.parametrize("number", range(1, 7))
def test_c13_reducing_again_and_again_changes_nothing(number: int, form: Form) -> None:
    """openfang#1011: idempotent, and what is left begins with a human message or the summary."""
    messages = write("A(a) T(a) A(b) T(b) H", form)
    left = reduce_messages(messages, keep(number)).messages
    for _ in range(5):
        again = reduce_messages(left, keep(number)).messages
        assert again is left
    if number < 5:
        assert left == messages[-1:]
    assert cut("S A(a) T(a) A(b) T(b) H", keep(2), form=form) == "S H"
    assert cut("sys S A(a) T(a) H A H", keep(4), form=form) == "sys S H A H"
    assert cut("sys S A(a) T(a) H A H", keep(2), form=form) == "sys S H"


@FORMS
@MOMENTS
@pytest.mark.parametrize("number", range(1, 8))
def test_c14_results_are_matched_by_id_not_by_adjacency(
    number: int, when: When, form: Form
) -> None:
    """CopilotKit#333: [H, A(a), H2, T(a)] the pair lives or dies together."""
    window = keep(number, cap=("messages", number))
    for text, pair in (
        ("H A(a) H2 T(a)", {"A(a)", "T(a)"}),
        ("H A(a) H2 T(a) A2", {"A(a)", "T(a)"}),
        ("H A(a,b) T(b) H2 A2 T(a) H3 A3", {"A(a,b)", "T(a)", "T(b)"}),
        ("H A(a) H2 A(b) T(a) T(b) H3", {"A(a)", "T(a)"}),
    ):
        left = set(cut(text, window, form=form, when=when).split())
        assert left & pair in (set(), pair), text


@FORMS
def test_c14_the_pair_whose_result_is_the_last_message_stays(form: Form) -> None:
    """The last message never leaves, so its call stays, with the human message of its turn."""
    assert cut("H0 A0 H A(a) H2 T(a)", keep(1), form=form) == "H A(a) H2 T(a)"


@FORMS
@pytest.mark.parametrize("number", range(1, 5))
def test_c15_a_cancelled_run_does_not_crash(number: int, form: Form) -> None:
    """agent-toolkit#116: an open unit never leaves within a run; at rest it may."""
    text = "H A(a,b) T(a) H2"
    window = keep(number, cap=("messages", number))
    assert cut(text, window, form=form, when=When.RUN) == text
    assert cut(text, window, form=form, when=When.RESUME) == text
    assert cut(text, window, form=form, when=When.REST) == (text if number == 4 else "H2")
    assert cut("H A(a,b) T(a)", window, form=form) == "H A(a,b) T(a)"


@FORMS
@MOMENTS
def test_c15_the_open_unit_of_the_current_turn_stays_above_the_cap(form: Form, when: When) -> None:
    text = "H A A(a,b) T(a) A A(c) T(c) A(d)"
    window = keep(2, cap=("messages", 3))
    assert cut(text, window, form=form, when=when) == "H A(a,b) T(a) A(d)"


@pytest.mark.parametrize("form", [Form.LANGCHAIN, Form.WRAPPED, Form.CONSTRUCTOR, Form.FLAT])
@MOMENTS
def test_c16_one_long_turn_is_whole_up_to_the_cap(form: Form, when: When) -> None:
    """langchain#34794: 200 rounds of thinking without a new human message."""
    messages = _thinking_rounds(200)
    whole = Window(("messages", 10), ("messages", 20), ("messages", 401))
    assert reduce_messages(messages, whole, when=when).messages is messages
    short = Window(("messages", 10), ("messages", 20), ("messages", 40))
    left = reduce_messages(messages, short, when=when).messages
    assert left[0] is messages[0]
    assert left[1:] == messages[-18:]
    assert all(a is b for a, b in zip(left[1:], messages[-18:], strict=True))
    assert problems(left) == ()


def _thinking_rounds(number: int) -> list[BaseMessage]:
    rounds: list[BaseMessage] = [HumanMessage("go")]
    for n in range(number):
        thought = [{"type": "thinking", "thinking": f"thought {n}", "signature": f"sig{n}"}]
        calls = [{"name": "f", "args": {}, "id": f"c{n}"}]
        rounds += [AIMessage(thought, tool_calls=calls), ToolMessage("r", tool_call_id=f"c{n}")]
    return rounds


def test_c16_a_long_turn_that_grows_stays_bounded() -> None:
    """The same turn, put by put in the middle of the run and once at rest."""
    window = Window(("messages", 10), ("messages", 20), ("messages", 40))
    stored: list[object] = []
    sizes = []
    for message in _thinking_rounds(200):
        stored = reduce_messages([*stored, message], window, when=When.RUN).messages
        sizes.append(len(stored))
    assert max(sizes) <= 40
    assert stored[0].content == "go"  # type: ignore[attr-defined]
    assert problems(stored) == ()


_RICH = (
    AIMessage([*THINKING_BLOCKS, {"type": "text", "text": "a"}]),
    AIMessage([*SERVER_BLOCKS, {"type": "text", "text": "a"}]),
    AIMessage(
        [{"type": "text", "text": "a"}],
        additional_kwargs={"__gemini_function_call_thought_signatures__": {"x": "c2ln"}},
        response_metadata={"model_name": "m", "id": "resp_1"},
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    ),
    AIMessage("a", additional_kwargs={"reasoning_content": "so", "refusal": None}),
    AIMessage(
        [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": None},
            {"type": "mcp_call", "id": "mcp_1", "name": "x", "arguments": "{}", "output": "y"},
            {"type": "text", "text": "a", "id": "msg_1", "annotations": []},
        ]
    ),
)


@pytest.mark.parametrize("rich", _RICH, ids=range(5))
def test_c17_blocks_inside_an_ai_message_are_not_calls(rich: AIMessage) -> None:
    """openai-python#3009, langchainjs#11407, adk#3693: nothing in it waits for a result."""
    unit = split([HumanMessage("q"), rich])[1]
    assert (unit.kind, unit.open, unit.tools) == (Kind.AI, False, ())
    assert problems([HumanMessage("q"), rich, HumanMessage("q2"), AIMessage("a")]) == ()


@pytest.mark.parametrize("rich", _RICH, ids=range(5))
@MOMENTS
def test_c17_a_kept_ai_message_is_equal_in_every_field(rich: AIMessage, when: When) -> None:
    before = copy.deepcopy(rich)
    messages = [*write("H A H A"), HumanMessage("q"), rich]
    window = keep(2, cap=("messages", 2))
    left = reduce_messages(messages, window, when=when).messages
    assert left[-1] is rich
    assert len(left) == 2
    assert rich == before
    assert rich.model_dump() == before.model_dump()


def test_c17_a_call_is_one_call_however_often_it_is_written() -> None:
    """A call stands in `tool_calls` and again in the content of Anthropic's and OpenAI's models."""
    for block in (
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "tool_call", "id": "c1", "name": "f", "args": {}},
    ):
        ai = AIMessage([*THINKING_BLOCKS, block], tool_calls=[_f("c1")])
        units = split([HumanMessage("q"), ai, ToolMessage("r", tool_call_id="c1")])
        assert [unit.kind for unit in units] == [Kind.HUMAN, Kind.TOOLS], block
        assert (units[1].tools, units[1].open) == (("f",), False), block


def _f(name: str) -> dict[str, object]:
    return {"name": "f", "args": {}, "id": name}


@FORMS
def test_c18_a_later_system_message_is_an_ordinary_unit(form: Form) -> None:
    """langchain#33856: leading system messages are pinned, a later one leaves with its turn."""
    text = "sys H A sys2 H2 A2 H3 sys3 A3"
    assert cut(text, Window(("turns", 1), ("turns", 1)), form=form) == "sys H3 sys3 A3"
    assert cut(text, Window(("turns", 2), ("turns", 2)), form=form) == "sys H2 A2 H3 sys3 A3"
    assert cut("sys dev sys H A H A", keep(2), form=form) == "sys dev sys H A"
    kinds = [unit.kind for unit in split(write(text, form))]
    assert kinds.count(Kind.SYSTEM) == 3
    assert [unit.turn for unit in split(write(text, form))] == [-1, 1, 1, 1, 2, 2, 3, 3, 3]


@FORMS
def test_c18_a_system_message_in_every_turn_is_not_kept_for_ever(form: Form) -> None:
    stored: list[object] = []
    for _ in range(50):
        stored = reduce_messages([*stored, *write("sys H A", form)], keep(6)).messages
        assert len(stored) <= 7


_NO_MESSAGES = {
    "none": None,
    "empty": [],
    "empty tuple": (),
    "text": "text",
    "bytes": b"bytes",
    "number": 7,
    "mapping": {"messages": []},
    "tuple of messages": (HumanMessage("a"), AIMessage("b"), HumanMessage("c")),
    "numbers": [1, 2, 3, 4, 5],
    "strings": ["a", "b", "c", "d"],
    "nones": [None] * 5,
    "sys": [SystemMessage("s")],
    "sys sys": [SystemMessage("s"), SystemMessage("t")],
    "sys dicts": [{"role": "system", "content": "s"}] * 4,
    "iterator": iter([HumanMessage("a")]),
    "object": object(),
}


@pytest.mark.parametrize("value", _NO_MESSAGES.values(), ids=_NO_MESSAGES)
@MOMENTS
def test_c19_what_holds_no_messages_is_returned_unchanged(value: object, when: When) -> None:
    """langchain#26895: no exception, and the value handed back is the value handed in."""
    window = keep(1, cap=("messages", 1))
    before = copy.copy(value) if isinstance(value, list | dict) else value
    reduced = reduce_messages(value, window, when=when)  # type: ignore[arg-type]
    assert reduced.messages is value
    assert reduced.evicted == ()
    assert not reduced.plan.changes
    assert reduced.plan.evicted == reduced.plan.passed == ()
    assert str(reduced.plan)
    assert reduced.plan.total("tokens", Verdict.EVICT) == 0
    assert value == before


@pytest.mark.parametrize("text", ["H", "A", "T(x)", "sys H", "S", "sys S", "A(a)", "H H", "A A"])
@MOMENTS
def test_c19_the_list_is_never_emptied(text: str, when: When) -> None:
    left = cut(text, keep(1, cap=("messages", 1)), when=when).split()
    assert left
    assert left[-1] == text.split()[-1]


# ---------------------------------------------------------------------------------- C20 to C23


def test_c20_the_trigger_fires_once_per_crossing() -> None:
    """langchain#37815: 20 invokes; each looks at the list that was stored, not at what once was."""
    window = Window(("tokens", 1500), ("tokens", 3000), token_counter=_chars)
    stored: list[object] = []
    fired = []
    for n in range(20):
        turn = [
            HumanMessage("q" * 20),
            AIMessage("", tool_calls=[_f(f"c{n}")]),
            ToolMessage("r" * 2000, tool_call_id=f"c{n}"),
        ]
        before = stored + turn
        reduced = reduce_messages(list(before), window)
        stored = reduced.messages
        above = sum(map(_chars, before)) > 3000
        assert reduced.plan.changes == above
        fired.append(reduced.plan.changes)
        assert reduce_messages(stored, window).messages is stored
    # turns of 505: 5 fit below the trigger, the sixth crosses, 2 are left
    assert [n for n, did in enumerate(fired) if did] == [5, 9, 13, 17]


def _chars(message: object) -> int:
    return len(message.content) // 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kept", "trigger"), [(10, 20), (6, 12), (1, 2), (5, 6), (30, 60)])
def test_c21_the_prefix_changes_seldom(kept: int, trigger: int) -> None:
    """kern-ai#295: in turns, at most turns/(trigger - keep) + 1 changes of the prefix."""
    changes = _prefix_changes(Window(("turns", kept), ("turns", trigger)), turns=100)
    assert changes <= 100 // (trigger - kept) + 1


@pytest.mark.parametrize(
    "window",
    [
        Window(("turns", 6), ("messages", 60)),
        Window(("messages", 20), ("turns", 20)),
        Window(("turns", 5), ("tokens", 2000), token_counter=lambda message: 25),
        Window(("tokens", 500), ("turns", 20), token_counter=lambda message: 25),
        Window(("turns", 50), ("messages", 60)),
        Window(("turns", 6), [("turns", 30), ("messages", 70)]),
    ],
    ids=range(6),
)
def test_c21_mixed_measures_have_hysteresis_too(window: Window) -> None:
    """Without it a window in two measures would cut at every turn, and no prompt cache is warm."""
    assert _prefix_changes(window, turns=100) <= 12


def _prefix_changes(window: Window, *, turns: int) -> int:
    stored: list[object] = []
    firsts = []
    for _ in range(turns):
        stored = reduce_messages([*stored, *write("H A(a) T(a) A")], window).messages
        firsts.append(stored[0])
    return sum(a is not b for a, b in pairwise(firsts))


C22 = ("image_url", "input_image", "anthropic image", "inline_data", "file")


def test_c22_an_image_costs_the_same_in_every_shape() -> None:
    """langchain#40741: 400 KB of base64 are not 100,000 tokens; bytes are another measure."""
    window = Window(("tokens", 1000))
    data = "A" * 400_000
    costs = {}
    for shape in C22:
        message = HumanMessage([{"type": "text", "text": "see"}, media_blocks(data)[shape]])
        decided = plan([message], window)
        costs[shape] = decided.total("tokens")
        assert decided.total("bytes") >= 400_000
    assert len(set(costs.values())) == 1
    assert next(iter(costs.values())) < 2000
    plain = plan([HumanMessage("see")], window).total("tokens")
    assert next(iter(costs.values())) > plain


def test_c22_bytes_bound_what_tokens_do_not() -> None:
    """A thread of images is short in tokens and large in bytes: a trigger in bytes bounds it."""
    window = Window(("turns", 20), [("turns", 40), ("bytes", 100_000)])
    image = media_blocks("A" * 30_000)["image_url"]
    stored: list[object] = []
    for _ in range(20):
        stored = reduce_messages(
            [*stored, HumanMessage([image]), AIMessage("nice")], window
        ).messages
        assert len(stored) <= 8
    assert len(stored) >= 2


def test_c23_each_put_counts_new_messages_only() -> None:
    """langgraph#8220: 1,000 messages below the trigger, 200 puts."""
    asked: list[object] = []

    def count(message: object) -> int:
        asked.append(message)
        return 1

    window = Window(("tokens", 1000), ("tokens", 2000), token_counter=count)
    asked.clear()  # a window may try its counter when it is built
    messages: list[object] = [HumanMessage(str(n)) for n in range(1000)]
    reduce_messages(messages, window)
    assert len(asked) <= 1000
    for n in range(200):
        asked.clear()
        new = HumanMessage(f"new {n}")
        messages = [*messages, new]
        reduced = reduce_messages(messages, window)
        assert reduced.messages is messages
        assert all(message is new for message in asked)
        assert len(asked) <= 1


def test_c23_a_crossing_counts_nothing_again() -> None:
    asked: list[int] = []

    def count(message: object) -> int:
        asked.append(id(message))
        return 10

    window = Window(("tokens", 100), ("tokens", 200), token_counter=count)
    asked.clear()  # a window may try its counter when it is built
    held, stored = [], []
    for n in range(300):
        held.append(HumanMessage(str(n)))
        stored = reduce_messages([*stored, held[-1]], window).messages
    assert len(asked) == len(set(asked)) == 300
    assert 10 <= len(stored) <= 20


def test_an_evicted_unit_is_reported_with_its_reason() -> None:
    """The plan that cuts is the plan that is shown: every unit with what happens and why."""
    messages = write("sys H A(a) T(a) A H A")
    decided = plan(messages, keep(3))
    shown: list[tuple[Unit, str]] = [(action.unit, action.verdict) for action in decided.actions]
    assert [verdict for _, verdict in shown] == ["keep", *["evict"] * 3, "keep", "keep"]
    assert len(apply(decided)) == 3
    assert "evict" in str(decided)
