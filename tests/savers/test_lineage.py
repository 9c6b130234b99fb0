"""What is remembered of each stored checkpoint: bounded, by line, and never a wrong list (S6)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Overwrite, interrupt
from savers.scenarios import Line, Stage, ask, brief, read, reply, say, turns
from services.door import Door

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver import _lineage as lineage_module
from reducing_saver._channel import Place
from reducing_saver._lineage import NOTHING, CheckpointKey, Evicted, Lineage, Trace
from reducing_saver._lookup import alike, traced
from reducing_saver._reduction import Reduction, Setting

WINDOW = Window(("messages", 2), ("messages", 3), ("messages", 1_000))
CAPPED = Window(("messages", 2), ("messages", 3), ("messages", 5))
FEW = pytest.mark.parametrize(
    "backend", ["memory-sync", "memory_int-async", "sqlite-sync"], indirect=True
)


def kept(inner: Any, window: Window = CAPPED, **settings: Any) -> ReducingSaver:
    return ReducingSaver(inner, window, archive=Discard(), **settings)


def named(*names: str) -> list[Any]:
    return [HumanMessage(name, id=name) for name in names]


def dialogue(*labels: str) -> list[BaseMessage]:
    return [message for label in labels for message in (ask(label), say(label))]


# What a line has evicted


def test_nothing_is_in_nothing() -> None:
    messages = named("a", "b")
    assert len(NOTHING) == 0
    assert messages[0] not in NOTHING
    assert NOTHING.without(messages) is messages


def test_a_message_is_known_by_its_id() -> None:
    line = NOTHING.plus(named("a", "b"))
    assert len(line) == 2
    assert AIMessage("edited", id="a") in line
    assert {"role": "user", "content": "x", "id": "b"} in line
    assert HumanMessage("a", id="other") not in line
    assert HumanMessage("a") not in line


def test_a_message_without_an_id_is_known_as_the_object_it_is() -> None:
    """Never by content: people say "ok" twice."""
    first, second = HumanMessage("ok"), HumanMessage("ok")
    line = NOTHING.plus([first])
    assert first in line
    assert second not in line
    assert line.without([first, second]) == [second]
    assert line.without([first, second])[0] is second


def test_a_message_without_an_id_is_held_as_long_as_it_is_known() -> None:
    """An id() of an object that is gone may be another object's."""
    line = NOTHING.plus([HumanMessage("ok")])
    gc.collect()
    assert all(HumanMessage("new") not in line for _ in range(100))
    message = HumanMessage("gone with its line")
    reference = weakref.ref(message)
    line = NOTHING.plus([message])
    del message
    gc.collect()
    assert reference() is not None
    del line
    gc.collect()
    assert reference() is None


def test_what_is_left_keeps_its_order_and_its_objects() -> None:
    messages = named("a", "b", "c", "d")
    left = NOTHING.plus([messages[0], messages[2]]).without(messages)
    assert [id(m) for m in left] == [id(messages[1]), id(messages[3])]
    assert NOTHING.plus(named("x")).without(messages) is messages


def test_ids_that_are_strange_are_no_error() -> None:
    line = NOTHING.plus(named("a"))
    odd: list[Any] = [None, 7, "a", {"id": ["a"]}, {"id": 7}, object(), *named("a")]
    assert line.without(odd) == odd[:-1]


def test_a_line_is_never_changed() -> None:
    first = NOTHING.plus(named("a"))
    second = first.plus(named("b"))
    third = second.minus({"a"})
    assert [len(line) for line in (NOTHING, first, second, third)] == [0, 1, 2, 1]
    assert named("b")[0] not in first
    assert named("a")[0] in second
    assert named("a")[0] not in third


def test_forks_do_not_see_each_other() -> None:
    trunk = NOTHING.plus(named("a"))
    left, right = trunk.plus(named("l")), trunk.plus(named("r"))
    leaf = left.plus(named("leaf"))
    messages = named("a", "l", "r", "leaf")

    assert brief(trunk.without(messages)) == brief(messages[1:])
    assert brief(left.without(messages)) == brief(messages[2:])
    assert brief(right.without(messages)) == brief([messages[1], messages[3]])
    assert brief(leaf.without(messages)) == brief([messages[2]])


