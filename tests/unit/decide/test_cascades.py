"""A change of a parent has changed rows outside the log: the copy is completed, and a new one follows, once."""

from __future__ import annotations

from progress.state.backfill_state import RequestKind
from tests.unit.decide.coordinated_job import Job, live_job, only
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.protocol import ReadRanges, Started, Stop
from vnode_backfill.words.schema_change import NewCopy


def test_live_job_stops_for_a_new_copy_with_everything_merged() -> None:
    job = live_job()
    job.position, job.cascades = 300, (120, 150, 260)
    orders = job.sample()
    assert isinstance(only(orders, Stop).ending, NewCopy)
    assert {v.applied for v in job.state.vnodes} == {at(300)}
    assert job.state.schema.cascaded == at(260), "they need one new copy"
    assert (job.state.is_whole, job.state.is_live) == (True, False)


def test_copy_in_progress_is_completed_first() -> None:
    job = Job.new()
    job.position, job.rows_per_worker, job.cascades = 200, 1, (150,)
    orders = job.happen(Started())
    while job.stage != "stopped":
        job.position += 10
        orders += job.sample()
    assert sum(bool(o) for order in orders if isinstance(order, ReadRanges) for o in order.lanes) == 3
    assert isinstance(only(orders, Stop).ending, NewCopy)
    assert job.state.is_whole


def test_next_driver_stops_for_it_too() -> None:
    job = live_job()
    job.position, job.cascades = 300, (150,)
    job.sample()
    again = Job(Coordinator(job.state, job.coordinator.plan), position=300)
    assert isinstance(only(again.happen(Started()), Stop).ending, NewCopy)


def test_stop_that_was_asked_for_leaves_it_to_the_next_driver() -> None:
    job = live_job()
    job.position, job.cascades = 300, (150,)
    orders = job.ask(1, RequestKind.STOP)
    assert only(orders, Stop) == Stop(None)
    assert job.state.schema.cascaded == at(150)
    assert not job.state.is_live
