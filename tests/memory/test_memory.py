"""Memory as a whole: the archive, its chain, transcripts, erasure, summaries, who is told of what.

As a campaign, every scene on every store, and the 1,000 turns:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/memory/test_memory.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.store.memory import InMemoryStore
from memory.houses import (
    HOUSES,
    Clock,
    House,
    Listing,
    State,
    Told,
    ask,
    covered,
    ids,
    listing,
    said,
    summaries,
    talk,
    thread_config,
)
from savers.scenarios import SCENES, Scene, Stage, brief, checkpoints, key, namespace, read

from reducing_saver import (
    Discard,
    ForwardingSaver,
    ReducingSaver,
    StoreArchive,
    Summary,
    Window,
)
from reducing_saver._lookup import MOST_OWED
from reducing_saver.engine import problems
from reducing_saver.engine.messages import is_summary

pytestmark = pytest.mark.campaign

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
MEMORY = ["memory-sync", "memory-async"]
WINDOW = Window(("messages", 4), ("messages", 6), ("messages", 12))
AT_ONCE = Window(("messages", 2), ("messages", 2), ("messages", 40))
IN_RUNS = Window(("messages", 2), ("messages", 3), ("messages", 5))


def play(house: House, saver: Any, config: Any, *labels: str, rounds: int = 0) -> Any:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label, rounds), config)
    return graph


def name_of(config: Any) -> str:
    return str(config["configurable"]["thread_id"])


# The archive comes first


class Ordered(InMemorySaver):
    """A saver that notes what happens, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.happened: list[str] = []
        self.refuses = False

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self.happened.append("put")
        if self.refuses:
            raise OSError("the disk is full")
        return super().put(*args, **kwargs)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return self.put(*args, **kwargs)


class Noting(StoreArchive):
    """An archive that notes what happens, and fails when it is told to."""

    def __init__(self, store: Any, happened: list[str]) -> None:
        super().__init__(store)
        self.happened, self.refuses = happened, False

    def write(self, *args: Any, **kwargs: Any) -> None:
        self.happened.append("archive")
        if self.refuses:
            raise OSError("secret: the archive is full")
        super().write(*args, **kwargs)

    async def awrite(self, *args: Any, **kwargs: Any) -> None:
        self.happened.append("archive")
        if self.refuses:
            raise OSError("secret: the archive is full")
        await super().awrite(*args, **kwargs)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_archive_then_put_then_hooks(house: House) -> None:
    inner = Ordered()
    archive = Noting(house.store, inner.happened)
    hook = lambda eviction: inner.happened.append("hook")  # noqa: E731
    saver = house.saver(AT_ONCE, inner=inner, archive=archive, on_evict=[hook])
    play(house, saver, thread_config(), "a")
    inner.happened.clear()
    play(house, saver, thread_config("another"), "a", "b")
    crossing = inner.happened.index("archive")
    assert inner.happened[crossing : crossing + 3] == ["archive", "put", "hook"]


def test_a_failing_archive_evicts_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    archive = Noting(house.store, [])
    saver = house.saver(archive=archive, on_evict=[told], summary=listing()[1])
    config = thread_config()
    archive.refuses = True
    play(house, saver, config, *(f"t{i}" for i in range(6)))

    values = house.state(config)
    assert [m.id for m in values["messages"]] == values["log"], "stored whole, without a summary"
    assert len(values["log"]) == 12
    assert saver.stats().archive_failures >= 2
    assert (saver.stats().total.evicted, told.events) == (0, [])
    assert "secret" not in caplog.text
    said = [one.getMessage() for one in caplog.records if "archive failed" in one.msg]
    assert len(said) == 1, "once of a cause and thread"
    assert "OSError" in said[0]
    assert "stats().archive_failures" in said[0]
    play(house, saver, thread_config("another"), *(f"t{i}" for i in range(6)))
    assert sum("archive failed" in one.msg for one in caplog.records) == 2

    archive.refuses = False
    play(house, saver, config, "later")
    values = house.state(config)
    assert len(values["messages"]) <= 5
    gone = [name for name in values["log"] if name not in ids(values["messages"])]
    assert told.ids == gone == covered(values["messages"])
    assert ids(house.transcript(saver, config)) == values["log"]
    assert saver.stats().total.evicted == len(gone)


@pytest.mark.parametrize("house", ["memory-sync", "aiosqlite-async"], indirect=True)
def test_the_cap_yields_to_a_failing_archive(house: House) -> None:
    archive = Noting(house.store, [])
    archive.refuses = True
    saver = house.saver(IN_RUNS, archive=archive)
    config = thread_config()
    play(house, saver, config, "a", "b", rounds=8)
    values = house.state(config)
    assert [m.id for m in values["messages"]] == values["log"]
    failures = saver.stats().archive_failures
    assert 0 < failures < len(values["log"]), "not tried on each put"
    archive.refuses = False
    play(house, saver, config, "c")
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]
    assert len(house.state(config)["messages"]) <= 5


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_what_a_failed_put_archived_is_in_no_transcript(house: House) -> None:
    inner = Ordered()
    saver = house.saver(AT_ONCE, inner=inner)
    config = thread_config()
    graph = play(house, saver, config, "a", "b")
    before = ids(house.transcript(saver, config))
    inner.refuses = True
    with pytest.raises(OSError, match="disk is full"):
        house.door.update_state(graph, config, ask("lost"), as_node="model")
    for each in (saver, house.saver(AT_ONCE, inner=inner)):
        assert ids(house.transcript(each, config)) == before
    inner.refuses = False
    play(house, saver, config, "c", "d")
    found = ids(house.transcript(saver, config))
    assert found == before + [
        n for n in found if n.endswith(("c", "d")) or ".c." in n or ".d." in n
    ]
    assert len(found) == 8


