"""Reads the ranges of all tables of a job in one Spark job, one connection per worker, and tells each of its own part.

Ranges are read by one such job at a time. What tables order meanwhile waits for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from vnode_backfill.decide.protocol import RangesRead, ReadRanges
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.observations import Pace
from vnode_backfill.job.run.reading import PreparedRead
from vnode_backfill.job.run.spark_work import SparkWork
from vnode_backfill.job.tables.order import DONE, Order, follow, in_place_of_earlier
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.snapshot.vnode_stream import Lane, LanesRead, TableOutcome, read_tables, shares_of
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError

__all__ = ["SharedRanges"]


class SharedRanges:
    """One driver's reading of ranges. Called by the driver's loop only, but for `is_busy`."""

    def __init__(self, spark: SparkWork) -> None:
        self._spark = spark
        self.pace = Pace()
        self._waiting: list[Order[ReadRanges]] = []
        self._reading: Future[None] = DONE
        # A thread of its own: ranges are read for as long as an epoch lasts.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ranges")

    @property
    def is_busy(self) -> bool:
        """Whether ranges are being read, or are about to be."""
        return bool(self._waiting) or not self._reading.done()

    def take(self, order: Order[ReadRanges]) -> None:
        self._waiting = in_place_of_earlier(self._waiting, order)

    def forget(self, table: RunningTable) -> None:
        """Leave out what a table that has ended had ordered and nobody has begun."""
        self._waiting = [order for order in self._waiting if order.table is not table]

    def begin(self) -> None:
        """Begin what has gathered, if it is its turn."""
        if self._waiting and self._reading.done():
            orders, self._waiting = self._waiting, []
            self._reading = self._pool.submit(self._read_ranges, orders)
            follow(orders, self._reading)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read_ranges(self, orders: Sequence[Order[ReadRanges]]) -> None:
        began = time.monotonic()
        prepared: list[tuple[Order[ReadRanges], PreparedRead]] = []
        for order in orders:
            try:
                order_threads.seam("before", order.action)
                prepared.append((order, order.table.performer.ranges.prepare(order.action, order.committed)))
            except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
                order.failed(Actor.SNAPSHOT, error)
        if not prepared:
            return
        spark, first = self._spark, prepared[0][0].action
        lanes = [each.lanes for _, each in prepared]
        try:
            done = spark.run(
                Actor.SNAPSHOT,
                first.barrier,
                lambda: read_tables(spark.tasks_in, lanes),
                lambda: _nothing_read(len(lanes)),
            )
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order, _ in prepared:
                order.failed(Actor.SNAPSHOT, error)
            return
        self._measure(
            lanes,
            done,
            time.monotonic() - began,
            limited=any(o.action.rows_per_second is not None for o, _ in prepared),
        )
        for (order, each), outcome in zip(prepared, done, strict=True):
            self._report_read(order, each, outcome)

    def _report_read(self, order: Order[ReadRanges], prepared: PreparedRead, outcome: TableOutcome) -> None:
        reading, action = order.table.performer.ranges, order.action
        if isinstance(outcome, BackfillError):
            order.failed(Actor.SNAPSHOT, outcome)
            return
        receipts = reading.finish(prepared, outcome)
        order_threads.seam("after", action)
        barrier = action.barrier
        read = RangesRead(barrier.epoch, receipts, barrier.attempt, reading.refused)
        order.table.barriers.collect(Actor.SNAPSHOT, barrier, read)

    def _measure(
        self, lanes: Sequence[Sequence[Lane]], done: Sequence[TableOutcome], seconds: float, *, limited: bool
    ) -> None:
        """Learn how fast a worker reads, from an epoch without a limit in which nothing failed."""
        read = [each for each in done if isinstance(each, LanesRead)]
        if limited or len(read) < len(done):
            return
        receipts = [receipt for each in read for receipt in each.receipts]
        planned = sum(len(lane.ranges) for each in lanes for lane in each)
        working = max(1, len(shares_of(lanes)))
        rows = sum(receipt.rows for receipt in receipts)
        self.pace.measured(rows, seconds, working, everything=len(receipts) == planned)


def _nothing_read(tables: int) -> list[TableOutcome]:
    """Of a stop that has lost its JVM: the ranges stay unread."""
    return [LanesRead() for _ in range(tables)]
