"""Checks that the server holds exactly the points of the source's rows.

What must be true: every row becomes the slot and points that the mapping says, each is looked up once, and every slot
that the server holds beyond those is found. Rows are compared as points, in the types of the server: what was rounded
on purpose (DECIMAL as double) is equal to itself rounded. A row whose measurements are all NULL has no points and is
not missing. Rows that cannot become points are counted as rejected, not as missing: they are among the dead letters, or
the job has stopped.

    source               points                        result
    7  @10  20.5  hot    @10  id 7  temp 20.5          different, measurement note
    8  @11  3.0   x                                    missing
                         @12  id 9  temp 1.0           extra
    5  @13  1.0   y      @13  id 6  temp 1.0           different, measurement id: another key has the slot

**Where the last key wins.** A row is not a difference if its slot is held by another key that the source has on the
same slot; that key's row is compared in full. Which of the keys won is not judged: the server keeps no order, and the
job reported them when it met them. A row that is alone on its slot, or whose slot is held by a key that the source has
elsewhere or not at all, is a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.config.iotdb import Duplicates
from vnode_backfill.sinks.iotdb.mapping import PointMapping, Points
from vnode_backfill.sinks.iotdb.server.session import StoredPoints
from vnode_backfill.sinks.iotdb.server.store import WriterSettings
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.sinks.iotdb.writing import PointWriter, matching, questions

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
    shared: int = 0
    """Rows whose slot another key of the source holds, where the last one wins."""
    differences: list[PointDifference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    def note(self, difference: PointDifference) -> None:
        if len(self.differences) < self.limit:
            self.differences.append(difference)


def compare_points(
    settings: WriterSettings,
    rows: Iterable[pa.RecordBatch | pa.Table],
    *,
    limit: int = 100,
    duplicates: Duplicates = Duplicates.ERROR,
) -> PointComparison:
    """Compare all rows of the source, given in pieces, with all points of the mapping's devices; changes neither."""
    writer = PointWriter(settings)
    result = PointComparison(limit)
    known, holding = _Slots(), _Slots()
    displaced: list[_Displaced] = []
    for piece in rows:
        table = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
        points, rejections = settings.mapping.points(table)
        result.rows += table.num_rows
        result.rejected += len(rejections)
        points = points.by_slot()
        known.add(points)
        if len(points):
            displaced += _compare_piece(writer, points, result, holding)
    for each in displaced:
        each.judge(holding if duplicates is Duplicates.LAST else _Slots(), result)
    _find_extra(writer, known, result)
    return result


class _Slots:
    """Slots of the source, exactly, in sixteen bytes each."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._devices: list[Ints] = [np.empty(0, np.int64)]
        self._times: list[Ints] = [np.empty(0, np.int64)]
        self._sorted: dict[int, Ints] | None = None

    def add(self, points: Points, places: Ints | None = None) -> None:
        numbers = np.array([self._numbers.setdefault(p, len(self._numbers)) for p in points.devices], dtype=np.int64)
        device, times = (
            (points.device, points.times) if places is None else (points.device[places], points.times[places])
        )
        self._devices.append(numbers[device])
        self._times.append(times)

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


@dataclass(frozen=True, slots=True)
class _Displaced:
    """Rows of one device whose slots other keys hold; whether that is right is known when every row has been seen.

    `wanted` and `stored` are the measurements that show a key.
    """

    device: str
    times: Ints
    wanted: pa.Table
    stored: pa.Table

    def judge(self, holding: _Slots, result: PointComparison) -> None:
        """Those on slots that `holding` has share them with the key that holds them; the others are different."""
        shares = holding.has(self.device, self.times)
        result.shared += int(shares.sum())
        result.different += int((~shares).sum())
        for name, place in product(self.wanted.column_names, np.flatnonzero(~shares).tolist()):
            cells = self.wanted.column(name)[place].as_py(), self.stored.column(name)[place].as_py()
            if cells[0] != cells[1]:
                at = int(self.times[place])
                result.note(PointDifference(PointDifferenceKind.DIFFERENT, self.device, at, name, *cells))


def _compare_piece(writer: PointWriter, points: Points, result: PointComparison, holding: _Slots) -> list[_Displaced]:
    measurements = writer.mapping.measurements
    seen = np.zeros(len(points), dtype=np.bool_)
    displaced: list[_Displaced] = []
    for start, stop in questions(points):
        devices = [points.devices[n] for n in np.unique(points.device[start:stop])]
        for block in writer.store.points(devices, measurements, points.times[start:stop]):
            place, found = matching(points, block)
            seen[place] = True
            other = np.zeros(len(place), dtype=np.bool_)
            for each in writer.mapping.owner:
                other |= _unequal(*_pair(points, place, block, found, each.name))
            displaced += _of_other_keys(writer.mapping, points, place[other], block, found[other])
            holding.add(points, place[~other])
            _compare_cells(points, place[~other], block, found[~other], result)
    filled = np.zeros(len(points), dtype=np.bool_)
    for each in measurements:
        filled |= points.values.column(each.name).is_valid().to_numpy()
    for number in np.flatnonzero(filled & ~seen):
        result.missing += 1
        result.note(PointDifference(PointDifferenceKind.MISSING, *_slot(points, int(number))))
    return displaced


def _of_other_keys(
    mapping: PointMapping, points: Points, place: Ints, block: StoredPoints, found: Ints
) -> Iterator[_Displaced]:
    names = [each.name for each in mapping.owner]
    for number in np.unique(points.device[place]):
        mine = points.device[place] == number
        yield _Displaced(
            points.devices[number],
            points.times[place[mine]],
            points.values.select(names).take(pa.array(place[mine])),
            block.values.select(names).take(pa.array(found[mine])),
        )


def _compare_cells(points: Points, place: Ints, block: StoredPoints, found: Ints, result: PointComparison) -> None:
    differs = np.zeros(len(place), dtype=np.bool_)
    for name in points.values.column_names:
        mine, theirs = _pair(points, place, block, found, name)
        wrong = _unequal(mine, theirs)
        for number in np.flatnonzero(wrong):
            slot = _slot(points, int(place[number]))
            cells = mine[int(number)].as_py(), theirs[int(number)].as_py()
            result.note(PointDifference(PointDifferenceKind.DIFFERENT, *slot, name, *cells))
        differs |= wrong
    result.different += int(differs.sum())


def _pair(points: Points, place: Ints, block: StoredPoints, found: Ints, name: str) -> tuple[pa.Array, pa.Array]:
    """A measurement as it should be and as it is stored."""
    mine, theirs = points.values.column(name), block.values.column(name)
    return mine.take(pa.array(place)).combine_chunks(), theirs.take(pa.array(found)).combine_chunks()


def _unequal(mine: pa.Array, theirs: pa.Array) -> Bools:
    both = pc.fill_null(pc.equal(mine, theirs), fill_value=False)
    neither = pc.and_(mine.is_null(), theirs.is_null())
    result: Bools = pc.invert(pc.or_(both, neither)).to_numpy(zero_copy_only=False)
    return result


def _find_extra(writer: PointWriter, known: _Slots, result: PointComparison) -> None:
    for block in writer.store.scan(writer.mapping.measurements):
        result.points += len(block.times)
        for number, device in enumerate(block.devices):
            times = block.times[block.device == number]
            for at in times[~known.has(device, times)]:
                result.extra += 1
                result.note(PointDifference(PointDifferenceKind.EXTRA, device, int(at)))


def _slot(points: Points, number: int) -> tuple[str, int]:
    return points.devices[points.device[number]], int(points.times[number])
