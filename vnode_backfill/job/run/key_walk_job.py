"""Runs a job of `executor: single`: reading is walking.

The job is driven by the coordinator and the performer of every job. Its reading differs. `ReadRanges` walks a stretch
after the cursor (see `snapshot.key_walk`). `CommitReceipts` appends that stretch, whether the walk has ended or not,
and hands its cursor to the store. The receipt of the one range is reported only when the walk has ended. How such a job
is opened is in `job.open`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from consume_upstream.upstream_table import UpstreamTable
from progress.state.walk_state import WHOLE_KEY, rows_left, shown, walk_plan
from progress.store.walk_store import SingleStore
from progress.task_progress import ReadBefore
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.protocol import CommitReceipts, RangeReceipt, ReadRanges
from vnode_backfill.job.run.loop import PerformsOrders, Watcher
from vnode_backfill.job.run.reading import ReadingTools, Receipts
from vnode_backfill.job.run.services import Committed
from vnode_backfill.sinks import ReadReceipt
from vnode_backfill.snapshot.key_walk import CdcBackfillExecutor, Stretch, WalkedStretch, landed_stretch
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import LawBrokenError, SchemaChangedError

__all__ = ["WalkReading", "WalkWatch"]


class WalkReading:
    """Walks the table, one stretch per epoch; see `reading.Reading` for what it promises."""

    def __init__(self, tools: ReadingTools, *, table: UpstreamTable, store: SingleStore) -> None:
        self._tools, self._sink = tools, tools.services.sink
        self._table, self._store = table, store
        self._walked: WalkedStretch | None = None
        self.refused = ""

    def read(self, action: ReadRanges, committed: Committed) -> Receipts:
        began, spark = time.monotonic(), self._tools.spark
        self.refused, self._walked = "", None
        try:
            self._walked = spark.run(
                Actor.SNAPSHOT, action.barrier, lambda: self._walk(action, committed), lambda: None
            )
        except SchemaChangedError as error:
            self.refused = f"{error.message}. {error.detail}"
        rows = self._walked.receipt.rows if self._walked else 0
        self._tools.pace.measured(rows, time.monotonic() - began, 1, everything=False)
        self._tools.pace.read_last = bool(rows)
        return self._ended(self._walked)

    def commit(self, action: CommitReceipts, committed: Committed) -> Receipts:
        """Append the stretch and hand its cursor to the store, whether the walk has ended or not."""
        epoch, walked = action.barrier.epoch, self._walked
        if walked is not None:
            landed = self._sink.commit_reads(epoch, [walked.receipt], [], committed.plan)
            if landed != (walked.receipt,):
                walked = self._landed(landed) or walked
            self._store.walked(self._store.walk.advanced(epoch, walked.last_key, walked.receipt.rows))
        return self._ended(walked)

    def _walk(self, action: ReadRanges, committed: Committed) -> WalkedStretch | None:
        """What landed before a crash is not walked again; it counts also where nothing more is to be walked now."""
        state, barrier, tools = committed.state, action.barrier, self._tools
        if state.intent is None or not state.intent.ordinals:
            return None
        appended, _ = self._sink.landed_reads(barrier.epoch)
        landed = self._landed(appended or ())
        limit = action.rows_per_second
        tools.progress.reading(ReadBefore(state.ranges, len(committed.plan.ranges), state.rows))
        if landed or not any(action.lanes):
            return landed
        return CdcBackfillExecutor(tools.spark.tasks_in).walk(
            Stretch(
                table=self._table, writer=self._sink.writer(), after=self._store.walk.last_key,
                epoch=barrier.epoch, attempt=barrier.attempt, seconds=tools.epoch_seconds,
                rows_per_second=float(limit) if limit else None,
                progress=tools.progress.of_task(Actor.SNAPSHOT, barrier, 0),
            )
        )  # fmt: skip

    def _landed(self, receipts: tuple[ReadReceipt, ...]) -> WalkedStretch | None:
        if not receipts:
            return None
        if self._sink.staging is None:
            raise LawBrokenError("a walk was appended to a sink whose files cannot be read")
        return landed_stretch(receipts, self._sink.staging, self._table)

    def _ended(self, walked: WalkedStretch | None) -> Receipts:
        """The receipt of the whole range, once there is nothing after the cursor."""
        if walked is None or not walked.ended:
            return ()
        return (RangeReceipt(WHOLE_KEY, self._store.walk.rows + walked.receipt.rows),)


class WalkWatch:
    """Shows a walk to watchers that know ranges: rows before the cursor count as read."""

    def __init__(self, inner: Watcher, store: SingleStore) -> None:
        self._inner, self._store = inner, store

    def look(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        self._inner.look(self._shown(coordinator), performer)

    def close(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        self._inner.close(self._shown(coordinator), performer)

    def _shown(self, coordinator: Coordinator) -> Coordinator:
        state, walk, plan = coordinator.saved, self._store.walk, coordinator.plan
        left = rows_left(state, walk).rows[WHOLE_KEY]
        return replace(coordinator, saved=shown(state, walk), plan=walk_plan([part.name for part in plan.parts], left))
