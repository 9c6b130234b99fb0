"""Fixtures for everybody. A test that asks for `inner` or `door` runs once per backend.

    def test_what_is_put_comes_back(inner, door):
        saver = ReducingSaver(inner, Window(keep=("turns", 6)))
        graph = builder.compile(checkpointer=saver)
        door.invoke(graph, {"messages": [...]}, config)         # invoke, or ainvoke on one loop
        stored = door.get_tuple(saver.inner, config)            # read back past the wrapper

- `backend`: a kind of saver and a door; all of them are in `services.savers.BACKENDS`. To narrow a
  test: `@pytest.mark.parametrize("backend", ["sqlite-sync"], indirect=True)`.
- `door`: calls savers and graphs the sync or the async way, see `services.door`.
- `inner`: an empty, ready saver of that kind, closed for you.
- `make_inner`: `make_inner()` opens another empty one; `make_inner("a")` twice opens the same store
  twice, through two connections.
- `make_database`: `make_database()` gives the DSN of a new, empty Postgres database, dropped for
  you. Without any Postgres the test is skipped with the reasons, or fails if REDUCING_TEST_REQUIRE
  is 1. See `services.postgres` for where the server comes from.
- `cosmos_server`: the endpoint and key of a Cosmos DB, see `services.cosmos`.
- `real_conversations`: 100 real tool-using conversations, `[{"id", "messages"}, ...]` in OpenAI's
  format; skips where the file is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from langgraph.checkpoint.base import BaseCheckpointSaver
from services import cosmos, owner, postgres
from services.door import DOORS, Door
from services.savers import BACKENDS, Backend, Stores, open_saver

ROOT = Path(__file__).parents[1]
CONVERSATIONS = ROOT.parent / "shared" / "data" / "airline_conversations.json"
SERVERS = {"postgres": postgres.server, "cosmos": cosmos.server}
# The suite is the same on every run, so that it fails for a change only; a campaign searches.
settings.register_profile("suite", derandomize=os.environ.get("REDUCING_TEST_CAMPAIGN") != "1")
settings.load_profile("suite")
OWNERS = pytest.StashKey[dict[str, owner.Owner]]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the xdist controller, or the only process
        config.stash[OWNERS] = {name: owner.Owner(name, SERVERS[name]) for name in SERVERS}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    owners = node.config.stash[OWNERS]
    node.workerinput["servers"] = {name: str(owners[name].folder) for name in owners}


def pytest_unconfigure(config: pytest.Config) -> None:
    for each in config.stash.get(OWNERS, {}).values():
        each.close()


def pytest_report_header() -> str:
    return f"cosmos: {cosmos.plan()}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    used = config.stash[OWNERS]["cosmos"].found()
    if used is not None:
        terminalreporter.write_line(f"cosmos: used {cosmos.describe(used)}")


def ask_for(name: str, config: pytest.Config) -> Any:
    """Give a server of the run; skip without one, or fail where REDUCING_TEST_REQUIRE is 1."""
    if OWNERS in config.stash:
        folder = config.stash[OWNERS][name].folder
    else:
        folder = Path(config.workerinput["servers"][name])  # type: ignore[attr-defined]
    try:
        return owner.ask(folder)
    except owner.UnavailableError as reason:
        if os.environ.get("REDUCING_TEST_REQUIRE") == "1":
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    return ask_for("postgres", pytestconfig)


@pytest.fixture(scope="session")
def cosmos_server(pytestconfig: pytest.Config) -> dict[str, str]:
    return ask_for("cosmos", pytestconfig)


@pytest.fixture
def make_database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    with contextlib.ExitStack() as stack:

        def make() -> str:  # the server is looked up here: no test starts one in vain
            server = request.getfixturevalue("postgres_server")
            return stack.enter_context(postgres.database(server))

        yield make


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend.named(request.param)


@pytest.fixture
def door(backend: Backend, make_database: object) -> Iterator[Door]:
    door = DOORS[backend.door]()  # after `make_database`, so closed before databases are dropped
    yield door
    door.close()


@pytest.fixture
def make_inner(
    backend: Backend, door: Door, make_database: Callable[[], str], tmp_path: Path
) -> Callable[..., BaseCheckpointSaver[Any]]:
    stores = Stores(tmp_path, make_database)
    unnamed = iter(range(1_000_000))

    def make(name: str | None = None) -> BaseCheckpointSaver[Any]:
        return open_saver(backend.kind, door, stores, name or f"store-{next(unnamed)}")

    return make


@pytest.fixture
def inner(make_inner: Callable[..., BaseCheckpointSaver[Any]]) -> BaseCheckpointSaver[Any]:
    return make_inner()


@pytest.fixture(scope="session")
def real_conversations() -> list[dict[str, Any]]:
    if not CONVERSATIONS.exists():
        pytest.skip(f"{CONVERSATIONS.name} is not beside this checkout")
    return json.loads(CONVERSATIONS.read_text(encoding="utf-8"))
