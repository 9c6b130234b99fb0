"""Summaries off the path: a put begins one, a later put uses it, and nothing is lost between."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from memory.houses import (
    House,
    State,
    Told,
    ask,
    covered,
    ids,
    said,
    summaries,
    talk,
    thread_config,
)
from memory.test_memory import Noting, Ordered

from reducing_saver import ConfigurationError, ReducingSaver, StoreArchive, Summary, Window
from reducing_saver._ahead import MOST_FORKS, MOST_LINES, MOST_WAITING, Ahead, Line
from reducing_saver._counts import Counts
from reducing_saver.engine import problems

WINDOW = Window(("messages", 4), ("messages", 10), ("messages", 20))
MEMORY = ["memory-sync", "memory-async"]
PATIENCE = 30


class Gate:
    """A summariser that names what it was given, and answers when its gate is open."""

    def __init__(self, *, opened: bool = True) -> None:
        self.calls: list[list[str]] = []
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.failures = 0
        if opened:
            self.gate.set()

    def __call__(self, messages: list[Any], previous: str | None) -> str:
        self.calls.append([m.id for m in messages])
        self.began.release()
        assert self.gate.wait(PATIENCE), "a test opens its gate"
        if self.failures:
            self.failures -= 1
            raise RuntimeError("secret words of the provider")
        return " ".join([*(previous or "").split(), *(m.id for m in messages)])

    def summary(self, **options: Any) -> Summary:
        given = {"max_tokens": 100_000, "max_input_tokens": 1_000_000, **options}
        return Summary(self, background=True, **given)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.gate.set()


def settled(saver: ReducingSaver, gate: Gate) -> None:
    """Wait until every call that began has been counted."""
    end = time.monotonic() + PATIENCE
    while (s := saver.stats()).summaries + s.summary_failures < len(gate.calls) or _waits(saver):
        assert time.monotonic() < end, "a summary is never made"
        time.sleep(0.002)


def _waits(saver: ReducingSaver) -> bool:
    ahead = saver._ahead
    assert ahead is not None
    with ahead._lock:
        return any(
            job.made is None and not job.failed for jobs in ahead._jobs.values() for job in jobs
        )


def play(house: House, saver: Any, config: Any, *labels: str, rounds: int = 0) -> Any:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label, rounds), config)
    return graph


def whole(house: House, config: Any) -> None:
    """See that the newest checkpoint and its summary have every message once."""
    values = house.state(config)
    assert covered(values["messages"]) + ids(values["messages"]) == values["log"]
    assert problems(values["messages"]) == ()


# One crossing


def test_the_put_in_which_the_model_is_slow_does_not_wait(house: House, gate: Gate) -> None:
    gate.gate.clear()
    told = Told()
    saver = house.saver(WINDOW, summary=gate.summary(), on_evict=[told])
    config = thread_config()
    play(house, saver, config, *"abcdef")

    assert gate.began.acquire(timeout=PATIENCE), "the summary is being made"
    assert not gate.gate.is_set(), "and the puts are done while it is"
    values = house.state(config)
    assert ids(values["messages"]) == values["log"], "the live list is stored"
    assert (saver.stats().total.evicted, saver.stats().summaries, told.events) == (0, 0, [])

    play(house, saver, config, "y")
    assert len(gate.calls) == 1, "what is being made is not begun again"
    assert ids(house.state(config)["messages"]) == house.state(config)["log"]

    gate.gate.set()
    settled(saver, gate)
    play(house, saver, config, "z")
    values = house.state(config)
    assert covered(values["messages"]) == gate.calls[0] == told.ids, "exactly what it was made of"
    assert saver.stats().total.evicted == len(gate.calls[0]) == 8
    assert house.entries(config["configurable"]["thread_id"])
    whole(house, config)
    assert ids(house.transcript(saver, config)) == values["log"]


def test_as_many_calls_as_crossings(house: House, gate: Gate) -> None:
    told = Told()
    saver = house.saver(WINDOW, summary=gate.summary(), on_evict=[told])
    config = thread_config()
    for i in range(16):
        play(house, saver, config, f"t{i}", rounds=i % 2)
        settled(saver, gate)
        whole(house, config)
        assert len(house.state(config)["messages"]) <= 20

    stats = saver.stats()
    pending = len(gate.calls) - stats.total.reductions
    assert pending in (0, 1), "one is made and waits for the next put"
    assert stats.total.reductions >= 4
    assert len({name for call in gate.calls for name in call}) == sum(map(len, gate.calls))
    assert stats.total.evicted == sum(map(len, gate.calls[: stats.total.reductions]))
    values = house.state(config)
    assert told.ids == covered(values["messages"])
    assert ids(house.transcript(saver, config)) == values["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_the_next_put_uses_it_in_the_middle_of_a_run(house: House, gate: Gate) -> None:
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    play(house, saver, config, *"abcdef")
    settled(saver, gate)
    play(house, saver, config, "y", rounds=2)

    stored = house.checkpoints(config["configurable"]["thread_id"])
    steps = [len(f.checkpoint["channel_values"].get("messages", [])) for f in stored]
    first = next(f for f in reversed(stored) if summaries(_list(f)))
    assert first.metadata["source"] == "loop"
    assert first.checkpoint["channel_values"]["log"][-1] == "h.y", "as the next run begins"
    assert steps[0] == 11, "the summary, two turns, and six of this run"
    assert max(steps) == 12
    whole(house, config)


def _list(found: Any) -> list[Any]:
    return found.checkpoint["channel_values"].get("messages", [])


def test_ten_identical_puts_make_no_call(house: House, gate: Gate) -> None:
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    graph = play(house, saver, config, *"abcdefgh")
    for _ in range(3):
        settled(saver, gate)
        house.door.update_state(graph, config, {"messages": []}, as_node="model")
    calls, held = len(gate.calls), house.state(config)["messages"]
    assert len(held) <= 10
    for _ in range(10):
        house.door.update_state(graph, config, {"messages": []}, as_node="model")
        settled(saver, gate)
    assert len(gate.calls) == calls
    assert house.state(config)["messages"] == held


# Forks and changed lists


def test_a_fork_that_holds_something_else_has_a_summary_of_its_own(
    house: House, gate: Gate
) -> None:
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    graph = play(house, saver, config, "a", "b")
    middle = house.door.get_state(graph, config).config
    play(house, saver, config, *"cdef")
    settled(saver, gate)
    main = house.door.get_state(graph, config).config
    assert gate.calls == [["h.a", "a.a.1", "h.b", "a.b.4", "h.c", "a.c.7", "h.d", "a.d.10"]]
    edit = {"messages": [HumanMessage("a 0 edited", id="h.a")]}
    fork = house.door.update_state(graph, middle, edit, as_node="model")
    for label in ("u", "v", "w", "x"):
        house.door.invoke(graph, ask(label), fork)
        fork = {"configurable": {**config["configurable"]}}
    settled(saver, gate)
    assert len(gate.calls) == 2, "the edited message was never read"
    assert gate.calls[1][0] == "h.a"
    play(house, saver, config, "z")
    whole(house, config)
    assert "h.x" in ids(house.state(config)["messages"])

    house.door.invoke(graph, ask("m"), main)
    assert len(gate.calls) == 2, "the main line has not lost its own"
    whole(house, config)
    assert covered(house.state(config)["messages"]) == gate.calls[0]
    assert "h.d" in house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_list_that_was_changed_meanwhile_is_summarised_anew(house: House, gate: Gate) -> None:
    gate.gate.clear()
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    graph = play(house, saver, config, *"abcdef")
    edit = {"messages": [AIMessage("another answer", id="a.b.4")]}
    house.door.update_state(graph, config, edit, as_node="model")
    gate.gate.set()
    settled(saver, gate)
    assert len(gate.calls) == 2
    play(house, saver, config, "y")
    whole(house, config)
    found = {m.id: m.content for m in house.transcript(saver, config)}
    assert found["a.b.4"] == "another answer"
    assert saver.stats().total.reductions == 1


TURNS = st.tuples(st.just("turn"), st.integers(0, 3))
STEPS = st.lists(
    st.one_of(
        TURNS,
        TURNS,
        TURNS,
        st.tuples(st.just("fork"), st.integers(0, 40)),
        st.tuples(st.just("process"), st.just(0)),
        st.tuples(st.just("hold"), st.integers(0, 1)),
        st.tuples(st.just("fail"), st.integers(1, 3)),
        st.tuples(st.just("edit"), st.integers(0, 9)),
    ),
    min_size=4,
    max_size=14,
)


@settings(
    max_examples=500 if os.environ.get("REDUCING_TEST_CAMPAIGN") == "1" else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STEPS, st.sampled_from([WINDOW, Window(("messages", 2), ("messages", 3), ("messages", 5))]))
def test_nothing_is_lost_whatever_happens(script: list[tuple[str, int]], window: Window) -> None:
    gate, inner, store = Gate(), InMemorySaver(), InMemoryStore()
    config, labels = thread_config(), iter(range(1_000))
    tip = config

    def fresh() -> ReducingSaver:
        return ReducingSaver(
            inner, window, archive=StoreArchive(store), summary=gate.summary(), strict=True
        )

    saver = fresh()
    for name, number in script:
        graph = talk().compile(checkpointer=saver)
        past = [*graph.get_state_history(config)]
        match name:
            case "turn":
                graph.invoke(ask(f"t{next(labels)}", number), tip)
                tip = config
            case "fork" if past:
                tip = past[number % len(past)].config
            case "process":
                saver = fresh()
            case "hold":
                (gate.gate.clear if number else gate.gate.set)()
            case "fail":
                gate.failures = number
            case "edit" if past and past[0].values.get("messages"):
                one = past[0].values["messages"][number % len(past[0].values["messages"])]
                edit = one.model_copy(update={"name": f"edit{next(labels)}"})
                graph.update_state(config, {"messages": [edit]}, as_node="model")
        if gate.gate.is_set():
            settled_all(saver)
    gate.gate.set()

    for found in inner.list(config):
        values = found.checkpoint["channel_values"]
        messages, log = values.get("messages", []), values.get("log", [])
        assert len(summaries(messages)) <= 1
        transcript = ids([*saver.transcript(found.config)])
        assert transcript == log, "archive + state = every message of the line, once, in order"
        if window is WINDOW:
            assert len(messages) <= 2 * 20 + 2, "bounded, however slow the model is"


def settled_all(saver: ReducingSaver) -> None:
    end = time.monotonic() + PATIENCE
    while _waits(saver):
        assert time.monotonic() < end
        time.sleep(0.001)


# Failures


def test_a_summary_that_fails_evicts_nothing_and_is_tried_at_the_next_rest(
    house: House, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.failures = 2
    window = Window(("messages", 4), ("messages", 6), ("messages", 40))
    saver = house.saver(window, summary=gate.summary())
    config = thread_config()
    for label in "abcdef":
        play(house, saver, config, label, rounds=1)
        settled(saver, gate)
    values = house.state(config)
    assert saver.stats().summary_failures == 2, "once a rest, not once a put"
    assert len(gate.calls) >= 3
    whole(house, config)
    assert covered(values["messages"]), "and the third was used"
    assert "secret" not in caplog.text
    assert ids(house.transcript(saver, config)) == values["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_failing_summary_is_not_tried_at_every_put_of_a_run(house: House, gate: Gate) -> None:
    gate.failures = 1_000
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    graph = talk().compile(checkpointer=saver)
    house.door.invoke(graph, ask("a", 11), config)
    settled(saver, gate)
    puts = len(house.checkpoints(config["configurable"]["thread_id"]))
    assert puts >= 24
    assert 1 <= len(gate.calls) <= puts // 4
    values = house.state(config)
    assert ids(values["messages"]) == values["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_failing_summary_may_let_go(house: House, gate: Gate) -> None:
    gate.failures = 1_000
    saver = house.saver(WINDOW, summary=gate.summary(on_failure="evict"))
    config = thread_config()
    for label in "abcdefgh":
        play(house, saver, config, label)
        settled(saver, gate)
    values = house.state(config)
    assert saver.stats().total.evicted
    assert not summaries(values["messages"])
    assert ids(house.transcript(saver, config)) == values["log"]


def test_an_archive_that_fails_costs_no_second_call(house: House, gate: Gate) -> None:
    archive = Noting(house.store, [])
    saver = house.saver(WINDOW, archive=archive, summary=gate.summary())
    config = thread_config()
    play(house, saver, config, *"abcdef")
    settled(saver, gate)
    archive.refuses = True
    play(house, saver, config, "y")
    assert saver.stats().archive_failures
    assert ids(house.state(config)["messages"]) == house.state(config)["log"]
    archive.refuses = False
    play(house, saver, config, "z")
    assert covered(house.state(config)["messages"]) == gate.calls[0]
    assert len(gate.calls) == 1
    whole(house, config)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_put_that_fails_leaves_it_to_the_next(house: House, gate: Gate) -> None:
    inner = Ordered()
    saver = house.saver(WINDOW, inner=inner, summary=gate.summary())
    config = thread_config()
    graph = play(house, saver, config, *"abcdef")
    settled(saver, gate)
    inner.refuses = True
    with pytest.raises(OSError, match="disk is full"):
        house.door.update_state(graph, config, ask("lost"), as_node="model")
    inner.refuses = False
    play(house, saver, config, "y")
    assert len(gate.calls) == 1
    held = house.door.get_tuple(inner, config).checkpoint["channel_values"]
    assert covered(held["messages"]) == gate.calls[0]
    assert covered(held["messages"]) + ids(held["messages"]) == held["log"]


# The process goes, the saver is closed, the thread is deleted


def test_the_next_process_begins_again(house: House, gate: Gate) -> None:
    gate.gate.clear()
    config = thread_config()
    play(house, house.saver(WINDOW, summary=gate.summary()), config, *"abcdef")
    assert gate.began.acquire(timeout=PATIENCE)
    gate.gate.set()

    saver = house.saver(WINDOW, summary=gate.summary())
    play(house, saver, config, "y")
    settled_all(saver)
    assert len(gate.calls) == 2
    play(house, saver, config, "z")
    whole(house, config)
    assert covered(house.state(config)["messages"]) == gate.calls[1]
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]


CHILD = """
import asyncio, sys, threading
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from memory.houses import ask, talk, thread_config
from reducing_saver import ReducingSaver, StoreArchive, Summary, Window

