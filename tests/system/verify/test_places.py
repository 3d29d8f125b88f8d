"""A comparison finds the same wherever its tasks run: in threads, in processes of their own, and in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import MariaDbServer
from tests.system.job_case import execute
from vnode_backfill.delta.storage import Storage
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.jvm import JvmWatch
from vnode_backfill.spark.session import Started, StartingSession
from vnode_backfill.verify.table import DifferenceKind, verify_table
from vnode_backfill.verify.tasks import TaskRunner
from vnode_backfill.verify.tasks_here import TasksHere
from vnode_backfill.verify.tasks_in_spark import TasksInSpark
from vnode_backfill.words.key_range import KeyRange


@contextmanager
def place(name: str, spark: SparkSession) -> Iterator[TaskRunner]:
    if name == "spark":
        started: Future[Started] = Future()
        started.set_result((spark.sparkContext, JvmWatch(spark.sparkContext, owned=False)))
        yield TasksInSpark(StartingSession(lambda: started, DaemonAhead(), owned=False))
        return
    with TasksHere(large_rows=1 if name == "processes" else 10**9) as tasks:
        yield tasks


@pytest.mark.parametrize("name", ["threads", "processes", "spark"])
def test_every_place_finds_the_same_differences(
    mariadb_server: MariaDbServer, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    database = f"places_{name}"
    execute(mariadb_server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    rows = ", ".join(f"({number}, 'name {number}')" for number in range(1, 3001))
    execute(
        mariadb_server,
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))",
        f"INSERT INTO t VALUES {rows}",
    )
    address = SourceAddress(mariadb_server.host, mariadb_server.port, mariadb_server.user, mariadb_server.password)
    table = MySqlTable.open(address, database, "t")
    with table.session() as session:
        copy = pa.Table.from_batches(session.read_range(KeyRange(None, None)))
    copy = copy.cast(pa.schema([field.with_nullable(True) for field in copy.schema]))
    changed = pa.table({"id": [7], "name": ["other"]}, copy.schema)
    for part in (copy.slice(0, 6), changed, copy.slice(7, 1500), copy.slice(1508)):
        write_deltalake(str(tmp_path), part, mode="append")
    with place(name, spark) as tasks:
        found = verify_table(tasks, table, None, Storage.of(str(tmp_path)), workers=2)
    assert [(each.kind, each.key, each.source, each.target) for each in found.differences] == [
        (DifferenceKind.DIFFERENT, (7,), "name 7", "other"),
        (DifferenceKind.MISSING, (1508,), 1, 0),
    ]
