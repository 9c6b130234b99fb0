"""Bound what only repeats a message list: other channels, and the state that `Send` carries. Pure.

In `create_react_agent` v2 each tool call is sent with the whole state, in the checkpoint and again
in a pending write (langgraph-prebuilt 1.1.3).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

from langgraph.checkpoint.base import Checkpoint

from ._channel import TASKS, Place, read, write

Bound = Callable[[list[object]], list[object]]

_DEEPEST = 3


def bound_checkpoint(
    checkpoint: Checkpoint, copies: Collection[Place], keys: Collection[str], bound: Bound
) -> Checkpoint:
    """Return the checkpoint with bounded copies; the same object where nothing is too large."""
    for place in copies:
        messages = read(checkpoint, place)
        if isinstance(messages, list) and (left := bound(messages)) is not messages:
            checkpoint = write(checkpoint, place, left)
    tasks = checkpoint["channel_values"].get(TASKS)
    if not isinstance(tasks, list) or not tasks:
        return checkpoint
    sent = [bound_send(task, keys, bound) for task in tasks]
    if all(new is old for new, old in zip(sent, tasks, strict=True)):
        return checkpoint
    return write(checkpoint, Place(TASKS), sent)


def repeats(writes: Sequence[tuple[str, Any]], copies: Collection[Place]) -> bool:
    """Tell whether pending writes may hold a copy; most hold none."""
    copied = {TASKS, *(place.channel for place in copies)}
    return any(channel in copied for channel, _ in writes)


def bound_writes(
    writes: Sequence[tuple[str, Any]],
    copies: Collection[Place],
    keys: Collection[str],
    bound: Bound,
) -> list[tuple[str, Any]]:
    """Return pending writes with bounded copies."""
    channels = {place.channel: place for place in copies}
    return [
        (channel, _bound_write(channel, value, channels, keys, bound)) for channel, value in writes
    ]


def _bound_write(
    channel: str, value: Any, channels: dict[str, Place], keys: Collection[str], bound: Bound
) -> Any:
    if channel == TASKS:
        return bound_send(value, keys, bound)
    place = channels.get(channel)
    if place is None:
        return value
    if place.key is not None:
        return _bound_state(value, (place.key,), bound)
    return bound(value) if isinstance(value, list) else value


def bound_send(send: Any, keys: Collection[str], bound: Bound) -> Any:
    """Return a `Send` whose state is bounded; the same object where it is small, or no `Send`."""
    if not hasattr(send, "node") or not isinstance(getattr(send, "arg", None), dict):
        return send
    arg = _bound_state(send.arg, keys, bound)
    if arg is send.arg:
        return send
    sent = copy.copy(send)
    sent.arg = arg
    return sent


def _bound_state(state: Any, keys: Collection[str], bound: Bound, depth: int = 0) -> Any:
    if not isinstance(state, dict) or depth >= _DEEPEST:
        return state
    changed: dict[Any, Any] = {}
    for key, value in state.items():
        small: object = value
        if key in keys and isinstance(value, list):
            small = bound(value)
        elif isinstance(value, dict):
            small = _bound_state(value, keys, bound, depth + 1)
        if small is not value:
            changed[key] = small
    return {**state, **changed} if changed else state
