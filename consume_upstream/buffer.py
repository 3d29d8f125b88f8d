"""Keeps the changes that are not merged yet, in a Delta table beside the job's state.

What must be true: once an epoch's commit has landed, every change of its stretch of the log that was not dropped is
here, and stays until every vnode has applied it. The note beside it holds the visibility by which the others were
dropped. Appending an epoch again changes nothing, and returns the note that landed.

A row is one change of one key: its place in the log, its operation, the row afterwards (of a delete the key only), the
row before (`_before_…`, empty for an insert), and the vnode it had when it was written. That vnode is a hint for
layout. Files are sorted by it and cut into small row groups, so that a worker reads little besides its own vnodes. An
epoch has a few files, never one per vnode. After a plan extension a change may belong to another vnode than the one
stored; `files` is then asked without vnodes. Where every vnode is live, all of an epoch is merged at once, most often
by one process. Sorting would cost half of what writing does, so these files keep the order of the log.

A file has the columns of one version of the table's definition, that of its epoch. The Delta schema of the buffer is
the first one: nothing but this module reads the buffer, and it reads each file as it is.

    epoch  file                        row groups by vnode        read by the worker of vnodes 0-127
    41     e41-p0-….parquet            0-90 | 91-170 | 171-255    the first two
    41     e41-p10000-….parquet        3-255                      all of it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, FileReceipt, Value
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import READ_ROWS, FileLayout, batch_rows, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.change import (
    BEFORE_PREFIX,
    EPOCH,
    FILE,
    HALF,
    OFFSET_COLUMNS,
    OP,
    POS,
    RESERVED_COLUMNS,
    ROW,
    TIMESTAMP,
    VNODE,
)
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, PlanRefusedError, SinkUnavailableError, StateError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.lift import NO_LIFTS, Lifts, columns_before, lifted

_BUFFER, _TRIES = "buffer", 5
_BOUNDED = (VNODE, EPOCH, FILE, POS)
_ROW_GROUP_ROWS = 8_192
"""256 vnodes share a full file of 200,000 changes in 25 row groups of about ten vnodes. One of four workers reads a
quarter of it."""
_NO_LIMIT = 1 << 62
_VERSION, _CUT_VERSION = 1, 2
"""A note with a cut has a version of its own: earlier releases would take the whole stretch of the log for captured."""
_TRIMS_PER_VACUUM = 50
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BufferNote:
    """What an epoch's buffer commit says of itself.

    `visible` and `missing` decided about dropped changes; of `read` changes `kept` were not dropped; `newest` is the
    time of the newest event in seconds since 1970, 0 if there was none. `cut` is the statement before which the stretch
    of the log ended, `passed` are those that concern the table and change nothing. Up to `cascaded` a change of another
    table has changed rows of this one outside the log.
    """

    visible: VisibleAt
    missing: tuple[LoggedTransaction, ...]
    kept: int
    read: int = 0
    newest: int = 0
    cut: FoundStatement | None = None
    passed: tuple[FoundStatement, ...] = ()
    cascaded: CdcOffset | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "v": _CUT_VERSION if self.cut or self.cascaded else _VERSION,
                "visible": self.visible.position.to_json(),
                "missing": [[transaction.gtid, transaction.start.to_json()] for transaction in self.missing],
                "kept": self.kept,
                "read": self.read,
                "newest": self.newest,
                **({"cut": _statement_to_json(self.cut)} if self.cut else {}),
                **({"passed": [_statement_to_json(each) for each in self.passed]} if self.passed else {}),
                **({"cascaded": self.cascaded.to_json()} if self.cascaded else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> BufferNote:
        stored = json.loads(text)
        if stored.get("v") not in (_VERSION, _CUT_VERSION):
            raise StateError(
                f"a note of the change buffer has the unknown version {stored.get('v')!r}", detail=text[:500]
            )
        return cls(
            visible=VisibleAt(CdcOffset.from_json(stored["visible"])),
            missing=tuple(LoggedTransaction(gtid, CdcOffset.from_json(start)) for gtid, start in stored["missing"]),
            kept=int(stored["kept"]),
            read=int(stored["read"]),
            newest=int(stored["newest"]),
            cut=_statement_from_json(stored["cut"]) if "cut" in stored else None,
            passed=tuple(_statement_from_json(each) for each in stored.get("passed", ())),
            cascaded=CdcOffset.from_json(stored["cascaded"]) if "cascaded" in stored else None,
        )


def _statement_to_json(found: FoundStatement) -> list[str | int]:
    return [found.before.to_json(), found.after.to_json(), found.text, found.gtid, found.logged_at]


def _statement_from_json(stored: Sequence[str | int]) -> FoundStatement:
    before, after, text, gtid, logged_at = stored
    return FoundStatement(
        CdcOffset.from_json(str(before)), CdcOffset.from_json(str(after)), str(text), str(gtid), int(logged_at)
    )


@dataclass(frozen=True, slots=True)
class BufferSize:
    """What waits in the buffer."""

    bytes: int
    files: int
    rows: int


def buffer_schema(definition: TableDefinition) -> pa.Schema:
    """The columns of a buffered change; refuses source columns that would be mistaken for the buffer's own."""
    names = {column.name.casefold() for column in definition.columns}
    taken = names & ({name.casefold() for name in RESERVED_COLUMNS} | {BEFORE_PREFIX + name for name in names})
    if taken:
        raise PlanRefusedError(
            f"the columns {', '.join(sorted(taken))} have names that the change buffer uses itself",
            hint="Rename the columns at the source.",
        )
    own = {
        VNODE: pa.int32(), EPOCH: pa.int64(), FILE: pa.int64(), POS: pa.int64(), ROW: pa.int32(), HALF: pa.int8(),
        OP: pa.int8(), TIMESTAMP: pa.int64(),
    }  # fmt: skip
    image = [(column.name, column.arrow_type) for column in definition.columns]
    return pa.schema([*own.items(), *image, *((BEFORE_PREFIX + name, kind) for name, kind in image)])


