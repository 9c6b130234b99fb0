"""A database that refuses large items: the bare saver fails for ever, the wrapped one goes on.

The windows are those of the README's table, in the same proportion to what the saver holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from others.conftest import params
from services.door import Door
from services.others import OTHERS, Other

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import problems

Saver = BaseCheckpointSaver[Any]
pytestmark = pytest.mark.parametrize(
    "name", params(*(name for name in OTHERS if OTHERS[name].largest)), indirect=True
)
RESULTS = 6
"""So many tool results of one size are too much for one item; four fifths of them are not."""


def window(other: Other) -> Window:
    limit = other.largest or 0
    return Window(("bytes", limit // 4), ("bytes", limit // 2), cap=("bytes", limit * 2 // 3))


def searching(saver: Saver, other: Other) -> Any:
    """Build an agent that makes as many calls as the newest human message says, one by one."""
    size = (other.largest or 0) * 12 // 10 // RESULTS

    def agent(state: MessagesState) -> Any:
        messages = state["messages"]
        start = max(i for i, message in enumerate(messages) if message.type == "human")
        made = sum(message.type == "tool" for message in messages[start:])
        call = {"name": "search", "args": {}, "id": f"{messages[start].id}.{made}"}
        calls = [call] if made < int(messages[start].text) else []
        return {"messages": [AIMessage("" if calls else "done", tool_calls=calls)]}

    def tools(state: MessagesState) -> Any:
        call = state["messages"][-1].tool_calls[0]["id"]
        return {"messages": [ToolMessage("x" * size, tool_call_id=call)]}

    def more(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", more, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize(
    "turns", [[1] * (RESULTS + 1), [RESULTS + 1]], ids=["chat", "one long run"]
)
def test_a_bare_thread_grows_too_large_and_a_wrapped_one_does_not(
    make_other: Callable[[], Saver], door: Door, other: Other, turns: list[int]
) -> None:
    config: Any = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 100}

    def play(saver: Saver) -> None:
        graph = searching(saver, other)
        for n, calls in enumerate(turns):
            message = HumanMessage(str(calls), id=f"h{n}")
            door.invoke(graph, {"messages": [message]}, config)

    bare = make_other()
    with pytest.raises(Exception, match=r"too large|exceeded the maximum|larger than"):
        play(bare)

    saver = ReducingSaver(make_other(), window(other), archive=Discard())
    play(saver)
    found = door.get_tuple(saver.inner, config)
    messages = found.checkpoint["channel_values"]["messages"]
    assert messages[-1].text == "done"
    assert not problems(messages)
    assert sum(len(message.text) for message in messages) <= (other.largest or 0)
    assert saver.stats().total.evicted > 0
    assert saver.stats().total.failures == 0
