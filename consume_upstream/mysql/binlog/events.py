"""Reads the few events that Python looks at itself: the first event of a file, the name of the next, statements.

Row events never come here; see `row_images`. Every reader takes the bytes of one whole event without its checksum and
raises `LogFormatError` where a length runs past them.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from vnode_backfill.words.errors import LogFormatError

HEADER_BYTES = 19
_FILE_NAME = re.compile(r"(?P<prefix>.+)\.(?P<number>\d+)\Z")
_IN_USE, _IGNORABLE = 0x01, 0x80
_SQL_MODE, _CLIENT_CHARSET, _UPDATED_DATABASES = 1, 4, 12
_STRICT_MODES = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES: for InnoDB both mean the same."""
_VARIABLE_BYTES = {0: 4, 1: 8, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4}
"""Status variables of a QUERY event that have one size."""
_COUNTED_VARIABLES = {5: 1, 6: 1, 11: 2}
"""Those that are texts with their lengths, and how many texts."""
_MOST_DATABASES = 16


class EventKind(IntEnum):
    """Event types that are named in code; the rest are skipped or refused by number."""

    QUERY = 2
    ROTATE = 4
    FORMAT_DESCRIPTION = 15
    XID = 16
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    INCIDENT = 26
    GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    MARIADB_GTID = 162
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165


class LogPosition(NamedTuple):
    """A point of the log by file name, as the server is asked for it."""

    file: str
    pos: int

    @property
    def number(self) -> int:
        return file_number(self.file)

    @property
    def order(self) -> tuple[int, int]:
        """Files follow each other by number: `binlog.1000000` comes after `binlog.999999`."""
        return self.number, self.pos


def file_number(name: str) -> int:
    found = _FILE_NAME.match(name)
    if found is None:
        raise LogFormatError(f"{name!r} is not the name of a binlog file")
    return int(found["number"])


class Cursor:
    """Reads one event from front to back; reading past its end raises."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, length: int) -> bytes:
        if length < 0 or length > self.left:
            raise LogFormatError(
                "an event of the binlog ends too early", detail=f"{length} bytes were needed, {self.left} are there."
            )
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def length(self) -> int:
        """A length-encoded number."""
        first = self.number(1)
        if first < 0xFB:
            return first
        if first in (0xFB, 0xFF):
            raise LogFormatError("an event of the binlog holds an impossible length")
        return self.number({0xFC: 2, 0xFD: 3, 0xFE: 8}[first])

    def text(self, width: int) -> str:
        return self.take(width).decode("utf-8", "surrogateescape")


def is_ignorable(event: bytes) -> bool:
    """Whether the event says of itself that whoever does not understand it may pass it over."""
    return bool(int.from_bytes(event[17:19], "little") & _IGNORABLE)


def checksum_matches(event: bytes) -> bool:
    """Whether the last four bytes are the CRC32 of those before; `event` includes them.

    A file that is still open says so in its first event, after the checksum was computed: the flag is taken out.
    """
    if len(event) < HEADER_BYTES + 4:
        return False
    body = bytearray(event[:-4])
    if body[4] == EventKind.FORMAT_DESCRIPTION:
        body[17] &= ~_IN_USE
    return zlib.crc32(body) == int.from_bytes(event[-4:], "little")


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """What the first event of a file says about the rest of it."""

    server_version: str
    checksums: bool


def read_format_description(event: bytes) -> FormatDescription:
    """Read it from a whole event; a file of another format version is refused."""
    cursor = Cursor(event, HEADER_BYTES)
    version = cursor.number(2)
    server_version = cursor.take(50).rstrip(b"\0").decode("ascii", "replace")
    cursor.take(4)
    header = cursor.number(1)
    if version != 4 or header != HEADER_BYTES or cursor.left < 5:
        raise LogFormatError(
            f"binlog format version {version} cannot be read",
            detail=f"Written by server version {server_version!r}, with event headers of {header} bytes.",
        )
    algorithm = event[-5]
    if algorithm not in (0, 1):
        raise LogFormatError(f"binlog checksum algorithm {algorithm} is unknown")
    if algorithm == 1 and not checksum_matches(event):
        raise LogFormatError("the first event of a binlog file is damaged", detail="Its CRC32 does not match.")
    return FormatDescription(server_version, algorithm == 1)


def read_rotate(event: bytes) -> LogPosition:
    """Where the log continues. Whether this event carries a checksum is known only by looking: it may be sent
    before the first event that says it."""
    if checksum_matches(event):
        event = event[:-4]
    cursor = Cursor(event, HEADER_BYTES)
    pos = cursor.number(8)
    name = cursor.text(cursor.left)
    file_number(name)
    return LogPosition(name, pos)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the log holds it; `database` is the one it ran in."""

    database: str
    raw: bytes
    """The text as the client sent it, or as the server wrote it; the log does not say which."""
    collation: int | None = None
    """The number of a collation of the client's character set, which the text is in if the client sent it."""
    updated: frozenset[str] | None = None
    """The databases whose tables the statement changes, also through triggers and functions.

    It is None if that is not known.
    """
    sql_mode: int | None = None
    """The modes of the session that ran it, as bits; None if they are not known."""

    @property
    def is_strict(self) -> bool:
        """Whether the server refuses to change a value on its own in this session, rather than warn of it."""
        return self.sql_mode is not None and bool(self.sql_mode & _STRICT_MODES)


