"""Read a message, whatever its shape: role, id, tool calls, answers, media.

Every other file of the engine asks these functions and never looks into a message itself. What
is read: LangChain messages and chunks, OpenAI and Anthropic dicts, Gemini contents, OpenAI
Responses items, serialised LangChain dicts (`message_to_dict`, the `lc` constructor form,
`model_dump`), and any object with the same attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

Message: TypeAlias = object

SUMMARY_KEY = "reducing_saver"
"""Key in `additional_kwargs` under which our own summary message carries its record."""


class Role(StrEnum):
    """Say who speaks; `OTHER` is what is not understood, and is never guessed."""

    SYSTEM = "system"
    HUMAN = "human"
    AI = "ai"
    TOOL = "tool"
    OTHER = "other"


class Call(NamedTuple):
    """Name a tool call; `id` is empty where the provider gave none."""

    id: str
    name: str


class Answer(NamedTuple):
    """Name the call that a tool result answers, by id or, without one, by tool name."""

    id: str
    name: str


_ALIASES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "human": Role.HUMAN,
    "user": Role.HUMAN,
    "ai": Role.AI,
    "assistant": Role.AI,
    "agent": Role.AI,
    "model": Role.AI,
    "function_call": Role.AI,
    "tool": Role.TOOL,
    "function": Role.TOOL,
    "function_call_output": Role.TOOL,
}

_CLASSES = (
    (SystemMessage, Role.SYSTEM),
    (HumanMessage, Role.HUMAN),
    (AIMessage, Role.AI),
    (ToolMessage, Role.TOOL),
    (FunctionMessage, Role.TOOL),
)

_MEDIA_TYPES = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "audio",
        "input_audio",
        "video",
        "file",
        "input_file",
        "document",
        "media",
    }
)
_MEDIA_KEYS = frozenset({"inline_data", "inlineData", "file_data", "fileData"})
# `server_tool_use`, `web_search_call` and their like run at the provider: nobody else answers them.
_CALL_TYPES = frozenset({"tool_use", "tool_call", "function_call"})

_role_of_class: dict[type, Role | None] = {}
_UNSURE = (Role.HUMAN, None)


def role(message: Message) -> Role:
    """Return the role; a human message that carries tool results is one of the tool's."""
    kind = type(message)
    known = _role_of_class.get(kind)
    if known is None:
        known = _learn(kind) or _named_role(message)
    if known is Role.HUMAN and type(field(message, "content")) is not str:
        return Role.TOOL if _block_answers(message) else Role.HUMAN
    return known


def may_be_human(message: Message) -> bool:
    """Tell at once, from its class, whether a message needs a look at its role."""
    return _role_of_class.get(type(message)) in _UNSURE


def holds_messages(messages: Iterable[Message]) -> bool:
    """Tell whether there is any message in a list."""
    return any(role(message) is not Role.OTHER for message in messages)


def _learn(kind: type) -> Role | None:
    found = next((known for base, known in _CLASSES if issubclass(kind, base)), None)
    _role_of_class[kind] = found
    return found


def _named_role(message: Message) -> Role:
    for name in ("role", "type"):
        value = field(message, name)
        if isinstance(value, str):
            word = value.lower().removesuffix("chunk").removesuffix("message")
            if found := _ALIASES.get(word):
                return found
    return Role.OTHER


def field(message: Message, name: str) -> object:
    """Return a field of the message, or None where it has none."""
    if not isinstance(message, dict):
        return getattr(message, name, None)
    if "data" in message or "kwargs" in message:
        return _unwrapped(message).get(name)
    return message.get(name)


def _unwrapped(message: dict[str, object]) -> dict[str, object]:
    """Return the fields of a serialised LangChain message: `message_to_dict`, or the lc form."""
    data, kwargs, path = message.get("data"), message.get("kwargs"), message.get("id")
    if isinstance(data, dict) and isinstance(message.get("type"), str):
        return {**data, "type": message["type"]}
    if isinstance(kwargs, dict) and message.get("lc") and isinstance(path, list) and path:
        return {"type": path[-1], **kwargs}
    return message


def identifier(message: Message) -> str | None:
    """Return the message's own id, or None where it has none."""
    value = field(message, "id")
    return value if isinstance(value, str) and value else None


