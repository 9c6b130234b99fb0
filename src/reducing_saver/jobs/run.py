"""Run a job over stored threads: dry by default, resumable, next to live traffic.

A driver plans (one at a time in a database); workers take chunks of threads until there are none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from .._archive import Archive, Discard, StoreArchive
from .._counts import Counts
from .._delivery import Delivery
from .._delta import Reducer
from .._errors import ConfigurationError, JobError
from .._hooks import Hook, check_hooks
from .._retain import Retain, is_older, span
from .._summary import Summary
from .._words import count
from ..rows.backend import Head
from ..rows.thread import Skip
from .ledger import Job, Outcome, Totals
from .others import Others, other_saver
from .policy import Policy, fingerprint
from .process import pool_of
from .report import MOST_ERRORS, JobStatus, Progress, Report, curve, largest
from .source import Source, source_of
from .work import Task, Worker, done_with, gathered, is_lost, patiently, skipped

logger = logging.getLogger("reducing_saver")

Tick = Callable[[Progress], None]

CHUNK = {"postgres": 100, "sqlite": 20}
PROCESSES: Literal["processes"] = "processes"
_PROCESSES = 2
_NO_WORKER = (
    "no worker process could do anything. A process runs the script that starts it again, so call "
    'compact() under `if __name__ == "__main__":`, or without executor=. Where that is so, '
    "something ended the processes: want of memory, say"
)
_RESTARTS = 3
_LEAST_PAUSE = 0.02
_LONGEST_PAUSE = 86_400.0
_LOCKED_SECONDS, _LOCKED_POLL = 2.0, 0.1
_POLL_SECONDS = 0.5
_LOST_TRIES = 3
# Longer than the database lets a frozen worker hold its chunk.
_STALLED_SECONDS = 90.0
_CHUNKS_A_CALL = 20
# Names the planner's lock; the second number is of the schema.
_LOCK = 0x5265_6475


@dataclass(frozen=True, slots=True)
class Pace:
    """Say how fast and how far a job goes; None has no bound. Seconds and threads."""

    rate: float | None = None
    seconds: float | None = None
    threads: int | None = None


def compact(
    saver_or_dsn: BaseCheckpointSaver[Any] | str,
    policy: Policy,
    *,
    archive: Archive | Discard | str,
    summary: Summary | None = None,
    on_evict: Sequence[Hook] = (),
    executor: Executor | Literal["processes"] | None = None,
    dry_run: bool = True,
    idle: str | timedelta = "1h",
    job: str | None = None,
    max_rate: float | None = None,
    max_time: str | timedelta | None = None,
    max_threads: int | None = None,
    threads: Sequence[str] | None = None,
    progress: Tick | None = None,
    channels: Sequence[str] = ("messages",),
    messages_reducer: Reducer | None = None,
    namespace_key: str = "memory_namespace",
    vacuum: bool = False,
    serde: SerializerProtocol | None = None,
) -> Report:
    """Compact stored threads by a policy; a dry run by default, which only reads.

    - `archive`: where what leaves goes: `"same"` is LangGraph's store in the same database, in
      the same transaction; an archive elsewhere is written before the commit; `Discard()`.
    - `summary`, `on_evict`: as in `ReducingSaver`. Hooks are told after the commit.
    - `executor`: any; its workers open connections of their own. None does all in this process.
      `"processes"` starts two where a Postgres is named by its URL and there is much to do, as the
      command does. A process runs the script that starts it again: call this under
      `if __name__ == "__main__":`.
    - `idle`: younger threads are left as they are.
    - `job`: the name in the ledger; the same name goes on where it stopped.
    - `max_rate`: threads a second; `max_time`, `max_threads`: stop with work left.
    - `threads`: only these. Needed for a saver that is neither Postgres nor SQLite nor memory: it
      cannot say which there are. Such a one is probed first and then written through its public
      API, as far as that goes; it has no ledger, so `job` is refused.
    - `vacuum`: give the space back to the disk at the end (SQLite; it needs the file for itself).
    - `serde`: of a named database, where it is not the default one.

    Raises `ConfigurationError` for bad values and `JobError` where another job stands against it.
    """
    for field_, value in (("dry_run", dry_run), ("vacuum", vacuum)):
        if not isinstance(value, bool):
            raise ConfigurationError(field_, value, "True or False")
    if not (progress is None or callable(progress)):
        raise ConfigurationError("progress", progress, "None, or a function of a Progress")
    other = other_saver(saver_or_dsn)
    reached = source_of(saver_or_dsn, serde=serde) if other is None else other
    task = _task(
        policy, archive, summary, on_evict, idle, channels, messages_reducer, reached.serde
    )
    task = replace(task, namespace_key=_text("namespace_key", namespace_key))
    pace = _pace(max_rate, max_time, max_threads)
    _check_threads(threads)
    if not isinstance(reached, Source):
        most, rate, longest = pace.threads, pace.rate, pace.seconds
        others = Others(reached, task, threads, tuple(on_evict), progress, most, rate, longest)
        others.check(job=job, executor=executor)
        return others.go(dry_run=dry_run)
    source = reached
    _check(source, task, on_evict, executor)
    name = job if job is None else _text("job", job)
    wanted = None if threads is None else [*threads]
    if dry_run:
        return _dry(source, task, name or "", pace, wanted, progress)
    named, hooks = isinstance(saver_or_dsn, str), tuple(on_evict)
    run = _Run(
        source, task, name or _default_name(task, wanted), pace, wanted, progress, hooks, named
    )
    return run.go(executor, vacuum=vacuum)


def survey(
    saver_or_dsn: BaseCheckpointSaver[Any] | str,
    *,
    retain: Retain | None = None,
    idle: str | timedelta = "0",
    max_time: str | timedelta | None = None,
    max_threads: int | None = None,
    threads: Sequence[str] | None = None,
    progress: Tick | None = None,
    serde: SerializerProtocol | None = None,
) -> Report:
    """Say where the bytes of stored threads are; reads only, and no list."""
    source = source_of(saver_or_dsn, serde=serde)
    policy = Policy(None, retain or Retain())
    task = Task(policy, archives=False, idle=span("idle", idle))
    pace = _pace(None, max_time, max_threads)
    wanted = None if threads is None else [*threads]
    return replace(_dry(source, task, "", pace, wanted, progress), policy="", archive="")


def worker(
    dsn: str,
    *,
    job: str,
    policy: Policy | None = None,
    max_rate: float | None = None,
    max_time: str | timedelta | None = None,
    max_threads: int | None = None,
    progress: Tick | None = None,
    messages_reducer: Reducer | None = None,
    serde: SerializerProtocol | None = None,
) -> Report:
    """Share a job that a driver has planned, from this process or machine, until none is left.

    Hooks are told by the driver, or by the wrapper on a thread's next put. A job with a summary
    or an archive elsewhere has no other workers.

    - `policy`: needed where the job's window has functions; it must be the same.
    """
    source = source_of(dsn, serde=serde)
    pace = _pace(max_rate, max_time, max_threads)
    with source.open() as rows:
        ledger = source.ledger(rows)
        known = ledger.find(_text("job", job)) if ledger.exists() else None
    if known is None:
        raise JobError(
            f"there is no job {job!r}; compact(..., job={job!r}, dry_run=False) starts it"
        )
    task = _task_of(known, policy, messages_reducer)
    return _Run(source, task, job, pace, None, progress).join(known)


def status(
    saver_or_dsn: BaseCheckpointSaver[Any] | str, *, job: str | None = None
) -> tuple[JobStatus, ...]:
    """Return what the ledger says of one job, or of all."""
    source = source_of(saver_or_dsn)
    with source.open(read_only=True) as rows:
        ledger = source.ledger(rows)
        names = ledger.names() if ledger.exists() else []
        if job is not None and job not in names:
            raise JobError(f"there is no job {job!r}")
        running = _is_locked(source, rows)
        chosen = names if job is None else [job]
        return tuple(ledger.status(name, source.backend, running=running) for name in chosen)


def _task(
    policy: object,
    archive: object,
    summary: object,
    hooks: object,
    idle: object,
    channels: object,
    reducer: object,
    serde: SerializerProtocol,
) -> Task:
    if not isinstance(policy, Policy):
        allowed = 'a Policy, as Policy(Window(keep=("turns", 6)))'
        raise ConfigurationError("policy", policy, allowed)
    if not (archive == "same" or isinstance(archive, Archive | Discard)):
        allowed = '"same" (the same database), an archive, or Discard()'
        raise ConfigurationError("archive", archive, allowed)
    if not (summary is None or isinstance(summary, Summary)):
        raise ConfigurationError("summary", summary, "a Summary, as Summary(model)")
    check_hooks(hooks)
    if reducer is not None and not callable(reducer):
        allowed = "None, or the reducer of the graph's DeltaChannel"
        raise ConfigurationError("messages_reducer", reducer, allowed)
    if not isinstance(channels, Sequence) or isinstance(channels, str) or not channels:
        raise ConfigurationError("channels", channels, 'several names, as ("messages",)')
    encrypts = isinstance(serde, EncryptedSerializer)
    if encrypts and getattr(archive, "index_text", False):
        allowed = "one without index_text=True: the saver encrypts, an index is plain text"
        raise ConfigurationError("archive", archive, allowed)
    return Task(
        policy,
        tuple(_text("channels", name) for name in channels),
        None if isinstance(archive, Discard) else archive,
        summary,
        bool(hooks) and not isinstance(archive, Discard),
        bool(hooks) or not isinstance(archive, Discard),
        span("idle", idle),
        reducer=reducer,
    )


def _check_threads(threads: object) -> None:
    if not (threads is None or _are_ids(threads)):
        raise ConfigurationError("threads", threads, "several thread ids, or None for all")


def _check(source: Source, task: Task, hooks: Sequence[Hook], executor: object) -> None:
    if not (executor in (None, PROCESSES) or isinstance(executor, Executor)):
        allowed = 'None, "processes", or a concurrent.futures.Executor, as ProcessPoolExecutor(2)'
        raise ConfigurationError("executor", executor, allowed)
    if not isinstance(executor, Executor):
        return
    if source.backend == "sqlite":
        allowed = "None: a SQLite file has one writer at a time"
        raise ConfigurationError("executor", executor, allowed)
    if task.prepares:
        allowed = 'None with a summary, or with an archive other than "same" and Discard()'
        raise ConfigurationError("executor", executor, allowed)
    if hooks and task.archive is None:
        raise ConfigurationError("executor", executor, "None with hooks and no archive")


def _are_ids(threads: object) -> bool:
    if isinstance(threads, str | bytes) or not isinstance(threads, Sequence):
        return False
    return all(isinstance(thread, str) and thread for thread in threads)


def _pace(rate: object, seconds: object, threads: object) -> Pace:
    if rate is not None and not (
        isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= 10**9
    ):
        raise ConfigurationError("max_rate", rate, "threads a second, more than 0, or None")
    if threads is not None and not (type(threads) is int and 1 <= threads <= 10**12):
        raise ConfigurationError("max_threads", threads, "a whole number from 1, or None")
    longest = None if seconds is None else span("max_time", seconds).total_seconds()
    return Pace(float(rate) if rate is not None else None, longest, threads)


def _pause(pace: Pace, seen: int, spent: float) -> float:
    """Return how many seconds to wait to keep to the rate, not beyond the time there is."""
    if pace.rate is None:
        return 0.0
    over = _LONGEST_PAUSE if pace.seconds is None else pace.seconds - spent
    return max(0.0, min(seen / pace.rate - spent, over, _LONGEST_PAUSE))


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 500:
        raise ConfigurationError(field, value, "a name that is not empty")
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigurationError(field, ascii(value), "a name that a database can hold")
    return value


def _spec(task: Task, threads: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a worker elsewhere has to know, as plain data."""
    return {
        "policy": task.policy.as_dict(),
        "channels": [*task.channels],
        "archive": task.archive if isinstance(task.archive, str) else _archive_name(task),
        "summary": task.summary is not None,
        "reducer": task.reducer is not None,
        "tells": task.tells,
        "archives": task.archives,
        "idle": task.idle.total_seconds(),
        "namespace_key": task.namespace_key,
        "said": str(task.policy),
        "threads": None if threads is None else fingerprint({"threads": sorted({*threads})}),
    }


