"""Collects transactions and row events until a batch is full, and turns them into the batches that a reader returns.

Rows are decoded in batches across events and transactions, because a conversion per event would cost more than all the
rest. Until then a row event is a copy of its bytes and a few numbers, whichever table it is of: `RowBuffer` holds all
of them, and `TableRows` decodes those of one table when the buffer is emptied.
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
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog import row_images as walk
from consume_upstream.mysql.binlog.decoder import RowDecoder
from consume_upstream.mysql.binlog.dump import EventBlock
from consume_upstream.mysql.binlog.split import HEADER_BYTES, Bytes, Longs
from vnode_backfill.words.errors import LogFormatError
from vnode_backfill.words.hints import READ_AGAIN

_MAX_TRANSACTIONS = 65_536
_USUAL_BYTES = 64 << 20
_FEW_ROWS = 4096
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


class WaitingRows(NamedTuple):
    """Row events that wait to be decoded: bytes `data[begins[i]:ends[i]]`, and what the batch says about their rows."""

    begins: Longs
    ends: Longs
    kinds: Longs
    transactions: Longs
    positions: Longs
    times: Longs
    tables: Longs

    def chosen(self, events: Longs) -> WaitingRows:
        return WaitingRows(*(column[events] for column in self))


class Listing:
    """Lists the transactions of a chunk of the log once: each with the first rows that need it, or before them."""

    def __init__(self, book: TransactionBook, file: int, count: int) -> None:
        self._book, self.file, self._count, self._listed = book, file, count, 0

    def of_rows(self, last_transaction: int, *, goes_on: bool, final: bool) -> tuple[Transaction, ...]:
        """The transactions up to the last one of a batch.

        It is listed again if rows of it follow; after the `final` rows come all that are left.
        """
        last = self._count if final else last_transaction + 1
        if last <= self._listed:
            return ()
        first, self._listed = self._listed, last_transaction if goes_on else last
        return self._book.listed(self.file, first, last, open_last=goes_on)

    def rest(self) -> tuple[Transaction, ...]:
        """Those that no rows needed."""
        first, self._listed = self._listed, self._count
        return self._book.listed(self.file, first, self._count, open_last=False) if first < self._count else ()


class RowBuffer:
    """Bytes of row events of any table that wait to be decoded."""

    def __init__(self) -> None:
        # Pages that are never written cost nothing, and growing later would copy.
        self.data = np.empty(_USUAL_BYTES, dtype=np.uint8)
        self.clear()

    def clear(self) -> None:
        self.bytes = 0
        self._parts: list[WaitingRows] = []

    def append(
        self, block: EventBlock, chosen: Longs, tables: Longs, transactions: Longs, positions: Longs, trailer: int
    ) -> None:
        """Copy the bodies of the chosen events of a block."""
        if not len(chosen):
            return
        begins, ends = np.empty(len(chosen), dtype=np.int64), np.empty(len(chosen), dtype=np.int64)
        self._reserve(int(block.sizes[chosen].sum()))
        self.bytes = route.copy_bodies(
            block.data, block.offsets, block.sizes, chosen, trailer, self.data, self.bytes, begins, ends
        )
        heads = block.offsets[chosen]
        times = sum(block.data[heads + i].astype(np.int64) << (8 * i) for i in range(4))
        assert isinstance(times, np.ndarray)
        kinds = _OPERATIONS[block.data[heads + 4]]
        self._parts.append(WaitingRows(begins, ends, kinds, transactions, positions, times, tables))

    def append_event(self, event: bytes, kind: int, table: int, transaction: int, position: int) -> None:
        """Add one event given as header and body, as it was unpacked."""
        body = np.frombuffer(event, dtype=np.uint8)[HEADER_BYTES:]
        self._reserve(len(body))
        begin, end = self.bytes, self.bytes + len(body)
        self.data[begin:end] = body
        self.bytes = end
        time = int.from_bytes(event[:4], "little")
        numbers = (begin, end, _ROW_KINDS[kind], transaction, position, time, table)
        self._parts.append(WaitingRows(*(np.array([number], dtype=np.int64) for number in numbers)))

    def _reserve(self, length: int) -> None:
        if self.bytes + length > len(self.data):
            grown = np.empty(max(2 * len(self.data), self.bytes + length), dtype=np.uint8)
            grown[: self.bytes] = self.data[: self.bytes]
            self.data = grown

    def drop(self, table: int, transaction: int) -> None:
        """Forget what waits of one transaction of a table."""
        self._parts = [
            part.chosen(np.flatnonzero((part.tables != table) | (part.transactions != transaction)))
            for part in self._parts
        ]

    def by_table(self) -> Iterator[tuple[int, WaitingRows]]:
        """What waits of each table, in log order."""
        if not self._parts:
            return
        waiting = WaitingRows(*map(np.concatenate, zip(*self._parts, strict=True)))
        if not len(waiting.tables):
            return
        if (waiting.tables == waiting.tables[0]).all():
            yield int(waiting.tables[0]), waiting
            return
        order = np.argsort(waiting.tables, kind="stable")
        firsts = np.flatnonzero(np.diff(waiting.tables[order], prepend=-1))
        for events in np.split(order, firsts[1:]):
            yield int(waiting.tables[events[0]]), waiting.chosen(events)


class TableRows:
    """Decodes the row events of one table."""

    def __init__(self, decoder: RowDecoder) -> None:
        self._last_row = (0, 0, 0)
        self.decode_by(decoder)

    def decode_by(self, decoder: RowDecoder) -> None:
        """Decode all that waits, and all that comes, by another decoder of the same layout."""
        self._decoder = decoder
        widths = decoder.layout
        self._usual_bytes = (len(widths) + 7) // 8 + int(np.where(widths > 0, widths // 2, 1).sum())

    def batches(
        self, data: Bytes, waiting: WaitingRows, listing: Listing, limits: tuple[int, int]
    ) -> Iterator[LogBatch]:
        """Decode all that waits, in batches of at most `limits` rows and bytes."""
        kinds, events = waiting.kinds, len(waiting.kinds)
        for rows in self._decoded(listing.file, data, waiting, limits):
            final = not rows.goes_on and rows.events[-1] == events - 1
            yield LogBatch(
                listing.file, (kinds[rows.events] % walk.VERSION_2).astype(np.int8),
                waiting.positions[rows.events].astype(np.uint64), rows.row,
                waiting.times[rows.events].astype(np.uint32), rows.before, rows.after,
                listing.of_rows(rows.last_transaction, goes_on=rows.goes_on, final=bool(final)),
            )  # fmt: skip

    def _decoded(self, file: int, data: Bytes, waiting: WaitingRows, limits: tuple[int, int]) -> Iterator[_Rows]:
        begins, ends, kinds, transactions, positions = waiting[:5]
        state = np.zeros(walk.WALK_STATE_SIZE, dtype=np.int64)
        # The same position of another file is another event.
        if self._last_row[0] == file:
            _, state[walk.LAST_POSITION], state[walk.ROW_IN_EVENT] = self._last_row
        operations = kinds % walk.VERSION_2
        # A small buffer needs no room for a full batch. Rows that are smaller than usual only take more batches.
        capacity = min(limits[0], int((ends - begins).sum()) // self._usual_bytes + 1)
        while state[walk.AT_EVENT] < len(kinds):
            before = self._places(capacity, needed=bool(np.any(operations != walk.INSERT)))
            after = self._places(capacity, needed=bool(np.any(operations != walk.DELETE)))
            events, row = np.empty(capacity, dtype=np.int32), np.empty(capacity, dtype=np.uint32)
            count = walk.walk_rows(
                data, begins, ends, kinds, positions, self._decoder.layout, state, limits[1],
                before.offsets, before.lengths, after.offsets, after.lengths, events, row,
            )  # fmt: skip
            if count < 0:
                _refuse(count)
            if count:
                chosen = events[:count].astype(np.int64)
                following = int(state[walk.AT_EVENT])
                last = int(transactions[chosen[-1]])
                yield _Rows(
                    chosen, row[:count], *self._images(data, before, after, count),
                    last, following < len(kinds) and transactions[following] == last,
                )  # fmt: skip
        self._last_row = (file, int(state[walk.LAST_POSITION]), int(state[walk.ROW_IN_EVENT]))

    def _places(self, rows: int, *, needed: bool) -> _Places:
        shape = (len(self._decoder.layout), rows if needed else 0)
        return _Places(np.zeros(shape, dtype=np.int32), np.full(shape, -1, dtype=np.int32))

    def _images(self, data: Bytes, before: _Places, after: _Places, rows: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Both images of few rows are decoded in one go: of many tables each has few, and a call costs more than they."""
        if rows > _FEW_ROWS or not before.offsets.shape[1] or not after.offsets.shape[1]:
            return self._image(data, before, rows), self._image(data, after, rows)
        both = (np.hstack([old[:, :rows], new[:, :rows]]) for old, new in zip(before, after, strict=True))
        found = self._decoder.decode(data, *both)
        return found.slice(0, rows), found.slice(rows)

    def _image(self, data: Bytes, places: _Places, rows: int) -> pa.RecordBatch:
        if not places.offsets.shape[1]:
            return _nulls(self._decoder.schema, rows)
        return self._decoder.decode(data, places.offsets[:, :rows], places.lengths[:, :rows])


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def without_rows(file: int, schema: pa.Schema, transactions: tuple[Transaction, ...]) -> LogBatch:
    """A batch that only lists transactions."""
    none, empty = np.empty(0, np.uint32), _nulls(schema, 0)
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
