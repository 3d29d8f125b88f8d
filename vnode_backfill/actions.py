"""How the coordinator's orders are carried out: each in a thread of its own, reporting back through the barrier manager only.

What must be true: an order has exactly one outcome, a report or a failure; nothing of an abandoned attempt still runs when the next
one begins; every effect is keyed by its epoch, so that carrying an order out again changes nothing. `seam` is called before and
after every order: crash tests kill the process there.

Spark is used for ranges and for what is large; small epochs need none, nor does a stop. A driver that was asked to stop and has lost
its JVM leaves the ranges of its epoch unread and reads the log itself, so that it ends at a consistent offset.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from pyspark.sql import SparkSession

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.continuity import check_log_goes_on
from consume_upstream.executor import UpstreamTableExecutor
from consume_upstream.key_order import KeyOrder
from consume_upstream.mysql.driver_source import DriverSource
from consume_upstream.mysql.load import HeldLog
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.offset import CdcOffset
from progress.alerts import RETENTION_UNKNOWN, Retention
from progress.barriers import LocalBarrierManager
from progress.metrics import CdcBackfillMetrics
from progress.report import AskedRequest
from progress.state import BackfillState, Phase
from progress.store import StateStore
from progress.task_progress import EpochProgress, ReadBefore
from vnode_backfill.config import Config
from vnode_backfill.epoch import Actor, Barrier, BarrierKind
from vnode_backfill.errors import BackfillError, LawBrokenError, SparkLostError, StuckError
from vnode_backfill.intent import Sample
from vnode_backfill.jvm import JvmWatch, tasks_outlive
from vnode_backfill.keys import SplitPlan
from vnode_backfill.merge import MergeRoute, merge_epoch
from vnode_backfill.planning import extended_plan
from vnode_backfill.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    InjectBarrier,
    MergeEpoch,
    PlanExtended,
    RangeReceipt,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    RestartEpoch,
    Sampled,
    SampleSource,
    StateCommitted,
    Stop,
    TrimBuffer,
)
from vnode_backfill.sinks import ReadReceipt, Sink
from vnode_backfill.snapshot import Lane, read_ranges
from vnode_backfill.tasks import JobGroup, in_group
from vnode_backfill.throttle import SourceThrottle

log = logging.getLogger(__name__)

Moment = Literal["before", "after"]
Seam = Callable[[Moment, Action], None]
Result = TypeVar("Result")
_FIRST_ROWS_PER_SECOND = 200_000
"""Assumed of a worker until it was measured; a lane stops when its time is over, so too much is harmless."""
_MOST_ROWS_PER_SECOND = 5_000_000
_STOP_COMES_SECONDS = 2.0
"""A supervisor signals the processes of a driver one after the other: the JVM may end before the driver hears of the stop."""
_WORKERS_END_SECONDS = 3.0
"""How long the workers of a JVM that has ended may still write; their daemon ends them when its pipe breaks."""
_CANCEL_SECONDS = 10.0
_END_SECONDS = 600.0
"""How long a failed attempt may take to end. Everything that it waits for has a time-out of its own, which is shorter."""
_CLOSE_SECONDS = 60.0


def no_seam(moment: Moment, action: Action) -> None:
    """Nothing happens between orders in production."""


seam: Seam = no_seam


@dataclass(frozen=True, slots=True)
class Services:
    """Everything with an effect that a running job holds."""

    config: Config
    spark: SparkSession
    table: MySqlTable
    sink: Sink
    buffer: ChangeBuffer
    store: StateStore
    throttle: SourceThrottle | None = None
    metrics: CdcBackfillMetrics = field(default_factory=CdcBackfillMetrics)
    jvm: JvmWatch | None = None


@dataclass
class Seen:
    """What was seen of the source and the buffer lately, for whoever shows progress; None where nobody has looked yet."""

    newest: int = 0
    written: CdcOffset | None = None
    buffer_bytes: int | None = None
    held_log: HeldLog | None = None
    throttled_by: str = ""
    asked: tuple[AskedRequest, ...] = ()
    moved_at: float = field(default_factory=time.monotonic)
    """When an order was last carried out, or an actor said that it is further."""

    def lag_bytes(self, captured: CdcOffset) -> int | None:
        """How much of the log is written and not captured: by the last sample, or by the files held, whichever is newer."""
        sampled = held = None
        if self.written is not None and self.written.number == captured.number:
            sampled = max(0, self.written.pos - captured.pos)
        if self.held_log is not None:
            held = self.held_log.bytes_after(captured.file_number, captured.pos)
        return max((each for each in (sampled, held) if each is not None), default=None)

    def retention(self, captured: CdcOffset) -> Retention:
        """How much of the log the source holds behind what is captured, and for how long it keeps a file."""
        held = self.held_log
        if held is None:
            return RETENTION_UNKNOWN
        return Retention(held.bytes_before(captured.file_number, captured.pos), held.kept_seconds)

    def lag_seconds(self, captured: CdcOffset, now: float) -> float | None:
        """The age of the newest change captured while more is written; 0 when everything is."""
        if self.written is not None and self.written <= captured and not self.lag_bytes(captured):
            return 0.0
        return max(0.0, now - self.newest) if self.newest else None


@dataclass
class Pace:
    """How fast workers were measured to read, and when the epoch in hand began."""

    rows_per_second: float = _FIRST_ROWS_PER_SECOND
    epoch_began: float = 0.0
    read_last: bool = False

    def measured(self, rows: int, seconds: float, lanes: int, *, everything: bool) -> None:
        """Learn from an epoch without a limit. Where all that was planned was read in time, more is planned next: the measured time
        holds what a Spark job costs before its first row, so small epochs would look slow and stay small."""
        if rows and seconds > 0:
            seen = rows / seconds / max(lanes, 1)
            slower = 0.5 * self.rows_per_second + 0.5 * seen
            self.rows_per_second = (
                min(max(2 * self.rows_per_second, seen), _MOST_ROWS_PER_SECOND) if everything else slower
            )


class Performer:
    """Carries orders out. `state` and `plan` are what is committed, set by the job before it orders anything."""

    def __init__(
        self, services: Services, barriers: LocalBarrierManager[Event], state: BackfillState, plan: SplitPlan
    ) -> None:
        self.services, self.barriers = services, barriers
        self.state, self.plan = state, plan
        self.attempt = 0
        self.pace = Pace()
        self.seen = Seen()
        self.source = DriverSource(services.table)
        self.task_slots = services.spark.sparkContext.defaultParallelism
        self.stopping = threading.Event()
        """Set when the job was asked to stop."""
        self.leaves_tasks = False  # when it was closed: whether something that it has begun may still write
        self._receipts: tuple[ReadReceipt, ...] = ()
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="action")
        self._running: set[Future[None]] = set()
        self._awake = threading.Event()
        self._progress = EpochProgress(barriers, *_reached_at(services.spark))
        barriers.subscribe_barrier(Actor.DRIVER, self._barrier_begins)
        limits, config = services.config.limits, services.config
        self._upstream = UpstreamTableExecutor(
            services.table,
            services.buffer,
            readers=limits.log_readers,
            memory=limits.log_memory,
            lend=self.source.session,
        )
        self._epoch_seconds = config.epoch.backfill.total_seconds()

    def perform(self, action: Action) -> None:
        """Begin to carry an order out; its outcome comes as an event."""
        match action:
            case InjectBarrier(barrier=barrier):
                self.barriers.inject(barrier)
            case Stop():
                self.wake()
            case ReadRanges(barrier=barrier):
                self._begin(Actor.SNAPSHOT, barrier.attempt, action, lambda: self._read(action))
            case BufferChanges(barrier=barrier):
                self._begin(Actor.UPSTREAM, barrier.attempt, action, lambda: self._buffer(action))
            case MergeEpoch(barrier=barrier):
                self._begin(Actor.MERGE, barrier.attempt, action, lambda: self._merge(action))
            case CommitReceipts(barrier=barrier):
                self._begin(Actor.DRIVER, barrier.attempt, action, lambda: self._commit_receipts(action))
            case RestartEpoch(attempt=attempt):
                threading.Thread(target=self._restart, args=(attempt,), daemon=True).start()
            case SampleSource() | CommitEpoch() | ExtendPlan() | TrimBuffer():
                self._begin(Actor.DRIVER, self.attempt, action, lambda: self._in_driver(action))

    def wake(self) -> None:
        """End an idle pause early."""
        self._awake.set()

    def close(self) -> None:
        """End what is not begun, and wait a while for the rest: what does not end by itself ends with the process."""
        self._awake.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        left = wait(tuple(self._running), timeout=_CLOSE_SECONDS).not_done
        self.leaves_tasks = bool(left) or tasks_outlive(self.services.spark.sparkContext)
        self._progress.close()
        self.source.close()

    def _barrier_begins(self, barrier: Barrier) -> None:
        self.services.metrics.observe_barrier(barrier.kind)
        self.pace.epoch_began = time.monotonic()

    def _begin(self, actor: Actor, attempt: int, action: Action, work: Callable[[], None]) -> None:
        def guarded() -> None:
            began = time.monotonic()
            try:
                seam("before", action)
                work()
                seam("after", action)
                self.seen.moved_at = time.monotonic()
                if actor is not Actor.DRIVER:
                    self.services.metrics.observe_epoch(actor, time.monotonic() - began)
            except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
                log.warning("action failed action=%s error=%s", type(action).__name__, error)
                self.barriers.notify_failure(actor, attempt, error)

        future = self._pool.submit(guarded)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def _in_driver(self, action: SampleSource | CommitEpoch | ExtendPlan | TrimBuffer) -> None:
        match action:
            case SampleSource():
                self._sample(action)
            case CommitEpoch(state=state):
                self.services.store.commit(state)
                self.barriers.tell(StateCommitted(state.revision))
            case ExtendPlan(generation=generation):
                plan = extended_plan(
                    self.services.table, self.services.sink, self.plan.at(generation), self.services.config
                )
                self.services.store.write_plan(plan, plan.generation)
                self.barriers.tell(PlanExtended(plan))
            case TrimBuffer(upto=upto):
                self.services.buffer.trim(upto)

    def _group(self, actor: Actor, barrier: Barrier) -> AbstractContextManager[None]:
        """Spark jobs of this thread run in the actor's pool and can be cancelled together."""
        return in_group(JobGroup(_GROUP, str(actor), f"{actor} of epoch {barrier.epoch}"))

    def _with_spark(self, work: Callable[[], Result], without: Callable[[], Result]) -> Result:
        """What `work` does in Spark; a stop is carried out `without` it where its JVM has ended, and no task writes to IoTDB."""
        iotdb, spark = self.services.config.sink.iotdb, self.services.spark.sparkContext
        try:
            return work()
        except SparkLostError as error:
            if (iotdb and tasks_outlive(spark)) or not self.stopping.wait(_STOP_COMES_SECONDS):
                raise
            log.warning("stopping without spark error=%s", error.detail)
            time.sleep(_WORKERS_END_SECONDS)
            return without()

    def _read(self, action: ReadRanges) -> None:
        barrier = action.barrier
        appended, replaced = self.services.sink.landed_reads(barrier.epoch)
        landed = [receipt for receipts in (appended, replaced) for receipt in receipts or ()]
        lanes = self._lanes(action, skip_append=appended is not None, skip_replace=replaced is not None)
        began = time.monotonic()
        landed_rows = sum(receipt.rows for receipt in landed)
        self._progress.reading(
            ReadBefore(self.state.ranges + len(landed), len(self.plan.ranges), self.state.rows + landed_rows)
        )
        with self._group(Actor.SNAPSHOT, barrier):
            nothing: list[ReadReceipt] = []
            read = self._with_spark(lambda: read_ranges(self.services.spark.sparkContext, lanes), lambda: nothing)
        if not action.rows_per_second:
            working = [lane for lane in lanes if lane.ranges]
            everything = len(read) == sum(len(lane.ranges) for lane in working)
            rows = sum(receipt.rows for receipt in read)
            self.pace.measured(rows, time.monotonic() - began, len(working), everything=everything)
        self.pace.read_last = bool(read)
        self._receipts = (*landed, *read)
        self.barriers.collect(
            Actor.SNAPSHOT, barrier, RangesRead(barrier.epoch, _range_receipts(self._receipts), barrier.attempt)
        )

    def _lanes(self, action: ReadRanges, *, skip_append: bool, skip_replace: bool) -> list[Lane]:
        """What landed before a crash is not read again, and what was left unread then stays unread in this epoch."""
        assert self.state.intent is not None
        plan = self.plan.at(self.state.intent.plan_generation)
        by_ordinal = {planned.ordinal: planned for planned in plan.ranges}
        limit = action.rows_per_second
        working = sum(bool(lane) for lane in action.lanes) or 1
        return [
            Lane(
                table=self.services.table, writer=self.services.sink.writer(), plan=plan,
                ranges=tuple(
                    by_ordinal[ordinal] for ordinal in ordinals
                    if not (skip_replace if ordinal in action.replaces else skip_append)
                ),
                epoch=action.barrier.epoch, attempt=action.barrier.attempt, seconds=self._epoch_seconds,
                rows_per_second=limit / working if limit else None,
                progress=self._progress.of_task(Actor.SNAPSHOT, action.barrier, number),
            )
            for number, ordinals in enumerate(action.lanes)
        ]  # fmt: skip

    def _commit_receipts(self, action: CommitReceipts) -> None:
        barrier = action.barrier
        assert self.state.intent is not None
        plan = self.plan.at(self.state.intent.plan_generation)
        appended = [receipt for receipt in self._receipts if receipt.ordinal not in action.replaces]
        replaced = [receipt for receipt in self._receipts if receipt.ordinal in action.replaces]
        with KeyOrder(self.services.table, plan, self.source.session) as order:
            landed = self.services.sink.commit_reads(barrier.epoch, appended, replaced, plan, order.weights)
        _check_counts(landed)
        self.barriers.tell(ReceiptsCommitted(barrier.epoch, _range_receipts(landed), barrier.attempt))

    def _buffer(self, action: BufferChanges) -> None:
        barrier = action.barrier
        plan = self.plan.at(action.intent.plan_generation)
        progress = partial(self._progress.of_task, Actor.UPSTREAM, barrier)
        consume, spark = self._upstream.consume, self.services.spark.sparkContext
        with self._group(Actor.UPSTREAM, barrier):
            note = self._with_spark(
                lambda: consume(spark, self.state, plan, action.intent, progress),
                lambda: consume(None, self.state, plan, action.intent, progress),
            )
        event = ChangesBuffered(barrier.epoch, note.visible, note.missing, note.kept, barrier.attempt, note.newest)
        self.barriers.collect(Actor.UPSTREAM, barrier, event)

    def _merge(self, action: MergeEpoch) -> None:
        barrier = action.barrier
        assert self.state.intent is not None
        plan = self.plan.at(self.state.intent.plan_generation)
        services, progress = self.services, partial(self._progress.of_task, Actor.MERGE, barrier)
        route = MergeRoute(services.table, services.buffer, services.sink, self.source.session)
        with self._group(Actor.MERGE, barrier):
            changes = merge_epoch(services.spark, route, self.state, plan, action, progress)
        self.barriers.collect(Actor.MERGE, barrier, EpochMerged(barrier.epoch, changes, barrier.attempt))

    def _sample(self, action: SampleSource) -> None:
        """Ask the source, not before the epoch has its length: short epochs cost more than they bring."""
        self._awake.clear()
        length = self.services.config.epoch.live.total_seconds()
        rest = self.pace.epoch_began + length - time.monotonic()
        if (action.idle or not self._presses()) and rest > 0:
            self._awake.wait(rest)
        last = self.state.intent.written if self.state.intent else self.state.written
        written, visible = self.source.written_offset(last), self.source.visible_offset()
        check_log_goes_on(last, written)
        self.seen.written = written
        rows = int(self._rows_per_second() * self._epoch_seconds)
        self.barriers.tell(Sampled(Sample(written, visible, rows, hold=bool(self.seen.throttled_by)), action.ticket))

    def _presses(self) -> bool:
        """Whether something waits for the next epoch: a start or a stop, ranges, or a vnode whose first merge is due."""
        intent = self.state.intent
        if self.pace.read_last or intent is None or intent.kind is BarrierKind.SYNC_CHECKPOINT:
            return True
        return any(vnode.complete is not None and vnode.phase is not Phase.LIVE for vnode in self.state.vnodes)

    def _rows_per_second(self) -> float:
        """What a worker can read: as measured, and no more than its share of a limit."""
        limit = self.state.controls.rows_per_second
        return (
            min(self.pace.rows_per_second, limit / len(self.state.assignment)) if limit else self.pace.rows_per_second
        )

    def _restart(self, attempt: int) -> None:
        """End everything of the failed attempt, wait, and report that; or report why it does not end, which ends the job."""
        try:
            self._end_attempt()
            self._awake.clear()
            self._awake.wait(self.services.config.limits.pause(attempt))
            self.barriers.tell(EpochRestarted())
        except BackfillError as error:
            self.barriers.notify_failure(Actor.DRIVER, attempt, error)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            self.barriers.notify_failure(Actor.DRIVER, attempt, StuckError(f"the epoch was not begun again: {error!r}"))

    def _end_attempt(self) -> None:
        """Cancelling is a courtesy: a JVM that is gone has no jobs, and one that does not answer is not waited for."""
        cancelling = threading.Thread(target=self._cancel, daemon=True)
        cancelling.start()
        cancelling.join(_CANCEL_SECONDS)
        seconds = max(_END_SECONDS, 2 * self.services.config.mysql.read_timeout.total_seconds())
        left = wait(tuple(self._running), timeout=seconds).not_done
        if left:
            raise StuckError(
                f"{len(left)} orders of a failed attempt have not ended after {seconds:.0f} s",
                detail="Beside them the next attempt could write twice.",
                hint="Run it again: it continues where it was.",
            )

    def _cancel(self) -> None:
        with suppress(Exception):
            self.services.spark.sparkContext.cancelJobGroup(_GROUP)


_GROUP = "vnode-backfill"


def _reached_at(spark: SparkSession) -> tuple[str, str]:
    """The address at which tasks find the driver, and the one it listens on."""
    conf = spark.sparkContext.getConf()
    if (conf.get("spark.master") or "").startswith("local"):
        return "127.0.0.1", ""
    return conf.get("spark.driver.host") or "127.0.0.1", conf.get("spark.driver.bindAddress") or ""


def _check_counts(receipts: Sequence[ReadReceipt]) -> None:
    """A range counts as read only if its files hold as many rows as were read."""
    for receipt in receipts:
        held = sum(file.rows for file in receipt.files)
        if receipt.files and held != receipt.rows:
            raise LawBrokenError(f"range {receipt.ordinal}: {receipt.rows} rows were read, its files hold {held}")


def _range_receipts(receipts: tuple[ReadReceipt, ...] | list[ReadReceipt]) -> tuple[RangeReceipt, ...]:
    return tuple(RangeReceipt(receipt.ordinal, receipt.rows) for receipt in receipts)