def _archive_name(task: Task) -> str:
    if isinstance(task.archive, str):
        return "the same database"
    return "discarded" if task.archive is None else type(task.archive).__name__


def _print_of(spec: Mapping[str, Any]) -> str:
    decisive = ("policy", "channels", "archive", "summary", "reducer", "namespace_key")
    return fingerprint({name: spec[name] for name in decisive})


def _default_name(task: Task, threads: Sequence[str] | None) -> str:
    """Return a name that the same call has again, to go on where it stopped."""
    some = "" if threads is None else f"-{fingerprint({'threads': sorted(threads)})}"
    return f"compact-{_print_of(_spec(task))}{some}"


def _task_of(job: Job, policy: Policy | None, reducer: Reducer | None) -> Task:
    spec = job.spec
    if spec["summary"] or spec["archive"] not in ("same", "discarded"):
        raise JobError(
            f"job {job.name!r} has a summary or an archive elsewhere, so it has no other workers"
        )
    if spec["reducer"] != (reducer is not None):
        raise ConfigurationError("messages_reducer", reducer, "what the job was started with")
    if policy is not None and policy.as_dict() != spec["policy"]:
        raise JobError(f"job {job.name!r} has another policy")
    return Task(
        policy or Policy.from_dict(spec["policy"]),
        tuple(spec["channels"]),
        None if spec["archive"] == "discarded" else "same",
        None,
        spec["tells"],
        spec["archives"],
        timedelta(seconds=spec["idle"]),
        spec["namespace_key"],
        reducer,
    )


