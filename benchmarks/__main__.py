"""Run the benchmarks that are named, or all: `python -m benchmarks [engine put ...] [--short]`."""

from __future__ import annotations

import sys

from . import (
    agent,
    compaction,
    contents,
    counts,
    crossing,
    engine,
    growth,
    memory,
    put,
    reads,
    selection,
)
from .report import main

ALL = {
    "engine": engine.run,
    "put": put.run,
    "crossing": crossing.run,
    "counts": counts.run,
    "reads": reads.run,
    "growth": growth.run,
    "agent": agent.run,
    "memory": memory.run,
    "compaction": compaction.run,
    "contents": contents.run,
    "selection": selection.run,
}

if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if word in ALL]
    rest = [word for word in sys.argv[1:] if word not in ALL]
    main([ALL[name] for name in named or ALL], rest)
