"""Say a report in words and shares, for the terminal and the page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import floor, log10
from typing import NamedTuple

from .._retain import spelled
from .._words import count, duration, size
from .report import Report, Skip

LABELS = {
    "old_versions": "old versions",
    "writes": "writes",
    "checkpoints": "checkpoints",
    "evicted": "evicted messages",
    "stays": "stays",
}
# What leaves nothing may never have been compacted: it may be small, or done.
_SAID = {str(Skip.DONE): "with nothing left to do"}
BACKENDS = {"postgres": "Postgres", "sqlite": "SQLite"}


class Part(NamedTuple):
    """Hold a part of the bytes: its share of all of them, from 0 to 1, and what becomes of it."""

    name: str
    label: str
    bytes: int
    share: float
    fate: str


class Number(NamedTuple):
    """Hold one of the three numbers, and what it means."""

    label: str
    value: str
    note: str


def parts(report: Report) -> list[Part]:
    """Return where the bytes are: what leaves first."""
    before = report.bytes.before
    fate = "leaves" if report.dry_run else "freed"
    names = LABELS
    if is_survey(report):
        fate, names = "history", {**LABELS, "stays": "newest checkpoints"}
    held = {name: getattr(report.bytes, name) for name in names}
    return [
        Part(
            name,
            label,
            held[name],
            held[name] / before if before else 0.0,
            "" if name == "stays" else fate,
        )
        for name, label in names.items()
    ]


def percent(share: float) -> str:
    """Return a share in words that never round something to nothing, or less to all."""
    value = 100 * share
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %" if value < 10 or value > 90 else f"{value:.0f} %"


def is_survey(report: Report) -> bool:
    """Tell whether it only says where the bytes are, by no policy."""
    return report.dry_run and not report.policy


def title(report: Report) -> str:
    """Return what was done, or would be, in one sentence."""
    threads = count(report.threads, "thread")
    if is_survey(report):
        takes = "takes" if report.threads == 1 else "take"
        return f"{threads} {takes} {size(report.bytes.before)}."
    if report.dry_run:
        return f"Dry run, nothing was changed: {report.compacted:,} of {threads} would shrink."
    if report.left:
        left, done = count(report.left, "thread"), count(report.compacted, "thread")
        return f"Stopped with {left} left: {done} compacted so far."
    return f"{report.compacted:,} of {threads} were compacted."


def change(report: Report) -> str:
    """Return the bytes before and after, and what that saves."""
    before, after = report.bytes.before, report.bytes.stays
    if is_survey(report):
        share = percent(report.bytes.freed / before) if before else "nothing"
        return f"{share} is history, which no run loads"
    said = f"{size(before)} -> {size(after)}"
    if not report.bytes.freed:
        return f"{said}: nothing leaves"
    times = before / after if after else 0
    smaller = f", {times:,.0f}x smaller" if times >= 2 else ""
    return f"{said}: {percent(report.bytes.freed / before)} less{smaller}"


def numbers(report: Report) -> list[Number]:
    """Return what is freed, archived and returned: three numbers, never added up.

    None of a survey.
    """
    if is_survey(report):
        return []
    messages = count(report.evicted, "message")
    waits = _vacuum(report) if report.bytes.freed and not report.returned else None
    return [
        Number("freed inside the database", size(report.bytes.freed), "new rows use it again"),
        Number("added to the archive", size(report.archived), messages),
        Number("returned to the disk", size(report.returned), waits[0] if waits else ""),
    ]


def _vacuum(report: Report) -> tuple[str, str]:
    """Return what gives freed bytes back to the disk, in short and in a sentence."""
    match report.backend:
        case "postgres":
            how = "VACUUM FULL, which locks the table, or pg_repack returns it to the disk."
            return "until VACUUM FULL", how
        case "sqlite":
            return "until VACUUM", "--vacuum, for which writers wait, returns it to the disk."
        case _:
            return "by the database", "When the disk gets it back is up to the database."


def skipped(report: Report) -> list[tuple[str, int]]:
    """Return why threads were left as they are, and how many; most first."""
    found = [(_SAID.get(str(reason), str(reason)), n) for reason, n in report.skipped.items() if n]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def notes(report: Report, idle: timedelta | None = None) -> Iterator[str]:
    """Yield what else is to be known: time, write-ahead log, what was held back."""
    if is_survey(report):
        if report.threads:
            yield "A run loads only the newest checkpoint; compact frees the others, by a policy."
        return
    if report.dry_run and report.compacted and report.estimate_seconds is not None:
        yield f"Applying it takes about {duration(report.estimate_seconds)}."
    elif not report.dry_run:
        yield f"It took {duration(report.seconds)}."
    if report.wal:
        wrote = "It would write about" if report.dry_run else "It wrote"
        yield f"{wrote} {size(report.wal)} of write-ahead log."
    if report.bytes.freed and not report.returned:
        yield _vacuum(report)[1]
    if report.evicted and not report.archived:
        yield f"No archive is kept: {count(report.evicted, 'message')} {_go(report)}."
    if report.skipped.get(Skip.PAUSED):
        yield "Of paused threads nothing is counted as freed."
    if idle and (young := report.skipped.get(Skip.YOUNG)):
        them = "it" if young == 1 else "them"
        changed = f"{count(young, 'thread')} changed within the last {spelled(idle)}"
        yield f"{changed}; --idle 0s takes {them} too."


def _go(report: Report) -> str:
    return "would be gone" if report.dry_run else "are gone"


def lead(report: Report) -> str:
    """Return what is said before the command."""
    if is_survey(report):
        return "What a policy would free"
    return "This applies it" if report.dry_run else "This goes on"


def about(report: Report) -> list[str]:
    """Return what the job was in a line or two: where, how, and by which policy."""
    named = {"job": report.job, "archive": report.archive}
    backend = BACKENDS.get(report.backend, report.backend)
    first = [backend, *(f"{name}: {said}" for name, said in named.items() if said)]
    return [", ".join(first), *([f"policy: {report.policy}"] if report.policy else [])]


def scale(report: Report) -> tuple[int, int]:
    """Return the powers of ten between which the curve is drawn on a log axis."""
    sizes = [value for pair in report.curve for value in pair if value > 0]
    if not sizes:
        return 0, 1
    low, high = floor(log10(min(sizes))), floor(log10(max(sizes))) + 1
    return low, max(high, low + 1)


def power(exponent: int) -> str:
    """Return a power of ten in bytes: `100 kB`."""
    thousands = min(max(exponent, 0) // 3, 4)
    unit = ("bytes", "kB", "MB", "GB", "TB")[thousands]
    return f"{10 ** (max(exponent, 0) - 3 * thousands):,} {unit}"


def height(value: int, low: int, high: int) -> float:
    """Return how high a value stands between two powers of ten, from 0 to 1."""
    if value <= 0:
        return 0.0
    return min(1.0, max(0.0, (log10(value) - low) / (high - low)))