# A dry run


def _dry(
    source: Source,
    task: Task,
    name: str,
    pace: Pace,
    threads: list[str] | None,
    progress: Tick | None,
) -> Report:
    started, size = time.monotonic(), CHUNK[source.backend]
    outcomes: list[Outcome] = []
    with source.open(read_only=True) as rows:
        heads, young = _idle(rows, task, threads)
        todo = [head.thread for head in heads]
        outcomes += [Outcome(head.thread, head.id, Skip.YOUNG) for head in young]
        total = len(todo) + len(young)
        if pace.threads is not None:
            todo = todo[: pace.threads]
        freed = 0
        for start in range(0, len(todo), size):
            if pace.seconds is not None and time.monotonic() - started > pace.seconds:
                break
            found = _looked_at_each(source, rows, task, todo[start : start + size])
            outcomes += found
            freed += sum(one.size.freed for one in found)
            if progress is not None:
                spent = time.monotonic() - started
                skips = gathered(outcomes)["skipped"]
                progress(Progress(len(outcomes), total, freed, skips, spent))
    seconds = time.monotonic() - started
    return Report(
        dry_run=True,
        backend=source.backend,
        job=name,
        policy=str(task.policy),
        archive=_archive_name(task),
        **gathered(outcomes),
        seconds=seconds,
        estimate_seconds=_estimate(task, seconds, len(heads), len(outcomes) - len(young)),
        left=total - len(outcomes),
    )


