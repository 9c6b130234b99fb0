"""What a job must not do: write when it is dry, touch what is in use, stop at one bad thread."""

from __future__ import annotations

import gc as garbage
import hashlib
import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jobs.graphs import PLAYS, TURNS, Play, chain, finished, newest, turn
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.checkpoint.base.id import uuid6

from reducing_saver import (
    ConfigurationError,
    Discard,
    JobError,
    Policy,
    Retain,
    StoreArchive,
    Window,
    compact,
    gc,
    status,
    survey,
)
from reducing_saver.jobs.source import source_of
from reducing_saver.rows.backend import free_still, retain
from reducing_saver.rows.thread import Look

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
POLICY = Policy(WINDOW)
DATA = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "store")


def run(house: Any, policy: Policy = POLICY, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    return compact(house.saver, policy, **given)


def fill(house: Any, *threads: str) -> list[Play]:
    plays = []
    for thread in threads or ("t",):
        play = finished(house.saver)
        play.thread = thread
        play.start()
        plays.append(play)
    return plays


def loaded(play: Play) -> list[str]:
    return [m.id for m in play.graph.get_state(play.config).values["messages"]]


def checkpoints(house: Any, thread: str = "t") -> int:
    return len(list(house.saver.list({"configurable": {"thread_id": thread}})))


def hashes(path: str) -> dict[str, tuple[int, str]]:
    found = {}
    for suffix in ("", "-wal"):
        file = Path(path + suffix)
        if file.exists():
            data = file.read_bytes()
            found[suffix] = (len(data), hashlib.sha256(data).hexdigest())
    return found


# Reading only


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("open_saver", [True, False], ids=["by saver", "by path"])
def test_a_dry_run_leaves_the_file_as_it_is(house: Any, open_saver: bool) -> None:
    fill(house, "a", "b")
    given = house.saver if open_saver else house.dsn
    house.saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = hashes(house.dsn)
    report = compact(given, POLICY, archive="same", idle="0")
    assert report.dry_run
    assert report.compacted == 2
    assert survey(given).bytes.old_versions > 0
    assert gc(given, archive="same").writes == 0
    assert status(given) == ()
    assert hashes(house.dsn) == before


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_dry_run_writes_nothing(house: Any) -> None:
    fill(house, "a", "b")
    before = [house.digest(name) for name in DATA]
    tables = house.run("SELECT count(*) FROM pg_tables")
    report = compact(house.saver, POLICY, archive="same", idle="0")
    assert report.compacted == 2
    assert survey(house.saver).threads == 2
    assert gc(house.saver, archive="same").blobs == 0
    assert status(house.saver) == ()
    after = [house.digest(name) for name in DATA]
    assert after == before
    assert house.run("SELECT count(*) FROM pg_tables") == tables


def test_a_dry_run_says_what_applying_does(house: Any) -> None:
    fill(house, "a", "b", "c")
    said = compact(house.saver, POLICY, archive="same", idle="0")
    done = run(house)
    for name in (
        "threads",
        "compacted",
        "skipped",
        "bytes",
        "archived",
        "evicted",
        "deleted",
        "largest",
        "curve",
        "policy",
        "archive",
        "left",
    ):
        assert getattr(said, name) == getattr(done, name), name
    assert said.exit_code == done.exit_code == 0
    assert done.bytes.freed > 0.8 * done.bytes.before
    assert house.orphans() == 0


def test_an_empty_database_has_the_same_report(house: Any) -> None:
    """C03: a no-op has the same shape."""
    for report in (compact(house.saver, POLICY, archive="same"), run(house), survey(house.saver)):
        assert report.threads == report.compacted == report.left == 0
        assert report.exit_code == 0
        assert report.curve == ()
    none = run(house, threads=["nobody"])
    assert none.threads == 0


# Who is left alone


def test_young_threads_are_left_alone(house: Any) -> None:
    (play,) = fill(house)
    before = loaded(play)
    report = run(house, idle="1h")
    assert report.skipped == {"younger than idle": 1}
    assert loaded(play) == before


def test_c04_the_row_without_a_checkpoint_is_never_the_head(house: Any) -> None:
    plays = fill(house, "t", "u")
    config = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": str(uuid6())}
    }
    house.saver.put_writes(config, [("messages", [RemoveMessage(id="h0")])], "task")
    before = checkpoints(house)
    report = run(house)
    assert report.skipped == {"with writes of a checkpoint not stored yet": 1}
    assert report.compacted == 1
    assert checkpoints(house) == before
    assert loaded(plays[0])[0] == "h0"
    again = run(house)
    assert again.skipped == {"with writes of a checkpoint not stored yet": 1, "compacted before": 1}
    assert again.deleted == 0


