"""Set up the processes that do nothing but jobs: those of a pool, and the command's own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from threading import Thread

# A chunk is many objects and hardly a cycle. Looking for cycles, at the thresholds that CPython
# 3.11 starts with, takes a tenth of the client's CPU of a job, a quarter where ten checkpoints
# stay; at these, next to nothing. In a process that others use too it is left as it is.
_RARELY = (50_000, 50, 100)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector look for cycles rarely within, in all threads of the process."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def make_own() -> None:
    """Make this process one of a job's: what a pool of its own begins its processes with.

    It ends with the one that started it: a pool whose driver was killed lives on.
    """
    gc.set_threshold(*_RARELY)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
