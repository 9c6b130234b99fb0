"""Tell long-term memory what left: the event, and hooks that run now or in the background."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ._callable import takes
from ._errors import ConfigurationError
from ._forks import renew_in_forks
from ._segment import Why
from ._stores import loop_beside, run_on, runs_on_loop

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

logger = logging.getLogger("reducing_saver")

_NOT_NOTED = (
    "a hook was told what left thread %r, which could not be noted, so that it is told again: %s"
)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Hold what left a thread, for a hook.

    Delivery is at least once across crashes; `segment` is the key that makes it exactly once.
    `memory_namespace` says whose long-term memory this is. `edited` are positions in `messages` of
    what was told before with another content.
    """

    thread: str
    namespace: str
    channel: str
    checkpoint: str
    segment: str
    memory_namespace: tuple[str, ...]
    messages: tuple[Any, ...]
    why: Why
    summary: str | None = None
    edited: tuple[int, ...] = ()


Hook: TypeAlias = Callable[[Eviction], Any] | Callable[[Eviction], Awaitable[Any]]


def check_hook(field: str, hook: object, allowed: str = "a function of an Eviction") -> None:
    """Raise for what cannot be called with an eviction."""
    if not callable(hook):
        raise ConfigurationError(field, hook, allowed)
    if isinstance(hook, type):
        raise ConfigurationError(field, hook, f"{allowed}; this is a class, not an object of it")
    if takes(hook, None):
        return
    if takes(hook, [], ()):
        allowed += "; one of (messages, namespace) is given as messages_hook(f)"
    raise ConfigurationError(field, hook, allowed)


def check_hooks(hooks: object) -> None:
    """Raise for what is no sequence of functions of an eviction."""
    allowed = "a list of functions of an Eviction, as [f]"
    if not isinstance(hooks, Sequence) or isinstance(hooks, str | bytes):
        raise ConfigurationError("on_evict", hooks, allowed)
    for hook in hooks:
        check_hook("on_evict", hook, allowed)


def tell(hook: Hook, eviction: Eviction) -> None:
    """Call a hook from a thread and wait; an async hook runs on a loop of its own."""
    result = hook(eviction)
    if inspect.isawaitable(result):
        _on_own_loop(result)


def name_of(hook: Hook) -> str:
    """Return what a hook is called in logs and statistics: never what it was built with."""
    told = hook.hook if isinstance(hook, Background) else hook
    while isinstance(told, partial):
        told = told.func
    name = getattr(told, "__qualname__", None)
    return name if isinstance(name, str) else type(told).__qualname__


async def atell(hook: Hook, eviction: Eviction) -> None:
    """Call a hook from a loop; a sync hook runs in a thread, so that the loop goes on."""
    if _is_async(hook):
        await hook(eviction)
    else:
        await asyncio.to_thread(tell, hook, eviction)


def _is_async(hook: Hook) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(
        getattr(hook, "__call__", None)  # noqa: B004
    )


def _on_own_loop(awaitable: Awaitable[Any]) -> None:
    done: Future[None] = Future()

    async def wait() -> None:
        await awaitable

    def run() -> None:
        try:
            asyncio.run(wait())
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    done.result()