def test_c04_a_poison_thread_is_counted_and_the_others_are_done(house: Any) -> None:
    fill(house, *(f"t{i}" for i in range(12)))
    if house.kind == "postgres":
        poison = "UPDATE checkpoint_blobs SET blob = ? WHERE thread_id = ? AND channel = 'messages'"
    else:
        poison = "UPDATE checkpoints SET checkpoint = ? WHERE thread_id = ?"
    house.run(poison, (b"\xc1poison", "t5"))
    before = house.count("checkpoints")
    report = run(house)
    assert report.compacted == 11
    assert report.skipped == {"unreadable": 1}
    assert report.exit_code == 0
    assert house.run("SELECT count(*) FROM checkpoints WHERE thread_id = ?", ("t5",))[0][0] > 1
    after = house.count("checkpoints")
    assert after < before
    again = run(house)
    assert again.compacted == again.deleted == 0
    assert again.skipped == {"compacted before": 11, "unreadable": 1}
    assert house.count("checkpoints") == after


def test_a_thread_that_breaks_the_transaction_is_done_alone(house: Any, monkeypatch: Any) -> None:
    from reducing_saver.rows.postgres import PostgresRows
    from reducing_saver.rows.sqlite import SqliteRows

    fill(house, *(f"t{i}" for i in range(5)))
    kind = PostgresRows if house.kind == "postgres" else SqliteRows
    whole = kind.apply

    def apply(self: Any, edits: Any) -> None:
        whole(self, edits)
        if any(edit.thread.id == "t3" for edit in edits):
            raise ValueError("poison")

    monkeypatch.setattr(kind, "apply", apply)
    report = run(house)
    assert report.compacted == 4
    assert report.skipped == {"failed": 1}
    assert report.errors == ("t3: ValueError",)
    assert report.exit_code == 1
    assert checkpoints(house, "t3") > 1
    monkeypatch.undo()
    again = run(house)
    assert again.compacted == 1
    assert again.exit_code == 0
    assert checkpoints(house, "t3") == 1


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_the_garbage_collector_is_left_as_it_was(
    house: Any, monkeypatch: Any, enabled: bool
) -> None:
    """A job has it run more rarely for a chunk, never off; then as before, also if it raised."""
    fill(house, "t0", "t1")
    kind = type(house.saver).__name__.replace("Saver", "Rows")
    rows = importlib.import_module(f"reducing_saver.rows.{house.kind}")
    within = []

    def apply(self: Any, edits: Any) -> None:
        within.append((garbage.isenabled(), garbage.get_threshold()))
        raise ValueError("poison")

    monkeypatch.setattr(getattr(rows, kind), "apply", apply)
    was, thresholds = garbage.isenabled(), garbage.get_threshold()
    try:
        garbage.enable() if enabled else garbage.disable()
        assert run(house).skipped == {"failed": 2}
        assert (garbage.isenabled(), garbage.get_threshold()) == (enabled, thresholds)
    finally:
        garbage.enable() if was else garbage.disable()
    assert within[0][0] is enabled
    assert within[0][1] > thresholds


