"""Read people's own conversations from a JSON file.

What is read: a list of messages, `{"messages": [...]}` (also a request body of OpenAI or
Anthropic, and the state of a LangGraph thread), a list of either, and JSON lines of any of them.
A message is an OpenAI, Anthropic, Gemini or serialised LangChain dict; `langchain_messages` turns
all but Gemini's into objects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from .engine.messages import Role, calls, field, role

ALLOWED = (
    'a list of messages, {"messages": [...]}, a list of such conversations, or JSON lines of them'
)
_NAMES = ("id", "thread_id", "conversation_id", "session_id")
_STATES = ("values", "channel_values", "state", "input", "body", "request")
# Fields that a message object has of its own; whatever else a dict holds is kept beside them.
_KNOWN = frozenset(
    {"role", "type", "content", "tool_calls", "function_call", "name", "id", "tool_call_id"}
)


class TranscriptError(ValueError):
    """Say in one line why a file cannot be read, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Hold one conversation as it was recorded; `messages` are the file's own dicts."""

    id: str
    messages: tuple[object, ...]


def read(path: str) -> list[Conversation]:
    """Read every conversation of a file, or of standard input where the path is `-`.

    Raises `TranscriptError` where nothing can be read. A conversation without messages among
    others is kept, empty.
    """
    name = "standard input" if path == "-" else path
    value = _parsed(_text(path, name), name)
    found = _unique(_conversations(value, name))
    if not any(conversation.messages for conversation in found):
        raise TranscriptError(f"{name}: no messages found; allowed is {ALLOWED}")
    return found


