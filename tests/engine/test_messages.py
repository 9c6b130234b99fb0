"""What the engine makes of every kind of message, and what providers refuse."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from engine.strategies import Form, media_blocks, render, specs, write
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
    message_to_dict,
)

from reducing_saver.engine import (
    Kind,
    Unit,
    When,
    Window,
    plan,
    problems,
    reduce_messages,
    split,
)

FORMS = pytest.mark.parametrize("form", list(Form))


def kind(message: object) -> Kind:
    """Say what a message is where it stands between two humans."""
    return split([HumanMessage("a"), message, HumanMessage("z")])[1].kind


def kinds(*messages: object) -> list[Kind]:
    return [unit.kind for unit in split(messages)]


def rules(*messages: object, provider: str | None = None) -> list[str]:
    return [problem.rule for problem in problems(messages, provider)]


# --------------------------------------------------------------------------------------- roles

ALIASES = {
    "human": Kind.HUMAN,
    "user": Kind.HUMAN,
    "ai": Kind.AI,
    "assistant": Kind.AI,
    "agent": Kind.AI,
    "model": Kind.AI,
    "system": Kind.SYSTEM,
    "developer": Kind.SYSTEM,
    "tool": Kind.RESULT,
    "function": Kind.RESULT,
    "critic": Kind.OTHER,
    "": Kind.OTHER,
}


@pytest.mark.parametrize(("role", "expected"), ALIASES.items())
@pytest.mark.parametrize(
    "make",
    [
        lambda role: {"role": role, "content": "x"},
        lambda role: {"type": role, "content": "x"},
        lambda role: {"type": role, "data": {"content": "x"}},
        lambda role: {"type": role, "data": {"content": "x", "type": role}},
        lambda role: SimpleNamespace(role=role, content="x"),
        lambda role: SimpleNamespace(type=role, content="x"),
        lambda role: ChatMessage(role=role, content="x"),
        lambda role: ChatMessageChunk(role=role, content="x"),
        lambda role: message_to_dict(ChatMessage(role=role, content="x")),
        lambda role: dumpd(ChatMessage(role=role, content="x")),
        lambda role: ChatMessage(role=role, content="x").model_dump(),
    ],
    ids=[
        "role",
        "type",
        "data",
        "data type",
        "duck role",
        "duck type",
        "chat",
        "chat chunk",
        "chat wrapped",
        "chat lc",
        "chat flat",
    ],
)
def test_role_aliases(make: object, role: str, expected: Kind) -> None:
    assert kind(make(role)) is expected  # type: ignore[operator]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (HumanMessage("x"), Kind.HUMAN),
        (HumanMessageChunk(content="x"), Kind.HUMAN),
        (AIMessage("x"), Kind.AI),
        (AIMessageChunk(content="x"), Kind.AI),
        (SystemMessage("x"), Kind.SYSTEM),
        (SystemMessageChunk(content="x"), Kind.SYSTEM),
        (ToolMessage("x", tool_call_id="a"), Kind.RESULT),
        (ToolMessageChunk(content="x", tool_call_id="a"), Kind.RESULT),
        (FunctionMessage(content="x", name="f"), Kind.RESULT),
        (FunctionMessageChunk(content="x", name="f"), Kind.RESULT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_langchain_class_in_every_form(message: BaseMessage, expected: Kind) -> None:
    assert kind(message) is expected
    assert kind(message_to_dict(message)) is expected
    assert kind(message.model_dump()) is expected
    assert kind(json.loads(message.model_dump_json())) is expected
    assert kind(dumpd(message)) is expected
    assert kind(SimpleNamespace(**message.model_dump())) is expected


class _Question(HumanMessage):
    """A user's own class of message."""


def test_subclasses_are_what_they_are() -> None:
    assert kind(_Question("x")) is Kind.HUMAN
    assert kind(dumpd(_Question("x"))) in (Kind.HUMAN, Kind.OTHER)


