"""The savers that the tests wrap, each behind the doors it has.

A backend is a kind of saver and a door: `"sqlite-sync"`. `open_saver` opens a saver of its kind on
a named store; the same name is the same file, database or memory again, through a new connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.memory import InMemorySaver
from services.door import Door

BACKENDS = (
    "memory-sync",
    "memory-async",
    "memory_int-sync",
    "memory_int-async",
    "sqlite-sync",
    "aiosqlite-async",
    "postgres-sync",
    "apostgres-async",
)


@dataclass(frozen=True)
class Backend:
    kind: str
    door: str

    @classmethod
    def named(cls, name: str) -> Backend:
        return cls(*name.split("-"))


@dataclass
class Stores:
    """Where the savers of one test store: a folder, databases made on demand, memory."""

    folder: Path
    make_database: Callable[[], str]

    def __post_init__(self) -> None:
        self._known: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]


def open_saver(kind: str, door: Door, stores: Stores, name: str) -> BaseCheckpointSaver[Any]:
    """Open a saver that is ready to use; it is closed with the door."""
    match kind:
        case "memory":
            return stores.get(name, InMemorySaver)
        case "memory_int":
            return stores.get(name, IntMemorySaver)
        case "sqlite":
            from langgraph.checkpoint.sqlite import SqliteSaver

            return door.open(SqliteSaver.from_conn_string(str(stores.folder / f"{name}.db")))
        case "aiosqlite":
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            return door.open(AsyncSqliteSaver.from_conn_string(str(stores.folder / f"{name}.db")))
        case "postgres":
            from langgraph.checkpoint.postgres import PostgresSaver

            dsn = stores.get(name, stores.make_database)
            saver = door.open(PostgresSaver.from_conn_string(dsn))
        case "apostgres":
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            dsn = stores.get(name, stores.make_database)
            saver = door.open(AsyncPostgresSaver.from_conn_string(dsn))
        case _:
            raise ValueError(f"no such kind of saver: {kind}")
    door.finish(saver.setup())
    return saver


class IntMemorySaver(BaseCheckpointSaver[int]):
    """A saver unlike LangGraph's own, as third parties write them.

    It has the base class's integer versions and delta history, keeps the whole state inline with
    every checkpoint, refuses the same checkpoint id twice, and has neither `setup` nor `with`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: dict[tuple[str, str, str], tuple[Any, Any, str | None]] = {}
        self.writes: dict[tuple[str, str, str], dict[tuple[str, int], tuple[str, str, Any]]] = {}

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, ns, parent = _where(config)
        key = (thread, ns, checkpoint["id"])
        if key in self.checkpoints:
            raise ValueError(f"checkpoint {key} is already stored")
        stored = self.serde.dumps_typed(checkpoint)
        described = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        self.checkpoints[key] = (stored, described, parent)
        return _config(*key)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        thread, ns, checkpoint_id = _where(config)
        stored = self.writes.setdefault((thread, ns, checkpoint_id or ""), {})
        for position, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, position)
            if index < 0 or (task_id, index) not in stored:
                stored[task_id, index] = (task_path, channel, self.serde.dumps_typed(value))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns, checkpoint_id = _where(config)
        ids = [i for t, n, i in self.checkpoints if (t, n) == (thread, ns)]
        key = (thread, ns, checkpoint_id or max(ids, default=""))
        return self._tuple(key) if key in self.checkpoints else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        wanted = config["configurable"] if config else {}
        end = get_checkpoint_id(before) if before else None
        for key in sorted(self.checkpoints, key=lambda key: key[2], reverse=True):
            named = dict(zip(("thread_id", "checkpoint_ns", "checkpoint_id"), key, strict=True))
            if any(wanted.get(k) not in (None, v) for k, v in named.items()):
                continue
            found = self._tuple(key)
            if any(found.metadata.get(k) != v for k, v in (filter or {}).items()):
                continue
            if end and key[2] >= end:
                continue
            if limit is not None and limit <= 0:
                return
            limit = None if limit is None else limit - 1
            yield found

    def delete_thread(self, thread_id: str) -> None:
        for stored in (self.checkpoints, self.writes):
            for key in [key for key in stored if key[0] == thread_id]:
                del stored[key]

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    def _tuple(self, key: tuple[str, str, str]) -> CheckpointTuple:
        checkpoint, metadata, parent = self.checkpoints[key]
        writes = self.writes.get(key, {})
        ordered = sorted(writes, key=lambda one: writes_sort_key(writes[one][0], *one))
        return CheckpointTuple(
            config=_config(*key),
            checkpoint=self.serde.loads_typed(checkpoint),
            metadata=self.serde.loads_typed(metadata),
            parent_config=_config(key[0], key[1], parent) if parent else None,
            pending_writes=[
                (one[0], writes[one][1], self.serde.loads_typed(writes[one][2])) for one in ordered
            ],
        )


def _where(config: RunnableConfig) -> tuple[str, str, str | None]:
    named = config["configurable"]
    return named["thread_id"], named.get("checkpoint_ns", ""), get_checkpoint_id(config)


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    named = {
        "thread_id": thread_id,
        "checkpoint_ns": checkpoint_ns,
        "checkpoint_id": checkpoint_id,
    }
    return {"configurable": named}
