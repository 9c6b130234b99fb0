"""Ask a summariser, whatever it is: a chat model, a `Runnable` or a function."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from ._summary_call import arun, arun_in_thread, no_summary, run
from ._summary_text import Chunk, as_prompt, cut_unfinished, without_head
from .engine.messages import blocks, field

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable
    from typing_extensions import TypeIs

_BOUNDS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "num_predict")
_THINKING = ("thinking", "reasoning", "reasoning_effort", "thinking_budget", "thinking_level")
_ENDS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
_CLIPPED = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_REFUSED = frozenset(
    {
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "refusal",
        "safety",
        "blocklist",
        "prohibited_content",
        "recitation",
        "spii",
    }
)
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a summariser wrote, and how many calls it took."""

    text: str
    calls: int


class Caller(ABC):
    """Call one summariser. Safe to use from threads and loops; both doors do the same.

    The sync door, and a model without an async one, use a thread of their own, which is left
    behind where it hangs.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def ask(self, chunk: Chunk, previous: str | None) -> Answer:
        """Have a chunk and the summary before it summarised; blocks."""
        answer = run(partial(self._call, chunk, previous), self.timeout)
        if not self._loosened(answer):
            return Answer(read(answer), 1)
        return Answer(read(run(partial(self._call, chunk, previous), self.timeout)), 2)

    async def aask(self, chunk: Chunk, previous: str | None) -> Answer:
        """Have a chunk and the summary before it summarised; never blocks the loop."""
        answer = await self._arun(chunk, previous)
        if not self._loosened(answer):
            return Answer(read(answer), 1)
        return Answer(read(await self._arun(chunk, previous)), 2)

    async def _arun(self, chunk: Chunk, previous: str | None) -> object:
        if self._is_native():
            return await arun(partial(self._acall, chunk, previous), self.timeout)
        return await arun_in_thread(partial(self._call, chunk, previous), self.timeout)

    @abstractmethod
    def _call(self, chunk: Chunk, previous: str | None) -> object: ...

    @abstractmethod
    def _acall(self, chunk: Chunk, previous: str | None) -> Awaitable[object]: ...

    @abstractmethod
    def _is_native(self) -> bool:
        """Tell whether the async door has a call of its own."""

    def _loosened(self, answer: object) -> bool:
        """Tell whether to ask again, with a bound taken away that left no room for an answer."""
        return False


class Function(Caller):
    """Call a function of `(messages, previous)`, sync or async."""

    def __init__(self, function: Callable[..., Any], timeout: float) -> None:
        super().__init__(timeout)
        self._function = function

    def _call(self, chunk: Chunk, previous: str | None) -> object:
        return self._function([*chunk.messages], previous)

    async def _acall(self, chunk: Chunk, previous: str | None) -> object:
        return await self._function([*chunk.messages], previous)

    def _is_native(self) -> bool:
        called = getattr(self._function, "__call__", None)  # noqa: B004 - an object's own method
        return inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(called)


class Prompted(Caller):
    """Prompt a chat model, or a `Runnable` that takes messages, with a transcript."""

    def __init__(
        self, model: Runnable[Any, Any], timeout: float, *, prompt: str, max_tokens: int
    ) -> None:
        super().__init__(timeout)
        self._model = model
        self._bound_model = bounded(model, max_tokens)
        self._prompt = prompt
        # LangChain runs such a model in the loop's own threads, which asyncio.run waits for.
        self._only_sync = _only_sync(model)

    def _call(self, chunk: Chunk, previous: str | None) -> object:
        return self._current().invoke(self._messages(chunk, previous), apart())

    async def _acall(self, chunk: Chunk, previous: str | None) -> object:
        return await self._current().ainvoke(self._messages(chunk, previous), apart())

    def _messages(self, chunk: Chunk, previous: str | None) -> list[BaseMessage]:
        return [SystemMessage(self._prompt), HumanMessage(as_prompt(chunk.text, previous))]

    def _current(self) -> Runnable[Any, Any]:
        return self._bound_model or self._model

    def _is_native(self) -> bool:
        return not self._only_sync

    def _loosened(self, answer: object) -> bool:
        # A model that thinks may use all it is given for that, each time.
        if self._bound_model is None or said(answer) or not is_clipped(answer):
            return False
        self._bound_model = None
        return True


def is_runnable(model: object) -> TypeIs[Runnable[Any, Any]]:
    """Tell whether a model is a `Runnable`, as chat models are."""
    # Imported where it is needed: it brings clients of LangSmith with it.
    from langchain_core.runnables import Runnable

    return isinstance(model, Runnable)


def apart() -> RunnableConfig:
    """Return a config that shares nothing with the run around it."""
    return {
        "callbacks": [],
        "tags": ["nostream"],
        "metadata": {"lc_source": "summarization"},
        "run_name": "summary",
    }


def bounded(model: Runnable[Any, Any], max_tokens: int) -> Runnable[Any, Any] | None:
    """Return a copy of a chat model that writes at most so many tokens; None where that is unknown.

    Not where the model was told to think, since the bound would count its thoughts.
    """
    fields: Mapping[str, object] = getattr(type(model), "model_fields", {})
    name = next((name for name in _BOUNDS if name in fields), None)
    if name is None or any(getattr(model, option, None) for option in _THINKING):
        return None
    own = getattr(model, name)
    least = min(own, max_tokens) if isinstance(own, int) and own > 0 else max_tokens
    copy: Runnable[Any, Any] = model.model_copy(update={name: least})  # type: ignore[attr-defined]
    return copy


def _only_sync(model: Runnable[Any, Any]) -> bool:
    from langchain_core.language_models import BaseChatModel

    names = ("ainvoke", "_agenerate", "_astream")
    kind = type(model)
    return isinstance(model, BaseChatModel) and all(
        getattr(kind, name) is getattr(BaseChatModel, name) for name in names
    )


def read(answer: object) -> str:
    """Return the summary in an answer; raise `SummaryError` where there is none."""
    if is_refused(answer):
        raise no_summary("the summariser refused", "refused")
    text = said(answer)
    if text is None:
        raise no_summary(f"the summariser returned {type(answer).__name__}, not a text")
    if not text:
        raise no_summary("the summariser returned an empty text", "empty")
    return cut_unfinished(text) if is_clipped(answer) else text


def said(answer: object) -> str | None:
    """Return the words of an answer, without thoughts; None where it is no text."""
    text = answer.text if isinstance(answer, BaseMessage) else answer
    return without_head(_THOUGHT.sub("", text)) if isinstance(text, str) else None


def is_refused(answer: object) -> bool:
    """Tell whether the model, or a filter of its provider, refused to answer."""
    extra = field(answer, "additional_kwargs")
    refusal = field(extra, "refusal") if extra else None
    block = any(field(block, "type") == "refusal" for block in blocks(answer))
    return bool(refusal) or block or not _REFUSED.isdisjoint(_ends(answer))


def is_clipped(answer: object) -> bool:
    """Tell whether the model ran into a bound before it had finished."""
    return not _CLIPPED.isdisjoint(_ends(answer))


def _ends(answer: object) -> list[str]:
    metadata = field(answer, "response_metadata")
    if not metadata:
        return []
    found = [field(metadata, name) for name in _ENDS]
    if details := field(metadata, "incomplete_details"):
        found.append(field(details, "reason"))
    return [value.lower() for value in found if isinstance(value, str)]
