"""Makes the report on a job from its state, and from what the driver or the caller has seen beside it.

Percent never falls. It is (rows read + ranges read) of (the same + what the unread ranges are estimated to hold), so a
wrong estimate corrects itself while its range is read, and each range read moves it up, however empty:

    read 30 rows in 1 range, 2 ranges of 50 estimated rows left    31 of 31 + 102      23 %
    the next range turns out to hold 10 rows                       42 of 42 + 51       45 %
    … or 500                                                      532 of 532 + 51      91 %

Reading counts for 98 parts of a hundred, vnodes that are live for 2. It is at most 99.99 until the whole table was live
at one offset, and 100 ever after. Reading something again or planning more ranges makes the work longer, not the
percentage smaller: the caller hands in the highest one reached so far (`at_least`), which the store keeps with each
checkpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from progress.state.backfill_state import BackfillState, Phase
from progress.state.definition_report import WHOLE, definition_of
from progress.state.estimates import Estimates, left_of
from progress.state.report import (
    ALMOST,
    NOTHING_OBSERVED,
    READING_PARTS,
    AskedRequest,
    JobPhase,
    Observed,
    Report,
    RequestProgress,
    Subject,
    VnodeProgress,
    WorkerProgress,
)
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.key import VnodeId


def report_of(
    subject: Subject,
    estimates: Estimates,
    state: BackfillState | None,
    observed: Observed = NOTHING_OBSERVED,
    *,
    at_least: float = 0.0,
) -> Report:
    """The report on a job; without a state it is still being planned. `at_least` is the highest percentage so far."""
    if state is None:
        total = sum(estimates.rows.values())
        return Report(subject, JobPhase.PLANNING, at_least, 0, total, 0, len(estimates.rows), observed)
    phase = phase_of(state, running=bool(observed.driver))
    if phase is JobPhase.FAILED:
        observed = replace(observed, retry=None)
    # A job of many tables has very many vnodes: each number is added up once.
    left, ranges_left = left_of(estimates, state)
    phases, read, applied = Counter([vnode.phase for vnode in state.vnodes]), _Read.of(state), state.lowest_applied
    percent = _percent(state, read, left + ranges_left, phases[Phase.LIVE], at_least)
    return Report(
        subject=subject,
        phase=phase,
        percent=percent,
        rows=read.rows,
        estimated_rows=read.rows + left,
        ranges=read.ranges,
        ranges_total=len(estimates.rows),
        observed=observed,
        eta_seconds=eta_of(phase, max(0, left - observed.in_hand.rows), observed.rows_per_second),
        epoch=state.epoch,
        revision=state.revision,
        written=str(state.written),
        applied=str(applied),
        places=(state.written.in_era(0).order, applied.in_era(0).order),
        paused=state.controls.paused,
        rate_limit=state.controls.rows_per_second,
        phases=phases,
        workers=_workers(state),
        vnodes=_vnodes(state),
        requests=_requests(state, observed.asked),
        failure=state.failure,
        definition=definition_of(state.schema, percent),
    )


def phase_of(state: BackfillState, *, running: bool) -> JobPhase:
    """The phase in one word. While a driver runs, how the last one ended no longer says what the job is doing."""
    if not running and state.failure is not None:
        return JobPhase.FAILED
    if not running and state.stopped:
        return JobPhase.STOPPED
    if any(vnode.complete is None for vnode in state.vnodes):
        return JobPhase.SNAPSHOT if state.controls.reading else JobPhase.PAUSED
    return JobPhase.LIVE if state.is_live else JobPhase.CATCH_UP


def percent_of(estimates: Estimates, state: BackfillState, at_least: float = 0.0) -> float:
    """0.00 to 100.00, cut off after two decimals, never below `at_least`."""
    live = sum(vnode.phase is Phase.LIVE for vnode in state.vnodes)
    return _percent(state, _Read.of(state), sum(left_of(estimates, state)), live, at_least)


class _Read(NamedTuple):
    """What a job has read."""

    rows: int
    ranges: int

    @classmethod
    def of(cls, state: BackfillState) -> _Read:
        return cls(state.rows, state.ranges)


def _percent(state: BackfillState, read: _Read, left: int, live: int, at_least: float) -> float:
    """`left` rows and ranges are not read yet, and `live` vnodes are live."""
    if live == len(state.vnodes) and state.is_live:
        return WHOLE
    done = sum(read)
    share = done / (done + left) if done + left else 1.0
    percent = READING_PARTS * share + (100.0 - READING_PARTS) * live / len(state.vnodes)
    return max(at_least, min(math.floor(percent * 100) / 100, ALMOST))


def eta_of(phase: JobPhase, left: int, rows_per_second: float | None) -> float | None:
    """Seconds until `left` rows are read; None where that cannot be said."""
    if phase is JobPhase.LIVE:
        return 0.0
    if phase is not JobPhase.SNAPSHOT or not rows_per_second or rows_per_second < 0:
        return None
    return left / rows_per_second


def _workers(state: BackfillState) -> tuple[WorkerProgress, ...]:
    worker_of, rows = _worker_of_each(state.assignment), [0] * len(state.assignment)
    for vnode in state.vnodes:
        rows[worker_of[vnode.vnode]] += vnode.rows
    return tuple(
        WorkerProgress(worker, str(bitmap), len(bitmap), rows[worker]) for worker, bitmap in enumerate(state.assignment)
    )


def _vnodes(state: BackfillState) -> tuple[VnodeProgress, ...]:
    workers = _worker_of_each(state.assignment)
    # By identity: vnodes that were read together share their offsets, and there may be very many of them.
    offsets = {id(vnode.applied): vnode.applied for vnode in state.vnodes}
    texts = {number: str(offset) for number, offset in offsets.items()}
    return tuple(
        [VnodeProgress(v.vnode, v.phase, v.rows, v.epoch, workers[v.vnode], texts[id(v.applied)]) for v in state.vnodes]
    )


@lru_cache(maxsize=8)
def _worker_of_each(assignment: tuple[VnodeBitmap, ...]) -> Mapping[VnodeId, int]:
    """The tables of a job have the same assignment, but for a moment of a rescale."""
    return {vnode: worker for worker, bitmap in enumerate(assignment) for vnode in bitmap}


def _requests(state: BackfillState, asked: tuple[AskedRequest, ...]) -> tuple[RequestProgress, ...]:
    """Requests as they were asked, oldest first, with what became of them; an answer may outlive its question."""
    shown = {
        each.request.id: RequestProgress(each.request.id, each.request.kind, each.who, each.host, each.asked_at)
        for each in asked
    }
    for answer in state.acknowledged:
        known = shown.get(answer.request, RequestProgress(answer.request, "", "", "", None))
        shown[answer.request] = replace(known, epoch=answer.epoch, refused=answer.refused)
    return tuple(shown[number] for number in sorted(shown))
