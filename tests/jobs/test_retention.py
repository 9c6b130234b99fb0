"""A live thread is a constant number of rows: `ReducingSaver(..., retain=...)`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from jobs.graphs import PLAYS, newest, turn
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import create_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from reducing_saver import (
    ConfigurationError,
    Discard,
    ForwardingSaver,
    ReducingSaver,
    Retain,
    StoreArchive,
    Window,
)
from reducing_saver import _retention as retention
from reducing_saver._record import Record
from reducing_saver.rows import unnamed
from reducing_saver.rows.source import source_of

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
WHOLE = Window(keep=("messages", 10_000))
KEEP = Retain(last=3)
BACKENDS = ["sqlite-sync", "aiosqlite-async", "postgres-sync", "apostgres-async"]
SYNC = ["sqlite-sync", "postgres-sync"]
CONFIG: Any = {"configurable": {"thread_id": "t"}}
TURNS = [
    100,
    pytest.param(
        1_000,
        marks=[
            pytest.mark.campaign,
            pytest.mark.skipif(
                os.environ.get("REDUCING_TEST_CAMPAIGN") != "1", reason="a campaign"
            ),
        ],
    ),
]

ORPHANS = """
    SELECT count(*) FROM {0} w WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
    """
UNNAMED = """
    SELECT thread_id, checkpoint_ns, channel, version FROM checkpoint_blobs b WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = b.thread_id
        AND c.checkpoint_ns = b.checkpoint_ns
        AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)
    """
MISSING = """
    SELECT count(*) FROM checkpoints c
    CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v
    WHERE v.key = 'messages' AND NOT EXISTS (
        SELECT 1 FROM checkpoint_blobs b WHERE b.thread_id = c.thread_id
        AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value)
    """
SIZES = {
    "sqlite": (
        "SELECT count(*), coalesce(sum(length(checkpoint) + length(metadata)), 0) FROM checkpoints",
        "SELECT count(*), coalesce(sum(length(value)), 0) FROM writes",
    ),
    "postgres": (
        "SELECT count(*), coalesce(sum(length(checkpoint::text || metadata::text)), 0) "
        "FROM checkpoints",
        "SELECT count(*), coalesce(sum(length(blob)), 0) FROM checkpoint_writes",
        "SELECT count(*), coalesce(sum(length(blob)), 0) FROM checkpoint_blobs",
    ),
}


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


Ask = Callable[..., list[Any]]


@pytest.fixture
def sql(inner: Any) -> Iterator[Ask]:
    """Ask the database of the saver, past it."""
    source = source_of(inner)
    with source.open() as rows:
        yield lambda statement: rows.connection.execute(statement).fetchall()


def sizes(sql: Ask, backend: Any) -> tuple[int, int]:
    found = [sql(one)[0] for one in SIZES[database(backend)]]
    return sum(int(rows) for rows, _ in found), sum(int(size) for _, size in found)


def database(backend: Any) -> str:
    return "postgres" if "postgres" in backend.kind else "sqlite"


def lost(sql: Ask, backend: Any) -> dict[str, int]:
    """Count rows that nobody names, and names of rows that are not there."""
    if database(backend) == "sqlite":
        return {"writes": sql(ORPHANS.format("writes"))[0][0]}
    return {
        "writes": sql(ORPHANS.format("checkpoint_writes"))[0][0],
        "blobs": len(sql(UNNAMED)),
        "missing": sql(MISSING)[0][0],
    }


def nothing_lost(sql: Ask, backend: Any) -> None:
    assert not any(lost(sql, backend).values()), lost(sql, backend)


def chat(saver: Any) -> Any:
    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("x" * 50, id=f"a.{newest(state)}")]}

    builder = StateGraph(State)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def asked(i: int) -> Any:
    return {"messages": [HumanMessage("question", id=f"h{i:04}")]}


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("turns", TURNS)
def test_a_thread_stays_as_large(turns: int, inner: Any, door: Any, backend: Any, sql: Ask) -> None:
    archive = StoreArchive(InMemoryStore())
    saver = ReducingSaver(inner, WINDOW, archive=archive, retain=KEEP)
    graph = chat(saver)
    seen = []
    for i in range(turns):
        door.invoke(graph, asked(i), CONFIG)
        if i % (turns // 10) == turns // 10 - 1:
            door.call(saver, "close")
            seen.append(sizes(sql, backend))
    rows, sizes_seen = {rows for rows, _ in seen[1:]}, [size for _, size in seen[1:]]
    assert max(rows) - min(rows) <= 4, seen
    assert max(sizes_seen) < 2 * min(sizes_seen), seen
    assert len(door.list(inner, CONFIG)) == KEEP.last
    nothing_lost(sql, backend)
    stats = saver.stats()
    assert (stats.deleted_checkpoints, stats.retention_failures) == (3 * turns - KEEP.last, 0)
    told = door.collect(saver, "transcript", CONFIG)
    assert ids(told) == [f"{one}h{i:04}" for i in range(turns) for one in ("", "a.")]


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_nothing_is_lost_while_it_runs(
    durability: str, inner: Any, door: Any, backend: Any, sql: Ask
) -> None:
    """Passes run beside the next turns; every turn finds what the one before has stored."""
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=Retain(last=1))
    graph = chat(saver)
    for i in range(25):
        found = door.invoke(graph, asked(i), CONFIG, durability=durability)
        assert len(found["messages"]) == 2 * (i + 1)
    door.call(saver, "close")
    assert len(door.list(inner, CONFIG)) == 1
    assert len(door.get_state(graph, CONFIG).values["messages"]) == 50
    assert not saver.stats().retention_failures
    nothing_lost(sql, backend)


@pytest.mark.parametrize("backend", SYNC, indirect=True)
@pytest.mark.parametrize("window", [WHOLE, WINDOW], ids=["whole", "reduced"])
@pytest.mark.parametrize("name", PLAYS)
def test_it_goes_on_as_its_twin(
    name: str, window: Window, make_inner: Any, backend: Any, door: Any
) -> None:
    """Without retention the same happens: on the saver itself, or reduced alike."""
    inner, other = make_inner(), make_inner()
    keep = Retain(last=12) if name == "fork" else KEEP
    reducer = PLAYS[name](inner).reducer
    alike: dict[str, Any] = {"archive": Discard(), "messages_reducer": reducer}
    saver = ReducingSaver(inner, window, retain=keep, **alike)
    twin = PLAYS[name](other if window is WHOLE else ReducingSaver(other, window, **alike))
    ours = PLAYS[name](saver)
    for play in (ours, twin):
        play.start()
    saver.close()
    assert saver.stats().deleted_checkpoints or name == "fork"
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    same(ours.go_on(), twin.go_on())
    assert ours.nodes == twin.nodes
    saver.close()
    assert not saver.stats().retention_failures
    assert len([*inner.list(ours.config)]) < len([*other.list(twin.config)])
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))


def same(ours: Any, twin: Any) -> None:
    assert ids(ours.values["messages"]) == ids(twin.values["messages"])
    assert ours.values.get("seen") == twin.values.get("seen")
    assert ours.next == twin.next
    assert [i.value for i in ours.interrupts] == [i.value for i in twin.interrupts]


def asking(saver: Any) -> Any:
    """Build a chat that lives in `interrupt()`."""

    def wait(state: Any) -> Any:
        said = interrupt("and now?")
        return {"messages": [HumanMessage(said, id=f"h{said}")]}

    builder = StateGraph(State)
    builder.add_node("reply", lambda s: {"messages": [AIMessage("x", id=f"a.{newest(s)}")]})
    builder.add_node("wait", wait)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", "wait")
    builder.add_edge("wait", "reply")
    return builder.compile(checkpointer=saver)


def recorded(inner: Any, door: Any) -> set[str]:
    """Return the digests that the records before the head say, as another process reads them."""
    found: set[str] = set()
    config, at = CONFIG, door.get_tuple(inner, CONFIG)
    while at is not None:
        record = Record.read(at.metadata)
        found |= {*record.evicted.get("messages", ())}
        if record.before is None:
            return found
        named = {**config["configurable"], "checkpoint_id": record.before}
        at = door.get_tuple(inner, {"configurable": named})
    raise AssertionError("a record is gone")


def drafting(saver: Any) -> Any:
    """Build a chat that removes its draft of an answer."""

    def write(state: Any) -> Any:
        name = newest(state)
        return {"messages": [AIMessage(one, id=f"{one}.{name}") for one in ("draft", "answer")]}

    def remove(state: Any) -> Any:
        drafts = [m.id for m in state["messages"] if m.id.startswith("draft.")]
        return {"messages": [RemoveMessage(id) for id in drafts]}

    builder = StateGraph(State)
    builder.add_sequence([("write", write), ("remove", remove)])
    builder.add_edge(START, "write")
    return builder.compile(checkpointer=saver)


class Refusing(StoreArchive):
    """An archive that is down."""

    async def awrite(self, *given: Any, **named: Any) -> None:
        raise OSError("down")

    def write(self, *given: Any, **named: Any) -> None:
        raise OSError("down")


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_what_is_owed_to_an_archive_stays_until_it_was_taken(
    inner: Any, door: Any, backend: Any, sql: Ask
) -> None:
    """What a graph removed while its archive was down is in old checkpoints only."""
    store, keep = InMemoryStore(), Retain(last=1)
    saver = ReducingSaver(inner, WHOLE, archive=Refusing(store), retain=keep)
    for i in range(12):
        door.invoke(drafting(saver), asked(i), CONFIG)
    time.sleep(retention.GRACE_SECONDS)
    door.call(saver, "close")
    owed = Record.read(door.get_tuple(inner, CONFIG).metadata).owed
    stored = {one.checkpoint["id"] for one in door.list(inner, CONFIG)}
    assert len(owed) == 12
    assert stored >= {*owed}
    assert len(stored) <= len(owed) + 3

    saver = ReducingSaver(inner, WHOLE, archive=StoreArchive(store), retain=keep)
    door.invoke(drafting(saver), asked(12), CONFIG)
    time.sleep(retention.GRACE_SECONDS)
    door.call(saver, "close")
    assert len(door.list(inner, CONFIG)) == 1
    names = [f"{one}h{i:04}" for i in range(13) for one in ("", "draft.", "answer.")]
    assert ids(door.collect(saver, "transcript", CONFIG)) == names
    nothing_lost(sql, backend)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_chat_that_never_rests_is_bounded(make_inner: Any, door: Any, backend: Any) -> None:
    """Its checkpoints go, and what they say of evicted messages stays."""
    inner, other = make_inner(), make_inner()
    archive = StoreArchive(InMemoryStore())
    saver = ReducingSaver(inner, WINDOW, archive=archive, retain=KEEP)
    graph, twin = asking(saver), asking(ReducingSaver(other, WINDOW, archive=Discard()))
    most = 0
    for i in range(80):
        given = Command(resume=f"{i:04}") if i else asked(0)
        for one in (graph, twin):
            door.invoke(one, given, CONFIG)
        if i % 20 == 19:
            door.call(saver, "close")
            most = max(most, len(door.list(inner, CONFIG)))
            assert recorded(inner, door) == recorded(other, door)
    assert recorded(inner, door)
    assert most <= retention.EVERY + KEEP.last + 5
    state = door.get_state(graph, CONFIG)
    assert state.next == ("wait",)
    assert state.interrupts[0].value == "and now?"
    told = door.collect(saver, "transcript", CONFIG)
    assert ids(told) == [f"{one}h{i:04}" for i in range(80) for one in ("", "a.")]


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_time_travel_within_what_stays(inner: Any, door: Any, backend: Any, sql: Ask) -> None:
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=Retain(last=8))
    graph = chat(saver)
    for i in range(10):
        door.invoke(graph, asked(i), CONFIG)
    door.call(saver, "close")
    history = door.get_state_history(graph, CONFIG)
    assert len(history) == 8
    for one in history:
        assert door.get_state(graph, one.config).values == one.values
    older = next(one for one in history[1:] if not one.next)
    other = {"messages": [HumanMessage("other", id="h.other")]}
    found = door.invoke(graph, other, older.config)
    assert ids(found["messages"])[-2:] == ["h.other", "a.h.other"]
    assert len(found["messages"]) == len(older.values["messages"]) + 2
    door.call(saver, "close")
    tips = {one.config["configurable"]["checkpoint_id"] for one in history[:1]}
    kept = {one.config["configurable"]["checkpoint_id"] for one in door.list(inner, CONFIG)}
    assert tips <= kept  # the end of the other branch
    nothing_lost(sql, backend)


@pytest.mark.parametrize("backend", SYNC, indirect=True)
def test_what_a_run_was_loaded_from_stays_until_it_has_stored(
    inner: Any, backend: Any, sql: Ask
) -> None:
    """A run from an old checkpoint, that stores at its end only, outlives those after it."""
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=Retain(last=4))
    started, go = threading.Event(), threading.Event()

    def slow(state: Any) -> Any:
        if newest(state) == "h.slow":
            started.set()
            assert go.wait(30)
        return {"messages": [AIMessage("x", id=f"a.{newest(state)}")]}

    builder = StateGraph(State)
    builder.add_node("slow", slow)
    builder.add_edge(START, "slow")
    graph = builder.compile(checkpointer=saver)
    graph.invoke(asked(0), CONFIG)
    old = graph.get_state(CONFIG).config
    graph.invoke(asked(1), CONFIG)
    given = {"messages": [HumanMessage("slow", id="h.slow")]}
    found: list[Any] = []
    run = threading.Thread(target=lambda: found.append(graph.invoke(given, old, durability="exit")))
    run.start()
    assert started.wait(30)
    for i in range(2, 6):
        graph.invoke(asked(i), CONFIG)
    saver.close()
    assert graph.get_state(old).values["messages"]
    go.set()
    run.join(30)
    saver.close()
    assert len(found[0]["messages"]) == 4
    stored = [one.checkpoint["channel_values"] for one in inner.list(CONFIG)]
    assert {"a.h.slow", "a.h0005"} <= {ids(one["messages"])[-1] for one in stored}
    assert (
        sql(ORPHANS.format("writes" if "sqlite" in str(inner) else "checkpoint_writes"))[0][0] == 0
    )


@pytest.mark.parametrize("backend", SYNC, indirect=True)
def test_a_delta_channel_keeps_what_its_list_is_made_from(
    make_inner: Any, backend: Any, door: Any
) -> None:
    """Up to its last snapshot, over forks and updates by hand."""
    inner, other = make_inner(), make_inner()
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=Retain(last=1))
    ours, twin = PLAYS["delta channel"](saver), PLAYS["delta channel"](other)
    for i in range(8):
        for play in (ours, twin):
            play.graph.invoke(turn(i), play.config)
            if i % 3 == 1:
                said = {"messages": [AIMessage("y", id=f"y{i}")]}
                play.graph.update_state(play.config, said, as_node="b")
            if i % 3 == 2:
                play.graph.update_state(play.config, None, as_node="__copy__")
        saver.close()
        same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    assert len([*inner.list(CONFIG)]) < 16 < len([*other.list(CONFIG)])


def test_what_is_held_is_let_go(monkeypatch: pytest.MonkeyPatch, make_sqlite: Any) -> None:
    inner = make_sqlite()
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=Retain(last=1))
    graph = chat(saver)
    graph.invoke(asked(0), CONFIG)
    graph.get_state(graph.get_state(CONFIG).config)
    for i in range(1, 4):
        graph.invoke(asked(i), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == 1  # the next run went on from it
    graph.get_state(graph.get_state(CONFIG).config)
    graph.update_state(CONFIG, {"messages": [AIMessage("y", id="y")]}, as_node="reply")
    graph.get_state(graph.get_state(CONFIG).config)
    monkeypatch.setattr(retention, "HELD_SECONDS", -1.0)
    graph.get_state(graph.get_state(CONFIG).config)
    graph.invoke(asked(5), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == 1


@pytest.fixture
def make_sqlite(tmp_path: Any) -> Iterator[Any]:
    import contextlib

    from langgraph.checkpoint.sqlite import SqliteSaver

    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda path=None: stack.enter_context(
            SqliteSaver.from_conn_string(path or str(tmp_path / f"{next(numbers)}.db"))
        )


def test_a_database_in_memory(make_sqlite: Any) -> None:
    inner = make_sqlite(":memory:")
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)
    graph = chat(saver)
    for i in range(12):
        graph.invoke(asked(i), CONFIG)
    time.sleep(retention.GRACE_SECONDS)
    graph.invoke(asked(12), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == KEEP.last


def test_an_old_thread_shrinks_in_passes(make_sqlite: Any) -> None:
    inner = make_sqlite()
    bare = chat(inner)
    for i in range(45):
        bare.invoke(asked(i), CONFIG)
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)
    chat(saver).invoke(asked(45), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == KEEP.last
    assert saver.stats().deleted_checkpoints == 46 * 3 - KEEP.last > retention.MOST_A_PASS


@pytest.mark.parametrize("switch", ["enabled", "shadow"])
def test_switched_off_nothing_is_deleted(switch: str, make_sqlite: Any) -> None:
    inner = make_sqlite()
    off: dict[str, Any] = {switch: switch == "shadow"}
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP, **off)
    graph = chat(saver)
    for i in range(5):
        graph.invoke(asked(i), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == 15


def test_what_fails_breaks_no_run(make_sqlite: Any, caplog: pytest.LogCaptureFixture) -> None:
    inner = make_sqlite()
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)
    graph = chat(saver)
    graph.invoke(asked(0), CONFIG)
    saver.close()
    inner.conn.execute(
        "CREATE TRIGGER no BEFORE DELETE ON checkpoints BEGIN SELECT raise(ABORT, 'secret'); END"
    )
    for i in range(1, 6):
        graph.invoke(asked(i), CONFIG)
        saver.close()
    assert saver.stats().retention_failures == 5
    said = [one.getMessage() for one in caplog.records if "could not be deleted" in one.msg]
    assert len(said) == 1
    assert "IntegrityError" in said[0]
    assert "secret" not in caplog.text
    inner.conn.execute("DROP TRIGGER no")
    graph.invoke(asked(6), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == KEEP.last


def test_a_put_waits_for_nothing(make_sqlite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that hangs holds no run up, and no more than its own thread."""
    go = threading.Event()

    def stuck(*args: Any, **settings: Any) -> tuple[()]:
        assert go.wait(30)
        return ()

    monkeypatch.setattr(retention, "delete_old", stuck)
    inner = make_sqlite()
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)
    before = threading.active_count()
    graph = chat(saver)
    for i in range(10):
        config: Any = {"configurable": {"thread_id": f"t{i}"}}
        graph.invoke(asked(i), config)
    assert threading.active_count() <= before + 1
    go.set()
    saver.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("backend", SYNC, indirect=True)