def _idle(rows: Any, task: Task, threads: Sequence[str] | None) -> tuple[list[Head], list[Head]]:
    """Return the threads to look at and those that are too young, which their ids tell."""
    if not rows.has_tables():
        return [], []
    young = task.look(datetime.now(UTC), archived=False).young
    heads = rows.heads(threads)
    if young is None:
        return heads, []
    idle = [head for head in heads if is_older(head.id, young)]
    return idle, [head for head in heads if not is_older(head.id, young)]


def _estimate(task: Task, seconds: float, total: int, seen: int) -> float | None:
    """Return how long applying may take: it writes what a dry run only reads."""
    if not seen or task.policy.window is None:
        return None
    return 2.5 * seconds * total / seen


def _looked(source: Source, rows: Any, task: Task, threads: Sequence[str]) -> list[Outcome]:
    job = Job("", "", {}, 0, 0, 0, 0.0, 0.0)
    worker = Worker(rows, source.ledger(rows), task, job)
    found = []
    with rows.reading():
        for thread in rows.load(threads, worker.look()):
            decided = worker.decided(thread)
            if isinstance(decided, Skip):
                found.append(skipped(thread, decided))
            else:
                found.append(done_with(decided, worker.archived(decided)))
    return found


def _looked_at_each(source: Source, rows: Any, task: Task, threads: Sequence[str]) -> list[Outcome]:
    """Look at threads one by one where one of them breaks the others, as a job does."""
    try:
        return _looked(source, rows, task, threads)
    except Exception as error:
        if is_lost(error):
            raise
        if len(threads) == 1:
            return [Outcome(threads[0], "", Skip.FAILED, type(error).__name__)]
    return [one for thread in threads for one in _looked_at_each(source, rows, task, [thread])]


