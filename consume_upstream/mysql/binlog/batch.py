"""Collects transactions and row events until a batch is full, and turns them into the batches that a reader returns.

Rows are decoded in batches across events and transactions, because a conversion per event would cost more than all the
rest. Until then a row event is a copy of its bytes and a few numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.log.batch import LogBatch, Transaction
from consume_upstream.log.continuity import READ_AGAIN
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog import row_images as walk
from consume_upstream.mysql.binlog.decoder import RowDecoder
from consume_upstream.mysql.binlog.dump import EventBlock
from consume_upstream.mysql.binlog.split import HEADER_BYTES, Longs
from vnode_backfill.words.errors import LogFormatError

_MAX_TRANSACTIONS = 65_536
_MARIADB_GTID, _MYSQL_GTID = struct.Struct("<QII8x"), struct.Struct("<16sQ")
_ROW_KINDS = {
    23: walk.INSERT, 24: walk.UPDATE, 25: walk.DELETE,
    30: walk.VERSION_2 + walk.INSERT, 31: walk.VERSION_2 + walk.UPDATE, 32: walk.VERSION_2 + walk.DELETE,
}  # fmt: skip
_OPERATIONS = np.array([_ROW_KINDS.get(kind, -1) for kind in range(256)], dtype=np.int64)


class TransactionBook:
    """The transactions of the current batch, in arrays that the routing kernel writes."""

    def __init__(self, skip: Callable[[str], bool] | None) -> None:
        self.gtids = np.zeros(_MAX_TRANSACTIONS * route.GTID_BYTES, dtype=np.uint8)
        self.kinds = np.zeros(_MAX_TRANSACTIONS, dtype=np.int64)
        self.starts = np.zeros(_MAX_TRANSACTIONS, dtype=np.int64)
        self.ends = np.zeros(_MAX_TRANSACTIONS, dtype=np.int64)
        self.times = np.zeros(_MAX_TRANSACTIONS, dtype=np.int64)
        self.skipped = np.zeros(_MAX_TRANSACTIONS, dtype=np.bool_)
        self._skip = skip
        self._judged = 0
        self._servers: dict[bytes, str] = {}

    def judge(self, count: int) -> None:
        """Ask the caller's predicate about transactions it was not yet asked about."""
        if self._skip is not None:
            for slot in range(self._judged, count):
                self.skipped[slot] = self._skip(self.gtid(slot))
        self._judged = count

    def gtid(self, slot: int) -> str:
        return self._texts(slot, slot + 1)[0]

    def _texts(self, first: int, last: int) -> list[str]:
        raw = self.gtids[first * route.GTID_BYTES : last * route.GTID_BYTES].tobytes()
        kinds = self.kinds[first:last].tolist()
        if route.MARIADB_GTID in kinds:
            return [f"{domain}-{server}-{number}" for number, domain, server in _MARIADB_GTID.iter_unpack(raw)]
        return [
            f"{self._server(server)}:{number}" if kind == route.MYSQL_GTID else ""
            for kind, (server, number) in zip(kinds, _MYSQL_GTID.iter_unpack(raw), strict=True)
        ]

    def _server(self, raw: bytes) -> str:
        found = self._servers.get(raw)
        if found is None:
            found = self._servers[raw] = str(UUID(bytes=raw))
        return found

    def listed(self, file: int, first: int, last: int, *, open_last: bool) -> tuple[Transaction, ...]:
        """Transactions `[first, last)`; the last without its end if rows of it follow in another batch."""
        ends = [None if end == route.OPEN_END else (file, end) for end in self.ends[first:last].tolist()]
        if open_last:
            ends[-1] = None
        columns = (self.starts[first:last].tolist(), self.times[first:last].tolist(), self.skipped[first:last].tolist())
        return tuple(
            Transaction(gtid, (file, start), end, time, skipped)
            for gtid, end, start, time, skipped in zip(self._texts(first, last), ends, *columns, strict=True)
        )

    def keep(self, slot: int) -> None:
        """Forget all transactions but `slot` (-1: all), which becomes the first."""
        self._judged = 0
        if slot < 0:
            return
        for values in (self.kinds, self.starts, self.ends, self.times, self.skipped):
            values[0] = values[slot]
        self.gtids[: route.GTID_BYTES] = self.gtids[slot * route.GTID_BYTES : (slot + 1) * route.GTID_BYTES]
        self._judged = 1


