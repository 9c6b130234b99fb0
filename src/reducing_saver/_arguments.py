"""Check what a saver is built from, before anything is stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from ._archive import Archive, Discard
from ._errors import ConfigurationError
from ._select import check_selector
from ._summary import Summary
from .engine import Excerpt, Window

LEAST_BYTES = 10_000

_EXAMPLES = {
    "channels": '("messages",)',
    "copies": '("llm_input_messages",)',
    "namespaces": '("",) for the root, or None for all',
}


def check_window(window: object) -> None:
    """Raise for what is no window."""
    if not isinstance(window, Window):
        raise ConfigurationError("window", window, 'a Window, as Window(keep=("turns", 6))')


def check_archive(archive: object, inner: BaseCheckpointSaver[Any]) -> None:
    """Raise for what is no archive, or one that would show what the saver encrypts."""
    if not (archive is None or isinstance(archive, Discard | Archive)):
        raise ConfigurationError(
            "archive", archive, "an archive, as StoreArchive(store), or Discard()"
        )
    if isinstance(inner.serde, EncryptedSerializer) and getattr(archive, "index_text", False):
        allowed = "one without index_text=True: the saver encrypts, an index is plain text"
        raise ConfigurationError("archive", archive, allowed)


def check_summary(summary: object) -> None:
    """Raise for what is no summary."""
    if not (summary is None or isinstance(summary, Summary)):
        raise ConfigurationError("summary", summary, "a Summary, as Summary(model)")


def check_excerpt(excerpt: object, selector: object) -> None:
    """Raise for what is no excerpt, and for a selector without one."""
    if not (excerpt is None or isinstance(excerpt, Excerpt)):
        raise ConfigurationError("excerpt", excerpt, "an Excerpt, as Excerpt(max_tokens=2_000)")
    if selector is None:
        return
    check_selector(selector)
    if excerpt is None:
        raise ConfigurationError("selector", selector, "one with an excerpt=Excerpt(...)")


def check_max_bytes(limit: object) -> None:
    """Raise for what is no limit, or one that hardly holds an empty checkpoint."""
    if limit is not None and (type(limit) is not int or limit < LEAST_BYTES):
        raise ConfigurationError("max_bytes", limit, f"bytes, {LEAST_BYTES:,} at least, or None")


def check_reducer(reducer: object) -> None:
    """Raise for what is no reducer of a channel."""
    if not (reducer is None or callable(reducer)):
        allowed = "None, or the reducer of the graph's DeltaChannel"
        raise ConfigurationError("messages_reducer", reducer, allowed)


def flag(field: str, value: object) -> bool:
    """Return a switch; raise for anything but True and False."""
    if not isinstance(value, bool):
        raise ConfigurationError(field, value, "True or False")
    return value


def names(field: str, value: object) -> list[str]:
    """Return several names; raise where there are none, or something else."""
    found = list(value) if isinstance(value, Collection) else []
    if isinstance(value, str) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(field, value, f"several names, as {_EXAMPLES[field]}")
    if (field != "copies" and not found) or (field != "namespaces" and not all(found)):
        raise ConfigurationError(field, value, f"at least one name, as {_EXAMPLES[field]}")
    return found
