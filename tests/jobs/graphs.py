"""Ten kinds of real graphs, each stopped where somebody may compact its thread, and gone on with.

played = PLAYS["send"](saver)
played.start()            # some turns, then it stops
...                       # compact
played.go_on()            # what the thread does next; `nodes` says which nodes ran
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Send, interrupt

Saver = BaseCheckpointSaver[Any]
TURNS = 6


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    seen: Annotated[list[str], operator.add]


class DeltaState(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]
    seen: Annotated[list[str], operator.add]


@dataclass
class Play:
    """Hold a graph with its script. `waits`: it stops in the middle of a run."""

    saver: Saver
    thread: str = "t"
    waits: bool = True
    reducer: Any = None
    nodes: list[str] = field(default_factory=list)
    fails: bool = False
    graph: Any = None
    steps: tuple[Callable[[Any, Any], Any], ...] = ()
    more: tuple[Callable[[Any, Any], Any], ...] = ()

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.thread}}

    def start(self) -> None:
        for i in range(TURNS):
            self.graph.invoke(turn(i), self.config)
        for step in self.steps:
            step(self.graph, self.config)

    def go_on(self) -> Any:
        self.nodes.clear()
        for step in self.more:
            step(self.graph, self.config)
        return self.graph.get_state(self.config)

    def node(self, name: str, then: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            self.nodes.append(name)
            return said(name, state) if then is None else then(state)

        return run


def turn(i: int) -> Any:
    return {"messages": [HumanMessage(f"question {i}", id=f"h{i}")], "seen": []}


def said(name: str, state: Any) -> Any:
    label = newest(state)
    return {"messages": [AIMessage(f"{name} {label}", id=f"{name}.{label}")], "seen": [name]}


def newest(state: Any) -> str:
    return next(m.id for m in reversed(state["messages"]) if m.type == "human")


def is_last(state: Any) -> bool:
    return newest(state) == f"h{TURNS}"


def ask(graph: Any, config: Any) -> None:
    graph.invoke(turn(TURNS), config)


def ask_next(graph: Any, config: Any) -> None:
    graph.invoke(turn(TURNS + 1), config)


def ask_and_fail(graph: Any, config: Any) -> None:
    try:
        graph.invoke(turn(TURNS), config)
    except RuntimeError:
        return
    raise AssertionError("it did not fail")


def resume(graph: Any, config: Any) -> None:
    graph.invoke(Command(resume="yes"), config)


def again(graph: Any, config: Any) -> None:
    graph.invoke(None, config)


def chain(play: Play, *nodes: tuple[str, Any], state: Any = State, **settings: Any) -> Play:
    builder = StateGraph(state)
    before = START
    for name, run in nodes:
        builder.add_node(name, run)
        builder.add_edge(before, name)
        before = name
    play.graph = builder.compile(checkpointer=play.saver, **settings)
    return play


def finished(saver: Saver) -> Play:
    play = Play(saver, waits=False, more=(ask, ask_next))
    return chain(play, ("a", play.node("a")), ("b", play.node("b")))


def interrupted_tool(saver: Saver) -> Play:
    play = Play(saver, steps=(ask,), more=(resume, ask_next))

    def model(state: Any) -> Any:
        label = newest(state)
        call = {"name": "look", "args": {}, "id": f"c.{label}"}
        return {"messages": [AIMessage("", id=f"m.{label}", tool_calls=[call])], "seen": ["model"]}

    def tool(state: Any) -> Any:
        label = newest(state)
        answer = interrupt("sure?") if is_last(state) else "found"
        said = ToolMessage(answer, id=f"t.{label}", tool_call_id=f"c.{label}")
        return {"messages": [said], "seen": ["tool"]}

    return chain(
        play,
        ("model", play.node("model", model)),
        ("tool", play.node("tool", tool)),
        ("reply", play.node("reply")),
    )


def interrupted_before(saver: Saver) -> Play:
    play = Play(saver, more=(again, ask_next, again))
    play = chain(play, ("a", play.node("a")), ("b", play.node("b")), interrupt_before=["b"])
    # Every turn waits for a second call.
    play.steps = (again, ask)
    return play


def interrupted_after(saver: Saver) -> Play:
    play = Play(saver, more=(again, ask_next, again))
    play = chain(play, ("a", play.node("a")), ("b", play.node("b")), interrupt_after=["a"])
    play.steps = (again, ask)
    return play


def _parallel(play: Play, right: Callable[[Any], Any]) -> Play:
    builder = StateGraph(State)
    builder.add_node("left", play.node("left"))
    builder.add_node("right", play.node("right", right))
    builder.add_node("join", play.node("join"))
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "join")
    play.graph = builder.compile(checkpointer=play.saver)
    return play


def parallel_waiting(saver: Saver) -> Play:
    play = Play(saver, steps=(ask,), more=(resume, ask_next))

    def right(state: Any) -> Any:
        if is_last(state):
            interrupt("sure?")
        return said("right", state)

    return _parallel(play, right)


def parallel_crashed(saver: Saver) -> Play:
    play = Play(saver, steps=(ask_and_fail,), more=(again, ask_next))

    def right(state: Any) -> Any:
        if is_last(state) and not play.fails:
            play.fails = True
            # LangGraph drops what a task returns while another one's error ends the run.
            while not _wrote(play, "left"):
                time.sleep(0.01)
            raise RuntimeError("crash")
        return said("right", state)

    return _parallel(play, right)


def _wrote(play: Play, name: str) -> bool:
    writes = play.saver.get_tuple(play.config).pending_writes
    return any(channel == "seen" and value == [name] for _, channel, value in writes)


def sent(saver: Saver) -> Play:
    play = Play(saver, steps=(ask,), more=(resume, ask_next))

    def work(state: Any) -> Any:
        play.nodes.append(f"work {state['part']}")
        if state["part"] == 3 and state["label"] == f"h{TURNS}":
            interrupt("sure?")
        name = f"work{state['part']}.{state['label']}"
        return {"messages": [AIMessage(name, id=name)], "seen": [f"work {state['part']}"]}

    builder = StateGraph(State)
    builder.add_node("plan", play.node("plan"))
    builder.add_node("work", work)
    builder.add_node("sum", play.node("sum"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda s: [Send("work", {"part": i, "label": newest(s)}) for i in range(4)]
    )
    builder.add_edge("work", "sum")
    play.graph = builder.compile(checkpointer=play.saver)
    return play


def _nested(play: Play, checkpointer: Any) -> Play:
    def wait(state: Any) -> Any:
        if is_last(state):
            interrupt("sure?")
        return said("second", state)

    builder = StateGraph(State)
    builder.add_node("first", play.node("first"))
    builder.add_node("second", play.node("second", wait))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    child = builder.compile(checkpointer=checkpointer)
    return chain(play, ("before", play.node("before")), ("child", child), ("a", play.node("a")))


def subgraph(saver: Saver) -> Play:
    return _nested(Play(saver, steps=(ask,), more=(resume, ask_next)), None)


def subgraph_with_memory(saver: Saver) -> Play:
    return _nested(Play(saver, steps=(ask,), more=(resume, ask_next)), True)


def subgraph_with_memory_finished(saver: Saver) -> Play:
    return _nested(Play(saver, waits=False, more=(ask_next, ask_next)), True)


def pregel(saver: Saver) -> Play:
    play = Play(saver, waits=False, more=(ask, ask_next))

    def count(messages: Any) -> Any:
        play.nodes.append("count")
        return f"{len(messages) > 0}"

    play.graph = Pregel(
        nodes={"count": NodeBuilder().subscribe_only("messages").do(count).write_to("counted")},
        channels={
            "messages": BinaryOperatorAggregate(list, add_messages),
            "counted": LastValue(str),
        },
        input_channels=["messages"],
        output_channels=["counted", "messages"],
        stream_channels=["counted", "messages"],
        checkpointer=saver,
    )
    return play


def forked(saver: Saver) -> Play:
    play = Play(saver, waits=False, more=(ask, ask_next))
    chain(play, ("a", play.node("a")), ("b", play.node("b")))

    def fork(graph: Any, config: Any) -> None:
        history = [one for one in graph.get_state_history(config) if not one.next]
        old = history[2].config
        graph.invoke({"messages": [HumanMessage("other", id="h.other")], "seen": []}, old)
        back = next(
            one for one in graph.get_state_history(config) if one.config == history[0].config
        )
        graph.update_state(back.config, {"messages": [AIMessage("noted", id="noted")]}, as_node="b")

    play.steps = (fork,)
    return play


def delta(saver: Saver) -> Play:
    play = Play(saver, waits=False, reducer=_messages_delta_reducer, more=(ask, ask_next))
    return chain(play, ("a", play.node("a")), ("b", play.node("b")), state=DeltaState)


PLAYS: dict[str, Callable[[Saver], Play]] = {
    "finished": finished,
    "interrupt in a tool": interrupted_tool,
    "interrupt before": interrupted_before,
    "interrupt after": interrupted_after,
    "parallel, right waits": parallel_waiting,
    "parallel, right crashed": parallel_crashed,
    "send, one of four waits": sent,
    "subgraph at its second node": subgraph,
    "subgraph with memory": subgraph_with_memory,
    "subgraph with memory, finished": subgraph_with_memory_finished,
    "pregel on messages": pregel,
    "fork": forked,
    "delta channel": delta,
}
