"""Reports on the tables of a job, summed up as one."""

from __future__ import annotations

from dataclasses import replace

from progress.state.report import JobPhase, Observed, Subject
from progress.state.tables_report import reason_of, summed_up
from tests.tables_reports import tables_report
from vnode_backfill.words.errors import BackfillError

SUBJECT = Subject("shop", "several tables", "delta:/lake")


def test_rows_are_added_up_and_the_worst_lag_and_age_count() -> None:
    whole = tables_report(12)
    assert whole.rows == sum(part.rows for part in whole.parts.values())
    assert whole.ranges_total == sum(part.ranges_total for part in whole.parts.values())
    assert whole.observed.lake_age_seconds == max(part.observed.lake_age_seconds or 0 for part in whole.parts.values())
    assert (whole.phase, whole.failure) == (JobPhase.SNAPSHOT, None)


def test_the_log_is_applied_as_far_as_for_the_table_that_is_least_far() -> None:
    found = tables_report(3).parts
    places = {"shop.table_000": (9, "b:9"), "shop.table_001": (3, "b:3"), "shop.table_002": (5, "b:5")}
    parts = {
        name: replace(part, written="b:9", applied=places[name][1], places=((1, 9), (1, places[name][0])))
        for name, part in found.items()
    }
    whole = summed_up(SUBJECT, parts, {}, Observed())
    assert (whole.written, whole.applied) == ("b:9", "b:3")
    failed = {**parts, "shop.table_001": replace(parts["shop.table_001"], phase=JobPhase.FAILED)}
    assert summed_up(SUBJECT, failed, {}, Observed()).applied == "b:5"
    assert summed_up(SUBJECT, {}, {}, Observed()).applied is None


def test_tables_are_listed_largest_first_and_those_set_aside_last() -> None:
    tables = tables_report(12).tables
    sizes = [table.estimated_rows for table in tables[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert (tables[-1].name, tables[-1].phase) == ("shop.audit", "set aside")


def test_table_set_aside_is_in_no_sum_and_says_how_far_it_was() -> None:
    parts = tables_report(3).parts
    whole = summed_up(SUBJECT, parts, {"shop.table_001": "its new copy is refused"}, Observed())
    assert whole.rows == sum(part.rows for name, part in parts.items() if name != "shop.table_001")
    line = whole.tables[-1]
    known = parts["shop.table_001"]
    assert (line.phase, line.error, line.rows, line.applied) == (
        "set aside", "its new copy is refused", known.rows, known.applied,
    )  # fmt: skip


def test_job_is_as_far_as_the_table_that_is_least_far_and_live_beside_a_failed_one() -> None:
    parts = {name: part for name, part in tables_report(6).parts.items() if part.phase is not JobPhase.SNAPSHOT}
    assert {part.phase for part in parts.values()} == {JobPhase.LIVE, JobPhase.FAILED}
    assert summed_up(SUBJECT, parts, {}, Observed()).phase is JobPhase.LIVE
    paused = replace(next(iter(parts.values())), phase=JobPhase.PAUSED)
    assert summed_up(SUBJECT, {**parts, "shop.z": paused}, {}, Observed()).phase is JobPhase.PAUSED


def test_reason_is_the_finding_that_refuses_the_table() -> None:
    detail = "\nok  table.engine  InnoDB\nrefused  table.key  it has no key\n   fix: add one"
    assert reason_of(BackfillError("1 of 3 checks refuse it", detail=detail)) == "it has no key"
    assert reason_of(BackfillError("the target is gone", detail="No such folder.")) == "the target is gone"
