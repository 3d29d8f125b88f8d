"""A change of columns is followed where every point stays right, and refused elsewhere."""

from __future__ import annotations

import pytest

from tests.tables import table_of
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.sinks.iotdb.follow import PointChange, fitting, misfits_refused
from vnode_backfill.sinks.iotdb.mapping import PointMapping
from vnode_backfill.sinks.iotdb.values import Precision
from vnode_backfill.words.columns import Column
from vnode_backfill.words.errors import SinkError
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    DropColumn,
    RenameColumn,
    RetypeColumn,
    TableShape,
)

COLUMNS = {"id": "bigint", "sensor": "int", "at": "datetime(3)", "temp": "int", "note": "text", "secret": "text"}
OLD = TableShape(table_of(COLUMNS, "id"))


def config(**overrides: object) -> IotdbSinkConfig:
    plain: dict[str, object] = {"host": "h", "device": "root.plant.s{sensor}", "time": {"column": "at"}}
    return IotdbSinkConfig.model_validate({**plain, "exclude": ["secret"], **overrides})


def column(name: str, kind: str) -> Column:
    return Column.parse(name, kind, nullable=True)


def gone(
    columns: dict[str, str], *steps: ColumnStep, shape: TableShape = OLD, keep: bool = True, **overrides: object
) -> tuple[str, ...]:
    """The measurements whose points go."""
    after = shape.after(Carried(table_of(columns, "id"), steps), keep_dropped=keep)
    with misfits_refused():
        before, then = (
            PointMapping.of(fitting(config(**overrides), each.definition), each.definition, Precision.MILLISECONDS)
            for each in (shape, after)
        )
    return PointChange.of(before, then, (shape, after), steps).gone


def without(*names: str) -> dict[str, str]:
    return {name: kind for name, kind in COLUMNS.items() if name not in names}


def test_a_column_without_a_value_is_added() -> None:
    assert gone({**COLUMNS, "more": "int"}, AddColumn(column("more", "int"))) == ()


def test_a_dropped_column_keeps_its_points_or_loses_them() -> None:
    assert gone(without("note"), DropColumn("note")) == ()
    assert gone(without("note"), DropColumn("note"), keep=False) == ("note",)


def test_points_of_a_kept_column_go_before_its_namesake_comes() -> None:
    kept = OLD.after(Carried(table_of(without("note"), "id"), (DropColumn("note"),)), keep_dropped=True)
    assert gone(COLUMNS, AddColumn(column("note", "text")), shape=kept) == ("note",)


def test_a_type_that_is_the_same_for_the_server_changes_nothing() -> None:
    assert gone({**COLUMNS, "note": "longtext"}, RetypeColumn(column("note", "longtext"))) == ()


def test_a_column_that_is_left_out_may_be_dropped() -> None:
    assert gone(without("secret"), DropColumn("secret"), keep=False) == ()


@pytest.mark.parametrize(
    ("columns", "step", "reason"),
    [
        ({**COLUMNS, "more": "int"}, AddColumn(column("more", "int"), "7"), "with the value '7'"),
        ({**without("note"), "text": "text"}, RenameColumn("note", "text"), "renamed to text"),
        ({**without("secret"), "hidden": "text"}, RenameColumn("secret", "hidden"), "renamed to hidden"),
        ({**COLUMNS, "temp": "bigint"}, RetypeColumn(column("temp", "bigint")), "is INT32 and would be INT64"),
        (without("at"), DropColumn("at"), "no column at"),
        (without("sensor"), DropColumn("sensor"), "no column sensor"),
    ],
    ids=["value", "rename", "rename of an excluded one", "type", "time", "device"],
)  # fmt: skip
def test_what_points_cannot_follow_is_refused(columns: dict[str, str], step: ColumnStep, reason: str) -> None:
    with pytest.raises(SinkError, match="cannot be followed in IoTDB") as raised:
        gone(columns, step)
    assert reason in raised.value.detail
    assert raised.value.hint


RENAMED = {**without("note"), "text": "text"}


def test_a_renamed_column_whose_measurement_stays_keeps_its_points() -> None:
    renamed = RenameColumn("note", "text")
    assert gone(RENAMED, renamed, rename={"text": "note"}) == ()
    assert gone(RENAMED, renamed, rename={"note": "said", "text": "said"}, keep=False) == ()
    with pytest.raises(SinkError, match="cannot be followed in IoTDB") as raised:
        gone(RENAMED, renamed, rename={"note": "said"})
    assert "`rename: {text: said}`" in raised.value.hint


@pytest.mark.parametrize(
    ("columns", "step", "excluded"),
    [
        ({**COLUMNS, "more": "int"}, AddColumn(column("more", "int"), "7"), ["more"]),
        (RENAMED, RenameColumn("note", "text"), ["note", "text"]),
        ({**COLUMNS, "temp": "bigint"}, RetypeColumn(column("temp", "bigint")), ["temp"]),
    ],
)
def test_a_column_that_is_excluded_from_then_on_is_no_reason_to_refuse(
    columns: dict[str, str], step: ColumnStep, excluded: list[str]
) -> None:
    """What the hint says: the file names columns of both versions."""
    assert gone(columns, step, exclude=["secret", *excluded]) == ()


def test_exchanged_names_are_refused() -> None:
    exchanged = {**COLUMNS, "temp": "text", "note": "int"}
    steps = RenameColumn("temp", "_"), RenameColumn("note", "temp"), RenameColumn("_", "note")
    with pytest.raises(SinkError, match="cannot be followed in IoTDB"):
        gone(exchanged, *steps)


def test_nothing_is_left_to_include() -> None:
    only = config(include=["note"], exclude=[])
    with pytest.raises(SinkError, match="cannot be followed"):
        fitting(only, table_of(without("note"), "id"))