def _text(path: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise TranscriptError(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise TranscriptError(f"{name}: this is a folder; a JSON file is needed") from None
    except UnicodeDecodeError:
        raise TranscriptError(f"{name}: not JSON: the file is not UTF-8 text") from None
    except OSError as error:
        raise TranscriptError(f"{name}: cannot be read: {error.strerror or error}") from None


def _parsed(text: str, name: str) -> object:
    if not text.strip():
        raise TranscriptError(f"{name}: no messages found: the file is empty")
    try:
        return json.loads(text)
    except RecursionError:
        raise TranscriptError(f"{name}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        return _lines(text, name, error)


def _lines(text: str, name: str, error: ValueError) -> list[object]:
    # Read as JSON lines only where the first line stands alone; else the error of the whole
    # file is the one that helps.
    found: list[object] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as broken:
            if not found:
                raise TranscriptError(f"{name}: not JSON: {error}") from None
            raise TranscriptError(f"{name}: not JSON lines: line {number}: {broken}") from None
    return found


def _conversations(value: object, name: str) -> Iterator[Conversation]:
    if isinstance(value, Mapping) and is_message(value):
        value = [value]
    if isinstance(value, Mapping):
        yield _one(value, 1, name)
        return
    if not isinstance(value, list):
        raise TranscriptError(f"{name}: found {_called(value)}; allowed is {ALLOWED}")
    if value and is_message(value[0]):
        yield Conversation("1", _checked(value, "1", name))
        return
    for number, item in enumerate(value, start=1):
        yield _one(item, number, name)


def _one(item: object, number: int, name: str) -> Conversation:
    key = _key(item) or str(number)
    messages = item if isinstance(item, list) else _held(item)
    if messages is None:
        raise TranscriptError(
            f"{name}: conversation {number} is {_called(item)} without messages; "
            f"allowed is {ALLOWED}"
        )
    return Conversation(key, _checked(messages, key, name))


def _held(item: object) -> list[object] | None:
    if not isinstance(item, Mapping):
        return None
    messages = item.get("messages")
    if isinstance(messages, list):
        system = item.get("system")
        # Anthropic's request keeps the system prompt beside the messages.
        return [{"role": "system", "content": system}, *messages] if system else messages
    inner = (_held(item.get(key)) for key in _STATES)
    return next((found for found in inner if found is not None), None)


def _key(item: object) -> str | None:
    if not isinstance(item, Mapping):
        return None
    found = (item.get(name) for name in _NAMES)
    return next((str(key) for key in found if isinstance(key, str | int) and key != ""), None)


def _checked(messages: list[object], key: str, name: str) -> tuple[object, ...]:
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            raise TranscriptError(
                f"{name}: message {number} of conversation {key} is {_called(message)}; "
                'allowed are objects with a "role" or a "type"'
            )
    if messages and not any(is_message(message) for message in messages):
        raise TranscriptError(
            f'{name}: no messages found in conversation {key}: nothing in it has a "role" or a '
            f'"type" that is known; allowed is {ALLOWED}'
        )
    return tuple(messages)


def _unique(conversations: Iterator[Conversation]) -> list[Conversation]:
    seen: set[str] = set()
    found: list[Conversation] = []
    for conversation in conversations:
        key, number = conversation.id, 2
        while key in seen:
            key, number = f"{conversation.id}-{number}", number + 1
        seen.add(key)
        found.append(Conversation(key, conversation.messages))
    return found


def _called(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def is_message(value: object) -> bool:
    """Tell whether this looks like one message, in any shape that is read."""
    if not isinstance(value, Mapping) or isinstance(value.get("messages"), list):
        return False
    return role(value) is not Role.OTHER or isinstance(value.get("role"), str)


def words(message: object) -> str:
    """Return what a message says as one printable line: its text, then its calls."""
    parts = [_said(field(message, "content")), _said(field(message, "parts"))]
    parts += [f"{call.name or 'tool'}()" for call in calls(message)]
    line = " ".join(part for part in parts if part)
    printable = "".join(letter if letter.isprintable() else " " for letter in line)
    return " ".join(printable.split())


def _said(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(filter(None, map(_said, content)))
    if isinstance(content, Mapping):
        if isinstance(text := content.get("text"), str):
            return text
        if content.get("type") == "tool_result":
            return _said(content.get("content"))
        if isinstance(kind := content.get("type"), str) and kind not in _SILENT:
            return f"[{kind}]"
    return ""


_SILENT = frozenset({"text", "tool_use", "tool_call", "function_call"})


def langchain_messages(messages: Sequence[object]) -> list[BaseMessage]:
    """Turn recorded messages into LangChain's objects.

    Anthropic's user message that carries tool results becomes one message per result, and one
    more for what the user said. Raises `TranscriptError` that names the message.
    """
    found: list[BaseMessage] = []
    for number, message in enumerate(messages, start=1):
        try:
            found.extend(_objects(message))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise TranscriptError(
                f"message {number} cannot be replayed: {reason}; allowed are the message formats "
                "of OpenAI, Anthropic and LangChain"
            ) from None
    return found


def _objects(message: object) -> Iterator[BaseMessage]:
    if isinstance(message, BaseMessage):
        yield message
        return
    fields = _flat(message)
    match role(message):
        case Role.SYSTEM:
            yield SystemMessage.model_validate(_common(fields))
        case Role.HUMAN:
            yield HumanMessage.model_validate(_common(fields))
        case Role.AI:
            yield _assistant(fields)
        case Role.TOOL:
            yield from _results(fields)
        case Role.OTHER:
            raise ValueError(f"its role is {fields.get('role', fields.get('type'))!r}")


def _flat(message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise TypeError(f"it is {_called(message)}")
    inner = message.get("data") or message.get("kwargs")
    fields = inner if isinstance(inner, Mapping) and "content" not in message else message
    return {str(name): value for name, value in fields.items()}


def _common(fields: dict[str, object]) -> dict[str, object]:
    if "parts" in fields:
        raise ValueError("it is in Gemini's format")
    content = fields.get("content")
    found: dict[str, object] = {"content": "" if content is None else content}
    for name in ("name", "id"):
        if isinstance(fields.get(name), str):
            found[name] = fields[name]
    extra = fields.get("additional_kwargs")
    extras = dict(extra) if isinstance(extra, Mapping) else {}
    if "role" in fields:  # an OpenAI or Anthropic dict: what has no place of its own stays beside
        extras |= {name: value for name, value in fields.items() if name not in _KNOWN}
        extras.pop("additional_kwargs", None)
    if extras:
        found["additional_kwargs"] = extras
    return found


def _assistant(fields: dict[str, object]) -> AIMessage:
    asked = [_call(item) for item in _asked(fields)]
    found = _common(fields)
    found["tool_calls"] = [
        {**call, "type": "tool_call"} for call in asked if isinstance(call["args"], dict)
    ]
    found["invalid_tool_calls"] = [
        {**call, "type": "invalid_tool_call", "args": str(call["args"]), "error": None}
        for call in asked
        if not isinstance(call["args"], dict)
    ]
    for name in ("response_metadata", "usage_metadata"):
        if isinstance(fields.get(name), Mapping):
            found[name] = fields[name]
    return AIMessage.model_validate(found)


def _asked(fields: dict[str, object]) -> list[Mapping[object, object]]:
    found = [*_mappings(fields.get("tool_calls")), *_mappings(fields.get("invalid_tool_calls"))]
    if found:
        return found
    extra = fields.get("additional_kwargs")
    for source in (fields, extra):
        if isinstance(source, Mapping):
            legacy = source.get("function_call")
            found = _mappings(source.get("tool_calls")) or _mappings([legacy])
            if found:
                return found
    asked = ("tool_use", "tool_call")
    return [block for block in _mappings(fields.get("content")) if block.get("type") in asked]


def _call(item: Mapping[object, object]) -> dict[str, object]:
    function = item.get("function")
    source = function if isinstance(function, Mapping) else item
    args = next((source[key] for key in ("args", "arguments", "input") if key in source), {})
    key = item.get("id")
    return {
        "name": str(source.get("name") or "tool"),
        "args": _arguments(args),
        "id": key if isinstance(key, str) else None,
    }


def _arguments(args: object) -> object:
    if not isinstance(args, str):
        return args if args is not None else {}
    try:
        return json.loads(args, strict=False) if args.strip() else {}
    except (ValueError, RecursionError):
        return args


def _results(fields: dict[str, object]) -> Iterator[BaseMessage]:
    content = _mappings(fields.get("content"))
    if not any(block.get("type") == "tool_result" for block in content):
        status = "error" if fields.get("status") == "error" else "success"
        key = str(fields.get("tool_call_id") or "")
        yield ToolMessage.model_validate({**_common(fields), "tool_call_id": key, "status": status})
        return
    rest: list[dict[object, object]] = []
    for block in content:
        if block.get("type") != "tool_result":
            rest.append(dict(block))
            continue
        text = block.get("content")
        yield ToolMessage.model_validate(
            {
                "content": "" if text is None else text,
                "tool_call_id": str(block.get("tool_use_id") or ""),
                "status": "error" if block.get("is_error") else "success",
            }
        )
    if rest:
        yield HumanMessage.model_validate({"content": rest})


def _mappings(value: object) -> list[Mapping[object, object]]:
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value if isinstance(item, Mapping)]
