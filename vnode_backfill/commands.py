"""What each command does, from a checked configuration to an exit code."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from progress.state import Request, RequestKind
from vnode_backfill.config import Config, Executor, load_config
from vnode_backfill.config_iotdb import IotdbSinkConfig
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import BackfillError, ConfigError, SparkStartError, StateError
from vnode_backfill.places import owner, state_store
from vnode_backfill.status import read_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consume_upstream.mysql.server import MySqlTable
    from progress.job_rows import JobRecord
    from progress.state import Failure
    from progress.store import StateStore
    from vnode_backfill.handoff import StoredHandoff
    from vnode_backfill.job import Until
    from vnode_backfill.opening import Examined, Opened
    from vnode_backfill.spark_session import StartingSession
    from vnode_backfill.verify import JobProgress
    from vnode_backfill.verify_pace import SourcePace
    from vnode_backfill.watching import Watch


def plan(config: Config, *, as_json: bool) -> int:
    """Check, cut and estimate; writes nothing. Exit code 2 if the job would be refused."""
    from progress.web import check_web
    from vnode_backfill import opening
    from vnode_backfill.preflight import render, to_json
    from vnode_backfill.writable import check_writable

    check_writable(config)
    check_web(config.ui.host, config.ui.port)
    found = opening.examine_source(config, task_slots=None)
    if as_json:
        told = {"findings": to_json(found.findings), "plan": _plan_facts(found), "start": _start_facts(found)}
        print(json.dumps({"version": 1, **told}))
    else:
        print(render(found.findings))
        print(_plan_text(config, found))
    return 2 if found.plan is None else 0


def status(config: Config, *, as_json: bool, per_vnode: bool, watch: bool) -> int:
    """The report from the state tables alone; works whether a driver runs or not."""
    from progress.terminal import open_view, status_text

    if watch:
        view = open_view("json-lines" if as_json else "terminal")
        try:
            while True:
                view.show(read_report(config))
                time.sleep(1.0)
        except KeyboardInterrupt:
            view.close()
            return 0
    report = read_report(config)
    print(report.to_json(per_vnode=per_vnode) if as_json else status_text(report, per_vnode=per_vnode))
    return 0


def verify(config: Config, *, master: str | None, as_json: bool, verbose: bool = False) -> int:
    """Compare source and target, whether the job runs or not; exit code 1 if they differ."""
    from vnode_backfill.delta_files import Storage
    from vnode_backfill.opening import table_of
    from vnode_backfill.spark_session import session_starting
    from vnode_backfill.verification import render, to_json
    from vnode_backfill.verify import verify_table

    loaded = state_store(config).load()
    if loaded is None:
        raise StateError(f"there is no job {config.job} in {config.state.path}")
    if config.limits.rows_per_second == 0:
        raise ConfigError(
            "limits.rows_per_second is 0: verify may read nothing from the source",
            hint="Set how many rows a second it may read, or leave the key out.",
        )
    if config.sink.iotdb is not None:
        table = table_of(config, loaded.state)
        with _pace(config, table) as pace:
            return _verify_points(config.sink.iotdb, table, loaded.record, pace, as_json=as_json)
    if not loaded.state.backfill_finished:
        raise StateError(
            f"job {config.job} has not copied the whole table yet",
            detail="Rows that were never read would all be told as missing.",
            hint="Let it go on until it is live: `vnode-backfill run --until live`.",
        )
    delta = config.sink.delta
    if delta is None:
        raise ConfigError("verify compares a Delta table only", hint="Give sink.delta.path.")
    plan = loaded.plan if loaded.record.executor != "single" else None
    target = Storage.of(delta.path, reveal(config.storage.options))
    with session_starting(config, master, quiet=not verbose) as session:
        table = table_of(config, loaded.state)
        with _pace(config, table) as pace:
            result = verify_table(
                _started(session), table, plan, target, workers=config.workers, job=lambda: _progress(config), pace=pace
            )  # fmt: skip
    print(to_json(result) if as_json else render(result))
    return 0 if result.equal else 1


@contextmanager
def _pace(config: Config, table: MySqlTable) -> Iterator[SourcePace]:
    """How fast the source may be read: as a job is allowed to copy."""
    from consume_upstream.mysql.driver_source import DriverSource
    from vnode_backfill.throttle import SourceThrottle
    from vnode_backfill.verify_pace import SourcePace

    limits = config.limits
    throttle, source = SourceThrottle(limits.throttle, table), DriverSource(table)
    busy = (lambda: throttle.reason(source)) if throttle.has_checks else None
    try:
        yield SourcePace(limits.rows_per_second, busy, limits.throttle.every.total_seconds())
    finally:
        source.close()


def _verify_points(
    iotdb: IotdbSinkConfig, table: MySqlTable, record: JobRecord, pace: SourcePace, *, as_json: bool
) -> int:
    """Needs no Spark."""
    from vnode_backfill.iotdb_verify import render, to_json, verify_points
    from vnode_backfill.targets import point_settings

    result = verify_points(
        table, record.definition, point_settings(iotdb, record.definition), duplicates=iotdb.duplicates, pace=pace
    )
    print(to_json(result) if as_json else render(result))
    return 0 if result.equal else 1


def _progress(config: Config) -> JobProgress:
    from vnode_backfill.verify import JobProgress

    found = state_store(config).status_snapshot()
    if found is None:
        raise StateError(f"job {config.job} vanished from {config.state.path}")
    return JobProgress(found.state.lowest_applied, running=found.lease is not None)


def compact(config: Config, *, sweep_only: bool) -> int:
    """Join small files of the target and delete old ones, beside a running job or without one."""
    from vnode_backfill import maintenance

    return maintenance.compact(config, sweep_only=sweep_only)


def run(
    config: Config,
    *,
    until: str,
    master: str | None,
    asked_vnodes: int | None,
    asked_workers: int | None,
    face: str,
    verbose: bool = False,
) -> int:
    """Create the job or take it up, and run it. The reason of a failure is on stderr and in the state.

    A job that only copies ends by itself, whatever `until` says; run again, it says where it ended and does nothing.
    """
    from vnode_backfill import handoff
    from vnode_backfill.spark_session import session_starting, task_slots
    from vnode_backfill.writable import check_writable

    if (ended := handoff.read_handoff(config, config.job)) is not None:
        return _hand_over(config, ended)
    _refuse_several(config, vnodes=asked_vnodes, workers=asked_workers)
    check_writable(config)
    sized = with_room_for_workers(config)
    slots = task_slots(sized) if master is None else None
    with session_starting(sized, master, quiet=not verbose) as session:
        # Only now, because it takes a second in which the JVM starts already.
        from consume_upstream.mysql.resultset import load_kernels
        from vnode_backfill import single_job
        from vnode_backfill.job import Until
        from vnode_backfill.watching import Faces, Watch

        load_kernels()
        with closing(Faces.open(config)) as faces:
            opened = _open_patiently(
                config,
                lambda: single_job.open_configured(
                    config, task_slots=slots, asked_vnodes=asked_vnodes, say=_say,
                    before_writing=lambda: _started(session),
                ),
            )  # fmt: skip
            _say(*handoff.starting_lines(opened.start))
            _ask_for_workers(opened, asked_workers)
            try:
                say_once(config, opened)
                awaited_session(session, config, opened.store)
                watched = partial(Watch, config, opened, face, faces=faces)
                failure = _run_opened(config, session, opened, Until(until), watched)
            finally:
                opened.store.release()
    if failure is not None:
        print(f"vnode-backfill: {_as_error(failure)}", file=sys.stderr)
        return 1
    ended = handoff.read_handoff(config, config.job) if opened.start.bounded else None
    return 0 if ended is None else _hand_over(config, ended)


def _as_error(failure: Failure) -> BackfillError:
    return BackfillError(failure.message, detail=failure.detail, hint=failure.hint)


def with_room_for_workers(config: Config) -> Config:
    """The configuration by which a session is sized: a job that was rescaled has more workers than its file says."""
    found = state_store(config).status_snapshot()
    workers = len(found.state.assignment) if found else 0
    return config.model_copy(update={"workers": max(config.workers, workers)})


def _open_patiently(config: Config, open_job: Callable[[], Opened]) -> Opened:
    """A job that exists waits for its source and its target as a running one does; a new one says at once what is not there."""
    attempt, limits = 0, config.limits
    while True:
        try:
            return open_job()
        except BackfillError as error:
            attempt += 1
            if not error.retryable or attempt > limits.retries or not state_store(config).exists():
                raise
            _say(f"{error.message}; attempt {attempt} of {limits.retries + 1} failed")
            time.sleep(limits.pause(attempt))


def _started(session: StartingSession) -> SparkSession:
    """The session, asked for before anything is written: one that cannot be had is a wrong configuration."""
    try:
        return session.result()
    except SparkStartError as error:
        raise ConfigError(error.message, detail=error.detail, hint=error.hint) from error


def awaited_session(session: StartingSession, config: Config, store: StateStore) -> SparkSession:
    """The session once it is up. Until then nobody else renews the lease, and a cluster may take longer than that lasts."""
    while True:
        try:
            return session.result(timeout=config.state.lease.total_seconds() / 3)
        except TimeoutError:
            if session.done():
                raise
            store.renew()


def _run_opened(
    config: Config, session: StartingSession, opened: Opened, until: Until, open_watch: Callable[[], Watch]
) -> Failure | None:
    """Run a job that is this driver's, to its end; the failure is what stopped it, if anything did."""
    from vnode_backfill import opening, single_job
    from vnode_backfill.actions import Services
    from vnode_backfill.job import Until
    from vnode_backfill.targets import last_words, open_sink
    from vnode_backfill.throttle import SourceThrottle

    watch = open_watch()
    services = Services(
        config, session.result(), opened.table, open_sink(config, opened.record, opened.store, opened.table),
        opening.change_buffer(config, opened.record, opened.store), opened.store,
        SourceThrottle(config.limits.throttle, opened.table), watch.metrics, session.watch,
    )  # fmt: skip
    job = single_job.job_of(services, opened, watch)
    session.watch.excused = lambda: job.is_stopping
    _, failure = job.run(Until.LIVE if opened.start.bounded else until)
    if job.leaves_tasks and config.sink.iotdb is not None:
        # They look at the lease. The next driver waits until it has run out.
        opened.store.leave_lease()
    _say(*last_words(services.sink))
    return failure


