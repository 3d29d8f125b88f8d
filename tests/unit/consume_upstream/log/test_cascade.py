"""Which changes of a parent may have changed rows of its child outside the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from consume_upstream.log.batch import LogBatch
from consume_upstream.log.cascade import CascadingParent
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
