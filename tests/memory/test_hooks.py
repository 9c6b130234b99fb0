"""Hooks through real graphs, savers and stores: what is told, when, and after failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from memory.houses import (
    FILES,
    AsyncTold,
    Clock,
    House,
    Told,
    ask,
    ids,
    listing,
    said,
    talk,
    thread_config,
    ticking,
)
from savers.scenarios import SCENES, Stage
from services.door import AsyncDoor, within

from reducing_saver import (
    Background,
    ConfigurationError,
    Discard,
    Eviction,
    Policy,
    ReducingSaver,
    RememberFacts,
    StoreArchive,
    Window,
    compact,
    messages_hook,
)
from reducing_saver._ledger import FIRST_PAUSE

WINDOW = Window(("messages", 4), ("messages", 6), ("messages", 12))
AT_ONCE = Window(("messages", 2), ("messages", 2), ("messages", 40))
MEMORY = ["memory-sync", "memory-async"]


def play(house: House, saver: Any, config: Any, *labels: str) -> Any:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label), config)
    return graph


def name_of(config: Any) -> str:
    return str(config["configurable"]["thread_id"])


def evicted(house: House, config: Any) -> list[str]:
    values = house.state(config)
    held = ids(values["messages"])
    return [name for name in values["log"] if name not in held]


# What is told


@pytest.mark.parametrize("make", [Told, AsyncTold])
def test_a_hook_is_told_what_left(house: House, make: Any) -> None:
    told = make()
    summary = listing()[1]
    config = thread_config(memory_namespace=["users", "ann"])
    saver = house.saver(on_evict=[told], summary=summary)

    play(house, saver, config, *(f"t{i}" for i in range(8)))

    assert told.ids == evicted(house, config)
    assert len(told.events) > 1
    stored = {found.checkpoint["id"]: found for found in house.checkpoints(name_of(config))}
    for event in told.events:
        assert (event.thread, event.namespace) == (name_of(config), "")
        assert (event.channel, event.why) == ("messages", "window")
        assert event.memory_namespace == ("users", "ann")
        assert stored[event.checkpoint].metadata["reducing_saver"]["segments"] == {
            "messages": event.segment
        }
        assert event.summary is not None
        assert event.summary.split()[-1] == event.messages[-1].id
        assert event.edited == ()
        assert all(type(m).__name__ in ("HumanMessage", "AIMessage") for m in event.messages)
    assert len({event.segment for event in told.events}) == len(told.events)
    stats = saver.stats()
    assert (stats.delivered, stats.delivery_failures) == (len(told.events), 0)


def test_a_sync_hook_does_not_hold_the_loop() -> None:
    """In `aput` it runs in a thread while the loop goes on."""
    beats: list[float] = []
    names: list[str] = []

    def slow(eviction: Eviction) -> None:
        names.append(threading.current_thread().name)
        time.sleep(0.2)

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run() -> None:
        saver = ReducingSaver(
            InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()), on_evict=[slow]
        )
        graph = talk().compile(checkpointer=saver)
        heart = asyncio.create_task(beat())
        for i in range(3):
            await graph.ainvoke(ask(f"t{i}"), thread_config("a"))
        heart.cancel()

    asyncio.run(run())
    assert len(names) == 2
    assert threading.main_thread().name not in names
    assert len(beats) > 10


def test_an_async_hook_in_a_sync_put_has_a_loop_of_its_own() -> None:
    loops: list[Any] = []

    async def hook(eviction: Eviction) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    saver = ReducingSaver(
        InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()), on_evict=[hook]
    )
    graph = talk().compile(checkpointer=saver)

    async def from_a_loop() -> None:  # as in a notebook: sync calls while a loop runs
        for i in range(3):
            graph.invoke(ask(f"t{i}"), thread_config("a"))

    asyncio.run(from_a_loop())
    assert len(loops) == 2


def test_a_hook_may_read_the_thread(house: House) -> None:
    seen: list[int] = []
    config = thread_config()

    def reads(eviction: Eviction) -> None:
        saver.get_tuple(config)
        seen.append(len([*saver.transcript(config)]))

    saver = house.saver(AT_ONCE, on_evict=[reads])
    play(house, saver, config, "a", "b", "c")
    assert seen == [4, 6]


def test_the_older_form_of_a_hook(house: House) -> None:
    calls: list[Any] = []

    async def remember(messages: list[Any], namespace: tuple[str, ...]) -> None:
        calls.append(([m.id for m in messages], namespace))

    hooks = [
        messages_hook(lambda messages, namespace: calls.append((ids(messages), namespace))),
        messages_hook(remember),
    ]
    config = thread_config(memory_namespace="ann")
    saver = house.saver(AT_ONCE, on_evict=hooks)
    play(house, saver, config, "a", "b")
    assert [found for found, _ in calls] == [evicted(house, config)] * 2
    assert {namespace for _, namespace in calls} == {("ann",)}


def save(messages: Any, namespace: Any) -> None: ...


def save_one(eviction: Any, *, label: str = "") -> None: ...


class Keeps:
    def __init__(self, eviction: Any = None) -> None: ...

    def save(self, messages: Any, namespace: Any) -> None: ...

    def __call__(self, eviction: Any) -> None: ...


async def asave(messages: Any, namespace: Any) -> None: ...


OLDER = [save, asave, Keeps().save, lambda m, n: None, partial(save)]
WRONG = [lambda: None, lambda a, b, c: None, Keeps, "save", None, 7]


@pytest.mark.parametrize("hook", [*OLDER, *WRONG], ids=range(len(OLDER + WRONG)))
def test_a_hook_that_cannot_be_called_is_refused_at_once(hook: Any) -> None:
    for make in (
        lambda: ReducingSaver(InMemorySaver(), AT_ONCE, archive=Discard(), on_evict=[hook]),
        lambda: compact(InMemorySaver(), Policy(WINDOW), archive=Discard(), on_evict=[hook]),
        lambda: Background(hook),
    ):
        with pytest.raises(ConfigurationError, match="of an Eviction") as raised:
            make()
        assert repr(hook) in str(raised.value)
        assert ("is given as messages_hook(f)" in str(raised.value)) == (hook in OLDER)
    if hook in OLDER:
        assert Background(messages_hook(hook)).hook


@pytest.mark.parametrize(
    "hook",
    [save_one, Keeps(), Keeps().__call__, Background(Keeps()), partial(save, namespace=()), print],
    ids=range(6),
)
def test_a_hook_that_takes_an_eviction_is_taken(hook: Any) -> None:
    for hooks in ([hook], (hook,)):
        saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=Discard(), on_evict=hooks)
        assert saver._delivery.hooks == (hook,)


@pytest.mark.parametrize("hooks", [save_one, {save_one}, "ab", "", None], ids=range(5))
def test_hooks_are_a_list(hooks: Any) -> None:
    for make in (
        lambda: ReducingSaver(InMemorySaver(), AT_ONCE, archive=Discard(), on_evict=hooks),
        lambda: compact(InMemorySaver(), Policy(WINDOW), archive=Discard(), on_evict=hooks),
    ):
        with pytest.raises(ConfigurationError, match=r"a list of functions .* as \[f\]"):
            make()


@pytest.mark.parametrize("hook", [save_one, lambda m: None, Keeps, "save"], ids=range(4))
def test_the_older_form_takes_two(hook: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a function of \(messages, namespace\)"):
        messages_hook(hook)


def facts_of(messages: Any) -> list[Any]:
    return [{"id": m.id, "said": m.content} if m.type == "human" else m.content for m in messages]


async def facts_of_async(messages: Any) -> list[Any]:
    return facts_of(messages)


@pytest.mark.parametrize("extract", [facts_of, facts_of_async])
@pytest.mark.parametrize("in_background", [False, True], ids=["now", "in the background"])
def test_facts_are_remembered_in_a_store(house: House, extract: Any, in_background: bool) -> None:
    user = f"user{name_of(thread_config())}"
    config = thread_config(memory_namespace=["users", user])
    hook: Any = RememberFacts(house.store, extract)
    hook = Background(hook) if in_background else hook
    saver = house.saver(AT_ONCE, on_evict=[hook])
    play(house, saver, config, "a", "b", "c", "d")
    if in_background:
        house.door.call(saver, "close") if house.door.name == "async" else saver.close()

    found = house.door.call(house.store, "search", ("users", user, "facts"), limit=100)
    values = [item.value for item in found]
    assert len(values) == 6
    assert sorted(v["id"] for v in values if "id" in v) == ["h.a", "h.b", "h.c"]
    assert sum("text" in v for v in values) == 3
    # Told again after a failure nothing is there twice.
    other = house.saver(AT_ONCE, on_evict=[RememberFacts(house.store, extract)])
    house.door.call(other, "deliver")
    assert len(house.door.call(house.store, "search", ("users", user), limit=100)) == 6


# A hook that fails


@pytest.mark.parametrize("make", [Told, AsyncTold])
def test_a_hook_that_raises_is_called_again_on_a_later_put(
    house: House, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told, clock = make(failures=1), Clock()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told], clock=clock)
    with caplog.at_level(logging.DEBUG, logger="reducing_saver"):
        play(house, saver, config, "secret", "b", "c")
        assert told.ids == [], "what left meanwhile waits behind it"
        clock.move(FIRST_PAUSE)
        play(house, saver, config, "d")

    assert told.ids == evicted(house, config)
    assert Counter(told.ids).most_common(1)[0][1] == 1
    assert saver.stats().delivery_failures == 1
    failed = [r.getMessage() for r in caplog.records if "failed on segment" in r.getMessage()]
    assert len(failed) == 1
    assert f"the hook {make.__name__} (ConnectionError in Told.__call__) failed" in failed[0]
    assert "secret" not in caplog.text
    assert not any(r.exc_info for r in caplog.records), "a traceback may quote a message"


def test_a_hook_that_raises_is_called_again_by_deliver(house: House) -> None:
    told = Told(failures=1_000)
    configs = [thread_config() for _ in range(3)]
    saver = house.saver(AT_ONCE, on_evict=[told])
    for config in configs:
        play(house, saver, config, "a", "b", "c")
    told.failures = 0

    house.door.call(saver, "deliver")
    by_thread = {
        name_of(c): [m.id for e in told.events if e.thread == name_of(c) for m in e.messages]
        for c in configs
    }
    assert by_thread == {name_of(c): evicted(house, c) for c in configs}
    house.door.call(saver, "deliver")
    house.door.call(house.saver(on_evict=[told]), "deliver")
    assert len([event for event in told.events if event.thread in by_thread]) == 6


def test_what_a_process_left_untold_the_next_one_tells(house: House) -> None:
    failing, told = Told(failures=1_000), Told()
    one, other = thread_config(), thread_config()
    saver = house.saver(AT_ONCE, on_evict=[failing])
    for config in (one, other):
        play(house, saver, config, "a", "b", "c")

    later = house.saver(AT_ONCE, on_evict=[told])
    play(house, later, one, "d")
    assert told.ids == evicted(house, one), "on the thread's next put, in order"
    assert {event.thread for event in told.events} == {name_of(one)}
    house.door.call(later, "deliver")
    assert [m.id for e in told.events if e.thread == name_of(other) for m in e.messages] == (
        evicted(house, other)
    )
    keys = [(event.thread, event.segment) for event in told.events]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_line_is_read_once_for_all_that_waits_of_a_thread(house: House) -> None:
    """Where the checkpoints that let it go were deleted, the newest one names all of it."""
    chains: list[str] = []

    class Counting(StoreArchive):
        def chain(self, thread: str, newest: str | None) -> Any:
            chains.append(thread)
            return super().chain(thread, newest)

        async def achain(self, thread: str, newest: str | None) -> Any:
            chains.append(thread)
            return await super().achain(thread, newest)

    class Lost(InMemorySaver):
        def get_tuple(self, config: Any) -> Any:
            here = {k: v for k, v in config["configurable"].items() if k != "checkpoint_id"}
            return super().get_tuple({"configurable": here})

        async def aget_tuple(self, config: Any) -> Any:
            return self.get_tuple(config)

    told, config, inner = Told(), thread_config(), Lost()
    failing = house.saver(AT_ONCE, on_evict=[Told(failures=1_000)], inner=inner)
    play(house, failing, config, *"abcdefgh")
    archive = Counting(house.store)
    saver = house.saver(AT_ONCE, on_evict=[told], inner=inner, archive=archive)
    house.door.call(saver, "deliver")
    mine = [event for event in told.events if event.thread == name_of(config)]
    assert len(mine) == 7
    assert chains.count(name_of(config)) == 1


@pytest.mark.parametrize("house", MEMORY, indirect=True)
@pytest.mark.parametrize("in_background", [False, True], ids=["now", "in the background"])
def test_of_two_hooks_only_the_one_that_failed_is_called_again(
    house: House, in_background: bool
) -> None:
    good, bad = Told(), Told(failures=1)
    hooks = [Background(good), Background(bad)] if in_background else [good, bad]
    saver = house.saver(AT_ONCE, on_evict=hooks)
    config = thread_config()
    play(house, saver, config, "a", "b")
    drain(house, saver)
    assert (good.ids, bad.ids) == (["h.a", "a.a.1"], [])
    house.door.call(saver, "deliver")
    play(house, saver, config, "c")
    close(house, saver)
    names = ["a.a.1", "a.b.4", "h.a", "h.b"]
    assert (sorted(good.ids), sorted(bad.ids)) == (names, names)
    assert {e.segment for e in good.events} == {e.segment for e in bad.events}


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_another_process_tells_both_hooks_with_the_same_key(house: House) -> None:
    good, bad = Told(), Told(failures=1)
    config = thread_config()
    play(house, house.saver(AT_ONCE, on_evict=[good, bad]), config, "a", "b")
    house.door.call(house.saver(on_evict=[good, bad]), "deliver")
    assert [e.segment for e in good.events] == [e.segment for e in bad.events] * 2
    assert bad.ids == ["h.a", "a.a.1"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError, StopIteration])
def test_a_hook_never_hurts_the_put(error: Any) -> None:
    async def hook(eviction: Eviction) -> None:
        raise error

    saver = ReducingSaver(
        InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()), on_evict=[hook]
    )
    clock = Clock()
    graph = talk().compile(checkpointer=ticking(saver, clock))
    for i in range(3):
        clock.move()
        graph.invoke(ask(f"t{i}"), thread_config("a"))
    assert len(graph.get_state(thread_config("a")).values["messages"]) == 2
    assert saver.stats().delivery_failures == 2


@pytest.mark.parametrize("house", ["memory-async", "aiosqlite-async"], indirect=True)
def test_an_async_hook_that_awaits_what_is_cancelled_is_called_again(house: House) -> None:
    told, failures = Told(), [1]

    async def hook(eviction: Eviction) -> None:
        if failures:
            failures.clear()
            raise asyncio.CancelledError
        told(eviction)

    config, clock = thread_config(), Clock()
    saver = house.saver(AT_ONCE, on_evict=[hook], clock=clock)
    play(house, saver, config, *"abc")
    clock.move()
    play(house, saver, config, "d")
    assert told.ids == evicted(house, config)
    assert (saver.stats().delivery_failures, saver.stats().delivery_retries) == (1, 1)


@pytest.mark.parametrize("where", ["hook", "read", "told", "mark_delivered", "undelivered"])
def test_who_is_cancelled_while_hooks_are_told_leaves_them_to_the_next_put(where: str) -> None:
    """One loop of a program ends, and cancels what still runs there; another goes on."""
    told = Told()
    hangs = [where]
    began: asyncio.Event

    async def hang(name: str) -> None:
        if name in hangs:
            began.set()
            await asyncio.Event().wait()

    class Hanging(StoreArchive):
        async def aread(self, thread: str, keys: Any) -> Any:
            await hang("read")
            return await super().aread(thread, keys)

        async def atold(self, thread: str, keys: Any) -> Any:
            await hang("told")
            return await super().atold(thread, keys)

        async def amark_delivered(self, thread: str, segment: str, keys: Any) -> None:
            await hang("mark_delivered")
            await super().amark_delivered(thread, segment, keys)

        async def aundelivered(self, thread: str) -> Any:
            await hang("undelivered")
            return await super().aundelivered(thread)

    async def hook(eviction: Eviction) -> None:
        await hang("hook")
        told(eviction)

    archive = Hanging(InMemoryStore())
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[hook])
    graph = talk().compile(checkpointer=saver)
    config = thread_config()

    async def cut_off() -> None:
        nonlocal began
        began = asyncio.Event()
        running = asyncio.create_task(runs("ab"))
        await began.wait()
        running.cancel()  # and what it has begun is cancelled with the loop

    async def runs(labels: str) -> None:
        for label in labels:
            await graph.ainvoke(ask(label), config)

    asyncio.run(cut_off())
    hangs.clear()
    asyncio.run(runs("cd"))
    log = saver.inner.get(config)["channel_values"]["log"]  # type: ignore[index]
    assert list(dict.fromkeys(told.ids)) == log[:-2]
    twice = len(told.ids) - len(log[:-2])
    assert bool(twice) == (where == "mark_delivered"), "told, and not acknowledged: told again"
    assert saver._delivery.ledger._running == {}


def test_who_interrupts_a_hook_leaves_it_to_the_next_put() -> None:
    told, interrupts = Told(), [1]

    def hook(eviction: Eviction) -> None:
        if interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        told(eviction)

    archive = StoreArchive(InMemoryStore())
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[hook])
    graph = talk().compile(checkpointer=saver)
    config = thread_config()
    graph.invoke(ask("a"), config)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(ask("b"), config)
    for label in "cd":
        graph.invoke(ask(label), config)
    assert told.ids == saver.inner.get(config)["channel_values"]["log"][:-2]  # type: ignore[index]


class Lossy(InMemorySaver):
    """Store what evicts, and then fail: as where the connection ends between commit and answer."""

    lost = False

    def put(self, *given: Any) -> Any:
        stored = super().put(*given)
        if self.lost and given[2].get("reducing_saver"):
            self.lost = False
            raise ConnectionError("lost")
        return stored

    async def aput(self, *given: Any) -> Any:
        return self.put(*given)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_put_that_failed_after_it_was_stored_tells_at_the_next(house: House) -> None:
    told, inner = Told(), Lossy()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told], inner=inner)
    play(house, saver, config, "a")
    inner.lost = True
    with pytest.raises(ConnectionError):
        play(house, saver, config, "b")
    assert told.ids == []
    play(house, saver, config, *"cd")
    log = house.door.get_tuple(inner, config).checkpoint["channel_values"]["log"]
    assert told.ids == log[:-2]


def test_of_many_threads_with_hooks_that_fail_the_archive_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reducing_saver._ledger._MOST_THREADS", 3)
    told, clock = Told(failures=1_000), Clock()
    archive = StoreArchive(InMemoryStore())
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[told])
    graph = talk().compile(checkpointer=ticking(saver, clock))
    configs = [thread_config() for _ in range(8)]
    for config in configs:
        for label in "ab":
            graph.invoke(ask(label), config)
    ledger = saver._delivery.ledger
    held = (ledger._waiting, ledger._pauses, ledger._tried)
    assert [*map(len, held)] == [3, 3, 3], "hooks may fail for days"
    told.failures = 0
    clock.move()
    for config in configs:
        graph.invoke(ask("c"), config)
    assert Counter(told.ids) == dict.fromkeys(["h.a", "a.a.1", "h.b", "a.b.4"], 8)


class Unsteady(StoreArchive):
    """An archive that cannot be read now and then."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.failures: set[str] = set()
        self.threads: set[str] = set()

    def _fail(self, name: str, thread: str) -> None:
        if name in self.failures and (not self.threads or thread in self.threads):
            raise OSError("secret: the archive is away")

    def read(self, thread: str, keys: Any) -> Any:
        self._fail("read", thread)
        return super().read(thread, keys)

    def told(self, thread: str, keys: Any) -> Any:
        self._fail("told", thread)
        return super().told(thread, keys)

    def mark_delivered(self, thread: str, segment: str, keys: Any) -> None:
        self._fail("mark_delivered", thread)
        super().mark_delivered(thread, segment, keys)

    def undelivered(self, thread: str) -> Any:
        self._fail("undelivered", thread)
        return super().undelivered(thread)

    async def aread(self, thread: str, keys: Any) -> Any:
        self._fail("read", thread)
        return await super().aread(thread, keys)

    async def atold(self, thread: str, keys: Any) -> Any:
        self._fail("told", thread)
        return await super().atold(thread, keys)

    async def amark_delivered(self, thread: str, segment: str, keys: Any) -> None:
        self._fail("mark_delivered", thread)
        await super().amark_delivered(thread, segment, keys)

    async def aundelivered(self, thread: str) -> Any:
        self._fail("undelivered", thread)
        return await super().aundelivered(thread)


