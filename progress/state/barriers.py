"""Carries what happened from the actors to the coordinator: one queue, failures first, epochs strictly in order.

The actors (snapshot, upstream, merge) never call the coordinator and never wait for it. They hand everything to the
`LocalBarrierManager` of their driver; the coordinator takes one event at a time. Three promises:

- A failure is looked at before any other event, whatever arrived first.
- A barrier counts as collected when every actor that takes part has collected it, in epoch order; a barrier that was
  not injected, or an actor that collects twice, is a bug and raises.
- Of failures that arrive together the root cause is reported: a broken pipe to a dead neighbour is never the cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from typing import Generic, TypeVar

from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import ActorError, BackfillError, LawBrokenError, SinkUnavailableError, SourceLostError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BarrierCollected(Generic[Result]):
    """One actor has done its part of the barrier's epoch; `result` is what it reports."""

    actor: Actor
    barrier: Barrier
    result: Result


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """Actors failed; `error` is the root cause, `others` are the rest of those that arrived with it."""

    actor: Actor
    attempt: int
    error: BackfillError
    others: tuple[BackfillError, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateMviewProgress:
    """Changes that an actor has handled so far in the epoch in progress (RisingWave: CreateMviewProgressReporter)."""

    actor: Actor
    epoch: Epoch
    rows: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CdcTableBackfillProgress:
    """Ranges and rows that the snapshot has read so far, over the whole job."""

    epoch: Epoch
    ranges_done: int
    ranges_total: int
    rows: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class OtherEvent(Generic[Result]):
    """Anything that no actor has done: an answer of the source, a commit, a request."""

    event: Result


LocalBarrierEvent = (
    BarrierCollected[Result] | ActorFailure | CreateMviewProgress | CdcTableBackfillProgress | OtherEvent[Result]
)


def root_cause(errors: list[tuple[Actor, BackfillError]]) -> tuple[Actor, BackfillError]:
    """The error that explains the others: definite before transient, and lost connections last."""

    def score(pair: tuple[Actor, BackfillError]) -> int:
        error = pair[1]
        if isinstance(error, ActorError):
            return 0
        if isinstance(error, SourceLostError | SinkUnavailableError):
            return 1
        return 2 if error.retryable else 3

    return max(errors, key=score)


def _follows(barrier: Barrier, current: Barrier) -> bool:
    if barrier.epoch == current.epoch and barrier.kind.commits:
        return barrier.attempt >= current.attempt
    return barrier.epoch >= current.epoch


class LocalBarrierManager(Generic[Result]):
    """The only way from an actor to the coordinator.

    Safe to call from any thread; nothing here blocks but `next_event`.
    """

    def __init__(self, wake: Callable[[], object] | None = None) -> None:
        """`wake` is called with every event: a driver of many tables waits for whatever happens to any of them."""
        self._ready = Condition()
        self._wake = wake or _nothing
        self._events: deque[LocalBarrierEvent[Result]] = deque()
        self._failures: list[tuple[Actor, int, BackfillError]] = []
        self._barrier: Barrier | None = None
        self._collected: set[Actor] = set()
        self._subscribers: dict[Actor, Callable[[Barrier], None]] = {}

    def inject(self, barrier: Barrier) -> None:
        """Begin a barrier: epochs never go back, and a repeated epoch has a higher attempt."""
        with self._ready:
            current = self._barrier
            if current is not None and not _follows(barrier, current):
                raise LawBrokenError(f"barrier {barrier} cannot follow {current}")
            self._barrier = barrier
            self._collected.clear()
            subscribers = tuple(self._subscribers.values())
        for tell in subscribers:
            tell(barrier)

    def subscribe_barrier(self, actor: Actor, tell: Callable[[Barrier], None]) -> None:
        """Call `tell` with every barrier from now on, and at once with the one in progress."""
        with self._ready:
            self._subscribers[actor] = tell
            current = self._barrier
        if current is not None:
            tell(current)

    def collect(self, actor: Actor, barrier: Barrier, result: Result) -> None:
        """Report that `actor` has done its part. A report of an abandoned attempt is dropped."""
        with self._ready:
            if self._barrier is None or barrier.epoch > self._barrier.epoch or barrier.kind is BarrierKind.INITIAL:
                raise LawBrokenError(f"{actor} collected {barrier}, in hand is {self._barrier}")
            if barrier != self._barrier:
                return
            if actor in self._collected:
                raise LawBrokenError(f"{actor} collected {barrier} twice")
            self._collected.add(actor)
            self._put(BarrierCollected(actor, barrier, result))

    def notify_failure(self, actor: Actor, attempt: int, error: BaseException) -> None:
        """Report that an actor ended unexpectedly; anything that is not ours becomes an `ActorError`."""
        if not isinstance(error, BackfillError):
            error = ActorError(f"the {actor} actor ended with {type(error).__name__}", detail=str(error)[:2000])
        with self._ready:
            self._failures.append((actor, attempt, error))
            self._ready.notify_all()
        self._wake()

    def report_create_mview_progress(self, progress: CreateMviewProgress) -> None:
        self._report(progress)

    def report_cdc_table_backfill_progress(self, progress: CdcTableBackfillProgress) -> None:
        self._report(progress)

    def tell(self, event: Result) -> None:
        """Report what no actor has done: a sample of the source, a landed commit, an operator's request."""
        with self._ready:
            self._put(OtherEvent(event))

    @property
    def has_waiting(self) -> bool:
        """Whether something has happened; cheap enough to be asked of many tables all the time."""
        return bool(self._events or self._failures)

    def next_event(self, timeout: float | None = None) -> LocalBarrierEvent[Result] | None:
        """The next event, failures first; None when nothing happened within `timeout` seconds."""
        with self._ready:
            if not self._failures and not self._events:
                self._ready.wait(timeout)
            if self._failures:
                return self._take_failures()
            return self._events.popleft() if self._events else None

    def _take_failures(self) -> ActorFailure:
        newest = max(attempt for _, attempt, _ in self._failures)
        together = [(actor, error) for actor, attempt, error in self._failures if attempt == newest]
        # The others come next: attempts are counted from 0 again after a commit, so the highest number may be the old
        # one.
        self._failures = [each for each in self._failures if each[1] != newest]
        actor, cause = root_cause(together)
        return ActorFailure(actor, newest, cause, tuple(error for _, error in together if error is not cause))

    def _report(self, progress: CreateMviewProgress | CdcTableBackfillProgress) -> None:
        with self._ready:
            if self._barrier is not None and progress.epoch == self._barrier.epoch:
                self._put(progress)

    def _put(self, event: LocalBarrierEvent[Result]) -> None:
        self._events.append(event)
        self._ready.notify_all()
        self._wake()


def _nothing() -> None:
    """Who takes events by itself needs no call."""
