"""Keep what leaves: the archive protocol, and an archive over any LangGraph store."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable
from urllib.parse import unquote_to_bytes

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from ._entry import Entry
from ._errors import ConfigurationError
from ._forwarding import opening_of
from ._segment import Segment
from ._stores import loop_beside, needs_autocommit, run_on

_ROOT = "reducing_saver"
_KINDS = ("pending", "told", "segments", "wholes", "messages")
# A batch is one statement, of which Postgres allows 65,535 parameters and SQLite 32,766.
_BATCH = 1_000

# Below, a line is read segment by segment: most are short, and some stores scan where they search.
_ONE_BY_ONE = 16

_LABEL = re.compile("[^a-z0-9-]")
# As JSON writes them; a whole character of two halves is taken too, which does no harm.
_REFUSED = re.compile(r"\\u(0000|d[89a-f])")
_MARK = "~"
# Postgres indexes what is shorter than about 2,700 bytes; the label of a longer id is a digest.
_DIGEST = "~~"
_LONGEST_LABEL = 500

T = TypeVar("T")
# Yields what a store shall do in one batch, is sent what it found, and returns what was asked.
Steps: TypeAlias = Generator[Sequence[Op], list[Result], T]


Parcel: TypeAlias = tuple[Segment, Sequence[Entry], bool]
"""A segment, its messages, and whether it waits for hooks."""


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

    def keep(self, thread: str, entries: Sequence[Entry]) -> None:
        """Store the wholes of messages that stay as excerpts; return when they are safe."""

    def waiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""

    def exist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""

    def holds(self, thread: str) -> bool:
        """Tell whether a thread has segments."""

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
    async def akeep(self, thread: str, entries: Sequence[Entry]) -> None: ...
    async def awaiting(self) -> list[str]: ...
    async def aexist(self, thread: str, keys: Sequence[str]) -> set[str]: ...
    async def aholds(self, thread: str) -> bool: ...
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
            raise TypeError(_no_store(store))
        if needs_autocommit(store):
            raise ConfigurationError("store", store, "one that commits", said=_begun(store))
        self.store = store
        self.index_text = index_text
        # It searches its dicts while other threads write into them.
        in_memory = isinstance(store, InMemoryStore)
        self._alone: AbstractContextManager[Any] = Lock() if in_memory else nullcontext()

    def __repr__(self) -> str:
        return f"StoreArchive({self.store!r})"

    def write(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None:
        """Store a segment and its messages; return when they are safe."""
        self._run(_writing(segment, entries, tell))

    async def awrite(self, segment: Segment, entries: Sequence[Entry], *, tell: bool) -> None:
        """Store a segment and its messages; return when they are safe."""
        await self._arun(_writing(segment, entries, tell))

    def write_all(self, parcels: Iterable[Parcel]) -> None:
        """Store several segments with their messages in few batches, without a text index."""
        self._run(_writing_all(parcels))

    def threads(self) -> list[str]:
        """Return the threads that have something archived."""
        return self._run(_threads())

    def checkpoints(self, thread: str) -> list[str]:
        """Return the ids of the checkpoints that archived something of a thread."""
        items = self._run(_all(place_of(thread, "segments")))
        return [_plain(item.value)["checkpoint"] for item in items]

    def keep(self, thread: str, entries: Sequence[Entry]) -> None:
        """Store the wholes of messages that stay as excerpts; return when they are safe."""
        self._run(_keeping(thread, entries))

    async def akeep(self, thread: str, entries: Sequence[Entry]) -> None:
        """Store the wholes of messages that stay as excerpts; return when they are safe."""
        await self._arun(_keeping(thread, entries))

    def waiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""
        return self._run(_waiting())

    async def awaiting(self) -> list[str]:
        """Return the threads that may have undelivered segments."""
        return await self._arun(_waiting())

    def holds(self, thread: str) -> bool:
        """Tell whether a thread has segments."""
        return self._run(_holds(thread))

    async def aholds(self, thread: str) -> bool:
        """Tell whether a thread has segments."""
        return await self._arun(_holds(thread))

    def chain(self, thread: str, newest: str | None) -> list[Segment]:
        """Return the segments of a line, newest first."""
        return self._run(_chain(thread, newest))

    async def achain(self, thread: str, newest: str | None) -> list[Segment]:
        """Return the segments of a line, newest first."""
        return await self._arun(_chain(thread, newest))

    def exist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""
        return self._run(_exist(thread, keys))

    async def aexist(self, thread: str, keys: Sequence[str]) -> set[str]:
        """Return which of these keys are archived."""
        return await self._arun(_exist(thread, keys))

    def read(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        """Return the entries that are there, in the order of the keys."""
        return self._run(_read(thread, keys))

    async def aread(self, thread: str, keys: Sequence[str]) -> list[Entry]:
        """Return the entries that are there, in the order of the keys."""
        return await self._arun(_read(thread, keys))

    def undelivered(self, thread: str) -> list[Segment]:
        """Return the segments that hooks have not acknowledged, in no order."""
        return self._run(_undelivered(thread))

    async def aundelivered(self, thread: str) -> list[Segment]:
        """Return the segments that hooks have not acknowledged, in no order."""
        return await self._arun(_undelivered(thread))

    def told(self, thread: str, keys: Sequence[str]) -> dict[str, str]:
        """Return which of these messages hooks have acknowledged: identity to newest key."""
        return self._run(_told(thread, keys))

    async def atold(self, thread: str, keys: Sequence[str]) -> dict[str, str]:
        """Return which of these messages hooks have acknowledged: identity to newest key."""
        return await self._arun(_told(thread, keys))

    def mark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None:
        """Note that hooks have acknowledged a segment with these messages."""
        self._run(_marking(thread, segment, keys))

    async def amark_delivered(self, thread: str, segment: str, keys: Sequence[str]) -> None:
        """Note that hooks have acknowledged a segment with these messages."""
        await self._arun(_marking(thread, segment, keys))

    def delete_thread(self, thread: str) -> None:
        """Erase everything of a thread."""
        self._run(_erasing(thread))

    async def adelete_thread(self, thread: str) -> None:
        """Erase everything of a thread."""
        await self._arun(_erasing(thread))

    def copy_thread(self, source: str, target: str) -> None:
        """Copy everything of a thread to another."""
        self._run(_copying(source, target))

    async def acopy_thread(self, source: str, target: str) -> None:
        """Copy everything of a thread to another."""
        await self._arun(_copying(source, target))

    def _run(self, steps: Steps[T]) -> T:
        found: list[Result] = []
        while True:
            try:
                ops = steps.send(found) if found else next(steps)
            except StopIteration as done:
                return cast(T, done.value)
            found = self._batch(ops)

    def _batch(self, ops: Sequence[Op]) -> list[Result]:
        if loop := loop_beside(self.store):
            return run_on(loop, lambda: self.store.abatch(ops))
        with self._alone:
            return self.store.batch(ops)

    async def _arun(self, steps: Steps[T]) -> T:
        found: list[Result] = []
        while True:
            try:
                ops = steps.send(found) if found else next(steps)
            except StopIteration as done:
                return cast(T, done.value)
            found = await self.store.abatch(ops)


class Discard:
    """Say that what leaves may be gone: `ReducingSaver(..., archive=Discard())` does not warn."""

    def __repr__(self) -> str:
        return "Discard()"


def _no_store(given: object) -> str:
    opening = opening_of(given, "store", "archive = StoreArchive(store)")
    if opening:
        return f"store is a context manager that opens a LangGraph store, and no store.{opening}"
    return (
        f"store={given!r} is no LangGraph store; give one, as InMemoryStore(), or what "
        "`with SqliteStore.from_conn_string(path) as store:` opens"
    )


def _begun(store: BaseStore) -> str:
    name = type(store).__name__
    keyword = "async with" if name.startswith("Async") else "with"
    return (
        f"{name} needs a connection with isolation_level=None; "
        f"write `{keyword} {name}.from_conn_string(path) as store:`"
    )


def _writing(segment: Segment, entries: Sequence[Entry], tell: bool) -> Steps[None]:
    """Write the messages first, and what points to them last."""
    thread = segment.thread
    place = place_of(thread, "messages")
    yield from _batches(PutOp(place, entry.key, *_value(entry)) for entry in entries)
    last = [PutOp(place_of(thread, "segments"), segment.id, _coded(segment.as_dict()), False)]
    if tell:
        value = _coded({"thread": thread})
        last.append(PutOp(place_of(thread, "pending"), segment.id, value, False))
    yield last


def _writing_all(parcels: Iterable[Parcel]) -> Steps[None]:
    yield from _batches(PutOp(*row, False) for row in rows_of(parcels))


def rows_of(parcels: Iterable[Parcel]) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield what is stored of segments: places, keys, values; what points to others comes last."""
    segments = []
    for segment, entries, tell in parcels:
        segments.append((segment, tell))
        place = place_of(segment.thread, "messages")
        for entry in entries:
            yield place, entry.key, _value(entry)[0]
    for segment, _ in segments:
        yield place_of(segment.thread, "segments"), segment.id, _coded(segment.as_dict())
    for segment, tell in segments:
        if tell:
            place = place_of(segment.thread, "pending")
            yield place, segment.id, _coded({"thread": segment.thread})


