"""Record in OpenTelemetry what was done, where `opentelemetry-api` is installed (extra `otel`).

Attributes are names of channels, hooks and outcomes: never a thread, never a content.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from ._stats import ChannelStats
from ._version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Meter

CHANNEL = "reducing_saver.channel"
HOOK = "reducing_saver.hook"
LIST = "reducing_saver.list"
OUTCOME = "reducing_saver.outcome"


@cache
def find_metrics() -> Metrics | None:
    """Return what records with the program's own meter provider; None without the package."""
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return None
    return Metrics(get_meter("reducing_saver", __version__))


class Metrics:
    """Record counts and durations with a meter. As safe to use from threads as the meter."""

    def __init__(self, meter: Meter) -> None:
        def counter(name: str, unit: str, description: str) -> Counter:
            return meter.create_counter(f"reducing_saver.{name}", unit, description)

        self._evicted = counter("messages.evicted", "{message}", "Messages that left the window")
        self._removed = counter(
            "messages.removed", "{message}", "Messages that the graph removed and the archive took"
        )
        self._excerpted = counter(
            "contents.excerpted", "{content}", "Contents that became excerpts"
        )
        self._reductions = counter("reductions", "{put}", "Puts in which something left")
        self._failures = counter("failures", "{put}", "Puts in which reducing failed")
        self._tokens = counter("tokens", "{token}", "Lists before and after something left them")
        self._bytes = counter("bytes", "By", "Lists before and after something left them")
        self._summaries = counter("summaries", "{summary}", "Summaries, made and failed")
        self._calls = counter("summary.calls", "{call}", "Model calls of summaries that were made")
        self._duration = meter.create_histogram(
            "reducing_saver.summary.duration", "s", "Time that a summary took, made or failed"
        )
        self._archive = counter("archive.failures", "{put}", "Puts that the archive held back")
        self._deliveries = counter("hook.deliveries", "{segment}", "Segments handed to all hooks")
        self._retries = counter("hook.retries", "{segment}", "Segments handed over again")
        self._hooks = counter("hook.failures", "{call}", "Calls of a hook that failed")

    def add(self, put: Mapping[str, ChannelStats]) -> None:
        """Record what one put did; most do nothing."""
        for name, stats in put.items():
            if stats.evicted:
                self._add_reduction(stats, {CHANNEL: name})
            if stats.removed:
                self._removed.add(stats.removed, {CHANNEL: name})
            if stats.excerpted:
                self._excerpted.add(stats.excerpted, {CHANNEL: name})
            if stats.failures:
                self._failures.add(stats.failures, {CHANNEL: name})

    def _add_reduction(self, stats: ChannelStats, where: dict[str, str]) -> None:
        before, after = {**where, LIST: "before"}, {**where, LIST: "after"}
        self._evicted.add(stats.evicted, where)
        self._reductions.add(stats.reductions, where)
        self._tokens.add(stats.tokens_before, before)
        self._tokens.add(stats.tokens_after, after)
        self._bytes.add(stats.bytes_before, before)
        self._bytes.add(stats.bytes_after, after)

    def add_summary(self, channel: str, seconds: float, calls: int | None) -> None:
        """Record a summary; it failed where calls is None."""
        outcome = {CHANNEL: channel, OUTCOME: "failed" if calls is None else "made"}
        self._summaries.add(1, outcome)
        self._duration.record(seconds, outcome)
        if calls:
            self._calls.add(calls, {CHANNEL: channel})

    def add_archive_failure(self) -> None:
        """Record a put that evicted nothing because the archive failed."""
        self._archive.add(1)

    def add_delivery(self, *, failed: bool) -> None:
        """Record a segment that all hooks have taken, or that one of them failed on."""
        self._deliveries.add(1, {OUTCOME: "failed" if failed else "delivered"})

    def add_retries(self, count: int) -> None:
        """Record segments that are handed over again."""
        self._retries.add(count)

    def add_hook_failure(self, hook: str) -> None:
        """Record a call of a hook that failed."""
        self._hooks.add(1, {HOOK: hook})
