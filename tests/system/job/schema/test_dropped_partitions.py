"""Whole jobs on real servers whose table loses partitions: their rows go by bounds, and the table is not read again.

A live job meets one statement after the other here. `test_statement_matrix` has the same ones in every phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, JobHere, execute
from vnode_backfill.job.run.loop import Until

BY_DAY = (
    "CREATE TABLE t (id INT, day DATE, v INT, PRIMARY KEY (id, day)) PARTITION BY RANGE (TO_DAYS(day)) ("
    "PARTITION p1 VALUES LESS THAN (TO_DAYS('2024-01-02')), PARTITION p2 VALUES LESS THAN (TO_DAYS('2024-01-03')), "
    "PARTITION p3 VALUES LESS THAN (TO_DAYS('2024-01-04')), PARTITION p4 VALUES LESS THAN (TO_DAYS('2024-01-05')))"
)
BY_NUMBER = (
    "CREATE TABLE t (id INT, day DATE, v INT, PRIMARY KEY (id, day)) PARTITION BY LIST (id) ("
    f"PARTITION p1 VALUES IN ({','.join(str(n) for n in range(1, 1201) if n % 3 == 0)}), "
    f"PARTITION p2 VALUES IN ({','.join(str(n) for n in range(1, 1201) if n % 3 == 1)}), "
    f"PARTITION p3 VALUES IN ({','.join(str(n) for n in range(1, 1201) if n % 3 == 2)}))"
)
ROWS = (
    "INSERT INTO t SELECT n, DATE_ADD('2024-01-01', INTERVAL n % 4 DAY), n FROM "
    "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 900) SELECT n FROM k) k"
)
BACK = "REPLACE INTO t SELECT n, '2024-01-02', -n FROM (SELECT 7 AS n UNION SELECT 500 UNION SELECT 899) k"
DAYS = (
    "UPDATE t SET v = v + 1 WHERE id % 5 = 0",
    "ALTER TABLE t DROP PARTITION p1",
    "UPDATE t SET day = '2024-01-03' WHERE day = '2024-01-02' AND id % 10 = 1",
    "ALTER TABLE t ADD PARTITION (PARTITION p5 VALUES LESS THAN (TO_DAYS('2024-01-06')))",
    "INSERT INTO t VALUES (2000, '2024-01-05', 1), (2001, '2024-01-01', 2)",
    "ALTER TABLE t TRUNCATE PARTITION p2",
    "ALTER TABLE t REORGANIZE PARTITION p3, p4 INTO (PARTITION pz VALUES LESS THAN (TO_DAYS('2024-01-05')))",
    BACK,
    "DELETE FROM t WHERE day < '2024-01-03'",
    "CREATE TABLE x (id INT, day DATE, v INT, PRIMARY KEY (id, day))",
    "REPLACE INTO t SELECT id, '2024-01-02', v FROM t WHERE id % 7 = 0",
    "ALTER TABLE t EXCHANGE PARTITION p2 WITH TABLE x",
    "UPDATE t SET v = v + 1 WHERE id % 11 = 0",
)
NUMBERS = (
    "UPDATE t SET v = v + 1 WHERE id % 5 = 0",
    "ALTER TABLE t DROP PARTITION p1",
    "ALTER TABLE t TRUNCATE PARTITION p2",
    "INSERT INTO t VALUES (1, '2024-01-01', -1), (4, '2025-01-01', -4), (1000, '2025-01-01', 0)",
    "UPDATE t SET v = v + 1 WHERE id % 11 = 0",
)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    make = {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]
    with make({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> Iterator[JobCase]:
    execute(server, None, "DROP DATABASE IF EXISTS parted", "CREATE DATABASE parted")
    yield JobCase(server, tmp_path, "parted", "t", key=("id", "day"), settings={"limits": {"range_rows": 100}})
    execute(server, None, "DROP DATABASE IF EXISTS parted")


def cases(*usual: tuple[str, str]) -> pytest.MarkDecorator:
    """Both kinds of partitions on both servers; those that are not usual are left to the long tests."""
    every = [(server, kind) for server in ("mysql", "mariadb") for kind in ("days", "numbers")]
    marked = [pytest.param(*each, marks=() if each in usual else pytest.mark.long) for each in every]
    return pytest.mark.parametrize(("server", "kind"), marked, indirect=["server"])


def write(case: JobCase, statements: Sequence[str]) -> None:
    execute(case.server, case.database, *statements)


def made(case: JobCase, kind: str) -> Sequence[str]:
    """Make the table; the statements that it lives through."""
    write(case, (BY_DAY if kind == "days" else BY_NUMBER, ROWS))
    return DAYS if kind == "days" else NUMBERS


def write_and_wait(case: JobCase, job: JobHere, statement: str) -> None:
    """The job has met a statement about partitions before anything follows it."""
    noted = len(job.state.schema.notes)
    write(case, [statement])
    if statement.startswith("ALTER"):
        wait_for(lambda: len(job.state.schema.notes) > noted, statement, seconds=120)


def check(job: JobHere, case: JobCase) -> None:
    assert job.failure is None, job.failure
    effects = [note.effect for note in job.state.schema.notes]
    assert "rows of the partition are deleted" in effects
    assert job.copies == 1
    assert case.differences() == []


@cases(("mysql", "days"), ("mariadb", "numbers"))
def test_live_job_deletes_the_rows_of_partitions(case: JobCase, spark: SparkSession, kind: str) -> None:
    statements = made(case, kind)
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=120)
        for statement in statements:
            write_and_wait(case, job, statement)
        last = "pz" if kind == "days" else "p3"
        write(case, [f"ALTER TABLE t DROP PARTITION {last}"])
        wait_for(lambda: job.state.schema.notes[-1].statement.endswith(last) and job.state.is_live, "drop", seconds=120)
    check(job, case)
