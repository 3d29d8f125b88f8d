"""Turns the changes of one merge into slots: which are left, which are kept with fewer points, which are written.

The last change per key is not enough. A read may have written any state that a key had since its visibility was
sampled. So every state that a key left in the window, its *before* images, may be in the target, and must be removed.

**Why that is all that must be removed.** A read of epoch n sees every change that `s[n]` covers. So each state it can
return was either left by a change that `s[n]` does not cover, and then it is the before image of a change in the
window; or it was never left up to the merge, and then it is the last after image. That holds for each attempt at the
read, a lost one too: all of them begin after `s[n]` was sampled. So after every before image was emptied and the last
after image was written, what is left of the key is exactly its row. A range that a lost attempt wrote and the landed
one left unread has no window, and is undone from its claims (`settlement`).

A slot that is left and taken again by the same key is not emptied, only overwritten. Of its measurements, those are
emptied that some before image had and the last after image has not:

    id  at  temp  note        change            slots
    7   10  20.5  hot         (read)            @10 temp 20.5, note hot
    7   10  21.0  NULL        update            @10 overwritten: temp 21.0; note emptied
    8   11  3.0   x           (read)            @11
    8   12  3.0   x           update of time    @11 emptied, @12 written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.sinks.iotdb.mapping import PointMapping, Points, Rejection
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.words.change import BEFORE_PREFIX, OFFSET_COLUMNS, OP, ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import LawBrokenError


@dataclass(frozen=True, slots=True)
class IotdbWindow:
    """Every before image of the window, and the last after image of each key that still exists; in source columns."""

    before: pa.Table
    after: pa.Table


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """A window as slots: `left` are emptied if their keys hold them, `cells` of `kept` too; then `kept` is written."""

    left: Points
    kept: Points
    cells: tuple[Bools, ...]
    """Per measurement, the points of `kept` that have none any more."""
    rejections: tuple[Rejection, ...]
    """Rows of `after` that cannot become points."""


def window_of(changes: pa.Table, definition: TableDefinition) -> IotdbWindow:
    """All marked changes of the merging vnodes as a window. Demands offset, operation, after and before columns."""
    names = [column.name for column in definition.columns]
    needed = [*OFFSET_COLUMNS, OP, *names, *(BEFORE_PREFIX + name for name in names)]
    missing = [name for name in needed if name not in changes.column_names]
    if missing:
        raise LawBrokenError(
            "a merge into IoTDB needs every change of its window with its before image",
            detail=f"The columns {', '.join(missing)} are not there.",
        )
    ops = changes.column(OP)
    left = changes.filter(pc.not_equal(ops, int(ChangeOp.INSERT)))
    before = left.select([BEFORE_PREFIX + name for name in names]).rename_columns(names)
    ordered = changes.sort_by([(name, "ascending") for name in OFFSET_COLUMNS])
    codes = key_codes(ordered.select(list(definition.key)))
    # The last of equals is the first of them backwards.
    last = ordered.num_rows - 1 - np.unique(codes[::-1], return_index=True)[1]
    latest = ordered.take(pa.array(np.sort(last)))
    after = latest.filter(pc.not_equal(latest.column(OP), int(ChangeOp.DELETE))).select(names)
    return IotdbWindow(before, after)


def slot_changes(mapping: PointMapping, window: IotdbWindow) -> SlotChanges:
    """What a window does to slots. A before image that cannot be points has never become any."""
    before, _ = mapping.points(window.before)
    after, rejections = mapping.points(window.after)
    row_after = _rows_of_same_slot(mapping, before, after)
    staying = row_after >= 0
    cells = []
    for each in mapping.measurements:
        had = before.values.column(each.name).is_valid().to_numpy()
        lacks = after.values.column(each.name).is_null().to_numpy()
        emptied = np.zeros(len(after), dtype=np.bool_)
        emptied[row_after[staying & had]] = True
        cells.append(emptied & lacks)
    return SlotChanges(before.take(~staying), after, tuple(cells), rejections)


def key_codes(keys: pa.Table) -> Ints:
    """A number for each row, equal where all columns are."""
    codes = np.zeros(keys.num_rows, dtype=np.int64)
    for column in keys.columns:
        values = column.combine_chunks().dictionary_encode()
        codes = codes * max(len(values.dictionary), 1) + values.indices.fill_null(0).to_numpy()
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def slot_codes(*points: Points) -> list[Ints]:
    """A number for each point, equal where device and time are, over all of `points`."""
    numbers = {path: number for number, path in enumerate(dict.fromkeys(p for each in points for p in each.devices))}
    device = [np.array([numbers[path] for path in each.devices], dtype=np.int64)[each.device] for each in points]
    devices, times = np.concatenate(device), np.concatenate([each.times for each in points])
    order = np.lexsort((times, devices))
    new = (devices[order][1:] != devices[order][:-1]) | (times[order][1:] != times[order][:-1])
    codes = np.zeros(len(order), dtype=np.int64)
    codes[order[1:]] = np.cumsum(new)
    return _split(codes, points)


def _rows_of_same_slot(mapping: PointMapping, before: Points, after: Points) -> Ints:
    """For each before image the number of its key's after image, if that is on the same slot; else -1."""
    if not len(after) or not len(before):
        return np.full(len(before), -1, dtype=np.int64)
    names = list(mapping.definition.key)
    keys = _split(key_codes(pa.concat_tables([p.rows.select(names) for p in (before, after)])), (before, after))
    slots = slot_codes(before, after)
    row_of_key = np.full(int(max(codes.max() for codes in keys)) + 1, -1, dtype=np.int64)
    row_of_key[keys[1]] = np.arange(len(after))
    rows = row_of_key[keys[0]]
    same = (rows >= 0) & (slots[1][rows] == slots[0])
    return np.where(same, rows, -1)


def _split(codes: Ints, points: Sequence[Points]) -> list[Ints]:
    return np.split(codes, np.cumsum([len(each) for each in points])[:-1])
