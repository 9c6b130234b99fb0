"""Turn recorded messages into LangChain's objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from .._transcripts import TranscriptError
from ..engine.messages import Role, role

# Fields that a message object has of its own; whatever else a dict holds is kept beside them.
_KNOWN = frozenset(
    {"role", "type", "content", "tool_calls", "function_call", "name", "id", "tool_call_id"}
)


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
            name = fields.get("role") or fields.get("type") or "unknown"
            yield ChatMessage.model_validate({**_common(fields), "role": str(name)})


def _flat(message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise TypeError("it is not an object")
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
    if fields.get("type") == "function_call":  # an item of OpenAI's Responses
        return _mappings([fields])
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
    key = item.get("call_id") or item.get("id")
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
        key = str(fields.get("tool_call_id") or fields.get("call_id") or "")
        found = _common({"content": fields.get("output"), **fields})
        yield ToolMessage.model_validate({**found, "tool_call_id": key, "status": status})
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
