"""Scenes: what people do with graphs, each a small graph and a script of steps.

A scene runs on any saver through either door and leaves a `Record`: what every step returned, which
nodes ran, what the model was shown, and everything that the saver stored.

    record = play(SCENES["chat"], saver, door)

Two records of one scene are compared by `plain(record)`, where ids, times and versions are renamed
by their first appearance, or by `alike(bare, kept)`, where message lists may also be shorter.

Models are scripted: `ask("a", 2, 1)` is a human message that makes the model call two tools, then
one, then answer; what it does depends on the newest human message alone. Contents are unique, and
so are ids, but for those of tool results, which LangGraph makes up.
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer, add_messages
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, Overwrite, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from services.door import Door

Saver = BaseCheckpointSaver[Any]
Messages = list[Any]


def ask(label: str, *rounds: int) -> HumanMessage:
    """Say a turn: the model makes as many tool calls as each number says, round by round."""
    return HumanMessage(f"{label}: {' '.join(map(str, rounds))}", id=f"h.{label}")


def say(label: str, text: str = "said") -> AIMessage:
    return AIMessage(f"{text} {label}", id=f"{text}.{label}")


def newest(messages: Sequence[Any]) -> str:
    """Name the turn that is going on."""
    return next(m.content for m in reversed(messages) if m.type == "human").partition(":")[0]


class Scripted(BaseChatModel):
    """A model that does what the newest human message says, and notes what it was shown."""

    seen: Any
    name_: str = ""
    tool: str = "look"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Messages, *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append([*messages])
        start = max(i for i, m in enumerate(messages) if m.type == "human")
        label, _, script = messages[start].content.partition(":")
        rounds = [int(number) for number in script.split()]
        done = sum(m.type == "ai" for m in messages[start:])
        calls = [
            {"name": self.tool, "args": {"query": name}, "id": name}
            for name in self._queries(label, done, rounds)
        ]
        text = f"{self.name_}{label} round {done}" if calls else f"{self.name_}{label} is done"
        message = AIMessage(text, id=f"ai.{self.name_}{label}.{done}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _queries(self, label: str, done: int, rounds: list[int]) -> list[str]:
        number = rounds[done] if done < len(rounds) else 0
        return [f"{self.name_}{label}.{done}.{i}" for i in range(number)]


class Builder(StateGraph):  # type: ignore[type-arg]
    """A `StateGraph` that notes which of its functions run."""

    stage: Stage

    def add_node(self, node: Any, action: Any = None, **kwargs: Any) -> Any:
        if callable(action) and not hasattr(action, "invoke"):
            action = self.stage.noted(node, action)
        return super().add_node(node, action, **kwargs)

    def chain(self, *nodes: tuple[str, Any]) -> Any:
        """Add nodes that run one after the other, from the start to the end."""
        for name, action in nodes:
            self.add_node(name, action)
        names = [START, *(name for name, _ in nodes), END]
        for one, two in itertools.pairwise(names):
            self.add_edge(one, two)
        return self


class Stage:
    """A saver behind a door, one thread on it, and what happens there."""

    def __init__(self, saver: Saver, door: Door, *, long: bool = False) -> None:
        self.saver, self.door, self.long = saver, door, long
        self.thread = str(uuid.uuid4())
        self.graph: Any = None
        self.outputs: list[tuple[str, Any]] = []
        self.ran: list[tuple[int, int, str]] = []
        self.seen: list[Messages] = []

    # Making graphs

    def builder(self, state: Any = MessagesState) -> Any:
        builder = Builder(state)
        builder.stage = self
        return builder

    def compile(self, builder: Any, **kwargs: Any) -> None:
        self.graph = builder.compile(checkpointer=self.saver, **kwargs)

    def noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.note(name)
            return function(*args, **kwargs)

        return run

    def note(self, name: str) -> None:
        """Note that something ran, in which step of the script and super-step of the run."""
        self.ran.append((len(self.outputs), get_config()["metadata"]["langgraph_step"], name))

    def model(self, name: str = "", tool: str = "look") -> Scripted:
        return Scripted(seen=_Seen(self.seen), name_=name, tool=tool)

    def look(self) -> Any:
        @tool
        def look(query: str) -> str:
            """Look something up."""
            self.note(f"look {query}")
            return f"found {query}"

        return look

    # Steps

    @property
    def config(self) -> dict[str, Any]:
        return {"configurable": {"thread_id": self.thread}}

    def _step(self, kind: str, output: Any) -> Any:
        self.outputs.append((kind, copy.deepcopy(output)))
        return output

    def invoke(self, given: Any, config: Any = None, **kwargs: Any) -> Any:
        if isinstance(given, BaseMessage):
            given = {"messages": [given]}
        output = self.door.invoke(self.graph, given, config or self.config, **kwargs)
        return self._step("invoke", output)

    def fails(self, error: type[Exception], given: Any, **kwargs: Any) -> None:
        """Run into an error of a node."""
        try:
            self.invoke(given, **kwargs)
        except error as raised:
            self._step("fails", str(raised))
        else:
            raise AssertionError(f"no {error.__name__} was raised")

    def resume(self, value: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.invoke(Command(resume=value), config, **kwargs)

    def stream(self, given: Any, **kwargs: Any) -> Any:
        output = self.door.stream(self.graph, given, self.config, **kwargs)
        return self._step("stream", output)

    def state(self, config: Any = None, **kwargs: Any) -> Any:
        output = self.door.get_state(self.graph, config or self.config, **kwargs)
        return self._step("state", output)

    def history(self) -> list[Any]:
        """Give the states of the thread, newest first."""
        output = self.door.get_state_history(self.graph, self.config)
        self._step("history", output)
        return output

    def update(self, values: Any, config: Any = None, **kwargs: Any) -> Any:
        output = self.door.update_state(self.graph, config or self.config, values, **kwargs)
        return self._step("update", output)

    def bulk_update(self, supersteps: Any, config: Any = None) -> Any:
        output = self.door.bulk_update_state(self.graph, config or self.config, supersteps)
        return self._step("bulk update", output)


class _Seen(list[Any]):
    """Keep pydantic from copying the list that a model notes in."""

    def __init__(self, target: list[Any]) -> None:
        super().__init__()
        self.target = target

    def append(self, messages: Any) -> None:
        self.target.append(messages)

    def __deepcopy__(self, memo: Any) -> _Seen:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class Line:
    """Put checkpoints without a graph, as LangGraph's loop does: each time the whole list."""

    def __init__(self, saver: Saver, door: Door, thread: str = "t", namespace: str = "") -> None:
        self.saver, self.door = saver, door
        self.config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
        self.versions: dict[str, Any] = {}
        self.step = -1

    def put(
        self, messages: Any, *, rests: bool = False, moved: bool = True, **values: Any
    ) -> CheckpointTuple:
        """Put one checkpoint after the last one, and give what the inner saver holds of it."""
        checkpoint = self.checkpoint(messages, rests=rests, **values)
        named = {*checkpoint["channel_values"]} - (set() if moved else {"messages"})
        new = self.saver.get_next_version(max(self.versions.values(), default=None), None)
        versions = dict.fromkeys(named, new)
        self.versions = {**self.versions, **versions}
        checkpoint["channel_versions"] = self.versions
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = self.door.put(self.saver, self.config, checkpoint, metadata, versions)
        return self.door.get_tuple(getattr(self.saver, "inner", self.saver), self.config)

    def checkpoint(self, messages: Any, *, rests: bool = False, **values: Any) -> Any:
        self.step += 1
        waiting = {} if rests else {"branch:to:next": None}
        return {
            **empty_checkpoint(),
            "id": str(uuid6(clock_seq=self.step)),
            "channel_values": {"messages": messages, **waiting, **values},
        }


