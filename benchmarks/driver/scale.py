"""Measures what the driver itself costs in a very large job: the real coordinator and the real state, without a source.

A plan of a million ranges in 4,096 vnodes is read by 256 workers. The actors answer at once, as if every range had been
read and every change captured. So what is measured is the driver alone: its decisions from one commit to the next, the
commit of the state, loading the state again, and the memory of all of it. Seconds of CPU are stated: the commit writes
to a local disk, and an object store adds its own time.

The copy would take some 200 epochs, of which three stretches are run: from its beginning, from its middle, and from
where each worker has one vnode left until the job is live. The last two begin with a state that is made: the vnodes
before are live. A stretch is long enough for a vnode to be read, merged and forgotten in it.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from benchmarks.bench import Bench
from benchmarks.results import Figure, figure
from consume_upstream.log.offset import CdcOffset, VisibleAt
from progress.state.backfill_state import FORGOTTEN, BackfillState, Phase, new_state
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from vnode_backfill.decide.coordinator import Coordinator, decide
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    Event,
    MergeEpoch,
    RangeReceipt,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    Sampled,
    SampleSource,
    Started,
    StateCommitted,
)
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import SplitPlan, bound_of, plan_of

RANGES, VNODES, WORKERS = 1_000_000, 4_096, 256
_ROWS = 10_000
"""Rows of a range: 10^10 in all."""
_RANGES_AN_EPOCH = 20
"""Ranges that a worker reads in one epoch: five seconds at 40,000 rows a second."""
_CASE = "scale"
_STRETCH = 16
"""Epochs of a stretch: a vnode of 244 ranges is read in 13."""
_COMMITS = 5
_LIVE_EPOCHS = 5
_MEGABYTE = 1024 * 1024
_DEFINITION = TableDefinition(
    "bench", "orders", (Column.parse("id", "bigint", nullable=False), Column.parse("v", "int", nullable=True)), ("id",)
)
T = TypeVar("T")


@dataclass
class LargeJob:
    """The driver of a job whose actors answer at once. `decided` holds the CPU-seconds of each epoch's decisions."""

    coordinator: Coordinator
    position: int = 1
    decided: list[float] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=lambda: [Started()])
    _spent: float = 0.0

    def epoch(self) -> None:
        """Let things happen until the next commit has landed. The source moves on all the time."""
        while self.waiting:
            event = self.waiting.pop(0)
            before = time.process_time()
            self.coordinator, actions = decide(self.coordinator, event)
            self._spent += time.process_time() - before
            for action in actions:
                self.waiting.extend(self._answer(action))
            if isinstance(event, StateCommitted):
                self.decided.append(self._spent)
                self._spent = 0.0
                return

    def _answer(self, action: Action) -> list[Event]:
        match action:
            case ReadRanges(barrier=barrier, lanes=lanes):
                receipts = tuple(RangeReceipt(ordinal, _ROWS) for lane in lanes for ordinal in lane)
                return [RangesRead(barrier.epoch, receipts, barrier.attempt)]
            case BufferChanges(barrier=barrier, intent=intent):
                assert isinstance(intent.visible, VisibleAt)
                return [ChangesBuffered(barrier.epoch, intent.visible, (), 1, barrier.attempt)]
            case MergeEpoch(barrier=barrier):
                return [EpochMerged(barrier.epoch, 1, barrier.attempt)]
            case CommitReceipts(barrier=barrier, receipts=receipts):
                return [ReceiptsCommitted(barrier.epoch, receipts, barrier.attempt)]
            case SampleSource(idle=False):
                return [Sampled(self._sample(), self.coordinator.asked)]
            case CommitEpoch(state=state):
                return [StateCommitted(state.revision)]
            case _:
                return []

    def _sample(self) -> Sample:
        self.position += 1000
        at = _at(self.position)
        return Sample(at, VisibleAt(at), _RANGES_AN_EPOCH * _ROWS)


def _at(position: int) -> CdcOffset:
    return CdcOffset.at("server", "binlog.000001", position)


def scale(bench: Bench) -> list[Figure]:
    """A job of 10^10 rows on 256 workers, as its driver sees it."""
    return measure(bench.folder / "scale", RANGES, VNODES, WORKERS)