@dataclass(frozen=True, slots=True)
class BufferWriter:
    """Writes changes inside Spark tasks; can be pickled."""

    storage: Storage
    schema: pa.Schema

    def write(self, epoch: Epoch, part: int, table: pa.Table, *, by_vnode: bool = True) -> FileReceipt:
        """Write the changes as one file. Nothing is visible yet. Demands a row.

        They are sorted by vnode and place in the log, or with large row groups as they come: see the module.
        """
        order = [(name, "ascending") for name in (VNODE, *OFFSET_COLUMNS)]
        most = _ROW_GROUP_ROWS if by_vnode else READ_ROWS
        layout = FileLayout((), _BOUNDED, _NO_LIMIT, row_group_rows=most, temporary=True)
        with storage_errors(f"changes of epoch {epoch} cannot be written to {self.storage.path}"):
            rows = min(most, batch_rows(table.nbytes, table.num_rows))
            batches = (table.sort_by(order) if by_vnode else table.combine_chunks()).to_batches(rows)
            (receipt,) = write_files(self.storage, unique_stem(f"e{epoch}-p{part}"), self.schema, batches, layout)
        return receipt


@dataclass(frozen=True, slots=True)
class BufferReader:
    """Reads buffered changes inside Spark tasks; can be pickled."""

    storage: Storage
    schema: pa.Schema
    lifts: Lifts = NO_LIFTS

    def read(self, file: BufferFile) -> Iterator[pa.RecordBatch]:
        """The changes of a file, row group by row group, without those groups that hold nothing asked for."""
        steps = self.lifts.of_epoch(file.epoch)
        with (
            storage_errors(f"changes cannot be read from {self.storage.path}"),
            self.storage.filesystem().open_input_file(file.path) as source,
        ):
            parquet = pq.ParquetFile(source)
            groups = [g for g in range(parquet.num_row_groups) if _wanted(parquet.metadata.row_group(g), file.vnodes)]
            if groups:
                batches = parquet.iter_batches(
                    batch_size=max(parquet.metadata.row_group(group).num_rows for group in groups),
                    row_groups=groups,
                    columns=columns_before(self.schema.names, steps),
                    use_threads=False,
                )
                yield from (lifted(batch, steps, self.schema) for batch in batches) if steps else batches


