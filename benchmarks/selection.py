"""How much of what an agent used later is still in its tool results, cut to 30 % of their tokens.

The conversations are real ones, which are not part of the project: looked for beside the checkout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages

from reducing_saver._select import HeadTail, Selector, Words
from reducing_saver.engine import Excerpt, Window
from reducing_saver.engine.oversize import find
from reducing_saver.engine.shorten import Cut

from .report import Cell, Goal, Report, Table, main, progress

SHARE = 0.3
SELECTORS: dict[str, Selector] = {"head and tail": HeadTail(), "BM25": Words()}
CONVERSATIONS = Path(__file__).parents[2] / "shared" / "data" / "airline_conversations.json"

_LEAST_TOKENS = 100
_COUNT = Window(("messages", 1)).sizes("tokens").of


@dataclass(frozen=True)
class Kept:
    """Count values that the agent used later, those still in the excerpts, and tokens."""

    results: int = 0
    used: int = 0
    kept: int = 0
    before: int = 0
    after: int = 0

    @property
    def share(self) -> float:
        return self.kept / self.used

    @property
    def tokens(self) -> float:
        return self.after / self.before


def load(path: Path = CONVERSATIONS) -> list[list[BaseMessage]]:
    """Read the conversations as LangChain messages."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return [convert_to_messages(one["messages"]) for one in data]


def measure(conversations: Sequence[list[BaseMessage]], selector: Selector) -> Kept:
    """Cut every tool result when it arrives, and look for what the agent said of it later."""
    total = Kept()
    for messages in conversations:
        for place, message in enumerate(messages):
            if isinstance(message, ToolMessage) and _COUNT(message) > _LEAST_TOKENS:
                total = _plus(total, messages, place, selector)
    return total


def _plus(total: Kept, messages: list[BaseMessage], place: int, selector: Selector) -> Kept:
    message = messages[place]
    used = _values(str(message.content)) & _said(messages[place + 1 :])
    excerpt = Excerpt(64)
    found = find(messages[: place + 1], excerpt, _COUNT, running=False)
    (oversize,) = (one for one in found if one.index == place)
    before = _COUNT(message)
    bare = _COUNT(message.model_copy(update={"content": ""}))
    cut = Cut(replace(oversize, cap=bare + int(SHARE * (before - bare))), _COUNT)
    short = cut.shorten(selector.rank(cut.parts, oversize.task))
    left: Any = short.message if short else message
    kept = used & _values(str(left.content))
    return Kept(
        total.results + 1,
        total.used + len(used),
        total.kept + len(kept),
        total.before + before - bare,
        total.after + _COUNT(left) - bare,
    )


def _values(text: str) -> set[str]:
    """Return what stands in a JSON text as a value, or as an id before one; not the shortest."""
    try:
        return {value for value in _scalars(json.loads(text)) if len(value) > 2}
    except ValueError:
        return set()


def _scalars(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, held in value.items():
            if any(map(str.isdigit, name)):  # an id, and not what every record has
                yield name
            yield from _scalars(held)
    elif isinstance(value, list):
        for held in value:
            yield from _scalars(held)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _said(messages: Sequence[BaseMessage]) -> set[str]:
    """Return what the agent wrote later: stretches of words, and the values of its calls."""
    return {value for m in messages if isinstance(m, AIMessage) for value in _written(m)}


def _written(message: AIMessage) -> Iterator[str]:
    words = re.findall(r"[\w@+-]+(?:[.:][\w@+-]+)*", str(message.content))
    for length in range(1, 5):
        yield from (" ".join(words[at : at + length]) for at in range(len(words)))
    for call in message.tool_calls:
        yield from _values(json.dumps(call["args"]))


def run(short: bool) -> Report:
    """Measure the selectors that need nothing but the recall extra."""
    progress("selection")
    report = Report("selection")
    if not CONVERSATIONS.exists():
        return report
    conversations = load()[: 20 if short else None]
    found = {name: measure(conversations, selector) for name, selector in SELECTORS.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, one.results, one.used, one.kept, one.share, one.tokens)
        for name, one in found.items()
    ]
    columns = ("selector", "results", "values used later", "still there", "share", "tokens left")
    report.tables.append(Table("Each result cut to 30 % of its tokens", columns, rows))
    shares = [one.share for one in found.values()]
    report.goals.append(Goal("share of head and tail / share of BM25", shares[0] / shares[1], 1))
    return report


if __name__ == "__main__":
    main([run])
