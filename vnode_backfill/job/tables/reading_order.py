"""Chooses the tables whose ranges are read next, and how many rows of each.

Small tables come first, because they are live soon; a table's `priority` counts before its size. An epoch has time for
so many rows per worker, whatever the number of tables. One that does not fit waits, and the log is captured meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Unread", "rows_to_read"]


@dataclass(frozen=True, slots=True)
class Unread:
    """A table that has ranges to read: how large it is, and about how many of its rows are left."""

    name: str
    priority: int
    rows: int
    left: int


def rows_to_read(tables: Iterable[Unread], rows_per_worker: int, workers: int) -> dict[str, int]:
    """Per table that reads in the next epoch, the rows that a worker may read of it.

    The first one always reads, so that a table with ranges larger than an epoch gets on.

        budget 100 rows per worker, 2 workers: a (30 rows left) 100, b (400 rows left) 85, c (10 rows left) waits
    """
    chosen: dict[str, int] = {}
    budget = max(1, rows_per_worker)
    for table in sorted(tables, key=lambda each: (each.priority, each.rows, each.name)):
        if budget <= 0:
            break
        chosen[table.name] = budget
        budget -= -(-table.left // max(1, workers))
    return chosen
