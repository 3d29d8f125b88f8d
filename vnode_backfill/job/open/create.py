"""Creates a job: everything is checked before anything is written.

The order is: preflight; the first offset (see `begin`) and then the plan; the empty sink and buffer; and last the
state, whose existence is what makes the job exist. A crash before that leaves nothing that a second try would trip
over. A plan that takes long is noted as it grows (`planning`), and a second try continues it, from its first offset.

A release that does not know deletion vectors must not touch a table that has them. The job's record says so by its
version, and comes after the table. Until it is there, such a release finds no job: its `compact` and its requests end.
Its `run` creates one and refuses the table, because it names a feature that is not known there.

A job that only follows the log has a plan without ranges: every key is outside it, comes by the log alone, and every
vnode is live at its first merge. Nothing is read from the table, so what is visible never matters to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import FORGOTTEN, BackfillState, Controls, Phase, new_state
from progress.state.schema_state import DefinitionVersion, SchemaState
from progress.state.walk_state import WHOLE_KEY, walk_plan
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from progress.store.walk_store import SingleStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.start_point import Latest
from vnode_backfill.job.open.begin import Beginning, begin
from vnode_backfill.job.open.handoff import record_start
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.opened import Opened, acquire, held_lease, released_if_refused
from vnode_backfill.job.open.past import followable
from vnode_backfill.job.open.planning import FirstPlans, Pace
from vnode_backfill.job.open.sink import prepare_buffer, prepare_new
from vnode_backfill.job.open.source import look_at_source, open_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.snapshot.plan_questions import first_plan
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import CreatedTable, TableShape

BeforeWriting: TypeAlias = Callable[[], object]


def create_job(
    config: Config,
    store: StateStore,
    *,
    before_writing: BeforeWriting,
    say: Callable[[str], None],
    pace: Pace | None = None,
) -> Opened:
    """A new job of the parallel executor, with its lease taken.

    `before_writing` is called when the job could be created and nothing of it is written yet, not even a note of its
    plan. What it raises refuses the job. It may be called again.
    """
    plans = FirstPlans(config, before_writing=before_writing, say=say, pace=pace)
    with plans.left_if_unfinished():
        refuse(look_at_source(config))
        planned = planned_from(config, examined_table(config), plans=plans)
        planned = replace(planned, beginning=followable(config, planned.table, planned.beginning))
        before_writing()
        acquire(config, store)
        return released_if_refused(store, lambda: _create(config, store, planned))


def create_walk(config: Config, store: SingleStore, *, before_writing: BeforeWriting) -> Opened:
    """A new job of the single executor, with its lease taken; see `create_job`."""
    refuse(look_at_source(config))
    table = _unpartitioned(open_table(config))
    table.check_walkable()
    beginning = followable(config, table, begin(config, table))
    before_writing()
    store.acquire_lease(owner(), config.state.lease)
    return released_if_refused(store, lambda: _create_walk(config, store, table, beginning))


def new_record(config: Config, table: UpstreamTable) -> JobRecord:
    return JobRecord.new(
        config.job, table.definition, vnode_count=config.vnodes, server=table.server,
        sink=configured_sink(config).target, now=datetime.now(UTC),
    ).with_parents(table.parents)  # fmt: skip


def no_ranges(config: Config, table: UpstreamTable) -> SplitPlan:
    return SplitPlan(table.definition.key_parts, config.vnodes, ())


@dataclass(frozen=True, slots=True)
class Planned:
    """A job that could be created: nothing has been written yet."""

    table: UpstreamTable
    beginning: Beginning
    plan: SplitPlan


def examined_table(config: Config, opened: UpstreamTable | None = None) -> UpstreamTable:
    """The table as it is now, which the target can take, and with its parents; `opened` if it was just opened."""
    table = (opened or open_table(config)).with_parents()
    refuse(configured_sink(config).findings(table.definition), "the target cannot take the table")
    return table


def planned_from(config: Config, table: UpstreamTable, first: CdcOffset | None = None, *, plans: FirstPlans) -> Planned:
    """The beginning, and then the plan. `first` is the offset of tables that begin together.

    A plan that an earlier driver has begun is continued, from its own first offset. Whoever calls this looks at what
    the log holds behind a beginning in the past (`past`).
    """
    begun = plans.begun(config, table)
    beginning = begin(config, table, first if begun is None else begun.first)
    if not beginning.start.snapshot:
        return Planned(_as_begun(table, beginning), beginning, no_ranges(config, table))
    watch = plans.watch(config, table, beginning.first, begun)
    _, plan = first_plan(table, config, begun=begun, settled=watch.settled)
    watch.end()
    return Planned(_as_begun(table, beginning), beginning, plan)


def planned_from_creation(config: Config, table: UpstreamTable, created: CreatedTable, *, plans: FirstPlans) -> Planned:
    """The beginning right after the table's CREATE, where the job begins at what is visible: nothing is read."""
    table = table.with_definition(created.definition)
    beginning = begin(config, table, CdcOffset.from_json(created.offset))
    if not isinstance(beginning.start.from_, Latest) or table.unordered_key() or table.parents:
        # Its parents are those of now. Right after the CREATE it may have had others.
        return planned_from(config, table, plans=plans)
    beginning = replace(beginning, start=replace(beginning.start, snapshot=False))
    return Planned(table, beginning, no_ranges(config, table))


