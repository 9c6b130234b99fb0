"""Large contents in real graphs: stored as excerpts, kept whole in the archive, read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from memory.houses import House, Told, thread_config
from savers.scenarios import Line

from reducing_saver import (
    ConfigurationError,
    Discard,
    Excerpt,
    HeadTail,
    Hosted,
    Nearest,
    ReducingSaver,
    StoreArchive,
    Task,
    Window,
    Words,
)
from reducing_saver.engine.excerpt import is_cut, whole_key
from reducing_saver.engine.messages import is_summary

SOME = pytest.mark.parametrize(
    "house",
    ["memory-async", "memory_int-sync", "sqlite-sync", "aiosqlite-async", "postgres-sync"],
    indirect=True,
)
ONE = pytest.mark.parametrize("house", ["sqlite-sync", "aiosqlite-async"], indirect=True)
WIDE = Window(("messages", 500), ("messages", 1_000))
COUNT = WIDE.sizes("tokens").of
BYTES = 300_000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 20_000}}


def lines(label: str, size: int = BYTES) -> str:
    return "".join(f"{label} {i} holds nothing of note\n" for i in range(size // 32))


def records(label: str) -> str:
    return json.dumps([{"of": label, "id": i, "ok": True} for i in range(BYTES // 40)])


class Unwritable:
    """What no serializer writes."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be written")


CONTENTS: dict[str, Any] = {
    "text": lambda label: {"content": lines(label)},
    "json": lambda label: {"content": records(label)},
    "blocks": lambda label: {"content": [{"type": "text", "text": lines(label)}, "and so on"]},
    "images": lambda label: {"content": [{"type": "text", "text": lines(label)}, IMAGE]},
    "artifact": lambda label: {"content": lines(label), "artifact": Unwritable()},
}


def agent(kind: str = "text", *, asks: bool = False) -> Any:
    """Build a graph that makes as many calls as the question says, one by one, then answers."""

    def model(state: MessagesState) -> Any:
        messages = state["messages"]
        start = max(i for i, m in enumerate(messages) if m.type == "human" and not is_summary(m))
        label, rounds = messages[start].content.split()[:2]
        done = len([m for m in messages[start:] if m.type == "tool"])
        if done == int(rounds):
            return {"messages": AIMessage(f"answer {label}", id=f"a.{label}")}
        call = {"name": "read", "args": {"of": label}, "id": f"c.{label}.{done}"}
        return {"messages": AIMessage("", tool_calls=[call], id=f"a.{label}.{done}")}

    def tools(state: MessagesState) -> Any:
        call = state["messages"][-1].tool_calls[0]["id"]
        if asks:
            interrupt("go on?")
        result = ToolMessage(**CONTENTS[kind](call), tool_call_id=call, name="read", id=f"t{call}")
        return {"messages": result}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    builder.add_edge("tools", "model")
    return builder


def play(house: House, saver: Any, config: Any, *asked: str, kind: str = "text") -> Any:
    graph = agent(kind).compile(checkpointer=saver)
    for said in asked:
        given = {"messages": HumanMessage(said, id=f"h.{said.split()[0]}")}
        house.door.invoke(graph, given, config)
    return graph


def listed(house: House, config: Any) -> list[Any]:
    return house.state(config)["messages"]


def results(messages: Sequence[Any]) -> list[Any]:
    return [m for m in messages if m.type == "tool"]


@SOME
@pytest.mark.parametrize("kind", CONTENTS)
def test_a_large_result_is_stored_as_an_excerpt(house: House, kind: str) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(1_000, artifact="drop"))
    play(house, saver, config, "one 2", kind=kind)
    stored = listed(house, config)
    assert [m.id for m in stored] == [
        "h.one", "a.one.0", "tc.one.0", "a.one.1", "tc.one.1", "a.one",
    ]  # fmt: skip
    for message in results(stored):
        assert COUNT(message) <= 1_000
        assert is_cut(message)
        key = whole_key(message)
        assert key is not None
        whole = house.door.call(saver, "original", config, key)
        assert whole.content == CONTENTS[kind](message.tool_call_id)["content"]
        assert (whole.id, whole.tool_call_id) == (message.id, message.tool_call_id)
        if kind == "json":
            assert json.loads(message.content)[0] == json.loads(whole.content)[0]
        if kind == "images":
            assert message.content[1] == IMAGE
    told = house.transcript(saver, config)
    assert [m.content for m in results(told)] == [
        CONTENTS[kind](f"c.one.{i}")["content"] for i in range(2)
    ]
    total = saver.stats().total
    assert total.excerpted == 2
    assert total.tokens_saved > 100_000
    assert total.failures == 0


