"""Shortcuts for a job with very many reads change nothing: what is kept, forgotten and stored is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import FORGOTTEN, BackfillState, Phase, check_laws, forget_old_reads
from progress.state.backfill_state import latest_visible_of as still_visible
from progress.store.rows.checkpoint_rows import Bookkeeping, from_rows, to_rows
from tests.unit.progress.state.state_examples import PARTS, at, beginning, plan_with
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key_range import bound_of

PLAN = plan_with(*range(0, 90, 10), vnode_count=2)
Reads = tuple[tuple[int, Epoch], ...]


def reads(*pairs: tuple[int, int]) -> Reads:
    return tuple((ordinal, Epoch(epoch)) for ordinal, epoch in pairs)


def state_of(*vnodes: tuple[Reads, int | None, int], epoch: int = 9) -> BackfillState:
    """Two vnodes with these reads, complete in this epoch, applied up to this position; epoch n sees n × 10."""
    state = beginning(PLAN)
    made = tuple(
        replace(
            vnode, reads=read, applied=at(applied), phase=Phase.SNAPSHOT if complete is None else Phase.CATCH_UP,
            complete=None if complete is None else Epoch(complete),
        )
        for vnode, (read, complete, applied) in zip(state.vnodes, vnodes, strict=True)
    )  # fmt: skip
    visible = tuple((Epoch(number), VisibleAt(at(10 * number))) for number in range(1, epoch + 1))
    return replace(state, epoch=Epoch(epoch), vnodes=made, visible=visible)


def seeing(state: BackfillState, *epochs: int) -> BackfillState:
    """The state with the visibilities of these epochs only."""
    return replace(state, visible=tuple(pair for pair in state.visible if pair[0] in epochs))


def seen(state: BackfillState) -> list[int]:
    return [epoch for epoch, _ in still_visible(state.visible, state)]


def test_visibility_of_the_read_that_completed_a_vnode_is_kept() -> None:
    state = state_of((reads((0, 3), (1, 5)), 5, 1), (reads((2, 7)), None, 1))
    assert seen(state) == [3, 5, 7, 9]
    assert seen(seeing(state, 5, 7, 9)) == [5, 7, 9]


def test_visibility_that_no_read_refers_to_is_dropped() -> None:
    assert seen(state_of((reads((0, 2)), 2, 1), (reads((2, 2)), 4, 1))) == [2, 9]
    assert seen(state_of(((), 0, 1), ((), 0, 1))) == [9]


@pytest.mark.parametrize(("applied", "known"), [(29, 3), (30, 0), (31, 0)])
def test_read_is_forgotten_once_all_it_could_see_is_applied(applied: int, known: int) -> None:
    before = state_of((reads((0, 3), (1, 5)), 5, applied), (reads((2, 8)), None, 200))
    state = forget_old_reads(seeing(before, 3, 5, 8, 9))
    assert [vnode.reads for vnode in state.vnodes] == [reads((0, known), (1, 5)), reads((2, 8))]
    assert [epoch for epoch, _ in state.visible] == [*([3] if known else []), 5, 8, 9]


def test_read_that_completed_its_vnode_is_forgotten_in_its_turn() -> None:
    """The shortcut is for vnodes that were complete before every epoch that is remembered, not in the first of them."""
    before = state_of((reads((0, 3)), 3, 40), (reads((2, 8)), None, 1))
    state = forget_old_reads(seeing(before, 3, 8, 9))
    assert state.vnodes[0].reads == reads((0, FORGOTTEN))
    assert forget_old_reads(seeing(state, 8, 9)).vnodes == state.vnodes


def test_reads_of_the_last_two_epochs_are_never_forgotten() -> None:
    state = forget_old_reads(state_of((reads((0, 7), (1, 8)), 8, 500), (reads((2, 9)), 9, 500)))
    assert [vnode.reads for vnode in state.vnodes] == [reads((0, FORGOTTEN), (1, 8)), reads((2, 9))]


def test_read_that_is_lost_among_others_breaks_a_law() -> None:
    before = state_of((reads((0, 3), (1, 5)), None, 1), ((), None, 1))
    for left in (reads((1, 5)), reads((0, 3), (2, 5))):
        after = replace(before, revision=1, vnodes=(replace(before.vnodes[0], reads=left), before.vnodes[1]))
        with pytest.raises(LawBrokenError, match="were read and would count as unread"):
            check_laws(before, after, PLAN, frozenset())


def test_runs_end_with_their_vnode_their_epoch_and_a_gap() -> None:
    stored = (reads((0, 1), (1, 1), (2, 2), (4, 2), (5, 2)), reads((6, 2), (7, 2)))
    for kept in (stored, ((), stored[1]), (stored[0], ()), ((), ())):
        state = state_of((kept[0], None, 1), (kept[1], None, 1))
        rows = to_rows(state, Bookkeeping("id"))
        runs = [run["first"] for each in rows["reads"].to_pylist() if each for run in each]
        assert runs == [*([0, 2, 4] if kept[0] else []), *([6] if kept[1] else [])]
        loaded = from_rows(rows)
        assert loaded is not None
        assert [vnode.reads for vnode in loaded[0].vnodes] == list(kept)


def test_plan_knows_the_vnode_of_each_of_its_ranges_and_of_no_other() -> None:
    extended = PLAN.extend(((bound_of(PARTS, (90,)), 10), (bound_of(PARTS, (95,)), 0)))
    for plan in (PLAN, extended):
        expected = {planned.ordinal: planned.vnode for planned in plan.ranges}
        assert plan.vnodes_of_ordinals([*expected, 1000]) == expected
    assert extended.generation == 1
    assert extended.at(0).vnodes_of_ordinals([8]) == {}
