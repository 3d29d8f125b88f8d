"""The planner cuts any table into ranges that tile it, with few questions, even if its estimates are wrong."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import pytest

from vnode_backfill.words.errors import KeyOrderError, LawBrokenError
from vnode_backfill.words.key import Key, KeyKind, KeyPart
from vnode_backfill.words.key_range import Bound, Bounds, SplitPlan, bound_of
from vnode_backfill.words.plan import (
    Answer,
    Cuts,
    EstimateRows,
    NextBound,
    Question,
    TableFacts,
    extend_plan,
    make_plan,
    plan_bounds,
    target_rows,
)

INT = (KeyPart("id", KeyKind.INT),)
UINT = (KeyPart("id", KeyKind.UINT),)
PAIR = (KeyPart("tenant", KeyKind.INT), KeyPart("name", KeyKind.BINARY))

Lie = Callable[[int], int]


@dataclass
class ModelTable:
    """A table as a sorted list of bounds that answers the planner's questions; `lie` changes what dives say."""

    parts: tuple[KeyPart, ...]
    bounds: list[Bound]
    lie: Lie = lambda truth: truth
    asked: list[Question] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orders = [bound.order for bound in self.bounds]

    def plan(
        self, target: int, estimated_rows: int | None = None, vnode_count: int = 256, cuts: Cuts | None = None
    ) -> SplitPlan:
        low, high = (self.bounds[0], self.bounds[-1]) if self.bounds else (None, None)
        rows = len(self.bounds) if estimated_rows is None else estimated_rows
        return self.plan_from(TableFacts(self.parts, low, high, rows, 100), target, vnode_count, cuts)

    def plan_from(self, facts: TableFacts, target: int, vnode_count: int = 256, cuts: Cuts | None = None) -> SplitPlan:
        planner = plan_bounds(facts, target, cuts)
        answer: Answer = None
        while True:
            try:
                question = planner.send(answer)
            except StopIteration as done:
                bounds: Bounds = done.value
                return make_plan(self.parts, bounds, vnode_count)
            self.asked.append(question)
            answer = self.answer(question)

    def answer(self, question: Question) -> Answer:
        if isinstance(question, EstimateRows):
            places = [bisect_left(self.orders, bound.order) for bound in question.bounds]
            return tuple(self.lie(high - low) for low, high in pairwise(places))
        assert isinstance(question, NextBound), "a small table is walked"
        position = bisect_right(self.orders, question.after.order) + question.rows - 1
        return self.bounds[position] if position < len(self.bounds) else None

    def rows_of(self, plan: SplitPlan) -> list[int]:
        """How many rows each range really holds."""
        ends = [(each.range.low, each.range.high, each.range.closed) for each in plan.ranges]
        return [
            (bisect_right if closed else bisect_left)(self.orders, high.order) - bisect_left(self.orders, low.order)
            for low, high, closed in ends
            if low is not None and high is not None
        ]


def table_of(parts: tuple[KeyPart, ...], keys: Iterable[Key]) -> ModelTable:
    return ModelTable(parts, [bound_of(parts, key) for key in sorted(keys)])


def integers(values: Iterable[int], parts: tuple[KeyPart, ...] = INT) -> ModelTable:
    return table_of(parts, [(value,) for value in values])


def scattered(count: int, below: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(below), count)


