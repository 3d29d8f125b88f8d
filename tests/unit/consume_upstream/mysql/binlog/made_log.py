"""Logs made event by event, of several tables with two columns each, as MySQL writes them without checksums."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from consume_upstream.log.batch import SharedBatch, Transaction
from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import LogSlice, WantedTable, open_slice
from tests.unit.consume_upstream.mysql.binlog.log_bytes import CapturedLog, block_of
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import BackfillError

Row = tuple[int, str | None]
Change = tuple[int, int, int, dict[str, object], dict[str, object]]
INSERT, UPDATE, DELETE = 30, 31, 32
SERVER = bytes(range(16))
DESCRIPTION = CapturedLog.load("mysql").without_checksums().events[0]


@dataclass(frozen=True)
class MadeTable:
    """A table `database.name` with an integer key of 4 or 8 bytes and a text."""

    database: str
    name: str
    table_id: int
    width: int = 4

    @property
    def definition(self) -> TableDefinition:
        columns = (
            Column.parse("id", "int" if self.width == 4 else "bigint", nullable=False),
            Column.parse("v", "varchar(20)", nullable=True, charset="utf8mb4"),
        )
        return TableDefinition(self.database, self.name, columns, ("id",))

    def map(self, *, columns: int = 2) -> bytes:
        """The TABLE_MAP; with another number of columns it does not fit the definition."""
        types = bytes([3 if self.width == 4 else 8, 15, 3][:columns])
        meta = struct.pack("<H", 80) if columns > 1 else b""
        names = b"".join(bytes([len(name)]) + name.encode() + b"\0" for name in (self.database, self.name))
        rest = bytes([columns]) + types + bytes([len(meta)]) + meta + b"\2"
        return event(19, _id(self.table_id) + b"\1\0" + names + rest)

    def rows(self, kind: int, images: Sequence[Row], *, last: bool, partial: bool = False) -> bytes:
        """A row event of version 2; an update has an image before and one after of each row."""
        bitmaps = (b"\1" if partial else b"\3") * (2 if kind == UPDATE else 1)
        head = _id(self.table_id) + struct.pack("<HH", int(last), 2) + b"\2" + bitmaps
        return event(kind, head + b"".join(map(self._image, images)))

    def _image(self, row: Row) -> bytes:
        key = row[0].to_bytes(self.width, "little", signed=True)
        if row[1] is None:
            return b"\2" + key
        return b"\0" + key + bytes([len(row[1].encode())]) + row[1].encode()


def event(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), 0, 0) + body


def query(text: str, database: str = "") -> bytes:
    name = database.encode()
    return event(2, struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\0" + text.encode())


def packed(events: Sequence[bytes]) -> bytes:
    """A compressed transaction: what comes after its GTID."""
    data = pa.Codec("zstd").compress(b"".join(events), asbytes=True)
    size = struct.pack("<BI", 0xFC, len(data))[:3] if len(data) < 65_536 else struct.pack("<BQ", 0xFE, len(data))
    return event(40, b"\2\1\0" + b"\1" + bytes([len(size)]) + size + b"\0" + data)


def _id(table_id: int) -> bytes:
    return table_id.to_bytes(6, "little")


@dataclass
class MadeLog:
    """The events of one file, transaction by transaction."""

    events: list[bytes] = field(default_factory=lambda: [DESCRIPTION])
    transactions: int = 0

    def add(self, *events: bytes) -> None:
        """One transaction: its GTID and these events."""
        self.transactions += 1
        self.events += [event(33, b"\1" + SERVER + struct.pack("<Q", self.transactions) + bytes(17)), *events]

    def change(self, *statements: bytes, pack: bool = False) -> None:
        """A transaction of row events, with its frame."""
        framed = [query("BEGIN"), *statements, event(16, bytes(8))]
        self.add(*([packed(framed)] if pack else framed))

    def statement(self, text: str, database: str = "") -> None:
        self.add(query(text, database))

    def slice(self, tables: Sequence[WantedTable], *, isolates: bool) -> LogSlice:
        stop = 4 + sum(map(len, self.events))
        ends = LogPosition("log.000001", 4), LogPosition("log.000001", stop)
        return open_slice(tables, "mysql", *ends, isolates=isolates)

    def alone(self, table: MadeTable) -> Found:
        met = MetStatements()
        found = Found([], [], met)
        try:
            found.take(self._batches(self.slice([WantedTable(table.definition, met=met)], isolates=False)))
        except BackfillError as error:
            met.error = error
        return found

    def together(
        self, tables: Sequence[MadeTable], *, blocks: int = 1, limits: tuple[int, int] = (65_536, 1 << 20)
    ) -> list[Found]:
        """What is found of each table; transactions are listed for the first."""
        found = [Found([], [], MetStatements()) for _ in tables]
        part = self.slice(
            [WantedTable(t.definition, met=f.met) for t, f in zip(tables, found, strict=True)], isolates=True
        )
        part.limits = limits
        for batch in self._batches(part, blocks):
            found[0].transactions += batch.rows.transactions
            found[batch.table].take_rows(batch)
            reached = max(transaction.end or (2, 0) for transaction in found[0].transactions)
            assert all((1, pos) <= reached for pos in batch.rows.pos.tolist())
        return found

    def _batches(self, part: LogSlice, blocks: int = 1) -> list[SharedBatch]:
        size = -(-len(self.events) // blocks)
        found: list[SharedBatch] = []
        for first in range(0, len(self.events), size):
            found += [] if part.finished else part.take(block_of(self.events[first : first + size]))
        if not part.finished:
            part.raise_unfinished()
        return found


@dataclass
class Found:
    """What a reader found of a table."""

    changes: list[Change]
    transactions: list[Transaction]
    met: MetStatements

    def take(self, batches: Sequence[SharedBatch]) -> None:
        for batch in batches:
            self.take_rows(batch)
            self.transactions += batch.rows.transactions

    def take_rows(self, batch: SharedBatch) -> None:
        rows = batch.rows
        images = rows.before.to_pylist(), rows.after.to_pylist()
        self.changes += zip(rows.pos.tolist(), rows.row.tolist(), rows.op.tolist(), *images, strict=True)

    @property
    def ended(self) -> list[Transaction]:
        return [transaction for transaction in self.transactions if transaction.end is not None]

    @property
    def outcome(self) -> tuple[list[Change], LogCut | None, list[PassedStatement], str]:
        """All that counts of it; of a table with an error nothing but that does."""
        if self.met.error is not None:
            return [], None, [], self.met.error.message
        return self.changes, self.met.cut, self.met.passed, ""
