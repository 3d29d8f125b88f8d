"""Keeps the state of a job of many tables: one lease, one commit point and one list of requests for all of them.

The job's folder holds `checkpoints` and `requests`, which the tables share, `choices` of tables that were added or
removed by hand, and below `tables` a folder per table with its record and its plan, as a job of one table has them. So
whatever reads or drives one table works on its store and does not know of the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from progress.state.backfill_state import BackfillState, Request
from progress.state.parked import ParkedDocument
from progress.state.report import AskedRequest
from progress.state.tables_report import vnodes_of_job
from progress.store.checkpoint_form import CheckpointForm
from progress.store.lease import Lease
from progress.store.reader import Shown, folder_name
from progress.store.rows.checkpoint_rows import identity_of
from progress.store.rows.request_rows import EVERY, REQUEST_SCHEMA, read_requests
from progress.store.shared_checkpoints import JobCheckpoints, OfAll, SharedCheckpoints
from progress.store.state_form import StateFolder
from progress.store.state_table import DEFAULT_RETENTION, Retention, StateTable
from progress.store.store import StateStore
from progress.store.table_choices import CHOICE_SCHEMA, TableChoices
from vnode_backfill.words.errors import BackfillError, FencedError

__all__ = ["TablesStore"]

_NEVER = -2
"""No version of the requests, so that they are read."""


@dataclass(frozen=True, slots=True)
class ShownTables:
    """What `status` shows of a job of many tables; `lease` is None where nobody drives it now."""

    names: tuple[str, ...]
    tables: Mapping[str, Shown]
    aside: Mapping[str, BackfillError]
    lease: Lease | None


class TablesStore:
    """The state of one job of many tables, for its driver and for those who look at it. Safe to use from any thread."""

    def __init__(
        self,
        path: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        retention: Retention = DEFAULT_RETENTION,
    ) -> None:
        self.job, self.folder = job, f"{path.rstrip('/')}/{folder_name(job)}"
        self._options, self._retention = dict(storage_options or {}), retention
        self._shared = shared = SharedCheckpoints(StateFolder(self.folder, job, self._options, retention))
        self._whole = StateStore(
            path, job, self._options, retention=retention, form=lambda f: CheckpointForm(f, JobCheckpoints(shared))
        )
        self.choices = TableChoices(StateTable(f"{self.folder}/choices", CHOICE_SCHEMA, self._options, retention))
        self._tables: dict[str, StateStore] = {}
        self._asked_version, self._asked = -1, REQUEST_SCHEMA.empty_table()

    @property
    def lease(self) -> Lease | None:
        return self._shared.lease

    def names(self) -> tuple[str, ...]:
        """The tables that the job has."""
        return self._shared.table_names()

    def exists(self) -> bool:
        return bool(self.names())

    def table(self, name: str) -> StateStore:
        """The store of one table, which need not exist yet; always the same one for the same name."""
        if name not in self._tables:
            self._tables[name] = StateStore(
                f"{self.folder}/tables", name, self._options, retention=self._retention, asked_in=self.folder,
                form=lambda folder: CheckpointForm(folder, self._shared.of_table(name)),
            )  # fmt: skip
        return self._tables[name]

    def shown(self, meant: Callable[[Collection[str]], Collection[str]]) -> ShownTables | None:
        """What there is to show, from one version of the state, which is read once; None if there is no job.

        `meant` chooses among the tables of the job, those that are set aside included.
        """
        _, asked = self._whole.requests_since(_NEVER)
        with self._shared.pinned() as held:
            if not held:
                return None
            aside = self.aside()
            names = sorted(meant({*held, *aside}))
            found = {name: self.table(name).shown(asked) for name in names if name in held}
            tables = {name: each for name, each in found.items() if each is not None}
            chosen = {name: error for name, error in aside.items() if name in names}
            lease = self._whole.lease_now(self._shared.current().lease)
        return ShownTables(tuple(names), tables, chosen, lease)

    def vnode_counts(self) -> dict[str, int]:
        """Per table how many vnodes it has."""
        with self._shared.pinned() as held:
            return {name: identity_of(rows)[1] for name, rows in held.items()}

    def vnode_count(self) -> int | None:
        """How many vnodes the job has; None if there is no job."""
        counts = self.vnode_counts()
        return vnodes_of_job(counts.values()) if counts else None

    def append_requests(
        self, requests: Mapping[str, Request], who: str, host: str, *, every: Request | None = None
    ) -> dict[str, int]:
        """Write down what is asked of these tables, in one step; per table the number that its request gets.

        `every` is what holds for tables that join the job later.
        """
        with self._shared.pinned() as held:
            ids = {identity_of(held[name])[0]: name for name in requests}
        asked = {job: requests[name] for job, name in ids.items()}
        numbers = self._whole.append_requests(asked if every is None else {**asked, EVERY: every}, who, host)
        return {ids[job]: number for job, number in numbers.items() if job in ids}

    def asked_of_every(self) -> tuple[AskedRequest, ...]:
        """What was last asked of all tables, oldest first: it holds for those that join the job."""
        _, rows = self._whole.requests_since(_NEVER)
        return () if rows is None else read_requests(rows, EVERY)

    def note_aside(self, aside: Mapping[str, BackfillError]) -> None:
        """Store which tables are not copied and why, by the driver that holds the lease."""
        stored = {name: [error.message, error.detail, error.hint] for name, error in sorted(aside.items())}
        if stored or self._shared.aside():
            self._shared.note_aside(json.dumps(stored))

    def aside(self) -> dict[str, BackfillError]:
        """The tables that the newest driver could not copy, and why."""
        stored = json.loads(self._shared.aside() or "{}")
        return {
            name: BackfillError(message, detail=detail, hint=hint) for name, (message, detail, hint) in stored.items()
        }

    def drop(self, owner: str) -> None:
        """Remove the state of all tables; refused while another driver runs. See `StateStore.drop`."""
        if self.lease is None:
            self.acquire_lease(owner, timedelta(minutes=1))
        self._shared.forget(*self.names())
        self.choices.drop()
        self._whole.drop(owner)
        self._tables.clear()

    def forget(self, name: str) -> None:
        """Remove the state of one table, by the driver that holds the lease."""
        self._shared.forget(name)
        self._tables.pop(name, None)

    def acquire_lease(self, owner: str, duration: timedelta, *, wait_out: bool = False) -> Lease:
        """Become the driver of all tables; see `StateStore.acquire_lease`."""
        return self._whole.acquire_lease(owner, duration, wait_out=wait_out)

    def current_lease(self) -> Lease | None:
        return self._whole.current_lease()

    def renew(self) -> Lease:
        try:
            return self._whole.renew()
        except FencedError:
            self._shared.lost()
            raise

    def release(self) -> None:
        self._whole.release()

    def leave_lease(self) -> None:
        self._whole.leave_lease()

    def unacknowledged(self, states: Mapping[str, BackfillState]) -> dict[str, tuple[Request, ...]]:
        """Per table what was asked of it and is not acknowledged, oldest first; tables without such are left out.

        The requests of all tables are in one place, which is read once, and only if somebody has written there.
        """
        version, rows = self._whole.requests_since(self._asked_version)
        if rows is not None:
            self._asked_version, self._asked = version, rows
        if not self._asked.num_rows:
            return {}
        found = {name: self.table(name).unacknowledged(state, self._asked) for name, state in states.items()}
        return {name: asked for name, asked in found.items() if asked}

    def asked(self, states: Mapping[str, BackfillState]) -> dict[str, tuple[AskedRequest, ...]]:
        """Per table the requests to show, as `unacknowledged` has read them last."""
        if not self._asked.num_rows:
            return {}
        return {name: self.table(name).asked(state, self._asked) for name, state in states.items()}

    def commit_together(
        self,
        commits: Sequence[tuple[StateStore, BackfillState]],
        cut: str | None = None,
        parked: ParkedDocument | None = None,
    ) -> dict[str, BackfillError]:
        """One commit for any number of tables; `cut` and how far others are that rest are stored beside them.

        Per table that is left out the reason.
        """
        return self._shared.commit_together(commits, OfAll(cut=cut, parked=parked))

    def parked(self) -> ParkedDocument | None:
        """How far tables are that rest, as it was stored last."""
        return self._shared.current().parked

    def note_parked(self, parked: ParkedDocument) -> None:
        """Store how far tables are that rest, by the driver that holds the lease."""
        self._shared.note_parked(parked)

    def cut(self) -> str | None:
        """The newest cut, as it was stored."""
        return self._shared.cut()
