"""Cases from public reports, on real savers: the kinds C06, C16, C19, C20, C23 and C52 to C56.

The long forms on every saver: REDUCING_TEST_CAMPAIGN=1 pytest tests/savers/test_saver_cases.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from pydantic import BaseModel
from savers.scenarios import (
    Line,
    Stage,
    ask,
    brief,
    checkpoints,
    read,
    reply,
    say,
    talking,
    tool_graph,
    turns,
)
from services.door import Door, within
from services.savers import BACKENDS

from reducing_saver import Discard, ReducingSaver, Window, reduce_messages
from reducing_saver.engine import problems

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
SOME = pytest.mark.parametrize(
    "backend",
    BACKENDS if CAMPAIGN else ["memory-async", "memory_int-sync", "sqlite-sync", "postgres-sync"],
    indirect=True,
)
FEW = pytest.mark.parametrize(
    "backend", BACKENDS if CAMPAIGN else ["memory_int-async", "sqlite-sync"], indirect=True
)
WINDOW = Window(("messages", 2), ("messages", 3), ("messages", 1_000))
MARKS = Window(("messages", 10), ("messages", 20), ("messages", 40))


def kept(inner: Any, window: Window = WINDOW, **settings: Any) -> ReducingSaver:
    return ReducingSaver(inner, window, archive=Discard(), **settings)


def dialogue(*labels: str) -> list[BaseMessage]:
    return [message for label in labels for message in (ask(label), say(label))]


def stored(inner: Any, stage: Stage) -> list[Any]:
    return read(stage.door.get_tuple(inner, stage.config)) or []


# C06: `new_versions` of one other channel


class Spy(InMemorySaver):
    """Note the arguments of `put` as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[Any, ...]] = []

    def put(self, *args: Any) -> Any:
        self.puts.append(args)
        return super().put(*args)

    async def aput(self, *args: Any) -> Any:
        return self.put(*args)


def test_c06_untouched_channels_stay(inner: Any, door: Any) -> None:
    line = Line(kept(inner), door)
    messages = dialogue("t0", "t1", "t2")
    line.put(messages, count=1)
    checkpoint = line.checkpoint(messages, count=2)
    version = line.saver.get_next_version(max(line.versions.values()), None)
    checkpoint["channel_versions"] = {**line.versions, "count": version}
    metadata: Any = {"source": "loop", "step": 1, "parents": {}}
    config = door.put(line.saver, line.config, checkpoint, metadata, {"count": version})

    found = door.get_tuple(inner, config).checkpoint
    assert found["channel_values"]["count"] == 2
    assert brief(found["channel_values"]["messages"]) == brief(messages)
    assert found["channel_versions"] == checkpoint["channel_versions"]


@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_c06_what_is_not_reduced_reaches_the_inner_saver_as_it_is(rests: bool, count: int) -> None:
    inner = Spy()
    line = Line(kept(inner), Door())
    messages = dialogue(*(f"t{i}" for i in range(count)))
    checkpoint = line.checkpoint(messages, rests=rests)
    version = inner.get_next_version(None, None)
    checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], version)
    given = (line.config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"x": version})
    line.saver.put(*given)

    got = inner.puts[-1]
    if rests and count > 1:  # the list is shorter, so it has a version of its own
        assert got[3].keys() == {"x", "messages"}
        assert got[3]["x"] == version
    else:
        assert all(one is other for one, other in zip(got, given, strict=True))


# C16: one turn of 200 rounds, with thinking


def thinking(i: int) -> list[Any]:
    block = {"type": "thinking", "thinking": f"thought {i}", "signature": f"signed {i}"}
    call = {"name": "look", "args": {"query": str(i)}, "id": f"c{i}", "type": "tool_call"}
    return [
        AIMessage([block, {"type": "text", "text": f"text {i}"}], tool_calls=[call], id=f"a{i}"),
        ToolMessage(f"found {i}", tool_call_id=f"c{i}", id=f"r{i}"),
    ]


