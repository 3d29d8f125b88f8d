"""No commit may break a law; what a job forgets, nothing needs any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import (
    FORGOTTEN,
    BackfillState,
    Controls,
    Intent,
    Phase,
    VnodeState,
    check_laws,
    forget_old_reads,
    latest_visible_of,
    new_state,
)
from tests.unit.progress.state.state_examples import at, beginning, plan_with
from vnode_backfill.words.bitmap import VnodeBitmap, split_evenly
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import BitmapError, LawBrokenError
from vnode_backfill.words.key import VnodeId

PLAN = plan_with(0, 10, 20, 30)
RANGE = PLAN.ranges[0]
VNODE = RANGE.vnode
OWN = tuple((planned.ordinal, Epoch(1)) for planned in PLAN.of_vnode(VNODE))


def changed(state: BackfillState, **changes: object) -> BackfillState:
    """The next commit, with changes to the vnode of the first range."""
    vnodes = tuple(
        replace(v, **changes) if v.vnode == VNODE else v  # type: ignore[arg-type]
        for v in state.vnodes
    )
    return replace(state, revision=state.revision + 1, vnodes=vnodes)


def read_state(phase: Phase = Phase.LIVE) -> BackfillState:
    state = changed(beginning(PLAN), phase=phase, reads=OWN, complete=Epoch(1), rows=5, epoch=Epoch(3), applied=at(150))
    return replace(state, visible=((Epoch(0), VisibleAt(at(100))), (Epoch(1), VisibleAt(at(120)))))


def test_new_job_has_read_nothing_and_knows_its_first_offset() -> None:
    state = beginning(PLAN, workers=2)
    assert {v.applied for v in state.vnodes} == {at(100)}
    assert state.written == at(100)
    assert state.visibility == {Epoch(0): VisibleAt(at(100))}
    assert (state.revision, state.epoch, state.rows) == (0, 0, 0)
    for vnode in state.vnodes:
        has_ranges = bool(PLAN.of_vnode(vnode.vnode))
        assert vnode.phase is (Phase.PENDING if has_ranges else Phase.CATCH_UP)
        assert vnode.complete == (None if has_ranges else Epoch(0))


def test_new_job_with_a_vnode_nobody_has_is_refused() -> None:
    with pytest.raises(BitmapError, match="vnodes 2-3 are in no bitmap"):
        new_state(VisibleAt(at(1)), PLAN, (VnodeBitmap.parse("0-1", 4),))


def test_job_is_live_when_every_vnode_is_at_one_offset() -> None:
    live = tuple(replace(v, phase=Phase.LIVE, complete=Epoch(1)) for v in beginning(PLAN).vnodes)
    state = replace(beginning(PLAN), vnodes=live)
    assert state.is_live
    unread = replace(state, vnodes=(replace(live[0], complete=None), *live[1:]))
    assert not unread.is_live
    assert not changed(state, applied=at(101)).is_live
    assert not changed(state, phase=Phase.CATCH_UP).is_live


def test_highest_and_lowest_applied_offsets_bound_all_vnodes() -> None:
    state = changed(beginning(PLAN), applied=at(4, number=2))
    assert (state.lowest_applied, state.highest_applied) == (at(100), at(4, number=2))


def test_newest_visibility_is_of_the_newest_epoch() -> None:
    state = replace(read_state(), visible=((Epoch(7), VisibleAt(at(170))), (Epoch(1), VisibleAt(at(120)))))
    assert state.newest_visible == VisibleAt(at(170))


def test_worker_of_a_vnode_is_the_one_with_its_bit() -> None:
    state = beginning(PLAN, workers=2)
    assert [state.worker_of(VnodeId(v)) for v in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("controls", "reading"),
    [
        (Controls(), True),
        (Controls(rows_per_second=5), True),
        (Controls(rows_per_second=0), False),
        (Controls(paused=True), False),
    ],
)
def test_snapshot_is_read_unless_paused_or_limited_to_nothing(controls: Controls, reading: bool) -> None:
    assert controls.reading is reading


def test_read_is_forgotten_once_everything_it_could_see_is_applied() -> None:
    newest = (Epoch(2), VisibleAt(at(160)))
    before = replace(read_state(), epoch=Epoch(3), visible=(*read_state().visible, newest))
    after = forget_old_reads(before)
    assert after.vnodes[VNODE].reads == tuple((ordinal, FORGOTTEN) for ordinal, _ in OWN)
    assert Epoch(1) not in after.visibility
    assert after.newest_visible == newest[1], "the newest stays though no read refers to it"
    assert forget_old_reads(after) == after


@pytest.mark.parametrize("epoch", [1, 2])
def test_reads_of_the_last_two_epochs_are_remembered_because_a_statement_may_have_met_them(epoch: int) -> None:
    assert forget_old_reads(replace(read_state(), epoch=Epoch(epoch))).vnodes[VNODE].reads == OWN


def test_read_is_remembered_while_a_change_it_saw_may_still_come() -> None:
    state = replace(changed(read_state(), applied=at(119)), epoch=Epoch(3))
    assert forget_old_reads(state).vnodes[VNODE].reads == OWN


def test_visibility_is_kept_while_a_read_refers_to_it() -> None:
    pairs = tuple((Epoch(n), VisibleAt(at(100 + n))) for n in range(4))
    kept = latest_visible_of(pairs, read_state())
    assert [epoch for epoch, _ in kept] == [1, 3]


def test_lawful_commit_is_accepted() -> None:
    state = beginning(PLAN)
    check_laws(state, replace(state, revision=1), PLAN, frozenset())
    check_laws(state, replace(state, revision=1, epoch=Epoch(1)), PLAN, frozenset())
    check_laws(state, changed(state, phase=Phase.CATCH_UP, reads=OWN, complete=Epoch(1), rows=9), PLAN, frozenset())


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (replace(read_state(), revision=3), "commit 1 of epoch 0 cannot be followed by commit 3"),
        (replace(read_state(), revision=2, epoch=Epoch(2)), "commit 1 of epoch 0 cannot be followed by .* epoch 2"),
        (replace(read_state(), revision=2, written=at(99)), "written offset would fall from .*:100 to .*:99"),
        (changed(read_state(), applied=at(149)), "applied offset would fall from .*:150 to .*:149"),
        (changed(read_state(), epoch=Epoch(2)), "epoch or rows would fall from 3, 5 to 2, 5"),
        (changed(read_state(), rows=4), "epoch or rows would fall from 3, 5 to 3, 4"),
        (changed(read_state(), phase=Phase.CATCH_UP), "phase would go back from live to catch-up"),
        (changed(read_state(), reads=()), "were read and would count as unread"),
        (changed(read_state(), complete=None), "complete=None but"),
        (changed(read_state(), reads=OWN * 2), "are not each one of its planned ranges once"),
        (changed(read_state(), reads=(*OWN, (77, Epoch(1)))), "are not each one of its planned ranges once"),
    ],
)
def test_commit_that_breaks_a_law_is_refused_with_both_values(after: BackfillState, reason: str) -> None:
    with pytest.raises(LawBrokenError, match=reason):
        check_laws(read_state(), after, PLAN, frozenset())


LIVE = replace(
    beginning(PLAN),
    vnodes=tuple(
        replace(
            v, phase=Phase.LIVE, complete=Epoch(1), reads=tuple((r.ordinal, Epoch(0)) for r in PLAN.of_vnode(v.vnode))
        )
        for v in beginning(PLAN).vnodes
    ),
)
OWN_SLICE = Intent(Epoch(1), BarrierKind.CHECKPOINT, at(200), VisibleAt(at(200)), ((),), 0, own_slice=True)


def test_live_job_may_merge_its_own_slice() -> None:
    check_laws(LIVE, replace(LIVE, revision=1, intent=OWN_SLICE), PLAN, frozenset())


@pytest.mark.parametrize(
    ("state", "intent"),
    [
        (beginning(PLAN), OWN_SLICE),
        (LIVE, replace(OWN_SLICE, ranges=((0,),))),
        (LIVE, replace(OWN_SLICE, kind=BarrierKind.SYNC_CHECKPOINT)),
    ],
    ids=["not live", "a range is read", "a SyncCheckpoint"],
)
def test_no_other_epoch_merges_its_own_slice(state: BackfillState, intent: Intent) -> None:
    with pytest.raises(LawBrokenError, match="epoch 1 would merge its own slice"):
        check_laws(state, replace(state, revision=1, intent=intent), PLAN, frozenset())


def test_vnode_set_back_on_request_may_leave_live() -> None:
    after = changed(read_state(), phase=Phase.SNAPSHOT, reads=(), complete=None, replaces=frozenset({RANGE.ordinal}))
    check_laws(read_state(), after, PLAN, frozenset({VNODE}))
    with pytest.raises(LawBrokenError, match="phase would go back"):
        check_laws(read_state(), after, PLAN, frozenset())


def test_vnode_set_back_still_may_not_lose_what_is_applied() -> None:
    with pytest.raises(LawBrokenError, match="applied offset would fall"):
        check_laws(read_state(), changed(read_state(), applied=at(1)), PLAN, frozenset({VNODE}))


def test_vnode_with_unread_ranges_is_neither_in_catch_up_nor_live() -> None:
    state = beginning(PLAN)
    with pytest.raises(LawBrokenError, match="phase catch-up while ranges are unread"):
        check_laws(state, changed(state, phase=Phase.CATCH_UP), PLAN, frozenset())


def test_assignment_with_a_hole_is_refused() -> None:
    state = beginning(PLAN)
    with pytest.raises(BitmapError, match="in no bitmap"):
        check_laws(state, replace(state, revision=1, assignment=split_evenly(4, 2)[:1]), PLAN, frozenset())


def test_read_ordinals_are_the_ranges_without_their_epochs() -> None:
    vnode = VnodeState(VnodeId(0), Phase.SNAPSHOT, at(1), reads=((4, Epoch(2)), (1, Epoch(3))))
    assert vnode.read_ordinals == {1, 4}
