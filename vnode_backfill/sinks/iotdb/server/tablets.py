"""Encodes points for the server: tablets of one device each, many of them in a call, or tablets of one table.

What must be true: every value arrives byte for byte, NULL as no point. The layout of a tablet is the client protocol's:
times and values big-endian, column after column; text and bytes as a length of four bytes and the content; then for
each column a flag, and where it is set a bitmap of the missing rows, lowest bit first, of rows // 8 + 1 bytes.

Each column is encoded once for all rows; a tablet is cut out of it by offsets. A column without a value in a tablet is
left out of it, so that no series is created without a point. A tablet of a table holds many devices. Rows of one device
are together, in the order of time, because the server was seen to lose rows otherwise. A row without any field is not
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vnode_backfill.config.iotdb import IotdbType
from vnode_backfill.sinks.iotdb.mapping import Measurement, Points
from vnode_backfill.sinks.iotdb.server.paths import quoted
from vnode_backfill.sinks.iotdb.server.session import Tablet
from vnode_backfill.sinks.iotdb.server.tags import TagNaming
from vnode_backfill.sinks.iotdb.values import Bools, Ints

CODES = {
    IotdbType.BOOLEAN: 0, IotdbType.INT32: 1, IotdbType.INT64: 2, IotdbType.FLOAT: 3, IotdbType.DOUBLE: 4,
    IotdbType.TEXT: 5, IotdbType.TIMESTAMP: 8, IotdbType.DATE: 9, IotdbType.BLOB: 10, IotdbType.STRING: 11,
}  # fmt: skip
"""The protocol's numbers of the types."""
_FIXED = {
    IotdbType.BOOLEAN: ">u1", IotdbType.INT32: ">i4", IotdbType.INT64: ">i8", IotdbType.FLOAT: ">f4",
    IotdbType.DOUBLE: ">f8", IotdbType.TIMESTAMP: ">i8", IotdbType.DATE: ">i4",
}  # fmt: skip
_TAG, _FIELD = 0, 1
_TABLETS_PER_CALL = 500
_CALL_BYTES = 16 * 1024 * 1024
_LENGTH_BYTES = 4


def calls(points: Points, measurements: Sequence[Measurement], tablet_rows: int) -> Iterator[list[Tablet]]:
    """Points in the order of their slots as tablets, grouped into calls of about `tablet_rows` rows."""
    columns = [_Encoded.of(quoted(m.name), m.kind, points.values.column(m.name)) for m in measurements]
    times = points.times.astype(">i8").tobytes()
    group: list[Tablet] = []
    rows = size = 0
    for start, stop in _stretches(points.device, tablet_rows):
        if group and (rows + stop - start > tablet_rows or len(group) >= _TABLETS_PER_CALL or size >= _CALL_BYTES):
            yield group
            group, rows, size = [], 0, 0
        tablet = _tablet(points.devices[points.device[start]], columns, times, start, stop)
        if tablet is not None:
            group.append(tablet)
            rows, size = rows + tablet.rows, size + len(tablet.values)
    if group:
        yield group


def table_calls(
    points: Points, naming: TagNaming, measurements: Sequence[Measurement], tablet_rows: int
) -> Iterator[Tablet]:
    """Points in the order of their slots as rows of a table, `tablet_rows` in a call."""
    filled = np.zeros(len(points), dtype=np.bool_)
    for each in measurements:
        filled |= points.values.column(each.name).is_valid().to_numpy()
    points = points if filled.all() else points.take(filled)
    values = [naming.values_of(device) or {} for device in points.devices]
    tags = []
    for tag in naming.tags:
        texts = pa.array([each[tag.column] for each in values], pa.string()).take(pa.array(points.device))
        tags.append(_Encoded.of(tag.name, IotdbType.STRING, pa.chunked_array([texts])))
    fields = [_Encoded.of(m.name, m.kind, points.values.column(m.name)) for m in measurements]
    times = points.times.astype(">i8").tobytes()
    for start in range(0, len(points), tablet_rows):
        stop = min(start + tablet_rows, len(points))
        there = [column for column in fields if not column.is_empty(start, stop)]
        categories = [_TAG] * len(tags) + [_FIELD] * len(there)
        yield _cut(naming.table, [*tags, *there], times, (start, stop), categories)