@pytest.mark.parametrize("method", ["read", "told", "mark_delivered", "undelivered"])
@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_an_archive_that_fails_while_hooks_are_told_delays_them(
    house: House, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = thread_config()
    failing, told = Told(failures=1_000), Told()
    play(house, house.saver(AT_ONCE, on_evict=[failing]), config, "a", "b", "c", "d")
    archive = Unsteady(house.store)
    saver = house.saver(AT_ONCE, archive=archive, on_evict=[told])
    archive.failures = {method}
    graph = play(house, saver, config, "e", "f")
    assert "secret" not in caplog.text

    archive.failures = set()
    house.door.invoke(graph, ask("g"), config)
    house.door.call(saver, "deliver")
    assert {*told.ids} == {*evicted(house, config)}
    if method != "mark_delivered":
        assert len(told.ids) == len({*told.ids})
    before = len(told.events)
    house.door.call(saver, "deliver")
    house.door.call(house.saver(on_evict=[told]), "deliver")
    assert len(told.events) == before


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_deliver_goes_on_behind_a_thread_that_fails(house: House) -> None:
    configs = [thread_config() for _ in range(3)]
    failing, told = Told(failures=1_000), Told()
    saver = house.saver(AT_ONCE, on_evict=[failing])
    for config in configs:
        play(house, saver, config, "a", "b")
    archive = Unsteady(house.store)
    archive.failures, archive.threads = {"read"}, {name_of(configs[0])}
    later = house.saver(AT_ONCE, archive=archive, on_evict=[told])
    house.door.call(later, "deliver")
    assert {*map(name_of, configs[1:])} <= {event.thread for event in told.events}
    archive.failures = set()
    house.door.call(later, "deliver")
    assert {*map(name_of, configs)} <= {event.thread for event in told.events}


class Refusing(InMemorySaver):
    """A saver whose puts fail while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def put(self, *args: Any, **kwargs: Any) -> Any:
        if self.refuses:
            raise OSError("the disk is full")
        return super().put(*args, **kwargs)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return self.put(*args, **kwargs)


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_put_that_failed_tells_nobody(house: House) -> None:
    inner, told = Refusing(), Told()
    config = thread_config()
    saver = house.saver(AT_ONCE, inner=inner, on_evict=[told])
    graph = play(house, saver, config, "a")
    state = house.door.get_state(graph, config)
    more = said(HumanMessage("b 0", id="h.b"), HumanMessage("c 0", id="h.c"))
    inner.refuses = True
    with pytest.raises(OSError, match="disk is full"):
        house.door.update_state(graph, config, more, as_node="model")
    house.door.call(saver, "deliver")
    house.door.call(house.saver(AT_ONCE, inner=inner, on_evict=[told]), "deliver")
    assert told.events == []
    assert house.transcript(saver, config) == state.values["messages"]

    inner.refuses = False
    play(house, saver, config, "d", "e")
    assert told.ids == ["h.a", "a.a.1", "h.d", "a.d.4"][: len(told.ids)]
    assert "h.b" not in told.ids


# Edited messages


def test_an_evicted_message_that_comes_back_edited_is_told_once_more(house: House) -> None:
    told = Told()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told])
    graph = play(house, saver, config, "a", "b", "c")
    assert Counter(told.ids)["h.a"] == 1
    again = HumanMessage("a, better 0", id="h.a")
    house.door.invoke(
        graph, {"messages": [again.model_copy(update={"content": "again 0"})]}, config
    )
    play(house, saver, config, "d", "e")

    about = [(e, i) for e in told.events for i, m in enumerate(e.messages) if m.id == "h.a"]
    assert [e.messages[i].content for e, i in about] == ["a 0", "again 0"]
    assert [i in e.edited for e, i in about] == [False, True]
    others = [m.id for e in told.events for i, m in enumerate(e.messages) if i not in e.edited]
    assert len(others) == len({*others})


def test_a_message_that_comes_back_as_it_was_is_not_told_again(house: House) -> None:
    told = Told()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[told])
    graph = play(house, saver, config, "a", "b", "c")
    house.door.invoke(graph, {"messages": [HumanMessage("a 0", id="h.a")]}, config)
    play(house, saver, config, "d", "e")
    assert Counter(told.ids)["h.a"] == 1


class SlowTold(AsyncTold):
    """An async hook that takes a while, so that others are at work meanwhile."""

    async def __call__(self, eviction: Eviction) -> None:  # type: ignore[override]
        await asyncio.sleep(0.02)
        await super().__call__(eviction)


@pytest.mark.parametrize("make", [SlowTold, lambda: Background(SlowTold(), workers=4)])
def test_a_message_in_two_namespaces_is_told_once(house: House, make: Any) -> None:
    """A graph and its subgraph with a memory hold the same messages, and store side by side."""
    hook = make()
    told = hook.hook if isinstance(hook, Background) else hook
    saver = house.saver(Window(("messages", 2), ("messages", 3), ("messages", 5)), on_evict=[hook])
    stage = Stage(saver, house.door)
    SCENES["subgraph_with_memory"].run(stage)
    close(house, saver)
    house.door.call(house.saver(on_evict=[told]), "deliver")

    mine = [event for event in told.events if event.thread == stage.thread]
    assert {event.namespace for event in mine} <= {"", "child"}
    counts = Counter(m.id for event in mine for m in event.messages)
    assert len(counts) >= 8
    assert max(counts.values()) == 1


# Without an archive


@pytest.mark.parametrize("make", [Told, AsyncTold])
@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_without_an_archive_hooks_are_told_at_most_once(house: House, make: Any) -> None:
    told = make()
    config = thread_config()
    saver = house.saver(AT_ONCE, archive=Discard(), on_evict=[told])
    play(house, saver, config, "a", "b")
    told.failures = 1
    play(house, saver, config, "c", "d", "e")
    house.door.call(saver, "deliver")
    assert told.ids == ["h.a", "a.a.1", "h.c", "a.c.7", "h.d", "a.d.10"]
    assert saver.stats().delivery_failures == 1


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_without_an_archive_a_background_hook_is_told_too(house: House) -> None:
    told = Told()
    saver = house.saver(AT_ONCE, archive=Discard(), on_evict=[Background(told)])
    play(house, saver, thread_config(), "a", "b", "c")
    house.door.run(saver.aclose()) if house.door.name == "async" else saver.close()
    assert sorted(told.ids) == ["a.a.1", "a.b.4", "h.a", "h.b"]


# In the background


class Gate(Told):
    """A hook that waits until it is let through."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(failures)
        self.open = threading.Event()
        self.waiting = threading.Semaphore(0)

    def __call__(self, eviction: Eviction) -> None:
        self.waiting.release()
        assert self.open.wait(30)
        super().__call__(eviction)


def close(house: House, saver: ReducingSaver) -> None:
    if house.door.name == "async":
        house.door.run(saver.aclose())
    else:
        within(30, saver.close)


def drain(house: House, saver: ReducingSaver) -> None:
    """Wait for the background; an async store needs its loop to go on meanwhile."""
    for hook in saver._delivery.hooks:
        if not isinstance(hook, Background):
            continue
        if house.door.name == "async":
            house.door.run(asyncio.to_thread(hook.drain))
        else:
            within(30, hook.drain)


def test_a_put_does_not_wait_for_a_background_hook(house: House) -> None:
    gate = Gate()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(gate, workers=1)])
    play(house, saver, config, "a", "b", "c", "d")
    assert gate.events == []
    assert house.transcript(saver, config)
    gate.open.set()
    close(house, saver)

    assert gate.ids == evicted(house, config), "close() waits; one worker keeps the order"
    assert saver.stats().delivered == 3
    house.door.call(house.saver(on_evict=[gate]), "deliver")
    assert len(gate.events) == 3, "acknowledged"


