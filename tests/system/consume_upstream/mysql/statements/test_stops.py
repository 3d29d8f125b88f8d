"""A statement that changes the table ends a live job with the statement in its reason, however it was sent.

The hint leads on.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from tests.system.job_case import execute
from tests.system.live_job import live_job


def test_table_emptied_by_a_latin1_client_is_empty_in_the_target(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    """On MariaDB under SET STATEMENT as well; both were passed over, and the target kept the rows."""
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
        job.stop()
        assert [note.statement for note in job.state.schema.notes] == [text]
        assert job.differences() == []
