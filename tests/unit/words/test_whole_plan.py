"""A plan of one range holds every key without looking at it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key_range import KeyRange, PlannedRange
from vnode_backfill.words.whole_plan import is_whole_row, whole_plan, whole_row

PLAN = whole_plan(("kind", "n"), 8, 120)


def test_every_key_is_in_the_one_range_and_vnode() -> None:
    positions, vnodes = PLAN.vnodes_of([pa.array(["b", "a", ""]), pa.array([1, 2, 3])])
    assert (positions.tolist(), vnodes.tolist()) == ([0, 0, 0], [0, 0, 0])
    assert [len(PLAN.of_vnode(vnode)) for vnode in range(8)] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert PLAN.vnodes_of_ordinals([0, 1]) == {0: 0}
    assert not PLAN.compares_keys
    assert PLAN.at(0) is PLAN


def test_it_is_stored_as_a_row_without_bounds() -> None:
    row = whole_row(PLAN)
    assert is_whole_row(row)
    assert (row.estimated_rows, row.generation) == (120, 0)


@pytest.mark.parametrize("range_of", [PlannedRange(1, KeyRange(None, None), PLAN.ranges[0].vnode, 1)])
def test_another_range_is_none_of_it(range_of: PlannedRange) -> None:
    with pytest.raises(LawBrokenError, match="one range without bounds"):
        replace(PLAN, ranges=(*PLAN.ranges, range_of))
    with pytest.raises(LawBrokenError, match="cannot be extended"):
        PLAN.extend()
