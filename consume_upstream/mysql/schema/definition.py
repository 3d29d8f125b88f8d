"""Reads the definition of the source table: its columns in order, and the key that orders it.

The key is the primary key, or else the NOT NULL unique key that sorts first by (number of columns, index name): the
same choice at every start. An index over a column's prefix or over an expression does not identify a row by column
values and does not count. A table without such a key is refused, because no change of it could be applied exactly.
"""

from __future__ import annotations

from collections import defaultdict

from pymysql.connections import Connection

from consume_upstream.mysql.connection import TABLE_GONE_HINT, source_errors
from consume_upstream.mysql.schema.labels import asked_labels
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import PlanRefusedError, SchemaChangedError
from vnode_backfill.words.hints import KEY_GONE
from vnode_backfill.words.partitioning import Partition, Partitioning

__all__ = ["key_index", "read_definition", "read_partitioning"]

_COLUMNS = """
    SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, COLLATION_NAME
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_NAMES = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_INDEXES = """
    SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE
    FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
    ORDER BY INDEX_NAME, SEQ_IN_INDEX"""

_PARTITIONS = """
    SELECT PARTITION_METHOD, PARTITION_EXPRESSION, PARTITION_NAME, PARTITION_DESCRIPTION
    FROM information_schema.PARTITIONS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND PARTITION_NAME IS NOT NULL
    ORDER BY PARTITION_ORDINAL_POSITION, SUBPARTITION_ORDINAL_POSITION"""


def read_definition(connection: Connection, database: str, table: str) -> TableDefinition:
    """Read the definition as it is now. Names are taken as the server spells them, whatever case was asked for."""
    with source_errors(f"reading the definition of {database}.{table}"), connection.cursor() as cursor:
        cursor.execute(_NAMES, (database, table))
        names = cursor.fetchone()
        cursor.execute(_COLUMNS, (database, table))
        columns = tuple(_column(row) for row in cursor.fetchall())
    if names is None or not columns:
        raise PlanRefusedError(
            f"table {database}.{table} does not exist or cannot be seen",
            hint="Check `mysql.database` and `mysql.table`, and that the user may SELECT from the table.",
        )
    columns = asked_labels(connection, names[0], names[1], columns)
    indexes = _unique_indexes(connection, names[0], names[1])
    if not indexes:
        raise PlanRefusedError(
            f"table {database}.{table} has neither a primary key nor a NOT NULL unique key",
            detail="Without one a row cannot be found again when it is changed or deleted.",
            hint=f"ALTER TABLE {database}.{table} ADD PRIMARY KEY (…);",
        )
    partitioning = read_partitioning(connection, names[0], names[1])
    chosen = _first_choice(indexes)
    primary = chosen.upper() == "PRIMARY"
    return TableDefinition(names[0], names[1], columns, indexes[chosen], partitioning, primary)


def read_partitioning(connection: Connection, database: str, table: str) -> Partitioning | None:
    """The partitions as they are now; None of a table that has none. Subpartitions do not matter."""
    with source_errors(f"reading the partitions of {database}.{table}"), connection.cursor() as cursor:
        cursor.execute(_PARTITIONS, (database, table))
        rows = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in cursor.fetchall()]
    if not rows:
        return None
    partitions = dict.fromkeys(Partition(str(name), values) for _, _, name, values in rows)
    return Partitioning(str(rows[0][0]), str(rows[0][1] or ""), tuple(partitions))


def _exists(connection: Connection, definition: TableDefinition) -> bool:
    with source_errors(f"looking for {definition.database}.{definition.table}"), connection.cursor() as cursor:
        return bool(cursor.execute(_NAMES, (definition.database, definition.table)))


def key_index(connection: Connection, definition: TableDefinition) -> str:
    """The name of the index that holds the definition's key, for the hint that makes the server use it."""
    indexes = _unique_indexes(connection, definition.database, definition.table)
    same = {name: columns for name, columns in indexes.items() if columns == definition.key}
    if not indexes and not _exists(connection, definition):
        raise SchemaChangedError(
            f"table {definition.database}.{definition.table} is not there any more", hint=TABLE_GONE_HINT
        )
    if not same:
        raise SchemaChangedError(
            f"table {definition.database}.{definition.table} no longer has the unique key {', '.join(definition.key)}",
            hint=KEY_GONE,
        )
    return _first_choice(same)


def _column(row: tuple[str, str | bytes, str, str | None, str | None]) -> Column:
    name, column_type, nullable, charset, collation = row
    text = column_type.decode() if isinstance(column_type, bytes) else column_type
    return Column.parse(name, text, nullable=nullable == "YES", charset=charset or "", collation=collation or "")


def _unique_indexes(connection: Connection, database: str, table: str) -> dict[str, tuple[str, ...]]:
    """The columns of every index that identifies a row by whole, NOT NULL columns."""
    with source_errors(f"reading the indexes of {database}.{table}"), connection.cursor() as cursor:
        cursor.execute(_INDEXES, (database, table))
        rows = cursor.fetchall()
    found: dict[str, list[str]] = defaultdict(list)
    unusable: set[str] = set()
    for index, column, prefix, nullable in rows:
        if column is None or prefix is not None or nullable == "YES":
            unusable.add(index)
        found[index].append(column)
    return {index: tuple(columns) for index, columns in found.items() if index not in unusable}


def _first_choice(indexes: dict[str, tuple[str, ...]]) -> str:
    return min(indexes, key=lambda index: (index != "PRIMARY", len(indexes[index]), index))
