"""What the tests' Cosmos DB answers the real `azure-cosmos` SDK.

Whichever it is, see `services.cosmos`. What only the stand-in can do is tested on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from services import cosmos, cosmos_http, images

azure = pytest.importorskip("azure.cosmos")
exceptions = azure.exceptions


@pytest.fixture
def stand_in() -> Iterator[cosmos_http.Server]:
    with cosmos_http.serve() as server:
        yield server


def make_container(endpoint: str, database: str, **options: Any) -> Any:
    client = azure.CosmosClient(endpoint, cosmos.EMULATOR_KEY)
    key = azure.PartitionKey("/pk")
    return client.create_database_if_not_exists(database).create_container_if_not_exists(
        "items", key, **options
    )


@pytest.fixture
def container(cosmos_server: dict[str, str]) -> Iterator[Any]:
    with cosmos.database(cosmos_server) as name:
        client = azure.CosmosClient(cosmos_server["endpoint"], cosmos_server["key"])
        database = client.create_database_if_not_exists(name)
        yield database.create_container_if_not_exists("items", azure.PartitionKey("/pk"))
        client.close()


def test_an_item_is_created_once_read_and_deleted(container: Any) -> None:
    container.create_item({"id": "a", "pk": "p", "text": "héé 漢字 😀 \x01 \\"})
    with pytest.raises(exceptions.CosmosResourceExistsError):
        container.create_item({"id": "a", "pk": "p"})
    container.upsert_item({"id": "a", "pk": "q"})
    assert container.read_item("a", "p")["text"] == "héé 漢字 😀 \x01 \\"
    container.delete_item("a", "p")
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        container.read_item("a", "p")
    assert container.read_item("a", "q")["pk"] == "q"


def test_an_item_has_at_most_two_megabytes(container: Any) -> None:
    container.upsert_item({"id": "a", "pk": "p", "text": "x" * 1_900_000})
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        container.upsert_item({"id": "b", "pk": "p", "text": "x" * 2_200_000})
    assert refused.value.status_code == 413


def test_queries_select_order_limit_and_page(container: Any) -> None:
    for number in range(25):
        container.upsert_item({"id": f"i{number:02}", "pk": f"p{number % 2}", "n": number})
    named = [{"name": "@p", "value": "p0"}]

    newest = "SELECT TOP 2 c.id FROM c WHERE c.pk = @p ORDER BY c.id DESC"
    found = container.query_items(newest, parameters=named, partition_key="p0")
    assert [item["id"] for item in found] == ["i24", "i22"]

    every = "SELECT * FROM c WHERE c.pk = @p"
    pages = container.query_items(every, parameters=named, partition_key="p0", max_item_count=5)
    assert sum(len([*page]) for page in pages.by_page()) == 13

    starts = 'SELECT c["id"] FROM c WHERE STARTSWITH(c["pk"], @p)'
    across = {"parameters": [{"name": "@p", "value": "p"}], "enable_cross_partition_query": True}
    assert len([*container.query_items(starts, **across)]) == 25


def test_a_batch_is_done_whole_or_not_at_all(container: Any) -> None:
    done = container.execute_item_batch(
        [("create", ({"id": "a", "pk": "p"},)), ("read", ("a",)), ("delete", ("a",))], "p"
    )
    assert [one["statusCode"] for one in done] == [201, 200, 204]
    container.create_item({"id": "there", "pk": "p"})
    twice = [("create", ({"id": "b", "pk": "p"},)), ("create", ({"id": "there", "pk": "p"},))]
    with pytest.raises(exceptions.CosmosBatchOperationError):
        container.execute_item_batch(twice, "p")
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        container.read_item("b", "p")


def test_the_sdk_tries_again_when_throttled(stand_in: cosmos_http.Server) -> None:
    container = make_container(stand_in.url, "d")
    stand_in.throttle(3)
    container.create_item({"id": "a", "pk": "p"})
    assert stand_in.throttled == 0
    assert container.read_item("a", "p")["id"] == "a"


def test_an_item_lives_as_long_as_it_says(stand_in: cosmos_http.Server) -> None:
    container = make_container(stand_in.url, "d", default_ttl=-1)
    container.create_item({"id": "short", "pk": "p", "ttl": 60})
    container.create_item({"id": "long", "pk": "p"})
    stand_in.late = 61
    assert [item["id"] for item in container.read_all_items()] == ["long"]


def test_the_stand_in_refuses_what_it_does_not_know(stand_in: cosmos_http.Server) -> None:
    container = make_container(stand_in.url, "d")
    with pytest.raises(exceptions.CosmosHttpResponseError, match="not in the stand-in"):
        [*container.query_items("SELECT c.a + 1 FROM c", partition_key="p")]
    with pytest.raises(exceptions.CosmosHttpResponseError, match="not in the stand-in"):
        container.patch_item("a", "p", [{"op": "set", "path": "/n", "value": 1}])


def test_the_header_says_which_one_is_used(
    monkeypatch: pytest.MonkeyPatch, cosmos_server: dict[str, str]
) -> None:
    assert cosmos_server["endpoint"] in cosmos.describe(cosmos_server)
    monkeypatch.setenv(cosmos.ENDPOINT_VARIABLE, "http://localhost:8081")
    assert cosmos.plan() == f"${cosmos.ENDPOINT_VARIABLE}"
    with cosmos.server() as found:
        assert found["endpoint"] == "http://localhost:8081"


def test_every_image_is_pinned_and_has_a_health_check() -> None:
    services = yaml.safe_load(images.COMPOSE.read_text(encoding="utf-8"))["services"]
    assert {*services} == {"postgres", "cosmos"}
    for name, service in services.items():
        tag = images.named(name).partition(":")[2]
        assert any(sign.isdigit() for sign in tag), f"{name} has no version"
        assert service["healthcheck"]["test"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
