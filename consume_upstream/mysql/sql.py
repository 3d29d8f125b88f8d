"""Builds every statement about the copied table; no other module does.

Names are quoted by `quoted`. Values are never in the text: they are parameters, in the order of the placeholders.

Key conditions are spelled out column by column, because neither server turns a comparison of row values into a range of
the index. For a key (a, b) "from (x, y) on" is `(a > x) OR (a = x AND b >= y)`, and both servers read just the range.

A text bound is converted to the column's character set and compared under the column's collation by name; otherwise
the connection's own collation could take part in the comparison, and the index would be neither used nor agreed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from consume_upstream.mysql.rows.prepared_statement import Parameter
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import Bound, KeyRange

__all__ = [
    "Query",
    "canonical",
    "explain_stretches",
    "first_key",
    "indexed_table",
    "last_key",
    "last_key_before",
    "pads_with_spaces",
    "placeholder",
    "quoted",
    "select_keys",
    "select_range",
    "skip_rows",
    "table_name",
    "weight_strings",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """SQL text with placeholders, and the values for them."""

    text: str
    parameters: tuple[Parameter, ...] = ()


def quoted(name: str) -> str:
    """An identifier as both servers read it, whatever characters it holds."""
    return "`" + name.replace("`", "``") + "`"


def table_name(definition: TableDefinition) -> str:
    return f"{quoted(definition.database)}.{quoted(definition.table)}"


def select_range(
    definition: TableDefinition, index: str, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
) -> Query:
    """The rows of a range in key order; those after `after` only; at most `limit`."""
    columns = ", ".join(canonical(column) for column in definition.columns)
    return _range_query(definition, index, columns, key_range, after, f" LIMIT {limit}" if limit else "")


def select_keys(definition: TableDefinition, index: str, keys: Sequence[Key]) -> Query:
    """The rows of these keys, those that exist."""
    columns = ", ".join(canonical(column) for column in definition.columns)
    each = " AND ".join(f"{quoted(column.name)} = {placeholder(column)}" for column in definition.key_columns)
    where = " OR ".join([f"({each})"] * len(keys))
    text = f"SELECT {columns} FROM {indexed_table(definition, index)} WHERE {where}"
    return Query(text, tuple(value for key in keys for value in key))


def explain_stretches(definition: TableDefinition, index: str, bounds: Sequence[Bound]) -> Query:
    """The optimiser's view of what is between each two neighbours of `bounds`, numbered from 1 by `id`.

    Its `rows` comes from dives into the index, not from statistics. MySQL 9 answers as a tree unless a table is asked
    for.
    """
    each = _range_query(definition, index, _key_list(definition), KeyRange(bounds[0], bounds[1]), None, "").text
    ends = [bound for stretch in pairwise(bounds) for bound in stretch]
    parameters = tuple(value for bound in ends for value in _repeated(bound.key))
    return Query("EXPLAIN FORMAT=TRADITIONAL " + " UNION ALL ".join([f"({each})"] * (len(bounds) - 1)), parameters)


def skip_rows(definition: TableDefinition, index: str, after: Key, rows: int) -> Query:
    """The key `rows` rows after `after`: the server skips, one key travels."""
    return _range_query(
        definition, index, _key_list(definition), KeyRange(None, None), after, f" LIMIT 1 OFFSET {rows - 1}"
    )


def first_key(definition: TableDefinition, index: str) -> Query:
    return _range_query(definition, index, _key_list(definition), KeyRange(None, None), None, " LIMIT 1")


def last_key(definition: TableDefinition, index: str) -> Query:
    return Query(f"SELECT {_key_list(definition)} FROM {indexed_table(definition, index)}{_last(definition)}")


def last_key_before(definition: TableDefinition, index: str, bound: Key) -> Query:
    """The last key before a bound: the server reads the index backwards from there."""
    before = beyond(definition.key_columns, bound, "<", inclusive=False)
    table = indexed_table(definition, index)
    return Query(
        f"SELECT {_key_list(definition)} FROM {table} WHERE {before.text}{_last(definition)}", before.parameters
    )


def _last(definition: TableDefinition) -> str:
    return " ORDER BY " + ", ".join(f"{quoted(name)} DESC" for name in definition.key) + " LIMIT 1"


def weight_strings(column: Column, count: int, *, pad_to: int | None) -> str:
    """The sort keys of `count` values, then their lengths without padding; for the driver's own placeholders.

    `pad_to` is the number of characters for a collation that pads with spaces. Each value is given twice, as UTF-8
    bytes.
    """
    padded = f" AS CHAR({pad_to})" if pad_to else ""
    value = _collated(column, "CONVERT(%s USING utf8mb4)")
    weights = [f"WEIGHT_STRING({value}{padded}) AS w{i}" for i in range(count)]
    lengths = [f"LENGTH(WEIGHT_STRING({value})) AS n{i}" for i in range(count)]
    return "SELECT " + ", ".join(weights + lengths)


def pads_with_spaces(column: Column) -> str:
    """Whether trailing spaces are ignored by the column's collation."""
    return f"SELECT {_collated(column, _text('a'))} = {_collated(column, _text('a '))} AS padded"


