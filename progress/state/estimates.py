"""Tells about how much of a table is left to read, from what its ranges were thought to hold.

There may be a million ranges, and this is asked after every epoch and every second. So nothing here looks at the ranges
of a vnode that is read, or at those of one that is not begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from progress.state.backfill_state import BackfillState
from vnode_backfill.words.key_range import SplitPlan


@dataclass(frozen=True, slots=True)
class Estimates:
    """How many rows each planned range was thought to hold, by ordinal; all generations of the plan in force.

    `of_vnodes` holds the rows and the ranges of each vnode together, where the vnodes of the ranges are known.
    """

    rows: Mapping[int, int]
    of_vnodes: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: SplitPlan) -> Estimates:
        return cls.of_ranges((each.ordinal, each.vnode, each.estimated_rows) for each in plan.ranges)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int, int]]) -> Estimates:
        """Each range is its ordinal, its vnode and its rows."""
        by_ordinal: dict[int, int] = {}
        of_vnodes: dict[int, tuple[int, int]] = {}
        for ordinal, vnode, rows in ranges:
            by_ordinal[ordinal] = rows
            held, count = of_vnodes.get(vnode, (0, 0))
            of_vnodes[vnode] = (held + rows, count + 1)
        return cls(by_ordinal, of_vnodes)


def left_of(estimates: Estimates, state: BackfillState) -> tuple[int, int]:
    """About how many rows, and how many ranges, are not read yet."""
    if state.backfill_finished:
        return 0, 0
    if not estimates.of_vnodes:
        unread = estimates.rows.keys() - {ordinal for vnode in state.vnodes for ordinal, _ in vnode.reads}
        return sum(map(estimates.rows.__getitem__, unread)), len(unread)
    rows = ranges = 0
    for vnode in state.vnodes:
        if vnode.complete is None:
            planned_rows, planned = estimates.of_vnodes.get(vnode.vnode, (0, 0))
            read = [estimates.rows[ordinal] for ordinal, _ in vnode.reads if ordinal in estimates.rows]
            rows, ranges = rows + planned_rows - sum(read), ranges + planned - len(read)
    return rows, ranges
