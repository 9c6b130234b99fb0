"""Values at their edges, ids that nobody thought of, threads that are long or damaged."""

from __future__ import annotations

import math
import re
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from jobs.chats import WINDOW, Chat, archived, live
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from reducing_saver import (
    ConfigurationError,
    JobError,
    Policy,
    ReducingSaver,
    Retain,
    StoreArchive,
    Window,
    compact,
    erase,
    gc,
    status,
    survey,
)

POLICY = Policy(WINDOW)
NAN, INFINITY = float("nan"), float("inf")


def run(house: Any, policy: Policy = POLICY, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    return compact(house.saver, policy, **given)


def through(report: Any) -> int:
    """Return how many threads are compact, now or before."""
    return int(report.compacted + report.skipped.get("compacted before", 0))


def talk(house: Any, *threads: str, turns: int = 6) -> list[Chat]:
    chats = [Chat("tools", thread, house.saver) for thread in threads]
    for chat in chats:
        for _ in range(turns):
            chat.say()
    return chats


def checkpoints(house: Any, thread: str) -> int:
    return len(list(house.saver.list({"configurable": {"thread_id": thread}})))


def is_whole(house: Any, chat: Chat) -> bool:
    saver = ReducingSaver(house.saver, WINDOW, archive=StoreArchive(house.store))
    return [m.id for m in saver.transcript(chat.config)] == chat.said


# Values


WRONG = {
    "max_rate": [0, -0.0, -1, NAN, INFINITY, -INFINITY, True, "1", 10**10],
    "max_threads": [0, -1, True, 1.0, NAN, 10**13, "1"],
    "max_time": [-1, True, NAN, 1.5, "-1s", "1", "s", "1e9d", timedelta(-1), timedelta.max],
    "idle": [-1, True, NAN, 60, "-1h", "", "99999999999w", timedelta(microseconds=-1), None],
    "dry_run": ["no", 0, 1, None],
    "vacuum": ["no", 0, None],
    "progress": [1, "x"],
    "threads": ["t", b"t", 1, [1], [None], [""]],
    "job": ["", 1, "a\x00b", "\ud800", "x" * 501],
    "channels": ["messages", (), [1], [""]],
    "namespace_key": ["", None, 1],
}


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_named(house: Any, name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ConfigurationError, match=name):
            compact(house.saver, POLICY, **{"archive": "same", name: value})


@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, NAN, "1", None, 10**10])
def test_wrong_retention_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="last"):
        Retain(last=value)
    if not (type(value) is int and value == 0):
        with pytest.raises(ConfigurationError, match="turn_starts"):
            Retain(turn_starts=value)


@pytest.mark.parametrize("value", [-1, True, NAN, 1.5, "-1s", "x", timedelta(-1), timedelta.max])
def test_wrong_spans_are_named(house: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="newer"):
        Retain(newer=value)
    with pytest.raises(ConfigurationError, match="grace"):
        gc(house.saver, grace=value)


@pytest.mark.parametrize("opens", [SqliteSaver, AsyncSqliteSaver], ids=["sync", "async"])
def test_a_saver_that_is_not_opened_is_refused_with_the_right_line(opens: Any) -> None:
    keyword = "async with" if opens is AsyncSqliteSaver else "with"
    line = f"\n    {keyword} {opens.__name__}.from_conn_string(...) as saver:\n"
    with pytest.raises(ConfigurationError, match=re.escape(line)):
        compact(opens.from_conn_string(":memory:"), POLICY, archive="same")
    with pytest.raises(ConfigurationError, match=re.escape(line)):
        gc(opens.from_conn_string(":memory:"))


@pytest.mark.parametrize(
    "given",
    [
        {"max_rate": 1e9},
        {"max_threads": 10**12},
        {"max_time": "365000d"},
        {"max_time": timedelta(days=365_000)},
        {"idle": timedelta()},
        {"idle": 0},
    ],
    ids=lambda given: next(iter(given)),
)
def test_the_largest_values_are_like_none(house: Any, given: Any) -> None:
    talk(house, "t")
    assert run(house, **given).compacted == 1


def test_the_longest_spans_keep_everything(house: Any) -> None:
    talk(house, "t")
    before = checkpoints(house, "t")
    assert run(house, idle="365000d").skipped == {"younger than idle": 1}
    for retain in (Retain(last=10**9), Retain(newer="365000d"), Retain(turn_starts=10**9, last=1)):
        assert through(run(house, Policy(None, retain))) == 1
        if retain.turn_starts == 0:
            assert checkpoints(house, "t") == before
    assert checkpoints(house, "t") == 7
    assert gc(house.saver, archive="same", grace="365000d", dry_run=False).archives == 0


