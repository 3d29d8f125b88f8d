"""Shows how far a job of many tables is: one read of its state for all of them, and what a running driver notes.

A table that is set aside is shown with its reason, whether a driver runs or not: the driver stores it with the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from progress.state.backfill_state import Failure
from progress.state.make_report import report_of
from progress.state.report import REMOVED, JobPhase, Observed, Report, Retry, Subject, TableProgress
from progress.state.tables_report import reason_of, summed_up
from progress.store.lease import Lease
from progress.store.observed import ObservedFile, TableSeen
from progress.store.reader import Shown
from progress.store.tables_store import TablesStore
from vnode_backfill.commands.planned_job import find_planning_report
from vnode_backfill.commands.tables.asked import asked_names, parsed_name
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import is_chosen, table_sink
from vnode_backfill.config.values import reveal
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.words.errors import BackfillError, ConfigError

__all__ = ["find_tables_report"]

Seen = Mapping[str, TableSeen]


def find_tables_report(config: Config, only: Sequence[str] = ()) -> Report | None:
    """The newest report on the job, or on the tables that --table means; None if there is no such job.

    A job whose first plans are still being made is reported on as a whole.

    One table that is named alone is reported on as a job of one table is.
    """
    store = tables_store(config)
    removed = {choice.table for choice in store.choices.all() if not choice.wanted}
    found = store.shown(lambda names: asked_names({*names} - removed, only))
    if found is None:
        return find_planning_report(config)
    observed, seen = _observed(config, store, found.lease)
    if only:
        observed = replace(observed, reported=())
    reports = {
        name: _of_table(Subject(name, name, _target(config, name)), each, observed, seen.get(name, TableSeen()))
        for name, each in found.tables.items()
    }
    if only and len(found.names) == 1:
        return _alone(found.names[0], reports, found.aside, observed)
    subject = Subject(config.job, f"{len(found.names)} tables", configured_sink(config).target)
    report = summed_up(subject, reports, {name: reason_of(error) for name, error in found.aside.items()}, observed)
    gone = () if only else sorted(removed)
    lines = (TableProgress(name, _target(config, name), REMOVED) for name in gone)
    return replace(report, tables=(*report.tables, *lines))


def _observed(config: Config, store: TablesStore, lease: Lease | None) -> tuple[Observed, Seen]:
    if lease is None:
        return Observed(), {}
    driver = f"{lease.owner} on {lease.process.host}, process {lease.process.pid}"
    noted = ObservedFile(store.folder, reveal(config.storage.options), lease.generation).read_with_tables()
    found, tables = noted or (Observed(), {})
    return replace(found, driver=driver), tables


def _target(config: Config, name: str) -> str:
    """Where the table goes, by the file; empty if that no longer names it."""
    try:
        table = parsed_name(name)
        return configured_sink(table_sink(config, table, fold_case=not is_chosen(config, table))).target
    except (ConfigError, ValidationError):
        return ""


def _of_table(subject: Subject, found: Shown, job: Observed, seen: TableSeen) -> Report:
    """One table, as its state and the driver's notes show it. One that has ended is not driven, though others are."""
    observed = Observed(
        lag_seconds=seen.lag_seconds, lag_bytes=seen.lag_bytes, buffer_bytes=seen.buffer_bytes,
        lake_age_seconds=seen.lake_age_seconds, target=seen.target, lengthened=seen.lengthened,
        lengthened_by=seen.lengthened_by, throttled_by=job.throttled_by, driver=job.driver if seen.driven else "",
        retry=Retry(1, seen.retry) if seen.retry else None, asked=found.asked, task_slots=job.task_slots,
    )  # fmt: skip
    return report_of(subject, found.estimates, found.state, observed, at_least=found.percent)


def _alone(name: str, reports: Mapping[str, Report], aside: Mapping[str, BackfillError], observed: Observed) -> Report:
    report = reports.get(name) or Report(Subject(name, name, ""), JobPhase.FAILED, 0.0, 0, 0, 0, 0)
    error = aside.get(name)
    if error is None:
        return report
    failure = Failure(report.epoch, f"set aside: {error.message}", error.detail, error.hint)
    unseen = replace(observed, driver="", retry=None)
    return replace(report, phase=JobPhase.FAILED, failure=failure, observed=unseen)
