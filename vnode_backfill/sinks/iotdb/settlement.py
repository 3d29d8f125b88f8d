"""Makes one state of an epoch that several writers wrote without seeing each other, before it counts as committed.

It runs when the epoch's reads and its merge have ended, so that nobody writes, and inside the merge for the merge's
conflicts. What must be true afterwards: nothing is left of attempts that did not land. Every slot that two keys wanted
is held by the key that has it at the source. Two keys that both have it are reported, and stop the job unless the
configuration lets the last one win.

**Why the source is asked.** A slot may pass from one key to another: a row is deleted and inserted again under a new
key, as REPLACE does. This may happen while one of the keys is already copied and the departure of the other still waits
in the buffer. Neither the order of writing nor the order of merging shows which key came last. The source does: the key
that has the slot *now* is the right one as far as the log is known. Later changes of either key are in the log and are
merged, and a departure empties a slot only if the departing key holds it. So after asking, the slot holds a row of its
true key, or of a key whose departure is still to be merged. If neither has the slot any more, both departures are to
come, and it does not matter.

    slot @10   held by 1, wanted by 9       at the source: 9 only        9 is written, as it is now
                                            1 only                       1 stays; the departure of 9 is to come
                                            both                         duplicates
                                            none                         1 stays until its departure is merged
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from vnode_backfill.config.iotdb import Duplicates
from vnode_backfill.sinks import FileReceipt, ReadReceipt, Weighing
from vnode_backfill.sinks.iotdb.claims import DEVICE, TIME, ClaimStore, Clash, missing_in
from vnode_backfill.sinks.iotdb.mapping import Measurement, PointMapping, Points, Slot
from vnode_backfill.sinks.iotdb.rewrites import Rewrites, slots_of
from vnode_backfill.sinks.iotdb.server.session import StoredPoints
from vnode_backfill.sinks.iotdb.values import Bools, Ints, converted
from vnode_backfill.sinks.iotdb.window import key_codes, slot_codes
from vnode_backfill.sinks.iotdb.writing import PointWriter
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import SinkError, SinkUnavailableError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan, key_to_text

log = logging.getLogger(__name__)

SourceRows = Callable[[Sequence[Key]], pa.Table]
"""The rows that these keys have at the source now, columns of the source; keys that are gone are left out."""
SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Contest:
    """A slot that more than one key wrote or wanted; `departed` ones left it by the log."""

    slot: Slot
    keys: frozenset[Key]
    departed: frozenset[Key] = frozenset()


@dataclass(slots=True)
class DuplicateReport:
    """The slots on which two or more keys of the source fell, as far as they were met since the job was started."""

    count: int = 0
    samples: list[str] = field(default_factory=list)

    def add(self, found: Sequence[Contest]) -> None:
        self.count += len(found)
        room = SAMPLES - len(self.samples)
        self.samples.extend(shown(each) for each in found[:room])


@dataclass(frozen=True, slots=True)
class Settlement:
    """Settles slots for one driver."""

    writer: PointWriter
    claims: ClaimStore
    policy: Duplicates
    source_rows: SourceRows | None
    report: DuplicateReport
    rewrites: Rewrites

    @property
    def mapping(self) -> PointMapping:
        return self.writer.mapping

    def undo_lost(self, epoch: Epoch, landed: Sequence[FileReceipt]) -> int:
        """Empty the slots that lost attempts at reading wrote and the landed ones did not; how many there may be."""
        lost = self.claims.lost(epoch, landed)
        if not lost:
            return 0
        gone = claimed_points(self.mapping, self.claims.slots(lost))
        kept = claimed_points(self.mapping, self.claims.slots(_slot_files(landed)))
        codes_gone, codes_kept = slot_codes(gone, kept)
        left = gone.take(~np.isin(codes_gone, codes_kept))
        self._remove(left)
        if len(left):
            log.info("lost attempts undone epoch=%s slots=%s", epoch, len(left))
        return len(left)

    def settle_reads(self, epoch: Epoch, landed: Sequence[FileReceipt]) -> None:
        """Decide every slot on which reads and merge of the epoch met; none if slots show their keys."""
        if not self.mapping.owner:
            return
        clash = self._tried_again(self.claims.conflicts(landed))
        merged = self.claims.merged(epoch)
        reads = self.claims.slots(_slot_files(landed))
        left = self.claims.slots([path for path in merged if "-left-" in path])
        wrote = self.claims.slots([path for path in merged if "-left-" not in path])
        self._settle([*self._of_clash(clash), *self._met(reads, wrote, left)], clash)

    def _tried_again(self, clash: Clash) -> Clash:
        """What is still in conflict now that nobody else writes: the holder may have gone in the meantime."""
        points, _ = self.mapping.points(clash.rows)
        found = self.writer.put(points) if len(points) else None
        return joined(self.mapping, [found] if found is not None else [])

    def settle_merge(self, epoch: Epoch, clashes: Sequence[Clash]) -> None:
        """Decide the slots of rows that a merge did not write, and those that two of its parts wrote."""
        if not self.mapping.owner:
            return
        wrote = self.claims.slots([path for path in self.claims.merged(epoch) if "-left-" not in path])
        clash = joined(self.mapping, clashes)
        self._settle([*self._of_clash(clash), *self._met(wrote, wrote.slice(0, 0), wrote.slice(0, 0))], clash)

    def clear_replaced(
        self, receipts: Sequence[ReadReceipt], plan: SplitPlan, weights: Weighing | None, stored: Iterable[StoredPoints]
    ) -> int:
        """Empty what the target holds of these ranges beyond what their reads claimed; how many slots had something.

        `stored` is everything that the target holds, with all measurements.
        """
        ordinals = {receipt.ordinal for receipt in receipts}
        goes = np.array([planned.ordinal in ordinals for planned in plan.ranges] + [False], dtype=np.bool_)
        claims = self.claims.slots(_slot_files([file for receipt in receipts for file in receipt.files]))
        claimed = claimed_points(self.mapping, claims)
        touched = 0
        for block in stored:
            points = stored_points(self.mapping, block)
            keys = [points.rows.column(name).combine_chunks() for name in self.mapping.definition.key]
            inside = points.take(goes[plan.find_many(keys, weights(keys) if weights else None)])
            touched += self._clear(inside, claims, claimed)
        return touched

    def _clear(self, stored: Points, claims: pa.Table, claimed: Points) -> int:
        if not len(stored):
            return 0
        codes, claimed_codes = self._codes_of_rows(stored, claimed)
        row_of_code = np.full(int(max(codes.max(), claimed_codes.max(initial=0))) + 1, -1, dtype=np.int64)
        row_of_code[claimed_codes] = np.arange(len(claimed))
        rows = row_of_code[codes]
        self._remove(stored.take(rows < 0))
        kept = stored.take(rows >= 0)
        cells: list[Bools] = []
        for number, each in enumerate(self.mapping.measurements):
            missing = missing_in(claims, number).to_numpy(zero_copy_only=False)
            cells.append(kept.values.column(each.name).is_valid().to_numpy() & missing[rows[rows >= 0]])
        gone = self.writer.remove_cells(kept, cells).by_slot()
        self.rewrites.emptied(slots_of(kept.take(np.any(cells, axis=0))))
        if len(gone):
            self.rewrites.rewritten()
            self.writer.overwrite(gone)
        return int((rows < 0).sum()) + int(np.any(cells, axis=0).sum())

    def _remove(self, points: Points) -> None:
        self.writer.remove(points)
        self.rewrites.emptied(slots_of(points))

    def _codes_of_rows(self, first: Points, second: Points) -> tuple[Ints, Ints]:
        """Equal where slot and key are: a slot that now belongs to another key is not the one that was claimed."""
        slots = np.concatenate(slot_codes(first, second))
        if self.mapping.owner:
            names = list(self.mapping.definition.key)
            keys = key_codes(pa.concat_tables([first.rows.select(names), second.rows.select(names)]))
            pairs = slots * (int(keys.max(initial=0)) + 1) + keys
            slots = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        return slots[: len(first)], slots[len(first) :]

    def _of_clash(self, clash: Clash) -> Iterator[Contest]:
        points, _ = self.mapping.points(clash.rows)
        for number, (key, holder) in enumerate(zip(self.mapping.keys(points.rows), clash.holders, strict=True)):
            yield Contest(_slot(points, number), frozenset((key, holder)))

    def _met(self, reads: pa.Table, wrote: pa.Table, left: pa.Table) -> Iterator[Contest]:
        """Slots that a read claimed and some other key too."""
        parts = [claimed_points(self.mapping, table) for table in (reads, wrote, left)]
        codes = slot_codes(*parts)
        counts = np.bincount(np.concatenate(codes)) if sum(map(len, parts)) else np.empty(0, np.int64)
        shared = np.intersect1d(np.flatnonzero(counts > 1), codes[0])
        slots: dict[int, Slot] = {}
        found: dict[int, tuple[set[Key], set[Key]]] = {}
        for number, (points, part) in enumerate(zip(parts, codes, strict=True)):
            places = np.flatnonzero(np.isin(part, shared))
            for place, key in zip(places, self.mapping.keys(points.rows.take(pa.array(places))), strict=True):
                slots[int(part[place])] = _slot(points, int(place))
                wanted, departed = found.setdefault(int(part[place]), (set(), set()))
                (departed if number == 2 else wanted).add(key)
        for code, (wanted, departed) in found.items():
            if len(wanted | departed) > 1:
                yield Contest(slots[code], frozenset(wanted), frozenset(departed - wanted))

    def _settle(self, contests: Sequence[Contest], clash: Clash) -> None:
        if not contests:
            return
        contests = _by_slot(contests)
        now = self._now(contests)
        shared = []
        for contest in contests:
            present = [
                key
                for key in contest.keys | contest.departed
                if now is not None and now.slot_of.get(key) == contest.slot
            ]
            if len(present) > 1 or (now is None and len(contest.keys) > 1):
                shared.append(contest)
            elif now is not None and present:
                self._give(now.points.take(np.array([now.row_of[present[0]]])))
            elif now is None:
                self._check_held(contest)
        if shared:
            self._duplicates(shared, clash)

    def _now(self, contests: Sequence[Contest]) -> _Current | None:
        if self.source_rows is None:
            return None
        keys = sorted({key for each in contests for key in each.keys | each.departed}, key=repr)
        points, _ = self.mapping.points(self.source_rows(keys))
        found = self.mapping.keys(points.rows)
        return _Current(
            points,
            {key: _slot(points, number) for number, key in enumerate(found)},
            {key: number for number, key in enumerate(found)},
        )

    def _give(self, winner: Points) -> None:
        """Let the slot be held by this row alone, unless its key holds it already."""
        held = self.writer.holders(winner)
        if not held.own.any():
            self._take(winner)

    def _take(self, points: Points) -> None:
        if len(points):
            self.writer.store.empty(points)
            self.rewrites.rewritten()
        self.writer.overwrite(points)

    def _check_held(self, contest: Contest) -> None:
        """Nobody can be asked; if the read's row is not there, the epoch reads it again."""
        block = self.writer.store.points([contest.slot[0]], self.mapping.owner, np.array([contest.slot[1]]))
        stored = [key for each in block for key in self.mapping.keys(stored_points(self.mapping, each).rows)]
        if not set(stored) & contest.keys:
            raise SinkUnavailableError(
                f"the row of {contest.slot[0]} at {contest.slot[1]} was overtaken by a merge and must be read again",
                detail=shown(contest),
            )

    def _duplicates(self, shared: Sequence[Contest], clash: Clash) -> None:
        self.report.add(shared)
        samples = "; ".join(shown(each) for each in shared[:SAMPLES])
        if self.policy is Duplicates.ERROR:
            raise SinkError(
                f"{len(shared)} (device, time) of IoTDB belong to two or more keys of "
                f"{self.mapping.definition.database}.{self.mapping.definition.table}",
                detail=samples,
                hint="Choose device and time so that they are unique, or set `sink.iotdb.duplicates: last`.",
            )
        log.warning("keys share a device and time; the last one wins count=%s samples=%s", len(shared), samples)
        points, _ = self.mapping.points(clash.rows)
        slots = {each.slot for each in shared}
        wanted = np.array([_slot(points, number) in slots for number in range(len(points))], dtype=np.bool_)
        challengers = points.take(wanted).by_slot() if len(points) else points
        self._take(_last_of_slot(challengers))


