"""A key is in one range of the plan at most, and the plan survives being stored."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest

from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key import Key, KeyKind, KeyPart, VnodeId, encode_key, order_key, vnode_of
from vnode_backfill.words.key_range import (
    Bound,
    Bounds,
    KeyRange,
    PlannedRange,
    SplitPlan,
    bound_of,
    from_rows,
    key_from_text,
    key_to_text,
    plan_of,
    to_rows,
)

ID = (KeyPart("id", KeyKind.INT),)
PAIR = (KeyPart("tenant", KeyKind.UINT), KeyPart("id", KeyKind.INT))
NAME = (KeyPart("name", KeyKind.TEXT),)


def at(value: int) -> Bound:
    return bound_of(ID, (value,))


def bounds(*values: int) -> Bounds:
    return (*((at(value), high - value) for value, high in pairwise(values)), (at(values[-1]), 0))


def plan(*values: int) -> SplitPlan:
    return plan_of(ID, bounds(*values), 256)


def planned(ordinal: int, low: int, high: int, *, closed: bool = False, generation: int = 0) -> PlannedRange:
    return PlannedRange(ordinal, KeyRange(at(low), at(high), closed=closed), VnodeId(0), 1, generation)


def test_range_holds_its_low_bound_and_its_high_bound_only_if_closed() -> None:
    half_open, closed = KeyRange(at(10), at(20)), KeyRange(at(10), at(20), closed=True)
    assert [half_open.holds(at(value).order) for value in (9, 10, 19, 20, 21)] == [False, True, True, False, False]
    assert [closed.holds(at(value).order) for value in (9, 10, 19, 20, 21)] == [False, True, True, True, False]


def test_unbounded_range_holds_everything_on_its_open_side() -> None:
    assert KeyRange(None, None).holds(at(-(2**63)).order)
    assert KeyRange(None, at(0)).holds(at(-1).order)
    assert not KeyRange(None, at(0)).holds(at(0).order)
    assert KeyRange(at(0), None).holds(at(2**63 - 1).order)


def test_bounds_compare_by_the_servers_order_not_by_the_key() -> None:
    small, large = bound_of(NAME, ("B",), [b"a"]), bound_of(NAME, ("a",), [b"b"])
    assert small < large
    assert bound_of(NAME, ("ä",), [b"a"]) == small


def test_plan_finds_the_range_of_a_key() -> None:
    split = plan(10, 20, 30)
    found = [split.find(at(value).order) for value in (9, 10, 19, 20, 30, 31)]
    assert [None if each is None else each.ordinal for each in found] == [None, 0, 0, 1, 1, None]
    assert split.find_many([pa.array([9, 10, 19, 20, 30, 31])]).tolist() == [-1, 0, 0, 1, 1, -1]


def test_key_inside_the_plan_has_its_ranges_vnode_and_outside_its_own() -> None:
    split = plan(10, 20, 30)
    own = [vnode_of(encode_key(ID, (value,)), 256) for value in (9, 10, 20, 31)]
    positions, vnodes = split.vnodes_of([pa.array([9, 19, 30, 31])])
    assert positions.tolist() == [-1, 0, 1, -1]
    assert vnodes.tolist() == own


def test_plan_without_ranges_hashes_every_key_by_itself() -> None:
    split = plan_of(ID, (), 256)
    positions, vnodes = split.vnodes_of([pa.array([1, 2])])
    assert positions.tolist() == [-1, -1]
    assert vnodes.tolist() == [vnode_of(encode_key(ID, (value,)), 256) for value in (1, 2)]
    assert split.find(at(1).order) is None
    assert split.generation == 0


def test_composite_numbers_are_found_alike_one_by_one_and_together() -> None:
    keys: list[Key] = [(1, -5), (1, 256), (2, 0), (300, 1), (300, 2)]
    ends = tuple((bound_of(PAIR, key), 1) for key in keys)
    split = plan_of(PAIR, ends, 256)
    probes: list[Key] = [(1, -6), (1, -5), (1, 255), (1, 256), (2, -1), (2, 0), (299, 9), (300, 2), (300, 3), (0, 0)]
    columns = [pa.array([key[0] for key in probes], pa.uint64()), pa.array([key[1] for key in probes])]
    one_by_one = [split.find(order_key(PAIR, probe)) for probe in probes]
    assert split.find_many(columns).tolist() == [-1 if each is None else each.ordinal for each in one_by_one]
    assert split.find_many(columns).tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, -1, -1]


def test_text_is_found_by_its_weights() -> None:
    ends = tuple((bound_of(NAME, (name,), [name.lower().encode()]), 1) for name in ("B", "d", "F"))
    split = plan_of(NAME, ends, 256)
    names, weights = pa.array(["a", "b", "D", "e", "f", "g"]), pa.array([b"a", b"b", b"d", b"e", b"f", b"g"])
    assert split.find_many([names], [weights]).tolist() == [-1, 0, 1, 1, 1, -1]


def test_ranges_of_a_vnode_come_in_key_order_and_together_are_the_plan() -> None:
    split = plan_of(ID, bounds(*range(0, 1001, 10)), 7)
    of_vnodes = [split.of_vnode(vnode) for vnode in range(7)]
    assert all(list(held) == sorted(held, key=lambda each: each.ordinal) for held in of_vnodes)
    assert sorted(each.ordinal for held in of_vnodes for each in held) == list(range(100))
    assert plan(0, 1).of_vnode(255 - plan(0, 1).ranges[0].vnode) == ()


def test_extension_is_a_new_generation_with_new_ordinals() -> None:
    split = plan(10, 20, 30).extend(bounds(0, 5, 10), bounds(40, 50))
    assert [(each.ordinal, each.generation) for each in split.ranges] == [(2, 1), (3, 1), (0, 0), (1, 0), (4, 1)]
    assert [each.range.closed for each in split.ranges] == [False, False, False, True, True]
    assert split.find_many([pa.array([0, 9, 10, 30, 35, 40, 50, 51])]).tolist() == [0, 1, 2, 3, -1, 4, 4, -1]
    assert split.generation == 1


def test_plan_at_a_generation_is_the_plan_before_the_later_ones() -> None:
    first = plan(10, 20)
    second = first.extend(bounds(30, 40))
    third = second.extend(bounds(50, 60))
    assert third.at(0) == first
    assert third.at(1) == second
    assert third.at(2) is third
    assert third.at(7) is third


def test_empty_plan_is_extended_too() -> None:
    split = plan_of(ID, (), 256).extend((), bounds(1, 2))
    assert [(each.ordinal, each.generation) for each in split.ranges] == [(0, 1)]
    assert split.at(0).ranges == ()


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (
            [planned(0, 1, 5), planned(1, 4, 9)],
            r"overlap or are unsorted: #0 \[\(1,\), \(5,\)\) and #1 \[\(4,\), \(9,\)\)",
        ),
        ([planned(0, 5, 9), planned(1, 1, 5)], "overlap or are unsorted"),
        ([planned(0, 1, 5, closed=True), planned(1, 5, 9)], "overlap or are unsorted"),
        ([planned(0, 1, 5), planned(1, 6, 9)], "leaves a gap"),
        ([planned(0, 1, 1)], "is empty"),
        ([planned(0, 2, 1)], "is empty"),
        ([planned(0, 1, 5), planned(0, 5, 9)], "used twice"),
        ([PlannedRange(0, KeyRange(at(1), None), VnodeId(0), 1)], "open-ended"),
        ([PlannedRange(0, KeyRange(at(1), at(2)), VnodeId(256), 1)], "vnode 256 of 256"),
        ([PlannedRange(0, KeyRange(Bound((1,), b"1"), at(2)), VnodeId(0), 1)], "is empty|8 bytes"),
    ],
)
def test_plan_that_breaks_a_law_cannot_be_made(ranges: list[PlannedRange], reason: str) -> None:
    with pytest.raises(LawBrokenError, match=reason):
        SplitPlan(ID, 256, tuple(ranges))


def test_gap_between_generations_is_allowed() -> None:
    split = SplitPlan(ID, 256, (planned(0, 1, 5, closed=True), planned(1, 7, 9, closed=True, generation=1)))
    assert split.find(at(6).order) is None


VALUES: list[Key] = [
    (-(2**63),),
    (2**64 - 1, 0),
    (Decimal("-1.50"), Decimal("9" * 65)),
    ("Zürich \u0000 \U0001f600 \"'\\", ""),
    (b"", b"\x00\xff"),
    (date(1, 1, 1), date(9999, 12, 31)),
    (datetime(2024, 2, 29, 12, 34, 56, 789012), datetime(1000, 1, 1)),
    (datetime(2024, 2, 29, 12, 34, 56, 1, tzinfo=UTC),),
    (1, "a", b"b", Decimal("0.0"), date(2024, 1, 1), datetime(2024, 1, 1)),
]


@pytest.mark.parametrize("key", VALUES)
def test_stored_key_comes_back_with_its_types(key: Key) -> None:
    text = key_to_text(key)
    back = key_from_text(text)
    assert back == key
    assert [(type(value), str(value)) for value in back] == [(type(value), str(value)) for value in key]
    assert text.isascii()


@pytest.mark.parametrize("text", ["", "[", "[1]", '[["int", "x"]]', '[["money", "1"]]', '[["decimal", "x"]]', "7"])
def test_text_that_is_not_a_stored_key_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        key_from_text(text)


def test_stored_plan_comes_back_whole_from_rows_in_any_order() -> None:
    split = plan(10, 20, 30).extend(bounds(0, 10), bounds(40, 50))
    back = from_rows(ID, 256, reversed(to_rows(split)))
    assert back == split
    assert [each.range.low and each.range.low.key for each in back.ranges] == [(0,), (10,), (20,), (40,)]


def test_stored_plan_of_another_vnode_count_is_refused() -> None:
    rows = to_rows(plan(10, 20))
    with pytest.raises(StateError, match="hashes to vnode"):
        from_rows(ID, 257, rows)
    with pytest.raises(StateError, match="range 0 of the stored plan is in vnode 300"):
        from_rows(ID, 256, [replace(rows[0], vnode=300)])


def test_plan_travels_to_another_process() -> None:
    split = plan(10, 20, 30)
    there = pickle.loads(pickle.dumps(split))
    assert there == split
    assert there.find_many([pa.array([15])]).tolist() == [0]
