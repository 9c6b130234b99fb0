"""Make what a put stores small enough: contents to excerpts, a checkpoint to its store's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from ._budget import LEVELS, Budget, CheckpointTooLargeError
from ._contents import Contents
from ._entry import Entry
from ._keeper import Keeper
from ._lookup import key_of
from ._notices import Notices
from ._reduction import Proposal, Reduction, Setting, settle


@dataclass(frozen=True, slots=True)
class Fitter:
    """Hold what is cut and how far, for both doors; None is no excerpts, and no limit.

    `ladder` are the cuts that are tried, one after the other, where a checkpoint is too large.
    With `keeps=False` no whole is archived, as nothing that is cut is stored.
    """

    setting: Setting
    contents: Contents | None
    budget: Budget | None
    ladder: tuple[Contents, ...]
    keeper: Keeper
    notices: Notices
    keeps: bool

    def excerpted(self, config: RunnableConfig, proposal: Proposal) -> Proposal:
        """Return the proposal with its excerpts, where there are to be any."""
        if self.contents is None:
            return proposal
        return self._cut(config, proposal, self.contents, set())

    async def aexcerpted(self, config: RunnableConfig, proposal: Proposal) -> Proposal:
        """Return the proposal with its excerpts, where there are to be any."""
        if self.contents is None:
            return proposal
        return await self._acut(config, proposal, self.contents, set())

    def fitted(self, config: RunnableConfig, proposal: Proposal) -> tuple[Proposal, Reduction]:
        """Return what fits into the bytes that the store inside takes, or raise."""
        reduction, budget = settle(proposal, self.setting), self.budget
        if budget is None or (size := self._size(config, reduction, budget)) <= budget.limit:
            return proposal, reduction
        kept = set[str]()
        for smaller, contents in budget.rungs(proposal, self.setting, self.ladder, size):
            tried = self._cut(config, smaller, contents, kept)
            reduction = settle(tried, self.setting)
            if budget.size(reduction) <= budget.limit:
                return tried, reduction
        raise _too_large(config, reduction, budget)

    async def afitted(
        self, config: RunnableConfig, proposal: Proposal
    ) -> tuple[Proposal, Reduction]:
        """Return what fits into the bytes that the store inside takes, or raise."""
        reduction, budget = settle(proposal, self.setting), self.budget
        if budget is None or (size := self._size(config, reduction, budget)) <= budget.limit:
            return proposal, reduction
        kept = set[str]()
        for smaller, contents in budget.rungs(proposal, self.setting, self.ladder, size):
            tried = await self._acut(config, smaller, contents, kept)
            reduction = settle(tried, self.setting)
            if budget.size(reduction) <= budget.limit:
                return tried, reduction
        raise _too_large(config, reduction, budget)

    def within(self, config: RunnableConfig, reduction: Reduction) -> Reduction:
        """Return what is stored although the archive failed; raise where it is too large."""
        if self.budget is not None and self.budget.size(reduction) > self.budget.limit:
            raise _too_large(config, reduction, self.budget)
        return reduction

    @property
    def looks_at_writes(self) -> bool:
        """Tell whether pending writes are shortened."""
        cuts = self.contents is not None and self.contents.looks_at_writes
        return cuts or self.budget is not None

    def may_exceed(self, value: object) -> bool:
        """Tell whether a value alone comes near to what the store inside takes."""
        return self.budget is not None and self.budget.may_exceed(value)

    def shorter_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Return pending writes with excerpts; as they are where the archive fails."""
        shorter, wholes = self._short(config, writes)
        return shorter if self.keeper.keep(config, wholes) else writes

    async def ashorter_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Return pending writes with excerpts; as they are where the archive fails."""
        shorter, wholes = self._short(config, writes)
        return shorter if await self.keeper.akeep(config, wholes) else writes

    def _short(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> tuple[Sequence[tuple[str, Any]], list[Entry]]:
        """Return pending writes with excerpts, and what is to be archived before they are used."""
        shorter, wholes = writes, list[Entry]()
        if self.contents is not None and self.contents.looks_at_writes:
            shorter, wholes = self.contents.short_writes(writes, self.setting.places)
        if self.budget is None:
            return shorter, wholes
        fitted = []
        for whole, short in zip(writes, shorter, strict=True):
            one = self.budget.fitted(whole, short, self.setting, self.ladder)
            if one.size > self.budget.limit:
                self.notices.large_write(config, whole[0], one.size, self.budget.limit)
            fitted.append((whole[0], one.value))
            wholes += one.entries
        return fitted, wholes

    def _cut(
        self, config: RunnableConfig, proposal: Proposal, contents: Contents, kept: set[str]
    ) -> Proposal:
        """Return the proposal with its excerpts, whose wholes are archived, if not `kept` yet."""
        batch = contents.rank_all(proposal)
        wholes = [entry for entry in batch.entries if entry.key not in kept]
        archived = not self.keeps or self.keeper.keep(config, wholes)
        kept.update(entry.key for entry in wholes if archived)
        return contents.settled(proposal, batch, archived=archived)

    async def _acut(
        self, config: RunnableConfig, proposal: Proposal, contents: Contents, kept: set[str]
    ) -> Proposal:
        """Return the proposal with its excerpts, whose wholes are archived, if not `kept` yet."""
        batch = await contents.arank_all(proposal)
        wholes = [entry for entry in batch.entries if entry.key not in kept]
        archived = not self.keeps or await self.keeper.akeep(config, wholes)
        kept.update(entry.key for entry in wholes if archived)
        return contents.settled(proposal, batch, archived=archived)

    def _size(self, config: RunnableConfig, reduction: Reduction, budget: Budget) -> int:
        size = budget.size(reduction)
        level = next((level for level in LEVELS if size >= level * budget.limit), None)
        if level is not None:
            self.notices.filling(config, round(level * 100), size, budget.limit)
        return size


def _too_large(
    config: RunnableConfig, reduction: Reduction, budget: Budget
) -> CheckpointTooLargeError:
    key = key_of(config)
    return CheckpointTooLargeError(
        key.thread,
        key.namespace,
        size=budget.size(reduction),
        limit=budget.limit,
        channels=budget.channels(reduction),
    )
