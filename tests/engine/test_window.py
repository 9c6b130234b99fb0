"""Windows: what is refused when they are built and with which words, and what is the default."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from engine.strategies import count_text, says_pin, write
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from reducing_saver._errors import ConfigurationError, ReducingSaverError, WindowError
from reducing_saver.engine import Mark, When, Window, plan, reduce_messages

MEASURES = ("messages", "turns", "tokens", "bytes")


def refused(*args: object, **options: object) -> str:
    """Build a window that cannot be, and return what is said about it."""
    with pytest.raises(WindowError) as error:
        Window(*args, **options)  # type: ignore[arg-type]
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, ConfigurationError | ReducingSaverError)
    text = str(error.value)
    assert "\n" not in text.strip()
    return text


def ids(value: object) -> str:
    return repr(value)[:40]


# ------------------------------------------------------------------------------------ defaults


def test_the_trigger_is_twice_keep_and_the_cap_four_times_the_trigger() -> None:
    for measure in ("messages", "tokens", "bytes"):
        window = Window((measure, 10))  # type: ignore[arg-type]
        assert window.keep == Mark(measure, 10)  # type: ignore[arg-type]
        assert window.triggers == (Mark(measure, 20),)  # type: ignore[arg-type]
        assert window.cap == Mark(measure, 80)  # type: ignore[arg-type]


def test_a_trigger_in_turns_gives_a_cap_of_forty_messages_a_turn() -> None:
    assert Window(("turns", 6)).triggers == (Mark("turns", 12),)
    assert Window(("turns", 6)).cap == Mark("messages", 480)
    assert Window(("messages", 6), ("turns", 3)).cap == Mark("messages", 120)


def test_of_several_triggers_the_largest_gives_the_cap() -> None:
    assert Window(("turns", 5), [("messages", 20), ("messages", 30)]).cap == Mark("messages", 120)
    mixed = Window(("turns", 5), [("tokens", 8000), ("messages", 100)]).cap
    assert mixed in (Mark("tokens", 32_000), Mark("messages", 400))


def test_marks_are_what_was_given() -> None:
    window = Window(("tokens", 4000), [("tokens", 8000), ("turns", 20)], ("bytes", 10**6))
    assert window.keep == ("tokens", 4000)
    assert window.triggers == (("tokens", 8000), ("turns", 20))
    assert window.cap == ("bytes", 10**6)
    assert window.keep.measure == "tokens"
    assert window.keep.value == 4000
    assert Window(window.keep, window.triggers, window.cap) == window


def test_keep_trigger_and_cap_may_be_equal() -> None:
    window = Window(("messages", 5), ("messages", 5), ("messages", 5))
    assert len(reduce_messages(write("H A H A H A"), window).messages) == 4


@pytest.mark.parametrize("measure", MEASURES)
def test_one_is_the_smallest_mark(measure: str) -> None:
    window = Window((measure, 1), (measure, 1))  # type: ignore[arg-type]
    assert window.keep.value == 1


def test_other_measures_are_not_compared() -> None:
    Window(("messages", 1000), ("turns", 2), ("tokens", 5))
    Window(("turns", 1000), ("messages", 2))


def test_a_window_is_a_frozen_value() -> None:
    window = Window(("turns", 6), pinned=("todo",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        window.keep = Mark("turns", 7)  # type: ignore[misc]
    assert window == Window(("turns", 6), pinned=("todo",))
    assert window != Window(("turns", 7), pinned=("todo",))
    assert hash(window) == hash(Window(("turns", 6), pinned=("todo",)))
    assert "turns" in repr(window)


def test_a_window_can_be_copied_and_sent_to_a_worker() -> None:
    window = Window(
        ("tokens", 60), ("tokens", 90), pinned=("todo", says_pin), token_counter=count_text
    )
    messages = write("H A(a) T(a) A H A H A H A")
    reduce_messages(messages, window)
    expected = reduce_messages(messages, window).messages
    for twin in (copy.copy(window), copy.deepcopy(window), pickle.loads(pickle.dumps(window))):  # noqa: S301
        assert twin == window
        assert reduce_messages(messages, twin).messages == expected


def test_options_are_named() -> None:
    with pytest.raises(TypeError):
        Window(("turns", 6), ("turns", 12), ("messages", 480), True)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Window(("turns", 6), triggers=("turns", 12))  # type: ignore[call-arg]


# ----------------------------------------------------------------------------------- bad marks

NO_MARKS = [
    5,
    6.5,
    True,
    "turns",
    "turns:6",
    b"turns",
    {"turns": 6},
    {"tokens": 4000, "messages": 10},
    object,
    ("turns",),
    ("turns", 6, 7),
    (6, "turns"),
]
NO_VALUES = [0, -1, -(10**9), True, False, 2.0, 2.5, float("inf"), float("nan"), "6", None, [6]]
NO_MEASURES = ["words", "Turns", "message", "", "chars", None, 3, ("turns",)]


@pytest.mark.parametrize("field", ["keep", "trigger", "cap"])
@pytest.mark.parametrize("bad", NO_MARKS, ids=ids)
def test_what_is_no_mark(field: str, bad: object) -> None:
    text = refused(**{"keep": ("messages", 3), field: bad})
    assert field in text
    assert repr(bad) in text or repr(bad).strip("()[]{}") in text or "turns" in text


@pytest.mark.parametrize("bad", [None, (), []], ids=ids)
def test_keep_has_no_default(bad: object) -> None:
    assert "keep" in refused(bad)
    with pytest.raises(TypeError):
        Window()  # type: ignore[call-arg]


@pytest.mark.parametrize("field", ["keep", "trigger", "cap"])
@pytest.mark.parametrize("bad", NO_VALUES, ids=ids)
def test_what_is_no_value(field: str, bad: object) -> None:
    text = refused(**{"keep": ("messages", 3), field: ("tokens", bad)})
    assert field in text
    assert repr(bad) in text
    assert "whole" in text or "positive" in text or "integer" in text or "1" in text


@pytest.mark.parametrize("field", ["keep", "trigger", "cap"])
def test_a_value_beyond_all_bounds(field: str) -> None:
    text = refused(**{"keep": ("messages", 3), field: ("tokens", 10**30)})
    assert field in text
    assert str(10**30) in text


@pytest.mark.parametrize("field", ["keep", "trigger", "cap"])
@pytest.mark.parametrize("bad", NO_MEASURES, ids=ids)
def test_what_is_no_measure(field: str, bad: object) -> None:
    text = refused(**{"keep": ("messages", 3), field: (bad, 6)})
    assert field in text
    assert repr(bad) in text or str(bad) in text
    allowed = [measure for measure in MEASURES if field != "cap" or measure != "turns"]
    assert all(measure in text for measure in allowed)


@pytest.mark.parametrize("field", ["keep", "trigger", "cap"])
@pytest.mark.parametrize("value", [0.5, 1.0, 1])
def test_langchains_fraction_names_the_alternative(field: str, value: float) -> None:
    """A checkpointer knows no model, so no fraction of its context; tokens say the same."""
    text = refused(**{"keep": ("messages", 3), field: ("fraction", value)})
    assert field in text
    assert "fraction" in text
    assert "tokens" in text


@pytest.mark.parametrize(
    "both",
    [
        {"tokens": 4000, "messages": 10},
        [{"tokens": 4000, "messages": 10}],
        [("tokens", 4000), {"messages": 10}],
    ],
    ids=ids,
)
def test_langchains_and_names_the_alternative(both: object) -> None:
    """Several triggers mean any of them; there is no `and`."""
    text = refused(("messages", 3), both)
    assert "trigger" in text
    assert "any" in text.lower()


@pytest.mark.parametrize("empty", [(), [], {}], ids=ids)
def test_no_trigger_at_all(empty: object) -> None:
    """An empty list is not the default: whoever builds it from a configuration means something."""
    text = refused(("messages", 3), empty)
    assert "trigger" in text
    assert repr(empty) in text


@pytest.mark.parametrize(
    "bad", [[("tokens", 10), ("words", 3)], [("tokens", 10), ("turns", 0)], [5], [None]], ids=ids
)
def test_one_bad_trigger_of_several(bad: list[object]) -> None:
    assert "trigger" in refused(("messages", 3), bad)


# -------------------------------------------------------------------------- marks out of order


@pytest.mark.parametrize("measure", MEASURES)
def test_keep_above_the_trigger(measure: str) -> None:
    text = refused((measure, 10), (measure, 9))
    assert "keep" in text
    assert "trigger" in text
    assert "10" in text
    assert "9" in text
    assert measure in text
    refused((measure, 10), [("bytes" if measure == "tokens" else "tokens", 99), (measure, 9)])


@pytest.mark.parametrize("measure", ["messages", "tokens", "bytes"])
def test_the_trigger_above_the_cap(measure: str) -> None:
    text = refused((measure, 10), (measure, 20), (measure, 19))
    assert "trigger" in text
    assert "cap" in text
    assert "20" in text
    assert "19" in text
    refused((measure, 10), [("turns", 4), (measure, 20)], (measure, 19))
    refused((measure, 10), None, (measure, 9))


@pytest.mark.parametrize("measure", ["messages", "tokens", "bytes"])
def test_keep_above_the_cap(measure: str) -> None:
    text = refused((measure, 10), ("turns", 4), (measure, 9))
    assert "keep" in text
    assert "cap" in text


def test_a_cap_below_the_default_trigger() -> None:
    """Either the default gives way or an error says so; never a cap below the trigger."""
    try:
        window = Window(("messages", 10), cap=("messages", 15))
    except WindowError as error:
        assert "cap" in str(error)  # noqa: PT017
    else:
        assert window.triggers[0].value <= window.cap.value


def test_a_cap_in_turns() -> None:
    """One turn can be of any length, so turns bound nothing."""
    text = refused(("turns", 6), None, ("turns", 40))
    assert "cap" in text
    assert "turns" in text
    assert all(measure in text for measure in ("messages", "tokens", "bytes"))


def test_keep_is_one_mark() -> None:
    assert "keep" in refused([("turns", 6), ("tokens", 5)])


def test_several_caps() -> None:
    assert "cap" in refused(("turns", 6), None, [("messages", 40), ("tokens", 9000)])


# ------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "bad", [5, None, [5], [None], [""], ("todo", 7), [["todo"]], {"todo": True}, ""], ids=ids
)
@pytest.mark.parametrize("field", ["pinned", "keep_latest_of"])
def test_bad_pins(field: str, bad: object) -> None:
    text = refused(("turns", 6), **{field: bad})
    assert field in text
    assert "tool" in text or "name" in text


def test_latest_of_takes_names_only() -> None:
    assert "keep_latest_of" in refused(("turns", 6), keep_latest_of=(says_pin,))


@pytest.mark.parametrize("field", ["pinned", "keep_latest_of"])
def test_a_bare_name_is_never_a_list_of_letters(field: str) -> None:
    """`pinned="todo"` is an error or the tool todo; never the tools t, o and d."""
    try:
        window = Window(("turns", 1), ("turns", 1), **{field: "todo"})  # type: ignore[arg-type]
    except WindowError as error:
        assert field in str(error)  # noqa: PT017
        return
    for name, stays in (("todo", True), ("t", False)):
        call = {"name": name, "args": {}, "id": "a"}
        messages = [HumanMessage("q"), AIMessage("", tool_calls=[call]), *write("T(a) H A")]
        assert (len(reduce_messages(messages, window).messages) == 5) is stays


@pytest.mark.parametrize("bad", [None, 1, 0, "yes", "", []], ids=ids)
def test_bad_pin_first_human(bad: object) -> None:
    text = refused(("turns", 6), pin_first_human=bad)
    assert "pin_first_human" in text
    assert repr(bad) in text


@pytest.mark.parametrize(
    "bad", [None, 5, "", "gpt-4o", "Tiktoken", b"tiktoken", [], object()], ids=type
)
def test_bad_token_counter(bad: object) -> None:
    text = refused(("tokens", 6), token_counter=bad)
    assert "token_counter" in text
    assert "approximate" in text
    assert "tiktoken" in text


@pytest.mark.parametrize("bad", [-1, 2.5, "85", None, True, float("nan")], ids=ids)
def test_bad_media_tokens(bad: object) -> None:
    text = refused(("tokens", 6), media_tokens=bad)
    assert "media_tokens" in text
    assert repr(bad) in text


# ---------------------------------------------------------------------------------------- pins


def cut(text: str, **options: object) -> str:
    """Keep the last turn, and say what is left."""
    words = text.split()
    messages = write(text)
    for message in messages:
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                call["name"] = call["id"]
    window = Window(("turns", 1), ("turns", 1), **options)  # type: ignore[arg-type]
    left = reduce_messages(messages, window).messages
    places = {id(message): index for index, message in enumerate(messages)}
    return " ".join(words[places[id(message)]] for message in left)


HISTORY = "sys H1 A1 H2 A(todo) T(todo) A2 H3 A(x) T(x) H4 A(todo) T(todo) A4 H5 A5"


def test_pins_stay_with_the_human_message_of_their_turn() -> None:
    assert cut(HISTORY) == "sys H5 A5"
    assert cut(HISTORY, pin_first_human=True) == "sys H1 H5 A5"
    assert cut(HISTORY, pinned=("x",)) == "sys H3 A(x) T(x) H5 A5"
    assert cut(HISTORY, pinned=("todo",)) == "sys H2 A(todo) T(todo) H4 A(todo) T(todo) H5 A5"
    assert cut(HISTORY, keep_latest_of=("todo",)) == "sys H4 A(todo) T(todo) H5 A5"
    both = cut(HISTORY, keep_latest_of=("todo", "x"))
    assert both == "sys H3 A(x) T(x) H4 A(todo) T(todo) H5 A5"
    assert cut(HISTORY, pinned=(lambda m: m.content.startswith("A2"),)) == "sys H2 A2 H5 A5"
    assert cut(HISTORY, pinned=lambda m: m.content.startswith("A2")) == "sys H2 A2 H5 A5"
    assert cut(HISTORY, pinned=("nobody",), keep_latest_of=("nobody",)) == "sys H5 A5"


def test_pins_stay_in_a_current_turn_above_the_cap() -> None:
    window = Window(("messages", 2), ("messages", 4), ("messages", 4), pinned=(says_pin,))
    messages = [*write("H A"), *write("A", say="PIN"), *write("A A A A")]
    left = reduce_messages(messages, window).messages
    assert left == [messages[0], messages[2]] or left == [messages[0], messages[2], messages[-1]]
    assert left[-1] is messages[-1]


def test_the_first_human_message_is_no_summary() -> None:
    assert cut("sys S H1 A H2 A H3", pin_first_human=True) == "sys S H1 H3"


# ------------------------------------------------------------------------------------ counters


def test_the_counter_gets_one_message_at_a_time() -> None:
    seen: list[object] = []

    def count(message: object) -> int:
        seen.append(message)
        return 1

    messages = write("sys H A")
    window = Window(("tokens", 1), token_counter=count)
    seen.clear()  # a window may try its counter when it is built
    plan(messages, window)
    assert seen
    assert all(any(one is message for message in messages) for one in seen)


def test_the_approximate_counter_is_langchains() -> None:
    window = Window(("tokens", 10))
    for message in write("H A A(a) T(a) A", say="some words that are counted"):
        assert plan([message], window).total("tokens") == count_tokens_approximately([message])


@given(
    kind=st.sampled_from([HumanMessage, AIMessage, SystemMessage, ToolMessage]),
    text=st.text(max_size=30),
    name=st.sampled_from([None, "ada"]),
    extra=st.sampled_from([{}, {"__openai_role__": "developer"}]),
)
def test_a_plain_text_is_counted_by_the_same_rule(
    kind: Any, text: str, name: str | None, extra: dict[str, Any]
) -> None:
    given = {"tool_call_id": "call_12"} if kind is ToolMessage else {}
    message = kind(text, name=name, additional_kwargs=extra, **given)
    counted = Window(("tokens", 10)).sizes("tokens").of(message)
    assert counted == count_tokens_approximately([message])


@pytest.mark.parametrize(
    "bad",
    [
        count_tokens_approximately,
        lambda messages: sum(len(m.content) for m in messages),
        lambda message: len(message.content) / 4,
        lambda message: str(len(message.content)),
        lambda message: None,
        lambda message: True,
        lambda message: -1,
        lambda: 1,
        lambda one, two: 1,
    ],
    ids=["langchain", "sum of list", "float", "str", "none", "bool", "negative", "no", "two"],
)
def test_a_counter_that_does_not_count_one_message(bad: object) -> None:
    """trim_messages takes a function of a list; given here by habit it must not count nonsense."""
    text = refused(("tokens", 10), token_counter=bad)
    assert "token_counter" in text
    assert "one message" in text


def test_a_counter_of_dicts_and_a_counter_of_messages_are_both_counters() -> None:
    """A history is of one kind; a counter need not know the others."""
    for count, message in (
        (lambda m: len(m["content"]), {"role": "user", "content": "12345"}),
        (lambda m: len(m.content), HumanMessage("12345")),
    ):
        window = Window(("tokens", 10), token_counter=count)
        assert plan([message], window).total("tokens") == 5


def _fail(error: Exception) -> Callable[..., object]:
    def get_encoding(*args: object, **options: object) -> object:
        raise error

    return get_encoding


@pytest.mark.parametrize(
    "error",
    [OSError("no route"), ValueError("Unknown encoding"), RuntimeError("hash"), KeyError("x")],
)
def test_tiktoken_without_its_data_file(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is fetched on first use; without it the window is refused, never another count."""
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "get_encoding", _fail(error))
    text = refused(("tokens", 10), token_counter="tiktoken")
    assert "token_counter" in text
    assert "tiktoken" in text


