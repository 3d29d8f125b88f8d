"""How a job of `executor: single` is opened and run, and how one goes on under `executor: parallel`.

The job is driven by the coordinator of every job. Its performer differs in two orders: `ReadRanges` walks a stretch behind the cursor
(see `single`), and `CommitReceipts` appends that stretch, whether the walk has ended or not, and hands its cursor to the store. The
receipt of the one range is reported only when the walk has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.walk import check_walkable
from consume_upstream.offset import VisibleAt
from progress.barriers import LocalBarrierManager
from progress.migration import migrated_plan, migrated_state
from progress.single_rows import VERSION, StoredWalk
from progress.single_state import WHOLE_KEY, Walk, rows_left, shown, walk_plan
from progress.single_store import SingleStore
from progress.state import FORGOTTEN, BackfillState, Controls, Phase, new_state
from progress.store import StateStore
from progress.task_progress import ReadBefore
from vnode_backfill import opening
from vnode_backfill.actions import Performer, Services
from vnode_backfill.bitmap import split_evenly
from vnode_backfill.config import Config, Executor
from vnode_backfill.config_values import reveal
from vnode_backfill.coordinator import Coordinator
from vnode_backfill.epoch import Actor, Epoch
from vnode_backfill.errors import LawBrokenError, StateError
from vnode_backfill.handoff import record_start
from vnode_backfill.job import BackfillJob, Watcher
from vnode_backfill.keys import Bound, SplitPlan
from vnode_backfill.places import owner, state_retention, state_store
from vnode_backfill.planning import plan_table
from vnode_backfill.preflight import refuse
from vnode_backfill.protocol import CommitReceipts, Event, RangeReceipt, RangesRead, ReadRanges, ReceiptsCommitted
from vnode_backfill.single import CdcBackfillExecutor, Stretch, WalkedStretch, landed_stretch
from vnode_backfill.sinks import ReadReceipt
from vnode_backfill.targets import delta_sink, held_lease, prepare_new

__all__ = ["job_of", "migrate_single", "open_configured", "open_single"]


def _single_store(config: Config) -> SingleStore:
    return SingleStore(config.state.path, config.job, reveal(config.storage.options), retention=state_retention(config))


def _parallel_store(config: Config) -> StateStore:
    return StateStore(config.state.path, config.job, reveal(config.storage.options), retention=state_retention(config))


def job_of(services: Services, opened: opening.Opened, watch: Watcher) -> BackfillJob:
    """One driver's run of an opened job, by the executor whose state it has."""
    store = opened.store
    if not isinstance(store, SingleStore):
        return BackfillJob(services, opened.state, opened.plan, watch)
    walking = partial(WalkPerformer, table=opened.table, store=store)
    return BackfillJob(services, opened.state, opened.plan, WalkWatch(watch, store), performer=walking)


def open_configured(
    config: Config,
    *,
    task_slots: int | None,
    asked_vnodes: int | None,
    say: Callable[[str], None],
    before_writing: Callable[[], object] | None = None,
) -> opening.Opened:
    """The job of this configuration, by its executor; one that the single executor began goes on under the parallel one."""
    if config.executor is Executor.SINGLE:
        return open_single(config, task_slots=task_slots, before_writing=before_writing)
    if migrate_single(config, task_slots=task_slots):
        say(f"job {config.job} was begun by the single executor and goes on under the parallel one")
    return opening.open_job(config, task_slots=task_slots, asked_vnodes=asked_vnodes, before_writing=before_writing)


def open_single(
    config: Config, *, task_slots: int | None, before_writing: Callable[[], object] | None = None
) -> opening.Opened:
    """The job of this configuration, created if it does not exist, with its lease taken; see `opening.open_job`."""
    opening.check_executor(config, state_store(config))
    store = _single_store(config)
    if store.exists():
        store.acquire_lease(owner(), config.state.lease)
        return opening.released_if_refused(store, lambda: opening.take_up(config, store, None))
    refuse(opening.look_at_source(config, task_slots=task_slots))
    table = opening.open_table(config)
    check_walkable(table.definition)
    beginning = opening.begin(config, table)
    if before_writing is not None:
        before_writing()
    store.acquire_lease(owner(), config.state.lease)
    return opening.released_if_refused(store, lambda: _create(config, store, table, beginning))


