"""Whole jobs on real servers whose table is changed by statements: every row of the target is compared at the end.

Each statement meets a job that is live, one that still copies, and one that is stopped. Before and after it there are
writes, by the old columns and by the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from progress.state.schema_state import NO_CHANGES
from tests.system.job.run.schema_change_cases import CHANGES, Change, create_changing_table
from tests.system.job_case import JobCase, JobHere, execute, fetch
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.schema_change import Ended


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
    """A job on a table of three columns, cut into ranges of 100 rows."""
    create_changing_table(server, database, "t")
    return JobCase(server, tmp_path, database, "t", settings={"limits": {"range_rows": 100}})


ONE_OF_EACH_KIND = ("index", "add first with a default", "truncate", "another type", "two in a row")
"""What a statement can do to a job: nothing, a change of the target, an empty table, a new copy, and several.

`test_statement_matrix` has every kind, in every phase, as tables of one job.
"""
each_kind_once = pytest.mark.parametrize("change", ONE_OF_EACH_KIND)


def each_on_one_server() -> pytest.MarkDecorator:
    """Every change on one server, in turns; the other is left to the long tests. Each server is started once."""
    pairs = [
        pytest.param(server, change, marks=() if (place + turn) % 2 == 0 else pytest.mark.long)
        for turn, server in enumerate(("mysql", "mariadb"))
        for place, change in enumerate(ONE_OF_EACH_KIND)
    ]
    return pytest.mark.parametrize(("server", "change"), pairs, indirect=["server"])


def write(case: JobCase, statements: Sequence[str]) -> None:
    execute(case.server, case.database, *statements)


def written(case: JobCase) -> None:
    """Writes by the columns that every version has."""
    key = fetch(case.server, case.database, "SHOW KEYS FROM t WHERE Key_name = 'PRIMARY'")[0][4]
    write(case, [f"DELETE FROM t WHERE {key} % 13 = 0", f"UPDATE t SET a = 5 WHERE {key} % 17 = 0"])


def compare(case: JobCase, change: Change) -> None:
    keys = fetch(case.server, case.database, "SHOW KEYS FROM t WHERE Key_name = 'PRIMARY'")
    case.key = tuple(str(row[4]) for row in keys)
    case.kept_columns = change.kept
    assert case.differences() == []


def check(job: JobHere, copies: int) -> None:
    assert job.failure is None, job.failure
    assert job.copies == copies


@each_on_one_server()
def test_live_job_follows(case: JobCase, spark: SparkSession, change: str) -> None:
    found = CHANGES[change]
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=120)
        written(case)
        write(case, found.statements)
        written(case)
        write(case, found.writes)
    assert job.failure is None, job.failure
    again = case.here(spark)
    again.run()
    assert again.failure is None, again.failure
    assert job.copies + again.copies - 1 == found.copies
    compare(case, found)


@servers("mariadb")
@each_kind_once
def test_stopped_job_follows_when_it_runs_again(case: JobCase, spark: SparkSession, change: str) -> None:
    """The server is ahead of the log by all statements when the job meets the first."""
    found = CHANGES[change]
    assert case.here(spark).run() is None
    written(case)
    write(case, found.statements)
    written(case)
    write(case, found.writes)
    job = case.here(spark)
    check_run(job, found)
    compare(case, found)


@servers("mysql")
@each_kind_once
def test_copying_job_follows(case: JobCase, spark: SparkSession, change: str) -> None:
    """The statement meets a job that has read some ranges, reads some, and has others to read."""
    found = CHANGES[change]
    case.use(limits={"range_rows": 100, "rows_per_second": 700})
    job = case.here(spark)
    with job.running():
        job.wait_until_read(3)
        written(case)
        write(case, found.statements)
        written(case)
        write(case, found.writes)
    assert job.failure is None, job.failure
    assert job.copies == found.copies
    compare(case, found)


def check_run(job: JobHere, change: Change) -> None:
    assert job.run() is None, job.failure
    assert job.copies == change.copies


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


@servers("mysql", "mariadb")
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
def test_table_that_is_dropped_while_it_is_copied_ends_the_job(case: JobCase, spark: SparkSession) -> None:
    case.use(limits={"range_rows": 100, "rows_per_second": 300})
    job = case.here(spark)
    with job.running():
        job.wait_until_read(2)
        write(case, ["SET timestamp = UNIX_TIMESTAMP() - 120", "DROP TABLE t"])
    assert job.failure is None, job.failure
    assert job.ending == Ended("dropped")


@servers("mysql", "mariadb")
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
