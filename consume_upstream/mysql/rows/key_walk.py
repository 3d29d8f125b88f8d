"""Walks a whole table in the server's own order, whatever that order is, a stretch at a time.

The client compares nothing. It gives the server the last key it has, as a *cursor*, and asks for what comes after it in
the order of the key's index. What must be true: the server compares a cursor with the column exactly as its index
orders the column:

    column                       cursor value                 compared as
    ENUM, SET, BIT               index, bits, bits            numbers; a label would compare in the text's order
    FLOAT, DOUBLE                shortest exact text          CAST(? AS DOUBLE)
    TIME                         canonical text               itself: MySQL reads CAST(? AS TIME) as another value
    CHAR .. TEXT                 the text                     in the column's character set, under its collation
    UUID, INET4, INET6           the text                     CAST to the type, whose order is not that of the text
    all others                   the value                    itself

The rows are sorted by the column itself. A TIME column is also selected as text under its own name, and `ORDER BY` with
the bare name would mean that text.

A cursor on ENUM or SET makes the server go through the index from its start. So such keys are for tables that are not
large.

Two rows may share a canonical value where the server holds values that its own type does not know: the empty text of an
ENUM is index 0, unless the type has an empty label. Then the walk cannot distinguish them, and the key is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import TracebackType
from typing import Self

import pyarrow as pa

from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.rows.prepared_statement import Parameter
from consume_upstream.mysql.rows.queries import Queries
from consume_upstream.mysql.rows.result_rows import RowDecoder
from consume_upstream.mysql.schema.definition import key_index
from consume_upstream.mysql.sql import Query, canonical, indexed_table, placeholder, quoted, table_name
from vnode_backfill.words.columns import Column, Kind, TableDefinition, listed_label
from vnode_backfill.words.errors import KeyOrderError, PlanRefusedError, SourceError
from vnode_backfill.words.key import Key, KeyValue

__all__ = ["WalkSession", "check_walkable", "cursor_of", "select_behind"]

_CASTS = {
    Kind.FLOAT: "DOUBLE", Kind.DOUBLE: "DOUBLE", Kind.UUID: "UUID", Kind.INET4: "INET4",
    Kind.INET6: "INET6",
}  # fmt: skip
_UNWALKABLE = (Kind.JSON, Kind.GEOMETRY)
_SIGNED_LABELS = 63
"""With 64 labels the highest is the sign of the number that the server compares by."""


class WalkSession:
    """One connection for walking one table; a context manager. One read at a time."""

    def __init__(self, table: KnownTable) -> None:
        self._definition = table.definition
        self._connection = table.connect()
        try:
            self._index = key_index(self._connection, table.definition)
        except SourceError:
            self._connection.close()
            raise
        self._decoder = RowDecoder(table.definition.columns, table.definition.key, table.zero_dates)
        self._queries = Queries(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.open:
            self._connection.close()

    def read(self, after: Key | None, limit: int) -> Iterator[pa.RecordBatch]:
        """The next `limit` rows after a cursor, or from the table's first.

        They are fewer only where the table ends; anything else raises.
        """
        query = select_behind(self._definition, self._index, after, limit)
        return self._queries.read(query, self._decoder)


def select_behind(definition: TableDefinition, index: str, after: Key | None, limit: int) -> Query:
    """The rows after a cursor in the order of the key's index, at most `limit`."""
    columns = ", ".join(canonical(column) for column in definition.columns)
    order = ", ".join(f"{table_name(definition)}.{quoted(name)}" for name in definition.key)
    where, parameters = "", tuple[Parameter, ...]()
    if after is not None:
        condition = _behind(definition.key_columns, after)
        where, parameters = f" WHERE {condition.text}", condition.parameters
    text = f"SELECT {columns} FROM {indexed_table(definition, index)}{where} ORDER BY {order} LIMIT {limit}"
    return Query(text, parameters)


def cursor_of(definition: TableDefinition, batch: pa.RecordBatch | pa.Table) -> Key:
    """The key of the last row, as the values that the server compares it by."""
    last = batch.slice(batch.num_rows - 1)
    return tuple(cursor_value(column, last.column(column.name)[0].as_py()) for column in definition.key_columns)


def check_walkable(definition: TableDefinition) -> None:
    """Refuse a key whose place cannot be given to the server exactly."""
    for column in definition.key_columns:
        reason = _unwalkable(column)
        if reason:
            raise PlanRefusedError(
                f"key column {column.name} has the type {column.type_name}, which cannot be walked exactly",
                detail=reason,
                hint="Give the table a NOT NULL unique key of other columns.",
            )


def _unwalkable(column: Column) -> str:
    if column.kind in _UNWALKABLE:
        return "Values of this type have no order."
    if column.kind is Kind.ENUM and "" in column.labels:
        return "Its empty label and the server's mark for an invalid value are the same text."
    if len(set(column.labels)) < len(column.labels):
        return "Two of its labels look the same where the server lists them, which has no characters beyond U+FFFF."
    if column.kind is Kind.SET and len(column.labels) > _SIGNED_LABELS:
        return "The server compares a SET of 64 labels by a number whose sign is its last label."
    return ""


def _behind(columns: Sequence[Column], after: Key) -> Query:
    """`(a > x) OR (a = x AND b > y) OR …`.

    It is spelled out, because neither server reads a range for a comparison of rows.
    """
    cases: list[str] = []
    parameters: list[Parameter] = []
    for length in range(1, len(columns) + 1):
        signs = ["="] * (length - 1) + [">"]
        terms = [
            f"{quoted(column.name)} {sign} {compared_by(column)}" for column, sign in zip(columns, signs, strict=False)
        ]
        cases.append("(" + " AND ".join(terms) + ")")
        parameters.extend(after[:length])
    return Query("(" + " OR ".join(cases) + ")", tuple(parameters))


def compared_by(column: Column) -> str:
    cast = _CASTS.get(column.kind)
    return f"CAST(? AS {cast})" if cast else placeholder(column)


def cursor_value(column: Column, value: object) -> KeyValue:
    """The value as the server compares it; `bool` and `float` never leave here."""
    match column.kind, value:
        case Kind.ENUM, str():
            return _place(column, value) + 1 if value else 0
        case Kind.SET, str():
            return sum(1 << _place(column, label) for label in value.split(",") if label)
        case Kind.BIT, bool():
            return int(value)
        case Kind.BIT, bytes():
            return int.from_bytes(value, "big")
        case ((Kind.FLOAT | Kind.DOUBLE), float()):
            return repr(value)
        case Kind.INT, Decimal():
            return int(value)
        case Kind.DECIMAL, str():
            return Decimal(value)
        case _, int() | Decimal() | str() | bytes() | datetime() | date():
            return value
        case _:
            raise KeyOrderError(f"key column {column.name} holds {value!r}, from which a walk cannot continue")


def _place(column: Column, label: str) -> int:
    """The label's place, from 0; MySQL lists labels without the characters beyond U+FFFF that a row holds."""
    return column.labels.index(label if label in column.labels else listed_label(label))
