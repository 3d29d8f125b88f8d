"""Runs one random history of a job of the single executor: the model world, walked in an order only the source knows.

The state goes through its stored row at every commit and every recovery. `keys_in_order` is the server's order of the
key: a random one, which no comparison in the client could find, or the natural one, where the job is to be migrated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from progress.state.backfill_state import BackfillState, Request, RequestKind, new_state
from progress.state.migration import migrated_plan, migrated_state
from progress.state.walk_state import WHOLE_KEY, Walk, walk_plan
from progress.store.lease import Lease, Process
from progress.store.rows.checkpoint_rows import Bookkeeping
from progress.store.rows.walk_rows import PLANS, StoredWalk, from_row, to_row
from tests.simulation.actors import BOUNDS, Driver, Steps, planned
from tests.simulation.simulator import Simulation
from tests.simulation.source import Row
from tests.simulation.world import ModelStore, ReadReceipt
from tests.unit.progress.store.state_folder import START, record
from vnode_backfill.decide.protocol import CommitReceipts, RangeReceipt, RangesRead, ReadRanges, ReceiptsCommitted
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan

RECORD = record()
LEASE = Lease(1, "somebody", Process.current(), START, START + timedelta(minutes=1), timedelta(minutes=1))


@dataclass
class WalkStore(ModelStore):
    """Checkpoints of a walk: the cursor of a state is the one of its epoch, as in `SingleStore`."""

    walks: list[Walk] = field(default_factory=list)
    following: Walk | None = None

    def commit(self, state: BackfillState) -> None:
        before = len(self.states)
        super().commit(state)
        if len(self.states) > before:
            chosen = self.following
            if chosen is None or chosen.epoch > state.epoch:
                chosen = self.walks[-1]
            stored = StoredWalk(RECORD, state, Bookkeeping(RECORD.id, PLANS), chosen)
            assert from_row(to_row(stored, LEASE)) == (stored, LEASE)
            self.walks.append(chosen)


class WalkDriver(Driver):
    """A driver that walks: `commit_receipts` appends the stretch and hands its cursor over, as `WalkReading` does."""

    keys_in_order: tuple[int, ...]

    @property
    def walks(self) -> WalkStore:
        assert isinstance(self.store, WalkStore)
        return self.store

    def read_ranges(self, action: ReadRanges) -> Steps:
        self.read, self.ended = (), False
        landed = self.landed(action.barrier.epoch)
        if landed is not None:
            self.read = landed
        elif any(action.lanes):
            rows: list[tuple[int, Row]] = []
            left = self.behind(self.walks.walks[-1].last_key)
            while True:
                yield None
                wanted = self.random.randrange(1, 6)
                seen = self.source.read(frozenset(left))
                found = [key for key in left if key in seen][:wanted]
                if not found:
                    self.ended = True
                    break
                rows += [(key, seen[key]) for key in found]
                left = self.behind((found[-1],))
                if self.random.random() < 0.4:
                    break
            self.read = (ReadReceipt(WHOLE_KEY, tuple(rows)),)
        yield None
        yield RangesRead(action.barrier.epoch, self.receipts(), action.barrier.attempt)

    def says_short(self) -> bool:
        """The form of a walk has no place for an epoch that merges its own slice, so a performer never says it."""
        return False

    def landed(self, epoch: Epoch) -> tuple[ReadReceipt, ...] | None:
        return self.sink.landed.get((self.app("append"), epoch))

    def behind(self, cursor: Key | None) -> list[int]:
        if cursor is None:
            return list(self.keys_in_order)
        (key,) = cursor
        assert isinstance(key, int)
        return list(self.keys_in_order[self.keys_in_order.index(key) + 1 :])

    def commit_receipts(self, action: CommitReceipts) -> Steps:
        epoch = action.barrier.epoch
        yield None
        filled = tuple(receipt for receipt in self.read if receipt.rows)
        landed = self.sink.append(self.app("append"), epoch, filled)
        yield None
        if landed != filled:
            self.read, self.ended = landed, False
        if self.read:
            self.walks.following = advanced(self.walks.walks[-1], epoch, self.read)
        yield None
        yield ReceiptsCommitted(epoch, self.receipts(), action.barrier.attempt)

    def receipts(self) -> tuple[RangeReceipt, ...]:
        rows = self.walks.walks[-1].rows + sum(len(receipt.rows) for receipt in self.read)
        return (RangeReceipt(WHOLE_KEY, rows),) if self.ended else ()


def advanced(walk: Walk, epoch: Epoch, receipts: tuple[ReadReceipt, ...]) -> Walk:
    rows = [row for receipt in receipts for row in receipt.rows]
    return walk.advanced(epoch, (rows[-1][0],) if rows else None, len(rows))


@dataclass
class WalkSimulation(Simulation):
    """A whole run from one seed."""

    make_driver: type[Driver] = WalkDriver
    natural_order: bool = False
    with_statements: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vnode_count = 1
        self.walk_store = WalkStore()
        keys = list(range(self.source.keys))
        if not self.natural_order:
            self.random.shuffle(keys)
        self.order = tuple(keys)

    def _recreate_once_more(self) -> None:
        """The store forgets nothing between jobs here."""

    def _create(self, job: str) -> None:
        self.job, self.store = job, self.walk_store
        first = self._first_offset()
        if self.random.random() < 0.7:
            self._traffic(self.random.randrange(4))
        self.walk_store.walks.append(Walk(Epoch(0), estimated_rows=len(self.source.visible)))
        self.store.commit(new_state(first, self._walk_plan, split_evenly(1, 1)))
        self._recover()

    @property
    def _walk_plan(self) -> SplitPlan:
        return walk_plan(("id",), 10)

    def _plan_of(self, state: BackfillState) -> SplitPlan:
        return self._walk_plan if self.store is self.walk_store else super()._plan_of(state)

    def _recover(self) -> None:
        self.walk_store.following = None
        if issubclass(self.make_driver, WalkDriver):
            self.make_driver.keys_in_order = self.order
        super()._recover()

    def _change_log(self) -> None:
        """A walk keeps to the log it began with."""
        if self.store is self.walk_store:
            self._crash()
        else:
            super()._change_log()

    def _request(self) -> Request:
        if self.store is not self.walk_store:
            return super()._request()
        kind = self.random.choice((RequestKind.RATE_LIMIT, RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STOP))
        limit = self.random.choice((None, 0, 5)) if kind is RequestKind.RATE_LIMIT else None
        return Request(len(self.requests) + 1, kind, rows_per_second=limit)


@dataclass
class MigratedSimulation(WalkSimulation):
    """A walk that is killed somewhere and goes on under the parallel executor."""

    natural_order: bool = True
    make_driver: type[Driver] = WalkDriver
    skip_settling: bool = False

    def _finish(self) -> None:
        try:
            self._migrate()
        except NothingToMigrateError:
            return
        self._live_through(self.random.randrange(40, 200))
        super()._finish()

    def _live_through(self, steps: int) -> None:
        super()._live_through(steps if self.store is not self.walk_store else self.random.randrange(5, 120))

    def _migrate(self) -> None:
        state, walk = self.store.state, self._settled_walk()
        self.vnode_count = self.random.choice((1, 2, 4, 7))
        cursor = None if walk.last_key is None else BOUNDS[self._key(walk)]
        found = planned(self.source, self.vnode_count, self.random.choice((1, 3, 6)))
        if not found.ranges and cursor is None:
            raise NothingToMigrateError
        plan = migrated_plan(found, cursor)
        assignment = split_evenly(self.vnode_count, self.random.randrange(1, self.vnode_count + 1))
        answered = [answer.request for answer in state.acknowledged]
        after = migrated_state(state, walk, cursor, plan, assignment, answered)
        old = self.store
        self.store = ModelStore(plans={0: plan.at(0), 1: plan}, buffer=old.buffer, buffered=old.buffered)
        self.store.commit(after)
        self.make_driver = Driver
        self._say(f"MIGRATED at {walk}: {[v.reads for v in after.vnodes]} {[v.replaces for v in after.vnodes]}")
        self._recover()

    def _settled_walk(self) -> Walk:
        state, walk = self.walk_store.state, self.walk_store.walks[-1]
        landed = None if state.intent is None else self.sink.landed.get((f"{self.job}/append", state.intent.epoch))
        if not landed or state.intent is None or self.skip_settling:
            return walk
        return advanced(walk, state.intent.epoch, landed)

    def _key(self, walk: Walk) -> int:
        assert walk.last_key is not None
        (key,) = walk.last_key
        assert isinstance(key, int)
        return key


class NothingToMigrateError(Exception):
    """The table is empty and nothing was ever read."""


__all__ = ["MigratedSimulation", "WalkDriver", "WalkSimulation"]
