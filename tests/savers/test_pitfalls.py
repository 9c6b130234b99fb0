"""How LangGraph meets a saver that stores less: 46 pitfalls, and the test of each.

They were found by experiment (langgraph 1.2.24): P1 to P9 in the calls of a saver, P10 to P14 in
delta channels, P15 to P23 in resuming, P24 to P27 in the state API, P28 to P32 in subgraphs and
functions, P33 to P40 in the wrapper as an object, P41 to P46 in how threads grow. `TABLE` says
which tests cover one; those of this file are named for it. `LATER` needs what is not built yet.
"""

from __future__ import annotations

import ast
import copy
import logging
import operator
import pickle
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, StateUpdate, interrupt
from savers.scenarios import Scripted
from savers.test_pending import Scene as Pending
from savers.test_pending import expected, interrupted
from savers.test_pending import wrap as wrap_pending
from services.door import Door

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import problems

TABLE = """
P1  test_p01_a_list_without_a_new_version_is_reduced_at_rest
    test_each_turn_ends_in_one_reduction_whichever_node_ran_last
P2  test_p02_nothing_is_decided_twice
    test_every_saver_holds_the_same_list_at_every_step
    test_e4_reducing_twice_is_reducing_once
P3  test_p03_writes_that_come_before_their_checkpoint
P4  test_p04_one_eviction_a_turn
    test_one_run_of_200_tool_rounds
P5  test_p05_messages_without_ids_and_dicts
P6  test_p06_the_live_list_is_never_changed
    test_what_is_handed_to_put_is_never_changed
P7  test_what_cannot_be_reduced_is_stored_as_it_is
P8  test_p08_a_put_shows_in_no_stream_and_no_callback
P9  test_p09_hostile_settings_lose_neither_the_tail_nor_the_list
P10 test_in_memory
    test_in_databases
P11 test_p11_a_later_write_that_names_an_evicted_message_of_a_delta_channel
P12 test_in_memory
    test_in_databases
    test_an_interrupt_beside_a_finished_node
P13 test_forks_by_copy
P14 test_p14_a_server_that_bypasses_half_of_the_saver
P15 test_a_thread_goes_on
    test_killed_and_gone_on
P16 test_a_thread_goes_on
P17 test_a_thread_goes_on
P18 test_writes_are_emptied_never_dropped
P19 test_metadata_is_bounded
P20 test_p20_tools_that_wait_for_an_approval
    test_a_small_window_changes_only_the_lists
P21 test_p21_an_open_call_is_never_pushed_out
P22 test_killed_and_gone_on
    test_sweep
P23 test_p23_a_resumed_node_sees_what_the_bare_saver_shows_it
P24 test_p24_clients_hold_ids_of_what_was_evicted
    test_p24_a_command_that_removes_what_was_evicted_leaves_the_thread_readable
    test_a_removal_of_what_was_evicted_is_left_out_and_others_stay
P25 test_p25_bulk_update_state_reloads_between_its_steps
P26 test_p26_runs_show_the_whole_list_and_states_the_stored_one
P27 test_p27_what_is_listed_is_what_is_loaded
    test_a_small_window_changes_only_the_lists
P28 test_p28_an_interrupt_in_a_subgraph
    test_a_graph_above_or_below_may_be_left_alone
P29 test_p29_a_subgraph_with_memory
P31 test_p31_the_functional_api
P32 test_p32_other_names_and_other_messages
P33 test_the_inner_saver_is_left_as_it_was
    test_the_state_comes_back_as_it_does_bare
P34 test_it_is_a_saver_that_is_never_false
    test_a_graph_takes_it_for_a_saver
P35 test_c53_two_updates_from_one_parent
P36 test_task_path_reaches_the_inner_exactly_as_without_a_wrapper
    test_p36_parallel_writes_keep_their_order
P37 test_what_the_inner_class_cannot_do_is_hidden
P38 test_c55_a_sync_call_on_the_loop_of_an_async_saver
    test_c55_the_async_door_of_a_sync_saver
P39 test_listing_does_not_deadlock
P40 test_p40_two_processes_on_one_thread
    test_p40_a_copied_fork_has_its_own_past
    test_two_runs_forked_from_one_checkpoint
P41 test_sent_state_is_bounded
    test_llm_input_messages
P42 test_p42_rows_are_the_bare_saver_s
P43 test_prune_works_where_it_is_shown
    test_p43_a_pruned_thread_resumes
P44 test_p44_an_old_thread_is_adopted
    test_a_thread_stored_bare
P45 test_at_rest_agrees_with_what_langgraph_would_run_next
P46 test_a_chat_that_lives_in_interrupt
"""
LATER = {"P30": "the id of a summary: there is no summariser yet"}

Saver = BaseCheckpointSaver[Any]

WINDOW = Window(keep=("messages", 2), trigger=("messages", 3), cap=("messages", 1_000))
SOME = pytest.mark.parametrize(
    "backend", ["memory-sync", "sqlite-sync", "aiosqlite-async", "postgres-sync"], indirect=True
)


