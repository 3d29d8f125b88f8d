"""Jobs over a compressed log lose nothing, also where the changes of a transaction are its last event.

MySQL packs a whole transaction into one event (`binlog_transaction_compression`), so all its rows have the
transaction's end as their position. MariaDB compresses each row event on its own (`log_bin_compress`). Both are
compared in the target, and the plain log too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from tests.system.job.open.startup_case import Source, source_on
from tests.system.job_case import JobCase, execute, fetch, reached_live
from vnode_backfill.job.run.loop import Until

SETTINGS: dict[str, object] = {"limits": {"range_rows": 100, "backoff": "100ms", "max_backoff": "400ms"}}
COLUMNS = "id INT PRIMARY KEY, v VARCHAR(200)"


def compression(server: SqlServer, *, on: bool) -> None:
    """Set for every session that begins later; MariaDB's also for the sessions there are."""
    if server.flavour == "mysql":
        execute(server, None, f"SET GLOBAL binlog_transaction_compression = {on:d}")
    else:
        execute(
            server,
            None,
            f"SET GLOBAL log_bin_compress = {on:d}",
            f"SET GLOBAL log_bin_compress_min_len = {10 if on else 256}",
        )


@pytest.fixture
def compressed(source_server: SqlServer) -> Iterator[SqlServer]:
    compression(source_server, on=True)
    yield source_server
    compression(source_server, on=False)


@pytest.fixture(params=["plain", "compressed"])
def log_form(request: pytest.FixtureRequest, source_server: SqlServer) -> Iterator[SqlServer]:
    """The server with its log in one form and then in the other."""
    compression(source_server, on=request.param == "compressed")
    yield source_server
    compression(source_server, on=False)


def case_of(server: SqlServer, database: str, folder: Path, **settings: object) -> JobCase:
    execute(server, database, f"CREATE TABLE t ({COLUMNS})")
    return JobCase(server, folder, database, "t", settings={**SETTINGS, **settings})


def in_one_transaction(case: JobCase, *statements: str) -> None:
    with case.server.connect(case.database) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("COMMIT")


def insert(low: int, high: int, value: str = "first") -> str:
    """The statement that inserts the keys `low` to `high - 1`."""
    return "INSERT INTO t VALUES " + ", ".join(f"({key}, '{value} {key}')" for key in range(low, high))


def assert_compressed(server: SqlServer, file: str) -> None:
    """The log really has the form that the test is about."""
    events = {str(row[2]) for row in fetch(server, None, f"SHOW BINLOG EVENTS IN '{file}'")}
    wanted = "Transaction_payload" if server.flavour == "mysql" else "Write_rows_compressed_v1"
    assert wanted in events, events


