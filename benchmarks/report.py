"""Say what was measured and on which machine: Markdown for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

Cell = str | int | float | None

DISTRIBUTIONS = (
    "reducing-saver",
    "langchain-core",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "agentstate-reducer",
)


@dataclass(frozen=True, slots=True)
class Table:
    """Hold one table; None is printed as a dash."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """Hold what was aimed at: `measured` should be at most `limit`."""

    text: str
    measured: float
    limit: float

    @property
    def met(self) -> bool:
        return self.measured <= self.limit


@dataclass(slots=True)
class Report:
    """Hold the tables and goals of one benchmark."""

    name: str
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)


Run = Callable[[bool], Report]


def main(runs: Sequence[Run], arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks as a command with `--short` and `--json FILE`."""
    parser = argparse.ArgumentParser(description="Benchmarks of reducing-saver.")
    parser.add_argument("--short", action="store_true", help="fewer runs: to try, not to publish")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    chosen = parser.parse_args(arguments)
    about = machine()
    _say("; ".join(f"{name} {value}" for name, value in about.items()) + "\n")
    reports = []
    for run in runs:
        report = run(chosen.short)
        reports.append(report)
        _say(markdown(report))
    if chosen.json:
        figures = {"machine": about, "short": chosen.short, "benchmarks": _plain(reports)}
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


def machine() -> dict[str, str]:
    """Name what the figures depend on."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    about = {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "load": load,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    return about | {name: _version(name) for name in DISTRIBUTIONS}


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"## {report.name}", ""]
    for table in report.tables:
        lines += [f"**{table.title}**", "", _row(table.columns), _row(["---"] * len(table.columns))]
        lines += [_row([_cell(cell) for cell in row]) for row in table.rows]
        lines += ["", *(f"{note}\n" for note in table.notes)]
    for goal in report.goals:
        verdict = "met" if goal.met else "MISSED"
        lines.append(f"- {goal.text}: {goal.measured:.3g}, goal at most {goal.limit:g}: {verdict}")
    return "\n".join(lines) + "\n"


def progress(words: str) -> None:
    """Say on standard error what is being measured."""
    sys.stderr.write(f"... {words}\n")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Cell) -> str:
    match value:
        case None:
            return "-"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        case _:
            return value


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _plain(reports: Sequence[Report]) -> dict[str, object]:
    return {
        report.name: {
            "tables": [
                {"title": t.title, "rows": [dict(zip(t.columns, r, strict=True)) for r in t.rows]}
                for t in report.tables
            ],
            "goals": [asdict(goal) | {"met": goal.met} for goal in report.goals],
        }
        for report in reports
    }
