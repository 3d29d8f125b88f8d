"""A JVM of Spark's uses the classes that were kept for it."""

from __future__ import annotations

import subprocess
import sys

START = """
from pathlib import Path
from pyspark import SparkConf, SparkContext
from vnode_backfill.spark.class_archive import with_kept_classes
from vnode_backfill.spark.session import LOCAL_JVM, start_jvm

start_jvm(SparkConf().setMaster("local[1]").set("spark.driver.extraJavaOptions", with_kept_classes(LOCAL_JVM)))
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
"""


def run_python(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_jvm_has_the_kept_classes_in_memory() -> None:
    kept = run_python("-m", "vnode_backfill.spark.make_class_archive")
    assert kept.endswith(".jsa")
    assert kept in run_python("-c", START)
