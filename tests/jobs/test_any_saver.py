"""Compaction of any saver through its public API, and what a probe finds about savers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from jobs.graphs import PLAYS, Play, chain, finished, turn
from jobs.test_semantics import WINDOW, names, same
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from services.savers import IntMemorySaver

from reducing_saver import (
    ConfigurationError,
    Discard,
    JobError,
    Policy,
    ReducingSaver,
    Report,
    Retain,
    StoreArchive,
    compact,
    probe,
)
from reducing_saver._retain import after
from reducing_saver.jobs.others import Others
from reducing_saver.jobs.work import Task
from reducing_saver.rows.any_saver import Way

POLICY = Policy(WINDOW)
SAVERS = ["memory", "sqlite", "postgres"]
CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def make(make_database: Callable[[], str], tmp_path: Any) -> Iterator[Callable[[str], Any]]:
    import contextlib

    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def made(kind: str) -> Any:
            if kind == "memory":
                return InMemorySaver()
            if kind == "postgres":
                from langgraph.checkpoint.postgres import PostgresSaver

                saver = stack.enter_context(PostgresSaver.from_conn_string(make_database()))
                saver.setup()
                return saver
            from langgraph.checkpoint.sqlite import SqliteSaver

            path = str(tmp_path / f"{next(numbers)}.db")
            return stack.enter_context(SqliteSaver.from_conn_string(path))

        yield made


def run(saver: Any, archive: Any = None, **settings: Any) -> Report:
    """Compact through the public API, also where there is a faster way."""
    reducer = settings.pop("reducer", None)
    policy = settings.pop("policy", POLICY)
    kept = None if archive is None else archive
    task = Task(policy, archive=kept, archives=kept is not None, idle=NONE, reducer=reducer)
    return Others(saver, task, ["t"], **settings).go(dry_run=False)


NONE = timedelta()


def nothing_done(report: Report) -> dict[str, int]:
    """Return what is said of a thread of which nothing leaves; its lists may be short."""
    return {} if report.evicted or report.deleted else {"compacted before": 1}


def listed(saver: Any) -> int:
    return len([*saver.list(CONFIG)])


@pytest.mark.parametrize("paused", ["skip", "history"])
@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("name", PLAYS)
def test_it_goes_on_as_its_twin(name: str, kind: str, paused: Any, make: Any) -> None:
    ours, twin = PLAYS[name](make(kind)), PLAYS[name](make(kind))
    archive = StoreArchive(InMemoryStore())
    policy = Policy(WINDOW, Retain(tips=name == "fork"), paused)
    for play in (ours, twin):
        play.start()
    report = run(ours.saver, archive, policy=policy, reducer=ours.reducer)
    assert not report.errors
    assert report.backend.endswith(Way.SAME_ID)
    stays = ours.waits and paused == "skip"
    assert report.skipped == ({"paused": 1} if stays else nothing_done(report))
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    if not ours.waits and not name.startswith("subgraph"):
        assert report.evicted > 0 or name == "pregel on messages"  # that one is short
        loaded = ours.graph.get_state(ours.config).values["messages"]
        assert len(loaded) <= WINDOW.triggers[0].value
    same(ours.go_on(), twin.go_on())
    assert ours.nodes == twin.nodes
    again = run(ours.saver, archive, policy=policy, reducer=ours.reducer)
    assert not again.errors
    assert again.skipped == nothing_done(again)
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    if not ours.reducer:
        saver = ReducingSaver(ours.saver, WINDOW, archive=archive)
        whole = twin.graph.get_state(twin.config).values["messages"]
        assert names(saver.transcript(ours.config)) == names(whole)


@pytest.mark.parametrize("kind", SAVERS)
def test_the_saver_deletes_what_it_can(kind: str, make: Any) -> None:
    play = finished(make(kind))
    play.start()
    before = listed(play.saver)
    report = run(play.saver, policy=Policy(WINDOW))
    assert report.deleted == (before - 1 if kind == "postgres" else 0)
    assert listed(play.saver) == before - report.deleted
    assert report.bytes.evicted > 0
    kept = run(play.saver, policy=Policy(WINDOW, Retain(last=2)))
    assert kept.deleted == 0  # prune would keep one


@pytest.mark.parametrize("kind", SAVERS)
def test_every_checkpoint_that_stays_is_reduced(kind: str, make: Any) -> None:
    play = finished(make(kind))
    play.start()
    report = run(play.saver, policy=Policy(WINDOW, Retain(last=1_000)))
    assert report.deleted == 0
    found = [one.checkpoint for one in play.saver.list(CONFIG)]
    most = WINDOW.triggers[0].value + 1
    assert all(len(one["channel_values"].get("messages", ())) <= most for one in found)
    versions = [one["channel_versions"].get("messages") for one in found]
    assert len({*versions}) > 6
    assert len({one["id"] for one in found}) == len(found)


def test_a_rerun_finds_nothing_left() -> None:
    play = finished(InMemorySaver())
    play.start()
    first = compact(play.saver, POLICY, archive=Discard(), idle="0", dry_run=False)
    head = play.saver.get_tuple(CONFIG)
    second = compact(play.saver, POLICY, archive=Discard(), idle="0", dry_run=False)
    assert (first.evicted > 0, second.evicted) == (True, 0)
    assert play.saver.get_tuple(CONFIG) == head


def test_a_dry_run_writes_nothing() -> None:
    play = finished(InMemorySaver())
    play.start()
    seen: list[str] = []
    play.saver.put = lambda *a, **k: seen.append("put")  # type: ignore[method-assign,assignment]
    report = compact(play.saver, POLICY, archive=Discard(), idle="0")
    assert report.dry_run
    assert report.evicted > 0
    assert not seen


def test_young_threads_and_limits() -> None:
    saver = InMemorySaver()
    for thread in "abc":
        play = finished(saver)
        play.thread = thread
        play.start()
    given: dict[str, Any] = {"archive": Discard(), "dry_run": False}
    assert compact(saver, POLICY, idle="1h", **given).skipped == {"younger than idle": 3}
    one = compact(saver, POLICY, idle="0", max_threads=1, **given)
    assert (one.threads, one.compacted, one.left, one.exit_code) == (1, 1, 2, 3)
    rest = compact(saver, POLICY, idle="0", threads=["b", "no such thread", "b"], **given)
    assert (rest.threads, rest.compacted) == (1, 1)


def test_hooks_are_told() -> None:
    play = finished(InMemorySaver())
    play.start()
    told: list[Any] = []
    archive = StoreArchive(InMemoryStore())
    given: dict[str, Any] = {"archive": archive, "idle": "0", "dry_run": False}
    report = compact(play.saver, POLICY, on_evict=[told.append], **given)
    assert sum(len(one.messages) for one in told) == report.evicted > 0
    assert not archive.undelivered("t")


def test_what_only_a_database_can_do_is_refused() -> None:
    saver = InMemorySaver()
    for wrong in ({"job": "nightly"}, {"archive": "same"}):
        given: dict[str, Any] = {"archive": Discard(), "idle": "0", **wrong}
        with pytest.raises(ConfigurationError):
            compact(saver, POLICY, **given)
    with pytest.raises(ConfigurationError, match="which there are"):
        compact(IntMemorySaver(), POLICY, archive=Discard())


def test_a_thread_that_goes_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is stored between the look and the put: it is there afterwards, whole."""
    play = finished(InMemorySaver())
    play.start()
    archive = StoreArchive(InMemoryStore())
    write = StoreArchive.write

    def late(self: Any, *args: Any, **settings: Any) -> None:
        write(self, *args, **settings)
        if not late_turns:
            late_turns.append(1)
            play.graph.invoke(turn(50), CONFIG)

    late_turns: list[int] = []
    monkeypatch.setattr(StoreArchive, "write", late)
    given: dict[str, Any] = {"archive": archive, "idle": "0", "dry_run": False}
    report = compact(play.saver, POLICY, **given)
    assert report.skipped == {"younger than idle": 1}
    loaded = play.graph.get_state(CONFIG).values["messages"]
    assert loaded[-3].id == "h50"
    again = compact(play.saver, POLICY, **given)
    assert (again.compacted, again.skipped) == (1, {})


