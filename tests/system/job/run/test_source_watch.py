"""Shows what a job sees of its source while it runs, on real servers: what is left of the log, replicas that lag, its
own connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.positions.held_log import HeldFiles, read_held_log
from consume_upstream.mysql.throttle import replica_lag
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.process import free_ports
from devkit.waiting import wait_for
from progress.faces.alerts import AlertId, Thresholds
from progress.faces.history import History
from tests.system.connections import Connections
from tests.system.job_case import COPIER, create_copier, execute, fetch
from tests.system.live_job import LiveJob, database_of, live_job, writing
from vnode_backfill.commands import requests
from vnode_backfill.decide.protocol import BufferChanges
from vnode_backfill.words.errors import SourceError

pytestmark = pytest.mark.long


def address_of(server: SqlServer) -> SourceAddress:
    return SourceAddress(server.host, server.port, server.user)


def point(number: int, pos: int) -> CdcOffset:
    return CdcOffset("server", "binlog", number, pos)


def held(server: SqlServer) -> HeldFiles:
    with connect(address_of(server)) as connection:
        found = read_held_log(connection)
    assert found is not None
    return found


def test_log_that_was_purged_no_longer_counts_as_held(source_server: SqlServer) -> None:
    execute(source_server, None, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    before = held(source_server)
    (oldest, size), (second, _), (newest, _) = before.files[0], before.files[1], before.files[-1]
    assert before.bytes_before(point(second, 4)) == size + 4
    assert before.bytes_after(point(oldest, size)) == sum(size for _, size in before.files[1:])
    name = fetch(source_server, None, "SHOW BINARY LOGS")[-1][0]

    def purged() -> bool:
        """A server keeps a file for as long as a reader that has just gone seems to read it."""
        execute(source_server, None, f"PURGE BINARY LOGS TO '{name}'")
        return [number for number, _ in held(source_server).files] == [newest]

    wait_for(purged, "the log to be purged")
    assert held(source_server).bytes_before(point(oldest, size)) < 0


def test_retention_is_read_as_it_is_set_now(source_server: SqlServer) -> None:
    assert held(source_server).kept_seconds is None
    execute(source_server, None, "SET GLOBAL binlog_expire_logs_seconds = 7200")
    try:
        assert held(source_server).kept_seconds == 7200
    finally:
        execute(source_server, None, "SET GLOBAL binlog_expire_logs_seconds = 0")


def test_alert_stands_while_capture_falls_behind_what_the_source_keeps(spark: SparkSession, tmp_path: Path) -> None:
    """Capture is held up while the table is written to; the source keeps its log for two minutes."""
    history = History(Thresholds(window=3.0))

    def alerted(job: LiveJob) -> bool:
        history.add(job.shown(), time.time(), job.runs[-1].watch.metrics.retention)
        return AlertId.BINLOG_RETENTION in {alert.id for alert in history.alerts}

    with (
        MariaDbServer({"binlog-expire-logs-seconds": "120"}) as server,
        live_job(spark, server, tmp_path, rows=300) as job,
        writing(job, rate=40),
    ):
        job.start()
        job.until_live()
        job.until(lambda: job.runs[-1].watch.metrics.retention.seconds == 120, "the retention is known")
        assert not alerted(job)
        with job.seams.holding(BufferChanges):
            job.until(lambda: alerted(job), "the alert", seconds=120)
        job.until(lambda: not alerted(job), "capture has caught up")
        job.stop()


@contextmanager
def replicating(source: MariaDbServer) -> Iterator[MariaDbServer]:
    """A replica of everything that `source` has logged."""
    with MariaDbServer() as replica:
        execute(
            replica, None,
            f"CHANGE MASTER TO MASTER_HOST='{source.host}', MASTER_PORT={source.port}, MASTER_USER='{source.user}', "
            "MASTER_CONNECT_RETRY=1, MASTER_LOG_FILE='binlog.000001', MASTER_LOG_POS=4",
            "START SLAVE",
        )  # fmt: skip
        wait_for(lambda: replica_lag(address_of(replica)) == 0, "the replica is in step")
        yield replica


def delayed(replica: MariaDbServer, seconds: int) -> None:
    execute(replica, None, "STOP SLAVE", f"CHANGE MASTER TO MASTER_DELAY={seconds}", "START SLAVE")


def test_replica_that_lags_or_stands_still_holds_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    with MariaDbServer() as source, replicating(source) as replica:
        checks = {"every": "200ms", "replicas": [{"host": replica.host, "port": replica.port, "max_lag": "2s"}]}
        settings: dict[str, object] = {"limits": {"rows_per_second": 400, "throttle": checks}}
        with live_job(spark, source, tmp_path, rows=4000, settings=settings) as job:
            with writing(job, rate=40):
                job.start()
                job.until(lambda: job.state.rows > 0, "the first rows")
                delayed(replica, 3600)
                assert_held(job, f"replica {replica.host}:{replica.port} is ")
                execute(replica, None, "STOP SLAVE")
                still = f"the replica at {replica.host}:{replica.port} is not replicating"
                assert_held(job, f"a throttle check failed: {still}")
                delayed(replica, 0)
                job.until(lambda: not job.shown().observed.throttled_by, "the replica is in step again")
                job.ask(lambda config: requests.throttle(config, rows_per_second=None))
                job.until_live()
            job.stop()
            job.assert_equal()


def assert_held(job: LiveJob, reason: str) -> None:
    """Run and `status` give the reason; epochs that begin from now on read nothing."""
    job.until(lambda: job.shown().observed.throttled_by.startswith(reason), reason)
    job.until(lambda: job.report().observed.throttled_by.startswith(reason), f"status says: {reason}")
    for _ in range(2):
        written = job.state.written
        job.until(lambda: job.state.written > written, "the log goes on")  # noqa: B023
    rows = job.state.rows
    written = job.state.written
    job.until(lambda: job.state.written > written, "the log goes on")
    assert job.state.rows == rows


def test_lag_of_a_mysql_replica_is_read_in_seconds() -> None:
    """The source is its own: what other tests have left in the log of theirs, no replica could carry out."""
    with MySqlServer() as source, MySqlServer() as replica:
        with pytest.raises(SourceError, match="is not replicating"):
            replica_lag(address_of(source))
        execute(
            replica, None,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{source.host}', SOURCE_PORT={source.port}, "
            f"SOURCE_USER='{source.user}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )  # fmt: skip
        wait_for(lambda: replica_lag(address_of(replica)) == 0, "the replica is in step")
        execute(
            replica, None, "STOP REPLICA", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY=3600", "START REPLICA"
        )  # fmt: skip
        execute(source, None, "CREATE DATABASE lagging", "DROP DATABASE lagging")
        wait_for(lambda: replica_lag(address_of(replica)) >= 2, "the replica lags")


TEXT_TABLE = (
    "DROP TABLE orders",
    "CREATE TABLE orders (code VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, amount INT NOT NULL)",
    "INSERT INTO orders SELECT CONCAT('Größe ', seq), seq FROM seq_1_to_4000",
)


@contextmanager
def changing(server: SqlServer, database: str) -> Iterator[None]:
    """Changes of every kind in the table of text keys, while the block lasts."""
    done = threading.Event()

    def change() -> None:
        for number in range(10_000):
            if done.wait(0.02):
                return
            execute(
                server, database, f"INSERT INTO orders VALUES ('new {number}', {number})",
                f"UPDATE orders SET amount = -{number} WHERE code = 'größe {number + 1}'",
                f"DELETE FROM orders WHERE code = 'new {number - 3}'",
            )  # fmt: skip

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("key", ["int", "text"])
def test_connections_never_exceed_workers_and_log_readers_and_two(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path, key: str
) -> None:
    """With throttle checks and the page on, through snapshot, catch-up, a rotation of the log and live."""
    create_copier(mariadb_server)
    database = database_of(tmp_path)
    checks = {"every": "100ms", "threads_running": 500, "queries": [{"name": "one", "sql": "SELECT 1", "max": 9}]}
    settings: dict[str, object] = {
        "mysql": {
            "host": mariadb_server.host, "port": mariadb_server.port, "user": COPIER, "database": database,
            "table": "orders",
        },
        "workers": 3, "ui": {"port": free_ports()[0]},
        "limits": {"rows_per_second": 1000, "log_readers": 2, "throttle": checks},
    }  # fmt: skip
    counted = Connections(mariadb_server)
    with live_job(spark, mariadb_server, tmp_path, rows=4000, settings=settings) as job:
        if key == "text":
            execute(mariadb_server, database, *TEXT_TABLE)
        traffic = changing(mariadb_server, database) if key == "text" else writing(job)
        with counted.counting(), traffic:
            job.start()
            job.until(lambda: job.state.rows > 1500, "half of the rows")
            execute(mariadb_server, None, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
            job.ask(lambda config: requests.throttle(config, rows_per_second=None))
            job.until_live()
            live = job.state.epoch
            job.until(lambda: job.state.epoch >= live + 5, "five live epochs")
            job.stop()
        assert 3 <= counted.most <= 3 + 2 + 2
        assert not [report for report in job.reports if report.observed.retry]
