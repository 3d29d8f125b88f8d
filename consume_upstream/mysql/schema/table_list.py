"""Lists the tables that a server has, in one query.

Views, sequences and temporary tables are not listed, and neither is anything of the server's own schemas. The server
compares the names of databases by its own rules, and may list more than was asked for: whoever chooses compares again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pymysql.connections import Connection

from consume_upstream.mysql.server import Cell, ask
from vnode_backfill.words.table_name import SYSTEM_SCHEMAS, TableName

__all__ = ["ListedTables", "list_tables"]

_TABLES = """
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, TABLE_ROWS AS `rows` FROM information_schema.TABLES
    WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"""


@dataclass(frozen=True, slots=True)
class ListedTables:
    """Tables of a server that this account may see."""

    rows: Mapping[TableName, int] = field(default_factory=dict)
    """Each table with the rows that the server's statistics count; they may be a day old."""
    fold_case: bool = False
    """Whether upper and lower case count as one in names."""


def list_tables(connection: Connection, databases: Sequence[str]) -> ListedTables:
    """The tables of the databases that match one of these LIKE patterns."""
    folded = ask(connection, "SELECT @@lower_case_table_names AS folded")[0]["folded"]
    system = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    wanted = " OR ".join(["TABLE_SCHEMA LIKE %s"] * len(databases)) or "FALSE"
    statement = f"{_TABLES} AND TABLE_SCHEMA NOT IN ({system}) AND ({wanted})"
    found = ask(connection, statement, (*sorted(SYSTEM_SCHEMAS), *databases))
    rows = {TableName(_text(row["database"]), _text(row["table"])): int(row["rows"] or 0) for row in found}
    return ListedTables(rows, int(folded or 0) != 0)


def _text(value: Cell) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