@FEW
def test_c16_one_turn_is_whole_up_to_the_cap_and_then_loses_whole_units(
    inner: Any, door: Any
) -> None:
    line = Line(kept(inner, MARKS), door)
    question = HumanMessage("do it all", id="h")
    messages: list[Any] = [question]
    offered = {"h": question}
    for i in range(200):
        messages = [*messages, *thinking(i)]
        offered |= {message.id: message for message in messages[-2:]}
        found = read(line.put(messages)) or []
        if len(messages) <= 40:
            assert brief(found) == brief(messages)
        assert len(found) <= 40
        assert found[0].id == "h"
        assert found[-1].id == f"r{i}"
        assert problems(found) == ()
        assert all(message == offered[message.id] for message in found)
    assert len(found) > 10


# C19: what is no history


NO_HISTORY: dict[str, Any] = {
    "an empty list": [],
    "a system message": [SystemMessage("be brief", id="s")],
    "two system messages": [SystemMessage("be brief", id="s"), SystemMessage("be kind", id="t")],
    "None": None,
    "a tuple": tuple(dialogue("t0", "t1", "t2")),
    "a string": "messages",
    "numbers": [*range(100)],
    "strings": ["a", "b"] * 50,
    "dicts of something else": [{"row": i} for i in range(100)],
    "a dict": {"messages": dialogue("t0", "t1", "t2")},
    "lists": [[1], [2]] * 50,
    "one message": HumanMessage("alone", id="h"),
    "None in a list": [None] * 50,
}


@SOME
@pytest.mark.parametrize("name", NO_HISTORY)
def test_c19_what_is_no_history_is_stored_as_it_is(name: str, inner: Any, door: Any) -> None:
    value = NO_HISTORY[name]
    window = Window(("messages", 1), ("messages", 1), ("messages", 2))
    bare, line = Line(inner, door, "bare"), Line(kept(inner, window, strict=True), door)
    for rests in (True, False):
        expected, found = (each.put(value, rests=rests) for each in (bare, line))
        one, other = (each.checkpoint["channel_values"]["messages"] for each in (expected, found))
        assert repr(other) == repr(one)
        assert type(other) is type(one)


@SOME
def test_c19_a_missing_channel_is_no_error(inner: Any, door: Any) -> None:
    saver = kept(inner, channels=("messages", "value.messages"), strict=True)
    line = Line(saver, door)
    for value in (None, 7, {"other": 1}, {"messages": None}, "text"):
        checkpoint = line.checkpoint([], rests=True, value=value)
        del checkpoint["channel_values"]["messages"]
        version = saver.get_next_version(max(line.versions.values(), default=None), None)
        line.versions = checkpoint["channel_versions"] = {"value": version}
        metadata: Any = {"source": "loop", "step": 0, "parents": {}}
        line.config = door.put(saver, line.config, checkpoint, metadata, line.versions)
        found = door.get_tuple(inner, line.config).checkpoint
        assert found["channel_values"].get("value") == value
    assert saver.stats().total.evicted == 0


# C20: separate runs


def wordy() -> Any:
    @tool
    def look(query: str) -> str:
        """Look something up."""
        return f"{query} " + "x" * 2_000

    return look


LIMITS = {
    "messages": MARKS,
    "turns": Window(("turns", 3), ("turns", 5), ("messages", 1_000)),
    "tokens": Window(("tokens", 2_000), ("tokens", 4_000), ("tokens", 100_000)),
}


@SOME
@pytest.mark.parametrize("name", LIMITS)
def test_c20_twenty_runs_cross_once_each_time(name: str, inner: Any, door: Any) -> None:
    saver = kept(inner, LIMITS[name])
    thought: list[Any] = []  # what is left, told by the engine alone
    crossed, expected = [], []
    for i in range(20):
        stage = Stage(saver, door)
        stage.thread = "20 runs"
        stage.compile(tool_graph(stage, stage.model(), [wordy()]))
        before = saver.stats().total.reductions
        given = stage.invoke(ask(f"t{i}", 1))["messages"]
        crossed.append(saver.stats().total.reductions - before)

        reduced = reduce_messages([*thought, *given[-4:]], LIMITS[name])
        expected.append(int(reduced.plan.changes))
        thought = reduced.messages
        assert brief(stored(inner, stage)) == brief(thought)
        assert problems(stage.seen[0]) == ()

    assert crossed == expected
    assert 2 <= sum(crossed) <= 6


# C23: each put counts what is new


