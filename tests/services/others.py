"""Savers of third parties that the tests wrap, each behind the doors it has.

`OTHERS` says what each needs; `open_other` opens one on a named store, as `services.savers` does.
What `.[dev]` does not install is optional: its tests have the marker `others` and are skipped where
the package or its server is missing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from . import dynamodb
from .door import Door

MONGODB_VARIABLE = "REDUCING_TEST_MONGODB_URL"
BASE = frozenset({"put", "put_writes", "get_tuple", "list", "delete_thread"})


@dataclass(frozen=True, slots=True)
class Other:
    """Say what is known of a saver behind one of its doors.

    - `package`, `version`: what was tested; known faults are those of this version.
    - `detects`: the capabilities that LangGraph's conformance suite sees.
    - `largest`: about how many bytes a checkpoint may have, where the database sets a limit.
    """

    package: str
    version: str
    server: str
    door: str
    detects: frozenset[str] = BASE
    largest: int | None = None
    optional: bool = False

    @property
    def installed(self) -> str | None:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def _both(name: str, *what: str, **more: Any) -> dict[str, Other]:
    return {f"{name}-{door}": Other(*what, door, **more) for door in ("sync", "async")}


_MORE = frozenset({"copy_thread", "delete_for_runs", "prune"})
_ITEM = 1_450_000  # 2 MB as base64, with room for metadata
_DYNAMODB_ITEM = 380_000

OTHERS: dict[str, Other] = {
    **_both(
        "azure",
        *("langchain-azure-cosmosdb", "1.0.1", "cosmos"),
        detects=BASE - {"delete_thread"},
        largest=_ITEM,
    ),
    **_both(
        "cosmosdb",
        *("langgraph-checkpoint-cosmosdb", "0.4.0", "cosmos"),
        detects=BASE | _MORE,
        largest=_ITEM,
    ),
    **_both("plainredis", "langgraph-checkpoint-plainredis", "0.1.0", "redis"),
    **_both(
        "redis",
        *("langgraph-checkpoint-redis", "0.5.2", "redis_stack"),
        detects=BASE | {"prune"},
        optional=True,
    ),
    **_both(
        "dynamodb",
        *("langgraph-checkpoint-aws", "1.2.6", "dynamodb"),
        largest=_DYNAMODB_ITEM,
        optional=True,
    ),
    **_both("mongodb", "langgraph-checkpoint-mongodb", "0.5.1", "mongodb", optional=True),
}


def open_other(name: str, door: Door, server: Any, store: str) -> BaseCheckpointSaver[Any]:
    """Open a saver on a store: a database, a table or a prefix of its own, made where it is new."""
    match name:
        case "azure-sync":
            from langchain_azure_cosmosdb import CosmosDBSaverSync

            where = {"endpoint": server["endpoint"], "key": server["key"]}
            return door.open(CosmosDBSaverSync(store, "checkpoints", **where))
        case "azure-async":
            from langchain_azure_cosmosdb.aio import CosmosDBSaver

            where = {"endpoint": server["endpoint"], "key": server["key"]}
            named = {"database_name": store, "container_name": "checkpoints"}
            return door.open(CosmosDBSaver.from_conn_info(**where, **named))
        case "cosmosdb-sync" | "cosmosdb-async":
            from langgraph_checkpoint_cosmosdb import CosmosDBSaver as Community

            with cosmos_environment(server):  # the only way to tell it
                saver = Community(store, "checkpoints")
            door.open(contextlib.closing(saver.client))
            return saver
        case "plainredis-sync":
            from langgraph_checkpoint_plainredis import RedisSaver as Plain

            return door.open(contextlib.closing(Plain(url=server, prefix=store)))
        case "plainredis-async":
            from langgraph_checkpoint_plainredis import AsyncRedisSaver as AsyncPlain

            return door.open(contextlib.aclosing(AsyncPlain(url=server, prefix=store)))
        case "redis-sync":
            from langgraph.checkpoint.redis import RedisSaver

            saver = door.open(RedisSaver.from_conn_string(server, **_prefixes(store)))
            saver.setup()
            return saver
        case "redis-async":
            from langgraph.checkpoint.redis.aio import AsyncRedisSaver

            saver = door.open(AsyncRedisSaver.from_conn_string(server, **_prefixes(store)))
            door.finish(saver.asetup())
            return saver
        case "dynamodb-sync" | "dynamodb-async":
            from langgraph_checkpoint_aws import DynamoDBSaver

            dynamodb.make_table(server, store)
            return DynamoDBSaver(store, session=dynamodb.session(), endpoint_url=server)
        case "mongodb-sync" | "mongodb-async":
            from langgraph.checkpoint.mongodb import MongoDBSaver

            return door.open(MongoDBSaver.from_conn_string(server, store))
    raise ValueError(f"no such saver: {name}")


@contextlib.contextmanager
def cosmos_environment(server: dict[str, str]) -> Iterator[None]:
    """Set the variables that `langgraph-checkpoint-cosmosdb` reads, for the time of a call."""
    set_here = {"COSMOSDB_ENDPOINT": server["endpoint"], "COSMOSDB_KEY": server["key"]}
    before = {name: os.environ.get(name) for name in set_here}
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _prefixes(store: str) -> dict[str, str]:
    return {"checkpoint_prefix": f"{store}_c", "checkpoint_write_prefix": f"{store}_w"}
