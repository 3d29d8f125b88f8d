"""Readers of a target whose columns were changed, or whose place a new copy has taken, as docs/readers.md says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.unit.sinks.delta.shapes import ITEMS, Cells, carried, column, items, lake, merge, read
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.schema_change import (
    AddColumn,
    ColumnStep,
    DropColumn,
    RenameColumn,
    RetypeColumn,
    TableShape,
)

OLD = TableShape(ITEMS)
COLUMNS = {"id": "int", "name": "varchar(20)", "count": "int", "price": "float"}
ROWS: list[Cells] = [{"id": n, "name": f"n{n}", "count": n, "price": 0.5} for n in range(20)]
LEFT = [row for row in ROWS[1:] if row["id"] != 5]
CHANGES: dict[str, tuple[dict[str, str], Sequence[ColumnStep], Callable[[Cells], Cells]]] = {
    "add": ({**COLUMNS, "x": "int"}, [AddColumn(column("x", "int"))], lambda row: {**row, "x": None}),
    "constant": ({**COLUMNS, "x": "int"}, [AddColumn(column("x", "int"), "7")], lambda row: {**row, "x": 7}),
    "datetime": (
        {**COLUMNS, "x": "datetime(6)"}, [AddColumn(column("x", "datetime(6)"))], lambda row: {**row, "x": None},
    ),
    "rename": (
        {"id": "int", "name": "varchar(20)", "number": "int", "price": "float"}, [RenameColumn("count", "number")],
        lambda row: {"id": row["id"], "name": row["name"], "number": row["count"], "price": row["price"]},
    ),
    "widen": ({**COLUMNS, "count": "bigint"}, [RetypeColumn(column("count", "bigint"))], lambda row: row),
    "drop": (
        {"id": "int", "name": "varchar(20)", "price": "float"}, [DropColumn("count")],
        lambda row: {name: value for name, value in row.items() if name != "count"},
    ),
}  # fmt: skip


def filled(folder: Path, mode: MergeMode) -> DeltaSink:
    """Row 0 is deleted, and row 5; with vectors both by one."""
    sink = items(folder, mode)
    read(sink, 1, ITEMS, *ROWS)
    merge(sink, 2, ITEMS, delete=[ROWS[0], ROWS[5]])
    return sink


def by_spark(spark: SparkSession, folder: Path) -> list[Cells]:
    rows = spark.read.format("delta").load(str(folder / "target")).orderBy("id").collect()
    return [row.asDict() for row in rows]


def by_polars(folder: Path) -> list[Cells]:
    return [dict(row) for row in polars.scan_delta(str(folder / "target")).sort("id").collect().to_dicts()]


def assert_all_read(spark: SparkSession, folder: Path, expected: Sequence[Cells]) -> None:
    assert sorted(lake(folder), key=lambda row: int(str(row["id"]))) == expected
    assert by_polars(folder) == expected
    assert by_spark(spark, folder) == expected


@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("kind", CHANGES)
def test_readers_see_the_new_columns(spark: SparkSession, tmp_path: Path, mode: MergeMode, kind: str) -> None:
    columns, steps, becomes = CHANGES[kind]
    sink = filled(tmp_path, mode)
    shape = carried(OLD, columns, *steps, keep=False)
    sink.change(1, shape, steps)
    expected = [becomes(row) for row in LEFT]
    assert_all_read(spark, tmp_path, expected)
    merge(sink, 3, shape.definition, {**expected[0], "name": "changed"}, delete=[expected[1]])
    assert_all_read(spark, tmp_path, [{**expected[0], "name": "changed"}, *expected[2:]])


@pytest.mark.parametrize("mode", MergeMode)
def test_readers_see_a_copy_in_place_whatever_vacuums_it(spark: SparkSession, tmp_path: Path, mode: MergeMode) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    read(items(tmp_path, mode), 1, ITEMS, *ROWS)
    copy = DeltaSink(str(tmp_path / "target"), ITEMS, "new", creates=mode, key_cache=0, beside=True)
    copy.prepare()
    read(copy, 1, ITEMS, *ROWS)
    merge(copy, 2, ITEMS, delete=[ROWS[0], ROWS[5]])
    name = f"delta.`{tmp_path / 'target'}`"
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    DeltaTable(str(tmp_path / "target")).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    copy.put_in_place()
    assert_all_read(spark, tmp_path, LEFT)
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    spark.sql(f"VACUUM {name} LITE RETAIN 0 HOURS")
    DeltaTable(str(tmp_path / "target")).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert_all_read(spark, tmp_path, LEFT)
    changed = [{**LEFT[0], "name": "changed"}, *LEFT[2:]]
    merge(copy, 3, ITEMS, changed[0], delete=[LEFT[1]])
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"REORG TABLE {name} APPLY (PURGE)")
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    assert_all_read(spark, tmp_path, changed)
    merge(copy, 4, ITEMS, LEFT[1])
    assert_all_read(spark, tmp_path, [changed[0], LEFT[1], *changed[1:]])
