"""Writes down what an operator asks of a job, whether its driver runs or not; the job acts on it at the next barrier.

No JVM is started and the source is asked nothing, with one exception: the bounds of `resnapshot --where-key` on a text
key, whose order only the database knows. A request is checked against the job before it is written; what cannot be
carried out is refused here, with exit code 2.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from progress.state.backfill_state import MOST_ROWS_PER_SECOND, Phase, Request, RequestKind
from progress.state.report import JobPhase, Report
from progress.store.store import Identity, Loaded, StateStore
from vnode_backfill.commands.status import find_report, read_report
from vnode_backfill.commands.stored_job import stored_identity, stored_job
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open.locations import buffer_path, owner, state_store
from vnode_backfill.job.open.writable import check_state_writable
from vnode_backfill.spark.slots import slots_needed
from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment, split_evenly
from vnode_backfill.words.errors import BitmapError, ConfigError, StateError

_MOST_DIGITS = 9
_OFFSET = re.compile(r"[^/\s]+\.[0-9]+:[0-9]+")


def rescale(config: Config, *, workers: int | None, bitmaps: Sequence[str], only: Sequence[str] = ()) -> int:
    """Spread the vnodes over another number of workers, or exactly as the bitmaps say (`0=0-127 1=128-255`)."""
    counts = set(_vnode_counts(config, only))
    if not bitmaps and workers is None:
        raise ConfigError("rescale needs --workers or --bitmap", hint="For example: rescale --workers 8")
    if bitmaps:
        made = {count: _assignment(bitmaps, count) for count in counts}
        _warn_of_slots(config, len(bitmaps))
        what = f"{len(bitmaps)} workers, as given"
        return _ask(config, only, lambda count: Request(0, RequestKind.RESCALE, assignment=made[count]), what)
    assert workers is not None
    for count in counts:
        split_evenly(count, workers)
    _warn_of_slots(config, workers)
    return _ask(config, only, Request(0, RequestKind.RESCALE, workers=workers), f"{workers} workers")


def throttle(config: Config, *, rows_per_second: int | None, only: Sequence[str] = ()) -> int:
    """Limit the snapshot of the whole job; None takes the limit away, 0 pauses it. The log is still captured.

    Of some tables of a job of many the limit counts within that of the job; None leaves them the job's.
    """
    if rows_per_second is not None and not 0 <= rows_per_second <= MOST_ROWS_PER_SECOND:
        raise ConfigError(
            f"--rows-per-second must be from 0 to {MOST_ROWS_PER_SECOND}",
            hint="0 pauses the snapshot; `throttle --off` takes the limit away.",
        )
    around = _limit_around(config, only)
    if around is not None and (rows_per_second is None or rows_per_second > around):
        text, rows_per_second = f"{around:,} rows/s, which is the limit of the job", around
    else:
        text = "no limit" if rows_per_second is None else f"{rows_per_second:,} rows/s"
    return _ask(config, only, Request(0, RequestKind.RATE_LIMIT, rows_per_second=rows_per_second), text)


def pause(config: Config, *, only: Sequence[str] = ()) -> int:
    return _ask(config, only, Request(0, RequestKind.PAUSE), "the snapshot waits, the log does not")


def resume(config: Config, *, accept: str | None = None, only: Sequence[str] = ()) -> int:
    """Continue the snapshot; with `accept`, let the job pass the statement at that offset instead."""
    if accept is None:
        return _ask(config, only, Request(0, RequestKind.RESUME), "the snapshot continues")
    if not _OFFSET.fullmatch(accept):
        raise ConfigError(
            f"--accept {accept}: expected the offset of a statement, FILE:POS",
            hint="`vnode-backfill status` shows it, as in binlog.000042:1234.",
        )
    return _ask(config, only, Request(0, RequestKind.RESUME, accept=accept), f"the statement at {accept} is accepted")


def stop(config: Config, *, only: Sequence[str] = ()) -> int:
    """Stop the running driver at a SyncCheckpoint; refused where none runs, because the next one would stop at once.

    Of some tables of a job of many: they stop, and the driver continues with the others.
    """
    if not config.many and _writable_identity(config)[1].lease is None:
        raise StateError(f"nobody drives job {config.job} now, so there is nothing to stop")
    return _ask(config, only, Request(0, RequestKind.STOP), "everything captured is applied first")


def drop(config: Config, *, only: Sequence[str] = (), say: Callable[[str], None] = print) -> int:
    """Remove a job's state and buffer, or its unfinished plan, after naming what goes. The target is never touched."""
    if config.many:
        from vnode_backfill.commands.tables.requests import drop_tables

        return drop_tables(config, only, say=say)
    from vnode_backfill.commands.planned_job import drop_plans

    _check_one_table(config, only)
    if drop_plans(config, say=say) and not state_store(config).exists():
        return 0
    store, identity = _writable_identity(config)
    buffer = buffer_path(config)
    say(f"removing the state of job {config.job} in {store.folder}")
    say(f"removing its buffer in {buffer}")
    say(f"the target {identity.record.sink} stays as it is")
    store.drop(owner())
    # A migration that was killed may have left the job's older state behind; alone, it would count again.
    older = state_store(config)
    if older.exists():
        older.drop(owner())
    Storage.of(buffer, reveal(config.storage.options)).remove()
    return 0