@SOME
def test_the_newest_results_stay_whole_while_their_turn_runs(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(500, spare_last=2))
    play(house, saver, config, "one 5")
    for found in house.checkpoints(config["configurable"]["thread_id"])[1:]:
        cut = [is_cut(m) for m in results(found.checkpoint["channel_values"].get("messages", []))]
        assert cut == [True] * max(0, len(cut) - 2) + [False] * min(2, len(cut))
    assert all(map(is_cut, results(listed(house, config))))
    assert saver.stats().total.excerpted == 5


@SOME
def test_a_run_sees_what_it_has_and_the_next_one_what_is_stored(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(500))
    graph = agent().compile(checkpointer=saver)
    given = {"messages": HumanMessage("one 2", id="h.one")}
    values = house.door.invoke(graph, given, config)
    assert not any(map(is_cut, results(values["messages"])))
    values = house.door.invoke(graph, {"messages": HumanMessage("two 0", id="h.two")}, config)
    assert all(map(is_cut, results(values["messages"])))
    keys = [whole_key(m) for m in results(listed(house, config))]
    play(house, saver, config, "three 0")
    assert [whole_key(m) for m in results(listed(house, config))] == keys
    assert saver.stats().total.excerpted == 2


@SOME
def test_what_is_evicted_later_is_archived_and_told_whole(house: House) -> None:
    """M2: the archive, hooks and transcripts have full messages, whatever was stored."""
    config, told = thread_config(), Told()
    window = Window(("turns", 1), ("turns", 2))
    saver = house.saver(window, excerpt=Excerpt(500), on_evict=[told])
    play(house, saver, config, "one 1", "two 1", "three 1")
    assert [m.id for m in results(listed(house, config))] == ["tc.three.0"]
    evicted = [m for event in told.events for m in event.messages if m.type == "tool"]
    assert [m.content for m in evicted] == [lines("c.one.0"), lines("c.two.0")]
    whole = house.transcript(saver, config)
    assert [m.content for m in results(whole)] == [
        lines(f"c.{label}.0") for label in ("one", "two", "three")
    ]
    fresh = house.saver(window, excerpt=Excerpt(500))
    assert house.transcript(fresh, config) == whole
    keys = house.entries(config["configurable"]["thread_id"])
    assert len(keys) == len(set(keys)) == 9


@ONE
def test_an_archive_that_lost_a_whole_gets_the_excerpt(house: House) -> None:
    config = thread_config()
    window = Window(("turns", 1), ("turns", 2))
    lost = house.saver(window, excerpt=Excerpt(500), archive=Discard())
    other = house.saver(window, excerpt=Excerpt(500))
    play(house, other, config, "one 1")
    thread = config["configurable"]["thread_id"]
    house.door.call(StoreArchive(house.store), "delete_thread", thread)
    play(house, other, config, "two 0", "three 0")
    (message,) = results(house.transcript(other, config))
    assert is_cut(message)
    with pytest.raises(ConfigurationError, match="archive"):
        house.door.call(lost, "original", config, "key")
    assert house.door.call(other, "original", config, "nothing") is None


@SOME
def test_an_interrupted_run_goes_on_with_excerpts(house: House) -> None:
    config = thread_config()
    from langgraph.types import Command

    saver = house.saver(WIDE, excerpt=Excerpt(500, spare_last=1, writes=True))
    graph = agent(asks=True).compile(checkpointer=saver)
    house.door.invoke(graph, {"messages": HumanMessage("one 3", id="h.one")}, config)
    for _ in range(3):
        values = house.door.invoke(graph, Command(resume="yes"), config)
    assert values["messages"][-1].content == "answer one"
    stored = results(listed(house, config))
    assert len(stored) == 3
    assert all(map(is_cut, stored))
    whole = results(house.transcript(saver, config))
    assert [m.content for m in whole] == [lines(f"c.one.{i}") for i in range(3)]


