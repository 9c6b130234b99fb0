"""Define the commands `demo` and `try`, and run all of them.

Bad input gives one line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _cli_jobs, _trial, _trial_table
from ._cli_window import (
    CapOption,
    CounterOption,
    FirstOption,
    JsonOption,
    KeepOption,
    LatestOption,
    PinOption,
    TriggerOption,
    about,
    window_of,
)
from ._console import FailedError, RefusedError, bars, complain, print_json
from ._errors import ConfigurationError, ReducingSaverError
from ._transcripts import Conversation, TranscriptError, read
from ._version import __version__
from .engine import Excerpt
from .engine.excerpt import LEAST_TOKENS
from .engine.messages import calls

if TYPE_CHECKING:
    from .demo import Recording

INTERRUPTED = 130

app = typer.Typer(
    name="reducing-saver",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        if code == INTERRUPTED:  # newer versions of typer return it, older ones raise Abort
            return _stopped()
        return code if isinstance(code, int) else 0
    except (RefusedError, TranscriptError) as error:
        return _refuse(str(error))
    except FailedError as error:
        complain(str(error))
        return 1
    except ConfigurationError as error:
        return _refuse(_in_our_words(error))
    except ReducingSaverError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _stopped()
    except BrokenPipeError:  # `... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # typer's usage errors; their class is click's in older versions, and typer's in newer.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        path = getattr(getattr(error, "ctx", None), "command_path", "") or "reducing-saver"
        return _refuse(f"{explain().removesuffix('.')} (see {path} --help)")


def _refuse(message: str) -> int:
    complain(message)
    return 2


def _stopped() -> int:
    complain("stopped")
    return INTERRUPTED


def _in_our_words(error: ConfigurationError) -> str:
    value = error.value
    if isinstance(value, tuple) and len(value) == 2:
        value = f"{value[0]}:{value[1]}"
    option = f"--{error.field.replace('_', '-')} {value}"
    if error.said:
        return f"{option}: {error.said}"
    if error.field == "token_counter":  # its name is known: what it needs is not there
        return f"{option} needs {error.allowed}"
    # None is Python's word for an option that is not given.
    return f"{option} is not allowed; allowed is {error.allowed.removesuffix(', or None')}"


@app.callback(invoke_without_command=True)
def reducing_saver(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Keep the messages that LangGraph checkpoints store within a window.

    `demo` shows what that saves, `try` what would leave your own transcript.

    The others work on a database: `stats` shows where its bytes are.
    """
    if version:
        typer.echo(f"reducing-saver {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
    keep: KeepOption = None,
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
    from .demo import compare, show

    window = window_of(keep, trigger, cap)
    recordings, empty = _recordings(source, turns)
    total = sum(len(each.turns) for each in recordings)
    with _folder(folder) as place, bars(("bare", "wrapped"), total, "turns") as tick:
        report = compare(recordings, window, place, tick=tick)
    if empty:
        report.notes["conversations without messages, left out"] = empty
    if as_json:
        print_json({**about(window), **show.as_json(report)})
        return
    show.show(report, every=every)
    if folder is not None:
        typer.echo(f"\nThe two files: {report.bare.path} and {report.wrapped.path}")


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
    from .demo import recording, travel_desk

    if source is None:
        return [travel_desk(turns) if turns else travel_desk()], 0
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
    keep: KeepOption = None,
    trigger: TriggerOption = None,
    cap: CapOption = None,
    pin: PinOption = None,
    keep_latest_of: LatestOption = None,
    pin_first_human: FirstOption = False,
    token_counter: CounterOption = "approximate",
    excerpt: Annotated[
        int | None,
        typer.Option(
            "--excerpt",
            metavar="TOKENS",
            min=LEAST_TOKENS,
            help="Tool results above this are stored as excerpts.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="ID", help="Show this conversation only.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show the plan of every conversation.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what would leave a transcript of yours, and why; nothing is stored.

    Example: reducing-saver try chat.json --keep turns:6 --trigger tokens:8000
    """
    window = window_of(keep, trigger, cap, pin, keep_latest_of, pin_first_human, token_counter)
    found = read(file)
    _warn_of_unknown_tools(found, {"--pin": pin, "--keep-latest-of": keep_latest_of})
    cut = None if excerpt is None else Excerpt(excerpt)
    trials = _trial.try_window(_chosen(found, only, file), window, cut)
    if as_json:
        print_json({**about(window), **_trial.as_json(trials)})
    else:
        _trial_table.show(trials, every=every)


def _chosen(found: list[Conversation], only: str | None, file: str) -> list[Conversation]:
    if only is None:
        return found
    chosen = [each for each in found if each.id == only]
    if chosen:
        return chosen
    names = ", ".join(each.id for each in found[:5]) + (", ..." if len(found) > 5 else "")
    raise RefusedError(f"--only {only}: {file} has no such conversation; it has {names}")


def _warn_of_unknown_tools(
    found: Iterable[Conversation], wanted: dict[str, list[str] | None]
) -> None:
    known = {call.name for each in found for message in each.messages for call in calls(message)}
    for option, names in wanted.items():
        for name in names or ():
            if name not in known:
                complain(f"warning: {option} {name}: no such tool in this file")


_cli_jobs.add_commands(app)
