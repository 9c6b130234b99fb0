"""Add up what is done, and pass it on to OpenTelemetry where that is installed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from ._metrics import Metrics, find_metrics
from ._stats import ChannelStats, Stats


class Counts:
    """Add up what each put did. Safe to use from threads."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._lock = threading.Lock()
        self._stats = Stats()
        self._channels: dict[str, ChannelStats] = {}
        self._last_put: Mapping[str, ChannelStats] = {}
        self._metrics = metrics or find_metrics()

    def add(self, put: Mapping[str, ChannelStats]) -> None:
        """Add what one put did."""
        if not put:
            return
        with self._lock:
            for name, stats in put.items():
                known = self._channels.get(name)
                self._channels[name] = known.plus(stats) if known else stats
            self._last_put = put
        if self._metrics is not None:
            self._metrics.add(put)

    def add_delivery(self, *, failed: bool) -> None:
        """Add a segment that the hooks have taken, or that one of them failed on."""
        with self._lock:
            s = self._stats
            self._stats = (
                replace(s, delivery_failures=s.delivery_failures + 1)
                if failed
                else replace(s, delivered=s.delivered + 1)
            )
        if self._metrics is not None:
            self._metrics.add_delivery(failed=failed)

    def add_retries(self, count: int) -> None:
        """Add segments that are handed over again."""
        if not count:
            return
        with self._lock:
            retries = self._stats.delivery_retries + count
            self._stats = replace(self._stats, delivery_retries=retries)
        if self._metrics is not None:
            self._metrics.add_retries(count)

    def add_hook_failure(self, hook: str) -> None:
        """Add a call of a hook that failed."""
        with self._lock:
            failures = dict(self._stats.hook_failures)
            failures[hook] = failures.get(hook, 0) + 1
            self._stats = replace(self._stats, hook_failures=failures)
        if self._metrics is not None:
            self._metrics.add_hook_failure(hook)

    def add_summary(self, channel: str, seconds: float, calls: int | None) -> None:
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
        if self._metrics is not None:
            self._metrics.add_summary(channel, seconds, calls)

    def add_selector_failure(self, reason: str) -> None:
        """Add a content that stays whole because nothing was selected."""
        with self._lock:
            failures = dict(self._stats.selector_failures)
            failures[reason] = failures.get(reason, 0) + 1
            self._stats = replace(self._stats, selector_failures=failures)

    def add_archive_failure(self) -> None:
        """Add a put that evicted nothing because the archive failed."""
        with self._lock:
            failures = self._stats.archive_failures + 1
            self._stats = replace(self._stats, archive_failures=failures)
        if self._metrics is not None:
            self._metrics.add_archive_failure()

    def read(self) -> Stats:
        """Return the totals so far."""
        with self._lock:
            return replace(self._stats, channels={**self._channels}, last_put=self._last_put)
