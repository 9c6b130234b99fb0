"""E7: excerpts are verbatim parts of a content, never larger, and nothing else of a message."""

from __future__ import annotations

import copy
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from engine.strategies import count_text, histories, media_blocks, render_all, specs, write
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    message_to_dict,
)

from reducing_saver import ConfigurationError
from reducing_saver.engine import Verdict, Window, problems, reduce_messages
from reducing_saver.engine.contents import texts_at
from reducing_saver.engine.counters import count_bytes
from reducing_saver.engine.excerpt import EXCERPT_KEY, Excerpt, is_cut, is_excerpt, whole_key
from reducing_saver.engine.parts import Part, cut, is_json, leaves, render
from reducing_saver.engine.shorten import shorten

pytestmark = pytest.mark.campaign

COUNT = Window(("messages", 9)).sizes("tokens").of
NOTE = "[excerpt: 1 of 2 tokens left out]"
KEY = "0123456789abcdef01234567.0123456789abcdef01234567"


def _examples(share: float = 1.0) -> settings:
    current = settings()
    chosen = current if current.max_examples > 1000 else settings.get_profile("engine")
    return settings(chosen, max_examples=int(chosen.max_examples * share))


def short_of(
    message: Any, excerpt: Excerpt, *, key: str | None = None, running: bool = False
) -> Any:
    """Shorten a tool result in a turn of its own; the same object where it stays."""
    asked = AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": "c"}])
    messages = [HumanMessage("q"), asked, message]
    found = shorten(messages, excerpt, COUNT, running=running, key_of=lambda message: key)
    return found[2].message if 2 in found else message


# ------------------------------------------------------------------------------------- texts

_ODD = 'é漢字😀👩‍👩‍👧🇫🇷\u0301\ud83d\ude00\r\n\t"\\'
texts = st.one_of(
    st.text(max_size=2_000),
    st.text(alphabet="ab \n" + _ODD, max_size=3_000),
    st.lists(st.text(max_size=60), max_size=60).map("\n".join),
    st.builds(lambda unit, times: unit * times, st.text(min_size=1, max_size=9), st.just(400)),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=60,
)
json_texts = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    st.lists(values, min_size=1, max_size=30) | st.dictionaries(st.text(), values, min_size=1),
    st.booleans(),
    st.sampled_from([None, 2]),
)


@_examples()
@given(texts | json_texts, st.integers(1, 400))
def test_all_parts_together_are_the_text(text: str, most: int) -> None:
    whole = cut(text, most)
    chosen = {part.start for part, _ in leaves(whole)}
    assert len(chosen) == len([*leaves(whole)])
    assert render(text, whole, chosen) in (text, f"{text}...\n")
    assert all(text[part.start : part.end] for part, _ in leaves(whole)) or not text


@_examples()
@given(texts | json_texts, st.integers(1, 200), st.data())
def test_any_choice_is_verbatim_and_in_order(text: str, most: int, data: st.DataObject) -> None:
    whole = cut(text, most)
    found = [part for part, _ in leaves(whole)]
    chosen = {p.start for p in found if data.draw(st.booleans())}
    said = render(text, whole, chosen, NOTE)
    at = 0
    for part in found:
        if part.start in chosen:
            stretch = text[part.start : part.end]
            at = said.index(stretch, at) + len(stretch)
    assert said.count(NOTE) == 1
    if is_json(whole):
        _check_json(json.loads(said), json.loads(text))


def _check_json(kept: Any, whole: Any) -> None:
    """Check that every value that is left was there, in its place among the others."""
    if isinstance(kept, str) and isinstance(whole, str):
        _check_text(kept, whole)
    elif isinstance(kept, dict) and isinstance(whole, dict):
        names = [name for name in kept if name in whole]
        assert names == [name for name in whole if name in kept]
        assert len(kept) - len(names) <= 1
        for name in names:
            _check_json(kept[name], whole[name])
    elif isinstance(kept, list) and isinstance(whole, list):
        _check_list(kept, whole)
    else:
        assert kept == whole