def test_at_exit_a_pass_is_the_last(
    inner: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what is left, as more old checkpoints, or values that may go later."""
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(retention, "MOST_A_PASS", 5)
    begun, go, passes = threading.Event(), threading.Event(), list[Any]()

    def slow(*given: Any, **named: Any) -> Any:
        begun.set()
        assert go.wait(30)
        passes.append(delete(*given, **named))
        return passes[-1]

    delete = retention.delete_old
    monkeypatch.setattr(retention, "delete_old", slow)
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)
    graph = chat(saver)
    for i in range(5):
        graph.invoke(asked(i), CONFIG)
    assert begun.wait(30)
    kept = saver._retention
    assert kept is not None
    ended = threading.Thread(target=kept.give_up)
    ended.start()
    time.sleep(0.1)
    go.set()
    ended.join(30)
    assert kept._is_idle()
    assert len(passes) == 1


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
@pytest.mark.parametrize("way", ["pool", "pipeline", "shared with a store"])
def test_ways_to_connect(way: str, make_database: Any, backend: Any) -> None:
    import contextlib

    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.store.postgres import PostgresStore
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    dsn = make_database()
    settings: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with contextlib.ExitStack() as stack:
        if way == "pool":
            pool = ConnectionPool(dsn, min_size=1, max_size=2, kwargs=settings, open=True)
            inner = PostgresSaver(stack.enter_context(pool))  # type: ignore[arg-type]
        elif way == "pipeline":
            inner = stack.enter_context(PostgresSaver.from_conn_string(dsn, pipeline=True))
        else:
            connection: Any = stack.enter_context(psycopg.connect(dsn, **settings))
            inner = PostgresSaver(connection)
            PostgresStore(connection).setup()
            with pytest.raises(ConfigurationError, match="has the connection of the saver"):
                ReducingSaver(inner, WINDOW, archive=StoreArchive(PostgresStore(connection)))
        with PostgresSaver.from_conn_string(dsn) as plain:
            plain.setup()  # not within a pipeline
        archive = StoreArchive(InMemoryStore())
        saver = ReducingSaver(inner, WINDOW, archive=archive, retain=KEEP)
        graph = chat(saver)
        for i in range(12):
            graph.invoke(asked(i), CONFIG)
        saver.close()
        assert not saver.stats().retention_failures
        assert len([*inner.list(CONFIG)]) == KEEP.last
        assert len([*saver.transcript(CONFIG)]) == 24


CHILD = """
import sys
from jobs.test_retention import WINDOW, asked, chat, CONFIG
from reducing_saver import Discard, ReducingSaver, Retain
kind, dsn = sys.argv[1:]
if kind == "postgres":
    from langgraph.checkpoint.postgres import PostgresSaver as Saver
else:
    from langgraph.checkpoint.sqlite import SqliteSaver as Saver
with Saver.from_conn_string(dsn) as inner:
    inner.setup()
    graph = chat(ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=2)))
    found = graph.get_state(CONFIG).values.get("messages", ())
    first = 1 + max((int(m.id[-4:]) for m in found), default=-1)
    for i in range(first, first + 10_000):
        graph.invoke(asked(i), CONFIG, durability="sync")
        print(i, flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
def test_a_killed_process_leaves_nothing_behind(house: Any) -> None:
    said = -1
    for moment in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, house.kind, house.dsn],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        for _ in range(8):
            said = int(child.stdout.readline())
        time.sleep(0.003 * moment)
        child.kill()
        rest = [int(line) for line in child.stdout.read().split()]
        child.wait(30)
        child.stdout.close()
        said = max([said, *rest])
        left = [*house.saver.list(CONFIG)]
        assert all(one.checkpoint["channel_values"].get("messages") for one in left[:1])
        state = chat(house.saver).get_state(CONFIG)
        assert max(int(m.id[-4:]) for m in state.values["messages"]) in (said, said + 1)
    graph = chat(house.wrap(WINDOW, retain=Retain(last=2)))
    graph.invoke(asked(9_999), CONFIG)
    graph.checkpointer.close()
    assert len([*house.saver.list(CONFIG)]) <= 4  # ends of branches: each kill may leave one
    assert house.orphans() == 0


