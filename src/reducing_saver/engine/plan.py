"""Decide what stays: units and a window in, a plan with reasons out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from .excerpt import Short, Why
from .messages import Message, holds_messages, is_summary, may_be_human
from .units import Kind, Unit, join, joins_across, leading, split, starts_turn
from .window import Mark, Measure, Window


class When(StrEnum):
    """Say at which point of a run a list is looked at.

    - `REST`: nothing waits to run. Crosses at `trigger`; earlier turns may leave whole, also with
      a call that was never answered.
    - `RUN`: in the middle of a run. Crosses only above `cap`; a unit with an open call stays.
    - `RESUME`: the first step of a resumed run. Crosses at `trigger`; a unit with an open call
      stays.

    Above `cap` the current turn may be split between units in all three.
    """

    REST = "rest"
    RUN = "run"
    RESUME = "resume"


class Verdict(StrEnum):
    """Say what happens to a unit."""

    KEEP = "keep"
    EXCERPT = "excerpt"
    EVICT = "evict"


class Reason(StrEnum):
    """Say why a unit stays or goes."""

    LEADING = "leading system message"
    SUMMARY = "summary"
    CURRENT = "current turn"
    LAST = "last message"
    PINNED = "pinned"
    FIRST_HUMAN = "first human message"
    LATEST = "newest of its tool"
    OPEN = "waits for a tool result"
    QUESTION = "human message of a kept unit"
    WITHIN = "within keep"
    BELOW = "nothing passed"
    OLDER = "older than keep"
    HALF = "above half of a trigger"
    ABOVE_CAP = "above cap"
    OVERSIZE = Why.OVERSIZE.value
    HISTORY = Why.HISTORY.value
    MEDIA = Why.MEDIA.value
    ARTIFACT = Why.ARTIFACT.value

    @property
    def verdict(self) -> Verdict:
        """Return what happens to a unit with this reason."""
        if self in (Reason.OLDER, Reason.HALF, Reason.ABOVE_CAP):
            return Verdict.EVICT
        short = self in (Reason.OVERSIZE, Reason.HISTORY, Reason.MEDIA, Reason.ARTIFACT)
        return Verdict.EXCERPT if short else Verdict.KEEP


@dataclass(frozen=True, slots=True)
class Action:
    """Hold what happens to one unit, and why."""

    unit: Unit
    verdict: Verdict
    reason: Reason


@dataclass(frozen=True)
class Plan:
    """Hold what a window does to a list; nothing is changed by it.

    `passed` are the marks that were passed, empty when none was. `stuck` means that the list
    stays above one of them: what is left is pinned or the current turn. `shorter` are excerpts of
    messages, by position; those of messages that leave are not used. Printable. Units, actions
    and sizes are worked out when they are asked for.
    """

    messages: Sequence[Message]
    window: Window
    when: When
    passed: tuple[Mark, ...] = ()
    stuck: bool = False
    _cut: range | None = field(default=None, repr=False)
    _decided: tuple[tuple[Unit, ...], tuple[Reason, ...]] | None = field(default=None, repr=False)
    _room: Mapping[Measure, int] = field(default_factory=dict, repr=False)
    shorter: Mapping[int, Short] = field(default_factory=dict, repr=False)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Return the units of the list."""
        if self._decided is not None:
            return self._decided[0]
        return tuple(split(self.messages)) if isinstance(self.messages, list) else ()

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """Return one action for each unit, in order."""
        if self._decided is not None:
            reasons = self._decided[1]
        elif self._cut:
            small = tuple(_with_excerpts(unit, self.shorter) for unit in self.units)
            decision = _Decision(small, self.window, self.when, self.passed, room=self._room)
            reasons = decision.reasons()
        else:
            reasons = (Reason.BELOW,) * len(self.units)
        pairs = zip(self.units, reasons, strict=True)
        return tuple(self._action(unit, reason) for unit, reason in pairs)

    def _action(self, unit: Unit, reason: Reason) -> Action:
        shorter = next((self.shorter[i] for i in unit.indices if i in self.shorter), None)
        if shorter and reason.verdict is Verdict.KEEP:
            reason = Reason(shorter.why)
        return Action(unit, reason.verdict, reason)

    @cached_property
    def changes(self) -> bool:
        """Tell whether anything leaves."""
        return bool(self._cut) or (self._decided is not None and bool(self.evicted))

    @cached_property
    def leaving(self) -> tuple[Message, ...]:
        """Return the messages that leave, in order."""
        if self._cut:
            return tuple(self.messages[self._cut.start : self._cut.stop])
        return tuple(join(self.evicted)) if self.changes else ()

    @property
    def leaving_at(self) -> Sequence[int]:
        """Return the positions of the messages that leave, ascending."""
        if self._cut:
            return self._cut
        return sorted(index for unit in self.evicted for index in unit.indices)

    @property
    def staying(self) -> list[Message]:
        """Return a new list of the messages that stay; the same list object where all do.

        An excerpt stands in the place of its message.
        """
        if not self.changes and not self.shorter:
            return self.messages  # type: ignore[return-value]
        messages = shortened(self.messages, self.shorter)
        if self._cut:
            return [*messages[: self._cut.start], *messages[self._cut.stop :]]
        gone = {index for unit in self.evicted for index in unit.indices} if self.changes else ()
        return [message for index, message in enumerate(messages) if index not in gone]

    @cached_property
    def excerpted(self) -> Mapping[int, Short]:
        """Return the excerpts that stay, by the positions of their messages."""
        if not self.shorter or not self.changes:
            return self.shorter
        gone = frozenset(self.leaving_at)
        return {index: short for index, short in self.shorter.items() if index not in gone}

    @cached_property
    def evicted(self) -> tuple[Unit, ...]:
        """Return the units that leave."""
        return tuple(a.unit for a in self.actions if a.verdict is Verdict.EVICT)

    @property
    def kept(self) -> tuple[Unit, ...]:
        """Return the units that stay."""
        return tuple(a.unit for a in self.actions if a.verdict is not Verdict.EVICT)

    def keeping_all(self) -> Plan:
        """Return this plan without what leaves; excerpts stay."""
        return replace(self, passed=(), stuck=False, _cut=None, _decided=None)

    def size(self, unit: Unit, measure: Measure) -> int:
        """Return the size of a unit; tokens and bytes are counted on demand and remembered."""
        return size(unit, measure, self.window)

    def total(self, measure: Measure, verdict: Verdict | None = None) -> int:
        """Return the size of all units, or of those with this verdict, as they will be stored.

        What is excerpted is kept as well.
        """
        if verdict is None:
            return sum(self.size(unit, measure) for unit in self.units)
        kept = (Verdict.KEEP, Verdict.EXCERPT) if verdict is Verdict.KEEP else (verdict,)
        return sum(self.size_left(a.unit, measure) for a in self.actions if a.verdict in kept)

    def size_left(self, unit: Unit, measure: Measure) -> int:
        """Return the size of a unit with its excerpts."""
        if not any(index in self.shorter for index in unit.indices):
            return self.size(unit, measure)
        return size(_with_excerpts(unit, self.shorter), measure, self.window)

    def __str__(self) -> str:
        lines = [self._headline()]
        width = 8 if self.shorter else 6
        for action in self.actions:
            unit = action.unit
            where = f"turn {unit.turn}" if unit.turn >= 0 else "head"
            count = len(unit.messages)
            lines.append(
                f"{action.verdict:<{width}}{where:<9}{unit.kind:<8}"
                f"{count} message{'s' if count != 1 else ''}: {action.reason}"
            )
        return "\n".join(lines)

    def _headline(self) -> str:
        if not self.passed:
            return f"nothing leaves: no mark was passed ({self.when}){self._excerpts()}"
        marks = ", ".join(f"{mark.measure} {mark.value:,}" for mark in self.passed)
        left = f"{len(self.evicted)} of {len(self.units)} units leave"
        return f"{left}: {marks} passed ({self.when}){self._excerpts()}"

    def _excerpts(self) -> str:
        return f"; {len(self.excerpted)} contents become excerpts" if self.excerpted else ""


