"""Selectors: what they keep, what a service may answer, and how much of real results they keep."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, convert_to_messages

from reducing_saver import ConfigurationError
from reducing_saver._select import (
    HeadTail,
    Hosted,
    Nearest,
    Selector,
    SelectorError,
    Words,
    check_selector,
)
from reducing_saver.engine import Excerpt, Task, Window
from reducing_saver.engine.oversize import find
from reducing_saver.engine.shorten import Cut

COUNT = Window(("messages", 9)).sizes("tokens").of
TASK = Task("Where is the invoice 4711 of Ada?", "{'customer': 'ada_lovelace_12'}")
PARTS = [*(f"line {i} says nothing\n" for i in range(60)), "invoice 4711 was paid\n", "end\n"]


class Letters(Embeddings):
    """Embed a text as how often it has each letter."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]


def ranked(selector: Selector, parts: Sequence[str], task: Task, door: str) -> list[int]:
    if door == "sync":
        return list(selector.rank(parts, task))
    return list(asyncio.run(_awaited(selector, parts, task)))


async def _awaited(selector: Selector, parts: Sequence[str], task: Task) -> Sequence[int]:
    return await selector.arank(parts, task)


DOORS = pytest.mark.parametrize("by", ["sync", "async"])


@DOORS
def test_head_and_tail_names_nothing(by: str) -> None:
    assert ranked(HeadTail(), PARTS, TASK, by) == []


@DOORS
def test_words_find_the_part_that_answers(by: str) -> None:
    assert ranked(Words(ends=0), PARTS, TASK, by)[0] == 60
    assert 60 in ranked(Words(), PARTS, TASK, by)[:2]
    assert ranked(Words(ends=0), PARTS, Task("nothing", "to find"), by) != [60]


@DOORS
def test_words_need_no_words(by: str) -> None:
    assert ranked(Words(ends=0), PARTS, Task(), by) == []
    assert ranked(Words(), [], TASK, by) == []
    assert ranked(Words(), ["", "..."], TASK, by) == [0, 1]


@DOORS
def test_embeddings_find_the_nearest(by: str) -> None:
    task = Task("4711")
    assert ranked(Nearest(Letters()), ["abc", "4711", "def 47"], task, by)[:2] == [1, 2]
    grouped = ranked(Nearest(Letters(), most=2), ["abc", "x", "4711", "y"], task, by)
    assert grouped == [2, 3, 0, 1]


def answers(value: Any) -> Callable[[str, Task], Any]:
    return lambda text, task: value


async def later(text: str, task: Task) -> str:
    await asyncio.sleep(0)
    return text.splitlines()[-1]


class Asks:
    async def __call__(self, text: str, task: Task) -> Any:
        return [0]


@DOORS
@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (answers("b  c\ne"), [1, 2]),
        (answers([2, 0]), [2, 0]),
        (later, [2]),
        (Asks(), [0]),
    ],
    ids=["text", "numbers", "coroutine", "object"],
)
def test_a_service_names_lines(ask: Any, found: list[int], by: str) -> None:
    assert ranked(Hosted(ask), ["a\n", "b c\n", "e"], TASK, by) == found


def fails(text: str, task: Task) -> Any:
    raise ConnectionError(text)


def sleeps(text: str, task: Task) -> Any:
    time.sleep(1)


async def sleeps_async(text: str, task: Task) -> Any:
    await asyncio.sleep(1)


@DOORS
@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (fails, "failed"),
        (sleeps, "timed out"),
        (sleeps_async, "timed out"),
        (answers(""), "empty"),
        (answers([]), "empty"),
        (answers("a\nb c\ne\n" * 3), "larger"),
        (answers("summary"), "not verbatim"),
        (answers("e\na"), "not verbatim"),
        (answers([9]), "not verbatim"),
        (answers(None), "not understood"),
        (answers(["a"]), "not understood"),
    ],
)
def test_a_service_that_does_not_answer_well_is_no_help(ask: Any, reason: str, by: str) -> None:
    with pytest.raises(SelectorError) as raised:
        ranked(Hosted(ask, timeout=0.05), ["a\n", "b c\n", "e"], TASK, by)
    assert raised.value.reason == reason
    assert "b c" not in str(raised.value)


def test_a_service_is_asked_apart_from_the_loop() -> None:
    threads = []

    def ask(text: str, task: Task) -> list[int]:
        threads.append(threading.current_thread())
        return [0]

    assert ranked(Hosted(ask), ["a"], TASK, "async") == [0]
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "build",
    [
        lambda: Hosted("https://example.org"),  # type: ignore[arg-type]
        lambda: Hosted(later, timeout=0),
        lambda: Nearest(3),  # type: ignore[arg-type]
        lambda: Nearest(Letters(), most=0),
        lambda: Words(ends=-1),
        lambda: check_selector(Words),
        lambda: check_selector("bm25"),
    ],
    ids=["ask", "timeout", "embeddings", "most", "ends", "class", "name"],
)
def test_bad_values_are_named(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        build()


def test_words_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"reducing-saver\[recall\]"):
        Words()


KINDS = {
    "lines": "".join(f"{i} nothing happened\n" for i in range(3_000)),
    "records": json.dumps([{"id": i, "text": "nothing happened"} for i in range(3_000)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_words_find_a_needle(kind: str) -> None:
    """One line of 3,000 answers the question: head and tail lose it, BM25 does not."""
    text = KINDS[kind].replace("1492 nothing", "1492 Ada paid invoice 4711: nothing")
    text = text.replace('1492, "text": "nothing', '1492, "text": "Ada paid invoice 4711')
    asked = AIMessage("", tool_calls=[{"name": "log", "args": {"of": "Ada"}, "id": "c"}])
    messages = [HumanMessage("Was invoice 4711 paid?"), asked, ToolMessage(text, tool_call_id="c")]
    (oversize,) = find(messages, Excerpt(300), COUNT, running=False)
    assert oversize.task.tool == "log"
    cut = Cut(oversize, COUNT)
    kept = {}
    for selector in (HeadTail(), Words()):
        short = cut.shorten(selector.rank(cut.parts, oversize.task))
        assert short is not None
        kept[type(selector)] = "4711" in str(short.message)
        assert COUNT(short.message) <= 300
    assert kept == {HeadTail: False, Words: True}


def test_bm25_keeps_more_of_what_the_agent_used_later(
    real_conversations: list[dict[str, Any]],
) -> None:
    """The 416 results of 100 real conversations, each cut to 30 % of its tokens.

    Head and tail keep 43 % of the values that the agent used later, BM25 46 %.
    """
    benchmarks = Path(__file__).parents[2]
    sys.path.insert(0, str(benchmarks))
    try:
        from benchmarks.selection import measure
    finally:
        sys.path.remove(str(benchmarks))
    conversations = [convert_to_messages(one["messages"]) for one in real_conversations]
    ends, words = measure(conversations, HeadTail()), measure(conversations, Words())
    assert ends.results == words.results == 416
    assert ends.used == words.used > 2_000
    assert max(ends.tokens, words.tokens) <= 0.3
    assert 0.41 < ends.share < 0.44
    assert 0.44 < words.share < 0.48
