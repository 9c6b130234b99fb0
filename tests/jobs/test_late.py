"""Writes come before their checkpoint, or after a job has deleted it: only those may go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from jobs.chats import Chat, counted
from jobs.graphs import finished
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6

from reducing_saver import (
    Discard,
    Policy,
    ReducingSaver,
    Retain,
    Window,
    compact,
    erase,
    gc,
    status,
)
from reducing_saver import _retention as retention
from reducing_saver._retain import Key, floor
from reducing_saver.rows.late import Late, remembered, sort_out

NOW = datetime.now(UTC)
WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
POLICY = Policy(WINDOW, paused="history")


def ago(hours: float, tail: str = "000000000000") -> str:
    return floor(NOW - timedelta(hours=hours))[:-12] + tail


def at(thread: str, checkpoint: str, namespace: str = "") -> Any:
    named = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": named}


def run(house: Any, policy: Policy = POLICY, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    report = compact(house.saver, policy, **given)
    assert report.exit_code == 0, report.errors
    return report


def fill(house: Any, thread: str = "t") -> list[str]:
    """Store a finished thread; returns the ids of its checkpoints, oldest first."""
    play = finished(house.saver)
    play.thread = thread
    play.start()
    listed = house.saver.list({"configurable": {"thread_id": thread}})
    return sorted(one.checkpoint["id"] for one in listed)


def write(house: Any, checkpoint: str, thread: str = "t", namespace: str = "") -> None:
    house.saver.put_writes(at(thread, checkpoint, namespace), [("seen", ["late"])], "task")


def orphans(house: Any) -> list[str]:
    return sorted(row[2] for row in counted(house)["orphan writes"])


# The rule


@pytest.mark.parametrize(
    ("hours", "ahead", "known", "expected"),
    [
        (0.1, False, False, "stays"),
        (0.1, False, True, "goes"),
        (0.9, False, False, "stays"),
        (1.1, False, False, "goes"),
        (0.1, True, False, "waits"),
        (0.1, True, True, "goes"),
        (1.1, True, False, "waits"),
        (25.0, True, False, "goes"),
        (25.0, False, False, "goes"),
    ],
)
def test_only_time_and_knowledge_tell(
    hours: float, ahead: bool, known: bool, expected: str
) -> None:
    late = Key("", ago(hours))
    stored = [Key("", ago(hours + (1 if ahead else -0.05)))]
    found = sort_out([late], stored, now=NOW, deleted=lambda: [late] if known else [])
    assert found == Late((late,) if expected == "goes" else (), expected == "waits")


def test_each_namespace_has_its_own_newest() -> None:
    stored = [Key("", ago(0.1)), Key("a", ago(0.3))]
    keys = [Key("a", ago(0.2)), Key("b", ago(0.2)), Key("b", ago(0.05))]
    for key, unput in zip(keys, (True, False, True), strict=True):
        assert sort_out([key], stored, now=NOW, deleted=list) == Late((), unput)
    # A deletion in one namespace says nothing of another.
    other = Key("", keys[0].id)
    assert sort_out([keys[1]], stored, now=NOW, deleted=lambda: [other]).swept == ()


@pytest.mark.parametrize("id", ["", "1", "zzz", "1ef9e3a0-0000-4000-8000-000000000000"])
def test_an_id_that_tells_no_time_is_never_old(id: str) -> None:
    stored = [Key("", ago(0.1))]
    found = sort_out([Key("", id)], stored, now=NOW, deleted=list)
    assert found.swept == ()
    assert remembered([Key("", id)], now=NOW) == ()


def test_who_knows_is_asked_only_where_time_does_not_tell() -> None:
    def deleted() -> list[Key]:
        raise AssertionError("asked")

    stored = [Key("", ago(0.1))]
    assert sort_out([], stored, now=NOW, deleted=deleted) == Late()
    assert len(sort_out([Key("", ago(3))], stored, now=NOW, deleted=deleted).swept) == 1


def test_what_was_deleted_is_remembered_until_time_tells() -> None:
    keys = [Key("", ago(hours)) for hours in (0.2, 0.9, 1.1, 30)]
    assert remembered(keys, now=NOW) == tuple(sorted(keys[:2]))


# Jobs


@pytest.mark.parametrize("same_job", [True, False], ids=["same job", "another job"])
def test_a_write_that_comes_after_its_checkpoint_was_deleted(house: Any, same_job: bool) -> None:
    """The head is the one that was done, so only the write tells that there is something to do."""
    deleted = fill(house)[2]
    run(house, job="one")
    fill(house, "other")
    run(house, job="one")
    write(house, deleted)
    planned = compact(house.saver, POLICY, archive="same", idle="0")
    assert (planned.compacted, planned.bytes.writes > 0) == (1, True)
    assert orphans(house) == [deleted]
    done = run(house, job="one" if same_job else "two")
    assert (done.compacted, done.deleted, done.evicted) == (1, 0, 0)
    assert done.bytes.writes == planned.bytes.writes
    assert done.bytes.freed == done.bytes.writes
    assert orphans(house) == []
    again = run(house, job="one" if same_job else "two")
    assert (again.compacted, again.skipped) == (0, {"compacted before": 2})


def test_a_write_whose_checkpoint_may_be_on_its_way_stays(house: Any) -> None:
    """Its id is older than what is stored, as that of another run of the same thread."""
    early = str(uuid6())
    fill(house)
    write(house, early)
    for _ in range(2):
        report = run(house, job="one")
        assert orphans(house) == [early]
    assert report.skipped == {"compacted before": 1}
    assert gc(house.saver, dry_run=False).waiting == 1


def test_the_bytes_of_a_write_that_waits_stay(house: Any) -> None:
    early = str(uuid6())
    fill(house)
    plain = compact(house.saver, POLICY, archive="same", idle="0").bytes
    write(house, early)
    other = compact(house.saver, POLICY, archive="same", idle="0").bytes
    assert other.freed == plain.freed
    assert other.stays > plain.stays


@pytest.mark.parametrize(("hours", "skip"), [(2, "with writes of a checkpoint"), (25, None)])
def test_a_run_that_died_before_its_put(house: Any, hours: int, skip: str | None) -> None:
    """Its writes are newer than all that is stored: a day later nobody waits for the rest."""
    fill(house, "other")
    head = house.saver.get_tuple({"configurable": {"thread_id": "other"}})
    past: Any = {**head.checkpoint, "id": ago(hours + 1)}
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    house.saver.put(place, past, head.metadata, past["channel_versions"])
    write(house, ago(hours))
    report = run(house, threads=["t"])
    if skip is None:
        assert (report.compacted, orphans(house)) == (1, [])
    else:
        assert next(iter(report.skipped)).startswith(skip)
        assert orphans(house) == [ago(hours)]


def test_a_write_that_is_older_than_its_patience(house: Any) -> None:
    fill(house)
    write(house, ago(2))
    write(house, ago(2, "000000000001"), namespace="other:task")
    write(house, ago(0.5))
    assert len(orphans(house)) == 3
    run(house)
    assert orphans(house) == [ago(0.5)]


def test_what_was_deleted_is_forgotten_in_time(house: Any) -> None:
    fill(house)
    run(house, job="one")
    assert house.count("reducing_saver_deleted") == 1
    house.run("UPDATE reducing_saver_deleted SET newest = ?", (ago(1.1),))
    fill(house, "other")
    run(house, job="one", threads=["other"])
    assert house.run("SELECT thread_id FROM reducing_saver_deleted") == [("other",)]


def test_idle_threads_leave_nothing_to_remember(house: Any, monkeypatch: Any) -> None:
    fill(house)
    monkeypatch.setattr("reducing_saver.rows.late.PATIENCE", timedelta())
    assert run(house).deleted > 10
    assert house.count("reducing_saver_deleted") == 0


def test_an_erased_thread_is_not_remembered(house: Any) -> None:
    fill(house)
    run(house)
    assert house.count("reducing_saver_deleted") == 1
    said = erase(house.saver, ["t"])
    done = erase(house.saver, ["t"], dry_run=False)
    assert (done.found, dict(done.rows)) == ({}, dict(said.rows))
    assert done.rows["reducing_saver_deleted"] == 1
    assert house.count("reducing_saver_deleted") == 0


# Real runs


@pytest.fixture
def held(house: Any, monkeypatch: Any) -> Callable[..., threading.Event]:
    """Hold back one call of the saver, by name, until the event that it returns is set."""

    def hold(name: str, wanted: Callable[[Any], bool]) -> threading.Event:
        whole, over, seen = getattr(house.saver, name), threading.Event(), list[Any]()

        def slow(config: Any, values: Any, *rest: Any) -> Any:
            if not seen and wanted(values):
                seen.append(values)
                assert over.wait(30)
            return whole(config, values, *rest)

        # LangGraph looks whether it may give a path.
        if name == "put_writes":

            def slow_writes(config: Any, writes: Any, task_id: str, task_path: str = "") -> Any:
                return slow(config, writes, task_id, task_path)

            monkeypatch.setattr(house.saver, name, slow_writes)
        else:
            monkeypatch.setattr(house.saver, name, slow)
        return over

    return hold


def until(found: Callable[[], bool]) -> Iterator[None]:
    end = datetime.now(UTC) + timedelta(seconds=20)
    while not found():
        assert datetime.now(UTC) < end, "it has not come so far"
        yield


def test_a_run_whose_writes_come_late(house: Any, held: Any) -> None:
    """A run goes on while the writes of one of its tasks are on their way, and a job deletes."""
    chat = Chat("tools", "t", house.saver)
    chat.say()
    over = held("put_writes", lambda writes: any("t1" in repr(one) for one in writes))
    talk = threading.Thread(target=chat.say)
    talk.start()

    def is_through() -> bool:
        head = house.saver.get_tuple(chat.config)
        held = [m.id for m in head.checkpoint["channel_values"]["messages"]]
        return held[-1] == "a1" and not [n for n in head.checkpoint["channel_values"] if ":" in n]

    for _ in until(is_through):
        talk.join(0.02)
    assert run(house).deleted > 3
    over.set()
    talk.join()
    assert chat.error is None
    assert len(orphans(house)) > 0
    run(house)
    assert orphans(house) == []
    chat.say()
    run(house)
    assert orphans(house) == []
    found = house.saver.get_tuple(chat.config).checkpoint["channel_values"]["messages"]
    assert [m.id for m in found] == chat.said[-4:]


def test_a_run_whose_put_comes_late_next_to_another_run(house: Any, held: Any) -> None:
    """What one run has written waits for its checkpoint while the other run goes on."""
    chat = Chat("interrupt", "t", house.saver)

    def is_after_f(checkpoint: Any) -> bool:
        return "branch:to:ask" in checkpoint["channel_values"]

    over = held("put", is_after_f)
    said: Any = {"messages": [HumanMessage("first", id="h0")]}
    slow = threading.Thread(target=lambda: chat.graph.invoke(said, chat.config))
    slow.start()
    for _ in until(lambda: len(orphans(house)) > 0):
        slow.join(0.02)
    early = orphans(house)
    other = Chat("interrupt", "t", house.saver)
    for number in (1, 2):
        said = {"messages": [HumanMessage("more", id=f"h{number}")]}
        other.graph.invoke(said, other.config)
    report = run(house)
    assert report.deleted > 2
    assert orphans(house) == early
    run(house)
    assert orphans(house) == early
    over.set()
    slow.join()
    found = house.saver.get_tuple(at("t", early[0]))
    assert [name for _, name, _ in found.pending_writes] == ["__interrupt__"]
    run(house)
    found = house.saver.get_tuple(at("t", early[0]))
    assert [name for _, name, _ in found.pending_writes] == ["__interrupt__"]


def test_retention_sweeps_what_comes_late(house: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(retention, "GRACE_SECONDS", 0.0)
    saver = ReducingSaver(house.saver, WINDOW, archive=Discard(), retain=Retain(last=1))
    play = finished(saver)
    before = fill(house)
    play.start()
    saver.close()
    left = {one.checkpoint["id"] for one in house.saver.list(play.config)}
    gone, early = [id for id in before if id not in left], str(uuid6())
    assert len(gone) > 5
    play.start()
    saver.close()
    write(house, gone[0])
    write(house, early)
    play.start()
    saver.close()
    assert orphans(house) == [early]


# What is told of a job


def test_status_tells_of_all_rounds(house: Any) -> None:
    fill(house)
    first = run(house, job="nightly")
    (known,) = status(house.saver)
    assert (known.rounds, known.bytes) == (1, first.bytes)
    fill(house, "other")
    second = run(house, job="nightly")
    (known,) = status(house.saver)
    assert (known.rounds, known.done, known.total) == (2, 2, 2)
    assert known.deleted == first.deleted + second.deleted > second.deleted
    assert known.evicted == first.evicted + second.evicted > second.evicted
    assert known.archived == first.archived + second.archived
    assert known.bytes == first.bytes + second.bytes
    finished(house.saver).start()
    third = run(house, job="nightly")
    fourth = run(house, job="nightly")
    assert (third.compacted, fourth.compacted) == (1, 0)
    (known,) = status(house.saver)
    assert known.rounds == 4
    assert known.deleted == first.deleted + second.deleted + third.deleted
    assert known.bytes.freed == first.bytes.freed + second.bytes.freed + third.bytes.freed
    assert known.bytes.stays == second.bytes.stays + third.bytes.stays
