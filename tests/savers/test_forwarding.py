"""`ForwardingSaver` is the inner saver: the same methods, signatures, capabilities and errors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import os
import sqlite3
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from services.door import Door, within
from services.savers import IntMemorySaver
from services.wrappers import WRAPPERS

from reducing_saver._forwarding import ForwardingSaver, NotASaverError

METHODS = [
    name
    for name, value in vars(BaseCheckpointSaver).items()
    if inspect.isfunction(value) and not name.startswith("_")
]
ATTRIBUTES = ["serde", "config_specs"]
OPTIONAL = ["setup", "__enter__", "__exit__", "__aenter__", "__aexit__"]


class State(TypedDict):
    items: Annotated[list[str], lambda old, new: [*old, *new]]


def graph_on(saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(State)
    builder.add_node("left", lambda _: {"items": ["left"]})
    builder.add_node("right", lambda _: {"items": ["right"]})
    builder.add_edge("__start__", "left")
    builder.add_edge("left", "right")
    return builder.compile(checkpointer=saver)


def config(thread: str = "t", **more: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def uninitialised(kind: type[Any]) -> Any:
    """Give a saver of a class without opening a database: enough to look at what it can do."""
    return object.__new__(kind)


# What is forwarded


@pytest.mark.parametrize("name", [*METHODS, *ATTRIBUTES])
def test_everything_the_base_defines_is_forwarded(name: str) -> None:
    assert name in vars(ForwardingSaver), (
        f"LangGraph's BaseCheckpointSaver has {name}: forward it in ForwardingSaver"
    )


@pytest.mark.parametrize("name", METHODS)
def test_signatures_are_the_base_s(name: str) -> None:
    ours, theirs = (
        {
            parameter.name: (parameter.kind, parameter.default)
            for parameter in inspect.signature(getattr(kind, name)).parameters.values()
        }
        for kind in (ForwardingSaver, BaseCheckpointSaver)
    )
    assert ours == theirs


def test_the_base_has_no_public_names_this_file_does_not_know() -> None:
    public = {name for name in vars(BaseCheckpointSaver) if not name.startswith("_")}
    assert public == {*METHODS, *ATTRIBUTES}


def test_the_base_s_init_sets_nothing_but_the_serializer() -> None:
    """`ForwardingSaver` does not call it."""
    assert vars(BaseCheckpointSaver()).keys() == {"serde"}


class Recorder(BaseCheckpointSaver[Any]):
    """Answer every call with its name and arguments."""

    config_specs = ("specs",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def _recording(name: str) -> Callable[..., Any]:
    original = getattr(BaseCheckpointSaver, name)

    def sync(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((name, args, kwargs))
        return name

    async def coroutine(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        return sync(self, *args, **kwargs)

    async def generator(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        yield sync(self, *args, **kwargs)

    is_generator = inspect.isasyncgenfunction(original)
    recording = generator if is_generator else coroutine if name[0] == "a" else sync
    recording.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return recording


for method in METHODS:
    setattr(Recorder, method, _recording(method))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "with_allowlist"])
def test_each_door_goes_to_the_same_door(name: str) -> None:
    """C55: sync to sync, async to async, once, with every argument."""
    recorder = Recorder()
    method = getattr(ForwardingSaver(recorder), name)
    parameters = inspect.signature(method).parameters.values()
    args = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    kwargs = {one.name: one.name for one in parameters if one.kind is one.KEYWORD_ONLY}

    result = method(*args, **kwargs)
    if inspect.isasyncgen(result):
        assert asyncio.run(anext(result)) == name
    else:
        assert (asyncio.run(result) if inspect.iscoroutine(result) else result) == name

    [(called, got_args, got_kwargs)] = recorder.calls
    assert called == name
    bound = inspect.signature(method).bind(*got_args, **got_kwargs)
    assert bound == inspect.signature(method).bind(*args, **kwargs)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_and_bare_run_alike(
    wrapper: str, make_inner: Callable[..., BaseCheckpointSaver[Any]], door: Door
) -> None:
    bare = make_inner()
    wrapped = WRAPPERS[wrapper](make_inner())

    seen = []
    for saver in (bare, wrapped):
        graph = graph_on(saver)
        results = [door.invoke(graph, {"items": [str(turn)]}, config()) for turn in range(2)]
        door.update_state(graph, config(), {"items": ["edited"]}, as_node="left")
        history = door.get_state_history(graph, config())
        early = door.invoke(graph, None, history[-2].config)
        stored = [found.checkpoint["channel_values"] for found in door.list(saver, config())]
        latest = door.get(saver, config())["channel_values"]
        versions = [type(v) for v in door.get(saver, config())["channel_versions"].values()]
        seen.append((results, [s.values for s in history], early, stored, latest, versions))
        door.delete_thread(saver, "t")
        assert door.get_tuple(saver, config()) is None
    assert seen[0] == seen[1]


# The wrapper as an object


def test_it_is_a_saver_that_is_never_false() -> None:
    saver = ForwardingSaver(InMemorySaver())
    assert isinstance(saver, BaseCheckpointSaver)
    assert isinstance(saver, ForwardingSaver)
    assert saver
    assert not {"__len__", "__bool__", "__getattr__"} & {
        name for kind in type(saver).__mro__ for name in vars(kind)
    }


def test_its_class_keeps_the_name_it_was_written_with() -> None:
    class Mine(ForwardingSaver):
        """Mine."""

    for kind in (ForwardingSaver, Mine):
        made = type(kind(InMemorySaver()))
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(made, name) == getattr(kind, name)


def test_one_class_per_wrapper_and_inner_type() -> None:
    one, two = ForwardingSaver(InMemorySaver()), ForwardingSaver(InMemorySaver())
    other = ForwardingSaver(IntMemorySaver())
    assert type(one) is type(two)
    assert type(one) is not type(other)
    assert type(ForwardingSaver(one)) is not type(one)


def test_inner_is_public_and_read_only() -> None:
    inner = InMemorySaver()
    saver = ForwardingSaver(inner)
    assert saver.inner is inner
    with pytest.raises(AttributeError):
        saver.inner = InMemorySaver()  # type: ignore[misc]
    assert "InMemorySaver" in repr(saver)


def test_serde_config_specs_and_versions_are_the_inner_s() -> None:
    inner = Recorder()
    saver = ForwardingSaver(inner)
    assert saver.serde is inner.serde
    assert saver.config_specs is inner.config_specs
    saver.serde = JsonPlusSerializer()
    assert saver.serde is inner.serde

    assert ForwardingSaver(IntMemorySaver()).get_next_version(3, None) == 4
    version = ForwardingSaver(InMemorySaver()).get_next_version(f"{3:032}.0.5", None)
    assert version.startswith(f"{4:032}.")


def test_wrapping_leaves_the_inner_untouched() -> None:
    inner = InMemorySaver()
    before = dict(vars(inner))
    ForwardingSaver(inner)
    assert vars(inner) == before


def test_copy_shares_the_inner() -> None:
    saver = ForwardingSaver(InMemorySaver())
    clone = copy.copy(saver)
    assert clone is not saver
    assert type(clone) is type(saver)
    assert clone.inner is saver.inner


class Labelled(ForwardingSaver):
    """A subclass with an `__init__` of its own, a setting and an override."""

    def __init__(self, label: str, *, store: BaseCheckpointSaver[Any]) -> None:
        self.label = label
        super().__init__(store)
        self.puts: list[str] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.puts.append(checkpoint["id"])
        return super().put(config, checkpoint, metadata, new_versions)


def test_a_subclass_may_have_another_init() -> None:
    saver = Labelled("mine", store=InMemorySaver())
    graph_on(saver).invoke({"items": []}, config())
    assert len(saver.puts) == len([*saver.inner.list(config())])
    assert type(saver).__name__ == "Labelled"
    clone = copy.copy(saver)
    assert (clone.label, clone.puts) == ("mine", saver.puts)
    assert clone.puts is saver.puts


def test_a_wrapper_wraps_a_wrapper(inner: BaseCheckpointSaver[Any], door: Door) -> None:
    saver = ForwardingSaver(Labelled("inside", store=inner))
    graph = graph_on(saver)
    assert door.invoke(graph, {"items": ["a"]}, config())["items"] == ["a", "left", "right"]
    assert door.get_state(graph, config()).values["items"] == ["a", "left", "right"]
    for name in METHODS:
        bare = getattr(type(inner), name) is getattr(BaseCheckpointSaver, name)
        wrapped = getattr(type(saver), name) is getattr(BaseCheckpointSaver, name)
        assert wrapped == (bare and name != "with_allowlist")


def test_get_goes_through_an_overridden_get_tuple() -> None:
    """As in any subclass of a saver that leaves `get` to the base class."""

    class Blind(ForwardingSaver):
        def get_tuple(self, config: Any) -> Any:
            return None

    saver = Blind(InMemorySaver())
    graph_on(saver).invoke({"items": []}, config())
    assert saver.inner.get(config()) is not None
    assert saver.get(config()) is None


# Capabilities

SAVERS = [
    InMemorySaver,
    IntMemorySaver,
    SqliteSaver,
    AsyncSqliteSaver,
    PostgresSaver,
    AsyncPostgresSaver,
]


class Overriding(ForwardingSaver):
    """Override everything, as a wrapper with work of its own might."""


for method in METHODS:
    if method != "with_allowlist":
        setattr(Overriding, method, _recording(method))


@pytest.mark.parametrize("wrapper", [*WRAPPERS.values(), Overriding])
@pytest.mark.parametrize("kind", SAVERS)
def test_what_the_inner_class_cannot_do_is_hidden(kind: type[Any], wrapper: Any) -> None:
    made = type(wrapper(uninitialised(kind)))
    for name in METHODS:
        if name == "with_allowlist":
            continue
        base = getattr(BaseCheckpointSaver, name)
        assert (getattr(made, name) is base) == (getattr(kind, name) is base), name
    for name in OPTIONAL:
        assert hasattr(made, name) == hasattr(kind, name), name


def test_prune_is_shown_on_postgres_only() -> None:
    """The one of the three optional capabilities that a saver of LangGraph's has (P43)."""
    shown = {
        kind
        for kind in SAVERS
        if type(ForwardingSaver(uninitialised(kind))).aprune is not BaseCheckpointSaver.aprune
    }
    assert shown == {AsyncPostgresSaver}


