"""Store reduced checkpoints: `put` and `aput`, and what they remember."""

from __future__ import annotations

import builtins
import logging
import traceback
import warnings
from collections.abc import Collection, Sequence
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
from ._channel import Place, interrupts_seen
from ._errors import ConfigurationError, ReductionError
from ._forwarding import ForwardingSaver
from ._lineage import CheckpointKey, Lineage, Trace
from ._reduction import Offer, Reduction, reduce_checkpoint
from ._stats import ChannelStats, Counts, Stats
from .engine import Plan, When, Window

logger = logging.getLogger("reducing_saver")

_NOTHING_KEPT = (
    "no archive is set: messages that leave the window are gone. "
    "Pass archive=Discard() to say that this is meant."
)


_ABOVE_CAP = (
    "channel %s of %s grew above the window's cap, %s, within one run and was reduced in the "
    "middle of it; set a larger cap to keep longer runs whole (said once)"
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

    - `channels`: where message lists are; `"__previous__.messages"` names a key in the value that
      an `@entrypoint` saves.
    - `namespaces`: of which graphs: `""` is the root, `"child"` a subgraph, `"a|b"` one below
      another; all by default.
    - `enabled=False` stores everything as it is and may be set at any time; `shadow=True` decides
      and counts, and stores everything as it is.
    - `strict=True` raises `ReductionError` where reducing fails; by default the list is stored as
      it is, a warning is logged, and the failure counted.

    Raises `NotASaverError` for what is no saver, and `ConfigurationError` for other bad values.
    Safe to use from threads and event loops, as far as the saver inside is.
    """

    enabled: bool

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        window: Window,
        *,
        archive: Discard | None = None,
        channels: Sequence[str] = ("messages",),
        namespaces: Collection[str] | None = None,
        enabled: bool = True,
        shadow: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(inner)
        _check(inner, window, archive)
        self.window = window
        self.enabled = enabled
        self.shadow = shadow
        self.strict = strict
        self._places = {name: Place.parse(name) for name in _names("channels", channels)}
        self._namespaces = None if namespaces is None else {*_names("namespaces", namespaces)}
        self._lineage = Lineage()
        self._counts = Counts()
        self._warned: set[str] = set()
        if archive is None and not shadow:
            warnings.warn(_NOTHING_KEPT, stacklevel=2)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, reduced."""
        step = self._reduce(config, checkpoint, new_versions)
        stored = self.inner.put(config, step.checkpoint, metadata, step.new_versions)
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
        step = self._reduce(config, checkpoint, new_versions)
        stored = await self.inner.aput(config, step.checkpoint, metadata, step.new_versions)
        self._remember(config, step)
        return stored

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint."""
        found = self.inner.get_tuple(config)
        self._learn(found)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint."""
        found = await self.inner.aget_tuple(config)
        self._learn(found)
        return found

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
        self.inner.delete_thread(thread_id)
        self._lineage.forget_thread(str(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, and forget what was evicted from it."""
        await self.inner.adelete_thread(thread_id)
        self._lineage.forget_thread(str(thread_id))

    def stats(self) -> Stats:
        """Return what was done since this saver was made, by channel, and by the last put."""
        return self._counts.read()

    def _reduce(
        self, config: RunnableConfig, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> Reduction:
        namespace = config["configurable"].get("checkpoint_ns", "")
        untouched = Reduction(checkpoint, new_versions)
        if not self.enabled or not self._reduces(namespace):
            return untouched
        parent = self._lineage.find(_key(config, config["configurable"].get("checkpoint_id")))
        offer = Offer(checkpoint, new_versions, namespace, parent, self.inner.get_next_version)
        try:
            reduction = reduce_checkpoint(offer, self._places, self.window)
        except Exception as error:
            return self._failed(config, untouched, parent, error)
        return reduction.as_shadow(untouched) if self.shadow else reduction

    def _reduces(self, namespace: str) -> bool:
        if self._namespaces is None:
            return True
        return "|".join(part.partition(":")[0] for part in namespace.split("|")) in self._namespaces

    def _failed(
        self, config: RunnableConfig, untouched: Reduction, parent: Trace | None, error: Exception
    ) -> Reduction:
        if self.strict:
            raise ReductionError(f"could not reduce a checkpoint of {_where(config)}") from error
        # The text of the error may quote a message, so only its type and place are logged.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        logger.warning(
            "could not reduce a checkpoint of %s, so it is stored as it is: %s at %s:%s",
            _where(config),
            type(error).__name__,
            frame.filename,
            frame.lineno,
        )
        failed = {name: ChannelStats(puts=1, failures=1) for name in self._places}
        return replace(untouched, trace=parent or Trace(), done=failed)

    def _remember(self, config: RunnableConfig, step: Reduction) -> None:
        if step.trace is not None:
            self._lineage.remember(_key(config, step.checkpoint["id"]), step.trace)
        self._counts.add(step.done)
        for name, decided in step.plans.items():
            self._report(config, name, decided)

    def _report(self, config: RunnableConfig, name: str, decided: Plan) -> None:
        where = _where(config)
        logger.debug(
            "%d units left channel %s of %s (%s)", len(decided.evicted), name, where, decided.when
        )
        if decided.when is When.RUN:
            self._warn_once(_ABOVE_CAP, name, where, tuple(decided.window.cap))
        if decided.stuck:
            self._warn_once(_STUCK, name, where, [tuple(mark) for mark in decided.passed])

    def _warn_once(self, text: str, *values: object) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values)

    def _learn(self, found: CheckpointTuple | None) -> None:
        if found is not None:
            seen = interrupts_seen(found.checkpoint)
            key = _key(found.config, found.checkpoint["id"])
            self._lineage.learn(key, Trace(interrupts_seen=seen))


def _key(config: RunnableConfig, checkpoint_id: str | None) -> CheckpointKey:
    configurable = config["configurable"]
    thread, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
    return CheckpointKey(str(thread), namespace, checkpoint_id or "")


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


def _names(field: str, value: object) -> builtins.list[str]:
    names = builtins.list(value) if isinstance(value, Collection) else []
    if isinstance(value, str) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(field, value, 'several names, as ("messages",)')
    if field == "channels" and not all(names or [""]):
        raise ConfigurationError(field, value, 'at least one name, as ("messages",)')
    return names
