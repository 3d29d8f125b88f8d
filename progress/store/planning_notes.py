"""Stores first plans that are being made, so that a driver that is killed while it plans does not begin again.

A note is a small file in the folder `planning` of the job's folder, one per table, written over while the plan grows
and removed when the job exists. It is no part of the state: nothing but planning depends on it, and a note that cannot
be read is as good as none. It is written whole or not at all, by one process, so each note is true by itself
(`progress.state.planning` says why it can be continued).

A note also says who plans, and when that was last so. That is a courtesy, judged by clocks, as the lease is: it keeps a
second driver from planning the same table for hours. Two that plan all the same do no harm. Each writes notes that are
true, one finds at its next note that the other was faster and ends, and only the lease lets one create the job.

A job that is refused leaves nothing behind, so a note remembers how many folders were made for it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import RLock

from pydantic import BaseModel, ConfigDict, ValidationError

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset
from progress.state.planning import BegunPlan
from progress.store.lease import Process
from progress.store.reader import folder_name
from progress.store.state_table import state_errors
from vnode_backfill.delta.storage import Storage, local_path
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import BackfillError, StateError
from vnode_backfill.words.key_range import Bound, Bounds, key_from_text, key_to_text
from vnode_backfill.words.plan import Cuts, TableFacts

__all__ = ["PlanningNote", "PlanningNotes"]

_FOLDER = "planning"
_VERSION = 1
_NOTE = re.compile(r"[A-Za-z0-9_~-]+")
"""Not the name of a file that is being written, which a kill may leave behind."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanningNote:
    """A plan as far as it was noted, and who makes it."""

    plan: BegunPlan
    owner: str
    process: Process
    noted_at: datetime
    lease: timedelta
    made: int = 0
    """How many folders did not exist before the first note, counted upwards from that of the notes."""

    def held_at(self, now: datetime) -> bool:
        """Whether somebody still makes the plan, as far as one can know."""
        return not self.process.has_ended and now < self.noted_at + self.lease

    @property
    def planner(self) -> str:
        return f"{self.owner} on {self.process.host}, process {self.process.pid}"