# Bad input


@pytest.mark.parametrize("retain", [3, "3", {"last": 3}, True])
def test_another_type_is_refused(retain: Any, make_sqlite: Any) -> None:
    with pytest.raises(ConfigurationError, match="retain"):
        ReducingSaver(make_sqlite(), WINDOW, archive=Discard(), retain=retain)


def test_another_saver_is_refused() -> None:
    for inner in (InMemorySaver(), ForwardingSaver(InMemorySaver())):
        with pytest.raises(ConfigurationError, match="PostgresSaver, a SqliteSaver"):
            ReducingSaver(inner, WINDOW, archive=Discard(), retain=KEEP)


def test_it_insists_on_an_archive_or_discard(make_sqlite: Any) -> None:
    with pytest.raises(ConfigurationError, match="Discard"):
        ReducingSaver(make_sqlite(), WINDOW, retain=KEEP)


def test_the_start_of_a_turn_may_stay(make_sqlite: Any) -> None:
    inner = make_sqlite()
    keep = Retain(last=1, turn_starts=4)
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=keep)
    graph = chat(saver)
    for i in range(10):
        graph.invoke(asked(i), CONFIG)
    saver.close()
    sources = [one.metadata["source"] for one in inner.list(CONFIG)]
    assert sources == ["loop", "input", "input", "input", "input"]


