"""A live job whose table is changed by random statements between writes: every row of the target is compared at the end.

The seed is printed; `SEED=… pytest -m long` repeats a run. Statements that the server refuses are passed over. Some
need a new copy, some empty the table, most are followed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, execute, fetch
from vnode_backfill.job.run.loop import Until

TYPES = ("INT", "BIGINT", "VARCHAR(20)", "VARCHAR(40)", "DECIMAL(8,2)", "DECIMAL(12,2)", "FLOAT", "DOUBLE", "DATE")
DEFAULTS = {"INT": "7", "BIGINT": "8", "VARCHAR(20)": "'new'", "VARCHAR(40)": "'newer'", "DECIMAL(8,2)": "1.25"}


@pytest.fixture(params=["mysql-FULL", "mysql-MINIMAL", "mariadb-FULL", "mariadb-NO_LOG"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    flavour, metadata = request.param.split("-")
    make = {"mysql": MySqlServer, "mariadb": MariaDbServer}[flavour]
    with make({"binlog-row-metadata": metadata}) as started:
        yield started


class RandomChanges:
    """Draws statements on the table `t` and writes by the columns that it has."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def statement(self, columns: list[str]) -> str:
        pick = self._random
        self._number += 1
        name, other, kind = f"c{self._number}", pick.choice(columns), pick.choice(TYPES)
        default = f" NOT NULL DEFAULT {DEFAULTS[kind]}" if kind in DEFAULTS and pick.random() < 0.5 else ""
        place = pick.choice(("", " FIRST", f" AFTER {other}"))
        return pick.choice((
            f"ALTER TABLE t ADD {name} {kind}{default}{place}",
            f"ALTER TABLE t ADD {name} {kind}{place}, ADD INDEX i{self._number} ({other})",
            f"ALTER TABLE t DROP {other}",
            f"ALTER TABLE t CHANGE {other} {name} {kind}",
            f"ALTER TABLE t RENAME COLUMN {other} TO {name}",
            f"ALTER TABLE t MODIFY {other} {kind}{place}",
            f"CREATE INDEX i{self._number} ON t ({other})",
            f"ALTER TABLE t COMMENT = 'number {self._number}'",
            "ANALYZE TABLE t",
            "TRUNCATE TABLE t" if pick.random() < 0.2 else f"ALTER TABLE t ADD {name} {kind}",
        ))  # fmt: skip

    def writes(self, columns: list[str]) -> list[str]:
        first = self._random.randrange(100_000)
        column = self._random.choice(columns)
        keys = ", ".join(f"({first + number})" for number in range(5))
        return [
            f"INSERT IGNORE INTO t (id) VALUES {keys}",
            f"UPDATE IGNORE t SET {column} = NULL WHERE id % 11 = {first % 11}",
            f"DELETE FROM t WHERE id % 97 = {first % 97}",
        ]


def columns_of(case: JobCase) -> list[str]:
    rows = fetch(case.server, case.database, "SHOW COLUMNS FROM t")
    return [str(row[0]) for row in rows if row[0] != "id"]


def tried(case: JobCase, statement: str) -> bool:
    """Whether the server has carried the statement out."""
    try:
        execute(case.server, case.database, "SET SESSION sql_mode = ''", statement)
    except pymysql.err.Error:
        return False
    return True


@pytest.mark.long
def test_random_statements_between_writes_leave_no_difference(
    server: SqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}")
    execute(
        server, None, "CREATE DATABASE randomly", "CREATE TABLE randomly.t (id INT PRIMARY KEY, a INT, b VARCHAR(20))",
        "INSERT INTO randomly.t VALUES (1, 1, 'one'), (2, 2, 'two'), (50000, NULL, NULL)",
    )  # fmt: skip
    case = JobCase(server, tmp_path, "randomly", "t", settings={"dropped_columns": "drop"})
    changes = RandomChanges(seed)
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=120)
        done = 0
        while done < 100:
            columns = columns_of(case)
            if len(columns) < 2:
                done += tried(case, f"ALTER TABLE t ADD more{done} INT, ADD rest{done} VARCHAR(20)")
                continue
            for write in changes.writes(columns):
                tried(case, write)
            done += tried(case, changes.statement(columns))
    assert job.failure is None, job.failure
    again = case.here(spark)
    assert again.run() is None, f"seed {seed}: {again.failure}"
    assert case.differences() == [], f"seed {seed}"
