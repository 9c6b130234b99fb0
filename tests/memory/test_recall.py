"""The recall tool: it finds what its own thread archived, and nothing of anybody else."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore

from reducing_saver import ConfigurationError, Discard, ReducingSaver, Window
from reducing_saver._archive import StoreArchive
from reducing_saver._entry import Entry
from reducing_saver._recall import recall_tool
from reducing_saver._recall_words import alike, excerpt, fused, said, words
from reducing_saver._record import Record
from reducing_saver._segment import Segment, cut_spans, segment_id

CANARY = "canary7d1f"
OLD = [
    "Hello, I am Sara Doe and my user id is sara_doe_496.",
    "My flight is HAT045 on 2024-05-20, booked by sara.doe@example.com.",
    "Please charge $1,234.56 to my card.",
    "Is there anything to eat on board?",
]

Ask = Callable[..., str]


class Memory:
    """An archive and a saver, with threads whose messages have left."""

    def __init__(self, archive: StoreArchive | None = None) -> None:
        self.archive = archive or StoreArchive(InMemoryStore())
        self.saver: BaseCheckpointSaver[Any] = InMemorySaver()
        self.newest: dict[str, str] = {}
        self.states: dict[str, list[Any]] = {}
        self.heads: dict[str, Any] = {}

    def say(self, thread: str, *messages: Any) -> None:
        state = self.states.setdefault(thread, [])
        for message in messages:
            made = HumanMessage(message) if isinstance(message, str) else message
            if isinstance(made, BaseMessage) and not made.id:
                made.id = f"m{len(state)}"
            state.append(made)

    def evict(
        self, thread: str, positions: Sequence[int], *, user: tuple[str, ...] | None = None
    ) -> None:
        state, previous = self.states[thread], self.newest.get(thread)
        spans = cut_spans(state, positions, previous)
        one = Segment(
            segment_id(thread, "", "messages", previous, spans),
            previous,
            thread=thread,
            namespace="",
            channel="messages",
            checkpoint="c",
            why="window",
            memory_namespace=user or ("memories", thread),
            spans=spans,
        )
        gone = [state[position] for position in positions]
        self.archive.write(one, self.packed(one, gone), tell=False)
        self.states[thread] = [m for i, m in enumerate(state) if i not in {*positions}]
        self.newest[thread] = one.id
        self.store(thread)

    def packed(self, one: Segment, gone: Sequence[Any]) -> list[Entry]:
        text = said if self.archive.index_text else lambda _: None
        serde = self.saver.serde
        pairs = zip(one.keys, gone, strict=True)
        return [Entry.of(key, serde.dumps_typed(message), text(message)) for key, message in pairs]

    def store(self, thread: str) -> None:
        """Put a checkpoint that names the newest segment, as the saver does."""
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"]["messages"] = self.states[thread]
        checkpoint["channel_versions"]["messages"] = checkpoint["id"]
        record = Record(segments={"messages": self.newest[thread]})
        metadata = record.written({"source": "loop", "step": 1, "parents": {}})
        home: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        new = {"messages": checkpoint["id"]}
        self.heads[thread] = self.saver.put(home, checkpoint, metadata, new)


@pytest.fixture
def memory() -> Memory:
    made = Memory()
    made.say("t", *OLD, "And now?")
    made.evict("t", range(4))
    return made


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def asked(tool: BaseTool, query: str, thread: Any = "t", **more: Any) -> str:
        limit = {"limit": more.pop("limit")} if "limit" in more else {}
        configurable = {"thread_id": thread, **more} if thread is not None else more
        call, config = {"query": query, **limit}, {"configurable": configurable}
        if request.param == "sync":
            return tool.invoke(call, config)  # type: ignore[arg-type]
        return asyncio.run(tool.ainvoke(call, config))  # type: ignore[arg-type]

    return asked


def headings(answer: str) -> list[str]:
    return re.findall(r"^(message \d+ of \d+.*):$", answer, re.MULTILINE)


# ---------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sara_doe_496", 1),
        ("SARA_DOE_496", 1),
        ("Sara Doe", 1),
        ("doe", 1),
        ("what is my user id?", 1),
        ("HAT045", 2),
        ("hat045", 2),
        ("2024-05-20", 2),
        ("20240520", 2),
        ("sara.doe@example.com", 2),
        ("example.com", 2),
        ("$1,234.56", 3),
        ("1234.56", 3),
        ("eat", 4),
    ],
)
def test_what_is_exact_is_found_first(ask: Ask, memory: Memory, query: str, found: int) -> None:
    answer = ask(recall_tool(memory.archive, memory.saver), query)
    assert headings(answer)[0] == f"message {found} of 5, human"
    assert f"message {found} of 5, human:\n{OLD[found - 1]}" in answer


@pytest.mark.parametrize("query", ["HAT046", "HAT04", "06-21x", "zzz", "saradoe"])
def test_what_is_not_there_is_not_made_up(ask: Ask, memory: Memory, query: str) -> None:
    answer = ask(recall_tool(memory.archive, memory.saver), query)
    assert answer == "None of 4 archived messages matches."


def test_what_is_still_shown_is_not_searched(ask: Ask, memory: Memory) -> None:
    assert ask(recall_tool(memory.archive, memory.saver), "now") == (
        "None of 4 archived messages matches."
    )


def test_the_place_counts_every_message_that_was(ask: Ask) -> None:
    memory = Memory()
    memory.say("t", SystemMessage("rules"), *OLD, "And now?", "And then?")
    memory.evict("t", [1, 2])
    memory.evict("t", [1, 2])
    answer = ask(recall_tool(memory.archive, memory.saver), "board")
    assert answer.startswith("1 of 4 archived messages, the best match first.\n\n")
    assert headings(answer) == ["message 5 of 7, human"]


def test_who_speaks_is_said(ask: Ask) -> None:
    memory = Memory()
    calls = [{"name": "find_flight", "args": {"number": "HAT045"}, "id": "c"}]
    memory.say(
        "t",
        "Where is HAT045?",
        AIMessage("", tool_calls=calls),
        ToolMessage('{"flight": "HAT045", "gate": "B7"}', name="find_flight", tool_call_id="c"),
        AIMessage("HAT045 is at gate B7."),
        "Thanks",
    )
    memory.evict("t", range(4))
    answer = ask(recall_tool(memory.archive, memory.saver), "HAT045")
    assert sorted(headings(answer)) == [
        "message 1 of 5, human",
        "message 2 of 5, ai",
        "message 3 of 5, tool find_flight",
        "message 4 of 5, ai",
    ]
    assert headings(answer)[0] == "message 1 of 5, human"
    assert 'find_flight {"number": "HAT045"}' in answer


def test_the_limit(ask: Ask) -> None:
    memory = Memory()
    memory.say("t", *(f"apple {number}" for number in range(100)))
    memory.evict("t", range(99))
    tool = recall_tool(memory.archive, memory.saver)
    assert len(headings(ask(tool, "apple"))) == 5
    assert len(headings(ask(tool, "apple", limit=7))) == 7
    assert len(headings(ask(tool, "apple", limit=0))) == 1
    assert len(headings(ask(tool, "apple", limit=-4))) == 1
    assert len(headings(ask(tool, "apple", limit=10**9))) == 50
    assert len(headings(ask(recall_tool(memory.archive, memory.saver, limit=2), "apple"))) == 2


def test_a_long_message_is_shown_around_the_match(ask: Ask) -> None:
    memory = Memory()
    text = "before " * 3_000 + "the code is HAT045 " + "after " * 3_000
    memory.say("t", text, "now")
    memory.evict("t", [0])
    answer = ask(recall_tool(memory.archive, memory.saver, max_characters=500), "code HAT045")
    assert "the code is HAT045" in answer
    assert len(answer) < 700
    left = [int(n) for n in re.findall(r"\[(\d+) characters left out\]", answer)]
    assert sum(left) + 500 == len(text)
    whole = ask(recall_tool(memory.archive, memory.saver, max_characters=10**6), "HAT045")
    assert text in whole


def test_summaries_and_what_was_recalled_are_not_found(ask: Ask) -> None:
    memory = Memory()
    recalls = [{"name": "recall", "args": {"query": "HAT045"}, "id": "c"}]
    mixed = [*recalls, {"name": "find_flight", "args": {"number": "HAT045"}, "id": "d"}]
    memory.say(
        "t",
        HumanMessage("so far: HAT045", additional_kwargs={"lc_source": "summarization"}),
        "My flight is HAT045, and I would like to know more about it",
        AIMessage("", tool_calls=recalls),
        ToolMessage("1 of 9 archived messages: HAT045", name="recall", tool_call_id="c"),
        AIMessage("", tool_calls=mixed),
        "now",
    )
    memory.evict("t", range(5))
    answer = ask(recall_tool(memory.archive, memory.saver), "HAT045")
    assert sorted(headings(answer)) == ["message 2 of 6, human", "message 5 of 6, ai"]
    other = ask(recall_tool(memory.archive, memory.saver, name="search"), "HAT045")
    assert len(headings(other)) == 4


def test_dicts_are_found(ask: Ask) -> None:
    memory = Memory()
    memory.say(
        "t",
        {"role": "user", "content": "My flight is HAT045"},
        {"role": "user", "content": [{"type": "text", "text": "seat 12A"}]},
        {"role": "assistant", "content": None, "tool_calls": [openai_call("f", '{"x": "Q9"}')]},
        {"role": "user", "content": "now"},
    )
    memory.evict("t", range(3))
    tool = recall_tool(memory.archive, memory.saver)
    assert headings(ask(tool, "HAT045")) == ["message 1 of 4, human"]
    assert headings(ask(tool, "12A")) == ["message 2 of 4, human"]
    assert headings(ask(tool, "Q9")) == ["message 3 of 4, ai"]


def openai_call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_what_is_no_longer_in_the_archive_is_passed_over(ask: Ask, memory: Memory) -> None:
    segment = memory.archive.chain("t", memory.newest["t"])[0]
    memory.archive.store.delete(("reducing_saver", "t", "messages"), segment.keys[0])
    answer = ask(recall_tool(memory.archive, memory.saver), "sara HAT045")
    assert headings(answer) == ["message 2 of 5, human"]
    memory.archive.delete_thread("t")
    assert "Nothing of this conversation is archived" in ask(
        recall_tool(memory.archive, memory.saver), "sara"
    )


# -------------------------------------------------------------------------------- whose it may be


def test_only_the_query_and_the_limit_are_the_models(memory: Memory) -> None:
    tool = recall_tool(memory.archive, memory.saver)
    for schema in (tool.args, tool.tool_call_schema.model_json_schema()["properties"]):  # type: ignore[union-attr]
        assert {*schema} == {"query", "limit"}
    assert tool.name == "recall"
    assert recall_tool(memory.archive, name="look_back").name == "look_back"
    assert "earlier part of this conversation" in tool.description


@pytest.fixture
def two_users() -> Memory:
    """Two threads with the same message ids."""
    memory = Memory()
    for thread in ("mine", "other"):
        memory.say(thread, f"My code is {CANARY} of {thread}", "And now?")
        memory.evict(thread, [0])
    return memory


def test_another_thread_is_never_read(ask: Ask, two_users: Memory) -> None:
    tool = recall_tool(two_users.archive, two_users.saver)
    for query in (CANARY, f"{CANARY} other", "thread other", 'thread_id="other" canary'):
        answer = ask(tool, query, "mine")
        assert "of mine" in answer or CANARY not in answer
        assert "of other" not in answer
    assert f"{CANARY} of other" in ask(tool, CANARY, "other")


INTRUDERS: list[dict[str, Any]] = [
    {"thread_id": "other"},
    {"thread": "other"},
    {"config": {"configurable": {"thread_id": "other"}}},
    {"configurable": {"thread_id": "other"}},
    {"memory_namespace": ["memories", "other"]},
    {"saver": None, "archive": None, "self": None},
    {"run_manager": None, "callbacks": None},
]


@pytest.mark.parametrize("more", INTRUDERS)
def test_whatever_else_the_model_passes_is_dropped(two_users: Memory, more: dict[str, Any]) -> None:
    tool = recall_tool(two_users.archive, two_users.saver)
    call = {"query": CANARY, **more}
    config: Any = {"configurable": {"thread_id": "mine"}}
    answers = [tool.invoke(call, config), asyncio.run(tool.ainvoke(call, config))]
    answers += [tool_node_answer(tool, call, config)]
    for answer in answers:
        assert f"{CANARY} of mine" in answer
        assert "of other" not in answer


def tool_node_answer(tool: BaseTool, call: dict[str, Any], config: Any) -> str:
    """Call the tool as a model does."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([tool]))
    builder.add_edge(START, "tools")
    calls = [{"name": tool.name, "args": call, "id": "c"}]
    out = builder.compile().invoke({"messages": [AIMessage("", tool_calls=calls)]}, config)
    return str(out["messages"][-1].content)


