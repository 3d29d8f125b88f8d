"""Reads the table as the server defines it now: its columns, their defaults, and why it could not be copied.

`TableDefinition` is what a job needs of a table for its rows. A statement's effect needs more: what an added column
holds in rows that were there before, and whether the table still is one that can be copied. Nothing is decided here
(see `derive`).

The server answers several questions one after the other. The columns are asked for before and after the rest, and
everything again if they differ, so that all answers are of one definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pymysql.connections import Connection

from consume_upstream.mysql.preflight.table_checks import cascading_keys, check_table_type
from consume_upstream.mysql.schema.charsets import charset_named
from consume_upstream.mysql.schema.definition import read_definition, read_partitioning
from consume_upstream.mysql.schema.labels import doubtful_labels
from consume_upstream.mysql.server import Cell, Flavour, ask, identify
from consume_upstream.mysql.sql import quoted
from vnode_backfill.words.change import BEFORE_PREFIX, RESERVED_COLUMNS
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import PlanRefusedError, SourceError, SourceLostError
from vnode_backfill.words.finding import Level
from vnode_backfill.words.partitioning import Partitioning

__all__ = ["CurrentColumn", "CurrentTable", "Default", "DefaultKind", "create_table_text", "read_current"]

_TABLE = """
    SELECT TABLE_TYPE AS type, ENGINE AS engine
    FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""
_COLUMNS = """
    SELECT COLUMN_NAME AS name, COLUMN_TYPE AS type, IS_NULLABLE AS nullable, COLUMN_DEFAULT AS `default`,
        EXTRA AS extra, GENERATION_EXPRESSION AS generation, CHARACTER_SET_NAME AS charset, COLLATION_NAME AS collation
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_INDEXES = """
    SELECT INDEX_NAME AS name, SEQ_IN_INDEX AS place, COLUMN_NAME AS `column`
    FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
    ORDER BY INDEX_NAME, SEQ_IN_INDEX"""
_COMPRESSED = re.compile(r"/\*M?!\d+ COMPRESSED\*/$")
_QUOTED = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}
_NUMBER = re.compile(r"-?[0-9.]+(?:e[-+]?\d+)?|b'[01]*'", re.IGNORECASE)
_ATTEMPTS = 5


class DefaultKind(StrEnum):
    NONE = "none"
    NULL = "null"
    LITERAL = "literal"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Default:
    """What a column has where a row says nothing. `text` is the literal without quotes, or the expression."""

    kind: DefaultKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class CurrentColumn:
    """What the server says of a column beyond `Column`."""

    name: str
    column_type: str
    """As the server writes it, `float(7,2)`: `Column` does not keep the digits of a FLOAT."""
    default: Default
    generated: bool = False
    auto_increment: bool = False
    invisible: bool = False


@dataclass(frozen=True, slots=True)
class CurrentTable:
    """The table now. `definition` is None if it cannot even be described; then `refused` says why."""

    definition: TableDefinition | None
    columns: tuple[CurrentColumn, ...]
    primary: bool
    """Whether the key is the table's primary key."""
    refused: str = ""
    """Why the table cannot be copied; empty if it can."""
    partitioning: Partitioning | None = None

    def column(self, name: str) -> CurrentColumn:
        return next(column for column in self.columns if column.name == name)


def read_current(
    connection: Connection, database: str, table: str, *, follows_parents: bool = False
) -> CurrentTable | None:
    """The table as it is now; None if it is not there.

    `follows_parents` is set where changes of its parents are looked at: foreign keys that change its rows do not
    matter then.
    """
    flavour, where = identify(connection).flavour, (database, table)
    for _ in range(_ATTEMPTS):
        before = _facts(connection, where)
        if before is None:
            return None
        found = _described(connection, (database, table), before, flavour, follows_parents=follows_parents)
        if found is not None and before == _facts(connection, where):
            return found
    raise SourceError(
        f"the definition of {database}.{table} changes faster than it can be read",
        detail=f"{_ATTEMPTS} times it was another one at the end than at the beginning.",
    )


_Rows = list[Mapping[str, Cell]]
_Facts = tuple[_Rows, _Rows, _Rows, Partitioning | None]


def _facts(connection: Connection, where: tuple[str, str]) -> _Facts | None:
    table = ask(connection, _TABLE, where)
    if not table:
        return None
    return (
        table,
        ask(connection, _COLUMNS, where),
        ask(connection, _INDEXES, where),
        read_partitioning(connection, *where),
    )


