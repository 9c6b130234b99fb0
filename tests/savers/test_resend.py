"""Clients that send their whole list on every turn (M7; C41), within one process.

What was evicted is dropped from the store again. The run in progress has already seen it, so the
client's list may go through `new_messages` first.
"""

from __future__ import annotations

import itertools
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from services.door import Door

from reducing_saver import ConfigurationError, Discard, ReducingSaver, Window
from reducing_saver.engine import problems

Saver = BaseCheckpointSaver[Any]

WINDOW = Window(keep=("messages", 2), trigger=("messages", 2))
SOME = pytest.mark.parametrize(
    "backend",
    ["memory-sync", "memory_int-async", "aiosqlite-async", "postgres-sync"],
    indirect=True,
)


def wrap(inner: Saver, **kwargs: Any) -> Any:
    return ReducingSaver(inner, **{"window": WINDOW, "archive": Discard(), **kwargs})


def at(thread: str = "t", **more: str) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def ids(messages: Any) -> list[Any]:
    return [message.id for message in messages]


def build(saver: Saver, seen: list[list[str]] | None = None, state: Any = MessagesState) -> Any:
    def reply(state: Any) -> Any:
        if seen is not None:
            seen.append(ids(state["messages"]))
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"to {last.content}", id=f"a{last.id[1:]}")]}

    builder = StateGraph(state)
    builder.add_node("reply", reply)
    builder.add_node("end", lambda _: {})
    builder.add_edge(START, "reply")
    builder.add_edge("reply", "end")
    return builder.compile(checkpointer=saver)


def human(i: int) -> HumanMessage:
    return HumanMessage(f"question {i}", id=f"h{i}")


def turns(count: int) -> list[Any]:
    """Give the messages of the first turns, as a client keeps them."""
    return [
        message
        for i in range(count)
        for message in (human(i), AIMessage(f"to question {i}", id=f"a{i}"))
    ]


def stored(inner: Saver, door: Door, thread: str = "t") -> list[list[str]]:
    """Give every stored list, oldest first."""
    found = reversed(door.list(inner, at(thread)))
    lists = [each.checkpoint["channel_values"].get("messages") for each in found]
    return [ids(each) for each in lists if each is not None]


@SOME
def test_what_was_evicted_is_dropped_again(inner: Saver, door: Door) -> None:
    """C41: the stored order stays the original, and nothing is evicted twice."""
    saver = wrap(inner)
    graph = build(saver)
    for i in range(8):
        door.invoke(graph, {"messages": [*turns(i), human(i)]}, at())
        state = door.get_state(graph, at()).values["messages"]
        assert ids(state) == [f"h{i}", f"a{i}"]
        assert problems(state) == ()
    # In the middle of a turn the store holds what the last one left, and the new message
    order = ids(turns(8))
    for held in stored(inner, door):
        assert held == [name for name in order if name in held]
        assert len(held) <= 4
    stats = saver.stats().channels["messages"]
    assert stats.evicted == 14
    assert stats.repeated > 0


@SOME
def test_the_run_in_progress_has_seen_them(inner: Saver, door: Door) -> None:
    """No saver can cure an input that never passes through it; `new_messages` is for this."""
    seen: list[list[str]] = []
    graph = build(wrap(inner), seen)
    for i in range(3):
        result = door.invoke(graph, {"messages": [*turns(i), human(i)]}, at())
    assert seen[-1] == ["h1", "a1", "h0", "a0", "h2"]
    assert ids(result["messages"]) == ["h1", "a1", "h0", "a0", "h2", "a2"]
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h2", "a2"]


@SOME
def test_new_messages_filters_the_input(inner: Saver, door: Door) -> None:
    """With it the run is the one of a client that sends only what is new."""
    saver, seen = wrap(inner), []
    graph = build(saver, seen)
    others: list[list[str]] = []
    plain = build(wrap(InMemorySaver()), others)
    for i in range(8):
        new = door.call(saver, "new_messages", at(), [*turns(i), human(i)])
        assert ids(new) == [f"h{i}"]
        result = door.invoke(graph, {"messages": new}, at())
        plain.invoke({"messages": [human(i)]}, at())
        assert ids(result["messages"])[-2:] == [f"h{i}", f"a{i}"]
    assert seen == others
    assert seen[-1] == ["h6", "a6", "h7"]


