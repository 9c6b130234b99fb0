"""After compaction a thread goes on as if nothing had happened: ten kinds of real graphs.

The twin plays the same script in a database of its own and is not compacted.
"""

from __future__ import annotations

from typing import Any

import pytest
from jobs.graphs import PLAYS, Play

from reducing_saver import Policy, Report, Retain, Window, compact

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
RETAINS = {
    "last 1": Retain(),
    "last 3": Retain(last=3),
    "turn starts": Retain(turn_starts=2),
    "no tips": Retain(tips=False),
}


def names(messages: Any) -> list[tuple[str, Any]]:
    return [(message.id, message.content) for message in messages]


def run(play: Play, policy: Policy, **settings: Any) -> Report:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    return compact(play.saver, policy, messages_reducer=play.reducer, **given)


def same(kept: Any, bare: Any) -> None:
    """Assert that a state is another's, but for old messages."""
    ours, theirs = dict(kept.values), dict(bare.values)
    left, whole = names(ours.pop("messages")), names(theirs.pop("messages"))
    assert left == whole[len(whole) - len(left) :]
    assert ours == theirs
    assert kept.next == bare.next
    assert [i.value for i in kept.interrupts] == [i.value for i in bare.interrupts]


def same_next(ours: Play, twin: Play) -> None:
    same(ours.go_on(), twin.go_on())
    assert ours.nodes == twin.nodes


def whole_transcript(house: Any, ours: Play, twin: Play) -> None:
    saver = house.wrap(WINDOW, messages_reducer=ours.reducer)
    stored = twin.saver.get_tuple(twin.config).checkpoint["channel_values"]["messages"]
    assert names(saver.transcript(ours.config)) == names(stored)


@pytest.mark.parametrize("retain", RETAINS)
@pytest.mark.parametrize("paused", ["skip", "history"])
@pytest.mark.parametrize("name", PLAYS)
def test_it_goes_on_as_its_twin(name: str, paused: Any, retain: str, build: Any) -> None:
    house, other = build(), build()
    ours, twin = PLAYS[name](house.saver), PLAYS[name](other.saver)
    for play in (ours, twin):
        play.start()
    before = len(list(house.saver.list(ours.config)))
    report = run(ours, Policy(WINDOW, RETAINS[retain], paused))
    assert not report.errors
    stays = ours.waits and paused == "skip"
    assert report.compacted == int(not stays)
    assert report.skipped == ({"paused": 1} if stays else {})
    after = len(list(house.saver.list(ours.config)))
    assert (after == before) if stays else (after < before)
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    if not ours.reducer:
        whole_transcript(house, ours, twin)
    if not ours.waits and not name.startswith("subgraph"):
        loaded = ours.graph.get_state(ours.config).values["messages"]
        assert len(loaded) <= WINDOW.triggers[0].value
    same_next(ours, twin)
    again = run(ours, Policy(WINDOW, RETAINS[retain], paused))
    assert not again.errors
    assert again.compacted == 1
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    if not ours.reducer:
        whole_transcript(house, ours, twin)
