"""A job at its edges: empty tables, keys of every kind, a log in many files, and a source that goes away in between.

One server per flavour, whose log has a new file every 256 KiB. The jobs run inside the test, on a Spark that is shared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest
from pymysql.cursors import Cursor
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from tests.system.job_case import COPIER, JobCase, create_copier, execute, fetch, reached_live
from vnode_backfill.job.run.loop import Until

DIGITS = "(" + " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10)) + ")"
LOG_FILE = 262_144
ER_NO_SUCH_THREAD = 1094


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    make = {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]
    with make({"max-binlog-size": str(LOG_FILE)}) as started:
        create_copier(started)
        yield started


@pytest.fixture
def database(server: SqlServer) -> Iterator[str]:
    execute(server, None, "DROP DATABASE IF EXISTS edges", "CREATE DATABASE edges")
    yield "edges"
    execute(server, None, "DROP DATABASE edges")


@pytest.fixture
def numbers(server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    """A job on the empty table `t (id, v)`, cut into ranges of 100 rows."""
    execute(server, database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))")
    return JobCase(server, tmp_path, database, "t", settings={"limits": {"range_rows": 100}})


def fill(case: JobCase, low: int, high: int, value: str = "CONCAT('row ', n)") -> str:
    """The statement that inserts the keys `low` to `high - 1`, at most 1,000,000 of them."""
    digits = ", ".join(f"{DIGITS} {name}" for name in "abcefg")
    count = " + ".join(f"{10**place} * {name}.d" for place, name in enumerate("abcefg"))
    return f"INSERT INTO {case.table} SELECT n, {value} FROM (SELECT {low} + {count} AS n FROM {digits}) k WHERE n < {high}"


def log_files(server: SqlServer) -> int:
    return len(fetch(server, None, "SHOW BINARY LOGS"))


def test_idle_and_empty_table_goes_live_and_its_first_rows_come_by_the_log(
    numbers: JobCase, spark: SparkSession
) -> None:
    assert reached_live(numbers, spark) == []
    execute(
        numbers.server, numbers.database, "INSERT INTO t VALUES (5, 'a'), (-5, 'b'), (7, NULL)", "DELETE FROM t LIMIT 1"
    )
    assert reached_live(numbers, spark) == []


def test_idle_table_of_one_row_goes_live(numbers: JobCase, spark: SparkSession) -> None:
    execute(numbers.server, numbers.database, "INSERT INTO t VALUES (2147483647, 'the only one')")
    assert reached_live(numbers, spark) == []
    assert numbers.report().rows == 1


def test_keys_outside_the_plan_arrive_on_both_sides(numbers: JobCase, spark: SparkSession) -> None:
    execute(numbers.server, numbers.database, fill(numbers, 10_000, 11_000))
    job = numbers.here(spark)
    execute(
        numbers.server, numbers.database, fill(numbers, -300, 300), fill(numbers, 20_000, 20_300), "DELETE FROM t WHERE id % 7 = 0",
        "UPDATE t SET id = id + 90000 WHERE id BETWEEN 10000 AND 10099", "DELETE FROM t WHERE id BETWEEN 10500 AND 10599",
        "UPDATE t SET id = id + 10500 WHERE id BETWEEN 0 AND 99",
    )  # fmt: skip
    assert job.run() is None
    assert numbers.differences() == []
    execute(
        numbers.server,
        numbers.database,
        "UPDATE t SET v = 'again' WHERE id < 0 OR id > 50000",
        "DELETE FROM t WHERE id % 5 = 0",
    )
    assert reached_live(numbers, spark) == []


def test_epoch_over_many_log_files_is_read_completely(
    server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    with server.connect() as connection:
        table = create_orders_table(connection, 3_000, 4, database=database, key_step=3)
    case = JobCase(server, tmp_path, database, settings={"limits": {"range_rows": 300, "log_readers": 2}})
    job = case.here(spark)
    before = log_files(server)
    # All of it is between the plan and the first sample, so the first epoch has to read every file.
    writer = Workload(lambda: server.connect(database), table, seed=8, large_rows=1_000)
    for _ in range(4):
        writer.run(transactions=150)
        execute(server, None, "FLUSH BINARY LOGS")
    assert log_files(server) >= before + 4
    with Workload(lambda: server.connect(database), table, seed=9, rate=400):
        assert job.run() is None
    assert reached_live(case, spark) == []


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A table `t` with its key, and what happens to it after the plan and once it is live."""

    columns: str
    key: tuple[str, ...]
    rows: Sequence[str]
    """What is selected into it from numbers `n` of 0 to 999."""
    later: Sequence[str]


