"""A table that is dropped and created again is copied by the log alone, on real servers: nothing of it is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, JobHere, execute
from vnode_backfill.decide.protocol import ResolveStatement
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.loop import Until
from vnode_backfill.job.run.order_threads import Moment

AGAIN = (
    "DROP TABLE t", "CREATE TABLE t (id BIGINT PRIMARY KEY, z VARCHAR(9), y INT)",
    "INSERT INTO t VALUES (1, 'one', 1), (7, 'seven', 7), (9, 'nine', 9)", "UPDATE t SET y = 8 WHERE id = 7",
    "DELETE FROM t WHERE id = 9",
)  # fmt: skip


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    with {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> JobCase:
    execute(
        server, None, "CREATE DATABASE again", "CREATE TABLE again.t (id INT PRIMARY KEY, a INT)",
        "INSERT INTO again.t VALUES (1, 1), (2, 2), (3, 3), (4, 4)", "CREATE TABLE again.other (id INT PRIMARY KEY, b TEXT)",
        "INSERT INTO again.other VALUES (5, 'five')",
    )  # fmt: skip
    return JobCase(server, tmp_path, "again", "t")


def run_once_more(case: JobCase, spark: SparkSession, *statements: str) -> JobHere:
    """The statements come while nobody runs the job; then it is run, and makes one new copy."""
    execute(case.server, case.database, *statements)
    job = case.here(spark)
    assert job.run() is None, job.failure
    assert job.copies == 2
    assert case.differences() == []
    return job


def test_table_that_is_created_again_is_copied_by_the_log_alone(case: JobCase, spark: SparkSession) -> None:
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=300)
        execute(case.server, case.database, *AGAIN)
        wait_for(lambda: job.ended or (job.copies == 2 and job.state.is_live), "live again", seconds=300)
    assert (job.failure, job.copies, job.ranges_planned) == (None, 2, 0)
    assert case.differences() == []
    twice = run_once_more(
        case, spark, *AGAIN, "DROP TABLE t", "CREATE TABLE IF NOT EXISTS t LIKE other", "INSERT INTO t VALUES (1, 'x')",
        "TRUNCATE t", "CREATE INDEX i ON t (b(3))", "CREATE TABLE IF NOT EXISTS t (id INT)",
        "INSERT INTO t VALUES (3, 'three'), (4, 'four')",
    )  # fmt: skip
    assert twice.ranges_planned == 0
    read = run_once_more(case, spark, "DROP TABLE t", "CREATE TABLE t (PRIMARY KEY (id)) SELECT id, b FROM other")
    assert read.ranges_planned > 0, "the rows of its SELECT are in the transaction of the statement"
    altered = run_once_more(case, spark, *AGAIN, "ALTER TABLE t ADD c INT DEFAULT 4", "UPDATE t SET c = 2 WHERE id = 1")
    assert altered.ranges_planned > 0, "nobody knows what the table was before its last column came"


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Moment]:
    """What is seen of the orders to find out what a statement has done: that they begin, and that they end."""
    seen: list[Moment] = []
    monkeypatch.setattr(
        order_threads, "seam",
        lambda moment, action: seen.append(moment) if isinstance(action, ResolveStatement) else None,
    )  # fmt: skip
    return seen


def drop_and_let_the_job_wait(case: JobCase, job: JobHere, resolved: list[Moment]) -> None:
    """The job is live, meets the DROP, and waits three seconds already for the table to come back."""
    wait_for(lambda: job.state.is_live, "live", seconds=300)
    execute(case.server, case.database, "UPDATE t SET a = 8 WHERE id = 2", AGAIN[0])
    wait_for(lambda: resolved != [], "the DROP is met", seconds=300)
    later = time.monotonic() + 3
    wait_for(lambda: time.monotonic() > later, "three seconds pass")
    assert resolved[-1] == "before", "the driver waits"


def test_table_that_comes_back_while_the_driver_waits_for_it_is_copied_by_the_log_alone(
    case: JobCase, spark: SparkSession, resolved: list[Moment]
) -> None:
    job = case.here(spark)
    with job.running(Until.STOPPED):
        drop_and_let_the_job_wait(case, job, resolved)
        execute(case.server, case.database, *AGAIN[1:])
        wait_for(lambda: job.ended or (job.copies == 2 and job.state.is_live), "live again", seconds=300)
    assert (job.failure, job.copies, job.ranges_planned) == (None, 2, 0)
    assert case.differences() == []


def test_table_that_comes_back_after_the_driver_was_stopped_in_its_wait_is_copied_by_the_log_alone(
    case: JobCase, spark: SparkSession, resolved: list[Moment]
) -> None:
    job = case.here(spark)
    with job.running(Until.STOPPED):
        drop_and_let_the_job_wait(case, job, resolved)
    assert (job.failure, job.ending, job.state.schema.ended) == (None, None, "")
    assert run_once_more(case, spark, *AGAIN[1:]).ranges_planned == 0