@pytest.mark.parametrize(
    "message",
    [
        RemoveMessage(id="x"),
        {"role": "remove", "id": "x"},
        message_to_dict(RemoveMessage(id="x")),
        ("user", "hi"),
        ["user", "hi"],
        "hi",
        b"hi",
        7,
        None,
        {},
        {"content": "no role"},
        {"role": None, "content": "x"},
        {"role": 7, "content": "x"},
        {"role": ["user"], "content": "x"},
        {"type": "text", "text": "a block, not a message"},
        {"type": "function_call_output_of_tomorrow", "call_id": "a"},
        object(),
        HumanMessage,
        dict,
        ChatMessage(role="narrator", content="x"),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r}"[:40].split(" at 0x")[0],
)
def test_what_is_not_understood_is_other(message: object) -> None:
    """A unit of its own, in the turn where it stands."""
    units = split([HumanMessage("a"), message, AIMessage("b")])
    assert [unit.kind for unit in units] == [Kind.HUMAN, Kind.OTHER, Kind.AI]
    assert [unit.turn for unit in units] == [1, 1, 1]
    assert units[1].messages[0] is message


def test_roles_are_read_whatever_their_case() -> None:
    assert kind({"role": "user", "content": "x"}) is Kind.HUMAN
    assert kind({"role": "User", "content": "x"}) in (Kind.HUMAN, Kind.OTHER)


# --------------------------------------------------------------------------- calls and results


@FORMS
def test_a_unit_is_a_call_with_its_results(form: Form) -> None:
    units = split(write("sys H A(a,b) T(b) T(a) A", form))
    assert [unit.kind for unit in units] == [Kind.SYSTEM, Kind.HUMAN, Kind.TOOLS, Kind.AI]
    assert units[2].indices == (2, 3, 4)
    assert units[2].tools == ("search", "search")
    assert not units[2].open


@FORMS
def test_an_unanswered_call_is_open(form: Form) -> None:
    assert split(write("H A(a,b) T(b)", form))[1].open
    assert split(write("H A(a)", form))[1].open
    assert not split(write("H A(a) T(a)", form))[1].open


@FORMS
def test_reused_ids_are_matched_by_position(form: Form) -> None:
    units = split(write("H A(0) T(0) H A(0) T(0) H A(0,1) T(1) T(0)", form))
    tools = [unit for unit in units if unit.kind is Kind.TOOLS]
    assert [unit.indices for unit in tools] == [(1, 2), (4, 5), (7, 8, 9)]
    assert not any(unit.open for unit in tools)


@FORMS
def test_a_reused_id_answers_the_newest_open_call(form: Form) -> None:
    units = split(write("H A(0) H A(0) T(0)", form))
    assert [unit.indices for unit in units] == [(0,), (1,), (2,), (3, 4)]
    assert [unit.open for unit in units] == [False, True, False, False]


@FORMS
def test_a_second_result_of_a_call_lives_with_it(form: Form) -> None:
    units = split(write("H A(a) T(a) T(a) A T(a)", form))
    assert [unit.indices for unit in units] == [(0,), (1, 2, 3, 5), (4,)]


@FORMS
def test_a_result_before_its_call_answers_nothing(form: Form) -> None:
    units = split(write("H T(a) A(a)", form))
    assert [unit.kind for unit in units] == [Kind.HUMAN, Kind.RESULT, Kind.TOOLS]
    assert units[2].open


def test_missing_ids_are_matched_by_position() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    assert [unit.indices for unit in split(said)] == [(0,), (1, 2, 3), (4, 5)]
    assert not any(unit.open for unit in split(said))


def test_langchain_calls_without_ids() -> None:
    ai = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": None}])
    said = [HumanMessage("q"), ai, ToolMessage("r", tool_call_id="")]
    assert [unit.indices for unit in split(said)] == [(0,), (1, 2)]


def test_function_messages_are_matched_by_name() -> None:
    def call(name: str) -> dict[str, object]:
        function = {"name": name, "arguments": "{}"}
        return {"role": "assistant", "content": None, "function_call": function}

    for result in (
        lambda name: {"role": "function", "name": name, "content": "1"},
        lambda name: FunctionMessage(name=name, content="1"),
        lambda name: FunctionMessage(name=name, content="1").model_dump(),
        lambda name: dumpd(FunctionMessage(name=name, content="1")),
    ):
        said = [HumanMessage("q"), call("f"), result("f"), call("g"), result("g"), AIMessage("a")]
        units = split(said)
        assert [unit.indices for unit in units] == [(0,), (1, 2), (3, 4), (5,)]
        assert [unit.tools for unit in units] == [(), ("f",), ("g",), ()]
        assert problems(said) == ()