# Savers that fail the probe


class Refuses(InMemorySaver):
    """Refuses the same id twice, as langgraph-checkpoint-cosmosdb 0.4.0."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread = config["configurable"]["thread_id"]
        space = config["configurable"].get("checkpoint_ns", "")
        if checkpoint["id"] in self.storage[thread][space]:
            raise ValueError("409: there is one of this id")
        return super().put(config, checkpoint, metadata, new_versions)


class LosesWrites(InMemorySaver):
    """Does not see pending writes of what is put again, as langgraph-checkpoint-redis 0.5.2."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread = config["configurable"]["thread_id"]
        space = config["configurable"].get("checkpoint_ns", "")
        self.writes.pop((thread, space, checkpoint["id"]), None)
        return super().put(config, checkpoint, metadata, new_versions)


class PointsToTheLast(LosesWrites):
    """What was put last is the newest, as langgraph-checkpoint-redis 0.5.2."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[Any, str] = {}

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        named = config["configurable"]
        self.latest[named["thread_id"], named.get("checkpoint_ns", "")] = checkpoint["id"]
        return super().put(config, checkpoint, metadata, new_versions)

    def get_tuple(self, config: Any) -> Any:
        named = config["configurable"]
        if not named.get("checkpoint_id"):
            key = named["thread_id"], named.get("checkpoint_ns", "")
            config = {"configurable": {**named, "checkpoint_id": self.latest.get(key)}}
        return super().get_tuple(config)


class KeepsTheFirst(InMemorySaver):
    """Ignores what is put again."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread = config["configurable"]["thread_id"]
        space = config["configurable"].get("checkpoint_ns", "")
        if checkpoint["id"] in self.storage[thread][space]:
            return config
        return super().put(config, checkpoint, metadata, new_versions)


