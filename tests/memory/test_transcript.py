"""Transcripts: every message ever, in order, once, without summaries, in pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from reducing_saver import ConfigurationError, ReducingSaver, Window
from reducing_saver._archive import StoreArchive
from reducing_saver._entry import Entry
from reducing_saver._record import Record
from reducing_saver._segment import Segment, cut_spans, segment_id
from reducing_saver._transcript import Page, atranscript, pages, transcript

SERDE = JsonPlusSerializer()
LC_SUMMARY = {"lc_source": "summarization"}


class CountingArchive(StoreArchive):
    """An archive that notes how many entries are asked for at once, and through which door."""

    def __init__(self) -> None:
        super().__init__(InMemoryStore())
        self.reads: list[tuple[str, int]] = []

    def read(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        self.reads.append(("sync", len(keys)))
        return super().read(thread, keys)

    async def aread(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        self.reads.append(("async", len(keys)))
        return await super().aread(thread, keys)


class Line:
    """A list whose messages leave into an archive."""

    def __init__(self, thread: str = "t", archive: StoreArchive | None = None) -> None:
        self.thread = thread
        self.archive = archive or CountingArchive()
        self.newest: str | None = None
        self.state: list[Any] = []
        self.made: list[Any] = []

    def append(self, *messages: Any) -> None:
        self.state += messages
        self.made += messages

    def say(self, count: int) -> None:
        start = len(self.made)
        self.append(*(HumanMessage(f"say {n}", id=f"m{n}") for n in range(start, start + count)))

    def evict(self, *positions: int) -> Segment:
        spans = cut_spans(self.state, positions, self.newest)
        one = Segment(
            segment_id(self.thread, "", "messages", self.newest, spans),
            self.newest,
            thread=self.thread,
            namespace="",
            channel="messages",
            checkpoint="c",
            why="window",
            memory_namespace=("memories", self.thread),
            spans=spans,
        )
        gone = [self.state[position] for position in positions]
        written = [Entry.of(k, SERDE.dumps_typed(m)) for k, m in zip(one.keys, gone, strict=True)]
        self.archive.write(one, written, tell=False)
        self.state = [m for i, m in enumerate(self.state) if i not in positions]
        self.newest = one.id
        return one

    def told(self, **options: Any) -> list[Any]:
        return [*transcript(self.archive, SERDE, self.thread, self.newest, self.state, **options)]

    async def atold(self, **options: Any) -> list[Any]:
        found = atranscript(self.archive, SERDE, self.thread, self.newest, self.state, **options)
        return [message async for message in found]


def test_archive_and_state_are_merged() -> None:
    line = Line()
    line.say(10)
    line.evict(0, 1, 3)
    line.evict(0, 1)
    line.say(3)
    assert line.told() == line.made
    assert asyncio.run(line.atold()) == line.made


STEPS = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 12), max_size=8, unique=True)), max_size=8
)


@given(steps=STEPS, page_size=st.integers(1, 9))
def test_whatever_left_is_there_once_in_order(
    steps: list[tuple[int, list[int]]], page_size: int
) -> None:
    line = Line()
    for grown, left in steps:
        line.say(grown)
        if positions := [i for i in sorted(left) if i < len(line.state) - 1]:
            line.evict(*positions)
    assert line.told(page_size=page_size) == line.made
    assert asyncio.run(line.atold(page_size=page_size)) == line.made


def test_without_anything_archived() -> None:
    line = Line()
    assert line.told() == []
    line.say(3)
    assert line.told() == line.made
    assert line.archive.reads == []  # type: ignore[attr-defined]


def test_messages_of_any_shape() -> None:
    line = Line()
    line.append(
        HumanMessage("hello", id="1"),
        AIMessage("", id="2", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}]),
        ToolMessage("done", tool_call_id="c", id="3", artifact={"k": b"\x00"}),
        {"role": "user", "content": "plain"},
        HumanMessage([{"type": "text", "text": "blocks"}]),
        HumanMessage("last"),
    )
    line.evict(0, 1, 2, 3, 4)
    assert line.told() == line.made


def test_summaries_are_left_out_wherever_they_are() -> None:
    line = Line()
    line.say(2)
    old = HumanMessage("so far", id="s1", additional_kwargs=LC_SUMMARY)
    line.state.insert(0, old)
    line.evict(0, 1)
    new = HumanMessage("so far", id="s2", additional_kwargs={"reducing_saver": {"covered": 2}})
    line.state.insert(0, new)
    line.say(2)
    assert line.told() == line.made
    assert asyncio.run(line.atold()) == line.made


def test_an_edited_message_is_told_as_it_is_now() -> None:
    line = Line()
    line.say(4)
    line.evict(0, 1)
    line.state[0] = HumanMessage("edited", id="m2")
    line.evict(0)
    assert [m.content for m in line.told()] == ["say 0", "say 1", "edited", "say 3"]


# ----------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize(("size", "reads"), [(1, 6), (4, 2), (5, 2), (6, 1), (100, 1)])
def test_entries_are_read_in_pages(size: int, reads: int) -> None:
    line = Line()
    line.say(9)
    line.evict(*range(6))
    assert line.told(page_size=size) == line.made
    counted = line.archive.reads  # type: ignore[attr-defined]
    assert len(counted) == reads
    assert all(door == "sync" and asked <= size for door, asked in counted)
    counted.clear()
    assert asyncio.run(line.atold(page_size=size)) == line.made
    assert len(counted) == reads
    assert all(door == "async" and asked <= size for door, asked in counted)


def test_a_page_is_read_when_it_is_needed() -> None:
    line = Line()
    line.say(30)
    line.evict(*range(25))
    told = transcript(line.archive, SERDE, "t", line.newest, line.state, page_size=5)
    assert line.archive.reads == []  # type: ignore[attr-defined]
    assert [next(told) for _ in range(6)] == line.made[:6]
    assert line.archive.reads == [("sync", 5), ("sync", 5)]  # type: ignore[attr-defined]


def test_pages_cover_everything_once() -> None:
    items = ["a", "b", 0, "c", 1, 2, 3]
    assert [page.items for page in pages(items, 3)] == [("a", "b", 0), ("c", 1, 2), (3,)]
    assert Page(("a", 0, "b")).keys == ("a", "b")
    assert [*pages([], 3)] == []


@pytest.mark.parametrize("size", [0, -1, 1.5, "9", None, True])
def test_a_page_size_is_a_number(size: Any) -> None:
    line = Line()
    for make in (transcript, atranscript):
        with pytest.raises(ConfigurationError, match="page_size="):
            make(line.archive, SERDE, "t", None, [], page_size=size)


# ------------------------------------------------------------------------------------------ losses


def test_what_is_gone_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    line = Line("secret-thread")
    line.say(8)
    one = line.evict(*range(5))
    place = ("reducing_saver", "secret-thread", "messages")
    for key in one.keys[1:3]:
        line.archive.store.delete(place, key)
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        assert line.told(page_size=2) == [line.made[0], *line.made[3:]]
        assert asyncio.run(line.atold(page_size=2)) == [line.made[0], *line.made[3:]]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "of 5 archived messages 2 are not in the archive" in said[0]
    assert "secret" not in said[0]


def test_a_broken_chain_is_told(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.say(8)
    first = line.evict(0, 1)
    line.evict(0, 1)
    line.archive.store.delete(("reducing_saver", "t", "segments"), first.id)
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        assert line.told() == line.made[2:]
    assert "1 segments that others follow" in caplog.text
    caplog.clear()
    line.archive.delete_thread("t")
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        assert line.told() == line.made[4:]
    assert len(caplog.records) == 1


def test_a_whole_transcript_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.say(8)
    line.evict(0, 1)
    with caplog.at_level(logging.DEBUG, "reducing_saver"):
        line.told()
    assert not caplog.records


def test_other_threads_are_not_told() -> None:
    archive = CountingArchive()
    mine, other = Line("mine", archive), Line("other", archive)
    for line in (mine, other):
        line.append(*(HumanMessage(f"{line.thread} {n}", id=f"m{n}") for n in range(4)))
        line.evict(0, 1)
    assert mine.told() == mine.made
    assert other.told() == other.made
    assert [*transcript(archive, SERDE, "mine", other.newest, [])] == []


# ------------------------------------------------------------------------- of a thread that was run


def echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"you said {state['messages'][-1].content}")]}


@pytest.mark.parametrize("door", ["sync", "async"])
def test_a_chat_of_twelve_turns(door: str) -> None:
    """C42."""
    archive = StoreArchive(InMemoryStore())
    saver = ReducingSaver(
        InMemorySaver(), Window(keep=("turns", 3), trigger=("turns", 5)), archive=archive
    )
    builder = StateGraph(MessagesState)
    builder.add_node("echo", echo)
    builder.add_edge(START, "echo")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "chat"}}
    for turn in range(12):
        given_ = {"messages": [HumanMessage(f"hello {turn}")]}
        if door == "sync":
            graph.invoke(given_, config)
        else:
            asyncio.run(graph.ainvoke(given_, config))

    stored = saver.inner.get_tuple(config)
    assert stored is not None
    newest = Record.read(stored.metadata).segments["messages"]
    state = stored.checkpoint["channel_values"]["messages"]
    assert len(state) < 12
    told = [*transcript(archive, saver.serde, "chat", newest, state, page_size=5)]
    wanted = [text for n in range(12) for text in (f"hello {n}", f"you said hello {n}")]
    assert [message.content for message in told] == wanted  # type: ignore[attr-defined]
