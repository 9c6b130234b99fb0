"""The cases from public reports that are about memory, through real graphs: C05, C30-33, C40-43.

As a campaign, more examples of the properties: REDUCING_TEST_CAMPAIGN=1.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from memory.houses import (
    FILES,
    WINDOW,
    AsyncTold,
    House,
    Listing,
    State,
    Told,
    ask,
    covered,
    ids,
    listing,
    said,
    summaries,
    talk,
    thread_config,
)

from reducing_saver import (
    ConfigurationError,
    ReducingSaver,
    StoreArchive,
    Summary,
    SummaryError,
    Window,
)
from reducing_saver.engine import problems
from reducing_saver.engine.messages import is_summary

pytestmark = pytest.mark.campaign

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
EXAMPLES = 2_000 if CAMPAIGN else 60


def play(house: House, saver: Any, config: Any, *turns: tuple[str, int]) -> Any:
    graph = talk().compile(checkpointer=saver)
    for label, rounds in turns:
        house.door.invoke(graph, ask(label, rounds), config)
    return graph


# C05: a thread is deleted while a write of it is on its way


def test_c05_a_late_write_does_not_bring_back_a_deleted_thread(house: House) -> None:
    thread = "c05"
    told, summary = Told(), listing()[1]
    saver = house.saver(on_evict=[told], summary=summary)
    graph = play(house, saver, thread_config(thread), *[(f"c05canary{i}", 1) for i in range(5)])
    last = house.door.get_state(graph, thread_config(thread)).config
    assert told.ids
    assert b"c05canary1" in house.dump()
    before = len(told.events)

    house.door.delete_thread(saver, thread)
    assert b"c05canary" not in house.dump()
    late = ToolMessage("late", tool_call_id="x", id="late")
    house.door.put_writes(saver, last, [("messages", [late])], "task")
    house.door.call(saver, "deliver")
    house.door.call(house.saver(on_evict=[told], summary=summary), "deliver")

    assert house.rows(thread) == []
    assert b"c05canary" not in house.dump()
    assert house.transcript(saver, thread_config(thread)) == []
    assert len(told.events) == before


def test_c05_a_hook_that_failed_is_not_told_of_a_deleted_thread(house: House) -> None:
    told = Told(failures=1_000)
    saver = house.saver(on_evict=[told])
    config = thread_config()
    thread = config["configurable"]["thread_id"]
    play(house, saver, config, *[(f"t{i}", 1) for i in range(4)])
    told.failures = 0

    house.door.delete_thread(saver, thread)
    house.door.call(saver, "deliver")
    play(house, saver, config, ("new", 0))

    assert told.events == []


# C30: the summariser fails


def raises(messages: Any, previous: Any) -> str:
    raise RuntimeError("the provider is down")


def says_nothing(messages: Any, previous: Any) -> str:
    return "  "


def is_late(messages: Any, previous: Any) -> str:
    time.sleep(0.4)
    return "late"


async def is_late_async(messages: Any, previous: Any) -> str:
    await asyncio.sleep(5)
    return "late"


def refuses(messages: Any, previous: Any) -> str:
    raise SummaryError("it would not", "refused")


WHY = {
    raises: "RuntimeError in raises",
    says_nothing: "the summariser returned an empty text",
    refuses: "SummaryError in refuses",
}


@pytest.mark.parametrize("fails", WHY)
@pytest.mark.parametrize("how", ["keep", "evict", "in the background"])
@pytest.mark.parametrize("house", ["memory-sync", "memory-async"], indirect=True)
def test_c30_the_log_says_what_failed_and_where(
    house: House, fails: Any, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def write(messages: Any, previous: Any) -> str:
        try:
            return str(fails(messages, previous))
        finally:
            done.set()

    background, on_failure = how == "in the background", "evict" if how == "evict" else "keep"
    summary = Summary(write, background=background, on_failure=on_failure)  # type: ignore[arg-type]
    saver = house.saver(summary=summary)
    config = thread_config("named")
    play(house, saver, config, *[(f"t{i}", 0) for i in range(4)])
    assert done.wait(20)
    while not saver.stats().summary_failures:
        time.sleep(0.01)

    ends = {
        "keep": f"failed ({WHY[fails]}); nothing leaves, it is tried again",
        "evict": f"failed ({WHY[fails]}); what leaves goes without one",
        "in the background": f"failed in the background ({WHY[fails]}); nothing has left for it",
    }
    said = {r.getMessage() for r in caplog.records if "summary" in r.getMessage()}
    assert said == {f"the summary of thread 'named' {ends[how]}"}
    assert "provider" not in caplog.text
    assert "it would not" not in caplog.text
    house.door.delete_thread(saver, "named")


@pytest.mark.parametrize("fails", [raises, says_nothing, is_late, is_late_async, refuses])
@pytest.mark.parametrize("house", ["memory-sync", "memory-async"], indirect=True)
def test_c30_a_summary_that_fails_evicts_nothing(house: House, fails: Any) -> None:
    broken = [False]
    good = Listing()

    async def answers(messages: Any, previous: Any) -> str:
        if not broken[0]:
            return good(messages, previous)
        if asyncio.iscoroutinefunction(fails):
            return await fails(messages, previous)
        # Not on the loop: what blocks it cannot be timed out.
        return await asyncio.to_thread(fails, messages, previous)

    summary = Summary(answers, timeout=0.2, max_tokens=100_000, max_input_tokens=1_000_000)
    window = Window(("messages", 4), ("messages", 10), ("messages", 40))
    saver = house.saver(window, summary=summary)
    config = thread_config()
    play(house, saver, config, *[(f"a{i}", 0) for i in range(7)])
    before = house.state(config)["messages"]
    assert covered(before)
    broken[0] = True
    failures = 0

    for i in range(8):
        play(house, saver, config, (f"b{i}", 0))
        now = house.state(config)["messages"]
        assert saver.stats().summary_failures >= failures
        assert now[0] == before[0], "the previous summary stays"
        assert now[: len(before)] == before, "and so does everything else"
        failures = saver.stats().summary_failures
    assert failures >= 2, "tried again on a later put"
    done = saver.stats().total

    broken[0] = False
    play(house, saver, config, ("c", 0))
    values = house.state(config)
    assert saver.stats().total.evicted > done.evicted
    assert covered(values["messages"]) + ids(values["messages"]) == values["log"]


def test_c30_on_every_store(house: House) -> None:
    calls = Counter[str]()

    def fails(messages: Any, previous: Any) -> str:
        calls["model"] += 1
        raise RuntimeError("down")

    saver = house.saver(Window(("messages", 4), ("messages", 10)), summary=Summary(fails))
    config = thread_config()
    play(house, saver, config, *[(f"t{i}", 0) for i in range(10)])

    values = house.state(config)
    assert ids(values["messages"]) == values["log"]
    assert len(values["log"]) == 20
    stats = saver.stats()
    assert stats.summary_failures == calls["model"] == 5, "once for each rest above the trigger"
    assert (stats.summaries, stats.total.evicted) == (0, 0)
    assert house.entries(config["configurable"]["thread_id"]) == []


# C31, C33, C40: properties. Any interleaving of turns, forks and processes


TURNS = st.tuples(st.just("turn"), st.integers(0, 4))
FORKS = st.tuples(st.just("fork"), st.integers(0, 60))
SCRIPTS = st.lists(
    st.one_of(
        TURNS,
        TURNS,
        FORKS,
        st.tuples(st.just("copy"), st.integers(0, 60)),
        st.tuples(st.just("replay"), st.integers(0, 60)),
        st.tuples(st.just("again"), st.integers(1, 10)),
        st.tuples(st.just("process"), st.just(0)),
    ),
    min_size=4,
    max_size=14,
)
WINDOWS = st.sampled_from(
    [
        WINDOW,
        Window(("messages", 2), ("messages", 3), ("messages", 5)),
        Window(("turns", 1), ("turns", 2), ("messages", 6)),
        Window(("messages", 4), ("messages", 4), ("messages", 8)),
    ]
)


class Interleaved:
    """One thread that goes on in every way there is, on a saver that is made anew at times."""

    def __init__(self, window: Window, *, hook: Any = None) -> None:
        self.inner, self.store = InMemorySaver(), InMemoryStore()
        self.window = window
        self.told = hook or Told()
        self.listing, self.summary = listing()
        self.config = thread_config("interleaved")
        self.tip = self.config
        self.labels = (f"q{i}" for i in itertools.count())
        self.stats: list[Any] = []
        self.process()

    def process(self, _: int = 0) -> None:
        self.saver = ReducingSaver(
            self.inner,
            self.window,
            archive=StoreArchive(self.store),
            summary=self.summary,
            on_evict=[self.told],
            strict=True,
        )
        self.stats.append(self.saver)
        self.graph = talk().compile(checkpointer=self.saver)

    def turn(self, rounds: int) -> None:
        self.graph.invoke(ask(next(self.labels), rounds), self.tip)
        self.tip = self.config

    def _past(self, number: int) -> Any:
        """Return a stored checkpoint of the root, newest first."""
        past = [*self.graph.get_state_history(self.config)]
        return past[number % len(past)].config if past else None

    def fork(self, number: int) -> None:
        """Go on from an older checkpoint with the next turn."""
        self.tip = self._past(number) or self.tip
        self.turn(number % 3)

    def copy(self, number: int) -> None:
        if past := self._past(number):
            self.graph.update_state(past, None, as_node="__copy__")

    def replay(self, number: int) -> None:
        if past := self._past(number):
            self.graph.invoke(None, past)

    def again(self, times: int) -> None:
        """Put what is stored again and again, as runs do that write nothing."""
        state = self.graph.get_state(self.config)
        if not state.values.get("messages"):
            return
        # Else it comes to rest now, and may be above the mark.
        settled = not state.next
        for _ in range(times):
            calls = len(self.listing.calls)
            self.graph.update_state(self.config, {"messages": []}, as_node="model")
            assert not settled or len(self.listing.calls) == calls, "nothing new: zero calls"
            settled = True

    def play(self, script: list[tuple[str, int]]) -> None:
        for name, number in script:
            getattr(self, name)(number)

    def stored(self) -> list[Any]:
        return [*self.inner.list(self.config)]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS, WINDOWS)
def test_c31_c33_every_evicted_message_is_summarised_once_on_its_line(
    script: list[tuple[str, int]], window: Window
) -> None:
    life = Interleaved(window)
    life.play(script)

    for found in life.stored():
        values = found.checkpoint["channel_values"]
        messages, log = values.get("messages", []), values.get("log", [])
        named = covered(messages)
        assert len(summaries(messages)) <= 1
        both = sorted(named + ids(messages))
        assert both == sorted(log), "covered + held = every message of the line, once"
    read = [name for call in life.listing.calls for name in call]
    assert all(life.listing.calls), "no call without anything new"
    evictions = sum(saver.stats().total.reductions for saver in life.stats)
    assert len(life.listing.calls) == evictions
    assert len(read) == sum(saver.stats().total.evicted for saver in life.stats)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Two forks let the same messages go, from between other neighbours.
@example(
    [("turn", 0), ("turn", 2), ("copy", 3), ("copy", 0), ("replay", 0)],
    Window(("messages", 2), ("messages", 3), ("messages", 5)),
)
# What is left of whole turns is just within the cap, and above it with its new summary.
@example(
    [("turn", 0), ("turn", 0), ("turn", 3), ("copy", 13), ("turn", 2), ("again", 1)],
    Window(("turns", 1), ("turns", 2), ("messages", 6)),
)
@given(SCRIPTS, WINDOWS)
def test_c40_each_message_reaches_a_hook_once(
    script: list[tuple[str, int]], window: Window
) -> None:
    life = Interleaved(window)
    life.play(script)
    life.saver.deliver()

    gone: set[str] = set()
    for found in life.stored():
        values = found.checkpoint["channel_values"]
        messages = values.get("messages", [])
        log = values.get("log", [])
        gone.update(set(log) - {*ids(messages)})
        assert ids(life.saver.transcript(found.config)) == log, "each line has its own past"
    # A fork may give another message the same id: that one is told as edited.
    told = Counter(
        message.id
        for event in life.told.events
        for place, message in enumerate(event.messages)
        if place not in event.edited
    )
    assert [name for name, times in told.items() if times > 1] == []
    assert {*life.told.ids} == gone


def test_c31_ten_identical_puts_make_no_call(house: House) -> None:
    """`[S, H, A(a), T(a) 90 % of the budget]`: passed, but there is nothing new to evict."""
    listed, summary = listing()
    saver = house.saver(
        Window(("tokens", 200), ("tokens", 300), ("tokens", 5_000)), summary=summary
    )
    config = thread_config()
    graph = play(house, saver, config, *[(f"t{i}", 0) for i in range(40)])
    call = {"name": "read", "args": {}, "id": "a"}
    huge = ToolMessage("word " * 1_500, tool_call_id="a", id="r")
    given = said(HumanMessage("h 0", id="h"), AIMessage("", id="a", tool_calls=[call]), huge)
    house.door.update_state(graph, config, given, as_node="model")
    before, list_before = len(listed.calls), house.state(config)["messages"]
    assert before
    assert [m.type for m in list_before][1:] == ["human", "ai", "tool"]
    assert is_summary(list_before[0])

    for _ in range(10):
        house.door.update_state(graph, config, {"messages": []}, as_node="model")
        assert house.state(config)["messages"] == list_before

    assert len(listed.calls) == before


def test_c33_super_steps_that_push_a_unit_out_cover_it_in_the_same_put(house: House) -> None:
    listed, summary = listing()
    window = Window(("messages", 4), ("messages", 5), ("messages", 6))
    saver = house.saver(window, summary=summary)
    config = thread_config()
    play(house, saver, config, ("a", 1), ("b", 12), ("c", 0))

    held = house.checkpoints(config["configurable"]["thread_id"])
    for found in held:
        values = found.checkpoint["channel_values"]
        messages = values.get("messages", [])
        # Not in this order: of a turn that is cut in its middle the human message stays.
        assert sorted(covered(messages) + ids(messages)) == sorted(values.get("log", []))
    assert len(listed.calls) >= 3
    assert len(house.state(config)["log"]) == 4 + 26 + 2


# C32: the model call of a put is nobody's business


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.models: list[Any] = []
        self.tokens: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.models.append(messages)

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)


def nested(model: Any) -> Any:
    """Build a graph whose subgraph calls a model; the subgraph has a memory of its own."""

    async def answer(state: State) -> dict[str, Any]:
        return said(await model.ainvoke(state["messages"]))

    def answer_now(state: State) -> dict[str, Any]:
        return said(model.invoke(state["messages"]))

    from langchain_core.runnables import RunnableLambda

    inner = StateGraph(State)
    inner.add_node("answer", RunnableLambda(answer_now, afunc=answer))
    inner.add_edge(START, "answer")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    return outer


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("house", ["memory-sync", "memory-async", *FILES[:2]], indirect=True)
def test_c32_no_token_and_no_callback_of_a_summary_reaches_the_run(
    house: House, durability: str
) -> None:
    summariser = FakeListChatModel(responses=["SUMMARY of it all"])
    speaker = FakeListChatModel(responses=["an answer"])
    heard = Heard()
    saver = house.saver(Window(("messages", 2), ("messages", 3)), summary=Summary(summariser))
    graph = nested(speaker).compile(checkpointer=saver)
    config = {**thread_config(), "callbacks": [heard]}
    streamed: list[Any] = []

    for i in range(6):
        streamed += house.door.stream(
            graph,
            ask(f"t{i}"),
            config,
            stream_mode=["messages", "updates", "custom", "tasks"],
            subgraphs=True,
            durability=durability,
        )

    assert saver.stats().summaries >= 3
    texts = "".join(
        part[2][0].content
        for part in streamed
        if part[1] == "messages" and not is_summary(part[2][0])
    )
    assert texts.count("an answer") >= 6
    chunks = [part for part in streamed if part[1] == "messages"]
    assert not any("SUMMARY" in str(part[2][0].content) for part in chunks)
    assert not any("SUMMARY" in token for token in heard.tokens)
    assert len(heard.models) == 6, "the speaker's calls, and no other"


async def test_c32_no_event_of_a_summary() -> None:
    summariser = FakeListChatModel(responses=["SUMMARY of it all"])
    saver = ReducingSaver(
        InMemorySaver(),
        Window(("messages", 2), ("messages", 3)),
        archive=StoreArchive(InMemoryStore()),
        summary=Summary(summariser),
    )
    graph = nested(FakeListChatModel(responses=["an answer"])).compile(checkpointer=saver)
    config = thread_config()
    starts = Counter[str]()
    for i in range(6):
        async for event in graph.astream_events(ask(f"t{i}"), config, version="v2"):
            starts[event["event"]] += 1
            if event["event"] == "on_chat_model_stream":
                assert "SUMMARY" not in event["data"]["chunk"].content
    assert saver.stats().summaries >= 3
    assert starts["on_chat_model_start"] == 6


# C40: one run of five super-steps, above the window


@pytest.mark.parametrize("make", [Told, AsyncTold])
def test_c40_puts_of_a_run_offer_it_again_and_it_is_told_once(house: House, make: Any) -> None:
    told = make()
    saver = house.saver(Window(("messages", 2), ("messages", 3), ("messages", 4)), on_evict=[told])
    config = thread_config()
    play(house, saver, config, ("a", 0), ("b", 0), ("c", 5), ("d", 2))

    values = house.state(config)
    gone = [name for name in values["log"] if name not in ids(values["messages"])]
    assert sorted(told.ids) == sorted(gone)
    assert len(house.entries(config["configurable"]["thread_id"])) == len(told.ids)
    assert saver.stats().total.evicted == len(told.ids)


# C41: the client sends its whole list each turn


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process a turn"])
def test_c41_a_client_that_resends_its_whole_list(house: House, restarts: bool) -> None:
    told = Told()
    config = thread_config()
    thread = config["configurable"]["thread_id"]
    window = Window(("messages", 2), ("messages", 2), ("messages", 40))
    saver = house.saver(window, on_evict=[told])
    builder = StateGraph(State)
    builder.add_node("answer", lambda s: said(AIMessage("a", id=f"a{s['messages'][-1].id[1:]}")))
    builder.add_edge(START, "answer")
    client: list[Any] = []

    for i in range(8):
        if restarts:
            saver = house.saver(window, on_evict=[told])
        client.append(HumanMessage(f"question {i}", id=f"h{i}"))
        graph = builder.compile(checkpointer=saver)
        house.door.invoke(graph, {"messages": [*client], "log": [client[-1].id]}, config)
        client.append(AIMessage("a", id=f"a{i}"))
        stored = [m.id for m in house.state(config)["messages"]]
        assert stored == [m.id for m in client][-len(stored) :]
        assert len(stored) <= 2

    everything = [m.id for m in client]
    assert told.ids == everything[:-2], "each once, in order"
    entries = house.entries(thread)
    assert len(entries) == len(told.ids)
    assert ids(house.transcript(saver, config)) == everything


def test_c41_new_messages_filters_what_a_client_resends(house: House) -> None:
    config = thread_config()
    saver = house.saver(Window(("messages", 2), ("messages", 2)))
    play(house, saver, config, *[(f"t{i}", 0) for i in range(5)])
    whole = house.transcript(saver, config)
    new = HumanMessage("new 0", id="h.new")

    for each in (saver, house.saver()):
        given = house.door.call(each, "new_messages", config, [*whole, new])
        assert [m.id for m in given] == ["h.new"]


# C42: a transcript for the user interface


@pytest.mark.parametrize("page_size", [1, 7, 100])
def test_c42_the_transcript_after_twelve_turns(house: House, page_size: int) -> None:
    config = thread_config()
    window = Window(("turns", 3), ("turns", 3), ("messages", 40))
    saver = house.saver(window, summary=listing()[1])
    play(house, saver, config, *[(f"t{i}", i % 3) for i in range(12)])
    values = house.state(config)
    assert summaries(values["messages"])

    for each in (saver, house.saver(window)):
        found = house.transcript(each, config, page_size=page_size)
        assert [m.id for m in found] == values["log"]
        assert not any(map(is_summary, found))
    assert problems(values["messages"]) == ()


# C43: what is encrypted stays encrypted


class Reversing:
    """A cipher that nobody should use, but which hides what it is given."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversing"
        return bytes(byte ^ 0x5A for byte in ciphertext)


