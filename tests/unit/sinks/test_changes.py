"""Changes in memory are in the order of keys and numbered, however they come, and are found by the bounds of a file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from vnode_backfill.delta.files import DataFile
from vnode_backfill.sinks.changes import INDEX, MemoryChanges, upserts
from vnode_backfill.words.change import OP, ChangeOp

KEYS = [1, 3, 4, 7, 9]


def changes(keys: list[int]) -> MemoryChanges:
    columns = {"id": pa.array(keys, pa.int32()), OP: pa.array([int(ChangeOp.UPDATE)] * len(keys), pa.int8())}
    return MemoryChanges(pa.table(columns), ["id"])


@pytest.mark.parametrize("keys", [KEYS, KEYS[::-1], [4, 1, 9, 3, 7]], ids=["in order", "backwards", "mixed"])
def test_changes_are_in_the_order_of_keys(keys: list[int]) -> None:
    (part,) = changes(keys).parts()
    assert part.load().column("id").to_pylist() == KEYS
    assert part.load().column(INDEX).to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(3, 7, [3, 4, 7]), (0, 2, [1]), (5, 6, []), (9, 12, [9]), (None, None, KEYS)]
)
def test_file_meets_the_changes_within_its_bounds(low: int | None, high: int | None, expected: list[int]) -> None:
    file = DataFile("f", 1, 1, (low,), (high,))
    found = changes([9, 1, 7, 3, 4]).within(file)
    assert ([] if found is None else found.load().column("id").to_pylist()) == expected


def test_deletes_leave_no_row_behind() -> None:
    operations = pa.array([int(ChangeOp.INSERT), int(ChangeOp.DELETE)], pa.int8())
    table = pa.table({"id": [1, 2], OP: operations})
    assert upserts(table, ChangeOp.DELETE).column("id").to_pylist() == [1]
    assert upserts(table.slice(0, 1), ChangeOp.DELETE).column("id").to_pylist() == [1]
    assert upserts(table.slice(0, 0), ChangeOp.DELETE).num_rows == 0
