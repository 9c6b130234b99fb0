"""The commands of jobs, on real databases: what they show first, what they change, and refuse."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.databases import KINDS, Database, chat, database
from langgraph.checkpoint.base.id import uuid6

THREADS, TURNS = 5, 8
MANY = {"sqlite": 7, "postgres": 7}
WINDOW = ("--keep", "turns:2", "--trigger", "turns:3")
NOW = (*WINDOW, "--idle", "0s")
SECRET = "s3cr-t"
NO_TERMINAL = "reducing-saver: nothing was changed: there is no terminal to ask on, and no --yes\n"


def fill(made: Database, threads: int = THREADS, turns: int = TURNS) -> None:
    with made.saver() as inner, made.store():
        for number in range(threads):
            chat(inner, f"t{number}", turns, size=20)
    if made.kind == "sqlite":  # one file, whose hash tells whether it was written
        connection = sqlite3.connect(made.dsn)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.close()


@pytest.fixture(params=KINDS)
def made(
    request: pytest.FixtureRequest, tmp_path: Path, make_database: Callable[[], str]
) -> Database:
    """Give a database with bare threads `t0` to `t4`."""
    made = database(request.param, tmp_path, make_database)
    fill(made)
    return made


@pytest.fixture
def sqlite(tmp_path: Path, make_database: Callable[[], str]) -> Database:
    made = database("sqlite", tmp_path, make_database)
    fill(made)
    return made


@pytest.fixture(params=KINDS)
def many(
    request: pytest.FixtureRequest, tmp_path: Path, make_database: Callable[[], str]
) -> Database:
    """Give a database with more threads than one transaction does."""
    made = database(request.param, tmp_path, make_database)
    fill(made, MANY[made.kind], 4)
    return made


def held(made: Database) -> Any:
    """Return everything that a database holds of threads."""
    if made.kind == "sqlite":
        return hashlib.sha256(Path(made.dsn).read_bytes()).hexdigest()
    import psycopg
    from psycopg import sql

    with psycopg.connect(made.dsn) as connection:
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        names = sorted(name for (name,) in found)
        content = sql.SQL("SELECT md5(string_agg(x::text, ' ' ORDER BY x::text)) FROM {} x")
        rows = [connection.execute(content.format(sql.Identifier(name))) for name in names]
        return names, [each.fetchone() for each in rows]


def checkpoints(made: Database, thread: str) -> int:
    with made.saver() as saver:
        return len([*saver.list({"configurable": {"thread_id": thread}})])


def messages(cli: Callable[..., Any], made: Database, thread: str) -> list[str]:
    found = cli("transcript", made.dsn, thread, "--json").json["messages"]
    return [message["data"]["content"] for message in found]


def test_a_dry_run_shows_and_changes_nothing(made: Database, cli: Callable[..., Any]) -> None:
    before = held(made)
    ran = cli("compact", made.dsn, *NOW)
    assert ran.code == 0
    assert held(made) == before
    assert "Dry run, nothing was changed: 5 of 5 threads would shrink." in ran.out
    assert "old versions" in ran.out
    assert "returned to the disk" in ran.out
    assert ran.err == NO_TERMINAL
    assert cli("compact", made.dsn, *NOW, "--dry-run").err == ""


def test_the_printed_command_applies_it(made: Database, cli: Callable[..., Any]) -> None:
    whole = messages(cli, made, "t0")
    assert len(whole) == 2 * TURNS
    plan = cli("compact", made.dsn, *NOW, "--job", "a night's", "--pin", "look")
    command = plan.out.splitlines()[-1].strip()
    words = shlex.split(command)
    assert words[:3] == ["reducing-saver", "compact", made.dsn]
    assert words[3:] == [*WINDOW, "--pin", "look", "--idle", "0s", "--job", "a night's", "--yes"]
    done = cli(*words[1:])
    assert (done.code, done.err) == (0, "")
    assert "5 of 5 threads were compacted." in done.out
    assert [checkpoints(made, f"t{n}") for n in range(THREADS)] == [1] * THREADS
    assert messages(cli, made, "t0") == whole
    with made.saver() as saver:
        head = saver.get_tuple({"configurable": {"thread_id": "t0"}})
    assert len(head.checkpoint["channel_values"]["messages"]) == 4
    rows = cli("status", made.dsn, "--json").json["jobs"]
    assert [(one["job"], one["done"], one["left"]) for one in rows] == [("a night's", 5, 0)]


def test_a_plan_says_what_the_job_then_does(made: Database, cli: Callable[..., Any]) -> None:
    plan = cli("compact", made.dsn, *NOW, "--json").json
    done = cli("compact", made.dsn, *NOW, "--json", "--yes").json
    assert plan["dry_run"]
    assert not done["dry_run"]
    for name in ("threads", "compacted", "evicted", "deleted"):
        assert plan[name] == done[name] > 0
    assert plan["bytes"]["before"] == done["bytes"]["before"]
    for name in ("old_versions", "checkpoints", "freed", "stays"):
        assert plan["bytes"][name] == pytest.approx(done["bytes"][name], rel=0.05)


def test_json_is_one_document_and_nothing_else(made: Database, cli: Callable[..., Any]) -> None:
    for arguments in (
        ("stats", made.dsn),
        ("compact", made.dsn, *NOW),
        ("compact", made.dsn, *NOW, "--yes"),
        ("status", made.dsn),
        ("gc", made.dsn),
        ("gc", made.dsn, "--yes"),
        ("erase", made.dsn, "t1", "--dry-run"),
        ("erase", made.dsn, "t1", "--yes"),
    ):
        ran = cli(*arguments, "--json")
        assert (ran.code, ran.err) == (0, ""), arguments
        assert isinstance(json.loads(ran.out), dict)


def test_stats_show_where_the_bytes_are_and_change_nothing(
    made: Database, cli: Callable[..., Any]
) -> None:
    before = held(made)
    ran = cli("stats", made.dsn)
    assert (ran.code, ran.err) == (0, "")
    assert held(made) == before
    assert "5 threads take" in ran.out
    assert f"reducing-saver compact {shlex.quote(made.dsn)}" in " ".join(ran.out.split())


def test_a_page_is_written(sqlite: Database, cli: Callable[..., Any], tmp_path: Path) -> None:
    for command in (("stats", sqlite.dsn), ("compact", sqlite.dsn, *NOW)):
        path = tmp_path / "report.html"
        ran = cli(*command, "--html", path)
        assert ran.code == 0
        assert f"The page: {path}\n" in ran.out
        text = path.read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert "reducing-saver compact" in text


def test_a_page_that_cannot_be_written_is_refused(
    sqlite: Database, refused: Callable[..., str], tmp_path: Path
) -> None:
    before = held(sqlite)
    for path in (tmp_path, tmp_path / "nowhere" / "report.html"):
        assert "--html" in refused("compact", sqlite.dsn, *NOW, "--yes", "--html", path)
    assert held(sqlite) == before


def on_a_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal, give it an answer, and return its code and what was shown."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "reducing_saver", *arguments]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command, env=environment, close_fds=True, **ends) as running:
        os.close(theirs)
        shown, answered = b"", False
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # on Linux, the end of a terminal
                break
            if not more:
                break
            shown += more
            if not answered and b"[y/N]" in shown:
                os.write(ours, answer.encode())
                answered = True
    os.close(ours)
    return running.returncode, shown.decode()


@pytest.mark.parametrize(
    ("answer", "applies"),
    [("y\n", True), ("n\n", False), ("\n", False), ("\x04", False)],
    ids=["yes", "no", "nothing", "end"],
)
def test_on_a_terminal_it_asks(sqlite: Database, answer: str, applies: bool) -> None:
    before = held(sqlite)
    code, shown = on_a_terminal(answer, "compact", sqlite.dsn, *NOW)
    assert "Traceback" not in shown
    assert code == 0
    assert "Dry run, nothing was changed" in shown
    assert "Apply it? [y/N]" in shown
    assert "\x1b[" in shown
    assert ("were compacted" in shown) == applies
    assert (held(sqlite) != before) == applies


def test_on_a_terminal_yes_and_dry_run_do_not_ask(sqlite: Database) -> None:
    code, shown = on_a_terminal("", "compact", sqlite.dsn, *NOW, "--dry-run")
    assert (code, "[y/N]" in shown) == (0, False)
    code, shown = on_a_terminal("", "compact", sqlite.dsn, *NOW, "--yes")
    assert (code, "[y/N]" in shown) == (0, False)
    assert "were compacted" in shown


def test_a_job_that_stops_says_so_and_goes_on(
    many: Database, cli: Callable[..., Any], refused: Callable[..., str]
) -> None:
    first = cli("compact", many.dsn, *NOW, "--job", "night", "--yes", "--max-threads", "2")
    assert first.code == 3
    left = MANY[many.kind] - 2
    assert f"Stopped with {left} threads left" in first.out
    assert "This goes on:" in first.out
    other = ("--keep", "turns:1", "--idle", "0s", "--job", "night", "--yes")
    assert "'night'" in refused("compact", many.dsn, *other)
    unknown = (
        f"'nobody'; reducing-saver compact {shlex.quote(many.dsn)} --job nobody --yes starts it"
    )
    assert unknown in refused("worker", many.dsn, "--job", "nobody")
    (row,) = cli("status", many.dsn, "--json").json["jobs"]
    assert (row["job"], row["left"]) == ("night", left)
    second = cli("worker", many.dsn, "--job", "night")
    assert second.code == 0
    assert "were compacted" in second.out
    idle = cli("worker", many.dsn, "--job", "night")
    assert idle.code == 0
    assert idle.out.startswith("Nothing is left to do.\nnight  done, 7 of 7 threads\n")
    third = cli("compact", many.dsn, *NOW, "--job", "night", "--yes")
    assert third.code == 0
    threads = [checkpoints(many, f"t{n}") for n in range(MANY[many.kind])]
    assert threads == [1] * MANY[many.kind]


def test_young_threads_are_left_alone(
    made: Database, cli: Callable[..., Any], tmp_path: Path
) -> None:
    ran = cli("compact", made.dsn, *WINDOW, "--yes")
    assert ran.code == 0
    assert "Skipped 5 threads: 5 younger than idle." in ran.out
    assert checkpoints(made, "t0") > 1
    page = tmp_path / "report.html"
    dry = cli("compact", made.dsn, *WINDOW, "--html", page)
    assert (dry.code, dry.err) == (0, "")
    for shown in (dry.out, page.read_text(encoding="utf-8")):
        assert "5 threads changed within the last 1h; --idle 0s takes them too." in shown
    assert "This applies it" not in dry.out
    assert cli("compact", made.dsn, *WINDOW, "--json").json["command"] == ""


def test_a_job_that_is_done_has_nothing_left(made: Database, cli: Callable[..., Any]) -> None:
    assert cli("compact", made.dsn, *NOW, "--yes").code == 0
    for more in ((), ("--yes",)):
        ran = cli("compact", made.dsn, *NOW, *more)
        assert (ran.code, ran.err) == (0, "")
        assert "Skipped 5 threads: 5 with nothing left to do." in ran.out
        assert "This applies it" not in ran.out


def test_an_empty_database_has_nothing_to_compact(
    tmp_path: Path, make_database: Callable[[], str], cli: Callable[..., Any]
) -> None:
    made = database("sqlite", tmp_path, make_database)
    with made.saver():
        pass
    ran = cli("stats", made.dsn)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("0 threads take 0 bytes.")
    assert "compact" not in ran.out


@pytest.mark.parametrize(
    "options",
    [
        ("--keep", "wombats:3"),
        ("--keep", "turns:0"),
        ("--keep", "turns"),
        ("--trigger", "fraction:1"),
        ("--cap", "turns:3"),
        ("--last", "0"),
        ("--last", "-1"),
        ("--last", "many"),
        ("--last", str(10**30)),
        ("--newer", "soon"),
        ("--newer", "-1h"),
        ("--idle", "soon"),
        ("--idle", "-1h"),
        ("--paused", "stop"),
        ("--archive", "elsewhere"),
        ("--max-rate", "0"),
        ("--max-rate", "-1"),
        ("--max-rate", "nan"),
        ("--max-time", "soon"),
        ("--max-threads", "0"),
        ("--max-threads", "-1"),
        ("--workers", "0"),
        ("--workers", "65"),
        ("--job", ""),
    ],
    ids="=".join,
)
def test_a_bad_option_is_refused_in_one_line(
    sqlite: Database, refused: Callable[..., str], options: tuple[str, str]
) -> None:
    before = held(sqlite)
    said = refused("compact", sqlite.dsn, *NOW[4:], "--yes", *options)
    assert options[0] in said
    for word in ("timedelta", "None", "('"):
        assert word not in said
    assert held(sqlite) == before


@pytest.mark.parametrize(
    "command", ["stats", "compact", "worker --job x", "status", "gc", "erase", "transcript"]
)
def test_a_database_that_is_not_there_is_refused(
    refused: Callable[..., str], command: str, tmp_path: Path
) -> None:
    name, *options = command.split()
    threads = ["t"] if name in ("erase", "transcript") else []
    said = refused(name, tmp_path / "nowhere.db", *threads, *options)
    assert "no such file" in said
    secret = f"postgresql://app:{SECRET}@127.0.0.1:1/prod"
    said = refused(name, secret, *threads, *options)
    assert "postgresql://app:***@127.0.0.1:1/prod" in said
    assert SECRET not in said


def test_a_password_is_never_printed(
    make_database: Callable[[], str], cli: Callable[..., Any], tmp_path: Path
) -> None:
    from psycopg.conninfo import conninfo_to_dict

    made = database("postgres", tmp_path, make_database)
    fill(made)
    known = conninfo_to_dict(made.dsn)
    where = f"{known['dbname']}?host={known['host']}"
    dsn = f"postgresql://{known['user']}:{SECRET}@/{where}"
    page = tmp_path / "page.html"
    printed = ""
    for arguments in (
        ("stats", dsn, "--html", page),
        ("compact", dsn, *NOW, "--html", page),
        ("compact", dsn, *NOW, "--json"),
        ("compact", dsn, *NOW, "--yes"),
        ("status", dsn),
        ("status", dsn, "--json"),
        ("gc", dsn),
        ("transcript", dsn, "t0"),
        ("erase", dsn, "t0", "--dry-run"),
        ("erase", dsn, "t0", "--yes"),
        ("transcript", dsn, "t0"),
        ("compact", dsn, "--keep", "turns:7", "--yes"),
    ):
        ran = cli(*arguments)
        printed += ran.out + ran.err
        printed += page.read_text(encoding="utf-8")
    assert "reducing-saver compact 'postgresql://postgres:***@/" in printed
    assert SECRET not in printed
    with pytest.MonkeyPatch.context() as patch:
        import psycopg

        patch.setattr("reducing_saver.jobs.run.compact", fails := Failing(psycopg, dsn))
        ran = cli("compact", dsn, *NOW)
    assert fails.called
    assert ran.code == 1
    assert "gone, said ***" in ran.err
    assert SECRET not in ran.out + ran.err


class Failing:
    """Fail as a database does that goes away, and quotes a password."""

    def __init__(self, psycopg: Any, dsn: str) -> None:
        self.error, self.called = psycopg.OperationalError(f"gone, said {SECRET}\nmore"), False

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.called = True
        raise self.error


def test_status(made: Database, cli: Callable[..., Any], refused: Callable[..., str]) -> None:
    assert "No job" in cli("status", made.dsn).out
    assert cli("compact", made.dsn, *NOW, "--job", "a", "--yes").code == 0
    assert cli("compact", made.dsn, *WINDOW, "--job", "b", "--yes").code == 0
    lines = cli("status", made.dsn).out.splitlines()
    named = [line for line in lines if line.endswith(" threads")]
    assert named == ["a  done, 5 of 5 threads", "b  done, 5 of 5 threads"]
    assert len(cli("status", made.dsn, "--job", "a", "--json").json["jobs"]) == 1
    assert "no job 'c'" in refused("status", made.dsn, "--job", "c")


def test_several_processes_work(many: Database, cli: Callable[..., Any], refused: Any) -> None:
    command = ("compact", many.dsn, *NOW, "--yes", "--workers", "2")
    if many.kind == "sqlite":
        assert "one writer" in refused(*command)
        return
    assert cli(*command).code == 0
    threads = [checkpoints(many, f"t{n}") for n in range(MANY[many.kind])]
    assert threads == [1] * MANY[many.kind]


def test_a_file_gives_space_back(
    sqlite: Database, cli: Callable[..., Any], refused: Callable[..., str], make_database: Any
) -> None:
    before = Path(sqlite.dsn).stat().st_size
    ran = cli("compact", sqlite.dsn, *NOW, "--yes", "--vacuum")
    assert ran.code == 0
    assert "returned to the disk  0 bytes" not in ran.out
    connection = sqlite3.connect(sqlite.dsn)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert Path(sqlite.dsn).stat().st_size < before
    assert "is for SQLite" in refused("compact", make_database(), "--vacuum")


def test_discarding_is_said(made: Database, cli: Callable[..., Any]) -> None:
    ran = cli("compact", made.dsn, *NOW, "--archive", "discard", "--yes")
    assert ran.code == 0
    assert "No archive is kept" in ran.out
    assert len(messages(cli, made, "t0")) == 4


def test_gc_sweeps_what_nobody_names(made: Database, cli: Callable[..., Any]) -> None:
    with made.saver() as saver:
        lost = {"thread_id": "t0", "checkpoint_ns": "", "checkpoint_id": str(uuid6())}
        config = {"configurable": lost}
        saver.put_writes(config, [("messages", "orphan")], "task")
    dry = cli("gc", made.dsn, "--grace", "0s")
    assert dry.code == 0
    assert "nothing was changed" in dry.out
    assert dry.err == NO_TERMINAL
    assert dry.out.splitlines()[-1].split() == [
        *("reducing-saver", "gc", *shlex.quote(made.dsn).split(), "--grace", "0s", "--yes"),
    ]
    first = cli("gc", made.dsn, "--grace", "0s", "--yes")
    assert first.out.startswith("This is gone.\n")
    assert first.out.splitlines()[1:4] == dry.out.splitlines()[1:4]
    assert any(line.startswith("writes of no checkpoint") for line in first.out.splitlines())
    nothing = cli("gc", made.dsn, "--grace", "0s")
    assert (nothing.code, nothing.err) == (0, "")
    assert nothing.out == "Dry run, nothing was changed: there is nothing to sweep.\n"
    again = cli("gc", made.dsn, "--grace", "0s", "--yes", "--json").json
    assert (again["writes"], again["blobs"]) == (0, 0)


def test_erase_removes_a_thread_and_looks_again(
    made: Database, cli: Callable[..., Any], refused: Callable[..., str]
) -> None:
    assert cli("compact", made.dsn, *NOW, "--yes").code == 0
    before = held(made)
    shown = cli("erase", made.dsn, "t0", "t1")
    assert shown.code == 0
    assert "2 threads would be erased" in shown.out
    assert shown.err == NO_TERMINAL
    assert held(made) == before
    assert cli("erase", made.dsn, "t0", "--dry-run").code == 0
    assert held(made) == before
    done = cli("erase", made.dsn, "t0", "t1", "--yes")
    assert (done.code, done.err) == (0, "")
    assert "2 threads erased." in done.out
    assert "A second look found nothing" in done.out
    assert "is not in" in refused("transcript", made.dsn, "t0")
    assert len(messages(cli, made, "t2")) == 2 * TURNS


def test_erasing_a_thread_that_is_not_there_is_refused(
    made: Database, refused: Callable[..., str]
) -> None:
    before = held(made)
    said = refused("erase", made.dsn, "t0", "nobody", "--yes")
    assert "thread 'nobody' is not in" in said
    assert held(made) == before
