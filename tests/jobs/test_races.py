"""Somebody does something to a thread in the very moment in which a job has it in hand."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jobs.chats import WINDOW, Chat, archived, counted, live, problems, talking
from jobs.graphs import PLAYS, TURNS
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import create_checkpoint

from reducing_saver import (
    Discard,
    JobError,
    Policy,
    ReducingSaver,
    Retain,
    StoreArchive,
    Window,
    compact,
    gc,
    status,
)
from reducing_saver.jobs import work
from reducing_saver.jobs.source import source_of
from reducing_saver.jobs.work import Worker
from reducing_saver.rows import unnamed
from reducing_saver.rows.postgres import PostgresRows
from reducing_saver.rows.sqlite import SqliteRows

POLICY = Policy(WINDOW)
HISTORY = Policy(WINDOW, paused="history")


def run(house: Any, policy: Policy = POLICY, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    report = compact(house.saver, policy, **given)
    assert report.exit_code == 0, report.errors
    return report


@pytest.fixture
def meanwhile(house: Any, monkeypatch: Any) -> Callable[[Callable[[], Any]], Callable[[], None]]:
    """Let something happen once after a job has read a thread and before it writes.

    Who writes into a SQLite file has to wait until the job has done: what is returned waits.
    """

    def arm(act: Callable[[], Any]) -> Callable[[], None]:
        kind = PostgresRows if house.kind == "postgres" else SqliteRows
        whole, threads, errors = kind.apply, list[threading.Thread](), list[BaseException]()

        def guarded() -> None:
            try:
                act()
            except BaseException as error:
                errors.append(error)

        def apply(self: Any, edits: Any) -> None:
            if not threads:
                threads.append(threading.Thread(target=guarded))
                threads[0].start()
                threads[0].join(None if house.kind == "postgres" else 0.2)
            whole(self, edits)

        def finish() -> None:
            assert threads, "the job has not come so far"
            threads[0].join()
            assert not errors, errors

        monkeypatch.setattr(kind, "apply", apply)
        return finish

    return arm


def wrapped(house: Any, window: Window = WINDOW, **settings: Any) -> ReducingSaver:
    return ReducingSaver(house.saver, window, archive=StoreArchive(house.store), **settings)


def talked(house: Any, kind: str = "plain", turns: int = TURNS, saver: Any = None) -> Chat:
    chat = Chat(kind, "t", saver or house.saver)
    for _ in range(turns):
        chat.say()
    return chat


def rows_of(house: Any, thread: str = "t") -> int:
    tables = ["checkpoints", house.writes]
    tables += ["checkpoint_blobs"] if house.kind == "postgres" else []
    asked = "SELECT count(*) FROM {} WHERE thread_id = ?"
    return sum(house.run(asked.format(table), (thread,))[0][0] for table in tables)


@pytest.mark.parametrize("wraps", [False, True], ids=["bare", "wrapped"])
def test_a_thread_that_is_deleted_stays_deleted(house: Any, meanwhile: Any, wraps: bool) -> None:
    talked(house)
    saver = wrapped(house) if wraps else house.saver
    finish = meanwhile(lambda: saver.delete_thread("t"))
    run(house)
    finish()
    assert rows_of(house) == 0
    run(house)
    gc(house.saver, archive="same", grace="0", dry_run=False)
    assert house.count("store") == 0


@pytest.mark.parametrize("wraps", [False, True], ids=["bare", "wrapped"])
@pytest.mark.parametrize("policy", [POLICY, HISTORY], ids=["skip", "history"])
def test_a_turn_that_is_said(house: Any, meanwhile: Any, policy: Policy, wraps: bool) -> None:
    chat = talked(house, "wrapped" if wraps else "tools", saver=wrapped(house) if wraps else None)
    finish = meanwhile(chat.say)
    run(house, policy)
    finish()
    assert not problems(house, [chat])
    chat.say()
    run(house, policy)
    assert not problems(house, [chat], quiet=True)


@pytest.mark.parametrize(
    "name", ["interrupt in a tool", "subgraph at its second node", "delta channel"]
)
@pytest.mark.parametrize("policy", [POLICY, HISTORY], ids=["skip", "history"])
def test_a_paused_thread_that_is_resumed(
    build: Any, name: str, policy: Policy, monkeypatch: Any, request: Any
) -> None:
    house, other = build(), build()
    ours, twin = PLAYS[name](house.saver), PLAYS[name](other.saver)
    for play in (ours, twin):
        play.start()
    kind = PostgresRows if house.kind == "postgres" else SqliteRows
    load, states = kind.load, list[Any]()

    def loading(self: Any, threads: Any, look: Any) -> Any:
        found = load(self, threads, look)
        if not states and house.kind == "postgres":
            states.append(ours.go_on())
        return found

    monkeypatch.setattr(kind, "load", loading)
    run(house, policy, messages_reducer=ours.reducer)
    states = states or [ours.go_on()]
    theirs = twin.go_on()
    names = [[m.id for m in state.values["messages"]] for state in (states[0], theirs)]
    assert names[0] == names[1][len(names[1]) - len(names[0]) :]
    assert ours.nodes == twin.nodes
    assert states[0].next == theirs.next
    after = ours.graph.get_state(ours.config)
    assert [m.id for m in after.values["messages"]] == names[0]
    run(house, policy, messages_reducer=ours.reducer)
    assert house.kind == "sqlite" or not counted(house)["dangling"]


@pytest.mark.parametrize("kind_of_chat", ["plain", "tools", "subgraph", "wrapped", "wrapped tools"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("policy", [POLICY, HISTORY], ids=["skip", "history"])
def test_a_job_in_every_step_of_a_run(
    house: Any, kind_of_chat: str, durability: str, policy: Policy
) -> None:
    """A callback runs a whole job whenever a node starts: the run knows nothing of it."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Job(BaseCallbackHandler):
        run_inline = True
        raise_error = True
        runs = 0

        def on_chain_start(self, *args: Any, **settings: Any) -> None:
            run(house, policy)
            Job.runs += 1

    saver = wrapped(house) if kind_of_chat.startswith("wrapped") else house.saver
    chat = Chat(kind_of_chat, "t", saver, durability=durability)
    for number in range(TURNS):
        if number > 2:
            chat.graph = chat.graph.with_config(callbacks=[Job()])
        chat.say()
        assert not problems(house, [chat])
    assert Job.runs > 6
    run(house)
    gc(house.saver, archive="same", grace="0", dry_run=False)
    assert not problems(house, [chat], quiet=True)


