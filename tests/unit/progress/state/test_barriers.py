"""Proves that what actors report reaches the coordinator: failures first, epochs in order, the real cause named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from progress.state.barriers import (
    ActorFailure,
    BarrierCollected,
    CdcTableBackfillProgress,
    CreateMviewProgress,
    LocalBarrierManager,
    OtherEvent,
    root_cause,
)
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import (
    ActorError,
    BackfillError,
    LawBrokenError,
    LogFormatError,
    SinkUnavailableError,
    SourceLostError,
)


def barrier(epoch: int, attempt: int = 0, kind: BarrierKind = BarrierKind.CHECKPOINT) -> Barrier:
    return Barrier(Epoch(epoch), kind, attempt)


@pytest.fixture
def manager() -> LocalBarrierManager[str]:
    return LocalBarrierManager()


def test_events_come_in_the_order_they_were_reported(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(1))
    manager.collect(Actor.MERGE, barrier(1), "merged")
    manager.tell("sampled")
    manager.collect(Actor.SNAPSHOT, barrier(1), "read")
    assert [manager.next_event(0) for _ in range(4)] == [
        BarrierCollected(Actor.MERGE, barrier(1), "merged"),
        OtherEvent("sampled"),
        BarrierCollected(Actor.SNAPSHOT, barrier(1), "read"),
        None,
    ]


def test_failure_comes_before_everything_that_arrived_earlier(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(1))
    manager.collect(Actor.MERGE, barrier(1), "merged")
    error = SourceLostError("gone")
    manager.notify_failure(Actor.UPSTREAM, 0, error)
    assert manager.next_event(0) == ActorFailure(Actor.UPSTREAM, 0, error)
    assert isinstance(manager.next_event(0), BarrierCollected)


def test_failures_that_arrive_together_are_one_event_with_the_cause(manager: LocalBarrierManager[str]) -> None:
    lost, cause = SourceLostError("broken pipe"), LogFormatError("event 7 is damaged")
    manager.notify_failure(Actor.SNAPSHOT, 0, lost)
    manager.notify_failure(Actor.UPSTREAM, 0, cause)
    assert manager.next_event(0) == ActorFailure(Actor.UPSTREAM, 0, cause, (lost,))
    assert manager.next_event(0) is None


def test_failure_of_an_abandoned_attempt_does_not_hide_the_newest(manager: LocalBarrierManager[str]) -> None:
    manager.notify_failure(Actor.SNAPSHOT, 0, LogFormatError("of the old attempt"))
    newest = SourceLostError("of this attempt")
    manager.notify_failure(Actor.UPSTREAM, 1, newest)
    assert manager.next_event(0) == ActorFailure(Actor.UPSTREAM, 1, newest)


def test_late_failure_of_an_epoch_before_does_not_swallow_one_of_this_epoch(
    manager: LocalBarrierManager[str],
) -> None:
    """Attempts begin at 0 again after a commit. A failure that was thrown away would leave its order without an outcome."""
    late, current = SourceLostError("of a question asked before the commit"), SourceLostError("of this epoch")
    manager.notify_failure(Actor.DRIVER, 1, late)
    manager.notify_failure(Actor.MERGE, 0, current)
    assert manager.next_event(0) == ActorFailure(Actor.DRIVER, 1, late)
    assert manager.next_event(0) == ActorFailure(Actor.MERGE, 0, current)
    assert manager.next_event(0) is None


def test_foreign_error_becomes_an_actor_error_with_its_text(manager: LocalBarrierManager[str]) -> None:
    manager.notify_failure(Actor.MERGE, 0, KeyError("column"))
    event = manager.next_event(0)
    assert isinstance(event, ActorFailure)
    assert isinstance(event.error, ActorError)
    assert event.error.message == "the merge actor ended with KeyError"
    assert "column" in event.error.detail


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([SourceLostError("pipe"), LogFormatError("damaged")], "damaged"),
        ([ActorError("ended"), SourceLostError("pipe")], "pipe"),
        ([ActorError("ended"), SinkUnavailableError("full")], "full"),
        ([LogFormatError("damaged"), ActorError("ended"), SourceLostError("pipe")], "damaged"),
        ([SourceLostError("first"), SourceLostError("second")], "first"),
    ],
)
def test_broken_pipe_is_never_the_cause_where_another_error_is_known(errors: list[BackfillError], cause: str) -> None:
    assert root_cause([(Actor.SNAPSHOT, error) for error in errors])[1].message == cause


def test_every_subscriber_is_told_of_every_barrier(manager: LocalBarrierManager[str]) -> None:
    told: list[tuple[Actor, Barrier]] = []
    manager.subscribe_barrier(Actor.SNAPSHOT, lambda b: told.append((Actor.SNAPSHOT, b)))
    manager.inject(barrier(1))
    manager.subscribe_barrier(Actor.MERGE, lambda b: told.append((Actor.MERGE, b)))
    manager.inject(barrier(2))
    assert told == [
        (Actor.SNAPSHOT, barrier(1)),
        (Actor.MERGE, barrier(1)),
        (Actor.SNAPSHOT, barrier(2)),
        (Actor.MERGE, barrier(2)),
    ]


def test_barriers_never_go_back(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(2, attempt=1))
    for earlier in (barrier(1), barrier(2, attempt=0)):
        with pytest.raises(LawBrokenError, match="cannot follow"):
            manager.inject(earlier)


def test_epoch_may_stay_open_over_barriers_without_a_commit(manager: LocalBarrierManager[str]) -> None:
    told: list[Barrier] = []
    manager.subscribe_barrier(Actor.MERGE, told.append)
    passed = [barrier(4, kind=BarrierKind.INITIAL), barrier(4, kind=BarrierKind.BARRIER), barrier(5)]
    for each in passed:
        manager.inject(each)
    assert told == passed


def test_barrier_that_was_not_injected_cannot_be_collected(manager: LocalBarrierManager[str]) -> None:
    with pytest.raises(LawBrokenError, match="in hand is None"):
        manager.collect(Actor.MERGE, barrier(1), "merged")
    manager.inject(barrier(1))
    with pytest.raises(LawBrokenError, match="merge collected"):
        manager.collect(Actor.MERGE, barrier(2), "merged")


def test_initial_barrier_is_not_collected(manager: LocalBarrierManager[str]) -> None:
    initial = barrier(0, kind=BarrierKind.INITIAL)
    manager.inject(initial)
    with pytest.raises(LawBrokenError):
        manager.collect(Actor.MERGE, initial, "merged")


def test_actor_that_collects_twice_is_a_bug(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(1))
    manager.collect(Actor.MERGE, barrier(1), "merged")
    with pytest.raises(LawBrokenError, match="twice"):
        manager.collect(Actor.MERGE, barrier(1), "merged")


def test_report_of_an_abandoned_attempt_is_dropped(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(1))
    manager.inject(barrier(1, attempt=1))
    manager.collect(Actor.MERGE, barrier(1), "late")
    manager.collect(Actor.MERGE, barrier(1, attempt=1), "merged")
    assert manager.next_event(0) == BarrierCollected(Actor.MERGE, barrier(1, attempt=1), "merged")
    assert manager.next_event(0) is None


def test_progress_of_the_epoch_in_hand_is_passed_on(manager: LocalBarrierManager[str]) -> None:
    manager.inject(barrier(2))
    old = CdcTableBackfillProgress(Epoch(1), 1, 4, 100)
    ranges = CdcTableBackfillProgress(Epoch(2), 2, 4, 200)
    rows = CreateMviewProgress(Actor.UPSTREAM, Epoch(2), 50)
    manager.report_cdc_table_backfill_progress(old)
    manager.report_cdc_table_backfill_progress(ranges)
    manager.report_create_mview_progress(rows)
    assert [manager.next_event(0) for _ in range(3)] == [ranges, rows, None]


def test_waiting_coordinator_is_woken_by_a_report(manager: LocalBarrierManager[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(manager.next_event, 30)
        manager.tell("sampled")
        assert waiting.result(30) == OtherEvent("sampled")
        waiting = pool.submit(manager.next_event, 30)
        manager.notify_failure(Actor.MERGE, 0, SourceLostError("gone"))
        assert isinstance(waiting.result(30), ActorFailure)