def _check_list(kept: list[Any], whole: list[Any]) -> None:
    rest = iter(whole)
    items = kept[:-1] if kept and kept[-1] in ("...", NOTE) else kept
    for item in items:
        assert any(_is_part(item, one) for one in rest)


def _is_part(kept: Any, whole: Any) -> bool:
    try:
        _check_json(kept, whole)
    except AssertionError:
        return False
    return True


def _check_text(kept: str, whole: str) -> None:
    at = 0
    # Dots of the text's own may stand beside those that were put in.
    for stretch in re.split(r"\.{3,}", kept):
        place = whole.find(stretch, at)
        assert place >= 0 or kept == whole
        at = place + len(stretch)


@_examples(0.5)
@given(texts, st.integers(1, 30))
def test_no_character_is_cut(text: str, most: int) -> None:
    for part, _ in leaves(cut(text, most)):
        end = part.end
        # After a control character, as a line's end, nothing can be joined to it.
        if end == len(text) or unicodedata.category(text[end - 1]) in ("Cc", "Zl", "Zp"):
            continue
        assert not ("\ud800" <= text[end - 1] <= "\udbff" and "\udc00" <= text[end] <= "\udfff")
        assert text[end] not in "\u200d\ufe0f\u0301"


@pytest.mark.parametrize("escape", [r"\ud83d\ude00", r"\n", r"\\", r"\u00e9", r"\""])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 50])
def test_escapes_in_json_are_whole(escape: str, most: int) -> None:
    text = f'{{"text": "{escape * 200}"}}'
    whole = cut(text, most)
    for part, _ in leaves(whole):
        said = render(text, whole, {part.start}, NOTE)
        assert set(json.loads(said)["text"].replace("...", "")) <= set(json.loads(text)["text"])


def test_many_small_elements_are_taken_together() -> None:
    text = json.dumps([*range(100_000)])
    whole = cut(text, 100)
    assert len(whole.parts) < 40_000
    assert render(text, whole, {p.start for p, _ in leaves(whole)}) == text


# ---------------------------------------------------------------------------------- messages


def words(count: int) -> str:
    return "".join(f"line {i} says what it says\n" for i in range(count))


def records(count: int) -> str:
    return json.dumps([{"id": i, "name": f"é漢 {i}", "on": True} for i in range(count)])


IMAGE = media_blocks("QUJD" * 2_000)["image_url"]
SHAPES: dict[str, Callable[[str], Any]] = {
    "langchain": lambda text: ToolMessage(text, tool_call_id="c", name="read", id="t"),
    "langchain blocks": lambda text: ToolMessage(
        [{"type": "text", "text": text}, IMAGE, text], tool_call_id="c", name="read", id="t"
    ),
    "openai": lambda text: {"role": "tool", "tool_call_id": "c", "content": text},
    "openai blocks": lambda text: {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "text", "text": text}],
    },
    "responses": lambda text: {"type": "function_call_output", "call_id": "c", "output": text},
    "anthropic": lambda text: {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": text},
            {"type": "text", "text": "stay " * 20},
        ],
    },
    "anthropic blocks": lambda text: {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c",
                "content": [{"type": "text", "text": text}, IMAGE],
            }
        ],
    },
    "langchain anthropic": lambda text: HumanMessage(
        [{"type": "tool_result", "tool_use_id": "c", "content": text}], id="t"
    ),
    "gemini": lambda text: {
        "role": "user",
        "parts": [{"function_response": {"name": "read", "response": {"result": text}}}],
    },
    "wrapped": lambda text: message_to_dict(ToolMessage(text, tool_call_id="c", id="t")),
    "constructor": lambda text: dumpd(ToolMessage(text, tool_call_id="c", id="t")),
    "flat": lambda text: ToolMessage(text, tool_call_id="c", id="t").model_dump(),
    "duck": lambda text: SimpleNamespace(**ToolMessage(text, tool_call_id="c").model_dump()),
}
TEXTS = {"lines": words(900), "json": records(500), "one line": "word " * 6_000}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_cut_and_nothing_else_changes(shape: str, kind: str) -> None:
    message = SHAPES[shape](TEXTS[kind])
    before = copy.deepcopy(message)
    short = short_of(message, Excerpt(400), key=KEY)
    assert message == before
    assert short is not message
    assert COUNT(short) <= 400
    assert count_bytes(short) < count_bytes(message)
    assert is_excerpt(short)
    assert whole_key(short) == KEY
    assert _bare(short) == _bare(message)
    kept = [text for _, text in texts_at(short)]
    assert all(kept)
    assert sum(f"kept whole as {KEY}]" in text for text in kept) == 1
    assert short_of(short, Excerpt(64)) is short
    if kind == "json":
        for text in kept:
            json.loads(text)


