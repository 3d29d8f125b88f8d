"""Encodes keys: to bytes that are hashed to a vnode, and to bytes that sort as the database sorts the keys.

Two byte forms of a key are made here, and nowhere else:

`encode_key` names a key: typed and injective, so that no two keys of a table share their bytes. It is what is hashed.

    kind        tag   payload
    INT         0x01  8 bytes, little-endian, two's complement
    UINT        0x02  8 bytes, little-endian
    DECIMAL     0x03  scale (1 byte), length n (1 byte), value × 10^scale in n bytes, little-endian, two's complement;
                      n is the magnitude's bits // 8 + 1
    TEXT        0x04  length (4 bytes, little-endian), UTF-8
    BINARY      0x05  length (4 bytes, little-endian), the bytes
    DATE        0x06  days since 1970-01-01 as INT
    DATETIME    0x07  microseconds since 1970-01-01T00:00:00 as INT; a value with a zone is taken in UTC
    ENUM        0x08  index as INT

A composite key is its parts one after the other; every part carries its length, so (1, 23) and (12, 3) differ.
These bytes are part of the stored format: changing them moves rows between vnodes of a job that is under way.

`order_key` places a key: comparing two of them as bytes is comparing the keys as the server does. Numbers and times are
big-endian with the sign turned round, binary strings are escaped (00 → 00 FF) and ended (00 00), so that a short one
sorts before its continuations whatever part follows. Text is never compared by its characters: the server's own weight
string is asked for and used instead. A weight that is missing is an error, not a guess.

The forms for batches of Arrow columns give the same bytes and the same vnodes as the forms for one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum
from typing import NewType, TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vnode_backfill.words.errors import BitmapError, KeyOrderError

VnodeId = NewType("VnodeId", int)
MAX_VNODES = 32768
MAX_DECIMAL_DIGITS = 65

KeyValue: TypeAlias = int | Decimal | str | bytes | date | datetime
Key: TypeAlias = tuple[KeyValue, ...]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
Int32s: TypeAlias = npt.NDArray[np.int32]


class KeyKind(StrEnum):
    """How a key column is encoded and compared."""

    INT = "int"
    UINT = "uint"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    ENUM = "enum"
    """The value is the index of the label, because the server sorts by it."""

    @property
    def is_fixed(self) -> bool:
        """Whether a value of this kind is one 64-bit number, so that batches need no loop over rows."""
        return self in _LIMITS


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of the key; `scale` is the number of decimals of a DECIMAL."""

    name: str
    kind: KeyKind
    scale: int = 0


_LIMITS = {
    KeyKind.INT: (-(2**63), 2**63 - 1),
    KeyKind.UINT: (0, 2**64 - 1),
    KeyKind.DATE: (-(2**31), 2**31 - 1),
    KeyKind.DATETIME: (-(2**63), 2**63 - 1),
    KeyKind.ENUM: (0, 65535),
}
_TAGS = {
    KeyKind.INT: 1,
    KeyKind.UINT: 2,
    KeyKind.DECIMAL: 3,
    KeyKind.TEXT: 4,
    KeyKind.BINARY: 5,
    KeyKind.DATE: 6,
    KeyKind.DATETIME: 7,
    KeyKind.ENUM: 8,
}
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_DECIMAL_BYTES = 28
_EXACT = Context(prec=MAX_DECIMAL_DIGITS, traps=[Inexact, InvalidOperation])
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = timedelta(microseconds=1)


def check_vnode_count(vnode_count: int) -> None:
    """Refuse a number of vnodes outside 1..32768."""
    if not 1 <= vnode_count <= MAX_VNODES:
        raise BitmapError(
            f"vnode count {vnode_count} is not between 1 and {MAX_VNODES}",
            hint="Set `vnodes` or --vnodes; 256 is the default.",
        )