class _Places(NamedTuple):
    """Where the values of many images are: a line per column; empty where no event has such images."""

    offsets: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class _Rows(NamedTuple):
    """Decoded rows, and by event what the batch says about them."""

    events: Longs
    row: npt.NDArray[np.uint32]
    before: pa.RecordBatch
    after: pa.RecordBatch
    last_transaction: int
    goes_on: bool
    """Rows of the last transaction follow in the next batch."""


class RowBuffer:
    """Bytes of row events that wait to be decoded."""

    def __init__(self, decoder: RowDecoder) -> None:
        self._decoder = decoder
        self._data = np.empty(1 << 20, dtype=np.uint8)
        self._last_row = (0, 0, 0)
        self.clear()

    def decode_by(self, decoder: RowDecoder) -> None:
        """Decode all that waits, and all that comes, by another decoder of the same layout."""
        self._decoder = decoder

    def clear(self) -> None:
        self.bytes = 0
        self._begins: list[Longs] = []
        self._ends: list[Longs] = []
        self._kinds: list[Longs] = []
        self._transactions: list[Longs] = []
        self._positions: list[Longs] = []
        self._times: list[Longs] = []

    def append(self, block: EventBlock, chosen: Longs, transactions: Longs, positions: Longs, trailer: int) -> None:
        """Copy the bodies of the chosen events of a block."""
        if not len(chosen):
            return
        begins, ends = np.empty(len(chosen), dtype=np.int64), np.empty(len(chosen), dtype=np.int64)
        self._reserve(int(block.sizes[chosen].sum()))
        self.bytes = route.copy_bodies(
            block.data, block.offsets, block.sizes, chosen, trailer, self._data, self.bytes, begins, ends
        )
        heads = block.offsets[chosen]
        times = sum(block.data[heads + i].astype(np.int64) << (8 * i) for i in range(4))
        assert isinstance(times, np.ndarray)
        self._note(begins, ends, _OPERATIONS[block.data[heads + 4]], transactions, positions, times)

    def append_event(self, event: bytes, kind: int, transaction: int, position: int) -> None:
        """Add one event given as header and body, as it was unpacked."""
        body = np.frombuffer(event, dtype=np.uint8)[HEADER_BYTES:]
        self._reserve(len(body))
        begin, end = self.bytes, self.bytes + len(body)
        self._data[begin:end] = body
        self.bytes = end
        time = int.from_bytes(event[:4], "little")
        numbers = (begin, end, _ROW_KINDS[kind], transaction, position, time)
        self._note(*(np.array([number], dtype=np.int64) for number in numbers))

    def _note(self, *columns: Longs) -> None:
        books = (self._begins, self._ends, self._kinds, self._transactions, self._positions, self._times)
        for book, column in zip(books, columns, strict=True):
            book.append(column)

    def _reserve(self, length: int) -> None:
        if self.bytes + length > len(self._data):
            grown = np.empty(max(2 * len(self._data), self.bytes + length), dtype=np.uint8)
            grown[: self.bytes] = self._data[: self.bytes]
            self._data = grown

    def drain(self, file: int, book: TransactionBook, count: int, limits: tuple[int, int]) -> Iterator[LogBatch]:
        """Decode all that waits, in batches of at most `limits` rows and bytes, and empty the buffer.

        `count` transactions are in the book; each is listed with the batch in which it ends.
        """
        listed = 0
        kinds, transactions, positions, times = (
            _joined(book) for book in (self._kinds, self._transactions, self._positions, self._times)
        )
        waiting = len(kinds)
        for rows in self._decoded(file, kinds, positions, transactions, limits):
            final = not rows.goes_on and rows.events[-1] == waiting - 1
            last = count if final else rows.last_transaction + 1
            yield LogBatch(
                file, (kinds[rows.events] % walk.VERSION_2).astype(np.int8), positions[rows.events].astype(np.uint64),
                rows.row, times[rows.events].astype(np.uint32),
                rows.before, rows.after, book.listed(file, listed, last, open_last=rows.goes_on),
            )  # fmt: skip
            listed = rows.last_transaction if rows.goes_on else last
        if listed < count:
            yield _without_rows(file, self._nulls(0), book.listed(file, listed, count, open_last=False))
        self.clear()

    def _decoded(
        self, file: int, kinds: Longs, positions: Longs, transactions: Longs, limits: tuple[int, int]
    ) -> Iterator[_Rows]:
        begins, ends = _joined(self._begins), _joined(self._ends)
        state = np.zeros(walk.WALK_STATE_SIZE, dtype=np.int64)
        # The same position of another file is another event.
        if self._last_row[0] == file:
            _, state[walk.LAST_POSITION], state[walk.ROW_IN_EVENT] = self._last_row
        operations = kinds % walk.VERSION_2
        # Every image has at least its bitmap of NULLs, so a small buffer needs no room for a full batch.
        capacity = min(limits[0], self.bytes // ((len(self._decoder.layout) + 7) // 8) + 1)
        while state[walk.AT_EVENT] < len(kinds):
            before = self._places(capacity, needed=bool(np.any(operations != walk.INSERT)))
            after = self._places(capacity, needed=bool(np.any(operations != walk.DELETE)))
            events, row = np.empty(capacity, dtype=np.int32), np.empty(capacity, dtype=np.uint32)
            count = walk.walk_rows(
                self._data, begins, ends, kinds, positions, self._decoder.layout, state, limits[1],
                before.offsets, before.lengths, after.offsets, after.lengths, events, row,
            )  # fmt: skip
            if count < 0:
                _refuse(count)
            if count:
                chosen = events[:count].astype(np.int64)
                following = int(state[walk.AT_EVENT])
                last = int(transactions[chosen[-1]])
                yield _Rows(
                    chosen, row[:count], self._image(before, count), self._image(after, count),
                    last, following < len(kinds) and transactions[following] == last,
                )  # fmt: skip
        self._last_row = (file, int(state[walk.LAST_POSITION]), int(state[walk.ROW_IN_EVENT]))

    def _places(self, rows: int, *, needed: bool) -> _Places:
        shape = (len(self._decoder.layout), rows if needed else 0)
        return _Places(np.zeros(shape, dtype=np.int32), np.full(shape, -1, dtype=np.int32))

    def _image(self, places: _Places, rows: int) -> pa.RecordBatch:
        if not places.offsets.shape[1]:
            return self._nulls(rows)
        return self._decoder.decode(self._data, places.offsets[:, :rows], places.lengths[:, :rows])

    def _nulls(self, rows: int) -> pa.RecordBatch:
        schema = self._decoder.schema
        return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def _joined(parts: list[Longs]) -> Longs:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _without_rows(file: int, empty: pa.RecordBatch, transactions: tuple[Transaction, ...]) -> LogBatch:
    none = np.empty(0, np.uint32)
    return LogBatch(file, none.astype(np.int8), none.astype(np.uint64), none, none, empty, empty, transactions)


def _refuse(reason: int) -> None:
    if reason == walk.PARTIAL_IMAGE:
        raise LogFormatError(
            "a row image of the log does not hold every column",
            detail="A session wrote with binlog_row_image other than FULL.",
            hint=f"SET GLOBAL binlog_row_image = FULL, and look for sessions that set their own. {READ_AGAIN}",
        )
    if reason == walk.OTHER_COLUMN_COUNT:
        raise LogFormatError("a row event of the log has another number of columns than its table")
    raise LogFormatError("a row event of the log is damaged", detail="A value runs past the end of its event.")
