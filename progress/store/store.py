"""Commits a job's state: by one driver only, in one step, or not at all.

Every commit writes the whole `checkpoints` table again (see `reader` for the tables) on top of the version that the
driver wrote last, and carries two application transactions. `<job id>/checkpoint` is the revision: a commit that is
repeated finds itself done and changes nothing. `driver` is the generation of the driver: it counts takeovers, outlives
a dropped job, and shows a driver that it was overtaken. Two drivers, the first of which sleeps while its lease runs
out:

    first: acquire → generation 1, version 0      commit revision 5 → version 6      sleeps
    second:                                       acquire → generation 2, version 7  commit revision 6 → version 8
    first wakes: commit revision 6 on version 6 → refused, as version 7 exists → looks again, generation 2 → FencedError

Dropping a job empties its tables but keeps them: their log is what fences a driver that sleeps through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import RLock

import pyarrow as pa
from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState, Request
from progress.state.report import AskedRequest
from progress.store.checkpoint_form import CheckpointForm
from progress.store.lease import Lease, Process
from progress.store.reader import Identity, Loaded, Snapshot, StateReader, folder_name
from progress.store.rows.checkpoint_rows import CHECKPOINT_SCHEMA, Bookkeeping, from_rows, to_rows
from progress.store.rows.job_rows import JobRecord
from progress.store.rows.request_rows import read_requests
from progress.store.state_form import DRIVER, Checkpoint, MakeForm
from progress.store.state_table import DEFAULT_RETENTION, Retention
from vnode_backfill.words.errors import FencedError, LawBrokenError, OvertakenError, StateError
from vnode_backfill.words.key_range import SplitPlan

__all__ = [
    "Identity",
    "JobRecord",
    "Lease",
    "Loaded",
    "Process",
    "Retention",
    "Snapshot",
    "StateReader",
    "StateStore",
    "folder_name",
]

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """The rows of one table's next state, to be written with those of others."""

    store: StateStore
    state: BackfillState
    books: Bookkeeping
    rows: pa.Table
    numbered: Mapping[str, int]

    @property
    def table(self) -> str:
        return self.store.job

    def landed(self, handle: DeltaTable) -> None:
        self.store.note_commit(self.state, self.books, handle)


