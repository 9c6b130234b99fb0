"""A process is killed (`kill -9`) at a call of its saver, and another goes on with the thread.

`crash_child` has the graphs, and the processes. Here each run is killed on a bare saver and on a
wrapped one, at the same call, and must end as the bare one's uninterrupted run does, on the kept
suffix. The suite has a few points of each graph; the sweep kills at every call of every run:

    pytest tests/savers/test_crash.py -m campaign -k sweep -s
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from savers.crash_child import ROUNDS, SCENES, WINDOW, Job, Server

Kill = tuple[str, str, int]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def stores(tmp_path: Path, make_database: Callable[[], str]) -> Callable[[str], str]:
    known: dict[str, str] = {}

    def store(kind: str) -> str:
        if kind not in known:
            known[kind] = make_database() if kind == "postgres" else str(tmp_path / "store.db")
        return known[kind]

    return store


class Killing:
    """Kill runs of one graph on one kind of saver, and look at how they end."""

    def __init__(
        self, server: Server, scene: str, kind: str, door: str, durability: str, store: str
    ) -> None:
        self.server, self.scene = server, scene
        self.how = {"kind": kind, "door": door, "durability": durability, "store": store}
        self.log = f"{os.environ.get('TMPDIR', '/tmp')}/crash-{uuid.uuid4().hex}.log"
        self.counts: Counter[str] = Counter()
        status, events = self.do("reference", wrapped=False)
        assert status == 0, events
        self.reference = events[-1]
        self.calls = [e for e in events if e["event"] == "call"]

    def close(self) -> None:
        os.remove(self.log)

    def do(self, thread: str, **given: Any) -> tuple[int, list[dict[str, Any]]]:
        return self.server.do(Job(self.scene, thread=thread, log=self.log, **self.how, **given))

    def lives(self, thread: str, kills: list[Kill], *, wrapped: bool) -> Life | None:
        """Kill a run, once or more often, and let the last process finish; None: no kill came."""
        events = []
        for number, kill in enumerate(kills):
            status, happened = self.do(thread, wrapped=wrapped, kill=kill)
            if status == 0:
                return Life(events, happened) if number else None
            events += happened
            assert status == -9, text(happened)
        status, happened = self.do(thread, wrapped=wrapped)
        assert status == 0, text(happened)
        return Life(events, happened)

    def check(self, *kills: Kill) -> bool:
        """Return False where no call of the run is the last of these."""
        name = uuid.uuid4().hex
        kept = self.lives(f"kept {name}", [*kills], wrapped=True)
        if kept is None:
            return False
        self.counts["points"] += 1
        self.is_sound(kept)
        if self.is_ahead(kept):
            self.counts["a subgraph ahead"] += 1
            assert all(message in self.reference["messages"] for message in kept.end["messages"])
        else:
            is_kept_suffix(kept.end["messages"], self.reference["messages"])
            assert kept.end["others"] == self.reference["others"]
        for namespace, ids in kept.end["stored"]:
            assert len(ids) <= WINDOW.cap.value, (namespace, ids)
        # With other durabilities runs race with their savers: two are killed in two states
        if self.how["durability"] == "sync":
            self.compare(kept, self.lives(f"bare {name}", [*kills], wrapped=False))
        return True

    def compare(self, kept: Life, bare: Life | None) -> None:
        assert bare is not None, "the bare run makes fewer calls"
        self.is_sound(bare)
        assert bare.end["messages"] == self.reference["messages"]
        assert bare.end["others"] == self.reference["others"]
        if bare.left["place"] == kept.left["place"]:  # tasks that run at once may race here too
            self.counts["compared"] += 1
            assert alike(bare.after("ran")) == alike(kept.after("ran"))

    def is_ahead(self, life: Life) -> bool:
        """Tell whether a process found a subgraph with memory a turn ahead of its parent.

        The turn is then run again, on a bare saver too, which may show the model an open call and
        ends elsewhere than an uninterrupted run as well. On ours the parent also hands over
        messages that the subgraph has evicted. Nobody can know them in a new process without an
        archive: they come back, after newer ones.
        """
        if self.scene != "nested_with_memory":
            return False
        places = [e["place"] for e in (*life.before, *life.events) if e["event"] == "found"]
        turns = [{name: turn or 0 for name, _, turn, _ in place} for place in places]
        return any(turn > at.get("", 0) for at in turns for turn in at.values())

    def is_sound(self, life: Life) -> None:
        finished: set[str] = set()
        for event in (*life.before, *life.events):
            assert not event.get("refused") or self.is_ahead(life), event
            if event["event"] == "found":  # a process starts
                finished = set(event["done"])
                self.counts["finished tasks"] += len(finished)
            assert event.get("task") not in finished, f"finished, and ran again: {event}"


class Life(NamedTuple):
    """Hold what happened before the last kill, and in the process that went on."""

    before: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @property
    def left(self) -> dict[str, Any]:
        return self.events[0]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]

    def after(self, event: str) -> list[str]:
        return sorted(e["name"] for e in self.events if e["event"] == event)


def alike(names: list[str]) -> list[str]:
    """Leave out which of two tools that run at once it was: either may be killed first."""
    return sorted(name.removesuffix(".ask").removesuffix(".look") for name in names)


def text(events: list[dict[str, Any]]) -> str:
    return "\n".join(e.get("text") or str(e) for e in events)


def is_kept_suffix(kept: list[Any], whole: list[Any]) -> None:
    """Assert that a list is what a window may leave of another.

    That is the newest turns, each its human message and the newest of the rest of it.
    """
    assert kept[-1] == whole[-1]
    assert kept == [message for message in whole if message in kept]
    left = turns(kept)
    assert [*left] == [*turns(whole)][-len(left) :]
    for label, messages in left.items():
        human, *rest = turns(whole)[label]
        assert messages[0] == human
        assert messages[1:] == rest[len(rest) - len(messages) + 1 :]


def turns(messages: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for message in messages:
        found.setdefault(message[0][1], []).append(message)
    return found


HOWS = [*itertools.product(("sqlite", "postgres"), ("sync", "async"))]

POINTS: list[tuple[str, str, str, str, Kill]] = [
    ("agent", "sqlite", "sync", "sync", ("put", "before", 17)),
    ("agent", "sqlite", "async", "async", ("put_writes", "after", 14)),
    ("agent", "postgres", "sync", "async", ("put", "after", 16)),
    ("agent", "postgres", "async", "exit", ("put", "before", 3)),
    ("edits", "sqlite", "sync", "sync", ("put", "before", 18)),
    ("edits", "sqlite", "async", "sync", ("put", "before", 16)),
    ("edits", "postgres", "sync", "sync", ("put", "before", 18)),
    ("asking", "sqlite", "sync", "sync", ("put_writes", "after", 19)),
    ("asking", "postgres", "async", "sync", ("put", "after", 15)),
    ("delta", "sqlite", "sync", "sync", ("put", "after", 14)),
    ("delta", "postgres", "async", "sync", ("put_writes", "after", 23)),
    ("nested", "sqlite", "sync", "sync", ("put", "before", 11)),
    ("nested", "postgres", "async", "async", ("put", "after", 28)),
    ("nested_with_memory", "sqlite", "async", "sync", ("put_writes", "before", 26)),
]


@pytest.mark.parametrize(("scene", "kind", "door", "durability", "kill"), POINTS)
def test_killed_and_gone_on(
    server: Server,
    stores: Callable[[str], str],
    scene: str,
    kind: str,
    door: str,
    durability: str,
    kill: Kill,
) -> None:
    killing = Killing(server, scene, kind, door, durability, stores(kind))
    assert killing.check(kill), "no such call: the run ended before"
    killing.close()


@pytest.mark.parametrize(
    ("scene", "kind", "door"),
    [("nested", "sqlite", "sync"), ("nested_with_memory", "postgres", "async")],
)
def test_killed_between_a_subgraph_s_rest_and_its_parent_s_write(
    server: Server, stores: Callable[[str], str], scene: str, kind: str, door: str
) -> None:
    """The subgraph has come to rest, and its parent does not know; then the run goes on."""
    killing = Killing(server, scene, kind, door, "sync", stores(kind))
    puts = [e for e in killing.calls if e["method"] == "put"]
    rests = [
        before["number"]
        for before, after in itertools.pairwise(puts)
        if before["namespace"] and not after["namespace"]
    ]
    assert len(rests) == len(ROUNDS)
    for number in rests:
        kept, bare = (
            killing.lives(f"{wrapped} {number}", [("put", "after", number)], wrapped=wrapped)
            for wrapped in (True, False)
        )
        assert kept is not None
        assert bare is not None
        assert kept.after("ran") == bare.after("ran")
        ours, theirs = (
            [e["ids"] for e in life.events if e["event"] == "result"] for life in (kept, bare)
        )
        for mine, whole in zip(ours, theirs, strict=True):
            is_kept_suffix([[name] for name in mine], [[name] for name in whole])
        # Below the cap the turn that was killed is whole
        if number != rests[-1]:
            assert set(ours[0]) >= {name for name in theirs[0] if name[1] == theirs[0][-1][1]}
    killing.close()


@pytest.mark.campaign
@pytest.mark.skipif("'campaign' not in config.option.markexpr", reason="long: run with -m campaign")
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize(("kind", "door"), HOWS)
@pytest.mark.parametrize("scene", SCENES)
def test_sweep(
    server: Server,
    stores: Callable[[str], str],
    scene: str,
    kind: str,
    door: str,
    durability: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Kill at every call."""
    killing = Killing(server, scene, kind, door, durability, stores(kind))
    failed: list[str] = []
    for method, side in itertools.product(("put", "put_writes"), ("before", "after")):
        for number in itertools.count(1):
            try:
                if not killing.check((method, side, number)):
                    break
            except AssertionError as error:
                failed.append(f"{method} {side} {number}: {error}")
    print(scene, kind, door, durability, dict(killing.counts), len(failed))  # noqa: T201
    killing.close()
    assert not failed, "\n\n".join(failed)


@pytest.mark.campaign
@pytest.mark.skipif("'campaign' not in config.option.markexpr", reason="long: run with -m campaign")
@pytest.mark.parametrize(("kind", "door"), HOWS)
@pytest.mark.parametrize("scene", SCENES)
def test_killed_again_and_again(
    server: Server, stores: Callable[[str], str], scene: str, kind: str, door: str
) -> None:
    """Each process gets a little further than the one before."""
    dice = random.Random(f"{scene} {kind} {door}")
    killing = Killing(server, scene, kind, door, "sync", stores(kind))
    for _ in range(12):
        kills: list[Kill] = [
            (dice.choice(["put", "put_writes"]), dice.choice(["before", "after"]), number)
            for number in dice.choices(range(2, 14), k=12)
        ]
        killing.check(*kills)
    print(scene, kind, door, dict(killing.counts))  # noqa: T201
    killing.close()
