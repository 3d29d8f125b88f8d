"""Gives each row one form of bytes that the server and this process compute alike, and a digest of it.

What must be true: two rows have the same form if and only if their canonical values (see
`vnode_backfill.words.columns`) are equal. And the server's form of a row is, byte by byte, the form of the Arrow row
that a correct copy holds. Nothing of a session or a collation takes part: values become bytes before they are joined,
in a session whose time zone and sql_mode are pinned (see `connection`).

| kind                        | form                        | server                                                 |
|-----------------------------|-----------------------------|--------------------------------------------------------|
| INT, YEAR, BIT(1)           | decimal digits              | the number; `+ 0` takes the zeros of ZEROFILL away     |
| DECIMAL                     | text with all its decimals  | CAST to the declared type, for the same reason         |
| FLOAT, DOUBLE               | 8 bytes of IEEE 754         | of the WKB of a point: no text is exact; -0.0 is 0.0   |
| DATE, DATETIME, TIMESTAMP   | ISO text with microseconds  | the text with zeros, in UTC; not a calendar day: NULL  |
| TIME                        | text                        | the text                                               |
| CHAR, VARCHAR, ENUM, SET    | UTF-8 with its length       | converted, then taken as bytes                         |
| UUID, INET4, INET6          | text with its length        | the server's text                                      |
| BINARY, VARBINARY, BIT(n)   | bytes with their length     | the bytes                                              |
| TEXT, BLOB, JSON, GEOMETRY  | SHA-256 in hex              | of the UTF-8 or the bytes; JSON: of the server's text  |

Values that may be long are digested one by one. The server makes NULL of a text longer than `max_allowed_packet`, so no
long value is ever part of a joined text. Forms are joined by commas; NULL is `N`. A form that may hold a comma has its
length before it, so no two rows share a form: ('a,1:b', '') is `5:a,1:b,0:` and ('a', 'b,0:') is `1:a,4:b,0:`.

Of a row's SHA-256 the first 64 bits count. They are added, not joined by XOR: a row that a copy holds twice does not
cancel itself out. Two stretches that differ have equal counts and sums with a probability of 2^-64. MD5 would be no
faster, is refused by servers in FIPS mode, and newer servers do without it.

No type needs its values shipped: each has an exact expression on both servers.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consume_upstream.mysql.sql import quoted
from vnode_backfill.words.columns import Column, Kind

__all__ = [
    "SameForms",
    "bucket_expression",
    "bucket_numbers",
    "digest_expression",
    "digests",
    "row_expression",
    "row_forms",
]

Numbers = npt.NDArray[np.uint64]

_NULL = "N"
_UTF8 = ("utf8mb4", "utf8mb3", "utf8", "ascii")
_LONG = frozenset({"text", "mediumtext", "longtext", "blob", "mediumblob", "longblob"})
_MICROSECOND_DIGITS = 6


@dataclass(frozen=True, slots=True)
class SameForms:
    """What this process computes as the server does; can be pickled."""

    def row_forms(self, columns: Sequence[Column], rows: pa.RecordBatch | pa.Table) -> pa.Array:
        return row_forms(columns, rows)

    def digests(self, forms: pa.Array) -> Numbers:
        return digests(forms)

    def bucket_numbers(self, forms: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
        return bucket_numbers(forms, buckets)


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of a kind become bytes: an expression of the server and a function of the Arrow column.

    NULL stays NULL.
    """

    server: Callable[[Column], str]
    arrow: Callable[[Column, pa.Array], pa.Array]
    length: Callable[[Column], str] | None = None
    """The server's expression for the number of bytes, where they may hold a comma and need it before them."""


def row_expression(columns: Sequence[Column]) -> str:
    """The server's expression for the form of a row of these columns."""
    return "CONCAT(" + ", ',', ".join(_expression(column) for column in columns) + ")"