TEXTS = "'Straße', 'strasse', '', '_x', 'a%b', 'it''s', 'back\\\\slash', '名前', '😀', 'É', 'zebra', 'Zebra2'"
KEYS = {
    "text": KeyKind(
        "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci PRIMARY KEY, v INT",
        ("k",),
        ["CONCAT(ELT(1 + n % 5, 'b', 'A', 'é', 'Z', '_'), n), n"],
        [
            *(f"INSERT IGNORE INTO t SELECT {text}, -1" for text in TEXTS.split(", ")),
            "UPDATE t SET k = UPPER(k) WHERE v % 3 = 0",
            "UPDATE t SET k = CONCAT(k, ' ') WHERE v % 3 = 1",
            "DELETE FROM t WHERE v % 10 = 5",
            "INSERT IGNORE INTO t SELECT CONCAT('m ', v), 5000 + v FROM t WHERE v BETWEEN 0 AND 50",
        ],
    ),
    "composite": KeyKind(
        "v INT, b VARCHAR(10), a SMALLINT, PRIMARY KEY (a, b)",
        ("a", "b"),
        ["n, CONCAT('b', n % 40), n DIV 40"],
        [
            "UPDATE IGNORE t SET a = -a - 1, v = v + 1 WHERE v % 9 = 0",
            "UPDATE t SET b = CONCAT('x,', b) WHERE v % 7 = 0",
            "DELETE FROM t WHERE v % 5 = 0",
            "INSERT IGNORE INTO t SELECT v, 'b7', a + 3 FROM t WHERE v % 11 = 0",
        ],
    ),
    "unsigned": KeyKind(
        "k BIGINT UNSIGNED PRIMARY KEY, v INT",
        ("k",),
        ["CASE WHEN n < 500 THEN 9223372036854775000 + n ELSE 18446744073709551615 - 3 * n END, n"],
        [
            "UPDATE t SET k = k - 1 WHERE k > 18000000000000000000 AND v % 4 = 0",
            "UPDATE t SET v = -v WHERE k BETWEEN 9223372036854775800 AND 9223372036854775900",
            "DELETE FROM t WHERE v % 6 = 0",
            "INSERT IGNORE INTO t VALUES (0, 1), (18446744073709551615, 2), (9223372036854775808, 3)",
        ],
    ),
    "binary": KeyKind(
        "k VARBINARY(20) PRIMARY KEY, v INT",
        ("k",),
        ["UNHEX(SUBSTRING(MD5(n), 1, 2 + 2 * (n % 10) + 12)), n"],
        [
            "UPDATE t SET k = CONCAT(k, 0x00) WHERE v % 3 = 0",
            "DELETE FROM t WHERE v % 5 = 0",
            "INSERT IGNORE INTO t VALUES (x'', 1), (0x00, 2), (0xff, 3), (0x8000, 4), (0x61, 5), (0x41, 6)",
        ],
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_table_with_another_kind_of_key_is_copied(
    server: SqlServer, database: str, tmp_path: Path, spark: SparkSession, name: str
) -> None:
    kind = KEYS[name]
    numbers = f"(SELECT a.d + 10 * b.d + 100 * c.d AS n FROM {DIGITS} a, {DIGITS} b, {DIGITS} c) numbers"
    execute(server, database, f"CREATE TABLE t ({kind.columns})")
    execute(server, database, *(f"INSERT INTO t SELECT {row} FROM {numbers}" for row in kind.rows))
    case = JobCase(server, tmp_path, database, "t", kind.key, settings={"limits": {"range_rows": 60}})
    job = case.here(spark)
    assert job.ranges_planned > 5
    execute(server, database, *kind.later)
    assert job.run() is None
    assert case.differences() == []
    execute(server, database, *kind.later)
    assert reached_live(case, spark) == []


class ConnectionKiller:
    """Kills connections of the job's account, each once, while they do what is looked for."""

    def __init__(self, server: SqlServer, doing: str) -> None:
        self._server = server
        self._find = f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{COPIER}' AND {doing}"
        self.killed: set[int] = set()

    def kill(self, wanted: int, over: Callable[[], bool]) -> None:
        """Look, and kill what is found, until that were `wanted` connections or it is over."""
        pause = threading.Event()
        with self._server.connect() as connection, connection.cursor() as cursor:
            while len(self.killed) < wanted and not over():
                cursor.execute(self._find)
                for (number,) in [row for row in cursor.fetchall() if row[0] not in self.killed][:1]:
                    self._kill_one(cursor, int(number))
                pause.wait(0.002)

    def _kill_one(self, cursor: Cursor, number: int) -> None:
        try:
            cursor.execute(f"KILL CONNECTION {number}")
        except pymysql.err.MySQLError as error:
            if error.args[0] != ER_NO_SUCH_THREAD:
                raise
        else:
            self.killed.add(number)


def test_connection_killed_in_the_middle_of_a_range_is_read_again(
    server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    with server.connect() as connection:
        table = create_orders_table(connection, 8_000, 6, database=database, key_step=3)
    # Each range takes several queries with a pause between them, in which its connection waits.
    limits = {"range_rows": 1_000, "rows_per_second": 2_000, "backoff": "100ms", "max_backoff": "1s", "retries": 50}
    case = JobCase(server, tmp_path, database, settings={"limits": limits}, mysql={"user": COPIER})
    job, killer = case.here(spark), ConnectionKiller(server, "COMMAND IN ('Sleep', 'Execute', 'Query')")
    with Workload(lambda: server.connect(database), table, seed=21, rate=200), job.running():
        killer.kill(5, over=lambda: job.ended)
    assert len(killer.killed) == 5
    assert job.failure is None
    assert job.errors
    assert reached_live(case, spark) == []


def test_transaction_of_200000_rows_arrives_though_its_log_reader_is_killed(
    numbers: JobCase, spark: SparkSession
) -> None:
    server, database = numbers.server, numbers.database
    numbers.mysql, numbers.settings = (
        {"user": COPIER},
        {"limits": {"log_memory": "16MB", "backoff": "100ms", "retries": 50}},
    )
    execute(server, database, fill(numbers, 0, 2_000))
    job, killer = numbers.here(spark), ConnectionKiller(server, "COMMAND LIKE 'Binlog Dump%'")
    execute(server, database, fill(numbers, 100_000, 300_000, "REPEAT(MD5(n), 3)"), "DELETE FROM t WHERE id % 3 = 0")
    with job.running():
        killer.kill(2, over=lambda: job.ended)
    assert len(killer.killed) == 2
    assert job.failure is None
    assert job.errors
    assert numbers.differences() == []


def test_server_that_restarts_is_waited_for(
    server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    with server.connect() as connection:
        table = create_orders_table(connection, 4_000, 7, database=database, key_step=3)
    limits = {"range_rows": 200, "rows_per_second": 600, "backoff": "200ms", "max_backoff": "1s", "retries": 200}
    case = JobCase(server, tmp_path, database, settings={"limits": limits})
    job = case.here(spark)
    with Workload(lambda: server.connect(database), table, seed=22, rate=200), job.running(Until.STOPPED):
        job.wait_until_read(4)
        server.restart()
        wait_for(lambda: bool(job.errors), "the job to notice", state=lambda: job.ranges_read)
    assert job.failure is None
    assert reached_live(case, spark) == []
