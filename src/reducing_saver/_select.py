"""Say which parts of an oversize content answer the task: head and tail, words, embeddings, hosted.

A selector ranks parts and changes nothing; the engine cuts, and keeps as many as fit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from operator import index
from typing import Protocol, SupportsIndex, TypeAlias, runtime_checkable

from langchain_core.embeddings import Embeddings

from ._errors import ConfigurationError, ReducingSaverError
from ._origin import origin_of
from ._recall_words import likeness, load_bm25s, words
from ._summary_call import SummaryError, arun, arun_in_thread, run
from .engine import Task
from .engine.shorten import both_ends

Answer: TypeAlias = str | Sequence[int]
Ask: TypeAlias = Callable[[str, Task], Answer | Awaitable[Answer]]

_MOST_EMBEDDED = 256
_STEM = 5
_LEAST_WORD = 3


class SelectorError(ReducingSaverError):
    """Say why nothing was selected: the content then stays whole. Content is never quoted.

    `reason` is a word or two, under which the statistics count it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"nothing was selected: {reason}")


@runtime_checkable
class Selector(Protocol):
    """Rank the parts of a content by how well they answer a task.

    Returned are positions, the best part first; parts that are not named come after them, from both
    ends of the content. What is raised leaves the content whole.
    """

    def rank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the positions of the parts that answer the task, the best first."""

    async def arank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the positions of the parts that answer the task, the best first."""


@dataclass(frozen=True, slots=True)
class HeadTail:
    """Keep both ends: two thirds of what fits from the head, one third from the tail."""

    def rank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Name no part: what is not named is taken from both ends."""
        return ()

    async def arank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Name no part: what is not named is taken from both ends."""
        return ()


@dataclass(frozen=True, slots=True)
class Words:
    """Keep the lines, records or elements that share words with the task, ranked by BM25.

    The words are those of the newest human message, of the call's arguments, and of what the person
    and the agent said before; ids, dates and numbers weigh most, because few parts have them.

    - `ends`: so many of the outermost parts are preferred where they do not match, the first most:
      what a result begins and ends with says what it is. 20 did best on real conversations.

    Raises ImportError, when it is built, where `bm25s` is missing (`pip install
    'reducing-saver[recall]'`).
    """

    ends: int = 20

    def __post_init__(self) -> None:
        if type(self.ends) is not int or self.ends < 0:
            raise ConfigurationError("ends", self.ends, "a whole number from 0")
        load_bm25s()

    def rank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the parts that share words with the task, and the ends, the best first."""
        return self._ranked(parts, task)

    async def arank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the same, ranked in a thread: a megabyte of text takes a second."""
        return await asyncio.to_thread(self._ranked, parts, task)

    def _ranked(self, parts: Sequence[str], task: Task) -> list[int]:
        asked = [word for word in _stemmed("\n".join(filter(None, task[:3]))) if _tells(word)]
        found = likeness(asked, [_stemmed(part) for part in parts])
        best = max(found, default=0.0) or 1.0
        scores = [score / best for score in found]
        for place, end in enumerate(both_ends(len(parts))[: self.ends]):
            scores[end] += 1 - place / self.ends
        return sorted((i for i, one in enumerate(scores) if one > 0), key=lambda i: -scores[i])


class Nearest:
    """Keep the parts whose embeddings are nearest to that of the task.

    - `embeddings`: any LangChain `Embeddings`. A put waits for it as long as its client does, so
      give that a time-out, as `OpenAIEmbeddings(timeout=5, max_retries=0)`; after a content that
      is late no other of a put is embedded. What it raises leaves the content whole.
    - `most`: how many texts of one content are embedded; of more parts neighbours are embedded
      together.
    """

    def __init__(self, embeddings: Embeddings, *, most: int = _MOST_EMBEDDED) -> None:
        if not isinstance(embeddings, Embeddings):
            raise ConfigurationError("embeddings", embeddings, "LangChain's Embeddings")
        if type(most) is not int or most < 1:
            raise ConfigurationError("most", most, "a whole number from 1")
        self._embeddings, self._most = embeddings, most

    def __repr__(self) -> str:
        return f"Nearest({type(self._embeddings).__name__}, most={self._most})"

    def rank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return all parts, the nearest to the task first."""
        size, texts = self._texts(parts)
        near = self._embeddings.embed_query(_asked(task))
        return _by_distance(near, self._embeddings.embed_documents(texts), size, len(parts))

    async def arank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return all parts, the nearest to the task first."""
        size, texts = self._texts(parts)
        near = await self._embeddings.aembed_query(_asked(task))
        vectors = await self._embeddings.aembed_documents(texts)
        return _by_distance(near, vectors, size, len(parts))

    def _texts(self, parts: Sequence[str]) -> tuple[int, list[str]]:
        size = max(1, ceil(len(parts) / self._most))
        return size, ["".join(parts[i : i + size]) for i in range(0, len(parts), size)]


