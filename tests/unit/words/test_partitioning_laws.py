"""The laws of partitioning hold for all keys, plans and assignments, not only for those of the examples."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise, permutations, product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment, moved, reassign, split_evenly
from vnode_backfill.words.key import (
    Key,
    KeyKind,
    KeyPart,
    KeyValue,
    encode_key,
    order_key,
    order_keys,
    vnode_of,
    vnodes_of,
)
from vnode_backfill.words.key_range import bound_of, from_rows, key_from_text, key_to_text, plan_of, to_rows
from vnode_backfill.words.plan import Answer, EstimateRows, NextBound, TableFacts, make_plan, plan_bounds

laws = settings(deadline=None, max_examples=100, derandomize=True)

VALUES: dict[KeyKind, st.SearchStrategy[KeyValue]] = {
    KeyKind.INT: st.integers(-(2**63), 2**63 - 1),
    KeyKind.UINT: st.integers(0, 2**64 - 1),
    KeyKind.DECIMAL: st.decimals(-(10**20), 10**20, places=2),
    KeyKind.TEXT: st.text(st.characters(codec="utf-8"), max_size=8),
    KeyKind.BINARY: st.binary(max_size=6),
    KeyKind.DATE: st.dates(),
    KeyKind.DATETIME: st.datetimes(),
    KeyKind.ENUM: st.integers(0, 65535),
}
COLUMN_TYPES: dict[KeyKind, list[pa.DataType]] = {
    KeyKind.INT: [pa.int64()],
    KeyKind.UINT: [pa.uint64(), pa.decimal128(20, 0)],
    KeyKind.DECIMAL: [pa.decimal128(38, 2)],
    KeyKind.TEXT: [pa.string()],
    KeyKind.BINARY: [pa.binary()],
    KeyKind.DATE: [pa.date32()],
    KeyKind.DATETIME: [pa.timestamp("us")],
    KeyKind.ENUM: [pa.int32(), pa.uint16()],
}
COUNTS = st.integers(1, 32768)
SCALED = [KeyPart(f"k_{kind}", kind, scale=2 if kind is KeyKind.DECIMAL else 0) for kind in KeyKind]


def key_parts(*kinds: KeyKind) -> st.SearchStrategy[tuple[KeyPart, ...]]:
    return st.lists(
        st.sampled_from([part for part in SCALED if not kinds or part.kind in kinds]), min_size=1, max_size=3
    ).map(tuple)


def keys_for(parts: tuple[KeyPart, ...]) -> st.SearchStrategy[Key]:
    return st.tuples(*(VALUES[part.kind] for part in parts))


def column(part: KeyPart, values: list[KeyValue], *, last: bool) -> pa.Array:
    kind = COLUMN_TYPES[part.kind][-1 if last else 0]
    if pa.types.is_decimal(kind) and part.kind is KeyKind.UINT:
        return pa.array([Decimal(str(value)) for value in values], kind)
    return pa.array(values, kind)


def columns_of(parts: tuple[KeyPart, ...], keys: list[Key], *, last: bool = False) -> list[pa.Array]:
    return [column(part, [key[index] for key in keys], last=last) for index, part in enumerate(parts)]


def weights_of(parts: tuple[KeyPart, ...], key: Key) -> list[bytes | None]:
    """Replaces the server's collation: weights that sort by code point."""
    return [str(value).encode() if part.kind is KeyKind.TEXT else None for part, value in zip(parts, key, strict=True)]


@laws
@given(st.data(), key_parts(), COUNTS, st.booleans())
def test_vnodes_of_a_batch_are_the_vnodes_of_its_keys(
    data: st.DataObject, parts: tuple[KeyPart, ...], count: int, last: bool
) -> None:
    keys = data.draw(st.lists(keys_for(parts), max_size=5))
    expected = [vnode_of(encode_key(parts, key), count) for key in keys]
    assert vnodes_of(parts, columns_of(parts, keys, last=last), count).tolist() == expected
    assert all(0 <= vnode < count for vnode in expected)


@laws
@given(st.data(), key_parts())
def test_different_keys_have_different_encodings(data: st.DataObject, parts: tuple[KeyPart, ...]) -> None:
    keys = data.draw(st.lists(keys_for(parts), max_size=6))
    assert len({encode_key(parts, key) for key in keys}) == len(set(keys))


@laws
@given(st.data(), key_parts())
def test_orders_sort_like_the_keys(data: st.DataObject, parts: tuple[KeyPart, ...]) -> None:
    keys = data.draw(st.lists(keys_for(parts), max_size=6, unique=True))
    placed = sorted(keys, key=lambda key: order_key(parts, key, weights_of(parts, key)))
    # Python compares text by code point, which is what UTF-8 bytes, the weights of this test, sort by.
    assert placed == sorted(keys)