def _bare(message: Any) -> Any:
    """Return a message without its texts and without the mark."""
    plain = message.model_dump() if isinstance(message, BaseMessage) else message
    plain = vars(plain) if isinstance(plain, SimpleNamespace) else plain
    return _without_texts(copy.deepcopy(plain))


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "" if key in ("text", "result", "output") else _without_texts(item)
            for key, item in value.items()
            if key != EXCERPT_KEY and not (key == "content" and isinstance(item, str))
        }
    if isinstance(value, list):
        return [
            ""
            if (isinstance(one, str) and len(one) > 300) or "excerpt: " in str(one)[:60]
            else _without_texts(one)
            for one in value
        ]
    return value


@_examples()
@given(
    texts | json_texts,
    st.integers(64, 400),
    st.sampled_from([name for name in SHAPES if name != "duck"]),
    st.sampled_from([None, KEY]),
)
def test_an_excerpt_is_smaller_and_final(text: str, cap: int, shape: str, key: str | None) -> None:
    message = SHAPES[shape](text)
    before = copy.deepcopy(message)
    short = short_of(message, Excerpt(cap), key=key)
    assert message == before
    if short is message:
        return
    assert COUNT(short) <= COUNT(message)
    assert count_bytes(short) < count_bytes(message)
    assert any(kept for _, kept in texts_at(short))
    assert short_of(short, Excerpt(64)) is short
    for (_, kept), (_, whole) in zip(texts_at(short), texts_at(message), strict=True):
        if is_json(cut(whole, 60)):
            json.loads(kept)


@_examples(0.5)
@given(histories(), st.booleans(), st.integers(64, 90))
def test_a_list_is_as_valid_as_before(messages: list[Any], running: bool, cap: int) -> None:
    """E3, E7: positions, pairs and everything that is no text of a tool or human stay."""
    before = copy.copy(messages)
    count = count_text
    found = shorten(messages, Excerpt(cap, humans=True, media="older"), count, running=running)
    assert all(a is b for a, b in zip(messages, before, strict=True))
    shorter = [found[i].message if i in found else m for i, m in enumerate(messages)]
    assert [p.rule for p in problems(shorter)] == [p.rule for p in problems(messages)]
    again = shorten(shorter, Excerpt(cap, humans=True), count, running=running)
    assert not [i for i in again if i in found]


# ------------------------------------------------------------------------------ which results


def rounds(*names: str, text: str = "") -> Iterator[BaseMessage]:
    for place, name in enumerate(names):
        key = f"{name}{place}"
        yield AIMessage(
            "", tool_calls=[{"name": name, "args": {"q": key}, "id": key}], id=f"a{key}"
        )
        yield ToolMessage(text or words(200), tool_call_id=key, id=f"t{key}")


def cut_ids(messages: list[Any], excerpt: Excerpt, *, running: bool = False) -> list[str]:
    found = shorten(messages, excerpt, COUNT, running=running)
    return [messages[i].id for i in sorted(found)]


