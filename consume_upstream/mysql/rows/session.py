"""Reads the rows and asks about the keys of one table over one connection, in the server's own order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pymysql.connections import Connection

from consume_upstream.mysql import sql
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.preflight.facts import read_table_profile
from consume_upstream.mysql.rows.range_reader import SnapshotReader
from consume_upstream.mysql.schema import collation
from consume_upstream.upstream_table import Weights
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SourceError
from vnode_backfill.words.key import Key, keys_of
from vnode_backfill.words.key_range import Bound, KeyRange
from vnode_backfill.words.plan import TableFacts

__all__ = ["MySqlSession"]


class MySqlSession:
    """One connection to one table: its rows and its keys, in the server's own order."""

    def __init__(self, table: KnownTable, connection: Connection | None = None) -> None:
        self._table = table
        self.definition = table.definition
        self._connection = table.connect() if connection is None else connection
        try:
            self._reader = SnapshotReader(self._connection, table.definition, zero_dates=table.zero_dates)
        except SourceError:
            self.close()
            raise

    def read_range(
        self, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._reader.read_range(key_range, after=after, limit=limit)

    def read_rows(self, keys: Sequence[Key]) -> pa.Table:
        return self._reader.read_rows(keys)

    def table_facts(self) -> TableFacts:
        minimum, maximum = self.min_max()
        profile = read_table_profile(self._connection, self._table.identity, self.definition)
        return TableFacts(
            self.definition.key_parts, minimum, maximum, profile.estimated_rows, profile.average_row_bytes
        )

    def min_max(self) -> tuple[Bound | None, Bound | None]:
        first = self._key(sql.first_key(self.definition, self._reader.index))
        last = self._key(sql.last_key(self.definition, self._reader.index))
        if first is None or last is None:
            return None, None
        low, high = self.order_bounds([first, last])
        return low, high

    def estimate_rows(self, bounds: Sequence[Bound]) -> list[int]:
        """The optimiser dives into the index at both ends of each stretch; nothing is read in between."""
        told = self._reader.explain(sql.explain_stretches(self.definition, self._reader.index, bounds))
        found = [0] * (len(bounds) - 1)
        for number, rows in zip(told.column("id").to_pylist(), told.column("rows").to_pylist(), strict=True):
            # "Impossible WHERE" and the like have no number: the optimiser knows that nothing is there.
            if number is not None and rows is not None:
                found[int(number) - 1] = int(rows)
        return found

    def next_bound(self, after: Bound, rows: int) -> Bound | None:
        if rows < 1:
            raise SourceError(f"cannot skip {rows} rows")
        key = self._key(sql.skip_rows(self.definition, self._reader.index, after.key, rows))
        return None if key is None else self.order_bounds([key])[0]

    def first_beyond(self, key: Key) -> Bound | None:
        found = self._key(sql.skip_rows(self.definition, self._reader.index, key, 1))
        return None if found is None else self.order_bounds([found])[0]

    def last_before(self, bound: Bound) -> Bound | None:
        found = self._key(sql.last_key_before(self.definition, self._reader.index, bound.key))
        return None if found is None else self.order_bounds([found])[0]

    def collation_keys(self, keys: Sequence[Key], definition: TableDefinition | None = None) -> list[Weights]:
        return collation.collation_keys(self._connection, definition or self.definition, keys)

    def order_bounds(self, keys: Sequence[Key]) -> list[Bound]:
        return collation.order_bounds(self._connection, self.definition, keys)

    def forget(self) -> None:
        """Let the server forget what was prepared, where the connection is used for other tables."""
        self._reader.forget()

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _key(self, query: sql.Query) -> Key | None:
        found = self._reader.read_keys(query).combine_chunks()
        keys = keys_of(self.definition.key_parts, [column.combine_chunks() for column in found.columns])
        return keys[0] if keys else None
