"""Reads the lake as it is after the stretch, beside a compacted copy of it: Spark, polars and deltalake, in turns.

`python -m benchmarks.live.read_back --lake FOLDER --rounds 5` prints one line of JSON. The copy is the folder itself,
copied, joined by Spark's OPTIMIZE and freed of vectors by REORG. Each reader opens the table and sums three columns.
All readers must find the same count and sum in both. A first round is not counted: it pays for compiled code and files
that are not in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import polars
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from devkit.spark import local_spark

Answer = tuple[int, int]
"""How many keys there are, and their sum."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Seconds of one reader, round by round: of the lake as the job left it, and of the compacted copy."""

    reader: str
    left: tuple[float, ...]
    compacted: tuple[float, ...]


def compare(spark: SparkSession, lake: Path, compacted: Path, rounds: int) -> list[ReadBack]:
    """Every reader on both tables in turns; raises if one of them finds something else than the others."""
    readers: dict[str, Callable[[Path], Answer]] = {
        "Spark": lambda path: by_spark(spark, path),
        "polars": by_polars,
        "deltalake": by_deltalake,
    }
    expected = by_spark(spark, lake)
    found = []
    for name, read in readers.items():
        pairs = [[_timed(read, path, expected) for path in (lake, compacted)] for _ in range(1 + rounds)][1:]
        found.append(ReadBack(name, tuple(left for left, _ in pairs), tuple(other for _, other in pairs)))
    return found


def compact_copy(spark: SparkSession, lake: Path, copy: Path) -> None:
    """A copy of the table in few files without vectors. Superseded data files, gigabytes of them, are left behind."""
    used = {Path(uri).name for uri in DeltaTable(str(lake)).file_uris()}

    def superseded(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name.endswith(".parquet") and name not in used and Path(folder) == lake]

    shutil.copytree(lake, copy, ignore=superseded)
    spark.sql(f"OPTIMIZE delta.`{copy}`")
    spark.sql(f"REORG TABLE delta.`{copy}` APPLY (PURGE)")


def by_spark(spark: SparkSession, path: Path) -> Answer:
    (row,) = spark.sql(f"SELECT COUNT(id), SUM(id), SUM(amount), SUM(score) FROM delta.`{path}`").collect()
    return int(row[0]), int(row[1])


def by_polars(path: Path) -> Answer:
    column = polars.col
    sums = column("id").cast(polars.Int64).sum(), column("amount").sum(), column("score").sum()
    found = polars.scan_delta(str(path)).select(column("id").count().alias("rows"), *sums).collect()
    return int(found["rows"][0]), int(found["id"][0])


def by_deltalake(path: Path) -> Answer:
    query = "SELECT COUNT(id) AS rows, SUM(id) AS keys, SUM(amount), SUM(score) FROM lake"
    found = QueryBuilder().register("lake", DeltaTable(str(path))).execute(query).read_all()
    return int(found.column("rows")[0].as_py()), int(found.column("keys")[0].as_py())


def _timed(read: Callable[[Path], Answer], path: Path, expected: Answer) -> float:
    began = time.monotonic()
    found = read(path)
    seconds = time.monotonic() - began
    if found != expected:
        raise ValueError(f"{path} holds {expected} as count and sum of its keys, a reader found {found}")
    return seconds


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="the lake beside a compacted copy of it")
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args(argv)
    copy = arguments.lake.with_name("compacted")
    # The compiler at its full strength: this JVM sees the rows.
    options = {"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": "-Duser.timezone=UTC"}
    spark = local_spark(f"local[{os.cpu_count() or 1}]", conf=options)
    compact_copy(spark, arguments.lake, copy)
    found = compare(spark, arguments.lake, copy, arguments.rounds)
    spark.stop()
    print(json.dumps([asdict(each) for each in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
