"""Holds what a driver has once, whatever number of tables it copies: Spark, threads, a listener, a few connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from consume_upstream.upstream_table import UpstreamQuestions
from progress.task_progress import TaskListener
from vnode_backfill.job.run.services import Services
from vnode_backfill.job.run.spark_work import SparkWork
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.spark.session import StartingSession
from vnode_backfill.spark.slots import session_slots
from vnode_backfill.spark.tasks import Spark, context_of

_AT_ONCE, _BESIDE = 24, 4
"""Threads of a driver of many tables. Most of them wait for a disk, a store or the source."""


@dataclass(frozen=True, slots=True)
class DriverTools:
    """One driver's tools. `pool` is None where a table has threads of its own."""

    spark: SparkWork
    listener: TaskListener
    source: UpstreamQuestions
    task_slots: int
    pool: ThreadPoolExecutor | None = None
    side_pool: ThreadPoolExecutor | None = None
    """For changes of targets, which may take hours: merges must not wait for them."""

    @classmethod
    def open(cls, services: Services, *, many: bool = False) -> DriverTools:
        """The tools of a driver that copies the table of `services`, and with `many` others of the same server."""
        slots, reached_at = _where_tasks_run(services.spark)
        # Tables of one job may be in different eras of its log. What is asked for all of them is in the first.
        table = services.table.in_era(0) if many else services.table
        return cls(
            spark=SparkWork(services.spark, fenced=configured_sink(services.config).fences_drivers),
            listener=TaskListener(*reached_at),
            source=table.questions(),
            task_slots=slots,
            pool=ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="action") if many else None,
            side_pool=ThreadPoolExecutor(max_workers=_BESIDE, thread_name_prefix="beside") if many else None,
        )

    def close(self) -> None:
        for pool in (self.pool, self.side_pool):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self.listener.close()
        self.source.close()


def _where_tasks_run(spark: Spark) -> tuple[int, tuple[str, str]]:
    """How many can run at once; the address at which they find the driver, and the one it listens on."""
    here = "127.0.0.1", ""
    if isinstance(spark, StartingSession) and spark.slots is not None:
        return spark.slots, here
    context = context_of(spark)
    conf = context.getConf()
    if (conf.get("spark.master") or "").startswith("local"):
        return session_slots(context), here
    reached_at = conf.get("spark.driver.host") or "127.0.0.1", conf.get("spark.driver.bindAddress") or ""
    return session_slots(context), reached_at
