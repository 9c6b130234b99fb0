"""`reducing-saver try`: the plan of a person's own transcript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reducing_saver import Window
from reducing_saver.engine import Verdict, plan

CONVERSATIONS = Path(__file__).parents[2].parent / "shared" / "data" / "airline_conversations.json"


def chat(turns: int) -> list[dict[str, object]]:
    """Make a conversation with a system message and one tool call a turn."""
    messages: list[dict[str, object]] = [{"role": "system", "content": "be kind"}]
    for turn in range(1, turns + 1):
        call = {"id": "call_0", "type": "function"}
        call["function"] = {"name": "look", "arguments": "{}"}  # type: ignore[assignment]
        messages += [
            {"role": "user", "content": f"question {turn}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": f"result {turn} " * 20},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return messages


def test_each_unit_is_shown_with_its_reason(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    ran = cli("try", write(chat(5)), "--keep", "turns:2", "--trigger", "turns:3")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    evicted = [line for line in lines if line.startswith("evict ")]
    kept = [line for line in lines if line.startswith("keep ")]
    assert len(evicted) == 9
    assert len(kept) == 7
    assert "question 1" in evicted[0]
    assert "look() result 1" in evicted[1]
    assert all("older than keep" in line for line in evicted)
    assert "leading system message" in kept[0]
    assert "current turn" in kept[-1]
    assert "Passed: 5 turns, trigger 3." in lines


def test_totals_and_problems_stand_below(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    messages = [{"role": "tool", "tool_call_id": "gone", "content": "orphan"}, *chat(5)[1:]]
    ran = cli("try", write(messages), "--keep", "turns:2", "--trigger", "turns:3")
    below = ran.out[ran.out.index("\nkept ") :].split("\n")
    assert below[1].split()[:3] == ["kept", "8", "messages"]
    assert below[2].split()[:3] == ["evicted", "13", "messages"]
    assert below[3] == "problems  OpenAI 1 -> 0  Anthropic 2 -> 0  Gemini 2 -> 0"


def test_below_the_trigger_it_says_why_nothing_leaves(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    options = ("--keep", "turns:6", "--trigger", "tokens:8000", "--trigger", "messages:50")
    ran = cli("try", write(chat(1)), *options)
    said = " ".join(ran.out.split())
    assert ran.code == 0
    assert "evict " not in ran.out
    assert "Nothing would leave: no trigger is passed" in said
    assert "tokens, trigger 8,000, 4 messages, trigger 50" in said


def test_a_current_turn_that_is_too_large_is_said(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    ran = cli("try", write(chat(1)), "--keep", "messages:1", "--trigger", "messages:2")
    assert "Nothing can leave although" in ran.out
    ran = cli("try", write(chat(2)), "--keep", "messages:1", "--trigger", "messages:2")
    assert "Still above the mark" in ran.out


def test_a_conversation_without_messages_is_said(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    ran = cli("try", write([{"id": "a", "messages": chat(1)}, {"id": "b", "messages": []}]))
    assert ran.code == 0
    assert "Nothing would leave: the conversation has no messages." in ran.out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_are_cut_to_the_terminal(
    cli: Callable[..., Any],
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    messages = chat(9)
    messages[1]["content"] = "[bold]a\nb[/bold] :smile: \x1b[31m" + "語" * 5000
    path = write([{"id": "x" * 200, "messages": messages}, {"messages": messages}])
    monkeypatch.setenv("COLUMNS", str(width))
    ran = cli("try", path)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    assert "\x1b" not in ran.out
    if width >= 80:
        assert "[bold]a b" in ran.out


def test_only_shows_one_conversation(cli: Callable[..., Any], write: Callable[..., Path]) -> None:
    path = write([{"id": "first", "messages": chat(1)}, {"id": "second", "messages": chat(2)}])
    both, second = cli("try", path), cli("try", path, "--only", "second")
    assert "first" in both.out
    assert "0 of 2 conversations would change; 0 of 14 messages would leave." in both.out
    assert "first" not in second.out
    assert "second  9 messages" in second.out


def test_pins_are_kept(cli: Callable[..., Any], write: Callable[..., Path]) -> None:
    path = write(chat(9))
    reasons = lambda *more: [  # noqa: E731
        unit["reason"]
        for unit in cli("try", path, "--json", *more).json["conversations"][0]["units"]
    ]
    assert "pinned" not in reasons()
    assert "pinned" in reasons("--pin", "look")
    assert "first human message" in reasons("--pin-first-human")
    assert "newest of its tool" in reasons("--keep-latest-of", "look")


def test_json_is_the_plan(cli: Callable[..., Any], write: Callable[..., Path]) -> None:
    messages = chat(9)
    ran = cli("try", write({"id": "x", "messages": messages}), "--keep", "turns:2", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json.keys() == {"version", "window", "conversations"}
    assert ran.json["window"] == {
        "keep": {"measure": "turns", "value": 2},
        "triggers": [{"measure": "turns", "value": 4}],
        "cap": {"measure": "messages", "value": 160},
    }
    (found,) = ran.json["conversations"]
    assert found.keys() == {
        *("id", "changes", "passed", "stuck", "why"),
        *("units", "kept", "evicted", "problems"),
    }
    made = plan(messages, Window(keep=("turns", 2)))
    assert found["id"] == "x"
    assert found["changes"]
    assert [unit["indices"] for unit in found["units"]] == [list(u.indices) for u in made.units]
    assert [unit["verdict"] for unit in found["units"]] == [str(a.verdict) for a in made.actions]
    for name, verdict in (("kept", Verdict.KEEP), ("evicted", Verdict.EVICT)):
        for measure in ("messages", "tokens", "bytes"):
            assert found[name][measure] == made.total(measure, verdict)
            chosen = [unit for unit in found["units"] if unit["verdict"] == str(verdict)]
            assert found[name][measure] == sum(unit[measure] for unit in chosen)
    zero = {"openai": 0, "anthropic": 0, "gemini": 0}
    assert found["problems"] == {"before": zero, "after": zero}
    assert found["units"][2] == {
        "verdict": "evict",
        "reason": "older than keep",
        "kind": "tools",
        "turn": 1,
        "indices": [2, 3],
        "tools": ["look"],
        "open": False,
        "messages": 2,
        "tokens": found["units"][2]["tokens"],
        "bytes": found["units"][2]["bytes"],
        "text": found["units"][2]["text"],
    }
    assert len(found["units"][2]["text"]) <= 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keep", "turns"), "MEASURE:N"),
        (("--keep", "turnz:6"), "messages, turns, tokens or bytes"),
        (("--keep", "fraction:1"), "messages, turns, tokens or bytes"),
        (("--keep", "turns:-1"), "1 or more"),
        (("--keep", "turns:0"), "1 or more"),
        (("--keep", "turns:six"), "whole number"),
        (("--keep", "turns:1.5"), "whole number"),
        (("--keep", f"turns:{10**15}"), "whole number"),
        (("--trigger", "tokens:-8000"), "--trigger tokens:-8000"),
        (("--keep", "turns:6", "--trigger", "turns:2"), "at least keep, which is 6"),
        (("--keep", "tokens:100", "--cap", "tokens:10"), "at least keep, which is 100"),
        (("--cap", "turns:6"), "messages, tokens or bytes"),
        (("--pin", ""), "name of a tool"),
        (("--keep-latest-of", ""), "name of a tool"),
        (("--token-counter", "guess"), "approximate or tiktoken"),
        (("--only", "nobody"), "it has 1"),
    ],
)
def test_a_bad_option_is_one_line(
    refused: Callable[..., str],
    write: Callable[..., Path],
    options: tuple[str, ...],
    said: str,
) -> None:
    assert said in refused("try", write(chat(2)), *options)


@pytest.mark.parametrize(
    "value", ["{bad", "", [], {}, "null", [1], [{"id": "x", "messages": []}], b"\xff", "[" * 10**5]
)
def test_a_bad_file_is_one_line(
    refused: Callable[..., str], write: Callable[..., Path], value: object
) -> None:
    path = write(value)
    assert str(path) in refused("try", path)
    assert str(path) in refused("try", path, "--json")
    assert str(path) in refused("demo", "--input", path)


def test_a_missing_file_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "no such file" in refused("try", tmp_path / "nothing.json")
    assert "no such file" in refused("demo", "--input", tmp_path / "nothing.json")


@pytest.mark.skipif(not CONVERSATIONS.exists(), reason="the real conversations are not here")
@pytest.mark.parametrize("keep", ["turns:1", "turns:3", "tokens:500", "messages:4", "bytes:2000"])
def test_real_conversations_get_no_problem(cli: Callable[..., Any], keep: str) -> None:
    ran = cli("try", CONVERSATIONS, "--keep", keep, "--json")
    zero = {"openai": 0, "anthropic": 0, "gemini": 0}
    assert ran.code == 0
    assert len(ran.json["conversations"]) == 100
    assert any(found["changes"] for found in ran.json["conversations"])
    for found in ran.json["conversations"]:
        assert found["problems"] == {"before": zero, "after": zero}
