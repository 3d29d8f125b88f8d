"""A table that was changed without a word in the log, or without its rows: the hint leads to a whole copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, SqlServer
from progress.state.backfill_state import Failure
from tests.system.job.followed_hints import carry_out
from tests.system.job_case import JobCase, execute

UNLOGGED = (
    "SET SESSION sql_log_bin = 0",
    "ALTER TABLE t ADD c INT NOT NULL DEFAULT 7 FIRST",
    "SET SESSION sql_log_bin = 1",
)


@pytest.fixture(scope="module")
def server() -> Iterator[SqlServer]:
    with MariaDbServer({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> Iterator[JobCase]:
    execute(
        server, None, "DROP DATABASE IF EXISTS unlogged", "CREATE DATABASE unlogged", "USE unlogged",
        "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t SELECT seq, seq FROM seq_1_to_40",
    )  # fmt: skip
    yield JobCase(server, tmp_path, "unlogged", "t", settings={"vnodes": 4, "limits": {"range_rows": 10}})
    execute(server, None, "DROP DATABASE IF EXISTS unlogged")


def follow_hint(case: JobCase, spark: SparkSession, failure: Failure | None, word: str = "sql_log_bin = 0") -> None:
    assert failure is not None
    assert word in failure.hint
    assert carry_out(failure.hint.partition(" Where `executor` is single")[0], case.config) == ["resnapshot", "--all"]
    assert case.here(spark).run() is None
    assert case.differences() == []


def test_live_job_that_meets_rows_of_an_unlogged_change_is_copied_again(case: JobCase, spark: SparkSession) -> None:
    assert case.here(spark).run() is None
    execute(case.server, "unlogged", *UNLOGGED, "UPDATE t SET c = 8 WHERE id < 5")
    follow_hint(case, spark, case.here(spark).run())


def test_copying_job_that_reads_an_unlogged_change_is_copied_again(case: JobCase, spark: SparkSession) -> None:
    job = case.here(spark)
    execute(case.server, "unlogged", *UNLOGGED)
    follow_hint(case, spark, job.run())


@pytest.mark.parametrize(
    ("before", "statement"),
    [
        ((), "UPDATE t SET a = a + 100 WHERE id < 5"),
        (
            ("CREATE TRIGGER reach AFTER INSERT ON u FOR EACH ROW UPDATE t SET a = a + NEW.id WHERE id < 5",),
            "INSERT INTO u VALUES (100)",
        ),
        (
            (
                "CREATE FUNCTION reach() RETURNS INT DETERMINISTIC BEGIN UPDATE t SET a = a + 100 WHERE id < 5; RETURN 1; END",
            ),
            "INSERT INTO u SELECT reach()",
        ),
    ],
    ids=["by name", "by a trigger", "by a function"],
)
def test_live_job_that_meets_a_change_logged_as_a_statement_is_copied_again(
    case: JobCase, spark: SparkSession, before: tuple[str, ...], statement: str
) -> None:
    """A trigger and a function are not named in the log: only the statement that reached the table by them is."""
    execute(case.server, "unlogged", "CREATE TABLE u (id INT PRIMARY KEY)", *before)
    assert case.here(spark).run() is None
    execute(
        case.server, "unlogged", "SET SESSION binlog_format = STATEMENT", statement,
        "SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (9001, 1)",
    )  # fmt: skip
    failure = case.here(spark).run()
    assert failure is not None
    assert "holds changes as a statement, not as rows, and unlogged.t may be among" in failure.message
    assert statement in failure.detail
    follow_hint(case, spark, failure, "SET GLOBAL binlog_format = ROW")
