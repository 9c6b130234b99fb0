"""Chats that go on while a job runs: real graphs whose turns are numbered, and what must be left.

chat = Chat("tools", "t", saver)
chat.say()                # one turn; `said` has the ids of all messages, in order
problems(house, chats)    # what is lost, told twice, dangling or an orphan; empty where all is well
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from reducing_saver import ReducingSaver, StoreArchive, Window
from reducing_saver._archive import place_of

WINDOW = Window(keep=("messages", 4), trigger=("messages", 8))
KINDS = ("plain", "tools", "subgraph", "interrupt", "wrapped", "wrapped tools")


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    seen: list[str]


@dataclass
class Chat:
    """Hold a thread that somebody talks in. Not to be shared by threads."""

    kind: str
    thread: str
    saver: Any
    said: list[str] = field(default_factory=list)
    turns: int = 0
    durability: Any = "async"
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.graph = _GRAPHS[self.kind.removeprefix("wrapped ")](self.saver)

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.thread}, "recursion_limit": 50}

    def say(self) -> None:
        number, self.turns = self.turns, self.turns + 1
        said = {"messages": [HumanMessage(f"question {number}", id=f"h{number}")]}
        self.graph.invoke(said, self.config, durability=self.durability)
        if self.kind == "interrupt":
            self.graph.invoke(Command(resume="yes"), self.config, durability=self.durability)
        self.said += (f"{name}{number}" for name in _NAMES[self.kind.removeprefix("wrapped ")])

    def talk(self, over: threading.Event) -> None:
        """Say one thing after the other until it is over."""
        try:
            while not over.is_set():
                self.say()
        except BaseException as error:
            self.error = error


def _number(state: State) -> str:
    return next(m.id[1:] for m in reversed(state["messages"]) if m.type == "human")


def _answer(name: str) -> Any:
    def run(state: State) -> Any:
        number = _number(state)
        return {"messages": [AIMessage(f"{name} {number}", id=f"{name}{number}")]}

    return run


def _note(state: State) -> Any:
    """Leave the messages alone: its checkpoint names the version of the one before."""
    return {"seen": [_number(state)]}


def _chain(saver: Any, *nodes: tuple[str, Any]) -> Any:
    builder = StateGraph(State)
    before = START
    for name, run in nodes:
        builder.add_node(name, run)
        builder.add_edge(before, name)
        before = name
    return builder.compile(checkpointer=saver)


def _plain(saver: Any) -> Any:
    return _chain(saver, ("note", _note), ("a", _answer("a")), ("end", _note))


def _call(state: State) -> Any:
    number = _number(state)
    calls = [{"name": "look", "args": {}, "id": f"c{number}"}]
    return {"messages": [AIMessage("", id=f"m{number}", tool_calls=calls)]}


def _tool(state: State) -> Any:
    number = _number(state)
    return {"messages": [ToolMessage("found", id=f"t{number}", tool_call_id=f"c{number}")]}


def _tools(saver: Any) -> Any:
    return _chain(saver, ("call", _call), ("tool", _tool), ("a", _answer("a")))


def _subgraph(saver: Any) -> Any:
    child = _chain(None, ("first", _answer("f")), ("second", _answer("s")))
    return _chain(saver, ("note", _note), ("child", child), ("a", _answer("a")))


def _interrupt(saver: Any) -> Any:
    def ask(state: State) -> Any:
        answer = interrupt("sure?")
        number = _number(state)
        return {"messages": [AIMessage(answer, id=f"y{number}")]}

    return _chain(saver, ("f", _answer("f")), ("ask", ask), ("a", _answer("a")))


_GRAPHS = {
    "plain": _plain,
    "tools": _tools,
    "subgraph": _subgraph,
    "interrupt": _interrupt,
    "wrapped": _plain,
}
_NAMES = {
    "plain": "ha",
    "tools": "hmta",
    "subgraph": "hfsa",
    "interrupt": "hfya",
    "wrapped": "ha",
}


@contextlib.contextmanager
def talking(chats: Iterable[Chat]) -> Iterator[threading.Event]:
    """Let each chat go on in a thread of its own; the event is set at the end."""
    over = threading.Event()
    threads = [threading.Thread(target=chat.talk, args=(over,)) for chat in chats]
    for thread in threads:
        thread.start()
    try:
        yield over
    finally:
        over.set()
        for thread in threads:
            thread.join()


def live(saver: Any, chat: Chat) -> list[str]:
    """Return the ids of what a thread holds, in a process that knows nothing of it."""
    found = saver.get_tuple(chat.config)
    return [] if found is None else [m.id for m in found.checkpoint["channel_values"]["messages"]]


def archived(house: Any, thread: str) -> set[str]:
    """Return the ids of what the archive holds of a thread, read from the table of the store."""
    place = ".".join(place_of(thread, "messages"))
    rows = house.run("SELECT key FROM store WHERE prefix = ?", (place,))
    archive = StoreArchive(house.store)
    entries = archive.read(thread, [key for (key,) in rows])
    assert len(entries) == len(rows)
    loaded = [house.saver.serde.loads_typed((entry.kind, entry.data)) for entry in entries]
    return {message.id for message in loaded}


def problems(house: Any, chats: Iterable[Chat], *, quiet: bool = False) -> list[str]:
    """Return what is lost, twice, dangling or an orphan.

    Before the house is `quiet`, a run may have stored writes of a checkpoint just after the job has
    deleted it, which the next job sweeps, and what a bare saver stored names no archive until then.
    """
    found = []
    for chat in chats:
        name = f"{chat.thread} ({chat.kind})"
        if chat.error is not None:
            found.append(f"{name} raised {chat.error!r}")
            continue
        held, gone = live(house.saver, chat), archived(house, chat.thread)
        if held != chat.said[len(chat.said) - len(held) :]:
            found.append(f"{name} holds {held[:9]}, not the end of what was said")
        if lost := set(chat.said) - {*held, *gone}:
            found.append(f"{name} lost {len(lost)} of {len(chat.said)}: {sorted(lost)[:5]}")
        wrapped = ReducingSaver(house.saver, WINDOW, archive=StoreArchive(house.store))
        if not quiet and not chat.kind.startswith("wrapped"):
            continue
        told = [m.id for m in wrapped.transcript(chat.config)]
        if told != chat.said:
            twice = [name for name, times in Counter(told).items() if times > 1]
            found.append(f"{name}: transcript of {len(told)}, said {len(chat.said)}, {twice[:5]}")
    loose = counted(house)
    if not quiet:
        loose.pop("orphan writes")
    return found + [f"{what}: {rows[:3]} ({len(rows)})" for what, rows in loose.items() if rows]


def counted(house: Any) -> dict[str, list[Any]]:
    """Return the rows that dangle, writes of no checkpoint, and blobs that nobody names."""
    found = {"orphan writes": house.run(_ORPHANS.format(house.writes))}
    if house.kind == "postgres":
        found["dangling"] = house.run(_DANGLING)
        found["blobs nobody names"] = house.run(_UNNAMED)
    return found


_ORPHANS = """
    SELECT w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.channel FROM {} AS w
    WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    )
    """
# A channel without a value has a version and no row, so it is asked for those that always have one.
_DANGLING = """
    SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, v.key, v.value FROM checkpoints AS c
    CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
    WHERE v.key IN ('messages', 'seen') AND NOT EXISTS (
        SELECT 1 FROM checkpoint_blobs AS b WHERE b.thread_id = c.thread_id
        AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value
    )
    """
_UNNAMED = """
    SELECT b.thread_id, b.checkpoint_ns, b.channel, b.version FROM checkpoint_blobs AS b
    WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = b.thread_id
        AND c.checkpoint_ns = b.checkpoint_ns
        AND c.checkpoint #>> ARRAY['channel_versions', b.channel] = b.version
    )
    """