@SOME
def test_an_edited_message_that_was_evicted_stays_out(inner: Saver, door: Door) -> None:
    graph = build(wrap(inner))
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at())
    edited = HumanMessage("another question", id="h0")
    door.invoke(graph, {"messages": [edited, human(4)]}, at())
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h4", "a4"]


@SOME
def test_what_comes_back_as_the_newest_is_meant(inner: Saver, door: Door) -> None:
    """A user sends an old question once more: it is the current turn, and stays."""
    saver = wrap(inner)
    graph = build(saver)
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at())
    result = door.invoke(graph, {"messages": [human(0)]}, at())
    assert ids(result["messages"])[-2:] == ["h0", "a0"]
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h0", "a0"]
    door.invoke(graph, {"messages": [human(5)]}, at())
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h5", "a5"]


class Added(TypedDict):
    messages: Annotated[list[Any], operator.add]


@SOME
def test_messages_without_an_id_are_always_new(inner: Saver, door: Door) -> None:
    """P5: who says "ok" twice says it twice."""
    saver = wrap(inner)
    unknown = [HumanMessage("ok"), {"role": "user", "content": "ok"}, ("user", "ok")]
    assert door.call(saver, "new_messages", at(), unknown) == unknown
    graph = build(saver)
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at())
    assert door.call(saver, "new_messages", at(), unknown) == unknown


@SOME
def test_a_new_thread_and_an_empty_list(inner: Saver, door: Door) -> None:
    saver = wrap(inner)
    assert ids(door.call(saver, "new_messages", at("none"), turns(2))) == ids(turns(2))
    assert door.call(saver, "new_messages", at("none"), []) == []


@SOME
def test_dicts_with_ids_are_known_too(inner: Saver, door: Door) -> None:
    saver = wrap(inner)
    graph = build(saver)
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at())
    sent = [{"role": "user", "content": f"question {i}", "id": f"h{i}"} for i in range(5)]
    assert door.call(saver, "new_messages", at(), sent) == sent[4:]


@SOME
def test_a_removal_of_what_was_evicted_is_left_out_and_others_stay(
    inner: Saver, door: Door
) -> None:
    """P24: `add_messages` raises for an id that is not there. A removal of what is there counts."""
    saver = wrap(inner)
    graph = build(saver)
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at())
    sent = [RemoveMessage("h0"), RemoveMessage("h3"), human(4)]
    new = door.call(saver, "new_messages", at(), sent)
    assert new == sent[1:]
    result = door.invoke(graph, {"messages": new}, at())
    assert ids(result["messages"]) == ["a3", "h4", "a4"]


@SOME
def test_each_line_has_its_own_past(inner: Saver, door: Door) -> None:
    """A fork from an older checkpoint has evicted less than the newest line."""
    saver = wrap(inner)
    graph = build(saver)
    for i in range(6):
        door.invoke(graph, {"messages": [human(i)]}, at())
    rests = [s for s in door.get_state_history(graph, at()) if not s.next]
    older = rests[1]
    assert ids(older.values["messages"]) == ["h4", "a4"]
    sent = [*turns(6), human(9)]
    new = ids(door.call(saver, "new_messages", older.config, sent))
    assert new == ["h5", "a5", "h9"]
    assert ids(door.call(saver, "new_messages", at(), sent)) == ["h9"]
    door.invoke(graph, {"messages": [*turns(5), human(9)]}, older.config)
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h9", "a9"]
    assert ids(door.call(saver, "new_messages", at(), sent)) == ["h5", "a5"]


