"""Finds, among buffered changes, those that count, and keeps each key's last one.

What must be true: for every merging vnode, of all changes of a key in `(applied, upto]` that no read of its range has
seen, exactly the last one is kept, deletes included. Why it is:

- A change's range and vnode are computed again under the plan generation of the intent; the stored vnode only helps to
  skip files.
- Each change is marked again, against the reads that happened since it was buffered. Without that an older change could
  overwrite what a later read has seen (see `consume_upstream.mark`).
- `applied` and `upto` are boundaries: they are compared with changes by file and position. All changes of one event,
  which may be a whole transaction, are on the same side.
- The last change of a key is the one with the highest (file, position, row, half) of the log.

Key 7, whose range was read with a visibility of 50; key 9 outside the plan; applied 10, upto 90:

    offset  key  operation        becomes
    40      7    update to `a`    dropped: the read at 50 has seen it
    60      7    update to `b`    dropped: not the last
    70      7    delete           applied: key 7 goes
    80      9    insert `c`       applied
    95      9    delete           left for the next merge
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mark import MarkView, mark_chunk
from vnode_backfill.sinks import Weighing
from vnode_backfill.words.change import FILE, OFFSET_COLUMNS, POS, Mark
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan

Ints = npt.NDArray[np.int64]
_COMPACTED_ROWS = 500_000
"""So many changes are gathered before those that are not the last of their key are dropped."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class MergeWindow:
    """Which changes count: those of the vnodes in `applied`, above what they have applied, up to `upto`.

    Can be pickled.
    """

    plan: SplitPlan
    view: MarkView
    applied: Mapping[VnodeId, CdcOffset]
    upto: CdcOffset


def last_changes(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, window: MergeWindow, weights: Weighing | None = None
) -> pa.Table:
    """The last change of each key that counts: `schema` without the offset columns, in no particular order."""
    wide, key = _wide_schema(schema), key_names(window.plan)
    gathered: list[pa.Table] = [wide.empty_table()]
    rows = 0
    for counted in counted_changes(batches, wide, window, weights):
        gathered.append(counted)
        rows += counted.num_rows
        if rows > _COMPACTED_ROWS:
            gathered, rows = [latest_per_key(pa.concat_tables(gathered), key)], 0
    return latest_per_key(pa.concat_tables(gathered), key).drop_columns(list(OFFSET_COLUMNS))


def every_change(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, window: MergeWindow, weights: Weighing | None = None
) -> pa.Table:
    """All changes that count, with their offsets."""
    wide = _wide_schema(schema)
    return pa.concat_tables([wide.empty_table(), *counted_changes(batches, wide, window, weights)])


def counted_changes(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, window: MergeWindow, weights: Weighing | None = None
) -> Iterator[pa.Table]:
    """The changes that count, with their offsets, in the types of `schema`."""
    floor = _Floor.of(window.applied, window.plan.vnode_count)
    for batch in batches:
        keys = [batch.column(name) for name in key_names(window.plan)]
        positions, vnodes = window.plan.vnodes_of(keys, weights(keys) if weights else None)
        file, pos = (batch.column(name).to_numpy().astype(np.int64) for name in (FILE, POS))
        counts = floor.above(vnodes, file, pos) & ~_after(file, pos, *window.upto.order)
        counts &= mark_chunk(window.view, positions, vnodes, file, pos) != Mark.DROP
        if counts.any():
            rows = pa.Table.from_batches([batch]).select(schema.names)
            yield (rows if counts.all() else rows.filter(pa.array(counts))).cast(schema)


def latest_per_key(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Keep, per key, the change with the highest offset; in the order of keys where a key has several.

    Rows are copied once, or not at all: copying them takes longer than finding out which they are.
    """
    order = pc.sort_indices(changes, sort_keys=[(name, "ascending") for name in OFFSET_COLUMNS]).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    names = [f"k{number}" for number in range(len(key))]
    keys = changes.select(list(key)).rename_columns(names)
    last = keys.append_column("rank", pa.array(rank)).group_by(names, use_threads=False).aggregate([("rank", "max")])
    if len(last) == len(changes):
        return changes
    last = last.take(pc.sort_indices(last, sort_keys=[(name, "ascending") for name in names]))
    return changes.take(pa.array(order[last.column("rank_max").to_numpy()]))


def key_names(plan: SplitPlan) -> list[str]:
    return [part.name for part in plan.parts]


@dataclass(frozen=True, slots=True)
class _Floor:
    """What each vnode has applied, as arrays; vnodes that do not merge are above everything."""

    file: Ints
    pos: Ints

    @classmethod
    def of(cls, applied: Mapping[VnodeId, CdcOffset], vnode_count: int) -> _Floor:
        orders = np.full((vnode_count, 2), _NEVER, dtype=np.int64)
        for vnode, offset in applied.items():
            orders[vnode] = offset.order
        return cls(orders[:, 0], orders[:, 1])

    def above(self, vnodes: npt.NDArray[np.int32], file: Ints, pos: Ints) -> npt.NDArray[np.bool_]:
        return _after(file, pos, self.file[vnodes], self.pos[vnodes])


def _after(file: Ints, pos: Ints, than_file: Ints | int, than_pos: Ints | int) -> npt.NDArray[np.bool_]:
    """Which changes are above a boundary. A boundary has no row, so the row of a change does not count."""
    result: npt.NDArray[np.bool_] = (file > than_file) | ((file == than_file) & (pos > than_pos))
    return result


def _wide_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_wide(field) for field in schema])


def _wide(field: pa.Field) -> pa.Field:
    """Text and bytes with 64-bit offsets: what many large values have together may not fit 32."""
    if pa.types.is_string(field.type):
        return field.with_type(pa.large_string())
    return field.with_type(pa.large_binary()) if pa.types.is_binary(field.type) else field