def test_another_users_memory_in_the_same_thread_is_never_read(ask: Ask) -> None:
    memory = Memory()
    alice, bob = ("users", "alice"), ("users", "bob")
    memory.say("t", f"{CANARY} of alice", f"{CANARY} of bob", f"{CANARY} of nobody", "now")
    memory.evict("t", [0], user=alice)
    memory.evict("t", [0], user=bob)
    memory.evict("t", [0])
    tool = recall_tool(memory.archive, memory.saver)

    def seen(**config: Any) -> list[str]:
        return re.findall(f"{CANARY} of (\\w+)", ask(tool, f"{CANARY} alice bob nobody", **config))

    assert seen(memory_namespace=alice) == ["alice"]
    assert seen(memory_namespace=["users", "bob"]) == ["bob"]
    assert seen() == ["nobody"]
    assert seen(memory_namespace=("users",)) == []
    assert seen(memory_namespace="users") == []
    assert seen(memory_namespace=("users", "alice", "more")) == []
    other_key = recall_tool(memory.archive, memory.saver, namespace_key="user")
    assert "of alice" in ask(other_key, CANARY, user=alice, memory_namespace=bob)


def test_a_namespace_of_one_word(ask: Ask) -> None:
    memory = Memory()
    memory.say("t", f"{CANARY} here", "now")
    memory.evict("t", [0], user=("alice",))
    assert f"{CANARY} here" in ask(
        recall_tool(memory.archive, memory.saver), CANARY, memory_namespace="alice"
    )


