"""Delta channels, opted in with `messages_reducer=` (S7b; C57, P10-P14).

A delta channel stores what was written, and the whole list only now and then. The matrix is
snapshot frequency x durability x which node ran last x saver and door; the suite runs part of it:

    pytest tests/savers/test_delta.py -m campaign
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command, interrupt
from services.door import Door

from reducing_saver import Discard, ReducingSaver, Window

Saver = BaseCheckpointSaver[Any]

WINDOW = Window(keep=("messages", 6), trigger=("messages", 12), cap=("messages", 24))
FREQUENCIES = (1, 3, 100)
ENDS = ("spoken", "silent")
"""Whether the last node of the graph writes a message."""


def wrap(inner: Saver, **kwargs: Any) -> Any:
    given = {"archive": Discard(), "messages_reducer": _messages_delta_reducer, **kwargs}
    return ReducingSaver(inner, WINDOW, **given)


def at(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread}}


def state(frequency: int | None) -> Any:
    """Give a state with a delta channel, or a plain one without a frequency."""

    class Delta(TypedDict):
        messages: Annotated[list[Any], reducer]
        turn: int

    reducer: Any = add_messages
    if frequency is not None:
        reducer = DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)
    Delta.__annotations__["messages"] = Annotated[list[Any], reducer]
    return Delta


def build(saver: Saver, frequency: int | None, end: str = "spoken") -> Any:
    """Give a graph that says two messages a turn, with four super-steps."""

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage(f"reply {state['turn']}", id=f"a{state['turn']}")]}

    builder = StateGraph(state(frequency))
    builder.add_node("before", lambda state: {"turn": state["turn"]})
    builder.add_node("reply", reply)
    builder.add_edge(START, "before")
    builder.add_edge("before", "reply")
    if end == "silent":
        builder.add_node("after", lambda state: {"turn": state["turn"]})
        builder.add_edge("reply", "after")
    return builder.compile(checkpointer=saver)


def turn(i: int) -> Any:
    return {"messages": [HumanMessage(f"question {i}", id=f"h{i}")], "turn": i}


def talk(graph: Any, door: Door, turns: range, thread: str = "t", **kwargs: Any) -> list[int]:
    """Play turns, and give how many messages each run has loaded and made."""
    return [len(door.invoke(graph, turn(i), at(thread), **kwargs)["messages"]) for i in turns]


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


def is_suffix(kept: list[str], whole: list[str]) -> None:
    assert kept == whole[len(whole) - len(kept) :]


def folded(saver: Saver, door: Door, thread: str = "t") -> int:
    """Count the messages that the head of a thread is made from: what a load reads."""
    head = door.get_tuple(saver, at(thread))
    value = head.checkpoint["channel_values"].get("messages")
    if isinstance(value, _DeltaSnapshot):
        return len(value.value)
    history = door.get_delta_channel_history(saver, head.config, ["messages"])["messages"]
    seed = history.get("seed")
    written = [item for write in history["writes"] for item in write[2]]
    return len(seed.value if isinstance(seed, _DeltaSnapshot) else seed or ()) + len(written)


def same_state_and_history(kept: Any, bare: Any, door: Door) -> None:
    """Assert that every checkpoint holds the newest part of what the bare one holds."""
    histories = [
        door.get_state_history(kept, at()),
        Door().get_state_history(bare, at()),
    ]
    assert len(histories[0]) == len(histories[1])
    for ours, theirs in zip(*histories, strict=True):
        is_suffix(*(ids(s.values.get("messages", [])) for s in (ours, theirs)))
        assert ours.values.get("turn") == theirs.values.get("turn")
        assert ours.next == theirs.next
        for name in ("source", "step"):
            assert ours.metadata.get(name) == theirs.metadata.get(name)


def check(inner: Saver, door: Door, frequency: int, durability: str, end: str, turns: int) -> None:
    saver, memory = wrap(inner), InMemorySaver()
    kept, bare = build(saver, frequency, end), build(memory, frequency, end)
    loads = talk(kept, door, range(turns), durability=durability)
    assert talk(bare, Door(), range(turns), durability=durability)[-1] == 2 * turns
    assert max(loads) <= WINDOW.triggers[0].value + 2
    assert len(set(loads[6:])) > 1, "nothing left"
    assert folded(saver, door) <= WINDOW.triggers[0].value + 2
    same_state_and_history(kept, bare, door)
    fresh = build(wrap(inner), frequency, end)
    same_state_and_history(fresh, bare, door)

    # Replay from the middle of a run, in the middle of the thread
    for graph, way in ((fresh, door), (bare, Door())):
        history = way.get_state_history(graph, at())
        waits = [s.config for s in history if s.next]
        if waits:
            way.invoke(graph, None, waits[len(waits) // 2], durability=durability)
    same_state_and_history(fresh, bare, door)
    talk(fresh, door, range(turns, turns + 2), durability=durability)
    talk(bare, Door(), range(turns, turns + 2), durability=durability)
    same_state_and_history(build(wrap(inner), frequency, end), bare, door)


@pytest.mark.parametrize("backend", ["memory-sync", "memory_int-async"], indirect=True)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_in_memory(inner: Saver, door: Door, frequency: int, durability: str, end: str) -> None:
    """C57: what is loaded stays bounded; state, history and replay are the bare ones' suffix."""
    check(inner, door, frequency, durability, end, turns=12)


