"""Say which contents are stored as excerpts, and know an excerpt when one comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias, get_args

from langchain_core.messages import BaseMessage

from .._errors import ConfigurationError
from .contents import texts_at, with_fields
from .messages import Message
from .messages import field as read

Media: TypeAlias = Literal["keep", "older", "all"]
Count: TypeAlias = Callable[[Message], int]
KeyOf: TypeAlias = Callable[[Message], str | None]

EXCERPT_KEY = "reducing_saver_excerpt"
"""Key in `additional_kwargs` under which an excerpt carries what it was made of."""

LEAST_TOKENS = 64
"""A smaller cap would have no room for anything but the line that says what is left out."""

_MEDIA: tuple[Media, ...] = get_args(Media)
_LINE = re.compile(
    r"\[excerpt: [\d,]+ of [\d,]+ tokens left out(?:; kept whole as ([0-9a-f.-]+))?\]"
)


class Why(StrEnum):
    """Say why a content is shortened."""

    OVERSIZE = "larger than its cap"
    HISTORY = "does not answer the current task"
    MEDIA = "media of an earlier turn"
    ARTIFACT = "artifact"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Say which contents are stored as excerpts, and how large these are at most.

    A tool result above `max_tokens` is stored as verbatim parts of itself with a line that says
    how much is left out. Everything else of the message stays, and what gets no smaller stays
    whole. JSON stays valid JSON.

    - `spare_last`: so many of the newest tool results stay whole while their turn runs.
    - `include`, `exclude`: names of tools: only these, all but these. `caps`: other caps by name.
    - `never`: tools whose results are never cut, as those that cannot be had again.
    - `humans`: also the text of human messages.
    - `artifact`: what a tool keeps beside its content: `"keep"`, `"drop"`, or the bytes it may have
      (what is no plain data counts as more). Also of spared results, and in pending writes; not of
      tools that are `never` cut.
    - `media`: `"older"` replaces images, audio and files in earlier turns, where their bytes stand
      in the message, by their type, size and hash; `"all"` also those of the current turn. Human
      messages that follow each other are of one turn here: an image, then the question.
    - `history_max_tokens`: where the tool results of earlier turns together are larger, only those
      that answer the current task stay, as excerpts; of the others the line alone.
    - `writes`: also in pending writes, which only a run that was broken off reads; where tools are
      chosen by name, a result needs a name of its own there.

    Raises `ConfigurationError`, which names the field, the value and what is allowed.
    """

    max_tokens: int = 2_000
    spare_last: int = field(default=3, kw_only=True)
    include: tuple[str, ...] | None = field(default=None, kw_only=True)
    exclude: tuple[str, ...] = field(default=(), kw_only=True)
    caps: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    never: tuple[str, ...] = field(default=(), kw_only=True)
    humans: bool = field(default=False, kw_only=True)
    artifact: Literal["keep", "drop"] | int = field(default="keep", kw_only=True)
    media: Media = field(default="keep", kw_only=True)
    history_max_tokens: int | None = field(default=None, kw_only=True)
    writes: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, least=LEAST_TOKENS)
        _whole("spare_last", self.spare_last, least=0)
        for name in ("include", "exclude", "never"):
            object.__setattr__(self, name, _tools(name, getattr(self, name)))
        object.__setattr__(self, "caps", _caps(self.caps))
        for name in ("humans", "writes"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(name, getattr(self, name), "True or False")
        if self.artifact not in ("keep", "drop"):
            _whole("artifact", self.artifact, least=0, also='"keep", "drop" or ')
        if self.media not in _MEDIA:
            raise ConfigurationError("media", self.media, '"keep", "older" or "all"')
        if self.history_max_tokens is not None:
            _whole("history_max_tokens", self.history_max_tokens, least=LEAST_TOKENS)
        both = {*self.exclude, *self.never}.intersection(self.include or ())
        if both:
            raise ConfigurationError("include", self.include, f"without {sorted(both)}, left out")

    def cap(self, tool: str) -> int | None:
        """Return the cap for what this tool returns; None where it stays whole."""
        if tool in self.never or tool in self.exclude:
            return None
        if tool in self.caps:
            return self.caps[tool]
        return self.max_tokens if self.include is None or tool in self.include else None

    def least(self) -> int:
        """Return the smallest cap."""
        return min((self.max_tokens, *self.caps.values()))


class Task(NamedTuple):
    """Hold what the parts worth keeping have to answer.

    That is the newest human message, the arguments of the call, and what the person and the agent
    said before (its end), with the name of the tool.
    """

    question: str = ""
    arguments: str = ""
    earlier: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Oversize:
    """Name what of one message is to be shortened: the text to a cap, the media, the artifact.

    `collapses` where nothing of the text is kept but the line.
    """

    index: int
    message: Message
    why: Why
    task: Task = field(default_factory=Task)
    cap: int | None = None
    media: bool = False
    artifact: bool = False
    collapses: bool = False


class Short(NamedTuple):
    """Hold a shorter message, why it is, and how many tokens it saves."""

    message: Message
    why: Why
    saved: int = 0


def is_excerpt(message: Message) -> bool:
    """Tell whether this is an excerpt of ours.

    A message of LangChain is known by its mark, which no tool writes; a dict by its line.
    """
    return _mark(message) is not None


def is_cut(message: Message) -> bool:
    """Tell whether the text of a message is an excerpt, which is never cut again."""
    mark = _mark(message)
    return mark is not None and bool(mark.get("cut"))


def whole_key(message: Message) -> str | None:
    """Return the key under which the whole of an excerpt is archived, or None."""
    mark = _mark(message)
    key = mark.get("key") if mark else None
    return key if isinstance(key, str) else None


def marked_key(message: Message) -> str | None:
    """Return the key in the mark of an excerpt; never one of a line, which anybody may write."""
    extra = read(message, "additional_kwargs")
    mark = extra.get(EXCERPT_KEY) if isinstance(extra, dict) else None
    key = mark.get("key") if isinstance(mark, dict) else None
    return key if isinstance(key, str) else None


def _mark(message: Message) -> Mapping[str, object] | None:
    """Return what an excerpt carries; None where it is none."""
    extra = read(message, "additional_kwargs")
    if extra and isinstance(extra, dict) and isinstance(mark := extra.get(EXCERPT_KEY), dict):
        return mark
    if isinstance(message, BaseMessage) or isinstance(extra, dict):
        return None
    found = (_LINE.search(text) for _, text in texts_at(message))
    line = next((one for one in found if one), None)
    return {"key": line[1], "cut": True} if line else None


def line(left_out: int, whole: int, key: str | None) -> str:
    """Return the line of an excerpt; plain ASCII without quotes, so that JSON can hold it."""
    where = f"; kept whole as {key}" if key else ""
    return f"[excerpt: {left_out:,} of {whole:,} tokens left out{where}]"


def without_line(text: str) -> str:
    """Return a text without the line of an excerpt."""
    return _LINE.sub("", text)


def marked(message: Message, key: str | None, *, cut: bool) -> Message:
    """Return an excerpt with the mark it is known by, where its shape has a place for one."""
    extra = read(message, "additional_kwargs")
    if not isinstance(extra, dict):
        return message
    more = {**extra, EXCERPT_KEY: {"key": key, "cut": cut or is_cut(message)}}
    return with_fields(message, {"additional_kwargs": more}) or message


def _whole(name: str, value: object, *, least: int, also: str = "") -> None:
    if type(value) is not int or value < least:
        raise ConfigurationError(name, value, f"{also}a whole number from {least:,}")


def _tools(name: str, value: object) -> tuple[str, ...] | None:
    if value is None and name == "include":
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list | set | frozenset) or not all(
        isinstance(one, str) and one for one in names
    ):
        raise ConfigurationError(name, value, 'names of tools, as ("read_file",)')
    return tuple(names)


def _caps(value: object) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise ConfigurationError("caps", value, 'caps by tool, as {"read_file": 500}')
    for tool, cap in value.items():
        if not isinstance(tool, str):
            raise ConfigurationError("caps", value, 'caps by tool, as {"read_file": 500}')
        _whole(f"caps[{tool!r}]", cap, least=LEAST_TOKENS)
    return dict(value)
