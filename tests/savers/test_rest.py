"""When a checkpoint is at rest, and what is stored then: S5 and S5b, on the scenes' graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel._checkpoint import _mark_bumps_seen
from langgraph.types import interrupt
from savers.scenarios import (
    SCENES,
    STEADY,
    Record,
    Scene,
    Stage,
    ask,
    brief,
    key,
    namespace,
    play,
    read,
    reply,
    say,
    talking,
    turns,
)
from services.door import Door
from services.savers import IntMemorySaver

from reducing_saver import Discard, ReducingSaver, Window, reduce_messages
from reducing_saver._channel import at_rest, move

WINDOW = Window(("messages", 2), ("messages", 3), ("messages", 1_000))
CAPPED = Window(("messages", 2), ("messages", 3), ("messages", 5))

COMPARED = 1_050
"""How many checkpoints of the scenes are compared with the `next` of their states, at least."""


def kept(inner: Any, window: Window = WINDOW, **settings: Any) -> ReducingSaver:
    return ReducingSaver(inner, window, archive=Discard(), **settings)


def identity(found: CheckpointTuple) -> tuple[str, str]:
    return namespace(found), found.checkpoint["id"]


# The rule itself


def states(record: Record) -> Iterator[tuple[CheckpointTuple, tuple[str, ...]]]:
    """Give every stored checkpoint for which LangGraph shows a state, and the state's `next`."""
    stored = {identity(found): found for found in record.stored}
    for ns in dict.fromkeys(map(namespace, record.stored)):
        if ns and not _has_states(record, ns):
            continue
        config = {"configurable": {"thread_id": record.stage.thread, "checkpoint_ns": ns}}
        for state in record.stage.graph.get_state_history(config):
            yield stored[ns, state.config["configurable"]["checkpoint_id"]], state.next


def _has_states(record: Record, ns: str) -> bool:
    """Tell whether LangGraph finds the subgraph: it does not where a function closes over it."""
    plain = "|".join(part.partition(":")[0] for part in ns.split("|"))
    return any(name == plain for name, _ in record.stage.graph.get_subgraphs(recurse=True))


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_at_rest_agrees_with_what_langgraph_would_run_next(scene: Scene, wrapped: bool) -> None:
    inner = InMemorySaver()
    saver = kept(inner, CAPPED, channels=scene.channels) if wrapped else inner
    record = play(scene, saver, Door(), inner=inner)

    wrong = [
        (found.metadata["step"], names, found.checkpoint["channel_values"])
        for found, names in states(record)
        if at_rest(found.checkpoint) != (not names)
    ]
    assert wrong == []


def test_enough_checkpoints_are_compared() -> None:
    records = [play(scene, InMemorySaver(), Door()) for scene in SCENES.values()]
    pairs = [pair for record in records for pair in states(record)]

    assert len(pairs) >= COMPARED
    assert sum(not names for _, names in pairs) >= COMPARED // 4


# What is stored, on every saver


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_every_saver_holds_the_same_list_at_every_step(
    scene: Scene, stores: dict[str, Any]
) -> None:
    """C54: SQLite stores the whole state each time, Postgres only what has a new version."""
    lists = {}
    for name, inner in stores.items():
        saver = kept(inner, CAPPED, channels=scene.channels)
        record = play(scene, saver, Door(), inner=inner)
        lists[name] = [
            (found.metadata["step"], channel, [*map(key, read(found, channel) or ())])
            for found in record.stored
            for channel in scene.channels
        ]
    first, *others = lists
    for other in others:
        assert lists[other] == lists[first], f"{other} and {first}"


