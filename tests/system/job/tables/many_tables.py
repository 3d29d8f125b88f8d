"""Makes a database of tables of different shapes, writes transactions over several of them, and runs them as one job.

`Here` runs the job inside the test, on the Spark that tests share. Where a process has to die, `Tables.run` starts one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pymysql
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.mysql import SqlServer
from devkit.orders import quote
from devkit.waiting import wait_for
from progress.faces.metrics import CdcBackfillMetrics
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.tables.run import renewed, services_for, taken_up
from vnode_backfill.job.run.loop import Until
from vnode_backfill.job.tables.open import OpenedTables, TablesOpener
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.tables_job import JobParts, TablesJob
from vnode_backfill.words.errors import BackfillError

ROWS = 400


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of table: its columns, its key, and how its row number n is written."""

    columns: str
    key: tuple[str, ...]
    row: str


SHAPES: Mapping[str, Shape] = {
    "numbers": Shape("id INT PRIMARY KEY, v INT, t VARCHAR(40)", ("id",), "({n}, {n}, 'row {n}')"),
    "large": Shape("id BIGINT UNSIGNED PRIMARY KEY, v INT, t TEXT", ("id",), "({n}, {n}, REPEAT('x', {n} % 60))"),
    "texts": Shape("name VARCHAR(30) PRIMARY KEY, v INT, d DECIMAL(10,2)", ("name",), "('key {n}', {n}, {n} / 7)"),
    "pairs": Shape("a INT, b VARCHAR(8), v INT, PRIMARY KEY (a, b)", ("a", "b"), "({n} DIV 5, 'b{n}', {n})"),
    "days": Shape("d DATE PRIMARY KEY, v INT", ("d",), "(DATE_ADD('2000-01-01', INTERVAL {n} DAY), {n})"),
    "bytes": Shape(
        "k VARBINARY(8) PRIMARY KEY, v INT, j JSON", ("k",), "(UNHEX(LPAD(HEX({n}), 8, '0')), {n}, '[{n}]')"
    ),
}

MORE_SHAPES: Mapping[str, Shape] = {
    "amounts": Shape("k DECIMAL(12,3) PRIMARY KEY, v INT", ("k",), "({n} / 8, {n})"),
    "moments": Shape(
        "at DATETIME(3) PRIMARY KEY, v INT, y YEAR", ("at",), "(TIMESTAMPADD(SECOND, {n} * 61, '2001-02-03'), {n}, 2001)"
    ),
    "threes": Shape(
        "a INT, b DATE, c VARBINARY(4), v INT, PRIMARY KEY (a, b, c)", ("a", "b", "c"),
        "({n} % 7, DATE_ADD('2020-02-28', INTERVAL {n} % 11 DAY), LEFT(MD5({n}), 4), {n})",
    ),
    "unique": Shape("code CHAR(9) NOT NULL UNIQUE, v INT, b BIT(9)", ("code",), "('c{n}', {n}, {n} % 512)"),
    "kinds": Shape(
        "kind ENUM('b', 'a', 'c'), n INT, v INT, PRIMARY KEY (kind, n)", ("kind", "n"),
        "(ELT({n} % 3 + 1, 'b', 'a', 'c'), {n}, {n})",
    ),
    "signs": Shape("id SMALLINT PRIMARY KEY, v INT, s SET('x', 'y')", ("id",), "({n} - 200, {n}, 'x,y')"),
}  # fmt: skip
"""Kinds of keys that the shapes above leave out; `kinds` is in one range, because only the server orders an ENUM."""
ALL_SHAPES: Mapping[str, Shape] = {**SHAPES, **MORE_SHAPES}


