"""State what a put costs that crosses the mark with an archive, against one that does not cross."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.store.base import BaseStore

from reducing_saver import Discard, Eviction, ReducingSaver, StoreArchive, Window

from .conversations import chat, take
from .loop import Loop
from .report import Cell, Report, Table, main, progress
from .stores import Hollow, Saver, Store, stores
from .timing import Prepare, Sample, interleave

LEAVING = {10: 60, 100: 40, 1_000: 10}
"""Messages that leave in one crossing, and how many crossings of each are timed."""

KEPT = 10
STAYS, DISCARDED, ARCHIVED, TOLD, ALONE = "stays", "discarded", "archived", "told", "alone"


def run(short: bool) -> Report:
    """Measure a put below the mark, and crossings without and with an archive and a hook."""
    report = Report("crossing")
    with stores() as found:
        for store in found:
            rows: list[tuple[Cell, ...]] = []
            for leaving, rounds in LEAVING.items():
                progress(f"crossing: {store.name}, {leaving:,} messages leave")
                times = _times(store, leaving, max(3, rounds // 8) if short else rounds)
                rows.append(_row(leaving, times))
            report.tables.append(_table(store, rows))
    return report


def _times(store: Store, leaving: int, rounds: int) -> dict[str, Sample]:
    """Put the same list on a thread of its own each round, on a store of its own each case."""
    messages = take(chat(), KEPT + leaving)
    with _savers(store, leaving) as savers:

        def case(saver: Saver) -> Prepare:
            return lambda _: _crossing(saver, messages)

        return interleave({name: case(saver) for name, saver in savers.items()}, rounds)


def _crossing(saver: Saver, messages: list[Any]) -> Any:
    """Prepare a put of one turn more than the thread holds; only that put is timed."""
    loop = Loop(saver)
    loop.ready(messages[:-2])()
    return loop.ready(messages)


@contextlib.contextmanager
def _savers(store: Store, leaving: int) -> Iterator[Mapping[str, Saver]]:
    below = Window(("messages", KEPT + leaving))
    crossing = Window(("messages", KEPT), ("messages", KEPT + leaving - 1))

    def told(eviction: Eviction) -> None:
        pass

    with contextlib.ExitStack() as stack:

        def house() -> tuple[Saver, StoreArchive]:
            inner = stack.enter_context(store.open())
            return inner, StoreArchive(stack.enter_context(_beside(inner)))

        made: dict[str, Saver] = {}
        for name, window in ((STAYS, below), (ARCHIVED, crossing), (TOLD, crossing)):
            inner, archive = house()
            hooks = [told] if name == TOLD else []
            made[name] = ReducingSaver(inner, window, archive=archive, on_evict=hooks, strict=True)
        inner, _ = house()
        made[DISCARDED] = ReducingSaver(inner, crossing, archive=Discard(), strict=True)
        _, archive = house()
        made[ALONE] = ReducingSaver(Hollow(), crossing, archive=archive, strict=True)
        yield made


@contextlib.contextmanager
def _beside(saver: Any) -> Iterator[BaseStore]:
    """Open a LangGraph store in the database of a saver."""
    if type(saver).__name__ == "SqliteSaver":
        from langgraph.store.sqlite import SqliteStore

        (file,) = (row[2] for row in saver.conn.execute("PRAGMA database_list"))
        kind, where = SqliteStore, str(file)
    else:
        from langgraph.store.postgres import PostgresStore
        from psycopg.conninfo import make_conninfo

        info = saver.conn.info
        kind, where = PostgresStore, make_conninfo(info.dsn, password=info.password or None)
    with kind.from_conn_string(where) as store:
        store.setup()
        yield store


def _row(leaving: int, times: Mapping[str, Sample]) -> tuple[Cell, ...]:
    stays = times[STAYS]
    return (
        leaving,
        stays.ms,
        times[DISCARDED].ms,
        times[ARCHIVED].ms,
        times[ARCHIVED].against(stays),
        (times[ARCHIVED].ms - times[DISCARDED].ms) * 1_000 / leaving,
        times[TOLD].ms,
        times[ALONE].ms,
    )


def _table(store: Store, rows: list[tuple[Cell, ...]]) -> Table:
    columns = (
        "messages that leave",
        "no crossing ms",
        "crossing, no archive, ms",
        "crossing, archive, ms",
        "archive / no crossing",
        "archive, µs a message",
        "archive and hook, ms",
        "archive alone, ms",
    )
    note = (
        "One put of a list that is two messages longer than before; ten messages stay. The archive "
        "is a LangGraph store in the same database, over a connection of its own. Alone: the saver "
        "inside stores nothing."
    )
    return Table(f"{store.name}: a put that crosses the mark", columns, rows, (note,))


if __name__ == "__main__":
    main([run])
