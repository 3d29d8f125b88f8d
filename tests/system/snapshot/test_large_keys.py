"""Large tables with text and composite keys are cut by guesses, not by a walk, and every row of them arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from tests.system.job_case import JobCase, execute
from vnode_backfill.words.plan import SAMPLED_ROWS

DIGITS = "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 "
DIGITS += "UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
NUMBERS = "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d + 1000000 * h.d AS n FROM "
NUMBERS += ", ".join(f"{DIGITS} {name}" for name in "abcefg") + ", (SELECT 0 AS d UNION SELECT 1) h"
KEYS = {
    "text": ("k VARCHAR(40) PRIMARY KEY, v INT", ("k",), "CONCAT(IF(n % 2, 'Ä-', 'a-'), MD5(n)), n"),
    "composite": ("a INT, b VARCHAR(12), v INT, PRIMARY KEY (a, b)", ("a", "b"), "n % 11, CONCAT('b', n), n"),
}


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("key", KEYS)
def test_every_row_of_a_table_whose_keys_were_guessed_arrives(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession, key: str
) -> None:
    columns, names, row = KEYS[key]
    execute(
        source_server, database, f"CREATE TABLE t ({columns}) CHARACTER SET utf8mb4",
        f"INSERT INTO t SELECT {row} FROM ({NUMBERS}) numbers WHERE n < {SAMPLED_ROWS * 3 // 2}", "ANALYZE TABLE t",
    )  # fmt: skip
    case = JobCase(source_server, tmp_path, database, "t", key=names)
    job = case.here(spark)
    assert job.ranges_planned > 20
    assert job.run() is None, job.failure
    assert case.differences() == []
