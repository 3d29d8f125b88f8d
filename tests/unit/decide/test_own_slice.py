"""A live job merges a short slice of the log in the epoch that captures it; every other job merges it an epoch later."""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import Intent, RequestKind
from tests.unit.decide.coordinated_job import LOST, PLAN, Job, barriers, kinds, live_job, only
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Coordinator, Stage
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    BufferChanges,
    ChangesBuffered,
    CommitEpoch,
    MergeEpoch,
    ReadRanges,
    SampleSource,
    Started,
    TrimBuffer,
)
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key import VnodeId


def following_job(*hold: type[Action]) -> Job:
    """A live job whose source has written a short slice, up to 200."""
    job = live_job()
    job.short, job.position, job.hold = True, 200, hold
    return job


def intents(actions: list[Action]) -> list[Intent]:
    return [action.intent for action in actions if isinstance(action, BufferChanges)]


def test_short_slice_of_a_live_job_is_merged_in_its_own_epoch() -> None:
    job = following_job()
    before = job.state.epoch
    orders = job.sample()
    assert only(orders, BufferChanges).intent.written == at(200)
    assert only(orders, MergeEpoch).upto == at(200)
    assert {vnode.vnode for vnode in only(orders, MergeEpoch).vnodes} == set(range(4))
    assert barriers(orders) == [BarrierKind.CHECKPOINT]
    assert (job.state.epoch, job.state.written) == (before + 1, at(200))
    assert {vnode.applied for vnode in job.state.vnodes} == {at(200)}
    assert [order.upto for order in orders if isinstance(order, TrimBuffer)] == [at(100), at(200)]


def test_merge_of_an_own_slice_is_ordered_after_the_buffer_commit_only() -> None:
    job = following_job(BufferChanges, MergeEpoch)
    assert "MergeEpoch" not in kinds(job.sample())
    epoch = Epoch(job.state.epoch + 1)
    (merge,) = job.happen(ChangesBuffered(epoch, VisibleAt(at(200)), (), 1))
    assert isinstance(merge, MergeEpoch)
    assert merge.upto == at(200)


def test_own_slice_leaves_no_work_for_another_epoch() -> None:
    job = following_job()
    job.sample()
    assert job.stage is Stage.IDLE
    after = job.state
    for _ in range(3):
        assert kinds(job.sample()) == ["InjectBarrier", "SampleSource"]
    assert job.state == after


def test_long_slice_is_merged_an_epoch_later_beside_the_next_one() -> None:
    job = following_job(BufferChanges)
    job.short = False
    orders = job.sample()
    assert only(orders, MergeEpoch).upto == at(100)
    assert not only(orders, BufferChanges).intent.own_slice


def test_short_slice_after_a_long_one_is_merged_together_with_it() -> None:
    job = following_job(SampleSource)
    job.short = False
    job.sample()
    job.short, job.position, job.hold = True, 300, ()
    merge = only(job.sample(), MergeEpoch)
    assert merge.upto == at(300)
    assert {vnode.applied for vnode in merge.vnodes} == {at(100)}
    assert {vnode.applied for vnode in job.state.vnodes} == {at(300)}


def test_job_that_is_not_live_does_not_merge_its_own_slice() -> None:
    job = Job.new()
    job.short = True
    job.happen(Started())
    assert job.state.is_live
    assert [intent.own_slice for intent in intents(job.orders)] == [False, False, False]


def test_resnapshot_ends_it_until_the_job_is_live_again() -> None:
    job = following_job()
    orders = job.ask(1, RequestKind.RESNAPSHOT, vnodes=frozenset({PLAN.ranges[0].vnode}))
    assert any(order.lanes != ((),) for order in orders if isinstance(order, ReadRanges))
    assert not any(intent.own_slice for intent in intents(orders))
    assert job.state.is_live
    job.position = 300
    assert [intent.own_slice for intent in intents(job.sample())] == [True]


@pytest.mark.parametrize(("kind", "what"), [(RequestKind.STOP, {}), (RequestKind.RESCALE, {"workers": 2})])
def test_request_that_drains_makes_a_sync_checkpoint(kind: RequestKind, what: dict[str, object]) -> None:
    job = following_job()
    orders = job.ask(1, kind, **what)
    assert [(intent.kind, intent.own_slice) for intent in intents(orders)] == [(BarrierKind.SYNC_CHECKPOINT, False)]


def test_bitmaps_do_not_change_with_the_commit_that_ends_an_own_slice() -> None:
    job = following_job(MergeEpoch)
    job.sample()
    job.ask(1, RequestKind.RESCALE, workers=2)
    job.hold = ()
    orders = job.happen(job.answer(job.held[-1])[0])
    commits = [(len(order.state.assignment), order.state.epoch) for order in orders if isinstance(order, CommitEpoch)]
    epoch = job.state.epoch
    assert commits == [(1, epoch - 1), (2, epoch)]
    assert barriers(orders) == [BarrierKind.SYNC_CHECKPOINT]


def test_repeated_epoch_merges_its_own_slice_whatever_the_source_says_by_then() -> None:
    first = following_job(MergeEpoch)
    first.sample()
    again = Job(Coordinator(first.state, PLAN), position=900, hold=(BufferChanges,))
    orders = again.happen(Started())
    assert "MergeEpoch" not in kinds(orders)
    assert only(orders, BufferChanges).intent == first.state.intent
    again.hold = (SampleSource,)
    assert only(again.happen(again.answer(again.held[-1])[0]), MergeEpoch).upto == at(200)


def test_failed_epoch_waits_for_its_buffer_again() -> None:
    job = following_job(BufferChanges, MergeEpoch)
    job.sample()
    epoch = Epoch(job.state.epoch + 1)
    job.happen(ChangesBuffered(epoch, VisibleAt(at(200)), (), 1))
    orders = job.happen(ActorFailed(LOST))
    assert kinds(orders) == ["RestartEpoch", "InjectBarrier", "ReadRanges", "BufferChanges"]
    (merge,) = job.happen(ChangesBuffered(epoch, VisibleAt(at(200)), (), 1, attempt=1))
    assert isinstance(merge, MergeEpoch)


def test_vnode_of_a_job_with_one_unread_range_keeps_it_from_merging_its_own_slice() -> None:
    job = following_job()
    job.ask(1, RequestKind.PAUSE)
    orders = job.ask(2, RequestKind.RESNAPSHOT, vnodes=frozenset({VnodeId(PLAN.ranges[0].vnode)}))
    job.position = 300
    orders = [*orders, *job.sample()]
    assert not job.state.is_live
    assert not any(intent.own_slice for intent in intents(orders))
