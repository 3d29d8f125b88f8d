"""Holds the changes of one merge, one per key, in memory or staged in files by the workers that found them.

Both forms answer the same two questions. Which changes may concern a file of the target? By the bounds of its key
columns these are more than do concern it, never fewer. And which changes are there at all? Each carries a number
(`INDEX`), so that those that met no row can be distinguished from those that did.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from vnode_backfill.delta.files import DataFile, Value
from vnode_backfill.delta.parquet import FileLayout, batch_rows, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.change import OP

if TYPE_CHECKING:
    from _typeshed import SupportsAllComparisons

INDEX = "_index"
STAGED_FOLDER = "_staged"
"""Inside the target's folder; readers of Delta ignore names that begin with an underscore."""
_PARTS_APART = 1 << 40
_STAGED_ROWS = 32_768
_PADDING = timedelta(milliseconds=1)


class ChangeSlice(Protocol):
    """Some changes; can be pickled."""

    def load(self) -> pa.Table:
        """The changes in key order: the columns of the table, `_op` and `INDEX`."""
        ...


class Changes(Protocol):
    """One change per key, at most."""

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Their size in memory."""
        ...

    def within(self, file: DataFile) -> ChangeSlice | None:
        """The changes whose keys the file may hold, or None if there are none for certain."""
        ...

    def parts(self) -> Sequence[ChangeSlice]:
        """All changes, in pieces."""
        ...


@dataclass(frozen=True, slots=True)
class MemorySlice:
    table: pa.Table

    def load(self) -> pa.Table:
        return self.table

    def __reduce__(self) -> tuple[object, ...]:
        """Send the slice only: pickled as it is, it would take the whole table along."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return _from_ipc, (sink.getvalue().to_pybytes(),)


def _from_ipc(data: bytes) -> MemorySlice:
    return MemorySlice(pa.ipc.open_stream(data).read_all())


class _FirstKeys(Sequence["SupportsAllComparisons"]):
    """The first key column as Python compares it. A search looks at a few of many values, so each is made when it is
    looked at."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column.combine_chunks()
        self._made: dict[int, SupportsAllComparisons] = {}

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> SupportsAllComparisons:  # type: ignore[override]
        found = self._made.get(index)
        if found is None:
            found = self._made[index] = comparable(self._column[index].as_py())
        return found


class MemoryChanges:
    """Changes held by the driver."""

    def __init__(self, table: pa.Table, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._table = _numbered(table, self._key, part=0)
        self._first = _FirstKeys(self._table.column(key[0]))

    @property
    def rows(self) -> int:
        return int(self._table.num_rows)

    @property
    def bytes(self) -> int:
        return int(self._table.nbytes)

    def parts(self) -> Sequence[ChangeSlice]:
        return [MemorySlice(self._table)] if self.rows else []

    def within(self, file: DataFile) -> ChangeSlice | None:
        low, high = file.low[0], file.high[0]
        start = 0 if low is None else bisect_left(self._first, comparable(low))
        stop = self.rows if high is None else bisect_right(self._first, comparable(high, up=True))
        found = self._table.slice(start, max(stop - start, 0))
        for name, low, high in zip(self._key[1:], file.low[1:], file.high[1:], strict=True):
            if found.num_rows and low is not None and high is not None:
                found = found.filter(_between(found.column(name), low, high))
        return MemorySlice(found) if found.num_rows else None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One worker's changes in a file of the target's folder, with the bounds of its first key column."""

    path: str
    rows: int
    bytes: int
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class StagedSlice:
    storage: Storage
    paths: tuple[str, ...]
    key: str
    low: Value | None = None
    high: Value | None = None

    def load(self) -> pa.Table:
        with storage_errors(f"staged changes cannot be read from {self.storage.path}"):
            return pa.concat_tables([self._read(path) for path in self.paths])

    def _read(self, path: str) -> pa.Table:
        wanted = None
        if self.low is not None and self.high is not None:
            wanted = (pc.field(self.key) >= self.low) & (pc.field(self.key) <= self.high)
        return pq.read_table(path, filesystem=self.storage.filesystem(), filters=wanted, use_threads=False)


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes that workers have written to files, each key in one of them."""

    storage: Storage
    key: str
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def parts(self) -> Sequence[ChangeSlice]:
        return [StagedSlice(self.storage, (file.path,), self.key) for file in self.files]

    def within(self, file: DataFile) -> ChangeSlice | None:
        low, high = file.low[0], file.high[0]
        if low is None or high is None:
            return StagedSlice(self.storage, tuple(each.path for each in self.files), self.key) if self.files else None
        bounds = comparable(low), comparable(high, up=True)
        paths = tuple(
            each.path for each in self.files if comparable(each.high) >= bounds[0] and comparable(each.low) <= bounds[1]
        )
        return StagedSlice(self.storage, paths, self.key, low, _raised(high)) if paths else None


def stage(storage: Storage, part: int, table: pa.Table, key: Sequence[str]) -> StagedFile | None:
    """Write one worker's changes, in key order, for `StagedChanges`; `part` is its number. None for no change."""
    if not table.num_rows:
        return None
    numbered = _numbered(table, key, part)
    layout = FileLayout((), (), file_bytes=1 << 62, row_group_rows=_STAGED_ROWS)
    batches = numbered.to_batches(min(_STAGED_ROWS, batch_rows(numbered.nbytes, numbered.num_rows)))
    with storage_errors(f"changes cannot be staged in {storage.path}"):
        storage.make_folder(STAGED_FOLDER)
        (receipt,) = write_files(storage, unique_stem(f"{STAGED_FOLDER}/{part}"), numbered.schema, batches, layout)
    first = numbered.column(key[0])
    return StagedFile(receipt.path, receipt.rows, numbered.nbytes, first[0].as_py(), first[-1].as_py())


def clear_staged(storage: Storage) -> None:
    """Delete everything that was staged, also by a driver that died; nothing of it is part of the table."""
    filesystem = storage.filesystem()
    with storage_errors(f"staged changes cannot be deleted from {storage.path}"):
        if filesystem.get_file_info(STAGED_FOLDER).type is pafs.FileType.Directory:
            filesystem.delete_dir(STAGED_FOLDER)


def comparable(value: Value, *, up: bool = False) -> SupportsAllComparisons:
    """A value as Python compares it; `up` makes room for maxima that writers of Delta cut to milliseconds."""
    value = _raised(value) if up else value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _raised(value: Value) -> Value:
    try:
        return value + _PADDING if isinstance(value, datetime) else value
    except OverflowError:
        return value


def _numbered(table: pa.Table, key: Sequence[str], part: int) -> pa.Table:
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key]).to_numpy()
    rows = np.arange(table.num_rows, dtype=np.int64)
    # New rows most often come in the order of their keys: then none is copied.
    ordered = table if np.array_equal(order, rows) else table.take(pa.array(order))
    return ordered.combine_chunks().append_column(INDEX, pa.array(rows + part * _PARTS_APART))


def _between(column: pa.ChunkedArray, low: Value, high: Value) -> pa.ChunkedArray:
    above = pc.greater_equal(column, pa.scalar(low, column.type))
    return pc.and_(above, pc.less_equal(column, pa.scalar(_raised(high), column.type)))


def upserts(table: pa.Table, delete: int) -> pa.Table:
    """The changes that leave a row behind."""
    stays = pc.not_equal(table.column(OP), pa.scalar(delete, pa.int8()))
    return table if pc.all(stays).as_py() is not False else table.filter(stays)
