"""Whoever opens a job finds its rows: in the target, or in the copy that the job makes beside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from consume_upstream.upstream_table import UpstreamTable
from progress.store.lease import Lease, Process
from progress.store.rows.job_rows import JobRecord
from tests.unit.sinks.delta.shapes import ITEMS, Cells, lake, merge, read
from vnode_backfill.config.job import Config, MergeMode
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.delta import DeltaDescription
from vnode_backfill.job.sink.description import WritingJob
from vnode_backfill.words.errors import PlanRefusedError

NOW = datetime(2024, 5, 1, tzinfo=UTC)
ROW: Cells = {"id": 1, "name": "a", "count": 10, "price": 0.5}
IOTDB = {"host": "h", "device": "root.plant.s{id}", "time": {"column": "count", "unit": "s"}}


def described(folder: Path, **delta: object) -> DeltaDescription:
    sink = {"delta": {"path": str(folder / "target"), **delta}}
    found = configured_sink(config(folder, sink))
    assert isinstance(found, DeltaDescription)
    return found


def config(folder: Path, sink: object) -> Config:
    return Config.model_validate(
        {
            "job": "case",
            "mysql": {"host": "h", "user": "u", "database": "shop", "table": "orders"},
            "sink": sink,
            "state": {"path": str(folder / "state")},
        }
    )


def writing(generation: int = 1) -> WritingJob:
    """Another job each time, as far as its id goes."""
    record = JobRecord.new("case", ITEMS, vnode_count=8, server="s", sink="delta", now=NOW)
    lease = Lease(generation, "me", cast(Process, None), NOW, NOW, timedelta(seconds=30))
    return WritingJob(record, cast(UpstreamTable, None), lease, "")


def test_a_copy_is_found_until_it_is_in_place(tmp_path: Path) -> None:
    description, first, second = described(tmp_path), writing(), writing()
    description.prepare_new(first, taken_over=False)
    read(description.open(first), 1, ITEMS, ROW)
    assert description.prepare_beside(second)
    sink = description.open(second)
    assert (sink.is_beside, description.open(first).is_beside) == (True, False)
    sink.prepare()
    read(sink, 1, ITEMS, {**ROW, "name": "new"})
    assert lake(tmp_path) == [ROW]
    sink.put_in_place()
    again = description.open(second)
    assert not again.is_beside
    merge(again, 2, ITEMS, {**ROW, "name": "newer"})
    assert lake(tmp_path) == [{**ROW, "name": "newer"}]


@pytest.mark.parametrize("mode", MergeMode)
def test_a_copy_is_changed_as_the_target_is(tmp_path: Path, mode: MergeMode) -> None:
    description = described(tmp_path, merge=str(mode))
    description.prepare_new(writing(), taken_over=False)
    assert described(tmp_path).prepare_beside(writing()) == (mode is MergeMode.VECTORS)


def test_a_copy_never_empties_the_target(tmp_path: Path) -> None:
    description, first, second = described(tmp_path, replace=True), writing(), writing()
    description.prepare_new(first, taken_over=False)
    read(description.open(first), 1, ITEMS, ROW)
    description.prepare_beside(second)
    description.open(second).prepare()
    assert lake(tmp_path) == [ROW]


def test_copies_that_were_given_up_are_discarded(tmp_path: Path) -> None:
    description, jobs = described(tmp_path), [writing() for _ in range(3)]
    description.prepare_new(jobs[0], taken_over=False)
    for job in jobs[1:]:
        description.prepare_beside(job)
    description.discard_copies(jobs[2].record.id)
    assert [path.name for path in (tmp_path / "target/_copies").iterdir()] == [jobs[2].record.id]
    description.open(jobs[2]).put_in_place()
    description.discard_copies("of a later job")
    assert (tmp_path / "target/_copies" / jobs[2].record.id).exists()


def test_points_have_no_copy_beside_them(tmp_path: Path) -> None:
    description = configured_sink(config(tmp_path, {"iotdb": IOTDB}))
    description.discard_copies("x")
    with pytest.raises(PlanRefusedError, match="cannot be made beside"):
        description.prepare_beside(writing())
