"""Steps and shapes of a definition: what a target holds after them, and that they are stored without a loss."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    DeleteRows,
    DropColumn,
    RenameColumn,
    RetypeColumn,
    TableShape,
    column_from_json,
    steps_from_json,
    steps_to_json,
)


def column(name: str, kind: str = "int") -> Column:
    return Column.parse(name, kind, nullable=True)


def definition(*columns: Column) -> TableDefinition:
    return TableDefinition("shop", "items", (column("id"), *columns), ("id",))


OLD = TableShape(definition(column("a"), column("b")))


@pytest.mark.parametrize(("keep", "kept"), [(True, ("b",)), (False, ())])
def test_dropped_column_stays_in_the_target_where_it_is_to_be_kept(keep: bool, kept: tuple[str, ...]) -> None:
    shape = OLD.after(Carried(definition(column("a")), (DropColumn("b"),)), keep_dropped=keep)
    assert tuple(c.name for c in shape.kept) == kept
    assert shape.schema.names == ["id", "a", *kept]


def test_kept_column_stays_through_later_statements() -> None:
    shape = OLD.after(Carried(definition(column("a")), (DropColumn("b"),)), keep_dropped=True)
    shape = shape.after(Carried(definition(column("c")), (RenameColumn("a", "c"),)), keep_dropped=True)
    assert [c.name for c in shape.columns] == ["id", "c", "b"]
    shape = shape.after(Carried(definition(), (DropColumn("c"),)), keep_dropped=True)
    assert [c.name for c in shape.columns] == ["id", "b", "c"]


@pytest.mark.parametrize("name", ["b", "B"])
def test_dropped_column_that_comes_back_is_the_new_one_only(name: str) -> None:
    shape = OLD.after(Carried(definition(column("a")), (DropColumn("b"),)), keep_dropped=True)
    back = column(name, "varchar(9)")
    shape = shape.after(Carried(definition(column("a"), back), (AddColumn(back, "x"),)), keep_dropped=True)
    assert shape.kept == ()
    assert shape.schema.field(name).type == pa.string()


def test_column_dropped_and_added_by_one_statement_is_the_new_one_only() -> None:
    new = column("b", "varchar(9)")
    carried = Carried(definition(column("a"), new), (DropColumn("b"), AddColumn(new)))
    assert OLD.after(carried, keep_dropped=True) == TableShape(carried.definition)


STEPS: list[ColumnStep] = [
    AddColumn(column("c")),
    AddColumn(column("c"), "3"),
    AddColumn(column("c", "varchar(9)"), "ü'\\\n"),
    AddColumn(column("c", "varchar(9)"), ""),
    AddColumn(column("c", "varbinary(9)"), "00ff"),
    AddColumn(column("c", "decimal(5,2)"), "1.50"),
    AddColumn(column("c", "datetime(6)"), "2020-01-02 03:04:05.000006"),
    AddColumn(column("c", "enum('x','y z')"), "y z"),
    AddColumn(Column.parse("c", "int unsigned", nullable=False), "0"),
    DropColumn("b"),
    RenameColumn("a", "b"),
    RetypeColumn(column("a", "bigint")),
    RetypeColumn(Column.parse("a", "varchar(90)", nullable=True, charset="utf8mb4", collation="utf8mb4_bin")),
    DeleteRows("day", (("2024-01-01", None), (None, "2023-01-01"))),
    DeleteRows("name", values=("a", "b")),
]


@pytest.mark.parametrize("step", STEPS)
def test_stored_step_is_read_back_unchanged(step: ColumnStep) -> None:
    assert steps_from_json(json.loads(json.dumps(steps_to_json([step])))) == (step,)


def test_order_of_stored_steps_is_kept() -> None:
    assert steps_from_json(json.loads(json.dumps(steps_to_json(STEPS)))) == tuple(STEPS)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("int", "3", 3), ("int", None, None), ("varbinary(9)", "00ff", b"\x00\xff"), ("varbinary(9)", "", b"")],
)
def test_value_of_an_added_column_is_of_its_type(kind: str, text: str | None, value: object) -> None:
    added = AddColumn(column("c", kind), text)
    assert added.scalar.as_py() == value
    assert added.scalar.type == added.column.arrow_type


@pytest.mark.parametrize("stored", [{"step": "MoveColumn"}, {}])
def test_step_of_a_later_release_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(StateError, match="of the unknown kind"):
        steps_from_json([stored])


def test_step_without_its_column_is_refused() -> None:
    with pytest.raises(StateError, match="has no column"):
        column_from_json(None)