def test_transaction_that_ends_on_its_last_change_arrives_whole(
    compressed: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Each is the last of its epoch's slice: inserts, then updates, deletes and changes of the key."""
    case = case_of(compressed, database, tmp_path)
    execute(compressed, database, insert(-200, 0), "FLUSH BINARY LOGS")
    file = str(fetch(compressed, None, "SHOW BINARY LOGS")[-1][0])
    job = case.here(spark)
    in_one_transaction(case, insert(0, 1000))
    assert job.run() is None
    assert case.differences() == []
    in_one_transaction(
        case, insert(1000, 2000), "UPDATE t SET v = CONCAT(v, '!') WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0",
        "UPDATE t SET id = id + 10000 WHERE id BETWEEN 500 AND 600", insert(-2000, -1000),
    )  # fmt: skip
    assert reached_live(case, spark) == []
    assert_compressed(compressed, file)


@pytest.mark.long
def test_live_job_takes_large_transactions_of_a_session_that_compresses(
    mysql_server: SqlServer, tmp_path: Path, spark: SparkSession
) -> None:
    """The option is the session's: what the server says of itself tells nothing."""
    execute(mysql_server, None, "DROP DATABASE IF EXISTS packing", "CREATE DATABASE packing")
    case = case_of(mysql_server, "packing", tmp_path)
    with case.here(spark).running(Until.STOPPED) as job:
        wait_for(lambda: job.ended or job.state.is_live, "live", seconds=120)
        for low in range(0, 5000, 1000):
            with mysql_server.connect("packing") as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_transaction_compression = ON")
                cursor.execute("BEGIN")
                cursor.execute(insert(low, low + 1000))
                cursor.execute("COMMIT")
            wait_for(lambda: case.differences() == [], "the rows", seconds=60, state=lambda: len(case.differences()))
    assert job.failure is None
    assert case.differences() == []
    execute(mysql_server, None, "DROP DATABASE packing")


@pytest.mark.long
def test_snapshot_and_its_follower_hold_every_row(log_form: SqlServer, tmp_path: Path, spark: SparkSession) -> None:
    with source_on(log_form, tmp_path, rows=100) as source:
        copy = source.job("copy", {"startup_mode": "snapshot"}, limits={"range_rows": 20})
        job = copy.here(spark)
        add_orders(source, 10_000, 12_000)
        assert job.run() is None
        assert len(source.keys()) == 2_100
        assert source.differences() == []
        add_orders(source, 20_000, 22_000)
        follow = source.job("follow", {"startup_mode": "specific", "specific": {"from_job": "copy"}})
        source.to_live(spark, follow)
        assert source.differences() == []
        add_orders(source, 30_000, 32_000)
        source.to_live(spark, follow)
        assert len(source.keys()) == 6_100
        assert source.differences() == []


def add_orders(source: Source, low: int, high: int) -> None:
    """In one transaction."""
    rows = ", ".join(f"({key}, 1, 2.5, '2024-05-06', 'new', 3)" for key in range(low, high))
    source.execute(f"INSERT INTO {{table}} (id, big, amount, created, state, flag) VALUES {rows}")


@contextmanager
def ten_rows_at_a_time(case: JobCase, seed: int) -> Iterator[None]:
    """Transactions of ten rows each, as fast as the server takes them.

    Inserts, updates, deletes and changes of the key.
    """
    stop, random = threading.Event(), Random(seed)
    failures: list[BaseException] = []

    def one(cursor: object) -> None:
        assert hasattr(cursor, "execute")
        cursor.execute("BEGIN")
        for _ in range(10):
            key = random.randrange(600)
            cursor.execute(
                random.choice((
                    f"REPLACE INTO t VALUES ({key}, '{random.random()}')",
                    f"UPDATE t SET v = '{random.random()}' WHERE id = {key}",
                    f"DELETE FROM t WHERE id = {key}",
                    f"UPDATE IGNORE t SET id = {random.randrange(600)} WHERE id = {key}",
                ))
            )  # fmt: skip
        cursor.execute("COMMIT")

    def write() -> None:
        try:
            with case.server.connect(case.database) as connection, connection.cursor() as cursor:
                while not stop.wait(0.02):
                    one(cursor)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            failures.append(error)

    writer = threading.Thread(target=write, name="ten rows")
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
    if failures:
        raise failures[0]


@pytest.mark.long
@pytest.mark.parametrize("executor", ["parallel", "single"])
def test_small_transactions_of_every_kind_arrive(
    log_form: SqlServer, database: str, tmp_path: Path, spark: SparkSession, executor: str
) -> None:
    case = case_of(log_form, database, tmp_path, executor=executor)
    execute(log_form, database, insert(0, 400))
    for seed in range(3):
        follow_some_epochs(case, spark, seed)
        assert reached_live(case, spark) == []


def follow_some_epochs(case: JobCase, spark: SparkSession, seed: int) -> None:
    with case.here(spark).running(Until.STOPPED) as job, ten_rows_at_a_time(case, seed):
        wait_for(lambda: job.ended or job.state.is_live, "live", seconds=120)
        epoch = job.state.epoch
        wait_for(lambda: job.ended or job.state.epoch > epoch + 15, "some epochs", seconds=120)
    assert job.failure is None
    assert case.differences() == []