@ONE
def test_writes_are_cut_where_asked_for(house: House) -> None:
    for writes in (False, True):
        config = thread_config()
        saver = house.saver(WIDE, excerpt=Excerpt(500, writes=writes))
        play(house, saver, config, "one 1")
        pending = [
            value
            for found in house.checkpoints(config["configurable"]["thread_id"])
            for _, channel, value in found.pending_writes
            if channel == "messages"
        ]
        tools = [m for value in pending for m in (value if isinstance(value, list) else [value])]
        (written,) = results(tools)
        assert is_cut(written) is writes
        (stored,) = results(listed(house, config))
        assert whole_key(written) == (whole_key(stored) if writes else None)


@SOME
def test_writes_of_messages_without_ids_are_cut_too(house: House) -> None:
    """LangGraph gives ids when it applies writes: whether a write has one yet is a matter of time.

    The write's whole has a key of its own; the transcript still has each message once, whole.
    """
    from langgraph.types import Command

    def ask(state: MessagesState) -> Any:
        return {"messages": HumanMessage(str(interrupt("go on?")), id="said")}

    def look(state: MessagesState) -> Any:
        return {"messages": ToolMessage(lines("c"), tool_call_id="c", name="read")}

    def call(state: MessagesState) -> Any:
        calls = [{"name": "read", "args": {}, "id": "c"}]
        return {"messages": AIMessage("", tool_calls=calls, id="a")}

    builder = StateGraph(MessagesState)
    for node in (call, look, ask):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "call")
    builder.add_edge("call", "look")
    builder.add_edge("call", "ask")
    config, told = thread_config(), Told()
    window = Window(("turns", 1), ("turns", 2))
    saver = house.saver(window, excerpt=Excerpt(500, writes=True), on_evict=[told])
    house.door.invoke(
        builder.compile(checkpointer=saver), {"messages": HumanMessage("q", id="h")}, config
    )
    newest = house.checkpoints(config["configurable"]["thread_id"])[0]
    (written,) = [value for _, channel, value in newest.pending_writes if channel == "messages"]
    assert is_cut(written)
    fresh = house.saver(window, excerpt=Excerpt(500, writes=True), on_evict=[told])
    graph = builder.compile(checkpointer=fresh)
    house.door.invoke(graph, Command(resume="yes"), config)
    (stored,) = results(listed(house, config))
    assert whole_key(stored) == whole_key(written)
    assert stored.id
    whole = house.transcript(fresh, config)
    play(house, fresh, config, "two 0", "three 0", "four 0")
    assert not results(listed(house, config))
    assert house.transcript(fresh, config)[: len(whole)] == whole
    assert [m.content for m in results(whole)] == [lines("c")]
    evicted = [m for event in told.events for m in event.messages if m.type == "tool"]
    assert [(m.id, m.content) for m in evicted] == [(stored.id, lines("c"))]


@ONE
def test_writes_of_a_tool_that_is_never_cut_stay_whole(house: House) -> None:
    """The name of a tool may stand in the call alone, which is in no pending write."""
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(500, never=("read",), writes=True, artifact="drop"))
    graph = agent().compile(checkpointer=saver)
    house.door.invoke(graph, {"messages": HumanMessage("one 0", id="h.one")}, config)
    config = house.checkpoints(config["configurable"]["thread_id"])[0].config
    result = ToolMessage(lines("c"), tool_call_id="c", id="t", artifact={"rows": [1]})
    house.door.call(saver, "put_writes", config, [("messages", result)], "task")
    found = house.door.get_tuple(house.inner, config)
    assert [value for _, _, value in found.pending_writes] == [result]


# ------------------------------------------------------------------------ selectors in a put


@ONE
def test_words_keep_what_was_asked_for(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300), selector=Words())
    play(house, saver, config, "one 1 note c.one.0 4711")
    (message,) = results(listed(house, config))
    assert "one.0 4711 holds" in message.content
    (other,) = [thread_config()]
    saver = house.saver(WIDE, excerpt=Excerpt(300), selector=HeadTail())
    play(house, saver, other, "one 1 note c.one.0 4711")
    assert "one.0 4711 holds" not in results(listed(house, other))[0].content


