"""Reads the log for all tables of a job: once for tables at the same offset, and beside them for one that is behind.

Tables that are at the same offset and go to the same offset are one *stretch*, which is read once. Short stretches are
read one after the other, in moments. A long stretch of a table that is behind the others would hold them up for as long
as it takes: a table that was set aside for a day may have gigabytes to read. So it is read *late*, beside the others,
under server ids of its own:

    log_readers 4      readers    a stretch of
    nobody is late     0 1 2 3    the tables that are ahead of all others
    somebody is        0          the tables that are ahead
                       1 2 3      the one that is late; others that are late wait for it

So the source never has more than `limits.log_readers` readers. With one reader nobody can be late: stretches take
turns, the short ones first.

For tables that rest (`parked_tables`) the log is only looked at, in the same dump where they are at the same offset. A
look that has not begun when its table orders the log itself is left out. A dump has each table once: its rows would go
to the look, and the order would find none and count them as captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from consume_upstream.buffer import BufferNote
from consume_upstream.executor import ConsumeOrder, ReaderLot, consume_together
from consume_upstream.log.offset import CdcOffset, is_short_stretch
from progress.state.backfill_state import BackfillState, Intent
from vnode_backfill.decide.protocol import BufferChanges
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.tables.order import DONE, Order, all_done, follow, in_place_of_earlier
from vnode_backfill.job.tables.parked_tables import Peek
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.epoch import Actor, Barrier
from vnode_backfill.words.errors import ActorError, BackfillError

__all__ = ["SharedLog", "is_late", "stretches_of"]

Peeked = Callable[[Sequence[tuple[Peek, BufferNote | BackfillError]]], None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the log, the tables whose changes of it are captured, and those that rest."""

    after: CdcOffset
    upto: CdcOffset
    orders: list[Order[BufferChanges]] = field(default_factory=list)
    peeks: list[Peek] = field(default_factory=list)

    @property
    def is_short(self) -> bool:
        return is_short_stretch(self.after, self.upto)

    @property
    def length(self) -> tuple[bool, int]:
        """Short stretches come first; how long one over several files is nobody knows."""
        one_file = self.after.number == self.upto.number
        return not one_file, self.upto.pos - self.after.pos if one_file else 0

    @property
    def names(self) -> set[str]:
        return {order.table.name for order in self.orders} | {peek.table.name for peek in self.peeks}


