"""Carries out together what the tables of a job order for themselves: samples, commits, log and ranges.

Each table has its own protocol, epochs and offsets, and never waits for another one's failure. Four of its orders are
not carried out one by one, but gathered and begun together, so that many tables cost the source and the disk what one
does:

- `SampleSource`: one answer of the source is given to every table that asks. A table asks when its epoch has ended, so
  the answer comes after all its reads, as the protocol demands.
- `CommitEpoch`: the states of all tables that have one are one commit.
- `BufferChanges`: tables that are at the same offset and go to the same offset read the log together. All that were
  given the same answers are. A table that was held up reads its stretch alone, and is among the others again with the
  next sample that it shares.
- `ReadRanges`: one Spark job reads the ranges of all tables, one connection per worker.

Why that is right: each table is told of its own outcome, when its own effect is durable, and nothing else of the
protocol changes. A commit of several states is a commit of each of them.

A table waits a moment for others that are about to ask (`epoch.live` at the most). Where all are asked to stop, or a
cut is due, it waits for all, so that all end at one offset.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar

from consume_upstream.executor import consume_together
from consume_upstream.log.offset import CdcOffset, Visibility, VisibleAt
from progress.state.backfill_state import BackfillState
from progress.state.cut import Cut, Target
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    CommitEpoch,
    EpochMerged,
    MergeEpoch,
    RangesRead,
    ReadRanges,
    Sampled,
    SampleSource,
    StateCommitted,
    TrimBuffer,
)
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.observations import Pace
from vnode_backfill.job.run.performer import last_sample
from vnode_backfill.job.run.reading import NOTHING_TO_READ, PreparedRead
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.reading_order import rows_to_read
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.snapshot.vnode_stream import Lane, LanesRead, TableOutcome, read_tables
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError

log = logging.getLogger(__name__)
Ordered = TypeVar("Ordered", bound=Action)
_KINDS = 4
"""Samples, commits, the log and ranges: one of each at a time."""


@dataclass(frozen=True, slots=True)
class _Order(Generic[Ordered]):
    """An order of one table, with what was committed when it was given."""

    table: RunningTable
    action: Ordered
    committed: Committed
    done: Future[None] = field(default_factory=Future)
    """Is done when the table was told of its outcome."""

    @property
    def attempt(self) -> int:
        return self.committed.attempt

    def failed(self, actor: Actor, error: BaseException) -> None:
        self.table.barriers.notify_failure(actor, self.attempt, error)


@dataclass
class _Gathered:
    """What tables have ordered and nobody has begun yet."""

    commits: list[_Order[CommitEpoch]] = field(default_factory=list)
    logs: list[_Order[BufferChanges]] = field(default_factory=list)
    ranges: list[_Order[ReadRanges]] = field(default_factory=list)


class SharedWork:
    """One driver's shared work. `carry_out` and `begin` are called by the driver's loop only."""

    def __init__(self, config: Config, store: TablesStore, tools: DriverTools) -> None:
        self._config, self._store, self._tools = config, store, tools
        self._asking: dict[str, _Order[SampleSource]] = {}
        self._lock = threading.Lock()
        self._gathered = _Gathered()
        self._busy: dict[str, Future[None]] = {}
        # Threads of its own: what one table waits for must not hold up what all of them do.
        self._pool = ThreadPoolExecutor(max_workers=_KINDS, thread_name_prefix="shared")
        self._awake = threading.Event()
        self._sampled_at = 0.0
        self.pace = Pace()
        self.throttled_by = ""
        self.stopping = False
        """Whether every table is to stop."""
        self._tables: Sequence[RunningTable] = ()
        self._settled = True
        self._cut_at = time.monotonic()

    def carry_out(self, table: RunningTable, action: Action, committed: Committed) -> None:
        """Gather what is done together, and hand the rest to the table's own performer."""
        match action:
            case SampleSource():
                with self._lock:
                    self._asking[table.name] = _Order(table, action, committed)
            case CommitEpoch():
                self._gathered.commits = _instead(self._gathered.commits, _Order(table, action, committed))
            case BufferChanges():
                self._gathered.logs = _instead(self._gathered.logs, _Order(table, action, committed))
            case ReadRanges(barrier=barrier) if not committed.intent.ordinals:
                table.performer.ranges.finish(NOTHING_TO_READ, LanesRead())
                table.barriers.collect(Actor.SNAPSHOT, barrier, RangesRead(barrier.epoch, (), barrier.attempt))
            case ReadRanges():
                self._gathered.ranges = _instead(self._gathered.ranges, _Order(table, action, committed))
            case MergeEpoch(barrier=barrier) if not table.may_hold_changes(action):
                table.barriers.collect(Actor.MERGE, barrier, EpochMerged(barrier.epoch, 0, barrier.attempt))
            case TrimBuffer() if not table.may_trim():
                pass
            case _:
                table.performer.perform(action, committed)

    @property
    def together(self) -> bool:
        """Whether samples wait for every table: all are to stop at one offset, or a cut is due."""
        every = self._config.epoch.cut
        return self.stopping or (every is not None and time.monotonic() - self._cut_at >= every.total_seconds())

    def begin(self, tables: Sequence[RunningTable]) -> None:
        """Begin what has gathered, where it is its turn."""
        self._tables = tables
        gathered, self._gathered = self._gathered, _Gathered()
        if gathered.logs and not self._start("log", gathered.logs, partial(self._read_logs, gathered.logs)):
            self._gathered.logs = gathered.logs
        if gathered.ranges and not self._start("ranges", gathered.ranges, partial(self._read_ranges, gathered.ranges)):
            self._gathered.ranges = gathered.ranges
        settled, self._settled = self._settled, self._busy.get("sample", _DONE).done()
        # A cut is of all tables that were given one sample, so their commits wait until each of them has its own.
        held = self.together and not (settled and self._settled)
        if gathered.commits and (
            held or not self._start("commit", gathered.commits, partial(self._commit, gathered.commits))
        ):
            self._gathered.commits = gathered.commits
        if self._is_due(tables):
            self._start("sample", list(self._asking.values()), self._sample)

    def forget(self, table: RunningTable) -> None:
        """Leave out what a table that has ended had ordered and nobody has begun."""
        with self._lock:
            self._asking.pop(table.name, None)
        gathered = self._gathered
        gathered.commits = [order for order in gathered.commits if order.table is not table]
        gathered.logs = [order for order in gathered.logs if order.table is not table]
        gathered.ranges = [order for order in gathered.ranges if order.table is not table]

    def wake(self) -> None:
        """End a pause before a sample early."""
        self._awake.set()

    def close(self) -> None:
        self._awake.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, kind: str, orders: Sequence[_Order[Ordered]], work: Callable[[], None]) -> bool:
        """Begin work in a thread, one of each kind at a time. Each table counts it among its own orders."""
        if not self._busy.get(kind, _DONE).done():
            return False
        future = self._pool.submit(work)
        for order in orders:
            order.table.performer.orders.follow(order.done)
        future.add_done_callback(partial(_all_done, orders))
        self._busy[kind] = future
        return True

    def _is_due(self, tables: Sequence[RunningTable]) -> bool:
        """Whether the source is to be asked: all tables ask that are about to, or some have waited long enough.

        Tables that are given the same answer read the log together from then on, so it pays to wait for those whose
        epoch is short. A table that reads ranges, or that something is wrong with, is not waited for.
        """
        if not self._asking or not self._busy.get("sample", _DONE).done():
            return False
        waited = time.monotonic() - self._sampled_at >= self._config.epoch.backfill.total_seconds()
        running = [table for table in tables if not table.run.has_stopped]
        awaited = [
            table for table in running if table.is_soon_done or (self.stopping and not (waited and table.is_retrying))
        ]
        if all(table.name in self._asking for table in awaited):
            return True
        return waited and not self.together

    def _sample(self) -> None:
        """Ask the source once, not before the epochs have their length, and tell each table that asked by then."""
        self._awake.clear()
        with self._lock:
            orders = list(self._asking.values())
        rest = self._sampled_at + self._config.epoch.live.total_seconds() * self._lengthened(orders) - time.monotonic()
        presses = any(not o.action.idle and o.table.performer.presses(o.committed.state) for o in orders)
        if rest > 0 and not presses:
            self._awake.wait(rest)
        with self._lock:
            orders, self._asking = list(self._asking.values()), {}
        if not orders:
            return
        try:
            last = max((last_sample(o.committed.state).in_era(0) for o in orders), key=lambda offset: offset.order)
            written, visible = self._tools.source.written_offset(last), self._tools.source.visible_offset()
            self._sampled_at = time.monotonic()
            rows = self._rows_to_read(orders)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in orders:
                order.failed(Actor.DRIVER, error)
            return
        for order in orders:
            self._tell_sample(order, written, visible, rows.get(order.table.name))

    def _tell_sample(
        self, order: _Order[SampleSource], written: CdcOffset, visible: Visibility, rows: int | None
    ) -> None:
        table, era = order.table, last_sample(order.committed.state).era
        try:
            written, visible = written.in_era(era), _in_era(visible, era)
            sample = table.performer.sample_of(order.committed, written, visible, hold=rows is None, rows=rows or 1)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            order.failed(Actor.DRIVER, error)
            return
        table.barriers.tell(Sampled(sample, order.action.ticket))

    def _lengthened(self, orders: Sequence[_Order[SampleSource]]) -> int:
        return max((order.table.performer.pace.lengthened for order in orders), default=1)

    def _rows_to_read(self, orders: Sequence[_Order[SampleSource]]) -> dict[str, int]:
        """Per table that may read in the next epoch, how many rows; none while ranges are being read."""
        if self.throttled_by or not self._busy.get("ranges", _DONE).done() or self._gathered.ranges:
            return {}
        states = [order.committed.state for order in orders]
        limits = [state.controls.rows_per_second for state in states if state.controls.rows_per_second]
        workers = max((len(state.assignment) for state in states), default=1)
        speed = min([self.pace.rows_per_second, *(limit / workers for limit in limits)])
        unread = [found for order in orders if (found := order.table.unread()) is not None]
        return rows_to_read(unread, int(speed * self._config.epoch.backfill.total_seconds()), workers)

    def _commit(self, orders: Sequence[_Order[CommitEpoch]]) -> None:
        try:
            for order in orders:
                order_threads.seam("before", order.action)
            states = {order.table.name: order.action.state for order in orders}
            cut = self._cut(states) if self.together else None
            commits = [(order.table.services.store, order.action.state) for order in orders]
            self._store.commit_together(commits, cut.to_json() if cut else None)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in orders:
                order.failed(Actor.DRIVER, error)
            return
        if cut is not None:
            self._cut_at = time.monotonic()
        for order in orders:
            self._tell_committed(order)

    def _cut(self, states: Mapping[str, BackfillState]) -> Cut | None:
        """A target that does not answer leaves this commit without a cut; the commit itself does not need it."""
        try:
            return cut_of(self._tables, states, datetime.now(UTC))
        except BackfillError as error:
            log.warning("no cut is made error=%s", error.message)
            return None

    def _tell_committed(self, order: _Order[CommitEpoch]) -> None:
        try:
            if order.action.state.is_live:
                # A new copy that is live takes the place of the old one, at this very offset.
                order.table.services.sink.put_in_place()
            order_threads.seam("after", order.action)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            order.failed(Actor.DRIVER, error)
            return
        order.table.barriers.tell(StateCommitted(order.action.state.revision))

    def _read_logs(self, orders: Sequence[_Order[BufferChanges]]) -> None:
        """One stretch after the other: two readers at once would need ids of their own at the source."""
        for stretch in sorted(_stretches(orders), key=_length):
            self._read_log(stretch)
            _all_done(stretch)

    def _read_log(self, orders: Sequence[_Order[BufferChanges]]) -> None:
        spark, asked, begun = self._tools.spark, [], []
        for order in orders:
            try:
                order_threads.seam("before", order.action)
                asked.append(order.table.performer.consume_order(order.action, order.committed))
                begun.append(order)
            except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
                order.failed(Actor.UPSTREAM, error)
        if not begun:
            return
        orders = begun
        try:
            notes = spark.run(
                Actor.UPSTREAM,
                orders[0].action.barrier,
                lambda: consume_together(spark.context, asked),
                lambda: consume_together(None, asked),
            )
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in orders:
                order.failed(Actor.UPSTREAM, error)
            return
        for order, note in zip(orders, notes, strict=True):
            if isinstance(note, BackfillError):
                order.failed(Actor.UPSTREAM, note)
                continue
            order_threads.seam("after", order.action)
            order.table.noted(note.kept)
            order.table.performer.report_buffered(order.action, note)

    def _read_ranges(self, orders: Sequence[_Order[ReadRanges]]) -> None:
        began = time.monotonic()
        prepared: list[tuple[_Order[ReadRanges], PreparedRead]] = []
        for order in orders:
            try:
                order_threads.seam("before", order.action)
                prepared.append((order, order.table.performer.ranges.prepare(order.action, order.committed)))
            except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
                order.failed(Actor.SNAPSHOT, error)
        if not prepared:
            return
        spark, first = self._tools.spark, prepared[0][0].action
        lanes = [each.lanes for _, each in prepared]
        try:
            done = spark.run(
                Actor.SNAPSHOT,
                first.barrier,
                lambda: read_tables(spark.context, lanes),
                lambda: _nothing_read(len(lanes)),
            )
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order, _ in prepared:
                order.failed(Actor.SNAPSHOT, error)
            return
        self._measure(lanes, done, time.monotonic() - began, limited=first.rows_per_second is not None)
        for (order, each), outcome in zip(prepared, done, strict=True):
            self._report_read(order, each, outcome)

    def _report_read(self, order: _Order[ReadRanges], prepared: PreparedRead, outcome: TableOutcome) -> None:
        reading, action = order.table.performer.ranges, order.action
        if isinstance(outcome, BackfillError):
            order.failed(Actor.SNAPSHOT, outcome)
            return
        receipts = reading.finish(prepared, outcome)
        order_threads.seam("after", action)
        barrier = action.barrier
        read = RangesRead(barrier.epoch, receipts, barrier.attempt, reading.refused)
        order.table.barriers.collect(Actor.SNAPSHOT, barrier, read)

    def _measure(
        self, lanes: Sequence[Sequence[Lane]], done: Sequence[TableOutcome], seconds: float, *, limited: bool
    ) -> None:
        """Learn how fast a worker reads, from an epoch without a limit in which nothing failed."""
        read = [each for each in done if isinstance(each, LanesRead)]
        if limited or len(read) < len(done):
            return
        receipts = [receipt for each in read for receipt in each.receipts]
        planned = sum(len(lane.ranges) for each in lanes for lane in each)
        working = max((sum(bool(lane.ranges) for lane in each) for each in lanes), default=1)
        rows = sum(receipt.rows for receipt in receipts)
        self.pace.measured(rows, seconds, working, everything=len(receipts) == planned)


