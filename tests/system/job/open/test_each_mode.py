"""One job of every start-up mode brings what its mode promises, and a copy is handed over without a gap.

CI runs these, on one server. `test_startup_modes.py` and `test_handoff.py` have more of each among the long tests: both
servers, wrong beginnings and kills.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, SqlServer
from devkit.orders import orders_table
from devkit.writer import Workload
from tests.system.job.open.startup_case import Source, config_of, source_on, table_of
from tests.system.job_case import JobCase
from vnode_backfill.job.open.handoff import read_handoff

ROWS = 200
OLD = 3600
"""Seconds since the changes that a job which begins at a later moment leaves out."""


@pytest.fixture(scope="module")
def server() -> Iterator[SqlServer]:
    """A server whose log is short: `earliest` reads it from its beginning."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def source(server: SqlServer, tmp_path: Path) -> Iterator[Source]:
    with source_on(server, tmp_path, rows=ROWS) as source:
        yield source


def with_lake_of_its_own(source: Source, name: str) -> Source:
    folder = source.folder / f"of-{name}"
    folder.mkdir()
    return Source(source.server, source.database, folder)


def test_initial_brings_old_rows_then_new_ones(spark: SparkSession, source: Source) -> None:
    case = source.job("whole", {"startup_mode": "initial"})
    source.to_live(spark, case)
    assert len(source.keys()) == ROWS
    source.insert(1001, 1002)
    source.execute("DELETE FROM {table} WHERE id <= 3")
    source.to_live(spark, case)
    assert source.differences() == []


def test_snapshot_is_handed_over_to_a_job_that_follows_it_while_somebody_writes(
    spark: SparkSession, source: Source
) -> None:
    copy = source.job("copy", {"startup_mode": "snapshot"})
    follow = source.job("follow", {"startup_mode": "specific", "specific": {"from_job": "copy"}})
    table = orders_table(source.database)
    with Workload(lambda: source.server.connect(source.database), table, seed=5, rate=100, large_rows=50):
        source.to_live(spark, copy)
        source.insert(5001)
        source.to_live(spark, follow)
    handoff = read_handoff(config_of(copy), "copy")
    assert handoff is not None
    assert handoff.offset < table_of(source).written_offset()
    source.to_live(spark, follow)
    assert source.differences() == []


def test_each_mode_that_only_follows_brings_what_the_log_holds_from_its_beginning(
    spark: SparkSession, source: Source
) -> None:
    now, reader = int(time.time()), table_of(source)
    long_ago = f"SET SESSION timestamp = {now - OLD}"
    source.execute(long_ago, "FLUSH BINARY LOGS")
    source.purge_to(reader.written_offset().file)
    source.execute(long_ago, "DELETE FROM {table} WHERE id = 10", "UPDATE {table} SET flag = 1 WHERE id = 2")
    of_latest = with_lake_of_its_own(source, "latest")
    latest = of_latest.job("latest", {"startup_mode": "latest"})
    of_latest.to_live(spark, latest)
    assert of_latest.keys() == []
    middle = reader.written_offset()
    source.insert(1001, 1002)
    source.execute("UPDATE {table} SET flag = 1 WHERE id = 1")
    moment = datetime.fromtimestamp(now - OLD / 2, UTC).isoformat()
    begins: dict[str, dict[str, object]] = {
        "earliest": {"startup_mode": "earliest"},
        "timestamp": {"startup_mode": "timestamp", "timestamp": moment},
        "position": {"startup_mode": "specific", "specific": {"file": middle.file, "pos": middle.pos}},
        "gtid": {"startup_mode": "specific", "specific": {"gtid": middle.gtids}},
    }
    brought = {"latest": keys_after(spark, of_latest, latest)}
    for mode, cdc in begins.items():
        own = with_lake_of_its_own(source, mode)
        brought[mode] = keys_after(spark, own, own.job(mode, cdc))
        # What it brings is exact: all that it lacks are rows that nobody touched since.
        assert {str(difference.kind) for difference in own.differences()} == {"missing"}, mode
    assert brought == {mode: [1, 1001, 1002] for mode in brought} | {"earliest": [1, 2, 1001, 1002]}


def keys_after(spark: SparkSession, source: Source, case: JobCase) -> list[int]:
    source.to_live(spark, case)
    return source.keys()