# The chain of segments


def test_every_checkpoint_of_a_line_names_its_newest_segment(house: House) -> None:
    config = thread_config()
    saver = house.saver(AT_ONCE)
    play(house, saver, config, "a", "b", "c", rounds=1)
    play(house, house.saver(AT_ONCE), config, "d", "e")
    archive = StoreArchive(house.store)
    previous: list[str] = []
    seen = 0
    for found in reversed(house.checkpoints(name_of(config))):
        named = found.metadata.get("reducing_saver", {}).get("segments", {}).get("messages")
        if named is None:
            assert not seen, "once there is one, every checkpoint after it names one"
            continue
        seen += 1
        chain = house.door.call(archive, "chain", name_of(config), named)
        names = [segment.id for segment in chain]
        assert names[0] == named
        assert names[-len(previous) :] == previous or not previous, "the chain only grows"
        assert chain[-1].previous is None
        previous = names
    assert seen > 5
    assert len(previous) == 4


def test_a_fork_has_its_own_true_past(house: House) -> None:
    config = thread_config()
    told = Told()
    saver = house.saver(AT_ONCE, on_evict=[told])
    graph = play(house, saver, config, "a", "b", "c", "d")
    states = house.door.get_state_history(graph, config)
    middle = next(s for s in states if not s.next and len(s.values["log"]) == 4)
    forked = house.saver(AT_ONCE, on_evict=[told])
    graph = talk().compile(checkpointer=forked)
    house.door.invoke(graph, ask("x"), middle.config)
    house.door.invoke(graph, ask("y"), config)

    fork = house.state(config)["log"]
    assert [name[2:3] for name in fork] == list("aabbxxyy")
    assert ids(house.transcript(forked, config)) == fork
    tip = next(s for s in states if not s.next)
    assert ids(house.transcript(forked, tip.config)) == tip.values["log"]
    assert ids(house.transcript(saver, middle.config)) == middle.values["log"]
    assert max(Counter(told.ids).values()) == 1, "told once, in whichever fork"


# What the graph itself removes


def test_removed_messages_are_archived(house: House) -> None:
    def tidy(state: State) -> dict[str, Any]:
        label = state["messages"][-1].id[2:]
        return said(AIMessage(f"draft {label}", id=f"d.{label}"), AIMessage("a", id=f"a.{label}"))

    def remove(state: State) -> dict[str, Any]:
        drafts = [m.id for m in state["messages"] if m.id.startswith("d.")]
        return {"messages": [RemoveMessage(name) for name in drafts]}

    builder = StateGraph(State)
    builder.add_sequence([("tidy", tidy), ("remove", remove)])
    builder.add_edge(START, "tidy")
    config = thread_config()
    told = Told()
    saver = house.saver(WINDOW, on_evict=[told])
    graph = builder.compile(checkpointer=saver)
    for i in range(5):
        house.door.invoke(graph, ask(f"{i}"), config)

    log = house.state(config)["log"]
    assert ids(house.transcript(saver, config)) == log
    why = {m.id: event.why for event in told.events for m in event.messages}
    assert all((name[0] == "d") == (reason == "removed") for name, reason in why.items())
    assert sum(reason == "removed" for reason in why.values()) == 5
    assert max(Counter(told.ids).values()) == 1
    assert saver.stats().total.removed == 5


def tidying() -> Any:
    """Build a graph that removes its draft, and then says something else."""

    def tidy(state: State) -> dict[str, Any]:
        label = state["messages"][-1].id[2:]
        return said(AIMessage(f"draft {label}", id=f"d.{label}"), AIMessage("a", id=f"a.{label}"))

    def remove(state: State) -> dict[str, Any]:
        drafts = [m.id for m in state["messages"] if m.id.startswith("d.")]
        return {"messages": [RemoveMessage(name) for name in drafts]}

    builder = StateGraph(State)
    builder.add_sequence([("tidy", tidy), ("remove", remove), ("end", lambda state: {})])
    builder.add_edge(START, "tidy")
    return builder