def lognormal(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return sorted({int(chance.lognormvariate(20, 4)) for _ in range(count)})


SHAPES: dict[str, list[int]] = {
    "dense": list(range(1, 8_001)),
    "scattered": scattered(8_000, 10**12, seed=1),
    "few, then far away many": [*range(1, 1001), *range(10**15, 10**15 + 8_000)],
    "one outlier at the top": [*range(1, 8_001), 2**63 - 1],
    "outliers at both limits": [-(2**63), *range(1, 8_001), 2**63 - 1],
    "negative": list(range(-18_000, -10_000)),
    "lognormal": lognormal(8_000, seed=2),
    "islands": [island * 10**12 + row for island in range(10) for row in range(800)],
    "dense, then sparse, then dense": [
        *range(3_000),
        *range(10**6, 3_000 * 10**6, 10**6),
        *range(10**13, 10**13 + 3_000),
    ],
    "time-ordered ids": sorted({second << 22 | row for second in scattered(4_000, 10**6, seed=3) for row in (0, 7)}),
}


@cache
def bounds_of_shape(shape: str) -> list[Bound]:
    return integers(SHAPES[shape]).bounds


def shaped(shape: str, lie: Lie = lambda truth: truth) -> ModelTable:
    return ModelTable(INT, bounds_of_shape(shape), lie)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hint", [0.1, 1, 10])
def test_integers_are_cut_near_the_target_with_few_questions(shape: str, hint: float) -> None:
    table = shaped(shape)
    plan = table.plan(target=100, estimated_rows=int(hint * len(table.bounds)))
    rows = table.rows_of(plan)
    assert sum(rows) == len(table.bounds)
    near = sum(50 <= count <= 200 for count in rows)
    assert near >= 0.95 * len(rows)
    assert len(table.asked) <= 2 * len(rows) + 16


def test_numbers_above_the_signed_limit_are_cut_like_others() -> None:
    table = integers([*range(1000), *range(2**63 - 500, 2**63 + 500), *range(2**64 - 1000, 2**64)], UINT)
    rows = table.rows_of(table.plan(target=100))
    assert max(rows) <= 200
    assert sum(rows) == 3000


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda _: 0, id="always 0"),
        pytest.param(lambda _: 1, id="always 1"),
        pytest.param(lambda _: -7, id="negative"),
        pytest.param(lambda _: 100, id="always the target"),
        pytest.param(lambda _: 200, id="always twice the target"),
        pytest.param(lambda _: 10**30, id="huge"),
        pytest.param(lambda truth: truth * 100, id="a hundred times too many"),
        pytest.param(lambda truth: truth // 100, id="a hundred times too few"),
    ],
)
@pytest.mark.parametrize("shape", ["dense", "one outlier at the top", "islands"])
def test_lying_estimates_still_give_ranges_that_tile_the_table(shape: str, lie: Lie) -> None:
    table = shaped(shape, lie)
    plan = table.plan(target=100)
    assert sum(table.rows_of(plan)) == len(table.bounds)
    assert len(table.asked) <= 3_000


def test_random_estimates_still_give_ranges_that_tile_the_table() -> None:
    chance = random.Random(7)
    table = shaped("islands", lie=lambda _: chance.randrange(1000))
    assert sum(table.rows_of(table.plan(target=100))) == len(table.bounds)
    assert len(table.asked) <= 3_000


@pytest.mark.parametrize("lie", [lambda _: 0, lambda _: 1])
def test_estimates_that_hide_rows_are_found_out(lie: Lie) -> None:
    table = shaped("scattered", lie=lie)
    assert max(table.rows_of(table.plan(target=100, estimated_rows=0))) == 100


def test_small_span_of_values_needs_no_question() -> None:
    table = integers([5, 6, 9])
    plan = table.plan(target=100)
    assert table.rows_of(plan) == [3]
    assert table.asked == []


def test_empty_table_has_a_plan_without_ranges() -> None:
    table = integers([])
    assert table.plan(target=100).ranges == ()
    assert table.asked == []


@pytest.mark.parametrize(("parts", "key"), [(INT, (7,)), (INT, (-(2**63),)), (UINT, (2**64 - 1,)), (PAIR, (1, b"a"))])
def test_one_row_is_one_closed_range(parts: tuple[KeyPart, ...], key: Key) -> None:
    plan = table_of(parts, [key]).plan(target=100)
    (planned,) = plan.ranges
    assert planned.range.low == planned.range.high == bound_of(parts, key)
    assert planned.range.closed
    assert planned.estimated_rows == 1


