"""Deliver what left to hooks: after its checkpoint is stored, once, and again where a hook failed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._archive import Archive, Entry
from ._hooks import Background, Eviction, Hook, atell, tell
from ._record import Record
from ._segment import Segment

logger = logging.getLogger("reducing_saver")

_MOST_THREADS = 10_000

Load = Callable[[Segment], CheckpointTuple | None]
LoadAsync = Callable[[Segment], Awaitable[CheckpointTuple | None]]


@dataclass(frozen=True, slots=True)
class Leave:
    """Hold a segment and its messages, in order, on their way to the archive."""

    segment: Segment
    messages: tuple[Any, ...]