def encode_key(parts: Sequence[KeyPart], key: Key) -> bytes:
    """The bytes that name `key`, as tabled above. Demands a value of its kind's Python type for every part."""
    return b"".join([_encode(part, value) for part, value in _pairs(parts, key)])


def vnode_of(encoded: bytes, vnode_count: int) -> VnodeId:
    """The vnode of an encoded key (or of the encoded low bound of a key range)."""
    return VnodeId(mmh3.hash(encoded, signed=False) % vnode_count)


def vnodes_of(parts: Sequence[KeyPart], columns: Sequence[pa.Array], vnode_count: int) -> Int32s:
    """The vnodes of a batch of keys, one column per part, as `vnode_of` gives them one by one."""
    check_vnode_count(vnode_count)
    if all(part.kind.is_fixed for part in parts):
        bits = [_bits(part, column) for part, column in _columns(parts, columns)]
        return _hash_fixed(parts, bits, vnode_count)
    hashes = (mmh3.hash(encode_key(parts, key), signed=False) % vnode_count for key in keys_of(parts, columns))
    return np.fromiter(hashes, dtype=np.int32, count=len(columns[0]))


def order_key(parts: Sequence[KeyPart], key: Key, weights: Sequence[bytes | None] = ()) -> bytes:
    """The bytes that sort as the server sorts `key`. `weights[i]` is the server's weight string of a TEXT part i."""
    given = [*weights, *[None] * (len(parts) - len(weights))]
    return b"".join(
        [_order(part, value, weight) for (part, value), weight in zip(_pairs(parts, key), given, strict=True)]
    )


def order_keys(
    parts: Sequence[KeyPart], columns: Sequence[pa.Array], weights: Sequence[pa.Array | None] = ()
) -> list[bytes]:
    """`order_key` of every row; `weights[i]` is the binary column of weight strings of a TEXT part i."""
    if all(part.kind.is_fixed for part in parts):
        return [row.tobytes() for row in _fixed_order_rows(parts, columns)]
    rows = len(columns[0])
    given = [*weights, *[None] * (len(parts) - len(weights))]
    weight_columns = [[None] * rows if column is None else column.to_pylist() for column in given]
    per_row = zip(*weight_columns, strict=True)
    return [order_key(parts, key, weight) for key, weight in zip(keys_of(parts, columns), per_row, strict=True)]


def fixed_orders(parts: Sequence[KeyPart], columns: Sequence[pa.Array]) -> npt.NDArray[np.bytes_] | Uint64s:
    """What `order_keys` gives, as one array numpy can search. Demands that every part `is_fixed`.

    One part gives numbers. Several give byte strings of one width: numpy ignores their trailing zero bytes, which
    changes no comparison because all strings are equally long.
    """
    if len(parts) == 1:
        ((part, column),) = _columns(parts, columns)
        return _ordered(part, _bits(part, column))
    rows = _fixed_order_rows(parts, columns)
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


def keys_of(parts: Sequence[KeyPart], columns: Sequence[pa.Array]) -> list[Key]:
    """The rows of a batch of key columns as keys of the Python types `encode_key` demands."""
    values = [_python_values(part, column) for part, column in _columns(parts, columns)]
    return list(zip(*values, strict=True))


def _pairs(parts: Sequence[KeyPart], key: Key) -> zip[tuple[KeyPart, KeyValue]]:
    if len(parts) != len(key):
        raise KeyOrderError(f"key {key!r} has {len(key)} values for {len(parts)} key columns")
    return zip(parts, key, strict=True)


def _encode(part: KeyPart, value: KeyValue) -> bytes:
    tag = _TAGS[part.kind].to_bytes(1)
    if part.kind is KeyKind.DECIMAL:
        unscaled = _unscaled(part, value)
        size = unscaled.bit_length() // 8 + 1
        return tag + bytes((part.scale, size)) + unscaled.to_bytes(size, "little", signed=True)
    if part.kind is KeyKind.TEXT:
        return tag + _sized(_utf8(part, value))
    if part.kind is KeyKind.BINARY:
        return tag + _sized(_binary(part, value))
    return tag + (_number(part, value) & _MASK).to_bytes(8, "little")


