"""`max_bytes`: what a store takes of one checkpoint, against a saver that refuses more.

Cases C01 (what is stored), C07 and C22. The long form, 2,000 random threads:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/contents/test_budget.py -k random
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from engine.strategies import media_blocks
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import create_react_agent
from langgraph.store.memory import InMemoryStore
from savers.scenarios import Line, Scripted, ask
from services.door import AsyncDoor, Door
from typing_extensions import TypedDict

from reducing_saver import (
    CheckpointTooLargeError,
    ConfigurationError,
    Discard,
    Excerpt,
    ReducingSaver,
    StoreArchive,
    Window,
)
from reducing_saver.engine import problems
from reducing_saver.engine.excerpt import is_cut, whole_key

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
DYNAMODB, COSMOS = 400_000, 1_500_000
COUNT = 300 if CAMPAIGN else 30
WIDE = Window(("messages", 5_000), ("messages", 10_000))


class Refusing(InMemorySaver):
    """A saver that refuses checkpoints and writes larger than an item, and notes the sizes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.sizes: list[int] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        size = sum(len(self.serde.dumps_typed(one)[1]) for one in (checkpoint, metadata))
        if size > self.limit:
            raise OSError("Item size has exceeded the maximum allowed size")
        self.sizes.append(size)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(self, *args: Any) -> Any:
        return self.put(*args)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if any(len(self.serde.dumps_typed(value)[1]) > self.limit for _, value in writes):
            raise OSError("Item size has exceeded the maximum allowed size")
        super().put_writes(config, writes, task_id, task_path)


@pytest.fixture(params=[Door, AsyncDoor], ids=["sync", "async"])
def by(request: pytest.FixtureRequest) -> Any:
    door = request.param()
    yield door
    door.close()


def pairs(count: int, size: int) -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for i in range(count):
        found += [HumanMessage(f"q{i}", id=f"h{i}"), AIMessage("x" * size, id=f"a{i}")]
    return found


def rounds(count: int, text: str, label: str = "") -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for i in range(count):
        key = f"c{label}{i}"
        call = {"name": "read", "args": {"of": key}, "id": key}
        found.append(AIMessage("", tool_calls=[call], id=f"a{key}"))
        found.append(ToolMessage(f"{key} {text}", tool_call_id=key, name="read", id=f"t{key}"))
    return found


def budgeted(limit: int, **options: Any) -> tuple[ReducingSaver, Refusing, StoreArchive]:
    inner, archive = Refusing(limit), StoreArchive(InMemoryStore())
    given = {"archive": archive, "strict": True, "max_bytes": limit, **options}
    return ReducingSaver(inner, given.pop("window", WIDE), **given), inner, archive


@pytest.mark.parametrize("rests", [True, False])
def test_c07_a_list_of_600_pairs_fits(by: Any, rests: bool) -> None:
    saver, inner, _ = budgeted(DYNAMODB)
    line = Line(saver, by)
    messages = pairs(600, 1_000)
    stored = line.put(messages, rests=rests).checkpoint["channel_values"]["messages"]
    assert inner.sizes[-1] <= DYNAMODB
    assert inner.sizes[-1] > DYNAMODB // 4
    assert stored == messages[-len(stored) :]
    assert problems(stored) == ()
    told = by.collect(saver, "transcript", line.config)
    assert [m.id for m in told] == [m.id for m in messages]
    more = line.put([*messages, HumanMessage("more", id="more")], rests=rests)
    assert more.checkpoint["channel_values"]["messages"][-1].id == "more"


def test_contents_are_cut_before_anything_leaves(by: Any) -> None:
    saver, inner, _ = budgeted(DYNAMODB)
    messages = [HumanMessage("q", id="h"), *rounds(40, "word " * 8_000)]
    line = Line(saver, by)
    stored = line.put(messages, rests=True).checkpoint["channel_values"]["messages"]
    assert [m.id for m in stored] == [m.id for m in messages]
    assert all(is_cut(m) for m in stored if m.type == "tool")
    assert inner.sizes[-1] <= DYNAMODB
    assert by.collect(saver, "transcript", line.config) == messages


def test_tools_that_are_never_cut_leave_instead(by: Any) -> None:
    saver, inner, _ = budgeted(DYNAMODB, excerpt=Excerpt(never=("read",)))
    older = [HumanMessage("q", id="h"), *rounds(20, "word " * 8_000), AIMessage("so", id="so")]
    messages = [*older, HumanMessage("q2", id="h2"), *rounds(1, "word " * 8_000, "z")]
    line = Line(saver, by)
    stored = line.put(messages, rests=True).checkpoint["channel_values"]["messages"]
    assert stored[-1] == messages[-1]
    assert len(stored) < len(messages)
    assert inner.sizes[-1] <= DYNAMODB
    assert by.collect(saver, "transcript", line.config) == messages


