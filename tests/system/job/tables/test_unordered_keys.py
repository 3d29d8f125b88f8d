"""A table whose keys only the server can order is one range of a job of many tables, if it is small enough."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from tests.system.job.tables.many_tables import Here, Shape, fresh
from tests.system.job_case import execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.tables.parts import part_config
from vnode_backfill.words.table_name import TableName


def test_small_tables_with_unordered_keys_are_copied_and_followed(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    case = fresh(source_server, database, tmp_path, limits={"range_rows": 40})
    execute(
        source_server, database, "CREATE TABLE kinds (kind ENUM('b', 'a', 'c'), n INT, v INT, PRIMARY KEY (kind, n))",
        "CREATE TABLE marks (m SET('x', 'y', 'z') PRIMARY KEY, v INT)", "CREATE TABLE numbers (d DOUBLE PRIMARY KEY, v INT)",
        "CREATE TABLE long_one (kind ENUM('b', 'a', 'c'), n INT, PRIMARY KEY (kind, n))",
        "INSERT INTO kinds VALUES ('b', 1, 1), ('a', 1, 2), ('c', 2, 3)", "INSERT INTO marks VALUES ('', 1), ('x,y', 2), ('z', 3)",
        "INSERT INTO numbers VALUES (0.1, 1), (-2.5, 2)",
        "INSERT INTO long_one SELECT 'a', n FROM (WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k "
        "WHERE n < 400) SELECT n FROM k) k", "ANALYZE TABLE long_one, kinds, marks, numbers",
    )  # fmt: skip
    for name, key in (("kinds", ("kind", "n")), ("marks", ("m",)), ("numbers", ("d",))):
        case.shapes[name] = Shape("", key, "")
    with Here(case, spark).running() as here:
        assert list(here.opened.aside) == [f"{database}.long_one"]
        assert "such a table is copied as one range" in str(here.opened.aside[f"{database}.long_one"])
        here.until_live()
        assert [len(here.table(name).table.opened.plan.ranges) for name in case.shapes] == [1, 1, 1]
        execute(
            source_server, database, "UPDATE kinds SET kind = 'c' WHERE n = 1 AND kind = 'a'", "DELETE FROM marks WHERE m = 'z'",
            "INSERT INTO marks VALUES ('y,z', 9)", "UPDATE numbers SET d = d + 1", "ALTER TABLE kinds ADD w INT DEFAULT 3",
            "INSERT INTO kinds VALUES ('a', 7, 7, 7)",
        )  # fmt: skip
        wait_for(lambda: case.wrong() == {}, "changes are followed", seconds=120, state=here.shown)
        assert here.failures == {}
    execute(source_server, database, "DELETE FROM kinds WHERE n = 2")
    part = part_config(case.loaded_config(), TableName(database, "kinds"))
    assert resnapshot(part, only=None, where_key=None, everything=True) == 0
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}
