"""Define the options of a window, which most commands have, and read them."""

from __future__ import annotations

from typing import Annotated

import typer

from ._console import RefusedError
from ._version import __version__
from ._words import listed
from .engine import Window
from .engine.window import MEASURES

KEEP = "turns:3"
COUNTERS = ("approximate", "tiktoken")

KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="MEASURE:N",
        help="How much stays once a trigger was passed. MEASURE is messages, turns, tokens or "
        "bytes; leading system messages always stay and are not counted. The default suits short "
        "and long conversations alike: what somebody says next rarely refers to more than the "
        "last three questions, and turns mean the same whatever the tools return "
        f"(default: {KEEP}).",
        show_default=False,
    ),
]
TriggerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trigger",
        metavar="MEASURE:N",
        help="Nothing leaves until there is more than this; give it again for several, any of "
        "which counts (default: twice --keep).",
        show_default=False,
    ),
]
CapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cap",
        metavar="MEASURE:N",
        help="The hard bound within one long run, in messages, tokens or bytes "
        "(default: four times the trigger).",
        show_default=False,
    ),
]
PinOption = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="TOOL", help="Calls of this tool stay; may be repeated."),
]
LatestOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-latest-of",
        metavar="TOOL",
        help="The newest call of this tool stays, as a to-do list needs; may be repeated.",
    ),
]
FirstOption = Annotated[
    bool, typer.Option("--pin-first-human", help="The first human message stays.")
]
CounterOption = Annotated[
    str,
    typer.Option(
        "--token-counter", metavar="NAME", help="approximate (four characters a token) or tiktoken."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document for programs instead.")
]


def window_of(
    keep: list[str] | None,
    trigger: list[str] | None,
    cap: list[str] | None,
    pin: list[str] | None = None,
    latest: list[str] | None = None,
    first: bool = False,
    counter: str = COUNTERS[0],
) -> Window:
    for option, names in (("--pin", pin), ("--keep-latest-of", latest)):
        if names and not all(names):
            raise RefusedError(f"{option}: the name of a tool is needed")
    if counter not in COUNTERS:
        raise RefusedError(f"--token-counter {counter}: allowed are {' or '.join(COUNTERS)}")
    for option, values in (("--keep", keep), ("--cap", cap)):
        if values and len(values) > 1:
            raise RefusedError(
                f"{option} {' '.join(values)}: give it once; only --trigger may repeat"
            )
    return Window(
        _mark("--keep", keep[0] if keep else KEEP),
        [_mark("--trigger", each) for each in trigger] if trigger else None,
        _mark("--cap", cap[0]) if cap else None,
        pinned=pin or (),
        keep_latest_of=latest or (),
        pin_first_human=first,
        token_counter=counter,
    )


def _mark(option: str, text: str) -> tuple[str, int]:
    measure, colon, number = text.partition(":")
    if not colon:
        raise RefusedError(f"{option} {text}: write it as MEASURE:N, for example turns:6")
    if measure not in MEASURES:
        raise RefusedError(
            f"{option} {text}: {measure!r} is no measure; allowed are {listed(MEASURES)}"
        )
    try:
        value = int(number)
    except ValueError:
        raise RefusedError(f"{option} {text}: {number!r} is not a whole number") from None
    if value < 1:
        raise RefusedError(f"{option} {text}: the number must be 1 or more")
    return measure, value


def about(window: Window) -> dict[str, object]:
    return {
        "version": __version__,
        "window": {
            "keep": window.keep._asdict(),
            "triggers": [mark._asdict() for mark in window.triggers],
            "cap": window.cap._asdict(),
        },
    }
