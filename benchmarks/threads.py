"""Fill a Postgres with finished threads: some made by a real graph, the others copies of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from psycopg import sql

from .conversations import text
from .report import progress

TEMPLATES, TURNS = 100, 6
"""Threads that a graph really runs; each turn stores 4 messages in 5 checkpoints."""

APART = 8
"""How much older each copy is than the next, in the first 32 bits of its ids: 27 s each."""

# A UUIDv6 begins with the most significant bits of its time.
_EARLIER = (
    "lpad(to_hex(('x' || substr({id}, 1, 8))::bit(32)::bigint - %(earlier)s), 8, '0') "
    "|| substr({id}, 9)"
)


def fill(dsn: str, threads: int, *, templates: int = TEMPLATES) -> None:
    """Store so many threads of 24 messages in 30 checkpoints, in the order of their time."""
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        for number in range(templates):
            _talk(saver, f"{number:03}-000000", random.Random(number))
    with psycopg.connect(dsn, autocommit=True) as connection:
        copies = threads // templates
        for copy in range(1, copies):
            if copy % 20 == 0:
                progress(f"filling: {copy * templates:,} of {threads:,} threads")
            for statement in _copies():
                connection.execute(
                    statement, {"copy": f"{copy:06}", "earlier": APART * (copies - copy)}
                )
        connection.execute("VACUUM ANALYZE checkpoints, checkpoint_blobs, checkpoint_writes")


def _talk(saver: PostgresSaver, thread: str, dice: random.Random) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [_say(state, dice)]})
    builder.add_node("tools", lambda state: {"messages": [_found(state, dice)]})
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", _asks, {True: "tools", False: "__end__"})
    builder.add_edge("tools", "agent")
    graph = builder.compile(checkpointer=saver)
    for turn in range(TURNS):
        said = HumanMessage(_words(dice, 300), id=f"{thread}-{turn}")
        graph.invoke({"messages": [said]}, {"configurable": {"thread_id": thread}})


def _say(state: MessagesState, dice: random.Random) -> AIMessage:
    if isinstance(state["messages"][-1], ToolMessage):
        return AIMessage(_words(dice, 1_000))
    call: Any = {"name": "lookup", "args": {"query": _words(dice, 40)}, "id": str(dice.random())}
    return AIMessage("", tool_calls=[call])


def _found(state: MessagesState, dice: random.Random) -> ToolMessage:
    (call,) = state["messages"][-1].tool_calls
    return ToolMessage(_words(dice, 4_500), tool_call_id=call["id"])


def _asks(state: MessagesState) -> bool:
    return bool(state["messages"][-1].tool_calls)


def _words(dice: random.Random, characters: int) -> str:
    return text(dice.randrange(10**9), characters)


def _copies() -> Iterator[sql.Composed]:
    """Return what copies the first of each template, row by row, under earlier ids."""
    columns = {
        "checkpoints": (
            "checkpoint_ns, {id}, {parent}, type, "
            "jsonb_set(checkpoint, '{{id}}', to_jsonb({id})), metadata"
        ),
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
        "checkpoint_writes": "checkpoint_ns, {id}, task_id, idx, channel, type, blob, task_path",
    }
    names = {
        "checkpoints": (
            "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
        ),
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
        "checkpoint_writes": (
            "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path"
        ),
    }
    own, parent = (_EARLIER.format(id=name) for name in ("checkpoint_id", "parent_checkpoint_id"))
    for table, chosen in columns.items():
        yield sql.SQL(
            "INSERT INTO {table} (thread_id, {names}) "
            "SELECT split_part(thread_id, '-', 1) || '-' || %(copy)s, {chosen} "
            "FROM {table} WHERE split_part(thread_id, '-', 2) = '000000'"
        ).format(
            table=sql.Identifier(table),
            names=sql.SQL(names[table]),
            chosen=sql.SQL(chosen.format(id=own, parent=parent)),
        )
