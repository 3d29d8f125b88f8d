"""Cuts a table into key ranges, with few and cheap questions to the server.

The planner is a generator: it yields questions, is sent their answers, and returns the bounds. It never speaks to a
server itself. What must be true of the bounds, whatever the answers were: they begin at the table's minimum, end at its
maximum and ascend in the database's order, so that the ranges between them tile the table. What should be true: a range
holds about `target` rows.

Keys of one integer column are cut by even steps of the value, corrected by the optimiser's estimates
(`planner.dives`). All other keys are walked (`planner.questions.Walk`): the server counts the rows and sends only the
bound, which is exact and costs a pass over the index. For a large table that takes too long, so its key is halved by
guesses and estimates instead (`planner.sample`). An estimate is a hint, never a bound. So the planner ends with sensible
ranges even if every estimate is wrong.

A planner that was interrupted continues from the `Cuts` that it had settled. The laws hold for them as for a whole
plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from vnode_backfill.words.errors import KeyOrderError, LawBrokenError
from vnode_backfill.words.key import KeyKind, KeyPart
from vnode_backfill.words.key_range import Bounds, SplitPlan, plan_of
from vnode_backfill.words.planner.dives import Dives
from vnode_backfill.words.planner.questions import (
    Answer,
    Asking,
    Cuts,
    EstimateRows,
    FirstBeyond,
    LastBefore,
    NextBound,
    Question,
    TableFacts,
    Walk,
)
from vnode_backfill.words.planner.sample import Sample

__all__ = [
    "MAX_TARGET_ROWS", "MIN_TARGET_ROWS", "RANGES_PER_VNODE", "SAMPLED_ROWS", "Answer", "Asking", "Cuts",
    "EstimateRows", "FirstBeyond", "LastBefore", "NextBound", "Question", "TableFacts", "extend_plan", "make_plan",
    "plan_bounds", "target_rows",
]  # fmt: skip

MIN_TARGET_ROWS = 5_000
MAX_TARGET_ROWS = 50_000
RANGES_PER_VNODE = 4
SAMPLED_ROWS = 1_000_000
"""Of a table that seems to have as many, the index is not walked. A walk over fewer takes about a second."""


def target_rows(rows: int, vnode_count: int, average_row_bytes: int, max_range_bytes: int) -> int:
    """How many rows a range should hold: some ranges per vnode, neither tiny nor huge, and never too many bytes."""
    even = rows // (RANGES_PER_VNODE * vnode_count)
    target = min(max(even, MIN_TARGET_ROWS), MAX_TARGET_ROWS)
    return max(1, min(target, max_range_bytes // max(average_row_bytes, 1)))


def plan_bounds(facts: TableFacts, target: int, cuts: Cuts | None = None) -> Asking[Bounds]:
    """Ask for what is needed to cut the table into ranges of about `target` rows; `()` for an empty table.

    `cuts` are added to as ranges are settled. Those of a planner that was interrupted are continued.
    """
    low, high = facts.minimum, facts.maximum
    if low is None or high is None:
        return ()
    if low > high:
        raise KeyOrderError(f"the table's minimum {low.key!r} sorts after its maximum {high.key!r}")
    if low == high:
        return (low, 1), (high, 0)
    cuts = Cuts.none_from(low) if cuts is None else cuts
    if cuts.bounds[0][0] != low or cuts.low > high:
        raise LawBrokenError(f"ranges from {cuts.bounds[0][0].key!r} to {cuts.low.key!r} are not of this table")
    if cuts.low < high:
        walk = Walk(high, max(1, target), facts.estimated_rows)
        yield from _planner(facts, walk, cuts).finish(cuts)
    return cuts.settled


def _planner(facts: TableFacts, walk: Walk, cuts: Cuts) -> Dives | Sample | Walk:
    if len(facts.parts) == 1 and facts.parts[0].kind in (KeyKind.INT, KeyKind.UINT):
        return Dives(facts.parts, walk)
    left = facts.estimated_rows - cuts.rows
    return Sample(facts.parts, walk) if left >= SAMPLED_ROWS else walk


def make_plan(parts: Sequence[KeyPart], bounds: Bounds, vnode_count: int) -> SplitPlan:
    """The plan of a new job from the bounds `plan_bounds` returned; without bounds a plan without ranges."""
    return plan_of(parts, bounds, vnode_count)


def extend_plan(plan: SplitPlan, below: Bounds = (), above: Bounds = ()) -> SplitPlan:
    """The plan with a new generation of ranges over keys that came below its minimum and above its maximum.

    `below` may end at the plan's minimum, which stays where it is; `above` begins after the plan's maximum.
    """
    if plan.ranges:
        low, high = plan.ranges[0].range.low, plan.ranges[-1].range.high
        if below and low is not None and below[-1][0] > low:
            raise LawBrokenError(
                f"extension below the plan reaches {below[-1][0].key!r}, the plan begins at {low.key!r}"
            )
        if above and high is not None and above[0][0] <= high:
            raise LawBrokenError(
                f"extension above the plan begins at {above[0][0].key!r}, the plan ends at {high.key!r}"
            )
    return plan.extend(below, above)
