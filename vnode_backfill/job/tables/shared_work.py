"""Carries out together what the tables of a job order for themselves: samples, commits, log and ranges.

Each table has its own protocol, epochs and offsets, and never waits for another one's failure. Four of its orders are
not carried out one by one, but gathered and begun together, so that many tables cost the source and the disk what one
does:

- `SampleSource`: one answer of the source is given to every table that asks. A table asks when its epoch has ended, so
  the answer comes after all its reads, as the protocol demands.
- `CommitEpoch`: the states of all tables that have one are one commit.
- `BufferChanges`: tables that are at the same offset and go to the same offset read the log together. All that were
  given the same answers are. A table that was held up reads its stretch alone, beside the others where it is long
  (`shared_log`), and is among the others again with the next sample that it shares.
- `ReadRanges`: one Spark job reads the ranges of all tables, one connection per worker.

Why that is right: each table is told of its own outcome, when its own effect is durable, and nothing else of the
protocol changes. A commit of several states is a commit of each of them.

A table waits a moment for others that are about to ask (`epoch.live` at the most). Where all are asked to stop, or a
cut is due, it waits for all, so that all end at one offset. In a backlog tables stop at the end of a slice if it is the
same one for all of them, and otherwise at the end of the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from consume_upstream.log.offset import CdcOffset, Visibility
from progress.state.backfill_state import BackfillState
from progress.state.cut import Cut, Target
from progress.state.parked import ParkedDocument
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    CommitEpoch,
    EpochMerged,
    MergeEpoch,
    RangesRead,
    ReadRanges,
    RestartEpoch,
    Sampled,
    SampleSource,
    StateCommitted,
    TrimBuffer,
)
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.performer import Answer, last_sample
from vnode_backfill.job.run.reading import NOTHING_TO_READ
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.order import DONE, Order, Ordered, follow, in_place_of_earlier
from vnode_backfill.job.tables.parked_tables import Missed, ParkedTables, in_era, may_park
from vnode_backfill.job.tables.reading_order import rows_to_read
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_log import SharedLog
from vnode_backfill.job.tables.shared_ranges import SharedRanges
from vnode_backfill.snapshot.vnode_stream import LanesRead
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError

log = logging.getLogger(__name__)
_KINDS = 3
"""Samples, samples that were missed, and commits: one of each at a time."""
_PARKED_SECONDS, _NOTE_PARKED_SECONDS = 5.0, 10.0
"""It is stored this often how far resting tables are: with a commit of other tables, and without one."""
_PLACE_SECONDS = 300.0
"""How long a target may take to put a new copy in place, which is one commit."""


@dataclass
class _Gathered:
    """What tables have ordered and nobody has begun yet."""

    commits: list[Order[CommitEpoch]] = field(default_factory=list)
    missed: list[tuple[Order[SampleSource], Missed]] = field(default_factory=list)
    """Tables that were woken, and the sample that each is owed."""


class SharedWork:
    """One driver's shared work. `carry_out` and `begin` are called by the driver's loop only."""

    def __init__(self, config: Config, store: TablesStore, tools: DriverTools, wake_loop: Callable[[], object]) -> None:
        self._config, self._store, self._tools, self._wake_loop = config, store, tools, wake_loop
        self._asking: dict[str, Order[SampleSource]] = {}
        self._lock = threading.Lock()
        self._gathered = _Gathered()
        self._parked = ParkedTables(config.epoch.lag, store.parked())
        self._parked_at = time.monotonic()
        self._landed: dict[RunningTable, BackfillState] = {}
        """What was committed last of each table."""
        self._coming: set[str] = set()
        """Tables that were given the newest sample and have not asked for the log up to there."""
        self._log = SharedLog(tools, config.limits.log_readers, self._parked.peeked)
        self._busy: dict[str, Future[None]] = {}
        # Threads of its own: what one table waits for must not hold up what all of them do.
        self._pool = ThreadPoolExecutor(max_workers=_KINDS, thread_name_prefix="shared")
        self._awake = threading.Event()
        self._sampled_at = 0.0
        self._ranges = SharedRanges(tools.spark)
        self.throttled_by = ""
        self.stopping = False
        """Whether every table is to stop."""
        self.telling = threading.RLock()
        """Held while all tables are asked to stop, and while samples are told. A table that hears of the stop first
        ends at the sample that it is told next. So no sample is told to some of them in the middle of it. The driver's
        loop wants it too, so nobody asks the source while it is held."""
        self._tables: Sequence[RunningTable] = ()
        self._settled = True
        self._cut_at = time.monotonic()

    def carry_out(self, table: RunningTable, action: Action, committed: Committed) -> None:
        """Gather what is done together, and hand the rest to the table's own performer."""
        match action:
            case SampleSource():
                self._ask(Order(table, action, committed))
            case CommitEpoch():
                if action.state.failure is not None:
                    action = replace(action, state=self._parked.ended(table, action.state))
                self._gathered.commits = in_place_of_earlier(self._gathered.commits, Order(table, action, committed))
            case BufferChanges():
                self._coming.discard(table.name)
                self._log.take(Order(table, action, committed))
            case ReadRanges(barrier=barrier) if not committed.intent.ordinals:
                table.performer.ranges.finish(NOTHING_TO_READ, LanesRead())
                table.barriers.collect(Actor.SNAPSHOT, barrier, RangesRead(barrier.epoch, (), barrier.attempt))
            case ReadRanges():
                self._ranges.take(Order(table, action, committed))
            case MergeEpoch(barrier=barrier) if not table.may_hold_changes(action):
                table.barriers.collect(Actor.MERGE, barrier, EpochMerged(barrier.epoch, 0, barrier.attempt))
            case TrimBuffer() if not table.may_trim():
                pass
            case RestartEpoch():
                # Begun in the pause, it would be at work beside the next attempt.
                self._leave_out(table)
                table.performer.perform(action, committed)
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
        # Looked at once: what is begun must fit those that were woken and waited for.
        stopping, together = self.stopping, self.together
        if together:
            self._parked.wake_all()
        gathered, self._gathered = self._gathered, _Gathered()
        coming = bool(self._coming) and time.monotonic() < self._sampled_at + self._config.epoch.live.total_seconds()
        self._log.begin(tables, with_peeks=not coming)
        self._ranges.begin()
        settled, self._settled = self._settled, self._busy.get("sample", DONE).done()
        # A cut is of all tables that were given one sample, so their commits wait until each of them has its own.
        held = together and not (settled and self._settled)
        if gathered.commits and (
            held or not self._start("commit", gathered.commits, partial(self._commit, gathered.commits))
        ):
            self._gathered.commits = gathered.commits
        if not gathered.commits and time.monotonic() > self._parked_at + _NOTE_PARKED_SECONDS:
            self._start("commit", [], self._note_parked)
        owed = gathered.missed
        if owed and not self._start("missed", [order for order, _ in owed], partial(self._give_missed, owed)):
            self._gathered.missed = owed
        if self._is_due(tables, stopping=stopping, together=together):
            work = partial(self._sample, together=together, stopping=stopping)
            self._start("sample", list(self._asking.values()), work)

    def forget(self, table: RunningTable) -> None:
        """Leave out what a table that has ended had ordered and nobody has begun."""
        with self._lock:
            self._asking.pop(table.name, None)
        self._parked.forget(table)
        self._landed.pop(table, None)
        self._leave_out(table)

    def _leave_out(self, table: RunningTable) -> None:
        """Leave out what a table has ordered for its epoch and its commit, and nobody has begun."""
        gathered = self._gathered
        gathered.commits = [order for order in gathered.commits if order.table is not table]
        gathered.missed = [(order, missed) for order, missed in gathered.missed if order.table is not table]
        self._log.forget(table)
        self._ranges.forget(table)

    def wake(self) -> None:
        """End a pause before a sample early."""
        self._awake.set()

    def close(self) -> None:
        self._awake.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._log.close()
        self._ranges.close()

    def _start(self, kind: str, orders: Sequence[Order[Ordered]], work: Callable[[], None]) -> bool:
        """Begin work in a thread, one of each kind at a time. Each table counts it among its own orders."""
        if not self._busy.get(kind, DONE).done():
            return False
        future = self._pool.submit(work)
        follow(orders, future)
        self._busy[kind] = future
        return True

    def _is_due(self, tables: Sequence[RunningTable], *, stopping: bool, together: bool) -> bool:
        """Whether the source is to be asked: all tables ask that are about to, or some have waited long enough.

        Tables that are given the same answer read the log together from then on, so it pays to wait for those whose
        epoch is short. A table that reads ranges, or that something is wrong with, is not waited for.
        """
        if not (self._asking or self._parked) or not self._busy.get("sample", DONE).done():
            return False
        waited = time.monotonic() - self._sampled_at >= self._config.epoch.backfill.total_seconds()
        running = [table for table in tables if table.name not in self._parked and not table.run.has_stopped]
        awaited = [
            table for table in running if table.is_soon_done or (stopping and not (waited and table.is_retrying))
        ]
        if all(table.name in self._asking for table in awaited):
            return True
        return waited and not together

    def _sample(self, *, together: bool, stopping: bool) -> None:
        """Ask the source once, not before the epochs have their length, and tell each table that asked by then.

        `together` says whether all tables were woken and waited for.
        """
        self._awake.clear()
        with self._lock:
            orders = list(self._asking.values())
        rest = self._sampled_at + self._config.epoch.live.total_seconds() * self._lengthened(orders) - time.monotonic()
        presses = any(not o.action.idle and o.table.performer.presses(o.committed.state) for o in orders)
        if rest > 0 and not presses:
            self._awake.wait(rest)
        with self._lock:
            orders, self._asking = list(self._asking.values()), {}
        if not orders and not self._parked:
            return
        try:
            known = [*(last_sample(o.committed.state).in_era(0) for o in orders), *self._parked.newest()]
            last = max(known, key=lambda offset: offset.order)
            written, visible = self._tools.source.written_offset(last), self._tools.source.visible_offset()
            self._sampled_at = time.monotonic()
            rows = self._rows_to_read(orders)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in orders:
                order.failed(Actor.DRIVER, error)
            self._parked.wake_all()
            return
        answer = Answer(written, visible)
        # Asked without the lock: the loop may want it, and never waits for the source. Most that ask idly will rest.
        made = [
            (order, self._sampled(order, answer, rows.get(order.table.name), settles=not together))
            for order in orders
            if together or not may_park(order)
        ]
        with self.telling:
            if (self.together and not together) or (self.stopping and not stopping):
                # All are to be given one answer, and some were at work when this one was asked for.
                self._ask_again(orders)
                return
            for order in orders:
                if not together and may_park(order):
                    self._rest(order)
            self._coming = {order.table.name for order, _ in made}
            self._peek(written, visible)
            self._tell(made)

    def _peek(self, written: CdcOffset, visible: Visibility) -> None:
        """Look at the log for tables that rest. What is wrong with it each of them is to find out by itself."""
        try:
            self._log.peek(self._parked.peeks(written, visible))
        except Exception:  # noqa: BLE001 - each of them finds out by itself, whatever it is
            self._parked.wake_all()
        self._wake_loop()

    def _ask(self, order: Order[SampleSource]) -> None:
        """A table asks for a sample. One that rests asks because of a request: it is woken, and asks again."""
        name = order.table.name
        self._coming.discard(name)
        missed = self._parked.missed(name)
        if missed is not None and not self.together:
            self._gathered.missed = [
                *(each for each in self._gathered.missed if each[0].table is not order.table),
                (order, missed),
            ]
            return
        with self._lock:
            if name in self._parked:
                self._parked.wake(name)
            else:
                self._asking[name] = order

    def _ask_again(self, orders: Iterable[Order[SampleSource]]) -> None:
        """Let tables wait for the next answer. A newer question of a table counts, and one that has ended asks nothing:
        a copy of the same name would not be waited for."""
        with self._lock:
            again = {order.table.name: order for order in orders if not order.table.run.has_stopped}
            self._asking = {**again, **self._asking}

    def _give_missed(self, owed: Sequence[tuple[Order[SampleSource], Missed]]) -> None:
        """Give tables that were woken the samples that they have missed; not where all are to be given one answer."""
        for order, missed in owed:
            made = self._sampled(order, Answer(missed.written, missed.visible), None)
            with self.telling:
                if self.together and not order.table.run.has_stopped:
                    self._ask_again([order])
                else:
                    self._tell([(order, made)])
        self._wake_loop()

    def _rest(self, order: Order[SampleSource]) -> None:
        """Let a table rest, unless it has asked again meanwhile, or has ended: another may have its name by now."""
        try:
            with self._lock:
                if not order.table.run.has_stopped and order.table.name not in self._asking:
                    self._parked.park(order)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            order.failed(Actor.DRIVER, error)

    def _sampled(
        self, order: Order[SampleSource], answer: Answer, rows: int | None, *, settles: bool = False
    ) -> Sample | BaseException:
        """What the answer means for a table, which may have to ask the source for more; or why that is not known.

        A table that has been quiet hears that the log has not moved: so it ends its epoch without another one.
        """
        table, last = order.table, last_sample(order.committed.state)
        try:
            written, visible = answer.written.in_era(last.era), in_era(answer.visible, last.era)
            end = table.performer.slice_end(order.committed.state, written)
            # Apart from others in the middle of a backlog it would read the rest of it alone.
            if settles and end is None and table.may_settle(lagged=self._parked.lag is not None):
                written = last
            answer = Answer(written, visible, end)
            return table.performer.sample_of(order.committed, answer, hold=rows is None, rows=rows or 1)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            return error

    def _tell(self, made: Sequence[tuple[Order[SampleSource], Sample | BaseException]]) -> None:
        """Tell each table of its sample. Demands the lock, so that a stop comes before all of them or after."""
        to_the_end = self.stopping and not _end_together([sample for _, sample in made])
        for order, sample in made:
            if isinstance(sample, BaseException):
                order.failed(Actor.DRIVER, sample)
                continue
            order.table.performer.seen.moved_at = time.monotonic()
            told = replace(sample, slice_end=None) if to_the_end else sample
            order.table.barriers.tell(Sampled(told, order.action.ticket))

    def _lengthened(self, orders: Sequence[Order[SampleSource]]) -> int:
        return max((order.table.performer.pace.lengthened for order in orders), default=1)

    def _rows_to_read(self, orders: Sequence[Order[SampleSource]]) -> dict[str, int]:
        """Per table that may read in the next epoch, how many rows; none while ranges are being read."""
        if self.throttled_by or self._ranges.is_busy:
            return {}
        workers = max((len(order.committed.state.assignment) for order in orders), default=1)
        unread = [found for order in orders if (found := order.table.unread()) is not None]
        return rows_to_read(
            unread, self._config.epoch.backfill.total_seconds(), self._ranges.pace.rows_per_second, workers
        )

    def _commit(self, orders: Sequence[Order[CommitEpoch]]) -> None:
        try:
            for order in orders:
                order_threads.seam("before", order.action)
            states = {order.table.name: order.action.state for order in orders}
            cut = self._cut(states) if self.together else None
            commits = [(order.table.services.store, order.action.state) for order in orders]
            says_parked = self._says_parked
            parked = self._parked.document(self._tables, _saved) if says_parked else None
            refused = self._store.commit_together(commits, cut.to_json() if cut else None, parked)
            if says_parked and len(refused) < len(orders):
                self._noted_parked(parked)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in orders:
                order.failed(Actor.DRIVER, error)
            return
        if cut is not None and not refused:
            self._cut_at = time.monotonic()
        for order in orders:
            if order.table.name in refused:
                order.failed(Actor.DRIVER, refused[order.table.name])
            else:
                if not _comes_into_place(order):
                    self._landed[order.table] = order.action.state
                _tell_committed(order)

    @property
    def _says_parked(self) -> bool:
        """Whether the next commit also stores how far resting tables are. Not every commit does: what is stored of
        them may be older than the states of the other tables."""
        return self.together or time.monotonic() > self._parked_at + _PARKED_SECONDS

    def _note_parked(self) -> None:
        """Store how far tables are that rest, where nothing else is committed for a while."""
        parked = self._parked.document(self._tables, _saved)
        try:
            if parked is not None:
                self._store.note_parked(parked)
        except BackfillError as error:
            log.warning("tables that rest cannot be noted error=%s", error.message)
            parked = None
        self._noted_parked(parked)

    def _noted_parked(self, parked: ParkedDocument | None) -> None:
        self._parked_at = time.monotonic()
        if parked is not None:
            self._parked.stored(parked)

    def _cut(self, states: Mapping[str, BackfillState]) -> Cut | None:
        """A target that does not answer leaves this commit without a cut; the commit itself does not need it."""
        try:
            return cut_of(self._tables, states, datetime.now(UTC), self._untold())
        except BackfillError as error:
            log.warning("no cut is made error=%s", error.message)
            return None

    def _untold(self) -> dict[RunningTable, BackfillState]:
        """The states of tables whose last commit has landed, and which the loop has not told of it."""
        landed = tuple(self._landed.items())
        return {table: state for table, state in landed if state.revision > _saved(table).revision}


