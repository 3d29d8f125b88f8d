"""Which changes of a parent may have changed rows of its child outside the log."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from consume_upstream.log.batch import LogBatch
from consume_upstream.log.cascade import CascadingParent, together
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition

COLUMNS = tuple(Column.parse(name, "int", nullable=True, charset="", collation="") for name in ("id", "code", "name"))
PARENT = TableDefinition("shop", "parent", COLUMNS, ("id",))
Row = tuple[int | None, ...]
NOTHING: Row = (None, None, None)
INSERTED = (ChangeOp.INSERT, NOTHING, (1, 1, 1))
DELETED = (ChangeOp.DELETE, (1, 1, 1), NOTHING)
RENAMED = (ChangeOp.UPDATE, (1, 1, 1), (1, 1, 2))
MOVED = (ChangeOp.UPDATE, (1, 1, 1), (1, 2, 1))
EMPTIED = (ChangeOp.UPDATE, (1, 1, 1), (1, None, 1))
UNKNOWN = (ChangeOp.UPDATE, (1, None, 1), (1, None, 2))


def batch(*changes: tuple[ChangeOp, Row, Row]) -> LogBatch:
    def images(of: int) -> pa.RecordBatch:
        rows = [change[of] for change in changes]
        columns = [pa.array([row[place] for row in rows], pa.int32()) for place in range(3)]  # type: ignore[index]
        return pa.RecordBatch.from_arrays(columns, names=["id", "code", "name"])

    count = len(changes)
    return LogBatch(
        3, np.array([change[0] for change in changes], np.int8), np.arange(100, 100 + count, dtype=np.uint64),
        np.zeros(count, np.uint32), np.zeros(count, np.uint32), images(1), images(2), (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "position"),
    [
        ([INSERTED, RENAMED, UNKNOWN], None),
        ([], None),
        ([DELETED], 100),
        ([MOVED, INSERTED], 100),
        ([INSERTED, EMPTIED], 101),
        ([DELETED, RENAMED, MOVED, RENAMED], 102),
    ],
)
def test_deletes_and_changes_of_what_children_refer_to_are_found(
    changes: list[tuple[ChangeOp, Row, Row]], position: int | None
) -> None:
    assert CascadingParent(PARENT, on_delete=True, on_update=("code",)).last_cascade(batch(*changes)) == position


def test_rules_that_a_key_does_not_have_do_not_count() -> None:
    assert CascadingParent(PARENT, on_delete=False, on_update=("code",)).last_cascade(batch(DELETED)) is None
    assert CascadingParent(PARENT, on_delete=True).last_cascade(batch(MOVED)) is None


def test_an_update_counts_where_a_column_is_not_known() -> None:
    """Another definition: the column was renamed, or the reader has another version of the table."""
    assert CascadingParent(PARENT, on_delete=False, on_update=("gone",)).last_cascade(batch(RENAMED)) == 100
    shorter = TableDefinition("shop", "parent", COLUMNS[:1], ("id",))
    assert CascadingParent(shorter, on_delete=False, on_update=("code",)).last_cascade(batch(RENAMED)) == 100


@pytest.mark.parametrize(
    ("column_type", "arrow", "before", "after", "counts"),
    [
        ("date", pa.date32(), None, None, True),
        ("datetime", pa.timestamp("us"), None, None, True),
        ("varchar(9)", pa.string(), None, None, False),
        ("varchar(9)", pa.string(), "a", "A", True),
        ("varchar(9)", pa.string(), "", "", False),
        ("enum('','a')", pa.string(), "", "", True),
        ("enum('','a')", pa.string(), "a", "a", False),
        ("double", pa.float64(), 0.0, -0.0, True),
        ("double", pa.float64(), 1.5, 1.5, False),
        ("float", pa.float32(), None, None, False),
        ("decimal(5,2)", pa.decimal128(5, 2), Decimal("1.00"), Decimal("1.00"), False),
        ("binary(2)", pa.binary(), b"ab", b"ac", True),
    ],
)
def test_values_that_only_look_the_same_count_as_another(
    column_type: str, arrow: pa.DataType, before: object, after: object, counts: bool
) -> None:
    """Days that are not in the calendar are NULL, a wrong label has no characters, minus zero equals zero."""
    column = Column.parse("code", column_type, nullable=True, charset="utf8mb4", collation="utf8mb4_bin")
    images = [pa.RecordBatch.from_arrays([pa.array([value], arrow)], names=["code"]) for value in (before, after)]
    rows = replace(batch(RENAMED), before=images[0], after=images[1])
    parent = CascadingParent(TableDefinition("shop", "parent", (column,), ("code",)), False, ("code",))
    assert (parent.last_cascade(rows) is not None) is counts


def test_parents_of_two_lists_have_the_rules_of_both_and_the_first_definition() -> None:
    other = TableDefinition("shop", "parent", COLUMNS[:2], ("id",))
    another = CascadingParent(TableDefinition("crm", "parent", COLUMNS, ("id",)), on_delete=True)
    stored = CascadingParent(PARENT, on_delete=True, on_update=("id",))
    now = CascadingParent(other, on_delete=False, on_update=("code",))
    assert together((stored,), (now, another)) == (another, CascadingParent(PARENT, True, ("code", "id")))
    assert together((stored,), ()) == together((), (stored,)) == (stored,)


def test_a_parent_is_stored_and_read_back() -> None:
    parent = CascadingParent(PARENT, on_delete=True, on_update=("code", "id"))
    assert CascadingParent.from_json(json.loads(json.dumps(parent.to_json()))) == parent
