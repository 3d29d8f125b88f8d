"""Runs a job: takes one event, decides, orders what was decided; until it is stopped, or live if that was asked for.

The loop never waits on the source or a sink: it takes events from the barrier manager and hands orders to the
performer. What it does besides is watching: it renews the lease, looks for requests, asks to stop when a signal came or
the job went live, and calls the watcher that shows progress.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from types import FrameType
from typing import Protocol

from consume_upstream.upstream_table import UpstreamQuestions
from progress.state.backfill_state import BackfillState, Failure, RequestKind
from progress.state.barriers import LocalBarrierManager
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.protocol import Action, Ending, Event, Started
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_run import TableRun
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key_range import SplitPlan

log = logging.getLogger(__name__)
_UPKEEP_EVERY = timedelta(seconds=2)
_LOOK_AT_LOG = timedelta(seconds=30)
"""How often the source is asked what it holds of its log: it looks at every file for an answer."""


class PerformsOrders(Protocol):
    """Carries the orders of a job out, and reports their outcomes through the barrier manager; see `performer`."""

    seen: Seen
    pace: Pace
    source: UpstreamQuestions
    task_slots: int
    leaves_tasks: bool

    @property
    def stopping(self) -> threading.Event: ...

    def perform(self, action: Action, committed: Committed) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class Watcher(Protocol):
    """Shows progress; called by the job's own loop."""

    def look(self, coordinator: Coordinator, performer: PerformsOrders) -> None: ...

    def close(self, coordinator: Coordinator, performer: PerformsOrders) -> None: ...


MakePerformer = Callable[[Services, LocalBarrierManager[Event]], PerformsOrders]


class Until(StrEnum):
    """When `run` ends by itself."""

    LIVE = "live"
    STOPPED = "stopped"


class BackfillJob:
    """One driver's run of a job. `run` returns the committed state it ended with."""

    def __init__(
        self,
        services: Services,
        state: BackfillState,
        plan: SplitPlan,
        watch: Watcher,
        *,
        performer: MakePerformer = Performer,
        bounded: bool = False,
    ) -> None:
        """A job that is `bounded` only copies."""
        self._services, self._watch = services, watch
        barriers: LocalBarrierManager[Event] = LocalBarrierManager()
        self._performer = performer(services, barriers)
        watched = self._performer.seen, self._performer.pace
        self._table = TableRun(services, state, plan, barriers, self._performer.perform, watched, bounded=bounded)
        self._ended = threading.Event()

    def run(self, until: Until) -> tuple[BackfillState, Failure | None]:
        """Run to the end; the failure is what stopped it, if anything did."""
        with self._signals(), self._background():
            # What was asked for while nobody ran the job comes first: a job that is to be read again must not end as
            # live.
            self._look_for_requests()
            # What was asked for counts for the epoch that is repeated now: it may be what lets it end this time.
            table = self._table
            table.take_waiting()
            table.happen(Started())
            while not table.has_stopped:
                event = table.barriers.next_event(timeout=0.5)
                if event is not None:
                    table.take(event)
                if until is Until.LIVE and table.is_up_to_date:
                    self.ask_to_stop()
                self._watch.look(table.coordinator, self._performer)
        self._performer.close()
        self._watch.close(table.coordinator, self._performer)
        return table.coordinator.saved, table.failure

    @property
    def ending(self) -> Ending | None:
        """What the table has met, where the job has stopped because this copy cannot continue."""
        return self._table.ending

    def ask_to_stop(self) -> None:
        """Stop at a SyncCheckpoint; asking again changes nothing."""
        # Before the request: what waits meanwhile looks at it.
        self._performer.stopping.set()
        if self._table.ask_to_stop():
            self._performer.wake()

    @property
    def is_stopping(self) -> bool:
        """Whether the job was asked to stop, by a signal, a request or itself."""
        return self._performer.stopping.is_set()

    @property
    def leaves_tasks(self) -> bool:
        """Whether tasks of a job that has ended may still write."""
        return self._performer.leaves_tasks

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self.ask_to_stop()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextmanager
    def _background(self) -> Iterator[None]:
        """Renew the lease and look for requests, apart from the loop."""
        lease_every = self._services.config.state.lease / 3
        works = [
            (lease_every, self._renew),
            (timedelta(seconds=1), self._look_for_requests),
            (timedelta(seconds=5), self._measure),
            (_LOOK_AT_LOG, self._measure_source),
        ]
        if self._services.jvm is not None:
            works.append((timedelta(seconds=0.5), self._check_spark))
        if self._services.throttle is not None and self._services.throttle.has_checks:
            # Once before anything is read: a source that is busy at the start is not read at all.
            self._check_throttle()
            works.append((self._services.config.limits.throttle.every, self._check_throttle))
        threads = [threading.Thread(target=self._repeat, args=work, daemon=True) for work in works]
        upkeep = [
            threading.Thread(target=self._repeat, args=(_UPKEEP_EVERY, work), daemon=True)
            for work in (self._keep_up, self._tidy)
        ]
        for thread in (*threads, *upkeep):
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            # A sweep or a checkpoint cannot be broken off, and nothing is lost if the process ends in it.
            for thread in upkeep:
                thread.join(timeout=2)

    def _repeat(self, every: timedelta, work: Callable[[], None]) -> None:
        while not self._ended.wait(every.total_seconds()):
            try:
                work()
            except BackfillError as error:
                # What may pass is tried again at the next turn; a lost lease does not come back, nor does a lost JVM.
                # A job that fails already only stores its reason, and whether that succeeds is for the commit to say.
                coordinator = self._table.coordinator
                if not error.retryable and not coordinator.is_failing:
                    self._table.barriers.notify_failure(Actor.DRIVER, coordinator.attempt, error)
                log.warning("%s failed error=%s", work.__name__, error.message)

    def _renew(self) -> None:
        self._services.store.renew()

    def _check_spark(self) -> None:
        """A stop needs no Spark: work that does raises by itself."""
        jvm = self._services.jvm
        if jvm is not None and jvm.lost is not None and not self.is_stopping:
            raise jvm.lost

    def _keep_up(self) -> None:
        self._table.keep_up(self._goes_on)

    def _tidy(self) -> None:
        self._table.tidy()

    def _goes_on(self) -> bool:
        return not (self._table.stop_asked or self._table.coordinator.stopping or self._ended.is_set())

    def _check_throttle(self) -> None:
        throttle, seen = self._services.throttle, self._performer.seen
        if throttle is not None:
            found = throttle.reason(self._performer.source)
            seen.throttled_by = found.sentence if found else ""
            if found:
                every = self._services.config.limits.throttle.every.total_seconds()
                self._services.metrics.observe_throttled(found.label, every)

    def _measure(self) -> None:
        self._table.measure()

    def _measure_source(self) -> None:
        self._performer.seen.held_log = self._performer.source.held_log()

    def _look_for_requests(self) -> None:
        found = self._services.store.unacknowledged(self._table.coordinator.saved)
        if any(request.kind is RequestKind.STOP for request in found):
            self._performer.stopping.set()
        if self._table.hear(found):
            # Once for each: a driver that waits after a failure must not be woken every second by what waits as well.
            self._performer.wake()