def covered() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in TABLE.strip().splitlines():
        *first, name = line.split()
        names.setdefault(first[0] if first else [*names][-1], []).append(name)
    return names


def test_every_pitfall_has_a_test_that_exists() -> None:
    assert {*covered()} | {*LATER} == {f"P{i}" for i in range(1, 47)}
    defined: set[str] = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        defined |= {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    missing = {p: [n for n in names if n not in defined] for p, names in covered().items()}
    assert not {p: names for p, names in missing.items() if names}
    own = {name for name in globals() if name.startswith("test_p") and name[6:8].isdigit()}
    assert own <= {name for names in covered().values() for name in names}


def wrap(inner: Saver, window: Window = WINDOW, **settings: Any) -> Any:
    return ReducingSaver(inner, window, archive=Discard(), **settings)


def at(thread: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def human(i: int, text: str = "question") -> HumanMessage:
    return HumanMessage(f"{text} {i}", id=f"h{i}")


def ask(i: int) -> Any:
    return {"messages": [human(i)]}


def ids(messages: Any) -> list[Any]:
    return [message.id for message in messages]


def held(saver: Saver, door: Door, thread: str = "t") -> list[Any]:
    found = door.get_tuple(saver, at(thread))
    return found.checkpoint["channel_values"].get("messages", [])


def reply(state: Any) -> Any:
    last = next(m for m in reversed(state["messages"]) if m.type == "human")
    return {"messages": [AIMessage(f"to {last.content}", id=f"a{last.id[1:]}")]}


def chain(state: Any, *nodes: Any) -> Any:
    builder = StateGraph(state)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    return builder


def silent(_: Any) -> Any:
    return {}


def chat(saver: Any, state: Any = MessagesState) -> Any:
    return chain(state, reply, silent).compile(checkpointer=saver)


# Calls of a saver


@SOME
def test_p01_a_list_without_a_new_version_is_reduced_at_rest(inner: Saver, door: Door) -> None:
    """SQLite stores the whole state on every put, whatever `new_versions` says."""
    saver = wrap(inner)
    messages = [message for i in range(4) for message in (human(i), AIMessage("yes", id=f"a{i}"))]
    config = at(checkpoint_ns="")
    version = saver.get_next_version(None, None)
    for i, new in enumerate(({"messages": version}, {})):
        checkpoint = {
            **empty_checkpoint(),
            "channel_values": {"messages": messages},
            "channel_versions": {"messages": version},
        }
        step = {"source": "loop", "step": i, "parents": {}}
        config = door.put(saver, config, checkpoint, step, new)
        assert ids(door.get_tuple(inner, config).checkpoint["channel_values"]["messages"]) == [
            "h3",
            "a3",
        ]
    assert len(messages) == 8


@SOME
def test_p02_nothing_is_decided_twice(inner: Saver, door: Door) -> None:
    """The same list under the same version is the same again, also when it is put reduced."""
    saver = wrap(inner)
    graph = chat(saver)
    for i in range(4):
        door.invoke(graph, ask(i), at())
    evicted = saver.stats().total.evicted
    before = held(inner, door)
    forked = door.update_state(graph, at(), None, as_node="__copy__")
    assert held(inner, door) == before
    assert saver.stats().total.evicted == evicted
    assert door.get_tuple(inner, forked).checkpoint["channel_values"]["messages"] == before


class Slow(InMemorySaver):
    """Take a while for each checkpoint, as a database far away does."""

    ahead = 0

    def put(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        time.sleep(0.05)
        return super().put(config, checkpoint, *args)

    def put_writes(self, config: Any, *args: Any, **kwargs: Any) -> None:
        self.ahead += self.get_tuple(config) is None
        super().put_writes(config, *args, **kwargs)


@pytest.mark.parametrize("kind", ["remove", "edit a result", "answer", "whole list", "overwrite"])
@pytest.mark.parametrize("fresh", [False, True])
def test_p03_writes_that_come_before_their_checkpoint(kind: str, fresh: bool) -> None:
    """`put_writes` cannot ask what its checkpoint evicted: that is not there yet."""
    inner, door = Slow(), Door()
    saver = wrap_pending(inner)
    interrupted(Pending(saver, kind), door, "t", durability="async")
    assert inner.ahead
    bare = Pending(InMemorySaver(), kind)
    interrupted(bare, door, "t")
    later = Pending(wrap_pending(inner) if fresh else saver, kind)
    for graph in (later.graph, bare.graph):
        assert graph.get_state(at()).next == ("asker",)
    result = later.graph.invoke(Command(resume="yes"), at())["messages"]
    whole = bare.graph.invoke(Command(resume="yes"), at())["messages"]
    assert [(m.id, m.content) for m in result] == expected(whole, kind)
    assert problems(result) == ()


@SOME
def test_p04_one_eviction_a_turn(inner: Saver, door: Door) -> None:
    """Puts are per super-step: what a put may do costly, it does at most once per rest."""
    saver = wrap(inner)
    graph = chain(MessagesState, silent, reply, lambda_free("more"), lambda_free("last")).compile(
        checkpointer=saver
    )
    for i in range(6):
        door.invoke(graph, ask(i), at())
        assert saver.stats().channels["messages"].reductions <= i + 1
    assert saver.stats().channels["messages"].puts > 25
    assert saver.stats().channels["messages"].reductions == 5


def lambda_free(name: str) -> Any:
    def node(_: Any) -> Any:
        return {}

    node.__name__ = name
    return node


class Added(TypedDict):
    messages: Annotated[list[Any], operator.add]


@SOME
def test_p05_messages_without_ids_and_dicts(inner: Saver, door: Door) -> None:
    """Never key on an id being there; who has none is new."""

    def answer(state: Any) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}"), {"role": "x"}]}

    states = []
    for saver, way in ((wrap(inner), door), (InMemorySaver(), Door())):
        graph = chain(Added, answer, silent).compile(checkpointer=saver)
        for i in range(5):
            given = [HumanMessage("ok"), {"role": "user", "content": "ok"}][i % 2]
            way.invoke(graph, {"messages": [given]}, at())
        states.append(way.get_state(graph, at()).values["messages"])
    kept, bare = states
    assert len(bare) == 15
    assert [shape(m) for m in kept] == [shape(m) for m in bare][-len(kept) :]
    assert len(kept) == 3
    assert all(getattr(m, "id", None) is None for m in kept)


def shape(message: Any) -> Any:
    return message if isinstance(message, dict) else (message.type, message.content[:6])


class AssertImmutable(InMemorySaver):
    """What LangGraph's own suite runs on: nobody changes what was handed to `put`."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[Any, bytes]] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new: Any) -> Any:
        for thing, was in self.given:
            assert pickle.dumps(thing) == was, "changed after it was put"
        self.given = [(thing, pickle.dumps(thing)) for thing in (checkpoint, metadata, new)]
        return super().put(config, checkpoint, metadata, new)


def test_p06_the_live_list_is_never_changed() -> None:
    given: list[tuple[Any, Any]] = []

    class Watching(ReducingSaver):
        def put(self, config: Any, checkpoint: Any, metadata: Any, new: Any) -> Any:
            before = copy.deepcopy((checkpoint, metadata, new))
            stored = super().put(config, checkpoint, metadata, new)
            given.append((before, (checkpoint, metadata, new)))
            return stored

    window = Window(("messages", 2), ("messages", 2), ("messages", 4))
    graph = chat(Watching(AssertImmutable(), window, archive=Discard()))
    for i in range(6):
        result = graph.invoke(ask(i), at())
        assert ids(result["messages"])[-2:] == [f"h{i}", f"a{i}"]
    assert len(given) == 24
    for before, after in given:
        assert before == after


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("model")

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("chain")

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("tool")


@SOME
def test_p08_a_put_shows_in_no_stream_and_no_callback(inner: Saver, door: Door) -> None:
    """With a subgraph, where what runs inside `put` would be taken for the run's own."""

    def call(state: Any) -> Any:
        return {"messages": [Scripted(seen=[]).invoke(state["messages"])]}

    outcomes = []
    for saver, way in ((wrap(inner), door), (InMemorySaver(), Door())):
        builder = StateGraph(MessagesState)
        builder.add_node("child", chain(MessagesState, call, silent).compile())
        builder.add_edge(START, "child")
        graph = builder.compile(checkpointer=saver)
        heard = Heard()
        streamed = []
        for i in range(4):
            config = {**at(), "callbacks": [heard]}
            given = {"messages": [HumanMessage(f"t{i}:", id=f"h{i}")]}
            streamed += way.stream(
                graph, given, config, stream_mode=["messages", "updates"], subgraphs=True
            )
        kinds = [(mode, str(chunk)[:40]) for _, mode, chunk in streamed]
        outcomes.append((heard.events, kinds))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0].count("model") == 4


def raising() -> Any:
    """Give a counter that works when the window is built, and not much longer."""
    calls: list[Any] = []

    def count(message: Any) -> int:
        calls.append(message)
        if len(calls) > 3:
            raise RuntimeError("no")
        return 1

    return count


HOSTILE = {
    "all is huge": lambda: Window(("tokens", 5), ("tokens", 5), token_counter=lambda _: 10**9),
    "all is nothing": lambda: Window(("tokens", 5), ("tokens", 5), token_counter=lambda _: 0),
    "all is pinned": lambda: Window(("messages", 1), ("messages", 1), pinned=lambda _: True),
    "one is kept": lambda: Window(("messages", 1), ("messages", 1), ("messages", 1)),
    "counts jump": lambda: Window(("tokens", 9), token_counter=lambda m: len(m.content) % 7),
    "it raises": lambda: Window(("tokens", 5), token_counter=raising()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_p09_hostile_settings_lose_neither_the_tail_nor_the_list(name: str) -> None:
    inner = InMemorySaver()
    graph = chat(wrap(inner, HOSTILE[name]()))
    for i in range(6):
        result = graph.invoke(ask(i), at())
        assert ids(result["messages"])[-2:] == [f"h{i}", f"a{i}"]
        assert ids(held(inner, Door()))[-2:] == [f"h{i}", f"a{i}"]


# Delta channels


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=100)]


@SOME
@pytest.mark.parametrize("fresh", [False, True])
def test_p11_a_later_write_that_names_an_evicted_message_of_a_delta_channel(
    inner: Saver, door: Door, fresh: bool
) -> None:
    """A removal is no error there; what else names it comes as new, at the tail (documented)."""
    settings = {"messages_reducer": _messages_delta_reducer}
    saver = wrap(inner, **settings)
    graph = chat(saver, Delta)
    for i in range(5):
        door.invoke(graph, ask(i), at())
    if fresh:
        graph = chat(wrap(inner, **settings), Delta)
    result = door.invoke(graph, {"messages": [RemoveMessage("h0"), human(5)]}, at())
    assert ids(result["messages"]) == ["h4", "a4", "h5", "a5"]
    assert ids(door.get_state(graph, at()).values["messages"])[-2:] == ["h5", "a5"]
    edited = [human(0, "edited"), human(6)]
    door.invoke(graph, {"messages": edited}, at())
    door.invoke(graph, ask(7), at())
    assert ids(door.get_state(graph, at()).values["messages"])[-2:] == ["h7", "a7"]
    assert problems(door.get_state(graph, at()).values["messages"]) == ()


class ServerAdapter(BaseCheckpointSaver[str]):
    """What LangGraph's server makes of a custom checkpointer (langgraph-api 0.16.7).

    It has versions and a delta history of its own, and clones nothing.
    """

    def __init__(self, saver: Any) -> None:
        super().__init__()
        self.saver = saver

    def get_next_version(self, current: Any, channel: None) -> str:
        number = int(current.split(".")[0]) if current else 0
        return f"{number + 1:032}.{0.5:016}"

    async def aput(self, *args: Any) -> Any:
        return await self.saver.aput(*args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await self.saver.aput_writes(*args, **kwargs)

    async def aget_tuple(self, config: Any) -> Any:
        return await self.saver.aget_tuple(config)

    async def alist(self, config: Any, **kwargs: Any) -> Any:
        async for each in self.saver.alist(config, **kwargs):
            yield each

    async def adelete_thread(self, thread_id: str) -> None:
        await self.saver.adelete_thread(thread_id)


@pytest.mark.parametrize("state", [MessagesState, Delta])
@pytest.mark.parametrize(
    "backend",
    ["memory-async", "memory_int-async", "aiosqlite-async", "apostgres-async"],
    indirect=True,
)
def test_p14_a_server_that_bypasses_half_of_the_saver(inner: Saver, door: Door, state: Any) -> None:
    delta = state is Delta
    saver = wrap(inner, messages_reducer=_messages_delta_reducer if delta else None)
    graph = chat(ServerAdapter(saver), state)
    for i in range(6):
        result = door.invoke(graph, ask(i), at())
        assert ids(result["messages"])[-2:] == [f"h{i}", f"a{i}"]
        assert len(result["messages"]) <= 5
    assert len(door.get_state(graph, at()).values["messages"]) <= 3
    assert saver.stats().total.evicted > 0
    assert saver.stats().total.failures == 0


# Resuming


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    SENT.append(to)
    return f"sent to {to}"


SENT: list[str] = []


@SOME
@pytest.mark.parametrize("fresh", [False, True])
def test_p20_tools_that_wait_for_an_approval(inner: Saver, door: Door, fresh: bool) -> None:
    """Calls without an answer are waiting, not broken: approved, they run once; rejected, never."""
    window = Window(("messages", 2), ("messages", 2), ("messages", 4))
    outcomes = []
    for saver, way in ((wrap(inner, window), door), (InMemorySaver(), Door())):
        SENT.clear()

        def make(saver: Any) -> Any:
            middleware = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})
            return create_agent(
                Mailing(seen=[]), [send_mail], middleware=[middleware], checkpointer=saver
            )

        graph = make(saver)
        answers = []
        for i in range(3):
            way.invoke(graph, {"messages": [HumanMessage(f"t{i}: 3", id=f"h{i}")]}, at())
            state = way.get_state(graph, at())
            assert len(state.interrupts) == 1
            yes, no = {"type": "approve"}, {"type": "reject", "message": "no"}
            if fresh and way is door:
                graph = make(wrap(inner, window))
            result = way.invoke(graph, Command(resume={"decisions": [yes, no, yes]}), at())
            assert problems(result["messages"]) == ()
            start = max(k for k, m in enumerate(result["messages"]) if m.type == "human")
            answers.append([m.content for m in result["messages"][start:]])
        outcomes.append((sorted(SENT), answers))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 6


