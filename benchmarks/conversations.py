"""Make conversations: the same words on every machine, sizes as in a real store."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

CHARACTERS = 150
"""Of text in a message: about 340 bytes as LangGraph's serializer stores it (in `chat`)."""

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_TOOLS = ("search_flights", "get_user_details", "read_file", "calculate")


def tool_heavy(seed: int = 0) -> Iterator[BaseMessage]:
    """Yield turns of seven: human, two calls and results, one call and result, answer."""
    words = _Words(seed)
    while True:
        yield words.human()
        yield from words.round(2)
        yield from words.round(1)
        yield words.ai()


def chat(seed: int = 0) -> Iterator[BaseMessage]:
    """Yield turns of two: human and answer."""
    words = _Words(seed)
    while True:
        yield words.human()
        yield words.ai()


def take(messages: Iterator[BaseMessage], count: int) -> list[BaseMessage]:
    """Return the next messages as a list."""
    return list(itertools.islice(messages, count))


def text(seed: int, characters: int = CHARACTERS) -> str:
    """Return some text, the same for the same seed."""
    return _Words(seed).text(characters)


def fresh(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return equal messages that nobody has seen: what is remembered of an object does not help."""
    return [message.model_copy() for message in messages]


def renamed(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of another thread: the same, with ids of their own."""
    return [message.model_copy(update={"id": str(uuid.uuid4())}) for message in messages]


class _Words:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        weights = [1 / (place + 1) for place in range(len(_LETTERS))]
        lengths = self._random.choices(range(2, 10), k=2_000)
        letters = ("".join(self._random.choices(_LETTERS, weights, k=length)) for length in lengths)
        self._words = list(letters)

    def human(self) -> HumanMessage:
        return HumanMessage(self.text(), id=self._id())

    def ai(self) -> AIMessage:
        return AIMessage(self.text(), id=self._id())

    def round(self, calls: int) -> Iterator[BaseMessage]:
        names = self._random.choices(_TOOLS, k=calls)
        asked = [{"name": n, "args": {"query": self.text(40)}, "id": self._id()} for n in names]
        yield AIMessage("", tool_calls=asked, id=self._id())
        for call in asked:
            yield ToolMessage(
                self.text(), tool_call_id=str(call["id"]), name=str(call["name"]), id=self._id()
            )

    def text(self, characters: int = CHARACTERS) -> str:
        return " ".join(self._random.choices(self._words, k=characters // 4))[:characters]

    def _id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))
