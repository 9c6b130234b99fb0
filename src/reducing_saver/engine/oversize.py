"""Find what of a message list is too large, and what it should answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .contents import holds_blocks, inline, media_at, texts_at
from .counters import count_bytes, plain_text
from .excerpt import LEAST_TOKENS, Count, Excerpt, Oversize, Task, Why, is_cut, without_line
from .messages import Message, Role, answers, blocks, is_summary, role
from .messages import field as read
from .units import starts_turn

_CALLS = frozenset({"tool_use", "tool_call", "function_call"})
_EARLIER = 8_000
"""How many characters of what was said before are taken for the task."""


class Asked(NamedTuple):
    """Hold what a tool was asked."""

    tool: str
    arguments: str


def find(
    messages: Sequence[Message], excerpt: Excerpt, count: Count, *, running: bool
) -> list[Oversize]:
    """Return what is to be shortened in a list, in order.

    While a turn runs its newest results are spared. Linear; a list with nothing oversize costs a
    look at the length of each content.
    """
    least, artifacts = excerpt.least(), excerpt.artifact != "keep"
    # Written out, without a call: this runs for every message of every put.
    small = -1 if artifacts else (least - 8) // 4
    suspects = [
        i
        for i, m in enumerate(messages)
        if type(said := getattr(m, "content", None)) is not str or len(said) > small
    ]
    suspects = [i for i in suspects if _may_be_large(messages[i], least, artifacts)]
    if not suspects:
        return []
    turn = _current_turn(messages)
    shown = _shown_from(messages, turn)
    spared = _spared(messages, turn, excerpt.spare_last) if running else frozenset()
    results = [i for i in suspects if role(messages[i]) is Role.TOOL]
    asked, said = _asked(messages, results), _said(messages)
    found = []
    for i in suspects:
        message, named = messages[i], asked.get(i)
        if named is None and (role(message) is not Role.HUMAN or is_summary(message)):
            continue
        cap = None if i in spared or is_cut(message) else _cap(named, excerpt)
        one = Oversize(
            i,
            message,
            Why.OVERSIZE,
            _task(said, named or ()),
            cap=cap if cap is not None and count(message) > cap else None,
            media=(i < shown or excerpt.media == "all") and _drops_media(message, named, excerpt),
            artifact=named is not None and _drops_artifact(message, named, excerpt),
        )
        if one.cap is not None:
            found.append(one)
        elif one.media or one.artifact:
            found.append(replace(one, why=Why.MEDIA if one.media else Why.ARTIFACT))
    return found


def _may_be_large(message: Message, least: int, artifacts: bool) -> bool:
    # A token has at least one byte.
    if type(message) is dict:
        content = message.get("content", message)
    else:
        content = getattr(message, "content", None)
    if type(content) is str:
        length = len(content) if content.isascii() else 4 * len(content)
        return length > least - 8 or (artifacts and read(message, "artifact") is not None)
    return content is not None


def _current_turn(messages: Sequence[Message]) -> int:
    """Return where the last turn begins."""
    return next((i for i in range(len(messages) - 1, -1, -1) if starts_turn(messages[i])), 0)


def _shown_from(messages: Sequence[Message], turn: int) -> int:
    """Return where what the person last said begins: an image, then the question, are two."""
    while turn > 0 and starts_turn(messages[turn - 1]):
        turn -= 1
    return turn


def _spared(messages: Sequence[Message], turn: int, count: int) -> frozenset[int]:
    places = (i for i in range(len(messages) - 1, turn - 1, -1) if role(messages[i]) is Role.TOOL)
    return frozenset(place for _, place in zip(range(count), places, strict=False))


def _cap(asked: Sequence[Asked] | None, excerpt: Excerpt) -> int | None:
    """Return the cap of a message: the least of several results; None where one stays whole."""
    if asked is None:
        return excerpt.max_tokens if excerpt.humans else None
    caps = [excerpt.cap(one.tool) for one in asked]
    known = [cap for cap in caps if cap is not None]
    return min(known) if known and len(known) == len(caps) else None


def _drops_media(message: Message, asked: Sequence[Asked] | None, excerpt: Excerpt) -> bool:
    if excerpt.media == "keep" or not holds_blocks(message):
        return False
    if _is_never_cut(asked, excerpt):
        return False
    return any(inline(block) for _, block in media_at(message))


def _is_never_cut(asked: Sequence[Asked] | None, excerpt: Excerpt) -> bool:
    return any(one.tool in excerpt.never for one in asked or ())


def _drops_artifact(message: Message, asked: Sequence[Asked], excerpt: Excerpt) -> bool:
    if excerpt.artifact == "keep" or (artifact := read(message, "artifact")) is None:
        return False
    if _is_never_cut(asked, excerpt):
        return False
    if isinstance(excerpt.artifact, str):
        return True
    return not is_plain(artifact) or count_bytes(artifact) > excerpt.artifact


def is_plain(value: object, depth: int = 0) -> bool:
    """Tell whether a value is of plain data alone, whose bytes can be counted."""
    if isinstance(value, dict):
        return depth < 20 and all(is_plain(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        return depth < 20 and all(is_plain(item, depth + 1) for item in value)
    return value is None or isinstance(value, str | bytes | int | float | bool)


def with_history(
    found: Sequence[Oversize],
    messages: Sequence[Message],
    excerpt: Excerpt,
    count: Count,
) -> list[Oversize]:
    """Add the results of earlier turns, where together they are larger than they may be.

    What these keep is `kept_history`'s to say.
    """
    limit = excerpt.history_max_tokens
    turn = _current_turn(messages)
    if limit is None or turn == 0:
        return list(found)
    chosen = {one.index: one for one in found}
    results = [i for i in range(turn) if role(messages[i]) is Role.TOOL]
    sizes = {i: count(messages[i]) for i in results}
    caps = {i: one.cap for i, one in chosen.items() if one.cap is not None}
    if sum(min(size, caps.get(i, size)) for i, size in sizes.items()) <= limit:
        return list(found)
    asked, said = _asked(messages, results), _said(messages)
    for i, size in sizes.items():
        named = asked[i] or [Asked("", "")]
        if any(excerpt.cap(one.tool) is None for one in named) or size <= LEAST_TOKENS:
            continue
        if _is_placeholder(messages[i]):
            continue
        base = chosen.get(i) or Oversize(i, messages[i], Why.HISTORY, _task(said, named))
        chosen[i] = replace(base, why=Why.HISTORY, cap=min(base.cap or size, size))
    return [chosen[i] for i in sorted(chosen)]


def kept_history(
    found: Sequence[Oversize], ranking: Sequence[int], excerpt: Excerpt, count: Count
) -> list[Oversize]:
    """Share out half of what earlier results may have, the best first; the others collapse.

    `ranking` names those that answer the task, among the ones of this reason; where it names none,
    the newest are the best.
    """
    older = [one for one in found if one.why is Why.HISTORY]
    order = [older[place] for place in dict.fromkeys(ranking)] or older[::-1]
    room = (excerpt.history_max_tokens or 0) // 2
    rooms: dict[int, int] = {}
    for one in order:
        size = count(one.message)
        # An excerpt is not cut again: it stays or collapses.
        least = size if is_cut(one.message) else min(size, LEAST_TOKENS)
        if room >= least:
            rooms[one.index] = min(one.cap or size, room)
            room -= min(size, rooms[one.index])
    decided = []
    for one in found:
        if one.why is not Why.HISTORY:
            decided.append(one)
        elif one.index not in rooms:
            decided.append(replace(one, cap=LEAST_TOKENS, collapses=True))
        elif left := _uncollapsed(one, rooms[one.index], count):
            decided.append(left)
    return decided


def without_history(found: Sequence[Oversize], count: Count) -> list[Oversize]:
    """Return what is to be shortened where nobody says what the earlier results keep together."""
    decided = []
    for one in found:
        left = one if one.why is not Why.HISTORY else _uncollapsed(one, one.cap or 0, count)
        if left is not None:
            decided.append(left)
    return decided


def _uncollapsed(one: Oversize, cap: int, count: Count) -> Oversize | None:
    """Return what of an earlier result is to be shortened to a cap; None where nothing is."""
    if cap < count(one.message):
        return replace(one, cap=cap)
    if one.media or one.artifact:
        return replace(one, cap=None, why=Why.MEDIA if one.media else Why.ARTIFACT)
    return None


def _is_placeholder(message: Message) -> bool:
    """Tell whether nothing but the line is left."""
    if not is_cut(message):
        return False
    left = (without_line(text).strip(' \n."[]{}:,') for _, text in texts_at(message))
    return not any(left)


def _task(said: tuple[str, str], asked: Sequence[Asked]) -> Task:
    arguments = "\n".join(one.arguments for one in asked)
    question, earlier = said
    return Task(question, arguments, earlier, ", ".join(one.tool for one in asked))


def _said(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the newest human message, and the end of what was said before and after it."""
    turn = _current_turn(messages)
    question = plain_text(messages[turn]) if messages and starts_turn(messages[turn]) else ""
    found: list[str] = []
    room = _EARLIER
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if room <= 0:
            break
        if index != turn and role(message) in (Role.HUMAN, Role.AI) and not is_summary(message):
            text = plain_text(message)[-room:]
            found.append(text)
            room -= len(text)
    return question, "\n".join(reversed(found))


