"""Proves what a barrier means in a running job, and that each failure is reported under its own name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer
from devkit.waiting import wait_for
from progress.state.backfill_state import Phase
from progress.state.report import InHand, JobPhase, Report, Retry
from tests.system.job.run.python_workers import kill_python_workers
from tests.system.live_job import LiveJob, fails_once, live_job, never_falls, no_fault, writing
from vnode_backfill.commands import requests
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    CommitEpoch,
    CommitReceipts,
    MergeEpoch,
    ReadRanges,
    SampleSource,
)
from vnode_backfill.job.open.locations import buffer_path, state_store
from vnode_backfill.job.run.loop import Until
from vnode_backfill.job.run.order_threads import Moment
from vnode_backfill.words.epoch import Actor, BarrierKind
from vnode_backfill.words.errors import SinkError, SinkUnavailableError, SourceLostError

pytestmark = pytest.mark.long

OF_AN_EPOCH = (ReadRanges, BufferChanges, MergeEpoch, CommitReceipts)
NO_RETRY: dict[str, object] = {"limits": {"retries": 0}}
PATIENT: dict[str, object] = {"limits": {"retries": 500, "rows_per_second": 500}}


@pytest.fixture(scope="module")
def own_server() -> Iterator[MariaDbServer]:
    """A server that the tests of this file may kill."""
    with MariaDbServer() as server:
        yield server


def barriers(job: LiveJob) -> dict[BarrierKind, int]:
    """How many barriers of each kind the last run has seen."""
    registry = job.runs[-1].watch.metrics.registry
    counted = {kind: registry.get_sample_value("vnode_backfill_barriers_total", {"kind": kind}) for kind in BarrierKind}
    return {kind: int(value or 0) for kind, value in counted.items()}


def idle_barriers(job: LiveJob, more: int) -> None:
    """Wait until the job has seen so many more epochs in which nothing happened."""
    seen = barriers(job)[BarrierKind.BARRIER]
    job.until(lambda: barriers(job)[BarrierKind.BARRIER] >= seen + more, f"{more} idle barriers")


def heartbeat(job: LiveJob) -> str:
    (file,) = Path(state_store(job.config).folder).glob("heartbeat-*")
    return file.read_text()


def written_files(job: LiveJob) -> dict[str, tuple[int, int]]:
    """Every file of state, buffer and target with its size and time; without what a driver notes of itself, which is
    not state."""
    folders = (Path(state_store(job.config).folder), Path(buffer_path(job.config)), job.case.lake)
    own = ("heartbeat-", "observed-")
    found = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in found if not f.name.startswith(own)}


def test_idle_live_job_writes_nothing_for_a_minute_while_its_lease_is_renewed(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(
        spark, mariadb_server, tmp_path, rows=500, settings={"state": {"path": str(tmp_path / "state"), "lease": "5s"}}
    ) as job:
        job.start()
        job.until_live()
        idle_barriers(job, 3)
        job.until(lambda: any(Path(state_store(job.config).folder).glob("heartbeat-*")), "the first heartbeat")
        versions, files, before = job.versions(), written_files(job), heartbeat(job)
        assert versions.keys() == {"jobs", "plan", "checkpoints", "buffer", "lake"}
        minute = time.monotonic() + 60
        job.until(lambda: time.monotonic() >= minute, "a minute")
        idle_barriers(job, 5)
        job.until(lambda: heartbeat(job) != before, "the lease is renewed")
        assert job.versions() == versions
        assert written_files(job) == files
        assert job.report().phase is JobPhase.LIVE
        job.stop()
        job.assert_equal()


def test_every_kind_of_barrier_does_what_it_says(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        job.start()
        job.until_live()
        assert barriers(job)[BarrierKind.INITIAL] == 1
        idle_barriers(job, 5)
        quiet = job.state.revision
        idle_barriers(job, 5)
        assert job.state.revision == quiet
        with writing(job):
            job.until(lambda: job.state.revision >= quiet + 3, "checkpoints of changes")
        job.stop()
        job.assert_equal()
        assert_drained(job)
        files = data_files(job)
        job.start()
        idle_barriers(job, 3)
        assert barriers(job)[BarrierKind.INITIAL] == 1
        assert data_files(job) == files


def test_change_reaches_the_lake_in_the_epoch_that_captures_it(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        job.start()
        job.until_live()
        idle_barriers(job, 2)
        before, version = job.committed[-1], job.versions()["lake"]
        with mariadb_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {job.table.quoted} ORDER BY {job.table.key} LIMIT 1")
            connection.commit()
        job.until(lambda: job.committed[-1].epoch > before.epoch, "the end of the epoch that captures the change")
        after = job.committed[-1]
        assert after.epoch == before.epoch + 1
        assert before.written < after.written
        assert {vnode.applied for vnode in after.vnodes} == {after.written}
        assert job.versions()["lake"] == version + 1
        job.assert_equal()
        idle_barriers(job, 3)
        assert job.state == after, "nothing is left for another epoch"
        job.stop()


def assert_drained(job: LiveJob) -> None:
    """Epochs ended with checkpoints, the last one with a SyncCheckpoint: everything captured is applied, to every vnode
    alike."""
    kinds = [state.intent.kind for state in job.committed if state.intent is not None]
    assert set(kinds[:-1]) == {BarrierKind.CHECKPOINT}
    assert kinds[-1] is BarrierKind.SYNC_CHECKPOINT
    assert barriers(job)[BarrierKind.SYNC_CHECKPOINT] == 1
    last = job.committed[-1]
    assert last.stopped
    assert {vnode.applied for vnode in last.vnodes} == {last.written}


def data_files(job: LiveJob) -> set[str]:
    tables = (str(job.case.lake), buffer_path(job.config))
    return {file for table in tables for file in DeltaTable(table).file_uris()}


def test_passing_failure_of_any_order_is_retried_and_shown_with_its_attempt(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """The three actors' orders fail in three attempts of one epoch, one after the other."""
    failing: list[tuple[type[Action], int]] = [
        (SampleSource, 0), (CommitEpoch, 0), (MergeEpoch, 0), (BufferChanges, 1), (ReadRanges, 2), (CommitReceipts, 3),
    ]  # fmt: skip
    left = list(failing)

    def fault(moment: Moment, action: Action) -> BaseException | None:
        attempt = action.barrier.attempt if isinstance(action, OF_AN_EPOCH) else 0
        if moment == "before" and left and isinstance(action, left[0][0]) and attempt == left[0][1]:
            return SourceLostError(f"connection lost in {left.pop(0)[0].__name__}")
        return None

    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        job.seams.fault = fault
        with writing(job):
            job.start()
            job.until_live()
        retries = {report.observed.retry for report in job.reports}
        # Nothing was committed between the first two, so the second one is the second attempt at the same thing.
        attempts = {order: 2 if order is CommitEpoch else n + 1 for order, n in failing}
        assert retries >= {Retry(n, f"connection lost in {order.__name__}") for order, n in attempts.items()}
        assert job.shown().observed.retry is None
        job.stop()
        job.assert_equal()


