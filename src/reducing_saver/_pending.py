"""Clean pending writes that name a message which their checkpoint has evicted. Pure.

A write that removes, edits, answers or repeats such a message would make the thread unreadable or
bring the message back behind newer ones (langgraph 1.2.24: `add_messages`). The item goes and the
write stays, perhaps empty: a task without writes runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from ._channel import Place, read
from ._record import names, referred
from .engine.messages import Message, field, identifier

_REMOVE_ALL = "__remove_all__"
_OVERWRITE = "__overwrite__"

IsEvicted = Callable[[str], bool]


def clean(
    found: CheckpointTuple, places: Mapping[str, Place], evicted: Mapping[str, IsEvicted]
) -> CheckpointTuple:
    """Return the tuple without what its pending writes say of evicted messages.

    A removal of what neither the list nor another pending write holds goes as well: it makes the
    thread unreadable (`add_messages` raises), and what was evicted at rest is not recorded.
    """
    channels = {place.channel: name for name, place in places.items() if place.key is None}
    lists = {channel: read(found.checkpoint, Place(channel)) for channel in channels}
    # Without a list this is a delta channel, whose reducer passes over what it does not know.
    held = {channel: _known(value) for channel, value in lists.items() if isinstance(value, list)}
    writes = found.pending_writes or ()
    coming = {
        name
        for _, channel, value in writes
        if channel in channels
        for item in _items(value)
        if not _removes(item)
        for name in names(item)
    }

    def cleaned(channel: str, value: Any) -> Any:
        if channel not in held or _replacement(value)[0]:
            return value
        is_evicted = evicted.get(channels[channel], _nothing)
        return _cleaned(value, is_evicted, held[channel], coming)

    pending = [(task, channel, cleaned(channel, value)) for task, channel, value in writes]
    return found._replace(pending_writes=pending)


def concerns(found: CheckpointTuple, places: Mapping[str, Place]) -> bool:
    """Tell whether a pending write names a message that the checkpoint does not hold."""
    for place in places.values():
        if place.key is not None:
            continue
        known: set[str] | None = None
        for _, channel, value in found.pending_writes or ():
            if channel != place.channel:
                continue
            known = _known(read(found.checkpoint, place)) if known is None else known
            if any(not known.issuperset(referred(item)) for item in _items(value)):
                return True
    return False


def named(writes: Iterable[tuple[str, Any]], channel: str) -> frozenset[str]:
    """Return the names of messages and calls that writes refer to, but for whole new lists."""
    return frozenset(
        name
        for written, value in writes
        if written == channel and not _replacement(value)[0]
        for item in _items(value)
        for name in referred(item)
    )


def readmitted(writes: Sequence[tuple[str, Any]], channel: str) -> frozenset[str | int]:
    """Return the names of messages that writes keep by an `Overwrite` or after a remove-all."""
    kept: list[Message] = []
    for name, value in writes:
        if name == channel:
            kept += _replacement(value)[1]
    return frozenset(identifier(message) or id(message) for message in kept)


def new_among(
    messages: Sequence[Message], held: Sequence[Message], evicted: Container[Message]
) -> list[Message]:
    """Return which messages of a client are new to a thread that holds and has evicted others."""
    known = {own: message for message in held if (own := identifier(message))}

    def is_new(message: Message) -> bool:
        own = identifier(message)
        if _removes(message):
            return own in known or own == _REMOVE_ALL
        if own in known:
            return field(message, "content") != field(known[own], "content")
        return message not in evicted

    return [message for message in messages if is_new(message)]


def _cleaned(value: Any, is_evicted: IsEvicted, held: set[str], coming: set[str]) -> Any:
    def stays(item: Message) -> bool:
        own = identifier(item)
        if own and own not in held and (is_evicted(own) or (_removes(item) and own not in coming)):
            return False
        answered = [name for name in referred(item) if name != own]
        return not any(is_evicted(n) for n in answered if n not in held and n not in coming)

    if isinstance(value, list):
        kept = [item for item in value if stays(item)]
        return value if len(kept) == len(value) else kept
    return value if stays(value) else []


def _removes(item: Message) -> bool:
    return field(item, "type") == "remove"


def _nothing(name: str) -> bool:
    return False


def _known(messages: object) -> set[str]:
    items = messages if isinstance(messages, list) else []
    return {name for message in items for name in names(message)}


def _items(value: Any) -> Iterator[Message]:
    if isinstance(value, list | tuple):
        yield from value
    else:
        yield value


def _replacement(value: Any) -> tuple[bool, list[Message]]:
    """Tell whether a write replaces the whole list, and with what."""
    overwrite = _overwritten(value)
    if overwrite is not None:
        return True, overwrite if isinstance(overwrite, list) else []
    items = value if isinstance(value, list | tuple) else (value,)
    for place in range(len(items) - 1, -1, -1):
        if field(items[place], "id") == _REMOVE_ALL:
            return True, list(items[place + 1 :])
    return False, []


def _overwritten(value: Any) -> Any:
    """Return what an `Overwrite` sets, in the three forms that langgraph 1.2.24 knows."""
    if isinstance(value, dict):
        if len(value) == 1 and _OVERWRITE in value:
            return value[_OVERWRITE] or []
        return (value.get("value") or []) if value.get("type") == _OVERWRITE else None
    return (value.value or []) if type(value).__name__ == "Overwrite" else None