def _end_together(samples: Sequence[Sample | BaseException]) -> bool:
    """Whether tables that stop may do so at the end of a slice: it is the same one for all of them."""
    ends = [sample.slice_end for sample in samples if isinstance(sample, Sample)]
    return len({end.in_era(0) for end in ends if end is not None}) == 1 and None not in ends


def _saved(table: RunningTable) -> BackfillState:
    return table.run.coordinator.saved


def cut_of(
    tables: Sequence[RunningTable],
    states: Mapping[str, BackfillState],
    at: datetime,
    untold: Mapping[RunningTable, BackfillState] | None = None,
) -> Cut | None:
    """The cut that a commit of these states makes of all tables; None if live targets are not at one offset.

    Nothing of a live table may be under way: it waits for this commit, or it has stopped, or it has nothing to do.
    `untold` are states that tables have by now and have not heard of. Without an intent such a table has nothing to do.
    """
    untold = untold or {}
    found = {table: states.get(table.name) or untold.get(table) or _saved(table) for table in tables}
    # A table that was opened again has its name from one that ended, whose last commit may have landed since.
    waiting = {*states, *(table.name for table in tables if table in untold and untold[table].intent is None)}
    # A table that fails with this commit keeps its intent, and its target may hold what the intent says.
    ended = {table for table, state in found.items() if table.run.failure or state.failure}
    live = {table: state for table, state in found.items() if state.is_live and table not in ended}
    if any(table.name not in waiting and not table.is_at_rest for table in live):
        return None
    offsets = {state.lowest_applied.in_era(0) for state in live.values()}
    if len(offsets) != 1:
        return None
    return Cut(
        offset=offsets.pop(),
        at=at,
        targets={table.name: Target(table.table.opened.record.sink, table.services.sink.version()) for table in live},
        left_out={table.name: _left_out_because(table, found[table]) for table in tables if table not in live},
    )


def _left_out_because(table: RunningTable, state: BackfillState) -> str:
    return state.failure.message if state.failure is not None else table.left_out_because


def _comes_into_place(order: Order[CommitEpoch]) -> bool:
    """Whether the commit makes a new copy live that is still beside the old one."""
    return order.action.state.is_whole and order.table.services.sink.is_beside


def _tell_committed(order: Order[CommitEpoch]) -> None:
    """A new copy that is live takes the place of the old one first, at this very offset.

    That is done in a thread of the table's own: a target that does not answer holds up no commit of others.
    """

    def place() -> None:
        sink.put_in_place()
        barriers.tell(committed)

    committed, barriers = StateCommitted(order.action.state.revision), order.table.barriers
    sink, orders = order.table.services.sink, order.table.performer.orders
    if _comes_into_place(order):
        orders.begin(Actor.DRIVER, order.attempt, order.action, place, within=_PLACE_SECONDS)
        return
    try:
        order_threads.seam("after", order.action)
    except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
        order.failed(Actor.DRIVER, error)
        return
    barriers.tell(committed)
