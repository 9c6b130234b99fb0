"""Keep stored LangGraph threads small: wrap the checkpointer, change nothing else."""

from __future__ import annotations

from ._archive import Discard
from ._errors import ConfigurationError, ReducingSaverError, ReductionError, WindowError
from ._forwarding import ForwardingSaver, NotASaverError
from ._saver import ReducingSaver
from ._stats import ChannelStats, Stats
from ._version import __version__
from .engine import Reduced, Window, reduce_messages

__all__ = [
    "ChannelStats",
    "ConfigurationError",
    "Discard",
    "ForwardingSaver",
    "NotASaverError",
    "Reduced",
    "ReducingSaver",
    "ReducingSaverError",
    "ReductionError",
    "Stats",
    "Window",
    "WindowError",
    "__version__",
    "reduce_messages",
]
