"""A session starts once, at once or when it is first asked for, and looking at it does not start it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest
from pyspark import SparkContext

from devkit.waiting import wait_for
from vnode_backfill.config.job import Config, check_config
from vnode_backfill.job.run.spark_work import SparkWork
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.jvm import JvmWatch
from vnode_backfill.spark.session import Started, StartingSession
from vnode_backfill.spark.slots import known_slots
from vnode_backfill.spark.tasks import run_tasks
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import ActorError, BackfillError, ConfigError, SparkLostError, SparkStartError


class Context:
    """What is asked of a context that is up; `cancelled` are the groups whose jobs were to end."""

    def __init__(self, master: str = "local[2]") -> None:
        self.master = master
        self.cancelled: list[str] = []

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802 - Spark's own word
        self.cancelled.append(group)


class Watch:
    def __init__(self, lost: SparkLostError | None = None) -> None:
        self.lost, self.closed = lost, False
        self.excused: Callable[[], bool] = lambda: False

    def close(self) -> None:
        self.closed = True


class Starts:
    """Starts sessions, and counts them."""

    def __init__(self, outcome: tuple[Context, Watch] | Exception | None) -> None:
        """Without an outcome a session starts and starts."""
        self.count, self.outcome = 0, outcome
        self.started: list[Future[Started]] = []

    def __call__(self) -> Future[Started]:
        self.count += 1
        started: Future[Started] = Future()
        self.started.append(started)
        if isinstance(self.outcome, Exception):
            started.set_exception(self.outcome)
        elif self.outcome is not None:
            context, watch = self.outcome
            started.set_result((cast(SparkContext, context), cast(JvmWatch, watch)))
        return started


def work_in(starts: Starts) -> tuple[StartingSession, SparkWork]:
    session = StartingSession(starts, DaemonAhead(), slots=6)
    return session, SparkWork(session, fenced=True)


def test_a_session_that_waits_starts_once_when_it_is_asked_for() -> None:
    context = Context()
    starts = Starts((context, Watch()))
    session = StartingSession(starts, DaemonAhead(), slots=6)
    assert starts.count == 0
    assert session.sparkContext is cast(SparkContext, context)
    assert session.sparkContext is session.required()
    assert starts.count == 1


def test_a_session_without_known_slots_starts_at_once() -> None:
    starts = Starts((Context(), Watch()))
    StartingSession(starts, DaemonAhead())
    assert starts.count == 1


def test_looking_at_a_session_and_having_no_task_start_nothing() -> None:
    starts = Starts((Context(), Watch()))
    session = StartingSession(starts, DaemonAhead(), slots=6)
    work = SparkWork(session, fenced=True)
    work.cancel()
    assert not work.leaves_tasks
    assert run_tasks(session, abs, []) == []
    assert session.lost is None
    assert session.found_lost() is None
    assert session.up is None
    session.end()
    assert starts.count == 0


def test_jobs_of_a_session_that_has_started_are_cancelled() -> None:
    context = Context()
    work = SparkWork(StartingSession(Starts((context, Watch())), DaemonAhead(), slots=6), fenced=True)
    work.expect_tasks()
    work.cancel()
    assert len(context.cancelled) == 1


def test_the_loss_of_a_jvm_that_started_late_is_seen_and_a_stop_excuses_it() -> None:
    watch = Watch(SparkLostError("gone"))
    session = StartingSession(Starts((Context(), watch)), DaemonAhead(), slots=6)
    session.begin()
    assert session.lost is watch.lost
    assert not watch.excused()
    session.excused = lambda: True
    assert watch.excused()


def test_a_session_that_cannot_start_is_a_wrong_configuration_before_anything_is_written() -> None:
    session = StartingSession(Starts(SparkStartError("no such master")), DaemonAhead(), slots=6)
    with pytest.raises(ConfigError, match="no such master"):
        session.required()
    with pytest.raises(SparkStartError):
        session.result(timeout=1.0)


@pytest.mark.parametrize("error", [SparkStartError("no memory", hint="Give it more."), SparkLostError("killed")])
def test_a_session_that_cannot_start_when_a_task_needs_it_ends_the_driver(error: BackfillError) -> None:
    session = StartingSession(Starts(error), DaemonAhead(), slots=6)
    lost_before = session.lost
    with pytest.raises(SparkLostError, match=error.message):
        run_tasks(session, abs, [1])
    lost = session.lost
    assert lost_before is None
    assert lost is not None
    assert (lost.message, lost.hint) == (error.message, error.hint)


def test_a_session_that_failed_before_a_task_needed_it_ends_nothing_and_is_tried_again() -> None:
    """The machine may have been short of memory for a moment, and the job is live without a JVM."""
    starts = Starts(SparkStartError("no memory"))
    session, work = work_in(starts)
    work.expect_tasks()
    lost_before = session.lost
    context = Context()
    starts.outcome = context, Watch()
    assert session.sparkContext is cast(SparkContext, context)
    assert (lost_before, session.lost, starts.count) == (None, None, 2)


def test_a_session_that_fails_while_a_task_waits_for_it_is_lost() -> None:
    session, work = work_in(starts := Starts(SparkStartError("no memory")))
    work.expect_tasks()
    with pytest.raises(SparkLostError, match="no memory"):
        run_tasks(session, abs, [1])
    assert session.lost is not None
    assert starts.count == 2


BARRIER = Barrier(Epoch(7), BarrierKind.CHECKPOINT)


@pytest.mark.timeout(15)
def test_a_session_that_does_not_start_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    session, work = work_in(Starts(None))
    monkeypatch.setattr("vnode_backfill.spark.session.START_SECONDS", 0.0)
    with pytest.raises(SparkLostError, match="has not started after 0 s"):
        work.run(Actor.MERGE, BARRIER, lambda: run_tasks(session, abs, [1]))
    assert session.lost is not None
    assert session.lost.hint


@pytest.mark.timeout(15)
def test_nobody_waits_for_a_jvm_of_this_machine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a table that is opened, nor a command that renews its lease meanwhile."""
    monkeypatch.setattr("vnode_backfill.spark.session.START_SECONDS", 0.0)
    at_once = StartingSession(Starts(None), DaemonAhead(), here=True)
    for session in (work_in(Starts(None))[0], at_once):
        with pytest.raises(SparkLostError, match="has not started"):
            session.required()
        with pytest.raises(SparkLostError, match="has not started"):
            session.result(timeout=0.01)
        assert session.lost is not None


