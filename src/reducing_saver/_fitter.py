"""Make what a put stores small enough: contents to excerpts, a checkpoint to its store's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from ._budget import LEVELS, Budget, CheckpointTooLargeError
from ._contents import Contents
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
        return self._cut(config, proposal, self.contents)

    async def aexcerpted(self, config: RunnableConfig, proposal: Proposal) -> Proposal:
        """Return the proposal with its excerpts, where there are to be any."""
        if self.contents is None:
            return proposal
        return await self._acut(config, proposal, self.contents)

    def fitted(self, config: RunnableConfig, proposal: Proposal) -> tuple[Proposal, Reduction]:
        """Return what fits into the bytes that the store inside takes, or raise."""
        reduction, budget = settle(proposal, self.setting), self.budget
        if budget is None or (size := self._size(config, reduction, budget)) <= budget.limit:
            return proposal, reduction
        for smaller, contents in budget.rungs(proposal, self.setting, self.ladder, size):
            tried = self._cut(config, smaller, contents)
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
        for smaller, contents in budget.rungs(proposal, self.setting, self.ladder, size):
            tried = await self._acut(config, smaller, contents)
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
        return self.contents is not None and self.contents.looks_at_writes

    def shorter_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Return pending writes with excerpts; as they are where the archive fails."""
        if self.contents is None:
            return writes
        shorter, wholes = self.contents.short_writes(writes, self.setting.places)
        return shorter if self.keeper.keep(config, wholes) else writes

    async def ashorter_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> Sequence[tuple[str, Any]]:
        """Return pending writes with excerpts; as they are where the archive fails."""
        if self.contents is None:
            return writes
        shorter, wholes = self.contents.short_writes(writes, self.setting.places)
        return shorter if await self.keeper.akeep(config, wholes) else writes

    def _cut(self, config: RunnableConfig, proposal: Proposal, contents: Contents) -> Proposal:
        batch = contents.rank_all(proposal)
        archived = not self.keeps or self.keeper.keep(config, batch.entries)
        return contents.settled(proposal, batch, archived=archived)

    async def _acut(
        self, config: RunnableConfig, proposal: Proposal, contents: Contents
    ) -> Proposal:
        batch = await contents.arank_all(proposal)
        archived = not self.keeps or await self.keeper.akeep(config, batch.entries)
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
