"""Changes rows of a Delta table: writes each file that holds one again, at the same place of the key order.

What must be true: a new file holds every row of the old one except those that change or are gone, and each changed key
once. A file is read twice. First its key columns, to find which rows change. Then, only if one does, all columns, a
bounded number of rows at a time.

Why not `deltalake`'s merge or Spark's MERGE: both give the same rows, and both gather the rows of all touched files
into few new ones. A table of tight key ranges becomes one in which every file spans all keys. From then on one changed
key costs a rewrite of the whole table. Measured, 500,000 scattered changes into 2 M rows × 10 columns in 50 files, two
cores: this 2.8 CPU-s and 50 tight files, `deltalake` 3.4 CPU-s and 2 files, Spark 25–30 CPU-s and 2 files; 1,000
scattered changes: 1.8, 2.2 and 29 CPU-s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vnode_backfill.delta.files import DataFile, FileReceipt
from vnode_backfill.delta.parquet import (
    FileLayout,
    as_schema,
    batch_rows,
    read_batches,
    read_columns,
    unique_stem,
    write_files,
)
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import read_vector
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.changes import INDEX, Changes, ChangeSlice, upserts
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.words.change import OP, ChangeOp
from vnode_backfill.words.epoch import Epoch

REWRITE_IN_TASKS_BYTES = 512 * 1024 * 1024
"""More bytes of touched files than this are rewritten by Spark tasks. A core rewrites about 40 MB of Parquet a second,
so two of the driver's would be busy for six seconds. Spark jobs cost one or two seconds before they do anything."""
Ints = npt.NDArray[np.int64]
_STAYS, _GOES = -1, -2
_ROW, _CHANGE = "_row", "_change"
Item = TypeVar("Item")
Result = TypeVar("Result")
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file and the changes that may concern it."""

    file: DataFile
    changes: ChangeSlice


@dataclass(frozen=True, slots=True, eq=False)
class Removal:
    """A file and the rows that go from it, beside those that are gone."""

    file: DataFile
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """A file, rows that change in it, and for each the number of its change, or `LEAVES` where the row only goes."""

    file: DataFile
    changes: ChangeSlice
    rows: Ints
    numbers: Ints

    LEAVES = -1


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a file: None if nothing in it changed, else what replaces it; and the changes that met a row."""

    removed: DataFile | None
    files: tuple[FileReceipt, ...]
    met: Ints

    @property
    def effect(self) -> Effect:
        return Effect(self.files, () if self.removed is None else (self.removed,))


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Writes the files of one epoch's rewrites; can be pickled."""

    storage: Storage
    schema: pa.Schema
    key: tuple[str, ...]
    layout: FileLayout
    epoch: Epoch

    def keys(self, file: DataFile) -> pa.Table:
        """The key columns of a file, of all its rows."""
        with storage_errors(f"{file.path} cannot be read"):
            return read_columns(self.storage, file.path, self.key_schema)

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.key])

    def merge(self, task: Rewrite) -> Rewritten:
        """Apply the changes to the rows they meet in this file; changes that meet none are left for `insert`."""
        changes = task.changes.load()
        becomes = self._as_it_is(task.file, keys := self.keys(task.file))
        rows, met = _meeting(keys, changes, self.key)
        live = becomes[rows] == _STAYS
        rows, met = rows[live], met[live]
        if not len(rows):
            return Rewritten(None, (), np.empty(0, np.int64))
        deleted = changes.column(OP).to_numpy()[met] == ChangeOp.DELETE
        becomes[rows] = np.where(deleted, _GOES, met)
        files = self._write("m", self._merged(task.file, becomes, changes))
        return Rewritten(task.file, files, changes.column(INDEX).to_numpy()[met])

    def replace(self, task: Replacement) -> Rewritten:
        """Write the file again with each row left, gone, or replaced where it is."""
        changes = task.changes.load()
        becomes = self._as_it_is(task.file, self.keys(task.file))
        placed = task.numbers != task.LEAVES
        at = np.searchsorted(changes.column(INDEX).to_numpy(), task.numbers[placed])
        deleted = changes.column(OP).to_numpy()[at] == ChangeOp.DELETE
        becomes[task.rows] = _GOES
        becomes[task.rows[placed]] = np.where(deleted, _GOES, at)
        return Rewritten(task.file, self._write("m", self._merged(task.file, becomes, changes)), task.numbers[placed])

    def remove(self, task: Removal) -> Rewritten:
        """Write the file again without the rows that go."""
        becomes = self._as_it_is(task.file, self.keys(task.file))
        becomes[task.rows.positions] = _GOES
        files = self._write("m", self._merged(task.file, becomes, None))
        return Rewritten(task.file, files, np.empty(0, np.int64))

    def insert(self, changes: ChangeSlice, placed: Ints) -> tuple[FileReceipt, ...]:
        """Write the rows of changes that are not deletes, except of those that are `placed` already."""
        table = upserts(changes.load(), ChangeOp.DELETE)
        if len(placed):
            table = table.filter(pa.array(~np.isin(table.column(INDEX).to_numpy(), placed)))
        return self._write("i", iter(table.to_batches(batch_rows(table.nbytes, table.num_rows))))

    def _as_it_is(self, file: DataFile, keys: pa.Table) -> Ints:
        becomes = np.full(keys.num_rows, _STAYS, np.int64)
        if file.vector is not None:
            becomes[read_vector(self.storage, file.vector).positions] = _GOES
        return becomes

    def _write(self, kind: str, batches: Iterator[pa.Table | pa.RecordBatch]) -> tuple[FileReceipt, ...]:
        what = f"a file of epoch {self.epoch} cannot be written to {self.storage.path}"
        with storage_errors(what), carried_out(Step.WRITE_FILE, self.storage):
            return write_files(self.storage, unique_stem(f"e{self.epoch}-{kind}"), self.schema, batches, self.layout)

    def _merged(self, file: DataFile, becomes: Ints, changes: pa.Table | None) -> Iterator[pa.Table]:
        start = 0
        for batch in read_batches(self.storage, file.path, self.schema):
            yield _changed(batch, becomes[start : start + batch.num_rows], changes, self.layout.optional)
            start += batch.num_rows


