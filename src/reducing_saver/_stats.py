"""Hold what was really done. Numbers and names only, never the content of a message."""

from __future__ import annotations

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
    - `removed`: messages that the graph itself removed and the archive took.
    - `repeated`: messages offered again that had left before.
    - `offered`, `stored`: messages in the lists that were given and stored.
    - `tokens_before`, `tokens_after`, `bytes_before`, `bytes_after`: how large lists were before
      and after something left them. Counted in those puts only, so that the others cost nothing:
      the list less what had left before, and what is stored, with its summary. Tokens are the
      window's, bytes those of the messages' fields; where more than 128 messages leave at once,
      estimated from so many of them. With `shadow=True` as it would be.
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
    tokens_before: int = 0
    tokens_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
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
    """Hold totals by channel, what the last put did, and what became of what left.

    - `delivered`, `delivery_failures`: segments that all hooks have taken, or that one failed on;
      `delivery_retries`: those handed over again in this process, after a failure or since a hook
      still had one of their messages.
    - `hook_failures`: calls that failed, by the name of the hook.
    - `archive_failures`: puts that evicted nothing because the archive failed.
    - `summaries`, `summary_failures`: made and not made; `summary_calls`, `summary_seconds`: the
      model calls of those that were made, and the time of all.
    - `selector_failures`: contents that stay whole because nothing was selected, by reason.
    - `deleted_checkpoints`: old ones that went by `retain`; `retention_failures`: passes over a
      thread that failed.
    """

    channels: Mapping[str, ChannelStats] = field(default_factory=dict)
    last_put: Mapping[str, ChannelStats] = field(default_factory=dict)
    delivered: int = 0
    delivery_failures: int = 0
    delivery_retries: int = 0
    hook_failures: Mapping[str, int] = field(default_factory=dict)
    archive_failures: int = 0
    summaries: int = 0
    summary_calls: int = 0
    summary_failures: int = 0
    summary_seconds: float = 0.0
    selector_failures: Mapping[str, int] = field(default_factory=dict)
    deleted_checkpoints: int = 0
    retention_failures: int = 0

    @property
    def total(self) -> ChannelStats:
        """Return the sum over all channels."""
        return reduce(ChannelStats.plus, self.channels.values(), ChannelStats())
