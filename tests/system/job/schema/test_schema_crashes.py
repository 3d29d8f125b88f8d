"""Kills a real driver with -9 around a statement: nothing is lost, nothing is followed twice, and the next run goes on.

The job is live when its table is changed. It is killed while it follows, run again, and compared by `verify` and by
other code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.job_case import JobCase, execute

CASES = (
    ("mysql", "ALTER TABLE t ADD c INT NOT NULL DEFAULT 7", "before:ChangeSink"),
    ("mariadb", "ALTER TABLE t MODIFY a VARCHAR(12)", "before:RenewJob"),
)
"""A change of the target, and a new copy. `test_statement_crashes` has every seam, for a job of many tables."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, SqlServer]]:
    with MySqlServer({}) as mysql, MariaDbServer({}) as mariadb:
        yield {"mysql": mysql, "mariadb": mariadb}


@pytest.mark.parametrize(("server", "statement", "seam"), CASES)
def test_job_killed_around_a_statement_goes_on(
    servers: dict[str, SqlServer], tmp_path: Path, server: str, statement: str, seam: str
) -> None:
    source = servers[server]
    execute(
        source, None, "DROP DATABASE IF EXISTS killed", "CREATE DATABASE killed",
        "CREATE TABLE killed.t (id INT PRIMARY KEY, a INT, b VARCHAR(20))",
        "INSERT INTO killed.t SELECT n, n * 2, CONCAT('row ', n) FROM "
        "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 900) SELECT n FROM k) k",
    )  # fmt: skip
    case = JobCase(source, tmp_path, "killed", "t", settings={"limits": {"range_rows": 100}})
    case.to_live()
    writes = (
        "UPDATE t SET a = 5 WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        "REPLACE INTO t (id) VALUES (5000)",
    )
    execute(source, "killed", *writes, statement, *writes)
    case.run("--until", "live", kill=seam)
    execute(source, "killed", "UPDATE t SET b = 'after the kill' WHERE id % 13 = 0")
    case.to_live()
    assert case.differences() == []
    case.command("verify")
