"""A hook that goes on failing: how often it is called, what waits meanwhile, what the log says."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from memory.houses import Clock, House, Told, ask, talk, thread_config, ticking

from reducing_saver import Background, Discard, Eviction, ReducingSaver, StoreArchive, Window
from reducing_saver._ledger import FIRST_PAUSE, LONGEST_PAUSE, Ledger, Tried
from reducing_saver._segment import Segment, Span

AT_ONCE = Window(("messages", 2), ("messages", 2), ("messages", 40))
MEMORY = ["memory-sync", "memory-async"]


def play(house: House, saver: Any, config: Any, *labels: str) -> None:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label), config)


class Failing(Told):
    """A hook that fails until it is mended, and counts its calls."""

    def __init__(self) -> None:
        super().__init__(failures=1_000_000)
        self.calls: list[str] = []

    def __call__(self, eviction: Eviction) -> None:
        self.calls.append(eviction.segment)
        super().__call__(eviction)

    def mend(self) -> None:
        self.failures = 0


def segment(number: int, thread: str = "a") -> Segment:
    span = Span((f"m{number}.0",), None, None)
    return Segment(
        id=f"s{number}",
        previous=None,
        thread=thread,
        namespace="",
        channel="messages",
        checkpoint=f"c{number}",
        why="window",
        memory_namespace=("memories", thread),
        spans=(span,),
    )


def ledger() -> tuple[Ledger, Clock]:
    made, clock = Ledger(), Clock()
    made.clock = clock
    return made, clock


def tries(book: Ledger, *fresh: Segment, asked: bool = False) -> list[Segment]:
    """Take and start what a thread may hand over now."""
    return book.start(book.take("a", fresh, asked=asked) or [])


# The ledger alone


def test_pauses_double_up_to_the_longest() -> None:
    book, clock = ledger()
    one = segment(1)
    [started] = tries(book, one)
    pauses = [book.fail(started)]
    for _ in range(12):
        clock.move(pauses[-1] - 0.001)
        assert book.take("a", ()) is None, "still in the pause"
        clock.move(0.001)
        [again] = tries(book)
        pauses.append(book.fail(again))
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-2:] == [LONGEST_PAUSE] * 2


def test_one_put_tries_a_thread_in_a_pause() -> None:
    book, clock = ledger()
    book.fail(*tries(book, segment(1)))
    clock.move(FIRST_PAUSE)
    assert tries(book) == [segment(1)]
    assert book.take("a", [segment(2)]) is None, "another put, while the first one tries"
    assert book.take("b", [segment(3, "b")]) == [segment(3, "b")], "another thread waits for nobody"
    book.finish(segment(1))
    assert tries(book) == [segment(2)]


def test_what_failed_beside_a_failure_begins_no_other_pause() -> None:
    book, _ = ledger()
    first, second, third = tries(book, segment(1), segment(2), segment(3))
    assert book.fail(second) == FIRST_PAUSE
    assert book.fail(first) is None
    book.finish(third)
    assert book.pauses("a"), "it was with a hook since before the failure, and says nothing"
    assert tries(book, asked=True) == [segment(1), segment(2)], "the oldest first"


def test_who_asks_does_not_wait_and_a_failure_makes_the_pause_longer() -> None:
    book, clock = ledger()
    book.fail(*tries(book, segment(1)))
    assert book.take("a", [segment(2)]) is None
    first, second = tries(book, asked=True)
    assert book.fail(first) == 2 * FIRST_PAUSE
    book.put_back([second])
    clock.move(FIRST_PAUSE)
    assert book.take("a", ()) is None
    clock.move(FIRST_PAUSE)
    assert tries(book) == [first, second]


def test_a_failure_to_find_out_what_waits_pauses_too() -> None:
    book, clock = ledger()
    assert book.fail_thread("a") == FIRST_PAUSE
    assert book.take("a", [segment(1)]) is None
    clock.move(FIRST_PAUSE)
    assert tries(book) == [segment(1)]
    book.finish(segment(1))
    assert not book.pauses("a")
    book.fail_thread("a")
    clock.move()
    assert tries(book) == []
    book.recover("a")
    assert not book.pauses("a")


def test_what_was_tried_is_known_until_it_is_taken() -> None:
    book, _ = ledger()
    first, second = tries(book, segment(1), segment(2))
    assert book.tried(first) is None
    book.fail(first, Tried(first.keys, frozenset({0})))
    book.put_back([second])
    assert book.tried(first) == Tried(first.keys, frozenset({0}))
    assert book.tried(second) is None, "it waited, and was not handed over"
    tries(book, asked=True)
    book.cut_off([first, second])
    assert book.tried(first) == Tried(first.keys, frozenset({0}))
    tries(book, asked=True)
    book.finish(first)
    assert book.tried(first) is None


def test_of_a_deleted_thread_nothing_waits() -> None:
    book, _ = ledger()
    first, second = tries(book, segment(1), segment(2))
    book.forget_thread("a")
    assert book.fail(first, Tried()) is None
    book.put_back([second])
    book.cut_off([second])
    assert (book.take("a", ()), book.pauses("a"), book.tried(first)) == ([], False, None)


def test_a_forked_process_begins_anew() -> None:
    book, clock = ledger()
    book.fail(*tries(book, segment(1)))
    book.renew()
    assert book.take("a", ()) == []
    assert book.clock is clock


# Through graphs


def test_a_hook_that_goes_on_failing_is_called_once_a_pause(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    hook, clock, config = Failing(), Clock(), thread_config()
    saver = house.saver(AT_ONCE, on_evict=[hook], clock=clock)
    play(house, saver, config, *"abcdef")
    assert len(hook.calls) == 1
    for seconds in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        clock.move(seconds)
        play(house, saver, config, f"g{seconds:g}", f"h{seconds:g}")
    assert len(hook.calls) == 4
    assert len({*hook.calls}) == 1, "the first one that waits, and none behind it"
    said = [r.getMessage() for r in caplog.records if "failed on segment" in r.getMessage()]
    assert [f"in {n} s" in line for n, line in zip((1, 2, 4, 8), said, strict=True)] == [True] * 4
    stats = saver.stats()
    assert (stats.delivery_failures, stats.delivery_retries) == (4, 3)
    assert stats.hook_failures == {"Failing": 4}
    assert stats.delivered == 0

    hook.mend()
    clock.move()
    play(house, saver, config, "last")
    values = house.state(config)
    held = {m.id for m in values["messages"]}
    assert hook.ids == [name for name in values["log"] if name not in held], "each once, in order"
    stats = saver.stats()
    assert stats.delivered == len(hook.events) > 6
    assert (stats.delivery_failures, stats.delivery_retries) == (4, 4), "one was tried before"
    play(house, saver, config, "then")
    assert saver.stats().delivered == len(hook.events), "at once again"
    assert hook.ids[-2] == "h.last"


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_deliver_does_not_wait_for_a_pause(house: House) -> None:
    hook, config = Failing(), thread_config()
    saver = house.saver(AT_ONCE, on_evict=[hook], clock=Clock())
    play(house, saver, config, *"abcd")
    house.door.call(saver, "deliver")
    assert len(hook.calls) == 2
    hook.mend()
    house.door.call(saver, "deliver")
    assert hook.ids == ["h.a", "a.a.1", "h.b", "a.b.4", "h.c", "a.c.7"]
    play(house, saver, config, "e")
    assert hook.ids[-2:] == ["h.d", "a.d.10"], "nothing is outstanding"


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_what_a_hook_can_never_take_is_named_and_let_pass(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    told, let_pass, config = Told(), set[str](), thread_config()

    def picky(eviction: Eviction) -> None:
        if eviction.segment in let_pass:
            return
        if any(message.id == "h.b" for message in eviction.messages):
            raise ValueError("secret")
        told(eviction)

    saver = house.saver(AT_ONCE, on_evict=[picky], clock=Clock())
    play(house, saver, config, *"abcde")
    house.door.call(saver, "deliver")
    assert told.ids == ["h.a", "a.a.1"]
    (hook,) = saver.stats().hook_failures
    assert hook.endswith("picky")
    said = [r.getMessage() for r in caplog.records if hook in r.getMessage()][-1]
    assert config["configurable"]["thread_id"] in said
    assert "secret" not in said

    let_pass.add(said.rpartition("failed on segment ")[2])
    house.door.call(saver, "deliver")
    assert told.ids == ["h.a", "a.a.1", "h.c", "a.c.7", "h.d", "a.d.10"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_another_thread_does_not_wait(house: House) -> None:
    hook, one, other = Failing(), thread_config(), thread_config()
    saver = house.saver(AT_ONCE, on_evict=[hook], clock=Clock())
    play(house, saver, one, *"ab")
    hook.mend()
    play(house, saver, other, *"ab")
    play(house, saver, one, "c")
    assert [e.thread for e in hook.events] == [other["configurable"]["thread_id"]]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_new_process_tries_at_the_first_put(house: House) -> None:
    hook, config = Failing(), thread_config()
    play(house, house.saver(AT_ONCE, on_evict=[hook], clock=Clock()), config, *"abc")
    hook.mend()
    play(house, house.saver(AT_ONCE, on_evict=[hook], clock=Clock()), config, "d")
    assert hook.ids == ["h.a", "a.a.1", "h.b", "a.b.4", "h.c", "a.c.7"]


def test_a_background_hook_that_goes_on_failing_is_called_once_a_pause() -> None:
    hook, clock, config = Failing(), Clock(), thread_config()
    background = Background(hook, workers=1)
    archive = StoreArchive(InMemoryStore())
    made = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[background])
    saver = ticking(made, clock)
    graph = talk().compile(checkpointer=saver)
    for label in "abc":
        graph.invoke(ask(label), config)
        background.drain()
    assert len(hook.calls) == 1
    for number in range(2, 5):
        clock.move()
        for label in "de":
            graph.invoke(ask(f"{label}{number}"), config)
            background.drain()
        assert len(hook.calls) == number
    hook.mend()
    clock.move()
    graph.invoke(ask("f"), config)
    background.drain()
    graph.invoke(ask("g"), config)
    saver.close()
    assert hook.ids == saver.inner.get(config)["channel_values"]["log"][:-2]  # type: ignore[index]


class Away(StoreArchive):
    """An archive that does not say what waits, and counts who asks."""

    asked = 0

    def undelivered(self, thread: str) -> Any:
        self.asked += 1
        raise OSError("secret: the archive is away")


def test_an_archive_that_is_away_is_asked_once_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    told, clock, config = Told(), Clock(), thread_config()
    archive = Away(InMemoryStore())
    made = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[told])
    graph = talk().compile(checkpointer=ticking(made, clock))
    for label in "abcd":
        graph.invoke(ask(label), config)
    assert archive.asked == 1
    clock.move(FIRST_PAUSE)
    graph.invoke(ask("e"), config)
    assert archive.asked == 2
    lines = [r.getMessage() for r in caplog.records if "waits" in r.getMessage()]
    assert len(lines) == 2
    assert all("OSError in Away.undelivered" in line for line in lines)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_without_an_archive_there_is_no_pause(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Failing()
    saver = house.saver(AT_ONCE, archive=Discard(), on_evict=[hook], clock=Clock())
    with caplog.at_level(logging.WARNING, logger="reducing_saver"):
        play(house, saver, thread_config(), *"abcd")
    assert len(hook.calls) == len({*hook.calls}) == 3
    said = [r.getMessage() for r in caplog.records if "failed on segment" in r.getMessage()]
    assert len(said) == 3
    assert all("is not told again" in line for line in said)


def test_puts_of_many_pool_threads_try_once_a_pause() -> None:
    hook, clock, config = Failing(), Clock(), thread_config()
    archive = StoreArchive(InMemoryStore())
    made = ReducingSaver(InMemorySaver(), AT_ONCE, archive=archive, on_evict=[hook])
    delivery = ticking(made, clock)._delivery
    graph = talk().compile(checkpointer=made)
    for label in "abc":
        graph.invoke(ask(label), config)
    thread = config["configurable"]["thread_id"]
    for number in range(1, 6):
        assert len(hook.calls) == number
        clock.move()
        puts = [
            threading.Thread(target=delivery.after_put, args=(thread, [], made.inner.get_tuple))
            for _ in range(8)
        ]
        for one in puts:
            one.start()
        for one in puts:
            one.join()
