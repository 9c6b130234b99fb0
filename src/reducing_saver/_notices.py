"""Say in the log what a saver did and could not do. Names and counts only, never a content."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Hashable, Iterable

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from ._channel import at_rest
from ._origin import origin_of
from ._reduction import Reduction
from ._select import SelectorError
from .engine import Plan, When
from .engine.messages import holds_messages

logger = logging.getLogger("reducing_saver")

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
_LARGE_WRITE = (
    "a pending write of %s to channel %s has %s bytes where max_bytes=%s and cannot be cut; the "
    "store may refuse it (said once)"
)
_ARCHIVE = (
    "the archive failed, so nothing is evicted from %s: %s%s (said once of it; "
    "stats().archive_failures counts the others)"
)
_WHOLE = "a selector failed, so a content stays whole: %s (said once; stats() counts the others)"
_MOST_SAID = 10_000
"""How much is remembered as said; beyond that all of it may be said again."""

_REMEDIES = {
    "NotImplementedError": "the store has no such method: an async graph needs an async store, "
    "as AsyncSqliteStore",
    "InvalidStateError": "a sync call on the loop of an async store: call the graph's async "
    "methods",
    "UndefinedTable": "the store has no tables yet: call store.setup() once",
    "PoolTimeout": "the pool of the store gave no connection: is it open and large enough, and its "
    "database there?",
    "sqlite3.OperationalError": "the file is locked, full or not writable, or its connection has "
    "no isolation_level=None",
    "sqlite3.ProgrammingError": "the connection of the store is closed, or of another thread: open "
    "it with check_same_thread=False",
    "OperationalError": "is the database of the store there?",
}
"""What may help against a cause, by its name or that of what it derives from, nearest first."""

_FILLING = "checkpoints have reached %d %% of max_bytes: that of %s has %s bytes of %s (said once)"


class Notices:
    """Log what happens; what may happen at every put is said once. Safe to use from threads."""

    def __init__(self) -> None:
        self._said: set[tuple[str, Hashable]] = set()

    def archive_failed(self, config: RunnableConfig, error: Exception) -> None:
        """Say that nothing is evicted because the archive failed, once a cause and thread."""
        cause = _called(type(error))
        of = cause, str(config["configurable"]["thread_id"])
        self._once(_ARCHIVE, where(config), cause, _remedy(error), of=of)

    def selector_failed(self, error: Exception) -> None:
        """Say that a content stays whole because its selector failed, once a cause."""
        cause = origin_of(error)
        if isinstance(error, SelectorError):
            cause = f"{error.reason}: {error.origin}" if error.origin else error.reason
        self._once(_WHOLE, cause, of=cause)

    def failed(self, config: RunnableConfig, error: Exception) -> None:
        """Say that a checkpoint is stored as it is."""
        # The text of the error may quote a message, so only its type and place are logged.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self._once(_FAILED, type(error).__name__, frame.filename, frame.lineno, where(config))

    def filling(self, config: RunnableConfig, percent: int, size: int, limit: int) -> None:
        """Say that a checkpoint comes near to what its store takes."""
        text = _FILLING.replace("%d", str(percent))
        self._once(text, where(config), f"{size:,}", f"{limit:,}")

    def large_write(self, config: RunnableConfig, channel: str, size: int, limit: int) -> None:
        """Say that a pending write is larger than what its store takes."""
        self._once(_LARGE_WRITE, where(config), channel, f"{size:,}", f"{limit:,}")

    def delta(self, name: str) -> None:
        """Say that a delta channel is not reduced."""
        self._once(_DELTA, name)

    def reduced(self, config: RunnableConfig, step: Reduction, *, shadow: bool) -> None:
        """Say what a put has evicted, and which marks it met."""
        place = where(config)
        done = "would evict" if shadow else "evicted"
        for name, plan in step.plans.items():
            count = len(plan.leaving)
            logger.info(
                "%s %d messages from channel %r of %s (%s)", done, count, name, place, plan.when
            )
            self._marks(step, name, plan, place)

    def elsewhere(
        self, config: RunnableConfig, checkpoint: Checkpoint, channels: Iterable[str]
    ) -> None:
        """Say that no channel of this saver is there while others hold messages."""
        if not at_rest(checkpoint):
            return
        others = [name for name, value in checkpoint["channel_values"].items() if _holds(value)]
        if others:
            self._once(_ELSEWHERE, [*channels], where(config), others)

    def _marks(self, step: Reduction, name: str, plan: Plan, place: str) -> None:
        if plan.when is When.RUN and plan.passed:
            arrived = step.metadata.get("source") == "input"
            text = _ALREADY_ABOVE if arrived else _ABOVE_CAP
            self._once(text, name, place, tuple(plan.window.cap))
        if plan.stuck:
            self._once(_STUCK, name, place, [tuple(mark) for mark in plan.passed])

    def _once(self, text: str, *values: object, of: Hashable = None) -> None:
        """Log a text the first time, or the first time of something."""
        if (text, of) in self._said:
            return
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        self._said.add((text, of))
        logger.warning(text, *values)


def where(config: RunnableConfig) -> str:
    """Name the thread and namespace of a config."""
    configurable = config["configurable"]
    namespace = configurable.get("checkpoint_ns", "")
    return f"thread {configurable['thread_id']!r}, namespace {namespace!r}"


def _remedy(error: Exception) -> str:
    """Return what may help, told by the class alone: the text of an error may quote a message."""
    for kind in type(error).__mro__:
        for name in (_called(kind), kind.__name__):
            if name in _REMEDIES:
                return f"; {_REMEDIES[name]}"
    return ""


def _called(kind: type[BaseException]) -> str:
    """Return the name of a class with its package, where it is not Python's own."""
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def _holds(value: object) -> bool:
    """Tell whether a channel holds messages, itself or under a key."""
    if isinstance(value, dict):
        return any(isinstance(v, list) and holds_messages(v) for v in value.values())
    return isinstance(value, list) and holds_messages(value)
