"""Keeps the state of the parallel executor: a row per vnode in `checkpoints`, ranges in `plan`, the record in `jobs`.

`checkpoints` is the only commit point: the job's own, or the one that all tables of a job share
(`shared_checkpoints`). Rows of the other two tables count when a checkpoint names them, so a crash before it leaves
rows that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState, RequestKind
from progress.state.estimates import Estimates
from progress.state.make_report import percent_of
from progress.store.kind_of_job import rows_of_one
from progress.store.lease import Lease
from progress.store.rows.checkpoint_rows import (
    CHECKPOINT_SCHEMA,
    JOB,
    LEASE,
    Bookkeeping,
    check_version,
    document_of,
    document_row,
)
from progress.store.rows.job_rows import (
    ESTIMATE_COLUMNS,
    JOB_SCHEMA,
    PLAN_SCHEMA,
    JobRecord,
    estimates_from_rows,
    plan_from_rows,
    plan_rows,
    read_record,
    record_row,
)
from progress.store.state_form import DRIVER, Checkpoint, CommitPoint, StateFolder
from progress.store.state_table import StateTable, as_schema, rows_where, state_errors
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.key_range import SplitPlan


class OwnCheckpoints:
    """The table `checkpoints` of a job of one table; see `state_form.CommitPoint`."""

    def __init__(self, folder: StateFolder) -> None:
        self._job = folder.job
        self.commits = folder.table("checkpoints", CHECKPOINT_SCHEMA)

    @property
    def joined(self) -> Lease | None:
        return None

    def look(self) -> Checkpoint | None:
        handle = self.commits.open()
        if handle is None:
            return None
        with state_errors(f"{self.commits.uri} cannot be read"):
            generation = handle.transaction_version(DRIVER) or 0
        rows = rows_of_one(self._job, self.commits.read(handle))
        document, lease = document_of(rows, JOB), document_of(rows, LEASE)
        if document is not None:
            check_version(document)
        state_rows = rows_where(rows, (kind != LEASE for kind in rows["row"].to_pylist()))
        return Checkpoint(handle, generation, state_rows, None if lease is None else Lease.from_json(lease))

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        return self.commits.transaction_version(handle, app_id)

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        content = pa.concat_tables([document_row(LEASE, lease.to_json()), rows])
        return self.commits.replace(handle, content, numbered)


class CheckpointForm:
    """State schema v2; see `state_form.StateForm` for what each method promises."""

    def __init__(self, folder: StateFolder, point: CommitPoint | None = None) -> None:
        self._job = folder.job
        self._point = point or OwnCheckpoints(folder)
        self._jobs = folder.table("jobs", JOB_SCHEMA)
        self._plan = folder.table("plan", PLAN_SCHEMA)
        self._estimates: Estimates | None = Estimates({})
        """None until they are needed, or the plan is read for another reason."""

    @property
    def commits(self) -> StateTable:
        return self._point.commits

    @property
    def joined(self) -> Lease | None:
        return self._point.joined

    @property
    def others(self) -> tuple[StateTable, ...]:
        return self._jobs, self._plan

    def look(self) -> Checkpoint | None:
        return self._point.look()

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        return self._point.landed(handle, app_id)

    def record(self, rows: pa.Table, state: BackfillState, books: Bookkeeping) -> JobRecord | None:  # noqa: ARG002
        record = read_record(self._jobs.rows(), books.job)
        if record is not None and (record.name != self._job or record.vnode_count != len(state.vnodes)):
            raise StateError(
                f"the state of job {self._job!r} with {len(state.vnodes)} vnodes contradicts its record",
                detail=f"The record is of job {record.name!r} with {record.vnode_count} vnodes.",
            )
        return record

    def plan(self, record: JobRecord, rows: pa.Table, books: Bookkeeping) -> SplitPlan:  # noqa: ARG002
        plan = plan_from_rows(record, _rows_that_count(self._plan.rows(), books))
        if self._estimates is None:
            self._estimates = Estimates.of(plan)
        return plan

    def shown(self, _rows: pa.Table, state: BackfillState, books: Bookkeeping) -> tuple[Estimates, BackfillState]:
        """Estimates matter while ranges are unread. Afterwards every range is among the reads, and no plan is read."""
        if state.backfill_finished:
            return Estimates({ordinal: 0 for vnode in state.vnodes for ordinal, _ in vnode.reads}), state
        return self._stored_estimates(books), state

    def check_possible(self, kind: RequestKind) -> None:
        """Of several vnodes everything can be asked."""

    def create(self, record: JobRecord, plan: SplitPlan, state: BackfillState) -> Bookkeeping:  # noqa: ARG002
        self._jobs.add(record_row(record))
        return Bookkeeping(record.id)

    def change_record(self, record: JobRecord, still_ours: Callable[[], object]) -> None:
        handle = self._jobs.open()
        still_ours()
        rows = self._jobs.read(handle)
        others = as_schema(rows_where(rows, (id_ != record.id for id_ in rows["id"].to_pylist())), JOB_SCHEMA)
        self._jobs.replace(handle, pa.concat_tables([others, record_row(record)]))

    def write_plan(self, plan: SplitPlan, generation: int, books: Bookkeeping) -> Bookkeeping:
        write = uuid4().hex
        rows = plan_rows(plan, generation, write)
        if rows.num_rows:
            self._plan.add(rows)
        kept = tuple(pair for pair in books.plans if pair[0] < generation)
        self._estimates = Estimates.of(plan.at(generation))
        return replace(books, plans=(*kept, (generation, write)))

    def percent(self, state: BackfillState, books: Bookkeeping) -> float:
        if self._estimates is None:
            self._estimates = self._stored_estimates(books)
        return percent_of(self._estimates, state, books.percent)

    def remember(self, books: Bookkeeping | None) -> None:
        self._estimates = Estimates({}) if books is None else None

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        return self._point.write(handle, rows, lease, numbered)

    def _stored_estimates(self, books: Bookkeeping) -> Estimates:
        """Only the estimates are read: the bounds of a large plan are most of it."""
        return estimates_from_rows(_rows_that_count(self._plan.rows(ESTIMATE_COLUMNS), books))


def _rows_that_count(rows: pa.Table, books: Bookkeeping) -> pa.Table:
    writes = {write for _, write in books.plans}
    return rows_where(rows, (write in writes for write in rows["write"].to_pylist()))
