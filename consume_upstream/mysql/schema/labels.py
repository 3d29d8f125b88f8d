"""Finds the labels of ENUM and SET columns: exactly, or known to be in doubt.

A row image holds the number of a label, so every label must be known. The server shows them in COLUMN_TYPE and in SHOW
CREATE TABLE, but it builds both texts in a character set of three bytes: each character beyond U+FFFF becomes `?`. So
`ENUM('?','😀')` is shown as `enum('?','?')`. Where the column's character set can hold such characters, a label that is
shown with a `?` is in doubt.

- MariaDB is asked: a variable of the column's type, in which a number is stored, shows its label.
- MySQL has nothing that makes a label of a number. There the TABLE_MAP events of the log decide, which hold the labels
  with `binlog_row_metadata = FULL`. With MINIMAL a value with a label in doubt stops the reader, and preflight refuses
  the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pymysql.connections import Connection

from consume_upstream.mysql.binlog.table_map import Flavour, TableMap, label_columns
from consume_upstream.mysql.schema.charsets import charset_named
from consume_upstream.mysql.server import ask, identify
from consume_upstream.mysql.sql import quoted
from vnode_backfill.words.columns import Column, Kind, TableDefinition, listed_label
from vnode_backfill.words.errors import PlanRefusedError

__all__ = ["Doubts", "asked_labels", "doubtful_labels", "with_labels"]

_BEYOND = {"", "utf8mb4", "utf16", "utf16le", "utf32", "gb18030"}
"""Character sets with characters beyond U+FFFF; a column of none is binary, whose bytes are shown one by one."""

Columns = tuple[Column, ...]
Doubts = Mapping[str, frozenset[int]]
"""By column the places, from 0, of the labels that are not known."""


def doubtful_labels(definition: TableDefinition, flavour: Flavour) -> Doubts:
    """The labels that the server may have shown wrongly; none on MariaDB, where `asked_labels` has asked for them."""
    if flavour == "mariadb":
        return {}
    found = {column.name: _in_doubt(column) for column in definition.columns}
    return {name: places for name, places in found.items() if places}


def _in_doubt(column: Column) -> frozenset[int]:
    if column.charset not in _BEYOND:
        return frozenset()
    return frozenset(place for place, label in enumerate(column.labels) if "?" in label)


def asked_labels(connection: Connection, database: str, table: str, columns: Columns) -> Columns:
    """The columns with the labels that MariaDB makes of their numbers, where the text it shows leaves doubt."""
    if not any(map(_in_doubt, columns)) or identify(connection).flavour != "mariadb":
        return columns
    return tuple(_asked(connection, database, table, column) if _in_doubt(column) else column for column in columns)


def _asked(connection: Connection, database: str, table: str, column: Column) -> Column:
    doubts = sorted(_in_doubt(column))
    names = [f"v{place}" for place in doubts]
    stored = " ".join(f"SET v{place} = {1 << place if column.kind is Kind.SET else place + 1};" for place in doubts)
    (told,) = ask(
        connection,
        f"BEGIN NOT ATOMIC DECLARE {', '.join(names)} TYPE OF {quoted(database)}.{quoted(table)}.{quoted(column.name)};"
        f" {stored} SELECT {', '.join(names)}; END",
    )
    labels = dict(enumerate(column.labels)) | {place: str(told[f"v{place}"]) for place in doubts}
    exact = tuple(labels.values())
    if tuple(map(listed_label, exact)) != column.labels:
        raise PlanRefusedError(
            f"the labels of column {column.name} cannot be read from the server",
            detail=f"It shows {', '.join(column.labels[:20])}, and reads them as {', '.join(exact[:20])}.",
            hint=f"ALTER TABLE {quoted(database)}.{quoted(table)} MODIFY {quoted(column.name)} VARCHAR(255);",
        )
    return replace(column, labels=exact)


def with_labels(definition: TableDefinition, found: TableMap) -> TableDefinition:
    """The definition with the labels that a checked TABLE_MAP holds; unchanged if it holds none."""
    if not found.labels:
        return definition
    exact = {
        column.name: tuple(charset_named(column.charset).decode(label) for label in raw)
        for column, raw in zip(label_columns(definition), found.labels, strict=True)
    }
    columns = tuple(replace(column, labels=exact.get(column.name, column.labels)) for column in definition.columns)
    return replace(definition, columns=columns)
