"""Pending writes that name a message which their checkpoint has evicted (S7; C50, C51, P15-P20).

In `parallel` a node `writer` finishes beside a node that interrupts. What it writes names messages
of the turn before, which the middle of the run has evicted. `KINDS` are the ways to name one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Overwrite, interrupt
from services.door import Door, within
from services.savers import BACKENDS

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import problems

SOME = pytest.mark.parametrize(
    "backend", ["memory-sync", "sqlite-sync", "apostgres-async"], indirect=True
)
Saver = BaseCheckpointSaver[Any]
Messages = list[Any]

WINDOW = Window(keep=("messages", 2), trigger=("messages", 2), cap=("messages", 6))
EVICTED = {"h0", "a0.0", "t0.0", "a0.1"}
"""The turn before: 4 messages. With the 3 of `work` in the next turn they are above the cap."""


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    notes: Annotated[list[str], lambda old, new: [*old, *new]]


def note() -> AIMessage:
    return AIMessage("noted", id="note")


KINDS: dict[str, Callable[[Messages], Any]] = {
    "remove": lambda _: [RemoveMessage("h0")],
    "remove a unit": lambda _: [note(), RemoveMessage("a0.0"), RemoveMessage("t0.0")],
    "remove, not in a list": lambda _: RemoveMessage("h0"),
    "edit": lambda _: [HumanMessage("edited", id="h0"), note()],
    "edit a dict": lambda _: [{"role": "user", "content": "edited", "id": "h0"}, note()],
    "edit a call": lambda _: [AIMessage("edited", id="a0.0", tool_calls=[call("c0")])],
    "edit a result": lambda _: [ToolMessage("[cleared]", tool_call_id="c0", id="t0.0")],
    "answer": lambda _: [ToolMessage("again", tool_call_id="c0", id="late"), note()],
    "whole list": lambda messages: [*messages, note()],
    "overwrite": lambda messages: Overwrite([messages[0], note()]),
    "remove all": lambda messages: [RemoveMessage(REMOVE_ALL_MESSAGES), messages[0], note()],
    "nothing old": lambda _: [note()],
}
ON_PURPOSE = ("overwrite", "remove all")
"""What these keep is kept on purpose."""


def call(name: str) -> Any:
    return {"name": "look", "args": {}, "id": name}


class Scene:
    """A graph on a saver, and how often its nodes ran."""

    def __init__(
        self, saver: Saver, kind: str, *, nested: bool = False, stops: tuple[str, ...] = ()
    ) -> None:
        self.ran: list[str] = []
        builder = StateGraph(State)
        builder.add_node("work", self.work)
        builder.add_node("writer", lambda state: self.writer(kind, state))
        builder.add_node("asker", self.asker)
        builder.add_node("last", self.last)
        builder.add_edge(START, "work")
        builder.add_conditional_edges("work", self.fork, ["writer", "asker", END])
        builder.add_edge(["writer", "asker"], "last")
        if nested:
            child = builder.compile()
            builder = StateGraph(State)
            builder.add_node("child", child)
            builder.add_edge(START, "child")
        self.graph = builder.compile(checkpointer=saver, interrupt_before=[*stops])

    def work(self, state: State) -> Any:
        turn = state["messages"][-1].id[1:]
        self.ran.append(f"work {turn}")
        ai = AIMessage("looking", id=f"a{turn}.0", tool_calls=[call(f"c{turn}")])
        result = ToolMessage("found", tool_call_id=f"c{turn}", id=f"t{turn}.0")
        answer = [AIMessage("done", id=f"a{turn}.1")] if turn != "1" else []
        return {"messages": [ai, result, *answer]}

    def fork(self, state: State) -> Any:
        return ["writer", "asker"] if state["messages"][-1].id == "t1.0" else END

    def writer(self, kind: str, state: State) -> Any:
        self.ran.append("writer")
        return {"notes": ["before"], "messages": KINDS[kind](state["messages"])}

    def asker(self, state: State) -> Any:
        self.ran.append("asker")
        said = interrupt("go on?")
        return {"messages": [AIMessage(said, id="asked")]}

    def last(self, state: State) -> Any:
        self.ran.append("last")
        return {}


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def question(turn: int) -> Any:
    return {"messages": [HumanMessage(f"question {turn}", id=f"h{turn}")], "notes": []}


def ids(messages: Iterable[Any]) -> list[str]:
    return [message.id for message in messages]


def shown(messages: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(message.id, message.content) for message in messages]


def interrupted(scene: Scene, door: Door, thread: str, **kwargs: Any) -> None:
    door.invoke(scene.graph, question(0), config(thread), **kwargs)
    door.invoke(scene.graph, question(1), config(thread), **kwargs)


def expected(bare: Messages, kind: str) -> list[tuple[str, Any]]:
    """Give what the bare saver holds, less what was evicted and what names it."""
    gone = set() if kind in ON_PURPOSE else {*EVICTED, "late"}
    return [(m.id, m.content) for m in bare if m.id not in gone]


def each(kinds: Iterable[str], check: Callable[[str], None]) -> None:
    """Check every kind, on one store, and tell of all that failed."""
    failed = []
    for kind in kinds:
        try:
            check(kind)
        except Exception as error:
            error.add_note(f"kind: {kind}")
            failed.append(error)
    if failed:
        raise ExceptionGroup("kinds that failed", failed)


def wrap(inner: Saver, **kwargs: Any) -> Any:
    return ReducingSaver(inner, WINDOW, archive=Discard(), **kwargs)


READERS: dict[str, Callable[[Any], Any]] = {
    "the same saver": lambda saver: saver,
    "another process": lambda saver: wrap(saver.inner),
    "switched off": lambda saver: wrap(saver.inner, enabled=False),
    "in the shadow": lambda saver: wrap(saver.inner, shadow=True),
}


@pytest.fixture(scope="module")
def bare() -> dict[str, dict[str, Any]]:
    """What a bare saver makes of each kind: the state while it waits, and at the end."""
    outcomes = {}
    for kind in KINDS:
        door, scene = Door(), Scene(InMemorySaver(), kind)
        interrupted(scene, door, "t")
        waits = door.get_state(scene.graph, config("t"))
        door.invoke(scene.graph, Command(resume="yes"), config("t"))
        rests = door.get_state(scene.graph, config("t"))
        outcomes[kind] = {"waits": waits, "rests": rests, "ran": sorted(scene.ran)}
    return outcomes


@pytest.mark.parametrize(
    ("backend", "reader"),
    [
        *((backend, "another process") for backend in BACKENDS),
        *(("memory-sync", reader) for reader in READERS if reader != "another process"),
        *(("sqlite-sync", reader) for reader in READERS if reader != "another process"),
        *(("apostgres-async", reader) for reader in READERS if reader != "another process"),
    ],
    indirect=["backend"],
)
def test_a_thread_goes_on(
    inner: Saver, door: Door, bare: dict[str, dict[str, Any]], reader: str
) -> None:
    """C50, C51: `get_state`, history and resume work; nothing comes back, nothing runs again."""

    def check(kind: str) -> None:
        first = wrap(inner)
        scene = Scene(first, kind)
        interrupted(scene, door, kind)
        stored = door.get_tuple(inner, config(kind))
        assert ids(stored.checkpoint["channel_values"]["messages"]) == ["h1", "a1.0", "t1.0"]

        later = Scene(READERS[reader](first), kind)
        state = door.get_state(later.graph, config(kind))
        assert shown(state.values["messages"]) == expected(
            bare[kind]["waits"].values["messages"], kind
        )
        assert state.next == bare[kind]["waits"].next == ("asker",)
        assert [i.value for i in state.interrupts] == ["go on?"]
        assert state.values["notes"] == ["before"]
        history = door.get_state_history(later.graph, config(kind))
        assert len(history) == 6
        assert ids(history[0].values["messages"]) == ["h1", "a1.0", "t1.0"]

        result = door.invoke(later.graph, Command(resume="yes"), config(kind))
        whole = bare[kind]["rests"].values
        assert shown(result["messages"]) == expected(whole["messages"], kind)
        state = door.get_state(later.graph, config(kind))
        assert shown(state.values["messages"]) == expected(whole["messages"], kind)
        assert state.values["notes"] == whole["notes"]
        assert state.next == ()
        assert sorted(scene.ran + later.ran) == bare[kind]["ran"]
        assert len(door.get_state_history(later.graph, config(kind))) == 8

        result = door.invoke(later.graph, question(2), config(kind))
        if kind not in ON_PURPOSE:
            assert not EVICTED.intersection(ids(result["messages"]))
        assert problems(result["messages"]) == ()

    each(KINDS, check)


@SOME
@pytest.mark.parametrize("reader", ["the same saver", "another process"])
def test_stored_at_exit(
    inner: Saver, door: Door, bare: dict[str, dict[str, Any]], reader: str
) -> None:
    """With `durability="exit"` the writes are stored with the one checkpoint of the run."""

    def check(kind: str) -> None:
        first = wrap(inner)
        scene = Scene(first, kind)
        interrupted(scene, door, kind, durability="exit")
        later = Scene(READERS[reader](first), kind)
        state = door.get_state(later.graph, config(kind))
        waits = bare[kind]["waits"].values["messages"]
        assert shown(state.values["messages"]) == expected(waits, kind)
        result = door.invoke(later.graph, Command(resume="yes"), config(kind), durability="exit")
        assert shown(result["messages"]) == expected(bare[kind]["rests"].values["messages"], kind)
        assert sorted(scene.ran + later.ran) == bare[kind]["ran"]

    each(KINDS, check)


@pytest.mark.parametrize(
    "backend", ["memory-async", "sqlite-sync", "apostgres-async"], indirect=True
)
@pytest.mark.parametrize("reader", ["the same saver", "another process", "switched off"])
def test_update_state(inner: Saver, door: Door, reader: str) -> None:
    """An update drops what is pending (langgraph 1.2.24), an end applies it: the state is there."""
    added = {"messages": [AIMessage("added", id="added")]}

    def check(kind: str) -> None:
        for values, node in ((added, "asker"), (None, END)):
            thread = f"{kind} {node}"
            first, reference = wrap(inner), Scene(InMemorySaver(), kind)
            interrupted(reference, Door(), thread)
            interrupted(Scene(first, kind), door, thread)
            later = Scene(READERS[reader](first), kind)
            reference.graph.update_state(config(thread), values, as_node=node)
            door.update_state(later.graph, config(thread), values, as_node=node)
            whole = reference.graph.get_state(config(thread)).values["messages"]
            kept = door.get_state(later.graph, config(thread)).values["messages"]
            applied = kind if node == END else "nothing old"
            assert shown(kept) == expected(whole, applied)

    each(KINDS, check)


@SOME
@pytest.mark.parametrize("reader", ["the same saver", "another process"])
def test_what_was_put_back_stays_for_the_next_process(
    inner: Saver, door: Door, bare: dict[str, dict[str, Any]], reader: str
) -> None:
    """The run's record says "evicted" of it; the checkpoint holds it again."""

    def check(kind: str) -> None:
        first = wrap(inner)
        scene = Scene(first, kind, stops=("last",))
        interrupted(scene, door, kind)
        door.invoke(scene.graph, Command(resume="yes"), config(kind))
        later = Scene(READERS[reader](first), kind)
        assert door.get_state(later.graph, config(kind)).next == ("last",)
        result = door.invoke(later.graph, None, config(kind))
        assert shown(result["messages"]) == expected(bare[kind]["rests"].values["messages"], kind)
        stored = door.get_tuple(inner, config(kind)).checkpoint["channel_values"]["messages"]
        assert shown(stored) == shown(result["messages"])

    each(KINDS, check)


