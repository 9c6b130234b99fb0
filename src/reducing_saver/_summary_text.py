"""Write messages down for a summariser, in chunks that fit, and cut texts to size. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage

from .engine import Message, Role, Unit, split
from .engine.messages import answers, blocks, calls, field, is_media, is_summary, role

HEAD = "Here is a summary of the conversation to date:"
"""What stands before a summary, ours and that of LangChain's `SummarizationMiddleware`."""

CUT = " … [cut]"
"""What a summary ends with that was longer than it may be."""

Count: TypeAlias = Callable[[Message], int]

_LABELS = {Role.SYSTEM: "system", Role.HUMAN: "user", Role.AI: "assistant", Role.OTHER: "message"}
_CALLS = frozenset({"tool_use", "tool_call", "function_call"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})
_OPAQUE = frozenset({"signature", "encrypted_content", "encrypted_index", "thought_signature"})
_LONGEST_LINK = 200
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,\s]{0,99};base64,[A-Za-z0-9+/=_-]{64,}")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？]|\n")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Hold messages that one call reads, and what they say; not `whole` where one was cut."""

    messages: tuple[Message, ...]
    text: str
    size: int
    whole: bool = True


def chunked(
    messages: Sequence[Message], room: int, *, count: Count, written: bool
) -> Iterator[Chunk]:
    """Yield the messages in chunks of at most `room`, every message in one of them.

    A tool call stays with its results where they fit. A message that alone does not fit is cut
    in its middle. What is counted is the text, or the messages where they are not `written`.
    """
    group: list[Chunk] = []
    used = 0
    for piece in _pieces(messages, room, count, written):
        if group and used + piece.size > room:
            yield _together(group)
            group, used = [], 0
        group.append(piece)
        used += piece.size
    if group:
        yield _together(group)


def _together(group: Sequence[Chunk]) -> Chunk:
    members = tuple(message for chunk in group for message in chunk.messages)
    text = "\n".join(chunk.text for chunk in group)
    size = sum(chunk.size for chunk in group)
    return Chunk(members, text, size, all(chunk.whole for chunk in group))


def _pieces(messages: Sequence[Message], room: int, count: Count, written: bool) -> Iterator[Chunk]:
    def measured(members: Sequence[Message], text: str) -> Chunk:
        size = text_size(text, count) if written else sum(map(count, members))
        return Chunk(tuple(members), text, size)

    for unit in split(messages):
        said = _write(unit)
        whole = measured(unit.messages, "\n".join(said))
        if whole.size <= room:
            yield whole
            continue
        for message, text in zip(unit.messages, said, strict=True):
            single = measured((message,), text)
            yield single if single.size <= room else _cut(single, room, count)


def _cut(piece: Chunk, room: int, count: Count) -> Chunk:
    text = cut_middle(piece.text, room, count)
    short = HumanMessage(text)
    return Chunk((short,), text, count(short), whole=False)


def text_size(text: str, count: Count) -> int:
    """Count a text as it will be counted in a prompt."""
    return count(HumanMessage(text))


def _write(unit: Unit) -> list[str]:
    """Write each message of a unit down as `speaker: text`; no content can look like a speaker."""
    asked = unit.messages if unit.tools else ()
    names = {call.id: call.name for message in asked for call in calls(message)}
    return ["\n".join(map(_indented, _lines(message, names))) for message in unit.messages]


def _lines(message: Message, names: dict[str, str]) -> Iterator[str]:
    label, text = _label(message, names), content_text(message)
    asked = list(_asked(message)) if role(message) is Role.AI else []
    if text or not asked:
        yield f"{label}: {text or '(no text)'}"
    for name, arguments in asked:
        yield f"{label} calls {_line(name) or 'a tool'}: {arguments}"


def _indented(text: str) -> str:
    return "\n    ".join(text.splitlines())


def _line(text: str) -> str:
    return " ".join(text.split())


def _label(message: Message, names: dict[str, str]) -> str:
    if is_summary(message):
        return "earlier summary"
    speaker = role(message)
    if speaker is Role.TOOL:
        found = [answer.name or names.get(answer.id, "") for answer in answers(message)]
        failed = " (error)" if field(message, "status") == "error" else ""
        return f"result of {', '.join(filter(None, map(_line, found))) or 'a tool'}{failed}"
    name = None if field(message, "type") == "function_call" else field(message, "name")
    return f"{_LABELS[speaker]} ({_line(name)})" if isinstance(name, str) else _LABELS[speaker]


def content_text(message: Message) -> str:
    """Return what a message says in words; media as short placeholders, thoughts left out."""
    content = field(message, "content")
    if content is None and not isinstance(message, BaseMessage):
        content = field(message, "parts") or field(message, "output")
    text = _said(content)
    return without_head(text) if is_summary(message) else text


def _said(content: object) -> str:
    if isinstance(content, str):
        return _DATA_URI.sub(lambda found: f"[{found[1] or 'data'}]", content.strip())
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(_block, content)))
    return "" if content is None else _block(content)


def _block(block: object) -> str:
    if isinstance(block, str):
        return _said(block)
    kind = _kind(block)
    if _is_media(block):
        return _placeholder(block)
    if kind in _THOUGHTS or kind in _CALLS or _function_call(block):
        return ""  # calls have lines of their own
    text, inner = field(block, "text"), field(block, "content")
    if isinstance(text, str):
        return _said(text)
    if kind == "tool_result" or isinstance(inner, str):
        return _said(inner)
    return _json(block)


def _kind(block: object) -> str:
    kind = field(block, "type")
    return kind if isinstance(kind, str) else ""


def _is_media(block: object) -> bool:
    # A JSON schema among the arguments of a call may have a list as its type.
    return isinstance(field(block, "type"), str | None) and is_media(block)


def _placeholder(block: object) -> str:
    """Name an image, audio, video or file: its kind, and its file name or link."""
    places = [block]
    if isinstance(block, dict):
        places += [value for value in block.values() if isinstance(value, dict)]

    def first(*names: str) -> str:
        found = (field(place, name) for place in places for name in names)
        return next((value for value in found if isinstance(value, str)), "")

    described = f"{first('type')} {first('mime_type', 'mimeType', 'media_type')}"
    kind = next((word for word in ("image", "audio", "video") if word in described), "file")
    link = first("url", "image_url", "file_uri", "fileUri")
    seen = link if link.startswith("http") and len(link) <= _LONGEST_LINK else ""
    name = _line(first("filename", "file_name", "name", "title"))[:_LONGEST_LINK] or seen
    return f"[{kind}: {name}]" if name else f"[{kind}]"


def _asked(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the name and the arguments of every tool call of a message."""
    for item in _call_items(message):
        named = field(item, "function") or item
        given = (field(named, name) for name in ("args", "arguments", "input"))
        arguments = next((value for value in given if value is not None), {})
        name = field(named, "name")
        yield name if isinstance(name, str) else "", _json(arguments)