def test_two_rows_at_both_type_limits_are_one_range() -> None:
    table = integers([-(2**63), 2**63 - 1])
    assert table.rows_of(table.plan(target=5_000)) == [2]


def test_composite_keys_are_walked_in_exact_steps() -> None:
    table = table_of(PAIR, [(tenant, b"n%d" % row) for tenant in range(-5, 5) for row in range(103)])
    plan = table.plan(target=100)
    assert table.rows_of(plan) == [100] * 10 + [30]
    assert all(isinstance(question, NextBound) for question in table.asked)
    assert [planned.estimated_rows for planned in plan.ranges] == [100] * 10 + [30]


def test_walk_that_ends_on_the_maximum_leaves_no_range_of_one_row() -> None:
    table = table_of(PAIR, [(0, b"%03d" % row) for row in range(201)])
    assert table.rows_of(table.plan(target=100)) == [100, 101]


def test_rows_that_came_above_the_maximum_are_not_planned() -> None:
    low, high, later = (bound_of(PAIR, (number, b"")) for number in (1, 2, 3))
    planner = plan_bounds(TableFacts(PAIR, low, high, 10, 100), target=5)
    assert next(planner) == NextBound(low, 5)
    with pytest.raises(StopIteration) as done:
        planner.send(later)
    assert done.value.value == ((low, 5), (high, 0))


def test_server_that_sorts_otherwise_is_refused() -> None:
    low, middle, high = (bound_of(PAIR, (number, b"")) for number in (1, 2, 3))
    planner = plan_bounds(TableFacts(PAIR, middle, high, 10, 100), target=5)
    next(planner)
    with pytest.raises(KeyOrderError, match="sorts before it here"):
        planner.send(low)
    with pytest.raises(KeyOrderError, match=r"minimum .* sorts after its maximum"):
        next(plan_bounds(TableFacts(PAIR, high, low, 10, 100), target=5))


def test_answer_of_the_wrong_kind_is_refused() -> None:
    low, high = bound_of(INT, (0,)), bound_of(INT, (10_000,))
    planner = plan_bounds(TableFacts(INT, low, high, 10, 100), target=5)
    assert isinstance(next(planner), EstimateRows)
    with pytest.raises(LawBrokenError, match="EstimateRows was answered"):
        planner.send(None)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "range_bytes", "target"),
    [
        (0, 100, 64 << 20, 5_000),
        (10_000_000, 100, 64 << 20, 9_765),
        (10**12, 100, 64 << 20, 50_000),
        (10**12, 10_000, 64 << 20, 6_710),
        (100, 1 << 30, 64 << 20, 1),
        (100, 0, 64 << 20, 5_000),
    ],
)
def test_target_follows_the_table_within_limits_and_bytes(
    rows: int, row_bytes: int, range_bytes: int, target: int
) -> None:
    assert target_rows(rows, 256, row_bytes, range_bytes) == target


def stretch(*values: int) -> Bounds:
    return tuple((bound_of(INT, (value,)), 1) for value in values)


def test_plan_is_extended_on_both_sides_as_one_generation() -> None:
    plan = extend_plan(make_plan(INT, stretch(10, 20, 30), 256), stretch(1, 5), stretch(35, 40, 45))
    assert [(each.ordinal, each.generation) for each in plan.ranges] == [(2, 1), (0, 0), (1, 0), (3, 1), (4, 1)]
    assert extend_plan(plan).ranges == plan.ranges


def test_extension_into_the_plan_is_refused() -> None:
    plan = make_plan(INT, stretch(10, 20), 256)
    with pytest.raises(LawBrokenError, match="reaches"):
        extend_plan(plan, below=stretch(1, 11))
    with pytest.raises(LawBrokenError, match="begins at"):
        extend_plan(plan, above=stretch(20, 30))


