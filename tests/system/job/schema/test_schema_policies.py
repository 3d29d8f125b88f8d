"""What an operator has set decides what becomes of a statement: whole jobs on a real server.

`dropped_partitions` is tried with every value in `test_statement_matrix`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.lake import read_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from progress.state.backfill_state import Failure
from tests.system.job_case import JobCase, JobHere, execute
from vnode_backfill.commands.requests import resume
from vnode_backfill.job.run.loop import Until

ADDED = ("ALTER TABLE t ADD c INT DEFAULT 5", "UPDATE t SET c = 6 WHERE id % 5 = 0")
FOUR = "INSERT INTO t VALUES (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three'), (150, 40, 'four')"


@pytest.fixture(scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    with {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> Iterator[JobCase]:
    """A job on a table of four rows."""
    execute(server, None, "DROP DATABASE IF EXISTS policies", "CREATE DATABASE policies")
    execute(
        server, "policies",
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20))",
        FOUR,
    )  # fmt: skip
    yield JobCase(server, tmp_path, "policies", "t", settings={"vnodes": 4})
    execute(server, None, "DROP DATABASE IF EXISTS policies")


def changed(case: JobCase, *statements: str) -> None:
    execute(case.server, case.database, *statements)


def follow(case: JobCase, spark: SparkSession, *, copies: int = 1) -> JobHere:
    """Run the job until it has followed a statement and is live, or has failed."""
    job = case.here(spark)

    def done() -> bool:
        noted = bool(job.state.schema.notes) or copies > 1
        return job.ended or (noted and job.copies == copies and job.state.is_live)

    with job.running(Until.STOPPED):
        wait_for(done, "the statement to be followed", seconds=90, state=lambda: str(job.state.schema))
    return job


def stopped(case: JobCase, spark: SparkSession) -> Failure:
    failure = follow(case, spark, copies=99).failure
    assert failure is not None, "a statement that nobody has accepted was passed"
    return failure


def offset_in(failure: Failure) -> str:
    return failure.hint.partition("--accept ")[2].partition("`")[0]


def test_job_that_stops_at_a_statement_passes_it_once_it_is_accepted(case: JobCase, spark: SparkSession) -> None:
    case.use(schema_changes="stop")
    assert case.here(spark).run() is None
    changed(case, "CREATE INDEX by_a ON t (a)", "ALTER TABLE t ADD c INT DEFAULT 5", "UPDATE t SET c = 6 WHERE id = 1")

    failure = stopped(case, spark)
    assert "ALTER TABLE t ADD c INT DEFAULT 5" in failure.message
    assert "column c is added with '5' in existing rows" in failure.detail
    assert stopped(case, spark) == failure

    resume(case.loaded_config(), accept=offset_in(failure))
    passed = follow(case, spark)
    assert passed.failure is None
    assert passed.state.schema.in_sink == 1
    assert case.differences() == []


def test_job_that_copies_stops_at_a_statement_too_and_goes_on_once_it_is_accepted(
    case: JobCase, spark: SparkSession
) -> None:
    changed(
        case, "DELETE FROM t", "INSERT INTO t SELECT n, n, 'x' FROM "
        "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 900) SELECT n FROM k) k",
    )  # fmt: skip
    case.use(schema_changes="stop", limits={"range_rows": 100, "rows_per_second": 300})
    job = case.here(spark)
    with job.running():
        job.wait_until_read(3)
        changed(case, "UPDATE t SET a = 5 WHERE id % 7 = 0", *ADDED)
    failure = job.failure
    assert failure is not None
    assert 3 <= job.ranges_read < job.ranges_planned
    assert ADDED[0] in failure.message
    assert case.here(spark).run() == failure

    changed(case, "UPDATE t SET c = 7 WHERE id % 11 = 0")
    resume(case.loaded_config(), accept=offset_in(failure))
    again = case.here(spark)
    assert (again.run(), again.copies, again.state.schema.in_sink) == (None, 1, 1)
    assert case.differences() == []


def test_acceptance_of_one_statement_does_not_pass_the_next(case: JobCase, spark: SparkSession) -> None:
    case.use(schema_changes="stop")
    assert case.here(spark).run() is None
    changed(case, "ALTER TABLE t ADD c INT", "ALTER TABLE t MODIFY a VARCHAR(9)")
    for effect in ("column c is added", "a new copy of the table"):
        failure = stopped(case, spark)
        assert effect in failure.detail
        resume(case.loaded_config(), accept=offset_in(failure))
    assert follow(case, spark, copies=2).failure is None
    assert case.differences() == []


@pytest.mark.parametrize(("policy", "columns"), [("keep", ["id", "a", "b"]), ("drop", ["id", "a"])])
def test_dropped_column_is_kept_or_dropped(case: JobCase, spark: SparkSession, policy: str, columns: list[str]) -> None:
    case.use(dropped_columns=policy)
    assert case.here(spark).run() is None
    changed(case, "ALTER TABLE t DROP b", "UPDATE t SET a = 11 WHERE id = 1")

    assert follow(case, spark).failure is None
    rows = {row["id"]: row for row in read_lake(case.lake).to_pylist()}
    assert sorted(rows[2]) == sorted(columns)
    assert (rows[1].get("b"), rows[2].get("b")) == (None, "two" if policy == "keep" else None)
    case.kept_columns = ("b",)
    assert case.differences() == []
    assert re.match("verified: 4 rows in .*, 0 differences\n", case.command("verify"))