def test_no_time_at_all(house: Any) -> None:
    (chat,) = talk(house, "t")
    report = run(house, max_time="0")
    assert (report.compacted, report.left, report.exit_code) == (0, 1, 3)
    assert live(house.saver, chat) == chat.said
    dry = compact(house.saver, POLICY, archive="same", idle="0", max_time="0")
    assert dry.threads + dry.left == 1


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("rate", [1e-300, 1e-9, 0.01])
def test_the_slowest_rate_keeps_to_the_time(house: Any, rate: float, monkeypatch: Any) -> None:
    from reducing_saver.jobs import run as jobs

    monkeypatch.setitem(jobs.CHUNK, "sqlite", 1)
    talk(house, "t", "u", turns=2)
    began = time.monotonic()
    report = run(house, max_rate=rate, max_time="1s")
    assert time.monotonic() - began < 10
    assert (report.compacted, report.left, report.exit_code) == (1, 1, 3)


def test_only_the_threads_that_are_named(house: Any, monkeypatch: Any) -> None:
    """A round that has stopped with work left is of all threads: this call is not about those."""
    from reducing_saver.jobs import run as jobs

    monkeypatch.setitem(jobs.CHUNK, house.kind, 1)
    talk(house, "a", "b", "c", "d", turns=3)
    before = {name: checkpoints(house, name) for name in "abcd"}
    assert run(house, max_threads=1).left == 3
    report = run(house, threads=["c"])
    assert report.compacted == 1
    after = {name: checkpoints(house, name) for name in "abcd"}
    assert after == {**before, "a": 1, "c": 1}
    assert run(house, job="named", max_threads=1).left
    with pytest.raises(JobError, match="threads"):
        run(house, job="named", threads=["d"])
    assert run(house).left == 0
    assert {checkpoints(house, name) for name in "abcd"} == {1}


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_named_threads_again(house: Any) -> None:
    chats = talk(house, "a", "b", turns=3)
    for _ in range(2):
        for chat in chats:
            chat.say()
        assert run(house, threads=["b", "b", "nobody"]).compacted == 1
        assert run(house, threads=[]).threads == 0
    assert checkpoints(house, "b") == 1
    assert checkpoints(house, "a") > 1


# Names


