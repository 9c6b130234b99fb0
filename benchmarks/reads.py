"""Compare `get_tuple` and `put_writes` of a wrapped saver with the bare one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from reducing_saver import Window

from .conversations import take, tool_heavy
from .loop import Loop
from .report import Goal, Report, Table, main, progress
from .stores import Hollow, Store, stores, wrapped
from .timing import Act, Prepare, interleave

ROUNDS = {50: 400, 1_000: 100, 5_000: 40}
"""Messages in the list that is loaded, and how often it is."""

WRITES = 400
ALONE = "alone"
NEVER = Window(("tokens", 10**9))


def run(short: bool) -> Report:
    """Load what was stored, and store the writes of a task beside it."""
    report = Report("reads")
    with stores() as found:
        for store in found:
            _measure(report, store, short)
    return report


def _measure(report: Report, store: Store, short: bool) -> None:
    share = 8 if short else 1
    rows = []
    for size, rounds in ROUNDS.items():
        progress(f"reads: {store.name}, {size:,} messages")
        with _loops(store, size) as loops:
            cases = {name: _load(loop) for name, loop in loops.items() if name != ALONE}
            rows.append((f"get_tuple, {size:,} messages", interleave(cases, rounds // share)))
    with _loops(store, 50) as loops:
        cases = {name: _write(loop) for name, loop in loops.items()}
        rows.append(("put_writes, 3 messages", interleave(cases, WRITES // share)))
    pairs = [(call, times["bare"], times["wrapped"]) for call, times in rows]
    alone = [times[ALONE].ms if ALONE in times else None for _, times in rows]
    table = [
        (call, bare.ms, ours.ms, ours.against(bare), own)
        for (call, bare, ours), own in zip(pairs, alone, strict=True)
    ]
    columns = ("call", "bare ms", "wrapped ms", "ratio", "alone, ms")
    report.tables.append(Table(store.name, columns, table))
    for call, bare, ours in pairs:
        text = f"{store.name}, {call}: wrapped / bare"
        report.goals.append(Goal(text, ours.against(bare), 1.05))


@contextlib.contextmanager
def _loops(store: Store, size: int) -> Iterator[dict[str, Loop]]:
    messages = take(tool_heavy(), size)
    with store.open() as bare, store.open() as inner:
        savers = {"bare": bare, "wrapped": wrapped(inner, NEVER), ALONE: wrapped(Hollow(), NEVER)}
        loops = {name: Loop(saver) for name, saver in savers.items()}
        for loop in loops.values():
            loop.ready(messages)()
        yield loops


def _load(loop: Loop) -> Prepare:
    return lambda _: loop.load


def _write(loop: Loop) -> Prepare:
    new = take(tool_heavy(seed=1), 3)

    def prepare(_: int) -> Act:
        task = str(uuid.uuid4())
        return lambda: loop.saver.put_writes(loop.config, [("messages", new)], task, "")

    return prepare


if __name__ == "__main__":
    main([run])
