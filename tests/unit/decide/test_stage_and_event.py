"""An event that the stage cannot receive raises and changes nothing; one that is late by a real race does not count.

A race is real where an order was under way when something else failed: its report finds another stage. A restart waits
until everything of the failed attempt has ended, so no report of it comes after `EpochRestarted`.
"""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import RequestKind
from tests.unit.decide.coordinated_job import (
    DAMAGED,
    GONE,
    LOST,
    PLAN,
    Job,
    extended,
    held_in_epoch_one,
    kinds,
    live_job,
)
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.coordinator import Stage
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    ActorFailed,
    ChangesBuffered,
    CommitEpoch,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    PlanExtended,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    RestartEpoch,
    Sampled,
    SampleSource,
    Started,
    StateCommitted,
)
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import BackfillError, LawBrokenError

SAMPLE = Sample(at(100), VisibleAt(at(100)), 10)
EXTENDED = PlanExtended(extended(PLAN))


def sampling() -> Job:
    job = held_in_epoch_one(ReadRanges)
    job.hold = (SampleSource,)
    job.happen(RangesRead(Epoch(1), ()))
    return job


def extending() -> Job:
    job = live_job()
    job.hold = (ExtendPlan,)
    job.ask(1, RequestKind.RESNAPSHOT, extend=True)
    return job


def retrying() -> Job:
    job = held_in_epoch_one(ReadRanges, RestartEpoch)
    job.happen(ActorFailed(LOST))
    return job


def failing() -> Job:
    job = held_in_epoch_one(ReadRanges)
    job.hold = (CommitEpoch,)
    job.happen(ActorFailed(DAMAGED))
    return job


IN_STAGE = {
    Stage.STARTING: Job.new,
    Stage.WORKING: lambda: held_in_epoch_one(ReadRanges),
    Stage.EXTENDING: extending,
    Stage.SAMPLING: sampling,
    Stage.COMMITTING: lambda: held_in_epoch_one(CommitEpoch),
    Stage.IDLE: live_job,
    Stage.RETRYING: retrying,
    Stage.FAILING: failing,
}
REPORTS: tuple[Event, ...] = (
    RangesRead(Epoch(1), ()),
    ChangesBuffered(Epoch(1), VisibleAt(at(100)), (), 0),
    EpochMerged(Epoch(1)),
    ReceiptsCommitted(Epoch(1), ()),
)
IMPOSSIBLE: list[tuple[Stage, Event]] = [
    *((stage, Started()) for stage in IN_STAGE if stage not in (Stage.STARTING, Stage.RETRYING, Stage.FAILING)),
    *(
        (stage, each)
        for stage in (Stage.STARTING, Stage.EXTENDING, Stage.SAMPLING, Stage.COMMITTING)
        for each in REPORTS
    ),
    *((Stage.IDLE, each) for each in REPORTS),
    *((stage, EXTENDED) for stage in (Stage.STARTING, Stage.WORKING, Stage.SAMPLING, Stage.COMMITTING, Stage.IDLE)),
    *(
        (stage, StateCommitted(1))
        for stage in (Stage.STARTING, Stage.WORKING, Stage.SAMPLING, Stage.IDLE, Stage.RETRYING)
    ),
    *((stage, EpochRestarted(0)) for stage in IN_STAGE if stage not in (Stage.RETRYING, Stage.FAILING)),
    (Stage.WORKING, RangesRead(Epoch(2), ())),
    (Stage.COMMITTING, StateCommitted(7)),
]


@pytest.mark.parametrize("stage", IN_STAGE)
def test_each_stage_is_reached(stage: Stage) -> None:
    assert IN_STAGE[stage]().stage is stage


@pytest.mark.parametrize(("stage", "event"), IMPOSSIBLE, ids=lambda each: getattr(each, "value", type(each).__name__))
def test_event_that_cannot_happen_raises_with_stage_and_event(stage: Stage, event: Event) -> None:
    job = IN_STAGE[stage]()
    before = job.coordinator
    with pytest.raises(LawBrokenError, match=rf"stage {stage} cannot receive {type(event).__name__}"):
        job.happen(event)
    assert job.coordinator == before


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.WORKING, Stage.EXTENDING, Stage.COMMITTING])
def test_answer_that_nobody_waits_for_raises(stage: Stage) -> None:
    job = IN_STAGE[stage]()
    with pytest.raises(LawBrokenError, match=rf"stage {stage} cannot receive Sampled"):
        job.happen(Sampled(SAMPLE, job.coordinator.asked))


@pytest.mark.parametrize("error", [LOST, GONE], ids=["lost for a while", "gone for good"])
def test_answer_to_a_question_beside_which_something_failed_does_not_count(error: BackfillError) -> None:
    job = sampling()
    job.hold = (RestartEpoch, CommitEpoch)
    job.happen(ActorFailed(error))
    assert job.happen(Sampled(SAMPLE, job.coordinator.asked)) == []


@pytest.mark.parametrize("error", [LOST, GONE], ids=["lost for a while", "gone for good"])
def test_plan_extended_beside_a_failure_does_not_count(error: BackfillError) -> None:
    job = extending()
    job.hold = (RestartEpoch, CommitEpoch)
    job.happen(ActorFailed(error))
    assert job.happen(EXTENDED) == []
    assert job.coordinator.pending_plan is None


def test_commit_that_landed_beside_a_failure_is_repeated_and_counts_then() -> None:
    job = held_in_epoch_one(CommitEpoch, RestartEpoch)
    job.happen(ActorFailed(LOST))
    assert job.happen(StateCommitted(1)) == []
    assert kinds(job.happen(EpochRestarted(1))) == ["CommitEpoch"]
    job.hold = ()
    job.happen(StateCommitted(1))
    assert job.state.is_live


def test_restart_that_a_definite_failure_has_overtaken_does_not_count() -> None:
    job = held_in_epoch_one(CommitEpoch, RestartEpoch)
    job.happen(ActorFailed(LOST))
    job.happen(ActorFailed(GONE, attempt=1))
    assert kinds(job.happen(EpochRestarted(2))) == ["CommitEpoch"]
    assert job.happen(EpochRestarted(1)) == [], "the restart whose pause was longer"
    assert job.stage is Stage.COMMITTING


def test_law_broken_by_an_impossible_event_stops_the_job_with_that_reason() -> None:
    job = held_in_epoch_one(ReadRanges)
    with pytest.raises(LawBrokenError) as broken:
        job.happen(EXTENDED)
    job.happen(ActorFailed(broken.value, job.coordinator.attempt))
    assert job.stage is Stage.STOPPED
    assert job.state.failure is not None
    assert job.state.failure.message == "stage working cannot receive PlanExtended"
