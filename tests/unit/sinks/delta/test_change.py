"""A sink gives its table other columns, and every row keeps what the source shows for it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from consume_upstream.upstream_table import ValueForms
from tests.tables import table_of
from tests.unit.sinks.delta.shapes import ITEMS, Cells, carried, column, items, lake, merge, read
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta import mask
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.follow import change
from vnode_backfill.sinks.delta.follow.change import ColumnChange
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.verify.delta_version import open_target
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, SinkError
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, DropColumn, RenameColumn, RetypeColumn, TableShape

Item = TypeVar("Item")
Result = TypeVar("Result")
OLD = TableShape(ITEMS)
ONE: Cells = {"id": 1, "name": "a", "count": 10, "price": 0.5}
TWO: Cells = {"id": 2, "name": "b", "count": 20, "price": 1.5}
THREE: Cells = {"id": 3, "name": "c", "count": 30, "price": 2.5}
COLUMNS = {"id": "int", "name": "varchar(20)", "count": "int", "price": "float"}
ADDED = AddColumn(column("note", "varchar(20)"))
WITH_NOTE = carried(OLD, {**COLUMNS, "note": "varchar(20)"}, ADDED)


@pytest.fixture(params=MergeMode)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaSink:
    """Rows 1 and 2 in one file, of which 2 was changed, and 3 in another that was deleted again."""
    made = items(tmp_path, request.param)
    read(made, 1, ITEMS, ONE, {**TWO, "name": "old"}, THREE)
    merge(made, 2, ITEMS, TWO, delete=[THREE])
    return made


def version(folder: Path) -> int:
    return DeltaTable(str(folder / "target")).version()


def files(folder: Path) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(str(folder / "target")).file_uris()}


def test_an_added_column_without_a_value_is_a_commit_without_files(sink: DeltaSink, tmp_path: Path) -> None:
    before = files(tmp_path)
    sink.change(1, WITH_NOTE, [ADDED])
    assert files(tmp_path) == before
    assert lake(tmp_path) == [{**ONE, "note": None}, {**TWO, "note": None}]
    merge(sink, 3, WITH_NOTE.definition, {**ONE, "note": "new"})
    assert lake(tmp_path) == [{**ONE, "note": "new"}, {**TWO, "note": None}]


def test_files_with_and_without_an_added_column_are_joined_and_folded(sink: DeltaSink, tmp_path: Path) -> None:
    sink.change(1, WITH_NOTE, [ADDED])
    merge(sink, 3, WITH_NOTE.definition, {**ONE, "note": "new"}, {**THREE, "note": "three"})
    sink.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    sink.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    assert lake(tmp_path) == [{**ONE, "note": "new"}, {**TWO, "note": None}, {**THREE, "note": "three"}]


def test_an_added_column_has_the_value_of_the_statement(sink: DeltaSink, tmp_path: Path) -> None:
    added = AddColumn(column("kind", "enum('x','y')"), "x")
    sink.change(1, carried(OLD, {**COLUMNS, "kind": "enum('x','y')"}, added), [added])
    assert lake(tmp_path) == [{**ONE, "kind": "x"}, {**TWO, "kind": "x"}]


def test_a_renamed_column_keeps_its_values(sink: DeltaSink, tmp_path: Path) -> None:
    renamed = RenameColumn("count", "number")
    shape = carried(OLD, {"id": "int", "name": "varchar(20)", "number": "int", "price": "float"}, renamed)
    sink.change(1, shape, [renamed])
    assert [row["number"] for row in lake(tmp_path)] == [10, 20]
    merge(sink, 3, shape.definition, {"id": 1, "name": "a", "number": 11, "price": 0.5})
    assert [row["number"] for row in lake(tmp_path)] == [11, 20]


def test_two_columns_are_exchanged(tmp_path: Path) -> None:
    sink = items(tmp_path)
    read(sink, 1, ITEMS, ONE)
    twice: list[ColumnStep] = [RenameColumn("name", "label"), AddColumn(column("name", "varchar(20)"), "n")]
    sink.change(1, carried(OLD, {**COLUMNS, "label": "varchar(20)"}, *twice), twice)
    swap = [RenameColumn("name", "name_"), RenameColumn("label", "name"), RenameColumn("name_", "label")]
    sink.change(2, carried(OLD, {**COLUMNS, "label": "varchar(20)"}, *swap), swap)
    assert lake(tmp_path) == [{**ONE, "name": "a", "label": "n"}]


def test_a_renamed_key_is_found(sink: DeltaSink, tmp_path: Path) -> None:
    renamed = RenameColumn("id", "item")
    columns = {"item": "int", "name": "varchar(20)", "count": "int", "price": "float"}
    shape = carried(OLD, columns, renamed, key=("item",))
    sink.change(1, shape, [renamed])
    two: Cells = {"item": 2, "name": "B", "count": 20, "price": 1.5}
    merge(sink, 3, shape.definition, two, delete=[{"item": 1}])
    assert lake(tmp_path, by="item") == [two]
    stated = DeltaTable(str(tmp_path / "target")).metadata().configuration["delta.dataSkippingStatsColumns"]
    assert stated.startswith("`item`")
    assert sink.key_extremes() == [(2,)] or set(sink.key_extremes()) == {(2,)}


@pytest.mark.parametrize(
    ("name", "kind", "arrow"),
    [
        ("count", "bigint", pa.int64()),
        ("count", "bigint unsigned", pa.decimal128(20)),
        ("price", "double", pa.float64()),
    ],
)
def test_a_wider_column_has_the_same_values(
    sink: DeltaSink, tmp_path: Path, name: str, kind: str, arrow: pa.DataType
) -> None:
    step = RetypeColumn(column(name, kind))
    sink.change(1, carried(OLD, {**COLUMNS, name: kind}, step), [step])
    assert lake(tmp_path) == [ONE, TWO]
    for path in files(tmp_path):
        assert pq.read_schema(tmp_path / "target" / path).field(name).type == arrow


def test_a_wider_key_is_found(sink: DeltaSink, tmp_path: Path) -> None:
    step = RetypeColumn(column("id", "bigint"))
    shape = carried(OLD, {**COLUMNS, "id": "bigint"}, step)
    sink.change(1, shape, [step])
    merge(sink, 3, shape.definition, {**TWO, "name": "B"}, {**ONE, "id": 2**40}, delete=[ONE])
    assert [row["id"] for row in lake(tmp_path)] == [2, 2**40]


def test_a_longer_text_is_no_change_of_files(sink: DeltaSink, tmp_path: Path) -> None:
    before = files(tmp_path)
    step = RetypeColumn(column("name", "varchar(200)"))
    sink.change(1, carried(OLD, {**COLUMNS, "name": "varchar(200)"}, step), [step])
    assert files(tmp_path) == before


def test_a_kept_column_stays_and_new_rows_have_null_there(sink: DeltaSink, tmp_path: Path) -> None:
    before, step = files(tmp_path), DropColumn("count")
    shape = carried(OLD, {"id": "int", "name": "varchar(20)", "price": "float"}, step)
    sink.change(1, shape, [step])
    assert files(tmp_path) == before
    merge(sink, 3, shape.definition, {"id": 2, "name": "B", "price": 1.0})
    read(sink, 4, shape.definition, {"id": 3, "name": "c", "price": 2.0})
    assert [(row["id"], row["count"]) for row in lake(tmp_path)] == [(1, 10), (2, None), (3, None)]


@pytest.mark.parametrize("name", ["count", "COUNT"])
def test_a_column_of_a_kept_name_does_not_show_the_old_values(sink: DeltaSink, tmp_path: Path, name: str) -> None:
    three = {"id": "int", "name": "varchar(20)", "price": "float"}
    shape = carried(OLD, three, DropColumn("count"))
    sink.change(1, shape, [DropColumn("count")])
    added = AddColumn(column(name, "varchar(9)"))
    sink.change(2, carried(shape, {**three, name: "varchar(9)"}, added), [added])
    assert [row[name] for row in lake(tmp_path)] == [None, None]
    assert all(pq.read_schema(tmp_path / "target" / path).names.count("count") <= 1 for path in files(tmp_path))


def test_a_dropped_column_is_gone_from_every_file(sink: DeltaSink, tmp_path: Path) -> None:
    step = DropColumn("count")
    sink.change(1, carried(OLD, {"id": "int", "name": "varchar(20)", "price": "float"}, step, keep=False), [step])
    assert list(lake(tmp_path)[0]) == ["id", "name", "price"]
    assert all("count" not in pq.read_schema(tmp_path / "target" / path).names for path in files(tmp_path))


def test_another_order_of_columns_is_a_commit_without_files(sink: DeltaSink, tmp_path: Path) -> None:
    before = files(tmp_path)
    sink.change(1, carried(OLD, dict(reversed(COLUMNS.items()))), [])
    assert (files(tmp_path), list(lake(tmp_path)[0])) == (before, ["price", "count", "name", "id"])
    merge(sink, 3, ITEMS, THREE)
    assert lake(tmp_path) == [ONE, TWO, THREE]


def test_a_second_call_changes_nothing(sink: DeltaSink, tmp_path: Path) -> None:
    sink.change(1, WITH_NOTE, [ADDED])
    at = version(tmp_path)
    sink.change(1, WITH_NOTE, [ADDED])
    again = items(tmp_path)
    after_preparing = version(tmp_path)
    again.change(1, WITH_NOTE, [ADDED])
    assert (version(tmp_path), after_preparing - at) == (after_preparing, 0)
    merge(again, 3, WITH_NOTE.definition, {**ONE, "note": "x"})
    assert again.schema_version() == 1


def test_an_earlier_version_is_refused(sink: DeltaSink) -> None:
    sink.change(2, WITH_NOTE, [ADDED])
    with pytest.raises(FencedError):
        sink.change(1, OLD, [DropColumn("note")])


def test_rows_of_the_old_shape_are_refused_once_the_table_has_the_new_one(sink: DeltaSink, tmp_path: Path) -> None:
    """A driver that died after the change and before the checkpoint comes back with the shape of before."""
    renamed = RenameColumn("count", "number")
    sink.change(
        1, carried(OLD, {"id": "int", "name": "varchar(20)", "number": "int", "price": "float"}, renamed), [renamed]
    )
    again = items(tmp_path)
    with pytest.raises(SinkError, match="another definition"):
        merge(again, 3, ITEMS, ONE)
    assert again.schema_version() == 1


def test_a_table_that_somebody_else_has_changed_is_refused(sink: DeltaSink, tmp_path: Path) -> None:
    sink.change(1, WITH_NOTE, [ADDED])
    log = DeltaLog(Storage.of(str(tmp_path / "target")), "else", "the table")
    foreign = carried(
        WITH_NOTE, {**COLUMNS, "note": "varchar(20)", "more": "int"}, more := AddColumn(column("more", "int"))
    )
    ColumnChange(log, 1, foreign, sink._layout_of(foreign), sink._committing).follow([more], None)
    table = log.open()
    log.redefine(table, table.protocol, {"vnodeBackfill.columns": "of another time"})
    with pytest.raises(SinkError, match="cannot take the rows"):
        items(tmp_path)


def test_what_the_table_promises_stays(sink: DeltaSink, tmp_path: Path) -> None:
    log = DeltaLog(Storage.of(str(tmp_path / "target")), "job", "the table", 1)
    table = log.open()
    log.redefine(table, table.protocol, {"mine": "yes"})
    before = log.open()
    sink.change(1, WITH_NOTE, [ADDED])
    after = log.open()
    assert after.protocol == before.protocol
    assert (after.metadata.id, after.metadata.created) == (before.metadata.id, before.metadata.created)
    changed = {"delta.dataSkippingStatsColumns", "vnodeBackfill.columns", "vnodeBackfill.keptColumns"}
    kept = {name: value for name, value in before.metadata.configuration.items() if name not in changed}
    assert kept.items() <= after.metadata.configuration.items()
    assert after.transactions["job/driver"] == 1


def test_the_first_column_without_a_zone_demands_its_feature(tmp_path: Path) -> None:
    sink = items(tmp_path, MergeMode.REWRITE)
    read(sink, 1, ITEMS, ONE)
    added = AddColumn(column("at", "datetime(6)"), "2024-05-01 12:00:00.000000")
    sink.change(1, carried(OLD, {**COLUMNS, "at": "datetime(6)"}, added), [added])
    assert "timestampNtz" in sink._log.open().protocol.features
    assert str(lake(tmp_path)[0]["at"]) == "2024-05-01 12:00:00"


def test_a_table_is_emptied_once(sink: DeltaSink, tmp_path: Path) -> None:
    sink.empty(1, WITH_NOTE)
    assert lake(tmp_path) == []
    merge(sink, 3, WITH_NOTE.definition, {**ONE, "note": "x"})
    sink.empty(1, WITH_NOTE)
    assert lake(tmp_path) == [{**ONE, "note": "x"}]


@pytest.mark.parametrize("compacts", [False, True])
def test_what_others_commit_while_files_are_written_is_not_lost(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    """Rows that a vector took meanwhile are gone in the new files; files that a compaction made are written, too."""
    added, other = AddColumn(column("kind", "int"), "7"), items(tmp_path)
    read(sink, 3, ITEMS, *({**THREE, "id": number} for number in (4, 5, 6, 7)))
    merge(sink, 4, ITEMS, delete=[{"id": 4}])
    write, calls = ColumnChange._write, []

    def overtaken(self: ColumnChange, *given: object) -> None:
        write(self, *given)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 1:
            merge(other, 5, ITEMS, THREE, delete=[ONE, {"id": 6}])
        elif len(calls) == 2 and compacts:
            other.compact(CompactionPolicy.on_request(20_000, folds_all=True))

    monkeypatch.setattr(ColumnChange, "_write", overtaken)
    monkeypatch.setattr(mask, "SMALL_BYTES", 1 << 30)
    sink.change(1, carried(OLD, {**COLUMNS, "kind": "int"}, added), [added])
    assert [(row["id"], row["kind"]) for row in lake(tmp_path)] == [(number, 7) for number in (2, 3, 5, 7)]
    assert len(calls) == (3 if compacts else 2)


@pytest.mark.parametrize("writes", [True, False], ids=["files are written", "columns only"])
def test_a_fold_that_read_the_old_columns_has_no_effect(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    other = items(tmp_path)
    compactor = other._compactor()
    added = AddColumn(column("kind", "int"), "7" if writes else None)
    shape = carried(OLD, {**COLUMNS, "kind": "int"}, added)
    names = ("_settle", "_put_in_place")

    for name in names:
        original = getattr(type(compactor), name)

        def late(self: object, *given: object, original: object = original) -> object:
            if sink.schema_version() == 0:
                sink.change(1, shape, [added])
                merge(sink, 14, shape.definition, {**THREE, "id": 11, "kind": 8})
            return original(self, *given)  # type: ignore[operator]

        monkeypatch.setattr(type(compactor), name, late)
    for epoch in (11, 12, 13):
        read(sink, epoch, ITEMS, {**THREE, "id": epoch})
    done = other.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    assert done is not None
    assert done.removed == 0
    assert {row["id"]: row["kind"] for row in lake(tmp_path)}[11] == 8


def test_a_compaction_that_knows_only_the_old_columns_keeps_the_new_ones(sink: DeltaSink, tmp_path: Path) -> None:
    other = items(tmp_path)
    sink.change(1, WITH_NOTE, [ADDED])
    merge(sink, 3, WITH_NOTE.definition, {**ONE, "note": "new"}, {**THREE, "note": "three"})
    for _ in range(3):
        other.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    assert lake(tmp_path) == [{**ONE, "note": "new"}, {**TWO, "note": None}, {**THREE, "note": "three"}]


def test_the_version_of_a_definition_is_no_epoch(sink: DeltaSink, tmp_path: Path) -> None:
    """Else files of an epoch that has not ended could be swept."""
    sink.change(99, WITH_NOTE, [ADDED])
    assert sink._log._newest_epoch(sink._log.open()) == 2
    assert sink.merged(Epoch(2))


def test_kept_columns_are_named_in_the_table(sink: DeltaSink) -> None:
    sink.change(
        1,
        carried(OLD, {"id": "int", "name": "varchar(20)", "price": "float"}, DropColumn("count")),
        [DropColumn("count")],
    )
    assert json.loads(sink._log.open().metadata.configuration["vnodeBackfill.keptColumns"]) == ["count"]


def test_steps_that_do_not_lead_to_the_shape_are_refused(sink: DeltaSink, tmp_path: Path) -> None:
    at = version(tmp_path)
    with pytest.raises(SinkError, match="cannot be changed as the statement says"):
        sink.change(1, WITH_NOTE, [])
    assert version(tmp_path) == at
    merge(sink, 3, ITEMS, THREE)


def test_rows_that_lack_a_column_are_refused(sink: DeltaSink) -> None:
    """NULL for a lacking column is right in files from before, and for kept columns, and nowhere else."""
    lacking = table_of({"id": "int", "name": "varchar(20)"}, "id")
    with pytest.raises((SinkError, KeyError)):
        read(sink, 3, lacking, {"id": 9, "name": "x"})


def test_large_tables_are_written_again_by_tasks(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task is given and what it returns goes through a pickle."""
    given: list[object] = []

    def tasks(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        given.extend(items)
        return [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(function))(each))) for each in items]

    monkeypatch.setattr(change, "REWRITE_IN_TASKS_BYTES", 0)
    steps: list[ColumnStep] = [AddColumn(column("kind", "int"), "7"), RenameColumn("count", "number")]
    columns = {"id": "int", "name": "varchar(20)", "number": "int", "price": "float", "kind": "int"}
    sink.change(1, carried(OLD, columns, *steps), steps, tasks)
    assert [(row["number"], row["kind"]) for row in lake(tmp_path)] == [(10, 7), (20, 7)]
    assert given


def test_a_comparison_leaves_kept_columns_out(sink: DeltaSink, tmp_path: Path) -> None:
    shape = carried(OLD, {"id": "int", "name": "varchar(20)", "price": "float"}, DropColumn("count"))
    sink.change(1, shape, [DropColumn("count")])
    target = Storage.of(str(tmp_path / "target"))
    view = open_target(shape.definition, target, cast(ValueForms, None))
    assert (view.told, view.columns) == ((), ("id", "name", "price"))