def _create(config: Config, store: SingleStore, table: MySqlTable, beginning: opening.Beginning) -> opening.Opened:
    record = replace(opening.new_record(config, table), executor="single", vnode_count=1, format_version=VERSION)
    prepare_new(config, record, store, table, beginning.handoff)
    opening.change_buffer(config, record, store).prepare()
    record_start(config, record.id, beginning.first, beginning.handoff)
    plan = walk_plan(table.definition.key, table.table_profile().estimated_rows)
    state = _first_state(config, plan, beginning)
    store.create(record, plan, state, held_lease(store))
    return opening.Opened(record, state, plan, store, table, created=True, start=beginning.start)


def _first_state(config: Config, plan: SplitPlan, beginning: opening.Beginning) -> BackfillState:
    state = new_state(VisibleAt(beginning.first), plan, split_evenly(1, 1))
    if not beginning.start.snapshot:
        # Nothing is walked: the range counts as read, and every row comes by the log.
        (vnode,) = state.vnodes
        ended = replace(vnode, phase=Phase.CATCH_UP, reads=((WHOLE_KEY, FORGOTTEN),), complete=Epoch(0))
        state = replace(state, vnodes=(ended,), visible=((Epoch(0), VisibleAt(beginning.oldest)),))
    if config.limits.rows_per_second is not None:
        state = replace(state, controls=Controls(rows_per_second=config.limits.rows_per_second))
    return state


class WalkPerformer(Performer):
    """Carries orders out as every performer does; reading is walking."""

    def __init__(
        self,
        services: Services,
        barriers: LocalBarrierManager[Event],
        state: BackfillState,
        plan: SplitPlan,
        *,
        table: MySqlTable,
        store: SingleStore,
    ) -> None:
        super().__init__(services, barriers, state, plan)
        self._table, self._store = table, store
        self._walked: WalkedStretch | None = None

    def _read(self, action: ReadRanges) -> None:
        barrier = action.barrier
        began = time.monotonic()
        with self._group(Actor.SNAPSHOT, barrier):
            self._walked = self._with_spark(lambda: self._walk(action), lambda: None)
        rows = self._walked.receipt.rows if self._walked else 0
        self.pace.measured(rows, time.monotonic() - began, 1, everything=False)
        self.pace.read_last = bool(rows)
        event = RangesRead(barrier.epoch, self._ended(self._walked), barrier.attempt)
        self.barriers.collect(Actor.SNAPSHOT, barrier, event)

    def _walk(self, action: ReadRanges) -> WalkedStretch | None:
        """What landed before a crash is not walked again; it counts also where nothing more is to be walked now."""
        if self.state.intent is None or not self.state.intent.ordinals:
            return None
        barrier = action.barrier
        appended, _ = self.services.sink.landed_reads(barrier.epoch)
        landed = self._landed(appended or ())
        limit = action.rows_per_second
        self._progress.reading(ReadBefore(self.state.ranges, len(self.plan.ranges), self.state.rows))
        if landed or not any(action.lanes):
            return landed
        return CdcBackfillExecutor(self.services.spark.sparkContext).walk(
            Stretch(
                table=self._table, writer=self.services.sink.writer(), after=self._store.walk.last_key,
                epoch=barrier.epoch, attempt=barrier.attempt, seconds=self._epoch_seconds,
                rows_per_second=float(limit) if limit else None,
                progress=self._progress.of_task(Actor.SNAPSHOT, barrier, 0),
            )
        )  # fmt: skip

    def _landed(self, receipts: tuple[ReadReceipt, ...]) -> WalkedStretch | None:
        if not receipts:
            return None
        if self.services.sink.staging is None:
            raise LawBrokenError("a walk was appended to a sink whose files cannot be read")
        return landed_stretch(receipts, self.services.sink.staging, self._table.definition)

    def _commit_receipts(self, action: CommitReceipts) -> None:
        barrier, walked = action.barrier, self._walked
        if walked is not None:
            landed = self.services.sink.commit_reads(barrier.epoch, [walked.receipt], [], self.plan)
            if landed != (walked.receipt,):
                walked = self._landed(landed) or walked
            cursor = self._store.walk.advanced(barrier.epoch, walked.last_key, walked.receipt.rows)
            self._store.walked(cursor)
        self.barriers.tell(ReceiptsCommitted(barrier.epoch, self._ended(walked), barrier.attempt))

    def _ended(self, walked: WalkedStretch | None) -> tuple[RangeReceipt, ...]:
        """The receipt of the whole range, once there is nothing behind the cursor."""
        if walked is None or not walked.ended:
            return ()
        return (RangeReceipt(WHOLE_KEY, self._store.walk.rows + walked.receipt.rows),)


