"""Turns a batch of the log into changes of keys, the rows of the buffer.

A change of the key is two changes: a delete of the old key (half 0) and an insert of the new one (half 1). RisingWave
does the same in its `UpstreamStreamKeyUpdateNormalizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consume_upstream.log.batch import LogBatch
from vnode_backfill.words import change
from vnode_backfill.words.change import BEFORE_PREFIX, ChangeOp
from vnode_backfill.words.columns import TableDefinition

__all__ = ["changes_of"]


def changes_of(batch: LogBatch, definition: TableDefinition) -> pa.Table:
    """A log batch as changes of keys: after-image, before-image, offset, half and operation of each."""
    if not len(batch):
        return _change_table(batch, definition, np.empty(0, np.int64), ChangeOp.INSERT)
    moved = _key_changed(batch, definition)
    gone = np.flatnonzero((batch.op == ChangeOp.DELETE) | moved)
    new = np.flatnonzero((batch.op == ChangeOp.INSERT) | moved)
    kept = np.flatnonzero((batch.op == ChangeOp.UPDATE) & ~moved)
    parts = ((gone, ChangeOp.DELETE), (new, ChangeOp.INSERT), (kept, ChangeOp.UPDATE))
    return pa.concat_tables([_change_table(batch, definition, rows, op) for rows, op in parts if len(rows)])


def _key_changed(batch: LogBatch, definition: TableDefinition) -> npt.NDArray[np.bool_]:
    """Updates whose key bytes changed, also where the collation calls them equal: a sink keeps bytes."""
    updates = batch.op == ChangeOp.UPDATE
    changed: npt.NDArray[np.bool_] = np.zeros(len(batch), np.bool_)
    if updates.any():
        for name in definition.key:
            before, after = batch.before.column(name), batch.after.column(name)
            changed |= pc.fill_null(pc.not_equal(before, after), False).to_numpy(zero_copy_only=False)
    moved: npt.NDArray[np.bool_] = changed & updates
    return moved


def _change_table(batch: LogBatch, definition: TableDefinition, rows: npt.NDArray[np.int64], op: ChangeOp) -> pa.Table:
    # Most batches hold changes of one kind. Their rows are not copied.
    all_rows = len(rows) == len(batch)
    take: Callable[[pa.Array], pa.Array] = _as_it_is if all_rows else partial(pc.take, indices=pa.array(rows))
    delete = op is ChangeOp.DELETE
    columns: dict[str, pa.Array] = dict(_offsets(batch, rows, op))
    for column in definition.columns:
        name = column.name
        if delete and name not in definition.key:
            columns[name] = pa.nulls(len(rows), column.arrow_type)
        else:
            columns[name] = take((batch.before if delete else batch.after).column(name))
    for column in definition.columns:
        known, name = op is not ChangeOp.INSERT, column.name
        columns[BEFORE_PREFIX + name] = (
            take(batch.before.column(name)) if known else pa.nulls(len(rows), column.arrow_type)
        )
    return pa.table(columns)


def _as_it_is(column: pa.Array) -> pa.Array:
    return column


def _offsets(batch: LogBatch, rows: npt.NDArray[np.int64], op: ChangeOp) -> Iterator[tuple[str, pa.Array]]:
    count = len(rows)
    yield change.FILE, pa.array(np.full(count, batch.file, np.int64))
    yield change.POS, pa.array(batch.pos[rows].astype(np.int64))
    yield change.ROW, pa.array(batch.row[rows].astype(np.int64), pa.int64()).cast(pa.int32())
    yield change.HALF, pa.array(np.full(count, 0 if op is ChangeOp.DELETE else 1, np.int8))
    yield change.OP, pa.array(np.full(count, op, np.int8))
    yield change.TIMESTAMP, pa.array(batch.timestamp[rows].astype(np.int64))