def plan(
    messages: Sequence[Message],
    window: Window,
    *,
    when: When = When.REST,
    crossing: bool = False,
    room: Mapping[Measure, int] = MappingProxyType({}),
    shorter: Mapping[int, Short] = MappingProxyType({}),
) -> Plan:
    """Decide which units of a list stay.

    `crossing=True` takes the cap as passed, whatever the size: a list is cut down to what the
    middle of a run is cut down to. `room` is what a new summary will take at most: it is left
    free below the trigger and the cap, so that a list with its summary does not cross at once
    again. `shorter`
    are excerpts of messages, by position: they are what is counted.

    Pure and linear in the list. Tokens are counted from the tail and no further than the decision
    needs. What is no list, or holds no message, is left as it is. Raises only what a
    `token_counter` or a `pinned` predicate of the user's raises.
    """
    when = When(when)
    if not isinstance(messages, list) or not holds_messages(messages):
        return Plan(messages, window, when)
    counted = shortened(messages, shorter)
    passed = (window.cap,) if crossing else _passed(counted, window, when)
    if not passed:
        return Plan(messages, window, when, shorter=shorter)
    if when is When.REST and not crossing and (cut := _plain_cut(counted, window, room)):
        left = counted[cut.stop :]
        stuck = any(_measure(left, mark.measure, window) > mark.value for mark in passed)
        return Plan(messages, window, when, passed, stuck, cut, _room=room, shorter=shorter)
    units = tuple(split(messages))
    small = tuple(_with_excerpts(unit, shorter) for unit in units) if shorter else units
    reasons = _Decision(small, window, when, passed, crossing=crossing, room=room).reasons()
    if Reason.ABOVE_CAP in reasons and window.cap not in passed:
        passed = (*passed, window.cap)
    kept = [unit for unit, r in zip(small, reasons, strict=True) if r.verdict is Verdict.KEEP]
    stuck = any(_sum(kept, mark.measure, window) > mark.value for mark in passed)
    decided = (units, reasons)
    return Plan(messages, window, when, passed, stuck, None, decided, shorter=shorter)


