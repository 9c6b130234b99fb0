"""Run a summariser's call, through both doors, apart from the user's run.

A call gets an empty context, so that no callback and no stream of the run around it hears of it,
and it has a time-out. What it raises becomes a `SummaryError` without its text: a provider's error
may quote the conversation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Literal, TypeAlias

from ._errors import ReducingSaverError
from ._origin import origin_of

Reason: TypeAlias = Literal["failed", "timed out", "empty", "refused"]
Outcome: TypeAlias = tuple[object, BaseException | None]


class SummaryError(ReducingSaverError):
    """Say why no summary was made; message content is never quoted. A function may raise it.

    `reason` is `"failed"`, `"timed out"`, `"empty"` or `"refused"`.
    """

    reason: Reason

    def __init__(self, text: str, reason: Reason = "failed") -> None:
        self.reason = reason
        super().__init__(text)


def no_summary(text: str, reason: Reason = "failed") -> SummaryError:
    """Return an error of ours, whose text may be logged; that of a function's may quote."""
    error = SummaryError(text, reason)
    error.origin = text
    return error


def run(work: Callable[[], object], seconds: float) -> object:
    """Run work in a thread and an empty context, and wait for it."""
    future = _start(work, seconds)
    concurrent.futures.wait([future], seconds)
    return _result(future.result() if future.done() else None, seconds)


async def arun_in_thread(work: Callable[[], object], seconds: float) -> object:
    """Run sync work in a thread and an empty context, and await it."""
    return await _awaited(asyncio.wrap_future(_start(work, seconds)), seconds)


async def arun(work: Callable[[], Awaitable[object]], seconds: float) -> object:
    """Run async work as a task in an empty context, and await it."""
    return await _awaited(asyncio.create_task(_atry(work), context=Context()), seconds)


async def _awaited(future: asyncio.Future[Outcome], seconds: float) -> object:
    try:
        # Not `wait_for`, which waits without end for work that will not be cancelled.
        await asyncio.wait([future], timeout=seconds)
    finally:
        done = future.done()
        future.cancel()
    if future.cancelled() and done:
        raise no_summary("the summariser's call was cancelled")
    return _result(future.result() if done else None, seconds)


def _start(work: Callable[[], object], seconds: float) -> concurrent.futures.Future[Outcome]:
    future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def attempt() -> None:
        future.set_result(_try(work, seconds))

    # Threads of newer Python versions may inherit a context.
    thread = threading.Thread(
        target=Context().run, args=(attempt,), name="reducing_saver-summary", daemon=True
    )
    thread.start()
    return future


def _try(work: Callable[[], object], seconds: float) -> Outcome:
    try:
        result = work()
        if inspect.isawaitable(result):
            result = asyncio.run(_until(result, seconds))
    except BaseException as error:
        # As a value, since a future does not take every error: StopIteration for one.
        return None, error
    return result, None


async def _until(work: Awaitable[object], seconds: float) -> object:
    # Nobody waits any longer then; this ends the work.
    async with asyncio.timeout(seconds):
        return await work


async def _atry(work: Callable[[], Awaitable[object]]) -> Outcome:
    try:
        return await work(), None
    except Exception as error:
        return None, error


def _result(outcome: Outcome | None, seconds: float) -> object:
    if outcome is None:
        raise no_summary(f"the summariser took longer than {seconds:g} seconds", "timed out")
    result, error = outcome
    if error is None:
        return result
    if isinstance(error, SummaryError):
        raise error
    status = getattr(error, "status_code", None)
    detail = f" (status {status})" if isinstance(status, int) else ""
    reason: Reason = "timed out" if isinstance(error, TimeoutError) else "failed"
    # Neither chained nor quoted: what a provider says may repeat the conversation.
    failed = SummaryError(f"the summariser raised {type(error).__name__}{detail}", reason)
    failed.origin = f"{origin_of(error)}{detail}"
    raise failed
