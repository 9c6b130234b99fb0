"""A Cosmos DB for the tests: your own, Microsoft's emulator or a stand-in, in this order.

1. `$REDUCING_TEST_COSMOS_ENDPOINT`, with `$REDUCING_TEST_COSMOS_KEY` (the emulator's well-known key
   if it is not set): an account, or the emulator of docker-compose.yml. If it is set and does not
   answer, that is an error, never a reason to go on.
2. Microsoft's vNext emulator in a container, by testcontainers, where Docker is.
3. A stand-in: `services.cosmos_http` speaks REST to the real `azure-cosmos` SDK over real HTTP. It
   is no Cosmos DB: what it knows is in `services.cosmos_items` and `services.cosmos_sql`.

Nothing real can be installed without Docker. Which one was used stands in the header of the run,
and again at its end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator

from . import cosmos_http, images
from .owner import UnavailableError

ENDPOINT_VARIABLE = "REDUCING_TEST_COSMOS_ENDPOINT"
KEY_VARIABLE = "REDUCING_TEST_COSMOS_KEY"
EMULATOR_KEY = (
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
)
"""The key of every emulator, published by Microsoft. Not a secret."""

STAND_IN = "a stand-in over HTTP, not a real Cosmos DB"


def plan() -> str:
    """Say which Cosmos DB a test would get, without starting one."""
    if os.environ.get(ENDPOINT_VARIABLE):
        return f"${ENDPOINT_VARIABLE}"
    try:
        return f"the container {_image()}"
    except UnavailableError as reason:
        return f"{STAND_IN} ({reason})"


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Give endpoint, key and kind of the first that can be had; stop it if it was started here."""
    with contextlib.ExitStack() as stack:
        found = None
        for way in (_from_environment, _from_container):
            with contextlib.suppress(UnavailableError):
                found = stack.enter_context(way())
                break
        yield found or stack.enter_context(_stand_in())


def describe(found: dict[str, str]) -> str:
    return f"{found['kind']}, {found['endpoint']}"


@contextlib.contextmanager
def database(found: dict[str, str]) -> Iterator[str]:
    """Give the name of a database that nobody uses yet, and drop it afterwards."""
    from azure.cosmos import CosmosClient
    from azure.cosmos.exceptions import CosmosResourceNotFoundError

    name = f"test_{uuid.uuid4().hex}"
    yield name
    with (
        CosmosClient(found["endpoint"], found["key"]) as client,
        contextlib.suppress(CosmosResourceNotFoundError),
    ):
        client.delete_database(name)


@contextlib.contextmanager
def _from_environment() -> Iterator[dict[str, str]]:
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint:
        raise UnavailableError(f"${ENDPOINT_VARIABLE} is not set")
    key = os.environ.get(KEY_VARIABLE) or EMULATOR_KEY
    yield {"endpoint": endpoint, "key": key, "kind": f"${ENDPOINT_VARIABLE}"}


@contextlib.contextmanager
def _from_container() -> Iterator[dict[str, str]]:
    image = _image()
    try:
        from testcontainers.core.container import DockerContainer

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Clients are sent on to the port it listens on, so both sides have the same one.
        container = DockerContainer(image).with_bind_ports(port, port).with_exposed_ports(8080)
        container.with_env("PROTOCOL", "http").with_env("PORT", str(port))
        container.with_env("ENABLE_EXPLORER", "false").with_env("ENABLE_TELEMETRY", "false")
        container.start()
    except Exception as error:  # whatever Docker says, as where the image cannot be had
        raise UnavailableError(f"testcontainers: {error}") from error
    try:
        host = container.get_container_host_ip()
        _wait_for(f"http://{host}:{container.get_exposed_port(8080)}/ready")
        yield {"endpoint": f"http://{host}:{port}", "key": EMULATOR_KEY, "kind": image}
    finally:
        container.stop()


@contextlib.contextmanager
def _stand_in() -> Iterator[dict[str, str]]:
    with cosmos_http.serve() as server:
        yield {"endpoint": server.url, "key": EMULATOR_KEY, "kind": STAND_IN}


def _image() -> str:
    """Name the emulator's image, where there is a Docker to run it."""
    try:
        import docker

        client = docker.from_env(timeout=2)
        client.ping()
        client.close()
    except Exception as error:  # the library, its socket or its daemon are missing
        raise UnavailableError("no Docker") from error
    return images.named("cosmos")


def _wait_for(url: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:  # refused, reset, or an HTTP status that says not yet
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
