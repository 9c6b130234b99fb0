"""Start processes for a job, and get along in one: with its garbage collector and its parent."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Lock, Thread

_RARELY = (200_000, 50, 100)
_lock = Lock()
_within = 0
_before = gc.get_threshold()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector look for cycles rarely within, in all threads of the process.

    A chunk is many objects and hardly a cycle: looking for cycles at the thresholds that CPython
    3.11 starts with takes up to half of the client's CPU of a job. It is never off: others in
    the process, and what they fork meanwhile, still need it. Safe in several threads at once;
    thresholds that somebody else has set meanwhile stay.
    """
    global _within, _before
    with _lock:
        if not _within:
            _before = gc.get_threshold()
            # Zero stands for off.
            if _before[0]:
                gc.set_threshold(*_RARELY)
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and gc.get_threshold() == _RARELY:
                gc.set_threshold(*_before)


def pool_of(workers: int) -> ProcessPoolExecutor:
    """Return a pool of so many processes, which end with this one."""
    return ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent)


def _end_with_parent() -> None:
    """End this process with the one that started it: a pool whose driver was killed lives on."""
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
