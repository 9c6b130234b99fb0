"""Define the commands of jobs: `stats`, `compact`, `worker`, `status`, `gc`, `erase`.

What changes a database is shown first, as a dry run; `--yes` applies it. Exit codes: 0 done, or
shown, 1 there were errors, 2 bad input, 3 stopped with work left.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ._archive import Discard
from ._cli_probe import probe
from ._cli_transcript import DsnArgument, transcript
from ._cli_window import (
    CapOption,
    CounterOption,
    FirstOption,
    JsonOption,
    KeepOption,
    LatestOption,
    PinOption,
    TriggerOption,
    window_of,
)
from ._connection import check, failing, is_postgres, masked, plain, serde
from ._console import RefusedError, complain, confirm, print_json, say
from ._errors import ConfigurationError
from ._retain import Retain, span
from .jobs import show
from .jobs.figures import is_survey
from .jobs.page import page
from .jobs.policy import Policy
from .jobs.process import pool_of
from .jobs.report import Skip

if TYPE_CHECKING:
    from .jobs.report import Erased, JobStatus, Report, Swept

DRY, YES, MOST_TIME = "--dry-run", "--yes", "--max-time"
ARCHIVES = ("same", "discard")
PAUSED = ("skip", "history")
_NO_TERMINAL = "nothing was changed: there is no terminal to ask on, and no --yes"

HtmlOption = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Also write it as a page, with pictures."),
]
YesOption = Annotated[bool, typer.Option(YES, "-y", help="Apply it, without asking.")]
DryOption = Annotated[
    bool, typer.Option(DRY, "-n", help="Only show what would be done; nothing is asked.")
]
JobOption = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="NAME",
        help="What the job is called, as status shows it.",
        show_default=False,
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--max-rate", metavar="N", help="Threads a second at most, to spare live traffic."
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(MOST_TIME, metavar="TIME", help="Stop after this time, as 30m or 8h."),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--max-threads", metavar="N", help="Stop after so many threads.")
]


def add_commands(app: typer.Typer) -> None:
    """Add the commands that work on a database to the others."""
    for command in (stats, compact, worker, status, gc, erase, transcript, probe):
        app.command()(command)


def stats(dsn: DsnArgument, html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Show where the bytes of stored threads are; nothing is changed."""
    from .jobs.run import survey

    check(dsn)
    _check_page(html)
    with failing(dsn), show.follow() as tell:
        report = survey(plain(dsn), progress=tell, serde=serde())
    command = f"reducing-saver compact {shlex.quote(masked(dsn))}" if report.threads else ""
    _print(report, command, html, as_json)


