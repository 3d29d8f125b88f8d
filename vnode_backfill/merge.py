"""How an epoch's buffered changes reach the sink: each key's last change, unless a read has seen it.

What must be true: for every merging vnode, of all changes of a key in `(applied, upto]` that no read of its range has seen, exactly the
last one takes effect, deletes included; all of them at once, and once per epoch. Why it is:

- A change's range and vnode are computed again under the plan generation of the intent; the stored vnode only helps to skip files.
- Each change is marked again, against the reads that happened since it was buffered. Without that an older change could overwrite
  what a later read has seen (see `consume_upstream.mark`).
- `applied` and `upto` are boundaries: they are compared with changes by file and position. All changes of one event, which may be a
  whole transaction, lie on the same side.
- The last change of a key is the one with the highest (file, position, row, half) of the log.

Key 7, whose range was read with a visibility of 50; key 9 outside the plan; applied 10, upto 90:

    offset  key  operation        becomes
    40      7    update to `a`    dropped: the read at 50 has seen it
    60      7    update to `b`    dropped: not the last
    70      7    delete           applied: key 7 goes
    80      9    insert `c`       applied
    95      9    delete           left for the next merge

A small change set is found in the driver. For a large one each worker reads its own vnodes' changes and stages what is left of them,
so that no process has to hold more than its share.

A sink that cannot look up what a read has written (`needs_window`) is given every change that counts, with its before image, and
finds out by itself what the states in between may have left behind.
Where keys are text the driver finds them, share by share: their order must be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from consume_upstream.buffer import BufferFile, BufferReader, ChangeBuffer
from consume_upstream.key_order import KeyOrder, LendSession
from consume_upstream.mark import MarkView, mark_chunk, merge_view
from consume_upstream.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from progress.state import BackfillState
from progress.task_progress import TaskProgress
from vnode_backfill.bitmap import VnodeBitmap
from vnode_backfill.change import FILE, OFFSET_COLUMNS, POS, Mark
from vnode_backfill.delta_files import Storage
from vnode_backfill.epoch import Epoch
from vnode_backfill.keys import SplitPlan
from vnode_backfill.protocol import MergeEpoch
from vnode_backfill.sinks import Sink, TaskRunner, Weighing
from vnode_backfill.sinks.changes import Changes, MemoryChanges, StagedChanges, StagedFile, clear_staged, stage
from vnode_backfill.tasks import run_tasks
from vnode_backfill.vnode import KeyKind, VnodeId

Ints = npt.NDArray[np.int64]
Item = TypeVar("Item")
Result = TypeVar("Result")

IN_DRIVER_CHANGES = 1_000_000
"""Up to here the driver finds the changes by itself: about two seconds of one core for ten columns, against one second that staging
as a Spark job costs at least (measured on two busy cores: 500,000 changes 1.8 s in the driver, 8 s in three Spark jobs)."""
IN_DRIVER_BYTES = 128 * 1024 * 1024
_COMPACTED_ROWS = 500_000
"""So many changes are gathered before those that are not the last of their key are let go."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class MergeWindow:
    """Which changes count: those of the vnodes in `applied`, above what they have applied, up to `upto`. Can be pickled."""

    table: UpstreamTable
    plan: SplitPlan
    view: MarkView
    applied: Mapping[VnodeId, CdcOffset]
    upto: CdcOffset
    every_change: bool = False

    def changes(
        self,
        reader: BufferReader,
        files: Sequence[BufferFile],
        progress: TaskProgress | None = None,
        lend: LendSession | None = None,
    ) -> pa.Table:
        """The changes of the files that count: one per key, or with `every_change` all of them with their offsets.

        `progress` is told how many were looked at.
        """
        batches = _batches(reader, files, progress)
        with KeyOrder(self.table, self.plan, lend) as order:
            if self.every_change:
                schema = _wide_schema(reader.schema)
                counted = counted_changes(batches, schema, self.plan, self.view, self.applied, self.upto, order.weights)
                return pa.concat_tables([schema.empty_table(), *counted])
            return changes_to_merge(
                batches,
                schema=reader.schema,
                plan=self.plan,
                view=self.view,
                applied=self.applied,
                upto=self.upto,
                weights=order.weights,
            )


