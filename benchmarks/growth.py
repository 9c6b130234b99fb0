"""Run a graph for a thousand turns: what is stored, and what the last turns take."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph

from reducing_saver import Window

from . import peers
from .conversations import chat, take
from .report import Cell, Goal, Report, Table, main, progress
from .stores import Saver, Store, stores, wrapped

TURNS, SHORT_TURNS, LAST = 1_000, 100, 100
WINDOW = Window(("messages", 10), ("messages", 20))


class Thread:
    """Run one thread of a graph whose only node says what the script says."""

    def __init__(self, saver: Saver) -> None:
        self.puts: list[float] = []
        self.turns: list[float] = []
        self.head = 0
        self._answer: BaseMessage = AIMessage("")
        self._config: Any = {"configurable": {"thread_id": "growth"}}
        saver.put = self._timed(saver.put)
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {"messages": [self._answer]})
        builder.add_edge(START, "agent")
        self._graph = builder.compile(checkpointer=saver)
        self._saver = saver

    def turn(self, human: BaseMessage, answer: BaseMessage) -> None:
        """Run one turn, copies of both messages, since LangGraph may touch them."""
        self._answer = answer.model_copy()
        begun = time.perf_counter()
        self._graph.invoke({"messages": [human.model_copy()]}, self._config, durability="sync")
        self.turns.append(time.perf_counter() - begun)

    def stored(self) -> int:
        """Count the messages that the next turn loads."""
        return len(self._graph.get_state(self._config).values["messages"])

    def _timed(self, put: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = put(*arguments)
            self.puts.append(time.perf_counter() - begun)
            return result

        return timed


def run(short: bool) -> Report:
    """Run bare, wrapped and the peer's, turn by turn side by side."""
    report = Report("growth")
    turns = SHORT_TURNS if short else TURNS
    with stores() as found:
        for store in found:
            _measure(report, store, turns)
    return report


def _measure(report: Report, store: Store, turns: int) -> None:
    script = take(chat(), 2 * turns)
    with contextlib.ExitStack() as stack:
        inner = {name: stack.enter_context(store.open()) for name in ("bare", "wrapped", "peer")}
        empty = {name: store.size(saver) for name, saver in inner.items()}
        threads = dict(_threads(inner))
        order, shuffle = list(threads.values()), random.Random(0).shuffle
        for number in range(turns):
            if number % 100 == 0:
                progress(f"growth: {store.name}, turn {number} of {turns}")
            # In another order each turn: who comes after bare finds the processor's caches cold.
            shuffle(order)
            for thread in order:
                thread.turn(*script[2 * number : 2 * number + 2])
        sizes = {name: store.size(inner[name]) - empty[name] for name in threads}
        rows = [_row(name, threads[name], sizes[name]) for name in threads]
    columns = ("saver", "MB", "last puts, ms", "last turns, ms", "messages in the head")
    note = (
        f"{turns:,} turns of two messages, each about 340 bytes when stored, three puts a turn; "
        f"marks 10/20; the median of the last {LAST} puts and turns (durability sync); MB are 10^6 "
        "bytes on the disk."
    )
    report.tables.append(Table(f"{store.name}, {turns:,} turns", columns, rows, (note,)))
    if "peer" in threads:
        text = f"{store.name}, {turns:,} turns: bytes, wrapped / agentstate-reducer"
        report.goals.append(Goal(text, sizes["wrapped"] / sizes["peer"], 1.2))


def _threads(inner: dict[str, Saver]) -> Iterator[tuple[str, Thread]]:
    yield "bare", Thread(inner["bare"])
    yield "wrapped", Thread(wrapped(inner["wrapped"], WINDOW))
    theirs = peers.wrap(inner["peer"], min_messages=10, max_messages=20)
    if theirs is not None:
        yield "peer", Thread(theirs)


def _row(name: str, thread: Thread, size: int) -> tuple[Cell, ...]:
    label = "agentstate-reducer" if name == "peer" else name
    puts, turns = median(thread.puts[-LAST:]) * 1e3, median(thread.turns[-LAST:]) * 1e3
    return label, size / 1e6, puts, turns, thread.stored()


if __name__ == "__main__":
    main([run])
