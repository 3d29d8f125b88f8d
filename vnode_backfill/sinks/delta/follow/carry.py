"""Says where each column of a table's new shape gets its values from, and writes a file again with the new columns.

What must be true: every row that is there has, after the change, what the source shows for it: a renamed column keeps
its values, an added one has the value of the statement, a wider one the same values in another type. Steps are carried
out in order, so a statement that exchanges `a` and `b` comes as a to a_, b to a, a_ to b. The shape says which columns
stay: one that was dropped may be kept.

A file finds its columns by their names, as every reader of Delta does. So it can stay as it is exactly if each column
has its name and type already, or is new and NULL, and no column that the file has is gone: some readers look for names
without regard to case, and a column that is added later could find the old values.

    before id, a, b      file stays                          file is written again
    ADD c                c is lacking, so NULL
    ADD c DEFAULT 5                                          c is 5 in every row
    RENAME a TO c                                            c has a's values; readers would find no c
    MODIFY a BIGINT                                          a in the new type
    DROP b               b is kept: nothing changes          b is not: else a later ADD b would show the old values
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from vnode_backfill.delta.files import DataFile, FileReceipt
from vnode_backfill.delta.parquet import FileLayout, read_batches, unique_stem, write_files
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import read_vector
from vnode_backfill.words.errors import LawBrokenError, SinkError
from vnode_backfill.words.hints import NEW_COPY
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, RenameColumn, TableShape


@dataclass(frozen=True, slots=True)
class Carry:
    """From the columns of a table to others; can be pickled. `before` has the earlier name of each that was there."""

    old: pa.Schema
    new: pa.Schema
    before: Mapping[str, str]
    added: Mapping[str, AddColumn]

    @classmethod
    def of(cls, old: pa.Schema, shape: TableShape, steps: Sequence[ColumnStep]) -> Carry:
        """SinkError if the steps do not lead from the columns to the shape."""
        origins: dict[str, str | AddColumn | None] = {name: name for name in old.names}
        for step in steps:
            match step:
                case AddColumn(column=column):
                    origins[column.name] = step
                case RenameColumn(old=earlier, new=name):
                    origins[name] = origins.pop(earlier, None)
        wrong = [name for name in shape.schema.names if origins.get(name) is None]
        if wrong:
            raise SinkError(
                "the target's columns cannot be changed as the statement says",
                detail=f"The target has no column that becomes {', '.join(wrong)}; it has {', '.join(old.names)}.",
                hint=NEW_COPY,
            )
        found = {name: origins[name] for name in shape.schema.names}
        before = {name: origin for name, origin in found.items() if isinstance(origin, str)}
        added = {name: origin for name, origin in found.items() if isinstance(origin, AddColumn)}
        return cls(old, shape.schema, before, added)

    @property
    def writes_files(self) -> bool:
        """Whether files that are there do not already show the new columns as they must be."""
        stays = all(
            name == earlier and self.old.field(earlier).type == self.new.field(name).type
            for name, earlier in self.before.items()
        )
        are_null = all(step.value is None for step in self.added.values())
        return not (stays and are_null and set(self.old.names) <= set(self.before))

    def rows(self, batch: pa.Table) -> pa.Table:
        """The same rows with the new columns; refuses a value that does not fit its new type."""
        columns = [self._column(batch, field) for field in self.new]
        return pa.table(columns, schema=self.new)

    def _column(self, batch: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name in self.before:
            return batch.column(self.before[field.name]).cast(field.type)
        return pa.repeat(self.added[field.name].scalar, batch.num_rows)


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """A file as it was read, and what holds its rows that counted then, in the same order; not visible yet."""

    file: DataFile
    added: tuple[FileReceipt, ...]

    def late(self, earlier: Rows, now: Rows) -> Rows | None:
        """The rows that went since it was read, by their places in the new files; None if rows have come back."""
        if not now.contains(earlier.positions).all():
            return None
        went = now.positions[~earlier.contains(now.positions)]
        return Rows.of(went - np.searchsorted(earlier.positions, went))


@dataclass(frozen=True, slots=True)
class Carrier:
    """Writes files again with other columns, a bounded number of rows at a time; can be pickled."""

    storage: Storage
    carry: Carry
    layout: FileLayout

    def run(self, file: DataFile) -> CarriedFile:
        stem = unique_stem("carried")
        with storage_errors(f"{file.path} cannot be written again with other columns in {self.storage.path}"):
            added = write_files(self.storage, stem, self.carry.new, self._rows(file), self.layout)
        written = sum(receipt.rows for receipt in added)
        if file.live_rows not in (None, written):
            raise LawBrokenError(f"{file.path} has {file.live_rows} rows, and {written} were written")
        return CarriedFile(file, added)

    def _rows(self, file: DataFile) -> Iterator[pa.Table]:
        gone = None if file.vector is None else read_vector(self.storage, file.vector)
        for batch in read_batches(self.storage, file.path, self.carry.old, gone=gone):
            yield self.carry.rows(batch)
