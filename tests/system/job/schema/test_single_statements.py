"""`executor: single` lives through statements on its table: while it walks, while it is stopped, and live."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from tests.system.job.run.process_tree import until_copying
from tests.system.job_case import JobCase, execute

SLOWLY: dict[str, object] = {"rows_per_second": 300, "backoff": "200ms"}


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    execute(
        source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20)) CHARACTER SET utf8mb4",
        "INSERT INTO t SELECT n, n * 2, CONCAT('row ', n) FROM "
        "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 900) SELECT n FROM k) k",
    )  # fmt: skip
    settings: dict[str, object] = {
        "executor": "single",
        "limits": SLOWLY,
        "epoch": {"backfill": "300ms", "live": "100ms"},
    }
    return JobCase(source_server, tmp_path, database, "t", settings=settings)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source_server", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_walk_lives_through_statements(case: JobCase) -> None:
    with case.started("run", "--until", "live") as driver:
        until_copying(case, driver)
        execute(
            case.server, case.database, "UPDATE t SET a = 1 WHERE id % 7 = 0", "CREATE INDEX i ON t (a)",
            "ALTER TABLE t ADD c INT NOT NULL DEFAULT 7", "UPDATE t SET c = 5 WHERE id % 11 = 0",
            "DELETE FROM t WHERE id % 13 = 0",
        )  # fmt: skip
        case.command("throttle", "--off")
        driver.wait(0)
    assert case.differences() == []
    execute(case.server, case.database, "TRUNCATE t", "INSERT INTO t (id, a) VALUES (5, 5), (6, 6)")
    case.run("--until", "live")
    assert case.differences() == []
    with case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        execute(
            case.server, case.database, "ALTER TABLE t CHANGE b bb VARCHAR(40)", "UPDATE t SET bb = 'later'",
            "INSERT INTO t (id, a, bb) VALUES (7, 7, 'new')",
        )  # fmt: skip
        wait_for(lambda: not case.differences(), "the statement to be followed", seconds=180, state=case.status)
        driver.send(signal.SIGTERM)
        driver.wait(0)
