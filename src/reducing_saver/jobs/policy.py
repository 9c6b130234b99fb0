"""Say what a job does to a thread: which checkpoints stay, and how much of their lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Literal, get_args

from .._errors import ConfigurationError
from .._retain import Retain, describe
from ..engine import Window

Paused = Literal["skip", "history"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Say what stays of a stored thread.

    - `window`: how much of the list in every checkpoint that stays; None leaves lists as they are.
    - `retain`: which checkpoints stay.
    - `paused`: `"skip"` leaves threads alone that wait for somebody or have pending writes;
      `"history"` lets their old checkpoints go and changes nothing in those that stay.
    """

    window: Window | None = None
    retain: Retain = field(default_factory=Retain)
    paused: Paused = "skip"

    def __post_init__(self) -> None:
        if not (self.window is None or isinstance(self.window, Window)):
            allowed = 'a Window, as Window(keep=("turns", 6)), or None'
            raise ConfigurationError("window", self.window, allowed)
        if not isinstance(self.retain, Retain):
            raise ConfigurationError("retain", self.retain, "a Retain, as Retain(last=3)")
        if self.paused not in get_args(Paused):
            raise ConfigurationError("paused", self.paused, '"skip" or "history"')

    def __str__(self) -> str:
        window = "lists whole" if self.window is None else repr(self.window)
        return f"{window}; keep {self.retain}; paused: {self.paused}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; functions are named, not held."""
        window = None if self.window is None else _window(self.window)
        return {"window": window, "retain": dict(describe(self.retain)), "paused": self.paused}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """Return the policy that `as_dict` wrote; one with functions has to be given as it is."""
        window, retain = data["window"], dict(data["retain"])
        if retain["newer"] is not None:
            retain["newer"] = timedelta(seconds=retain["newer"])
        if window is not None:
            functions = [name for name in _functions(window) if name]
            if functions:
                raise ConfigurationError("policy", None, f"the one of the job: {functions}")
            window = Window(**{**window, "trigger": [tuple(mark) for mark in window["trigger"]]})
        return cls(window, Retain(**retain), data["paused"])


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return the same short text for the same plain data."""
    text = json.dumps(data, sort_keys=True).encode()
    return blake2b(text, digest_size=8).hexdigest()


def _window(window: Window) -> dict[str, Any]:
    return {
        "keep": list(window.keep),
        "trigger": [list(mark) for mark in window.triggers],
        "cap": list(window.cap),
        "pin_first_human": window.pin_first_human,
        "pinned": [_named(pin) for pin in window.pinned],
        "keep_latest_of": list(window.keep_latest_of),
        "token_counter": _named(window.token_counter),
        "media_tokens": window.media_tokens,
    }


_FUNCTION = "function "


def _named(value: object) -> str:
    if isinstance(value, str):
        return value
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{_FUNCTION}{getattr(value, '__module__', '')}.{name}"


def _functions(window: Mapping[str, Any]) -> list[str]:
    named = [*window["pinned"], window["token_counter"]]
    return [name.removeprefix(_FUNCTION) for name in named if name.startswith(_FUNCTION)]
