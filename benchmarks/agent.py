"""State what one long run of a tool-calling agent stores, every channel and all writes counted."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from reducing_saver import Window

from . import peers
from .conversations import text
from .report import Cell, Goal, Report, Table, main, progress
from .stores import Saver, Store, stores, wrapped

ROUNDS, SHORT_ROUNDS, CALLS = 40, 10, 3
WINDOW = Window(("messages", 10), ("messages", 20), ("messages", 20))


class Scripted(BaseChatModel):
    """Ask for three lookups at once, round after round, then answer."""

    rounds: int
    numbers: Any = None

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        number = next(self.numbers)
        made = [_call(number * CALLS + i) for i in range(CALLS)] if number < self.rounds else []
        message = AIMessage("" if made else "done", tool_calls=made, id=f"ai-{number}")
        return ChatResult(generations=[ChatGeneration(message=message)])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Scripted:
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


@tool
def lookup(number: int) -> str:
    """Look something up."""
    return text(number)


def run(short: bool) -> Report:
    """Run the agent once on each saver and weigh the stores."""
    report = Report("agent")
    rounds = SHORT_ROUNDS if short else ROUNDS
    rows: list[tuple[Cell, ...]] = []
    with stores() as found:
        for store in found:
            progress(f"agent: {store.name}")
            sizes = _sizes(store, rounds)
            bare, ours, theirs = (sizes.get(name) for name in ("bare", "wrapped", "peer"))
            peer = theirs and theirs / 1e6, theirs and theirs / bare
            rows.append((store.name, bare / 1e6, ours / 1e6, ours / bare, *peer))
            report.goals.append(Goal(f"{store.name}: bytes, wrapped / bare", ours / bare, 0.25))
    columns = ("store", "bare MB", "wrapped MB", "ratio", "agentstate-reducer MB", "ratio")
    note = (
        f"`create_react_agent` v2, one run of {rounds} rounds of {CALLS} parallel calls; marks "
        "10/20/20 (agentstate-reducer: 10/20); its `Send` payloads repeat the whole state."
    )
    report.tables.append(Table("One long run", columns, rows, (note,)))
    return report


def _sizes(store: Store, rounds: int) -> dict[str, int]:
    sizes = {}
    with contextlib.ExitStack() as stack:
        for name in ("bare", "wrapped", "peer"):
            inner = stack.enter_context(store.open())
            saver = _wrap(name, inner)
            if saver is None:
                continue
            empty = store.size(inner)
            _run_agent(saver, rounds)
            sizes[name] = store.size(inner) - empty
    return sizes


def _wrap(name: str, inner: Saver) -> Saver | None:
    match name:
        case "wrapped":
            return wrapped(inner, WINDOW)
        case "peer":
            return peers.wrap(inner, min_messages=10, max_messages=20)
        case _:
            return inner


def _run_agent(saver: Saver, rounds: int) -> None:
    with warnings.catch_warnings():
        # LangGraph 1 says that create_agent has taken its place; many graphs still use it.
        warnings.simplefilter("ignore")
        from langgraph.prebuilt import create_react_agent

        model = Scripted(rounds=rounds, numbers=itertools.count())
        agent = create_react_agent(model, [lookup], checkpointer=saver, version="v2")
    config = {"configurable": {"thread_id": "agent"}, "recursion_limit": 10 * rounds}
    agent.invoke({"messages": [HumanMessage("Find everything.", id="human")]}, config)


def _call(number: int) -> dict[str, Any]:
    return {"name": "lookup", "args": {"number": number}, "id": f"call-{number}"}


if __name__ == "__main__":
    main([run])
