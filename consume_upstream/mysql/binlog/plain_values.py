"""Decodes rare values one at a time, in plain Python: TIME, SET, JSON, big decimals, addresses, UUIDs.

Each function takes the bytes of one value as a row image has them and returns the canonical value. Bytes that are not
such a value raise `LogFormatError`.
"""

from __future__ import annotations

import ipaddress
import uuid

from vnode_backfill.words.errors import LogFormatError


def time_text(raw: bytes, digits: int) -> str:
    """TIME as text with `digits` of fraction: `-838:59:59`, `12:00:00.500000`.

    Whole and fraction are one number with an offset, so that bytes sort as times do; negative times negate it as a
    whole.
    """
    width = len(raw) - 3
    value = int.from_bytes(raw, "big") - (0x800000 << (8 * width))
    sign, value = ("-", -value) if value < 0 else ("", value)
    whole, fraction = value >> (8 * width), value & ((1 << (8 * width)) - 1)
    hours, minutes, seconds = whole >> 12 & 1023, whole >> 6 & 63, whole & 63
    if minutes > 59 or seconds > 59 or fraction >= 100**width:
        raise LogFormatError("a TIME value of the log is damaged", detail=raw.hex())
    text = f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:0{2 * width}d}"[: len(text) + 1 + digits] if digits else text


def set_text(raw: bytes, labels: tuple[str, ...]) -> str:
    """The labels whose bits are set, in the order of the definition."""
    mask = int.from_bytes(raw, "little")
    if mask >> len(labels):
        raise LogFormatError("a SET value of the log has a bit without a label", detail=f"{mask:#x}")
    return ",".join(label for bit, label in enumerate(labels) if mask >> bit & 1)


def uuid_text(raw: bytes) -> str:
    return str(uuid.UUID(bytes=_padded(raw, 16)))


def inet4_text(raw: bytes) -> str:
    return str(ipaddress.IPv4Address(_padded(raw, 4)))


def inet6_text(raw: bytes) -> str:
    """As MariaDB prints it: mapped and compatible IPv4 addresses end in dotted form."""
    data = _padded(raw, 16)
    words = [int.from_bytes(data[i : i + 2], "big") for i in range(0, 16, 2)]
    gap, gap_length = _longest_zeros(words)
    if gap == 0 and (gap_length == 6 or (gap_length == 5 and words[5] == 0xFFFF)):
        return ("::" if gap_length == 6 else "::ffff:") + inet4_text(data[12:])
    if not gap_length:
        return ":".join(f"{word:x}" for word in words)
    head = ":".join(f"{word:x}" for word in words[:gap])
    tail = ":".join(f"{word:x}" for word in words[gap + gap_length :])
    return f"{head}::{tail}"


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    best, length = -1, 0
    at = 0
    while at < len(words):
        run = 0
        while at + run < len(words) and words[at + run] == 0:
            run += 1
        if run > length:
            best, length = at, run
        at += run or 1
    return best, length


def _padded(raw: bytes, width: int) -> bytes:
    """The log leaves trailing zero bytes of fixed-length values out."""
    if len(raw) > width:
        raise LogFormatError("a value of the log is longer than its type", detail=f"{len(raw)} bytes, not {width}.")
    return raw.ljust(width, b"\0")
