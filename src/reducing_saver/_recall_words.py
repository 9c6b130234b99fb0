"""Find messages by what they say: their text, its words, and BM25 over them. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from .engine.messages import Message, blocks, field, is_media

_INSTALL = "searching needs the package bm25s: pip install 'reducing-saver[recall]'"

_ACCENTS = re.compile("[\u0300-\u036f]")
_COMPOUND = re.compile(r"\w+(?:[^\w\s]\w+)*")
_WORD = re.compile(r"[^\W_]+")
# Thai, Lao, Burmese, Khmer, Japanese and Chinese set no words apart.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+"
)
_CALLS = ("tool_calls", "invalid_tool_calls", "function_call")
_UNSAID = frozenset({"thinking", "redacted_thinking", "reasoning"})
_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})


def said(message: Message) -> str:
    """Return what a message says: its text, then its tool calls; media are only named."""
    found = [*_strings(field(message, "content"))]
    if isinstance(message, dict):
        found += _strings(field(message, "parts"))
    for name in ("arguments", "output"):
        found += _strings(field(message, name))
    asked = [call for name in _CALLS for call in _listed(field(message, name))]
    # LangChain repeats in `tool_calls` what Anthropic writes as blocks.
    asked = asked or [b for b in blocks(message) if field(b, "type") in _CALL_BLOCKS]
    found += map(_call, asked)
    return "\n".join(text for text in found if text.strip())


def words(text: str) -> list[str]:
    """Return what a text is found by: its words, without case and accents.

    What punctuation holds together, as `sara_doe_496`, `2024-05-20` or an e-mail address, is found
    whole, without its punctuation, and by its parts. Where a script sets no words apart, one and
    two characters are a word.
    """
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    found: list[str] = []
    for match in _COMPOUND.finditer(unicodedata.normalize("NFKC", plain).casefold()):
        whole, parts = match[0], _WORD.findall(match[0])
        if parts and parts != [whole]:
            found += [whole, "".join(parts)]
        for part in parts:
            found += _cut(part) if _UNSPACED.search(part) else [part]
    return found


def alike(query: Iterable[str], corpus: list[list[str]], weights: Sequence[float]) -> list[int]:
    """Return which texts share words with the query, the best first (BM25 times a weight).

    Raises ImportError where `bm25s` is missing.
    """
    found = zip(likeness(query, corpus), weights, strict=True)
    scores = [score * weight for score, weight in found]
    return sorted((i for i, score in enumerate(scores) if score > 0), key=lambda i: -scores[i])


def likeness(query: Iterable[str], corpus: list[list[str]]) -> list[float]:
    """Return the BM25 score of each text, 0 where it shares no word with the query.

    Raises ImportError where `bm25s` is missing.
    """
    known = {word for text in corpus for word in text}
    asked = [word for word in query if word in known]
    if not asked:
        return [0.0] * len(corpus)
    index = load_bm25s().BM25()
    index.index(corpus, show_progress=False)
    scores: list[float] = index.get_scores(asked).tolist()
    return scores


def fused(*rankings: Iterable[int]) -> list[int]:
    """Merge rankings by reciprocal rank (Cormack, Clarke and Buettcher, 2009)."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] += 1 / (60 + rank)
    return sorted(scores, key=lambda item: -scores[item])


def excerpt(text: str, query: Sequence[str], most: int) -> str:
    """Return a text, or of a longer one `most` characters around its longest match."""
    if len(text) <= most:
        return text
    lower = text.lower()
    longest = sorted(query, key=len, reverse=True)
    match = next((at for word in longest if (at := lower.find(word)) >= 0), 0)
    start = min(max(match - most // 4, 0), len(text) - most)
    end = start + most
    before = f"[{start} characters left out]\n" if start else ""
    after = f"\n[{len(text) - end} characters left out]" if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"


def load_bm25s() -> Any:
    """Import the package that ranks; the error names the extra that brings it."""
    try:
        return import_module("bm25s")
    except ImportError as error:
        raise ImportError(_INSTALL) from error


def _cut(word: str) -> Iterator[str]:
    """Yield one and two characters of what sets no words apart, and what is around it whole."""
    end = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > end:
            yield word[end : run.start()]
        yield from run[0]
        yield from map("".join, zip(run[0], run[0][1:], strict=False))
        end = run.end()
    if end < len(word):
        yield word[end:]


def _strings(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        for block in content:
            yield from _strings(block)
    elif content is not None:
        yield from _block(content)


def _block(block: object) -> Iterator[str]:
    kind, text, inner = (field(block, name) for name in ("type", "text", "content"))
    if is_media(block):
        yield f"[{kind or 'file'}]"
    elif isinstance(text, str):
        yield text
    elif isinstance(inner, str | list):
        yield from _strings(inner)
    elif kind not in _UNSAID and kind not in _CALL_BLOCKS:
        yield _json(block)


def _listed(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return [*value]
    return [] if value is None else [value]


def _call(call: object) -> str:
    named = field(call, "function") or call
    given = (field(named, name) for name in ("args", "arguments", "input"))
    arguments = next((value for value in given if value is not None), "")
    return f"{field(named, 'name') or 'tool'} {_text(arguments)}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, default=str, ensure_ascii=False)