class MergeByRewrite:
    """One epoch's merge that writes each touched file again; asked again after another commit came between.

    If a compaction has joined some files since, only the joined ones are looked at again. Their rows are the same, so
    the changes that meet none are the same too.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._rewritten: dict[str, Rewritten] = {}
        self._inserts = Inserts(rewriter)

    def merge(self, files: Sequence[DataFile], changes: Changes, tasks: TaskRunner | None) -> Effect:
        touched = [(file, changes.within(file)) for file in files]
        work = {file.path: Rewrite(file, part) for file, part in touched if part is not None}
        size = sum(each.file.size for path, each in work.items() if path not in self._rewritten)
        run = tasks if tasks and size > REWRITE_IN_TASKS_BYTES else in_threads
        rewritten = only_new(self._rewritten, work, partial(run, self._rewriter.merge))
        inserted = self._inserts.files(changes, placed_by(rewritten), run)
        return sum((each.effect for each in rewritten), Effect(inserted))

    def remove(self, removals: Sequence[Removal]) -> Effect:
        """Write files again without rows that a new read replaces."""
        return sum((each.effect for each in in_threads(self._rewriter.remove, removals)), Effect())


class Inserts:
    """Writes the rows that changes leave behind, except of those placed in other files; once while these are the
    same."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._placed: Ints | None = None
        self._files: list[FileReceipt] = []

    def files(self, changes: Changes, placed: Ints, run: TaskRunner) -> list[FileReceipt]:
        if self._placed is None or not np.array_equal(self._placed, placed):
            written = run(partial(self._rewriter.insert, placed=placed), changes.parts())
            self._placed, self._files = placed, [file for each in written for file in each]
        return self._files


def only_new(
    known: dict[Place, Result], items: Mapping[Place, Item], work: Callable[[Sequence[Item]], Sequence[Result]]
) -> list[Result]:
    """The results for these items, worked out for those whose place is not `known` yet.

    For a merge that is asked again: files never change, so what was found in one stays right.
    """
    new = {place: item for place, item in items.items() if place not in known}
    known.update(zip(new, work(list(new.values())), strict=True))
    return [known[place] for place in items]


def placed_by(rewritten: Sequence[Rewritten]) -> Ints:
    """The changes whose rows are in the files that were written again, in order."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *(each.met for each in rewritten)]))


def _meeting(keys: pa.Table, changes: pa.Table, key: Sequence[str]) -> tuple[Ints, Ints]:
    """Pairs of a row and a change of the same key, by their positions."""
    names = [f"k{number}" for number in range(len(key))]
    left = keys.select(list(key)).rename_columns(names).append_column(_ROW, _positions(keys.num_rows))
    right = changes.select(list(key)).rename_columns(names).append_column(_CHANGE, _positions(changes.num_rows))
    found = left.join(right.cast(_same_types(left, right)), keys=names, join_type="inner", use_threads=False)
    return found.column(_ROW).to_numpy(), found.column(_CHANGE).to_numpy()


def _same_types(left: pa.Table, right: pa.Table) -> pa.Schema:
    known = set(left.schema.names)
    return pa.schema([left.schema.field(f.name) if f.name in known else f for f in right.schema])


def _positions(count: int) -> pa.Array:
    return pa.array(np.arange(count, dtype=np.int64))


def _changed(batch: pa.Table, becomes: Ints, changes: pa.Table | None, optional: Sequence[str]) -> pa.Table:
    """The batch with each row left, gone, or replaced where it is."""
    if (becomes == _STAYS).all():
        return batch
    new = becomes >= 0
    source = np.arange(batch.num_rows, dtype=np.int64)
    if changes is not None and new.any():
        replacing = as_schema(changes.take(pa.array(becomes[new])), batch.schema, optional)
        source[new] = batch.num_rows + np.arange(int(new.sum()))
        batch = pa.concat_tables([batch, replacing]).combine_chunks()
    return batch.take(pa.array(source[becomes != _GOES]))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Run in this process; reading and writing Parquet lets other threads run."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(len(items), os.cpu_count() or 2, 8)) as pool:
        return list(pool.map(function, items))