def _described(
    connection: Connection, where: tuple[str, str], facts: _Facts, flavour: Flavour, *, follows_parents: bool
) -> CurrentTable | None:
    """None if the table went while it was described."""
    database, table = where
    (row,), columns, indexes, partitioning = facts
    try:
        create_table = create_table_text(connection, database, table)
    except SourceLostError:
        raise
    except SourceError:
        return None
    definition, refusals = None, list(_refusals(row, columns, create_table, f"{quoted(database)}.{quoted(table)}"))
    if not follows_parents:
        refusals += _refused_keys(create_table)
    try:
        definition = read_definition(connection, database, table)
        refusals += _refused_labels(connection, definition, flavour)
    except PlanRefusedError as error:
        refusals.append(error.message)
    found = tuple(_column(each, flavour) for each in columns)
    primary = any(_text(index["name"]).upper() == "PRIMARY" for index in indexes)
    return CurrentTable(definition, found, primary, "; ".join(refusals), partitioning)


def create_table_text(connection: Connection, database: str, table: str) -> str:
    """The statement that would create the table. MariaDB puts the bytes of binary defaults into it as they are."""
    # The names in it are quoted only if this is on.
    ask(connection, "SET SESSION sql_quote_show_create = 1")
    decodes, connection.use_unicode = connection.use_unicode, False
    try:
        shown = ask(connection, f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    finally:
        connection.use_unicode = decodes
    text = shown[0].get("Create Table")
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else _text(text)


def _refusals(row: Mapping[str, Cell], columns: _Rows, create_table: str, name: str) -> Iterator[str]:
    """What preflight refuses for good, from the same rules."""
    for finding in check_table_type(name, _text(row["type"]), create_table):
        if finding.level is Level.REFUSED:
            yield finding.fact
    if _text(row["engine"]).lower() != "innodb":
        yield f"the table's engine is {_text(row['engine'])}"
    for column in columns:
        yield from _refused_column(column)


def _refused_keys(create_table: str) -> Iterator[str]:
    for key in cascading_keys(create_table):
        yield f"foreign key {key.name} ({key.rules}) changes rows of the table outside the log"


def _refused_labels(connection: Connection, definition: TableDefinition, flavour: Flavour) -> Iterator[str]:
    """Labels that the server may show wrongly must be in the log, which has them with FULL only."""
    doubts = doubtful_labels(definition, flavour)
    if not doubts:
        return
    logged = _text(ask(connection, "SELECT @@GLOBAL.binlog_row_metadata AS metadata")[0]["metadata"]).upper() == "FULL"
    for name in doubts:
        if not logged or not definition.column(name).charset:
            yield f"column {name} has labels that neither the server nor the log shows as they are"


def _refused_column(column: Mapping[str, Cell]) -> Iterator[str]:
    name = _text(column["name"])
    if _COMPRESSED.search(_text(column["type"])):
        yield f"column {name} is COMPRESSED, which cannot be decoded from the log"
    if name.lower() in RESERVED_COLUMNS or name.lower().startswith(BEFORE_PREFIX):
        yield f"column {name} has a name that is reserved for buffered changes"
    try:
        charset_named(_text(column["charset"]))
    except PlanRefusedError as error:
        yield f"column {name}: {error.message}"


def _column(row: Mapping[str, Cell], flavour: Flavour) -> CurrentColumn:
    extra = _text(row["extra"]).lower()
    return CurrentColumn(
        name=_text(row["name"]),
        column_type=_text(row["type"]),
        default=_mariadb_default(row) if flavour == "mariadb" else _mysql_default(row),
        generated=bool(_text(row["generation"])),
        auto_increment="auto_increment" in extra,
        invisible="invisible" in extra,
    )


def _mysql_default(row: Mapping[str, Cell]) -> Default:
    """MySQL shows the value of a literal without quotes, and says elsewhere whether it is an expression."""
    if row["default"] is None:
        return Default(DefaultKind.NULL if _text(row["nullable"]) == "YES" else DefaultKind.NONE)
    expression = "DEFAULT_GENERATED" in _text(row["extra"]).upper()
    return Default(DefaultKind.EXPRESSION if expression else DefaultKind.LITERAL, _text(row["default"]))


def _mariadb_default(row: Mapping[str, Cell]) -> Default:
    """MariaDB shows an expression, of which a literal in quotes is one."""
    shown = row["default"]
    if shown is None or _text(shown).upper() == "NULL":
        return Default(DefaultKind.NULL if _text(row["nullable"]) == "YES" else DefaultKind.NONE)
    literal = _QUOTED.fullmatch(_text(shown))
    if literal:
        return Default(DefaultKind.LITERAL, _ESCAPED.sub(_unescaped, literal[1]))
    number = _NUMBER.fullmatch(_text(shown))
    return Default(DefaultKind.LITERAL if number else DefaultKind.EXPRESSION, _text(shown))


def _unescaped(found: re.Match[str]) -> str:
    return "'" if found[1] is None else _ESCAPES.get(found[1], found[1])


def _text(value: Cell) -> str:
    return value.decode() if isinstance(value, bytes) else str("" if value is None else value)
