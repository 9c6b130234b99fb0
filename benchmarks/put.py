"""Compare `put` of a wrapped saver with the bare one, on the growing list of a running loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from reducing_saver import Window

from . import peers
from .conversations import take, tool_heavy
from .loop import Loop
from .report import Cell, Goal, Report, Table, main, progress
from .stores import Hollow, Saver, Store, stores, wrapped
from .timing import Prepare, Sample, interleave

ROUNDS = {50: 400, 500: 200, 1_000: 150, 5_000: 60, 10_000: 60}
"""Messages in the list, and how many puts of each are timed."""

HUGE = 10**9
STEADY = Window(("messages", 10), ("messages", 20))
LONG = 5_000
BARE, ALONE, PEER = "bare", "alone", "agentstate-reducer"

Wrap = Callable[[Saver], Saver | None]


def run(short: bool) -> Report:
    """Measure puts that evict nothing, the steady state after an eviction, and the eviction."""
    report = Report("put")
    with stores() as found:
        for store in found:
            _nothing_passes(report, store, short)
        for store in found:
            _steady(report, store, short)
            _crossing(report, store, short)
    return report


def _ours(window: Window) -> Wrap:
    return lambda saver: wrapped(saver, window)


def _theirs(**config: int) -> Wrap:
    return lambda saver: peers.wrap(saver, **config)


NEVER: Mapping[str, Wrap] = {
    BARE: lambda saver: saver,
    "tokens": _ours(Window(("tokens", HUGE))),
    "messages": _ours(Window(("messages", HUGE))),
    "turns": _ours(Window(("turns", HUGE), cap=("messages", HUGE))),
    f"{PEER}, tokens": _theirs(max_tokens=HUGE),
    f"{PEER}, messages": _theirs(max_messages=HUGE),
}
STEADY_STATE: Mapping[str, Wrap] = {BARE: lambda saver: saver, "messages": _ours(STEADY)}


def _nothing_passes(report: Report, store: Store, short: bool) -> None:
    rows: list[tuple[Cell, ...]] = []
    names = [name for name in NEVER if name != BARE]
    for size, rounds in ROUNDS.items():
        progress(f"put: {store.name}, nothing passes, {size:,} messages")
        with _loops(store, NEVER, alone="tokens") as loops:
            times = _growing(loops, size, rounds // 8 if short else rounds)
        bare, alone = times[BARE].ms, times[ALONE].ms
        ratios = [times[name].against(times[BARE]) if name in times else None for name in names]
        rows.append((size, bare, *ratios, alone, 1 + alone / bare))
        for name in ("tokens", "messages", "turns"):
            text = f"{store.name}, {size:,} messages, nothing passes, {name}: wrapped / bare"
            report.goals.append(Goal(text, times[name].against(times[BARE]), 1.05))
    ratio_columns = (f"{name} / bare" for name in names)
    columns = ("messages", "bare ms", *ratio_columns, "tokens, alone, ms", "1 + alone / bare")
    note = (
        "Tokens, messages, turns: wrapped, with a window in that measure. Alone: the same put, "
        "window in tokens, on a saver that stores nothing: less noise than a ratio of two puts."
    )
    report.tables.append(Table(f"{store.name}: nothing passes", columns, rows, (note,)))


@contextlib.contextmanager
def _loops(store: Store, wraps: Mapping[str, Wrap], alone: str) -> Iterator[dict[str, Loop]]:
    """Give each competitor a store of its own, and one of them also a saver that stores nothing."""
    with contextlib.ExitStack() as stack:
        savers = {name: wrap(stack.enter_context(store.open())) for name, wrap in wraps.items()}
        savers[ALONE] = wraps[alone](Hollow())
        yield {name: Loop(saver) for name, saver in savers.items() if saver is not None}


def _growing(
    loops: Mapping[str, Loop], size: int, rounds: int, *, rest: bool = True
) -> dict[str, Sample]:
    """Offer a list that grows by one message a round, the same objects to everybody."""
    messages = take(tool_heavy(), size + rounds)
    for loop in loops.values():
        loop.ready(messages[:size])()

    def case(loop: Loop) -> Prepare:
        return lambda number: loop.ready(messages[: size + number + 1], rest=rest)

    return interleave({name: case(loop) for name, loop in loops.items()}, rounds)


def _steady(report: Report, store: Store, short: bool) -> None:
    progress(f"put: {store.name}, steady state, {LONG:,} messages")
    rows: list[tuple[Cell, ...]] = []
    # Above the cap, 80 messages, the middle of a run crosses again: its rounds end before that.
    for where, rest, rounds in (("at rest", True, 100), ("in the middle of a run", False, 50)):
        with _loops(store, STEADY_STATE, alone="messages") as loops:
            times = _growing(loops, LONG, rounds // 4 if short else rounds, rest=rest)
        bare, ours = times[BARE], times["messages"]
        ratio, means = ours.against(bare), ours.mean_ms / bare.mean_ms
        rows.append((f"wrapped, {where}", bare.ms, ours.ms, ratio, means, times[ALONE].ms))
        text = f"{store.name}, steady state at {LONG:,} messages, {where}: wrapped / bare"
        report.goals.append(Goal(text, ratio, 0.1))
    # Apart and a few times only: it looks at the whole list, in a time that grows with its square.
    with store.open() as saver:
        theirs = peers.wrap(saver, min_messages=10, max_messages=20)
        if theirs is not None:
            time = _growing({PEER: Loop(theirs)}, LONG, 3)[PEER].ms
            rows.append((PEER, bare.ms, time, time / bare.ms, None, None))
    columns = ("saver", "bare ms", "ms", "/ bare", "/ bare, means", "alone, ms")
    note = (
        "Marks 10/20; the loop's list holds 5,000 messages and grows by one a put. At rest one put "
        "in ten evicts again: the means hold that, the medians do not."
    )
    report.tables.append(Table(f"{store.name}: steady state", columns, rows, (note,)))


def _crossing(report: Report, store: Store, short: bool) -> None:
    """Time the first put of a list that was never reduced, on a thread of its own each round."""
    progress(f"put: {store.name}, crossings")
    rows: list[tuple[Cell, ...]] = []
    for size in (50, 500, LONG):
        messages = take(tool_heavy(), size)

        def case(saver: Saver, offered: list[object] = messages) -> Prepare:
            return lambda _: Loop(saver).ready(offered)

        with _loops(store, STEADY_STATE, alone="messages") as loops:
            cases = {name: case(loop.saver) for name, loop in loops.items()}
            times = interleave(cases, 5 if short else 25)
        bare, ours = times[BARE], times["messages"]
        rows.append((size, bare.ms, ours.ms, ours.against(bare), times[ALONE].ms))
    columns = ("messages", "bare ms", "crossing ms", "/ bare", "alone, ms")
    title = f"{store.name}: the crossing itself, marks 10/20, a list that was never reduced"
    report.tables.append(Table(title, columns, rows))


if __name__ == "__main__":
    main([run])
