"""Converts one column of many row images at once: from offsets and lengths to the values of an Arrow column.

Every kernel takes the bytes, and per row an offset and a length (-1: NULL) that the walk has checked. A kernel that can
meet an impossible value returns the row it met it in, or -1. No kernel relies on wrap-around, so interpreted and
compiled runs agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from consume_upstream.mysql.binlog.row_images import Ints
from consume_upstream.mysql.binlog.split import Bytes, Longs
from consume_upstream.mysql.compiled import compiled, kernel_part

_MICROSECONDS_PER_DAY = 86_400_000_000


@compiled
def gather_integers(data: Bytes, offsets: Ints, lengths: Ints, width: int, signed: bool, out: Longs) -> None:
    """Little-endian integers of up to 8 bytes; the sign is the definition's, the log does not say it."""
    for row in range(len(offsets)):
        value = 0
        if lengths[row] >= 0:
            at = offsets[row]
            for i in range(width - 1):
                value |= int(data[at + i]) << (8 * i)
            top = int(data[at + width - 1])
            if signed and top >= 128:
                top -= 256
            value += top * (1 << (8 * (width - 1)))
        out[row] = value


@compiled
def gather_bytes(data: Bytes, offsets: Ints, lengths: Ints, width: int, stride: int, out: Bytes) -> None:
    """Values of fixed width, each at a multiple of `stride`; the rest of `out` stays as it is (zero)."""
    for row in range(len(offsets)):
        if lengths[row] >= 0:
            at = offsets[row]
            target = row * stride
            for i in range(width):
                out[target + i] = data[at + i]


@compiled
def gather_strings(data: Bytes, offsets: Ints, lengths: Ints, starts: Ints, out: Bytes) -> None:
    """Copy values of any length to `out`, row by row at `starts`."""
    for row in range(len(offsets)):
        length = lengths[row]
        if length > 0:
            at = offsets[row]
            target = starts[row]
            out[target : target + length] = data[at : at + length]


@compiled
def trim_spaces(data: Bytes, offsets: Ints, lengths: Ints) -> None:
    """Shorten `lengths` by trailing spaces, as the server does with CHAR."""
    for row in range(len(offsets)):
        end = offsets[row] + lengths[row]
        while lengths[row] > 0 and int(data[end - 1]) == 32:
            lengths[row] -= 1
            end -= 1


@compiled
def measure_mapped(data: Bytes, offsets: Ints, lengths: Ints, widths: Bytes, starts: Longs) -> None:
    """The ends of the UTF-8 forms of single-byte text; `widths` has the bytes per character."""
    total = 0
    starts[0] = 0
    for row in range(len(offsets)):
        for i in range(lengths[row]):
            total += int(widths[int(data[offsets[row] + i])])
        starts[row + 1] = total


@compiled
def gather_mapped(data: Bytes, offsets: Ints, lengths: Ints, widths: Bytes, table: Bytes, out: Bytes) -> None:
    """Single-byte text as UTF-8; `table` has four bytes per character."""
    target = 0
    for row in range(len(offsets)):
        for i in range(lengths[row]):
            character = int(data[offsets[row] + i])
            for k in range(int(widths[character])):
                out[target] = table[4 * character + k]
                target += 1


@kernel_part
def _group(data: Bytes, at: int, width: int, flip: int, first: bool) -> int:
    """A big-endian group of decimal digits; the number's first bit is inverted, a negative number wholly."""
    value = 0
    for i in range(width):
        byte = int(data[at + i]) ^ flip
        if first and i == 0:
            byte ^= 0x80
        value = (value << 8) | byte
    return value


@compiled
def gather_decimals_18(
    data: Bytes, offsets: Ints, lengths: Ints, group_bytes: Longs, group_powers: Longs, out: Longs
) -> int:
    """Decimals of up to 18 digits as 128-bit integers, low word first."""
    for row in range(len(offsets)):
        if lengths[row] < 0:
            continue
        at = offsets[row]
        flip = 0 if int(data[at]) & 0x80 else 0xFF
        value = 0
        for g in range(len(group_bytes)):
            group = _group(data, at, group_bytes[g], flip, g == 0)
            if group >= group_powers[g]:
                return row
            value = value * group_powers[g] + group
            at += group_bytes[g]
        if flip != 0:
            value = -value
        out[2 * row] = value
        out[2 * row + 1] = -1 if value < 0 else 0
    return -1


