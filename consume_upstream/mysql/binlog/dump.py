"""Receives the log as the server sends it: COM_BINLOG_DUMP over the driver's connection, read in large blocks.

What must hold: **the stream ends only with the server's end packet**, and even that packet is for the caller to judge,
because it may come before the position that was asked for. A closed socket, a timeout, an error packet, a packet out of
sequence raise; a lost connection never looks like the end.

The dump does not block: at the end of its log the server sends the end packet instead of waiting for more. Each dump
needs its own server id: the server ends the older of two dumps with the same id. The exception is id 0, under which the
server's own tools read: any number of dumps may have it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from socket import socket
from typing import NoReturn, Protocol, cast

import numpy as np
from pymysql.connections import Connection
from pymysql.err import Error as DriverError
from pymysql.err import raise_mysql_exception

from consume_upstream.mysql.binlog import split
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.split import Bytes, Longs, split_packets
from consume_upstream.mysql.binlog.table_map import Flavour
from consume_upstream.mysql.connection import source_errors
from vnode_backfill.words.errors import BinlogPurgedError, LogFormatError, SourceError, SourceLostError
from vnode_backfill.words.hints import READ_AGAIN

ConnectionFactory = Callable[[], Connection]

NO_REPLICA = 0
"""The server id of a dump that may run beside any other one: those that are short, or made while tables are opened."""
_BINLOG_DUMP = 0x12
_NON_BLOCK, _SEND_ANNOTATIONS = 0x01, 0x02
_NO_LOG = 1236
_FIRST_BLOCK, _LAST_BLOCK = 256 << 10, 16 << 20
_LONGEST_PACKET = 0xFFFFFF
_MAX_START = 2**32
_RECEIVE = 1 << 20


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Event `i` is `data[offsets[i]:offsets[i] + sizes[i]]`. The bytes are used again by the next block."""

    data: Bytes
    offsets: Longs
    sizes: Longs

    def event(self, index: int) -> bytes:
        begin = int(self.offsets[index])
        return bytes(self.data[begin : begin + int(self.sizes[index])])


class _Wire(Protocol):
    """The parts of the driver's connection that its type stubs leave out."""

    _sock: socket | None
    _rfile: BufferedReader | None
    _read_timeout: float | None

    def _execute_command(self, command: int, sql: bytes) -> None: ...
    def _force_close(self) -> None: ...


