"""What is committed here is what Spark, `deltalake` and polars read, and what they commit is replayed here."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from tests.unit.delta.delta_logs import log_at, random_log, vector
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, DeletionVector, FileReceipt, Masked
from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.log.replay import newest
from vnode_backfill.delta.parquet import FileLayout, write_files
from vnode_backfill.delta.storage import Storage
from vnode_backfill.delta.vectors import vector_path
from vnode_backfill.words.epoch import Epoch

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.timestamp("us"), "name": pa.string()})
LAYOUT = FileLayout((), ("id",), file_bytes=1 << 30)
SEEDS = (3, 17, 29, 41)
MORE_SEEDS = range(1000, 1040)
_MAGIC = 1681511377


def write_rows(storage: Storage, name: str, first: int, count: int) -> FileReceipt:
    ids = range(first, first + count)
    rows = pa.table({"id": ids, "at": [None] * count, "name": [f"n{number}" for number in ids]}, schema=SCHEMA)
    (written,) = write_files(storage, name, SCHEMA, [rows], LAYOUT)
    return written


def write_vector(storage: Storage, positions: Sequence[int]) -> DeletionVector:
    data = struct.pack("<I", _MAGIC) + BitMap64(positions).serialize()
    described = vector(uuid.uuid4(), rows=len(positions))
    made = DeletionVector(described.storage, described.place, 1, len(data), len(positions))
    path = vector_path(made)
    assert path is not None
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    storage.write_whole(path, b"\x01" + framed)
    return made


def by_spark(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(folder)).collect())


def by_deltalake(folder: Path) -> list[int]:
    found = QueryBuilder().register("t", DeltaTable(folder)).execute("SELECT id FROM t").read_all()
    return sorted(pa.table(found)["id"].to_pylist())


def by_polars(folder: Path) -> list[int]:
    found: list[int] = pl.scan_delta(str(folder)).select("id").collect()["id"].to_list()
    return sorted(found)


def everybody_reads(spark: SparkSession, folder: Path, expected: Sequence[int]) -> None:
    assert by_spark(spark, folder) == list(expected)
    assert by_deltalake(folder) == list(expected)
    assert by_polars(folder) == list(expected)


def only_file(log: DeltaLog) -> DataFile:
    (found,) = log.files(log.open(), ("id",))
    return found


def test_a_table_of_ours_is_read_by_everybody_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    log = log_at(tmp_path / "table")
    log.create(SCHEMA, {"delta.checkpointInterval": "3"})
    everybody_reads(spark, tmp_path / "table", [])
    for epoch in range(1, 6):
        log.maintain(
            log.commit(log.open(), "append", Epoch(epoch), [write_rows(log.storage, f"e{epoch}", epoch * 10, 3)])
        )
    log.remove(log.open(), [file for file in log.files(log.open(), ("id",)) if file.low == (20,)])
    expected = [n for start in (10, 30, 40, 50) for n in range(start, start + 3)]
    everybody_reads(spark, tmp_path / "table", expected)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'table'}`").collect()
    assert [row.operation for row in history] == ["WRITE"] * 6 + ["CREATE TABLE"]


def test_vectors_of_ours_are_read_by_everybody_also_after_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    log = log_at(tmp_path / "table")
    features = frozenset({"deletionVectors"})
    log.create(SCHEMA, {"delta.enableDeletionVectors": "true"}, features=features)
    log.commit(log.open(), "append", Epoch(1), [write_rows(log.storage, "a", 0, 10)])
    for epoch, gone in ((1, [2]), (2, [2, 5, 9])):
        masked = [Masked(only_file(log), write_vector(log.storage, gone))]
        log.commit(log.open(), "merge", Epoch(epoch), [], masked=masked)
        everybody_reads(spark, tmp_path / "table", [n for n in range(10) if n not in gone])
    DeltaTable(tmp_path / "table").create_checkpoint()
    for commit in (tmp_path / "table" / LOG).glob("*.json"):
        if int(commit.stem) < 3:
            commit.unlink()
    everybody_reads(spark, tmp_path / "table", [0, 1, 3, 4, 6, 7, 8])
    log.remove(log_at(tmp_path / "table").open(), [only_file(log)])
    everybody_reads(spark, tmp_path / "table", [])


def test_what_spark_does_to_a_table_of_ours_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    log = log_at(tmp_path / "table")
    log.create(SCHEMA, {"delta.enableDeletionVectors": "true"}, features=frozenset({"deletionVectors"}))
    name = f"delta.`{tmp_path / 'table'}`"
    for epoch in range(1, 4):
        log.commit(log.open(), "append", Epoch(epoch), [write_rows(log.storage, f"e{epoch}", epoch * 100, 50)])
    for statement in (
        f"DELETE FROM {name} WHERE id % 7 = 0",
        f"UPDATE {name} SET name = 'x' WHERE id % 11 = 0",
        f"OPTIMIZE {name}",
        f"INSERT INTO {name} VALUES (1, NULL, 'spark')",
        f"REORG TABLE {name} APPLY (PURGE)",
    ):
        spark.sql(statement)
        found, fresh = log.open(), log_at(tmp_path / "table").open()
        files = {str(tmp_path / "table" / file.path) for file in log.files(found, ())}
        assert files == set(DeltaTable(tmp_path / "table").file_uris())
        assert set(found.files) == set(fresh.files)
        live = sum(file.live_rows or 0 for file in log.files(found, ()))
        assert live == spark.read.format("delta").load(str(tmp_path / "table")).count()
    assert log.landed(log.open(), "append", Epoch(3))
    assert log.sweep(timedelta(hours=1)) == []
    everybody_reads(spark, tmp_path / "table", by_deltalake(tmp_path / "table"))


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(each, marks=pytest.mark.long) for each in MORE_SEEDS)])
def test_random_logs_have_the_files_that_spark_finds(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    made = random_log(tmp_path / "table", seed)
    for _ in range(20):
        made.grow()
        if made.random.random() < 0.2:
            made.checkpoint()
    found = newest(Storage.of(str(made.folder)), None)
    assert found is not None
    expected = {Path(name).name for name in spark.read.format("delta").load(str(made.folder)).inputFiles()}
    assert {Path(file.path).name for file in found.files.values()} == expected