def history(chat: Chat) -> list[Any]:
    return [one for one in chat.graph.get_state_history(chat.config) if not one.next]


def test_a_run_that_forks_from_what_is_being_deleted(house: Any, meanwhile: Any) -> None:
    chat = talked(house, "tools")
    old = history(chat)[3]
    ids = [m.id for m in old.values["messages"]]
    said = {"messages": [HumanMessage("other", id="h99")]}
    if house.kind == "postgres":
        finish = meanwhile(lambda: chat.graph.invoke(said, old.config))
        run(house)
        finish()
        assert live(house.saver, chat) == [*ids, "h99", "m99", "t99", "a99"]
    else:
        run(house)
    assert {*chat.said} <= {*live(house.saver, chat), *archived(house, "t"), *chat.said[-4:]}
    # Its first checkpoint, in the middle of the run, may name a list that is gone: until now.
    run(house)
    assert not counted(house).get("dangling")
    heads = [one.values["messages"][-1].id for one in history(chat)]
    assert f"a{TURNS - 1}" in heads


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_copy_of_what_is_being_deleted(house: Any, meanwhile: Any) -> None:
    """It is stored before the job commits, which cannot see it."""
    chat = talked(house, "tools")
    old = history(chat)[3]
    finish = meanwhile(lambda: chat.graph.update_state(old.config, None, as_node="__copy__"))
    run(house)
    finish()
    assert not counted(house)["dangling"]
    run(house)
    assert not counted(house)["blobs nobody names"]


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_copy_of_what_was_just_deleted(house: Any, monkeypatch: Any) -> None:
    """Its run had read the old checkpoint before, and stores the copy after the commit."""
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 0.5)
    chat = talked(house, "tools")
    old = house.saver.get_tuple(history(chat)[3].config)
    free_rest, seen = Worker.free_rest, []

    def copied(self: Worker) -> int:
        assert house.saver.get_tuple(old.config) is None
        copy = create_checkpoint(old.checkpoint, None, old.metadata["step"] + 1)
        metadata = {**old.metadata, "source": "fork", "step": old.metadata["step"] + 1}
        seen.append(house.saver.put(old.config, copy, metadata, {}))
        return free_rest(self)

    monkeypatch.setattr(Worker, "free_rest", copied)
    run(house)
    found = counted(house)
    assert not found["dangling"]
    assert not found["blobs nobody names"]
    copy = house.saver.get_tuple(seen[0])
    assert [m.id for m in copy.checkpoint["channel_values"]["messages"]] == [
        m.id for m in old.checkpoint["channel_values"]["messages"]
    ]


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_values_that_a_job_has_not_come_to_delete(house: Any, monkeypatch: Any) -> None:
    """Another job does it, whatever its name; a failure costs no thread."""
    talked(house, "tools")

    def fails(self: Any, threads: Any) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(PostgresRows, "free", fails)
        broken.setattr(work, "_FREED_PATIENCE", 0.05)
        report = compact(house.saver, POLICY, archive="same", idle="0", dry_run=False)
    assert report.compacted == 1
    assert report.exit_code == 1
    assert "values of 1 thread are still to be deleted" in report.errors[0]
    assert counted(house)["blobs nobody names"]
    run(house, Policy(WINDOW, retain=Retain(last=2)))
    assert not counted(house)["blobs nobody names"]
    assert not house.count("reducing_saver_freed")


