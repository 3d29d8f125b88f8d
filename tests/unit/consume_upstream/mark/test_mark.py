"""A change is dropped only where a read is proven to include it, and a batch is marked as each of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.log.offset import VisibleAt
from consume_upstream.mark import OUTSIDE, MarkView, mark_chunk, merge_view, upstream_marks
from progress.state.backfill_state import FORGOTTEN, BackfillState, Phase
from tests.unit.progress.state.state_examples import at, beginning, plan_with
from vnode_backfill.words.change import Mark
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId

PLAN = plan_with(0, 10, 20, 30)
NOW = VisibleAt(at(500))


def state_with(reads: dict[int, int], *, live: bool = False) -> BackfillState:
    """Ranges by ordinal read in the given epochs; s[n] is 100 × n + 100."""
    state = beginning(PLAN)
    visible = tuple((Epoch(n), VisibleAt(at(100 * n + 100))) for n in range(5))
    vnodes = tuple(
        replace(
            v,
            reads=tuple((r.ordinal, Epoch(reads[r.ordinal])) for r in PLAN.of_vnode(v.vnode) if r.ordinal in reads),
            phase=Phase.LIVE if live else v.phase,
        )
        for v in state.vnodes
    )
    return replace(state, visible=visible, vnodes=vnodes)


def marked(view: MarkView, ordinal: int, pos: int) -> Mark:
    """The plan's ranges are in key order, so position and ordinal are the same here."""
    vnode = VnodeId(0) if ordinal == OUTSIDE else PLAN.ranges[ordinal].vnode
    (mark,) = marks_of(view, [(ordinal, vnode, at(pos).number, pos)])
    return Mark(mark)


def marks_of(view: MarkView, rows: Sequence[tuple[int, int, int, int]]) -> list[int]:
    """The marks of changes given as position in the plan, vnode, file and position in the file."""
    position, vnode, file, pos = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    marks = mark_chunk(view, position.astype(np.int32), vnode.astype(np.int32), file, pos)
    assert marks.dtype == np.int8
    found: list[int] = marks.tolist()
    return found


def expected(low: tuple[int, int] | None, end: tuple[int, int], *, live: bool) -> Mark:
    """The rule of one change: `low` is the low mark of its range, None where nothing is proven."""
    if low is not None and end <= low:
        return Mark.DROP
    return Mark.FORWARD if live else Mark.BUFFER


def test_change_of_an_unread_range_is_dropped_if_the_coming_read_will_see_it() -> None:
    view = upstream_marks(state_with({}), PLAN).view(NOW)
    assert marked(view, 0, 500) is Mark.DROP
    assert marked(view, 0, 501) is Mark.BUFFER


def test_change_of_a_range_that_was_read_is_dropped_only_if_that_read_saw_it() -> None:
    view = upstream_marks(state_with({1: 2}), PLAN).view(NOW)
    assert marked(view, 1, 300) is Mark.DROP
    assert marked(view, 1, 301) is Mark.BUFFER
    assert marked(view, 0, 301) is Mark.DROP


def test_change_outside_the_plan_is_never_dropped() -> None:
    for view in (upstream_marks(state_with({}), PLAN).view(NOW), merge_view(state_with({0: 4}), PLAN)):
        assert marked(view, OUTSIDE, 1) is Mark.BUFFER
    assert marked(merge_view(state_with({}, live=True), PLAN), OUTSIDE, 1) is Mark.FORWARD


def test_change_of_a_live_vnode_is_forwarded() -> None:
    view = upstream_marks(state_with({0: 1, 1: 1, 2: 1}, live=True), PLAN).view(NOW)
    assert marked(view, 0, 200) is Mark.DROP
    assert marked(view, 0, 201) is Mark.FORWARD


def test_change_buffered_before_its_range_was_read_is_dropped_at_the_merge() -> None:
    before = upstream_marks(state_with({}), PLAN).view(VisibleAt(at(150)))
    assert marked(before, 0, 200) is Mark.BUFFER
    assert marked(merge_view(state_with({0: 3}), PLAN), 0, 200) is Mark.DROP


def test_read_whose_changes_are_all_applied_drops_nothing_any_more() -> None:
    view = merge_view(state_with({0: FORGOTTEN}), PLAN)
    assert marked(view, 0, 101) is Mark.BUFFER


def test_unread_range_drops_nothing_at_the_merge() -> None:
    assert marked(merge_view(state_with({}), PLAN), 0, 1) is Mark.BUFFER


def test_plan_without_ranges_marks_every_key_as_outside() -> None:
    empty = plan_with()
    view = upstream_marks(beginning(empty), empty).view(NOW)
    assert marks_of(view, [(OUTSIDE, 3, at(1).number, 1)]) == [Mark.BUFFER]


changes = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 3), st.integers(1, 3), st.integers(0, 700)),
    max_size=30,
)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 2), st.integers(0, 4)), st.booleans(), st.integers(0, 700), changes)
def test_batch_is_marked_as_the_rule_says_of_each_change(
    reads: dict[int, int], live: bool, visible: int, rows: list[tuple[int, int, int, int]]
) -> None:
    state = state_with(reads, live=live)
    seen = {n: None if epoch == FORGOTTEN else at(100 * epoch + 100).order for n, epoch in reads.items()}
    lows = dict.fromkeys(range(3), at(visible, number=2).order) | seen
    for view, low in (
        (upstream_marks(state, PLAN).view(VisibleAt(at(visible, number=2))), lows),
        (merge_view(state, PLAN), seen),
    ):
        assert marks_of(view, rows) == [
            expected(low.get(position), at(pos, number=number).order, live=live) for position, _, number, pos in rows
        ]