def _range_query(
    definition: TableDefinition, index: str, columns: str, key_range: KeyRange, after: Key | None, tail: str
) -> Query:
    key = definition.key_columns
    conditions: list[Query] = []
    if after is not None:
        conditions.append(beyond(key, after, ">", inclusive=False))
    elif key_range.low is not None:
        conditions.append(beyond(key, key_range.low.key, ">", inclusive=True))
    if key_range.high is not None:
        conditions.append(beyond(key, key_range.high.key, "<", inclusive=key_range.closed))
    where = " WHERE " + " AND ".join(condition.text for condition in conditions) if conditions else ""
    text = f"SELECT {columns} FROM {indexed_table(definition, index)}{where} ORDER BY {_key_list(definition)}{tail}"
    return Query(text, tuple(value for condition in conditions for value in condition.parameters))


def beyond(
    columns: Sequence[Column],
    bound: Key,
    sign: str,
    *,
    inclusive: bool,
    compared: Callable[[Column], str] | None = None,
) -> Query:
    """`(a > x) OR (a = x AND b > y) OR …`; the last comparison includes its bound if `inclusive`.

    `compared` gives the placeholder for a column's value, where it is not the usual one.
    """
    written = compared or placeholder
    cases: list[str] = []
    for length in range(1, len(columns) + 1):
        last = length == len(columns)
        signs = ["="] * (length - 1) + [sign + ("=" if inclusive and last else "")]
        terms = [
            f"{quoted(column.name)} {comparison} {written(column)}"
            for column, comparison in zip(columns, signs, strict=False)
        ]
        cases.append("(" + " AND ".join(terms) + ")")
    return Query("(" + " OR ".join(cases) + ")", tuple(_repeated(bound[: len(columns)])))


def _repeated(bound: Key) -> list[Parameter]:
    """The values of `beyond`: of each case those that it compares."""
    return [value for length in range(1, len(bound) + 1) for value in bound[:length]]


def indexed_table(definition: TableDefinition, index: str) -> str:
    """The table, read by the index of its key."""
    # Without the hint a large range of a secondary key would be a scan of the whole table and a sort.
    return f"{table_name(definition)} FORCE INDEX ({quoted(index)})"


def _key_list(definition: TableDefinition) -> str:
    return ", ".join(quoted(name) for name in definition.key)


def placeholder(column: Column) -> str:
    """The placeholder of a value that the column is compared with."""
    return _collated(column, "?") if column.kind is Kind.STRING and column.charset else "?"


def _collated(column: Column, text: str) -> str:
    return f"CONVERT({text} USING {column.charset}) COLLATE {column.collation}"


def _text(literal: str) -> str:
    return f"_utf8mb4'{literal}'"


def canonical(column: Column) -> str:
    """The column, cast where the protocol's own form would not be the canonical value."""
    name = quoted(column.name)
    if column.kind is Kind.TIME:
        return f"CAST({name} AS CHAR) AS {name}"
    if column.kind is Kind.DECIMAL and column.precision > 38:
        # A ZEROFILL column is sent with its leading zeros, which the log does not have.
        return f"CAST({name} AS DECIMAL({column.precision},{column.scale})) AS {name}"
    return name
