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