def test_c53_both_branches_stay(house: Any) -> None:
    """Two `update_state` from one parent: both heads are there afterwards, and both go on."""
    (play,) = fill(house)
    head = play.graph.get_state(play.config).config
    ends = [
        play.graph.update_state(head, {"messages": [AIMessage(n, id=n)]}, as_node="b")
        for n in ("one", "two")
    ]
    report = run(house, Policy(WINDOW, Retain(last=1)))
    assert report.compacted == 1
    assert checkpoints(house) == 2
    for name, end in zip(("one", "two"), ends, strict=True):
        state = play.graph.get_state(end)
        assert state.values["messages"][-1].id == name
        assert len(state.values["messages"]) <= 6
        play.graph.invoke(turn(8), end)
    assert house.orphans() == 0
    gone = run(house, Policy(WINDOW, Retain(last=1, tips=False)))
    assert gone.compacted == 1
    assert checkpoints(house) == 1


def test_the_version_stays_the_same(house: Any) -> None:
    (play,) = fill(house)
    before = house.saver.get_tuple(play.config)
    run(house)
    after = house.saver.get_tuple(play.config)
    assert after.checkpoint["channel_versions"] == before.checkpoint["channel_versions"]
    assert after.checkpoint["versions_seen"] == before.checkpoint["versions_seen"]
    assert after.checkpoint["id"] == before.checkpoint["id"]
    assert after.parent_config is None
    kept = after.checkpoint["channel_values"]["messages"]
    assert kept == before.checkpoint["channel_values"]["messages"][-len(kept) :]


def test_a_list_stays_whole_where_a_pending_write_names_what_would_leave(house: Any) -> None:
    """A kept checkpoint in the middle of a turn, whose node removes an old message."""
    play = Play(house.saver)

    def remove(state: Any) -> Any:
        gone = [RemoveMessage(id="h0")] if newest(state) == f"h{TURNS - 1}" else []
        return {"messages": [*gone, AIMessage("done", id=f"done.{newest(state)}")], "seen": []}

    chain(play, ("a", play.node("a")), ("remove", play.node("remove", remove)))
    play.start()
    run(house, Policy(WINDOW, Retain(last=2)))
    history = [*play.graph.get_state_history(play.config)]
    assert len(history) == 2
    assert [len(s.values["messages"]) for s in history] == [3, 3 * TURNS - 1]
    play.graph.invoke(None, history[1].config)
    assert loaded(play)[-1] == f"done.h{TURNS - 1}"


def test_what_is_retained_is_not_taken_for_a_branch_later(house: Any) -> None:
    """A turn's start that was kept is no tip when the checkpoints after it have gone."""
    (play,) = fill(house)
    policy = Policy(WINDOW, Retain(turn_starts=2))
    run(house, policy)
    assert checkpoints(house) == 3
    for i in range(3):
        play.graph.invoke(turn(TURNS + i), play.config)
    run(house, policy)
    assert checkpoints(house) == 3


# Retention of a few checkpoints


def test_a_few_checkpoints_of_one_thread_go_at_a_time(house: Any) -> None:
    (play,) = fill(house)
    fill(house, "other")
    state, others = loaded(play), checkpoints(house, "other")
    look = Look(Retain(last=3), datetime.now(UTC))
    with source_of(house.saver).open() as rows:
        total = checkpoints(house)
        left = total
        while gone := retain(rows, "t", look, most=4):
            left -= len(gone)
            assert len(gone) <= 4
            assert checkpoints(house) == left
            assert loaded(play) == state
            if rows.shares_values:
                free_still(rows, "t", rows.unnamed("t"))
                assert loaded(play) == state
            assert house.orphans() == 0
    assert left == 3
    assert checkpoints(house, "other") == others
    stored = [*house.saver.list(play.config)]
    parents = [one.parent_config for one in stored]
    assert parents[-1] is None
    assert all(parents[:-1])


