"""Put checkpoints as LangGraph's loop makes them, without running a graph."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint

from .stores import Saver


class Loop:
    """Follow one thread: each checkpoint is the child of the last, under versions of its own.

    What LangGraph 1.2 offers of a graph with one node, seen in its own puts: the whole list each
    time (the same message objects, in a new list), a moved version of `messages`, what the node
    has seen; `branch:to:agent` while the node waits to run.
    """

    def __init__(self, saver: Saver) -> None:
        self.saver = saver
        self.config = {"configurable": {"thread_id": str(uuid.uuid4()), "checkpoint_ns": ""}}
        self._last = empty_checkpoint()
        self._step = -1

    def ready(self, messages: Sequence[object], *, rest: bool = True) -> Callable[[], None]:
        """Make the next checkpoint; what is returned puts it."""
        version = self.saver.get_next_version(self._version(), None)
        values: dict[str, object] = {"messages": list(messages)}
        if not rest:
            values["branch:to:agent"] = None
        checkpoint = {
            **create_checkpoint(self._last, None, self._step),
            "channel_values": values,
            "channel_versions": {
                "__start__": version,
                "messages": version,
                "branch:to:agent": version,
            },
            "versions_seen": {
                "__input__": {},
                "__start__": {"__start__": version},
                "agent": {"branch:to:agent": version},
            },
            "updated_channels": ["messages"],
        }
        metadata = {"source": "loop", "step": self._step, "parents": {}}
        new = dict.fromkeys(checkpoint["channel_versions"], version)
        config, self._last = self.config, checkpoint
        self._step += 1

        def put() -> None:
            self.config = self.saver.put(config, checkpoint, metadata, new)

        return put

    def load(self) -> list[object]:
        """Load the list that was stored last, as a new run does."""
        found = self.saver.get_tuple(self.config)
        return list(found.checkpoint["channel_values"]["messages"])

    def _version(self) -> object | None:
        return self._last["channel_versions"].get("messages")