# Applying


@dataclass(slots=True)
class _Run:
    """Hold what a driver or a worker needs while it runs."""

    source: Source
    task: Task
    name: str
    pace: Pace
    threads: list[str] | None = None
    progress: Tick | None = None
    hooks: tuple[Hook, ...] = ()
    named: bool = False
    counts: Counts = field(default_factory=Counts)
    started: float = field(default_factory=time.monotonic)

    def go(self, executor: Executor | str | None, *, vacuum: bool) -> Report:
        with self._opened() as rows:
            before, wal = _file_size(self.source, rows), _wal(self.source, rows)
            with _planning(self.source, rows, self.name) as planner:
                job = self._planned(rows, plan=planner)
                errors = self._spread(rows, job, executor)
            # What another commits from here on is not told, so it is not done for this call.
            left = self.source.ledger(rows).left(job)
            self._tell_rest(rows)
            errors = [*errors, *self._free_rest(rows, job)]
            if vacuum and self.source.backend == "sqlite":
                rows.connection.execute("VACUUM")
            after = _file_size(self.source, rows)
            report = self._report(rows, job, errors)
            written = _wal(self.source, rows)
            return replace(
                report,
                left=max(left, report.left),
                returned=max(0, before - after),
                wal=None if wal is None or written is None else written - wal,
            )

    def join(self, job: Job) -> Report:
        with self._opened() as rows:
            errors = [*self._in_process(rows, job), *self._free_rest(rows, job)]
            return self._report(rows, job, errors)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self.source.open() as rows:
            yield rows

    def _planned(self, rows: Any, *, plan: bool) -> Job:
        ledger = self.source.ledger(rows)
        spec = _spec(self.task, self.threads)
        if plan:
            if self.task.archive == "same":
                rows.prepare_store()
            ledger.create()
            heads, young = _idle(rows, self.task, self.threads)
            more = {"size": CHUNK[self.source.backend], "young": len(young)}
            mark = _print_of(spec)
            return patiently(
                rows,
                lambda: ledger.plan(self.name, mark, spec, heads, **more, orphaned=rows.orphaned),
            )
        found = ledger.find(self.name) if ledger.exists() else None
        if found is None or found.fingerprint != _print_of(spec):
            raise JobError("another job runs in this database; reducing-saver status names it")
        return found

    def _spread(self, rows: Any, job: Job, executor: Executor | str | None) -> list[str]:
        """Do the work in this process, or in those of an executor."""
        ledger = self.source.ledger(rows)
        if isinstance(executor, Executor):
            left = ledger.left(job)
            errors = self._in_executor(rows, job, executor)
            if _broke(errors) and left and ledger.left(job) == left:
                raise JobError(_NO_WORKER)
            return errors
        if executor is None or not self._has_processes(rows, job):
            return self._in_process(rows, job)
        for _ in range(_RESTARTS):
            left = ledger.left(job)
            with pool_of(_PROCESSES) as pool:
                if not self._in_executor(rows, job, pool):
                    return []
            if ledger.left(job) == left:
                logger.warning(_NO_WORKER)
                break
        return self._in_process(rows, job)

    def _has_processes(self, rows: Any, job: Job) -> bool:
        """Tell whether it is worth to start processes, and they can be told what to do."""
        if self.source.backend != "postgres" or self.source.own_serde is not None:
            return False
        if not self.named or self.task.prepares:
            return False
        if self.hooks and self.task.archive is None:
            return False
        many = self.source.ledger(rows).left(job) > 4 * CHUNK["postgres"]
        return many and self.pace == Pace()

    def _in_process(self, rows: Any, job: Job) -> list[str]:
        worker = Worker(rows, self.source.ledger(rows), self.task, job, self.counts)
        return self._work(worker, self._delivery(rows))

    def _work(self, worker: Worker, delivery: Delivery | None) -> list[str]:
        seen, pause = 0, _LEAST_PAUSE if self.source.backend == "sqlite" else 0.0
        # Who held a chunk may have died: the database notices in a moment, and may yet commit.
        patient = time.monotonic() + _LOCKED_SECONDS
        while not self._is_over(seen):
            began = time.monotonic()
            done = worker.work(_rest(self.pace, seen))
            if done is None:
                if not worker.ledger.left(worker.job) or began > patient:
                    break
                time.sleep(_LOCKED_POLL)
                continue
            patient = time.monotonic() + _LOCKED_SECONDS
            seen += done.amount
            if delivery is not None:
                self._tell(worker.rows, delivery, done.leaves)
            took = time.monotonic() - began
            self._show(worker)
            if pause:
                # The file was locked as long: others have their turn.
                time.sleep(max(pause, took))
            time.sleep(_pause(self.pace, seen, time.monotonic() - self.started))
        return []

    def _is_over(self, seen: int) -> bool:
        if self.pace.threads is not None and seen >= self.pace.threads:
            return True
        spent = time.monotonic() - self.started
        return self.pace.seconds is not None and spent >= self.pace.seconds

    def _in_executor(self, rows: Any, job: Job, executor: Executor) -> list[str]:
        """Give chunks to an executor until none is left; a worker that dies leaves its chunk."""
        ledger, errors = self.source.ledger(rows), list[str]()
        for _ in range(_RESTARTS):
            left, size = ledger.left(job), CHUNK["postgres"] * _CHUNKS_A_CALL
            if not left or self._is_over(0):
                return []
            calls = max(_PROCESSES, -(-left // size))
            futures: set[Future[int]] = set()
            try:
                for _ in range(calls):
                    arguments = (self.source, self.task, job, _CHUNKS_A_CALL, self._share(calls))
                    futures.add(executor.submit(do_chunks, *arguments))
                errors = self._wait(rows, job, futures)
            except BrokenProcessPool as error:
                return [f"executor: {type(error).__name__}"]
            if _broke(errors):
                return errors
        return errors if ledger.left(job) else []

    def _share(self, calls: int) -> Pace:
        spent = time.monotonic() - self.started
        seconds = None if self.pace.seconds is None else max(0.0, self.pace.seconds - spent)
        rate = None if self.pace.rate is None else self.pace.rate / calls
        threads = None if self.pace.threads is None else max(1, self.pace.threads // calls)
        return Pace(rate, seconds, threads)

    def _wait(self, rows: Any, job: Job, futures: set[Future[int]]) -> list[str]:
        """Wait for workers; where nothing goes on, do what is free here, and wait no more.

        A frozen worker answers nobody, but its session ends and others may have its chunk.
        """
        errors: list[str] = []
        worker = Worker(rows, self.source.ledger(rows), self.task, job)
        left, since = worker.ledger.left(job), time.monotonic()
        while futures:
            done, futures = wait(futures, timeout=_POLL_SECONDS)
            for one in done:
                error = one.exception()
                if error is not None:
                    errors.append(f"worker: {type(error).__name__}")
            self._show(worker)
            before, left = left, worker.ledger.left(job)
            if left != before:
                since = time.monotonic()
            elif time.monotonic() - since > _STALLED_SECONDS:
                self._work(worker, None)
                # Now: a pool does not end before its frozen process.
                worker.free_rest()
                left, since = worker.ledger.left(job), time.monotonic()
                if not left or self._is_over(0):
                    break
        return errors

    def _show(self, worker: Worker) -> None:
        if self.progress is None:
            return
        totals, left = worker.ledger.totals(worker.job), worker.ledger.left(worker.job)
        spent = time.monotonic() - self.started
        seen = totals.seen
        self.progress(Progress(seen, seen + left, totals.bytes.freed, totals.skipped, spent))

    def _delivery(self, rows: Any) -> Delivery | None:
        if not self.hooks:
            return None
        archive = self.task.archive
        kept = StoreArchive(rows.store()) if archive == "same" else archive
        return Delivery(self.hooks, kept, self.counts, rows.serde)  # type: ignore[arg-type]

    def _tell(self, rows: Any, delivery: Delivery, leaves: Sequence[Any]) -> None:
        load = rows.saver().get_tuple
        for leave in leaves:
            delivery.after_put(leave.segment.thread, [leave], load)

    def _tell_rest(self, rows: Any) -> None:
        """Tell what workers archived, and what a hook has failed on, of this job's threads."""
        delivery = self._delivery(rows)
        if delivery is None:
            return
        if delivery.archive is not None:
            waiting, load = delivery.archive.waiting(), rows.saver().get_tuple
            for thread in self.source.ledger(rows).known(self.name, waiting):
                delivery.after_put(thread, [], load)
        delivery.close()

    def _free_rest(self, rows: Any, job: Job) -> list[str]:
        left = Worker(rows, self.source.ledger(rows), self.task, job).free_rest()
        if not left:
            return []
        whose = count(left, "thread")
        return [f"values of {whose} are still to be deleted: any later job does it"]

    def _report(self, rows: Any, job: Job, errors: Sequence[str]) -> Report:
        ledger = self.source.ledger(rows)
        totals, sizes = ledger.totals(job), ledger.sizes(job)
        patiently(rows, lambda: ledger.touch(job))
        return Report(
            dry_run=False,
            backend=self.source.backend,
            job=self.name,
            policy=str(self.task.policy),
            archive=_archive_name(self.task),
            **_summed(totals),
            errors=(*ledger.errors(job), *errors)[:MOST_ERRORS],
            largest=largest(sizes),
            curve=curve(sizes),
            seconds=time.monotonic() - self.started,
            left=ledger.left(job),
        )


def _summed(totals: Totals) -> dict[str, Any]:
    return {
        "threads": totals.seen,
        "compacted": totals.done,
        "skipped": dict(totals.skipped),
        "bytes": totals.bytes,
        "archived": totals.archived,
        "evicted": totals.evicted,
        "deleted": totals.deleted,
    }


def _broke(errors: Sequence[str]) -> bool:
    return bool(errors) and BrokenProcessPool.__name__ in errors[0]


def do_chunks(source: Source, task: Task, job: Job, chunks: int, pace: Pace) -> int:
    """Do at most so many chunks of a job over a connection of its own; what an executor is given.

    Returns how many threads were compacted. A connection that is lost, as when the process was
    frozen in a transaction, is opened again.
    """
    seen, lost, started = 0, 0, time.monotonic()
    while True:
        try:
            with source.open() as rows:
                worker = Worker(rows, source.ledger(rows), task, job)
                while chunks > 0:
                    if pace.seconds is not None and time.monotonic() - started >= pace.seconds:
                        return seen
                    if pace.threads is not None and seen >= pace.threads:
                        return seen
                    done = worker.work(_rest(pace, seen))
                    if done is None:
                        return seen
                    seen, chunks = seen + done.amount, chunks - 1
                    time.sleep(_pause(pace, seen, time.monotonic() - started))
            return seen
        except Exception as error:
            if lost >= _LOST_TRIES or not type(error).__module__.startswith("psycopg"):
                raise
            lost += 1


def _rest(pace: Pace, seen: int) -> int | None:
    return None if pace.threads is None else pace.threads - seen


@contextmanager
def _planning(source: Source, rows: Any, name: str) -> Iterator[bool]:
    """Hold the lock of the one planner of a database; False where another holds it.

    SQLite has one writer anyway.
    """
    if source.backend != "postgres":
        yield True
        return
    ((got,),) = rows.connection.execute(
        "SELECT pg_try_advisory_lock(%s, hashtext(current_schema()))", (_LOCK,)
    ).fetchall()
    try:
        yield bool(got)
    finally:
        if got and not rows.connection.closed:
            rows.connection.execute(
                "SELECT pg_advisory_unlock(%s, hashtext(current_schema()))", (_LOCK,)
            )


def _is_locked(source: Source, rows: Any) -> bool:
    if source.backend != "postgres":
        return False
    ((held,),) = rows.connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
        (_LOCK,),
    ).fetchall()
    return bool(held)


def _file_size(source: Source, rows: Any) -> int:
    if source.backend != "sqlite":
        return 0
    ((pages,),) = rows.connection.execute("PRAGMA page_count").fetchall()
    ((size,),) = rows.connection.execute("PRAGMA page_size").fetchall()
    return int(pages) * int(size)


def _wal(source: Source, rows: Any) -> int | None:
    """Return how far the write-ahead log is, where the database tells."""
    if source.backend != "postgres":
        return None
    ((position,),) = rows.connection.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    ).fetchall()
    return int(position)
