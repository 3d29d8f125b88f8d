"""What there is to read of a job's state, by anybody, whether a driver runs or not; and how to ask that driver for something.

A job has a folder of its own under the state path, named after it (characters that are no plain letters are written as
`~2f`), and in it four Delta tables. No name ever becomes part of a query.

    jobs          one row: what the job is; written once, before its first checkpoint
    plan          the ranges, a write per generation; which write counts is said by the checkpoint
    checkpoints   the only commit point: the lease, the job's row and a row per vnode, all written anew by each commit
    requests      what operators asked for; written by them, acknowledged in a checkpoint

Nothing that must agree is spread over two tables. A crash before a checkpoint leaves rows in `jobs` or `plan` that no checkpoint
names, and nobody reads them. A job exists from its first checkpoint on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from progress.delta_table import DEFAULT_RETENTION, BuriedError, OvertakenError, Retention, StateTable, state_errors
from progress.job_rows import (
    ESTIMATE_COLUMNS,
    JOB_SCHEMA,
    PLAN_SCHEMA,
    JobRecord,
    estimates_from_rows,
    plan_from_rows,
    read_record,
)
from progress.lease import Heartbeat, Lease
from progress.report import AskedRequest, Estimates
from progress.requests import REQUEST_SCHEMA, read_requests, with_request
from progress.state import BackfillState, Request, RequestKind
from progress.state_rows import CHECKPOINT_SCHEMA, JOB, LEASE, Bookkeeping, check_version, document_of, from_rows
from vnode_backfill.errors import StateError
from vnode_backfill.keys import SplitPlan

DRIVER = "driver"
"""The application id under which the `checkpoints` table counts drivers."""
_ATTEMPTS = 20
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
class Checkpoint:
    """The `checkpoints` table as one reader saw it.

    `rows` are its job and vnode rows; `generation` counts the drivers there have been, in all jobs of this name.
    """

    handle: DeltaTable
    generation: int
    rows: pa.Table
    lease: Lease | None


class StateReader:
    """The state of one job, to be looked at and asked of, but not committed to."""

    def __init__(
        self,
        path: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        retention: Retention = DEFAULT_RETENTION,
    ) -> None:
        options = dict(storage_options or {})
        self.job = job
        self.folder = f"{path.rstrip('/')}/{folder_name(job)}"
        self._now = now
        self._jobs = StateTable(f"{self.folder}/jobs", JOB_SCHEMA, options, retention)
        self._plan = StateTable(f"{self.folder}/plan", PLAN_SCHEMA, options, retention)
        self._checkpoints = StateTable(f"{self.folder}/checkpoints", CHECKPOINT_SCHEMA, options, retention)
        self._requests = StateTable(f"{self.folder}/requests", REQUEST_SCHEMA, options, retention)
        self._heartbeat = Heartbeat(self.folder, options)

    def exists(self) -> bool:
        found = self._look()
        return found is not None and document_of(found.rows, JOB) is not None

    def load(self) -> Loaded | None:
        """The job as its last checkpoint left it, or None if there is none. A driver loads after it has the lease."""
        found = self._read()
        if found is None:
            return None
        record, state, books, _ = found
        rows = _rows_that_count(self._plan.read(self._plan.open()), books)
        return Loaded(record, plan_from_rows(record, rows), state, books.percent)

    def status_snapshot(self) -> Snapshot | None:
        """What there is to show; of the plan only how many rows each range was estimated to hold."""
        found = self._read()
        if found is None:
            return None
        record, state, books, checkpoint = found
        lease = self._lease_now(checkpoint)
        return Snapshot(record, self._estimates_of(books), state, books.percent, lease, self._asked(state, books))

    def current_lease(self) -> Lease | None:
        """The lease of whoever drives the job now."""
        found = self._look()
        return None if found is None else self._lease_now(found)

    def check_possible(self, kind: RequestKind) -> None:
        """Refuse what makes no sense for a job of this kind; of several vnodes everything can be asked."""

    def append_request(self, request: Request, who: str, host: str) -> int:
        """Write down what an operator asks for; the number it gets (instead of its own) is that of the acknowledgement."""
        self.check_possible(request.kind)
        found = self._read()
        if found is None:
            raise StateError(
                f"job {self.job!r} does not exist in {self.folder}",
                hint="Start it with `vnode-backfill run`, or check `job` and `state.path`.",
            )
        asked = AskedRequest(request, who, host, self._now())
        for _ in range(_ATTEMPTS):
            handle = self._requests.open()
            rows, number = with_request(self._requests.read(handle), found[0].id, asked)
            try:
                written = self._requests.replace(handle, rows)
            except BuriedError:
                return number  # whoever came next has read it and kept it
            except OvertakenError:
                continue
            self._requests.tidy_sometimes(written)
            return number
        raise StateError(f"the request to {request.kind} could not be written", detail="Others keep writing requests.")

    def _look(self) -> Checkpoint | None:
        handle = self._checkpoints.open()
        if handle is None:
            return None
        with state_errors(f"{self._checkpoints.uri} cannot be read"):
            generation = handle.transaction_version(DRIVER) or 0
        rows = self._checkpoints.read(handle)
        document, lease = document_of(rows, JOB), document_of(rows, LEASE)
        if document is not None:
            check_version(document)
        state_rows = rows.filter(pc.not_equal(rows["row"], LEASE))
        return Checkpoint(handle, generation, state_rows, None if lease is None else Lease.from_json(lease))

    def _read(self) -> tuple[JobRecord, BackfillState, Bookkeeping, Checkpoint] | None:
        """The checkpoint and the record it belongs to; a job dropped and created again in between is looked at again."""
        for _ in range(_ATTEMPTS):
            found = self._look()
            stored = None if found is None else from_rows(found.rows)
            if found is None or stored is None:
                return None
            state, books = stored
            record = read_record(self._jobs.read(self._jobs.open()), books.job)
            if record is not None:
                self._check(record, state)
                return record, state, books, found
        raise StateError(f"the checkpoints of job {self.job!r} belong to a job that is not in the `jobs` table")

    def _check(self, record: JobRecord, state: BackfillState) -> None:
        if record.name != self.job or record.vnode_count != len(state.vnodes):
            raise StateError(
                f"the state of job {self.job!r} with {len(state.vnodes)} vnodes contradicts its record",
                detail=f"The record is of job {record.name!r} with {record.vnode_count} vnodes.",
            )

    def _estimates_of(self, books: Bookkeeping) -> Estimates:
        return estimates_from_rows(_rows_that_count(self._plan.read(self._plan.open(), ESTIMATE_COLUMNS), books))

    def _asked(self, state: BackfillState, books: Bookkeeping) -> tuple[AskedRequest, ...]:
        """Open requests, and those whose answer the state still holds."""
        old = books.requests - {answer.request for answer in state.acknowledged}
        asked = read_requests(self._requests.read(self._requests.open()), books.job)
        return tuple(each for each in asked if each.request.id not in old)

    def _lease_now(self, found: Checkpoint) -> Lease | None:
        lease = self._with_heartbeat(found.lease)
        return lease if lease and lease.held_at(self._now()) and not lease.process.has_ended else None

    def _with_heartbeat(self, lease: Lease | None) -> Lease | None:
        heartbeat = None if lease is None else self._heartbeat.expiry(lease.generation)
        if lease is None or heartbeat is None:
            return lease
        return replace(lease, expires=max(lease.expires, heartbeat))


def folder_name(job: str) -> str:
    """A name for the job's folder that no other job has, whatever characters the job's name holds."""
    text = job.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if _PLAIN_NAME.match(bytes([byte])) else f"~{byte:02x}" for byte in text)
    if name and len(name) <= _LONGEST_FOLDER:
        return name
    return f"{name[: _LONGEST_FOLDER - 80]}~~{hashlib.sha256(text).hexdigest()}"


def _rows_that_count(rows: pa.Table, books: Bookkeeping) -> pa.Table:
    writes = pa.array([write for _, write in books.plans], pa.string())
    return rows.filter(pc.is_in(rows["write"], writes))