class SharedLog:
    """One driver's reading of the log. All but `peek` is called by the driver's loop only."""

    def __init__(self, tools: DriverTools, readers: int, peeked: Peeked) -> None:
        """`peeked` is told what was found for tables that rest."""
        self._tools, self._readers, self._peeked = tools, readers, peeked
        self._waiting: list[Order[BufferChanges]] = []
        self._peeks: list[Peek] = []
        self._front: Future[None] = DONE
        self._late: Future[None] = DONE
        self._front_has_all = False
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="log")

    def take(self, order: Order[BufferChanges]) -> None:
        self._waiting = in_place_of_earlier(self._waiting, order)

    def peek(self, peeks: list[Peek]) -> None:
        """Look at the log for tables that rest, with the next reading of it. Demands that no look is under way."""
        if peeks:
            self._peeks = peeks

    def forget(self, table: RunningTable) -> None:
        """Leave out what a table that has ended had ordered and nobody has begun."""
        self._waiting = [order for order in self._waiting if order.table is not table]

    def begin(self, tables: Sequence[RunningTable], *, with_peeks: bool) -> None:
        """Begin what has gathered, where it is its turn. Without `with_peeks` tables that rest wait for others."""
        peeks = self._peeks if with_peeks else []
        if not self._waiting and not peeks:
            return
        stretches = stretches_of(self._waiting, peeks)
        late = _late(stretches, tables) if self._readers > 1 else []
        front = [stretch for stretch in stretches if stretch not in late]
        if late and self._late.done() and not (self._front_has_all and not self._front.done()):
            self._late = self._start(late, ReaderLot(1, self._readers - 1))
        if front and self._front.done():
            self._front_has_all = self._late.done() and not all(stretch.is_short for stretch in front)
            self._front = self._start(front, ReaderLot(0, self._readers if self._front_has_all else 1))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, stretches: Sequence[Stretch], readers: ReaderLot) -> Future[None]:
        orders = [order for stretch in stretches for order in stretch.orders]
        self._waiting = [order for order in self._waiting if order not in orders]
        if any(stretch.peeks for stretch in stretches):
            looked_at = {peek.table.name for stretch in stretches for peek in stretch.peeks}
            self._peeks = [peek for peek in self._peeks if peek.table.name not in looked_at]
        future = self._pool.submit(self._read_all, sorted(stretches, key=lambda each: each.length), readers)
        follow(orders, future)
        return future

    def _read_all(self, stretches: Sequence[Stretch], readers: ReaderLot) -> None:
        for stretch in stretches:
            try:
                self._read(stretch, readers)
            except BaseException as error:  # noqa: BLE001 - a table that is told nothing would wait for ever
                for order in stretch.orders:
                    order.failed(Actor.UPSTREAM, error)
            all_done(stretch.orders)

    def _read(self, stretch: Stretch, readers: ReaderLot) -> None:
        asked, begun = self._begun(stretch)
        asked += [peek.order for peek in stretch.peeks]
        if not asked:
            return
        try:
            notes = self._consume(asked, readers)
        except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            for order in begun:
                order.failed(Actor.UPSTREAM, error)
            failed = error if isinstance(error, BackfillError) else ActorError(f"the log was not read: {error!r}")
            self._peeked([(peek, failed) for peek in stretch.peeks])
            return
        for order, note in zip(begun, notes, strict=False):
            _report(order, note)
        self._peeked(list(zip(stretch.peeks, notes[len(begun) :], strict=True)))

    def _begun(self, stretch: Stretch) -> tuple[list[ConsumeOrder], list[Order[BufferChanges]]]:
        asked, begun = [], []
        for order in stretch.orders:
            try:
                order_threads.seam("before", order.action)
                asked.append(order.table.performer.consume_order(order.action, order.committed))
                begun.append(order)
            except BaseException as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
                order.failed(Actor.UPSTREAM, error)
        return asked, begun

    def _consume(self, asked: Sequence[ConsumeOrder], readers: ReaderLot) -> list[BufferNote | BackfillError]:
        spark, barrier = self._tools.spark, Barrier(asked[0].intent.epoch, asked[0].intent.kind)
        return spark.run(
            Actor.UPSTREAM,
            barrier,
            lambda: consume_together(spark.tasks_in, asked, readers=readers),
            lambda: consume_together(None, asked, readers=readers),
        )


def _report(order: Order[BufferChanges], note: BufferNote | BackfillError) -> None:
    if isinstance(note, BackfillError):
        order.failed(Actor.UPSTREAM, note)
        return
    order_threads.seam("after", order.action)
    order.table.noted(note.kept)
    order.table.performer.report_buffered(order.action, note)


def stretches_of(orders: Sequence[Order[BufferChanges]], peeks: Sequence[Peek]) -> list[Stretch]:
    """What is of the same stretch of the log, together. A table that orders the log is not looked at as well."""
    found: dict[_Ends, Stretch] = {}
    ordered = {order.table.name for order in orders}
    for order in orders:
        _stretch(found, order.action.after, order.action.intent.written).orders.append(order)
    last: tuple[BackfillState, Intent, Stretch] | None = None
    for peek in (peek for peek in peeks if peek.table.name not in ordered):
        state, intent = peek.order.state, peek.order.intent
        if last is None or last[0] is not state or last[1] is not intent:
            # Most tables that rest have both in common.
            last = state, intent, _stretch(found, state.written, intent.written)
        last[2].peeks.append(peek)
    return list(found.values())


_Ends = tuple[CdcOffset, str, CdcOffset, str]
"""Offsets are equal whichever file they are of: after RESET MASTER another one has the same name. So its identity
counts, too."""


def _stretch(found: dict[_Ends, Stretch], after: CdcOffset, upto: CdcOffset) -> Stretch:
    return found.setdefault((after, after.log, upto, upto.log), Stretch(after, upto))


def is_late(after: CdcOffset, upto: CdcOffset, captured: Iterable[tuple[int, int]]) -> bool:
    """Whether `(after, upto]` is long and begins where another table has been; `captured` is how far the others are."""
    return not is_short_stretch(after, upto) and any(at > after.in_era(0).order for at in captured)


def _late(stretches: Sequence[Stretch], tables: Sequence[RunningTable]) -> list[Stretch]:
    """The stretches that are read beside the others. Tables may count different eras of one log."""
    if all(stretch.is_short for stretch in stretches):
        return []
    captured = {table.name: table.captured.in_era(0).order for table in tables if not table.run.has_stopped}
    return [
        stretch
        for stretch in stretches
        if is_late(stretch.after, stretch.upto, (at for name, at in captured.items() if name not in stretch.names))
    ]
