"""The REST interface of Cosmos DB as `azure-cosmos` uses it, over HTTP on this machine.

Databases, containers, items, queries and batches; `Server.throttle` makes the next requests fail
with 429. Signatures are not checked. No PATCH, no change feed, no ETag conditions: refused with
405, or not looked at.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from .cosmos_items import Container, Item, RefusedError
from .cosmos_sql import QueryError, query

_PAGE = 100
Database = dict[str, Container]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.databases: dict[str, Database] = {}
        self.lock = threading.RLock()
        self.late = 0.0
        self.throttled = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def clock(self) -> float:
        """Give the time; `late` seconds pass without waiting for them."""
        return time.time() + self.late

    def throttle(self, requests: int) -> None:
        """Answer the next requests with 429 and a millisecond to wait."""
        self.throttled = requests


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    """Run a server in threads of this process."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        text = self.rfile.read(size) if size else b""
        self.more: dict[str, str] = {}
        try:
            if self.server.throttled > 0:
                self.server.throttled -= 1
                self.more["x-ms-retry-after-ms"] = "1"
                raise RefusedError(429, "Request rate is large.")
            status, body = self._route(json.loads(text) if text else None)
        except RefusedError as refused:
            status, body = refused.status, {"code": "Refused", "message": refused.message}
        except QueryError as error:
            status, body = 400, {"code": "BadRequest", "message": f"not in the stand-in: {error}"}
        data = b"" if status == 204 or body is None else json.dumps(body).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(data)),
            "x-ms-activity-id": str(uuid.uuid4()),
            "x-ms-request-charge": "1",
            "x-ms-session-token": "0:-1#1",
        }
        self.send_response(status)
        for name, value in (headers | self.more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815

    def _route(self, body: Any) -> tuple[int, Any]:
        match [unquote(part) for part in urlsplit(self.path).path.split("/") if part]:
            case []:
                return 200, self._account()
            case ["dbs"]:
                return self._add(self.server.databases, body, {})
            case ["dbs", name]:
                return self._one(self.server.databases, name, {"id": name})
            case ["dbs", name, "colls"]:
                container = Container({**body, **_described(body["id"])}, self.server.clock)
                return self._add(self._database(name), body, container)
            case ["dbs", name, "colls", which]:
                spec = self._container(name, which).spec
                return self._one(self._database(name), which, spec)
            case ["dbs", name, "colls", which, "pkranges"]:
                self._container(name, which)
                return 200, {"PartitionKeyRanges": [_WHOLE_RANGE], "_count": 1}
            case ["dbs", name, "colls", which, "docs"]:
                return self._items(self._container(name, which), body)
            case ["dbs", name, "colls", which, "docs", id_]:
                kinds = {"GET": "Read", "DELETE": "Delete"}
                if self.command not in kinds:
                    raise RefusedError(405, f"{self.command} is not in the stand-in")
                container = self._container(name, which)
                done: tuple[int, Any] = container.do(
                    kinds[self.command], self._partition(), id_, body
                )
                return done
        raise RefusedError(404, f"{self.path} is not in the stand-in")

    def _account(self) -> Item:
        here = [{"name": "here", "databaseAccountEndpoint": self.server.url}]
        return {
            "id": "stand-in",
            "writableLocations": here,
            "readableLocations": here,
            "enableMultipleWriteLocations": False,
            "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
            "queryEngineConfiguration": "{}",
        }

    def _add(self, held: dict[str, Any], body: Item, value: Any) -> tuple[int, Item]:
        with self.server.lock:
            if body["id"] in held:
                raise RefusedError(409, "Entity with the specified id already exists.")
            held[body["id"]] = value
        return 201, {**body, **_described(body["id"])}

    def _one(self, held: dict[str, Any], name: str, described: Item) -> tuple[int, Any]:
        with self.server.lock:
            if name not in held:
                raise RefusedError(404, f"{name} does not exist.")
            if self.command == "DELETE":
                del held[name]
                return 204, None
        return 200, {**described, **_described(name)}

    def _database(self, name: str) -> Database:
        if name not in self.server.databases:
            raise RefusedError(404, f"{name} does not exist.")
        return self.server.databases[name]

    def _container(self, database: str, name: str) -> Container:
        if name not in self._database(database):
            raise RefusedError(404, f"{name} does not exist.")
        return self._database(database)[name]

    def _partition(self) -> Any:
        given = self.headers.get("x-ms-documentdb-partitionkey")
        return json.loads(given) if given else None

    def _says(self, header: str) -> bool:
        return (self.headers.get(header) or "").lower() == "true"

    def _items(self, container: Container, body: Any) -> tuple[int, Any]:
        if self.command == "GET":
            return self._page(container.items(self._partition()))
        if self._says("x-ms-cosmos-is-batch-request"):
            return container.batch(self._partition(), body)
        if self._says("x-ms-cosmos-is-query-plan-request"):
            return 200, _PLAN
        if self._says("x-ms-documentdb-isquery") or "query+json" in self.headers["content-type"]:
            given = {one["name"]: one["value"] for one in body.get("parameters") or []}
            return self._page(query(body["query"], given, container.items(self._partition())))
        kind = "Upsert" if self._says("x-ms-documentdb-is-upsert") else "Create"
        stored: tuple[int, Any] = container.do(kind, self._partition(), None, body)
        return stored

    def _page(self, found: list[Any]) -> tuple[int, Item]:
        """Give a page and, as an opaque token, where the next one starts."""
        token = self.headers.get("x-ms-continuation")
        start = int(base64.b64decode(token)) if token else 0
        asked = int(self.headers.get("x-ms-max-item-count") or -1)
        end = start + (asked if asked > 0 else _PAGE)
        if end < len(found):
            self.more["x-ms-continuation"] = base64.b64encode(str(end).encode()).decode()
        return 200, {"_rid": "", "Documents": found[start:end]}


_WHOLE_RANGE = {"id": "0", "minInclusive": "", "maxExclusive": "FF", "parents": []}
_PLAN = {
    "partitionedQueryExecutionInfoVersion": 2,
    "queryInfo": {"distinctType": "None", "rewrittenQuery": "", "hasSelectValue": False},
    "queryRanges": [{"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}],
}


def _described(name: str) -> Item:
    return {"id": name, "_rid": base64.b64encode(name.encode()).decode(), "_ts": 0}
