"""Print for people: lines, tables and bars. Only this file knows rich, which is an extra.

Results go to standard output; bars, warnings and errors to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

Cell: TypeAlias = str | tuple[str, str]
"""A text, or a text and its style."""


class RefusedError(Exception):
    """Say in one line what is wrong with what was asked for."""


class Column(NamedTuple):
    """Say how a column is shown; nothing in a table is wrapped, what is too long is cut."""

    title: str = ""
    right: bool = False
    most: int | None = None
    rest: bool = False  # it takes what the others leave of the terminal's width


class FailedError(Exception):
    """Say in one line why what was asked for could not be done to its end."""


class Screen(NamedTuple):
    """Say what results are printed on; without `blocks` only ASCII can be."""

    width: int
    colours: bool
    blocks: bool


def screen() -> Screen:
    """Return what standard output is: as wide as the terminal, but no wider than 100."""
    from rich.console import Console

    console = Console()
    blocks = console.encoding.lower().startswith("utf")
    return Screen(min(console.width, 100), console.color_system is not None, blocks)


def say(text: str = "", *, style: str = "", wrap: bool = True) -> None:
    """Print a line; `wrap=False` is for what will be copied."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(text, style=style), soft_wrap=not wrap)


def spans(cells: Iterable[tuple[str, str]]) -> None:
    """Print a line of texts, each in its style."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.assemble(*cells), soft_wrap=True)


def table(
    columns: Iterable[Column], rows: Iterable[Iterable[Cell]], *, gap: int = 2, header: str = "dim"
) -> None:
    """Print a table; without any title it has no header."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = list(columns)
    grid = Table(
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style=header,
        show_header=any(column.title for column in columns),
        expand=any(column.rest for column in columns),
    )
    for title, right, most, rest in columns:
        grid.add_column(
            title,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=most,
            ratio=1 if rest else None,
        )
    for row in rows:
        cells = ((cell, "") if isinstance(cell, str) else cell for cell in row)
        grid.add_row(*(Text(text, style=style) for text, style in cells))
    Console(highlight=False).print(grid)


def indented(text: str) -> None:
    """Print a text two columns in; wrapped on a terminal only, since elsewhere it is read on."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    else:
        sys.stdout.write("".join(f"  {line}".rstrip() + "\n" for line in text.split("\n")))


@contextmanager
def bars(names: Sequence[str], total: int, unit: str) -> Iterator[Callable[[str], None]]:
    """Show a bar for each name while the block runs; what is given moves one on by one."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description:<8}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        tasks = {name: shown.add_task(name, total=total, start=False) for name in names}

        def tick(name: str) -> None:
            shown.start_task(tasks[name])
            shown.advance(tasks[name])

        yield tick


@contextmanager
def gauge() -> Iterator[Callable[[int, int, str], None]]:
    """Show one bar while the block runs; what is given says done, total and words beside it."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    with progress.Progress(
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[words]}"),
        console=console,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    ) as shown:
        task = shown.add_task("", total=None, words="")
        yield lambda done, total, words: shown.update(
            task, completed=done, total=total, words=words
        )


def confirm(question: str) -> bool:
    """Ask on a terminal; the answer that was not given is no."""
    from rich.console import Console

    try:
        answer = Console(stderr=True, highlight=False).input(f"{question} [y/N] ", markup=False)
    except EOFError:
        say()
        return False
    return answer.strip().lower() in ("y", "yes")


def complain(message: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"reducing-saver: {' '.join(message.split())}\n")


def print_json(document: dict[str, object]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
