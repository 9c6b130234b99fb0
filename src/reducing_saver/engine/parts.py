"""Cut a text into parts that can be left out, and put the chosen ones back together.

A text is cut into lines, a JSON text into its records, members and elements, and what is still too
long into stretches. What is put back is verbatim, and JSON stays JSON. Pure.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

GAP = "..."
"""Stands where parts are left out; as an element or a member in JSON."""

MOST_PARTS = 20_000

_LONGEST_STRETCH = 400
_DEEPEST = 16
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_DOTS = re.compile(r'(?<=")\.{3,}(?=")')

# What must not be cut apart in a JSON string: escapes, and two that are one character.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ATOM = rf"(?:{_HIGH}{_LOW}|(?!{_HIGH}{_LOW})\\u[0-9a-fA-F]{{4}}|\\[^u]|[^\\])"


class Shape(StrEnum):
    """Say how the parts of a whole are put together again."""

    LINES = "lines"
    STRETCHES = "stretches"
    ARRAY = "array"
    OBJECT = "object"
    STRING = "string"
    LEAF = "leaf"


class Part(NamedTuple):
    """Hold a stretch `[start, end)` of a text.

    What has parts of its own begins with `[start, head)` and ends with `[tail, end)`.
    """

    shape: Shape
    start: int
    end: int
    head: int = 0
    tail: int = 0
    parts: tuple[Part, ...] = ()


def cut(text: str, most: int) -> Part:
    """Return the parts of a text; those that are left out or stay have about `most` characters."""
    return _json(text, most) or _lines(text, most)


def is_json(whole: Part) -> bool:
    """Tell whether a text is a JSON object or array."""
    return whole.shape in (Shape.ARRAY, Shape.OBJECT)


def leaves(whole: Part, above: tuple[Part, ...] = ()) -> Iterator[tuple[Part, tuple[Part, ...]]]:
    """Yield what can be chosen, in order, each with what it stands in, outermost first."""
    if not whole.parts:
        yield whole, above
        return
    inside = (*above, whole)
    for part in whole.parts:
        if part.parts:
            yield from leaves(part, inside)
        else:  # most are: a result of 1 MB has 20,000
            yield part, inside


def render(text: str, whole: Part, chosen: Collection[int], note: str | None = None) -> str:
    """Put the leaves that begin at the chosen positions together.

    The note, a line of plain ASCII without quotes, stands at the end: as a line, or as the last
    element or member.
    """
    if not is_json(whole):
        body = _rendered(text, whole, chosen) or f"{GAP}\n"
        return body if note is None else f"{body}{'' if body.endswith(chr(10)) else chr(10)}{note}"
    return _container(text, whole, chosen, note)


def overhead(part: Part) -> int:
    """Return what a whole takes besides its parts, in characters."""
    return (part.head - part.start) + (part.end - part.tail) + len(GAP) + 8


# ---------------------------------------------------------------------------------- put together


def _rendered(text: str, part: Part, chosen: Collection[int]) -> str:
    """Return a part with what is chosen of it; nothing where nothing is."""
    if not part.parts:
        return text[part.start : part.end] if part.start in chosen else ""
    if part.shape in (Shape.ARRAY, Shape.OBJECT):
        kept = any(leaf.start in chosen for leaf, _ in leaves(part))
        return _container(text, part, chosen, None) if kept else ""
    gap = f"{GAP}\n" if part.shape is Shape.LINES else GAP
    found: list[str] = []
    for inner in part.parts:
        if not inner.parts and inner.start not in chosen:
            said = ""
        else:
            said = _rendered(text, inner, chosen)
        if said:
            found.append(said)
        elif not found or found[-1] is not gap:
            found.append(gap)
    if all(one is gap for one in found):
        return ""
    if part.shape is Shape.STRETCHES and found[-1] is gap and text[part.end - 1] == "\n":
        found.append("\n")
    return f"{text[part.start : part.head]}{''.join(found)}{text[part.tail : part.end]}"


def _container(text: str, part: Part, chosen: Collection[int], note: str | None) -> str:
    said = [one for inner in part.parts if (one := _rendered(text, inner, chosen))]
    if len(said) < len(part.parts) or note is not None:
        said.append(_marker(text, part, note or GAP, first=not said))
    body = ",".join(said)
    return f"{text[part.start : part.head]}{body}{text[part.tail : part.end]}"


def _marker(text: str, part: Part, said: str, *, first: bool) -> str:
    space = "" if first else _SPACE.match(text, part.parts[-1].start)[0]  # type: ignore[index]
    if part.shape is Shape.ARRAY:
        return f'{space}"{said}"'
    taken = set(_DOTS.findall(text, part.start, part.end))
    name = GAP
    while name in taken:
        name += "."
    return f'{space}"{name}": "{said}"'


# --------------------------------------------------------------------------------------- lines


def _lines(text: str, most: int) -> Part:
    lines = text.splitlines(keepends=True)
    least = len(text) // MOST_PARTS if len(lines) > MOST_PARTS else 0
    parts: list[Part] = []
    start = end = 0
    for line in lines:
        end += len(line)
        if end - start > least:
            parts.append(_line(text, start, end, most))
            start = end
    if start < end:
        parts.append(_line(text, start, end, most))
    return Part(Shape.LINES, 0, len(text), 0, len(text), tuple(parts))


def _line(text: str, start: int, end: int, most: int) -> Part:
    if end - start <= max(most, len(text) // MOST_PARTS):
        return Part(Shape.LEAF, start, end)
    stretches = tuple(_stretches(text, start, end, most, r"[\s\S]", r"(?<=\s)"))
    return Part(Shape.STRETCHES, start, end, start, end, stretches)


def _stretches(text: str, start: int, end: int, most: int, atom: str, after: str) -> Iterator[Part]:
    """Cut at most so many characters at a time, after a space where there is one."""
    size = max(1, min(most, _LONGEST_STRETCH))
    size = max(size, (end - start) // MOST_PARTS)
    pattern = re.compile(rf"{atom}{{1,{size}}}(?:{after}|\Z)|{atom}{{1,{size}}}|[\s\S]")
    begin = position = start
    while position < end:
        found = pattern.match(text, position, end)
        position = found.end() if found else end
        if position >= end or not _inside_a_character(text, position):
            yield Part(Shape.LEAF, begin, position)
            begin = position
    if begin < end:
        yield Part(Shape.LEAF, begin, end)


def _inside_a_character(text: str, at: int) -> bool:
    """Tell whether what a reader takes for one character goes on at this place."""
    before, after = text[at - 1], text[at]
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if after.isascii():
        return before == "\r" and after == "\n"
    joins = after == "\u200d" or "\ufe00" <= after <= "\ufe0f" or before == "\u200d"
    tinted = "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f"
    flags = "\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff"
    return joins or tinted or flags or unicodedata.category(after).startswith("M")


# ---------------------------------------------------------------------------------------- JSON


def _json(text: str, most: int) -> Part | None:
    start = _skip(text, 0)
    if text[start : start + 1] not in ("{", "["):
        return None
    try:
        end = _end(text, start)
        if _skip(text, end) != len(text):
            return None
        whole = _opened(text, 0, start, end, most, 0)
    except (ValueError, RecursionError):
        return None
    return whole._replace(end=len(text)) if whole.parts else None


def _opened(text: str, start: int, value: int, end: int, most: int, depth: int) -> Part:
    """Return the parts of a value whose text, with its name before it, begins at `start`."""
    opening = text[value]
    if opening == '"':
        stretches = tuple(_stretches(text, value + 1, end - 1, most, _ATOM, r"(?<=\s)|(?<=\\n)"))
        return Part(Shape.STRING, start, end, value + 1, end - 1, stretches)
    shape = Shape.OBJECT if opening == "{" else Shape.ARRAY
    children = list(_children(text, value, named=opening == "{"))
    if not children:
        return Part(Shape.LEAF, start, end)
    parts = _grouped((_child(text, *child, most, depth + 1) for child in children), text)
    return Part(shape, start, end, value + 1, children[-1][2], parts)


def _grouped(parts: Iterable[Part], text: str) -> tuple[Part, ...]:
    """Take neighbours together where a long text has very many small ones."""
    least = len(text) // MOST_PARTS
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if last and not last.parts and not part.parts and part.end - last.start < least:
            found[-1] = last._replace(end=part.end)
        else:
            found.append(part)
    return tuple(found)


def _child(text: str, start: int, value: int, end: int, most: int, depth: int) -> Part:
    if end - start <= most or text[value] not in '{["' or depth > _DEEPEST:
        return Part(Shape.LEAF, start, end)
    return _opened(text, start, value, end, most, depth)


def _children(text: str, at: int, *, named: bool) -> Iterator[tuple[int, int, int]]:
    """Yield where each element or member begins, its value begins, and it ends."""
    start = at + 1
    if text[_skip(text, start)] in "]}":
        return
    while True:
        value = _skip(text, start)
        if named:
            value = _skip(text, _skip(text, _end(text, value)) + 1)
        end = _end(text, value)
        yield start, value, end
        following = _skip(text, end)
        if text[following] != ",":
            return
        start = following + 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _end(text: str, at: int) -> int:
    end: int = _DECODER.raw_decode(text, at)[1]
    return end