def test_what_a_full_background_drops_is_told_later(house: House) -> None:
    gate = Gate()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(gate, workers=1, max_pending=1)])
    graph = play(house, saver, config, "a", "b")
    assert gate.waiting.acquire(timeout=30), "one with the worker, so that one more may wait"
    play(house, saver, config, "c", "d", "e", "f")
    assert saver.stats().delivery_failures >= 1
    gate.open.set()

    for _ in range(20):
        drain(house, saver)
        house.door.call(saver, "deliver")
    house.door.invoke(graph, ask("g"), config)
    close(house, saver)
    assert sorted(gate.ids) == sorted(evicted(house, config))


def test_a_background_hook_that_raises_is_called_again(house: House) -> None:
    told, clock = Told(failures=2), Clock()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(told, workers=1)], clock=clock)
    graph = play(house, saver, config, "a", "b")
    drain(house, saver)
    for label in "cd":
        clock.move()
        house.door.invoke(graph, ask(label), config)
        drain(house, saver)
        assert saver.stats().delivery_failures == 2, "one a pause"
    house.door.invoke(graph, ask("e"), config)
    close(house, saver)
    assert told.ids == evicted(house, config), "the others once the first was taken"
    house.door.call(house.saver(on_evict=[told]), "deliver")
    assert sorted(told.ids) == sorted(evicted(house, config))


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_two_threads_with_the_same_messages_are_told_apart(house: House) -> None:
    """Two users whose messages have the same ids, while the first one's hook still runs."""
    gate = Gate()
    one, other = thread_config(), thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(gate, workers=1)])
    play(house, saver, one, "a", "b")
    assert gate.waiting.acquire(timeout=30)
    play(house, saver, other, "a", "b")
    gate.open.set()
    close(house, saver)

    assert {event.thread for event in gate.events} == {name_of(one), name_of(other)}
    assert len({event.segment for event in gate.events}) == 2, "a key is of one thread"
    for event in gate.events:
        assert event.memory_namespace == ("memories", event.thread)


