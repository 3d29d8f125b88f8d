"""`docs/types.md` and `docs/keys.md` say what the code does, and whole jobs copy every type that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import Schema

from consume_upstream.mysql.rows.key_walk import check_walkable
from consume_upstream.mysql.schema.charsets import charset_named
from devkit.spark import REPOSITORY
from tests.system.consume_upstream.mysql.value_types import all_types
from vnode_backfill.config.iotdb import DecimalAs
from vnode_backfill.sinks.iotdb.values import default_type, possible_types
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import PlanRefusedError

TYPES, KEYS = (REPOSITORY / "docs" / name for name in ("types.md", "keys.md"))
MEANING = {"(n)": "(9)", "(f)": "(3)", ",s)": ",1)"}
"""What stands for a number on the pages."""


def rows_of(page: str) -> Iterator[list[str]]:
    """The cells of the rows of a page's table."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    yield from ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def columns_of(cell: str) -> Iterator[Column]:
    """The columns that a cell names, at both ends of a range such as `BIT(2..64)`."""
    for name in named(cell):
        if name == "UNSIGNED":
            yield from (parsed(f"{integer} UNSIGNED") for integer in named(cell) if integer != "UNSIGNED")
            continue
        for sign, number in MEANING.items():
            name = name.replace(sign, number)
        ends = re.search(r"(\d+)\.\.(\d+)", name)
        yield from (parsed(name.replace(ends[0], end)) for end in ends.groups()) if ends else [parsed(name)]


def parsed(declaration: str) -> Column:
    return Column.parse("c", declaration, nullable=True, charset="utf8mb4")


def delta_name(column: Column) -> str:
    (field,) = Schema.from_arrow(pa.schema([pa.field("c", column.arrow_type)])).fields
    return str(getattr(field.type, "type", field.type))


def class_of(column: Column) -> tuple[object, ...]:
    """What the pages tell apart: the name, the sign of integers, and the form."""
    return column.type_name, column.unsigned and column.kind is Kind.INT, column.arrow_type.id


TYPE_ROWS = list(rows_of(TYPES.read_text()))


@pytest.mark.parametrize("row", TYPE_ROWS, ids=lambda row: row[0][:30])
def test_page_of_types_names_the_form_in_each_sink(row: list[str]) -> None:
    source, delta, by_default, also = row
    for column in columns_of(source):
        scaled = f"decimal({column.precision},{column.scale})"
        assert delta_name(column) == named(delta)[0].replace("decimal(p,s)", scaled)
        decimals = [DecimalAs.DOUBLE, *([DecimalAs.TEXT] if pa.types.is_decimal(column.arrow_type) else [])]
        defaults = [default_type(column.arrow_type, as_).name for as_ in decimals]
        assert [name for name in named(by_default) if name.isupper()] == defaults
        assert set(named(also)) == {kind.name for kind in possible_types(column.arrow_type)} - set(defaults)


def test_page_of_types_and_the_jobs_of_every_value_have_the_same_types() -> None:
    on_page = {class_of(column) for row in TYPE_ROWS for column in columns_of(row[0])}
    copied = {class_of(parsed(kind[0])) for flavour in ("mysql", "mariadb") for kind in all_types(flavour, "FULL")}
    assert on_page == copied
    kinds = {column.kind for row in TYPE_ROWS for column in columns_of(row[0])}
    assert kinds == set(Kind)


def test_page_of_types_names_what_is_refused() -> None:
    text = TYPES.read_text()
    (listed,) = re.findall(r"any character set but (.*?), which are refused", text)
    for name in re.findall(r"\w+", listed.replace(" and ", " ")):
        with pytest.raises(PlanRefusedError, match=name):
            charset_named(name)
    assert "`VECTOR`" in text
    with pytest.raises(PlanRefusedError, match="no exact canonical value"):
        parsed("vector(3)")


@pytest.mark.parametrize("row", list(rows_of(KEYS.read_text())), ids=lambda row: row[0][:30])
def test_page_of_keys_names_the_executors_that_take_them(row: list[str]) -> None:
    cell, parallel, _, single = row
    for column in columns_of(cell):
        assert (parallel == "yes") is _taken_by_parallel(column)
        assert (single == "yes") is _taken_by_single(column)


def test_page_of_keys_has_every_kind() -> None:
    on_page = {column.kind for row in rows_of(KEYS.read_text()) for column in columns_of(row[0])}
    assert on_page == set(Kind)


def _taken_by_parallel(column: Column) -> bool:
    try:
        column.key_part()
    except PlanRefusedError:
        return False
    return True


def _taken_by_single(column: Column) -> bool:
    try:
        check_walkable(TableDefinition("shop", "orders", (column,), (column.name,)))
    except PlanRefusedError:
        return False
    return True
