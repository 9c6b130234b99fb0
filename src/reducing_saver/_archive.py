"""Say where evicted messages go."""

from __future__ import annotations


class Discard:
    """Say that what leaves may be gone: `ReducingSaver(..., archive=Discard())` does not warn."""

    def __repr__(self) -> str:
        return "Discard()"