class LosesParents(InMemorySaver):
    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        named = config["configurable"]
        space = named.get("checkpoint_ns", "")
        if checkpoint["id"] in self.storage[named["thread_id"]][space]:
            config = {"configurable": {**named, "checkpoint_id": None}}
        return super().put(config, checkpoint, metadata, new_versions)


class LosesChannels(InMemorySaver):
    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        named = config["configurable"]
        if checkpoint["id"] in self.storage[named["thread_id"]][named.get("checkpoint_ns", "")]:
            versions = {k: v for k, v in checkpoint["channel_versions"].items() if k == "messages"}
            checkpoint = {**checkpoint, "channel_versions": versions}
        return super().put(config, checkpoint, metadata, new_versions)


class CountsVersions(InMemorySaver):
    """Stores lists by versions that two runs count alike."""

    def get_next_version(self, current: Any, channel: None) -> Any:
        return f"{int(current or 0) + 1:032}"


class ListsNothing(InMemorySaver):
    def list(self, *args: Any, **settings: Any) -> Iterator[Any]:
        return iter(())


class DeletesNothing(InMemorySaver):
    def delete_thread(self, thread_id: str) -> None:
        raise NotImplementedError


class AsyncOnly(InMemorySaver):
    def put(self, *args: Any, **settings: Any) -> Any:
        raise NotImplementedError


FAKES: list[tuple[type[BaseCheckpointSaver[Any]], Way, set[str]]] = [
    (InMemorySaver, Way.SAME_ID, {"prune"}),
    (IntMemorySaver, Way.NEW_ID, {"same id", "prune"}),
    (Refuses, Way.NEW_ID, {"same id", "prune"}),
    (LosesWrites, Way.NEW_ID, {"writes", "prune"}),
    (PointsToTheLast, Way.NEW_ID, {"writes", "newest", "prune"}),
    (KeepsTheFirst, Way.NEW_ID, {"replaces", "prune"}),
    (LosesParents, Way.NEW_ID, {"parent", "prune"}),
    (LosesChannels, Way.NEW_ID, {"other channels", "prune"}),
    (CountsVersions, Way.NONE, {"versions", "prune"}),
    (ListsNothing, Way.SAME_ID, {"lists", "namespaces", "prune"}),
    (DeletesNothing, Way.SAME_ID, {"prune", "cleans up"}),
    (AsyncOnly, Way.NONE, {"stores"}),
]


@pytest.mark.parametrize(("kind", "way", "wrong"), FAKES, ids=[one[0].__name__ for one in FAKES])
def test_what_a_probe_finds(kind: Any, way: Way, wrong: set[str]) -> None:
    saver = kind()
    probed = probe(saver)
    assert probed.way is way, str(probed)
    assert {one.name for one in probed.findings if not one.ok} == wrong, str(probed)
    assert str(probed).splitlines()[0] == f"{kind.__name__}: {way}"
    assert probed.exit_code == (way is Way.NONE)
    assert all(one.words in str(probed) for one in probed.findings)
    if kind is DeletesNothing:
        assert "reducing-saver-probe-" in str(probed)
    elif isinstance(saver, InMemorySaver):
        assert not any(saver.storage.values())
        assert not saver.writes


