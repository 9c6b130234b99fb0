"""Store reduced checkpoints: `put` and `aput`, and what they remember."""

from __future__ import annotations

import builtins
import logging
import traceback
import warnings
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from ._archive import Discard
from ._channel import Place, at_rest, interrupts_seen, read
from ._copies import bound_writes
from ._delta import Reducer, is_delta, needs_folding, snapshotted
from ._errors import ConfigurationError, ReductionError
from ._forwarding import ForwardingSaver
from ._lineage import NOTHING, Lineage, Trace
from ._lookup import afind_trace, afold_lists, find_trace, fold_lists, key_of, traced
from ._pending import clean, concerns, new_among, readmitted
from ._reduction import Offer, Reduction, Setting, reduce_checkpoint, versions_of
from ._stats import ChannelStats, Counts, Stats
from .engine import Plan, When, Window
from .engine.messages import holds_messages

logger = logging.getLogger("reducing_saver")

Folded = Mapping[str, builtins.list[object]]

_NOTHING_KEPT = (
    "no archive is set: messages that leave the window are gone. "
    "Pass archive=Discard() to say that this is meant."
)


_ABOVE_CAP = (
    "channel %s of %s grew above the window's cap, %s, within one run and was reduced in the "
    "middle of it; set a larger cap to keep longer runs whole (said once)"
)
_ALREADY_ABOVE = (
    "channel %s of %s was already above the window's cap, %s, when it was loaded; it was reduced "
    "as the run began (said once)"
)
_ELSEWHERE = (
    "none of the channels %s is in %s, which holds messages in %s: is the name in channels= "
    "right? (said once)"
)
_FAILED = (
    "could not reduce a checkpoint, so it is stored as it is: %s at %s:%s in %s (said once; "
    "stats() counts the others)"
)
_DELTA = (
    "channel %s is a delta channel and is stored as it is; pass its reducer as messages_reducer= "
    "to reduce it (said once)"
)
_STUCK = (
    "channel %s of %s stays above a mark it has passed: its current turn and what is pinned are "
    "larger than %s (said once)"
)


