"""Every start-up mode on real servers: what it brings, what it leaves out, and which beginnings it refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from devkit.lake import read_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import orders_table
from devkit.writer import Workload
from tests.system.job.open.startup_case import Source, config_of, source_on, table_of
from vnode_backfill.commands.cli import execute as execute_command
from vnode_backfill.job.open.begin import begin
from vnode_backfill.job.open.examine import examine_source
from vnode_backfill.job.open.handoff import read_handoff
from vnode_backfill.job.open.open import open_job
from vnode_backfill.job.open.source import open_table
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.errors import BackfillError, PlanRefusedError

pytestmark = pytest.mark.long

OUTSIDE = {"Format_desc", "Previous_gtids", "Gtid_list", "Binlog_checkpoint", "Gtid", "Rotate"}
"""Events that begin where no transaction is open."""
STRANGER = "00000000-0000-0000-0000-000000000001"


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
def source(source_server: SqlServer, tmp_path: Path) -> Iterator[Source]:
    with source_on(source_server, tmp_path, rows=200) as source:
        yield source


def test_a_position_is_a_boundary_exactly_where_no_transaction_is_open(logged: Source) -> None:
    logged.execute(
        "FLUSH BINARY LOGS", "BEGIN", "UPDATE {table} SET flag = 1", "DELETE FROM {table} WHERE id = 2", "COMMIT"
    )
    logged.execute("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    table = table_of(logged)
    log = table.source_log()
    with logged.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{log.newest.file}'")
        events = [(str(kind), int(pos)) for _, pos, kind, *_ in cursor.fetchall()]
    expected = {pos: kind in OUTSIDE for kind, pos in events} | {pos + 1: False for _, pos in events}
    found = {pos: not table.boundary_fault(replace(log.newest, pos=pos), log) for pos in expected}
    assert found == expected
    assert len([pos for pos, outside in expected.items() if outside]) >= 5
    inside = next(pos for kind, pos in events if kind == "Table_map")
    assert "inside a transaction; the boundaries around it are" in table.boundary_fault(
        replace(log.newest, pos=inside), log
    )


def test_a_moment_is_found_in_the_right_file_and_before_the_right_transaction(logged: Source) -> None:
    table, base, began = table_of(logged), int(time.time()) + 1000, []
    for step in range(4):
        logged.execute(f"SET SESSION timestamp = {base + 10 * step}", "FLUSH BINARY LOGS")
        began.append(table.written_offset())
        logged.execute(f"SET SESSION timestamp = {base + 10 * step}", "UPDATE {table} SET flag = flag + 1")
    log = table.source_log(with_time=True)
    assert log.oldest_at is not None
    assert log.oldest_at.timestamp() < base

    def at(second: float) -> CdcOffset:
        return table.position_at_time(datetime.fromtimestamp(base + second, UTC), log)

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
    log = table.source_log()
    found = [table.position_after_gtids(point.gtids, log) for point in points]
    # The end of a file and the start of the next are one place; so what follows is compared, and not the positions.
    assert [gtids_after(table, at) for at in found] == [gtids_after(table, point) for point in points]
    assert table.position_after_gtids(log.newest.gtids, log) == log.newest


def gtids_after(table: UpstreamTable, after: CdcOffset) -> list[str]:
    return [t.gtid for batch in table.read_log(after, table.written_offset()) for t in batch.transactions if t.end]


def test_each_wrong_beginning_is_refused_before_anything_is_written(logged: Source) -> None:
    table = table_of(logged)
    logged.execute("FLUSH BINARY LOGS")
    gone = table.written_offset()
    logged.insert(901)
    logged.execute("FLUSH BINARY LOGS")
    logged.insert(902)
    logged.purge_to(table.written_offset().file)
    log = table.source_log()
    file, end, held = log.newest.file, log.newest.pos, f"The server holds {log.oldest} to {log.newest}."
    known, foreign, other_kind = strangers(logged.server.flavour, log.newest.gtids)
    point = "mysql.cdc.specific"
    wrong: list[tuple[dict[str, object], str, str]] = [
        (specific(file=file, pos=end - 1), f"{point}.pos is {end - 1}; must be between two transactions", "boundaries"),
        (specific(file=file, pos=end + 1), f"{point} is {file}:{end + 1}; it is after the end of the log", held),
        (specific(file="binlog.999999", pos=4), f"{point} is binlog.999999:4; it is after the end of the log", held),
        (specific(file=gone.file, pos=gone.pos), f"{point} is {gone}; it is no longer held by the server", held),
        (specific(file="other.000001", pos=4), f"{point} is other.000001:4; it is not of this server's log", held),
        (specific(gtid=gone.gtids), f"{point}.gtid is {gone.gtids}; it is followed by transactions no longer", known),
        (specific(gtid=foreign), f"{point}.gtid is {foreign}; it holds transactions that the server does not", known),
        (specific(gtid=other_kind), f"{point}.gtid is {other_kind}; it is not of this kind of server", known),
        (specific(from_job="nobody"), f"{point}.from_job is nobody; that job has stored no handoff", ""),
        (moment("2099-01-01T00:00:00Z"), "mysql.cdc.timestamp is 2099-01-01T00:00:00+00:00; must not be in the f", "clock"),
        (moment("2001-01-01T00:00:00Z"), "mysql.cdc.timestamp is 2001-01-01T00:00:00+00:00; the log no longer", "oldest"),
    ]  # fmt: skip
    for number, (cdc, message, detail) in enumerate(wrong):
        case = logged.job("wrong", cdc, file=f"wrong-{number}")
        with pytest.raises(BackfillError) as caught:
            open_job(config_of(case), asked_vnodes=None)
        assert message in caught.value.message
        assert detail in caught.value.detail
        assert caught.value.exit_code == 2
    assert not (logged.folder / "state").exists()
    assert not logged.lake.exists()


def strangers(flavour: str, executed: str) -> tuple[str, str, str]:
    """What the server says it has, transactions it has not, and some of the other kind of server."""
    if flavour == "mariadb":
        domain, server, sequence = executed.split("-")
        # The same place in the same domain, but written by another server.
        return executed, f"{domain}-{int(server) + 1}-{sequence}", f"{STRANGER}:1"
    return f"The server has {executed}", f"{STRANGER}:1-5", "0-1-1"


@pytest.mark.parametrize(
    ("cdc", "told"),
    [
        ({"startup_mode": "newest"}, 'startup_mode is "newest"; allowed: initial, latest, specific, earliest, timestamp, snapshot'),
        ({"startup_mode": "specific"}, "specific is missing; must be given when startup_mode is specific"),
        ({"startup_mode": "latest", "specific": {"file": "b.1", "pos": 4}}, "specific holds file, pos; is allowed only when startup_mode is specific; it is latest"),
        ({"startup_mode": "specific", "specific": {"file": "b.1"}}, "specific holds file; must hold either file and pos, or gtid, or from_job"),
        ({"startup_mode": "specific", "specific": {"file": "b.1", "pos": 4, "gtid": "0-1-2"}}, "specific holds file, pos, gtid; must hold either"),
        ({"startup_mode": "timestamp"}, "timestamp is missing; must be given when startup_mode is timestamp"),
        ({"startup_mode": "initial", "timestamp": "2026-01-01T00:00:00Z"}, "is allowed only when startup_mode is timestamp; it is initial"),
    ],
)  # fmt: skip
def test_the_command_refuses_a_wrong_mode_with_exit_code_2(
    cdc: dict[str, object], told: str, mysql_server: MySqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Source(mysql_server, "nowhere", tmp_path).job("wrong", cdc)
    assert execute_command(["run", "--config", str(case.config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vnode-backfill: mysql.cdc.")
    assert told in said
    assert not (tmp_path / "state").exists()


def test_a_target_with_rows_of_someone_else_is_refused_before_anything_is_written(
    logged: Source,
) -> None:
    write_deltalake(str(logged.lake), pa.table({"id": [1]}))
    with pytest.raises(PlanRefusedError, match="holds rows that this job did not write"):
        open_job(config_of(logged.job("late", {"startup_mode": "latest"})), asked_vnodes=None)
    assert not (logged.folder / "state").exists()


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
    beginning = examine_source(config_of(again)).beginning
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


def test_snapshot_ends_with_the_table_exactly_as_of_its_handoff(spark: SparkSession, source: Source) -> None:
    table = orders_table(source.database)
    with Workload(lambda: source.server.connect(source.database), table, seed=5, rate=200, large_rows=50):
        case = source.job("copy", {"startup_mode": "snapshot"}, limits={"rows_per_second": 100, "range_rows": 40})
        source.to_live(spark, case)
    handoff = read_handoff(config_of(case), "copy")
    assert handoff is not None
    copied: list[dict[str, object]] = read_lake(source.lake).to_pylist()
    rows = {row["id"]: row for row in copied}
    assert len(rows) == len(copied)
    changes = 0
    reader = table_of(source)
    for batch in reader.read_log(handoff.offset, reader.written_offset()):
        # A table that is ahead of the handoff has a row that is inserted now; one that is behind lacks one that goes.
        for op, before, after in zip(batch.op, batch.before.to_pylist(), batch.after.to_pylist(), strict=True):
            if op != ChangeOp.INSERT:
                assert rows.pop(before["id"]) == before
            if op != ChangeOp.DELETE:
                assert after["id"] not in rows
                rows[after["id"]] = after
            changes += 1
    assert changes > 0
    assert set(rows) == source.source_keys()


def test_earliest_brings_a_table_that_was_created_in_the_log_as_a_whole(spark: SparkSession, logged: Source) -> None:
    logged.insert(101)
    logged.execute("DELETE FROM {table} WHERE id = 3")
    case = logged.job("all", {"startup_mode": "earliest"})
    beginning = examine_source(config_of(case)).beginning
    assert beginning is not None
    assert beginning.first > beginning.oldest
    assert "statements about the table before its first rows in the log are passed over" in beginning.start.notes[0]
    logged.to_live(spark, case)
    assert logged.differences() == []


def test_earliest_passes_a_comment_and_is_refused_by_a_change_of_columns_behind_rows_of_the_table(
    spark: SparkSession, logged: Source
) -> None:
    logged.execute("ALTER TABLE {table} COMMENT 'of late'")
    logged.to_live(spark, logged.job("all", {"startup_mode": "earliest"}))
    assert logged.differences() == []
    logged.execute("ALTER TABLE {table} MODIFY state VARCHAR(40) CHARACTER SET cp1251")
    after = table_of(logged).written_offset()
    sink = {"delta": {"path": str(logged.folder / "other")}}
    again = config_of(logged.job("again", {"startup_mode": "earliest"}, sink=sink))
    with pytest.raises(
        PlanRefusedError, match=r"may have been another table .* holds ALTER TABLE .*orders. MODIFY"
    ) as told:
        open_job(again, asked_vnodes=None)
    assert f"{{file: {after.file}, pos: {after.pos}}}" in told.value.hint


@pytest.mark.parametrize(
    ("statements", "passed"),
    [
        (["CREATE TABLE {t} (id INT PRIMARY KEY)"], 1),
        (["DROP TABLE IF EXISTS {t}", "CREATE TABLE {t} (id INT PRIMARY KEY)", "INSERT INTO {t} VALUES (1)"], 2),
        (["CREATE TABLE {t} (id INT)", "INSERT INTO other VALUES (2)", "ALTER TABLE {t} ADD PRIMARY KEY (id)", "INSERT INTO {t} VALUES (1)"], 3),
        (["CREATE TABLE {t} (id INT PRIMARY KEY)", "INSERT INTO {t} VALUES (1)", "ALTER TABLE {t} COMMENT 'x'"], 1),
        (["CREATE TABLE {t} (id INT PRIMARY KEY)", "FLUSH BINARY LOGS", "TRUNCATE {t}"], 3),
    ],
)  # fmt: skip
def test_statements_are_passed_over_up_to_the_first_rows(logged: Source, statements: list[str], passed: int) -> None:
    logged.execute("CREATE TABLE other (id INT PRIMARY KEY)")
    reader = table_of(logged)
    ends = [reader.written_offset()]
    for statement in statements:
        logged.execute(statement.replace("{t}", "late"))
        ends.append(reader.written_offset())
    config = config_of(logged.job("late", {"startup_mode": "earliest"}))
    table = open_table(config.model_copy(update={"mysql": config.mysql.model_copy(update={"table": "late"})}))
    (found,) = table.look_ahead([(table, table.source_log().oldest)])
    assert ends[passed - 1] < found.begin <= ends[passed]
    assert not found.changing


def test_a_create_whose_rows_are_in_its_transaction_is_not_passed_over(logged: Source) -> None:
    logged.execute("CREATE TABLE late (id INT PRIMARY KEY) SELECT 1 AS id")
    config = config_of(logged.job("late", {"startup_mode": "earliest"}))
    table = open_table(config.model_copy(update={"mysql": config.mysql.model_copy(update={"table": "late"})}))
    oldest = table.source_log().oldest
    (found,) = table.look_ahead([(table, oldest)])
    (statement,) = found.changing
    assert (found.begin, statement.after) == (oldest, None)


def test_a_table_that_is_changed_while_its_job_is_created_is_refused(logged: Source) -> None:
    config = config_of(logged.job("late", {"startup_mode": "latest"}))
    table = open_table(config)
    logged.execute("ALTER TABLE {table} ADD COLUMN extra INT")
    with pytest.raises(PlanRefusedError, match="was changed while the job was created") as caught:
        begin(config, table)
    assert "extra" in caught.value.detail


@pytest.mark.parametrize("mode", ["earliest", "position", "gtid", "timestamp"])
def test_a_job_that_only_follows_brings_what_the_log_holds_from_its_beginning(
    spark: SparkSession, log_server: SqlServer, tmp_path: Path, mode: str
) -> None:
    with source_on(log_server, tmp_path, rows=10) as source:
        now = int(time.time())
        source.execute(f"SET SESSION timestamp = {now - 3600}", "FLUSH BINARY LOGS")
        table = table_of(source)
        source.purge_to(table.written_offset().file)
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
