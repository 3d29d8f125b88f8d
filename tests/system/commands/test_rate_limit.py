"""The snapshot slows down when an operator or the source says so; the log never does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pymysql.connections import Connection
from pymysql.cursors import Cursor
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer
from devkit.waiting import wait_for
from progress.state.backfill_state import Controls
from progress.state.report import JobPhase
from tests.system.live_job import LiveJob, database_of, live_job, never_falls, no_fault, writing
from vnode_backfill.commands import requests
from vnode_backfill.decide.protocol import ReadRanges
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.words.errors import SourceLostError

WINDOW = 5.0
USER = "copier"


class ServerReadings:
    """How many rows the server has handed out by index scans, and how many connections the job had, over time."""

    def __init__(self, server: MariaDbServer) -> None:
        self._server = server
        self._done = threading.Event()
        self.rows: list[tuple[float, float, int]] = []
        self.connections = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._sample)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _sample(self) -> None:
        with self._server.connect() as connection:
            while not self._done.wait(0.1):
                before = time.monotonic()
                rows = int(_one(connection, "SHOW GLOBAL STATUS LIKE 'Handler_read_next'", 1))
                self.rows.append((before, time.monotonic(), rows))
                sessions = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '{USER}'"
                self.connections = max(self.connections, int(_one(connection, sessions)))

    def busiest(self, seconds: float) -> int:
        """The most rows between two samples that lie, with all doubt, at most so many seconds apart."""
        return max(
            later - earlier
            for began, _, earlier in self.rows
            for _, ended, later in self.rows
            if 0 < ended - began <= seconds
        )


def _one(connection: Connection[Cursor], statement: str, column: int = 0) -> str:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        assert row is not None
        return str(row[column])


def source_of(server: MariaDbServer, folder: Path) -> dict[str, object]:
    """The job logs in as a user of its own, so that its connections can be told from the test's."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY ''")
        cursor.execute(f"GRANT ALL ON *.* TO {USER}@'%'")
    return {
        "host": server.host, "port": server.port, "user": USER, "database": database_of(folder), "table": "orders",
    }  # fmt: skip


def throttle(job: LiveJob, rows_per_second: int | None) -> None:
    job.ask(lambda config: requests.throttle(config, rows_per_second=rows_per_second))
    assert job.report().rate_limit == rows_per_second


def until_log_moves(job: LiveJob) -> None:
    """The log is captured further than it was."""
    written = job.state.written
    job.until(lambda: job.state.written > written, "the log goes on")


