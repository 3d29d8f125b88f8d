"""Keeps the rows that are read below a limit: how many lanes share it, and how long each of them waits before a query.

What must be true: a stretch of t seconds sees at most `rate` × t rows and one reservation, whatever the sizes of the
ranges; and an epoch at a low limit still ends in time, because only as many lanes read at once as can finish a range
within it.
"""

from __future__ import annotations

from collections.abc import Callable

_QUERY_SECONDS = 0.5


def lanes_at_once(rows_per_second: float, seconds: float, rows: int) -> int:
    """How many lanes may read ranges of `rows` rows at once so that each reads one within `seconds`; one at least.

    A lane stops between ranges only. At a low limit many lanes with a small share each would make an epoch of minutes,
    and with it the log, and whatever an operator asks for, wait as long.
    """
    return max(1, int(rows_per_second * seconds / max(rows, 1)))


class RowBudget:
    """How long to wait so that rows never come faster than `rate`: rows are paid for before they are read.

    Time becomes credit for at most one reservation, and a new budget has none. So a stretch of t seconds sees at most
    `rate` × t rows and one reservation, also across epochs; and small ranges, which give back most of what they
    reserve, still come at the full rate.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._clock = clock
        self._credit = 0.0
        self._since = clock()

    @property
    def rows_per_query(self) -> int:
        """So many rows are reserved for one query: short queries, because a result left open while waiting is cut by
        the server."""
        assert self.rate is not None
        return max(1, int(self.rate * _QUERY_SECONDS))

    def delay(self, rows: int) -> float:
        """Reserve `rows` rows; the seconds to wait before reading them."""
        assert self.rate is not None
        now = self._clock()
        credit = min(float(rows), self._credit + (now - self._since) * self.rate)
        seconds = (rows - credit) / self.rate
        self._credit, self._since = 0.0, now + seconds
        return seconds

    def give_back(self, rows: int) -> None:
        """`rows` of those reserved last were not there to read."""
        self._credit += rows
