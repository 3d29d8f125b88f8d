"""Whether the server holds exactly the points of the source's rows.

What must be true: every row becomes the slot and points that the mapping says, each is looked up once, and every slot that the
server holds beyond those is found. Rows are compared as points, in the types of the server: what was rounded on purpose
(DECIMAL as double) is equal to itself rounded. A row whose measurements are all NULL has no points and is not missing. Rows that
cannot become points are counted as rejected, not as missing: they are among the dead letters, or the job has stopped.

    source               points                        result
    7  @10  20.5  hot    @10  id 7  temp 20.5          different, measurement note
    8  @11  3.0   x                                    missing
                         @12  id 9  temp 1.0           extra
    5  @13  1.0   y      @13  id 6  temp 1.0           different, measurement id: another key has the slot
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.sinks.iotdb_mapping import Points
from vnode_backfill.sinks.iotdb_paths import path_of
from vnode_backfill.sinks.iotdb_session import StoredPoints
from vnode_backfill.sinks.iotdb_settlement import scan
from vnode_backfill.sinks.iotdb_values import Bools, Ints
from vnode_backfill.sinks.iotdb_writing import PointWriter, WriterSettings, matching, questions, when

Cell = bool | int | float | str | bytes | None


class PointDifferenceKind(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class PointDifference:
    """One slot or measurement that differs; `source` and `target` are values in the server's types."""

    kind: PointDifferenceKind
    device: str
    time: int
    measurement: str = ""
    source: Cell = None
    target: Cell = None


@dataclass(slots=True)
class PointComparison:
    """What was found; `differences` holds the first of them, at most the limit."""

    limit: int
    rows: int = 0
    points: int = 0
    rejected: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: list[PointDifference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    def note(self, difference: PointDifference) -> None:
        if len(self.differences) < self.limit:
            self.differences.append(difference)


def compare_points(
    settings: WriterSettings, rows: Iterable[pa.RecordBatch | pa.Table], *, limit: int = 100
) -> PointComparison:
    """Compare all rows of the source, given in pieces, with all points of the template's devices; changes neither."""
    writer = PointWriter(settings)
    result = PointComparison(limit)
    known = _Slots()
    for piece in rows:
        table = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
        points, rejections = settings.mapping.points(table)
        result.rows += table.num_rows
        result.rejected += len(rejections)
        points = points.by_slot()
        known.add(points)
        if len(points):
            _compare_piece(writer, points, result)
    _find_extra(writer, known, result)
    return result


class _Slots:
    """Every slot of the source, exactly, in sixteen bytes each."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._devices: list[Ints] = [np.empty(0, np.int64)]
        self._times: list[Ints] = [np.empty(0, np.int64)]
        self._sorted: dict[int, Ints] | None = None

    def add(self, points: Points) -> None:
        numbers = np.array([self._numbers.setdefault(p, len(self._numbers)) for p in points.devices], dtype=np.int64)
        self._devices.append(numbers[points.device])
        self._times.append(points.times)

    def has(self, device: str, times: Ints) -> Bools:
        if self._sorted is None:
            devices, all_times = np.concatenate(self._devices), np.concatenate(self._times)
            order = np.lexsort((all_times, devices))
            bounds = np.searchsorted(devices[order], np.arange(len(self._numbers) + 1))
            ordered = all_times[order]
            self._sorted = {n: ordered[bounds[n] : bounds[n + 1]] for n in range(len(self._numbers))}
        number = self._numbers.get(device)
        mine = self._sorted[number] if number is not None else np.empty(0, np.int64)
        return np.isin(times, mine)


def _compare_piece(writer: PointWriter, points: Points, result: PointComparison) -> None:
    measurements = writer.mapping.measurements
    wanted = [(each.name, each.kind) for each in measurements]
    seen = np.zeros(len(points), dtype=np.bool_)
    for start, stop in questions(points):
        devices = [points.devices[n] for n in np.unique(points.device[start:stop])]
        for block in writer.session.points(devices, wanted, when(points.times[start:stop])):
            place, found = matching(points, block)
            seen[place] = True
            _compare_cells(points, place, block, found, result)
    filled = np.zeros(len(points), dtype=np.bool_)
    for name, _ in wanted:
        filled |= points.values.column(name).is_valid().to_numpy()
    for number in np.flatnonzero(filled & ~seen):
        result.missing += 1
        result.note(PointDifference(PointDifferenceKind.MISSING, *_slot(points, int(number))))


def _compare_cells(points: Points, place: Ints, block: StoredPoints, found: Ints, result: PointComparison) -> None:
    differs = np.zeros(len(place), dtype=np.bool_)
    for name in points.values.column_names:
        mine = points.values.column(name).take(pa.array(place)).combine_chunks()
        theirs = block.values.column(name).take(pa.array(found)).combine_chunks()
        wrong = _unequal(mine, theirs)
        for number in np.flatnonzero(wrong):
            slot = _slot(points, int(place[number]))
            cells = mine[int(number)].as_py(), theirs[int(number)].as_py()
            result.note(PointDifference(PointDifferenceKind.DIFFERENT, *slot, name, *cells))
        differs |= wrong
    result.different += int(differs.sum())


def _unequal(mine: pa.Array, theirs: pa.Array) -> Bools:
    both = pc.fill_null(pc.equal(mine, theirs), fill_value=False)
    neither = pc.and_(mine.is_null(), theirs.is_null())
    result: Bools = pc.invert(pc.or_(both, neither)).to_numpy(zero_copy_only=False)
    return result


def _find_extra(writer: PointWriter, known: _Slots, result: PointComparison) -> None:
    for block in scan(writer, writer.mapping.measurements):
        result.points += len(block.times)
        for number, nodes in enumerate(block.devices):
            device, times = path_of(nodes), block.times[block.device == number]
            for at in times[~known.has(device, times)]:
                result.extra += 1
                result.note(PointDifference(PointDifferenceKind.EXTRA, device, int(at)))


def _slot(points: Points, number: int) -> tuple[str, int]:
    return points.devices[points.device[number]], int(points.times[number])