class Background:
    """Run a hook in worker threads, so that a put never waits for it.

    - `workers`: how many threads.
    - `max_pending`: how many evictions wait at most. What does not fit is not told now; it stays
      undelivered in the archive and is told later.

    An eviction is acknowledged after its hook has returned. Waits for what is pending at
    `close()` and when the program ends. Safe to use from threads and loops.
    """

    def __init__(self, hook: Hook, *, workers: int = 2, max_pending: int = 1000) -> None:
        check_hook("hook", hook)
        for name, value in (("workers", workers), ("max_pending", max_pending)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(name, value, "a whole number from 1")
        self.hook = hook
        self.workers = workers
        self._queue: queue.Queue[tuple[Eviction, Callable[[BaseException | None], None]] | None]
        self._queue = queue.Queue(max_pending)
        self._closed = False
        self.renew()
        renew_in_forks(self)
        _open.add(self)

    def renew(self) -> None:
        """Begin anew in a forked process; what is pending is told by the one that it is from."""
        self._queue = queue.Queue(self._queue.maxsize)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __call__(self, eviction: Eviction) -> None:
        """Run the hook now, as a plain hook."""
        tell(self.hook, eviction)

    def submit(self, eviction: Eviction, done: Callable[[BaseException | None], None]) -> bool:
        """Run the hook later and call `done` with its error or None; False where it is full."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < self.workers:
                thread = threading.Thread(target=self._work, daemon=True)
                thread.start()  # raises where the process may have no more
                self._threads.append(thread)
        try:
            self._queue.put_nowait((eviction, done))
        except queue.Full:
            return False
        return True

    def drain(self) -> None:
        """Wait until nothing is pending."""
        self._queue.join()

    def close(self) -> None:
        """Wait for what is pending, and stop.

        Raises `RuntimeError` on an event loop: what is pending may need that loop to end, an async
        store for one. There `await saver.aclose()`.
        """
        if runs_on_loop():
            raise RuntimeError(
                "close() would wait on the event loop that its hooks may need: "
                "await saver.aclose(), or asyncio.to_thread(background.close)"
            )
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        self._queue.join()
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            eviction, done = job
            error: BaseException | None = None
            try:
                tell(self.hook, eviction)
            except BaseException as raised:  # whatever it is, the worker goes on
                error = raised
            try:
                done(error)
            except BaseException as raised:
                logger.warning(_NOT_NOTED, eviction.thread, type(raised).__name__)
            finally:
                self._queue.task_done()
        self._queue.task_done()


_open: weakref.WeakSet[Background] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for background in list(_open):
        background.close()


def messages_hook(hook: Callable[[list[Any], tuple[str, ...]], Any]) -> Hook:
    """Adapt a hook of the older form `(messages, namespace)`."""
    if not callable(hook) or isinstance(hook, type) or not takes(hook, [], ()):
        raise ConfigurationError("hook", hook, "a function of (messages, namespace)")
    if inspect.iscoroutinefunction(hook):

        async def aadapted(eviction: Eviction) -> None:
            await hook(list(eviction.messages), eviction.memory_namespace)

        return _named(aadapted, hook)

    def adapted(eviction: Eviction) -> Any:
        return hook(list(eviction.messages), eviction.memory_namespace)

    return _named(adapted, hook)


def _named(adapted: Hook, hook: Callable[..., Any]) -> Hook:
    """Give an adapted hook the name of the one it calls."""
    adapted.__qualname__ = getattr(hook, "__qualname__", type(hook).__qualname__)
    return adapted


class RememberFacts:
    """Write facts about what left into a LangGraph store, under the eviction's memory namespace.

    `extract` gets the messages and returns texts or dicts, or an awaitable of them. Writing the
    same segment again overwrites, so each fact is there once.
    """

    def __init__(
        self, store: BaseStore, extract: Callable[[Sequence[Any]], Any], *, label: str = "facts"
    ) -> None:
        self.store = store
        self.extract = extract
        self.label = label

    async def __call__(self, eviction: Eviction) -> None:
        """Extract and write facts."""
        found = self.extract(eviction.messages)
        facts = await found if inspect.isawaitable(found) else found
        namespace = (*eviction.memory_namespace, self.label)
        for number, fact in enumerate(facts or ()):
            value = dict(fact) if isinstance(fact, dict) else {"text": str(fact)}
            await self._put(namespace, f"{eviction.segment}-{number}", value)

    async def _put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Write through the door that the store has where the hook runs."""
        if loop := loop_beside(self.store):
            await asyncio.to_thread(run_on, loop, lambda: self.store.aput(namespace, key, value))
            return
        try:
            await self.store.aput(namespace, key, value)
        except NotImplementedError:
            await asyncio.to_thread(self.store.put, namespace, key, value)
