"""Read every message of a line of checkpoints back: what was archived, and what the state holds."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive
from ._entry import Entry
from ._errors import ConfigurationError
from ._segment import Segment, in_order
from .engine.excerpt import whole_key
from .engine.messages import Message, identifier, is_summary, role

logger = logging.getLogger("reducing_saver")

_LOST = (
    "a transcript is not whole: of %d archived messages %d are not in the archive, and %d segments "
    "that others follow are not"
)


@dataclass(frozen=True, slots=True)
class Page:
    """Hold a part of a transcript: keys of archived messages and indices of the state."""

    items: tuple[str | int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the archived messages."""
        return tuple(item for item in self.items if isinstance(item, str))

    def fill(
        self, entries: Sequence[Entry], state: Sequence[Message], serde: SerializerProtocol
    ) -> Iterator[Message]:
        """Yield the messages; without summaries, and without what is not among the entries."""
        found = {entry.key: entry for entry in entries}
        for item in self.items:
            if isinstance(item, int):
                yield _whole(state[item], found, serde)
            elif item in found:
                message = found[item].load(serde)
                if not is_summary(message):
                    yield message

    def wanted(self, state: Sequence[Message]) -> list[str]:
        """Return the keys of the archived messages, and of the wholes of excerpts in the state."""
        wholes = (whole_key(state[item]) for item in self.items if isinstance(item, int))
        return [*self.keys, *(key for key in wholes if key)]


def transcript(
    archive: Archive,
    serde: SerializerProtocol,
    thread: str,
    newest_segment: str | None,
    state_messages: Sequence[Message],
    *,
    page_size: int = 100,
) -> Iterator[Message]:
    """Yield every message ever, in its original order, once, without summaries.

    - `newest_segment`: the id that the line's checkpoint names, or None.
    - `page_size`: how many archived messages are read at once.

    The segments are read first, then a page whenever it is needed. What is no longer in the archive
    is left out, and counted in one warning at the end.
    """
    _check(page_size)
    return _transcript(archive, serde, thread, newest_segment, state_messages, page_size)


def atranscript(
    archive: Archive,
    serde: SerializerProtocol,
    thread: str,
    newest_segment: str | None,
    state_messages: Sequence[Message],
    *,
    page_size: int = 100,
) -> AsyncIterator[Message]:
    """Yield every message ever, as `transcript` does."""
    _check(page_size)
    return _atranscript(archive, serde, thread, newest_segment, state_messages, page_size)


def _transcript(
    archive: Archive,
    serde: SerializerProtocol,
    thread: str,
    newest: str | None,
    state: Sequence[Message],
    size: int,
) -> Iterator[Message]:
    segments = archive.chain(thread, newest)
    asked = found = 0
    for page in pages(line_up(segments, state), size):
        wanted = page.wanted(state)
        entries = archive.read(thread, wanted) if wanted else []
        asked, found = asked + len(wanted), found + len(entries)
        yield from page.fill(entries, state, serde)
    _warn(asked, asked - found, broken(segments, newest))


async def _atranscript(
    archive: Archive,
    serde: SerializerProtocol,
    thread: str,
    newest: str | None,
    state: Sequence[Message],
    size: int,
) -> AsyncIterator[Message]:
    segments = await archive.achain(thread, newest)
    asked = found = 0
    for page in pages(line_up(segments, state), size):
        wanted = page.wanted(state)
        entries = await archive.aread(thread, wanted) if wanted else []
        asked, found = asked + len(wanted), found + len(entries)
        for message in page.fill(entries, state, serde):
            yield message
    _warn(asked, asked - found, broken(segments, newest))


def line_up(segments: Sequence[Segment], state: Sequence[Message]) -> list[str | int]:
    """Return keys of archived messages and indices of the state, in order, without summaries."""
    again = _said_again(state)
    return [
        item
        for item in in_order(segments, state)
        if isinstance(item, str) or not (item in again or is_summary(state[item]))
    ]


def _said_again(state: Sequence[Message]) -> set[int]:
    """Return where a list that is only added to holds a message a second time."""
    first: dict[str, Message] = {}
    return {
        index
        for index, message in enumerate(state)
        if (own := identifier(message)) and first.setdefault(own, message) is not message
        if message == first[own]
    }


def pages(items: Sequence[str | int], size: int) -> Iterator[Page]:
    """Cut a transcript into pages."""
    for start in range(0, len(items), size):
        yield Page(tuple(items[start : start + size]))


def _whole(message: Message, found: dict[str, Entry], serde: SerializerProtocol) -> Message:
    """Return what an excerpt was made of, where it is archived; else the message itself."""
    key = whole_key(message)
    if key is None or key not in found:
        return message
    whole: Message = found[key].load(serde)
    # A line may name the key of another message, where a dict has no place for a mark.
    same = identifier(whole) == identifier(message) and role(whole) is role(message)
    return whole if same else message


def broken(segments: Sequence[Segment], newest: str | None) -> bool:
    """Tell whether a segment that the line names is missing, and with it all before."""
    return (segments[-1].previous if segments else newest) is not None


def _check(page_size: object) -> None:
    if type(page_size) is not int or page_size < 1:
        raise ConfigurationError("page_size", page_size, "a whole number from 1")


def _warn(asked: int, lost: int, cut: bool) -> None:
    if lost or cut:
        logger.warning(_LOST, asked, lost, int(cut))
