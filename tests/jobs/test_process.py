"""A job lets the garbage collector run more rarely, never off, and leaves it as it was."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from jobs.graphs import finished

from reducing_saver import Discard, Policy, Window, compact
from reducing_saver.jobs.process import collecting_rarely

POLICY = Policy(Window(keep=("messages", 4), trigger=("messages", 6)))


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_a_job_never_turns_the_garbage_collector_on_or_off(
    house: Any, monkeypatch: Any, enabled: bool
) -> None:
    from reducing_saver.rows.postgres import PostgresRows
    from reducing_saver.rows.sqlite import SqliteRows

    kind = PostgresRows if house.kind == "postgres" else SqliteRows
    whole, seen = kind.apply, list[Any]()

    def apply(self: Any, edits: Any) -> None:
        seen.append((gc.isenabled(), gc.get_threshold()))
        whole(self, edits)

    monkeypatch.setattr(kind, "apply", apply)
    finished(house.saver).start()
    before = gc.get_threshold()
    if not enabled:
        gc.disable()
    try:
        report = compact(house.saver, POLICY, archive=Discard(), idle="0", dry_run=False)
        after = gc.isenabled(), gc.get_threshold()
    finally:
        gc.enable()
    assert report.compacted == 1
    assert after == (enabled, before)
    assert [one for one, _ in seen] == [enabled]
    assert seen[0][1] > before


def test_the_thresholds_come_back() -> None:
    before = gc.get_threshold()
    first, second = collecting_rarely(), collecting_rarely()
    with first:
        with second:
            within = gc.get_threshold()
        assert gc.get_threshold() == within > before
    assert gc.get_threshold() == before


def test_jobs_in_threads_share_them() -> None:
    """The one that began last may end first, and the other way round."""
    before = gc.get_threshold()
    for order in ((0, 1), (1, 0)):
        jobs = [collecting_rarely(), collecting_rarely()]
        for job in jobs:
            job.__enter__()
        jobs[order[0]].__exit__(None, None, None)
        assert gc.get_threshold() > before
        jobs[order[1]].__exit__(None, None, None)
        assert gc.get_threshold() == before


def test_what_somebody_else_sets_stays() -> None:
    before = gc.get_threshold()
    try:
        with collecting_rarely():
            gc.set_threshold(900, 5, 5)
        assert gc.get_threshold() == (900, 5, 5)
        gc.set_threshold(0)
        with collecting_rarely():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_a_failure_gives_them_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="over"):
        fail()
    assert gc.get_threshold() == before


def fail() -> None:
    with collecting_rarely():
        raise RuntimeError("over")
