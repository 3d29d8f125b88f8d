"""Every kind of statement meets a job in every phase, with every form of the log, and every row is compared at the end.

One job has a table for each kind of statement. All of them are changed in the same phase. While ranges are read some
tables are whole, some are half read and some are not begun. `catch-up` is a job that was killed when every range of most
tables was read and nothing of these was merged. Before and after the statements rows are written by the old columns,
then by the new ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from progress.state.report import JobPhase, phase_of
from tests.system.job.run.schema_change_cases import CHANGES, ROWS, create_changing_table
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job_case import execute, fetch

LOGS = [("mysql", "MINIMAL"), ("mysql", "FULL"), ("mariadb", "NO_LOG"), ("mariadb", "MINIMAL"), ("mariadb", "FULL")]
USUAL = {("mysql", "MINIMAL", "snapshot"), ("mariadb", "NO_LOG", "live")}
"""What is not left to the long tests."""
NAMES = {f"c{number}": kind for number, kind in enumerate(CHANGES)}
Meet = Callable[[Tables, SparkSession], dict[str, str]]
"""Runs the job into its phase, changes the tables there, and returns the copy that each table had before."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    kind, metadata = request.param
    with {"mysql": MySqlServer, "mariadb": MariaDbServer}[kind]({"binlog-row-metadata": metadata}) as started:
        yield started


@pytest.fixture
def tables(server: SqlServer, tmp_path: Path) -> Iterator[Tables]:
    execute(server, None, "DROP DATABASE IF EXISTS matrix", "CREATE DATABASE matrix")
    for name in NAMES:
        create_changing_table(server, "matrix", name)
    yield Tables(server, tmp_path, "matrix")
    execute(server, None, "DROP DATABASE IF EXISTS matrix")


def of_table(statement: str, name: str) -> str:
    return re.sub(r"\bt\b", name, statement)


def change_all(tables: Tables) -> None:
    for name, kind in NAMES.items():
        write_old_columns(tables, name)
        execute(tables.server, tables.database, *(of_table(each, name) for each in CHANGES[kind].statements))
    for name, kind in NAMES.items():
        write_old_columns(tables, name)
        execute(tables.server, tables.database, *(of_table(each, name) for each in CHANGES[kind].writes))


def key_of(tables: Tables, name: str) -> tuple[str, ...]:
    found = fetch(tables.server, tables.database, f"SHOW KEYS FROM {name} WHERE Key_name = 'PRIMARY'")
    return tuple(str(row[4]) for row in found)


def write_old_columns(tables: Tables, name: str) -> None:
    key = key_of(tables, name)[0]
    execute(
        tables.server, tables.database, f"DELETE FROM {name} WHERE {key} % 13 = 0",
        f"UPDATE {name} SET a = 5 WHERE {key} % 17 = 0",
    )  # fmt: skip


def copies(here: Here) -> dict[str, str]:
    return {table.name.rpartition(".")[2]: table.table.opened.record.id for table in here.job.tables}


def stopped(tables: Tables, spark: SparkSession) -> dict[str, str]:
    here = Here(tables, spark)
    assert here.run() == {}
    change_all(tables)
    return copies(here)


def live(tables: Tables, spark: SparkSession) -> dict[str, str]:
    with Here(tables, spark).running() as here:
        here.until_live()
        before = copies(here)
        change_all(tables)
    assert here.failures == {}
    return before


def snapshot(tables: Tables, spark: SparkSession) -> dict[str, str]:
    tables.use(limits={"range_rows": 300, "rows_per_second": 4000})
    ranges = len(NAMES) * ROWS // 300
    with Here(tables, spark).running() as here:
        before = copies(here)

        def read() -> int:
            return sum(len(vnode.reads) for table in here.job.tables for vnode in table.run.coordinator.saved.vnodes)

        wait_for(lambda: read() > ranges // 4, "a quarter of the ranges is read", seconds=120, state=here.shown)
        assert read() < ranges, "everything is read already"
        change_all(tables)
    assert here.failures == {}
    return before


def catch_up(tables: Tables, spark: SparkSession) -> dict[str, str]:
    tables.run("--until", "live", kill=f"after:CommitEpoch:{len(NAMES) + 1}")
    here = Here(tables, spark)
    phases = {phase_of(table.run.coordinator.saved, running=True) for table in here.job.tables}
    assert JobPhase.CATCH_UP in phases, here.shown()
    here.store.release()
    change_all(tables)
    return copies(here)


PHASES: dict[str, Meet] = {"snapshot": snapshot, "catch-up": catch_up, "live": live, "stopped": stopped}


@pytest.mark.parametrize(
    ("server", "phase"),
    [
        pytest.param(
            log, phase, marks=() if (*log, phase) in USUAL else pytest.mark.long, id=f"{'-'.join(log)}-{phase}"
        )
        for log in LOGS
        for phase in PHASES
    ],
    indirect=["server"],
)
@pytest.mark.timeout(900)
def test_every_statement_is_followed_in_this_phase(tables: Tables, spark: SparkSession, phase: str) -> None:
    before = PHASES[phase](tables, spark)
    tables.use(limits={})
    here = Here(tables, spark)
    assert here.run() == {}
    assert here.job.aside == {}
    after = copies(here)
    again = {kind for name, kind in NAMES.items() if before[name] != after[name]}
    assert again == {kind for kind in CHANGES if CHANGES[kind].copies > 1}, "these and no others are copied again"
    wrong = {kind: found for name, kind in NAMES.items() if (found := differences(tables, name, kind))}
    assert wrong == {}


def differences(tables: Tables, name: str, kind: str) -> list[object]:
    with tables.server.connect() as connection:
        found = compare_delta(
            connection, tables.database, name, key_of(tables, name), tables.target_of(name),
            ignore_columns=CHANGES[kind].kept,
        )  # fmt: skip
    return list(found)