class Counter:
    def __init__(self) -> None:
        self.counted: list[str | None] = []

    def __call__(self, message: Any) -> int:
        self.counted.append(getattr(message, "id", None))
        return 10


@FEW
@pytest.mark.parametrize("rests", [True, False])
def test_c23_each_put_counts_new_messages_only(rests: bool, inner: Any, door: Any) -> None:
    counter = Counter()
    window = Window(("tokens", 50_000), ("tokens", 100_000), token_counter=counter)
    saver = kept(inner, window)
    line = Line(saver, door)
    messages = dialogue(*(f"t{i}" for i in range(500)))
    line.put(messages, rests=rests)
    assert len(counter.counted) <= 1_003  # and what the window tried its counter on
    counter.counted.clear()
    for i in range(200):
        messages = [*messages, say(str(i), "new")]
        checkpoint = line.checkpoint(messages, rests=rests)
        version = saver.get_next_version(max(line.versions.values()), None)
        checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], version)
        line.versions = checkpoint["channel_versions"]
        metadata: Any = {"source": "loop", "step": i, "parents": {}}
        line.config = door.put(saver, line.config, checkpoint, metadata, line.versions)
        assert len(counter.counted) <= 1
        assert set(counter.counted) <= {f"new.{i}"}
        counter.counted.clear()
    assert saver.stats().total.evicted == 0


@FEW
def test_c23_in_a_run_of_a_graph(inner: Any, door: Any) -> None:
    counter = Counter()
    window = Window(("tokens", 50_000), ("tokens", 100_000), token_counter=counter)
    stage = Stage(kept(inner, window), door)
    names = [f"n{i}" for i in range(40)]
    nodes = [(name, lambda state, name=name: {"messages": [say(name)]}) for name in names]
    stage.compile(stage.builder().chain(*nodes))
    stage.invoke({"messages": dialogue(*(f"t{i}" for i in range(100)))})

    assert len(counter.counted) <= 200 + 40 + 3


# C52: strict msgpack


class Profile(BaseModel):
    name: str
    tags: list[str] = []


class WithProfile(TypedDict):
    messages: Annotated[list[Any], lambda old, new: [*old, *new]]
    profile: Profile


@pytest.mark.parametrize("backend", ["memory-sync", "memory-async", "sqlite-sync"], indirect=True)
def test_c52_a_model_comes_back_as_the_model(inner: Any, door: Any) -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=[("nobody", "Nothing")])
    inner.serde = strict
    saver = kept(inner)
    stage = Stage(saver, door)
    builder = stage.builder(WithProfile).chain(("reply", reply), ("end", lambda _: {}))
    stage.graph = builder.compile(
        checkpointer=saver.with_allowlist([(Profile.__module__, Profile.__name__)])
    )
    for i in range(4):
        stage.invoke({"messages": [ask(f"t{i}")], "profile": Profile(name=f"p{i}", tags=["a"])})

    state = stage.state()
    assert state.values["profile"] == Profile(name="p3", tags=["a"])
    assert brief(state.values["messages"]) == ["human:t3: ", "ai:said t3"]
    assert inner.serde is strict
    assert saver.stats().total.evicted == 6  # counted by the clone, for both


# C53: whose versions


def test_c53_versions_are_the_inner_saver_s(inner: Any, door: Any) -> None:
    saver = kept(inner)
    version, after = None, None
    for _ in range(12):
        version, after = saver.get_next_version(version, None), version
        assert type(version) is type(inner.get_next_version(after, None))
        assert after is None or version > after


@pytest.mark.parametrize("window", [WINDOW, Window(("messages", 2), ("messages", 2))], ids=str)
def test_c53_two_updates_from_one_parent(window: Window, inner: Any, door: Any) -> None:
    """Blobs of one channel and version are stored once: both forks would be lost."""
    stage = Stage(kept(inner, window), door)
    stage.compile(stage.builder().chain(("reply", reply), ("quiet", lambda _: {})))
    turns(stage, (), (), ())
    parent = stage.state().config
    forks = [
        stage.update({"messages": [ask(name), say(name)]}, parent, as_node="quiet")
        for name in ("left", "right")
    ]

    for name, fork in zip(("left", "right"), forks, strict=True):
        values = stage.state(fork).values["messages"]
        assert brief(values)[-2:] == brief(dialogue(name))
        assert brief(stage.state(parent).values["messages"]) == brief(dialogue("t2"))
    heads = [door.get_tuple(inner, fork).checkpoint["channel_versions"] for fork in forks]
    older = door.get_tuple(inner, parent).checkpoint["channel_versions"]
    for head in heads:
        assert head["messages"] > older["messages"]