@pytest.mark.parametrize("name", PLAYS)
def test_retention_of_a_live_thread_changes_nothing(name: str, build: Any) -> None:
    house, other = build(), build()
    ours, twin = PLAYS[name](house.saver), PLAYS[name](other.saver)
    for play in (ours, twin):
        play.start()
    with source_of(house.saver).open() as rows:
        while retain(rows, "t", Look(Retain(), datetime.now(UTC)), most=5):
            pass
    states = [play.go_on() for play in (ours, twin)]
    assert states[0].values == states[1].values
    assert states[0].next == states[1].next
    assert ours.nodes == twin.nodes


# Bad values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("archive", None),
        ("archive", "other"),
        ("policy", WINDOW),
        ("idle", -1),
        ("idle", "1"),
        ("max_rate", 0),
        ("max_rate", -1),
        ("max_rate", float("nan")),
        ("max_rate", True),
        ("max_threads", 0),
        ("max_threads", 1.5),
        ("max_time", "-1s"),
        ("max_time", "soon"),
        ("threads", "t"),
        ("job", ""),
        ("channels", "messages"),
        ("channels", ()),
        ("executor", 2),
        ("summary", "text"),
        ("on_evict", print),
        ("messages_reducer", 1),
        ("dry_run", 0),
        ("vacuum", "yes"),
        ("progress", "bar"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_bad_values_are_refused(house: Any, field: str, value: Any) -> None:
    given = {"policy": POLICY, "archive": "same", field: value}
    policy = given.pop("policy")
    with pytest.raises(ConfigurationError, match=field):
        compact(house.saver, policy, **given)


@pytest.mark.parametrize("given", [5, None, "mysql://x", "/nowhere/x.db"])
def test_what_is_no_saver_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="saver"):
        compact(given, POLICY, archive=Discard())


# The ledger


def test_a_job_stops_and_goes_on(house: Any) -> None:
    fill(house, *(f"t{i:03}" for i in range(25)))
    first = run(house, job="nightly", max_threads=1)
    assert (first.compacted, first.left, first.exit_code) == (1, 24, 3)
    second = run(house, job="nightly", max_threads=22)
    assert (second.compacted, second.left, second.exit_code) == (23, 2, 3)
    (known,) = status(house.saver, job="nightly")
    assert (known.done, known.left, known.total) == (23, 2, 25)
    last = run(house, job="nightly")
    assert (last.compacted, last.left, last.exit_code) == (25, 0, 0)
    assert house.count("checkpoints") == 25
    assert house.orphans() == 0
    other = run(house, job="another")
    assert (other.compacted, other.skipped) == (0, {"compacted before": 25})


def test_another_policy_under_the_same_name_is_refused(house: Any) -> None:
    fill(house)
    run(house, job="nightly")
    with pytest.raises(JobError, match="nightly"):
        run(house, Policy(Window(("messages", 5))), job="nightly")
    with pytest.raises(JobError, match="nightly"):
        run(house, job="nightly", archive=Discard())
    assert run(house, job="nightly").skipped == {"compacted before": 1}
    with pytest.raises(JobError, match="weekly"):
        status(house.saver, job="weekly")


# The archive elsewhere, and hooks


def test_an_archive_elsewhere(house: Any, tmp_path: Path) -> None:
    from langgraph.store.sqlite import SqliteStore

    from reducing_saver import ReducingSaver

    (play,) = fill(house)
    whole = loaded(play)
    with SqliteStore.from_conn_string(str(tmp_path / "archive.db")) as store:
        archive = StoreArchive(store)
        report = run(house, archive=archive)
        assert report.compacted == 1
        saver = ReducingSaver(house.saver, WINDOW, archive=archive)
        assert [m.id for m in saver.transcript(play.config)] == whole


def test_the_store_of_the_same_file_given_as_an_archive(house: Any) -> None:
    (play,) = fill(house)
    whole = loaded(play)
    report = run(house, archive=StoreArchive(house.store))
    assert report.compacted == 1
    assert [m.id for m in house.wrap(WINDOW).transcript(play.config)] == whole


