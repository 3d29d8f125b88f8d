"""Gives each key a form in which equal keys are equal numbers or equal bytes, and others are not.

What must be true: two keys have the same form exactly if they are the same value of the table's key type. A collation
never decides: `a`, `A` and `a ` are three keys. So changes are cast to the table's key type first. A value that does
not fit the type cannot be in the table, and neither can NULL; both are left out, as in a join.

| key                                              | form                                                         |
|--------------------------------------------------|--------------------------------------------------------------|
| one integer, date, instant, boolean              | the number that stands for it                                |
| one DECIMAL whose digits fit 64 bits             | its digits as a number: one type has one scale               |
| one other value                                  | the bytes of the value                                       |
| several columns                                  | the bytes of each; before those that vary in length, how many |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
_STANDS_FOR = {pa.date32(): pa.int32(), pa.bool_(): pa.int8()}


@dataclass(frozen=True, slots=True)
class TypedKeys:
    """Keys in the table's key type; `places` says where each was among all that were given."""

    table: pa.Table
    places: Ints

    @classmethod
    def of(cls, keys: pa.Table, schema: pa.Schema) -> TypedKeys:
        """Those keys that can be in a table with these key columns."""
        table = pa.table([_cast(keys.column(field.name), field.type) for field in schema], schema.names)
        if not any(column.null_count for column in table.columns):
            return cls(table, np.arange(table.num_rows, dtype=np.int64))
        whole = np.ones(table.num_rows, np.bool_)
        for column in table.columns:
            whole &= column.is_valid().to_numpy()
        return cls(table.filter(pa.array(whole)), np.flatnonzero(whole))

    def numbers(self) -> tuple[Ints, npt.NDArray[np.bool_]] | None:
        """A number for each key, and whether it stands for the key; None if numbers do not stand for such keys."""
        if self.table.num_columns > 1:
            return None
        column = _whole(self.table.column(0))
        if pa.types.is_decimal128(column.type):
            return _digits(column)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        elif column.type in _STANDS_FOR:
            column = column.cast(_STANDS_FOR[column.type])
        if not pa.types.is_signed_integer(column.type):
            return None
        return column.to_numpy(zero_copy_only=False).astype(np.int64), np.ones(len(column), np.bool_)

    def bytes(self) -> pa.LargeBinaryArray:
        """The bytes of each key."""
        parts = [_whole(_as_bytes(column)) for column in self.table.columns]
        if len(parts) == 1:
            return parts[0]
        varying = [_varies(column.type) for column in self.table.columns]
        told = [
            part for column, varies in zip(parts, varying, strict=True) for part in _told(column, with_length=varies)
        ]
        return pc.binary_join_element_wise(*told, pa.scalar(b"", pa.large_binary()))


def _cast(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """The column in another type, with NULL for what does not fit it."""
    if column.type == to:
        return column
    try:
        return column.cast(to)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.chunked_array([pa.nulls(1, to)])
        half = len(column) // 2
        halves = (_cast(column.slice(0, half), to), _cast(column.slice(half), to))
        return pa.chunked_array([chunk for each in halves for chunk in each.chunks], to)


def _digits(column: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """A decimal has 128 bits; the lower half stands for it if the upper half only repeats its sign."""
    halves = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = halves[::2], halves[1::2]
    return low.copy(), high == low >> 63


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(_chunks(column))


def _chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks or [pa.array([], column.type)]


def _varies(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if _varies(column.type):
        return column.cast(pa.large_binary())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    width = pa.binary(column.type.bit_width // 8)
    views = [chunk.view(width).cast(pa.large_binary()) for chunk in column.chunks]
    return pa.chunked_array(views, pa.large_binary())


def _told(column: pa.Array, *, with_length: bool) -> list[pa.Array]:
    if not with_length:
        return [column]
    lengths = pc.cast(pc.binary_length(column), pa.int64())
    return [lengths.view(pa.binary(8)).cast(pa.large_binary()), column]
