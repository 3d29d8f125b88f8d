"""Keeps the tables of a job that rest: live ones that nothing happens to, for which the log is only looked at.

Such a table has no epochs: no intent, no barrier, no commit. With each sample the log is read for all of them at once
(`peeks`), as far as possible in the dump that is read for the others anyway. A table that is met in it is *woken*: it
moves on to where nothing was met, and begins an epoch there, with the sample that it has missed. See
`progress.state.parked` for why nothing is lost.

With `epoch.lag` tables that are met wait for each other, so that each has one epoch and one commit for all its changes
of that time. They move on together too, so that one dump captures the changes of all:

    lag 10 s   0 s       4 s          7 s          10 s
    a          rests     is met                    is woken: captures the log from 0 s on
    b          rests                  is met       is woken: captures the log from 0 s on, in the same dump
    c          rests                               moves on
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import RLock

from consume_upstream.buffer import BufferNote
from consume_upstream.executor import ConsumeOrder
from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.offset import CdcOffset, Visibility, VisibleAt
from progress.state.backfill_state import BackfillState, Intent
from progress.state.parked import Parked, ParkedDocument, Reached, may_rest, moved_on
from vnode_backfill.decide.protocol import CaughtUp, SampleSource
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError

__all__ = ["Missed", "ParkedTables", "Peek", "in_era", "may_park"]

_WORTH_ROWS = 10_000
"""So many changes of one table are worth a commit before their time."""


@dataclass(frozen=True, slots=True)
class Peek:
    """A look at the log for one table that rests."""

    table: RunningTable
    order: ConsumeOrder


@dataclass(frozen=True, slots=True)
class Missed:
    """A sample that a table that rests was not given."""

    written: CdcOffset
    visible: Visibility


class ParkedTables:
    """The tables of one driver that rest. Safe to use from any thread."""

    def __init__(self, lag: timedelta | None = None, before: ParkedDocument | None = None) -> None:
        """`lag` is how long changes of a live table may wait for others, `before` is what the last driver has
        stored."""
        self.lag, self._before = lag, before
        self._lock = RLock()
        self._moved_at = time.monotonic()
        self._resting: dict[str, _Resting] = {}
        self._left: dict[str, _Resting] = {}
        """Tables that were woken and have not committed since."""
        self._missed: dict[str, Missed] = {}
        self._peeking = False
        self._stored: ParkedDocument | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._resting

    def __bool__(self) -> bool:
        return bool(self._resting)

    def newest(self) -> list[CdcOffset]:
        """How far the log was read, in the first era."""
        with self._lock:
            return [each.in_era(0) for each in self._looked_at()]

    def _looked_at(self) -> Collection[CdcOffset]:
        """Up to where the log was looked at: most tables have the very same value."""
        return {id(each.looked.written): each.looked.written for each in self._resting.values()}.values()

    def park(self, order: Order[SampleSource]) -> bool:
        """Let a table rest that has asked for a sample and has nothing to do; whether it does."""
        state, table = order.committed.state, order.table
        if not may_park(order):
            return False
        whole = table.performer.peek_order(order.committed)
        with self._lock:
            reached = Reached(state.written, state.missing)
            self._resting[table.name] = _Resting(table, whole, reached, reached)
            self._left.pop(table.name, None)
            table.reached = state.written
        return True

    def peeks(self, written: CdcOffset, visible: Visibility) -> list[Peek]:
        """A look at the log up to there for each table that is not as far; none while one is under way.

        Raises if the log is not the one that was read.
        """
        with self._lock:
            if self._peeking:
                return []
            for looked in self._looked_at():
                check_log_goes_on(looked, written.in_era(looked.era))
            self._move_on(Missed(written, visible))
            now, moved_at, found, groups = time.time(), time.monotonic(), [], _Groups(written, visible)
            for each in self._resting.values():
                state, intent, is_behind = groups.of(each)
                seen = each.table.performer.seen
                seen.sampled(intent.written, now)
                seen.moved_at = moved_at
                if is_behind:
                    whole = each.whole
                    order = ConsumeOrder(whole.executor, state, whole.plan, intent, may_have_landed=False, peeks=True)
                    found.append(Peek(each.table, order))
            self._peeking = bool(found)
            return found

    def peeked(self, found: Sequence[tuple[Peek, BufferNote | BackfillError]]) -> None:
        """What the look has found. A table that was met, or could not be read, is woken."""
        with self._lock:
            self._peeking = False
            looked = _NOWHERE
            for peek, note in found:
                resting = self._resting.get(peek.table.name)
                if resting is None or resting.table is not peek.table:
                    continue
                intent = peek.order.intent
                if isinstance(note, BackfillError):
                    self.wake(peek.table.name)
                elif resting.looked.written < intent.written:
                    if looked.written is not intent.written or looked.missing != note.missing:
                        looked = Reached(intent.written, note.missing)
                    # One value for all, so that it is stored once.
                    resting.looked = looked
                    resting.table.waiting += note.read
                    if self.lag is None:
                        self._move_one_on(resting, Missed(intent.written, intent.visible))

    def _move_on(self, missed: Missed) -> None:
        """With a lag: let tables that were met begin their epochs, and the others move on, when it is time."""
        if self.lag is None:
            return
        worth = any(each.table.waiting >= _WORTH_ROWS for each in self._resting.values())
        if not worth and time.monotonic() < self._moved_at + self.lag.total_seconds():
            return
        self._moved_at = time.monotonic()
        for each in tuple(self._resting.values()):
            self._move_one_on(each, missed)

    def _move_one_on(self, resting: _Resting, missed: Missed) -> None:
        if resting.table.waiting:
            self.wake(resting.table.name, missed)
        else:
            resting.reached = resting.looked
            resting.table.reached = resting.reached.written

    def wake(self, name: str, missed: Missed | None = None) -> None:
        """Let a table begin epochs again, from where it is; it is given the sample that it has missed."""
        with self._lock:
            resting = self._resting.pop(name, None)
            if resting is None:
                return
            self._left[name] = resting
            if missed is not None:
                self._missed[name] = missed
            resting.table.reached, resting.table.waiting = None, 0
            resting.table.barriers.tell(CaughtUp(resting.reached))

    def wake_all(self) -> None:
        with self._lock:
            for name in tuple(self._resting):
                self.wake(name)

    def missed(self, name: str) -> Missed | None:
        """The sample that a table that was woken is owed, once."""
        with self._lock:
            return self._missed.pop(name, None)

    def forget(self, table: RunningTable) -> None:
        with self._lock:
            for held in (self._resting, self._left):
                if table.name in held and held[table.name].table is table:
                    del held[table.name]
            self._missed.pop(table.name, None)

    def ended(self, table: RunningTable, state: BackfillState) -> BackfillState:
        """The state with which a table ends that rests and has failed: it is as far as it was read."""
        with self._lock:
            resting = self._resting.get(table.name)
            if resting is None or resting.table is not table:
                return state
            del self._resting[table.name]
            return moved_on(state, resting.reached)

    def document(
        self, tables: Sequence[RunningTable], states: Callable[[RunningTable], BackfillState]
    ) -> ParkedDocument | None:
        """What is to be stored of the tables that rest; None if it is stored already. `stored` says that it was.

        `tables` are those that run. What the last driver has stored of others stays, and of those that have not
        committed since: the log that their own states need may be gone.
        """
        with self._lock:
            self._left = {
                name: each for name, each in self._left.items() if states(each.table).revision == each.revision
            }
            held = (*self._resting.values(), *self._left.values())
            if not held and self._stored is None:
                return None
            parked = [(copy_of(each.table), each.revision, each.reached) for each in held]
            made = ParkedDocument.of([*parked, *self._still_true({copy for copy, _, _ in parked}, tables, states)])
            return None if made == self._stored else made

    def _still_true(
        self,
        held: Collection[str],
        tables: Sequence[RunningTable],
        states: Callable[[RunningTable], BackfillState],
    ) -> list[Parked]:
        """What the last driver has stored of tables that do not run, or run and have not committed since."""
        if self._before is None:
            return []
        running = {copy_of(table): states(table).revision for table in tables}
        others = self._before.without(held)
        return [(copy, at, reached) for copy, at, reached in others if running.get(copy, at) == at]

    def stored(self, document: ParkedDocument) -> None:
        self._stored = document


_NOWHERE = Reached(CdcOffset("", "", 0, 0))
_NO_EPOCH = Epoch(0)


@dataclass
class _Resting:
    """A table that rests, and how far the log was read for it."""

    table: RunningTable
    whole: ConsumeOrder
    reached: Reached
    """Up to here nothing concerns the table."""
    looked: Reached
    """Up to here the log was looked at."""

    @property
    def revision(self) -> int:
        return self.whole.state.revision


def may_park(order: Order[SampleSource]) -> bool:
    """Whether a table that asks for a sample has nothing to do, so that it may rest."""
    return order.action.idle and may_rest(order.committed.state)


def copy_of(table: RunningTable) -> str:
    return table.table.opened.record.id


class _Groups:
    """What tables that are at the same point of the log have in common, so that it is made once: most are.

    A look marks nothing and keeps nothing. So of state and intent only the two ends count, and what is not visible.
    """

    def __init__(self, written: CdcOffset, visible: Visibility) -> None:
        self._written, self._visible = written, visible
        self._intents: dict[int, Intent] = {}
        self._known: dict[int, tuple[BackfillState, Intent, bool]] = {}

    def of(self, resting: _Resting) -> tuple[BackfillState, Intent, bool]:
        """Where a look begins and ends, and whether there is something to look at."""
        looked = resting.looked
        found = self._known.get(id(looked))
        if found is None:
            state = replace(resting.whole.state, written=looked.written, missing=looked.missing)
            intent = self._intent(looked.written.era)
            found = self._known[id(looked)] = state, intent, looked.written < intent.written
        return found

    def _intent(self, era: int) -> Intent:
        if era not in self._intents:
            written, visible = self._written.in_era(era), in_era(self._visible, era)
            self._intents[era] = Intent(_NO_EPOCH, BarrierKind.CHECKPOINT, written, visible, (), 0)
        return self._intents[era]


def in_era(visible: Visibility, era: int) -> Visibility:
    """What is visible, as a table counts the logs that it has seen; a set of transactions is the same in all of
    them."""
    return VisibleAt(visible.position.in_era(era)) if isinstance(visible, VisibleAt) else visible
