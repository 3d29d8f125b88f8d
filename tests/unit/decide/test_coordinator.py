"""The epoch protocol, event by event: what is ordered, in which order, and what a repeat or a stale answer changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import CdcOffset, VisibleAt
from progress.state.backfill_state import Phase, RequestKind
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress
from progress.state.report import InHand
from tests.unit.decide.coordinated_job import (
    DAMAGED,
    GONE,
    LOST,
    PLAN,
    Job,
    barriers,
    held_in_epoch_one,
    kinds,
    live_job,
    only,
)
from tests.unit.progress.state.state_examples import at, plan_with
from vnode_backfill.decide.coordinator import Coordinator, Stage
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    BufferChanges,
    ChangesBuffered,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    InjectBarrier,
    MergeEpoch,
    RangeReceipt,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    RestartEpoch,
    Sampled,
    SampleSource,
    Started,
    StateCommitted,
    Stop,
    TrimBuffer,
)
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, FencedError, LawBrokenError, SparkLostError


def test_new_job_asks_the_source_before_it_does_anything() -> None:
    job = held_in_epoch_one(SampleSource)
    assert job.orders == [InjectBarrier(Barrier(Epoch(0), BarrierKind.INITIAL)), SampleSource(False, 1)]


def test_initial_barrier_takes_no_epoch_and_samples_nothing_where_an_intent_is_stored() -> None:
    first = held_in_epoch_one(ReadRanges, BufferChanges, MergeEpoch)
    again = Job(Coordinator(first.state, PLAN), hold=(ReadRanges, BufferChanges, MergeEpoch))
    again.happen(Started())
    assert barriers(again.orders) == [BarrierKind.INITIAL, BarrierKind.CHECKPOINT]
    assert again.orders[0] == InjectBarrier(Barrier(Epoch(0), BarrierKind.INITIAL))
    assert kinds(again.orders)[1:] == ["InjectBarrier", "ReadRanges", "BufferChanges", "MergeEpoch"]
    assert again.orders[1:] == first.orders[-4:], "the committed intent again, nothing else"


def test_intent_is_committed_before_its_first_effect() -> None:
    job = held_in_epoch_one(CommitEpoch)
    commit = only(job.orders, CommitEpoch)
    assert kinds(job.orders)[-1] == "CommitEpoch"
    assert commit.state.revision == 1
    assert commit.state.epoch == 0
    assert commit.state.intent is not None
    assert commit.state.intent.ordinals == {0, 1, 2}
    assert kinds(job.happen(StateCommitted(1)))[:4] == ["TrimBuffer", "InjectBarrier", "ReadRanges", "BufferChanges"]


def test_receipts_are_committed_after_the_merge_only() -> None:
    job = held_in_epoch_one(ReadRanges, BufferChanges, MergeEpoch, CommitReceipts)
    read = RangesRead(Epoch(1), (RangeReceipt(0, 7),))
    assert job.happen(read) == []
    assert kinds(job.happen(EpochMerged(Epoch(1)))) == ["CommitReceipts"]
    job = held_in_epoch_one(ReadRanges, BufferChanges, MergeEpoch, CommitReceipts)
    assert job.happen(EpochMerged(Epoch(1))) == []
    (commit,) = job.happen(read)
    assert commit == CommitReceipts(Barrier(Epoch(1), BarrierKind.CHECKPOINT), (RangeReceipt(0, 7),), frozenset())


def test_source_is_asked_for_the_next_epoch_only_after_every_actor_was_collected() -> None:
    job = held_in_epoch_one(BufferChanges)
    assert job.stage is Stage.WORKING
    assert kinds(job.orders).count("SampleSource") == 1
    assert kinds(job.happen(ChangesBuffered(Epoch(1), VisibleAt(at(100)), (), 0)))[0] == "SampleSource"


def test_what_the_sink_holds_counts_not_what_was_read_last() -> None:
    job = held_in_epoch_one(ReadRanges, CommitReceipts)
    job.hold = (CommitReceipts, CommitEpoch)
    job.happen(RangesRead(Epoch(1), (RangeReceipt(0, 7), RangeReceipt(1, 7))))
    orders = job.happen(ReceiptsCommitted(Epoch(1), (RangeReceipt(0, 99),)))
    state = only(orders, CommitEpoch).state
    assert state.rows == 99
    assert {ordinal for v in state.vnodes for ordinal in v.read_ordinals} == {0}
    assert state.intent is not None
    assert state.intent.ordinals == {1, 2}


def test_range_outside_the_intent_or_read_twice_breaks_a_law() -> None:
    job = held_in_epoch_one(ReadRanges)
    with pytest.raises(LawBrokenError, match=r"ranges \[9\] were read, planned were \[0, 1, 2\]"):
        job.happen(RangesRead(Epoch(1), (RangeReceipt(9, 1),)))
    with pytest.raises(LawBrokenError, match=r"ranges \[0, 0\] were read"):
        job.happen(RangesRead(Epoch(1), (RangeReceipt(0, 1), RangeReceipt(0, 1))))


def test_visibility_may_not_fall() -> None:
    job = held_in_epoch_one(BufferChanges)
    with pytest.raises(LawBrokenError, match=r"visibility would fall from .*:100 to .*:50"):
        job.happen(ChangesBuffered(Epoch(1), VisibleAt(at(50)), (), 0))


def test_vnode_read_in_epoch_one_is_live_after_the_merge_of_epoch_three() -> None:
    job = held_in_epoch_one(CommitEpoch)
    phases: list[tuple[Epoch, Phase]] = []
    while job.stage is Stage.COMMITTING and len(phases) < 5:
        commit = [order for order in job.orders if isinstance(order, CommitEpoch)][-1]
        phases.append((commit.state.epoch, commit.state.vnodes[PLAN.ranges[0].vnode].phase))
        job.happen(StateCommitted(commit.state.revision))
    assert phases == [(0, Phase.SNAPSHOT), (1, Phase.CATCH_UP), (2, Phase.CATCH_UP), (3, Phase.LIVE)]


def test_merge_goes_up_to_what_the_buffer_held_before_its_epoch() -> None:
    job = live_job()
    job.position = 200
    first = job.sample()
    assert [m.upto for m in first if isinstance(m, MergeEpoch)] == [at(100), at(200)]
    assert [(b.after, b.intent.written) for b in first if isinstance(b, BufferChanges)] == [
        (at(100), at(200)),
        (at(200), at(200)),
    ]
    assert {v.applied for v in job.state.vnodes} == {at(200)}


def test_buffer_is_trimmed_up_to_what_every_vnode_has_applied() -> None:
    job = live_job()
    job.position = 200
    trims = [order.upto for order in job.sample() if isinstance(order, TrimBuffer)]
    assert trims == [at(100), at(100), at(200)]


def test_idle_job_writes_nothing_and_keeps_its_epoch_open() -> None:
    job = live_job()
    before = job.state
    for _ in range(3):
        orders = job.sample()
        assert kinds(orders) == ["InjectBarrier", "SampleSource"]
        assert barriers(orders) == [BarrierKind.BARRIER]
        assert orders[0] == InjectBarrier(Barrier(before.epoch, BarrierKind.BARRIER))
    assert job.state == before


def test_idle_job_with_an_empty_table_goes_live() -> None:
    empty = plan_with()
    job = Job.new(empty)
    job.happen(Started())
    assert job.state.is_live
    assert job.stage is Stage.IDLE


def test_answer_to_an_earlier_question_does_not_count() -> None:
    job = live_job()
    stale = Sampled(job.sample_of(), job.coordinator.asked)
    job.hold = (SampleSource,)
    job.ask(1, RequestKind.PAUSE)
    assert job.happen(stale) == []
    assert job.stage is Stage.IDLE
    job.hold = ()
    job.position = 300
    assert kinds(job.sample())[0] == "CommitEpoch"


def test_lost_connection_repeats_the_epoch_from_its_intent() -> None:
    job = held_in_epoch_one(ReadRanges, BufferChanges, MergeEpoch, RestartEpoch)
    job.happen(EpochMerged(Epoch(1)))
    assert job.happen(ActorFailed(LOST)) == [RestartEpoch(1, LOST)]
    assert job.stage is Stage.RETRYING
    again = job.happen(EpochRestarted(1))
    assert only(again, InjectBarrier).barrier == Barrier(Epoch(1), BarrierKind.CHECKPOINT, attempt=1)
    assert kinds(again) == ["InjectBarrier", "ReadRanges", "BufferChanges", "MergeEpoch"]
    assert job.coordinator.collected.merged is None, "what the failed attempt reported is asked again"


def test_report_of_an_abandoned_attempt_does_not_count() -> None:
    job = held_in_epoch_one(ReadRanges, BufferChanges, MergeEpoch)
    job.happen(ActorFailed(LOST))
    assert job.happen(RangesRead(Epoch(1), (), attempt=0)) == []
    assert job.happen(ActorFailed(DAMAGED, attempt=0)) == []
    assert job.coordinator.collected.read is None
    job.happen(RangesRead(Epoch(1), (), attempt=1))
    assert job.coordinator.collected.read is not None


def test_failures_while_a_retry_is_prepared_do_not_add_up() -> None:
    job = held_in_epoch_one(ReadRanges, RestartEpoch)
    job.happen(ActorFailed(LOST))
    assert job.happen(ActorFailed(LOST, attempt=1)) == []
    assert job.coordinator.attempt == 1


@pytest.mark.parametrize("error", [FencedError("overtaken"), SparkLostError("gone")])
def test_definite_failure_while_a_retry_is_prepared_stops_the_job(error: BackfillError) -> None:
    job = held_in_epoch_one(ReadRanges, RestartEpoch)
    intent = job.state.intent
    job.happen(ActorFailed(LOST))
    orders = job.happen(ActorFailed(error, attempt=1))
    assert kinds(orders) == ["CommitEpoch", "Stop"]
    assert job.state.failure is not None
    assert job.state.failure.message == error.message
    assert job.state.intent == intent, "the next driver repeats it"
    assert job.happen(EpochRestarted(1)) == [], "what was to be tried again is not"


def test_job_that_fails_before_it_has_started_does_not_start() -> None:
    job = Job.new()
    job.hold = (CommitEpoch,)
    job.happen(ActorFailed(SparkLostError("gone")))
    assert job.happen(Started()) == [], "its reason is being stored"
    assert kinds(job.happen(StateCommitted(job.state.revision + 1))) == ["Stop"]


def test_job_whose_source_is_lost_before_it_has_started_starts_once() -> None:
    job = Job.new()
    job.hold = (RestartEpoch, SampleSource)
    job.happen(ActorFailed(LOST))
    assert job.happen(Started()) == []
    assert kinds(job.happen(EpochRestarted(1))) == ["InjectBarrier", "SampleSource"]


@pytest.mark.parametrize("first", [(), (ActorFailed(LOST),)], ids=["in progress", "tried again"])
def test_definite_failure_during_a_commit_is_stored_after_that_commit(first: tuple[ActorFailed, ...]) -> None:
    job = held_in_epoch_one(CommitEpoch)
    job.hold = (CommitEpoch, RestartEpoch)
    revision = job.state.revision
    for event in first:
        job.happen(event)
    assert kinds(job.happen(ActorFailed(GONE, attempt=len(first)))) == ["RestartEpoch"]
    assert job.happen(StateCommitted(revision + 1)) == [], "the commit may still be repeated"
    job.hold = ()
    orders = job.happen(EpochRestarted(len(first) + 1))
    assert kinds(orders) == ["CommitEpoch", "CommitEpoch", "Stop"]
    assert job.state.revision == revision + 2, "the reason has a revision of its own"
    assert job.state.failure is not None
    assert job.state.failure.message == GONE.message
    assert job.state.intent is not None, "the next driver repeats it"


def test_commit_that_fails_again_while_the_job_ends_stops_it_with_the_first_reason() -> None:
    job = held_in_epoch_one(CommitEpoch)
    job.happen(ActorFailed(GONE))
    stop = only(job.happen(ActorFailed(LOST, attempt=1)), Stop)
    assert stop.failure is not None
    assert stop.failure.message == GONE.message
    assert job.stage is Stage.STOPPED


def test_attempts_are_counted_anew_after_a_commit() -> None:
    job = held_in_epoch_one(ReadRanges)
    job.happen(ActorFailed(LOST))
    assert job.coordinator.last_error is LOST
    job.hold = ()
    job.happen(RangesRead(Epoch(1), tuple(RangeReceipt(n, 1) for n in range(3)), attempt=1))
    assert job.coordinator.attempt == 0
    assert job.coordinator.last_error is None


def test_job_stops_with_the_reason_after_too_many_attempts() -> None:
    job = held_in_epoch_one(ReadRanges)
    orders: list[Action] = []
    for attempt in range(6):
        orders = job.happen(ActorFailed(LOST, attempt=attempt))
    assert kinds(orders) == ["CommitEpoch", "Stop"]
    assert job.stage is Stage.STOPPED
    assert job.state.failure is not None
    assert job.state.failure.message == "connection lost"


def test_definite_error_stops_at_once_and_leaves_the_intent_in_place() -> None:
    job = held_in_epoch_one(ReadRanges)
    intent = job.state.intent
    orders = job.happen(ActorFailed(DAMAGED))
    stop = only(orders, Stop)
    assert stop.failure is not None
    assert (stop.failure.message, stop.failure.detail, stop.failure.hint) == ("event is damaged", "at 7", "look")
    assert job.state.failure == stop.failure
    assert job.state.intent == intent, "the next driver repeats it"
    assert job.happen(EpochMerged(Epoch(1), attempt=1)) == [], "nothing happens after the stop"


def test_reason_is_gone_after_the_next_commit() -> None:
    job = held_in_epoch_one(ReadRanges)
    job.happen(ActorFailed(DAMAGED))
    again = Job(Coordinator(job.state, PLAN))
    again.happen(Started())
    assert again.state.failure is None
    assert again.state.is_live


def test_job_that_cannot_store_its_reason_stops_all_the_same() -> None:
    job = held_in_epoch_one(ReadRanges)
    job.hold = (CommitEpoch,)
    job.happen(ActorFailed(DAMAGED))
    orders = job.happen(ActorFailed(FencedError("overtaken"), attempt=job.coordinator.attempt))
    stop = only(orders, Stop)
    assert stop.failure is not None
    assert stop.failure.message == "event is damaged"
    assert job.stage is Stage.STOPPED


def test_commit_that_may_have_landed_is_not_followed_by_a_reason_of_the_same_revision() -> None:
    job = held_in_epoch_one(CommitEpoch)
    overtaken = FencedError("overtaken")
    (_, again) = job.happen(ActorFailed(overtaken))
    assert isinstance(again, CommitEpoch)
    assert again.state.failure is None, "the same commit, which is refused again"
    stop = only(job.happen(ActorFailed(overtaken, attempt=1)), Stop)
    assert stop.failure is not None
    assert stop.failure.message == "overtaken"


@pytest.mark.parametrize(
    ("hold", "stage", "order"),
    [
        (SampleSource, Stage.IDLE, "SampleSource"),
        (CommitEpoch, Stage.COMMITTING, "CommitEpoch"),
        (CommitReceipts, Stage.WORKING, "InjectBarrier"),
    ],
)
def test_failed_stage_begins_again(hold: type[Action], stage: Stage, order: str) -> None:
    job = held_in_epoch_one(hold)
    assert job.stage is stage
    orders = job.happen(ActorFailed(LOST))
    assert kinds(orders)[:2] == ["RestartEpoch", order]
    job.hold = ()
    job.happen(job.answer(job.held[-1])[0])
    assert job.state.is_live


def test_failed_sampling_after_an_epoch_is_sampled_again() -> None:
    job = held_in_epoch_one(BufferChanges)
    job.hold = (SampleSource,)
    job.happen(ChangesBuffered(Epoch(1), VisibleAt(at(100)), (), 0))
    assert job.stage is Stage.SAMPLING
    assert kinds(job.happen(ActorFailed(LOST))) == ["RestartEpoch", "SampleSource"]
    assert job.stage is Stage.SAMPLING


def test_every_kind_of_barrier_occurs_and_only_checkpoints_commit() -> None:
    job = Job.new()
    job.happen(Started())
    job.sample()
    job.position = 200
    job.ask(1, RequestKind.STOP)
    assert set(barriers(job.orders)) == set(BarrierKind)
    committing = [kind for kind in barriers(job.orders) if kind.commits]
    commits = [order for order in job.orders if isinstance(order, CommitEpoch)]
    assert {commit.state.epoch for commit in commits if commit.state.epoch} == set(range(1, len(committing) + 1))


def test_epochs_are_numbered_without_gaps_and_revisions_too() -> None:
    job = live_job()
    for position in (200, 300):
        job.position = position
        job.sample()
    commits = [order.state for order in job.orders if isinstance(order, CommitEpoch)]
    assert [state.revision for state in commits] == list(range(1, len(commits) + 1))
    epochs = [state.epoch for state in commits]
    assert sorted(set(epochs)) == list(range(max(epochs) + 1))


def test_offsets_stay_of_one_server() -> None:
    job = live_job()
    elsewhere = CdcOffset("another", "binlog", 1, 500)
    sampled = Sampled(Sample(elsewhere, VisibleAt(elsewhere), 10), job.coordinator.asked)
    with pytest.raises(Exception, match="different servers"):
        job.happen(sampled)


def test_progress_of_the_epoch_in_hand_is_kept_for_whoever_shows_it_and_decides_nothing() -> None:
    job = held_in_epoch_one(ReadRanges)
    before = job.state
    told: tuple[Event, ...] = (
        CdcTableBackfillProgress(Epoch(1), 2, 3, 25),
        CreateMviewProgress(Actor.UPSTREAM, Epoch(1), 7),
        CreateMviewProgress(Actor.MERGE, Epoch(1), 5),
    )
    assert [job.happen(event) for event in told] == [[], [], []]
    assert job.coordinator.in_hand == InHand(rows=25, ranges=2, captured=7, merged=5)
    assert job.state is before


def test_progress_of_another_epoch_or_attempt_is_ignored() -> None:
    job = held_in_epoch_one(ReadRanges)
    job.happen(CdcTableBackfillProgress(Epoch(2), 2, 3, 25))
    job.happen(CdcTableBackfillProgress(Epoch(1), 2, 3, 25, attempt=1))
    assert job.coordinator.in_hand == InHand()


def test_repeated_epoch_and_committed_epoch_have_nothing_in_hand() -> None:
    job = held_in_epoch_one(ReadRanges)
    progress = CdcTableBackfillProgress(Epoch(1), 2, 3, 25)
    job.happen(progress)
    job.happen(ActorFailed(LOST))
    assert job.coordinator.in_hand == InHand()
    job.happen(replace(progress, attempt=1))
    assert job.coordinator.in_hand.rows == 25
    job.hold = ()
    job.happen(RangesRead(Epoch(1), (), attempt=1))
    assert job.coordinator.in_hand == InHand()
