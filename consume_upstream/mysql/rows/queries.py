"""Asks questions over one connection and returns Arrow columns; each text is prepared once.

Ranges share their text, so few statements serve many questions: a bounded number is kept, the oldest goes first. A
result is read to the server's own end or closes the connection with it (see `prepared_statement`): what a caller got
without an error is whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pymysql.connections import Connection

from consume_upstream.mysql.rows.prepared_statement import PreparedStatement, WireColumn
from consume_upstream.mysql.rows.result_rows import RowDecoder
from consume_upstream.mysql.sql import Query

__all__ = ["Queries"]

_KEPT_STATEMENTS = 16


class Queries:
    """Asks over `connection`, which it does not close. One question at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._statements: dict[str, PreparedStatement] = {}
        self._announced: dict[tuple[tuple[WireColumn, ...], tuple[str, ...] | None], RowDecoder] = {}

    def read(self, query: Query, decoder: RowDecoder) -> Iterator[pa.RecordBatch]:
        """The rows, as the decoder's columns; an announced type that is not theirs is an error."""
        stream = self._statement(query.text).execute(query.parameters)
        try:
            decoder.check(stream.columns)
            for block in stream:
                yield decoder.decode(block)
        finally:
            stream.close()

    def table(self, query: Query, decoder: RowDecoder) -> pa.Table:
        """All rows at once."""
        return pa.Table.from_batches(self.read(query, decoder), decoder.schema)

    def announced(self, query: Query, only: tuple[str, ...] | None = None) -> pa.Table:
        """All rows of a question whose columns and types only the server knows; `only` some of the columns."""
        stream = self._statement(query.text).execute(query.parameters)
        known = stream.columns, only
        if known not in self._announced:
            self._announced[known] = RowDecoder.of_announced(stream.columns, only)
        decoder = self._announced[known]
        return pa.Table.from_batches([decoder.decode(block) for block in stream], decoder.schema)

    def forget(self) -> None:
        """Close the statements that are prepared."""
        while self._statements:
            self._statements.popitem()[1].close()

    def _statement(self, text: str) -> PreparedStatement:
        if text not in self._statements:
            if len(self._statements) >= _KEPT_STATEMENTS:
                self._statements.pop(next(iter(self._statements))).close()
            self._statements[text] = PreparedStatement(self._connection, text)
        return self._statements[text]