def test_the_newest_results_of_a_running_turn_are_spared() -> None:
    older = [HumanMessage("q1"), *rounds("a", "b")]
    messages = [*older, HumanMessage("q2"), *rounds("c", "d", "e")]
    assert cut_ids(messages, Excerpt(100, spare_last=2), running=True) == ["ta0", "tb1", "tc0"]
    assert cut_ids(messages, Excerpt(100, spare_last=9), running=True) == ["ta0", "tb1"]
    assert cut_ids(messages, Excerpt(100, spare_last=2)) == ["ta0", "tb1", "tc0", "td1", "te2"]


@pytest.mark.parametrize(
    ("excerpt", "gone"),
    [
        (Excerpt(100, include=("a",)), ["ta0"]),
        (Excerpt(100, include="b"), ["tb1"]),
        (Excerpt(100, exclude=("a",)), ["tb1", "tc2"]),
        (Excerpt(100, never=("c",)), ["ta0", "tb1"]),
        (Excerpt(9_000, caps={"b": 200}), ["tb1"]),
        (Excerpt(100, include=("a",), caps={"c": 100}), ["ta0", "tc2"]),
    ],
    ids=["include", "include one", "exclude", "never", "caps", "include and caps"],
)
def test_tools_are_chosen_by_name(excerpt: Excerpt, gone: list[str]) -> None:
    assert cut_ids([HumanMessage("q"), *rounds("a", "b", "c")], excerpt) == gone


def test_what_a_person_said_is_cut_where_asked_for() -> None:
    messages = [HumanMessage(words(300), id="h")]
    assert cut_ids(messages, Excerpt(100)) == []
    assert cut_ids(messages, Excerpt(100, humans=True)) == ["h"]


def test_systems_answers_and_summaries_stay() -> None:
    said = words(900)
    messages = render_all(specs("sys S H A", say=said))
    assert cut_ids(messages, Excerpt(100)) == []


@pytest.mark.parametrize(
    ("policy", "artifact", "left"),
    [
        ("keep", {"a": 1}, {"a": 1}),
        ("drop", {"a": 1}, None),
        (10_000, {"a": "x" * 100}, {"a": "x" * 100}),
        (50, {"a": "x" * 100}, None),
        (10_000, {"a": {1, 2}}, None),
        ("drop", iter(()), None),
    ],
    ids=["keep", "drop", "small", "large", "no plain data", "unserialisable"],
)
def test_artifacts(policy: Any, artifact: Any, left: Any) -> None:
    message = ToolMessage("done", tool_call_id="c", artifact=artifact, id="t")
    short = short_of(message, Excerpt(100, artifact=policy), running=True)
    assert short.artifact == left
    assert short.content == "done"
    assert message.artifact is artifact
    assert not is_cut(short)


def test_the_artifact_of_a_tool_that_is_never_cut_stays() -> None:
    message = ToolMessage("done", tool_call_id="c", name="read", artifact={"rows": [1]})
    assert short_of(message, Excerpt(artifact="drop")) is not message
    assert short_of(message, Excerpt(artifact="drop", never=("read",))) is message


def test_a_message_without_its_artifact_is_cut_later() -> None:
    message = ToolMessage(words(900), tool_call_id="c", artifact={"a": "x" * 9_000}, id="t")
    running = short_of(message, Excerpt(100, artifact="drop"), key=KEY, running=True)
    assert running.artifact is None
    assert running.content == message.content
    resting = short_of(running, Excerpt(100, artifact="drop"), key="other")
    assert COUNT(resting) <= 100
    assert whole_key(resting) == KEY


