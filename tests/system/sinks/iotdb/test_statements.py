"""A job into IoTDB whose table is changed by statements: every point is compared with what the rows should be.

What cannot be followed is refused with a hint. Each hint is carried out here, to its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.iotdb import IotdbServer
from devkit.mysql import MySqlServer
from progress.state.backfill_state import Failure
from tests.system.job_case import execute
from tests.system.sinks.iotdb.iotdb_job import IotdbJob, points_of

DATABASE = "iotdb_statements"
MEASURED = {"temp": "temp", "humidity": "humidity", "note": "note"}


@pytest.fixture
def case(
    mysql_server: MySqlServer, iotdb_server: IotdbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IotdbJob]:
    """Sixty readings of three regions; region and time are the key and the slot. Each test has a place of its own."""
    monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", iotdb_server.password)
    execute(mysql_server, None, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    execute(
        mysql_server, DATABASE,
        "CREATE TABLE reading (region VARCHAR(9), at DATETIME(3), temp INT, humidity DOUBLE, note VARCHAR(20),"
        " PRIMARY KEY (region, at))",
        "INSERT INTO reading SELECT CONCAT('r', n % 3), '2024-05-01' + INTERVAL n SECOND, n, n / 4, CONCAT('n', n)"
        " FROM (WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 60) SELECT n FROM k) k",
    )  # fmt: skip
    mapping: dict[str, object] = {"device": f"root.{tmp_path.name}.{{region}}", "time": {"column": "at"}}
    yield IotdbJob(
        mysql_server, tmp_path, DATABASE, "reading", target=iotdb_server, iotdb=mapping, settings={"vnodes": 4}
    )
    execute(mysql_server, None, f"DROP DATABASE {DATABASE}")


def changed(case: IotdbJob, *statements: str) -> None:
    execute(case.server, DATABASE, *statements)


def expected(case: IotdbJob, measured: dict[str, str]) -> list[tuple[str, int, dict[str, object]]]:
    """The points that the rows should be, made in SQL: measurements by the column that they come from."""
    place = f"CONCAT('root.{case.folder.name}.', region), ROUND(UNIX_TIMESTAMP(at) * 1000)"
    with case.server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {place}, {', '.join(measured.values())} FROM reading ORDER BY 1, 2")
        rows = cursor.fetchall()
    named = ((device, int(at), dict(zip(measured, values, strict=True))) for device, at, *values in rows)
    return [(device, at, {n: v for n, v in points.items() if v is not None}) for device, at, points in named]


def compare(case: IotdbJob, **measured: str) -> None:
    """The points of these measurements are those of the rows; other measurements hold what they held."""
    found = points_of(case.target, case.folder.name)
    shown = [(device, at, {n: v for n, v in points.items() if n in measured}) for device, at, points in found]
    assert [each for each in shown if each[2]] == [each for each in expected(case, measured) if each[2]]


def configured(case: IotdbJob, **mapping: object) -> None:
    case.iotdb = {**case.iotdb, **mapping}
    case.use()


def refused(case: IotdbJob, spark: SparkSession) -> Failure:
    failure = case.here(spark).run()
    assert failure is not None, "a change that points cannot follow was followed"
    assert "cannot be followed in IoTDB" in failure.message
    return failure


def test_columns_become_measurements_and_end(
    case: IotdbJob, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    job = case.here(spark)
    # Between the plan and the first read.
    changed(case, "ALTER TABLE reading ADD early INT", "UPDATE reading SET early = temp * 2 WHERE temp % 4 = 0")
    assert job.run() is None
    compare(case, **MEASURED, early="early")
    changed(
        case, "CREATE INDEX by_temp ON reading (temp)", "ALTER TABLE reading ADD pressure DOUBLE FIRST",
        "UPDATE reading SET pressure = temp / 8 WHERE temp % 2 = 0", "ALTER TABLE reading DROP note",
        "DELETE FROM reading WHERE temp % 7 = 0", "UPDATE reading SET humidity = NULL WHERE temp % 5 = 0",
    )  # fmt: skip
    assert case.here(spark).run() is None
    columns = {"temp": "temp", "humidity": "humidity", "early": "early", "pressure": "pressure"}
    compare(case, **columns)
    assert any("note" in points for _, _, points in points_of(case.target, case.folder.name))
    capsys.readouterr()
    assert case.here_command("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    changed(case, "TRUNCATE reading", "INSERT INTO reading VALUES (1, 'r9', '2024-06-01', 5, 6, 7)")
    assert case.here(spark).run() is None
    compare(case, **columns)
    assert len(points_of(case.target, case.folder.name)) == 1


def test_refused_change_is_passed_as_its_hint_says(case: IotdbJob, spark: SparkSession) -> None:
    assert case.here(spark).run() is None
    changed(case, "ALTER TABLE reading RENAME COLUMN humidity TO wet", "UPDATE reading SET wet = 1 WHERE temp < 9")
    assert "`rename: {wet: humidity}`" in refused(case, spark).hint
    configured(case, rename={"wet": "humidity"})
    assert case.here(spark).run() is None
    measured = {"temp": "temp", "humidity": "wet", "note": "note"}
    compare(case, **measured)

    changed(case, "ALTER TABLE reading ADD level INT NOT NULL DEFAULT 7", "UPDATE reading SET temp = 1 WHERE temp < 9")
    assert "`exclude` the column" in refused(case, spark).hint
    configured(case, exclude=["level"])
    assert case.here(spark).run() is None
    compare(case, **measured)

    changed(case, "ALTER TABLE reading MODIFY temp BIGINT", "UPDATE reading SET temp = 99999999999 WHERE temp = 20")
    assert "resnapshot --all" in refused(case, spark).hint
    configured(case, replace=True, exclude=[])
    assert case.here_command("resnapshot", "--all") == 0
    assert case.here(spark).run() is None
    compare(case, **measured, level="level")
    assert len(points_of(case.target, case.folder.name)) == 60
