"""The README's table of deployments: each row's graph, with its setting, and what it will see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from memory.houses import (
    House,
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
from memory.test_background import Gate, settled
from memory.test_memory import numbered

from reducing_saver import Window
from reducing_saver.engine import problems
from reducing_saver.engine.messages import is_summary

ROOT = Path(__file__).parents[2]
HOUSES = ["memory-sync", "aiosqlite-async", "postgres-sync"]

houses = pytest.mark.parametrize("house", HOUSES, indirect=True)


def stored(house: House, config: Any, namespace: str = "") -> list[list[Any]]:
    """Return the lists of all checkpoints, newest first."""
    found = house.checkpoints(config["configurable"]["thread_id"], namespace)
    return [one.checkpoint["channel_values"].get("messages", []) for one in found]


def turns(messages: list[Any]) -> int:
    return sum(m.type == "human" and not is_summary(m) for m in messages)


def whole(house: House, saver: Any, config: Any) -> None:
    """See that archive and state are every message of the thread, once and in order."""
    state = house.state(config)
    assert ids(house.transcript(saver, config)) == state["log"]
    assert problems(state["messages"]) == ()


@houses
def test_a_table_chat(house: House) -> None:
    """A thread that comes back for weeks: six to twelve turns and a summary of the others."""
    listed, summary = listing()
    saver = house.saver(Window(("turns", 6)), summary=summary)
    config = thread_config()
    graph = talk().compile(checkpointer=saver)
    for i in range(40):
        house.door.invoke(graph, ask(f"t{i}", i % 3), config)
        assert turns(house.state(config)["messages"]) == min(i + 1, 6 + max(0, i - 5) % 7)
    state = house.state(config)
    assert covered(state["messages"]) + ids(state["messages"]) == state["log"]
    assert len(listed.calls) == saver.stats().total.reductions == 4, "one call in seven turns"
    whole(house, saver, config)


@houses
def test_a_chat_that_never_waits_for_a_summary(house: House) -> None:
    """The same, in a server that lives on: the turn that crosses does not wait for the model."""
    gate = Gate(opened=False)
    saver = house.saver(Window(("turns", 6)), summary=gate.summary())
    config = thread_config()
    graph = talk().compile(checkpointer=saver)
    for i in range(14):
        house.door.invoke(graph, ask(f"t{i}"), config)
    assert gate.began.acquire(timeout=30)
    assert turns(house.state(config)["messages"]) == 14, "longer, until the summary is there"
    gate.gate.set()
    settled(saver, gate)
    house.door.invoke(graph, ask("later"), config)
    assert turns(house.state(config)["messages"]) == 8
    assert len(gate.calls) == 1
    whole(house, saver, config)


@houses
def test_a_long_single_run(house: House) -> None:
    """Hundreds of steps that never rest: each checkpoint stays below the cap, the loop sees all."""
    told = Told()
    window = Window(("messages", 20), ("messages", 40), cap=("messages", 80))
    saver = house.saver(window, on_evict=[told])
    config = {**thread_config(), "recursion_limit": 500}
    graph = talk().compile(checkpointer=saver)
    seen = house.door.stream(graph, ask("long", 150), config, stream_mode="values")

    assert len(seen[-1]["messages"]) == 302, "the running loop keeps its own list"
    lengths = [len(messages) for messages in stored(house, config)]
    assert max(lengths) == 80
    assert min(lengths[:-100]) in (39, 40), "cut to half of the cap, each time it is passed"
    assert house.state(config)["messages"][0].id == "h.long", "its question never leaves"
    assert len(told.ids) == 302 - len(house.state(config)["messages"])
    assert told.ids == [m for m in house.state(config)["log"] if m in {*told.ids}]
    whole(house, saver, config)


def asking() -> Any:
    """Build a chat that lives in `interrupt()`."""

    def hear(state: State) -> dict[str, Any]:
        number = len(state["log"])
        answer = interrupt(f"question {number}")
        human = HumanMessage(answer, id=f"h{number}")
        return said(human, AIMessage(f"you said {answer}", id=f"a{number}"))

    builder = StateGraph(State)
    builder.add_node("hear", hear)
    builder.add_edge(START, "hear")
    builder.add_edge("hear", "hear")
    return builder


@houses
@pytest.mark.parametrize("another", [False, True], ids=["one process", "a process a turn"])
def test_always_interrupted(house: House, another: bool) -> None:
    """A chat that never rests: the first step after each resume lets whole old turns go."""
    listed, summary = listing()
    window = Window(("turns", 3))
    saver = house.saver(window, summary=summary)
    config = thread_config()
    graph = asking().compile(checkpointer=saver)
    house.door.invoke(graph, {"messages": [], "log": []}, config)
    for i in range(20):
        if another:
            saver = house.saver(window, summary=summary)
            graph = asking().compile(checkpointer=saver)
        house.door.invoke(graph, Command(resume=f"answer {i}"), config)
        now = house.door.get_state(graph, config)
        assert now.next == ("hear",), "it still waits"
        assert turns(now.values["messages"]) <= 6
        assert now.values["messages"][-1].content == f"you said answer {i}"
    state = house.state(config)
    assert covered(state["messages"]) + ids(state["messages"]) == state["log"]
    assert len(listed.calls) == 4, "three, and then one in four turns"
    whole(house, saver, config)


def supervising() -> Any:
    """Build a supervisor with a specialist that remembers, and one that is called anew."""

    def speak(name: str) -> Any:
        def node(state: MessagesState) -> dict[str, Any]:
            asked = [m.id for m in state["messages"] if m.type == "human" and not is_summary(m)]
            return {
                "messages": [AIMessage(f"{name} {i}", id=f"{name}.{asked[-1]}.{i}") for i in (1, 2)]
            }

        builder = StateGraph(MessagesState)
        builder.add_node(name, node)
        builder.add_edge(START, name)
        return builder

    outer = StateGraph(MessagesState)
    outer.add_node("lookup", speak("lookup").compile())
    outer.add_node("billing", speak("billing").compile(checkpointer=True))
    outer.add_edge(START, "lookup")
    outer.add_edge("lookup", "billing")
    return outer


@houses
def test_a_supervisor_with_subgraphs(house: House) -> None:
    """The root and the agent that remembers are reduced at rest; a call of the other is not."""
    told, (_, summary) = Told(), listing()
    window = Window(("turns", 2), ("turns", 4), cap=("messages", 200))
    saver = house.saver(window, summary=summary, on_evict=[told])
    config = thread_config()
    graph = supervising().compile(checkpointer=saver)
    bare = supervising().compile(checkpointer=InMemorySaver())
    for i in range(12):
        question = HumanMessage(f"question {i}", id=f"h.{i}")
        house.door.invoke(graph, {"messages": [question]}, config)
        everything = bare.invoke({"messages": [question]}, config)["messages"]
    thread = config["configurable"]["thread_id"]

    assert turns(house.state(config)["messages"]) <= 4
    memory = {"configurable": {"thread_id": thread, "checkpoint_ns": "billing"}}
    assert summaries(house.state(memory)["messages"]), "with a summary of its own"
    assert turns(house.state(memory)["messages"]) <= 4
    assert {event.namespace for event in told.events} <= {"", "billing"}
    assert len(set(told.ids)) == len(told.ids), "told once, whichever graph let it go"
    assert not any(":" in item.value["namespace"] for item in house.rows(thread) if _segment(item))
    whole = ids(house.transcript(saver, config))
    assert whole == [m.id for m in everything]
    left = {*whole} - {*ids(house.state(config)["messages"])}
    assert left <= {*told.ids}


def _segment(item: Any) -> bool:
    return str(item.namespace[-1]) == "segments"


@houses
def test_beside_summarization_middleware(house: House) -> None:
    """The middleware shortens what the model reads; what it removes is archived all the same."""
    config = thread_config()
    middleware = SummarizationMiddleware(
        FakeListChatModel(responses=["what was said"]),
        trigger=("messages", 8),
        keep=("messages", 4),
    )
    told = Told()
    saver = house.saver(Window(("messages", 40)), on_evict=[told])
    agent = create_agent(numbered(), [], middleware=[middleware], checkpointer=saver)
    for i in range(12):
        house.door.invoke(agent, {"messages": [HumanMessage(f"q{i}", id=f"h{i}")]}, config)

    everything = [name for i in range(12) for name in (f"h{i}", f"a{i}")]
    found = house.transcript(saver, config)
    assert ids(found) == everything
    assert not any(map(is_summary, found))
    held = house.state(config)["messages"]
    assert len(summaries(held)) == 1, "the middleware's, in its place"
    assert {event.why for event in told.events} == {"removed"}
    assert told.ids == everything[: len(told.ids)]
    total = saver.stats().total
    assert (total.evicted, total.removed) == (0, len(told.ids))
    assert total.removed >= 12


FUNCTION = """
import json, os, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from memory.houses import ask, listing, talk, thread_config
from reducing_saver import ReducingSaver, StoreArchive, Window