class StateStore(StateReader):
    """The state of one job for its driver, which acquires the lease first. Safe to use from any thread."""

    def __init__(  # noqa: PLR0913 - the options are keyword-only
        self,
        path: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        retention: Retention = DEFAULT_RETENTION,
        process: Process | None = None,
        form: MakeForm = CheckpointForm,
        asked_in: str | None = None,
    ) -> None:
        super().__init__(path, job, storage_options, now=now, retention=retention, form=form, asked_in=asked_in)
        self._process = process or Process.current()
        self._tidy_every = retention.commits
        self._lock = RLock()
        self._lease: Lease | None = None
        self._handle: DeltaTable | None = None
        self._committed: BackfillState | None = None
        self._books: Bookkeeping | None = None
        self._commits = 0

    @property
    def lease(self) -> Lease | None:
        """The lease of this driver as it was last renewed; None if it has none or lost it."""
        return self._lease

    def acquire_lease(self, owner: str, duration: timedelta, *, wait_out: bool = False) -> Lease:
        """Become the job's driver, and fence every earlier one; refused while another's lease runs.

        The lease of a process that certainly ended on this machine does not have to run out, unless `wait_out` is set
        (for a sink that has no commits, into which tasks of the dead driver may still be writing). The job need not
        exist. A table of a job whose lease this process holds works under that lease.
        """
        with self._lock:
            if self._form.joined is not None:
                return self._join(self._form.joined)
            for _ in range(_ATTEMPTS):
                found = self._form.look()
                self._refuse_held(self._with_heartbeat(found.lease if found else None), wait_out=wait_out)
                now = self._now()
                lease = Lease(
                    (found.generation if found else 0) + 1, owner, self._process, now, now + duration, duration
                )
                rows = found.rows if found else CHECKPOINT_SCHEMA.empty_table()
                try:
                    self._write(found.handle if found else None, rows, lease)
                except OvertakenError:
                    continue
                self._remember(from_rows(rows))
                if found and found.lease:
                    self._heartbeat.remove(found.lease.generation)
                return lease
            raise StateError(f"the lease of job {self.job!r} could not be had", detail="Others keep writing it.")

    def renew(self) -> Lease:
        """Make the lease run its whole duration again, without a commit; raises FencedError if another driver took
        over."""
        with self._lock:
            # Taken before looking: what is promised must not begin later than what was seen.
            lease, now = self._own_lease(), self._now()
            if self._form.joined is not None:
                return lease  # the job's own store renews it
            found = self._form.look()
            if found is None or found.generation != lease.generation:
                raise self._fenced(lease, found)
            self._lease = lease.renewed(now)
            self._heartbeat.write(self._lease)
            return self._lease

    def release(self) -> None:
        """Give the lease back, so that the next driver need not wait.

        Without a lease, or if it was lost, nothing happens.
        """
        with self._lock:
            if self._lease is not None and self._form.joined is None:
                self._write_released(self._lease, keep_rows=True)
            self._lease = None

    def leave_lease(self) -> None:
        """Neither renew the lease any more nor give it back: it runs out."""
        with self._lock:
            self._lease = None

    def create(
        self, record: JobRecord, plan: SplitPlan, state: BackfillState, lease: Lease, *, asked_of: str = ""
    ) -> None:
        """Bring the job into being, by the driver that holds `lease`; refused if it exists.

        `asked_of` is the id under which requests are kept, if that is not the record's (see `Bookkeeping`).
        """
        with self._lock:
            self.prepare_create(record, plan, state, lease, asked_of=asked_of)
            self.commit(state)

    def prepare_create(
        self, record: JobRecord, plan: SplitPlan, state: BackfillState, lease: Lease, *, asked_of: str = ""
    ) -> None:
        """Write all that the first commit of a new job needs; the job exists once `state` is committed."""
        with self._lock:
            if self._own_lease().generation != lease.generation or record.name != self.job:
                raise LawBrokenError(f"job {record.name!r} cannot be created as {self.job!r} with {lease}")
            self.check_new()
            self._books = replace(self._form.create(record, plan, state), asked_of=asked_of)
            for generation in range(plan.generation + 1):
                self.write_plan(plan, generation)

    def check_new(self) -> None:
        """Refuse a job that somebody else has created since nobody had; by the driver that holds the lease."""
        if self._committed is not None:
            raise StateError(f"job {self.job!r} exists already", hint="Drop it first with `vnode-backfill drop`.")

    def begin_again(self, record: JobRecord, plan: SplitPlan, state: BackfillState) -> None:
        """Replace the job by a new copy of its table: another record and plan, and a state that begins anew.

        The state's commit is what counts. Before it, the job is what it was. Requests are kept under one id before and
        after, so that one that is made meanwhile counts, and none that was acknowledged counts again.
        """
        with self._lock:
            self._own_lease()
            before = self._own_books()
            self._committed = None
            begun = self._form.create(record, plan, state)
            self._books = replace(begun, requests=before.requests, asked_of=before.asked_as)
            for generation in range(plan.generation + 1):
                self.write_plan(plan, generation)
            self.commit(state)

    def change_record(self, record: JobRecord) -> None:
        """Write the job's record again, by the driver that holds the lease.

        It is written also if nothing differs. So a driver that lost its lease right before its own write finds that
        write refused.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    self._form.change_record(record, self.renew)
                except OvertakenError:
                    continue
                return
            raise StateError(f"the record of job {self.job!r} could not be written", detail="Others keep writing it.")

    def write_plan(self, plan: SplitPlan, generation: int) -> None:
        """Write one generation of ranges; it counts from the first commit on whose state names it.

        Writing a generation again replaces what was written before, unless a commit names it already: then nothing
        happens.
        """
        with self._lock:
            books = self._own_books()
            if self._committed is not None and generation <= self._committed.plan_generation:
                return
            self._books = self._form.write_plan(plan, generation, books)

    def commit(self, state: BackfillState) -> None:
        """Make `state` the job's state, in one step; it lasts when this returns.

        The same revision again changes nothing.
        """
        with self._lock:
            lease = self._own_lease()
            for _ in range(_ATTEMPTS):
                try:
                    prepared = self.prepare_commit(state)
                    if prepared is None:
                        return
                    self._write(self._handle, prepared.rows, lease.renewed(self._now()), prepared.numbered)
                except OvertakenError:
                    self._look_again(lease)
                    continue
                self._note(state, prepared.books)
                return
            raise StateError(f"revision {state.revision} of job {self.job!r} could not be committed")

    def prepare_commit(self, state: BackfillState) -> PreparedCommit | None:
        """What a commit of `state` writes; None if it has landed already."""
        with self._lock:
            books = self._books_of(state)
            if self._form.joined is not None:
                # Others have committed since. What an old handle knows may be gone from the log.
                found = self._form.look()
                self._handle = found.handle if found else None
                self._remember_landed(state, books.job, found)
            if self._has_landed(state, books.job):
                self._books = books if state == self._committed else self._books
                return None
            numbered = {_app_id(books.job): state.revision}
            rows = to_rows(state, books, one_of_many=self._form.joined is not None)
            return PreparedCommit(self, state, books, rows, numbered)

    def note_commit(self, state: BackfillState, books: Bookkeeping, handle: DeltaTable) -> None:
        """The state was committed together with those of other tables."""
        with self._lock:
            self._handle = handle
            self._note(state, books)

    def renewed_lease(self) -> Lease:
        """The lease as the next commit writes it."""
        with self._lock:
            return self._own_lease().renewed(self._now())

    def _note(self, state: BackfillState, books: Bookkeeping) -> None:
        self._committed, self._books = state, books
        if self._form.joined is None:
            self._tidy()

    def unacknowledged(self, state: BackfillState, rows: pa.Table | None = None) -> tuple[Request, ...]:
        """What was asked for and is acknowledged neither in `state` nor in any commit before it, oldest first.

        `rows` are the requests where the caller has read them already.
        """
        with self._lock:
            books = self._own_books()
        answered = books.requests | {answer.request for answer in state.acknowledged}
        asked = read_requests(self._requests.read(self._requests.open()) if rows is None else rows, books.asked_as)
        return tuple(each.request for each in asked if each.request.id not in answered)

    def asked(self, state: BackfillState, rows: pa.Table) -> tuple[AskedRequest, ...]:
        """Open requests and those whose answer `state` holds, with who asked; `rows` are all that were asked."""
        with self._lock:
            books = self._own_books()
        return self._asked(state, books, rows)

    def drop(self, owner: str) -> None:
        """Remove the job's state; refused while another driver runs. A driver that wakes later finds itself fenced."""
        with self._lock:
            lease = self._lease or self.acquire_lease(owner, timedelta(minutes=1))
            self._write_released(lease, keep_rows=False)
            if self._lease is not None:
                raise self._fenced(lease, self._form.look())
            self._form.commits.discard_rows(all_rows=False)
            for table in (*self._form.others, self._requests):
                table.discard_rows(all_rows=True)
            self._remember(None)
            self._handle = None

    def retire(self) -> None:
        """Take the job out of its table because it continues in another form; its requests stay."""
        with self._lock:
            lease = self._own_lease()
            self._write_released(lease, keep_rows=False)
            if self._lease is not None:
                raise self._fenced(lease, self._form.look())
            self._remember(None)

    def _write(
        self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, transactions: Mapping[str, int] | None = None
    ) -> None:
        numbered = {DRIVER: lease.generation, **(transactions or {})}
        self._handle = self._form.write(handle, rows, lease, numbered)
        self._lease = None if lease.released else lease

    def _write_released(self, lease: Lease, *, keep_rows: bool) -> None:
        """Give the lease back in the table; if it is not ours any more nothing is written, and `lease` stays set."""
        for _ in range(_ATTEMPTS):
            found = self._form.look()
            if found is None or found.generation != lease.generation:
                return
            try:
                rows = found.rows if keep_rows else CHECKPOINT_SCHEMA.empty_table()
                self._write(found.handle, rows, replace(lease, released=True))
            except OvertakenError:
                continue
            self._heartbeat.remove(lease.generation)
            return

    def _refuse_held(self, lease: Lease | None, *, wait_out: bool) -> None:
        if lease is None or not lease.held_at(self._now()) or (lease.process.has_ended and not wait_out):
            return
        left = (lease.expires - self._now()).total_seconds()
        raise StateError(
            f"job {self.job!r} is driven by {lease.owner} on {lease.process.host}, process {lease.process.pid}",
            detail=f"It has been since {lease.since.isoformat()}; its lease runs for another {left:.0f} s.",
            hint="Stop that driver with `vnode-backfill stop`, or wait until its lease has run out.",
        )

    def _join(self, lease: Lease) -> Lease:
        """Work under a lease that this process holds already."""
        found = self._form.look()
        self._lease = lease
        self._handle = found.handle if found else None
        self._remember(found.stored() if found else None)
        return lease

    def _own_lease(self) -> Lease:
        lease = self._lease and (self._form.joined or self._lease)
        if lease is None:
            raise FencedError(f"job {self.job!r} cannot be committed to without a lease")
        return lease

    def _own_books(self) -> Bookkeeping:
        if self._books is None:
            raise StateError(f"job {self.job!r} does not exist in {self.folder}")
        return self._books

    def _books_of(self, state: BackfillState) -> Bookkeeping:
        """What goes with `state` into its checkpoint; a plan that was written but is not in force stays outside."""
        books = self._own_books()
        plans = tuple(pair for pair in books.plans if pair[0] <= state.plan_generation)
        if [generation for generation, _ in plans] != list(range(state.plan_generation + 1)):
            raise LawBrokenError(f"plan generation {state.plan_generation} was not written, only {books.plans}")
        answered = books.requests | {answer.request for answer in state.acknowledged}
        return replace(books, plans=plans, requests=answered, percent=self._form.percent(state, books))

    def _has_landed(self, state: BackfillState, job: str) -> bool:
        """Whether the newest handle holds this revision; another content under the same number is a broken law."""
        if self._handle is None:
            return False
        landed = self._form.landed(self._handle, _app_id(job))
        if landed is None:
            return False
        if landed == state.revision and state != self._committed:
            raise LawBrokenError(f"revision {landed} of job {self.job!r} is committed with another content")
        if landed + 1 < state.revision:
            raise LawBrokenError(f"revision {state.revision} of job {self.job!r} cannot follow revision {landed}")
        return landed >= state.revision

    def _remember_landed(self, state: BackfillState, job: str, found: Checkpoint | None) -> None:
        """A commit of several tables may have landed although its answer was lost: what it wrote counts."""
        if found is None or self._handle is None or state == self._committed:
            return
        if self._form.landed(self._handle, _app_id(job)) == state.revision:
            stored = found.stored()
            self._committed = stored[0] if stored else self._committed

    def _look_again(self, lease: Lease) -> None:
        """After a refused commit: fenced, or the table was tidied up by somebody, or our own commit landed
        unnoticed."""
        found = self._form.look()
        if found is None or found.generation != lease.generation:
            raise self._fenced(lease, found)
        stored = found.stored()
        self._handle = found.handle
        if stored is not None:
            self._committed = stored[0]

    def _fenced(self, lease: Lease, found: Checkpoint | None) -> FencedError:
        self._lease = None
        newer = "none" if found is None or found.lease is None else f"{found.generation}, {found.lease.owner}"
        return FencedError(
            f"another driver took over job {self.job!r}",
            detail=f"This driver has generation {lease.generation}, the newest is {newer}.",
            hint="This driver must end; nothing is lost, the other one continues.",
        )

    def _remember(self, stored: tuple[BackfillState, Bookkeeping] | None) -> None:
        self._committed, self._books = (None, None) if stored is None else stored
        self._form.remember(self._books)

    def _tidy(self) -> None:
        self._commits += 1
        if self._handle is not None and self._commits % self._tidy_every == 0:
            self._form.commits.tidy(self._handle)


def _app_id(job: str) -> str:
    return f"{job}/checkpoint"