def test_a_function_call_of_langchain() -> None:
    ai = AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}})
    units = split([HumanMessage("q"), ai, FunctionMessage(name="f", content="1")])
    assert [unit.indices for unit in units] == [(0,), (1, 2)]
    assert units[1].tools == ("f",)


def test_calls_that_could_not_be_parsed_are_calls() -> None:
    """LangChain sends `invalid_tool_calls` to the model like others, so their results belong."""
    bad = {"name": "f", "args": "{", "id": "c1", "error": "no json"}
    ai = AIMessage("", invalid_tool_calls=[bad])
    units = split([HumanMessage("q"), ai, ToolMessage("r", tool_call_id="c1")])
    assert [unit.indices for unit in units] == [(0,), (1, 2)]


def test_chunks_with_call_chunks() -> None:
    chunk = {"name": "f", "args": '{"a": 1}', "id": "c1", "index": 0}
    ai = AIMessageChunk(content="", tool_call_chunks=[chunk])
    result = ToolMessageChunk(content="r", tool_call_id="c1")
    units = split([HumanMessageChunk(content="q"), ai, result])
    assert [unit.indices for unit in units] == [(0,), (1, 2)]
    assert units[1].tools == ("f",)


def test_an_error_result_is_a_result() -> None:
    ai = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c1"}])
    result = ToolMessage("boom", tool_call_id="c1", status="error", artifact={"a": object()})
    assert kinds(HumanMessage("q"), ai, result) == [Kind.HUMAN, Kind.TOOLS]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimpleNamespace(
            role="assistant",
            content=None,
            tool_calls=[
                SimpleNamespace(
                    id="c1",
                    type="function",
                    function=SimpleNamespace(name="f", arguments="{}"),
                )
            ],
        ),
        lambda: SimpleNamespace(
            type="ai", content="", tool_calls=[SimpleNamespace(name="f", args={}, id="c1")]
        ),
        lambda: SimpleNamespace(
            type="ai", content="", tool_calls=[{"name": "f", "args": {}, "id": "c1"}]
        ),
        lambda: SimpleNamespace(
            role="assistant",
            content=[SimpleNamespace(type="tool_use", id="c1", name="f", input={})],
        ),
        lambda: SimpleNamespace(
            role="assistant", content=[{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]
        ),
    ],
    ids=["openai client", "langchain like", "dicts inside", "anthropic client", "block dicts"],
)
def test_duck_typed_calls(make: object) -> None:
    """What a provider's client returns can stand in a list, with calls that are objects too."""
    ai = make()  # type: ignore[operator]
    result = {"role": "tool", "tool_call_id": "c1", "content": "r"}
    units = split([HumanMessage("q"), ai, result])
    assert [unit.indices for unit in units] == [(0,), (1, 2)]
    assert units[1].tools == ("f",)
    assert not units[1].open


# ----------------------------------------------------------------------------------- anthropic


def _use(*names: str) -> dict[str, object]:
    uses = [{"type": "tool_use", "id": name, "name": f"tool_{name}", "input": {}} for name in names]
    return {"role": "assistant", "content": [{"type": "text", "text": "let me"}, *uses]}


def _answer(*names: str, text: str = "") -> dict[str, object]:
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": "r"} for name in names]
    words = [{"type": "text", "text": text}] if text else []
    return {"role": "user", "content": [*blocks, *words]}


def test_an_anthropic_result_is_no_turn() -> None:
    said = [{"role": "user", "content": "q"}, _use("a", "b"), _answer("a", "b"), _use("c")]
    said += [_answer("c"), {"role": "assistant", "content": "done"}]
    units = split(said)
    assert [unit.indices for unit in units] == [(0,), (1, 2), (3, 4), (5,)]
    assert [unit.turn for unit in units] == [1, 1, 1, 1]
    assert [unit.tools for unit in units] == [(), ("tool_a", "tool_b"), ("tool_c",), ()]
    assert problems(said) == ()