@pytest.mark.parametrize("thread", [None, ""])
def test_without_a_thread_nothing_is_read(ask: Ask, memory: Memory, thread: Any) -> None:
    memory.archive.store = None  # type: ignore[assignment]
    tool = recall_tool(memory.archive, memory.saver)
    assert ask(tool, "sara", thread) == "This run has no thread, so nothing was searched."
    assert "no thread" in tool.invoke({"query": "sara"})


def test_without_a_checkpointer_nothing_is_read(ask: Ask, memory: Memory) -> None:
    memory.archive.store = None  # type: ignore[assignment]
    tool = recall_tool(memory.archive)
    assert ask(tool, "sara") == "This run has no checkpointer, so nothing was searched."


@pytest.mark.parametrize("query", ["", "  ", "?!"])
def test_without_a_word_nothing_is_read(ask: Ask, memory: Memory, query: str) -> None:
    memory.archive.store = None  # type: ignore[assignment]
    tool = recall_tool(memory.archive, memory.saver)
    assert ask(tool, query) == "The query has no words in it, so nothing was searched."


def test_a_thread_that_nobody_knows(ask: Ask, memory: Memory) -> None:
    tool = recall_tool(memory.archive, memory.saver)
    assert ask(tool, "sara", "unknown") == (
        "Nothing of this conversation is archived; all of it is still shown."
    )