@pytest.mark.parametrize("name", ["delete_for_runs", "copy_thread", "prune"])
def test_a_hidden_capability_fails_as_on_the_bare_saver(
    name: str, inner: BaseCheckpointSaver[Any], door: Door
) -> None:
    has_it = getattr(type(inner), name) is not getattr(BaseCheckpointSaver, name)
    arguments = ("a", "b") if name == "copy_thread" else (["a"],)
    for saver in (inner, ForwardingSaver(inner)):
        with contextlib.nullcontext() if has_it else pytest.raises(NotImplementedError):
            door.call(saver, name, *arguments)


@pytest.mark.parametrize("backend", ["postgres-sync", "apostgres-async"], indirect=True)
def test_prune_works_where_it_is_shown(inner: BaseCheckpointSaver[Any], door: Door) -> None:
    saver = ForwardingSaver(inner)
    graph = graph_on(saver)
    door.invoke(graph, {"items": ["a"]}, config())
    door.prune(saver, ["t"])
    assert len(door.list(inner, config())) == 1
    assert door.invoke(graph, {"items": ["b"]}, config())["items"][:3] == ["a", "left", "right"]


def test_a_saver_s_own_optional_methods_are_shown_and_reached() -> None:
    class Complete(InMemorySaver):
        asked: tuple[Any, ...] = ()

        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            self.asked = ("copy_thread", source_thread_id, target_thread_id)

        async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
            self.asked = ("adelete_for_runs", run_ids)

    saver = ForwardingSaver(Complete())
    saver.copy_thread("a", "b")
    assert saver.inner.asked == ("copy_thread", "a", "b")
    asyncio.run(saver.adelete_for_runs(["r"]))
    assert saver.inner.asked == ("adelete_for_runs", ["r"])
    assert type(saver).acopy_thread is BaseCheckpointSaver.acopy_thread


