"""One job copies three tables into IoTDB, in both of its models, and follows them; every point is compared."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.comparer import Difference, SourceTable, compare
from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, IotdbTarget, PathColumn, TimeColumn
from devkit.mysql import MySqlServer
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job_case import execute

pytestmark = pytest.mark.long

EPOCH = datetime.datetime(1970, 1, 1)
DATABASE = "plant_of_many"
ROWS = 600
TABLES = {"heat": "temperature DOUBLE", "doors": "is_open TINYINT", "notes": "text VARCHAR(40)"}
VALUES = {"heat": "{n} / 4", "doors": "{n} % 2", "notes": "'größe {n}'"}


@dataclass
class PointTables(Tables):
    """A job of three tables of one database; each has devices, or a table, of its own."""

    target: IotdbServer = field(kw_only=True)
    model: str = "tree"

    def _settings(self) -> dict[str, object]:
        login = {"host": self.target.host, "port": self.target.port, "user": self.target.user}
        tree = {"device": "root.{database}.{table}.{room}"}
        table = {"model": "table", "database": "{database}", "table": "{table}", "tags": ["room"]}
        points = {
            **login, "password_env": "IOTDB_PASSWORD", "time": {"column": "at"}, "timeout": "60s",
            **(tree if self.model == "tree" else table),
        }  # fmt: skip
        self.settings["sink"] = {"iotdb": points}
        return super()._settings()

    def points(self, name: str) -> list[Difference]:
        """How the points of a table differ from its rows."""
        time = TimeColumn("at", lambda ticks: EPOCH + datetime.timedelta(milliseconds=ticks))
        value = TABLES[name].split()[0]
        columns, room = {"id": "id", value: value}, PathColumn("room")
        with self.server.connect() as connection:
            source = SourceTable(connection, self.database, name, ("id",))
            if self.model == "table":
                rows = self.target.table_session(self.database)
                table = IotdbTable(rows, name, tags={"room": room}, time=time, fields=columns)
                return list(compare(source, table).differences)
            tree = self.target.session()
            devices = f"root.{self.database}.{name}.*"
            return list(
                compare(source, IotdbTarget(tree, devices, path={3: room}, time=time, measurements=columns)).differences
            )


@pytest.fixture(params=["tree", "table"])
def case(
    request: pytest.FixtureRequest,
    mysql_server: MySqlServer,
    iotdb_server: IotdbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PointTables]:
    monkeypatch.setenv("IOTDB_PASSWORD", iotdb_server.password)
    database = f"{DATABASE}_{request.param}"
    execute(mysql_server, None, f"CREATE DATABASE {database}")
    for name, column in TABLES.items():
        rows = ", ".join(_row(name, number) for number in range(ROWS))
        execute(
            mysql_server, database,
            f"CREATE TABLE {name} (id INT PRIMARY KEY, room VARCHAR(10) NOT NULL, at DATETIME(3) NOT NULL, {column})",
            f"INSERT INTO {name} VALUES {rows}",
        )  # fmt: skip
    settings: dict[str, object] = {"limits": {"range_rows": 100}}
    yield PointTables(mysql_server, tmp_path, database, settings=settings, target=iotdb_server, model=request.param)
    execute(mysql_server, None, f"DROP DATABASE {database}")


def _row(name: str, number: int) -> str:
    value = VALUES[name].format(n=number)
    return f"({number}, 'room{number % 3}', '2024-01-01' + INTERVAL {number} SECOND, {value})"


def test_three_tables_are_copied_and_followed_point_by_point(case: PointTables, spark: SparkSession) -> None:
    here = Here(case, spark)
    assert here.opened.aside == {}
    # Between the plan and the first read: these come by the log, or by the read, or by both.
    _change(case, first=0)
    assert here.run() == {}
    assert {name: case.points(name) for name in TABLES} == {name: [] for name in TABLES}
    with Here(case, spark).running() as later:
        later.until_live()
        _change(case, first=100)
    assert {name: case.points(name) for name in TABLES} == {name: [] for name in TABLES}
    assert f"verified: {3 * ROWS:,} rows in 3 tables, 0 differences" in case.command("verify")


def _change(case: PointTables, first: int) -> None:
    """A transaction over all tables: values change, points move to another device and time, rows go and come."""
    with case.server.connect(case.database) as connection, connection.cursor() as cursor:
        connection.begin()
        for name in TABLES:
            cursor.execute(f"UPDATE {name} SET room = 'elsewhere' WHERE id BETWEEN {first} AND {first + 9}")
            cursor.execute(f"UPDATE {name} SET at = at + INTERVAL 1 DAY WHERE id BETWEEN {first + 10} AND {first + 19}")
            cursor.execute(f"DELETE FROM {name} WHERE id BETWEEN {first + 20} AND {first + 29}")
            added = ", ".join(_row(name, 9000 + first + number) for number in range(10))
            cursor.execute(f"INSERT INTO {name} VALUES {added}")
            cursor.execute(f"UPDATE {name} SET {TABLES[name].split()[0]} = 1 WHERE id = {first + 40}")
        connection.commit()
