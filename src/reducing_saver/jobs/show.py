"""Print what a job did, or would do, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta

from .._console import Cell, Column, Screen, gauge, say, screen, spans, table
from .._words import count, duration, one_line, size
from .figures import (
    Part,
    about,
    change,
    height,
    lead,
    notes,
    numbers,
    parts,
    percent,
    power,
    scale,
    skipped,
    title,
)
from .report import MOST_ERRORS, Erased, JobStatus, Progress, Report, Swept

LINES, AXIS = 10, 10
"""How many lines the curve is high at most, and how wide its labels are."""

_COLOURS = {
    "old_versions": "red",
    "writes": "yellow",
    "checkpoints": "magenta",
    "evicted": "blue",
    "stays": "green",
}
# Where there is no colour, or no block, the parts are told by what they are drawn with.
_SHADES = dict(zip(_COLOURS, "█▓▒░·", strict=True))
_ASCII = dict(zip(_COLOURS, "#=+-.", strict=True))


def show(report: Report, *, command: str = "", idle: timedelta | None = None) -> None:
    """Print a report; `command` is what applies it, or goes on with it."""
    say(title(report), style="bold")
    for line in about(report):
        say(one_line(line), style="dim")
    if report.bytes.before:
        say()
        _show_bytes(report, screen())
    if len(report.curve) > 1:
        say()
        _show_curve(report, screen())
    if report.largest:
        say()
        _show_largest(report)
    if found := numbers(report):
        say()
        columns = (Column(), Column(right=True), Column(rest=True))
        table(columns, ((label, (value, "bold"), (note, "dim")) for label, value, note in found))
    _show_skipped(report)
    for note in notes(report, idle):
        say(note)
    _show_errors(report.errors)
    if command:
        say()
        say(f"{lead(report)}:")
        say(f"  {command}", style="bold", wrap=False)


def _show_bytes(report: Report, to: Screen) -> None:
    say(f"Where the bytes are: {change(report)}")
    found = parts(report)
    spans([(_drawn(one, to) * cells, _COLOURS[one.name]) for one, cells in _shared(found, to)])
    columns = (Column(), Column(), Column(right=True), Column(right=True), Column())
    table(columns, (_part_row(one, to) for one in found if one.bytes))


def _part_row(part: Part, to: Screen) -> Iterator[Cell]:
    yield _drawn(part, to) * 2, _COLOURS[part.name]
    yield part.label
    yield percent(part.share)
    yield size(part.bytes)
    yield part.fate, "dim"


def _drawn(part: Part, to: Screen) -> str:
    if not to.blocks:
        return _ASCII[part.name]
    return "█" if to.colours else _SHADES[part.name]


def _shared(found: Sequence[Part], to: Screen) -> list[tuple[Part, int]]:
    """Share the columns of a line among the parts; whatever is there gets one."""
    there = [part for part in found if part.bytes]
    cells = [max(1, round(part.share * to.width)) for part in there]
    cells[cells.index(max(cells))] += to.width - sum(cells)
    return list(zip(there, cells, strict=True))


def _show_curve(report: Report, to: Screen) -> None:
    """Draw a thread as a column: what stays of it, and above that what leaves, on a log axis."""
    low, high = scale(report)
    each = max(1, min(3, (to.width - AXIS) // len(report.curve)))
    width = min(len(report.curve) * each, to.width - AXIS)
    last = len(report.curve) - 1
    chosen = [report.curve[round(i * last / (width - 1))] for i in range(width)]
    columns = [(height(before, low, high), height(after, low, high)) for before, after in chosen]
    full, light = ("█", "░") if to.blocks else ("#", "-")
    say(f"Threads by size: {full} stays, {light} leaves (log scale)")
    lines = max(1, LINES // (high - low))  # of each power of ten
    for row in range(lines * (high - low) - 1, -1, -1):
        level = (row + 0.5) / (lines * (high - low))
        drawn = [_cell(before > level, after > level, full, light) for before, after in columns]
        label = power(low + (row + 1) // lines) if (row + 1) % lines == 0 else ""
        spans([(f"{label:>{AXIS - 1}} ", "dim"), *drawn])


def _cell(before: bool, after: bool, full: str, light: str) -> tuple[str, str]:
    if after:
        return full, _COLOURS["stays"]
    return (light, _COLOURS["old_versions"]) if before else (" ", "")


def _show_largest(report: Report) -> None:
    numbers = (Column(name, right=True) for name in ("checkpoints", "before", ""))
    table(
        (Column("largest threads", rest=True), *numbers),
        (
            (
                one_line(one.thread),
                f"{one.checkpoints:,}",
                size(one.before),
                f"-> {size(one.after)}",
            )
            for one in report.largest
        ),
    )


def _show_skipped(report: Report) -> None:
    if found := skipped(report):
        total = sum(number for _, number in found)
        said = ", ".join(f"{number:,} {reason}" for reason, number in found)
        say(f"Skipped {count(total, 'thread')}: {said}.", style="yellow")


def _show_errors(errors: Sequence[str]) -> None:
    for error in errors[:MOST_ERRORS]:
        say(f"error: {one_line(error)}", style="red")


@contextmanager
def follow() -> Iterator[Callable[[Progress], None]]:
    """Show how far a job is while the block runs, on a terminal only."""
    with gauge() as move:

        def show_progress(progress: Progress) -> None:
            move(progress.done, progress.total, said(progress))

        yield show_progress


def said(progress: Progress) -> str:
    """Return what is said beside the bar."""
    left = sum(progress.skipped.values())
    words = [f"{progress.rate:,.0f}/s", f"freed {size(progress.freed)}"]
    words += [f"{left:,} skipped"] if left else []
    words += [f"{duration(progress.eta)} left"] if progress.eta is not None else []
    return ", ".join(words)


def show_status(jobs: Sequence[JobStatus]) -> None:
    """Print what the ledger says of each job."""
    if not jobs:
        say("No job was ever started in this database.")
        return
    for job in jobs:
        _show_job(job)


def _show_job(job: JobStatus) -> None:
    state = "running" if job.running else "stopped" if job.left else "done"
    style = {"running": "green", "stopped": "yellow"}.get(state, "")
    amount = f"{job.done:,} of {count(job.total, 'thread')}"
    amount += f" in round {job.rounds:,}" if job.rounds > 1 else ""
    spans([(one_line(job.job), "bold"), (f"  {state}", style), (f", {amount}", "")])
    left = sum(job.skipped.values())
    said = [f"freed {size(job.bytes.freed)}", f"archived {size(job.archived)}"]
    said[-1] += f" in {job.rounds:,} rounds" if job.rounds > 1 else ""
    said += [f"{left:,} skipped"] if left else []
    said += [f"changed {job.changed:%Y-%m-%d %H:%M}"] if job.changed else []
    say(f"  {', '.join(said)}")
    say(f"  {one_line(job.policy)}", style="dim")
    _show_errors(job.errors)


def show_swept(swept: Swept, *, command: str = "") -> None:
    """Print what nobody names any more."""
    done, dry = ("This is gone.", "this would go.")
    if not swept.found:
        done, dry = ("There was nothing to sweep.", "there is nothing to sweep.")
    say(f"Dry run, nothing was changed: {dry}" if swept.dry_run else done, style="bold")
    rows = (
        ("blobs that no checkpoint names", f"{swept.blobs:,}", size(swept.blob_bytes)),
        ("writes of no checkpoint", f"{swept.writes:,}", size(swept.write_bytes)),
        ("archives whose thread is gone", f"{swept.archives:,}", ""),
    )
    if swept.found:
        table((Column(), Column(right=True), Column(right=True)), rows)
    if swept.waiting:
        are = "is" if swept.waiting == 1 else "are"
        say(f"{swept.waiting:,} {are} too young to tell (--grace), and left.", style="yellow")
    _show_errors(swept.errors)
    if command:
        say("\nThis applies it:")
        say(f"  {command}", style="bold", wrap=False)


def show_erased(erased: Erased, *, command: str = "") -> None:
    """Print what was erased, and what a second look found."""
    threads = count(len(erased.threads), "thread")
    say(
        f"Dry run, nothing was changed: {threads} would be erased."
        if erased.dry_run
        else f"{threads} erased.",
        style="bold",
    )
    names = Column("table"), Column("rows", right=True)
    table(names, ((name, f"{rows:,}") for name, rows in erased.rows.items() if rows))
    if not erased.dry_run:
        looked = count(len(erased.looked_at), "column")
        if erased.found:
            for place, rows in erased.found.items():
                say(f"still there: {count(rows, 'row')} in {place}", style="red")
        else:
            say(f"A second look found nothing of it in {looked}.", style="green")
    if command:
        say("\nThis applies it:")
        say(f"  {command}", style="bold", wrap=False)


def as_json(report: Report) -> dict[str, object]:
    """Return a report for programs."""
    return {
        **asdict(report),
        "skipped": {str(reason): number for reason, number in report.skipped.items()},
        "bytes": {
            **asdict(report.bytes),
            "freed": report.bytes.freed,
            "before": report.bytes.before,
        },
        "exit_code": report.exit_code,
    }
