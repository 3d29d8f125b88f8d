"""Writes a Delta table: tasks write files, and commits of the driver make them visible, each at most once per epoch.

What must be true: after the commits of epoch N the table holds, of every range read so far, exactly the rows read,
changed by every change applied so far. Repeating any call of epoch N changes nothing. Why it is: each effect is one
commit with one application transaction (`append`, `replace` or `merge` of the job's id, version N), which is looked up
on the handle it is committed with.

A replaced range of an integer key, [10, 20), read again as 12 and 15:

    file a holds 3 9 12     → written again as 3 9, or a vector takes 12 away
    file b holds 13 14 18   → removed
    file c holds 21 25      → untouched: its bounds are outside
    the read's file         → added, all in one commit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import RLock

import numpy as np
import pyarrow as pa

from progress.state.target_health import TargetHealth
from vnode_backfill.config.job import KEY_CACHE, TARGET_FILE_SIZE, MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.copies import copy_in
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import FileLayout, unique_stem, write_files
from vnode_backfill.delta.rows import NO_ROWS, Rows
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import VectorCache
from vnode_backfill.sinks import ReadReceipt, TaskRunner, Weighing, receipts_from_json, receipts_to_json
from vnode_backfill.sinks.changes import Changes
from vnode_backfill.sinks.delta.compaction import (
    STEP_BYTES,
    Compacted,
    CompactionPolicy,
    always,
    oldest_kept,
    sweep_staged,
)
from vnode_backfill.sinks.delta.compactor import Compactor
from vnode_backfill.sinks.delta.due import vector_health
from vnode_backfill.sinks.delta.effect import Effect, Traffic
from vnode_backfill.sinks.delta.follow.change import SCHEMA, ColumnChange
from vnode_backfill.sinks.delta.follow.delete_rows import RowDeletion, RowsGone
from vnode_backfill.sinks.delta.keys.bounds import bounds_as_keys, extremes, may_hold
from vnode_backfill.sinks.delta.mask import MergeByMask
from vnode_backfill.sinks.delta.place import ends_beside, is_beside, put_in_place
from vnode_backfill.sinks.delta.rewrite import MergeByRewrite, Removal, Rewriter
from vnode_backfill.sinks.delta.target import (
    Target,
    add_vectors,
    check_names,
    drop_vectors,
    kept_for,
    whole_hours,
)
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, SinkUnavailableError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import ColumnStep, DeleteRows, TableShape

_VECTORS_BYTES = 64 * 1024 * 1024
_TRIES = 5
CHECKPOINT_AT_LATEST = timedelta(minutes=5)
"""A commit to a table with vectors is part of a checkpoint after so long, however few commits there were."""
_APPEND, _REPLACE, _MERGE = "append", "replace", "merge"


@dataclass(frozen=True, slots=True)
class DeltaFileWriter:
    """Writes ranges as Parquet files into the table's folder, from any machine that reaches it."""

    storage: Storage
    schema: pa.Schema
    layout: FileLayout

    def write(self, epoch: Epoch, ordinal: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> ReadReceipt:
        stem = unique_stem(f"e{epoch}-r{ordinal}-a{attempt}")
        with storage_errors(f"range {ordinal} cannot be written to {self.storage.path}"):
            files = write_files(self.storage, stem, self.schema, batches, self.layout)
        return ReadReceipt(ordinal, sum(file.rows for file in files), files)


class DeltaSink:
    """A Delta table at `path`. `generation` is the driver's, where drivers may replace each other."""

    needs_window = False

    def __init__(  # noqa: PLR0913 - one per key of the configuration
        self,
        path: str,
        definition: TableDefinition,
        job_id: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        replace: bool = False,
        target_file_size: int = TARGET_FILE_SIZE,
        retention: timedelta | None = None,
        generation: int = 0,
        creates: MergeMode = MergeMode.REWRITE,
        asked: MergeMode | None = None,
        key_cache: int = KEY_CACHE,
        beside: bool = False,
        begun: datetime | None = None,
    ) -> None:
        """`creates` is how a table made here is changed, `asked` what the file demands of one that is there.

        With `beside` the rows go to a table of their own in the folder of the one at `path` (see `put_in_place`).
        `begun` is when the job was created.
        """
        home = Storage.of(path, storage_options)
        self._storage = copy_in(home, job_id) if beside else home
        self._home = DeltaLog(home, job_id, "the target table", generation)
        self._retention, self._file_bytes, self._begun = retention, target_file_size, begun
        self._replace, self._creates, self._asked = replace, creates, asked
        self._log = DeltaLog(self._storage, job_id, "the copy of the table", generation) if beside else self._home
        self._shape = TableShape(definition)
        self._key_cache, self._vectors = key_cache, VectorCache(_VECTORS_BYTES)
        self._traffic = Traffic()
        self._committing = RLock()
        """Held while an epoch's effect is computed and committed: no compaction of this process commits meanwhile."""

    def use(self, shape: TableShape) -> None:
        """Write and read rows of this shape from now on. The table itself stays as it is; see `change`."""
        self._shape = shape

    @property
    def _key(self) -> tuple[str, ...]:
        return self._shape.definition.key

    @property
    def _layout(self) -> FileLayout:
        return self._layout_of(self._shape)

    def _layout_of(self, shape: TableShape) -> FileLayout:
        """Kept columns have no statistics: rows that are written lack them."""
        kept = tuple(column.name for column in shape.kept)
        return replace(FileLayout.of(shape.definition, self._file_bytes), optional=kept)

    @property
    def _target(self) -> Target:
        return Target(
            self._log, self._shape.schema, self._layout, self._retention, self._replace, self._creates, self._asked
        )

    def change(
        self, version: int, shape: TableShape, steps: Sequence[ColumnStep], tasks: TaskRunner | None = None
    ) -> None:
        """Give the table the columns of `shape`, and every row what the source shows for it, in one commit.

        Where the steps take rows away, these go instead. Nothing happens if this version has landed. From then on the
        sink uses the shape. Compactions may go on meanwhile, in any process.
        """
        match steps:
            case [DeleteRows() as step]:
                self.use(shape)
                rows = RowsGone(self._storage, step, shape.schema.field(step.column))
                deletion = RowDeletion(rows, self._remove, self._gone)
                self._follow(version, shape, lambda change: change.delete(deletion, tasks))
            case _:
                self._follow(version, shape, lambda change: change.follow(steps, tasks))

    def empty(self, version: int, shape: TableShape) -> None:
        """Take every row away, in one commit that counts as the change to this version; then use the shape."""
        self._follow(version, shape, ColumnChange.empty)

    def _follow(self, version: int, shape: TableShape, carry_out: Callable[[ColumnChange], Effect]) -> None:
        check_names(shape.schema.names)
        change = ColumnChange(self._log, version, shape, self._layout_of(shape), self._committing)
        effect = carry_out(change)
        self._shape = shape
        made = self._log.last_seen()
        self._traffic.count(effect, made.sizes.get(made.version, 0))
        self._tidy_after(made)

    @property
    def is_beside(self) -> bool:
        """Whether rows are written to a copy beside the target, which shows something else."""
        return self._log is not self._home

    def put_in_place(self) -> None:
        """Let the target hold what the copy beside it holds, in one commit, and write to the target from now on.

        Nothing happens if the sink is not beside. Demands that nothing of the job is under way.
        """
        if not self.is_beside:
            return
        with self._committing:
            made = put_in_place(self._home, self._log)
            self._log, self._storage = self._home, self._home.storage
        self._traffic.count(Effect(), made.sizes.get(made.version, 0))

    def schema_version(self) -> int:
        """The version of the definition that `change` or `empty` has brought last; 0 if there was none."""
        table = self._log.find()
        return 0 if table is None else self._log.version_of(table, SCHEMA)

    @property
    def staging(self) -> Storage:
        """The table's folder: a worker that can write its files can stage changes beside them."""
        return self._storage

    def check(self) -> None:
        """Raise what `prepare` would raise for a job that does not exist yet; writes nothing."""
        self._target.check()

    def check_mode(self) -> None:
        """Raise if the table that is there is changed in another way than is asked for; writes nothing."""
        self._target.check_mode()

    def prepare(self) -> None:
        if self.is_beside and ends_beside(self._home):
            self._log, self._storage = self._home, self._home.storage
        self._target.prepare()

    def writer(self) -> DeltaFileWriter:
        return DeltaFileWriter(self._storage, self._shape.schema, self._layout)

    def landed_reads(self, epoch: Epoch) -> tuple[tuple[ReadReceipt, ...] | None, tuple[ReadReceipt, ...] | None]:
        table = self._log.open()
        appended, replaced = (self._log.note(table, kind, epoch) for kind in (_APPEND, _REPLACE))
        return (
            None if appended is None else receipts_from_json(appended),
            None if replaced is None else receipts_from_json(replaced),
        )

    def commit_reads(
        self,
        epoch: Epoch,
        appended: Sequence[ReadReceipt],
        replaced: Sequence[ReadReceipt],
        plan: SplitPlan,
        weights: Weighing | None = None,
    ) -> tuple[ReadReceipt, ...]:
        """Appended ranges in one commit, replaced ones in another. Where nothing changes there is no commit."""
        without = partial(self._without, epoch, frozenset(r.ordinal for r in replaced), plan, weights)
        with self._committing:
            landed = self._commit_once(_APPEND, epoch, appended, lambda _: Effect())
            return (*landed, *self._commit_once(_REPLACE, epoch, replaced, without))

    def _commit_once(
        self,
        kind: str,
        epoch: Epoch,
        receipts: Sequence[ReadReceipt],
        effect_of: Callable[[TableVersion], Effect],
    ) -> tuple[ReadReceipt, ...]:
        for _ in range(_TRIES):
            table = self._log.open()
            held = self._log.note(table, kind, epoch)
            if held is not None:
                return receipts_from_json(held)
            self._check_writes(table)
            effect = effect_of(table) + Effect([file for receipt in receipts for file in receipt.files])
            if not effect:
                return tuple(receipts)
            try:
                self._commit(table, kind, epoch, effect, receipts_to_json(receipts))
            except OvertakenError:
                continue
            return tuple(receipts)
        raise SinkUnavailableError(f"the {kind} of epoch {epoch} was overtaken by other commits {_TRIES} times")

    def _without(
        self, epoch: Epoch, ordinals: frozenset[int], plan: SplitPlan, weights: Weighing | None, table: TableVersion
    ) -> Effect:
        """Take the rows of these ranges away."""
        rewriter = self._rewriter(epoch)
        ranges = [planned.range for planned in plan.ranges if planned.ordinal in ordinals]
        goes = np.array([planned.ordinal in ordinals for planned in plan.ranges] + [False], dtype=np.bool_)
        removals = []
        for file in self._log.files(table, self._key) if ranges else ():
            if may_hold(file, ranges, plan.parts[0]):
                columns = [column.combine_chunks() for column in rewriter.keys(file).columns]
                gone = goes[plan.find_many(columns, weights(columns) if weights else None)]
                if gone.any():
                    removals.append(Removal(file, Rows.of(np.flatnonzero(gone))))
        return self._changing(table, epoch).remove(removals)

    def _remove(self, table: TableVersion, removals: Sequence[Removal]) -> Effect:
        self._check_writes(table)
        return self._changing(table, Epoch(0)).remove(removals)

    def apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None = None) -> None:
        """Take the old rows of changed keys away, write the new ones, and commit both at once.

        Where nothing changes there is no commit.
        """
        if not changes.rows:
            return
        with self._committing:
            self._apply(epoch, changes, tasks)

    def _apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None) -> None:
        changing: MergeByRewrite | MergeByMask | None = None
        for _ in range(_TRIES):
            table = self._log.open()
            if self._log.landed(table, _MERGE, epoch):
                return
            self._check_writes(table)
            changing = changing or self._changing(table, epoch)
            effect = changing.merge(self._log.files(table, self._key), changes, tasks)
            try:
                if effect:
                    with carried_out(Step.COMMIT_MERGE, self._storage):
                        made = self._commit(table, _MERGE, epoch, effect)
                    self._traffic.count(effect, made.sizes.get(made.version, 0), changes.bytes)
            except OvertakenError:
                continue
            return
        raise SinkUnavailableError(f"the merge of epoch {epoch} was overtaken by other commits {_TRIES} times")

    def _check_writes(self, table: TableVersion) -> None:
        """Refuse to look for rows in files of another driver, or of other columns than those in use."""
        self._log.check_generation(table)
        self._target.check_columns(table)

    def _changing(self, table: TableVersion, epoch: Epoch) -> MergeByRewrite | MergeByMask:
        """How rows of this table are changed: by deletion vectors where the table has them."""
        rewriter = self._rewriter(epoch)
        return MergeByMask(rewriter, self._key_cache, self._vectors) if table.has_vectors else MergeByRewrite(rewriter)

    def _commit(self, table: TableVersion, kind: str, epoch: Epoch, effect: Effect, note: str = "") -> TableVersion:
        """The new version. A table with vectors has its log tidied by `tidy`, because no epoch shall wait for it."""
        made = self._log.commit(table, kind, epoch, effect.added, effect.removed, note, effect.masked)
        self._tidy_after(made)
        return made

    def _tidy_after(self, made: TableVersion) -> None:
        if not made.has_vectors:
            self._traffic.checkpointed(self._log.maintain(made))

    def merged(self, epoch: Epoch) -> bool:
        return self._log.landed(self._log.open(), _MERGE, epoch)

    def key_extremes(self, weights: Weighing | None = None) -> list[Key]:
        """From the files' bounds where they are exact, else from their keys. Text without `weights`: every key."""
        rewriter = self._rewriter(Epoch(0))
        parts = self._shape.definition.key_parts
        keys: list[Key] = []
        for file in self._log.files(self._log.open(), self._key):
            known = bounds_as_keys(file, parts, rewriter.key_schema)
            columns = known or [column.combine_chunks() for column in self._live_keys(rewriter, file).columns]
            keys.extend(extremes(parts, columns, weights))
        return keys

    def _live_keys(self, rewriter: Rewriter, file: DataFile) -> pa.Table:
        keys = rewriter.keys(file)
        return keys.filter(pa.array(~self._gone(file).mask(keys.num_rows))) if file.vector else keys

    def _gone(self, file: DataFile) -> Rows:
        """The rows of a file that are gone."""
        return NO_ROWS if file.vector is None else self._vectors.read(self._storage, file.vector)

    def compact(
        self,
        policy: CompactionPolicy,
        tasks: TaskRunner | None = None,
        *,
        goes_on: Callable[[], bool] = always,
        alone: bool = False,
    ) -> Compacted | None:
        """Do a bounded part of what keeps the table fast to read, in one commit; None where nothing is due.

        The rows stay the same. Any process may call it while a job writes to the table. Its commit waits for a commit
        of this sink that is under way. Once `goes_on` returns False, everything is given up at once. With `alone` this
        sink's commits wait instead until a brief step is done, so that the step is never in vain; a table with deletion
        vectors needs no such step.
        """
        return self._compactor().step(policy, tasks, goes_on, alone=alone)

    def add_vectors(self) -> bool:
        """Change rows by deletion vectors from now on; False if they are already."""
        return add_vectors(self._log, self._retention)

    def fold_vectors(self, *, step_bytes: int = STEP_BYTES, goes_on: Callable[[], bool] = always) -> Compacted | None:
        """Write a bounded part of the files that have vectors again, in one commit; None where no file has one."""
        return self._compactor().fold_vectors(step_bytes, goes_on)

    def drop_vectors(self) -> bool:
        """Change rows by writing files again from now on; False if a file has a vector still."""
        return drop_vectors(self._log, self._retention)

    def _compactor(self) -> Compactor:
        return Compactor(self._log, self._key, self._layout, self._committing, self._gone, self._traffic)

    def tidy(self) -> None:
        """Make a checkpoint of a table with vectors if one is due, and delete old commits. Epochs continue meanwhile.

        A second call does nothing before something was committed.
        """
        if self.has_vectors:
            self._traffic.checkpointed(self._log.maintain(self._log.open(), CHECKPOINT_AT_LATEST))

    @property
    def has_vectors(self) -> bool:
        """Whether rows of the table are taken away by deletion vectors."""
        return self._log.last_seen().has_vectors

    def health(self) -> TargetHealth:
        """In what shape the table is, by the version that was seen last."""
        table = self._log.last_seen()
        files = self._log.files(table, self._key)
        return TargetHealth(
            files=len(files),
            bytes=sum(file.size for file in files),
            rows=sum(file.rows or 0 for file in files),
            log_bytes=table.log_bytes,
            logged_bytes=self._traffic.logged,
            written_bytes=self._traffic.written,
            changed_bytes=self._traffic.changed,
            vectors=vector_health(files) if table.has_vectors else None,
        )

    def sweep(self) -> list[str]:
        """Delete files superseded longer ago than the retention, and those never committed or staged a day ago."""
        if self.is_beside and not is_beside(self._home.storage, self._home.job_id):
            # Another driver has put the copy in place: its own log no longer says which of its files are needed.
            return []
        kept = kept_for(self._retention, vectors=self._log.open().has_vectors)
        swept = self._log.sweep(timedelta(hours=whole_hours(kept)), self._begun)
        return [*swept, *sweep_staged(self._storage, oldest_kept(datetime.now(UTC), kept))]

    def version(self) -> int | None:
        """None while rows go to a copy beside the target, which shows something else."""
        return None if self.is_beside else self._log.open().version

    def keep(self, version: int | None) -> None:
        """Keep what readers of this version of the target need; a copy beside it has versions of its own."""
        self._home.keep(version)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _rewriter(self, epoch: Epoch) -> Rewriter:
        return Rewriter(self._storage, self._shape.schema, self._key, self._layout, epoch)
