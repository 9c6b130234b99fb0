"""Processes that are killed: each plays a conversation on a saver, or goes on with one.

Run as a script it is a server: a job, one line of JSON, comes in; a fork does it, so nothing is
imported again; one line of JSON says how the fork ended. What happens in a fork is in a log file,
one JSON line an event, so it is there after a kill:

- `saw`: the ids of what the model was shown, and what a provider would refuse of it;
- `ran`: a task, by its id and by what it does;
- `found`: what was stored when the process started, see `Found`;
- `call`: a call of the saver that stores; `result`: the ids that a run gave back;
- `ended`: the list and the other channels at the end; `error`: a traceback.

A job that names a call of the saver, as `["put", "before", 5]`, ends in `kill -9` there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command, Send, interrupt

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import problems

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6), cap=("messages", 9))
"""A turn of two rounds is 8 messages, one of three 11: some are cut before they are done."""

ROUNDS = (1, 2, 3)
"""Rounds of two parallel tool calls, by turn."""

GRACE = 0.04
"""How long a call that kills waits, in seconds, so that calls on their way arrive."""


class Job(NamedTuple):
    scene: str
    kind: str
    door: str
    durability: str
    store: str
    thread: str
    log: str
    wrapped: bool
    kill: tuple[str, str, int] | None = None
    grace: float = GRACE


class Found(NamedTuple):
    """Hold what a killed process left: `done` are tasks whose writes are stored, by id.

    `place` is the same in every thread that was killed at this point.
    """

    done: list[str]
    place: list[Any]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turn: int
    round: int


class Delta(TypedDict):
    messages: Annotated[
        list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)
    ]
    turn: int
    round: int


Log = Callable[..., None]


def opened(path: str) -> Log:
    """Return a function that appends events to a file, each at once."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log(event: str, **values: Any) -> None:
        os.write(file, (json.dumps({"event": event, "pid": os.getpid(), **values}) + "\n").encode())

    return log


def shown(message: Any) -> list[Any]:
    return [message.id, message.content]


# The graphs. What they do next depends on the turn and the round, never on the list: a node that
# runs again after a crash may see a shorter one.


class Graphs:
    def __init__(self, log: Log) -> None:
        self.log = log

    def ran(self, name: str) -> None:
        self.log("ran", task=get_config()["configurable"]["__pregel_task_id"], name=name)

    def model(self, state: Any) -> dict[str, Any]:
        turn, number = state["turn"], state["round"]
        self.ran(f"model {turn}.{number}")
        refused = [f"{p.rule} at {p.index}" for p in problems(state["messages"])]
        self.log("saw", ids=[m.id for m in state["messages"]], refused=refused)
        calls = [
            {"name": name, "args": {}, "id": f"c{turn}.{number}.{name}"}
            for name in (("ask", "look") if number < ROUNDS[turn - 1] else ())
        ]
        message = AIMessage(f"round {number}", id=f"a{turn}.{number}", tool_calls=calls)
        return {"messages": [message], "round": number + 1}

    def tool(self, call: dict[str, Any]) -> dict[str, Any]:
        self.ran(call["id"])
        return {"messages": [self.result(call, f"done {call['id']}")]}

    def asking_tool(self, call: dict[str, Any]) -> dict[str, Any]:
        self.ran(call["id"])
        said = interrupt(call["id"]) if call["name"] == "ask" else "done"
        return {"messages": [self.result(call, f"{said} {call['id']}")]}

    def result(self, call: dict[str, Any], content: str) -> ToolMessage:
        return ToolMessage(content, tool_call_id=call["id"], id=f"r{call['id'][1:]}")

    def tidy(self, state: Any) -> dict[str, Any]:
        """Edit and remove old messages, most of which the store no longer holds."""
        turn, number = state["turn"], state["round"]
        self.ran(f"tidy {turn}.{number}")
        before = [m for m in state["messages"] if m.id and m.id[1:].startswith(f"{turn - 1}")]
        current = [m for m in state["messages"] if m.id and m.id[1:].startswith(f"{turn}.")]
        match number:
            case 1:
                return {"messages": cleared(before)}
            case 2:
                return {"messages": [RemoveMessage(m.id) for m in before if m.id]}
            case _:
                return {"messages": cleared(current)}

    def route(self, state: Any) -> Any:
        calls = getattr(state["messages"][-1], "tool_calls", [])
        return [Send("tool", call) for call in calls] or END

    def route_and_tidy(self, state: Any) -> Any:
        sends = self.route(state)
        return sends if sends == END else [*sends, "tidy"]

    def loop(self, tool: Callable[..., Any], route: Callable[..., Any], state: Any = State) -> Any:
        builder = StateGraph(state)
        builder.add_node("model", self.model)
        builder.add_node("tool", tool)
        builder.add_node("tidy", self.tidy)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", route, ["tool", "tidy", END])
        builder.add_edge("tool", "model")
        return builder

    def agent(self, saver: Any) -> Any:
        return self.loop(self.tool, self.route).compile(checkpointer=saver)

    def edits(self, saver: Any) -> Any:
        return self.loop(self.tool, self.route_and_tidy).compile(checkpointer=saver)

    def asking(self, saver: Any) -> Any:
        return self.loop(self.asking_tool, self.route).compile(checkpointer=saver)

    def delta(self, saver: Any) -> Any:
        return self.loop(self.tool, self.route, Delta).compile(checkpointer=saver)

    def nested(self, saver: Any, memory: bool | None = None) -> Any:
        def note(state: Any) -> dict[str, Any]:
            self.ran("note")
            return {}

        builder = StateGraph(State)
        builder.add_node("agent", self.loop(self.tool, self.route).compile(checkpointer=memory))
        builder.add_node("note", note)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", "note")
        return builder.compile(checkpointer=saver)

    def nested_with_memory(self, saver: Any) -> Any:
        return self.nested(saver, memory=True)


