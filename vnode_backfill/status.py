"""What `status` shows: the report on a job from its state tables alone, whether a driver runs or not."""

from __future__ import annotations

from progress.report import Observed, Report, Subject, report_of
from vnode_backfill.config import Config
from vnode_backfill.errors import StateError
from vnode_backfill.places import state_store


def read_report(config: Config) -> Report:
    """The newest report; raises if there is no such job."""
    found = state_store(config).status_snapshot()
    if found is None:
        raise StateError(
            f"there is no job {config.job} in {config.state.path}",
            hint="Start it with `vnode-backfill run --config …`, or check job and state.path.",
        )
    record, lease = found.record, found.lease
    subject = Subject(record.name, f"{record.database}.{record.table}", record.sink)
    driver = f"{lease.owner} on {lease.process.host}, process {lease.process.pid}" if lease else ""
    return report_of(
        subject, found.estimates, found.state, Observed(driver=driver, asked=found.asked), at_least=found.percent
    )