def test_forks_that_grow_at_the_same_time_do_not_see_each_other() -> None:
    """One line is looked at while the other, which shares its log, evicts in another thread."""
    trunk = NOTHING.plus(named("a"))

    class Meanwhile:
        type = "human"

        @property
        def id(self) -> str:
            trunk.plus(named("b"))
            return "meanwhile"

    messages = [*named("a"), Meanwhile(), *named("b", "c")]
    assert trunk.without(messages) == messages[1:]


def test_a_line_shares_what_it_holds_with_its_ancestors() -> None:
    """A run of many crossings costs what it has evicted, not that times the crossings."""
    line, lines = NOTHING, []
    for i in range(1_000):
        line = line.plus(named(f"m{i}"))
        lines.append(line)
    logs = {id(each._log) for each in lines}
    assert len(logs) <= 2
    assert [len(each) for each in lines] == [*range(1, 1_001)]


def test_of_a_very_long_line_the_newer_part_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "MOST_NAMES", 100)
    line = NOTHING
    for i in range(1_000):
        line = line.plus(named(f"m{i}"))
        assert len(line) <= 102
    assert named("m999")[0] in line
    assert named("m950")[0] in line
    assert named("m0")[0] not in line


def test_what_another_process_evicted_is_known_by_digests() -> None:
    from reducing_saver._record import digests

    line = NOTHING.plus(named("here")).known_by(digests(named("a", "b"), []))
    messages = named("a", "c", "b", "here")
    assert brief(line.without(messages)) == ["human:c"]
    assert brief(line.minus({"a"}).without(messages)) == ["human:a", "human:c"]


# Which checkpoints are remembered


def trace(*names: str) -> Trace:
    return Trace({"messages": Evicted().plus(named(*names))})


def test_each_checkpoint_has_its_own() -> None:
    lineage = Lineage()
    keys = [CheckpointKey("t", ns, checkpoint) for ns in ("", "sub") for checkpoint in ("1", "2")]
    for i, key in enumerate(keys):
        lineage.remember(key, trace(*map(str, range(i))))
    assert [len(lineage.find(key).evicted["messages"]) for key in keys] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert lineage.find(CheckpointKey("other", "", "1")) is None


def test_what_is_loaded_never_replaces_what_is_known() -> None:
    lineage = Lineage()
    key = CheckpointKey("t", "", "1")
    lineage.remember(key, trace("a"))
    lineage.learn(key, Trace())
    assert lineage.find(key) == trace("a") or len(lineage.find(key).evicted) == 1  # type: ignore[union-attr]
    lineage.learn(CheckpointKey("t", "", "2"), Trace())
    assert lineage.find(CheckpointKey("t", "", "2")) == Trace()


def test_only_the_threads_used_last_are_remembered() -> None:
    lineage = Lineage()
    used = CheckpointKey("used", "", "1")
    lineage.remember(used, trace("a"))
    for i in range(10_000):
        lineage.remember(CheckpointKey(f"t{i}", "", "1"), trace(f"m{i}"))
        assert lineage.find(used) is not None
    known = [i for i in range(10_000) if lineage.find(CheckpointKey(f"t{i}", "", "1"))]
    assert len(known) == lineage_module.MOST_THREADS - 1
    assert known == [*range(10_000 - len(known), 10_000)]


def test_only_the_newest_checkpoints_of_a_thread_are_remembered() -> None:
    lineage = Lineage()
    keys = [CheckpointKey("t", "", str(i)) for i in range(1_000)]
    for key in keys:
        lineage.remember(key, Trace())
    known = [key for key in keys if lineage.find(key)]
    assert known == keys[-lineage_module.MOST_CHECKPOINTS :]


def test_many_evicted_messages_push_older_threads_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "MOST_NAMES", 1_000)
    lineage = Lineage()
    for i in range(50):
        names = [f"{i}.{j}" for j in range(100)]
        for step in (1, 2, 3):  # the checkpoints of a line share what they hold
            lineage.remember(CheckpointKey(f"t{i}", "", str(step)), trace(*names))
    known = [i for i in range(50) if lineage.find(CheckpointKey(f"t{i}", "", "3"))]
    assert known == [*range(40, 50)]


