"""A plan of one range without bounds is stored with the job, and read back the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from progress.store.rows.job_rows import JobRecord, plan_from_rows, plan_rows
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.whole_plan import WholePlan, whole_plan

KINDS = TableDefinition("shop", "kinds", (Column.parse("kind", "enum('b','a')", nullable=False),), ("kind",))


def test_plan_of_one_range_is_read_back_the_same() -> None:
    record = JobRecord.new(
        "job", KINDS, vnode_count=4, server="s", sink="delta:/x", now=datetime(2026, 1, 1, tzinfo=UTC)
    )
    plan = whole_plan(("kind",), 4, 7)
    found = plan_from_rows(record, plan_rows(plan, 0, "w"))
    assert isinstance(found, WholePlan)
    assert found == plan
    assert plan_from_rows(replace(record, vnode_count=2), plan_rows(plan, 0, "w")).vnode_count == 2