@laws
@given(st.data(), key_parts(*(kind for kind in KeyKind if kind is not KeyKind.TEXT)))
def test_orders_of_a_batch_are_the_orders_of_its_keys(data: st.DataObject, parts: tuple[KeyPart, ...]) -> None:
    keys = data.draw(st.lists(keys_for(parts), max_size=5))
    assert order_keys(parts, columns_of(parts, keys)) == [order_key(parts, key) for key in keys]


@laws
@given(st.data(), key_parts(), COUNTS)
def test_every_key_is_in_one_range_and_one_vnode(data: st.DataObject, parts: tuple[KeyPart, ...], count: int) -> None:
    keys = data.draw(st.lists(keys_for(parts), min_size=2, max_size=8, unique=True))
    inner = data.draw(st.lists(st.sampled_from(keys), min_size=2, max_size=6, unique=True))
    ends = sorted(bound_of(parts, key, weights_of(parts, key)) for key in inner)
    plan = plan_of(parts, tuple((end, 1) for end in ends), count)
    orders = [order_key(parts, key, weights_of(parts, key)) for key in keys]
    weights = [
        pa.array([weights_of(parts, key)[index] for key in keys], pa.binary()) if part.kind is KeyKind.TEXT else None
        for index, part in enumerate(parts)
    ]
    positions, vnodes = plan.vnodes_of(columns_of(parts, keys), weights)
    for key, order, position, vnode in zip(keys, orders, positions.tolist(), vnodes.tolist(), strict=True):
        holding = [index for index, each in enumerate(plan.ranges) if each.range.holds(order)]
        assert len(holding) == (ends[0].order <= order <= ends[-1].order)
        assert position == (holding[0] if holding else -1)
        assert vnode == vnode_of(encode_key(parts, ends[position].key if holding else key), count)


@laws
@given(st.data(), key_parts())
def test_stored_plan_is_the_plan(data: st.DataObject, parts: tuple[KeyPart, ...]) -> None:
    keys = data.draw(st.lists(keys_for(parts), min_size=2, max_size=6, unique=True))
    ends = sorted(bound_of(parts, key, weights_of(parts, key)) for key in keys)
    plan = plan_of(parts, tuple((end, 1) for end in ends), 256)
    back = from_rows(parts, 256, to_rows(plan))
    assert back == plan
    assert [each.range.low and each.range.low.key for each in back.ranges] == [end.key for end in ends[:-1]]


@laws
@given(key_parts().flatmap(keys_for))
def test_stored_key_is_the_key(key: Key) -> None:
    assert key_from_text(key_to_text(key)) == key


@laws
@given(
    st.sets(st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50), max_size=60),
    st.integers(1, 20),
    st.integers(0, 10_000),
    st.integers(),
    st.sampled_from(["truth", "noise", "anything"]),
)
def test_planned_ranges_hold_each_row_once_whatever_the_estimates(
    values: set[int], target: int, hint: int, seed: int, estimates: str
) -> None:
    parts = (KeyPart("id", KeyKind.INT),)
    bounds = [bound_of(parts, (value,)) for value in sorted(values)]
    chance = random.Random(seed)
    ends = (bounds[0], bounds[-1]) if bounds else (None, None)
    planner = plan_bounds(TableFacts(parts, ends[0], ends[1], hint, 100), target)
    answer: Answer = None
    for _ in range(5_000):
        try:
            question = planner.send(answer)
        except StopIteration as done:
            plan = make_plan(parts, done.value, 256)
            break
        if isinstance(question, EstimateRows):
            truths = [bisect_left(bounds, high) - bisect_left(bounds, low) for low, high in pairwise(question.bounds)]
            answer = tuple(
                {"truth": truth, "noise": int(truth * chance.uniform(0.1, 10)), "anything": chance.randrange(100)}[
                    estimates
                ]
                for truth in truths
            )
        else:
            assert isinstance(question, NextBound)
            position = bisect_right(bounds, question.after) + question.rows - 1
            answer = bounds[position] if position < len(bounds) else None
    else:
        pytest.fail("the planner did not come to an end")
    held = Counter(planned.ordinal for bound in bounds if (planned := plan.find(bound.order)) is not None)
    assert held.total() == len(values)
    assert [before.range.high for before in plan.ranges[:-1]] == [after.range.low for after in plan.ranges[1:]]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_ranges_spread_evenly_over_vnodes(seed: int) -> None:
    parts = (KeyPart("id", KeyKind.INT),)
    step = random.Random(seed).randrange(5_000, 50_000)
    bounds = tuple((bound_of(parts, (seed + number * step,)), step) for number in range(5_001))
    plan = plan_of(parts, bounds, 256)
    sizes = [len(plan.of_vnode(vnode)) for vnode in range(256)]
    assert sum(sizes) == 5_000
    assert max(sizes) <= 2 * sum(sizes) / len(sizes)