def test_tiktoken_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    text = refused(("tokens", 10), token_counter="tiktoken")
    assert text == "tiktoken is not installed; run: pip install 'reducing-saver[tiktoken]'"


def test_tiktoken_is_imported_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    reduce_messages(write("H A H A"), Window(("tokens", 5)))


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> object:
    """Give tiktoken an encoding made on the spot: one token a byte, and one special token."""
    tiktoken = pytest.importorskip("tiktoken")
    made = tiktoken.Encoding(
        name="bytes",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda *args, **options: made)
    return made


@pytest.mark.usefixtures("encoding")
def test_tiktoken_takes_special_tokens_as_text() -> None:
    """What a user types must not raise, nor be counted as one token."""
    window = Window(("tokens", 10), token_counter="tiktoken")
    plain, special = (
        plan([HumanMessage(text)], window).total("tokens")
        for text in ("x" * 13 * 50, "<|endoftext|>" * 50)
    )
    assert special == plain
    assert 650 <= plain <= 700


@pytest.mark.usefixtures("encoding")
def test_tiktoken_counts_arguments_results_and_text_in_lists() -> None:
    window = Window(("tokens", 10), token_counter="tiktoken")

    def grown(make: Callable[[str], object]) -> int:
        small, large = (plan([make("x" * n)], window).total("tokens") for n in (1, 1001))
        return large - small

    call = {"name": "f", "id": "c"}
    assert 990 <= grown(HumanMessage) <= 1100
    assert 990 <= grown(lambda x: AIMessage("", tool_calls=[{**call, "args": {"x": x}}])) <= 1100
    assert 990 <= grown(lambda x: HumanMessage([{"type": "text", "text": x}])) <= 1100
    assert 990 <= grown(lambda x: {"role": "tool", "tool_call_id": "c", "content": x}) <= 1100


