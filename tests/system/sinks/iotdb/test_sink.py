"""The IoTDB sink keeps its promises about rows, changes, repeats and mistakes, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from iotdb.utils.IoTDBConstants import TSDataType
from iotdb.utils.NumpyTablet import NumpyTablet

from devkit.iotdb import IotdbServer
from tests.system.sinks.iotdb.iotdb_case import (
    EVERY_POINT,
    EVERY_TYPE,
    EVERY_VALUE,
    READINGS,
    SLOTTED,
    IotdbCase,
    reading,
    row,
    window,
)
from tests.tables import Row, batch, table_of
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.iotdb.compare import PointDifferenceKind, compare_points
from vnode_backfill.sinks.iotdb.preflight import inspect_iotdb
from vnode_backfill.sinks.iotdb.sink import Existing
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, SinkError
from vnode_backfill.words.finding import Level

pytestmark = pytest.mark.long

INSERT, UPDATE, DELETE = ChangeOp


@pytest.fixture
def case(iotdb_server: IotdbServer, tmp_path: Path) -> IotdbCase:
    return IotdbCase(iotdb_server, tmp_path)


@pytest.fixture(params=[READINGS, SLOTTED], ids=["owned", "slotted"])
def either(request: pytest.FixtureRequest, iotdb_server: IotdbServer, tmp_path: Path) -> IotdbCase:
    """Both ways in which a slot shows its key."""
    return IotdbCase(iotdb_server, tmp_path, request.param)


def test_rows_become_points_and_null_becomes_none(either: IotdbCase) -> None:
    sink = either.sink()
    rows = [row(either, 1, 10), row(either, 2, 11, None), row(either, 3, 10, 2.5, None, sensor=2)]
    either.append(sink, *rows)
    assert either.rows() == sorted(rows, key=repr)


def test_every_type_arrives_exactly(case: IotdbCase) -> None:
    case.definition = table_of(EVERY_TYPE, "region", "sensor", "at")
    sink = case.sink(time={"column": "at"}, decimal="text")
    case.append(sink, EVERY_VALUE)
    ((_, time, points),) = case.slots()
    assert (time, points) == (1714564800001, EVERY_POINT)


ODD_NAMES = [
    "a.b",
    "a`b",
    "a b",
    "ünï",
    "日本",
    "",
    "123",
    "*",
    "**",
    "a*",
    "time",
    "TimeStamp",
    "root",
    "a\tb\nc",
    "%09",
    "😀",
    "'",
    '"',
    "\\",
]


def test_any_text_is_a_safe_device(case: IotdbCase) -> None:
    sink = case.sink()
    rows = [reading(number, 5, region=name) for number, name in enumerate(ODD_NAMES)]
    case.append(sink, *rows)
    assert len(case.slots()) == len(ODD_NAMES)
    assert compare_points(sink.writer()._settings, [batch(READINGS, rows)]).equal
    case.apply(sink, *((DELETE, each, None) for each in rows[::2]))
    assert compare_points(sink.writer()._settings, [batch(READINGS, rows[1::2])]).equal
    assert sorted(sink.key_extremes()) == [(1,), (len(ODD_NAMES) - 2,)]


def test_what_is_written_again_stays_the_same(either: IotdbCase) -> None:
    sink = either.sink()
    for _ in range(2):
        either.read(sink, 0, row(either, 1, 10), row(either, 2, 11))
    assert len(either.rows()) == 2


def test_a_recovery_learns_what_an_epoch_has_landed(either: IotdbCase) -> None:
    sink = either.sink()
    assert sink.landed_reads(Epoch(1)) == (None, None)
    landed = sink.commit_reads(
        Epoch(1), [either.read(sink, 0, row(either, 1, 10)), either.read(sink, 1)], [], either.plan()
    )
    assert [(r.ordinal, r.rows) for r in landed] == [(0, 1), (1, 0)]
    again, replaced = either.sink().landed_reads(Epoch(1))
    assert [(r.ordinal, r.rows) for r in again or ()] == [(0, 1), (1, 0)]
    assert replaced is None
    late = either.read(sink, 0, row(either, 1, 10), row(either, 5, 50), attempt=1)
    assert [r.rows for r in sink.commit_reads(Epoch(1), [late], [], either.plan())] == [1, 0]
    assert either.rows() == [row(either, 1, 10)]


def test_a_lost_attempt_leaves_nothing_of_what_is_not_read_again(either: IotdbCase) -> None:
    sink = either.sink()
    either.read(sink, 0, row(either, 1, 10), row(either, 2, 20))
    either.read(sink, 1, row(either, 11, 30))
    resumed = either.sink()
    either.append(resumed, row(either, 1, 10), row(either, 3, 40))
    assert either.rows() == sorted([row(either, 1, 10), row(either, 3, 40)], key=repr)


def test_updates_move_empty_and_delete_points(either: IotdbCase) -> None:
    sink = either.sink()
    old = [row(either, n, n) for n in range(1, 6)]
    either.append(sink, *old)
    new = [row(either, 1, 1, 9.5), row(either, 2, 2, None), row(either, 3, 33), row(either, 4, 4, sensor=7)]
    moved = [(UPDATE, before, after) for before, after in zip(old, new, strict=False)]
    either.apply(sink, *moved, (DELETE, old[4], None), (INSERT, None, row(either, 6, 6)), epoch=2)
    assert either.rows() == sorted([*new, row(either, 6, 6)], key=repr)
    assert sink.merged(Epoch(2))


def test_a_merge_repeated_after_half_of_it_ends_the_same(either: IotdbCase) -> None:
    sink = either.sink()
    either.append(sink, row(either, 1, 1), row(either, 2, 2))
    changes = [(UPDATE, row(either, 1, 1), row(either, 1, 3)), (DELETE, row(either, 2, 2), None)]
    # Half of it: the move is done, the rest is not, and no commit records it.
    either.read(sink, 9, row(either, 1, 3))
    either.apply(either.sink(), *changes, epoch=2)
    either.apply(either.sink(), (DELETE, row(either, 1, 3), None), epoch=2)
    assert either.rows() == [row(either, 1, 3)]


def test_aligned_devices_are_written_changed_and_emptied(case: IotdbCase) -> None:
    sink = case.sink(aligned=True)
    case.append(sink, reading(1, 1), reading(2, 2), reading(3, 3))
    case.apply(sink, (UPDATE, reading(1, 1), reading(1, 1, 9.0)), (DELETE, reading(2, 2), None), epoch=2)
    assert case.rows() == [reading(1, 1, 9.0), reading(3, 3)]
    session = case.server.session()
    answer = session.execute_query_statement(f"SHOW DEVICES root.{case.database}.**")
    assert answer.next().get_fields()[1].value == b"true"
    session.close()


def test_slots_that_keys_exchange_end_with_the_right_keys(case: IotdbCase) -> None:
    sink = case.sink()
    case.append(sink, reading(1, 1, 1.0), reading(2, 2, 2.0))
    case.apply(sink, (UPDATE, reading(1, 1, 1.0), reading(1, 2, 1.0)), (UPDATE, reading(2, 2, 2.0), reading(2, 1, 2.0)))
    assert case.rows() == [reading(1, 2, 1.0), reading(2, 1, 2.0)]


def test_states_in_between_leave_nothing(case: IotdbCase) -> None:
    """The read saw the second of four states; the window holds them all."""
    sink = case.sink()
    states = [reading(1, at, float(at), "x" if at < 13 else None) for at in (11, 12, 13, 12)]
    case.append(sink, states[1])
    case.apply(sink, *((UPDATE, before, after) for before, after in pairwise(states)), epoch=3)
    assert case.rows() == [states[-1]]


def test_a_replaced_range_holds_exactly_what_was_read(case: IotdbCase) -> None:
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


def test_points_of_another_job_are_refused_kept_or_replaced(case: IotdbCase) -> None:
    case.append(case.sink(), reading(1, 1))
    with pytest.raises(SinkError, match="did not write"):
        case.sink("other")
    kept = case.sink("kept", Existing.KEEP)
    case.apply(kept, (DELETE, reading(1, 1), None), (INSERT, None, reading(2, 2)))
    assert case.rows() == [reading(2, 2)]
    case.sink("new", Existing.REPLACE)
    assert case.rows() == []


def test_rows_that_cannot_be_points_stop_the_job_or_become_dead_letters(case: IotdbCase, tmp_path: Path) -> None:
    case.definition = table_of(
        {"id": "bigint", "region": "varchar(9)", "sensor": "int", "at": "bigint", "temp": "decimal(9,3)"}, "id"
    )
    rows: list[Row] = [
        (1, None, 1, 5, Decimal(1)),
        (2, "eu", 1, 10**14, Decimal(2)),
        (3, "eu", 1, 7, Decimal("1.5")),
        (4, "eu", 1, 8, None),
    ]
    sink = case.sink(types={"temp": "int32"})
    with pytest.raises(SinkError, match=r"shop\.orders: column at of the row id=2") as raised:
        case.append(sink, *rows[1:])
    assert "100000000000000 does not fit" in raised.value.detail
    taking = case.sink("job", types={"temp": "int32"}, dead_letter=str(tmp_path / "dead"))
    case.append(taking, *rows)
    case.apply(taking, (UPDATE, rows[3], (4, "eu", 1, 8, Decimal("2.25"))), epoch=2)
    assert case.slots() == []
    dead = DeltaTable(tmp_path / "dead").to_pyarrow_table().sort_by("key").to_pylist()
    assert [(d["epoch"], d["key"], d["column"], d["value"]) for d in dead] == [
        (1, "id=1", "region", "NULL"), (1, "id=2", "at", str(10**14)), (1, "id=3", "temp", "1.500"),
        (2, "id=4", "temp", "2.250"),
    ]  # fmt: skip
    assert json.loads(dead[0]["row"]) == {"id": 1, "region": None, "sensor": 1, "at": 5, "temp": "1.000"}


def plant(case: IotdbCase, device: str, at: int, name: str, kind: TSDataType, value: object) -> None:
    """A point that somebody else wrote."""
    session = case.server.session()
    values = [np.array([value], kind.np_dtype())]
    session.insert_tablet(NumpyTablet(f"root.{case.database}.{device}", [name], [kind], values, np.array([at], ">i8")))
    session.close()


def test_series_of_another_type_are_refused_before_anything_is_written(case: IotdbCase) -> None:
    plant(case, "eu.s1", 1, "temp", TSDataType.INT32, 5)
    with pytest.raises(SinkError, match="1 time series exist with another type") as raised:
        case.sink(existing=Existing.KEEP)
    assert f"root.`{case.database}`.`eu`.`s1`.`temp` is INT32, the column needs DOUBLE" in raised.value.detail


def test_a_series_of_another_type_that_appears_later_is_refused_with_the_whole_row(case: IotdbCase) -> None:
    sink = case.sink()
    plant(case, "eu.s1", 1, "note", TSDataType.INT32, 5)
    with pytest.raises(SinkError, match="another type"):
        case.read(sink, 0, reading(1, 10))
    assert case.slots() == [("eu.s1", 1, {"note": 5})]


def test_differences_are_found_whatever_they_are(case: IotdbCase) -> None:
    sink = case.sink()
    rows = [reading(n, n) for n in range(100)]
    case.append(sink, *rows)
    settings = sink.writer()._settings
    found = compare_points(settings, [batch(READINGS, rows[:50]), batch(READINGS, rows[50:])])
    assert (found.equal, found.rows, found.points) == (True, 100, 100)
    plant(case, "eu.s1", 7, "temp", TSDataType.DOUBLE, 8.0)
    plant(case, "eu.s1", 200, "temp", TSDataType.DOUBLE, 8.0)
    found = compare_points(settings, [batch(READINGS, [*rows, reading(101, 300)])])
    assert (found.missing, found.extra, found.different) == (1, 1, 1)
    kinds = {each.kind: (each.time, each.measurement, each.source, each.target) for each in found.differences}
    assert kinds == {
        PointDifferenceKind.DIFFERENT: (7, "temp", 1.0, 8.0),
        PointDifferenceKind.MISSING: (300, "", None, None),
        PointDifferenceKind.EXTRA: (200, "", None, None),
    }


def test_the_preflight_reports_what_the_server_is_like(case: IotdbCase) -> None:
    findings = {each.check: each for each in inspect_iotdb(case.config(), READINGS, case.server.password)}
    assert findings.pop("iotdb.tls").level is Level.INFO
    assert {each.level for each in findings.values()} == {Level.OK}
    assert findings["iotdb.wal_mode"].fact == "wal_mode is SYNC"
    assert findings["iotdb.precision"].fact == "the server counts time in ms"
    assert "shown by id" in findings["iotdb.identity"].fact
    wrong = inspect_iotdb(case.config(time={"column": "note"}), READINGS, case.server.password)
    assert wrong[-1].level is Level.REFUSED
    assert "sink.iotdb.time.column" in wrong[-1].fact


def test_a_server_that_may_lose_points_is_distinguished_from_one_that_does_not_say(case: IotdbCase) -> None:
    def wal_mode(**account: str) -> tuple[Level, str]:
        found = inspect_iotdb(case.config(**account), READINGS, case.server.password)
        return next((each.level, each.fact) for each in found if each.check == "iotdb.wal_mode")

    settings = case.server.folder / "conf" / "iotdb-system.properties"
    written = settings.read_text()
    for unsafe in (written.replace("wal_mode=SYNC", "wal_mode=ASYNC"), written.replace("wal_mode=SYNC\n", "")):
        settings.write_text(unsafe)
        try:
            assert wal_mode() == (
                Level.WARNING, "wal_mode is ASYNC at DataNode 1: a killed server loses points it had acknowledged"
            )  # fmt: skip
        finally:
            settings.write_text(written)
    session = case.server.session()
    session.execute_non_query_statement(f"CREATE USER reader_{case.database} '{case.server.password}'")
    session.close()
    level, fact = wal_mode(user=f"reader_{case.database}")
    assert (level, "this is not a fault" in fact) == (Level.INFO, True)


def test_a_merge_without_its_window_is_refused(case: IotdbCase) -> None:
    sink = case.sink()
    changes = (
        window(READINGS, [(INSERT, None, reading(1, 1))]).parts()[0].load().drop_columns([*OFFSET_COLUMNS, "_index"])
    )
    with pytest.raises(LawBrokenError, match="every change of its window"):
        sink.apply(Epoch(1), MemoryChanges(changes, READINGS.key))


@pytest.fixture(scope="module", params=["us", "ns"])
def fine_server(request: pytest.FixtureRequest) -> Iterator[IotdbServer]:
    with IotdbServer(precision=request.param) as server:
        yield server


class KilledOnce:
    """A lease check in the middle of writing at which the server dies with SIGKILL and comes back."""

    def __init__(self, server: IotdbServer) -> None:
        self._server, self._calls = server, 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 5:
            self._server.kill()
            self._server.start()


def test_times_and_points_survive_a_killed_server_in_its_own_precision(
    fine_server: IotdbServer, tmp_path: Path
) -> None:
    definition = table_of(
        {"region": "varchar(9)", "sensor": "int", "at": "datetime(6)", "temp": "double"}, "region", "sensor", "at"
    )
    case = IotdbCase(fine_server, tmp_path, definition, lease=KilledOnce(fine_server))
    sink = case.sink(time={"column": "at"}, tablet_rows=100)
    rows: list[Row] = [("eu", n % 50, datetime(2024, 5, 1, 0, 0, n // 50, n), float(n)) for n in range(2000)]
    case.read(sink, 0, *rows[:1500])
    case.append(sink, *rows)
    found = compare_points(sink.writer()._settings, [batch(definition, rows)])
    assert (found.rows, found.points, found.differences) == (2000, 2000, [])
