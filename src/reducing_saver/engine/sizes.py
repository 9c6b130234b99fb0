"""Remember how big each message is, so that nothing is counted twice."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from .counters import Counter, count_bytes
from .messages import Message

_MOST_HELD = 65_536
_MOST_HELD_BYTES = 8_000_000


class Sizes:
    """Remember the size of each message object.

    The key is the object, never its id field: messages are edited in place and ids repeat. A
    message whose `content` changed is counted again. Messages are referred to weakly, so nothing
    is kept alive; dicts cannot be and are held, at most 65,536 of them and 8 MB. Safe to use from
    threads: at worst a message is counted twice.
    """

    def __init__(self, count: Counter) -> None:
        self._count = count
        self._seen: dict[int, _Weak | _Held] = {}
        self._held = self._held_bytes = 0

    def of(self, message: Message) -> int:
        """Return the size of one message."""
        # Written out, without calls: this runs for every message of every put.
        if type(message) is dict:
            content = message.get("content")
        else:
            content = getattr(message, "content", None)
        seen = self._seen.get(id(message))
        if (
            seen is not None
            and seen.content is content
            and (seen.length < 0 or seen.length == _length(content))
        ):
            return seen.size
        size = self._count(message)
        self._remember(message, content, size)
        return size

    def once(self, message: Message) -> int:
        """Return the size of a message that is about to go, without remembering it."""
        return self.of(message) if id(message) in self._seen else self._count(message)

    def exceed(self, messages: Sequence[Message], start: int, limit: int) -> bool:
        """Tell whether `messages[start:]` are larger than `limit`, counting from the tail."""
        total, of, known = 0, self.of, self._seen.get
        for index in range(len(messages) - 1, start - 1, -1):
            message = messages[index]
            seen = known(id(message))
            content = getattr(message, "content", None)
            if type(seen) is _Weak and seen.length < 0 and seen.content is content:
                total += seen.size
            else:
                total += of(message)
            if total > limit:
                return True
        return False

    def _remember(self, message: Message, content: object, size: int) -> None:
        key, seen = id(message), self._seen

        def leave(gone: weakref.ref[object]) -> None:
            if seen.get(key) is gone:
                del seen[key]

        try:
            entry: _Weak | _Held = _Weak(message, leave)
        except TypeError:
            entry = _Held(message)
            self._make_room(message)
        entry.content, entry.length, entry.size = content, _length(content), size
        seen[key] = entry

    def _make_room(self, message: Message) -> None:
        size = count_bytes(message)
        if self._held >= _MOST_HELD or self._held_bytes + size > _MOST_HELD_BYTES:
            self._held = self._held_bytes = 0
            for key, entry in list(self._seen.items()):
                if isinstance(entry, _Held):
                    self._seen.pop(key, None)
        self._held += 1
        self._held_bytes += size


class _Weak(weakref.ref[object]):
    """Refer to a counted message without keeping it alive."""

    __slots__ = ("content", "length", "size")

    content: object
    length: int
    size: int


class _Held:
    """Hold a counted message that cannot be referred to weakly."""

    __slots__ = ("content", "length", "message", "size")

    content: object
    length: int
    size: int

    def __init__(self, message: object) -> None:
        self.message = message


def _length(content: object) -> int:
    """Return what betrays a list that was edited in place; -1 for what cannot be."""
    return len(content) if isinstance(content, list) else -1
