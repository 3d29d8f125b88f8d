"""Changes of an earlier version of a table become rows of a later one, as the statements in between made them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vnode_backfill.words.change import BEFORE_PREFIX, OP, ChangeOp
from vnode_backfill.words.columns import Column
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.lift import NO_LIFTS, Lifts, columns_before, lifted
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, DeleteRows, DropColumn, RenameColumn, RetypeColumn

Row = dict[str, object]
ID = Column.parse("id", "bigint", nullable=False)


def column(name: str, kind: str = "int") -> Column:
    return Column.parse(name, kind, nullable=True)


def changes(rows: list[Row], *columns: Column) -> pa.RecordBatch:
    """Rows with both images; the one before has every number raised by 100."""
    after = {c.name: pa.array([row[c.name] for row in rows], c.arrow_type) for c in columns}
    before = {BEFORE_PREFIX + c.name: pa.array([_raised(row[c.name]) for row in rows], c.arrow_type) for c in columns}
    return pa.RecordBatch.from_pydict({**after, **before})


def _raised(value: object) -> object:
    return value + 100 if isinstance(value, int) else value


def schema(*columns: Column, before: bool = True) -> pa.Schema:
    fields = [(c.name, c.arrow_type) for c in columns]
    return pa.schema([*fields, *((BEFORE_PREFIX + name, kind) for name, kind in fields)] if before else fields)


def test_example_of_the_module() -> None:
    lifts = Lifts(((Epoch(12), (AddColumn(column("c"), "3"),)), (Epoch(15), (RenameColumn("b", "d"),))))
    batch = changes([{"id": 7, "b": 5}], ID, column("b"))
    found = lifted(batch, lifts.of_epoch(Epoch(11)), schema(ID, column("c"), column("d"), before=False))
    assert found.to_pylist() == [{"id": 7, "c": 3, "d": 5}]


def test_change_that_left_a_row_of_a_dropped_partition_becomes_a_delete() -> None:
    """Also where the column that says so is renamed or dropped by a later statement."""
    steps = (RenameColumn("b", "d"), DeleteRows("d", (("5", "7"),)), DropColumn("d"))
    wanted = pa.schema([(OP, pa.int8()), ("id", pa.int64())])
    assert columns_before(wanted.names, steps) == [OP, "id", "b"]
    ops = [ChangeOp.INSERT, ChangeOp.UPDATE, ChangeOp.UPDATE, ChangeOp.DELETE]
    batch = pa.RecordBatch.from_pydict(
        {OP: pa.array(ops, pa.int8()), "id": pa.array([1, 2, 3, 4], pa.int64()), "b": pa.array([4, 5, 7, None])}
    )
    found = lifted(batch, steps, wanted).column(OP).to_pylist()
    assert found == [ChangeOp.INSERT, ChangeOp.DELETE, ChangeOp.UPDATE, ChangeOp.DELETE]


def test_changes_of_the_epoch_that_has_a_version_are_not_lifted_to_it() -> None:
    lifts = Lifts(((Epoch(12), (DropColumn("a"),)), (Epoch(15), (DropColumn("b"),))))
    assert lifts.of_epoch(Epoch(11)) == (DropColumn("a"), DropColumn("b"))
    assert lifts.of_epoch(Epoch(12)) == (DropColumn("b"),)
    assert lifts.of_epoch(Epoch(15)) == ()
    assert NO_LIFTS.of_epoch(Epoch(0)) == ()


def test_added_column_has_the_value_of_the_statement_in_both_images() -> None:
    found = lifted(changes([{"id": 1}, {"id": 2}], ID), [AddColumn(column("c"), "3")], schema(ID, column("c")))
    assert found.column("c").to_pylist() == [3, 3]
    assert found.column("_before_c").to_pylist() == [3, 3]
    assert found.column("_before_id").to_pylist() == [101, 102]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", None, None),
        ("varchar(9)", "x", "x"),
        ("varchar(9)", "", ""),
        ("varbinary(9)", "00ff", b"\x00\xff"),
        ("bit(9)", "0101", b"\x01\x01"),
        ("bit(1)", "true", True),
        ("decimal(5,2)", "1.50", Decimal("1.50")),
        ("bigint unsigned", "18446744073709551615", Decimal(18446744073709551615)),
        ("double", "0.5", 0.5),
        ("datetime(6)", "2020-01-02 03:04:05.000006", datetime(2020, 1, 2, 3, 4, 5, 6)),
    ],
)
def test_added_column_has_a_value_of_its_type(kind: str, text: str | None, value: object) -> None:
    added = column("c", kind)
    found = lifted(changes([{"id": 1}], ID), [AddColumn(added, text)], schema(ID, added))
    assert found.column("c").to_pylist() == [value]


def test_dropped_column_is_gone_and_one_that_comes_back_has_the_new_value() -> None:
    steps: list[ColumnStep] = [DropColumn("b"), AddColumn(column("b", "varchar(9)"), "new")]
    batch = changes([{"id": 1, "b": 5}], ID, column("b"))
    assert lifted(batch, steps[:1], schema(ID)).schema.names == ["id", "_before_id"]
    found = lifted(batch, steps, schema(ID, column("b", "varchar(9)")))
    assert found.column("b").to_pylist() == ["new"]
    assert found.column("_before_b").to_pylist() == ["new"]


def test_renames_that_exchange_two_columns_exchange_their_values() -> None:
    a, b = column("a"), column("b", "varchar(9)")
    steps = [RenameColumn("a", "a_"), RenameColumn("b", "a"), RenameColumn("a_", "b")]
    batch = changes([{"id": 1, "a": 5, "b": "x"}], ID, a, b)
    found = lifted(batch, steps, schema(ID, column("a", "varchar(9)"), column("b")))
    assert found.column("a").to_pylist() == ["x"]
    assert found.column("b").to_pylist() == [5]
    assert found.column("_before_b").to_pylist() == [105]


def test_type_that_grew_holds_the_old_values() -> None:
    wide = column("b", "bigint")
    batch = changes([{"id": 1, "b": 5}, {"id": 2, "b": None}], ID, column("b"))
    found = lifted(batch, [RetypeColumn(wide)], schema(ID, wide))
    assert found.column("b").type == pa.int64()
    assert found.column("b").to_pylist() == [5, None]
    assert found.column("_before_b").to_pylist() == [105, None]


def test_column_that_grew_and_was_renamed_afterwards_is_found() -> None:
    steps: list[ColumnStep] = [RetypeColumn(column("b", "bigint")), RenameColumn("b", "d")]
    batch = changes([{"id": 1, "b": 5}], ID, column("b"))
    assert lifted(batch, steps, schema(ID, column("d", "bigint"))).column("d").to_pylist() == [5]


def test_images_that_were_not_read_are_not_missed() -> None:
    """A sink that does not look at the row before reads the after-image only."""
    batch = changes([{"id": 1, "b": 5}], ID, column("b")).select(["id", "b"])
    steps: list[ColumnStep] = [
        RenameColumn("b", "d"),
        RetypeColumn(column("d", "bigint")),
        DropColumn("x"),
        AddColumn(column("c"), "1"),
    ]
    found = lifted(batch, steps, schema(ID, column("c"), column("d", "bigint"), before=False))
    assert found.to_pylist() == [{"id": 1, "c": 1, "d": 5}]


def test_batch_without_rows_is_lifted() -> None:
    found = lifted(changes([], ID), [AddColumn(column("c"), "3")], schema(ID, column("c")))
    assert (found.num_rows, found.schema) == (0, schema(ID, column("c")))


@pytest.mark.parametrize(
    ("steps", "names", "needed"),
    [
        ([], ["id", "b"], ["id", "b"]),
        ([AddColumn(column("c"))], ["id", "c", "_before_c"], ["id"]),
        ([RenameColumn("b", "d")], ["id", "d", "_before_d"], ["id", "b", "_before_b"]),
        ([RenameColumn("b", "d"), AddColumn(column("b"))], ["b", "d"], ["b"]),
        ([AddColumn(column("c")), RenameColumn("c", "d")], ["id", "d"], ["id"]),
        ([RenameColumn("a", "a_"), RenameColumn("b", "a"), RenameColumn("a_", "b")], ["a", "b"], ["b", "a"]),
        ([DropColumn("b"), AddColumn(column("b"))], ["id", "b"], ["id"]),
        ([RetypeColumn(column("b", "bigint"))], ["b"], ["b"]),
    ],
)
def test_columns_that_a_file_must_have(steps: list[ColumnStep], names: list[str], needed: list[str]) -> None:
    assert columns_before(names, steps) == needed


NAMES = ("a", "b", "c", "d")


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[str], list[ColumnStep]]:
    """Columns of a table, and steps each of which a server would have carried out."""
    first = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    held, steps = list(first), list[ColumnStep]()
    for value in range(draw(st.integers(0, 6))):
        free = [name for name in NAMES if name not in held]
        kind = draw(st.sampled_from(["add", "drop", "rename"]))
        if kind == "add" and free:
            name = draw(st.sampled_from(free))
            steps.append(AddColumn(column(name), str(value)))
            held.append(name)
        elif kind == "drop" and held:
            name = draw(st.sampled_from(held))
            steps.append(DropColumn(name))
            held.remove(name)
        elif kind == "rename" and held and free:
            old, new = draw(st.sampled_from(held)), draw(st.sampled_from(free))
            steps.append(RenameColumn(old, new))
            held[held.index(old)] = new
    return first, steps


def followed(row: Row, steps: list[ColumnStep]) -> Row:
    """What a server makes of the row."""
    row = dict(row)
    for step in steps:
        match step:
            case AddColumn(column=added, value=value):
                row[added.name] = int(value or 0)
            case DropColumn(name=name):
                del row[name]
            case RenameColumn(old=old, new=new):
                row[new] = row.pop(old)
    return row


@given(histories())
def test_lifted_row_is_what_the_server_made_of_it(history: tuple[list[str], list[ColumnStep]]) -> None:
    first, steps = history
    row: Row = {"id": 1, **{name: 10 + place for place, name in enumerate(first)}}
    batch = changes([row], ID, *map(column, first))
    expected = followed(row, steps)
    wanted = schema(ID, *(column(name) for name in expected if name != "id"))
    needed = columns_before(wanted.names, steps)
    found = lifted(batch.select(needed), steps, wanted)
    assert {name: found.column(name)[0].as_py() for name in expected} == expected
