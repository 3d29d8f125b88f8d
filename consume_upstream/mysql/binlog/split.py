"""Finds each event in a block of bytes, and checks that it arrived undamaged.

Nothing here reads past `end`: a packet or event that is not complete stays for the next call, and a length that cannot
be true ends the split with a status that the caller turns into an error.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from consume_upstream.mysql.compiled import COMPILING, compiled, kernel_part

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

HEADER_BYTES = 19

NEED_MORE = 0
FULL = 1
LARGE_PACKET = 2
ERROR_PACKET = 3
END_PACKET = 4
MALFORMED = 5
OUT_OF_SEQUENCE = 6

_MAX_PACKET = 0xFFFFFF
_SMALL_EVENT = 1024


@kernel_part
def _little_endian(data: Bytes, at: int, width: int) -> int:
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return value


@compiled
def split_packets(
    data: Bytes, begin: int, end: int, sequence: int, offsets: Longs, sizes: Longs, count: int
) -> tuple[int, int, int, int]:
    """Find the events of complete packets in `data[begin:end]`, writing from slot `count` on.

    Returns the new count, the first byte not consumed, the next sequence number, and why it ended.
    """
    at = begin
    status = NEED_MORE
    while True:
        if count == len(offsets):
            status = FULL
            break
        if end - at < 5:
            break
        length = _little_endian(data, at, 3)
        if int(data[at + 3]) != sequence:
            status = OUT_OF_SEQUENCE
            break
        if length == _MAX_PACKET:
            status = LARGE_PACKET
            break
        if end - at - 4 < length:
            break
        marker = int(data[at + 4])
        if length == 0 or marker != 0:
            status = _last_packet(length, marker)
            break
        if length <= HEADER_BYTES or _little_endian(data, at + 14, 4) != length - 1:
            status = MALFORMED
            break
        offsets[count] = at + 5
        sizes[count] = length - 1
        count += 1
        at += 4 + length
        sequence = (sequence + 1) & 255
    return count, at, sequence, status


@kernel_part
def _last_packet(length: int, marker: int) -> int:
    if length > 0 and marker == 0xFF:
        return ERROR_PACKET
    if length > 0 and marker == 0xFE and length < 9:
        return END_PACKET
    return MALFORMED


@compiled
def split_events(data: Bytes, begin: int, end: int, offsets: Longs, sizes: Longs) -> tuple[int, int, int]:
    """Find complete events that follow each other without packets, as inside a compressed transaction."""
    at = begin
    count = 0
    while count < len(offsets) and end - at >= HEADER_BYTES:
        size = _little_endian(data, at + 9, 4)
        if size < HEADER_BYTES:
            return count, at, MALFORMED
        if end - at < size:
            break
        offsets[count] = at
        sizes[count] = size
        count += 1
        at += size
    return count, at, FULL if count == len(offsets) else NEED_MORE


def first_damaged(data: Bytes, offsets: Longs, sizes: Longs, first: int, last: int) -> int:
    """The first event in `[first, last)` whose CRC32 does not match its bytes, or -1.

    zlib is the fastest over long events; its call is too dear for events of 50 bytes, which a kernel checks.
    """
    if COMPILING:
        damaged = _first_damaged_small(data, offsets, sizes, first, last, _TABLES)
        candidates = np.flatnonzero(sizes[first:last] > _SMALL_EVENT) + first
    else:
        damaged, candidates = -1, np.arange(first, last)
    view = data.data
    for index in candidates.tolist():
        if 0 <= damaged < index:
            break
        begin, end = int(offsets[index]), int(offsets[index]) + int(sizes[index])
        if end - begin < HEADER_BYTES + 4 or zlib.crc32(view[begin : end - 4]) != int.from_bytes(
            view[end - 4 : end], "little"
        ):
            return int(index)
    return damaged


def _tables() -> Longs:
    """The eight tables of the slicing-by-8 form of CRC32, one after the other."""
    tables = [[0] * 256 for _ in range(8)]
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0][byte] = value
    for byte in range(256):
        for k in range(1, 8):
            before = tables[k - 1][byte]
            tables[k][byte] = (before >> 8) ^ tables[0][before & 255]
    return np.array(tables, dtype=np.int64).ravel()


_TABLES = _tables()


@compiled
def _first_damaged_small(data: Bytes, offsets: Longs, sizes: Longs, first: int, last: int, tables: Longs) -> int:
    for index in range(first, last):
        size = sizes[index]
        if size > _SMALL_EVENT:
            continue
        begin = offsets[index]
        end = begin + size - 4
        if size < HEADER_BYTES + 4 or _crc32(data, begin, end, tables) != _little_endian(data, end, 4):
            return index
    return -1


@kernel_part
def _crc32(data: Bytes, at: int, end: int, tables: Longs) -> int:
    crc = 0xFFFFFFFF
    while end - at >= 8:
        low = crc ^ _little_endian(data, at, 4)
        high = _little_endian(data, at + 4, 4)
        crc = (
            tables[1792 + (low & 255)]
            ^ tables[1536 + ((low >> 8) & 255)]
            ^ tables[1280 + ((low >> 16) & 255)]
            ^ tables[1024 + ((low >> 24) & 255)]
            ^ tables[768 + (high & 255)]
            ^ tables[512 + ((high >> 8) & 255)]
            ^ tables[256 + ((high >> 16) & 255)]
            ^ tables[(high >> 24) & 255]
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ tables[(crc ^ int(data[at])) & 255]
        at += 1
    return crc ^ 0xFFFFFFFF