def encrypting(house: House) -> Any:
    """Open the house's saver again, with a serializer that encrypts."""
    from services.savers import open_saver

    if house.kind.startswith("memory"):
        inner = type(house.inner)()
        inner.serde = EncryptedSerializer(Reversing(), inner.serde)
        return inner
    inner = open_saver(house.kind, house.door, house.stores, "house")
    inner.serde = EncryptedSerializer(Reversing(), inner.serde)
    return inner


@pytest.mark.parametrize("with_summary", [False, True], ids=["archive", "archive and summary"])
def test_c43_a_canary_is_in_no_row_in_plain_text(house: House, with_summary: bool) -> None:
    canary = f"canary{int(with_summary)}of{house.kind}"
    inner = encrypting(house)
    told = Told(failures=2)
    summary = Summary(lambda messages, previous: f"all about {canary}") if with_summary else None
    saver = house.saver(inner=inner, summary=summary, on_evict=[told])
    config = thread_config()
    thread = config["configurable"]["thread_id"]
    builder = StateGraph(State)
    builder.add_node("say", lambda s: said(AIMessage(f"{canary}!", id=f"a.{len(s['log'])}")))
    builder.add_edge(START, "say")
    graph = builder.compile(checkpointer=saver)
    for i in range(8):
        house.door.invoke(graph, said(HumanMessage(f"say {canary}", id=f"h{i}")), config)
    for _ in range(2):
        house.door.call(saver, "deliver")

    assert house.entries(thread)
    assert told.ids
    rows = repr([(item.namespace, item.key, item.value) for item in house.rows(thread)])
    assert canary not in rows
    if not house.kind.startswith("memory"):
        assert canary.encode() not in house.dump()
    found = house.transcript(saver, config)
    assert sum(canary in m.content for m in found) == 16, "and it is read back"


def test_c43_an_index_in_plain_text_is_refused(house: House) -> None:
    archive = StoreArchive(house.store, index_text=True)
    with pytest.raises(ConfigurationError, match="index_text"):
        house.saver(inner=encrypting(house), archive=archive)
    assert house.saver(archive=archive)