@SOME
@pytest.mark.parametrize("reader", ["the same saver", "another process"])
def test_a_copy_of_what_was_put_back(inner: Saver, door: Door, reader: str) -> None:
    """The parent of a `__copy__` fork is its grandparent, which had evicted what is there again."""

    def check(kind: str) -> None:
        first = wrap(inner)
        scene = Scene(first, kind)
        interrupted(scene, door, kind)
        door.invoke(scene.graph, Command(resume="yes"), config(kind))
        later = Scene(READERS[reader](first), kind)
        for state in door.get_state_history(later.graph, config(kind))[:3]:
            forked = door.update_state(later.graph, state.config, None, as_node="__copy__")
            stored = door.get_tuple(inner, forked).checkpoint["channel_values"]["messages"]
            assert ids(stored) == ids(state.values["messages"])

    each(KINDS, check)


@pytest.mark.parametrize("backend", ["memory-sync", "aiosqlite-async"], indirect=True)
def test_in_a_subgraph(inner: Saver, door: Door) -> None:
    """A subgraph's call has its own checkpoints, records and pending writes."""

    def check(kind: str) -> None:
        lists = {}
        for name, saver in (("bare", InMemorySaver()), ("kept", wrap(inner))):
            way = Door() if name == "bare" else door
            scene = Scene(saver, kind, nested=True)
            interrupted(scene, way, kind)
            later = scene if name == "bare" else Scene(wrap(inner), kind, nested=True)
            way.get_state(later.graph, config(kind), subgraphs=True)
            child = way.invoke(later.graph, Command(resume="yes"), config(kind))
            lists[name] = child["messages"], sorted({*scene.ran, *later.ran})
        assert lists["kept"][1] == lists["bare"][1]
        kept, whole = ids(lists["kept"][0]), ids(lists["bare"][0])
        assert len(kept) == len({*kept})
        if kind not in ON_PURPOSE:
            assert [i for i in whole if i in kept and i != "late"] == [
                i for i in kept if i != "late"
            ]
        assert kept[-1] == whole[-1]

    each(KINDS, check)


