"""A driver that finishes nothing is not healthy, however often it says that it lives; and a failed attempt that does
not end ends the job."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer
from devkit.process import free_ports
from devkit.waiting import wait_for
from tests.system.live_job import fails_once, live_job
from vnode_backfill.decide.protocol import CommitReceipts, MergeEpoch, ReadRanges
from vnode_backfill.job.run import performer
from vnode_backfill.words.errors import SourceLostError


def health(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_driver_that_finishes_nothing_becomes_unhealthy_and_recovers(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    (port,) = free_ports()
    ui: dict[str, object] = {"ui": {"port": port, "stalled_after": "1s"}}
    with live_job(spark, mariadb_server, tmp_path, rows=500, settings=ui) as job:
        job.start()
        with job.seams.holding(CommitReceipts):
            wait_for(lambda: health(port)[0] == 503, "the driver to be unhealthy", state=lambda: health(port))
            assert health(port)[1].startswith("stalled: the driver has finished nothing for ")
            assert job.running
        job.until(lambda: health(port)[0] == 200, "the driver to be healthy again")
        job.until_live()
        job.stop()
        job.assert_equal()


def test_failed_attempt_that_does_not_end_ends_the_job_with_the_reason(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performer, "_END_SECONDS", 0.5)
    monkeypatch.setattr(performer, "_CLOSE_SECONDS", 0.5)
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        job.case.mysql["read_timeout"] = "1s"
        job.seams.fault = fails_once(ReadRanges, SourceLostError("the source is away"))
        job.start()
        with job.seams.holding(MergeEpoch):
            job.until_ended()
        assert job.failure is not None
        assert job.failure.message == "1 orders of a failed attempt have not ended after 2 s"
        assert job.state.failure == job.failure
        job.start()
        job.until_live()
        job.stop()
        job.assert_equal()