@pytest.mark.parametrize("shape", media_blocks(""))
@pytest.mark.parametrize("by", ["human", "tool", "inner"])
def test_media_of_earlier_turns_are_named(shape: str, by: str) -> None:
    block = media_blocks("QUJD" * 1_000)[shape]
    said = {"type": "text", "text": "see"}
    if by == "human":
        message: Any = HumanMessage([said, block], id="m")
        rest: list[Any] = []
    elif by == "tool":
        message = ToolMessage([said, block], tool_call_id="c", id="m")
        rest = [HumanMessage("q"), AIMessage("", tool_calls=[{"name": "x", "args": {}, "id": "c"}])]
    else:
        inner = {"type": "tool_result", "tool_use_id": "c", "content": [said, block]}
        message, rest = {"role": "user", "content": [inner]}, []
    before = copy.deepcopy(message)
    older = [*rest, message, AIMessage("so")]
    excerpt = Excerpt(media="older")
    assert shorten(older, excerpt, COUNT) == {}
    messages = [*older, HumanMessage("next")]
    found = shorten(messages, excerpt, COUNT, key_of=lambda message: KEY)
    assert list(found) == [len(rest)]
    short = found[len(rest)].message
    text = json.dumps(short.content if isinstance(short, BaseMessage) else short)
    assert re.search(r"left out: 3,000 bytes, sha256 [0-9a-f]{16}; kept whole as", text)
    assert "see" in text
    assert count_bytes(short) < 1_000
    assert message == before
    assert not is_cut(short) or by == "inner"
    assert shorten([*rest, short, AIMessage("so"), HumanMessage("next")], excerpt, COUNT) == {}


_FAR = "x" * 2_000
LINKS: dict[str, dict[str, Any]] = {
    "https": {"type": "image_url", "image_url": {"url": f"https://example.org/{_FAR}"}},
    "s3": {"type": "image", "url": f"s3://bucket/{_FAR}"},
    "with a long context": {
        "type": "document",
        "source": {"type": "url", "url": "https://example.org/a.pdf"},
        "context": "what is said about it " * 200,
    },
}


@pytest.mark.parametrize("kind", LINKS)
def test_links_to_media_stay(kind: str) -> None:
    messages = [HumanMessage([LINKS[kind]]), AIMessage("so"), HumanMessage("next")]
    assert shorten(messages, Excerpt(media="older"), COUNT) == {}


@pytest.mark.parametrize(
    ("url", "size"),
    [
        ("data:image/png;base64," + ("QUJD" * 1_000)[:-2], 2_998),
        ("data:image/svg+xml;utf8," + "<g>%20</g>" * 200, 1_600),
    ],
    ids=["no padding", "percent"],
)
def test_the_bytes_of_media_are_counted(url: str, size: int) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    messages = [HumanMessage([image]), AIMessage("so"), HumanMessage("next")]
    short = shorten(messages, Excerpt(media="older"), COUNT)[0].message
    assert f"left out: {size:,} bytes" in str(short.content)


def test_an_image_and_the_question_after_it_are_of_one_turn() -> None:
    messages = [HumanMessage([IMAGE]), HumanMessage("what is it?")]
    excerpt = Excerpt(media="older")
    assert shorten(messages, excerpt, COUNT) == {}
    assert list(shorten([*messages, AIMessage("so"), HumanMessage("?")], excerpt, COUNT)) == [0]


@pytest.mark.parametrize("names", [("function_response", "inline_data"), ("functionResponse",) * 2])
def test_what_gemini_has_beside_a_response_stays(names: tuple[str, str]) -> None:
    name, held = names[0], names[1].replace("functionResponse", "inlineData")
    beside = {
        "name": "read",
        "parts": [{held: {"mime_type": "image/png", "data": "QUJD" * 5_000}}],
        "scheduling": "WHEN_IDLE",
    }
    message = {"role": "user", "parts": [{name: {**beside, "response": {"out": words(900)}}}]}
    short = short_of(message, Excerpt(400, media="all"))
    kept = short["parts"][0][name]
    assert {**kept, "response": None} == {**beside, "response": None}
    assert "excerpt: " in kept["response"]["out"]
    bare = {"role": "user", "parts": [{name: {**beside, "parts": [], "response": {"out": "x"}}}]}
    one = {"role": "user", "parts": [{name: {**beside, "response": {"out": "x"}}}]}
    assert 0 < COUNT(one) - COUNT(bare) < 200


