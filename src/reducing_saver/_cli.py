"""Define the commands `demo` and `try`, and what they print.

Results go to standard output, progress and errors to standard error. Bad input gives one line and
exit code 2. This is the only file that knows typer and rich.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ._errors import WindowError
from ._transcripts import Conversation, TranscriptError, read, words
from ._version import __version__
from .engine import (
    Action,
    Kind,
    Mark,
    Measure,
    Message,
    Plan,
    Problem,
    Verdict,
    Window,
    apply,
    plan,
    problems,
)
from .engine.validity import Provider

if TYPE_CHECKING:
    from .demo import Head, Recording, Report, Thread

KEEP = "turns:3"
Counts = dict[Provider, int]
NAMES: dict[Provider, str] = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini"}
COUNTERS = ("approximate", "tiktoken")
MEASURES = ("messages", "turns", "tokens", "bytes")
TEXT = 200
"""How many letters of a message `try --json` gives."""

ROWS = 12
"""How many conversations `demo` lists without `--all`."""

app = typer.Typer(
    name="reducing-saver",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class RefusedError(Exception):
    """Say in one line what is wrong with what was asked for."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; bad input is one line and a 2."""
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="reducing-saver",
            standalone_mode=False,
        )
        sys.stdout.flush()
        if code == _INTERRUPTED:  # newer versions of typer return it, older ones raise Abort
            _complain("stopped")
        return code if isinstance(code, int) else 0
    except (RefusedError, TranscriptError) as error:
        return _complain(str(error))
    except WindowError as error:
        return _complain(_in_our_words(error))
    except (KeyboardInterrupt, typer.Abort):
        _complain("stopped")
        return _INTERRUPTED
    except BrokenPipeError:  # `... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # typer's usage errors; their class is click's in older versions, and typer's in newer.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        return _complain(f"{explain()} (see reducing-saver --help)")


_INTERRUPTED = 130


def _complain(message: str) -> int:
    sys.stderr.write(f"reducing-saver: {' '.join(message.split())}\n")
    return 2


def _in_our_words(error: WindowError) -> str:
    value = error.value
    if isinstance(value, tuple) and len(value) == 2:
        value = f"{value[0]}:{value[1]}"
    return f"--{error.field.replace('_', '-')} {value} is not allowed: it must be {error.allowed}"


# Options that both commands have.

KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="MEASURE:N",
        help="How much stays once a trigger was passed. MEASURE is messages, turns, tokens or "
        "bytes; leading system messages always stay and are not counted. The default suits short "
        "and long conversations alike: what somebody says next rarely refers to more than the "
        "last three questions, and turns mean the same whatever the tools return.",
    ),
]
TriggerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trigger",
        metavar="MEASURE:N",
        help="Nothing leaves until there is more than this; give it again for several, any of "
        "which counts (default: twice --keep).",
        show_default=False,
    ),
]
CapOption = Annotated[
    str | None,
    typer.Option(
        "--cap",
        metavar="MEASURE:N",
        help="The hard bound within one long run, in messages, tokens or bytes "
        "(default: four times the trigger).",
        show_default=False,
    ),
]
PinOption = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="TOOL", help="Calls of this tool stay; may be repeated."),
]
LatestOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-latest-of",
        metavar="TOOL",
        help="The newest call of this tool stays, as a to-do list needs; may be repeated.",
    ),
]
FirstOption = Annotated[
    bool, typer.Option("--pin-first-human", help="The first human message stays.")
]
CounterOption = Annotated[
    str,
    typer.Option(
        "--token-counter", metavar="NAME", help="approximate (four characters a token) or tiktoken."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document for programs instead.")
]


def _window(
    keep: str,
    trigger: list[str] | None,
    cap: str | None,
    pin: list[str] | None,
    latest: list[str] | None,
    first: bool,
    counter: str,
) -> Window:
    for option, names in (("--pin", pin), ("--keep-latest-of", latest)):
        if names and not all(names):
            raise RefusedError(f"{option}: the name of a tool is needed")
    if counter not in COUNTERS:
        raise RefusedError(f"--token-counter {counter}: allowed are {' or '.join(COUNTERS)}")
    return Window(
        _mark("--keep", keep),
        [_mark("--trigger", each) for each in trigger] if trigger else None,
        None if cap is None else _mark("--cap", cap),
        pinned=pin or (),
        keep_latest_of=latest or (),
        pin_first_human=first,
        token_counter=counter,
    )


def _mark(option: str, text: str) -> tuple[str, int]:
    measure, colon, number = text.partition(":")
    measures = f"{', '.join(MEASURES[:-1])} or {MEASURES[-1]}"
    if not colon:
        raise RefusedError(f"{option} {text}: write it as MEASURE:N, for example turns:6")
    if measure not in MEASURES:
        raise RefusedError(f"{option} {text}: {measure!r} is no measure; allowed are {measures}")
    try:
        value = int(number)
    except ValueError:
        raise RefusedError(f"{option} {text}: {number!r} is not a whole number") from None
    if value < 1:
        raise RefusedError(f"{option} {text}: the number must be 1 or more")
    return measure, value


def _shown(mark: Mark) -> str:
    return f"{mark.measure}:{mark.value}"


@app.callback(invoke_without_command=True)
def reducing_saver(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Keep the messages that LangGraph checkpoints store within a window.

    `demo` shows what that saves, `try` what would leave your own transcript.
    """
    if version:
        typer.echo(f"reducing-saver {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# demo


@app.command()
def demo(
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Play your own conversations instead (JSON or JSON lines; message formats of "
            "OpenAI, Anthropic and LangChain): the model answers what was recorded, and so do the "
            "tools. One thread each.",
        ),
    ] = None,
    keep: KeepOption = KEEP,
    trigger: TriggerOption = None,
    cap: CapOption = None,
    turns: Annotated[
        int | None,
        typer.Option(
            "--turns",
            metavar="N",
            min=1,
            help="How many turns to play (default: 60; of --input all).",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="FOLDER",
            help="Keep the two SQLite files here, as bare.db and wrapped.db (default: a "
            "temporary folder, removed at the end).",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every conversation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a LangGraph agent twice on SQLite, bare and wrapped, and compare what is stored.

    Without --input it is a travel desk with 60 turns of flights and hotels.

    Only the model is scripted: no key and no network is needed.
    """
    _need_langgraph()
    window = _window(keep, trigger, cap, None, None, False, "approximate")
    recordings, empty = _recordings(source, turns)
    start = time.perf_counter()
    with _folder(folder) as place, _warnings() as warned, _progress(recordings) as tick:
        from .demo import compare

        report = compare(recordings, window, place, tick=tick)
    seconds = time.perf_counter() - start
    if empty:
        report.notes["conversations without messages, left out"] = empty
    if as_json:
        _print_json({**_report_as_json(report, seconds), "warnings": warned})
        return
    console = _console()
    if len(report.threads) > 1:
        _show_threads(console, report, every)
    _show_report(console, report, seconds, warned)
    if folder is not None:
        _say(console, f"\nThe two files: {report.bare.path} and {report.wrapped.path}")


def _need_langgraph() -> None:
    try:
        import langgraph.checkpoint.sqlite
        import langgraph.graph
        import langgraph.prebuilt  # noqa: F401
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"{error.name} is not installed; run: pip install 'reducing-saver[demo]'"
        ) from None


def _recordings(source: str | None, turns: int | None) -> tuple[list[Recording], int]:
    from .demo import TURNS, recording, travel_desk

    if source is None:
        return [travel_desk(turns or TURNS)], 0
    found = read(source)
    try:
        played = [recording(each) for each in found if each.messages]
    except TranscriptError as error:
        raise TranscriptError(f"{source}: {error}") from None
    return [replace(each, turns=each.turns[:turns]) for each in played], len(found) - len(played)


@contextmanager
def _folder(chosen: str | None) -> Iterator[Path]:
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="reducing-saver-") as temporary:
            yield Path(temporary)
        return
    folder = Path(chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"--db {chosen}: {error.strerror}; a folder is needed") from None
    for name in ("bare.db", "wrapped.db"):
        if (folder / name).exists():
            raise RefusedError(f"--db {chosen}: there is a {name} already; choose another folder")
    yield folder


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what the saver logs, so that it stands below the table and not across the bars."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() not in found:
                found.append(record.getMessage())

    logger = logging.getLogger(__package__)
    handler, spoke = Collect(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = spoke


@contextmanager
def _progress(recordings: Sequence[Recording]) -> Iterator[Callable[[str], None]]:
    total = sum(len(each.turns) for each in recordings)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("turns"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        tasks = {
            side: progress.add_task(side, total=total, start=False) for side in ("bare", "wrapped")
        }

        def tick(side: str) -> None:
            progress.start_task(tasks[side])
            progress.advance(tasks[side])

        yield tick


def _show_threads(console: Console, report: Report, every: bool) -> None:
    threads = report.threads
    hidden = 0 if every else max(0, len(threads) - ROWS)
    if hidden:
        by_saving = sorted(threads, key=_saved, reverse=True)
        chosen = {thread.id for thread in by_saving[:ROWS]}
        threads = tuple(thread for thread in threads if thread.id in chosen)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("conversation", no_wrap=True, overflow="ellipsis", max_width=28)
    for name in ("turns", "messages", "", "bytes", "", "valid"):
        table.add_column(name, justify="right")
    for thread in threads:
        bare, wrapped = thread.bare, thread.wrapped
        table.add_row(
            Text(thread.id),
            f"{thread.turns:,}",
            f"{bare.messages:,}",
            f"-> {wrapped.messages:,}",
            _bytes(bare.bytes),
            f"-> {_bytes(wrapped.bytes)}",
            "no" if wrapped.problems else "yes",
        )
    console.print(table)
    if hidden:
        _say(console, f"... and {hidden} more, which shrank less (--all lists them)", style="dim")
    console.print()


def _saved(thread: Thread) -> int:
    return thread.bare.bytes - thread.wrapped.bytes


def _show_report(console: Console, report: Report, seconds: float, warned: Sequence[str]) -> None:
    several = len(report.threads) > 1
    heads = "heads" if several else "head"
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(f"{len(report.threads)} conversations" if several else "")
    for name in ("bare", "wrapped", ""):
        table.add_column(name, justify="right")
    for label, sides, show, less in _figures(report, heads):
        table.add_row(label, *map(show, sides), _ratio(*sides, less))
    console.print(table)
    _say(console, "head: the newest checkpoint of a thread, which its next turn loads", style="dim")
    _say(console, _settings(report, seconds), style="dim")
    for note, count in report.notes.items():
        _say(console, f"note: {count} {note}", style="yellow")
    for warning in warned:
        _say(console, f"warning: {warning}", style="yellow")
    console.print()
    _show_validity(console, report)
    console.print("\nIn your own code, one line comes before the graph is compiled:\n")
    console.print(Text(f"    {_line(report.window)}", style="bold"), soft_wrap=True)
    console.print(Text("    graph = builder.compile(checkpointer=saver)"), soft_wrap=True)


class Figure(NamedTuple):
    """Hold one line of the table: bare against wrapped."""

    label: str
    sides: tuple[float, float]
    show: Callable[[float], str]
    less: str = ""


def _figures(report: Report, heads: str) -> Iterator[Figure]:
    bare = [thread.bare for thread in report.threads]
    wrapped = [thread.wrapped for thread in report.threads]

    def both(measure: Callable[[Head], float]) -> tuple[float, float]:
        return sum(map(measure, bare)), sum(map(measure, wrapped))

    turns = sum(thread.turns for thread in report.threads)
    every = "every thread" if len(bare) > 1 else "the thread"
    left, right = report.bare, report.wrapped
    yield Figure("turns", (turns, turns), _whole)
    yield Figure(f"messages in the {heads}", both(lambda h: h.messages), _whole, "fewer")
    yield Figure(f"bytes in the {heads}", both(lambda h: h.bytes), _bytes, "smaller")
    yield Figure("bytes in the file", (left.bytes, right.bytes), _bytes, "smaller")
    rows = (left.checkpoints, right.checkpoints)
    yield Figure("checkpoints in the file", rows, _whole, "fewer")
    yield Figure(f"time to load {every}", both(lambda h: h.load_ms), _milliseconds, "faster")
    # No ratio: one run each, and most of it is waiting for the disk, so it would be noise.
    yield Figure("time of the whole run", (left.seconds, right.seconds), _seconds)


def _ratio(bare: float, wrapped: float, less: str) -> str:
    if not less or not bare or not wrapped:
        return ""
    if 0.95 < bare / wrapped < 1.05:
        return "the same"
    if bare > wrapped:
        return f"{bare / wrapped:.1f}x {less}"
    more = {"fewer": "more", "smaller": "larger", "faster": "slower"}[less]
    return f"{wrapped / bare:.1f}x {more}"


def _settings(report: Report, seconds: float) -> str:
    window = report.window
    triggers = " or ".join(_shown(mark) for mark in window.triggers)
    same = sum(thread.bare.messages == thread.wrapped.messages for thread in report.threads)
    below = ""
    if same and len(report.threads) > 1:
        below = f"; {same} conversations stayed below the trigger and are stored whole"
    elif same:
        below = "; the conversation stayed below the trigger and is stored whole"
    return f"keep {_shown(window.keep)}, trigger {triggers}; took {seconds:.1f} s{below}"


def _show_validity(console: Console, report: Report) -> None:
    refused = {key: report.refused(key) for key in NAMES}
    takes = [NAMES[key] for key, found in refused.items() if not found]
    one = len(report.threads) == 1
    if takes:
        what = "The stored history is" if one else "Every stored history is"
        _say(console, f"{what} still valid for {_listed(takes)}.", style="green")
    for key, found in refused.items():
        if found:
            _say(console, f"NOT valid for {NAMES[key]}: {_first(found)}.", style="red")
    if not one:
        count = f"{len(report.valid)} of {len(report.threads)} conversations valid."
        _say(console, count, style="green" if len(report.valid) == len(report.threads) else "red")
    recorded = [thread for thread in report.threads if thread.wrapped.problems]
    if recorded and all(thread.bare.problems for thread in recorded):
        _say(console, "The bare thread has a problem there too: it is in the recording.")


def _first(found: Sequence[tuple[Thread, Problem]]) -> str:
    thread, problem = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{problem.rule} in {thread.id}, message {problem.index + 1}{more}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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


def _report_as_json(report: Report, seconds: float) -> dict[str, object]:
    files = {"bare": report.bare, "wrapped": report.wrapped}
    return {
        "version": __version__,
        "window": _window_as_json(report.window),
        "seconds": round(seconds, 3),
        "turns": sum(thread.turns for thread in report.threads),
        "files": {
            side: {
                "bytes": file.bytes,
                "checkpoints": file.checkpoints,
                "seconds": round(file.seconds, 3),
            }
            for side, file in files.items()
        },
        "valid": {key: not report.refused(key) for key in NAMES},
        "valid_conversations": len(report.valid),
        "conversations": [_thread_as_json(thread) for thread in report.threads],
        "notes": report.notes,
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
                "problems": [problem.rule for problem in head.problems],
            }
            for side, head in sides.items()
        },
    }