def test_the_thread_that_is_used_is_never_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "MOST_NAMES", 10)
    lineage = Lineage()
    key = CheckpointKey("large", "", "1")
    lineage.remember(key, trace(*map(str, range(100))))
    assert lineage.find(key) is not None


def test_a_thread_is_forgotten_in_all_its_namespaces() -> None:
    lineage = Lineage()
    keys = [CheckpointKey(t, ns, "1") for t in ("gone", "here") for ns in ("", "sub", "sub:1")]
    for key in keys:
        lineage.remember(key, trace("a"))
        lineage.readmit(key, "messages", frozenset({"b"}))
    lineage.forget_thread("gone")
    assert [lineage.find(key) is None for key in keys] == [True] * 3 + [False] * 3
    assert [bool(lineage.readmitted(key)) for key in keys] == [False] * 3 + [True] * 3
    for i in range(2_000):  # what was forgotten has no weight any more
        lineage.remember(CheckpointKey(f"t{i}", "", "1"), trace("a"))
        lineage.forget_thread(f"t{i}")
    assert lineage.find(keys[-1]) is not None


def test_it_may_be_used_from_many_threads() -> None:
    lineage, errors = Lineage(), []

    def use(name: int) -> None:
        try:
            line = NOTHING
            for i in range(300):
                key = CheckpointKey(f"t{name}", "", str(i))
                line = line.plus(named(f"{name}.{i}"))
                lineage.remember(key, Trace({"messages": line}))
                found = lineage.find(key)
                assert found is not None
                assert len(found.evicted["messages"]) == i + 1
                lineage.find(CheckpointKey(f"t{(name + 1) % 8}", "", str(i)))
                if i % 50 == 0:
                    lineage.forget_thread(f"other {name}")
        except BaseException as error:
            errors.append(error)

    pool = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for one in pool:
        one.start()
    for one in pool:
        one.join()
    assert errors == []


# Lines of checkpoints


def alone(inner: Any, door: Door, puts: Sequence[Any], window: Window = CAPPED) -> list[list[str]]:
    """Give what each put of one line stores on a saver of its own."""
    line = Line(kept(inner, window), door)
    return [brief(read(line.put(messages)) or ()) for messages in puts]


def fork(line: Line, saver: Any = None) -> Line:
    """Go on from the same checkpoint in another run."""
    other = Line(saver or line.saver, line.door)
    other.config, other.versions, other.step = line.config, {**line.versions}, line.step
    return other


def growing(prefix: str, base: Sequence[Any], count: int) -> list[list[Any]]:
    lists = [[*base]]
    for i in range(count):
        lists.append([*lists[-1], *dialogue(f"{prefix}{i}")])
    return lists[1:]


@FEW
def test_two_runs_forked_from_one_checkpoint(inner: Any, door: Any) -> None:
    """Each checkpoint holds what its own line of parents says."""
    trunk = growing("trunk", [], 4)
    left, right = growing("left", trunk[-1], 6), growing("right", trunk[-1], 6)
    expected = [alone(InMemorySaver(), Door(), [*trunk, *arm]) for arm in (left, right)]

    lines = [Line(kept(inner), door)]
    stored = [[brief(read(lines[0].put(messages)) or ()) for messages in trunk]]
    stored.append([*stored[0]])
    lines.append(fork(lines[0]))
    for pair in zip(left, right, strict=True):
        for line, names, messages in zip(lines, stored, pair, strict=True):
            names.append(brief(read(line.put(messages)) or ()))

    assert stored == expected
    assert not any(name.startswith("human:left") for names in stored[1] for name in names)