def _as_begun(table: UpstreamTable, beginning: Beginning) -> UpstreamTable:
    """The table without its partitions of now where the job begins in the past: they may have been others there."""
    return table if isinstance(beginning.start.from_, Latest) else _unpartitioned(table)


def _unpartitioned(table: UpstreamTable) -> UpstreamTable:
    """Without what is known of partitions: a walk follows none of their statements."""
    return table.with_definition(replace(table.definition, partitioning=None))


def _create(config: Config, store: StateStore, planned: Planned) -> Opened:
    opened = written(config, store, planned)
    store.commit(opened.state)
    return opened


def written(config: Config, store: StateStore, planned: Planned) -> Opened:
    """Everything of a new job but its first commit, which brings it into being; by the driver that holds the lease."""
    table, plan, beginning = planned.table, planned.plan, planned.beginning
    # Before anything of it is touched: somebody else may have created the job while this one was planned.
    store.check_new()
    record = prepare_new(config, new_record(config, table), store, table, beginning.handoff)
    prepare_buffer(config, record, store)
    record_start(config, record.id, beginning.first, beginning.handoff)
    state = _taken_over(_first_state(config, plan, beginning), record, beginning)
    store.prepare_create(record, plan, state, held_lease(store))
    return Opened(record, state, plan, store, table, created=True, start=beginning.start)


def _taken_over(state: BackfillState, record: JobRecord, beginning: Beginning) -> BackfillState:
    """The state of a job that takes over a target with columns that the source has dropped: it writes around them."""
    handoff = beginning.handoff
    if handoff is None or not handoff.kept:
        return state
    version = DefinitionVersion(
        number=1, before=beginning.first, after=beginning.first, since=Epoch(1),
        statement=f"the target of job {handoff.job}", shape=TableShape(record.definition, handoff.kept),
    )  # fmt: skip
    return replace(state, schema=SchemaState((version,), in_sink=version.number))


def _first_state(config: Config, plan: SplitPlan, beginning: Beginning) -> BackfillState:
    state = new_state(VisibleAt(beginning.first), plan, split_evenly(config.vnodes, config.workers))
    if not beginning.start.snapshot:
        # The first offset may not be visible yet; visibility begins below every later sample, and nothing is read by
        # it.
        state = replace(state, visible=((Epoch(0), VisibleAt(beginning.oldest)),))
    if config.limits.rows_per_second is not None:
        state = replace(state, controls=Controls(rows_per_second=config.limits.rows_per_second))
    return state


def _create_walk(config: Config, store: SingleStore, table: UpstreamTable, beginning: Beginning) -> Opened:
    store.check_new()
    record = replace(new_record(config, table), executor="single", vnode_count=1)
    record = prepare_new(config, record, store, table, beginning.handoff)
    prepare_buffer(config, record, store)
    record_start(config, record.id, beginning.first, beginning.handoff)
    plan = walk_plan(table.definition.key, table.estimated_size().rows)
    state = _taken_over(_first_walk_state(config, plan, beginning), record, beginning)
    store.create(record, plan, state, held_lease(store))
    return Opened(record, state, plan, store, table, created=True, start=beginning.start)


def _first_walk_state(config: Config, plan: SplitPlan, beginning: Beginning) -> BackfillState:
    state = new_state(VisibleAt(beginning.first), plan, split_evenly(1, 1))
    if not beginning.start.snapshot:
        # Nothing is walked: the range counts as read, and every row comes by the log.
        (vnode,) = state.vnodes
        ended = replace(vnode, phase=Phase.CATCH_UP, reads=((WHOLE_KEY, FORGOTTEN),), complete=Epoch(0))
        state = replace(state, vnodes=(ended,), visible=((Epoch(0), VisibleAt(beginning.oldest)),))
    if config.limits.rows_per_second is not None:
        state = replace(state, controls=Controls(rows_per_second=config.limits.rows_per_second))
    return state
