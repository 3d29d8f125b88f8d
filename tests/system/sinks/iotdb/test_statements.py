"""A job into IoTDB whose table is changed by statements: every point is compared with what the rows should be.

In both models a job that was stopped meets the statements when it runs again, and a live one meets them as they come,
killed with -9 while it follows one. What cannot be followed is refused with a hint. Each hint is carried out here, to
its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, PathColumn, TimeColumn
from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.backfill_state import Failure
from progress.state.report import JobPhase
from tests.system.job.followed_hints import carry_out
from tests.system.job_case import KILLED, Started, execute
from tests.system.sinks.iotdb.iotdb_job import IotdbJob, points_of
from vnode_backfill.words.errors import SinkError
from vnode_backfill.words.schema_change import Ended

DATABASE = "iotdb_statements"
MEASURED = {"temp": "temp", "humidity": "humidity", "note": "note"}

Points = list[tuple[str, int, dict[str, object]]]
"""Region, time, and the points by their measurement."""


@pytest.fixture(
    params=["mysql-tree", *(pytest.param(other, marks=pytest.mark.long) for other in ("mysql-table", "mariadb-table"))]
)
def case(
    request: pytest.FixtureRequest,
    iotdb_server: IotdbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[IotdbJob]:
    """Sixty readings of three regions; region and time are the key and the slot. Each test has a place of its own."""
    flavour, model = request.param.split("-")
    source = request.getfixturevalue(f"{flavour}_server")
    assert isinstance(source, SqlServer)
    monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", iotdb_server.password)
    execute(source, None, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    execute(
        source, DATABASE,
        "CREATE TABLE reading (region VARCHAR(9), at DATETIME(3), temp INT, humidity DOUBLE, note VARCHAR(20),"
        " PRIMARY KEY (region, at))",
        "INSERT INTO reading SELECT CONCAT('r', n % 3), '2024-05-01' + INTERVAL n SECOND, n, n / 4, CONCAT('n', n)"
        " FROM (WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 60) SELECT n FROM k) k",
    )  # fmt: skip
    place: dict[str, dict[str, object]] = {
        "tree": {"device": f"root.{place_of(tmp_path)}.{{region}}"},
        "table": {"model": "table", "device": None, "database": place_of(tmp_path), "tags": ["region"]},
    }
    mapping = {**place[model], "time": {"column": "at"}}
    yield IotdbJob(source, tmp_path, DATABASE, "reading", target=iotdb_server, iotdb=mapping, settings={"vnodes": 4})
    execute(source, None, f"DROP DATABASE {DATABASE}")


def place_of(folder: Path) -> str:
    """The database of IoTDB, or the node below root, of the test with this folder."""
    return "".join(letter if letter.isalnum() else "_" for letter in folder.name).lower()


def named_by(case: IotdbJob, column: str) -> dict[str, object]:
    """What gives each row a device, or a tag, by this column."""
    if "model" in case.iotdb:
        return {"tags": [column]}
    return {"device": f"root.{place_of(case.folder)}.{{{column}}}"}


def found_points(case: IotdbJob, column: str = "region") -> Points:
    place = place_of(case.folder)
    if "model" not in case.iotdb:
        return [
            (device.removeprefix(f"root.{place}."), at, dict(points))
            for device, at, points in points_of(case.target, place)
        ]
    session = case.target.table_session(place)
    tags = {column: PathColumn(column)}
    found = IotdbTable(session, case.table, tags=tags, time=TimeColumn("at", int), fields={}).slots()
    session.close()
    return [(str(region), at, dict(fields)) for (region,), at, fields in found]


def changed(case: IotdbJob, *statements: str) -> None:
    execute(case.server, DATABASE, *statements)


def expected(case: IotdbJob, measured: dict[str, str], device: str = "region", time: str = "at") -> Points:
    """The points that the rows should be, made in SQL: measurements by the column that they come from."""
    with case.server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        ticks = time if time == "since" else f"ROUND(UNIX_TIMESTAMP({time}) * 1000)"
        cursor.execute(f"SELECT {device}, {ticks}, {', '.join(measured.values())} FROM {case.table} ORDER BY 1, 2")
        rows = cursor.fetchall()
    named = ((region, int(at), dict(zip(measured, values, strict=True))) for region, at, *values in rows)
    return [(region, at, {n: v for n, v in points.items() if v is not None}) for region, at, points in named]


def both(case: IotdbJob, measured: dict[str, str]) -> tuple[Points, Points]:
    """The points of these measurements, as found and as expected; other measurements hold what they held."""
    shown = [
        (region, at, {n: v for n, v in points.items() if n in measured}) for region, at, points in found_points(case)
    ]
    return [each for each in shown if each[2]], [each for each in expected(case, measured) if each[2]]


def compare(case: IotdbJob, **measured: str) -> None:
    found, wanted = both(case, measured)
    assert found == wanted


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
    assert any("note" in points for _, _, points in found_points(case))
    capsys.readouterr()
    assert case.here_command("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    changed(case, "TRUNCATE reading", "INSERT INTO reading VALUES (1, 'r9', '2024-06-01', 5, 6, 7)")
    assert case.here(spark).run() is None
    compare(case, **columns)
    assert len(found_points(case)) == 1


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
    assert len(found_points(case)) == 60


NEW_COPIES = {
    "another key": (
        "ALTER TABLE reading DROP PRIMARY KEY, ADD PRIMARY KEY (region, at, temp)",
        "UPDATE reading SET note = NULL WHERE temp % 4 = 0",
    ),
    "created again": (
        "DROP TABLE reading",
        "CREATE TABLE reading (region VARCHAR(9), at DATETIME(3), temp INT, humidity DOUBLE, note TEXT, PRIMARY KEY (at))",
        "INSERT INTO reading VALUES ('r1', '2024-05-01 00:00:01', 5, NULL, 'n'), ('r8', '2024-06-01', 6, 7, NULL)",
    ),
}


@pytest.mark.parametrize("statements", NEW_COPIES.values(), ids=NEW_COPIES)
def test_new_copy_that_a_statement_needs_is_made_once_points_may_be_replaced(
    case: IotdbJob, spark: SparkSession, statements: tuple[str, ...]
) -> None:
    assert case.here(spark).run() is None
    before = found_points(case)
    changed(case, *statements)
    for _ in range(2):
        with pytest.raises(SinkError) as refusal:
            case.here(spark).run()
        assert "set `sink.iotdb.replace: true` to have what is there removed" in refusal.value.hint
        assert found_points(case) == before
    configured(case, replace=True)
    job = case.here(spark)
    assert (job.run(), job.copies) == (None, 2)
    assert found_points(case) == expected(case, MEASURED)
    configured(case, replace=False)
    changed(case, "UPDATE reading SET humidity = 4 WHERE region = 'r1'")
    assert case.here(spark).run() is None
    assert found_points(case) == expected(case, MEASURED)


def test_table_that_was_dropped_long_ago_ends_and_its_points_stay(case: IotdbJob, spark: SparkSession) -> None:
    assert case.here(spark).run() is None
    changed(case, "UPDATE reading SET note = 'last' WHERE temp = 8")
    last = expected(case, MEASURED)
    changed(case, "SET timestamp = UNIX_TIMESTAMP() - 120", "DROP TABLE reading")
    job = case.here(spark)
    assert job.run() is None
    assert job.ending == Ended("dropped")
    assert found_points(case) == last


@dataclass(frozen=True)
class Named:
    """A statement on the device or time column of `gauge`, and the columns that a new copy has instead."""

    statement: str
    refused: str
    device: str = "region"
    time: str = "at"
    unit: str = ""

    @property
    def measured(self) -> dict[str, str]:
        """Every other column that is left."""
        gone = {self.refused, self.device, self.time}
        return {name: name for name in ("id", "temp", "note", "since") if name not in gone}

    def mapping(self, case: IotdbJob) -> dict[str, object]:
        time = {"column": self.time, **({"unit": self.unit} if self.unit else {})}
        return {**named_by(case, self.device), "time": time}


NAMED = (
    Named("ALTER TABLE gauge RENAME COLUMN region TO area", "region", device="area"),
    Named("ALTER TABLE gauge RENAME COLUMN at TO moment", "at", time="moment"),
    Named("ALTER TABLE gauge DROP region", "region", device="note"),
    Named("ALTER TABLE gauge DROP at", "at", time="since", unit="ms"),
)


@pytest.mark.parametrize("named", NAMED, ids=lambda each: each.statement)
def test_change_of_the_device_or_time_column_is_refused_until_a_new_copy_has_another(
    case: IotdbJob, spark: SparkSession, named: Named
) -> None:
    changed(
        case, "CREATE TABLE gauge (id INT PRIMARY KEY, region VARCHAR(9), at DATETIME(3), temp INT, note TEXT, since BIGINT)",
        "INSERT INTO gauge SELECT temp, region, at, temp, note, temp FROM reading",
    )  # fmt: skip
    case.table = "gauge"
    assert case.here(spark).run() is None
    before = found_points(case)
    assert before == expected(case, {name: name for name in ("id", "temp", "note", "since")})
    changed(case, named.statement, "UPDATE gauge SET temp = 7 WHERE id < 9")
    failure = refused(case, spark)
    assert f"Column {named.refused} gives points their device or time" in failure.detail
    assert "Name another column in its place" in failure.hint
    assert found_points(case) == before
    configured(case, replace=True, **named.mapping(case))
    assert carry_out(failure.hint, case.config) == ["resnapshot", "--all"]
    assert case.here(spark).run() is None
    assert found_points(case, named.device) == expected(case, named.measured, named.device, named.time)


def wait_until_followed(case: IotdbJob, driver: Started, **measured: str) -> None:
    def followed() -> bool:
        driver.check_running()
        found, wanted = both(case, measured)
        return found == wanted

    wait_for(followed, "the points follow", seconds=240, state=lambda: f"{case.report()}\n{driver.output.read_text()}")


@pytest.mark.long
def test_live_job_follows_statements_and_is_killed_while_it_follows_one(case: IotdbJob) -> None:
    """The driver dies when the points of the fourth statement were changed and the job's state does not say so yet."""
    early = {**MEASURED, "early": "early"}
    with case.started("run", kill="after:ChangeSink:4") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        changed(case, "ALTER TABLE reading ADD early INT", "UPDATE reading SET early = temp * 2 WHERE temp % 4 = 0")
        wait_until_followed(case, driver, **early)
        changed(case, "ALTER TABLE reading DROP note", "UPDATE reading SET humidity = NULL WHERE temp % 5 = 0")
        wait_until_followed(case, driver, temp="temp", humidity="humidity", early="early")
        assert any("note" in points for _, _, points in found_points(case))
        changed(case, "ALTER TABLE reading ADD note VARCHAR(9)", "UPDATE reading SET note = 'new' WHERE temp % 9 = 0")
        wait_until_followed(case, driver, **early)
        changed(
            case, "DELETE FROM reading WHERE temp % 7 = 0", "TRUNCATE reading",
            "INSERT INTO reading VALUES ('r8', '2024-06-01', 5, 6, 7, 'n')",
            "ALTER TABLE reading ADD pressure DOUBLE FIRST",
            "INSERT INTO reading VALUES (1, 'r9', '2024-06-01', 5, 6, 7, 'n')",
        )  # fmt: skip
        driver.wait(KILLED)
    case.use(dropped_columns="drop")
    with case.started("run") as driver:
        wait_until_followed(case, driver, **early, pressure="pressure")
        changed(
            case, "ALTER TABLE reading MODIFY note LONGTEXT", "UPDATE reading SET note = REPEAT('n', 99), temp = NULL"
        )
        wait_until_followed(case, driver, **early, pressure="pressure")
        changed(case, "ALTER TABLE reading DROP early", "UPDATE reading SET humidity = 8")
        wait_until_followed(case, driver, **MEASURED, pressure="pressure")
    assert {region for region, _, _ in found_points(case)} == {"r8", "r9"}
    assert not any("early" in points for _, _, points in found_points(case))
    case.command("verify")