@pytest.mark.parametrize(
    ("backend", "frequency", "durability", "end"),
    [
        ("sqlite-sync", 3, "sync", "silent"),
        ("sqlite-sync", 100, "exit", "spoken"),
        ("aiosqlite-async", 100, "sync", "spoken"),
        ("postgres-sync", 3, "exit", "silent"),
        ("postgres-sync", 100, "sync", "spoken"),
        ("apostgres-async", 100, "sync", "silent"),
        ("apostgres-async", 1, "exit", "spoken"),
    ],
    indirect=["backend"],
)
def test_in_databases(inner: Saver, door: Door, frequency: int, durability: str, end: str) -> None:
    """C57 where channels are stored apart from checkpoints, or with each."""
    check(inner, door, frequency, durability, end, turns=10)


@pytest.mark.campaign
@pytest.mark.skipif("'campaign' not in config.option.markexpr", reason="long: run with -m campaign")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_whole_matrix(inner: Saver, door: Door, frequency: int, durability: str, end: str) -> None:
    check(inner, door, frequency, durability, end, turns=30)


SOME = pytest.mark.parametrize(
    "backend", ["memory-async", "sqlite-sync", "postgres-sync"], indirect=True
)


@SOME
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_forks_by_copy(inner: Saver, door: Door, frequency: int) -> None:
    """P13: a snapshot that was loaded is put again, without a new version, by `__copy__`."""
    saver, memory = wrap(inner), InMemorySaver()
    kept, bare = build(saver, frequency), build(memory, frequency)
    for graph, way in ((kept, door), (bare, Door())):
        talk(graph, way, range(8))
        way.update_state(graph, at(), None, as_node="__copy__")
        talk(graph, way, range(8, 9))
        rests = [s.config for s in way.get_state_history(graph, at()) if not s.next]
        way.update_state(graph, rests[4], None, as_node="__copy__")
        talk(graph, way, range(9, 11))
    same_state_and_history(kept, bare, door)
    same_state_and_history(build(wrap(inner), frequency), bare, door)


@SOME
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_update_state(inner: Saver, door: Door, frequency: int) -> None:
    """Updates of the head, and of an older checkpoint, which is then the newest."""
    kept, bare = build(wrap(inner), frequency), build(InMemorySaver(), frequency)
    for graph, way in ((kept, door), (bare, Door())):
        talk(graph, way, range(8))
        added = {"messages": [AIMessage("added", id="added")]}
        way.update_state(graph, at(), added, as_node="reply")
        talk(graph, way, range(8, 9))
        rests = [s.config for s in way.get_state_history(graph, at()) if not s.next]
        told = {"messages": [HumanMessage("told", id="told"), AIMessage("so", id="so")]}
        forked = way.update_state(graph, rests[3], told, as_node="reply")
        way.invoke(graph, turn(9), forked)
        talk(graph, way, range(10, 16))
    same_state_and_history(kept, bare, door)
    fresh = build(wrap(inner), frequency)
    same_state_and_history(fresh, bare, door)
    assert max(talk(fresh, door, range(16, 24))) <= WINDOW.triggers[0].value + 2


@SOME
@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("turns", [4, 7])
def test_from_a_plain_channel(inner: Saver, door: Door, frequency: int, turns: int) -> None:
    """A thread that moves from a plain to a delta channel keeps all later messages."""
    memory = InMemorySaver()
    for graphs in ((None, None), (frequency, frequency)):
        kept, bare = build(wrap(inner), graphs[0]), build(memory, graphs[1])
        numbers = range(turns) if graphs[0] is None else range(turns, turns + 8)
        talk(kept, door, numbers)
        talk(bare, Door(), numbers)
        ours = ids(door.get_state(kept, at()).values["messages"])
        theirs = ids(bare.get_state(at()).values["messages"])
        is_suffix(ours, theirs)
        assert len(ours) >= WINDOW.keep.value
        assert len(ours) <= WINDOW.triggers[0].value