def _in_era(visible: Visibility, era: int) -> Visibility:
    """What is visible, as a table counts the logs that it has seen; a set of transactions is the same in all of them."""
    return VisibleAt(visible.position.in_era(era)) if isinstance(visible, VisibleAt) else visible


def cut_of(tables: Sequence[RunningTable], states: Mapping[str, BackfillState], at: datetime) -> Cut | None:
    """The cut that a commit of these states makes of all tables; None if live targets are not at one offset.

    Nothing of a live table may be under way: it waits for this commit, or it has stopped, or it has nothing to do.
    """
    found = {table: states.get(table.name, table.run.coordinator.saved) for table in tables}
    live = {table: state for table, state in found.items() if state.is_live and not table.run.failure}
    if any(table.name not in states and not table.is_at_rest for table in live):
        return None
    offsets = {state.lowest_applied.in_era(0) for state in live.values()}
    if len(offsets) != 1:
        return None
    return Cut(
        offset=offsets.pop(),
        at=at,
        targets={table.name: Target(table.table.opened.record.sink, table.services.sink.version()) for table in live},
        left_out={table.name: table.left_out_because for table in tables if table not in live},
    )


_DONE: Future[None] = Future()
_DONE.set_result(None)


def _instead(waiting: list[_Order[Ordered]], order: _Order[Ordered]) -> list[_Order[Ordered]]:
    """What waits, with this order in place of an earlier one of its table: that one's attempt is over."""
    return [*(each for each in waiting if each.table is not order.table), order]


def _nothing_read(tables: int) -> list[TableOutcome]:
    """Of a stop that has lost its JVM: the ranges stay unread."""
    return [LanesRead() for _ in range(tables)]


def _all_done(orders: Sequence[_Order[Ordered]], _future: object = None) -> None:
    """Every table was told: what waits for one of them need not wait for the rest."""
    for order in orders:
        if not order.done.done():
            order.done.set_result(None)


def _length(orders: Sequence[_Order[BufferChanges]]) -> tuple[bool, int]:
    """Short stretches come first; how long one over several files is nobody knows."""
    after, upto = orders[0].action.after, orders[0].action.intent.written
    return after.number != upto.number, upto.pos - after.pos if after.number == upto.number else 0


def _stretches(orders: Sequence[_Order[BufferChanges]]) -> list[list[_Order[BufferChanges]]]:
    """Orders for the same stretch of the log, together."""
    found: dict[tuple[CdcOffset, CdcOffset], list[_Order[BufferChanges]]] = {}
    for order in orders:
        found.setdefault((order.action.after, order.action.intent.written), []).append(order)
    return list(found.values())