def handoff(config: Config, *, follow: Path | None) -> int:
    """Print where a job that copies has ended, as JSON; exit code 1 if it has not. Or check that two files belong together."""
    from vnode_backfill.handoff import check_copies, check_pair, read_handoff

    if follow is not None:
        check_pair(config, load_config(follow, {}))
        return 0
    check_copies(config)
    ended = read_handoff(config, config.job)
    if ended is None:
        raise StateError(
            f"job {config.job} has stored no handoff", hint="Run it with startup_mode snapshot until it ends by itself."
        )
    print(ended.to_json(), end="")
    return 0


def _refuse_several(config: Config, **asked: int | None) -> None:
    """The single executor is one reader of one vnode."""
    for name, number in asked.items():
        if config.executor is Executor.SINGLE and number not in (None, 1):
            raise ConfigError(
                f"--{name} {number}: executor: single walks the table with one reader, as one vnode",
                hint=f"Leave --{name} out, or set `executor: parallel`.",
            )


def _hand_over(config: Config, ended: StoredHandoff) -> int:
    from vnode_backfill import handoff

    _say(*handoff.end_lines(config, ended, handoff.write_handoff(config, ended)))
    return 0


def _say(*lines: str) -> None:
    for line in lines:
        print(f"vnode-backfill: {line}", file=sys.stderr)


