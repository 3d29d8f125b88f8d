"""The state of a single executor's job: schema v1 on storage, with the lease, the fencing and the commits of every other job.

`StateStore` decides when a commit may land; here only the form of what is written differs: one row of the table `walk` (see
`single_rows`) instead of the rows of `checkpoints`. The cursor of the walk goes with the state of the epoch that moved it: it is
handed over (`walked`) when the sink has the rows, and written by the commit that ends that epoch, never by an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from progress.delta_table import DEFAULT_RETENTION, Retention, StateTable, state_errors
from progress.job_rows import JobRecord
from progress.lease import Lease, Process
from progress.report import Estimates
from progress.single_rows import PLANS, WALK_SCHEMA, StoredWalk, from_row, record_from_json, record_to_json, to_row
from progress.single_state import Walk, rows_left, shown, walk_plan_of
from progress.state import BackfillState, RequestKind
from progress.state_reader import DRIVER, Checkpoint, Loaded, Snapshot
from progress.state_rows import CHECKPOINT_SCHEMA, Bookkeeping, document_of, document_row, from_rows, to_rows
from progress.store import StateStore
from vnode_backfill.epoch import Epoch
from vnode_backfill.errors import LawBrokenError, PlanRefusedError, StateError
from vnode_backfill.keys import SplitPlan, key_from_text, key_to_text

__all__ = ["SingleStore", "store_of"]

_WALK, _RECORD = "walk", "record"
_NO_WALK = Walk(Epoch(0))
_NOT_FOR_A_WALK = {
    RequestKind.RESCALE: "the single executor has one reader",
    RequestKind.RESNAPSHOT: "the single executor cannot tell which rows of the target a stretch of keys holds",
}


def store_of(
    path: str,
    job: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    single: bool,
    retention: Retention = DEFAULT_RETENTION,
) -> StateStore:
    """The store that holds the job: v2, else v1, else the one in which a job of the asked executor would be created."""
    parallel = StateStore(path, job, storage_options, retention=retention)
    walking = SingleStore(path, job, storage_options, retention=retention)
    if parallel.exists():
        return parallel
    return walking if single or walking.exists() else parallel


class SingleStore(StateStore):
    """The state of one job of the single executor, for its driver and for those who look at it."""

    def __init__(
        self,
        path: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        retention: Retention = DEFAULT_RETENTION,
        process: Process | None = None,
    ) -> None:
        super().__init__(path, job, storage_options, now=now, retention=retention, process=process)
        self._checkpoints = StateTable(f"{self.folder}/walk", WALK_SCHEMA, dict(storage_options or {}), retention)
        self._walk, self._next = _NO_WALK, _NO_WALK
        self._record: JobRecord | None = None

    @property
    def walk(self) -> Walk:
        """The cursor as it was committed last."""
        return self._walk

    def walked(self, walk: Walk) -> None:
        """The sink holds everything up to this cursor; the commit that ends its epoch will say so."""
        with self._lock:
            self._next = walk

    def create(self, record: JobRecord, plan: SplitPlan, state: BackfillState, lease: Lease) -> None:
        """Bring the job into being with its cursor before the first key; refused if it exists."""
        with self._lock:
            if self._own_lease().generation != lease.generation or record.name != self.job:
                raise LawBrokenError(f"job {record.name!r} cannot be created as {self.job!r} with {lease}")
            if self._committed is not None:
                raise StateError(f"job {self.job!r} exists already", hint="Drop it first with `vnode-backfill drop`.")
            estimated = sum(planned.estimated_rows for planned in plan.ranges)
            self._record, self._books = record, Bookkeeping(record.id, PLANS)
            self._walk = self._next = Walk(state.epoch, estimated_rows=estimated)
            self.commit(state)

    def write_plan(self, plan: SplitPlan, generation: int) -> None:
        """A walk has no plan to store."""

    def load(self) -> Loaded | None:
        stored = self.stored()
        if stored is None:
            return None
        plan = walk_plan_of(stored.record.definition, stored.walk)
        return Loaded(stored.record, plan, stored.state, stored.books.percent)

    def stored(self) -> StoredWalk | None:
        """The job as its last commit left it, cursor included."""
        found = self._look()
        return None if found is None else _stored(found.rows)

    def status_snapshot(self) -> Snapshot | None:
        found = self._look()
        stored = None if found is None else _stored(found.rows)
        if found is None or stored is None:
            return None
        return Snapshot(
            stored.record,
            rows_left(stored.state, stored.walk),
            shown(stored.state, stored.walk),
            stored.books.percent,
            self._lease_now(found),
            self._asked(stored.state, stored.books),
        )

    def check_possible(self, kind: RequestKind) -> None:
        if kind in _NOT_FOR_A_WALK:
            raise PlanRefusedError(
                f"job {self.job!r} cannot be asked to {kind}: {_NOT_FOR_A_WALK[kind]}",
                hint="Go on with `executor: parallel`, or drop the job and create it again.",
            )

    def retire(self) -> None:
        """Take the job out of this table because it goes on in another; its requests stay."""
        with self._lock:
            lease = self._own_lease()
            self._write_released(lease, keep_rows=False)
            if self._lease is not None:
                raise self._fenced(lease, self._look())
            self._remember(None)

    def _look(self) -> Checkpoint | None:
        """The row in the form in which the base class handles a state; the cursor and the record travel as documents."""
        handle = self._checkpoints.open()
        if handle is None:
            return None
        with state_errors(f"{self._checkpoints.uri} cannot be read"):
            generation = handle.transaction_version(DRIVER) or 0
        stored, lease = from_row(self._checkpoints.read(handle))
        rows = CHECKPOINT_SCHEMA.empty_table() if stored is None else _rows(stored)
        return Checkpoint(handle, generation, rows, lease)

    def _read(self) -> tuple[JobRecord, BackfillState, Bookkeeping, Checkpoint] | None:
        found = self._look()
        stored = None if found is None else _stored(found.rows)
        return None if found is None or stored is None else (stored.record, stored.state, stored.books, found)

    def _write(
        self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, transactions: Mapping[str, int] | None = None
    ) -> None:
        stored = self._to_store(rows)
        numbered = {DRIVER: lease.generation, **(transactions or {})}
        self._handle = self._checkpoints.replace(handle, to_row(stored, lease), numbered)
        self._lease = None if lease.released else lease
        if stored is not None:
            self._walk, self._record = stored.walk, stored.record

    def _to_store(self, rows: pa.Table) -> StoredWalk | None:
        """Rows that were looked at bring their cursor along; a new state gets the one of its epoch."""
        if document_of(rows, _WALK) is not None:
            return _stored(rows)
        found = from_rows(rows)
        if found is None:
            return None
        if self._record is None:
            raise LawBrokenError(f"a state of job {self.job!r} would be written without its record")
        return StoredWalk(self._record, *found, self._walk_of(found[0]))

    def _walk_of(self, state: BackfillState) -> Walk:
        return self._next if self._walk.epoch < self._next.epoch <= state.epoch else self._walk

    def _books_of(self, state: BackfillState) -> Bookkeeping:
        walk = self._walk_of(state)
        self._estimates = rows_left(state, walk)
        return super()._books_of(shown(state, walk))

    def _estimates_of(self, books: Bookkeeping) -> Estimates:  # noqa: ARG002 - the cursor knows
        return Estimates({})


def _rows(stored: StoredWalk) -> pa.Table:
    walk = stored.walk
    key = "" if walk.last_key is None else key_to_text(walk.last_key)
    cursor = "\n".join([str(walk.epoch), str(walk.rows), str(walk.estimated_rows), key])
    return pa.concat_tables(
        [
            to_rows(stored.state, stored.books),
            document_row(_WALK, cursor),
            document_row(_RECORD, record_to_json(stored.record)),
        ]
    )


def _stored(rows: pa.Table) -> StoredWalk | None:
    found, cursor, record = from_rows(rows), document_of(rows, _WALK), document_of(rows, _RECORD)
    if found is None or cursor is None or record is None:
        return None
    epoch, count, estimated, key = cursor.split("\n", 3)
    walk = Walk(Epoch(int(epoch)), key_from_text(key) if key else None, int(count), int(estimated))
    return StoredWalk(record_from_json(record), *found, walk)
