"""Computes what each side of a comparison says about its rows, as tasks: sums of groups, digests of rows, rows.

A group is a set of rows that both sides can separate from the others by the key alone. Where the client can order the
key's values, it is a range of the key. Where it cannot (text under a collation, and the keys that only a walk can
read), it is a bucket of a hash of the key's bytes, and the ranges are only how the source is read. A range can be cut
into buckets too, to narrow a difference down. The number of a group is range × buckets + bucket.

The source computes its side itself and answers with numbers (`SourceSums`). The files of the target are read where the
task runs, with the same forms of values (see `ValueForms`). Nothing here decides what a disagreement means, or where a
task runs: that is the `TaskRunner`'s (`tasks_here`, `tasks_in_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consume_upstream.upstream_table import FORM, ROW_DIGEST, CanonicalKey, Stretch, Sums, UpstreamTable, ValueForms
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.parquet import read_batches
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import read_vector
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.key import Key, KeyPart, fixed_orders, order_key

__all__ = [
    "Groups", "Placement", "SourceDigests", "SourceKeys", "SourceSums", "SourceTask", "TargetDigests", "TargetFiles",
    "TargetRows", "TargetSums", "TargetTask", "TaskRunner", "combined", "tell_rows", "tell_sums",
]  # fmt: skip

Groups = npt.NDArray[np.int64]
_FORMS = pa.field(FORM, pa.binary())
_DIGESTS = pa.field(ROW_DIGEST, pa.uint64())


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Which group each key is in. `parts` is empty where the client does not order the key: then all is one range."""

    parts: tuple[KeyPart, ...]
    starts: tuple[tuple[Key, bool], ...]
    """Where each range but the first begins, and whether it begins after that key instead of at it."""
    buckets: int

    def groups(self, keys: pa.Table, numbers: Groups | None) -> Groups:
        """The groups of some keys; the `numbers` of their buckets are needed where there is more than one bucket."""
        ranges = self._ranges(keys)
        return ranges if self.buckets == 1 or numbers is None else ranges * self.buckets + numbers

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

    table: UpstreamTable
    columns: tuple[str, ...]
    stretches: tuple[tuple[int, Stretch], ...]
    buckets: int

    def run(self) -> Sums:
        with self.table.checksums(self.columns) as session:
            return combined([_in_range(session.sums(s, self.buckets), n * self.buckets) for n, s in self.stretches])


@dataclass(frozen=True, slots=True)
class SourceDigests:
    """Keys, forms and digests of the rows of some stretches, of the chosen buckets of each."""

    table: UpstreamTable
    columns: tuple[str, ...]
    stretches: tuple[tuple[Stretch, tuple[int, ...]], ...]
    buckets: int

    def run(self) -> pa.Table:
        with self.table.checksums(self.columns) as session:
            return pa.concat_tables([session.digests(each, self.buckets, chosen) for each, chosen in self.stretches])


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """Keys, forms and digests of the rows that have these keys."""

    table: UpstreamTable
    columns: tuple[str, ...]
    keys: tuple[CanonicalKey, ...]

    def run(self) -> pa.Table:
        with self.table.checksums(self.columns) as session:
            return session.digests_of(self.keys)


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """Some files of the target and the columns that are compared, key included."""

    storage: Storage
    files: tuple[DataFile, ...]
    definition: TableDefinition
    columns: tuple[str, ...]
    values: ValueForms

    def batches(self) -> Iterator[pa.Table]:
        fields = self.definition.arrow_schema
        schema = pa.schema([fields.field(name).with_nullable(True) for name in self.columns])
        for file in self.files:
            with storage_errors(f"{file.path} of the target cannot be read"):
                gone = None if file.vector is None else read_vector(self.storage, file.vector)
                yield from read_batches(self.storage, file.path, schema, gone=gone)

    @property
    def rows(self) -> int:
        """About how many rows there are."""
        return sum(file.live_rows or 0 for file in self.files)

    @property
    def compared(self) -> list[Column]:
        return [self.definition.column(name) for name in self.columns]

    def key_forms(self, rows: pa.Table) -> pa.Array:
        return self.values.row_forms(self.definition.key_columns, rows)

    def digests(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        return self.values.digests(self.values.row_forms(self.compared, rows))

    def groups(self, placement: Placement, rows: pa.Table, forms: pa.Array | None = None) -> Groups:
        """The groups of some rows; the `forms` of their keys are computed where they are needed and not given."""
        if placement.buckets == 1:
            return placement.groups(rows, None)
        known = self.key_forms(rows) if forms is None else forms
        return placement.groups(rows, self.values.bucket_numbers(known, placement.buckets))

    def with_digests(self, rows: pa.Table, forms: pa.Array) -> pa.Table:
        found = pa.array(self.digests(rows), pa.uint64())
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
        groups = self.files.groups(self.placement, rows)
        if self.wanted is not None:
            inside = np.isin(groups // self.placement.buckets, self.wanted)
            rows, groups = rows.filter(pa.array(inside)), groups[inside]
        return combined([Sums(groups, np.ones(len(groups), np.int64), self.files.digests(rows))])


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
            inside = pa.array(np.isin(self.files.groups(self.placement, rows, forms), self.wanted))
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


SourceTask = SourceSums | SourceDigests | SourceKeys
TargetTask = TargetSums | TargetDigests | TargetRows
Source = TypeVar("Source", bound=SourceTask)
Target = TypeVar("Target", bound=TargetTask)
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Where tasks run."""

    def lanes(self, rows: int) -> int:
        """Into how many tasks the files of a target with about so many rows are best divided."""
        ...

    def run(
        self, function: Callable[[Source | Target], Result], source: Sequence[Source], target: Sequence[Target]
    ) -> tuple[list[Result], list[Result]]:
        """Run the tasks of both sides at the same time; the results of each side, in order.

        Raises the error of a task that failed once all have ended.
        """
        ...


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
