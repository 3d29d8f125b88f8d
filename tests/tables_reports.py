"""Reports on an imaginary job of many tables, summed up by the real `summed_up`."""

from __future__ import annotations

from dataclasses import replace

from progress.state.backfill_state import Failure
from progress.state.make_report import report_of
from progress.state.report import Observed, Report, Retry, Subject
from progress.state.tables_report import summed_up
from tests.job_reports import RUNNING, ImaginaryJob
from vnode_backfill.words.epoch import Epoch

_JOBS = [ImaginaryJob(vnodes=64, ranges=ranges, workers=2) for ranges in (5, 40, 200)]
NO_KEY = "shop.audit has no primary key and no unique key without NULL"


def tables_report(tables: int = 60, *, per_table: Observed = RUNNING) -> Report:
    """One failed, one tried again, one set aside, a third of the others being read, and the rest live."""
    reports = {f"shop.table_{number:03d}": _report(number, per_table) for number in range(tables)}
    subject = Subject("shop", f"{tables + 1} tables", "delta:/lake/{database}/{table}")
    observed = replace(RUNNING, rows_per_second=21_000.0)
    return summed_up(subject, reports, {"shop.audit": NO_KEY}, observed)


def _report(number: int, seen: Observed) -> Report:
    job, name = _JOBS[number % len(_JOBS)], f"shop.table_{number:03d}"
    state = job.at(number / 100) if number % 3 == 2 else job.live()
    seen = replace(seen, lag_seconds=0.4, lake_age_seconds=1.2 + number / 10)
    if number == 3:
        reason = "the target /lake/shop/table_003 cannot be written: No space left on device"
        state, seen = replace(state, failure=Failure(Epoch(7), reason, "", "")), replace(seen, driver="")
    if number == 4:
        seen = replace(seen, retry=Retry(2, "the connection to the source was lost"))
    return report_of(Subject(name, name, f"delta:/lake/shop/{name}"), job.estimates, state, seen)
