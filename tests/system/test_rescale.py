"""Vnodes move between workers at a barrier, in every phase, and take their state with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from tests.system.live_job import LiveJob, live_job, writing
from vnode_backfill import steering


@pytest.fixture
def job(spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path) -> Iterator[LiveJob]:
    with live_job(spark, mysql_server, tmp_path) as made:
        yield made


def test_x(job: LiveJob) -> None:
    with writing(job):
        job.start()
        job.until_live()
        job.ask(lambda config: steering.rescale(config, workers=5, bitmaps=()))
        assert len(job.state.assignment) == 5
    job.stop()
    job.assert_equal()
