"""Keeps the state of a single executor's job: schema v1, with the lease, the fencing and the commits of every job.

`StateStore` decides when a commit may land. `WalkForm` decides what is written: one row of the table `walk` (see
`walk_rows`) instead of the rows of `checkpoints`. The cursor of the walk goes with the state of the epoch that moved
it. It is handed over (`walked`) when the sink has the rows, and written by the commit that ends that epoch, never by an
earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState, RequestKind
from progress.state.estimates import Estimates
from progress.state.make_report import percent_of
from progress.state.walk_state import Walk, rows_left, shown, walk_plan_of
from progress.store.lease import Lease, Process
from progress.store.rows.checkpoint_rows import (
    CHECKPOINT_SCHEMA,
    Bookkeeping,
    document_of,
    document_row,
    from_rows,
    to_rows,
)
from progress.store.rows.job_rows import JobRecord
from progress.store.rows.walk_rows import (
    PLANS,
    WALK_SCHEMA,
    StoredWalk,
    from_row,
    record_from_json,
    record_to_json,
    to_row,
)
from progress.store.state_form import DRIVER, Checkpoint, StateFolder
from progress.store.state_table import DEFAULT_RETENTION, Retention, StateTable, state_errors
from progress.store.store import StateStore
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, PlanRefusedError
from vnode_backfill.words.key_range import SplitPlan, key_from_text, key_to_text

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


@dataclass
class Cursor:
    """Where the walk is: as it was committed last, and as the commit that ends the epoch in progress will say."""

    committed: Walk = _NO_WALK
    following: Walk = _NO_WALK

    def of(self, state: BackfillState) -> Walk:
        """The cursor that goes with `state`: the following one if its epoch has ended with it."""
        return self.following if self.committed.epoch < self.following.epoch <= state.epoch else self.committed


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
        self._cursor = cursor = Cursor()
        super().__init__(
            path, job, storage_options, now=now, retention=retention, process=process,
            form=lambda folder: WalkForm(folder, cursor),
        )  # fmt: skip

    @property
    def walk(self) -> Walk:
        """The cursor as it was committed last."""
        return self._cursor.committed

    def walked(self, walk: Walk) -> None:
        """The sink holds everything up to this cursor; the commit that ends its epoch will say so."""
        self._cursor.following = walk

    def stored(self) -> StoredWalk | None:
        """The job as its last commit left it, cursor included."""
        found = self._form.look()
        return None if found is None else _stored(found.rows)


class WalkForm:
    """State schema v1: one row of the table `walk`; see `state_form.StateForm` for what each method promises.

    Rows are handled as `StateStore` knows them, those of `checkpoints`; the cursor and the record are two more
    documents among them.
    """

    def __init__(self, folder: StateFolder, cursor: Cursor) -> None:
        self._job, self._cursor = folder.job, cursor
        self._commits = folder.table("walk", WALK_SCHEMA)
        self._record: JobRecord | None = None

    @property
    def commits(self) -> StateTable:
        return self._commits

    @property
    def joined(self) -> Lease | None:
        """A walk is a job of its own."""
        return None

    @property
    def others(self) -> tuple[StateTable, ...]:
        return ()

    def look(self) -> Checkpoint | None:
        handle = self._commits.open()
        if handle is None:
            return None
        with state_errors(f"{self._commits.uri} cannot be read"):
            generation = handle.transaction_version(DRIVER) or 0
        stored, lease = from_row(self._commits.read(handle))
        rows = CHECKPOINT_SCHEMA.empty_table() if stored is None else _rows(stored)
        return Checkpoint(handle, generation, rows, lease)

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        return self._commits.transaction_version(handle, app_id)

    def record(self, rows: pa.Table, state: BackfillState, books: Bookkeeping) -> JobRecord | None:  # noqa: ARG002
        stored = _stored(rows)
        return None if stored is None else stored.record

    def plan(self, record: JobRecord, rows: pa.Table, books: Bookkeeping) -> SplitPlan:  # noqa: ARG002
        return walk_plan_of(record.definition, _walk(rows))

    def shown(self, rows: pa.Table, state: BackfillState, _books: Bookkeeping) -> tuple[Estimates, BackfillState]:
        walk = _walk(rows)
        return rows_left(state, walk), shown(state, walk)

    def check_possible(self, kind: RequestKind) -> None:
        if kind in _NOT_FOR_A_WALK:
            raise PlanRefusedError(
                f"job {self._job!r} cannot be asked to {kind}: {_NOT_FOR_A_WALK[kind]}",
                hint="Go on with `executor: parallel`, or drop the job and create it again.",
            )

    def create(self, record: JobRecord, plan: SplitPlan, state: BackfillState) -> Bookkeeping:
        """The cursor of a new job is before the first key."""
        estimated = sum(planned.estimated_rows for planned in plan.ranges)
        self._record = record
        self._cursor.committed = self._cursor.following = Walk(state.epoch, estimated_rows=estimated)
        return Bookkeeping(record.id, PLANS)

    def change_record(self, record: JobRecord, still_ours: Callable[[], object]) -> None:
        found = self.look()
        still_ours()
        stored = None if found is None else _stored(found.rows)
        if found is None or found.lease is None or stored is None:
            raise LawBrokenError(f"the record of job {self._job!r} cannot change: there is no such job")
        self._commits.replace(found.handle, to_row(replace(stored, record=record), found.lease))
        self._record = record

    def write_plan(self, plan: SplitPlan, generation: int, books: Bookkeeping) -> Bookkeeping:  # noqa: ARG002
        """A walk has no plan to store."""
        return books

    def percent(self, state: BackfillState, books: Bookkeeping) -> float:
        walk = self._cursor.of(state)
        return percent_of(rows_left(state, walk), shown(state, walk), books.percent)

    def remember(self, books: Bookkeeping | None) -> None:
        """The cursor came with the rows that were taken over."""

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        stored = self._to_store(rows)
        landed = self._commits.replace(handle, to_row(stored, lease), numbered)
        if stored is not None:
            self._cursor.committed, self._record = stored.walk, stored.record
        return landed

    def _to_store(self, rows: pa.Table) -> StoredWalk | None:
        """Rows that were looked at bring their cursor along; a new state gets the one of its epoch."""
        if document_of(rows, _WALK) is not None:
            return _stored(rows)
        found = from_rows(rows)
        if found is None:
            return None
        if self._record is None:
            raise LawBrokenError(f"a state of job {self._job!r} would be written without its record")
        return StoredWalk(self._record, *found, self._cursor.of(found[0]))


def _walk(rows: pa.Table) -> Walk:
    stored = _stored(rows)
    if stored is None:
        raise LawBrokenError("a state of the single executor was read without its cursor")
    return stored.walk


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
