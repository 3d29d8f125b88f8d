"""Sums up the reports on the tables of a job as one report, which every face can show, with a line for each table.

Rows, ranges, requests and the figures of targets are added up. Age, lag and offsets are those of the table that is
worst, among those that run: nothing is captured any more for one that has ended or failed, so it would hide the others.
Epochs take as long as those of the table whose target bears least. A vnode of the job is as far as the table that is
least far with it, so a grid of vnodes fills for the whole job as it does for one table. The percentage is that of all
rows together, and a job is live when every table that runs is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from progress.state.backfill_state import Phase
from progress.state.definition_report import DefinitionProgress, definitions_together
from progress.state.make_report import eta_of
from progress.state.report import (
    SET_ASIDE,
    JobPhase,
    Observed,
    Report,
    RequestProgress,
    Subject,
    TableProgress,
    VnodeProgress,
    WorkerProgress,
)
from progress.state.target_health import healths_together
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import BackfillError

Value = TypeVar("Value", int, float)
Numbers = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

_WORST_FIRST = (
    JobPhase.PLANNING, JobPhase.SNAPSHOT, JobPhase.PAUSED, JobPhase.CATCH_UP, JobPhase.LIVE, JobPhase.STOPPED,
    JobPhase.FAILED,
)  # fmt: skip
_PHASES = list(Phase)
_PLACES = {phase: place for place, phase in enumerate(_PHASES)}
_REFUSED = re.compile(r"refused\s+\S+\s+(.+)")
"""A line of `words.finding.render`."""


def summed_up(
    subject: Subject,
    reports: Mapping[str, Report],
    aside: Mapping[str, str],
    observed: Observed,
    grid: tuple[VnodeProgress, ...] | None = None,
) -> Report:
    """The report on a job whose tables have these reports; `aside` says which are not copied, and why.

    Such a table may have a report, which says how far it was; it is not part of the sums.

    `observed` is what the driver knows of itself: its speed, and what it retries. `grid` is an answer of `grid_of` that
    the caller has already.
    """
    going = {name: part for name, part in reports.items() if name not in aside}
    parts = tuple(going.values())
    rows, estimated = sum(part.rows for part in parts), sum(part.estimated_rows for part in parts)
    written, applied = _reached(parts)
    phase, vnodes = _phase(parts), grid_of(parts) if grid is None else grid
    return Report(
        subject=subject,
        phase=phase,
        percent=_percent(parts),
        rows=rows,
        estimated_rows=estimated,
        ranges=sum(part.ranges for part in parts),
        ranges_total=sum(part.ranges_total for part in parts),
        observed=_observed(observed, parts),
        eta_seconds=eta_of(phase, max(0, estimated - rows), observed.rows_per_second),
        epoch=max((part.epoch for part in parts), default=Epoch(0)),
        revision=sum(part.revision for part in parts),
        written=written,
        applied=applied,
        paused=any(part.paused for part in parts),
        rate_limit=next((part.rate_limit for part in parts if part.rate_limit is not None), None),
        phases=Counter(vnode.phase for vnode in vnodes),
        workers=_workers(parts),
        vnodes=vnodes,
        requests=_requests(parts),
        failure=next((part.failure for part in parts if part.failure is not None and phase is JobPhase.FAILED), None),
        definition=_definition(going),
        tables=(*_lines(going), *_aside_lines(aside, reports)),
        parts=reports,
    )


def reason_of(error: BackfillError) -> str:
    """Why a table is set aside, in one line: the first finding that refuses it, where there is one."""
    for line in error.detail.splitlines():
        if refused := _REFUSED.match(line):
            return refused[1]
    return error.message


def _lines(reports: Mapping[str, Report]) -> Iterable[TableProgress]:
    """Largest first."""
    for name, part in sorted(reports.items(), key=lambda pair: (-pair[1].estimated_rows, pair[0])):
        yield _line(name, part)


def _line(name: str, part: Report) -> TableProgress:
    seen = part.observed
    failure = part.failure.message if part.failure else ""
    return TableProgress(
        name=name, sink=part.subject.sink, phase=str(part.phase), percent=part.percent, rows=part.rows,
        estimated_rows=part.estimated_rows, lag_seconds=seen.lag_seconds, lake_age_seconds=seen.lake_age_seconds,
        epoch=part.epoch, applied=part.applied or "", live=set(part.phases) == {Phase.LIVE},
        error=failure if part.phase is JobPhase.FAILED else (seen.retry.message if seen.retry else ""),
    )  # fmt: skip


def _aside_lines(aside: Mapping[str, str], reports: Mapping[str, Report]) -> Iterable[TableProgress]:
    """Why each is not copied, and how far it was if it ever was."""
    for name, why in sorted(aside.items()):
        known = _line(name, reports[name]) if name in reports else TableProgress(name)
        yield replace(known, phase=SET_ASIDE, error=why, lag_seconds=None, lake_age_seconds=None)


def _phase(parts: Sequence[Report]) -> JobPhase:
    """As far as the table that is least far. A table that failed does not hide that the others are live."""
    going = [part.phase for part in parts if part.phase is not JobPhase.FAILED]
    return min(going, key=_WORST_FIRST.index) if going else (JobPhase.FAILED if parts else JobPhase.PLANNING)


def _reached(parts: Sequence[Report]) -> tuple[str | None, str | None]:
    """How far the log is captured, and applied, for every table that has not failed."""
    going = [part for part in parts if part.phase is not JobPhase.FAILED] or parts
    if not going:
        return None, None
    captured, applied = (min(going, key=lambda part: part.places[which]) for which in (0, 1))
    return captured.written, applied.applied


def _percent(parts: Sequence[Report]) -> float:
    weights = [part.estimated_rows + part.ranges_total + 1 for part in parts]
    whole = sum(weights)
    if not whole:
        return 0.0
    return int(sum(part.percent * weight for part, weight in zip(parts, weights, strict=True)) / whole * 100) / 100


def _definition(parts: Mapping[str, Report]) -> DefinitionProgress | None:
    return definitions_together({name: part.definition for name, part in parts.items() if part.definition is not None})


def _observed(observed: Observed, parts: Sequence[Report]) -> Observed:
    seen = [part.observed for part in parts]
    running = [part for part in parts if part.observed.driver] or parts
    behind = [part.observed for part in running]
    lengthened, lengthened_by = _lengthened(running)
    return replace(
        observed,
        lag_seconds=_known(max, (each.lag_seconds for each in behind)),
        lag_bytes=_known(max, (each.lag_bytes for each in behind)),
        buffer_bytes=_known(sum, (each.buffer_bytes for each in seen)),
        lake_age_seconds=_known(max, (each.lake_age_seconds for each in behind)),
        target=healths_together([each.target for each in seen if each.target is not None]),
        lengthened=lengthened,
        lengthened_by=lengthened_by,
        in_hand=replace(
            observed.in_hand,
            rows=sum(each.in_hand.rows for each in seen),
            ranges=sum(each.in_hand.ranges for each in seen),
            captured=sum(each.in_hand.captured for each in seen),
            merged=sum(each.in_hand.merged for each in seen),
        ),
    )


def _lengthened(parts: Sequence[Report]) -> tuple[int, str]:
    """How many times as long as configured epochs take, and why. Tables share samples, so the slowest one counts."""
    slowest = max(parts, key=lambda part: part.observed.lengthened, default=None)
    if slowest is None or slowest.observed.lengthened == 1:
        return 1, ""
    return slowest.observed.lengthened, f"{slowest.observed.lengthened_by} ({slowest.subject.job})"


def _known(fold: Callable[[list[Value]], Value], values: Iterable[Value | None]) -> Value | None:
    found = [value for value in values if value is not None]
    return fold(found) if found else None


def vnodes_of_job(counts: Iterable[int]) -> int:
    """How many vnodes a job of tables with these counts has: what most tables have, or the lowest of equals.

    Only a job that an earlier release has written to may have more than one count.
    """
    return min(Counter(counts).items(), key=lambda each: (-each[1], each[0]))[0]


class KnownNumbers:
    """Rows and phases of the vnodes of each table, kept while its report has the same ones."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[VnodeProgress, ...], Numbers]] = {}

    def of(self, report: Report) -> Numbers:
        name, vnodes = report.subject.job, report.vnodes
        held = self._known.get(name)
        if held is None or held[0] is not vnodes:
            held = self._known[name] = vnodes, _numbers(vnodes)
        return held[1]


