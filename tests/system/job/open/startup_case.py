"""Jobs that begin in one of the start-up modes, and share a lake and a state folder where they are halves of a handoff."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from consume_upstream.upstream_table import UpstreamTable
from devkit.comparer import Difference, compare_delta
from devkit.lake import read_lake
from devkit.mysql import SqlServer
from devkit.orders import create_orders_table, orders_table, quote
from devkit.waiting import wait_for
from tests.system.job_case import JobCase
from tests.system.live_job import LiveJob
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.job.open.source import open_table
from vnode_backfill.job.run.loop import Until

_numbers = count(1)
INSERT = "INSERT INTO {table} (id, big, amount, created, state, flag) VALUES ({key}, 1, 2.5, '2024-05-06', 'new', 3)"


@dataclass(frozen=True)
class Source:
    """The table `orders` in a database of its own, and the folder of its jobs."""

    server: SqlServer
    database: str
    folder: Path

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def execute(self, *statements: str) -> None:
        """In one session; `{table}` is the table."""
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.replace("{table}", orders_table(self.database).quoted))

    def purge_to(self, file: str) -> None:
        """Remove the files of the log before this one.

        MariaDB keeps one for a moment, until a later one says it is not needed.
        """

        def purged() -> bool:
            with self.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"PURGE BINARY LOGS TO '{file}'")
                cursor.execute("SHOW BINARY LOGS")
                return str(cursor.fetchall()[0][0]) == file

        wait_for(purged, f"the log to begin with {file}")

    def insert(self, *keys: int) -> None:
        self.execute(*(INSERT.replace("{key}", str(key)) for key in keys))

    def job(self, name: str, cdc: dict[str, object], *, file: str = "", **settings: object) -> JobCase:
        """A configuration of job `name`; `file` tells several of one job apart."""
        folder = self.folder / (file or name)
        folder.mkdir()
        server = self.server
        source = {"host": server.host, "port": server.port, "user": server.user, "database": self.database}
        common: dict[str, object] = {
            "job": name,
            "mysql": {**source, "table": "orders", "cdc": cdc},
            "sink": {"delta": {"path": str(self.lake)}},
            "state": {"path": str(self.folder / "state"), "lease": "10s"},
        }
        return JobCase(server, folder, self.database, settings={**common, **settings})

    def to_live(self, spark: SparkSession, case: JobCase) -> None:
        """Run the job on the shared Spark session until it is live."""
        job = LiveJob(spark, case, orders_table(self.database)).start(Until.LIVE)
        job.until_ended()
        job.raise_errors()

    def keys(self) -> list[int]:
        """The keys in the target, each as often as it is there."""
        rows: pa.Table = read_lake(self.lake, ["id"])
        return sorted(rows["id"].to_pylist())

    def source_keys(self) -> set[int]:
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {orders_table(self.database).quoted}")
            return {int(row[0]) for row in cursor.fetchall()}

    def differences(self) -> list[Difference]:
        with self.server.connect() as connection:
            return compare_delta(connection, self.database, "orders", ("id",), self.lake)


@contextmanager
def source_on(server: SqlServer, folder: Path, *, rows: int) -> Iterator[Source]:
    """A table with this many rows; its database is dropped afterwards."""
    database = f"startup_{next(_numbers)}"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {quote(database)}")
        create_orders_table(connection, rows, 7, database=database)
    try:
        yield Source(server, database, folder)
    finally:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {quote(database)}")


def config_of(case: JobCase) -> Config:
    return load_config(case.config, {})


def table_of(source: Source) -> UpstreamTable:
    return open_table(config_of(source.job("reader", {"startup_mode": "initial"})))