@FEW
def test_interleaved_runs_on_one_thread(inner: Any, door: Any) -> None:
    """Two clients start at the same time from the same state (P40): two leaves."""
    saver = kept(inner)
    start = Line(saver, door)
    start.put(dialogue("t0"), rests=True)
    runs = [growing(name, dialogue("t0"), 5) for name in ("one", "two", "three")]
    lines = [fork(start) for _ in runs]
    expected = [alone(InMemorySaver(), Door(), [dialogue("t0"), *run])[1:] for run in runs]

    stored: list[list[list[str]]] = [[] for _ in runs]
    for step in range(5):
        for i in (step % 3, (step + 1) % 3, (step + 2) % 3):
            stored[i].append(brief(read(lines[i].put(runs[i][step])) or ()))

    assert stored == expected


@FEW
def test_a_late_put_of_a_cancelled_run(inner: Any, door: Any) -> None:
    saver = kept(inner)
    line = Line(saver, door)
    base = growing("t", [], 3)
    for messages in base:
        line.put(messages)
    cancelled = fork(line)
    going_on = growing("on", base[-1], 4)
    stored = [brief(read(line.put(messages)) or ()) for messages in going_on[:2]]

    late = brief(read(cancelled.put([*base[-1], say("late")])) or ())
    stored += [brief(read(line.put(messages)) or ()) for messages in going_on[2:]]

    assert stored == alone(InMemorySaver(), Door(), [*base, *going_on])[3:]
    assert late[-1] == "ai:said late"
    assert not any("on" in name.split(":")[1] for name in late)