@dataclass(frozen=True, slots=True)
class BufferFile:
    """A file to read, and the vnodes wanted from it; None where its vnodes are not to be trusted."""

    path: str
    size: int
    rows: int
    vnodes: VnodeBitmap | None
    epoch: Epoch = Epoch(0)


class ChangeBuffer:
    """The buffer of one job at `path`. Methods are called from the driver; writers and readers go to tasks."""

    def __init__(
        self,
        path: str,
        definition: TableDefinition,
        job_id: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        generation: int = 0,
        retention: timedelta = timedelta(hours=1),
    ) -> None:
        self._storage = Storage.of(path, storage_options)
        self._definition = definition
        self._schema = buffer_schema(definition)
        self._log = DeltaLog(self._storage, job_id, "the change buffer", generation)
        self._hours = max(1, int(retention.total_seconds() // 3600))
        self._trims = 0

    def prepare(self) -> None:
        """Make the table if there is none. A second call changes nothing."""
        if self._log.find() is None:
            with suppress(OvertakenError):
                self._log.create(self._schema, self._configuration())
        self._retrying(self._log.fence)

    def _configuration(self) -> dict[str, str]:
        return {
            "delta.dataSkippingStatsColumns": ",".join(f"`{name}`" for name in _BOUNDED),
            "delta.deletedFileRetentionDuration": f"interval {self._hours} hours",
            "delta.logRetentionDuration": f"interval {max(24, self._hours)} hours",
            "delta.enableExpiredLogCleanup": "true",
            "delta.checkpointInterval": "25",
        }

    def writer(self, definition: TableDefinition | None = None) -> BufferWriter:
        return BufferWriter(self._storage, buffer_schema(definition) if definition else self._schema)

    def reader(
        self, *, before: bool = False, definition: TableDefinition | None = None, lifts: Lifts | None = None
    ) -> BufferReader:
        """Reads the after-images, and with `before` the before-images too, as rows of `definition`.

        `lifts` says how changes of earlier versions become such rows.
        """
        definition = definition or self._definition
        schema, image = buffer_schema(definition), [column.name for column in definition.columns]
        old = [BEFORE_PREFIX + name for name in image] if before else []
        names = (*OFFSET_COLUMNS, OP, *image, *old)
        wanted = pa.schema([schema.field(name) for name in names])
        return BufferReader(self._storage, wanted, lifts or NO_LIFTS)

    def landed(self, epoch: Epoch) -> BufferNote | None:
        """The note of this epoch's commit, or None if it has not landed."""
        held = self._log.note(self._log.open(), _BUFFER, epoch)
        return None if held is None else BufferNote.from_json(held)

    def commit(self, epoch: Epoch, receipts: Sequence[FileReceipt], note: BufferNote) -> BufferNote:
        """Append one epoch's changes. A second call with the same epoch changes nothing and returns the note that
        landed.

        An epoch without changes is not committed: reading its stretch of the log again gives the same note.
        """

        def attempt(table: TableVersion) -> BufferNote:
            held = self._log.note(table, _BUFFER, epoch)
            if held is not None:
                return BufferNote.from_json(held)
            if receipts:
                made = self._log.commit(table, _BUFFER, epoch, receipts, note=note.to_json())
                self._log.maintain(made)
            return note

        return self._retrying(attempt)

    def files(
        self, applied: Mapping[VnodeId, CdcOffset], upto: CdcOffset, vnode_count: int, *, trusted_since: Epoch | None
    ) -> list[BufferFile]:
        """The files that may hold changes of these vnodes in `(applied, upto]`, each with the vnodes wanted from it.

        Stored vnodes count from the epoch `trusted_since` on: those written under the plan generation that holds now.
        """
        if not applied:
            return []
        lowest = min(applied.values(), key=lambda offset: offset.order)
        wanted = VnodeBitmap.of(applied, vnode_count)
        chosen = []
        for file in self._log.files(self._log.open(), _BOUNDED):
            bounds = _Bounds.of(file)
            trusted = trusted_since is not None and bounds.epoch >= trusted_since
            if bounds.beyond(upto) or bounds.done(lowest) or (trusted and not _any_vnode(wanted, bounds.vnodes)):
                continue
            asked = wanted if trusted else None
            chosen.append(BufferFile(file.path, file.size, file.rows or 0, asked, Epoch(bounds.epoch)))
        return chosen

    def trim(self, upto: CdcOffset) -> int:
        """Remove the files all of whose changes are at or below `upto`, in one commit; how many went."""

        def attempt(table: TableVersion) -> int:
            old = [file for file in self._log.files(table, _BOUNDED) if _Bounds.of(file).done(upto)]
            if old:
                self._log.maintain(self._log.remove(table, old))
            return len(old)

        removed = self._retrying(attempt)
        self._trims += bool(removed)
        if removed and self._trims % _TRIMS_PER_VACUUM == 0:
            self.sweep()
        return removed

    def sweep(self) -> list[str]:
        """Delete files that were trimmed or never committed, once they are old enough (see `DeltaLog.sweep`)."""
        return self._log.sweep(timedelta(hours=self._hours))

    def size(self) -> BufferSize:
        files = self._log.files(self._log.open(), ())
        return BufferSize(sum(f.size for f in files), len(files), sum(f.rows or 0 for f in files))

    def _retrying(self, attempt: Callable[[TableVersion], Result]) -> Result:
        """Trimming and appending happen at the same time; whichever comes second looks again and tries again."""
        for _ in range(_TRIES):
            try:
                return attempt(self._log.open())
            except OvertakenError:
                continue
        raise SinkUnavailableError(f"the change buffer was overtaken by other commits {_TRIES} times")


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a file's statistics say about its changes; a file holds one epoch."""

    vnodes: tuple[int, int]
    epoch: int
    files: tuple[int, int]
    positions: tuple[int, int]

    @classmethod
    def of(cls, file: DataFile) -> _Bounds:
        pairs = [(_number(low, file), _number(high, file)) for low, high in zip(file.low, file.high, strict=True)]
        vnodes, epochs, files, positions = pairs
        return cls(vnodes, epochs[0], files, positions)

    def done(self, upto: CdcOffset) -> bool:
        """Whether every change is certainly at or below `upto`."""
        return self.files[1] < upto.number or (self.files[1] == upto.number and self.positions[1] <= upto.pos)

    def beyond(self, upto: CdcOffset) -> bool:
        """Whether every change is certainly above `upto`."""
        return self.files[0] > upto.number or (self.files[0] == upto.number and self.positions[0] > upto.pos)


def _number(value: Value | None, file: DataFile) -> int:
    if not isinstance(value, int):
        raise StateError(f"the file {file.path} of the change buffer has no bounds", detail=f"{file}")
    return value


def _wanted(group: pq.RowGroupMetaData, vnodes: VnodeBitmap | None) -> bool:
    found = group.column(0).statistics
    return vnodes is None or found is None or not found.has_min_max or _any_vnode(vnodes, (found.min, found.max))


def _any_vnode(vnodes: VnodeBitmap, bounds: tuple[int, int]) -> bool:
    low, high = bounds
    return bool(vnodes.bits >> low & ((1 << (high - low + 1)) - 1))
