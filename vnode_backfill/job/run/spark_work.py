"""Runs what an actor does in Spark, in the actor's pool; a stop is carried out without Spark where its JVM has ended.

Spark is used for ranges and for what is large; small epochs need none, nor does a stop. A driver that was asked to stop
and has lost its JVM leaves the ranges of its epoch unread and reads the log itself, so that it ends at a consistent
offset.
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
from vnode_backfill.spark.tasks import JobGroup, in_group
from vnode_backfill.words.epoch import Actor, Barrier
from vnode_backfill.words.errors import SparkLostError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_GROUP = "vnode-backfill"
_STOP_COMES_SECONDS = 2.0
"""A supervisor signals the processes of a driver one after the other: the JVM may end before the driver hears of the
stop."""
_WORKERS_END_SECONDS = 3.0
"""How long the workers of a JVM that has ended may still write; their daemon ends them when its pipe breaks."""


class SparkWork:
    """One driver's use of Spark. `fenced` says that the target itself refuses what tasks of an ended driver write."""

    def __init__(self, spark: SparkContext, *, fenced: bool) -> None:
        self.context = spark
        self.stopping = threading.Event()
        """Set when the job was asked to stop."""
        self._fenced = fenced

    def run(
        self,
        actor: Actor,
        barrier: Barrier,
        work: Callable[[], Result],
        without: Callable[[], Result] | None = None,
    ) -> Result:
        """What `work` does in Spark, as jobs that can be cancelled together; a stop may do `without` it where the JVM
        has ended."""
        with in_group(JobGroup(_GROUP, str(actor), f"{actor} of epoch {barrier.epoch}")):
            try:
                return work()
            except SparkLostError as error:
                if without is None or not self._may_stop_without():
                    raise
                log.warning("stopping without spark error=%s", error.detail)
                time.sleep(_WORKERS_END_SECONDS)
                return without()

    def cancel(self) -> None:
        """Ask Spark to end every job of this driver. A JVM that is gone has none."""
        with suppress(Exception):
            self.context.cancelJobGroup(_GROUP)

    @property
    def leaves_tasks(self) -> bool:
        """Whether tasks may still write although their driver has ended."""
        return tasks_outlive(self.context)

    def _may_stop_without(self) -> bool:
        if not self._fenced and self.leaves_tasks:
            return False
        return self.stopping.wait(_STOP_COMES_SECONDS)
