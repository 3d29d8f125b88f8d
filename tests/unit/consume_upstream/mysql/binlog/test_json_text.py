"""MySQL's binary JSON as the server prints it; the numbers and texts were printed by a server."""

from __future__ import annotations

import random

import pytest

from consume_upstream.mysql.binlog.json_text import decimal_text, double_text, json_text, quoted
from vnode_backfill.words.errors import LogFormatError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (1e14, "100000000000000.0"), (1e15, "1e15"),
        (123456789012345.0, "123456789012345.0"),
        (1234567890123456.8, "1234567890123456.8"), (1e-14, "0.00000000000001"), (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"), (1.5e300, "1.5e300"), (5e-324, "5e-324"),
        (-123456.789, "-123456.789"), (0.1, "0.1"), (100.0, "100.0"),
    ],
)  # fmt: skip
def test_double_is_printed_as_the_server_does(value: float, text: str) -> None:
    assert double_text(value) == text


def test_text_is_escaped_as_the_server_does() -> None:
    assert quoted('a"\\/\b\f\n\r\t\x01\x1f\x7fä😀') == '"a\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7fä😀"'


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("", "null"), ("0400", "null"), ("0401", "true"), ("0402", "false"), ("05ffff", "-1"), ("06ffff", "65535"),
        ("0a" + "ff" * 8, "18446744073709551615"), ("0c03616263", '"abc"'), ("0000000400", "{}"), ("0200000400", "[]"),
        ("0002001900" + "12000100" + "13000200" + "050100" + "0c1500" + "61" + "6262" + "03780a79",
         '{"a": 1, "bb": "x\\ny"}'),
        ("020200" + "0a00" + "040000" + "05ffff", "[null, -1]"),
        ("0f0c08" + "040302035a3ab319", '"2024-02-29 01:02:03.131075"'),
        ("0ffc02cafe", '"base64:type252:yv4="'),
    ],
)  # fmt: skip
def test_stored_value_is_printed(stored: str, text: str) -> None:
    if stored.startswith("0f0c"):
        stored = (
            "0f0c08"
            + ((((2024 * 13 + 2) << 5 | 29) << 17 | 1 << 12 | 2 << 6 | 3) << 24 | 131075).to_bytes(8, "little").hex()
        )
    assert json_text(bytes.fromhex(stored)) == text


@pytest.mark.parametrize(
    ("data", "precision", "scale", "text"),
    [
        ("875bcd1500", 10, 1, "123456789.0"), ("7ef204c72dfb2d", 14, 4, "-1234567890.1234"),
        ("8000000000", 10, 2, "0.00"), ("7fff", 3, 1, "0.0"),
    ],
)  # fmt: skip
def test_decimal_is_printed_with_its_scale(data: str, precision: int, scale: int, text: str) -> None:
    raw = bytes.fromhex(data)
    assert decimal_text(raw, precision, scale) == text


def test_damaged_json_raises_and_never_hangs() -> None:
    chance = random.Random(3)
    good = bytes.fromhex("0002001900" + "12000100" + "13000200" + "050100" + "0c1500" + "61" + "6262" + "03780a79")
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(chance.choice((1, 2, 4))):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        bad = bad[: chance.randrange(len(bad) + 1)] if chance.random() < 0.3 else bad
        try:
            json_text(bytes(bad))
        except LogFormatError:
            continue


def test_json_nested_without_end_is_refused() -> None:
    data = b""
    for _ in range(200):
        inner = b"\x02" + (1).to_bytes(2, "little") + (7 + len(data[1:])).to_bytes(2, "little") + (data[:1] or b"\x04")
        data = inner + (7).to_bytes(2, "little") + data[1:] if data else inner + b"\0\0"
    with pytest.raises(LogFormatError, match="nested too deeply"):
        json_text(data)
