"""Every value that goes into a row image by the format's own rules comes out of the decoder again."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.mysql.binlog.decoder import RowDecoder
from consume_upstream.mysql.binlog.plain_values import inet6_text, set_text, time_text, uuid_text
from consume_upstream.mysql.schema.charsets import charset_named
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import LogFormatError

Value = object
EPOCH = datetime.datetime(1970, 1, 1)


def decode(column_type: str, values: Sequence[bytes | None], charset: str = "") -> list[Value]:
    """Lay the values one after the other as a walk would find them, and decode them."""
    column = Column.parse("c", column_type, nullable=True, charset=charset)
    decoder = RowDecoder(TableDefinition("d", "t", (column,), ()), "mysql")
    data = np.frombuffer(bytearray(b"?" + b"".join(value or b"" for value in values)), dtype=np.uint8)
    lengths = np.array([[-1 if value is None else len(value) for value in values]], dtype=np.int32)
    sizes = np.maximum(lengths, 0)
    offsets = (1 + np.cumsum(sizes, axis=1) - sizes).astype(np.int32)
    found: list[Value] = decoder.decode(data, offsets, lengths)["c"].to_pylist()
    return found


@settings(deadline=None)
@given(
    st.sampled_from([(1, "tinyint"), (2, "smallint"), (3, "mediumint"), (4, "int"), (8, "bigint")]),
    st.booleans(),
    st.data(),
)
def test_integers_keep_their_sign(kind: tuple[int, str], unsigned: bool, data: st.DataObject) -> None:
    bits = 8 * kind[0]
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = data.draw(st.lists(st.none() | st.integers(low, high), max_size=12))
    raw = [None if v is None else v.to_bytes(kind[0], "little", signed=not unsigned) for v in values]
    assert decode(kind[1] + (" unsigned" if unsigned else ""), raw) == values


@settings(deadline=None)
@given(st.integers(1, 65), st.integers(0, 30), st.data())
def test_decimals_of_any_precision_are_exact(precision: int, scale: int, data: st.DataObject) -> None:
    scale = min(scale, precision)
    scaled = data.draw(st.lists(st.none() | st.integers(-(10**precision) + 1, 10**precision - 1), max_size=8))
    values = [None if v is None else Decimal(f"{v}E-{scale}") for v in scaled]
    found = decode(
        f"decimal({precision},{scale})", [None if v is None else _pack_decimal(v, precision, scale) for v in scaled]
    )
    assert [None if v is None else Decimal(str(v)) for v in found] == values
    assert all(isinstance(v, Decimal if precision <= 38 else str) for v in found if v is not None)


def _pack_decimal(scaled: int, precision: int, scale: int) -> bytes:
    """Nine digits in four bytes, a shorter group at either end.

    The first bit is the sign, negative numbers are inverted.
    """
    digits = f"{abs(scaled):0{precision}d}"
    raw = b"".join(_groups(digits[: precision - scale], digits[precision - scale :]))
    raw = bytes([raw[0] | 0x80]) + raw[1:]
    return raw if scaled >= 0 else bytes(byte ^ 0xFF for byte in raw)


def _groups(whole: str, fraction: str) -> list[bytes]:
    head = len(whole) % 9
    parts = [whole[:head], *(whole[i : i + 9] for i in range(head, len(whole), 9))]
    parts += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    return [int(part).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(part)], "big") for part in parts if part]


@settings(deadline=None)
@given(st.lists(st.none() | st.dates(), max_size=12))
def test_dates_are_exact(values: list[datetime.date | None]) -> None:
    raw = [None if v is None else (v.year << 9 | v.month << 5 | v.day).to_bytes(3, "little") for v in values]
    assert decode("date", raw) == values


@settings(deadline=None)
@given(st.lists(st.none() | st.datetimes(), max_size=12), st.integers(0, 6))
def test_datetimes_are_exact(drawn: list[datetime.datetime | None], digits: int) -> None:
    unit = 10 ** (6 - digits)
    values = [None if v is None else v.replace(microsecond=v.microsecond // unit * unit) for v in drawn]
    assert decode(f"datetime({digits})", [None if v is None else _pack_datetime(v, digits) for v in values]) == values


def _pack_datetime(value: datetime.datetime, digits: int) -> bytes:
    date = (value.year * 13 + value.month) << 5 | value.day
    packed = (date << 17 | value.hour << 12 | value.minute << 6 | value.second) + 0x8000000000
    return packed.to_bytes(5, "big") + _pack_fraction(value.microsecond, digits)


def _pack_fraction(micros: int, digits: int) -> bytes:
    width = (digits + 1) // 2
    return (micros // 100 ** (3 - width)).to_bytes(width, "big") if width else b""


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(1, 2**32 - 1), max_size=12), st.integers(0, 999_999))
def test_timestamps_are_instants(seconds: list[int | None], micros: int) -> None:
    raw = [None if s is None else s.to_bytes(4, "big") + micros.to_bytes(3, "big") for s in seconds]
    utc = EPOCH.replace(tzinfo=datetime.UTC)
    expected = [None if s is None else utc + datetime.timedelta(seconds=s, microseconds=micros) for s in seconds]
    assert decode("timestamp(6)", raw) == expected


@settings(deadline=None)
@given(st.integers(-3_020_399, 3_020_399), st.integers(0, 6), st.integers(0, 999_999))
def test_times_have_the_digits_of_their_column(seconds: int, digits: int, micros: int) -> None:
    width = (digits + 1) // 2
    unit = 10 ** (6 - digits)
    fraction = micros // unit * unit // 100 ** (3 - width) if digits else 0
    size = abs(seconds)
    packed = (size // 3600 << 12 | size // 60 % 60 << 6 | size % 60) << (8 * width) | fraction
    raw = ((0x800000 << (8 * width)) + (packed if seconds >= 0 else -packed)).to_bytes(3 + width, "big")
    sign = "-" if seconds < 0 else ""
    expected = f"{sign}{size // 3600:02d}:{size // 60 % 60:02d}:{size % 60:02d}"
    expected += f".{micros // unit:0{digits}d}" if digits else ""
    assert time_text(raw, digits) == expected


@settings(deadline=None)
@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=20), max_size=12))
def test_text_comes_out_as_it_went_in(values: list[str | None]) -> None:
    assert decode("varchar(100)", [None if v is None else v.encode() for v in values], "utf8mb4") == values


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20), max_size=12))
def test_single_byte_text_is_mapped_byte_by_byte(values: list[bytes | None]) -> None:
    table = charset_named("latin1")
    expected = [None if v is None else "".join(table.table[byte] for byte in v) for v in values]
    assert decode("varchar(100)", values, "latin1") == expected


def test_char_loses_trailing_spaces_and_binary_gets_its_zeros_back() -> None:
    assert decode("char(5)", [b"a  ", b"   ", b" a", None], "utf8mb4") == ["a", "", " a", None]
    assert decode("char(5)", [b"a\xe4 ", None], "latin1") == ["aä", None]
    assert decode("binary(4)", [b"a", b"", b"abcd", None]) == [b"a\0\0\0", b"\0\0\0\0", b"abcd", None]


def test_rare_types_have_their_canonical_form() -> None:
    assert decode("year", [b"\0", b"\1", b"\xff", None]) == [0, 1901, 2155, None]
    assert decode("bit(1)", [b"\0", b"\1", None]) == [False, True, None]
    assert decode("bit(10)", [b"\2\1", None]) == [b"\2\1", None]
    assert decode("enum('a','b')", [b"\0", b"\1", b"\2", None]) == ["", "a", "b", None]
    assert decode("bigint unsigned", [b"\xff" * 8, None]) == [Decimal(2**64 - 1), None]
    assert set_text(b"\5", ("x", "y", "z")) == "x,z"
    assert uuid_text(bytes(range(15))) == "00010203-0405-0607-0809-0a0b0c0d0e00"
    assert inet6_text(bytes(10) + b"\xff\xff\x01\x02\x03\x04") == "::ffff:1.2.3.4"


@pytest.mark.parametrize(
    ("column_type", "raw"),
    [
        ("enum('a','b')", b"\3"), ("set('a')", b"\2"), ("decimal(1,0)", b"\x8a"),
        ("decimal(30,0)", b"\xbf" + b"\xff" * 13),
        ("datetime", b"\x00" * 5), ("datetime(2)", b"\x99\x00\x00\x00\x00\xff"),
        ("timestamp(6)", b"\0\0\0\1\xff\xff\xff"), ("time", b"\x80\x0f\xff"),
        ("varchar(10)", b"\xff\xfe"), ("binary(2)", b"abc"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value_raise_with_the_column(column_type: str, raw: bytes) -> None:
    with pytest.raises(LogFormatError, match="column c"):
        decode(column_type, [raw])
