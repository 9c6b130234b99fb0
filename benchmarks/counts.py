"""Count the calls of a token counter: a put should count the new message only."""

from __future__ import annotations

from statistics import median

from langchain_core.messages.utils import count_tokens_approximately
from langgraph.checkpoint.memory import InMemorySaver

from reducing_saver import Window

from . import peers
from .conversations import take, tool_heavy
from .loop import Loop
from .report import Cell, Goal, Report, Table, main, progress
from .stores import Saver, wrapped

SIZE, PUTS = 1_000, 200
HUGE = 10**9
CASES = (
    ("nothing passes", HUGE, HUGE, 0),
    ("evicts at about 1,100 messages", 55_000, 60_000, 0),
    ("nothing passes, a new run each 20 puts", HUGE, HUGE, 20),
)
"""What is measured: keep and trigger in tokens; how many puts a run has."""


class Counter:
    """Count tokens as LangChain does, and how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: object) -> int:
        self.calls += 1
        return count_tokens_approximately([message])


def run(short: bool) -> Report:
    """Offer a list of 1,000 messages, then 200 times one more."""
    progress("counts")
    report = Report("counts")
    rows: list[tuple[Cell, ...]] = []
    for name, keep, trigger, reload in CASES:
        counter = Counter()
        window = Window(("tokens", keep), ("tokens", trigger), token_counter=counter)
        saver = wrapped(InMemorySaver(), window)
        calls = _calls(counter, saver, reload)
        rows.append((name, *_row(calls)))
        if not reload:
            text = f"{name}: calls in a put of one more message, the most of {PUTS}"
            report.goals.append(Goal(text, max(calls[1:]), 1))
    counter = Counter()
    peer = {"max_tokens": HUGE, "token_counter": counter, "preserve_first": False}
    theirs = peers.wrap(InMemorySaver(), **peer)
    if theirs is not None:
        rows.append(("agentstate-reducer, nothing passes", *_row(_calls(counter, theirs))))
    columns = ("window", "first put", "median", "most", "total")
    note = (
        f"Calls of the token counter. A list of {SIZE:,} messages, then {PUTS} puts of one more. "
        "A new run loads the list again, which makes new message objects: its first put counts "
        "what the decision needs of them."
    )
    report.tables.append(Table("Calls of the token counter", columns, rows, (note,)))
    return report


def _calls(counter: Counter, saver: Saver, reload: int = 0) -> list[int]:
    messages = take(tool_heavy(), SIZE + PUTS)
    loop = Loop(saver)
    offered: list[object] = list(messages[:SIZE])
    calls = [_asked(counter, loop, offered)]
    for number, new in enumerate(messages[SIZE:]):
        if reload and number % reload == 0:
            offered = loop.load()
        offered = [*offered, new]
        calls.append(_asked(counter, loop, offered))
    return calls


def _row(calls: list[int]) -> tuple[Cell, ...]:
    return calls[0], int(median(calls[1:])), max(calls[1:]), sum(calls)


def _asked(counter: Counter, loop: Loop, offered: list[object]) -> int:
    before = counter.calls
    loop.ready(offered)()
    return counter.calls - before


if __name__ == "__main__":
    main([run])
