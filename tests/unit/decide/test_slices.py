"""A live job that is far behind takes the log in slices: one is merged while the next is captured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from progress.state.backfill_state import RequestKind
from tests.unit.decide.coordinated_job import LOST, Job, live_job, only
from tests.unit.decide.statements import CARRIED, statement
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import ActorFailed, BufferChanges, ChangeSink, CommitEpoch, MergeEpoch, Started
from vnode_backfill.words.epoch import BarrierKind
from vnode_backfill.words.key import VnodeId


@dataclass
class JobInSlices(Job):
    """A source that cuts its log every 100 bytes."""

    def sample_of(self) -> Sample:
        sample = super().sample_of()
        intent = self.state.intent
        last = intent.written.pos if intent is not None else self.state.written.pos
        end = last + 100
        return Sample(sample.written, sample.visible, sample.rows_per_worker, slice_end=at(end) if end < 500 else None)


def behind() -> JobInSlices:
    """A live job at 100, of a source that has written up to 500."""
    job = JobInSlices(replace(live_job().coordinator, first_sample=None))
    job.position = 500
    return job


def captured_and_merged(job: Job, before: int) -> list[tuple[int, int]]:
    orders = job.orders[before:]
    captured = [order.intent.written.pos for order in orders if isinstance(order, BufferChanges)]
    merged = [order.upto.pos for order in orders if isinstance(order, MergeEpoch)]
    return list(zip(captured, merged, strict=True))


def test_one_slice_is_merged_beside_the_capture_of_the_next() -> None:
    job = behind()
    before = len(job.orders)
    job.sample()
    assert captured_and_merged(job, before) == [(200, 100), (300, 200), (400, 300), (500, 400), (500, 500)]
    assert {vnode.applied for vnode in job.state.vnodes} == {at(500)}
    assert job.state.written == at(500)


def test_job_is_not_up_to_date_at_the_end_of_a_slice() -> None:
    job = behind()
    job.hold = (CommitEpoch,)
    job.sample()
    seen: list[tuple[int, bool]] = []
    while job.held and isinstance(job.held[-1], CommitEpoch):
        action = job.held.pop()
        for event in job.answer(action):
            job.happen(event)
        seen.append((job.state.written.pos, job.coordinator.is_up_to_date))
    assert seen == [(100, False), (200, False), (300, False), (400, False), (500, True), (500, True)]


def asked_in_the_first_slice(job: Job, kind: RequestKind, **what: object) -> BufferChanges:
    """Ask for something while the slice up to 200 is captured; the order to capture that follows."""
    job.hold = (BufferChanges,)
    job.sample()
    job.ask(1, kind, **what)
    for event in job.answer(job.held.pop()):
        job.happen(event)
    job.hold = ()
    return only(job.held, BufferChanges)


def test_stop_in_the_middle_of_a_backlog_ends_at_the_end_of_the_next_slice() -> None:
    """A driver that is killed soon after it was asked to stop would begin the whole rest again each time."""
    job = behind()
    last = asked_in_the_first_slice(job, RequestKind.STOP)
    assert (last.intent.kind, last.intent.written) == (BarrierKind.SYNC_CHECKPOINT, at(300))
    for event in job.answer(last):
        job.happen(event)
    assert job.state.stopped
    assert job.state.is_live
    assert {vnode.applied for vnode in job.state.vnodes} == {at(300)}


def test_rescale_in_the_middle_of_a_backlog_waits_for_one_slice_only() -> None:
    job = behind()
    sync = asked_in_the_first_slice(job, RequestKind.RESCALE, workers=2)
    assert (sync.intent.kind, sync.intent.written) == (BarrierKind.SYNC_CHECKPOINT, at(300))
    for event in job.answer(sync):
        job.happen(event)
    assert len(job.state.assignment) == 2
    assert job.state.written == at(500)


def test_job_that_only_copies_ends_at_the_end_of_the_log() -> None:
    """There the job begins that follows the log."""
    job = behind()
    job.coordinator = replace(job.coordinator, bounded=True)
    last = asked_in_the_first_slice(job, RequestKind.STOP)
    assert (last.intent.kind, last.intent.written) == (BarrierKind.SYNC_CHECKPOINT, at(500))


def test_epoch_that_is_repeated_ends_where_its_slice_ended() -> None:
    job = behind()
    job.hold = (BufferChanges,)
    job.sample()
    first = only(job.held, BufferChanges)
    again = JobInSlices(Coordinator(job.state, job.coordinator.plan), position=900, hold=(BufferChanges,))
    assert only(again.happen(Started()), BufferChanges).intent == first.intent
    assert only(again.happen(ActorFailed(LOST)), BufferChanges).intent == first.intent


def test_log_is_cut_while_the_sink_follows_a_statement() -> None:
    """It may take hours. The vnodes are live all the time, so that no read waits for its high watermark."""
    job = behind()
    job.statements, job.hold = {statement(150): CARRIED}, (ChangeSink,)
    before = len(job.orders)
    job.sample()
    assert captured_and_merged(job, before)[:4] == [(200, 100), (300, 150), (400, 150), (500, 150)]
    assert job.state.schema.pending is not None
    assert not job.state.is_live


def test_copy_that_a_cascade_ends_does_not_capture_the_rest_of_the_log_at_once() -> None:
    """It would be captured for nothing, and again after each kill: a new copy takes the place of this one."""
    job = behind()
    job.cascades = (150,)
    before = len(job.orders)
    job.sample()
    assert captured_and_merged(job, before) == [(200, 100), (300, 200), (400, 400)]
    assert job.stage == "stopped"


def test_log_is_not_cut_while_a_range_is_unread() -> None:
    """The offset after a read is its vnode's high watermark: it must be one that was sampled after the read."""
    job = behind()
    before = len(job.orders)
    job.hold = (BufferChanges,)
    job.sample()
    job.ask(1, RequestKind.RESNAPSHOT, vnodes=frozenset({VnodeId(1)}))
    job.hold = ()
    for event in job.answer(job.held.pop()):
        job.happen(event)
    assert [pos for pos, _ in captured_and_merged(job, before)][:2] == [200, 500]
    assert job.state.is_live
