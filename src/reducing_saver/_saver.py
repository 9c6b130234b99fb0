"""Store reduced checkpoints: `put` and `aput`, and what they remember."""

from __future__ import annotations

import asyncio
import builtins
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

from ._ahead import Ahead
from ._archive import Archive, Discard
from ._arguments import (
    check_archive,
    check_config,
    check_excerpt,
    check_max_bytes,
    check_reducer,
    check_summary,
    check_window,
    flag,
    names,
)
from ._budget import Budget, CheckpointTooLargeError
from ._channel import Place, at_rest, read
from ._contents import Contents
from ._copies import bound_writes, repeats
from ._counts import Counts
from ._delivery import Delivery
from ._delta import Reducer, is_delta, needs_folding, snapshotted
from ._errors import ConfigurationError, ReductionError
from ._fitter import Fitter
from ._forwarding import ForwardingSaver
from ._hooks import Hook, check_hooks
from ._keeper import Keeper
from ._line import aline_segments, at, line_segments
from ._lineage import NOTHING, Lineage, Trace
from ._lookup import (
    afind_archived,
    afind_trace,
    afold_lists,
    alike,
    find_archived,
    find_trace,
    fold_lists,
    key_of,
    misses,
    owed_by,
    resent,
    stored_before,
    traced,
)
from ._notices import Notices, where
from ._pending import clean, concerns, new_among, readmitted
from ._reduction import Offer, Reduction, Setting, carried, propose, settle
from ._retain import Retain
from ._retention import Retention
from ._roll import Roll, asummarise, patience, summarise
from ._select import HeadTail, Selector, SelectorError
from ._stats import ChannelStats, Stats
from ._summary import Summary
from ._transcript import atranscript, transcript
from .engine import Excerpt, Window

Folded = Mapping[str, builtins.list[object]]

_NOTHING_KEPT = (
    "no archive is set: messages that leave the window are gone. "
    "Pass archive=Discard() to say that this is meant."
)


