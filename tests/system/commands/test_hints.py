"""What a person is told when the source says no, and that following it helps.

Made on a real server, followed by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.mysql.connection import TABLE_GONE_HINT, SourceAddress, connect, source_errors
from devkit.lake import read_lake
from devkit.mysql import MySqlServer, SqlServer
from devkit.process import free_ports
from progress.state.backfill_state import Failure
from tests.system.job_case import COPIER, JobCase, create_copier, execute
from tests.system.live_job import LiveJob, live_job
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.words.errors import SchemaChangedError, SourceError, SourceLostError


def test_server_that_is_not_there_is_named_with_what_to_check() -> None:
    (port,) = free_ports()
    with pytest.raises(SourceLostError, match=f"connection lost while connecting to root@127.0.0.1:{port}") as raised:
        connect(SourceAddress("127.0.0.1", port, "root"))
    assert f"Check that mysql.host (127.0.0.1) and mysql.port ({port}) are those of the server" in raised.value.hint


def test_wrong_password_names_the_account_and_the_keys(source_server: SqlServer) -> None:
    execute(source_server, None, "CREATE USER 'clerk'@'%' IDENTIFIED BY 'right'")
    try:
        for password, told in (("wrong", "(using password: YES)"), ("", "(using password: NO)")):
            with pytest.raises(SourceError, match="the source denied connecting to clerk@") as raised:
                connect(SourceAddress(source_server.host, source_server.port, "clerk", password))
            assert "'clerk'@'" in raised.value.detail
            assert told in raised.value.detail
            for word in ("mysql.user", "mysql.password_env", "mysql.password_file", "using password: NO"):
                assert word in raised.value.hint
        connect(SourceAddress(source_server.host, source_server.port, "clerk", "right")).close()
    finally:
        execute(source_server, None, "DROP USER 'clerk'@'%'")


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM test_gone.t", "SELECT * FROM mysql.gone", "DROP TABLE mysql.gone", "USE test_gone"]
)
def test_table_that_is_not_there_is_named_with_what_may_have_happened_to_it(
    source_server: SqlServer, statement: str
) -> None:
    address = SourceAddress(source_server.host, source_server.port, source_server.user)
    with (
        connect(address, read_only=False) as connection,
        connection.cursor() as cursor,
        pytest.raises(SchemaChangedError) as raised,
        source_errors("asking"),
    ):
        cursor.execute(statement)
    assert raised.value.message == "a table or database is not there any more: the source refused asking"
    assert "gone" in raised.value.detail
    assert raised.value.hint == TABLE_GONE_HINT


def test_job_continues_after_what_stopped_it_was_put_right_and_everything_was_asked_for_again(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    """A prepared transaction, then an update that holds a part of a JSON value."""
    with live_job(spark, mysql_server, tmp_path, rows=900) as job:
        job.start()
        job.until(lambda: job.state.rows > 0, "the first rows")
        write(job, "XA START 'x1'", "DELETE FROM orders ORDER BY id LIMIT 1", "XA END 'x1'", "XA PREPARE 'x1'")
        told = failed(job)
        assert told.message.startswith("an XA PREPARE touches the table")
        assert "XA RECOVER lists it, XA COMMIT or XA ROLLBACK ends it" in told.hint
        execute(mysql_server, None, "XA COMMIT 'x1'")
        read_again(job)
        partial = "UPDATE orders SET doc = JSON_SET(doc, '$.n', 5) WHERE doc IS NOT NULL"
        write(job, "SET SESSION binlog_row_value_options = PARTIAL_JSON", partial)
        told = failed(job)
        assert told.message.startswith("an update of the table holds a part of a JSON value")
        assert "SET GLOBAL binlog_row_value_options = ''" in told.hint
        read_again(job)
        write(job, partial, "DELETE FROM orders ORDER BY id LIMIT 1")
        job.stop()
        job.assert_equal()


def test_generated_invisible_key_that_the_server_hides_is_a_key(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    database = "hidden_key"
    create_copier(mysql_server)
    execute(mysql_server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    execute(
        mysql_server, database, "SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE t (v INT)",
        "INSERT INTO t VALUES (1), (1), (3)", "SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF",
    )  # fmt: skip
    case = JobCase(mysql_server, tmp_path, database, "t", ("my_row_id",), mysql={"user": COPIER})
    try:
        assert case.here(spark).run() is None
        execute(mysql_server, database, "INSERT INTO t VALUES (4)", "DELETE FROM t WHERE v = 1 LIMIT 1")
        assert case.here(spark).run() is None
    finally:
        execute(mysql_server, None, "SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
    assert case.differences() == []
    assert sorted(read_lake(case.lake).column("v").to_pylist()) == [1, 3, 4]


def failed(job: LiveJob) -> Failure:
    job.until_ended()
    assert job.failure is not None
    assert "resnapshot --all" in job.failure.hint or "Create the job again" in job.failure.hint
    return job.failure


def read_again(job: LiveJob) -> None:
    """As the hint says; the job is live afterwards and equal to its source."""
    assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
    job.start()
    job.until_live()
    assert not job.differences()


def write(job: LiveJob, *statements: str) -> None:
    with job.case.server.connect(job.case.database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
