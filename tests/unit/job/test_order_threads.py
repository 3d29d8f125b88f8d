"""Proves that every order has one outcome, and that what an actor did is measured."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry

from consume_upstream.log.offset import CdcOffset
from progress.faces.metrics import CdcBackfillMetrics
from progress.state.barriers import ActorFailure, LocalBarrierManager
from tests.unit.progress.state.state_examples import at
from vnode_backfill.decide.protocol import Action, Event, TrimBuffer
from vnode_backfill.job.run.observations import Seen
from vnode_backfill.job.run.order_threads import OrderThreads
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError, LogFormatError, SourceLostError, StuckError

OFFSET: CdcOffset = at(4)
ORDER: Action = TrimBuffer(OFFSET)


def measured(registry: CollectorRegistry, actor: Actor) -> float:
    return registry.get_sample_value("vnode_backfill_epoch_seconds_count", {"actor": str(actor)}) or 0.0


def test_what_an_actor_did_is_measured_and_counts_as_a_move() -> None:
    metrics, seen = CdcBackfillMetrics(), Seen(moved_at=0.0)
    orders = OrderThreads(LocalBarrierManager[Event](), metrics, seen)
    done: list[Actor] = []
    for actor in (Actor.SNAPSHOT, Actor.MERGE, Actor.DRIVER):
        orders.begin(actor, 0, ORDER, lambda actor=actor: done.append(actor))  # type: ignore[misc]
    assert orders.close(60.0) == 0
    assert sorted(done) == sorted([Actor.SNAPSHOT, Actor.MERGE, Actor.DRIVER])
    assert [measured(metrics.registry, each) for each in (Actor.SNAPSHOT, Actor.MERGE, Actor.DRIVER)] == [1, 1, 0]
    assert seen.moved_at > 0.0


def test_what_an_order_raises_is_reported_and_not_measured() -> None:
    barriers, metrics, seen = LocalBarrierManager[Event](), CdcBackfillMetrics(), Seen(moved_at=0.0)

    def fail() -> None:
        raise SourceLostError("gone")

    orders = OrderThreads(barriers, metrics, seen)
    orders.begin(Actor.UPSTREAM, 3, ORDER, fail)
    assert orders.close(60.0) == 0
    event = barriers.next_event(0)
    assert isinstance(event, ActorFailure)
    assert (event.actor, event.attempt, event.error.message) == (Actor.UPSTREAM, 3, "gone")
    assert (measured(metrics.registry, Actor.UPSTREAM), seen.moved_at) == (0, 0.0)


def test_an_order_that_does_not_end_in_time_is_reported_as_stuck() -> None:
    barriers, goes_on = LocalBarrierManager[Event](), threading.Event()
    orders = OrderThreads(barriers, CdcBackfillMetrics(), Seen())

    def wait() -> None:
        goes_on.wait(60)

    orders.begin(Actor.DRIVER, 2, ORDER, wait, within=0.01)
    event = barriers.next_event(60)
    goes_on.set()
    assert isinstance(event, ActorFailure)
    assert isinstance(event.error, StuckError)
    assert (event.attempt, orders.close(60.0)) == (2, 0)


def test_an_order_that_ends_in_time_is_not() -> None:
    barriers = LocalBarrierManager[Event]()
    orders = OrderThreads(barriers, CdcBackfillMetrics(), Seen())
    orders.begin(Actor.DRIVER, 2, ORDER, lambda: None, within=60)
    assert orders.close(60.0) == 0
    assert barriers.next_event(0) is None


@pytest.mark.parametrize(("kind", "is_said"), [(SourceLostError, True), (LogFormatError, False)])
def test_hint_of_what_ends_the_table_is_left_to_the_end(
    kind: type[BackfillError], is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise kind("gone", detail="at 7", hint="Ask for `resnapshot --all`.")

    orders = OrderThreads(LocalBarrierManager[Event](), CdcBackfillMetrics(), Seen())
    orders.begin(Actor.UPSTREAM, 0, ORDER, fail)
    assert orders.close(60.0) == 0
    assert "gone\n  detail: at 7" in caplog.text
    assert ("resnapshot --all" in caplog.text) == is_said
