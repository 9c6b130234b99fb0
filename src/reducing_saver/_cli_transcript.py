"""Define the command `transcript`: every message of a thread ever, archive and state merged."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage, message_to_dict
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.store.memory import InMemoryStore

from ._archive import StoreArchive
from ._channel import Place, read
from ._cli_window import JsonOption
from ._connection import AES_KEY, masked, opened
from ._console import RefusedError, complain, indented, print_json, say
from ._delta import needs_folding, snapshotted
from ._line import line_segments, named
from ._transcript import transcript as merged
from ._version import __version__
from ._words import count, one_line, said
from .engine.messages import Message, calls, field, holds_messages, role

DsnArgument = Annotated[
    str,
    typer.Argument(
        metavar="DSN",
        help="The database of the checkpoints: postgresql://USER@HOST/DATABASE, or the path of "
        "a SQLite file.",
        show_default=False,
    ),
]

_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow", "system": "bold"}
_DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def transcript(
    dsn: DsnArgument,
    thread: Annotated[
        str, typer.Argument(metavar="THREAD", help="The id of the thread.", show_default=False)
    ],
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="DSN",
            help="Where the archive is (default: LangGraph's store tables in the same database).",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", metavar="NS", help="Of a subgraph, as 'child' (default: the graph)."
        ),
    ] = "",
    channel: Annotated[
        str, typer.Option("--channel", metavar="NAME", help="Which list of messages.")
    ] = "messages",
    page_size: Annotated[
        int,
        typer.Option(
            "--page-size", metavar="N", min=1, help="How many archived messages are read at once."
        ),
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a thread in order: what was archived, and what is stored.

    That is every message ever, unless some have left without an archive (discarded).

    Nothing is changed. A key for encrypted threads is read from LANGGRAPH_AES_KEY.

    The exit code is 1 where something is not in the archive any more.
    """
    elsewhere = opened(archive, needs_store=True) if archive else nullcontext()
    with opened(dsn) as here, elsewhere as other:
        store = (other or here).store or InMemoryStore()
        head = _head(here.saver, dsn, thread, namespace)
        kept = StoreArchive(store)
        newest = line_segments(head, kept, here.saver.get_tuple).get(channel)
        lines = merged(
            kept,
            here.saver.serde,
            thread,
            newest,
            _state(head, channel),
            page_size=page_size,
        )
        with _warnings() as warned:
            if as_json:
                about = {"version": __version__, "thread_id": thread, "namespace": namespace}
                print_json({**about, "messages": [_as_dict(message) for message in lines]})
            else:
                _show(lines, is_archived=newest is not None)
    if warned:
        raise typer.Exit(1)


def _head(
    saver: BaseCheckpointSaver[Any], dsn: str, thread: str, namespace: str
) -> CheckpointTuple:
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    try:
        if found := saver.get_tuple(config):
            return found
        anywhere = next(saver.list({"configurable": {"thread_id": thread}}, limit=1), None)
    except (NotImplementedError, ValueError, TypeError, LookupError) as error:
        kind = type(error).__name__
        hint = f"is it encrypted? its key is read from {AES_KEY}"
        raise RefusedError(f"thread {thread!r} cannot be read ({kind}): {hint}") from None
    if anywhere is None:
        raise RefusedError(f"thread {thread!r} is not in {masked(dsn)}")
    raise RefusedError(f"thread {thread!r} has no namespace {namespace!r}")


def _state(head: CheckpointTuple, channel: str) -> Sequence[Message]:
    """Return the messages that the newest checkpoint holds."""
    checkpoint, thread = head.checkpoint, head.config["configurable"]["thread_id"]
    held: object = snapshotted(checkpoint, channel)
    if held is None:
        held = read(checkpoint, Place.parse(channel))
    if isinstance(held, list):
        return held
    if needs_folding(checkpoint, channel):
        raise RefusedError(
            f"channel {channel!r} of thread {thread!r} is a delta channel, which only its graph "
            "can read: use saver.transcript() there"
        )
    values = checkpoint["channel_values"].items()
    others = [name for name, held in values if isinstance(held, list) and holds_messages(held)]
    has = f"it has messages in {', '.join(others)}" if others else "it has no messages"
    if channel not in named(head):
        raise RefusedError(f"channel {channel!r} is not in thread {thread!r}; {has}")
    return []


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Print what is logged while a transcript is read as lines of ours; give them."""
    warned: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.append(record.getMessage())

    logger, handler = logging.getLogger("reducing_saver"), Handler(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield warned
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        for message in warned:
            complain(f"warning: {message} (is the archive elsewhere? --archive DSN)")


def _as_dict(message: Message) -> Any:
    if isinstance(message, BaseMessage):
        return message_to_dict(message)
    if isinstance(message, Mapping):
        return message
    names = ("id", "role", "name", "content", "tool_calls", "tool_call_id")
    return {name: value for name in names if (value := field(message, name)) is not None}


def _show(messages: Iterable[Message], *, is_archived: bool) -> None:
    number = 0
    for number, message in enumerate(messages, 1):
        kind = str(role(message))
        name = field(message, "name")
        by = f" {one_line(name)}" if isinstance(name, str) else ""
        say(f"{number} {kind}{by}", style=_STYLES.get(kind, "bold"), wrap=False)
        for text in (*said(message), *_called(message)):
            indented(_visible(text))
        say()
    said_so = (
        "" if is_archived else "; nothing is archived, so what was discarded is not among them"
    )
    say(f"{count(number, 'message')}{said_so}", style="dim")


def _called(message: Message) -> Iterator[str]:
    """Yield the tool calls with their arguments, where a LangChain message has them."""
    whole = field(message, "tool_calls")
    given = {}
    if isinstance(whole, list):
        given = {field(call, "id"): field(call, "args") for call in whole}
    for call in calls(message):
        found = given.get(call.id)
        said = json.dumps(found, ensure_ascii=False, default=str) if found else ""
        yield f"{call.name or 'tool'}({said})"


def _visible(text: str) -> str:
    """Return a text without what would move the cursor, ring, or turn the line around."""
    return "".join(
        letter if letter in "\n\t" or _is_shown(letter) else " "
        for letter in text.replace("\r\n", "\n")
    )


def _is_shown(letter: str) -> bool:
    return unicodedata.category(letter) not in ("Cc", "Cs") and letter not in _DIRECTION