def is_summary(message: Message) -> bool:
    """Tell whether this is a summary of ours or of LangChain's `SummarizationMiddleware`.

    LangChain 1.x marks its own with `additional_kwargs={"lc_source": "summarization"}`.
    """
    extra = field(message, "additional_kwargs")
    if not extra or not isinstance(extra, dict):
        return False
    return extra.get("lc_source") == "summarization" or SUMMARY_KEY in extra


def summaries(messages: Sequence[Message]) -> list[Message]:
    """Return the summaries in a list; quick, since this runs over the list of every put."""
    marked = [m for m in messages if type(m) is dict or getattr(m, "additional_kwargs", None)]
    return [message for message in marked if is_summary(message)]


def stands_beside(message: Message) -> str | None:
    """Return the id of the summary that a message only accompanies, as the question of a pair."""
    extra = field(message, "additional_kwargs")
    record = field(extra, SUMMARY_KEY) if extra else None
    beside = field(record, "beside") if record else None
    return beside if isinstance(beside, str) else None


def calls(message: Message) -> list[Call]:
    """Return the tool calls that somebody outside the provider has to answer.

    Calls whose arguments could not be parsed (`invalid_tool_calls`) count: they are sent back
    to the provider with the others.
    """
    found = _listed(message, "tool_calls") + _listed(message, "invalid_tool_calls")
    return found or _legacy_calls(message) or _block_calls(message)


def _listed(message: Message, name: str) -> list[Call]:
    value = field(message, name)
    if not value or not isinstance(value, list | tuple):
        return []
    # A call may be an object, as in the messages of OpenAI's client.
    return [_call(item) for item in value if item is not None and not isinstance(item, str)]


def _call(item: object) -> Call:
    named = field(item, "function") or item
    return Call(_word(field(item, "id")), _word(field(named, "name")))


def _legacy_calls(message: Message) -> list[Call]:
    """Return calls in OpenAI's older `function_call`, in raw kwargs, or in a Responses item."""
    extra = field(message, "additional_kwargs")
    places = [extra] if extra else []
    if not isinstance(message, BaseMessage):
        if field(message, "type") == "function_call":
            return [Call(_word(field(message, "call_id")), _word(field(message, "name")))]
        places.append(message)
    single = [field(place, "function_call") for place in places]
    named = [Call("", _word(field(item, "name"))) for item in single if item]
    return named or (_listed(extra, "tool_calls") if extra else [])


def _block_calls(message: Message) -> list[Call]:
    found = []
    for block in blocks(message):
        if _kind(block) in _CALL_TYPES:
            key = field(block, "call_id") or field(block, "id")
            found.append(Call(_word(key), _word(field(block, "name"))))
        for part in _parts(block, "function_call", "functionCall"):
            found.append(Call(_word(field(part, "id")), _word(field(part, "name"))))
    return found


def answers(message: Message) -> list[Answer]:
    """Return what a tool's message answers; one message may answer several calls (Anthropic)."""
    if found := _block_answers(message):
        return found
    key = field(message, "tool_call_id") or (
        None if isinstance(message, BaseMessage) else field(message, "call_id")
    )
    return [Answer(_word(key), _word(field(message, "name")))]


def _block_answers(message: Message) -> list[Answer]:
    found = []
    for block in blocks(message):
        if field(block, "type") == "tool_result":
            found.append(Answer(_word(field(block, "tool_use_id")), ""))
        for part in _parts(block, "function_response", "functionResponse"):
            found.append(Answer(_word(field(part, "id")), _word(field(part, "name"))))
    return found


def blocks(message: Message) -> list[object]:
    """Return the content blocks: dicts, or a client's objects; none where it is a string."""
    content = field(message, "content")
    if content is None and not isinstance(message, BaseMessage):
        content = field(message, "parts")
    if not isinstance(content, list | tuple):
        return []
    return [block for block in content if block is not None and not isinstance(block, str)]


def is_media(block: object) -> bool:
    """Tell whether a block is an image, audio, video or file, in any provider's shape."""
    if isinstance(block, dict) and not _MEDIA_KEYS.isdisjoint(block):
        return True
    if _kind(block) not in _MEDIA_TYPES:
        return False
    source = field(block, "source")
    return source is None or field(source, "type") != "text"


def _kind(block: object) -> str:
    return _word(field(block, "type"))  # a JSON schema has a list there


def _parts(block: object, *names: str) -> Iterator[object]:
    return (part for name in names if (part := field(block, name)) is not None)


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