@pytest.mark.parametrize("house", ["memory-sync", *FILES], indirect=True)
def test_a_thread_that_is_deleted_while_its_hook_waits_stays_deleted(house: House) -> None:
    gate = Gate()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(gate, workers=1)])
    play(house, saver, config, "a", "b", "c")
    assert gate.waiting.acquire(timeout=30)
    house.door.delete_thread(saver, name_of(config))
    gate.open.set()
    close(house, saver)
    assert house.rows(name_of(config)) == []


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, ValueError])
def test_a_background_worker_survives_every_error(error: Any) -> None:
    told = Told()
    failures = [3]

    async def hook(eviction: Eviction) -> None:
        if failures[0]:
            failures[0] -= 1
            raise error
        told(eviction)

    saver = ReducingSaver(
        InMemorySaver(),
        AT_ONCE,
        archive=StoreArchive(InMemoryStore()),
        on_evict=[Background(hook, workers=1)],
    )
    background: Any = saver._delivery.hooks[0]
    graph = talk().compile(checkpointer=saver)
    for i in range(5):
        graph.invoke(ask(f"t{i}"), thread_config("a"))
    for _ in range(4):
        within(20, background.drain)
        within(20, saver.deliver)
    within(20, saver.close)
    assert len({*told.ids}) == 8