def compact(
    context: typer.Context,
    dsn: DsnArgument,
    keep: KeepOption = None,
    trigger: TriggerOption = None,
    cap: CapOption = None,
    pin: PinOption = None,
    keep_latest_of: LatestOption = None,
    pin_first_human: FirstOption = False,
    token_counter: CounterOption = "approximate",
    last: Annotated[
        int,
        typer.Option(
            "--last", metavar="N", help="So many of the newest checkpoints of a thread stay."
        ),
    ] = 1,
    newer: Annotated[
        str | None,
        typer.Option(
            "--newer", metavar="TIME", help="Checkpoints younger than this stay, as 24h or 7d."
        ),
    ] = None,
    idle: Annotated[
        str,
        typer.Option(
            "--idle", metavar="TIME", help="Threads that changed within this time are left alone."
        ),
    ] = "1h",
    paused: Annotated[
        str,
        typer.Option(
            "--paused",
            metavar="WORD",
            help="Threads that wait for somebody: skip them, or let only their history go.",
        ),
    ] = "skip",
    archive: Annotated[
        str,
        typer.Option(
            "--archive",
            metavar="WORD",
            help="Messages that leave go into LangGraph's store tables of the same database "
            "(same), or are gone (discard).",
        ),
    ] = "same",
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="NAME", help="What the job is called (default: by its policy)."
        ),
    ] = None,
    max_rate: RateOption = None,
    max_time: TimeOption = None,
    max_threads: ThreadsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            max=64,
            help="How many processes work on a Postgres (default: two where there is much to do).",
        ),
    ] = None,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum",
            help="Give what was freed back to the disk at the end (SQLite; it needs the file for "
            "itself).",
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: DryOption = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shrink the threads that are stored, next to live traffic.

    Without --yes it only shows what would be freed, and on a terminal asks.

    A job that was stopped goes on when it is started again.

    Example: reducing-saver compact chat.db --keep turns:6 --trigger tokens:8000
    """
    from .jobs import run

    _one_of("--paused", paused, PAUSED)
    _one_of("--archive", archive, ARCHIVES)
    window = window_of(keep, trigger, cap, pin, keep_latest_of, pin_first_human, token_counter)
    young = None if newer is None else _time("--newer", newer)
    policy = Policy(window, Retain(last=last, newer=young), paused)  # type: ignore[arg-type]
    least, longest = _time("--idle", idle), None if max_time is None else _time(MOST_TIME, max_time)
    if not is_postgres(dsn) and workers is not None and workers > 1:
        raise RefusedError(f"--workers {workers}: a SQLite file has one writer at a time")
    if is_postgres(dsn) and vacuum:
        raise RefusedError("--vacuum is for SQLite; on Postgres it locks the tables: run it there")
    check(dsn)
    _check_page(html)

    def work(*, dry_run: bool) -> Report:
        with failing(dsn), _executor(dsn, workers) as executor, show.follow() as tell:
            return run.compact(
                plain(dsn),
                policy,
                archive="same" if archive == "same" else Discard(),
                executor=executor,
                dry_run=dry_run,
                idle=least,
                job=job,
                max_rate=max_rate,
                max_time=longest,
                max_threads=max_threads,
                progress=tell,
                vacuum=vacuum,
                serde=serde(),
            )

    command = _again(context, dsn)
    report = work(dry_run=not yes)
    _print(report, command, html, as_json, idle=least)
    if report.dry_run and report.compacted and _wanted(dry_run, as_json):
        report = work(dry_run=False)
        say()
        _print(report, command, html, as_json, idle=least)
    raise typer.Exit(report.exit_code)


def worker(
    dsn: DsnArgument,
    job: JobOption,
    max_rate: RateOption = None,
    max_time: TimeOption = None,
    max_threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Help with a job that compact has started, from as many machines as you like (Postgres)."""
    from .jobs import run

    longest = None if max_time is None else _time(MOST_TIME, max_time)
    check(dsn)
    known = _known(dsn, job)
    if not (known.left or as_json):
        say("Nothing is left to do.", style="bold")
        show.show_status([known])
        raise typer.Exit(1 if known.errors or known.skipped.get(Skip.FAILED) else 0)
    with failing(dsn), show.follow() as tell:
        report = run.worker(
            plain(dsn),
            job=job,
            max_rate=max_rate,
            max_time=longest,
            max_threads=max_threads,
            progress=tell,
            serde=serde(),
        )
    _print(report, "", None, as_json)
    raise typer.Exit(report.exit_code)


