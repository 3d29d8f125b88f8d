"""Proves that a range counts as read only if the files that the sink holds of it have as many rows as were read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.log.offset import VisibleAt
from consume_upstream.upstream_table import UpstreamSession, UpstreamTable
from progress.state.backfill_state import Intent
from progress.store.store import StateStore
from progress.task_progress import EpochProgress
from tests.unit.progress.state.state_examples import at, beginning, plan_with
from vnode_backfill.config.job import Config
from vnode_backfill.decide.protocol import CommitReceipts
from vnode_backfill.job.run.observations import Pace
from vnode_backfill.job.run.reading import RangeReading, ReadingTools
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.spark_work import SparkWork
from vnode_backfill.job.run.table_versions import TableVersions
from vnode_backfill.sinks import FileReceipt, ReadReceipt, Sink
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.schema_change import TableShape

PLAN = plan_with(0, 10, 20)


@dataclass
class Landed:
    """A target that holds these reads, whatever is committed to it."""

    receipts: tuple[ReadReceipt, ...]

    def use(self, shape: TableShape) -> None:
        assert shape.definition == Known.definition

    def commit_reads(self, *_: object) -> tuple[ReadReceipt, ...]:
        return self.receipts


class Known:
    """The table as the job was created with it."""

    definition = TableDefinition("shop", "orders", (Column.parse("id", "bigint", nullable=False),), ("id",))


def never_asked() -> AbstractContextManager[UpstreamSession]:
    raise AssertionError("the order of numbers is known here")


def commit(*held: ReadReceipt) -> list[tuple[int, int]]:
    """What a commit reports where the target holds these reads. Nothing else of a job takes part."""
    services = Services(
        cast(Config, None), cast(SparkSession, None), cast(UpstreamTable, Known()), cast(Sink, Landed(held)),
        cast(ChangeBuffer, None), cast(StateStore, None),
    )  # fmt: skip
    tools = ReadingTools(
        services, cast(SparkWork, None), cast(EpochProgress, None), Pace(), never_asked, TableVersions(services)
    )
    barrier = Barrier(Epoch(1), BarrierKind.CHECKPOINT)
    intent = Intent(Epoch(1), BarrierKind.CHECKPOINT, at(200), VisibleAt(at(200)), ((0, 1),), 0)
    state = replace(beginning(PLAN), intent=intent)
    reported = RangeReading(tools).commit(CommitReceipts(barrier, (), frozenset()), Committed(state, PLAN))
    return [(receipt.ordinal, receipt.rows) for receipt in reported]


def test_ranges_whose_files_hold_what_was_read_are_reported() -> None:
    held = ReadReceipt(0, 7, (FileReceipt("a", 100, 3), FileReceipt("b", 100, 4)))
    assert commit(held, ReadReceipt(1, 0)) == [(0, 7), (1, 0)]


@pytest.mark.parametrize("rows", [6, 8])
def test_range_whose_files_hold_other_rows_is_a_broken_law(rows: int) -> None:
    held = ReadReceipt(0, rows, (FileReceipt("a", 100, 3), FileReceipt("b", 100, 4)))
    with pytest.raises(LawBrokenError, match=f"range 0: {rows} rows were read, its files hold 7"):
        commit(held)
