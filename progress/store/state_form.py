"""Says what an executor's state must be able to do, whatever tables it is kept in.

`StateStore` decides when a commit may land: the lease, the fencing, the revisions and the requests are the same for
every job. A form decides what is written. There are two: `checkpoint_form` (a row per vnode, for the parallel executor)
and `walk_store` (one row with a cursor, for the single executor). A store is given its form and never looks inside it.

What must be true of a form: `look` returns rows that `write` accepts unchanged, so that a driver can take a job over
without understanding every row; and a state is read back exactly as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState, RequestKind
from progress.state.estimates import Estimates
from progress.state.parked import ParkedDocument, may_rest, moved_on
from progress.store.lease import Lease
from progress.store.rows.checkpoint_rows import Bookkeeping, from_rows
from progress.store.rows.job_rows import JobRecord
from progress.store.state_table import Retention, StateTable
from vnode_backfill.words.key_range import SplitPlan

DRIVER = "driver"
"""The application id under which the table of commits counts drivers."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Where the tables of one job are, and how they are kept."""

    path: str
    job: str
    options: Mapping[str, str]
    retention: Retention

    def table(self, name: str, schema: pa.Schema) -> StateTable:
        return StateTable(f"{self.path}/{name}", schema, self.options, self.retention)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The table of commits as one reader saw it.

    `rows` are its job and vnode rows; `generation` counts the drivers there have been, in all jobs of this name.
    """

    handle: DeltaTable
    generation: int
    rows: pa.Table
    lease: Lease | None
    parked: ParkedDocument | None = None
    """How far tables are that rest; see `progress.state.parked`."""

    def stored(self) -> tuple[BackfillState, Bookkeeping] | None:
        """The state and what is kept with it, as it is by now; None where the rows hold no job."""
        found = from_rows(self.rows)
        if found is None or self.parked is None:
            return found
        state, books = found
        reached = self.parked.of_table(books.job, state.revision)
        return found if reached is None or not may_rest(state) else (moved_on(state, reached), books)


class CommitPoint(Protocol):
    """Where a state is committed: a table of its own, or one that a job's tables share."""

    @property
    def commits(self) -> StateTable: ...

    @property
    def joined(self) -> Lease | None:
        """The lease that this process holds for all tables of a job; None where a state has a lease of its own."""
        ...

    def look(self) -> Checkpoint | None: ...

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        """The last application transaction of this id at the handle's version."""
        ...

    def write(
        self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]
    ) -> DeltaTable: ...


class StateForm(Protocol):
    """One executor's state in its tables. Its store calls it from one thread at a time."""

    @property
    def commits(self) -> StateTable:
        """The table whose commit makes a state the job's."""
        ...

    @property
    def joined(self) -> Lease | None:
        """The lease that this process holds for all tables of a job; None where a state has a lease of its own."""
        ...

    @property
    def others(self) -> tuple[StateTable, ...]:
        """Tables whose rows count only where a commit names them."""
        ...

    def look(self) -> Checkpoint | None:
        """The newest commit; None before the first one."""
        ...

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        """The last application transaction of this id at the handle's version."""
        ...

    def record(self, rows: pa.Table, state: BackfillState, books: Bookkeeping) -> JobRecord | None:
        """What the job is; None if the rows belong to a job that was dropped since they were read."""
        ...

    def plan(self, record: JobRecord, rows: pa.Table, books: Bookkeeping) -> SplitPlan:
        """The ranges, up to the generation that the rows name."""
        ...

    def shown(self, rows: pa.Table, state: BackfillState, books: Bookkeeping, /) -> tuple[Estimates, BackfillState]:
        """How many rows each range is estimated to hold, and the state, as faces show them."""
        ...

    def check_possible(self, kind: RequestKind) -> None:
        """Raise PlanRefusedError for a request that this executor cannot carry out."""
        ...

    def create(self, record: JobRecord, plan: SplitPlan, state: BackfillState) -> Bookkeeping:
        """Prepare the first commit of a new job."""
        ...

    def change_record(self, record: JobRecord, still_ours: Callable[[], object]) -> None:
        """Write the record of the job again, or raise `OvertakenError` and change nothing.

        `still_ours` raises if another driver took over. It is called after the place was looked at where the record is
        written: whoever takes over later writes there too, and this write is refused.
        """
        ...

    def write_plan(self, plan: SplitPlan, generation: int, books: Bookkeeping) -> Bookkeeping:
        """Write one generation of ranges; it counts once a commit holds the bookkeeping that is returned."""
        ...

    def percent(self, state: BackfillState, books: Bookkeeping) -> float:
        """How far the job is with `state`; never less than `books` say."""
        ...

    def remember(self, books: Bookkeeping | None) -> None:
        """This driver has taken over a job with these books, or there is none any more."""
        ...

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        """Make the rows and the lease the newest commit, or raise `OvertakenError` and change nothing."""
        ...


MakeForm = Callable[[StateFolder], StateForm]
