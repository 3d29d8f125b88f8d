"""A job that goes on in another log gives the epoch in hand up, and nothing it has shown before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import BackfillState, Phase
from progress.state.schema_state import DefinitionVersion, SchemaState
from tests.unit.decide.coordinated_job import Job
from tests.unit.progress.state.state_examples import DEFINITION, PARTS, SERVER, at, plan_with
from vnode_backfill.decide.log_switch import begun_again, meets_statement_again, moved_to, seen_beyond, tiles
from vnode_backfill.decide.protocol import ReadRanges, Started
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key_range import SplitPlan, bound_of
from vnode_backfill.words.plan import extend_plan
from vnode_backfill.words.schema_change import TableShape

PLAN = plan_with(0, 10, 20, 30)
START = CdcOffset.at("replica", "mysql-bin.000002", 154, era=1)


def mid_snapshot() -> BackfillState:
    """One range was read in epoch 1, another is being read in epoch 2."""
    job = Job.new(PLAN)
    job.position, job.rows_per_worker, job.hold = 200, 10, (ReadRanges,)
    job.happen(Started())
    job.happen(*job.answer(job.held.pop()))
    return job.state


def test_ranges_of_the_epoch_in_hand_are_read_again_and_replace() -> None:
    state = mid_snapshot()
    assert state.intent is not None
    moved = moved_to(state, START, PLAN)
    assert (moved.epoch, moved.intent, moved.written) == (state.intent.epoch, None, START)
    assert frozenset(o for v in moved.vnodes for o in v.replaces) == state.intent.ordinals
    assert not state.intent.ordinals & {o for v in moved.vnodes for o in v.read_ordinals}


def test_what_was_read_before_waits_for_a_sample_of_the_new_log() -> None:
    state = mid_snapshot()
    moved = moved_to(state, START, PLAN)
    assert {epoch for v in moved.vnodes for _, epoch in v.reads} == {moved.epoch}
    assert {v.complete for v in moved.vnodes if v.complete is not None} == {moved.epoch}
    assert Phase.LIVE not in {v.phase for v in moved.vnodes}


def test_begun_again_nothing_of_the_old_log_counts() -> None:
    moved = begun_again(mid_snapshot(), START, PLAN)
    assert {v.applied for v in moved.vnodes} == {START}
    assert frozenset(o for v in moved.vnodes for o in v.replaces) == {planned.ordinal for planned in PLAN.ranges}
    assert not any(v.reads for v in moved.vnodes)


def test_an_earlier_era_cannot_follow() -> None:
    with pytest.raises(LawBrokenError, match="of era 0 cannot follow"):
        moved_to(mid_snapshot(), START.in_era(0), PLAN)


def test_another_server_must_have_what_was_sampled_last() -> None:
    state = mid_snapshot()
    assert state.intent is not None
    sampled = replace(state, intent=replace(state.intent, written=replace(state.intent.written, gtids="0-1-7")))
    assert "0-1-7" in seen_beyond(sampled)
    assert "0-1-7" in seen_beyond(moved_to(sampled, START, PLAN)), "the server after that one too"


def test_a_plan_extended_right_behind_its_end_tiles_and_one_with_a_gap_does_not() -> None:
    def above(low: int) -> SplitPlan:
        return extend_plan(PLAN, above=((bound_of(PARTS, (low,)), 1), (bound_of(PARTS, (90,)), 0)))

    assert tiles(PLAN)
    assert tiles(above(31))
    assert not tiles(above(32))


@pytest.mark.parametrize(
    ("known", "gtid", "there", "again"),
    [
        (f"{SERVER}:1-8", f"{SERVER}:8", f"{SERVER}:1-20", False),
        (f"{SERVER}:1-7:9", f"{SERVER}:8", f"{SERVER}:1-20", True),
        # A change before the statement is lacking: the other log would be taken up there.
        (f"{SERVER}:1-5:7-9", f"{SERVER}:8", f"{SERVER}:1-20", True),
        (f"{SERVER}:2-9", f"{SERVER}:8", f"{SERVER}:1-20", True),
        # The other server has no such transaction either, or it comes after the statement.
        (f"{SERVER}:1-5:7-9", f"{SERVER}:8", f"{SERVER}:1-5:7-20", False),
        (f"{SERVER}:1-8:10", f"{SERVER}:8", f"{SERVER}:1-20", False),
        (f"{SERVER}:1-8", f"{SERVER}:1", f"{SERVER}:1-20", False),
        ("0-1-77", "0-1-76", "0-1-90", False),
        ("0-1-77", "0-1-78", "0-1-90", True),
        (f"{SERVER}:1-7", "", f"{SERVER}:1-20", False),
    ],
)
def test_a_statement_at_or_after_a_transaction_that_the_offset_lacks_would_be_met_again(
    known: str, gtid: str, there: str, again: bool
) -> None:
    version = DefinitionVersion(
        1, at(100), at(110), Epoch(2), "ALTER TABLE orders ADD c INT", TableShape(DEFINITION), gtid=gtid
    )
    state = mid_snapshot()
    assert not meets_statement_again(state, there)
    state = replace(state, written=replace(state.written, gtids=known), schema=SchemaState((version,), in_sink=1))
    assert meets_statement_again(state, there) is again
