"""Reads a slice `(start, stop]` of the binlog and yields the changes of one table, or of several, as Arrow batches.

What must be true: every change of the table that the slice holds is yielded once, in log order, decoded exactly; or the
reader raises. It raises where the log holds something it cannot take exactly: a table that is no longer the stored one,
DDL that may touch it, changes logged as statements, partial row images, prepared XA transactions, rows that a later
event takes back, damaged bytes (see `judge`). A log that ends before `stop`, whatever the reason, raises too. A caller
that follows statements (`met`) has the reader end before DDL that may touch the table, and continues after it.

`start` and `stop` are ends of transactions, or the start of a file (position 4); `stop` may be in a later file. Every
transaction of the slice is reported, also those that do not touch the table, because the caller keeps the set of GTIDs.

Several tables are read in one dump, and each event is looked at once. All of the above holds for each table as if it
were read alone: a statement about one ends the reading of that one, and so does what is wrong with it, which is
returned and not raised. The reader ends at `stop`, or when no table is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from consume_upstream.log.batch import LogBatch, SharedBatch
from consume_upstream.log.continuity import check_same_file
from consume_upstream.log.identity import LogIdentity
from consume_upstream.log.statement import MetStatements
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.decoder import ZeroDates
from consume_upstream.mysql.binlog.dump import ConnectionFactory, DumpStream, EventBlock
from consume_upstream.mysql.binlog.events import (
    HEADER_BYTES,
    EventKind,
    LogPosition,
    read_format_description,
    read_load_query,
    read_payload,
    read_query,
    read_rotate,
)
from consume_upstream.mysql.binlog.judge import EventJudge, TableJudge
from consume_upstream.mysql.binlog.place import Place
from consume_upstream.mysql.binlog.split import MALFORMED, Longs, first_damaged, split_events
from consume_upstream.mysql.binlog.table_map import Flavour
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import LogFormatError, OffsetError, SourceLostError

__all__ = ["LogBatch", "LogPosition", "LogSlice", "WantedTable", "open_slice", "read_log", "read_together"]

_NO_STOP = 2**62
_FILE_START = 4
_ARTIFICIAL = 0x20
_BUFFER_BYTES, _MOST_BUFFERS = 16 << 20, 4
"""Of many tables each has few rows in a buffer, and decoding those of one costs something whatever their number."""
_UNPACKED_BLOCK = 4 << 20
_ZSTD, _UNCOMPRESSED = 0, 255


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table that is read from the log. What is found of statements about it is written into `met`.

    So is whether one may have changed one of `parents`. Without `met`, a statement that may change the table raises.
    """

    definition: TableDefinition
    zero_dates: ZeroDates = "error"
    met: MetStatements | None = None
    parents: tuple[TableDefinition, ...] = ()


def read_log(  # noqa: PLR0913 - the options are keyword-only
    connect: ConnectionFactory,
    server_id: int,
    definition: TableDefinition,
    flavour: Flavour,
    start: LogPosition,
    stop: LogPosition,
    *,
    batch_rows: int = 65_536,
    batch_bytes: int = 64 << 20,
    zero_dates: ZeroDates = "error",
    skip_gtids: Callable[[str], bool] | None = None,
    log: str = "",
    met: MetStatements | None = None,
) -> Iterator[LogBatch]:
    """Yield the changes of one table in `(start, stop]`, or raise.

    `log` is the identity of the file of `start`, if it is known: another file of that name raises before its first
    event is read. Demands that `server_id` is used by no other dump of this server at the time. Memory is bounded by
    `batch_bytes` and the longest event; a transaction of any size is cut into batches. Transactions for which
    `skip_gtids` is true yield no rows. With `met`, a statement that may change the table ends the slice before it, and
    is written down there; without, it raises. The connection is opened at the first batch and closed at the end.
    """
    if start.order > stop.order:
        raise OffsetError(f"the log cannot be read from {start.file}:{start.pos} back to {stop.file}:{stop.pos}")
    if start.order == stop.order:
        return
    part = open_slice([WantedTable(definition, zero_dates, met)], flavour, start, stop, skip_gtids=skip_gtids)
    part.limits = (batch_rows, batch_bytes)
    for batch in _dumped(part, DumpStream(connect, server_id, flavour, start), log):
        yield batch.rows