def test_c53_a_value_rewritten_at_rest_has_a_new_version(inner: Any, door: Any) -> None:
    line = Line(kept(inner), door)
    messages = dialogue("t0", "t1", "t2")
    whole = line.put(messages)
    reduced = line.put(messages, rests=True, moved=False)

    assert brief(read(reduced) or ()) == brief(dialogue("t2"))
    versions = [each.checkpoint["channel_versions"]["messages"] for each in (whole, reduced)]
    assert versions[1] > versions[0]
    again = door.get_tuple(inner, whole.config)
    assert brief(read(again) or ()) == brief(messages)


# C54: the last node writes no message


def test_c54_what_the_next_turn_loads_is_reduced(inner: Any, door: Any) -> None:
    saver = kept(inner)
    stage = Stage(saver, door)
    loaded: list[list[str]] = []

    def first(state: Any) -> Any:
        loaded.append(brief(state["messages"]))
        return reply(state)

    stage.compile(
        stage.builder().chain(
            ("a", first),
            ("b", lambda state: {"messages": [say(state["messages"][-1].id, "b")]}),
            ("quiet", lambda _: {}),
        )
    )
    turns(stage, *[()] * 5)

    assert loaded == [
        ["human:t0: "],
        ["human:t0: ", "ai:said t0", "ai:b said.t0", "human:t1: "],
        *(
            [f"human:t{i - 1}: ", f"ai:said t{i - 1}", f"ai:b said.t{i - 1}", f"human:t{i}: "]
            for i in (2, 3, 4)
        ),
    ]
    assert [name for *_, name in stage.ran] == ["a", "b", "quiet"] * 5


# C55: doors


@pytest.mark.parametrize("backend", ["aiosqlite-async", "apostgres-async"], indirect=True)
@pytest.mark.parametrize("name", ["put", "put_writes", "get_tuple", "list", "delete_thread"])
def test_c55_a_sync_call_on_the_loop_of_an_async_saver(name: str, inner: Any, door: Any) -> None:
    saver = kept(inner)
    line = Line(saver, door)
    line.put(dialogue("t0"))
    checkpoint = line.checkpoint(dialogue("t0", "t1", "t2"), rests=True)
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: saver.put(line.config, checkpoint, {}, {}),
        "put_writes": lambda: saver.put_writes(line.config, [("messages", [])], "task"),
        "get_tuple": lambda: saver.get_tuple(line.config),
        "list": lambda: [*saver.list(line.config)],
        "delete_thread": lambda: saver.delete_thread("t"),
    }

    async def on_the_loop() -> None:
        with pytest.raises(asyncio.InvalidStateError, match="different thread"):
            calls[name]()

    within(20, lambda: door.run(on_the_loop()))
    assert saver.stats().total.failures == 0


@pytest.mark.parametrize("name", ["aput", "aget_tuple", "aput_writes"])
def test_c55_the_async_door_of_a_sync_saver(name: str) -> None:
    """SqliteSaver has none: it says so, as it does bare."""
    with SqliteSaver.from_conn_string(":memory:") as inner:
        saver = kept(inner)
        line = Line(saver, Door())
        checkpoint = line.checkpoint(dialogue("t0"))
        arguments: dict[str, tuple[Any, ...]] = {
            "aput": (line.config, checkpoint, {}, {}),
            "aget_tuple": (line.config,),
            "aput_writes": (line.config, [("messages", [])], "task"),
        }
        texts = []
        for each in (inner, saver):
            with pytest.raises(NotImplementedError) as raised:
                asyncio.run(getattr(each, name)(*arguments[name]))
            texts.append(str(raised.value))
        assert texts[0] == texts[1]


