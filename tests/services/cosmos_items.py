"""What a Cosmos DB container does with items, in memory: partitions, limits, time to live, batches.

Learnt from the service's documented limits and from `azure-cosmos` 4.17: an item has at most 2 MB
as UTF-8 JSON, an id at most 1023 characters and none of `/ \\ ? #`, a batch at most 100 operations
of one partition, all or nothing.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

Item = dict[str, Any]
Key = tuple[str, str]  # the partition as JSON, and the id

LARGEST_ITEM = 2 * 1024 * 1024
LONGEST_ID = 1023
LARGEST_BATCH = 100
_SYSTEM = ("_rid", "_self", "_etag", "_ts", "_attachments")


class RefusedError(Exception):
    """The service says no, with an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Container:
    """Hold the items of one container. Thread-safe."""

    def __init__(self, spec: Item, clock: Callable[[], float] = time.time) -> None:
        self.spec, self._clock, self._lock = spec, clock, threading.RLock()
        self._path = spec["partitionKey"]["paths"][0].strip("/")
        self._items: dict[Key, tuple[float, Item]] = {}

    def items(self, partition: Any = None) -> list[Item]:
        """Give all items, or those of a partition (as the header has it: a list of one value)."""
        wanted = None if partition is None else json.dumps(partition)
        with self._lock:
            kept = [*self._items.items()]
        return [
            item
            for (where, _), (at, item) in kept
            if wanted in (None, where) and self._lives(at, item)
        ]

    def do(self, kind: str, partition: Any, id_: str | None = None, item: Any = None) -> Any:
        """Do one operation: give the HTTP status and the item, or raise `RefusedError`."""
        with self._lock:
            if kind in ("Create", "Upsert"):
                return self._store(kind, partition, item)
            key = (json.dumps(partition), id_ or "")
            at, held = self._items.get(key, (0.0, None))
            if held is None or not self._lives(at, held):
                raise RefusedError(404, "Entity with the specified id does not exist.")
            match kind:
                case "Read":
                    return 200, held
                case "Delete":
                    del self._items[key]
                    return 204, None
        raise RefusedError(400, f"{kind} is not in the stand-in")

    def batch(self, partition: Any, operations: list[Item]) -> tuple[int, list[Item]]:
        """Do all operations or none, and give the results of each."""
        if len(operations) > LARGEST_BATCH:
            raise RefusedError(400, "Batch request has more operations than what is supported.")
        _limit(operations)
        with self._lock:
            before, results = dict(self._items), []
            for position, one in enumerate(operations):
                try:
                    status, item = self.do(
                        one["operationType"], partition, one.get("id"), one.get("resourceBody")
                    )
                except RefusedError as refused:
                    self._items = before
                    failed: list[Item] = [{"statusCode": 424} for _ in operations]
                    failed[position] = {"statusCode": refused.status}
                    return 207, failed
                results.append({"statusCode": status, "resourceBody": item})
            return 200, results

    def _store(self, kind: str, partition: Any, item: Item) -> tuple[int, Item]:
        own = [item.get(self._path, {})]
        partition = own if partition is None else partition
        if own != partition:
            raise RefusedError(400, "The partition key of the item is not the one in the header.")
        at, held = self._items.get((json.dumps(partition), str(item.get("id"))), (0.0, None))
        known = held is not None and self._lives(at, held)
        if known and kind == "Create":
            raise RefusedError(409, "Entity with the specified id already exists in the system.")
        return (200 if known else 201), self._keep(partition, item)

    def _keep(self, partition: Any, item: Item) -> Item:
        id_ = item.get("id")
        if not isinstance(id_, str) or not 0 < len(id_) <= LONGEST_ID or re.search(r"[/\\?#]", id_):
            raise RefusedError(400, "The id is missing, too long or has one of / \\ ? #")
        body = {name: value for name, value in item.items() if name not in _SYSTEM}
        _limit(body)
        etag = f'"{uuid.uuid4()}"'
        kept = {**body, "_rid": uuid.uuid4().hex, "_etag": etag, "_ts": int(self._clock())}
        self._items[json.dumps(partition), id_] = (self._clock(), kept)
        return kept

    def _lives(self, at: float, item: Item) -> bool:
        """Look at `ttl`, which counts only where the container has a default."""
        if self.spec.get("defaultTtl") is None:
            return True
        seconds = item.get("ttl", self.spec["defaultTtl"])
        return seconds == -1 or at + seconds > self._clock()


def _limit(body: Any) -> None:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode()) > LARGEST_ITEM:
        raise RefusedError(413, "Request size is too large")