def _keeping(thread: str, entries: Sequence[Entry]) -> Steps[None]:
    """Write the messages, and their names, by which a copy of the thread finds them."""
    place, names = place_of(thread, "messages"), place_of(thread, "wholes")
    yield from _batches(PutOp(place, entry.key, *_value(entry)) for entry in entries)
    yield from _batches(PutOp(names, entry.key, {}, False) for entry in entries)


def _waiting() -> Steps[list[str]]:
    threads: list[str] = []
    for _, label, kind in (yield from _places("pending")):
        if kind == "pending":
            threads += yield from _named(label)
    return threads


def _threads() -> Steps[list[str]]:
    threads: list[str] = []
    for place in (yield from _places("segments")):
        if place[2] != "segments":
            continue
        if not place[1].startswith(_DIGEST):
            threads.append(_unquoted(place[1]))
            continue
        items = yield from _all(place)
        threads += [_plain(item.value)["thread"] for item in items[:1]]
    return threads


def _places(kind: str) -> Steps[list[tuple[str, ...]]]:
    """Return where threads have something of this kind."""
    ends = (MatchCondition("prefix", (_ROOT,)), MatchCondition("suffix", (kind,)))
    limit = _BATCH
    while True:
        (found,) = yield [ListNamespacesOp(ends, limit=limit)]
        places = cast("list[tuple[str, ...]]", found)
        if len(places) < limit:
            return [place for place in places if len(place) == 3 and place[0] == _ROOT]
        limit *= 4


