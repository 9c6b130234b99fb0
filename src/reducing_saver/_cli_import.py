"""Import what a command is given by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from ._console import RefusedError

_EXAMPLE = "write it as MODULE:ATTRIBUTE, for example my_app.savers:saver"


@contextmanager
def imported(name: str) -> Iterator[BaseCheckpointSaver[Any]]:
    """Give the saver at an import path; what makes one is called, what opens one is closed.

    Raises `RefusedError` where there is none. The current folder is searched first.
    """
    found = _attribute(name)
    if callable(found) and not isinstance(found, BaseCheckpointSaver):
        try:
            found = found()
        except Exception as error:
            raise RefusedError(f"{name} raised {type(error).__name__} when it was called") from None
    if isinstance(found, BaseCheckpointSaver):
        yield found
        return
    if hasattr(found, "__enter__"):
        with found as opened:
            yield _saver(name, opened)
        return
    if inspect.iscoroutine(found):
        found.close()
    yield _saver(name, found)


def _saver(name: str, found: object) -> BaseCheckpointSaver[Any]:
    if isinstance(found, BaseCheckpointSaver):
        return found
    raise RefusedError(f"{name} is no saver, and makes none: it is of type {type(found).__name__}")


def _attribute(name: str) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise RefusedError(f"{name}: {_EXAMPLE}")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        said = f": {error}" if isinstance(error, ImportError) else ""
        raise RefusedError(f"{module} cannot be imported: {type(error).__name__}{said}") from None
    finally:
        sys.path.remove("")
    for part in path.split("."):
        if not hasattr(found, part):
            raise RefusedError(f"{module} has no {path}")
        found = getattr(found, part)
    return found
