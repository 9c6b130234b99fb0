"""Check what a saver is built from, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import BaseStore

from ._archive import Archive, Discard
from ._errors import ConfigurationError
from ._select import check_selector
from ._stores import has_async_door, shares_connection
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
    store = getattr(archive, "store", None)
    # A saver with a loop of its own is called on it: LangGraph's async ones are.
    if isinstance(store, BaseStore) and hasattr(inner, "loop") and not has_async_door(store):
        said = (
            f"{type(store).__name__} has no async methods, and {type(inner).__name__} is called "
            f"by them; use AsyncSqliteStore"
        )
        raise ConfigurationError("archive", archive, "one over an async store", said=said)
    if isinstance(store, BaseStore) and shares_connection(store, inner):
        said = (
            f"the archive's {type(store).__name__} has the connection of the saver, which a run "
            "would use from two threads at once; give it one of its own, or both a pool"
        )
        raise ConfigurationError("archive", archive, "a connection of its own", said=said)
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


def check_config(config: object) -> None:
    """Raise for what is no config of a run; its values are not shown."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if isinstance(configurable, Mapping) and "thread_id" in configurable:
        return
    thread = json.dumps(config) if isinstance(config, str) else '"..."'
    is_mapping = isinstance(config, Mapping)
    got = "one without a thread_id" if is_mapping else f"an object of type {type(config).__name__}"
    said = f'got {got}; give the run\'s config, {{"configurable": {{"thread_id": {thread}}}}}'
    raise ConfigurationError("config", type(config).__name__, "the run's config", said=said)


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