def grid_of(parts: Sequence[Report], known: KnownNumbers | None = None) -> tuple[VnodeProgress, ...]:
    """Each vnode of the job: the rows of all tables, and the phase of the table that is least far.

    Tables of another number of vnodes, which earlier releases let in, are left out. Who asks again and again keeps what
    is `known`: most tables have not changed since.
    """
    if not parts:
        return ()
    count = vnodes_of_job(len(part.vnodes) for part in parts)
    parts = [part for part in parts if len(part.vnodes) == count]
    numbers = [_numbers(part.vnodes) if known is None else known.of(part) for part in parts]
    rows = np.sum([each for each, _ in numbers], axis=0).tolist()
    phases = np.min([each for _, each in numbers], axis=0).tolist()
    return tuple(
        vnode._replace(rows=count, phase=_PHASES[phase])
        for vnode, count, phase in zip(parts[0].vnodes, rows, phases, strict=True)
    )


def _numbers(vnodes: tuple[VnodeProgress, ...]) -> Numbers:
    """Rows and phases of one table."""
    rows = np.fromiter([vnode.rows for vnode in vnodes], np.int64, len(vnodes))
    return rows, np.fromiter([_PLACES[vnode.phase] for vnode in vnodes], np.int64, len(vnodes))


def _workers(parts: Sequence[Report]) -> tuple[WorkerProgress, ...]:
    if not parts:
        return ()
    rows = Counter[int]()
    for part in parts:
        rows.update({worker.worker: worker.rows for worker in part.workers})
    # While a rescale goes from table to table some have more workers than others. The rows of each are shown.
    most = max(parts, key=lambda part: len(part.workers))
    return tuple(replace(worker, rows=rows[worker.worker]) for worker in most.workers)


def _requests(parts: Sequence[Report]) -> tuple[RequestProgress, ...]:
    """What was asked of several tables at once is shown once, and is acted on when all have."""
    found: dict[tuple[object, ...], RequestProgress] = {}
    for part in parts:
        for request in part.requests:
            key = (request.kind, request.who, request.host, request.asked_at)
            known = found.get(key)
            if known is None or (known.epoch is not None and request.epoch is None):
                found[key] = request
    ordered = sorted(found.values(), key=lambda each: (each.asked_at is not None, str(each.asked_at), each.id))
    return tuple(replace(request, id=number) for number, request in enumerate(ordered, start=1))