def _call_items(message: Message) -> list[object]:
    listed = [*_items(message, "tool_calls"), *_items(message, "invalid_tool_calls")]
    if listed:
        return listed
    if field(message, "type") == "function_call":
        return [message]
    extra = field(message, "additional_kwargs")
    places = [extra] if extra else []
    if not isinstance(message, BaseMessage):
        places.append(message)
    legacy = [call for place in places if (call := field(place, "function_call"))]
    found = legacy or (_items(extra, "tool_calls") if extra else [])
    return found or [
        _function_call(block) or block
        for block in blocks(message)
        if _kind(block) in _CALLS or _function_call(block)
    ]


def _items(message: Message, name: str) -> list[object]:
    value = field(message, name)
    return [item for item in value if item] if isinstance(value, list | tuple) else []


def _function_call(block: object) -> object:
    return field(block, "function_call") or field(block, "functionCall")


def _json(value: object) -> str:
    text = (
        value
        if isinstance(value, str)
        else json.dumps(_lean(value), default=str, ensure_ascii=False)
    )
    return _said(text)


def _lean(value: object) -> object:
    """Return plain data without media and what only a provider can read."""
    if isinstance(value, dict):
        if _is_media(value):
            return _placeholder(value)
        return {str(key): _lean(item) for key, item in value.items() if key not in _OPAQUE}
    if isinstance(value, list | tuple):
        return [_lean(item) for item in value]
    return f"[{len(value):,} bytes]" if isinstance(value, bytes | bytearray) else value


def without_head(text: str) -> str:
    """Return a summary without what stands before it, and without the mark of a cut."""
    return text.strip().removeprefix(HEAD).removesuffix(CUT).strip()


def cut_end(text: str, limit: int, count: Count) -> str:
    """Return a text of at most `limit`, cut after a sentence or a word and marked."""
    if text_size(text, count) <= limit:
        return text
    longest = _longest(len(text), lambda size: text_size(text[:size] + CUT, count) <= limit)
    return _until_sentence(text[:longest], text[longest : longest + 1]) + CUT


def cut_unfinished(text: str) -> str:
    """Cut a text that its writer could not finish, and mark it."""
    return _until_sentence(text, None) + CUT


def _until_sentence(text: str, following: str | None) -> str:
    """Drop an unfinished sentence at the end; a word where that would drop more than half."""
    half = len(text) // 2
    ends = [found.end() for found in _SENTENCE_END.finditer(text + (following or " "))]
    complete = [end for end in ends if half < end <= len(text)]
    if complete:
        return text[: complete[-1]].rstrip()
    word = text.rfind(" ")
    unfinished = following is None or not following.isspace()
    return (text[:word] if unfinished and word > half else text).rstrip()


def cut_middle(text: str, limit: int, count: Count) -> str:
    """Return head and tail of a text, at most `limit`, around a mark of what is left out."""

    def kept(size: int) -> str:
        tail = size // 4
        mark = f"[… {len(text) - size:,} characters left out …]"
        return f"{text[: size - tail]}\n    {mark}\n    {text[len(text) - tail :]}"

    return kept(_longest(len(text), lambda size: text_size(kept(size), count) <= limit))


def _longest(length: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size that fits, by doubling and halving: counting is costly."""
    low, high = 0, 64
    while high < length and fits(high):
        low, high = high, 2 * high
    high = min(high, length)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def as_prompt(text: str, previous: str | None) -> str:
    """Frame a transcript, and the summary before it, so that neither can end its frame."""
    parts = [] if previous is None else [("previous_summary", previous)]
    parts.append(("transcript", text))
    framed = "\n\n".join(f"<{tag}>\n{_TAG.sub('[', said)}\n</{tag}>" for tag, said in parts)
    return f"{framed}\n\nWrite the new summary now."


_TAG = re.compile(r"<(?=\s*/?\s*(?:transcript|previous_summary)\b)", re.IGNORECASE)
