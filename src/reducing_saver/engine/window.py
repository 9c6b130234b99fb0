"""Say what to keep: marks in messages, turns, tokens or bytes, and what is pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from langchain_core.messages import HumanMessage

from .._errors import WindowError
from .counters import Counter, approximate, count_bytes, tiktoken_counter
from .messages import Message
from .sizes import Sizes

Measure: TypeAlias = Literal["messages", "turns", "tokens", "bytes"]
Pin: TypeAlias = str | Callable[[Message], bool]

MEASURES: tuple[Measure, ...] = get_args(Measure)
MESSAGES_PER_TURN = 40
"""What the cap allows a turn when the trigger is in turns."""

MEDIA_TOKENS = 85
"""The flat cost of an image, audio or file: what LangChain takes for an image."""

_LARGEST = 10**12
# To tell which of several triggers is the largest, in rough tokens.
_ROUGH_TOKENS = {"messages": 100.0, "turns": 4_000.0, "tokens": 1.0, "bytes": 0.25}


class Mark(NamedTuple):
    """Set a level in one measure, as `("tokens", 4000)`."""

    measure: Measure
    value: int


MarkLike: TypeAlias = Mark | tuple[str, int]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Window:
    """Say how much of a message list stays: `keep`, from which size on: `trigger`, at most: `cap`.

    Marks are `(measure, value)` with the measures `messages`, `turns`, `tokens` and `bytes`, and
    count everything but the leading system messages. Nothing leaves until a trigger is passed;
    then whole turns go, oldest first, until at most `keep` is left, and at most half of each
    trigger that is in another measure. The current turn is never
    split before the list is larger than `cap`.

    - `trigger`: one mark or several (any of them); twice `keep` by default, so that evictions
      are rare and prompt caches stay warm.
    - `cap`: in messages, tokens or bytes; four times the trigger by default (40 messages a turn
      for a trigger in turns): the hard bound within one long run.
    - `pin_first_human`: the first human message stays.
    - `pinned`: names of tools, or predicates on a message, whose units stay with the human message
      of their turn.
    - `keep_latest_of`: names of tools whose newest unit stays, as a to-do list needs.
    - `token_counter`: `"approximate"` (LangChain's, four characters a token), `"tiktoken"`, or any
      function of one message.
    - `media_tokens`: the flat cost of an image, audio or file for the two named counters; 85 is
      what LangChain takes for an image.

    Raises `WindowError` (a `ValueError`) that names the field, the value and what is allowed.
    A window may be shared between savers and threads; it remembers the sizes of messages.
    """

    keep: Mark
    triggers: tuple[Mark, ...]
    cap: Mark
    pin_first_human: bool
    pinned: tuple[Pin, ...]
    keep_latest_of: tuple[str, ...]
    token_counter: str | Counter
    media_tokens: int
    _tokens: Sizes = field(compare=False)
    _bytes: Sizes = field(compare=False)

    def __init__(
        self,
        keep: MarkLike,
        trigger: MarkLike | Sequence[MarkLike] | None = None,
        cap: MarkLike | None = None,
        *,
        pin_first_human: bool = False,
        pinned: Pin | Sequence[Pin] = (),
        keep_latest_of: str | Sequence[str] = (),
        token_counter: str | Counter = "approximate",
        media_tokens: int = MEDIA_TOKENS,
    ) -> None:
        low = _mark("keep", keep)
        high = _triggers(trigger, low)
        hard = _cap(cap, low, high)
        if not isinstance(pin_first_human, bool):
            raise WindowError("pin_first_human", pin_first_human, "True or False")
        values = {
            "keep": low,
            "triggers": high,
            "cap": hard,
            "pin_first_human": pin_first_human,
            "pinned": _pins(pinned),
            "keep_latest_of": _names(keep_latest_of),
            "token_counter": token_counter,
            "media_tokens": _number("media_tokens", media_tokens, least=0),
            "_tokens": Sizes(_counter(token_counter, media_tokens)),
            "_bytes": Sizes(count_bytes),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        triggers = [tuple(mark) for mark in self.triggers]
        shown: dict[str, object] = {
            "keep": tuple(self.keep),
            "trigger": triggers if len(triggers) > 1 else triggers[0],
            "cap": tuple(self.cap),
        }
        optional = {
            "pin_first_human": (self.pin_first_human, False),
            "pinned": (self.pinned, ()),
            "keep_latest_of": (self.keep_latest_of, ()),
            "token_counter": (self.token_counter, "approximate"),
            "media_tokens": (self.media_tokens, MEDIA_TOKENS),
        }
        shown |= {name: value for name, (value, default) in optional.items() if value != default}
        return f"Window({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __reduce__(self) -> tuple[Callable[..., Window], tuple[object, ...]]:
        # Copied or sent to another process, a window counts anew.
        pins = (self.pin_first_human, self.pinned, self.keep_latest_of)
        counting = (self.token_counter, self.media_tokens)
        return _rebuilt, (self.keep, self.triggers, self.cap, *pins, *counting)

    def sizes(self, measure: Measure) -> Sizes:
        """Return the remembered sizes for a measure that is counted: tokens or bytes."""
        return self._tokens if measure == "tokens" else self._bytes


def _rebuilt(
    keep: Mark,
    triggers: tuple[Mark, ...],
    cap: Mark,
    first: bool,
    pinned: tuple[Pin, ...],
    latest: tuple[str, ...],
    counter: str | Counter,
    media: int,
) -> Window:
    return Window(
        keep,
        triggers,
        cap,
        pin_first_human=first,
        pinned=pinned,
        keep_latest_of=latest,
        token_counter=counter,
        media_tokens=media,
    )


def _mark(name: str, value: object) -> Mark:
    allowed = f'a pair such as ("tokens", 4000); measures: {", ".join(MEASURES)}'
    if isinstance(value, Mapping):
        allowed += (
            "; conditions that must all hold are not supported: "
            "give several triggers, of which any will do"
        )
        raise WindowError(name, value, allowed)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise WindowError(name, value, allowed)
    measure, number = value
    if measure == "fraction":
        allowed = 'a fixed number: a saver knows no model; use ("tokens", your share of its limit)'
        raise WindowError(name, value, allowed)
    found = next((known for known in MEASURES if known == measure), None)
    if found is None:
        raise WindowError(name, value, f"one of the measures {', '.join(MEASURES)}")
    return Mark(found, _number(name, number, least=1, shown=value))


def _number(name: str, value: object, *, least: int, shown: object = None) -> int:
    if type(value) is not int or not least <= value <= _LARGEST:
        shown = value if shown is None else shown
        what = "a whole number" if shown is value else "a measure with a whole number"
        raise WindowError(name, shown, f"{what} from {least} to {_LARGEST:,}")
    return value


def _triggers(value: object, keep: Mark) -> tuple[Mark, ...]:
    if value is None:
        return (Mark(keep.measure, 2 * keep.value),)
    several = value if isinstance(value, list | tuple) and not _is_pair(value) else (value,)
    marks = tuple(_mark("trigger", item) for item in several)
    if not marks:
        raise WindowError("trigger", value, "at least one mark, or None for twice keep")
    for mark in marks:
        if mark.measure == keep.measure and mark.value < keep.value:
            raise WindowError("trigger", tuple(mark), f"at least keep, which is {keep.value:,}")
    return marks


def _is_pair(value: Sequence[object]) -> bool:
    return len(value) == 2 and isinstance(value[0], str)


def _cap(value: object, keep: Mark, triggers: tuple[Mark, ...]) -> Mark:
    if value is None:
        return _default_cap(keep, triggers)
    cap = _mark("cap", value)
    if cap.measure == "turns":
        raise WindowError("cap", value, "a mark in messages, tokens or bytes: a turn has no bound")
    for name, mark in (("keep", keep), *(("trigger", mark) for mark in triggers)):
        if mark.measure == cap.measure and cap.value < mark.value:
            raise WindowError("cap", value, f"at least {name}, which is {mark.value:,}")
    return cap


def _default_cap(keep: Mark, triggers: tuple[Mark, ...]) -> Mark:
    largest = max(triggers, key=lambda mark: mark.value * _ROUGH_TOKENS[mark.measure])
    cap = (
        Mark("messages", MESSAGES_PER_TURN * largest.value)
        if largest.measure == "turns"
        else Mark(largest.measure, 4 * largest.value)
    )
    # A keep in the cap's measure, beside triggers in others, may be the larger one.
    low = keep.value if keep.measure == cap.measure else 0
    return cap._replace(value=max(cap.value, low))


def _pins(value: object) -> tuple[Pin, ...]:
    pins = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    for pin in pins:
        if not (callable(pin) or (isinstance(pin, str) and pin)):
            raise WindowError("pinned", value, "tool names, or functions of a message")
    return pins


def _names(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if not all(isinstance(name, str) and name for name in names):
        raise WindowError("keep_latest_of", value, "tool names")
    return names


def _counter(value: object, media_tokens: int) -> Counter:
    if value == "approximate":
        return approximate(media_tokens)
    if value == "tiktoken":
        return _tiktoken(media_tokens)
    if callable(value):
        return _tried(value)
    allowed = '"approximate", "tiktoken" or a function of a message'
    raise WindowError("token_counter", value, allowed)


def _tried(counter: Counter) -> Counter:
    """Return a user's counter after it has counted a message."""
    allowed = "a function of one message that returns a whole number, as lambda m: len(m.text)"
    for sample in (HumanMessage("x"), [HumanMessage("x")], {"role": "user", "content": "x"}):
        try:
            number = counter(sample)
        except Exception:
            # It may count other messages than this one; the last sample decides.
            continue
        if isinstance(sample, list) or type(number) is not int or number < 0:
            break
        return counter
    raise WindowError("token_counter", counter, allowed)


def _tiktoken(media_tokens: int) -> Counter:
    try:
        return tiktoken_counter(media_tokens)
    except ImportError:
        said = "tiktoken is not installed; run: pip install 'reducing-saver[tiktoken]'"
        raise WindowError("token_counter", "tiktoken", "one that is there", said=said) from None
    except Exception as error:
        # tiktoken downloads its data file when it is first used; what it raises is its client's.
        allowed = (
            "tiktoken's data file, which could not be loaded "
            f'({type(error).__name__}); set TIKTOKEN_CACHE_DIR, or use "approximate"'
        )
        raise WindowError("token_counter", "tiktoken", allowed) from error
