"""A comparison reads the source no faster than a job may, and waits while the source is busy.

The clock moves only by waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vnode_backfill.verify.pace import NO_LIMITS, RowAccount, SourcePace


@dataclass
class Clock:
    now: float = 100.0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def test_without_limits_everything_is_one_round() -> None:
    assert [list(some) for some in NO_LIMITS.rounds([1, 2, 3], 10**9)] == [[1, 2, 3]]
    nothing: list[int] = []
    assert [list(some) for some in NO_LIMITS.rounds(nothing, 5)] == [[]]


def test_rows_never_run_ahead_of_the_limit_by_more_than_a_round() -> None:
    clock = Clock()
    pace = SourcePace(1000, clock=clock, wait=clock.wait)
    began, rows = clock.now, 0
    for some in pace.rounds(range(40), 700):
        assert rows <= 1000 * (clock.now - began)
        rows += 700 * len(some)
    assert rows == 28_000
    assert clock.now - began >= (rows - pace.most_rows) / 1000


def test_range_larger_than_a_round_is_a_round_of_its_own_and_paid_for_before_the_next() -> None:
    clock = Clock()
    pace = SourcePace(10, clock=clock, wait=clock.wait)
    assert [list(some) for some in pace.rounds([1, 2, 3], 20_000)] == [[1], [2], [3]]
    assert clock.now == 100.0 + 2 * 2000


def test_limit_holds_over_several_questions() -> None:
    clock = Clock()
    pace = SourcePace(1000, clock=clock, wait=clock.wait)
    for _ in range(5):
        list(pace.rounds([1], 3000))
        pace.pay(1000)
    assert clock.now == 100.0 + (5 * 4000 - 1000) / 1000


def test_time_that_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    pace = SourcePace(1000, clock=clock, wait=clock.wait)
    pace.pay(1000)
    clock.now += 60
    pace.pay(1000)
    pace.pay(1000)
    assert clock.now == 161.0


def test_busy_source_is_not_read_until_it_is_not_busy_any_more() -> None:
    clock, said = Clock(), list[str]()
    reasons = iter(["the flag file x exists", "the flag file x exists", "Threads_running is 9, limit 8", "", "", ""])
    pace = SourcePace(None, lambda: next(reasons), 0.5, said.append, clock, clock.wait)
    assert [list(some) for some in pace.rounds([1, 2], 600_000)] == [[1], [2]]
    assert clock.waits == [0.5, 0.5, 0.5]
    assert said == [
        "verify waits: the flag file x exists",
        "verify waits: Threads_running is 9, limit 8",
        "verify continues",
    ]


def test_tables_side_by_side_pay_from_one_account_and_none_waits_for_a_share_that_nobody_uses() -> None:
    """A large table and a small one: both rates divided by two would take the large one twice as long."""
    clock, account = Clock(), RowAccount(1000)
    large, small = (SourcePace(1000, clock=clock, wait=clock.wait, shared=account) for _ in range(2))
    began, rows = clock.now, 1000
    small.pay(1000)
    for some in large.rounds(range(40), 700):
        assert rows <= 1000 * (clock.now - began) + 1000
        rows += 700 * len(some)
    assert rows == 29_000
    assert (rows - large.most_rows) / 1000 <= clock.now - began <= rows / 1000


def test_limit_of_a_table_holds_beside_that_of_all() -> None:
    clock = Clock()
    pace = SourcePace(10, clock=clock, wait=clock.wait, shared=RowAccount(1000))
    assert pace.most_rows == 50
    for _ in range(3):
        pace.pay(50)
    assert clock.now == 100.0 + 2 * 5
