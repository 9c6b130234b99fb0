"""Keep stored LangGraph threads small: wrap the checkpointer, change nothing else."""

from __future__ import annotations

from ._archive import Archive, Discard, StoreArchive
from ._budget import CheckpointTooLargeError
from ._errors import ConfigurationError, JobError, ReducingSaverError, ReductionError, WindowError
from ._forwarding import ForwardingSaver, NotASaverError
from ._hooks import Background, Eviction, RememberFacts, messages_hook
from ._recall import recall_tool
from ._retain import Retain
from ._saver import ReducingSaver
from ._select import HeadTail, Hosted, Nearest, Selector, SelectorError, Words
from ._stats import ChannelStats, Stats
from ._summary import Summary
from ._summary_call import SummaryError
from ._version import __version__
from .engine import Excerpt, Reduced, Task, Window, reduce_messages
from .jobs.erase import erase
from .jobs.gc import gc
from .jobs.policy import Policy
from .jobs.probe import Finding, Probed, probe
from .jobs.report import Report
from .jobs.run import compact, status, survey, worker

__all__ = [
    "Archive",
    "Background",
    "ChannelStats",
    "CheckpointTooLargeError",
    "ConfigurationError",
    "Discard",
    "Eviction",
    "Excerpt",
    "Finding",
    "ForwardingSaver",
    "HeadTail",
    "Hosted",
    "JobError",
    "Nearest",
    "NotASaverError",
    "Policy",
    "Probed",
    "Reduced",
    "ReducingSaver",
    "ReducingSaverError",
    "ReductionError",
    "RememberFacts",
    "Report",
    "Retain",
    "Selector",
    "SelectorError",
    "Stats",
    "StoreArchive",
    "Summary",
    "SummaryError",
    "Task",
    "Window",
    "WindowError",
    "Words",
    "__version__",
    "compact",
    "erase",
    "gc",
    "messages_hook",
    "probe",
    "recall_tool",
    "reduce_messages",
    "status",
    "survey",
    "worker",
]
