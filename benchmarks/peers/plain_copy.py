"""Copies a table as a user would without this product: `spark.read.jdbc → delta`, with the best partitioning known.

It runs in its own process and copies several times in one session: the first time with a JVM as cold as the job's, then
with one that has compiled the whole path already. It prints one JSON document with the moments on the machine's
monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.process_tree import TreeMeter
from devkit.fetch import fetch_jars
from devkit.spark import spark_conf
from vnode_backfill.spark.class_archive import sharing_options

FETCH_ROWS = 10_000
"""Without it the driver would read each partition's whole result into memory first."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--key-range", type=int, nargs=2, required=True, metavar=("LOW", "HIGH"))
    parser.add_argument("--partitions", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args(argv)
    session = _session(arguments.slots, arguments.memory)
    meter = TreeMeter(os.getpid())
    moments, cpu = [time.monotonic()], [meter.sample()]
    for _ in range(arguments.copies):
        shutil.rmtree(arguments.folder, ignore_errors=True)
        _copy(session, arguments)
        moments.append(time.monotonic())
        cpu.append(meter.sample())
    print(json.dumps({"moments": moments, "cpu": [asdict(used) for used in cpu]}), flush=True)
    session.stop()
    return 0


def _session(slots: int, memory: str) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{slots}]").appName("plain copy")
    # The compiler at its full strength: this JVM sees the rows. The same kept classes as the job's JVM.
    settings = {**spark_conf(fetch_jars()), "spark.driver.memory": memory}
    settings["spark.driver.extraJavaOptions"] = f"-Duser.timezone=UTC {sharing_options()}"
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _copy(session: SparkSession, arguments: argparse.Namespace) -> None:
    low, high = arguments.key_range
    options = {
        # Spark quotes names rightly for a mysql: address only; the driver accepts one with this option.
        "url": f"jdbc:mysql://127.0.0.1:{arguments.port}/{arguments.database}?permitMysqlScheme",
        "driver": "org.mariadb.jdbc.Driver",
        "user": "root",
        "password": "",
        "dbtable": arguments.table,
        "partitionColumn": "id",
        "lowerBound": str(low),
        "upperBound": str(high + 1),
        "numPartitions": str(arguments.partitions),
        "fetchsize": str(FETCH_ROWS),
    }
    frame = session.read.format("jdbc").options(**options).load()
    frame.write.format("delta").mode("overwrite").save(str(arguments.folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
