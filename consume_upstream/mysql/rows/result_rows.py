"""Turns result rows of the binary protocol into Arrow columns of the canonical types.

One walk over a block of rows finds where every value is; then each column is converted at once. The announced types
of the result are checked against the table's definition first: a column that is no longer what the job stored stops it
(`SchemaChangedError`), because bytes read as the wrong type would be silently wrong values.

A day that is not in the calendar (`0000-00-00`, `2024-00-15`, `2024-02-31`) has no canonical value. By configuration it
becomes NULL or stops the job; in a key column it always stops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.mysql.rows.kernels import (
    LENENC,
    TEMPORAL,
    gather_bytes,
    gather_fixed,
    gather_micros,
    walk_rows,
)
from consume_upstream.mysql.rows.prepared_statement import RowBlock, WireColumn
from vnode_backfill.words.columns import Column, Kind
from vnode_backfill.words.errors import SchemaChangedError, SourceError, SourceLostError
from vnode_backfill.words.hints import RUN_FOLLOWS

__all__ = ["RowDecoder", "ZeroDates", "load_kernels"]

ZeroDates = Literal["null", "error"]
"""What becomes of a day that is not in the calendar."""
Positions = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]

_MICROS_PER_DAY = 86_400_000_000
_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _TIMESTAMP, _LONGLONG, _INT24 = 1, 2, 3, 4, 5, 7, 8, 9
_DATE, _DATETIME, _YEAR, _BIT, _DECIMAL, _GEOMETRY = 10, 12, 13, 16, 246, 255
_STRINGS = frozenset({15, 245, 247, 248, 249, 250, 251, 252, 253, 254})
_FIXED_BYTES = {_TINY: 1, _SHORT: 2, _YEAR: 2, _LONG: 4, _INT24: 4, _FLOAT: 4, _LONGLONG: 8, _DOUBLE: 8}
_INT_TYPES = {1: _TINY, 2: _SHORT, 3: _INT24, 4: _LONG, 8: _LONGLONG}
_OTHER_TYPES = {
    Kind.DECIMAL: _DECIMAL, Kind.FLOAT: _FLOAT, Kind.DOUBLE: _DOUBLE, Kind.BIT: _BIT, Kind.DATE: _DATE,
    Kind.DATETIME: _DATETIME, Kind.TIMESTAMP: _TIMESTAMP, Kind.YEAR: _YEAR, Kind.GEOMETRY: _GEOMETRY,
}  # fmt: skip


class RowDecoder:
    """Turns blocks of rows into record batches.

    Made for the columns of one statement, of which it may decode `only` some.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        key: Sequence[str] = (),
        zero_dates: ZeroDates = "null",
        only: Sequence[str] | None = None,
    ) -> None:
        self._columns = tuple(columns)
        self._decoded = [(n, each) for n, each in enumerate(columns) if only is None or each.name in only]
        self._strict = frozenset(key if zero_dates == "null" else [column.name for column in columns])
        # As `TableDefinition.arrow_schema`: a zero date becomes NULL in a column that the source declares NOT NULL.
        self.schema = pa.schema([pa.field(c.name, c.arrow_type, nullable=c.name not in key) for _, c in self._decoded])

    @classmethod
    def of_announced(cls, announced: Sequence[WireColumn], only: Sequence[str] | None = None) -> RowDecoder:
        """For a result that is not of a table, such as EXPLAIN: integers and floats as they are, all else as text."""
        return cls([_announced_column(wire) for wire in announced], only=only)

    def check(self, announced: Sequence[WireColumn]) -> None:
        """Refuse a result whose columns are not those of the definition."""
        if len(announced) != len(self._columns):
            raise SchemaChangedError(f"the source sends {len(announced)} columns, {len(self._columns)} were asked for")
        for column, wire in zip(self._columns, announced, strict=True):
            if not _fits(column, wire):
                raise SchemaChangedError(
                    f"column {column.name} is no longer {column.type_name}",
                    detail=f"The source announces type {wire.type_code}{' unsigned' if wire.unsigned else ''}.",
                    hint=RUN_FOLLOWS,
                )

    def decode(self, block: RowBlock) -> pa.RecordBatch:
        """All rows of the block; nothing of the batch refers to the block's buffer."""
        shape = (len(self._columns), len(block))
        offsets, lengths = np.empty(shape, np.int64), np.empty(shape, np.int32)
        layouts = np.array([_layout(column) for column in self._columns], np.int8)
        damaged = walk_rows(block.buffer, block.starts, block.ends, layouts, offsets, lengths)
        if damaged >= 0:
            raise SourceLostError(f"row {damaged} of a block cannot be split into its {len(self._columns)} values")
        arrays = [self._array(column, _Values(block.buffer, offsets[i], lengths[i])) for i, column in self._decoded]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, column: Column, values: _Values) -> pa.Array:
        match column.kind:
            case Kind.INT if column.unsigned and column.width == 8:
                return values.unsigned_decimals()
            case Kind.INT | Kind.YEAR:
                return values.integers(column)
            case Kind.FLOAT:
                return values.plain(values.bits().astype(np.uint32).view(np.float32), pa.float32())
            case Kind.DOUBLE:
                return values.plain(values.bits().view(np.float64), pa.float64())
            case Kind.BIT if column.width == 1:
                return pa.array(values.bits() != 0, pa.bool_(), mask=values.null)
            case Kind.DECIMAL if column.precision <= 38:
                return _decimals(column, values)
            case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
                return self._days(column, values)
            case _:
                return values.texts(column.arrow_type)

    def _days(self, column: Column, values: _Values) -> pa.Array:
        micros, wrong = values.micros()
        if wrong.any() and column.name in self._strict:
            raise SourceError(
                f"column {column.name} holds a {column.type_name} that is not a day of the calendar",
                detail=f"{int(wrong.sum())} of {len(wrong)} rows of one batch.",
                hint="Repair the rows, or set `zero_dates: null` (not possible for key columns).",
            )
        values = _Values(values.buffer, values.offsets, np.where(wrong, np.int32(-1), values.lengths))
        if column.kind is Kind.DATE:
            return values.plain((micros // _MICROS_PER_DAY).astype(np.int32), pa.date32())
        return values.plain(micros, column.arrow_type)


class _Values:
    """Where the values of one column are in a buffer, and their conversions."""

    __slots__ = ("buffer", "lengths", "null", "offsets")

    def __init__(self, buffer: npt.NDArray[np.uint8], offsets: Positions, lengths: Lengths) -> None:
        self.buffer, self.offsets, self.lengths = buffer, offsets, lengths
        self.null = lengths < 0

    def bits(self) -> npt.NDArray[np.uint64]:
        out = np.empty(len(self.offsets), np.uint64)
        gather_fixed(self.buffer, self.offsets, self.lengths, out)
        return out

    def integers(self, column: Column) -> pa.Array:
        size = _FIXED_BYTES[_INT_TYPES[column.width] if column.kind is Kind.INT else _YEAR]
        sent = np.dtype(f"{'u' if column.unsigned or column.kind is Kind.YEAR else 'i'}{size}")
        canonical = column.arrow_type
        return self.plain(self.bits().astype(sent).astype(canonical.to_pandas_dtype()), canonical)

    def unsigned_decimals(self) -> pa.Array:
        wide = np.zeros((len(self.offsets), 2), np.uint64)
        wide[:, 0] = self.bits()
        return self.plain(wide, pa.decimal128(20, 0))

    def micros(self) -> tuple[Positions, npt.NDArray[np.bool_]]:
        out, wrong = np.empty(len(self.offsets), np.int64), np.empty(len(self.offsets), np.uint8)
        gather_micros(self.buffer, self.offsets, self.lengths, out, wrong)
        return out, wrong.astype(np.bool_)

    def texts(self, arrow_type: pa.DataType) -> pa.Array:
        ends = np.zeros(len(self.offsets) + 1, np.int32)
        np.cumsum(np.maximum(self.lengths, 0), out=ends[1:])
        data = np.empty(int(ends[-1]), np.uint8)
        gather_bytes(self.buffer, self.offsets, ends, data)
        return self._from_buffers(arrow_type, pa.py_buffer(ends), pa.py_buffer(data))

    def plain(self, values: npt.NDArray[np.generic], arrow_type: pa.DataType) -> pa.Array:
        return self._from_buffers(arrow_type, pa.py_buffer(np.ascontiguousarray(values)))

    def _from_buffers(self, arrow_type: pa.DataType, *buffers: pa.Buffer) -> pa.Array:
        nulls = int(np.count_nonzero(self.null))
        validity = pa.py_buffer(np.packbits(~self.null, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(arrow_type, len(self.offsets), [validity, *buffers], null_count=nulls)


def _decimals(column: Column, values: _Values) -> pa.Array:
    try:
        return values.texts(pa.string()).cast(column.arrow_type)
    except pa.ArrowInvalid as error:
        raise SchemaChangedError(
            f"column {column.name} holds a value that is not a decimal({column.precision},{column.scale})",
            detail=str(error),
        ) from error


def _layout(column: Column) -> int:
    if column.kind is Kind.INT:
        return _FIXED_BYTES[_INT_TYPES[column.width]]
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return TEMPORAL
    return _FIXED_BYTES.get(_OTHER_TYPES.get(column.kind, 0), LENENC)


def _announced_column(wire: WireColumn) -> Column:
    if wire.type_code in _INT_TYPES.values():
        width = next(width for width, code in _INT_TYPES.items() if code == wire.type_code)
        return Column(wire.name, Kind.INT, "int", nullable=True, width=width, unsigned=wire.unsigned)
    if wire.type_code == _DOUBLE:
        return Column(wire.name, Kind.DOUBLE, "double", nullable=True)
    return Column(wire.name, Kind.STRING, "text", nullable=True)


def _fits(column: Column, wire: WireColumn) -> bool:
    if column.kind is Kind.INT:
        return wire.type_code == _INT_TYPES[column.width] and wire.unsigned == column.unsigned
    if column.kind in _OTHER_TYPES:
        return wire.type_code == _OTHER_TYPES[column.kind]
    return wire.type_code in _STRINGS


def load_kernels() -> None:
    """Decode no rows of the common types: that loads the compiled code, or compiles it where it was never compiled."""
    types = ("int", "bigint unsigned", "varchar(9)", "decimal(18,4)", "datetime(6)", "double", "date")
    decoder = RowDecoder([Column.parse(f"c{i}", text, nullable=True) for i, text in enumerate(types)])
    nowhere = np.empty(0, np.int64)
    decoder.decode(RowBlock(np.empty(0, np.uint8), nowhere, nowhere))
    # At its first conversion Arrow imports pandas, which takes half a second.
    pa.array([0]).to_numpy()