@FEW
def test_the_memory_may_be_full_at_any_time(
    inner: Any, door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look at each put, the same lists."""
    puts = growing("t", [], 12)
    expected = alone(InMemorySaver(), Door(), puts)
    monkeypatch.setattr(lineage_module, "MOST_THREADS", 1)
    monkeypatch.setattr(lineage_module, "MOST_CHECKPOINTS", 1)
    saver = kept(inner)
    line, other = Line(saver, door), Line(saver, door, "other")
    stored = []
    for messages in puts:
        stored.append(brief(read(line.put(messages)) or ()))
        other.put(messages)

    assert stored == expected


@FEW
def test_a_second_look_is_one_read(inner: Any, door: Any) -> None:
    """What is remembered is not read again; what is not is read once."""
    reads: list[str] = []
    first, second = kept(inner), kept(inner)
    line = Line(first, door)
    puts = growing("t", [], 8)
    for messages in puts[:4]:
        line.put(messages)
    name = "aget_tuple" if door.name == "async" else "get_tuple"
    original = getattr(type(inner), name)

    def counted(self: Any, config: Any) -> Any:
        reads.append(config["configurable"]["checkpoint_id"])
        return original(self, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(inner), name, counted)
        for messages in puts[4:6]:
            door.put(*_put(line, messages))
        assert reads == []
        line.saver = second
        for messages in puts[6:]:
            door.put(*_put(line, messages))
    assert len(reads) == len(set(reads)) <= 5  # the parent, and the records of the run's crossings


def _put(line: Line, messages: Any) -> Any:
    checkpoint = line.checkpoint(messages)
    new = line.saver.get_next_version(max(line.versions.values()), None)
    versions = dict.fromkeys(checkpoint["channel_values"], new)
    line.versions = {**line.versions, **versions}
    checkpoint["channel_versions"] = line.versions
    config = line.config
    line.config = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
    metadata: Any = {"source": "loop", "step": line.step, "parents": {}}
    return line.saver, config, checkpoint, metadata, versions


# What comes back


@FEW
def test_what_the_graph_puts_back_on_purpose_stays(inner: Any, door: Any) -> None:
    """`Overwrite` with what was evicted: it is forgotten as evicted."""
    stage = Stage(kept(inner, Window(("messages", 2), ("messages", 2), ("messages", 4))), door)

    def restore(state: Any) -> Any:
        return {"messages": Overwrite(state["messages"][:2])}

    work = [(f"work{i}", lambda state, i=i: {"messages": dialogue(f"w{i}")[1:]}) for i in range(6)]
    stage.compile(stage.builder().chain(*work, ("restore", restore), ("end", lambda _: {})))
    result = stage.invoke(ask("t0"))

    found = read(door.get_tuple(inner, stage.config)) or ()
    assert brief(result["messages"]) == ["human:t0: ", "ai:said w0"]
    assert brief(found) == ["human:t0: ", "ai:said w0"]


@FEW
def test_polling_a_waiting_thread_remembers_no_more_each_time(inner: Any, door: Any) -> None:
    """A user interface asks for the state again and again while a thread waits."""
    saver = kept(inner)

    def wait(state: Any) -> Any:
        return {"messages": [say(str(interrupt("go on?")))]}

    def replace(state: Any) -> Any:
        return {"messages": Overwrite([*state["messages"][-1:], say("kept")])}

    stage = Stage(saver, door)
    builder = stage.builder()
    for name, action in (("wait", wait), ("replace", replace)):
        builder.add_node(name, action)
        builder.add_edge("__start__", name)
    stage.compile(builder)
    stage.invoke(ask("t0"))
    for _ in range(3):
        stage.state()
    once = held(saver)
    for _ in range(50):
        stage.state()

    assert held(saver) == once


def held(saver: ReducingSaver) -> int:
    """Count the messages that a saver's memory holds on to."""
    notes = saver._lineage._readmitted.values()
    return sum(len(messages) for noted in notes for messages in noted.values())


def test_memory_does_not_grow_with_the_number_of_threads() -> None:
    import tracemalloc

    inner = InMemorySaver()
    saver = kept(inner, WINDOW)
    messages = dialogue("t0", "t1", "t2")

    def talk(start: int, count: int) -> int:
        for i in range(start, start + count):
            line = Line(saver, Door(), f"thread {i}")
            config, checkpoint = line.config, line.checkpoint(messages, rests=True)
            version = saver.get_next_version(None, None)
            checkpoint["channel_versions"] = {"messages": version}
            metadata: Any = {"source": "loop", "step": 0, "parents": {}}
            saver.put(config, checkpoint, metadata, {"messages": version})
            inner.delete_thread(f"thread {i}")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = talk(0, 1_700)
        grown = talk(1_700, 400) - full
    finally:
        tracemalloc.stop()
    assert grown < 60_000


def test_turns_go_on_when_the_thread_was_pushed_out() -> None:
    inner = InMemorySaver()
    saver = kept(inner, WINDOW)
    stage = Stage(saver, Door())
    stage.compile(stage.builder().chain(("reply", reply), ("quiet", lambda _: {})))
    turns(stage, (), ())
    for i in range(lineage_module.MOST_THREADS + 1):
        saver._lineage.remember(CheckpointKey(f"t{i}", "", "1"), Trace())
    turns(stage, (), (), start=2)

    found = inner.get_tuple(stage.config)
    assert found is not None
    assert brief(read(found) or ()) == ["human:t3: ", "ai:said t3"]


@pytest.mark.parametrize("older_first", [True, False])
def test_a_copy_is_not_taken_for_another_branch(older_first: bool) -> None:
    """Plain numbers as versions repeat on two branches: all versions and the list tell them."""

    def stored(id: str, seen: int, *names: str) -> Any:
        return {
            **empty_checkpoint(),
            "id": id,
            "channel_values": {"messages": named(*names)},
            "channel_versions": {"messages": 4, "notes": 3},
            "versions_seen": {"__interrupt__": {"messages": seen}},
        }

    branches = [stored("b", 3, "m1", "m2"), stored("c", 2, "m1"), stored("d", 3, "m1", "m3")]
    setting = Setting(WINDOW, {"messages": Place("messages")}, archives_removed=True)
    lineage = Lineage()
    for checkpoint in branches if older_first else reversed(branches):
        found = CheckpointTuple({}, checkpoint, {})
        trace = traced(found, setting)
        lineage.remember(
            CheckpointKey("t", "", checkpoint["id"]),
            replace(trace, recorded=checkpoint["id"], resumed=checkpoint["id"] == "c"),
        )
    for checkpoint in branches:
        copied = Reduction({**checkpoint, "id": "e"}, {"source": "fork"}, {})
        trace = alike(lineage, CheckpointKey("t", "", "a"), copied, Trace(), setting)
        assert trace.recorded == checkpoint["id"]
        assert trace.resumed is (checkpoint["id"] == "c")