class ReducingSaver(ForwardingSaver):
    """Wrap a checkpointer so that the message lists it stores stay within a window.

    Pass it to `compile(checkpointer=...)` in place of the saver inside. Each checkpoint that comes
    to rest holds a reduced list; in the middle of a run the full list is stored while it is within
    the window's cap. Nothing else in a checkpoint changes.

    - `inner`: the saver that stores; it stays public as `saver.inner`.
    - `window`: what stays of a list, see `Window`.
    - `archive`: where what leaves goes, as `StoreArchive(store)`. None warns, once a saver, that it
      is gone; `Discard()` says that it may be. `archive_removed`: also what the graph removes.
    - `excerpt`: which contents are stored as excerpts, as `Excerpt(max_tokens=2_000)`; `selector`
      says which parts of them are kept: `HeadTail()` by default, `Words()`, `Nearest(embeddings)`,
      `Hosted(ask)`. With an archive the whole is kept, see `original`.
    - `max_bytes`: what the store inside takes of one checkpoint, with its metadata. What is larger
      is cut, then evicted without a summary, and what still is raises `CheckpointTooLargeError`.
      Pending writes are cut too; one that cannot be is left to the store, with a warning.
    - `summary`: a `Summary` that takes the place of what leaves.
    - `on_evict`: hooks that are told what left, after its checkpoint is stored; `namespace_key`
      names the key in the run's config that says whose memory it is (else the thread's).
    - `channels`: where message lists are; `"__previous__.messages"` names a key in the value that
      an `@entrypoint` saves.
    - `copies`: channels that only repeat a list, as `"llm_input_messages"`: bounded by the window's
      cap. The state that `Send` carries is bounded so too.
    - `messages_reducer`: the reducer of the graph's `DeltaChannel`, where it has one.
    - `namespaces`: of which graphs: `""` is the root, `"child"` a subgraph, `"a|b"` one below
      another; all by default.
    - `retain`: which checkpoints stay of a thread that goes on, see `Retain`; the others are
      deleted in the background after a run, a few at a time (Postgres and SQLite). It needs an
      archive or `Discard()`. Where nothing runs after a response, as serverless, old ones wait for
      the thread's next run, or for `close()`, which deletes what is left. `newer=` keeps what runs
      of other processes may still go on from.
    - `enabled=False` stores everything as it is and may be set at any time; `shadow=True` decides
      and counts, and stores everything as it is.
    - `strict=True` raises `ReductionError` where reducing fails; by default the list is stored as
      it is, a warning is logged, and the failure counted. A name in `channels` that no checkpoint
      has is warned of only, as a channel that no node has written yet is in none either;
      `stats().channels` names those that were found.

    Raises `NotASaverError` for what is no saver, and `ConfigurationError` for other bad values.
    Safe to use from threads and event loops, as far as the saver inside is.
    """

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        window: Window,
        *,
        archive: Archive | Discard | None = None,
        excerpt: Excerpt | None = None,
        selector: Selector | None = None,
        max_bytes: int | None = None,
        summary: Summary | None = None,
        archive_removed: bool = True,
        on_evict: Sequence[Hook] = (),
        namespace_key: str = "memory_namespace",
        channels: Sequence[str] = ("messages",),
        copies: Sequence[str] = (),
        messages_reducer: Reducer | None = None,
        namespaces: Collection[str] | None = None,
        retain: Retain | None = None,
        enabled: bool = True,
        shadow: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(inner)
        if isinstance(inner, ReducingSaver):
            said = "this saver is wrapped already: use it as it is, or wrap `saver.inner`"
            raise ConfigurationError("inner", inner, "a saver that is not wrapped yet", said=said)
        check_window(window)
        check_archive(archive, inner)
        check_excerpt(excerpt, selector)
        check_max_bytes(max_bytes)
        check_summary(summary)
        check_hooks(on_evict)
        check_reducer(messages_reducer)
        self.window = window
        self.enabled = enabled
        self._shadow = flag("shadow", shadow)
        self.strict = flag("strict", strict)
        places = {name: Place.parse(name) for name in names("channels", channels)}
        repeats = tuple(Place.parse(name) for name in names("copies", copies))
        self._archive = None if isinstance(archive, Discard) else archive
        archives = bool(self._archive or on_evict)
        room = summary.room() if summary is not None else {}
        removed = archives and archive_removed
        self._setting = Setting(window, places, repeats, archives, removed, room, excerpt)
        self._namespace_key = namespace_key
        if set(places) & set(copies):
            raise ConfigurationError("copies", copies, "names that are not in channels")
        self._messages_reducer = messages_reducer
        self._namespaces = None if namespaces is None else {*names("namespaces", namespaces)}
        self._lineage = Lineage()
        self._counts = Counts()
        self._delivery = Delivery(tuple(on_evict), self._archive, self._counts, inner.serde)
        self._ahead = Ahead(summary, self._counts) if summary and summary.background else None
        self._roll: Roll | None = None
        if summary is not None:
            counts, serde = self._counts, inner.serde
            self._roll = Roll(summary, window, counts, self._archive, serde, self._ahead)
        self._notices = Notices()
        tells = bool(on_evict) and self._archive is not None
        self._keeper = Keeper(self._archive, inner.serde, tells, self._counts, self._notices)
        self._contents = self._cuts(excerpt, selector) if excerpt is not None else None
        budget = None if max_bytes is None else Budget(max_bytes, inner.serde, window)
        ladder = tuple(self._cuts(one, None) for one in budget.excerpts(excerpt)) if budget else ()
        self._fitter = Fitter(
            self._setting,
            self._contents,
            budget,
            ladder,
            self._keeper,
            self._notices,
            keeps=not shadow,
        )
        self._retention = None if retain is None else Retention(inner, retain)
        if retain is not None and archive is None:
            allowed = "an archive or Discard() with retain=: old checkpoints hold what has left"
            raise ConfigurationError("archive", archive, allowed)
        if archive is None and not shadow:
            warnings.warn(_NOTHING_KEPT, stacklevel=2)

    def _cuts(self, excerpt: Excerpt, selector: Selector | None) -> Contents:
        return Contents(
            excerpt,
            selector or HeadTail(),
            window=self.window,
            serde=self.inner.serde,
            archives=self._archive is not None,
            failed=self._selector_failed,
        )

    def _selector_failed(self, error: Exception) -> None:
        # The text of an error may quote a content; a type's name does not.
        reason = error.reason if isinstance(error, SelectorError) else type(error).__name__
        self._counts.add_selector_failure(reason)
        self._notices.selector_failed(error)

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
        self._enabled = flag("enabled", enabled)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, reduced."""
        step = Reduction(checkpoint, metadata, new_versions)
        try:
            if self._reduces(config):
                step = self._reduced(config, step)
            elif self._archive is not None:
                step = carried(step, self._trace(config), self._setting)
        except CheckpointTooLargeError:
            raise
        except Exception as error:
            step = self._failed(config, step, error)
        try:
            stored = super().put(config, step.checkpoint, step.metadata, step.new_versions)
        except BaseException:
            self._delivery.doubt(key_of(config).thread)
            raise
        self._remember(config, step)
        self._tidy(config, step)
        self._delivery.after_put(key_of(config).thread, step.leaves, super().get_tuple)
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
        try:
            if self._reduces(config):
                step = await self._areduced(config, step)
            elif self._archive is not None:
                step = carried(step, await self._atrace(config), self._setting)
        except CheckpointTooLargeError:
            raise
        except Exception as error:
            step = self._failed(config, step, error)
        try:
            stored = await super().aput(config, step.checkpoint, step.metadata, step.new_versions)
        except BaseException:
            self._delivery.doubt(key_of(config).thread)
            raise
        self._remember(config, step)
        self._tidy(config, step)
        await self._delivery.aafter_put(key_of(config).thread, step.leaves, super().aget_tuple)
        return stored

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, with bounded copies of the list."""
        prepared = self._short_writes(config, self._prepared(config, writes))
        super().put_writes(config, prepared, task_id, task_path)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, with bounded copies of the list."""
        prepared = await self._ashort_writes(config, self._prepared(config, writes))
        await super().aput_writes(config, prepared, task_id, task_path)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint; what its pending writes say of evicted messages is left out."""
        found = super().get_tuple(config)
        self._hold(config)
        if found is None or not self._learn(found):
            return found
        return self._cleaned(found, self._trace(found.config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint; what its pending writes say of evicted messages is left out."""
        found = await super().aget_tuple(config)
        self._hold(config)
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
        """Erase a thread with its archive."""
        if self._archive is not None:
            self._archive.delete_thread(str(thread_id))
        super().delete_thread(thread_id)
        self._forget(str(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Erase a thread with its archive."""
        if self._archive is not None:
            await self._archive.adelete_thread(str(thread_id))
        await super().adelete_thread(thread_id)
        self._forget(str(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its archive."""
        if self._archive is not None:
            self._archive.copy_thread(str(source_thread_id), str(target_thread_id))
        super().copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its archive."""
        if self._archive is not None:
            await self._archive.acopy_thread(str(source_thread_id), str(target_thread_id))
        await super().acopy_thread(source_thread_id, target_thread_id)

    def original(self, config: RunnableConfig, key: str) -> Any:
        """Return the whole of an excerpt by the key that it names; None where it is not there."""
        archive, thread = self._named_archive("original", config), key_of(config).thread
        found = archive.read(thread, [key])
        return found[0].load(self.serde) if found else None

    async def aoriginal(self, config: RunnableConfig, key: str) -> Any:
        """Return the whole of an excerpt by the key that it names; None where it is not there."""
        archive, thread = self._named_archive("original", config), key_of(config).thread
        found = await archive.aread(thread, [key])
        return found[0].load(self.serde) if found else None

    def _named_archive(self, method: str, config: RunnableConfig) -> Archive:
        check_config(config)
        if self._archive is None:
            said = (
                f"{method}() needs an archive; this saver discards what leaves: pass "
                "archive=StoreArchive(store) when it is built"
            )
            raise ConfigurationError(
                "archive", None, "an archive, which keeps what left", said=said
            )
        return self._archive

    def deliver(self) -> None:
        """Hand to the hooks what was archived and not acknowledged, of all threads."""
        self._delivery.deliver(super().get_tuple)

    async def adeliver(self) -> None:
        """Hand to the hooks what was archived and not acknowledged, of all threads."""
        await self._delivery.adeliver(super().aget_tuple)

    def transcript(
        self, config: RunnableConfig, *, channel: str = "messages", page_size: int = 100
    ) -> Iterator[Any]:
        """Yield every message of a thread ever, in its original order, once, without summaries.

        The archive and the state are merged, along the line of the checkpoint that the config
        names (the newest by default). `page_size` archived messages are read at once.
        """
        archive, found = self._named_archive("transcript", config), self.get_tuple(config)
        state = self._held(found, channel)
        newest = line_segments(found, archive, super().get_tuple).get(channel)
        thread = key_of(config).thread
        return transcript(archive, self.serde, thread, newest, state, page_size=page_size)

    async def atranscript(
        self, config: RunnableConfig, *, channel: str = "messages", page_size: int = 100
    ) -> AsyncIterator[Any]:
        """Yield every message of a thread ever, as `transcript` does."""
        archive = self._named_archive("transcript", config)
        found = await self.aget_tuple(config)
        state = self._held(found, channel)
        newest = (await aline_segments(found, archive, super().aget_tuple)).get(channel)
        thread = key_of(config).thread
        pages = atranscript(archive, self.serde, thread, newest, state, page_size=page_size)
        async for message in pages:
            yield message

    def _held(self, found: CheckpointTuple | None, channel: str) -> builtins.list[Any]:
        held = read(found.checkpoint, self._place(channel)) if found else None
        return held if isinstance(held, builtins.list) else []

    def _place(self, channel: str) -> Place:
        if channel not in self._setting.places:
            raise ConfigurationError("channel", channel, f"one of {[*self._setting.places]}")
        return self._setting.places[channel]

    def close(self) -> None:
        """Wait for hooks in the background, and stop them; the saver inside stays open.

        Summaries in the background are given up: what they would replace is still stored. Raises
        `RuntimeError` on an event loop where a hook is in the background: there `await aclose()`.
        """
        if self._ahead is not None:
            self._ahead.close()
        self._delivery.close()
        if self._retention is not None:
            self._retention.close()

    async def aclose(self) -> None:
        """Wait for hooks in the background, and stop them, as `close` does."""
        if self._ahead is not None:
            self._ahead.close()
        await asyncio.to_thread(self._delivery.close)
        if self._retention is not None:
            await asyncio.to_thread(self._retention.close)

    def stats(self) -> Stats:
        """Return what was done since this saver was made, by channel, and by the last put."""
        if self._retention is None:
            return self._counts.read()
        done = self._retention.read()
        return replace(
            self._counts.read(), deleted_checkpoints=done.deleted, retention_failures=done.failures
        )

    def _hold(self, config: RunnableConfig) -> None:
        if self._retention is not None:
            self._retention.hold(key_of(config))

    def _tidy(self, config: RunnableConfig, step: Reduction) -> None:
        """Have old checkpoints deleted in the background."""
        if self._retention is not None and self.enabled and not self.shadow:
            rests = at_rest(step.checkpoint)
            self._retention.after_put(self.inner, key_of(config), rests=rests)

    def new_messages(
        self, config: RunnableConfig, messages: Sequence[Any], *, channel: str = "messages"
    ) -> builtins.list[Any]:
        """Return what is new in a list that a client sends whole on every turn.

        Left out is what the thread holds with the same content or has evicted, by id, and removals
        of what it does not hold. What was evicted is remembered in this process, and across
        processes by the archive. A message without an id is always new.
        """
        check_config(config)
        found = self.get_tuple(config)
        trace = self._trace(found.config) if found else Trace()
        gone: frozenset[str] = frozenset()
        if self._archive is not None and trace.elsewhere:
            thread, newest = key_of(config).thread, trace.segments.get(channel)
            gone = find_archived(self._archive, thread, messages, newest)
        return self._new(messages, channel, found, trace, gone)

    async def anew_messages(
        self, config: RunnableConfig, messages: Sequence[Any], *, channel: str = "messages"
    ) -> builtins.list[Any]:
        """Return what is new in a list that a client sends whole, as `new_messages` does."""
        check_config(config)
        found = await self.aget_tuple(config)
        trace = await self._atrace(found.config) if found else Trace()
        gone: frozenset[str] = frozenset()
        if self._archive is not None and trace.elsewhere:
            thread, newest = key_of(config).thread, trace.segments.get(channel)
            gone = await afind_archived(self._archive, thread, messages, newest)
        return self._new(messages, channel, found, trace, gone)

    def _new(
        self,
        messages: Sequence[Any],
        channel: str,
        found: CheckpointTuple | None,
        trace: Trace,
        gone: frozenset[str],
    ) -> builtins.list[Any]:
        held = read(found.checkpoint, self._place(channel)) if found else None
        messages_held = held if isinstance(held, builtins.list) else []
        line = trace.evicted.get(channel, NOTHING).plus_ids(gone)
        return new_among(messages, messages_held, line)

    def _forget(self, thread: str) -> None:
        self._lineage.forget_thread(thread)
        self._delivery.ledger.forget_thread(thread)
        if self._ahead is not None:
            self._ahead.forget_thread(thread)

    def _trace(self, config: RunnableConfig) -> Trace:
        return find_trace(self._lineage, super().get_tuple, config, self._setting, self._archive)

    async def _atrace(self, config: RunnableConfig) -> Trace:
        return await afind_trace(
            self._lineage, super().aget_tuple, config, self._setting, self._archive
        )

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
        """Return the delta channels that are looked at in this put, opted in.

        That is at rest, and before only a snapshot that the store inside may not take.
        """
        checkpoint = offered.checkpoint
        plain = {n: p.channel for n, p in self._setting.places.items() if p.key is None}
        if self._messages_reducer is None:
            for name, channel in plain.items():
                if is_delta(checkpoint, offered.metadata, channel):
                    self._notices.delta(name)
            return {}
        held = {name: snapshotted(checkpoint, channel) for name, channel in plain.items()}
        if ":" in key_of(config).namespace or not at_rest(checkpoint):
            return {name: plain[name] for name in plain if self._fitter.may_exceed(held[name])}
        return {
            name: channel
            for name, channel in plain.items()
            if needs_folding(checkpoint, channel) or held[name] is not None
        }

    def _reduces(self, config: RunnableConfig) -> bool:
        if not self.enabled or self._namespaces is None:
            return self.enabled
        parts = key_of(config).namespace.split("|")
        return "|".join(part.partition(":")[0] for part in parts) in self._namespaces

    def _reduced(self, config: RunnableConfig, offered: Reduction) -> Reduction:
        offer = self._offer(config, offered)
        proposal = self._fitter.excerpted(config, propose(offer, self._setting))
        if self.shadow:
            untouched = carried(offered, offer.parent, self._setting)
            return settle(proposal, self._setting).as_shadow(untouched, self._setting)
        if self._roll is not None:
            proposal = summarise(proposal, self._roll)
        proposal, reduction = self._fitter.fitted(config, proposal)
        try:
            return self._keeper.archived(reduction)
        except Exception as error:
            self._keeper.failed(config, error)
            held = settle(proposal.held_back(patience(self.window)), self._setting)
            return self._fitter.within(config, held)

    async def _areduced(self, config: RunnableConfig, offered: Reduction) -> Reduction:
        offer = await self._aoffer(config, offered)
        proposal = await self._fitter.aexcerpted(config, propose(offer, self._setting))
        if self.shadow:
            untouched = carried(offered, offer.parent, self._setting)
            return settle(proposal, self._setting).as_shadow(untouched, self._setting)
        if self._roll is not None:
            proposal = await asummarise(proposal, self._roll)
        proposal, reduction = await self._fitter.afitted(config, proposal)
        try:
            return await self._keeper.aarchived(reduction)
        except Exception as error:
            self._keeper.failed(config, error)
            held = settle(proposal.held_back(patience(self.window)), self._setting)
            return self._fitter.within(config, held)

    def _short_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        if not self._fitter.looks_at_writes or self.shadow or not self._reduces(config):
            return writes
        try:
            return self._fitter.shorter_writes(config, writes)
        except Exception as error:
            self._report_failure(config, error)
            return writes

    async def _ashort_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        if not self._fitter.looks_at_writes or self.shadow or not self._reduces(config):
            return writes
        try:
            return await self._fitter.ashorter_writes(config, writes)
        except Exception as error:
            self._report_failure(config, error)
            return writes

    def _offer(self, config: RunnableConfig, offered: Reduction) -> Offer:
        key, setting = key_of(config), self._setting
        parent = alike(self._lineage, key, offered, self._trace(config), setting)
        folded = self._folded(config, offered)
        archived = {
            name: find_archived(self._archive, key.thread, messages, newest)
            for name, messages, newest in resent(offered, parent, setting)
            if self._archive is not None
        }
        load = super().get_tuple
        owed, later = owed_by(key, offered, parent, setting)
        before = stored_before([load(at(config, one)) for one in owed], setting)
        after = stored_before([load(at(config, one)) for one in later[:1]], setting)
        offer = self._offered(config, offered, parent, folded, archived)
        return replace(offer, stored_before=before, owed=later, owed_next=after)

    async def _aoffer(self, config: RunnableConfig, offered: Reduction) -> Offer:
        key, setting = key_of(config), self._setting
        parent = alike(self._lineage, key, offered, await self._atrace(config), setting)
        folded = await self._afolded(config, offered)
        archived = {
            name: await afind_archived(self._archive, key.thread, messages, newest)
            for name, messages, newest in resent(offered, parent, setting)
            if self._archive is not None
        }
        load = super().aget_tuple
        owed, later = owed_by(key, offered, parent, setting)
        before = stored_before([await load(at(config, one)) for one in owed], setting)
        after = stored_before([await load(at(config, one)) for one in later[:1]], setting)
        offer = self._offered(config, offered, parent, folded, archived)
        return replace(offer, stored_before=before, owed=later, owed_next=after)

    def _offered(
        self,
        config: RunnableConfig,
        offered: Reduction,
        parent: Trace,
        folded: Folded,
        archived: Mapping[str, frozenset[str]],
    ) -> Offer:
        key = key_of(config)
        return Offer(
            offered.checkpoint,
            offered.metadata,
            offered.new_versions,
            namespace=key.namespace,
            parent=parent,
            next_version=self.inner.get_next_version,
            folded=folded,
            readmitted=self._lineage.readmitted(key),
            archived=archived,
            thread=key.thread,
            memory_namespace=self._memory_namespace(config),
            known=self._contents.known if self._contents else None,
        )

    def _memory_namespace(self, config: RunnableConfig) -> tuple[str, ...]:
        given = config["configurable"].get(self._namespace_key)
        if isinstance(given, str):
            return (given,)
        if isinstance(given, builtins.list | tuple) and given:
            return tuple(map(str, given))
        return ("memories", key_of(config).thread)

    def _prepared(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Note what writes keep on purpose, and bound what only repeats a list."""
        key, setting = key_of(config), self._setting
        for name, place in setting.places.items():
            if place.key is None and (kept := readmitted(writes, place.channel)):
                self._lineage.readmit(key, name, kept)
        if not repeats(writes, setting.copies) or not self._reduces(config) or self.shadow:
            return writes
        try:
            trace = self._lineage.find(key) or Trace()
            known = self._contents.known if self._contents else None
            bound = setting.bound(trace.evicted.values(), known)
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
        # The whole list is stored, so of this checkpoint nothing is evicted. What the graph has
        # removed from it is looked for at the next put.
        key = key_of(config)
        parent = self._lineage.find(key) or Trace()
        if self._may_owe(config, offered) and key.checkpoint not in parent.owed:
            parent = replace(parent, owed=(*parent.owed, key.checkpoint))
        return replace(carried(offered, parent, self._setting), done=failed)

    def _may_owe(self, config: RunnableConfig, offered: Reduction) -> bool:
        """Tell whether the parent may hold what the graph has removed from a list."""
        key = key_of(config)
        if not (self._setting.archives_removed and key.checkpoint):
            return False
        known = self._lineage.find(key)
        try:
            return known is None or misses(offered, known, self._setting)
        except Exception:  # the list may be what reducing has just failed on
            return True

    def _report_failure(self, config: RunnableConfig, error: Exception) -> None:
        if self.strict:
            raise ReductionError(f"could not reduce a checkpoint of {where(config)}") from error
        self._notices.failed(config, error)

    def _remember(self, config: RunnableConfig, step: Reduction) -> None:
        if step.trace is not None:
            stored = key_of(config)._replace(checkpoint=step.checkpoint["id"])
            self._lineage.remember(stored, step.trace)
        if self._ahead is not None and step.used:
            self._ahead.drop(step.used)
        self._counts.add(step.done)
        self._notices.reduced(config, step, shadow=self.shadow)
        if step.trace is not None and not step.done and not self._counts.read().channels:
            self._notices.elsewhere(config, step.checkpoint, self._setting.places)

    def _learn(self, found: CheckpointTuple) -> bool:
        """Remember a checkpoint that was loaded; tell whether its pending writes need cleaning."""
        key, said = key_of(found.config), traced(found, self._setting)
        known = self._lineage.find(key)
        if known is not None and said.segments and said.segments != known.segments:
            # A job has reduced the stored checkpoint meanwhile: its line goes on from there.
            self._lineage.remember(key, replace(said, evicted=known.evicted))
        self._lineage.learn(key, said)
        for name, place in self._setting.places.items():
            kept = readmitted([w[1:] for w in found.pending_writes or ()], place.channel)
            if kept and place.key is None:
                self._lineage.readmit(key_of(found.config), name, kept)
        return concerns(found, self._setting.places)