@pytest.mark.parametrize("house", ["memory-async", "aiosqlite-async"], indirect=True)
def test_the_sync_close_does_not_wait_on_the_loop_it_would_stop(house: House) -> None:
    told = Told()
    background = Background(told)
    saver = house.saver(AT_ONCE, on_evict=[background])
    config = thread_config()
    graph = talk().compile(checkpointer=saver)

    async def main() -> None:
        for label in "abcd":
            await graph.ainvoke(ask(label), config)
        with pytest.raises(RuntimeError, match=r"await saver\.aclose"):
            saver.close()
        with pytest.raises(RuntimeError, match=r"await saver\.aclose"):
            background.close()
        await graph.ainvoke(ask("e"), config)
        await saver.aclose()

    assert isinstance(house.door, AsyncDoor)
    within(60, lambda: house.door.run(main()))
    assert told.ids == evicted(house, config), "and nothing is closed by the attempt"


def test_a_saver_without_background_hooks_may_be_closed_on_a_loop() -> None:
    saver = ReducingSaver(InMemorySaver(), AT_ONCE, archive=StoreArchive(InMemoryStore()))

    async def main() -> None:
        saver.close()
        await saver.aclose()

    asyncio.run(main())
    assert saver.stats().delivered == 0


def test_a_closed_background_leaves_the_rest_to_the_next(house: House) -> None:
    told, later = Told(), Told()
    config = thread_config()
    saver = house.saver(AT_ONCE, on_evict=[Background(told)])
    graph = play(house, saver, config, "a", "b")
    close(house, saver)
    house.door.invoke(graph, ask("c"), config)
    assert told.ids == ["h.a", "a.a.1"]
    other = house.saver(AT_ONCE, on_evict=[later])
    house.door.call(other, "deliver")
    assert later.ids == ["h.b", "a.b.4"]


