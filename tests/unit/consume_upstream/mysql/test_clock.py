"""The difference of two clocks is reported as far as it is certain, and is judged by the lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consume_upstream.mysql.preflight.clock import certain_skew
from consume_upstream.mysql.preflight.server_checks import check_clock
from vnode_backfill.words.finding import Level

LEASE = timedelta(seconds=30)


@pytest.mark.parametrize(
    ("before", "source", "after", "skew"),
    [(10, 10, 10, 0), (10, 11, 12, 0), (10, 8, 12, 2), (10, 15, 12, -3), (10, 12, 12, 0)],
)
def test_only_what_the_way_there_and_back_cannot_explain_counts(
    before: float, source: float, after: float, skew: float
) -> None:
    assert certain_skew(before, source, after) == skew


@pytest.mark.parametrize(
    ("skew", "level"),
    [
        (0, Level.OK), (1.2, Level.OK), (-1.2, Level.OK), (1.3, Level.WARNING), (-2.4, Level.WARNING),
        (2.6, Level.REFUSED), (-2.6, Level.REFUSED),
    ],
)  # fmt: skip
def test_a_clock_is_refused_beyond_a_twelfth_of_the_lease(skew: float, level: Level) -> None:
    assert check_clock(LEASE, skew).level is level


def test_what_is_refused_names_the_difference_and_the_way_on() -> None:
    found = check_clock(LEASE, -4)
    assert "4 s behind the source's" in found.fact
    assert "state.lease 30s allows 2.5 s" in found.fact
    assert "state.lease: 96s" in found.fix
    assert check_clock(timedelta(seconds=96), -4).level is Level.OK


def test_no_lease_is_long_enough_for_a_clock_that_is_hours_off() -> None:
    assert "state.lease" not in check_clock(LEASE, 7200).fix