def test_progress_is_shown_between_checkpoints_and_counts_only_once_committed(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """What lanes, log reader and merge report in mid-epoch reaches the run's faces and `status`, and is not part of
    what is committed."""
    settings: dict[str, object] = {"limits": {"rows_per_second": 800}}
    with live_job(spark, mariadb_server, tmp_path, rows=24_000, settings=settings) as job:
        with writing(job):
            job.start()
            job.until(lambda: bool(job.reports) and job.shown().observed.in_hand.rows > 0, "rows in hand")
            job.until(lambda: job.report().observed.in_hand.rows > 0, "status tells of rows in hand")
            job.until(lambda: job.shown().observed.in_hand.captured > 0, "changes captured in hand")
            job.ask(lambda config: requests.throttle(config, rows_per_second=None))
            job.until_live()
            job.until(lambda: any(report.observed.in_hand.merged for report in job.reports), "changes merged in hand")
        job.stop()
        assert job.shown().observed.in_hand == InHand()
        committed = {state.rows for run in job.runs for state in run.saved}
        assert {report.rows for report in job.reports} <= committed
        assert never_falls([report.rows for report in job.reports])
        assert never_falls([report.percent for report in job.reports])
        job.assert_equal()


def test_definite_failure_stops_before_anything_else_of_its_epoch_counts(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """The failure of one actor is taken first, although the others have done their part long before."""
    with live_job(spark, mariadb_server, tmp_path, rows=500, settings={"schema_changes": "stop"}) as job:
        job.start()
        job.until_live()
        before = job.state
        run(job, "ALTER TABLE orders ADD COLUMN surprise INT")
        job.until_ended()
        assert job.failure is not None
        assert "orders" in job.failure.message
        report = job.report()
        assert report.phase is JobPhase.FAILED
        assert report.failure is not None
        assert report.failure.message == job.failure.message
        assert job.state.epoch <= before.epoch + 1
        assert all(vnode.phase is Phase.LIVE for vnode in job.state.vnodes)


def run(job: LiveJob, statement: str) -> None:
    with job.case.server.connect(job.case.database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def test_failure_is_taken_before_what_arrived_earlier_and_the_root_cause_is_named(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """While the loop waits, the snapshot reports, then two actors fail, one of them only because nobody listens any
    more."""
    read = threading.Event()
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:

        def fault(moment: Moment, action: Action) -> BaseException | None:
            match moment, action:
                case "before", CommitEpoch():
                    job.runs[-1].going.clear()
                case "after", ReadRanges():
                    read.set()
                case "before", BufferChanges() if read.wait(180):
                    return BrokenPipeError("nobody listens")
                case "before", MergeEpoch() if read.wait(180):
                    return SinkError("the target said no")
            return None

        job.seams.fault = fault
        job.start()
        job.until(lambda: read.is_set() and job.runs[-1].at_rest, "everything is reported")
        job.seams.fault = no_fault
        job.runs[-1].going.set()
        job.until_ended()
        assert job.failure is not None
        assert job.failure.message == "the target said no"
        assert all(coordinator.collected.read is None for coordinator in job.runs[-1].coordinators)
        assert job.state.rows == 0


def test_dead_database_is_named_by_its_address(spark: SparkSession, own_server: MariaDbServer, tmp_path: Path) -> None:
    with live_job(spark, own_server, tmp_path, rows=2000, settings=NO_RETRY) as job:
        job.start()
        job.until_live()
        own_server.kill()
        job.until_ended()
        assert job.failure is not None
        assert f"{own_server.host}:{own_server.port}" in job.failure.message
        assert "connection lost" in job.failure.message
        own_server.start()


def retry_of(report: Report) -> str:
    retry = report.observed.retry
    return "" if retry is None else f"attempt {retry.attempt}: {retry.message}"


def test_job_survives_a_restart_of_the_database_and_shows_the_attempts(
    spark: SparkSession, own_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, own_server, tmp_path, rows=3000, settings=PATIENT) as job:
        with writing(job):
            job.start()
            job.until(lambda: job.state.rows > 0, "the first rows")
            for _ in range(2):
                own_server.kill()
                job.until(
                    lambda: (shown := job.shown().observed.retry) is not None and shown.attempt >= 2, "two attempts"
                )
                job.until(lambda: "connection lost" in retry_of(job.report()), "status names the error and the attempt")
                own_server.start()
                job.until(lambda: job.shown().observed.retry is None, "it goes on")
            job.ask(lambda config: requests.throttle(config, rows_per_second=None))
            job.until_live()
        job.stop()
        job.assert_equal()


def test_job_that_is_started_without_its_database_waits_for_it(
    spark: SparkSession, own_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, own_server, tmp_path, rows=200) as job:
        job.start(Until.LIVE)
        job.until_ended()
        own_server.kill()
        with job.case.started("run", "--until", "live") as driver:
            wait_for(lambda: "attempt 2 of 9 failed" in driver.output.read_text(), "two attempts", seconds=180)
            own_server.start()
            assert "connection lost while connecting to" in driver.wait(0)


def test_idle_job_that_loses_its_database_often_but_briefly_never_gives_up(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """Attempts count in a row: what passed is forgotten, although an idle job commits nothing."""
    with live_job(spark, mariadb_server, tmp_path, rows=200, settings={"limits": {"retries": 2}}) as job:
        job.start()
        job.until_live()
        idle_barriers(job, 3)
        for _ in range(4):
            failed = len(job.reports)
            job.seams.fault = fails_once(SampleSource, SourceLostError("connection lost for a moment"))
            job.until(lambda: any(r.observed.retry for r in job.reports[failed:]), "a retry")  # noqa: B023
            idle_barriers(job, 2)
        job.until(lambda: job.shown().observed.retry is None, "the error is forgotten")
        job.stop()
        job.assert_equal()


def test_sink_that_cannot_be_written_is_named_by_its_path(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=2000, settings=PATIENT) as job:
        job.start()
        job.until(lambda: job.state.rows > 0, "the first rows")
        aside = tmp_path / "aside"
        job.case.lake.rename(aside)
        job.case.lake.write_text("not a folder")
        job.until_ended()
        assert job.failure is not None
        assert str(job.case.lake) in job.failure.message + job.failure.detail
        assert job.report().phase is JobPhase.FAILED
        job.case.lake.unlink()
        aside.rename(job.case.lake)
        job.start()
        job.ask(lambda config: requests.throttle(config, rows_per_second=None))
        job.until_live()
        job.stop()
        job.assert_equal()


def test_passing_failure_of_the_sink_is_retried_and_named(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        error = SinkUnavailableError("the target cannot be reached")
        job.seams.fault = fails_once(MergeEpoch, error)
        job.start()
        job.until_live()
        registry = job.runs[-1].watch.metrics.registry
        assert registry.get_sample_value("vnode_backfill_retries_total", {"actor": Actor.MERGE}) == 1
        job.stop()
        job.assert_equal()


def test_killed_python_worker_is_named_and_its_epoch_repeated(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=3000, settings=PATIENT) as job:
        job.start()
        job.until(lambda: job.state.rows > 0, "the first rows")
        job.until(
            lambda: kill_python_workers(os.getpid()) > 0 and job.shown().observed.retry is not None, "a worker died"
        )
        retry = job.shown().observed.retry
        assert retry is not None
        assert retry.message.startswith("a Spark job failed")
        last_error = job.coordinator.last_error
        assert last_error is not None
        assert "Python worker" in last_error.detail
        job.ask(lambda config: requests.throttle(config, rows_per_second=None))
        job.until_live()
        job.stop()
        job.assert_equal()