@kernel_part
def _negate(limbs: Longs) -> None:
    carry = 1
    for k in range(4):
        value = (limbs[k] ^ 0xFFFFFFFF) + carry
        limbs[k] = value & 0xFFFFFFFF
        carry = value >> 32


@compiled
def gather_decimals_38(
    data: Bytes,
    offsets: Ints,
    lengths: Ints,
    group_bytes: Longs,
    group_powers: Longs,
    limbs: Longs,
    out: npt.NDArray[np.uint32],
) -> int:
    """Decimals of up to 38 digits as 128-bit integers in four words, low word first; `limbs` is scratch space."""
    for row in range(len(offsets)):
        if lengths[row] < 0:
            continue
        at = offsets[row]
        flip = 0 if int(data[at]) & 0x80 else 0xFF
        for k in range(4):
            limbs[k] = 0
        for g in range(len(group_bytes)):
            carry = _group(data, at, group_bytes[g], flip, g == 0)
            if carry >= group_powers[g]:
                return row
            for k in range(4):
                value = limbs[k] * group_powers[g] + carry
                limbs[k] = value & 0xFFFFFFFF
                carry = value >> 32
            at += group_bytes[g]
        if flip != 0:
            _negate(limbs)
        for k in range(4):
            out[4 * row + k] = limbs[k]
    return -1


@kernel_part
def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 28
    return 30 if month in (4, 6, 9, 11) else 31


@kernel_part
def _is_day(year: int, month: int, day: int) -> bool:
    """Whether the calendar has this day; the server also stores `2024-00-15` and, if its mode allows it,
    `2024-02-31`."""
    return year <= 9999 and 1 <= month <= 12 and 1 <= day <= _days_in_month(year, month)


@kernel_part
def _days_since_epoch(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 in the calendar that has always had leap years; March begins the computation's year."""
    if month <= 2:
        year -= 1
        month += 12
    era_days = 365 * year + year // 4 - year // 100 + year // 400
    return era_days + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


@compiled
def gather_dates(data: Bytes, offsets: Ints, lengths: Ints, out: Ints, zero: npt.NDArray[np.bool_]) -> None:
    """Dates as days; `zero` marks those the calendar does not have."""
    for row in range(len(offsets)):
        if lengths[row] < 0:
            continue
        at = offsets[row]
        value = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
        year, month, day = value >> 9, (value >> 5) & 15, value & 31
        if _is_day(year, month, day):
            out[row] = _days_since_epoch(year, month, day)
        else:
            zero[row] = True


@kernel_part
def _fraction(data: Bytes, at: int, digits: int) -> int:
    """Microseconds from a fraction of 0 to 6 digits, which takes a byte per two digits."""
    width = (digits + 1) >> 1
    value = 0
    for i in range(width):
        value = (value << 8) | int(data[at + i])
    for _ in range(3 - width):
        value *= 100
    return value


@compiled
def gather_datetimes(
    data: Bytes, offsets: Ints, lengths: Ints, digits: int, out: Longs, zero: npt.NDArray[np.bool_]
) -> int:
    """Date and time as microseconds; `zero` marks days the calendar does not have."""
    for row in range(len(offsets)):
        if lengths[row] < 0:
            continue
        at = offsets[row]
        value = 0
        for i in range(5):
            value = (value << 8) | int(data[at + i])
        value -= 0x8000000000
        months, day = value >> 22, (value >> 17) & 31
        hour, minute, second = (value >> 12) & 31, (value >> 6) & 63, value & 63
        micros = _fraction(data, at + 5, digits)
        if value < 0 or hour > 23 or minute > 59 or second > 59 or micros > 999_999:
            return row
        year, month = months // 13, months % 13
        if _is_day(year, month, day):
            seconds = (hour * 60 + minute) * 60 + second
            out[row] = _days_since_epoch(year, month, day) * _MICROSECONDS_PER_DAY + seconds * 1_000_000 + micros
        else:
            zero[row] = True
    return -1


@compiled
def gather_timestamps(
    data: Bytes, offsets: Ints, lengths: Ints, digits: int, out: Longs, zero: npt.NDArray[np.bool_]
) -> int:
    """Seconds since 1970 as microseconds; the server stores the zero date as 0."""
    for row in range(len(offsets)):
        if lengths[row] < 0:
            continue
        at = offsets[row]
        seconds = 0
        for i in range(4):
            seconds = (seconds << 8) | int(data[at + i])
        micros = _fraction(data, at + 4, digits)
        if micros > 999_999:
            return row
        if seconds == 0 and micros == 0:
            zero[row] = True
        else:
            out[row] = seconds * 1_000_000 + micros
    return -1
