"""Turns of a bare saver in between, whose checkpoints name no segment: the archive is found again.

As where only jobs are used, or where the wrapper was taken off for a day.
"""

from __future__ import annotations

from typing import Any

import pytest
from memory.houses import House, Told, ask, ids, talk, thread_config

from reducing_saver import Policy, ReducingSaver, StoreArchive, Window, compact
from reducing_saver._record import Record

MEMORY = ["memory-sync", "memory-async"]


def play(house: House, saver: Any, config: Any, *labels: str) -> None:
    graph = talk().compile(checkpointer=saver)
    for label in labels:
        house.door.invoke(graph, ask(label, 1), config)


def told(house: House, saver: ReducingSaver, config: Any) -> list[Any]:
    return ids(house.transcript(saver, config))


def test_a_transcript_reaches_over_the_turns_of_a_bare_saver(house: House) -> None:
    config = thread_config()
    play(house, house.saver(), config, "a", "b", "c")
    play(house, house.inner, config, "d", "e")

    state = house.state(config)
    assert len(state["messages"]) < len(state["log"])
    newest = house.checkpoints(config["configurable"]["thread_id"])[0]
    assert not Record.read(newest.metadata).segments, "else this tests nothing"
    assert told(house, house.saver(), config) == state["log"]


def test_the_wrapper_goes_on_from_what_it_archived_before(house: House) -> None:
    config, hook = thread_config(), Told()
    play(house, house.saver(on_evict=[hook]), config, "a", "b", "c")
    play(house, house.inner, config, "d")
    play(house, house.saver(on_evict=[hook]), config, "e", "f", "g")
    play(house, house.inner, config, "h")
    play(house, house.saver(on_evict=[hook]), config, "i", "j")

    state = house.state(config)
    assert told(house, house.saver(), config) == state["log"]
    assert len(hook.ids) == len({*hook.ids})
    assert {*hook.ids} == {*state["log"]} - {*ids(state["messages"])}


def test_each_fork_finds_its_own_past(house: House) -> None:
    config = thread_config()
    play(house, house.saver(), config, "a", "b", "c")
    fork = house.checkpoints(config["configurable"]["thread_id"])[0].config
    play(house, house.inner, config, "d")
    left = house.checkpoints(config["configurable"]["thread_id"])[0]
    play(house, house.inner, fork, "e")
    play(house, house.saver(), config, "f", "g")

    right = house.state(config)
    assert told(house, house.saver(), config) == right["log"]
    assert told(house, house.saver(), left.config) == left.checkpoint["channel_values"]["log"]
    assert {*right["log"]} != {*left.checkpoint["channel_values"]["log"]}


@pytest.mark.parametrize("house", ["sqlite-sync", "postgres-sync"], indirect=True)
def test_after_a_job_a_bare_saver_goes_on(house: House) -> None:
    config, archive = thread_config(), StoreArchive(house.store)
    play(house, house.inner, config, "a", "b", "c", "d")
    where = house.dsn if "postgres" in house.kind else str(house.stores.folder / "house.db")
    policy = Policy(Window(("turns", 1), ("turns", 2)))
    assert compact(where, policy, archive=archive, dry_run=False, idle=0).compacted
    play(house, house.inner, config, "e")

    state = house.state(config)
    assert len(state["messages"]) < len(state["log"])
    assert told(house, house.saver(), config) == state["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_an_archive_that_is_down_costs_no_run(house: House) -> None:
    config = thread_config()
    play(house, house.saver(), config, "a", "b", "c")
    play(house, house.inner, config, "d")
    archive = Down(house.store)
    saver = house.saver(Window(("messages", 90)), archive=archive)
    play(house, saver, config, "e")
    assert archive.asked
    archive.down = False
    play(house, saver, config, "f")
    assert told(house, saver, config) == house.state(config)["log"]


@pytest.mark.parametrize("house", MEMORY, indirect=True)
def test_a_thread_that_is_not_in_the_archive_is_not_walked(house: House) -> None:
    config, archive = thread_config(), Down(house.store)
    archive.down = False
    play(house, house.inner, config, "a", "b")
    calls = house.inner.get_tuple, house.inner.aget_tuple
    loads: list[Any] = []

    def get_tuple(config: Any) -> Any:
        loads.append(config)
        return calls[0](config)

    async def aget_tuple(config: Any) -> Any:
        loads.append(config)
        return await calls[1](config)

    house.inner.get_tuple, house.inner.aget_tuple = get_tuple, aget_tuple
    play(house, house.saver(Window(("messages", 90)), archive=archive), config, "c", "d")
    assert archive.asked == 1
    assert len(loads) < 10


class Down(StoreArchive):
    """An archive that answers nothing while it is down."""

    down, asked = True, 0

    def holds(self, thread: str) -> bool:
        self.asked += 1
        if self.down:
            raise OSError("the archive is down")
        return super().holds(thread)

    async def aholds(self, thread: str) -> bool:
        self.asked += 1
        if self.down:
            raise OSError("the archive is down")
        return await super().aholds(thread)
