"""What is counted, and what OpenTelemetry is told of it; neither has a thread or a content."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from memory.houses import House, State, Told, ask, listing, said, talk, thread_config
from memory.test_memory import Noting
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from reducing_saver import (
    Background,
    ChannelStats,
    Discard,
    Excerpt,
    ReducingSaver,
    StoreArchive,
    Summary,
    Window,
    messages_hook,
)
from reducing_saver import _counts as counting
from reducing_saver._hooks import name_of
from reducing_saver._metrics import Metrics
from reducing_saver.engine.counters import count_bytes

WINDOW = Window(("messages", 4), ("messages", 6), ("messages", 12))
MEMORY = ["memory-sync", "memory-async"]


def play(house: House, saver: Any, config: Any, *labels: str, rounds: int = 0) -> Any:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label, rounds), config)
    return graph


def test_sizes_before_and_after_of_what_left(house: House) -> None:
    saver = house.saver(WINDOW, summary=listing()[1])
    config = thread_config()
    play(house, saver, config, "a", "b", "c")
    assert saver.stats().total.bytes_before == saver.stats().total.tokens_before == 0
    before = house.state(config)["messages"]
    play(house, saver, config, "d")
    total = saver.stats().channels["messages"]
    after = house.state(config)["messages"]
    newest = [m for m in house.transcript(saver, config) if m not in before]
    count = WINDOW.sizes("tokens").of
    assert total.reductions == 1
    assert total.tokens_before == sum(map(count, [*before, *newest]))
    assert total.tokens_after == sum(map(count, after))
    assert total.bytes_after == pytest.approx(sum(map(count_bytes, after)), rel=0.05)
    assert total.bytes_before > total.bytes_after - count_bytes(after[0])


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_nothing_is_counted_where_nothing_leaves(house: House) -> None:
    calls: list[Any] = []
    window = Window(("turns", 50), token_counter=lambda m: (len(calls) and calls.append(m)) or 1)
    calls.clear()
    saver = house.saver(window)
    play(house, saver, thread_config(), "a", "b", "c", rounds=3)
    assert calls == []
    assert saver.stats().total.puts > 10


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_no_message_is_counted_twice(house: House) -> None:
    seen: defaultdict[int, int] = defaultdict(int)
    alive: list[Any] = []

    def count(message: Any) -> int:
        seen[id(message)] += 1
        alive.append(message)
        return 1

    window = Window(("turns", 2), ("turns", 3), token_counter=count)
    seen.clear()
    saver = house.saver(window)
    play(house, saver, thread_config(), *"abcdefgh")
    assert saver.stats().total.tokens_before > saver.stats().total.tokens_after > 0
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_of_thousands_that_leave_at_once_some_are_counted(house: House) -> None:
    counted: list[Any] = []
    window = Window(("messages", 4), token_counter=lambda m: counted.append(m) or 7)
    saver = house.saver(window)
    old = [HumanMessage(f"question {i}", id=f"old{i}") for i in range(2_000)]
    counted.clear()
    house.door.invoke(
        talk().compile(checkpointer=saver), said(*old, *ask("a")["messages"]), thread_config()
    )
    total = saver.stats().total
    assert total.evicted >= 1_996
    assert total.tokens_before == 7 * 2_001
    assert len(counted) <= 128 + 12


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_counter_that_fails_hurts_nothing(house: House) -> None:
    broken: list[bool] = []

    def count(message: Any) -> int:
        if broken:
            raise ValueError("secret")
        return 1

    saver = house.saver(Window(("messages", 4), ("messages", 6), token_counter=count))
    broken.append(True)
    config = thread_config()
    play(house, saver, config, *"abcd")
    total = saver.stats().total
    assert (total.evicted, total.failures, total.tokens_before) == (4, 0, 0)
    assert total.bytes_before > total.bytes_after > 0


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_shadow_says_what_would_be_saved(house: House) -> None:
    saver = house.saver(WINDOW, shadow=True)
    play(house, saver, thread_config(), *"abcd")
    total = saver.stats().total
    assert (total.evicted, total.would_evict) == (0, 4)
    assert total.bytes_before > total.bytes_after > 0
    assert total.tokens_before > total.tokens_after > 0


def failing(eviction: Any) -> None:
    raise ConnectionError("secret words")


def test_deliveries_retries_and_failures_by_hook(house: House) -> None:
    told = Told(failures=2)
    saver = house.saver(WINDOW, on_evict=[told])
    config = thread_config()
    play(house, saver, config, *"abcd")
    assert saver.stats().delivered == 0
    house.door.call(saver, "deliver")
    house.door.call(saver, "deliver")
    stats = saver.stats()
    assert told.ids
    assert stats.hook_failures == {"Told": 2}
    assert stats.delivery_retries >= 2
    assert stats.delivery_failures == 2
    assert stats.delivered >= 1


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_hook_in_the_background_is_counted_by_its_own_name(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    background = Background(failing)
    saver = house.saver(WINDOW, on_evict=[background, Told()])
    play(house, saver, thread_config(), *"abcd")
    background.drain()
    background.close()
    assert set(saver.stats().hook_failures) == {"failing"}
    assert "failing" in caplog.text
    assert "secret" not in caplog.text


class Remembers:
    def __call__(self, eviction: Any, namespace: Any = ()) -> None: ...


def older(messages: Any, namespace: Any) -> None: ...


def test_names_of_hooks() -> None:
    assert name_of(failing) == "failing"
    assert name_of(Background(failing)) == "failing"
    assert name_of(partial(partial(failing), x="secret")) == "failing"
    assert name_of(Remembers()) == "Remembers"
    assert name_of(messages_hook(older)) == "older"
    assert name_of(messages_hook(Remembers())) == "Remembers"


# OpenTelemetry


class Meter:
    """What a program's own meter provider was told."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def points(self) -> dict[str, dict[tuple[tuple[str, Any], ...], Any]]:
        data = self.reader.get_metrics_data()
        found: dict[str, dict[tuple[tuple[str, Any], ...], Any]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "reducing_saver"
                for metric in scope.metrics:
                    points = metric.data.data_points
                    found[metric.name] = {
                        tuple(sorted(p.attributes.items())): getattr(p, "value", None)
                        or (p.count, p.sum)
                        for p in points
                    }
        return found


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    made = Meter()
    metrics = Metrics(made.provider.get_meter("reducing_saver"))
    monkeypatch.setattr(counting, "find_metrics", lambda: metrics)
    return made


CHANNEL = ("reducing_saver.channel", "messages")


def stats_of_retries(saver: Any) -> tuple[int, int]:
    stats = saver.stats()
    return stats.delivery_failures, stats.delivery_retries


@pytest.mark.parametrize("house", ["memory-sync", "aiosqlite-async"], indirect=True)
def test_a_meter_is_told_what_stats_say(house: House, meter: Meter) -> None:
    told = Told(failures=1)
    archive = Noting(house.store, [])
    calls: list[int] = []

    def summarise(messages: Any, previous: Any) -> str:
        calls.append(len(messages))
        if len(calls) == 1:
            raise RuntimeError("secret")
        return "a secret summary"

    saver = house.saver(WINDOW, archive=archive, summary=Summary(summarise), on_evict=[told])
    config = thread_config("a-secret-thread", memory_namespace=("users", "secret"))
    play(house, saver, config, *"abcdefghi")
    house.door.call(saver, "deliver")
    assert stats_of_retries(saver) == (1, 1)
    archive.refuses = True
    play(house, saver, config, *"jkl")

    points, stats = meter.points(), saver.stats()
    total = stats.channels["messages"]
    assert points["reducing_saver.messages.evicted"] == {(CHANNEL,): total.evicted}
    assert points["reducing_saver.reductions"] == {(CHANNEL,): total.reductions}
    for name in ("tokens", "bytes"):
        assert points[f"reducing_saver.{name}"] == {
            (CHANNEL, ("reducing_saver.list", each)): getattr(total, f"{name}_{each}")
            for each in ("before", "after")
        }
    assert points["reducing_saver.summaries"] == {
        (CHANNEL, ("reducing_saver.outcome", "failed")): 1,
        (CHANNEL, ("reducing_saver.outcome", "made")): stats.summaries,
    }
    durations = points["reducing_saver.summary.duration"]
    assert sum(count for count, _ in durations.values()) == stats.summaries + 1
    assert sum(s for _, s in durations.values()) == pytest.approx(stats.summary_seconds)
    assert points["reducing_saver.summary.calls"] == {(CHANNEL,): stats.summary_calls}
    assert points["reducing_saver.archive.failures"] == {(): stats.archive_failures}
    assert stats.archive_failures
    assert points["reducing_saver.hook.deliveries"] == {
        (("reducing_saver.outcome", "failed"),): stats.delivery_failures,
        (("reducing_saver.outcome", "delivered"),): stats.delivered,
    }
    assert points["reducing_saver.hook.retries"] == {(): stats.delivery_retries}
    assert points["reducing_saver.hook.failures"] == {(("reducing_saver.hook", "Told"),): 1}
    assert "secret" not in repr(points)
    house.door.delete_thread(saver, "a-secret-thread")


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_meter_is_told_what_graphs_remove_and_what_failed(house: House, meter: Meter) -> None:
    from langchain_core.messages import RemoveMessage

    builder = StateGraph(State)
    builder.add_node("keep", lambda state: {"messages": [RemoveMessage(state["messages"][0].id)]})
    builder.add_edge(START, "keep")
    saver = house.saver(WINDOW)
    graph = builder.compile(checkpointer=saver)
    config = thread_config()
    for i in range(3):
        two = said(HumanMessage("x", id=f"{i}.x"), HumanMessage("y", id=f"{i}.y"))
        house.door.invoke(graph, two, config)
    assert meter.points()["reducing_saver.messages.removed"] == {(CHANNEL,): 3}

    broken = Window(("turns", 1), pinned=lambda message: 1 / 0)
    failing_saver = house.saver(broken, strict=False)
    play(house, failing_saver, thread_config(), *"abcd")
    failures = failing_saver.stats().total.failures
    assert failures
    assert meter.points()["reducing_saver.failures"] == {(CHANNEL,): failures}


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_meter_is_told_what_became_excerpts(house: House, meter: Meter) -> None:
    saver = house.saver(Window(("messages", 40)), excerpt=Excerpt(max_tokens=100))
    builder = StateGraph(State)
    found = "secret words of a tool " * 200

    def look(state: State) -> dict[str, Any]:
        name = state["messages"][-1].id[2:]
        call = {"name": "look", "args": {}, "id": f"c.{name}"}
        asks = AIMessage("", id=f"a.{name}", tool_calls=[call])
        answer = ToolMessage(found, tool_call_id=f"c.{name}", id=f"t.{name}")
        return said(asks, answer, AIMessage("done", id=f"b.{name}"))

    builder.add_node("look", look)
    builder.add_edge(START, "look")
    for label in "abc":
        house.door.invoke(builder.compile(checkpointer=saver), ask(label), thread_config("cuts"))
    excerpted = saver.stats().total.excerpted
    assert excerpted == 3
    assert meter.points() == {"reducing_saver.contents.excerpted": {(CHANNEL,): excerpted}}


def test_a_put_that_does_nothing_tells_nothing(meter: Meter) -> None:
    saver = ReducingSaver(InMemorySaver(), WINDOW, archive=Discard())
    talk().compile(checkpointer=saver).invoke(ask("a"), thread_config())
    assert saver.stats().total.puts
    assert meter.points() == {}


PROGRAM = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from langgraph.checkpoint.memory import InMemorySaver
from memory.houses import ask, talk, thread_config
from reducing_saver import Discard, ReducingSaver, Window

saver = ReducingSaver(InMemorySaver(), Window(("messages", 4), ("messages", 6)), archive=Discard())
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))  # after the saver: as programs start
graph = talk().compile(checkpointer=saver)
for label in "abcd":
    graph.invoke(ask(label), thread_config("t"))