def test_anthropic_results_may_come_in_several_messages() -> None:
    units = split([{"role": "user", "content": "q"}, _use("a", "b"), _answer("b"), _answer("a")])
    assert [unit.indices for unit in units] == [(0,), (1, 2, 3)]
    assert not units[1].open


def test_an_anthropic_result_with_words_still_lives_with_its_call() -> None:
    """A user who interrupts speaks in the message that carries the result."""
    said = [
        {"role": "user", "content": "q"},
        _use("a"),
        _answer("a", text="stop, do this instead"),
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "next"},
        {"role": "assistant", "content": "fine"},
    ]
    for number in range(1, 6):
        window = Window(("messages", number), ("messages", number), ("messages", number))
        left = reduce_messages(said, window).messages
        assert ("tool_use" in repr(left)) == ("tool_result" in repr(left))
        assert problems(left) == ()


def test_anthropic_blocks_of_server_tools_are_no_calls() -> None:
    blocks = [
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "a"},
    ]
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": blocks}]
    units = split(said)
    assert [unit.kind for unit in units] == [Kind.HUMAN, Kind.AI]
    assert not units[1].open


def test_the_items_of_openais_responses() -> None:
    """A call and its output are items of their own; the pair lives or dies together."""
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "user", "content": "next"},
    ]
    pair = {1, 2}
    for number in range(1, 6):
        window = Window(("messages", number), ("messages", number), ("messages", number))
        left = {i for u in reduce_messages(said, window).plan.kept for i in u.indices}
        assert left & pair in (set(), pair)


def test_the_contents_of_gemini() -> None:
    call = {"function_call": {"name": "f", "args": {}}}
    response = {"function_response": {"name": "f", "response": {"r": 1}}}
    said = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [response]},
        {"role": "model", "parts": [{"text": "a"}]},
    ]
    assert [unit.indices for unit in split(said)] == [(0,), (1, 2), (3,)]
    assert problems(said) == ()