@dataclass(frozen=True, slots=True)
class MergeRoute:
    """From where to where changes go: the source, which orders keys, the buffer that holds them, the sink they are applied to.

    `lend` gives the driver a connection to ask for the order of text keys.
    """

    table: UpstreamTable
    buffer: ChangeBuffer
    sink: Sink
    lend: LendSession | None = None


def merge_epoch(
    spark: SparkSession | None,
    route: MergeRoute,
    state: BackfillState,
    plan: SplitPlan,
    action: MergeEpoch,
    progress: Callable[[int], TaskProgress | None] = lambda _part: None,
) -> int:
    """Apply the buffered changes that `action` orders; how many were applied. A second call changes nothing.

    `state` is the commit that holds the intent, `plan` the plan of the intent's generation. `progress` gives each worker what it
    tells how far it is with.
    """
    epoch, sink, buffer = action.barrier.epoch, route.sink, route.buffer
    applied = {vnode.vnode: vnode.applied for vnode in action.vnodes}
    # Under an extended plan a change may have another vnode than when it was written.
    trusted = Epoch(0) if state.plan_generation == 0 else None
    files = buffer.files(applied, action.upto, plan.vnode_count, trusted_since=trusted)
    if not files or sink.merged(epoch):
        return 0
    window = MergeWindow(route.table, plan, merge_view(state, plan), applied, action.upto, sink.needs_window)
    staging = sink.staging
    if spark is None or staging is None or _is_small(files):
        found_here = window.changes(_reader(buffer, window), files, progress(0), route.lend)
        changes: Changes = MemoryChanges(found_here, _key(plan))
        sink.apply(epoch, changes, SparkTasks(spark.sparkContext) if spark else None)
        return changes.rows
    clear_staged(staging)
    tasks = SparkTasks(spark.sparkContext)
    lanes = _lanes(window, state.assignment, buffer, staging, trusted, progress)
    if any(part.kind is KeyKind.TEXT for part in plan.parts):
        # Each task would hold a connection to ask for the order of keys, beside those of the snapshot.
        found = [_stage_lane(lane, route.lend) for lane in lanes]
    else:
        found = tasks(_stage_lane, lanes)
    changes = StagedChanges(staging, _key(plan)[0], tuple(file for file in found if file is not None))
    sink.apply(epoch, changes, tasks)
    clear_staged(staging)
    return changes.rows


@dataclass(frozen=True, slots=True)
class SparkTasks(TaskRunner):
    """Runs functions as tasks of the cluster, as many at once as it has slots: a Python task costs a tenth of a second."""

    spark: SparkContext

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        count = min(len(items), self.spark.defaultParallelism)
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
    window: MergeWindow
    reader: BufferReader
    files: tuple[BufferFile, ...]
    staging: Storage
    progress: TaskProgress | None


def _lanes(
    window: MergeWindow,
    assignment: Sequence[VnodeBitmap],
    buffer: ChangeBuffer,
    staging: Storage,
    trusted: Epoch | None,
    progress: Callable[[int], TaskProgress | None],
) -> list[_Lane]:
    """Each worker finds the changes of its vnodes. A key has one vnode, so no key is staged twice."""
    lanes, reader = [], _reader(buffer, window)
    for number, bitmap in enumerate(assignment):
        applied = {vnode: offset for vnode, offset in window.applied.items() if vnode in bitmap}
        files = buffer.files(applied, window.upto, window.plan.vnode_count, trusted_since=trusted)
        if files:
            share = replace(window, applied=applied)
            lanes.append(_Lane(number, share, reader, tuple(files), staging, progress(number)))
    return lanes


def _reader(buffer: ChangeBuffer, window: MergeWindow) -> BufferReader:
    return buffer.reader(before=window.every_change)


