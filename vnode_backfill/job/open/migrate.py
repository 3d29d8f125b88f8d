"""Lets a job that the single executor began continue under the parallel one.

The walk's cursor becomes a plan whose ranges up to the cursor are read. The v2 state is written first and is what
counts from then on. A v1 state that a crash left beside it is removed by the next call.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.upstream_table import UpstreamTable
from progress.state.migration import migrated_plan, migrated_state
from progress.state.walk_state import Walk
from progress.store.rows.walk_rows import StoredWalk
from progress.store.store import StateStore
from progress.store.walk_store import SingleStore
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import owner, parallel_store, single_store
from vnode_backfill.job.open.opened import held_lease
from vnode_backfill.job.open.resume import check_definition, check_same_server
from vnode_backfill.job.open.sink import change_buffer, open_sink
from vnode_backfill.job.open.source import look_at_source, open_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.snapshot.key_walk import landed_stretch
from vnode_backfill.snapshot.plan_questions import plan_table
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.errors import ConfigError, LawBrokenError, StateError
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.key_range import Bound


def migrate_single(config: Config) -> bool:
    """Let a job that the single executor began go on under the parallel one; whether there was something to do.

    Done before the parallel executor opens its job. The v2 state is written first and is what counts from then on; a v1
    state that a crash left beside it is taken away by the next call.
    """
    old, new = single_store(config), parallel_store(config)
    if not old.exists():
        return False
    old.acquire_lease(owner(), config.state.lease)
    try:
        if not new.exists():
            _migrate(config, old, new)
        old.retire()
    finally:
        old.release()
    return True


def _migrate(config: Config, old: SingleStore, new: StateStore) -> None:
    stored = old.stored()
    if stored is None:
        raise StateError(f"job {config.job} vanished from {config.state.path} while it was migrated")
    refuse(look_at_source(config))
    table = open_table(config)
    check_same_server(config, table, stored.record)
    check_definition(table, stored.record)
    walk = _settled(config, old, stored, table)
    cursor = _place(table, walk)
    plan = migrated_plan(plan_table(table, config)[1], cursor)
    assignment = split_evenly(config.vnodes, config.workers)
    state = migrated_state(stored.state, walk, cursor, plan, assignment, sorted(stored.books.requests))
    _acquire_above(new, old, config)
    try:
        record = replace(stored.record, executor="parallel", vnode_count=config.vnodes)
        record = record.fit_for(vectors=stored.record.has_vectors)
        new.create(record, plan, state, held_lease(new), asked_of=stored.books.asked_of)
    finally:
        new.release()


def _settled(config: Config, old: SingleStore, stored: StoredWalk, table: UpstreamTable) -> Walk:
    """The cursor with the stretch of an epoch that was begun and not committed, if it has reached the sink.

    Preparing sink and buffer shuts the old driver out of them, so nothing can land any more.
    """
    record, state, walk = stored.record, stored.state, stored.walk
    if not configured_sink(config).keeps_cursor:
        raise ConfigError(
            "sink.delta.path is missing: the walk's cursor is found again in the files of its Delta table"
        )
    sink = open_sink(config, record, old, table)
    sink.prepare()
    change_buffer(config, record, old).prepare()
    if state.intent is None:
        return walk
    appended, _ = sink.landed_reads(state.intent.epoch)
    if not appended:
        return walk
    if sink.staging is None:
        raise LawBrokenError("a walk was appended to a sink whose files cannot be read")
    landed = landed_stretch(appended, sink.staging, table)
    return walk if landed is None else walk.advanced(state.intent.epoch, landed.last_key, landed.receipt.rows)


def _place(table: UpstreamTable, walk: Walk) -> Bound | None:
    if walk.last_key is None:
        return None
    with table.session() as session:
        return session.order_bounds([walk.last_key])[0]


def _acquire_above(new: StateStore, old: SingleStore, config: Config) -> None:
    """Drivers are counted per state; the target remembers the highest count and refuses lower ones."""
    lowest = held_lease(old).generation
    while new.acquire_lease(owner(), config.state.lease).generation <= lowest:
        new.release()
