"""The README's table of tested savers and what the tests know say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from services.others import OTHERS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", OTHERS)
def test_the_table_and_the_extras_name_the_tested_version(name: str) -> None:
    other = OTHERS[name]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{other.package}` {re.escape(other.version)}[ ,]", readme, re.MULTILINE)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["others" if other.optional else "dev"]
    assert f"{other.package}=={other.version}" in extra
