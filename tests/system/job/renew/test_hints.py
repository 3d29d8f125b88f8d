"""A table that was changed without a word in the log: the hint leads to a whole copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, SqlServer
from progress.state.backfill_state import Failure
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.resnapshot import resnapshot

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


def follow_hint(case: JobCase, spark: SparkSession, failure: Failure | None) -> None:
    assert failure is not None
    assert "sql_log_bin = 0" in failure.hint
    assert "resnapshot --all" in failure.hint
    assert resnapshot(case.loaded_config(), only=None, where_key=None, everything=True) == 0
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
