"""Measures how far this machine's clock is from the source's, as far as that is certain."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from pymysql.connections import Connection

from consume_upstream.mysql.server import ask

__all__ = ["certain_skew", "clock_skew"]

_ASKED = 3


def clock_skew(connection: Connection, clock: Callable[[], float] = time.time) -> float:
    """Seconds by which this machine's clock is ahead of the source's; negative if it is behind, 0 if they may agree.

    The source is asked a few times. Each answer shows that the clocks differ at least by so much, so the largest one
    counts.
    """
    return max((_asked(connection, clock) for _ in range(_ASKED)), key=abs)


def certain_skew(before: float, source: float, after: float) -> float:
    """What is certain about a source's clock that was read between `before` and `after` by this machine's clock."""
    if source < before:
        return before - source
    return after - source if source > after else 0.0


def _asked(connection: Connection, clock: Callable[[], float]) -> float:
    before = clock()
    told = ask(connection, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR) AS now")[0]["now"]
    after = clock()
    source = datetime.fromisoformat(str(told)).replace(tzinfo=UTC).timestamp()
    return certain_skew(before, source, after)
