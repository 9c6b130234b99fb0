"""Find out on a scratch thread what a saver does, and say it in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from .._channel import move, successor
from .._errors import ConfigurationError
from .._forwarding import ForwardingSaver
from ..rows.any_saver import Way, prunes


class Finding(NamedTuple):
    """Hold what was found: whether it is as it should be, and what it means."""

    name: str
    ok: bool
    words: str


@dataclass(frozen=True, slots=True)
class Probed:
    """Hold what a saver does, how its threads can be compacted, and what to know about that."""

    saver: str
    way: Way
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.saver}: {self.way}"]
        lines += [f"  {'ok' if one.ok else 'NO'}  {one.words}" for one in self.findings]
        return "\n".join(lines)

    def has(self, name: str) -> bool:
        """Tell whether something was found to be as it should be."""
        return any(one.name == name and one.ok for one in self.findings)

    @property
    def exit_code(self) -> int:
        """Return 1 where nothing can be rewritten, else 0."""
        return int(self.way is Way.NONE)


_WORDS = {
    "stores": (
        "a checkpoint comes back as it was put",
        "a checkpoint did not come back as it was put",
    ),
    "lists": (
        "all checkpoints of a thread are listed",
        "not all checkpoints of a thread are listed: old ones are not seen",
    ),
    "namespaces": (
        "checkpoints of subgraphs are listed with their thread",
        "checkpoints of subgraphs are not listed with their thread: their lists stay as they are",
    ),
    "versions": (
        "lists of different checkpoints never share a place",
        "versions are counted and lists are stored by version: a list that is put again takes the "
        "place of one that another checkpoint needs",
    ),
    "same id": (
        "the same checkpoint can be put again",
        "the same checkpoint cannot be put again",
    ),
    "replaces": (
        "a checkpoint that is put again holds the new list",
        "a checkpoint that is put again keeps its old list",
    ),
    "other channels": (
        "its other channels stay as they are",
        "its other channels are lost when it is put again",
    ),
    "writes": (
        "its pending writes stay as they are",
        "its pending writes are lost when it is put again: interrupts and finished tasks would be",
    ),
    "parent": (
        "its parent stays as it is",
        "its parent is lost when it is put again",
    ),
    "newest": (
        "an older checkpoint that is put again does not become the newest",
        "an older checkpoint that is put again becomes the newest: what came after is lost",
    ),
    "new id": (
        "a checkpoint that is put after the newest becomes the newest",
        "a checkpoint that is put after the newest does not become the newest",
    ),
    "delta": (
        "a delta channel's whole list can be stored",
        "a delta channel's whole list cannot be stored: threads with one are left as they are",
    ),
    "prune": (
        "the saver deletes old checkpoints itself, of threads of which only the newest stay",
        "the saver cannot delete old checkpoints: lists get shorter, checkpoints stay",
    ),
    "cleans up": (
        "the scratch thread is gone",
        "the scratch thread {thread} could not be deleted: delete it by hand",
    ),
}
_STORES = ("stores", "versions")
_SAME_ID = ("same id", "replaces", "other channels", "writes", "parent", "newest")


def probe(saver: BaseCheckpointSaver[Any]) -> Probed:
    """Try on a scratch thread what a compaction does, and delete it again.

    Needs the sync methods of the saver: an async one is asked from another thread than its loop's.
    Raises `ConfigurationError` for what is no saver.
    """
    while isinstance(saver, ForwardingSaver):
        saver = saver.inner
    if not isinstance(saver, BaseCheckpointSaver):
        raise ConfigurationError("saver", saver, "a checkpoint saver")
    scratch = _Scratch(saver)
    try:
        scratch.look()
    finally:
        scratch.clean()
    return Probed(type(saver).__name__, _way(scratch.found), tuple(scratch.findings()))


def _way(found: dict[str, bool]) -> Way:
    def all_of(names: tuple[str, ...]) -> bool:
        return all(found.get(name, False) for name in names)

    if not all_of(_STORES):
        return Way.NONE
    if all_of(_SAME_ID):
        return Way.SAME_ID
    return Way.NEW_ID if found.get("new id") else Way.NONE


@dataclass(slots=True)
class _Scratch:
    """Put and read on a thread of its own; what raises is a finding like others."""

    saver: BaseCheckpointSaver[Any]
    thread: str = field(default_factory=lambda: f"reducing-saver-probe-{uuid4()}")
    found: dict[str, bool] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    first: Any = None
    second: Any = None

    def look(self) -> None:
        """Ask one after the other; without the first nothing else can be asked."""
        self._ask("stores", self._stores)
        if not self.found["stores"]:
            return
        self._ask("lists", self._lists)
        self._ask("namespaces", self._namespaces)
        self._ask("same id", self._same_id)
        if self.found["same id"]:
            self._ask("newest", self._newest)
        self._ask("versions", self._versions)
        self._ask("new id", self._new_id)
        self._ask("delta", self._delta)
        self.found["prune"] = prunes(self.saver)

    def clean(self) -> None:
        """Delete the thread."""
        self._ask("cleans up", self._is_gone)

    def findings(self) -> Iterator[Finding]:
        """Yield what was found, in the order it was asked."""
        for name, (yes, no) in _WORDS.items():
            if name in self.found:
                ok = self.found[name]
                words = yes if ok else no.format(thread=self.thread)
                error = "" if ok or name not in self.errors else f" ({self.errors[name]})"
                yield Finding(name, ok, words + error)

    def _ask(self, name: str, question: Callable[[], bool]) -> None:
        try:
            self.found[name] = bool(question())
        except Exception as error:
            self.found[name] = False
            self.errors[name] = type(error).__name__

    def _config(self, id: str | None = None, space: str = "") -> Any:
        named = {"thread_id": self.thread, "checkpoint_ns": space}
        return {"configurable": named if id is None else {**named, "checkpoint_id": id}}

    def _put(self, checkpoint: Any, before: Any, new: Any, *, space: str = "") -> None:
        metadata: Any = {"source": "loop", "step": 0, "parents": {}}
        config = self._config(before and before["id"], space)
        # What is given may be changed or held.
        self.saver.put(config, deepcopy(checkpoint), metadata, dict(new))

    def _made(self, messages: list[str], versions: dict[str, Any]) -> Any:
        values: dict[str, Any] = {"messages": messages, "other": {"held": [1, 2]}}
        return {
            **empty_checkpoint(),
            "id": str(uuid6()),
            "channel_values": {name: values[name] for name in versions},
            "channel_versions": versions,
        }

    def _held(self, id: str | None = None) -> Any:
        return self.saver.get_tuple(self._config(id))

    def _lists_of(self, id: str | None = None) -> Any:
        return self._held(id).checkpoint["channel_values"].get("messages")

    def _stores(self) -> bool:
        one: Any = self.saver.get_next_version(None, None)
        two: Any = self.saver.get_next_version(one, None)
        self.first = self._made(["a"], {"messages": one, "other": one})
        self.second = self._made(["a", "b", "c"], {"messages": two, "other": one})
        self._put(self.first, None, self.first["channel_versions"])
        self._put(self.second, self.first, {"messages": two})
        writes = [("messages", ["d"]), ("other", {"held": [3]})]
        self.saver.put_writes(self._config(self.second["id"]), writes, str(uuid4()))
        found, older = self._held(), self._held(self.first["id"])
        return (
            found.checkpoint["id"] == self.second["id"]
            and found.checkpoint["channel_values"] == self.second["channel_values"]
            and older.checkpoint["channel_values"] == self.first["channel_values"]
            and len(found.pending_writes) == 2
            and found.parent_config["configurable"]["checkpoint_id"] == self.first["id"]
        )

    def _lists(self) -> bool:
        listed = [one.checkpoint["id"] for one in self.saver.list(self._config())]
        return listed == [self.second["id"], self.first["id"]]

    def _namespaces(self) -> bool:
        version: Any = self.saver.get_next_version(None, None)
        below = self._made(["x"], {"messages": version})
        self._put(below, None, below["channel_versions"], space="child")
        listed = self.saver.list({"configurable": {"thread_id": self.thread}})
        return below["id"] in [one.checkpoint["id"] for one in listed]

    def _same_id(self) -> bool:
        before = self._held()
        old = self.second["channel_versions"]["messages"]
        new = successor(old, self.saver.get_next_version)
        if new is None:
            return False
        moved, versions = move(self.second, {}, "messages", new)
        shorter: Any = {**moved, "channel_values": {**moved["channel_values"], "messages": ["c"]}}
        self._put(shorter, self.first, versions)
        after = self._held(self.second["id"])
        values = after.checkpoint["channel_values"]
        self.found["replaces"] = values.get("messages") == ["c"]
        self.found["other channels"] = values.get("other") == self.second["channel_values"]["other"]
        self.found["writes"] = after.pending_writes == before.pending_writes
        self.found["parent"] = after.parent_config == before.parent_config
        self.second = shorter
        return True

    def _newest(self) -> bool:
        old = self.first["channel_versions"]["messages"]
        new = successor(old, self.saver.get_next_version)
        moved, versions = move(self.first, {}, "messages", new or old)
        self._put(moved, None, versions)
        return bool(self._held().checkpoint["id"] == self.second["id"])

    def _versions(self) -> bool:
        """Tell whether two checkpoints with one version, by two runs say, keep their lists."""
        old = self.second["channel_versions"]["messages"]
        if successor(old, self.saver.get_next_version) != successor(
            old, self.saver.get_next_version
        ):
            return True
        third = self._made(["z"], {"messages": old})
        self._put(third, self.second, {"messages": old})
        own = self.second["channel_values"]["messages"]
        held = [self._lists_of(self.second["id"]), self._lists_of(third["id"])]
        return bool(held == [own, ["z"]])

    def _new_id(self) -> bool:
        head = self._held().checkpoint
        new: Any = successor(head["channel_versions"]["messages"], self.saver.get_next_version)
        fourth = self._made(["y"], {"messages": new})
        self._put(fourth, head, {"messages": new})
        found = self._held()
        return bool(found.checkpoint["id"] == fourth["id"]) and self._lists_of() == ["y"]

    def _delta(self) -> bool:
        version: Any = self.saver.get_next_version(None, None)
        made = self._made([], {"messages": version})
        made["channel_values"]["messages"] = _DeltaSnapshot(["w"])
        self._put(made, self._held().checkpoint, {"messages": version})
        held = self._lists_of(made["id"])
        return isinstance(held, _DeltaSnapshot) and held.value == ["w"]

    def _is_gone(self) -> bool:
        self.saver.delete_thread(self.thread)
        listed = self.saver.list({"configurable": {"thread_id": self.thread}})
        gone = self._held() is None and not [*listed]
        self.saver.delete_thread(self.thread)  # to look at it may have left an empty one
        return gone
