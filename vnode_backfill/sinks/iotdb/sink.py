"""Writes to IoTDB: tasks write points, merges delete them, and receipts are kept in a small table of the job's state.

What must be true: after epoch N is committed the server holds, of every range read so far, exactly the points of the
rows read, changed by every change applied so far. Repeating any call of epoch N leaves the same points. IoTDB has no
transactions, so:

- What a task writes is visible at once. "Never half-merged" is not promised here, only the state after a commit.
- Each write may be repeated: points of one device and time overwrite each other. A range that was written but whose
  receipts did not land is written again. Rows that changed in between are put right by the merge of their window
  (`window` has the argument). Ranges that the next attempt leaves unread are undone from what the lost one had claimed
  (`claims`).
- Receipts, and the fact that an epoch was merged, are commits without files in a Delta table (`append`, `replace`,
  `merge` of the job's id, version N), looked up on the handle they are committed with, as in the Delta sink.
- A driver that was replaced cannot commit, but its tasks could still write: they look at the lease before each call.
- Slots that two keys want are settled before the commit (`settlement`).
- Points on slots that were emptied shortly before would not survive a kill of the server, so it is flushed first
  (`rewrites`).

    claim slots → write points → … all tasks …  → undo lost, settle, clear replaced → dead letters → commit receipts
    a crash before the commit: the epoch is repeated, its claims say what the lost attempt may have written

The points are in the server's tree of series or in one of its tables (`server.store`); nothing above depends on which.
The server should run with `wal_mode=SYNC`: with ASYNC, its default, a killed server loses points it had acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import FileLayout, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks import FileReceipt, ReadReceipt, TaskRunner, Weighing, receipts_from_json, receipts_to_json
from vnode_backfill.sinks.changes import Changes, ChangeSlice
from vnode_backfill.sinks.delta.keys.bounds import extremes
from vnode_backfill.sinks.delta.target import overtaken_is_retryable
from vnode_backfill.sinks.iotdb.claims import REJECTED_SCHEMA, ClaimStore, Clash, rejected_rows
from vnode_backfill.sinks.iotdb.follow import PointChange, fitting, misfits_refused, refuse_lost_place
from vnode_backfill.sinks.iotdb.mapping import KEY_MEASUREMENT, PointMapping, Slot
from vnode_backfill.sinks.iotdb.rewrites import Rewrites, slots_of
from vnode_backfill.sinks.iotdb.server.address import IotdbAddress, IotdbTls
from vnode_backfill.sinks.iotdb.server.session import IotdbSession
from vnode_backfill.sinks.iotdb.server.store import LeaseCheck, PointStore, WriterSettings, no_lease
from vnode_backfill.sinks.iotdb.settlement import DuplicateReport, Settlement, SourceRows, stored_points
from vnode_backfill.sinks.iotdb.window import slot_changes, window_of
from vnode_backfill.sinks.iotdb.writing import IotdbRangeWriter, PointWriter, open_store, refuse_unless
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, SinkError, SinkUnavailableError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import ColumnStep, TableShape

Item = TypeVar("Item")
Result = TypeVar("Result")

_PREPARE, _APPEND, _REPLACE, _MERGE, _SCHEMA = "prepare", "append", "replace", "merge", "schema"
_REJECTED_READS, _REJECTED_CHANGES = "rejected-reads", "rejected-changes"
_ONCE, _TRIES = Epoch(1), 5
IN_TASKS_CHANGES = 50_000
"""More changes than this are written by Spark tasks, part by part."""


class Existing(StrEnum):
    """What becomes of points that the devices of the mapping hold when a job sees them for the first time."""

    REFUSE = "refuse"
    KEEP = "keep"
    """They count as written by this job: it continues where another one ended."""
    REPLACE = "replace"
    """The series, or the table, are removed."""


@dataclass(frozen=True, slots=True)
class IotdbOptions:
    """What the job gives the sink beyond its configuration."""

    receipts_path: str
    password: str
    storage_options: Mapping[str, str] | None = None
    generation: int = 0
    existing: Existing = Existing.REFUSE
    source_rows: SourceRows | None = None
    """Asked who has a slot that two keys want, in one statement; without it such keys count as duplicates."""
    lease: LeaseCheck = no_lease
    key_measurement: str = KEY_MEASUREMENT
    retention: timedelta = timedelta(days=7)


class IotdbSink:
    """Devices of one IoTDB server. `needs_window`: `apply` wants every change of its window, with before images."""

    needs_window = True
    has_vectors = False
    is_beside = False

    def __init__(
        self, config: IotdbSinkConfig, definition: TableDefinition, job_id: str, options: IotdbOptions
    ) -> None:
        self._config, self._shape, self._options = config, TableShape(definition), options
        self._job_id = job_id
        self.storage = Storage.of(options.receipts_path, options.storage_options)
        self._log = DeltaLog(self.storage, job_id, "the table of receipts", options.generation)
        self.duplicates = DuplicateReport()
        self._reads_begun: int | None = None

    @property
    def staging(self) -> Storage:
        return self.storage

    @cached_property
    def mapping(self) -> PointMapping:
        """Asks the server for its precision, once per shape."""
        return self._mapping_of(self._shape)

    def _mapping_of(self, shape: TableShape) -> PointMapping:
        config = fitting(self._config, shape.definition)
        return mapping_of(config, shape.definition, self._options.password, self._options.key_measurement)

    def use(self, shape: TableShape) -> None:
        """Write and read rows of this shape from now on. Kept columns have no points from then on."""
        if shape.definition != self._shape.definition:
            if "_writer" in vars(self):
                self._writer.store.close()
            for name in ("mapping", "_settings", "_claims", "_writer"):
                vars(self).pop(name, None)
        self._shape = shape

    def change(
        self,
        version: int,
        shape: TableShape,
        steps: Sequence[ColumnStep],
        tasks: TaskRunner | None = None,  # noqa: ARG002
    ) -> None:
        """Follow a change of columns, or refuse it (`follow`). A call that was cut off may be repeated."""
        if not self._log.landed(self._log.open(), _SCHEMA, Epoch(version)):
            refuse_lost_place(self.mapping, shape.definition)
            with misfits_refused():
                after = self._mapping_of(shape)
            change = PointChange.of(self.mapping, after, (self._shape, shape), steps)
            for measurement in change.gone:
                self._writer.store.drop(measurement)
        self._made_as(version, shape)

    def empty(self, version: int, shape: TableShape) -> None:
        """Remove every point. A call that was cut off may be repeated."""
        if not self._log.landed(self._log.open(), _SCHEMA, Epoch(version)):
            self._options.lease()
            self._writer.store.clear()
        self._made_as(version, shape)

    def schema_version(self) -> int:
        """The version of the definition that `change` or `empty` has brought last; 0 if there was none."""
        return self._log.version_of(self._log.open(), _SCHEMA)

    def put_in_place(self) -> None:
        """Nothing: there are no copies beside the points."""

    def _made_as(self, version: int, shape: TableShape) -> None:
        before = self._shape
        self.use(shape)
        try:
            self._writer.store.check()
            self._writer.store.make()
            self._commit(self._log, _SCHEMA, Epoch(version))
        except BaseException:
            self.use(before)
            raise

    def prepare(self) -> None:
        """Make the target ready, or refuse it: for its series' types, or because it holds points of somebody else."""
        _create(self._log, pa.schema({"epoch": pa.int64()}), self._options.retention)
        if self._dead_letters is not None:
            _create(self._dead_letters, _dead_letter_schema(), self._options.retention)
        store = self._writer.store
        new = not self._log.landed(self._log.open(), _PREPARE, _ONCE)
        if new and self._options.existing is Existing.REPLACE:
            store.clear()
        store.check()
        if new and self._options.existing is Existing.REFUSE:
            _refuse_points(store, self.mapping)
        store.make()
        self._commit(self._log, _PREPARE, _ONCE)
        with overtaken_is_retryable():
            self._log.fence(self._log.open())

    def writer(self) -> IotdbRangeWriter:
        self._reads_begun = self._rewrites.begin()
        return IotdbRangeWriter(self._settings, self._claims)

    def landed_reads(self, epoch: Epoch) -> tuple[tuple[ReadReceipt, ...] | None, tuple[ReadReceipt, ...] | None]:
        table = self._log.open()
        return self._held(table, _APPEND, epoch), self._held(table, _REPLACE, epoch)

    def commit_reads(
        self,
        epoch: Epoch,
        appended: Sequence[ReadReceipt],
        replaced: Sequence[ReadReceipt],
        plan: SplitPlan,
        weights: Weighing | None = None,
    ) -> tuple[ReadReceipt, ...]:
        """Settle what the epoch wrote, then keep its receipts. A second call undoes what was written in between."""
        table = self._log.open()
        held = {kind: self._held(table, kind, epoch) for kind in (_APPEND, _REPLACE)}
        given = {_APPEND: tuple(appended), _REPLACE: tuple(replaced)}
        final = {kind: given[kind] if held[kind] is None else held[kind] or () for kind in given}
        landed = tuple(receipt for receipts in final.values() for receipt in receipts)
        files = [file for receipt in landed for file in receipt.files]
        settlement = self._settlement
        settlement.undo_lost(epoch, files)
        new = [kind for kind in given if held[kind] is None and given[kind]]
        if new:
            if _REPLACE in new:
                stored = self._writer.store.scan(self.mapping.measurements)
                settlement.clear_replaced(replaced, plan, weights, stored)
            settlement.settle_reads(epoch, files)
            self._keep_rejected(_REJECTED_READS, epoch, self._claims.rejected(files))
            begun = self._rewrites.begin() if self._reads_begun is None else self._reads_begun
            self._rewrites.secure(begun)
        for kind in new:
            self._commit(self._log, kind, epoch, note=receipts_to_json(given[kind]))
        self._claims.forget(epoch)
        return landed

    def apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None = None) -> None:
        """Empty the slots that keys left, all of them, then write the rows that are left."""
        if self._log.landed(self._log.open(), _MERGE, epoch) or not changes.rows:
            return
        begun = self._rewrites.begin()
        self._claims.forget(epoch)
        run: TaskRunner = tasks if tasks is not None and changes.rows > IN_TASKS_CHANGES else _in_driver
        parts = changes.parts()
        left = run(partial(_empty_left, self._settings, self._claims, epoch), parts)
        outcomes = run(partial(_write_kept, self._settings, epoch), parts)
        self._settlement.settle_merge(epoch, [each.clash for each in outcomes if each.clash is not None])
        self._keep_rejected(_REJECTED_CHANGES, epoch, pa.concat_tables(outcome.rejected for outcome in outcomes))
        self._secure_merge(begun, left, outcomes)
        self._commit(self._log, _MERGE, epoch)

    def merged(self, epoch: Epoch) -> bool:
        return self._log.landed(self._log.open(), _MERGE, epoch)

    def key_extremes(self, weights: Weighing | None = None) -> list[Key]:
        """Reads every slot that the target holds."""
        parts = self._shape.definition.key_parts
        keys: list[Key] = []
        for block in self._writer.store.scan(self.mapping.owner or self.mapping.measurements):
            rows = stored_points(self.mapping, block).rows
            keys.extend(
                extremes(parts, [rows.column(name).combine_chunks() for name in self._shape.definition.key], weights)
            )
        return keys

    def version(self) -> int | None:
        """The server keeps no versions."""
        return None

    def keep(self, version: int | None) -> None:
        """There is none."""

    def close(self) -> None:
        if "_writer" in vars(self):
            self._writer.store.close()
        if "_rewrites" in vars(self):
            self._rewrites.close()

    @cached_property
    def _settings(self) -> WriterSettings:
        return settings_of(self._config, self.mapping, self._options.password, self._options.lease)

    @cached_property
    def _claims(self) -> ClaimStore:
        return ClaimStore(self.storage, self.mapping)

    @cached_property
    def _writer(self) -> PointWriter:
        return PointWriter(self._settings)

    @property
    def _settlement(self) -> Settlement:
        return Settlement(
            self._writer, self._claims, self._config.duplicates, self._options.source_rows, self.duplicates,
            self._rewrites,
        )  # fmt: skip

    @cached_property
    def _dead_letters(self) -> DeltaLog | None:
        if self._config.dead_letter is None:
            return None
        storage = Storage.of(self._config.dead_letter, self._options.storage_options)
        return DeltaLog(storage, self._job_id, "the table of dead letters", self._options.generation)

    @cached_property
    def _rewrites(self) -> Rewrites:
        return Rewrites(IotdbSession(address_of(self._config, self._options.password)), self.mapping)

    def _secure_merge(self, begun: int, left: Sequence[Outcome], written: Sequence[Outcome]) -> None:
        for each in left:
            self._rewrites.emptied(each.slots)
        self._rewrites.secure(begun, {slot for each in written for slot in each.slots})
        # Those slots were written without the measurements they lost: only a later merge can write them again.
        for each in left:
            self._rewrites.emptied(each.narrowed)

    def _held(self, table: TableVersion, kind: str, epoch: Epoch) -> tuple[ReadReceipt, ...] | None:
        note = self._log.note(table, kind, epoch)
        return None if note is None else receipts_from_json(note)

    def _keep_rejected(self, kind: str, epoch: Epoch, rejected: pa.Table) -> None:
        if not rejected.num_rows or self._dead_letters is None:
            return
        names = {"job": self._job_id, "table": f"{self._shape.definition.database}.{self._shape.definition.table}"}
        for name, text in names.items():
            rejected = rejected.append_column(name, pa.array([text] * rejected.num_rows))
        dead, schema = self._dead_letters, _dead_letter_schema()
        if dead.landed(dead.open(), kind, epoch):
            return
        with storage_errors(f"dead letters cannot be written to {dead.storage.path}"):
            layout = FileLayout((), (), file_bytes=1 << 62)
            files = write_files(dead.storage, unique_stem(f"{self._job_id}-e{epoch}"), schema, [rejected], layout)
        self._commit(dead, kind, epoch, files)

    def _commit(
        self, log: DeltaLog, kind: str, epoch: Epoch, files: Sequence[FileReceipt] = (), note: str = ""
    ) -> None:
        for _ in range(_TRIES):
            table = log.open()
            if log.landed(table, kind, epoch):
                return
            try:
                made = log.commit(table, kind, epoch, files, note=note)
            except OvertakenError:
                continue
            log.maintain(made)
            return
        raise SinkUnavailableError(f"the {kind} of epoch {epoch} was overtaken by other commits {_TRIES} times")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of a merge did to slots, and what it could not write."""

    clash: Clash | None
    rejected: pa.Table
    slots: tuple[Slot, ...] = ()
    """Those that it emptied, or wrote."""
    narrowed: tuple[Slot, ...] = ()
    """Those that keep their key and lost a measurement."""


def address_of(config: IotdbSinkConfig, password: str) -> IotdbAddress:
    timeout, tls = config.timeout.total_seconds(), IotdbTls.of(config.tls)
    return IotdbAddress(config.host, config.port, config.user, password, timeout, tls)


def mapping_of(
    config: IotdbSinkConfig, definition: TableDefinition, password: str, key_measurement: str = KEY_MEASUREMENT
) -> PointMapping:
    """How rows become points of this server, which is asked for its precision."""
    session = IotdbSession(address_of(config, password))
    try:
        return PointMapping.of(config, definition, session.precision(), key_measurement)
    finally:
        session.close()


def settings_of(
    config: IotdbSinkConfig, mapping: PointMapping, password: str, lease: LeaseCheck = no_lease
) -> WriterSettings:
    return WriterSettings(
        address_of(config, password), mapping, config.aligned, config.tablet_rows, config.dead_letter is not None, lease
    )


def refuse_foreign_points(config: IotdbSinkConfig, definition: TableDefinition, password: str) -> None:
    """Raise if devices of the mapping hold points, as a job that has written none of them would; writes nothing."""
    mapping = mapping_of(config, definition, password)
    store = open_store(settings_of(config, mapping, password))
    try:
        _refuse_points(store, mapping)
    finally:
        store.close()


def _refuse_points(store: PointStore, mapping: PointMapping) -> None:
    held = store.held()
    if held:
        raise SinkError(
            f"{mapping.naming.text} matches devices with points that this job did not write",
            detail=f"{', '.join(held[:5])} {'hold' if len(held) > 1 else 'holds'} some.",
            hint="Choose another place, or set `sink.iotdb.replace: true` to have what is there removed.",
        )


def _in_driver(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


def _empty_left(settings: WriterSettings, claims: ClaimStore, epoch: Epoch, part: ChangeSlice) -> Outcome:
    """The first step of a merge: everything is emptied before anything is written, over all parts."""
    mapping = settings.mapping
    window = window_of(part.load(), mapping.definition)
    found = slot_changes(mapping, window)
    if found.rejections:
        refuse_unless(settings, window.after, found.rejections)
    if mapping.owner:
        # A read of this epoch may write one of these slots for another key at this moment.
        claims.claim(epoch, "merge-left", found.left)
        claims.claim(epoch, "merge", found.kept)
    writer = PointWriter(settings)
    writer.remove(found.left)
    # What goes with the cells is written by the second step, which writes all of `kept`.
    gone = writer.remove_cells(found.kept, found.cells)
    lost = found.kept.take(np.any(found.cells, axis=0))
    emptied = (*slots_of(found.left), *slots_of(gone))
    return Outcome(None, REJECTED_SCHEMA.empty_table(), emptied, tuple(slots_of(lost)))


def _write_kept(settings: WriterSettings, epoch: Epoch, part: ChangeSlice) -> Outcome:
    window = window_of(part.load(), settings.mapping.definition)
    points, rejections = settings.mapping.points(window.after)
    clash = PointWriter(settings).put(points)
    rejected = rejected_rows(epoch, settings.mapping, window.after, rejections)
    return Outcome(clash, rejected, tuple(slots_of(points)))


def _create(log: DeltaLog, schema: pa.Schema, retention: timedelta) -> None:
    """Make the job's table, if there is none."""
    if log.find() is not None:
        return
    hours = max(24, int(retention.total_seconds() // 3600))
    configuration = {
        "delta.logRetentionDuration": f"interval {hours} hours",
        "delta.enableExpiredLogCleanup": "true",
        "delta.checkpointInterval": "25",
    }
    with suppress(OvertakenError):
        log.create(schema, configuration)


def _dead_letter_schema() -> pa.Schema:
    return pa.schema([*REJECTED_SCHEMA, pa.field("job", pa.string()), pa.field("table", pa.string())])
