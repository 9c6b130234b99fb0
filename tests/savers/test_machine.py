"""Random lives of threads on a bare saver and on wrapped ones, side by side.

The machine does what LangGraph's loop does with a saver (1.2.24): a run loads a checkpoint, keeps a
list of its own, and offers it whole at each super-step. Checkpoint ids are the same on all sides.

Long, and on Postgres as well:

    pytest tests/savers/test_machine.py -m campaign
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite
from services.door import AsyncDoor, Door
from services.savers import IntMemorySaver

from reducing_saver import Discard, ReducingSaver, Window
from reducing_saver.engine import When, problems, reduce_messages

Saver = BaseCheckpointSaver[Any]

WINDOWS = (
    Window(("messages", 2), ("messages", 2), ("messages", 4)),
    Window(("messages", 3), ("messages", 6), ("messages", 9)),
    Window(("turns", 1), ("turns", 2), ("messages", 7)),
    Window(("tokens", 30), ("tokens", 60), ("tokens", 120)),
    Window(("messages", 4), ("messages", 8), ("messages", 12), pinned="pin"),
)
NAMES = st.sampled_from(["one", "one", "two"])


class Side:
    """A saver, the door to it, and what is stored past the wrapper."""

    def __init__(self, name: str, inner: Saver, door: Door, window: Window | None = None) -> None:
        self.name, self.inner, self.door, self.window = name, inner, door, window
        self.saver = self.fresh()

    def fresh(self) -> Any:
        if self.window is None:
            return self.inner
        return ReducingSaver(self.inner, self.window, archive=Discard(), strict=True)

    def load(self, saver: Saver, thread: str, checkpoint: str | None) -> Any:
        return self.door.get_tuple(saver, at(thread, checkpoint))


@dataclass
class Loop:
    """What a run of one side has in hand: as LangGraph's loop does."""

    side: Side
    saver: Saver
    config: Any
    checkpoint: Any
    live: list[Any]
    step: int

    @classmethod
    def begin(cls, side: Side, saver: Any, thread: str, checkpoint: str | None) -> Loop:
        found = side.load(saver, thread, checkpoint)
        if found is None:
            return cls(side, saver, at(thread), empty_checkpoint(), [], -2)
        values = found.checkpoint["channel_values"]
        step = found.metadata["step"]
        return cls(side, saver, found.config, found.checkpoint, [*values.get("messages", ())], step)

    def put(
        self, checkpoint_id: str, waits: dict[str, Any], *, updated: set[str], source: str
    ) -> None:
        versions = {**self.checkpoint["channel_versions"]}
        known = list(versions.values())
        following = self.saver.get_next_version(max(known) if known else None, None)
        before = self.checkpoint["channel_values"]
        updated = updated | ({*before} ^ {*waits} - {"messages", "other"}) - {"messages", "other"}
        new = dict.fromkeys(sorted(updated), following)
        values = {"other": before.get("other", 0) + 1, **waits}
        new["other"] = following
        if self.live or "messages" in before:
            values["messages"] = self.live
        self.step += 1
        self.checkpoint = {
            **empty_checkpoint(),
            "id": checkpoint_id,
            "channel_values": values,
            "channel_versions": {**versions, **new},
            "versions_seen": {
                **self.checkpoint["versions_seen"],
                "model": {k: v for k, v in versions.items() if k == "messages"},
            },
        }
        offered = [*self.live]
        metadata = {"source": source, "step": self.step, "parents": {}}
        self.config = self.side.door.put(self.saver, self.config, self.checkpoint, metadata, new)
        assert self.live == offered, "the run's own list was changed"
        assert self.checkpoint["channel_values"].get("messages", self.live) is self.live

    def write(self, checkpoint_id: str, task: str, writes: list[Any]) -> None:
        thread = self.config["configurable"]["thread_id"]
        self.side.door.put_writes(self.saver, at(thread, checkpoint_id), writes, task)


@dataclass
class Stored:
    """What is known of a checkpoint; `evicted` is what its line has evicted up to it, by side.

    `on_purpose` are messages that a pending write keeps, evicted or not.
    """

    thread: str
    parent: str | None
    rest: bool
    moved: bool
    evicted: dict[str, set[str]]
    pending: list[tuple[str, list[Any]]] = field(default_factory=list)
    on_purpose: set[str] = field(default_factory=set)


