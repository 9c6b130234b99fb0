"""Run every block of the README."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:<!-- test: (.+?) -->\n)?```(\w+)\n(.*?)```", TEXT, re.S)
PYTHON = [block for how, language, block in BLOCKS if language == "python" and how == "run"]
SHELL = [line for _, lang, block in BLOCKS if lang == "sh" for line in block.strip().splitlines()]


def test_every_block_is_run() -> None:
    kinds = {(how, language) for how, language, _ in BLOCKS}
    modules = {("checkpointer.py", "python"), ("app.py", "python")}
    assert kinds == {("run", "python"), ("", "sh")} | modules
    assert len(SHELL) == 8


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


def module_of(name: str, folder: Path) -> Any:
    """Import a block as the module that it is."""
    path = folder / name
    path.write_text(next(block for how, _, block in BLOCKS if how == name))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_app_on_postgres(tmp_path: Path, make_database: Callable[[], str]) -> None:
    module, dsn = module_of("app.py", tmp_path), make_database()
    config: Any = {"configurable": {"thread_id": "1"}}

    async def live() -> None:
        async with module.checkpointer(dsn) as saver:
            builder = StateGraph(MessagesState)
            builder.add_node("agent", lambda state: {"messages": [("ai", "Noted.")]})
            graph = builder.add_edge(START, "agent").compile(checkpointer=saver)
            for turn in range(20):
                await graph.ainvoke({"messages": [("human", f"Remember {turn}.")]}, config)
            stored = (await graph.aget_state(config)).values["messages"]
            assert 12 <= len(stored) <= 24
            whole = [message async for message in saver.atranscript(config)]
            assert len(whole) == 40
        async with module.checkpointer(dsn) as saver:
            left = [found async for found in saver.alist(config)]
            assert len(left) < 20, "sixty were stored"

    asyncio.run(live())


def test_a_server_can_load_the_checkpointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from reducing_saver import ReducingSaver

    pytest.importorskip("aiosqlite")
    monkeypatch.chdir(tmp_path)
    module = module_of("checkpointer.py", tmp_path)

    async def load() -> None:
        async with contextlib.AsyncExitStack() as stack:
            saver = await stack.enter_async_context(module.make())
            assert isinstance(saver, ReducingSaver)
            assert isinstance(saver, BaseCheckpointSaver)
            assert await saver.aget_tuple({"configurable": {"thread_id": "1"}}) is None

    asyncio.run(load())


def test_the_extras_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SHELL[0] == "pip install '.[sqlite]' langgraph"
    named = set(re.findall(r"`(\w+)`", TEXT.partition("## Install")[2].partition("##")[0]))
    assert named == set(project["optional-dependencies"]) - {"dev", "others"}  # for tests


def test_the_first_command_runs_the_demo() -> None:
    *_, extra, demo = SHELL[1].split(" && ")
    assert "'.[demo]'" in extra
    assert shlex.split(demo) == [".venv/bin/reducing-saver", "demo"]
    command = [sys.executable, "-m", "reducing_saver", "demo", "--turns", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert "valid for OpenAI, Anthropic and Gemini" in " ".join(done.stdout.split())


def test_the_second_command_is_what_ci_runs() -> None:
    assert SHELL[2] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", SHELL[3:5])
def test_the_commands_for_own_conversations(line: str, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    assert words[0] == ".venv/bin/reducing-saver"
    turn = '{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}'
    (tmp_path / "conversations.json").write_text(f"[{', '.join([turn] * 9)}]")
    command = [sys.executable, "-m", "reducing_saver", *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_the_commands_for_stored_threads(make_database: Callable[[], str], tmp_path: Path) -> None:
    dsn = make_database()
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
    for line in SHELL[5:]:
        words = shlex.split(line, comments=True)
        assert words[0] == "reducing-saver"
        words = [dsn if word == "postgresql://user@host/db" else word for word in words]
        command = [sys.executable, "-m", "reducing_saver", *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
