"""Runs a job: takes one event, decides, orders what was decided; until it is stopped, or live if that was asked for.

The loop never waits on the source or a sink: it takes events from the barrier manager and hands orders to the
performer. What it does besides is watching: it renews the lease, looks for requests, asks to stop when a signal came or
the job went live, and calls the watcher that shows progress.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from types import FrameType
from typing import Protocol

from consume_upstream.upstream_table import UpstreamQuestions
from progress.state.backfill_state import OWN_REQUEST, BackfillState, Failure, Request, RequestKind
from progress.state.barriers import (
    ActorFailure,
    BarrierCollected,
    CdcTableBackfillProgress,
    CreateMviewProgress,
    LocalBarrierEvent,
    LocalBarrierManager,
)
from vnode_backfill.decide.coordinator import Coordinator, Stage, decide
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    ChangesBuffered,
    CommitEpoch,
    Ending,
    EpochMerged,
    Event,
    RequestArrived,
    Started,
    Stop,
    event_of,
)
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.upkeep import Upkeep
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError, LawBrokenError, SinkUnavailableError
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
    ) -> None:
        self._services, self._watch = services, watch
        self._barriers: LocalBarrierManager[Event] = LocalBarrierManager()
        self._performer = performer(services, self._barriers)
        retries = services.config.limits.retries
        self._coordinator = Coordinator(saved=state, plan=plan, attempts_allowed=retries)
        self._upkeep = Upkeep(services.sink, services.config)
        self._stop_asked = False
        self._heard: set[int] = set()
        self._ended = threading.Event()

    def run(self, until: Until) -> tuple[BackfillState, Failure | None]:
        """Run to the end; the failure is what stopped it, if anything did."""
        with self._signals(), self._background():
            # What was asked for while nobody ran the job comes first: a job that is to be read again must not end as
            # live.
            self._look_for_requests()
            self._take_waiting()
            self._happen(Started())
            while self._coordinator.stage is not Stage.STOPPED:
                event = self._barriers.next_event(timeout=0.5)
                if event is not None:
                    self._take(event)
                if until is Until.LIVE and self._coordinator.is_up_to_date and not self._rereads_waiting:
                    self.ask_to_stop()
                self._watch.look(self._coordinator, self._performer)
        self._performer.close()
        self._watch.close(self._coordinator, self._performer)
        return self._coordinator.saved, self._failure

    _failure: Failure | None = None
    _rereads_waiting = False
    ending: Ending | None = None
    """What the table has met, where the job has stopped because this copy cannot continue."""

    def ask_to_stop(self) -> None:
        """Stop at a SyncCheckpoint; asking again changes nothing."""
        if not self._stop_asked:
            self._stop_asked = True
            self._performer.stopping.set()
            self._barriers.tell(RequestArrived(Request(OWN_REQUEST, RequestKind.STOP)))
            self._performer.wake()

    def _take_waiting(self) -> None:
        """What was asked for counts for the epoch that is repeated now: it may be what lets it end this time."""
        while (event := self._barriers.next_event(timeout=0)) is not None:
            self._take(event)

    @property
    def is_stopping(self) -> bool:
        """Whether the job was asked to stop, by a signal, a request or itself."""
        return self._performer.stopping.is_set()

    @property
    def leaves_tasks(self) -> bool:
        """Whether tasks of a job that has ended may still write."""
        return self._performer.leaves_tasks

    def _take(self, event: LocalBarrierEvent[Event]) -> None:
        """Count what metrics and faces want to know of it, and let it happen."""
        match event:
            case BarrierCollected(result=ChangesBuffered(kept=kept, newest=newest)):
                self._services.metrics.observe_buffered(kept)
                self._performer.seen.captured(self._coordinator.saved.intent, newest)
            case BarrierCollected(result=EpochMerged(changes=changes)):
                self._services.metrics.observe_merged(changes)
            case ActorFailure(error=error, attempt=attempt):
                log.warning("actor failed actor=%s attempt=%d error=%s", event.actor, attempt, error.message)
                self._services.metrics.observe_retry(event.actor)
            case CreateMviewProgress() | CdcTableBackfillProgress():
                self._performer.seen.moved_at = time.monotonic()
            case _:
                pass
        self._happen(event_of(event))

    def _happen(self, event: Event) -> None:
        ended = self._coordinator.saved.epoch
        try:
            self._coordinator, actions = decide(self._coordinator, event)
        except LawBrokenError as error:
            # A bug of ours: stop with the reason in the state, before anything more is ordered.
            self._coordinator, actions = decide(self._coordinator, ActorFailed(error, self._coordinator.attempt))
        performer = self._performer
        if self._coordinator.saved.epoch > ended:
            self._services.metrics.observe_epoch(Actor.DRIVER, time.monotonic() - performer.pace.epoch_began)
        committed = Committed(self._coordinator.saved, self._coordinator.plan, self._coordinator.attempt)
        for action in actions:
            if isinstance(action, Stop):
                self._failure, self.ending = action.failure, action.ending
            if isinstance(action, CommitEpoch):
                log.info("epoch ends epoch=%d kind=%s", action.state.epoch, _kind(action.state))
            performer.perform(action, committed)

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
                coordinator = self._coordinator
                if not error.retryable and not coordinator.is_failing:
                    self._barriers.notify_failure(Actor.DRIVER, coordinator.attempt, error)
                log.warning("%s failed error=%s", work.__name__, error.message)

    def _renew(self) -> None:
        self._services.store.renew()

    def _check_spark(self) -> None:
        """A stop needs no Spark: work that does raises by itself."""
        jvm = self._services.jvm
        if jvm is not None and jvm.lost is not None and not self.is_stopping:
            raise jvm.lost

    def _keep_up(self) -> None:
        with _tried_again():
            self._upkeep.maybe_compact(self._coordinator.saved, self._goes_on)

    def _tidy(self) -> None:
        upkeep, performer = self._upkeep, self._performer
        with _tried_again():
            upkeep.tidy(self._coordinator.saved)
        performer.seen.target, performer.seen.lengthened_by = upkeep.health, upkeep.lengthening.reason
        performer.pace.lengthened = upkeep.lengthening.factor

    def _goes_on(self) -> bool:
        return not (self._stop_asked or self._coordinator.stopping or self._ended.is_set())

    def _check_throttle(self) -> None:
        throttle, seen = self._services.throttle, self._performer.seen
        if throttle is not None:
            found = throttle.reason(self._performer.source)
            seen.throttled_by = found.sentence if found else ""
            if found:
                every = self._services.config.limits.throttle.every.total_seconds()
                self._services.metrics.observe_throttled(found.label, every)

    def _measure(self) -> None:
        seen, services = self._performer.seen, self._services
        seen.buffer_bytes = services.buffer.size().bytes
        snapshot = services.store.status_snapshot()
        seen.asked = snapshot.asked if snapshot else ()

    def _measure_source(self) -> None:
        self._performer.seen.held_log = self._performer.source.held_log()

    def _look_for_requests(self) -> None:
        found = self._services.store.unacknowledged(self._coordinator.saved)
        self._rereads_waiting = any(request.kind is RequestKind.RESNAPSHOT for request in found)
        if any(request.kind is RequestKind.STOP for request in found):
            self._performer.stopping.set()
        new = [request for request in found if request.id not in self._heard]
        self._heard.update(request.id for request in new)
        for request in new:
            self._barriers.tell(RequestArrived(request))
        if new:
            # Once for each: a driver that waits after a failure must not be woken every second by what waits as well.
            self._performer.wake()


def _kind(state: BackfillState) -> str:
    return str(state.intent.kind) if state.intent else "none"


@contextmanager
def _tried_again() -> Iterator[None]:
    """Upkeep changes no row, so nothing that goes wrong in it ends its thread or the job: the next turn tries again."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        raise SinkUnavailableError(f"the target's upkeep failed: {error!r}") from error
