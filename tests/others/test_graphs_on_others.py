"""What people do with a graph, on the wrapped saver of a third party."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from services.door import Door
from services.others import Other

from reducing_saver import ReducingSaver, StoreArchive, Window

Saver = BaseCheckpointSaver[Any]
KEEP, TRIGGER = 3, 6  # turns


def talk(state: MessagesState) -> Any:
    """Answer; ask a person first where the turn says so."""
    said = state["messages"][-1].text
    answer = interrupt(f"may I {said}?") if said.startswith("ask") else "yes"
    return {"messages": [AIMessage(f"{answer} to {said}")]}


class Chat:
    """Hold a graph on a wrapped saver, one thread of it and the archive."""

    def __init__(self, inner: Saver, door: Door) -> None:
        self.inner, self.door = inner, door
        self.config: Any = {"configurable": {"thread_id": f"thread-{uuid.uuid4()}"}}
        self.archive = StoreArchive(InMemoryStore())
        self.reopen()

    def reopen(self) -> None:
        """Wrap the saver anew, as the next process does."""
        window = Window(keep=("turns", KEEP), trigger=("turns", TRIGGER))
        self.saver = ReducingSaver(self.inner, window, archive=self.archive)
        builder = StateGraph(MessagesState)
        builder.add_node("talk", talk)
        builder.add_node("end", lambda _: {})
        builder.add_edge(START, "talk")
        builder.add_edge("talk", "end")
        builder.add_edge("end", END)
        self.graph: Any = builder.compile(checkpointer=self.saver)

    def say(self, text: str, config: Any = None) -> Any:
        given = {"messages": [HumanMessage(text)]}
        return self.door.invoke(self.graph, given, config or self.config)

    def stored(self, config: Any = None) -> list[str]:
        """Give the texts that the inner saver holds in its newest checkpoint."""
        found = self.door.get_tuple(self.inner, config or self.config)
        return [message.text for message in found.checkpoint["channel_values"]["messages"]]

    def rests(self) -> list[Any]:
        history = self.door.get_state_history(self.graph, self.config)
        return [state for state in history if not state.next]


@pytest.fixture
def chat(inner: Saver, door: Door) -> Chat:
    return Chat(inner, door)


def whole(turns: range) -> list[str]:
    return [text for i in turns for text in (f"turn {i}", f"yes to turn {i}")]


def test_thirty_turns_stay_in_their_window(chat: Chat) -> None:
    for i in range(30):
        chat.say(f"turn {i}")
        assert len(chat.stored()) <= 2 * TRIGGER

    assert chat.stored() == whole(range(30))[-len(chat.stored()) :]
    assert chat.saver.stats().total.evicted == 60 - len(chat.stored())
    assert all(len(state.values["messages"]) <= 2 * TRIGGER for state in chat.rests())
    told = chat.door.collect(chat.saver, "transcript", chat.config)
    assert [message.text for message in told] == whole(range(30))


def test_an_interrupt_waits_for_another_process(chat: Chat) -> None:
    for i in range(10):
        chat.say(f"turn {i}")
    asked = chat.say("ask me")
    assert [one.value for one in asked["__interrupt__"]] == ["may I ask me?"]
    assert chat.door.get_state(chat.graph, chat.config).next == ("talk",)

    chat.reopen()
    chat.door.invoke(chat.graph, Command(resume="no"), chat.config)

    assert chat.stored()[-2:] == ["ask me", "no to ask me"]
    assert len(chat.stored()) <= 2 * TRIGGER
    assert chat.door.get_state(chat.graph, chat.config).next == ()


def test_history_is_read_and_a_fork_goes_its_own_way(chat: Chat, name: str) -> None:
    for i in range(8):
        chat.say(f"turn {i}")
    then = chat.rests()[2]
    newest = then.values["messages"][-1]
    if name == "redis-sync":  # what it lists holds dicts for messages: see `test_known_faults`
        newest = AIMessage(newest["kwargs"]["content"])
    assert newest.text == "yes to turn 5"

    chat.say("fork", then.config)

    assert chat.stored()[-4:] == ["turn 5", "yes to turn 5", "fork", "yes to fork"]
    for i in range(6):
        chat.say(f"later {i}")
    assert len(chat.stored()) <= 2 * TRIGGER
    assert "turn 7" not in chat.stored()


def test_the_state_is_updated(chat: Chat) -> None:
    for i in range(8):
        chat.say(f"turn {i}")
    newest = chat.door.get_state(chat.graph, chat.config).values["messages"][-1]

    edited = [AIMessage("edited", id=newest.id), HumanMessage("added")]
    chat.door.update_state(chat.graph, chat.config, {"messages": edited}, as_node="end")
    assert chat.stored()[-3:] == ["turn 7", "edited", "added"]

    added = chat.door.get_state(chat.graph, chat.config).values["messages"][-1]
    removed = {"messages": [RemoveMessage(added.id)]}
    chat.door.update_state(chat.graph, chat.config, removed, as_node="end")
    assert chat.stored()[-2:] == ["turn 7", "edited"]


def test_a_thread_that_is_there_already_is_reduced_and_loads_bare(chat: Chat) -> None:
    chat.saver.enabled = False
    for i in range(9):
        chat.say(f"turn {i}")
    assert len(chat.stored()) == 18

    chat.reopen()
    chat.say("turn 9")

    assert chat.stored() == whole(range(7, 10))
    chat.graph.checkpointer = chat.inner
    chat.say("bare")
    assert chat.stored()[-4:] == [*whole(range(9, 10)), "bare", "yes to bare"]


def test_a_thread_is_deleted_where_the_saver_can(chat: Chat, other: Other) -> None:
    for i in range(8):
        chat.say(f"turn {i}")
    thread = chat.config["configurable"]["thread_id"]

    if "delete_thread" not in other.detects:  # as bare: LangGraph's own answer
        with pytest.raises(NotImplementedError):
            chat.door.delete_thread(chat.saver, thread)
        told = chat.door.collect(chat.saver, "transcript", chat.config)
        assert [message.text for message in told] == whole(range(8))
        return

    chat.door.delete_thread(chat.saver, thread)
    assert chat.door.get_tuple(chat.inner, chat.config) is None
    assert chat.door.collect(chat.saver, "transcript", chat.config) == []
