"""Compares source and target, whether the job runs or not.

On one machine no JVM is started. Under spark-submit, with a master that is a cluster and in a session that the caller
gave, tasks run in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from vnode_backfill.commands.stored_job import stored_job
from vnode_backfill.commands.tables.asked import check_one_table
from vnode_backfill.commands.tables.verify import CompareTable, OpenTasks, compare_tables, verify_tables
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import Comparing, Verdict
from vnode_backfill.spark.slots import needs_session, slots_of
from vnode_backfill.words.errors import ConfigError, StateError

if TYPE_CHECKING:
    from consume_upstream.upstream_table import UpstreamTable
    from progress.store.store import Loaded
    from vnode_backfill.job.sink.description import Verdict
    from vnode_backfill.verify.pace import RowAccount, SourcePace
    from vnode_backfill.verify.table import JobProgress
    from vnode_backfill.verify.tasks import TaskRunner


def verify(
    config: Config, *, master: str | None, as_json: bool, verbose: bool = False, only: Sequence[str] = ()
) -> int:
    """Compare source and target; exit code 1 if they differ. `only` are the tables of a job of many that are
    compared."""
    if config.many:
        _check_may_read(config)
        tasks = partial(_tasks, config, master, quiet=not verbose)
        return verify_tables(config, only, tasks=tasks, compare=_sharing(config), as_json=as_json)
    verdict = compare(config, master=master, verbose=verbose, only=only)
    print(verdict.json if as_json else verdict.text)
    return 0 if verdict.equal else 1


def compare(config: Config, *, master: str | None, verbose: bool = False, only: Sequence[str] = ()) -> Verdict:
    """Compare source and target of the job's table, or of all its tables, or of those that `only` means."""
    _check_may_read(config)
    tasks = partial(_tasks, config, master, quiet=not verbose)
    if config.many:
        return compare_tables(config, only, tasks=tasks, compare=_sharing(config))
    check_one_table(config, only)
    return _verdict(config, tasks)


def _check_may_read(config: Config) -> None:
    if config.limits.rows_per_second == 0:
        raise ConfigError(
            "limits.rows_per_second is 0: verify may read nothing from the source",
            hint="Set how many rows a second it may read, or leave the key out.",
        )


def _sharing(config: Config) -> CompareTable:
    """How each of many tables is compared: together they read as many rows a second as the job may."""
    from vnode_backfill.verify.pace import RowAccount

    rate = config.limits.rows_per_second
    return partial(_verdict, shared=RowAccount(rate) if rate else None)


def _verdict(config: Config, tasks: OpenTasks, shared: RowAccount | None = None) -> Verdict:
    """Compare one table."""
    _, loaded = stored_job(config)
    return configured_sink(config).verify(
        Comparing(
            loaded,
            tasks=tasks,
            source=partial(_source, config, loaded, shared),
            progress=partial(_progress, config),
        )
    )


@contextmanager
def _tasks(config: Config, master: str | None, *, quiet: bool) -> Iterator[TaskRunner]:
    """Where tasks run: in Spark only if that has cores that this process has not, or is there already."""
    if not needs_session(config, master):
        from vnode_backfill.verify.tasks_here import TasksHere

        with TasksHere(slots_of(master) if master else None) as here:
            yield here
        return
    from vnode_backfill.spark.session import session_starting
    from vnode_backfill.verify.tasks_in_spark import TasksInSpark

    daemon = configured_sink(config).daemon_module
    with session_starting(config, master, quiet=quiet, daemon_module=daemon) as session:
        yield TasksInSpark(session)


@contextmanager
def _source(config: Config, loaded: Loaded, shared: RowAccount | None) -> Iterator[tuple[UpstreamTable, SourcePace]]:
    """The source, and how fast it may be read: as a job is allowed to copy."""
    from consume_upstream.throttle import SourceThrottle
    from vnode_backfill.job.open.source import table_of
    from vnode_backfill.verify.pace import SourcePace

    table, limits = table_of(config, loaded.state), config.limits
    _check_followed(config, table, loaded)
    throttle, source = SourceThrottle(limits.throttle), table.questions()
    busy = (lambda: found.sentence if (found := throttle.reason(source)) else "") if throttle.has_checks else None
    try:
        yield table, SourcePace(limits.rows_per_second, busy, limits.throttle.every.total_seconds(), shared=shared)
    finally:
        source.close()


def _check_followed(config: Config, table: UpstreamTable, loaded: Loaded) -> None:
    """Rows are compared by one definition: that of the source, which the target must have followed to."""
    from vnode_backfill.job.open.known_table import shape_in_sink
    from vnode_backfill.words.columns import relabelled, what_changed

    held = shape_in_sink(loaded).definition
    if relabelled(held, table.definition) is None:
        raise StateError(
            f"job {config.job} has not followed every statement on {table.definition.table} yet",
            detail=what_changed(held, table.definition),
            hint="Let the job run until it has: `vnode-backfill status` shows what is pending.",
        )


def _progress(config: Config) -> JobProgress:
    from vnode_backfill.verify.table import JobProgress

    found = state_store(config).status_snapshot()
    if found is None:
        raise StateError(f"job {config.job} vanished from {config.state.path}")
    return JobProgress(found.state.lowest_applied, running=found.lease is not None)
