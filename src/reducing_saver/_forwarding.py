"""Forward every call to the saver inside: the base of `ReducingSaver` and of any other wrapper.

Each method of `BaseCheckpointSaver` is written out with its own signature, because LangGraph
inspects it: `*args` would hide `task_path`, and `__getattr__` forwards nothing the base class
defines. Each door goes to the same door of the inner saver, sync to sync and async to async.

LangGraph also asks the *class* of a saver what it can do (`type(saver).aprune is not
BaseCheckpointSaver.aprune`). So every instance gets a class made for the type of its inner saver:
it hides what that type does not implement and adds what only some savers have (`setup`, `with`).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import copy
import inspect
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol


class NotASaverError(TypeError):
    """What was given to a wrapper is no saver; the message shows the line that makes one."""


class ForwardingSaver(BaseCheckpointSaver[Any]):
    """Wrap a saver and behave exactly as it does; subclass it and override what should differ.

    A subclass may have any `__init__` that calls `super().__init__(inner)`. What the type of the
    inner saver does not implement is hidden even where the subclass overrides it, so that LangGraph
    sees the capabilities the store really has; name in `adds` what the subclass can do by itself.
    """

    adds: ClassVar[frozenset[str]] = frozenset()
    """Names of methods that are never hidden, whatever the inner saver implements."""

    _doors_with_path: ClassVar[frozenset[str]] = frozenset({"put_writes", "aput_writes"})

    if TYPE_CHECKING:  # at run time only where the inner saver has them, see `_Optional`

        def setup(self, *args: Any, **kwargs: Any) -> Any: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, *exc: Any) -> bool | None: ...
        async def __aenter__(self) -> Self: ...
        async def __aexit__(self, *exc: Any) -> bool | None: ...

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        # No super().__init__(): all it does is to set `serde`, and here that is the inner saver's.
        self._wrap(inner)

    def _wrap(self, inner: BaseCheckpointSaver[Any]) -> None:
        if not isinstance(inner, BaseCheckpointSaver):
            raise NotASaverError(_explain(type(self).__name__, inner))
        self._inner = inner
        written: type[Any] = vars(type(self)).get("_written", type(self))
        self.__class__ = _specialised(written, type(inner))

    def _with_inner(self, inner: BaseCheckpointSaver[Any]) -> Self:
        """Return the same wrapper around another saver, sharing everything else by reference."""
        clone = copy.copy(self)
        clone._wrap(inner)
        return clone

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def inner(self) -> BaseCheckpointSaver[Any]:
        """The saver inside."""
        return self._inner

    @property
    def serde(self) -> SerializerProtocol:
        """The inner saver's serializer; setting it sets the inner saver's."""
        return self._inner.serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        self._inner.serde = serde

    @property
    def config_specs(self) -> builtins.list[Any]:
        """The inner saver's configuration fields."""
        return self._inner.config_specs

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return this wrapper around the inner saver's clone, or itself if there is none."""
        inner = self._inner.with_allowlist(extra_allowlist)
        return self if inner is self._inner else self._with_inner(inner)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._inner.get_next_version(current, channel)

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        return self._inner.get(config)

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        return await self._inner.aget(config)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._inner.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._inner.aget_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self._inner.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        return self._inner.alist(config, filter=filter, before=before, limit=limit)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._off_loop().put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._inner.aput(config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        path = self._path("put_writes", task_path)
        return self._off_loop().put_writes(config, writes, task_id, **path)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        path = self._path("aput_writes", task_path)
        return await self._inner.aput_writes(config, writes, task_id, **path)

    def delete_thread(self, thread_id: str) -> None:
        return self._inner.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        return await self._inner.adelete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        return self._inner.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        return await self._inner.adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        return self._inner.copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        return await self._inner.acopy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        return self._inner.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        return await self._inner.aprune(thread_ids, strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._inner.aget_delta_channel_history(config=config, channels=channels)

    def _path(self, door: str, task_path: str) -> dict[str, str]:
        return {"task_path": task_path} if door in self._doors_with_path else {}

    def _off_loop(self) -> BaseCheckpointSaver[Any]:
        """Return the inner saver, unless a blocking call would wait for the loop it blocks.

        The async savers refuse every sync call on their own loop but `put` and `put_writes`, which
        hang for ever (langgraph#7857): they get the same error here.
        """
        loop = getattr(self._inner, "loop", None)
        if loop is not None and _running_loop() is loop:
            raise asyncio.InvalidStateError(
                f"Synchronous calls to {type(self._inner).__name__} are only allowed from a "
                "different thread. On its own event loop use the async interface, for example "
                "`await graph.ainvoke(...)`."
            )
        return self._inner


class _Optional:
    """What a saver may have beyond `BaseCheckpointSaver`; wrapped only where the inner has it."""

    inner: Any

    def setup(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.setup(*args, **kwargs)  # a coroutine, where the inner's is one

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return self.inner.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return await self.inner.__aexit__(kind, error, traceback)


_OPTIONAL = ("setup", "__enter__", "__exit__", "__aenter__", "__aexit__")

# `with_allowlist` is never hidden: the base's own would replace the serializer of the shared inner.
_CAPABILITIES = {
    name: method
    for name, method in vars(BaseCheckpointSaver).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "with_allowlist"
}


_classes: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _specialised(written: type[Any], inner: type[Any]) -> type[Any]:
    """Return the one subclass of a wrapper, as it was written, for one type of inner saver."""
    key = (written, inner)
    return _classes.get(key) or _classes.setdefault(key, _specialise(written, inner))


def _specialise(written: type[Any], inner: type[Any]) -> type[Any]:
    """Make that subclass, honest about what the inner type can do.

    What is hidden stands before the wrapper's own methods; what is added comes after them, so that
    a wrapper can override `setup` or `__exit__` and call `super()`.
    """
    hidden = {
        name: method
        for name, method in _CAPABILITIES.items()
        if getattr(inner, name, method) is method and name not in written.adds
    }
    added = {name: vars(_Optional)[name] for name in _OPTIONAL if hasattr(inner, name)}
    doors = {door for door in ("put_writes", "aput_writes") if _takes_path(getattr(inner, door))}
    names = {name: getattr(written, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"_written": written, "_doors_with_path": frozenset(doors)}
    bases = (written, type("_Optional", (), added))
    return type(written.__name__, bases, {**names, **own, **hidden})


def _takes_path(put_writes: Any) -> bool:
    """Ask as LangGraph does (`put_writes_accepts_task_path`): only a parameter of that name."""
    return "task_path" in inspect.signature(put_writes).parameters


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _explain(wrapper: str, given: object) -> str:
    """Say what was given instead of a saver, and how to get one; never show its arguments."""
    needs = f"{wrapper} needs a saver (a BaseCheckpointSaver), and got"
    if lines := opening_of(given, "inner", f"saver = {wrapper}(inner, ...)"):
        return f"{needs} a context manager that opens one.{lines}"
    if isinstance(given, type) and issubclass(given, BaseCheckpointSaver):
        return f"{needs} the class {given.__name__}.{_making(wrapper, given)}"
    name = given.__qualname__ if isinstance(given, type) else type(given).__qualname__
    if given is None or isinstance(given, bool):
        return f"{needs} {given}."
    if isinstance(given, str | os.PathLike):
        return f"{needs} an object of type {name}.{_naming(wrapper, given)}"
    if inspect.isawaitable(given):
        return f"{needs} an object of type {name}: await it first."
    if inspect.isroutine(given):
        return f"{needs} the function {getattr(given, '__name__', name)}: call it first."
    return f"{needs} {'the class' if isinstance(given, type) else 'an object of type'} {name}."


def opening_of(given: object, name: str, use: str) -> str | None:
    """Return the lines that enter a manager of `contextlib` and use what it opens, else None."""
    maker = _maker(given)
    if maker is None:
        return None
    is_async = isinstance(given, contextlib.AbstractAsyncContextManager)
    return _opening(f"{maker}(...)", name, use, is_async=is_async)


def _maker(given: object) -> str | None:
    """Name the function behind a `contextlib` manager, with its class if it is a class method."""
    function = getattr(given, "func", None)
    if not hasattr(given, "gen") or not inspect.isfunction(function):
        return None
    owner = next(iter(getattr(given, "args", ())), None)
    return f"{owner.__name__}.{function.__name__}" if isinstance(owner, type) else function.__name__


def _making(wrapper: str, saver: type[BaseCheckpointSaver[Any]]) -> str:
    opener = getattr(getattr(saver, "from_conn_string", None), "__wrapped__", None)
    if opener is None:
        return f" Write:\n\n    saver = {wrapper}({saver.__name__}(...), ...)"
    is_async, use = inspect.isasyncgenfunction(opener), f"saver = {wrapper}(inner, ...)"
    return _opening(f"{saver.__name__}.from_conn_string(...)", "inner", use, is_async=is_async)


def _naming(wrapper: str, given: str | os.PathLike[str]) -> str:
    """Say which saver opens what a name may stand for; an async one where a loop runs."""
    is_async = _running_loop() is not None
    kind = "Postgres" if str(given).startswith("postgres") else "Sqlite"
    maker = f"{'Async' if is_async else ''}{kind}Saver.from_conn_string(...)"
    return _opening(maker, "inner", f"saver = {wrapper}(inner, ...)", is_async=is_async)


def _opening(maker: str, name: str, use: str, *, is_async: bool) -> str:
    keyword = "async with" if is_async else "with"
    return f" Write:\n\n    {keyword} {maker} as {name}:\n        {use}"
