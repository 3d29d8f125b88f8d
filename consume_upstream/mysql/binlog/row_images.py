"""Finds where each column value is, in many row images at once.

The walk is the only code that reads lengths out of row images. It checks each against the end of its event before it
is used, so the column kernels can trust every offset and length they are given.

A row event's body: table id (6 bytes), flags (2), in version 2 a length with extra data, the number of columns, one
bitmap of present columns (an UPDATE has two), then images. An image is a bitmap of NULLs and the values of the others.
An UPDATE has pairs of images, before and after.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from consume_upstream.mysql.binlog.split import Bytes, Longs
from consume_upstream.mysql.compiled import compiled, kernel_part

Ints = npt.NDArray[np.int32]

INSERT, UPDATE, DELETE = 0, 1, 2
VERSION_2 = 10
"""Added to the operation for row events of version 2."""

AT_EVENT, AT_BYTE, ROW_IN_EVENT, LAST_POSITION, WALK_STATE_SIZE = 0, 1, 2, 3, 4
"""Slots of the walk's state: the next event, the next byte of it (0: not opened), its next row, its end position."""

TOO_SHORT = -1
OTHER_COLUMN_COUNT = -2
PARTIAL_IMAGE = -3


@kernel_part
def _u(data: Bytes, at: int, width: int) -> int:
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return value


@kernel_part
def _open_event(data: Bytes, at: int, end: int, version_2: bool, images: int, columns: int) -> int:
    """The offset of the first image, or a reason (negative) why the event cannot be read."""
    at += 8
    if version_2:
        if end - at < 2:
            return TOO_SHORT
        extra = _u(data, at, 2)
        if extra < 2 or end - at < extra:
            return TOO_SHORT
        at += extra
    if end - at < 3:
        return TOO_SHORT
    count = int(data[at])
    at += 1
    if count == 0xFC:
        count = _u(data, at, 2)
        at += 2
    if count != columns:
        return OTHER_COLUMN_COUNT
    bitmap = (columns + 7) >> 3
    if end - at < bitmap * images:
        return TOO_SHORT
    for image in range(images):
        for c in range(columns):
            if not (int(data[at + image * bitmap + (c >> 3)]) >> (c & 7)) & 1:
                return PARTIAL_IMAGE
    return at + bitmap * images


@kernel_part
def _walk_image(data: Bytes, at: int, end: int, layout: Longs, offsets: Ints, lengths: Ints, row: int) -> int:
    """Note offset and length of each column; a NULL has length -1. Returns the image's end, or TOO_SHORT."""
    nulls = at
    at += (len(layout) + 7) >> 3
    if at > end:
        return TOO_SHORT
    for c in range(len(layout)):
        if (int(data[nulls + (c >> 3)]) >> (c & 7)) & 1:
            offsets[c, row] = 0
            lengths[c, row] = -1
            continue
        length = layout[c]
        if length < 0:
            prefix = -length
            if end - at < prefix:
                return TOO_SHORT
            length = _u(data, at, prefix)
            at += prefix
        if end - at < length:
            return TOO_SHORT
        offsets[c, row] = at
        lengths[c, row] = length
        at += length
    return at


@compiled
def walk_rows(
    data: Bytes,
    begins: Longs,
    ends: Longs,
    kinds: Longs,
    positions: Longs,
    layout: Longs,
    state: Longs,
    limit_bytes: int,
    before_offsets: Ints,
    before_lengths: Ints,
    after_offsets: Ints,
    after_lengths: Ints,
    row_event: Ints,
    row_index: npt.NDArray[np.uint32],
) -> int:
    """Walk row images from `state` on until the outputs are full, `limit_bytes` are used, or the events end.

    `layout` holds per column its width, or minus the width of its length prefix. Returns the number of rows, or a
    reason (negative); the state then names the event. Calling it again continues where it stopped.
    """  # fmt: skip
    rows = 0
    used = 0
    while state[AT_EVENT] < len(begins) and rows < len(row_event) and used < limit_bytes:
        event = state[AT_EVENT]
        end = ends[event]
        operation = kinds[event] % VERSION_2
        at = state[AT_BYTE]
        if at == 0:
            images = 2 if operation == UPDATE else 1
            at = _open_event(data, begins[event], end, kinds[event] >= VERSION_2, images, len(layout))
            if at < 0:
                return at
            # The rows of one compressed transaction share its position; their numbers continue.
            if positions[event] != state[LAST_POSITION]:
                state[ROW_IN_EVENT] = 0
            state[LAST_POSITION] = positions[event]
        began = at
        while at < end and rows < len(row_event) and used + at - began < limit_bytes:
            if operation != INSERT:
                at = _walk_image(data, at, end, layout, before_offsets, before_lengths, rows)
            if operation != DELETE and at >= 0:
                at = _walk_image(data, at, end, layout, after_offsets, after_lengths, rows)
            if at < 0:
                return int(at)
            row_event[rows] = event
            row_index[rows] = state[ROW_IN_EVENT]
            state[ROW_IN_EVENT] += 1
            rows += 1
        used += at - began
        state[AT_BYTE] = at
        if at == end:
            state[AT_EVENT] = event + 1
            state[AT_BYTE] = 0
    return rows