def test_limit_holds_for_the_whole_job_and_zero_stops_the_snapshot_but_not_the_log(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    limit = 1000
    settings: dict[str, object] = {
        "mysql": source_of(mariadb_server, tmp_path), "workers": 3, "limits": {"rows_per_second": limit},
    }  # fmt: skip
    readings = ServerReadings(mariadb_server)
    with live_job(spark, mariadb_server, tmp_path, rows=12_000, settings=settings) as job:
        with readings.sampling():
            job.start()
            job.until(lambda: job.state.rows >= 7 * limit, "seven seconds' worth of rows")
            throttle(job, limit // 2)
            throttle(job, 0)
        assert 0 < readings.busiest(WINDOW) <= 1.2 * WINDOW * limit
        assert readings.connections <= 3 + job.config.limits.log_readers + 2
        with writing(job):
            job.until(lambda: job.report().phase is JobPhase.PAUSED, "paused")
            rows = job.state.rows
            until_log_moves(job)
            until_log_moves(job)
            assert job.state.rows == rows
            throttle(job, None)
            job.until_live()
        job.stop()
        job.assert_equal()
        assert never_falls([report.percent for report in job.reports])


def test_new_limit_counts_from_the_next_epoch_on(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=4000, settings={"limits": {"rows_per_second": 500}}) as job:
        job.start()
        throttle(job, 0)
        acknowledged = job.state.acknowledged[-1].epoch
        reading = [
            order.barrier.epoch for order in job.seams.orders if isinstance(order, ReadRanges) and any(order.lanes)
        ]
        assert max(reading) <= acknowledged
        throttle(job, 1_000_000)
        job.until_live()
        job.stop()
        job.assert_equal()


def test_job_whose_reads_fail_obeys_what_is_asked_of_it_before_it_repeats_them(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"limits": {"rows_per_second": 400, "retries": 1}}
    with live_job(spark, mariadb_server, tmp_path, rows=1500, settings=settings) as job:
        job.seams.fault = lambda _, action: (
            SourceLostError("lost") if isinstance(action, ReadRanges) and any(action.lanes) else None
        )
        job.start()
        job.until_ended()
        assert job.failure is not None
        job.start()
        job.until_ended()
        assert job.failure is not None
        assert requests.pause(job.config) == 0
        with writing(job):
            job.start()
            job.until(lambda: job.report().phase is JobPhase.PAUSED, "paused")
            until_log_moves(job)
            job.stop()
        job.seams.fault = no_fault
        # A limit as an earlier release took it: no server takes the number of rows that it makes.
        store = state_store(job.config)
        store.acquire_lease("anna", timedelta(minutes=1))
        state = replace(job.state, controls=Controls(rows_per_second=10**24))
        store.load()
        store.commit(replace(state, revision=state.revision + 1))
        store.release()
        job.start()
        job.until_live()
        job.stop()
        job.assert_equal()


def test_busy_source_holds_the_snapshot_and_says_why_while_the_log_goes_on(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    flag = tmp_path / "hold"
    busy = f"{database_of(tmp_path)}.busy"
    checks = {
        "every": "100ms", "flag_file": str(flag), "threads_running": 8,
        "queries": [{"name": "queue length", "sql": f"SELECT load_now FROM {busy}", "max": 10}],
    }  # fmt: skip
    settings: dict[str, object] = {"limits": {"rows_per_second": 500, "throttle": checks}}
    with live_job(spark, mariadb_server, tmp_path, rows=8000, settings=settings) as job:
        run(mariadb_server, f"CREATE TABLE {busy} AS SELECT 0 AS load_now")
        with writing(job):
            job.start()
            job.until(lambda: job.state.rows > 0, "the first rows")
            flag.touch()
            assert_held(job, f"the flag file {flag} exists")
            run(mariadb_server, f"UPDATE {busy} SET load_now = 25")
            flag.unlink()
            assert_held(job, "queue length is 25, limit 10")
            with sleepers(mariadb_server, 12):
                run(mariadb_server, f"UPDATE {busy} SET load_now = 0")
                assert_held(job, "Threads_running is")
            job.until(lambda: not job.shown().observed.throttled_by, "nothing holds it up")
            throttle(job, None)
            job.until_live()
        job.stop()
        job.assert_equal()


def assert_held(job: LiveJob, reason: str) -> None:
    """The reason is shown; no epoch that begins from now on reads, and the log is captured further."""
    job.until(lambda: job.shown().observed.throttled_by.startswith(reason), reason)
    job.until(lambda: job.report().observed.throttled_by.startswith(reason), f"status says: {reason}")
    until_log_moves(job)
    until_log_moves(job)
    rows = job.state.rows
    until_log_moves(job)
    until_log_moves(job)
    assert job.state.rows == rows
    assert not job.state.is_live


def run(server: MariaDbServer, statement: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def sleepers(server: MariaDbServer, count: int) -> Iterator[None]:
    """So many statements that run until the block ends."""
    with server.connect() as probe, ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(_sleep, server)
        wait_for(lambda: int(_one(probe, "SHOW GLOBAL STATUS LIKE 'Threads_running'", 1)) > count, "sleepers run")
        try:
            yield
        finally:
            with probe.cursor() as cursor:
                cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP%'")
                for (session,) in cursor.fetchall():
                    cursor.execute(f"KILL QUERY {session}")


def _sleep(server: MariaDbServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT SLEEP(300)")