def test_writes_are_emptied_never_dropped(inner: Saver, door: Door) -> None:
    """P18: a task without writes would run again; positions and other channels stay."""

    def check(kind: str) -> None:
        saver = wrap(inner)
        interrupted(Scene(saver, kind), door, kind)
        raw = door.get_tuple(inner, config(kind)).pending_writes
        for reading in (saver, wrap(inner)):
            [listed] = door.list(reading, config(kind), limit=1)
            for seen in (door.get_tuple(reading, config(kind)), listed):
                assert [w[:2] for w in seen.pending_writes] == [w[:2] for w in raw]
                others = [
                    [w for w in ws if w[1] != "messages"] for ws in (raw, seen.pending_writes)
                ]
                assert others[0] == others[1]
                for (_, channel, was), (_, _, now) in zip(raw, seen.pending_writes, strict=True):
                    if channel == "messages" and isinstance(was, list) and isinstance(now, list):
                        assert now == [item for item in was if item in now]

    each(KINDS, check)


def test_listing_does_not_deadlock(inner: Saver, door: Door) -> None:
    """P39: SQLite's `list` holds its lock while it is read; cleaning reads from the store."""
    for kind in ("edit", "whole list"):
        interrupted(Scene(wrap(inner), kind), door, kind)
    fresh = wrap(inner)
    found = within(20, lambda: door.list(fresh, None))
    assert len(found) == 12
    fresh = Scene(wrap(inner), "edit")
    assert len(within(20, lambda: door.get_state_history(fresh.graph, config("edit")))) == 6


