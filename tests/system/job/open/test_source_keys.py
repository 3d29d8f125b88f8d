"""A source is opened as the file says.

The keys of `mysql` and `zero_dates` reach the table that every reader is made from.
"""

from __future__ import annotations

from pathlib import Path

from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import SqlServer
from tests.system.job_case import JobCase, execute
from vnode_backfill.job.open.source import open_table


def test_table_is_opened_as_the_file_says(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    execute(source_server, database, "CREATE TABLE one (id INT PRIMARY KEY)", "CREATE TABLE two (nr INT PRIMARY KEY)")
    mysql: dict[str, object] = {"server_id_range": "7-19", "visibility_timeout": "3s", "watermark_table": "ops.mark"}
    case = JobCase(source_server, tmp_path, database, "two", settings={"zero_dates": "error"}, mysql=mysql)
    table = open_table(case.loaded_config())
    assert isinstance(table, MySqlTable)
    assert (table.definition.database, table.definition.table, table.definition.key) == (database, "two", ("nr",))
    assert table.server_ids == (7, 19)
    assert (table.visibility_timeout, table.watermark_table, table.zero_dates) == (3.0, "ops.mark", "error")
