"""Vnodes move between workers at a barrier, in every phase, and take their state with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table
from devkit.writer import Workload
from progress.state.backfill_state import BackfillState, Phase, VnodeState
from tests.system.job_case import JobCase
from tests.system.live_job import LiveJob, live_job, never_falls, writing
from vnode_backfill.commands import requests
from vnode_backfill.config.job import Config
from vnode_backfill.decide.protocol import SampleSource
from vnode_backfill.words.bitmap import moved, split_evenly
from vnode_backfill.words.epoch import BarrierKind

pytestmark = pytest.mark.long

VNODES = 16
SLOWLY = 800
"""Rows per second at which a job begins, so that it can be caught in the middle."""


@pytest.fixture
def job(spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path) -> Iterator[LiveJob]:
    limits = {"range_rows": 100, "rows_per_second": SLOWLY}
    with live_job(spark, mysql_server, tmp_path, rows=8000, settings={"limits": limits}) as made:
        yield made


def to(workers: int) -> Callable[[Config], int]:
    return lambda config: requests.rescale(config, workers=workers, bitmaps=())


def at_full_speed(config: Config) -> int:
    return requests.throttle(config, rows_per_second=None)


def fewest_moves(before: BackfillState, workers: int) -> int:
    """How many vnodes have to change hands at least: what no worker may keep of what it has."""
    largest = sorted((len(bitmap) for bitmap in before.assignment), reverse=True)[:workers]
    quotas = sorted((len(bitmap) for bitmap in split_evenly(VNODES, workers)), reverse=True)
    return VNODES - sum(min(had, may) for had, may in zip(largest, quotas, strict=False))


def assert_nothing_lost(before: BackfillState, after: BackfillState) -> None:
    """What was read stays read, once; what was applied stays applied; no phase goes back."""
    order = list(Phase)
    for old, new in zip(before.vnodes, after.vnodes, strict=True):
        assert old.read_ordinals <= new.read_ordinals
        assert len(new.reads) == len(new.read_ordinals)
        assert old.rows <= new.rows
        assert old.applied <= new.applied
        assert order.index(old.phase) <= order.index(new.phase)


def test_rescale_in_mid_snapshot_moves_as_few_vnodes_as_possible(job: LiveJob) -> None:
    with writing(job):
        job.start()
        for workers in (5, 1, VNODES):
            job.ask(to(workers))
            before, after = job.rescaled()
            assert len(after.assignment) == workers
            assert any(vnode.complete is None for vnode in after.vnodes)
            assert len(moved(before.assignment, after.assignment)) == fewest_moves(before, workers)
            assert_nothing_lost(before, after)
            assert_drained(after)
        job.ask(at_full_speed)
        job.until_live()
    job.stop()
    job.assert_equal()
    assert never_falls([report.percent for report in job.reports])
    assert never_falls([report.rows for report in job.reports])


def catching_up(vnodes: tuple[VnodeState, ...]) -> bool:
    return all(v.complete is not None for v in vnodes) and any(v.phase is Phase.CATCH_UP for v in vnodes)


def assert_drained(after: BackfillState) -> None:
    """Bitmaps change with the end of a SyncCheckpoint: every vnode that could be merged is, up to one offset."""
    assert {vnode.applied for vnode in after.vnodes if vnode.phase is Phase.LIVE} <= {after.written}
    assert all(vnode.phase is Phase.LIVE or vnode.complete in (None, after.epoch) for vnode in after.vnodes)


def test_rescale_while_catching_up_keeps_every_window(job: LiveJob) -> None:
    with writing(job):
        job.start()
        at_full_speed(job.config)
        with job.seams.holding(SampleSource, lambda: catching_up(job.state.vnodes)):
            to(4)(job.config)
            job.until(lambda: bool(job.coordinator.requests), "the request was found")
        job.until_answered()
        before, after = job.rescaled()
        assert catching_up(before.vnodes)
        assert before.intent is not None
        assert before.intent.kind is BarrierKind.SYNC_CHECKPOINT
        assert_nothing_lost(before, after)
        assert_drained(after)
        job.until_live()
    job.stop()
    job.assert_equal()


def test_live_job_is_rescaled_out_in_and_by_explicit_bitmaps(job: LiveJob) -> None:
    given = ("0=0-2,9", "1=3-8", "2=10-15")
    with writing(job) as workload:
        job.start()
        job.ask(at_full_speed)
        job.until_live()
        for request in (to(VNODES), to(1), lambda config: requests.rescale(config, workers=None, bitmaps=given)):
            job.ask(request)
            before, after = job.rescaled()
            assert_nothing_lost(before, after)
            assert_drained(after)
            assert all(vnode.phase is Phase.LIVE for vnode in after.vnodes)
            written = workload.transactions
            job.until(lambda: workload.transactions > written + 20, "more traffic")  # noqa: B023
        assert tuple(map(str, job.state.assignment)) == ("0-2,9", "3-8", "10-15")
    job.stop()
    job.assert_equal()


def read_of(state: BackfillState) -> list[tuple[object, ...]]:
    return [(vnode.reads, vnode.rows, vnode.complete) for vnode in state.vnodes]


def test_rescale_of_a_paused_job_reads_nothing_and_keeps_what_is_read(job: LiveJob) -> None:
    job.start()
    job.until(lambda: job.state.rows > 0, "the first rows")
    job.ask(requests.pause)
    job.until(lambda: job.state.intent is None, "nothing left to do while paused")
    job.ask(to(6))
    before, after = job.rescaled()
    assert read_of(after) == read_of(before)
    assert_drained(after)
    assert any(vnode.complete is None for vnode in after.vnodes)
    with writing(job):
        job.ask(at_full_speed)
        job.ask(requests.resume)
        job.until_live()
    job.stop()
    job.assert_equal()


def test_request_made_while_nobody_drives_is_honoured_by_the_next_driver(
    job: LiveJob, capsys: pytest.CaptureFixture[str]
) -> None:
    with writing(job):
        job.start()
        job.until(lambda: job.state.rows > 0, "the first rows")
        job.stop()
        assert not job.state.is_live
        left = job.state.vnodes
        to(7)(job.config)
        assert "when the job is run again" in capsys.readouterr().out
        at_full_speed(job.config)
        job.start()
        job.until(lambda: bool(job.committed), "the first commit")
        assert job.committed[0].vnodes == left
        job.until_answered()
        assert len(job.state.assignment) == 7
        job.until_live()
    job.stop()
    job.assert_equal()
    assert never_falls([report.percent for report in job.reports])
    assert never_falls([report.rows for report in job.reports])


def test_rescale_between_crashes_loses_and_repeats_nothing(mysql_server: MySqlServer, tmp_path: Path) -> None:
    with mysql_server.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE crashing")
        table = create_orders_table(connection, 3000, 3, database="crashing", key_step=3)
    case = JobCase(mysql_server, tmp_path, "crashing", settings={"limits": {"range_rows": 50, "rows_per_second": 1000}})
    with Workload(lambda: mysql_server.connect("crashing"), table, seed=2, rate=100, large_rows=100):
        case.run(kill="after:CommitReceipts:2")
        case.command("rescale", "--workers", "5")
        case.run(kill="before:CommitEpoch:5")
        assert len(_workers(case)) == 5
        case.command("rescale", "--workers", "1")
        case.command("throttle", "--off")
        case.to_live()
        assert len(_workers(case)) == 1
    case.to_live()
    assert case.differences() == []


def _workers(case: JobCase) -> list[object]:
    found = case.status()["workers"]
    assert isinstance(found, list)
    return found
