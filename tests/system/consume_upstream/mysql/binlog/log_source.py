"""A table on a real server and what the log reader makes of its log: the shared ground of the log tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, cast

import pyarrow as pa
from pymysql.connections import Connection

from consume_upstream.log.batch import LogBatch, Transaction
from consume_upstream.mysql.binlog.decoder import ZeroDates
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import read_log
from consume_upstream.mysql.schema.definition import read_definition
from devkit.comparer import Difference, SourceTable, Value, compare
from devkit.mysql import SqlServer
from vnode_backfill.words.columns import Kind, TableDefinition

Row = dict[str, Value]
_server_ids = count(900_000)


@dataclass(slots=True)
class LogSource:
    """One table `t` in a database of its own.

    `read` gives what was logged since the object was made or last `mark`ed.
    """

    server: SqlServer
    database: str
    connection: Connection = field(init=False)
    definition: TableDefinition = field(init=False)
    start: LogPosition = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.server.connect(self.database)

    @property
    def flavour(self) -> Literal["mysql", "mariadb"]:
        return cast('Literal["mysql", "mariadb"]', self.server.flavour)

    def create(self, columns: str) -> LogSource:
        """Make the table and mark the end of the log."""
        self.run(f"CREATE TABLE t ({columns})")
        self.definition = read_definition(self.connection, self.database, "t")
        self.start = self.position()
        return self

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str) -> Sequence[tuple[Value, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def position(self) -> LogPosition:
        row = self.query("SHOW MASTER STATUS")[0]
        return LogPosition(str(row[0]), int(str(row[1])))

    def batches(
        self,
        start: LogPosition | None = None,
        stop: LogPosition | None = None,
        *,
        batch_rows: int = 65_536,
        batch_bytes: int = 64 << 20,
        zero_dates: ZeroDates = "null",
        skip_gtids: Callable[[str], bool] | None = None,
    ) -> Iterator[LogBatch]:
        return read_log(
            self.connect, next(_server_ids), self.definition, self.flavour, start or self.start,
            stop or self.position(),
            batch_rows=batch_rows, batch_bytes=batch_bytes, zero_dates=zero_dates, skip_gtids=skip_gtids,
        )  # fmt: skip

    def read(self) -> Changes:
        return Changes(list(self.batches()), self.definition)

    def connect(self) -> Connection:
        return self.server.connect(read_timeout=30)

    def differences(self, changes: Changes) -> list[Difference]:
        """Compare the table with the rows the log leads to; it must have been empty when the log began."""
        source = SourceTable(self.connection, self.database, "t", self.definition.key)
        # TIME is compared with the server's own text, which has the column's number of digits.
        times = [column.name for column in self.definition.columns if column.kind is Kind.TIME]
        wrong = [name for name in times if not self._same_texts(changes, name)]
        assert wrong == []
        return list(compare(source, changes, ignore_columns=times).differences)

    def _same_texts(self, changes: Changes, name: str) -> bool:
        key = self.definition.key[0]
        said = self.query(f"SELECT `{key}`, CAST(`{name}` AS CHAR) FROM t")
        return set(said) == set(changes.rows([key, name]))


@dataclass(frozen=True, slots=True)
class Changes:
    """What was read, in log order; a target that the devkit's comparer reads: the last image of each key."""

    batches: list[LogBatch]
    definition: TableDefinition

    def __iter__(self) -> Iterator[tuple[int, Row, Row]]:
        for batch in self.batches:
            yield from zip(batch.op.tolist(), batch.before.to_pylist(), batch.after.to_pylist(), strict=True)

    @property
    def operations(self) -> list[int]:
        return [op for op, _, _ in self]

    @property
    def offsets(self) -> list[tuple[int, int, int]]:
        return [
            (batch.file, pos, row)
            for batch in self.batches
            for pos, row in zip(batch.pos.tolist(), batch.row.tolist(), strict=True)
        ]

    @property
    def transactions(self) -> list[Transaction]:
        return [
            transaction for batch in self.batches for transaction in batch.transactions if transaction.end is not None
        ]

    @property
    def after(self) -> pa.Table:
        return pa.Table.from_batches([batch.after for batch in self.batches])

    def column_names(self) -> Sequence[str]:
        return [column.name for column in self.definition.columns]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        last: dict[tuple[Value, ...], Row] = {}
        for op, before, after in self:
            if op != 0:
                del last[tuple(before[name] for name in self.definition.key)]
            if op != 2:
                last[tuple(after[name] for name in self.definition.key)] = after
        for row in last.values():
            yield tuple(row[name] for name in columns)