began = threading.Event()

def hangs(messages, previous):
    began.set()
    threading.Event().wait()

def wrapped(inner):
    summary = Summary(hangs, background=True)
    window = Window(("messages", 4), ("messages", 10))
    return ReducingSaver(inner, window, archive=StoreArchive(InMemoryStore()), summary=summary)

path, door, close = sys.argv[1:]
config = thread_config("t")
if door == "sync":
    with SqliteSaver.from_conn_string(path) as inner:
        saver = wrapped(inner)
        graph = talk().compile(checkpointer=saver)
        for label in "abcdef":
            graph.invoke(ask(label), config)
        assert began.wait(30)
        if close == "close":
            saver.close()
else:
    async def main():
        async with AsyncSqliteSaver.from_conn_string(path) as inner:
            saver = wrapped(inner)
            graph = talk().compile(checkpointer=saver)
            for label in "abcdef":
                await graph.ainvoke(ask(label), config)
            assert began.wait(30)
            if close == "close":
                await saver.aclose()
    asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("close", ["close", "leave"])
@pytest.mark.parametrize("door", ["sync", "async"])
def test_a_program_ends_while_the_model_hangs(tmp_path: Path, door: str, close: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "chat.db"), door, close]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")

    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(tmp_path / "chat.db")) as inner:
        found = inner.get_tuple(thread_config("t"))
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert ids(values["messages"]) == values["log"]
        assert len(values["log"]) == 12


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_closed_saver_gives_up_what_waits_and_goes_on(house: House, gate: Gate) -> None:
    gate.gate.clear()
    saver = house.saver(WINDOW, summary=gate.summary())
    configs = [thread_config() for _ in range(6)]
    for config in configs:
        play(house, saver, config, *"abcdef")
    for _ in range(2):
        assert gate.began.acquire(timeout=PATIENCE)
    house.door.call(saver, "close")
    gate.gate.set()
    settled_all(saver)
    assert len(gate.calls) == 2, "as many as there are workers; the rest was given up"
    for config in configs:
        play(house, saver, config, "y")
        settled_all(saver)
        play(house, saver, config, "z")
        whole(house, config)
        assert covered(house.state(config)["messages"])
    assert len(gate.calls) == 6


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_workers_end_when_there_is_nothing_to_do(house: House, gate: Gate) -> None:
    saver = house.saver(WINDOW, summary=gate.summary())
    play(house, saver, thread_config(), *"abcdef")
    settled(saver, gate)
    ahead = saver._ahead
    assert ahead is not None
    end = time.monotonic() + PATIENCE
    while ahead._threads:
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_deleted_thread_gets_no_late_summary(house: House, gate: Gate) -> None:
    gate.gate.clear()
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    play(house, saver, config, *"abcdef")
    assert gate.began.acquire(timeout=PATIENCE)
    house.door.delete_thread(saver, config["configurable"]["thread_id"])
    gate.gate.set()
    settled_all(saver)
    play(house, saver, config, *"abcdef")
    settled_all(saver)
    assert len(gate.calls) == 2, "the same words again, and a summary of their own"
    assert ids(house.state(config)["messages"]) == house.state(config)["log"]


