"""Reads a job's state, whether a driver runs or not, and writes requests for that driver.

A job has its own folder under the state path, named after it (characters other than plain letters are written as
`~2f`), and in it four Delta tables. No name ever becomes part of a query.

    jobs          one row: what the job is; written before its first checkpoint
    plan          the ranges, a write per generation; which write counts is said by the checkpoint
    checkpoints   the only commit point: the lease, the job's row and a row per vnode, all written again by each commit
    requests      what operators asked for; written by them, acknowledged in a checkpoint

Nothing that must agree is spread over two tables. A crash before a checkpoint leaves rows in `jobs` or `plan` that no
checkpoint names, and nobody reads them. A job exists from its first checkpoint on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from progress.state.backfill_state import BackfillState, Request, RequestKind
from progress.state.estimates import Estimates
from progress.state.report import AskedRequest
from progress.store.checkpoint_form import CheckpointForm
from progress.store.lease import Heartbeat, Lease
from progress.store.rows.checkpoint_rows import JOB, Bookkeeping, document_of
from progress.store.rows.job_rows import JobRecord
from progress.store.rows.request_rows import REQUEST_SCHEMA, read_requests, with_requests
from progress.store.state_form import Checkpoint, MakeForm, StateFolder
from progress.store.state_table import DEFAULT_RETENTION, Retention, StateTable
from vnode_backfill.words.errors import BuriedError, OvertakenError, StateError
from vnode_backfill.words.key_range import SplitPlan

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
class Identity:
    """What the job is, the id under which requests to it are kept, and who drives it now."""

    record: JobRecord
    asked_as: str
    lease: Lease | None


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
class Shown:
    """What is shown of one table among many: the same without its record, whose reading costs more than all else."""

    estimates: Estimates
    state: BackfillState
    percent: float
    asked: tuple[AskedRequest, ...]


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
        form: MakeForm = CheckpointForm,
        asked_in: str | None = None,
    ) -> None:
        """`asked_in` is the folder of the requests and of the driver's signs of life, where that is another one."""
        options = dict(storage_options or {})
        self.job = job
        self.folder = f"{path.rstrip('/')}/{folder_name(job)}"
        self._now = now
        self._form = form(StateFolder(self.folder, job, options, retention))
        self.lease_folder = asked_in or self.folder
        """Where the driver gives its signs of life, which tasks look for."""
        self._requests = StateTable(f"{self.lease_folder}/requests", REQUEST_SCHEMA, options, retention)
        self._heartbeat = Heartbeat(self.lease_folder, options)

    def exists(self) -> bool:
        found = self._form.look()
        return found is not None and document_of(found.rows, JOB) is not None

    def identity(self) -> Identity | None:
        """What a request needs to know of the job, which is not its plan; None if there is none."""
        found = self._read()
        if found is None:
            return None
        record, _, books, checkpoint = found
        return Identity(record, books.asked_as, self.lease_now(checkpoint.lease))

    def load(self) -> Loaded | None:
        """The job as its last checkpoint left it, or None if there is none. A driver loads after it has the lease."""
        found = self._read()
        if found is None:
            return None
        record, state, books, checkpoint = found
        return Loaded(record, self._form.plan(record, checkpoint.rows, books), state, books.percent)

    def shown(self, asked: pa.Table) -> Shown | None:
        """What there is to show of one table among many; `asked` are the requests, which the caller has read."""
        found = self._form.look()
        stored = None if found is None else found.stored()
        if found is None or stored is None:
            return None
        state, books = stored
        estimates, state = self._form.shown(found.rows, state, books)
        return Shown(estimates, state, books.percent, self._asked(state, books, asked))

    def status_snapshot(self) -> Snapshot | None:
        """What there is to show; of the plan only how many rows each range was estimated to hold."""
        found = self._read()
        if found is None:
            return None
        record, state, books, checkpoint = found
        estimates, shown = self._form.shown(checkpoint.rows, state, books)
        lease = self.lease_now(checkpoint.lease)
        return Snapshot(record, estimates, shown, books.percent, lease, self._asked(state, books))

    def current_lease(self) -> Lease | None:
        """The lease of the driver that runs the job now."""
        found = self._form.look()
        return None if found is None else self.lease_now(found.lease)

    def check_possible(self, kind: RequestKind) -> None:
        """Refuse what makes no sense for a job of this executor."""
        self._form.check_possible(kind)

    def append_request(self, request: Request, who: str, host: str) -> int:
        """Write down what an operator asks for; the number it gets (instead of its own) is that of the
        acknowledgement."""
        self.check_possible(request.kind)
        found = self._read()
        if found is None:
            raise StateError(
                f"job {self.job!r} does not exist in {self.folder}",
                hint="Start it with `vnode-backfill run`, or check `job` and `state.path`.",
            )
        job = found[2].asked_as
        return self.append_requests({job: request}, who, host)[job]

    def append_requests(self, requests: Mapping[str, Request], who: str, host: str) -> dict[str, int]:
        """Write down what is asked of these jobs, by their ids, in one step; the numbers that the requests get."""
        now = self._now()
        asked = {job: AskedRequest(request, who, host, now) for job, request in requests.items()}
        for _ in range(_ATTEMPTS):
            handle = self._requests.open()
            rows, numbers = with_requests(self._requests.read(handle), asked)
            try:
                written = self._requests.replace(handle, rows)
            except BuriedError:
                return numbers  # the next writer has read it and kept it
            except OvertakenError:
                continue
            self._requests.tidy_sometimes(written)
            return numbers
        kinds = ", ".join(sorted({str(request.kind) for request in requests.values()}))
        raise StateError(f"the request to {kinds} could not be written", detail="Others keep writing requests.")

    def requests_since(self, version: int) -> tuple[int, pa.Table | None]:
        """The newest version of the requests, and their rows if that is another one than `version`."""
        handle = self._requests.open()
        newest = -1 if handle is None else handle.version()
        return newest, None if newest == version else self._requests.read(handle)

    def _read(self) -> tuple[JobRecord, BackfillState, Bookkeeping, Checkpoint] | None:
        """The checkpoint and the record it belongs to; a job dropped and created again in between is looked at
        again."""
        for _ in range(_ATTEMPTS):
            found = self._form.look()
            stored = None if found is None else found.stored()
            if found is None or stored is None:
                return None
            state, books = stored
            record = self._form.record(found.rows, state, books)
            if record is not None:
                return record, state, books, found
        raise StateError(f"the checkpoints of job {self.job!r} belong to a job that is not in the `jobs` table")

    def _asked(
        self, state: BackfillState, books: Bookkeeping, rows: pa.Table | None = None
    ) -> tuple[AskedRequest, ...]:
        """Open requests, and those whose answer the state still holds."""
        old = books.requests - {answer.request for answer in state.acknowledged}
        asked = read_requests(self._requests.read(self._requests.open()) if rows is None else rows, books.asked_as)
        return tuple(each for each in asked if each.request.id not in old)

    def lease_now(self, lease: Lease | None) -> Lease | None:
        """The lease that was found, if its driver still runs the job."""
        lease = self._with_heartbeat(lease)
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
