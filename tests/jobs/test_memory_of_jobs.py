"""What a job remembers of what leaves: summaries, segments, delta channels, no archive at all."""

from __future__ import annotations

from typing import Any

import pytest
from jobs.graphs import TURNS, delta, finished, turn
from jobs.test_retention import Refusing, asked, drafting
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import _messages_delta_reducer

from reducing_saver import (
    Discard,
    Policy,
    ReducingSaver,
    Retain,
    StoreArchive,
    Summary,
    Window,
    compact,
)
from reducing_saver._record import Record

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))
POLICY = Policy(WINDOW)


def run(house: Any, policy: Policy = POLICY, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    return compact(house.saver, policy, **given)


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


def loaded(play: Any) -> list[Any]:
    return list(play.graph.get_state(play.config).values["messages"])


def test_a_summary_takes_the_place_of_what_left(house: Any) -> None:
    play = finished(house.saver)
    play.start()
    whole = ids(loaded(play))
    calls: list[int] = []

    def say(messages: Any, previous: str | None) -> str:
        calls.append(len(messages))
        return f"{previous or ''} {len(messages)} went"

    report = run(house, summary=Summary(say))
    assert report.compacted == 1
    assert report.evicted == calls[0] == 15
    left = loaded(play)
    assert "15 went" in left[0].content
    assert ids(left[1:]) == whole[-3:]
    saver = house.wrap(WINDOW)
    assert ids(saver.transcript(play.config)) == whole
    for i in range(3):
        play.graph.invoke(turn(TURNS + i), play.config)
    run(house, summary=Summary(say))
    assert len(calls) == 2
    left = loaded(play)
    assert "15 went 9 went" in left[0].content
    assert len([m for m in left if "went" in m.content]) == 1
    assert len([*saver.transcript(play.config)]) == 27


def test_a_summary_that_fails_leaves_the_list_whole(house: Any) -> None:
    play = finished(house.saver)
    play.start()
    before = ids(loaded(play))

    def fail(messages: Any, previous: str | None) -> str:
        raise RuntimeError("no")

    report = run(house, summary=Summary(fail, on_failure="keep"))
    assert report.evicted == 0
    assert report.deleted > 0
    assert ids(loaded(play)) == before


def test_a_thread_that_changes_while_its_summary_is_made_is_left(house: Any) -> None:
    play = finished(house.saver)
    play.start()

    def say(messages: Any, previous: str | None) -> str:
        play.graph.invoke(turn(TURNS), play.config)
        return "said"

    report = run(house, summary=Summary(say))
    assert report.skipped == {"younger than idle": 1}
    assert len(loaded(play)) == 3 * (TURNS + 1)


def test_without_an_archive_no_checkpoint_names_one(house: Any) -> None:
    play = finished(house.saver)
    play.start()
    report = run(house, archive=Discard())
    assert report.archive == "discarded"
    assert report.archived == 0
    assert report.evicted == 15
    assert len(loaded(play)) == 3
    assert not Record.read(house.saver.get_tuple(play.config).metadata)
    assert house.count("store") == 0


def test_hooks_without_an_archive_are_told_once(house: Any) -> None:
    play = finished(house.saver)
    play.start()
    told: list[Any] = []
    run(house, archive=Discard(), on_evict=[told.append])
    assert [len(e.messages) for e in told] == [15]


def test_a_delta_channel_without_its_reducer_is_left(house: Any) -> None:
    play = delta(house.saver)
    play.start()
    for i in range(4):
        play.graph.update_state(
            play.config, {"messages": [AIMessage("x", id=f"x{i}")]}, as_node="b"
        )
        head = house.saver.get_tuple(play.config)
        if not isinstance(head.checkpoint["channel_values"].get("messages"), _DeltaSnapshot):
            break
    before, stored = ids(loaded(play)), [*house.saver.list(play.config)]
    report = run(house)
    assert report.skipped == {"a delta channel without messages_reducer": 1}
    assert len([*house.saver.list(play.config)]) == len(stored)
    assert ids(loaded(play)) == before


@pytest.mark.parametrize("retain", [Retain(), Retain(last=4)], ids=["one", "four"])
def test_what_left_a_delta_channel_is_in_the_transcript(house: Any, retain: Retain) -> None:
    play = delta(house.saver)
    play.start()
    whole = ids(loaded(play))
    for more in range(3):
        report = run(house, Policy(WINDOW, retain), messages_reducer=_messages_delta_reducer)
        assert report.compacted == 1
        assert len([*house.saver.list(play.config)]) == retain.last
        archived = ids(StoreTranscript(house).of(play))
        assert archived == whole[: len(archived)]
        assert archived + ids(loaded(play)) == whole
        play.graph.invoke(turn(TURNS + more), play.config)
        whole += [f"{kind}h{TURNS + more}" for kind in ("", "a.", "b.")]


class StoreTranscript:
    """Read what was archived of a thread, in order: its head holds a delta channel, not a list."""

    def __init__(self, house: Any) -> None:
        self.house = house

    def of(self, play: Any) -> list[Any]:
        found = self.house.saver.get_tuple(play.config)
        newest = Record.read(found.metadata).segments["messages"]
        archive = StoreArchive(self.house.store)
        chain = archive.chain("t", newest)
        keys = [key for segment in reversed(chain) for key in segment.keys]
        serde = self.house.saver.serde
        return [serde.loads_typed((e.kind, e.data)) for e in archive.read("t", keys)]


@pytest.mark.parametrize("last", [1, 50])
def test_what_is_owed_to_an_archive_stays_in_its_place(house: Any, last: int) -> None:
    """The next put compares lists to find what the graph removed, so they stay whole."""
    play = finished(house.saver)
    down = ReducingSaver(house.saver, Window(("messages", 400)), archive=Refusing(house.store))
    graph = drafting(down)
    for i in range(6):
        graph.invoke(asked(i), play.config)
    assert len(Record.read(house.saver.get_tuple(play.config).metadata).owed) == 6

    report = run(house, Policy(WINDOW, retain=Retain(last=last)))
    assert report.evicted == 0
    assert (report.deleted > 0) == (last == 1)
    saver = house.wrap(WINDOW)
    for i in range(6, 9):
        drafting(saver).invoke(asked(i), play.config)
    assert len(loaded(play)) <= 6, "and what has to leave leaves"
    names = [f"{one}h{i:04}" for i in range(9) for one in ("", "draft.", "answer.")]
    assert ids(saver.transcript(play.config)) == names
    assert run(house, Policy(WINDOW, retain=Retain(last=1))).compacted == 1
    assert ids(saver.transcript(play.config)) == names