def test_other_channels_and_wrong_names() -> None:
    class Chat(TypedDict):
        chat: Annotated[list[Any], operator.add]

    saver = wrap(InMemorySaver(), channels=("chat",))
    builder = StateGraph(Chat)
    builder.add_node("reply", lambda state: {"chat": [AIMessage("yes", id=f"a{len(state)}")]})
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"chat": [human(0)]}, at())
    assert ids(saver.new_messages(at(), [human(0), human(1)], channel="chat")) == ["h1"]
    with pytest.raises(ConfigurationError, match=r"channel='messages'.*chat"):
        saver.new_messages(at(), [human(0)])


def test_in_the_value_of_an_entrypoint() -> None:
    from langgraph.func import entrypoint

    saver = wrap(InMemorySaver(), channels=("__previous__.messages",))

    @entrypoint(checkpointer=saver)
    def talk(given: list[Any], *, previous: Any = None) -> Any:
        before = (previous or {"messages": []})["messages"]
        return {
            "messages": [
                *before,
                *given,
                AIMessage(f"to {given[-1].content}", id=f"a{given[-1].id[1:]}"),
            ]
        }

    for i in range(5):
        talk.invoke([human(i)], at())
    sent = [*turns(5), human(5)]
    assert ids(saver.new_messages(at(), sent, channel="__previous__.messages")) == ["h5"]


@SOME
def test_a_client_that_resends_beside_others(inner: Saver, door: Door) -> None:
    """Threads do not know each other's past."""
    saver = wrap(inner)
    graph = build(saver)
    for i in range(4):
        door.invoke(graph, {"messages": [human(i)]}, at("one"))
    assert ids(door.call(saver, "new_messages", at("two"), turns(4))) == ids(turns(4))
    door.invoke(graph, {"messages": [*turns(3), human(3)]}, at("two"))
    assert ids(door.get_state(graph, at("two")).values["messages"]) == ["h3", "a3"]


@SOME
def test_in_another_process_only_what_is_held_is_known(inner: Saver, door: Door) -> None:
    """Until there is an archive: the memory is the process's. The list stays valid and bounded."""
    graph = build(wrap(inner))
    for i in range(5):
        door.invoke(graph, {"messages": [human(i)]}, at())
    fresh = wrap(inner)
    sent = [*turns(5), human(5)]
    new = door.call(fresh, "new_messages", at(), sent)
    assert ids(new) == [*ids(turns(4)), "h5"]
    graph = build(fresh)
    door.invoke(graph, {"messages": sent}, at())
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h5", "a5"]
    assert ids(door.call(fresh, "new_messages", at(), [*turns(6), human(6)])) == ["h6"]


@pytest.mark.parametrize("backend", ["memory-sync", "postgres-sync"], indirect=True)
def test_a_long_run_resent_in_the_middle_of_it(inner: Saver, door: Door) -> None:
    """A node repeats the whole list, with evictions above the cap in between."""
    window = Window(keep=("messages", 4), trigger=("messages", 6), cap=("messages", 10))

    class State(MessagesState):
        step: int

    def work(state: Any) -> Any:
        i = state["step"]
        call = {"name": "look", "args": {}, "id": f"c{i}"}
        new = AIMessage("looking", id=f"a{i}", tool_calls=[call])
        result = {"role": "tool", "content": "found", "tool_call_id": f"c{i}", "id": f"t{i}"}
        return {"messages": [*state["messages"], new, result], "step": i + 1}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda s: "work" if s["step"] < 20 else "__end__")
    saver = wrap(inner, window=window)
    graph = builder.compile(checkpointer=saver)
    door.invoke(graph, {"messages": [human(0)], "step": 0}, at())
    order = ["h0", *(f"{kind}{i}" for i in range(20) for kind in "at")]
    lists = stored(inner, door)
    for held in lists:
        assert held == [name for name in order if name in held]
        assert len(held) <= 10
    gone: set[str] = set()
    for before, after in itertools.pairwise(lists):
        assert not gone.intersection(after)
        gone |= {name for name in before if name not in after}
    assert saver.stats().channels["messages"].evicted == 41 - len(lists[-1])
