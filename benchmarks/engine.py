"""Compare `reduce_messages` with `trim_messages` and agentstate-reducer on long lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from langchain_core.messages import BaseMessage

from reducing_saver.engine import Window, reduce_messages

from . import peers
from .conversations import fresh, take, tool_heavy
from .report import Cell, Goal, Report, Table, main, progress
from .timing import Act, Prepare, Sample, interleave

KEEP, TRIGGER = 4_000, 8_000
SIZES = {100: 101, 1_000: 51, 10_000: 15, 100_000: 5}
"""Messages, and how often each is timed."""

PEER_LIMIT = 10_000
LINEAR = 1.5
"""What counts as linear: a list of 100,000 does not fit into the processor's caches."""

OURS, TRIM, PEER = "ours", "trim_messages", "agentstate-reducer"


def run(short: bool) -> Report:
    """Time every size, on messages nobody has seen and on the same ones again."""
    report = Report("engine")
    times: dict[int, dict[str, Sample]] = {}
    kept: list[tuple[Cell, ...]] = []
    for size, runs in SIZES.items():
        progress(f"engine: {size:,} messages")
        messages = take(tool_heavy(), size)
        times[size] = _time(messages, max(3, runs // 5) if short else runs)
        times[size] |= _peer(messages, 1 if short or size == PEER_LIMIT else min(runs, 11))
        kept.append((size, *_kept(messages)))
    report.tables += [_fresh(times), _others(times), _messages(kept)]
    report.goals += _goals(times)
    return report


def _time(messages: list[BaseMessage], runs: int) -> dict[str, Sample]:
    window = Window(("tokens", KEEP), ("tokens", TRIGGER))
    # A pin that pins nothing: the same decision, made on the units of the whole list.
    pinned = Window(("tokens", KEEP), ("tokens", TRIGGER), pinned="no_such_tool")

    def ours(given: list[BaseMessage]) -> object:
        return reduce_messages(given, window)

    def trim(given: list[BaseMessage]) -> object:
        return peers.trim(given, KEEP)

    cases = {
        OURS: _on_fresh(ours, messages),
        TRIM: _on_fresh(trim, messages),
        "pinned": _on_fresh(lambda given: reduce_messages(given, pinned), messages),
        "actions": _on_fresh(lambda given: reduce_messages(given, window).plan.actions, messages),
        f"{OURS} again": lambda _: lambda: ours(messages),
        f"{TRIM} again": lambda _: lambda: trim(messages),
    }
    ours(messages)
    return interleave(cases, runs)


def _on_fresh(
    reduce: Callable[[list[BaseMessage]], object], messages: list[BaseMessage]
) -> Prepare:
    def prepare(_: int) -> Act:
        unseen = fresh(messages)
        return lambda: reduce(unseen)

    return prepare


def _peer(messages: list[BaseMessage], runs: int) -> dict[str, Sample]:
    reducer = peers.reducer(max_tokens=TRIGGER, target_tokens=KEEP)
    if reducer is None or len(messages) > PEER_LIMIT:
        return {}
    return interleave({PEER: _on_fresh(reducer.reduce, messages)}, runs)


def _kept(messages: list[BaseMessage]) -> tuple[int, int, int | None]:
    ours = reduce_messages(messages, Window(("tokens", KEEP), ("tokens", TRIGGER))).messages
    reducer = peers.reducer(max_tokens=TRIGGER, target_tokens=KEEP)
    # Its time grows with the square: what it keeps of the last thousand is what it keeps of all.
    theirs = len(reducer.reduce(messages[-1_000:]).surviving) if reducer else None
    return len(ours), len(peers.trim(messages, KEEP)), theirs


def _fresh(times: Mapping[int, dict[str, Sample]]) -> Table:
    columns = ("messages", "ours ms", "trim_messages ms", "ratio", "agentstate-reducer ms")
    rows: list[tuple[Cell, ...]] = []
    for size, of in times.items():
        peer = of[PEER].ms if PEER in of else None
        rows.append((size, of[OURS].ms, of[TRIM].ms, of[OURS].against(of[TRIM]), peer))
    return Table("Messages that nobody has seen", columns, rows)


def _others(times: Mapping[int, dict[str, Sample]]) -> Table:
    columns = (
        "messages",
        "same objects again ms",
        "trim_messages, again ms",
        "with a pin ms",
        "its ratio to trim_messages",
        "actions read ms",
        "the same ratio",
    )
    rows: list[tuple[Cell, ...]] = []
    for size, of in times.items():
        slow = (of["pinned"], of["actions"])
        both = [cell for sample in slow for cell in (sample.ms, sample.against(of[TRIM]))]
        rows.append((size, of[f"{OURS} again"].ms, of[f"{TRIM} again"].ms, *both))
    note = (
        "Where nothing is pinned the cut is found from the tail and the rest is not looked at. A "
        "pin, a summary or a result that stands apart from its call, and whoever reads "
        "`plan.actions`, has the whole list cut into units."
    )
    return Table("The same again, and what takes longer", columns, rows, (note,))


def _messages(kept: list[tuple[Cell, ...]]) -> Table:
    note = (
        f"Ours and agentstate-reducer: nothing leaves up to {TRIGGER:,} tokens, then down to "
        f"{KEEP:,}; trim_messages has no second mark and always goes down to {KEEP:,}. At 100 "
        "messages nothing has passed yet. agentstate-reducer: of the last 1,000."
    )
    columns = ("messages", "ours", "trim_messages", "agentstate-reducer")
    return Table("Messages kept", columns, kept, (note,))


def _goals(times: Mapping[int, dict[str, Sample]]) -> list[Goal]:
    ten, hundred = times[10_000], times[100_000]
    growth = {name: hundred[name].ms / ten[name].ms / 10 for name in (OURS, "pinned", TRIM)}
    linear = "time a message at 100,000 / at 10,000, 1 is linear"
    return [
        Goal("ours / trim_messages at 10,000 messages", ten[OURS].against(ten[TRIM]), 1.0),
        Goal(f"{linear} (trim_messages: {growth[TRIM]:.2f})", growth[OURS], LINEAR),
        Goal(f"{linear}, with a pin", growth["pinned"], LINEAR),
    ]


if __name__ == "__main__":
    main([run])
