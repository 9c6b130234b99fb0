"""A job lets the garbage collector run more rarely, never off, and leaves it as it was."""

from __future__ import annotations

import gc

import pytest

from reducing_saver.jobs.process import collecting_rarely


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