@pytest.mark.parametrize("newest", [False, True], ids=["older", "newest"])
def test_the_late_put_of_a_cancelled_run(house: Any, newest: bool) -> None:
    """Its parent and what that held are gone; the line that went on is whole, and both load."""
    chat = talked(house, "tools")
    stale = house.saver.get_tuple(chat.config)
    if not newest:
        late = create_checkpoint(stale.checkpoint, None, stale.metadata["step"] + 1)
    chat.say()
    head = house.saver.get_tuple(chat.config)
    run(house)
    if newest:
        late = create_checkpoint(stale.checkpoint, None, stale.metadata["step"] + 1)
    metadata = {**stale.metadata, "step": stale.metadata["step"] + 1}
    house.saver.put(stale.config, late, metadata, {})
    kept = house.saver.get_tuple(head.config).checkpoint["channel_values"]["messages"]
    assert [m.id for m in kept] == chat.said[-4:]
    for _ in range(2):
        run(house)
    kept = house.saver.get_tuple(head.config).checkpoint["channel_values"]["messages"]
    assert [m.id for m in kept] == chat.said[-4:]
    assert {*chat.said} <= {*chat.said[-4:], *archived(house, "t")}
    gc(house.saver, archive="same", grace="0", dry_run=False)
    if not newest:
        chat.say()
        run(house)
        found = problems(house, [chat], quiet=True)
        # The stale branch names what is gone; nobody's line goes through it.
        assert not [one for one in found if not one.startswith("dangling")]


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_two_jobs_at_once_on_postgres(house: Any) -> None:
    chats = [Chat("tools", f"t{i}", house.saver) for i in range(8)]
    for chat in chats:
        for _ in range(TURNS):
            chat.say()
    done = Counter[str]()

    def one(number: int) -> None:
        try:
            run(house, HISTORY if number % 2 else POLICY, job=f"job {number % 2}")
            done["done"] += 1
        except JobError:
            done["refused"] += 1

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(one, number) for number in range(18)]:
            future.result()
    assert done["done"]
    for job in status(house.saver):
        assert job.left == 0
    assert house.count("checkpoints") == len(chats)
    assert not problems(house, chats, quiet=True)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("names", [1, 3])
def test_jobs_at_once_on_sqlite(house: Any, names: int) -> None:
    chats = [Chat("tools", f"t{i:02}", house.saver) for i in range(24)]
    for chat in chats:
        for _ in range(4):
            chat.say()
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(run, house, job=f"job {n % names}") for n in range(6)]
        reports = [call.result() for call in calls]
    assert max(report.compacted for report in reports) > 0
    assert all(job.left == 0 for job in status(house.saver))
    assert house.count("checkpoints") == len(chats)
    assert not problems(house, chats, quiet=True)


