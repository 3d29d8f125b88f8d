"""Whole jobs of one table on real servers that live through statements: every row of the target is compared.

The table is changed in every way that there is for a job: nothing, a change of the target, several statements, a new
copy, an empty table. It meets a job that is live, one that still copies, and one that is stopped. Before and after each
there are writes, by the old columns and by the new ones. `test_statement_matrix` has every kind of statement, in every
phase, as tables of one job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from progress.state.schema_state import NO_CHANGES
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.schema_change import Ended


@dataclass(frozen=True)
class Step:
    """Statements, what is written by the new columns, and whether the table is copied again.

    `kept` are the columns that only the target has then.
    """

    statements: tuple[str, ...]
    writes: tuple[str, ...]
    copied: bool = False
    kept: tuple[str, ...] = ()


STEPS = {
    "index": Step(("CREATE INDEX by_a ON t (a)",), ("UPDATE t SET a = a + 1 WHERE id % 7 = 0",)),
    "add first with a default": Step(
        ("ALTER TABLE t ADD c VARCHAR(9) NOT NULL DEFAULT 'new' FIRST",), ("UPDATE t SET c = b WHERE id < 9",)
    ),
    "two in a row": Step(
        ("ALTER TABLE t ADD d INT DEFAULT 4", "ALTER TABLE t ADD g INT DEFAULT 5, DROP b"),
        ("UPDATE t SET d = 1, g = 2 WHERE id % 9 = 0",),
        kept=("b",),
    ),
    "another type": Step(
        ("ALTER TABLE t MODIFY a VARCHAR(12)",), ("UPDATE t SET a = 'text' WHERE id = 4",), copied=True
    ),
    "truncate": Step(("TRUNCATE t",), ("INSERT INTO t (id, a) VALUES (5, 5)",)),
}
"""The same table lives through all of them."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    make = {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]
    with make({}) as started:
        yield started


def servers(*usual: str) -> pytest.MarkDecorator:
    """Both servers; those that are not usual are left to the long tests."""
    return pytest.mark.parametrize(
        "server",
        [pytest.param(name, marks=() if name in usual else pytest.mark.long) for name in ("mysql", "mariadb")],
        indirect=True,
    )


@pytest.fixture
def database(server: SqlServer) -> Iterator[str]:
    execute(server, None, "DROP DATABASE IF EXISTS changing", "CREATE DATABASE changing")
    yield "changing"
    execute(server, None, "DROP DATABASE IF EXISTS changing")


@pytest.fixture
def case(server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    """A job on a table of three columns and 900 rows, cut into ranges of 100 rows."""
    execute(
        server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20)) CHARACTER SET utf8mb4",
        "INSERT INTO t SELECT n, n * 2, CONCAT('row ', n) FROM "
        "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 900) SELECT n FROM k) k",
    )  # fmt: skip
    return JobCase(server, tmp_path, database, "t", settings={"limits": {"range_rows": 100}})


def write(case: JobCase, statements: Sequence[str]) -> None:
    execute(case.server, case.database, *statements)


def take(case: JobCase, *steps: Step) -> None:
    """Change the table, with writes by the columns that every version has before and after each statement."""
    old = ("DELETE FROM t WHERE id % 13 = 0", "UPDATE t SET a = 5 WHERE id % 17 = 0")
    for step in steps:
        write(case, (*old, *step.statements, *old, *step.writes))
        case.kept_columns = step.kept


@servers("mysql")
def test_live_job_follows(case: JobCase, spark: SparkSession) -> None:
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=120)
        copies = 1
        for kind, step in STEPS.items():
            take(case, step)
            wait_for(
                lambda: job.ended or (job.state.is_live and not case.differences()), f"{kind} is followed", seconds=120,
                state=lambda: f"{job.state.schema.notes} {job.errors}",
            )  # fmt: skip
            copies += step.copied
            assert (job.failure, job.copies) == (None, copies), kind
    assert job.failure is None, job.failure
    assert case.differences() == []