def wait_until_gone(inner: Any, old: Any) -> None:
    for _ in range(200):
        if inner.get_tuple(old.config) is None:
            return
        time.sleep(0.01)
    raise AssertionError("nothing was deleted")


def copied(inner: Any, old: Any) -> Any:
    """Store a copy of a checkpoint, as a run that has read it; return the config of the copy."""
    copy = create_checkpoint(old.checkpoint, None, old.metadata["step"] + 1)
    return inner.put(old.config, copy, {**old.metadata, "source": "fork"}, {})


def assert_copied(inner: Any, old: Any, copy: Any) -> None:
    found = inner.get_tuple(copy)
    assert found.checkpoint["channel_values"] == old.checkpoint["channel_values"]


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
def test_a_copy_that_another_process_makes_of_what_has_just_gone(
    inner: Any, backend: Any, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values wait for it; those that nobody names go, whoever has left them."""
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 1.0)
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=1))
    chat(saver).invoke(asked(0), CONFIG)
    old = inner.get_tuple(CONFIG)
    chat(saver).invoke(asked(1), CONFIG)
    wait_until_gone(inner, old)
    assert lost(sql, backend)["blobs"]
    copy = copied(inner, old)
    saver.close()
    nothing_lost(sql, backend)
    assert_copied(inner, old, copy)


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
def test_values_that_a_process_left_when_it_ended(
    inner: Any, backend: Any, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=1))
    with monkeypatch.context() as ended:
        ended.setattr(retention, "free_still", lambda *given: None)
        chat(saver).invoke(asked(0), CONFIG)
        saver.close()
    assert lost(sql, backend)["blobs"]
    other = ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=1))
    chat(other).invoke(asked(1), CONFIG)
    other.close()
    nothing_lost(sql, backend)


def test_who_is_due_first_is_looked_after_first(make_sqlite: Any) -> None:
    """Nobody waits for the second after which another thread's values go."""
    waits = retention.Retention(make_sqlite(), KEEP)
    now = time.monotonic()
    for thread, at in (("late", now + 60), ("long", now - 1), ("short", now - 2)):
        waits._waiting[thread] = retention._Due(None, at)
    assert [waits._next()[0], waits._next()[0]] == ["short", "long"]


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
def test_values_that_another_process_has_just_left(
    make_inner: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass of one does not delete what the checkpoints named that another deletes."""
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 1.0)
    inner, other = make_inner("a"), make_inner("a")
    savers = [ReducingSaver(one, WINDOW, archive=Discard(), retain=KEEP) for one in (inner, other)]
    chat(savers[0]).invoke(asked(0), CONFIG)
    old = inner.get_tuple(CONFIG)
    chat(savers[0]).invoke(asked(1), CONFIG)
    chat(savers[1]).invoke(asked(2), CONFIG)
    wait_until_gone(inner, old)
    time.sleep(0.4)
    copy = copied(inner, old)
    for saver in savers:
        saver.close()
    assert_copied(inner, old, copy)


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
def test_no_value_goes_within_a_second_however_much_is_deleted(
    inner: Any, backend: Any, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unnamed, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(retention, "MOST_A_PASS", 1)
    since: dict[Any, float] = {}
    waited: list[float] = []

    def look() -> None:
        now = time.monotonic()
        left = {row: since.get(row, now) for row in sql(UNNAMED)}
        waited.extend(now - since[row] for row in since.keys() - left.keys())
        since.clear()
        since.update(left)

    def watched(act: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            found = act(*given, **named)
            look()
            return found

        return run

    for name in ("free_still", "delete_old"):
        monkeypatch.setattr(retention, name, watched(getattr(retention, name)))
    for i in range(30):
        chat(inner).invoke(asked(i), CONFIG)
    saver = ReducingSaver(inner, WHOLE, archive=Discard(), retain=KEEP)
    chat(saver).invoke(asked(30), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == KEEP.last
    assert len(waited) > 60
    assert min(waited) >= 0.5 - 0.1
    nothing_lost(sql, backend)


def test_what_is_put_while_an_old_thread_shrinks(make_sqlite: Any) -> None:
    """It is looked after once more, when it is old enough."""
    inner = make_sqlite()
    for i in range(45):
        chat(inner).invoke(asked(i), CONFIG)
    saver = ReducingSaver(inner, WINDOW, archive=Discard(), retain=Retain(last=1))
    graph = chat(saver)
    graph.invoke(asked(45), CONFIG)
    time.sleep(retention.GRACE_SECONDS / 2)
    graph.invoke(asked(46), CONFIG)
    saver.close()
    assert len([*inner.list(CONFIG)]) == 1
