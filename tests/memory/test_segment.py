"""Segments: what left a list is put back where it stood, whatever left in which order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from reducing_saver._segment import (
    Segment,
    Span,
    cut_spans,
    entry_key,
    identity,
    in_order,
    segment_id,
)

Make = Callable[[int], Any]


def with_id(number: int) -> Any:
    return HumanMessage(f"say {number % 3}", id=f"m{number}")


def without_id(number: int) -> Any:
    return HumanMessage(f"say {number}")


def as_dict(number: int) -> Any:
    return {"role": "user", "content": f"say {number % 3}", "id": f"m{number}"}


def make_segment(
    messages: Sequence[Any], positions: Sequence[int], previous: str | None, why: Any = "window"
) -> Segment:
    spans = cut_spans(messages, positions, previous)
    return Segment(
        segment_id("t", "", "messages", previous, spans),
        previous,
        thread="t",
        namespace="",
        channel="messages",
        checkpoint="c",
        why=why,
        memory_namespace=("memories", "t"),
        spans=spans,
    )


@dataclass
class Thread:
    """A list that grows and shrinks, and what its segments say of it."""

    make: Make = with_id
    state: list[Any] = field(default_factory=list)
    chain: list[Segment] = field(default_factory=list)  # newest first
    archived: dict[str, Any] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.made.append(self.make(len(self.made)))
            self.state.append(self.made[-1])

    def evict(self, positions: Sequence[int], why: Any = "window") -> None:
        if not positions:
            return
        previous = self.chain[0].id if self.chain else None
        one = make_segment(self.state, positions, previous, why)
        self.chain.insert(0, one)
        gone = [self.state[position] for position in positions]
        self.archived.update(zip(one.keys, gone, strict=True))
        self.state = [m for i, m in enumerate(self.state) if i not in {*positions}]

    def told_in_order(self) -> list[Any]:
        found = in_order(self.chain, self.state)
        return [self.archived[i] if isinstance(i, str) else self.state[i] for i in found]


# A prefix leaves with holes for what is pinned; the graph removes any messages at all.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("prefix"), st.integers(1, 9)),
        st.tuples(st.just("holes"), st.lists(st.booleans(), max_size=16)),
        st.tuples(st.just("removed"), st.lists(st.booleans(), max_size=16)),
    ),
    max_size=16,
)


def play(thread: Thread, steps: Sequence[tuple[str, Any]]) -> None:
    for step, value in steps:
        if step == "append":
            thread.append(value)
        elif step == "prefix":
            thread.evict(range(min(value, len(thread.state) - 1)))
        else:
            last = len(thread.state) - (step == "holes")  # a window never evicts the last message
            chosen = [i for i, gone in enumerate(value) if gone and i < last]
            thread.evict(chosen, "removed" if step == "removed" else "window")


@pytest.mark.parametrize("make", [with_id, as_dict])
@given(steps=STEPS)
def test_every_message_comes_back_once_in_its_place(make: Make, steps: Any) -> None:
    thread = Thread(make)
    play(thread, steps)
    assert thread.told_in_order() == thread.made


@given(steps=STEPS)
def test_every_moment_of_a_line_is_whole(steps: Any) -> None:
    """A fork from any checkpoint sees the chain and the list of that checkpoint."""
    thread = Thread()
    for number in range(len(steps)):
        play(thread, steps[number : number + 1])
        assert thread.told_in_order() == thread.made


@given(steps=STEPS, own=STEPS)
def test_a_fork_has_its_own_past(steps: Any, own: Any) -> None:
    thread = Thread()
    play(thread, steps)
    fork = Thread(with_id, [*thread.state], [*thread.chain], dict(thread.archived), [*thread.made])
    play(thread, own[::-1])
    play(fork, own)
    assert fork.told_in_order() == fork.made
    assert thread.told_in_order() == thread.made


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-9, -1)), max_size=16))
@example([4, -1, -1])
def test_messages_without_ids_that_leave_as_prefixes(steps: list[int]) -> None:
    thread = Thread(lambda number: HumanMessage(f"say {number % 2}"))
    for step in steps:
        if step > 0:
            thread.append(step)
        else:
            thread.evict(range(min(-step, len(thread.state) - 1)))
    told = thread.told_in_order()
    assert [id(message) for message in told] == [id(message) for message in thread.made]


@given(steps=STEPS)
def test_messages_without_ids_come_back_once(steps: Any) -> None:
    thread = Thread(lambda number: HumanMessage(f"say {number % 2}"))
    play(thread, steps)
    told = thread.told_in_order()
    assert sorted(map(id, told)) == sorted(map(id, thread.made))


def test_messages_without_ids_come_back_in_their_place() -> None:
    thread = Thread(without_id)
    thread.append(4)
    thread.evict([1])
    thread.evict([0, 1])
    assert thread.told_in_order() == thread.made


def test_a_list_that_nothing_left() -> None:
    state = [with_id(0), without_id(1)]
    assert in_order([], state) == [0, 1]
    assert in_order([], []) == []
    assert cut_spans(state, [], None) == ()


def test_a_list_that_everything_left() -> None:
    thread = Thread()
    thread.append(3)
    thread.evict([0, 1, 2], "removed")
    thread.append(2)
    thread.evict([0, 1], "removed")
    assert thread.told_in_order() == thread.made


def test_a_summary_in_the_state_keeps_its_place() -> None:
    thread = Thread()
    thread.append(6)
    thread.evict([0, 1])
    thread.state.insert(0, HumanMessage("summary", id="summary"))
    thread.evict([1, 2])
    assert [m.id for m in thread.told_in_order() if m.id != "summary"] == [
        f"m{number}" for number in range(6)
    ]


def test_what_is_missing_does_not_move_the_rest() -> None:
    """Without `archive_removed` the neighbours of what left may be in no segment."""
    thread = Thread()
    thread.append(8)
    thread.evict([2, 3])
    thread.state = [m for m in thread.state if m.id != "m4"]  # removed by the graph
    thread.evict([0, 1, 2])
    assert [m.id for m in thread.told_in_order()] == ["m0", "m1", "m2", "m3", "m5", "m6", "m7"]


# ------------------------------------------------------------------------------------- spans, keys


def test_spans_are_runs_of_neighbours() -> None:
    messages = [with_id(number) for number in range(8)]
    spans = cut_spans(messages, [0, 1, 4, 6, 7], None)
    key = [entry_key(message, None, place) for place, message in enumerate(messages)]
    who = [identity(message) for message in messages]
    assert spans == (
        Span((key[0], key[1]), None, who[2]),
        Span((key[4],), who[3], who[5]),
        Span((key[6], key[7]), who[5], None),
    )
    one = make_segment(messages, [0, 1, 4, 6, 7], None)
    assert one.keys == (key[0], key[1], key[4], key[6], key[7])


def test_an_edit_is_another_entry_of_the_same_message() -> None:
    first, second = HumanMessage("a", id="m"), HumanMessage("b", id="m")
    assert identity(first) == identity(second)
    one, other = entry_key(first, None, 0), entry_key(second, "previous", 7)
    assert one != other
    assert one.partition(".")[0] == other.partition(".")[0] == identity(first)
    assert entry_key(HumanMessage("a", id="m"), "previous", 7) == one


@pytest.mark.parametrize(
    "edited",
    [
        AIMessage("said", id="m", tool_calls=[{"name": "f", "args": {"x": 2}, "id": "c"}]),
        AIMessage("said", id="m", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "d"}]),
        AIMessage([{"type": "text", "text": "said"}], id="m"),
        AIMessage("said", id="m", name="bob"),
        AIMessage("said", id="m", additional_kwargs={"x": 1}),
        HumanMessage("said", id="m"),
    ],
)
def test_every_field_is_content(edited: Any) -> None:
    calls = [{"name": "f", "args": {"x": 1}, "id": "c"}]
    original = AIMessage("said", id="m", tool_calls=calls)
    assert entry_key(edited, None, 0) != entry_key(original, None, 0)


def test_an_edited_message_that_left_twice_comes_back_once_as_it_is_now() -> None:
    thread = Thread()
    thread.append(4)
    thread.evict([0, 1])
    edited = HumanMessage("edited", id="m1")
    thread.state = [*thread.state, edited]
    assert [m.content for m in thread.told_in_order() if m.id == "m1"] == ["edited"]
    thread.append(1)
    thread.evict([0, 1, 2])
    told = [m for m in thread.told_in_order() if m.id == "m1"]
    assert [message.content for message in told] == ["edited"]
    assert len(thread.told_in_order()) == 5


def test_a_message_that_came_back_is_not_told_twice() -> None:
    thread = Thread()
    thread.append(5)
    thread.evict([0, 1, 2])
    thread.state = [thread.made[1], *thread.state]
    assert sorted(m.id for m in thread.told_in_order()) == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize("positions", [[0, 1, 2], [0], [0, 1], [1, 2], [2]])
def test_two_messages_with_one_id_both_come_back(positions: list[int]) -> None:
    said = ("first", "between", "second", "last")
    made = [HumanMessage(text, id=name) for text, name in zip(said, "mnmo", strict=True)]
    thread = Thread(state=[*made], made=made)
    thread.evict(positions)
    assert thread.told_in_order() == made
    thread.evict(range(len(thread.state) - 1))
    assert thread.told_in_order() == made


def test_equal_messages_without_ids_are_told_apart_by_their_place() -> None:
    messages = [HumanMessage("ok"), AIMessage("fine"), HumanMessage("ok"), AIMessage("so")]
    one = make_segment(messages, [0, 1, 2], None)
    assert len({*one.keys}) == 3
    later = make_segment(messages[2:], [0], one.id)
    assert not {*later.keys} & {*one.keys}


def test_the_same_eviction_has_the_same_ids_again() -> None:
    messages = [with_id(0), without_id(1), with_id(2), with_id(3)]
    again = [with_id(0), without_id(1), with_id(2), with_id(3), with_id(4)]
    assert make_segment(messages, [0, 1], "p") == make_segment(again, [0, 1], "p")
    ids = {
        make_segment(messages, [0, 1], "p").id,
        make_segment(messages, [0, 1], None).id,
        make_segment(messages, [0, 1], "q").id,
        make_segment(messages, [0], "p").id,
        make_segment(messages, [0, 2], "p").id,
        *(
            segment_id(*where, "p", cut_spans(messages, [0, 1], "p"))
            for where in (("u", "", "messages"), ("t", "n", "messages"), ("t", "", "other"))
        ),
    }
    assert len(ids) == 8


SAYS = """
import sys
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from reducing_saver._segment import cut_spans, segment_id
messages = [
    HumanMessage("hello", id="m1", additional_kwargs={"b": 1, "a": (1, 2)}),
    AIMessage("", tool_calls=[{"name": "f", "args": {"x": [1.5, None]}, "id": "c"}]),
    ToolMessage("done", tool_call_id="c", artifact={"k": b"bytes", "s": {"x", "y", "z"}}),
    HumanMessage("odd", id="m4", additional_kwargs={"x": {1: {"x", "y", "z"}, "b": {("t",): 2}}}),
    {"role": "user", "content": [{"type": "text", "text": "é"}]},
]
spans = cut_spans(messages, range(5), None)
sys.stdout.write(segment_id("t", "", "messages", None, spans))
"""


def test_ids_are_the_same_in_every_process() -> None:
    seen = set()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", SAYS],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        seen.add(run.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("a", id="m"),
        AIMessage("", id="m", tool_calls=[{"name": "f", "args": {"x": (1, 2)}, "id": "c"}]),
        ToolMessage("done", tool_call_id="c", artifact={"k": [b"bytes", 1.5]}),
        SystemMessage([{"type": "text", "text": "a"}]),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
    ],
)
def test_keys_outlive_the_serializer(message: Any) -> None:
    """Another process evicts what it has loaded, under the same keys."""
    serde = JsonPlusSerializer()
    loaded = serde.loads_typed(serde.dumps_typed(message))
    assert entry_key(loaded, "p", 3) == entry_key(message, "p", 3)


AWKWARD = {
    "keys of several types": HumanMessage("a", id="m", additional_kwargs={"x": {1: "a", "b": 2}}),
    "tuples as keys": HumanMessage("a", id="m", additional_kwargs={"x": {(1, 2): "a"}}),
    "a set": HumanMessage("a", id="m", additional_kwargs={"x": {"one", "two", "three"}}),
    "not a number": HumanMessage("a", id="m", additional_kwargs={"x": float("nan")}),
    "half a character": HumanMessage("a \ud800", id="m \ud800"),
    "an object": SimpleNamespace(type="human", content="a", id="m"),
    "a number": 7,
    "nothing": None,
}


@pytest.mark.parametrize("name", AWKWARD)
def test_any_message_has_a_key(name: str) -> None:
    message: Any = AWKWARD[name]
    assert entry_key(message, None, 0) == entry_key(message, None, 0)


def test_a_segment_is_plain_data() -> None:
    messages = [with_id(number) for number in range(6)]
    one = make_segment(messages, [0, 1, 4], "p", "removed")
    assert Segment.from_dict(json.loads(json.dumps(one.as_dict()))) == one


# ------------------------------------------------------------------------------------------- work


def lines_run(count: int) -> int:
    """Count the lines of Python that putting so many messages back takes."""
    thread = Thread()
    for _ in range(count // 10):
        thread.append(10)
        thread.evict([i for i in range(len(thread.state) - 5) if i % 7])
    run = 0

    def trace(frame: Any, event: str, value: Any) -> Any:
        nonlocal run
        run += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = in_order(thread.chain, thread.state)
    finally:
        sys.settrace(before)
    assert len(found) == count
    return run


def test_putting_back_is_linear() -> None:
    assert lines_run(4_000) < 4.5 * lines_run(1_000)
