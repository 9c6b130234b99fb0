"""Search what a thread archived: a tool for the model whose messages have left the window."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive, StoreArchive, place_of
from ._channel import Place, read
from ._entry import Entry
from ._errors import ConfigurationError
from ._recall_words import alike, excerpt, fused, load_bm25s, said, words
from ._record import Record
from ._segment import Segment
from ._transcript import line_up, pages
from .engine import messages as shapes
from .engine.messages import Message, Role, calls, is_summary, role

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from langgraph.store.base import SearchItem

_PAGE = 500
_MOST_RESULTS = 50
# Calls and answers repeat the ids that people gave, in shorter texts that BM25 prefers.
_PEOPLE = 1.25

_NO_THREAD = "This run has no thread, so nothing was searched."
_NO_SAVER = "This run has no checkpointer, so nothing was searched."
_NO_WORDS = "The query has no words in it, so nothing was searched."
_NO_ENTRIES = "Nothing of this conversation is archived; all of it is still shown."
_DESCRIPTION = (
    "Search the earlier part of this conversation, which is no longer shown. Finds messages by the "
    "names, ids, e-mail addresses, dates, numbers and other words in them, and returns them word "
    "for word, each with its place in the conversation."
)

_Query = Annotated[str, "Names, ids, dates, numbers or other words to look for."]
_Limit = Annotated[int, "How many messages to return at most."]


def recall_tool(
    archive: Archive,
    saver: BaseCheckpointSaver[Any] | None = None,
    *,
    name: str = "recall",
    limit: int = 5,
    namespace_key: str = "memory_namespace",
    max_characters: int = 4_000,
) -> BaseTool:
    """Return a LangChain tool that searches what the thread of its own run has archived.

    - `saver`: whose checkpoints name what was archived, and whose serializer reads it; by default
      the one that the graph runs with.
    - `limit`: how many messages are returned where the model asks for no other number.
    - `namespace_key`: as the saver's. Only what was archived under the run's own memory namespace
      is searched.
    - `max_characters`: of a longer message the part around the best match is returned.

    Ranked by BM25; where the archive has `index_text=True` and its store a vector index, by both.
    The model gives a query and perhaps a number; whose messages are searched is decided by the
    run's config alone. Raises ImportError where `bm25s` is missing. Safe to use from threads and
    event loops, as far as the saver and the archive are.
    """
    from langchain_core.tools import StructuredTool

    _check(archive, saver, limit=limit, max_characters=max_characters)
    load_bm25s()
    search = _Search(archive, saver, name, namespace_key, max_characters)

    def recall(query: _Query, limit: _Limit = limit, *, config: RunnableConfig) -> str:
        return search.run(query, limit, config)

    async def arecall(query: _Query, limit: _Limit = limit, *, config: RunnableConfig) -> str:
        return await search.arun(query, limit, config)

    return StructuredTool.from_function(recall, arecall, name=name, description=_DESCRIPTION)


@dataclass(frozen=True, slots=True)
class _Run:
    """Hold whose messages a run may see, and the checkpoints it goes on from."""

    thread: str
    memory: tuple[str, ...]
    saver: BaseCheckpointSaver[Any]
    homes: tuple[RunnableConfig, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """Hold the newest segment of a list's line, what is left in the list, and of which graph."""

    newest: str
    state: list[Message]
    graph: str


