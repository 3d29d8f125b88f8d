"""Does to a job what production does: a lost log, another server, a full disk, a network that stalls, workers that die.

Where the job cannot continue exactly, it stops with its reason and its state intact; where it can, it ends equal to its
source.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.disk import small_disk
from devkit.lake import count_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.proxy import Fault, TcpProxy
from devkit.waiting import wait_for
from tests.system.job.run.python_workers import kill_python_workers
from tests.system.live_job import LiveJob, live_job, writing
from vnode_backfill.commands.compact import compact
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.decide.protocol import ReadRanges
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import SourceError

pytestmark = pytest.mark.long


def execute(job: LiveJob, *statements: str) -> None:
    with job.case.server.connect(job.case.database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def to_live(job: LiveJob) -> None:
    job.start(Until.LIVE)
    job.until_ended()
    job.raise_errors()


def purge_log(job: LiveJob) -> None:
    """Begin a new file of the log and delete all the others."""
    execute(job, "FLUSH BINARY LOGS")

    def purged() -> bool:
        """A server keeps a file for as long as a reader that has just gone seems to read it."""
        with job.case.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            newest = list(cursor.fetchall())[-1][0]
            cursor.execute("PURGE BINARY LOGS TO %s", (newest,))
            cursor.execute("SHOW BINARY LOGS")
            return len(cursor.fetchall()) == 1

    wait_for(purged, "the log to be purged")


def test_a_log_purged_before_it_was_read_stops_the_job_and_leaves_its_state_intact(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    with live_job(spark, source_server, tmp_path, rows=2000) as job:
        to_live(job)
        before, rows = job.state, DeltaTable(job.case.lake).version()
        execute(job, "DELETE FROM orders WHERE id < 100")
        purge_log(job)
        printed = job.case.run(code=1)
        assert str(before.written) in printed
        assert "vnode-backfill resnapshot --all" in printed
        after = job.state
        assert (after.written, after.vnodes, after.epoch) == (before.written, before.vnodes, before.epoch)
        assert count_lake(job.case.lake) == 2000
        assert DeltaTable(job.case.lake).version() >= rows


def test_a_job_whose_log_was_purged_goes_on_when_everything_is_read_again(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    with live_job(spark, source_server, tmp_path, rows=2000) as job:
        to_live(job)
        # Keys beyond the plan: one that the target keeps, one that goes while nobody looks, one that comes then.
        execute(job, *(f"UPDATE orders SET id = {key} ORDER BY id LIMIT 1" for key in (100_001, 100_002)))
        to_live(job)
        execute(job, "DELETE FROM orders WHERE id < 100 OR id = 100002")
        execute(job, "UPDATE orders SET id = 100003 ORDER BY id LIMIT 1")
        purge_log(job)
        assert "is missing" in reason_of_refusal(job)
        assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
        with writing(job):
            to_live(job)
        to_live(job)
        job.assert_equal()
        assert job.state.written.era == 1
        # What changes after the repair is compared by offsets of the new era.
        execute(job, "UPDATE orders SET amount = amount + 1 ORDER BY id LIMIT 3")
        assert "3 keys were changed at the source since" in job.case.command("verify")


@pytest.fixture(params=[MySqlServer, MariaDbServer])
def own_server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    """A server whose log may be reset without harm to other tests."""
    with request.param() as server:
        yield server


def reset_log(server: SqlServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("RESET MASTER")


def test_a_log_reset_under_a_running_job_stops_it_before_it_misses_a_change(
    spark: SparkSession, own_server: SqlServer, tmp_path: Path
) -> None:
    with live_job(spark, own_server, tmp_path, rows=2000) as job:
        job.start()
        job.until_live()
        before = job.state
        reset_log(own_server)
        execute(job, "DELETE FROM orders WHERE id < 100")
        job.until_ended()
        assert job.failure is not None
        assert str(before.written) in str(job.failure)
        assert job.state.vnodes == before.vnodes


def test_a_log_reset_while_a_job_is_stopped_is_noticed_when_it_has_grown_beyond_the_saved_position(
    spark: SparkSession, own_server: SqlServer, tmp_path: Path
) -> None:
    with live_job(spark, own_server, tmp_path, rows=500) as job:
        to_live(job)
        saved = job.state
        reset_log(own_server)
        while end_of_log(own_server) <= (saved.written.number, saved.written.pos):
            execute(job, "UPDATE orders SET flag = -1 - flag")
        assert str(saved.written) in reason_of_refusal(job)
        assert job.state.vnodes == saved.vnodes
        assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
        to_live(job)
        job.assert_equal()


def reason_of_refusal(job: LiveJob) -> str:
    """Why a job that is run ends, whether before or after it was opened."""
    try:
        job.start()
    except SourceError as error:
        return f"{error.message} {error.detail}"
    job.until_ended()
    assert job.failure is not None
    return str(job.failure)


def end_of_log(server: SqlServer) -> tuple[int, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        (file, pos, *_), *_ = cursor.fetchall()
    return int(str(file).rpartition(".")[2]), int(pos)


def test_another_server_is_refused_however_alike_its_files_are(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    for name in ("first", "other"):
        (tmp_path / name).mkdir()
    with live_job(spark, source_server, tmp_path / "first", rows=500) as job:
        to_live(job)
        with type(source_server)() as stranger, live_job(spark, stranger, tmp_path / "other", rows=5000) as copy:
            execute(copy, f"CREATE DATABASE {job.case.database}")
            execute(copy, f"CREATE TABLE {job.case.database}.orders LIKE orders")
            job.move_to(stranger)
            with pytest.raises(SourceError, match="holds transactions that the server does not have"):
                job.start()
        job.move_to(source_server)
        to_live(job)
        job.assert_equal()


@pytest.mark.parametrize("trouble", ["full", "read_only"])
def test_a_target_that_cannot_be_written_stops_the_job_which_goes_on_when_it_is_mended(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path, trouble: str
) -> None:
    settings: dict[str, object] = {"limits": {"retries": 2}}
    with small_disk(tmp_path / "lake") as disk, live_job(spark, mysql_server, tmp_path, settings=settings) as job:
        job.start()
        job.until_live()
        with disk.full() if trouble == "full" else disk.read_only():
            execute(job, "UPDATE orders SET flag = 7 WHERE id < 3000")
            job.until_ended()
        assert job.failure is not None
        assert str(tmp_path / "lake") in job.failure.message
        assert job.state.failure == job.failure
        execute(job, "DELETE FROM orders WHERE id < 300")
        to_live(job)
        job.assert_equal()


def test_a_disk_too_small_for_the_snapshot_loses_nothing(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"limits": {"retries": 1}}
    with small_disk(tmp_path / "lake", 64) as disk, live_job(spark, mysql_server, tmp_path, settings=settings) as job:
        with disk.full(but=300_000), writing(job):
            job.start()
            job.until_ended()
        assert job.failure is not None
        assert "No space left" in job.failure.detail
        assert job.state.rows < 6000
        to_live(job)
        job.assert_equal()


def test_a_state_disk_that_fills_up_stops_the_job_which_goes_on_when_there_is_room(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"limits": {"retries": 2}}
    with small_disk(tmp_path / "state") as disk, live_job(spark, mysql_server, tmp_path, settings=settings) as job:
        to_live(job)
        with job.case.started("run") as driver:
            before = job.state.epoch
            execute(job, "UPDATE orders SET flag = 3 WHERE id < 3000")
            wait_for(lambda: job.state.epoch > before, "a driver commits epochs")
            with disk.full():
                execute(job, "UPDATE orders SET flag = 7 WHERE id < 3000")
                printed = driver.wait(1)
        assert str(tmp_path / "state") in printed
        to_live(job)
        job.assert_equal()


def was_tried_again(job: LiveJob) -> bool:
    return any(order.barrier.attempt for order in job.seams.orders if isinstance(order, ReadRanges))


Trap = Callable[[TcpProxy, int], Fault]
FAULTS = pytest.mark.parametrize("trap", [TcpProxy.stall_after, TcpProxy.cut_after], ids=["stall", "cut"])


@contextmanager
def job_behind_proxy(spark: SparkSession, server: SqlServer, folder: Path) -> Iterator[tuple[LiveJob, TcpProxy]]:
    with TcpProxy(server.host, server.port) as proxy, live_job(spark, server, folder) as job:
        settings = json.loads(job.case.config.read_text())
        settings["mysql"] |= {"port": proxy.port, "read_timeout": "2s"}
        job.case.config.write_text(json.dumps(settings))
        yield job, proxy


@FAULTS
def test_a_network_that_fails_in_mid_result_delays_the_snapshot_only(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path, trap: Trap
) -> None:
    with job_behind_proxy(spark, source_server, tmp_path) as (job, proxy):
        with writing(job):
            job.start()
            # Opening a job reads the beginning of the log, which may be as long; a new job does not try that again.
            fault = trap(proxy, 150_000)
            fault.wait()
            job.until_live()
        job.stop()
        assert was_tried_again(job)
        job.assert_equal()


@FAULTS
def test_a_network_that_fails_in_mid_log_delays_the_changes_only(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path, trap: Trap
) -> None:
    with job_behind_proxy(spark, source_server, tmp_path) as (job, proxy):
        job.start()
        job.until_live()
        fault = trap(proxy, 150_000)
        execute(job, "UPDATE orders SET flag = -1 - flag", "DELETE FROM orders WHERE id % 2 = 0")
        fault.wait()
        job.stop()
        assert was_tried_again(job)
        job.assert_equal()


def test_python_workers_killed_in_mid_snapshot_lose_nothing(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"limits": {"rows_per_second": 2000}}
    with live_job(spark, mysql_server, tmp_path, settings=settings) as job:
        with writing(job):
            job.start()
            job.until(lambda: job.state.rows > 0, "the first ranges")
            job.until(
                lambda: kill_python_workers(os.getpid()) > 0 and was_tried_again(job), "workers killed while they read"
            )
            job.until_live()
        job.stop()
        job.assert_equal()


@pytest.mark.timeout(1800)
def test_a_table_of_five_thousand_ranges_is_copied_compacted_and_followed(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {
        "vnodes": 256,
        "limits": {"range_rows": 2},
        "epoch": {"backfill": "10s", "live": "1s"},
    }
    with live_job(spark, mariadb_server, tmp_path, rows=16_000, settings=settings) as job:
        began = time.process_time()
        with writing(job, rate=50):
            job.start()
            job.until_live(seconds=500)
            ranges, spent = len(job.coordinator.plan.ranges), time.process_time() - began
            print(f"\n{ranges:,} ranges: live after {spent:.1f} CPU-seconds of the driver, in {job.state.epoch} epochs")
            assert ranges >= 5000
            assert len(DeltaTable(job.case.lake).file_uris()) > 4000
            compact(job.config)
        job.stop()
        assert len(DeltaTable(job.case.lake).file_uris()) < 100
        job.assert_equal()
