"""Writes down what an operator asks of a job of many tables: of all of them, or of those that --table means.

However many tables are asked, one write holds it. So a driver finds the request for all of them at once, and tables
that are asked to stop together stop at one offset.

What holds until it is asked otherwise (pause, rate limit, workers) is also written for tables that join the job later,
and asked of those that are removed for now. See `vnode_backfill.job.tables.joining`.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from progress.state.backfill_state import Phase, Request, RequestKind
from progress.state.report import REMOVED, SET_ASIDE, JobPhase, Report, TableProgress
from progress.state.tables_report import reason_of, vnodes_of_job
from progress.store.rows.request_rows import holds
from progress.store.tables_store import TablesStore
from vnode_backfill.commands.planned_job import drop_plans
from vnode_backfill.commands.tables.asked import asked_names, held_names, no_such_job, part_of, stored_tables
from vnode_backfill.commands.tables.status import find_tables_report
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.writable import check_state_writable
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.words.errors import ConfigError, StateError

__all__ = ["ask_tables", "asked_vnode_counts", "drop_tables", "the_one_table", "wait_for_tables"]

_NAMED = 8
_GONE = (JobPhase.FAILED, SET_ASIDE)


def ask_tables(config: Config, only: Sequence[str], request: Request | Callable[[int], Request], what: str) -> int:
    """Ask it of every table that is meant. `request` may depend on how many vnodes a table has."""
    store, counts = _asked(config, only)
    lease = store.current_lease()
    if lease is None and isinstance(request, Request) and request.kind is RequestKind.STOP:
        raise StateError(f"nobody drives job {config.job} now, so there is nothing to stop")
    made = request if callable(request) else lambda _count: request
    every = None if only else made(vnodes_of_job(store.vnode_counts().values()))
    if every is not None and holds(every):
        _ask_every(store, made, every)
    elif counts:
        store.append_requests({name: made(count) for name, count in counts.items()}, owner(), socket.gethostname())
        if every is not None and every.kind is RequestKind.STOP:
            counts = _ask_joined(config, every, counts)
    else:
        raise StateError(
            f"no table of job {config.job} is copied, so there is nothing to ask",
            hint="`vnode-backfill status` says why each is set aside.",
        )
    kind = (every or made(next(iter(counts.values())))).kind
    when = "at the next barrier" if lease else "when the job is run again"
    print(f"request to {_tables(counts, everything=not only)}: {kind} ({what}), {when}")
    return 0


def asked_vnode_counts(config: Config, only: Sequence[str]) -> dict[str, int]:
    """Per table that is meant, how many vnodes it has; without --table also of those that are removed for now."""
    store, counts = _asked(config, only)
    return counts if only else store.vnode_counts()


def the_one_table(config: Config, only: Sequence[str]) -> Config | None:
    """The configuration of the table that is asked alone; None if several are."""
    names = asked_names(_asked(config, only)[1], ()) if only else ()
    return part_of(config, names[0]) if len(names) == 1 else None


def wait_for_tables(
    config: Config, only: Sequence[str], *, timeout: timedelta | None, pause_seconds: float = 1.0
) -> int:
    """Return 0 once every table that is meant is live.

    Raises when the others are and some will not be, when nobody drives a table that is not, or when the time is over.
    """
    ends = None if timeout is None else time.monotonic() + timeout.total_seconds()
    while True:
        report = find_tables_report(config, only)
        if report is None and ends is None:
            raise no_such_job(config)
        if report is not None and _is_live(config, report):
            return 0
        if ends is not None and time.monotonic() >= ends:
            if report is None:
                raise no_such_job(config)
            raise StateError(f"job {config.job} is not live yet: {report.phase}, {report.percent:.2f} %")
        time.sleep(pause_seconds)


def drop_tables(config: Config, only: Sequence[str], *, say: Callable[[str], None] = print) -> int:
    """Remove the state and the buffers of all tables after naming what goes. The targets are never touched."""
    if only:
        raise ConfigError(
            f"--table {only[0]}: drop removes a whole job",
            hint="Take the table out of mysql.tables and run the job: its state goes, its target stays.",
        )
    if drop_plans(config, say=say) and not tables_store(config).exists():
        return 0
    store = stored_tables(config)
    check_state_writable(config)
    loaded = {name: store.table(name).status_snapshot() for name in store.names()}
    targets = {name: found.record.sink for name, found in loaded.items() if found is not None}
    say(f"removing the state of job {config.job} and the buffers of its {len(targets):,} tables in {store.folder}")
    for name, target in targets.items():
        say(f"{name}: the target {target} stays as it is")
    store.drop(owner())
    Storage.of(f"{store.folder}/tables", reveal(config.storage.options)).remove()
    return 0


def _ask_every(store: TablesStore, made: Callable[[int], Request], every: Request) -> None:
    """Ask all tables, also those that are removed for now, and those that join later or have joined meanwhile."""
    asked: set[str] = set()
    later: Request | None = every
    while new := {name: count for name, count in store.vnode_counts().items() if name not in asked}:
        requests = {name: made(count) for name, count in new.items()}
        store.append_requests(requests, owner(), socket.gethostname(), every=later)
        asked, later = asked | new.keys(), None


def _ask_joined(config: Config, request: Request, counts: Mapping[str, int]) -> dict[str, int]:
    """Ask the tables that have joined since these were asked; all that were asked. A stop of all forgets none."""
    asked = dict(counts)
    while joined := {name: count for name, count in _asked(config, ())[1].items() if name not in asked}:
        tables_store(config).append_requests(dict.fromkeys(joined, request), owner(), socket.gethostname())
        asked |= joined
    return asked


def _asked(config: Config, only: Sequence[str]) -> tuple[TablesStore, dict[str, int]]:
    """The job's state, and the tables that are meant with their vnodes. One that has no state can be asked nothing."""
    store = stored_tables(config)
    check_state_writable(config)
    counts = store.vnode_counts()
    names = asked_names(held_names(store), only)
    missing = [name for name in names if name not in counts]
    if only and missing:
        raise StateError(
            f"{missing[0]} is set aside and has no state yet: {reason_of(store.aside()[missing[0]])}",
            hint="Each `vnode-backfill run` tries it again.",
        )
    return store, {name: counts[name] for name in names if name in counts}


