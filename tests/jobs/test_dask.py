"""A job on Dask: its executor is one of `concurrent.futures`, and a killed worker costs nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from jobs.test_workers import POLICY, THREADS, fill, is_whole

from reducing_saver import compact, status
from reducing_saver.jobs import run

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")


@pytest.mark.parametrize("kind", ["postgres"])
@pytest.mark.parametrize("kills", [False, True])
def test_dask_does_a_job(house: Any, monkeypatch: pytest.MonkeyPatch, kills: bool) -> None:
    monkeypatch.setattr(run, "CHUNK", {"postgres": 2})
    monkeypatch.setattr(run, "_CHUNKS_A_CALL", 2)
    fill(house)
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = [*client.run(os.getpid).values()]

        def kill(_: Any) -> None:
            if kills and workers:
                os.kill(workers.pop(), signal.SIGKILL)
                workers.clear()

        report = compact(
            house.dsn,
            POLICY,
            archive="same",
            dry_run=False,
            idle="0s",
            job="dask",
            executor=client.get_executor(pure=False, retries=5),
            progress=kill,
        )
        assert not (kills and workers)
    assert (report.compacted, report.left, report.errors) == (THREADS, 0, ())
    is_whole(house)
    (found,) = status(house.dsn, job="dask")
    assert (found.done, found.left) == (THREADS, 0)
