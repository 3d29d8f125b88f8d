"""A log that was reset and has grown past the point up to which a job has read it: same server, same file, same GTIDs.

Every transaction has the same size, so that the old point is the end of a transaction in the new log too. Only the
identity of the file shows that it is another one. The job stops before it misses a change, and what it prints to do
next ends with an equal target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.live_job import LiveJob, live_job
from vnode_backfill.commands import requests
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.decide.protocol import SampleSource
from vnode_backfill.job.open.locations import owner, state_store
from vnode_backfill.job.open.source import open_table
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import SourceError

ROWS = 500
READ, GROWN = 20, 40
"""Transactions of the log that the job has read, and of the one that takes its place."""


def reset_log(server: SqlServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("RESET MASTER")


def write(job: LiveJob, transactions: int, flag: int) -> None:
    """So many transactions of one size, each of which changes another row."""
    with job.case.server.connect(job.case.database) as connection, connection.cursor() as cursor:
        for number in range(transactions):
            cursor.execute("UPDATE orders SET flag = %s WHERE id = %s", (flag, 1 + 3 * number))
            connection.commit()


def to_live(job: LiveJob) -> None:
    job.start(Until.LIVE)
    job.until_ended()
    job.raise_errors()


@contextmanager
def job_on(spark: SparkSession, kind: type[SqlServer], folder: Path) -> Iterator[LiveJob]:
    """A job that is live and stopped, and has read a log of `READ` transactions."""
    with kind() as server, live_job(spark, server, folder, rows=ROWS) as job:
        reset_log(server)
        write(job, READ, 101)
        to_live(job)
        yield job


def copy_again(job: LiveJob) -> None:
    """The way on that the error names."""
    assert resnapshot(job.config, only=None, where_key=None, everything=True) == 0
    to_live(job)
    job.assert_equal()


def a_log_reset_while_the_job_is_stopped(spark: SparkSession, kind: type[SqlServer], folder: Path) -> None:
    with job_on(spark, kind, folder) as job:
        saved = job.state
        reset_log(job.case.server)
        write(job, GROWN, 102)
        with pytest.raises(SourceError, match="another log") as refused:
            to_live(job)
        assert str(saved.written) in refused.value.message
        assert "resnapshot --all" in refused.value.hint
        assert job.state.vnodes == saved.vnodes
        copy_again(job)


def test_a_log_reset_while_the_job_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    a_log_reset_while_the_job_is_stopped(spark, MariaDbServer, tmp_path)


@pytest.mark.long
def test_a_mysql_log_reset_while_the_job_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    a_log_reset_while_the_job_is_stopped(spark, MySqlServer, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_log_reset_under_a_running_job_that_has_grown_before_the_next_sample(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with job_on(spark, kind, tmp_path) as job:
        job.start()
        with job.seams.holding(SampleSource):
            before = job.state
            reset_log(job.case.server)
            write(job, GROWN, 102)
        job.until_ended()
        assert job.failure is not None
        assert "another log" in job.failure.message
        assert "resnapshot --all" in job.failure.hint
        assert job.state.vnodes == before.vnodes
        with pytest.raises(SourceError, match="another log"):
            to_live(job)
        copy_again(job)


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_file_keeps_its_identity_when_the_server_rotates_is_stopped_and_is_killed(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with job_on(spark, kind, tmp_path) as job:
        server, known = job.case.server, job.state.written
        interrupts: tuple[Callable[[SqlServer], None], ...] = (flush_log, restart, crash)
        for flag, interrupt in enumerate(interrupts, 103):
            write(job, READ, flag)
            interrupt(server)
            open_table(job.config).check_log(known)
            write(job, READ, flag + 10)
            to_live(job)
            job.assert_equal()
        assert job.state.written.number == known.number + 3
        assert job.state.written.log not in ("", known.log)


def flush_log(server: SqlServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")


def restart(server: SqlServer) -> None:
    server.restart()


def crash(server: SqlServer) -> None:
    server.kill()
    server.start()


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_job_of_a_release_that_stored_no_identity_takes_it_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with job_on(spark, kind, tmp_path) as job:
        forget_identity(job)
        write(job, READ, 103)
        to_live(job)
        job.assert_equal()
        assert job.state.written.log
        reset_log(job.case.server)
        write(job, 3 * GROWN, 104)
        with pytest.raises(SourceError, match="another log"):
            to_live(job)


def forget_identity(job: LiveJob) -> None:
    store = state_store(job.config)
    store.acquire_lease(owner(), job.config.state.lease)
    loaded = store.load()
    assert loaded is not None
    state = loaded.state
    intent = state.intent and replace(state.intent, written=replace(state.intent.written, log=""))
    written = replace(state.written, log="")
    store.commit(replace(state, revision=state.revision + 1, written=written, intent=intent))
    store.release()


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_log_reset_between_a_copy_and_the_job_that_follows_is_refused(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with kind() as server, live_job(spark, server, tmp_path, rows=ROWS) as job:
        reset_log(server)
        write(job, READ, 101)
        job.case.mysql = {"cdc": {"startup_mode": "snapshot"}}
        job.case.command("run")
        reset_log(server)
        write(job, GROWN, 102)
        job.case.mysql = {"cdc": {"startup_mode": "specific", "specific": {"from_job": "case"}}}
        job.case.use(job="follower")
        assert "is of another log than the server has now" in job.case.command("run", code=2)


@pytest.mark.long
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_the_single_executor_refuses_a_log_that_was_reset(
    spark: SparkSession, tmp_path: Path, kind: type[SqlServer]
) -> None:
    with kind() as server, live_job(spark, server, tmp_path, rows=ROWS) as job:
        reset_log(server)
        write(job, READ, 101)
        job.case.use(executor="single")
        assert job.case.here(spark).run() is None
        reset_log(server)
        write(job, GROWN, 102)
        with pytest.raises(SourceError, match="another log") as refused:
            job.case.here(spark)
        assert "`vnode-backfill drop`, then run it with `sink.delta.replace: true`" in refused.value.hint
        assert requests.drop(job.config) == 0
        job.case.use(sink={"delta": {"path": str(job.case.lake), "replace": True}})
        assert job.case.here(spark).run() is None
        job.assert_equal()
