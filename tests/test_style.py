"""Rules about the source itself: ruff, mypy, which module may import which, and the CI script."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reducing_saver"

# Data flows one way: a module imports only what stands above it. A folder (`rows.`) is one layer.
LAYERS = [
    "_version",
    "_errors",
    "_origin",
    "_callable",
    "_forwarding",
    "engine.messages",
    "engine.counters",
    "engine.sizes",
    "engine.units",
    "engine.validity",
    "engine.window",
    "engine.contents",
    "engine.parts",
    "engine.excerpt",
    "engine.oversize",
    "engine.shorten",
    "engine.plan",
    "engine.apply",
    "engine",
    "_transcripts",
    "_channel",
    "_copies",
    "_delta",
    "_record",
    "_retain",
    "_pending",
    "_lineage",
    "_stats",
    "_metrics",
    "_counts",
    "_segment",
    "_stores",
    "_forks",
    "_entry",
    "_archive",
    "_line",
    "_hooks",
    "_summary_text",
    "_summary_call",
    "_summary_message",
    "_summary_model",
    "_summary",
    "_recall_words",
    "_select",
    "_reduction",
    "_contents",
    "_budget",
    "_arguments",
    "_ahead",
    "_roll",
    "_notices",
    "_ledger",
    "_delivery",
    "_lookup",
    "_keeper",
    "_fitter",
    "_transcript",
    "_recall",
    "rows.",
    "_retention",
    "_saver",
    "_words",
    "_console",
    "jobs.",
    "_trial",
    "_trial_table",
    "demo.",
    "_connection",
    "_cli_window",
    "_cli_transcript",
    "_cli_probe",
    "_cli_jobs",
    "_cli",
    "__main__",
    "",  # the package's own __init__
]
NOT_IN_THE_ENGINE = {"asyncio", "logging", "time", "random", "os"}
OPTIONAL = [
    "aiosqlite",
    "bm25s",
    "langchain",
    "langgraph.checkpoint.postgres",
    "langgraph.checkpoint.sqlite",
    "langgraph.graph",
    "langgraph.prebuilt",
    "langgraph.pregel",
    "numpy",
    "opentelemetry",
    "psycopg",
    "rich",
    "tiktoken",
    "typer",
]


def modules() -> dict[str, ast.Module]:
    """Parse every module, by its name below the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        name = name.removesuffix("__init__").removesuffix(".")
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports(name: str, module: ast.AST) -> Iterator[str]:
    """Give what a module imports: `.engine.units` for ours, `json` or `langgraph.x` for others."""
    is_package = (PACKAGE / name.replace(".", "/") / "__init__.py").exists()
    parents = name.split(".") if name else []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            up = node.level - (1 if is_package else 0)
            base = [*parents[: len(parents) - up], *(node.module or "").split(".")]
            target = ".".join(part for part in base if part)
            if (PACKAGE / target.replace(".", "/")).is_dir():  # `from . import units`
                submodules = [f"{target}.{alias.name}".strip(".") for alias in node.names]
                known = [one for one in submodules if is_module(one)]
                yield from (f".{one}" for one in known)
                if len(known) == len(submodules):
                    continue
            yield f".{target}"


def is_module(name: str) -> bool:
    path = PACKAGE / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def layer(name: str) -> int | None:
    for position, one in enumerate(LAYERS):
        if name == one or (one.endswith(".") and f"{name}.".startswith(one)):
            return position
    return None


MODULES = modules()


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_up(name: str) -> None:
    own = layer(name)
    assert own is not None, f"give {name} a place in LAYERS"
    for target in imports(name, MODULES[name]):
        assert not target.startswith("reducing_saver"), f"{target}: import relatively"
        if target.startswith("."):
            other = layer(target[1:])
            assert other is not None, f"{name} imports {target}, which is in no layer"
            same_folder = other == own and LAYERS[own].endswith(".")
            assert other < own or same_folder, f"{name} imports {target}, which stands below it"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("engine")])
def test_the_engine_is_pure(name: str) -> None:
    used = set(imports(name, MODULES[name]))
    assert not {one.split(".")[0] for one in used} & NOT_IN_THE_ENGINE
    at_import = {
        one
        for node in MODULES[name].body
        for one in imports(name, ast.Module([node], []))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for one in at_import:
        ours = one.startswith((".engine", "._errors"))
        stdlib = one.split(".")[0] in sys.stdlib_module_names
        assert ours or stdlib or one.startswith("langchain_core.messages"), one
    for node in ast.walk(MODULES[name]):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"async in {name}"


def test_forwarding_stands_alone() -> None:
    for one in imports("_forwarding", MODULES["_forwarding"]):
        stdlib = one.split(".")[0] in sys.stdlib_module_names
        assert stdlib or one.startswith(("langgraph.checkpoint", "langchain_core.runnables")), one


def test_no_optional_package_is_imported_with_the_library() -> None:
    """Backends, tokenizers and the command line's packages are for those who install them."""
    only_extras = {"_cli", "_cli_jobs", "_cli_transcript", "_cli_window", "demo", "__main__"}
    only_extras |= {"rows.postgres", "_cli_probe"}
    names = [f"reducing_saver.{name}".strip(".") for name in MODULES if name not in only_extras]
    script = f"""
import importlib, importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(name == one or name.startswith(one + ".") for one in {OPTIONAL}):
            raise ModuleNotFoundError(f"{{name}} is optional", name=name)

sys.meta_path.insert(0, Blocked())
for name in {names}:
    importlib.import_module(name)
"""
    check([sys.executable, "-c", script])


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command: str) -> None:
    check([sys.executable, "-m", "ruff", *command.split(), str(ROOT)])


def test_mypy_strict() -> None:
    check([sys.executable, "-m", "mypy", "--strict", str(ROOT / "src")])


def test_sql_has_no_numbered_placeholders() -> None:
    """From Python 3.14 on sqlite3 takes them with names only."""
    found = [
        path.name for path in PACKAGE.rglob("*.py") if re.search(r"[ (=]\?\d", path.read_text())
    ]
    assert not found


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("a source distribution has no .ci")
    last = script.read_text(encoding="utf-8").strip().splitlines()[-1]
    assert last.endswith("-m pytest")
    assert last in (ROOT / "README.md").read_text(encoding="utf-8")


def check(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
