"""Tell which writes may go whose checkpoint is not stored. Pure.

A run stores the writes of its tasks in the background, in no order with its checkpoints, so they
come before the checkpoint that they belong to, or after somebody has deleted it. Only its
checkpoints come one after the other, each when the one before is stored (langgraph 1.2.24,
`PregelLoop.put_writes`, `_checkpointer_put_after_previous`). But runs may share a thread, so that a
newer checkpoint is stored does not tell that an older one is not on its way. What tells is that
somebody knows to have deleted it, or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from .._retain import Key, floor, is_older

PATIENCE = timedelta(hours=1)
"""How long a checkpoint may be on its way while others of its namespace are stored after it."""

LONGEST_PATIENCE = timedelta(hours=24)
"""The same of one that would be the newest, and that a run would go on from; what `gc` waits.

With durability `"exit"` a checkpoint is as old as the last step of its run when it comes.
"""

# Sorts after every id that tells a time.
_AFTER_ALL = "g"

Deleted = Callable[[str], Collection[Key]]
"""Return the checkpoints of a thread that are known to have been deleted within `PATIENCE`."""


class Late(NamedTuple):
    """Hold which writes of no checkpoint may go, and whether others may belong to the next one."""

    swept: tuple[Key, ...] = ()
    unput: bool = False


NONE_LATE = Late()


def sort_out(
    orphans: Collection[Key],
    stored: Iterable[Key],
    *,
    now: datetime,
    deleted: Callable[[], Collection[Key]],
) -> Late:
    """Return what to do with the writes of checkpoints that are not stored.

    `deleted` is asked only where time does not tell.
    """
    if not orphans:
        return NONE_LATE
    newest: dict[str, str] = {}
    for key in stored:
        newest[key.namespace] = max(key.id, newest.get(key.namespace, ""))
    head = max(newest.values(), default="")
    ahead = {key for key in orphans if key.id > newest.get(key.namespace, head)}
    soon, long = floor(now - PATIENCE), floor(now - LONGEST_PATIENCE)
    swept = {key for key in orphans if is_older(key.id, long if key in ahead else soon)}
    if swept != {*orphans}:
        swept |= {*orphans} & {*deleted()}
    return Late(tuple(sorted(swept)), not ahead <= swept)


def remembered(deleted: Iterable[Key], *, now: datetime) -> tuple[Key, ...]:
    """Return those of deleted checkpoints whose writes may still come, before time tells."""
    soon = floor(now - PATIENCE)
    young = [key for key in deleted if key.id >= soon and is_older(key.id, _AFTER_ALL)]
    return tuple(sorted(young))


def nobody_knows(thread: str) -> Collection[Key]:
    """Return nothing: nobody has noted what was deleted."""
    return ()
