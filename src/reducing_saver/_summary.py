"""Summarise what leaves: each summary is made of the one before it and what left since."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal, TypeAlias, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable

from ._errors import ConfigurationError
from ._summary_call import Caller, Function, Prompted, SummaryError
from ._summary_text import (
    HEAD,
    Chunk,
    Count,
    as_prompt,
    chunked,
    content_text,
    cut_end,
    text_size,
)
from .engine import Message, Window
from .engine.messages import SUMMARY_KEY, calls, identifier, is_summary
from .engine.messages import field as field_of

__all__ = ["Coverage", "Summarised", "Summary", "SummaryError", "is_companion", "newest_summary"]

Text: TypeAlias = str | BaseMessage
Function2: TypeAlias = Callable[[list[Any], str | None], Text | Awaitable[Text]]
