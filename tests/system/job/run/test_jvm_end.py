"""The end of a driver's JVM is the end of the driver: exit code 1, the reason on stderr, no process left, nothing lost.

A stop is different: it needs no Spark. Where a supervisor ends every process of a service at once, the driver still
ends at a consistent offset.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job.run.process_tree import (
    LOST,
    foreground,
    jvm_of,
    kill_jvm,
    send_all,
    stop_all,
    tree_of,
    until_copying,
    wait_until_gone,
)
from tests.system.job_case import JobCase, Started, execute, fetch

SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
SLOWLY: dict[str, object] = {"range_rows": 100, "rows_per_second": 1000, "backoff": "200ms"}


@contextmanager
def case_on(
    server: MariaDbServer, folder: Path, *, rows: int, **settings: object
) -> Iterator[tuple[JobCase, Workload]]:
    """A job, and traffic on its table that is not started yet."""
    database = f"jvm_{folder.name.replace('-', '_')}"[:60]
    execute(server, None, f"CREATE DATABASE `{database}`")
    with server.connect() as connection:
        table = create_orders_table(connection, rows, 9, database=database, key_step=3)
    traffic = Workload(lambda: server.connect(database), table, seed=13, rate=100, large_rows=100)
    yield JobCase(server, folder, database, settings=settings), traffic
    execute(server, None, f"DROP DATABASE `{database}`")


@pytest.mark.timeout(600)
def test_a_lost_jvm_ends_the_driver_and_a_stop_of_every_process_ends_it_in_order(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with case_on(mariadb_server, tmp_path, rows=6_000, limits=SLOWLY) as (case, traffic):
        with traffic:
            with case.started("run") as driver:
                until_copying(case, driver)
                kill_jvm(case, driver)
            case.command("throttle", "--off")
            with case.started("run") as driver:
                case.wait_for_phase(JobPhase.LIVE, driver)
                stop_all(driver)
            assert case.report().phase is JobPhase.STOPPED
        case.to_live()
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("busy", [True, False], ids=["under traffic", "idle"])
def test_a_jvm_lost_while_live_ends_the_driver(mariadb_server: MariaDbServer, tmp_path: Path, *, busy: bool) -> None:
    with case_on(mariadb_server, tmp_path, rows=500) as (case, traffic):
        with case.started("run") as driver:
            case.wait_for_phase(JobPhase.LIVE, driver)
            if busy:
                with traffic:
                    kill_jvm(case, driver)
            else:
                kill_jvm(case, driver)
        case.to_live()
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["parallel", "single"])
def test_a_stop_of_every_process_while_copying_ends_at_a_consistent_offset(
    mariadb_server: MariaDbServer, tmp_path: Path, executor: str
) -> None:
    with case_on(mariadb_server, tmp_path, rows=6_000, limits=SLOWLY, executor=executor) as (case, traffic):
        with traffic:
            with case.started("run") as driver:
                until_copying(case, driver)
                stop_all(driver)
            assert case.report().phase is JobPhase.STOPPED
            assert case.report().percent < 100
        case.command("throttle", "--off")
        case.to_live()
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_jvm_lost_while_the_single_executor_walks_ends_the_driver(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with case_on(mariadb_server, tmp_path, rows=6_000, limits=SLOWLY, executor="single") as (case, traffic):
        with traffic, case.started("run") as driver:
            until_copying(case, driver)
            kill_jvm(case, driver)
        case.command("throttle", "--off")
        case.to_live()
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", [JobPhase.SNAPSHOT, JobPhase.LIVE])
def test_ctrl_c_in_a_terminal_ends_at_a_consistent_offset(
    mariadb_server: MariaDbServer, tmp_path: Path, phase: JobPhase
) -> None:
    limits = SLOWLY if phase is JobPhase.SNAPSHOT else {"range_rows": 100}
    with case_on(mariadb_server, tmp_path, rows=3_000, limits=limits) as (case, traffic):
        with traffic, case.started("run") as driver:
            if phase is JobPhase.SNAPSHOT:
                until_copying(case, driver)
            else:
                case.wait_for_phase(phase, driver)
            tree = tree_of(driver.pid)
            send_all(foreground(tree), signal.SIGINT)
            driver.wait(0, seconds=120)
            wait_until_gone(tree)
        case.command("throttle", "--off")
        case.to_live()
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_jvm_that_does_not_answer_ends_the_driver(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    with case_on(mariadb_server, tmp_path, rows=6_000, limits=SLOWLY) as (case, _), case.started("run") as driver:
        until_copying(case, driver)
        tree = tree_of(driver.pid)
        jvm_of(driver.pid).send(signal.SIGSTOP)
        assert "has not answered for 120 s" in driver.wait(1, seconds=300)
        wait_until_gone(tree)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_driver_leaves_no_process_and_a_killed_daemon_costs_an_attempt(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with case_on(mariadb_server, tmp_path, rows=6_000, limits=SLOWLY) as (case, _):
        with case.started("run") as driver:
            until_copying(case, driver)
            tree = tree_of(driver.pid)
            driver.send(signal.SIGKILL)
            wait_until_gone(tree)
        with case.started("run", "--until", "live") as driver:
            ranges = case.report().ranges
            wait_for(lambda: case.report().ranges > ranges, "more ranges", seconds=180)
            tree = tree_of(driver.pid)
            daemons = [member for member in tree if "-m vnode_backfill.spark.daemon" in member.command]
            assert daemons
            send_all(daemons, signal.SIGKILL)
            case.command("throttle", "--off")
            driver.wait(0)
            wait_until_gone(tree)
        assert case.differences() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_jvm_lost_while_the_driver_waits_for_the_source_ends_the_command(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """A new job plans, and waits for a table that somebody has locked."""
    with case_on(mariadb_server, tmp_path, rows=500) as (case, _):
        case.mysql["read_timeout"] = "10m"
        with mariadb_server.connect(case.database) as connection, connection.cursor() as cursor:
            cursor.execute("LOCK TABLES orders WRITE")
            with case.started("run") as driver:
                until_waiting(case, driver)
                tree = tree_of(driver.pid)
                jvm_of(driver.pid).send(signal.SIGKILL)
                printed = driver.wait(1, seconds=60)
                assert LOST in printed, printed
                wait_until_gone(tree)
            cursor.execute("UNLOCK TABLES")
        case.to_live()
        assert case.differences() == []


def until_waiting(case: JobCase, driver: Started) -> None:
    """Return once the driver has its JVM and a query of it waits for the lock."""

    def waits() -> bool:
        driver.check_running()
        states = fetch(case.server, None, "SELECT state FROM information_schema.processlist WHERE state IS NOT NULL")
        locked = any("lock" in str(state).lower() for (state,) in states)
        return locked and any("pyspark.worker" in member.command for member in tree_of(driver.pid))

    wait_for(waits, "the command to wait for the table", seconds=180)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
def test_a_submitted_driver_ends_with_the_jvm_that_started_it(
    mariadb_server: MariaDbServer, tmp_path: Path, *, stop: bool
) -> None:
    """Under spark-submit the JVM is the driver's parent."""
    with case_on(mariadb_server, tmp_path, rows=500) as (case, traffic):
        words = [
            "--master",
            "local[4]",
            str(REPOSITORY / "vnode_backfill/__main__.py"),
            "run",
            "--config",
            str(case.config),
        ]
        output = tmp_path / "submitted.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                [SUBMIT, *words, "--quiet"], cwd=REPOSITORY, env=case.process_environment(), stdout=file,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            case.wait_for_phase(JobPhase.LIVE, Started(process, output))
            tree = tree_of(process.pid)
            with traffic:
                if stop:
                    send_all(tree, signal.SIGTERM)
                else:
                    tree[0].send(signal.SIGKILL)
                wait_until_gone(tree)
        finally:
            process.kill()
            process.wait()
        report = case.report()
        assert report.phase is (JobPhase.STOPPED if stop else JobPhase.FAILED), (
            report.phase,
            report.failure,
            output.read_text()[-4000:],
        )
        # What a submitted driver prints goes through its JVM, so the reason is in the state alone.
        assert (report.failure is not None and LOST in report.failure.message) is not stop
        case.to_live()
        assert case.differences() == []