def test_what_cannot_fit_is_named(by: Any) -> None:
    saver, inner, _ = budgeted(DYNAMODB)
    line = Line(saver, by, thread="big")
    with pytest.raises(CheckpointTooLargeError) as raised:
        line.put([HumanMessage("q", id="h")], rests=True, notes="secret " * 100_000)
    error = raised.value
    assert (error.thread, error.namespace, error.limit) == ("big", "", DYNAMODB)
    assert error.channels["notes"] > 700_000
    assert error.channels["messages"] < 1_000
    assert "'big'" in str(error)
    assert "notes 7" in str(error)
    assert "secret" not in str(error)
    assert inner.sizes == []


class Failing(StoreArchive):
    def write(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("full")

    async def awrite(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("full")


def test_nothing_is_lost_where_the_archive_fails(by: Any) -> None:
    saver, inner, _ = budgeted(DYNAMODB, archive=Failing(InMemoryStore()))
    with pytest.raises(CheckpointTooLargeError):
        Line(saver, by).put(pairs(600, 1_000), rests=True)
    assert inner.sizes == []


@dataclass
class Frame:
    """What a tool keeps beside its content, and nobody can weigh but the serializer."""

    data: str


@pytest.mark.parametrize(
    "artifact", [Frame("x" * 1_000_000), {"data": "x" * 1_000_000}], ids=["object", "dict"]
)
@pytest.mark.parametrize("newest", [True, False])
def test_an_artifact_leaves_where_nothing_else_fits(by: Any, artifact: Any, newest: bool) -> None:
    saver, inner, _ = budgeted(DYNAMODB)
    line, messages = Line(saver, by), [HumanMessage("q", id="h"), *rounds(1, "done")]
    messages[-1].artifact = artifact  # type: ignore[attr-defined]
    messages += [] if newest else [AIMessage("so", id="a"), HumanMessage("q2", id="h2")]
    stored = line.put(messages).checkpoint["channel_values"]["messages"]
    assert [m.id for m in stored] == [m.id for m in messages]
    assert stored[2].artifact is None
    assert inner.sizes[-1] < 5_000
    whole = by.call(saver, "original", line.config, whole_key(stored[2]))
    assert whole.content == messages[2].content
    assert whole.artifact == {"data": "x" * 1_000_000}  # as LangGraph's serializer reads both back


def test_warnings_at_80_and_90_percent(by: Any, caplog: pytest.LogCaptureFixture) -> None:
    saver, _, _ = budgeted(100_000)
    said = []
    for size in (50_000, 84_000, 84_500, 93_000, 93_500):
        with caplog.at_level(logging.WARNING):
            Line(saver, by, thread=f"t{size}").put([HumanMessage("x" * size, id="h")], rests=True)
        said.append([r.message.split(" of ")[0] for r in caplog.records])
        caplog.clear()
    assert said == [
        [],
        ["checkpoints have reached 80 %"],
        [],
        ["checkpoints have reached 90 %"],
        [],
    ]


@pytest.mark.parametrize("value", [0, 9_999, "400 KB", 1e6], ids=str)
def test_bad_limits_are_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_bytes"):
        ReducingSaver(InMemorySaver(), WIDE, archive=Discard(), max_bytes=value)


@pytest.mark.parametrize("frequency", [1, 3, 100])
@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_snapshot_of_a_delta_channel_fits_in_the_middle_of_a_run(
    by: Any, frequency: int, size: int
) -> None:
    """LangGraph takes a snapshot when it counts so many writes, at rest or not."""

    class State(TypedDict):
        messages: Annotated[list[Any], "the channel is told below: the frequency is not global"]

    channel = DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)
    State.__annotations__["messages"] = Annotated[list[Any], channel]

    def look(state: Any) -> Any:
        return {"messages": rounds(1, "word " * (size // 5), f"{len(state['messages'])}.")}

    def say(state: Any) -> Any:
        return {"messages": AIMessage("so", id=f"s{len(state['messages'])}")}

    builder = StateGraph(State)
    builder.add_node("look", look)
    builder.add_node("say", say)
    builder.add_edge(START, "look")
    builder.add_edge("look", "say")
    saver, inner, _ = budgeted(DYNAMODB, messages_reducer=_messages_delta_reducer)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(6):
        by.invoke(graph, {"messages": [HumanMessage("q", id=f"h{turn}")]}, config)
    assert max(inner.sizes) <= DYNAMODB
    found = by.get_state(graph, config).values["messages"]
    assert [m.id for m in found if m.type == "human"] == [f"h{turn}" for turn in range(6)]
    assert len(found) == 4 * 6
    assert problems(found) == ()
    assert saver.stats().total.failures == 0
    for message in found:
        if is_cut(message):
            whole = by.call(saver, "original", config, whole_key(message))
            assert len(whole.content) > size
            assert whole.id == message.id


# ------------------------------------------------------------------------------ pending writes


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    "excerpt", [None, Excerpt(), Excerpt(never=("other",))], ids=["none", "plain", "never"]
)
def test_a_result_that_no_item_holds_is_written_as_an_excerpt(
    by: Any, version: Any, excerpt: Excerpt | None
) -> None:
    """A tool's result is stored as a pending write before any checkpoint has it."""

    def look(query: str) -> str:
        """Look."""
        return "row of the table\n" * 60_000

    saver, inner, _ = budgeted(DYNAMODB, excerpt=excerpt)
    graph = create_react_agent(Scripted(seen=[]), [look], checkpointer=saver, version=version)
    config: Any = {"configurable": {"thread_id": "t"}}
    values = by.invoke(graph, {"messages": [ask("one", *[1] * 3)]}, config)
    assert not any(map(is_cut, values["messages"]))
    assert max(inner.sizes) <= DYNAMODB
    assert len([m for m in by.collect(saver, "transcript", config) if m.type == "tool"]) == 3
    assert not any(map(is_cut, by.collect(saver, "transcript", config)))


def test_a_write_that_cannot_be_cut_is_left_to_the_store(
    by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    saver, inner, _ = budgeted(DYNAMODB, excerpt=Excerpt(never=("read",)))
    line = Line(saver, by)
    line.put([HumanMessage("q", id="h")])
    result = rounds(1, "secret " * 60_000)[1]
    for write in (("messages", result), ("notes", "secret " * 60_000)):
        with pytest.raises(OSError, match="Item size"):
            by.call(saver, "put_writes", line.config, [write], "task")
    (said,) = [r.message for r in caplog.records if "pending write" in r.message]
    assert "thread 't'" in said
    assert "channel messages has 420," in said
    assert "secret" not in caplog.text
    inner.limit = 10**9
    by.call(saver, "put_writes", line.config, [("messages", result)], "task")
    assert [w[2] for w in by.get_tuple(inner, line.config).pending_writes] == [result]


# --------------------------------------------------------------------------------------- C01


def test_c01_no_stored_message_is_above_the_cap() -> None:
    """C01: rounds of a 200 KB result in one run: of what is stored nothing is large."""
    inner = InMemorySaver()
    saver = ReducingSaver(
        inner,
        Window(("messages", 100), ("messages", 200), ("messages", 400)),
        archive=StoreArchive(InMemoryStore()),
        excerpt=Excerpt(1_000, spare_last=0),
        strict=True,
    )
    text = "row of the table\n" * (200_000 // 17)
    messages: list[Any] = [SystemMessage("s", id="s"), HumanMessage("q", id="h")]
    line, count = Line(saver, Door()), WIDE.sizes("tokens").of
    for i, message in enumerate(rounds(COUNT, text)):
        messages.append(message)
        if i % 40 == 1:
            stored = line.put(list(messages)).checkpoint["channel_values"]["messages"]
            assert max(map(count, stored)) <= 1_000
    stored = line.put(list(messages), rests=True).checkpoint["channel_values"]["messages"]
    assert max(map(count, stored)) <= 1_000
    assert len(stored) <= 402
    assert saver.stats().total.failures == 0
    assert saver.stats().total.excerpted == COUNT


def test_c01_copies_hold_excerpts_too() -> None:
    """C01: each tool call of a `create_react_agent` v2 is sent with the whole state."""
    big = "row of the table\n" * 4_000

    def look(query: str) -> str:
        """Look."""
        return big

    def stored(**options: Any) -> tuple[int, ReducingSaver]:
        inner = InMemorySaver()
        saver = ReducingSaver(inner, WIDE, archive=Discard(), **options)
        model = Scripted(seen=[])
        graph = create_react_agent(model, [look], checkpointer=saver, version="v2")
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({"messages": [ask("one", *[1] * 12)]}, config)
        sent = 0
        for found in inner.list(config):
            sent += len(inner.serde.dumps_typed(found.checkpoint)[1])
            sent += sum(len(inner.serde.dumps_typed(w[2])[1]) for w in found.pending_writes or ())
        return sent, saver

    bare, _ = stored()
    cut, saver = stored(excerpt=Excerpt(300, spare_last=1, writes=True))
    assert saver.stats().total.excerpted == 12
    assert cut < 0.3 * bare


# --------------------------------------------------------------------------------------- C22


@pytest.mark.parametrize("shape", media_blocks(""))
def test_c22_every_shape_of_media_costs_the_same_and_can_be_named(shape: str) -> None:
    data = base64.b64encode(random.Random(1).randbytes(300_000)).decode()
    message = HumanMessage([{"type": "text", "text": "see"}, media_blocks(data)[shape]], id="m")
    other = HumanMessage(
        [{"type": "text", "text": "see"}, media_blocks("QUJD")["image_url"]], id="m"
    )
    assert WIDE.sizes("tokens").of(message) == WIDE.sizes("tokens").of(other)
    assert WIDE.sizes("bytes").of(message) > 400_000
    saver, inner, _ = budgeted(DYNAMODB, excerpt=Excerpt(media="older"))
    line = Line(saver, Door())
    messages = [message, AIMessage("a dog", id="a"), HumanMessage("and?", id="h2")]
    stored = line.put(messages).checkpoint["channel_values"]["messages"]
    assert inner.sizes[-1] < 5_000
    assert "300,000 bytes" in json.dumps(stored[0].content)
    assert stored[1:] == messages[1:]
    assert next(saver.transcript(line.config)) == message


def test_media_of_the_current_turn_are_named_only_where_nothing_else_fits() -> None:
    data = base64.b64encode(random.Random(1).randbytes(400_000)).decode()
    message = HumanMessage([media_blocks(data)["image_url"]], id="m")
    saver, inner, _ = budgeted(DYNAMODB)
    line = Line(saver, Door())
    line.put([message], rests=False)
    assert inner.sizes[-1] < 5_000
    assert next(saver.transcript(line.config)) == message


# ------------------------------------------------------------------------- random large threads


def _said(choose: random.Random, size: int) -> Any:
    kind = choose.randrange(5)
    text = "".join(choose.choices("etaoin shrdlu\né漢😀", k=min(size, 2_000))) * (size // 2_000 + 1)
    if kind == 0:
        return json.dumps([{"id": i, "text": text[:60]} for i in range(size // 90)])
    if kind == 1:
        return json.dumps({"items": {str(i): text[:40] for i in range(size // 60)}})
    if kind == 2:
        return [{"type": "text", "text": text}, media_blocks("QUJD" * (size // 8))["image_url"]]
    return text


def _thread(choose: random.Random) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    for turn in range(choose.randint(1, 12)):
        size = int(10 ** choose.uniform(1, 5))
        messages.append(HumanMessage(_said(choose, size), id=f"h{turn}"))
        for i in range(choose.randint(0, 5)):
            key, size = f"c{turn}.{i}", int(10 ** choose.uniform(1, 6))
            call = {"name": "read", "args": {"of": key}, "id": key}
            messages.append(AIMessage("", tool_calls=[call], id=f"a{key}"))
            said = _said(choose, size)
            messages.append(ToolMessage(said, tool_call_id=key, name="read", id=f"t{key}"))
        messages.append(AIMessage("so", id=f"a{turn}"))
    return messages


@pytest.mark.campaign
@pytest.mark.parametrize("limit", [DYNAMODB, COSMOS], ids=["dynamodb", "cosmos"])
def test_no_random_thread_is_refused(limit: int) -> None:
    for seed in range(1_000 if CAMPAIGN else 6):
        choose = random.Random(f"{limit} {seed}")
        saver, inner, _ = budgeted(limit, excerpt=choose.choice([None, Excerpt(1_000)]))
        line, messages = Line(saver, Door(), thread=f"t{seed}"), _thread(choose)
        for end in sorted({choose.randint(1, len(messages)), len(messages)}):
            rests = messages[end - 1].type == "ai" and not messages[end - 1].tool_calls
            stored = line.put(messages[:end], rests=rests).checkpoint["channel_values"]["messages"]
            assert stored[-1].id == messages[end - 1].id
            for message in messages[end : end + 2]:
                saver.put_writes(line.config, [("messages", message)], f"{seed} {message.id}")
        assert max(inner.sizes) <= limit
        assert [m.id for m in saver.transcript(line.config)] == [m.id for m in messages]
        if seed % 4 == 0:
            assert list(saver.transcript(line.config)) == messages


# --------------------------------------------------------------------------------------- C12


@pytest.mark.parametrize("rests", [True, False])
def test_c12_a_huge_result_is_cut_and_its_turn_stays(by: Any, rests: bool) -> None:
    """C12: a window in tokens below the result: nothing of the current turn leaves."""
    window = Window(("tokens", 2_000), ("tokens", 4_000), ("tokens", 8_000))
    saver, _, _ = budgeted(
        COSMOS, window=window, excerpt=Excerpt(1_000, spare_last=0), max_bytes=None
    )
    messages = [SystemMessage("s", id="s"), HumanMessage("q", id="h"), *rounds(1, "word " * 60_000)]
    line = Line(saver, by)
    stored = line.put(messages, rests=rests).checkpoint["channel_values"]["messages"]
    assert [m.id for m in stored] == ["s", "h", "ac0", "tc0"]
    assert stored[:3] == messages[:3]
    assert is_cut(stored[3])
    assert window.sizes("tokens").of(stored[3]) <= 1_000
    assert by.collect(saver, "transcript", line.config) == messages
