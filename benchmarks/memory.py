"""State the memory that a wrapper holds after ten thousand threads."""

from __future__ import annotations

import gc
import tracemalloc

from langchain_core.messages import BaseMessage

from reducing_saver import Window

from .conversations import renamed, take, tool_heavy
from .loop import Loop
from .report import Cell, Report, Table, main, progress
from .stores import Hollow, Saver, wrapped

THREADS, SHORT_THREADS = 10_000, 1_500
MESSAGES, PUTS = 40, 5
WINDOWS = {
    "messages 10/20": Window(("messages", 10), ("messages", 20)),
    "tokens 1,000/2,000": Window(("tokens", 1_000), ("tokens", 2_000)),
}


def run(short: bool) -> Report:
    """Run threads that evict through a wrapper around a saver that stores nothing."""
    report = Report("memory")
    threads = SHORT_THREADS if short else THREADS
    rows: list[tuple[Cell, ...]] = []
    for name, window in WINDOWS.items():
        progress(f"memory: {name}")
        rows += [(name, *row) for row in _held(window, threads)]
    columns = ("window", "threads", "MB held", "bytes a thread")
    note = (
        f"tracemalloc, after {MESSAGES} and {PUTS - 1} more messages in each thread, of which most "
        "were evicted; the messages themselves have gone. MB are 10^6 bytes."
    )
    report.tables.append(Table("Memory held by the wrapper", columns, rows, (note,)))
    return report


def _held(window: Window, threads: int) -> list[tuple[int, float, float]]:
    saver = wrapped(Hollow(), window)
    script = take(tool_heavy(), MESSAGES + PUTS)
    tracemalloc.start()
    try:
        _thread(saver, script)
        gc.collect()
        before, done, rows = tracemalloc.get_traced_memory()[0], 1, []
        for some in (threads // 10, threads):
            while done < some:
                _thread(saver, script)
                done += 1
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            rows.append((some, held / 1e6, held / some))
    finally:
        tracemalloc.stop()
    return rows


def _thread(saver: Saver, script: list[BaseMessage]) -> None:
    messages, loop = renamed(script), Loop(saver)
    for more in range(PUTS):
        loop.ready(messages[: MESSAGES + more], rest=more == 0)()


if __name__ == "__main__":
    main([run])
