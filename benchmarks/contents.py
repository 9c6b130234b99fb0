"""What excerpts cost: a put with nothing oversize, and a put that cuts a result of 1 MB."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.store.memory import InMemoryStore

from reducing_saver import Discard, Excerpt, HeadTail, ReducingSaver, StoreArchive, Window, Words

from .conversations import take, text, tool_heavy
from .loop import Loop
from .report import Cell, Goal, Report, Table, main, progress
from .stores import Hollow, Saver, stores
from .timing import Prepare, interleave

SIZE, ROUNDS = 1_000, 200
LARGE = 1_000_000
WINDOW = Window(("messages", 10**9))

PLAIN: dict[str, Any] = {"archive": Discard(), "strict": True}
CASES: Mapping[str, dict[str, Any]] = {
    "wrapped": {},
    "excerpt": {"excerpt": Excerpt(2_000)},
    "excerpt, max_bytes": {"excerpt": Excerpt(2_000), "max_bytes": 10**9},
}


def run(short: bool) -> Report:
    """Measure both."""
    report = Report("contents")
    with stores() as found:
        for store in found[:1]:
            progress(f"contents: {store.name}, nothing oversize")
            with contextlib.ExitStack() as stack:
                loops = {"bare": Loop(stack.enter_context(store.open()))}
                for name, options in CASES.items():
                    inner = stack.enter_context(store.open())
                    loops[name] = Loop(ReducingSaver(inner, WINDOW, **PLAIN, **options))
                    alone = ReducingSaver(Hollow(), WINDOW, **PLAIN, **options)
                    loops[f"{name}, alone"] = Loop(alone)
                _nothing_oversize(report, store.name, loops, ROUNDS // 8 if short else ROUNDS)
    _large(report, 3 if short else 15)
    return report


def _nothing_oversize(report: Report, store: str, loops: Mapping[str, Loop], rounds: int) -> None:
    messages = take(tool_heavy(), SIZE + rounds)
    for loop in loops.values():
        loop.ready(messages[:SIZE])()

    def case(loop: Loop) -> Prepare:
        return lambda number: loop.ready(messages[: SIZE + number + 1])

    times = interleave({name: case(loop) for name, loop in loops.items()}, rounds)
    bare = times["bare"]
    rows: list[tuple[Cell, ...]] = []
    for name in CASES:
        alone = times[f"{name}, alone"].ms
        rows.append((name, times[name].ms, times[name].against(bare), alone, 1 + alone / bare.ms))
        text = f"{store}, {SIZE:,} messages, nothing oversize, {name}: 1 + alone / bare"
        report.goals.append(Goal(text, 1 + alone / bare.ms, 1.05))
    columns = ("saver", "ms", "/ bare", "alone, ms", "1 + alone / bare")
    note = f"bare: {bare.ms:.2f} ms"
    report.tables.append(Table(f"{store}: nothing oversize", columns, rows, (note,)))


def _large(report: Report, rounds: int) -> None:
    """Time the put that cuts one result of 1 MB, archives it whole, and stores the excerpt."""
    progress("contents: a result of 1 MB")
    lines = "".join(f"{i} {text(i % 500, 60)}\n" for i in range(LARGE // 66))
    call = {"name": "read", "args": {"of": "line 7000"}, "id": "c"}

    def case(options: dict[str, Any]) -> Prepare:
        def prepare(number: int) -> Any:
            store: Saver = Hollow()
            saver = ReducingSaver(
                store, WINDOW, archive=StoreArchive(InMemoryStore()), strict=True, **options
            )
            result = ToolMessage(lines, tool_call_id="c", name="read", id=f"t{number}")
            asked = AIMessage("", tool_calls=[call], id="a")
            return Loop(saver).ready([HumanMessage("what is in line 7000?", id="h"), asked, result])

        return prepare

    excerpt = Excerpt(2_000)
    cases = {
        "no excerpt": case({}),
        "head and tail": case({"excerpt": excerpt, "selector": HeadTail()}),
        "BM25": case({"excerpt": excerpt, "selector": Words()}),
    }
    times = interleave(cases, rounds)
    rows: list[tuple[Cell, ...]] = [(name, times[name].ms) for name in cases]
    note = "One put on a saver that stores nothing; the archive is in memory."
    report.tables.append(Table("A result of 1 MB", ("selector", "ms"), rows, (note,)))


if __name__ == "__main__":
    main([run])
