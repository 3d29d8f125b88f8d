"""A new copy begins while operators steer the job: what they ask around that moment counts, and `status` keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.lake import read_lake
from devkit.mysql import MariaDbServer, SqlServer
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.requests import pause, resume, stop, throttle
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.run.loop import Until


@pytest.fixture(scope="module")
def server() -> Iterator[SqlServer]:
    with MariaDbServer({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> Iterator[JobCase]:
    """A live job on a table of forty rows in four ranges."""
    execute(
        server, None, "DROP DATABASE IF EXISTS renewed", "CREATE DATABASE renewed", "USE renewed",
        "CREATE TABLE renewed.t (id INT PRIMARY KEY, a INT)",
        "INSERT INTO renewed.t SELECT seq, seq * 2 FROM seq_1_to_40",
    )  # fmt: skip
    yield JobCase(server, tmp_path, "renewed", "t", settings={"vnodes": 4, "limits": {"range_rows": 10}})
    execute(server, None, "DROP DATABASE IF EXISTS renewed")


def test_requests_made_while_a_new_copy_begins_count_for_it(case: JobCase, spark: SparkSession) -> None:
    assert case.here(spark).run() is None
    config = case.loaded_config()
    throttle(config, rows_per_second=5_000)
    execute(case.server, "renewed", "CREATE INDEX by_a ON t (a)", "ALTER TABLE t MODIFY a VARCHAR(12)")
    job = case.here(spark)

    def ask() -> None:
        pause(config)
        resnapshot(config, only=None, where_key="1..5", everything=False)
        stop(config)

    job.before_renewal = ask
    assert job.run(Until.STOPPED) is None

    # Nobody else has stopped it.
    assert job.copies == 2
    assert job.state.stopped
    report = case.report()
    assert [(each.kind, each.epoch is not None) for each in report.requests] == [
        ("rate_limit", True), ("pause", True), ("resnapshot", True), ("stop", True),
    ]  # fmt: skip
    assert (report.rate_limit, report.paused) == (5_000, True)
    assert report.definition is not None
    assert [each.effect.partition(":")[0] for each in report.definition.statements] == ["none", "a new copy"]
    copy = report.definition.new_copy
    assert copy is not None
    assert copy.statement == "ALTER TABLE t MODIFY a VARCHAR(12)"
    assert copy.offset == report.definition.statements[-1].offset
    assert copy.readers == f"the old copy at {copy.offset}"
    assert [row["a"] for row in read_lake(case.lake).sort_by("id").to_pylist()][:2] == [2, 4]

    resume(config)
    again = case.here(spark)
    assert again.run() is None
    assert case.differences() == []
    report = case.report()
    assert report.definition is not None
    assert report.definition.new_copy is None
    assert [each.epoch is not None for each in report.requests] == [True] * 5
