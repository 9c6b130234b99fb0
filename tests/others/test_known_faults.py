"""Faults of the savers themselves that a user would take for ours: the README's table names them.

Each is shown on the bare saver, and that it is the same behind the wrapper. They are known of one
version, and skipped on others.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from others.conftest import params
from services.door import Door
from services.others import OTHERS, Other, cosmos_environment

from reducing_saver import Discard, ReducingSaver, Window

Saver = BaseCheckpointSaver[Any]
SMALL = Window(keep=("messages", 2), trigger=("messages", 3))


def of(*kinds: str) -> pytest.MarkDecorator:
    names = [name for name in OTHERS if name.partition("-")[0] in kinds]
    return pytest.mark.parametrize("name", params(*names), indirect=True)


@pytest.fixture(autouse=True)
def _known(other: Other) -> None:
    if other.installed != other.version:
        pytest.skip(f"known of {other.package} {other.version}, not {other.installed}")


@pytest.fixture(params=["bare", "wrapped"])
def saver(request: pytest.FixtureRequest, inner: Saver) -> Saver:
    if request.param == "bare":
        return inner
    return ReducingSaver(inner, SMALL, archive=Discard())


def put(saver: Saver, door: Door, thread: str, checkpoint: Any = None) -> Any:
    """Store a checkpoint of two turns."""
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    metadata = {"source": "loop", "step": 1, "parents": {}}
    return door.put(saver, config, checkpoint or two_turns(), metadata, {"messages": "1"})


def two_turns(end: str = "b2") -> Any:
    messages = [HumanMessage("a1"), AIMessage("a2"), HumanMessage("b1"), AIMessage(end)]
    values = {"channel_values": {"messages": messages}, "channel_versions": {"messages": "1"}}
    return {**empty_checkpoint(), **values}


def end_of(found: Any) -> str:
    return str(found.checkpoint["channel_values"]["messages"][-1].content)


@of("cosmosdb", "dynamodb")
def test_more_than_ten_writes_come_back_as_text_is_sorted(saver: Saver, door: Door) -> None:
    at = put(saver, door, "t")
    door.put_writes(saver, at, [("notes", n) for n in range(12)], "task")
    found = [value for _, _, value in door.get_tuple(saver, at).pending_writes]
    assert found == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


@of("azure", "plainredis", "redis", "mongodb")
def test_more_than_ten_writes_keep_their_order(saver: Saver, door: Door) -> None:
    at = put(saver, door, "t")
    door.put_writes(saver, at, [("notes", n) for n in range(12)], "task")
    found = [value for _, _, value in door.get_tuple(saver, at).pending_writes]
    assert found == [*range(12)]


@of("azure")
def test_a_dollar_in_a_thread_id_is_refused(saver: Saver, door: Door) -> None:
    with pytest.raises(ValueError, match=r"'thread_id' must not contain the separator '\$'"):
        put(saver, door, "a$b")


@of("cosmosdb")
def test_a_dollar_in_a_thread_id_is_stored_and_never_read_again(saver: Saver, door: Door) -> None:
    at = put(saver, door, "a$b")
    with pytest.raises(ValueError, match="too many values to unpack"):
        door.get_tuple(saver, at)


@of("azure", "cosmosdb")
@pytest.mark.parametrize("sign", ["/", "\\", "?", "#"], ids=["slash", "back", "question", "hash"])
def test_the_service_refuses_some_signs_in_a_thread_id(saver: Saver, door: Door, sign: str) -> None:
    with pytest.raises(Exception, match=r"[Ii]d contains illegal chars|INVALID_ID|400"):
        put(saver, door, f"a{sign}b")


@of("azure")
def test_nothing_is_listed_without_a_config(saver: Saver, door: Door) -> None:
    put(saver, door, "t")
    assert door.list(saver, None) == []


@of("cosmosdb")
def test_listing_without_a_config_is_a_type_error(saver: Saver, door: Door) -> None:
    with pytest.raises(TypeError, match="subscriptable"):
        door.list(saver, None)


@of("dynamodb")
def test_listing_without_a_config_is_refused(saver: Saver, door: Door) -> None:
    with pytest.raises(ValueError, match="must contain thread_id"):
        door.list(saver, None)


@of("azure", "cosmosdb")
def test_only_the_root_namespace_is_listed_where_none_is_named(saver: Saver, door: Door) -> None:
    put(saver, door, "t")
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "child"}}
    door.put(saver, config, two_turns(), {"source": "loop"}, {"messages": "1"})
    found = door.list(saver, {"configurable": {"thread_id": "t"}})
    assert [one.config["configurable"]["checkpoint_ns"] for one in found] == [""]


@of("cosmosdb")
def test_the_same_checkpoint_again_is_a_conflict(
    saver: Saver, door: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    """So a put that was sent twice raises, and the saver prints to standard output."""
    checkpoint = two_turns()
    put(saver, door, "t", checkpoint)
    with pytest.raises(Exception, match="already exists"):
        put(saver, door, "t", checkpoint)
    assert "Unexpected error (409)" in capsys.readouterr().out


@of("azure", "plainredis", "dynamodb", "mongodb")
def test_the_same_checkpoint_again_takes_the_place_of_the_first(saver: Saver, door: Door) -> None:
    at = put(saver, door, "t", {**two_turns("first"), "id": "1f000000-0000-6000-8000-000000000000"})
    put(saver, door, "t", {**two_turns("second"), "id": at["configurable"]["checkpoint_id"]})
    assert end_of(door.get_tuple(saver, at)) == "second"


@of("redis")
def test_the_sync_door_lists_plain_dicts_for_messages(saver: Saver, door: Door, name: str) -> None:
    """What is loaded for a run holds messages; what `get_state_history` shows does not."""
    at = put(saver, door, "t")
    (found,) = door.list(saver, at)
    kinds = {type(one) for one in found.checkpoint["channel_values"]["messages"]}
    assert kinds == ({dict} if name == "redis-sync" else {HumanMessage, AIMessage})
    assert end_of(door.get_tuple(saver, at)) == "b2"


@of("plainredis")
def test_a_fork_writes_over_the_branch_it_left(inner: Saver, door: Door) -> None:
    """Versions are whole numbers, the same in both branches, and a value is kept by version."""
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {"messages": [AIMessage("yes")]})
    builder.add_edge(START, "talk")
    graph = builder.compile(checkpointer=inner)
    config: Any = {"configurable": {"thread_id": "t"}}
    for text in ("first", "second"):
        door.invoke(graph, {"messages": [HumanMessage(text)]}, config)
    rests = [one for one in door.get_state_history(graph, config) if not one.next]

    door.invoke(graph, {"messages": [HumanMessage("fork")]}, rests[1].config)

    left = door.get_state(graph, rests[0].config).values["messages"]
    assert [message.text for message in left] == ["first", "yes", "fork", "yes"]


@pytest.mark.parametrize("name", ["cosmosdb-sync"], indirect=True)
def test_from_conn_info_shuffles_its_arguments(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is taken for a database, the key for a container, the database for a reducer."""
    from langgraph_checkpoint_cosmosdb import CosmosDBSaver

    monkeypatch.delenv("COSMOSDB_ENDPOINT", raising=False)
    named = {"database_name": "database", "container_name": "container"}
    where = {"endpoint": server["endpoint"], "key": server["key"]}
    with (
        pytest.raises(ValueError, match="COSMOSDB_ENDPOINT environment variable is not set"),
        CosmosDBSaver.from_conn_info(**where, **named),
    ):
        pass
    with (
        cosmos_environment(server),
        pytest.raises(RuntimeError, match="unexpected error"),
        CosmosDBSaver.from_conn_info(**where, **named),
    ):
        pass


