"""Make databases with real threads, which the commands of jobs read and change."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from reducing_saver import Discard, ReducingSaver, StoreArchive, Window

WINDOW = Window(keep=("turns", 2), trigger=("turns", 3))
KINDS = ("sqlite", "postgres")


class Database(NamedTuple):
    """Name a database and open its saver and store."""

    kind: str
    dsn: str

    @contextlib.contextmanager
    def saver(self, **options: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            if self.kind == "sqlite":
                from langgraph.checkpoint.sqlite import SqliteSaver

                saver: Any = SqliteSaver
            else:
                from langgraph.checkpoint.postgres import PostgresSaver

                saver = PostgresSaver
            made = stack.enter_context(saver.from_conn_string(self.dsn))
            for name, value in options.items():
                setattr(made, name, value)
            made.setup()
            yield made

    @contextlib.contextmanager
    def store(self) -> Iterator[Any]:
        if self.kind == "sqlite":
            from langgraph.store.sqlite import SqliteStore

            store: Any = SqliteStore
        else:
            from langgraph.store.postgres import PostgresStore

            store = PostgresStore
        with store.from_conn_string(self.dsn) as made:
            made.setup()
            yield made


def database(kind: str, folder: Path, make_database: Callable[[], str]) -> Database:
    """Make an empty database of a kind."""
    dsn = str(folder / "threads.db") if kind == "sqlite" else make_database()
    return Database(kind, dsn)


def echo(state: Any) -> dict[str, Any]:
    last = state["messages"][-1]
    return {"messages": [AIMessage(f"heard {last.content}", id=f"a-{last.id}")]}


def chat(saver: Any, thread: str, turns: int, *, start: int = 0, size: int = 1) -> None:
    """Hold a conversation of some turns with a graph on this saver."""
    builder = StateGraph(MessagesState).add_node("echo", echo).add_edge(START, "echo")
    graph = builder.compile(checkpointer=saver)
    for turn in range(start, start + turns):
        question = HumanMessage(f"question {turn} " * size, id=f"{thread}-{turn}")
        graph.invoke({"messages": [question]}, {"configurable": {"thread_id": thread}})


def reduced(inner: Any, store: Any | None = None) -> ReducingSaver:
    """Wrap a saver with a small window."""
    return ReducingSaver(inner, WINDOW, archive=StoreArchive(store) if store else Discard())


@contextlib.contextmanager
def refusing_server() -> Iterator[int]:
    """Give the port of a server that asks like Postgres for a password, and takes none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_refuse, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]


def _refuse(listening: socket.socket) -> None:
    while True:
        try:
            asking, _ = listening.accept()
        except OSError:
            return
        with asking, asking.makefile("rb") as read:
            while (code := struct.unpack("!ii", read.read(8))) and code[0] == 8:
                asking.sendall(b"N")  # neither SSL nor GSS
            read.read(code[0] - 8)
            asking.sendall(b"R" + struct.pack("!ii", 8, 3))
            (size,) = struct.unpack("!xi", read.read(5))
            read.read(size - 4)
            said = b"SFATAL\0C28P01\0Mpassword authentication failed for user\0\0"
            asking.sendall(b"E" + struct.pack("!i", 4 + len(said)) + said)
