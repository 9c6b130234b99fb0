"""Keep what leaves: the archive protocol, and an archive over any LangGraph store."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote, unquote

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp

from ._segment import Segment

_PAGE = 100
_ROOT = "reducing_saver"


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold an archived message as the saver's serializer wrote it.

    `text` is what the message says, only where a plain-text index was asked for.
    """

    key: str
    kind: str
    data: bytes
    text: str | None = None

    @property
    def who(self) -> str:
        """Return the identity of the message, which its edits share."""
        return self.key.partition(".")[0]


@runtime_checkable
class Archive(Protocol):
    """Keep evicted messages, and the segments they left in, by thread.

    Writing the same again changes nothing. What `write` raises keeps the messages in their
    checkpoint. Every method has an async twin; an archive is used from threads and from loops.
    """

    index_text: bool

    def write(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None:
        """Store a segment and its messages; return when they are safe.

        With `tell` the segment waits until hooks have acknowledged it.
        """

    def waiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""

    def exist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""

    def chain(self, thread: str, newest: str | None) -> list[Segment]:
        """Return the segments of a line, newest first."""

    def read(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        """Return the entries that are there, in the order of the keys."""

    def undelivered(self, thread: str) -> list[Segment]:
        """Return the segments that hooks have not acknowledged, in no order."""

    def told(self, thread: str, keys: Sequence[str]) -> dict[str, str]:
        """Return which of these messages hooks have acknowledged: identity to newest key."""

    def mark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None:
        """Note that hooks have acknowledged a segment with these messages."""

    def delete_thread(self, thread: str) -> None:
        """Erase everything of a thread."""

    def copy_thread(self, source: str, target: str) -> None:
        """Copy everything of a thread to another."""

    async def awrite(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None: ...
    async def awaiting(self) -> list[str]: ...
    async def aexist(self, thread: str, keys: Sequence[str]) -> set[str]: ...
    async def achain(self, thread: str, newest: str | None) -> list[Segment]: ...
    async def aread(self, thread: str, keys: Sequence[str]) -> list[Entry]: ...
    async def aundelivered(self, thread: str) -> list[Segment]: ...
    async def atold(self, thread: str, keys: Sequence[str]) -> dict[str, str]: ...
    async def amark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None: ...
    async def adelete_thread(self, thread: str) -> None: ...
    async def acopy_thread(self, source: str, target: str) -> None: ...


class StoreArchive:
    """Archive in a LangGraph `BaseStore`: memory, SQLite, Postgres, or any other.

    - `index_text=True` also stores what each message says in plain text, for a store that has a
      vector index; refused with an encrypting serializer.

    Each door of the archive is the same door of the store. As safe to use from threads as the
    store.
    """

    def __init__(self, store: BaseStore, *, index_text: bool = False) -> None:
        if not isinstance(store, BaseStore):
            raise TypeError(
                f"store={store!r} is no LangGraph store; give one, as InMemoryStore() or "
                "SqliteStore(connection)"
            )
        self.store = store
        self.index_text = index_text

    def __repr__(self) -> str:
        return f"StoreArchive({self.store!r})"

    def write(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None:
        """Store a segment and its messages in one batch."""
        self.store.batch(_writing(segment, entries, tell))

    async def awrite(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None:
        """Store a segment and its messages in one batch."""
        await self.store.abatch(_writing(segment, entries, tell))

    def waiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""
        threads: list[str] = []
        while page := self.store.list_namespaces(offset=len(threads), **_PENDING):
            threads += [unquote(namespace[1]) for namespace in page]
        return threads

    async def awaiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""
        threads: list[str] = []
        while page := await self.store.alist_namespaces(offset=len(threads), **_PENDING):
            threads += [unquote(namespace[1]) for namespace in page]
        return threads

    def chain(self, thread: str, newest: str | None) -> list[Segment]:
        """Return the segments of a line, newest first."""
        found: list[Segment] = []
        while newest and (item := self.store.get(_place(thread, "segments"), newest)):
            found.append(Segment.from_dict(item.value))
            newest = found[-1].previous
        return found

    async def achain(self, thread: str, newest: str | None) -> list[Segment]:
        """Return the segments of a line, newest first."""
        found: list[Segment] = []
        while newest and (item := await self.store.aget(_place(thread, "segments"), newest)):
            found.append(Segment.from_dict(item.value))
            newest = found[-1].previous
        return found

    def exist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""
        return _keys(self.store.batch(_reading(thread, "messages", keys)))

    async def aexist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""
        return _keys(await self.store.abatch(_reading(thread, "messages", keys)))

    def read(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        """Return the entries that are there, in the order of the keys."""
        return _entries(self.store.batch(_reading(thread, "messages", keys)))

    async def aread(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        """Return the entries that are there, in the order of the keys."""
        return _entries(await self.store.abatch(_reading(thread, "messages", keys)))

    def undelivered(self, thread: str) -> list[Segment]:
        """Return the segments that hooks have not acknowledged, in no order."""
        pending = [item.key for item in self._all(_place(thread, "pending"))]
        found = self.store.batch(_reading(thread, "segments", pending))
        return [Segment.from_dict(item.value) for item in found if isinstance(item, Item)]

    async def aundelivered(self, thread: str) -> list[Segment]:
        """Return the segments that hooks have not acknowledged, in no order."""
        pending = [item.key for item in await self._aall(_place(thread, "pending"))]
        found = await self.store.abatch(_reading(thread, "segments", pending))
        return [Segment.from_dict(item.value) for item in found if isinstance(item, Item)]

    def told(self, thread: str, keys: Sequence[str]) -> dict[str, str]:
        """Return which of these messages hooks have acknowledged: identity to newest key."""
        return _told(self.store.batch(_reading(thread, "told", _whos(keys))))

    async def atold(self, thread: str, keys: Sequence[str]) -> dict[str, str]:
        """Return which of these messages hooks have acknowledged: identity to newest key."""
        return _told(await self.store.abatch(_reading(thread, "told", _whos(keys))))

    def mark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None:
        """Note that hooks have acknowledged a segment with these messages."""
        self.store.batch(_marking(thread, segment, keys))

    async def amark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None:
        """Note that hooks have acknowledged a segment with these messages."""
        await self.store.abatch(_marking(thread, segment, keys))

    def delete_thread(self, thread: str) -> None:
        """Erase everything of a thread."""
        for kind in _KINDS:
            while items := self.store.search(_place(thread, kind), limit=_PAGE):
                self.store.batch([PutOp(item.namespace, item.key, None) for item in items])

    async def adelete_thread(self, thread: str) -> None:
        """Erase everything of a thread."""
        for kind in _KINDS:
            while items := await self.store.asearch(_place(thread, kind), limit=_PAGE):
                await self.store.abatch([PutOp(item.namespace, item.key, None) for item in items])

    def copy_thread(self, source: str, target: str) -> None:
        """Copy everything of a thread to another."""
        for kind in _KINDS:
            items = self._all(_place(source, kind))
            self.store.batch([_copied(item, kind, target) for item in items])

    async def acopy_thread(self, source: str, target: str) -> None:
        """Copy everything of a thread to another."""
        for kind in _KINDS:
            items = await self._aall(_place(source, kind))
            await self.store.abatch([_copied(item, kind, target) for item in items])

    def _all(self, place: tuple[str, ...]) -> list[Item]:
        found: list[Item] = []
        while page := self.store.search(place, limit=_PAGE, offset=len(found)):
            found += page
        return found

    async def _aall(self, place: tuple[str, ...]) -> list[Item]:
        found: list[Item] = []
        while page := await self.store.asearch(place, limit=_PAGE, offset=len(found)):
            found += page
        return found


class Discard:
    """Say that what leaves may be gone: `ReducingSaver(..., archive=Discard())` does not warn."""

    def __repr__(self) -> str:
        return "Discard()"


_PENDING: Any = {"prefix": (_ROOT,), "suffix": ("pending",), "limit": _PAGE}
_KINDS = ("pending", "told", "segments", "messages")


def _place(thread: str, kind: str) -> tuple[str, ...]:
    """Return a namespace; LangGraph's stores refuse an empty label and one with a dot."""
    label = quote(thread, safe="").replace(".", "%2E")
    return (_ROOT, label or "%00", kind)


def _writing(segment: Segment, entries: Sequence[Entry], tell: bool) -> list[Op]:
    """Return what is written: the messages first, what points to them last."""
    thread = segment.thread
    ops: list[Op] = [
        PutOp(_place(thread, "messages"), entry.key, *_value(entry)) for entry in entries
    ]
    ops.append(PutOp(_place(thread, "segments"), segment.id, segment.as_dict(), False))
    if tell:
        ops.append(PutOp(_place(thread, "pending"), segment.id, {}, False))
    return ops


def _value(entry: Entry) -> tuple[dict[str, Any], Any]:
    value: dict[str, Any] = {"kind": entry.kind, "data": b64encode(entry.data).decode()}
    if entry.text is None:
        return value, False
    return {**value, "text": entry.text}, ["text"]


def _reading(thread: str, kind: str, keys: Sequence[str]) -> list[Op]:
    return [GetOp(_place(thread, kind), key) for key in keys]


def _keys(found: Sequence[Any]) -> set[str]:
    return {item.key for item in found if isinstance(item, Item)}


def _entries(found: Sequence[Any]) -> list[Entry]:
    items = [item for item in found if isinstance(item, Item)]
    return [
        Entry(i.key, i.value["kind"], b64decode(i.value["data"]), i.value.get("text"))
        for i in items
    ]


def _whos(keys: Sequence[str]) -> list[str]:
    return [key.partition(".")[0] for key in keys]


def _told(found: Sequence[Any]) -> dict[str, str]:
    return {item.key: item.value["key"] for item in found if isinstance(item, Item)}


def _marking(thread: str, segment: str, keys: Sequence[str]) -> list[Op]:
    told = [
        PutOp(_place(thread, "told"), who, {"key": key}, False)
        for who, key in zip(_whos(keys), keys, strict=True)
    ]
    return [*told, PutOp(_place(thread, "pending"), segment, None)]


def _copied(item: Item, kind: str, target: str) -> PutOp:
    value = item.value
    if kind == "segments":
        value = replace(Segment.from_dict(value), thread=target).as_dict()
    index: Any = ["text"] if "text" in value else False
    return PutOp(_place(target, kind), item.key, value, index)
