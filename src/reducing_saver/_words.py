"""Say in words what is printed: numbers, marks, places, and what a message says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .engine import Mark
from .engine.messages import calls, field
from .engine.validity import Provider

NAMES: dict[Provider, str] = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini"}

_SILENT = frozenset({"text", "tool_use", "tool_call", "function_call"})


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sized(mark: Mark) -> str:
    """Return a mark as one says it: `1 turn`, `4,000 tokens`."""
    return count(mark.value, mark.measure.removesuffix("s"))


def listed(names: Sequence[str]) -> str:
    """Return names as one says them: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def place(index: int) -> str:
    """Return which message is meant, counted from 1; nothing for a whole list (-1)."""
    return f", message {index + 1}" if index >= 0 else ""


def line(message: object) -> str:
    """Return what a message says as one printable line: its text, then its calls."""
    return one_line(" ".join([*said(message), *(f"{c.name or 'tool'}()" for c in calls(message))]))


def said(message: object) -> list[str]:
    """Return the texts of a message, and `[image]` for what is no text."""
    return [*filter(None, (_said(field(message, "content")), _said(field(message, "parts"))))]


def one_line(text: str) -> str:
    """Return a text as one line that a terminal shows as it is."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def size(number: float) -> str:
    """Return bytes as one says them: `512 bytes`, `4.2 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if round(number, 1) < 1000:
            return f"{number:.0f} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration(seconds: float) -> str:
    """Return a time as one says it: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes and hours < 100 else f"{hours:,} h"


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
