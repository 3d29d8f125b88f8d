"""Starts a local Spark with Delta from the cache, sized for a machine that does other things too."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from devkit.fetch import fetch_jars
from vnode_backfill.spark.class_archive import with_kept_classes

REPOSITORY = Path(__file__).resolve().parent.parent


def spark_conf(jars: Sequence[Path]) -> Mapping[str, str]:
    """What every local session sets; `jars` from `fetch_jars()`.

    Delta's defaults are for large clusters: 50 snapshot partitions and 200 shuffle partitions make each commit on a
    small machine cost seconds.
    """
    return {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": with_kept_classes(
            "-Duser.timezone=UTC -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
    }


def local_spark(
    master: str = "local[4]", *, conf: Mapping[str, str] | None = None, warehouse: Path | None = None
) -> SparkSession:
    """A session on this machine; `conf` overrides. The JVM ends with the process that asked for it."""
    # Workers must run this interpreter and find devkit and tests, which are not installed.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(REPOSITORY), *_python_path()]))
    builder = SparkSession.builder.master(master).appName("vnode-backfill-local")
    if warehouse is not None:
        builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
    for name, value in {**spark_conf(fetch_jars()), **(conf or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