@pytest.mark.usefixtures("encoding")
def test_tiktoken_gives_media_their_flat_cost() -> None:
    window = Window(("tokens", 10), token_counter="tiktoken", media_tokens=85)
    costs = {
        plan([HumanMessage([{"type": "image_url", "image_url": {"url": url}}])], window).total(
            "tokens"
        )
        for url in ("data:image/png;base64,AAAA", "data:image/png;base64," + "A" * 100_000)
    }
    assert len(costs) == 1
    assert 85 <= costs.pop() <= 120


@pytest.mark.usefixtures("encoding")
def test_the_same_window_reduces_with_tiktoken() -> None:
    window = Window(("tokens", 200), ("tokens", 400), token_counter="tiktoken")
    messages = write("H A " * 20, say="some words")
    reduced = reduce_messages(messages, window)
    assert reduced.evicted
    assert reduced.plan.total("tokens", "keep") <= 200  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- what is given


def test_a_window_keeps_its_own_copy_of_what_it_is_given() -> None:
    names, triggers = ["todo"], [("turns", 12), ("tokens", 900)]
    window = Window(("turns", 6), triggers, pinned=names, keep_latest_of=names)  # type: ignore[arg-type]
    names.append("other")
    triggers.clear()
    assert window == Window(
        ("turns", 6),
        [("turns", 12), ("tokens", 900)],
        pinned=("todo",),
        keep_latest_of=("todo",),
    )
    assert isinstance(hash(window), int)


@pytest.mark.parametrize("when", list(When))
def test_a_moment_may_be_written_as_its_word(when: When) -> None:
    """`When` is a StrEnum: its words mean what its members mean, and nothing else is taken."""
    window = Window(("messages", 1), ("messages", 1), ("messages", 2))
    messages = write("H A(a,b) T(a) H A A A")
    expected = reduce_messages(messages, window, when=when)
    spoken = reduce_messages(messages, window, when=when.value)  # type: ignore[arg-type]
    assert spoken.messages == expected.messages
    assert spoken.plan.when is when
    with pytest.raises(ValueError, match="later"):
        reduce_messages(messages, window, when="later")  # type: ignore[arg-type]


def test_plans_and_their_parts_are_frozen() -> None:
    decided = plan(write("H A H A"), Window(("turns", 1), ("turns", 1)))
    for part in (decided, decided.actions[0], decided.units[0]):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)
