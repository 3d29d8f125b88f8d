"""Reads a slice `(start, stop]` of the binlog and yields the changes of one table as Arrow batches.

What must be true: every change of the table that the slice holds is yielded once, in log order, decoded exactly; or the
reader raises. It raises where the log holds something it cannot take exactly: a table that is no longer the stored one, DDL that may
touch it, changes logged as statements, partial row images, prepared XA transactions, rows that a later event takes back,
damaged bytes. A log that ends before `stop`, whatever the reason, raises too.

`start` and `stop` are ends of transactions, or the start of a file (position 4); `stop` may lie in a later file. Every transaction
of the slice is reported, also those that do not touch the table, because the caller keeps the set of GTIDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
import pyarrow as pa

from consume_upstream.continuity import check_same_file
from consume_upstream.log import LogBatch
from consume_upstream.log_identity import LogIdentity
from consume_upstream.mysql import log_route as route
from consume_upstream.mysql.decoder import RowDecoder, ZeroDates
from consume_upstream.mysql.dump import ConnectionFactory, DumpStream, EventBlock
from consume_upstream.mysql.events import (
    HEADER_BYTES,
    EventKind,
    LogPosition,
    Statement,
    read_format_description,
    read_load_query,
    read_payload,
    read_query,
    read_rotate,
    unpack_rows,
)
from consume_upstream.mysql.labels import doubtful_labels, with_labels
from consume_upstream.mysql.log_batch import RowBuffer, TransactionBook
from consume_upstream.mysql.log_split import MALFORMED, Longs, first_damaged, split_events
from consume_upstream.mysql.log_statements import Effect, effect_of, text_of
from consume_upstream.mysql.table_map import Flavour, TableMap, check_table_map, read_table_map
from vnode_backfill.columns import TableDefinition
from vnode_backfill.errors import LogFormatError, OffsetError, SchemaChangedError, SourceLostError

__all__ = ["LogBatch", "LogPosition", "read_log"]

_NO_STOP = 2**62
_FILE_START = 4
_IGNORABLE = 0x80
_ARTIFICIAL = 0x20
_STATEMENT_END = 1
_BUFFER_BYTES = 16 << 20
_UNPACKED_BLOCK = 4 << 20
_ZSTD, _UNCOMPRESSED = 0, 255
_READ_AGAIN = "ask for `vnode-backfill resnapshot --all` and run the job again: it reads the table again and follows the log from then on."


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
) -> Iterator[LogBatch]:
    """Yield the changes in `(start, stop]`. The connection is opened at the first batch and closed at the end.

    `log` is the identity of the file of `start`, if it is known: another file of that name raises before its first event is read.
    Demands that `server_id` is used by no other dump of this server at the time. Memory is bounded by `batch_bytes` and the longest
    event; a transaction of any size is cut into batches. Transactions for which `skip_gtids` is true yield no rows.
    """
    if start.order > stop.order:
        raise OffsetError(f"the log cannot be read from {start.file}:{start.pos} back to {stop.file}:{stop.pos}")
    if start.order == stop.order:
        return
    part = LogSlice(definition, flavour, start, stop, zero_dates=zero_dates, skip_gtids=skip_gtids)
    part.limits = (batch_rows, batch_bytes)
    part.known = LogIdentity.parse(log) if log else None
    stream = DumpStream(connect, server_id, flavour, start)
    try:
        for block in stream.blocks():
            yield from part.take(block)
            if part.finished:
                return
        part.raise_unfinished()
    finally:
        stream.close()


class LogSlice:
    """The state of reading one slice. It is fed blocks of events and knows when `stop` is reached."""

    def __init__(
        self,
        definition: TableDefinition,
        flavour: Flavour,
        start: LogPosition,
        stop: LogPosition,
        *,
        zero_dates: ZeroDates = "error",
        skip_gtids: Callable[[str], bool] | None = None,
    ) -> None:
        self.limits = (65_536, 64 << 20)
        self.finished = False
        self.known: LogIdentity | None = None
        """The identity of the first file, until it was compared."""
        self._definition = definition
        self._flavour = flavour
        self._stop = stop
        self._file = start
        self._trailer = 0
        self._described = False
        self._book = TransactionBook(skip_gtids)
        self._doubts = doubtful_labels(definition, flavour)
        self._zero_dates = zero_dates
        self._rows = RowBuffer(RowDecoder(definition, flavour, zero_dates=zero_dates, doubts=self._doubts))
        self._state = np.zeros(route.ROUTE_STATE_SIZE, dtype=np.int64)
        self._state[route.POSITION] = start.pos
        self._state[[route.TRANSACTION, route.TABLE_ID]] = -1
        self._table_name = np.frombuffer(bytearray(_name_bytes(definition)), dtype=np.uint8)
        self._table_map = np.zeros(1, dtype=np.uint8)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self._file.file, int(self._state[route.POSITION]))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction of several events is open: a statement that stands alone is none."""
        return bool(self._state[route.BEGUN])

    def raise_unfinished(self) -> NoReturn:
        raise SourceLostError(
            f"the binlog ended at {self.position.file}:{self.position.pos}, before {self._stop.file}:{self._stop.pos}",
            detail="The server has sent all it holds.",
            hint="If the server lost its log or was replaced, continue by GTID or re-snapshot.",
        )

    def take(self, block: EventBlock) -> Iterator[LogBatch]:
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
            self._refuse(f"event of type {kind} is damaged", "Its CRC32 does not match its bytes.")

    def _file_event(self, event: bytes) -> Iterator[LogBatch]:
        """ROTATE names the file that follows; FORMAT_DESCRIPTION is a file's first event, also when the dump starts later."""
        if event[4] == EventKind.ROTATE:
            if not int.from_bytes(event[17:19], "little") & _ARTIFICIAL:
                self._state[route.POSITION] += len(event)
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
        if self._state[route.POSITION] == _FILE_START:
            self._state[route.POSITION] += len(event)
            self._reach_stop()

    def _compare(self, known: LogIdentity, found: LogIdentity) -> None:
        """Files that begin alike count as the same here: the first events of a file are not in every dump."""
        if not known.begins_as(found):
            check_same_file(f"{self.position.file}:{self.position.pos}", known, found)
        self.known = None

    def _next_file(self, position: LogPosition) -> Iterator[LogBatch]:
        """Begin another file. The server names the file at its end, and again when it sends from it."""
        if position.number == self._file.number:
            if position.pos != self._state[route.POSITION]:
                self._refuse("the server does not send the log from where it was asked to", f"It sends {position}.")
            return
        if self._state[route.TRANSACTION] >= 0:
            self._refuse("a file of the log ends inside a transaction", f"It goes on with {position.file}.")
        if position.number < self._file.number:
            self._refuse("the log goes on with an earlier file", f"It goes on with {position.file}.")
        if position.number > self._stop.number:
            self._refuse(f"{self._stop.file}:{self._stop.pos} is not in the log", "Its file ends earlier.")
        self.finished = position.number == self._stop.number and self._stop.pos == _FILE_START
        yield from self._drain()
        self._file = position
        self._state[route.POSITION] = position.pos

    def _route(self, block: EventBlock, first: int, last: int, trailer: int, *, counted: bool) -> Iterator[LogBatch]:
        """Let the kernel go through `[first, last)`, and look at each event it stops at."""
        if first < last and not self._described:
            self._refuse("the log does not begin with its description", "The server sent another event first.")
        events, transactions, positions = (np.empty(last - first, dtype=np.int64) for _ in range(3))
        at, book = first, self._book
        while at < last and not self.finished:
            stop = self._stop.pos if counted and self._file.number == self._stop.number else _NO_STOP
            at, rows, reason = route.route_events(
                block.data, block.offsets, block.sizes, at, last, trailer, counted, stop, route.CLASSES,
                self._table_name, self._table_map, self._state,
                book.gtids, book.kinds, book.starts, book.ends, book.times, events, transactions, positions,
            )  # fmt: skip
            self._keep_rows(block, events[:rows], transactions[:rows], positions[:rows], trailer)
            if reason == route.TRANSACTIONS_FULL or self._rows.bytes >= _BUFFER_BYTES:
                yield from self._drain()
            if reason == route.LOOK:
                yield from self._look(block.event(at), trailer, counted=counted)
                at += 1
            elif reason == route.STOP_REACHED:
                self._reach_stop()
            elif reason in (route.WRONG_POSITION, route.TOO_SHORT):
                self._refuse_event(block.event(at), reason)
        if self.finished:
            yield from self._drain()

    def _keep_rows(self, block: EventBlock, chosen: Longs, transactions: Longs, positions: Longs, trailer: int) -> None:
        self._book.judge(int(self._state[route.TRANSACTIONS]))
        keep = ~self._book.skipped[transactions]
        self._rows.append(block, chosen[keep], transactions[keep], positions[keep], trailer)

    def _drain(self) -> Iterator[LogBatch]:
        """Decode what waits; the open transaction, if there is one, is the first of the next batch."""
        open_slot = int(self._state[route.TRANSACTION])
        count = int(self._state[route.TRANSACTIONS])
        yield from self._rows.drain(self._file.number, self._book, count, self.limits)
        self._book.keep(open_slot)
        self._state[route.TRANSACTIONS] = 0 if open_slot < 0 else 1
        self._state[route.TRANSACTION] = min(open_slot, 0)

    def _reach_stop(self) -> None:
        position = int(self._state[route.POSITION])
        if self._file.number != self._stop.number or position < self._stop.pos:
            return
        if position > self._stop.pos or self._state[route.TRANSACTION] >= 0:
            self._refuse(
                f"{self._stop.file}:{self._stop.pos} is not the end of a transaction", f"The log is at {position}."
            )
        self.finished = True

    def _look(self, event: bytes, trailer: int, *, counted: bool) -> Iterator[LogBatch]:
        """An event that the kernel left to us. Its size counts before what is in it is looked at."""
        # MariaDB sends the encryption's parameters, which follow a file's first event, again when a dump starts later;
        # the rest of the log it sends decrypted.
        if event[4] == EventKind.START_ENCRYPTION and event[13:17] == bytes(4):
            return
        if counted:
            self._state[route.POSITION] += len(event)
        body = event[: len(event) - trailer]
        kind = event[4]
        match kind:
            case EventKind.TABLE_MAP:
                self.accept_table_map(body)
            case EventKind.QUERY | EventKind.QUERY_COMPRESSED:
                self._judge_statement(read_query(body, compressed=kind == EventKind.QUERY_COMPRESSED))
            case EventKind.EXECUTE_LOAD_QUERY:
                self._judge_statement(read_load_query(body))
            case EventKind.TRANSACTION_PAYLOAD:
                yield from self._unpacked(body)
            case EventKind.XA_PREPARE:
                self._end_xa(body)
            case EventKind.GTID | EventKind.ANONYMOUS_GTID | EventKind.MARIADB_GTID:
                self._refuse("a transaction begins before the last one ended", "The log is damaged or cut.")
            case EventKind.XID:
                self._refuse(
                    "a transaction ends that did not begin", "The log is damaged, or was not read from a boundary."
                )
            case 166 | 167 | 168 | 169 | 170 | 171:
                self._take_compressed_rows(body)
            case _:
                self._unknown(body, kind)
        if counted:
            self._reach_stop()

    @property
    def _table(self) -> tuple[str, str]:
        return self._definition.database, self._definition.table

    @property
    def _skipping(self) -> bool:
        """Whether the open transaction is one that the caller does not want."""
        self._book.judge(int(self._state[route.TRANSACTIONS]))
        slot = int(self._state[route.TRANSACTION])
        return slot >= 0 and bool(self._book.skipped[slot])

    def accept_table_map(self, event: bytes) -> None:
        """Rows of the table follow."""
        if self._state[route.TRANSACTION] < 0:
            self._refuse("a table is mapped outside a transaction", "The log was not read from a boundary.")
        if self._skipping:
            return
        found = read_table_map(event)
        check_table_map(found, self._definition, self._flavour)
        if self._doubts and found.labels:
            self._learn_labels(found)
        self._table_map = np.frombuffer(bytearray(event[HEADER_BYTES + 8 :]), dtype=np.uint8)
        self._state[route.TABLE_ID] = found.table_id

    def _learn_labels(self, found: TableMap) -> None:
        """What the log says of its labels holds for the whole slice: a statement that changes them ends it."""
        self._definition, self._doubts = with_labels(self._definition, found), {}
        self._rows.decode_by(RowDecoder(self._definition, self._flavour, zero_dates=self._zero_dates))

    def _judge_statement(self, statement: Statement) -> None:
        """Stop for what may change the table; otherwise see whether the statement begins or ends a transaction."""
        effect = effect_of(statement, *self._table)
        state = self._state
        if effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO) and state[route.TOUCHED] and not self._skipping:
            self._refuse(
                "a transaction takes back changes of the table that are in the log",
                "It changed a table of an engine without transactions as well, so the server logged both.",
            )
        if effect in (Effect.SCHEMA, Effect.DATA) and not self._skipping:
            self.refuse_statement(effect, statement)
        if effect is Effect.BEGIN:
            state[route.BEGUN] = 1
        elif not state[route.BEGUN] or effect in (Effect.COMMIT, Effect.ROLLBACK):
            self._close_transaction()

    def _close_transaction(self) -> None:
        slot = int(self._state[route.TRANSACTION])
        if slot >= 0:
            self._book.ends[slot] = self._state[route.POSITION]
        self._state[[route.TRANSACTION, route.TABLE_ID]] = -1
        self._state[route.TOUCHED] = 0

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:
        """The statement that ends here may change the table or its rows; a reader of rows can only stop."""
        name, where, text = ".".join(self._table), f"{self.position.file}:{self.position.pos}", text_of(statement)[:500]
        again = (
            "drop the job with `vnode-backfill drop`, set `replace: true` below the sink and run it: it copies the table as it is now. "
            "One that only follows may begin after the statement instead, with mysql.cdc.startup_mode specific or timestamp."
        )
        if effect is Effect.SCHEMA:
            message = f"a statement in the log at {where} may change table {name}"
            raise SchemaChangedError(message, detail=text, hint=again[0].upper() + again[1:])
        raise LogFormatError(
            f"the log at {where} holds changes as a statement, not as rows, and {name} may be among the changed tables",
            detail=text,
            hint=f"SET GLOBAL binlog_format = ROW, and look for sessions that set their own. Then {again}",
        )

    def _end_xa(self, event: bytes) -> None:
        """A prepared transaction is in the log long before it is visible; with ONE PHASE it is committed."""
        one_phase = len(event) > HEADER_BYTES and event[HEADER_BYTES] != 0
        if self._state[route.TOUCHED] and not one_phase and not self._skipping:
            self._refuse(
                "an XA PREPARE touches the table",
                "Its changes become visible at an XA COMMIT, which may come much later or never.",
                f"End it at the source: XA RECOVER lists it, XA COMMIT or XA ROLLBACK ends it. Then {_READ_AGAIN}",
            )
        self._close_transaction()

    def _take_compressed_rows(self, event: bytes) -> None:
        """MariaDB with log_bin_compress."""
        state = self._state
        if not self._skipping:
            kind, unpacked = unpack_rows(event)
            self._rows.append_event(unpacked, kind, int(state[route.TRANSACTION]), int(state[route.POSITION]))
        state[route.TOUCHED] = 1
        if event[HEADER_BYTES + 6] & _STATEMENT_END:
            state[route.TABLE_ID] = -1

    def _unpacked(self, event: bytes) -> Iterator[LogBatch]:
        """The events of a compressed transaction; they have no checksums and no positions of their own."""
        payload = read_payload(event)
        if payload.compression not in (_ZSTD, _UNCOMPRESSED):
            self._refuse("a transaction is compressed in an unknown way", f"Compression type {payload.compression}.")
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
            self._refuse("a compressed transaction ends inside an event", f"{len(rest)} bytes are left.")

    def _unknown(self, event: bytes, kind: int) -> None:
        if kind == EventKind.INCIDENT:
            self._refuse(
                "the log holds an incident: the server lost changes",
                event[HEADER_BYTES:].decode("utf-8", "replace"),
                f"Look into the server's error log for what it lost. Then {_READ_AGAIN}",
            )
        if kind == EventKind.PARTIAL_UPDATE_ROWS:
            self._refuse(
                "an update of the table holds a part of a JSON value",
                "binlog_row_value_options is PARTIAL_JSON. What is logged like that stays so, whatever is set now.",
                "SET GLOBAL binlog_row_value_options = ''; sessions that are open keep the old value until they connect again. "
                f"Then {_READ_AGAIN}",
            )
        if not int.from_bytes(event[17:19], "little") & _IGNORABLE:
            self._refuse(f"the log holds an event of type {kind}, which is not understood", event[:64].hex())

    def _refuse_event(self, event: bytes, reason: int) -> NoReturn:
        told, position = int.from_bytes(event[13:17], "little"), self.position.pos + len(event)
        if reason == route.WRONG_POSITION:
            self._refuse(
                f"an event says it ends at {told}", f"By the sizes of the events before it, it ends at {position}."
            )
        self._refuse("an event is too short for its type", event[:64].hex())

    def _refuse(self, what: str, detail: str, hint: str = "") -> NoReturn:
        hint = hint or f"Look at the event with mysqlbinlog. To continue without it, {_READ_AGAIN}"
        raise LogFormatError(f"{what} (binlog {self.position.file}:{self.position.pos})", detail=detail, hint=hint)


def _name_bytes(definition: TableDefinition) -> bytes:
    """Database and table as they stand in a TABLE_MAP."""
    names = (definition.database.encode(), definition.table.encode())
    return b"".join(bytes((len(name),)) + name + b"\0" for name in names)


def _split(data: bytes) -> tuple[EventBlock, bytes]:
    array = np.frombuffer(bytearray(data), dtype=np.uint8)
    capacity = len(array) // HEADER_BYTES + 1
    offsets, sizes = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    count, at, status = split_events(array, 0, len(array), offsets, sizes)
    if status == MALFORMED:
        raise LogFormatError("a compressed transaction holds an event that is too short")
    return EventBlock(array, offsets[:count], sizes[:count]), data[at:]
