"""Runs each order in a thread, reports how it failed, and measures how long it took.

What must be true: an order has exactly one outcome. Its work reports a success by itself; whatever it raises is
reported here as a failure of its actor. `seam` is called before and after every order: crash tests kill the process
there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Timer
from typing import Literal

from progress.faces.metrics import CdcBackfillMetrics
from progress.state.barriers import LocalBarrierManager
from vnode_backfill.decide.protocol import Action, Event
from vnode_backfill.job.run.observations import Seen
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError, StuckError
from vnode_backfill.words.hints import TAKES_UP

log = logging.getLogger(__name__)

Moment = Literal["before", "after"]
Seam = Callable[[Moment, Action], None]
_AT_ONCE = 8


def no_seam(moment: Moment, action: Action) -> None:
    """Nothing happens between orders in production."""


seam: Seam = no_seam


class OrderThreads:
    """The orders in progress of one table. `pool` holds the threads of a driver that copies several."""

    def __init__(
        self,
        barriers: LocalBarrierManager[Event],
        metrics: CdcBackfillMetrics,
        seen: Seen,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._barriers, self._metrics, self._seen = barriers, metrics, seen
        self._owned = pool is None
        self._pool = pool or ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="action")
        self.running: set[Future[None]] = set()

    def begin(
        self, actor: Actor, attempt: int, action: Action, work: Callable[[], None], *, within: float | None = None
    ) -> None:
        """Begin an order; returns at once. One that has not ended `within` so many seconds is reported as stuck.

        What comes of it later is reported too. Who hears of it has given the attempt up by then.
        """
        future = self._pool.submit(self._carry_out, actor, attempt, action, work)
        self.follow(future)
        if within is not None:
            name = type(action).__name__
            stuck = StuckError(
                f"{name} has not ended after {within:g} s",
                hint=f"Look whether the target answers. {TAKES_UP}, once it has ended.",
            )
            timer = Timer(
                within, lambda: None if future.done() else self._barriers.notify_failure(actor, attempt, stuck)
            )
            timer.daemon = True
            timer.start()
            future.add_done_callback(lambda _: timer.cancel())

    def follow(self, future: Future[None]) -> None:
        """Count work that was begun elsewhere as an order in progress."""
        self.running.add(future)
        future.add_done_callback(self.running.discard)

    def wait(self, seconds: float) -> int:
        """Wait for the orders in progress; how many have not ended."""
        return len(wait(tuple(self.running), timeout=seconds).not_done)

    def close(self, seconds: float) -> int:
        """End what is not begun, and wait for the rest; how many have not ended."""
        if self._owned:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return self.wait(seconds)

    def _carry_out(self, actor: Actor, attempt: int, action: Action, work: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            seam("before", action)
            work()
            seam("after", action)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            log.warning("action failed action=%s error=%s", type(action).__name__, _logged(error))
            self._barriers.notify_failure(actor, attempt, error)
            return
        self._seen.moved_at = time.monotonic()
        if actor is not Actor.DRIVER:
            self._metrics.observe_epoch(actor, self._seen.moved_at - began)


def _logged(error: BaseException) -> BaseException:
    """What ends the table is told with its hint when it ends, in words that are right for its job."""
    return error.hinted("") if isinstance(error, BackfillError) and not error.retryable else error
