"""Find the database behind a saver or a connection string, with the ledger of jobs in it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from ..rows import source
from .ledger import Ledger


@dataclass(frozen=True, slots=True)
class Source(source.Source):
    """Hold how a database is reached."""

    def ledger(self, rows: Any) -> Ledger:
        """Return the ledger over the connection of rows."""
        return Ledger(rows.connection, postgres=self.backend == "postgres")


def source_of(given: object, *, serde: SerializerProtocol | None = None) -> Source:
    """Return how the database of a saver, or behind a connection string, is reached."""
    found = source.source_of(given, serde=serde)
    return Source(**{one.name: getattr(found, one.name) for one in fields(found)})
