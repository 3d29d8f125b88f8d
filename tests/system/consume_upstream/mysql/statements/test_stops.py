"""A statement that changes the table is noticed, however its client sent it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, SqlServer
from tests.system.job_case import JobCase, execute, reached_live
from tests.system.live_job import live_job
from vnode_backfill.commands.resnapshot import resnapshot


def test_table_emptied_by_a_latin1_client_is_empty_in_the_target(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    """On MariaDB under SET STATEMENT as well; both were passed over, and the target kept the rows.

    Then by a statement that was prepared in a character set which this client cannot decode, and executed in another
    one, which is the one that the log names. It can be read in several ways, so the table is copied again.
    """
    prefix = "SET STATEMENT max_statement_time=60 FOR " if source_server.flavour == "mariadb" else ""
    text = f"{prefix}TRUNCATE bücher"
    with live_job(spark, source_server, tmp_path, rows=600) as job:
        case = job.case
        execute(source_server, case.database, "RENAME TABLE orders TO bücher")
        case.table = "bücher"
        job.start().until_live()
        with source_server.connect(case.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES latin1")
            cursor.execute(text.encode("latin1"))  # type: ignore[call-overload] # sent as it is
        job.until(lambda: job.committed[-1].schema.in_sink == 1, "the target has followed")
        assert [note.statement for note in job.committed[-1].schema.notes] == [text]
        row = "INSERT INTO bücher (id, big, amount, created, state, flag) VALUES (1, 1, 1, '2024-01-01', 'new', 0)"
        said = b"TRUNCATE b\x81cher".hex()
        execute(
            source_server, case.database, row, "SET NAMES keybcs2", f"SET @said = x'{said}'", "PREPARE s FROM @said",
            "SET NAMES latin1", "EXECUTE s",
        )  # fmt: skip
        job.until_ended()
        assert job.failure is not None
        assert "the statement can be read in several ways" in job.failure.message
        assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
        job.start().until_live()
        job.stop()
        assert job.differences() == []


def table_case(server: SqlServer, folder: Path, table: str) -> JobCase:
    """The job of a table of 40 rows."""
    database = f"stops_{server.flavour}"
    execute(
        server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}", f"USE {database}",
        f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT)",
        f"INSERT INTO {table} VALUES {', '.join(f'({number}, {number})' for number in range(40))}",
    )  # fmt: skip
    return JobCase(server, folder, database, table, settings={"vnodes": 4, "limits": {"range_rows": 10}})


def follow(case: JobCase, spark: SparkSession, statements: Sequence[str], charset: str = "utf8mb4") -> int:
    """How many copies were begun when the job has met the statements, sent by a client of this character set."""
    with case.server.connect(case.database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET NAMES {charset}")
        for statement in statements:
            cursor.execute(statement.encode("utf-8" if charset == "utf8mb4" else charset))  # type: ignore[call-overload]
    job = case.here(spark)
    assert job.run() is None
    assert case.differences() == []
    return job.copies


def test_statements_under_set_statement_have_the_effect_that_they_have_alone(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    case, under = table_case(mariadb_server, tmp_path, "t"), "SET STATEMENT max_statement_time=60 FOR"
    assert reached_live(case, spark) == []
    added = (f"{under} ALTER TABLE t ADD c INT DEFAULT 4", "UPDATE t SET c = 5 WHERE id % 3 = 0")
    assert follow(case, spark, added) == 1
    exchanged = (
        "CREATE TABLE other LIKE t", "INSERT INTO other SELECT id + 20, a, 6 FROM t",
        f"{under} RENAME TABLE t TO gone, other TO t", "DELETE FROM t WHERE id % 5 = 0",
    )  # fmt: skip
    assert follow(case, spark, exchanged) == 2
    replaced = (f"{under} CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 7), (2, 8)")
    assert follow(case, spark, replaced) == 2


def test_statements_of_a_gbk_client_are_read_as_it_wrote_them(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    """The second byte of one sign of the name is a backslash, and that of the other one a backquote."""
    case = table_case(source_server, tmp_path, "`t誠乣`")
    case.table = "t誠乣"
    assert reached_live(case, spark) == []
    added = ("ALTER TABLE `t誠乣` ADD c VARCHAR(9) DEFAULT '誠'", "UPDATE t誠乣 SET a = -1, c = '乣' WHERE id % 3 = 0")
    assert follow(case, spark, added, "gbk") == 1
    emptied = ("TRUNCATE t誠乣", "INSERT INTO t誠乣 VALUES (7, 7, '誠乣')")
    assert follow(case, spark, emptied, "gbk") == 1
