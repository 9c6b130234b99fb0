"""Keep stored LangGraph threads small: wrap the checkpointer, change nothing else."""

from __future__ import annotations

from ._archive import Archive, Discard, StoreArchive
from ._errors import ConfigurationError, ReducingSaverError, ReductionError, WindowError
from ._forwarding import ForwardingSaver, NotASaverError
from ._hooks import Background, Eviction, RememberFacts, messages_hook
from ._recall import recall_tool
from ._saver import ReducingSaver
from ._stats import ChannelStats, Stats
from ._summary import Summary
from ._summary_call import SummaryError
from ._version import __version__
from .engine import Reduced, Window, reduce_messages

__all__ = [
    "Archive",
    "Background",
    "ChannelStats",
    "ConfigurationError",
    "Discard",
    "Eviction",
    "ForwardingSaver",
    "NotASaverError",
    "Reduced",
    "ReducingSaver",
    "ReducingSaverError",
    "ReductionError",
    "RememberFacts",
    "Stats",
    "StoreArchive",
    "Summary",
    "SummaryError",
    "Window",
    "WindowError",
    "__version__",
    "messages_hook",
    "recall_tool",
    "reduce_messages",
]