def cleared(messages: list[Any]) -> list[Any]:
    results = [m for m in messages if m.type == "tool"]
    return [m.model_copy(update={"content": f"[cleared] {m.tool_call_id}"}) for m in results]


SCENES = ("agent", "edits", "asking", "delta", "nested", "nested_with_memory")


# The savers: any of LangGraph's, that kills its process at one call


class Killer:
    """Count calls of the saver, and kill the process at one of them."""

    def __init__(self, kill: tuple[str, str, int] | None, grace: float, log: Log) -> None:
        self.kill, self.grace, self.log = kill, grace, log
        self.counts: dict[str, int] = {}

    def count(self, method: str, config: Any) -> int:
        number = self.counts[method] = self.counts.get(method, 0) + 1
        namespace = config["configurable"].get("checkpoint_ns", "")
        self.log("call", method=method, number=number, namespace=namespace)
        return number

    def die(self, *point: Any) -> None:
        if point == self.kill:
            time.sleep(self.grace)
            os.kill(os.getpid(), signal.SIGKILL)

    async def adie(self, *point: Any) -> None:
        if point == self.kill:
            await asyncio.sleep(self.grace)
            os.kill(os.getpid(), signal.SIGKILL)


def killed(kind: type[Any], killer: Killer) -> type[Any]:
    """Return a class of saver with a killer in its four methods that store."""

    def around(name: str) -> Callable[..., Any]:
        original = getattr(kind, name)

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            number = killer.count(name, args[0])
            killer.die(name, "before", number)
            result = original(self, *args, **kwargs)
            killer.die(name, "after", number)
            return result

        async def arun(self: Any, *args: Any, **kwargs: Any) -> Any:
            number = killer.count(name[1:], args[0])
            await killer.adie(name[1:], "before", number)
            result = await original(self, *args, **kwargs)
            await killer.adie(name[1:], "after", number)
            return result

        made = arun if name.startswith("a") else run
        made.__wrapped__ = original  # type: ignore[attr-defined]  # LangGraph looks for `task_path`
        return made

    names = ("put", "put_writes", "aput", "aput_writes")
    return type(kind.__name__, (kind,), {name: around(name) for name in names})


@contextlib.contextmanager
def sync_saver(job: Job, killer: Killer) -> Iterator[BaseCheckpointSaver[Any]]:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    kind = {"sqlite": SqliteSaver, "postgres": PostgresSaver}[job.kind]
    with killed(kind, killer).from_conn_string(job.store) as saver:
        saver.setup()
        yield saver


@contextlib.asynccontextmanager
async def async_saver(job: Job, killer: Killer) -> Any:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    kind = {"sqlite": AsyncSqliteSaver, "postgres": AsyncPostgresSaver}[job.kind]
    async with killed(kind, killer).from_conn_string(job.store) as saver:
        await saver.setup()
        yield saver


# Playing a conversation to its end, wherever it stands


def graph_of(job: Job, inner: Any, log: Log) -> Any:
    saver = inner
    if job.wrapped:
        reducer = _messages_delta_reducer if job.scene == "delta" else None
        saver = ReducingSaver(inner, WINDOW, archive=Discard(), messages_reducer=reducer)
    return getattr(Graphs(log), job.scene)(saver)