def test_a_subclass_can_add_a_capability() -> None:
    class Copying(ForwardingSaver):
        adds = frozenset({"copy_thread"})

        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            for found in self.inner.list(config(source_thread_id)):
                versions = found.checkpoint["channel_versions"]
                target = config(target_thread_id)
                self.inner.put(target, found.checkpoint, found.metadata, versions)

        def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None: ...

    saver = Copying(InMemorySaver())
    graph = graph_on(saver)
    graph.invoke({"items": ["a"]}, config("t"))
    saver.copy_thread("t", "u")
    assert graph.get_state(config("u")).values == graph.get_state(config("t")).values
    assert type(saver).prune is BaseCheckpointSaver.prune


def test_one_sided_savers_keep_their_side() -> None:
    """P38: what a bare saver says on the wrong door, the wrapped one says too."""
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        messages = []
        for saver in (sqlite, ForwardingSaver(sqlite)):
            with pytest.raises(NotImplementedError) as caught:
                asyncio.run(graph_on(saver).ainvoke({"items": []}, config()))
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "AsyncSqliteSaver" in messages[0]


# setup and with


def test_setup_is_forwarded(inner: BaseCheckpointSaver[Any], door: Door) -> None:
    saver = ForwardingSaver(inner)
    if not hasattr(inner, "setup"):
        assert not hasattr(saver, "setup")
        return
    assert inspect.iscoroutinefunction(inner.setup) == (door.name == "async")
    door.finish(saver.setup())