@pytest.mark.parametrize("another", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("fails", [1, 3])
def test_what_was_removed_while_the_archive_failed_is_archived_later(
    house: House, fails: int, another: bool
) -> None:
    told = Told()
    archive = Noting(house.store, [])
    window = Window(("messages", 40))
    saver = house.saver(window, archive=archive, on_evict=[told])
    config = thread_config()
    for i in range(fails + 2):
        archive.refuses = 0 < i <= fails
        house.door.invoke(tidying().compile(checkpointer=saver), ask(f"{i}"), config)
        if archive.refuses and another:
            saver = house.saver(window, archive=archive, on_evict=[told])
    log = house.state(config)["log"]
    assert len(log) == 3 * (fails + 2)
    assert ids(house.transcript(saver, config)) == log
    assert sorted(told.ids) == [f"d.{i}" for i in range(fails + 2)]
    last = house.checkpoints(name_of(config))[0]
    assert "owed" not in last.metadata["reducing_saver"], "nothing is owed any more"


def breaking() -> tuple[list[bool], Window]:
    """Return a window that fails as long as something is in the list beside it."""
    broken: list[bool] = []

    def pinned(message: Any) -> bool:
        if broken:
            raise ValueError("secret")
        return False

    return broken, Window(("messages", 1), ("messages", 2), ("messages", 3), pinned=pinned)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_what_was_removed_while_a_put_failed_is_archived_later(house: House) -> None:
    broken, window = breaking()
    saver = house.saver(window, strict=False)
    config = thread_config()
    graph = tidying().compile(checkpointer=saver)
    house.door.invoke(graph, ask("0"), config)
    broken.append(True)
    house.door.invoke(graph, ask("1"), config)
    assert saver.stats().total.failures
    broken.clear()
    house.door.invoke(graph, ask("2"), config)
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
@pytest.mark.parametrize("how", ["failed", "switched off", "switched off, another process"])
def test_what_is_removed_after_a_put_that_stored_all_is_archived(house: House, how: str) -> None:
    broken, window = breaking()
    if how != "failed":
        window = Window(("messages", 40))
    saver = house.saver(window, strict=False)
    config = thread_config()

    def turn(label: str, *, whole: bool) -> None:
        """Have the draft stored in one put, and removed in another."""
        nonlocal saver
        graph = tidying().compile(checkpointer=saver, interrupt_before=["remove"])
        if whole:
            broken.append(True)
            saver.enabled = how == "failed"
        house.door.invoke(graph, ask(label), config)
        broken.clear()
        saver.enabled = True
        if "another" in how:
            saver = house.saver(window)
            graph = tidying().compile(checkpointer=saver)
        house.door.invoke(graph, None, config)

    turn("0", whole=False)
    turn("1", whole=True)
    assert bool(saver.stats().total.failures) == (how == "failed")
    turn("2", whole=False)
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_puts_that_fail_owe_nothing_that_was_not_removed(house: House) -> None:
    window = Window(("messages", 1), ("messages", 2), ("messages", 3), pinned=lambda m: 1 / 0)
    saver = house.saver(window, strict=False)
    config = thread_config()
    play(house, saver, config, *"abcdef")
    assert saver.stats().total.failures > 6
    records = [one.metadata.get("reducing_saver", {}) for one in house.checkpoints(name_of(config))]
    assert not any("owed" in record for record in records)


@pytest.mark.parametrize("house", [*MEMORY, "sqlite-sync", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("another", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize(
    "window",
    [Window(("messages", 400)), Window(("messages", 4), ("messages", 6), ("messages", 400))],
    ids=["all stays", "most leaves"],
)
def test_a_put_reads_few_lists_while_an_archive_fails_for_long(
    house: House, another: bool, window: Window
) -> None:
    """A graph that removes something in every run owes a list for each; a put reads a few."""
    told, loads = Told(), [0]

    class Counting(ForwardingSaver):
        def get_tuple(self, config: Any) -> Any:
            loads[0] += 1
            return super().get_tuple(config)

        async def aget_tuple(self, config: Any) -> Any:
            loads[0] += 1
            return await super().aget_tuple(config)

    archive, inner = Noting(house.store, []), Counting(house.inner)
    config = thread_config()
    options: dict[str, Any] = {"archive": archive, "on_evict": [told], "inner": inner}
    saver = house.saver(window, **options)

    def turn(label: str) -> None:
        nonlocal saver
        house.door.invoke(tidying().compile(checkpointer=saver), ask(label), config)
        if another:
            saver = house.saver(window, **options)

    def owed() -> int:
        last = house.checkpoints(name_of(config))[0]
        return len(last.metadata["reducing_saver"].get("owed", ()))

    archive.refuses = True
    fails = 3 * MOST_OWED
    for i in range(fails):
        before = loads[0]
        turn(f"{i}")
        # A turn is five puts; each reads the lists that are owed, the next of them, and its parent.
        assert loads[0] - before <= 5 * (MOST_OWED + 4)
    assert owed() == fails
    archive.refuses = False
    turn("late")
    assert owed() == 0, "a turn's puts have caught up"
    turn("later")
    log = house.state(config)["log"]
    assert ids(house.transcript(saver, config)) == log
    left = {*log} - {*ids(house.state(config)["messages"])}
    assert Counter(told.ids) == Counter(left)
    assert (len(log) - len(left) < 8) == (window.keep.value < 8)
    if not another:
        assert saver.stats().total.removed == fails + 2


@pytest.mark.parametrize("house", MEMORY, indirect=True)
@pytest.mark.parametrize("background", [False, True], ids=["in the put", "in the background"])
def test_what_is_removed_while_a_summary_fails_is_archived(house: House, background: bool) -> None:
    def fails(messages: Any, previous: Any) -> str:
        raise RuntimeError("down")

    summary = Summary(fails, background=background)
    saver = house.saver(Window(("messages", 1), ("messages", 2)), summary=summary)
    config = thread_config()
    graph = tidying().compile(checkpointer=saver)
    for i in range(3):
        house.door.invoke(graph, ask(f"{i}"), config)
    assert saver.stats().total.evicted == 0
    assert saver.stats().total.removed == 3
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_removed_messages_are_not_archived_where_that_is_not_wanted(house: House) -> None:
    config = thread_config()
    told = Told()
    saver = house.saver(WINDOW, on_evict=[told], archive_removed=False)
    graph = play(house, saver, config, "a", "b")
    house.door.update_state(graph, config, {"messages": [RemoveMessage("h.a")]}, as_node="model")
    assert told.events == []
    assert "h.a" not in ids(house.transcript(saver, config))


class Forgetful(AgentMiddleware):  # type: ignore[type-arg]
    """Trim as people do: remove all, keep the newest."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        messages = state["messages"]
        if len(messages) < 6:
            return None
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *messages[-3:]]}


class Numbered(FakeListChatModel):
    """Answer with ids that a test can name."""

    count: Any = None

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(messages, *args, **kwargs)
        self.count.append(None)
        result.generations[0].message.id = f"a{len(self.count) - 1}"
        return result


class Shared(list[Any]):
    """Keep pydantic from copying it."""

    def __deepcopy__(self, memo: Any) -> Shared:
        return self


def numbered() -> Numbered:
    model = Numbered(responses=["an answer"])
    model.count = Shared()
    return model


def test_a_middleware_that_removes_all_loses_nothing(house: House) -> None:
    config = thread_config()
    told = Told()
    saver = house.saver(Window(("messages", 8), ("messages", 10)), on_evict=[told])
    agent = create_agent(numbered(), [], middleware=[Forgetful()], checkpointer=saver)
    for i in range(8):
        house.door.invoke(agent, {"messages": [HumanMessage(f"q{i}", id=f"h{i}")]}, config)

    everything = [name for i in range(8) for name in (f"h{i}", f"a{i}")]
    assert ids(house.transcript(saver, config)) == everything
    held = ids(house.state(config)["messages"])
    assert sorted(told.ids + held) == sorted(everything)
    assert {event.why for event in told.events} == {"removed"}


@pytest.mark.parametrize("ours", [False, True], ids=["archive", "archive and summary"])
def test_beside_langchains_summarization_middleware(house: House, ours: bool) -> None:
    """Its summary wins, what it removes is archived, the transcript has no summary."""
    config = thread_config()
    listed, summary = listing()
    middleware = SummarizationMiddleware(
        FakeListChatModel(responses=["LangChain's summary"]),
        trigger=("messages", 6),
        keep=("messages", 3),
    )
    window = Window(("messages", 20), ("messages", 30))
    saver = house.saver(window, summary=summary if ours else None)
    agent = create_agent(numbered(), [], middleware=[middleware], checkpointer=saver)
    for i in range(10):
        house.door.invoke(agent, {"messages": [HumanMessage(f"q{i}", id=f"h{i}")]}, config)

    found = house.transcript(saver, config)
    assert ids(found) == [name for i in range(10) for name in (f"h{i}", f"a{i}")]
    assert not any(map(is_summary, found))
    held = house.state(config)["messages"]
    assert len(summaries(held)) == 1
    assert "LangChain's summary" in summaries(held)[0]
    assert listed.calls == []


def test_langchains_summary_is_rolled_into_ours(house: House) -> None:
    """Where our window crosses with its summary in the list there is one summary, not two."""
    config = thread_config()
    listed, summary = listing()
    saver = house.saver(WINDOW, summary=summary)
    graph = play(house, saver, config, "a")
    theirs = HumanMessage(
        "Here is a summary: earlier", id="lc", additional_kwargs={"lc_source": "summarization"}
    )
    kept = house.state(config)["messages"]
    update = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), theirs, *kept]}
    house.door.update_state(graph, config, update, as_node="model")
    play(house, saver, config, "b", "c", "d")

    for found in house.checkpoints(name_of(config)):
        held = found.checkpoint["channel_values"].get("messages", [])
        assert sum(map(is_summary, held)) <= 1
    head = house.state(config)["messages"]
    assert len(listed.calls) >= 1
    assert head[0].id == "lc", "it keeps its id"
    assert summaries(head)[0].split()[-2:] == ["h.b", "a.b.4"] or "h.a" in summaries(head)[0]


# Subgraphs


def child_of(checkpointer: Any) -> Any:
    """Build a graph whose child makes eight messages a call."""

    def many(state: State) -> dict[str, Any]:
        label = next(m.id for m in reversed(state["messages"]) if m.type == "human")
        return said(*(AIMessage(f"{label} {i}", id=f"c.{label}.{i}") for i in range(4)))

    def more(state: State) -> dict[str, Any]:
        label = next(m.id for m in reversed(state["messages"]) if m.type == "human")
        return said(*(AIMessage(f"{label} {i}", id=f"c.{label}.{i}") for i in range(4, 8)))

    child = StateGraph(State)
    child.add_sequence([("many", many), ("more", more)])
    child.add_edge(START, "many")
    builder = StateGraph(State)
    builder.add_node("child", lambda state: None)
    builder = StateGraph(State)
    compiled = child.compile(checkpointer=checkpointer)

    class Fresh(State):
        pass

    async def acall(state: State) -> dict[str, Any]:
        given = {"messages": state["messages"][-1:], "log": [state["messages"][-1].id]}
        done = await compiled.ainvoke(given)
        return said(AIMessage("done", id=f"a.{given['log'][0]}.{len(done['log'])}"))

    def call(state: State) -> dict[str, Any]:
        given = {"messages": state["messages"][-1:], "log": [state["messages"][-1].id]}
        done = compiled.invoke(given)
        return said(AIMessage("done", id=f"a.{given['log'][0]}.{len(done['log'])}"))

    from langchain_core.runnables import RunnableLambda

    builder.add_node("child", RunnableLambda(call, afunc=acall))
    builder.add_edge(START, "child")
    return builder


def test_a_call_of_a_subgraph_is_archived_without_summary_or_hooks(house: House) -> None:
    config = thread_config()
    told = Told()
    listed, summary = listing()
    saver = house.saver(IN_RUNS, on_evict=[told], summary=summary)
    graph = child_of(None).compile(checkpointer=saver)
    for i in range(6):
        house.door.invoke(graph, ask(f"{i}"), config)

    rows = [item for item in house.rows(name_of(config)) if item.namespace[-1] == "segments"]
    inside = [item for item in rows if ":" in str(item.value["namespace"])]
    assert len(inside) >= 6, "above the cap in each call"
    assert told.ids
    assert not any(":" in event.namespace for event in told.events)
    assert not any(name.startswith("c.") for name in told.ids)
    assert not any(name.startswith("c.") for call in listed.calls for name in call)
    house.door.call(saver, "deliver")
    house.door.call(house.saver(on_evict=[told]), "deliver")
    assert not any(name.startswith("c.") for name in told.ids)
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_subgraph_with_a_memory_has_a_line_of_its_own(house: House) -> None:
    config = thread_config()
    told = Told()
    saver = house.saver(AT_ONCE, on_evict=[told], summary=listing()[1])
    graph = child_of(True).compile(checkpointer=saver)
    for i in range(4):
        house.door.invoke(graph, ask(f"{i}"), config)
    inner = house.door.get_state(graph, config, subgraphs=True)
    assert inner is not None
    spaces = {event.namespace for event in told.events}
    assert spaces == {"", "child"}
    assert max(Counter(told.ids).values()) == 1, "once per thread, across namespaces"
    where = {"configurable": {"thread_id": name_of(config), "checkpoint_ns": "child"}}
    assert ids(house.transcript(saver, where)) == house.state(where)["log"]
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process a turn"])
def test_a_summary_for_hooks_alone_rolls(house: House, restarts: bool) -> None:
    told, (listed, summary) = Told(), listing(place="hooks")
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told], summary=summary)
    for i in range(6):
        play(house, saver, config, f"t{i}")
        if restarts:
            saver = house.saver(AT_ONCE, on_evict=[told], summary=summary)
    assert not summaries(house.state(config)["messages"])
    texts = [event.summary.split() for event in told.events]
    assert texts == [told.ids[: len(text)] for text in texts], "each is made of the one before"
    assert texts[-1] == told.ids == [name for call in listed.calls for name in call]
    assert len(texts) == 5


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_fork_rolls_its_own_summary_for_hooks(house: House) -> None:
    told, (_, summary) = Told(), listing(place="hooks")
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told], summary=summary)
    graph = play(house, saver, config, "a", "b", "c")
    middle = [s for s in house.door.get_state_history(graph, config) if not s.next][1]
    assert middle.values["messages"][0].id == "h.b"
    house.door.invoke(graph, ask("x"), middle.config)
    play(house, house.saver(AT_ONCE, on_evict=[told], summary=summary), config, "y")
    last = told.events[-1].summary.split()
    assert [name[2] for name in last] == list("aabbxx")


# Transcripts of every scene


def ever(stored: list[Any], head: Any, channel: str) -> list[Any]:
    """Return every message of a line of checkpoints of a bare saver, in the order they came.

    What was removed stands where it was; of an edited message the newest is given.
    """
    by_id = {found.checkpoint["id"]: found for found in stored}
    line = [head]
    while line[-1].parent_config is not None:
        parent = by_id.get(line[-1].parent_config["configurable"]["checkpoint_id"])
        if parent is None:
            break
        line.append(parent)
    order: list[Any] = []
    newest: dict[Any, Any] = {}
    for found in reversed(line):
        place = 0
        for message in read(found, channel) or []:
            who = getattr(message, "id", None) or key(message)
            if who in newest:
                place = order.index(who) + 1
            else:
                order.insert(place, who)
                place += 1
            newest[who] = message
    return [newest[who] for who in order]


def head_of(stored: list[Any]) -> Any:
    return max((s for s in stored if not namespace(s)), key=lambda s: s.checkpoint["id"])


SCENE_HOUSES = HOUSES if CAMPAIGN else ("memory-sync", "aiosqlite-async")
WINDOWS = {
    "at rest": Window(("messages", 2), ("messages", 3), ("messages", 1_000)),
    "in runs": IN_RUNS,
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("scene", [s for s in SCENES.values() if not s.delta], ids=lambda s: s.name)
@pytest.mark.parametrize("house", SCENE_HOUSES, indirect=True)
def test_the_transcript_of_a_scene_is_whole(house: House, scene: Scene, name: str) -> None:
    bare = Stage(InMemorySaver(), house.door)
    scene.run(bare)
    told = Told()
    summary = listing()[1] if scene.channels == ("messages",) else None
    saver = house.saver(WINDOWS[name], channels=scene.channels, on_evict=[told], summary=summary)
    kept = Stage(saver, house.door)
    scene.run(kept)

    channel = scene.channels[0]
    stored = checkpoints(bare.saver, house.door, bare.thread)
    wanted = ever(stored, head_of(stored), channel)
    found = house.transcript(saver, kept.config, channel=channel)
    last = read(house.checkpoints(kept.thread)[0], channel) or []
    assert sum(map(is_summary, last)) <= 1
    assert brief(found) == brief(wanted)
    assert [*map(key, found)] == [*map(key, wanted)]
    by_id = Counter(own for m in found if (own := getattr(m, "id", None)))
    assert max(by_id.values(), default=1) == 1
    # In another process, with small pages, it is the same.
    again = house.saver(WINDOWS[name], channels=scene.channels)
    paged = house.transcript(again, kept.config, channel=channel, page_size=3)
    assert paged == house.transcript(saver, kept.config, channel=channel)
    here = Counter(
        getattr(m, "id", None) for e in told.events if e.thread == kept.thread for m in e.messages
    )
    here.pop(None, None)
    edits = Counter(
        getattr(e.messages[i], "id", None)
        for e in told.events
        if e.thread == kept.thread
        for i in e.edited
    )
    assert all(times == 1 + edits[name] for name, times in here.items())


# Erasing and copying


def test_a_thread_that_is_deleted_is_nowhere(house: House) -> None:
    config = thread_config()
    other = thread_config()
    canary = f"canary{name_of(config)}"
    summary = Summary(lambda messages, previous: f"all about {canary}")
    told = Told()
    saver = house.saver(IN_RUNS, summary=summary, on_evict=[told])
    tagged = {**config, "metadata": {"note": canary}}
    graph = child_of(True).compile(checkpointer=saver)
    for i in range(4):
        given = said(HumanMessage(f"{canary} {i}", id=f"{canary}.{i}"))
        house.door.invoke(graph, given, tagged)
    play(house, house.saver(IN_RUNS), other, "a", "b", "c", "d")
    whole = ids(house.transcript(saver, other))
    assert canary.encode() in house.dump()
    assert house.rows(name_of(config))
    house.door.delete_thread(saver, name_of(config))

    assert canary.encode() not in house.dump()
    if not house.kind.startswith("memory"):  # whose store keeps empty namespaces
        assert name_of(config).encode() not in house.dump()
    assert house.rows(name_of(config)) == []
    assert ids(house.transcript(saver, other)) == whole
    play(house, saver, config, "a")
    assert ids(house.transcript(saver, config)) == ["h.a", "a.a.1"]
    house.door.delete_thread(saver, name_of(config))
    house.door.delete_thread(saver, name_of(config))


STRANGE = (
    "a.b",
    "a%2Eb",
    "a_b",
    "axb",
    "A",
    "a",
    "ü/?*[x]",
    "a b",
    "%00",
    "x" * 200,
    "..",
    "'\"\\",
)


def test_threads_with_strange_names_are_kept_apart(house: House) -> None:
    prefix = name_of(thread_config())
    names = [prefix + name for name in STRANGE]
    told = Told()
    saver = house.saver(AT_ONCE, on_evict=[told])
    for name in names:
        play(house, saver, thread_config(name), "a", "b")
    for name in names[1::2]:
        house.door.delete_thread(saver, name)
        assert house.transcript(saver, thread_config(name)) == []
    for name in names[::2]:
        assert ids(house.transcript(saver, thread_config(name))) == ["h.a", "a.a.1", "h.b", "a.b.4"]
    assert Counter(event.thread for event in told.events) == dict.fromkeys(names, 1)


class Copying(InMemorySaver):
    """A saver that copies threads."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for found in reversed([*self.list({"configurable": {"thread_id": source_thread_id}})]):
            space = found.config["configurable"]["checkpoint_ns"]
            parent = found.parent_config or {"configurable": {}}
            where = {**parent["configurable"], "thread_id": target_thread_id}
            config = {"configurable": {**where, "checkpoint_ns": space}}
            versions = found.checkpoint["channel_versions"]
            self.put(config, found.checkpoint, found.metadata, versions)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)


@pytest.mark.parametrize("house", HOUSES, indirect=True)
def test_a_copied_thread_has_its_archive(house: House) -> None:
    source, target = thread_config(), thread_config()
    told = Told()
    saver = house.saver(AT_ONCE, inner=Copying(), on_evict=[told], summary=listing()[1])
    play(house, saver, source, "a", "b", "c", "d")
    before = len(told.events)

    house.door.copy_thread(saver, name_of(source), name_of(target))
    whole = ids(house.transcript(saver, source))
    assert ids(house.transcript(saver, target)) == whole
    house.door.call(saver, "deliver")
    assert len(told.events) == before, "what the source told is told"

    play(house, saver, target, "e")
    play(house, saver, source, "f")
    assert [name[:3] for name in ids(house.transcript(saver, target))[-2:]] == ["h.e", "a.e"]
    assert [name[:3] for name in ids(house.transcript(saver, source))[-2:]] == ["h.f", "a.f"]
    assert {event.thread for event in told.events[before:]} == {name_of(source), name_of(target)}
    house.door.delete_thread(saver, name_of(source))
    assert len(house.transcript(saver, target)) == 10


# Whose memory


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("ann", ("ann",)),
        (["users", "ann"], ("users", "ann")),
        (("users", "ann", "facts"), ("users", "ann", "facts")),
        (["tenant", 7], ("tenant", "7")),
        ([], None),
        (None, None),
    ],
)
@pytest.mark.parametrize("key_", ["memory_namespace", "user_id"])
@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_the_memory_namespace(house: House, given: Any, wanted: Any, key_: str) -> None:
    told = Told(failures=1)
    config = thread_config(**({} if given is None else {key_: given}))
    saver = house.saver(AT_ONCE, on_evict=[told], namespace_key=key_)
    play(house, saver, config, "a", "b")
    # Stored with the entry: another process tells it under the same one.
    house.door.call(house.saver(on_evict=[told]), "deliver")
    mine = [event for event in told.events if event.thread == name_of(config)]
    assert [e.memory_namespace for e in mine] == [wanted or ("memories", name_of(config))]


def test_two_users_with_the_same_message_ids(house: House) -> None:
    ann, bob = thread_config(memory_namespace="ann"), thread_config(memory_namespace="bob")
    told = Told()
    saver = house.saver(AT_ONCE, on_evict=[told], summary=listing()[1])

    def said_by(who: str) -> Any:
        builder = StateGraph(State)
        builder.add_node("say", lambda s: said(AIMessage(f"to {who}", id=f"a{len(s['log'])}")))
        builder.add_edge(START, "say")
        return builder.compile(checkpointer=saver)

    for i in range(4):
        for who, config in (("ann", ann), ("bob", bob)):
            given = said(HumanMessage(f"secret of {who}", id=f"h{i}"))
            house.door.invoke(said_by(who), given, config)

    for who, config, other in (("ann", ann, "bob"), ("bob", bob, "ann")):
        found = house.transcript(saver, config)
        assert len(found) == 8
        assert all(who in m.content and other not in m.content for m in found)
        mine = [event for event in told.events if event.thread == name_of(config)]
        assert all(event.memory_namespace == (who,) for event in mine)
        assert all(who in m.content for event in mine for m in event.messages)
        assert [m.id for event in mine for m in event.messages] == ids(found)[:-2]
    assert not {e.segment for e in told.events if e.memory_namespace == ("ann",)} & {
        e.segment for e in told.events if e.memory_namespace == ("bob",)
    }
    house.door.delete_thread(saver, name_of(ann))
    assert len(house.transcript(saver, bob)) == 8


# Summaries


@pytest.mark.parametrize("house", ["sqlite-sync", "aiosqlite-async"], indirect=True)
def test_a_thousand_turns(house: House) -> None:
    turns = 1_000 if CAMPAIGN else 100
    config = thread_config()
    listed, summary = listing()
    told = Told()
    window = Window(("messages", 10), ("messages", 20))
    saver = house.saver(window, summary=summary, on_evict=[told])
    graph = talk().compile(checkpointer=saver)
    most = 0
    for i in range(turns):
        house.door.invoke(graph, ask(f"{i}", i % 2), config)
        most = max(most, len(house.state(config)["messages"]))

    stats = saver.stats()
    assert most <= 20
    assert len(listed.calls) == stats.summary_calls == stats.summaries == stats.total.reductions
    assert stats.summary_failures == 0
    values = house.state(config)
    assert ids(house.transcript(saver, config)) == values["log"]
    assert len(values["log"]) == turns * 3
    gone = values["log"][: -len(ids(values["messages"]))]
    assert covered(values["messages"]) == told.ids == gone
    assert stats.delivered == stats.summaries == len(told.events)


def test_the_summary_keeps_its_id_and_is_never_doubled(house: House) -> None:
    config = thread_config()
    saver = house.saver(AT_ONCE, summary=listing()[1])
    play(house, saver, config, *(f"t{i}" for i in range(4)), rounds=1)
    play(house, house.saver(AT_ONCE, summary=listing()[1]), config, "u", "v")
    names = set()
    for found in house.checkpoints(name_of(config)):
        held = found.checkpoint["channel_values"].get("messages", [])
        found_summaries = [m for m in held if is_summary(m)]
        assert len(found_summaries) <= 1
        assert all(m is held[0] for m in found_summaries)
        names.update(m.id for m in found_summaries)
    assert len(names) == 1
    assert name_of(config) not in names.pop()


def factory(text: str) -> Any:
    return [HumanMessage("What was said before?"), AIMessage(text)]


@pytest.mark.parametrize("shape", ["human", "system", "pair", factory])
@pytest.mark.parametrize("system", [False, True], ids=["no system message", "a system message"])
@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_every_shape_stays_valid_for_providers(house: House, shape: Any, system: bool) -> None:
    config = thread_config()
    listed = Listing()
    saver = house.saver(
        IN_RUNS, summary=Summary(listed, shape=shape, max_tokens=9_000, max_input_tokens=99_000)
    )
    graph = talk().compile(checkpointer=saver)
    if system:
        first = said(SystemMessage("be brief", id="sys"))
        house.door.update_state(graph, config, first, as_node="__start__")
    for i in range(6):
        house.door.invoke(graph, ask(f"{i}", i % 3), config)

    for found in house.checkpoints(name_of(config)):
        held = found.checkpoint["channel_values"].get("messages", [])
        if held and held[-1].type == "ai" and not held[-1].tool_calls:
            for provider in ("openai", "anthropic", "gemini"):
                found_problems = [str(p) for p in problems(held, provider)]
                assert found_problems == [], brief(held)
    head = house.state(config)["messages"]
    carriers = [m for m in head if is_summary(m)]
    assert len(carriers) == (2 if shape in ("pair", factory) else 1)
    assert (head[0].id == "sys") == system
    read_once = [name for call in listed.calls for name in call]
    assert len(read_once) == len({*read_once})
    found = house.transcript(saver, config)
    assert ids(found) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_summary_only_for_hooks_never_enters_the_list(house: House) -> None:
    config = thread_config()
    told = Told()
    listed, summary = listing(place="hooks")
    saver = house.saver(AT_ONCE, summary=summary, on_evict=[told])
    play(house, saver, config, "a", "b", "c", "d")
    for found in house.checkpoints(name_of(config)):
        assert not any(map(is_summary, found.checkpoint["channel_values"].get("messages", [])))
    assert len(told.events) == len(listed.calls) == 3
    for event in told.events:
        assert event.summary
        assert event.summary.split()[-2:] == [m.id for m in event.messages]


class Broken:
    """A summariser that fails until it is mended."""

    def __init__(self) -> None:
        self.calls = 0
        self.mended = False
        self.good = Listing()

    def __call__(self, messages: Any, previous: Any) -> str:
        self.calls += 1
        if not self.mended:
            raise RuntimeError("secret: down")
        return self.good(messages, previous)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_without_a_summary_what_would_leave_stays(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    config = thread_config()
    broken = Broken()
    window = Window(("messages", 4), ("messages", 8), ("messages", 10))
    saver = house.saver(window, summary=Summary(broken, max_input_tokens=99_000))
    play(house, saver, config, "a", rounds=6)  # 14 messages: above the cap, below twice
    values = house.state(config)
    assert ids(values["messages"]) == values["log"]
    assert 0 < broken.calls < 6, "not on each put"
    assert "secret" not in caplog.text
    broken.mended = True
    play(house, saver, config, "b")
    values = house.state(config)
    assert len(values["messages"]) <= 5
    assert sorted(covered(values["messages"]) + ids(values["messages"])) == sorted(values["log"])


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_above_twice_the_cap_a_failing_summary_no_longer_holds(house: House) -> None:
    config = thread_config()
    told = Told()
    broken = Broken()
    window = Window(("messages", 4), ("messages", 6), ("messages", 8))
    saver = house.saver(window, summary=Summary(broken, max_input_tokens=99_000), on_evict=[told])
    play(house, saver, config, "a", rounds=20)  # 42 messages
    values = house.state(config)
    longest = max(
        len(found.checkpoint["channel_values"].get("messages", []))
        for found in house.checkpoints(name_of(config))
    )
    assert longest <= 2 * 8 + 4
    assert ids(house.transcript(saver, config)) == values["log"]
    assert {*told.ids} == {*values["log"]} - {*ids(values["messages"])}
    assert all(event.summary is None for event in told.events)
    assert saver.stats().summary_failures == broken.calls


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_failure_may_evict(house: House) -> None:
    config = thread_config()
    told = Told()
    broken = Broken()
    summary = Summary(broken, on_failure="evict", max_input_tokens=99_000)
    saver = house.saver(WINDOW, summary=summary, on_evict=[told])
    play(house, saver, config, *(f"t{i}" for i in range(8)))
    values = house.state(config)
    assert len(values["messages"]) <= 6
    assert summaries(values["messages"]) == []
    assert ids(house.transcript(saver, config)) == values["log"]
    assert saver.stats().summary_failures == broken.calls == len(told.events)


@pytest.mark.parametrize("options", [{"shadow": True}, {"enabled": False}])
def test_in_the_shadow_or_switched_off_nothing_is_called(house: House, options: Any) -> None:
    config = thread_config()
    told = Told()
    listed, summary = listing()
    saver = house.saver(AT_ONCE, summary=summary, on_evict=[told], **options)
    play(house, saver, config, "a", "b", "c", rounds=1)
    values = house.state(config)
    assert [m.id for m in values["messages"]] == values["log"]
    assert (listed.calls, told.events, house.rows(name_of(config))) == ([], [], [])
    assert not any(f.metadata.get("reducing_saver") for f in house.checkpoints(name_of(config)))
    # Switched on later, the whole past leaves in order.
    later = house.saver(AT_ONCE, summary=summary, on_evict=[told])
    play(house, later, config, "d")
    assert ids(house.transcript(later, config)) == house.state(config)["log"]
    assert told.ids == house.state(config)["log"][:-2]


@pytest.mark.parametrize("how", ["switched off", "in the shadow", "failing"])
@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process each"])
@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_checkpoints_that_are_stored_as_they_come_do_not_break_the_chain(
    house: House, how: str, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = thread_config()
    told = Told()
    listed, summary = listing()

    def another() -> ReducingSaver:
        return house.saver(AT_ONCE, summary=summary, on_evict=[told], strict=False)

    saver = another()
    play(house, saver, config, "a", "b", "c")
    saver = another() if restarts else saver
    with monkeypatch.context() as patch:
        match how:
            case "switched off":
                saver.enabled = False
            case "in the shadow":
                saver = house.saver(AT_ONCE, summary=summary, on_evict=[told], shadow=True)
            case _:
                patch.setattr("reducing_saver._saver.propose", _fails)
        play(house, saver, config, "d", "e")
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]
    saver = another() if restarts or saver.shadow else saver
    saver.enabled = True
    play(house, saver, config, "f", "g")
    values = house.state(config)
    assert ids(house.transcript(saver, config)) == values["log"]
    assert covered(values["messages"]) + ids(values["messages"]) == values["log"]
    assert told.ids == values["log"][:-2]
    assert listed.calls


def _fails(*args: Any) -> Any:
    raise LookupError("the engine does not understand this")


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_summary_without_an_archive(house: House) -> None:
    config = thread_config()
    listed, summary = listing()
    saver = house.saver(IN_RUNS, summary=summary, archive=Discard())
    play(house, saver, config, "a", "b", "c", rounds=2)
    for found in house.checkpoints(name_of(config)):
        values = found.checkpoint["channel_values"]
        held = values.get("messages", [])
        assert sorted(covered(held) + ids(held)) == sorted(values.get("log", []))
    assert listed.calls


def test_aput_does_not_hold_the_loop_for_a_summary() -> None:
    def slow(messages: Any, previous: Any) -> str:
        time.sleep(0.2)
        return "slow"

    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run() -> None:
        saver = ReducingSaver(
            InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()), summary=Summary(slow)
        )
        graph = talk().compile(checkpointer=saver)
        heart = asyncio.create_task(beat())
        for i in range(3):
            await graph.ainvoke(ask(f"t{i}"), thread_config("a"))
        heart.cancel()
        assert saver.stats().summaries == 2

    asyncio.run(run())
    gaps = [after - before for before, after in itertools.pairwise(beats)]
    assert len(beats) > 20
    assert max(gaps) < 0.19


# Statistics


def test_the_statistics_are_true(house: House) -> None:
    config = thread_config()
    told, clock = Told(failures=1), Clock()
    listed, summary = listing()
    saver = house.saver(IN_RUNS, summary=summary, on_evict=[told], clock=clock)
    graph = play(house, saver, config, "a", "b", "c", rounds=2)
    clock.move()
    first = house.state(config)["messages"][-1].id
    house.door.update_state(graph, config, {"messages": [RemoveMessage(first)]}, as_node="model")
    play(house, saver, config, "d")
    stats = saver.stats()
    total = stats.total
    assert stats.channels.keys() == {"messages"}
    assert stats.summaries == stats.summary_calls == len(listed.calls) == total.reductions
    assert total.evicted == sum(map(len, listed.calls))
    assert total.removed == 1
    assert stats.delivery_failures == 1
    assert stats.delivered == len(told.events)
    assert len(told.ids) == total.evicted + total.removed
    assert stats.archive_failures == stats.summary_failures == total.failures == 0
    assert stats.summary_seconds >= 0
    assert total.puts == sum(bool(p) for p in _with_messages(house, config))


def _with_messages(house: House, config: Any) -> Iterator[bool]:
    for found in house.checkpoints(name_of(config)):
        yield "messages" in found.checkpoint["channel_values"]
