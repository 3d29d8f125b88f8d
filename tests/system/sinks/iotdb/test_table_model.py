"""The IoTDB sink keeps its promises in the table model, on a real server: rows, changes, repeats, names, mistakes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from devkit.iotdb import IotdbServer
from devkit.mysql import MySqlServer
from devkit.operations import OpKind
from devkit.orders import create_orders_table, orders_table
from devkit.writer import Workload
from tests.system.job_case import execute
from tests.system.sinks.iotdb.iotdb_case import (
    EVERY_POINT,
    EVERY_TYPE,
    EVERY_VALUE,
    READINGS,
    SLOTTED,
    TableCase,
    reading,
    row,
)
from tests.system.sinks.iotdb.iotdb_job import NO_SHARED_TIMES, IotdbTableJob, rows_of
from tests.tables import Row, batch, table_of
from vnode_backfill.sinks.iotdb.compare import PointDifferenceKind, compare_points
from vnode_backfill.sinks.iotdb.preflight import inspect_iotdb
from vnode_backfill.sinks.iotdb.sink import Existing
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import ConfigError, SinkError, SinkUnavailableError
from vnode_backfill.words.finding import Level

pytestmark = pytest.mark.long

INSERT, UPDATE, DELETE = ChangeOp


@pytest.fixture
def case(iotdb_server: IotdbServer, tmp_path: Path) -> TableCase:
    return TableCase(iotdb_server, tmp_path)


@pytest.fixture(params=[READINGS, SLOTTED], ids=["owned", "slotted"])
def either(request: pytest.FixtureRequest, iotdb_server: IotdbServer, tmp_path: Path) -> TableCase:
    """Both ways in which a row of the target shows its key."""
    return TableCase(iotdb_server, tmp_path, request.param)


def test_every_type_arrives_exactly(case: TableCase) -> None:
    case.definition = table_of({**EVERY_TYPE, 'Odd `Name"': "int"}, "region", "sensor", "at")
    values: Row = (*EVERY_VALUE, 7)
    empty: Row = ("eu", 2, values[2], *(None for _ in values[3:-1]), 8)
    sink = case.sink(time={"column": "at"}, decimal="text")
    case.append(sink, values, empty)
    first, second = case.table_rows()
    assert first == (("eu", "1"), 1714564800001, {**EVERY_POINT, 'odd `name"': 7})
    assert second == (("eu", "2"), 1714564800001, {'odd `name"': 8})
    assert compare_points(sink.writer()._settings, [batch(case.definition, [values, empty])]).equal


ODD_TAGS: list[str | None] = [
    "a.b", "a`b", "a b", " a", "ünï", "日本", "", "123", "*", "**", "a*", "%", "_", "time", "a\tb\nc\r", "😀", "'", "''",
    '"', "\\",
    "\\'", "' OR '1' = '1", "NULL", "a\0b", "x" * 2000, "--", ";", None,
]  # fmt: skip


def test_any_text_and_null_are_safe_tags(case: TableCase) -> None:
    sink = case.sink()
    rows = [reading(number, 5, region=name) for number, name in enumerate(ODD_TAGS)]  # type: ignore[arg-type]
    case.append(sink, *rows)
    assert {tags[0] for tags, _, _ in case.table_rows()} == set(ODD_TAGS)
    assert compare_points(sink.writer()._settings, [batch(READINGS, rows)]).equal
    case.apply(sink, *((DELETE, each, None) for each in rows[::2]))
    assert compare_points(sink.writer()._settings, [batch(READINGS, rows[1::2])]).equal
    case.apply(sink, *((UPDATE, each, (*each[:5], None)) for each in rows[1::2]), epoch=2)
    left = [(*each[:5], None) for each in rows[1::2]]
    assert compare_points(sink.writer()._settings, [batch(READINGS, left)]).equal
    assert sorted(sink.key_extremes()) == [(1,), (len(ODD_TAGS) - 1,)]


def test_a_tag_that_would_not_be_read_back_is_refused(case: TableCase) -> None:
    with pytest.raises(SinkError, match="column region of the row id=1") as raised:
        case.append(case.sink(), reading(1, 5, region="a\0"))
    assert "ends with a NUL character" in raised.value.detail


def test_updates_move_empty_and_delete_rows(either: TableCase) -> None:
    sink = either.sink()
    old = [row(either, n, n) for n in range(1, 6)]
    either.append(sink, *old)
    new = [row(either, 1, 1, 9.5), row(either, 2, 2, None), row(either, 3, 33), row(either, 4, 4, sensor=7)]
    moved = [(UPDATE, before, after) for before, after in zip(old, new, strict=False)]
    either.apply(sink, *moved, (DELETE, old[4], None), (INSERT, None, row(either, 6, 6)), epoch=2)
    assert either.rows() == sorted([*new, row(either, 6, 6)], key=repr)
    assert sink.merged(Epoch(2))


def test_what_is_written_again_stays_the_same(either: TableCase) -> None:
    sink = either.sink()
    rows = [row(either, 1, 10), row(either, 2, 11, None), row(either, 3, 12, None, None)]
    changes = [(UPDATE, row(either, 1, 10), row(either, 1, 10, None)), (DELETE, row(either, 2, 11, None), None)]
    for _ in range(2):
        either.read(sink, 0, *rows)
    either.append(sink, *rows)
    # Half of the merge, which no commit records, and then all of it.
    either.read(sink, 9, row(either, 1, 10, None))
    either.apply(either.sink(), *changes, epoch=2)
    either.apply(either.sink(), (DELETE, row(either, 1, 10, None), None), epoch=2)
    kept = [row(either, 1, 10, None), *([] if either.definition is SLOTTED else [rows[2]])]
    assert either.rows() == sorted(kept, key=repr)


def test_a_row_whose_fields_are_all_null_is_not_a_row(iotdb_server: IotdbServer, tmp_path: Path) -> None:
    case = TableCase(iotdb_server, tmp_path, SLOTTED)
    sink = case.sink()
    nothing, something = ("eu", 1, 10, None, None), ("eu", 1, 11, 1.0, None)
    case.append(sink, nothing, something)
    assert case.rows() == [something]
    case.execute("INSERT INTO readings(time, region, sensor, temp) VALUES (12, 'eu', '1', NULL)")
    found = compare_points(sink.writer()._settings, [batch(SLOTTED, [nothing, something])])
    assert (found.equal, found.points) == (True, 1)
    case.apply(sink, (UPDATE, something, ("eu", 1, 11, None, None)), epoch=2)
    assert case.rows() == []
    assert compare_points(sink.writer()._settings, [batch(SLOTTED, [nothing])]).equal
    TableCase(iotdb_server, tmp_path, SLOTTED, case.database).sink("another")


def test_states_in_between_leave_nothing(case: TableCase) -> None:
    """The read saw the second of four states; the window holds them all."""
    sink = case.sink()
    states = [reading(1, at, float(at), "x" if at < 13 else None) for at in (11, 12, 13, 12)]
    case.append(sink, states[1])
    case.apply(sink, *((UPDATE, before, after) for before, after in pairwise(states)), epoch=3)
    assert case.rows() == [states[-1]]


def test_slots_that_keys_exchange_end_with_the_right_keys(case: TableCase) -> None:
    sink = case.sink()
    case.append(sink, reading(1, 1, 1.0), reading(2, 2, None, "y"))
    case.apply(
        sink, (UPDATE, reading(1, 1, 1.0), reading(1, 2, 1.0, None)),
        (UPDATE, reading(2, 2, None, "y"), reading(2, 1, None, "y"))
    )  # fmt: skip
    assert case.rows() == [reading(1, 2, 1.0, None), reading(2, 1, None, "y")]


def test_a_replaced_range_holds_exactly_what_was_read(case: TableCase) -> None:
    sink = case.sink()
    receipts = [
        case.read(sink, 0, reading(3, 3)),
        case.read(sink, 1, reading(12, 12), reading(15, 15), reading(18, 18)),
    ]
    sink.commit_reads(Epoch(1), receipts, [], case.plan())
    again = case.read(sink, 1, reading(12, 12, 2.0, None), reading(13, 15), epoch=2)
    for _ in range(2):
        sink.commit_reads(Epoch(2), [], [again], case.plan())
    assert case.rows() == [reading(12, 12, 2.0, None), reading(13, 15), reading(3, 3)]


def test_two_keys_on_one_row_stop_the_job_or_the_last_one_wins(case: TableCase) -> None:
    with pytest.raises(SinkError, match=r"1 \(device, time\) of IoTDB belong to two or more keys") as raised:
        case.append(case.sink(), reading(1, 5), reading(2, 5), reading(3, 6))
    assert """"region" = 'eu' AND "sensor" = '1' at 5: [["int", "1"]] and [["int", "2"]]""" in raised.value.detail
    lenient = case.sink("lenient", Existing.REPLACE, duplicates="last")
    case.append(lenient, reading(1, 5, note="x"), reading(2, 5, None, None), reading(3, 6))
    assert case.rows() in ([reading(n, 5, *rest), reading(3, 6)] for n, rest in ((1, (1.0, "x")), (2, (None, None))))
    assert lenient.duplicates.count == 1


def test_rows_of_another_job_are_refused_kept_or_replaced(case: TableCase) -> None:
    case.append(case.sink(), reading(1, 1))
    with pytest.raises(SinkError, match="did not write"):
        case.sink("other")
    kept = case.sink("kept", Existing.KEEP)
    case.apply(kept, (DELETE, reading(1, 1), None), (INSERT, None, reading(2, 2)))
    assert case.rows() == [reading(2, 2)]
    case.sink("new", Existing.REPLACE)
    assert case.rows() == []


def test_a_table_that_exists_is_taken_as_it_is_with_the_columns_it_lacks(case: TableCase) -> None:
    columns = "sensor STRING TAG, temp DOUBLE FIELD, REGION STRING TAG, remark INT32 FIELD"
    case.execute(f"CREATE DATABASE {case.database}", f"CREATE TABLE {case.database}.readings ({columns})")
    case.append(case.sink(), reading(1, 5), reading(2, 6, None, "x"))
    assert case.rows() == [reading(1, 5), reading(2, 6, None, "x")]


@pytest.mark.parametrize(
    ("columns", "message", "detail"),
    [
        ("region STRING TAG, sensor STRING TAG, temp INT32 FIELD", "another type",
         '"temp" is FIELD INT32, the column needs FIELD DOUBLE'),
        ("region STRING TAG, sensor STRING TAG, note TEXT ATTRIBUTE", "another type", "is ATTRIBUTE"),
        ("region STRING TAG, temp DOUBLE FIELD", "other tags", "Its tags are region."),
        ("region STRING TAG, sensor STRING TAG, more STRING TAG", "other tags", "more, region, sensor"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(
    case: TableCase, columns: str, message: str, detail: str
) -> None:
    columns = columns.replace("TEXT ATTRIBUTE", "STRING ATTRIBUTE")
    case.execute(f"CREATE DATABASE {case.database}", f"CREATE TABLE {case.database}.readings ({columns})")
    refused = {each.check: each for each in inspect_iotdb(case.config(), READINGS, case.server.password)}["iotdb.types"]
    assert (refused.level, detail in refused.fact) == (Level.REFUSED, True)
    with pytest.raises(SinkError, match=message):
        case.sink()
    assert case.table_rows() == []


def test_a_column_of_another_type_that_appears_later_is_refused_with_the_whole_row(case: TableCase) -> None:
    sink = case.sink()
    case.execute(
        "DROP TABLE readings", "CREATE TABLE readings (region STRING TAG, sensor STRING TAG, note INT32 FIELD)"
    )
    with pytest.raises(SinkError, match="another type"):
        case.read(sink, 0, reading(1, 10))
    assert case.table_rows() == []


def test_differences_are_found_whatever_they_are(case: TableCase) -> None:
    sink = case.sink()
    rows = [reading(n, n) for n in range(100)]
    case.append(sink, *rows)
    settings = sink.writer()._settings
    found = compare_points(settings, [batch(READINGS, rows[:50]), batch(READINGS, rows[50:])])
    assert (found.equal, found.rows, found.points) == (True, 100, 100)
    case.execute(
        "INSERT INTO readings(time, region, sensor, temp) VALUES (7, 'eu', '1', 8.0)",
        "INSERT INTO readings(time, region, sensor, temp) VALUES (200, 'eu', '1', 8.0)",
    )
    found = compare_points(settings, [batch(READINGS, [*rows, reading(101, 300)])])
    kinds = {each.kind: (each.time, each.measurement, each.source, each.target) for each in found.differences}
    assert kinds == {
        PointDifferenceKind.DIFFERENT: (7, "temp", 1.0, 8.0),
        PointDifferenceKind.MISSING: (300, "", None, None),
        PointDifferenceKind.EXTRA: (200, "", None, None),
    }


def test_the_preflight_reports_what_the_table_is_like(case: TableCase) -> None:
    findings = {each.check: each for each in inspect_iotdb(case.config(), READINGS, case.server.password)}
    assert findings.pop("iotdb.tls").level is Level.INFO
    assert {each.level for each in findings.values()} == {Level.OK}
    assert f'rows become "{case.database}"."readings" of region, sensor at at' in findings["iotdb.mapping"].fact
    assert "is still to be made" in findings["iotdb.types"].fact
    case.sink()
    case.execute("ALTER TABLE readings ADD COLUMN remark INT32 FIELD")
    findings = {each.check: each for each in inspect_iotdb(case.config(), READINGS, case.server.password)}
    assert "what its other fields hold goes with a row that is emptied: remark" in findings["iotdb.types"].fact


class KilledAt:
    """A lease check at which the server dies with SIGKILL and comes back, in the middle of writing or of emptying."""

    def __init__(self, server: IotdbServer, *calls: int) -> None:
        self._server, self._calls, self._made = server, calls, 0

    def __call__(self) -> None:
        self._made += 1
        if self._made in self._calls:
            self._server.kill()
            self._server.start()


def test_rows_written_and_emptied_survive_a_killed_server(tmp_path: Path) -> None:
    with IotdbServer(precision="us") as server:
        case = TableCase(server, tmp_path, SLOTTED, lease=KilledAt(server, 24, 32))
        sink = case.sink(tablet_rows=100)
        rows: list[Row] = [("eu", n % 50, n // 50, float(n), "n") for n in range(2000)]
        case.append(sink, *rows)
        emptied: list[Row] = [(*each[:4], None) for each in rows[:700]]
        gone = rows[700:1400]
        changes = [
            *((UPDATE, before, after) for before, after in zip(rows, emptied, strict=False)),
            *((DELETE, each, None) for each in gone),
        ]
        with pytest.raises(SinkUnavailableError, match="was restarted while points were written"):
            case.apply(sink, *changes, epoch=2)
        case.apply(sink, *changes, epoch=2)
        server.kill()
        server.start()
        found = compare_points(sink.writer()._settings, [batch(SLOTTED, [*emptied, *rows[1400:]])])
        assert (found.rows, found.points, found.differences) == (1300, 1300, [])


@pytest.fixture
def job(mysql_server: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IotdbTableJob]:
    """A job of `orders`, whose times are spread over a century: one partition, or each row would get its own file."""
    partitions = {"time_partition_interval": str(1000 * 365 * 86_400_000)}
    limits = {"range_rows": 150, "rows_per_second": 800, "backoff": "200ms", "max_backoff": "2s", "retries": 40}
    settings: dict[str, object] = {"limits": limits, "epoch": {"backfill": "500ms", "live": "200ms"}}
    with IotdbServer(precision="us", properties=partitions) as server:
        monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", server.password)
        execute(mysql_server, None, "CREATE DATABASE table_job")
        with mysql_server.connect() as connection:
            create_orders_table(connection, 2_000, 5, database="table_job", key_step=5)
        yield IotdbTableJob(mysql_server, tmp_path, "table_job", target=server, settings=settings)
        execute(mysql_server, None, "DROP DATABASE table_job")


@pytest.mark.timeout(1800)
def test_a_job_killed_under_a_writer_leaves_exactly_the_rows_of_the_source(job: IotdbTableJob) -> None:
    table = orders_table(job.database)
    with Workload(lambda: job.server.connect(job.database), table, seed=3, rate=15, mix=NO_SHARED_TIMES) as writer:
        job.run("--until", "live", kill="after:ReadRanges:2@snapshot")
        job.run(kill="after:MergeEpoch:2@live")
        job.to_live()
    assert {OpKind.INSERT, OpKind.UPDATE, OpKind.DELETE} <= writer.report().counts.keys()
    job.to_live()
    assert job.differences() == []
    told = json.loads(job.command("verify", "--json"))
    assert (told["equal"], told["rows_source"]) == (True, rows_of(job.server, job.database))
    session = job.target.table_session(job.database)
    session.execute_non_query_statement("DELETE FROM orders WHERE state = 'new'")
    session.close()
    told = json.loads(job.command("verify", "--json", code=1))
    assert told["missing"] > 0
    assert job.here_command("resnapshot", "--all") == 0
    job.to_live()
    assert job.differences() == []


def test_names_that_the_server_folds_into_one_are_refused(case: TableCase) -> None:
    case.definition = table_of({"region": "int", "sensor": "int", "at": "bigint", "Temp": "int", "tEMP": "int"}, "at")
    with pytest.raises(ConfigError, match=r"sink\.iotdb\.rename: two columns of the table would be called 'temp'"):
        case.sink()
    case.append(case.sink(rename={"Temp": "first", "region": "Area", "sensor": "SENSOR"}), (1, 2, 3, 4, 5))
    session = case.server.table_session(case.database)
    answer = session.execute_query_statement("SELECT area, sensor, first, temp FROM readings")
    assert [str(f.value) for f in answer.next().get_fields()] == ["b'1'", "b'2'", "4", "5"]
    answer.close_operation_handle()
    session.close()
