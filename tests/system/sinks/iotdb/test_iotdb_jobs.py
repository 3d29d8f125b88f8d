"""Jobs into IoTDB are exact when they or their server are killed, begin in every mode, and refuse what they must."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from iotdb.utils.IoTDBConstants import TSDataType
from iotdb.utils.NumpyTablet import NumpyTablet
from pyspark.sql import SparkSession

from devkit.cluster import SparkCluster
from devkit.iotdb import IotdbServer
from devkit.mysql import MySqlServer
from devkit.operations import OpKind
from devkit.orders import create_orders_table, orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job.run.process_tree import LOST, jvm_of, kill_jvm, stop_all, until_copying
from tests.system.job_case import execute
from tests.system.sinks.iotdb.iotdb_job import NO_SHARED_TIMES, IotdbJob, points_of, rows_of
from vnode_backfill.job.open.locations import owner, state_store
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import PlanRefusedError, StateError

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROWS, KEY_STEP = 1_500, 5
LIMITS = {"range_rows": 75, "rows_per_second": 800, "backoff": "200ms", "max_backoff": "2s", "retries": 40}
COPYING = (
    "after:ReadRanges@snapshot",
    "before:CommitReceipts:2@snapshot",
    "after:CommitReceipts@snapshot",
    "after:BufferChanges:2@snapshot",
    "before:CommitEpoch@snapshot",
)
FOLLOWING = (
    "after:MergeEpoch@catch-up",
    "before:CommitReceipts@live",
    "after:MergeEpoch:2@live",
    "before:CommitEpoch:2@live",
)
INSERT = (
    "INSERT INTO orders (id, big, amount, created, state, flag) "
    "VALUES ({}, 1, 2.5, '2031-05-06' + INTERVAL {} SECOND, 'new', 3)"
)


@pytest.fixture(scope="module")
def target() -> Iterator[IotdbServer]:
    """A server that loses nothing when it is killed, and keeps the microseconds of `orders`.

    The times of `orders` are spread over a century: in partitions of a week each row would get its own file.
    """
    partitions = {"time_partition_interval": str(1000 * 365 * 86_400_000)}
    with IotdbServer(precision="us", wal_mode="SYNC", properties=partitions) as server:
        yield server


@pytest.fixture
def case(
    request: pytest.FixtureRequest,
    mysql_server: MySqlServer,
    target: IotdbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[IotdbJob]:
    database = f"points_{abs(hash(request.node.nodeid)) % 10**9}"
    monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", target.password)
    execute(mysql_server, None, f"CREATE DATABASE {database}")
    with mysql_server.connect() as connection:
        create_orders_table(connection, ROWS, 5, database=database, key_step=KEY_STEP)
    yield job_of(mysql_server, target, database, tmp_path)
    execute(mysql_server, None, f"DROP DATABASE {database}")


def job_of(
    server: MySqlServer, target: IotdbServer, database: str, folder: Path, job: str = "case", **mysql: object
) -> IotdbJob:
    """Jobs of one database share their state folder."""
    (folder / job).mkdir(exist_ok=True)
    settings: dict[str, object] = {"limits": LIMITS, "epoch": {"backfill": "500ms", "live": "200ms"}}
    return IotdbJob(
        server, folder / job, database, target=target, settings=settings, mysql=mysql, job=job, state=folder / "state"
    )


def writing(case: IotdbJob, rate: float = 8) -> Workload:
    table = orders_table(case.database)
    return Workload(lambda: case.server.connect(case.database), table, seed=3, rate=rate, mix=NO_SHARED_TIMES)


@pytest.mark.parametrize("deaths", [COPYING, FOLLOWING], ids=["copying", "following"])
def test_a_chain_of_kills_leaves_exactly_the_points_of_the_rows(case: IotdbJob, deaths: Sequence[str]) -> None:
    with writing(case) as writer:
        for seam in deaths:
            case.run(*(() if seam.endswith("@live") else ("--until", "live")), kill=seam)
        case.to_live()
    assert {OpKind.INSERT, OpKind.UPDATE, OpKind.DELETE} <= writer.report().counts.keys()
    case.to_live()
    assert case.differences() == []
    told = json.loads(case.command("verify", "--json"))
    assert (told["equal"], told["rows_source"]) == (True, rows_of(case.server, case.database))


def test_a_server_killed_twice_under_the_job_loses_nothing(spark: SparkSession, case: IotdbJob) -> None:
    job = case.here(spark)
    with writing(case) as writer, job.running(Until.STOPPED):
        for ranges in (3, 9):
            job.wait_until_read(ranges, seconds=300)
            case.target.kill()
            wait_for(lambda: bool(job.errors) or job.ended, "the job to notice", seconds=120)
            case.target.start()
        wait_for(
            lambda: job.state.is_live or job.ended, "the job to be live", seconds=400, state=lambda: str(job.errors)
        )
        writer.stop()
    assert job.failure is None, job.failure
    assert job.errors
    assert case.here(spark).run() is None
    assert case.differences() == []


def test_a_job_without_its_server_stops_with_the_cause_and_continues_later(spark: SparkSession, case: IotdbJob) -> None:
    case.settings["limits"] = {**LIMITS, "retries": 1}
    job = case.here(spark)
    with job.running():
        job.wait_until_read(2, seconds=300)
        case.target.kill()
    assert job.failure is not None
    assert f"{case.target.host}:{case.target.port} did not answer" in job.failure.detail
    case.target.start()
    assert case.here(spark).run() is None
    assert case.differences() == []


def test_a_takeover_waits_until_the_lease_of_the_dead_driver_has_run_out(case: IotdbJob) -> None:
    case.lease = "30s"
    with case.started("run") as first:
        case.wait_for_phase(JobPhase.SNAPSHOT, first)
        assert "is driven by" in case.run(code=1)
        first.process.kill()
        first.process.wait()
        printed = case.run("--until", "live")
    assert "waiting for the lease of the driver that ended to run out" in printed
    assert case.differences() == []


def test_tasks_of_a_cluster_that_may_outlive_the_jvm_keep_the_lease_also_at_a_stop(
    case: IotdbJob, tmp_path: Path
) -> None:
    """What they write is visible at once: the job does not count as stopped, and the next driver waits."""
    case.lease = "1m"
    with SparkCluster(Path(sys.executable), tmp_path / "cluster", count=1) as cluster, writing(case):
        with case.started("run", "--master", cluster.master) as driver:
            until_copying(case, driver)
            jvm_of(driver.pid).send(signal.SIGKILL)
            driver.send(signal.SIGTERM)
            assert LOST in driver.wait(1, seconds=120)
        with pytest.raises(StateError):
            state_store(case.loaded_config()).acquire_lease(owner(), timedelta(minutes=1), wait_out=True)
        case.run("--until", "live")
    case.to_live()
    assert case.differences() == []


def test_latest_brings_new_rows_and_no_old_one(
    spark: SparkSession, mysql_server: MySqlServer, case: IotdbJob, tmp_path: Path
) -> None:
    follower = job_of(mysql_server, case.target, case.database, tmp_path, "late", cdc={"startup_mode": "latest"})
    assert follower.here(spark).run() is None
    execute(mysql_server, case.database, INSERT.format(100_001, 1), INSERT.format(100_002, 2))
    execute(mysql_server, case.database, "DELETE FROM orders WHERE id = 100002")
    assert follower.here(spark).run() is None
    assert [points["id"] for _, _, points in points_of(case.target, case.database)] == [100_001]


def test_a_copy_is_handed_over_to_one_follower(
    spark: SparkSession, mysql_server: MySqlServer, case: IotdbJob, tmp_path: Path
) -> None:
    def job(name: str, **cdc: object) -> IotdbJob:
        return job_of(mysql_server, case.target, case.database, tmp_path, name, cdc=cdc)

    copy = job("copy", startup_mode="snapshot")
    with writing(case) as writer:
        assert copy.here(spark).run() is None
        writer.stop()
    with pytest.raises(PlanRefusedError, match="did not write"):
        job("stranger", startup_mode="earliest").here(spark)
    follow = job("follow", startup_mode="specific", specific={"from_job": "copy"})
    assert follow.here(spark).run() is None
    execute(mysql_server, case.database, INSERT.format(100_003, 3), "DELETE FROM orders WHERE id < 500")
    assert follow.here(spark).run() is None
    assert follow.differences() == []
    with pytest.raises(PlanRefusedError, match="was handed over to another job already"):
        job("second", startup_mode="specific", specific={"from_job": "copy"}).here(spark)


def test_a_resnapshot_puts_right_what_somebody_else_has_changed(spark: SparkSession, case: IotdbJob) -> None:
    assert case.here(spark).run() is None
    execute(case.server, case.database, INSERT.format(100_004, 4))
    assert case.here(spark).run() is None
    device, at, points = points_of(case.target, case.database)[0]
    session = case.target.session()
    session.delete_data_in_range([f"{device}.name", f"{device}.doc"], at, at)
    session.execute_non_query_statement(
        f"INSERT INTO {device}(time, id, flag) VALUES ({at + 1}, {int(str(points['id']))}, 7)"
    )
    session.close()
    assert len(case.differences()) > 1
    assert case.here_command("resnapshot", "--all") == 0
    execute(case.server, case.database, "DELETE FROM orders WHERE id > 100000")
    assert case.here(spark).run() is None
    assert case.differences() == []


def test_two_keys_on_one_device_and_time_stop_the_job_or_the_last_one_wins(
    spark: SparkSession, mysql_server: MySqlServer, case: IotdbJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(
        mysql_server, case.database, "DELETE FROM orders WHERE id > 50",
        "UPDATE orders SET created = '2030-01-01', state = 'paid' WHERE id IN (1, 6, 16)",
    )  # fmt: skip
    failure = case.here(spark).run()
    assert failure is not None
    assert failure.message.startswith(f"1 (device, time) of IoTDB belong to two or more keys of {case.database}.orders")
    assert f"root.`{case.database}`.`paid` at 1893456000000000" in failure.detail
    lenient = job_of(mysql_server, case.target, case.database, tmp_path, "lenient")
    lenient.iotdb.update({"duplicates": "last", "replace": True})
    assert lenient.here(spark).run() is None
    assert len(points_of(case.target, case.database)) == rows_of(mysql_server, case.database) - 2
    assert lenient.here_command("verify") == 0
    told = capsys.readouterr().out
    assert "2 keys share a device and time with another key" in told
    assert "0 differences" in told


def test_series_of_another_type_refuse_the_job_before_anything_is_written(
    spark: SparkSession, case: IotdbJob, capsys: pytest.CaptureFixture[str]
) -> None:
    session = case.target.session()
    values = [np.array([1.5], TSDataType.DOUBLE.np_dtype())]
    device = f"root.{case.database}.new"
    session.insert_tablet(NumpyTablet(device, ["flag"], [TSDataType.DOUBLE], values, np.array([1], ">i8")))
    session.close()
    assert case.here_command("plan") == 2
    assert f"root.`{case.database}`.`new`.`flag` is DOUBLE, the column needs INT32" in capsys.readouterr().out
    with pytest.raises(PlanRefusedError, match="the target cannot take the table: 1 of"):
        case.here(spark)
    assert not (case.state or case.folder).exists()


def test_lost_jvm_ends_a_job_that_writes_points_and_a_stop_of_every_process_ends_it_in_order(case: IotdbJob) -> None:
    with writing(case):
        with case.started("run") as driver:
            until_copying(case, driver)
            kill_jvm(case, driver)
        with case.started("run") as driver:
            ranges = case.report().ranges
            wait_for(lambda: case.report().ranges > ranges, "more ranges", seconds=180)
            stop_all(driver)
        assert case.report().phase is JobPhase.STOPPED
    case.to_live()
    assert case.differences() == []