@pytest.mark.parametrize("tells", [False, True], ids=["wrapper tells", "both tell"])
def test_the_wrapper_and_the_job_evict_the_same(house: Any, tells: bool) -> None:
    told = Counter[str]()

    def hook(eviction: Any) -> None:
        told.update(f"{eviction.thread} {message.id}" for message in eviction.messages)

    saver = wrapped(house, on_evict=[hook])
    chats = [Chat("wrapped tools", f"t{i}", saver) for i in range(4)]
    hooks = [hook] if tells else []
    small = Policy(Window(keep=("messages", 2), trigger=("messages", 4)), paused="history")
    with talking(chats):
        for number in range(12):
            run(house, (HISTORY, small)[number % 2], on_evict=hooks)
    for chat in chats:
        chat.say()
    assert not problems(house, chats)
    run(house, on_evict=hooks)
    saver.deliver()
    for chat in chats:
        gone = [name for name in chat.said if name not in live(house.saver, chat)]
        missing = [name for name in gone if not told[f"{chat.thread} {name}"]]
        if tells:
            assert not missing
    if tells:
        # At least once; twice where both told the same in one moment.
        assert sum(told.values()) < 2 * len(told)


@pytest.mark.parametrize("grace", ["24h", "0"])
def test_gc_next_to_live_runs(house: Any, grace: str) -> None:
    chats = [Chat(kind, kind, house.saver) for kind in ("plain", "tools", "subgraph", "interrupt")]
    swept = Counter[str]()
    with talking(chats):
        for _ in range(25):
            found = gc(house.saver, archive="same", grace=grace, dry_run=False)
            swept.update(blobs=found.blobs, archives=found.archives, writes=found.writes)
            run(house, HISTORY)
    assert not problems(house, chats)
    assert swept["archives"] == 0
    if grace == "24h":
        assert not any(swept.values())
    run(house)
    gc(house.saver, archive="same", grace="0", dry_run=False)
    assert not problems(house, chats, quiet=True)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_job_does_not_wait_for_what_others_delete(house: Any, monkeypatch: Any) -> None:
    """Another job goes on all the time: its values are not this one's."""
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(work, "_FREED_PATIENCE", 1.5)
    chat = Chat("plain", "t", house.saver)
    for _ in range(3):
        chat.say()
    run(house, job="other", threads=["other"])
    source, stop = source_of(house.saver), threading.Event()

    def delete() -> None:
        with source.open() as rows:
            while not stop.wait(0.02):
                source.ledger(rows).note_freed(["other"])

    other = threading.Thread(target=delete)
    other.start()
    try:
        report = run(house)
    finally:
        stop.set()
        other.join()
    assert report.compacted == 1
    assert house.orphans() == 0


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_values_of_what_a_wrapper_has_just_deleted(house: Any, monkeypatch: Any) -> None:
    """A job that has deleted from the thread before leaves them for a second, too."""
    chat = Chat("plain", "t", house.saver)
    for _ in range(3):
        chat.say()
    run(house)
    old = house.saver.get_tuple(chat.config)
    source = source_of(house.saver)
    with source.open() as rows:
        ledger = source.ledger(rows)
        ledger.note_freed(["t"])
        monkeypatch.setattr(unnamed, "GRACE_SECONDS", 1.0)
        saver = wrapped(house, retain=Retain(last=1))
        Chat("plain", "t", saver, turns=3).say()
        while house.saver.get_tuple(old.config) is not None:
            time.sleep(0.01)
        assert ledger.take_freed(10) == []
    saver.close()
    run(house)
    assert house.orphans() == 0
    assert not house.count("reducing_saver_freed")


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_wrapper_that_may_not_see_the_tables_of_jobs(house: Any) -> None:
    """As where another user of the database runs the jobs."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg import conninfo

    talked(house)
    run(house)
    role = f"app_{uuid.uuid4().hex}"
    house.run(f"CREATE ROLE {role}")
    try:
        house.run(f"GRANT ALL ON checkpoints, checkpoint_blobs, checkpoint_writes TO {role}")
        dsn = conninfo.make_conninfo(house.dsn, options=f"-c role={role}")
        with PostgresSaver.from_conn_string(dsn) as inner:
            saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=1))
            Chat("plain", "t", saver, turns=TURNS).say()
            saver.close()
            assert saver.stats().retention_failures == 0
            assert len([*inner.list({"configurable": {"thread_id": "t"}})]) == 1
    finally:
        house.run(f"DROP OWNED BY {role}")
        house.run(f"DROP ROLE {role}")