# A write may name what an earlier crossing of the run has evicted, and what an earlier run did


class Rounds:
    """One long run: rounds of a call and its result, then a writer beside a node that waits."""

    def __init__(self, saver: Saver, rounds: int, write: Callable[[Messages], Any]) -> None:
        self.rounds = rounds
        builder = StateGraph(State)
        builder.add_node("work", self.work)
        builder.add_node("writer", lambda state: {"messages": write(state["messages"])})
        builder.add_node("asker", lambda _: {"messages": [AIMessage(interrupt("?"), id="asked")]})
        builder.add_edge(START, "work")
        builder.add_conditional_edges("work", self.more, ["work", "writer", "asker"])
        self.graph = builder.compile(checkpointer=saver)

    def work(self, state: State) -> Any:
        i = len(state["notes"])
        ai = AIMessage("looking", id=f"a{i}", tool_calls=[call(f"c{i}")])
        return {
            "messages": [ai, ToolMessage("found", tool_call_id=f"c{i}", id=f"t{i}")],
            "notes": ["round"],
        }

    def more(self, state: State) -> Any:
        return "work" if len(state["notes"]) < self.rounds else ["writer", "asker"]


@pytest.mark.parametrize("name", ["a0", "t0", "a3", "t9", "a12"])
@SOME
def test_records_of_earlier_crossings(inner: Saver, door: Door, name: str) -> None:
    def write(messages: Messages) -> Any:
        return [*(m.model_copy(update={"content": "edited"}) for m in messages if m.id == name)]

    rounds = Rounds(wrap(inner), 15, write)
    door.invoke(rounds.graph, question(0), {**config("t"), "recursion_limit": 100})
    later = Rounds(wrap(inner), 15, write)
    result = door.invoke(later.graph, Command(resume="yes"), config("t"))
    kept = ids(result["messages"])
    assert name not in kept
    assert problems(result["messages"]) == ()
    assert kept[0] == "h0"
    assert kept[-2:] == ["t14", "asked"]