class Hosted:
    """Ask a service which parts to keep, and leave the content whole where it does not answer well.

    - `ask`: a function, sync or async, of a text (one part a line) and a `Task`. It returns the
      lines to keep, in their order, as one text; or the numbers of the lines, from 0, the best
      first.
    - `timeout`: in seconds, for each content; after one that is late no other of a put is asked.

    A content stays whole, and the statistics count why, where the answer is late (`"timed out"`),
    the function raises (`"failed"`), or the answer is `"empty"`, `"larger"` than the text or `"not
    verbatim"`. The function runs in an empty context, and in a thread where it is a sync one.
    """

    def __init__(self, ask: Ask, *, timeout: float = 5.0) -> None:
        if not callable(ask):
            raise ConfigurationError("ask", ask, "a function of a text and a Task")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise ConfigurationError("timeout", timeout, "seconds, more than 0")
        self._ask, self._timeout = ask, timeout
        own = type(ask).__call__ if not inspect.isroutine(ask) else ask
        self._is_async = inspect.iscoroutinefunction(own)

    def __repr__(self) -> str:
        return f"Hosted({getattr(self._ask, '__name__', type(self._ask).__name__)})"

    def rank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the parts that the service named."""
        lines = _as_lines(parts)
        try:
            answer = run(lambda: self._ask("\n".join(lines), task), self._timeout)
        except SummaryError as error:
            raise _none_selected(error) from None
        return _understood(answer, lines)

    async def arank(self, parts: Sequence[str], task: Task) -> Sequence[int]:
        """Return the parts that the service named."""
        lines = _as_lines(parts)
        text = "\n".join(lines)
        try:
            if self._is_async:
                answer = await arun(lambda: self._ask(text, task), self._timeout)  # type: ignore[arg-type,return-value]
            else:
                answer = await arun_in_thread(lambda: self._ask(text, task), self._timeout)
        except SummaryError as error:
            raise _none_selected(error) from None
        return _understood(answer, lines)


def understood(ranking: object, count: int) -> list[int]:
    """Return the positions that a selector named; raise for an answer that is none."""
    if isinstance(ranking, str | bytes | Mapping) or not isinstance(ranking, Iterable):
        raise SelectorError("not understood")
    found = []
    for place in ranking:
        # As numpy's whole numbers are; a mask of True and False names no positions.
        if isinstance(place, bool) or not isinstance(place, SupportsIndex):
            raise SelectorError("not understood")
        found.append(index(place))
    if not all(0 <= place < count for place in found):
        raise SelectorError("not understood")
    return found


def is_late(error: Exception) -> bool:
    """Tell whether a service did not answer in time: asked again at once, it would not either."""
    if isinstance(error, SelectorError):
        return error.reason == "timed out"
    # Clients have classes of their own: httpx.ReadTimeout, openai.APITimeoutError.
    return any("Timeout" in kind.__name__ for kind in type(error).__mro__)


def _none_selected(error: SummaryError) -> SelectorError:
    failed = SelectorError(error.reason)
    failed.origin = origin_of(error)
    return failed


def check_selector(selector: object) -> None:
    """Raise for what is no selector."""
    if isinstance(selector, type) or not isinstance(selector, Selector):
        raise ConfigurationError("selector", selector, "a selector, as HeadTail() or Words()")


def _asked(task: Task) -> str:
    return "\n".join(filter(None, (task.question, task.arguments)))


def _stemmed(text: str) -> list[str]:
    """Return the words of a text, and how the longer ones begin: `flights` and `flight_number`."""
    found = words(text)
    return [*found, *(f"{w[:_STEM]}*" for w in found if len(w) > _STEM and w[0].isalpha())]


def _tells(word: str) -> bool:
    return len(word) >= _LEAST_WORD or not word.isascii() or any(map(str.isdigit, word))


def _by_distance(
    near: Sequence[float], vectors: Sequence[Sequence[float]], size: int, count: int
) -> list[int]:
    scores = [_cosine(near, vector) for vector in vectors]
    order = sorted(range(len(scores)), key=lambda group: -scores[group])
    return [i for group in order for i in range(group * size, min(count, (group + 1) * size))]


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(left, right, strict=True))
    lengths = sqrt(sum(a * a for a in left) * sum(b * b for b in right))
    return product / lengths if lengths else 0.0


def _as_lines(parts: Sequence[str]) -> list[str]:
    return [" ".join(part.split()) for part in parts]


def _understood(answer: object, lines: Sequence[str]) -> list[int]:
    if isinstance(answer, str):
        return _places(answer, lines)
    if not isinstance(answer, Sequence) or not all(type(one) is int for one in answer):
        raise SelectorError("not understood")
    if not answer:
        raise SelectorError("empty")
    if not all(0 <= one < len(lines) for one in answer):
        raise SelectorError("not verbatim")
    return list(answer)


def _places(answer: str, lines: Sequence[str]) -> list[int]:
    """Return the positions of lines that were given back, in their order."""
    kept = [" ".join(line.split()) for line in answer.splitlines()]
    kept = [line for line in kept if line]
    if not kept:
        raise SelectorError("empty")
    if len(answer) > sum(map(len, lines)) + len(lines):
        raise SelectorError("larger")
    found, at = [], 0
    for line in kept:
        place = next((i for i in range(at, len(lines)) if lines[i] == line), None)
        if place is None:
            raise SelectorError("not verbatim")
        found.append(place)
        at = place + 1
    return found
