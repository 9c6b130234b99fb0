"""LangGraph's conformance suite reports the same for the saver of a third party, wrapped and bare.

What a bare saver fails it fails wrapped as well, and what it lacks is not made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from savers.test_conformance import Bridge
from services.door import AsyncDoor, Door
from services.others import Other
from services.wrappers import WRAPPERS

Saver = BaseCheckpointSaver[Any]
KNOWN_FAILURES = {"redis": 7}
"""What a bare saver fails, behind either door: `list` with a namespace, a filter or `before`."""
MAYBE = ("delete_thread", "copy_thread", "delete_for_runs", "prune")


def bridged(saver: Saver) -> Saver:
    """Offer the sync methods that a saver has as async ones, and no other."""

    def method(name: str) -> Any:
        if getattr(type(saver), name) is getattr(BaseCheckpointSaver, name):
            return getattr(BaseCheckpointSaver, f"a{name}")

        async def call(self: Bridge, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.saver, name)(*args, **kwargs)

        return call

    return type("Bridge", (Bridge,), {f"a{name}": method(name) for name in MAYBE})(saver)


def report(saver: Saver, door: Door) -> Any:
    """Give what the suite says about each capability, on one store."""
    tested = saver if isinstance(door, AsyncDoor) else bridged(saver)

    @checkpointer_test(name="saver")
    async def factory() -> AsyncIterator[Saver]:
        yield tested

    suite = validate(factory)
    found = door.run(suite) if isinstance(door, AsyncDoor) else asyncio.run(suite)
    return found.to_dict()


def tally(found: Any) -> tuple[int, int]:
    """Count what passed and what was tried."""
    ran = found["results"].values()
    passed, failed = (sum(one.get(k) or 0 for one in ran) for k in ("tests_passed", "tests_failed"))
    return passed, passed + failed


def test_the_reports_are_equal(
    other: Other, make_other: Callable[[], Saver], door: Door, name: str
) -> None:
    bare = report(make_other(), door)
    wrapped = report(WRAPPERS["ReducingSaver"](make_other()), door)

    passed, tried = tally(bare)
    assert passed >= tried - KNOWN_FAILURES.get(name.partition("-")[0], 0)
    assert {name for name, one in bare["results"].items() if one["detected"]} == other.detects
    assert wrapped["results"].keys() == bare["results"].keys()
    for capability, one in bare["results"].items():
        two = wrapped["results"][capability]
        assert {**two, "failures": len(two["failures"])} == {
            **one,
            "failures": len(one["failures"]),
        }
