"""Let what owns threads begin anew in a forked process, where none of its threads is alive.

What waited is the parent's to do; and a lock that one of its threads held would never be free.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Hold what belongs to the threads of one process."""

    def renew(self) -> None:
        """Begin anew, as if just made."""


def renew_in_forks(owner: Renewable) -> None:
    """Have an owner renewed in every process that is forked from here, as long as it is held."""
    _owners.add(owner)


_owners: weakref.WeakSet[Renewable] = weakref.WeakSet()


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_renew_all)
