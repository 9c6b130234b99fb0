"""Compact a chunk of threads: read, decide, archive, write and account for, in one transaction."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from .._archive import Archive, Parcel
from .._channel import Place
from .._counts import Counts
from .._delivery import pack
from .._delta import Reducer
from .._entry import Entry
from .._reduction import Proposal, Setting
from .._retain import Key, floor
from .._roll import Roll
from .._roll import summarise as make_summaries
from .._segment import Leave
from .._summary import Summary
from ..engine import Window
from ..engine.counters import plain_text
from ..rows.backend import Edit, Rows, is_passing, retried
from ..rows.late import Deleted, nobody_knows, remembered
from ..rows.rewrite import Rewrite, again, decide, rewrite, summarise
from ..rows.thread import Bytes, Look, Skip, Thread
from .ledger import DONE, Claim, Job, Ledger, Outcome
from .policy import Policy
from .process import collecting_rarely
from .report import MOST_ERRORS, curve, largest

logger = logging.getLogger("reducing_saver")

T = TypeVar("T")

_TRIES = 8
_FREED_AT_ONCE = 100
_FREED_PAUSE = 0.2
_FREED_POLL = 0.02
# Longer than any value waits.
_FREED_PATIENCE = 6.0
_LEASE_SECONDS = 300.0
_LOST = {"AdminShutdown", "IdleInTransactionSessionTimeout", "OperationalError", "InterfaceError"}


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what a worker has to know of a job.

    - `archive`: where what leaves goes; `"same"` is the store of the same database, None nowhere.
    - `tells`: archived segments wait for hooks.
    """

    policy: Policy
    channels: tuple[str, ...] = ("messages",)
    archive: Archive | str | None = None
    summary: Summary | None = None
    tells: bool = False
    archives: bool = True
    idle: timedelta = timedelta(hours=1)
    namespace_key: str = "memory_namespace"
    reducer: Reducer | None = None

    @property
    def places(self) -> Mapping[str, Place]:
        """Return where lists are."""
        return {name: Place.parse(name) for name in self.channels}

    @property
    def setting(self) -> Setting:
        """Return the same for the steps of a put."""
        window = self.policy.window or Window(keep=("messages", 1))
        room = self.summary.room() if self.summary is not None else {}
        return Setting(window, self.places, archives=self.archives, room=room, puts=False)

    @property
    def prepares(self) -> bool:
        """Tell whether something is done outside of the transaction first."""
        return self.summary is not None or self.elsewhere is not None

    @property
    def has_hooks(self) -> bool:
        """Tell whether hooks are told what leaves; without an archive nothing else asks for it."""
        return self.tells or (self.archives and self.archive is None)

    @property
    def elsewhere(self) -> Archive | None:
        """Return the archive that is not in the same database."""
        return None if isinstance(self.archive, str) else self.archive

    def look(self, now: datetime, *, archived: bool, deleted: Deleted = nobody_knows) -> Look:
        """Return what to read of threads; `archived` tells that there is an archive already."""
        young = floor(now - self.idle) if self.idle else None
        lists = self.policy.window is not None or self.reducer is not None
        inherits = self.archives and (archived or self.elsewhere is not None)
        places = self.places if lists else {}
        return Look(self.policy.retain, now, young, places, self.reducer, inherits, deleted)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Hold what was done outside of the transaction: summaries, and what is in the archive."""

    proposals: Mapping[str, Sequence[Proposal]] = field(default_factory=dict)
    archived: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Done:
    """Hold what became of a chunk, and what left in it, where hooks are told."""

    outcomes: tuple[Outcome, ...] = ()
    leaves: tuple[Leave, ...] = ()

    @property
    def amount(self) -> int:
        """Return how many threads were compacted."""
        return sum(one.outcome == DONE for one in self.outcomes)


@dataclass(slots=True)
class Worker:
    """Do chunks of a job, one after the other, over one connection."""

    rows: Rows
    ledger: Ledger
    task: Task
    job: Job
    counts: Counts = field(default_factory=Counts)
    _archived: bool | None = None
    _frees_at: float = 0.0

    def look(self) -> Look:
        """Return what to read of threads."""
        if self._archived is None:
            self._archived = self.rows.has_archive()
        now = datetime.now(UTC)
        return self.task.look(now, archived=self._archived, deleted=self._deleted)

    def _deleted(self, thread: str) -> Collection[Key]:
        return self.ledger.deleted(thread)

    def work(self, most: int | None = None) -> Done | None:
        """Do the next chunk, or at most so many threads of it; None where none is free.

        A chunk that another transaction stands against is tried again; then, or where a thread
        breaks it, its threads are done one by one, and what breaks is noted.
        """
        if time.monotonic() >= self._frees_at:
            self._frees_at = time.monotonic() + (0.0 if self._free() else _FREED_PAUSE)
        claim = self._leased() if self.task.prepares else None
        if self.task.prepares and claim is None:
            return None
        for attempt in range(_TRIES):
            try:
                done = self._whole(claim, most)
                # Another has done what was leased; there may be more.
                return Done() if done is None and claim is not None else done
            except Exception as error:
                if is_lost(error):
                    raise
                if not is_passing(error):
                    break
                time.sleep(random.uniform(0.01, 0.05) * (attempt + 1))
        return self._one_by_one(claim, most)

    def _leased(self) -> Claim | None:
        return patiently(self.rows, self._lease)

    def _lease(self) -> Claim | None:
        claim = self.ledger.claim(self.job)
        if claim is not None:
            self.ledger.lease(self.job, claim.chunk, _LEASE_SECONDS)
        return claim

    def _whole(self, leased: Claim | None, most: int | None) -> Done | None:
        prepared = self._prepare(leased.threads[:most]) if leased else Prepared()
        with self.rows.writing():
            claim = self.ledger.claim(self.job, leased.chunk if leased else None)
            if claim is None:
                return None
            with collecting_rarely():
                done = self._do(claim.threads[:most], prepared)
            self._record(claim, done)
            if len(done.outcomes) == len(claim.threads):
                self.ledger.finish(self.job, claim.chunk)
            else:
                self.ledger.lease(self.job, claim.chunk, 0)
        return done

    def _one_by_one(self, leased: Claim | None, most: int | None) -> Done | None:
        chunk = leased.chunk if leased else None
        claim = patiently(self.rows, lambda: self.ledger.claim(self.job, chunk))
        if claim is None:
            return None
        done = Done()
        for thread in claim.threads[:most]:
            one = self._alone(claim, thread)
            if one is None:  # another worker has taken the chunk
                return done
            done = Done((*done.outcomes, *one.outcomes), (*done.leaves, *one.leaves))
        patiently(self.rows, lambda: self._finish(claim.chunk))
        return done

    def _finish(self, chunk: int) -> None:
        held = self.ledger.claim(self.job, chunk)
        if held is not None and not held.threads:
            self.ledger.finish(self.job, chunk)
        elif held is not None:
            self.ledger.lease(self.job, chunk, 0)

    def _alone(self, claim: Claim, thread: str) -> Done | None:
        for attempt in range(_TRIES):
            try:
                prepared = self._prepare([thread]) if self.task.prepares else Prepared()
                with self.rows.writing():
                    held = self.ledger.claim(self.job, claim.chunk)
                    if held is None:
                        return None
                    done = self._do([thread], prepared) if thread in held.threads else Done()
                    self._record(claim, done)
                return done
            except Exception as error:
                if is_lost(error):
                    raise
                if is_passing(error) and attempt + 1 < _TRIES:
                    _pause(attempt + 1)
                    continue
                return self._failed(claim, thread, error)
        return None

    def _record(self, claim: Claim, done: Done) -> None:
        self.ledger.record(self.job, claim.chunk, done.outcomes)
        if self.rows.shares_values:
            self.ledger.note_freed([o.thread for o in done.outcomes if o.outcome == DONE])

    def free_rest(self) -> int:
        """Delete the values that nobody names by now, as soon as they may go.

        Returns how many threads keep theirs for now: others have them in hand, or it failed. Any
        later job goes on with them, as with those that another job adds meanwhile.
        """
        if not self.rows.shares_values:
            return 0
        patient = time.monotonic() + _FREED_PATIENCE
        until = self.ledger.last_freed()
        left, seconds = self.ledger.left_to_free(until)
        while left and time.monotonic() < patient:
            if not self._free():
                # Not longer, though the clock of the database may have been put back.
                time.sleep(min(max(_FREED_POLL, seconds), _FREED_PATIENCE))
            left, seconds = self.ledger.left_to_free(until)
        return left

    def _free(self) -> int:
        """Delete the values of threads that may go by now; returns how many threads."""
        if not self.rows.shares_values:
            return 0
        try:
            return patiently(self.rows, self._freed)
        except Exception as error:
            if is_lost(error):
                raise
            logger.warning("values could not be deleted, for now: %s", type(error).__name__)
            return 0

    def _freed(self) -> int:
        threads = self.ledger.take_freed(_FREED_AT_ONCE)
        if threads:
            self.rows.free(threads)
        return len(threads)

    def alone(self, thread: str) -> Done:
        """Do one thread that is in no ledger."""
        prepared = self._prepare([thread]) if self.task.prepares else Prepared()
        with self.rows.writing():
            return self._do([thread], prepared)

    def _failed(self, claim: Claim, thread: str, error: Exception) -> Done:
        # The text of the error may quote a message.
        logger.warning("thread %r could not be compacted: %s", thread, type(error).__name__)
        outcome = Outcome(thread, "", Skip.FAILED, type(error).__name__)
        patiently(self.rows, lambda: self._note(claim, outcome))
        return Done((outcome,))

    def _note(self, claim: Claim, outcome: Outcome) -> None:
        if self.ledger.claim(self.job, claim.chunk) is not None:
            self.ledger.record(self.job, claim.chunk, [outcome])

    def _prepare(self, threads: Sequence[str]) -> Prepared:
        """Make summaries and write into an archive elsewhere, without a transaction."""
        look, setting = self.look(), self.task.setting
        with self.rows.reading():
            found = self.rows.load(threads, look)
        proposals: dict[str, list[Proposal]] = {}
        archived: set[str] = set()
        for thread in found:
            if not _may_change(thread, self.task):
                continue
            proposed = self._proposed(thread)
            if self.task.summary is not None:
                proposed = self._summarised(proposed, self.task.summary)
            proposals[thread.id] = proposed
            made = rewrite(thread, proposed, setting)
            if isinstance(made, Rewrite) and (archive := self.task.elsewhere) is not None:
                for leave in made.leaves:
                    tell = self.task.tells and not leave.segment.silent
                    packed = self._packed(leave, self.rows.serde.dumps_typed)
                    archive.write(leave.segment, packed, tell=tell)
                    archived.add(leave.segment.id)
        return Prepared(proposals, frozenset(archived))

    def _summarised(self, proposals: Sequence[Proposal], summary: Summary) -> list[Proposal]:
        window, given = self.task.setting.window, self.task.archive
        archive = given if isinstance(given, Archive) else None
        # A job waits for its summaries, also where a saver would not.
        roll = Roll(summary, window, self.counts, archive, self.rows.serde)
        return summarise(proposals, lambda proposal: make_summaries(proposal, roll))

    def _proposed(self, thread: Thread) -> list[Proposal]:
        return decide(thread, self.task.setting, namespace_key=self.task.namespace_key)

    def _do(self, threads: Sequence[str], prepared: Prepared) -> Done:
        found = self.rows.load(threads, self.look())
        outcomes: list[Outcome] = []
        edits: list[Edit] = []
        for thread in found:
            decided = self.decided(thread, prepared)
            if isinstance(decided, Skip):
                outcomes.append(skipped(thread, decided))
            else:
                edits.append(decided)
        parcels = self._archive(edits)
        self.rows.apply(edits)
        for edit in edits:
            outcomes.append(done_with(edit, parcels.get(edit.thread.id, 0)))
        # Messages that nobody is told of are not held: the garbage collector would look at them.
        told = edits if self.task.has_hooks else []
        leaves = tuple(leave for edit in told for leave in edit.rewrite.leaves)
        return Done(tuple(outcomes), leaves)

    def decided(self, thread: Thread, prepared: Prepared | None = None) -> Edit | Skip:
        """Return what is written of a thread, or why it is left as it is.

        Without `prepared` (a dry run) no summary is needed.
        """
        skip = _reason(thread, self.task.policy)
        if skip is not None:
            return skip
        proposed: list[Proposal] = []
        if _may_change(thread, self.task):
            proposed = self._proposed(thread)
            if prepared is not None and self.task.prepares:
                known = again(proposed, prepared.proposals.get(thread.id, ()))
                if known is None:  # it has changed since
                    return Skip.YOUNG
                proposed = known
        made = rewrite(thread, proposed, self.task.setting)
        if isinstance(made, Skip):
            return made
        if prepared is not None and self.task.elsewhere is not None:
            left = {leave.segment.id for leave in made.leaves}
            if not left <= prepared.archived:
                return Skip.YOUNG
        edit = self.rows.edit(thread, made)
        return edit if edit.changes else Skip.DONE

    def _archive(self, edits: Iterable[Edit]) -> dict[str, int]:
        """Archive in the same transaction; returns bytes by thread, wherever they are."""
        parcels: list[Parcel] = []
        sizes: dict[str, int] = {}
        for edit in edits:
            packed = self._parcels(edit)
            sizes[edit.thread.id] = _weight(packed)
            parcels += packed
        if self.task.archive == "same" and parcels:
            self.rows.archive(parcels)
        return sizes

    def archived(self, edit: Edit) -> int:
        """Return how many bytes the archive would take."""
        return _weight(self._parcels(edit))

    def _parcels(self, edit: Edit) -> list[Parcel]:
        if self.task.archive is None:
            return []
        dump = edit.dumper(self.rows.serde)
        return [
            (leave.segment, self._packed(leave, dump), self.task.tells and not leave.segment.silent)
            for leave in edit.rewrite.leaves
        ]

    def _packed(self, leave: Leave, dump: Callable[[Any], tuple[str, bytes]]) -> list[Entry]:
        archive = self.task.elsewhere
        indexed = archive is not None and archive.index_text
        return pack(leave, dump, plain_text if indexed else None)


def _reason(thread: Thread, policy: Policy) -> Skip | None:
    if thread.skip is not None:
        return thread.skip
    return thread.waits if policy.paused == "skip" else None


def _may_change(thread: Thread, task: Task) -> bool:
    return task.policy.window is not None and thread.skip is None and thread.waits is None


def skipped(thread: Thread, reason: Skip) -> Outcome:
    size = replace(thread.bytes, stays=thread.bytes.before)
    whole = replace(size, old_versions=0, writes=0, checkpoints=0, evicted=0)
    return Outcome(thread.id, thread.head, reason, bytes=whole, checkpoints=len(thread.rows))


def done_with(edit: Edit, archived: int) -> Outcome:
    return Outcome(
        edit.thread.id,
        edit.thread.head,
        DONE,
        bytes=edit.bytes,
        archived=archived,
        evicted=edit.rewrite.evicted,
        deleted=edit.deleted,
        checkpoints=len(edit.thread.rows),
        lately=remembered(edit.thread.gone, now=datetime.now(UTC)),
    )


def gathered(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what a report says of outcomes."""
    done = [one for one in outcomes if one.outcome == DONE]
    skips = Counter(str(one.outcome) for one in outcomes if one.outcome != DONE)
    sizes = [one.size for one in done]
    whole = Bytes()
    for one in outcomes:
        whole += one.bytes
    return {
        "threads": len(outcomes),
        "compacted": len(done),
        "skipped": dict(skips),
        "errors": tuple(f"{o.thread}: {o.error}" for o in outcomes if o.error)[:MOST_ERRORS],
        "bytes": whole,
        "archived": sum(one.archived for one in done),
        "evicted": sum(one.evicted for one in done),
        "deleted": sum(one.deleted for one in done),
        "largest": largest(sizes),
        "curve": curve(sizes),
    }


def patiently(rows: Rows, act: Callable[[], T]) -> T:
    """Return what is done in a transaction of its own, again where another one stood against it."""

    def once() -> T:
        with rows.writing():
            return act()

    return retried(once, tries=_TRIES, pause=_pause)


def _pause(nth: int) -> None:
    time.sleep(random.uniform(0.02, 0.1) * nth)


def is_lost(error: Exception) -> bool:
    """Tell whether the connection is gone."""
    return type(error).__module__.startswith("psycopg") and type(error).__name__ in _LOST


def _weight(parcels: Iterable[Parcel]) -> int:
    """Return what the same messages take in an archive, once: stores hold base64."""
    sizes = {entry.key: 4 * len(entry.data) // 3 for _, entries, _ in parcels for entry in entries}
    return sum(sizes.values())
