"""Asks the server for checksums of stretches of the table, so that equal rows need not travel.

A stretch is asked for its number of rows and the sum of its rows' digests (see `value_forms`), as one aggregate, or as
one per bucket of keys. Where a sum disagrees, the keys and digests of the rows are asked for, and only at the very end
the rows themselves.

Keys are compared as a walk compares them (see `key_walk`): in the order of the key's index, whatever that order is. So
every key of every executor can be given to the server. A query reads a stretch of bounded size and has its own read
view.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from consume_upstream.mysql import sql
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.rows.key_walk import compared_by, cursor_of, cursor_value
from consume_upstream.mysql.rows.queries import Queries
from consume_upstream.mysql.rows.result_rows import RowDecoder
from consume_upstream.mysql.rows.value_forms import bucket_expression, digest_expression, row_expression, row_forms
from consume_upstream.mysql.schema.definition import key_index
from consume_upstream.upstream_table import FORM, ROW_DIGEST, CanonicalKey, Stretch, Sums
from vnode_backfill.words.columns import Column, Kind
from vnode_backfill.words.errors import SourceError
from vnode_backfill.words.key import Key

__all__ = ["ServerChecksums"]

_BUCKET = "`row bucket`"
_KEYS_PER_QUERY = 100
_FORMS, _DIGESTS = pa.field(FORM, pa.binary()), pa.field(ROW_DIGEST, pa.uint64())


class ServerChecksums:
    """One connection that asks for checksums over `columns`; a context manager. One question at a time."""

    def __init__(self, table: KnownTable, columns: Sequence[str]) -> None:
        self._definition = table.definition
        self._key_form = row_expression(table.definition.key_columns)
        self._digest = digest_expression(row_expression([table.definition.column(name) for name in columns]))
        digest = Column(ROW_DIGEST, Kind.INT, "bigint", nullable=False, width=8, unsigned=True)
        key = table.definition.key_columns
        self._digest_decoder = RowDecoder([*key, digest], table.definition.key)
        self._key_decoder = RowDecoder(key, table.definition.key, "error")
        self._row_decoder = RowDecoder(table.definition.columns, table.definition.key, table.zero_dates)
        self._connection = table.connect()
        self._queries = Queries(self._connection)
        try:
            self._index = key_index(self._connection, table.definition)
        except SourceError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.open:
            self._connection.close()

    def sums(self, stretch: Stretch, buckets: int = 1) -> Sums:
        """Rows and sums of the stretch in each bucket of keys that holds any.

        With one bucket, that is the whole stretch.
        """
        told = f"COUNT(*), SUM({self._digest})"
        if buckets == 1:
            query = self._select(f"0, {told}", self._where(stretch))
        else:
            bucket = bucket_expression(self._key_form, buckets)
            query = self._select(f"{bucket} AS {_BUCKET}, {told}", self._where(stretch), f" GROUP BY {_BUCKET}")
        numbers, counts, sums = self._columns_of(query)
        found = [(number, count, total) for number, count, total in zip(numbers, counts, sums, strict=True) if count]
        return Sums(
            np.array([number for number, _, _ in found], np.int64),
            np.array([count for _, count, _ in found], np.int64),
            np.array([total % 2**64 for _, _, total in found], np.uint64),
        )

    def digests(self, stretch: Stretch, buckets: int = 1, chosen: Sequence[int] = ()) -> pa.Table:
        """Key, form and digest of each row of the stretch whose key is in one of the chosen buckets.

        With one bucket, that is every row.
        """
        where = self._where(stretch)
        if buckets > 1:
            chosen_list = ", ".join(map(str, chosen))
            among = f"{bucket_expression(self._key_form, buckets)} IN ({chosen_list})"
            where = sql.Query(f"{where.text} AND {among}" if where.text else among, where.parameters)
        return self._with_forms(self._queries.table(self._select(self._key_and_digest(), where), self._digest_decoder))

    def digests_of(self, keys: Sequence[CanonicalKey]) -> pa.Table:
        """Key, form and digest of the rows that the server finds by these keys; one that is gone has none."""
        return self._with_forms(self._by_keys(keys, self._key_and_digest(), self._digest_decoder))

    def rows_of(self, keys: Sequence[CanonicalKey]) -> pa.Table:
        """The rows that the server finds by these keys, as the definition's columns."""
        return self._by_keys(
            keys, ", ".join(sql.canonical(column) for column in self._definition.columns), self._row_decoder
        )

    def key_behind(self, stretch: Stretch, rows: int) -> Key | None:
        """The key of the stretch's row number `rows`, or None where it has fewer; the server skips, one key travels."""
        tail = f" ORDER BY {self._key_order()} LIMIT 1 OFFSET {rows - 1}"
        found = self._queries.table(self._select(self._key_list(), self._where(stretch), tail), self._key_decoder)
        return cursor_of(self._definition, found) if found.num_rows else None

    def _by_keys(self, keys: Sequence[CanonicalKey], selected: str, decoder: RowDecoder) -> pa.Table:
        cursors = [self._cursor(key) for key in keys]
        parts = [cursors[i : i + _KEYS_PER_QUERY] for i in range(0, len(cursors), _KEYS_PER_QUERY)]
        found = [self._queries.table(self._select(selected, self._one_of(part)), decoder) for part in parts]
        return pa.concat_tables(found) if found else decoder.schema.empty_table()

    def _cursor(self, key: CanonicalKey) -> Key:
        columns = self._definition.key_columns
        return tuple(cursor_value(column, value) for column, value in zip(columns, key, strict=True))

    def _with_forms(self, found: pa.Table) -> pa.Table:
        """The server's answer with the forms of its keys, and its digests as the numbers they are."""
        forms = row_forms(self._definition.key_columns, found)
        numbers = found.column(ROW_DIGEST).combine_chunks()
        halves = np.frombuffer(numbers.buffers()[1], "<u8") if len(numbers) else np.empty(0, "<u8")
        low = halves[2 * numbers.offset : 2 * (numbers.offset + len(numbers)) : 2]
        keys = found.select(list(self._definition.key))
        return keys.append_column(_FORMS, forms).append_column(_DIGESTS, pa.array(low.astype(np.uint64), pa.uint64()))

    def _one_of(self, keys: Sequence[Key]) -> sql.Query:
        same = " AND ".join(f"{sql.quoted(c.name)} = {compared_by(c)}" for c in self._definition.key_columns)
        # The text stays the same for every batch, so that the statement is prepared once.
        asked = [*keys, *[keys[-1]] * (_KEYS_PER_QUERY - len(keys))]
        return sql.Query(" OR ".join([f"({same})"] * len(asked)), tuple(value for key in asked for value in key))

    def _where(self, stretch: Stretch) -> sql.Query:
        key, bounds = self._definition.key_columns, stretch.range
        conditions: list[sql.Query] = []
        if stretch.after is not None:
            conditions.append(sql.beyond(key, stretch.after, ">", inclusive=False, compared=compared_by))
        elif bounds.low is not None:
            conditions.append(sql.beyond(key, bounds.low.key, ">", inclusive=True, compared=compared_by))
        if bounds.high is not None:
            conditions.append(sql.beyond(key, bounds.high.key, "<", inclusive=bounds.closed, compared=compared_by))
        text = " AND ".join(condition.text for condition in conditions)
        return sql.Query(text, tuple(value for condition in conditions for value in condition.parameters))

    def _select(self, selected: str, where: sql.Query, tail: str = "") -> sql.Query:
        condition = f" WHERE {where.text}" if where.text else ""
        source = sql.indexed_table(self._definition, self._index)
        return sql.Query(f"SELECT {selected} FROM {source}{condition}{tail}", where.parameters)

    def _key_list(self) -> str:
        return ", ".join(sql.canonical(column) for column in self._definition.key_columns)

    def _key_order(self) -> str:
        # By the column itself: a TIME is selected as text under its own name.
        table = sql.table_name(self._definition)
        return ", ".join(f"{table}.{sql.quoted(name)}" for name in self._definition.key)

    def _key_and_digest(self) -> str:
        return f"{self._key_list()}, {self._digest} AS {sql.quoted(ROW_DIGEST)}"

    def _columns_of(self, query: sql.Query) -> tuple[list[int], list[int], list[int]]:
        """The three numbers of each row of an aggregate; the sum of no rows is 0."""
        bucket, counted, summed = (column.to_pylist() for column in self._queries.announced(query).columns)
        return list(map(int, bucket)), list(map(int, counted)), [int(value or 0) for value in summed]
