"""The wrappers that must be indistinguishable from the saver inside while nothing triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from reducing_saver import Window
from reducing_saver._archive import Discard
from reducing_saver._forwarding import ForwardingSaver
from reducing_saver._saver import ReducingSaver

NEVER = Window(keep=("messages", 1_000_000))

WRAPPERS: dict[str, Callable[[BaseCheckpointSaver[Any]], BaseCheckpointSaver[Any]]] = {
    "ForwardingSaver": ForwardingSaver,
    "ReducingSaver": lambda inner: ReducingSaver(inner, NEVER, archive=Discard()),
}