def read_together(
    connect: ConnectionFactory,
    server_id: int,
    tables: Sequence[WantedTable],
    flavour: Flavour,
    start: LogPosition,
    stop: LogPosition,
    *,
    log: str = "",
) -> Iterator[SharedBatch]:
    """Yield the changes of several tables in `(start, stop]`, in one dump; as `read_log` otherwise.

    What cannot be read of a table that has `met` is written down there. Then nothing that was yielded of it counts.
    """
    if start.order > stop.order:
        raise OffsetError(f"the log cannot be read from {start.file}:{start.pos} back to {stop.file}:{stop.pos}")
    if start.order < stop.order and tables:
        part = open_slice(tables, flavour, start, stop, isolates=True)
        yield from _dumped(part, DumpStream(connect, server_id, flavour, start), log)


def _dumped(part: LogSlice, stream: DumpStream, log: str) -> Iterator[SharedBatch]:
    try:
        part.known = LogIdentity.parse(log) if log else None
        for block in stream.blocks():
            yield from part.take(block)
            if part.finished:
                return
        part.raise_unfinished()
    finally:
        stream.close()


def open_slice(
    tables: Sequence[WantedTable],
    flavour: Flavour,
    start: LogPosition,
    stop: LogPosition,
    *,
    skip_gtids: Callable[[str], bool] | None = None,
    isolates: bool = False,
) -> LogSlice:
    """The slice `(start, stop]` of the log for these tables, of which nothing is read yet.

    With `isolates`, what is wrong with one table is written into its `met`, and the others are read on. Without, a
    definition that cannot be decoded is refused at once.
    """
    place = Place(start, TransactionBook(skip_gtids))
    judges = [
        TableJudge(place, table.definition, flavour, table.zero_dates, table.met, table.parents) for table in tables
    ]
    if not isolates:
        for judge in judges:
            judge.make_decoder()
    return LogSlice(EventJudge(place, judges, isolates=isolates), stop)


