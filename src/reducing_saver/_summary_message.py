"""Make the messages that carry a summary, and read them again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from ._origin import origin_of
from ._summary_call import no_summary
from ._summary_text import HEAD
from .engine import Message, Role
from .engine.messages import SUMMARY_KEY, calls, field, identifier, is_summary, role, summaries

Factory: TypeAlias = Callable[[str], BaseMessage | Sequence[BaseMessage]]
Shape: TypeAlias = Literal["human", "system", "pair"] | Factory

_QUESTION = "Please summarise our conversation so far."


@dataclass(frozen=True, slots=True)
class Coverage:
    """Say what a summary covers, over all the rolls it was made in.

    `count` messages, the newest of those with an id being `last`; `version` counts the rolls.
    `complete` means that the model read every one of them, and read it whole.
    """

    count: int = 0
    last: str | None = None
    version: int = 0
    complete: bool = True

    @classmethod
    def of(cls, message: Message) -> Coverage | None:
        """Return what a summary of ours covers; None for any other message."""
        record = _record(message)
        covered = record.get("covered")
        if not isinstance(covered, dict):
            return None
        count, last, version = covered.get("count"), covered.get("last"), record.get("version")
        if type(count) is not int or type(version) is not int:
            return None
        last = last if isinstance(last, str) else None
        return cls(count, last, version, record.get("complete") is True)

    def as_dict(self) -> dict[str, Any]:
        """Return the record that a summary message carries."""
        covered = {"count": self.count, "last": self.last}
        return {"covered": covered, "version": self.version, "complete": self.complete}

    def plus(self, messages: Sequence[Message], *, whole: bool) -> Coverage:
        """Return the coverage after one more roll."""
        inner = [Coverage.of(message) for message in messages if is_summary(message)]
        plain = [message for message in messages if not is_summary(message)]
        ids = [known for message in plain if (known := identifier(message))]
        count = self.count + len(plain) + sum(one.count for one in inner if one)
        complete = self.complete and whole and all(one and one.complete for one in inner)
        return Coverage(count, ids[-1] if ids else self.last, self.version + 1, complete)


def newest_summary(messages: Sequence[Message]) -> Message | None:
    """Return the newest message that carries a summary, ours or of LangChain's middleware."""
    carriers = (m for m in reversed(summaries(messages)) if not is_companion(m))
    return next(carriers, None)


def is_older(message: Message, block: Sequence[Message]) -> bool:
    """Tell whether a summary was replaced by the one in a block: a later roll with its id."""
    known = newest_summary(block)
    if known is None or identifier(message) != identifier(known):
        return False
    before, after = Coverage.of(message), Coverage.of(known)
    return after is not None and (before is None or before.version < after.version)


def is_companion(message: Message) -> bool:
    """Tell whether a message only stands beside a summary of ours, as the question of a pair."""
    return "beside" in _record(message)


def summary_id(thread: str) -> str:
    """Return the id of the first summary of a thread: one that changed would be another message."""
    digest = blake2b(thread.encode(errors="surrogatepass"), digest_size=12).hexdigest()
    return f"summary-{digest}"


def _record(message: Message) -> dict[str, Any]:
    extra = field(message, "additional_kwargs")
    record = field(extra, SUMMARY_KEY) if extra else None
    return record if isinstance(record, dict) else {}


def coverage(previous: Message | None) -> Coverage:
    """Return what the summary so far covers."""
    if previous is None:
        return Coverage()
    # What another tool's summary covers is not known.
    return Coverage.of(previous) or Coverage(complete=False)


def carried(shape: Shape, text: str, own: str, covered: Coverage) -> tuple[BaseMessage, ...]:
    """Return the messages that carry a summary, marked; the one with the text has the id."""
    made = _shaped(shape, text)
    carrier = max(range(len(made)), key=lambda i: (text in made[i].text, i))
    return tuple(
        _marked(message, own, covered.as_dict())
        if i == carrier
        else _marked(message, f"{own}.{i}", {"beside": own})
        for i, message in enumerate(made)
    )


def _marked(message: BaseMessage, own: str, record: dict[str, Any]) -> BaseMessage:
    marks = {"lc_source": "summarization", SUMMARY_KEY: record}
    extra = {**message.additional_kwargs, **marks}
    return message.model_copy(update={"id": own, "additional_kwargs": extra})


def _shaped(shape: Shape, text: str) -> list[BaseMessage]:
    match shape:
        case "human":
            return [HumanMessage(f"{HEAD}\n\n{text}")]
        case "system":
            return [SystemMessage(f"{HEAD}\n\n{text}")]
        case "pair":
            return [HumanMessage(_QUESTION), AIMessage(f"{HEAD}\n\n{text}")]
        case _:
            return made_by(shape, text)


def made_by(factory: Factory, text: str) -> list[Any]:
    """Return what a user's factory makes; raise `SummaryError` where no model would take it."""
    try:
        made = factory(text)
    except Exception as error:
        raised = origin_of(error)
    else:
        messages = list(made) if isinstance(made, list | tuple) else [made]
        if messages and all(map(_can_carry, messages)):
            return messages
        raised = "no messages of a human, a system or an AI"
    # Outside of the handler, so that the error, which may quote the text, is not chained.
    raise no_summary(f"shape gave {raised}")


def _can_carry(message: object) -> bool:
    if not isinstance(message, BaseMessage) or calls(message):
        return False
    return role(message) in (Role.HUMAN, Role.SYSTEM, Role.AI)
