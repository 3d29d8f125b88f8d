"""The limit in rows per second holds for the whole job: over lanes, over epochs, over any stretch of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vnode_backfill.snapshot.rate_limit import RowBudget, lanes_at_once

LIMIT = 10_000.0


@dataclass
class Clock:
    time: float = 0.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Readings:
    """When how many rows came, over all lanes."""

    rows: list[tuple[float, int]] = field(default_factory=list)

    def busiest(self, seconds: float) -> int:
        """The most rows that any stretch of so many seconds saw."""
        ordered, first, inside, most = sorted(self.rows), 0, 0, 0
        for at, rows in ordered:
            inside += rows
            while ordered[first][0] <= at - seconds:
                inside -= ordered[first][1]
                first += 1
            most = max(most, inside)
        return most


def read_lane(
    readings: Readings, rate: float, ranges: list[int], start: float, seconds: float, slowness: float
) -> float:
    """A lane as `VnodeStream` reads it, by its own clock; when it ended."""
    clock = Clock(start)
    budget = RowBudget(rate, clock)
    limit = budget.rows_per_query
    for number, rows in enumerate(ranges):
        if number and clock.time >= start + seconds:
            break
        left, read = rows, limit
        while read == limit:
            clock.time += budget.delay(limit)
            read = min(limit, left)
            left -= read
            readings.rows.append((clock.time, read))
            clock.time += read * slowness
            budget.give_back(limit - read)
    return clock.time


def read_job(lanes: int, range_rows: int, slowness: float, seed: int = 1) -> Readings:
    """Ten epochs that follow each other without a pause, each with a new budget per lane."""
    random, readings, start = Random(seed), Readings(), 0.0
    for _ in range(10):
        ranges = [[random.randint(0, 2 * range_rows) for _ in range(50)] for _ in range(lanes)]
        ends = [read_lane(readings, LIMIT / lanes, lane, start, 2.0, slowness) for lane in ranges]
        start = max(ends)
    return readings


@pytest.mark.parametrize("lanes", [1, 2, 7])
@pytest.mark.parametrize("range_rows", [10, 900, 5_000, 60_000])
def test_no_five_seconds_see_more_than_the_limit_and_a_tenth(lanes: int, range_rows: int) -> None:
    assert read_job(lanes, range_rows, slowness=0.0).busiest(5.0) <= 1.1 * 5.0 * LIMIT + lanes


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 30_000), st.floats(0, 1e-3), st.integers(0, 99))
def test_no_five_seconds_see_more_than_a_fifth_above_the_limit(
    lanes: int, range_rows: int, slowness: float, seed: int
) -> None:
    assert read_job(lanes, range_rows, slowness, seed).busiest(5.0) <= 1.2 * 5.0 * LIMIT


@pytest.mark.parametrize("range_rows", [100, 900, 5_000])
def test_small_ranges_are_read_at_nearly_the_limit(range_rows: int) -> None:
    readings = Readings()
    ended = read_lane(readings, LIMIT, [range_rows] * (200_000 // range_rows), 0.0, 1e9, slowness=1e-5)
    assert 200_000 / ended >= 0.9 * LIMIT


def test_time_in_which_nothing_was_read_is_saved_for_one_reservation_only() -> None:
    clock = Clock()
    budget = RowBudget(100.0, clock)
    assert budget.delay(50) == pytest.approx(0.5)
    clock.time = 60.0
    assert budget.delay(50) == 0.0
    assert budget.delay(50) == pytest.approx(0.5)


def test_rows_that_were_not_there_are_not_paid_twice() -> None:
    clock = Clock()
    budget = RowBudget(100.0, clock)
    clock.time += budget.delay(50)
    budget.give_back(40)
    assert budget.delay(50) == pytest.approx(0.1)


def test_reader_that_wakes_too_early_stays_in_debt() -> None:
    clock = Clock()
    budget = RowBudget(100.0, clock)
    budget.delay(50)
    clock.time = 0.25
    assert budget.delay(50) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("rows_per_second", "seconds", "rows", "lanes"),
    [(100_000, 10, 50_000, 20), (5_000, 10, 50_000, 1), (1, 10, 50_000, 1), (400, 1, 50, 8), (400, 1, 0, 400)],
)
def test_low_limit_lets_fewer_lanes_read_so_that_an_epoch_keeps_its_length(
    rows_per_second: float, seconds: float, rows: int, lanes: int
) -> None:
    assert lanes_at_once(rows_per_second, seconds, rows) == lanes
