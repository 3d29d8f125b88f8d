"""The arithmetic of a measured stretch."""

from __future__ import annotations

import pytest

from benchmarks.live.stretch import Stretch, count_at, percentile


@pytest.mark.parametrize(
    ("share", "expected"), [(1, 1.0), (50, 50.0), (90, 90.0), (99, 99.0), (99.1, 100.0), (100, 100.0)]
)
def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, share) == expected


def test_percentile_of_few_values_is_one_of_them() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile([2.0, 1.0], 50) == 1.0
    assert percentile([2.0, 1.0], 51) == 2.0


def test_rate_is_taken_between_the_samples_around_the_stretch() -> None:
    # 500 a second, then nothing: samples fall neither on the stretch's beginning nor on its end.
    counter = [(10.0, 0.0), (12.0, 1000.0), (14.0, 1000.0)]
    assert count_at(counter, 11.0) == 500.0
    assert Stretch(11.0, 13.0).per_second(counter) == 250.0
    assert Stretch(10.0, 14.0).per_second(counter) == 250.0


@pytest.mark.parametrize("moment", [9.9, 14.1])
def test_a_count_that_nobody_took_is_refused(moment: float) -> None:
    with pytest.raises(ValueError, match="not read around"):
        count_at([(10.0, 0.0), (14.0, 1000.0)], moment)


def test_age_that_rises_shows_as_growth_and_a_sawtooth_does_not() -> None:
    stretch = Stretch(0.0, 90.0)
    moments = [second / 10 for second in range(900)]
    assert stretch.growth([(at, 5 + at % 6) for at in moments]) == pytest.approx(1.0, abs=0.05)
    assert stretch.growth([(at, at) for at in moments]) == pytest.approx(75 / 45, abs=0.01)


def test_samples_outside_the_stretch_do_not_count() -> None:
    stretch = Stretch(10.0, 70.0)
    inside = [(float(at), 2.0) for at in range(10, 70)]
    assert stretch.growth([*inside, *((float(at), 99.0) for at in range(70, 170))]) == 1.0
    assert (stretch.holds(10.0), stretch.holds(70.0)) == (True, False)
    assert stretch.minutes == 1.0
