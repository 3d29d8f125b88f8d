"""Finds the rows of a file by their keys without an index: reads only row groups that may hold one of them.

What must be true: a row group that is not read holds none of the keys. Why it is: its Parquet statistics say so for one
of the key columns, in an order about which nobody can disagree. Text and binary values are compared by their bytes,
as the statistics are; a writer may have cut a long one, but only so that the bounds still hold. Whatever is not certain
counts as "may hold": floats, instants with a zone against those without, values that Python has no form for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.parquet import as_read
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks.delta.keys.index import index_keys
from vnode_backfill.sinks.delta.keys.values import Ints, TypedKeys


def find_pruned(storage: Storage, file: DataFile, schema: pa.Schema, keys: pa.Table) -> tuple[Ints, Ints]:
    """Pairs of a row and a key that is the row's, by their positions, as an index of the file finds them."""
    wanted = TypedKeys.of(keys, schema)
    index = index_keys(wanted.table, schema)
    rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with (
        storage_errors(f"{file.path} cannot be read"),
        storage.filesystem().open_input_file(file.path) as source,
    ):
        parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        for group, first in _groups(parquet.metadata, wanted.table):
            held = as_read(parquet.read_row_group(group, columns=schema.names, use_threads=False), schema)
            candidates = _candidates(held, wanted.table)
            key, row = index.find(held.take(pa.array(candidates)))
            rows.append(candidates[row] + first)
            found.append(wanted.places[key])
    return np.concatenate(rows), np.concatenate(found)


def _groups(metadata: pq.FileMetaData, wanted: pa.Table) -> Iterator[tuple[int, int]]:
    """Row groups that may hold one of the keys, each with the position of its first row."""
    columns = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    comparable = [_comparable(column) for column in wanted.columns]
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = [group.column(columns[name]).statistics for name in wanted.column_names]
        if _may_hold(parts, comparable):
            yield number, first
        first += group.num_rows


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as its bytes: statistics of it may be cut within a character."""
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _may_hold(statistics: Sequence[pq.Statistics | None], wanted: Sequence[pa.ChunkedArray]) -> bool:
    possible: npt.NDArray[np.bool_] = np.ones(len(wanted[0]), np.bool_)
    for found, column in zip(statistics, wanted, strict=True):
        bounds = None if found is None else _bounds(found, column.type)
        if bounds is not None:
            low, high = bounds
            possible &= pc.greater_equal(column, low).to_numpy() & pc.less_equal(column, high).to_numpy()
    return bool(possible.any())


def _bounds(statistics: pq.Statistics, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The least and the greatest value, None if that is not certain."""
    if not statistics.has_min_max:
        return None
    if pa.types.is_binary(kind):
        return pa.scalar(statistics.min_raw, kind), pa.scalar(statistics.max_raw, kind)
    try:
        low, high = statistics.min, statistics.max
        return (pa.scalar(low, kind), pa.scalar(high, kind)) if _is_of(low, kind) and _is_of(high, kind) else None
    except (ValueError, OverflowError):
        return None


def _is_of(value: object, kind: pa.DataType) -> bool:
    match value:
        case bool() | float():
            return False
        case int():
            return bool(pa.types.is_integer(kind))
        case Decimal():
            return bool(pa.types.is_decimal(kind))
        case datetime():
            return pa.types.is_timestamp(kind) and (value.tzinfo is None) == (kind.tz is None)
        case date():
            return bool(pa.types.is_date(kind))
        case _:
            return False


def _candidates(held: pa.Table, wanted: pa.Table) -> Ints:
    """Positions of rows of which each key column is that of some key: few, and fast to find."""
    mask = np.ones(held.num_rows, np.bool_)
    for name in held.column_names:
        mask &= pc.is_in(held.column(name), value_set=wanted.column(name)).to_numpy()
    return np.flatnonzero(mask)
