"""Call a summariser: any kind of model, through both doors, apart from the user's run.

A call gets an empty context, so that no callback and no stream of the run around it hears of it,
and it has a time-out. What it raises becomes a `SummaryError` without its text: a provider's error
may quote the conversation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ._errors import ReducingSaverError
from ._summary_text import Chunk, as_prompt, cut_unfinished, without_head
from .engine.messages import blocks, field

Reason: TypeAlias = Literal["failed", "timed out", "empty", "refused"]
Outcome: TypeAlias = tuple[object, BaseException | None]

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


class SummaryError(ReducingSaverError):
    """Say why no summary was made, in `reason` too; message content is never quoted.

    `reason` is `"failed"`, `"timed out"`, `"empty"` or `"refused"`.
    """

    reason: Reason

    def __init__(self, text: str, reason: Reason = "failed") -> None:
        self.reason = reason
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a summariser wrote, and how many calls it took."""

    text: str
    calls: int


class Caller:
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

    def _call(self, chunk: Chunk, previous: str | None) -> object:
        raise NotImplementedError

    def _acall(self, chunk: Chunk, previous: str | None) -> Awaitable[object]:
        raise NotImplementedError

    def _is_native(self) -> bool:
        raise NotImplementedError

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

    def _call(self, chunk: Chunk, previous: str | None) -> object:
        return self._current().invoke(self._messages(chunk, previous), apart())

    async def _acall(self, chunk: Chunk, previous: str | None) -> object:
        return await self._current().ainvoke(self._messages(chunk, previous), apart())

    def _messages(self, chunk: Chunk, previous: str | None) -> list[BaseMessage]:
        return [SystemMessage(self._prompt), HumanMessage(as_prompt(chunk.text, previous))]

    def _current(self) -> Runnable[Any, Any]:
        return self._bound_model or self._model

    def _is_native(self) -> bool:
        # LangChain runs such a model in the loop's own threads, which asyncio.run waits for.
        return not _only_sync(self._model)

    def _loosened(self, answer: object) -> bool:
        # A model that thinks may use all it is given for that, each time.
        if self._bound_model is None or said(answer) or not is_clipped(answer):
            return False
        self._bound_model = None
        return True


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


def run(work: Callable[[], object], timeout: float) -> object:
    """Run work in a thread and an empty context, and wait for it."""
    future = _start(work, timeout)
    concurrent.futures.wait([future], timeout)
    return _result(future.result() if future.done() else None, timeout)


async def arun_in_thread(work: Callable[[], object], timeout: float) -> object:
    """Run sync work in a thread and an empty context, and await it."""
    future = asyncio.wrap_future(_start(work, timeout))
    await asyncio.wait([future], timeout=timeout)
    return _result(future.result() if future.done() else None, timeout)


async def arun(work: Callable[[], Awaitable[object]], timeout: float) -> object:
    """Run async work as a task in an empty context, and await it."""
    task = asyncio.create_task(_atry(work), context=Context())
    try:
        # Not `wait_for`, which waits without end for work that will not be cancelled.
        await asyncio.wait([task], timeout=timeout)
    finally:
        done = task.done()
        task.cancel()
    if task.cancelled():
        raise SummaryError("the summariser's call was cancelled")
    return _result(task.result() if done else None, timeout)


def _start(work: Callable[[], object], timeout: float) -> concurrent.futures.Future[Outcome]:
    future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def attempt() -> None:
        future.set_result(_try(work, timeout))

    # Threads of newer Python versions may inherit a context.
    thread = threading.Thread(
        target=Context().run, args=(attempt,), name="reducing_saver-summary", daemon=True
    )
    thread.start()
    return future


def _try(work: Callable[[], object], timeout: float) -> Outcome:
    try:
        result = work()
        if inspect.isawaitable(result):
            result = asyncio.run(_until(result, timeout))
    except BaseException as error:
        # As a value: a future does not take every error (StopIteration).
        return None, error
    return result, None


async def _until(work: Awaitable[object], timeout: float) -> object:
    return await asyncio.wait_for(work, timeout)


async def _atry(work: Callable[[], Awaitable[object]]) -> Outcome:
    try:
        return await work(), None
    except Exception as error:
        return None, error


def _result(outcome: Outcome | None, timeout: float) -> object:
    if outcome is None:
        raise SummaryError(f"the summariser took longer than {timeout:g} seconds", "timed out")
    result, error = outcome
    if error is None:
        return result
    if isinstance(error, SummaryError) or not isinstance(error, Exception):
        raise error
    status = getattr(error, "status_code", None)
    detail = f" (status {status})" if isinstance(status, int) else ""
    # Neither chained nor quoted: what a provider says may repeat the conversation.
    raise SummaryError(f"the summariser raised {type(error).__name__}{detail}")


def read(answer: object) -> str:
    """Return the summary in an answer; raise `SummaryError` where there is none."""
    if is_refused(answer):
        raise SummaryError("the summariser refused", "refused")
    text = said(answer)
    if text is None:
        raise SummaryError(f"the summariser returned {type(answer).__name__}, not a text")
    if not text:
        raise SummaryError("the summariser returned an empty text", "empty")
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
    found = [field(metadata, name) for name in _ENDS] if metadata else []
    return [value.lower() for value in found if isinstance(value, str)]
