"""Reads the ranges of an epoch and commits them to the sink.

Executors differ in this alone, so it is a collaborator of the performer: `RangeReading` reads planned ranges, one lane
per worker; `key_walk_job.WalkReading` walks the whole key. What must be true of both: a receipt is reported only for
what the sink holds, or will hold when the receipts are committed; what landed before a crash is reported and not read
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from consume_upstream.key_order import KeyOrder, LendSession
from progress.task_progress import EpochProgress, ReadBefore
from vnode_backfill.decide.protocol import CommitReceipts, RangeReceipt, ReadRanges
from vnode_backfill.job.run.observations import Pace
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.spark_work import SparkWork
from vnode_backfill.job.run.table_versions import TableVersions
from vnode_backfill.sinks import ReadReceipt
from vnode_backfill.snapshot.vnode_stream import Lane, LanesRead, read_ranges
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import LawBrokenError

Receipts = tuple[RangeReceipt, ...]


class Reading(Protocol):
    """Reads an epoch's ranges, then commits them; `commit` follows `read` of the same attempt."""

    @property
    def refused(self) -> str:
        """Why the source did not read a range by the columns that the job knows; empty if it read all."""
        ...

    def read(self, action: ReadRanges, committed: Committed) -> Receipts: ...

    def commit(self, action: CommitReceipts, committed: Committed) -> Receipts: ...


@dataclass(frozen=True, slots=True)
class ReadingTools:
    """What a performer lends to its reading."""

    services: Services
    spark: SparkWork
    progress: EpochProgress
    pace: Pace
    lend: LendSession
    versions: TableVersions

    @property
    def epoch_seconds(self) -> float:
        return self.services.config.epoch.backfill.total_seconds()


MakeReading = Callable[[ReadingTools], Reading]


@dataclass(frozen=True, slots=True)
class PreparedRead:
    """The lanes that are left to read of an order, and the receipts of what landed before a crash."""

    lanes: list[Lane]
    landed: list[ReadReceipt]


NOTHING_TO_READ = PreparedRead([], [])


class RangeReading:
    """Reads planned ranges, each worker those of its lane (the parallel executor)."""

    def __init__(self, tools: ReadingTools) -> None:
        self._tools, self._services = tools, tools.services
        self._receipts: tuple[ReadReceipt, ...] = ()
        self.refused = ""

    def read(self, action: ReadRanges, committed: Committed) -> Receipts:
        prepared = self.prepare(action, committed)
        began, spark = time.monotonic(), self._tools.spark
        done = spark.run(Actor.SNAPSHOT, action.barrier, lambda: read_ranges(spark.tasks_in, prepared.lanes), LanesRead)
        if not action.rows_per_second:
            self._measure(prepared.lanes, done.receipts, time.monotonic() - began)
        return self.finish(prepared, done)

    def prepare(self, action: ReadRanges, committed: Committed) -> PreparedRead:
        """What is left to read of the order, and what has landed of it before a crash."""
        if not committed.intent.ordinals:
            return NOTHING_TO_READ
        appended, replaced = self._services.sink.landed_reads(action.barrier.epoch)
        landed = [receipt for receipts in (appended, replaced) for receipt in receipts or ()]
        lanes = self._lanes(action, committed, skip_append=appended is not None, skip_replace=replaced is not None)
        self._tools.progress.reading(_before(committed, landed))
        return PreparedRead(lanes, landed)

    def finish(self, prepared: PreparedRead, done: LanesRead) -> Receipts:
        """What was read counts, and is to be committed."""
        self.refused = done.refused
        self._tools.pace.read_last = bool(done.receipts)
        self._receipts = (*prepared.landed, *done.receipts)
        return _range_receipts(self._receipts)

    def commit(self, action: CommitReceipts, committed: Committed) -> Receipts:
        if not self._receipts and (not committed.intent.ordinals or committed.state.schema.pending is not None):
            # Nothing was to be read; or the sink may be changing meanwhile, which nothing should wait for.
            return ()
        seen = self._tools.versions.in_sink(committed)
        plan = seen.plan.at(committed.intent.plan_generation)
        self._services.sink.use(seen.shape)
        appended = [receipt for receipt in self._receipts if receipt.ordinal not in action.replaces]
        replaced = [receipt for receipt in self._receipts if receipt.ordinal in action.replaces]
        with KeyOrder(seen.table, plan, self._tools.lend) as order:
            landed = self._services.sink.commit_reads(action.barrier.epoch, appended, replaced, plan, order.weights)
        _check_counts(landed)
        return _range_receipts(landed)

    def _lanes(self, action: ReadRanges, committed: Committed, *, skip_append: bool, skip_replace: bool) -> list[Lane]:
        """What landed before a crash is not read again, and what was left unread then stays unread in this epoch."""
        barrier, tools = action.barrier, self._tools
        seen = tools.versions.in_sink(committed)
        plan = seen.plan.at(committed.intent.plan_generation)
        if any(action.lanes):
            self._services.sink.use(seen.shape)
        by_ordinal = {planned.ordinal: planned for planned in plan.ranges}
        limit = action.rows_per_second
        working = sum(bool(lane) for lane in action.lanes) or 1
        return [
            Lane(
                table=seen.table, writer=self._services.sink.writer(), plan=plan,
                ranges=tuple(
                    by_ordinal[ordinal] for ordinal in ordinals
                    if not (skip_replace if ordinal in action.replaces else skip_append)
                ),
                epoch=barrier.epoch, attempt=barrier.attempt, seconds=tools.epoch_seconds,
                rows_per_second=limit / working if limit else None,
                progress=tools.progress.of_task(Actor.SNAPSHOT, barrier, number),
            )
            for number, ordinals in enumerate(action.lanes)
        ]  # fmt: skip

    def _measure(self, lanes: Sequence[Lane], read: Sequence[ReadReceipt], seconds: float) -> None:
        working = [lane for lane in lanes if lane.ranges]
        everything = len(read) == sum(len(lane.ranges) for lane in working)
        rows = sum(receipt.rows for receipt in read)
        self._tools.pace.measured(rows, seconds, len(working), everything=everything)


def _before(committed: Committed, landed: Sequence[ReadReceipt]) -> ReadBefore:
    state, rows = committed.state, sum(receipt.rows for receipt in landed)
    return ReadBefore(state.ranges + len(landed), len(committed.plan.ranges), state.rows + rows)


def _check_counts(receipts: Sequence[ReadReceipt]) -> None:
    """A range counts as read only if its files hold as many rows as were read."""
    for receipt in receipts:
        held = sum(file.rows for file in receipt.files)
        if receipt.files and held != receipt.rows:
            raise LawBrokenError(f"range {receipt.ordinal}: {receipt.rows} rows were read, its files hold {held}")


def _range_receipts(receipts: Sequence[ReadReceipt]) -> Receipts:
    return tuple(RangeReceipt(receipt.ordinal, receipt.rows) for receipt in receipts)