@pytest.mark.parametrize("kind", SAVERS)
def test_what_a_probe_finds_in_real_savers(kind: str, make: Any) -> None:
    saver = make(kind)
    probed = probe(ReducingSaver(saver, WINDOW, archive=Discard()))
    assert probed.way is Way.SAME_ID
    expected = set() if kind == "postgres" else {"prune"}
    assert {one.name for one in probed.findings if not one.ok} == expected, str(probed)
    assert not [*saver.list(None)]


def test_a_probe_needs_a_saver() -> None:
    with pytest.raises(ConfigurationError):
        probe("chat.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [IntMemorySaver, Refuses, PointsToTheLast])
@pytest.mark.parametrize("name", PLAYS)
def test_a_saver_that_fails_goes_on_as_its_twin(name: str, kind: Any) -> None:
    """Only finished threads are compacted, with a new checkpoint."""
    ours, twin = PLAYS[name](kind()), PLAYS[name](kind())
    for play in (ours, twin):
        play.start()
    before = listed(ours.saver)
    archive = StoreArchive(InMemoryStore())
    given: dict[str, Any] = {"archive": archive, "idle": "0", "dry_run": False, "threads": ["t"]}
    report = compact(ours.saver, POLICY, messages_reducer=ours.reducer, **given)
    assert not report.errors
    assert report.backend.endswith(Way.NEW_ID)
    assert report.skipped == ({"paused": 1} if ours.waits else nothing_done(report))
    assert (listed(ours.saver) > before) == (report.evicted > 0)
    assert ours.waits or name.startswith(("subgraph", "pregel")) or report.evicted > 0
    same(ours.graph.get_state(ours.config), twin.graph.get_state(twin.config))
    same(ours.go_on(), twin.go_on())
    assert ours.nodes == twin.nodes


def test_a_saver_of_which_nothing_can_be_rewritten_is_refused() -> None:
    saver = CountsVersions()
    play = finished(saver)
    play.start()
    head = saver.get_tuple(CONFIG)
    with pytest.raises(JobError, match="takes the place of one that another checkpoint needs"):
        compact(saver, POLICY, archive=Discard(), idle="0", dry_run=False)
    assert saver.get_tuple(CONFIG) == head


def test_a_run_beside_a_new_checkpoint_loses_nothing() -> None:
    """The new one sorts right after the one it takes the place of, before what a run stores."""
    play = finished(Refuses())
    play.start()
    head = play.saver.get_tuple(CONFIG).checkpoint["id"]
    play.graph.invoke(turn(60), CONFIG)
    later = [one.checkpoint["id"] for one in play.saver.list(CONFIG)]
    newer = [id for id in later if id > head]
    assert newer
    assert all(head < after(head) < id for id in newer)


def test_a_delta_channel_that_cannot_be_stored_whole() -> None:
    class NoSnapshots(InMemorySaver):
        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            if "probe" in config["configurable"]["thread_id"]:
                for value in checkpoint["channel_values"].values():
                    if type(value).__name__ == "_DeltaSnapshot":
                        raise TypeError("unknown type")
            return super().put(config, checkpoint, metadata, new_versions)

    play = PLAYS["delta channel"](NoSnapshots())
    play.start()
    for i in range(3):
        if "messages" not in play.saver.get_tuple(CONFIG).checkpoint["channel_values"]:
            break
        said = {"messages": [HumanMessage("m", id=f"m{i}")]}
        play.graph.update_state(CONFIG, said, as_node="b")
    given: dict[str, Any] = {"archive": Discard(), "idle": "0", "dry_run": False}
    report = compact(play.saver, POLICY, messages_reducer=play.reducer, **given)
    assert report.skipped == {"a delta channel without messages_reducer": 1}


def test_other_channels_with_lists_of_their_own() -> None:
    """A list under a key, and a message that a window pins."""
    play = Play(InMemorySaver(), waits=False)
    chain(play, ("a", play.node("a")), ("b", play.node("b")))
    play.start()
    play.graph.update_state(CONFIG, {"messages": [HumanMessage("m", id="m")]}, as_node="b")
    given: dict[str, Any] = {"archive": Discard(), "idle": "0", "dry_run": False}
    report = compact(play.saver, POLICY, **given)
    assert report.compacted == 1
    state = play.graph.get_state(CONFIG).values
    assert state["messages"][-1].id == "m"
    assert len(state["seen"]) == 12
