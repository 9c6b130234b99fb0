"""Each async function is its sync twin plus `await`: one is read, and both are known."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

PACKAGE = Path(__file__).parents[1] / "src" / "reducing_saver"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """Hold a function and where it is: a module or class."""

    where: str
    function: Function


def functions() -> Iterator[Found]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for scope in ast.walk(module):
            if isinstance(scope, ast.Module | ast.ClassDef):
                name = getattr(scope, "name", "")
                for node in scope.body:
                    if isinstance(node, Function):
                        yield Found(f"{path.stem}.{name}".rstrip("."), node)


def sync_name(name: str) -> str | None:
    """Give the name of the sync twin: `aput` is `put`, `_atrace` is `_trace`."""
    lead = len(name) - len(name.lstrip("_"))
    return name[:lead] + name[lead + 1 :] if name[lead : lead + 1] == "a" else None


FOUND = [*functions()]
SYNC = {(f.where, f.function.name): f.function for f in FOUND}
TWINS = {
    (f.where, f.function.name): (SYNC[f.where, twin], f.function)
    for f in FOUND
    if (twin := sync_name(f.function.name)) and (f.where, twin) in SYNC
}
NAMES = {name for _, name in TWINS} | {
    name for name in vars(BaseCheckpointSaver) if hasattr(BaseCheckpointSaver, f"a{name}")
}


# Twins that differ by what they are: threads, loops and generators have no other way.
APART = {
    "_archive.StoreArchive._arun": "drives a generator of batches",
    "_delivery.Delivery._acall": "a task that is cancelled must end",
    "_hooks.atell": "a sync hook runs in a thread",
    "_recall._Search.arun": "ranks in a thread",
    "_saver.ReducingSaver.atranscript": "an async generator cannot be returned",
    "_saver.ReducingSaver.aclose": "waits in a thread",
    "_transcript._atranscript": "there is no async `yield from`",
}
# What calls models and hooks, and what only names methods, is no door of a saver.
ELSEWHERE = ("_archive.Archive", "_hooks", "_stores", "_summary", "_recall", "_select")
ELSEWHERE += ("demo", "source")


class Plain(ast.NodeTransformer):
    """Take from a body what makes it async, and what both twins call by two names."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.For(node.target, node.iter, node.body, node.orelse))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(node.items, node.body))

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        # `*[one async for one in rest]` is how to write `*rest` of what iterates asynchronously.
        match node.value:
            case ast.ListComp(
                elt=ast.Name(id=name),
                generators=[ast.comprehension(target=ast.Name(id=same), is_async=1) as each],
            ) if name == same and not each.ifs:
                return ast.Starred(self.visit(each.iter), node.ctx)
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.is_async = 0
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # The name of a door, as in `self._path("aput_writes", ...)`.
        if isinstance(node.value, str) and node.value in NAMES:
            node.value = self._name(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # Only the sync door can be called on the loop it would block.
        if ast.unparse(node) == "self._off_loop()":
            return ast.parse("self._inner", mode="eval").body
        return self.generic_visit(node)

    def _name(self, name: str) -> str:
        known = name in NAMES or name in {f"a{each}" for each in NAMES}
        return (sync_name(name) or name) if known else name


def body(function: Function) -> str:
    """Give a body as code without what only one of the twins has; docstrings may differ."""
    copied = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copied, Function)
    statements = copied.body[1:] if ast.get_docstring(copied) else copied.body
    plain = [Plain().visit(statement) for statement in statements]
    return "\n".join(ast.unparse(ast.fix_missing_locations(statement)) for statement in plain)


def parameters(function: Function) -> tuple[object, ...]:
    arguments = function.args
    defaults = [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]
    names = [
        [each.arg for each in group]
        for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs)
    ]
    return names, [*map(ast.unparse, defaults)]


ALIKE = [
    (where, name)
    for where, name in TWINS
    if f"{where}.{name}" not in APART and not where.startswith(ELSEWHERE)
]


@pytest.mark.parametrize(("where", "name"), ALIKE, ids=map(".".join, ALIKE))
def test_an_async_body_is_the_sync_body_plus_await(where: str, name: str) -> None:
    sync, twin = TWINS[where, name]

    assert body(twin) == body(sync)
    assert parameters(twin) == parameters(sync)


def test_every_async_function_has_a_sync_twin() -> None:
    alone = [
        f"{f.where}.{f.function.name}"
        for f in FOUND
        if isinstance(f.function, ast.AsyncFunctionDef)
        and (f.where, f.function.name) not in TWINS
        and not f.where.startswith(ELSEWHERE)
    ]
    assert alone == []


def test_every_door_of_a_saver_is_among_them() -> None:
    doors = {
        name
        for name in vars(BaseCheckpointSaver)
        if name.startswith("a") and hasattr(BaseCheckpointSaver, name[1:])
    }
    assert doors == {name for where, name in TWINS if where == "_forwarding.ForwardingSaver"}


def test_what_differs_is_seen() -> None:
    """The comparison is not so generous that it would pass anything."""
    assert sync_name("_atrace") == "_trace"
    same = "async def aput(self, x):\n    return await self._inner.aput(x)"
    plain = "def put(self, x):\n    return self._off_loop().put(x)"
    other = "def put(self, x):\n    self.seen = True\n    return self._inner.put(x)"
    one, two, three = (ast.parse(text).body[0] for text in (same, plain, other))
    assert isinstance(one, Function)
    assert isinstance(two, Function)
    assert isinstance(three, Function)
    assert body(one) == body(two) != body(three)
