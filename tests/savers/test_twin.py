"""A wrapped saver beside a bare one: the same scenes, the same checkpoints.

With a window that never triggers everything that is stored and returned is equal. With a small one
everything but the message lists is, and each of those is part of the bare one's.

As a campaign, every window on every saver, and the long forms of the scenes:

    REDUCING_TEST_CAMPAIGN=1 pytest tests/savers/test_twin.py
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from savers.scenarios import (
    SCENES,
    Record,
    Scene,
    brief,
    differences,
    key,
    loose,
    namespace,
    plain,
    play,
    read,
    subsequence,
)
from services import postgres
from services.door import DOORS, Door
from services.savers import BACKENDS, Backend, Stores, open_saver
from services.wrappers import NEVER

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import problems

pytestmark = pytest.mark.campaign

CAMPAIGN = os.environ.get("REDUCING_TEST_CAMPAIGN") == "1"
WINDOWS = {
    "at rest": Window(("messages", 2), ("messages", 3), ("messages", 1_000)),
    "above cap": Window(("messages", 2), ("messages", 3), ("messages", 5)),
    "in turns": Window(("turns", 1), ("turns", 2), ("messages", 8)),
}
LANGGRAPHS_OWN = [name for name in BACKENDS if not name.startswith("memory_int")]
FEW = [
    ("memory-async", "at rest"),
    ("sqlite-sync", "above cap"),
    ("apostgres-async", "above cap"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        pairs = [(b, w) for b in BACKENDS for w in WINDOWS] if CAMPAIGN else FEW
        metafunc.parametrize(("house", "name"), pairs, indirect=["house"], scope="module")
    elif "house" in metafunc.fixturenames:
        backends = BACKENDS if CAMPAIGN else LANGGRAPHS_OWN
        metafunc.parametrize("house", backends, indirect=True, scope="module")


class House(NamedTuple):
    """Hold a saver and its door, for many scenes; each has a thread of its own."""

    inner: Any
    door: Door
    bare: dict[str, Record]

    def play_bare(self, scene: Scene) -> Record:
        if scene.name not in self.bare:
            self.bare[scene.name] = play(scene, self.inner, self.door, long=CAMPAIGN)
        return self.bare[scene.name]

    def play_kept(self, scene: Scene, window: Window) -> Record:
        saver = ReducingSaver(self.inner, window, archive=Discard(), channels=scene.channels)
        return play(scene, saver, self.door, inner=self.inner, long=CAMPAIGN)


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[House]:
    """Open one store for all scenes: a new database for each would take longer than they do."""
    backend = Backend.named(request.param)
    folder: Path = tmp_path_factory.mktemp("house")
    with contextlib.ExitStack() as stack:

        def make_database() -> str:
            server = request.getfixturevalue("postgres_server")
            return stack.enter_context(postgres.database(server))

        door = DOORS[backend.door]()
        stores = Stores(folder, make_database)
        if "postgres" in backend.kind:  # before the door, so dropped after it is closed
            stores.get("house", make_database)
        stack.callback(door.close)
        yield House(open_saver(backend.kind, door, stores, "house"), door, {})


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return SCENES[request.param]


def test_a_window_that_never_triggers_changes_nothing(house: House, scene: Scene) -> None:
    bare = plain(house.play_bare(scene))
    kept = plain(house.play_kept(scene, NEVER))

    assert [*differences(bare, kept)] == []
    assert kept == bare


def test_a_small_window_changes_only_the_lists(house: House, scene: Scene, name: str) -> None:
    bare = house.play_bare(scene)
    kept = house.play_kept(scene, WINDOWS[name])

    assert kept.ran == bare.ran
    assert [*differences(loose(bare, scene.channels), loose(kept, scene.channels))] == []
    for channel in scene.channels:
        for one, other in paired(bare, kept, channel):
            assert_part(other, one)
    for shown, full in zip(kept.seen, bare.seen, strict=True):
        assert_part(shown, full)


def paired(bare: Record, kept: Record, channel: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Give the lists that the two stored in the same checkpoint."""
    for one, other in zip(bare.stored, kept.stored, strict=True):
        full, part = read(one, channel), read(other, channel)
        assert (full is None) == (part is None), namespace(one)
        if full is not None and part is not None:
            yield full, part


def assert_part(part: Sequence[Any], full: Sequence[Any]) -> None:
    """State that a list is a valid part of another, and ends as it does."""
    names, all_names = [*map(key, part)], [*map(key, full)]
    assert subsequence(names, all_names), f"{brief(part)} is no part of {brief(full)}"
    assert names[-1:] == all_names[-1:]
    assert broken(part) <= broken(full), f"{problems(part)} in {brief(part)}"


def broken(messages: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Name what a provider would refuse, by message."""
    return {(p.rule, *(key(messages[p.index]) if p.index >= 0 else ())) for p in problems(messages)}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_small_window_evicts_in_every_scene(scene: Scene) -> None:
    """So that the test above is about something; a delta channel alone passes through."""
    saver = ReducingSaver(
        InMemorySaver(), WINDOWS["at rest"], archive=Discard(), channels=scene.channels
    )
    play(scene, saver, Door())

    assert bool(saver.stats().total.evicted) != scene.delta