path, log, label = sys.argv[1:]

def told(eviction):
    if label == "t9":
        os._exit(9)  # the platform takes the function away while its hook runs
    with open(log, "a") as file:
        file.write(json.dumps([m.id for m in eviction.messages]) + "\\n")

with SqliteSaver.from_conn_string(path) as inner, SqliteStore.from_conn_string(path) as store:
    store.setup()
    saver = ReducingSaver(
        inner,
        Window(("turns", 2)),
        archive=StoreArchive(store),
        summary=listing()[1],
        on_evict=[told],
    )
    graph = talk().compile(checkpointer=saver)
    graph.invoke(ask(label), thread_config("t"))
    os._exit(0)  # frozen as soon as it has answered: nothing in the background would go on
"""


def test_serverless(tmp_path: Path) -> None:
    """A process a turn, frozen after its answer: all is done within the put, or by the next."""
    path, log = tmp_path / "chat.db", tmp_path / "told.jsonl"
    codes = []
    for i in range(13):
        command = [sys.executable, "-c", FUNCTION, str(path), str(log), f"t{i}"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        codes.append(done.returncode)
        assert done.returncode in (0, 9), done.stderr
    assert codes.count(9) <= 1

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.store.sqlite import SqliteStore

    from reducing_saver import ReducingSaver, StoreArchive

    with (
        SqliteSaver.from_conn_string(str(path)) as inner,
        SqliteStore.from_conn_string(str(path)) as store,
    ):
        saver = ReducingSaver(inner, Window(("turns", 2)), archive=StoreArchive(store))
        found = inner.get_tuple(thread_config("t"))
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert turns(values["messages"]) <= 4
        assert covered(values["messages"]) + ids(values["messages"]) == values["log"]
        assert ids([*saver.transcript(thread_config("t"))]) == values["log"]
        assert len(values["log"]) == 26
    told = [name for line in log.read_text().splitlines() for name in json.loads(line)]
    assert told == covered(values["messages"]), "once, in order, also what a frozen one left"


TABLE = {
    "a chat": test_a_table_chat,
    "a chat that must not wait": test_a_chat_that_never_waits_for_a_summary,
    "one long run": test_a_long_single_run,
    "always in `interrupt()`": test_always_interrupted,
    "a supervisor with subgraphs": test_a_supervisor_with_subgraphs,
    "beside `SummarizationMiddleware`": test_beside_summarization_middleware,
    "serverless": test_serverless,
}


def test_every_row_of_the_readme_is_played() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("### Deployments")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.M)
    assert rows == [*TABLE]