# Long runs


@pytest.mark.parametrize(
    "house", ["memory-sync", "aiosqlite-async", "postgres-sync"], indirect=True
)
def test_a_run_stays_bounded_while_the_model_hangs(house: House, gate: Gate) -> None:
    gate.gate.clear()
    told = Told()
    saver = house.saver(WINDOW, summary=gate.summary(), on_evict=[told])
    config = thread_config()
    graph = talk().compile(checkpointer=saver)
    house.door.invoke(graph, ask("a", 40), {**config, "recursion_limit": 200})

    stored = house.checkpoints(config["configurable"]["thread_id"])
    longest = max(len(_list(found)) for found in stored)
    assert 20 < longest <= 2 * 20 + 2, "the cap, and once more as much for the summary"
    values = house.state(config)
    assert len(values["log"]) == 82
    assert ids(house.transcript(saver, config)) == values["log"], "without a summary, not lost"
    assert saver.stats().total.evicted == len(told.ids) > 40


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_run_above_its_cap_uses_a_summary_when_it_is_there(house: House, gate: Gate) -> None:
    saver = house.saver(WINDOW, summary=gate.summary())
    config = thread_config()
    graph = talk().compile(checkpointer=saver)
    seen: list[int] = []
    for number in range(3):
        for _ in house.door.stream(graph, ask(f"t{number}", 9), config):
            settled_all(saver)
            seen.append(len(gate.calls))
    values = house.state(config)
    assert sorted(covered(values["messages"]) + ids(values["messages"])) == sorted(values["log"])
    assert ids(house.transcript(saver, config)) == values["log"]
    assert saver.stats().total.reductions in (len(gate.calls), len(gate.calls) - 1)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_an_old_thread_above_every_mark_waits_for_its_summary(house: House, gate: Gate) -> None:
    config = thread_config()
    old = talk().compile(checkpointer=house.inner)
    for i in range(40):
        house.door.invoke(old, ask(f"old{i}"), config)
    saver = house.saver(
        Window(("messages", 4), ("messages", 6), ("messages", 200)), summary=gate.summary()
    )
    play(house, saver, config, "a")
    settled(saver, gate)
    assert saver.stats().total.evicted == 0
    play(house, saver, config, "b")
    assert len(house.state(config)["messages"]) <= 7
    whole(house, config)