@dataclass(frozen=True, slots=True)
class _Current:
    """What the contesting keys have at the source now."""

    points: Points
    slot_of: dict[Key, Slot]
    row_of: dict[Key, int]


def claimed_points(mapping: PointMapping, claims: pa.Table) -> Points:
    """Slots on record as points that have owner measurements only: enough to be looked up and deleted."""
    devices = claims.column(DEVICE).combine_chunks().dictionary_encode()
    # A table without columns has no rows either.
    rows = claims.select(list(mapping.definition.key) if mapping.owner else [TIME])
    values = (
        pa.table({each.name: _owner_values(mapping, each, rows) for each in mapping.owner}) if mapping.owner else rows
    )
    return Points(
        tuple(devices.dictionary.to_pylist()),
        devices.indices.to_numpy().astype(np.int64),
        claims.column(TIME).to_numpy(),
        values,
        rows,
    )


def stored_points(mapping: PointMapping, block: StoredPoints) -> Points:
    """Points that were read, with their keys as rows; without those that show no key, which are not this job's."""
    known: Bools = np.ones(len(block.times), dtype=np.bool_)
    for each in mapping.owner:
        known &= block.values.column(each.name).is_valid().to_numpy()
    told = np.array([mapping.naming.values_of(device) is not None for device in block.devices], dtype=np.bool_)
    places = np.flatnonzero(known & told[block.device])
    values = block.values.take(pa.array(places)).combine_chunks()
    rows = mapping.stored_keys(block.devices, block.device[places], block.times[places], values)
    return Points(block.devices, block.device[places], block.times[places], values, rows)


