"""A statement comes while a range is read: rows that were read on either side of it have the same columns in the end.

After ADD COLUMN the rest of the range can be read as its beginning was, after RENAME COLUMN the server refuses that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from tests.system.job_case import execute
from tests.system.live_job import live_job
from vnode_backfill.commands.requests import throttle

STATEMENTS = {
    "add": (
        "ALTER TABLE orders ADD COLUMN c INT NOT NULL DEFAULT 5 FIRST",
        "UPDATE orders SET c = id WHERE id % 2 = 0",
    ),
    "rename": (
        "ALTER TABLE orders RENAME COLUMN score TO points",
        "UPDATE orders SET points = id WHERE id % 2 = 0",
    ),
}


@pytest.mark.parametrize("statements", STATEMENTS.values(), ids=STATEMENTS)
@pytest.mark.parametrize("source_server", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_column_that_changes_in_the_middle_of_the_only_range_is_whole(
    source_server: SqlServer, tmp_path: Path, spark: SparkSession, statements: tuple[str, ...]
) -> None:
    limits: dict[str, object] = {"limits": {"range_rows": 10_000, "rows_per_second": 100}}
    with live_job(spark, source_server, tmp_path, rows=1500, settings=limits) as job:
        job.start()
        job.until(lambda: bool(job.reports) and 0 < job.shown().observed.in_hand.rows < 1000, "a part is read")
        assert (job.shown().ranges_total, job.shown().ranges, job.shown().observed.in_hand.ranges) == (1, 0, 0)
        execute(
            source_server, job.case.database, "UPDATE orders SET score = 1 WHERE id % 4 = 0", *statements,
            "DELETE FROM orders WHERE id % 7 = 0",
        )  # fmt: skip
        assert job.state.rows == 0, "the range was still being read"
        job.ask(lambda config: throttle(config, rows_per_second=5000))
        job.until_live()
        job.stop()
        assert [note.effect for note in job.state.schema.notes] == ["the columns follow"]
        job.assert_equal()
