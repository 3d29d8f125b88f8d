"""A live job that is restarted starts no JVM before a task needs one, and is exact with and without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from tests.system.job.run.process_tree import jvm_of, kill_jvm, tree_of
from tests.system.job_case import JobCase, Started, execute
from tests.system.tables_case import TablesCase

_SPARK = ("org.apache.spark", "vnode_backfill.spark.daemon")


@pytest.mark.timeout(600)
def test_a_live_job_that_is_restarted_starts_spark_when_a_task_needs_it(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    database = f"lazy_{tmp_path.name.replace('-', '_')}"[:60]
    execute(mariadb_server, None, f"CREATE DATABASE `{database}`")
    with mariadb_server.connect() as connection:
        create_orders_table(connection, 500, 9, database=database, key_step=3)
    case = JobCase(mariadb_server, tmp_path, database)
    case.to_live()
    with case.started("run") as driver:
        _delete(case, driver, 1, left=499)
        # A log begins a new file now and then, which alone needs no task.
        execute(mariadb_server, database, "DELETE FROM orders LIMIT 1", "FLUSH BINARY LOGS")
        _delete(case, driver, 1, left=497)
        execute(mariadb_server, database, "CREATE TABLE other (v LONGTEXT)", "FLUSH BINARY LOGS")
        _delete(case, driver, 1, left=496)
        assert _processes_of_spark(driver) == []
        # A long stretch is read by tasks, whatever is in it.
        execute(mariadb_server, database, "INSERT INTO other SELECT REPEAT('x', 4000000) FROM orders LIMIT 6")
        _delete(case, driver, 1, left=495)
        wait_for(lambda: _has_jvm(driver), "Spark to start", seconds=120)
        kill_jvm(case, driver)
    with case.started("run") as driver:
        _delete(case, driver, 2, left=493)
        case.command("stop")
        driver.wait(0)
    assert case.differences() == []
    execute(mariadb_server, None, f"DROP DATABASE `{database}`")


def test_a_live_job_of_many_tables_that_is_restarted_needs_no_jvm_either(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    database = f"lazy_{tmp_path.name.replace('-', '_')}"[:60]
    made = [f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in ("a", "b")]
    filled = [f"INSERT INTO {name} VALUES (1), (2), (3)" for name in ("a", "b")]
    execute(mariadb_server, None, f"CREATE DATABASE `{database}`")
    execute(mariadb_server, database, *made, *filled)
    case = TablesCase(mariadb_server, tmp_path, database)
    case.to_live()
    with case.started("run") as driver:
        execute(mariadb_server, database, "DELETE FROM a WHERE id = 2", "DELETE FROM b WHERE id = 3")
        for name in ("a", "b"):
            _wait_for_rows(driver, case.target(name), 2)
        # The other table rests, and is looked for in both files.
        execute(mariadb_server, database, "FLUSH BINARY LOGS", "DELETE FROM a WHERE id = 1")
        _wait_for_rows(driver, case.target("a"), 1)
        assert _processes_of_spark(driver) == []
        case.command("stop")
        driver.wait(0)
    assert case.differences_of("a") == case.differences_of("b") == []
    execute(mariadb_server, None, f"DROP DATABASE `{database}`")


def _delete(case: JobCase, driver: Started, rows: int, *, left: int) -> None:
    """Delete so many, and return when the job has applied that."""
    execute(case.server, case.database, f"DELETE FROM orders LIMIT {rows}")
    _wait_for_rows(driver, case.lake, left)


def _wait_for_rows(driver: Started, lake: Path, rows: int) -> None:
    def applied() -> bool:
        driver.check_running()
        return _rows_in(lake) == rows

    wait_for(applied, f"{rows} rows in {lake.name}", seconds=180)


def _rows_in(lake: Path) -> int:
    found = QueryBuilder().register("lake", DeltaTable(str(lake))).execute("SELECT COUNT(*) AS n FROM lake").read_all()
    return int(found.column("n")[0].as_py())


def _processes_of_spark(driver: Started) -> list[str]:
    return [member.command for member in tree_of(driver.pid)[1:] if any(name in member.command for name in _SPARK)]


def _has_jvm(driver: Started) -> bool:
    driver.check_running()
    try:
        return jvm_of(driver.pid).runs
    except ValueError:
        return False
