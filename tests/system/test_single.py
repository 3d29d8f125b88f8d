"""`executor: single` copies live tables whose keys only the server can order, through kill -9, and hands a half-done job over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.walk import WalkSession, cursor_of
from devkit.comparer import compare_delta
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import create_orders_table, quote
from devkit.writer import Workload
from progress.single_store import SingleStore
from progress.store import StateStore
from tests.system.job_case import JobCase
from tests.system.single_case import SingleCase
from vnode_backfill import opening
from vnode_backfill.config import load_config
from vnode_backfill.errors import PlanRefusedError, StateError
from vnode_backfill.single_job import open_single, run_single
from vnode_backfill.vnode import Key

pytestmark = pytest.mark.long

SLOWLY: dict[str, object] = {
    "executor": "single",
    "limits": {"backoff": "200ms", "max_backoff": "2s", "rows_per_second": 2500},
}


@contextmanager
def orders(server: SqlServer, database: str, rows: int) -> Iterator[Workload]:
    """A table of orders under live traffic."""
    with server.connect() as connection:
        connection.cursor().execute(f"CREATE DATABASE {quote(database)}")
        table = create_orders_table(connection, rows, seed=5, database=database, key_step=3)
    with Workload(server.connect, table, seed=6, rate=60, large_rows=200) as workload:
        yield workload


@pytest.mark.timeout(900)
def test_walk_under_traffic_survives_kill_9(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    job = SingleCase(mariadb_server, tmp_path, "single_kill", settings=SLOWLY)
    with orders(mariadb_server, job.database, 6_000) as workload:
        job.run(kill="after:CommitReceipts:2", seconds=900)
        half = SingleStore(str(tmp_path / "state"), "case").stored()
        assert half is not None
        assert half.walk.rows > 0
        assert half.state.vnodes[0].complete is None
        job.run(kill="before:CommitEpoch:3", seconds=900)
        job.unlimited()
        job.to_live()
        workload.stop()
    job.to_live()
    assert job.differences() == []
    done = SingleStore(str(tmp_path / "state"), "case").stored()
    assert done is not None
    assert (done.state.is_live, done.books.percent) == (True, 100.0)


@pytest.mark.timeout(900)
def test_half_walked_job_goes_on_under_the_parallel_executor(mysql_server: MySqlServer, tmp_path: Path) -> None:
    job = SingleCase(mysql_server, tmp_path, "single_migrated", settings=SLOWLY)
    with orders(mysql_server, job.database, 6_000) as workload:
        job.run(kill="after:CommitReceipts:3", seconds=900)
        job.use(executor="parallel", limits={"range_rows": 400})
        job.to_live()
        workload.stop()
    job.to_live()
    assert job.differences() == []
    assert not SingleStore(str(tmp_path / "state"), "case").exists()
    loaded = StateStore(str(tmp_path / "state"), "case").load()
    assert loaded is not None
    assert (loaded.record.executor, loaded.record.vnode_count, loaded.plan.generation) == ("parallel", 16, 1)


@dataclass(frozen=True)
class KeyedTable:
    """A table whose key holds `columns`, and values for them as SQL texts."""

    name: str
    columns: str
    key: tuple[str, ...]
    values: tuple[str, ...]


CZECH = "'a','A','á','ab','a b','c','cukr','č','d','h','hora','ch','chleba','i','z','ž','Ž'"
TABLES = (
    KeyedTable("enums", "k enum('z','a','m','b') NOT NULL", ("k", "n"), ("'z'", "'a'", "'m'", "'b'")),
    KeyedTable("sets", "k set('z','a','m') NOT NULL", ("k", "n"), ("''", "'z'", "'a'", "'z,a'", "'m'", "'z,a,m'")),
    KeyedTable(
        "times", "k time(6) NOT NULL", ("k", "n"),
        ("'-838:59:59'", "'-10:00:00.5'", "'100:00:00'", "'20:00:00'", "'20:00:00.001'", "'00:00:00'"),
    ),
    KeyedTable("bits", "k bit(64) NOT NULL", ("k", "n"), ("0", "1", "7", "9223372036854775808", "18446744073709551615")),
    KeyedTable("doubles", "k double NOT NULL", ("k", "n"), ("0.1", "-0.1", "1e308", "-5e-324", "1.1", "0")),
    KeyedTable(
        "czech", "k varchar(20) CHARACTER SET latin2 COLLATE latin2_czech_cs NOT NULL", ("k", "n"),
        tuple(CZECH.split(",")),
    ),
)  # fmt: skip


def fill(server: SqlServer, database: str, table: KeyedTable) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quote(database)}")
        cursor.execute(
            f"CREATE TABLE {quote(database)}.{table.name} ({table.columns}, n int NOT NULL, v int, "
            f"PRIMARY KEY ({', '.join(table.key)}))"
        )
        for value in table.values:
            rows = ", ".join(f"({value}, {number}, 0)" for number in range(60))
            cursor.execute(f"INSERT INTO {quote(database)}.{table.name} VALUES {rows}")
        connection.commit()


@contextmanager
def churn(server: SqlServer, database: str, table: KeyedTable) -> Iterator[None]:
    """Inserts, updates, deletes and changes of the key, until the block ends."""
    random, stop, name = Random(7), threading.Event(), f"{quote(database)}.{table.name}"

    def write() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in range(2, 100_000):
                value, other = random.choice(table.values), random.choice(table.values)
                cursor.execute(f"UPDATE {name} SET v = {number} WHERE k = {value} AND n = {random.randrange(60)}")
                cursor.execute(f"DELETE FROM {name} WHERE k = {value} AND n = {random.randrange(60)}")
                cursor.execute(
                    f"UPDATE IGNORE {name} SET k = {other}, v = {number} WHERE n = {random.randrange(60)} LIMIT 1"
                )
                cursor.execute(f"REPLACE INTO {name} VALUES ({other}, {random.randrange(80)}, {number})")
                connection.commit()
                if stop.wait(0.01):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_walk_meets_every_row_once_in_the_order_of_the_index(
    source_server: SqlServer, database: str, table: KeyedTable
) -> None:
    fill(source_server, database, table)
    address = SourceAddress(source_server.host, source_server.port, source_server.user, "")
    source = MySqlTable.open(address, database, table.name)
    met: list[tuple[object, ...]] = []
    after: Key | None = None
    with WalkSession(source) as session:
        while batches := [batch for batch in session.read(after, 7) if batch.num_rows]:
            met += [tuple(row[name] for name in table.key) for batch in batches for row in batch.to_pylist()]
            after = cursor_of(source.definition, batches[-1])
    assert len(met) == len(set(met)) == 60 * len(table.values)


@pytest.mark.parametrize("table", [t for t in TABLES if t.name in ("enums", "times", "czech")], ids=lambda t: t.name)
def test_key_that_only_the_server_can_order_is_copied_while_it_changes(
    spark: SparkSession, source_server: SqlServer, database: str, tmp_path: Path, table: KeyedTable
) -> None:
    fill(source_server, database, table)
    settings: dict[str, object] = {
        "executor": "single",
        "limits": {"rows_per_second": 150},
        "epoch": {"backfill": "300ms", "live": "100ms"},
    }
    case = JobCase(source_server, tmp_path, database, table.name, table.key, settings)
    config = load_config(case.config)
    with churn(source_server, database, table):
        assert run_single(config, spark, until="live") == 0
    assert run_single(config, spark, until="live") == 0
    with source_server.connect() as connection:
        assert compare_delta(connection, database, table.name, table.key, case.lake) == []


def test_parallel_executor_refuses_such_a_key_and_names_the_single_one(
    mysql_server: MySqlServer, tmp_path: Path
) -> None:
    fill(mysql_server, "single_refused", TABLES[0])
    case = JobCase(mysql_server, tmp_path, "single_refused", "enums", ("k", "n"))
    with pytest.raises(PlanRefusedError, match="whose order the client cannot compute"):
        opening.open_job(load_config(case.config), task_slots=None, asked_vnodes=None)


def test_job_of_the_parallel_executor_is_not_taken_up_by_the_single_one(
    mysql_server: MySqlServer, tmp_path: Path
) -> None:
    with mysql_server.connect() as connection:
        connection.cursor().execute("CREATE DATABASE single_taken")
        create_orders_table(connection, 10, seed=1, database="single_taken")
    case = JobCase(mysql_server, tmp_path, "single_taken")
    opening.open_job(load_config(case.config), task_slots=None, asked_vnodes=None).store.release()
    changed = {**json.loads(case.config.read_text()), "executor": "single"}
    case.config.write_text(json.dumps(changed))
    with pytest.raises(StateError, match="is a job of the parallel executor"):
        open_single(load_config(case.config), task_slots=None)
