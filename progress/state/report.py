"""Says how far a job is, in one value: the terminal, `status`, the web page and the metrics show what it holds.

`Report.to_json` is what `status --json` prints; the schema is version 1, and within a version keys are only added:

    version            1
    job, source, sink  text
    phase              planning | snapshot | catch-up | live | paused | stopped | failed
    percent            0.00 … 100.00
    rows, estimated_rows, ranges, ranges_total, epoch, revision    whole numbers
    rows_per_second, eta_seconds, lag_seconds, lag_bytes, buffer_bytes    number, or null if not known
    lake_age_seconds   age of the newest change merged, 0 when all that is written is merged, or null if not known
    target             {files, bytes, rows, gone_rows, vector_share, fold_debt_bytes, log_bytes, written_bytes,
                       changed_bytes, write_amplification}, or null if not known; see `target_health`
    lengthened         {factor, reason} how many times as long as configured epochs take, and why; null if they do not
    rate_limit         rows per second, or null; `paused` true or false; `throttled_by` text, empty if nothing holds it
    written, applied   log positions as text: captured up to, and applied to every vnode up to; null before the first
    definition         {version, in_target, pending, ended, new_copy, statements}: how often the columns changed since
                       the copy began, and up to which of these versions the target has followed; pending {offset,
                       statement} is what the target is being changed for, or null; ended is how the table ended, empty
                       while it is there; new_copy {since, reason, readers, offset, statement} is set while a copy is
                       made that will replace another, else null; statements [{offset, statement, effect}] are the last
                       ones about the table, newest last. Long statements are cut; null before the first commit. Of many
                       tables it is a sum, and pending and statements also have `table`
    driver             who drives the job now, empty if nobody
    phases             {pending, snapshot, catch-up, live}: vnodes in each phase
    workers            [{worker, bitmap, vnodes, rows}]
    requests           [{id, kind, who, host, asked_at, epoch, refused}]; epoch null until acted on
    failure            {epoch, message, detail, hint} why it stopped last, or null
    retry              {attempt, message} what is being retried, or null
    in_hand            {rows, ranges, captured, merged, percent} of the epoch in progress, which no commit holds yet;
                       0 again when the epoch ends or is tried again. `captured` and `merged` are changes of the log
    planning           {rows, estimated_rows, ranges, percent, since} while the first plan is made: how much of the
                       table is cut into ranges; else null. `percent` above counts rows read, so it is 0 then
    vnodes             only if asked for: [{vnode, phase, rows, epoch, worker, applied}]
    tables             only of a job of many tables, largest first: [{name, sink, phase, percent, rows, estimated_rows,
                       lag_seconds, lake_age_seconds, epoch, applied, error, live}]; phase may be `set aside`, and
                       live is also true of a table that was stopped when live
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from progress.state.backfill_state import Failure, Phase, Request
from progress.state.definition_report import DefinitionProgress
from progress.state.planning import PlanProgress
from progress.state.target_health import TargetHealth
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId

SCHEMA_VERSION = 1
ALMOST = 99.99
READING_PARTS = 98.0
"""How many parts of a hundred reading counts for."""
SET_ASIDE = "set aside"
REMOVED = "removed"
"""The phase of a table that a job of many does not copy."""
REPORTED = "new"
"""The same, of one that has appeared and is only to be reported; `status` does not list it among the tables."""


class JobPhase(StrEnum):
    """What the job as a whole is doing; `paused` only while there is something left to read."""

    PLANNING = "planning"
    SNAPSHOT = "snapshot"
    CATCH_UP = "catch-up"
    LIVE = "live"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Rows per second over the last `seconds`, from samples whose times the caller gives."""

    seconds: float = 30.0
    samples: tuple[tuple[float, int], ...] = ()

    def add(self, at: float, rows: int) -> RateWindow:
        """With one more sample. A count lower than before (an epoch repeated) counts as no progress."""
        if self.samples and at <= self.samples[-1][0]:
            return self
        rows = max(rows, self.samples[-1][1]) if self.samples else rows
        kept = [sample for sample in self.samples if sample[0] >= at - self.seconds]
        return replace(self, samples=(*kept, (at, rows)))

    @property
    def rows_per_second(self) -> float | None:
        if len(self.samples) < 2:
            return None
        (start, before), (end, after) = self.samples[0], self.samples[-1]
        return (after - before) / (end - start)


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request and who asked for it, where and when."""

    request: Request
    who: str
    host: str
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Retry:
    """What went wrong and is being tried again."""

    attempt: int
    message: str


@dataclass(frozen=True, slots=True)
class Subject:
    """Which job is reported on: its name, `database.table`, and where the rows go."""

    job: str
    source: str
    sink: str


@dataclass(frozen=True, slots=True)
class InHand:
    """What the epoch in progress has done so far and no commit holds yet; nothing again when the epoch is tried
    again."""

    rows: int = 0
    ranges: int = 0
    captured: int = 0
    merged: int = 0


NOTHING_IN_HAND = InHand()


@dataclass(frozen=True, slots=True)
class Observed:
    """What only somebody with a clock and a connection knows; None and empty where nobody looked."""

    rows_per_second: float | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    buffer_bytes: int | None = None
    lake_age_seconds: float | None = None
    target: TargetHealth | None = None
    lengthened: int = 1
    """Epochs take so many times as long as configured."""
    lengthened_by: str = ""
    throttled_by: str = ""
    stalled: str = ""
    """Since when nothing moves, where that is too long; empty while something does."""
    driver: str = ""
    retry: Retry | None = None
    asked: tuple[AskedRequest, ...] = ()
    in_hand: InHand = NOTHING_IN_HAND
    task_slots: int | None = None
    reported: tuple[str, ...] = ()
    """Tables that a pattern means and a job of many does not copy, because `mysql.new_tables` is `report`."""


NOTHING_OBSERVED = Observed()


class VnodeProgress(NamedTuple):
    """A tuple, because a job of a hundred tables makes tens of thousands of them a second."""

    vnode: VnodeId
    phase: Phase
    rows: int
    epoch: Epoch
    worker: int
    applied: str


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    worker: int
    bitmap: str
    vnodes: int
    rows: int


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """A request and what became of it: `epoch` is None until it was acted on; who asked is empty if that is not
    known."""

    id: int
    kind: str
    who: str
    host: str
    asked_at: datetime | None
    epoch: Epoch | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """One table of a job of many. `phase` is `set aside` where it is not copied, and `error` says why.

    It is `removed` where an operator has taken the table out of the job: its target stays as it is.
    """

    name: str
    sink: str = ""
    phase: str = ""
    percent: float = 0.0
    rows: int = 0
    estimated_rows: int = 0
    lag_seconds: float | None = None
    lake_age_seconds: float | None = None
    epoch: Epoch = Epoch(0)
    applied: str = ""
    error: str = ""
    live: bool = False
    """Whether every vnode is, also where the table is stopped."""

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self), "lag_seconds": _rounded(self.lag_seconds),
            "lake_age_seconds": _rounded(self.lake_age_seconds),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """The whole of what there is to show; see the module for what the fields mean."""

    subject: Subject
    phase: JobPhase
    percent: float
    rows: int
    estimated_rows: int
    ranges: int
    ranges_total: int
    observed: Observed = NOTHING_OBSERVED
    eta_seconds: float | None = None
    epoch: Epoch = Epoch(0)
    revision: int = 0
    written: str | None = None
    applied: str | None = None
    paused: bool = False
    rate_limit: int | None = None
    phases: Mapping[Phase, int] = field(default_factory=dict)
    workers: tuple[WorkerProgress, ...] = ()
    vnodes: tuple[VnodeProgress, ...] = ()
    requests: tuple[RequestProgress, ...] = ()
    failure: Failure | None = None
    definition: DefinitionProgress | None = None
    planning: PlanProgress | None = None
    tables: tuple[TableProgress, ...] = ()
    parts: Mapping[str, Report] = field(default_factory=dict)
    """The reports on the tables of a job of many, by name, for those who ask for one of them; not part of the JSON."""
    places: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """The order of `written` and `applied` among those of other tables; not part of the JSON."""

    @property
    def percent_in_hand(self) -> float:
        """How many parts of a hundred the epoch in progress has read beyond `percent`, about."""
        seen = self.observed.in_hand
        whole = max(self.estimated_rows + self.ranges_total, 1)
        return max(0.0, min(READING_PARTS * (seen.rows + seen.ranges) / whole, ALMOST - self.percent))

    def to_json(self, *, per_vnode: bool = False) -> str:
        """The documented form, on one line."""
        seen = self.observed
        shown: dict[str, object] = {
            "version": SCHEMA_VERSION,
            **asdict(self.subject),
            "phase": self.phase,
            "percent": self.percent,
            "rows": self.rows,
            "estimated_rows": self.estimated_rows,
            "ranges": self.ranges,
            "ranges_total": self.ranges_total,
            "rows_per_second": _rounded(seen.rows_per_second),
            "eta_seconds": _rounded(self.eta_seconds),
            "lag_seconds": _rounded(seen.lag_seconds),
            "lag_bytes": seen.lag_bytes,
            "buffer_bytes": seen.buffer_bytes,
            "lake_age_seconds": _rounded(seen.lake_age_seconds),
            "target": None if seen.target is None else _target(seen.target),
            "lengthened": None if seen.lengthened == 1 else {"factor": seen.lengthened, "reason": seen.lengthened_by},
            "rate_limit": self.rate_limit,
            "paused": self.paused,
            "throttled_by": seen.throttled_by,
            "epoch": self.epoch,
            "revision": self.revision,
            "written": self.written,
            "applied": self.applied,
            "definition": None if self.definition is None else self.definition.to_json(),
            "driver": seen.driver,
            "phases": {phase: self.phases.get(phase, 0) for phase in Phase},
            "workers": [asdict(worker) for worker in self.workers],
            "requests": [asdict(request) for request in self.requests],
            "failure": None if self.failure is None else asdict(self.failure),
            "retry": None if seen.retry is None else asdict(seen.retry),
            "in_hand": {**asdict(seen.in_hand), "percent": round(self.percent_in_hand, 2)},
            "planning": None if self.planning is None else self.planning.to_json(),
        }
        if self.tables:
            shown["tables"] = [table.to_json() for table in self.tables]
            shown["reported"] = list(seen.reported)
        if per_vnode:
            shown["vnodes"] = [vnode._asdict() for vnode in self.vnodes]
        return json.dumps(shown, default=_time)


def _target(health: TargetHealth) -> dict[str, object]:
    return {
        "files": health.files,
        "bytes": health.bytes,
        "rows": health.rows,
        "gone_rows": None if health.vectors is None else health.vectors.gone_rows,
        "vector_share": _rounded(health.vector_share, 5),
        "fold_debt_bytes": health.fold_debt_bytes,
        "log_bytes": health.log_bytes,
        "written_bytes": health.written_bytes,
        "changed_bytes": health.changed_bytes,
        "write_amplification": _rounded(health.write_amplification),
    }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _time(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} has no form in JSON")
