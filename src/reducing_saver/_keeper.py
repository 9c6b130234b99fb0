"""Archive what a put lets go, before it is stored without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive
from ._contents import keys_of_wholes, with_wholes
from ._counts import Counts
from ._delivery import pack
from ._entry import Entry
from ._lookup import key_of
from ._notices import Notices
from ._reduction import Reduction
from ._segment import Leave
from .engine.counters import plain_text


@dataclass(frozen=True, slots=True)
class Keeper:
    """Hold where what leaves is kept, for both doors; `archive` is None where nothing is.

    `tells` says that hooks wait for what is archived.
    """

    archive: Archive | None
    serde: SerializerProtocol
    tells: bool
    counts: Counts
    notices: Notices

    def archived(self, reduction: Reduction) -> Reduction:
        """Archive what leaves, and return it whole where it stood as excerpts."""
        if self.archive is None:
            return reduction
        leaves: list[Leave] = []
        for leave in reduction.leaves:
            tell, cut = self.tells and not leave.segment.silent, keys_of_wholes(leave)
            wholes = self.archive.read(leave.segment.thread, cut) if cut else []
            self.archive.write(leave.segment, self._packed(leave, wholes), tell=tell)
            leaves.append(with_wholes(leave, wholes, self.serde))
        return replace(reduction, leaves=tuple(leaves))

    async def aarchived(self, reduction: Reduction) -> Reduction:
        """Archive what leaves, and return it whole where it stood as excerpts."""
        if self.archive is None:
            return reduction
        leaves: list[Leave] = []
        for leave in reduction.leaves:
            tell, cut = self.tells and not leave.segment.silent, keys_of_wholes(leave)
            wholes = await self.archive.aread(leave.segment.thread, cut) if cut else []
            await self.archive.awrite(leave.segment, self._packed(leave, wholes), tell=tell)
            leaves.append(with_wholes(leave, wholes, self.serde))
        return replace(reduction, leaves=tuple(leaves))

    def keep(self, config: RunnableConfig, wholes: Sequence[Entry]) -> bool:
        """Archive the wholes of excerpts; return False where the archive failed."""
        if self.archive is None or not wholes:
            return True
        try:
            self.archive.keep(key_of(config).thread, wholes)
        except Exception as error:
            self.failed(config, error)
            return False
        return True

    async def akeep(self, config: RunnableConfig, wholes: Sequence[Entry]) -> bool:
        """Archive the wholes of excerpts; return False where the archive failed."""
        if self.archive is None or not wholes:
            return True
        try:
            await self.archive.akeep(key_of(config).thread, wholes)
        except Exception as error:
            self.failed(config, error)
            return False
        return True

    def failed(self, config: RunnableConfig, error: Exception) -> None:
        """Count and report that the archive failed."""
        self.counts.add_archive_failure()
        self.notices.archive_failed(config, error)

    def _packed(self, leave: Leave, wholes: Sequence[Entry]) -> list[Entry]:
        indexed = self.archive is not None and self.archive.index_text
        lost = {*keys_of_wholes(leave)} - {entry.key for entry in wholes}
        return pack(leave, self.serde.dumps_typed, plain_text if indexed else None, lost=lost)
