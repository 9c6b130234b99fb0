"""Define the command `probe`: what a saver of yours does, and how its threads can be compacted."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from langgraph.checkpoint.base import BaseCheckpointSaver

from ._cli_window import JsonOption
from ._connection import masked
from ._console import RefusedError, print_json, say

_ALLOWED = (
    "MODULE:NAME of a saver, or of a function that returns one, as my_app.storage:make_saver; "
    "databases of Postgres and SQLite need no probe"
)


def probe(
    saver: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="Where the saver is, or a function that makes it; its module is imported from "
            "the current folder too.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Try on a scratch thread what compacting does to a saver of yours, and say what was found."""
    from .jobs.probe import probe as ask

    with _opened(saver) as found:
        probed = ask(found)
    if as_json:
        findings = [one._asdict() for one in probed.findings]
        print_json({"saver": probed.saver, "way": probed.way.value, "findings": findings})
    else:
        for line in str(probed).splitlines():
            say(line)
    raise typer.Exit(probed.exit_code)


def _opened(name: str) -> AbstractContextManager[BaseCheckpointSaver[Any]]:
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute) or "//" in name:
        raise RefusedError(f"{masked(name)!r} is not allowed; allowed is {_ALLOWED}")
    sys.path.insert(0, "")
    try:
        found = import_module(module)
    except ImportError as error:
        raise RefusedError(f"{module} cannot be imported: {error}") from None
    finally:
        sys.path.remove("")
    made = getattr(found, attribute, None)
    if made is None:
        raise RefusedError(f"{module} has no {attribute!r}")
    if not isinstance(made, BaseCheckpointSaver | AbstractContextManager) and callable(made):
        made = made()
    if isinstance(made, BaseCheckpointSaver):
        return nullcontext(made)
    if isinstance(made, AbstractContextManager):
        return cast("AbstractContextManager[BaseCheckpointSaver[Any]]", made)
    raise RefusedError(f"{name} is a {type(made).__name__}, no saver; allowed is {_ALLOWED}")
