"""Find what is archived of a checkpoint's line.

A checkpoint that the wrapper or a job stored names the newest segments of its line. One that a bare
saver stored after it, as where only jobs are used, names none: then the nearest before it is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from ._archive import Archive
from ._record import Record

Load = Callable[[RunnableConfig], CheckpointTuple | None]
LoadAsync = Callable[[RunnableConfig], Awaitable[CheckpointTuple | None]]
Segments = Mapping[str, str]


def at(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    """Return the config of another checkpoint of the same thread and namespace."""
    return {**config, "configurable": {**config["configurable"], "checkpoint_id": checkpoint_id}}


def line_segments(found: CheckpointTuple | None, archive: Archive, load: Load) -> Segments:
    """Return the ids of the newest archived segments of a checkpoint's line, by channel."""
    if found is None or (before := above(found)) is None:
        return named(found)
    return segments_before(found.config, before, archive, load)


async def aline_segments(
    found: CheckpointTuple | None, archive: Archive, load: LoadAsync
) -> Segments:
    """Return the ids of the newest archived segments of a checkpoint's line, by channel."""
    if found is None or (before := above(found)) is None:
        return named(found)
    return await asegments_before(found.config, before, archive, load)


def segments_before(
    config: RunnableConfig, before: str | None, archive: Archive, load: Load
) -> Segments:
    """Return the segments that the nearest checkpoint names, from this one on towards the first."""
    if not archive.holds(str(config["configurable"]["thread_id"])):
        return {}
    found: CheckpointTuple | None = None
    while before:
        found = load(at(config, before))
        before = above(found)
    return named(found)


async def asegments_before(
    config: RunnableConfig, before: str | None, archive: Archive, load: LoadAsync
) -> Segments:
    """Return the segments that the nearest checkpoint names, from this one on towards the first."""
    if not await archive.aholds(str(config["configurable"]["thread_id"])):
        return {}
    found: CheckpointTuple | None = None
    while before:
        found = await load(at(config, before))
        before = above(found)
    return named(found)


def named(found: CheckpointTuple | None) -> Segments:
    """Return the segments that a checkpoint names itself, by channel."""
    return Record.read(found.metadata).segments if found else {}


def above(found: CheckpointTuple | None) -> str | None:
    """Return the id of the checkpoint before one that names no segments; None where it does."""
    if found is None:
        return None
    record, parent = Record.read(found.metadata), found.parent_config
    if record.segments:
        return None
    return record.ancestor or (parent["configurable"].get("checkpoint_id") if parent else None)
