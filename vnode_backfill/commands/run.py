"""Runs a job: opens it while the JVM starts, runs it to its end, and reports how it ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from progress.state.backfill_state import Request, RequestKind
from vnode_backfill.commands.say import say
from vnode_backfill.commands.stored_job import sized_session
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.job.open.locations import owner, state_store
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.words.errors import BackfillError, ConfigError
from vnode_backfill.words.finding import Level
from vnode_backfill.words.schema_change import Ended, NewCopy

if TYPE_CHECKING:
    from pyspark import SparkContext

    from progress.state.backfill_state import Failure
    from progress.store.store import StateStore
    from vnode_backfill.decide.protocol import Ending
    from vnode_backfill.job.open.handoff import StoredHandoff
    from vnode_backfill.job.open.opened import Opened
    from vnode_backfill.job.run.loop import Until
    from vnode_backfill.job.run.watch import Watch
    from vnode_backfill.spark.session import StartingSession


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
    if config.many:
        from vnode_backfill.commands.tables.run import run_tables

        return run_tables(
            config, until=until, master=master, face=face, asked_vnodes=asked_vnodes, asked_workers=asked_workers,
            verbose=verbose,
        )  # fmt: skip
    from vnode_backfill.job.open import handoff
    from vnode_backfill.job.open.writable import check_writable
    from vnode_backfill.spark.session import session_starting

    if (ended := handoff.read_handoff(config, config.job)) is not None:
        return _hand_over(config, ended)
    if gone := _table_that_ended(config):
        say(gone)
        return 0
    _refuse_several(config, vnodes=asked_vnodes, workers=asked_workers)
    check_writable(config)
    sized, is_live = sized_session(config)
    daemon = configured_sink(config).daemon_module
    with session_starting(sized, master, quiet=not verbose, daemon_module=daemon, at_once=not is_live) as session:
        # Only now, because it takes a second in which the JVM starts already.
        from vnode_backfill.job.open.open import open_configured
        from vnode_backfill.job.open.source import load_kernels
        from vnode_backfill.job.run.loop import Until
        from vnode_backfill.job.run.watch import Faces, Watch

        load_kernels()
        with closing(Faces.open(config)) as faces:
            opened = _open_patiently(
                config,
                lambda: open_configured(
                    config, asked_vnodes=asked_vnodes, say=say,
                    before_writing=session.required,
                ),
            )  # fmt: skip
            say(*handoff.starting_lines(opened.start))
            _ask_for_workers(opened, asked_workers)
            try:
                say_once(config, opened)
                _say_of_slots(sized, session, opened.store)
                while True:
                    watched = partial(Watch, config, opened, face, faces=faces)
                    failure, ending = _run_opened(config, session, opened, Until(until), watched)
                    if not isinstance(ending, NewCopy):
                        break
                    opened = _open_patiently(config, partial(_renewed, config, opened.store, ending))
            finally:
                opened.store.release()
    if failure is not None:
        raise _as_error(failure)
    if isinstance(ending, Ended):
        say(_table_that_ended(config))
        return 0
    ended = handoff.read_handoff(config, config.job) if opened.start.bounded else None
    return 0 if ended is None else _hand_over(config, ended)


def _renewed(config: Config, store: StateStore, ending: NewCopy) -> Opened:
    from vnode_backfill.job.open import handoff
    from vnode_backfill.job.open.renew import renew

    opened = renew(config, store, ending.reason, ending.created)
    say(*handoff.starting_lines(opened.start))
    return opened


def _table_that_ended(config: Config) -> str:
    """What is to be said of a job whose table is gone; empty if it is there, or there again."""
    from vnode_backfill.job.open.known_table import definition_now
    from vnode_backfill.job.open.source import open_known_table

    store = state_store(config)
    found = store.status_snapshot() if store.exists() else None
    if found is None or not found.state.schema.ended:
        return ""
    if definition_now(open_known_table(config, found.record.definition)) is not None:
        return ""
    name = f"{found.record.database}.{found.record.table}"
    return f"{name} has ended: {found.state.schema.ended}; its target and the job's state stay as they are"


def _as_error(failure: Failure) -> BackfillError:
    return BackfillError(failure.message, detail=failure.detail, hint=failure.hint)


def _open_patiently(config: Config, open_job: Callable[[], Opened]) -> Opened:
    """A job that exists waits for its source and target as a running one does.

    A new one reports at once what is missing.
    """
    attempt, limits = 0, config.limits
    while True:
        try:
            return open_job()
        except BackfillError as error:
            attempt += 1
            if not error.retryable or attempt > limits.retries or not state_store(config).exists():
                raise
            say(f"{error.message}; attempt {attempt} of {limits.retries + 1} failed")
            time.sleep(limits.pause(attempt))


def awaited_session(session: StartingSession, config: Config, store: StateStore) -> SparkContext:
    """The session once it is up.

    Until then nobody else renews the lease, and a cluster may take longer than that lasts.
    """
    while True:
        try:
            return session.result(timeout=config.state.lease.total_seconds() / 3)
        except TimeoutError:
            if session.done():
                raise
            store.renew()


def _run_opened(
    config: Config, session: StartingSession, opened: Opened, until: Until, open_watch: Callable[[], Watch]
) -> tuple[Failure | None, Ending | None]:
    """Run a job that is this driver's, to its end; the failure is what stopped it, if anything did.

    With an ending, the table has met a statement after which this copy does not continue.
    """
    from consume_upstream.throttle import SourceThrottle
    from vnode_backfill.job.open.open import job_of
    from vnode_backfill.job.open.sink import change_buffer, open_sink
    from vnode_backfill.job.run.loop import Until
    from vnode_backfill.job.run.services import Services

    watch = open_watch()
    services = Services(
        config, session, opened.table, open_sink(config, opened.record, opened.store, opened.table),
        change_buffer(config, opened.record, opened.store), opened.store,
        SourceThrottle(config.limits.throttle), watch.metrics, session,
    )  # fmt: skip
    job = job_of(services, opened, watch)
    session.excused = lambda: job.is_stopping
    state, failure = job.run(Until.LIVE if opened.start.bounded else until)
    description = configured_sink(config)
    if job.leaves_tasks and not description.fences_drivers:
        # They look at the lease. The next driver waits until it has run out.
        opened.store.leave_lease()
    services.sink.close()
    say(*description.last_words(services.sink))
    if not isinstance(job.ending, NewCopy):
        return failure, job.ending
    # Asked to stop, the job stays before the statement. The next run meets it again. A request to stop that came after
    # the last commit is acknowledged by nobody yet: the new copy begins, and stops by it.
    waits = any(request.kind is RequestKind.STOP for request in opened.store.unacknowledged(state))
    return failure, None if job.is_stopping and not waits else job.ending


def _refuse_several(config: Config, **asked: int | None) -> None:
    """The single executor is one reader of one vnode."""
    for name, number in asked.items():
        if config.executor is Executor.SINGLE and number not in (None, 1):
            raise ConfigError(
                f"--{name} {number}: executor: single walks the table with one reader, as one vnode",
                hint=f"Leave --{name} out, or set `executor: parallel`.",
            )


def _hand_over(config: Config, ended: StoredHandoff) -> int:
    from vnode_backfill.job.open import handoff

    say(*handoff.end_lines(config, ended, handoff.write_handoff(config, ended)))
    return 0


def say_once(config: Config, opened: Opened) -> None:
    """What an earlier release may have done to the job's target; it counts as said once it was printed."""
    from vnode_backfill.job.open import notices

    record = opened.record
    if not notices.is_settled(config, record.name, record.id):
        lines = notices.lines(opened.table, record.definition)
        if lines is not None:
            say(*lines)
            notices.settle(config, record.name, record.id)


def _say_of_slots(config: Config, session: StartingSession, store: StateStore) -> None:
    """Warn of a session with fewer task slots than the job needs. One that starts at once is waited for."""
    from vnode_backfill.spark.slots import check_slots, session_slots

    slots = session.slots
    found = check_slots(config, session_slots(awaited_session(session, config, store)) if slots is None else slots)
    if found.level is Level.WARNING:
        say(f"warning: {found.fact}", f"hint: {found.fix}")


def _ask_for_workers(opened: Opened, asked: int | None) -> None:
    """A number of workers given on the command line rescales a job that has another."""
    if asked is not None and asked != len(opened.state.assignment):
        request = Request(0, RequestKind.RESCALE, workers=asked)
        opened.store.append_request(request, owner(), socket.gethostname())