@pytest.mark.parametrize("name", ["azure-sync"], indirect=True)
def test_the_sync_class_takes_no_serializer(server: Any, inner: Saver) -> None:
    from langchain_azure_cosmosdb import CosmosDBSaverSync

    with pytest.raises(TypeError, match="serde"):
        CosmosDBSaverSync("database", "container", endpoint=server["endpoint"], serde=inner.serde)


@of("cosmosdb")
def test_a_load_reads_every_checkpoint_of_the_thread(
    make_other: Callable[[], Saver], door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each one costs request units at every load: small ones cost less."""
    sizes = []
    for wrap in (lambda inner: inner, lambda inner: ReducingSaver(inner, SMALL, archive=Discard())):
        saver = wrap(make_other())
        thread = str(uuid.uuid4())
        for _ in range(3):
            put(saver, door, thread)
        container = getattr(saver, "inner", saver).container
        ask, read = container.query_items, []

        def query(*args: Any, ask: Any = ask, read: Any = read, **kwargs: Any) -> Any:
            for item in ask(*args, **kwargs):
                read.append(len(item["checkpoint"]))
                yield item

        monkeypatch.setattr(container, "query_items", query)
        door.get_tuple(saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        assert len(read) == 3 + 1
        sizes.append(sum(read))
    assert sizes[1] < sizes[0]
