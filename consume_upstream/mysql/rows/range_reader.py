"""Reads a key range of the source table as Arrow batches.

Each range is one query, and so has its own read view, opened when the query starts and gone when it ends; no
transaction is held and nothing is locked. Memory is bounded by one block of the result, whatever the range holds.

A reader that must be slow (a rate limit) asks for `limit` rows at a time and continues `after` the last key it has: a
result left open while waiting would die of the server's `net_write_timeout`. That the parts of a range come from
different read views does no harm: all of them were opened after the epoch's visibility was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
from pymysql.connections import Connection

from consume_upstream.mysql import sql
from consume_upstream.mysql.rows.queries import Queries
from consume_upstream.mysql.rows.result_rows import RowDecoder, ZeroDates
from consume_upstream.mysql.schema.definition import key_index
from consume_upstream.mysql.server import ask
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import KeyRange

__all__ = ["SnapshotReader"]

_KEYS_PER_QUERY = 500


class SnapshotReader:
    """Reads ranges of one table over one connection, one at a time.

    An error leaves the connection closed or in step.
    """

    def __init__(self, connection: Connection, definition: TableDefinition, *, zero_dates: ZeroDates = "null") -> None:
        self._connection = connection
        self._definition = definition
        self._decoder = RowDecoder(definition.columns, definition.key, zero_dates)
        self._key_decoder = RowDecoder(definition.key_columns, definition.key, "error")
        self._queries = Queries(connection)

    @cached_property
    def index(self) -> str:
        """Asked for by the first question about rows. Sort keys of text can be asked for without it, also when the
        table is gone or has another key: the log holds changes from before."""
        return key_index(self._connection, self._definition)

    def read_range(
        self, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The range's rows in key order, all of them or an error. Give the iterator up and the connection is closed."""
        query = sql.select_range(self._definition, self.index, key_range, after=after, limit=limit)
        return self._queries.read(query, self._decoder)

    def read_rows(self, keys: Sequence[Key]) -> pa.Table:
        """The rows that these keys have, all as of one moment; keys that are gone are left out."""
        ask(self._connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ask(self._connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            batches = [
                batch
                for start in range(0, len(keys), _KEYS_PER_QUERY)
                for batch in self._queries.read(
                    sql.select_keys(self._definition, self.index, keys[start : start + _KEYS_PER_QUERY]), self._decoder
                )
            ]
        finally:
            ask(self._connection, "COMMIT")
        return pa.Table.from_batches(batches, self._decoder.schema)

    def forget(self) -> None:
        """Let the server forget the prepared statements. The reader can be used on, and prepares them again."""
        self._queries.forget()

    def read_keys(self, query: sql.Query) -> pa.Table:
        """The key columns that `query` selects; for questions about bounds."""
        return self._queries.table(query, self._key_decoder)

    def explain(self, query: sql.Query) -> pa.Table:
        """The optimiser's answer to an EXPLAIN, `id` and `rows` of it; its columns and their types differ by server."""
        return self._queries.announced(query, ("id", "rows"))
