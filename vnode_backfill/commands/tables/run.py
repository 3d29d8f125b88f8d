"""Runs a job of many tables: opens them while the JVM starts, runs all of them to their end, and reports how they
ended."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from vnode_backfill.commands.say import for_threads, say
from vnode_backfill.commands.stored_job import sized_session
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.words.errors import BackfillError, ConfigError, PlanRefusedError
from vnode_backfill.words.schema_change import Ended, NewCopy

if TYPE_CHECKING:
    from progress.faces.metrics import CdcBackfillMetrics
    from progress.store.tables_store import TablesStore
    from vnode_backfill.job.run.services import Services, WatchedJvm
    from vnode_backfill.job.run.watch import Faces
    from vnode_backfill.job.tables.open import OpenedTables, TablesOpener
    from vnode_backfill.job.tables.running_table import OpenedTable, RunningTable
    from vnode_backfill.job.tables.watch import TablesWatch
    from vnode_backfill.spark.session import StartingSession
    from vnode_backfill.spark.tasks import HasContext

_NAMED = 8


def run_tables(
    config: Config,
    *,
    until: str,
    master: str | None,
    face: str,
    asked_vnodes: int | None = None,
    asked_workers: int | None = None,
    verbose: bool = False,
) -> int:
    """Create the job or take it up, and run it. Exit code 1 if a table has failed or is set aside, with the reasons."""
    lost = run_to_end(
        config, until=until, master=master, face=face, asked_vnodes=asked_vnodes, asked_workers=asked_workers,
        verbose=verbose,
    )  # fmt: skip
    return 1 if lost else 0


def run_to_end(
    config: Config,
    *,
    until: str,
    master: str | None,
    face: str,
    asked_vnodes: int | None = None,
    asked_workers: int | None = None,
    verbose: bool = False,
) -> dict[str, BackfillError]:
    """The same; the tables that have failed or are set aside, with the reasons."""
    from vnode_backfill.job.open.writable import check_state_writable
    from vnode_backfill.job.tables.parts import tables_store
    from vnode_backfill.spark.session import session_starting

    _check_mode(config)
    check_state_writable(config)
    store = tables_store(config)
    _check_vnodes(config, store, asked_vnodes)
    daemon = configured_sink(config).daemon_module
    sized, are_live = sized_session(config)
    with session_starting(sized, master, quiet=not verbose, daemon_module=daemon, at_once=not are_live) as session:
        from vnode_backfill.job.open.source import load_kernels
        from vnode_backfill.job.run.watch import Faces
        from vnode_backfill.job.tables.open import TablesOpener

        load_kernels()
        with closing(Faces.open(config)) as faces:
            opener = TablesOpener(config, store, session.required, for_threads(say))
            opened = opener.open()
            say(*opening_lines(opened))
            if not opened.tables:
                store.release()
                if opened.ended and not opened.aside:
                    return {}
                raise opener.refuse(_nothing_to_copy(config, opened))
            _ask_for_workers(store, opened, asked_workers)
            try:
                return _run_opened(opener, session, opened, until, _watch(opener, face, faces))
            finally:
                store.release()


def opening_lines(opened: OpenedTables) -> list[str]:
    """What is to be said when the tables were opened."""
    lines = [f"{len(opened.tables)} tables, {opened.created} of them new"]
    lines += [f"{name} is no longer configured: its state is removed, its target stays" for name in opened.removed]
    lines += [
        f"{name} was removed and is not copied: `vnode-backfill tables add` takes it up" for name in opened.taken_out
    ]
    lines += [f"{name} is new and not copied, because mysql.new_tables is report" for name in opened.reported]
    lines += [_ended_line(name, ended) for name, ended in sorted(opened.ended.items())]
    lines += [f"{table.name}: {line}" for table in opened.tables for line in table.opened.start.warnings]
    return lines + [f"{name} is set aside: {error}" for name, error in sorted(opened.aside.items())]


def lost_tables(tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> dict[str, BackfillError]:
    """The tables that are not copied at the end of a run, and why."""
    failures = {table.name: table.run.failure for table in tables if table.run.failure is not None}
    failed = {name: BackfillError(each.message, detail=each.detail, hint=each.hint) for name, each in failures.items()}
    return {**failed, **aside}


def error_of(job: str, lost: Mapping[str, BackfillError]) -> BackfillError:
    """The end of a run without these tables, as one error: why each is not copied, and what helps."""
    names = sorted(lost)
    shown, left = names[:_NAMED], len(names) - _NAMED
    more = [f"and {left:,} more tables"] if left > 0 else []
    # What refuses a table has a line of its own for each check.
    reasons = [f"{name}: {lost[name].message}\n{lost[name].detail.strip()}".rstrip() for name in shown]
    hints = [lost[name].hint or f"`vnode-backfill status --table {shlex.quote(name)}` shows more." for name in shown]
    return BackfillError(
        f"job {job} has ended without {', '.join(shown + more)}",
        detail="\n".join(reasons + more),
        hint=hints[0] if len(names) == 1 else "\n".join(map(": ".join, zip(shown, hints, strict=True))),
    )


def ending_lines(tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> list[str]:
    """Why tables have ended, where that is not because they were asked to."""
    lines, lost = [], lost_tables(tables, {})
    for table in tables:
        if table.name in lost:
            lines.append(f"{table.name}: {lost[table.name]}")
        elif isinstance(table.run.ending, Ended):
            lines.append(_ended_line(table.name, table.run.coordinator.saved.schema.ended))
    return lines + [f"{name} is set aside: {error}" for name, error in sorted(aside.items())]


def _ended_line(name: str, ended: str) -> str:
    return f"{name} has ended: {ended}; its target and its state stay as they are"


def _check_mode(config: Config) -> None:
    specific = config.mysql.cdc.specific
    if specific is not None and specific.from_job is not None:
        raise ConfigError(
            "mysql.cdc.specific.from_job: a job of many tables cannot take over the targets of another job",
            hint="Begin with `startup_mode: initial`, or hand tables over one by one.",
        )
    if config.mysql.cdc.startup_mode is StartupMode.SNAPSHOT:
        raise ConfigError(
            "mysql.cdc.startup_mode is snapshot, which ends with a handoff: a job of many tables has none",
            hint="Use `startup_mode: initial` and run it with `--until live`.",
        )


def _check_vnodes(config: Config, store: TablesStore, asked: int | None) -> None:
    count = None if asked is None else store.vnode_count()
    if count is not None:
        from vnode_backfill.job.open.resume import check_vnodes

        check_vnodes(config.job, count, asked)


def _nothing_to_copy(config: Config, opened: OpenedTables) -> BackfillError:
    if not opened.aside:
        return PlanRefusedError(
            f"job {config.job} has no table to copy", hint="`vnode-backfill plan` shows what mysql.tables matches."
        )
    name, error = sorted(opened.aside.items())[0]
    kind = PlanRefusedError if error.exit_code == PlanRefusedError.exit_code else BackfillError
    return kind(f"none of the {len(opened.aside)} tables can be copied; {name}: {error.message}", detail=error.detail, hint=error.hint)  # fmt: skip


def _watch(opener: TablesOpener, face: str, faces: Faces) -> TablesWatch:
    from vnode_backfill.job.tables.watch import TablesWatch

    config, sink = opener.config, configured_sink(opener.config).target
    return TablesWatch(config, opener.store, face, faces, sink=sink, reported=lambda: opener.reported)


def _run_opened(
    opener: TablesOpener, session: StartingSession, opened: OpenedTables, until: str, watch: TablesWatch
) -> dict[str, BackfillError]:
    from vnode_backfill.job.run.loop import Until
    from vnode_backfill.job.tables.tables_job import JobParts, TablesJob

    config, store = opener.config, opener.store
    if session.slots is None:
        _wait_for_session(config, store, session)
    services = services_for(config, session, watch.metrics, session)
    parts = JobParts(config, store, services, renewed, taken_up, opener.look_again, opener.open_again, watch)
    job = TablesJob(parts, opened.tables, opened.aside)
    session.excused = lambda: job.is_stopping
    job.run(Until(until))
    if job.leaves_tasks and not configured_sink(config).fences_drivers:
        # They look at the lease. The next driver waits until it has run out.
        store.leave_lease()
    for table in job.tables:
        table.services.sink.close()
    say(*ending_lines(job.tables, job.aside))
    return lost_tables(job.tables, job.aside)


def _ask_for_workers(store: TablesStore, opened: OpenedTables, asked: int | None) -> None:
    """A number of workers given on the command line rescales tables that have another, and holds for later ones."""
    from progress.state.backfill_state import Request, RequestKind

    if asked is None:
        return
    states = {table.name: table.opened.state for table in opened.tables}
    rescaled = {
        name
        for name, waiting in store.unacknowledged(states).items()
        if any(each.kind is RequestKind.RESCALE for each in waiting)
    }
    others = [name for name, state in states.items() if asked != len(state.assignment) or name in rescaled]
    request = Request(0, RequestKind.RESCALE, workers=asked)
    if any(replace(each.request, id=0) == request for each in store.asked_of_every()):
        every = None
    else:
        running, every = {table.name for table in opened.tables}, request
        others += [name for name in store.names() if name not in running]
    if others or every:
        store.append_requests(dict.fromkeys(others, request), owner(), socket.gethostname(), every=every)


def _wait_for_session(config: Config, store: TablesStore, session: StartingSession) -> None:
    """Until the session is up nobody else renews the lease, and a cluster may take longer than that lasts."""
    while True:
        try:
            session.result(timeout=config.state.lease.total_seconds() / 3)
        except TimeoutError:
            if session.done():
                raise
            store.renew()
        else:
            return


def services_for(
    config: Config, spark: HasContext, metrics: CdcBackfillMetrics, jvm: WatchedJvm | None = None
) -> Callable[[OpenedTable], Services]:
    """How each table of the job gets what it works with."""
    from consume_upstream.throttle import SourceThrottle
    from vnode_backfill.job.open.sink import change_buffer, open_sink
    from vnode_backfill.job.run.services import Services

    throttle = SourceThrottle(config.limits.throttle)

    def of(table: OpenedTable) -> Services:
        opened, own = table.opened, table.config
        sink = open_sink(own, opened.record, opened.store, opened.table)
        # A change of the target that was left pending is ordered first, and begins with this shape.
        sink.use(opened.state.schema.shape_in_sink(opened.table.definition))
        return Services(
            own, spark, opened.table, sink,
            change_buffer(own, opened.record, opened.store), opened.store, throttle, metrics, jvm,
        )  # fmt: skip

    return of


def renewed(table: OpenedTable, ending: NewCopy) -> OpenedTable:
    """Begin a new copy of one table; `renew` needs the lease that this process holds."""
    from vnode_backfill.job.open.renew import renew

    store = table.opened.store
    store.acquire_lease(owner(), table.config.state.lease)
    opened = renew(table.config, store, ending.reason, ending.created)
    say(*(f"{table.name}: {line}" for line in opened.start.warnings))
    return replace(table, opened=opened)


def taken_up(table: OpenedTable) -> OpenedTable:
    """Continue one table that has failed, under the lease that this process holds."""
    from vnode_backfill.job.open.resume import take_up

    store = table.opened.store
    store.acquire_lease(owner(), table.config.state.lease)
    say(f"{table.name} is taken up again")
    return replace(table, opened=take_up(table.config, store, None))
