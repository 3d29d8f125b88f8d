"""Deletion vectors that Spark wrote name exactly the rows that it deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.parquet import read_columns
from vnode_backfill.delta.storage import Storage
from vnode_backfill.delta.vectors import read_vector

ROWS = 20_000
SCHEMA = pa.schema([("id", pa.int64())])


def deleted(number: int) -> bool:
    return number % 7 == 3 or 5_000 <= number < 9_000


def test_rows_deleted_by_spark_are_read_from_its_vectors(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.range(ROWS).repartition(3).write.format("delta").mode("append").save(str(path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 7 = 3")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id >= 5000 AND id < 9000")
    storage, vectors = Storage.of(str(path)), newest_vectors(path)
    assert len(vectors) == 3
    for file, vector in vectors.items():
        ids = read_columns(storage, file, SCHEMA).column("id").to_pylist()
        gone = read_vector(storage, vector)
        assert gone.positions.tolist() == [place for place, number in enumerate(ids) if deleted(number)]
        left = read_columns(storage, file, SCHEMA, gone=gone).column("id").to_pylist()
        assert left == [number for number in ids if not deleted(number)]


def newest_vectors(path: Path) -> dict[str, DeletionVector]:
    """The vector of each file in the newest commit."""
    newest = max((path / "_delta_log").glob("*.json"))
    adds = [json.loads(line)["add"] for line in newest.read_text().splitlines() if line.startswith('{"add"')]
    return {add["path"]: DeletionVector.from_action(add["deletionVector"]) for add in adds}
