"""`vnode-backfill compact` and the job's own upkeep, beside a job that writes and through kill -9.

Every row stays as it is.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.lake import count_lake
from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table, quote
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job.run.process_tree import Member, tree_of
from tests.system.job_case import JobCase, execute
from tests.system.live_job import live_job, writing
from vnode_backfill.config.job import MergeMode
from vnode_backfill.job.run import pace_of_epochs
from vnode_backfill.sinks.delta import compactor, due
from vnode_backfill.sinks.delta.due import is_worn
from vnode_backfill.sinks.delta.reshape import Reshape, Reshaped, Reshaper
from vnode_backfill.sinks.delta.reshape_process import run_apart
from vnode_backfill.words.errors import SinkUnavailableError


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
    held = count_lake(case.lake)
    assert spark.read.format("delta").load(str(case.lake)).count() == held


def commits_behind_the_checkpoint(case: JobCase) -> int:
    """How many commits whoever opens the table reads."""
    log = case.lake / "_delta_log"
    checkpoints = [int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")]
    return DeltaTable(case.lake).version() - max(checkpoints, default=-1)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("mode", "behind"), [(MergeMode.REWRITE, 25), (MergeMode.VECTORS, 250)])
def test_a_job_that_lives_long_keeps_a_bounded_number_of_files(
    mysql_server: MySqlServer, tmp_path: Path, mode: MergeMode, behind: int
) -> None:
    database = f"compact_bounded_{mode}"
    case = case_of(mysql_server, tmp_path, database, compact_small_files=15, merge=str(mode))
    counted: list[tuple[int, int]] = []
    with writer_of(mysql_server, database, 2_000) as writer, case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        first = DeltaTable(case.lake).version()

        def has_lived_long() -> bool:
            counted.append((files(case), commits_behind_the_checkpoint(case)))
            return DeltaTable(case.lake).version() > first + behind + 130

        wait_for(has_lived_long, "many epochs have been merged", seconds=900)
        health = case.report().observed.target
        writer.stop()
        case.command("stop")
        driver.wait(0)
    case.to_live()
    assert case.differences() == []
    assert max(each for each, _ in counted[len(counted) // 3 :]) < 60, counted
    # What is made beside the epochs may come some commits late.
    assert max(each for _, each in counted) < behind + 50, counted
    assert health is not None
    assert health.vector_share is None if mode is MergeMode.REWRITE else health.vector_share is not None


@pytest.mark.timeout(900)
def test_folds_run_in_a_process_of_their_own_beside_epochs_and_killing_it_harms_nothing(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds, lake = Folds(tmp_path / "lake", kills=2), str(tmp_path / "lake")
    monkeypatch.setattr(due, "WORTH_BYTES", 20_000)
    monkeypatch.setattr(compactor, "HERE_BYTES", 0)
    monkeypatch.setattr(compactor, "run_apart", folds.run)
    settings: dict[str, object] = {"sink": {"delta": {"path": lake, "merge": "vectors", "target_file_size": "300KB"}}}
    with live_job(spark, mysql_server, tmp_path, rows=4000, settings=settings) as job:
        with writing(job, rate=300):
            job.start()
            job.until(lambda: len(folds.done) >= 3, "three folds", seconds=400)
            monkeypatch.setattr(pace_of_epochs, "LOG_BYTES_A_MINUTE", 1)
            monkeypatch.setattr(pace_of_epochs, "_WINDOW_SECONDS", 1.0)
            job.until(lambda: job.report().observed.lengthened == pace_of_epochs.MOST, "epochs get longer")
        job.stop()
        health = job.reports[-1].observed.target
        job.assert_equal()
    assert folds.killed == 2
    assert any(after > before for before, after in folds.done), f"no epoch was merged beside a fold: {folds.done}"
    assert health is not None
    assert health.vector_share


@dataclass
class Folds:
    """Runs folds and joins as a job does. The processes of the first `kills` folds are killed when they have begun.

    `done` are the versions of the table before and after each fold that was not killed.
    """

    lake: Path
    kills: int
    killed: int = 0
    done: list[tuple[int, int]] = field(default_factory=list)

    def run(self, reshaper: Reshaper, tasks: Sequence[Reshape]) -> list[Reshaped]:
        if not any(is_worn(file) for task in tasks for file in task.whole):
            return run_apart(reshaper, tasks)
        before = DeltaTable(self.lake).version()
        if self.killed < self.kills:
            killer = threading.Thread(target=self._kill)
            killer.start()
            try:
                run_apart(reshaper, tasks)
            except SinkUnavailableError:
                self.killed += 1
                raise
            finally:
                killer.join()
            raise AssertionError("the fold was not killed")
        made = run_apart(reshaper, tasks)
        self.done.append((before, DeltaTable(self.lake).version()))
        return made

    def _kill(self) -> None:
        def found() -> list[Member]:
            return [each for each in tree_of(os.getpid())[1:] if "reshape_process" in each.command]

        wait_for(lambda: bool(found()), "the process of a fold", seconds=60)
        for member in found():
            member.send(signal.SIGKILL)