# Records, and how they are compared


@dataclass
class Record:
    """Hold what a scene left: `stored` are the checkpoints, oldest first in each namespace."""

    outputs: list[tuple[str, Any]]
    ran: list[tuple[int, int, str]]
    seen: list[Messages]
    stored: list[CheckpointTuple]
    stage: Stage

    def lists(self, channel: str = "messages") -> list[Messages]:
        """Give the stored lists of a channel, one for each checkpoint that has one."""
        held = (read(found, channel) for found in self.stored)
        return [value for value in held if value is not None]


def read(found: CheckpointTuple, channel: str = "messages") -> Messages | None:
    """Give the list in a checkpoint, if it has one: `"messages"`, or `"__previous__.messages"`."""
    name, _, key = channel.partition(".")
    value = found.checkpoint["channel_values"].get(name)
    value = value.get(key) if key and isinstance(value, dict) else value
    return value if isinstance(value, list) else None


def namespace(found: CheckpointTuple) -> str:
    return found.config["configurable"].get("checkpoint_ns", "")


class Scene(NamedTuple):
    """Hold a script, where its graph keeps messages, and what is special about it.

    Without `ids` a message is known as the object it is, and only while a run goes on.
    """

    name: str
    run: Callable[[Stage], None]
    channels: tuple[str, ...] = ("messages",)
    resumes: bool = False
    delta: bool = False
    ids: bool = True


def play(
    scene: Scene, saver: Saver, door: Door, *, inner: Any = None, long: bool = False
) -> Record:
    """Run a scene on a new thread of a saver; what is stored is read from `inner`."""
    stage = Stage(saver, door, long=long)
    scene.run(stage)
    stage.state()
    stage.history()
    stored = checkpoints(saver if inner is None else inner, door, stage.thread)
    return Record(stage.outputs, sorted(stage.ran), stage.seen, stored, stage)


def checkpoints(saver: Saver, door: Door, thread: str) -> list[CheckpointTuple]:
    """Give everything stored of a thread: namespace by namespace, each oldest first."""
    found: dict[str, list[CheckpointTuple]] = {}
    for each in reversed(door.list(saver, {"configurable": {"thread_id": thread}})):
        found.setdefault(namespace(each), []).append(each)
    # Subgraphs may run at the same time: by name first, then by age (ids sort by time).
    ordered = sorted(found, key=lambda ns: (_without_ids(ns), found[ns][0].checkpoint["id"]))
    return [each for ns in ordered for each in found[ns]]


def plain(record: Record) -> Any:
    """Give a record as plain data that is the same for every run of a scene."""
    plainer = _Plainer()
    return {
        "stored": [plainer.plain(found) for found in record.stored],
        "outputs": plainer.plain(record.outputs),
        "ran": record.ran,
        "seen": plainer.plain(record.seen),
    }


def loose(record: Record, channels: Sequence[str] = ("messages",)) -> Any:
    """Give a record as `plain` does, less what moves with a reduced list and made-up ids.

    That is the version of the list's own channel, and the wrapper's own key in the metadata.
    """
    plainer = _Plainer(moving={name.partition(".")[0] for name in channels})
    return {
        "stored": [plainer.plain(found) for found in record.stored],
        "outputs": plainer.plain(record.outputs),
        "ran": record.ran,
        "seen": plainer.plain(record.seen),
    }


class Shown(NamedTuple):
    """Hold a message as plain data."""

    type: str
    id: str | None
    content: Any
    rest: Any


_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_HEX = r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"
_VERSION = r"\d{32}\.[\d.e+-]+"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:\+00:00|Z)?"
_MADE_UP = re.compile("|".join((_VERSION, _UUID, _HEX, _TIME)))


def _without_ids(text: str) -> str:
    return _MADE_UP.sub("?", text)