# What else is different in the background


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_hooks_alone_are_told_a_summary_that_rolls(house: House, gate: Gate) -> None:
    told = Told()
    saver = house.saver(WINDOW, summary=gate.summary(place="hooks"), on_evict=[told])
    config = thread_config()
    for i in range(14):
        play(house, saver, config, f"t{i}")
        settled(saver, gate)
    assert not summaries(house.state(config)["messages"])
    texts = [event.summary.split() for event in told.events if event.summary]
    assert len(texts) >= 2
    assert texts[-1] == told.ids, "each is made of the one before"


@pytest.mark.parametrize("house", MEMORY, indirect=True)
@pytest.mark.parametrize("forgets", [False, True], ids=["once", "at every put"])
def test_hooks_alone_are_told_a_summary_that_another_process_began(
    house: House, gate: Gate, forgets: bool
) -> None:
    """What hooks were told last only the archive knows, also where a lineage is forgotten."""
    told = Told()
    config = thread_config()
    for half in ("first", "second"):
        gate.calls.clear()
        saver = house.saver(WINDOW, summary=gate.summary(place="hooks"), on_evict=[told])
        for i in range(14):
            play(house, saver, config, f"{half}{i}")
            settled(saver, gate)
            if forgets:
                saver._lineage.forget_thread(config["configurable"]["thread_id"])
        assert len(house.state(config)["messages"]) <= 12
    texts = [event.summary.split() for event in told.events if event.summary]
    assert len(texts) >= 4
    assert texts[-1] == told.ids == house.state(config)["log"][: len(told.ids)]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_call_has_nothing_of_the_users_context(house: House) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="unset")
    seen: list[str] = []

    async def summarise(messages: Any, previous: Any) -> str:
        seen.append(mark.get())
        await asyncio.sleep(0)
        return "all"

    mark.set("of the user")
    saver = house.saver(WINDOW, summary=Summary(summarise, background=True))
    config = thread_config()
    play(house, saver, config, *"abcdef")
    settled_all(saver)
    play(house, saver, config, "y")
    assert seen == ["unset"]
    assert summaries(house.state(config)["messages"])


