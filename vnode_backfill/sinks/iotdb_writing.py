"""How points get into the server: whose slots they may take, tablets in calls, ranges inside Spark tasks.

What must be true: no point is written into a slot that another key holds, and none is deleted that another key holds, as far as
this writer can see; what it cannot see (a writer at work at the same time) is settled when the epoch is committed, from what both
have claimed. A lease is looked at before each call, because nothing else keeps a driver that was replaced from writing.

What is there is looked up only where slots do not tell their keys. The question is asked for up to 200 devices at once, by their
times, or by the stretch of time where those are many. Keys whose order is not that of time make it dear: each range
then reads all that the earlier ones wrote in its stretch, which is the whole table for random keys.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.epoch import Epoch
from vnode_backfill.errors import SinkError
from vnode_backfill.sinks import FileReceipt, ReadReceipt
from vnode_backfill.sinks.iotdb_claims import ClaimStore, Clash, rejected_rows
from vnode_backfill.sinks.iotdb_mapping import PointMapping, Points, Rejection
from vnode_backfill.sinks.iotdb_paths import path_of, quoted
from vnode_backfill.sinks.iotdb_session import IotdbAddress, IotdbSession, StoredPoints
from vnode_backfill.sinks.iotdb_tablets import calls
from vnode_backfill.sinks.iotdb_values import Bools, Ints

LeaseCheck = Callable[[], None]
"""Raises FencedError if another driver has taken over. Can be pickled."""
Deletion = tuple[list[str], int]
"""Paths, and the time at which they are emptied."""
_DEVICES_PER_QUESTION = 200
_MANY_DELETIONS, _DELETING_SESSIONS = 16, 4
_TIMES_PER_QUESTION = 500
_SERIES_PER_QUESTION = 1000
_CHUNK_BYTES = 96 * 1024 * 1024


def no_lease() -> None:
    """For a job that nobody else can run."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What a task needs to write points. Can be pickled."""

    address: IotdbAddress
    mapping: PointMapping
    aligned: bool
    tablet_rows: int
    dead_letters: bool
    lease: LeaseCheck = no_lease


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds the slots of some points: `place` numbers the points whose slot is held, by whom `own` tells."""

    place: Ints
    own: Bools
    stored: pa.Table
    """The key columns of the holders, one row per place."""


class PointWriter:
    """Writes and deletes points over one session."""

    def __init__(self, settings: WriterSettings, session: IotdbSession | None = None) -> None:
        self.settings, self.mapping = settings, settings.mapping
        self.session = session or IotdbSession(settings.address)
        self._checked: set[str] = set()
        # A task has no last call; its session ends with the writer.
        weakref.finalize(self, self.session.close)

    def put(self, points: Points) -> Clash | None:
        """Write the points whose slots are free or their own, and return the rows of the others.

        Of several rows on one slot the last is written. Writing again what is there changes nothing.
        """
        points = points.by_slot()
        points, clash = self._one_per_slot(points)
        if self.mapping.owner and len(points):
            held = self.holders(points)
            foreign = held.place[~held.own]
            if len(foreign):
                holders = self.mapping.keys(held.stored.filter(pa.array(~held.own)))
                clash = _joined(clash, Clash(points.rows.take(pa.array(foreign)), tuple(holders)))
                free = np.ones(len(points), dtype=np.bool_)
                free[foreign] = False
                points = points.take(free)
        self.overwrite(points)
        return clash

    def overwrite(self, points: Points) -> None:
        """Write points in the order of their slots, whoever holds them."""
        if not len(points):
            return
        self.check_types([points.devices[n] for n in np.unique(points.device)])
        for call in calls(points, self.mapping.measurements, self.settings.tablet_rows):
            self.settings.lease()
            self.session.insert(call, aligned=self.settings.aligned)

    def remove(self, points: Points) -> None:
        """Empty the slots of these points that their own keys hold; those of one time in one call."""
        own = self._own_slots(points)
        own = own[np.argsort(points.times[own], kind="stable")]
        times = points.times[own]
        starts = np.concatenate([np.flatnonzero(np.diff(times, prepend=times[:1] - 1)), [len(own)]])
        deletions: list[Deletion] = []
        for start, stop in pairwise(starts.tolist()):
            for first in range(start, stop, _DEVICES_PER_QUESTION):
                devices = points.device[own[first : min(first + _DEVICES_PER_QUESTION, stop)]]
                deletions.append(([f"{points.devices[number]}.*" for number in devices], int(times[start])))
        self._delete(deletions)

    def remove_cells(self, points: Points, cells: Sequence[Bools]) -> None:
        """Empty some measurements of slots: `cells` has, per measurement, the numbers of the points concerned."""
        wanted = np.zeros(len(points), dtype=np.bool_)
        for cell in cells:
            wanted |= cell
        places = np.flatnonzero(wanted)
        if not len(places):
            return
        deletions: list[Deletion] = []
        for number in places[self._own_slots(points.take(places))]:
            device = points.devices[points.device[number]]
            names = [m.name for m, cell in zip(self.mapping.measurements, cells, strict=True) if cell[number]]
            deletions.append(([f"{device}.{quoted(name)}" for name in names], int(points.times[number])))
        self._delete(deletions)

    def _delete(self, deletions: Sequence[Deletion]) -> None:
        """In several sessions at once where there are many: the server takes each by itself, and waits for its disk each time."""
        if len(deletions) < _MANY_DELETIONS:
            self._delete_in(self.session, deletions)
            return
        sessions = [IotdbSession(self.settings.address) for _ in range(_DELETING_SESSIONS)]
        try:
            with ThreadPoolExecutor(len(sessions)) as pool:
                shares = [deletions[start :: len(sessions)] for start in range(len(sessions))]
                list(pool.map(self._delete_in, sessions, shares))
        finally:
            for session in sessions:
                session.close()

    def _delete_in(self, session: IotdbSession, deletions: Sequence[Deletion]) -> None:
        for paths, at in deletions:
            self.settings.lease()
            session.delete(paths, at)

    def holders(self, points: Points) -> Holders:
        """Who holds the slots of the points, which are in the order of their slots."""
        owner = [(each.name, each.kind) for each in self.mapping.owner]
        places, owns, keys = [np.empty(0, np.int64)], [np.empty(0, np.bool_)], []
        for start, stop in questions(points):
            devices = [points.devices[n] for n in np.unique(points.device[start:stop])]
            for block in self.session.points(devices, owner, when(points.times[start:stop])):
                place, found = matching(points, block)
                own = np.ones(len(place), dtype=np.bool_)
                for name, _ in owner:
                    mine, stored = (
                        points.values.column(name).take(pa.array(place)),
                        block.values.column(name).take(pa.array(found)),
                    )
                    own &= pc.equal(mine, stored).to_numpy()
                places.append(place)
                owns.append(own)
                stored_owner = block.values.take(pa.array(found))
                keys.append(
                    self.mapping.stored_keys(block.devices, block.device[found], block.times[found], stored_owner)
                )
        source = self.mapping.definition.arrow_schema
        schema = pa.schema([source.field(name).with_nullable(True) for name in self.mapping.definition.key])
        stored_keys = pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in keys)])
        return Holders(np.concatenate(places), np.concatenate(owns), stored_keys)

    def check_types(self, devices: Sequence[str]) -> None:
        """Refuse series that exist in another type: the server would write the rest of the row and not those."""
        new = [device for device in devices if device not in self._checked]
        wanted = {each.name: each.kind for each in self.mapping.measurements}
        step = max(1, _SERIES_PER_QUESTION // len(wanted))
        for start in range(0, len(new), step):
            for series in self.session.types(new[start : start + step], list(wanted)):
                if series.kind != wanted[series.measurement]:
                    raise type_conflict(
                        [(path_of((*series.device, series.measurement)), wanted[series.measurement], series.kind)]
                    )
        self._checked.update(new)

    def _own_slots(self, points: Points) -> Ints:
        """The numbers of points whose slots are their keys' own, each slot once."""
        if self.mapping.owner and len(points):
            ordered = np.lexsort((points.times, points.device))
            held = self.holders(points.take(ordered))
            return np.unique(ordered[held.place[held.own]])
        slots = np.stack([points.device, points.times], axis=1)
        return np.sort(np.unique(slots, axis=0, return_index=True)[1]) if len(points) else np.empty(0, np.int64)

    def _one_per_slot(self, points: Points) -> tuple[Points, Clash | None]:
        same = (points.device[1:] == points.device[:-1]) & (points.times[1:] == points.times[:-1])
        if not same.any() or not self.mapping.owner:
            return points, None
        last = np.append(~same, True)
        # The winner of each row's slot is the next row that is a last one.
        winners = np.flatnonzero(last)[np.searchsorted(np.flatnonzero(last), np.flatnonzero(~last))]
        holders = tuple(self.mapping.keys(points.rows.take(pa.array(winners))))
        return points.take(last), Clash(points.rows.filter(pa.array(~last)), holders)