class ReducingSaver(ForwardingSaver):
    """Wrap a checkpointer so that the message lists it stores stay within a window.

    Pass it to `compile(checkpointer=...)` in place of the saver inside. Each checkpoint that comes
    to rest holds a reduced list; in the middle of a run the full list is stored while it is within
    the window's cap. Nothing else in a checkpoint changes.

    - `inner`: the saver that stores; it stays public as `saver.inner`.
    - `window`: what stays of a list, see `Window`.
    - `archive`: where what leaves goes. None warns, once a saver, that it is gone; `Discard()` says
      that it may be.
    - `channels`: where message lists are; `"__previous__.messages"` names a key in the value that
      an `@entrypoint` saves.
    - `copies`: channels that only repeat a list, as `"llm_input_messages"`: bounded by the window's
      cap. The state that `Send` carries is bounded so too.
    - `messages_reducer`: the reducer of the graph's `DeltaChannel`, where it has one.
    - `namespaces`: of which graphs: `""` is the root, `"child"` a subgraph, `"a|b"` one below
      another; all by default.
    - `enabled=False` stores everything as it is and may be set at any time; `shadow=True` decides
      and counts, and stores everything as it is.
    - `strict=True` raises `ReductionError` where reducing fails; by default the list is stored as
      it is, a warning is logged, and the failure counted.

    Raises `NotASaverError` for what is no saver, and `ConfigurationError` for other bad values.
    Safe to use from threads and event loops, as far as the saver inside is.
    """

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        window: Window,
        *,
        archive: Discard | None = None,
        channels: Sequence[str] = ("messages",),
        copies: Sequence[str] = (),
        messages_reducer: Reducer | None = None,
        namespaces: Collection[str] | None = None,
        enabled: bool = True,
        shadow: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(inner)
        _check(inner, window, archive)
        self.window = window
        self.enabled = enabled
        self._shadow = _flag("shadow", shadow)
        self.strict = _flag("strict", strict)
        places = {name: Place.parse(name) for name in _names("channels", channels)}
        repeats = tuple(Place.parse(name) for name in _names("copies", copies))
        self._setting = Setting(window, places, repeats)
        if messages_reducer is not None and not callable(messages_reducer):
            allowed = "None, or the reducer of the graph's DeltaChannel"
            raise ConfigurationError("messages_reducer", messages_reducer, allowed)
        if set(places) & set(copies):
            raise ConfigurationError("copies", copies, "names that are not in channels")
        self._messages_reducer = messages_reducer
        self._namespaces = None if namespaces is None else {*_names("namespaces", namespaces)}
        self._lineage = Lineage()
        self._counts = Counts()
        self._warned: set[str] = set()
        if archive is None and not shadow:
            warnings.warn(_NOTHING_KEPT, stacklevel=2)

    def __repr__(self) -> str:
        state = ", shadow=True" if self.shadow else ""
        state += "" if self.enabled else ", enabled=False"
        return f"{type(self).__name__}({self.inner!r}, {self.window!r}{state})"

    @property
    def shadow(self) -> bool:
        """Whether everything is stored as it is; what it would evict is not remembered as real."""
        return self._shadow

    @property
    def enabled(self) -> bool:
        """Whether lists are reduced; may be set at any time."""
        return self._enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._enabled = _flag("enabled", enabled)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, reduced."""
        step = Reduction(checkpoint, metadata, new_versions)
        if self._reduces(config):
            try:
                parent = self._alike(config, step, self._trace(config))
                folded = self._folded(config, step)
                step = self._reduce(config, step, parent, folded)
            except Exception as error:
                step = self._failed(config, step, error)
        stored = super().put(config, step.checkpoint, step.metadata, step.new_versions)
        self._remember(config, step)
        return stored

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, reduced."""
        step = Reduction(checkpoint, metadata, new_versions)
        if self._reduces(config):
            try:
                parent = self._alike(config, step, await self._atrace(config))
                folded = await self._afolded(config, step)
                step = self._reduce(config, step, parent, folded)
            except Exception as error:
                step = self._failed(config, step, error)
        stored = await super().aput(config, step.checkpoint, step.metadata, step.new_versions)
        self._remember(config, step)
        return stored

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, with bounded copies of the list."""
        super().put_writes(config, self._prepared(config, writes), task_id, task_path)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, with bounded copies of the list."""
        await super().aput_writes(config, self._prepared(config, writes), task_id, task_path)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint; what its pending writes say of evicted messages is left out."""
        found = super().get_tuple(config)
        if found is None or not self._learn(found):
            return found
        return self._cleaned(found, self._trace(found.config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint; what its pending writes say of evicted messages is left out."""
        found = await super().aget_tuple(config)
        if found is None or not self._learn(found):
            return found
        return self._cleaned(found, await self._atrace(found.config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, each as `get_tuple` gives it."""
        rest = super().list(config, filter=filter, before=before, limit=limit)
        for found in rest:
            if not self._learn(found):
                yield found
                continue
            # Some savers hold their lock while they list, so all is read before anything else is.
            for each in [found, *rest]:
                needed = self._learn(each)
                yield self._cleaned(each, self._trace(each.config)) if needed else each

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, each as `aget_tuple` gives it."""
        rest = super().alist(config, filter=filter, before=before, limit=limit)
        async for found in rest:
            if not self._learn(found):
                yield found
                continue
            # Some savers hold their lock while they list, so all is read before anything else is.
            for each in [found, *[one async for one in rest]]:
                needed = self._learn(each)
                yield self._cleaned(each, await self._atrace(each.config)) if needed else each

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        """Load a checkpoint without what belongs to it."""
        found = self.get_tuple(config)
        return found and found.checkpoint

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        """Load a checkpoint without what belongs to it."""
        found = await self.aget_tuple(config)
        return found and found.checkpoint

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread, and forget what was evicted from it."""
        super().delete_thread(thread_id)
        self._lineage.forget_thread(str(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, and forget what was evicted from it."""
        await super().adelete_thread(thread_id)
        self._lineage.forget_thread(str(thread_id))

    def stats(self) -> Stats:
        """Return what was done since this saver was made, by channel, and by the last put."""
        return self._counts.read()

    def new_messages(
        self, config: RunnableConfig, messages: Sequence[Any], *, channel: str = "messages"
    ) -> builtins.list[Any]:
        """Return what is new in a list that a client sends whole on every turn.

        Left out is what the thread holds with the same content or has evicted, by id, and removals
        of what it does not hold. What was evicted is remembered in this process. A message
        without an id is always new.
        """
        found = self.get_tuple(config)
        trace = self._trace(found.config) if found else Trace()
        return self._new(messages, channel, found, trace)

    async def anew_messages(
        self, config: RunnableConfig, messages: Sequence[Any], *, channel: str = "messages"
    ) -> builtins.list[Any]:
        """Return what is new in a list that a client sends whole, as `new_messages` does."""
        found = await self.aget_tuple(config)
        trace = await self._atrace(found.config) if found else Trace()
        return self._new(messages, channel, found, trace)

    def _new(
        self,
        messages: Sequence[Any],
        channel: str,
        found: CheckpointTuple | None,
        trace: Trace,
    ) -> builtins.list[Any]:
        if channel not in self._setting.places:
            raise ConfigurationError("channel", channel, f"one of {[*self._setting.places]}")
        held = read(found.checkpoint, self._setting.places[channel]) if found else None
        messages_held = held if isinstance(held, builtins.list) else []
        return new_among(messages, messages_held, trace.evicted.get(channel, NOTHING))

    def _trace(self, config: RunnableConfig) -> Trace:
        return find_trace(self._lineage, super().get_tuple, config, self._setting)

    async def _atrace(self, config: RunnableConfig) -> Trace:
        return await afind_trace(self._lineage, super().aget_tuple, config, self._setting)

    def _folded(self, config: RunnableConfig, offered: Reduction) -> Folded:
        reducer, deltas = self._messages_reducer, self._deltas(config, offered)
        if reducer is None or not deltas:
            return {}
        load, history = super().get_tuple, super().get_delta_channel_history
        return fold_lists(config, offered.checkpoint, deltas, reducer, load, history)

    async def _afolded(self, config: RunnableConfig, offered: Reduction) -> Folded:
        reducer, deltas = self._messages_reducer, self._deltas(config, offered)
        if reducer is None or not deltas:
            return {}
        load, history = super().aget_tuple, super().aget_delta_channel_history
        return await afold_lists(config, offered.checkpoint, deltas, reducer, load, history)

    def _deltas(self, config: RunnableConfig, offered: Reduction) -> dict[str, str]:
        """Return the delta channels that are looked at in this put: at rest, and opted in."""
        checkpoint = offered.checkpoint
        plain = {n: p.channel for n, p in self._setting.places.items() if p.key is None}
        if self._messages_reducer is None:
            for name, channel in plain.items():
                if is_delta(checkpoint, offered.metadata, channel):
                    self._warn_once(_DELTA, name)
            return {}
        if ":" in key_of(config).namespace or not at_rest(checkpoint):
            return {}
        return {
            name: channel
            for name, channel in plain.items()
            if needs_folding(checkpoint, channel) or snapshotted(checkpoint, channel) is not None
        }

    def _reduces(self, config: RunnableConfig) -> bool:
        if not self.enabled or self._namespaces is None:
            return self.enabled
        parts = key_of(config).namespace.split("|")
        return "|".join(part.partition(":")[0] for part in parts) in self._namespaces

    def _alike(self, config: RunnableConfig, offered: Reduction, parent: Trace) -> Trace:
        """Return the trace of what a fork is a copy of; its parent is the one before."""
        versions = versions_of(offered.checkpoint, self._setting.places)
        if offered.metadata.get("source") != "fork" or parent.versions == versions:
            return parent
        return self._lineage.find_alike(key_of(config), versions) or parent

    def _reduce(
        self,
        config: RunnableConfig,
        offered: Reduction,
        parent: Trace,
        folded: Folded,
    ) -> Reduction:
        key = key_of(config)
        offer = Offer(
            offered.checkpoint,
            offered.metadata,
            offered.new_versions,
            namespace=key.namespace,
            parent=parent,
            next_version=self.inner.get_next_version,
            folded=folded,
            readmitted=self._lineage.readmitted(key),
        )
        reduction = reduce_checkpoint(offer, self._setting)
        return reduction.as_shadow(offered, self._setting) if self.shadow else reduction

    def _prepared(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Note what writes keep on purpose, and bound what only repeats a list."""
        key, setting = key_of(config), self._setting
        for name, place in setting.places.items():
            if place.key is None and (kept := readmitted(writes, place.channel)):
                self._lineage.readmit(key, name, kept)
        if not self._reduces(config) or self.shadow:
            return writes
        try:
            trace = self._lineage.find(key) or Trace()
            bound = setting.bound(trace.evicted.values())
            return bound_writes(writes, setting.copies, setting.keys(), bound)
        except Exception as error:
            self._report_failure(config, error)
            return writes

    def _cleaned(self, found: CheckpointTuple, trace: Trace) -> CheckpointTuple:
        lines = {name: line.has for name, line in trace.evicted.items() if len(line)}
        return clean(found, self._setting.places, lines)

    def _failed(self, config: RunnableConfig, offered: Reduction, error: Exception) -> Reduction:
        self._report_failure(config, error)
        failed = {name: ChannelStats(puts=1, failures=1) for name in self._setting.places}
        # The whole list is stored, so of this checkpoint nothing is evicted.
        known = self._lineage.find(key_of(config)) or Trace()
        trace = replace(
            known,
            evicted={},
            versions=versions_of(offered.checkpoint, self._setting.places),
            interrupts_seen=interrupts_seen(offered.checkpoint),
        )
        return replace(offered, trace=trace, done=failed)

    def _report_failure(self, config: RunnableConfig, error: Exception) -> None:
        if self.strict:
            raise ReductionError(f"could not reduce a checkpoint of {_where(config)}") from error
        # The text of the error may quote a message, so only its type and place are logged.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self._warn_once(_FAILED, type(error).__name__, frame.filename, frame.lineno, _where(config))

    def _remember(self, config: RunnableConfig, step: Reduction) -> None:
        if step.trace is not None:
            stored = key_of(config)._replace(checkpoint=step.checkpoint["id"])
            self._lineage.remember(stored, step.trace)
        self._counts.add(step.done)
        for name, decided in step.plans.items():
            self._report(config, step, name, decided)
        if step.trace is not None and not step.done:
            self._look_elsewhere(config, step.checkpoint)

    def _report(self, config: RunnableConfig, step: Reduction, name: str, decided: Plan) -> None:
        where = _where(config)
        text = "would evict" if self.shadow else "evicted"
        logger.info(
            "%s %d messages from channel %r of %s (%s)",
            text,
            len(decided.leaving),
            name,
            where,
            decided.when,
        )
        if decided.when is When.RUN:
            arrived = step.metadata.get("source") == "input"
            text = _ALREADY_ABOVE if arrived else _ABOVE_CAP
            self._warn_once(text, name, where, tuple(decided.window.cap))
        if decided.stuck:
            self._warn_once(_STUCK, name, where, [tuple(mark) for mark in decided.passed])

    def _look_elsewhere(self, config: RunnableConfig, checkpoint: Checkpoint) -> None:
        """Say once that no channel of this saver is there while others hold messages."""
        if self._counts.read().channels or not at_rest(checkpoint):
            return
        others = [name for name, value in checkpoint["channel_values"].items() if _holds(value)]
        if others:
            self._warn_once(_ELSEWHERE, [*self._setting.places], _where(config), others)

    def _warn_once(self, text: str, *values: object) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values)

    def _learn(self, found: CheckpointTuple) -> bool:
        """Remember a checkpoint that was loaded; tell whether its pending writes need cleaning."""
        self._lineage.learn(key_of(found.config), traced(found, self._setting))
        for name, place in self._setting.places.items():
            kept = readmitted([w[1:] for w in found.pending_writes or ()], place.channel)
            if kept and place.key is None:
                self._lineage.readmit(key_of(found.config), name, kept)
        return concerns(found, self._setting.places)


def _where(config: RunnableConfig) -> str:
    configurable = config["configurable"]
    namespace = configurable.get("checkpoint_ns", "")
    return f"thread {configurable['thread_id']!r}, namespace {namespace!r}"


def _check(inner: object, window: object, archive: object) -> None:
    if isinstance(inner, ReducingSaver):
        raise ConfigurationError("inner", inner, "a saver that is not wrapped yet")
    if not isinstance(window, Window):
        raise ConfigurationError("window", window, 'a Window, as Window(keep=("turns", 6))')
    if not (archive is None or isinstance(archive, Discard)):
        raise ConfigurationError("archive", archive, "None or Discard()")


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(field, value, "True or False")
    return value


def _holds(value: object) -> bool:
    """Tell whether a channel holds messages, itself or under a key."""
    if isinstance(value, dict):
        return any(isinstance(v, builtins.list) and holds_messages(v) for v in value.values())
    return isinstance(value, builtins.list) and holds_messages(value)


def _names(field: str, value: object) -> builtins.list[str]:
    names = builtins.list(value) if isinstance(value, Collection) else []
    if isinstance(value, str) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(field, value, f"several names, as {_EXAMPLES[field]}")
    if (field != "copies" and not names) or (field != "namespaces" and not all(names)):
        raise ConfigurationError(field, value, f"at least one name, as {_EXAMPLES[field]}")
    return names


_EXAMPLES = {
    "channels": '("messages",)',
    "copies": '("llm_input_messages",)',
    "namespaces": '("",) for the root, or None for all',
}
