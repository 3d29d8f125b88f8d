"""A job that begins in the past never decodes rows by a definition that is not theirs, on servers that log none.

The table maps of these logs hold neither labels nor names, so nothing in them would show the wrong definition: MINIMAL
is MySQL's default and NO_LOG MariaDB's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.log.offset import CdcOffset
from devkit.lake import read_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.job.tables.many_tables import SHAPES, Here, Tables
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.cli import execute as execute_command
from vnode_backfill.job.open.examine import examine_source
from vnode_backfill.job.open.open import open_configured, open_job
from vnode_backfill.job.open.source import open_table
from vnode_backfill.job.tables.examine import examine_tables
from vnode_backfill.words.errors import PlanRefusedError

Cdc = dict[str, object]
_POINT = re.compile(r"mysql\.cdc\.specific: \{file: (\S+), pos: (\d+)\}")
_numbers = count(1)
CREATE = "CREATE TABLE t (id INT PRIMARY KEY, n INT, e ENUM('a','b'), v VARCHAR(20) CHARACTER SET latin1)"
ROWS = "INSERT INTO t (id, n, e, v) VALUES (1, 1, 'a', '€'), (2, 2, 'b', 'plain')"
LABELS, CHARSET = "MODIFY e ENUM('b','a')", "MODIFY v VARCHAR(20) CHARACTER SET cp1251"
TOUCHED = "UPDATE t SET n = n + 10"
"""Brings every row after the statement, so that a job that begins there has all of them."""


@pytest.fixture(scope="module", params=[(MySqlServer, "MINIMAL"), (MariaDbServer, "NO_LOG")], ids=["mysql", "mariadb"])
def bare_server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    kind, metadata = request.param
    with kind({"binlog-row-metadata": metadata}) as server:
        yield server


@dataclass
class Past:
    """The table `t` in a database of its own; `first` is the point after its CREATE."""

    server: SqlServer
    database: str
    folder: Path
    first: CdcOffset

    def say(self, *statements: str) -> None:
        execute(self.server, self.database, *statements)

    def end(self) -> CdcOffset:
        return open_table(self.case({"startup_mode": "latest"}).loaded_config()).written_offset()

    def case(self, cdc: Cdc) -> JobCase:
        folder = self.folder / f"job-{next(_numbers)}"
        return JobCase(self.server, folder, self.database, "t", mysql={"cdc": cdc})

    def refusal(self, cdc: Cdc) -> PlanRefusedError:
        """What `run` and `plan` say alike; nothing is written."""
        case = self.case(cdc)
        config = case.loaded_config()
        before = sorted(case.folder.rglob("*"))
        with pytest.raises(PlanRefusedError) as planned:
            examine_source(config)
        with pytest.raises(PlanRefusedError) as told:
            open_job(config, asked_vnodes=None)
        assert (planned.value.message, planned.value.hint) == (told.value.message, told.value.hint)
        assert sorted(case.folder.rglob("*")) == before
        return told.value


@pytest.fixture
def past(bare_server: SqlServer, tmp_path: Path) -> Iterator[Past]:
    database = f"past_{next(_numbers)}"
    execute(bare_server, None, f"CREATE DATABASE {database}")
    execute(bare_server, database, CREATE)
    found = Past(bare_server, database, tmp_path, CdcOffset.at("s", "none.1", 0))
    found.first = found.end()
    yield found
    execute(bare_server, None, f"DROP DATABASE IF EXISTS {database}")


def specific(offset: CdcOffset) -> Cdc:
    return {"startup_mode": "specific", "specific": {"file": offset.file, "pos": offset.pos}}


def hinted(hint: str) -> Cdc:
    """The beginning that a hint names, as the file has it."""
    found = _POINT.search(hint)
    assert found is not None, hint
    return {"startup_mode": "specific", "specific": {"file": found[1], "pos": int(found[2])}}


def brought(spark: SparkSession, case: JobCase) -> list[dict[str, object]]:
    """The rows of the target once the job is live."""
    assert case.here(spark).run() is None
    rows: list[dict[str, object]] = read_lake(case.lake).to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


@pytest.mark.parametrize(("change", "mode"), [(LABELS, "specific"), (CHARSET, "earliest")])
def test_rows_of_before_a_change_that_fits_their_bytes_refuse_the_job_and_its_hint_leads_on(
    spark: SparkSession, past: Past, change: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    past.say(ROWS, f"ALTER TABLE t {change}", "CREATE INDEX i ON t (n)", TOUCHED)
    cdc: Cdc = specific(past.first) if mode == "specific" else {"startup_mode": mode}
    case = past.case(cdc)
    for command in ("plan", "run"):
        assert execute_command([command, "--config", str(case.config)]) == 2
        assert f"holds ALTER TABLE t {change}" in capsys.readouterr().err
    assert [path.name for path in case.folder.iterdir()] == ["job.yaml"]
    again = past.case(hinted(past.refusal(cdc).hint))
    assert len(brought(spark, again)) == 2
    assert again.differences() == []


def test_each_way_to_begin_in_the_past_is_refused_alike(past: Past) -> None:
    past.say(ROWS, f"ALTER TABLE t {LABELS}")
    began = past.case({"startup_mode": "latest"}).loaded_config()
    oldest = open_table(began).source_log(with_time=True).oldest_at
    assert oldest is not None
    ways: list[Cdc] = [
        specific(past.first),
        {"startup_mode": "specific", "specific": {"gtid": past.first.gtids}},
        {"startup_mode": "timestamp", "timestamp": oldest.isoformat()},
        {"startup_mode": "earliest"},
    ]
    assert len({past.refusal(cdc).hint for cdc in ways}) == 1


def test_statements_that_keep_the_definition_refuse_nothing(spark: SparkSession, past: Past) -> None:
    past.say(ROWS, "CREATE INDEX i ON t (n)", "ALTER TABLE t COMMENT 'x', ALTER n SET DEFAULT 5", "TRUNCATE t")
    past.say("INSERT INTO t (id, e, v) VALUES (3, 'b', '€')", "ALTER TABLE t DROP INDEX i, ADD UNIQUE INDEX u (n)")
    case = past.case(specific(past.first))
    assert brought(spark, case) == [{"id": 3, "n": 5, "e": "b", "v": "€"}]
    assert case.differences() == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t MODIFY n INT UNSIGNED",
        "ALTER TABLE t ADD w INT",
        "ALTER TABLE t RENAME COLUMN n TO m",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE u LIKE t; INSERT INTO u (id) VALUES (9); RENAME TABLE t TO w, u TO t",
    ],
)
def test_each_change_of_the_table_refuses_a_beginning_before_it(past: Past, change: str) -> None:
    if past.server.flavour == "mysql":
        change = change.replace("CREATE OR REPLACE", "DROP TABLE t; CREATE")
    past.say("INSERT INTO t (id, n) VALUES (1, 1)", *change.split("; "))
    after = past.end()
    hint = past.refusal(specific(past.first)).hint
    assert hinted(hint) == specific(after)
    assert examine_source(past.case(hinted(hint)).loaded_config()).plan is not None


def test_table_that_was_created_again_is_followed_from_its_last_create(spark: SparkSession, past: Past) -> None:
    past.say(ROWS, "DROP TABLE t")
    before = past.first
    past.say("CREATE TABLE t (id INT PRIMARY KEY, e ENUM('b','a'))", "ALTER TABLE t ADD f INT")
    past.say("INSERT INTO t VALUES (1, 'a', 7)")
    refused = past.refusal(specific(before))
    assert "holds DROP TABLE" in refused.message
    case = past.case(hinted(refused.hint))
    assert brought(spark, case) == [{"id": 1, "e": "a", "f": 7}]


def test_statements_before_the_first_rows_are_passed_over_by_a_job_that_begins_at_a_point(
    spark: SparkSession, past: Past
) -> None:
    past.say(f"ALTER TABLE t {LABELS}", "ALTER TABLE t ADD f INT", f"ALTER TABLE t {CHARSET}")
    after = past.end()
    past.say(ROWS)
    case = past.case(specific(past.first))
    found = examine_source(case.loaded_config()).beginning
    assert found is not None
    assert found.first == after
    assert "passed over" in found.start.notes[-1]
    assert len(brought(spark, case)) == 2
    assert case.differences() == []


def test_rows_that_came_from_a_partition_before_the_first_rows_are_not_missed(spark: SparkSession, past: Past) -> None:
    """The log holds them under another name. The job begins before the statement, meets it, and copies the table."""
    past.say(
        "DROP TABLE t",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9), "
        "PARTITION q VALUES LESS THAN (99))",
        "CREATE TABLE x (id INT PRIMARY KEY, n INT)", "INSERT INTO x VALUES (5, 5)",
    )  # fmt: skip
    before = past.end()
    past.say("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x", "INSERT INTO t VALUES (15, 1)")
    case = past.case(specific(before))
    assert brought(spark, case) == [{"id": 15, "n": 1}, {"id": 5, "n": 5}]
    assert case.differences() == []


def test_rows_that_came_under_another_name_refuse_the_beginning(past: Past) -> None:
    past.say("CREATE TABLE s LIKE t", "INSERT INTO s (id) VALUES (1)", "DROP TABLE t", "RENAME TABLE s TO t")
    refused = past.refusal(specific(past.first))
    assert "holds RENAME TABLE s TO t" in refused.message
    assert hinted(refused.hint) == specific(past.end())


def test_rows_of_create_select_can_only_be_copied(past: Past) -> None:
    past.say("DROP TABLE t", "CREATE TABLE t (PRIMARY KEY (id)) SELECT 1 AS id")
    assert past.refusal(specific(past.first)).hint.startswith("Use mysql.cdc.startup_mode: initial")


def test_walk_of_the_whole_table_is_refused_alike(past: Past) -> None:
    past.say(ROWS, f"ALTER TABLE t {LABELS}")
    case = past.case(specific(past.first))
    case.settings["executor"] = "single"
    config = case.loaded_config()
    with pytest.raises(PlanRefusedError, match="may have been another table"):
        open_configured(config, asked_vnodes=None, say=print)
    assert [path.name for path in case.folder.iterdir()] == ["job.yaml"]


def test_statement_after_the_look_is_followed_by_the_running_job(spark: SparkSession, past: Past) -> None:
    past.say(ROWS)
    case = past.case(specific(past.first))
    job = case.here(spark)
    past.say(f"ALTER TABLE t {LABELS}", "INSERT INTO t (id, n, e) VALUES (3, 3, 'b')", "ALTER TABLE t ADD f INT")
    assert job.run() is None
    assert job.copies == 2, "labels in another order are read again"
    assert case.differences() == []


def test_one_of_many_tables_is_refused_and_the_other_followed(
    spark: SparkSession, bare_server: SqlServer, tmp_path: Path
) -> None:
    database = f"past_{next(_numbers)}"
    execute(bare_server, None, f"CREATE DATABASE {database}")
    reader = Tables(bare_server, tmp_path / "reader", database)
    for name in ("kept", "changed"):
        reader.create(name, "numbers", rows=0)
    first = open_table(JobCase(bare_server, tmp_path / "first", database, "kept").loaded_config()).written_offset()
    values = ", ".join(SHAPES["numbers"].row.format(n=n) for n in range(1, 6))
    for name in ("kept", "changed"):
        execute(bare_server, database, f"INSERT INTO {name} VALUES {values}")
    execute(bare_server, database, "ALTER TABLE changed MODIFY t VARCHAR(40) CHARACTER SET cp1251")
    many = Tables(bare_server, tmp_path / "many", database, mysql={"cdc": specific(first)})
    many.shapes["kept"] = SHAPES["numbers"]
    planned = examine_tables(many.loaded_config(), progress=lambda *_: None)
    assert [str(table.name) for table in planned.refused] == [f"{database}.changed"]
    here = Here(many, spark)
    assert list(here.opened.aside) == [f"{database}.changed"]
    assert here.run() == {}
    assert many.wrong() == {}
    assert not many.target_of("changed").exists()
    execute(bare_server, None, f"DROP DATABASE {database}")
