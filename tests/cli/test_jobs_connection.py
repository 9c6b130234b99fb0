"""What names a database: bad ones are refused in one line, and no password is ever printed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.databases import refusing_server

from reducing_saver._connection import is_postgres, masked, plain

SECRET = "s3cr-t"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://app:s3cr-t@db/prod", "postgresql://app:***@db/prod"),
        ("postgresql://app:s3cr-t@h1:1,h2:2/prod?x=1", "postgresql://app:***@h1:1,h2:2/prod?x=1"),
        ("postgresql://app@db/prod", "postgresql://app@db/prod"),
        ("postgresql://app:s3cr-t@s3cr-t@db/prod", "postgresql://app:***@db/prod"),
        ("postgresql://app:s3cr-t/s3cr-t@db/prod", "postgresql://app:***@db/prod"),
        ("postgresql://app:s3cr-t#?@db/prod", "postgresql://app:***@db/prod"),
        ("postgresql://db/prod?user=app&password=s3cr-t&sslmode=require", None),
        ("postgresql://db/prod?sslpassword=s3cr-t", None),
        ("host=db password=s3cr-t dbname=prod", "host=db password=*** dbname=prod"),
        ("host=db password = 's3cr-t \\'s3cr-t' x=1", "host=db password = *** x=1"),
        ("chat.db", "chat.db"),
        ("sqlite:///chat.db", "sqlite:///chat.db"),
        ("a\x1b[2J.db", "a?[2J.db"),
    ],
)
def test_a_password_is_masked(dsn: str, shown: str | None) -> None:
    assert SECRET not in masked(dsn)
    assert shown is None or masked(dsn) == shown
    assert masked(masked(dsn)) == masked(dsn)


@pytest.mark.parametrize(
    ("dsn", "said", "postgres"),
    [
        ("postgres://db/prod", "postgresql://db/prod", True),
        ("postgresql+psycopg://db/prod", "postgresql://db/prod", True),
        ("POSTGRESQL://db/prod", "postgresql://db/prod", True),
        ("sqlite:///chat.db", "chat.db", False),
        ("sqlite:////tmp/chat.db", "/tmp/chat.db", False),
        ("sqlite+aiosqlite:///chat.db", "chat.db", False),
        ("folder/chat.db", "folder/chat.db", False),
        ("host=db dbname=prod", "host=db dbname=prod", True),
    ],
)
def test_what_the_libraries_are_given(dsn: str, said: str, postgres: bool) -> None:
    assert (plain(dsn), is_postgres(dsn)) == (said, postgres)


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("mysql://u:s3cr-t@db/prod", "'mysql://u:***@db/prod' is no database; allowed is"),
        ("", "is no database; allowed is postgresql://USER@HOST/DATABASE"),
        ("host=127.0.0.1 port=1 password=s3cr-t", "connection refused"),
        ("host=127.0.0.1 password='s3cr-t", "not understood"),
        ("nowhere.db", "nowhere.db: no such file"),
        ("sqlite:///nowhere.db", "no such file"),
        (".", ".: a folder"),
        ("postgresql://u:%zzs3cr-t@db/prod", "not understood"),
        ("postgresql://u:a@s3cr-t@db/prod", "an @ in a password is written as %40"),
        ("postgresql://u:s3cr-t@127.0.0.1:1/prod", "connection refused"),
        ("postgresql://u:s3cr-t@host.invalid/prod", "host.invalid"),
        ("postgresql://u:s3cr-t@127.0.0.1/prod?frob=1", "not understood"),
    ],
)
def test_a_bad_one_is_refused_in_one_line(refused: Any, dsn: str, said: str) -> None:
    complaint = refused("transcript", dsn, "t")
    assert said.lower() in complaint.lower()
    assert SECRET not in complaint


def test_a_wrong_password_is_refused_in_one_line(refused: Any) -> None:
    with refusing_server() as port:
        said = refused("transcript", f"postgresql://app:{SECRET}@127.0.0.1:{port}/prod", "t")
    assert "password authentication failed" in said
    assert f"postgresql://app:***@127.0.0.1:{port}/prod" in said
    assert SECRET not in said


def test_a_file_that_is_no_database(refused: Any, write: Callable[..., Path]) -> None:
    assert "not a database" in refused("transcript", write("no database " * 100), "t")


def test_a_database_without_checkpoints(
    refused: Any, tmp_path: Path, make_database: Callable[[], str]
) -> None:
    path = tmp_path / "empty.db"
    sqlite3.connect(path).execute("CREATE TABLE other (x)")
    said = "the database has no checkpoint tables of LangGraph"
    assert said in refused("transcript", path, "t")
    assert said in refused("transcript", make_database(), "t")


def test_an_archive_without_a_store(refused: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    sqlite3.connect(path).execute("CREATE TABLE checkpoints (x)")
    assert "has no store tables" in refused("transcript", path, "t", "--archive", path)