@pytest.mark.parametrize("backend", ["aiosqlite-async", "apostgres-async"], indirect=True)
def test_c55_the_sync_door_of_an_async_saver_from_another_thread(inner: Any, door: Any) -> None:
    stage = Stage(kept(inner), door)
    stage.compile(stage.builder().chain(("reply", reply), ("quiet", lambda _: {})))

    async def talk() -> None:
        for i in range(4):
            given = {"messages": [ask(f"t{i}")]}
            await asyncio.to_thread(stage.graph.invoke, given, stage.config)

    within(40, lambda: door.run(talk()))
    assert brief(stored(inner, stage)) == brief(dialogue("t3"))


# C56: a list that changes in place


def extending(old: list[Any] | None, new: list[Any]) -> list[Any]:
    """Reduce as no reducer should: in place."""
    if old is None:
        return [*new]
    old.extend(new)
    return old


class InPlace(TypedDict):
    messages: Annotated[list[Any], extending]


@SOME
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_c56_a_reducer_that_appends_in_place(durability: Any, inner: Any, door: Any) -> None:
    outputs = []
    for saver in (inner, kept(inner, Window(("messages", 2), ("messages", 2), ("messages", 4)))):
        stage = Stage(saver, door)
        names = [f"n{i}" for i in range(8)]
        nodes = [(name, lambda state, name=name: {"messages": [say(name)]}) for name in names]
        stage.compile(stage.builder(InPlace).chain(*nodes))
        outputs.append(brief(stage.invoke(ask("t0"), durability=durability)["messages"]))
        assert [name for *_, name in stage.ran] == names

    assert outputs[1] == outputs[0] == ["human:t0: ", *(f"ai:said n{i}" for i in range(8))]


# One long run


def rounds(stage: Stage, count: int) -> list[list[Any]]:
    stage.compile(tool_graph(stage, stage.model(), [stage.look()]))
    config = {**stage.config, "recursion_limit": 2 * count + 10}
    stage.invoke(ask("long", *[1] * count), config)
    found = checkpoints(getattr(stage.saver, "inner", stage.saver), stage.door, stage.thread)
    return [value for each in found if (value := read(each)) is not None]


def drops(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Tell where a list got shorter: how long it was, and how long it is."""
    return [(one, two) for one, two in itertools.pairwise(sizes) if two < one]


@FEW
def test_one_run_of_200_tool_rounds(inner: Any, door: Any) -> None:
    saver = kept(inner, MARKS)
    stage = Stage(saver, door)
    lists = rounds(stage, 200)
    sizes = [*map(len, lists)]

    assert max(sizes) <= 40
    crossings = drops(sizes)
    assert saver.stats().total.reductions == len(crossings)
    # 41 are offered, 19 are left, and 22 messages later there are 41 again.
    assert crossings == [(40, 19)] * 17
    for messages in lists:
        assert messages[0].id == "h.long"
        assert not [p for p in problems(messages) if p.rule != "unanswered call"]
    assert len(stage.ran) == 401
    assert [*map(len, stage.seen)] == [*range(1, 402, 2)]  # the run itself sees it all


@FEW
def test_a_chat_that_lives_in_interrupt(inner: Any, door: Any) -> None:
    """It never rests: each resumed run crosses at the trigger, for whole earlier turns."""
    saver = kept(inner, MARKS)
    stage = Stage(saver, door)
    stage.compile(talking(stage))
    stage.invoke(ask("hello"))
    count = 100 if CAMPAIGN else 60
    for i in range(count):
        stage.resume(f"r{i}")

    found = checkpoints(inner, door, stage.thread)
    sizes = [len(value) for each in found if (value := read(each)) is not None]
    assert len(sizes) == count + 1
    assert max(sizes) <= 21
    assert saver.stats().total.reductions == len(drops(sizes))
    assert all(before in (19, 20) and after <= 11 for before, after in drops(sizes))
    assert [name for *_, name in stage.ran] == ["talk"] * (2 * count + 1)
    for each in found:
        assert problems(read(each) or [HumanMessage("nothing yet")]) == ()
        assert len(repr(each.metadata)) < 2_000


@FEW
def test_many_short_turns_after_a_long_one(inner: Any, door: Any) -> None:
    stage = Stage(kept(inner, MARKS), door)
    rounds(stage, 30)
    for i in range(12):
        stage.invoke(ask(f"t{i}"))
        messages = stored(inner, stage)
        assert len(messages) <= 21
        assert problems(messages) == ()
    assert not any("long" in name for name in brief(stored(inner, stage)))
