"""Count what was really done. Numbers and names only, never the content of a message."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import NamedTuple


class ChannelStats(NamedTuple):
    """Hold what was done to one channel, by one put or in total.

    - `puts`: checkpoints that carried messages in this channel.
    - `reductions`: puts in which a window let something leave.
    - `evicted`: messages that left; `would_evict`: the same with `shadow=True`, where all stay
      (messages without ids are new ones in each run, so they are counted again).
    - `removed`: messages that the graph itself removed and the archive took.
    - `repeated`: messages offered again that had left before.
    - `offered`, `stored`: messages in the lists that were given and stored.
    - `stuck`: puts in which the current turn or pins alone were larger than a mark.
    - `unmoved`: puts at rest that could not be reduced, since the saver counts no version on.
    - `failures`: puts in which reducing failed, and the list was stored as it was.
    - `excerpted`: contents that became excerpts, each counted once in a run, and the tokens that
      this saves in a list: `tokens_saved`; `would_excerpt` and `would_save` with `shadow=True`.
    """

    puts: int = 0
    reductions: int = 0
    evicted: int = 0
    would_evict: int = 0
    removed: int = 0
    repeated: int = 0
    offered: int = 0
    stored: int = 0
    stuck: int = 0
    unmoved: int = 0
    failures: int = 0
    excerpted: int = 0
    would_excerpt: int = 0
    tokens_saved: int = 0
    would_save: int = 0

    def plus(self, other: ChannelStats) -> ChannelStats:
        """Return the sum of both."""
        return ChannelStats(*map(add, self, other))


@dataclass(frozen=True, slots=True)
class Stats:
    """Hold totals by channel, what the last put did, and how segments were delivered to hooks.

    `selector_failures`: contents that stay whole because nothing was selected, by reason.
    """

    channels: Mapping[str, ChannelStats] = field(default_factory=dict)
    last_put: Mapping[str, ChannelStats] = field(default_factory=dict)
    delivered: int = 0
    delivery_failures: int = 0
    archive_failures: int = 0
    summaries: int = 0
    summary_calls: int = 0
    summary_failures: int = 0
    summary_seconds: float = 0.0
    selector_failures: Mapping[str, int] = field(default_factory=dict)

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
            self._stats = replace(self._stats, channels=channels, last_put=put)

    def add_delivery(self, *, failed: bool) -> None:
        """Add a segment that the hooks have taken, or that one of them failed on."""
        with self._lock:
            s = self._stats
            self._stats = (
                replace(s, delivery_failures=s.delivery_failures + 1)
                if failed
                else replace(s, delivered=s.delivered + 1)
            )

    def add_summary(self, seconds: float, calls: int | None) -> None:
        """Add a summary that was made in so many calls, or that failed where calls is None."""
        with self._lock:
            s = self._stats
            self._stats = replace(
                s,
                summaries=s.summaries + (calls is not None),
                summary_calls=s.summary_calls + (calls or 0),
                summary_failures=s.summary_failures + (calls is None),
                summary_seconds=s.summary_seconds + seconds,
            )

    def add_selector_failure(self, reason: str) -> None:
        """Add a content that stays whole because nothing was selected."""
        with self._lock:
            known = self._stats.selector_failures
            failures = {**known, reason: known.get(reason, 0) + 1}
            self._stats = replace(self._stats, selector_failures=failures)

    def add_archive_failure(self) -> None:
        """Add a put that evicted nothing because the archive failed."""
        with self._lock:
            failures = self._stats.archive_failures + 1
            self._stats = replace(self._stats, archive_failures=failures)

    def read(self) -> Stats:
        """Return the totals so far."""
        return self._stats