# try


@app.command("try")
def try_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON or JSON lines with one or more conversations: lists of messages of OpenAI, "
            'Anthropic or LangChain, or {"messages": [...]}; - reads standard input.',
            show_default=False,
        ),
    ],
    keep: KeepOption = KEEP,
    trigger: TriggerOption = None,
    cap: CapOption = None,
    pin: PinOption = None,
    keep_latest_of: LatestOption = None,
    pin_first_human: FirstOption = False,
    token_counter: CounterOption = "approximate",
    only: Annotated[
        str | None, typer.Option("--only", metavar="ID", help="Show this conversation only.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would leave a transcript of yours, and why; nothing is stored.

    Example: reducing-saver try chat.json --keep turns:6 --trigger tokens:8000
    """
    window = _window(keep, trigger, cap, pin, keep_latest_of, pin_first_human, token_counter)
    found = _chosen(read(file), only, file)
    plans = [(each, plan(list(each.messages), window)) for each in found]
    if as_json:
        _print_json(_plans_as_json(plans, window))
        return
    console = _console()
    for conversation, made in plans:
        _show_plan(console, conversation, made)
    if len(plans) > 1:
        _show_sum(console, [made for _, made in plans])


def _chosen(found: list[Conversation], only: str | None, file: str) -> list[Conversation]:
    if only is None:
        return found
    chosen = [each for each in found if each.id == only]
    if chosen:
        return chosen
    names = ", ".join(each.id for each in found[:5]) + (", ..." if len(found) > 5 else "")
    raise RefusedError(f"--only {only}: {file} has no such conversation; it has {names}")


def _show_plan(console: Console, conversation: Conversation, made: Plan) -> None:
    title = Text(conversation.id, style="bold", no_wrap=True, overflow="ellipsis")
    console.print(title.append(f"  {_count(len(conversation.messages), 'message')}", style="dim"))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("")
    table.add_column("turn", justify="right")
    table.add_column("unit")
    for name in ("msgs", "tokens", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("reason", no_wrap=True)
    table.add_column("begins with", ratio=1, no_wrap=True, overflow="ellipsis")
    for action in made.actions:
        table.add_row(*_row(action, made), style="dim" if _leaves(action) else "")
    console.print(table)
    console.print(_totals(made))
    _say(console, _why(made), style="" if made.changes and not made.stuck else "yellow")
    console.print()


def _row(action: Action, made: Plan) -> Iterator[Text]:
    unit = action.unit
    yield Text(str(action.verdict), style="red" if _leaves(action) else "green")
    yield Text(str(unit.turn) if unit.turn >= 0 else "")
    yield Text(str(unit.kind))
    yield Text(str(len(unit.messages)))
    yield Text(f"{made.size(unit, 'tokens'):,}")
    yield Text(f"{made.size(unit, 'bytes'):,}")
    yield Text(str(action.reason))
    yield Text(_begins(action))


def _begins(action: Action) -> str:
    return " ".join(words(message) for message in action.unit.messages[:9])[:TEXT]


def _leaves(action: Action) -> bool:
    return action.verdict is Verdict.EVICT


def _totals(made: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    for _ in NAMES:
        table.add_column(justify="right")
    for name, verdict in (("kept", Verdict.KEEP), ("evicted", Verdict.EVICT)):
        sizes = _sizes(made, verdict)
        table.add_row(name, *(f"{value:,} {measure}" for measure, value in sizes.items()))
    before, after = _problems(made)
    counts = [f"{NAMES[key]} {before[key]} -> {after[key]}" for key in NAMES]
    table.add_row("problems", *counts)
    return table


def _sizes(made: Plan, verdict: Verdict) -> dict[Measure, int]:
    measures: tuple[Measure, ...] = ("messages", "tokens", "bytes")
    return {measure: made.total(measure, verdict) for measure in measures}


def _problems(made: Plan) -> tuple[Counts, Counts]:
    return _counted(list(made.messages)), _counted(apply(made))


def _counted(messages: Sequence[Message]) -> Counts:
    if not messages:
        return dict.fromkeys(NAMES, 0)
    return {key: len(problems(messages, key)) for key in NAMES}


def _why(made: Plan) -> str:
    if not made.units:
        return "Nothing would leave: the conversation has no messages."
    if not made.passed:
        marks = [_level(made, mark) for mark in made.window.triggers]
        return f"Nothing would leave: no trigger is passed ({', '.join(marks)})."
    passed = ", ".join(_level(made, mark) for mark in made.passed)
    if not made.changes:
        return f"Nothing can leave although {passed}: it is the current turn, or pinned."
    if made.stuck:
        return f"Still above the mark ({passed}): what is left is the current turn, or pinned."
    return f"Passed: {passed}."


def _level(made: Plan, mark: Mark) -> str:
    kind = "trigger" if mark in made.window.triggers else "cap"
    level = _count(_measured(made, mark.measure), mark.measure.removesuffix("s"))
    return f"{level}, {kind} {mark.value:,}"


def _measured(made: Plan, measure: Measure) -> int:
    counted = (u for u in made.units if not (u.kind is Kind.SYSTEM and u.turn < 0))
    return sum(made.size(unit, measure) for unit in counted)


def _show_sum(console: Console, plans: list[Plan]) -> None:
    changed = sum(made.changes for made in plans)
    gone = sum(made.total("messages", Verdict.EVICT) for made in plans)
    count = sum(len(made.messages) for made in plans)
    worse = sum(_worse(made) for made in plans)
    _say(
        console,
        f"{changed} of {len(plans)} conversations would change; {gone:,} of {count:,} messages "
        "would leave.",
        style="bold",
    )
    _say(console, f"{worse} would get a provider problem that they do not have now.")


def _worse(made: Plan) -> bool:
    before, after = _problems(made)
    return any(after[key] > before[key] for key in NAMES)


def _plans_as_json(plans: list[tuple[Conversation, Plan]], window: Window) -> dict[str, object]:
    return {
        "version": __version__,
        "window": _window_as_json(window),
        "conversations": [_plan_as_json(each, made) for each, made in plans],
    }


def _plan_as_json(conversation: Conversation, made: Plan) -> dict[str, object]:
    before, after = _problems(made)
    return {
        "id": conversation.id,
        "changes": made.changes,
        "passed": [mark._asdict() for mark in made.passed],
        "stuck": made.stuck,
        "why": _why(made),
        "units": [_action_as_json(action, made) for action in made.actions],
        "kept": _sizes(made, Verdict.KEEP),
        "evicted": _sizes(made, Verdict.EVICT),
        "problems": {"before": before, "after": after},
    }


def _action_as_json(action: Action, made: Plan) -> dict[str, object]:
    unit = action.unit
    return {
        "verdict": str(action.verdict),
        "reason": str(action.reason),
        "kind": str(unit.kind),
        "turn": unit.turn,
        "indices": list(unit.indices),
        "tools": list(unit.tools),
        "open": unit.open,
        "messages": len(unit.messages),
        "tokens": made.size(unit, "tokens"),
        "bytes": made.size(unit, "bytes"),
        "text": _begins(action),
    }


def _window_as_json(window: Window) -> dict[str, object]:
    return {
        "keep": window.keep._asdict(),
        "triggers": [mark._asdict() for mark in window.triggers],
        "cap": window.cap._asdict(),
    }


# How things are printed.


def _console() -> Console:
    return Console(highlight=False)


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(Text(text, style=style))


def _print_json(document: dict[str, object]) -> None:
    typer.echo(json.dumps(document, indent=2))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _milliseconds(value: float) -> str:
    return f"{value:.2f} ms"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