class Mailing(Scripted):
    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(messages, *args, **kwargs)
        for call in result.generations[0].message.tool_calls:
            call["name"], call["args"] = "send_mail", {"to": call["id"]}
        return result


@SOME
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_p21_an_open_call_is_never_pushed_out(
    inner: Saver, door: Door, fresh: bool, parallel: bool
) -> None:
    """Later messages fill the window while a tool waits; its call must be there for the result."""
    window = Window(("messages", 2), ("messages", 2), ("messages", 4))

    @tool
    def wait(query: str) -> str:
        """Wait for an answer."""
        return str(interrupt(query))

    def call(_: Any) -> Any:
        made = {"name": "wait", "args": {"query": "sure?"}, "id": "c"}
        return {"messages": [AIMessage("", id="call", tool_calls=[made])]}

    def talk(_: Any) -> Any:
        return {"messages": [AIMessage(f"{i}", id=f"x{i}") for i in range(12)]}

    def make(saver: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("call", call)
        builder.add_node("talk", talk)
        builder.add_node("tools", ToolNode([wait]))
        builder.add_edge(START, "call")
        builder.add_edge("call", "talk")
        if parallel:
            builder.add_edge("call", "tools")
            return builder.compile(checkpointer=saver)
        builder.add_node("tools_by_id", by_id)
        builder.add_edge("talk", "tools_by_id")
        return builder.compile(checkpointer=saver)

    def by_id(state: Any) -> Any:
        asked = [m for m in state["messages"] if m.id == "call"]
        assert asked, "the call is not there any more"
        said = interrupt("sure?")
        return {"messages": [ToolMessage(said, tool_call_id=asked[0].tool_calls[0]["id"], id="r")]}

    saver = wrap(inner, window)
    graph = make(saver)
    door.invoke(graph, ask(0), at())
    if fresh:
        graph = make(wrap(inner, window))
    result = door.invoke(graph, Command(resume="yes"), at())["messages"]
    assert "orphan result" not in {problem.rule for problem in problems(result)}
    assert [m.content for m in result if m.type == "tool"] == ["yes"]
    assert "call" in ids(result)


@SOME
def test_p23_a_resumed_node_sees_what_the_bare_saver_shows_it(inner: Saver, door: Door) -> None:
    """Within the cap the middle of a run is stored whole, so a node that runs again sees it all."""
    outcomes = []
    for given, way in ((inner, door), (InMemorySaver(), Door())):
        seen: list[list[str]] = []

        def work(state: Any, seen: Any = seen) -> Any:
            seen.append(ids(state["messages"]))
            return {"messages": [AIMessage("w", id=f"w{len(state['messages'])}")]}

        def make(saver: Any, work: Any = work) -> Any:
            builder = chain(MessagesState, reply, work, silent)
            return builder.compile(checkpointer=saver, interrupt_before=["work"])

        saver = given if way is not door else wrap(given)
        for i in range(3):
            way.invoke(make(saver), ask(i), at())
            fresh = wrap(inner) if way is door else saver
            way.invoke(make(fresh), None, at())
        outcomes.append(seen)
    kept, bare = outcomes
    assert len(kept) == len(bare)
    for ours, theirs in zip(kept, bare, strict=True):
        assert ours == theirs[len(theirs) - len(ours) :]
    # Of this turn it sees everything, and of the turns before what the last rest has left
    assert kept[0] == ["h0", "a0"]
    assert kept[1][-2:] == ["h1", "a1"]
    assert len(kept[1]) == 2 + 3


# The state API


@SOME
def test_p24_clients_hold_ids_of_what_was_evicted(inner: Saver, door: Door) -> None:
    """No saver can cure an input that never passes through it; `new_messages` filters it."""
    saver = wrap(inner)
    graph = chat(saver)
    for i in range(4):
        result = door.invoke(graph, ask(i), at())
    assert "h2" in ids(result["messages"])
    for call in (
        lambda: door.invoke(graph, {"messages": [RemoveMessage("h0")]}, at()),
        lambda: door.update_state(graph, at(), {"messages": [RemoveMessage("h0")]}),
    ):
        with pytest.raises(ValueError, match="doesn't exist"):
            call()
        assert ids(door.get_state(graph, at()).values["messages"]) == ["h3", "a3"]
    result = door.invoke(graph, {"messages": [human(0, "edited")]}, at())
    assert ids(result["messages"]) == ["h3", "a3", "h0", "a0"]
    filtered = door.call(saver, "new_messages", at(), [RemoveMessage("h1"), human(5)])
    assert ids(door.invoke(graph, {"messages": filtered}, at())["messages"])[-2:] == ["h5", "a5"]


@SOME
@pytest.mark.parametrize("fresh", [False, True])
def test_p24_a_command_that_removes_what_was_evicted_leaves_the_thread_readable(
    inner: Saver, door: Door, fresh: bool
) -> None:
    """LangGraph stores the write before it fails: on the bare saver an unknown id ends a thread."""
    graph = chat(wrap(inner))
    for i in range(4):
        door.invoke(graph, ask(i), at())
    if fresh:
        graph = chat(wrap(inner))
    with pytest.raises(ValueError, match="doesn't exist"):
        door.invoke(graph, Command(update={"messages": [RemoveMessage("h0")]}), at())
    if fresh:
        graph = chat(wrap(inner))
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h3", "a3"]
    assert len(door.get_state_history(graph, at())) == 16
    assert ids(door.invoke(graph, ask(5), at())["messages"]) == ["h3", "a3", "h5", "a5"]


@SOME
def test_p25_bulk_update_state_reloads_between_its_steps(inner: Saver, door: Door) -> None:
    """What an earlier step of the same call has let go cannot be removed by a later one."""
    graph = chat(wrap(inner))
    door.invoke(graph, ask(0), at())

    def said(i: int) -> list[StateUpdate]:
        messages = [human(i), AIMessage(f"{i}", id=f"a{i}")]
        return [StateUpdate({"messages": messages}, "silent")]

    gone = [StateUpdate({"messages": [RemoveMessage("h1")]}, "silent")]
    held_yet = [StateUpdate({"messages": [RemoveMessage("a3")]}, "silent")]
    with pytest.raises(ValueError, match="doesn't exist"):
        door.bulk_update_state(graph, at(), [said(1), said(2), gone])
    door.bulk_update_state(graph, at(), [said(3), held_yet, said(4)])
    state = door.get_state(graph, at())
    assert ids(state.values["messages"])[-2:] == ["h4", "a4"]
    assert "a3" not in ids(state.values["messages"])


@SOME
def test_p26_runs_show_the_whole_list_and_states_the_stored_one(inner: Saver, door: Door) -> None:
    graph = chat(wrap(inner))
    for i in range(3):
        door.invoke(graph, ask(i), at())
    chunks = door.stream(graph, ask(3), at(), stream_mode="checkpoints")
    assert ids(chunks[-1]["values"]["messages"]) == ["h2", "a2", "h3", "a3"]
    [newest, *older] = door.get_state_history(graph, at())
    assert ids(newest.values["messages"]) == ["h3", "a3"]
    assert ids(older[0].values["messages"]) == ["h2", "a2", "h3", "a3"], "the middle of the run"
    assert ids(door.get_state(graph, at()).values["messages"]) == ["h3", "a3"]


@SOME
@pytest.mark.parametrize("kind", ["edit a result", "whole list"])
@pytest.mark.parametrize("fresh", [False, True])
def test_p27_what_is_listed_is_what_is_loaded(
    inner: Saver, door: Door, kind: str, fresh: bool
) -> None:
    """The replay of a subgraph loads through `list(before=, limit=1)`."""
    saver = wrap_pending(inner)
    interrupted(Pending(saver, kind), door, "t")
    head = door.get_tuple(inner, at())
    door.update_state(Pending(saver, kind).graph, at(), None, as_node="__copy__")
    reading = wrap_pending(inner) if fresh else saver
    newest = door.get_tuple(inner, at())
    [listed] = door.list(reading, at(checkpoint_ns=""), before=newest.config, limit=1)
    assert listed.config == head.config
    loaded = door.get_tuple(reading, head.config)
    assert listed.pending_writes == loaded.pending_writes
    assert listed.checkpoint == loaded.checkpoint
    assert listed.pending_writes != head.pending_writes


# Subgraphs, functions and other channels


def child_of(memory: bool | None = None) -> Any:
    def one(state: Any) -> Any:
        turn = next(m.id for m in reversed(state["messages"]) if m.type == "human")
        return {"messages": [AIMessage(f"{i}", id=f"g{turn}.{i}") for i in range(3)]}

    def two(state: Any) -> Any:
        turn = next(m.id for m in reversed(state["messages"]) if m.type == "human")
        said = interrupt("go on?")
        return {"messages": [AIMessage(said, id=f"s{turn}")]}

    return chain(MessagesState, one, two).compile(checkpointer=memory)


@SOME
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("memory", [None, True])
def test_p28_an_interrupt_in_a_subgraph(
    inner: Saver, door: Door, fresh: bool, memory: bool | None
) -> None:
    """The resumed run is the bare one's on the kept suffix, in order, and so is the next load."""
    lists: list[list[list[str]]] = []
    for given, way in ((inner, door), (InMemorySaver(), Door())):

        def make(saver: Any) -> Any:
            builder = StateGraph(MessagesState)
            builder.add_node("child", child_of(memory))
            builder.add_edge(START, "child")
            return builder.compile(checkpointer=saver)

        saver = wrap(given) if way is door else given
        graph = make(saver)
        found = []
        for i in range(4):
            way.invoke(graph, ask(i), at())
            state = way.get_state(graph, at(), subgraphs=True)
            found.append(ids(state.tasks[0].state.values["messages"]))
            if fresh and way is door:
                graph = make(wrap(inner))
            found.append(ids(way.invoke(graph, Command(resume="yes"), at())["messages"]))
            found.append(ids(way.get_state(graph, at()).values["messages"]))
        lists.append(found)
    kept, bare = lists
    for ours, theirs in zip(kept, bare, strict=True):
        assert ours == theirs[len(theirs) - len(ours) :]
        assert len(ours) >= 4
    assert kept[-1] == ["h3", "gh3.0", "gh3.1", "gh3.2", "sh3"]


@SOME
def test_p29_a_subgraph_with_memory(inner: Saver, door: Door) -> None:
    """Its namespace lives across turns: both lists leave the same, and nothing returns."""
    outcomes = []
    for saver, way in ((wrap(inner), door), (InMemorySaver(), Door())):

        def said(state: Any) -> Any:
            turn = next(m.id for m in reversed(state["messages"]) if m.type == "human")
            return {"messages": [AIMessage("s", id=f"s{turn[1:]}")]}

        builder = StateGraph(MessagesState)
        child = chain(MessagesState, said, silent).compile(checkpointer=True)
        builder.add_node("child", child)
        builder.add_node("reply", reply)
        builder.add_edge(START, "child")
        builder.add_edge("child", "reply")
        graph = builder.compile(checkpointer=saver)
        results = [ids(way.invoke(graph, ask(i), at())["messages"]) for i in range(6)]
        outcomes.append(results)
    kept, bare = outcomes
    for ours, theirs in zip(kept, bare, strict=True):
        assert ours == theirs[len(theirs) - len(ours) :]
    assert kept[-1] == ["h4", "s4", "a4", "h5", "s5", "a5"]


@SOME
def test_p31_the_functional_api(inner: Saver, door: Door) -> None:
    """Its list is in `__previous__`, or below a key in it: say so in `channels`."""

    def make(saver: Any, nested: bool) -> Any:
        @entrypoint(checkpointer=saver)
        def talk(given: Any, *, previous: Any = None) -> Any:
            before = (previous or {}).get("messages", []) if nested else previous or []
            messages = [*before, given, AIMessage("yes", id=f"a{given.id[1:]}")]
            counts = entrypoint.final(value=len(messages), save=messages)
            nests = entrypoint.final(value=len(messages), save={"messages": messages, "n": 1})
            return nests if nested else counts

        return talk

    for nested, names, lengths in (
        (False, ("messages",), [2, 4, 6, 8, 10]),
        (False, ("__previous__",), [2, 4, 4, 4, 4]),
        (True, ("__previous__",), [2, 4, 6, 8, 10]),
        (True, ("__previous__.messages",), [2, 4, 4, 4, 4]),
    ):
        talk = make(wrap(inner, channels=names), nested)
        thread = f"{nested} {names}"
        assert [door.invoke(talk, human(i), at(thread)) for i in range(5)] == lengths


class Chat(TypedDict):
    chat: Annotated[list[Any], add_messages]
    side: Annotated[list[Any], operator.add]


@SOME
def test_p32_other_names_and_other_messages(
    inner: Saver, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(state: Any) -> Any:
        count = len(state["chat"])
        side = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        return {"chat": [AIMessage("yes", id=f"a{count}.{state['chat'][-1].id}")], "side": side}

    def talk(thread: str, **settings: Any) -> dict[str, int]:
        saver = wrap(inner, **settings)
        graph = chain(Chat, answer, silent).compile(checkpointer=saver)
        for i in range(6):
            door.invoke(graph, {"chat": [human(i)], "side": []}, at(thread))
        values = door.get_state(graph, at(thread)).values
        return {name: len(value) for name, value in values.items()}

    assert talk("both", channels=("chat", "side")) == {"chat": 2, "side": 2}
    assert talk("one", channels=("chat",)) == {"chat": 2, "side": 12}
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "reducing_saver"):
        assert talk("none") == {"chat": 12, "side": 12}
    assert len(caplog.records) == 1, "one warning: nothing that is named was found"
    assert "messages" in caplog.text


# The wrapper as an object


class Parallel(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=100)]


