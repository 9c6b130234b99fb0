"""Compact threads of any saver through its public API, one after the other.

There is no ledger. Nothing could hold one in the transaction that does the work, so beside a file
on one machine the store would be a second truth; and none is needed: of a thread that is done
nothing leaves any more, which one look at it tells. A rerun goes on by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from .._counts import Counts
from .._delivery import Delivery
from .._errors import ConfigurationError, JobError
from .._forwarding import ForwardingSaver
from .._hooks import Hook
from .._retain import is_older
from ..rows.any_saver import AnyRows, ChangedError, Way
from ..rows.backend import Head
from ..rows.source import kind_of
from .ledger import DONE, Job, Ledger, Outcome
from .probe import Probed, probe
from .report import Progress, Report, Skip
from .work import Done, Task, Worker, done_with, gathered, skipped

logger = logging.getLogger("reducing_saver")

_NEW_ID = (
    "%s: the same checkpoint cannot safely be put again, so only threads that are finished and "
    "idle are compacted, with a new checkpoint after the newest"
)
_NO_JOB = "None: this saver has no ledger; a rerun finds by itself what is left"
_IN_TURN = "None: threads of this saver are done one after the other"
_NO_STORE = "an archive, as StoreArchive(store), or Discard(): this saver has no store beside it"
_NO_LIST = "the ids of the threads to look at: this saver cannot say which there are"


def other_saver(given: object) -> BaseCheckpointSaver[Any] | None:
    """Return the saver inside where it is one whose rows are not known, else None."""
    while isinstance(given, ForwardingSaver):
        given = given.inner
    if isinstance(given, BaseCheckpointSaver) and kind_of(given) is None:
        return given
    return None


@dataclass(slots=True)
class Others:
    """Hold what a job over any saver needs while it runs."""

    saver: BaseCheckpointSaver[Any]
    task: Task
    threads: Sequence[str] | None = None
    hooks: tuple[Hook, ...] = ()
    progress: Callable[[Progress], None] | None = None
    most: int | None = None
    rate: float | None = None
    seconds: float | None = None
    counts: Counts = field(default_factory=Counts)
    started: float = field(default_factory=time.monotonic)

    def check(self, *, job: object, executor: object) -> None:
        """Refuse what only a database can do."""
        if job is not None:
            raise ConfigurationError("job", job, _NO_JOB)
        if executor is not None:
            raise ConfigurationError("executor", executor, _IN_TURN)
        if self.task.archive == "same":
            raise ConfigurationError("archive", self.task.archive, _NO_STORE)
        if self.threads is None and not isinstance(self.saver, InMemorySaver):
            raise ConfigurationError("threads", None, _NO_LIST)

    def go(self, *, dry_run: bool) -> Report:
        """Look at the threads, and compact them unless it is a dry run: that writes no probe."""
        probed = Probed(type(self.saver).__name__, Way.SAME_ID) if dry_run else probe(self.saver)
        if probed.way is Way.NONE:
            raise JobError(f"this saver's threads cannot be compacted: {probed}")
        if probed.way is Way.NEW_ID:
            logger.warning(_NEW_ID, probed.saver)
        if not dry_run and not probed.has("delta"):
            self.task = replace(self.task, reducer=None)
        rows = AnyRows(self.saver, probed.way)
        job = Job("", "", {}, 0, 0, 0, 0.0, 0.0)
        worker = Worker(cast(Any, rows), cast(Ledger, None), self.task, job, self.counts)
        idle, young = self._idle(rows)
        outcomes = [Outcome(head.thread, head.id, Skip.YOUNG) for head in young]
        work = self._looked if dry_run else self._done
        for outcome in work(worker, idle):
            outcomes.append(outcome)
            self._show(outcomes, len(idle) + len(young))
        return Report(
            dry_run=dry_run,
            backend=f"{probed.saver}, not probed" if dry_run else f"{probed.saver}, {probed.way}",
            job="",
            policy=str(self.task.policy),
            archive="discarded" if self.task.archive is None else type(self.task.archive).__name__,
            **gathered(outcomes),
            seconds=time.monotonic() - self.started,
            left=len(idle) + len(young) - len(outcomes),
        )

    def _idle(self, rows: AnyRows) -> tuple[list[Head], list[Head]]:
        given = self.threads
        if given is None:
            given = [*cast(InMemorySaver, self.saver).storage]
        young = self.task.look(datetime.now(UTC), archived=True).young
        heads = rows.heads([*dict.fromkeys(map(str, given))])
        late = [head for head in heads if young is not None and not is_older(head.id, young)]
        return [head for head in heads if head not in late], late

    def _looked(self, worker: Worker, heads: Sequence[Head]) -> Iterator[Outcome]:
        for head in self._paced(heads):
            for thread in worker.rows.load([head.thread], worker.look()):
                decided = worker.decided(thread)
                if isinstance(decided, Skip):
                    yield skipped(thread, decided)
                else:
                    yield done_with(decided, worker.archived(decided))

    def _done(self, worker: Worker, heads: Sequence[Head]) -> Iterator[Outcome]:
        delivery = None
        if self.hooks:
            archive = cast(Any, self.task.archive)
            delivery = Delivery(self.hooks, archive, self.counts, self.saver.serde)
        for head in self._paced(heads):
            done = self._one(worker, head.thread)
            if delivery is not None:
                delivery.after_put(head.thread, done.leaves, self.saver.get_tuple)
            yield from done.outcomes
        if delivery is not None:
            delivery.close()

    def _one(self, worker: Worker, thread: str) -> Done:
        try:
            return worker.alone(thread)
        except ChangedError:
            return Done((Outcome(thread, "", Skip.YOUNG),))
        except Exception as error:
            # The text of the error may quote a message.
            logger.warning("thread %r could not be compacted: %s", thread, type(error).__name__)
            return Done((Outcome(thread, "", Skip.FAILED, type(error).__name__),))

    def _paced(self, heads: Sequence[Head]) -> Iterator[Head]:
        for number, head in enumerate(heads[: self.most]):
            spent = time.monotonic() - self.started
            if self.seconds is not None and spent >= self.seconds:
                return
            if self.rate is not None:
                time.sleep(max(0.0, number / self.rate - spent))
            yield head

    def _show(self, outcomes: Sequence[Outcome], total: int) -> None:
        if self.progress is None:
            return
        freed = sum(one.size.freed for one in outcomes if one.outcome == DONE)
        spent, skips = time.monotonic() - self.started, gathered(outcomes)["skipped"]
        self.progress(Progress(len(outcomes), total, freed, skips, spent))