@pytest.mark.parametrize("backend", ["postgres-sync"], indirect=True)
def test_setup_makes_the_tables(make_database: Callable[[], str], door: Door) -> None:
    saver = ForwardingSaver(door.open(PostgresSaver.from_conn_string(make_database())))
    saver.setup()
    assert saver.get_tuple(config()) is None


class Managed(InMemorySaver):
    """Record how it is entered and left."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __enter__(self) -> Managed:
        self.seen.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.seen.append(f"exit {kind and kind.__name__}")
        return kind is KeyError  # swallowed

    async def __aenter__(self) -> Managed:
        self.seen.append("aenter")
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.seen.append(f"aexit {kind and kind.__name__}")
        return kind is KeyError


def test_with_enters_the_inner_and_gives_the_wrapper() -> None:
    saver = Labelled("mine", store=Managed())
    with saver as entered:
        assert entered is saver
    with saver:
        raise KeyError
    with pytest.raises(OSError, match="out"), saver:
        raise OSError("out")
    entered_and_left = ["enter", "exit None", "enter", "exit KeyError", "enter", "exit OSError"]
    assert saver.inner.seen == entered_and_left


def test_async_with_enters_the_inner_and_gives_the_wrapper() -> None:
    saver = ForwardingSaver(Managed())

    async def main() -> None:
        async with saver as entered:
            assert entered is saver
        async with saver:
            raise KeyError

    asyncio.run(main())
    assert saver.inner.seen == ["aenter", "aexit None", "aenter", "aexit KeyError"]


def test_with_is_refused_where_the_inner_has_none() -> None:
    with pytest.raises(TypeError, match="context manager"), ForwardingSaver(IntMemorySaver()):
        pass


def test_a_subclass_can_override_setup_and_with() -> None:
    class Closing(ForwardingSaver):
        closed = False

        def setup(self, *args: Any, **kwargs: Any) -> Any:
            return ("before", super().setup(*args, **kwargs))

        def __exit__(self, *exc: Any) -> bool | None:
            self.closed = True
            return super().__exit__(*exc)

    class Inner(Managed):
        def setup(self, index: str) -> str:
            return index

    saver = Closing(Inner())
    assert saver.setup("by name") == ("before", "by name")
    with saver:
        pass
    assert saver.closed
    assert saver.inner.seen == ["enter", "exit None"]


# task_path


class Pathless(InMemorySaver):
    """A saver from before `task_path` (P36b)."""

    def put_writes(self, config: Any, writes: Any, task_id: str) -> None:
        super().put_writes(config, writes, task_id)

    async def aput_writes(self, config: Any, writes: Any, task_id: str) -> None:
        self.put_writes(config, writes, task_id)


class HalfPathless(Pathless):
    """A saver that takes the path behind one door only."""

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        InMemorySaver.put_writes(self, config, writes, task_id, task_path)


class Swallowing(Pathless):
    """A saver whose signature hides the name: LangGraph gives it no path."""

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        assert (len(args), kwargs) == (3, {})
        super().put_writes(*args)


def paths(saver: InMemorySaver) -> set[str]:
    return {write[3] for writes in saver.writes.values() for write in writes.values()}


@pytest.mark.parametrize("kind", [InMemorySaver, Pathless, HalfPathless, Swallowing])
def test_task_path_reaches_the_inner_exactly_as_without_a_wrapper(kind: type[Any]) -> None:
    for run in (
        lambda graph: graph.invoke({"items": []}, config()),
        lambda graph: asyncio.run(graph.ainvoke({"items": []}, config())),
    ):
        bare, wrapped = kind(), kind()
        assert run(graph_on(bare)) == run(graph_on(ForwardingSaver(wrapped)))
        assert paths(bare) == paths(wrapped)


def test_langgraph_sees_that_task_path_is_taken() -> None:
    saver = ForwardingSaver(InMemorySaver())
    for door in (saver.put_writes, saver.aput_writes):
        assert "task_path" in inspect.signature(door).parameters


# with_allowlist


def test_with_allowlist_wraps_the_inner_s_clone() -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=[("somewhere", "Known")])
    inner = InMemorySaver(serde=strict)
    saver = Labelled("mine", store=inner)
    clone = saver.with_allowlist({("somewhere", "New")})
    assert type(clone) is type(saver)
    assert clone.inner is not inner
    assert clone.serde is clone.inner.serde
    assert (clone.label, clone.puts) == ("mine", saver.puts)
    assert clone.puts is saver.puts
    assert saver.inner is inner
    assert inner.serde is strict
    assert clone.inner.storage is inner.storage


def test_with_allowlist_gives_itself_where_the_inner_does() -> None:
    saver = ForwardingSaver(InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=True)))
    assert saver.with_allowlist({("somewhere", "New")}) is saver


def test_a_clone_of_another_type_shows_the_capabilities_of_that_type() -> None:
    class Chameleon(InMemorySaver):
        def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None: ...

        def with_allowlist(self, extra_allowlist: Any) -> Any:
            return IntMemorySaver()

    saver = Labelled("mine", store=Chameleon())
    clone = saver.with_allowlist(())
    assert isinstance(clone, Labelled)
    assert type(saver).prune is not BaseCheckpointSaver.prune
    assert type(clone).prune is BaseCheckpointSaver.prune
    assert hasattr(saver, "__enter__")
    assert not hasattr(clone, "__enter__")


STRICT = """
import asyncio, sys
from pydantic import BaseModel
from typing_extensions import TypedDict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from reducing_saver._forwarding import ForwardingSaver