(resource,) = reader.get_metrics_data().resource_metrics
(scope,) = resource.scope_metrics
print(scope.scope.name, sorted(metric.name for metric in scope.metrics))
"""

MISSING = """
import sys
sys.modules["opentelemetry"] = sys.modules["opentelemetry.metrics"] = None
from langgraph.checkpoint.memory import InMemorySaver
from memory.houses import ask, talk, thread_config
from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver._metrics import find_metrics

saver = ReducingSaver(InMemorySaver(), Window(("messages", 4), ("messages", 6)), archive=Discard())
graph = talk().compile(checkpointer=saver)
for label in "abcd":
    graph.invoke(ask(label), thread_config("t"))
print(find_metrics(), saver.stats().total.evicted)
"""


def run(script: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_the_providers_of_a_program_are_found() -> None:
    names = ["bytes", "messages.evicted", "reductions", "tokens"]
    assert run(PROGRAM) == f"reducing_saver {[f'reducing_saver.{name}' for name in names]}"


def test_without_the_package_everything_else_is_the_same() -> None:
    assert run(MISSING) == "None 4"


def test_an_archive_and_all_channels_are_summed() -> None:
    saver = ReducingSaver(InMemorySaver(), WINDOW, archive=StoreArchive(InMemoryStore()))
    play_sync = talk().compile(checkpointer=saver)
    for label in "abcd":
        play_sync.invoke(ask(label), thread_config("t"))
    stats = saver.stats()
    assert stats.total == ChannelStats().plus(stats.channels["messages"])
    assert len(stats.total) == len(ChannelStats._fields)
