"""Finds where a job that takes the oldest log can begin: after the statements before the table's first rows.

A table that was created while the log was kept begins there with its CREATE TABLE. A job misses nothing by it, because
nothing of the table was logged before. The same holds for every statement about the table up to its first rows, such as
the DROP TABLE IF EXISTS of a dump.

What must be true: the rows after these statements have the definition that the table has now. They do. A statement
after the first rows is not passed over, so the job stops at it; and the caller reads the definition once more
afterwards.

A statement inside a transaction (CREATE TABLE … SELECT) is not passed over: a job cannot begin after it.
"""

from __future__ import annotations

from contextlib import suppress

from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.events import LogPosition, Statement
from consume_upstream.mysql.binlog.judge import EventJudge, TableJudge
from consume_upstream.mysql.binlog.place import Place
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.judged_stretch import judge_stretch
from consume_upstream.mysql.statements.effect import Effect

__all__ = ["behind_first_statements"]


def behind_first_statements(table: KnownTable, start: LogPosition, stop: LogPosition) -> LogPosition:
    """The end of the last statement about the table before its first rows in `(start, stop]`.

    It is `start` if there is none.
    """
    judge = _BeforeRows(table, start)
    with suppress(_RowsFoundError):
        judge_stretch(table, EventJudge(judge.place, [judge]), start, stop)
    return judge.begin


class _RowsFoundError(Exception):
    """Rows of the table begin here, or what can only be taken as such."""


class _BeforeRows(TableJudge):
    """Passes over statements about the table, and stops at the first rows."""

    def __init__(self, table: KnownTable, start: LogPosition) -> None:
        super().__init__(Place(start, TransactionBook(None)), table.definition, table.identity.flavour)
        self.begin = start

    def accept_map(self, event: bytes) -> bool:  # noqa: ARG002 - what it says of the rows does not matter
        raise _RowsFoundError

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:  # noqa: ARG002 - nor what it says
        if effect is not Effect.SCHEMA or self.place.begun:
            raise _RowsFoundError
        self.begin = self.place.position