class Booking(BaseModel):
    seat: int

class State(TypedDict):
    booking: Booking

class Counting(ForwardingSaver):
    puts = 0
    def put(self, *args):
        Counting.puts += 1
        return super().put(*args)
    async def aput(self, *args):
        Counting.puts += 1
        return await super().aput(*args)

def graph_on(saver):
    builder = StateGraph(State)
    builder.add_node("seat", lambda state: {"booking": Booking(seat=state["booking"].seat + 1)})
    builder.set_entry_point("seat")
    return builder.compile(checkpointer=saver)

config = {"configurable": {"thread_id": "t"}}

def check(inner):
    serde, before = inner.serde, Counting.puts
    graph = graph_on(Counting(inner))
    for _ in range(2):
        graph.invoke({"booking": Booking(seat=1)}, config)
    assert graph.get_state(config).values == {"booking": Booking(seat=2)}, graph.get_state(config)
    assert Counting.puts - before == 6, "the clone is not the wrapper"
    assert inner.serde is serde

async def acheck(inner):
    before = Counting.puts
    graph = graph_on(Counting(inner))
    await graph.ainvoke({"booking": Booking(seat=1)}, config)
    assert (await graph.aget_state(config)).values == {"booking": Booking(seat=2)}
    assert Counting.puts - before == 3

