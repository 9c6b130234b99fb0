"""Make reports as jobs make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reducing_saver.jobs.report import Bytes, Report, Skip, ThreadSize, curve, largest

EVIL = "tenant/<script>window.pwned = 1</script>\x1b[2J & \"quoted\" 'id'"


def threads(number: int = 140) -> list[ThreadSize]:
    """Give threads of 2 kB to 20 MB, of which every seventeenth stays whole."""
    made = []
    for n in range(number):
        before = int(2000 * 10 ** (4 * n / max(1, number - 1)))
        after = before if n % 17 == 0 else 1500 + before // 50
        name = EVIL if n == number - 2 else f"user-{n:03}"
        made.append(ThreadSize(name, before, after, 3 + n))
    return made


def report(number: int = 140, **more: Any) -> Report:
    """Give the report of a dry run over such threads."""
    sizes = threads(number)
    freed = sum(one.freed for one in sizes)
    parts = [int(freed * share) for share in (0.85, 0.08, 0.05)]
    made = Report(
        dry_run=True,
        backend="postgres",
        job="nightly",
        policy="keep turns:6; last 1; paused: skip",
        archive="the same database",
        threads=number,
        compacted=number - 12,
        skipped={Skip.YOUNG: 4, Skip.PAUSED: 6, Skip.PENDING: 2, Skip.DONE: 0},
        bytes=Bytes(*parts, freed - sum(parts), sum(one.after for one in sizes)),
        archived=5_300_000,
        wal=66_000_000,
        evicted=4231,
        deleted=15230,
        largest=largest(sizes),
        curve=curve(sizes),
        seconds=1.4,
        estimate_seconds=733,
    )
    return replace(made, **more)
