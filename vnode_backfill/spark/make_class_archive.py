"""`python -m vnode_backfill.spark.make_class_archive`: keep the classes that Spark's JVM loads, so that jobs start
sooner.

A JVM runs one task as a job's does and writes what it has loaded when it ends. A second call only looks whether that is
there. Where it cannot be made jobs start without it, so that is said and is no failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from vnode_backfill.spark.class_archive import QUIET, archive_path, find_java, may_be_used
from vnode_backfill.spark.jvm_settings import LOCAL_SETTINGS
from vnode_backfill.spark.session import LOCAL_JVM, SETTINGS, start_jvm

_PATIENCE_SECONDS = 300


def main() -> int:
    path = archive_path()
    if path is not None and (may_be_used(path) or _made(path)):
        print(path)
    else:
        print("the classes of Spark's JVM are not kept; jobs load them anew", file=sys.stderr)
    return 0


def _made(path: Path) -> bool:
    _make_folder(path.parent)
    unfinished = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        _load_classes(f"-XX:ArchiveClassesAtExit={unfinished}")
        if not _is_whole(unfinished):
            return False
        unfinished.chmod(0o644)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return may_be_used(path)


def _make_folder(folder: Path) -> None:
    """One that others cannot write to, whatever the user's mask says."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)


def _is_whole(unfinished: Path) -> bool:
    """Tried out, and on the disk: a JVM dies of a file that was cut off."""
    java = find_java()
    if java is None or not unfinished.is_file():
        return False
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    words = [java, f"-XX:SharedArchiveFile={unfinished}", *QUIET.split(), "-version"]
    return subprocess.run(words, cwd=unfinished.parent, capture_output=True, check=False).returncode == 0


def _load_classes(option: str) -> None:
    """Start Spark as a job does, run a task of Python, and end the JVM in order.

    A job needs no SQL. Its classes are kept all the same, for whoever makes a session of the same Spark.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setMaster("local[2]").setAppName("classes").setAll([*SETTINGS.items(), *LOCAL_SETTINGS.items()])
    conf.set("spark.driver.extraJavaOptions", f"{LOCAL_JVM} {option} {QUIET}")
    start_jvm(conf)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    spark = session.sparkContext
    spark.setJobGroup("classes", "as a job names its own", interruptOnCancel=True)
    spark.parallelize([0, 1], 2).map(abs).collect()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None, "a session was there"
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
