"""Readers of a target with deletion vectors, as docs/readers.md says; what Spark does to the table is right here, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from devkit.lake import read_lake
from tests.tables import ORDERS, Change, Row, batch, change_table, in_order, order, plan
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch

PLAN = plan(ORDERS, (0,), (1000,), (2000,))
INSERT, UPDATE, DELETE = ChangeOp


@dataclass
class Lake:
    """A target made by the sink, and the rows that it must hold."""

    path: Path
    rows: dict[int, Row] = field(default_factory=dict)
    epoch: int = 1

    def __post_init__(self) -> None:
        self.sink = DeltaSink(str(self.path), ORDERS, "job", creates=MergeMode.VECTORS)
        self.sink.prepare()
        self.rows = {number: order(number) for number in range(2000)}
        receipts = [
            self.sink.writer().write(Epoch(1), part, 0, [batch(ORDERS, [order(n) for n in range(low, low + 1000)])])
            for part, low in enumerate((0, 1000))
        ]
        self.sink.commit_reads(Epoch(1), receipts, [], PLAN)

    def merge(self) -> None:
        """Update, delete and insert a few rows, those of earlier merges among them."""
        self.epoch += 1
        first = 7 * self.epoch
        updated = {number: order(number, f"epoch {self.epoch}") for number in range(first, 2000, 101)}
        deleted = [number for number in range(first + 3, 2000, 203) if number in self.rows]
        new = 5000 + self.epoch
        wanted: list[Change] = [
            *(
                (UPDATE if number in self.rows else INSERT, place, row)
                for place, (number, row) in enumerate(updated.items())
            ),
            *((DELETE, 500 + place, self.rows[number]) for place, number in enumerate(deleted)),
            (INSERT, 900, order(new)),
        ]
        table = change_table(ORDERS, wanted).drop_columns(list(OFFSET_COLUMNS))
        self.sink.apply(Epoch(self.epoch), MemoryChanges(table, ORDERS.key))
        self.rows = {**{n: row for n, row in self.rows.items() if n not in deleted}, **updated, new: order(new)}

    @property
    def expected(self) -> list[Row]:
        return in_order(self.rows.values())

    @property
    def vectors(self) -> int:
        return sum(file.vector is not None for file in self.sink._log.files(self.sink._log.open(), ()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "target")
    made.merge()
    made.merge()
    assert made.vectors
    return made


def by_spark(spark: SparkSession, path: Path) -> list[Row]:
    return in_order(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


def by_deltalake(path: Path) -> list[Row]:
    return in_order(tuple(row.values()) for row in read_lake(path).to_pylist())


def by_polars(path: Path) -> list[Row]:
    return in_order(polars.scan_delta(str(path)).collect().rows())


def test_readers_that_know_vectors_are_exact_and_the_others_refuse(spark: SparkSession, lake: Lake) -> None:
    for read in (by_deltalake, by_polars, lambda path: by_spark(spark, path)):
        assert read(lake.path) == lake.expected
    table = DeltaTable(str(lake.path))
    refusing: list[Callable[[], object]] = [table.to_pyarrow_table, table.to_pyarrow_dataset, table.to_pandas]
    for refused in refusing:
        with pytest.raises(DeltaProtocolError):
            refused()
    assert table.count() > len(lake.rows), "it counts deleted rows: docs/readers.md says so"


def test_what_spark_does_to_the_table_is_kept_by_the_sink(spark: SparkSession, lake: Lake) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    name = f"delta.`{lake.path}`"
    del lake.rows[11]
    for statement in (
        f"MERGE INTO {name} t USING (SELECT 11L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        f"OPTIMIZE {name}",
        f"VACUUM {name} RETAIN 0 HOURS",
        f"REORG TABLE {name} APPLY (PURGE)",
    ):
        spark.sql(statement)
        lake.merge()
        assert by_deltalake(lake.path) == lake.expected, statement
        assert by_polars(lake.path) == lake.expected, statement
    assert by_spark(spark, lake.path) == lake.expected


def test_after_rewrite_every_reader_reads_the_newest_version(spark: SparkSession, lake: Lake) -> None:
    before = DeltaTable(str(lake.path)).version()
    old = lake.expected
    while lake.sink.fold_vectors() is not None:
        pass
    assert lake.sink.drop_vectors()
    plain = in_order(tuple(row.values()) for row in DeltaTable(str(lake.path)).to_pyarrow_table().to_pylist())
    assert plain == by_spark(spark, lake.path) == by_polars(lake.path) == by_deltalake(lake.path) == lake.expected
    lake.merge()
    assert DeltaTable(str(lake.path)).to_pyarrow_table().num_rows == DeltaTable(str(lake.path)).count()
    assert by_spark(spark, lake.path) == lake.expected
    back = spark.read.format("delta").option("versionAsOf", before).load(str(lake.path)).collect()
    assert in_order(tuple(row) for row in back) == old
    assert lake.sink.add_vectors()
    lake.merge()
    assert lake.vectors
    assert by_spark(spark, lake.path) == by_polars(lake.path) == lake.expected
