"""A job from Python on a real server: in a session that lives on, with values for results and errors for failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.spark import REPOSITORY
from progress.state.report import JobPhase
from tests.system.job_case import JobCase, execute
from vnode_backfill import Backfill
from vnode_backfill.words.errors import BackfillError, PlanRefusedError

ROWS = 2_000
_LIVE = (JobPhase.STOPPED, True)


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[JobCase]:
    rows = ", ".join(f"({number}, 'x')" for number in range(ROWS))
    execute(
        mysql_server, None, "DROP DATABASE IF EXISTS door", "CREATE DATABASE door",
        "CREATE TABLE door.orders (id INT PRIMARY KEY, v VARCHAR(9))", f"INSERT INTO door.orders VALUES {rows}",
    )  # fmt: skip
    yield JobCase(mysql_server, tmp_path, "door", settings={"limits": {"range_rows": 500}})
    execute(mysql_server, None, "DROP DATABASE door")


def test_the_documented_example_copies_a_table_and_leaves_the_session_alive(
    case: JobCase, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.DOTALL)
    exec(compile(example, "docs/python.md", "exec"), {"path": case.config, "spark": spark})
    printed = capfd.readouterr()
    planned, ended = printed.out.splitlines()
    # The server estimates how many rows its table has: 1,999 were seen, too.
    assert re.fullmatch(r"door\.orders about (1,9|2,0)\d\d rows", planned)
    assert ended == f"stopped {ROWS}"
    assert printed.err == ""
    assert case.differences() == []
    assert spark.range(3).count() == 3


def test_a_job_of_arguments_continues_and_says_how_far_it_is(
    case: JobCase, spark: SparkSession, tmp_path: Path
) -> None:
    server = case.server
    mysql = {"host": server.host, "port": server.port, "user": server.user, "database": "door", "table": "orders"}
    job = Backfill(
        job="case", mysql=mysql, sink={"delta": {"path": str(case.lake)}}, workers=2, vnodes=16, ui={"port": 0},
        state={"path": f"{tmp_path}/state"}, epoch={"backfill": "1s", "live": "200ms"}, limits={"range_rows": 500},
    )  # fmt: skip
    first = job.run(spark=spark)
    assert (first.ranges_total, len(first.vnodes)) == (4, 16)
    execute(case.server, "door", "INSERT INTO orders VALUES (-1, 'new')", "DELETE FROM orders WHERE id = 7")
    assert job.run(spark=spark).epoch > first.epoch
    assert Backfill.from_yaml(case.config).status() == job.status(), "a file that says the same means the same job"
    assert job.status().phase is JobPhase.STOPPED
    assert case.differences() == []
    assert job.verify(spark=spark).equal


def test_a_refused_table_is_a_value_of_plan_and_an_error_of_run(case: JobCase, spark: SparkSession) -> None:
    execute(case.server, "door", "CREATE TABLE keyless (v INT)")
    job = Backfill.from_yaml(case.config, **{"mysql.table": "keyless"})
    (table,) = job.plan().tables
    assert table.is_refused
    with pytest.raises(PlanRefusedError, match="cannot be copied exactly"):
        job.run(spark=spark)
    assert spark.range(3).count() == 3


def test_a_job_that_fails_raises_why(case: JobCase, spark: SparkSession) -> None:
    case.use(schema_changes="stop")
    job = Backfill.from_yaml(case.config)
    job.run(spark=spark)
    execute(case.server, "door", "ALTER TABLE orders ADD COLUMN c INT")
    with pytest.raises(BackfillError, match="ADD COLUMN") as caught:
        job.run(spark=spark)
    assert "resume" in caught.value.hint
    assert job.status().failure is not None
    assert spark.range(3).count() == 3


def test_many_tables_are_run_beside_the_main_thread_and_one_that_is_set_aside_is_an_error(
    case: JobCase, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    execute(
        case.server, "door", "CREATE TABLE keyless (v INT)", "CREATE TABLE items (id INT PRIMARY KEY, v INT)",
        "INSERT INTO items VALUES (1, 1), (2, 2)",
    )  # fmt: skip
    case.mysql = {"tables": ["door.*"], "database": None, "table": None}
    case.use(sink={"delta": {"path": f"{case.folder}/lake/{{table}}"}})
    job = Backfill.from_yaml(case.config)
    with ThreadPoolExecutor(1) as notebook:
        error = notebook.submit(lambda: job.run(until="live", spark=spark)).exception()
        assert isinstance(error, BackfillError)
        assert error.message == "job case has ended without door.keyless"
        assert error.detail.startswith("door.keyless: the source cannot be copied exactly")
        assert "door.keyless has neither a primary key nor" in error.detail
        assert "fix: ALTER TABLE `door`.`keyless` ADD COLUMN" in error.detail
        assert error.hint == "Apply each fix and run `vnode-backfill plan` again."
        found = {table.name: (table.phase, table.live) for table in job.status().tables}
        assert found == {"door.orders": _LIVE, "door.items": _LIVE, "door.keyless": ("set aside", False)}
        assert not job.verify(spark=spark).equal, "a table that is set aside is not compared"
        chosen = job.verify("door.items", "door.ord*", spark=spark)
        assert (chosen.equal, chosen.text.splitlines()[-1]) == (
            True, f"verified: {ROWS + 2:,} rows in 2 tables, 0 differences",
        )  # fmt: skip
        execute(case.server, "door", "ALTER TABLE keyless ADD COLUMN id INT PRIMARY KEY")
        report = notebook.submit(lambda: job.run(until="live", spark=spark)).result()
    assert [(table.phase, table.live) for table in report.tables] == [_LIVE] * 3
    assert job.verify(spark=spark).equal
    assert spark.range(3).count() == 3
    assert capfd.readouterr() == ("", "")


def test_many_tables_are_planned_from_python(case: JobCase, capfd: pytest.CaptureFixture[str]) -> None:
    execute(case.server, "door", "CREATE TABLE keyless (v INT)")
    case.mysql = {"tables": ["door.*"], "database": None, "table": None}
    case.use(sink={"delta": {"path": f"{case.folder}/lake/{{table}}"}})
    job = Backfill.from_yaml(case.config)
    planned = job.plan()
    assert [str(table.name) for table in planned.refused] == ["door.keyless"]
    assert [table.key for table in job.plan("door.orders").tables] == [("id",)]
    assert capfd.readouterr().out == ""