class DumpStream:
    """One dump of the log from a position on. It can be read once; `close` ends it at any point."""

    def __init__(self, connect: ConnectionFactory, server_id: int, flavour: Flavour, start: LogPosition) -> None:
        if start.pos >= _MAX_START:
            raise LogFormatError(
                f"the log cannot be read from {start.file}:{start.pos} on",
                detail="The protocol asks for a position with 32 bits.",
                hint="Start at the next file.",
            )
        self._start = start
        self._attempt = f"reading the binlog from {start.file}:{start.pos}"
        self._sequence = 1
        self._received = False
        connection = connect()
        self._wire = cast(_Wire, connection)
        flags = _NON_BLOCK | (_SEND_ANNOTATIONS if flavour == "mariadb" else 0)
        request = struct.pack("<IHI", start.pos, flags, server_id) + start.file.encode()
        try:
            with source_errors(self._attempt):
                _announce(connection, flavour)
                self._wire._execute_command(_BINLOG_DUMP, request)
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        self._wire._force_close()

    def blocks(self, *, large: bool = True) -> Iterator[EventBlock]:
        """Events in order, many at a time, until the server says that its log ends here.

        Without `large` they end before the first event of 16 MB or more, which would be in memory as a whole.
        """
        rest = np.empty(0, dtype=np.uint8)
        size = _FIRST_BLOCK
        while True:
            data = np.empty(max(size, 2 * len(rest)), dtype=np.uint8)
            data[: len(rest)] = rest
            block, rest, status = self._fill(data, len(rest))
            if len(block.offsets):
                self._received = True
                yield block
            if status == split.END_PACKET or (status == split.LARGE_PACKET and not large):
                return
            if status == split.LARGE_PACKET:
                whole, rest = self._large_event(rest)
                yield whole
            size = min(4 * size, _LAST_BLOCK)

    def _fill(self, data: Bytes, filled: int) -> tuple[EventBlock, Bytes, int]:
        """Receive until the block is full or the stream says something else than an event."""
        capacity = len(data) // 24
        offsets, sizes = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
        count, at = 0, 0
        while True:
            count, at, self._sequence, status = split_packets(data, at, filled, self._sequence, offsets, sizes, count)
            if status != split.NEED_MORE or filled == len(data):
                break
            filled += self._receive(data[filled:])
        block = EventBlock(data, offsets[:count], sizes[:count])
        if status == split.ERROR_PACKET and not count:
            self._raise_error(bytes(data[at + 4 : filled]))
        if status in (split.MALFORMED, split.OUT_OF_SEQUENCE):
            raise SourceLostError(
                f"connection damaged while {self._attempt}", detail="A packet is not what it must be."
            )
        return block, data[at:filled].copy(), status

    def _receive(self, target: Bytes) -> int:
        """At least one byte, or an error: the server never ends a dump by closing the connection."""
        if self._wire._sock is None or self._wire._rfile is None:
            raise SourceLostError(f"connection lost while {self._attempt}", detail="The connection was closed.")
        with source_errors(self._attempt):
            self._wire._sock.settimeout(self._wire._read_timeout)
            received = self._wire._rfile.readinto1(target.data)
        if not received:
            raise SourceLostError(f"connection lost while {self._attempt}", detail="The server closed it in mid-log.")
        return received

    def _large_event(self, rest: Bytes) -> tuple[EventBlock, Bytes]:
        """An event of 16 MB or more: packets of the greatest length, and a shorter one that ends it."""
        raw, event = bytearray(rest), bytearray()
        while True:
            self._extend(raw, 4)
            length = int.from_bytes(raw[:3], "little")
            if raw[3] != self._sequence:
                raise SourceLostError(
                    f"connection damaged while {self._attempt}", detail="A packet is out of sequence."
                )
            self._extend(raw, 4 + length)
            event += raw[4 : 4 + length]
            del raw[: 4 + length]
            self._sequence = (self._sequence + 1) & 255
            if length < _LONGEST_PACKET:
                break
        size = len(event) - 1
        if event[0] != 0 or int.from_bytes(event[10:14], "little") != size:
            raise SourceLostError(f"connection damaged while {self._attempt}", detail="A large event is incomplete.")
        data = np.frombuffer(event, dtype=np.uint8)
        return EventBlock(data, np.array([1], dtype=np.int64), np.array([size], dtype=np.int64)), _array(raw)

    def _extend(self, raw: bytearray, length: int) -> None:
        chunk = np.empty(_RECEIVE, dtype=np.uint8)
        while len(raw) < length:
            raw += chunk.data[: self._receive(chunk)]

    def _raise_error(self, packet: bytes) -> NoReturn:
        with source_errors(self._attempt):
            try:
                raise_mysql_exception(packet)
            except DriverError as error:
                if error.args[0] != _NO_LOG:
                    raise
                self._raise_no_log(str(error.args[1]))
        raise SourceLostError(f"connection damaged while {self._attempt}", detail="An error packet says nothing.")

    def _raise_no_log(self, said: str) -> NoReturn:
        """The server's one number for "this log is not there" and for a dump it ended itself."""
        if self._received:
            raise SourceLostError(f"the server ended the dump while {self._attempt}", detail=said)
        raise BinlogPurgedError(
            f"binlog position {self._start.file}:{self._start.pos} is not available upstream",
            detail=said,
            hint=f"{READ_AGAIN} Keep binlog files longer.",
        )


def _array(raw: bytearray) -> Bytes:
    return np.frombuffer(raw, dtype=np.uint8).copy()


def _announce(connection: Connection, flavour: Flavour) -> None:
    """Say to the server what this reader understands: checksums, and MariaDB's own events."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
        )
        if flavour == "mariadb":
            cursor.execute("SET @mariadb_slave_capability = 4")
