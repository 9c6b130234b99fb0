"""Cut a recorded conversation into the runs of a graph, and find the call of every result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool

from .._transcripts import Conversation, TranscriptError
from .messages import langchain_messages

AnyMessage = TypeVar("AnyMessage", bound=BaseMessage)


class Turn(NamedTuple):
    """Hold what comes in, and what the model answers until something comes in again."""

    inputs: tuple[BaseMessage, ...]
    replies: tuple[AIMessage, ...] = ()


class Asked(NamedTuple):
    """Hold one recorded call and its result, None where none was recorded."""

    id: str
    name: str
    result: ToolMessage | None


@dataclass(frozen=True, slots=True)
class Recording:
    """Hold a conversation, turn by turn, with what answers its tool calls.

    `asked` are the recorded calls in order: ids may repeat. `tools` are real ones, empty where
    the recorded results are the answers. `notes` count what cannot be played as it was recorded.
    """

    id: str
    turns: tuple[Turn, ...]
    asked: tuple[Asked, ...] = ()
    tools: tuple[BaseTool, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def humans(self) -> int:
        """Count the human messages."""
        return sum(isinstance(m, HumanMessage) for turn in self.turns for m in turn.inputs)


def recording(conversation: Conversation) -> Recording:
    """Cut a recorded conversation into turns; every recorded result goes back to its call.

    Raises `TranscriptError` that names the message that cannot be played.
    """
    try:
        messages = langchain_messages(conversation.messages)
    except TranscriptError as error:
        raise TranscriptError(f"conversation {conversation.id}: {error}") from None
    return cut(conversation.id, messages)


def cut(key: str, messages: Iterable[BaseMessage]) -> Recording:
    """Cut LangChain messages into turns."""
    reader = _Reader()
    for message in messages:
        reader.read(message)
    return reader.finish(key)


class _Reader:
    """Read messages one by one; remember the turns, and which call each result answers."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.asked: list[list[Asked]] = []  # one list for each AI message with calls
        self.notes: Counter[str] = Counter()
        self._open: list[Asked] | None = None  # the calls that nothing stands behind yet
        self._ids: set[str] = set()

    def read(self, message: BaseMessage) -> None:
        message = self._distinct(message)
        if isinstance(message, AIMessage):
            self._reply(message)
        elif isinstance(message, ToolMessage):
            self._result(message)
        else:
            self._input(message)

    def finish(self, key: str) -> Recording:
        asked = tuple(call for calls in self.asked for call in calls)
        missing = sum(call.result is None for call in asked)
        self.notes["tool calls without a recorded result, answered with an error"] = missing
        notes = tuple((note, count) for note, count in self.notes.items() if count)
        return Recording(key, tuple(self.turns), asked, notes=notes)

    def _distinct(self, message: AnyMessage) -> AnyMessage:
        # `add_messages` replaces a message by a later one with its id; here each one counts.
        if message.id in self._ids:
            return message.model_copy(update={"id": None})
        if message.id:
            self._ids.add(message.id)
        return message

    def _input(self, message: BaseMessage) -> None:
        self._open = None
        self.notes["messages of a role that no provider knows"] += isinstance(message, ChatMessage)
        if self.turns and not self.turns[-1].replies:
            self.turns[-1] = Turn((*self.turns[-1].inputs, message))
        else:
            self.turns.append(Turn((message,)))

    def _reply(self, message: AIMessage) -> None:
        self._open = None
        calls = [self._identified(call) for call in (*message.tool_calls, *self._repaired(message))]
        if calls:
            message = message.model_copy(update={"tool_calls": calls, "invalid_tool_calls": []})
            self._open = [Asked(call["id"] or "", call["name"], None) for call in calls]
            self.asked.append(self._open)
        inputs, replies = self.turns.pop() if self.turns else Turn(())
        self.turns.append(Turn(inputs, (*replies, message)))

    def _repaired(self, message: AIMessage) -> Iterator[ToolCall]:
        for call in message.invalid_tool_calls:
            self.notes["tool calls whose arguments are not JSON, played as text"] += 1
            yield ToolCall(
                type="tool_call",
                name=call["name"] or "tool",
                args={"arguments": call["args"]},
                id=call["id"],
            )

    def _identified(self, call: ToolCall) -> ToolCall:
        if call["id"]:
            return call
        self.notes["tool calls without an id, given one"] += 1
        number = self.notes["tool calls without an id, given one"]
        return {**call, "id": f"call_without_id_{number}"}

    def _result(self, message: ToolMessage) -> None:
        for calls in reversed(self.asked):
            for place, call in enumerate(calls):
                if call.result is None and _answers(message, call):
                    calls[place] = call._replace(result=message)
                    self.notes["late tool results, given at once"] += calls is not self._open
                    return
        self.notes["tool results that answer no open call, left out"] += 1


def _answers(result: ToolMessage, call: Asked) -> bool:
    if result.tool_call_id:
        return result.tool_call_id == call.id
    return result.name in (None, "", call.name)
