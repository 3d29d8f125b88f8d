"""Runs prepared statements over the client's connection, and reads their results in large blocks.

The driver speaks the text protocol only and makes an object of every cell. This module sends COM_STMT_PREPARE and
COM_STMT_EXECUTE over the driver's socket and hands out the result's rows as ranges of one byte buffer, thousands at a
time, so that columns can be built from them by compiled code.

What must hold: **a result ends only with the server's end packet.** A closed socket, a timeout, an error packet, a
packet out of sequence or bytes after the end raise; nothing else may look like an end, because a short result would be
rows silently lost. A result that was not read to its end leaves the connection unusable, so it is closed.

A row of 16 MB or more comes in several packets and is returned as its own block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from io import DEFAULT_BUFFER_SIZE, BufferedReader
from socket import socket
from typing import NoReturn, Protocol, cast

import numpy as np
import numpy.typing as npt
from pymysql.connections import Connection
from pymysql.err import raise_mysql_exception

from consume_upstream.mysql.connection import asked_for_file, source_errors
from consume_upstream.mysql.rows.kernels import Split, split_rows
from vnode_backfill.words.errors import LawBrokenError, SourceError, SourceLostError

__all__ = ["BLOCK_BYTES", "Parameter", "PreparedStatement", "ResultStream", "RowBlock", "WireColumn"]

Parameter = int | Decimal | str | bytes | date | datetime
Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 4 << 20
_MAX_ROWS = 65_536
_LONGEST_PACKET = 0xFFFFFF
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_FILE_WANTED = b"\xfb"
"""The first byte of a LOCAL INFILE request."""
_TINY, _SHORT, _LONG, _LONGLONG, _DATE, _DATETIME, _DECIMAL, _BLOB, _STRING = 1, 2, 3, 8, 10, 12, 246, 252, 253
_UNSIGNED = 0x8000
_MORE_RESULTS = 0x0008
_UNSIGNED_FLAG = 0x20


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column of a result as the server announces it."""

    name: str
    type_code: int
    unsigned: bool


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Row `i` is `buffer[starts[i]:ends[i]]`. The buffer is used again by the next block."""

    buffer: Bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)


class _Packet(Protocol):
    def get_all_data(self) -> bytes: ...


class _Wire(Protocol):
    """The parts of the driver's connection below its public face that this module relies on."""

    _rfile: BufferedReader | None
    _sock: socket | None
    _next_seq_id: int

    def _execute_command(self, command: int, sql: bytes) -> None: ...
    def _read_packet(self) -> _Packet: ...
    def _force_close(self) -> None: ...


class PreparedStatement:
    """One statement the server has parsed; execute it any number of times, one result at a time."""

    def __init__(self, connection: Connection, sql: str) -> None:
        self._wire = cast(_Wire, connection)
        self._sql = sql
        with source_errors(f"preparing {sql[:200]!r}"):
            self._wire._execute_command(_PREPARE, sql.encode())
            reply = self._wire._read_packet().get_all_data()
            if reply[:1] == _FILE_WANTED:
                raise asked_for_file(f"preparing {sql[:200]!r}")
            self._id, columns, self._parameters = struct.unpack_from("<IHH", reply, 1)
            for count in (self._parameters, columns):
                self._skip_definitions(count)

    def execute(self, parameters: Sequence[Parameter] = ()) -> ResultStream:
        """Start the statement. Read the stream to its end, or close it, before the connection is used again."""
        if len(parameters) != self._parameters:
            raise LawBrokenError(f"{self._sql[:200]!r} takes {self._parameters} values, {len(parameters)} were given")
        with source_errors(f"executing {self._sql[:200]!r}"):
            head = struct.pack("<IBI", self._id, 0, 1)
            self._wire._execute_command(_EXECUTE, head + encode_parameters(parameters))
            columns = self._read_header()
        return ResultStream(self._wire, columns)

    def close(self) -> None:
        """Let the server forget the statement; it does not answer."""
        with source_errors("closing a statement"):
            self._wire._execute_command(_CLOSE, struct.pack("<I", self._id))

    def _skip_definitions(self, count: int) -> None:
        if count:
            for _ in range(count + 1):
                self._wire._read_packet()

    def _read_header(self) -> tuple[WireColumn, ...]:
        reply = self._wire._read_packet().get_all_data()
        if reply[:1] == _FILE_WANTED:
            raise asked_for_file(f"executing {self._sql[:200]!r}")
        count, _ = _lenenc(reply, 0)
        if count == 0:
            raise SourceError(f"{self._sql[:200]!r} gave no result set")
        columns = tuple(_wire_column(self._wire._read_packet().get_all_data()) for _ in range(count))
        self._wire._read_packet()
        return columns


