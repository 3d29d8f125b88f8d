"""Epochs get longer while the target does not keep up, and no shorter than configured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from progress.state.target_health import TargetHealth, VectorHealth
from vnode_backfill.job.run.pace_of_epochs import AS_CONFIGURED, LOG_BYTES_A_MINUTE, MOST, WORN_BYTES, Lengthening
from vnode_backfill.words.units import MB

HUGE = 100 * WORN_BYTES


def health(logged: float = 0, worn: float = 0, size: int = HUGE) -> TargetHealth:
    return TargetHealth(10, size, 1000, 0, logged_bytes=int(logged), vectors=VectorHealth(5, int(worn)))


def minutes(count: int, look: Callable[[int, int], TargetHealth]) -> list[Lengthening]:
    """What holds after each minute; `look` is told the minute and the factor that held in the one before."""
    held, found = AS_CONFIGURED.after(0.0, look(0, 1)), []
    for minute in range(1, count + 1):
        held = held.after(60.0 * minute, look(minute, held.factor))
        found.append(held)
    return found


def follower(bytes_a_minute: float) -> Callable[[int, int], TargetHealth]:
    """A log that grows with the number of epochs."""
    logged = [0.0]

    def look(minute: int, factor: int) -> TargetHealth:
        logged[0] += bytes_a_minute / factor if minute else 0
        return health(logged[0])

    return look


def test_epochs_get_longer_until_the_log_keeps_to_its_budget_and_stay_so() -> None:
    found = minutes(8, follower(4.5 * LOG_BYTES_A_MINUTE))
    assert [each.factor for each in found] == [2, 4, 8, 8, 8, 8, 8, 8]
    assert "log grew by 72 MB in a minute, and 16 MB are allowed" in found[0].reason
    assert found[-1].reason


def test_within_the_budget_epochs_are_as_configured() -> None:
    assert {(each.factor, each.reason) for each in minutes(5, follower(LOG_BYTES_A_MINUTE))} == {(1, "")}


def test_there_is_a_longest_epoch() -> None:
    assert [each.factor for each in minutes(7, follower(1000 * LOG_BYTES_A_MINUTE))] == [2, 4, 8, 16, 16, 16, MOST]


def test_epochs_get_shorter_when_the_load_is_over_and_no_shorter_than_configured() -> None:
    busy, quiet = follower(5 * LOG_BYTES_A_MINUTE), follower(0)
    found = minutes(9, lambda minute, factor: busy(minute, factor) if minute <= 4 else quiet(minute, factor))
    assert [each.factor for each in found] == [2, 4, 8, 8, 4, 2, 1, 1, 1]
    assert [bool(each.reason) for each in found] == [True] * 6 + [False] * 3


def test_looks_within_a_minute_change_nothing() -> None:
    held = AS_CONFIGURED.after(0.0, health())
    for second in range(2, 60, 2):
        held = held.after(float(second), health(1000 * LOG_BYTES_A_MINUTE))
    assert held.factor == 1
    assert held.after(60.0, health(1000 * LOG_BYTES_A_MINUTE)).factor == 2


def test_a_look_that_comes_late_counts_what_a_minute_had() -> None:
    held = AS_CONFIGURED.after(0.0, health())
    assert held.after(600.0, health(9 * LOG_BYTES_A_MINUTE)).factor == 1
    assert held.after(600.0, health(11 * LOG_BYTES_A_MINUTE)).factor == 2


def test_folds_that_fall_behind_lengthen_epochs_until_they_have_caught_up() -> None:
    worn = [0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.05]
    found = minutes(6, lambda minute, _: health(worn=worn[minute] * HUGE))
    assert [each.factor for each in found] == [2, 4, 4, 4, 2, 1]
    assert f"{0.3 * HUGE / MB:,.0f} MB of {HUGE / MB:,.0f} MB wait to be folded" in found[0].reason


@pytest.mark.parametrize(
    ("worn", "size"),
    [
        (lambda _: 0.4 * HUGE, HUGE),
        (lambda minute: (0.1 + 0.01 * minute) * HUGE, HUGE),
        (lambda minute: minute * MB, 8 * MB),
    ],
    ids=["it does not grow", "it is a small part", "it is folded in a step"],
)
def test_a_debt_that_is_paid_back_is_none(worn: Callable[[int], float], size: int) -> None:
    found = minutes(5, lambda minute, _: health(worn=worn(minute), size=size))
    assert {each.factor for each in found} == {1}


def test_a_target_without_vectors_is_judged_by_its_log_alone() -> None:
    held = AS_CONFIGURED.after(0.0, TargetHealth(1, HUGE, 1, 0))
    assert held.after(60.0, TargetHealth(1, HUGE, 1, 0)).factor == 1
    assert held.after(60.0, TargetHealth(1, HUGE, 1, 0, logged_bytes=2 * LOG_BYTES_A_MINUTE)).factor == 2