@laws
@given(st.sets(st.integers(0, 299)), st.sets(st.integers(0, 299)))
def test_bitmaps_are_sets(left: set[int], right: set[int]) -> None:
    one, other = VnodeBitmap.of(left, 300), VnodeBitmap.of(right, 300)
    assert list(one) == sorted(left)
    assert len(one) == len(left)
    assert set(one | other) == left | right
    assert set(one & other) == left & right
    assert set(one - other) == left - right
    assert VnodeBitmap.parse(str(one), 300) == one


def assignments(max_count: int, max_workers: int) -> st.SearchStrategy[tuple[VnodeBitmap, ...]]:
    """Any complete assignment, with workers that may have nothing."""

    def of(owners: list[int]) -> tuple[VnodeBitmap, ...]:
        count = len(owners)
        workers = range(max(owners) + 1)
        return tuple(VnodeBitmap.of([v for v in range(count) if owners[v] == worker], count) for worker in workers)

    return st.lists(st.integers(0, max_workers - 1), min_size=1, max_size=max_count).map(of)


@laws
@given(assignments(120, 12), st.data())
def test_rescale_keeps_the_assignment_complete_and_even(old: tuple[VnodeBitmap, ...], data: st.DataObject) -> None:
    count = old[0].vnode_count
    workers = data.draw(st.integers(1, min(count, 15)))
    new = reassign(old, workers)
    check_assignment(new, count)
    sizes = [len(bitmap) for bitmap in new]
    assert len(new) == workers
    assert max(sizes) - min(sizes) <= 1
    assert reassign(new, workers) == new


def fewest_moves(old: tuple[VnodeBitmap, ...], workers: int) -> int:
    """By trying every even assignment and every way in which its workers may continue the old ones."""
    count = old[0].vnode_count
    smallest, slots = count // workers, max(len(old), workers)
    fewest = count
    for owners in product(range(workers), repeat=count):
        sizes = Counter(owners)
        if any(not smallest <= sizes[worker] <= smallest + (count % workers > 0) for worker in range(workers)):
            continue
        for named in permutations(range(slots), workers):
            kept = sum(vnode in old[named[owners[vnode]]] for vnode in range(count) if named[owners[vnode]] < len(old))
            fewest = min(fewest, count - kept)
    return fewest


@settings(deadline=None, max_examples=40, derandomize=True)
@given(assignments(5, 4), st.data())
def test_rescale_moves_no_more_vnodes_than_needed(old: tuple[VnodeBitmap, ...], data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, min(old[0].vnode_count, 3)))
    assert len(moved(old, reassign(old, workers))) == fewest_moves(old, workers)


@laws
@given(assignments(200, 20), st.data())
def test_rescale_moves_what_does_not_fit_and_nothing_else(old: tuple[VnodeBitmap, ...], data: st.DataObject) -> None:
    count = old[0].vnode_count
    workers = data.draw(st.integers(1, min(count, 25)))
    size, larger = divmod(count, workers)
    quotas = [size + 1] * larger + [size] * (workers - larger)
    largest = sorted(map(len, old), reverse=True)
    kept = sum(min(had, quota) for had, quota in zip(largest, quotas, strict=False))
    assert len(moved(old, reassign(old, workers))) == count - kept


@pytest.mark.parametrize("chain", [(4, 8, 2, 16, 3), (1, 256, 1), (7, 6, 5, 4)])
def test_chain_of_rescales_never_loses_a_vnode(chain: tuple[int, ...]) -> None:
    assignment = split_evenly(256, chain[0])
    for before, workers in pairwise(chain):
        assert len(assignment) == before
        assignment = reassign(assignment, workers)
        check_assignment(assignment, 256)


def test_instant_is_one_key_whatever_zone_it_is_written_in() -> None:
    part = (KeyPart("at", KeyKind.DATETIME),)
    naive, aware = datetime(2024, 3, 31, 1, 30), datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    assert encode_key(part, (naive,)) == encode_key(part, (aware,))
    assert order_key(part, (naive,)) == order_key(part, (aware,))
