"""Remember what each stored checkpoint had already evicted, for the run that goes on from it.

LangGraph's loop keeps its own, full list and offers it again at every super-step. What a line of
checkpoints has evicted is looked up under the parent of the next one, so forks never see each
other's state. Losing an entry costs a second look at the window, never a wrong list.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from ._record import Record, digest, names
from .engine.messages import Message, identifier

MOST_THREADS = 1_024
MOST_CHECKPOINTS = 16
MOST_NAMES = 200_000

_growing = threading.Lock()


class CheckpointKey(NamedTuple):
    """Name a checkpoint."""

    thread: str
    namespace: str
    checkpoint: str


class Evicted:
    """Hold which messages a line of checkpoints has evicted; immutable and cheap to extend.

    A message is known by its id; without one, by the object itself, which is then held. Never by
    position or content: graphs rebuild lists, and people say "ok" twice. What another process
    evicted is known by digests of ids. A line that goes on shares one log with its ancestors, a
    fork copies it. Of a line that has evicted more than 200,000 messages the newer half is kept.
    """

    __slots__ = ("_count", "_holds_objects", "_log", "digests")

    def __init__(
        self,
        held: Mapping[str | int, Message | None] = MappingProxyType({}),
        digests: frozenset[str] = frozenset(),
    ) -> None:
        self._log = {name: (i, message) for i, (name, message) in enumerate(held.items())}
        self._count = len(self._log)
        self._holds_objects = any(message is not None for message in held.values())
        self.digests = digests

    def __len__(self) -> int:
        return self._count + len(self.digests)

    def __contains__(self, message: Message) -> bool:
        own = identifier(message)
        return self.has(own) if own else self._holds(id(message))

    def has(self, name: str | int) -> bool:
        """Tell whether a message with this name was evicted, or a call named as `_record` does."""
        if self._holds(name):
            return True
        return bool(self.digests) and isinstance(name, str) and digest(name) in self.digests

    def _holds(self, name: str | int) -> bool:
        entry = self._log.get(name)
        return entry is not None and entry[0] < self._count

    def without(self, messages: list[Message]) -> list[Message]:
        """Return a list less what was evicted; the same object where nothing was."""
        if not len(self):
            return messages
        left = self._without_ids(messages)
        return messages if len(left) == len(messages) else left

    def _without_ids(self, messages: list[Message]) -> list[Message]:
        """Look at nothing but ids where that is enough: this runs over the whole list of a run."""
        log = self._log
        if not self._holds_objects and not self.digests:
            with contextlib.suppress(AttributeError, TypeError):  # dicts, or ids of another kind
                left = [message for message in messages if message.id not in log]  # type: ignore[attr-defined]
                if self._count == len(log):  # or another line has written to it meanwhile
                    return left
        return [message for message in messages if message not in self]

    def plus(self, messages: Iterable[Message], *, with_calls: bool = False) -> Evicted:
        """Return these and more; also the calls they make, for pending writes that answer them."""
        added: dict[str | int, Message | None] = {}
        for message in messages:
            own = identifier(message)
            added[own or id(message)] = None if own else message
            if with_calls:
                added.update(dict.fromkeys(names(message)))
        with _growing:
            if len(self._log) != self._count or self._count > MOST_NAMES:
                return Evicted(self._held(newest=MOST_NAMES // 2) | added, self.digests)
            grown = Evicted(digests=self.digests)
            grown._log = self._log
            grown._holds_objects = self._holds_objects or any(
                held is not None for held in added.values()
            )
            for name, held in added.items():
                grown._log.setdefault(name, (len(grown._log), held))
            grown._count = len(grown._log)
            return grown

    def plus_ids(self, known: Iterable[str]) -> Evicted:
        """Return these and messages of which only the ids are known."""
        return Evicted(self._held() | dict.fromkeys(known), self.digests)

    def minus(self, gone: Collection[str | int]) -> Evicted:
        """Return these without some names."""
        held = {name: message for name, message in self._held().items() if name not in gone}
        return Evicted(held, self.digests.difference(digest(n) for n in gone if isinstance(n, str)))

    def known_by(self, digests: frozenset[str]) -> Evicted:
        """Return these and what has one of these digests."""
        return Evicted(self._held(), self.digests | digests)

    def _held(self, newest: int = MOST_NAMES) -> dict[str | int, Message | None]:
        least = self._count - newest
        own = list(self._log.items())[: self._count]
        return {name: held for name, (i, held) in own if i >= least}


NOTHING = Evicted()


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold what has to be known of a checkpoint to store the next one after it.

    - `evicted` by channel.
    - `recorded`: the id of the run's newest checkpoint that carries a record of evictions.
    - `unread`: the id of such a checkpoint that another process stored and nobody has read yet.
    - `back`: digests of what a loaded checkpoint holds, whatever such a record says of it.
    - `segments`: the ids of the newest archived segments of the line, by channel. `above`: the id
      of the checkpoint before, where this one names none and nobody has looked further.
    - `versions`: of the channels that hold lists; `state`: a digest of all versions, and of what
      was seen before an interrupt. A copy of the checkpoint has the same.
    - `elsewhere`: another process may have evicted messages that only the archive knows.
    - `held`: the ids of the messages stored in it, by channel, to see what a graph removes.
    - `summaries`: the messages of the line's summary, by channel, which the run that made it does
      not have in its list.
    - `told`: the messages of the summary that hooks were told last, by channel, where this process
      knows it.
    - `owed`: the ids of checkpoints that hold what the graph removed and no archive has taken yet.
    - `waits`: by channel, how long a list has to be before a failed eviction is tried again.
    - `interrupts_seen` tells a resumed run from one that goes on (None: there is no checkpoint);
      `resumed` means that the run was resumed and no list has been stored since.
    """

    evicted: Mapping[str, Evicted] = field(default_factory=dict)
    recorded: str | None = None
    unread: str | None = None
    back: Mapping[str, frozenset[str]] = field(default_factory=dict)
    segments: Mapping[str, str] = field(default_factory=dict)
    above: str | None = None
    versions: Mapping[str, object] = field(default_factory=dict)
    state: int = 0
    elsewhere: bool = False
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)
    summaries: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    told: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    owed: tuple[str, ...] = ()
    waits: Mapping[str, int] = field(default_factory=dict)
    interrupts_seen: int | None = None
    resumed: bool = False

    def weight(self) -> int:
        """Count the names held."""
        evicted = sum(map(len, self.evicted.values()))
        return evicted + sum(map(len, self.held.values()))

    def reading(self, record: Record) -> Trace:
        """Return this trace with what a record says, and what is to be read next."""
        evicted = dict(self.evicted)
        for name, digests in record.evicted.items():
            gone = digests.difference(self.back.get(name, ()))
            evicted[name] = evicted.get(name, NOTHING).known_by(gone)
        return replace(self, evicted=evicted, unread=record.before)


