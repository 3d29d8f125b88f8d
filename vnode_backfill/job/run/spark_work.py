"""Runs what an actor does in Spark, in the actor's pool; a stop is carried out without Spark where its JVM has ended.

Spark is used for ranges and for what is large; small epochs need none, nor does a stop. A driver that was asked to stop
and has lost its JVM leaves the ranges of its epoch unread and reads the log itself, so that it ends at a consistent
offset. A session that starts when it is first needed is not started by looking at it here.

A JVM takes seconds to start, and one that hangs takes minutes to be given up (`START_SECONDS`). Two kinds of work do
not wait for that:

- A stop does without Spark what it can: it leaves ranges unread and reads the log itself. A merge that is too large for
  the driver needs Spark in a stop too, and waits.
- The work of an attempt that was cancelled ends. Otherwise it would run its whole job once the JVM is up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pyspark import SparkContext

from vnode_backfill.spark.jvm import tasks_outlive
from vnode_backfill.spark.session import StartingSession
from vnode_backfill.spark.tasks import JobGroup, Spark, context_of, in_group
from vnode_backfill.words.epoch import Actor, Barrier
from vnode_backfill.words.errors import ActorError, BackfillError, SparkLostError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_GROUP = "vnode-backfill"
_STOP_COMES_SECONDS = 2.0
"""A supervisor signals the processes of a driver one after the other: the JVM may end before the driver hears of the
stop."""
_WORKERS_END_SECONDS = 3.0
"""How long the workers of a JVM that has ended may still write; their daemon ends them when its pipe breaks."""
_STOPS = SparkLostError("the job stops while Spark starts", detail="Spark is still starting, and a stop needs none.")


class SparkWork:
    """One driver's use of Spark. `fenced` says that the target itself refuses what tasks of an ended driver write."""

    def __init__(self, spark: Spark, *, fenced: bool) -> None:
        self.tasks_in = spark
        self.stopping = threading.Event()
        """Set when the job was asked to stop."""
        self._fenced = fenced
        self._cancels = 0

    def run(
        self,
        actor: Actor,
        barrier: Barrier,
        work: Callable[[], Result],
        without: Callable[[], Result] | None = None,
    ) -> Result:
        """What `work` does in Spark, as jobs that can be cancelled together; a stop may do `without` it where the JVM
        has ended."""
        cancels = self._cancels

        def given_up() -> BackfillError | None:
            if self._cancels != cancels:
                return ActorError("the attempt was given up while Spark started")
            return _STOPS if without is not None and self.stopping.is_set() else None

        with in_group(JobGroup(_GROUP, str(actor), f"{actor} of epoch {barrier.epoch}", given_up)):
            try:
                return work()
            except SparkLostError as error:
                if without is None or not self._may_stop_without():
                    raise
                log.warning("stopping without spark error=%s", error.detail)
                if self._up is not None:
                    time.sleep(_WORKERS_END_SECONDS)
                return without()

    def expect_tasks(self) -> None:
        """Start a session that waits for its first task: there will be one soon."""
        if isinstance(self.tasks_in, StartingSession):
            self.tasks_in.begin()

    def cancel(self) -> None:
        """Ask Spark to end every job of this driver. A JVM that is gone has none, and one that starts begins none."""
        self._cancels += 1
        context = self._up
        if context is not None:
            with suppress(Exception):
                context.cancelJobGroup(_GROUP)

    @property
    def leaves_tasks(self) -> bool:
        """Whether tasks may still write although their driver has ended."""
        context = self._up
        return context is not None and tasks_outlive(context)

    @property
    def _up(self) -> SparkContext | None:
        """The context, if it is there already: one that was never needed has no tasks."""
        return self.tasks_in.up if isinstance(self.tasks_in, StartingSession) else context_of(self.tasks_in)

    def _may_stop_without(self) -> bool:
        if not self._fenced and self.leaves_tasks:
            return False
        return self.stopping.wait(_STOP_COMES_SECONDS)
