"""Writes a Delta table: tasks write files, and commits of the driver make them visible, each at most once per epoch.

What must be true: after the commits of epoch N the table holds, of every range read so far, exactly the rows read,
changed by every change applied so far. Repeating any call of epoch N changes nothing. Why it is: each effect is one
commit with one application transaction (`append`, `replace` or `merge` of the job's id, version N), which is looked up
on the handle it is committed with.

A replaced range of an integer key, [10, 20), read again as 12 and 15:

    file a holds 3 9 12     → written again as 3 9
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

from vnode_backfill.config.job import TARGET_FILE_SIZE, TARGET_RETENTION
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, FileReceipt
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import FileLayout, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks import ReadReceipt, TaskRunner, Weighing, receipts_from_json, receipts_to_json
from vnode_backfill.sinks.changes import Changes, ChangeSlice
from vnode_backfill.sinks.delta.compaction import (
    BRIEF_BYTES,
    Compacted,
    CompactionPolicy,
    GivenUpError,
    Joined,
    Joiner,
    always,
    compaction_due,
    oldest_kept,
    sweep_staged,
)
from vnode_backfill.sinks.delta.key_bounds import bounds_as_keys, extremes, may_hold
from vnode_backfill.sinks.delta.rewrite import Ints, Removal, Rewrite, Rewriter, Rewritten, in_threads
from vnode_backfill.sinks.delta.target import Target, target_schema, whole_hours
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, SinkUnavailableError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan

REWRITE_IN_TASKS_BYTES = 512 * 1024 * 1024
"""More bytes of touched files than this are rewritten by Spark tasks. A core rewrites about 40 MB of Parquet a second,
so two of the driver's would be busy for six seconds. Spark jobs cost one or two seconds before they do anything."""
_TRIES = 5
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


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """What a merge has written: by path what became of each file that its changes could meet, and the rows of new keys.

    Files never change, so what became of one stays right. If a compaction has joined some since, only the joined files
    are looked at again. Their rows are the same, so the changes that meet none are the same too.
    """

    rewritten: Mapping[str, Rewritten]
    met: Ints
    inserted: Sequence[FileReceipt]

    @property
    def added(self) -> list[FileReceipt]:
        return [*(file for each in self.rewritten.values() for file in each.files), *self.inserted]

    @property
    def removed(self) -> list[DataFile]:
        return [each.removed for each in self.rewritten.values() if each.removed is not None]


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
        retention: timedelta = TARGET_RETENTION,
        generation: int = 0,
    ) -> None:
        self._storage = Storage.of(path, storage_options)
        self._definition, self._retention = definition, retention
        self._schema = target_schema(definition)
        self._layout = FileLayout.of(definition, target_file_size)
        self._log = DeltaLog(self._storage, job_id, "the target table", generation)
        self._target = Target(self._log, self._schema, self._layout, retention, replace)
        self._committing = RLock()
        """Held while an epoch's effect is computed and committed: no compaction of this process commits meanwhile."""

    @property
    def staging(self) -> Storage:
        """The table's folder: a worker that can write its files can stage changes beside them."""
        return self._storage

    def check(self) -> None:
        """Raise what `prepare` would raise for a job that does not exist yet; writes nothing."""
        self._target.check()

    def prepare(self) -> None:
        self._target.prepare()

    def writer(self) -> DeltaFileWriter:
        return DeltaFileWriter(self._storage, self._schema, self._layout)

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
            landed = self._commit_once(_APPEND, epoch, appended, lambda _: ())
            return (*landed, *self._commit_once(_REPLACE, epoch, replaced, without))

    def _commit_once(
        self,
        kind: str,
        epoch: Epoch,
        receipts: Sequence[ReadReceipt],
        rewrite: Callable[[TableVersion], Sequence[Rewritten]],
    ) -> tuple[ReadReceipt, ...]:
        for _ in range(_TRIES):
            table = self._log.open()
            held = self._log.note(table, kind, epoch)
            if held is not None:
                return receipts_from_json(held)
            rewritten = rewrite(table)
            added = [file for files in (*(r.files for r in receipts), *(r.files for r in rewritten)) for file in files]
            removed = [each.removed for each in rewritten if each.removed is not None]
            if not added and not removed:
                return tuple(receipts)
            try:
                made = self._log.commit(table, kind, epoch, added, removed, receipts_to_json(receipts))
            except OvertakenError:
                continue
            self._log.maintain(made)
            return tuple(receipts)
        raise SinkUnavailableError(f"the {kind} of epoch {epoch} was overtaken by other commits {_TRIES} times")

    def _without(
        self, epoch: Epoch, ordinals: frozenset[int], plan: SplitPlan, weights: Weighing | None, table: TableVersion
    ) -> Sequence[Rewritten]:
        """Write the files that hold rows of these ranges again, without those rows."""
        rewriter = self._rewriter(epoch)
        ranges = [planned.range for planned in plan.ranges if planned.ordinal in ordinals]
        goes = np.array([planned.ordinal in ordinals for planned in plan.ranges] + [False], dtype=np.bool_)
        removals = []
        for file in self._log.files(table, self._definition.key) if ranges else ():
            if may_hold(file, ranges, plan.parts[0]):
                columns = [column.combine_chunks() for column in rewriter.keys(file).columns]
                gone = goes[plan.find_many(columns, weights(columns) if weights else None)]
                if gone.any():
                    removals.append(Removal(file, gone))
        return in_threads(rewriter.remove, removals)

    def apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None = None) -> None:
        """Rewrite the files whose rows are changed, write new rows to new files, and commit both at once.

        Where nothing changes there is no commit.
        """
        if not changes.rows:
            return
        with self._committing:
            self._apply(epoch, changes, tasks)

    def _apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None) -> None:
        merged: _Merged | None = None
        for _ in range(_TRIES):
            table = self._log.open()
            if self._log.landed(table, _MERGE, epoch):
                return
            merged = self._merge(self._log.files(table, self._definition.key), epoch, changes, tasks, merged)
            try:
                if merged.added or merged.removed:
                    table = self._log.commit(table, _MERGE, epoch, merged.added, merged.removed)
            except OvertakenError:
                continue
            self._log.maintain(table)
            return
        raise SinkUnavailableError(f"the merge of epoch {epoch} was overtaken by other commits {_TRIES} times")

    def _merge(
        self,
        files: Sequence[DataFile],
        epoch: Epoch,
        changes: Changes,
        tasks: TaskRunner | None,
        before: _Merged | None,
    ) -> _Merged:
        rewriter = self._rewriter(epoch)
        touched = [(file, changes.within(file)) for file in files]
        rewrites = [Rewrite(file, part) for file, part in touched if part is not None]
        known = before.rewritten if before is not None else {}
        new = [each for each in rewrites if each.file.path not in known]
        run = tasks if tasks and sum(each.file.size for each in new) > REWRITE_IN_TASKS_BYTES else in_threads
        done = {each.file.path: result for each, result in zip(new, run(rewriter.merge, new), strict=True)}
        rewritten = {each.file.path: done.get(each.file.path) or known[each.file.path] for each in rewrites}
        met = np.sort(np.concatenate([np.empty(0, np.int64), *(each.met for each in rewritten.values())]))
        if before is not None and np.array_equal(before.met, met):
            return _Merged(rewritten, met, before.inserted)
        inserted = run(partial(_insert, rewriter, met), changes.parts())
        return _Merged(rewritten, met, [file for each in inserted for file in each])

    def merged(self, epoch: Epoch) -> bool:
        return self._log.landed(self._log.open(), _MERGE, epoch)

    def key_extremes(self, weights: Weighing | None = None) -> list[Key]:
        """From the files' bounds where they are exact, else from their keys. Text without `weights`: every key."""
        rewriter = self._rewriter(Epoch(0))
        parts = self._definition.key_parts
        keys: list[Key] = []
        for file in self._log.files(self._log.open(), self._definition.key):
            known = bounds_as_keys(file, parts, rewriter.key_schema)
            columns = known or [column.combine_chunks() for column in rewriter.keys(file).columns]
            keys.extend(extremes(parts, columns, weights))
        return keys

    def compact(
        self,
        policy: CompactionPolicy,
        tasks: TaskRunner | None = None,
        *,
        goes_on: Callable[[], bool] = always,
        alone: bool = False,
    ) -> Compacted | None:
        """Join small neighbours, a bounded part of them, in one commit; None where nothing is due.

        The rows stay the same. Any process may call it while a job writes to the table: files that are gone meanwhile
        are left out. Its commit waits for a commit of this sink that is under way. Once `goes_on` returns False,
        everything is given up at once. With `alone` this sink's commits wait instead until a brief step is done, so
        that the step is never in vain.
        """
        if alone:
            with self._committing:
                return self._compact(policy.brief(), tasks, goes_on)
        return self._compact(policy, tasks, goes_on)

    def _compact(
        self, policy: CompactionPolicy, tasks: TaskRunner | None, goes_on: Callable[[], bool]
    ) -> Compacted | None:
        plan = compaction_due(self._log.files(self._log.open(), self._definition.key), policy)
        if plan is None:
            return None
        joiner = Joiner(self._storage, self._schema, self._layout, goes_on)
        step = plan.step(policy.step_bytes)
        try:
            joined = (tasks or in_threads)(joiner.join, step)
        except GivenUpError:
            return Compacted(0, 0, 0, left=plan.files)
        joined = self._still_there(joiner, joined, self._log.open())
        with self._committing:
            done = self._put_in_place(joiner, joined)
        return replace(done, left=plan.files - done.removed, overtaken=sum(map(len, step)) - done.removed)

    def _still_there(self, joiner: Joiner, joined: Sequence[Joined], table: TableVersion) -> list[Joined]:
        """What is still right of these joins. This sink's commits may wait, so it writes no more than a brief step."""
        there = {file.path for file in self._log.files(table, ())}
        limit, held = BRIEF_BYTES, []
        for each in joined:
            kept = joiner.among(each, there, limit)
            if kept is not None:
                limit -= 0 if kept is each else each.bytes
                held.append(kept)
        return held

    def _put_in_place(self, joiner: Joiner, joined: Sequence[Joined]) -> Compacted:
        for _ in range(_TRIES):
            table = self._log.open()
            joined = self._still_there(joiner, joined, table)
            removed = [file for each in joined for file in each.removed]
            added = [file for each in joined for file in each.added]
            try:
                if removed:
                    table = self._log.rearrange(table, added, removed)
            except OvertakenError:
                continue
            self._log.maintain(table)
            return Compacted(len(removed), len(added), sum(file.size for file in added))
        raise SinkUnavailableError(f"a compaction was overtaken by other commits {_TRIES} times")

    def sweep(self) -> list[str]:
        """Delete files superseded longer ago than the retention, and those never committed or staged a day ago."""
        swept = self._log.sweep(whole_hours(self._retention))
        return [*swept, *sweep_staged(self._storage, oldest_kept(datetime.now(UTC), self._retention))]

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _rewriter(self, epoch: Epoch) -> Rewriter:
        return Rewriter(self._storage, self._schema, self._definition.key, self._layout, epoch)


def _insert(rewriter: Rewriter, met: Ints, part: ChangeSlice) -> tuple[FileReceipt, ...]:
    return rewriter.insert(part, met)
