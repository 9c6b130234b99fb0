"""Run one conversation twice through a real LangGraph agent: bare, and with `ReducingSaver`.

The agent is a compiled `StateGraph` with a chat model, LangGraph's own `ToolNode` and a SQLite
file; only the model is scripted, so that nothing needs a key or the network. It plays a travel
desk of any length (`travel_desk`), or turn by turn what somebody recorded (`recording`).

    conversation -> turns -> agent -> two files -> measure -> show
"""

from __future__ import annotations

from . import show
from .desk import travel_desk
from .measure import Report, compare
from .turns import Recording, recording

__all__ = ["Recording", "Report", "compare", "recording", "show", "travel_desk"]