def measure(folder: Path, ranges: int, vnodes: int, workers: int) -> list[Figure]:
    before = _resident()
    planned, plan = _timed(lambda: large_plan(ranges, vnodes))
    job = LargeJob(Coordinator(new_state(VisibleAt(_at(0)), plan, split_evenly(vnodes, workers)), plan))
    held = _resident() - before
    copying = _sampled(job, plan)
    live = _followed(job)
    shape = f"{ranges:,} ranges, {vnodes:,} vnodes, {workers} workers"
    return [
        figure(_CASE, "making the plan", [planned], "CPU-s", note=shape),
        *(
            figure(_CASE, f"decisions per epoch, {where} of the copy, {of}", found, "CPU-s", goal="< 0.2")
            for where, seconds in copying.items()
            for of, found in (("median", seconds), ("the slowest", [max(seconds)]))
        ),
        figure(_CASE, "decisions per epoch, live", live, "CPU-s", goal="< 0.2"),
        figure(_CASE, "memory of the plan", [held], "MB"),
        figure(_CASE, "memory of the driver beside its imports, while it decides", [_resident() - before], "MB"),
        *_stored(job, plan, folder),
        figure(
            _CASE, "memory of the driver beside its imports, with a second plan loaded", [_resident() - before], "MB"
        ),
    ]


def _stored(job: LargeJob, plan: SplitPlan, folder: Path) -> list[Figure]:
    """The plan and the state written to a disk, and read again."""
    store = StateStore(str(folder), "large")
    lease = store.acquire_lease("benchmark", timedelta(hours=1))
    record = JobRecord.new(
        "large", _DEFINITION, vnode_count=plan.vnode_count, server="server", sink="delta:/nowhere",
        now=datetime.now(UTC),
    )  # fmt: skip
    first = new_state(VisibleAt(_at(0)), plan, job.coordinator.saved.assignment)
    created, _ = _timed(lambda: store.create(record, plan, first, lease))
    commits, sizes = _committed(job, store, folder)
    loaded, _ = _timed(lambda: StateStore(str(folder), "large").load())
    shutil.rmtree(folder)
    return [
        figure(_CASE, "storing plan and first state", [created], "CPU-s"),
        figure(_CASE, "commit of the state, all ranges read", commits, "CPU-s", goal="< 2"),
        figure(_CASE, "size of that commit", sizes, "MB"),
        figure(_CASE, "loading plan and state", [loaded], "CPU-s"),
    ]


def large_plan(ranges: int, vnodes: int) -> SplitPlan:
    parts = _DEFINITION.key_parts
    return plan_of(parts, tuple((bound_of(parts, (key * _ROWS,)), _ROWS) for key in range(ranges + 1)), vnodes)


def _sampled(job: LargeJob, plan: SplitPlan) -> dict[str, list[float]]:
    """CPU-seconds of each epoch, at the beginning, in the middle and at the end of the copy. The job is live then."""
    first, last = job.coordinator.saved, len(job.coordinator.saved.assignment[0]) - 1
    found = {"beginning": _epochs(job)}
    for where, begun in (("middle", last // 2), ("end", last)):
        job.coordinator, job.waiting = Coordinator(_copied_up_to(first, plan, begun), plan), [Started()]
        job.epoch()  # the driver has only just begun, and has read nothing
        found[where] = _epochs(job)
    while not job.coordinator.saved.is_live:
        job.epoch()
    return found


def _epochs(job: LargeJob) -> list[float]:
    job.decided = []
    while len(job.decided) < _STRETCH and not job.coordinator.saved.backfill_finished:
        job.epoch()
    return list(job.decided)


def _copied_up_to(state: BackfillState, plan: SplitPlan, place: int) -> BackfillState:
    """The state in which of each worker's vnodes so many are live; nothing is read of the others."""
    at = VisibleAt(_at(1))
    vnodes = list(state.vnodes)
    for number in (number for bitmap in state.assignment for number in islice(bitmap, place)):
        reads = tuple((planned.ordinal, FORGOTTEN) for planned in plan.of_vnode(number))
        vnodes[number] = replace(
            vnodes[number], phase=Phase.LIVE, applied=at.position, epoch=Epoch(1), reads=reads,
            rows=_ROWS * len(reads), complete=Epoch(1),
        )  # fmt: skip
    return replace(state, epoch=Epoch(3), written=at.position, visible=((Epoch(3), at),), vnodes=tuple(vnodes))


def _committed(job: LargeJob, store: StateStore, folder: Path) -> tuple[list[float], list[float]]:
    seconds, sizes = [], []
    state = replace(job.coordinator.saved, revision=1)
    for _ in range(_COMMITS):
        held = _bytes(folder)
        seconds.append(_timed(partial(store.commit, state))[0])
        sizes.append((_bytes(folder) - held) / _MEGABYTE)
        state = replace(state, revision=state.revision + 1)
    return seconds, sizes


def _followed(job: LargeJob) -> list[float]:
    job.decided = []
    for _ in range(_LIVE_EPOCHS):
        job.epoch()
    return job.decided


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    before = time.process_time()
    found = work()
    return time.process_time() - before, found


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