def wait(config: Config, *, timeout: timedelta | None, pause_seconds: float = 1.0, only: Sequence[str] = ()) -> int:
    """Return 0 once the job is live; raise if it failed or stopped before, or the time is over.

    A job that was only just started does not exist until its plan is made, so it is waited for as well; but not for
    ever: without a timeout a mistyped name must not hang.
    """
    if config.many:
        from vnode_backfill.commands.tables.requests import wait_for_tables

        return wait_for_tables(config, only, timeout=timeout, pause_seconds=pause_seconds)
    _check_one_table(config, only)
    ends = None if timeout is None else time.monotonic() + timeout.total_seconds()
    while ends is not None and time.monotonic() < ends:
        report = find_report(config)
        if report is not None and _is_live(config, report):
            return 0
        time.sleep(pause_seconds)
    while not _is_live(config, report := read_report(config)):
        if ends is not None:
            raise StateError(f"job {config.job} is not live yet: {report.phase}, {report.percent:.2f} %")
        time.sleep(pause_seconds)
    return 0


def _is_live(config: Config, report: Report) -> bool:
    """Whether there is nothing left to wait for; raises if that will not come. A stop drains the merge, so vnodes that
    are all live then are live at one offset. The percentage does not tell: it stays at 100 while a live job is read
    again."""
    stopped_live = report.phase is JobPhase.STOPPED and set(report.phases) == {Phase.LIVE}
    if report.phase in (JobPhase.FAILED, JobPhase.STOPPED) and not stopped_live:
        raise StateError(f"job {config.job} is {report.phase} at {report.percent:.2f} %")
    return stopped_live or report.phase is JobPhase.LIVE


def writable_job(config: Config) -> tuple[StateStore, Loaded]:
    """The job that is asked for something; raises if it does not exist, or if this account cannot write a request."""
    found = stored_job(config)
    check_state_writable(config)
    return found


def _writable_identity(config: Config) -> tuple[StateStore, Identity]:
    """The same, without its plan, which may be large."""
    found = stored_identity(config)
    check_state_writable(config)
    return found


def _check_one_table(config: Config, only: Sequence[str]) -> None:
    if only:
        from vnode_backfill.commands.tables.asked import check_one_table

        check_one_table(config, only)


def _warn_of_slots(config: Config, workers: int) -> None:
    """More workers than the running session has room for are not an error: they take turns.

    The operator should know.
    """
    slots = read_report(config).observed.task_slots
    needed = slots_needed(config, workers)
    if slots is not None and slots < needed:
        print(
            f"warning: {workers} workers, {config.limits.log_readers} log readers and the merge need {needed} task "
            "slots at the same "
            f"time; the running session has {slots}, so they wait in turn and epochs become longer",
            file=sys.stderr,
        )


def _ask(config: Config, only: Sequence[str], request: Request | Callable[[int], Request], what: str) -> int:
    """Ask the job, or the tables of it that --table means."""
    if config.many:
        from vnode_backfill.commands.tables.requests import ask_tables

        return ask_tables(config, only, request, what)
    _check_one_table(config, only)
    store, identity = _writable_identity(config)
    made = request if isinstance(request, Request) else request(identity.record.vnode_count)
    store.check_possible(made.kind)
    numbers = store.append_requests({identity.asked_as: made}, owner(), socket.gethostname())
    return _asked(numbers[identity.asked_as], made, what, driven=identity.lease is not None)


def _vnode_counts(config: Config, only: Sequence[str]) -> Sequence[int]:
    """How many vnodes the job, or each table that is meant, has; refused where one executor cannot be rescaled."""
    if config.many:
        from vnode_backfill.commands.tables.requests import asked_vnode_counts

        return tuple(asked_vnode_counts(config, only).values())
    _check_one_table(config, only)
    store, identity = _writable_identity(config)
    store.check_possible(RequestKind.RESCALE)
    return (identity.record.vnode_count,)


def _limit_around(config: Config, only: Sequence[str]) -> int | None:
    """The limit of a job of many, where --table means some of its tables."""
    if not config.many or not only:
        return None
    from vnode_backfill.commands.tables.limit import limit_around

    return limit_around(config, only)


def ask(store: StateStore, request: Request, what: str) -> int:
    number = store.append_request(request, owner(), socket.gethostname())
    return _asked(number, request, what, driven=store.current_lease() is not None)


def _asked(number: int, request: Request, what: str, *, driven: bool) -> int:
    when = "at the next barrier" if driven else "when the job is run again"
    print(f"request {number}: {request.kind} ({what}), {when}")
    return 0


def _assignment(bitmaps: Sequence[str], vnode_count: int) -> tuple[VnodeBitmap, ...]:
    found: dict[int, VnodeBitmap] = {}
    for text in bitmaps:
        worker, sign, vnodes = text.partition("=")
        if not sign or not worker.isdecimal() or len(worker) > _MOST_DIGITS or int(worker) in found:
            raise BitmapError(f"--bitmap {text}: expected WORKER=VNODES, each worker once", hint="For example: 0=0-127")
        found[int(worker)] = VnodeBitmap.parse(vnodes, vnode_count)
    if sorted(found) != list(range(len(found))):
        raise BitmapError(f"--bitmap: workers are {sorted(found)}, expected 0 to {len(found) - 1}")
    assignment = tuple(found[worker] for worker in range(len(found)))
    check_assignment(assignment, vnode_count)
    return assignment
