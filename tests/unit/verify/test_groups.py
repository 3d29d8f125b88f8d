"""Every key is in exactly one group, on both sides the same one, and groups disagree if a row does."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.mysql.rows.value_forms import bucket_numbers
from consume_upstream.upstream_table import Stretch, Sums
from tests.tables import plan, table_of
from vnode_backfill.verify.groups import agreement, asked_of, placement_of, power_of_two, rounds, stretches_of
from vnode_backfill.verify.tasks import combined
from vnode_backfill.words.key import Key, order_key
from vnode_backfill.words.key_range import Bound, KeyRange, SplitPlan, bound_of

ONE = table_of({"id": "int"}, "id")
TWO = table_of({"a": "bigint unsigned", "b": "date"}, "a", "b")
TEXT = table_of({"k": "varchar(9)"}, "k")


def holds(stretch: Stretch, key: Key) -> bool:
    order = order_key(ONE.key_parts, key)
    behind = stretch.after is None or order > order_key(ONE.key_parts, stretch.after)
    return behind and stretch.range.holds(order)


def extended(bounds: list[int], more: list[int]) -> SplitPlan:
    first = plan(ONE, *[(bound,) for bound in bounds])
    if not first.ranges or len(more) < 2:
        return first
    above = [(bound_of(ONE.key_parts, (bounds[-1] + 1 + number,)), 1) for number in more]
    return first.extend(tuple(above))


numbers = st.lists(st.integers(-20, 20), unique=True, max_size=6).map(sorted)


@settings(deadline=None)
@given(numbers, st.lists(st.integers(0, 9), unique=True, max_size=4).map(sorted))
def test_key_is_in_the_stretch_that_the_server_would_read_it_from(bounds: list[int], more: list[int]) -> None:
    stretches = stretches_of(extended(bounds, more))
    keys = list(range(-25, 40))
    groups = placement_of(ONE, stretches, 0).groups(pa.table({"id": pa.array(keys, pa.int32())}), None)
    for key, group in zip(keys, groups, strict=True):
        assert [number for number, stretch in enumerate(stretches) if holds(stretch, (key,))] == [group]


def test_key_of_two_columns_is_placed_by_both() -> None:
    stretches = [
        Stretch(KeyRange(None, Bound((5, _day(3)), b""), closed=True)),
        Stretch(KeyRange(None, None), (5, _day(3))),
    ]
    rows = pa.table({"a": pa.array([5, 5, 4, 6], pa.decimal128(20, 0)), "b": pa.array([3, 4, 9, 0], pa.date32())})
    assert placement_of(TWO, stretches, 0).groups(rows, None).tolist() == [0, 1, 0, 1]


def _day(number: int) -> date:
    return date(1970, 1, 1 + number)


def test_key_under_a_collation_is_placed_by_its_bytes() -> None:
    placement = placement_of(TEXT, [Stretch(KeyRange(None, None))], 64 * 1024)
    forms = pa.array([b"1:a", b"1:A", b"1:a"], pa.binary())
    groups = placement.groups(pa.table({"k": ["a", "A", "a"]}), bucket_numbers(forms, placement.buckets))
    assert placement.buckets == 1024
    assert groups[0] == groups[2]
    assert groups[0] != groups[1]


def sums(*told: tuple[int, int, int]) -> Sums:
    return Sums(
        *(np.array(column, kind) for column, kind in zip(zip(*told, strict=True), ("i8", "i8", "u8"), strict=True))
    )


def test_groups_that_agree_are_counted_and_the_others_named() -> None:
    source = sums((0, 10, 7), (1, 5, 9), (2, 1, 1))
    target = sums((0, 10, 7), (1, 5, 8), (3, 4, 4))
    found = agreement(source, target)
    assert (found.rows, found.groups.tolist(), found.sizes.tolist()) == (10, [1, 2, 3], [5, 1, 4])


def test_row_that_is_there_twice_changes_the_sum() -> None:
    once = sums((0, 1, 2**63))
    twice = combined([once, once])
    assert (twice.rows.tolist(), twice.sums.tolist()) == ([2], [0])
    assert agreement(once, twice).groups.tolist() == [0]
    assert agreement(combined([once] * 3), once).groups.tolist() == [0]


def test_groups_are_told_in_rounds_of_bounded_size() -> None:
    sizes = np.array([200_000, 90_000, 20_000, 400_000, 1])
    parts = [part.tolist() for part in rounds(np.arange(5), sizes)]
    assert parts == [[0, 1], [2], [3], [4]]


def test_buckets_of_a_range_are_asked_of_that_range_only() -> None:
    stretches = stretches_of(plan(ONE, (1,), (5,), (9,)))
    placement = placement_of(ONE, stretches, 0)
    finer = type(placement)(placement.parts, placement.starts, 4)
    assert asked_of(stretches, finer, np.array([5, 7, 8])) == [(stretches[1], (1, 3)), (stretches[2], (0,))]


def test_number_of_buckets_is_a_power_of_two_within_bounds() -> None:
    assert [power_of_two(count) for count in (0, 1, 2, 3, 1000, 10**9)] == [1, 1, 2, 4, 1024, 65536]
