"""Fixtures for the savers of third parties: a test that asks for `other` runs once for each.

- `other`: what is known of it, see `services.others`. Optional ones have the marker `others`.
- `door`: calls savers and graphs the sync or the async way.
- `make_other`: `make_other()` opens another empty one.
- `inner`: an empty, ready saver, closed for you.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from services import cosmos, dynamodb, redis
from services.door import DOORS, Door
from services.others import MONGODB_VARIABLE, OTHERS, Other, open_other
from services.owner import UnavailableError

Saver = BaseCheckpointSaver[Any]


def params(*names: str) -> list[Any]:
    """Give the named savers, or all, as pytest parameters."""
    chosen = names or tuple(OTHERS)
    return [
        pytest.param(name, marks=[pytest.mark.others] if OTHERS[name].optional else [])
        for name in chosen
    ]


@pytest.fixture(params=params())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def other(name: str) -> Other:
    found = OTHERS[name]
    if found.installed is None:
        give_up(found, f"{found.package} is not installed")
    return found


def give_up(other: Other, reason: str) -> NoReturn:
    """Skip, or fail where REDUCING_TEST_REQUIRE is 1 and `.[dev]` installs what is missing."""
    if os.environ.get("REDUCING_TEST_REQUIRE") == "1" and not other.optional:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def door(other: Other) -> Iterator[Door]:
    door = DOORS[other.door]()
    yield door
    door.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Any]]:
    """Start what this process needs itself, each when the first test asks."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(server: str) -> Any:
            try:
                return stack.enter_context(_START[server]())
            except UnavailableError as reason:
                return reason

        yield start


@contextlib.contextmanager
def _mongodb() -> Iterator[str]:
    url = os.environ.get(MONGODB_VARIABLE)
    if not url:
        raise UnavailableError(f"no MongoDB: ${MONGODB_VARIABLE} is not set, and no wheel has one")
    yield url


_START: dict[str, Callable[[], Any]] = {
    "redis": lambda: redis.server(modules=False),
    "redis_stack": lambda: redis.server(modules=True),
    "dynamodb": dynamodb.server,
    "mongodb": _mongodb,
}


@pytest.fixture
def server(request: pytest.FixtureRequest, other: Other) -> Any:
    if other.server == "cosmos":
        return request.getfixturevalue("cosmos_server")
    found = request.getfixturevalue("servers")(other.server)
    if isinstance(found, UnavailableError):
        give_up(other, str(found))
    return found


@pytest.fixture
def make_other(name: str, other: Other, server: Any, door: Door) -> Iterator[Callable[[], Saver]]:
    with contextlib.ExitStack() as stack:

        def make() -> Saver:
            store = f"test_{uuid.uuid4().hex}"
            if other.server == "cosmos":
                store = stack.enter_context(cosmos.database(server))
            return open_other(name, door, server, store)

        yield make


@pytest.fixture
def inner(make_other: Callable[[], Saver]) -> Saver:
    return make_other()