def test_langchain_anthropic_results_in_a_human_message() -> None:
    """HumanMessage content may hold tool_result blocks too, as older code wrote them."""
    ai = AIMessage(
        [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
        tool_calls=[{"name": "f", "args": {}, "id": "a"}],
    )
    human = HumanMessage([{"type": "tool_result", "tool_use_id": "a", "content": "r"}])
    units = split([HumanMessage("q"), ai, human])
    assert [unit.indices for unit in units] == [(0,), (1, 2)]
    assert max(unit.turn for unit in units) == 1


# ------------------------------------------------------------------------- turns and summaries


def test_turns_are_counted_from_human_messages() -> None:
    units = split(write("sys A H A H H A(a) T(a) A"))
    assert [unit.turn for unit in units] == [-1, 0, 1, 1, 2, 3, 3, 3]


def test_a_late_result_belongs_to_the_turn_of_its_call() -> None:
    units = split(write("H A(a) H T(a) A"))
    assert [(unit.indices, unit.turn) for unit in units] == [
        ((0,), 1),
        ((1, 3), 1),
        ((2,), 2),
        ((4,), 2),
    ]


@pytest.mark.parametrize(
    "form", [Form.LANGCHAIN, Form.CHUNK, Form.WRAPPED, Form.CONSTRUCTOR, Form.FLAT, Form.DUCK]
)
def test_a_summary_of_langchains_middleware_is_recognised(form: Form) -> None:
    units = split(write("sys S H A", form))
    assert [unit.kind for unit in units] == [Kind.SYSTEM, Kind.SUMMARY, Kind.HUMAN, Kind.AI]
    assert [unit.turn for unit in units] == [-1, -1, 1, 1]
    assert problems(write("sys S A(a) T(a)", form)) == ()


def test_the_summary_of_the_real_middleware_is_recognised() -> None:
    """Not a lookalike: the message that LangChain's SummarizationMiddleware makes."""
    middleware = pytest.importorskip("langchain.agents.middleware")
    made = middleware.SummarizationMiddleware._build_new_messages("so far")
    assert split([*made, *write("H A")])[0].kind is Kind.SUMMARY


def test_of_several_summaries_the_newest_is_the_summary() -> None:
    units = split(write("sys S S H A"))
    assert units[2].kind is Kind.SUMMARY
    assert units[2].turn == -1
    assert [unit.turn for unit in units].count(-1) == 2
    left = reduce_messages(write("sys S S H A H A"), Window(("turns", 1), ("turns", 1))).messages
    assert len(left) == 4


@pytest.mark.parametrize("text", ["S S A", "sys S S A A A", "S S S A", "S S H A", "S S A(a) T(a)"])
@pytest.mark.parametrize("cap", [1, 2, 8])
@pytest.mark.parametrize("when", list(When))
def test_the_newest_summary_never_leaves(text: str, cap: int, when: When) -> None:
    """It stands for all that left before; an older one may go, with or without a human message."""
    messages = write(text)
    window = Window(("messages", 1), ("messages", 1), ("messages", cap))
    newest = [message for word, message in zip(text.split(), messages, strict=True) if word == "S"]
    left = reduce_messages(messages, window, when=when).messages
    assert newest[-1] in left
    assert reduce_messages(left, window, when=when).messages is left


def test_a_summary_further_down_is_an_ordinary_unit() -> None:
    """It leaves with its turn, is no turn of its own, and the one at the head stays."""
    units = split(write("sys S H A S A H A"))
    assert [unit.turn for unit in units] == [-1, -1, 1, 1, 1, 1, 2, 2]
    messages = write("sys S H A S A H A")
    left = reduce_messages(messages, Window(("turns", 1), ("turns", 1))).messages
    assert left == [*messages[:2], *messages[-2:]]
    assert [unit.turn for unit in split(write("H A S H A"))] == [1, 1, 1, 2, 2]


def test_an_ordinary_source_is_no_summary() -> None:
    human = HumanMessage("x", additional_kwargs={"lc_source": "upload"})
    assert kind(human) is Kind.HUMAN


# --------------------------------------------------------------------------- what costs tokens


@FORMS
def test_content_and_arguments_count_in_every_form(form: Form) -> None:
    window = Window(("tokens", 10))
    short, long = (
        [render(spec, form) for spec in specs("H A(a) T(a)", say=text)]
        for text in ("x", "word " * 400)
    )
    for before, after in zip(short, long, strict=True):
        grown = plan([after], window).total("tokens") - plan([before], window).total("tokens")
        assert 300 <= grown <= 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda args: AIMessage("", tool_calls=[{"name": "f", "args": args, "id": "c"}]),
        lambda args: AIMessage(
            [{"type": "text", "text": ""}], tool_calls=[{"name": "f", "args": args, "id": "c"}]
        ),
        lambda args: AIMessageChunk(
            content="",
            tool_call_chunks=[{"name": "f", "args": json.dumps(args), "id": "c", "index": 0}],
        ),
        lambda args: {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": json.dumps(args)}}],
        },
        lambda args: {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "f", "arguments": json.dumps(args)},
        },
        lambda args: {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": args}],
        },
        lambda args: dumpd(AIMessage("", tool_calls=[{"name": "f", "args": args, "id": "c"}])),
        lambda args: message_to_dict(
            AIMessage("", tool_calls=[{"name": "f", "args": args, "id": "c"}])
        ),
        lambda args: SimpleNamespace(
            type="ai", content="", tool_calls=[{"name": "f", "args": args, "id": "c"}]
        ),
    ],
    ids=[
        "langchain",
        "list",
        "chunk",
        "openai",
        "function_call",
        "anthropic",
        "lc",
        "wrapped",
        "duck",
    ],
)
def test_the_arguments_of_a_call_count(make: object) -> None:
    """A file written by a tool call is in its arguments; it must not be free, nor counted twice."""
    window = Window(("tokens", 10))
    small, large = ([make({"text": "word " * n})] for n in (1, 1000))  # type: ignore[operator]
    for measure, least, most in (("tokens", 800, 2600), ("bytes", 4900, 11_000)):
        grown = plan(large, window).total(measure) - plan(small, window).total(measure)
        assert least <= grown <= most, measure


