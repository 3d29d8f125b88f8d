"""Writes files of a Delta table again beside the epochs, so that reading it stays fast: joins them, and folds vectors.

The rows stay the same (`compaction` and `reshape` argue why). Any process may do it while a job writes to the table.
A table without deletion vectors loses files to every epoch that changes a row of theirs, so what an epoch was faster
with is taken out of a join again. In a table with vectors nothing is done in vain: deletes that land meanwhile follow.
Its log is tidied by `DeltaSink.tidy`, not here: epochs wait for the commit of a reshape, and need not for a checkpoint.

Files are written with the columns that the table has, not with those that somebody was told of: the process may be
older than the last change of columns. A change that lands while files are written ends the work without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import RLock

from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import FileLayout
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.delta.compaction import (
    BRIEF_BYTES,
    Compacted,
    CompactionPolicy,
    GivenUpError,
    Joined,
    Joiner,
    compaction_due,
)
from vnode_backfill.sinks.delta.due import due_files, next_reshapes
from vnode_backfill.sinks.delta.effect import Effect, Traffic
from vnode_backfill.sinks.delta.reshape import Reshape, Reshaped, Reshaper, settle
from vnode_backfill.sinks.delta.reshape_process import run_apart
from vnode_backfill.sinks.delta.rewrite import in_threads
from vnode_backfill.sinks.delta.target import columns_of
from vnode_backfill.words.errors import OvertakenError, SinkUnavailableError

HERE_BYTES = 8 * 1024 * 1024
"""So much is joined in this process, in a fraction of a second. Another process needs longer to start."""
_TRIES = 5


@dataclass(frozen=True, slots=True, eq=False)
class Compactor:
    """Compacts one table. `committing` is held while an epoch's effect is computed and committed."""

    log: DeltaLog
    key: tuple[str, ...]
    layout: FileLayout
    committing: RLock
    gone: Callable[[DataFile], Rows]
    traffic: Traffic

    def step(
        self, policy: CompactionPolicy, tasks: TaskRunner | None, goes_on: Callable[[], bool], *, alone: bool
    ) -> Compacted | None:
        """Do a bounded part of what is due, in one commit; None where nothing is due.

        Where the key columns have other names by now, it is left to those who know them.
        """
        table = self.log.open()
        if not set(self.key) <= set(table.schema.names):
            return None
        if table.has_vectors:
            return self._reshape(table, policy, goes_on)
        if alone:
            with self.committing:
                return self._join(policy.brief(), tasks, goes_on)
        return self._join(policy, tasks, goes_on)

    def fold_vectors(self, step_bytes: int, goes_on: Callable[[], bool]) -> Compacted | None:
        """Write files that have a vector again without the rows that are gone, in one commit; None where none has one.

        As many as have `step_bytes` together, but at least one.
        """
        work, size, table = list[Reshape](), 0, self.log.open()
        for file in self.log.files(table, self.key):
            if file.vector is not None and (not work or size + file.size <= step_bytes):
                work.append(Reshape((file,)))
                size += file.size
        return self._done(table, work, goes_on) if work else None

    def _left(self, table: TableVersion, policy: CompactionPolicy) -> int:
        return due_files(self.log.files(table, self.key), policy)

    def _reshape(self, table: TableVersion, policy: CompactionPolicy, goes_on: Callable[[], bool]) -> Compacted | None:
        work = next_reshapes(self.log.files(table, self.key), policy)
        if not work:
            return None
        done = self._done(table, work, goes_on)
        return replace(done, left=self._left(self.log.last_seen(), policy))

    def _done(self, table: TableVersion, work: Sequence[Reshape], goes_on: Callable[[], bool]) -> Compacted:
        files, schema = sum(len(task.files) for task in work), columns_of(table)
        reshaper = Reshaper(self.log.storage, schema, self.key, self.layout.within(schema), goes_on)
        writing, _ = _steps(work)
        try:
            with carried_out(writing, self.log.storage):
                done = self._written(reshaper, work)
        except GivenUpError:
            return Compacted(0, 0, 0, left=files)
        with self.committing:
            return self._settle(done, files, table.metadata.schema_text)

    def _written(self, reshaper: Reshaper, work: Sequence[Reshape]) -> list[Reshaped]:
        if sum(file.size for task in work for file in task.files) <= HERE_BYTES:
            return [reshaper.run(task) for task in work]
        return run_apart(reshaper, work)

    def _settle(self, done: Sequence[Reshaped], files: int, columns: str) -> Compacted:
        """Commit to a table that still has the `columns` with which the files were written."""
        _, committing = _steps([each.task for each in done])
        for _ in range(_TRIES):
            table = self.log.open()
            if table.metadata.schema_text != columns:
                return Compacted(0, 0, 0, overtaken=files)
            now = {file.path: file for file in self.log.files(table, self.key)}
            effects = [settle(self.log.storage, each, now, self.gone) for each in done]
            effect = sum((each for each in effects if each is not None), Effect())
            try:
                if effect:
                    with carried_out(committing, self.log.storage):
                        made = self.log.rearrange(table, effect.added, effect.removed, effect.masked)
                    self.traffic.count(effect, made.sizes.get(made.version, 0))
            except OvertakenError:
                continue
            size = sum(file.size for file in effect.added)
            changed = len(effect.removed) + len(effect.masked)
            return Compacted(changed, len(effect.added), size, overtaken=0 if changed else files)
        raise SinkUnavailableError(f"a compaction was overtaken by other commits {_TRIES} times")

    def _join(
        self, policy: CompactionPolicy, tasks: TaskRunner | None, goes_on: Callable[[], bool]
    ) -> Compacted | None:
        table = self.log.open()
        plan = compaction_due(self.log.files(table, self.key), policy)
        if plan is None:
            return None
        schema = columns_of(table)
        joiner = Joiner(self.log.storage, schema, self.layout.within(schema), goes_on)
        step = plan.step(policy.step_bytes)
        try:
            with carried_out(Step.WRITE_JOIN, self.log.storage):
                joined = (tasks or in_threads)(joiner.join, step)
        except GivenUpError:
            return Compacted(0, 0, 0, left=plan.files)
        joined = self._still_there(joiner, joined, self.log.open())
        with self.committing:
            done = self._put_in_place(joiner, joined, table.metadata.schema_text)
        return replace(done, left=plan.files - done.removed, overtaken=sum(map(len, step)) - done.removed)

    def _still_there(self, joiner: Joiner, joined: Sequence[Joined], table: TableVersion) -> list[Joined]:
        """What is still right of these joins. Commits may wait, so it writes no more than a brief step."""
        there = {file.path for file in self.log.files(table, ())}
        limit, held = BRIEF_BYTES, []
        for each in joined:
            kept = joiner.among(each, there, limit)
            if kept is not None:
                limit -= 0 if kept is each else each.bytes
                held.append(kept)
        return held

    def _put_in_place(self, joiner: Joiner, joined: Sequence[Joined], columns: str) -> Compacted:
        for _ in range(_TRIES):
            table = self.log.open()
            if table.metadata.schema_text != columns:
                return Compacted(0, 0, 0)
            joined = self._still_there(joiner, joined, table)
            removed = [file for each in joined for file in each.removed]
            added = [file for each in joined for file in each.added]
            try:
                if removed:
                    with carried_out(Step.COMMIT_JOIN, self.log.storage):
                        made = self.log.rearrange(table, added, removed)
                    self.traffic.count(Effect(added), made.sizes.get(made.version, 0))
                    self.traffic.checkpointed(self.log.maintain(made))
            except OvertakenError:
                continue
            return Compacted(len(removed), len(added), sum(file.size for file in added))
        raise SinkUnavailableError(f"a compaction was overtaken by other commits {_TRIES} times")


def _steps(work: Sequence[Reshape]) -> tuple[Step, Step]:
    """How the writing and the commit of these reshapes are called: a fold has one file whose rows all go."""
    if any(len(task.whole) > 1 for task in work):
        return Step.WRITE_JOIN, Step.COMMIT_JOIN
    return Step.WRITE_FOLD, Step.COMMIT_FOLD