@pytest.fixture(scope="module")
def stores(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[dict[str, Any]]:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.sqlite import SqliteSaver
    from services import postgres

    path = tmp_path_factory.mktemp("rest") / "rest.db"
    server = request.getfixturevalue("postgres_server")
    with (
        postgres.database(server) as dsn,
        PostgresSaver.from_conn_string(dsn) as on_postgres,
        SqliteSaver.from_conn_string(str(path)) as sqlite,
    ):
        on_postgres.setup()
        yield {
            "memory": InMemorySaver(),
            "inline": IntMemorySaver(),
            "sqlite": sqlite,
            "postgres": on_postgres,
        }


# What is stored, step by step


def expected(bare: Record, window: Window) -> dict[int, list[Any]]:
    """Tell from a bare run which list each checkpoint must hold, by its place in the record.

    In the middle of a run that is the bare list less what its line of parents has evicted; at rest
    the same, reduced. LangGraph's own `next` tells which is which.
    """
    waiting = {identity(found): bool(names) for found, names in states(bare)}
    gone: dict[str | None, set[Any]] = {None: set()}
    lists = {}
    for place, found in enumerate(bare.stored):
        if namespace(found) or (full := read(found)) is None:
            continue
        before = gone.get(_parent(found), set())
        left = [message for message in full if _name(message) not in before]
        if not waiting[identity(found)]:
            reduced = reduce_messages(left, window)
            left, before = reduced.messages, {*before, *map(_name, reduced.evicted)}
        gone[found.checkpoint["id"]] = before
        lists[place] = left
    return lists


def _parent(found: CheckpointTuple) -> str | None:
    return found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None


def _name(message: Any) -> Any:
    return key(message) if isinstance(message, dict) else message.id


STRAIGHT = [
    scene
    for scene in SCENES.values()
    if not (scene.resumes or scene.delta) and scene.channels == ("messages",)
]


@pytest.mark.parametrize("scene", STRAIGHT, ids=[scene.name for scene in STRAIGHT])
def test_a_list_is_reduced_at_rest_and_whole_before_that(scene: Scene, inner: Any) -> None:
    bare = play(scene, InMemorySaver(), Door())
    record = play(scene, kept(inner), Door(), inner=inner)

    for place, left in expected(bare, WINDOW).items():
        stored = read(record.stored[place])
        assert stored is not None
        assert [*map(key, stored)] == [*map(key, left)], (
            f"step {record.stored[place].metadata['step']} holds {brief(stored)}"
        )


test_a_list_is_reduced_at_rest_and_whole_before_that = pytest.mark.parametrize(
    "backend", ["memory-sync", "sqlite-sync"], indirect=True
)(test_a_list_is_reduced_at_rest_and_whole_before_that)


LAST = {
    "a node that writes messages": ("chat", 5),
    "a silent node": ("silent_last_node", 4),
    "a node that writes elsewhere": ("last_node_writes_elsewhere", 4),
    "a join": ("join", 3),
    "a deferred join": ("deferred_join", 4),
    "a deferred node": ("deferred_node", 3),
    "one arm of a join that stays partial": ("partial_join", 4),
    "one arm of a deferred join": ("partial_deferred_join", 4),
    "arms of a join, turn by turn": ("join_after_rounds", 5),
    "a parallel node": ("fan_out", 3),
    "a reducing node": ("map_reduce", 3),
    "a subgraph": ("subgraph_with_memory", 4),
}


@pytest.mark.parametrize(("name", "count"), LAST.values(), ids=LAST)
@pytest.mark.parametrize("backend", ["memory_int-sync", "sqlite-sync"], indirect=True)
def test_each_turn_ends_in_one_reduction_whichever_node_ran_last(
    name: str, count: int, inner: Any
) -> None:
    saver = kept(inner, Window(("turns", 1), ("turns", 1), ("messages", 1_000)), namespaces=[""])
    record = play(SCENES[name], saver, Door(), inner=inner)

    assert saver.stats().total.reductions == count - 1
    roots = [found for found in record.stored if not namespace(found)]
    rests = [found for found in roots if at_rest(found.checkpoint)]
    assert len(rests) == count
    for found in rests:
        humans = [message for message in read(found) or () if message.type == "human"]
        assert len(humans) == 1


def held(stage: Stage, inner: Any) -> list[str]:
    return brief(read(stage.door.get_tuple(inner, stage.config)) or ())


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_the_first_run_of_a_thread_is_no_resumed_run(
    durability: Any, inner: Any, door: Any
) -> None:
    stage = Stage(kept(inner), door)
    stage.compile(stage.builder().chain(("reply", reply), ("wait", waiting)))
    past = [ask("a"), say("a"), ask("b"), say("b"), ask("c")]
    stage.invoke({"messages": past}, durability=durability)

    assert held(stage, inner) == [*brief(past), "ai:said c"]


def test_an_update_of_a_new_thread_is_no_resumed_run(inner: Any, door: Any) -> None:
    stage = Stage(kept(inner), door)
    stage.compile(stage.builder().chain(("reply", reply), ("wait", waiting)))
    stage.update({"messages": [ask("a"), say("a"), ask("b"), say("b")]}, as_node="reply")

    assert stage.state().next == ("wait",)
    assert len(held(stage, inner)) == 4


def waiting(state: Any) -> Any:
    return {"messages": [say(str(interrupt("go on?")))]}


@pytest.mark.parametrize("forgets", [False, True], ids=["the same saver", "a new saver"])
def test_a_resumed_run_ends_at_rest(forgets: bool, inner: Any, door: Any) -> None:
    """Also where its nodes wrote no message: the next run is an ordinary one again."""
    window = Window(("messages", 2), ("messages", 2), ("messages", 1_000))
    stage = Stage(kept(inner, window), door)
    chain = stage.builder().chain(("reply", reply), ("end", lambda _: {}))
    stage.compile(chain, interrupt_before=["end"])
    stage.invoke(ask("t0"))
    stage.invoke(None)
    if forgets:
        stage.saver = kept(inner, window)
        stage.compile(chain, interrupt_before=["end"])
    stage.invoke(ask("t1"))

    assert held(stage, inner) == ["human:t0: ", "ai:said t0", "human:t1: ", "ai:said t1"]


def test_a_resumed_run_crosses_at_the_trigger_in_its_first_put(inner: Any, door: Any) -> None:
    """Whole earlier turns leave, once; then the run goes on as any other."""
    saver = kept(inner, Window(("turns", 1), ("turns", 2), ("messages", 1_000)))
    stage = Stage(saver, door)
    stage.compile(talking(stage))
    stage.invoke(ask("hello"))
    sizes = []
    for i in range(9):
        stage.resume(f"r{i}")
        humans = [name for name in held(stage, inner) if name.startswith("human")]
        sizes.append(len(humans))

    assert max(sizes) <= 3
    assert stage.state().next == ("talk",)
    assert [name for *_, name in stage.ran] == ["talk"] * 19


# The version


def version(found: CheckpointTuple, channel: str = "messages") -> Any:
    return found.checkpoint["channel_versions"].get(channel)


def moves(record: Record) -> list[bool]:
    """Tell of each checkpoint of the root whether the list has another version than before."""
    roots = [found for found in record.stored if not namespace(found)]
    parents = {found.checkpoint["id"]: found for found in roots}
    before = [parents.get(_parent(found) or "") for found in roots]
    return [
        version(found) != (version(parent) if parent else None)
        for found, parent in zip(roots, before, strict=True)
    ]


@pytest.mark.parametrize("backend", ["memory-sync", "memory_int-sync"], indirect=True)
@pytest.mark.parametrize("scene", STRAIGHT, ids=[scene.name for scene in STRAIGHT])
def test_the_version_moves_only_where_a_new_list_needs_it(scene: Scene, inner: Any) -> None:
    bare = play(scene, InMemorySaver(), Door())
    record = play(scene, kept(inner), Door(), inner=inner)
    roots = [found for found in record.stored if not namespace(found)]
    parents = {found.checkpoint["id"]: found for found in roots}

    for found, was_moved, is_moved in zip(roots, moves(bare), moves(record), strict=True):
        parent = parents.get(_parent(found) or "")
        same = parent is not None and brief(read(found) or ()) == brief(read(parent) or ())
        assert is_moved or not was_moved
        if is_moved and not was_moved:
            assert at_rest(found.checkpoint)
            assert not same


SEEN: list[dict[str, dict[str, Any]]] = [
    {},
    {"reply": {"messages": 3}},
    {"reply": {"messages": 2}, "other": {"messages": 3, "branch:to:other": 3}},
    {"__interrupt__": {"messages": 3, "__start__": 1}, "reply": {"branch:to:reply": 2}},
    {"a": {"messages": 3}, "__snapshot_bumps__": {"a|messages": 3, "a:messages": 1}},
    {"a": {"messages": 3}, "__snapshot_bumps__": {"a|messages": 2, "a:messages": 1}},
    {"a": {"messages": 3}, "b": {"messages": 3}, "__snapshot_bumps__": {"b|notes": 3}},
]


@pytest.mark.parametrize("seen", SEEN, ids=range(len(SEEN)))
def test_a_version_is_moved_as_langgraph_moves_it(seen: dict[str, dict[str, Any]]) -> None:
    """It stores a snapshot of a delta channel so, which nobody takes for a write either."""
    checkpoint: Any = {"channel_versions": {"messages": 3, "x": 1}, "versions_seen": seen}
    before = copy.deepcopy(checkpoint)
    moved, new = move(checkpoint, {"x": 1}, "messages", 4)

    assert moved["versions_seen"] == _mark_bumps_seen(seen, {"messages": (3, 4)}, {})
    assert moved["channel_versions"] == {"messages": 4, "x": 1}
    assert new == {"messages": 4, "x": 1}
    assert checkpoint == before


@pytest.mark.parametrize("name", ["silent_last_node", "last_node_writes_elsewhere"])
def test_who_had_seen_the_old_version_has_seen_the_new_one(
    name: str, inner: Any, door: Any
) -> None:
    record = play(SCENES[name], kept(inner), door, inner=inner)
    last = record.stored[-1]
    seen = {
        node: versions["messages"]
        for node, versions in last.checkpoint["versions_seen"].items()
        if "messages" in versions and node != "__snapshot_bumps__"
    }

    assert all(value <= version(last) for value in seen.values())
    assert type(version(last)) is type(version(record.stored[0], "__start__"))


def test_no_node_runs_again_after_a_moved_version(inner: Any, door: Any) -> None:
    stage = Stage(kept(inner), door)
    chain = stage.builder().chain(("reply", reply), ("quiet", lambda _: {}))
    stage.compile(chain)
    turns(stage, (), (), ())
    ran = [*stage.ran]
    assert len(brief(read(door.get_tuple(inner, stage.config)) or ())) == 2

    assert stage.state().next == ()
    stage.invoke(None)

    assert stage.ran == ran


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_a_breakpoint_does_not_fire_again_after_a_moved_version(
    kind: str, inner: Any, door: Any
) -> None:
    """`interrupt_before` fires where any channel is newer than what `__interrupt__` has seen."""
    stage = Stage(kept(inner), door)
    chain = stage.builder().chain(("reply", reply), ("act", reply), ("quiet", lambda _: {}))
    stage.compile(chain, **{kind: ["act"]})
    for i in range(4):
        stage.invoke(ask(f"t{i}"))
        stage.invoke(None)
        assert stage.state().next == ()

    assert [name for *_, name in stage.ran] == ["reply", "act", "quiet"] * 4


def test_the_next_update_is_still_taken_for_the_last_node_s(inner: Any, door: Any) -> None:
    """Without `as_node` LangGraph finds in `versions_seen` which node ran last."""
    found = []
    for saver in (inner, kept(inner)):
        stage = Stage(saver, door)
        stage.compile(stage.builder().chain(("reply", reply), ("quiet", lambda _: {})))
        turns(stage, (), (), ())
        stage.update({"messages": [say("late", "told")]})
        state = stage.state()
        found.append((state.next, state.metadata["source"], state.metadata["step"]))

    assert found[0] == found[1]


def test_where_no_version_can_be_made_the_list_stays_and_is_counted() -> None:
    class Named(IntMemorySaver):
        """Make versions that nobody else can count on, and refuse to while a list is reduced."""

        refuses = False

        def get_next_version(self, current: Any, channel: None) -> Any:
            if self.refuses:
                raise NotImplementedError
            return f"v{int(current[1:] if current else 0) + 1:04}"

        def put(self, *args: Any) -> Any:
            self.refuses = False
            return super().put(*args)

    class Refusing(ReducingSaver):
        def put(self, *args: Any) -> Any:
            self.inner.refuses = True
            return super().put(*args)

    inner = Named()
    saver = Refusing(inner, WINDOW, archive=Discard())
    stage = Stage(saver, Door())
    stage.compile(stage.builder().chain(("reply", reply), ("quiet", lambda _: {})))
    turns(stage, (), (), **STEADY)

    assert saver.stats().total.unmoved == 1
    assert saver.stats().total.failures == 0
    stored = read(Door().get_tuple(inner, stage.config)) or []
    assert len(stored) == 4


def test_a_server_s_own_string_versions_are_counted_on() -> None:
    """LangGraph's server makes versions itself, and its saver cannot."""

    class Served(IntMemorySaver):
        def get_next_version(self, current: Any, channel: None) -> Any:
            if isinstance(current, str):
                raise NotImplementedError
            return 1 if current is None else current + 1

    inner = Served()
    saver = kept(inner)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    messages = [m for i in range(3) for m in (ask(f"t{i}"), say(f"t{i}"))]
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": messages},
        "channel_versions": {"messages": "00000000000000000000000000000007.0.123"},
        "versions_seen": {"reply": {"messages": "00000000000000000000000000000007.0.123"}},
        "updated_channels": None,
    }
    saver.put(config, checkpoint, {"source": "loop", "step": 7, "parents": {}}, {})

    found = inner.get_tuple(config)
    assert found is not None
    assert version(found) == "00000000000000000000000000000008.0.123"
    assert found.checkpoint["versions_seen"]["reply"]["messages"] == version(found)
    assert len(read(found) or ()) == 2