def test_a_thread_id_that_is_no_string(ask: Ask) -> None:
    memory = Memory()
    memory.say("7", "My flight is HAT045", "now")
    memory.evict("7", [0])
    assert "HAT045" in ask(recall_tool(memory.archive, memory.saver), "flight", 7)


def test_a_fork_recalls_its_own_past(ask: Ask) -> None:
    memory = Memory()
    memory.say("t", "Both heard apple one", "Left alone heard apple two", "now")
    memory.evict("t", [0])
    before, newest, state = memory.heads["t"], memory.newest["t"], memory.states["t"]
    memory.evict("t", [0])
    left = memory.heads["t"]
    memory.newest["t"], memory.states["t"] = newest, state[1:]
    memory.say("t", "Right alone heard apple three", "and now")
    memory.evict("t", [0, 1])
    tool = recall_tool(memory.archive, memory.saver)

    def heard(at: Any = None) -> set[str]:
        chosen = {"checkpoint_id": at["configurable"]["checkpoint_id"]} if at else {}
        return {*re.findall(r"apple (\w+)", ask(tool, "apple", **chosen))}

    assert heard(before) == {"one"}
    assert heard(left) == {"one", "two"}
    assert heard() == {"one", "three"}


# ------------------------------------------------------------------------------------- in an agent


