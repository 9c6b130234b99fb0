"""Twelve live threads next to a job in a loop without idle time: nothing is lost.

The suite has a few seconds of it, in the long form half a minute each:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/jobs/test_stress.py -s -n 0
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from jobs.chats import KINDS, WINDOW, Chat, counted, live, problems, talking

from reducing_saver import Policy, ReducingSaver, Retain, StoreArchive, Window, compact, gc

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
SECONDS = 30.0 if CAMPAIGN else 5.0
SEED = 5
POLICIES = (
    Policy(WINDOW, Retain(last=1)),
    Policy(WINDOW, Retain(last=2), paused="history"),
    Policy(Window(keep=("messages", 2), trigger=("messages", 4)), Retain(last=1), "history"),
    Policy(None, Retain(last=1)),
)

pytestmark = pytest.mark.campaign


@pytest.fixture
def open_saver(house: Any) -> Iterator[Callable[[], Any]]:
    """Give a saver of its own to each chat; those of a SQLite file share one, as in an app."""
    with contextlib.ExitStack() as stack:

        def make() -> Any:
            if house.kind == "sqlite":
                return house.saver
            from langgraph.checkpoint.postgres import PostgresSaver

            return stack.enter_context(PostgresSaver.from_conn_string(house.dsn))

        yield make


def chats_of(house: Any, open_saver: Callable[[], Any], amount: int = 12) -> list[Chat]:
    found = []
    for number, kind in zip(range(amount), itertools.cycle(KINDS), strict=False):
        saver = open_saver()
        if kind.startswith("wrapped"):
            saver = ReducingSaver(saver, WINDOW, archive=StoreArchive(house.store))
        # The database of an "exit" turn sees the whole turn at once.
        durability = "exit" if number % 4 == 3 else "sync" if number % 4 == 1 else "async"
        found.append(Chat(kind, f"{kind} {number}", saver, durability=durability))
    return found


def loop(house: Any, seconds: float, policies: Sequence[Policy] = POLICIES, **given: Any) -> Any:
    """Run jobs one after the other; return how many, and what they did in all."""
    chance, end = random.Random(SEED), time.monotonic() + seconds
    passes = compacted = deleted = evicted = 0
    while time.monotonic() < end:
        settings = {"archive": "same", "idle": "0", "dry_run": False, **given}
        report = compact(house.saver, chance.choice(policies), **settings)
        assert report.exit_code == 0, report.errors
        passes += 1
        compacted += report.compacted
        deleted += report.deleted
        evicted += report.evicted
    return passes, compacted, deleted, evicted


def test_nothing_is_lost_next_to_live_traffic(
    house: Any, open_saver: Callable[[], Any], capsys: Any
) -> None:
    chats = chats_of(house, open_saver)
    with talking(chats):
        done = loop(house, SECONDS)
    before = {what: len(rows) for what, rows in counted(house).items()}
    found = problems(house, chats)
    turns = sum(chat.turns for chat in chats)
    with capsys.disabled():
        print(f"\n{house.kind}: {turns} turns; passes, compacted, deleted, evicted: {done}")  # noqa: T201
        print(f"    {before}")  # noqa: T201
    assert done[0] > 3
    assert min(chat.turns for chat in chats) > 1
    assert done[2] > turns
    assert not found
    settle(house)
    assert not problems(house, chats, quiet=True)
    for chat in chats:
        assert len(live(house.saver, chat)) <= WINDOW.triggers[0].value
        chat.say()
    assert not problems(house, chats)
    settle(house)
    assert not problems(house, chats, quiet=True)


def settle(house: Any) -> None:
    """Run a job and a sweep over what is at rest; the job alone leaves no writes behind."""
    report = compact(house.saver, POLICIES[0], archive="same", idle="0", dry_run=False)
    assert report.exit_code == 0
    assert not counted(house)["orphan writes"]
    swept = gc(house.saver, archive="same", grace="0", dry_run=False)
    assert swept.archives == 0


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ COMMITTED"])
def test_the_isolation_level_is_what_keeps_turns(
    house: Any, open_saver: Callable[[], Any], level: str, monkeypatch: Any, capsys: Any
) -> None:
    """A slow job: what is stored between its reading and its writing is lost at the lower level."""
    from reducing_saver.rows.postgres import PostgresRows

    @contextlib.contextmanager
    def writing(self: Any) -> Iterator[None]:
        with self.connection.transaction():
            self.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            yield

    def apply(self: Any, edits: Any) -> None:
        time.sleep(0.1)
        whole(self, edits)

    whole = PostgresRows.apply
    monkeypatch.setattr(PostgresRows, "writing", writing)
    monkeypatch.setattr(PostgresRows, "apply", apply)
    chats = chats_of(house, open_saver)
    with talking(chats):
        done = loop(house, SECONDS)
    found = problems(house, chats)
    with capsys.disabled():
        print(f"\n{level}: {done[0]} passes, {sum(c.turns for c in chats)} turns, ", end="")  # noqa: T201
        print(f"{len(found)} problems; {found[:2]}")  # noqa: T201
    assert done[0] > 3
    assert bool(found) == (level == "READ COMMITTED")