def next_input(state: Any) -> Any:
    """Return what goes on with a thread: the next turn, an answer, nothing; or raise at its end."""
    if state.interrupts:
        return Command(resume="yes")
    if state.tasks:  # `next` leaves out those whose writes are stored
        return None
    turn = state.values.get("turn", 0) + 1
    if turn > len(ROUNDS):
        raise StopIteration
    question = HumanMessage(f"question {turn}", id=f"h{turn}")
    return {"messages": [question], "turn": turn, "round": 0}


def found(tuples: list[Any]) -> dict[str, Any]:
    """Say what is stored of a thread, from its checkpoints, newest first."""
    heads: dict[str, Any] = {}
    for each in tuples:
        heads.setdefault(each.config["configurable"].get("checkpoint_ns", ""), each)
    done, place = [], []
    for namespace, head in heads.items():
        by_task: dict[str, list[str]] = {}
        for task, channel, _ in head.pending_writes or ():
            by_task.setdefault(task, []).append(channel)
        waits = {"__interrupt__", "__error__", "__resume__"}
        done += [task for task, channels in by_task.items() if not waits.intersection(channels)]
        name = "|".join(part.partition(":")[0] for part in namespace.split("|"))
        values = head.checkpoint["channel_values"]
        place.append([name, head.metadata["step"], values.get("turn"), sorted(by_task.values())])
    return Found(done, sorted(place, key=repr))._asdict()


def ended(state: Any) -> dict[str, Any]:
    others = {name: value for name, value in state.values.items() if name != "messages"}
    return {"messages": [shown(m) for m in state.values["messages"]], "others": others}


def stored(tuples: list[Any]) -> list[Any]:
    """Return the ids in every stored list, with its namespace."""
    lists = []
    for each in tuples:
        held = each.checkpoint["channel_values"].get("messages")
        if isinstance(held, list):
            namespace = each.config["configurable"].get("checkpoint_ns", "")
            lists.append([namespace, [m.id for m in held]])
    return lists


def play(job: Job, log: Log) -> None:
    config = {"configurable": {"thread_id": job.thread}}
    with sync_saver(job, Killer(job.kill, job.grace, log)) as inner:
        graph = graph_of(job, inner, log)
        log("found", **found([*inner.list(config)]))
        while True:
            state = graph.get_state(config)
            try:
                given = next_input(state)
            except StopIteration:
                break
            result = graph.invoke(given, config, durability=job.durability)
            log("result", ids=[m.id for m in result["messages"]])
        log("ended", stored=stored([*inner.list(config)]), **ended(state))


async def aplay(job: Job, log: Log) -> None:
    config = {"configurable": {"thread_id": job.thread}}
    async with async_saver(job, Killer(job.kill, job.grace, log)) as inner:
        graph = graph_of(job, inner, log)
        log("found", **found([each async for each in inner.alist(config)]))
        while True:
            state = await graph.aget_state(config)
            try:
                given = next_input(state)
            except StopIteration:
                break
            result = await graph.ainvoke(given, config, durability=job.durability)
            log("result", ids=[m.id for m in result["messages"]])
        everything = [each async for each in inner.alist(config)]
        log("ended", stored=stored(everything), **ended(state))


def run(job: Job) -> None:
    log = opened(job.log)
    try:
        if job.door == "async":
            asyncio.run(aplay(job, log))
        else:
            play(job, log)
    except BaseException:
        log("error", text=traceback.format_exc())
        raise


def serve() -> None:
    """Do jobs, each in a fork, until there are no more."""
    for line in sys.stdin:
        given = json.loads(line)
        job = Job(**{**given, "kill": tuple(given["kill"]) if given["kill"] else None})
        child = os.fork()
        if not child:
            code = 1
            signal.alarm(60)
            with contextlib.suppress(BaseException):
                run(job)
                code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201


class Server:
    """Run this file as a server, and give it jobs."""

    def __init__(self) -> None:
        import subprocess

        source = Path(__file__).parents[2] / "src"
        path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def do(self, job: Job) -> tuple[int, list[dict[str, Any]]]:
        """Return how a job ended (0, or minus a signal) and its events."""
        assert self._process.stdin
        assert self._process.stdout
        before = os.path.getsize(job.log) if os.path.exists(job.log) else 0
        self._process.stdin.write(json.dumps(job._asdict()) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())["status"]
        with open(job.log, encoding="utf-8") as file:
            file.seek(before)
            return status, [json.loads(line) for line in file]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    serve()
