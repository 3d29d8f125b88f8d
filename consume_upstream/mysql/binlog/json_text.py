"""Prints MySQL's binary JSON as the text that the server itself prints for it.

The log holds a JSON value in the server's storage format; a SELECT returns text. Both must be the same text, byte for
byte, so this follows the server's printer: members in stored order, `, ` and `: ` between them, its own form of
doubles, and `base64:typeN:` for values JSON has no type for. The format is documented in the server's source
(`json_binary.h`).

Every offset is checked against the value it is in; damaged bytes raise `LogFormatError`.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

from vnode_backfill.words.errors import LogFormatError

_MAX_DEPTH = 101
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = (
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    15,
)
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {
    _INT16: struct.Struct("<h"), _UINT16: struct.Struct("<H"), _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"),
}  # fmt: skip
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r",
}  # fmt: skip
_DIGITS_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_MAX_PLAIN_EXPONENT = 15


def json_text(data: bytes) -> str:
    """The text of one stored JSON value.

    An empty value is what an ignored error left behind; the server prints null.
    """
    if not data:
        return "null"
    try:
        return _value(data[0], data[1:], 0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise LogFormatError("a JSON value of the log is damaged", detail=str(error)) from error


def _value(kind: int, data: bytes, depth: int) -> str:
    if depth >= _MAX_DEPTH:
        raise LogFormatError("a JSON value of the log is nested too deeply")
    match kind:
        case 0 | 1 | 2 | 3:
            return _container(kind, data, depth)
        case 4:
            return _literal(data[0])
        case 11:
            return double_text(struct.unpack_from("<d", data)[0])
        case 12:
            return quoted(_counted(data).decode("utf-8"))
        case 15:
            return _opaque(data[0], _counted(data[1:]))
        case _ if kind in _NUMBERS:
            return str(_NUMBERS[kind].unpack_from(data)[0])
        case _:
            raise LogFormatError(f"a JSON value of the log has the unknown type {kind}")


def _literal(code: int) -> str:
    if code not in _LITERALS:
        raise LogFormatError(f"a JSON value of the log has the unknown literal {code}")
    return _LITERALS[code]


def _container(kind: int, data: bytes, depth: int) -> str:
    """An object or array: count, size, entries of keys, entries of values, then keys and values."""
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width = 4 if large else 2
    count, size = _unsigned(data, 0, width), _unsigned(data, width, width)
    key_entry = width + 2 if is_object else 0
    values_at = 2 * width + count * key_entry
    if size > len(data) or values_at + count * (1 + width) > size:
        raise LogFormatError("a JSON value of the log is damaged", detail="Its entries run past its end.")
    data = data[:size]
    values = [_member(data, values_at + i * (1 + width), width, depth) for i in range(count)]
    if not is_object:
        return "[" + ", ".join(values) + "]"
    keys = [_key(data, 2 * width + i * key_entry, width) for i in range(count)]
    return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"


def _key(data: bytes, entry: int, width: int) -> str:
    at, length = _unsigned(data, entry, width), _unsigned(data, entry + width, 2)
    return quoted(_slice(data, at, length).decode("utf-8"))


def _member(data: bytes, entry: int, width: int, depth: int) -> str:
    """A value in its entry (small numbers and literals), or at the offset the entry holds."""
    kind = data[entry]
    inlined = kind in (_LITERAL, _INT16, _UINT16) or (width == 4 and kind in (_INT32, _UINT32))
    if inlined:
        return _value(kind, data[entry + 1 : entry + 1 + width], depth + 1)
    at = _unsigned(data, entry + 1, width)
    # A value is after the entries, so a damaged offset cannot lead round in a circle.
    if at <= entry or at >= len(data):
        raise LogFormatError("a JSON value of the log is damaged", detail="An offset points outside its container.")
    return _value(kind, data[at:], depth + 1)


def _unsigned(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(_slice(data, at, width), "little")


def _slice(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise LogFormatError("a JSON value of the log is damaged", detail="A length runs past its end.")
    return data[at : at + length]


def _counted(data: bytes) -> bytes:
    """Bytes after a length of one to five bytes, seven bits each."""
    length = 0
    for i in range(5):
        length |= (data[i] & 0x7F) << (7 * i)
        if not data[i] & 0x80:
            return _slice(data, i + 1, length)
    raise LogFormatError("a JSON value of the log is damaged", detail="A length is too long.")


def quoted(text: str) -> str:
    return '"' + text.translate(_ESCAPES) + '"'


def double_text(value: float) -> str:
    """The shortest digits that give the value back; an exponent where zeros would fill more than 15 places."""
    number = Decimal(repr(value))
    if not number.is_finite():
        raise LogFormatError("a JSON value of the log is damaged", detail=f"JSON has no {value}.")
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    sign = "-" if number.is_signed() else ""
    return sign + (_placed(digits, number.adjusted() + 1) if digits else "0.0")


def _placed(digits: str, point: int) -> str:
    """`0.digits` times ten to the `point`."""
    if -_MAX_PLAIN_EXPONENT < point <= 0:
        return "0." + "0" * -point + digits
    if 0 < point <= max(_MAX_PLAIN_EXPONENT, len(digits) - 1):
        if len(digits) <= point:
            return digits + "0" * (point - len(digits)) + ".0"
        return f"{digits[:point]}.{digits[point:]}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{rest}e{point - 1}"


def _opaque(kind: int, data: bytes) -> str:
    """A value of an SQL type that JSON does not have."""
    match kind:
        case 246:
            return decimal_text(data[2:], data[0], data[1])
        case 10 | 12 | 7:
            return f'"{_packed_datetime(data, date_only=kind == _DATE)}"'
        case 11:
            return f'"{_packed_time(data)}"'
        case _:
            return quoted(f"base64:type{kind}:{base64.b64encode(data).decode('ascii')}")


def _packed(data: bytes) -> int:
    value: int = struct.unpack("<q", data)[0]
    return value


def _packed_datetime(data: bytes, *, date_only: bool) -> str:
    packed = _packed(data)
    packed, sign = abs(packed), "-" if packed < 0 else ""
    micros, whole = packed & 0xFFFFFF, packed >> 24
    date, time = whole >> 17, whole & 0x1FFFF
    months, day = date >> 5, date & 31
    text = f"{sign}{months // 13:04d}-{months % 13:02d}-{day:02d}"
    return text if date_only else f"{text} {time >> 12:02d}:{time >> 6 & 63:02d}:{time & 63:02d}.{micros:06d}"


def _packed_time(data: bytes) -> str:
    packed = _packed(data)
    packed, sign = abs(packed), "-" if packed < 0 else ""
    micros, whole = packed & 0xFFFFFF, packed >> 24
    return f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """A decimal of any precision as the server prints it.

    It has as many digits after the point as declared, and no needless zeros before it.
    """
    whole = precision - scale
    if not data or whole < 0 or precision > 81:
        raise LogFormatError("a decimal of the log is damaged")
    negative = not data[0] & 0x80
    raw = bytes([data[0] ^ 0x80, *data[1:]])
    if negative:
        raw = bytes(byte ^ 0xFF for byte in raw)
    sizes = [*([whole % 9] if whole % 9 else []), *[9] * (whole // 9)]
    before, at = _digits(raw, 0, sizes)
    after, at = _digits(raw, at, [*[9] * (scale // 9), *([scale % 9] if scale % 9 else [])])
    if at != len(raw):
        raise LogFormatError("a decimal of the log is damaged", detail=f"It has {len(raw)} bytes, {at} were expected.")
    number = (before.lstrip("0") or "0") + (f".{after}" if scale else "")
    return f"-{number}" if negative and number.strip("0.") else number


def _digits(raw: bytes, at: int, groups: list[int]) -> tuple[str, int]:
    text = ""
    for digits in groups:
        width = _DIGITS_BYTES[digits]
        value = int.from_bytes(_slice(raw, at, width), "big")
        if value >= 10**digits:
            raise LogFormatError("a decimal of the log is damaged", detail=f"{value} has more than {digits} digits.")
        text += f"{value:0{digits}d}"
        at += width
    return text, at
