"""What is printed of a job: bars in the right shares, three numbers apart, at any width."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cli.reports import EVIL, report

from reducing_saver.jobs import show as shown
from reducing_saver.jobs.figures import percent
from reducing_saver.jobs.report import (
    Bytes,
    Erased,
    JobStatus,
    Progress,
    Report,
    Skip,
    Swept,
)

COMMAND = "reducing-saver compact chat.db --keep turns:6 --trigger tokens:8000 --job nightly --yes"
Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """Give a function that prints at a width, and returns what was printed."""

    def printed(write: Callable[..., None], *what: object, width: int = 80, **more: object) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        write(*what, **more)
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_report_fits_the_terminal(printed: Printed, width: int) -> None:
    out = printed(shown.show, report(), command=COMMAND, width=width)
    lines = out.splitlines()
    assert lines[-1] == f"  {COMMAND}"
    assert max(map(len, lines[:-1])) <= width
    assert "\x1b" not in out  # no colour where there is no terminal, and none of a thread's id
    said = " ".join(out.split())
    for words in (
        "Dry run, nothing was changed: 128 of 140 threads would shrink.",
        "Postgres, job: nightly, archive: the same database",
        "policy: keep turns:6; last 1; paused: skip",
        "freed inside the database",
        "added to the archive 5.3 MB 4,231 messages",
        "returned to the disk 0 bytes until VACUUM FULL",
        "VACUUM FULL, which locks the table, or pg_repack returns it to the disk.",
        "Skipped 12 threads: 6 paused, 4 younger than idle, 2 with pending writes.",
        "Applying it takes about 12 min.",
        "It would write about 66.0 MB of write-ahead log.",
        "Of paused threads nothing is counted as freed.",
        "This applies it:",
    ):
        assert words in said


@pytest.mark.parametrize("width", [60, 100])
def test_the_bar_has_the_shares_of_the_bytes(printed: Printed, width: int) -> None:
    made = report()
    out = printed(shown.show, made, width=width)
    (bar,) = [line for line in out.splitlines() if len(line) == width and line[0] == "█"]
    before = made.bytes.before
    parts = ("old_versions", "writes", "checkpoints", "evicted", "stays")
    for glyph, name in zip("█▓▒░·", parts, strict=True):
        wanted = width * getattr(made.bytes, name) / before
        assert abs(bar.count(glyph) - wanted) <= 2
        assert glyph in bar
    assert "".join(sorted(bar, key="█▓▒░·".index)) == bar


def test_colours_say_the_same(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = printed(shown.show, report())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = printed(shown.show, report())
    assert "\x1b[31m" in coloured
    assert "Skipped 12 threads" in coloured
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(shown.show, report()) == plain


def test_the_curve_shows_what_stays_and_what_leaves(printed: Printed) -> None:
    lines = printed(shown.show, report()).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Threads by size"))
    drawn = [line[10:] for line in lines[start + 1 : lines.index("", start)]]
    labels = [line[:9].strip() for line in lines[start + 1 :][: len(drawn)]]
    assert [label for label in labels if label] == ["100 MB", "10 MB", "1 MB", "100 kB", "10 kB"]
    columns = ["".join(cells) for cells in zip(*(line.ljust(70) for line in drawn), strict=True)]
    assert len(columns) == 70
    for column in columns:  # from above: nothing, what leaves, what stays
        assert "".join(sorted(column, key=" ░█".index)) == column
    heights = [len(column.strip()) for column in columns]
    assert heights == sorted(heights)
    assert "░" not in columns[0]  # every seventeenth thread stays whole
    assert columns[-1].count("░") > columns[-1].count("█") / 3


def test_without_blocks_it_is_plain_ascii() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop())\n"
        "from cli.reports import report\nfrom reducing_saver.jobs.show import show\n"
        "show(report(12, largest=()))"
    )
    tests = __file__.rpartition("/cli/")[0]
    environment = {"PYTHONIOENCODING": "ascii", "COLUMNS": "80", "PATH": ""}
    environment["PYTHONPATH"] = ":".join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", code, tests], capture_output=True, text=True, env=environment
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()
    assert "####" in ran.stdout
    assert "# stays, - leaves" in ran.stdout


def test_what_was_done(printed: Printed) -> None:
    done = report(dry_run=False, estimate_seconds=None, seconds=4000.0, backend="sqlite")
    said = " ".join(printed(shown.show, done).split())
    assert said.startswith("128 of 140 threads were compacted.")
    assert "It took 67 min." in said
    assert "returned to the disk 0 bytes until VACUUM" in said
    assert "--vacuum, for which writers wait, returns it to the disk." in said
    assert "Applying" not in said
    returned = report(dry_run=False, returned=1_000_000)
    assert "returned to the disk 1.0 MB" in " ".join(printed(shown.show, returned).split())


def test_what_was_stopped(printed: Printed) -> None:
    stopped = report(dry_run=False, left=1200)
    out = printed(shown.show, stopped, command=COMMAND)
    assert out.startswith("Stopped with 1,200 threads left: 128 threads compacted so far.")
    assert "This goes on:" in out


def test_messages_that_would_be_gone_are_said(printed: Printed) -> None:
    gone = report(archive="discarded", archived=0)
    assert "No archive is kept: 4,231 messages would be gone." in printed(shown.show, gone)
    gone = report(archive="discarded", archived=0, dry_run=False)
    assert "No archive is kept: 4,231 messages are gone." in printed(shown.show, gone)


def test_errors_are_shown_in_one_line_each(printed: Printed) -> None:
    out = printed(shown.show, report(errors=("thread 'a\nb': OSError", "c")), width=200)
    assert "error: thread 'a b': OSError\nerror: c\n" in out


def test_an_empty_database(printed: Printed) -> None:
    out = printed(shown.show, Report(True, "sqlite", "", "keep", ""))
    assert out.startswith("Dry run, nothing was changed: 0 of 0 threads would shrink.")
    assert "VACUUM" not in out
    only_stays = Report(True, "sqlite", "", "keep", "", threads=1, bytes=Bytes(stays=5))
    assert "5 bytes -> 5 bytes: nothing leaves" in printed(shown.show, only_stays)


def test_a_survey_says_where_the_bytes_are_and_promises_nothing(printed: Printed) -> None:
    made = report(policy="", archive="", job="", estimate_seconds=None, evicted=0, archived=0)
    said = " ".join(printed(shown.show, made, command="reducing-saver compact x").split())
    assert said.startswith("140 threads take")
    assert "is history, which no run loads" in said
    assert "newest checkpoints" in said
    assert "freed inside" not in said
    assert said.endswith("What a policy would free: reducing-saver compact x")


def test_one_large_thread_beside_many_small_ones(printed: Printed) -> None:
    made = report(bytes=Bytes(10**12, 1, 1, 1, 1), curve=((1, 1), (10**13, 0)))
    out = printed(shown.show, made, width=60)
    assert max(map(len, out.splitlines())) <= 60
    assert "> 99.9 %" in out
    assert "< 0.1 %" in out


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0, "0.0 %"),
        (1e-9, "< 0.1 %"),
        (0.05, "5.0 %"),
        (0.5, "50 %"),
        (0.974, "97.4 %"),
        (0.99999, "> 99.9 %"),
        (1, "100.0 %"),
    ],
)
def test_a_share_in_words(share: float, said: str) -> None:
    assert percent(share) == said


def test_progress_in_words() -> None:
    going = Progress(500, 2000, 3_000_000, {Skip.YOUNG: 7}, 10.0)
    assert shown.said(going) == "50/s, freed 3.0 MB, 7 skipped, 30 s left"
    assert shown.said(Progress(0, 2000, 0)) == "0/s, freed 0 bytes"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with shown.follow() as tell:
        tell(Progress(1, 2, 3))
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    with shown.follow() as tell:
        tell(Progress(500, 2000, 3_000_000, {Skip.YOUNG: 7}, 10.0))
    out, err = capsys.readouterr()
    assert out == ""
    assert "500/2000" in err
    assert "50/s, freed 3.0 MB" in err


def test_status_of_jobs(printed: Printed) -> None:
    assert "No job" in printed(shown.show_status, ())
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    jobs = [
        JobStatus("a", "p", "SQLite", *n, {}, errors, Bytes(5000), 0, 0, 0, when, when, running)
        for n, errors, running in (
            ((5, 10), (), True),
            ((5, 10), ("t: OSError",), False),
            ((10, 10), (), False),
        )
    ]
    jobs.append(replace(jobs[-1], rounds=3, skipped={Skip.YOUNG: 2}))
    lines = printed(shown.show_status, jobs, width=90).splitlines()
    assert lines == [
        "a  running, 5 of 10 threads",
        "  freed 5.0 kB, archived 0 bytes, changed 2026-01-02 03:04",
        "  p",
        "a  stopped, 5 of 10 threads",
        "  freed 5.0 kB, archived 0 bytes, changed 2026-01-02 03:04",
        "  p",
        "error: t: OSError",
        "a  done, 10 of 10 threads",
        "  freed 5.0 kB, archived 0 bytes, changed 2026-01-02 03:04",
        "  p",
        "a  done, 10 of 10 threads in round 3",
        "  freed 5.0 kB, archived 0 bytes in 3 rounds, 2 skipped, changed 2026-01-02 03:04",
        "  p",
    ]


def test_what_is_swept(printed: Printed) -> None:
    swept = Swept(True, "Postgres", blobs=3, blob_bytes=9000, writes=2, archives=1, waiting=4)
    out = printed(shown.show_swept, swept, command="reducing-saver gc x --yes")
    said = " ".join(out.split())
    assert "nothing was changed" in said
    assert "blobs that no checkpoint names 3 9.0 kB" in said
    assert "4 are too young to tell (--grace), and left." in said
    assert out.endswith("  reducing-saver gc x --yes\n")
    gone = printed(shown.show_swept, replace(swept, dry_run=False))
    assert gone.startswith("This is gone.\n")
    assert gone.splitlines()[1:4] == out.splitlines()[1:4]


@pytest.mark.parametrize("dry_run", [True, False])
def test_where_nothing_is_swept_nothing_is_gone(printed: Printed, dry_run: bool) -> None:
    dry = "Dry run, nothing was changed: there is nothing to sweep.\n"
    said = dry if dry_run else "There was nothing to sweep.\n"
    assert printed(shown.show_swept, Swept(dry_run, "SQLite")) == said
    waits = printed(shown.show_swept, Swept(dry_run, "SQLite", waiting=1))
    assert waits == f"{said}1 is too young to tell (--grace), and left.\n"


def test_what_was_done_before_has_nothing_left(printed: Printed) -> None:
    made = report(skipped={Skip.DONE: 2}, compacted=0)
    said = " ".join(printed(shown.show, made).split())
    assert "Skipped 2 threads: 2 with nothing left to do." in said
    assert "Applying it" not in said


def test_what_is_erased(printed: Printed) -> None:
    looked = ("store.value", "checkpoints.thread_id")
    gone = Erased(False, "SQLite", ("a",), {"checkpoints": 3}, {}, looked)
    out = printed(shown.show_erased, gone)
    assert out.startswith("1 thread erased.")
    assert "A second look found nothing of it in 2 columns." in out
    left = Erased(False, "SQLite", ("a", "b"), {"checkpoints": 3}, {"other.thread": 2}, looked)
    assert "still there: 2 rows in other.thread" in printed(shown.show_erased, left)
    dry = Erased(True, "SQLite", ("a",), {"checkpoints": 3})
    assert "1 thread would be erased" in printed(shown.show_erased, dry)


def test_a_thread_id_cannot_play_with_the_terminal(printed: Printed) -> None:
    out = printed(shown.show, report(), width=200)
    assert "\x1b" in EVIL
    assert "\x1b" not in out
    assert "tenant/<script>" in out


def test_json_has_all_of_it() -> None:
    found = shown.as_json(report())
    assert found["exit_code"] == 0
    assert found["skipped"] == {
        "younger than idle": 4,
        "paused": 6,
        "with pending writes": 2,
        "compacted before": 0,
    }
    assert found["bytes"]["freed"] + found["bytes"]["stays"] == found["bytes"]["before"]  # type: ignore[index]