class Scripted(BaseChatModel):
    """A model that calls the tool when it is told to recall something."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        answer = AIMessage("Noted.")
        text = str(messages[-1].content)
        if isinstance(messages[-1], HumanMessage) and text.startswith("recall "):
            call = {"name": "recall", "args": {"query": text[7:], "thread_id": "other"}, "id": "c"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Xor(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


def chat(graph: Any, door: str, says: str, config: Any, **kwargs: Any) -> str:
    """Say something and return what the tool found, or what the model said."""
    given = {"messages": [HumanMessage(says)]}
    if door == "sync":
        out = graph.invoke(given, config, **kwargs)
    else:
        out = asyncio.run(graph.ainvoke(given, config, **kwargs))
    found = [m for m in out["messages"] if isinstance(m, ToolMessage)]
    return str((found or out["messages"])[-1].content)


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", "encrypted"])
def saver(request: pytest.FixtureRequest) -> ReducingSaver:
    serde = EncryptedSerializer(Xor()) if request.param == "encrypted" else None
    inner = InMemorySaver(serde=serde)
    window = Window(keep=("turns", 2), trigger=("turns", 3))
    return ReducingSaver(inner, window, archive=StoreArchive(InMemoryStore()))


def archive_of(saver: ReducingSaver) -> StoreArchive:
    found = saver._archive
    assert isinstance(found, StoreArchive)
    return found


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_an_agent_recalls_what_left_its_window(
    saver: ReducingSaver, way: str, durability: str
) -> None:
    """Of the checkpointer that the agent runs with, and so by its serializer."""
    tool = recall_tool(archive_of(saver))
    agent = create_agent(Scripted(), [tool], checkpointer=saver)
    for thread in ("mine", "other"):
        config: Any = {"configurable": {"thread_id": thread}}
        for says in (f"My code is {CANARY} of {thread}", *"abcdef"):
            chat(agent, way, says, config, durability=durability)
    config = {"configurable": {"thread_id": "mine"}}
    state = saver.inner.get_tuple(config)
    assert state is not None
    assert CANARY not in str(state.checkpoint["channel_values"]["messages"])

    answer = chat(agent, way, f"recall {CANARY} other", config, durability=durability)
    assert re.search(rf"^message 1 of 1\d, human:\nMy code is {CANARY} of mine$", answer, re.M)
    assert "of other" not in answer


def test_a_tool_in_a_subgraph_recalls_what_the_parent_archived(way: str) -> None:
    archive = StoreArchive(InMemoryStore())
    window = Window(keep=("turns", 2), trigger=("turns", 3))
    saver = ReducingSaver(InMemorySaver(), window, archive=archive)
    agent = create_agent(Scripted(), [recall_tool(archive)])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    for says in (f"My code is {CANARY}", *"abcdef"):
        chat(graph, way, says, config)
    answer = chat(graph, way, f"recall {CANARY}", config)
    assert re.search(rf"^message 1 of 1\d, human:\nMy code is {CANARY}$", answer, re.M)


def test_users_of_one_thread_recall_their_own(way: str, saver: ReducingSaver) -> None:
    agent = create_agent(Scripted(), [recall_tool(archive_of(saver))], checkpointer=saver)

    def say(user: str, *says: str) -> str:
        config: Any = {"configurable": {"thread_id": "t", "memory_namespace": ["users", user]}}
        return [chat(agent, way, text, config) for text in says][-1]

    say("alice", f"I am alice, {CANARY}", *"abcdef")
    say("bob", f"I am bob, {CANARY}", *"ghijkl")
    assert "I am alice" in say("alice", f"recall {CANARY} alice bob")
    answer = say("bob", f"recall {CANARY} alice bob")
    assert "I am alice" not in answer


# ------------------------------------------------------------------------------------ what is wrong


def test_another_serializer_is_named(ask: Ask, memory: Memory) -> None:
    stranger = InMemorySaver(serde=EncryptedSerializer(Xor()))
    memory.saver = stranger
    memory.say("t", f"My secret is {CANARY}")
    memory.evict("t", [0])
    memory.saver = InMemorySaver()
    memory.store("t")
    with pytest.raises(ConfigurationError, match="give recall_tool the saver") as raised:
        ask(recall_tool(memory.archive, memory.saver), "secret")
    assert CANARY not in str(raised.value)


def test_what_is_no_archive_and_no_saver() -> None:
    archive = StoreArchive(InMemoryStore())
    for wrong in (None, Discard(), InMemoryStore(), "archive"):
        with pytest.raises(ConfigurationError, match="archive="):
            recall_tool(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="saver="):
        recall_tool(archive, InMemoryStore())  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, "5", None, True):
        with pytest.raises(ConfigurationError, match="limit="):
            recall_tool(archive, limit=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="max_characters="):
            recall_tool(archive, max_characters=wrong)  # type: ignore[arg-type]


def test_without_bm25s_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"pip install 'reducing-saver\[recall\]'"):
        recall_tool(StoreArchive(InMemoryStore()))


def test_each_door_goes_to_its_own(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the other door")

    tool = recall_tool(memory.archive, memory.saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    with monkeypatch.context() as patch:
        for name in ("achain", "aread"):
            patch.setattr(StoreArchive, name, closed)
        patch.setattr(InMemorySaver, "aget_tuple", closed)
        assert "HAT045" in tool.invoke({"query": "HAT045"}, config)
    with monkeypatch.context() as patch:
        for name in ("chain", "read"):
            patch.setattr(StoreArchive, name, closed)
        # The async methods of the saver in memory are its sync ones.
        assert "HAT045" in asyncio.run(tool.ainvoke({"query": "HAT045"}, config))


# ------------------------------------------------------------------------------- words and meanings


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("sara_doe_496", {"sara_doe_496", "sara", "doe", "496"}),
        ("HAT045", {"hat045"}),
        ("on 2024-05-20.", {"on", "2024-05-20", "20240520"}),
        ("Sara.Doe+x@Example.com!", {"sara.doe+x@example.com", "sara", "doe", "example", "com"}),
        ("Sara's", {"sara's", "sara"}),
        ("$1,234.56", {"1,234.56", "123456"}),
        ("ABC-123", {"abc-123", "abc123"}),
        ("+1 555-123-4567", {"555-123-4567", "5551234567"}),
        ("José Müller, STRASSE Straße", {"jose", "muller", "strasse"}),
        ("ＨＡＴ０４５", {"hat045"}),
        ("Москва Ёлка", {"москва", "елка"}),
        ("東京へ行く", {"東", "東京", "行く"}),
        ("予約ABC123です", {"予約", "abc123", "です"}),
        ("สวัสดี", {"สว"}),
        ("한국어 문장", {"한국어", "문장"}),
        ("हिन्दी", {"हिन्द"}),
        ('{"gate":"B7","id":"Q9"}', {"gate", "b7", "id", "q9"}),
        ("https://x.org/a?b=c1", {"https", "x.org/a?b=c1", "c1"}),
    ],
)
def test_words(text: str, some: set[str]) -> None:
    assert some <= {*words(text)}


@pytest.mark.parametrize("text", ["", " \n\t", "?!…", "—", "___", "🙂"])
def test_no_words(text: str) -> None:
    assert words(text) == []


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (HumanMessage("hello"), "hello"),
        (HumanMessage([{"type": "text", "text": "a"}, "b"]), "a\nb"),
        (HumanMessage([{"type": "image_url", "image_url": {"url": "data:AAAA"}}]), "[image_url]"),
        (
            AIMessage([{"type": "thinking", "thinking": "hm", "signature": "AAAA"}, "so"]),
            "so",
        ),
        (
            AIMessage(
                [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}],
                tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}],
            ),
            'f {"x": 1}',
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]},
            "f {}",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "content": [{"type": "text", "text": "ok"}]}],
            },
            "ok",
        ),
        ({"role": "model", "parts": [{"text": "gemini"}]}, "gemini"),
        ({"role": "assistant", "tool_calls": [openai_call("f", '{"x": 1}')]}, 'f {"x": 1}'),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, "f {}"),
        ({"type": "function_call_output", "call_id": "c", "output": "done"}, "done"),
        (AIMessage(""), ""),
        (HumanMessage([{"type": "data", "value": 1}]), '{"type": "data", "value": 1}'),
        (None, ""),
    ],
)
def test_said(message: Any, text: str) -> None:
    assert said(message) == text


def test_ranking() -> None:
    texts = ["a b c", "a a", "d", ""]
    corpus = [words(text) for text in texts]
    even = [1.0] * 4
    assert alike(["d"], corpus, even) == [2]
    assert alike(["a"], corpus, even) == [1, 0]
    assert alike(["a"], corpus, [9.0, 1.0, 1.0, 1.0]) == [0, 1]
    assert alike(["z"], corpus, even) == []
    assert alike([], corpus, even) == []
    assert alike(["a"], [], []) == []
    assert alike(["a"], [[]], [1.0]) == []
    assert fused([1, 2], [2, 3]) == [2, 1, 3]


def test_an_excerpt() -> None:
    assert excerpt("abc", ["x"], 3) == "abc"
    assert excerpt("a" * 10, ["x"], 4) == "aaaa\n[6 characters left out]"
    assert excerpt("a" * 10 + "x", ["x"], 4) == "[7 characters left out]\naaax"


MEANS = {"car": 0, "automobile": 0, "vehicle": 0, "dog": 1, "puppy": 1, "tea": 2}


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Give each text a vector by what its words mean."""
    vectors = []
    for text in texts:
        vector = [0.01, 0.01, 0.01]
        for word in words(text):
            if word in MEANS:
                vector[MEANS[word]] += 1.0
        vectors.append(vector)
    return vectors


