"""`house`, as in the tests of memory: a saver and a store of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from memory.houses import HOUSES, House, opened
from services import postgres


@pytest.fixture(scope="module", params=HOUSES)
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    with contextlib.ExitStack() as stack:

        def make_database() -> str:  # the server is looked up here: no test starts one in vain
            server = request.getfixturevalue("postgres_server")
            return stack.enter_context(postgres.database(server))

        yield stack.enter_context(
            opened(request.param, tmp_path_factory.mktemp("house"), make_database)
        )