def status(
    dsn: DsnArgument,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Only this job.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far the jobs of a database are; nothing is changed."""
    from .jobs import run

    check(dsn)
    if job is not None:
        jobs: Sequence[JobStatus] = (_known(dsn, job),)
    else:
        with failing(dsn):
            jobs = run.status(plain(dsn))
    if as_json:
        print_json({"jobs": [{**asdict(one), "left": one.left} for one in jobs]})
    else:
        show.show_status(jobs)


def gc(
    context: typer.Context,
    dsn: DsnArgument,
    grace: Annotated[
        str,
        typer.Option(
            "--grace", metavar="TIME", help="What is younger stays: its checkpoint may be coming."
        ),
    ] = "24h",
    yes: YesOption = False,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sweep what nothing names any more: blobs, writes, and archives whose thread is gone.

    Without --yes it only shows what would go, and on a terminal asks.
    """
    from .jobs.gc import gc as sweep

    least = _time("--grace", grace)
    check(dsn)

    def work(*, dry_run: bool) -> Swept:
        with failing(dsn):
            return sweep(plain(dsn), archive="same", dry_run=dry_run, grace=least)

    swept = work(dry_run=not yes)
    command = _again(context, dsn)
    _print_swept(swept, command, as_json)
    if swept.dry_run and swept.found and _wanted(dry_run, as_json):
        swept = work(dry_run=False)
        say()
        _print_swept(swept, command, as_json)
    raise typer.Exit(swept.exit_code)


def erase(
    context: typer.Context,
    dsn: DsnArgument,
    threads: Annotated[
        list[str], typer.Argument(metavar="THREAD...", help="Ids of threads.", show_default=False)
    ],
    yes: YesOption = False,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Erase threads with their archive, and look whether anything of them is left.

    Without --yes it only shows what would go, and on a terminal asks.
    """
    from .jobs.erase import erase as remove

    check(dsn)

    def work(*, dry_run: bool) -> Erased:
        with failing(dsn):
            return remove(plain(dsn), threads, archive="same", dry_run=dry_run)

    with failing(dsn):
        for thread in threads:
            if not any(remove(plain(dsn), [thread], archive="same").rows.values()):
                raise RefusedError(f"thread {thread!r} is not in {masked(dsn)}")
    erased = work(dry_run=not yes)
    command = _again(context, dsn)
    _print_erased(erased, command, as_json)
    if erased.dry_run and _wanted(dry_run, as_json):
        erased = work(dry_run=False)
        say()
        _print_erased(erased, command, as_json)
    raise typer.Exit(erased.exit_code)


# All of them


def _print(
    report: Report, command: str, html: str | None, as_json: bool, *, idle: timedelta | None = None
) -> None:
    applies = report.dry_run and (report.compacted or is_survey(report))
    command = command if applies or report.left else ""
    if html is not None:
        made = page(report, command=command, idle=idle, when=datetime.now().astimezone())
        Path(html).write_text(made, encoding="utf-8")
    if as_json:
        print_json({**show.as_json(report), "command": command})
        return
    show.show(report, command=command, idle=idle)
    if html is not None:
        say(f"\nThe page: {html}", wrap=False)


def _known(dsn: str, job: str) -> JobStatus:
    """Return what the ledger says of a job; raise where it was never started."""
    from .jobs import run

    with failing(dsn):
        found = [one for one in run.status(plain(dsn)) if one.job == job]
    if found:
        return found[0]
    start = f"reducing-saver compact {shlex.quote(masked(dsn))} --job {shlex.quote(job)} {YES}"
    raise RefusedError(f"there is no job {job!r}; {start} starts it")


def _print_swept(swept: Swept, command: str, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(swept), "exit_code": swept.exit_code})
    else:
        show.show_swept(swept, command=command if swept.dry_run and swept.found else "")


def _print_erased(erased: Erased, command: str, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(erased), "exit_code": erased.exit_code})
    else:
        show.show_erased(erased, command=command if erased.dry_run else "")


def _wanted(dry_run: bool, as_json: bool) -> bool:
    """Ask whether to apply what was shown; without a terminal the answer is no."""
    if dry_run or as_json:
        return False
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain(_NO_TERMINAL)
        return False
    return confirm("\nApply it?")


def _executor(
    dsn: str, workers: int | None
) -> AbstractContextManager[Executor | Literal["processes"] | None]:
    if not is_postgres(dsn):
        return nullcontext()
    if workers is None:
        return nullcontext("processes")
    return pool_of(workers)


def _one_of(option: str, word: str, allowed: tuple[str, ...]) -> None:
    if word not in allowed:
        raise RefusedError(f"{option} {word}: allowed are {' or '.join(allowed)}")


def _time(option: str, text: str) -> timedelta:
    try:
        return span(option, text)
    except ConfigurationError:
        said = "allowed is a time, as 90s, 30m, 24h, 7d or 2w"
        raise RefusedError(f"{option} {text} is not allowed; {said}") from None


def _check_page(html: str | None) -> None:
    """Refuse a page that cannot be written before anything else is done."""
    if html is None:
        return
    try:
        with Path(html).open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise RefusedError(f"--html {html}: {error.strerror}") from None


def _again(context: typer.Context, dsn: str) -> str:
    """Return the command that was given as one that applies it; the password is masked."""
    words = ["reducing-saver", str(context.info_name), shlex.quote(masked(dsn))]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT" or name == "dsn":
            continue
        if name in ("yes", "dry_run", "html", "as_json"):
            continue
        words += _words(parameter, context.params[name])
    return " ".join([*words, YES])


def _words(parameter: Any, value: Any) -> Iterator[str]:
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        if parameter.param_type_name == "argument":
            yield shlex.quote(str(one))
        elif one is True:
            yield parameter.opts[0]
        elif one is not False:
            yield f"{parameter.opts[0]} {shlex.quote(str(one))}"
