"""Describes a Delta table as a job's sink. The table itself refuses the commits of a driver that was replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from vnode_backfill.config.job import Config, DeltaSinkConfig, MergeMode
from vnode_backfill.config.values import reveal
from vnode_backfill.job.sink.description import Owner
from vnode_backfill.words.errors import ConfigError, StateError

if TYPE_CHECKING:
    from progress.store.lease import Lease
    from progress.store.rows.job_rows import JobRecord
    from vnode_backfill.delta.commits import DeltaLog
    from vnode_backfill.delta.storage import Storage
    from vnode_backfill.job.sink.description import Comparing, Verdict, WritingJob
    from vnode_backfill.sinks import Sink
    from vnode_backfill.sinks.delta.compaction import CompactionPolicy
    from vnode_backfill.sinks.delta.sink import DeltaSink
    from vnode_backfill.words.columns import TableDefinition
    from vnode_backfill.words.finding import Finding
    from vnode_backfill.words.plan import TableFacts


_DELTA = "delta:"
"""Begins the name of a Delta target in job records."""


@dataclass(frozen=True, slots=True)
class DeltaDescription:
    config: Config
    delta: DeltaSinkConfig

    @property
    def target(self) -> str:
        return f"{_DELTA}{self.delta.path}"

    @property
    def folders(self) -> dict[str, str]:
        return {"sink.delta.path": self.delta.path}

    @property
    def fences_drivers(self) -> bool:
        return True

    @property
    def keeps_cursor(self) -> bool:
        return True

    @property
    def daemon_module(self) -> str:
        return "vnode_backfill.spark.daemon"

    @property
    def compaction(self) -> CompactionPolicy:
        from vnode_backfill.sinks.delta.compaction import CompactionPolicy

        return CompactionPolicy(self.delta.target_file_size, self.delta.compact_small_files)

    def findings(self, definition: TableDefinition) -> tuple[Finding, ...]:  # noqa: ARG002
        """None: `check_free` looks at the table, and any table of the source fits."""
        return ()

    def outlook(self, facts: TableFacts, *, exists: bool, follows: bool) -> tuple[Finding, ...]:
        from vnode_backfill.job.sink.delta_outlook import disk_of, other_mode, readers_of
        from vnode_backfill.sinks.delta.target import kept_for, mode_of

        table, mode = self.ownership(Owner("", "")).find(), self.config.merge_mode
        if table is not None and (exists or not (self.delta.replace and table.files)):
            mode = mode_of(table)
            if self.delta.merge not in (None, mode):
                return (other_mode(self.delta.path, mode, self.delta.merge),)
        kept = kept_for(self.delta.retention, vectors=mode is MergeMode.VECTORS)
        return readers_of(mode), disk_of(mode, facts, kept, self.config.epoch.live, follows=follows)

    def check_free(self, definition: TableDefinition) -> None:
        self._looking(definition).check()

    def check_left(self, definition: TableDefinition) -> None:
        self._looking(definition).check_mode()

    def _looking(self, definition: TableDefinition) -> DeltaSink:
        """The target for a job that does not exist."""
        from vnode_backfill.sinks.delta.sink import DeltaSink

        options, delta = reveal(self.config.storage.options), self.delta
        return DeltaSink(delta.path, definition, "", storage_options=options, replace=delta.replace, asked=delta.merge)

    def ownership(self, owner: Owner) -> DeltaLog:
        """The target's own log."""
        from vnode_backfill.delta.commits import DeltaLog

        return DeltaLog(self._storage(), owner.writer_id, "the target table", owner.generation)

    def open(self, job: WritingJob) -> DeltaSink:
        return self._sink(job.record, job.lease.generation)

    def prepare_new(self, job: WritingJob, *, taken_over: bool) -> bool:  # noqa: ARG002
        """A table that was taken over is this job's already, so that preparing it keeps its rows."""
        sink = self.open(job)
        sink.prepare()
        return sink.has_vectors

    @property
    def copies_beside(self) -> bool:
        return True

    def prepare_beside(self, job: WritingJob) -> bool:
        sink = self._made(job.record, job.lease.generation, beside=True)
        sink.prepare()
        return sink.has_vectors

    def discard_copies(self, job_id: str) -> None:
        from vnode_backfill.delta.commits import prepared_jobs
        from vnode_backfill.delta.copies import discard_copies

        log = self.ownership(Owner("", ""))
        table = log.find()
        discard_copies(log.storage, {job_id, *(prepared_jobs(table) if table else ())})

    def last_words(self, sink: Sink) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def verify(self, asked: Comparing) -> Verdict:
        """Compare row by row. A copy that is not complete yet is refused."""
        from vnode_backfill.delta.copies import copy_in
        from vnode_backfill.job.sink.description import Verdict
        from vnode_backfill.sinks.delta.place import is_beside
        from vnode_backfill.verify.result import render, to_json
        from vnode_backfill.verify.table import verify_table

        loaded = asked.loaded
        if not loaded.state.backfill_finished:
            raise StateError(
                f"job {self.config.job} has not copied the whole table yet",
                detail="Rows that were never read would all be reported as missing.",
                hint="Let it continue until it is live: `vnode-backfill run --until live`.",
            )
        ordered = loaded.record.executor != "single" and loaded.plan.compares_keys
        plan = loaded.plan if ordered else None
        target = self._storage()
        if is_beside(target, loaded.record.id):
            target = copy_in(target, loaded.record.id)
        with asked.tasks() as tasks, asked.source() as (table, pace):
            if plan is not None and plan.parts != table.definition.key_parts:
                # A renamed key column orders as before.
                plan = replace(plan, parts=table.definition.key_parts)
            result = verify_table(
                tasks, table, plan, target, workers=self.config.workers, job=asked.progress, pace=pace
            )
        return Verdict(result.equal, render(result), to_json(result))

    def compacted_by_request(self, record: JobRecord) -> tuple[DeltaSink, CompactionPolicy]:
        from vnode_backfill.sinks.delta.compaction import CompactionPolicy

        return self._sink(record), CompactionPolicy.on_request(self.delta.target_file_size, folds_all=True)

    def readable_until(self, target: str, version: int) -> datetime | None:
        """Files of a version go when the commit behind it is older than the retention; before that none is missing."""
        from vnode_backfill.delta.commits import DeltaLog
        from vnode_backfill.delta.storage import Storage
        from vnode_backfill.sinks.delta.target import kept_for, whole_hours

        storage = Storage.of(target.removeprefix(_DELTA), reveal(self.config.storage.options))
        log, now = DeltaLog(storage, "", "the target table"), datetime.now(UTC)
        table = log.find()
        if table is None or version > table.version:
            return None
        superseded = now if version == table.version else log.superseded_at(version)
        retention = timedelta(hours=whole_hours(kept_for(self.delta.retention, vectors=table.has_vectors)))
        if superseded is None or (superseded + retention <= now and not log.is_readable(version)):
            return None
        return superseded + retention

    def turned_over(self, record: JobRecord, lease: Lease, mode: MergeMode) -> DeltaSink:
        if self.delta.merge not in (None, mode):
            raise ConfigError(
                f"sink.delta.merge is {self.delta.merge}; a job with this file cannot use a table turned to {mode}",
                hint=f"Set `sink.delta.merge: {mode}` first, or leave the key out.",
            )
        return self._sink(record, lease.generation)

    def _storage(self) -> Storage:
        from vnode_backfill.delta.storage import Storage

        return Storage.of(self.delta.path, reveal(self.config.storage.options))

    def _sink(self, record: JobRecord, generation: int = 0) -> DeltaSink:
        """The target, or the copy beside it that this job makes."""
        from vnode_backfill.sinks.delta.place import is_beside

        return self._made(record, generation, beside=is_beside(self._storage(), record.id))

    def _made(self, record: JobRecord, generation: int, *, beside: bool) -> DeltaSink:
        """A copy beside the target is changed in the way that the target is: those who read the one read the other."""
        from vnode_backfill.sinks.delta.sink import DeltaSink
        from vnode_backfill.sinks.delta.target import mode_of

        delta, creates = self.delta, self.config.merge_mode
        table = self.ownership(Owner("", "")).find() if beside else None
        if table is not None:
            creates = mode_of(table)
        return DeltaSink(
            delta.path, record.definition, record.id, storage_options=reveal(self.config.storage.options),
            replace=delta.replace and not beside, target_file_size=delta.target_file_size, retention=delta.retention,
            generation=generation, creates=creates, asked=delta.merge, key_cache=delta.key_cache, beside=beside,
            begun=record.created_at,
        )  # fmt: skip
