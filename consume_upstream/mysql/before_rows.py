"""Where a job that takes the log from its beginning can begin: behind the statements about its table that stand before the first rows of it.

A table that was created while the log was kept begins there with its CREATE TABLE, which is no change that a job would miss: nothing of the
table was logged before. The same holds for every statement about the table up to its first rows, such as the DROP TABLE IF EXISTS of a
dump. What must be true is that the rows behind them have the definition that the table has now. They do: a statement behind the first
rows is not passed over, so the job stops at it; and whoever calls this reads the definition once more afterwards.

A statement inside a transaction (CREATE TABLE … SELECT) is not passed over: a job cannot begin behind it.
"""

from __future__ import annotations

from consume_upstream.mysql.dump import DumpStream
from consume_upstream.mysql.events import LogPosition, Statement
from consume_upstream.mysql.log_reader import LogSlice
from consume_upstream.mysql.log_statements import Effect
from consume_upstream.mysql.server import MySqlTable

__all__ = ["behind_first_statements"]


def behind_first_statements(table: MySqlTable, start: LogPosition, stop: LogPosition) -> LogPosition:
    """The end of the last statement about the table before its first rows in `(start, stop]`; `start` if there is none."""
    found = _BeforeRows(table, start, stop)
    stream = DumpStream(table.connect, table.server_ids[0], table.identity.flavour, start)
    try:
        for block in stream.blocks():
            for _ in found.take(block):
                pass
            if found.finished:
                return found.begin
        found.raise_unfinished()
    except _RowsFoundError:
        return found.begin
    finally:
        stream.close()


class _RowsFoundError(Exception):
    """Rows of the table begin here, or what can only be taken as such."""


class _BeforeRows(LogSlice):
    def __init__(self, table: MySqlTable, start: LogPosition, stop: LogPosition) -> None:
        super().__init__(table.definition, table.identity.flavour, start, stop)
        self.begin = start

    def accept_table_map(self, event: bytes) -> None:  # noqa: ARG002 - what it says of the rows does not matter
        raise _RowsFoundError

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:  # noqa: ARG002 - nor what it says
        if effect is not Effect.SCHEMA or self.in_transaction:
            raise _RowsFoundError
        self.begin = self.position