def _stretches(device: Ints, most: int) -> Iterator[tuple[int, int]]:
    """Where each device's rows begin and end, cut to `most` rows."""
    bounds = [0, *(np.flatnonzero(device[1:] != device[:-1]) + 1).tolist(), len(device)]
    for start, stop in pairwise(bounds):
        for cut in range(start, stop, most):
            yield cut, min(cut + most, stop)


def _tablet(device: str, columns: Sequence[_Encoded], times: bytes, start: int, stop: int) -> Tablet | None:
    filled = [column for column in columns if not column.is_empty(start, stop)]
    return _cut(device, filled, times, (start, stop), []) if filled else None


def _cut(
    target: str, columns: Sequence[_Encoded], times: bytes, rows: tuple[int, int], categories: list[int]
) -> Tablet:
    start, stop = rows
    values = [column.cut(start, stop) for column in columns]
    if any(column.missing is not None for column in columns):
        values.extend(column.bitmap(start, stop) for column in columns)
    return Tablet(
        target,
        [column.name for column in columns],
        [column.code for column in columns],
        b"".join(values),
        times[8 * start : 8 * stop],
        stop - start,
        categories,
    )


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A column as the server wants it; row n begins at `offsets[n]`, or at n times `width`."""

    name: str
    code: int
    data: bytes
    width: int
    offsets: Ints | None
    missing: Bools | None

    @classmethod
    def of(cls, name: str, kind: IotdbType, column: pa.ChunkedArray) -> _Encoded:
        values = column.combine_chunks()
        missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        code = CODES[kind]
        if kind in _FIXED:
            layout = np.dtype(_FIXED[kind])
            filled = values.fill_null(False if pa.types.is_boolean(values.type) else 0) if values.null_count else values
            data = filled.to_numpy(zero_copy_only=False).astype(layout).tobytes()
            return cls(name, code, data, layout.itemsize, None, missing)
        data, offsets = _packed(values)
        return cls(name, code, data, 0, offsets, missing)

    def is_empty(self, start: int, stop: int) -> bool:
        return self.missing is not None and bool(self.missing[start:stop].all())

    def cut(self, start: int, stop: int) -> bytes:
        if self.offsets is not None:
            return self.data[self.offsets[start] : self.offsets[stop]]
        return self.data[start * self.width : stop * self.width]

    def bitmap(self, start: int, stop: int) -> bytes:
        if self.missing is None or not self.missing[start:stop].any():
            return b"\0"
        bits = np.packbits(self.missing[start:stop], bitorder="little").tobytes()
        return b"\1" + bits.ljust((stop - start) // 8 + 1, b"\0")


def _packed(values: pa.Array) -> tuple[bytes, Ints]:
    """Text or bytes, each with its length before it, and where each begins and the last ends."""
    data, starts, lengths = _contents(values)
    places = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(lengths + _LENGTH_BYTES, out=places[1:])
    packed = np.empty(int(places[-1]), dtype=np.uint8)
    heads = lengths.astype(">i4").view(np.uint8).reshape(-1, _LENGTH_BYTES)
    packed[places[:-1, None] + np.arange(_LENGTH_BYTES)] = heads
    if len(data):
        # Each byte moves on by the lengths that were put before it.
        shifts = places[:-1] + _LENGTH_BYTES - starts
        packed[np.repeat(shifts, lengths) + np.arange(len(data))] = data
    return packed.tobytes(), places


def _contents(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """All contents one after the other, where each begins, and its length; 0 for NULL."""
    if values.null_count:
        values = values.fill_null("" if pa.types.is_string(values.type) else b"")
    if not len(values):
        nothing = np.empty(0, dtype=np.int64)
        return np.empty(0, dtype=np.uint8), nothing, nothing
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = (
        np.frombuffer(data_buffer, np.uint8)[first:last]
        if data_buffer is not None and last > first
        else np.empty(0, np.uint8)
    )
    return data, offsets[:-1] - first, np.diff(offsets)