def _order(part: KeyPart, value: KeyValue, weight: bytes | None) -> bytes:
    if part.kind is KeyKind.DECIMAL:
        shifted = _unscaled(part, value) + (1 << (8 * _DECIMAL_BYTES - 1))
        return shifted.to_bytes(_DECIMAL_BYTES, "big")
    if part.kind is KeyKind.TEXT:
        if weight is None:
            raise KeyOrderError(
                f"key column {part.name} is text and came without the server's weight string",
                detail="Text sorts by the column's collation, which only the server knows.",
            )
        if not isinstance(value, str):
            raise _wrong_value(part, value)
        return _ended(weight)
    if part.kind is KeyKind.BINARY:
        return _ended(_binary(part, value))
    number = _number(part, value)
    return (number if part.kind is KeyKind.UINT else number + _SIGN).to_bytes(8, "big")


def _ended(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value


def _number(part: KeyPart, value: KeyValue) -> int:
    """The 64-bit number a fixed-width value is encoded and compared as."""
    number: int | None = None
    if part.kind is KeyKind.DATE:
        if isinstance(value, date) and not isinstance(value, datetime):
            number = value.toordinal() - _EPOCH_DAY
    elif part.kind is KeyKind.DATETIME:
        if isinstance(value, datetime):
            plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            number = (plain - _EPOCH) // _MICROSECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if number is None:
        raise _wrong_value(part, value)
    low, high = _LIMITS[part.kind]
    if not low <= number <= high:
        raise _wrong_value(part, value)
    return number


def _unscaled(part: KeyPart, value: KeyValue) -> int:
    """The DECIMAL as a whole number of its last decimals; what would have to be rounded is refused."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _wrong_value(part, value)
    try:
        whole = _EXACT.to_integral_exact(_EXACT.scaleb(value, part.scale))
    except ArithmeticError as error:
        raise _wrong_value(part, value) from error
    if whole and whole.adjusted() >= MAX_DECIMAL_DIGITS:
        raise _wrong_value(part, value)
    return int(whole)


def _utf8(part: KeyPart, value: KeyValue) -> bytes:
    if not isinstance(value, str):
        raise _wrong_value(part, value)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise _wrong_value(part, value) from error


def _binary(part: KeyPart, value: KeyValue) -> bytes:
    if not isinstance(value, bytes):
        raise _wrong_value(part, value)
    return value


def _wrong_value(part: KeyPart, value: object) -> KeyOrderError:
    return KeyOrderError(
        f"{value!r} is not a value of key column {part.name} ({part.kind})",
        detail=f"It is a {type(value).__name__}; a key holds no NULL, no NaN and nothing outside its column's range.",
    )


def _columns(parts: Sequence[KeyPart], columns: Sequence[pa.Array]) -> list[tuple[KeyPart, pa.Array]]:
    if len(parts) != len(columns):
        raise KeyOrderError(f"{len(columns)} columns were given for {len(parts)} key columns")
    for part, column in zip(parts, columns, strict=True):
        if column.null_count:
            raise KeyOrderError(f"key column {part.name} holds NULL in {column.null_count} rows")
    return list(zip(parts, columns, strict=True))


def _python_values(part: KeyPart, column: pa.Array) -> list[KeyValue]:
    if part.kind in (KeyKind.INT, KeyKind.UINT, KeyKind.ENUM):
        bits = _bits(part, column)
        numbers: list[KeyValue] = (bits if part.kind is KeyKind.UINT else bits.view(np.int64)).tolist()
        return numbers
    values: list[KeyValue] = column.to_pylist()
    if part.kind is KeyKind.DECIMAL and pa.types.is_string(column.type):
        return [_decimal(part, value) for value in values]
    return values


def _decimal(part: KeyPart, text: KeyValue) -> Decimal:
    """A DECIMAL of more than 38 digits, which travels as text."""
    try:
        return Decimal(str(text))
    except InvalidOperation as error:
        raise _wrong_value(part, text) from error


def _bits(part: KeyPart, column: pa.Array) -> Uint64s:
    """The numbers of a fixed-width column, two's complement in 64 bits."""
    kind = column.type
    if part.kind is KeyKind.DATE and pa.types.is_date32(kind):
        return _bits_of_ints(part, column.cast(pa.int32()).to_numpy().astype(np.int64))
    if part.kind is KeyKind.DATETIME and pa.types.is_timestamp(kind) and kind.unit == "us":
        return _bits_of_ints(part, column.cast(pa.int64()).to_numpy())
    if part.kind in (KeyKind.INT, KeyKind.UINT, KeyKind.ENUM) and pa.types.is_integer(kind):
        wide = np.uint64 if kind == pa.uint64() else np.int64
        return _bits_of_ints(part, column.to_numpy().astype(wide))
    if part.kind is KeyKind.UINT and pa.types.is_decimal128(kind) and kind.scale == 0:
        return _bits_of_decimals(part, column)
    raise KeyOrderError(f"key column {part.name} ({part.kind}) cannot be read from an Arrow column of type {kind}")


def _bits_of_ints(part: KeyPart, values: npt.NDArray[np.int64] | Uint64s) -> Uint64s:
    low, high = _LIMITS[part.kind]
    if values.size:
        for value in (int(values.min()), int(values.max())):
            if not low <= value <= high:
                raise _wrong_value(part, value)
    return np.ascontiguousarray(values).view(np.uint64)


def _bits_of_decimals(part: KeyPart, column: pa.Array) -> Uint64s:
    """The low halves of 128-bit integers whose high halves must be zero, without a Python object per row."""
    if len(column) == 0:
        return np.empty(0, dtype=np.uint64)
    halves = np.frombuffer(column.buffers()[1], dtype="<u8")[: 2 * (column.offset + len(column))].reshape(-1, 2)
    halves = halves[column.offset :]
    if halves[:, 1].any():
        raise _wrong_value(part, column[int(halves[:, 1].argmax())].as_py())
    return np.ascontiguousarray(halves[:, 0])


def _ordered(part: KeyPart, bits: Uint64s) -> Uint64s:
    return bits if part.kind is KeyKind.UINT else bits ^ np.uint64(_SIGN)


def _fixed_order_rows(parts: Sequence[KeyPart], columns: Sequence[pa.Array]) -> npt.NDArray[np.uint8]:
    """One row of 8 bytes per part and key: `order_key` as a matrix."""
    numbers = [_ordered(part, _bits(part, column)) for part, column in _columns(parts, columns)]
    return np.hstack([each.astype(">u8").view(np.uint8).reshape(-1, 8) for each in numbers])


def _hash_fixed(parts: Sequence[KeyPart], bits: Sequence[Uint64s], vnode_count: int) -> Int32s:
    width = 9 * len(parts)
    rows = np.zeros((len(bits[0]), -(-width // 4) * 4), dtype=np.uint8)
    for index, (part, numbers) in enumerate(zip(parts, bits, strict=True)):
        rows[:, 9 * index] = _TAGS[part.kind]
        rows[:, 9 * index + 1 : 9 * index + 9] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return (_murmur3(rows.view("<u4"), width) % np.uint32(vnode_count)).astype(np.int32)


def _murmur3(words: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """MurmurHash3 x86 32 with seed 0 of rows of `width` bytes, given as little-endian words padded with zeros."""
    hashes = np.zeros(len(words), dtype=np.uint32)
    for index in range(words.shape[1]):
        mixed = words[:, index] * np.uint32(0xCC9E2D51)
        mixed = _rotated(mixed, 15) * np.uint32(0x1B873593)
        hashes ^= mixed
        if index < width // 4:
            hashes = _rotated(hashes, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(width)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(words: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))
