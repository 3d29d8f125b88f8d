"""Every sink keeps the same promises: one suite, run against each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest

from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, IotdbTarget, PathColumn, TimeColumn
from tests.system.sinks.iotdb.iotdb_case import Change, window
from tests.tables import Row, batch, change_table, in_order, plan, stored, table_of
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks import ReadReceipt, Sink
from vnode_backfill.sinks.changes import Changes, MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.sinks.iotdb.sink import Existing, IotdbOptions, IotdbSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.columns import Column
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, SinkError
from vnode_backfill.words.schema_change import AddColumn, Carried, DropColumn, TableShape

FIRST, SECOND, THIRD = Epoch(1), Epoch(2), Epoch(3)
ORDERS = table_of({"id": "bigint", "name": "varchar(100)", "amount": "decimal(12,2)", "at": "datetime(3)"}, "id")
PLAN = plan(ORDERS, (0,), (10,), (20,), (30,))
INSERT, UPDATE, DELETE = ChangeOp
NOON, BEGINNING = datetime(2024, 5, 1, 12), datetime(1970, 1, 1)
_databases = count(1)


def order(number: int, name: str | None = "a") -> Row:
    return (number, name, Decimal(number) / 4, NOON + timedelta(milliseconds=number))


def instant(ticks: int) -> datetime:
    return BEGINNING + timedelta(milliseconds=ticks)


class Target(Protocol):
    """A target of one kind: makes sinks of it as different drivers and jobs would, and reads it by other code."""

    def sink(self, job: str = "job", *, replace: bool = False, generation: int = 0) -> Sink: ...

    def rows(self) -> list[Row]: ...

    def changes(self, *changes: Change) -> Changes:
        """Operations with the row before and after, in the order of the log, as a merge hands them to this sink."""
        ...

    hides_uncommitted: bool
    """Whether what tasks have written is invisible until it is committed."""


@dataclass
class DeltaTarget:
    folder: Path
    mode: MergeMode = MergeMode.REWRITE
    hides_uncommitted: bool = True

    def sink(self, job: str = "job", *, replace: bool = False, generation: int = 0) -> Sink:
        path = str(self.folder / "target")
        return DeltaSink(path, ORDERS, job, replace=replace, generation=generation, creates=self.mode)

    def rows(self) -> list[Row]:
        return stored(self.folder / "target")

    def changes(self, *changes: Change) -> Changes:
        last = {
            (after or before or ())[0]: (op, pos, after or before or ())
            for pos, (op, before, after) in enumerate(changes)
        }
        return MemoryChanges(change_table(ORDERS, list(last.values())).drop_columns(list(OFFSET_COLUMNS)), ORDERS.key)


@dataclass
class PointTarget:
    folder: Path
    server: IotdbServer
    database: str
    hides_uncommitted: bool = False

    def sink(self, job: str = "job", *, replace: bool = False, generation: int = 0) -> Sink:
        config: dict[str, object] = {
            "host": self.server.host, "port": self.server.port, "time": {"column": "at"}, "decimal": "text",
            "timeout": "20s", **self.place(),
        }  # fmt: skip
        existing = Existing.REPLACE if replace else Existing.REFUSE
        options = IotdbOptions(str(self.folder / job), self.server.password, generation=generation, existing=existing)
        return IotdbSink(IotdbSinkConfig.model_validate(config), ORDERS, job, options)

    def place(self) -> dict[str, object]:
        return {"device": f"root.{self.database}.orders"}

    def rows(self) -> list[Row]:
        session = self.server.session()
        target = IotdbTarget(
            session, f"root.{self.database}.orders", path={}, time=TimeColumn("at", instant),
            measurements={"id": "id", "name": "name", "amount": "amount"},
            convert={"amount": lambda text: Decimal(str(text))},
        )  # fmt: skip
        found = in_order(target.rows(("id", "name", "amount", "at")))
        session.close()
        return found

    def changes(self, *changes: Change) -> Changes:
        return window(ORDERS, changes)


@dataclass
class TableTarget(PointTarget):
    """Rows of a table of IoTDB; the key is its tag."""

    def place(self) -> dict[str, object]:
        return {"model": "table", "database": self.database, "tags": ["id"]}

    def rows(self) -> list[Row]:
        session = self.server.table_session(self.database)
        target = IotdbTable(
            session, ORDERS.table, tags={"id": PathColumn("id", convert=int)}, time=TimeColumn("at", instant),
            fields={"name": "name", "amount": "amount"}, convert={"amount": lambda text: Decimal(str(text))},
        )  # fmt: skip
        found = in_order(target.rows(("id", "name", "amount", "at")))
        session.close()
        return found


@pytest.fixture(
    params=["delta", "vectors", *(pytest.param(name, marks=pytest.mark.long) for name in ("iotdb", "iotdb-table"))]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param in ("delta", "vectors"):
        return DeltaTarget(tmp_path, MergeMode.VECTORS if request.param == "vectors" else MergeMode.REWRITE)
    kind = PointTarget if request.param == "iotdb" else TableTarget
    return kind(tmp_path, request.getfixturevalue("iotdb_server"), f"contract{next(_databases)}")


@pytest.fixture
def sink(target: Target) -> Sink:
    made = target.sink()
    made.prepare()
    return made


def read(sink: Sink, ordinal: int, *rows: Row, epoch: Epoch = FIRST, attempt: int = 0) -> ReadReceipt:
    return sink.writer().write(epoch, ordinal, attempt, [batch(ORDERS, rows)])


def append(sink: Sink, *rows: Row, epoch: Epoch = FIRST) -> None:
    sink.commit_reads(epoch, [read(sink, 0, *rows, epoch=epoch)], [], PLAN)


def told(receipts: Sequence[ReadReceipt] | None) -> list[tuple[int, int]]:
    return [(receipt.ordinal, receipt.rows) for receipt in receipts or ()]


def test_preparing_again_changes_nothing(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    target.sink().prepare()
    target.sink(replace=True).prepare()
    assert target.rows() == [order(1)]


def test_rows_of_another_job_are_refused_or_go_if_the_configuration_says_so(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    with pytest.raises(SinkError, match="did not write"):
        target.sink("other").prepare()
    assert target.rows() == [order(1)]
    other = target.sink("other", replace=True)
    other.prepare()
    assert target.rows() == []
    append(other, order(2))
    other.prepare()
    assert target.rows() == [order(2)]


def test_committed_ranges_are_there_with_every_value(target: Target, sink: Sink) -> None:
    receipts = [read(sink, 0, order(1), order(2, None)), read(sink, 1, order(15, "größe 😀"))]
    assert told(receipts) == [(0, 2), (1, 1)]
    assert (target.rows() == []) == target.hides_uncommitted
    assert told(sink.commit_reads(FIRST, receipts, [], PLAN)) == [(0, 2), (1, 1)]
    assert target.rows() == in_order([order(1), order(2, None), order(15, "größe 😀")])


def test_an_epoch_is_appended_once_and_what_landed_first_counts(target: Target, sink: Sink) -> None:
    landed = sink.commit_reads(FIRST, [read(sink, 0, order(1)), read(sink, 1)], [], PLAN)
    late = [read(sink, 0, order(1), order(5), attempt=1), read(sink, 2, order(25), attempt=1)]
    assert told(sink.commit_reads(FIRST, late, [], PLAN)) == told(landed) == [(0, 1), (1, 0)]
    assert target.rows() == [order(1)]


def test_a_lost_attempt_leaves_nothing_behind(target: Target, sink: Sink) -> None:
    read(sink, 0, order(1), order(2))
    read(sink, 1, order(11))
    resumed = target.sink()
    resumed.prepare()
    resumed.commit_reads(FIRST, [read(resumed, 0, order(1), order(3), attempt=1)], [], PLAN)
    assert target.rows() == [order(1), order(3)]


def test_a_recovery_learns_what_an_epoch_has_landed(target: Target, sink: Sink) -> None:
    assert sink.landed_reads(FIRST) == (None, None)
    sink.commit_reads(FIRST, [read(sink, 0, order(1)), read(sink, 2, order(21), order(22))], [], PLAN)
    appended, replaced = target.sink().landed_reads(FIRST)
    assert told(appended) == [(0, 1), (2, 2)]
    assert replaced is None
    assert sink.landed_reads(SECOND) == (None, None)


def test_a_range_whose_rows_fail_has_no_receipt_and_no_effect(target: Target, sink: Sink) -> None:
    def failing() -> pa.RecordBatch:
        raise SinkError("the source went away")

    with pytest.raises(SinkError, match="went away"):
        sink.writer().write(FIRST, 0, 0, (failing() for _ in range(1)))
    assert target.rows() == []


def test_a_replaced_range_holds_exactly_the_rows_read(target: Target, sink: Sink) -> None:
    old = [read(sink, 0, order(3), order(9)), read(sink, 1, order(12), order(15), order(18)), read(sink, 2, order(21))]
    sink.commit_reads(FIRST, old, [], PLAN)
    new = read(sink, 1, order(12, None), order(13), epoch=SECOND)
    assert told(sink.commit_reads(SECOND, [], [new], PLAN)) == [(1, 2)]
    assert target.rows() == in_order([order(3), order(9), order(12, None), order(13), order(21)])


def test_replacing_happens_once_and_is_apart_from_appending(target: Target, sink: Sink) -> None:
    append(sink, order(12))
    sink.commit_reads(SECOND, [read(sink, 2, order(21), epoch=SECOND)], [], PLAN)
    appended, replaced = sink.landed_reads(SECOND)
    assert (told(appended), replaced) == ([(2, 1)], None)
    for attempt in range(2):
        sink.commit_reads(SECOND, [], [read(sink, 1, order(11), epoch=SECOND, attempt=attempt)], PLAN)
    assert target.rows() == [order(11), order(21)]


def test_changes_update_insert_and_delete(target: Target, sink: Sink) -> None:
    append(sink, order(1), order(2), order(3))
    wanted = target.changes(
        (UPDATE, order(1), order(1, "new")), (DELETE, order(2), None), (INSERT, None, order(4)),
        (DELETE, order(29), None)
    )  # fmt: skip
    sink.apply(FIRST, wanted)
    assert target.rows() == in_order([order(1, "new"), order(3), order(4)])


def test_the_last_of_several_changes_counts_also_to_null(target: Target, sink: Sink) -> None:
    append(sink, order(1), order(2))
    states = [order(1), order(1, "b"), order(1, None)]
    sink.apply(
        FIRST,
        target.changes(
            (UPDATE, states[0], states[1]),
            (UPDATE, states[1], states[2]),
            (DELETE, order(2), None),
            (INSERT, None, order(2, "c")),
        ),
    )
    assert target.rows() == in_order([order(1, None), order(2, "c")])


def test_changes_of_an_epoch_are_applied_once(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    assert not sink.merged(FIRST)
    sink.apply(FIRST, target.changes((UPDATE, order(1), order(1, "first"))))
    assert target.sink().merged(FIRST)
    sink.apply(FIRST, target.changes((UPDATE, order(1), order(1, "second")), (INSERT, None, order(2))))
    assert target.rows() == [order(1, "first")]


def test_a_key_that_was_deleted_can_come_back(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    sink.apply(FIRST, target.changes((DELETE, order(1), None)))
    assert target.rows() == []
    sink.apply(SECOND, target.changes((INSERT, None, order(1, "again"))))
    assert target.rows() == [order(1, "again")]


def test_the_extremes_of_the_target_are_among_the_keys_returned(sink: Sink) -> None:
    assert sink.key_extremes() == []
    append(sink, order(5), order(-3), order(8))
    assert {(-3,), (8,)} <= set(sink.key_extremes())


def test_a_driver_that_was_replaced_cannot_commit(target: Target) -> None:
    old, new = target.sink(generation=1), target.sink(generation=2)
    old.prepare()
    receipt = read(old, 0, order(1))
    new.prepare()
    refused: list[Callable[[], object]] = [lambda: old.commit_reads(FIRST, [receipt], [], PLAN), old.prepare]
    for attempt in refused:
        with pytest.raises(FencedError, match="generation 2"):
            attempt()
    assert new.landed_reads(FIRST) == (None, None)


def test_an_epoch_before_the_one_in_the_target_is_refused(sink: Sink) -> None:
    append(sink, order(1), epoch=SECOND)
    with pytest.raises(FencedError, match="holds epoch 2 already"):
        sink.commit_reads(FIRST, [read(sink, 1, order(11))], [], PLAN)


NOTE = AddColumn(Column.parse("note", "varchar(20)", nullable=True))
WITH_NOTE = TableShape(ORDERS).after(
    Carried(replace(ORDERS, columns=(*ORDERS.columns, NOTE.column)), (NOTE,)), keep_dropped=True
)


def known(target: Target) -> list[Row]:
    """The columns that the table began with."""
    return in_order(row[: len(ORDERS.columns)] for row in target.rows())


def test_columns_change_once_per_version(target: Target, sink: Sink) -> None:
    append(sink, order(1), order(2))
    assert sink.schema_version() == 0
    sink.change(1, WITH_NOTE, [NOTE])
    sink.change(1, WITH_NOTE, [NOTE])
    again = target.sink()
    again.prepare()
    again.change(1, WITH_NOTE, [NOTE])
    assert (again.schema_version(), known(target)) == (1, [order(1), order(2)])
    with pytest.raises(FencedError):
        again.change(0, TableShape(ORDERS), [])


def test_a_sink_that_uses_the_new_shape_writes_its_rows(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    sink.change(1, WITH_NOTE, [NOTE])
    again = target.sink()
    again.use(WITH_NOTE)
    again.prepare()
    rows = [batch(WITH_NOTE.definition, [(*order(12), "x")])]
    again.commit_reads(SECOND, [again.writer().write(SECOND, 1, 0, rows)], [], PLAN)
    assert known(target) == in_order([order(1), order(12)])


def test_a_table_is_emptied_once_per_version(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    sink.empty(1, TableShape(ORDERS))
    assert target.rows() == []
    sink.apply(SECOND, target.changes((INSERT, None, order(2))))
    again = target.sink()
    again.prepare()
    again.empty(1, TableShape(ORDERS))
    assert target.rows() == [order(2)]


def test_a_sink_that_is_not_beside_stays_where_it_is(target: Target, sink: Sink) -> None:
    append(sink, order(1))
    sink.put_in_place()
    assert (sink.is_beside, target.rows()) == (False, [order(1)])


@pytest.mark.parametrize("keep", [True, False])
def test_a_column_that_comes_back_has_none_of_its_old_values(target: Target, sink: Sink, keep: bool) -> None:
    append(sink, order(1, "old"), order(2, "old"))
    without = replace(ORDERS, columns=tuple(column for column in ORDERS.columns if column.name != "name"))
    dropped, added = DropColumn("name"), AddColumn(ORDERS.column("name"))
    shape = TableShape(ORDERS).after(Carried(without, (dropped,)), keep_dropped=keep)
    sink.change(1, shape, [dropped])
    sink.change(2, shape.after(Carried(ORDERS, (added,)), keep_dropped=keep), [added])
    assert target.rows() == in_order([order(1, None), order(2, None)])
    sink.apply(SECOND, target.changes((UPDATE, order(2, None), order(2, "new"))))
    assert target.rows() == in_order([order(1, None), order(2, "new")])
