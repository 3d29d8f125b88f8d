"""`executor: single` copies live tables whose keys only the server can order, through kill -9, and hands a half-done
job over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.rows.key_walk import WalkSession, cursor_of
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import MySqlServer, SqlServer
from devkit.orders import create_orders_table, quote
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from progress.store.rows.walk_rows import StoredWalk
from progress.store.store import StateStore
from progress.store.walk_store import SingleStore
from tests.system.job_case import JobCase
from vnode_backfill.words.key import Key


def slowly(rows_per_second: int) -> dict[str, object]:
    """A walk slow enough to be killed, steered and written to meanwhile."""
    return {
        "executor": "single",
        "limits": {"backoff": "200ms", "max_backoff": "2s", "rows_per_second": rows_per_second},
        "epoch": {"backfill": "300ms", "live": "100ms"},
    }


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
    KeyedTable("bits", "k bit(64) NOT NULL", ("k", "n"), ("0", "1", "7", "9223372036854775808", str(2**64 - 1))),
    KeyedTable("doubles", "k double NOT NULL", ("k", "n"), ("0.1", "-0.1", "1e308", "-5e-324", "1.1", "0")),
    KeyedTable(
        "czech", "k varchar(20) CHARACTER SET latin2 COLLATE latin2_czech_cs NOT NULL", ("k", "n"),
        tuple(CZECH.split(",")),
    ),
)  # fmt: skip
ENUMS = TABLES[0]


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


@contextmanager
def orders(server: SqlServer, database: str, rows: int) -> Iterator[Workload]:
    """A table of orders under live traffic."""
    with server.connect() as connection:
        connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {quote(database)}")
        table = create_orders_table(connection, rows, seed=5, database=database, key_step=3)
    with Workload(server.connect, table, seed=6, rate=60, large_rows=200) as workload:
        yield workload


def walked(folder: Path) -> StoredWalk:
    found = SingleStore(str(folder / "state"), "case").stored()
    assert found is not None
    return found


def test_key_that_only_the_server_can_order_is_copied_through_kill_9_under_a_writer(
    mysql_server: MySqlServer, tmp_path: Path
) -> None:
    fill(mysql_server, "single_enums", ENUMS)
    job = JobCase(mysql_server, tmp_path, "single_enums", "enums", ENUMS.key, slowly(150))
    with churn(mysql_server, "single_enums", ENUMS):
        job.run(kill="after:CommitReceipts:2")
        half = walked(tmp_path)
        assert half.walk.rows > 0
        assert half.state.vnodes[0].complete is None
        job.command("throttle", "--off")
        with job.started("run") as driver:
            job.wait_for_phase(JobPhase.LIVE, driver)
            job.command("stop")
            driver.wait(0)
    job.to_live()
    assert job.differences() == []
    assert (walked(tmp_path).state.is_live, walked(tmp_path).books.percent) == (True, 100.0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_such_key_is_copied_through_kill_9_while_it_changes(
    source_server: SqlServer, database: str, tmp_path: Path, table: KeyedTable
) -> None:
    fill(source_server, database, table)
    job = JobCase(source_server, tmp_path, database, table.name, table.key, slowly(150))
    with churn(source_server, database, table):
        job.run(kill="before:CommitEpoch:3")
        job.command("throttle", "--off")
        job.to_live()
    job.to_live()
    assert job.differences() == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_walk_under_traffic_survives_kill_9(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    job = JobCase(source_server, tmp_path, database, settings=slowly(2500))
    with orders(source_server, database, 6_000) as workload:
        job.run(kill="after:CommitReceipts:2")
        job.run(kill="before:CommitEpoch:3")
        assert 0 < walked(tmp_path).walk.rows < 6_000
        job.command("throttle", "--off")
        job.to_live()
        workload.stop()
    job.to_live()
    assert job.differences() == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_half_walked_job_goes_on_under_the_parallel_executor(
    source_server: SqlServer, database: str, tmp_path: Path
) -> None:
    job = JobCase(source_server, tmp_path, database, settings=slowly(2500))
    with orders(source_server, database, 6_000) as workload:
        job.run(kill="after:CommitReceipts:3")
        job.use(executor="parallel", limits={"range_rows": 400})
        assert "continues under the parallel one" in job.run("--until", "live")
        workload.stop()
    job.to_live()
    assert job.differences() == []
    assert not SingleStore(str(tmp_path / "state"), "case").exists()
    loaded = StateStore(str(tmp_path / "state"), "case").load()
    assert loaded is not None
    assert (loaded.record.executor, loaded.record.vnode_count, loaded.plan.generation) == ("parallel", 16, 1)
    job.use(executor="single")
    assert "is a job of the parallel executor" in job.run(code=2)
    assert "is a job of the parallel executor" in job.command("plan", code=2)


@pytest.mark.long
def test_running_walk_is_shown_and_steered(mysql_server: MySqlServer, tmp_path: Path) -> None:
    fill(mysql_server, "single_steered", ENUMS)
    job = JobCase(mysql_server, tmp_path, "single_steered", "enums", ENUMS.key, slowly(8))
    assert "walked by one reader" in job.command("plan")
    with job.started("run") as driver:
        job.wait_for_phase(JobPhase.SNAPSHOT, driver)
        wait_for(lambda: job.report().rows > 0, "the first rows are read", state=lambda: str(job.report()))
        job.command("pause")
        wait_for(lambda: job.report().paused, "the walk pauses", state=lambda: str(job.report()))
        shown = json.loads(job.command("status", "--json", "--per-vnode"))
        assert (shown["phase"], shown["ranges_total"], len(shown["vnodes"])) == ("paused", 1, 1)
        assert 0 < shown["percent"] < 100
        assert "has one reader" in job.command("rescale", "--workers", "3", code=2)
        assert "cannot tell" in job.command("resnapshot", "--only", "0", code=2)
        assert "cannot tell" in job.command("resnapshot", "--all", code=2)
        job.command("throttle", "--off")
        job.command("resume")
        job.command("wait", "--timeout", "120s")
        job.command("stop")
        driver.wait(0)
    assert job.differences() == []
    assert "rows" in job.command("status", "--per-vnode")


def test_single_executor_refuses_what_needs_several(mysql_server: MySqlServer, tmp_path: Path) -> None:
    job = JobCase(mysql_server, tmp_path, "nowhere", settings={"executor": "single"})
    assert "--workers 4: executor: single walks the table with one reader" in job.run("--workers", "4", code=2)
    assert "--vnodes 8: executor: single" in job.run("--vnodes", "8", code=2)
    job.use(sink={"iotdb": {"host": "h", "device": "root.a.{id}", "time": {"column": "t"}}})
    assert "writes to a Delta table only" in job.run(code=2)
    assert not (tmp_path / "state").exists()


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


@pytest.mark.parametrize("table", [ENUMS, TABLES[2], TABLES[5]], ids=lambda table: table.name)
def test_parallel_executor_refuses_such_a_key_and_names_the_single_one(
    source_server: SqlServer, database: str, tmp_path: Path, table: KeyedTable
) -> None:
    fill(source_server, database, table)
    job = JobCase(source_server, tmp_path, database, table.name, table.key)
    refused = job.command("plan", code=2)
    assert "fix: executor: single" in refused
    job.use(executor="single")
    assert "walked by one reader" in job.command("plan")