@pytest.mark.timeout(15)
def test_a_cluster_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vnode_backfill.spark.session.START_SECONDS", 0.0)
    session = StartingSession(Starts(None), DaemonAhead())
    with pytest.raises(TimeoutError):
        session.result(timeout=0.01)
    assert session.lost is None


@pytest.mark.timeout(15)
def test_a_stop_does_not_wait_for_a_session_that_starts() -> None:
    session, work = work_in(Starts(None))
    work.stopping.set()
    assert work.run(Actor.UPSTREAM, BARRIER, lambda: run_tasks(session, abs, [-1]), lambda: [2]) == [2]
    assert session.lost is None


@pytest.mark.timeout(15)
def test_work_of_a_cancelled_attempt_does_not_wait_for_a_session_that_starts() -> None:
    starts = Starts(None)
    session, work = work_in(starts)
    with ThreadPoolExecutor(1) as pool:
        order = pool.submit(work.run, Actor.MERGE, BARRIER, lambda: run_tasks(session, abs, [-1]))
        wait_for(lambda: starts.count == 1, "the order to need Spark", seconds=10)
        work.cancel()
        with pytest.raises(ActorError, match="given up while Spark started"):
            order.result()
    assert session.lost is None


def test_the_watch_of_a_jvm_that_comes_up_after_the_end_is_closed() -> None:
    """The process may be a notebook, and live on: the watch would end it with the JVM."""
    starts, watch = Starts(None), Watch()
    session, work = work_in(starts)
    work.expect_tasks()
    session.end()
    starts.started[0].set_result((cast(SparkContext, Context()), cast(JvmWatch, watch)))
    assert watch.closed


def configured() -> Config:
    mysql = {"host": "h", "user": "u", "database": "d", "table": "t"}
    settings = {"job": "j", "mysql": mysql, "sink": {"delta": {"path": "/lake"}}, "state": {"path": "/state"}}
    return check_config(settings, "a test")


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "nonsense", "local[x]"])
def test_only_a_session_of_this_machine_may_wait(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    assert known_slots(configured(), "local[3]") == 3
    assert known_slots(configured(), None) is not None
    assert known_slots(configured(), master) is None
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert known_slots(configured(), "local[3]") is None
