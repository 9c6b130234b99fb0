"""Make a content shorter: verbatim parts of it, and one line that says what is left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from .contents import Path, inline, media_at, replaced, text_block, texts_at, with_fields
from .counters import count_bytes
from .excerpt import Count, Excerpt, KeyOf, Oversize, Short, line, marked, whole_key
from .messages import Message
from .oversize import find, kept_history, with_history
from .parts import GAP, Part, Shape, cut, leaves, overhead, render

_SHARE = 6
"""A part has at most so small a share of the room, so that several fit."""

_RECORD_SHARE = 1.3
"""A record is taken apart where it has more of the room than one in so many."""

_LEAST_PART, _MOST_PART = 40, 1_200
_TRIES = 8


class Cut:
    """Hold a content in parts, of which a selector says which are worth keeping.

    `key` is the one under which the whole is kept.
    """

    def __init__(self, oversize: Oversize, count: Count, key: str | None = None) -> None:
        self.oversize = oversize
        self.key = whole_key(oversize.message) or key
        self._count = count
        self._whole = count(oversize.message)
        self._texts = texts_at(oversize.message) if oversize.cap is not None else []
        self._length = sum(len(text) for _, text in self._texts)
        self._room = self._first_room()
        size = min(_MOST_PART, max(_LEAST_PART, self._room // _SHARE))
        self._most_record = max(size, int(self._room / _RECORD_SHARE))
        self._trees = [cut(text, size) for _, text in self._texts]
        self._leaves = [
            (slot, part, above)
            for slot, tree in enumerate(self._trees)
            for part, above in leaves(tree)
        ]

    @cached_property
    def _records(self) -> list[tuple[int, Part, range]]:
        return self._find_records()

    @property
    def parts(self) -> list[str]:
        """Return the text of each part, in order: lines, records, or members of a large record.

        Before a part in JSON stands what it is in: the names of the members around it.
        """
        return [self._said(slot, part, place[0]) for slot, part, place in self._records]

    def _said(self, slot: int, part: Part, leaf: int) -> str:
        text, above = self._texts[slot][1], self._leaves[leaf][2]
        around = [one for one in above[1:] if one.start <= part.start and one is not part]
        names = [text[one.start : one.head] for one in around if one.shape is not Shape.LINES]
        return "".join([*names, text[part.start : part.end]])

    def _find_records(self) -> list[tuple[int, Part, range]]:
        """Return the largest parts of which several fit, each with its leaves."""
        found: list[tuple[int, Part, range]] = []
        for place, (slot, part, above) in enumerate(self._leaves):
            fits = (p for p in (*above[1:], part) if p.end - p.start <= self._most_record)
            record = next(fits, part)
            if found and found[-1][0] == slot and found[-1][1] is record:
                found[-1] = (slot, record, range(found[-1][2].start, place + 1))
            else:
                found.append((slot, record, range(place, place + 1)))
        return found

    def shorten(self, ranking: Sequence[int] = ()) -> Short | None:
        """Return the message with the parts that come first in a ranking, as many as fit.

        Parts that are not named come last, from both ends. None where nothing gets smaller.
        """
        original, cap = self.oversize.message, self.oversize.cap
        changed = self._without_bytes(original)
        cuts = cap is not None and bool(self._leaves)
        if cap is not None and cuts:
            changed = self._fitted(changed, ranking, cap)
        if changed is original:
            return None
        short = marked(changed, self.key, cut=cuts)
        saved = self._whole - self._count(short)
        # Nobody knows how large an artifact is that is no plain data.
        grown = not self.oversize.artifact and count_bytes(short) >= count_bytes(original)
        if saved < 0 or grown:
            return None
        return Short(short, self.oversize.why, saved)

    def _first_room(self) -> int:
        """Estimate how many characters of text there is room for."""
        cap = self.oversize.cap
        if cap is None:
            return 0
        bare = self._count(self._with_texts(self.oversize.message, [""] * len(self._texts)))
        per_token = self._length / max(1, self._whole - bare)
        return max(0, int((cap - bare) * per_token) - len(line(self._whole, self._whole, self.key)))

    def _with_texts(self, message: Message, texts: Sequence[str]) -> Message:
        values = {path: text for (path, _), text in zip(self._texts, texts, strict=True)}
        return (replaced(message, values) if values else message) or message

    def _fitted(self, base: Message, ranking: Sequence[int], cap: int) -> Message:
        """Return the message with as many parts as fit: what a token is nobody tells beforehand."""
        order = [] if self.oversize.collapses else self._order(ranking)
        least, most, room = 0, self._length, self._room
        best = self._rendered(base, self._choose(order, 0))
        for _ in range(_TRIES):
            trial = self._rendered(base, self._choose(order, room))
            size = self._count(trial)
            if size <= cap:
                best, least = trial, room
            else:
                most = room
            if least >= most - _LEAST_PART or 0.97 * cap < size <= cap:
                break
            guess = int(room * cap / max(1, size))
            room = guess if least < guess < most else (least + most) // 2
        return best

    def _order(self, ranking: Sequence[int]) -> list[int]:
        """Return every leaf once: those of the ranked records, then the others from both ends."""
        known = (place for place in ranking if 0 <= place < len(self._records))
        named = dict.fromkeys(leaf for place in known for leaf in self._records[place][2])
        rest = (leaf for leaf in both_ends(len(self._leaves)) if leaf not in named)
        return [*named, *rest]

    def _choose(self, order: Sequence[int], room: int) -> set[int]:
        """Take parts in this order while there is room, with what they stand in."""
        chosen: set[int] = set()
        opened: set[tuple[int, int, int]] = set()
        left = room
        for place in order:
            slot, part, above = self._leaves[place]
            around = {(slot, one.start, one.head): overhead(one) for one in above}
            cost = part.end - part.start + len(GAP) + 1
            cost += sum(size for name, size in around.items() if name not in opened)
            if cost <= left:
                left -= cost
                chosen.add(place)
                opened.update(around)
            elif left < _LEAST_PART:
                break
        return chosen

    def _rendered(self, base: Message, chosen: set[int]) -> Message:
        starts: list[set[int]] = [set() for _ in self._trees]
        for place in chosen:
            slot, part, _ = self._leaves[place]
            starts[slot].add(part.start)
        cut_slots = [i for i, tree in enumerate(self._trees) if _is_cut(tree, starts[i])]
        last = cut_slots[-1] if cut_slots else -1

        def written(line: str) -> Message:
            texts = [
                render(text, tree, starts[i], line if i == last else None)
                if i in cut_slots
                else text
                for i, ((_, text), tree) in enumerate(zip(self._texts, self._trees, strict=True))
            ]
            return self._with_texts(base, texts)

        trial = self._count(written(line(self._whole, self._whole, self.key)))
        return written(line(max(0, self._whole - trial), self._whole, self.key))

    def _without_bytes(self, message: Message) -> Message:
        """Return the message without the bytes of its media, and without its artifact."""
        if self.oversize.media:
            values: dict[Path, object] = {}
            for path, block in media_at(message):
                if found := inline(block):
                    where = f"; kept whole as {self.key}" if self.key else ""
                    said = f"{found.mime} left out: {found.size:,} bytes, sha256 {found.digest}"
                    values[path] = text_block(block, f"[{said}{where}]")
            message = (replaced(message, values) if values else None) or message
        if self.oversize.artifact:
            message = with_fields(message, {"artifact": None}) or message
        return message


def stand_in(one: Oversize, count: Count) -> Short:
    """Return something as large as the excerpt will be, to plan with; it is never stored."""
    message = one.message
    if one.cap is None:
        return Short(message, one.why)
    share = min(1.0, one.cap / max(1, count(message)))
    values = {path: text[: int(len(text) * share)] for path, text in texts_at(message)}
    return Short(replaced(message, values) or message, one.why)


def shorten(
    messages: Sequence[Message],
    excerpt: Excerpt,
    count: Count,
    *,
    running: bool = False,
    key_of: KeyOf = lambda message: None,
) -> dict[int, Short]:
    """Return the shorter messages of a list, by position: head and tail of what is too large. Pure.

    `key_of` names where the whole of a message is kept.
    """
    found = {}
    oversize = find(messages, excerpt, count, running=running)
    if not running:
        oversize = with_history(oversize, messages, excerpt, count)
        oversize = kept_history(oversize, (), excerpt, count)
    for one in oversize:
        if short := Cut(one, count, key_of(one.message)).shorten():
            found[one.index] = short
    return found


def both_ends(count: int) -> list[int]:
    """Return positions from both ends: two of the head for each one of the tail."""
    order: list[int] = []
    head, tail = 0, count - 1
    while head <= tail:
        take_tail = len(order) % 3 == 2
        order.append(tail if take_tail else head)
        head, tail = (head, tail - 1) if take_tail else (head + 1, tail)
    return order


def _is_cut(tree: Part, chosen: set[int]) -> bool:
    return any(part.start not in chosen for part, _ in leaves(tree))