def test_the_loop_goes_on_while_a_summary_is_made(gate: Gate) -> None:
    gate.gate.clear()
    saver = ReducingSaver(
        InMemorySaver(), WINDOW, archive=StoreArchive(InMemoryStore()), summary=gate.summary()
    )
    graph = talk().compile(checkpointer=saver)
    config = thread_config()

    async def main() -> None:
        for label in "abcdef":
            await graph.ainvoke(ask(label), config)
        await asyncio.to_thread(gate.began.acquire, timeout=PATIENCE)
        gate.gate.set()  # only this loop can open it: it is not blocked
        await asyncio.to_thread(settled, saver, gate)
        await graph.ainvoke(ask("y"), config)

    asyncio.run(main())
    assert covered(graph.get_state(config).values["messages"]) == gate.calls[0]


def test_background_is_a_switch() -> None:
    with pytest.raises(ConfigurationError, match="background"):
        Summary(lambda messages, previous: "", background="yes")  # type: ignore[arg-type]
    made = Summary(summarise_nothing, background=True)
    assert copy.copy(made).background
    assert pickle.loads(pickle.dumps(made)).background  # noqa: S301
    assert not Summary(summarise_nothing).background


def summarise_nothing(messages: Any, previous: Any) -> str:
    return "nothing"


