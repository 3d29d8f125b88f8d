"""A table is prepared with half of the rows gone that make a fold due."""

from __future__ import annotations

import pytest

from benchmarks.live.case import one_in


@pytest.mark.parametrize(
    ("rows", "size", "rate", "expected"),
    [
        (2_000_000, 40_000_000, 500, 28),
        (8_000_000, 160_000_000, 500, 57),
        (32_000_000, 640_000_000, 500, 113),
        # A tenth of the rows is the most that may be gone, and half of it is one in twenty.
        (8_000_000, 160_000_000, 50_000, 20),
        (20_000, 400_000, 500, 20),
    ],
)
def test_half_of_the_rows_that_make_a_fold_due(rows: int, size: int, rate: int, expected: int) -> None:
    assert one_in(rows, rate, size) == expected
