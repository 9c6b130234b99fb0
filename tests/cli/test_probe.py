"""The command `probe`, on savers that are named as a program names them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAVERS = """
from contextlib import contextmanager

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver


class Refuses(InMemorySaver):
    def put(self, config, checkpoint, metadata, new_versions):
        space = config["configurable"].get("checkpoint_ns", "")
        if checkpoint["id"] in self.storage[config["configurable"]["thread_id"]][space]:
            raise ValueError("secret")
        return super().put(config, checkpoint, metadata, new_versions)


class CountsVersions(InMemorySaver):
    def get_next_version(self, current, channel):
        return f"{int(current or 0) + 1:032}"


saver = InMemorySaver()
refuses = Refuses()
number = 3


def make():
    return SqliteSaver.from_conn_string("chat.db")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_savers.py").write_text(SAVERS, encoding="utf-8")
    command = [sys.executable, "-m", "reducing_saver", "probe", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


def test_it_says_what_it_finds(tmp_path: Path) -> None:
    done = run(tmp_path, "my_savers:refuses")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("Refuses: a new checkpoint is put after the newest")
    assert "  NO  the same checkpoint cannot be put again (ValueError)" in rest
    assert "  ok  the scratch thread is gone" in rest
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["saver", "make"])
def test_as_json(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"my_savers:{name}", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["way"] == "the same checkpoint is put again"
    assert [one["name"] for one in said["findings"] if not one["ok"]] == ["prune"]


def test_a_saver_of_which_nothing_can_be_rewritten(tmp_path: Path) -> None:
    done = run(tmp_path, "my_savers:CountsVersions")
    assert done.returncode == 1
    assert "CountsVersions: nothing can be rewritten" in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chat.db", "no probe"),
        ("postgresql://u:pw@h/db", "no probe"),
        ("no_such_module:saver", "cannot be imported"),
        ("my_savers:nothing", "has no 'nothing'"),
        ("my_savers:number", "is a int, no saver"),
    ],
)
def test_what_is_no_saver_is_refused(name: str, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, name)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "pw" not in done.stderr