# What is remembered is bounded


def _ahead(gate: Gate) -> Ahead:
    return Ahead(gate.summary(), Counts())


def _said(number: int) -> list[Any]:
    return [HumanMessage("x", id=f"m{number}")]


def test_so_many_wait_and_no_more(gate: Gate) -> None:
    gate.gate.clear()
    ahead = _ahead(gate)
    for number in range(2):
        assert ahead.begin(Line(f"{number}", "", "m"), _said(number), None, length=1)
        assert gate.began.acquire(timeout=PATIENCE)
    begun = [
        ahead.begin(Line(f"t{number}", "", "m"), _said(number), None, length=1)
        for number in range(MOST_WAITING + 3)
    ]
    assert [job is None for job in begun] == [False] * MOST_WAITING + [True] * 3
    assert len(ahead._threads) == 2
    ahead.close()
    assert len(ahead._waiting) == 0


def test_of_a_line_so_many_forks(gate: Gate) -> None:
    ahead, line = _ahead(gate), Line("t", "", "m")
    for number in range(MOST_FORKS + 3):
        ahead.begin(line, _said(number), None, length=1)
    assert len(ahead._jobs[line]) == MOST_FORKS
    assert ahead.begun(line, _said(0), None) is None
    assert ahead.begun(line, _said(MOST_FORKS + 2), None) is not None