@SOME
def test_a_thread_stored_bare(inner: Saver, door: Door) -> None:
    """S14, P44: what was stored before wrapping is reduced when it next rests."""
    for i, frequency in enumerate(FREQUENCIES):
        thread = f"t{i}"
        talk(build(inner, frequency), door, range(20), thread)
        kept = build(wrap(inner), frequency)
        assert talk(kept, door, range(20, 21), thread) == [42]
        loads = talk(kept, door, range(21, 26), thread)
        assert max(loads) <= WINDOW.triggers[0].value + 2
        # And what the wrapper stored loads without it
        bare = build(inner, frequency)
        held = ids(door.get_state(kept, at(thread)).values["messages"])
        assert ids(door.get_state(bare, at(thread)).values["messages"]) == held
        assert talk(bare, door, range(26, 27), thread) == [len(held) + 2]


@SOME
def test_without_the_option(inner: Saver, door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """Passed through as it is, with one warning."""
    saver = wrap(inner, messages_reducer=None)
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        graph = build(saver, 3)
        assert talk(graph, door, range(12))[-1] == 24
    warned = [record.getMessage() for record in caplog.records if "messages_reducer" in record.msg]
    assert len(warned) == 1
    bare = build(InMemorySaver(), 3)
    talk(bare, Door(), range(12))
    same_state_and_history(graph, bare, door)
    assert saver.stats().total.evicted == 0


@SOME
def test_only_at_rest(inner: Saver, door: Door) -> None:
    """In the middle of a run nothing leaves, and only LangGraph's own snapshots are stored."""
    graph = build(wrap(inner), 100, "silent")
    talk(graph, door, range(7))
    stored = door.list(inner, at())
    snapshots = [
        found
        for found in stored
        if isinstance(found.checkpoint["channel_values"].get("messages"), _DeltaSnapshot)
    ]
    assert len(snapshots) == 1, "the crossing's, at the end of the seventh turn"
    assert snapshots[0].config == stored[0].config
    assert ids(snapshots[0].checkpoint["channel_values"]["messages"].value) == [
        f"{kind}{i}" for i in (4, 5, 6) for kind in "ha"
    ]
    assert "counters_since_delta_snapshot" not in stored[0].metadata


@SOME
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_an_interrupt_beside_a_finished_node(inner: Saver, door: Door, frequency: int) -> None:
    """A resumed run with pending writes, in a thread that has evicted at rest before."""

    def make(saver: Saver) -> Any:
        def asker(_: Any) -> Any:
            return {"messages": [AIMessage(interrupt("?"), id="asked")]}

        def writer(state: Any) -> Any:
            oldest = state["messages"][0]
            return {"messages": [RemoveMessage(oldest.id), AIMessage("noted", id="noted")]}

        builder = StateGraph(state(frequency))
        builder.add_node("reply", lambda s: {"messages": [AIMessage("yes", id=f"a{s['turn']}")]})
        builder.add_node("writer", writer)
        builder.add_node("asker", asker)
        builder.add_edge(START, "reply")
        fork = lambda state: ["writer", "asker"] if state["turn"] == 8 else END  # noqa: E731
        builder.add_conditional_edges("reply", fork, ["writer", "asker", END])
        return builder.compile(checkpointer=saver)

    kept, bare = make(wrap(inner)), make(InMemorySaver())
    for i in range(8):
        door.invoke(kept, turn(i), at())
        bare.invoke(turn(i), at())
    door.invoke(kept, turn(8), at())
    bare.invoke(turn(8), at())
    oldest = "h4"  # of the six that are kept after the seventh turn
    kept = make(wrap(inner))
    ours = ids(door.get_state(kept, at()).values["messages"])
    theirs = ids(bare.get_state(at()).values["messages"])
    is_suffix(ours, theirs)
    ours = ids(door.invoke(kept, Command(resume="yes"), at())["messages"])
    theirs = ids(bare.invoke(Command(resume="yes"), at())["messages"])
    assert theirs[0] == "a0"
    is_suffix(ours, [i for i in theirs if i != oldest])


class Failing(InMemorySaver):
    """Fail to give a delta channel's history."""

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        if self.fails:
            raise ConnectionError("the line is down")
        return super().get_delta_channel_history(**kwargs)

    fails = False


def test_what_cannot_be_folded_is_stored_as_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: a failure in reducing is never the run's."""
    saver = wrap(Failing())
    graph = build(saver, 100)
    reducers: list[Callable[..., Any]] = [lambda *_: 1 / 0]
    monkeypatch.setattr(saver, "_messages_reducer", reducers[0])
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        assert talk(graph, Door(), range(8))[-1] == 16
    assert saver.stats().total.failures > 0
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    talk(graph, Door(), range(8, 9))
    assert len(graph.get_state(at()).values["messages"]) <= WINDOW.keep.value