class WalkWatch:
    """Shows a walk to watchers that know ranges: rows behind the cursor count as read."""

    def __init__(self, inner: Watcher, store: SingleStore) -> None:
        self._inner, self._store = inner, store

    def look(self, coordinator: Coordinator, performer: Performer) -> None:
        self._inner.look(self._shown(coordinator), performer)

    def close(self, coordinator: Coordinator, performer: Performer) -> None:
        self._inner.close(self._shown(coordinator), performer)

    def _shown(self, coordinator: Coordinator) -> Coordinator:
        state, walk, plan = coordinator.saved, self._store.walk, coordinator.plan
        left = rows_left(state, walk).rows[WHOLE_KEY]
        return replace(coordinator, saved=shown(state, walk), plan=walk_plan([part.name for part in plan.parts], left))


def migrate_single(config: Config, *, task_slots: int | None) -> bool:
    """Let a job that the single executor began go on under the parallel one; whether there was something to do.

    Done before the parallel executor opens its job. The v2 state is written first and is what counts from then on; a v1 state that
    a crash left beside it is taken away by the next call.
    """
    old, new = _single_store(config), _parallel_store(config)
    if not old.exists():
        return False
    old.acquire_lease(owner(), config.state.lease)
    try:
        if not new.exists():
            _migrate(config, old, new, task_slots)
        old.retire()
    finally:
        old.release()
    return True


def _migrate(config: Config, old: SingleStore, new: StateStore, task_slots: int | None) -> None:
    stored = old.stored()
    if stored is None:
        raise StateError(f"job {config.job} vanished from {config.state.path} while it was migrated")
    refuse(opening.look_at_source(config, task_slots=task_slots))
    table = opening.open_table(config)
    opening.check_same_server(config, table, stored.record)
    opening.check_definition(table, stored.record)
    walk = _settled(config, old, stored)
    cursor = _place(table, walk)
    plan = migrated_plan(plan_table(table, config)[1], cursor)
    assignment = split_evenly(config.vnodes, config.workers)
    state = migrated_state(stored.state, walk, cursor, plan, assignment, sorted(stored.books.requests))
    _acquire_above(new, old, config)
    try:
        record = replace(stored.record, executor="parallel", vnode_count=config.vnodes, format_version=2)
        new.create(record, plan, state, held_lease(new))
    finally:
        new.release()


def _settled(config: Config, old: SingleStore, stored: StoredWalk) -> Walk:
    """The cursor with the stretch of an epoch that was begun and not committed, if it has reached the sink.

    Preparing sink and buffer shuts the old driver out of them, so nothing can land any more.
    """
    record, state, walk = stored.record, stored.state, stored.walk
    sink = delta_sink(config, record, old)
    sink.prepare()
    opening.change_buffer(config, record, old).prepare()
    if state.intent is None:
        return walk
    appended, _ = sink.landed_reads(state.intent.epoch)
    landed = landed_stretch(appended or (), sink.staging, record.definition)
    return walk if landed is None else walk.advanced(state.intent.epoch, landed.last_key, landed.receipt.rows)


def _place(table: MySqlTable, walk: Walk) -> Bound | None:
    if walk.last_key is None:
        return None
    with table.session() as session:
        return session.order_bounds([walk.last_key])[0]


def _acquire_above(new: StateStore, old: SingleStore, config: Config) -> None:
    """Drivers are counted per state; the target remembers the highest count and refuses lower ones."""
    lowest = held_lease(old).generation
    while new.acquire_lease(owner(), config.state.lease).generation <= lowest:
        new.release()