def test_so_many_lines(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    ahead = _ahead(gate)
    number = 0
    end = time.monotonic() + PATIENCE
    while number < MOST_LINES + 20:
        assert time.monotonic() < end
        line = Line(f"{number}", "", "m")
        number += ahead.begin(line, _said(number), None, length=1) is not None
    assert len(ahead._jobs) == MOST_LINES
    ahead.forget_thread(f"{number - 1}")
    assert len(ahead._jobs) == MOST_LINES - 1


def test_messages_are_let_go_when_the_summary_is_made(gate: Gate) -> None:
    ahead, line = _ahead(gate), Line("t", "", "m")
    job = ahead.begin(line, _said(1), None, length=1)
    assert job is not None
    end = time.monotonic() + PATIENCE
    while job.made is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert job.messages == ()
    assert ahead.made(line) == [job]
    assert job.places([*_said(0), *_said(1), *_said(2)], None) == [1]
    assert job.places([HumanMessage("y", id="m1")], None) == []
    assert job.places(_said(1), HumanMessage("summary", id="s")) == []
    ahead.drop([job])
    assert ahead.made(line) == []


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_chat_that_never_rests_uses_it_after_a_resume(house: House, gate: Gate) -> None:
    def hear(state: State) -> dict[str, Any]:
        number = len(state["log"])
        answer = interrupt("and now?")
        return said(HumanMessage(answer, id=f"h{number}"), AIMessage("yes", id=f"a{number}"))

    builder = StateGraph(State)
    builder.add_node("hear", hear)
    builder.add_edge(START, "hear")
    builder.add_edge("hear", "hear")
    saver = house.saver(WINDOW, summary=gate.summary())
    graph, config = builder.compile(checkpointer=saver), thread_config()
    house.door.invoke(graph, {"messages": [], "log": []}, config)
    for i in range(20):
        house.door.invoke(graph, Command(resume=f"answer {i}"), config)
        settled(saver, gate)
        state = house.door.get_state(graph, config)
        assert state.next == ("hear",)
        assert len(state.values["messages"]) <= 14
        whole(house, config)
    assert saver.stats().total.reductions >= 3
    assert len(gate.calls) - saver.stats().total.reductions in (0, 1)
    assert ids(house.transcript(saver, config)) == house.state(config)["log"]
