"""The command as a process: version, help, missing extras, pipes; never a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reducing_saver
from reducing_saver import _version

COMMANDS = (
    *("demo", "try"),
    *("stats", "compact", "worker", "status", "gc", "erase", "transcript"),
)
HIDE = "import sys; sys.modules.update(dict.fromkeys({hidden!r})); sys.argv = {argv!r}; "
START = "from reducing_saver.__main__ import main; sys.exit(main())"


def process(*arguments: object, hidden: tuple[str, ...] = (), **more: Any) -> Any:
    """Run a command as a process, as if some modules were not installed."""
    argv = ["reducing-saver", *map(str, arguments)]
    code = HIDE.format(hidden=hidden, argv=argv) + START
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **more)


def test_the_installed_command_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).with_name("reducing-saver")
    for command in ([str(script)], [sys.executable, "-m", "reducing_saver"]):
        if command[0] == str(script) and not script.exists():
            continue  # not every test environment installs scripts
        ran = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, f"reducing-saver {_version.__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_the_commands(cli: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.code == 0
    for command in COMMANDS:
        assert f" {command} " in ran.out


@pytest.mark.parametrize("command", ["demo", "try", "compact"])
def test_help_of_a_command_explains_the_window(cli: Callable[..., Any], command: str) -> None:
    ran = cli(command, "--help")
    said = " ".join(ran.out.replace("│", " ").split())
    assert ran.code == 0
    for words in ("turns:3", "twice --keep", "four times the trigger", "last three questions"):
        assert words in said


def test_help_fits_80_columns(cli: Callable[..., Any]) -> None:
    for arguments in ((), *((command, "--help") for command in COMMANDS)):
        assert max(map(len, cli(*arguments).out.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("--frob",),
        ("try",),
        ("try", "a", "b"),
        ("try", "a", "--keep"),
        ("demo", "--turns", "0"),
        ("demo", "--turns", "many"),
    ],
)
def test_wrong_usage_is_one_line(refused: Callable[..., str], arguments: tuple[str, ...]) -> None:
    assert "--help" in refused(*arguments)


@pytest.mark.parametrize("module", ["typer", "rich"])
@pytest.mark.parametrize(
    ("command", "extra"),
    [("--help", "cli"), ("--version", "cli"), ("try", "cli"), ("demo", "demo")],
)
def test_without_an_extra_one_line_names_the_one_that_is_enough(
    module: str, command: str, extra: str
) -> None:
    ran = process(command, hidden=(module,))
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == (
        f"reducing-saver: {module} is not installed; run: pip install 'reducing-saver[{extra}]'\n"
    )


@pytest.mark.parametrize("module", ["langgraph.checkpoint.sqlite", "langgraph.prebuilt"])
def test_without_the_demo_extra_one_line_names_it(module: str) -> None:
    ran = process("demo", "--turns", "1", hidden=(module,))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.endswith("pip install 'reducing-saver[demo]'\n")
    assert ran.stderr.count("\n") == 1


def test_try_needs_no_demo_extra(write: Callable[..., Path]) -> None:
    hidden = ("langgraph.checkpoint.sqlite", "langgraph.graph", "langgraph.prebuilt")
    ran = process("try", write([{"role": "user", "content": "hi"}]), hidden=hidden)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_importing_the_library_needs_neither_typer_nor_rich() -> None:
    code = (
        "import sys, reducing_saver; print(sorted({'typer', 'rich', 'sqlite3'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "[]\n"
    assert reducing_saver.__name__ == "reducing_saver"


def test_a_reader_that_leaves_early_is_no_error(write: Callable[..., Path]) -> None:
    chat = write([{"role": "user", "content": f"question {n}"} for n in range(4000)])
    command = [sys.executable, "-m", "reducing_saver", "try", str(chat), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""


def test_standard_input_is_read() -> None:
    ran = process("try", "-", input='[{"role": "user", "content": "hi"}]')
    assert ran.returncode == 0
    assert "hi" in ran.stdout


def test_an_interrupt_is_one_line(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reducing_saver._cli.read", interrupted)
    assert cli("try", "x") == (130, "", "reducing-saver: stopped\n")
