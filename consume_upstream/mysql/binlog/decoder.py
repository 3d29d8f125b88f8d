"""Decodes many row images at once to Arrow columns, one conversion per column.

`RowDecoder` knows, from the table's stored definition alone, where each column is in a row image (`layout`, for the
walk) and how its bytes become the canonical value of `columns.py`, the same that the snapshot yields. The common types
are converted by kernels over all rows of a batch; the rest one by one. A value that has no canonical form raises and
names its column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.mysql.binlog import kernels
from consume_upstream.mysql.binlog.json_text import decimal_text, json_text
from consume_upstream.mysql.binlog.plain_values import inet4_text, inet6_text, set_text, time_text, uuid_text
from consume_upstream.mysql.binlog.row_images import Ints
from consume_upstream.mysql.binlog.split import Bytes
from consume_upstream.mysql.binlog.table_map import Flavour, wire_type
from consume_upstream.mysql.schema.charsets import Charset, charset_named
from consume_upstream.mysql.schema.labels import Doubts
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import LogFormatError

ZeroDates = Literal["null", "error"]
Mask = npt.NDArray[np.bool_]
ColumnDecoder = Callable[[Bytes, Ints, Ints], pa.Array]
Plain = Callable[[bytes], str]

_MAX_COLUMN_BYTES = 2**31 - 1
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def image_schema(definition: TableDefinition) -> pa.Schema:
    """The definition's schema with every column nullable: a change without an image has NULL in all of them."""
    return pa.schema([pa.field(column.name, column.arrow_type) for column in definition.columns])


