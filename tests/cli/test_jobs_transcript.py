"""`reducing-saver transcript`: every message of a thread ever, from real databases."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.databases import KINDS, Database, chat, database, reduced
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, messages_from_dict
from langgraph.graph import START, MessagesState, StateGraph

TURNS = 9


@pytest.fixture(params=KINDS)
def made(
    request: pytest.FixtureRequest, tmp_path: Path, make_database: Callable[[], str]
) -> Database:
    """Give a database with a reduced thread `t` and its archive."""
    made = database(request.param, tmp_path, make_database)
    with made.saver() as inner, made.store() as store:
        chat(reduced(inner, store), "t", TURNS)
    return made


def everything() -> list[str]:
    return [text for n in range(TURNS) for text in (f"question {n} ", f"heard question {n} ")]


def test_archive_and_state_are_printed_in_order(made: Database, cli: Callable[..., Any]) -> None:
    with made.saver() as inner:
        config = {"configurable": {"thread_id": "t"}}
        stored = inner.get_tuple(config).checkpoint["channel_values"]["messages"]
    assert 0 < len(stored) < 2 * TURNS  # the rest is in the archive
    ran = cli("transcript", made.dsn, "t")
    assert (ran.code, ran.err) == (0, "")
    lines = [line for line in ran.out.splitlines() if line]
    assert lines[-1] == f"{2 * TURNS} messages"
    assert lines[:4] == ["1 human", "  question 0", "2 ai", "  heard question 0"]
    assert [line.strip() for line in lines[1:-1:2]] == [text.strip() for text in everything()]


def test_the_archive_is_found_over_a_turn_of_a_bare_saver(
    made: Database, cli: Callable[..., Any]
) -> None:
    with made.saver() as inner:
        chat(inner, "t", 1, start=TURNS)
    ran = cli("transcript", made.dsn, "t")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[:2] == ["1 human", "  question 0"]


def test_what_was_discarded_is_not_passed_over_in_silence(
    tmp_path: Path, make_database: Callable[[], str], cli: Callable[..., Any]
) -> None:
    made = database("sqlite", tmp_path, make_database)
    with made.saver() as inner:
        chat(reduced(inner), "t", TURNS)
    ran = cli("transcript", made.dsn, "t")
    assert (ran.code, ran.err) == (0, "")
    said = " ".join(ran.out.split())
    assert said.endswith(" messages; nothing is archived, so what was discarded is not among them")
    assert f"{2 * TURNS} messages" not in said
    assert "discarded" in cli("transcript", "--help").out


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_json_is_one_document_that_langchain_reads(
    made: Database, cli: Callable[..., Any], page_size: int
) -> None:
    ran = cli("transcript", made.dsn, "t", "--json", "--page-size", page_size)
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["thread_id"], ran.json["namespace"]) == ("t", "")
    read = messages_from_dict(ran.json["messages"])
    assert [message.content for message in read] == everything()
    assert [type(message) for message in read[:2]] == [HumanMessage, AIMessage]
    assert read[0].id == "t-0"


def test_try_reads_what_transcript_prints(
    made: Database, cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    printed = cli("transcript", made.dsn, "t", "--json").out
    tried = cli("try", write(printed), "--json").json
    (tried,) = tried["conversations"]
    assert (tried["id"], tried["kept"]["messages"] + tried["evicted"]["messages"]) == ("t", 18)


def test_reading_changes_nothing(made: Database, cli: Callable[..., Any]) -> None:
    if made.kind == "sqlite":
        sqlite3.connect(made.dsn).execute("PRAGMA journal_mode=DELETE")
        before = hashlib.sha256(Path(made.dsn).read_bytes()).digest()
        assert cli("transcript", made.dsn, "t").code == 0
        assert hashlib.sha256(Path(made.dsn).read_bytes()).digest() == before
        assert [path.name for path in Path(made.dsn).parent.iterdir()] == ["threads.db"]
        return
    import psycopg

    with psycopg.connect(made.dsn, autocommit=True) as connection:
        count = "SELECT count(*) FROM checkpoints UNION ALL SELECT count(*) FROM store"
        before = connection.execute(count).fetchall()
        assert cli("transcript", made.dsn, "t").code == 0
        assert connection.execute(count).fetchall() == before


def test_a_read_only_file_can_be_read(
    tmp_path: Path, cli: Callable[..., Any], make_database: Callable[[], str]
) -> None:
    made = database("sqlite", tmp_path, make_database)
    with made.saver() as inner, made.store() as store:
        chat(reduced(inner, store), "t", TURNS)
    sqlite3.connect(made.dsn).execute("PRAGMA journal_mode=DELETE")
    Path(made.dsn).chmod(0o444)
    assert f"{2 * TURNS} messages" in cli("transcript", made.dsn, "t").out


def test_the_archive_may_be_elsewhere(
    tmp_path: Path, cli: Callable[..., Any], make_database: Callable[[], str]
) -> None:
    (tmp_path / "archive").mkdir()
    threads = database("sqlite", tmp_path, make_database)
    archive = database("sqlite", tmp_path / "archive", make_database)
    with threads.saver() as inner, archive.store() as store:
        chat(reduced(inner, store), "t", TURNS)
    ran = cli("transcript", threads.dsn, "t", "--archive", archive.dsn)
    assert (ran.code, ran.err) == (0, "")
    assert f"{2 * TURNS} messages" in ran.out
    lost = cli("transcript", threads.dsn, "t")
    assert lost.code == 1
    assert "question 0" not in lost.out
    assert f"question {TURNS - 1}" in lost.out
    assert lost.err.startswith("reducing-saver: warning: a transcript is not whole")
    assert "--archive DSN" in lost.err
    assert lost.err.count("\n") == 1


def test_a_thread_that_was_never_reduced(
    tmp_path: Path, cli: Callable[..., Any], make_database: Callable[[], str]
) -> None:
    made = database("sqlite", tmp_path, make_database)
    with made.saver() as inner:
        chat(inner, "t", 2)
    assert "4 messages" in cli("transcript", f"sqlite:///{made.dsn}", "t").out


def test_a_subgraph_has_a_namespace(
    tmp_path: Path, cli: Callable[..., Any], make_database: Callable[[], str], refused: Any
) -> None:
    made = database("sqlite", tmp_path, make_database)

    def answer(state: Any) -> Any:
        return {"messages": [AIMessage("from below")]}

    child = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    with made.saver() as inner:
        builder = StateGraph(MessagesState)
        builder.add_node("child", child.compile(checkpointer=True)).add_edge(START, "child")
        graph = builder.compile(checkpointer=inner)
        graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "t"}})
    ran = cli("transcript", made.dsn, "t", "--namespace", "child")
    assert "from below" in ran.out
    said = refused("transcript", made.dsn, "t", "--namespace", "nephew")
    assert "thread 't' has no namespace 'nephew'" in said


def test_what_a_message_holds_is_shown_and_cannot_play_with_the_terminal(
    tmp_path: Path, cli: Callable[..., Any], make_database: Callable[[], str]
) -> None:
    made = database("sqlite", tmp_path, make_database)
    call = {"id": "1", "name": "look", "args": {"city": "Malmö"}}
    said = [
        HumanMessage([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]),
        AIMessage("two\nlines", tool_calls=[call]),
        ToolMessage("\x1b[2Jgone\u202e \x07", tool_call_id="1", name="look\x1b"),
    ]

    def say(state: Any) -> Any:
        return {"messages": said[1:]}

    with made.saver() as inner:
        builder = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say")
        graph = builder.compile(checkpointer=inner)
        graph.invoke({"messages": said[:1]}, {"configurable": {"thread_id": "t"}})
    lines = [line for line in cli("transcript", made.dsn, "t").out.splitlines() if line]
    assert lines[:7] == [
        "1 human",
        "  see [image_url]",
        "2 ai",
        "  two",
        "  lines",
        '  look({"city": "Malmö"})',
        "3 tool look",
    ]
    assert lines[7] == "   [2Jgone"
    assert not {"\x1b", "\x07", "\u202e"} & {*"".join(lines)}


def test_an_encrypted_thread_needs_its_key(
    tmp_path: Path,
    cli: Callable[..., Any],
    make_database: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Any,
) -> None:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    made = database("sqlite", tmp_path, make_database)
    key = b"0123456789abcdef"
    serde = EncryptedSerializer.from_pycryptodome_aes(key=key)
    with made.saver(serde=serde) as inner, made.store() as store:
        chat(reduced(inner, store), "t", TURNS)
    assert "LANGGRAPH_AES_KEY" in refused("transcript", made.dsn, "t")
    monkeypatch.setenv("LANGGRAPH_AES_KEY", key.decode())
    assert f"{2 * TURNS} messages" in cli("transcript", made.dsn, "t").out
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "short")
    assert "16, 24 or 32 bytes" in refused("transcript", made.dsn, "t")


def test_a_thread_or_channel_that_is_not_there(made: Database, refused: Any) -> None:
    assert "thread 'nobody' is not in" in refused("transcript", made.dsn, "nobody")
    said = refused("transcript", made.dsn, "t", "--channel", "history")
    assert "channel 'history' is not in thread 't'; it has messages in messages" in said
    assert "--page-size" in refused("transcript", made.dsn, "t", "--page-size", "0")