class PlanningNotes:
    """The notes of one job, for the driver that plans and for those who look. Safe to use from any thread."""

    def __init__(
        self,
        job_folder: str,
        options: Mapping[str, str],
        *,
        owner: str = "",
        lease: timedelta = timedelta(seconds=30),
        process: Process | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._job, self._folder = Storage.of(job_folder, options), Storage.of(f"{job_folder}/{_FOLDER}", options)
        self._owner, self._lease, self._now = owner, lease, now
        self._process = process or Process.current()
        self._lock = RLock()
        self._made: int | None = None
        """How many folders were made for the notes; None before the first of them."""

    def all(self) -> tuple[PlanningNote, ...]:
        """Every note that can be read, by the name of its table."""
        with state_errors(f"{self._folder.path} cannot be read"):
            names = [name for name in self._job.list_names(_FOLDER) if _NOTE.fullmatch(name)]
        found = (self._read(name) for name in names)
        return tuple(sorted((note for note in found if note is not None), key=lambda note: note.plan.name))

    def of(self, table: str) -> PlanningNote | None:
        return self._read(folder_name(table))

    def is_held(self, note: PlanningNote) -> bool:
        """Whether another process still makes this plan."""
        return note.process != self._process and note.held_at(self._now())

    def is_going(self, note: PlanningNote) -> bool:
        """Whether any process still makes this plan."""
        return note.held_at(self._now())

    def check_free(self) -> None:
        """Refuse to plan what another process is planning now."""
        for note in self.all():
            self._refuse_held(note)

    def write(self, plan: BegunPlan) -> None:
        """Note how far a plan is; refused where another process has noted it since, and still makes it."""
        with self._lock, state_errors(f"{self._folder.path} cannot be written"):
            found = self.of(plan.name)
            if found is not None:
                self._refuse_held(found)
            if self._made is None:
                self._made = found.made if found is not None else _missing(self._folder.path)
            note = PlanningNote(plan, self._owner, self._process, self._now(), self._lease, self._made)
            self._folder.write_whole(folder_name(plan.name), _to_json(note))

    def remove(self, table: str) -> None:
        """Remove the note of a table, unless another process still makes that plan. No note counts as removed."""
        with self._lock:
            found = self.of(table)
            if found is not None and self.is_held(found):
                return
            self._made = max(self._made or 0, found.made if found is not None else 0)
            with state_errors(f"{self._folder.path} cannot be written"):
                self._folder.remove_file(folder_name(table))
                self._tidy(self._made)

    def remove_all(self) -> None:
        """Remove the notes that no other process is writing, and the folders that were made for them."""
        for note in self.all():
            self.remove(note.plan.name)

    def _tidy(self, made: int) -> None:
        """Without notes there is no folder. Those above it go if they were made for it and hold nothing else."""
        if any(_NOTE.fullmatch(name) for name in self._job.list_names(_FOLDER)):
            return
        self._folder.remove()
        place = local_path(self._folder.path)
        above = [] if place is None else list(place.absolute().parents)[: max(made - 1, 0)]
        for folder in above:
            if not folder.is_dir() or any(folder.iterdir()):
                return
            folder.rmdir()

    def _refuse_held(self, note: PlanningNote) -> None:
        if self.is_held(note):
            raise StateError(
                f"{note.plan.name} is being planned by {note.planner}",
                detail=f"It noted last at {note.noted_at.isoformat(timespec='seconds')} how far it is.",
                hint="Let that driver continue, or end it and run the job again: the plan is continued.",
            )

    def _read(self, name: str) -> PlanningNote | None:
        try:
            with state_errors(f"{self._folder.path} cannot be read"):
                held = self._folder.read_whole(name)
            return None if held is None else _from_json(held)
        except (BackfillError, ValidationError, ValueError, TypeError, KeyError) as error:
            _log.warning("a planning note cannot be read and does not count name=%s error=%s", name, error)
            return None


def _missing(folder: str) -> int:
    """How many folders of a path do not exist."""
    place = local_path(folder)
    if place is None:
        return 0
    absolute = place.absolute()
    return sum(not each.exists() for each in (absolute, *absolute.parents))


class _StoredProcess(BaseModel):
    host: str
    pid: int
    machine: str
    started: str


class _StoredNote(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    definition: dict[str, object]
    vnodes: int
    target: int
    first: str
    minimum: tuple[str, str]
    maximum: tuple[str, str]
    estimated_rows: int
    average_row_bytes: int
    bounds: list[tuple[str, str, int]]
    since: datetime
    owner: str
    process: _StoredProcess
    noted_at: datetime
    lease: timedelta
    made: int
    parents: list[dict[str, object]] = []


def _to_json(note: PlanningNote) -> bytes:
    plan, process = note.plan, note.process
    minimum, maximum = plan.facts.minimum, plan.facts.maximum
    if minimum is None or maximum is None:
        raise StateError(f"the plan of {plan.name}, which is empty, cannot be noted")
    stored = _StoredNote(
        version=_VERSION, definition=plan.definition.to_json(), vnodes=plan.vnodes, target=plan.target,
        first=plan.first.to_json(), minimum=_bound_text(minimum), maximum=_bound_text(maximum),
        estimated_rows=plan.facts.estimated_rows, average_row_bytes=plan.facts.average_row_bytes,
        bounds=[(*_bound_text(bound), rows) for bound, rows in plan.bounds], since=plan.since, owner=note.owner,
        process=_StoredProcess(
            host=process.host, pid=process.pid, machine=process.machine, started=process.started
        ),
        noted_at=note.noted_at, lease=note.lease, made=note.made, parents=[each.to_json() for each in plan.parents],
    )  # fmt: skip
    # Earlier releases know every key, and drop a note with another one: they would not look at the parents.
    return stored.model_dump_json(exclude=None if plan.parents else {"parents"}).encode()


def _from_json(text: bytes) -> PlanningNote:
    stored = _StoredNote.model_validate_json(text)
    if stored.version != _VERSION:
        raise StateError(f"a planning note has the unknown version {stored.version}")
    definition = TableDefinition.from_json(stored.definition)
    minimum, maximum = _bound(*stored.minimum), _bound(*stored.maximum)
    facts = TableFacts(definition.key_parts, minimum, maximum, stored.estimated_rows, stored.average_row_bytes)
    bounds: Bounds = tuple((_bound(key, order), rows) for key, order, rows in stored.bounds)
    # Whatever was stored must be a beginning of this table's plan.
    if Cuts(list(bounds)).bounds[0][0] != minimum or bounds[-1][0] > maximum:
        raise StateError("a planning note does not begin at the table's minimum, or leads beyond its maximum")
    parents = tuple(CascadingParent.from_json(each) for each in stored.parents)
    first = CdcOffset.from_json(stored.first)
    plan = BegunPlan(definition, stored.vnodes, stored.target, first, facts, bounds, stored.since, parents)
    process = Process(**stored.process.model_dump())
    return PlanningNote(plan, stored.owner, process, stored.noted_at, stored.lease, stored.made)


def _bound_text(bound: Bound) -> tuple[str, str]:
    return key_to_text(bound.key), bound.order.hex()


def _bound(key: str, order: str) -> Bound:
    return Bound(key_from_text(key), bytes.fromhex(order))