class ResultStream:
    """The rows of one execution, in blocks. Iterating ends only when the server said so; anything else raises."""

    def __init__(self, wire: _Wire, columns: tuple[WireColumn, ...]) -> None:
        self.columns = columns
        self.finished = False
        self._wire = wire
        self._sequence = wire._next_seq_id
        self._buffer: Bytes = np.empty(BLOCK_BYTES, np.uint8)
        self._begin = self._end = 0
        self._drained = False

    def __iter__(self) -> Iterator[RowBlock]:
        try:
            while (block := self._next_block()) is not None:
                yield block
        finally:
            self.close()

    def close(self) -> None:
        """Give the result up. If it was not read to its end the connection is closed with it."""
        if not self.finished:
            self.finished = True
            self._wire._force_close()

    def _next_block(self) -> RowBlock | None:
        """Collect whole rows until the block is full or something else than a row follows; `None` is the end."""
        if self.finished:
            return None
        self._move_rest_to_front()
        starts, ends = np.empty(_MAX_ROWS, np.int64), np.empty(_MAX_ROWS, np.int64)
        count = 0
        while True:
            reason, count, self._begin, self._sequence = split_rows(
                self._buffer, self._begin, self._end, self._sequence, starts, ends, count
            )
            if reason == Split.NEED_MORE and (self._end < len(self._buffer) or count == 0):
                self._fill()
            elif count:
                return RowBlock(self._buffer, starts[:count], ends[:count])
            elif reason == Split.LONG_PACKET:
                return self._long_row()
            elif reason == Split.OTHER_PACKET:
                self._end_of_result(self._take_packet())
                return None
            else:
                self._lost("the server's packets are out of sequence")

    def _move_rest_to_front(self) -> None:
        rest = self._end - self._begin
        self._buffer[:rest] = self._buffer[self._begin : self._end].copy()
        self._begin, self._end = 0, rest

    def _fill(self) -> None:
        """Read what the socket has, at least one byte; a closed socket is a lost connection, never an end."""
        if self._end == len(self._buffer):
            self._move_rest_to_front()
        if self._end == len(self._buffer):
            grown = np.empty(2 * len(self._buffer), np.uint8)
            grown[: self._end] = self._buffer
            self._buffer = grown
        free = self._buffer.data[self._end :]
        if self._wire._sock is None or self._wire._rfile is None:
            raise SourceLostError("the connection is closed")
        try:
            if self._drained:
                read = self._wire._sock.recv_into(free)
            else:
                # The driver's own reader holds at most so many bytes; once they are taken the socket is read directly.
                read = self._wire._rfile.readinto1(free[:DEFAULT_BUFFER_SIZE])
                self._drained = True
        except (OSError, ValueError) as error:
            self._lost(str(error), error)
        if not read:
            self._lost("the server closed the connection in the middle of a result")
        self._end += read

    def _take_packet(self) -> bytes:
        """The whole packet at the buffer's start of unread bytes, without its header."""
        self._need(4)
        length = int.from_bytes(self._buffer[self._begin : self._begin + 3].tobytes(), "little")
        if int(self._buffer[self._begin + 3]) != self._sequence:
            # MariaDB announces its shutdown out of sequence; the reason is worth telling if it is there.
            self._lost("the server's packets are out of sequence")
        self._need(4 + length)
        payload = self._buffer[self._begin + 4 : self._begin + 4 + length].tobytes()
        self._begin += 4 + length
        self._sequence = (self._sequence + 1) % 256
        return payload

    def _need(self, count: int) -> None:
        while self._end - self._begin < count:
            self._fill()

    def _long_row(self) -> RowBlock:
        row = bytearray()
        while True:
            payload = self._take_packet()
            row += payload
            if len(payload) < _LONGEST_PACKET:
                break
        return RowBlock(np.frombuffer(row, np.uint8), np.zeros(1, np.int64), np.array([len(row)], np.int64))

    def _end_of_result(self, packet: bytes) -> None:
        """Accept the server's end packet; raise the server's error; refuse anything else."""
        if packet[:1] == b"\xff":
            # The connection stays in step after an error packet: nothing of this result follows it.
            self.finished = True
            with source_errors("reading a result"):
                raise_mysql_exception(packet)
        if packet[:1] != b"\xfe" or len(packet) != 5 or self._begin != self._end:
            self._lost(f"the server sent {packet[:16]!r} where a row or the end of the result was due")
        if struct.unpack_from("<H", packet, 3)[0] & _MORE_RESULTS:
            self._lost("the server announced a second result")
        self.finished = True

    def _lost(self, detail: str, cause: Exception | None = None) -> NoReturn:
        self.close()
        raise SourceLostError("connection lost while reading a result", detail=detail) from cause