async def main():
    async with AsyncSqliteSaver.from_conn_string(":memory:") as inner:
        await acheck(inner)
    await acheck(InMemorySaver())

check(InMemorySaver())
with SqliteSaver.from_conn_string(":memory:") as inner:
    check(inner)
asyncio.run(main())
"""


def test_strict_msgpack_brings_a_pydantic_field_back_as_the_model() -> None:
    """C52; LangGraph reads the variable when it is imported, so in a process of its own."""
    environment = os.environ | {"LANGGRAPH_STRICT_MSGPACK": "true"}
    command = [sys.executable, "-c", STRICT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# Doors on an event loop


SYNC_CALLS: list[Callable[[Any], Any]] = [
    lambda saver: saver.get_tuple(config()),
    lambda saver: [*saver.list(config())],
    lambda saver: saver.put(config(), empty_checkpoint(), {}, {}),
    lambda saver: saver.put_writes(config(checkpoint_id="c"), [("a", 1)], "task"),
    lambda saver: saver.delete_thread("t"),
    lambda saver: graph_on(saver).invoke({"items": []}, config()),
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("backend", ["aiosqlite-async", "apostgres-async"], indirect=True)
def test_sync_calls_on_the_loop_of_an_async_saver_fail_at_once(
    wrapper: str, inner: BaseCheckpointSaver[Any], door: Any
) -> None:
    """C55; bare, `put` and `put_writes` hang for ever there (langgraph#7857)."""
    saver = WRAPPERS[wrapper](inner)

    async def on_the_loop(call: Callable[[Any], Any]) -> None:
        with pytest.raises(asyncio.InvalidStateError, match="Synchronous calls"):
            call(saver)

    for call in SYNC_CALLS:
        within(10, lambda call=call: door.run(on_the_loop(call)))


@pytest.mark.parametrize("backend", ["aiosqlite-async", "apostgres-async"], indirect=True)
def test_sync_calls_from_another_thread_work(inner: BaseCheckpointSaver[Any], door: Any) -> None:
    saver = ForwardingSaver(inner)

    async def in_a_thread() -> Any:
        run = graph_on(saver).invoke
        return await asyncio.to_thread(run, {"items": ["a"]}, config())

    assert door.run(in_a_thread())["items"] == ["a", "left", "right"]
    assert len(door.list(inner, config())) == 4


def test_list_holds_what_the_inner_s_list_holds() -> None:
    """Forwarding adds no step of its own: closing the iterator frees SqliteSaver's lock (P39)."""
    with SqliteSaver.from_conn_string(":memory:") as inner:
        saver = ForwardingSaver(inner)
        graph_on(saver).invoke({"items": []}, config())
        found = saver.list(config())
        next(found)
        found.close()
        within(5, lambda: saver.get_tuple(config()))


# What is no saver


@contextlib.contextmanager
def my_saver() -> Iterator[InMemorySaver]:
    yield InMemorySaver()


async def make_saver() -> InMemorySaver:
    return InMemorySaver()


class Duck:
    """It quacks, but LangGraph asks with isinstance."""

    def get_tuple(self, config: Any) -> None: ...


NOT_SAVERS: list[tuple[Callable[[], Any], list[str]]] = [
    (
        lambda: SqliteSaver.from_conn_string("secret.db"),
        ["    with SqliteSaver.from_conn_string(...) as inner:"],
    ),
    (
        lambda: PostgresSaver.from_conn_string("postgresql://me:secret@host"),
        ["    with PostgresSaver.from_conn_string(...) as inner:"],
    ),
    (
        lambda: AsyncSqliteSaver.from_conn_string("secret.db"),
        ["    async with AsyncSqliteSaver.from_conn_string(...) as inner:"],
    ),
    (
        lambda: AsyncPostgresSaver.from_conn_string("postgresql://me:secret@host"),
        ["    async with AsyncPostgresSaver.from_conn_string(...) as inner:"],
    ),
    (my_saver, ["    with my_saver(...) as inner:"]),
    (lambda: SqliteSaver, ["the class SqliteSaver", "    with SqliteSaver.from_conn_string(...)"]),
    (
        lambda: AsyncSqliteSaver,
        ["the class AsyncSqliteSaver", "    async with AsyncSqliteSaver.from_conn_string(...)"],
    ),
    (lambda: InMemorySaver, ["the class InMemorySaver", "Labelled(InMemorySaver(...)"]),
    (lambda: my_saver, ["the function my_saver", "call it"]),
    (make_saver, ["coroutine", "await it"]),
    (lambda: sqlite3.connect(":memory:"), ["type Connection"]),
    (lambda: aiosqlite.connect(":memory:"), ["type Connection"]),
    (Duck, ["type Duck"]),
    (lambda: Duck, ["the class Duck"]),
    (lambda: "postgresql://me:secret@host", ["type str", "with PostgresSaver.from_conn_string("]),
    (lambda: "x.db", ["type str", "with SqliteSaver.from_conn_string(...) as inner:"]),
    (lambda: Path("x.db"), ["with SqliteSaver.from_conn_string(...) as inner:"]),
    (lambda: None, ["got None"]),
    (lambda: True, ["got True"]),
]


@pytest.mark.parametrize(("make", "parts"), NOT_SAVERS)
def test_the_error_shows_the_right_line(make: Callable[[], Any], parts: list[str]) -> None:
    given = make()
    with pytest.raises(NotASaverError) as caught:
        Labelled("mine", store=given)
    message = str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert message.startswith("Labelled needs a saver")
    for part in parts:
        assert part in message
    assert "secret" not in message
    if isinstance(given, sqlite3.Connection) or inspect.iscoroutine(given):
        given.close()


async def test_the_error_names_an_async_saver_where_a_loop_runs() -> None:
    with pytest.raises(NotASaverError, match=r"async with AsyncSqliteSaver\.from_conn_string\("):
        Labelled("mine", store="x.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", SAVERS[2:])
def test_the_line_of_the_error_is_python_that_works(kind: type[Any]) -> None:
    with pytest.raises(NotASaverError) as caught:
        ForwardingSaver(kind)
    lines = str(caught.value).partition("\n\n")[2]
    compile(f"async def main():\n{lines}\n", "the message", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = eval(  # the expression the message shows, with a connection string in it
            textwrap.dedent(lines).split("with ")[1].split(" as ")[0].replace("...", "':memory:'"),
            {kind.__name__: kind},
        )
    is_async = hasattr(kind, "loop") or kind.__name__.startswith("Async")
    assert hasattr(opened, "__aenter__") == is_async