def shortened(messages: Sequence[Message], shorter: Mapping[int, Short]) -> list[Message]:
    """Return a list with excerpts in it; the same list object where there are none."""
    if not shorter:
        return messages  # type: ignore[return-value]
    left = list(messages)
    for index, short in shorter.items():
        left[index] = short.message
    return left


def _with_excerpts(unit: Unit, shorter: Mapping[int, Short]) -> Unit:
    pairs = zip(unit.indices, unit.messages, strict=True)
    members = (shorter[i].message if i in shorter else message for i, message in pairs)
    return replace(unit, messages=tuple(members))


def plan_leaving(
    messages: list[Message], window: Window, positions: Collection[int], *, when: When
) -> Plan | None:
    """Return the plan in which exactly the messages at these positions leave.

    None where a unit would be split, or where something would leave that has to stay. Pure.
    """
    units, gone = tuple(split(messages)), frozenset(positions)
    leaving = [i for i, unit in enumerate(units) if not gone.isdisjoint(unit.indices)]
    if sum(len(units[i].indices) for i in leaving) != len(gone):
        return None
    decision = _Decision(units, window, when, ())
    decision.protect()
    if not decision.stays.keys().isdisjoint(leaving):
        return None
    chosen: dict[int, Reason] = {**decision.stays, **dict.fromkeys(leaving, Reason.OLDER)}
    reasons = tuple(chosen.get(i, Reason.WITHIN) for i in range(len(units)))
    return Plan(messages, window, when, (), False, None, (units, reasons))


def size(unit: Unit, measure: Measure, window: Window) -> int:
    """Return the size of a unit in a measure of the window."""
    match measure:
        case "messages":
            return len(unit.messages)
        case "turns":
            return int(unit.kind is Kind.HUMAN)
        case "tokens" | "bytes":
            sizes = window.sizes(measure)
            return sum(sizes.of(message) for message in unit.messages)


def _passed(messages: Sequence[Message], window: Window, when: When) -> tuple[Mark, ...]:
    triggers = () if when is When.RUN else window.triggers
    passed = tuple(mark for mark in triggers if exceeds(messages, mark, window))
    # The cap is never below a trigger of its measure, which then decides. What is left after
    # whole turns have gone is held against the cap in any case.
    if window.cap.measure in {mark.measure for mark in triggers}:
        return passed
    return (*passed, window.cap) if exceeds(messages, window.cap, window) else passed


def exceeds(messages: Sequence[Message], mark: Mark, window: Window) -> bool:
    """Tell whether a list is larger than a mark, leading system messages left out."""
    match mark.measure:
        case "messages":
            return len(messages) > mark.value and len(messages) - leading(messages) > mark.value
        case "turns":
            return _more_turns(messages, mark.value)
        case "tokens" | "bytes":
            sizes = window.sizes(mark.measure)
            return sizes.exceed(messages, leading(messages), mark.value)


def _more_turns(messages: Sequence[Message], limit: int) -> bool:
    turns = 0
    for message in reversed(messages):
        # Most are no human's, which their class alone tells: this runs over every message.
        if may_be_human(message) and starts_turn(message):
            turns += 1
            if turns > limit:
                return True
    return False


def _measure(messages: Sequence[Message], measure: Measure, window: Window) -> int:
    match measure:
        case "messages":
            return len(messages)
        case "turns":
            return sum(map(starts_turn, messages))
        case "tokens" | "bytes":
            return sum(map(window.sizes(measure).of, messages))