def joined(mapping: PointMapping, clashes: Sequence[Clash]) -> Clash:
    schema = pa.schema([field.with_nullable(True) for field in mapping.definition.arrow_schema])
    rows = pa.concat_tables([schema.empty_table(), *(each.rows.cast(schema) for each in clashes)])
    return Clash(rows, tuple(holder for each in clashes for holder in each.holders))


def shown(contest: Contest) -> str:
    keys = " and ".join(sorted(key_to_text(key) for key in contest.keys | contest.departed))
    return f"{contest.slot[0]} at {contest.slot[1]}: {keys}"


def _owner_values(mapping: PointMapping, owner: Measurement, rows: pa.Table) -> pa.Array:
    if owner.column is None:
        return pa.array([key_to_text(key) for key in mapping.keys(rows)], pa.string())
    return converted(rows.column(owner.column).combine_chunks(), owner.kind, mapping.precision).values


def _by_slot(contests: Sequence[Contest]) -> list[Contest]:
    keys: dict[Slot, set[Key]] = {}
    departed: dict[Slot, set[Key]] = {}
    for each in contests:
        keys.setdefault(each.slot, set()).update(each.keys)
        departed.setdefault(each.slot, set()).update(each.departed)
    return [Contest(slot, frozenset(keys[slot]), frozenset(departed[slot] - keys[slot])) for slot in keys]


def _last_of_slot(points: Points) -> Points:
    same = (points.device[1:] == points.device[:-1]) & (points.times[1:] == points.times[:-1])
    return points.take(np.append(~same, True)) if len(points) else points


def _slot_files(landed: Sequence[FileReceipt]) -> list[str]:
    return [file.path for file in landed if "/slots-" in file.path]


def _slot(points: Points, number: int) -> Slot:
    return points.devices[points.device[number]], int(points.times[number])