class RowDecoder:
    """Decodes the row images of one table. Making one refuses what cannot be decoded exactly.

    `doubts` are the labels that the definition may hold wrongly; a value with one of them is an error.
    """

    def __init__(
        self,
        definition: TableDefinition,
        flavour: Flavour,
        *,
        zero_dates: ZeroDates = "error",
        doubts: Doubts = MappingProxyType({}),
    ) -> None:
        self.schema = image_schema(definition)
        self.layout = np.array([wire_type(column, flavour).layout for column in definition.columns], dtype=np.int64)
        # A key cannot be NULL, so in key columns such a date is an error whatever is configured.
        self._columns = tuple(
            _decoder(column, flavour, "error" if column.name in definition.key else zero_dates)
            if column.name not in doubts
            else _doubtful(column, doubts[column.name])
            for column in definition.columns
        )

    def decode(self, data: Bytes, offsets: Ints, lengths: Ints) -> pa.RecordBatch:
        """One row per column of `offsets` and `lengths`, which hold a line per table column; length -1 is NULL."""
        arrays = [decode(data, offsets[c], lengths[c]) for c, decode in enumerate(self._columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _decoder(column: Column, flavour: Flavour, zero_dates: ZeroDates) -> ColumnDecoder:
    match column.kind:
        case Kind.INT if column.unsigned and column.width == 8:
            return partial(_fixed, column.arrow_type, 8, 16)
        case Kind.INT:
            return partial(_integers, column.arrow_type, column.arrow_type.to_pandas_dtype(), column)
        case Kind.FLOAT | Kind.DOUBLE:
            width = 4 if column.kind is Kind.FLOAT else 8
            return partial(_fixed, column.arrow_type, width, width)
        case Kind.DECIMAL if column.precision <= 38:
            return partial(_decimals, column, *_decimal_groups(column))
        case Kind.DATE:
            return partial(_dates, column, zero_dates)
        case Kind.DATETIME | Kind.TIMESTAMP:
            return partial(_instants, column, zero_dates)
        case Kind.YEAR:
            return _years
        case Kind.ENUM:
            return partial(_enums, column, pa.array(["", *column.labels], pa.string()))
        case Kind.BIT if column.width == 1:
            return _booleans
        case Kind.BINARY if column.type_name == "binary":
            return partial(_padded_binary, column)
        case Kind.BINARY | Kind.GEOMETRY | Kind.BIT:
            return partial(_strings, pa.binary())
        case Kind.STRING:
            return _text_decoder(column, charset_named(column.charset))
        case _:
            return _rare_decoder(column, flavour)


def _text_decoder(column: Column, charset: Charset) -> ColumnDecoder:
    trim = column.type_name == "char"
    if charset.is_utf8:
        return partial(_utf8, column, trim)
    if charset.table:
        return partial(_mapped, column, trim, *_utf8_table(charset))
    return partial(_plain, column, lambda raw: charset.decode(raw).rstrip(" ") if trim else charset.decode(raw))


def _rare_decoder(column: Column, flavour: Flavour) -> ColumnDecoder:
    match column.kind:
        case Kind.JSON if flavour == "mariadb":
            return partial(_utf8, column, False)
        case Kind.JSON:
            return partial(_plain, column, json_text)
        case Kind.TIME:
            return partial(_plain, column, partial(time_text, digits=column.scale))
        case Kind.SET:
            return partial(_plain, column, partial(set_text, labels=column.labels))
        case Kind.UUID:
            return partial(_plain, column, uuid_text)
        case Kind.INET4:
            return partial(_plain, column, inet4_text)
        case Kind.INET6:
            return partial(_plain, column, inet6_text)
        case _:
            return partial(_plain, column, partial(decimal_text, precision=column.precision, scale=column.scale))


def _array(kind: pa.DataType, valid: Mask, *buffers: npt.NDArray[np.generic]) -> pa.Array:
    """An Arrow array over buffers; `valid` becomes its bitmap where a value is NULL."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, len(valid), [bitmap, *map(pa.py_buffer, buffers)], nulls)


def _integers(
    kind: pa.DataType, stored: type[np.generic], column: Column, data: Bytes, offsets: Ints, lengths: Ints
) -> pa.Array:
    out = np.empty(len(offsets), dtype=np.int64)
    kernels.gather_integers(data, offsets, lengths, column.width, not column.unsigned, out)
    return _array(kind, lengths >= 0, out.astype(stored))


def _fixed(kind: pa.DataType, width: int, stride: int, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    out = np.zeros(len(offsets) * stride, dtype=np.uint8)
    kernels.gather_bytes(data, offsets, lengths, width, stride, out)
    return _array(kind, lengths >= 0, out)


def _decimal_groups(column: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bytes and power of ten of each group of digits, from left to right."""
    whole, scale = column.precision - column.scale, column.scale
    digits = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    digits = [count for count in digits if count]
    sizes = np.array([_GROUP_BYTES[count] for count in digits], dtype=np.int64)
    return sizes, np.array([10**count for count in digits], dtype=np.int64)


def _decimals(
    column: Column,
    group_bytes: npt.NDArray[np.int64],
    group_powers: npt.NDArray[np.int64],
    data: Bytes,
    offsets: Ints,
    lengths: Ints,
) -> pa.Array:
    out = np.zeros(2 * len(offsets), dtype=np.int64)
    if column.precision <= 18:
        bad = kernels.gather_decimals_18(data, offsets, lengths, group_bytes, group_powers, out)
    else:
        limbs = np.zeros(4, dtype=np.int64)
        bad = kernels.gather_decimals_38(data, offsets, lengths, group_bytes, group_powers, limbs, out.view(np.uint32))
    _refuse_damaged(column, bad, data, offsets, lengths)
    return _array(column.arrow_type, lengths >= 0, out)


def _dates(column: Column, zero_dates: ZeroDates, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    out, zero = np.zeros(len(offsets), dtype=np.int32), np.zeros(len(offsets), dtype=np.bool_)
    kernels.gather_dates(data, offsets, lengths, out, zero)
    return _array(column.arrow_type, _without_zero_dates(column, zero_dates, lengths, zero), out)


def _instants(column: Column, zero_dates: ZeroDates, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    out, zero = np.zeros(len(offsets), dtype=np.int64), np.zeros(len(offsets), dtype=np.bool_)
    gather = kernels.gather_datetimes if column.kind is Kind.DATETIME else kernels.gather_timestamps
    _refuse_damaged(column, gather(data, offsets, lengths, column.scale, out, zero), data, offsets, lengths)
    return _array(column.arrow_type, _without_zero_dates(column, zero_dates, lengths, zero), out)


def _without_zero_dates(column: Column, zero_dates: ZeroDates, lengths: Ints, zero: Mask) -> Mask:
    if zero_dates == "error" and zero.any():
        raise LogFormatError(
            f"column {column.name} holds a date that the calendar does not have",
            detail=f"{int(zero.sum())} such values, e.g. 0000-00-00, are in this part of the log.",
            hint="Repair the rows, or set `zero_dates: null` (not possible for key columns).",
        )
    return (lengths >= 0) & ~zero if zero.any() else lengths >= 0


def _years(data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    out = np.empty(len(offsets), dtype=np.int64)
    kernels.gather_integers(data, offsets, lengths, 1, False, out)
    return _array(pa.int16(), lengths >= 0, np.where(out == 0, 0, out + 1900).astype(np.int16))


def _booleans(data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    out = np.empty(len(offsets), dtype=np.int64)
    kernels.gather_integers(data, offsets, lengths, 1, False, out)
    return _array(pa.bool_(), lengths >= 0, np.packbits(out != 0, bitorder="little"))


def _enums(column: Column, labels: pa.Array, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    """Index 0 is the empty text the server stores for an invalid value."""
    out = np.empty(len(offsets), dtype=np.int64)
    kernels.gather_integers(data, offsets, lengths, 1 if len(column.labels) < 256 else 2, False, out)
    if len(out) and out.max() >= len(labels):
        raise LogFormatError(f"column {column.name} holds label {out.max()} of {len(column.labels)} in the log")
    return labels.take(pa.array(out, mask=lengths < 0))


def _doubtful(column: Column, places: frozenset[int]) -> ColumnDecoder:
    """A column of labels of which some are not known: they are None, which `_known` refuses where a row holds one."""
    labels = [None if place in places else label for place, label in enumerate(column.labels)]
    if column.kind is Kind.ENUM:
        return partial(_known, column, partial(_enums, column, pa.array(["", *labels], pa.string())))
    unknown = sum(1 << place for place in places)

    def set_of(raw: bytes) -> str:
        if int.from_bytes(raw, "little") & unknown:
            _refuse_unknown_label(column)
        return set_text(raw, column.labels)

    return partial(_plain, column, set_of)


def _known(column: Column, decode: ColumnDecoder, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    found = decode(data, offsets, lengths)
    if found.null_count > int(np.count_nonzero(lengths < 0)):
        _refuse_unknown_label(column)
    return found


def _refuse_unknown_label(column: Column) -> NoReturn:
    raise LogFormatError(
        f"column {column.name} holds a label in the log that the server does not show",
        detail="It shows `?` for characters beyond U+FFFF. The log holds labels only with binlog_row_metadata = FULL.",
        hint="Run SET GLOBAL binlog_row_metadata = FULL; "
        "then create the job again under another name, with an empty target.",
    )


def _starts(column_name: str, sizes: npt.NDArray[np.integer]) -> Ints:
    """Where each value begins if values of these sizes follow each other, and where the last one ends."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    if starts[-1] > _MAX_COLUMN_BYTES:
        raise LogFormatError(f"column {column_name} has more than 2 GB in one batch of the log")
    return starts.astype(np.int32)


def _strings(kind: pa.DataType, data: Bytes, offsets: Ints, lengths: Ints, name: str = "") -> pa.Array:
    starts = _starts(name, np.maximum(lengths, 0))
    out = np.empty(int(starts[-1]), dtype=np.uint8)
    kernels.gather_strings(data, offsets, lengths, starts, out)
    return _array(kind, lengths >= 0, starts, out)


def _padded_binary(column: Column, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    """BINARY(n): the log leaves out trailing zero bytes."""
    if len(lengths) and lengths.max() > column.width:
        raise LogFormatError(f"column {column.name} holds {lengths.max()} bytes, it has {column.width}")
    starts = _starts(column.name, np.where(lengths >= 0, column.width, 0))
    out = np.zeros(int(starts[-1]), dtype=np.uint8)
    kernels.gather_strings(data, offsets, lengths, starts, out)
    return _array(pa.binary(), lengths >= 0, starts, out)


def _utf8(column: Column, trim: bool, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    if trim:
        kernels.trim_spaces(data, offsets, lengths)
    array = _strings(pa.string(), data, offsets, lengths, column.name)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise LogFormatError(f"column {column.name} holds bytes that are no UTF-8", detail=str(error)) from error
    return array


def _utf8_table(charset: Charset) -> tuple[Bytes, Bytes]:
    """Bytes per character, and the characters in four bytes each."""
    encoded = [character.encode() for character in charset.table]
    table = b"".join(character.ljust(4, b"\0") for character in encoded)
    return np.array([len(c) for c in encoded], dtype=np.uint8), np.frombuffer(bytearray(table), dtype=np.uint8)


def _mapped(
    column: Column, trim: bool, widths: Bytes, table: Bytes, data: Bytes, offsets: Ints, lengths: Ints
) -> pa.Array:
    if trim:
        kernels.trim_spaces(data, offsets, lengths)
    measured = np.empty(len(offsets) + 1, dtype=np.int64)
    kernels.measure_mapped(data, offsets, lengths, widths, measured)
    starts = _starts(column.name, np.diff(measured))
    out = np.empty(int(starts[-1]), dtype=np.uint8)
    kernels.gather_mapped(data, offsets, lengths, widths, table, out)
    return _array(pa.string(), lengths >= 0, starts, out)


def _plain(column: Column, convert: Plain, data: Bytes, offsets: Ints, lengths: Ints) -> pa.Array:
    view = data.data
    pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    try:
        values = [None if length < 0 else convert(bytes(view[at : at + length])) for at, length in pairs]
    except LogFormatError as error:
        raise LogFormatError(f"column {column.name}: {error.message}", detail=error.detail, hint=error.hint) from error
    return pa.array(values, pa.string())


def _refuse_damaged(column: Column, row: int, data: Bytes, offsets: Ints, lengths: Ints) -> None:
    if row < 0:
        return
    value = bytes(data[offsets[row] : offsets[row] + lengths[row]])
    raise LogFormatError(f"column {column.name} holds bytes that are no {column.type_name}", detail=value.hex())
