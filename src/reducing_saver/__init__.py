"""Keep stored LangGraph threads small: wrap the checkpointer, change nothing else."""

from __future__ import annotations

from ._errors import ConfigurationError, ReducingSaverError, ReductionError, WindowError
from ._version import __version__
from .engine import Reduced, Window, reduce_messages

__all__ = [
    "ConfigurationError",
    "Reduced",
    "ReducingSaverError",
    "ReductionError",
    "Window",
    "WindowError",
    "__version__",
    "reduce_messages",
]
