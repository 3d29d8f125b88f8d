"""`vnode-backfill compact` and the job's own upkeep, beside a job that writes and through kill -9.

Every row stays as it is.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table, quote
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job_case import JobCase, execute


def many_files(lake: Path, **delta: object) -> dict[str, object]:
    """Small ranges make small files."""
    return {
        "sink": {"delta": {"path": str(lake), "target_file_size": "300KB", **delta}},
        "limits": {"range_rows": 100, "backoff": "200ms"},
    }


def case_of(server: MySqlServer, folder: Path, database: str, **delta: object) -> JobCase:
    return JobCase(server, folder, database, settings=many_files(folder / "lake", **delta))


def writer_of(server: MySqlServer, database: str, rows: int, rate: float = 40) -> Workload:
    execute(server, None, f"CREATE DATABASE {quote(database)}")
    with server.connect() as connection:
        table = create_orders_table(connection, rows, seed=8, database=database, key_step=3)
    return Workload(server.connect, table, seed=9, rate=rate, large_rows=100)


def files(case: JobCase) -> int:
    return len(DeltaTable(case.lake).file_uris())


def test_files_are_joined_by_a_live_job_and_by_the_command_beside_it(mysql_server: MySqlServer, tmp_path: Path) -> None:
    case = case_of(mysql_server, tmp_path, "compact_live")
    with writer_of(mysql_server, "compact_live", 3_000) as writer, case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        wait_for(lambda: files(case) < 20, "files are joined", seconds=240, state=lambda: f"{files(case)} files")
        assert "swept 0 files" in case.command("compact")
        writer.stop()
        case.command("stop")
        driver.wait(0)
    case.to_live()
    case.command("compact")
    assert "joined" not in case.command("compact", "--sweep-only")
    assert files(case) < 10
    assert case.differences() == []


def kill_in_a_join(case: JobCase, *, joined: int) -> None:
    """Start the command and kill it when it has begun to write so many files."""
    before = set(case.lake.glob("compacted-*"))
    with case.started("compact") as command:
        wait_for(
            lambda: command.process.poll() is not None or len(set(case.lake.glob("compacted-*")) - before) >= joined,
            "a join is under way",
        )
        command.send(signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_commands_killed_in_the_middle_harm_no_row(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    case, random = case_of(mysql_server, tmp_path, "compact_killed", compact_small_files=0), Random(12)
    with writer_of(mysql_server, "compact_killed", 6_000) as writer, case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        for _ in range(12):
            kill_in_a_join(case, joined=random.randrange(1, 4))
        driver.check_running()
        writer.stop()
        case.command("stop")
        driver.wait(0)
    case.to_live()
    case.command("compact")
    assert case.differences() == []
    held = DeltaTable(case.lake).to_pyarrow_table().num_rows
    assert spark.read.format("delta").load(str(case.lake)).count() == held


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_that_lives_long_keeps_a_bounded_number_of_files(mysql_server: MySqlServer, tmp_path: Path) -> None:
    case = case_of(mysql_server, tmp_path, "compact_bounded", compact_small_files=15)
    counted: list[int] = []
    with writer_of(mysql_server, "compact_bounded", 2_000) as writer, case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        first = DeltaTable(case.lake).version()

        def has_lived_long() -> bool:
            counted.append(files(case))
            return DeltaTable(case.lake).version() > first + 150

        wait_for(has_lived_long, "many epochs have been merged", seconds=400)
        writer.stop()
        case.command("stop")
        driver.wait(0)
    case.to_live()
    assert case.differences() == []
    assert max(counted[len(counted) // 3 :]) < 60, counted
