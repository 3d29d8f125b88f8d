"""What `status` shows: the report on a job from its state tables, whether a driver runs or not, and what a running one notes."""

from __future__ import annotations

from dataclasses import replace

from progress.lease import Lease
from progress.observed import ObservedFile
from progress.report import Observed, Report, Subject, report_of
from vnode_backfill.config import Config
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import StateError
from vnode_backfill.places import state_folder, state_store
from vnode_backfill.writable import check_state_readable


def read_report(config: Config) -> Report:
    """The newest report; raises if there is no such job."""
    report = find_report(config)
    if report is None:
        check_state_readable(config)
        raise StateError(
            f"there is no job {config.job} in {config.state.path}",
            hint="Start it with `vnode-backfill run --config …`, or check job and state.path.",
        )
    return report


def find_report(config: Config) -> Report | None:
    """The newest report; None if there is no such job."""
    found = state_store(config).status_snapshot()
    if found is None:
        return None
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
