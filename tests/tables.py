"""Makes small tables for tests of sinks, buffer and merge: definitions, rows and changes, written as plain tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

from consume_upstream.buffer import buffer_schema
from devkit.lake import read_lake
from vnode_backfill.words import change
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan, bound_of, plan_of

Cell: TypeAlias = bool | int | float | Decimal | str | bytes | date | datetime | None
Row: TypeAlias = tuple[Cell, ...]


def table_of(columns: Mapping[str, str], *key: str) -> TableDefinition:
    """A definition from column names and MySQL types; key columns are NOT NULL."""
    parsed = tuple(Column.parse(name, kind, nullable=name not in key) for name, kind in columns.items())
    return TableDefinition("shop", "orders", parsed, key)


ORDERS = table_of({"id": "bigint", "name": "varchar(100)", "amount": "decimal(12,2)", "at": "datetime(6)"}, "id")


def order(number: int, name: str | None = "a") -> Row:
    return (number, name, Decimal(number) / 4, datetime(2024, 5, 1, 12, 0, 0, number % 1_000_000))


def batch(definition: TableDefinition, rows: Sequence[Row]) -> pa.RecordBatch:
    schema = definition.arrow_schema
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plan(definition: TableDefinition, *bounds: Key, vnodes: int = 8) -> SplitPlan:
    """Ranges between the bounds, the last one closed; none without bounds."""
    marks = [(bound_of(definition.key_parts, bound, [str(b).encode() for b in bound]), 1) for bound in bounds]
    return plan_of(definition.key_parts, tuple(marks), vnodes)


def stored(path: object) -> list[Row]:
    """The rows of a Delta table as `deltalake` reads them, in one fixed order."""
    table = read_lake(str(path))
    return in_order(tuple(row.values()) for row in table.to_pylist())


def in_order(rows: object) -> list[Row]:
    assert hasattr(rows, "__iter__")
    return sorted(rows, key=repr)


Change: TypeAlias = tuple[ChangeOp, int, Row]
"""An operation, its position in the log, and the row (of a delete, any row with the key)."""


def change_table(
    definition: TableDefinition, changes: Sequence[Change], *, epoch: int = 1, file: int = 1, numbered: bool = False
) -> pa.Table:
    """Changes as the buffer holds them; an insert has half 1, so that it follows a delete at the same position.

    With `numbered` the changes at one position are the rows of one event, in the order given.
    """
    names = [column.name for column in definition.columns]
    rows = []
    seen: Counter[int] = Counter()
    for op, pos, row in changes:
        image = dict(zip(names, row, strict=True))
        if op is ChangeOp.DELETE:
            image = {name: value if name in definition.key else None for name, value in image.items()}
        place = {change.VNODE: 0, change.EPOCH: epoch, change.FILE: file, change.POS: pos, change.ROW: seen[pos]}
        seen[pos] += numbered
        half = 0 if op is ChangeOp.DELETE else 1
        rows.append({**place, change.HALF: half, change.OP: int(op), change.TIMESTAMP: 0, **image})
    return pa.Table.from_pylist(rows, schema=buffer_schema(definition))
