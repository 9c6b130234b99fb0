"""What nobody names is swept, and an erased thread is nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from jobs.graphs import finished, turn
from langgraph.checkpoint.base.id import uuid6

from reducing_saver import ConfigurationError, Policy, Window, compact, erase, gc

WINDOW = Window(keep=("messages", 4), trigger=("messages", 6))


def fill(house: Any, *threads: str) -> None:
    for thread in threads:
        play = finished(house.saver)
        play.thread = thread
        play.start()


def run(house: Any, **settings: Any) -> Any:
    given = {"archive": "same", "idle": "0", "dry_run": False, **settings}
    return compact(house.saver, Policy(WINDOW), **given)


def at(thread: str, checkpoint: str) -> Any:
    named = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint}
    return {"configurable": named}


def test_there_is_nothing_to_sweep(house: Any) -> None:
    assert gc(house.saver, archive="same", dry_run=False, grace="0").writes == 0
    fill(house, "t")
    run(house)
    swept = gc(house.saver, archive="same", dry_run=False, grace="0")
    assert (swept.blobs, swept.writes, swept.archives, swept.waiting) == (0, 0, 0, 0)
    assert len([*house.wrap(WINDOW).transcript({"configurable": {"thread_id": "t"}})]) == 18


def test_writes_of_no_checkpoint_go_after_the_grace(house: Any) -> None:
    fill(house, "t")
    house.saver.put_writes(at("t", str(uuid6())), [("seen", ["x"]), ("seen", ["y"])], "task")
    assert run(house).compacted == 0
    assert gc(house.saver).waiting == 2
    assert gc(house.saver, dry_run=False).writes == 0
    said = gc(house.saver, grace="0")
    assert said.dry_run
    assert said.writes == 2
    done = gc(house.saver, grace="0", dry_run=False)
    assert (done.writes, done.write_bytes > 0) == (2, True)
    assert house.orphans() == 0
    assert run(house).compacted == 1


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_blobs_that_nobody_names_go_from_idle_threads(house: Any) -> None:
    fill(house, "t", "u")
    house.run(
        "INSERT INTO checkpoint_blobs SELECT thread_id, checkpoint_ns, channel, 'old.' || version, "
        "type, blob FROM checkpoint_blobs WHERE channel = 'messages' AND thread_id = 't'"
    )
    many = house.orphans()
    assert many > 3
    assert gc(house.saver, dry_run=False).waiting == many
    assert house.orphans() == many
    swept = gc(house.saver, dry_run=False, grace="0")
    assert swept.blobs == many
    assert swept.blob_bytes > 0
    assert house.orphans() == 0
    finished(house.saver).graph.invoke(turn(7), {"configurable": {"thread_id": "t"}})


def test_archives_of_threads_that_are_gone(house: Any) -> None:
    fill(house, "t", "Ünlike.other/%_", "x" * 600)
    run(house)
    for thread in ("t", "x" * 600):
        house.saver.delete_thread(thread)
    assert gc(house.saver, archive="same").waiting == 2
    said = gc(house.saver, archive="same", grace="0")
    assert said.archives == 2
    assert gc(house.saver, archive="same", grace="0", dry_run=False).archives == 2
    assert gc(house.saver, archive="same", grace="0").archives == 0
    config: Any = {"configurable": {"thread_id": "Ünlike.other/%_"}}
    assert len([*house.wrap(WINDOW).transcript(config)]) == 18


def test_an_erased_thread_is_nowhere(house: Any) -> None:
    threads = ("one", "two.2", "three")
    fill(house, *threads)
    run(house)
    fill(house, "one")
    before = house.count("checkpoints")
    said = erase(house.saver, ["one", "two.2"])
    assert said.dry_run
    assert said.rows["checkpoints"] > 2
    assert said.rows["store"] > 10
    assert house.count("checkpoints") == before
    done = erase(house.saver, ["one", "two.2", "one"], dry_run=False)
    assert dict(done.rows) == dict(said.rows)
    assert done.found == {}
    assert done.exit_code == 0
    assert any("reducing_saver_threads" in name for name in done.looked_at)
    assert house.count("checkpoints") == 1
    config: Any = {"configurable": {"thread_id": "three"}}
    assert len([*house.wrap(WINDOW).transcript(config)]) == 18
    assert erase(house.saver, ["one"], dry_run=False).rows["checkpoints"] == 0


def test_what_is_left_of_an_erased_thread_is_told(house: Any) -> None:
    fill(house, "one")
    house.run("CREATE TABLE notes (note TEXT, about TEXT)")
    house.run("INSERT INTO notes VALUES ('{\"thread\": [\"one\"]}', 'one')")
    done = erase(house.saver, ["one"], dry_run=False)
    assert done.found.get("notes.about") == 1
    assert done.exit_code == 1


@pytest.mark.parametrize("value", ["one", [], [""], [1], None])
def test_bad_ids_are_refused(house: Any, value: Any) -> None:
    if value == []:
        assert erase(house.saver, value).threads == ()
        return
    with pytest.raises(ConfigurationError, match="thread_ids"):
        erase(house.saver, value)


@pytest.mark.parametrize(("field", "value"), [("grace", "-1h"), ("archive", 3), ("dry_run", 0)])
def test_bad_settings_are_refused(house: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        gc(house.saver, **{field: value})
