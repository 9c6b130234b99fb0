"""The four window styles of the field, by one engine."""

from __future__ import annotations

import pytest
from engine.strategies import Form, Spec, plain_specs, render_all, write
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, HumanMessage, trim_messages

from reducing_saver.engine import When, Window, problems, reduce_messages

_QUICK = settings(settings.get_profile("engine"), max_examples=80)


def reduce(messages: list[object], window: Window) -> list[object]:
    return reduce_messages(messages, window).messages


def stream(window: Window, text: str, turns: int, *, say: str = "") -> list[int]:
    """Store an endless chat turn by turn, and note the length of what is stored."""
    stored: list[object] = []
    lengths = []
    for _ in range(turns):
        stored = reduce([*stored, *write(text, say=say)], window)
        assert problems(stored) == ()
        lengths.append(len(stored))
    return lengths


# -------------------------------------------------------------------- the last n turns


@_QUICK
@given(plain_specs(), st.integers(1, 6), st.sampled_from([None, *Form]))
def test_last_n_turns_are_anchored_on_human_messages(
    said: list[Spec], number: int, form: Form | None
) -> None:
    """Whatever a turn holds, what is left is the n last human messages and all after them."""
    messages = render_all(said, form)
    humans = [index for index, spec in enumerate(said) if spec.role == "human"]
    leading = next((i for i, s in enumerate(said) if s.role not in ("system", "developer")), 0)
    start = humans[-number] if len(humans) > number else leading
    window = Window(("turns", number), ("turns", number), ("messages", 10_000))
    assert reduce(messages, window) == [*messages[:leading], *messages[start:]]


def test_last_n_turns_with_hysteresis() -> None:
    """Six to twelve turns: the list grows to twelve, the thirteenth takes seven away."""
    lengths = stream(Window(("turns", 6), ("turns", 12)), "H A(a) T(a) A", 40)
    assert lengths[:13] == [*range(4, 52, 4), 24]
    assert lengths[12:20] == [24, 28, 32, 36, 40, 44, 48, 24]
    assert max(lengths) == 48


# ------------------------------------------------------------------ count with hysteresis


def test_count_with_hysteresis() -> None:
    """Ten and twenty messages: nothing leaves at twenty, whole turns leave above it."""
    lengths = stream(Window(("messages", 10), ("messages", 20)), "H A", 40)
    assert lengths[:11] == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 10]
    assert max(lengths) == 20
    assert min(lengths[10:]) == 10


def test_count_never_keeps_half_a_turn() -> None:
    """Four messages a turn and a keep of ten: two turns stay, not two and a half."""
    lengths = stream(Window(("messages", 10), ("messages", 20)), "H A(a) T(a) A", 40)
    assert set(lengths[5:]) == {8, 12, 16, 20}


# ----------------------------------------------------------------- tokens with hysteresis


@pytest.mark.parametrize("form", list(Form))
def test_token_budget_with_hysteresis(form: Form) -> None:
    window = Window(("tokens", 400), ("tokens", 800), token_counter=lambda message: 20)
    stored: list[object] = []
    lengths = []
    for _ in range(60):
        stored = reduce([*stored, *write("H A(a) T(a) A", form)], window)
        lengths.append(len(stored))
    assert lengths[:11] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 20]
    assert max(lengths) == 40
    assert min(lengths[10:]) == 20


def test_token_budget_by_the_default_counter() -> None:
    window = Window(("tokens", 400), ("tokens", 800))
    sizes = []
    stored: list[object] = []
    for _ in range(60):
        said = [*stored, *write("H A(a) T(a) A", say="some words to be counted " * 3)]
        reduced = reduce_messages(said, window)
        stored = reduced.messages
        sizes.append(reduce_messages(stored, window).plan.total("tokens"))
    assert max(sizes) <= 800
    assert min(sizes[20:]) > 200


def test_a_budget_is_held_by_dropping_the_oldest_first() -> None:
    words = ["H1 A1", "H2 A2", "H3 A3", "H4 A4"]
    sizes = {"H1": 50, "H2": 30, "H3": 10, "H4": 5, "A1": 50, "A2": 30, "A3": 10, "A4": 5}
    window = Window(
        ("tokens", 45),
        ("tokens", 100),
        token_counter=lambda m: sizes.get(m.content[:2], 0),  # type: ignore[attr-defined]
    )
    messages = write(" ".join(words))
    assert reduce(messages, window) == messages[4:]


# --------------------------------------------------------------- the classic sliding window


@_QUICK
@given(plain_specs(), st.integers(1, 12))
def test_sliding_window_agrees_with_trim_messages(said: list[Spec], number: int) -> None:
    """Where the current turn fits, it is what langchain-core's trim_messages gives."""
    said = [spec for spec in said if spec.role != "developer"]
    lead = sum(spec.role == "system" for spec in said)
    said = said[max(lead - 1, 0) :]  # trim_messages keeps one system message
    lead = min(lead, 1)
    humans = [index for index, spec in enumerate(said) if spec.role == "human"]
    if not humans or len(said) - humans[-1] > number or len(said) - lead <= number:
        return
    messages: list[BaseMessage] = render_all(said, Form.LANGCHAIN)  # type: ignore[assignment]
    expected = trim_messages(
        messages,
        max_tokens=number + lead,
        token_counter=len,
        strategy="last",
        start_on="human",
        include_system=True,
    )
    window = Window(("messages", number), ("messages", number))
    assert reduce(list(messages), window) == expected


def test_sliding_window_pins_the_system_messages() -> None:
    lengths = stream(Window(("messages", 4), ("messages", 4)), "H A", 20)
    assert max(lengths) == 4
    messages = write("sys dev H A H A H A")
    assert reduce(messages, Window(("messages", 4), ("messages", 4))) == [
        *messages[:2],
        *messages[4:],
    ]


@pytest.mark.parametrize("number", range(1, 12))
def test_sliding_window_starts_with_a_human_message(number: int) -> None:
    messages = write("sys H A(a) T(a) A H A(b,c) T(b) T(c) A H A")
    left = reduce(messages, Window(("messages", number), ("messages", number)))
    assert isinstance(left[1], HumanMessage)
    assert problems(left) == ()


@pytest.mark.parametrize("measure", ["messages", "tokens", "bytes"])
@pytest.mark.parametrize("when", list(When))
def test_an_oversize_newest_message_is_kept_alone(measure: str, when: When) -> None:
    """Larger than every mark: the newest human message stays, with the system messages."""
    messages = [*write("sys H A(a) T(a) A"), HumanMessage("huge " * 5000)]
    window = Window((measure, 1), (measure, 1), (measure, 1))  # type: ignore[arg-type]
    reduced = reduce_messages(messages, window, when=when)
    assert reduced.messages == [messages[0], messages[-1]]
    if measure != "messages":
        assert reduced.plan.stuck


def test_an_oversize_newest_result_is_kept_with_its_call_and_its_question() -> None:
    messages = [*write("sys H A H A A(a)"), *write("T(a)", say="huge " * 5000)]
    for measure in ("messages", "tokens", "bytes"):
        window = Window((measure, 1), (measure, 1), (measure, 1))  # type: ignore[arg-type]
        left = reduce(messages, window)
        assert left == [messages[0], messages[3], messages[5], messages[6]]
