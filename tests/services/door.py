"""One way to call a saver or a graph, whichever door is tested: write the test once.

`door.put(saver, config, ...)` is `saver.put(config, ...)` behind the sync door and
`await saver.aput(config, ...)` on the door's own event loop behind the async one; the same goes for
every method below. What iterates (`list`, `stream`, `get_state_history`) gives a list.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

SECONDS = 60
"""What a single call may take; a deadlock fails the test instead of the run."""


class Door:
    """The sync door."""

    name = "sync"

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def call(self, thing: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call any method that has an `a...` twin, by its sync name."""
        return getattr(thing, method)(*args, **kwargs)

    def collect(self, thing: Any, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method that iterates, and give everything as a list."""
        return [*getattr(thing, method)(*args, **kwargs)]

    def finish(self, value: Any) -> Any:
        """Give a value that may have to be awaited, as `saver.setup()` of an async saver."""
        return value

    def open(self, manager: Any) -> Any:
        """Enter a context manager of this door; it is left when the door is closed."""
        return self._stack.enter_context(manager)

    def close(self) -> None:
        self._stack.close()

    # Of a saver
    def get(self, saver: Any, config: Any) -> Any:
        return self.call(saver, "get", config)

    def get_tuple(self, saver: Any, config: Any) -> Any:
        return self.call(saver, "get_tuple", config)

    def list(self, saver: Any, config: Any, **kwargs: Any) -> Any:
        return self.collect(saver, "list", config, **kwargs)

    def put(self, saver: Any, config: Any, checkpoint: Any, metadata: Any, new: Any) -> Any:
        return self.call(saver, "put", config, checkpoint, metadata, new)

    def put_writes(self, saver: Any, config: Any, writes: Any, task_id: str, *path: str) -> Any:
        return self.call(saver, "put_writes", config, writes, task_id, *path)

    def delete_thread(self, saver: Any, thread_id: str) -> Any:
        return self.call(saver, "delete_thread", thread_id)

    def delete_for_runs(self, saver: Any, run_ids: Any) -> Any:
        return self.call(saver, "delete_for_runs", run_ids)

    def copy_thread(self, saver: Any, source: str, target: str) -> Any:
        return self.call(saver, "copy_thread", source, target)

    def prune(self, saver: Any, thread_ids: Any, **kwargs: Any) -> Any:
        return self.call(saver, "prune", thread_ids, **kwargs)

    def get_delta_channel_history(self, saver: Any, config: Any, channels: Any) -> Any:
        return self.call(saver, "get_delta_channel_history", config=config, channels=channels)

    # Of a compiled graph
    def invoke(self, graph: Any, given: Any, config: Any, **kwargs: Any) -> Any:
        return self.call(graph, "invoke", given, config, **kwargs)

    def stream(self, graph: Any, given: Any, config: Any, **kwargs: Any) -> Any:
        return self.collect(graph, "stream", given, config, **kwargs)

    def get_state(self, graph: Any, config: Any, **kwargs: Any) -> Any:
        return self.call(graph, "get_state", config, **kwargs)

    def get_state_history(self, graph: Any, config: Any, **kwargs: Any) -> Any:
        return self.collect(graph, "get_state_history", config, **kwargs)

    def update_state(self, graph: Any, config: Any, values: Any, **kwargs: Any) -> Any:
        return self.call(graph, "update_state", config, values, **kwargs)

    def bulk_update_state(self, graph: Any, config: Any, supersteps: Any) -> Any:
        return self.call(graph, "bulk_update_state", config, supersteps)


class AsyncDoor(Door):
    """The async door, with one event loop for the whole test (async savers belong to theirs)."""

    name = "async"

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._async_stack = contextlib.AsyncExitStack()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(coroutine, SECONDS))

    def call(self, thing: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        async def awaited() -> Any:
            return await getattr(thing, f"a{method}")(*args, **kwargs)

        return self.run(awaited())

    def collect(self, thing: Any, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        async def collected() -> list[Any]:
            return [item async for item in getattr(thing, f"a{method}")(*args, **kwargs)]

        return self.run(collected())

    def finish(self, value: Any) -> Any:
        return self.run(value) if asyncio.iscoroutine(value) else value

    def open(self, manager: Any) -> Any:
        async def entered() -> Any:  # on the loop also where the manager is a sync one
            if hasattr(manager, "__aenter__"):
                return await self._async_stack.enter_async_context(manager)
            return self._async_stack.enter_context(manager)

        return self.run(entered())

    def close(self) -> None:
        self.run(self._async_stack.aclose())
        self._runner.close()


DOORS: dict[str, type[Door]] = {"sync": Door, "async": AsyncDoor}


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns, or fail when it hangs: for what may deadlock."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise AssertionError(f"still running after {seconds} s: a deadlock")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