class _Plainer:
    """Turn what LangGraph returns and stores into plain data, renaming what is made up."""

    def __init__(self, *, masked: bool = False, moving: Any = None) -> None:
        self.names: dict[str, str] = {}
        self.masked, self.moving = masked, moving
        self.ids = False

    def rename(self, found: re.Match[str]) -> str:
        text = found.group()
        if self.masked or "T" in text:
            return "?"
        return self.names.setdefault(text, f"<{len(self.names)}>")

    def plain(self, value: Any) -> Any:
        match value:
            case str():
                return _MADE_UP.sub(self.rename, value)
            case None | bool() | int() | float() | bytes():
                return value
            case BaseMessage():
                return self._message(value)
            case CheckpointTuple():
                return self._checkpoint(value)
            case dict():
                return self._dict(value)
            case tuple() if hasattr(value, "_asdict"):
                return self._dict(value._asdict())
            case list() | tuple():
                return [self.plain(item) for item in value]
            case set() | frozenset():
                return {"set": sorted(map(str, value))}
            case BaseException() | type():
                return repr(value)
        return [type(value).__name__, self.plain(_attributes(value))]

    def _dict(self, value: Mapping[Any, Any]) -> Any:
        given = {str(key): item for key, item in value.items()}
        if isinstance(given.get("role"), str) and "content" in given:
            return Shown(given["role"], None, given["content"], None)
        if self.moving is not None:
            given.pop("reducing_saver", None)  # in metadata, which states show too
        keys = given if any(map(_MADE_UP.search, given)) else sorted(given)
        return {self.plain(key): self.plain(given[key]) for key in keys}

    def _message(self, message: BaseMessage) -> Shown:
        own: str | None = message.id
        if not self.ids:
            own = _without_ids(own or "?")
        rest = {
            "name": message.name,
            "tool_calls": getattr(message, "tool_calls", None),
            "tool_call_id": getattr(message, "tool_call_id", None),
            "additional_kwargs": message.additional_kwargs,
        }
        own = own and self.plain(own)
        return Shown(message.type, own, self.plain(message.content), self.plain(rest))

    def _checkpoint(self, found: CheckpointTuple) -> Any:
        checkpoint: dict[str, Any] = {**found.checkpoint}
        seen = {node: {**versions} for node, versions in checkpoint["versions_seen"].items()}
        versions = {**checkpoint["channel_versions"]}
        if self.moving is not None:
            seen.pop("__snapshot_bumps__", None)
            for channels in (versions, *seen.values()):
                for name in self.moving & {*channels}:
                    channels[name] = "moving"
        checkpoint["versions_seen"] = {n: self._versions(v) for n, v in seen.items()}
        checkpoint["channel_versions"] = self._versions(versions)
        # Elsewhere a message may have no id yet: LangGraph gives it one in place, later. And a list
        # that lacks messages would rename the ids of the others.
        self.ids = self.moving is None
        values = self.plain(checkpoint.pop("channel_values"))
        self.ids = False
        return {
            "config": self.plain(found.config),
            "parent": self.plain(found.parent_config),
            "values": values,
            "checkpoint": self.plain(checkpoint),
            "metadata": self.plain(found.metadata),
            "pending": self._pending(found.pending_writes or []),
        }

    def _versions(self, versions: Mapping[str, Any]) -> dict[str, str]:
        named = {name: str(version) for name, version in sorted(versions.items())}
        return {
            name: self.names.setdefault(f"v{version}", f"v{len(self.names)}")
            if version.isdigit()  # a saver with whole numbers
            else self.plain(version)
            for name, version in named.items()
        }

    def _pending(self, writes: Sequence[Any]) -> Any:
        """Give the writes task by task; tasks have no order of their own in a store."""
        tasks: dict[str, list[Any]] = {}
        for name, channel, value in writes:
            tasks.setdefault(name, []).append((channel, value))
        masked = _Plainer(masked=True)
        ordered = sorted(tasks.items(), key=lambda pair: repr(masked.plain(pair)))
        return [self.plain(pair) for pair in ordered]


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**slots, **getattr(value, "__dict__", {})}


