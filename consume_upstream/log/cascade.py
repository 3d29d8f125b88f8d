"""Finds changes of a parent table through which the database changes rows of its child outside the log.

A foreign key may say what becomes of a child's rows when the row that they refer to goes, or gets another key: ON
DELETE and ON UPDATE with CASCADE or SET NULL. The engine then changes them by itself, and the log holds the parent's
change only. So whoever follows the child looks at the parent's changes as well.

What must be true: no such change is missed. A change that is found may have changed nothing, because no row of the
child referred to it; that costs a copy, and nothing else. A parent may have a parent of its own: its changes count in
the same way, whether or not they reach the child.

    parent(id), child(parent REFERENCES parent(id) ON DELETE CASCADE ON UPDATE CASCADE)
    DELETE FROM parent WHERE id = 3             found
    UPDATE parent SET id = 4 WHERE id = 3       found
    UPDATE parent SET name = 'x' WHERE id = 3   not: nobody refers to the name
    INSERT INTO parent …                        not: nobody can refer to it yet
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from consume_upstream.log.batch import LogBatch
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition

__all__ = ["CascadingParent"]


@dataclass(frozen=True, slots=True)
class CascadingParent:
    """A table whose changes change rows of another one: by deletes, by updates of some columns, or by both."""

    definition: TableDefinition
    on_delete: bool
    on_update: tuple[str, ...] = ()
    """The columns that children refer to, and whose changes they follow."""

    @property
    def name(self) -> tuple[str, str]:
        return self.definition.database, self.definition.table

    def last_cascade(self, rows: LogBatch) -> int | None:
        """Where the last change of a batch ends that may have changed rows of a child; None if there is none."""
        found = (rows.op == ChangeOp.DELETE) & self.on_delete
        updates = rows.op == ChangeOp.UPDATE
        if self.on_update and updates.any():
            found = found | (updates & self._refers_to_another(rows))
        return int(rows.pos[found].max()) if found.any() else None

    def _refers_to_another(self, rows: LogBatch) -> npt.NDArray[np.bool_]:
        changed: npt.NDArray[np.bool_] = np.zeros(len(rows), np.bool_)
        for name in self.on_update:
            before, after = rows.before.column(name), rows.after.column(name)
            same = pc.or_(pc.fill_null(pc.equal(before, after), False), pc.and_(before.is_null(), after.is_null()))
            changed |= ~same.to_numpy(zero_copy_only=False)
        return changed
