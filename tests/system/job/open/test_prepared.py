"""A job does not begin while transactions are prepared (XA).

Their rows are in the log below its beginning, and visible to no read.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.mysql.positions.prepared import wait_for_prepared
from devkit.mysql import MySqlServer, SqlServer
from tests.system.job_case import COPIER, JobCase, create_copier, execute, reached_live
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.words.errors import PlanRefusedError


def prepare(server: SqlServer, database: str, *statements: str) -> None:
    execute(server, database, "XA START 'waits'", *statements, "XA END 'waits'", "XA PREPARE 'waits'")


def test_prepared_transaction_is_waited_for_with_the_rights_of_a_job(source_server: SqlServer, database: str) -> None:
    create_copier(source_server)
    execute(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    prepare(source_server, database, "INSERT INTO t VALUES (1)")
    with source_server.connect(user=COPIER) as connection:
        with pytest.raises(PlanRefusedError, match="1 XA transactions are prepared"):
            wait_for_prepared(connection, seconds=0.3)
        execute(source_server, database, "XA COMMIT 'waits'")
        wait_for_prepared(connection, seconds=30)


def test_job_begins_and_reads_again_only_when_no_transaction_is_prepared(
    mysql_server: MySqlServer, tmp_path: Path, spark: SparkSession
) -> None:
    """Following the hint of the refusal gives every row.

    So does copying again after a PREPARE that has stopped the job.
    """
    database = "prepared"
    execute(mysql_server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    execute(mysql_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    case = JobCase(mysql_server, tmp_path, database, "t", mysql={"visibility_timeout": "1s"})
    prepare(mysql_server, database, "INSERT INTO t VALUES (3, 3)")
    refused_until_committed(case, spark)
    prepare(mysql_server, database, "UPDATE t SET v = 9 WHERE id = 2")
    failure = case.here(spark).run()
    assert failure is not None
    assert failure.message.startswith("an XA PREPARE touches the table")
    assert resnapshot(case.loaded_config(), only=None, where_key=None, everything=True) == 0
    refused_until_committed(case, spark)
    execute(mysql_server, None, f"DROP DATABASE {database}")


def refused_until_committed(case: JobCase, spark: SparkSession) -> None:
    with pytest.raises(PlanRefusedError, match="XA transactions are prepared") as refused:
        case.here(spark)
    assert "XA COMMIT or XA ROLLBACK ends them" in refused.value.hint
    execute(case.server, case.database, "XA COMMIT 'waits'")
    assert reached_live(case, spark) == []