def _is_live(config: Config, report: Report) -> bool:
    """Whether there is nothing left to wait for; raises if that will not come."""
    lines = [line for line in report.tables if line.phase != REMOVED] or [_line(report)]
    lost = [line for line in lines if line.phase in _GONE]
    stopped = [line for line in lines if line.phase == JobPhase.STOPPED and not _is_whole(line)]
    waited = [line for line in lines if line not in lost and line not in stopped and not _is_whole(line)]
    if waited:
        return False
    if stopped or lost:
        worst = [*lost, *stopped]
        raise StateError(
            f"{len(worst):,} of {len(lines):,} tables of job {config.job} will not be live",
            detail="; ".join(f"{line.name} is {line.phase}: {line.error or f'{line.percent:.2f} %'}" for line in worst[:_NAMED]),
            hint=f"`vnode-backfill status --table {shlex.quote(worst[0].name)}` shows why, and what helps.",
        )  # fmt: skip
    return True


def _is_whole(line: TableProgress) -> bool:
    """A stop drains the merge, so a table that was live then is live at one offset."""
    return line.phase == JobPhase.LIVE or (line.phase == JobPhase.STOPPED and line.live)


def _line(report: Report) -> TableProgress:
    return TableProgress(
        name=report.subject.job, phase=str(report.phase), percent=report.percent,
        error=report.failure.message if report.failure else "", live=set(report.phases) == {Phase.LIVE},
    )  # fmt: skip


def _tables(asked: Collection[str], *, everything: bool) -> str:
    names = sorted(asked)
    if everything:
        return f"all {len(names):,} tables"
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