class Lineage:
    """Keep the traces of the newest checkpoints of the threads used last. Safe to use from threads.

    At most 1,024 threads and namespaces with 16 checkpoints each, and 200,000 evicted messages.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: OrderedDict[tuple[str, str], OrderedDict[str, Trace]] = OrderedDict()
        self._readmitted: OrderedDict[CheckpointKey, dict[str, frozenset[str | int]]] = (
            OrderedDict()
        )
        self._weights: dict[tuple[str, str], int] = {}
        self._weight = 0

    def find(self, key: CheckpointKey) -> Trace | None:
        """Return the trace of a checkpoint, or None where it is not remembered."""
        with self._lock:
            traces = self._threads.get(key[:2])
            if traces is None:
                return None
            self._threads.move_to_end(key[:2])
            return traces.get(key.checkpoint)

    def find_alike(self, key: CheckpointKey, state: int) -> list[Trace]:
        """Return the traces of the same thread and namespace in this state, newest first."""
        with self._lock:
            traces = self._threads.get(key[:2], OrderedDict[str, Trace]())
            return [trace for trace in reversed(traces.values()) if trace.state == state]

    def remember(self, key: CheckpointKey, trace: Trace) -> None:
        """Keep the trace of a checkpoint that was stored."""
        thread = key[:2]
        with self._lock:
            traces = self._threads.setdefault(thread, OrderedDict())
            traces[key.checkpoint] = trace
            if len(traces) > MOST_CHECKPOINTS:
                traces.popitem(last=False)
            # A line only grows, and shares what it holds: its newest trace is its weight.
            weight = trace.weight()
            self._weight += weight - self._weights.get(thread, 0)
            self._weights[thread] = weight
            self._threads.move_to_end(thread)
            self._shrink()

    def learn(self, key: CheckpointKey, trace: Trace) -> None:
        """Keep the trace of a checkpoint that was loaded, unless it is known already."""
        if self.find(key) is None:
            self.remember(key, trace)

    def readmit(self, key: CheckpointKey, channel: str, kept: frozenset[str | int]) -> None:
        """Note what pending writes of a checkpoint keep on purpose, evicted or not."""
        with self._lock:
            noted = self._readmitted.setdefault(key, {})
            noted[channel] = noted.get(channel, frozenset()) | kept
            if len(self._readmitted) > MOST_THREADS:
                self._readmitted.popitem(last=False)

    def readmitted(self, key: CheckpointKey) -> Mapping[str, frozenset[str | int]]:
        """Return the names that were noted for a checkpoint, by channel."""
        with self._lock:
            return self._readmitted.get(key, {})

    def forget_thread(self, thread: str) -> None:
        """Forget a thread that was deleted."""
        with self._lock:
            for key in [key for key in self._threads if key[0] == thread]:
                self._drop(key)
            for noted in [key for key in self._readmitted if key.thread == thread]:
                del self._readmitted[noted]

    def _shrink(self) -> None:
        while len(self._threads) > 1 and (
            len(self._threads) > MOST_THREADS or self._weight > MOST_NAMES
        ):
            self._drop(next(iter(self._threads)))

    def _drop(self, thread: tuple[str, str]) -> None:
        del self._threads[thread]
        self._weight -= self._weights.pop(thread, 0)
