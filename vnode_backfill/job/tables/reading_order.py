"""Chooses the tables whose ranges are read next, and how many rows of each.

Small tables come first, because they are live soon; a table's `priority` counts before its size. An epoch has so many
seconds, whatever the number of tables. A table that does not fit waits, and the log is captured meanwhile.

A table with a limit of its own takes long for few rows. So tables with a limit together have at most half of the time
while others have something to read, and no limit counts for another table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Unread", "rows_to_read"]

_SLOWEST = 1e-9


@dataclass(frozen=True, slots=True)
class Unread:
    """A table that has ranges to read: how large it is, about how many of its rows are left, and its own limit."""

    name: str
    priority: int
    rows: int
    left: int
    rows_per_second: int | None = None


def rows_to_read(tables: Iterable[Unread], seconds: float, rows_per_second: float, workers: int) -> dict[str, int]:
    """Per table that reads in the next epoch, the rows that a worker may read of it, which reads so many a second.

    The first one always reads, so that a table with ranges larger than an epoch gets on.

        10 s, 10 rows a second, 2 workers: a (30 rows left) 100, b (400 rows left) 85, c (10 rows left) waits
        the same, and a may be read at 4 rows a second: a 10, b 50, c waits
    """
    chosen: dict[str, int] = {}
    order = sorted(tables, key=lambda each: (each.priority, each.rows, each.name))

    def speed(table: Unread) -> float:
        limit = table.rows_per_second
        return rows_per_second if limit is None else min(rows_per_second, limit / max(1, workers))

    needed = {each.name: each.left / max(1, workers) / max(speed(each), _SLOWEST) for each in order}
    left = _shared_out(order, needed, seconds)
    for table in order:
        limited = table.rows_per_second is not None
        if chosen and left[limited] <= 0:
            continue
        chosen[table.name] = max(1, int(speed(table) * left[limited]))
        left[limited] -= needed[table.name]
    return chosen


def _shared_out(tables: list[Unread], needed: dict[str, float], seconds: float) -> dict[bool, float]:
    """The seconds of tables with a limit, and of those without."""
    limited = sum(needed[each.name] for each in tables if each.rows_per_second is not None)
    if all(each.rows_per_second is not None for each in tables):
        return {True: seconds, False: 0.0}
    limited = min(limited, seconds / 2)
    return {True: limited, False: seconds - limited}
