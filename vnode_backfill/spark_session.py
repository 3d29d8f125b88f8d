"""The Spark session a job runs in, with what Delta and the protocol need, and never against what spark-submit said.

A master given by spark-submit is kept. Without one the job runs locally, with a task slot for each worker, each log reader and the
merge: fewer slots would make the log wait for the snapshot. Jars: those the user named, else those a set-up script has fetched
into the cache folder, else Spark fetches them itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from vnode_backfill.config import Config
from vnode_backfill.config_values import reveal

DELTA_PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
_JARS_IN_CACHE = "vnode-backfill/jars-4.4.0-*/*.jar"
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.showConsoleProgress": "false",
    # The Delta log of one table is small: the default of 50 partitions would cost seconds at every commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_TASK_DAEMON = "vnode_backfill.task_daemon"
_FORCED = {
    # A task that runs twice at the same time would hold two connections for one worker and write files twice.
    "spark.speculation": "false",
}


def task_slots(config: Config) -> int:
    """What the three actors need at the same time."""
    return config.workers + config.limits.log_readers + 1


def open_session(config: Config, master: str | None, *, quiet: bool) -> SparkSession:
    """The session of this process; `master` is ignored where spark-submit has given one."""
    if _submitted():
        # What spark-submit was told is in its JVM: before the connection to it a SparkConf is empty and hides it.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    for name, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(_shuffle_partitions(config))}.items():
        conf.setIfMissing(name, value)
    if not conf.contains("spark.master"):
        conf.setMaster(master or f"local[{max(task_slots(config), os.cpu_count() or 1)}]")
    conf.setIfMissing("spark.app.name", f"vnode-backfill {config.job}")
    for name, value in {**reveal(config.spark), **_FORCED}.items():
        conf.set(name, value)
    if not conf.contains("spark.jars") and not conf.contains("spark.jars.packages"):
        _add_jars(conf)
    if conf.get("spark.master", "").startswith("local") and not _submitted():
        conf.setIfMissing("spark.python.daemon.module", _TASK_DAEMON)
    with _jvm_noise(aside=quiet and not _submitted()):
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _submitted() -> bool:
    """Whether spark-submit has started the JVM, with a search path of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _jvm_noise(*, aside: bool) -> Iterator[None]:
    """Send what the JVM writes to stderr to a file: its greetings would tear the progress display apart."""
    if not aside:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.NamedTemporaryFile(prefix="vnode-backfill-spark-", suffix=".log", delete=False) as log:
        try:
            os.dup2(log.fileno(), 2)
            yield
        except Exception:
            os.dup2(own, 2)
            sys.stderr.write(Path(log.name).read_text(errors="replace")[-4000:])
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
    Path(log.name).unlink()


def _shuffle_partitions(config: Config) -> int:
    return max(2, min(config.workers, 200))


def _add_jars(conf: SparkConf) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = sorted(str(jar) for jar in cache.glob(_JARS_IN_CACHE))
    if jars:
        conf.set("spark.jars", ",".join(jars))
    else:
        conf.set("spark.jars.packages", DELTA_PACKAGE)