def test_what_is_meant_is_found_where_the_store_has_an_index(ask: Ask) -> None:
    store = InMemoryStore(index={"dims": 3, "embed": embed, "fields": ["text"]})
    memory = Memory(StoreArchive(store, index_text=True))
    talk = ["My automobile is red", "I have a puppy", "Her code is HAT045", "I like tea", "now"]
    for thread in ("t", "other"):
        memory.say(thread, *(f"{text} ({thread})" for text in talk))
        memory.evict(thread, range(4))
    tool = recall_tool(memory.archive, memory.saver, limit=1)
    assert "My automobile is red (t)" in ask(tool, "car")
    assert "Her code is HAT045 (t)" in ask(tool, "HAT045")
    everything = ask(recall_tool(memory.archive, memory.saver), "vehicle", limit=50)
    assert "(other)" not in everything


def test_an_index_without_plain_text_is_not_asked(ask: Ask) -> None:
    store = InMemoryStore(index={"dims": 3, "embed": embed, "fields": ["text"]})
    memory = Memory(StoreArchive(store))
    memory.say("t", "My automobile is red", "now")
    memory.evict("t", [0])
    tool = recall_tool(memory.archive, memory.saver)
    assert ask(tool, "car") == "None of 1 archived messages matches."


# ------------------------------------------------------------------------------- real conversations

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
FACTS = {
    "id": re.compile(
        r"\b\w+_\d+\b|\b(?=[A-Z]*\d)[A-Z0-9]{5,}\b|\b[A-Z]{3}\d{3}\b|\S+@\S+\.\w+|\b\d{4,}\b"
    ),
    "date": re.compile(
        rf"\b\d{{4}}-\d\d-\d\d\b|\b(?:{MONTHS}) \d{{1,2}}(?:st|nd|rd|th)?\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{MONTHS})\b"
    ),
    # Capitalised words that begin no sentence.
    "name": re.compile(r"(?<![.!?] )(?<!^)(?<!\n)\b[A-Z][a-z]+(?: [A-Z][a-z]+)*\b"),
}


def facts(text: str) -> Iterator[str]:
    """Give the ids, names and dates in a text."""
    for pattern in FACTS.values():
        yield from (fact for fact in {*pattern.findall(text)} if fact not in MONTHS.split("|"))


def test_early_facts_of_real_conversations_are_found(
    real_conversations: list[dict[str, Any]],
) -> None:
    memory = Memory()
    tool = recall_tool(memory.archive, memory.saver)
    asked, missed = 0, []
    for one in real_conversations:
        messages = convert_to_messages(one["messages"])
        people = [i for i, m in enumerate(messages) if isinstance(m, HumanMessage)]
        if len(people) < 4:
            continue
        memory.say(one["id"], *messages)
        memory.evict(one["id"], range(1, people[-2]))
        for place in people[:2]:
            text = str(messages[place].content)
            for fact in facts(text):
                asked += 1
                config: Any = {"configurable": {"thread_id": one["id"]}}
                answer = tool.invoke({"query": fact}, config)
                heading = f"message {place + 1} of {len(messages)}, human:\n{text}"
                if heading not in answer:
                    missed.append((one["id"], fact))
    assert asked > 150
    assert missed == []