def differences(bare: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Tell where plain data differ by more than lists of messages that are shorter."""
    if isinstance(bare, list) and isinstance(kept, list) and _of_messages(bare):
        if not subsequence(kept, bare):
            yield f"{path}: {brief(kept)} is no part of {brief(bare)}"
        return
    if isinstance(bare, dict) and isinstance(kept, dict) and bare.keys() == kept.keys():
        for key in bare:
            yield from differences(bare[key], kept[key], f"{path}/{key}")
        return
    if isinstance(bare, list) and isinstance(kept, list) and len(bare) == len(kept):
        for i, (one, other) in enumerate(zip(bare, kept, strict=True)):
            yield from differences(one, other, f"{path}/{i}")
        return
    if bare != kept:
        yield f"{path}: {bare!r} != {kept!r}"


def _of_messages(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, Shown) for item in value)


def subsequence(short: Sequence[Any], long: Sequence[Any]) -> bool:
    """Tell whether one list is the other with items left out."""
    rest = iter(long)
    return all(any(item == other for other in rest) for item in short)


def brief(messages: Sequence[Any]) -> list[str]:
    """Name messages shortly, for people."""
    named = [m.values() if isinstance(m, dict) else (m.type, m.content or m.id) for m in messages]
    return [":".join(map(str, names)) for names in named]


def key(message: Any) -> tuple[Any, ...]:
    """Name a message by what it says, as ids may be made up."""
    if isinstance(message, dict):
        return (message["role"], message["content"])
    return (message.type, message.content, getattr(message, "tool_call_id", None))


# The scenes

SCENES: dict[str, Scene] = {}


def scene(**settings: Any) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    def add(run: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENES[run.__name__] = Scene(run.__name__, run, **settings)
        return run

    return add


def reply(state: Any) -> Any:
    return {"messages": [say(newest(state["messages"]))]}


def turns(stage: Stage, *plans: tuple[int, ...], start: int = 0, **kwargs: Any) -> None:
    for i, rounds in enumerate(plans, start):
        stage.invoke(ask(f"t{i}", *rounds), **kwargs)


# A join gives the saver its live set, which changes while it is stored (langgraph 1.2.24), unless
# each step waits for the store.
STEADY = {"durability": "sync"}


@scene()
def chat(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply)))
    turns(stage, *[()] * 5)


@scene()
def system_message(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply)))
    stage.invoke({"messages": [SystemMessage("be brief", id="sys"), ask("first")]})
    turns(stage, *[()] * 4)


@scene()
def history_given(stage: Stage) -> None:
    """The first input of a thread is a history from elsewhere."""
    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    past = [message for i in range(4) for message in (ask(f"p{i}"), say(f"p{i}"))]
    stage.invoke({"messages": [*past, ask("first")]})
    turns(stage, *[()] * 3)


@scene()
def streamed(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("think", reply), ("reply", lambda _: {})))
    for i in range(4):
        stage.stream({"messages": [ask(f"t{i}")]}, stream_mode=["updates", "values"])


def tool_graph(stage: Stage, model: Scripted, tools: list[Any], state: Any = MessagesState) -> Any:
    builder = stage.builder(state)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


@scene()
def tool_rounds(stage: Stage) -> None:
    stage.compile(tool_graph(stage, stage.model(), [stage.look()]))
    turns(stage, (1, 2), (), (3,), (1, 1, 1))


@scene()
def one_long_turn(stage: Stage) -> None:
    stage.compile(tool_graph(stage, stage.model(), [stage.look()]))
    turns(stage, (), (1, 2, 1, 3, 1, 1, 2, 1), ())


@scene()
def agent(stage: Stage) -> None:
    stage.graph = create_agent(stage.model(), [stage.look()], checkpointer=stage.saver)
    turns(stage, (1,), (2,), ())


class Idle(AgentMiddleware):  # type: ignore[type-arg]
    def before_model(self, state: Any, runtime: Any) -> None:
        return None

    def after_model(self, state: Any, runtime: Any) -> None:
        return None


@scene()
def agent_with_middleware(stage: Stage) -> None:
    stage.graph = create_agent(
        stage.model(), [stage.look()], middleware=[Idle()], checkpointer=stage.saver
    )
    turns(stage, (1,), (2,), ())


def _react(stage: Stage, tools: list[Any], version: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        stage.graph = create_react_agent(
            stage.model(), tools, checkpointer=stage.saver, version=version
        )


@scene()
def react_v1(stage: Stage) -> None:
    _react(stage, [stage.look()], "v1")
    turns(stage, (1,), (2, 1), ())


@scene()
def react_v2(stage: Stage) -> None:
    _react(stage, [stage.look()], "v2")
    turns(stage, (1,), (2, 1), ())


@scene()
def silent_last_node(stage: Stage) -> None:
    stage.compile(
        stage.builder().chain(("reply", reply), ("audit", lambda _: {}), ("quiet", lambda _: {}))
    )
    turns(stage, *[()] * 4)


class Counted(MessagesState):
    count: int


@scene()
def last_node_writes_elsewhere(stage: Stage) -> None:
    count = lambda state: {"count": state.get("count", 0) + 1}  # noqa: E731
    stage.compile(stage.builder(Counted).chain(("reply", reply), ("count", count)))
    turns(stage, *[()] * 4)


def _fan(stage: Stage, *arms: str) -> Any:
    builder = stage.builder()
    for arm in arms:
        builder.add_node(
            arm, lambda state, arm=arm: {"messages": [say(newest(state["messages"]), arm)]}
        )
        builder.add_edge(START, arm)
    return builder


@scene()
def fan_out(stage: Stage) -> None:
    stage.compile(_fan(stage, "left", "middle", "right"))
    turns(stage, *[()] * 3)


@scene()
def join(stage: Stage) -> None:
    builder = _fan(stage, "left", "right")
    builder.add_node("both", reply)
    builder.add_edge(["left", "right"], "both")
    builder.add_edge("both", END)
    stage.compile(builder)
    turns(stage, *[()] * 3, **STEADY)


@scene()
def join_of_unequal_arms(stage: Stage) -> None:
    builder = _fan(stage, "left", "right")
    builder.add_node("slow", lambda state: {"messages": [say(newest(state["messages"]), "slow")]})
    builder.add_node("both", lambda _: {})
    builder.add_edge("right", "slow")
    builder.add_edge(["left", "slow"], "both")
    stage.compile(builder)
    turns(stage, *[()] * 3, **STEADY)


@scene()
def partial_join(stage: Stage) -> None:
    """A router runs one of the two nodes that a join waits for, so that it never fires."""
    builder = stage.builder()
    builder.add_node("left", reply)
    builder.add_node("right", reply)
    builder.add_node("both", lambda _: {})
    builder.add_conditional_edges(START, lambda _: "left", ["left", "right"])
    builder.add_edge(["left", "right"], "both")
    stage.compile(builder)
    turns(stage, *[()] * 4, **STEADY)


@scene()
def partial_deferred_join(stage: Stage) -> None:
    """The same with a deferred join, which stores another value."""
    builder = stage.builder()
    builder.add_node("left", reply)
    builder.add_node("right", reply)
    builder.add_node("both", lambda _: {}, defer=True)
    builder.add_conditional_edges(START, lambda _: "left", ["left", "right"])
    builder.add_edge(["left", "right"], "both")
    stage.compile(builder)
    turns(stage, *[()] * 4, **STEADY)


@scene()
def join_after_rounds(stage: Stage) -> None:
    """Left on one turn, right on the next: a join that is partial at rest and then completes."""
    builder = stage.builder()
    builder.add_node("left", reply)
    builder.add_node("right", reply)
    builder.add_node("both", lambda _: {})
    arm = lambda state: ("left", "right")[int(newest(state["messages"])[1:]) % 2]  # noqa: E731
    builder.add_conditional_edges(START, arm, ["left", "right"])
    builder.add_edge(["left", "right"], "both")
    stage.compile(builder)
    turns(stage, *[()] * 5, **STEADY)


@scene()
def deferred_join(stage: Stage) -> None:
    builder = _fan(stage, "left", "right")
    builder.add_node("slow", lambda state: {"messages": [say(newest(state["messages"]), "slow")]})
    builder.add_node("last", lambda _: {}, defer=True)
    builder.add_edge("right", "slow")
    builder.add_edge(["left", "slow"], "last")
    stage.compile(builder)
    turns(stage, *[()] * 4, **STEADY)


@scene()
def deferred_node(stage: Stage) -> None:
    builder = _fan(stage, "left", "right")
    builder.add_node("last", reply, defer=True)
    builder.add_edge("left", "last")
    builder.add_edge("right", "last")
    stage.compile(builder)
    turns(stage, *[()] * 3, **STEADY)


class Mapped(MessagesState):
    found: Annotated[list[str], operator.add]


@scene()
def map_reduce(stage: Stage) -> None:
    builder = stage.builder(Mapped)
    builder.add_node("work", lambda part: {"found": [part["part"]], "messages": [part["said"]]})
    builder.add_node("reduce", reply)

    def parts(state: Any) -> list[Send]:
        label = newest(state["messages"])
        return [
            Send("work", {"part": i, "said": say(f"{label}.{i}", "part"), "state": state})
            for i in range(3)
        ]

    builder.add_conditional_edges(START, parts, ["work"])
    builder.add_edge("work", "reduce")
    stage.compile(builder)
    turns(stage, *[()] * 3)


def _asking(stage: Stage) -> Any:
    @tool
    def look(query: str) -> str:
        """Ask the user."""
        stage.note(f"asks {query}")
        return f"found {interrupt(query)} {query}"

    return look


@scene(resumes=True)
def interrupt_in_a_tool(stage: Stage) -> None:
    stage.compile(tool_graph(stage, stage.model(), [_asking(stage)]))
    turns(stage, (), ())
    for i in range(2, 5):
        stage.invoke(ask(f"t{i}", 1))
        stage.state()
        stage.resume(f"answer {i}")


@scene(resumes=True)
def interrupts_in_parallel_tools(stage: Stage) -> None:
    stage.compile(tool_graph(stage, stage.model(), [_asking(stage)]))
    turns(stage, (), ())
    for i in range(2, 4):
        waiting = stage.invoke(ask(f"t{i}", 1))["__interrupt__"]
        stage.resume({each.id: f"answer {i}" for each in waiting})


@scene(resumes=True)
def interrupts_in_sent_tools(stage: Stage) -> None:
    """`create_react_agent` v2 sends each call to a task of its own; some are done, some wait."""

    @tool
    def look(query: str) -> str:
        """Look up, or ask the user."""
        stage.note(f"looks {query}")
        return f"found {query}" + (f" {interrupt(query)}" if query.endswith(".1") else "")

    _react(stage, [look], "v2")
    turns(stage, (), ())
    for i in range(2, 4):
        stage.invoke(ask(f"t{i}", 3))
        stage.state()
        stage.resume(f"answer {i}")


@scene(resumes=True)
def interrupt_in_a_node(stage: Stage) -> None:
    def approve(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "approved")]}

    stage.compile(stage.builder().chain(("reply", reply), ("approve", approve), ("end", reply)))
    for i in range(4):
        stage.invoke(ask(f"t{i}"))
        stage.resume(f"yes {i}")


@scene(resumes=True)
def interrupt_before(stage: Stage) -> None:
    chain = stage.builder().chain(("reply", reply), ("act", lambda _: {}), ("end", reply))
    stage.compile(chain, interrupt_before=["act"])
    for i in range(4):
        stage.invoke(ask(f"t{i}"))
        stage.state()
        stage.invoke(None)


@scene(resumes=True)
def interrupt_after(stage: Stage) -> None:
    chain = stage.builder().chain(("reply", reply), ("act", lambda _: {}), ("end", reply))
    stage.compile(chain, interrupt_after=["reply"])
    for i in range(4):
        stage.invoke(ask(f"t{i}"))
        stage.state()
        stage.invoke(None)


@scene(resumes=True)
def one_done_and_one_waiting(stage: Stage) -> None:
    def wait(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "waited")]}

    builder = _fan(stage, "done")
    builder.add_node("wait", wait)
    builder.add_node("last", reply)
    builder.add_edge(START, "wait")
    builder.add_edge(["done", "wait"], "last")
    stage.compile(builder)
    for i in range(4):
        stage.invoke(ask(f"t{i}"), **STEADY)
        stage.state()
        stage.resume(f"yes {i}", **STEADY)


def talking(stage: Stage) -> Any:
    """Make a chat that lives in `interrupt()`: its thread never comes to rest."""

    def talk(state: Any) -> Any:
        question = say(f"after {state['messages'][-1].content}", "asked")
        answer = interrupt(question.content)
        return {"messages": [question, HumanMessage(f"{answer}:", id=f"h.{answer}")]}

    builder = stage.builder()
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    builder.add_edge("talk", "talk")
    return builder


@scene(resumes=True)
def always_interrupted(stage: Stage) -> None:
    stage.compile(talking(stage))
    stage.invoke(ask("hello"))
    for i in range(100 if stage.long else 12):
        stage.resume(f"r{i}")


def _child(stage: Stage, checkpointer: Any) -> Any:
    one = lambda state: {"messages": [say(newest(state["messages"]), "one")]}  # noqa: E731
    two = lambda state: {"messages": [say(newest(state["messages"]), "two")]}  # noqa: E731
    return stage.builder().chain(("one", one), ("two", two)).compile(checkpointer=checkpointer)


def _with_child(stage: Stage, checkpointer: Any) -> None:
    child = _child(stage, checkpointer)
    stage.compile(stage.builder().chain(("child", child), ("reply", reply)))
    turns(stage, *[()] * 4)
    stage.state(subgraphs=True)


@scene()
def subgraph(stage: Stage) -> None:
    _with_child(stage, None)


@scene()
def subgraph_with_memory(stage: Stage) -> None:
    _with_child(stage, True)


@scene()
def subgraph_without_checkpoints(stage: Stage) -> None:
    _with_child(stage, False)


@scene()
def subgraph_called_in_a_node(stage: Stage) -> None:
    class Other(TypedDict):
        messages: Annotated[list[Any], operator.add]

    child = stage.builder(Other).chain(("inside", reply)).compile()

    def call(state: Any) -> Any:
        stage.note("call")
        inside = child.invoke({"messages": state["messages"][-1:]})["messages"]
        return {"messages": [say(inside[-1].content, "got")]}

    stage.compile(stage.builder().chain(("call", call), ("end", reply)))
    turns(stage, *[()] * 3)


@scene()
def three_agents(stage: Stage) -> None:
    builder = stage.builder()
    names = ["research", "write", "review"]
    for name in names:
        model = stage.model(f"{name}-")
        builder.add_node(name, tool_graph(stage, model, [stage.look()]).compile())
        builder.add_node(f"{name} said", _saying(name))
        builder.add_edge(name, f"{name} said")
    builder.add_edge(START, "research")
    builder.add_edge("research said", "write")
    builder.add_edge("write said", "review")
    stage.compile(builder)
    turns(stage, (1,), (2,))


def _saying(name: str) -> Any:
    # The next agent starts its own turn: it must not take the answers before for its own.
    def said(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [HumanMessage(f"{label}: 1", id=f"h.{name}.{label}")]}

    return said


@scene(resumes=True)
def interrupt_in_a_nested_subgraph(stage: Stage) -> None:
    def wait(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "waited")]}

    leaf = stage.builder().chain(("ready", reply), ("wait", wait)).compile()
    middle = stage.builder().chain(("leaf", leaf), ("after", lambda _: {})).compile()
    stage.compile(stage.builder().chain(("middle", middle), ("end", lambda _: {})))
    for i in range(3):
        stage.invoke(ask(f"t{i}"))
        stage.state(subgraphs=True)
        stage.resume(f"yes {i}")


@scene(resumes=True)
def interrupt_in_a_subgraph_with_memory(stage: Stage) -> None:
    def wait(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "waited")]}

    child = stage.builder().chain(("ready", reply), ("wait", wait)).compile(checkpointer=True)
    stage.compile(stage.builder().chain(("child", child), ("end", lambda _: {})))
    for i in range(4):
        stage.invoke(ask(f"t{i}"))
        stage.resume(f"yes {i}")


@scene(channels=("__previous__",))
def functional_list(stage: Stage) -> None:
    @entrypoint(checkpointer=stage.saver)
    def talk(given: list[Any], *, previous: Any = None) -> Any:
        stage.note("talk")
        messages = [*(previous or []), *given, say(newest(given))]
        return entrypoint.final(value=messages[-1], save=messages)

    stage.graph = talk
    for i in range(5):
        stage.invoke([ask(f"t{i}")])


@scene(channels=("__previous__.messages",))
def functional_dict(stage: Stage) -> None:
    @entrypoint(checkpointer=stage.saver)
    def talk(given: list[Any], *, previous: Any = None) -> Any:
        stage.note("talk")
        before = previous or {"messages": [], "count": 0}
        messages = [*before["messages"], *given, say(newest(given))]
        return {"messages": messages, "count": before["count"] + 1}

    stage.graph = talk
    for i in range(5):
        stage.invoke([ask(f"t{i}")])


@scene(channels=("__previous__.messages",), resumes=True)
def functional_with_tasks(stage: Stage) -> None:
    @task
    def draft(label: str) -> AIMessage:
        stage.note("draft")
        return say(label, "drafted")

    @entrypoint(checkpointer=stage.saver)
    def talk(given: list[Any], *, previous: Any = None) -> Any:
        before = previous or {"messages": []}
        drafted = draft(newest(given)).result()
        approved = say(f"{newest(given)} {interrupt(drafted.content)}", "approved")
        return {"messages": [*before["messages"], *given, drafted, approved]}

    stage.graph = talk
    for i in range(4):
        stage.invoke([ask(f"t{i}")])
        stage.resume(f"yes {i}")


@scene()
def update_state(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, (), ())
    stage.update({"messages": [ask("given")]})
    stage.update({"messages": [say("given", "told")]}, as_node="reply")
    stage.state()
    stage.invoke(None)
    stage.update({"messages": [ask("other"), say("other", "told")]}, as_node="end")
    turns(stage, (), (), start=2)


@scene()
def bulk_update_state(stage: Stage) -> None:
    from langgraph.types import StateUpdate

    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, ())
    stage.bulk_update(
        [
            [StateUpdate({"messages": [ask(f"b{i}"), say(f"b{i}", "told")]}, "reply")]
            for i in range(4)
        ]
    )
    stage.invoke(None)
    turns(stage, (), start=1)


@scene()
def copied_checkpoint(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, (), (), ())
    stage.update(None, as_node="__copy__")
    turns(stage, (), start=3)
    middle = stage.history()[len(stage.history()) // 2].config
    forked = stage.update(None, middle, as_node="__copy__")
    stage.invoke(None, forked)
    turns(stage, (), start=4)


@scene()
def forked_at_rest(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, (), (), ())
    rests = [state.config for state in stage.history() if not state.next]
    stage.invoke(ask("fork"), rests[1])
    turns(stage, (), start=3)
    stage.invoke(ask("again"), rests[0])
    turns(stage, (), start=4)


@scene(resumes=True)
def replayed(stage: Stage) -> None:
    stage.compile(stage.builder().chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, (), (), ())
    waiting = [state.config for state in stage.history() if state.next == ("end",)]
    stage.state(waiting[1])
    stage.invoke(None, waiting[1])
    forked = stage.update({"messages": [say("fork", "told")]}, waiting[0])
    stage.state(forked)
    stage.invoke(None, forked)
    turns(stage, (), start=3)


@scene(resumes=True)
def resumed_by_checkpoint_id(stage: Stage) -> None:
    def approve(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "approved")]}

    stage.compile(stage.builder().chain(("reply", reply), ("approve", approve)))
    turns(stage, ())
    stage.resume("yes")
    for i in range(1, 4):
        stage.invoke(ask(f"t{i}"))
        stage.resume(f"yes {i}", stage.state().config)


@scene()
def durability_sync(stage: Stage) -> None:
    _durable(stage, "sync")


@scene()
def durability_exit(stage: Stage) -> None:
    _durable(stage, "exit")


def _durable(stage: Stage, durability: Any) -> None:
    stage.compile(tool_graph(stage, stage.model(), [stage.look()]))
    for i, rounds in enumerate([(1,), (), (2, 1), ()]):
        stage.invoke(ask(f"t{i}", *rounds), durability=durability)


@scene(resumes=True)
def durability_exit_with_interrupt(stage: Stage) -> None:
    stage.compile(tool_graph(stage, stage.model(), [_asking(stage)]))
    stage.invoke(ask("t0"), durability="exit")
    for i in range(1, 4):
        stage.invoke(ask(f"t{i}", 1), durability="exit")
        stage.resume(f"answer {i}", durability="exit")


class Dicts(TypedDict):
    messages: Annotated[list[dict[str, str]], operator.add]


@scene(ids=False)
def dicts_without_ids(stage: Stage) -> None:
    def answer(state: Any) -> Any:
        last = state["messages"][-1]["content"]
        return {"messages": [{"role": "assistant", "content": f"to {last}"}]}

    stage.compile(stage.builder(Dicts).chain(("answer", answer), ("end", lambda _: {})))
    for i in range(5):
        stage.invoke({"messages": [{"role": "user", "content": f"t{i}"}]})


@scene(ids=False)
def dicts_in_a_long_run(stage: Stage) -> None:
    def answer(i: int) -> Any:
        def run(state: Any) -> Any:
            last = state["messages"][-1]["content"].rpartition(" ")[2]
            return {"messages": [{"role": "assistant", "content": f"step {i} of {last}"}]}

        return run

    stage.compile(stage.builder(Dicts).chain(*((f"n{i}", answer(i)) for i in range(9))))
    for i in range(3):
        stage.invoke({"messages": [{"role": "user", "content": f"t{i}"}]})


@scene()
def removed_message(stage: Stage) -> None:
    draft = lambda state: {"messages": [say(newest(state["messages"]), "draft")]}  # noqa: E731

    def tidy(state: Any) -> Any:
        return {"messages": [RemoveMessage(f"draft.{newest(state['messages'])}")]}

    stage.compile(stage.builder().chain(("draft", draft), ("reply", reply), ("tidy", tidy)))
    turns(stage, *[()] * 4)


@scene()
def removed_all_messages(stage: Stage) -> None:
    def forget(state: Any) -> Any:
        if newest(state["messages"]) != "t2":
            return {}
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-2:]]}

    stage.compile(stage.builder().chain(("reply", reply), ("forget", forget), ("end", reply)))
    turns(stage, *[()] * 5)


@scene()
def overwritten_list(stage: Stage) -> None:
    def forget(state: Any) -> Any:
        if newest(state["messages"]) != "t2":
            return {}
        return {"messages": Overwrite(state["messages"][-2:])}

    stage.compile(stage.builder(Dicts).chain(("reply", reply), ("forget", forget), ("end", reply)))
    turns(stage, *[()] * 5)


@scene()
def edited_message(stage: Stage) -> None:
    def edit(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [AIMessage(f"edited {label}", id=f"said.{label}")]}

    stage.compile(stage.builder().chain(("reply", reply), ("edit", edit), ("end", lambda _: {})))
    turns(stage, *[()] * 4)


@scene()
def whole_list_returned(stage: Stage) -> None:
    whole = lambda s: {"messages": [*s["messages"], say(newest(s["messages"]))]}  # noqa: E731
    stage.compile(stage.builder().chain(("whole", whole), ("end", lambda _: {})))
    turns(stage, *[()] * 4)


@scene()
def commands(stage: Stage) -> None:
    def router(state: Any) -> Command[Any]:
        label = newest(state["messages"])
        return Command(goto="act", update={"messages": [say(label, "routed")]})

    builder = stage.builder()
    builder.add_node("router", router, destinations=("act",))
    builder.add_node("act", reply)
    builder.add_edge(START, "router")
    stage.compile(builder)
    turns(stage, *[()] * 3)
    stage.invoke(Command(update={"messages": [ask("commanded")]}, goto="act"))
    turns(stage, (), start=3)


@scene(resumes=True)
def error_then_resume(stage: Stage) -> None:
    broken = [True]

    def fragile(state: Any) -> Any:
        if newest(state["messages"]) == "t2" and broken:
            broken.clear()
            raise ConnectionError("the line is down")
        return {"messages": [say(newest(state["messages"]), "mended")]}

    stage.compile(stage.builder().chain(("reply", reply), ("fragile", fragile)))
    turns(stage, (), ())
    stage.fails(ConnectionError, ask("t2"))
    stage.state()
    stage.invoke(None)
    turns(stage, (), (), start=3)


@scene(resumes=True)
def error_then_a_new_turn(stage: Stage) -> None:
    """A run breaks off and the user simply goes on."""

    def fragile(state: Any) -> Any:
        if newest(state["messages"]) == "t1":
            raise ConnectionError("the line is down")
        return {"messages": [say(newest(state["messages"]), "mended")]}

    stage.compile(stage.builder().chain(("reply", reply), ("fragile", fragile)))
    turns(stage, ())
    stage.fails(ConnectionError, ask("t1"))
    turns(stage, (), (), start=2)


@scene(resumes=True)
def interrupt_at_every_step(stage: Stage) -> None:
    chain = stage.builder().chain(("reply", reply), ("act", lambda _: {}), ("end", reply))
    stage.compile(chain, interrupt_before="*")
    for i in range(3):
        stage.invoke(ask(f"t{i}"))
        while stage.state().next:
            stage.invoke(None)


@scene(resumes=True)
def two_questions_in_a_node(stage: Stage) -> None:
    def talk(state: Any) -> Any:
        label = newest(state["messages"])
        answers = f"{interrupt(f'{label} one')} {interrupt(f'{label} two')}"
        return {"messages": [say(f"{label} {answers}", "asked twice")]}

    stage.compile(stage.builder().chain(("reply", reply), ("talk", talk)))
    for i in range(3):
        stage.invoke(ask(f"t{i}"))
        stage.resume("a")
        stage.resume("b")


@scene(resumes=True)
def updated_while_waiting(stage: Stage) -> None:
    def wait(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "waited")]}

    stage.compile(stage.builder().chain(("reply", reply), ("wait", wait), ("end", reply)))
    turns(stage, ())
    stage.resume("yes")
    for i in range(1, 4):
        stage.invoke(ask(f"t{i}"))
        stage.update({"messages": [say(f"t{i}", "noted")]}, as_node="reply")
        stage.invoke(Command(resume=f"yes {i}", update={"messages": [say(f"t{i}", "added")]}))


@scene(resumes=True)
def updated_subgraph(stage: Stage) -> None:
    """A person edits the state of a subgraph that waits."""

    def wait(state: Any) -> Any:
        label = newest(state["messages"])
        return {"messages": [say(f"{label} {interrupt(label)}", "waited")]}

    child = stage.builder().chain(("ready", reply), ("wait", wait)).compile()
    stage.compile(stage.builder().chain(("child", child), ("end", lambda _: {})))
    for i in range(3):
        stage.invoke(ask(f"t{i}"))
        inside = stage.state(subgraphs=True).tasks[0].state.config
        stage.update({"messages": [say(f"t{i}", "edited")]}, inside, as_node="ready")
        stage.resume(f"yes {i}")


@scene()
def handed_over(stage: Stage) -> None:
    """Agents hand over to each other with a `Command` to the graph above."""

    def hand_over(state: Any) -> Command[Any]:
        label = newest(state["messages"])
        update = {"messages": [say(label, "handed")]}
        return Command(graph=Command.PARENT, goto="second", update=update)

    builder = stage.builder()
    first = stage.builder().chain(("greet", reply), ("hand over", hand_over)).compile()
    builder.add_node("first", first, destinations=("second",))
    builder.add_node("second", lambda s: {"messages": [say(newest(s["messages"]), "took")]})
    builder.add_edge(START, "first")
    stage.compile(builder)
    turns(stage, *[()] * 3)


@scene()
def tool_that_commands(stage: Stage) -> None:
    @tool
    def look(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Look something up and note it."""
        stage.note(f"look {query}")
        result = ToolMessage(f"found {query}", tool_call_id=tool_call_id, id=f"r.{query}")
        return Command(update={"messages": [result], "count": len(query)})

    model = stage.model()
    builder = tool_graph(stage, model, [look], Counted)
    stage.compile(builder)
    turns(stage, (1,), (1, 1), ())


@scene()
def retried_node(stage: Stage) -> None:
    failed = set()

    def fragile(state: Any) -> Any:
        label = newest(state["messages"])
        if label not in failed:
            failed.add(label)
            raise ConnectionError("try again")
        return {"messages": [say(label, "retried")]}

    builder = stage.builder()
    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    builder.add_node("fragile", fragile, retry_policy=policy)
    builder.add_node("end", lambda _: {})
    builder.add_edge(START, "fragile")
    builder.add_edge("fragile", "end")
    stage.compile(builder)
    turns(stage, *[()] * 3)


@scene(channels=("__root__",))
def list_as_the_whole_state(stage: Stage) -> None:
    builder = stage.builder(Annotated[list[Any], add_messages])
    builder.add_node("reply", lambda state: [say(newest(state))])
    builder.add_node("end", lambda _: [])
    builder.add_edge(START, "reply")
    builder.add_edge("reply", "end")
    stage.compile(builder)
    for i in range(4):
        stage.invoke([ask(f"t{i}")])


class Chat(BaseModel):
    chat: Annotated[list[Any], add_messages] = []
    mood: str = ""


@scene(channels=("chat",))
def model_as_the_state(stage: Stage) -> None:
    builder = stage.builder(Chat)
    builder.add_node("reply", lambda state: {"chat": [say(newest(state.chat))], "mood": "good"})
    builder.add_node("end", lambda _: {"mood": "quiet"})
    builder.add_edge(START, "reply")
    builder.add_edge("reply", "end")
    stage.compile(builder)
    for i in range(4):
        stage.invoke({"chat": [ask(f"t{i}")]})


class Asked(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Told(TypedDict):
    answer: str


class Whole(Asked, Told):
    pass


@scene()
def private_channels(stage: Stage) -> None:
    """A graph whose input and output are not its whole state."""
    builder = Builder(Whole, input_schema=Asked, output_schema=Told)
    builder.stage = stage
    stage.compile(builder.chain(("reply", reply), ("tell", lambda _: {"answer": "told"})))
    turns(stage, *[()] * 4)


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


@scene(delta=True)
def delta_channel(stage: Stage) -> None:
    """Without its reducer a delta channel passes through as it is."""
    stage.compile(stage.builder(Delta).chain(("reply", reply), ("end", lambda _: {})))
    turns(stage, *[()] * 5)


class Wide(TypedDict):
    messages: Annotated[list[Any], operator.add]
    notes: Annotated[list[ToolMessage], operator.add]


@scene()
def messages_elsewhere(stage: Stage) -> None:
    """Other channels hold messages too; they are nobody's history here."""
    note = lambda s: {"notes": [ToolMessage("seen", tool_call_id=newest(s["messages"]))]}  # noqa: E731
    stage.compile(stage.builder(Wide).chain(("reply", reply), ("note", note)))
    turns(stage, *[()] * 4)