def _named(label: str) -> Steps[list[str]]:
    """Return the thread id that a label stands for; none where nothing waits under a digest."""
    if not label.startswith(_DIGEST):
        return [_unquoted(label)]
    items = yield from _all((_ROOT, label, "pending"))
    return [_plain(item.value)["thread"] for item in items[:1]]


def _chain(thread: str, newest: str | None) -> Steps[list[Segment]]:
    """Walk a line: its newest segments one by one, and where it is longer, all of the thread."""
    found: list[Segment] = []
    while newest and len(found) < _ONE_BY_ONE and (one := (yield from _segments(thread, [newest]))):
        found += one
        newest = one[0].previous
    if not newest or len(found) < _ONE_BY_ONE:
        return found
    items = yield from _all(place_of(thread, "segments"))
    values = {item.key: item.value for item in items}
    while newest and newest in values:
        found.append(Segment.from_dict(_plain(values[newest])))
        newest = found[-1].previous
    return found


def _segments(thread: str, keys: Sequence[str]) -> Steps[list[Segment]]:
    items = yield from _get(place_of(thread, "segments"), keys)
    return [Segment.from_dict(_plain(item.value)) for item in items]


def _holds(thread: str) -> Steps[bool]:
    (found,) = yield [SearchOp(place_of(thread, "segments"), limit=1)]
    return bool(found)


def _exist(thread: str, keys: Sequence[str]) -> Steps[set[str]]:
    return {item.key for item in (yield from _get(place_of(thread, "messages"), keys))}


def _read(thread: str, keys: Sequence[str]) -> Steps[list[Entry]]:
    return [_entry(item) for item in (yield from _get(place_of(thread, "messages"), keys))]


def _undelivered(thread: str) -> Steps[list[Segment]]:
    pending = yield from _all(place_of(thread, "pending"))
    return (yield from _segments(thread, [item.key for item in pending]))


def _told(thread: str, keys: Sequence[str]) -> Steps[dict[str, str]]:
    items = yield from _get(place_of(thread, "told"), [_who(key) for key in keys])
    return {item.key: item.value["key"] for item in items}


def _marking(thread: str, segment: str, keys: Sequence[str]) -> Steps[None]:
    place = place_of(thread, "told")
    yield from _batches(PutOp(place, _who(key), {"key": key}, False) for key in keys)
    yield [PutOp(place_of(thread, "pending"), segment, None)]


