"""Each worker of a running job is one Spark partition, which reads the ranges of its bitmap and no others.

A real job runs here: the coordinator chooses the lanes, the performer makes them, and Spark runs them as tasks. In
mid-snapshot an operator gives new bitmaps by hand. The tasks note which partition wrote which keys. Then each key is
placed again by the hash of its range's low bound, and the worker that the committed state names for that vnode must be
the partition that read it.

It fails when lanes share a Spark partition, when a lane holds a range of another worker, and when bitmaps that were
given are not used, are used too late, or lose a vnode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from progress.state.backfill_state import BackfillState
from tests.system.live_job import LiveJob, live_job
from tests.system.snapshot.noted_reads import Noted, note_reads, noted
from vnode_backfill.commands import requests
from vnode_backfill.decide.protocol import ReadRanges
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.words.key import encode_key, vnode_of
from vnode_backfill.words.key_range import SplitPlan, bound_of

ROWS = 2_400
GIVEN = ("0=0-2,9", "1=3-5", "2=6-8,14", "3=10-13", "4=15")
"""Bitmaps by hand for 16 vnodes: more workers than before, of different sizes, and not in one piece."""


@pytest.fixture
def job(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveJob]:
    note_reads(monkeypatch, tmp_path / "notes")
    settings: dict[str, object] = {
        "workers": 3,
        "epoch": {"backfill": "1ms", "live": "200ms"},  # a worker begins about one range in each epoch
        "limits": {"range_rows": 100},
    }
    with live_job(spark, mysql_server, tmp_path, rows=ROWS, settings=settings) as made:
        yield made


def test_spark_partition_reads_exactly_the_ranges_of_its_bitmap_also_after_a_rescale(job: LiveJob) -> None:
    job.start()
    with job.seams.holding(ReadRanges):
        requests.rescale(job.config, workers=None, bitmaps=GIVEN)
        job.until(lambda: bool(job.coordinator.requests), "the request was found")
    job.until_live()
    reads = noted(job.case.folder / "notes")
    job.stop()
    assert sorted(key for read in reads for key in read.keys) == [1 + 3 * number for number in range(ROWS)]
    assert lane_counts(job, reads) == {3, 5}
    assert_partitions_are_lanes(job, reads)
    assert_keys_are_of_the_workers_vnodes(job, reads)
    job.assert_equal()


def state_of(job: LiveJob, epoch: int) -> BackfillState:
    """The commit whose intent ordered the epoch's reads."""
    return next(each for each in job.committed if each.intent is not None and each.intent.epoch == epoch)


def lane_counts(job: LiveJob, reads: list[Noted]) -> set[int]:
    """How many workers there were in the epochs that read something."""
    return {len(state_of(job, read.epoch).assignment) for read in reads}


def assert_partitions_are_lanes(job: LiveJob, reads: list[Noted]) -> None:
    """In each epoch partition i wrote what the i-th lane with work was ordered to read, all of it or its beginning."""
    ordered = {int(order.barrier.epoch): order.lanes for order in job.seams.orders if isinstance(order, ReadRanges)}
    written: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for read in reads:
        written[read.epoch][read.partition].append(read.ordinal)
    for epoch, partitions in written.items():
        working = [lane for lane in ordered[epoch] if lane]
        assert set(partitions) == set(range(len(working)))
        assert all(tuple(held) == working[number][: len(held)] for number, held in partitions.items())


def assert_keys_are_of_the_workers_vnodes(job: LiveJob, reads: list[Noted]) -> None:
    loaded = state_store(job.config).load()
    assert loaded is not None
    for read in reads:
        state = state_of(job, read.epoch)
        assert state.intent is not None
        working = [worker for worker, lane in enumerate(state.intent.ranges) if lane]
        bitmap = state.assignment[working[read.partition]]
        assert all(vnode_by_hash(loaded.plan, key) in bitmap for key in read.keys)


def vnode_by_hash(plan: SplitPlan, key: int) -> int:
    """The vnode of a planned key, as the protocol defines it: the hash of the low bound of its range."""
    order = bound_of(plan.parts, (key,)).order
    (held,) = (each.range for each in plan.ranges if each.range.holds(order))
    assert held.low is not None
    return vnode_of(encode_key(plan.parts, held.low.key), plan.vnode_count)
