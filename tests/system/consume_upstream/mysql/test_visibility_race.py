"""A row that is logged and not yet visible while ranges are read is never lost. A copy that trusts the log's end loses it.

Semi-synchronous replication without a replica holds a commit back after it was logged, for as long as the test wants. So the race that
takes luck elsewhere is certain here: the log says the change happened, every read says it did not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.log.offset import Visibility, VisibleAt
from consume_upstream.mysql.positions.offsets import LogQuestions
from devkit.comparer import DifferenceKind
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from tests.system.job_case import JobCase, execute, fetch, reached_live

NEVER = "3600000"
MYSQL = {
    "plugin-load-add": "semisync_source.so",
    "rpl-semi-sync-source-wait-point": "AFTER_SYNC",
    "rpl-semi-sync-source-wait-no-replica": "ON",
    "rpl-semi-sync-source-timeout": NEVER,
}
MARIADB = {
    "rpl-semi-sync-master-wait-point": "AFTER_SYNC",
    "rpl-semi-sync-master-wait-no-slave": "ON",
    "rpl-semi-sync-master-timeout": NEVER,
}
CHANGES = (
    "INSERT INTO t VALUES (55, 'in a gap'), (9999, 'above the plan'), (-9, 'below the plan')",
    "UPDATE t SET v = 'changed' WHERE id = 100",
    "DELETE FROM t WHERE id = 200",
    "UPDATE t SET id = 305 WHERE id = 300",
    "UPDATE t SET id = 405 WHERE id = 1800",
)


@dataclass(frozen=True, slots=True)
class StallingServer:
    """A server whose commits can be held back between the log and the readers."""

    server: SqlServer
    switch: str

    @contextmanager
    def stalled(self, *statements: str) -> Iterator[None]:
        """The statements are one transaction, logged and not visible until the end of the block."""
        before, value = self._end_of_log(), self._seen()
        execute(self.server, None, f"SET GLOBAL {self.switch} = ON")
        writer = threading.Thread(target=self._commit, args=(statements,))
        writer.start()
        try:
            wait_for(lambda: self._end_of_log() != before, "the transaction to be logged")
            yield
            assert self._seen() == value, "the transaction was not held back"
        finally:
            execute(self.server, None, f"SET GLOBAL {self.switch} = OFF")
            writer.join()
        assert self._seen() != value

    def _commit(self, statements: tuple[str, ...]) -> None:
        execute(self.server, "race", "START TRANSACTION", *statements, "COMMIT")

    def _end_of_log(self) -> object:
        return fetch(self.server, None, "SHOW MASTER STATUS")[0][:2]

    def _seen(self) -> object:
        return fetch(self.server, "race", "SELECT COUNT(*), SUM(id) FROM t")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def stalling(request: pytest.FixtureRequest) -> Iterator[StallingServer]:
    if request.param == "mysql":
        with MySqlServer(MYSQL) as server:
            yield StallingServer(server, "rpl_semi_sync_source_enabled")
    else:
        with MariaDbServer(MARIADB) as server:
            yield StallingServer(server, "rpl_semi_sync_master_enabled")


@pytest.fixture
def case(stalling: StallingServer, tmp_path: Path) -> Iterator[JobCase]:
    """A job on 200 rows with gaps between them, in 10 ranges."""
    server = stalling.server
    execute(server, None, "CREATE DATABASE race")
    execute(server, "race", "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(30))")
    execute(server, "race", "INSERT INTO t VALUES " + ", ".join(f"({10 * n}, 'row {n}')" for n in range(200)))
    yield JobCase(server, tmp_path, "race", "t", settings={"limits": {"range_rows": 20}})
    execute(server, None, "DROP DATABASE race")


def copy_during_a_stall(stalling: StallingServer, case: JobCase, spark: SparkSession, *, planned_before: bool) -> None:
    """Plan and read every range while a transaction is logged and not visible.

    `planned_before` it, or within its stall.
    """
    with ExitStack() as stall:
        job = case.here(spark) if planned_before else None
        stall.enter_context(stalling.stalled(*CHANGES))
        job = job or case.here(spark)
        assert job.run() is None


@pytest.mark.parametrize("planned_before", [True, False], ids=["planned before", "planned within"])
def test_transaction_logged_and_not_visible_while_ranges_are_read_arrives(
    stalling: StallingServer, case: JobCase, spark: SparkSession, planned_before: bool
) -> None:
    copy_during_a_stall(stalling, case, spark, planned_before=planned_before)
    assert reached_live(case, spark) == []


def trust_the_end_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written counts as visible: the mistake that the tests above must be able to find."""

    def visible(questions: LogQuestions) -> Visibility:
        return VisibleAt(questions.written_offset())

    monkeypatch.setattr(LogQuestions, "visible_offset", visible)
    monkeypatch.setattr(LogQuestions, "first_offset", LogQuestions.written_offset)


def test_copy_that_takes_the_end_of_the_log_for_visible_loses_the_transaction(
    stalling: StallingServer, case: JobCase, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust_the_end_of_the_log(monkeypatch)
    copy_during_a_stall(stalling, case, spark, planned_before=True)
    found = {(difference.kind, difference.key) for difference in reached_live(case, spark)}
    changed = {(DifferenceKind.DIFFERENT, (100,))}
    extra = {(DifferenceKind.EXTRA, (key,)) for key in (200, 300, 1800)}
    assert found == changed | extra | {(DifferenceKind.MISSING, (key,)) for key in (55, 305, 405)}


def test_copy_that_begins_at_the_end_of_the_log_loses_rows_outside_the_plan_too(
    stalling: StallingServer, case: JobCase, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust_the_end_of_the_log(monkeypatch)
    copy_during_a_stall(stalling, case, spark, planned_before=False)
    missing = {found.key for found in reached_live(case, spark) if found.kind is DifferenceKind.MISSING}
    assert missing == {(55,), (305,), (405,), (-9,), (9999,)}


@pytest.mark.parametrize("stalling", ["mariadb"], indirect=True)
def test_broken_law_stops_the_job_with_its_reason_in_the_state(
    stalling: StallingServer, case: JobCase, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogQuestions, "first_offset", LogQuestions.written_offset)
    with stalling.stalled(*CHANGES):
        failure = case.here(spark).run()
    assert failure is not None
    assert "visibility would fall" in failure.message
    assert case.report().failure == failure


def test_traffic_whose_commits_are_slow_to_become_visible_loses_nothing(
    mysql_server: MySqlServer, tmp_path: Path, spark: SparkSession
) -> None:
    """Each commit of MySQL waits between log and engine; with several writers some row is always in between."""
    execute(mysql_server, None, "CREATE DATABASE slow")
    with mysql_server.connect() as connection:
        table = create_orders_table(connection, 3_000, 2, database="slow", key_step=3)
    limits = {"range_rows": 100, "rows_per_second": 1_000}
    case = JobCase(mysql_server, tmp_path, "slow", settings={"limits": limits})
    execute(mysql_server, None, "SET GLOBAL binlog_group_commit_sync_delay = 1000000")
    try:
        job = case.here(spark)
        with ExitStack() as writers:
            for seed in range(6):
                writers.enter_context(Workload(lambda: mysql_server.connect("slow"), table, seed=seed, large_rows=100))
            assert job.run() is None
    finally:
        execute(mysql_server, None, "SET GLOBAL binlog_group_commit_sync_delay = 0")
    assert reached_live(case, spark) == []
    execute(mysql_server, None, "DROP DATABASE slow")