@pytest.mark.parametrize("backend", ["memory-sync", "postgres-sync"], indirect=True)
def test_p36_parallel_writes_keep_their_order(inner: Saver, door: Door) -> None:
    """Without `task_path` a delta channel is folded in the order of random task ids."""
    builder = StateGraph(Parallel)
    for name in "abcdef":
        said = AIMessage(name, id=name)
        builder.add_node(name, lambda _, said=said: {"messages": [said]})
        builder.add_edge(START, name)
    builder.add_node("end", silent)
    builder.add_edge([*"abcdef"], "end")
    window = Window(("messages", 50))
    graph = builder.compile(
        checkpointer=wrap(inner, window, messages_reducer=_messages_delta_reducer)
    )
    for i in range(20):
        result = door.invoke(graph, ask(i), at(f"t{i}"))
        state = door.get_state(graph, at(f"t{i}"))
        assert ids(state.values["messages"]) == ids(result["messages"])


@pytest.mark.parametrize("backend", ["postgres-sync", "sqlite-sync"], indirect=True)
def test_p40_two_processes_on_one_thread(make_inner: Any, door: Door) -> None:
    """The newest checkpoint wins; the other branch is a leaf that still has its own true list."""
    first, second = make_inner("shared"), make_inner("shared")
    graphs = [chat(wrap(first)), chat(wrap(second))]
    for i in range(3):
        door.invoke(graphs[0], ask(i), at())
    start = door.get_state(graphs[1], at()).config
    ends = []
    for i, graph in ((10, graphs[0]), (20, graphs[1])):
        door.invoke(graph, ask(i), start)
        door.invoke(graph, ask(i + 1), at())
        ends.append(door.get_state(graph, at()))
    assert ids(ends[0].values["messages"]) == ["h11", "a11"]
    assert ids(ends[1].values["messages"]) == ["h21", "a21"]
    for graph in graphs:
        assert ids(door.get_state(graph, at()).values["messages"]) == ["h21", "a21"]
        assert ids(door.get_state(graph, ends[0].config).values["messages"]) == ["h11", "a11"]
        history = [ids(s.values.get("messages", [])) for s in door.get_state_history(graph, at())]
        for messages in history:
            line = {int(name[1:]) // 10 for name in messages} - {0}
            assert len(line) <= 1, "two lines in one list"


def test_p40_a_copied_fork_has_its_own_past(inner: Saver, door: Door) -> None:
    """Two lines from one checkpoint; where versions are numbers they have the same ones."""
    window = Window(("messages", 2), ("messages", 2), ("messages", 4))

    saver = wrap(inner, window)

    def more(state: Any) -> Any:
        last = state["messages"][-1].id
        count = 5 if last == "h2" else 1
        return {"messages": [AIMessage(f"{i}", id=f"{last}.{i}") for i in range(count)]}

    def make(*stops: str) -> Any:
        builder = chain(MessagesState, more, silent)
        return builder.compile(checkpointer=saver, interrupt_before=[*stops])

    whole, waiting = make(), make("silent")
    door.invoke(whole, ask(0), at())
    rest = door.get_state(whole, at()).config
    door.invoke(waiting, ask(1), rest)
    within = door.get_state(waiting, at())
    door.invoke(waiting, ask(2), rest)
    above = door.get_state(waiting, at())
    assert ids(within.values["messages"]) == ["h0", "h0.0", "h1", "h1.0"]
    assert "h0" not in ids(above.values["messages"]), "its line has evicted the turn before"
    copied = door.update_state(waiting, within.config, None, as_node="__copy__")
    state = door.get_state(waiting, copied)
    assert ids(state.values["messages"]) == ids(within.values["messages"])


# How threads grow


@SOME
def test_p42_rows_are_the_bare_saver_s(inner: Saver, door: Door) -> None:
    """Reducing bounds each checkpoint, not how many there are: that is another job."""
    counts = []
    for saver, way in ((wrap(inner), door), (InMemorySaver(), Door())):
        graph = chat(saver)
        for i in range(5):
            way.invoke(graph, ask(i), at())
        found = way.list(saver, at())
        counts.append([len(found), sum(len(each.pending_writes) for each in found)])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("backend", ["postgres-sync", "apostgres-async"], indirect=True)
def test_p43_a_pruned_thread_resumes(inner: Saver, door: Door) -> None:
    """`prune` keeps the head of each namespace, with the interrupt that waits in it."""
    window = Window(("messages", 2), ("messages", 2), ("messages", 4))
    saver = wrap(inner, window)

    def wait(state: Any) -> Any:
        turn = state["messages"][-1].id
        more = [AIMessage(f"{i}", id=f"{turn}.{i}") for i in range(5)]
        return {"messages": more}

    def last(state: Any) -> Any:
        return {"messages": [AIMessage(interrupt("?"), id=f"end{len(state['messages'])}")]}

    graph = chain(MessagesState, wait, last).compile(checkpointer=saver)
    for i in range(3):
        door.invoke(graph, ask(i), at())
        door.prune(saver, ["t"], strategy="keep_latest")
        assert len(door.list(inner, at())) == 1
        fresh = chain(MessagesState, wait, last).compile(checkpointer=wrap(inner, window))
        assert door.get_state(fresh, at()).next == ("last",)
        result = door.invoke(fresh, Command(resume="yes"), at())
        assert [m.content for m in result["messages"]][-1] == "yes"
        assert problems(result["messages"]) == ()


@SOME
@pytest.mark.parametrize("count", [20, 21])
def test_p44_an_old_thread_is_adopted(inner: Saver, door: Door, count: int) -> None:
    """40 messages stored bare: the first wrapped turn sees them, and leaves the window."""
    bare = chat(inner)
    for i in range(count):
        door.invoke(bare, ask(i), at())
    graph = chat(wrap(inner))
    assert len(door.get_state(graph, at()).values["messages"]) == 2 * count
    assert len(door.invoke(graph, ask(count), at())["messages"]) == 2 * count + 2
    assert ids(door.get_state(graph, at()).values["messages"]) == [f"h{count}", f"a{count}"]
    assert len(door.invoke(graph, ask(count + 1), at())["messages"]) == 4
    # And back: what the wrapper stored loads without it
    assert ids(door.get_state(bare, at()).values["messages"]) == [f"h{count + 1}", f"a{count + 1}"]
