"""Holds a first plan that is being made: where its job begins in the log, and the ranges that are settled so far.

What must be true for a second driver to continue it, hours later: the copy that comes of it is exact. Why it is:

- `first` is the job's first offset, and `facts` (minimum and maximum) were read after it was visible. A key outside
  [minimum, maximum] came after `first`, so it comes by the log. A key inside is in a range, whoever finds the bounds.
- A bound only has to be a place in the server's order. Its row may be gone, and rows may have come before it: both
  change how many rows a range holds, not which keys it holds.
- Every change after `first` is in the log that the job reads, as if it had been created at once and slept since.

What breaks it: a log that no longer holds `first`, another server, or a table that no longer is what it was at `first`.
`why_not_continued` names the reason, and planning begins again. A statement that was undone meanwhile is no reason:
the log holds it, and the job meets it there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset
from vnode_backfill.words.columns import TableDefinition, what_changed
from vnode_backfill.words.key_range import Bounds
from vnode_backfill.words.plan import Cuts, TableFacts

__all__ = ["BegunPlan", "PlanProgress", "why_not_continued"]


@dataclass(frozen=True, slots=True)
class BegunPlan:
    """A plan in the making. `bounds` are settled; the last entry is where the rest of the table begins, with 0 rows."""

    definition: TableDefinition
    """The table as it was at `first`."""
    vnodes: int
    target: int
    first: CdcOffset
    facts: TableFacts
    bounds: Bounds
    since: datetime
    parents: tuple[CascadingParent, ...] = ()
    """The tables whose changes have changed rows of this one outside the log since `first`."""

    @property
    def name(self) -> str:
        return f"{self.definition.database}.{self.definition.table}"

    @property
    def is_whole(self) -> bool:
        return bool(self.bounds) and self.bounds[-1][0] == self.facts.maximum

    @property
    def progress(self) -> PlanProgress:
        rows = sum(rows for _, rows in self.bounds)
        return PlanProgress(rows, self.facts.estimated_rows, len(self.bounds) - 1, self.since)

    def with_cuts(self, cuts: Cuts) -> BegunPlan:
        return replace(self, bounds=cuts.settled)


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far the planning of one table, or of all that are being planned, is; `estimated_rows` is an estimate."""

    rows: int
    estimated_rows: int
    ranges: int
    since: datetime

    @property
    def percent(self) -> float:
        """At most 99.99: the plan is whole when the job exists."""
        return round(min(100 * self.rows / max(self.estimated_rows, 1), 99.99), 2)

    def beside(self, other: PlanProgress) -> PlanProgress:
        return PlanProgress(
            self.rows + other.rows, self.estimated_rows + other.estimated_rows, self.ranges + other.ranges,
            min(self.since, other.since),
        )  # fmt: skip

    def to_json(self) -> dict[str, object]:
        return {
            "rows": self.rows, "estimated_rows": self.estimated_rows, "ranges": self.ranges, "percent": self.percent,
            "since": self.since.isoformat(timespec="seconds"),
        }  # fmt: skip


def why_not_continued(
    begun: BegunPlan,
    now: TableDefinition,
    vnodes: int,
    target: int,
    log_fault: str,
    *,
    parents: tuple[CascadingParent, ...] = (),
) -> str:
    """Why the plan must be made from the beginning; empty if it can be continued.

    `target` is how many rows a range of a table with these facts would get now. `log_fault` says why the log cannot be
    read from `first` on, and is empty if it can. `parents` are those that the table has now.
    """
    then = begun.definition
    if (then.database, then.table) != (now.database, now.table):
        return f"it is of {begun.name}"
    if then != now:
        return f"the table was changed: {what_changed(then, now)}"
    if then.partitioning != now.partitioning:
        return "the table has other partitions"
    if then.primary != now.primary:
        return "the table has another primary key"
    if begun.parents != parents:
        return "its foreign keys cascade from other tables now"
    if (begun.vnodes, begun.target) != (vnodes, target):
        return f"it has {begun.vnodes} vnodes and ranges of {begun.target:,} rows, not {vnodes} and {target:,}"
    if log_fault:
        return f"its first offset {begun.first} {log_fault}"
    return ""
