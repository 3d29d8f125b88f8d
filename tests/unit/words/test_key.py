"""A key has one encoding, one vnode and one place in the database's order."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from vnode_backfill.words.errors import BitmapError, KeyOrderError
from vnode_backfill.words.key import (
    MAX_VNODES,
    Key,
    KeyKind,
    KeyPart,
    KeyValue,
    check_vnode_count,
    encode_key,
    fixed_orders,
    keys_of,
    order_key,
    order_keys,
    vnode_of,
    vnodes_of,
)

INT = KeyPart("i", KeyKind.INT)
UINT = KeyPart("u", KeyKind.UINT)
MONEY = KeyPart("m", KeyKind.DECIMAL, scale=2)
WHOLE = KeyPart("w", KeyKind.DECIMAL)
WIDEST = KeyPart("x", KeyKind.DECIMAL, scale=30)
TEXT = KeyPart("t", KeyKind.TEXT)
BINARY = KeyPart("b", KeyKind.BINARY)
DATE = KeyPart("d", KeyKind.DATE)
DATETIME = KeyPart("s", KeyKind.DATETIME)
ENUM = KeyPart("e", KeyKind.ENUM)

LEAP_NOON = datetime(2024, 2, 29, 12, 34, 56, 789012)
LEAP_NOON_BERLIN_SUMMER = datetime(2024, 2, 29, 14, 34, 56, 789012, tzinfo=timezone(timedelta(hours=2)))

# Stored with every job that runs: if one of these changes, rows of running jobs change their vnode.
GOLDEN: list[tuple[tuple[KeyPart, ...], Key, str, int, int]] = [
    ((INT,), (0,), "010000000000000000", 105, 29801),
    ((INT,), (1,), "010100000000000000", 72, 25928),
    ((INT,), (-1,), "01ffffffffffffffff", 199, 18631),
    ((INT,), (-(2**63),), "010000000000000080", 137, 19337),
    ((INT,), (2**63 - 1,), "01ffffffffffffff7f", 56, 26936),
    ((UINT,), (1,), "020100000000000000", 81, 14161),
    ((UINT,), (2**64 - 1,), "02ffffffffffffffff", 254, 13822),
    ((MONEY,), (Decimal("-12.34"),), "0302022efb", 43, 10795),
    ((WHOLE,), (Decimal(128),), "0300028000", 159, 10143),
    (
        (WIDEST,),
        (Decimal("9" * 35 + "." + "9" * 30),),
        "031e1cffffffffffffffff0936257aef45394e46ef8b8a90c37f1c2716f300",
        27,
        13083,
    ),
    ((TEXT,), ("Zürich",), "04070000005ac3bc72696368", 244, 1268),
    ((TEXT,), ("",), "0400000000", 201, 23753),
    ((BINARY,), (b"\x00\xff",), "050200000000ff", 67, 17731),
    ((DATE,), (date(2024, 2, 29),), "06464d000000000000", 246, 26614),
    ((DATE,), (date(1969, 12, 31),), "06ffffffffffffffff", 57, 3129),
    ((DATETIME,), (LEAP_NOON,), "071466aa7c84120600", 129, 22145),
    ((DATETIME,), (LEAP_NOON_BERLIN_SUMMER,), "071466aa7c84120600", 129, 22145),
    ((ENUM,), (3,), "080300000000000000", 8, 2824),
    ((INT, TEXT, DATE), (42, "a", date(1970, 1, 2)), "012a00000000000000040100000061060100000000000000", 125, 19325),
    ((INT, UINT), (1, 23), "010100000000000000021700000000000000", 94, 31582),
]


@pytest.mark.parametrize(("parts", "key", "encoded", "of_256", "of_32768"), GOLDEN)
def test_keys_keep_their_stored_encoding_and_vnode(
    parts: tuple[KeyPart, ...], key: Key, encoded: str, of_256: int, of_32768: int
) -> None:
    assert encode_key(parts, key).hex() == encoded
    assert vnode_of(bytes.fromhex(encoded), 256) == of_256
    assert vnode_of(bytes.fromhex(encoded), 32768) == of_32768


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (INT, None),
        (INT, True),
        (INT, "1"),
        (INT, 1.0),
        (INT, Decimal(1)),
        (INT, 2**63),
        (UINT, -1),
        (UINT, 2**64),
        (MONEY, 1),
        (MONEY, Decimal("NaN")),
        (MONEY, Decimal("Infinity")),
        (MONEY, Decimal("0.001")),
        (WHOLE, Decimal(10) ** 65),
        (TEXT, b"a"),
        (BINARY, "a"),
        (DATE, datetime(2024, 1, 1)),
        (DATETIME, date(2024, 1, 1)),
        (ENUM, "label"),
        (ENUM, 65536),
    ],
)
def test_value_of_another_kind_has_no_encoding_and_no_order(part: KeyPart, value: KeyValue) -> None:
    with pytest.raises(KeyOrderError, match=f"key column {part.name}"):
        encode_key([part], (value,))
    with pytest.raises(KeyOrderError, match=f"key column {part.name}"):
        order_key([part], (value,), [b"weight"])


def test_text_that_is_not_unicode_has_no_encoding() -> None:
    with pytest.raises(KeyOrderError, match="key column t"):
        encode_key([TEXT], ("\ud800",))


def test_number_of_values_must_be_number_of_key_columns() -> None:
    with pytest.raises(KeyOrderError, match="2 values for 1 key columns"):
        encode_key([INT], (1, 2))
    with pytest.raises(KeyOrderError, match="2 columns were given for 1"):
        vnodes_of([INT], [pa.array([1]), pa.array([1])], 256)


def test_decimal_is_encoded_by_value_not_by_how_it_is_written() -> None:
    same = ["1.5", "1.50", "15E-1", "1.500000"]
    assert len({encode_key([MONEY], (Decimal(text),)) for text in same}) == 1
    assert encode_key([MONEY], (Decimal("-0.00"),)) == encode_key([MONEY], (Decimal(0),))


@pytest.mark.parametrize("count", [0, -1, MAX_VNODES + 1])
def test_vnode_count_outside_its_limits_is_refused(count: int) -> None:
    with pytest.raises(BitmapError, match="not between 1 and 32768"):
        check_vnode_count(count)


COLUMNS: list[tuple[KeyPart, pa.Array, list[KeyValue]]] = [
    (INT, pa.array([-128, 0, 127], pa.int8()), [-128, 0, 127]),
    (INT, pa.array([-32768, 32767], pa.int16()), [-32768, 32767]),
    (INT, pa.array([-(2**31), 2**31 - 1], pa.int32()), [-(2**31), 2**31 - 1]),
    (INT, pa.array([-(2**63), 2**63 - 1], pa.int64()), [-(2**63), 2**63 - 1]),
    (UINT, pa.array([0, 2**64 - 1], pa.uint64()), [0, 2**64 - 1]),
    (UINT, pa.array([7, 0, 2**32 - 1], pa.int64()), [7, 0, 2**32 - 1]),
    (UINT, pa.array([Decimal(2**64 - 1), Decimal(3)], pa.decimal128(20, 0)), [2**64 - 1, 3]),
    (UINT, pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal128(20, 0)).slice(1, 1), [2]),
    (UINT, pa.array([], pa.decimal128(20, 0)), []),
    (MONEY, pa.array([Decimal("-1.50"), Decimal("0.07")], pa.decimal128(38, 2)), [Decimal("-1.50"), Decimal("0.07")]),
    (WIDEST, pa.array(["-1.5", "9" * 35]), [Decimal("-1.5"), Decimal("9" * 35)]),
    (BINARY, pa.array([b"", b"\x00", b"ab"]), [b"", b"\x00", b"ab"]),
    (DATE, pa.array([date(1, 1, 1), date(9999, 12, 31)]), [date(1, 1, 1), date(9999, 12, 31)]),
    (DATETIME, pa.array([LEAP_NOON, datetime(1000, 1, 1)], pa.timestamp("us")), [LEAP_NOON, datetime(1000, 1, 1)]),
    (DATETIME, pa.array([LEAP_NOON], pa.timestamp("us", "UTC")), [LEAP_NOON.replace(tzinfo=UTC)]),
    (ENUM, pa.array([0, 65535], pa.int32()), [0, 65535]),
]


@pytest.mark.parametrize(("part", "column", "values"), COLUMNS)
def test_column_of_keys_has_the_vnodes_and_orders_of_its_values(
    part: KeyPart, column: pa.Array, values: list[KeyValue]
) -> None:
    keys: list[Key] = [(value,) for value in values]
    assert keys_of([part], [column]) == keys
    assert vnodes_of([part], [column], 256).tolist() == [vnode_of(encode_key([part], key), 256) for key in keys]
    assert order_keys([part], [column]) == [order_key([part], key) for key in keys]


def test_text_column_is_hashed_by_its_characters_and_ordered_by_its_weights() -> None:
    names = pa.array(["b", "A", "ä"])
    weights = pa.array([b"\x42", b"\x41", b"\x41"])
    assert vnodes_of([TEXT], [names], 256).tolist() == [
        vnode_of(encode_key([TEXT], (name,)), 256) for name in ("b", "A", "ä")
    ]
    first, second, third = order_keys([TEXT], [names], [weights])
    assert second == third < first


def test_text_without_weight_string_is_refused() -> None:
    with pytest.raises(KeyOrderError, match="without the server's weight string"):
        order_key([INT, TEXT], (1, "a"))
    with pytest.raises(KeyOrderError, match="without the server's weight string"):
        order_keys([TEXT], [pa.array(["a"])])


@pytest.mark.parametrize(
    ("part", "column"),
    [
        (INT, pa.array([1, None])),
        (INT, pa.array(["1"])),
        (INT, pa.array([2**63], pa.uint64())),
        (UINT, pa.array([-1])),
        (UINT, pa.array([Decimal(-1)], pa.decimal128(20, 0))),
        (UINT, pa.array([Decimal(2**64)], pa.decimal128(20, 0))),
        (WIDEST, pa.array(["many"])),
        (DATE, pa.array([LEAP_NOON])),
        (DATETIME, pa.array([1], pa.timestamp("s"))),
        (ENUM, pa.array(["label"])),
    ],
)
def test_column_that_cannot_be_a_key_is_refused(part: KeyPart, column: pa.Array) -> None:
    with pytest.raises(KeyOrderError, match=f"key column {part.name}"):
        vnodes_of([part], [column], 256)


def test_integers_of_both_signs_are_hashed_alike_one_by_one_and_together() -> None:
    signed = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    unsigned = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    expected = [vnode_of(encode_key([INT], (int(value),)), 1000) for value in signed]
    assert vnodes_of([INT], [pa.array(signed)], 1000).tolist() == expected
    expected = [vnode_of(encode_key([UINT], (int(value),)), 1000) for value in unsigned]
    assert vnodes_of([UINT], [pa.array(unsigned)], 1000).tolist() == expected


SORTED: list[tuple[tuple[KeyPart, ...], list[Key]]] = [
    ((INT,), [(-(2**63),), (-256,), (-1,), (0,), (255,), (256,), (2**63 - 1,)]),
    ((UINT,), [(0,), (255,), (256,), (2**63,), (2**64 - 1,)]),
    ((MONEY,), [(Decimal("-100.01"),), (Decimal("-100"),), (Decimal("-0.01"),), (Decimal(0),), (Decimal("9.5"),)]),
    ((WHOLE,), [(Decimal("-" + "9" * 65),), (Decimal(-1),), (Decimal("9" * 65),)]),
    ((BINARY,), [(b"",), (b"\x00",), (b"\x00\x00",), (b"\x00\x01",), (b"\x01",), (b"a",), (b"a\x00",), (b"\xff",)]),
    ((DATE,), [(date(1, 1, 1),), (date(1969, 12, 31),), (date(1970, 1, 1),), (date(9999, 12, 31),)]),
    ((DATETIME,), [(datetime(1, 1, 1),), (LEAP_NOON,), (LEAP_NOON + timedelta(microseconds=1),)]),
    ((ENUM,), [(0,), (2,), (10,), (65535,)]),
    ((BINARY, INT), [(b"a", 5), (b"a", 6), (b"a\x00", -9), (b"a\x00\x01", -9), (b"b", -(2**63))]),
    ((INT, BINARY), [(-1, b"z"), (0, b""), (0, b"\x00"), (1, b"")]),
]


@pytest.mark.parametrize(("parts", "keys"), SORTED)
def test_orders_sort_as_the_server_sorts_keys(parts: tuple[KeyPart, ...], keys: list[Key]) -> None:
    orders = [order_key(parts, key) for key in keys]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(keys)


def test_weights_decide_before_the_part_that_follows_text() -> None:
    def order(weight: bytes, number: int) -> bytes:
        return order_key([TEXT, INT], ("ignored", number), [weight])

    assert order(b"a", 9) < order(b"a\x00", 1) < order(b"ab", 0) < order(b"b", -5)


def test_several_numbers_are_searched_as_one_array_in_key_order() -> None:
    columns = [pa.array([0, 0, -1, 256]), pa.array([1, 256, 2**40, 0])]
    found = fixed_orders([INT, UINT], columns)
    assert np.argsort(found).tolist() == [2, 0, 1, 3]
