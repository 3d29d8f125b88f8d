"""Describes IoTDB as a job's sink.

IoTDB has nothing that could refuse the writes of a driver that was replaced. So each task looks at the lease before
each call (`progress.store.task_lease`). What was written is kept in a table of receipts beside the job's state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.job import Config, MergeMode
from vnode_backfill.config.values import reveal
from vnode_backfill.job.open.locations import receipts_path
from vnode_backfill.words.errors import PlanRefusedError

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from consume_upstream.upstream_table import UpstreamTable
    from progress.store.lease import Lease
    from progress.store.rows.job_rows import JobRecord
    from vnode_backfill.delta.commits import DeltaLog
    from vnode_backfill.job.sink.description import Comparing, Owner, Verdict, WritingJob
    from vnode_backfill.sinks import Sink
    from vnode_backfill.sinks.delta.compaction import CompactionPolicy
    from vnode_backfill.sinks.delta.sink import DeltaSink
    from vnode_backfill.sinks.iotdb.sink import Existing, IotdbSink
    from vnode_backfill.words.columns import TableDefinition
    from vnode_backfill.words.finding import Finding
    from vnode_backfill.words.key import Key
    from vnode_backfill.words.plan import TableFacts


@dataclass(frozen=True, slots=True)
class IotdbDescription:
    config: Config
    iotdb: IotdbSinkConfig

    @property
    def target(self) -> str:
        iotdb = self.iotdb
        place = iotdb.device or f"{iotdb.database}.{iotdb.table or self.config.mysql.table}"
        return f"iotdb:{iotdb.host}:{iotdb.port}/{place}"

    @property
    def folders(self) -> dict[str, str]:
        place = self.iotdb.dead_letter
        return {} if place is None else {"sink.iotdb.dead_letter": place}

    @property
    def fences_drivers(self) -> bool:
        return False

    @property
    def keeps_cursor(self) -> bool:
        return False

    @property
    def daemon_module(self) -> str:
        return "vnode_backfill.spark.daemon_iotdb"

    @property
    def compaction(self) -> None:
        """IoTDB compacts its own files."""
        return

    def findings(self, definition: TableDefinition) -> tuple[Finding, ...]:
        from vnode_backfill.sinks.iotdb.preflight import inspect_iotdb

        return inspect_iotdb(self.iotdb, definition, self._password())

    def outlook(self, facts: TableFacts, *, exists: bool, follows: bool) -> tuple[Finding, ...]:  # noqa: ARG002
        """None: the server keeps its own files."""
        return ()

    def check_free(self, definition: TableDefinition) -> None:
        from vnode_backfill.sinks.iotdb.sink import refuse_foreign_points

        if not self.iotdb.replace:
            refuse_foreign_points(self.iotdb, definition, self._password())

    def check_left(self, definition: TableDefinition) -> None:
        """Nothing: points have no mode."""

    def ownership(self, owner: Owner) -> DeltaLog:
        """The log of the receipts, beside the owner's state."""
        from vnode_backfill.delta.commits import DeltaLog
        from vnode_backfill.delta.storage import Storage

        path = receipts_path(self.config, owner.job, owner.id)
        storage = Storage.of(path, reveal(self.config.storage.options))
        return DeltaLog(storage, owner.writer_id, "the table of receipts", owner.generation)

    def open(self, job: WritingJob) -> IotdbSink:
        from vnode_backfill.sinks.iotdb.sink import Existing

        return self._open(job, Existing.REFUSE)

    def prepare_new(self, job: WritingJob, *, taken_over: bool) -> bool:
        from vnode_backfill.sinks.iotdb.sink import Existing

        existing = Existing.KEEP if taken_over else Existing.REPLACE if self.iotdb.replace else Existing.REFUSE
        sink = self._open(job, existing)
        try:
            sink.prepare()
        finally:
            sink.close()
        return sink.has_vectors

    @property
    def copies_beside(self) -> bool:
        return False

    def prepare_beside(self, job: WritingJob) -> bool:  # noqa: ARG002
        raise PlanRefusedError(
            f"a new copy of {self.target} cannot be made beside the old one",
            detail="IoTDB has no commit that would put it in the place of the old points.",
            hint="Set `sink.iotdb.replace: true`: the points are then replaced in place.",
        )

    def discard_copies(self, job_id: str) -> None:
        """Nothing: there are none."""

    def last_words(self, sink: Sink) -> tuple[str, ...]:
        """How often the last of several keys won a device and time."""
        from vnode_backfill.sinks.iotdb.sink import IotdbSink

        if not isinstance(sink, IotdbSink) or not sink.duplicates.count:
            return ()
        report = sink.duplicates
        return (
            f"warning: {report.count:,} times two or more keys fell on one device and time, and the last one won: "
            + "; ".join(report.samples),
        )

    def verify(self, asked: Comparing) -> Verdict:
        """Compare point by point, without Spark."""
        from vnode_backfill.job.sink.description import Verdict
        from vnode_backfill.sinks.iotdb.follow import fitting
        from vnode_backfill.sinks.iotdb.sink import mapping_of, settings_of
        from vnode_backfill.verify.points import render, to_json, verify_points

        loaded, password = asked.loaded, self._password()
        definition = loaded.state.schema.shape_in_sink(loaded.record.definition).definition
        # As the job itself does: columns that the file names may be of another version.
        iotdb = fitting(self.iotdb, definition)
        with asked.source() as (table, pace):
            settings = settings_of(iotdb, mapping_of(iotdb, definition, password), password)
            result = verify_points(table, definition, settings, duplicates=iotdb.duplicates, pace=pace)
        return Verdict(result.equal, render(result), to_json(result))

    def compacted_by_request(self, record: JobRecord) -> tuple[DeltaSink, CompactionPolicy]:  # noqa: ARG002
        raise PlanRefusedError("only a Delta target can be compacted", hint="IoTDB compacts its own files.")

    def readable_until(self, target: str, version: int) -> datetime | None:  # noqa: ARG002
        """The server keeps no versions."""
        return None

    def turned_over(self, record: JobRecord, lease: Lease, mode: MergeMode) -> DeltaSink:  # noqa: ARG002
        raise PlanRefusedError("only rows of a Delta target are changed by vectors or by writing files again")

    def _open(self, job: WritingJob, existing: Existing) -> IotdbSink:
        from progress.store.task_lease import LeaseGuard
        from vnode_backfill.sinks.iotdb.sink import IotdbOptions, IotdbSink

        options, record = reveal(self.config.storage.options), job.record
        sink = IotdbSink(
            self.iotdb, record.definition, record.id,
            IotdbOptions(
                receipts_path(self.config, record.name, record.id), self._password(), options, job.lease.generation,
                existing, CurrentRows(job.table), LeaseGuard.of(job.folder, options, job.lease),
            ),
        )  # fmt: skip
        # The actors work at the same time; what the sink asks the server once is asked before they begin.
        sink.writer()
        return sink

    def _password(self) -> str:
        return self.iotdb.resolve_password(os.environ).get_secret_value()


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """Asks the source for the rows that some keys have now, all of them in one read view."""

    table: UpstreamTable

    def __call__(self, keys: Sequence[Key]) -> pa.Table:
        with self.table.session() as session:
            return session.read_rows(keys)