CHILD = """
import asyncio, json, sys, time
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from memory.houses import ask, talk, thread_config
from reducing_saver import Background, ReducingSaver, StoreArchive, Window

path, log, door = sys.argv[1:]
window = Window(("messages", 2), ("messages", 2), ("messages", 40))

def hook(eviction):
    time.sleep(0.2)
    with open(log, "a") as file:
        file.write(json.dumps([eviction.segment, [m.id for m in eviction.messages]]) + "\\n")

def saver(inner, store):
    return ReducingSaver(inner, window, archive=StoreArchive(store), on_evict=[Background(hook)])

if door == "sync":
    opened = SqliteSaver.from_conn_string(path), SqliteStore.from_conn_string(path)
    inner, store = (one.__enter__() for one in opened)
    store.setup()
    graph = talk().compile(checkpointer=saver(inner, store))
    for i in range(6):
        graph.invoke(ask(f"t{i}"), thread_config("t"))
else:
    async def run():
        async with (
            AsyncSqliteSaver.from_conn_string(path) as inner,
            AsyncSqliteStore.from_conn_string(path) as store,
        ):
            await store.setup()
            graph = talk().compile(checkpointer=saver(inner, store))
            for i in range(6):
                await graph.ainvoke(ask(f"t{i}"), thread_config("t"))

    if door == "async":
        asyncio.run(run())
    else:  # a loop that nobody closes
        asyncio.new_event_loop().run_until_complete(run())
print("done", flush=True)
"""


