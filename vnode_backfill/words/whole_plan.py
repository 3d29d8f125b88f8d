"""Plans a table as one range without bounds, for keys whose order only the server knows.

Every key is in the one range, so no key is ever compared: that is known without looking at it. Everything else of the
protocol holds as for any plan. The range is read by one query, in one epoch; until it was read to its end nothing of it
counts. So such a table must be small enough to be one range.

    plan        keys    position    vnode
    [ -∞, ∞ )   any     0           0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import Int32s, KeyKind, KeyPart, VnodeId
from vnode_backfill.words.key_range import Bounds, KeyRange, PlannedRange, PlanRow, SplitPlan

__all__ = ["WholePlan", "is_whole_row", "whole_plan", "whole_row"]

_ONLY, _VNODE = 0, VnodeId(0)
_NO_BOUND = ""


@dataclass(frozen=True, slots=True)
class WholePlan(SplitPlan):
    """One range that is the whole table. The kinds of `parts` say nothing."""

    def __post_init__(self) -> None:
        if [(planned.ordinal, planned.range, planned.vnode) for planned in self.ranges] != [
            (_ONLY, KeyRange(None, None), _VNODE)
        ]:
            raise LawBrokenError(f"a table in one range has one range without bounds, not {self.ranges}")
        object.__setattr__(self, "_index", SplitPlan(self.parts, self.vnode_count, ())._index)

    @property
    def compares_keys(self) -> bool:
        return False

    def find(self, order: bytes) -> PlannedRange | None:  # noqa: ARG002 - no key is looked at
        return self.ranges[_ONLY]

    def find_many(
        self,
        columns: Sequence[pa.Array],
        weights: Sequence[pa.Array | None] | None = None,  # noqa: ARG002 - no key is looked at
    ) -> Int32s:
        return np.zeros(len(columns[0]), dtype=np.int32)

    def vnodes_of(
        self, columns: Sequence[pa.Array], weights: Sequence[pa.Array | None] | None = None
    ) -> tuple[Int32s, Int32s]:
        return self.find_many(columns, weights), np.full(len(columns[0]), _VNODE, dtype=np.int32)

    def of_vnode(self, vnode: int) -> tuple[PlannedRange, ...]:
        return self.ranges if vnode == _VNODE else ()

    def vnodes_of_ordinals(self, ordinals: Iterable[int]) -> dict[int, VnodeId]:
        return {ordinal: _VNODE for ordinal in ordinals if ordinal == _ONLY}

    def at(self, generation: int) -> SplitPlan:  # noqa: ARG002 - there is only one
        return self

    def extend(self, *stretches: Bounds) -> SplitPlan:
        raise LawBrokenError(f"a table in one range holds every key and cannot be extended by {stretches}")


def whole_plan(key: Sequence[str], vnode_count: int, estimated_rows: int) -> WholePlan:
    """The plan of a table with these key columns."""
    parts = tuple(KeyPart(name, KeyKind.BINARY) for name in key)
    planned = PlannedRange(_ONLY, KeyRange(None, None), _VNODE, estimated_rows)
    return WholePlan(parts, vnode_count, (planned,))


def whole_row(plan: WholePlan) -> PlanRow:
    """The plan as a row of a table of plans; its bounds are empty, which no key's text is."""
    rows = plan.ranges[_ONLY].estimated_rows
    return PlanRow(_ONLY, 0, _VNODE, rows, _NO_BOUND, b"", _NO_BOUND, b"", closed=False)


def is_whole_row(row: PlanRow) -> bool:
    return row.low_key == _NO_BOUND
