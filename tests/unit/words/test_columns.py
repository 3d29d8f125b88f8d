"""Each source type has one canonical form, and a definition is stored without loss."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from vnode_backfill.words.columns import Column, Kind, TableDefinition, relabelled
from vnode_backfill.words.errors import PlanRefusedError, StateError
from vnode_backfill.words.key import KeyKind, KeyPart


def column(column_type: str, name: str = "c") -> Column:
    return Column.parse(name, column_type, nullable=True, charset="utf8mb4", collation="utf8mb4_bin")


@pytest.mark.parametrize(
    ("column_type", "arrow"),
    [
        ("tinyint(4)", pa.int8()),
        ("tinyint(1)", pa.int8()),
        ("boolean", pa.int8()),
        ("smallint", pa.int16()),
        ("mediumint(9)", pa.int32()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("bigint(20)", pa.int64()),
        ("tinyint(3) unsigned", pa.int16()),
        ("smallint unsigned", pa.int32()),
        ("mediumint unsigned", pa.int32()),
        ("int(10) unsigned zerofill", pa.int64()),
        ("int(5) zerofill", pa.int64()),
        ("bigint(20) unsigned", pa.decimal128(20, 0)),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("decimal", pa.decimal128(10, 0)),
        ("numeric(38, 10)", pa.decimal128(38, 10)),
        ("decimal(39,2)", pa.string()),
        ("decimal(65,30)", pa.string()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("double(8,2)", pa.float64()),
        ("real", pa.float64()),
        ("bit(1)", pa.bool_()),
        ("bit", pa.bool_()),
        ("bit(9)", pa.binary()),
        ("char(3)", pa.string()),
        ("varchar(255)", pa.string()),
        ("longtext", pa.string()),
        ("enum('a','b')", pa.string()),
        ("set('a','b')", pa.string()),
        ("json", pa.string()),
        ("uuid", pa.string()),
        ("inet6", pa.string()),
        ("inet4", pa.string()),
        ("time(3)", pa.string()),
        ("binary(16)", pa.binary()),
        ("varbinary(20)", pa.binary()),
        ("longblob", pa.binary()),
        ("geometry", pa.binary()),
        ("geomcollection", pa.binary()),
        ("date", pa.date32()),
        ("year(4)", pa.int16()),
        ("datetime(6)", pa.timestamp("us")),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ],
)
def test_source_type_has_one_canonical_type(column_type: str, arrow: pa.DataType) -> None:
    assert column(column_type).arrow_type == arrow


def test_labels_are_read_as_the_server_writes_them() -> None:
    parsed = column("enum('it''s','a,b','','unsigned (3)')")
    assert parsed.labels == ("it's", "a,b", "", "unsigned (3)")
    assert (parsed.kind, parsed.unsigned, parsed.width) == (Kind.ENUM, False, 0)


def test_escapes_of_labels_are_read_as_the_server_writes_them() -> None:
    parsed = column(r"set('c\\d','i\nj','k\0l','q\rz','\\%n','\\n','it''s\\')")
    assert parsed.labels == ("c\\d", "i\nj", "k\0l", "q\rz", "\\%n", "\\n", "it's\\")


def relabel(definition: TableDefinition, *labels: str) -> TableDefinition:
    return replace(definition, columns=(definition.columns[0], replace(definition.columns[1], labels=labels)))


def test_table_of_an_earlier_release_is_the_same_with_better_labels() -> None:
    now = TableDefinition("shop", "orders", (column("int", "id"), column("enum('a','b','c')", "e")), ("id",))
    exact, earlier = relabel(now, "c\\d", "😀", "it's"), relabel(now, "c\\\\d", "?", "it's")
    assert relabelled(earlier, exact) == ("e",)
    assert relabelled(exact, exact) == ()
    assert relabelled(earlier, replace(exact, table="other")) is None
    assert relabelled(relabel(now, "c", "?", "it's"), exact) is None
    assert relabelled(now, replace(now, columns=now.columns[:1])) is None


def test_lengths_and_fractions_are_kept() -> None:
    assert column("varchar(20)").width == 20
    assert column("binary").width == 1
    assert column("bit(9)").width == 9
    assert column("datetime(6)").scale == 6
    assert column("time").scale == 0
    assert (column("decimal(10,2)").precision, column("decimal(10,2)").scale) == (10, 2)


def test_type_without_an_exact_form_is_refused_by_name() -> None:
    with pytest.raises(PlanRefusedError, match="column c has the type 'vector\\(3\\)'"):
        column("vector(3)")


@pytest.mark.parametrize(
    ("column_type", "part"),
    [
        ("int", KeyPart("c", KeyKind.INT)),
        ("bigint unsigned", KeyPart("c", KeyKind.UINT)),
        ("year", KeyPart("c", KeyKind.INT)),
        ("decimal(10,2)", KeyPart("c", KeyKind.DECIMAL, 2)),
        ("varchar(9)", KeyPart("c", KeyKind.TEXT)),
        ("binary(16)", KeyPart("c", KeyKind.BINARY)),
        ("date", KeyPart("c", KeyKind.DATE)),
        ("datetime(3)", KeyPart("c", KeyKind.DATETIME)),
        ("timestamp", KeyPart("c", KeyKind.DATETIME)),
    ],
)
def test_column_that_can_be_ordered_may_be_part_of_a_key(column_type: str, part: KeyPart) -> None:
    assert column(column_type).key_part() == part


@pytest.mark.parametrize("column_type", ["float", "double", "bit(8)", "json", "time", "uuid", "decimal(40,2)"])
def test_column_that_cannot_be_ordered_is_refused_as_key(column_type: str) -> None:
    with pytest.raises(PlanRefusedError, match="whose order the client cannot compute") as caught:
        column(column_type).key_part()
    assert "executor: single" in caught.value.hint


def definition() -> TableDefinition:
    columns = (
        Column.parse("b", "varchar(20)", nullable=False, charset="utf8mb4", collation="utf8mb4_bin"),
        Column.parse("a", "bigint unsigned", nullable=False),
        Column.parse("é'\"", "enum('x','y')", nullable=True),
    )
    return TableDefinition("shop", "orders", columns, ("a", "b"))


def test_definition_comes_back_from_its_json() -> None:
    stored = json.loads(json.dumps(definition().to_json()))
    assert TableDefinition.from_json(stored) == definition()


def test_definition_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(StateError, match="unknown version 7"):
        TableDefinition.from_json({**definition().to_json(), "version": 7})


def test_key_is_in_index_order_and_columns_in_table_order() -> None:
    table = definition()
    assert [each.name for each in table.key_columns] == ["a", "b"]
    assert table.key_parts == (KeyPart("a", KeyKind.UINT), KeyPart("b", KeyKind.TEXT))
    assert table.arrow_schema.names == ["b", "a", "é'\""]
    assert [field.nullable for field in table.arrow_schema] == [False, False, True]
