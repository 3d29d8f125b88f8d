"""A table that rested continues from where the log was read for it, and captures what follows as any table does."""

from __future__ import annotations

from progress.state.backfill_state import RequestKind
from progress.state.parked import Reached, may_rest
from tests.unit.decide.coordinated_job import LOST, Job, live_job
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Stage
from vnode_backfill.decide.protocol import ActorFailed, BufferChanges, CaughtUp, RestartEpoch, SampleSource


def resting_job() -> Job:
    """A live job that was quiet until its reads were forgotten."""
    job = live_job()
    job.kept, job.short = 0, True
    for _ in range(4):
        job.position += 10
        job.sample()
    assert may_rest(job.coordinator.saved)
    return job


def test_it_asks_for_a_sample_and_captures_from_where_it_was_brought() -> None:
    job = resting_job()
    job.hold, job.position = (BufferChanges,), 900
    job.happen(CaughtUp(Reached(at(800))))
    (order,) = (each for each in job.held if isinstance(each, BufferChanges))
    assert (order.after, order.intent.written) == (at(800), at(900))
    assert job.coordinator.saved.written == at(800)


def test_a_request_that_came_first_is_honoured_there() -> None:
    job = resting_job()
    job.hold = (SampleSource,)
    job.ask(1, RequestKind.PAUSE)
    job.hold, job.position = (), 900
    job.happen(CaughtUp(Reached(at(800))))
    assert job.coordinator.saved.controls.paused
    assert job.coordinator.saved.written == at(900)


def test_it_does_not_count_beside_a_failure() -> None:
    job = resting_job()
    job.hold = (RestartEpoch,)
    before = job.coordinator.saved
    job.happen(ActorFailed(LOST))
    assert job.happen(CaughtUp(Reached(at(800)))) == []
    assert (job.stage, job.coordinator.saved) == (Stage.RETRYING, before)