ODD = {
    "quotes": 'it\'s "so" `x` \\ ; DROP TABLE checkpoints; --',
    "percent": "100%s %(x)s %% {0} $1 ? :name",
    "like": "a%b_c",
    "emoji": "👩‍👩‍👧 ünïcödé \u202e",
    "spaces": "  a\tb\nc ",
    "dots": "a.b..c",
    "json": '{"a": ["b"]}',
    "long": "x" * 10_000,
    "namespace": "a|b:c|",
    "none": "None",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_thread_ids(house: Any, name: str) -> None:
    thread = ODD[name]
    (chat, other) = talk(house, thread, "other", turns=4)
    assert run(house, threads=[thread]).compacted == 1
    assert checkpoints(house, thread) == 1
    assert checkpoints(house, "other") > 1
    assert is_whole(house, chat)
    assert archived(house, thread) == {*chat.said[:-4]}
    report = run(house, job=ODD["quotes"] + "👩")
    assert through(report) == 2
    assert not report.errors
    assert is_whole(house, other)
    chat.say()
    assert run(house).compacted == 1
    assert is_whole(house, chat)
    gone = erase(house.saver, [thread], dry_run=False)
    assert not gone.found
    assert checkpoints(house, thread) == 0
    assert is_whole(house, other)
    swept = gc(house.saver, archive="same", grace="0", dry_run=False)
    assert swept.archives == 0
    assert is_whole(house, other)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("thread", ["a\x00b", "\x00"], ids=["within", "only"])
def test_a_thread_id_with_nul(house: Any, thread: str) -> None:
    """SQLite takes it; Postgres does not."""
    (chat, other) = talk(house, thread, "other", turns=4)
    assert run(house).compacted == 2
    assert checkpoints(house, thread) == 1
    assert is_whole(house, chat)
    assert is_whole(house, other)
    chat.say()
    assert run(house, threads=[thread]).compacted == 1
    assert checkpoints(house, thread) == 1
    erase(house.saver, [thread], dry_run=False)
    assert checkpoints(house, thread) == 0
    assert is_whole(house, other)


NAMES = ["nightly", "it's", "100%s", "a b\n", "👩", "'; DROP TABLE checkpoints; --", "x" * 500]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_odd_names_of_jobs(house: Any, name: str) -> None:
    (chat,) = talk(house, "t")
    assert run(house, job=name).compacted == 1
    assert [one.job for one in status(house.saver)] == [name]
    assert status(house.saver, job=name)[0].left == 0
    assert run(house, job=name).skipped == {"compacted before": 1}
    assert is_whole(house, chat)


@pytest.mark.parametrize("namespace", ["a|b", "a:b", "a:b|c:d", "|", ":", "é 👩", "a%b'"])
def test_odd_namespaces(house: Any, namespace: str) -> None:
    """Somebody else's rows, of which LangGraph makes no sense, lose no list."""
    (chat,) = talk(house, "t")
    stored = house.saver.get_tuple(chat.config)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": namespace}}
    for _ in range(3):
        made = create_checkpoint(stored.checkpoint, None, 1)
        versions = made["channel_versions"]
        config = house.saver.put(config, made, {"source": "loop", "step": 1}, versions)
    report = run(house, Policy(WINDOW, Retain(last=2)))
    assert not report.errors
    assert report.compacted == 1
    left = [*house.saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": namespace}})]
    assert len(left) == 2
    for one in left:
        assert one.checkpoint["channel_values"]["messages"][-1].id == chat.said[-1]
    assert is_whole(house, chat)


def put_line(house: Any, thread: str, ids: list[str]) -> None:
    """Store a line of checkpoints with these ids, oldest first, at rest."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    messages: list[Any] = []
    for step, id in enumerate(ids):
        messages = [*messages, HumanMessage(f"{step}", id=f"h{step}")]
        version = house.saver.get_next_version(step or None, None)
        checkpoint = empty_checkpoint()
        checkpoint |= {"id": id, "channel_values": {"messages": messages}}
        checkpoint |= {"channel_versions": {"messages": version}}
        metadata = {"source": "loop", "step": step, "parents": {}}
        config = house.saver.put(config, checkpoint, metadata, {"messages": version})


IDS = {
    "uuid4": sorted(str(uuid.UUID(int=(n << 100) + 5, version=4)) for n in range(6)),
    "numbers": [f"{n:08}" for n in range(6)],
    "words": ["a", "b", "c", "d", "e 'x' %s", "f 👩"],
    "ulid": [f"01ARZ3NDEKTSV4RRFFQ69G5FA{n}" for n in range(6)],
}


@pytest.mark.parametrize("name", IDS)
def test_ids_that_tell_no_time(house: Any, name: str) -> None:
    """Nobody knows how old they are, so with an idle time they are left alone."""
    put_line(house, "t", IDS[name])
    talk(house, "u")
    assert run(house, idle="1h").skipped == {"younger than idle": 2}
    dry = compact(house.saver, POLICY, archive="same", idle="0")
    assert dry.compacted == 2
    report = run(house, Policy(Window(("messages", 2)), Retain(last=2)))
    assert report.compacted == 2
    left = [*house.saver.list({"configurable": {"thread_id": "t"}})]
    assert [one.checkpoint["id"] for one in left] == IDS[name][:-3:-1]
    held = [m.id for m in left[0].checkpoint["channel_values"]["messages"]]
    assert held == ["h4", "h5"]
    # What has no time may be young.
    assert run(house, Policy(None, Retain(newer="1h"))).deleted == 0


# Damage


DAMAGES: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    "blob": {
        "postgres": (
            "UPDATE checkpoint_blobs SET blob = ? WHERE thread_id = 't1' AND channel = 'messages'",
            (b"\xc1poison",),
        ),
        "sqlite": (
            "UPDATE checkpoints SET checkpoint = ? WHERE thread_id = 't1'",
            (b"\xc1poison",),
        ),
    },
    "kind": {
        "postgres": ("UPDATE checkpoint_blobs SET type = 'odd' WHERE thread_id = 't1'", ()),
        "sqlite": ("UPDATE checkpoints SET type = 'odd' WHERE thread_id = 't1'", ()),
    },
    "empty": {
        "postgres": ("UPDATE checkpoint_blobs SET blob = '' WHERE thread_id = 't1'", ()),
        "sqlite": ("UPDATE checkpoints SET checkpoint = x'' WHERE thread_id = 't1'", ()),
    },
    "null": {
        "postgres": ("UPDATE checkpoint_blobs SET blob = NULL WHERE thread_id = 't1'", ()),
        "sqlite": ("UPDATE checkpoints SET checkpoint = NULL WHERE thread_id = 't1'", ()),
    },
    "checkpoint": {
        "postgres": ("UPDATE checkpoints SET checkpoint = '[]' WHERE thread_id = 't1'", ()),
        "sqlite": ("UPDATE checkpoints SET checkpoint = x'90' WHERE thread_id = 't1'", ()),
    },
    "versions": {
        "postgres": (
            "UPDATE checkpoints SET checkpoint = checkpoint || '{\"channel_versions\": 5}' "
            "WHERE thread_id = 't1'",
            (),
        ),
        "sqlite": ("UPDATE checkpoints SET checkpoint = x'80' WHERE thread_id = 't1'", ()),
    },
    "format": {
        "postgres": (
            'UPDATE checkpoints SET checkpoint = checkpoint || \'{"v": "x"}\' '
            "WHERE thread_id = 't1'",
            (),
        ),
        "sqlite": ("UPDATE checkpoints SET checkpoint = x'81a17601' WHERE thread_id = 't1'", ()),
    },
    "metadata": {
        "postgres": ("UPDATE checkpoints SET metadata = '[1]' WHERE thread_id = 't1'", ()),
        "sqlite": ("UPDATE checkpoints SET metadata = '[1' WHERE thread_id = 't1'", ()),
    },
    "writes": {
        "postgres": ("UPDATE checkpoint_writes SET blob = ? WHERE thread_id = 't1'", (b"\xc1",)),
        "sqlite": ("UPDATE writes SET value = ? WHERE thread_id = 't1'", (b"\xc1",)),
    },
    "record": {
        "postgres": (
            "UPDATE checkpoints SET metadata = metadata || '{\"reducing_saver\": [1]}' "
            "WHERE thread_id = 't1'",
            (),
        ),
        "sqlite": (
            "UPDATE checkpoints SET metadata = CAST('{\"reducing_saver\": [1]}' AS BLOB) "
            "WHERE thread_id = 't1'",
            (),
        ),
    },
}


@pytest.mark.parametrize("name", DAMAGES)
def test_one_damaged_thread_stops_nobody(house: Any, name: str) -> None:
    chats = talk(house, "t0", "t1", "t2", turns=4)
    house.run(*DAMAGES[name][house.kind])
    for step in (
        lambda: compact(house.saver, POLICY, archive="same", idle="0"),
        lambda: survey(house.saver),
        lambda: run(house),
        lambda: run(house, job="other"),
        lambda: run(house, Policy(None, Retain(last=2))),
    ):
        report = step()
        assert through(report) >= 2
        assert report.compacted + sum(report.skipped.values()) == 3
    for chat in (chats[0], chats[2]):
        assert checkpoints(house, chat.thread) == 1
        assert is_whole(house, chat)
        chat.say()
    swept = gc(house.saver, archive="same", grace="0", dry_run=False)
    assert (swept.archives, swept.blobs) == (0, 0)
    erase(house.saver, ["t1"], dry_run=False)
    assert run(house).compacted == 2
    assert all(is_whole(house, chat) for chat in (chats[0], chats[2]))


# Size


@pytest.mark.parametrize("last", [1, 2_000])
def test_a_thread_of_5000_checkpoints(house: Any, last: int) -> None:
    """Nothing is quadratic: thousands that stay of thousands take seconds."""
    amount = 5_000
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    messages = [HumanMessage(f"{n}", id=f"h{n}") for n in range(12)]
    version = house.saver.get_next_version(None, None)
    metadata = {"source": "loop", "step": 0, "parents": {}}
    parent = config
    for n in range(amount):
        checkpoint = empty_checkpoint()
        checkpoint |= {"id": str(uuid6()), "channel_values": {"messages": messages}}
        checkpoint |= {"channel_versions": {"messages": version}}
        parent = house.saver.put(parent, checkpoint, metadata, {} if n else {"messages": version})
    assert house.count("checkpoints") == amount
    began = time.monotonic()
    report = run(house, Policy(WINDOW, Retain(last=last)))
    spent = time.monotonic() - began
    assert (report.compacted, report.deleted) == (1, amount - last)
    assert house.count("checkpoints") == last
    assert spent < 60, spent
    assert math.isfinite(report.seconds)
    found = house.saver.get_tuple(config).checkpoint["channel_values"]["messages"]
    assert len(found) <= 8


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_connection_that_does_not_commit_by_itself(house: Any) -> None:
    """The saver is not made for it; a job has a connection of its own all the same."""
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    (chat,) = talk(house, "t")
    with psycopg.connect(house.dsn, row_factory=dict_row) as connection:
        saver = PostgresSaver(connection)
        report = compact(saver, POLICY, archive="same", idle="0", dry_run=False)
        assert report.compacted == 1
    assert is_whole(house, chat)
