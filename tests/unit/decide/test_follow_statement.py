"""A statement cuts an epoch: what was read near it is read again, merges end before it, and the sink follows once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import LoggedTransaction, Visibility, VisibleAt, VisibleGtids
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import FORGOTTEN, BackfillState, Intent, Phase
from progress.state.schema_state import StatementNote
from tests.unit.decide.coordinated_job import Job
from tests.unit.decide.statements import CARRIED, EMPTIED, STEPS, statement
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, at, beginning, plan_with
from vnode_backfill.decide.follow_statement import after_statement, before_statement
from vnode_backfill.decide.next_epoch import may_go_live, merge_bound, merging_vnodes, next_intent, sink_may_change
from vnode_backfill.decide.protocol import (
    StatementResolved,
)
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.schema_change import (
    Ended,
    NewCopy,
    NoEffect,
    SetAside,
    StatementEffect,
    TableShape,
)

ONE_VNODE = plan_with(0, 10, 20, vnode_count=1)
SHAPE = TableShape(DEFINITION)
EFFECTS = [NoEffect(), CARRIED]
FOUND = statement(500)


def intent(epoch: int = 7, *, visible: Visibility | None = None, **what: object) -> Intent:
    seen = visible or VisibleAt(at(600))
    return replace(Intent(Epoch(epoch), BarrierKind.CHECKPOINT, at(600), seen, ((),), 0), **what)  # type: ignore[arg-type]


def ended(*reads: tuple[int, int], complete: int | None = None) -> BackfillState:
    """A state at the end of epoch 7, which was cut at 500; its one vnode has two ranges."""
    state = beginning(ONE_VNODE)
    phase = Phase.SNAPSHOT if complete is None else Phase.CATCH_UP
    done = None if complete is None else Epoch(complete)
    (vnode,) = state.vnodes
    vnode = replace(vnode, phase=phase, reads=tuple((o, Epoch(e)) for o, e in reads), complete=done)
    return replace(state, epoch=Epoch(7), written=at(500), visible=((Epoch(7), VisibleAt(at(480))),), vnodes=(vnode,))


def after(state: BackfillState, effect: StatementEffect, found: FoundStatement = FOUND) -> BackfillState:
    return after_statement(state, ONE_VNODE, intent(), StatementResolved(found, effect, SHAPE))[0]


@pytest.mark.parametrize("effect", EFFECTS)
def test_only_ranges_whose_sample_was_before_the_statement_stay_read(effect: StatementEffect) -> None:
    """The example of the module: r1 was read in 4, r2 in 6, the statement is in 7."""
    (vnode,) = after(ended((0, 4), (1, 6), complete=6), effect).vnodes
    assert vnode.reads == ((0, Epoch(4)),)
    assert (vnode.phase, vnode.complete) == (Phase.SNAPSHOT, None)
    assert vnode.replaces == {1}
    assert vnode.floor == at(510)


@pytest.mark.parametrize("effect", EFFECTS)
def test_ranges_of_the_cut_epoch_are_read_again(effect: StatementEffect) -> None:
    state, back = after_statement(ended((0, 5), (1, 7)), ONE_VNODE, intent(), StatementResolved(FOUND, effect, SHAPE))
    assert state.vnodes[0].reads == ((0, Epoch(5)),)
    assert back == {0}


def test_two_statements_before_one_sample_leave_no_range_read_before_it() -> None:
    """r1 was read in 6, so its sample is w[7] = 600. Nothing changes at 500, in epoch 7; a column is added at 550, in
    epoch 8, and is still before 600."""
    state = after(ended((0, 6)), NoEffect())
    state = replace(state, epoch=Epoch(8), written=at(550))
    assert after(state, CARRIED, statement(550)).vnodes[0].reads == ()


@pytest.mark.parametrize("effect", EFFECTS)
def test_vnode_without_ranges_waits_when_the_first_epoch_is_cut(effect: StatementEffect) -> None:
    """Its plan was made after the first offset, perhaps after the statement: the first sample is its high watermark."""
    empty = plan_with(vnode_count=1)
    state = replace(beginning(empty), epoch=Epoch(1), written=at(500))
    resolved = StatementResolved(FOUND, effect, SHAPE)
    waiting, _ = after_statement(state, empty, intent(1), resolved)
    assert waiting.vnodes[0].complete == 1
    assert not may_go_live(waiting.vnodes[0], intent(2))
    assert before_statement(state, empty, FOUND)[0].vnodes[0].complete == 1


def test_vnode_that_was_complete_long_before_does_not_wait() -> None:
    assert after(ended((0, 4), (1, 5), complete=5), CARRIED).vnodes[0].complete == 5


def test_reads_that_are_forgotten_stay_read() -> None:
    state = ended((0, 0), (1, 0), complete=6)
    assert after(state, CARRIED).vnodes[0].read_ordinals == {0, 1}


def test_floor_of_a_range_that_waits_for_more_does_not_fall() -> None:
    state = ended((0, 6))
    state = replace(state, vnodes=(replace(state.vnodes[0], applied=at(700)),))
    assert after(state, CARRIED).vnodes[0].floor == at(700)


@pytest.mark.parametrize("effect", [*EFFECTS, EMPTIED])
def test_capture_continues_after_the_statement(effect: StatementEffect) -> None:
    assert after(ended(), effect).written == at(510)


def test_carried_statement_makes_a_version_since_the_next_epoch() -> None:
    schema = after(ended(), CARRIED).schema
    (version,) = schema.versions
    assert (version.number, version.before, version.after, version.since) == (1, at(500), at(510), 8)
    assert (version.steps, version.emptied, version.shape) == (STEPS, False, SHAPE)
    assert schema.notes == (StatementNote(at(500), FOUND.text, "the columns follow"),)
    assert schema.pending == version


def test_statement_without_effect_is_noted_and_makes_no_version() -> None:
    schema = after(ended(), NoEffect()).schema
    assert schema.versions == ()
    assert schema.notes == (StatementNote(at(500), FOUND.text, "none"),)


def test_emptied_table_counts_as_read_and_applied_up_to_the_statement() -> None:
    state = ended((0, 6))
    state = replace(state, vnodes=(replace(state.vnodes[0], replaces=frozenset({1}), floor=at(450)),))
    emptied = after(state, EMPTIED)
    (vnode,) = emptied.vnodes
    assert (vnode.phase, vnode.applied, vnode.complete) == (Phase.CATCH_UP, at(510), 7)
    assert vnode.reads == ((0, FORGOTTEN), (1, FORGOTTEN))
    assert (vnode.replaces, vnode.floor) == (frozenset(), None)
    assert emptied.schema.versions[0].emptied


@pytest.mark.parametrize("effect", [NewCopy("charset"), Ended("dropped"), SetAside("unknown")])
def test_no_job_continues_after_what_ends_its_copy(effect: StatementEffect) -> None:
    with pytest.raises(LawBrokenError, match="a job cannot continue after"):
        after(ended(), effect)


def test_version_without_a_shape_is_refused() -> None:
    with pytest.raises(LawBrokenError, match="no shape of the target is known"):
        after_statement(ended(), ONE_VNODE, intent(), StatementResolved(FOUND, CARRIED))


def test_transaction_of_a_statement_that_is_not_visible_yet_is_missing() -> None:
    unseen = intent(visible=VisibleGtids(GtidSet.parse(f"{SERVER}:1-8")))
    seen = intent(visible=VisibleGtids(GtidSet.parse(f"{SERVER}:1-9")))
    resolved = StatementResolved(FOUND, NoEffect())
    state, _ = after_statement(ended(), ONE_VNODE, unseen, resolved)
    assert state.missing == (LoggedTransaction(FOUND.gtid, at(500)),)
    assert after_statement(ended(), ONE_VNODE, seen, resolved)[0].missing == ()
    assert after(ended(), NoEffect()).missing == ()


def test_stop_at_a_statement_sets_back_what_was_read_near_it_and_captures_no_further() -> None:
    state, back = before_statement(ended((0, 4), (1, 6), complete=6), ONE_VNODE, FOUND)
    assert state.written == at(500)
    assert state.vnodes[0].reads == ((0, Epoch(4)),)
    assert state.vnodes[0].floor == at(510)
    assert back == {0}
    assert state.schema.versions == ()


def test_merge_ends_before_a_pending_statement_and_takes_no_vnode_beyond_it() -> None:
    state = after(ended((0, 3), (1, 4), complete=4), CARRIED)
    assert merge_bound(state, intent(8)) == at(500)
    assert [v.vnode for v in merging_vnodes(state, intent(9))] == [0]
    assert merging_vnodes(after(ended(), EMPTIED), intent(9)) == ()


def test_own_slice_that_is_cut_is_merged_up_to_the_cut() -> None:
    state = replace(ended((0, 3), (1, 4), complete=4), written=at(450))
    own = intent(8, own_slice=True)
    assert merge_bound(state, own, FOUND) == at(500)
    assert merge_bound(state, own) == at(600)
    assert merge_bound(state, intent(8), FOUND) == at(450)


def test_vnode_read_an_epoch_before_a_drain_that_is_cut_does_not_merge() -> None:
    (vnode,) = ended((0, 3), (1, 6), complete=6).vnodes
    drain = intent(7, kind=BarrierKind.SYNC_CHECKPOINT)
    assert may_go_live(vnode, drain)
    assert not may_go_live(vnode, drain, FOUND)


def test_no_range_is_planned_while_the_sink_follows() -> None:
    state = after(ended(), CARRIED)
    sample = Job.new().sample_of()
    planned = next_intent(state, ONE_VNODE, sample, drain=False)
    assert planned is None or planned.ordinals == frozenset()
    followed = replace(state, schema=replace(state.schema, in_sink=1))
    reading = next_intent(followed, ONE_VNODE, sample, drain=False)
    assert reading is not None
    assert reading.ordinals == {0, 1}


def test_sink_may_change_once_every_vnode_that_was_read_is_merged_up_to_the_statement() -> None:
    state = after(ended((0, 3), (1, 4), complete=4), CARRIED)
    assert not sink_may_change(state)
    assert sink_may_change(replace(state, vnodes=(replace(state.vnodes[0], applied=at(500)),)))
    assert sink_may_change(after(ended((0, 3)), CARRIED)), "a vnode with unread ranges is lifted when it merges"
    assert not sink_may_change(ended())


def test_vnode_whose_high_watermark_is_after_a_pending_statement_waits_until_the_sink_has_followed() -> None:
    """It has no range, and its plan was made at 560. The epoch was cut at 500: merged up to there, it would lack rows
    that a partition dropped at 500 held."""
    empty = plan_with(vnode_count=1)
    state = replace(beginning(empty), epoch=Epoch(1), written=at(500))
    state, _ = after_statement(state, empty, intent(1), StatementResolved(FOUND, CARRIED, SHAPE))
    assert may_go_live(state.vnodes[0], intent(3))
    assert merging_vnodes(state, intent(3)) == ()
    assert sink_may_change(state), "nobody would ever merge it"
    followed = replace(state, epoch=Epoch(2), written=at(600), schema=replace(state.schema, in_sink=1))
    assert [v.vnode for v in merging_vnodes(followed, intent(3))] == [0]


def test_vnode_that_is_live_does_not_wait_for_the_sink() -> None:
    state = ended(complete=7)
    state = after(replace(state, vnodes=(replace(state.vnodes[0], phase=Phase.LIVE),)), CARRIED)
    assert [v.vnode for v in merging_vnodes(state, intent(9))] == [0]
    assert not sink_may_change(state)