def test_results_of_earlier_turns_collapse_oldest_first() -> None:
    older = [HumanMessage("q1"), *rounds("a", "b", "c", text=words(60)), AIMessage("done")]
    messages = [*older, HumanMessage("q2")]
    size = COUNT(older[2])
    assert cut_ids(messages, Excerpt(9_000, history_max_tokens=3 * size)) == []
    found = shorten(messages, Excerpt(9_000, history_max_tokens=2 * size), COUNT)
    assert sorted(found) == [2, 4]
    assert re.fullmatch(r"\.\.\.\n\[excerpt: .* tokens left out\]", found[2].message.content)
    shorter = [found[i].message if i in found else m for i, m in enumerate(messages)]
    assert cut_ids(shorter, Excerpt(9_000, history_max_tokens=2 * size)) == []
    assert cut_ids(messages, Excerpt(9_000, history_max_tokens=size), running=True) == []


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 63),
        ("max_tokens", "2000"),
        ("spare_last", -1),
        ("include", 7),
        ("exclude", [""]),
        ("never", [1]),
        ("caps", ["a"]),
        ("caps", {"a": 1}),
        ("humans", 1),
        ("writes", None),
        ("artifact", "some"),
        ("artifact", -1),
        ("media", "newer"),
        ("history_max_tokens", 1),
    ],
    ids=str,
)
def test_bad_values_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Excerpt(**{field: value})


def test_a_tool_is_included_or_not() -> None:
    with pytest.raises(ConfigurationError, match="include"):
        Excerpt(include=("a",), never=("a",))


def test_a_part_is_a_plain_tuple() -> None:
    assert isinstance(cut("a", 5), Part)


def test_a_hostile_result_is_cut_although_it_has_our_line() -> None:
    message = ToolMessage(f"{NOTE}\n{words(900)}", tool_call_id="c", id="t")
    assert COUNT(short_of(message, Excerpt(200))) <= 200


def test_an_excerpt_is_written_in_the_notation_too() -> None:
    assert cut_ids(write("H A(a) T(a)", say=words(900)), Excerpt(100)) == ["m2"]


# -------------------------------------------------------------------------------------- plans


def test_a_plan_counts_excerpts_and_says_why() -> None:
    """C12: below a token window the newest question and its turn stay, the result is cut."""
    messages = [HumanMessage("q1"), *rounds("a"), HumanMessage("q2"), *rounds("b", "c")]
    window = Window(("tokens", 900), ("tokens", 1_000), ("tokens", 4_000))
    whole = reduce_messages(messages, window)
    assert len(whole.evicted) == 3
    reduced = reduce_messages(messages, window, excerpt=Excerpt(200))
    assert reduced.evicted == ()
    assert [m.id for m in reduced.messages] == [m.id for m in messages]
    assert sum(map(COUNT, reduced.messages)) < 900
    actions = reduced.plan.actions
    assert [str(a.verdict) for a in actions] == ["keep", "excerpt", "keep", "excerpt", "excerpt"]
    assert "larger than its cap" in str(reduced.plan)
    assert "3 contents become excerpts" in str(reduced.plan)
    kept = reduced.plan.total("tokens", Verdict.KEEP)
    assert kept == sum(map(COUNT, reduced.messages)) < reduced.plan.total("tokens")


@pytest.mark.parametrize("pinned", [(), ("todo",)], ids=["plain", "pinned"])
def test_what_leaves_is_whole(pinned: tuple[str, ...]) -> None:
    messages = [HumanMessage("q1"), *rounds("a"), HumanMessage("q2"), *rounds("b")]
    window = Window(("messages", 3), ("messages", 4), pinned=pinned)
    reduced = reduce_messages(messages, window, excerpt=Excerpt(200))
    assert list(reduced.evicted) == messages[:3]
    assert reduced.messages[:2] == messages[3:5]
    assert is_cut(reduced.messages[2])
    assert set(reduced.plan.excerpted) == {5}
    assert [str(a.verdict) for a in reduced.plan.actions] == ["evict", "evict", "keep", "excerpt"]
    kept = reduced.plan.keeping_all()
    assert len(kept.staying) == 6
    assert not kept.changes