def _erasing(thread: str) -> Steps[None]:
    for kind in _KINDS:
        place, foreign = place_of(thread, kind), 0
        while True:
            limit = foreign + _BATCH
            (found,) = yield [SearchOp(place, limit=limit)]
            items = cast("list[SearchItem]", found)
            own = [item for item in items if item.namespace == place]
            yield from _batches(PutOp(place, item.key, None) for item in own)
            if len(items) < limit:
                break
            foreign = len(items) - len(own)


def _copying(source: str, target: str) -> Steps[None]:
    """Copy the messages first, and what points to them last."""
    items = yield from _all(place_of(source, "segments"))
    segments = [Segment.from_dict(_plain(item.value)) for item in items]
    keys = [key for one in segments for key in (*one.keys, one.summary_key)]
    keys += [item.key for item in (yield from _all(place_of(source, "wholes")))]
    for start in range(0, len(keys), _BATCH):
        entries = yield from _read(source, keys[start : start + _BATCH])
        place = place_of(target, "messages")
        yield from _batches(PutOp(place, entry.key, *_value(entry)) for entry in entries)
    for kind in ("wholes", "told", "segments", "pending"):
        items = yield from _all(place_of(source, kind))
        place = place_of(target, kind)
        yield from _batches(
            PutOp(place, item.key, _copied(item.value, kind, source, target), False)
            for item in items
        )


def _copied(value: dict[str, Any], kind: str, source: str, target: str) -> dict[str, Any]:
    if kind == "pending":
        return _coded({"thread": target})
    if kind != "segments":
        return value
    segment = replace(Segment.from_dict(_plain(value)), thread=target)
    if segment.memory_namespace == ("memories", source):  # made of the thread, as nobody named one
        segment = replace(segment, memory_namespace=("memories", target))
    return _coded(segment.as_dict())


def _all(place: tuple[str, ...]) -> Steps[list[SearchItem]]:
    """Return everything at a place, in one search.

    Rows that were written together have no order, so that pages of them would overlap. Some stores
    take an underscore for any character, and find other places too.
    """
    limit = _BATCH
    while True:
        (found,) = yield [SearchOp(place, limit=limit)]
        items = cast("list[SearchItem]", found)
        if len(items) < limit:
            return [item for item in items if item.namespace == place]
        limit *= 4


def _get(place: tuple[str, ...], keys: Iterable[str]) -> Steps[list[Item]]:
    """Return the items that are there, in the order of the keys."""
    found = yield from _batches(GetOp(place, key) for key in keys)
    return [item for item in found if isinstance(item, Item)]


def _batches(ops: Iterable[Op]) -> Steps[list[Result]]:
    """Do operations in as many batches as they need."""
    left, found = iter(ops), list[Result]()
    while batch := [*islice(left, _BATCH)]:
        found += yield batch
    return found


def _value(entry: Entry) -> tuple[dict[str, Any], Any]:
    value: dict[str, Any] = {"kind": entry.kind, "data": b64encode(entry.data).decode()}
    if entry.text is None:
        return value, False
    # Databases refuse a NUL and half a character.
    text = entry.text.replace("\x00", " ").encode(errors="replace").decode()
    return {**value, "text": text}, ["text"]


def _entry(item: Item) -> Entry:
    value = item.value
    return Entry(item.key, value["kind"], b64decode(value["data"]), value.get("text"))


def _coded(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value as databases take it: they refuse a NUL and half a character, as in names."""
    text = json.dumps(value)
    if not _REFUSED.search(text):
        return value
    return {"coded": b64encode(text.encode()).decode()}


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Return what `_coded` was given."""
    coded = value.get("coded")
    found: dict[str, Any] = value if coded is None else json.loads(b64decode(coded))
    return found


def _who(key: str) -> str:
    return key.partition(".")[0]


def place_of(thread: str, kind: str) -> tuple[str, ...]:
    """Return a namespace, in which a thread id is a label that no store misreads.

    A label must not be empty or have a dot; in a search some stores do not tell capitals from small
    letters, and take `_` and `%` for any characters.
    """
    label = _LABEL.sub(_quoted, thread) or _MARK
    if len(label) > _LONGEST_LABEL:
        label = _DIGEST + blake2b(label.encode(), digest_size=24).hexdigest()
    return (_ROOT, label, kind)


def _quoted(found: re.Match[str]) -> str:
    raw = found.group().encode(errors="surrogatepass")
    return "".join(f"{_MARK}{byte:02x}" for byte in raw)


def _unquoted(label: str) -> str:
    raw = b"" if label == _MARK else unquote_to_bytes(label.replace(_MARK, "%"))
    return raw.decode(errors="surrogatepass")
