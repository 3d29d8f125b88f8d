"""Carries the coordinator's orders out: each in its own thread, reporting back through the barrier manager only.

What must be true: an order has exactly one outcome, a report or a failure (see `order_threads`); nothing of an
abandoned attempt still runs when the next one begins; every effect is keyed by its epoch, so that carrying an order out
again changes nothing; an order is carried out with the state that was committed when it was given, which comes with it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

from consume_upstream.buffer import BufferNote
from consume_upstream.executor import ConsumeOrder, UpstreamTableExecutor
from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.offset import CdcOffset, Visibility, VisibleAt, is_short_stretch
from progress.state.backfill_state import BackfillState, Intent, Phase
from progress.state.barriers import LocalBarrierManager
from progress.task_progress import EpochProgress
from vnode_backfill.config.job import Executor
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    ChangeSink,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    InjectBarrier,
    MergeEpoch,
    PlanExtended,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    ResolveStatement,
    RestartEpoch,
    Sampled,
    SampleSource,
    SinkChanged,
    SinkNotChanged,
    StateCommitted,
    StatementResolved,
    Stop,
    TrimBuffer,
)
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.order_threads import OrderThreads
from vnode_backfill.job.run.reading import MakeReading, RangeReading, ReadingTools
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_versions import TableVersions
from vnode_backfill.merge.merge_epoch import MergeRoute, SparkTasks, merge_epoch
from vnode_backfill.snapshot.plan_questions import extended_plan
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, LawBrokenError, SinkUnavailableError, StuckError
from vnode_backfill.words.hints import CONTINUES

_CANCEL_SECONDS = 10.0
_END_SECONDS = 600.0
"""How long a failed attempt may take to end. Everything that it waits for has its own time-out, which is shorter."""
_CLOSE_SECONDS = 60.0
_LOOK_FOR_TABLE = 1.0
_SLICES_IN_MEMORY, _LEAST_SLICE = 4, 1024 * 1024
"""A slice of a long backlog is a quarter of `limits.log_memory`, which is 64 MB: estimated, not measured, as a few
seconds of work, against the fixed cost of an epoch. The first capture and the last merge have nothing beside them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the source has answered to a table: the end of its log, what is visible, and where a slice may end."""

    written: CdcOffset
    visible: Visibility
    slice_end: CdcOffset | None = None


class Performer:
    """Carries orders out. Each comes with what was committed when it was given; nothing here remembers a state."""

    def __init__(
        self,
        services: Services,
        barriers: LocalBarrierManager[Event],
        reading: MakeReading = RangeReading,
        shared: DriverTools | None = None,
    ) -> None:
        """`shared` are the tools of a driver that copies several tables; without, this performer has its own."""
        self.services, self.barriers = services, barriers
        self.pace = Pace()
        self.seen = Seen()
        self._tools, self._alone = shared or DriverTools.open(services), shared is None
        self.source = self._tools.source.of(services.table)
        self.task_slots = self._tools.task_slots
        self.leaves_tasks = False  # when it was closed: whether something that it has begun may still write
        self._spark = self._tools.spark
        self.orders = OrderThreads(barriers, services.metrics, self.seen, self._tools.pool)
        self._following = OrderThreads(barriers, services.metrics, self.seen, self._tools.side_pool)
        """Changes of the sink. They go on while an epoch is tried again: one may take longer than many epochs."""
        self._awake = threading.Event()
        self._progress = EpochProgress(barriers, self._tools.listener)
        barriers.subscribe_barrier(Actor.DRIVER, self._barrier_begins)
        limits = services.config.limits
        self._upstream = UpstreamTableExecutor(
            services.table,
            services.buffer,
            readers=limits.log_readers,
            memory=limits.log_memory,
            lend=self.source.session,
        )
        self._versions = TableVersions(services)
        self._is_behind = False
        """Whether the last sample was cut: there is more log than the next epoch captures."""
        self._first_revision: int | None = None
        self._reading = reading(
            ReadingTools(services, self._spark, self._progress, self.pace, self.source.session, self._versions)
        )

    @property
    def stopping(self) -> threading.Event:
        """Set when the job was asked to stop."""
        return self._spark.stopping

    def perform(self, action: Action, committed: Committed) -> None:
        """Begin to carry an order out; its outcome comes as an event.

        `committed` is the state in which it was given.
        """
        match action:
            case InjectBarrier(barrier=barrier):
                self.barriers.inject(barrier)
            case Stop():
                self.wake()
            case ReadRanges(barrier=barrier):
                self.orders.begin(Actor.SNAPSHOT, barrier.attempt, action, lambda: self._read(action, committed))
            case BufferChanges(barrier=barrier):
                self.orders.begin(Actor.UPSTREAM, barrier.attempt, action, lambda: self._buffer(action, committed))
            case MergeEpoch(barrier=barrier):
                self.orders.begin(Actor.MERGE, barrier.attempt, action, lambda: self._merge(action, committed))
            case CommitReceipts(barrier=barrier):
                self.orders.begin(
                    Actor.DRIVER, barrier.attempt, action, lambda: self._commit_receipts(action, committed)
                )
            case ResolveStatement(attempt=attempt):
                self.orders.begin(Actor.DRIVER, attempt, action, lambda: self._resolve(action, committed))
            case ChangeSink():
                self._following.begin(Actor.DRIVER, committed.attempt, action, lambda: self._change_sink(action))
            case RestartEpoch():
                threading.Thread(target=self._restart, args=(action,), daemon=True).start()
            case SampleSource() | CommitEpoch() | ExtendPlan() | TrimBuffer():
                self.orders.begin(Actor.DRIVER, committed.attempt, action, lambda: self._in_driver(action, committed))

    @property
    def ranges(self) -> RangeReading:
        """How planned ranges are read, for a driver that reads those of several tables together."""
        if not isinstance(self._reading, RangeReading):
            raise LawBrokenError("a walk of the whole key has no ranges")
        return self._reading

    def wake(self) -> None:
        """End an idle pause early."""
        self._awake.set()

    def has_ended(self, seconds: float) -> bool:
        """Wait until nothing that was begun is at work any more; False if that takes longer."""
        self._awake.set()
        return not self.orders.wait(seconds) and not self._following.wait(seconds)

    def close(self) -> None:
        """End what is not begun, and wait a while for the rest: what does not end by itself ends with the process."""
        self._awake.set()
        left = self.orders.close(_CLOSE_SECONDS) + self._following.close(_CLOSE_SECONDS)
        self.leaves_tasks = left > 0 or self._spark.leaves_tasks
        if self._alone:
            self._tools.close()

    def _barrier_begins(self, barrier: Barrier) -> None:
        self.services.metrics.observe_barrier(barrier.kind)
        self.pace.epoch_began = time.monotonic()

    def _in_driver(self, action: SampleSource | CommitEpoch | ExtendPlan | TrimBuffer, committed: Committed) -> None:
        match action:
            case SampleSource():
                self._sample(action, committed)
            case CommitEpoch(state=state):
                self.services.store.commit(state)
                if state.is_whole:
                    # A new copy that is live takes the place of the old one, at this very offset.
                    self.services.sink.put_in_place()
                self.barriers.tell(StateCommitted(state.revision))
            case ExtendPlan(generation=generation):
                seen = self._versions.in_sink(committed)
                plan = extended_plan(seen.table, self.services.sink, seen.plan.at(generation), self.services.config)
                self.services.store.write_plan(plan, plan.generation)
                self.barriers.tell(PlanExtended(plan))
            case TrimBuffer(upto=upto):
                self.services.buffer.trim(upto)

    def _read(self, action: ReadRanges, committed: Committed) -> None:
        barrier, receipts = action.barrier, self._reading.read(action, committed)
        read = RangesRead(barrier.epoch, receipts, barrier.attempt, self._reading.refused)
        self.barriers.collect(Actor.SNAPSHOT, barrier, read)

    def _commit_receipts(self, action: CommitReceipts, committed: Committed) -> None:
        barrier, receipts = action.barrier, self._reading.commit(action, committed)
        self.barriers.tell(ReceiptsCommitted(barrier.epoch, receipts, barrier.attempt))

    def _buffer(self, action: BufferChanges, committed: Committed) -> None:
        order, spark = self.consume_order(action, committed), self._spark
        progress = partial(self._progress.of_task, Actor.UPSTREAM, action.barrier)
        consume, asked = self._upstream.consume, (order.state, order.plan, order.intent, progress)
        note = spark.run(
            Actor.UPSTREAM,
            action.barrier,
            lambda: consume(spark.tasks_in, *asked),
            lambda: consume(None, *asked),
        )
        self.report_buffered(action, note)

    def consume_order(self, action: BufferChanges, committed: Committed) -> ConsumeOrder:
        """What of the log is to be captured, by the newest definition."""
        newest = self._versions.newest(committed)
        self._upstream.use(newest.table.definition)
        plan, state = newest.plan.at(action.intent.plan_generation), committed.state
        if self._first_revision is None:
            self._first_revision = state.revision
        # An intent that this driver has committed itself was not tried before its first attempt.
        again = committed.attempt > 0 or state.revision == self._first_revision
        return ConsumeOrder(self._upstream, state, plan, action.intent, may_have_landed=again)

    def peek_order(self, committed: Committed) -> ConsumeOrder:
        """A look at the log for a table that rests; where it begins and ends is for the caller to fill in."""
        newest, state = self._versions.newest(committed), committed.state
        self._upstream.use(newest.table.definition)
        nowhere = Intent(
            Epoch(state.epoch + 1), BarrierKind.CHECKPOINT, state.written, VisibleAt(state.written), (),
            state.plan_generation,
        )  # fmt: skip
        plan = newest.plan.at(state.plan_generation)
        return ConsumeOrder(self._upstream, state, plan, nowhere, may_have_landed=False, peeks=True)

    def report_buffered(self, action: BufferChanges, note: BufferNote) -> None:
        barrier = action.barrier
        event = ChangesBuffered(
            barrier.epoch,
            note.visible,
            note.missing,
            note.kept,
            barrier.attempt,
            note.newest,
            note.cut,
            note.passed,
            note.cascaded,
        )
        self.barriers.collect(Actor.UPSTREAM, barrier, event)

    def _merge(self, action: MergeEpoch, committed: Committed) -> None:
        barrier, state, seen = action.barrier, committed.state, self._versions.in_sink(committed)
        plan = seen.plan.at(committed.intent.plan_generation)
        services, progress = self.services, partial(self._progress.of_task, Actor.MERGE, barrier)
        if action.vnodes:
            services.sink.use(seen.shape)
        route = MergeRoute(seen.table, services.buffer, services.sink, self.source.session)
        changes = self._spark.run(
            Actor.MERGE, barrier, lambda: merge_epoch(services.spark, route, state, plan, action, progress)
        )
        self.barriers.collect(Actor.MERGE, barrier, EpochMerged(barrier.epoch, changes, barrier.attempt))

    def _resolve(self, action: ResolveStatement, committed: Committed) -> None:
        """Find out what the statement did. A table that is gone may come back: that is waited for, unless the job is
        to stop."""
        self._awake.clear()
        while (found := self._versions.resolve(action.found, committed)) is None:
            if self.stopping.is_set() or self._awake.wait(_LOOK_FOR_TABLE):
                break
        if found is None:
            self.barriers.tell(StatementResolved(action.found, None, None, action.attempt))
            return
        outcome, shape = found
        self.barriers.tell(StatementResolved(action.found, outcome.effect, shape, action.attempt, outcome.partitioning))

    def _change_sink(self, action: ChangeSink) -> None:
        """The sink follows, beside the epochs. Whatever comes of it is reported without an attempt: epochs go on."""
        version, sink = action.version, self.services.sink
        try:
            if version.emptied:
                sink.empty(version.number, version.shape)
            else:
                sink.change(version.number, version.shape, version.steps, SparkTasks(self.services.spark))
        except BackfillError as error:
            self.barriers.tell(SinkNotChanged(version.number, error))
        except Exception as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            failed = SinkUnavailableError(f"the target could not follow {version.statement[:80]!r}: {error!r}")
            self.barriers.tell(SinkNotChanged(version.number, failed))
        else:
            self.barriers.tell(SinkChanged(version.number))

    def _sample(self, action: SampleSource, committed: Committed) -> None:
        """Ask the source, not before the epoch has its length: short epochs cost more than they bring.

        Epochs that the target does not keep up with are longer than configured.
        """
        state = committed.state
        self._awake.clear()
        rest = self.pace.rest(self.services.config.epoch.live.total_seconds(), time.monotonic())
        if (action.idle or not self.presses(state)) and rest > 0:
            self._awake.wait(rest)
        written, visible = self.source.written_offset(last_sample(state)), self.source.visible_offset()
        answer = Answer(written, visible, self.slice_end(state, written))
        sample = self.sample_of(committed, answer, hold=bool(self.seen.throttled_by))
        self.barriers.tell(Sampled(sample, action.ticket))

    def sample_of(self, committed: Committed, answer: Answer, *, hold: bool, rows: int | None = None) -> Sample:
        """What the source's answer means for this table, of which a worker may read `rows` rows in the next epoch.

        Without `hold` the definition is asked for, if rows are to be read by it.
        """
        state, config, written = committed.state, self.services.config, answer.written
        last = last_sample(state)
        check_log_goes_on(last, written)
        self.seen.sampled(written, time.time())
        if rows is None:
            rows = int(self._rows_per_second(state) * config.epoch.backfill.total_seconds())
        # The ends of a stretch over several files do not say how long it is. Its reader asks, and starts Spark then.
        one_file = last.number == written.number
        if answer.slice_end is not None or (one_file and not is_short_stretch(last, written)):
            self._spark.expect_tasks()
        self._is_behind = answer.slice_end is not None
        short = not self._is_behind and may_be_merged_at_once(config.executor, last, written)
        hold = hold or self._versions.are_behind(committed, written)
        return Sample(written, answer.visible, rows, hold=hold, short=short, slice_end=answer.slice_end)

    def slice_end(self, state: BackfillState, written: CdcOffset) -> CdcOffset | None:
        """Where the next epoch ends, where the log up to `written` is longer than one epoch takes in. While a vnode is
        not live there is no such end."""
        last, config = last_sample(state), self.services.config
        length = max(config.limits.log_memory // _SLICES_IN_MEMORY, _LEAST_SLICE)
        if last.number == written.number and written.pos - last.pos <= length:
            return None
        if config.executor is not Executor.PARALLEL or not state.is_read_and_merged:
            return None
        return self.source.slice_end(last, written, length)

    def presses(self, state: BackfillState) -> bool:
        """Whether something waits for the next epoch: a start or a stop, ranges, more log than one epoch takes in, or a
        vnode whose first merge is due."""
        intent = state.intent
        if self._is_behind or self.pace.read_last or intent is None or intent.kind is BarrierKind.SYNC_CHECKPOINT:
            return True
        if state.schema.pending is not None:
            # The sink is changing, which takes as long as it takes.
            return False
        return any(vnode.complete is not None and vnode.phase is not Phase.LIVE for vnode in state.vnodes)

    def _rows_per_second(self, state: BackfillState) -> float:
        """What a worker can read: as measured, and no more than its share of a limit."""
        limit, measured = state.controls.rows_per_second, self.pace.rows_per_second
        return min(measured, limit / len(state.assignment)) if limit else measured

    def _restart(self, action: RestartEpoch) -> None:
        """End everything of the failed attempt, wait, and report that; or report why it does not end, which ends the
        job."""
        try:
            self._end_attempt()
            self._awake.clear()
            if action.cause.retryable:
                self._awake.wait(self.services.config.limits.pause(action.attempt))
            self.barriers.tell(EpochRestarted(action.attempt))
        except BackfillError as error:
            self.barriers.notify_failure(Actor.DRIVER, action.attempt, error)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            stuck = StuckError(f"the epoch was not begun again: {error!r}")
            self.barriers.notify_failure(Actor.DRIVER, action.attempt, stuck)

    def _end_attempt(self) -> None:
        """Cancelling is a courtesy: a JVM that is gone has no jobs, and one that does not answer is not waited for.

        Where tables share their tasks, cancelling would end the work of others.
        """
        if self._alone:
            cancelling = threading.Thread(target=self._spark.cancel, daemon=True)
            cancelling.start()
            cancelling.join(_CANCEL_SECONDS)
        seconds = max(_END_SECONDS, 2 * self.services.config.mysql.read_timeout.total_seconds())
        left = self.orders.wait(seconds)
        if left:
            raise StuckError(
                f"{left} orders of a failed attempt have not ended after {seconds:.0f} s",
                detail="Beside them the next attempt could write twice.",
                hint=CONTINUES,
            )


def last_sample(state: BackfillState) -> CdcOffset:
    """The newest end of the log that the state knows."""
    return state.intent.written if state.intent else state.written


def may_be_merged_at_once(executor: Executor, after: CdcOffset, upto: CdcOffset) -> bool:
    """Whether an epoch may merge this slice itself; not under the single executor.

    The stored form of a walk is fixed, and such an intent has no place in it.
    """
    return executor is Executor.PARALLEL and is_short_stretch(after, upto)
