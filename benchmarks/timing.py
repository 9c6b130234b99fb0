"""Time things that are compared: interleaved, so that the machine's noise hits all of them."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

Act = Callable[[], object]
Prepare = Callable[[int], Act]


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold the seconds that each run of one case took."""

    seconds: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Return the median in milliseconds."""
        return median(self.seconds) * 1e3

    @property
    def mean_ms(self) -> float:
        """Return the mean in milliseconds; unlike the median it sees rare slow runs."""
        return fmean(self.seconds) * 1e3

    def against(self, base: Sample) -> float:
        """Return the median of the ratios, round by round: a slow moment hits both of a round."""
        return median(own / other for own, other in zip(self.seconds, base.seconds, strict=True))


def interleave(cases: Mapping[str, Prepare], runs: int) -> dict[str, Sample]:
    """Time every case once a round, for `runs` rounds, each in another order (the same each time).

    `prepare(round)` is not timed and returns what is. The collector is on, as it is for users, but
    what stands before the first round is frozen and every timed run begins just after a collection,
    so that nobody pays for the garbage of another.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.freeze()
    try:
        for run in range(runs):
            # Shuffled, not rotated: nobody should always come after the same one, whose work may
            # have left the messages in the processor's caches.
            shuffle(names)
            for name in names:
                seconds[name].append(_time(cases[name](run)))
    finally:
        gc.unfreeze()
    return {name: Sample(tuple(times)) for name, times in seconds.items()}


def _time(act: Act) -> float:
    gc.collect()
    begun = time.perf_counter()
    result = act()
    ended = time.perf_counter()
    del result
    return ended - begun
