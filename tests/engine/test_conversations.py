"""The 100 real conversations, cut at every window: what is left is accepted by every provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import convert_to_messages

from reducing_saver.engine import Kind, When, Window, problems, reduce_messages, split

Conversations = list[list[object]]
FORMS: dict[str, Callable[[list[dict[str, Any]]], list[Any]]] = {
    "openai": list,
    "langchain": convert_to_messages,
}


@pytest.fixture(scope="module", params=FORMS)
def conversations(
    request: pytest.FixtureRequest, real_conversations: list[dict[str, Any]]
) -> Conversations:
    return [FORMS[request.param](one["messages"]) for one in real_conversations]


def refused(messages: list[Any]) -> str:
    """Say what OpenAI, Anthropic and Gemini would refuse; written apart from the engine's rules."""
    roles = [_field(m, "role") or _field(m, "type") for m in messages]
    talk = [role for role in roles if role != "system"]
    if roles[: len(roles) - len(talk)] != ["system"] * (len(roles) - len(talk)):
        return "a system message in the middle"
    if not talk or talk[0] not in ("user", "human"):
        return f"begins with {talk[:1]}"
    waiting: list[str] = []
    for message, role in zip(messages, roles, strict=True):
        if role == "tool":
            if _field(message, "tool_call_id") not in waiting:
                return "a result without its call"
            waiting.remove(_field(message, "tool_call_id"))
        elif waiting:
            return "a call without its result"
        else:
            waiting = [call["id"] for call in _field(message, "tool_calls") or ()]
    return ""


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def check(conversations: Conversations, window: Window, when: When = When.REST) -> int:
    """Cut every conversation, check what is left, and count the cuts."""
    cuts = 0
    for messages in conversations:
        reduced = reduce_messages(messages, window, when=when)
        left = reduced.messages
        cuts += left is not messages
        assert problems(left) == ()
        assert refused(left) == ""
        assert left[0] is messages[0]
        assert left[-1] is messages[-1]
        if cuts:
            assert reduce_messages(left, window, when=when).messages is left
    return cuts


def test_they_are_accepted_as_they_are(conversations: Conversations) -> None:
    for messages in conversations:
        assert problems(messages) == ()
        assert refused(messages) == ""
        assert all(unit.kind is not Kind.OTHER and not unit.open for unit in split(messages))


@pytest.mark.parametrize("measure", ["messages", "turns"])
def test_every_window_from_1_to_30(conversations: Conversations, measure: str) -> None:
    cuts = sum(
        check(conversations, Window((measure, number), (measure, number)))  # type: ignore[arg-type]
        for number in range(1, 31)
    )
    assert cuts > 200


@pytest.mark.parametrize("when", [When.RUN, When.RESUME])
def test_every_cap_from_1_to_30(conversations: Conversations, when: When) -> None:
    """Above the cap the current turn is cut too, between its units."""
    for number in range(1, 31):
        mark = ("messages", number)
        assert check(conversations, Window(mark, mark, mark), when) > 20  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 50, 100, 200, 400, 800, 1500, 3000])
def test_windows_in_tokens(conversations: Conversations, number: int) -> None:
    cuts = check(conversations, Window(("tokens", number)))
    cuts += check(conversations, Window(("tokens", number), ("messages", 10)))
    cuts += check(conversations, Window(("turns", 3), ("tokens", number), ("tokens", number)))
    assert cuts


def test_windows_in_bytes(conversations: Conversations) -> None:
    for number in (1, 500, 2000, 8000, 20_000):
        mark = ("bytes", number)
        assert check(conversations, Window(mark, mark, mark))  # type: ignore[arg-type]


def test_turn_by_turn_as_a_saver_sees_them(conversations: Conversations) -> None:
    """Every list is stored reduced, and the next message is added to what was stored."""
    window = Window(("messages", 6), ("messages", 12), ("messages", 24))
    for messages in conversations[::4]:
        stored: list[object] = []
        for position, message in enumerate(messages):
            rest = position + 1 == len(messages) or _is_human(messages[position + 1])
            when = When.REST if rest else When.RUN
            stored = reduce_messages([*stored, message], window, when=when).messages
            assert len(stored) <= 25
            if rest and len(stored) > 1:
                assert refused(stored) == ""


def _is_human(message: object) -> bool:
    return (_field(message, "role") or _field(message, "type")) in ("user", "human")


def test_both_forms_are_cut_at_the_same_places(real_conversations: list[dict[str, Any]]) -> None:
    for one in real_conversations:
        for measure, number in (("messages", 5), ("messages", 11), ("turns", 3)):
            window = Window((measure, number), (measure, number))  # type: ignore[arg-type]
            cuts = [
                [unit.indices for unit in reduce_messages(form(one["messages"]), window).plan.kept]
                for form in FORMS.values()
            ]
            assert cuts[0] == cuts[1]


def test_they_survive_json(real_conversations: list[dict[str, Any]]) -> None:
    """A cut list is still plain data."""
    window = Window(("messages", 6), ("messages", 12))
    for one in real_conversations[:10]:
        left = reduce_messages(one["messages"], window).messages
        assert json.loads(json.dumps(left)) == left
