"""A statement that changes the table is noticed, however its client sent it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from tests.system.job_case import execute
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
