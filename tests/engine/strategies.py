"""Histories and windows for the tests: a short notation, renderers and hypothesis strategies.

A history is first a list of `Spec` (what is said), then rendered in one form or in a mixture of
forms (how it is stored). `write("sys H A(a,b) T(a) T(b)")` is the notation of the public reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from types import SimpleNamespace

from hypothesis import strategies as st
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
    message_to_dict,
)

from reducing_saver.engine import When, Window

# -------------------------------------------------------------------------------- what is said


class Form(StrEnum):
    """How a message is stored."""

    LANGCHAIN = "langchain"
    CHUNK = "chunk"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    WRAPPED = "wrapped"  # message_to_dict: {"type": "human", "data": {...}}
    CONSTRUCTOR = "constructor"  # dumpd: {"lc": 1, "type": "constructor", ...}
    FLAT = "flat"  # model_dump: {"type": "human", "content": ...}
    DUCK = "duck"  # any object with type, content, tool_calls
    SDK = "sdk"  # objects of a provider's client: role, tool_calls[].function.arguments


@dataclass(frozen=True)
class Call:
    id: str | None
    name: str = "search"
    args: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """One message before it has a form; `raw` is a message that has only one form."""

    role: str = "other"  # system, developer, human, ai, result, function, summary, other
    text: str = ""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    name: str | None = None
    blocks: tuple[dict[str, object], ...] = ()
    id: str | None = None
    raw: object = None
    again: int | None = None  # the very object of an earlier message


# ---------------------------------------------------------------------------- how it is stored

_OPENAI_ROLES = {"human": "user", "summary": "user", "ai": "assistant", "result": "tool"}
_CHUNKS: dict[type[BaseMessage], type[BaseMessage]] = {
    HumanMessage: HumanMessageChunk,
    AIMessage: AIMessageChunk,
    SystemMessage: SystemMessageChunk,
    ToolMessage: ToolMessageChunk,
}


def render(spec: Spec, form: Form = Form.LANGCHAIN) -> object:
    """Store one message in a form."""
    if spec.role == "other":
        return spec.raw
    if spec.role in ("summary", "function") and form in (Form.OPENAI, Form.ANTHROPIC, Form.SDK):
        form = Form.LANGCHAIN
    match form:
        case Form.LANGCHAIN:
            return langchain(spec)
        case Form.CHUNK:
            return _chunk(langchain(spec))
        case Form.WRAPPED:
            return message_to_dict(langchain(spec))
        case Form.CONSTRUCTOR:
            return dumpd(langchain(spec))
        case Form.FLAT:
            return langchain(spec).model_dump()
        case Form.OPENAI:
            return openai(spec)
        case Form.ANTHROPIC:
            return anthropic(spec)
        case Form.DUCK:
            return SimpleNamespace(**langchain(spec).model_dump())
        case Form.SDK:
            return _sdk(openai(spec))


def langchain(spec: Spec) -> BaseMessage:
    """Build the LangChain message of a spec."""
    text: object = [{"type": "text", "text": spec.text}, *spec.blocks] if spec.blocks else spec.text
    common = {"content": text, "id": spec.id, "name": spec.name}
    match spec.role:
        case "system":
            return SystemMessage(**common)
        case "developer":
            return SystemMessage(**common, additional_kwargs={"__openai_role__": "developer"})
        case "human":
            return HumanMessage(**common)
        case "summary":
            return HumanMessage(**common, additional_kwargs={"lc_source": "summarization"})
        case "ai":
            calls = [{"name": c.name, "args": c.args, "id": c.id} for c in spec.calls]
            return AIMessage(**common, tool_calls=calls)
        case "result":
            return ToolMessage(**common, tool_call_id=spec.answers or "")
        case "function":
            return FunctionMessage(**{**common, "name": spec.name or "search"})
    raise AssertionError(spec.role)


def _chunk(message: BaseMessage) -> BaseMessage:
    kind = _CHUNKS.get(type(message))
    return message if kind is None else kind(**message.model_dump(exclude={"type"}))


def openai(spec: Spec) -> dict[str, object]:
    """Build the OpenAI chat dict of a spec."""
    content: object = spec.text
    if spec.blocks:
        content = [{"type": "text", "text": spec.text}, *spec.blocks]
    message: dict[str, object] = {"role": _OPENAI_ROLES.get(spec.role, spec.role)}
    message["content"] = content
    if spec.name:
        message["name"] = spec.name
    if spec.calls:
        message["tool_calls"] = [
            _present(
                id=call.id,
                type="function",
                function={"name": call.name, "arguments": json.dumps(call.args)},
            )
            for call in spec.calls
        ]
    if spec.answers:
        message["tool_call_id"] = spec.answers
    if spec.id:
        message["id"] = spec.id
    return message


def anthropic(spec: Spec) -> dict[str, object]:
    """Build the Anthropic dict of a spec: calls and results are content blocks."""
    text = {"type": "text", "text": spec.text}
    if spec.role == "result":
        block = _present(type="tool_result", tool_use_id=spec.answers, content=[text, *spec.blocks])
        return {"role": "user", "content": [block]}
    if spec.role == "ai":
        uses = [
            _present(type="tool_use", id=call.id, name=call.name, input=call.args)
            for call in spec.calls
        ]
        return {"role": "assistant", "content": [text, *spec.blocks, *uses]}
    role = _OPENAI_ROLES.get(spec.role, spec.role)
    return {"role": role, "content": [text, *spec.blocks] if spec.blocks else spec.text}


def _sdk(message: dict[str, object]) -> object:
    fields = dict(message)
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        fields["tool_calls"] = [
            SimpleNamespace(**{**call, "function": SimpleNamespace(**call["function"])})
            for call in calls
        ]
    return SimpleNamespace(**fields)


def _present(**fields: object) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}


def render_all(specs: Sequence[Spec], form: Form | None = None, *, seed: int = 0) -> list[object]:
    """Store a history in one form, or in a mixture of all forms chosen by the seed."""
    chosen = Random(seed)
    forms = list(Form)
    messages: list[object] = []
    for spec in specs:
        if spec.again is not None:
            messages.append(messages[spec.again])
        else:
            messages.append(render(spec, form or chosen.choice(forms)))
    return messages


# ---------------------------------------------------------- the notation of the public reports

_WORD = re.compile(r"(sys|dev|S|H|A|T|F)\d*'*(?:\(([^)]*)\))?'*$")
_ROLES = {
    "sys": "system",
    "dev": "developer",
    "S": "summary",
    "H": "human",
    "A": "ai",
    "T": "result",
    "F": "function",
}


def specs(text: str, *, say: str = "") -> list[Spec]:
    """Read `sys H A(a,b) T(a)`; what follows `*` is repeated: `H A*3` is `H A A A`."""
    return [spec for index, word in enumerate(_words(text)) for spec in [_spec(word, index, say)]]


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        word, _, times = word.partition("*")
        yield from [word] * int(times or 1)


def _spec(word: str, index: int, say: str) -> Spec:
    match = _WORD.match(word)
    if match is None:
        raise ValueError(word)
    role, inside = _ROLES[match[1]], match[2]
    body = say or f"{word} {index}"
    if role == "result":
        return Spec(role, body, answers=inside, id=f"m{index}")
    if role == "function":
        return Spec(role, body, name=inside, id=f"m{index}")
    names = [name.strip() for name in (inside or "").split(",") if name.strip()]
    return Spec(role, body, calls=tuple(Call(name) for name in names), id=f"m{index}")


def write(text: str, form: Form = Form.LANGCHAIN, *, say: str = "") -> list[object]:
    """Store a history given in notation."""
    return render_all(specs(text, say=say), form)


# ------------------------------------------------------------------------------ content blocks


def media_blocks(data: str) -> dict[str, dict[str, object]]:
    """Every shape in which an image, a sound or a file of these base64 bytes is stored."""
    url = f"data:image/png;base64,{data}"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {
        "image_url": {"type": "image_url", "image_url": {"url": url}},
        "image_url string": {"type": "image_url", "image_url": url},
        "input_image": {"type": "input_image", "image_url": url},
        "anthropic image": {"type": "image", "source": source},
        "anthropic document": {"type": "document", "source": pdf},
        "langchain image": {"type": "image", "base64": data, "mime_type": "image/png"},
        "langchain v0 image": {
            "type": "image",
            "source_type": "base64",
            "data": data,
            "mime_type": "image/png",
        },
        "inline_data": {"inline_data": {"mime_type": "image/png", "data": data}},
        "inlineData": {"inlineData": {"mimeType": "image/png", "data": data}},
        "media": {"type": "media", "mime_type": "image/png", "data": data},
        "file": {"type": "file", "file": {"filename": "a.pdf", "file_data": url}},
        "input_file": {"type": "input_file", "filename": "a.pdf", "file_data": url},
        "langchain file": {"type": "file", "base64": data, "mime_type": "application/pdf"},
        "input_audio": {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        "langchain audio": {"type": "audio", "base64": data, "mime_type": "audio/wav"},
        "langchain video": {"type": "video", "base64": data, "mime_type": "video/mp4"},
    }


THINKING_BLOCKS: tuple[dict[str, object], ...] = (
    {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmF0dXJl"},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]},
)
SERVER_BLOCKS: tuple[dict[str, object], ...] = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "https://example.org", "title": "x"}],
    },
)

# ----------------------------------------------------------------------------------- histories


class Move(StrEnum):
    """What happens next in a generated history."""

    HUMAN = "human"
    HUMANS = "consecutive humans"
    AI = "ai"
    CALL = "call and result"
    PARALLEL = "parallel calls"
    SHUFFLED = "parallel calls, results in another order"
    PARTIAL = "one of the calls is never answered"
    DEFER = "a call that may be answered later"
    LATE = "the result of a deferred call"
    DUPLICATE = "a second result of the last call"
    ORPHAN = "a result without a call"
    EARLY = "a result before its call"
    SYSTEM = "system message"
    DEVELOPER = "developer message"
    SUMMARY = "summary message"
    THINKING = "thinking, a call, its result"
    SERVER = "a server tool"
    MEDIA = "a human message with media"
    MEDIA_RESULT = "a result with media"
    CHAT = "ChatMessage"
    FUNCTION = "function call and result"
    MERGED = "one anthropic message with several results"
    UNKNOWN = "not a message we know"
    AGAIN = "the same object again"


_COMMON = [Move.HUMAN, Move.AI, Move.CALL, Move.PARALLEL, Move.HUMAN, Move.CALL]
MOVES = _COMMON * 2 + list(Move)
# what a careful agent writes: every call is answered at once, nothing strange in between
PLAIN_MOVES = (Move.HUMAN, Move.AI, Move.CALL, Move.PARALLEL, Move.SHUFFLED, Move.THINKING)
_TEXTS = ("", "ok", "PIN this", "word " * 4, "word " * 10, "word " * 30, "x" * 7, "é漢字 " * 5)
_TOOLS = ("search", "todo", "read_file", "search")
_CHAT_ROLES = ("user", "assistant", "human", "ai", "system", "critic", "agent", "model")
_UNKNOWN: tuple[object, ...] = (
    {"role": "critic", "content": "hm"},
    {"type": "banana", "content": "hm"},
    {"foo": 1},
    None,
    7,
    "loose text",
    ("user", "hi"),
    RemoveMessage(id="gone"),
)


class Ids(StrEnum):
    """How calls are named."""

    UNIQUE = "unique"
    REUSED = "reused"  # call_0 in every turn
    MISSING = "missing"
    MIXED = "mixed"


class Writer:
    """Write a history move by move; what it writes is decided by the moves alone."""

    def __init__(self, ids: Ids, *, message_ids: bool = True) -> None:
        self.specs: list[Spec] = []
        self._ids = ids
        self._message_ids = message_ids
        self._count = 0
        self._deferred: list[Call] = []
        self._last: Call | None = None

    def move(self, move: Move, v: int) -> None:
        """Add what one move says; `v` chooses among its variations."""
        text = _TEXTS[v % len(_TEXTS)]
        match move:
            case Move.HUMAN:
                self._say("human", text)
            case Move.HUMANS:
                self._say("human", text)
                self._say("human", "and")
            case Move.AI:
                self._say("ai", text)
            case Move.CALL:
                self._answer(self._call(1, v), text)
            case Move.PARALLEL:
                self._answer(self._call(2 + v % 3, v), text)
            case Move.SHUFFLED:
                self._answer(self._call(2 + v % 3, v)[::-1], text)
            case Move.PARTIAL:
                self._answer(self._call(2 + v % 2, v)[v % 2 : -1], text)
            case Move.DEFER:
                self._deferred += self._call(1 + v % 2, v)
            case Move.LATE:
                if self._deferred:
                    self._answer([self._deferred.pop(v % len(self._deferred))], text)
            case Move.DUPLICATE:
                if self._last:
                    self._answer([self._last], text)
            case Move.ORPHAN:
                self._say("result", text, answers=f"lost{v % 2}")
            case Move.EARLY:
                call = self._new_call(0, v)
                self._answer([call], text)
                self._say("ai", text, calls=(call,))
            case Move.SYSTEM:
                self._say("system", text)
            case Move.DEVELOPER:
                self._say("developer", text)
            case Move.SUMMARY:
                self._say("summary", text)
            case Move.THINKING:
                self._answer(self._call(1 + v % 2, v, blocks=THINKING_BLOCKS), text)
            case Move.SERVER:
                self._say("ai", text, blocks=SERVER_BLOCKS)
            case Move.MEDIA:
                self._say("human", text, blocks=(_some_media(v),))
            case Move.MEDIA_RESULT:
                self._answer(self._call(1, v), text, blocks=(_some_media(v),))
            case Move.CHAT:
                self._raw(ChatMessage(role=_CHAT_ROLES[v % len(_CHAT_ROLES)], content=text))
            case Move.FUNCTION:
                self._raw(_function_call(_TOOLS[v % len(_TOOLS)]))
                self._say("function", text, name=_TOOLS[v % len(_TOOLS)])
            case Move.MERGED:
                self._merged(v, text)
            case Move.UNKNOWN:
                self._raw(_UNKNOWN[v % len(_UNKNOWN)])
            case Move.AGAIN:
                if self.specs:
                    self.specs.append(Spec(again=v % len(self.specs)))

    def _say(self, role: str, text: str, **fields: object) -> None:
        number = len(self.specs)
        spec = Spec(role, text, id=f"m{number}" if self._message_ids else None)
        self.specs.append(replace(spec, **fields))  # type: ignore[arg-type]

    def _raw(self, raw: object) -> None:
        self.specs.append(Spec(raw=raw))

    def _new_call(self, index: int, v: int) -> Call:
        self._count += 1
        args: dict[str, object] = {"q": "x" * (v % 8) * 3}
        return Call(self._call_id(index), _TOOLS[(v + index) % len(_TOOLS)], args)

    def _call_id(self, index: int) -> str | None:
        ids = self._ids
        if ids is Ids.MIXED:
            ids = (Ids.UNIQUE, Ids.REUSED, Ids.MISSING)[self._count % 3]
        if ids is Ids.MISSING:
            return None
        return f"call_{index}" if ids is Ids.REUSED else f"c{self._count}"

    def _call(
        self, number: int, v: int, *, blocks: tuple[dict[str, object], ...] = ()
    ) -> list[Call]:
        calls = [self._new_call(index, v) for index in range(number)]
        self._say("ai", _TEXTS[v % 3], calls=tuple(calls), blocks=blocks)
        return calls

    def _answer(
        self, calls: Sequence[Call], text: str, *, blocks: tuple[dict[str, object], ...] = ()
    ) -> None:
        for call in calls:
            self._say("result", text, answers=call.id, blocks=blocks)
            self._last = call

    def _merged(self, v: int, text: str) -> None:
        calls = self._call(2 + v % 2, v)
        results = [
            _present(type="tool_result", tool_use_id=call.id, content=text) for call in calls
        ]
        # a user who interrupts speaks in the very message that carries the results
        words = [{"type": "text", "text": "stop"}] if v % 4 == 3 else []
        self._raw({"role": "user", "content": [*results, *words]})


def _some_media(v: int) -> dict[str, object]:
    blocks = list(media_blocks("iVBORw0KGgo" * 8).values())
    return blocks[v % len(blocks)]


def _function_call(name: str) -> dict[str, object]:
    call = {"name": name, "arguments": "{}"}
    return {"role": "assistant", "content": None, "function_call": call}


_LEADS = ((), (), ("system",), ("system",), ("system", "developer"), ("system",) * 3)
# two moves at a time: hypothesis draws short lists, and short histories are seldom cut
_PAIRS = st.tuples(st.sampled_from(MOVES), st.sampled_from(MOVES), st.integers(0, 15))
_PLAIN_STEPS = st.tuples(st.sampled_from(PLAIN_MOVES), st.integers(0, 15))


def _history(
    lead: Sequence[str], summaries: int, steps: Sequence[tuple[Move, int]], writer: Writer
) -> list[Spec]:
    writer.specs += [Spec(role, f"{role} prompt") for role in lead]
    writer.specs += [Spec("summary", f"so far {n}", id=f"s{n}") for n in range(summaries)]
    for move, v in steps:
        writer.move(move, v)
    return writer.specs


@st.composite
def histories(draw: st.DrawFn, *, max_moves: int = 24) -> list[object]:
    """Draw a whole stored history: any moves, any names of calls, one form or a mixture."""
    lead = draw(st.sampled_from(_LEADS))
    summaries = draw(st.sampled_from((0, 0, 0, 1, 2)))
    ids = draw(st.sampled_from(list(Ids)))
    form = draw(st.sampled_from([*Form, None, None, None]))
    writer = Writer(ids, message_ids=draw(st.booleans()))
    pairs = draw(st.lists(_PAIRS, max_size=max_moves // 2))
    steps = [(move, v) for one, two, v in pairs for move in (one, two)]
    said = _history(lead, summaries, steps, writer)
    return render_all(said, form, seed=draw(st.integers(0, 9)))


@st.composite
def plain_specs(draw: st.DrawFn, *, max_moves: int = 20) -> list[Spec]:
    """Draw what a careful agent says: unique ids, every call answered at once."""
    lead = draw(st.sampled_from(_LEADS))
    steps = draw(st.lists(_PLAIN_STEPS, min_size=1, max_size=max_moves))
    return _history(lead, 0, steps, Writer(Ids.UNIQUE))


def rounds(
    pattern: Sequence[tuple[Move, int]], number: int, writer: Writer
) -> Iterator[list[Spec]]:
    """Yield what each round of an endless history adds."""
    for _ in range(number):
        start = len(writer.specs)
        for move, v in pattern:
            writer.move(move, v)
        yield writer.specs[start:]


# a round always ends, and never repeats an object of an earlier one
_ENDLESS = [
    m for m in Move if m not in (Move.PARTIAL, Move.DEFER, Move.LATE, Move.EARLY, Move.AGAIN)
]


def patterns() -> st.SearchStrategy[list[tuple[Move, int]]]:
    """Draw one round of an endless history, in any pattern of roles without open calls."""
    return st.lists(
        st.tuples(st.sampled_from(_ENDLESS), st.integers(0, 15)), min_size=1, max_size=4
    )


# ------------------------------------------------------------------------------------- windows


def says_pin(message: object) -> bool:
    """Pin what says PIN, whatever it is."""
    return "PIN" in repr(message)


def count_text(message: object) -> int:
    """Count a token for each ten characters, at least one; a counter as a user writes one."""
    return 1 + len(repr(message)) // 40


_SPANS = {"messages": 14, "turns": 4, "tokens": 150, "bytes": 1200}
_PINS: tuple[object, ...] = ((), (), (), ("todo",), ("read_file", says_pin), (says_pin,))


@st.composite
def windows(draw: st.DrawFn, *, pins: bool = True) -> Window:
    """Draw a valid window: all measures, mixed measures, several triggers, caps, pins."""
    measures = st.sampled_from(tuple(_SPANS))
    keep = _mark(draw, draw(measures))
    triggers = [
        _mark(draw, measure, least=keep[1] if measure == keep[0] else 1)
        for measure in draw(st.lists(measures, max_size=3, unique=True))
    ]
    given = triggers or [(keep[0], keep[1] * 2)]
    options: dict[str, object] = {}
    if draw(st.booleans()):
        measure = draw(st.sampled_from(("messages", "tokens", "bytes")))
        least = max([value for m, value in [keep, *given] if m == measure], default=1)
        options["cap"] = _mark(draw, measure, least=least)
    if pins and draw(st.booleans()):
        options["pinned"] = draw(st.sampled_from(_PINS))
        options["pin_first_human"] = draw(st.booleans())
        options["keep_latest_of"] = draw(st.sampled_from(((), ("todo",), ("todo", "search"))))
    if draw(st.booleans()):
        options["token_counter"] = count_text
    trigger: object = None if not triggers else triggers if len(triggers) > 1 else triggers[0]
    return Window(keep, trigger, **options)  # type: ignore[arg-type]


def _mark(draw: st.DrawFn, measure: str, *, least: int = 1) -> tuple[str, int]:
    return measure, least + draw(st.integers(0, _SPANS[measure]))


@dataclass(frozen=True)
class Case:
    """One reduction to judge."""

    messages: list[object]
    window: Window
    when: When


def cases(*, pins: bool = True) -> st.SearchStrategy[Case]:
    """Draw a history, a window and a moment."""
    return st.builds(Case, histories(), windows(pins=pins), st.sampled_from(list(When)))