class LogSlice:
    """Routes the events of one slice. It is fed blocks of events and knows when `stop` is reached."""

    def __init__(self, judge: EventJudge, stop: LogPosition) -> None:
        self.limits = (65_536, 64 << 20)
        self.finished = False
        self.known: LogIdentity | None = None
        """The identity of the first file, until it was compared."""
        self._judge, self._place, self._stop = judge, judge.place, stop
        self._buffer_bytes = _BUFFER_BYTES * min(len(judge.tables), _MOST_BUFFERS)
        self._trailer = 0
        self._described = False

    def raise_unfinished(self) -> NoReturn:
        position = self._place.position
        raise SourceLostError(
            f"the binlog ended at {position.file}:{position.pos}, before {self._stop.file}:{self._stop.pos}",
            detail="The server has sent all it holds.",
            hint="If the server lost its log or was replaced, continue by GTID or re-snapshot.",
        )

    def take(self, block: EventBlock) -> Iterator[SharedBatch]:
        """Go through a block of events; yields when enough rows wait or a file or the slice ends."""
        at, count = 0, len(block.offsets)
        while at < count and not self.finished:
            fence = route.next_file_event(block.data, block.offsets, at, count)
            self._check_sums(block, at, fence)
            yield from self._route(block, at, fence, self._trailer, counted=True)
            if fence < count and not self.finished:
                yield from self._file_event(block.event(fence))
            at = fence + 1

    def _check_sums(self, block: EventBlock, first: int, last: int) -> None:
        if not self._trailer:
            return
        damaged = first_damaged(block.data, block.offsets, block.sizes, first, last)
        if damaged >= 0:
            kind = block.data[block.offsets[damaged] + 4]
            self._place.refuse(f"event of type {kind} is damaged", "Its CRC32 does not match its bytes.")

    def _file_event(self, event: bytes) -> Iterator[SharedBatch]:
        """ROTATE names the file that follows.

        FORMAT_DESCRIPTION is a file's first event, also when the dump starts later.
        """
        if event[4] == EventKind.ROTATE:
            if not int.from_bytes(event[17:19], "little") & _ARTIFICIAL:
                self._place.advance(event)
                self._reach_stop()
            if self.finished:
                yield from self._drain()
            else:
                yield from self._next_file(read_rotate(event))
            return
        self._trailer = 4 if read_format_description(event).checksums else 0
        self._described = True
        if self.known is not None:
            self._compare(self.known, LogIdentity.of_description(event))
        if self._place.pos == _FILE_START:
            self._place.advance(event)
            self._reach_stop()

    def _compare(self, known: LogIdentity, found: LogIdentity) -> None:
        """Files that begin alike count as the same here: the first events of a file are not in every dump."""
        if not known.begins_as(found):
            check_same_file(f"{self._place.position.file}:{self._place.position.pos}", known, found)
        self.known = None

    def _next_file(self, position: LogPosition) -> Iterator[SharedBatch]:
        """Begin another file. The server names the file at its end, and again when it sends from it."""
        if position.number == self._place.file.number:
            if position.pos != self._place.pos:
                self._place.refuse(
                    "the server does not send the log from where it was asked to", f"It sends {position}."
                )
            return
        if self._place.transaction >= 0:
            self._place.refuse("a file of the log ends inside a transaction", f"It continues with {position.file}.")
        if position.number < self._place.file.number:
            self._place.refuse("the log continues with an earlier file", f"It continues with {position.file}.")
        if position.number > self._stop.number:
            self._place.refuse(f"{self._stop.file}:{self._stop.pos} is not in the log", "Its file ends earlier.")
        self.finished = position.number == self._stop.number and self._stop.pos == _FILE_START
        yield from self._drain()
        self._place.begin_file(position)

    def _route(self, block: EventBlock, first: int, last: int, trailer: int, *, counted: bool) -> Iterator[SharedBatch]:
        """Let the kernel go through `[first, last)`, and look at each event it stops at."""
        if first < last and not self._described:
            self._place.refuse("the log does not begin with its description", "The server sent another event first.")
        events, transactions, positions, tables = (np.empty(last - first, dtype=np.int64) for _ in range(4))
        at, judge, book, wanted = first, self._judge, self._place.book, self._judge.wanted
        while at < last and not self.finished:
            stop = self._stop.pos if counted and self._place.file.number == self._stop.number else _NO_STOP
            at, rows, reason = route.route_events(
                block.data, block.offsets, block.sizes, at, last, trailer, counted, stop, route.CLASSES,
                wanted.names, wanted.bounds, wanted.slots, wanted.maps, wanted.map_bounds,
                wanted.ids, wanted.mapped, wanted.touched, self._place.state,
                book.gtids, book.kinds, book.starts, book.ends, book.times, events, transactions, positions, tables,
            )  # fmt: skip
            self._keep_rows(block, events[:rows], tables[:rows], transactions[:rows], positions[:rows], trailer)
            if reason == route.TRANSACTIONS_FULL or judge.rows.bytes >= self._buffer_bytes:
                yield from self._drain()
                if judge.nothing_left:
                    return
            if reason == route.LOOK:
                yield from self._look(block.event(at), trailer, counted=counted)
                at += 1
            elif reason == route.STOP_REACHED:
                self._reach_stop()
            elif reason in (route.WRONG_POSITION, route.TOO_SHORT):
                self._refuse_event(block.event(at), reason)
        if self.finished:
            yield from self._drain()

    def _keep_rows(
        self, block: EventBlock, chosen: Longs, tables: Longs, transactions: Longs, positions: Longs, trailer: int
    ) -> None:
        book = self._place.book
        book.judge(int(self._place.state[route.TRANSACTIONS]))
        keep = ~book.skipped[transactions]
        self._judge.rows.append(block, chosen[keep], tables[keep], transactions[keep], positions[keep], trailer)

    def _drain(self) -> Iterator[SharedBatch]:
        """Decode what waits; the open transaction, if there is one, is the first of the next batch."""
        yield from self._judge.decoded(self.limits)
        self._place.keep_open_transaction()
        if self._judge.nothing_left:
            self._end_early()

    def _end_early(self) -> None:
        """No table is left to read; the slice ends before the open transaction."""
        self._place.forget_open_transaction()
        self.finished = True

    def _reach_stop(self) -> None:
        position = self._place.pos
        if self._place.file.number != self._stop.number or position < self._stop.pos:
            return
        if position > self._stop.pos or self._place.transaction >= 0:
            self._place.refuse(
                f"{self._stop.file}:{self._stop.pos} is not the end of a transaction", f"The log is at {position}."
            )
        self.finished = True

    def _look(self, event: bytes, trailer: int, *, counted: bool) -> Iterator[SharedBatch]:
        """An event that the kernel left to us. Its size counts before what is in it is looked at."""
        # MariaDB sends the encryption's parameters, which follow a file's first event, again when a dump starts later;
        # the rest of the log it sends decrypted.
        if event[4] == EventKind.START_ENCRYPTION and event[13:17] == bytes(4):
            return
        if counted:
            self._place.advance(event)
        body = event[: len(event) - trailer]
        kind = event[4]
        match kind:
            case EventKind.TABLE_MAP:
                self._judge.accept_table_map(body)
            case EventKind.QUERY | EventKind.QUERY_COMPRESSED:
                self._judge.judge_statement(read_query(body, compressed=kind == EventKind.QUERY_COMPRESSED))
            case EventKind.EXECUTE_LOAD_QUERY:
                self._judge.judge_statement(read_load_query(body))
            case EventKind.TRANSACTION_PAYLOAD:
                yield from self._unpacked(body)
            case EventKind.XA_PREPARE:
                self._judge.end_xa(body)
            case EventKind.GTID | EventKind.ANONYMOUS_GTID | EventKind.MARIADB_GTID:
                self._place.refuse("a transaction begins before the last one ended", "The log is damaged or cut.")
            case EventKind.XID:
                self._place.refuse(
                    "a transaction ends that did not begin", "The log is damaged, or was not read from a boundary."
                )
            case 166 | 167 | 168 | 169 | 170 | 171:
                self._judge.accept_compressed_rows(body)
            case _:
                self._judge.judge_unknown(body)
        if self._judge.nothing_left:
            self._end_early()
        elif counted:
            self._reach_stop()

    def _unpacked(self, event: bytes) -> Iterator[SharedBatch]:
        """The events of a compressed transaction; they have neither checksums nor positions."""
        payload = read_payload(event)
        if payload.compression not in (_ZSTD, _UNCOMPRESSED):
            self._place.refuse(
                "a transaction is compressed in an unknown way", f"Compression type {payload.compression}."
            )
        source = pa.BufferReader(payload.data)
        stream = pa.CompressedInputStream(source, "zstd") if payload.compression == _ZSTD else source
        rest = b""
        while True:
            try:
                chunk = stream.read(_UNPACKED_BLOCK)
            except OSError as error:
                raise LogFormatError("a compressed transaction cannot be unpacked", detail=str(error)) from error
            if not chunk:
                break
            block, rest = _split(rest + chunk)
            yield from self._route(block, 0, len(block.offsets), 0, counted=False)
        if rest:
            self._place.refuse("a compressed transaction ends inside an event", f"{len(rest)} bytes are left.")

    def _refuse_event(self, event: bytes, reason: int) -> NoReturn:
        told, position = int.from_bytes(event[13:17], "little"), self._place.position.pos + len(event)
        if reason == route.WRONG_POSITION:
            self._place.refuse(
                f"an event says it ends at {told}", f"By the sizes of the events before it, it ends at {position}."
            )
        self._place.refuse("an event is too short for its type", event[:64].hex())


def _split(data: bytes) -> tuple[EventBlock, bytes]:
    array = np.frombuffer(bytearray(data), dtype=np.uint8)
    capacity = len(array) // HEADER_BYTES + 1
    offsets, sizes = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    count, at, status = split_events(array, 0, len(array), offsets, sizes)
    if status == MALFORMED:
        raise LogFormatError("a compressed transaction holds an event that is too short")
    return EventBlock(array, offsets[:count], sizes[:count]), data[at:]
