"""`verify` obeys the limits of the job.

It waits while the source is busy and between its rounds, and finds the same in many rounds as in one.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, execute, reached_live

ROWS, ROWS_PER_SECOND = 1500, 75
AT_LEAST = ROWS / ROWS_PER_SECOND - 5 - 3
"""Seconds: a round of five seconds' worth is not waited for; three more are for rows that only a plan has counted."""


def test_verify_waits_while_the_flag_file_is_there_and_then_compares_everything_in_rounds(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    database = "verify_limits"
    execute(mariadb_server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    with mariadb_server.connect() as connection:
        create_orders_table(connection, ROWS, 5, database=database)
    case = JobCase(mariadb_server, tmp_path, database, settings={"limits": {"range_rows": 200}})
    assert reached_live(case, spark) == []
    flag = tmp_path / "hold"
    flag.touch()
    checks = {"every": "100ms", "flag_file": str(flag)}
    case.use(limits={"range_rows": 200, "rows_per_second": ROWS_PER_SECOND, "throttle": checks})
    with case.started("verify") as verify:
        wait_for(
            lambda: f"verify waits: the flag file {flag} exists" in verify.output.read_text(),
            "verify waits", seconds=300, state=verify.output.read_text,
        )  # fmt: skip
        verify.check_running()
        flag.unlink()
        began = time.monotonic()
        printed = verify.wait(0)
        assert time.monotonic() - began > AT_LEAST
    assert "verify continues" in printed
    assert "verified: 1,500 rows" in printed
