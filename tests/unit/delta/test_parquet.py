"""Files are written with the columns that they must have, and nothing is taken that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vnode_backfill.delta.parquet import FileLayout, as_schema, write_files
from vnode_backfill.delta.storage import Storage

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def test_rows_that_have_the_schema_are_taken_as_they_are_and_others_are_cast() -> None:
    rows = pa.table({"id": [1], "note": ["a"]}, schema=SCHEMA)
    assert as_schema(rows, SCHEMA) == rows
    other = pa.table({"note": ["a"], "id": pa.array([1], pa.int16()), "more": [0]})
    assert as_schema(other, SCHEMA) == rows


@pytest.mark.parametrize("declared", [True, False], ids=["as it must be", "as it is"])
def test_a_null_where_none_may_be_is_refused(declared: bool) -> None:
    """Also where the rows say of themselves that they have none."""
    kind = pa.field("id", pa.int64(), nullable=not declared)
    rows = pa.table([pa.array([1, None], pa.int64()), ["a", "b"]], schema=pa.schema([kind, ("note", pa.string())]))
    with pytest.raises(ValueError, match="non-nullable"):
        as_schema(rows, SCHEMA)


@pytest.mark.parametrize("rows", [3, 40_000], ids=["packed in haste", "packed well"])
def test_a_temporary_file_has_no_more_bounds_than_are_asked_for(tmp_path: Path, rows: int) -> None:
    table = pa.table({"id": range(rows), "note": ["x"] * rows}, schema=SCHEMA)
    layout = FileLayout((), ("id",), 1 << 30, temporary=True)
    (receipt,) = write_files(Storage.of(str(tmp_path)), "f", SCHEMA, [table], layout)
    assert pq.read_table(tmp_path / receipt.path) == table
    said = json.loads(receipt.stats)
    assert (said["minValues"], said["maxValues"]) == ({"id": 0}, {"id": rows - 1})
    group = pq.ParquetFile(tmp_path / receipt.path).metadata.row_group(0)
    assert (group.column(0).is_stats_set, group.column(1).is_stats_set) == (True, False)
    assert group.column(0).compression == ("SNAPPY" if rows == 3 else "ZSTD")
