"""Count what was really done. Numbers and names only, never the content of a message."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import NamedTuple


class ChannelStats(NamedTuple):
    """Hold what was done to one channel, by one put or in total.

    - `puts`: checkpoints that carried messages in this channel.
    - `reductions`: puts in which a window let something leave.
    - `evicted`: messages that left; `would_evict`: the same with `shadow=True`, where all stay
      (messages without ids are new ones in each run, so they are counted again).
    - `repeated`: messages offered again that had left before.
    - `offered`, `stored`: messages in the lists that were given and stored.
    - `stuck`: puts in which the current turn or pins alone were larger than a mark.
    - `unmoved`: puts at rest that could not be reduced, since the saver counts no version on.
    - `failures`: puts in which reducing failed, and the list was stored as it was.
    """

    puts: int = 0
    reductions: int = 0
    evicted: int = 0
    would_evict: int = 0
    repeated: int = 0
    offered: int = 0
    stored: int = 0
    stuck: int = 0
    unmoved: int = 0
    failures: int = 0

    def plus(self, other: ChannelStats) -> ChannelStats:
        """Return the sum of both."""
        return ChannelStats(*map(add, self, other))


@dataclass(frozen=True, slots=True)
class Stats:
    """Hold totals by channel, and what the last put did."""

    channels: Mapping[str, ChannelStats] = field(default_factory=dict)
    last_put: Mapping[str, ChannelStats] = field(default_factory=dict)

    @property
    def total(self) -> ChannelStats:
        """Return the sum over all channels."""
        return reduce(ChannelStats.plus, self.channels.values(), ChannelStats())


class Counts:
    """Add up what each put did. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = Stats()

    def add(self, put: Mapping[str, ChannelStats]) -> None:
        """Add what one put did."""
        if not put:
            return
        with self._lock:
            channels = dict(self._stats.channels)
            for name, stats in put.items():
                channels[name] = channels.get(name, ChannelStats()).plus(stats)
            self._stats = Stats(channels, put)

    def read(self) -> Stats:
        """Return the totals so far."""
        return self._stats
