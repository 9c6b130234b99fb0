"""A process with an archive, a summary and hooks is killed at random points; another goes on.

At the end archive and state hold every message ever, once, in order; every stored summary covers
what is gone; every message that left was told, and told again only if it was on its way to the hook
at the kill. `memory_child` has the processes. The long form kills at 200 points of each store:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/memory/test_memory_crash.py -s -n 0
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory.memory_child import TURNS, Job, Server

pytestmark = pytest.mark.campaign

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
POINTS = 200 if CAMPAIGN else 6
SEED = int(os.environ.get("REDUCING_TEST_SEED", "4"))
HOWS = [*itertools.product(("sync", "async"), ("sync", "async", "exit"))]
"""Doors and durabilities, of which each point has one."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Campaign:
    """Kill runs on one store."""

    def __init__(self, server: Server, kind: str, store: str, log: str) -> None:
        self.server, self.log = server, log
        self.how = {"kind": kind, "store": store, "log": log}
        self.lengths: dict[tuple[str, str], int] = {}
        self.counts: Counter[str] = Counter()

    def do(self, door: str, durability: str, thread: str, kill: Any = None) -> Any:
        job = Job(door=door, durability=durability, thread=thread, kill=kill, **self.how)
        return self.server.do(job)

    def length(self, door: str, durability: str) -> int:
        """Return how many points a run has that is not killed, which must be sound as well."""
        if (door, durability) not in self.lengths:
            status, events = self.do(door, durability, uuid.uuid4().hex)
            assert status == 0, events
            self.check([events])
            self.lengths[door, durability] = events[-1]["points"]
        return self.lengths[door, durability]

    def kill(self, chance: random.Random) -> None:
        """Kill a run once or twice, and let another process finish."""
        door, durability = chance.choice(HOWS)
        length = self.length(door, durability)
        thread = uuid.uuid4().hex
        lives = []
        for _ in range(chance.choice((1, 1, 1, 2))):
            delay = chance.choice((0.0, 0.0, chance.uniform(0, 0.01)))
            status, events = self.do(door, durability, thread, (chance.randint(1, length), delay))
            assert status in (0, -9), text(events)
            lives.append(events)
            self.counts["killed" if status else "ran to its end"] += 1
        status, events = self.do(door, durability, thread)
        assert status == 0, text(events)
        lives.append(events)
        self.check(lives)
        self.counts["points"] += 1

    def check(self, lives: list[list[dict[str, Any]]]) -> None:
        end = lives[-1][-1]
        said = end["said"]
        assert sum(name.startswith("h.") for name in said) == len(TURNS)
        assert len(said) == len({*said}) == 2 * len(TURNS) + 2 * sum(TURNS)
        assert end["transcript"] == said, "archive + state = every message ever, once, in order"
        assert end["not covered"] == []
        gone = {*said} - {*end["held"]}
        told = [[e for e in life if e["event"] == "told"] for life in lives]
        ever = Counter(name for life in told for event in life for name in event["ids"])
        assert {*ever} == gone, "zero lost, and nothing told that did not leave"
        for life in told:
            once = Counter(name for event in life for name in event["ids"])
            assert max(once.values(), default=0) <= 1, "twice in one process"
        # One put hands over one segment after the other: one may be on its way at each kill.
        segments = Counter(event["segment"] for life in told for event in life)
        again = [segment for segment, times in segments.items() if times > 1]
        assert len(again) <= len(lives) - 1
        for segment in again:
            *cut, _ = (life for life in told if any(e["segment"] == segment for e in life))
            assert all(life[-1]["segment"] == segment for life in cut), "told again, not at a kill"
        self.counts["messages"] += len(said)
        self.counts["told"] += sum(ever.values())
        self.counts["told twice"] += sum(ever.values()) - len(ever)


def text(events: list[dict[str, Any]]) -> str:
    return "\n".join(e.get("text") or str(e) for e in events)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_at_random_points(
    server: Server, kind: str, tmp_path: Path, make_database: Callable[[], str]
) -> None:
    store = make_database() if kind == "postgres" else str(tmp_path / "chat.db")
    campaign = Campaign(server, kind, store, str(tmp_path / "log"))
    chance = random.Random(SEED)
    failed: list[str] = []
    for number in range(POINTS):
        try:
            campaign.kill(chance)
        except AssertionError as error:
            failed.append(f"point {number}: {error}")
    print(kind, dict(campaign.counts), len(failed), "failed")  # noqa: T201
    assert not failed, "\n\n".join(failed[:10])
