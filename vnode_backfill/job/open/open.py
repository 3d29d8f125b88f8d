"""Opens the configured job, by its executor: creates it, or continues it, or lets it continue under the other executor.

Every run begins here. `open_configured` returns a job with its lease taken, `job_of` what runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from progress.store.walk_store import SingleStore
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.job.open.create import create_job, create_walk
from vnode_backfill.job.open.locations import owner, single_store, state_store
from vnode_backfill.job.open.migrate import migrate_single
from vnode_backfill.job.open.opened import Opened, acquire, released_if_refused
from vnode_backfill.job.open.planning import forget_finished
from vnode_backfill.job.open.resume import check_executor, take_up
from vnode_backfill.job.open.source import look_at_clock
from vnode_backfill.job.run.key_walk_job import WalkReading, WalkWatch
from vnode_backfill.job.run.loop import BackfillJob, Watcher
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Services


def open_configured(
    config: Config,
    *,
    asked_vnodes: int | None,
    say: Callable[[str], None],
    before_writing: Callable[[], object] | None = None,
) -> Opened:
    """The job of this configuration, by its executor.

    One that the single executor began continues under the parallel one.
    """
    if config.executor is Executor.SINGLE:
        return open_single(config, before_writing=before_writing)
    if migrate_single(config):
        say(f"job {config.job} was begun by the single executor and continues under the parallel one")
    return open_job(config, asked_vnodes=asked_vnodes, before_writing=before_writing, say=say)


def open_job(
    config: Config,
    *,
    asked_vnodes: int | None,
    before_writing: Callable[[], object] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Opened:
    """The job of this configuration under the parallel executor, created if it does not exist, with its lease taken."""
    store, clock = state_store(config), look_at_clock(config)
    if store.exists():
        acquire(config, store)
        forget_finished(config, (f"{config.mysql.database}.{config.mysql.table}",))
        opened = released_if_refused(store, lambda: take_up(config, store, asked_vnodes))
    else:
        opened = create_job(config, store, before_writing=before_writing or _nothing, say=say)
    return replace(opened, start=replace(opened.start, warnings=(*opened.start.warnings, *clock)))


def open_single(config: Config, *, before_writing: Callable[[], object] | None = None) -> Opened:
    """The job of this configuration under the single executor, created if it does not exist, with its lease taken."""
    check_executor(config, state_store(config))
    store = single_store(config)
    if store.exists():
        store.acquire_lease(owner(), config.state.lease)
        return released_if_refused(store, lambda: take_up(config, store, None))
    return create_walk(config, store, before_writing=before_writing or _nothing)


def _nothing() -> None:
    """What is done before the first write where the caller asks for nothing."""


def job_of(services: Services, opened: Opened, watch: Watcher) -> BackfillJob:
    """One driver's run of an opened job, by the executor whose state it has."""
    store, bounded = opened.store, opened.start.bounded
    # Before anything uses it: a change of the target that was left pending is ordered first, and begins with this
    # shape.
    services.sink.use(opened.state.schema.shape_in_sink(opened.table.definition))
    if not isinstance(store, SingleStore):
        return BackfillJob(services, opened.state, opened.plan, watch, bounded=bounded)
    walking = partial(Performer, reading=partial(WalkReading, table=opened.table, store=store))
    watch = WalkWatch(watch, store)
    return BackfillJob(services, opened.state, opened.plan, watch, performer=walking, bounded=bounded)
