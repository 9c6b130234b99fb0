"""People's files: every shape that is read, and one clear line for what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)

from reducing_saver._transcripts import TranscriptError, read
from reducing_saver._words import line
from reducing_saver.demo.messages import langchain_messages
from reducing_saver.engine import Kind, split

Write = Callable[..., Path]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
RECORDED: list[BaseMessage] = [
    SystemMessage("be kind"),
    HumanMessage("hi", id="h1", name="Ada"),
    AIMessage(
        "let me look",
        id="a1",
        tool_calls=[{"name": "look", "args": {"x": [1]}, "id": "c1", "type": "tool_call"}],
        response_metadata={"model": "m"},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        additional_kwargs={"reasoning": "why"},
    ),
    ToolMessage("found", tool_call_id="c1", name="look", status="error", id="t1"),
]


@pytest.mark.parametrize(
    ("value", "ids", "count"),
    [
        (CHAT, ["1"], 2),
        (CHAT[0], ["1"], 1),
        ({"messages": CHAT}, ["1"], 2),
        ({"id": "x", "messages": CHAT}, ["x"], 2),
        ({"thread_id": 7, "values": {"messages": CHAT}}, ["7"], 2),
        ({"model": "m", "system": "s", "messages": CHAT}, ["1"], 3),
        ([{"id": "x", "messages": CHAT}, {"messages": CHAT}], ["x", "2"], 4),
        ([{"id": "x", "messages": CHAT}, {"id": "x", "messages": CHAT}], ["x", "x-2"], 4),
        ([{"id": "x", "messages": CHAT}, {"id": "y", "messages": []}], ["x", "y"], 2),
        ([CHAT, CHAT, CHAT], ["1", "2", "3"], 6),
    ],
)
def test_a_file_holds_conversations(
    write: Write, value: object, ids: list[str], count: int
) -> None:
    found = read(str(write(value)))
    assert [conversation.id for conversation in found] == ids
    assert sum(len(conversation.messages) for conversation in found) == count


@pytest.mark.parametrize("lines", [CHAT, [{"messages": CHAT}, {"messages": CHAT}], [CHAT, CHAT]])
def test_json_lines_are_read(write: Write, lines: list[object]) -> None:
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    as_lines = read(str(write(text, "chat.jsonl")))
    as_list = read(str(write(lines, "chat.json")))
    assert as_lines == as_list


def test_a_byte_order_mark_is_no_matter(write: Write) -> None:
    assert len(read(str(write(b"\xef\xbb\xbf" + json.dumps(CHAT).encode())))) == 1


@pytest.mark.parametrize(
    ("value", "words_"),
    [
        ("{bad", "not JSON"),
        ('[\n{"role": "user"\n', "line 3"),
        ('{"role": "user", "content": "hi"}\n{bad\n', "line 2"),
        ("", "empty"),
        ("  \n", "empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("[" * 100_000, "nested"),
        ([], "no messages"),
        ({}, "without messages"),
        ({"messages": []}, "no messages"),
        ({"messages": "hi"}, "without messages"),
        ([{"id": "x", "messages": []}], "no messages"),
        ([1, 2], "a number"),
        ("hi", "not JSON"),
        ('"hi"', "a string"),
        ("null", "null"),
        ([{"foo": "bar"}], "without messages"),
        ({"messages": [{"foo": "bar"}]}, '"role"'),
        ([CHAT[0], "hello"], "message 2"),
        ([CHAT[0], None], "null"),
        ([{"id": "x", "messages": CHAT}, 5], "conversation 2"),
    ],
)
def test_what_cannot_be_read_is_said(write: Write, value: object, words_: str) -> None:
    with pytest.raises(TranscriptError, match=words_) as caught:
        read(str(write(value)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="no such file"):
        read(str(tmp_path / "nothing.json"))
    with pytest.raises(TranscriptError, match="folder"):
        read(str(tmp_path))


@pytest.mark.parametrize(
    "form", [message_to_dict, dumpd, lambda message: message.model_dump(mode="json")]
)
def test_every_form_of_langchain_comes_back_equal(
    write: Write, form: Callable[[BaseMessage], object]
) -> None:
    (found,) = read(str(write([form(message) for message in RECORDED])))
    assert langchain_messages(found.messages) == RECORDED
    kinds = [unit.kind for unit in split(list(found.messages))]
    assert kinds == [Kind.SYSTEM, Kind.HUMAN, Kind.TOOLS]


def test_openai_dicts_become_messages() -> None:
    function = {"name": "look", "arguments": '{"x": 1}'}
    recorded = [
        {"role": "developer", "content": "s"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": {**function, "arguments": "{bad"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    system, asked, result = langchain_messages(recorded)
    assert isinstance(system, SystemMessage)
    assert isinstance(asked, AIMessage)
    assert asked.content == ""
    assert asked.tool_calls == [{"name": "look", "args": {"x": 1}, "id": "c1", "type": "tool_call"}]
    assert [call["args"] for call in asked.invalid_tool_calls] == ["{bad"]
    assert result == ToolMessage("found", tool_call_id="c1")


def test_a_legacy_function_call_becomes_a_tool_call() -> None:
    call = {"name": "look", "arguments": "{}"}
    asked, result = langchain_messages(
        [
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "look", "content": "found"},
        ]
    )
    assert isinstance(asked, AIMessage)
    assert [call["name"] for call in asked.tool_calls] == ["look"]
    assert asked.additional_kwargs == {}
    assert result == ToolMessage("found", tool_call_id="", name="look")


def test_anthropic_dicts_become_messages() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    given = {"type": "tool_result", "tool_use_id": "c1", "content": "found", "is_error": True}
    text = {"type": "text", "text": "and now?"}
    asked, result, human = langchain_messages(
        [
            {"role": "assistant", "content": [thought, use]},
            {"role": "user", "content": [given, text]},
        ]
    )
    assert isinstance(asked, AIMessage)
    assert asked.content == [thought, use]
    assert asked.tool_calls == [{"name": "look", "args": {"x": 1}, "id": "c1", "type": "tool_call"}]
    assert result == ToolMessage("found", tool_call_id="c1", status="error")
    assert human == HumanMessage([text])


def test_items_of_openai_responses_become_messages() -> None:
    call = {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "look"}
    given = {"type": "function_call_output", "call_id": "c1", "output": "found"}
    asked, result = langchain_messages([{**call, "arguments": '{"x": 1}'}, given])
    assert isinstance(asked, AIMessage)
    assert asked.tool_calls == [{"name": "look", "args": {"x": 1}, "id": "c1", "type": "tool_call"}]
    assert result == ToolMessage("found", tool_call_id="c1")


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "wizard", "content": "abra"}, "wizard"),
        ({"role": "chat", "content": "abra"}, "chat"),
        ({"type": "note", "content": "abra"}, "note"),
        ({"content": "abra"}, "unknown"),
        ({"type": "chat", "data": {"role": "wizard", "content": "abra"}}, "wizard"),
    ],
)
def test_a_role_that_nobody_knows_is_kept(message: object, role: str) -> None:
    (found,) = langchain_messages([message])
    assert found == ChatMessage("abra", role=role)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "parts": [{"text": "Gemini's"}]},
        {"role": "user", "content": 5},
        "hello",
    ],
)
def test_what_cannot_be_replayed_is_named(message: object) -> None:
    with pytest.raises(TranscriptError, match="message 2 cannot be replayed") as caught:
        langchain_messages([CHAT[0], message])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "user", "content": "two\n lines\t\x1b[31mred"}, "two lines [31mred"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
            "a [image]",
        ),
        ({"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}, "look()"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "found"}]}, "found"),
        ({"role": "user", "parts": [{"text": "Gemini's"}]}, "Gemini's"),
        ({"role": "user", "content": None}, ""),
        (HumanMessage("hi"), "hi"),
    ],
)
def test_a_message_is_shown_as_one_printable_line(message: object, shown: str) -> None:
    assert line(message) == shown