@dataclass(slots=True)
class _Found:
    """Collect what was read: places by key, archived messages, and what is near by meaning."""

    places: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    near: list[SearchItem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Hold an archived message, read for searching."""

    key: str
    heading: str
    text: str
    words: list[str]
    weight: float


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for one tool. Each door of it is the same door of the saver and of the archive."""

    archive: Archive
    saver: BaseCheckpointSaver[Any] | None
    name: str
    namespace_key: str
    most: int

    def run(self, query: str, limit: int, config: RunnableConfig) -> str:
        """Return the best messages for a query, as one text."""
        run = self._run(query, config)
        if isinstance(run, str):
            return run
        limit, found = min(max(limit, 1), _MOST_RESULTS), _Found()
        for home in run.homes:
            stored = run.saver.get_tuple(home) or run.saver.get_tuple(_newest(home))
            for line in _lines(stored):
                segments = self.archive.chain(run.thread, line.newest)
                found.places = _places(segments, line, run) | found.places
        for page in pages([*found.places], _PAGE):
            found.entries += self.archive.read(run.thread, page.keys)
        if found.entries and (store := _indexed(self.archive)):
            found.near = store.search(place_of(run.thread, "messages"), **_wanted(query, limit))
        return self._answer(query, limit, found, run.saver.serde)

    async def arun(self, query: str, limit: int, config: RunnableConfig) -> str:
        """Return the best messages for a query, as one text."""
        run = self._run(query, config)
        if isinstance(run, str):
            return run
        limit, found = min(max(limit, 1), _MOST_RESULTS), _Found()
        for home in run.homes:
            stored = await run.saver.aget_tuple(home) or await run.saver.aget_tuple(_newest(home))
            for line in _lines(stored):
                segments = await self.archive.achain(run.thread, line.newest)
                found.places = _places(segments, line, run) | found.places
        for page in pages([*found.places], _PAGE):
            found.entries += await self.archive.aread(run.thread, page.keys)
        if found.entries and (store := _indexed(self.archive)):
            place = place_of(run.thread, "messages")
            found.near = await store.asearch(place, **_wanted(query, limit))
        # Ranking thousands of messages takes a moment, in which the loop must go on.
        return await asyncio.to_thread(self._answer, query, limit, found, run.saver.serde)

    def _run(self, query: str, config: RunnableConfig) -> _Run | str:
        """Return whose messages are searched, or why none are."""
        configurable = config.get("configurable", {})
        thread = str(configurable.get("thread_id") or "")
        # LangGraph hands the checkpointer of a run down to its subgraphs under this name.
        saver = self.saver or configurable.get("__pregel_checkpointer")
        if not thread:
            return _NO_THREAD
        if not isinstance(saver, BaseCheckpointSaver):
            return _NO_SAVER
        if not words(query):
            return _NO_WORDS
        memory = _memory_namespace(configurable.get(self.namespace_key), thread)
        return _Run(thread, memory, saver, _homes(configurable, thread))

    def _answer(self, query: str, limit: int, found: _Found, serde: SerializerProtocol) -> str:
        memories = [*self._memories(found, serde)]
        if not memories:
            return _NO_ENTRIES
        asked = words(query)
        best = _ranked(asked, memories, found.near)[:limit]
        if not best:
            return f"None of {len(memories)} archived messages matches."
        shown = [f"{m.heading}\n{excerpt(m.text, asked, self.most)}" for m in best]
        head = f"{len(best)} of {len(memories)} archived messages, the best match first."
        return "\n\n".join([head, *shown])

    def _memories(self, found: _Found, serde: SerializerProtocol) -> Iterator[_Memory]:
        """Yield what can be found: no summaries, and nothing that this tool once found."""
        for entry in found.entries:
            message = _loaded(entry, serde)
            text = said(message)
            if text and not is_summary(message) and not self._is_echo(message):
                heading = f"{found.places[entry.key]}, {_speaker(message)}:"
                weight = _PEOPLE if role(message) is Role.HUMAN else 1.0
                yield _Memory(entry.key, heading, text, words(text), weight)

    def _is_echo(self, message: Message) -> bool:
        """Tell whether a message only asks this tool, or repeats what it found."""
        if role(message) is Role.TOOL:
            return shapes.field(message, "name") == self.name
        return role(message) is Role.AI and {call.name for call in calls(message)} == {self.name}


def _homes(configurable: Mapping[str, Any], thread: str) -> tuple[RunnableConfig, ...]:
    """Return the checkpoints a run goes on from: of its graph, and of those around it."""
    own = {configurable.get("checkpoint_ns", ""): configurable.get("checkpoint_id")}
    homes = []
    for namespace, checkpoint in (configurable.get("checkpoint_map") or own).items():
        home = {"thread_id": thread, "checkpoint_ns": namespace}
        if checkpoint:
            home["checkpoint_id"] = checkpoint
        homes.append(RunnableConfig(configurable=home))
    return tuple(homes)


def _newest(home: RunnableConfig) -> RunnableConfig:
    """Return where to look for a checkpoint that is not stored yet, or never will be."""
    named = {k: v for k, v in home["configurable"].items() if k != "checkpoint_id"}
    return RunnableConfig(configurable=named)


def _lines(stored: CheckpointTuple | None) -> Iterator[_Line]:
    if stored is None:
        return
    namespace = stored.config["configurable"].get("checkpoint_ns", "")
    graph = "/".join(part.partition(":")[0] for part in namespace.split("|"))
    for name, newest in Record.read(stored.metadata).segments.items():
        state = read(stored.checkpoint, Place.parse(name))
        yield _Line(newest, state if isinstance(state, list) else [], graph)


def _places(segments: Sequence[Segment], line: _Line, run: _Run) -> dict[str, str]:
    """Return the keys of what this run may see, with the place of each in the conversation."""
    own = {key for s in segments if s.memory_namespace == run.memory for key in s.keys}
    items = line_up(segments, line.state)
    where = f" of {line.graph}" if line.graph else ""
    return {
        item: f"message {number} of {len(items)}{where}"
        for number, item in enumerate(items, start=1)
        if isinstance(item, str) and item in own
    }


def _memory_namespace(given: object, thread: str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list | tuple) and given:
        return tuple(map(str, given))
    return ("memories", thread)


def _indexed(archive: Archive) -> Any:
    """Return the store of an archive where it can be searched by meaning."""
    if not isinstance(archive, StoreArchive) or not archive.index_text:
        return None
    return archive.store if getattr(archive.store, "index_config", None) else None


def _wanted(query: str, limit: int) -> dict[str, Any]:
    # Some of what is near may be another line's, or another user's.
    return {"query": query, "limit": 10 * limit}


def _ranked(
    query: Sequence[str], memories: list[_Memory], near: Sequence[SearchItem]
) -> list[_Memory]:
    order = {memory.key: i for i, memory in enumerate(memories)}
    best = alike(query, [m.words for m in memories], [m.weight for m in memories])
    meant = [order[item.key] for item in near if item.score is not None and item.key in order]
    return [memories[i] for i in (fused(best, meant) if meant else best)]


def _loaded(entry: Entry, serde: SerializerProtocol) -> Message:
    try:
        message: Message = entry.load(serde)
    except Exception as error:
        allowed = "one whose serializer reads the archive; give recall_tool the saver"
        raise ConfigurationError("saver", f"one with {type(serde).__name__}", allowed) from error
    return message


def _speaker(message: Message) -> str:
    name = shapes.field(message, "name")
    who = role(message)
    return f"{who} {name}" if who is Role.TOOL and isinstance(name, str) else str(who)


def _check(archive: object, saver: object, **numbers: object) -> None:
    if not isinstance(archive, Archive):
        raise ConfigurationError("archive", archive, "an archive, as StoreArchive(store)")
    if not (saver is None or isinstance(saver, BaseCheckpointSaver)):
        raise ConfigurationError("saver", saver, "a checkpointer, or None for that of the run")
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(name, value, "a whole number from 1")