def test_a_call_written_twice_is_counted_about_once() -> None:
    args = {"text": "word " * 1000}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": args}
    twice = AIMessage([block], tool_calls=[{"name": "f", "args": args, "id": "c"}])
    assert 800 <= plan([twice], Window(("tokens", 10))).total("tokens") <= 1600


def test_bytes_are_bytes_not_characters() -> None:
    window = Window(("bytes", 10))
    latin, chinese = ([HumanMessage(letter * 1000)] for letter in ("x", "漢"))
    assert plan(latin, window).total("bytes") >= 1000
    assert plan(chinese, window).total("bytes") >= 3000


@FORMS
def test_media_in_results_are_flat_too(form: Form) -> None:
    window = Window(("tokens", 10))
    spec = specs("T(a)")[0]
    sizes = set()
    for data in ("AAAA", "AAAA" * 10_000):
        block = media_blocks(data)["anthropic image"]
        message = render(type(spec)("result", "see", answers="a", blocks=(block,)), form)
        sizes.add(plan([message], window).total("tokens"))
    assert len(sizes) == 1


# ----------------------------------------------------------------------------- what is refused


@FORMS
def test_a_valid_history_has_no_problems(form: Form) -> None:
    assert problems(write("sys H A H A(a,b) T(a) T(b) A H", form)) == ()
    assert problems(write("sys S A(a) T(a) A", Form.LANGCHAIN)) == ()


@FORMS
@pytest.mark.parametrize(
    ("text", "rule", "index"),
    [
        ("H T(a)", "orphan result", 1),
        ("H T(a) A(a)", "orphan result", 1),
        ("H A(a) H A", "unanswered call", 1),
        ("H A(a,b) T(a) H", "unanswered call", 1),
        ("H A(a) H T(a)", "separated result", 3),
        ("H A(a) A T(a)", "separated result", 3),
        ("H A(a) T(a) T(a)", "duplicate result", 3),
        ("A H", "first message is not human", 0),
        ("sys A H", "first message is not human", 1),
        ("A(a) T(a) H", "first message is not human", 0),
        ("H A sys H", "system message in the middle", 2),
    ],
)
def test_what_providers_refuse(text: str, rule: str, index: int, form: Form) -> None:
    found = [(problem.rule, problem.index) for problem in problems(write(text, form))]
    assert (rule, index) in found


@pytest.mark.parametrize("text", ["H A(a)", "H A(a,b) T(a)", "H A(a,b)", "H A A(a)"])
def test_an_open_call_at_the_tail_is_no_problem(text: str) -> None:
    assert problems(write(text)) == ()


@pytest.mark.parametrize("text", ["", "sys", "sys sys", "sys dev"])
def test_no_messages(text: str) -> None:
    assert "no messages" in rules(*write(text))


def test_each_problem_names_who_refuses_and_why() -> None:
    said = write("sys A H A(a) H T(x) sys T(a) T(a)")
    for problem in problems(said):
        assert problem.providers
        assert set(problem.providers) <= {"openai", "anthropic", "gemini"}
        assert problem.detail
        assert 0 <= problem.index < len(said)
    for provider in ("openai", "anthropic", "gemini"):
        chosen = problems(said, provider)
        assert chosen == tuple(p for p in problems(said) if provider in p.providers)
        assert {"orphan result"} <= {problem.rule for problem in chosen}


@pytest.mark.parametrize("rule", ["first message is not human", "system message in the middle"])
def test_openai_takes_what_anthropic_and_gemini_refuse(rule: str) -> None:
    said = write("A H sys H")
    assert rule in rules(*said, provider="anthropic")
    assert rule in rules(*said, provider="gemini")
    assert rule not in rules(*said, provider="openai")


def test_an_unknown_provider_is_an_error() -> None:
    with pytest.raises(ValueError, match="openai"):
        problems(write("H A"), "nobody")  # type: ignore[arg-type]


def test_units_are_values() -> None:
    first, second = (split(write("H A(a) T(a)", Form.OPENAI)) for _ in range(2))
    assert first == second
    assert isinstance(first[0], Unit)