def row_forms(columns: Sequence[Column], rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """The forms of all rows, as the server's `row_expression` gives them."""
    forms = [_filled(column, _whole(rows.column(column.name))) for column in columns]
    return forms[0] if len(forms) == 1 else pc.binary_join_element_wise(*forms, b",")


def digest_expression(form: str) -> str:
    """The server's expression for the digest of a form: 64 bits of its SHA-256, as a number."""
    return f"CAST(CONV(LEFT(SHA2({form}, 256), 16), 16, 10) AS UNSIGNED)"


def digests(forms: pa.Array) -> Numbers:
    """The digests of forms, as the server's `digest_expression` gives them."""
    joined = b"".join([hashlib.sha256(form).digest() for form in forms.to_pylist()])
    return np.frombuffer(joined, ">u8")[::4].astype(np.uint64)


def bucket_expression(form: str, buckets: int) -> str:
    """The server's expression for the bucket, one of a power of two, that a key of this form belongs to."""
    return f"CRC32({form}) & {buckets - 1}"


def bucket_numbers(forms: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """The buckets of forms, as the server's `bucket_expression` gives them."""
    numbers = (zlib.crc32(form) for form in forms.to_pylist())
    return np.fromiter(numbers, np.int64, len(forms)) & np.int64(buckets - 1)


def _expression(column: Column) -> str:
    form = _form_of(column)
    if form.length is None:
        return f"IFNULL({form.server(column)}, '{_NULL}')"
    return f"IFNULL(CONCAT({form.length(column)}, ':', {form.server(column)}), '{_NULL}')"


def _filled(column: Column, values: pa.Array) -> pa.Array:
    form = _form_of(column)
    found = form.arrow(column, values).cast(pa.binary())
    if form.length is not None:
        lengths = pc.binary_length(found).cast(pa.string()).cast(pa.binary())
        found = pc.binary_join_element_wise(lengths, found, b":")
    return pc.fill_null(found, pa.scalar(_NULL.encode(), pa.binary()))


def _form_of(column: Column) -> _Form:
    if column.type_name in _LONG:
        return _DIGESTED[column.kind]
    if column.kind is Kind.BIT and column.width == 1:
        return _BIT
    if column.kind is Kind.DECIMAL and column.precision > 38:
        return _WIDE_DECIMAL
    return _FORMS[column.kind]


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _number(column: Column) -> str:
    name = quoted(column.name)
    return f"CONCAT({name} + 0)" if column.unsigned or column.kind is not Kind.INT else f"CONCAT({name})"


def _arrow_number(_column: Column, values: pa.Array) -> pa.Array:
    if pa.types.is_decimal(values.type):
        return _unscaled(values)
    return values.cast(pa.int64()).cast(pa.string())


def _decimal(column: Column) -> str:
    return f"CONCAT(CAST({quoted(column.name)} AS DECIMAL({column.precision},{column.scale})))"


def _arrow_decimal(column: Column, values: pa.Array) -> pa.Array:
    """All decimals, never an exponent: the digits of the unscaled number with a point put in."""
    text = _unscaled(values)
    if not column.scale:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    digits = pc.ascii_lpad(pc.ascii_ltrim(text, characters="-"), column.scale + 1, "0")
    whole = pc.utf8_slice_codeunits(digits, 0, -column.scale)
    fraction = pc.utf8_slice_codeunits(digits, -column.scale)
    return pc.binary_join_element_wise(sign, whole, ".", fraction, "")


def _unscaled(values: pa.Array) -> pa.Array:
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(values), values.buffers(), null_count=values.null_count, offset=values.offset
    )
    return whole.cast(pa.string())


def _float(column: Column) -> str:
    # WKB is one byte for the byte order, four for the type, then x and y as little-endian doubles.
    return f"SUBSTR(ST_AsWKB(POINT({quoted(column.name)} + 0e0, 0)), 6, 8)"


def _eight(_column: Column) -> str:
    return "8"


def _arrow_float(_column: Column, values: pa.Array) -> pa.Array:
    wide = pc.add(values.cast(pa.float64()), 0.0)
    buffers = [wide.buffers()[0], wide.buffers()[1]]
    found = pa.Array.from_buffers(pa.binary(8), len(wide), buffers, null_count=wide.null_count, offset=wide.offset)
    return found.cast(pa.binary())


def _time_text(column: Column) -> str:
    return f"CAST({quoted(column.name)} AS CHAR)"


def _day(column: Column) -> str:
    return _if_in_calendar(column, f"CONCAT({quoted(column.name)})")


def _instant(column: Column) -> str:
    missing = "0" * (_MICROSECOND_DIGITS - column.scale)
    filled = missing if column.scale else f".{missing}"
    name = quoted(column.name)
    return _if_in_calendar(column, f"CONCAT({name}, '{filled}')" if missing else f"CONCAT({name})")


def _if_in_calendar(column: Column, text: str) -> str:
    """NULL for `0000-00-00`, `2024-00-15` and `2024-02-31`, whatever else they are declared as.

    They have no canonical value.
    """
    name = quoted(column.name)
    return f"IF(DAYOFMONTH({name}) BETWEEN 1 AND DAYOFMONTH(LAST_DAY({name})), {text}, NULL)"


def _arrow_day(_column: Column, values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _arrow_instant(_column: Column, values: pa.Array) -> pa.Array:
    return values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())


def _utf8(column: Column) -> str:
    name = quoted(column.name)
    return name if column.charset in _UTF8 else f"CONVERT({name} USING utf8mb4)"


def _text(column: Column) -> str:
    return f"CAST({_utf8(column)} AS BINARY)"


def _text_length(column: Column) -> str:
    return f"LENGTH({_utf8(column)})"


def _server_text(column: Column) -> str:
    return f"CAST(CAST({quoted(column.name)} AS CHAR) AS BINARY)"


def _server_text_length(column: Column) -> str:
    return f"LENGTH(CAST({quoted(column.name)} AS CHAR))"


def _bytes(column: Column) -> str:
    return f"CAST({quoted(column.name)} AS BINARY)"


def _length(column: Column) -> str:
    return f"LENGTH({quoted(column.name)})"


def _as_it_is(_column: Column, values: pa.Array) -> pa.Array:
    return values


def _digested_text(column: Column) -> str:
    return f"SHA2({_utf8(column)}, 256)"


def _digested_bytes(column: Column) -> str:
    return f"SHA2({quoted(column.name)}, 256)"


def _arrow_digested(_column: Column, values: pa.Array) -> pa.Array:
    raw = values.cast(pa.binary()).to_pylist()
    return pa.array([None if value is None else hashlib.sha256(value).hexdigest() for value in raw], pa.string())


_BIT = _Form(_number, _arrow_number)
_WIDE_DECIMAL = _Form(_decimal, _as_it_is)
_DIGESTED: Mapping[Kind, _Form] = {
    Kind.STRING: _Form(_digested_text, _arrow_digested),
    Kind.BINARY: _Form(_digested_bytes, _arrow_digested),
}
_FORMS: Mapping[Kind, _Form] = {
    Kind.INT: _Form(_number, _arrow_number),
    Kind.YEAR: _Form(_number, _arrow_number),
    Kind.DECIMAL: _Form(_decimal, _arrow_decimal),
    Kind.FLOAT: _Form(_float, _arrow_float, _eight),
    Kind.DOUBLE: _Form(_float, _arrow_float, _eight),
    Kind.BIT: _Form(_bytes, _as_it_is, _length),
    Kind.DATE: _Form(_day, _arrow_day),
    Kind.DATETIME: _Form(_instant, _arrow_instant),
    Kind.TIMESTAMP: _Form(_instant, _arrow_instant),
    Kind.TIME: _Form(_time_text, _as_it_is),
    Kind.STRING: _Form(_text, _as_it_is, _text_length),
    Kind.BINARY: _Form(_bytes, _as_it_is, _length),
    Kind.ENUM: _Form(_text, _as_it_is, _text_length),
    Kind.SET: _Form(_text, _as_it_is, _text_length),
    Kind.UUID: _Form(_server_text, _as_it_is, _server_text_length),
    Kind.INET4: _Form(_server_text, _as_it_is, _server_text_length),
    Kind.INET6: _Form(_server_text, _as_it_is, _server_text_length),
    Kind.JSON: _Form(_digested_text, _arrow_digested),
    Kind.GEOMETRY: _Form(_digested_bytes, _arrow_digested),
}
