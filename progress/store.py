"""Where a job's state is kept, and how it is committed by one driver only, in one step, or not at all.

A job has a folder of its own under the state path, named after it (characters that are no plain letters are written as
`~2f`), and in it four Delta tables. No name ever becomes part of a query.

    jobs          one row: what the job is; written once, before its first checkpoint
    plan          the ranges, a write per generation; which write counts is said by the checkpoint
    checkpoints   the only commit point: the lease, the job's row and a row per vnode, all written anew by each commit
    requests      what operators asked for; written by them, acknowledged in a checkpoint

Nothing that must agree is spread over two tables. A crash before a checkpoint leaves rows in `jobs` or `plan` that no checkpoint
names, and nobody reads them. A job exists from its first checkpoint on.

Each commit carries two application transactions. `<job id>/checkpoint` is the revision: a commit that is repeated finds itself
done and changes nothing. `driver` is the generation of the driver: it counts takeovers, stays when a job is dropped, and
tells a driver that was overtaken. Two drivers, the first of which sleeps while its lease runs out:

    first: acquire → generation 1, version 0      commit revision 5 → version 6      sleeps
    second:                                       acquire → generation 2, version 7  commit revision 6 → version 8
    first wakes: commit revision 6 on version 6 → refused, since version 7 exists → looks again, generation 2 → FencedError

Dropping a job empties its tables but leaves them standing: their log is what fences a driver that sleeps through it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import RLock
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from progress.delta_table import OvertakenError, Retention, StateTable
from progress.job_rows import (
    JOB_SCHEMA,
    PLAN_SCHEMA,
    JobRecord,
    estimates_from_rows,
    plan_from_rows,
    plan_rows,
    read_record,
    record_row,
)
from progress.lease import Heartbeat, Lease, Process
from progress.report import AskedRequest, Estimates, percent_of
from progress.requests import REQUEST_SCHEMA, read_requests, with_request
from progress.state import BackfillState, Request
from progress.state_rows import (
    CHECKPOINT_SCHEMA,
    JOB,
    LEASE,
    Bookkeeping,
    check_version,
    document_of,
    document_row,
    from_rows,
    to_rows,
)
from vnode_backfill.errors import FencedError, LawBrokenError, StateError
from vnode_backfill.keys import SplitPlan

_DRIVER = "driver"
_ATTEMPTS = 5
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9_-]")
_LONGEST_FOLDER = 120


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job as its last checkpoint left it; the plan holds the generations up to the state's."""

    record: JobRecord
    plan: SplitPlan
    state: BackfillState
    percent: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `status` shows, without the plan's bounds; `lease` is None where nobody drives the job now."""

    record: JobRecord
    estimates: Estimates
    state: BackfillState
    percent: float
    lease: Lease | None
    asked: tuple[AskedRequest, ...]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The `checkpoints` table as one reader saw it: `rows` are its job and vnode rows."""

    handle: DeltaTable
    rows: pa.Table
    lease: Lease | None

    @property
    def generation(self) -> int:
        return self.handle.transaction_version(_DRIVER) or 0

    def revision(self, job: str) -> int | None:
        return self.handle.transaction_version(_app_id(job))


class StateStore:
    """The state of one job. Readers need nothing; whoever commits acquires the lease first. Safe to use from any thread."""

    def __init__(
        self,
        path: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        process: Process | None = None,
        retention: Retention = Retention(),
    ) -> None:
        options = dict(storage_options or {})
        self._job = job
        self._now = now
        self._process = process or Process.current()
        self._folder = f"{path.rstrip('/')}/{folder_name(job)}"
        self._jobs, self._plan, self._checkpoints, self._requests = (
            StateTable(f"{self._folder}/{name}", schema, options, retention)
            for name, schema in (
                ("jobs", JOB_SCHEMA),
                ("plan", PLAN_SCHEMA),
                ("checkpoints", CHECKPOINT_SCHEMA),
                ("requests", REQUEST_SCHEMA),
            )
        )
        self._heartbeat = Heartbeat(self._folder, options)
        self._tidy_every = retention.commits
        self._lock = RLock()
        self._lease: Lease | None = None
        self._handle: DeltaTable | None = None
        self._committed: BackfillState | None = None
        self._books: Bookkeeping | None = None
        self._estimates = Estimates({})
        self._commits = 0

    @property
    def lease(self) -> Lease | None:
        """The lease of this driver as it was last renewed."""
        return self._lease

    def exists(self) -> bool:
        found = self._look()
        return found is not None and document_of(found.rows, JOB) is not None

    def acquire_lease(self, owner: str, duration: timedelta, *, wait_out: bool = False) -> Lease:
        """Become the job's driver, and fence every earlier one; refused while another's lease runs.

        The lease of a process that certainly ended on this machine does not have to run out, unless `wait_out` is set (for a
        sink that has no commit of its own, tasks of the dead driver may still be writing). The job need not exist.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                found = self._look()
                if found is not None:
                    self._refuse_held(found, wait_out=wait_out)
                now = self._now()
                generation = (found.generation if found else 0) + 1
                lease = Lease(generation, owner, self._process, now, now + duration, duration)
                rows = found.rows if found else CHECKPOINT_SCHEMA.empty_table()
                try:
                    self._write(found.handle if found else None, rows, lease)
                except OvertakenError:
                    continue
                self._remember(from_rows(rows))
                if found and found.lease:
                    self._heartbeat.remove(found.lease.generation)
                return lease
            raise StateError(f"the lease of job {self._job!r} could not be had", detail="Others keep writing it.")

    def renew(self) -> Lease:
        """Make the lease run its whole duration again, without a commit; raises FencedError if another driver took over."""
        with self._lock:
            lease = self._own_lease()
            found = self._look()
            if found is None or found.generation != lease.generation:
                raise self._fenced(lease, found)
            self._lease = lease.renewed(self._now())
            self._heartbeat.write(self._lease)
            return self._lease

    def release(self) -> None:
        """Give the lease back, so that the next driver need not wait. Without a lease, or if it was lost, nothing happens."""
        with self._lock:
            lease, handle = self._lease, self._handle
            self._lease = None
            for _ in range(_ATTEMPTS):
                if lease is None or handle is None:
                    return
                try:
                    self._write(handle, self._job_rows(handle), replace(lease, released=True))
                    self._lease = None
                    self._heartbeat.remove(lease.generation)
                    return
                except OvertakenError:
                    found = self._look()
                    handle = found.handle if found and found.generation == lease.generation else None

    def create(self, record: JobRecord, plan: SplitPlan, state: BackfillState, lease: Lease) -> None:
        """Bring the job into being, by the driver that holds `lease`; refused if it exists."""
        with self._lock:
            own = self._own_lease()
            if own.generation != lease.generation or record.name != self._job:
                raise LawBrokenError(f"job {record.name!r} cannot be created as {self._job!r} with lease {lease}")
            if self._committed is not None:
                raise StateError(f"job {self._job!r} exists already", hint="Drop it first with `vnode-backfill drop`.")
            self._jobs.clear()
            self._jobs.append(record_row(record))
            self._books = Bookkeeping(record.id)
            self._estimates = Estimates({})
            for generation in range(plan.generation + 1):
                self.write_plan(plan, generation)
            self.commit(state)

    def write_plan(self, plan: SplitPlan, generation: int) -> None:
        """Write one generation of ranges; it counts from the next commit on whose state names it.

        Writing a generation again replaces what was written before, unless a commit names it already: then nothing happens.
        """
        with self._lock:
            books = self._own_books()
            if self._committed is not None and generation <= self._committed.plan_generation:
                return
            write = uuid4().hex
            rows = plan_rows(plan, generation, write)
            if rows.num_rows:
                self._plan.append(rows)
            kept = tuple((known, name) for known, name in books.plans if known != generation)
            self._books = replace(books, plans=(*kept, (generation, write)))
            self._estimates = Estimates.of(plan.at(generation))

    def commit(self, state: BackfillState) -> None:
        """Make `state` the job's state, in one step; it lasts when this returns. The same revision again changes nothing."""
        with self._lock:
            lease, books = self._own_lease(), self._books_of(state)
            for _ in range(_ATTEMPTS):
                if self._has_landed(state, books.job):
                    self._committed, self._books = state, books
                    return
                try:
                    renewed = lease.renewed(self._now())
                    self._write(self._handle, to_rows(state, books), renewed, {_app_id(books.job): state.revision})
                except OvertakenError:
                    self._look_again(lease)
                    continue
                self._committed, self._books = state, books
                self._tidy()
                return
            raise StateError(f"revision {state.revision} of job {self._job!r} could not be committed")

    def load(self) -> Loaded | None:
        """The job as its last checkpoint left it, or None if there is none. A driver loads after it has the lease."""
        found = self._read()
        if found is None:
            return None
        record, state, books = found
        rows = _rows_of_plans(self._plan.read(self._plan.open()), books)
        plan = plan_from_rows(record, rows)
        return Loaded(record, plan.at(state.plan_generation), state, books.percent)

    def status_snapshot(self) -> Snapshot | None:
        """What there is to show; reads of the plan only how many rows each range was estimated to hold."""
        found = self._read()
        if found is None:
            return None
        record, state, books = found
        rows = self._plan.read(self._plan.open(), ["write", "generation", "ordinal", "estimated_rows"])
        estimates = estimates_from_rows(_rows_of_plans(rows, books))
        return Snapshot(record, estimates, state, books.percent, self.current_lease(), self._asked(state, books))

    def current_lease(self) -> Lease | None:
        """The lease of whoever drives the job now."""
        found = self._look()
        lease = None if found is None else self._running(found)
        return lease if lease and lease.held_at(self._now()) and not lease.process.has_ended else None

    def append_request(self, request: Request, who: str, host: str) -> int:
        """Write down what an operator asks for; the number it gets (which replaces its own) is the acknowledgement's."""
        asked = AskedRequest(request, who, host, self._now())
        job = self._existing_job()
        for _ in range(_ATTEMPTS * 4):
            handle = self._requests.open()
            rows, number = with_request(self._requests.read(handle), job, asked)
            try:
                self._requests.replace(handle, rows)
                return number
            except OvertakenError:
                continue
        raise StateError(f"the request to {request.kind} could not be written", detail="Others keep writing requests.")

    def unacknowledged(self, state: BackfillState) -> tuple[Request, ...]:
        """What was asked for and is not acknowledged in `state` or any commit before it, oldest first."""
        with self._lock:
            books = self._own_books()
        answered = books.requests | {answer.request for answer in state.acknowledged}
        asked = read_requests(self._requests.read(self._requests.open()), books.job)
        return tuple(each.request for each in asked if each.request.id not in answered)

    def drop(self, owner: str) -> None:
        """Remove the job's state; refused while a driver runs. A driver that wakes later finds itself fenced."""
        with self._lock:
            if self._lease is None:
                self.acquire_lease(owner, timedelta(minutes=1))
            lease = self._own_lease()
            try:
                self._write(self._handle, CHECKPOINT_SCHEMA.empty_table(), replace(lease, released=True))
            except OvertakenError as error:
                raise FencedError(f"job {self._job!r} was taken over while it was dropped") from error
            if self._handle is not None:
                self._checkpoints.tidy(self._handle, hours=0)
            for table in (self._jobs, self._plan, self._requests):
                table.clear()
            self._heartbeat.remove(lease.generation)
            self._remember(None)
            self._lease = self._handle = None

    def _look(self) -> _Checkpoint | None:
        handle = self._checkpoints.open()
        if handle is None:
            return None
        rows = self._checkpoints.read(handle)
        document, lease = document_of(rows, JOB), document_of(rows, LEASE)
        if document is not None:
            check_version(document)
        return _Checkpoint(handle, _without_lease(rows), None if lease is None else Lease.from_json(lease))

    def _read(self) -> tuple[JobRecord, BackfillState, Bookkeeping] | None:
        """The checkpoint and the record it belongs to; a job created again in between is looked at again."""
        for _ in range(_ATTEMPTS):
            found = self._look()
            checkpoint = None if found is None else from_rows(found.rows)
            if checkpoint is None:
                return None
            state, books = checkpoint
            record = read_record(self._jobs.read(self._jobs.open()), books.job)
            if record is not None:
                return self._checked(record, state), state, books
        raise StateError(f"the checkpoints of job {self._job!r} belong to a job that is not in the `jobs` table")

    def _checked(self, record: JobRecord, state: BackfillState) -> JobRecord:
        if record.name != self._job or record.vnode_count != len(state.vnodes):
            raise StateError(
                f"the state of job {self._job!r} with {len(state.vnodes)} vnodes contradicts its record",
                detail=f"The record is of job {record.name!r} with {record.vnode_count} vnodes.",
            )
        return record

    def _existing_job(self) -> str:
        found = self._look()
        checkpoint = None if found is None else from_rows(found.rows)
        if checkpoint is None:
            raise StateError(
                f"job {self._job!r} does not exist in {self._folder}",
                hint="Start it with `vnode-backfill run`, or check `job` and `state.path`.",
            )
        return checkpoint[1].job

    def _asked(self, state: BackfillState, books: Bookkeeping) -> tuple[AskedRequest, ...]:
        """Open requests and those whose answer the state still holds."""
        old = books.requests - {answer.request for answer in state.acknowledged}
        asked = read_requests(self._requests.read(self._requests.open()), books.job)
        return tuple(each for each in asked if each.request.id not in old)

    def _write(
        self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, transactions: Mapping[str, int] | None = None
    ) -> None:
        content = pa.concat_tables([document_row(LEASE, lease.to_json()), rows])
        numbered = {_DRIVER: lease.generation, **(transactions or {})}
        self._handle = self._checkpoints.replace(handle, content, numbered)
        self._lease = None if lease.released else lease

    def _job_rows(self, handle: DeltaTable) -> pa.Table:
        return _without_lease(self._checkpoints.read(handle))

    def _running(self, found: _Checkpoint) -> Lease | None:
        """The stored lease with its last heartbeat."""
        if found.lease is None:
            return None
        heartbeat = self._heartbeat.expiry(found.lease.generation)
        return found.lease if heartbeat is None else replace(found.lease, expires=max(found.lease.expires, heartbeat))

    def _refuse_held(self, found: _Checkpoint, *, wait_out: bool) -> None:
        lease = self._running(found)
        if lease is None or not lease.held_at(self._now()) or (lease.process.has_ended and not wait_out):
            return
        left = (lease.expires - self._now()).total_seconds()
        raise StateError(
            f"job {self._job!r} is driven by {lease.owner} on {lease.process.host}, process {lease.process.pid}",
            detail=f"It has been since {lease.since.isoformat()}; its lease runs for another {left:.0f} s.",
            hint="Stop that driver with `vnode-backfill stop`, or wait until its lease has run out.",
        )

    def _own_lease(self) -> Lease:
        if self._lease is None:
            raise FencedError(f"job {self._job!r} cannot be committed to without a lease")
        return self._lease

    def _own_books(self) -> Bookkeeping:
        if self._books is None:
            raise StateError(f"job {self._job!r} does not exist in {self._folder}")
        return self._books

    def _books_of(self, state: BackfillState) -> Bookkeeping:
        """What goes with `state` into its checkpoint; a plan that was written but is not in force stays outside."""
        books = self._own_books()
        plans = tuple(pair for pair in books.plans if pair[0] <= state.plan_generation)
        if [generation for generation, _ in plans] != list(range(state.plan_generation + 1)):
            raise LawBrokenError(f"plan generation {state.plan_generation} was not written, only {books.plans}")
        answered = books.requests | {answer.request for answer in state.acknowledged}
        return Bookkeeping(books.job, plans, answered, percent_of(self._estimates, state, books.percent))

    def _has_landed(self, state: BackfillState, job: str) -> bool:
        """Whether the handle in hand holds this revision already; another state of the same number is a broken law."""
        landed = None if self._handle is None else self._handle.transaction_version(_app_id(job))
        if landed is not None and landed >= state.revision:
            if landed == state.revision and self._committed not in (None, state):
                raise LawBrokenError(f"revision {landed} was committed with another content")
            return True
        if landed is not None and landed + 1 != state.revision:
            raise LawBrokenError(f"revision {state.revision} cannot follow revision {landed}")
        return False

    def _look_again(self, lease: Lease) -> None:
        """After a refused commit: fenced, or somebody tidied up the table, or our own commit had landed unnoticed."""
        found = self._look()
        if found is None or found.generation != lease.generation:
            raise self._fenced(lease, found)
        stored = from_rows(found.rows)
        self._handle, self._committed = found.handle, None if stored is None else stored[0]

    def _fenced(self, lease: Lease, found: _Checkpoint | None) -> FencedError:
        self._lease = None
        newer = "Its state is gone." if found is None or found.lease is None else f"It is {found.lease.owner}."
        return FencedError(
            f"another driver took over job {self._job!r}",
            detail=f"This driver has generation {lease.generation}, now is {found.generation if found else 'none'}. {newer}",
            hint="This driver must end; nothing is lost, the other one goes on.",
        )

    def _remember(self, checkpoint: tuple[BackfillState, Bookkeeping] | None) -> None:
        self._committed, self._books = (None, None) if checkpoint is None else checkpoint
        self._estimates = Estimates({})
        if self._books is not None:
            rows = self._plan.read(self._plan.open(), ["write", "generation", "ordinal", "estimated_rows"])
            self._estimates = estimates_from_rows(_rows_of_plans(rows, self._books))

    def _tidy(self) -> None:
        self._commits += 1
        if self._handle is not None and self._commits % self._tidy_every == 0:
            self._checkpoints.tidy(self._handle)


def folder_name(job: str) -> str:
    """A name for the job's folder that no other job has, whatever characters the job's name holds."""
    name = "".join(
        chr(byte) if _PLAIN_NAME.match(bytes([byte])) else f"~{byte:02x}"
        for byte in job.encode("utf-8", "surrogatepass")
    )
    if not name or len(name) > _LONGEST_FOLDER:
        digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{name[: _LONGEST_FOLDER - 80]}~~{digest}"
    return name


def _app_id(job: str) -> str:
    return f"{job}/checkpoint"


def _without_lease(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["row"], LEASE))


def _rows_of_plans(rows: pa.Table, books: Bookkeeping) -> pa.Table:
    """The rows of the writes that count."""
    writes: Iterable[str] = [write for _, write in books.plans]
    return rows.filter(pc.is_in(rows["write"], pa.array(list(writes), pa.string())))
