"""Use the peers as their documentation says: LangChain's `trim_messages`, agentstate-reducer.

agentstate-reducer is optional: `pip install agentstate-reducer==0.5.0`; without it its column is
empty.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, trim_messages
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.checkpoint.base import BaseCheckpointSaver

try:
    from agentstate_reducer import MessageReducer, ReducerConfig
    from agentstate_reducer.langgraph import ReducingSaver as PeerSaver
except ImportError:
    MessageReducer = None

HINT = "pip install agentstate-reducer==0.5.0"


def trim(messages: list[BaseMessage], tokens: int) -> list[BaseMessage]:
    """Trim as LangChain's documentation does, to at most `tokens`."""
    return trim_messages(
        messages, max_tokens=tokens, token_counter=count_tokens_approximately, start_on="human"
    )


def reducer(**config: Any) -> Any | None:
    """Return agentstate-reducer's reducer, or None where it is not installed.

    Its first message is always kept by default, for a system message; there is none here. Unless
    another is given it counts with LangChain's counter, as the others do: its own would be
    tiktoken's, where that is installed.
    """
    if MessageReducer is None:
        return None
    defaults = {"preserve_first": False, "token_counter": lambda m: count_tokens_approximately([m])}
    return MessageReducer(config=ReducerConfig(**defaults | config))


def wrap(saver: BaseCheckpointSaver[Any], **config: Any) -> BaseCheckpointSaver[Any] | None:
    """Return agentstate-reducer's wrapper around a saver, or None where it is not installed."""
    made = reducer(**config)
    return None if made is None else PeerSaver(saver, made)
