"""Records what each attempt at an epoch is going to write, before it writes: slots, rows left out, rows in conflict.

What must be true: there is a record of every point that an attempt may have written, also if the attempt was lost. So a
slot file is complete before the first of its points is written. IoTDB has no transactions; these files replace them:

- an attempt that was lost is undone exactly, without searching the target;
- slots that two attempts of one epoch wrote for different keys are found, though neither saw the other;
- when a range is read again, they say what must not be left of it: slots it did not write, and cells it found NULL.

The files are beside the receipts, in `claims/e<epoch>/`, and are deleted when a later epoch is settled.

    slots-r12-a0-….parquet        device, time, key columns where slots do not show the key, bits of NULL measurements
    slots-merge-….parquet         the same for the slots that a merge deleted or wrote
    rejected-r12-a0-….parquet     rows for the dead letters
    conflicts-r12-a0-….parquet    rows that were not written because another key holds their slot, with that key
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from vnode_backfill.delta.files import FileReceipt
from vnode_backfill.delta.parquet import FileLayout, read_columns, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks.iotdb.mapping import PointMapping, Points, Rejection
from vnode_backfill.sinks.iotdb.values import Ints
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import key_from_text, key_to_text

DEVICE, TIME, HOLDER = "_device", "_time", "_holder"
_FOLDER = "claims"
_SLOTS, _MERGE, _REJECTED, _CONFLICTS = "slots-r", "slots-merge", "rejected-r", "conflicts-r"
_MISSING, _BITS = "_missing", 62
_NO_LIMIT = 1 << 62
REJECTED_SCHEMA = pa.schema(
    {
        "epoch": pa.int64(),
        "key": pa.string(),
        "column": pa.string(),
        "value": pa.string(),
        "reason": pa.string(),
        "row": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class Clash:
    """Rows that were not written, each with the key that holds its slot."""

    rows: pa.Table
    holders: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ClaimStore:
    """The records of one job's attempts. Can be pickled."""

    storage: Storage
    mapping: PointMapping

    @property
    def schema(self) -> pa.Schema:
        """Of slot files."""
        source = self.mapping.definition.arrow_schema
        told = self.mapping.definition.key if self.mapping.owner else ()
        keys = [source.field(name).with_nullable(True) for name in told]
        words = -(-len(self.mapping.measurements) // _BITS)
        return pa.schema(
            [(DEVICE, pa.string()), (TIME, pa.int64()), *keys, *((f"{_MISSING}{n}", pa.int64()) for n in range(words))]
        )

    def claim(self, epoch: Epoch, who: str, points: Points) -> tuple[FileReceipt, ...]:
        """Record slots before they are written. `who` is `r<ordinal>-a<attempt>` or `merge`."""
        return self._write(epoch, f"slots-{who}", self.schema, self._slots(points))

    def reject(self, epoch: Epoch, who: str, rejected: pa.Table) -> tuple[FileReceipt, ...]:
        return self._write(epoch, f"rejected-{who}", REJECTED_SCHEMA, rejected)

    def contest(self, epoch: Epoch, who: str, clash: Clash) -> tuple[FileReceipt, ...]:
        held = pa.array([key_to_text(key) for key in clash.holders], pa.string())
        return self._write(epoch, f"conflicts-{who}", self._conflict_schema, clash.rows.append_column(HOLDER, held))

    def files(self, epoch: Epoch) -> list[str]:
        """Every record of an epoch, those of lost attempts included."""
        return [path for number, path in self._all() if number == epoch]

    def lost(self, epoch: Epoch, landed: Sequence[FileReceipt]) -> list[str]:
        """The slot files of attempts at reading that did not land."""
        kept = {file.path for file in landed}
        return [path for path in self.files(epoch) if _name(path).startswith(_SLOTS) and path not in kept]

    def merged(self, epoch: Epoch) -> list[str]:
        """The slot files of the epoch's merge."""
        return [path for path in self.files(epoch) if _name(path).startswith(_MERGE)]

    def slots(self, paths: Sequence[str]) -> pa.Table:
        return self._read(paths, self.schema)

    def rejected(self, landed: Sequence[FileReceipt]) -> pa.Table:
        return self._read([f.path for f in landed if _name(f.path).startswith(_REJECTED)], REJECTED_SCHEMA)

    def conflicts(self, landed: Sequence[FileReceipt]) -> Clash:
        paths = [f.path for f in landed if _name(f.path).startswith(_CONFLICTS)]
        table = self._read(paths, self._conflict_schema)
        holders = tuple(key_from_text(text) for text in table.column(HOLDER).to_pylist())
        return Clash(table.drop_columns([HOLDER]), holders)

    def forget(self, before: Epoch) -> None:
        """Delete the records of earlier epochs, which are settled."""
        filesystem = self.storage.filesystem()
        with storage_errors(f"settled records cannot be deleted from {self.storage.path}"):
            for number, path in self._all():
                if number < before:
                    filesystem.delete_file(path)

    @property
    def _conflict_schema(self) -> pa.Schema:
        source = self.mapping.definition.arrow_schema
        return pa.schema([*(field.with_nullable(True) for field in source), pa.field(HOLDER, pa.string())])

    def _slots(self, points: Points) -> pa.Table:
        devices = pa.array(points.devices, pa.string()).take(pa.array(points.device))
        columns = [devices, pa.array(points.times)]
        if self.mapping.owner:
            columns += [points.rows.column(name) for name in self.mapping.definition.key]
        names = [each.name for each in self.mapping.measurements]
        for start in range(0, len(names), _BITS):
            columns.append(pa.array(_missing_bits(points.values.select(names[start : start + _BITS]))))
        return pa.table(columns, schema=self.schema)

    def _write(self, epoch: Epoch, name: str, schema: pa.Schema, table: pa.Table) -> tuple[FileReceipt, ...]:
        folder = f"{_FOLDER}/e{epoch}"
        layout = FileLayout((DEVICE,) if DEVICE in schema.names else (), (), file_bytes=_NO_LIMIT)
        with storage_errors(f"the record of what is written cannot be kept in {self.storage.path}"):
            self.storage.make_folder(folder)
            return write_files(self.storage, unique_stem(f"{folder}/{name}"), schema, [table], layout)

    def _read(self, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
        with storage_errors(f"the record of what was written cannot be read from {self.storage.path}"):
            return pa.concat_tables(
                [schema.empty_table(), *(read_columns(self.storage, path, schema) for path in paths)]
            )

    def _all(self) -> list[tuple[int, str]]:
        with storage_errors(f"the record of what was written cannot be found in {self.storage.path}"):
            selector = pafs.FileSelector(_FOLDER, recursive=True, allow_not_found=True)
            paths = [found.path for found in self.storage.filesystem().get_file_info(selector) if found.is_file]
        numbered = ((re.match(rf"{_FOLDER}/e(\d+)/", path), path) for path in paths)
        return sorted((int(found[1]), path) for found, path in numbered if found is not None)


def missing_in(table: pa.Table, measurement: int) -> pa.Array:
    """Whether the measurement of this number was NULL, for each slot of a slot file."""
    words = table.column(f"{_MISSING}{measurement // _BITS}").to_numpy()
    return pa.array((words >> (measurement % _BITS)) & 1 == 1)


def rejected_rows(epoch: Epoch, mapping: PointMapping, rows: pa.Table, rejections: Sequence[Rejection]) -> pa.Table:
    """Rejected rows as they are kept: with their key, the first reason found, and themselves as JSON."""
    found = []
    for each in rejections:
        row = rows.slice(each.row, 1)
        (values,) = row.to_pylist()
        key = ", ".join(f"{name}={_json_value(values[name])}" for name in mapping.definition.key)
        text = json.dumps({name: _json_value(value) for name, value in values.items()}, ensure_ascii=False)
        found.append((int(epoch), key, each.column, each.value, each.reason, text))
    columns = list(zip(*found, strict=True)) or [()] * len(REJECTED_SCHEMA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, REJECTED_SCHEMA, strict=True)], schema=REJECTED_SCHEMA
    )


def _json_value(value: object) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case Decimal():
            return format(value, "f")
        case datetime() | date():
            return value.isoformat()
        case _:
            return str(value)


def _missing_bits(values: pa.Table) -> Ints:
    bits = np.zeros(values.num_rows, dtype=np.int64)
    for number, column in enumerate(values.columns):
        if column.null_count:
            missing = (
                column.is_null().to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else _is_null(column)
            )
            bits |= missing.astype(np.int64) << number
    return bits


def _is_null(column: pa.ChunkedArray) -> Ints:
    result: Ints = column.is_null().to_numpy()
    return result


def _name(path: str) -> str:
    return path.rpartition("/")[2]
