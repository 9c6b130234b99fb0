"""A wrapped saver of a third party beside a bare one: the same scenes, the same checkpoints.

As in `savers.test_twin`: a window that never triggers changes nothing, a small one only the lists.
All scenes with REDUCING_TEST_CAMPAIGN=1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from savers.scenarios import SCENES, Record, Scene, differences, loose, plain, play
from savers.test_twin import CAMPAIGN, WINDOWS, assert_part, paired
from services.door import Door
from services.wrappers import NEVER

from reducing_saver import Discard, ReducingSaver, Window

FEW = (
    "chat",
    "interrupts_in_parallel_tools",
    "update_state",
    "forked_at_rest",
    "subgraph_with_memory",
)


NOT_THERE = {
    "redis-sync": "lists dicts for messages",
    "plainredis-sync replayed": "a fork writes over the branch it left",
    "plainredis-async replayed": "a fork writes over the branch it left",
    "plainredis-async subgraph_called_in_a_node": "the async saver has no sync methods at all",
}
"""Known faults of a bare saver that its own scenes fail by, see `test_known_faults`."""


@pytest.fixture(autouse=True)
def _there(name: str, scene: Scene) -> None:
    for fault in (name, f"{name} {scene.name}"):
        if fault in NOT_THERE:
            pytest.skip(NOT_THERE[fault])


@pytest.fixture(params=SCENES if CAMPAIGN else FEW)
def scene(request: pytest.FixtureRequest) -> Scene:
    return SCENES[request.param]


def test_a_scene_is_the_same_but_for_its_lists(
    inner: BaseCheckpointSaver[Any], door: Door, scene: Scene
) -> None:
    bare = play(scene, inner, door)
    never = _play_kept(scene, inner, door, NEVER)
    kept = _play_kept(scene, inner, door, WINDOWS["above cap"])

    assert [*differences(plain(bare), plain(never))] == []
    assert kept.ran == bare.ran
    assert [*differences(loose(bare, scene.channels), loose(kept, scene.channels))] == []
    for part, full in _lists(bare, kept, scene):
        assert_part(part, full)


def _play_kept(scene: Scene, inner: Any, door: Door, window: Window) -> Record:
    saver = ReducingSaver(inner, window, archive=Discard(), channels=scene.channels)
    return play(scene, saver, door, inner=inner)


def _lists(bare: Record, kept: Record, scene: Scene) -> Iterator[tuple[Any, Any]]:
    """Give each stored or shown list beside the bare one's."""
    for channel in scene.channels:
        yield from ((part, full) for full, part in paired(bare, kept, channel))
    yield from zip(kept.seen, bare.seen, strict=True)