def orders(customer: str) -> str:
    towns, goods = ("Rome", "Oslo", "Bern"), ("lamp", "chair", "desk", "sofa")
    return "".join(
        f"{customer} order {i}: {goods[i % 4]} shipped to {towns[i % 3]}\n" for i in range(60)
    )


def office() -> Any:
    """Build a graph that looks up orders where it is asked to, and else answers at once."""

    def model(state: MessagesState) -> Any:
        newest = state["messages"][-1]
        if newest.type == "human" and newest.content.startswith("look up "):
            args = {"customer": newest.content.split()[-1]}
            call = {"name": "orders", "args": args, "id": f"c.{newest.id}"}
            return {"messages": AIMessage("", tool_calls=[call], id=f"a.{newest.id}")}
        return {"messages": AIMessage("so", id=f"b.{newest.id}")}

    def tools(state: MessagesState) -> Any:
        call = state["messages"][-1].tool_calls[0]
        said = orders(call["args"]["customer"])
        return {"messages": ToolMessage(said, tool_call_id=call["id"], id=f"t{call['id']}")}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda s: "tools" if getattr(s["messages"][-1], "tool_calls", None) else END
    )
    builder.add_edge("tools", "model")
    return builder


@SOME
@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("what was shipped to Rome for ada?", "ada"),
        ("which one was the desk of bob?", "bob"),
        ("what about carl in Bern?", "carl"),
        ("thank you", "carl"),
    ],
)
def test_of_earlier_results_those_stay_that_answer(house: House, asked: str, answers: str) -> None:
    """`history_max_tokens` with `Words`: the others collapse to the line; all are kept whole."""
    config, size = thread_config(), COUNT(ToolMessage(orders("carl"), tool_call_id="c"))
    excerpt = Excerpt(4 * size, history_max_tokens=2 * size)
    saver = house.saver(WIDE, excerpt=excerpt, selector=Words())
    graph = office().compile(checkpointer=saver)

    def say(number: int, text: str) -> list[Any]:
        given = {"messages": HumanMessage(text, id=f"h{number}")}
        house.door.invoke(graph, given, config)
        return results(listed(house, config))

    names = ("ada", "bob", "carl")
    for number, name in enumerate(names[:2]):
        found = say(number, f"look up {name}")
    assert not any(map(is_cut, found))  # two together are within what they may have
    assert not any(map(is_cut, say(2, "look up carl")))  # and that of the newest turn is not older
    found = say(3, asked)
    collapsed = [m for m in found if m.content.startswith("...\n[excerpt: ")]
    assert len(collapsed) == 2
    (kept,) = (m for m in found if m not in collapsed)
    assert kept.content.startswith(f"{answers} order ")
    assert sum(map(COUNT, found)) <= 2 * size
    for name, message in zip(names, found, strict=True):
        whole = orders(name)
        if key := whole_key(message):
            whole = house.door.call(saver, "original", config, key).content
        assert whole == orders(name)
    assert say(4, "go on") == found
    assert [m.content for m in results(house.transcript(saver, config))] == [*map(orders, names)]
    total = saver.stats().total
    assert total.excerpted == sum(map(is_cut, found))
    assert total.tokens_saved > 1.9 * size - COUNT(kept)


def failing(text: str, task: Task) -> Any:
    raise ConnectionError("secret")


@ONE
def test_a_failing_selector_leaves_contents_whole(house: House, caplog: Any) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300), selector=Hosted(failing))
    play(house, saver, config, "one 2")
    assert not any(map(is_cut, results(listed(house, config))))
    stats = saver.stats()
    assert stats.selector_failures == {"failed": 2}
    assert (stats.total.excerpted, stats.total.failures) == (0, 0)
    assert "secret" not in caplog.text
    (said,) = [r.getMessage() for r in caplog.records if "selector" in r.getMessage()]
    assert "failed: ConnectionError in failing" in said, "once, and where"