def _asked(messages: Sequence[Message], results: Sequence[int]) -> dict[int, list[Asked]]:
    """Return what each of these results answers: the newest call before it with its id."""
    wanted, calls = set(results), dict[str, Asked]()
    found: dict[int, list[Asked]] = {index: [] for index in results}
    for index, message in enumerate(messages[: max(results, default=-1) + 1]):
        speaker = role(message)
        if speaker is Role.AI:
            calls.update(_calls(message))
        elif speaker is Role.TOOL and index in wanted:
            for answer in answers(message):
                known = calls.get(answer.id, Asked("", ""))
                found[index].append(known._replace(tool=answer.name or known.tool))
    return found


def _calls(message: Message) -> Iterator[tuple[str, Asked]]:
    listed = read(message, "tool_calls")
    items = listed if isinstance(listed, list | tuple) else []
    for item in items or [block for block in blocks(message) if _kind(block) in _CALLS]:
        named = read(item, "function") or item
        given = (read(named, key) for key in ("args", "arguments", "input"))
        arguments = next((value for value in given if value is not None), "")
        key, name = read(item, "id") or read(item, "call_id"), read(named, "name")
        yield str(key or ""), Asked(str(name or ""), str(arguments))


def _kind(block: object) -> str:
    kind = read(block, "type")
    return kind if isinstance(kind, str) else ""
