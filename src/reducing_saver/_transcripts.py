"""Read people's own conversations from a JSON file.

What is read: a list of messages, `{"messages": [...]}` (also a request body of OpenAI or
Anthropic, and the state of a LangGraph thread), a list of either, and JSON lines of any of them.
A message is an OpenAI, Anthropic, Gemini or serialised LangChain dict.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .engine.messages import Role, role

ALLOWED = (
    'a list of messages, {"messages": [...]}, a list of such conversations, or JSON lines of them'
)
_NAMES = ("id", "thread_id", "conversation_id", "session_id")
_STATES = ("values", "channel_values", "state", "input", "body", "request")


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