class Says:
    """A selector that answers anything."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def rank(self, parts: Sequence[str], task: Task) -> Any:
        return self.answer

    async def arank(self, parts: Sequence[str], task: Task) -> Any:
        return self.answer


@ONE
@pytest.mark.parametrize("older", [None, 300], ids=["newest", "older too"])
@pytest.mark.parametrize(
    "answer", [None, 5, "0", {0: 1}, ["a"], [1.5], [[1]], [-1], [10**9], [True]], ids=repr
)
def test_an_answer_that_names_no_parts_leaves_contents_whole(
    house: House, answer: Any, older: int | None
) -> None:
    config = thread_config()
    excerpt = Excerpt(300, history_max_tokens=older)
    saver = house.saver(WIDE, excerpt=excerpt, selector=Says(answer))
    play(house, saver, config, "one 1", "two 0")
    assert not any(map(is_cut, results(listed(house, config))))
    stats = saver.stats()
    assert [*stats.selector_failures] == ["not understood"]
    assert (stats.total.excerpted, stats.total.failures) == (0, 0)


@ONE
def test_earlier_results_are_cut_where_nobody_says_which_answer(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300, never=("read",)))
    play(house, saver, config, "one 2")
    other = house.saver(WIDE, excerpt=Excerpt(300, history_max_tokens=400), selector=Says([2, 3]))
    play(house, other, config, "two 0")
    assert other.stats().selector_failures == {"not understood": 1}
    assert all(200 < COUNT(m) <= 300 for m in results(listed(house, config)))


@ONE
def test_a_service_that_is_late_is_asked_once_a_put(house: House) -> None:
    asked, config = [], thread_config()

    async def late(text: str, task: Task) -> Any:
        asked.append(task)
        await asyncio.sleep(60)

    play(house, house.saver(WIDE, excerpt=Excerpt(300, never=("read",))), config, "one 5")
    saver = house.saver(WIDE, excerpt=Excerpt(300), selector=Hosted(late, timeout=0.05))
    play(house, saver, config, "two 0")
    assert len(asked) == 1
    assert saver.stats().selector_failures == {"timed out": 5}
    assert not any(map(is_cut, results(listed(house, config))))


class ReadTimeoutError(Exception):
    """Say, as a client does with a class of its own, that an answer is late."""


class LateEmbeddings(Embeddings):
    """An embedding model whose client has a time-out."""

    def __init__(self) -> None:
        self.asked = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("the query comes first")

    def embed_query(self, text: str) -> list[float]:
        self.asked += 1
        raise ReadTimeoutError("secret")


@ONE
def test_an_embedding_model_that_is_late_is_asked_once_a_put(house: House, caplog: Any) -> None:
    late, config = LateEmbeddings(), thread_config()
    play(house, house.saver(WIDE, excerpt=Excerpt(300, never=("read",))), config, "one 5")
    saver = house.saver(WIDE, excerpt=Excerpt(300), selector=Nearest(late))
    play(house, saver, config, "two 0")
    assert late.asked == 1
    assert saver.stats().selector_failures == {"ReadTimeoutError": 5}
    assert not any(map(is_cut, results(listed(house, config))))
    assert "secret" not in caplog.text


class Refusing(StoreArchive):
    """An archive that takes no wholes."""

    refuses = True

    def keep(self, *args: Any) -> None:
        if self.refuses:
            raise OSError("secret: full")
        super().keep(*args)

    async def akeep(self, *args: Any) -> None:
        if self.refuses:
            raise OSError("secret: full")
        await super().akeep(*args)


@ONE
def test_a_failing_archive_leaves_contents_whole(house: House, caplog: Any) -> None:
    config, archive = thread_config(), Refusing(house.store)
    saver = house.saver(WIDE, excerpt=Excerpt(300), archive=archive)
    play(house, saver, config, "one 1")
    assert not any(map(is_cut, results(listed(house, config))))
    assert saver.stats().archive_failures >= 1
    assert "secret" not in caplog.text
    for strict in (False, True):
        other = house.saver(WIDE, excerpt=Excerpt(300, writes=True), archive=archive, strict=strict)
        play(house, other, written := thread_config(), "one 1")
        pending = house.checkpoints(written["configurable"]["thread_id"])
        assert not any(is_cut(v) for found in pending for _, _, v in found.pending_writes)
        assert other.stats().archive_failures >= 2
    archive.refuses = False
    play(house, saver, config, "two 0")
    assert all(map(is_cut, results(listed(house, config))))
    assert house.transcript(saver, config)[2].content == lines("c.one.0")


@ONE
def test_a_result_that_is_edited_in_place_is_cut_again(house: House) -> None:
    line = Line(house.saver(WIDE, excerpt=Excerpt(300, spare_last=0)), house.door, thread="edited")
    said: list[Any] = [{"type": "text", "text": lines("c")}]
    result = ToolMessage(said, tool_call_id="c", name="read", id="t")
    call = {"name": "read", "args": {}, "id": "c"}
    messages = [HumanMessage("q", id="h"), AIMessage("", tool_calls=[call], id="a"), result]
    first = line.put(messages).checkpoint["channel_values"]["messages"][-1]
    result.content.append({"type": "text", "text": "and more"})
    result.additional_kwargs["note"] = "seen"
    result.status = "error"
    second = line.put(messages).checkpoint["channel_values"]["messages"][-1]
    assert (len(second.content), second.status) == (2, "error")
    assert second.additional_kwargs["note"] == "seen"
    assert whole_key(second) != whole_key(first)
    whole = house.door.call(line.saver, "original", line.config, whole_key(second))
    assert whole == result


@ONE
def test_a_key_opens_nothing_in_another_thread(house: House) -> None:
    config, other = thread_config(), thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300))
    for one in (config, other):
        play(house, saver, one, "one 1")
    key = whole_key(results(listed(house, config))[0])
    name = config["configurable"]["thread_id"]
    house.door.call(saver, "delete_thread", other["configurable"]["thread_id"])
    for thread in (other["configurable"]["thread_id"], f"{name}x", name.upper(), f"{name}/"):
        where = {"configurable": {"thread_id": thread}}
        assert house.door.call(saver, "original", where, key) is None
    assert house.door.call(saver, "original", config, key) is not None


# -------------------------------------------------------------- shadow, switches, bad values


@ONE
def test_a_shadow_measures_and_changes_nothing(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300), shadow=True)
    play(house, saver, config, "one 2")
    assert not any(map(is_cut, results(listed(house, config))))
    total = saver.stats().total
    assert (total.excerpted, total.tokens_saved, total.would_excerpt) == (0, 0, 2)
    assert total.would_save > 100_000
    assert house.entries(config["configurable"]["thread_id"]) == []


@ONE
def test_a_copied_thread_has_its_wholes_and_a_deleted_one_none(house: House) -> None:
    archive = StoreArchive(house.store)
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300))
    play(house, saver, config, "one 1")
    source, target = config["configurable"]["thread_id"], thread_config()
    name = target["configurable"]["thread_id"]
    house.door.call(archive, "copy_thread", source, name)
    (key,) = house.entries(source)
    assert house.door.call(saver, "original", target, key).content == lines("c.one.0")
    house.door.call(saver, "delete_thread", source)
    assert house.rows(source) == []
    assert len(house.rows(name)) == 2


@ONE
def test_without_an_archive_the_line_names_no_key(house: House) -> None:
    config = thread_config()
    saver = house.saver(WIDE, excerpt=Excerpt(300), archive=Discard())
    play(house, saver, config, "one 1", "two 0")
    (message,) = results(listed(house, config))
    assert is_cut(message)
    assert whole_key(message) is None
    assert message.content.endswith("tokens left out]")


def test_bad_values_are_named() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    for field, options in (
        ("excerpt", {"excerpt": 2_000}),
        ("selector", {"selector": "bm25", "excerpt": Excerpt()}),
        ("selector", {"selector": Words()}),
    ):
        with pytest.raises(ConfigurationError, match=field):
            ReducingSaver(InMemorySaver(), WIDE, archive=Discard(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("house", ["sqlite-sync"], indirect=True)
def test_a_saver_without_excerpts_evicts_them_whole(house: House) -> None:
    config = thread_config()
    thread = config["configurable"]["thread_id"]
    saver = house.saver(WIDE, excerpt=Excerpt(500))
    play(house, saver, config, "one 1", "two 0", "three 0")
    whole = house.transcript(saver, config)
    assert results(whole)[0].content == lines("c.one.0")
    window = Window(("turns", 1), ("turns", 1))
    other = house.saver(window)
    graph = agent().compile(checkpointer=other)
    house.door.invoke(graph, {"messages": HumanMessage("four 0", id="h.four")}, config)
    assert not results(listed(house, config))
    told = house.transcript(other, config)
    assert [m.id for m in told][: len(whole)] == [m.id for m in whole]
    assert results(told)[0].content == lines("c.one.0")
    assert len(house.entries(thread)) == 8
