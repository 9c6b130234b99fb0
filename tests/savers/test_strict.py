"""LANGGRAPH_STRICT_MSGPACK=true, and encryption: the same as bare, and reduced (C52, P33).

The variable is read when LangGraph is imported, so one test runs the others of this file again in a
process that has it. They hold without it as well, but for what says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from services.door import Door

from reducing_saver import Discard, ReducingSaver, Window

Saver = BaseCheckpointSaver[Any]
SOME = pytest.mark.parametrize(
    "backend", ["memory-sync", "memory_int-async", "sqlite-sync", "apostgres-async"], indirect=True
)
STRICT = _msgpack.STRICT_MSGPACK_ENABLED
WINDOW = Window(keep=("messages", 2), trigger=("messages", 4), cap=("messages", 8))


class Profile(BaseModel):
    name: str
    visits: int = 0


@dataclasses.dataclass
class Place:
    x: int


class Mood(enum.Enum):
    GOOD = "good"


class Stranger(BaseModel):
    """A type that stands in no graph's state."""

    name: str = "nobody"


class Note(HumanMessage):
    """A message of one's own."""

    type: str = "human"  # type: ignore[assignment]
    stars: int = 5


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: list[Note]
    profile: Profile
    place: Place
    mood: Mood
    other: Any


def build(saver: Saver, *, asks: bool = False) -> Any:
    def reply(state: State) -> Any:
        profile = state.get("profile") or Profile(name="Ada")
        visited = profile.model_copy(update={"visits": profile.visits + 1})
        said = AIMessage("yes", id=f"a{visited.visits}")
        return {"messages": [said], "profile": visited, "place": Place(1), "mood": Mood.GOOD}

    def ask(_: State) -> Any:
        if asks:
            interrupt(Profile(name="who?"))
        return {}

    builder = StateGraph(State)
    builder.add_node("reply", reply)
    builder.add_node("ask", ask)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", "ask")
    return builder.compile(checkpointer=saver)


def wrap(inner: Saver) -> Any:
    return ReducingSaver(inner, WINDOW, archive=Discard())


def at(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread}}


def talk(graph: Any, door: Door, turns: int, thread: str = "t", **more: Any) -> None:
    for i in range(turns):
        given = {"messages": [HumanMessage(f"{i}", id=f"h{i}")], **more}
        door.invoke(graph, given, at(thread))


def rest(state: Any) -> dict[str, Any]:
    return {name: value for name, value in state.values.items() if name != "messages"}


if not STRICT:

    def test_everything_here_in_strict_mode(postgres_server: str) -> None:
        env = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"}
        env["REDUCING_TEST_POSTGRES_DSN"] = postgres_server
        command = [
            sys.executable,
            "-m",
            "pytest",
            __file__,
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, cwd=os.path.dirname(__file__)
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert "skipped" not in done.stdout


@SOME
def test_the_state_comes_back_as_it_does_bare(inner: Saver, door: Door) -> None:
    """C52: Pydantic models, dataclasses, enums and messages of one's own."""
    graphs = [build(wrap(inner)), build(inner)]
    states = []
    for thread, graph in zip(("kept", "bare"), graphs, strict=True):
        talk(graph, door, 7, thread, notes=[Note("mine", id="n")])
        states.append(door.get_state(graph, at(thread)))
    kept, bare = states
    assert rest(kept) == rest(bare)
    assert kept.values["profile"] == Profile(name="Ada", visits=7)
    assert kept.values["place"] == Place(1)
    assert kept.values["mood"] is Mood.GOOD
    assert type(kept.values["notes"][0]) is type(bare.values["notes"][0])
    assert [m.id for m in bare.values["messages"]][-2:] == ["h6", "a7"]
    held = [m.id for m in kept.values["messages"]]
    assert held == [m.id for m in bare.values["messages"]][-len(held) :]
    assert len(held) <= WINDOW.triggers[0].value, "reduced, also where the wrapper was rebuilt"
    # A history, and what the wrapper stored through the bare saver
    ours, theirs = (
        door.get_state_history(graph, at(thread))
        for thread, graph in (("kept", graphs[0]), ("bare", graphs[1]))
    )
    assert list(map(rest, ours)) == list(map(rest, theirs))
    assert rest(door.get_state(graphs[1], at("kept"))) == rest(kept)


@SOME
def test_an_interrupt_with_a_model_in_it(inner: Saver, door: Door) -> None:
    values = []
    for thread, saver in (("kept", wrap(inner)), ("bare", inner)):
        graph = build(saver, asks=True)
        for i in range(4):
            talk(graph, door, 1, thread)
            state = door.get_state(graph, at(thread))
            values.append([getattr(each.value, "name", each.value) for each in state.interrupts])
            door.invoke(graph, Command(resume=f"{i}"), at(thread))
    assert values[:4] == values[4:]


@SOME
def test_the_inner_saver_is_left_as_it_was(inner: Saver, door: Door) -> None:
    """P33: LangGraph rebuilds the wrapper at compile and at each call; nothing else may move."""
    serde, before = inner.serde, dict(vars(inner.serde))
    saver = wrap(inner)
    graph = build(saver)
    talk(graph, door, 6)
    assert inner.serde is serde
    assert dict(vars(inner.serde)) == before
    assert saver.inner is inner
    assert saver.stats().total.evicted > 0, "clones count into the statistics of the first"
    stored = door.get_tuple(inner, at()).checkpoint["channel_values"]["messages"]
    assert len(stored) <= WINDOW.triggers[0].value


if STRICT:

    def test_clones_share_what_is_remembered() -> None:
        saver = wrap(InMemorySaver())
        clone = saver.with_allowlist([("tests", "X")])
        assert type(clone) is type(saver)
        assert clone.inner is not saver.inner
        for name in ("_lineage", "_counts", "_notices"):
            assert getattr(clone, name) is getattr(saver, name)


if STRICT:

    def test_what_is_refused_bare_is_refused_wrapped() -> None:
        """The wrapper opens no door: a type outside the allowlist stays plain data."""
        found = []
        for wrapped in (False, True):
            inner = InMemorySaver()
            graph = build(wrap(inner) if wrapped else inner)
            talk(graph, Door(), 6, other=Stranger())
            found.append(graph.get_state(at()).values["other"])
        assert found[0] == found[1]
        assert not isinstance(found[1], Stranger)


@SOME
def test_encrypted(inner: Saver, door: Door) -> None:
    """The list is reduced, and nothing of it is stored in plain text."""
    inner.serde = EncryptedSerializer(Cipher(), JsonPlusSerializer())
    saver = wrap(inner)
    graph = build(saver)
    for i in range(6):
        given = {"messages": [HumanMessage(f"canary {i}", id=f"h{i}")]}
        door.invoke(graph, given, at())
    state = door.get_state(graph, at())
    assert len(state.values["messages"]) <= WINDOW.triggers[0].value
    assert saver.stats().total.evicted > 0
    if isinstance(inner, InMemorySaver):
        stored = repr((dict(inner.storage), dict(inner.blobs), dict(inner.writes)))
        assert "canary" not in stored
    held = door.get_tuple(inner, at()).checkpoint["channel_values"]["messages"]
    assert [m.content for m in held][-2:] == ["canary 5", "yes"]


class Cipher:
    """A cipher that needs no package."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "test", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "test"
        return bytes(byte ^ 0x5A for byte in ciphertext)
