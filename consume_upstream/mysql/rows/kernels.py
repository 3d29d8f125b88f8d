"""Finds each row and each value in a block of result rows, and turns bytes into numbers: the inner loops of reading.

Safety: `split_rows` hands out a row only when all of its bytes are there. `walk_rows` checks every length against the
row's end before it uses it and demands that the last value ends where the row ends. The gathering kernels read only at
places `walk_rows` has proven; a NULL has length -1 and is never read.

Layouts of a value: `n > 0` is `n` bytes; `LENENC` a length-encoded string; `TEMPORAL` a length byte and that many
bytes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from consume_upstream.mysql.compiled import compiled, kernel_part

__all__ = [
    "LENENC", "TEMPORAL", "Split", "gather_bytes", "gather_fixed", "gather_micros", "split_rows", "walk_rows",
]  # fmt: skip

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Layouts = npt.NDArray[np.int8]

LENENC = 0
TEMPORAL = -1
_LONGEST_PACKET = 0xFFFFFF


class Split(IntEnum):
    """Why `split_rows` stopped."""

    NEED_MORE = 0
    FULL = 1
    OTHER_PACKET = 2
    LONG_PACKET = 3
    OUT_OF_SEQUENCE = 4


@compiled
def split_rows(
    buffer: Bytes, begin: int, end: int, sequence: int, starts: Positions, ends: Positions, count: int
) -> tuple[int, int, int, int]:
    """Note the whole rows of `buffer[begin:end]` from entry `count` on; gives (`Split`, count, begin, sequence)."""
    while True:
        if count == len(starts):
            return 1, count, begin, sequence
        if end - begin < 5:
            if end - begin == 4 and buffer[begin] == 0 and buffer[begin + 1] == 0 and buffer[begin + 2] == 0:
                return 2, count, begin, sequence
            return 0, count, begin, sequence
        if buffer[begin + 3] != sequence:
            return 4, count, begin, sequence
        length = int(buffer[begin]) | (int(buffer[begin + 1]) << 8) | (int(buffer[begin + 2]) << 16)
        if length == _LONGEST_PACKET:
            return 3, count, begin, sequence
        if length == 0 or buffer[begin + 4] != 0:
            return 2, count, begin, sequence
        if end - begin < 4 + length:
            return 0, count, begin, sequence
        starts[count] = begin + 4
        ends[count] = begin + 4 + length
        count += 1
        begin += 4 + length
        sequence = (sequence + 1) & 0xFF


@kernel_part
def _variable_size(buffer: Bytes, at: int, end: int, layout: int) -> tuple[int, int]:
    """The size of a value that says its size, and where the value begins; -1 if it cannot be one."""
    if at >= end:
        return -1, at
    first = int(buffer[at])
    at += 1
    if layout == TEMPORAL:
        return (first if first in (0, 4, 7, 11) else -1), at
    if first <= 250:
        return first, at
    width = 2 if first == 252 else 3 if first == 253 else 8 if first == 254 else 0
    if width == 0 or at + width > end:
        return -1, at
    size = 0
    for index in range(width):
        size |= int(buffer[at + index]) << (8 * index)
    return size, at + width


@compiled
def walk_rows(
    buffer: Bytes, starts: Positions, ends: Positions, layouts: Layouts, offsets: Positions, lengths: Lengths
) -> int:
    """Fill `offsets[column, row]` and `lengths[column, row]`; returns the first row that is not a row, or -1."""
    columns = len(layouts)
    bitmap = (columns + 9) // 8
    for row in range(len(starts)):
        begin, end = starts[row] + 1, ends[row]
        at = begin + bitmap
        if at > end or buffer[starts[row]] != 0:
            return row
        for column in range(columns):
            offsets[column, row] = 0
            lengths[column, row] = -1
            bit = column + 2
            if (buffer[begin + bit // 8] >> (bit % 8)) & 1:
                continue
            size = int(layouts[column])
            if size <= 0:
                size, at = _variable_size(buffer, at, end, size)
            if size < 0 or size > end - at:
                return row
            offsets[column, row] = at
            lengths[column, row] = size
            at += size
        if at != end:
            return row
    return -1


@compiled
def gather_fixed(buffer: Bytes, offsets: Positions, lengths: Lengths, out: npt.NDArray[np.uint64]) -> None:
    """The bytes of each value as a little-endian number; 0 for NULL."""
    for row in range(len(offsets)):
        value = np.uint64(0)
        for index in range(min(lengths[row], 8)):
            value |= np.uint64(buffer[offsets[row] + index]) << np.uint64(8 * index)
        out[row] = value


@compiled
def gather_bytes(buffer: Bytes, offsets: Positions, ends: Lengths, out: Bytes) -> None:
    """The values one after the other; value `i` goes to `out[ends[i]:ends[i + 1]]`."""
    for row in range(len(offsets)):
        start, source = ends[row], offsets[row]
        for index in range(ends[row + 1] - start):
            out[start + index] = buffer[source + index]


@compiled
def gather_micros(buffer: Bytes, offsets: Positions, lengths: Lengths, out: Positions, wrong: Bytes) -> None:
    """Microseconds since 1970 of DATE, DATETIME or TIMESTAMP; `wrong` marks what is not a day of the calendar."""
    for row in range(len(offsets)):
        size, at = lengths[row], offsets[row]
        out[row] = 0
        wrong[row] = 0
        if size < 0:
            continue
        if size < 4:
            wrong[row] = 1
            continue
        year = np.int64(buffer[at]) | (np.int64(buffer[at + 1]) << 8)
        month, day = np.int64(buffer[at + 2]), np.int64(buffer[at + 3])
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        longest = 31 - (month - 1) % 7 % 2 if month != 2 else (29 if leap else 28)
        if month < 1 or month > 12 or day < 1 or day > longest:
            wrong[row] = 1
            continue
        shifted = year - 1 if month <= 2 else year
        era = shifted // 400
        of_era = shifted - era * 400
        of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
        days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
        seconds, micros = days * 86400, np.int64(0)
        if size >= 7:
            seconds += np.int64(buffer[at + 4]) * 3600 + np.int64(buffer[at + 5]) * 60 + np.int64(buffer[at + 6])
        if size >= 11:
            for index in range(4):
                micros |= np.int64(buffer[at + 7 + index]) << (8 * index)
        out[row] = seconds * 1_000_000 + micros