def test_hooks_are_told_after_the_commit_once(house: Any) -> None:
    plays = fill(house, "a", "b")
    told: list[Any] = []

    def hook(eviction: Any) -> None:
        assert checkpoints(house, eviction.thread) == 1, "told before the commit"
        told.append(eviction)

    run(house, on_evict=[hook])
    assert sorted((e.thread, len(e.messages)) for e in told) == [("a", 15), ("b", 15)]
    gone = {(e.thread, m.id) for e in told for m in e.messages}
    assert len(gone) == sum(len(e.messages) for e in told)
    for play in plays:
        assert {m for t, m in gone if t == play.thread}.isdisjoint(loaded(play))
    run(house, on_evict=[hook])
    assert len(told) == 2


def test_a_hook_that_fails_is_told_again(house: Any) -> None:
    fill(house)
    told: list[Any] = []

    def fails(eviction: Any) -> None:
        raise RuntimeError("no")

    run(house, on_evict=[fails])
    run(house, on_evict=[told.append])
    assert len(told) == 1


def test_what_waits_of_other_threads_is_not_told(house: Any) -> None:
    """It waits for the hooks of a saver that archived it."""

    def fails(eviction: Any) -> None:
        raise RuntimeError("no")

    saver = house.wrap(WINDOW, on_evict=[fails])
    other = finished(saver)
    other.thread = "other"
    other.start()
    fill(house)
    told: list[Any] = []
    run(house, threads=["t"], on_evict=[told.append])
    assert [e.thread for e in told] == ["t"]


def test_the_wrapper_goes_on_where_a_job_has_been(house: Any) -> None:
    """A live process has the thread in its memory, as it was before the job."""
    saver = house.wrap(WINDOW)
    play = finished(saver)
    play.start()
    run(house, Policy(Window(("messages", 2))))
    play.graph.invoke(turn(TURNS), play.config)
    play.graph.invoke(turn(TURNS + 1), play.config)
    said = [m.id for m in saver.transcript(play.config)]
    assert said == [f"{kind}h{i}" for i in range(TURNS + 2) for kind in ("", "a.", "b.")]


# SQLite's own


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_space_goes_back_to_the_disk(house: Any) -> None:
    fill(house, *(f"t{i}" for i in range(8)))
    house.saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(house.dsn).stat().st_size
    report = run(house, vacuum=True)
    house.saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert report.returned > 0.5 * before
    assert before - Path(house.dsn).stat().st_size == report.returned


def test_a_database_in_memory() -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(":memory:") as saver:
        play = finished(saver)
        play.start()
        told: list[Any] = []
        said = compact(saver, POLICY, archive="same", idle="0")
        assert said.compacted == 1
        settings: Any = {"archive": "same", "idle": "0", "dry_run": False}
        report = compact(saver, POLICY, on_evict=[told.append], **settings)
        assert report.compacted == 1
        assert len(told[0].messages) == 15
        assert len(loaded(play)) == 3
        play.graph.invoke(turn(TURNS), play.config)
        assert len(loaded(play)) == 6


def test_young_threads_take_no_row(house: Any) -> None:
    fill(house, "a", "b")
    for dry in (True, False):
        report = run(house, idle="1h", dry_run=dry)
        assert report.threads == 2
        assert report.skipped == {"younger than idle": 2}
        assert report.exit_code == 0
    assert house.count("reducing_saver_threads") == 0


def test_pending_writes_of_the_head(house: Any) -> None:
    """A removal of an old message waits: the thread is left, or only its history goes."""
    (play,) = fill(house)
    head = house.saver.get_tuple(play.config)
    house.saver.put_writes(head.config, [("messages", [RemoveMessage(id="h0")])], "task")
    assert run(house).skipped == {"with pending writes": 1}
    report = run(house, Policy(WINDOW, paused="history"))
    assert (report.compacted, report.evicted) == (1, 0)
    after = house.saver.get_tuple(play.config)
    assert after.checkpoint == head.checkpoint
    assert len(after.pending_writes) == 1
    assert checkpoints(house) == 1
