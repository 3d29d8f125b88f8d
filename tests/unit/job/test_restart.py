"""An attempt that failed is begun again, or the job hears why not: one outcome, whatever becomes of Spark meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import cast

import pytest
from pyspark import SparkContext

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.upstream_table import UpstreamTable
from progress.state.barriers import ActorFailure, LocalBarrierManager, OtherEvent
from progress.store.store import StateStore
from tests.unit.decide.coordinated_job import LOST
from tests.unit.progress.state.state_examples import beginning, plan_with
from vnode_backfill.config.job import check_config
from vnode_backfill.decide.protocol import EpochRestarted, Event, RestartEpoch
from vnode_backfill.job.run import performer as performing
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.sinks import Sink
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.jvm import JvmWatch
from vnode_backfill.spark.session import Started, StartingSession
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import BackfillError, StuckError

PLAN = plan_with(0, 10)
CONFIG = check_config(
    {
        "job": "j",
        "mysql": {"host": "h", "user": "u", "database": "shop", "table": "orders"},
        "sink": {"delta": {"path": "/lake"}},
        "state": {"path": "/state"},
        "limits": {"backoff": "10ms", "max_backoff": "10ms"},
    },
    "a test",
)


class Table:
    """A table that is asked nothing."""

    definition = TableDefinition("shop", "orders", (Column.parse("id", "bigint", nullable=False),), ("id",))

    def questions(self) -> Table:
        return self

    def of(self, _: object) -> Table:
        return self

    def session(self) -> None:
        raise AssertionError("nothing is asked")

    def close(self) -> None:
        pass


class Context:
    """A context whose answer to `cancelJobGroup` is what the test makes of it."""

    def __init__(self, cancelled: Callable[[], object]) -> None:
        self.master, self.cancelled = "local[2]", cancelled

    def cancelJobGroup(self, _: str) -> None:  # noqa: N802 - Spark's own word
        self.cancelled()


class Watch:
    """A JVM of which nobody says whether it lives."""

    excused: Callable[[], bool]


@contextmanager
def outcomes(
    cause: BackfillError, cancelled: Callable[[], object] = list, attempt: int = 1
) -> Iterator[LocalBarrierManager[Event]]:
    """Begin the epoch again; what is reported of it."""
    started: Future[Started] = Future()
    started.set_result((cast(SparkContext, Context(cancelled)), cast(JvmWatch, Watch())))
    session = StartingSession(lambda: started, DaemonAhead(), slots=6)
    session.begin()
    barriers = LocalBarrierManager[Event]()
    services = Services(
        CONFIG, session, cast(UpstreamTable, Table()), cast(Sink, None), cast(ChangeBuffer, None),
        cast(StateStore, None),
    )  # fmt: skip
    performer = Performer(services, barriers)
    performer.perform(RestartEpoch(attempt, cause), Committed(beginning(PLAN), PLAN))
    yield barriers
    performer._tools.close()


def test_an_epoch_is_begun_again_once_although_the_jvm_is_gone() -> None:
    asked: list[int] = []

    def refuse() -> None:
        asked.append(1)
        raise ConnectionRefusedError("nobody listens")

    with outcomes(LOST, refuse) as barriers:
        assert barriers.next_event(60) == OtherEvent(EpochRestarted(1))
        assert barriers.next_event(0) is None
    assert asked == [1]


def test_an_epoch_is_begun_again_although_the_jvm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "_CANCEL_SECONDS", 0.01)
    answers = threading.Event()
    with outcomes(LOST, lambda: answers.wait(60)) as barriers:
        assert barriers.next_event(10) == OtherEvent(EpochRestarted(1))
    answers.set()


def test_an_epoch_that_has_failed_thousands_of_times_is_begun_again() -> None:
    with outcomes(LOST, attempt=5_000) as barriers:
        assert barriers.next_event(60) == OtherEvent(EpochRestarted(5_000))


def test_whatever_keeps_an_epoch_from_being_begun_again_is_reported_and_ends_the_job() -> None:
    with outcomes(cast(BackfillError, ValueError("has no `retryable`"))) as barriers:
        found = barriers.next_event(20)
        assert isinstance(found, ActorFailure)
        assert isinstance(found.error, StuckError)
        assert found.error.message.startswith("the epoch was not begun again: AttributeError")
        assert (found.attempt, found.error.retryable) == (1, False)
        assert barriers.next_event(0) is None