def encode_parameters(parameters: Sequence[Parameter]) -> bytes:
    """The part of COM_STMT_EXECUTE after its head: no NULLs, types always sent, values typed as they are in Python."""
    if not parameters:
        return b""
    encoded = [_encode(value) for value in parameters]
    types = b"".join(struct.pack("<H", type_code) for type_code, _ in encoded)
    return bytes((len(parameters) + 7) // 8) + b"\x01" + types + b"".join(value for _, value in encoded)


def _encode(value: Parameter) -> tuple[int, bytes]:
    match value:
        case int():
            unsigned = value > 0x7FFFFFFFFFFFFFFF
            return _LONGLONG | (_UNSIGNED if unsigned else 0), struct.pack("<Q" if unsigned else "<q", value)
        case Decimal():
            return _DECIMAL, _lenenc_bytes(format(value, "f").encode())
        case str():
            return _STRING, _lenenc_bytes(value.encode())
        case bytes():
            return _BLOB, _lenenc_bytes(value)
        case datetime():
            at = value.astimezone(UTC) if value.tzinfo else value
            clock = (at.hour, at.minute, at.second, at.microsecond)
            return _DATETIME, struct.pack("<BHBBBBBI", 11, at.year, at.month, at.day, *clock)
        case date():
            return _DATE, struct.pack("<BHBB", 4, value.year, value.month, value.day)


def _lenenc_bytes(value: bytes) -> bytes:
    length = len(value)
    if length < 251:
        return bytes([length]) + value
    if length < 1 << 16:
        return b"\xfc" + length.to_bytes(2, "little") + value
    if length < 1 << 24:
        return b"\xfd" + length.to_bytes(3, "little") + value
    return b"\xfe" + length.to_bytes(8, "little") + value


def _lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded number and where it ends."""
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(data[at], 0)
    return (int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else data[at]), at + 1 + width


def _wire_column(packet: bytes) -> WireColumn:
    """Column definition 4.1: catalog, schema, table, original table, name, original name, then fixed fields."""
    at, texts = 0, []
    for _ in range(6):
        length, at = _lenenc(packet, at)
        texts.append(packet[at : at + length])
        at += length
    _, at = _lenenc(packet, at)
    type_code, flags = struct.unpack_from("<BH", packet, at + 6)
    return WireColumn(texts[4].decode(), type_code, bool(flags & _UNSIGNED_FLAG))