def say_once(config: Config, opened: Opened) -> None:
    """What an earlier release may have done to the job's target; it counts as said once it was printed."""
    from vnode_backfill import notices

    record = opened.record
    if not notices.is_settled(config, record.name, record.id):
        lines = notices.lines(opened.table, record.definition)
        if lines is not None:
            _say(*lines)
            notices.settle(config, record.name, record.id)


def _ask_for_workers(opened: Opened, asked: int | None) -> None:
    """A number of workers given on the command line rescales a job that has another."""
    if asked is not None and asked != len(opened.state.assignment):
        request = Request(0, RequestKind.RESCALE, workers=asked)
        opened.store.append_request(request, owner(), socket.gethostname())


def _plan_facts(found: Examined) -> dict[str, object] | None:
    if found.plan is None or found.facts is None:
        return None
    return {
        "ranges": len(found.plan.ranges),
        "vnodes": found.plan.vnode_count,
        "vnodes_with_ranges": len({planned.vnode for planned in found.plan.ranges}),
        "estimated_rows": found.facts.estimated_rows,
        "average_row_bytes": found.facts.average_row_bytes,
    }


def _start_facts(found: Examined) -> dict[str, object] | None:
    if found.beginning is None:
        return None
    start = found.beginning.start
    return {
        "copies": start.snapshot, "ends": start.bounded, "after": str(found.beginning.first),
        "notes": list(start.notes), "warnings": list(start.warnings),
    }  # fmt: skip


def _plan_text(config: Config, found: Examined) -> str:
    facts = _plan_facts(found)
    if facts is None or found.plan is None or found.beginning is None:
        return "refused: nothing was planned"
    from vnode_backfill.handoff import starting_lines

    name, start = f"{config.mysql.database}.{config.mysql.table}", found.beginning.start
    read = (
        "walked by one reader in the server's own order"
        if config.executor is Executor.SINGLE
        else f"in {facts['ranges']:,} ranges, hashed into {facts['vnodes_with_ranges']} of {facts['vnodes']} vnodes, "
        f"read by {config.workers} workers"
    )
    cut = f"{name}: about {facts['estimated_rows']:,} rows {read}"
    copies = cut if start.snapshot else f"{name}: nothing is copied"
    follows = f"the log is followed from {found.beginning.first}" + (
        ", until the copy is complete" if start.bounded else ""
    )
    return "\n".join((copies, follows, *starting_lines(start)))
