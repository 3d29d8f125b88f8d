"""A whole job into IoTDB: copied, followed, stopped and continued, compared point by point."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.iotdb import IotdbServer
from devkit.mysql import MySqlServer
from devkit.spark import REPOSITORY
from tests.system.job_case import execute
from tests.system.sinks.iotdb.iotdb_job import IotdbJob, points_of
from vnode_backfill.config.job import load_config

CREATE = """
CREATE TABLE reading (
    region VARCHAR(20), sensor_id INT, measured_at DATETIME(3), temperature DECIMAL(6,2), humidity FLOAT, note TEXT,
    PRIMARY KEY (region, sensor_id, measured_at))"""
FILL = """
INSERT INTO reading
SELECT CONCAT('r', n % 3), n % 7, '2024-05-01' + INTERVAL n * 1000 MICROSECOND, n / 4, NULLIF(n % 5, 0), CONCAT('n', n)
FROM (SELECT a.d + 10 * b.d + 100 * c.d AS n FROM digit a, digit b, digit c) numbers"""
DIGITS = ("CREATE TABLE digit (d INT)", "INSERT INTO digit VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")


@pytest.fixture
def readings(mysql_server: MySqlServer, iotdb_server: IotdbServer, tmp_path: Path) -> Iterator[IotdbJob]:
    """The table of `conf/mysql-to-iotdb.yaml`, a thousand rows of it, and its job."""
    database = "iotdb_readings"
    execute(mysql_server, None, f"CREATE DATABASE {database}")
    execute(mysql_server, database, *DIGITS, CREATE, FILL)
    example = load_config(REPOSITORY / "conf" / "mysql-to-iotdb.yaml").sink.iotdb
    assert example is not None
    elsewhere = {"host", "port", "user", "password_env", "password_file", "tls", "timeout"}
    mapping: dict[str, object] = example.model_dump(mode="json", exclude=elsewhere, exclude_unset=True)
    mapping["dead_letter"] = str(tmp_path / "rejected")
    yield IotdbJob(mysql_server, tmp_path, database, "reading", target=iotdb_server, iotdb=mapping)
    execute(mysql_server, None, f"DROP DATABASE {database}")


def expected(case: IotdbJob) -> list[tuple[str, int, dict[str, object]]]:
    """The points that the rows should be, made in SQL."""
    statement = (
        "SELECT CONCAT('root.plant.', region, '.s', sensor_id), ROUND(UNIX_TIMESTAMP(measured_at) * 1000),"
        " temperature + 0e0, humidity FROM reading ORDER BY 1, 2"
    )
    with case.server.connect(case.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(statement)
        rows = cursor.fetchall()
    named = ((device, int(at), {"temp": temp, "humidity": humidity}) for device, at, temp, humidity in rows)
    return [(device, at, {n: v for n, v in points.items() if v is not None}) for device, at, points in named]


def test_a_table_becomes_points_and_follows_its_changes(
    spark: SparkSession, readings: IotdbJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", readings.target.password)
    assert readings.here_command("plan") == 0
    assert "rows become root.plant.{region}.s{sensor_id} at measured_at with temp DOUBLE" in capsys.readouterr().out
    job = readings.here(spark)
    # Between the plan and the first read: these come by the log, or by the read, or by both.
    execute(
        readings.server, readings.database, "UPDATE reading SET temperature = 99 WHERE sensor_id = 3",
        "DELETE FROM reading WHERE sensor_id = 4", "UPDATE reading SET humidity = NULL WHERE sensor_id = 5",
    )  # fmt: skip
    assert job.run() is None
    assert points_of(readings.target, "plant") == expected(readings)
    execute(
        readings.server, readings.database, "UPDATE reading SET sensor_id = 70 WHERE sensor_id = 6",
        "UPDATE reading SET measured_at = measured_at + INTERVAL 1 HOUR WHERE sensor_id = 1 AND region = 'r1'",
        "UPDATE reading SET humidity = NULL, temperature = 1.5 WHERE region = 'r2' AND sensor_id = 0",
        "DELETE FROM reading WHERE sensor_id = 2", "INSERT INTO reading VALUES ('a.b `c`', -1, '2024-06-01', 2, 3, '')",
        "INSERT INTO reading VALUES ('r0', 1, '9999-01-01', 2, 3, '')",
    )  # fmt: skip
    assert readings.here(spark).run() is None
    (rejected,) = DeltaTable(str(readings.folder / "rejected")).to_pyarrow_table().to_pylist()
    assert (rejected["column"], rejected["value"]) == ("measured_at", "9999-01-01 00:00:00")
    execute(readings.server, readings.database, "DELETE FROM reading WHERE measured_at > '9000-01-01'")
    assert len(points_of(readings.target, "plant")) == len(expected(readings))
    assert readings.here(spark).run() is None
    capsys.readouterr()
    assert readings.here_command("verify", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["equal"], told["rows_source"]) == (True, told["rows_target"])
    assert readings.here_command("drop") == 0
    odd = [device for device, _, _ in points_of(readings.target, "plant") if "a.b" in device]
    assert odd == ["root.plant.`a.b ``c```.`s-1`"]
