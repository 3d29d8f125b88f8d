"""Reads the tables whose changes change rows of a table outside the log: its parents by foreign keys, and theirs.

The text of SHOW CREATE TABLE says what each foreign key does. An account that may only SELECT is shown it by both
servers. A table may be its own parent.

Every table on the way is followed, whether or not the job copies it. One that is gone, or that cannot be described, is
refused: its rows in the log could not be told apart. A statement that is logged and that the dictionary does not show
yet is waited for, by opening each table before it is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pymysql.connections import Connection

from consume_upstream.log.cascade import CascadingParent, together
from consume_upstream.mysql.preflight.table_checks import cascading_keys
from consume_upstream.mysql.schema.current_table import create_table_text
from consume_upstream.mysql.schema.definition import read_definition
from consume_upstream.mysql.server import ask
from consume_upstream.mysql.sql import quoted
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import PlanRefusedError, SourceError

__all__ = ["ancestors", "read_parents"]

_NAME = re.compile(r"`((?:[^`]|``)*)`")
Name = tuple[str, str]


def read_parents(connection: Connection, database: str, table: str) -> tuple[CascadingParent, ...]:
    """Every table whose changes may reach the table through foreign keys, each once; none if no key has such a rule."""
    found: list[CascadingParent] = []

    def parents_of(child: Name) -> list[Name]:
        direct = tuple(_direct(connection, child))
        found.extend(direct)
        return [parent.name for parent in direct]

    _visit_all((database, table), parents_of)
    return together(found, ())


def ancestors(connection: Connection, database: str, table: str) -> dict[Name, str]:
    """The same tables by name, in the order in which they are found, each with why it cannot be described, or empty."""
    found: dict[Name, str] = {}

    def parents_of(child: Name) -> list[Name]:
        try:
            parents = [name for name, *_ in _keys(connection, child)]
        except SourceError as error:
            if error.retryable:
                raise
            found[child] = error.message
            return []
        found.update({name: "" for name in parents if name not in found})
        return parents

    _visit_all((database, table), parents_of)
    return found


def _visit_all(first: Name, parents_of: Callable[[Name], list[Name]]) -> None:
    """Visit a table, its parents and theirs, each once, those that were found first before others."""
    waiting, seen = [first], set[Name]()
    while waiting:
        child = waiting.pop(0)
        if child not in seen:
            seen.add(child)
            waiting.extend(parents_of(child))


def _direct(connection: Connection, child: Name) -> Iterator[CascadingParent]:
    for parent, rules, referenced in _keys(connection, child):
        definition = _definition(connection, child, parent)
        # The server may show another spelling of a column than its table has.
        spelled = {column.name.lower(): column.name for column in definition.columns}
        followed = [spelled.get(name.lower(), name) for name in referenced] if "ON UPDATE" in rules else []
        yield CascadingParent(definition, "ON DELETE" in rules, tuple(followed))


def _keys(connection: Connection, child: Name) -> Iterator[tuple[Name, str, list[str]]]:
    """The parent, the rules and the columns of the parent, of each foreign key that changes rows."""
    _wait_for_statements(connection, child)
    for key in cascading_keys(create_table_text(connection, *child)):
        names = (child[0], *_names(key.parent))[-2:]
        yield (names[0], names[1]), key.rules, _names(key.referenced)


def _wait_for_statements(connection: Connection, table: Name) -> None:
    """A statement is logged before the dictionary shows it, under a lock that opening the table waits for."""
    try:
        ask(connection, f"SELECT 1 FROM {quoted(table[0])}.{quoted(table[1])} LIMIT 0")
    except SourceError as error:
        if error.retryable:
            raise


def _definition(connection: Connection, child: Name, parent: Name) -> TableDefinition:
    _wait_for_statements(connection, parent)
    try:
        return read_definition(connection, *parent)
    except PlanRefusedError as error:
        raise PlanRefusedError(
            f"a foreign key of {'.'.join(child)} changes rows when {'.'.join(parent)} changes, which cannot be looked at",
            detail=f"{error.message} {error.detail}".strip(),
            hint=error.hint,
        ) from error


def _names(quoted_names: str) -> list[str]:
    return [found.replace("``", "`") for found in _NAME.findall(quoted_names)]
