"""A job changes nothing of a process that others use too; its own collects garbage rarely."""

from __future__ import annotations

import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from jobs.graphs import finished

from reducing_saver import Discard, Policy, Window, compact
from reducing_saver.jobs.process import collecting_rarely, make_own

POLICY = Policy(Window(keep=("messages", 4), trigger=("messages", 6)))


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_a_job_leaves_the_garbage_collector_alone(
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
        after = gc.isenabled()
    finally:
        gc.enable()
    assert report.compacted == 1
    assert after == enabled
    assert seen == [(enabled, before)]


def test_a_command_gives_the_thresholds_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="over"), collecting_rarely():
        assert gc.get_threshold()[0] > before[0]
        raise RuntimeError("over")
    assert gc.get_threshold() == before


def test_a_process_of_a_pool_collects_rarely() -> None:
    with ProcessPoolExecutor(1, get_context("spawn"), make_own) as pool:
        assert pool.submit(gc.get_threshold).result()[0] > gc.get_threshold()[0]
