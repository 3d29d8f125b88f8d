"""Writes points to the server, into slots that they may take, and writes ranges inside Spark tasks.

What must be true: no point is written into a slot that another key holds, and no point of another key is deleted, as
far as this writer can see. What it cannot see (a writer at work at the same time) is settled when the epoch is
committed, from what both have claimed. A lease is looked at before each call, because nothing else keeps a driver that
was replaced from writing.

Slots are looked up only where they do not show their keys. One question asks for up to 200 devices, by their times, or
by a stretch of time if there are many. Keys whose order is not that of time make it expensive: each range then reads
all that the earlier ones wrote in its stretch, which is the whole table for random keys.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.sinks import FileReceipt, ReadReceipt
from vnode_backfill.sinks.iotdb.claims import ClaimStore, Clash, rejected_rows
from vnode_backfill.sinks.iotdb.mapping import Points, Rejection
from vnode_backfill.sinks.iotdb.server.paths import DeviceTemplate
from vnode_backfill.sinks.iotdb.server.session import StoredPoints
from vnode_backfill.sinks.iotdb.server.store import PointStore, WriterSettings
from vnode_backfill.sinks.iotdb.server.table import TableStore
from vnode_backfill.sinks.iotdb.server.tags import TagNaming
from vnode_backfill.sinks.iotdb.server.tree import TreeStore
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import SinkError

_DEVICES_PER_QUESTION = 200
_CHUNK_BYTES = 96 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds the slots of some points: `place` numbers the points whose slot is held, `own` says by which key."""

    place: Ints
    own: Bools
    stored: pa.Table
    """The key columns of the holders, one row per place."""


def open_store(settings: WriterSettings) -> PointStore:
    """The slots of a mapping, in the model that it is made for."""
    naming = settings.mapping.naming
    if isinstance(naming, TagNaming):
        return TableStore(settings, naming)
    if isinstance(naming, DeviceTemplate):
        return TreeStore(settings, naming)
    raise TypeError(f"devices named by {type(naming).__name__} are of no model")


class PointWriter:
    """Writes and deletes points over one session."""

    def __init__(self, settings: WriterSettings) -> None:
        self.settings, self.mapping = settings, settings.mapping
        self.store = open_store(settings)
        # A task has no last call; its session ends with the writer.
        weakref.finalize(self, self.store.close)

    def put(self, points: Points) -> Clash | None:
        """Write the points whose slots are free or their own, and return the rows of the others.

        Of several rows on one slot the last is written. Writing again what is there changes nothing.
        """
        points = points.by_slot()
        self._check_types(points)
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
        """Write points in the order of their slots, whichever key holds them."""
        if not len(points):
            return
        self._check_types(points)
        self.store.insert(points)

    def remove(self, points: Points) -> None:
        """Empty the slots of these points that their own keys hold."""
        own = self._own_slots(points)
        if len(own):
            self.store.empty(points.take(own))

    def remove_cells(self, points: Points, cells: Sequence[Bools]) -> Points:
        """Empty some measurements of slots that their own keys hold; `cells` has, per measurement, which points.

        Returns the points that went with them, of whole rows; they must be written again.
        """
        wanted = np.zeros(len(points), dtype=np.bool_)
        for cell in cells:
            wanted |= cell
        places = np.flatnonzero(wanted)
        if len(places):
            places = places[self._own_slots(points.take(places))]
        if not len(places):
            return points.take(places)
        return self.store.empty_cells(points.take(places), [cell[places] for cell in cells])

    def holders(self, points: Points) -> Holders:
        """Who holds the slots of the points, which are in the order of their slots."""
        owner = self.mapping.owner
        places, owns, keys = [np.empty(0, np.int64)], [np.empty(0, np.bool_)], []
        for start, stop in questions(points):
            devices = [points.devices[n] for n in np.unique(points.device[start:stop])]
            for block in self.store.points(devices, owner, points.times[start:stop]):
                place, found = matching(points, block)
                own = np.ones(len(place), dtype=np.bool_)
                for each in owner:
                    mine, stored = (
                        points.values.column(each.name).take(pa.array(place)),
                        block.values.column(each.name).take(pa.array(found)),
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

    def _check_types(self, points: Points) -> None:
        """Costs a question for devices that this writer has not seen yet."""
        self.store.check_types([points.devices[n] for n in np.unique(points.device)])

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


def matching(points: Points, block: StoredPoints) -> tuple[Ints, Ints]:
    """Pairs of a point and a row of the block that have one slot; points are in the order of their slots."""
    numbers = {path: number for number, path in enumerate(points.devices)}
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, path in enumerate(block.devices):
        rows = np.flatnonzero(block.device == number)
        low, high = np.searchsorted(points.device, [numbers[path], numbers[path] + 1])
        times = points.times[low:high]
        first, after = (low + np.searchsorted(times, block.times[rows], side) for side in ("left", "right"))
        many = after - first
        within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        places.append(np.repeat(first, many) + within)
        found.append(np.repeat(rows, many))
    return np.concatenate(places), np.concatenate(found)


def _joined(first: Clash | None, second: Clash) -> Clash:
    if first is None:
        return second
    return Clash(pa.concat_tables([first.rows, second.rows]), (*first.holders, *second.holders))