@dataclass
class Tables(JobCase):
    """A job of many tables of one database."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    apart: dict[str, Path] = field(default_factory=dict)
    """Targets of tables whose entries give them paths of their own."""

    def _settings(self) -> dict[str, object]:
        found = super()._settings()
        mysql = found["mysql"]
        assert isinstance(mysql, dict)
        del mysql["database"], mysql["table"]
        mysql.setdefault("tables", [f"{self.database}.*"])
        if "sink" not in self.settings:
            found["sink"] = {"delta": {"path": f"{self.lake}/{{table}}"}}
        return found

    def by_vectors(self) -> None:
        """Change the targets by vectors, whatever mode the run of tests asks for: the test is about those."""
        self.settings["sink"] = {"delta": {"path": f"{self.lake}/{{table}}", "merge": "vectors"}}

    def create(self, name: str, shape: str, rows: int = ROWS) -> None:
        found = ALL_SHAPES[shape]
        execute(self.server, self.database, f"CREATE TABLE {quote(name)} ({found.columns})")
        if rows:
            values = ", ".join(found.row.format(n=n) for n in range(1, rows + 1))
            execute(self.server, self.database, f"INSERT INTO {quote(name)} VALUES {values}")
        # Only now: a writer at work changes every table that is named here.
        self.shapes[name] = found

    def target_of(self, name: str) -> Path:
        return self.apart.get(name, self.lake / name)

    def wrong(self) -> dict[str, int]:
        """How many differences each table has, of those that have any."""
        found = {}
        for name, shape in self.shapes.items():
            with self.server.connect() as connection:
                found[name] = len(compare_delta(connection, self.database, name, shape.key, self.target_of(name)))
        return {name: count for name, count in found.items() if count}

    @contextmanager
    def written_to(self, seed: int = 1) -> Iterator[list[int]]:
        """A writer at work during the block: transactions over two or three tables. It counts them."""
        ended, done = threading.Event(), [0]
        thread = threading.Thread(target=self._write, args=(ended, done, Random(seed)), name="writer")
        thread.start()
        try:
            wait_for(lambda: done[0] > 5, "the writer has begun", seconds=60)
            yield done
        finally:
            ended.set()
            thread.join()

    def _write(self, ended: threading.Event, done: list[int], random: Random) -> None:
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            while not ended.wait(0.005):
                try:
                    for name in random.sample(sorted(self.shapes), min(3, len(self.shapes))):
                        cursor.execute(self._change(name, random))
                    connection.commit()
                    done[0] += 1
                except pymysql.err.MySQLError:
                    # A table that a test has dropped or changed: the others are written on.
                    connection.rollback()

    def _change(self, name: str, random: Random) -> str:
        shape, n = self.shapes[name], random.randint(1, ROWS + 100)
        if random.random() < 0.3:
            return f"REPLACE INTO {quote(name)} VALUES {shape.row.format(n=n)}"
        if random.random() < 0.2:
            return f"DELETE FROM {quote(name)} WHERE v = {n}"
        return f"UPDATE {quote(name)} SET v = v + 1000 WHERE v = {n}"


class Here:
    """One run of a job of many tables in this process."""

    def __init__(self, case: Tables, spark: SparkSession) -> None:
        self.config = case.loaded_config()
        self.store = tables_store(self.config)
        self.opener = opener = TablesOpener(self.config, self.store, lambda: None)
        self.opened: OpenedTables = opener.open()
        services = services_for(self.config, spark, CdcBackfillMetrics())
        parts = JobParts(
            self.config, self.store, services, renewed, taken_up, opener.look_again, opener.open_again, self
        )
        self.job = TablesJob(parts, self.opened.tables, self.opened.aside)

    def look(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        """Nothing is shown."""

    def close(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        """Nothing is open."""

    def table(self, name: str) -> RunningTable:
        return next(table for table in self.job.tables if table.name.endswith(f".{name}"))

    @property
    def failures(self) -> dict[str, str]:
        found = {table.name: table.run.failure for table in self.job.tables}
        return {name.rpartition(".")[2]: failure.message for name, failure in found.items() if failure is not None}

    def run(self, until: Until = Until.LIVE) -> dict[str, str]:
        """Run to the end; why tables have failed."""
        try:
            self.job.run(until)
        finally:
            self.store.release()
        return self.failures

    @contextmanager
    def running(self) -> Iterator[Here]:
        """Run in a thread during the block, whose end stops the job."""
        thread = threading.Thread(target=self.run, args=(Until.STOPPED,), name="job")
        thread.start()
        try:
            yield self
        finally:
            self.job.ask_to_stop()
            thread.join(300)
            assert not thread.is_alive(), "the job does not stop"

    def until_live(self, *names: str) -> None:
        def live() -> bool:
            running = {table.name.rpartition(".")[2]: table for table in tuple(self.job.tables)}
            if not running.keys() >= set(names):
                return False
            tables = [running[name] for name in names] or list(running.values())
            return all(table.run.coordinator.is_up_to_date for table in tables)

        wait_for(live, "tables are live", seconds=120, state=self.shown)

    def shown(self) -> list[str]:
        """Where each table is, for a test that waits in vain."""
        return [
            f"{table.name}: {table.run.coordinator.stage}, live {table.run.coordinator.saved.is_live}, epoch "
            f"{table.run.coordinator.saved.epoch}, {table.run.failure or table.run.ending or ''}"
            for table in self.job.tables
        ] + [f"{name}: {error.message}" for name, error in self.job.aside.items()]


def fresh(server: SqlServer, database: str, folder: Path, **settings: object) -> Tables:
    return Tables(server, folder, database, settings=settings)