def _stage_lane(lane: _Lane, lend: LendSession | None = None) -> StagedFile | None:
    changes = lane.window.changes(lane.reader, lane.files, lane.progress, lend)
    return stage(lane.staging, lane.number, changes, _key(lane.window.plan))


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


def _key(plan: SplitPlan) -> list[str]:
    return [part.name for part in plan.parts]


def changes_to_merge(
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema,
    plan: SplitPlan,
    view: MarkView,
    applied: Mapping[VnodeId, CdcOffset],
    upto: CdcOffset,
    weights: Weighing | None = None,
) -> pa.Table:
    """The last change of each key that counts: `schema` without the offset columns, in no particular order."""
    gathered: list[pa.Table] = [_wide_schema(schema).empty_table()]
    rows = 0
    for counted in counted_changes(batches, _wide_schema(schema), plan, view, applied, upto, weights):
        gathered.append(counted)
        rows += counted.num_rows
        if rows > _COMPACTED_ROWS:
            gathered, rows = [latest_per_key(pa.concat_tables(gathered), _key(plan))], 0
    return latest_per_key(pa.concat_tables(gathered), _key(plan)).drop_columns(list(OFFSET_COLUMNS))


def counted_changes(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    plan: SplitPlan,
    view: MarkView,
    applied: Mapping[VnodeId, CdcOffset],
    upto: CdcOffset,
    weights: Weighing | None,
) -> Iterator[pa.Table]:
    """The changes that count, with their offsets, in the types of `schema`."""
    floor = _Floor.of(applied, plan.vnode_count)
    for batch in batches:
        keys = [batch.column(name) for name in _key(plan)]
        positions, vnodes = plan.vnodes_of(keys, weights(keys) if weights else None)
        file, pos = (batch.column(name).to_numpy().astype(np.int64) for name in (FILE, POS))
        counts = floor.above(vnodes, file, pos) & ~_after(file, pos, *upto.order)
        counts &= mark_chunk(view, positions, vnodes, file, pos) != Mark.DROP
        if counts.any():
            yield pa.Table.from_batches([batch]).filter(pa.array(counts)).select(schema.names).cast(schema)


def latest_per_key(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Keep, per key, the change with the highest offset."""
    ordered = changes.sort_by([(name, "ascending") for name in OFFSET_COLUMNS])
    names = [f"k{number}" for number in range(len(key))]
    keys = ordered.select(list(key)).rename_columns(names)
    keys = keys.append_column("rank", pa.array(np.arange(keys.num_rows, dtype=np.int64)))
    last = keys.group_by(names, use_threads=False).aggregate([("rank", "max")])
    return ordered.take(last.column("rank_max"))


@dataclass(frozen=True, slots=True)
class _Floor:
    """What each vnode has applied, as arrays; vnodes that do not merge are above everything."""

    file: Ints
    pos: Ints

    @classmethod
    def of(cls, applied: Mapping[VnodeId, CdcOffset], vnode_count: int) -> _Floor:
        orders = np.full((vnode_count, 2), _NEVER, dtype=np.int64)
        for vnode, offset in applied.items():
            orders[vnode] = offset.order
        return cls(orders[:, 0], orders[:, 1])

    def above(self, vnodes: npt.NDArray[np.int32], file: Ints, pos: Ints) -> npt.NDArray[np.bool_]:
        return _after(file, pos, self.file[vnodes], self.pos[vnodes])


def _after(file: Ints, pos: Ints, than_file: Ints | int, than_pos: Ints | int) -> npt.NDArray[np.bool_]:
    """Which changes lie above a boundary. A boundary has no row, so the row of a change does not count."""
    result: npt.NDArray[np.bool_] = (file > than_file) | ((file == than_file) & (pos > than_pos))
    return result


def _wide_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_wide(field) for field in schema])


def _wide(field: pa.Field) -> pa.Field:
    """Text and bytes with 64-bit offsets: what many large values have together may not fit 32."""
    if pa.types.is_string(field.type):
        return field.with_type(pa.large_string())
    return field.with_type(pa.large_binary()) if pa.types.is_binary(field.type) else field
