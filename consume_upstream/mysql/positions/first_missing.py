"""Finds where, in the log of a MySQL server, the first transaction outside a GTID set begins.

The server finds it. A dump by GTID (COM_BINLOG_DUMP_GTID) that does not wait for more sends only transactions outside
the given set, the first of them first. Server id 0 is what the server's own tools use for such a read; it disturbs no
replica.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, cast
from uuid import UUID

from pymysql.connections import Connection

from consume_upstream.log.gtid import GtidSet
from consume_upstream.mysql.connection import source_errors
from consume_upstream.mysql.server import ask

__all__ = ["LogPoint", "encode_gtid_set", "first_missing_transaction"]

_DUMP_GTID = 0x1E
_DO_NOT_WAIT, _THROUGH_GTID = 0x01, 0x04
_ROTATE = 4
_TRANSACTION_STARTS = frozenset({33, 34, 42})
_HEADER = struct.Struct("<IBIIIH")


@dataclass(frozen=True, slots=True)
class LogPoint:
    """A file of the log and the place in it where a transaction begins."""

    file: str
    pos: int


class _Packet(Protocol):
    def get_all_data(self) -> bytes: ...


class _Wire(Protocol):
    def _execute_command(self, command: int, sql: bytes) -> None: ...
    def _read_packet(self) -> _Packet: ...
    def _force_close(self) -> None: ...


def first_missing_transaction(connection: Connection, known: GtidSet) -> LogPoint | None:
    """The first transaction of the log that is not in `known`, or None. The connection is used up."""
    # Without checksums the file name in a ROTATE event ends where the event ends.
    ask(connection, "SET @master_binlog_checksum = 'NONE', @source_binlog_checksum = 'NONE'")
    wire = cast(_Wire, connection)
    gtids = encode_gtid_set(known)
    head = struct.pack("<HIIQI", _DO_NOT_WAIT | _THROUGH_GTID, 0, 0, 4, len(gtids))
    file = ""
    with source_errors("looking for the first transaction that is not visible"):
        wire._execute_command(_DUMP_GTID, head + gtids)
        try:
            while True:
                packet = wire._read_packet().get_all_data()
                if packet[:1] == b"\xfe":
                    return None
                _, kind, _, size, end, _ = _HEADER.unpack_from(packet, 1)
                if kind == _ROTATE:
                    file = packet[1 + _HEADER.size + 8 :].decode()
                elif kind in _TRANSACTION_STARTS:
                    return LogPoint(file, end - size)
        finally:
            wire._force_close()


def encode_gtid_set(gtids: GtidSet) -> bytes:
    """Number of sources; per source its UUID, number of intervals, and each interval as [first, last + 1)."""
    parts = [struct.pack("<Q", len(gtids.sources))]
    for source, intervals in gtids.sources:
        parts.append(UUID(source).bytes + struct.pack("<Q", len(intervals)))
        parts.extend(struct.pack("<QQ", low, high + 1) for low, high in intervals)
    return b"".join(parts)
