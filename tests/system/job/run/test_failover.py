"""A server that is lost for good: the job continues by GTID on a replica that has everything, and on no other.

The effects of the epoch in progress may have landed or not when the server goes; each case ends equal to the replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.replication import caught_up, pause_replication, replicate
from devkit.waiting import wait_for
from tests.system.job_case import execute
from tests.system.live_job import LiveJob, fails_once, live_job, writing
from vnode_backfill.commands.requests import throttle
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.decide.protocol import Action, BufferChanges, ChangeSink, CommitReceipts, MergeEpoch, ReadRanges
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import BackfillError, SourceError

ORDERS: tuple[type[Action], ...] = (ReadRanges, BufferChanges, MergeEpoch)
LOST = BackfillError("the test ends the driver here")


@dataclass
class Pair:
    """A server and its replica; `job` copies from the server."""

    server: SqlServer
    replica: SqlServer
    job: LiveJob


@contextmanager
def pair(
    spark: SparkSession, kind: type[SqlServer], folder: Path, options: dict[str, str | None] | None = None
) -> Iterator[Pair]:
    with ExitStack() as stack:
        server, replica = (stack.enter_context(kind(options)) for _ in range(2))
        replicate(server, replica)
        settings: dict[str, object] = {"limits": {"rows_per_second": 4000}}
        yield Pair(server, replica, stack.enter_context(live_job(spark, server, folder, settings=settings)))


def end_at(job: LiveJob, order: type[Action], *, rows: int) -> None:
    """Run under traffic; once so many rows are read, the driver ends right after this order was carried out."""
    with writing(job):
        job.start()
        job.until(lambda: job.state.rows >= rows, f"{rows} rows")
        job.seams.fault = fails_once(order, LOST, "after")
        job.until_ended()
    assert job.failure is not None
    assert job.failure.message == LOST.message


def fail_over(both: Pair) -> None:
    caught_up(both.server, both.replica)
    both.server.kill()
    pause_replication(both.replica)
    both.job.move_to(both.replica)


def go_on(job: LiveJob) -> None:
    with writing(job, seed=77):
        job.start()
        job.until_live()
    job.stop()
    job.assert_equal()


@pytest.mark.parametrize("order", [*(pytest.param(order, marks=pytest.mark.long) for order in ORDERS), CommitReceipts])
def test_a_job_goes_on_by_gtid_on_a_replica_in_mid_snapshot(
    spark: SparkSession, tmp_path: Path, order: type[Action]
) -> None:
    with pair(spark, MySqlServer, tmp_path) as both:
        end_at(both.job, order, rows=2000)
        fail_over(both)
        go_on(both.job)


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_live_job_goes_on_by_gtid_on_a_replica(spark: SparkSession, tmp_path: Path, kind: type[SqlServer]) -> None:
    with pair(spark, kind, tmp_path) as both:
        job = both.job
        job.start()
        job.until_live()
        job.seams.fault = fails_once(BufferChanges, LOST, "after")
        with writing(job):
            job.until_ended()
        fail_over(both)
        go_on(job)
        assert job.state.written.era == 1


@pytest.mark.parametrize("kind", [MySqlServer, pytest.param(MariaDbServer, marks=pytest.mark.long)])
def test_a_job_whose_target_has_not_followed_a_statement_goes_on_by_gtid_on_a_replica(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with pair(spark, kind, tmp_path) as both:
        job = both.job
        job.start()
        job.until_live()
        job.seams.fault = fails_once(ChangeSink, LOST)
        execute(
            both.server, job.case.database, "UPDATE orders SET id = id + 1000000 ORDER BY id LIMIT 5",
            "ALTER TABLE orders ADD COLUMN late INT NOT NULL DEFAULT 3", "UPDATE orders SET late = 4 ORDER BY id LIMIT 9",
        )  # fmt: skip
        job.until_ended()
        assert job.state.schema.pending is not None
        fail_over(both)
        go_on(job)
        assert job.state.schema.in_sink == 1


@pytest.mark.long
def test_a_new_copy_in_progress_goes_on_by_gtid_on_a_replica(spark: SparkSession, tmp_path: Path) -> None:
    with pair(spark, MySqlServer, tmp_path) as both:
        job = both.job
        assert job.case.here(spark).run() is None
        throttle(job.config, rows_per_second=1000)
        execute(
            both.server, job.case.database, "UPDATE orders SET flag = 2 ORDER BY id LIMIT 9",
            "ALTER TABLE orders MODIFY score FLOAT", "UPDATE orders SET id = id + 1000000 ORDER BY id LIMIT 5",
        )  # fmt: skip
        order_threads.seam = job.seams
        copy = job.case.here(spark)
        with copy.running(), writing(job):
            wait_for(lambda: copy.copies == 2 and copy.ranges_read >= 3, "a part is copied again", seconds=180)
            job.seams.fault = fails_once(CommitReceipts, LOST, "after")
            wait_for(lambda: copy.ended, "the driver ends", seconds=180)
        assert copy.failure is not None
        assert copy.failure.message == LOST.message
        assert copy.ranges_read < copy.ranges_planned
        fail_over(both)
        throttle(job.config, rows_per_second=50_000)
        later = job.case.here(spark)
        with writing(job, seed=77):
            assert (later.run(), later.copies) == (None, 1), "it is the same copy"
        assert later.state.written.era == 1
        assert job.case.here(spark).run() is None
        job.assert_equal()


@pytest.mark.long
def test_a_mariadb_job_goes_on_by_gtid_on_a_replica_in_mid_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    with pair(spark, MariaDbServer, tmp_path) as both:
        end_at(both.job, CommitReceipts, rows=2000)
        fail_over(both)
        go_on(both.job)


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_replica_that_lacks_what_was_read_is_refused_until_everything_is_read_again(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with pair(spark, kind, tmp_path) as both:
        job = both.job
        caught_up(both.server, both.replica)
        pause_replication(both.replica)
        execute(
            both.server,
            job.case.database,
            "DELETE FROM orders WHERE id < 3000",
            "UPDATE orders SET id = 900000 ORDER BY id LIMIT 1",
        )
        job.start(Until.LIVE)
        job.until_ended()
        job.raise_errors()
        both.server.kill()
        job.move_to(both.replica)
        with pytest.raises(SourceError, match="transactions that the server does not have") as caught:
            job.start()
        assert "resnapshot --all" in caught.value.hint
        assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
        go_on(job)


@pytest.mark.long
def test_without_gtids_another_server_is_refused_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, str | None] = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
    with pair(spark, MySqlServer, tmp_path, options) as both:
        job = both.job
        job.start(Until.LIVE)
        job.until_ended()
        job.raise_errors()
        fail_over(both)
        with pytest.raises(SourceError, match="is of another server"):
            job.start()
