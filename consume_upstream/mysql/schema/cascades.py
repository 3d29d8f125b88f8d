"""Reads the tables whose changes change rows of a table outside the log: its parents by foreign keys, and theirs.

The text of SHOW CREATE TABLE says what each foreign key does. An account that may only SELECT is shown it by both
servers. A table may be its own parent. A parent that is gone, or that cannot be copied, has no columns here: whoever
reads its rows fails, and counts it as changed. Statements about it are noticed by its name.

No job asks for parents yet: tables with such keys are refused. What is missing stands in docs/decisions.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pymysql.connections import Connection

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.mysql.preflight.table_checks import cascading_keys
from consume_upstream.mysql.schema.current_table import create_table_text
from consume_upstream.mysql.schema.definition import read_definition
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import PlanRefusedError

__all__ = ["read_parents"]

_NAME = re.compile(r"`((?:[^`]|``)*)`")
Name = tuple[str, str]


def read_parents(connection: Connection, database: str, table: str) -> tuple[CascadingParent, ...]:
    """Every table whose changes may reach the table through foreign keys, each once; none if no key has such a rule."""
    found: dict[Name, CascadingParent] = {}
    waiting, seen = [(database, table)], set[Name]()
    while waiting:
        child = waiting.pop()
        if child in seen:
            continue
        seen.add(child)
        for parent in _direct(connection, child):
            if not parent.definition.columns:
                seen.add(parent.name)
            found[parent.name] = _both(found[parent.name], parent) if parent.name in found else parent
            waiting.append(parent.name)
    return tuple(found[name] for name in sorted(found))


def _direct(connection: Connection, child: Name) -> Iterator[CascadingParent]:
    for key in cascading_keys(create_table_text(connection, *child)):
        names = _names(key.parent)
        definition = _definition(connection, *(child[0], *names)[-2:])
        # The server may show another spelling of a column than its table has.
        spelled = {column.name.lower(): column.name for column in definition.columns}
        followed = _names(key.referenced) if "ON UPDATE" in key.rules and spelled else []
        yield CascadingParent(definition, "ON DELETE" in key.rules, tuple(spelled[name.lower()] for name in followed))


def _definition(connection: Connection, database: str, table: str) -> TableDefinition:
    try:
        return read_definition(connection, database, table)
    except PlanRefusedError:
        return TableDefinition(database, table, (), ())


def _both(one: CascadingParent, other: CascadingParent) -> CascadingParent:
    columns = dict.fromkeys((*one.on_update, *other.on_update))
    return replace(one, on_delete=one.on_delete or other.on_delete, on_update=tuple(columns))


def _names(quoted: str) -> list[str]:
    return [found.replace("``", "`") for found in _NAME.findall(quoted)]
