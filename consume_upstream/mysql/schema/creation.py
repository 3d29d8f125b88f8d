"""Finds the statement that has left a table empty and as the server defines it now: its CREATE.

A table that was created again needs no read. It holds no row after that statement. Whatever it holds later is in the
log, if no foreign key has changed its rows outside the log. Its rows can be decoded only by the definition that the
CREATE gave it, and the server knows only the definition of now. So no later statement may have changed a column or what
identifies the rows.

    DROP, CREATE                            the CREATE
    DROP, CREATE, TRUNCATE, CREATE INDEX    the CREATE: columns and key are what they were
    DROP, CREATE, ADD COLUMN                none: nobody knows what the table was before the last statement
    DROP, CREATE, ADD COLUMN, DROP, CREATE  the last one: what the table held before it is gone
    DROP, CREATE, DROP FOREIGN KEY          none: the key may have changed rows outside the log until then
    CREATE IF NOT EXISTS                    none: the table may have been there, and the statement did nothing
    DROP, CREATE IF NOT EXISTS              the CREATE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consume_upstream.mysql.statements.alter_clauses import DROPS_FOREIGN_KEY
from consume_upstream.mysql.statements.table_actions import (
    DefaultChanged,
    KeyChanged,
    Nothing,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
)

__all__ = ["drops_foreign_key", "keeps_rows_in_the_log", "last_creation", "with_rows"]

_KEEP_DEFINITION = (Nothing, DefaultChanged, TableEmptied)


def last_creation(chain: Sequence[tuple[TableAction, ...]], *, primary: bool) -> int | None:
    """The place in `chain`, which holds all statements about the table up to now, of the last CREATE that counts.

    `primary` says whether the table has a primary key now: then no other index identifies its rows. None if the table
    was not created, or may have another definition since.
    """
    found, existed = None, True
    for at, actions in enumerate(chain):
        for action in actions:
            if isinstance(action, TableCame) and action.if_not_exists and existed:
                continue
            if isinstance(action, TableCame | TableGone):
                existed = isinstance(action, TableCame)
                found = at if isinstance(action, TableCame) and action.empty else None
            elif not keeps_rows_in_the_log(action, primary=primary):
                found = None
    return found


def drops_foreign_key(action: TableAction) -> bool:
    """Whether the action drops a foreign key, or may do so."""
    return isinstance(action, Nothing | KeyChanged) and action.what in DROPS_FOREIGN_KEY


def keeps_rows_in_the_log(action: TableAction, *, primary: bool) -> bool:
    """Whether the table has the same columns and key after the action, and no foreign key has gone."""
    if drops_foreign_key(action):
        return False
    return isinstance(action, _KEEP_DEFINITION) or (primary and isinstance(action, KeyChanged))


def with_rows(actions: tuple[TableAction, ...]) -> tuple[TableAction, ...]:
    """The actions of a statement that is not a transaction of its own: a table that it creates may have rows."""
    return tuple(replace(each, empty=False) if isinstance(each, TableCame) else each for each in actions)
