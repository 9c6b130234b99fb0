"""Print what the two runs left behind, for people or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .._console import Cell, Column, say, table
from .._words import NAMES, listed, place, size
from ..engine import Mark, Window
from .measure import LOADS, Head, Report, Thread

ROWS = 12
"""How many conversations are listed without `--all`."""

NOISE = 0.03
"""Milliseconds a thread by which two loading times differ by chance."""


def show(report: Report, *, every: bool) -> None:
    """Print the table of bare against wrapped, and whether the stored histories are valid.

    Several conversations are listed above it: those that shrank most, or every one.
    """
    several = len(report.threads) > 1
    if several:
        _show_threads(report.threads, len(report.threads) if every else ROWS)
    title = f"{len(report.threads)} conversations" if several else ""
    sides = (Column(name, right=True) for name in ("bare", "wrapped", ""))
    table((Column(title), *sides), map(_row, _figures(report)), gap=3, header="bold")
    say("head: the newest checkpoint of a thread, which its next turn loads", style="dim")
    say(f"time to load: the fastest of {LOADS} loads", style="dim")
    say(_settings(report), style="dim")
    for note, number in report.notes.items():
        say(f"note: {note}: {number}", style="yellow")
    for warning in report.warnings:
        say(f"warning: {warning}", style="yellow")
    say()
    _show_validity(report)
    say("\nIn your own code, one line comes before the graph is compiled:\n")
    say(f"    {_line(report.window)}", style="bold", wrap=False)
    say("    graph = builder.compile(checkpointer=saver)", wrap=False)


def _show_threads(threads: tuple[Thread, ...], most: int) -> None:
    by_saving = sorted(threads, key=lambda t: t.wrapped.bytes - t.bare.bytes)
    chosen = {thread.id for thread in by_saving[:most]}
    names = ("turns", "messages", "", "bytes", "", "valid")
    table(
        (Column("conversation", most=28), *(Column(name, right=True) for name in names)),
        (_thread_row(thread) for thread in threads if thread.id in chosen),
    )
    if hidden := len(threads) - len(chosen):
        say(f"... and {hidden} more, which shrank less (--all lists them)", style="dim")
    say()


def _thread_row(thread: Thread) -> Iterator[Cell]:
    bare, wrapped = thread.bare, thread.wrapped
    yield thread.id
    yield f"{thread.turns:,}"
    yield f"{bare.messages:,}"
    yield f"-> {wrapped.messages:,}"
    yield size(bare.bytes)
    yield f"-> {size(wrapped.bytes)}"
    yield "no" if wrapped.problems else "yes"


class Figure(NamedTuple):
    """Hold one line of the table; `less` says what fewer of it means, empty for no ratio."""

    label: str
    bare: float
    wrapped: float
    shown: Callable[[float], str]
    less: str = ""
    noise: float = 0


def _figures(report: Report) -> Iterator[Figure]:
    threads, left, right = report.threads, report.bare, report.wrapped
    heads, loaded = ("heads", "every thread") if len(threads) > 1 else ("head", "the thread")

    def both(measure: Callable[[Head], float]) -> tuple[float, float]:
        return sum(measure(t.bare) for t in threads), sum(measure(t.wrapped) for t in threads)

    turns = _turns(report)
    noise = NOISE * len(threads)
    load = both(lambda head: head.load_ms)
    yield Figure("turns", turns, turns, _whole)
    yield Figure(f"messages in the {heads}", *both(lambda head: head.messages), _whole, "fewer")
    yield Figure(f"bytes in the {heads}", *both(lambda head: head.bytes), size, "smaller")
    yield Figure("bytes in the file", left.bytes, right.bytes, size, "smaller")
    rows = (left.checkpoints, right.checkpoints)
    yield Figure("checkpoints in the file", *rows, _whole, "fewer")
    yield Figure(f"time to load {loaded}", *load, _milliseconds, "faster", noise)
    # No ratio: one run each, and most of it is waiting for the disk, so it would be noise.
    yield Figure("time of the whole run", left.seconds, right.seconds, _seconds)


def _turns(report: Report) -> int:
    return sum(thread.turns for thread in report.threads)


def _row(figure: Figure) -> Iterator[Cell]:
    yield figure.label
    yield figure.shown(figure.bare)
    yield figure.shown(figure.wrapped)
    yield ratio(figure)


def ratio(figure: Figure) -> str:
    """Say how much less the wrapped side is; "the same" where it may be chance."""
    low, high = sorted((figure.bare, figure.wrapped))
    if not figure.less or not low:
        return ""
    if high - low < figure.noise or high < 1.05 * low:
        return "the same"
    more = {"fewer": "more", "smaller": "larger", "faster": "slower"}[figure.less]
    word = figure.less if figure.wrapped == low else more
    return f"{high / low:.{0 if high > 10 * low else 1}f}x {word}"


def _settings(report: Report) -> str:
    window = report.window
    triggers = " or ".join(f"{measure}:{value}" for measure, value in window.triggers)
    said = f"keep {window.keep.measure}:{window.keep.value}, trigger {triggers}"
    said += f"; took {report.seconds:.1f} s"
    same = sum(thread.bare.messages == thread.wrapped.messages for thread in report.threads)
    if same and len(report.threads) > 1:
        said += f"; {same} conversations stayed below the trigger and are stored whole"
    elif same:
        said += "; the conversation stayed below the trigger and is stored whole"
    return said


def _show_validity(report: Report) -> None:
    total = len(report.threads)
    what = f"All {total} stored histories are" if total > 1 else "The stored history is"
    refused = {name: report.refused(key) for key, name in NAMES.items()}
    takes = [name for name, found in refused.items() if not found]
    if takes:
        say(f"{what} still valid for {listed(takes)}.", style="green")
    for name, found in refused.items():
        if found:
            thread, problem = found[0]
            first = f"{problem.rule} in {thread.id}{place(problem.index)}"
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            say(f"NOT valid for {name}: {first}{more}.", style="red")
    recorded = [thread for thread in report.threads if thread.wrapped.problems]
    if recorded and total > 1:
        say(f"{total - len(recorded)} of {total} stored histories are valid for all.")
    if recorded and all(thread.bare.problems for thread in recorded):
        say("The bare thread has a problem there too: it is in the recording.")


def _line(window: Window) -> str:
    default = Window(window.keep)
    parts = [f"keep={_pair(window.keep)}"]
    if window.triggers != default.triggers:
        marks = [_pair(mark) for mark in window.triggers]
        parts.append(f"trigger={marks[0] if len(marks) == 1 else '[' + ', '.join(marks) + ']'}")
    if window.cap != Window(window.keep, window.triggers).cap:
        parts.append(f"cap={_pair(window.cap)}")
    return f"saver = ReducingSaver(saver, Window({', '.join(parts)}), archive=Discard())"


def _pair(mark: Mark) -> str:
    return f'("{mark.measure}", {mark.value})'


def as_json(report: Report) -> dict[str, object]:
    """Return the report for programs."""
    files = {"bare": report.bare, "wrapped": report.wrapped}
    return {
        "seconds": round(report.seconds, 3),
        "turns": _turns(report),
        "files": {
            side: {
                "bytes": file.bytes,
                "checkpoints": file.checkpoints,
                "seconds": round(file.seconds, 3),
            }
            for side, file in files.items()
        },
        "valid": {key: not report.refused(key) for key in NAMES},
        "valid_conversations": sum(not thread.wrapped.problems for thread in report.threads),
        "conversations": [_thread_as_json(thread) for thread in report.threads],
        "notes": report.notes,
        "warnings": report.warnings,
    }


def _thread_as_json(thread: Thread) -> dict[str, object]:
    sides = {"bare": thread.bare, "wrapped": thread.wrapped}
    return {
        "id": thread.id,
        "turns": thread.turns,
        **{
            side: {
                "messages": head.messages,
                "bytes": head.bytes,
                "load_ms": round(head.load_ms, 3),
                "problems": [{"rule": p.rule, "index": p.index} for p in head.problems],
            }
            for side, head in sides.items()
        },
    }


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f} ms"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