def type_conflict(found: Sequence[tuple[str, str, str]]) -> SinkError:
    """Series, wanted and registered types."""
    shown = "; ".join(
        f"{path} is {there.upper()}, the column needs {wanted.upper()}" for path, wanted, there in found[:20]
    )
    return SinkError(
        f"{len(found)} time series exist with another type than the columns need",
        detail=shown,
        hint="Set `sink.iotdb.types` or `rename` for the column, or remove the series.",
    )


class IotdbRangeWriter:
    """Writes ranges inside Spark tasks; can be pickled."""

    def __init__(self, settings: WriterSettings, claims: ClaimStore) -> None:
        self._settings, self._claims = settings, claims
        self._writer: PointWriter | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return IotdbRangeWriter, (self._settings, self._claims)

    def write(self, epoch: Epoch, ordinal: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> ReadReceipt:
        """Write the rows of one range. There is no gate: points are visible at once.

        If `batches` raises before the first of them is complete, nothing is written.
        """
        mapping, who = self._settings.mapping, f"r{ordinal}-a{attempt}"
        self._writer = self._writer or PointWriter(self._settings)
        rows = 0
        files: list[FileReceipt] = []
        for chunk in _chunks(batches):
            points, rejections = mapping.points(chunk)
            if rejections:
                refuse_unless(self._settings, chunk, rejections)
                files += self._claims.reject(epoch, who, rejected_rows(epoch, mapping, chunk, rejections))
            if len(points):
                files += self._claims.claim(epoch, who, points)
                clash = self._writer.put(points)
                if clash is not None:
                    # Its rows are claimed already and must not be counted twice.
                    files += (replace(file, rows=0) for file in self._claims.contest(epoch, who, clash))
            rows += chunk.num_rows
        return ReadReceipt(ordinal, rows, tuple(files))


def refuse_unless(settings: WriterSettings, rows: pa.Table, rejections: Sequence[Rejection]) -> None:
    """Stop at rows that cannot be written, unless dead letters take them."""
    if settings.dead_letters:
        return
    definition, first = settings.mapping.definition, rejections[0]
    row = rows.slice(first.row, 1)
    key = ", ".join(f"{name}={row.column(name)[0].as_py()!r}" for name in definition.key)
    raise SinkError(
        f"{definition.database}.{definition.table}: column {first.column} of the row {key} cannot be written to IoTDB",
        detail=f"Its value {first.value} {first.reason}. {len(rejections)} rows of this batch cannot be written.",
        hint="Correct the rows at the source, or let `sink.iotdb.dead_letter` take them.",
    )


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in pieces that fit in memory several times; a range is usually one."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def questions(points: Points) -> Iterator[tuple[int, int]]:
    """Stretches of points, in the order of their slots, of as many devices as one question asks about."""
    starts = np.concatenate([[0], np.flatnonzero(points.device[1:] != points.device[:-1]) + 1, [len(points)]])
    for first in range(0, len(starts) - 1, _DEVICES_PER_QUESTION):
        yield int(starts[first]), int(starts[min(first + _DEVICES_PER_QUESTION, len(starts) - 1)])


def when(times: Ints) -> str:
    distinct = np.unique(times)
    if len(distinct) <= _TIMES_PER_QUESTION:
        return f"WHERE time IN ({', '.join(map(str, distinct.tolist()))})"
    return f"WHERE time >= {distinct[0]} AND time <= {distinct[-1]}"


def matching(points: Points, block: StoredPoints) -> tuple[Ints, Ints]:
    """Pairs of a point and a row of the block that have one slot; points are in the order of their slots."""
    numbers = {path: number for number, path in enumerate(points.devices)}
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, path in enumerate(block.paths):
        rows = np.flatnonzero(block.device == number)
        low, high = np.searchsorted(points.device, [numbers[path], numbers[path] + 1])
        times = points.times[low:high]
        first, behind = (low + np.searchsorted(times, block.times[rows], side) for side in ("left", "right"))
        many = behind - first
        within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        places.append(np.repeat(first, many) + within)
        found.append(np.repeat(rows, many))
    return np.concatenate(places), np.concatenate(found)


def _joined(first: Clash | None, second: Clash) -> Clash:
    if first is None:
        return second
    return Clash(pa.concat_tables([first.rows, second.rows]), (*first.holders, *second.holders))