def run_program(*arguments: str) -> str:
    """Run a Python that finds what this one does, to its end; return what it prints."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(
        [str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")]
    )
    ran = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("door", ["sync", "async", "loop left open"])
def test_a_program_that_ends_tells_first_what_is_pending(tmp_path: Path, door: str) -> None:
    """And where it cannot be acknowledged any more, it is told again; a program always ends."""
    log = tmp_path / "log"
    log.touch()
    assert run_program("-c", CHILD, str(tmp_path / "chat.db"), str(log), door) == "done\n"
    found = [json.loads(line) for line in log.read_text().splitlines()]
    names = sorted(name for _, messages in found for name in messages)
    assert names == sorted(n for i in range(5) for n in (f"h.t{i}", f"a.t{i}.{3 * i + 1}"))

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.store.sqlite import SqliteStore

    told = Told()
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "chat.db")) as inner,
        SqliteStore.from_conn_string(str(tmp_path / "chat.db")) as store,
    ):
        saver = ReducingSaver(inner, AT_ONCE, archive=StoreArchive(store), on_evict=[told])
        saver.deliver()
    if door == "sync":
        assert told.ids == [], "what was told at the end was acknowledged"
    assert {event.segment for event in told.events} <= {segment for segment, _ in found}


FORKING = """
import os, sys, threading, time
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from memory.houses import Listing, ask, ids, summaries, talk, thread_config
from reducing_saver import Background, ReducingSaver, StoreArchive, Summary, Window

