"""`reducing-saver demo`: two runs of a real graph, and what they left in two SQLite files."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from reducing_saver import Window
from reducing_saver._transcripts import Conversation, TranscriptError, read
from reducing_saver.demo import Report, compare, recording, travel_desk
from reducing_saver.demo.agent import NO_RESULT
from reducing_saver.demo.messages import langchain_messages
from reducing_saver.demo.show import Figure, ratio
from reducing_saver.engine import problems

CONVERSATIONS = Path(__file__).parents[2].parent / "shared" / "data" / "airline_conversations.json"
NEVER = Window(keep=("turns", 1000))
real = pytest.mark.skipif(not CONVERSATIONS.exists(), reason="the real conversations are not here")


def stored(path: Path, thread: str) -> list[BaseMessage]:
    """Load the newest list of a thread without the wrapper."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    assert found is not None
    messages: list[BaseMessage] = found.checkpoint["channel_values"].get("messages", [])
    return messages


def plain(messages: Sequence[BaseMessage]) -> list[tuple[object, ...]]:
    """Say what messages are, without the ids that every run gives anew."""
    return [
        (
            message.type,
            message.content,
            message.tool_calls if isinstance(message, AIMessage) else None,
            message.tool_call_id if isinstance(message, ToolMessage) else None,
            getattr(message, "status", None),
        )
        for message in messages
    ]


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def says(text: str | None, *calls: tuple[str | None, str, str]) -> dict[str, object]:
    asked = [
        {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
        for key, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": asked}


def result(key: str, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": key, "content": text}


def replay(folder: Path, messages: list[dict[str, object]]) -> tuple[list[BaseMessage], Report]:
    """Play one conversation, and return the list that the bare thread ends with."""
    report = compare([recording(Conversation("x", tuple(messages)))], NEVER, folder)
    assert plain(stored(report.bare.path, "x")) == plain(stored(report.wrapped.path, "x"))
    return stored(report.bare.path, "x"), report


# The built-in conversation


def test_the_table_shows_both_sides(cli: Callable[..., Any]) -> None:
    ran = cli("demo", "--turns", "20")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert lines[1].split() == ["turns", "20", "20"]
    for label in (
        "messages in the head",
        "bytes in the head",
        "bytes in the file",
        "checkpoints in the file",
        "time to load the thread",
    ):
        assert sum(line.startswith(label) for line in lines) == 1
    assert "fewer" in lines[2]
    assert "smaller" in lines[3]
    assert "smaller" in lines[4]
    assert "The stored history is still valid for OpenAI, Anthropic and Gemini." in lines
    assert lines[-2].strip() == (
        'saver = ReducingSaver(saver, Window(keep=("turns", 3)), archive=Discard())'
    )
    assert max(map(len, lines)) <= 80


def test_the_json_is_for_programs(cli: Callable[..., Any]) -> None:
    ran = cli("demo", "--turns", "12", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json.keys() == {
        *("version", "window", "seconds", "turns", "files"),
        *("valid", "valid_conversations", "conversations", "notes", "warnings"),
    }
    assert ran.json["turns"] == 12
    assert ran.json["valid"] == {"openai": True, "anthropic": True, "gemini": True}
    assert ran.json["valid_conversations"] == 1
    assert ran.json["notes"] == {}
    (thread,) = ran.json["conversations"]
    bare, wrapped = thread["bare"], thread["wrapped"]
    assert bare.keys() == wrapped.keys() == {"messages", "bytes", "load_ms", "problems"}
    assert wrapped["messages"] < bare["messages"]
    assert wrapped["bytes"] < bare["bytes"]
    files = ran.json["files"]
    assert files["wrapped"]["bytes"] < files["bare"]["bytes"]
    assert files["wrapped"]["checkpoints"] == files["bare"]["checkpoints"] > 12


@pytest.mark.parametrize("turns", [1, 4, 5, 6, 61])
def test_the_built_in_conversation_has_any_length_and_is_always_the_same(turns: int) -> None:
    first, second = travel_desk(turns), travel_desk(turns)
    assert len(first.turns) == first.humans == turns
    assert first == second
    said = [message for turn in first.turns for message in (*turn.inputs, *turn.replies)]
    assert all(message.content or message.tool_calls for message in said)  # type: ignore[attr-defined]


def test_the_numbers_are_what_the_files_hold(tmp_path: Path) -> None:
    window = Window(keep=("turns", 2), trigger=("turns", 3))
    report = compare([travel_desk(8)], window, tmp_path)
    (thread,) = report.threads
    for file, head in ((report.bare, thread.bare), (report.wrapped, thread.wrapped)):
        messages = stored(file.path, thread.id)
        assert head.messages == len(messages)
        assert head.problems == problems(messages) == ()
        assert file.bytes == file.path.stat().st_size
        with sqlite3.connect(file.path) as connection:
            rows = connection.execute("SELECT length(checkpoint) FROM checkpoints").fetchall()
        assert file.checkpoints == len(rows)
        assert (head.bytes,) in rows
        assert head.load_ms > 0
    bare, wrapped = (plain(stored(f.path, thread.id)) for f in (report.bare, report.wrapped))
    assert 1 < len(wrapped) < len(bare)
    assert wrapped[0] == bare[0]  # the system message
    assert wrapped[1:] == bare[-len(wrapped) + 1 :]


def test_tools_really_run(tmp_path: Path) -> None:
    report = compare([travel_desk(5)], NEVER, tmp_path)
    results = [m for m in stored(report.bare.path, "travel-desk") if isinstance(m, ToolMessage)]
    assert {m.name for m in results} == {
        *("search_flights", "book_flight", "search_hotels", "book_hotel", "read_policy", "weather"),
    }
    assert all(m.status == "success" for m in results)
    assert len(json.loads(str(results[0].content))["offers"]) == 7


@pytest.mark.parametrize(
    ("bare", "wrapped", "less", "noise", "said"),
    [
        (253, 18, "fewer", 0, "14x fewer"),
        (16, 10, "smaller", 0, "1.6x smaller"),
        (10, 16, "smaller", 0, "1.6x larger"),
        (300, 300, "fewer", 0, "the same"),
        (0.05, 0.06, "faster", 0.03, "the same"),
        (0.06, 0.05, "faster", 0.03, "the same"),
        (0.05, 0.09, "faster", 0.03, "1.8x slower"),
        (2.4, 0.2, "faster", 0.03, "12x faster"),
        (3.1, 2.0, "", 0, ""),
        (0, 0, "fewer", 0, ""),
    ],
)
def test_a_ratio_is_said_where_it_is_none_of_noise(
    bare: float, wrapped: float, less: str, noise: float, said: str
) -> None:
    assert ratio(Figure("x", bare, wrapped, str, less, noise)) == said


def test_a_window_that_never_triggers_is_the_same(cli: Callable[..., Any]) -> None:
    ran = cli("demo", "--turns", "2", "--keep", "turns:6", "--trigger", "tokens:8000")
    said = " ".join(ran.out.split())
    assert "keep turns:6, trigger tokens:8000" in said
    assert "stayed below the trigger and is stored whole" in said
    assert 'Window(keep=("turns", 6), trigger=("tokens", 8000))' in said


def test_the_line_names_every_mark(cli: Callable[..., Any]) -> None:
    marks = ("--trigger", "turns:9", "--trigger", "tokens:8000", "--cap", "tokens:50000")
    out = cli("demo", "--turns", "1", *marks).out
    line = next(line.strip() for line in out.splitlines() if "ReducingSaver" in line)
    window = line[line.index("Window(") : line.index(", archive")]
    assert eval(window, {"Window": Window}) == Window(
        ("turns", 3), [("turns", 9), ("tokens", 8000)], ("tokens", 50000)
    )


def test_the_files_are_kept_where_one_says(
    cli: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    ran = cli("demo", "--turns", "1", "--db", folder)
    assert ran.code == 0
    assert "bare.db" in ran.out
    assert sorted(path.name for path in folder.iterdir()) == ["bare.db", "wrapped.db"]
    assert "already" in refused("demo", "--turns", "1", "--db", folder)
    assert "folder is needed" in refused("demo", "--turns", "1", "--db", folder / "bare.db")


def test_nothing_is_left_behind(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli("demo", "--turns", "1").code == 0
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_used_whatever_the_environment_says() -> None:
    code = """
import socket, sys
def refuse(*_, **__): sys.exit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
from reducing_saver.__main__ import main
sys.argv = ["reducing-saver", "demo", "--turns", "3", "--json"]
sys.exit(main())
"""
    tracing = {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "none"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **tracing}
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["turns"] == 3


# A person's own conversations


def test_what_the_saver_warns_of_stands_below_the_table(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    chat = [user("a"), says("b"), user("c" * 900), says("d" * 900)]
    options = ("--input", write(chat), "--keep", "tokens:10", "--cap", "tokens:9000")
    ran = cli("demo", *options)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("warning: ") == 1
    (warning,) = cli("demo", *options, "--json").json["warnings"]
    assert "tokens" in warning


@pytest.mark.parametrize(
    "messages",
    [
        [says("hello"), user("a"), says("b")],
        [{"role": "system", "content": "s"}, says("hello"), says("again"), user("a"), user("b")],
        [user("a"), says(None, ("call_0", "f", "{}")), result("call_0", "1"), says("x"), says("y")],
        [
            user("a"),
            says(None, ("call_0", "f", "{}")),
            result("call_0", "1"),
            says(None, ("call_0", "f", "{}"), ("call_1", "g", '{"a": 1}')),
            result("call_0", "2"),
            result("call_1", "3"),
            user("b"),
            says(None, ("call_0", "f", "{}")),
            result("call_0", "4"),
        ],
        [user("a"), {"role": "system", "content": "in the middle"}, says("b"), user("c")],
        [
            user("a"),
            says(None, ("c", "f", '{"tool_call_id": "evil", "config": 1, "self": 2}')),
            result("c", "1"),
        ],
        [{"role": "system", "content": "only"}],
        [user("a"), user("b")],
        [user("a"), says("b"), user("c"), says("d")],
    ],
)
def test_a_conversation_is_replayed_as_it_was(
    tmp_path: Path, messages: list[dict[str, object]]
) -> None:
    found, report = replay(tmp_path, messages)
    assert plain(found) == plain(langchain_messages(messages))
    assert report.notes == {}


def test_repeated_message_ids_do_not_swallow_messages(tmp_path: Path) -> None:
    messages = [{**user(text), "id": "same"} for text in "abc"]
    found, _ = replay(tmp_path, messages)
    assert [message.content for message in found] == ["a", "b", "c"]


def test_a_call_without_a_recorded_result_is_answered_with_an_error(tmp_path: Path) -> None:
    messages = [user("a"), says(None, ("c1", "f", "{}"), ("c2", "f", "{}")), result("c2", "2")]
    found, report = replay(tmp_path, messages)
    assert [message.content for message in found[2:]] == [NO_RESULT, "2"]
    assert [message.status for message in found[2:] if isinstance(message, ToolMessage)] == [
        *("error", "success"),
    ]
    assert [*report.notes.values()] == [1]


def test_calls_without_ids_get_their_own_results(tmp_path: Path) -> None:
    results: list[dict[str, object]] = [
        {"role": "tool", "name": "g", "content": "of g"},
        {"role": "tool", "content": "of f"},
    ]
    messages = [user("a"), says(None, (None, "f", "{}"), (None, "g", "{}")), *results]
    found, report = replay(tmp_path, messages)
    assert [message.content for message in found[2:]] == ["of f", "of g"]
    assert report.notes == {"tool calls without an id, given one": 2}
    assert problems(found) == ()


def test_late_orphan_and_second_results_are_noted(tmp_path: Path) -> None:
    messages = [
        *(user("a"), says(None, ("c", "f", "{}")), user("b")),
        *(result("c", "late"), result("c", "second"), result("z", "orphan"), says("x")),
    ]
    found, report = replay(tmp_path, messages)
    assert [message.content for message in found] == ["a", "", "late", "b", "x"]
    assert report.notes == {
        "late tool results, given at once": 1,
        "tool results that answer no open call, left out": 2,
    }


def test_arguments_that_are_not_json_are_played_as_text(tmp_path: Path) -> None:
    messages = [user("a"), says(None, ("c", "f", "{bad")), result("c", "1")]
    found, report = replay(tmp_path, messages)
    assert isinstance(found[1], AIMessage)
    assert found[1].tool_calls[0]["args"] == {"arguments": "{bad"}
    assert found[2].content == "1"
    assert [*report.notes.values()] == [1]


def test_a_role_that_nobody_knows_is_played_and_noted(tmp_path: Path) -> None:
    messages = [user("a"), says("b"), {"role": "wizard", "content": "abra"}, says("c")]
    found, report = replay(tmp_path, messages)
    assert [message.content for message in found] == ["a", "b", "abra", "c"]
    assert report.notes == {"messages of a role that no provider knows": 1}


def test_a_long_turn_is_played_to_its_end(tmp_path: Path) -> None:
    steps = [
        message
        for n in range(40)
        for message in (says(None, (f"c{n}", "f", "{}")), result(f"c{n}", str(n)))
    ]
    found, _ = replay(tmp_path, [user("a"), *steps, says("done")])
    assert len(found) == 82


def test_what_cannot_be_replayed_is_one_line(
    refused: Callable[..., str], write: Callable[..., Path]
) -> None:
    path = write([{"id": "mine", "messages": [user("a"), {"role": "user", "content": 5}]}])
    said = refused("demo", "--input", path)
    assert "conversation mine: message 2" in said
    with pytest.raises(TranscriptError):
        recording(read(str(path))[0])


def test_a_history_that_is_not_valid_is_said(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    bad = [user("a"), {"role": "system", "content": "in the middle"}, says("b")]
    path = write([{"id": "good", "messages": [user("a")]}, {"id": "bad", "messages": bad}])
    ran = cli("demo", "--input", path)
    assert ran.code == 0
    assert "All 2 stored histories are still valid for OpenAI." in ran.out
    assert "NOT valid for Anthropic: system message in the middle in bad, message 2." in ran.out
    assert "1 of 2 stored histories are valid for all." in ran.out
    assert "it is in the recording" in ran.out
    found = cli("demo", "--input", path, "--json").json
    assert found["valid"] == {"openai": True, "anthropic": False, "gemini": False}
    assert found["conversations"][1]["wrapped"]["problems"] == [
        {"rule": "system message in the middle", "index": 1}
    ]


def test_turns_shortens_every_conversation(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    chat = [message for n in range(9) for message in (user(f"q{n}"), says(f"a{n}"))]
    path = write([{"id": "a", "messages": chat}, {"id": "b", "messages": chat[:2]}])
    found = cli("demo", "--input", path, "--turns", "4", "--json").json
    assert [thread["turns"] for thread in found["conversations"]] == [4, 1]


def test_conversations_without_messages_are_noted(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write([{"id": "a", "messages": [user("a")]}, {"id": "b", "messages": []}])
    found = cli("demo", "--input", path, "--json").json
    assert found["notes"] == {"conversations without messages, left out": 1}
    assert "note: conversations without messages, left out: 1" in cli("demo", "--input", path).out


def test_many_conversations_are_listed_in_short_unless_asked_for(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    chats = [{"id": f"chat-{n:02}", "messages": [user("a"), says("b")]} for n in range(15)]
    path = write(chats)
    short, long = cli("demo", "--input", path), cli("demo", "--input", path, "--all")
    assert "... and 3 more" in short.out
    assert "All 15 stored histories are still valid for OpenAI, Anthropic and Gemini." in short.out
    assert short.out.count("valid") == 2  # the table's column, and this line
    assert short.out.count("chat-") == 12
    assert long.out.count("chat-") == 15


@real
@pytest.mark.parametrize("part", range(4))
def test_all_real_conversations_are_replayed_and_stay_valid(tmp_path: Path, part: int) -> None:
    """A hundred conversations, in four parts for four processes."""
    conversations = read(str(CONVERSATIONS))
    assert len(conversations) == 100
    chosen = conversations[part::4]
    window = Window(keep=("turns", 2), trigger=("turns", 3))
    report = compare([recording(each) for each in chosen], window, tmp_path)
    assert len(report.threads) == 25
    assert not any(thread.wrapped.problems for thread in report.threads)
    assert report.notes == {}
    for conversation, thread in zip(chosen, report.threads, strict=True):
        recorded = plain(langchain_messages(conversation.messages))
        bare = plain(stored(report.bare.path, conversation.id))
        wrapped = plain(stored(report.wrapped.path, conversation.id))
        assert bare == recorded
        assert wrapped[0] == bare[0]
        assert wrapped[1:] == bare[len(bare) - len(wrapped) + 1 :]
        assert len(wrapped) == len(bare) or thread.turns > 3


@real
def test_the_command_plays_real_conversations(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write(json.loads(CONVERSATIONS.read_text("utf-8"))[:5])
    ran = cli("demo", "--input", path)
    assert (ran.code, ran.err) == (0, "")
    assert "All 5 stored histories are still valid for OpenAI, Anthropic and Gemini." in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