def _limits(window: Window, room: Mapping[Measure, int], *, over_cap: bool) -> dict[Measure, int]:
    """Return what must be left at most: keep, and half of the marks in other measures."""
    limits: dict[Measure, int] = {window.keep.measure: window.keep.value}
    for mark in (*window.triggers, *((window.cap,) if over_cap else ())):
        most = max(0, mark.value - room.get(mark.measure, 0))
        if mark.measure != window.keep.measure:
            most = min(most, mark.value // 2)
        limits[mark.measure] = min(most, limits.get(mark.measure, most))
    return limits


def _plain_cut(
    messages: list[Message], window: Window, room: Mapping[Measure, int]
) -> range | None:
    """Return what leaves where it is one plain range, found from the tail; None where it is not.

    The same decision as `_Decision` makes, which a property test compares, without looking into
    the many messages that leave. It is not plain where something is pinned, where a result
    answers a call across the cut, or where the rest is still above the cap.
    """
    if window.pin_first_human or window.pinned or window.keep_latest_of:
        return None
    lead = leading(messages)
    start = _oldest_kept_turn(messages, lead, window, room)
    if start <= lead:
        return None
    left, measure = messages[start:], window.cap.measure
    if _measure(left, measure, window) + room.get(measure, 0) > window.cap.value:
        return None
    # Also in the turn that did not fit: a late result there counts for the turn of its call.
    first = _turn_before(messages, start, lead)
    if is_summary(messages[lead]) or joins_across(messages[first:], start - first):
        return None
    return range(lead, start)


def _turn_before(messages: list[Message], start: int, lead: int) -> int:
    return next((i for i in range(start - 1, lead, -1) if starts_turn(messages[i])), lead)


def _oldest_kept_turn(
    messages: list[Message], lead: int, window: Window, room: Mapping[Measure, int]
) -> int:
    # Without the cap among the limits: where it has a measure of its own and is passed, the rest
    # is held to half of it, which is left to `_Decision`.
    limits = _limits(window, room, over_cap=False)
    if window.cap.measure not in limits and exceeds(messages, window.cap, window):
        return lead
    used = dict.fromkeys(limits, 0)
    start, full = 0, False
    for index in range(len(messages) - 1, lead - 1, -1):
        message = messages[index]
        begins = starts_turn(message)
        for measure, limit in limits.items():
            used[measure] += _size(message, measure, window, begins)
            full = full or used[measure] > limit
        if start and full:
            return start
        if begins:
            start = index
    return lead


def _size(message: Message, measure: Measure, window: Window, begins: bool) -> int:
    match measure:
        case "messages":
            return 1
        case "turns":
            return int(begins)
        case "tokens" | "bytes":
            return window.sizes(measure).of(message)


def _sum(units: Iterable[Unit], measure: Measure, window: Window) -> int:
    counted = (unit for unit in units if not (unit.turn < 0 and unit.kind is Kind.SYSTEM))
    return sum(size(unit, measure, window) for unit in counted)


class _Decision:
    """Give every unit its reason, in three steps: what must stay, whole turns, the current turn."""

    def __init__(
        self,
        units: tuple[Unit, ...],
        window: Window,
        when: When,
        passed: tuple[Mark, ...],
        *,
        crossing: bool = False,
        room: Mapping[Measure, int] = MappingProxyType({}),
    ) -> None:
        self.bound = window.cap.value // 2 if crossing else window.cap.value
        self.units, self.window, self.when = units, window, when
        summary = [unit for unit in units if unit.turn < 0 and unit.kind is Kind.SUMMARY]
        # The summary that is there is counted with what is kept, and the new one takes its place.
        self.room = {m: max(0, n - _sum(summary, m, window)) for m, n in room.items()}
        self.current = max((unit.turn for unit in units), default=0)
        self.over_cap = window.cap in passed
        self.stays: dict[int, Reason] = {}
        self.goes: dict[int, Reason] = {}
        self.questions = {u.turn: i for i, u in enumerate(units) if u.kind is Kind.HUMAN}

    def reasons(self) -> tuple[Reason, ...]:
        self.protect()
        self._evict_turns()
        if self._above_bound():
            self._split_current_turn()
        self._let_older_summaries_go()
        default = Reason.CURRENT
        chosen = (self.goes.get(i) or self.stays.get(i) for i in range(len(self.units)))
        return tuple(reason or default for reason in chosen)

    def protect(self) -> None:
        """Note what has to stay."""
        last = max(range(len(self.units)), key=lambda i: self.units[i].indices[-1])
        newest = self.questions.get(self.current, self._newest_spoken())
        if newest is not None:
            self.stays[newest] = Reason.CURRENT
        for i, unit in enumerate(self.units):
            if unit.turn < 0:
                self.stays[i] = Reason.SUMMARY if unit.kind is Kind.SUMMARY else Reason.LEADING
            elif i == last:
                self._stay(i, Reason.CURRENT if unit.turn == self.current else Reason.LAST)
            elif unit.open and (self.when is not When.REST or unit.turn == self.current):
                self._stay(i, Reason.OPEN)
            elif self._pinned(unit):
                self._stay(i, Reason.PINNED)
        for i in self._latest():
            self._stay(i, Reason.LATEST)
        if self.window.pin_first_human and self.questions:
            self._stay(self.questions[min(self.questions)], Reason.FIRST_HUMAN)

    def _newest_spoken(self) -> int | None:
        silent = (Kind.SYSTEM, Kind.OTHER)
        places = range(len(self.units) - 1, -1, -1)
        return next((i for i in places if self.units[i].kind not in silent), None)

    def _stay(self, index: int, reason: Reason) -> None:
        self.stays.setdefault(index, reason)
        question = self.questions.get(self.units[index].turn)
        if question is not None:
            self.stays.setdefault(question, Reason.QUESTION)

    def _pinned(self, unit: Unit) -> bool:
        for pin in self.window.pinned:
            if isinstance(pin, str):
                if pin in unit.tools:
                    return True
            elif any(map(pin, unit.messages)):
                return True
        return False

    def _latest(self) -> Iterator[int]:
        wanted = set(self.window.keep_latest_of)
        for i in range(len(self.units) - 1, -1, -1):
            if not wanted:
                return
            if found := wanted.intersection(self.units[i].tools):
                wanted -= found
                yield i

    def _evict_turns(self) -> None:
        """Let whole earlier turns go, oldest first, until what is left is within the limits."""
        limits = _limits(self.window, self.room, over_cap=self.over_cap)
        fixed = [u for i, u in enumerate(self.units) if i in self.stays or u.turn == self.current]
        used = {measure: _sum(fixed, measure, self.window) for measure in limits}
        passed: Measure | None = None
        for turn in self._earlier_turns():
            for measure, limit in limits.items():
                if passed is None:
                    used[measure] += sum(size(self.units[i], measure, self.window) for i in turn)
                    passed = measure if used[measure] > limit else None
            if passed is None:
                self.stays.update(dict.fromkeys(turn, Reason.WITHIN))
            else:
                reason = Reason.OLDER if passed == self.window.keep.measure else Reason.HALF
                self.goes.update(dict.fromkeys(turn, reason))

    def _earlier_turns(self) -> Iterator[list[int]]:
        """Yield the free units of each earlier turn, newest turn first."""
        turns: dict[int, list[int]] = {}
        for i, unit in enumerate(self.units):
            if i not in self.stays and 0 <= unit.turn < self.current:
                turns.setdefault(unit.turn, []).append(i)
        for turn in sorted(turns, reverse=True):
            yield turns[turn]

    def _above_bound(self) -> bool:
        """Tell whether what is left of whole turns is too much, with its new summary."""
        most = self._below_cap() if self.goes else self.window.cap.value
        return self._kept(self.window.cap.measure) > min(self.bound, most)

    def _below_cap(self) -> int:
        """Return what may be left of the cap where a new summary comes."""
        measure, most = self.window.cap
        return max(0, most - self.room.get(measure, 0))

    def _split_current_turn(self) -> None:
        """Let units of the current turn go, oldest first, down to half of the cap."""
        measure, cap = self.window.cap
        left, most = self._kept(measure), min(cap // 2, self._below_cap())
        headed = False
        for i, unit in enumerate(self.units):
            # A later system message left at the head would stay for ever, one for each cut.
            would_lead = unit.kind is Kind.SYSTEM and not headed
            if left <= most and not would_lead:
                return
            if unit.turn == self.current and i not in self.stays:
                left -= size(unit, measure, self.window)
                self.goes[i] = Reason.ABOVE_CAP
            elif i not in self.goes:
                headed = headed or self.stays.get(i) is not Reason.LEADING

    def _let_older_summaries_go(self) -> None:
        """Let the summary at the head go where the cut has left a newer one right behind it."""
        head = [i for i, reason in self.stays.items() if reason is Reason.SUMMARY]
        behind = range(max(head, default=0) + 1, len(self.units))
        following = next((i for i in behind if i not in self.goes), None)
        if head and following is not None and self.units[following].kind is Kind.SUMMARY:
            self.goes.update(dict.fromkeys(head, Reason.OLDER))

    def _kept(self, measure: Measure) -> int:
        kept = (unit for i, unit in enumerate(self.units) if i not in self.goes)
        return _sum(kept, measure, self.window)
