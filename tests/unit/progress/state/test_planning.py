"""A plan that was begun is continued only where the copy that comes of it is exact."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset
from progress.state.planning import BegunPlan, why_not_continued
from tests.tables import table_of
from vnode_backfill.words.key_range import Bound, bound_of
from vnode_backfill.words.partitioning import NOT_KNOWN
from vnode_backfill.words.plan import Cuts, TableFacts

TABLE = table_of({"tenant": "int", "name": "varbinary(20)", "v": "int"}, "tenant", "name")
PARENTS = (CascadingParent(replace(TABLE, table="parent"), on_delete=True, on_update=("tenant",)),)
SINCE = datetime(2026, 11, 18, 1, tzinfo=UTC)


def at(tenant: int) -> Bound:
    return bound_of(TABLE.key_parts, (tenant, b"a"))


def begun(*tenants: int) -> BegunPlan:
    """Settled ranges of 100 rows each between these tenants, of a table of 1,000 rows from 1 to 10."""
    low = TableFacts(TABLE.key_parts, at(1), at(10), 1_000, 50)
    bounds = (*((at(tenant), 100) for tenant in tenants[:-1]), (at(tenants[-1]), 0))
    return BegunPlan(TABLE, 16, 100, CdcOffset.at("1", "bin.000007", 400), low, bounds, SINCE)


def test_a_plan_of_the_same_table_is_continued() -> None:
    assert why_not_continued(begun(1, 3, 4), TABLE, 16, 100, "") == ""
    assert why_not_continued(replace(begun(1, 3), parents=PARENTS), TABLE, 16, 100, "", parents=PARENTS) == ""


@pytest.mark.parametrize(("then", "now"), [((), PARENTS), (PARENTS, ())])
def test_a_plan_of_a_table_with_other_parents_begins_again(
    then: tuple[CascadingParent, ...], now: tuple[CascadingParent, ...]
) -> None:
    """A key that was dropped since may have changed rows after the first offset, and nobody would look."""
    found = why_not_continued(replace(begun(1, 3), parents=then), TABLE, 16, 100, "", parents=now)
    assert "foreign keys" in found


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (replace(TABLE, table="items"), "it is of shop.orders"),
        (table_of({"tenant": "bigint", "name": "varbinary(20)", "v": "int"}, "tenant", "name"), "was changed"),
        (table_of({"tenant": "int", "name": "varbinary(20)", "v": "bigint"}, "tenant", "name"), "was changed"),
        (table_of({"tenant": "int", "name": "varbinary(20)", "v": "int"}, "name", "tenant"), "was changed"),
        (replace(TABLE, partitioning=NOT_KNOWN), "other partitions"),
        (replace(TABLE, primary=True), "another primary key"),
    ],
)
def test_a_plan_of_another_table_begins_again(now: object, reason: str) -> None:
    assert isinstance(now, type(TABLE))
    assert reason in why_not_continued(begun(1, 3), now, 16, 100, "")


@pytest.mark.parametrize(("vnodes", "target"), [(32, 100), (16, 200)])
def test_a_plan_for_other_ranges_begins_again(vnodes: int, target: int) -> None:
    assert "16 vnodes and ranges of 100 rows" in why_not_continued(begun(1, 3), TABLE, vnodes, target, "")


def test_a_plan_whose_log_is_gone_begins_again() -> None:
    found = why_not_continued(begun(1, 3), TABLE, 16, 100, "is no longer held by the server")
    assert found == "its first offset bin.000007:400 is no longer held by the server"


def test_progress_counts_what_is_settled_and_never_ends() -> None:
    seen = begun(1, 3, 4).progress
    assert (seen.rows, seen.estimated_rows, seen.ranges, seen.percent) == (200, 1_000, 2, 20.0)
    assert replace(seen, rows=2_000).percent == 99.99
    assert replace(seen, estimated_rows=0).percent == 99.99
    both = seen.beside(replace(seen, since=SINCE - timedelta(hours=1)))
    assert (both.rows, both.ranges, both.since) == (400, 4, SINCE - timedelta(hours=1))


def test_a_plan_is_whole_at_its_maximum() -> None:
    assert not begun(1, 3).is_whole
    assert begun(1, 3, 10).is_whole
    assert begun(1, 3).with_cuts(Cuts([(at(1), 5), (at(10), 0)])).is_whole
