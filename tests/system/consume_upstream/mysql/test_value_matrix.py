"""Every type goes through a whole job: by the snapshot and by the log, on each form of the log.

One table has a column of every type. A job copies its first rows; then rows are inserted, updated, moved to other keys
and deleted, and come by the log. The target is compared with what the server says, by code that shares nothing with the
job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.binlog.test_compressed_log import assert_compressed
from tests.system.consume_upstream.mysql.value_types import GENERATED, Types, all_types
from tests.system.job_case import JobCase, execute, fetch, reached_live

METADATA = {"mysql": ("MINIMAL", "FULL"), "mariadb": ("NO_LOG", "MINIMAL", "FULL")}
COMPRESSION = {"mysql": ("binlog_transaction_compression",), "mariadb": ("log_bin_compress",)}
NAMED = [
    (flavour, form, metadata)
    for flavour, offered in METADATA.items()
    for form in ("plain", "compressed")
    for metadata in offered
]
OFTEN = {
    ("mysql", "plain", "MINIMAL"), ("mysql", "compressed", "FULL"), ("mariadb", "plain", "NO_LOG"),
    ("mariadb", "compressed", "FULL"),
}  # fmt: skip
"""One job per server and form of the log runs each time, with the servers' own default metadata for the plain one."""


class ValueTable:
    """The table `t` of every type, and statements that bring its values into it."""

    def __init__(self, types: Types) -> None:
        self._written = tuple(kind for kind in types if kind not in GENERATED)
        self.rows = max(len(kind) - 1 for kind in self._written)
        self._names = [f"c{number}" for number, kind in enumerate(types) if kind not in GENERATED]
        columns = ", ".join(f"c{number} {kind[0]}" for number, kind in enumerate(types))
        self.create = f"CREATE TABLE t (id INT PRIMARY KEY, {columns})"

    def inserts(self, first: int) -> Iterator[str]:
        """A row per value from this key on, and a row of NULLs."""
        names = ", ".join(("id", *self._names))
        for row in range(self.rows):
            cells = ", ".join(kind[1 + row % (len(kind) - 1)] for kind in self._written)
            yield f"INSERT INTO t ({names}) VALUES ({first + row}, {cells})"
        yield f"INSERT INTO t (id) VALUES ({first + self.rows})"

    def changes(self) -> Iterator[str]:
        """Whole rows become others, of values and of NULLs, both ways; some change their key, some go."""
        cells = ", ".join(f"a.{name} = b.{name}" for name in self._names)
        yield from self.inserts(101)
        yield f"UPDATE t a JOIN t b ON b.id = a.id + 99 SET {cells} WHERE a.id BETWEEN 2 AND {self.rows + 1}"
        yield "UPDATE t SET id = id + 1000 WHERE id % 5 = 0"
        yield "DELETE FROM t WHERE id % 7 = 0"
        yield from self.inserts(201)


@contextmanager
def log_of(server: SqlServer, form: str, metadata: str) -> Iterator[None]:
    """Sessions that begin in the block write such a log."""
    wanted = {"binlog_row_metadata": f"'{metadata}'"}
    wanted |= dict.fromkeys(COMPRESSION[server.flavour], "ON" if form == "compressed" else "OFF")
    wanted |= {"log_bin_compress_min_len": "10"} if server.flavour == "mariadb" else {}
    before = {name: fetch(server, None, f"SELECT @@global.{name}")[0][0] for name in wanted}
    _set(server, wanted)
    try:
        yield
    finally:
        _set(server, {name: repr(value) for name, value in before.items()})


def _set(server: SqlServer, values: dict[str, str]) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for name, value in values.items():
            cursor.execute(f"SET GLOBAL {name} = {value}")


def write(server: SqlServer, database: str, statements: Iterator[str]) -> None:
    """One transaction: a compressed one is then the last that the job reads."""
    with server.connect(database, autocommit=False) as connection, connection.cursor() as cursor:
        # Zero dates are values too.
        cursor.execute("SET sql_mode = 'NO_ENGINE_SUBSTITUTION'")
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def copied_and_followed(
    server: SqlServer,
    folder: Path,
    spark: SparkSession,
    form: str,
    metadata: str,
    *,
    account: str = "root",
    executor: str = "parallel",
) -> None:
    """The job of the table of every type ends equal after its snapshot and after every kind of change."""
    table, database = ValueTable(all_types(server.flavour, metadata)), f"values_{form}_{metadata}".lower()
    with log_of(server, form, metadata):
        # In a file of its own: what other jobs have written is in other forms.
        execute(server, None, "FLUSH BINARY LOGS", f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
        write(server, database, iter((table.create, *table.inserts(1))))
        settings: dict[str, object] = {"limits": {"range_rows": 8}, "executor": executor}
        case = JobCase(server, folder, database, "t", settings=settings, mysql={"user": account})
        assert reached_live(case, spark) == []
        write(server, database, table.changes())
        assert reached_live(case, spark) == []
        assert int(str(fetch(server, database, "SELECT COUNT(*) FROM t")[0][0])) > 2 * table.rows
        if form == "compressed":
            assert_compressed(server, str(fetch(server, None, "SHOW BINARY LOGS")[-1][0]))
        execute(server, None, f"DROP DATABASE {database}")


@pytest.mark.parametrize(
    ("flavour", "form", "metadata"),
    [pytest.param(*name, marks=() if name in OFTEN else pytest.mark.long, id="-".join(name)) for name in NAMED],
)
def test_every_value_arrives(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, flavour: str, form: str, metadata: str
) -> None:
    server = request.getfixturevalue(f"{flavour}_server")
    copied_and_followed(server, tmp_path, spark, form, metadata)


@pytest.mark.long
@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_every_value_arrives_by_a_walk(
    source_server: SqlServer, tmp_path: Path, spark: SparkSession, form: str
) -> None:
    copied_and_followed(source_server, tmp_path, spark, form, "FULL", executor="single")
