"""Applies an epoch's buffered changes to the sink: each key's last change, unless a read has seen it.

What must be true: of all changes that count (see `last_changes`) exactly the last one of each key takes effect, deletes
included; all of them at once, and once per epoch. The epoch is the id under which the sink applies them, so a second
call finds them applied.

A small change set is found in the driver. For a large one each worker reads its own vnodes' changes and stages what is
left of them, so that no process has to hold more than its share. Where keys are text the driver finds them, share by
share: only the source knows their order, and each task would need a connection to ask for it.

A sink that cannot look up what a read has written (`needs_window`) is given every change that counts, with its before
image. It finds out by itself what the states in between may have left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from consume_upstream.buffer import BufferFile, BufferReader, ChangeBuffer
from consume_upstream.key_order import KeyOrder, LendSession
from consume_upstream.mark import merge_view
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState
from progress.task_progress import TaskProgress
from vnode_backfill.decide.protocol import MergeEpoch
from vnode_backfill.delta.storage import Storage
from vnode_backfill.merge.last_changes import MergeWindow, every_change, key_names, last_changes
from vnode_backfill.sinks import Sink, TaskRunner
from vnode_backfill.sinks.changes import Changes, MemoryChanges, StagedChanges, StagedFile, clear_staged, stage
from vnode_backfill.spark.tasks import Spark, context_of, run_tasks
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import KeyKind
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.lift import NO_LIFTS, Lifts

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_DRIVER_CHANGES = 1_000_000
"""Up to here the driver finds the changes by itself: about two seconds of one core for ten columns, against one second
that staging as a Spark job costs at least (measured on two busy cores: 500,000 changes 1.8 s in the driver, 8 s in
three Spark jobs)."""
IN_DRIVER_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MergeShare:
    """The changes that one process finds: those of `window`, with `every_change` all of them and not only the last.

    Can be pickled.
    """

    table: UpstreamTable
    window: MergeWindow
    every_change: bool = False
    lifts: Lifts = NO_LIFTS

    def changes(
        self,
        reader: BufferReader,
        files: Sequence[BufferFile],
        progress: TaskProgress | None = None,
        lend: LendSession | None = None,
    ) -> pa.Table:
        """The changes of the files that count: one per key, or with `every_change` all of them with their offsets.

        `progress` is sent how many were looked at.
        """
        batches = _batches(reader, files, progress)
        with KeyOrder(self.table, self.window.plan, lend) as order:
            if self.every_change:
                return every_change(batches, reader.schema, self.window, order.weights)
            return last_changes(batches, reader.schema, self.window, order.weights)


@dataclass(frozen=True, slots=True)
class MergeRoute:
    """From where to where changes go: the source, which orders keys, the buffer that holds them, the sink that gets them.

    `lend` gives the driver a connection to ask for the order of text keys.
    """

    table: UpstreamTable
    buffer: ChangeBuffer
    sink: Sink
    lend: LendSession | None = None


def merge_epoch(
    spark: Spark | None,
    route: MergeRoute,
    state: BackfillState,
    plan: SplitPlan,
    action: MergeEpoch,
    progress: Callable[[int], TaskProgress | None] = lambda _part: None,
) -> int:
    """Apply the buffered changes that `action` orders; how many were applied. A second call changes nothing.

    `state` is the commit that holds the intent, `plan` the plan of the intent's generation. `progress` gives each
    worker the means to report how far it is.
    """
    epoch, sink, buffer = action.barrier.epoch, route.sink, route.buffer
    applied = {vnode.vnode: vnode.applied for vnode in action.vnodes}
    # Under an extended plan a change may have another vnode than when it was written.
    trusted = Epoch(0) if state.plan_generation == 0 else None
    files = buffer.files(applied, action.upto, plan.vnode_count, trusted_since=trusted)
    if not files or sink.merged(epoch):
        return 0
    window = MergeWindow(plan, merge_view(state, plan), applied, action.upto)
    share = MergeShare(route.table, window, sink.needs_window, state.schema.lifts())
    staging = sink.staging
    if spark is None or staging is None or _is_small(files):
        found_here = share.changes(_reader(buffer, share), files, progress(0), route.lend)
        changes: Changes = MemoryChanges(found_here, key_names(plan))
        sink.apply(epoch, changes, SparkTasks(spark) if spark else None)
        return changes.rows
    clear_staged(staging)
    tasks = SparkTasks(spark)
    lanes = _lanes(share, state.assignment, buffer, staging, trusted, progress)
    if any(part.kind is KeyKind.TEXT for part in plan.parts):
        # Each task would hold a connection to ask for the order of keys, beside those of the snapshot.
        found = [_stage_lane(lane, route.lend) for lane in lanes]
    else:
        found = tasks(_stage_lane, lanes)
    changes = StagedChanges(staging, key_names(plan)[0], tuple(file for file in found if file is not None))
    sink.apply(epoch, changes, tasks)
    clear_staged(staging)
    return changes.rows


@dataclass(frozen=True, slots=True)
class SparkTasks(TaskRunner):
    """Runs functions as tasks of the cluster, as many at once as it has slots: a Python task costs a tenth of a
    second."""

    spark: Spark

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        count = min(len(items), context_of(self.spark).defaultParallelism)
        done = run_tasks(self.spark, partial(_run_all, function), [items[start::count] for start in range(count)])
        return [done[number % count][number // count] for number in range(len(items))]


def _run_all(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


def _is_small(files: Sequence[BufferFile]) -> bool:
    return sum(file.rows for file in files) <= IN_DRIVER_CHANGES and sum(file.size for file in files) <= IN_DRIVER_BYTES


@dataclass(frozen=True, slots=True)
class _Lane:
    """One worker's share of a merge."""

    number: int
    share: MergeShare
    reader: BufferReader
    files: tuple[BufferFile, ...]
    staging: Storage
    progress: TaskProgress | None


def _lanes(
    whole: MergeShare,
    assignment: Sequence[VnodeBitmap],
    buffer: ChangeBuffer,
    staging: Storage,
    trusted: Epoch | None,
    progress: Callable[[int], TaskProgress | None],
) -> list[_Lane]:
    """Each worker finds the changes of its vnodes. A key has one vnode, so no key is staged twice."""
    lanes, reader, window = [], _reader(buffer, whole), whole.window
    for number, bitmap in enumerate(assignment):
        applied = {vnode: offset for vnode, offset in window.applied.items() if vnode in bitmap}
        files = buffer.files(applied, window.upto, window.plan.vnode_count, trusted_since=trusted)
        if files:
            share = replace(whole, window=replace(window, applied=applied))
            lanes.append(_Lane(number, share, reader, tuple(files), staging, progress(number)))
    return lanes


def _reader(buffer: ChangeBuffer, share: MergeShare) -> BufferReader:
    return buffer.reader(before=share.every_change, definition=share.table.definition, lifts=share.lifts)


def _stage_lane(lane: _Lane, lend: LendSession | None = None) -> StagedFile | None:
    changes = lane.share.changes(lane.reader, lane.files, lane.progress, lend)
    return stage(lane.staging, lane.number, changes, key_names(lane.share.window.plan))


def _batches(
    reader: BufferReader, files: Sequence[BufferFile], progress: TaskProgress | None
) -> Iterator[pa.RecordBatch]:
    rows = 0
    for file in files:
        for batch in reader.read(file):
            yield batch
            rows += batch.num_rows
            if progress is not None:
                progress.tell(rows)
