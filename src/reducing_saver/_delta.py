"""Fold the list of a delta channel (beta in LangGraph), which `put` is not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

Reducer = Callable[[Any, Sequence[Any]], Any]


def is_delta(checkpoint: Checkpoint, metadata: CheckpointMetadata, channel: str) -> bool:
    """Tell whether a channel is seen to be a delta channel."""
    value = checkpoint["channel_values"].get(channel)
    return isinstance(value, _DeltaSnapshot) or channel in (
        metadata.get("counters_since_delta_snapshot") or {}
    )


def snapshotted(checkpoint: Checkpoint, channel: str) -> list[object] | None:
    """Return the list in a snapshot that the checkpoint carries, or None."""
    value = checkpoint["channel_values"].get(channel)
    held = value.value if isinstance(value, _DeltaSnapshot) else None
    return held if isinstance(held, list) else None


def needs_folding(checkpoint: Checkpoint, channel: str) -> bool:
    """Tell whether a channel has a version and no value: a delta channel between snapshots."""
    known = checkpoint["channel_versions"]
    return channel in known and channel not in checkpoint["channel_values"]


def fold(
    parent: CheckpointTuple | None,
    history: Mapping[str, DeltaChannelHistory],
    channel: str,
    reducer: Reducer,
) -> list[object] | None:
    """Return the list of the checkpoint after `parent`, as LangGraph would load it.

    That is the value at the parent, and the writes stored with it, which made the next one.
    """
    from langgraph.channels import DeltaChannel

    if parent is None:
        return None
    values = parent.checkpoint["channel_values"]
    seed = values.get(channel, history[channel].get("seed"))
    past = [] if channel in values else history[channel]["writes"]
    folded = DeltaChannel(reducer, list).from_checkpoint(seed)
    own = [write for write in parent.pending_writes or () if write[1] == channel]
    folded.replay_writes([*past, *own])
    value = folded.get()
    return value if isinstance(value, list) else None


def snapshot(
    checkpoint: Checkpoint, metadata: CheckpointMetadata, channel: str, messages: list[object]
) -> tuple[Checkpoint, CheckpointMetadata]:
    """Return both with a snapshot of the list, counted from here on."""
    values = {**checkpoint["channel_values"], channel: _DeltaSnapshot(messages)}
    since = metadata.get("counters_since_delta_snapshot") or {}
    counters = {name: count for name, count in since.items() if name != channel}
    counted: CheckpointMetadata = {**metadata, "counters_since_delta_snapshot": counters}
    if not counters:
        del counted["counters_since_delta_snapshot"]
    return {**checkpoint, "channel_values": values}, counted
