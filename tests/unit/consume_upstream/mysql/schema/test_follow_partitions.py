"""The partitions after a statement are known only if nothing later can have changed them."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.schema.follow_partitions import partitions_after
from consume_upstream.mysql.statements.table_actions import (
    ColumnRenamed,
    Nothing,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableGone,
)
from vnode_backfill.words.partitioning import NOT_KNOWN, Partition, Partitioning

Actions = tuple[TableAction, ...]
DROP_1: Actions = (PartitionsEmptied("drop", ("P1",)),)
ADD_3: Actions = (Repartitioned((), ("p3",)),)
DROP_3: Actions = (PartitionsEmptied("drop", ("p3",)),)


def by_range(**uppers: str | None) -> Partitioning:
    return Partitioning("RANGE", "`k`", tuple(Partition(name, upper) for name, upper in uppers.items()))


BEFORE, NOW = by_range(p1="10", p2="20"), by_range(p2="20", p3="30")
FOLLOWED = [
    ([ADD_3], by_range(p1="10", p2="20", p3="30"), by_range(p1="10", p2="20", p3="30")),
    ([ADD_3, DROP_1], NOW, by_range(p1="10", p2="20", p3="30")),
    ([DROP_1, ADD_3], NOW, by_range(p2="20")),
    ([ADD_3, DROP_3], BEFORE, by_range(p1="10", p2="20", p3=None)),
    ([ADD_3, DROP_3, ADD_3], NOW, by_range(p1="10", p2="20", p3=None)),
    ([(Repartitioned(("p1", "p2"), ("a", "b")),), ADD_3], by_range(a="5", b="20", p3="30"), by_range(a="5", b="20")),
    ([(Repartitioned(("p2",), ("p2", "c")),), DROP_1], by_range(p2="15", c="20"), by_range(p1="10", p2="15", c="20")),
    ([ADD_3, (Repartitioned(),)], NOW, by_range(p1="10", p2="20", p3=None)),
    ([ADD_3, DROP_1], None, by_range(p1="10", p2="20", p3=None)),
    ([ADD_3, DROP_1], Partitioning("LIST", "`k`", NOW.partitions), by_range(p1="10", p2="20", p3=None)),
    ([(Repartitioned(),), DROP_1], NOW, NOT_KNOWN),
    ([(PartitionsEmptied("drop", ("p9",)),), ADD_3], NOW, NOT_KNOWN),
    ([(Repartitioned((), ("p1",)),), ADD_3], NOW, NOT_KNOWN),
    ([(Repartitioned(),)], None, NOT_KNOWN),
    ([(ColumnRenamed("k", "l"),)], Partitioning("RANGE", "`l`"), Partitioning("RANGE", "`l`")),
    ([ADD_3, (TableGone("dropped"),)], None, by_range(p1="10", p2="20", p3=None)),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "now", "after"), FOLLOWED)
def test_partitions_after_the_first_statement(
    statements: list[Actions], now: Partitioning | None, after: Partitioning
) -> None:
    assert partitions_after(BEFORE, statements, now) == after


@pytest.mark.parametrize("first", [(Nothing("x"),), (), (PartitionsEmptied("truncate", ("p1",)),)])
def test_statement_that_leaves_partitions_alone_says_nothing_of_them(first: Actions) -> None:
    assert partitions_after(BEFORE, [first, DROP_1], NOW) is None


def test_job_that_knew_no_partitions_learns_them() -> None:
    assert partitions_after(None, [ADD_3], NOW) == NOW
    assert partitions_after(None, [ADD_3, DROP_1], NOW) == NOT_KNOWN