def test_metadata_is_bounded() -> None:
    """P19: each evicted name is in the metadata of one checkpoint, the others point to it."""
    inner = InMemorySaver()
    window = Window(keep=("messages", 10), trigger=("messages", 20), cap=("messages", 40))
    saver = ReducingSaver(inner, window, archive=Discard())
    rounds = Rounds(saver, 120, lambda _: [])
    rounds.graph.invoke(question(0), {**config("t"), "recursion_limit": 200})
    records = [each.metadata.get("reducing_saver", {}) for each in inner.list(config("t"))]
    hashes = [
        h for record in records for names in record.get("evicted", {}).values() for h in names
    ]
    assert len(hashes) == len({*hashes})
    assert 200 <= len(hashes) <= 3 * 120
    sizes = [len(json.dumps(record)) for record in records]
    crossings = [size for record, size in zip(records, sizes, strict=True) if "evicted" in record]
    assert len(crossings) <= 120 * 2 // 20 + 1
    assert max(sizes) <= 40 * 1.5 * 20 + 200
    assert max(size for size in sizes if size not in crossings) <= 100


class Counting(InMemorySaver):
    """Count what is read."""

    reads = 0

    def get_tuple(self, config: Any) -> Any:
        self.reads += 1
        return super().get_tuple(config)


def test_reading_reads_once_unless_a_write_names_what_is_unknown() -> None:
    inner = Counting()
    saver = wrap(inner)
    scene = Scene(saver, "remove")
    interrupted(scene, Door(), "t")
    for thread, most in (("t", 2), ("empty", 1)):
        for reading in (saver, wrap(inner)):
            inner.reads = 0
            reading.get_tuple(config(thread))
            assert inner.reads <= most
    known = Rounds(wrap(inner), 15, lambda messages: [messages[-1]])
    known.graph.invoke(question(0), {**config("known"), "recursion_limit": 100})
    fresh = wrap(inner)
    inner.reads = 0
    fresh.get_tuple(config("known"))
    assert inner.reads == 1


def test_what_waits_for_an_answer_is_never_cleaned() -> None:
    """An answer to a call that the checkpoint holds stays, whatever else left."""
    saver = wrap(InMemorySaver())
    answer = ToolMessage("late", tool_call_id="open", id="late")

    def work(_: Any) -> Any:
        ai = AIMessage("looking", id="a1", tool_calls=[call("open"), call("other")])
        return {"messages": [ai]}

    def long(_: Any) -> Any:
        return {"messages": [AIMessage(f"{i}", id=f"x{i}") for i in range(9)]}

    builder = StateGraph(State)
    builder.add_node("long", long)
    builder.add_node("work", work)
    builder.add_node("tool", lambda _: {"messages": [answer]})
    builder.add_node("asker", lambda _: {"messages": [result(interrupt("?"))]})
    builder.add_edge(START, "long")
    builder.add_edge("long", "work")
    builder.add_edge("work", "tool")
    builder.add_edge("work", "asker")
    graph = builder.compile(checkpointer=saver)

    def result(said: str) -> ToolMessage:
        return ToolMessage(said, tool_call_id="other", id="other")

    graph.invoke(question(0), config("t"))
    for reading in (saver, wrap(saver.inner)):
        graph.checkpointer = reading
        assert "late" in ids(graph.get_state(config("t")).values["messages"])
    kept = graph.invoke(Command(resume="yes"), config("t"))["messages"]
    assert ids(kept)[-3:] == ["a1", "other", "late"] or ids(kept)[-3:] == ["a1", "late", "other"]
    assert problems(kept) == ()
