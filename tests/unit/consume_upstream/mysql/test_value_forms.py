"""No two rows share a form, whatever their values hold, and a form is the text that the server writes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.mysql.rows.value_forms import bucket_numbers, digests, row_expression, row_forms
from tests.tables import Cell, Row, batch, table_of
from vnode_backfill.words.columns import Column

TEXTS = table_of({"a": "varchar(20)", "b": "varchar(20)", "c": "int"}, "c")


def forms(rows: list[Row]) -> list[bytes]:
    found: list[bytes] = row_forms(TEXTS.columns, batch(TEXTS, rows)).to_pylist()
    return found


texts = st.none() | st.text(alphabet="aN,:0123é", max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts, st.integers(-12, 12)), unique=True, max_size=20))
def test_different_rows_have_different_forms(rows: list[Row]) -> None:
    assert len(set(forms(rows))) == len(rows)


def test_value_moved_to_the_next_column_is_another_row() -> None:
    assert forms([("a,1:b", "", 1), ("a", "b,0:", 1), (None, "N", 1), ("N", None, 1)]) == [
        b"5:a,1:b,0:,1", b"1:a,4:b,0:,1", b"N,1:N,1", b"1:N,N,1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "form"),
    [
        ("tinyint", -128, b"-128"),
        ("bigint unsigned", Decimal(2**64 - 1), b"18446744073709551615"),
        ("decimal(10,2)", Decimal("-0.05"), b"-0.05"),
        ("decimal(10,2)", Decimal("0.00"), b"0.00"),
        ("decimal(38,20)", Decimal("1E-20"), b"0.00000000000000000001"),
        ("decimal(38,0)", Decimal(10**37), b"1" + b"0" * 37),
        ("decimal(65,30)", "1.000000000000000000000000000001", b"1.000000000000000000000000000001"),
        ("double", -0.0, b"8:" + bytes(8)),
        ("double", 1.0, bytes.fromhex("383a000000000000f03f")),
        ("float", 0.5, bytes.fromhex("383a000000000000e03f")),
        ("bit(1)", True, b"1"),
        ("bit(12)", b"\x08\x01", b"2:\x08\x01"),
        ("date", date(999, 1, 2), b"0999-01-02"),
        ("datetime", datetime(1969, 12, 31, 23, 59, 59), b"1969-12-31 23:59:59.000000"),
        ("datetime(6)", datetime(1969, 12, 31, 23, 59, 59, 1), b"1969-12-31 23:59:59.000001"),
        ("timestamp(3)", datetime(2024, 10, 27, 1, 30, 0, 7000, UTC), b"2024-10-27 01:30:00.007000"),
        ("time(3)", "-838:59:58.999", b"-838:59:58.999"),
        ("year", 1901, b"1901"),
        ("varbinary(4)", b"\x00,", b"2:\x00,"),
    ],
)
def test_form_of_a_value(kind: str, value: Cell, form: bytes) -> None:
    column = Column.parse("c", kind, nullable=True)
    rows = pa.table({"c": pa.array([value, None], column.arrow_type)})
    assert row_forms([column], rows).to_pylist() == [form, b"N"]
    assert row_forms([column], rows.slice(1)).to_pylist() == [b"N"]


def test_long_values_are_digested_before_they_are_put_together() -> None:
    for kind in ("longtext", "blob", "json", "point"):
        column = Column.parse("c", kind, nullable=True)
        rows = pa.table({"c": pa.array([b"x".decode() if kind in ("longtext", "json") else b"x"], column.arrow_type)})
        assert row_forms([column], rows).to_pylist() == [
            b"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        ]
        assert "SHA2(" in row_expression([column])


def test_digest_is_the_beginning_of_the_hash_and_a_bucket_the_end_of_the_checksum() -> None:
    some = pa.array([b"a", b""], pa.binary())
    assert digests(some).tolist() == [0xCA978112CA1BBDCA, 0xE3B0C44298FC1C14]
    assert bucket_numbers(some, 16).tolist() == [0xE8B7BE43 & 15, 0]
