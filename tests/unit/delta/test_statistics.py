"""Bounds are the values that were written, exactly, or unknown."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from vnode_backfill.delta.files import Value
from vnode_backfill.delta.log.statistics import read_statistics, without_tight_bounds


def bound(kind: str, text: str) -> Value | None:
    (found,) = read_statistics(f'{{"numRecords":1,"minValues":{{"c":{text}}}}}', ["c"], {"c": kind}).low
    return found


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("long", "-9223372036854775808", -(2**63)),
        ("decimal(38,10)", "1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789")),
        ("decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
        ("double", "1", 1.0),
        ("float", "1.1", 1.100000023841858),
        ("string", '"ä\\u2028"', "ä\u2028"),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("timestamp", '"2024-02-29T01:02:03.004Z"', datetime(2024, 2, 29, 1, 2, 3, 4000, UTC)),
        ("timestamp", '"2024-02-29T03:02:03.004+02:00"', datetime(2024, 2, 29, 1, 2, 3, 4000, UTC)),
        ("timestamp_ntz", '"2024-02-29T01:02:03.004"', datetime(2024, 2, 29, 1, 2, 3, 4000)),
        ("boolean", "true", True),
    ],
)  # fmt: skip
def test_a_value_has_the_type_of_its_column(kind: str, text: str, expected: Value) -> None:
    found = bound(kind, text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", '"x"'), ("long", "true"), ("integer", "1.5"), ("double", '"NaN"'), ("date", '"+10000-01-01"'),
        ("timestamp", '"no"'), ("timestamp", '"0001-01-01T00:00:00+02:00"'), ("decimal(5,2)", '"x"'), ("string", "5"),
        ("binary", '"AA=="'), ("", "5"), ("long", "null"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_unknown(kind: str, text: str) -> None:
    assert bound(kind, text) is None


def test_text_that_is_no_statistics_says_nothing() -> None:
    for text in ("{", "{}", '{"minValues":null}'):
        found = read_statistics(text, ["c"], {"c": "long"})
        assert (found.rows, found.low, found.high) == (None, (None,), (None,))


def test_statistics_keep_their_text_when_they_become_wide() -> None:
    text = '{"numRecords":3,"minValues":{"d":1.10,"s":"a\\"}{,"},"maxValues":{},"nullCount":{"d":0}}'
    assert without_tight_bounds(text) == text[:-1] + ',"tightBounds":false}'
    assert without_tight_bounds(without_tight_bounds(text)) == without_tight_bounds(text)


def test_bounds_that_were_tight_are_not_any_more_and_columns_of_that_name_stay() -> None:
    text = ' { "tightBounds" : true , "numRecords" : 3,"minValues":{"tightBounds":true} } '
    found = json.loads(without_tight_bounds(text))
    assert found == {"numRecords": 3, "minValues": {"tightBounds": True}, "tightBounds": False}
    assert without_tight_bounds("{}") == '{"tightBounds":false}'
