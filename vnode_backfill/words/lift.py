"""Turns changes of an earlier version of the definition into rows of the version that the sink holds.

What must be true: a lifted row is what the statements in between made of the row at the source. An added column has
what the statement gave to rows that were there, a renamed one keeps its value, a dropped one is gone. Both images of a
change are lifted, because a sink may look at the row before. A change that left a row which the statement took away
becomes a delete of its key: the row was there before the statement and is gone after it.

    captured in epoch 11     id 7, b 5
    version 1, epoch 12      ADD c INT DEFAULT 3
    version 2, epoch 15      RENAME b TO d
    lifted                   id 7, c 3, d 5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from vnode_backfill.words.change import BEFORE_PREFIX, OP, ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.schema_change import (
    AddColumn,
    ColumnStep,
    DeleteRows,
    DropColumn,
    RenameColumn,
    RetypeColumn,
)

__all__ = ["NO_LIFTS", "Lifts", "columns_before", "lifted"]


@dataclass(frozen=True, slots=True)
class Lifts:
    """The steps of each version, oldest first, with the epoch since which changes have it. Can be pickled."""

    versions: tuple[tuple[Epoch, tuple[ColumnStep, ...]], ...] = ()

    def of_epoch(self, epoch: Epoch) -> tuple[ColumnStep, ...]:
        """What changes captured in this epoch lack."""
        return tuple(step for since, steps in self.versions if since > epoch for step in steps)


NO_LIFTS = Lifts()


def columns_before(names: Sequence[str], steps: Sequence[ColumnStep]) -> list[str]:
    """The columns that rows must have before the steps to have `names` after them."""
    found = list(names)
    for step in reversed(steps):
        match step:
            case AddColumn(column=column):
                found = [name for name in found if _plain(name) != column.name]
            case RenameColumn(old=old, new=new):
                found = [_like(name, old) if _plain(name) == new else name for name in found]
            case DeleteRows(column=name) if name not in found:
                found.append(name)
    return found


def lifted(batch: pa.RecordBatch, steps: Sequence[ColumnStep], schema: pa.Schema) -> pa.RecordBatch:
    """The batch after the steps, with the columns of `schema`."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for step in steps:
        _take(columns, step, batch.num_rows)
    arrays = [_of_type(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _take(columns: dict[str, pa.Array], step: ColumnStep, rows: int) -> None:
    match step:
        case AddColumn(column=column):
            value = pa.repeat(step.scalar, rows)
            columns.update({column.name: value, BEFORE_PREFIX + column.name: value})
        case DropColumn(name=name):
            columns.pop(name, None)
            columns.pop(BEFORE_PREFIX + name, None)
        case RenameColumn(old=old, new=new):
            for prefix in ("", BEFORE_PREFIX):
                if prefix + old in columns:
                    columns[prefix + new] = columns.pop(prefix + old)
        case RetypeColumn(column=column):
            for name in (column.name, BEFORE_PREFIX + column.name):
                if name in columns:
                    columns[name] = _of_type(columns[name], column.arrow_type)
        case DeleteRows(column=name):
            import pyarrow.compute as pc  # which `status` does without

            gone = pa.scalar(int(ChangeOp.DELETE), columns[OP].type)
            columns[OP] = pc.if_else(step.matching(columns[name]), gone, columns[OP])


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _plain(name: str) -> str:
    return name.removeprefix(BEFORE_PREFIX)


def _like(name: str, plain: str) -> str:
    return BEFORE_PREFIX + plain if name.startswith(BEFORE_PREFIX) else plain
