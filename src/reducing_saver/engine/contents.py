"""Find the texts and the media inside a message, whatever its shape, and copy it with others."""

from __future__ import annotations

import base64
import binascii
import copy
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from langchain_core.messages import BaseMessage

from .messages import Message, field, is_media

Path: TypeAlias = tuple[str | int, ...]

_RESPONSES = ("function_response", "functionResponse")
_LEAST_INLINE = 1_024
"""Shorter base64 is left as it is: a placeholder would hardly be smaller."""

_DEEPEST = 8

# As much as tells: no text has so many letters without a space, and a link has others.
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-][\r\n]*){512}")


class Inline(NamedTuple):
    """Describe media whose bytes stand in a block; `digest` has 16 digits of SHA-256."""

    mime: str
    size: int
    digest: str


def texts_at(message: Message) -> list[tuple[Path, str]]:
    """Return every text that a tool or a human wrote, with its path.

    Of a message that carries tool results in blocks only those are looked into: the rest of it is
    a human's.
    """
    return [(path, value) for path, value in _values(message) if isinstance(value, str)]


def media_at(message: Message) -> list[tuple[Path, dict[str, object]]]:
    """Return every block with an image, audio, video or file, with its path."""
    return [(path, value) for path, value in _values(message) if isinstance(value, dict)]


def holds_blocks(message: Message) -> bool:
    """Tell whether the content is a list, which may hold media."""
    return any(isinstance(field(message, name), list) for name in ("content", "parts", "output"))


def inline(block: Mapping[str, object]) -> Inline | None:
    """Describe the bytes that a media block carries itself; None where it only points to them."""
    data = max(filter(_is_data, _strings(block)), key=len, default="")
    head, _, body = data.partition(",") if _is_uri(data) else ("", "", data)
    if len(body) < _LEAST_INLINE:
        return None
    raw = unquote_to_bytes(body) if head and ";base64" not in head else _decoded(body)
    mime = head[5:].partition(";")[0]
    return Inline(mime or _mime(block), len(raw), sha256(raw).hexdigest()[:16])


def text_block(block: Mapping[str, object], text: str) -> dict[str, object]:
    """Return a text block in the dialect of a media block."""
    kind = block.get("type")
    if not isinstance(kind, str):  # Gemini's parts have no type
        return {"text": text}
    return {"type": "input_text" if kind.startswith("input_") else "text", "text": text}


def replaced(message: Message, values: Mapping[Path, object]) -> Message | None:
    """Return a copy with other values at these paths; None where it cannot be copied.

    Everything else is shared with the original, which is not changed.
    """
    tops = {path[0] for path in values}
    fresh = {top: field(message, str(top)) for top in tops}
    for path, value in values.items():
        fresh[path[0]] = _put(fresh[path[0]], path[1:], value)
    return with_fields(message, {str(top): value for top, value in fresh.items()})


def with_fields(message: Message, fields: Mapping[str, object]) -> Message | None:
    """Return a copy with other fields, wherever its shape has them; None where it has none."""
    if isinstance(message, BaseMessage):
        return message.model_copy(update=dict(fields))
    if isinstance(message, dict):
        for holder in ("data", "kwargs"):  # message_to_dict, and the lc form
            held = message.get(holder)
            if isinstance(held, dict) and "content" in held:
                return {**message, holder: {**held, **fields}}
        return {**message, **fields}
    try:
        twin = copy.copy(message)
        for name, value in fields.items():
            setattr(twin, name, value)
    except (TypeError, AttributeError, ValueError):
        return None
    return twin


def _values(message: Message) -> list[tuple[Path, object]]:
    """Return texts and media blocks, in order."""
    found: list[tuple[Path, object]] = []
    for name in ("content", "parts", "output"):
        value = field(message, name)
        if value is None or (name != "content" and isinstance(message, BaseMessage)):
            continue
        results = value if isinstance(value, list) else []
        has_results = any(_is_result(block) for block in results)
        found += _walk(value, (name,), only_results=has_results, depth=0)
    return found


def _walk(
    value: object, path: Path, *, only_results: bool, depth: int
) -> Iterator[tuple[Path, object]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list) and depth < _DEEPEST:
        for index, item in enumerate(value):
            if not only_results or _is_result(item):
                yield from _walk(item, (*path, index), only_results=False, depth=depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        yield from _block(value, path, depth)


def _block(block: dict[str, object], path: Path, depth: int) -> Iterator[tuple[Path, object]]:
    if is_media(block):
        yield path, block
        return
    for name in ("text", "content", "output"):
        if isinstance(block.get(name), str | list):
            inner = (*path, name)
            yield from _walk(block[name], inner, only_results=False, depth=depth + 1)
    source = block.get("source")
    if isinstance(source, dict) and isinstance(source.get("data"), str):  # a document of text
        yield (*path, "source", "data"), source["data"]
    for name in _RESPONSES:
        if isinstance(part := block.get(name), dict):
            # Beside it stand its name, how it is scheduled, and media, which no text replaces.
            yield from _response(part.get("response"), (*path, name, "response"), depth)


def _response(value: object, path: Path, depth: int) -> Iterator[tuple[Path, object]]:
    """Yield the texts inside the object that a Gemini function gives back."""
    if isinstance(value, str):
        yield path, value
        return
    if depth >= _DEEPEST:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                yield from _response(item, (*path, key), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _response(item, (*path, index), depth + 1)


def _is_result(block: object) -> bool:
    if not isinstance(block, dict):
        return False
    return block.get("type") == "tool_result" or any(name in block for name in _RESPONSES)


def _put(value: object, path: Path, new: object) -> object:
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and isinstance(step, str):
        return {**value, step: _put(value.get(step), rest, new)}
    if isinstance(value, list) and isinstance(step, int):
        return [*value[:step], _put(value[step], rest, new), *value[step + 1 :]]
    return value


def _is_data(value: str) -> bool:
    """Tell whether a text is bytes; a link, or what is said about an image, is none."""
    return _is_uri(value) or _BASE64.match(value) is not None


def _is_uri(value: str) -> bool:
    return value.startswith("data:") and "," in value


def _decoded(body: str) -> bytes:
    try:
        altchars = b"-_" if "-" in body or "_" in body else None
        return base64.b64decode(f"{body}==", altchars=altchars)  # the padding may be left out
    except (binascii.Error, ValueError):
        return body.encode(errors="replace")


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | bytearray):
        yield base64.b64encode(value).decode()
    elif isinstance(value, Mapping) and depth < 4:
        for item in value.values():
            yield from _strings(item, depth + 1)


def _mime(block: Mapping[str, object]) -> str:
    places = [block, *(value for value in block.values() if isinstance(value, Mapping))]
    names = ("mime_type", "mimeType", "media_type", "format")
    found = (place.get(name) for place in places for name in names)
    kind = block.get("type")
    default = kind if isinstance(kind, str) else "file"
    return next((value for value in found if isinstance(value, str) and value), default)