@pytest.mark.parametrize("shape", ["scattered", "islands", "few, then far away many", "lognormal"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_planner_that_was_interrupted_continues_without_asking_again(shape: str, share: float) -> None:
    whole, first, second = shaped(shape), shaped(shape), shaped(shape)
    whole.plan(target=100)
    settled = interrupted(first, target=100, questions=int(share * len(whole.asked)))
    low = settled.low
    plan = second.plan(target=100, cuts=settled)
    assert sum(second.rows_of(plan)) == len(second.bounds)
    assert all(bound >= low for question in second.asked for bound in bounds_of(question))
    assert plan.ranges[0].range.low == second.bounds[0]


def test_a_walk_that_was_interrupted_makes_the_same_plan() -> None:
    keys = [(tenant, b"n%d" % row) for tenant in range(-5, 5) for row in range(103)]
    whole = table_of(PAIR, keys).plan(target=100)
    settled = interrupted(table_of(PAIR, keys), target=100, questions=7)
    second = table_of(PAIR, keys)
    assert second.plan(target=100, cuts=settled) == whole
    assert len(second.asked) == 5, "the questions about the first six ranges are not asked again"


def test_a_plan_that_was_whole_when_interrupted_asks_nothing() -> None:
    table = table_of(PAIR, [(number, b"") for number in range(1_000)])
    cuts = Cuts.none_from(table.bounds[0])
    plan = table.plan(target=100, cuts=cuts)
    again = ModelTable(PAIR, table.bounds)
    assert again.plan(target=100, cuts=Cuts(list(cuts.settled))) == plan
    assert again.asked == []


def test_rows_that_vanished_or_came_since_change_no_bound() -> None:
    keys = [(number, b"") for number in range(0, 2_000, 2)]
    settled = interrupted(table_of(PAIR, keys), target=100, questions=5)
    known = settled.settled
    gone = {bound.key for bound, _ in known}
    later = table_of(
        PAIR, [*(key for key in keys if key not in gone), *((number, b"") for number in range(1, 2_000, 2))]
    )
    facts = TableFacts(PAIR, known[0][0], bound_of(PAIR, keys[-1]), 1_000, 100)
    plan = later.plan_from(facts, target=100, cuts=settled)
    assert [(each.range.low, each.estimated_rows) for each in plan.ranges[: len(known) - 1]] == list(known[:-1])
    assert (plan.ranges[0].range.low, plan.ranges[-1].range.high) == (facts.minimum, facts.maximum)


def test_settled_ranges_of_another_table_are_refused() -> None:
    low, high, beyond = (bound_of(PAIR, (number, b"")) for number in (1, 5, 9))
    facts = TableFacts(PAIR, low, high, 10, 100)
    with pytest.raises(LawBrokenError, match="not of this table"):
        next(plan_bounds(facts, 5, Cuts.none_from(high)))
    with pytest.raises(LawBrokenError, match="not of this table"):
        next(plan_bounds(facts, 5, Cuts([(low, 1), (beyond, 0)])))
    with pytest.raises(LawBrokenError, match="do not ascend"):
        Cuts([(high, 1), (low, 0)])
    with pytest.raises(LawBrokenError, match="cannot end at"):
        Cuts.none_from(high).add(1, low)


def interrupted(table: ModelTable, target: int, questions: int) -> Cuts:
    """What a planner has settled that was stopped after so many questions."""
    low, high = table.bounds[0], table.bounds[-1]
    cuts = Cuts.none_from(low)
    planner = plan_bounds(TableFacts(table.parts, low, high, len(table.bounds), 100), target, cuts)
    answer: Answer = None
    for _ in range(questions):
        answer = table.answer(planner.send(answer))
    return Cuts(list(cuts.settled))


def bounds_of(question: Question) -> tuple[Bound, ...]:
    assert isinstance(question, EstimateRows | NextBound)
    return question.bounds if isinstance(question, EstimateRows) else (question.after,)
