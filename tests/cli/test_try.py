"""`reducing-saver try`: the plan of a person's own transcript."""

from __future__ import annotations

import sys
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
    assert "Passed: 5 turns, trigger 3; down to 2 turns." in lines


def test_totals_and_problems_stand_below(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    messages = [{"role": "tool", "tool_call_id": "gone", "content": "orphan"}, *chat(5)[1:]]
    ran = cli("try", write(messages), "--keep", "turns:2", "--trigger", "turns:3")
    below = [line.rstrip() for line in ran.out[ran.out.index("\nkept ") :].split("\n")]
    assert below[1].split()[:3] == ["kept", "8", "messages"]
    assert below[2].split()[:3] == ["evicted", "13", "messages"]
    assert below[3] == "problems  OpenAI 1 -> 0  Anthropic 2 -> 0  Gemini 2 -> 0"
    assert below[4:6] == [
        "  first message is not human, message 1 (Anthropic and Gemini); it leaves",
        "  orphan result, message 1 (OpenAI, Anthropic and Gemini); it leaves",
    ]


def test_problems_are_named_with_the_place_in_the_file(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    messages = chat(5)
    messages.insert(19, {"role": "system", "content": "in the middle"})
    path = write(messages)
    options = ("--keep", "turns:1", "--trigger", "turns:2")
    ran = cli("try", path, *options)
    assert "  system message in the middle, message 20 (Anthropic and Gemini)\n" in ran.out
    found = cli("try", path, *options, "--json").json["conversations"][0]["problems"]["found"]
    middle = {"index": 19, "rule": "system message in the middle", "before": True, "after": True}
    assert {**middle, "providers": ["anthropic", "gemini"]} in found


def test_of_many_problems_the_first_are_listed(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    orphans = [{"role": "tool", "tool_call_id": "gone", "content": "x"} for _ in range(20)]
    ran = cli("try", write([{"role": "user", "content": "a"}, *orphans]))
    assert ran.out.count("  orphan result, message ") == 12
    assert "  and 8 more (--json lists them)" in ran.out


def test_a_role_that_nobody_knows_is_noted(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    ran = cli("try", write([*chat(1), {"role": "wizard", "content": "abra"}]))
    assert (ran.code, ran.err) == (0, "")
    assert "note: messages of a role that no provider knows: 1" in ran.out


def test_the_footer_says_what_was_aimed_at(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write(chat(9))
    aims = {
        ("turns:6", "tokens:400"): "trigger 400; down to 6 turns and 200 tokens.",
        ("messages:6", "messages:8"): "trigger 8; down to 6 messages.",
        ("turns:6", "tokens:400", "--trigger", "bytes:1000"): (
            "down to 6 turns, 200 tokens and 500 bytes."
        ),
        ("tokens:50", "tokens:60", "--cap", "messages:2"): "down to 50 tokens and 1 message.",
        ("messages:2", "messages:2", "--cap", "messages:3"): (
            "down to 2 messages, and in the current turn to 1 message"
        ),
    }
    for (keep, trigger, *more), said in aims.items():
        ran = cli("try", path, "--keep", keep, "--trigger", trigger, *more)
        assert said in " ".join(ran.out.split())


def test_below_the_trigger_it_says_why_nothing_leaves(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    options = ("--keep", "turns:6", "--trigger", "tokens:8000", "--trigger", "messages:50")
    ran = cli("try", write(chat(1)), *options)
    said = " ".join(ran.out.split())
    assert ran.code == 0
    assert "evict " not in ran.out
    assert "Nothing would leave: no trigger passed (" in said
    assert "tokens without the system message, trigger 8,000; 4 messages without the" in said
    assert "no trigger passed question 1" in said


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
    path = write([{"id": "a", "messages": chat(1)}, {"id": "b", "messages": []}])
    ran = cli("try", path, "--only", "b")
    assert ran.code == 0
    assert cli("try", path).code == cli("try", path, "--all").code == 0
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
    for more in ((), ("--all",)):
        ran = cli("try", path, *more)
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= width
        assert "\x1b" not in ran.out
    if width >= 80:
        assert "[bold]a b" in ran.out


def test_of_several_the_summary_comes_first_and_those_that_change(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write([{"id": "first", "messages": chat(1)}, {"id": "second", "messages": chat(5)}])
    options = ("--keep", "turns:2", "--trigger", "turns:3")
    both, every = cli("try", path, *options), cli("try", path, *options, "--all")
    summary = "1 of 2 conversations would change; 12 of 26 messages would leave."
    for ran in (both, every):
        assert ran.out.startswith(f"{summary}\n0 would get a provider problem")
    assert "first" not in both.out
    (row,) = (line for line in both.out.splitlines() if line.startswith("second"))
    assert row.split()[1:4] == ["21", "->", "9"]
    assert "first  5 messages" in every.out
    assert "second  21 messages" in every.out


def test_of_several_that_stay_the_largest_is_named(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write([{"id": "first", "messages": chat(1)}, {"id": "second", "messages": chat(2)}])
    marks = ("--trigger", "messages:50", "--trigger", "turns:9")
    ran = cli("try", path, "--keep", "messages:5", *marks)
    assert "0 of 2 conversations would change; 0 of 14 messages would leave." in ran.out
    assert (
        "The largest conversation has 8 messages without the system message, trigger 50; 2 turns, "
        "trigger 9: lower the trigger."
    ) in " ".join(ran.out.split())


def test_of_several_those_that_stay_too_large_are_counted(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write([{"id": "first", "messages": chat(1)}, {"id": "second", "messages": chat(2)}])
    ran = cli("try", path, "--keep", "messages:1", "--trigger", "messages:2")
    assert "2 would stay above a mark: what is left is the current turn, or pinned." in ran.out


def test_only_shows_one_conversation(cli: Callable[..., Any], write: Callable[..., Path]) -> None:
    path = write([{"id": "first", "messages": chat(1)}, {"id": "second", "messages": chat(2)}])
    second = cli("try", path, "--only", "second")
    assert "first" not in second.out
    assert "second  9 messages" in second.out


def test_a_tool_that_is_not_there_is_warned_of(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    path = write(chat(2))
    options = ("--pin", "look", "--pin", "nosuchtool", "--keep-latest-of", "todo")
    ran = cli("try", path, *options)
    assert ran.code == 0
    assert ran.err.splitlines() == [
        "reducing-saver: warning: --pin nosuchtool: no such tool in this file",
        "reducing-saver: warning: --keep-latest-of todo: no such tool in this file",
    ]
    assert cli("try", path, *options, "--json").json
    assert cli("try", path, "--pin", "look").err == ""


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
        *("id", "changes", "excerpts", "passed", "stuck", "why"),
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
    assert found["problems"] == {"before": zero, "after": zero, "found": []}
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
        (("--keep", "turnz:6"), "messages, turns, tokens and bytes"),
        (("--keep", "fraction:1"), "messages, turns, tokens and bytes"),
        (("--keep", "turns:-1"), "1 or more"),
        (("--keep", "turns:0"), "1 or more"),
        (("--keep", "turns:six"), "whole number"),
        (("--keep", "turns:1.5"), "whole number"),
        (("--keep", f"turns:{10**15}"), "whole number"),
        (("--trigger", "tokens:-8000"), "--trigger tokens:-8000"),
        (
            ("--keep", "turns:6", "--trigger", "turns:2"),
            "--trigger turns:2 is not allowed; allowed is at least keep, which is 6",
        ),
        (("--keep", "tokens:100", "--cap", "tokens:10"), "at least keep, which is 100"),
        (("--cap", "turns:6"), "messages, tokens or bytes"),
        (("--keep", "turns:2", "--keep", "turns:3"), "--keep turns:2 turns:3: give it once"),
        (("--cap", "tokens:9", "--cap", "tokens:8"), "--cap tokens:9 tokens:8: give it once"),
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


def test_tiktoken_that_is_not_installed_is_one_line(
    refused: Callable[..., str], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    said = refused("try", write(chat(2)), "--token-counter", "tiktoken")
    assert said == (
        "reducing-saver: --token-counter tiktoken: tiktoken is not installed; "
        "run: pip install 'reducing-saver[tiktoken]'\n"
    )


@pytest.mark.parametrize("command", ["try", "compact", "transcript"])
def test_a_missing_argument_names_the_help_of_its_command(
    refused: Callable[..., str], command: str
) -> None:
    assert refused(command).endswith(f"' (see reducing-saver {command} --help)\n")


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
        assert found["problems"] == {"before": zero, "after": zero, "found": []}


def test_large_results_are_shown_as_excerpts(
    cli: Callable[..., Any], write: Callable[..., Path]
) -> None:
    messages = chat(2)
    messages[3]["content"] = "a line of the result\n" * 900
    ran = cli("try", write(messages), "--excerpt", "200")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("excerpt ")]
    assert "larger than its cap" in line
    assert "1 content would be stored as excerpts." in ran.out
    (row,) = [line for line in ran.out.splitlines() if line.startswith("kept ")]
    assert int(row.split()[3].replace(",", "")) < 600
    found = cli("try", write(messages), "--excerpt", "200", "--json").json
    assert found["conversations"][0]["excerpts"] == 1
    assert cli("try", write(messages), "--excerpt", "10").code == 2
