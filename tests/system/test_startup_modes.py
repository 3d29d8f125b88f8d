"""Every start-up mode on real servers: what it brings, what it leaves out, and which beginnings it refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.start_positions import (
    boundary_fault,
    position_after_gtids,
    position_at_time,
    read_source_log,
)
from consume_upstream.offset import CdcOffset
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.startup_case import Source, config_of, source_on, table_of
from vnode_backfill.errors import BackfillError
from vnode_backfill.opening import examine_source, open_job

pytestmark = pytest.mark.long

OUTSIDE = {"Format_desc", "Previous_gtids", "Gtid_list", "Binlog_checkpoint", "Gtid", "Rotate"}
"""Events that begin where no transaction is open."""


@pytest.fixture(scope="module", params=[MySqlServer, MariaDbServer])
def log_server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    """A server whose log is this module's alone."""
    with request.param() as server:
        yield server


@pytest.fixture
def logged(log_server: SqlServer, tmp_path: Path) -> Iterator[Source]:
    with source_on(log_server, tmp_path, rows=10) as source:
        yield source


@pytest.fixture
def source(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[Source]:
    with source_on(mysql_server, tmp_path, rows=200) as source:
        yield source


def test_a_position_is_a_boundary_exactly_where_no_transaction_is_open(logged: Source) -> None:
    logged.execute(
        "FLUSH BINARY LOGS", "BEGIN", "UPDATE {table} SET flag = 1", "DELETE FROM {table} WHERE id = 2", "COMMIT"
    )
    logged.execute("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    table = table_of(logged)
    log = read_source_log(table)
    with logged.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{log.newest.file}'")
        events = [(str(kind), int(pos)) for _, pos, kind, *_ in cursor.fetchall()]
    expected = {pos: kind in OUTSIDE for kind, pos in events} | {pos + 1: False for _, pos in events}
    found = {pos: not boundary_fault(table, replace(log.newest, pos=pos), log) for pos in expected}
    assert found == expected
    assert len([pos for pos, outside in expected.items() if outside]) >= 5
    inside = next(pos for kind, pos in events if kind == "Table_map")
    assert "inside a transaction; the boundaries around it are" in boundary_fault(
        table, replace(log.newest, pos=inside), log
    )


def test_a_moment_is_found_in_the_right_file_and_before_the_right_transaction(logged: Source) -> None:
    table, base, began = table_of(logged), int(time.time()) + 1000, []
    for step in range(4):
        logged.execute(f"SET SESSION timestamp = {base + 10 * step}", "FLUSH BINARY LOGS")
        began.append(table.written_offset())
        logged.execute(f"SET SESSION timestamp = {base + 10 * step}", "UPDATE {table} SET flag = flag + 1")
    log = read_source_log(table, with_time=True)
    assert log.oldest_at is not None
    assert log.oldest_at.timestamp() < base

    def at(second: float) -> CdcOffset:
        return position_at_time(table, datetime.fromtimestamp(base + second, UTC), log)

    expected = [gtids_after(table, offset) for offset in began]
    assert [gtids_after(table, at(second)) for second in (0, 10, 20, 30)] == expected
    assert [gtids_after(table, at(second)) for second in (0.9, 1, 29)] == [expected[0], expected[1], expected[3]]
    assert at(31) == log.newest


def test_gtids_lead_to_the_first_transaction_behind_them(logged: Source) -> None:
    table = table_of(logged)
    points = []
    for statement in ("UPDATE {table} SET flag = 1", "FLUSH BINARY LOGS", "DELETE FROM {table}", "FLUSH BINARY LOGS"):
        points.append(table.written_offset())
        logged.execute(
            statement, "INSERT INTO {table} (big, amount, created, state, flag) VALUES (1, 1, NOW(), 'new', 1)"
        )
    log = read_source_log(table)
    found = [position_after_gtids(table, point.gtids, log) for point in points]
    # The end of a file and the start of the next are one place; so what follows is compared, and not the positions.
    assert [gtids_after(table, at) for at in found] == [gtids_after(table, point) for point in points]
    assert position_after_gtids(table, log.newest.gtids, log) == log.newest


def gtids_after(table: MySqlTable, after: CdcOffset) -> list[str]:
    return [t.gtid for batch in table.read_log(after, table.written_offset()) for t in batch.transactions if t.end]


def test_each_wrong_beginning_is_refused_before_anything_is_written(logged: Source) -> None:
    log = read_source_log(table_of(logged))
    file, end = log.newest.file, log.newest.pos
    point = "mysql.cdc.specific"
    stranger = "7-1-1" if logged.server.flavour == "mariadb" else "00000000-0000-0000-0000-000000000001:1"
    wrong: list[tuple[dict[str, object], str]] = [
        ({"startup_mode": "newest"}, "mysql.cdc.startup_mode"),
        ({"startup_mode": "specific"}, f"{point} is missing; must be given when startup_mode is specific"),
        (
            {"startup_mode": "latest", "specific": {"file": file, "pos": 4}},
            f"{point} holds file, pos; is allowed only when startup_mode is specific",
        ),
        (
            {"startup_mode": "specific", "specific": {"file": file}},
            "must hold either file and pos, or gtid, or from_job",
        ),
        (specific(file=file, pos=end - 1), f"{point}.pos is {end - 1}; must be between two transactions"),
        (specific(file=file, pos=end + 1), f"{point} is {file}:{end + 1}; it lies after the end of the log"),
        (specific(file="binlog.000000", pos=4), f"{point} is binlog.000000:4; it is no longer held"),
        (specific(file="other.000001", pos=4), f"{point} is other.000001:4; it is not of this server's log"),
        (specific(gtid=stranger), f"{point}.gtid is {stranger}; it holds transactions that the server does not have"),
        (specific(from_job="nobody"), f"{point}.from_job is nobody; that job has stored no handoff"),
        (moment("2099-01-01T00:00:00Z"), "mysql.cdc.timestamp is 2099-01-01T00:00:00+00:00; must not be in the future"),
        (moment("2001-01-01T00:00:00Z"), "mysql.cdc.timestamp is 2001-01-01T00:00:00+00:00; the log no longer holds"),
    ]
    for number, (cdc, message) in enumerate(wrong):
        case = logged.job("wrong", cdc, file=f"wrong-{number}")
        with pytest.raises(BackfillError) as caught:
            open_job(config_of(case), task_slots=None, asked_vnodes=None)
        assert message in caught.value.message
        assert caught.value.exit_code == 2
    assert not (logged.folder / "state").exists()
    assert not logged.lake.exists()


def specific(**point: object) -> dict[str, object]:
    return {"startup_mode": "specific", "specific": point}


def moment(text: str) -> dict[str, object]:
    return {"startup_mode": "timestamp", "timestamp": text}


def test_latest_brings_new_rows_and_no_old_one_and_keeps_its_progress(spark: SparkSession, source: Source) -> None:
    source.to_live(spark, source.job("follow", {"startup_mode": "latest"}))
    assert source.keys() == []
    source.insert(1001, 1002)
    source.execute("UPDATE {table} SET flag = 99 WHERE id = 5", "DELETE FROM {table} WHERE id = 7 OR id = 1002")
    again = source.job("follow", {"startup_mode": "initial"}, file="again")
    beginning = examine_source(config_of(again), task_slots=None).beginning
    assert beginning is not None
    (warning,) = beginning.start.warnings
    assert "startup_mode initial is not used, the job was created with latest" in warning
    source.to_live(spark, again)
    assert source.keys() == [5, 1001]
    # What it brings is exact; all it lacks are rows that were not touched since.
    assert {str(difference.kind) for difference in source.differences()} == {"missing"}


def test_initial_brings_old_rows_then_new_ones(spark: SparkSession, source: Source) -> None:
    case = source.job("whole", {"startup_mode": "initial"})
    source.to_live(spark, case)
    assert len(source.keys()) == 200
    source.insert(1001, 1002)
    source.execute("DELETE FROM {table} WHERE id <= 3")
    source.to_live(spark, case)
    assert source.differences() == []


@pytest.fixture(scope="module")
def purged_server() -> Iterator[MySqlServer]:
    with MySqlServer() as server:
        yield server


@pytest.mark.parametrize("mode", ["earliest", "position", "gtid", "timestamp"])
def test_a_job_that_only_follows_brings_what_the_log_holds_from_its_beginning(
    spark: SparkSession, purged_server: MySqlServer, tmp_path: Path, mode: str
) -> None:
    with source_on(purged_server, tmp_path, rows=10) as source:
        now = int(time.time())
        source.execute(f"SET SESSION timestamp = {now - 3600}", "FLUSH BINARY LOGS")
        table = table_of(source)
        source.execute(f"PURGE BINARY LOGS TO '{table.written_offset().file}'")
        source.execute(f"SET SESSION timestamp = {now - 3600}", "DELETE FROM {table} WHERE id = 10")
        source.execute(f"SET SESSION timestamp = {now - 3600}", "UPDATE {table} SET flag = 1 WHERE id = 2")
        middle = table.written_offset()
        source.insert(101, 102)
        source.execute("UPDATE {table} SET flag = 1 WHERE id = 1")
        begins: dict[str, dict[str, object]] = {
            "earliest": {"startup_mode": "earliest"},
            "position": specific(file=middle.file, pos=middle.pos),
            "gtid": specific(gtid=middle.gtids),
            "timestamp": moment(datetime.fromtimestamp(now - 1800, UTC).isoformat()),
        }
        source.to_live(spark, source.job("follow", begins[mode]))
        assert source.keys() == ([1, 2, 101, 102] if mode == "earliest" else [1, 101, 102])
        assert {str(difference.kind) for difference in source.differences()} == {"missing"}
