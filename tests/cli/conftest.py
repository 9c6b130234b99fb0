"""Run the command line in this process, and make files for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reducing_saver._cli import run


class Ran(NamedTuple):
    """Hold what one command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Give a function that runs a command at a terminal width of 80."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def ran(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return ran


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes a value as JSON, or a text as it is."""

    def written(value: object, name: str = "chat.json") -> Path:
        path = tmp_path / name
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
        return path

    return written


def one_line(text: str) -> bool:
    """Tell whether an error is what a person can read: one line of ours, and no traceback."""
    return text.count("\n") == 1 and text.startswith("reducing-saver: ") and "Traceback" not in text


@pytest.fixture
def refused(cli: Callable[..., Ran]) -> Callable[..., str]:
    """Give a function that runs a bad command and returns its one line on standard error."""

    def complaint(*arguments: object) -> str:
        code, out, err = cli(*arguments)
        assert code == 2
        assert out == ""
        assert one_line(err), err
        return err

    return complaint
