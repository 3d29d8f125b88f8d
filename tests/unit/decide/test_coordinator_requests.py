"""What an operator asks for is done between two epochs, once, and acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import Controls, Phase, RequestKind
from tests.unit.decide.coordinated_job import (
    LOST,
    PLAN,
    Job,
    barriers,
    extended,
    held_in_epoch_one,
    kinds,
    live_job,
    only,
)
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Coordinator, Stage
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    ActorFailed,
    BufferChanges,
    ChangesBuffered,
    CommitEpoch,
    CommitReceipts,
    ExtendPlan,
    MergeEpoch,
    PlanExtended,
    RangesRead,
    ReadRanges,
    Sampled,
    SampleSource,
    Started,
    Stop,
)
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key import VnodeId


def test_paused_job_reads_no_range_but_goes_on_with_the_log() -> None:
    job = held_in_epoch_one(SampleSource)
    job.ask(1, RequestKind.PAUSE)
    job.hold = ()
    job.sample()
    assert job.state.controls.paused
    assert [a.request for a in job.state.acknowledged] == [1]
    assert job.stage is Stage.IDLE
    job.position = 200
    orders = job.sample()
    assert [order.lanes for order in orders if isinstance(order, ReadRanges)] == [((),)] * len(
        [order for order in orders if isinstance(order, ReadRanges)]
    )
    assert job.state.written == at(200)
    job.ask(2, RequestKind.RESUME)
    assert job.state.is_live


def test_accepted_statement_is_kept_in_the_state_and_a_pause_stays() -> None:
    job = held_in_epoch_one(SampleSource)
    job.ask(1, RequestKind.PAUSE)
    job.ask(2, RequestKind.RESUME, accept="binlog.000001:150")
    job.hold = ()
    job.sample()
    assert job.state.controls == Controls(paused=True, accepted="binlog.000001:150")
    assert [a.request for a in job.state.acknowledged] == [1, 2]


def test_rate_limit_of_nothing_waits_until_it_is_lifted() -> None:
    job = held_in_epoch_one(SampleSource)
    job.ask(1, RequestKind.RATE_LIMIT, rows_per_second=0)
    job.hold = ()
    job.sample()
    assert job.state.controls.rows_per_second == 0
    assert job.state.rows == 0
    job.ask(2, RequestKind.RATE_LIMIT, rows_per_second=500)
    assert job.state.controls.rows_per_second == 500
    assert job.state.is_live


def test_epoch_is_sized_by_what_a_worker_can_read() -> None:
    job = Job.new(workers=2)
    job.rows_per_worker = 10
    job.happen(Started())
    lanes = [order.lanes for order in job.orders if isinstance(order, ReadRanges)]
    assert all(len(lane) <= 1 for each in lanes for lane in each)
    assert sorted(ordinal for each in lanes for lane in each for ordinal in lane) == [0, 1, 2]
    for each in lanes:
        for worker, lane in enumerate(each):
            assert all(PLAN.ranges[ordinal].vnode in split_evenly(4, 2)[worker] for ordinal in lane)


def test_rescale_drains_the_merge_before_the_bitmaps_change() -> None:
    job = live_job()
    before = job.state
    job.position = 200
    job.hold = (BufferChanges,)
    orders = job.ask(1, RequestKind.RESCALE, workers=3)
    assert barriers(orders) == [BarrierKind.SYNC_CHECKPOINT]
    assert only(orders, ReadRanges).lanes == ((),)
    assert job.state.assignment == before.assignment
    epoch = Epoch(job.state.epoch + 1)
    job.hold = ()
    orders = job.happen(ChangesBuffered(epoch, VisibleAt(at(200)), (), 1))
    first = next(order for order in orders if isinstance(order, CommitEpoch))
    assert kinds(orders).index("MergeEpoch") < kinds(orders).index("CommitEpoch")
    assert first.state.epoch == epoch
    assert len(first.state.assignment) == 3
    assert first.state.assignment_generation == before.assignment_generation + 1
    assert first.state.vnodes == tuple(replace(v, applied=at(200), epoch=epoch) for v in before.vnodes)
    assert job.stage is Stage.IDLE


def test_rescale_of_an_unread_job_moves_vnodes_as_they_are_and_reading_goes_on() -> None:
    job = held_in_epoch_one(SampleSource)
    job.ask(1, RequestKind.PAUSE)
    job.hold = ()
    job.sample()
    before = job.state
    job.ask(2, RequestKind.RESCALE, workers=2)
    assert len(job.state.assignment) == 2
    assert [v.reads for v in job.state.vnodes] == [v.reads for v in before.vnodes]
    assert not job.state.is_live
    job.ask(3, RequestKind.RESUME)
    assert job.state.is_live


def test_rescale_that_arrives_with_a_stop_is_carried_out_by_its_sync_checkpoint() -> None:
    job = live_job()
    job.hold = (BufferChanges,)
    job.ask(1, RequestKind.STOP)
    job.ask(2, RequestKind.RESCALE, workers=2)
    job.hold = ()
    job.happen(ChangesBuffered(Epoch(job.state.epoch + 1), VisibleAt(at(job.position)), (), 1))
    assert job.stage is Stage.STOPPED
    assert job.state.is_live
    assert len(job.state.assignment) == 2
    assert [a.request for a in job.state.acknowledged] == [1, 2]


def test_rescale_is_not_lost_in_a_crash_of_its_sync_checkpoint() -> None:
    job = live_job()
    job.hold = (BufferChanges,)
    job.ask(1, RequestKind.RESCALE, workers=2)
    again = Job(Coordinator(job.state, PLAN))
    again.happen(Started())
    assert len(again.state.assignment) == 1
    again.ask(1, RequestKind.RESCALE, workers=2)
    assert len(again.state.assignment) == 2


def test_request_that_cannot_be_honoured_is_refused_with_the_reason() -> None:
    job = live_job()
    job.ask(1, RequestKind.RESCALE, assignment=split_evenly(4, 2)[:1])
    job.ask(2, RequestKind.RESCALE, workers=9)
    reasons = [(a.request, a.refused) for a in job.state.acknowledged]
    assert reasons == [(1, "vnodes 2-3 are in no bitmap"), (2, "9 workers cannot share 4 vnodes")]
    assert len(job.state.assignment) == 1


def test_request_is_honoured_once() -> None:
    job = live_job()
    job.ask(1, RequestKind.PAUSE)
    revision = job.state.revision
    assert job.ask(1, RequestKind.PAUSE) == []
    assert job.state.revision == revision


def test_request_that_arrives_while_the_epoch_works_waits_for_its_end() -> None:
    job = held_in_epoch_one(ReadRanges)
    before = job.state
    assert job.ask(1, RequestKind.PAUSE) == []
    assert job.ask(1, RequestKind.PAUSE) == []
    assert job.state == before
    job.hold = ()
    job.happen(RangesRead(Epoch(1), ()))
    assert job.state.controls.paused
    assert [a.request for a in job.state.acknowledged] == [1]


def test_stop_drains_the_merge_in_a_sync_checkpoint() -> None:
    job = live_job()
    job.position = 200
    job.hold = (BufferChanges,)
    orders = job.ask(1, RequestKind.STOP)
    assert barriers(orders) == [BarrierKind.SYNC_CHECKPOINT]
    assert "MergeEpoch" not in kinds(orders), "its one merge comes after its buffer commit"
    epoch = job.state.epoch + 1
    orders = job.happen(ChangesBuffered(Epoch(epoch), VisibleAt(at(200)), (), 1))
    assert only(orders, MergeEpoch).upto == at(200)
    assert orders[-1] == Stop(None)
    assert job.stage is Stage.STOPPED
    assert job.state.stopped
    assert job.state.is_live
    assert job.state.lowest_applied == at(200)


def test_stop_in_mid_snapshot_merges_what_is_complete_and_resumes_later() -> None:
    job = Job.new()
    job.rows_per_worker = 10
    job.hold = (ReadRanges,)
    job.happen(Started())
    job.ask(1, RequestKind.STOP)
    job.hold = ()
    (read,) = (order for order in job.orders if isinstance(order, ReadRanges))
    orders = job.happen(job.answer(read)[0])
    assert barriers(orders) == [BarrierKind.SYNC_CHECKPOINT]
    assert only(orders, ReadRanges).lanes == ((),)
    assert job.stage is Stage.STOPPED
    assert job.state.stopped
    again = Job(Coordinator(job.state, PLAN))
    again.happen(Started())
    assert again.state.is_live
    assert not again.state.stopped
    assert again.state.rows == 30


def test_stop_is_not_lost_in_a_crash_of_its_epoch() -> None:
    job = live_job()
    job.hold = (BufferChanges,)
    job.ask(1, RequestKind.STOP)
    again = Job(Coordinator(job.state, PLAN))
    again.happen(Started())
    assert BarrierKind.SYNC_CHECKPOINT in barriers(again.orders)
    assert again.state.is_live


def test_resnapshot_sets_chosen_vnodes_back_and_leaves_the_others_live() -> None:
    job = live_job()
    chosen = PLAN.ranges[0].vnode
    ordinals = {planned.ordinal for planned in PLAN.of_vnode(chosen)}
    job.hold = (ReadRanges,)
    orders = job.ask(1, RequestKind.RESNAPSHOT, vnodes=frozenset({chosen}))
    read = only(orders, ReadRanges)
    assert read.replaces == ordinals
    assert {ordinal for lane in read.lanes for ordinal in lane} == ordinals
    assert {v.vnode for v in job.state.vnodes if v.phase is not Phase.LIVE} == {chosen}
    job.hold = ()
    orders = job.happen(job.answer(read)[0])
    assert only(orders[:1], CommitReceipts).replaces == ordinals
    assert job.state.is_live
    assert not any(v.replaces for v in job.state.vnodes)


def test_set_back_range_waits_until_everything_applied_is_visible() -> None:
    job = live_job()
    job.position = 200
    job.sample()
    job.hold = (SampleSource, CommitEpoch)
    job.ask(1, RequestKind.RESNAPSHOT, vnodes=frozenset({PLAN.ranges[0].vnode}))
    unseen = Sample(at(200), VisibleAt(at(100)), 1000)
    assert job.state.newest_visible == VisibleAt(at(200))
    saved = replace(job.state, visible=((job.state.epoch, VisibleAt(at(150))),))
    job.coordinator = replace(job.coordinator, saved=saved)
    commit = only(job.happen(Sampled(unseen, job.coordinator.asked)), CommitEpoch)
    assert commit.state.intent is not None
    assert commit.state.intent.ordinals == frozenset()
    assert commit.state.vnodes[PLAN.ranges[0].vnode].floor == at(200)


def test_resnapshot_beyond_the_plan_extends_it_after_an_epoch() -> None:
    job = live_job()
    orders = job.ask(1, RequestKind.RESNAPSHOT, extend=True)
    extend = kinds(orders).index("ExtendPlan")
    assert orders[extend] == ExtendPlan(0)
    assert kinds(orders)[extend + 1 : extend + 3] == ["SampleSource", "CommitEpoch"]
    assert job.state.plan_generation == 1
    assert job.coordinator.current_plan == extended(PLAN)
    assert job.state.is_live
    assert {ordinal for v in job.state.vnodes for ordinal in v.read_ordinals} == {0, 1, 2, 3}
    replaced = [order.replaces for order in orders if isinstance(order, CommitReceipts) and order.replaces]
    assert replaced == [frozenset({3})]


def test_failed_extension_is_asked_again() -> None:
    job = live_job()
    job.hold = (ExtendPlan,)
    job.ask(1, RequestKind.RESNAPSHOT, extend=True)
    assert job.stage is Stage.EXTENDING
    assert kinds(job.happen(ActorFailed(LOST))) == ["RestartEpoch", "ExtendPlan"]
    job.hold = ()
    job.happen(PlanExtended(extended(PLAN)))
    assert job.state.is_live
    assert job.state.plan_generation == 1


def test_vnode_of_a_key_range_is_the_one_that_is_set_back() -> None:
    job = live_job()
    job.hold = (ReadRanges,)
    job.ask(1, RequestKind.RESNAPSHOT, ordinals=frozenset({1}))
    back = {v.vnode for v in job.state.vnodes if v.phase is not Phase.LIVE}
    assert back == {VnodeId(PLAN.ranges[1].vnode)}


def failing_read(job: Job) -> ReadRanges:
    """Let the reads fail and be repeated; what is ordered then."""
    return only(job.happen(ActorFailed(LOST, job.coordinator.attempt)), ReadRanges)


def test_failed_read_is_repeated_under_the_newest_limit() -> None:
    job = held_in_epoch_one(ReadRanges)
    assert failing_read(job).rows_per_second is None
    job.ask(1, RequestKind.RATE_LIMIT, rows_per_second=7)
    assert failing_read(job).rows_per_second == 7
    job.ask(2, RequestKind.RATE_LIMIT)
    repeated = failing_read(job)
    assert repeated.rows_per_second is None
    assert repeated.lanes == job.coordinator.intent.ranges
    job.hold = ()
    job.happen(job.answer(repeated)[0])
    assert job.state.is_live
    assert [a.request for a in job.state.acknowledged] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (RequestKind.PAUSE, {}),
        (RequestKind.RATE_LIMIT, {"rows_per_second": 0}),
        (RequestKind.RESCALE, {"workers": 2}),
        (RequestKind.STOP, {}),
    ],
)
def test_request_that_ends_reading_ends_an_epoch_whose_reads_fail(kind: RequestKind, what: dict[str, object]) -> None:
    job = held_in_epoch_one(ReadRanges)
    assert any(failing_read(job).lanes)
    job.ask(1, kind, **what)
    repeated = failing_read(job)
    assert not any(repeated.lanes)
    job.hold = ()
    job.happen(job.answer(repeated)[0])
    assert [(a.request, a.refused) for a in job.state.acknowledged] == [(1, "")]


def test_next_driver_repeats_the_failed_epoch_as_asked_for_since() -> None:
    job = held_in_epoch_one(ReadRanges)
    again = Job(Coordinator(job.state, PLAN), hold=(ReadRanges,))
    again.ask(1, RequestKind.PAUSE)
    assert not any(only(again.happen(Started()), ReadRanges).lanes)


def test_resumed_job_reads_what_the_paused_repeat_has_left() -> None:
    job = held_in_epoch_one(ReadRanges)
    job.ask(1, RequestKind.PAUSE)
    paused = failing_read(job)
    job.hold = ()
    job.happen(job.answer(paused)[0])
    assert job.state.rows == 0
    job.ask(2, RequestKind.RESUME)
    assert job.state.is_live
    assert job.state.rows == 30


def test_stop_ends_an_extension_that_fails_again_and_again() -> None:
    job = live_job()
    job.hold = (ExtendPlan,)
    job.ask(1, RequestKind.RESNAPSHOT, extend=True)
    job.ask(2, RequestKind.STOP)
    assert "ExtendPlan" not in kinds(job.happen(ActorFailed(LOST)))
    assert job.stage is Stage.STOPPED
    assert [a.request for a in job.state.acknowledged] == [2]
