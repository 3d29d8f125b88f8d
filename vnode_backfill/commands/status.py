"""Shows how far a job is: from its state tables, whether a driver runs or not, and from what a running driver notes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from progress.state.make_report import report_of
from progress.state.report import Observed, Report, Subject
from progress.store.lease import Lease
from progress.store.observed import ObservedFile
from progress.store.store import StateStore
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.job.open.locations import ask_state, state_folder


def status(config: Config, *, as_json: bool, per_vnode: bool, watch: bool, only: Sequence[str] = ()) -> int:
    """The report from the state tables alone; works whether a driver runs or not.

    `only` are the tables of a job of many that are shown.
    """
    from progress.faces.terminal import open_view, status_text

    if watch:
        view = open_view("json-lines" if as_json else "terminal")
        try:
            while True:
                view.show(read_report(config, only))
                time.sleep(1.0)
        except KeyboardInterrupt:
            view.close()
            return 0
    report = read_report(config, only)
    print(report.to_json(per_vnode=per_vnode) if as_json else status_text(report, per_vnode=per_vnode))
    return 0


def read_report(config: Config, only: Sequence[str] = ()) -> Report:
    """The newest report; raises if there is no such job."""
    report = find_report(config, only)
    if report is None:
        from vnode_backfill.commands.tables.asked import no_such_job

        raise no_such_job(config)
    return report


def find_report(config: Config, only: Sequence[str] = ()) -> Report | None:
    """The newest report, also on a job whose plan is still being made; None if there is no such job."""
    # What a job of many tables needs is loaded for such a job only: every import delays the answer.
    if config.many:
        from vnode_backfill.commands.tables.status import find_tables_report

        return find_tables_report(config, only)
    if only:
        from vnode_backfill.commands.tables.asked import check_one_table

        check_one_table(config, only)
    _, found = ask_state(config, StateStore.status_snapshot)
    if found is None:
        from vnode_backfill.commands.planned_job import find_planning_report

        return find_planning_report(config)
    record, lease = found.record, found.lease
    subject = Subject(record.name, f"{record.database}.{record.table}", record.sink)
    observed = replace(_observed(config, lease), asked=found.asked)
    return report_of(subject, found.estimates, found.state, observed, at_least=found.percent)


def _observed(config: Config, lease: Lease | None) -> Observed:
    if lease is None:
        return Observed()
    file = ObservedFile(state_folder(config), reveal(config.storage.options), lease.generation)
    driver = f"{lease.owner} on {lease.process.host}, process {lease.process.pid}"
    return replace(file.read() or Observed(), driver=driver)