def read_query(event: bytes, *, compressed: bool = False) -> Statement:
    cursor = Cursor(event, HEADER_BYTES)
    cursor.take(8)
    database_length = cursor.number(1)
    cursor.take(2)
    variables = cursor.take(cursor.number(2))
    database = cursor.text(database_length)
    cursor.take(1)
    text = cursor.take(cursor.left)
    if compressed:
        text = unpack_mariadb(text)
    return Statement(database, text, *_read_variables(variables))


def _read_variables(data: bytes) -> tuple[int | None, frozenset[str] | None, int | None]:
    """The client's collation, the changed databases and the modes.

    Whatever follows a variable that is not known is not read.
    """
    cursor, collation, sql_mode = Cursor(data), None, None
    while cursor.left:
        code = cursor.number(1)
        if code == _UPDATED_DATABASES:
            return collation, _updated_databases(cursor), sql_mode
        if code == _SQL_MODE:
            sql_mode = cursor.number(8)
        elif code == _CLIENT_CHARSET:
            collation = cursor.number(2)
            cursor.take(4)
        elif code in _COUNTED_VARIABLES:
            for _ in range(_COUNTED_VARIABLES[code]):
                cursor.take(cursor.number(1))
        elif code in _VARIABLE_BYTES:
            cursor.take(_VARIABLE_BYTES[code])
        else:
            break
    return collation, None, sql_mode


def _updated_databases(cursor: Cursor) -> frozenset[str] | None:
    """MySQL writes up to 16 names; where there are more it writes no name."""
    count = cursor.number(1)
    if count > _MOST_DATABASES:
        return None
    names = cursor.take(cursor.left).split(b"\0", count)
    return frozenset(name.decode("utf-8", "surrogateescape") for name in names[:count])


def read_load_query(event: bytes) -> Statement:
    """EXECUTE_LOAD_QUERY: as QUERY, with 13 more bytes before the variable part."""
    return read_query(event[: HEADER_BYTES + 13] + event[HEADER_BYTES + 26 :])


def unpack_mariadb(data: bytes) -> bytes:
    """MariaDB's compressed part of an event: one byte (algorithm, size of the length), the length, zlib data."""
    cursor = Cursor(data)
    head = cursor.number(1)
    if head & 0xF0 != 0x80 or not 1 <= head & 0x07 <= 4:
        raise LogFormatError(f"compressed event has the unknown header {head:#x}")
    expected = int.from_bytes(cursor.take(head & 0x07), "big")
    try:
        unpacked = zlib.decompress(cursor.take(cursor.left))
    except zlib.error as error:
        raise LogFormatError("compressed event cannot be unpacked", detail=str(error)) from error
    if len(unpacked) != expected:
        raise LogFormatError("compressed event has another length than it says")
    return unpacked


def unpack_rows(event: bytes) -> tuple[int, bytes]:
    """MariaDB's compressed row event as the plain one that it replaces: kind, and header with body.

    Table, flags, number of columns and bitmaps are as in the plain event; the images after them are packed.
    """
    kind = event[4]
    version_2, operation = kind >= 169, (kind - 166) % 3
    cursor = Cursor(event, HEADER_BYTES + 8)
    if version_2:
        cursor.take(max(cursor.number(2), 2) - 2)
    bitmap = (cursor.length() + 7) // 8
    cursor.take(2 * bitmap if operation == 1 else bitmap)
    head = event[: cursor.at]
    return (30 if version_2 else 23) + operation, head + unpack_mariadb(cursor.take(cursor.left))


@dataclass(frozen=True, slots=True)
class Payload:
    """A compressed transaction of MySQL: the events inside have no checksums."""

    compression: int
    data: bytes


def read_payload(event: bytes) -> Payload:
    cursor = Cursor(event, HEADER_BYTES)
    fields = {0: 0, 1: 0, 2: 255, 3: 0}
    while (field := cursor.length()) != 0:
        size = cursor.length()
        fields[field] = Cursor(cursor.take(size)).length()
    size = fields[1] or cursor.left
    return Payload(fields[2], cursor.take(size))
