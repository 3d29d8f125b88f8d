"""What each side of a comparison tells about its rows, each as a Spark task: sums of groups, digests of rows, rows.

A group is a set of rows that both sides can tell apart from the others by the key alone. Where the client can order the key's values, it is a
range of the key; where it cannot (text under a collation, and the keys that only a walk can read), it is a bucket of a hash of
the key's bytes, and the ranges are only how the source is read. A range can be cut into buckets too, to narrow a difference down. The number
of a group is range × buckets + bucket.

The source computes its side itself and answers with numbers (`SourceSums`). The files of the target are read where the task runs, with the same forms of
values (see `value_forms`). Nothing here decides what a disagreement means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consume_upstream.mysql.checksums import DIGEST, ChecksumSession, Stretch, Sums
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.value_forms import bucket_numbers, digests, row_forms
from vnode_backfill.columns import Column, TableDefinition
from vnode_backfill.delta_files import Storage, read_batches, storage_errors
from vnode_backfill.vnode import Key, KeyPart, fixed_orders, order_key

__all__ = [
    "FORM", "Groups", "Placement", "SourceDigests", "SourceKeys", "SourceSums", "TargetDigests", "TargetFiles", "TargetRows",
    "TargetSums", "combined", "tell_rows", "tell_sums",
]  # fmt: skip

FORM = "key form"
"""The name of the column with the key's form: two rows are the same row if it is the same."""
Groups = npt.NDArray[np.int64]
_FORMS = pa.field(FORM, pa.binary())
_DIGESTS = pa.field(DIGEST, pa.uint64())


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Which group each key is in. `parts` is empty where the client does not order the key: then all is one range."""

    parts: tuple[KeyPart, ...]
    starts: tuple[tuple[Key, bool], ...]
    """Where each range but the first begins, and whether it begins behind that key instead of at it."""
    buckets: int

    def groups(self, keys: pa.Table, forms: pa.Array | None) -> Groups:
        """The groups of some keys; `forms` are needed where there is more than one bucket."""
        ranges = self._ranges(keys)
        if self.buckets == 1 or forms is None:
            return ranges
        return ranges * self.buckets + bucket_numbers(forms, self.buckets)

    def _ranges(self, keys: pa.Table) -> Groups:
        if not self.parts or not self.starts or not keys.num_rows:
            return np.zeros(keys.num_rows, np.int64)
        columns = [keys.column(part.name).combine_chunks() for part in self.parts]
        orders, bounds = fixed_orders(self.parts, columns), self._bounds()
        found = np.searchsorted(bounds, orders, side="right").astype(np.int64)
        behind = np.array([behind for _, behind in self.starts], np.bool_)
        before = np.maximum(found - 1, 0)
        at_start: npt.NDArray[np.bool_] = (found > 0) & behind[before] & (bounds[before] == orders)
        return found - at_start.astype(np.int64)

    def _bounds(self) -> npt.NDArray[np.generic]:
        orders = [order_key(self.parts, key) for key, _ in self.starts]
        if len(self.parts) == 1:
            return np.array([int.from_bytes(order, "big") for order in orders], np.uint64)
        return np.array(orders, f"S{8 * len(self.parts)}")


@dataclass(frozen=True, slots=True)
class SourceSums:
    """The sums of some stretches, each with the number of its range."""

    table: MySqlTable
    columns: tuple[str, ...]
    stretches: tuple[tuple[int, Stretch], ...]
    buckets: int

    def run(self) -> Sums:
        with ChecksumSession(self.table, self.columns) as session:
            return combined([_in_range(session.sums(s, self.buckets), n * self.buckets) for n, s in self.stretches])


@dataclass(frozen=True, slots=True)
class SourceDigests:
    """Keys, forms and digests of the rows of some stretches, of the chosen buckets of each."""

    table: MySqlTable
    columns: tuple[str, ...]
    stretches: tuple[tuple[Stretch, tuple[int, ...]], ...]
    buckets: int

    def run(self) -> pa.Table:
        definition = self.table.definition
        with ChecksumSession(self.table, self.columns) as session:
            found = [session.digests(stretch, self.buckets, chosen) for stretch, chosen in self.stretches]
        return _with_forms(definition, pa.concat_tables(found))


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """Keys, forms and digests of the rows that have these keys."""

    table: MySqlTable
    columns: tuple[str, ...]
    keys: tuple[Key, ...]

    def run(self) -> pa.Table:
        with ChecksumSession(self.table, self.columns) as session:
            return _with_forms(self.table.definition, session.digests_of(self.keys))


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """Some files of the target and the columns that are compared, key included."""

    storage: Storage
    paths: tuple[str, ...]
    definition: TableDefinition
    columns: tuple[str, ...]

    def batches(self) -> Iterator[pa.Table]:
        fields = self.definition.arrow_schema
        schema = pa.schema([fields.field(name).with_nullable(True) for name in self.columns])
        for path in self.paths:
            with storage_errors(f"{path} of the target cannot be read"):
                yield from read_batches(self.storage, path, schema)

    @property
    def compared(self) -> list[Column]:
        return [self.definition.column(name) for name in self.columns]

    def key_forms(self, rows: pa.Table) -> pa.Array:
        return row_forms(self.definition.key_columns, rows)

    def with_digests(self, rows: pa.Table, forms: pa.Array) -> pa.Table:
        found = pa.array(digests(row_forms(self.compared, rows)), pa.uint64())
        return rows.select(list(self.definition.key)).append_column(_FORMS, forms).append_column(_DIGESTS, found)

    def schema(self) -> pa.Schema:
        keys = [self.definition.arrow_schema.field(name).with_nullable(True) for name in self.definition.key]
        return pa.schema([*keys, _FORMS, _DIGESTS])


@dataclass(frozen=True, slots=True, eq=False)
class TargetSums:
    """The sums of the rows of some files; where `wanted` is given, of these groups' ranges only."""

    files: TargetFiles
    placement: Placement
    wanted: Groups | None = None
    """The ranges that count."""

    def run(self) -> Sums:
        return combined([self._sums(rows) for rows in self.files.batches()])

    def _sums(self, rows: pa.Table) -> Sums:
        forms = self.files.key_forms(rows) if self.placement.buckets > 1 else None
        groups = self.placement.groups(rows, forms)
        if self.wanted is not None:
            inside = np.isin(groups // self.placement.buckets, self.wanted)
            rows, groups = rows.filter(pa.array(inside)), groups[inside]
        values = digests(row_forms(self.files.compared, rows))
        return combined([Sums(groups, np.ones(len(groups), np.int64), values)])


@dataclass(frozen=True, slots=True, eq=False)
class TargetDigests:
    """Keys, forms and digests of the rows of some files that are in the wanted groups."""

    files: TargetFiles
    placement: Placement
    wanted: Groups

    def run(self) -> pa.Table:
        found = [self.files.schema().empty_table()]
        for rows in self.files.batches():
            forms = self.files.key_forms(rows)
            inside = pa.array(np.isin(self.placement.groups(rows, forms), self.wanted))
            found.append(self.files.with_digests(rows.filter(inside), forms.filter(inside)))
        return pa.concat_tables(found)


@dataclass(frozen=True, slots=True, eq=False)
class TargetRows:
    """The rows of some files whose keys have these forms: all their columns, or their keys and digests."""

    files: TargetFiles
    forms: tuple[bytes, ...]
    whole: bool

    def run(self) -> pa.Table:
        wanted, found = pa.array(self.forms, pa.binary()), []
        for rows in self.files.batches():
            forms = self.files.key_forms(rows)
            inside = pc.is_in(forms, wanted)
            if pc.any(inside).as_py():
                rows, forms = rows.filter(inside), forms.filter(inside)
                found.append(rows.append_column(_FORMS, forms) if self.whole else self.files.with_digests(rows, forms))
        return pa.concat_tables(found) if found else pa.table({FORM: pa.array([], pa.binary())})


def tell_sums(task: SourceSums | TargetSums) -> Sums:
    return task.run()


def tell_rows(task: SourceDigests | SourceKeys | TargetDigests | TargetRows) -> pa.Table:
    return task.run()


def combined(parts: Sequence[Sums]) -> Sums:
    """The sums of all parts, each group once."""
    groups = np.concatenate([np.empty(0, np.int64), *(part.groups for part in parts)])
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    values = np.concatenate([np.empty(0, np.uint64), *(part.sums for part in parts)])
    unique, place = np.unique(groups, return_inverse=True)
    counts, sums = np.zeros(len(unique), np.int64), np.zeros(len(unique), np.uint64)
    np.add.at(counts, place, rows)
    np.add.at(sums, place, values)
    return Sums(unique, counts, sums)


def _in_range(sums: Sums, first: int) -> Sums:
    return Sums(sums.groups + first, sums.rows, sums.sums)


def _with_forms(definition: TableDefinition, found: pa.Table) -> pa.Table:
    """The server's answer with the forms of its keys, and its digests as the numbers they are."""
    forms = row_forms(definition.key_columns, found)
    numbers = found.column(DIGEST).combine_chunks()
    halves = np.frombuffer(numbers.buffers()[1], "<u8") if len(numbers) else np.empty(0, "<u8")
    low = halves[2 * numbers.offset : 2 * (numbers.offset + len(numbers)) : 2]
    keys = found.select(list(definition.key))
    return keys.append_column(_FORMS, forms).append_column(_DIGESTS, pa.array(low.astype(np.uint64), pa.uint64()))