def at(thread: str, checkpoint: str | None = None) -> Any:
    named = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": named | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def held(found: Any) -> list[Any]:
    return found.checkpoint["channel_values"].get("messages", [])


def shown(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(message.id, message.content) for message in messages]


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


def is_part(part: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in part)


def open_calls(messages: list[Any]) -> list[str]:
    answered = {m.tool_call_id for m in messages if m.type == "tool"}
    asked = [call["id"] for m in messages if m.type == "ai" for call in m.tool_calls]
    return [call for call in asked if call not in answered]


def last_human(messages: list[Any]) -> int:
    return max((i for i, m in enumerate(messages) if m.type == "human"), default=0)


OPS = st.one_of(
    st.just(("ai",)),
    st.tuples(st.just("unit"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("open"), st.integers(1, 2)),
    st.just(("answer",)),
    st.tuples(st.just("edit"), st.integers(0, 40)),
    st.tuples(st.just("remove"), st.integers(0, 40)),
    st.just(("human",)),
)
STEPS = st.lists(OPS, min_size=1, max_size=4)
WRITES = st.sampled_from(["new", "edit", "remove", "answer", "whole", "other", "unit"])


class Machine(RuleBasedStateMachine):
    """Sides are made by `SIDES`, given a window."""

    make_sides: Callable[[Window], list[Side]]
    runs: Bundle[Any] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.known: dict[str, Stored] = {}
        self.sides: list[Side] = []
        self.tag = uuid.uuid4().hex[:8]

    @initialize(window=st.sampled_from(WINDOWS), removes=st.booleans())
    def begin(self, window: Window, removes: bool) -> None:
        self.window, self.removes = window, removes
        self.sides = type(self).make_sides(window)

    def teardown(self) -> None:
        if self.sides:
            self.everything_is_right()
        for side in self.sides:
            side.door.close()

    # Names and messages

    def number(self) -> int:
        self.count += 1
        return self.count

    def new_id(self) -> str:
        return str(uuid6(clock_seq=self.number()))

    def ai(self, calls: int = 0, pin: bool = False) -> AIMessage:
        n = self.number()
        name = "pin" if pin else "look"
        made = [{"name": name, "args": {}, "id": f"c{n}.{i}"} for i in range(calls)]
        return AIMessage(f"said {n}", id=f"a{n}", tool_calls=made)

    def result(self, call: str) -> ToolMessage:
        n = self.number()
        return ToolMessage(f"result {n}", tool_call_id=call, id=f"r{n}")

    def made(self, op: tuple[Any, ...], bare: list[Any]) -> Any:
        """Give a change to a list, made up once for all sides."""
        match op:
            case ("ai",):
                return [self.ai()]
            case ("human",):
                return [HumanMessage(f"asked {self.number()}", id=f"h{self.number()}")]
            case ("unit", calls, pin):
                ai = self.ai(calls, pin)
                return [ai, *(self.result(call["id"]) for call in ai.tool_calls)]
            case ("open", calls):
                return [self.ai(calls)]
            case ("answer",):
                return [self.result(call) for call in open_calls(bare)]
            case ("edit", k) if bare:
                old = bare[k % len(bare)]
                return ("edit", old.model_copy(update={"content": f"edited {self.number()}"}))
            case ("remove", k) if self.removes and (earlier := bare[: last_human(bare)]):
                return ("remove", earlier[k % len(earlier)].id)
        return []

    @staticmethod
    def changed(live: list[Any], change: Any) -> list[Any]:
        """Carry out a change as a reducer does: a new list."""
        match change:
            case ("edit", new):
                return [new if m.id == new.id else m for m in live]
            case ("remove", name):
                return [m for m in live if m.id != name]
        return [*live, *change]

    # Rules

    def loops(self, thread: str, checkpoint: str | None) -> list[Loop]:
        return [Loop.begin(side, side.saver, thread, checkpoint) for side in self.sides]

    def put(
        self,
        loops: list[Loop],
        *,
        parent: str | None,
        rest: bool = False,
        silent: bool = False,
        source: str = "loop",
        ahead: list[Any] | None = None,
        resumed: bool = False,
        on_purpose: Set[str] = frozenset(),
    ) -> str:
        name = self.new_id()
        thread = loops[0].config["configurable"]["thread_id"]
        waits: dict[str, Any] = {} if rest else {"branch:to:model": None}
        if source == "input":
            waits = {"__start__": {"messages": []}}
        pending = []
        if ahead:
            pending.append(("ahead", ahead))
            for loop in loops:
                loop.write(name, f"ahead-{name}", ahead)
        updated = set() if silent else {"messages"}
        for loop in loops:
            loop.put(name, waits, updated=updated, source=source)
        before = self.known[parent].evicted if parent else {}
        before = {side: names - on_purpose for side, names in before.items()}
        self.known[name] = Stored(thread, parent, rest, not silent, {}, pending)
        self.look_at(name, before)
        for loop in loops[1:]:
            self.is_what_the_rules_say(loop, name, before, resumed=resumed)
        return name

    def is_what_the_rules_say(
        self, loop: Loop, name: str, before: dict[str, set[str]], *, resumed: bool
    ) -> None:
        """Reduce at rest and where a run was resumed, and otherwise above the cap only."""
        stored = self.known[name]
        own = held(loop.side.load(loop.side.inner, stored.thread, name))
        if not stored.rest and not stored.moved:
            return  # then it is the parent's list, see below
        evicted = before.get(loop.side.name, set())
        offered = [message for message in loop.live if message.id not in evicted]
        when = When.REST if stored.rest else When.RESUME if resumed else When.RUN
        assert ids(own) == ids(reduce_messages(offered, self.window, when=when).messages), when

    @rule(target=runs, thread=NAMES, back=st.integers(0, 12), steps=st.lists(STEPS, max_size=4))
    def start(self, thread: str, back: int, steps: list[Any]) -> Any:
        """A user's turn, from the head of a thread or from an older checkpoint."""
        thread = f"{thread} {self.tag}"
        mine = [name for name, each in self.known.items() if each.thread == thread]
        origin = sorted(mine)[-1 - back % len(mine)] if mine and back > 5 else None
        head = origin or (max(mine) if mine else None)
        loops = self.loops(thread, origin)
        first = self.put(loops, parent=head, silent=True, source="input")
        human = HumanMessage(f"asked {self.number()}", id=f"h{self.number()}")
        for loop in loops:
            loop.live = [*loop.live, human]
        second = self.put(loops, parent=first)
        run = [loops, second]
        for each in steps:
            self.change(loops, each)
            run[1] = self.put(loops, parent=run[1])
        return run

    @rule(run=runs, ops=STEPS, silent=st.booleans(), ahead=st.none() | WRITES)
    def step(self, run: Any, ops: list[Any], silent: bool, ahead: str | None) -> None:
        loops, parent = run
        if parent not in self.known:
            return
        if not silent:
            self.change(loops, ops)
        writes = self.writes(loops[1].live, ahead, 3) if ahead else None
        run[1] = self.put(loops, parent=parent, silent=silent, ahead=writes)

    @rule(run=consumes(runs), ops=STEPS, silent=st.booleans())
    def finish(self, run: Any, ops: list[Any], silent: bool) -> None:
        loops, parent = run
        if parent not in self.known:
            return
        if not silent:
            self.change(loops, ops)
        self.put(loops, parent=parent, silent=silent, rest=True)

    def change(self, loops: list[Loop], ops: list[Any]) -> None:
        for op in ops:
            # Nobody answers a call of an earlier turn that the wrapped side no longer knows
            change = self.made(op, loops[op == ("answer",)].live)
            for loop in loops:
                loop.live = self.changed(loop.live, change)

    def writes(self, bare: list[Any], kind: str, k: int) -> list[Any]:
        """Give the writes of a task that has seen this list."""
        other = ("other", self.number())
        old = bare[k % len(bare)]
        match kind:
            case "new":
                return [other, ("messages", [self.ai()])]
            case "unit":
                ai = self.ai(1)
                return [("messages", [ai, self.result(ai.tool_calls[0]["id"])]), other]
            case "edit":
                edited = old.model_copy(update={"content": f"edited {self.number()}"})
                return [("messages", [self.ai(), edited])]
            case "remove" if self.removes and (earlier := bare[: last_human(bare)]):
                return [("messages", [RemoveMessage(earlier[k % len(earlier)].id)])]
            case "answer":
                asked = [c["id"] for m in bare if m.type == "ai" for c in m.tool_calls]
                again = [self.result(call) for call in asked[k % len(asked) :][:1]] if asked else []
                return [("messages", [*again, self.ai()])]
            case "whole":
                return [("messages", [*bare, self.ai()]), other]
        return [other]

    @rule(run=runs, kind=WRITES, k=st.integers(0, 40))
    def write(self, run: Any, kind: str, k: int) -> None:
        """A task of the next super-step finishes, and its checkpoint is not there yet."""
        loops, name = run
        if name not in self.known:
            return
        # The task saw what its run has in hand: names are taken from the wrapped side's list
        writes = self.writes(loops[1].live, kind, k)
        stored = self.known[name]
        removed = [m.id for _, ws in stored.pending for m in messages_in(ws) if m.type == "remove"]
        if any(m.type == "remove" and m.id in removed for m in messages_in(writes)):
            return  # `add_messages` refuses to remove twice, bare too
        task = f"task-{self.number()}"
        for loop in loops:
            loop.write(name, task, writes)
        stored.pending.append((task, writes))

    @rule(target=runs, run=consumes(runs), ops=STEPS)
    def resume(self, run: Any, ops: list[Any]) -> Any:
        """The process has gone; another one goes on from the store, with the writes it finds."""
        _, name = run
        if name not in self.known:
            return run
        loops = self.from_store(name)
        self.change(loops, ops)
        on_purpose = self.known[name].on_purpose
        return [loops, self.put(loops, parent=name, resumed=True, on_purpose=on_purpose)]

    def from_store(self, name: str) -> list[Loop]:
        """Give runs that go on from a checkpoint and its pending writes, as LangGraph resumes."""
        thread = self.known[name].thread
        loops = self.loops(thread, name)
        for loop in loops:
            loop.live = folded(loop.side.load(loop.saver, thread, name))
            seen = {"__interrupt__": {**loop.checkpoint["channel_versions"]}}
            seen = {**loop.checkpoint["versions_seen"], **seen}
            loop.checkpoint = {**loop.checkpoint, "versions_seen": seen}
        return loops

    @precondition(lambda self: self.removes)
    @rule(
        target=runs,
        run=consumes(runs),
        remove_all=st.booleans(),
        crash=st.booleans(),
        picks=st.sets(st.integers(0, 40), max_size=4),
    )
    def replace(self, run: Any, remove_all: bool, crash: bool, picks: set[int]) -> Any:
        """A task replaces the list; messages of it that the store has evicted are meant to stay."""
        loops, name = run
        if name not in self.known or self.known[name].pending:
            return run  # a removal of what is not in the new list is an error, bare too
        live = loops[1].live
        chosen = [live[i] for i in sorted({pick % len(live) for pick in picks})]
        value: Any = [*chosen, self.ai()]
        whole = [RemoveMessage(REMOVE_ALL_MESSAGES), *value] if remove_all else Overwrite(value)
        for loop in loops:
            loop.write(name, f"replaces-{name}", [("messages", whole)])
        self.known[name].on_purpose = {*ids(value)}
        if crash:
            loops = self.from_store(name)
        else:
            for loop in loops:
                loop.live = value
        after = self.put(loops, parent=name, resumed=crash, on_purpose={*ids(value)})
        return [loops, after]

    @precondition(lambda self: self.known)
    @rule(back=st.integers(0, 30))
    def copy(self, back: int) -> None:
        """`update_state(as_node="__copy__")`: put again, under the parent's parent."""
        origin = [*self.known][-1 - back % len(self.known)]
        stored = self.known[origin]
        name = self.new_id()
        for side in self.sides:
            found = side.load(side.saver, stored.thread, origin)
            config = found.parent_config or at(stored.thread)
            copied = {**found.checkpoint, "id": name}
            step = found.metadata["step"] + 1
            metadata = {"source": "fork", "step": step, "parents": {}}
            side.door.put(side.saver, config, copied, metadata, {})
        self.known[name] = Stored(stored.thread, stored.parent, stored.rest, False, {})
        self.look_at(name, stored.evicted, copied=origin)

    @rule(what=st.sampled_from(["another process"] * 3 + ["forget"] * 3 + ["delete"]), thread=NAMES)
    def happen(self, what: str, thread: str) -> None:
        match what:
            case "another process":  # runs that are under way go on in the old one
                for side in self.sides:
                    side.saver = side.fresh()
            case "forget":  # the memory is full of other threads
                for side in self.sides[1:]:
                    side.saver._lineage._threads.clear()
            case _:
                self.delete(f"{thread} {self.tag}")

    def delete(self, thread: str) -> None:
        for side in self.sides:
            side.door.delete_thread(side.saver, thread)
            assert side.door.list(side.saver, at(thread)) == []
            assert side.load(side.saver, thread, None) is None
        self.known = {n: each for n, each in self.known.items() if each.thread != thread}

    # What must hold

    def look_at(self, name: str, before: dict[str, set[str]], copied: str | None = None) -> None:
        """Look at a checkpoint that was just stored."""
        stored = self.known[name]
        bare, *kept = ((side, side.load(side.inner, stored.thread, name)) for side in self.sides)
        whole = held(bare[1])
        lists = {side.name: shown(held(found)) for side, found in kept}
        assert len({str(each) for each in lists.values()}) == 1, lists
        for side, found in kept:
            own = held(found)
            assert is_part(shown(own), shown(whole))
            assert len({*ids(own)}) == len(own)
            if whole:
                assert own[-1].id == whole[-1].id, (shown(own), shown(whole))
            assert not before.get(side.name, set()).intersection(ids(own)), "it came back"
            gone = {*ids(whole)} - {*ids(own)}
            stored.evicted[side.name] = before.get(side.name, set()) | gone
            self.is_within_the_window(stored, side, found, copied)
            self.rest_is_equal(found, bare[1])
            # Who removes a question alone makes the list behind it begin with an answer
            if not self.removes and problems(whole) == ():
                assert problems(own) == () or not own

    def is_within_the_window(
        self, stored: Stored, side: Side, found: Any, copied: str | None
    ) -> None:
        own = held(found)
        origin = copied or stored.parent
        before = side.load(side.inner, stored.thread, origin) if origin else None
        if before is not None:
            versions = [t.checkpoint["channel_versions"].get("messages") for t in (before, found)]
            if versions[0] is not None:
                assert versions[1] >= versions[0], "a version went backwards"
            if versions[0] == versions[1] or copied:
                assert shown(held(before)) == shown(own), "another list under the same version"
        if stored.rest:
            assert not reduce_messages(own, self.window, when=When.REST).plan.changes
        elif stored.moved:
            assert not reduce_messages(own, self.window, when=When.RUN).plan.changes
        elif before is not None:
            assert shown(own) == shown(held(before)), "the middle of a run, and nothing was said"

    def rest_is_equal(self, found: Any, bare: Any) -> None:
        values = [
            {k: v for k, v in t.checkpoint["channel_values"].items() if k != "messages"}
            for t in (found, bare)
        ]
        assert values[0] == values[1]
        metadata = [
            {k: v for k, v in t.metadata.items() if k != "reducing_saver"} for t in (found, bare)
        ]
        assert metadata[0] == metadata[1]
        assert {*found.checkpoint["channel_versions"]} == {*bare.checkpoint["channel_versions"]}
        assert (found.parent_config is None) == (bare.parent_config is None)
        if found.parent_config:
            assert parent_of(found) == parent_of(bare)

    @invariant()
    def heads_are_right(self) -> None:
        if self.known and self.count % 5 == 0:
            self.is_read_right(max(self.known))

    def everything_is_right(self) -> None:
        for name in [*self.known][-12:]:
            self.is_read_right(name)
        for thread in {each.thread for each in self.known.values()}:
            mine = sorted((n for n, e in self.known.items() if e.thread == thread), reverse=True)
            for side in self.sides:
                saver = side.fresh()
                listed = side.door.list(saver, at(thread))
                assert [each.checkpoint["id"] for each in listed] == mine
                for each in listed[:6]:
                    read = side.load(saver, thread, each.checkpoint["id"])
                    assert shown(held(each)) == shown(held(read))
                    assert each.pending_writes == read.pending_writes

    def is_read_right(self, name: str) -> None:
        """Read a checkpoint as a resumed run does, by this process and by another."""
        stored = self.known[name]
        bare, *kept = self.sides
        whole = bare.load(bare.inner, stored.thread, name)
        try:
            result = folded(whole)
        except ValueError:
            return  # removed twice: unreadable bare as well
        for side in kept:
            raw = side.load(side.inner, stored.thread, name)
            for saver in (side.saver, side.fresh()):
                found = side.load(saver, stored.thread, name)
                assert shown(held(found)) == shown(held(raw))
                assert [w[:2] for w in found.pending_writes] == [w[:2] for w in raw.pending_writes]
                for now, was in zip(found.pending_writes, raw.pending_writes, strict=True):
                    if now[1] != "messages":
                        assert now == was
                own = folded(found)
                assert is_part(shown(own), shown(result)), (shown(own), shown(result))
                came_back = stored.evicted.get(side.name, set()).intersection(ids(own))
                assert not came_back - stored.on_purpose


def messages_in(writes: list[Any]) -> Iterator[Any]:
    for channel, value in writes:
        if channel == "messages":
            yield from value


def folded(found: Any) -> list[Any]:
    """Apply pending writes as LangGraph does."""
    messages = [*held(found)]
    for _, channel, value in found.pending_writes or ():
        if channel == "messages" and isinstance(value, Overwrite):
            return [*value.value]
        if channel == "messages":
            messages = add_messages(messages, value)
    return messages


def parent_of(found: Any) -> str:
    return found.parent_config["configurable"]["checkpoint_id"]


def opened(manager: Any) -> tuple[Saver, Door]:
    door = Door()
    saver = door.open(manager)
    saver.setup()
    return saver, door


def few_sides(window: Window) -> list[Side]:
    return [
        Side("bare", InMemorySaver(), Door()),
        Side("memory", InMemorySaver(), Door(), window),
        Side("sqlite", *opened(SqliteSaver.from_conn_string(":memory:")), window),
        Side("inline, async", IntMemorySaver(), AsyncDoor(), window),
    ]


QUIET = [*HealthCheck]


def machine(make: Callable[[Window], list[Side]]) -> type[Machine]:
    return type("Lives", (Machine,), {"make_sides": staticmethod(make)})


def test_random_lives() -> None:
    run_state_machine_as_test(
        machine(few_sides),
        settings=settings(
            max_examples=30,
            stateful_step_count=25,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=QUIET,
        ),
    )


@pytest.mark.campaign
@pytest.mark.skipif("'campaign' not in config.option.markexpr", reason="long: run with -m campaign")
@pytest.mark.parametrize("seed", range(8))
def test_many_random_lives(seed: int) -> None:
    from hypothesis import seed as seeded

    seeded(seed)(run_state_machine_as_test)(
        seeded(seed)(machine(few_sides)),
        settings=settings(
            max_examples=250,
            stateful_step_count=40,
            database=None,
            deadline=None,
            suppress_health_check=QUIET,
        ),
    )


@pytest.mark.campaign
@pytest.mark.skipif("'campaign' not in config.option.markexpr", reason="long: run with -m campaign")
def test_random_lives_on_postgres(make_database: Callable[[], str]) -> None:
    dsn = make_database()

    def make(window: Window) -> list[Side]:
        saver, door = opened(PostgresSaver.from_conn_string(dsn))
        return [*few_sides(window)[:2], Side("postgres", saver, door, window)]

    run_state_machine_as_test(
        machine(make),
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            database=None,
            deadline=None,
            suppress_health_check=QUIET,
        ),
    )