gate, told, window = threading.Event(), [], Window(("messages", 2), ("messages", 4))

def hook(eviction):
    gate.wait()
    told.extend(m.id for m in eviction.messages)

class Slow(Listing):
    def __call__(self, messages, previous):
        gate.wait()
        return super().__call__(messages, previous)

what = sys.argv[1]
options = {"on_evict": [Background(hook)]}
if what == "summary":
    summary = Summary(Slow(), max_tokens=9_999, max_input_tokens=99_999, background=True)
    options = {"summary": summary}
archive = StoreArchive(InMemoryStore())
saver = ReducingSaver(InMemorySaver(), window, archive=archive, **options)
graph = talk().compile(checkpointer=saver)
config = thread_config()

def play(labels):
    for label in labels:
        graph.invoke(ask(label), config)

play("abc")
child = os.fork()
if child == 0:
    gate.set()
    if what == "summary":
        play("d")
        while saver.stats().summaries < 1:
            time.sleep(0.01)
        play("e")
        messages = saver.inner.get(config)["channel_values"]["messages"]
        print(summaries(messages)[0].split()[-6:], len(ids(messages)), flush=True)
    else:
        play("de")
        saver.close()
        print(told, flush=True)
    sys.exit()  # and what is registered to be done at the end is done
_, status = os.waitpid(child, 0)
gate.set()
saver.close()
print("parent", len(told), status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize("what", ["hook", "summary"])
def test_a_forked_process_does_what_it_begins_and_ends(what: str) -> None:
    """None of its parent's threads is alive in it: it neither waits for them nor leaves to them."""
    child, parent = run_program("-W", "ignore", "-c", FORKING, what).splitlines()
    names = ["h.a", "a.a.1", "h.b", "a.b.4", "h.c", "a.c.7", "h.d", "a.d.10"]
    if what == "hook":
        assert (child, parent) == (str(names), "parent 4 0")
    else:
        assert (child, parent) == (f"{names[:6]} 4", "parent 0 0")


def test_many_threads_at_once(house: House) -> None:
    """Puts from many threads of a pool, or tasks of a loop: each message once."""
    told = Told()
    lock = threading.Lock()

    def hook(eviction: Eviction) -> None:
        with lock:
            told(eviction)

    saver = house.saver(AT_ONCE, on_evict=[Background(hook, workers=4)])
    graph = talk().compile(checkpointer=saver)
    configs = [thread_config() for _ in range(6)]
    turns = range(4)

    if house.door.name == "async":

        async def chat(config: Any) -> None:
            for i in turns:
                await graph.ainvoke(ask(f"t{i}"), config)

        async def all_of_them() -> None:
            await asyncio.gather(*map(chat, configs))

        house.door.run(all_of_them())
    else:

        def chat_now(config: Any) -> None:
            for i in turns:
                graph.invoke(ask(f"t{i}"), config)

        threads = [threading.Thread(target=chat_now, args=(config,)) for config in configs]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    close(house, saver)
    house.door.call(house.saver(on_evict=[told]), "deliver")

    for config in configs:
        mine = [m.id for e in told.events if e.thread == name_of(config) for m in e.messages]
        assert sorted(mine) == sorted(evicted(house, config))