@servers("mariadb")
def test_stopped_job_follows_when_it_runs_again(case: JobCase, spark: SparkSession) -> None:
    """The server is ahead of the log by all statements of a step when the job meets the first."""
    assert case.here(spark).run() is None
    for kind, step in STEPS.items():
        take(case, step)
        job = case.here(spark)
        assert job.run() is None, f"{kind}: {job.failure}"
        assert job.copies == 1 + step.copied, kind
        assert case.differences() == [], kind


@servers("mysql")
@pytest.mark.parametrize(
    "kinds", [("index", "add first with a default", "two in a row"), ("truncate",), ("another type",)], ids=", ".join
)
def test_copying_job_follows(case: JobCase, spark: SparkSession, kinds: tuple[str, ...]) -> None:
    """The statements meet a job that has read some ranges, reads some, and has others to read."""
    case.use(limits={"range_rows": 100, "rows_per_second": 700})
    job = case.here(spark)
    with job.running():
        job.wait_until_read(3)
        take(case, *(STEPS[kind] for kind in kinds))
    assert job.failure is None, job.failure
    assert job.copies == 1 + sum(STEPS[kind].copied for kind in kinds)
    assert case.differences() == []


@servers("mysql")
def test_offset_at_a_statement_in_a_middle_file_of_the_log_has_the_files_identity(
    case: JobCase, spark: SparkSession
) -> None:
    """A job continues from there: a log that was reset, and has a file of this name again, must be noticed."""
    assert case.here(spark).run() is None
    write(
        case, ["FLUSH BINARY LOGS", "ALTER TABLE t ADD c INT", "FLUSH BINARY LOGS", "UPDATE t SET c = 1 WHERE id = 3"]
    )
    job = case.here(spark)
    assert job.run() is None
    version = job.state.schema.versions[-1]
    assert version.before.number < job.state.written.number
    assert version.before.log
    assert version.after.log == version.before.log
    assert case.differences() == []


@servers("mysql")
def test_table_that_is_dropped_ends_the_job_and_one_that_comes_back_is_copied_again(
    case: JobCase, spark: SparkSession
) -> None:
    assert case.here(spark).run() is None
    # The log says that it was dropped two minutes ago: nobody has to wait for it to come back.
    write(case, ["UPDATE t SET a = 4 WHERE id = 8", "SET timestamp = UNIX_TIMESTAMP() - 120", "DROP TABLE t"])
    job = case.here(spark)
    assert job.run() is None
    assert job.ending == Ended("dropped")
    assert job.state.schema.ended.startswith("dropped at ")
    write(case, ["CREATE TABLE t (id INT PRIMARY KEY, z INT)", "INSERT INTO t VALUES (1, 1), (2, 2)"])
    again = case.here(spark)
    assert again.run() is None
    assert case.differences() == []


@servers("mariadb")
def test_statement_that_is_not_understood_sets_the_table_aside_until_it_is_copied_again(
    case: JobCase, spark: SparkSession
) -> None:
    assert case.here(spark).run() is None
    write(case, ["ALTER TABLE t ENGINE = MyISAM", "UPDATE t SET a = 9 WHERE id = 3"])
    failure = case.here(spark).run()
    assert failure is not None
    assert "the table is set aside at" in failure.message
    assert "MyISAM" in failure.detail
    write(case, ["ALTER TABLE t ENGINE = InnoDB"])
    assert resnapshot(case.loaded_config(), only=None, where_key=None, everything=True) == 0
    job = case.here(spark)
    assert job.run() is None
    assert case.differences() == []


@servers("mariadb")
def test_job_that_an_earlier_release_left_failed_at_a_statement_continues(case: JobCase, spark: SparkSession) -> None:
    """Its state is as that release wrote it: a reason, the epoch in progress, and no word of definitions."""
    case.use(schema_changes="stop")
    assert case.here(spark).run() is None
    write(
        case,
        ["UPDATE t SET a = 4 WHERE id = 8", "ALTER TABLE t ADD c INT DEFAULT 6", "UPDATE t SET c = 1 WHERE id = 9"],
    )
    assert case.here(spark).run() is not None
    stored = state_store(case.loaded_config()).load()
    assert stored is not None
    assert stored.state.schema == NO_CHANGES
    case.use(schema_changes="follow")
    assert case.here(spark).run() is None
    assert case.differences() == []
