"""Finds changes of a parent table through which the database changes rows of its child outside the log.

A foreign key may say what becomes of a child's rows when the row that they refer to goes, or gets another key: ON
DELETE and ON UPDATE with CASCADE, SET NULL or SET DEFAULT. The engine then changes them by itself, and the log holds
the parent's change only. So whoever follows the child looks at the parent's changes as well.

What must be true: no such change is missed. A change that is found may have changed nothing, because no row of the
child referred to it; that costs a copy, and nothing else. A parent may have a parent of its own: its changes count in
the same way, whether or not they reach the child. Why it is: a rule that a key does not have stops a cascade, so the
rules of each step are enough, whatever the steps before and after it are.

    parent(id), child(parent REFERENCES parent(id) ON DELETE CASCADE ON UPDATE CASCADE)
    DELETE FROM parent WHERE id = 3             found
    UPDATE parent SET id = 4 WHERE id = 3       found
    UPDATE parent SET name = 'x' WHERE id = 3   not: nobody refers to the name
    INSERT INTO parent …                        not: nobody can refer to it yet

The parents of a copy are those that the table had at the first offset of the copy, with the definitions that they had
there, and they are stored with it. What the server says later may leave a parent out whose cascade the job has not read
yet: its key was dropped since, or it has another name. They stay true as long as the copy lives. A statement that may
give the table another parent is about the table itself, or about one of the parents, and each of these makes a new
copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.log.batch import LogBatch
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.errors import StateError

__all__ = ["CascadingParent", "together"]

_DATES = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)
_LABELS = (Kind.ENUM, Kind.SET)


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
        """An update counts unless every column is certainly what it was; a column that is not known is not."""
        same: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        known = {column.name: column.kind for column in self.definition.columns}
        for name in self.on_update:
            if name not in known or rows.before.schema.get_field_index(name) < 0:
                return ~np.zeros(len(rows), np.bool_)
            same &= _certainly_same(known[name], rows.before.column(name), rows.after.column(name))
        return ~same

    def to_json(self) -> dict[str, object]:
        return {
            "definition": self.definition.to_json(),
            "on_delete": self.on_delete,
            "on_update": list(self.on_update),
        }

    @classmethod
    def from_json(cls, stored: dict[str, object]) -> CascadingParent:
        definition, columns = stored["definition"], stored["on_update"]
        if not isinstance(definition, dict) or not isinstance(columns, list):
            raise StateError("a stored parent table has no definition or no columns")
        return cls(TableDefinition.from_json(definition), bool(stored["on_delete"]), tuple(map(str, columns)))


def together(first: Iterable[CascadingParent], second: Iterable[CascadingParent]) -> tuple[CascadingParent, ...]:
    """The parents of both, each once, with the rules of both. The definition is the one that comes first."""
    found: dict[tuple[str, str], CascadingParent] = {}
    for parent in (*first, *second):
        known = found.get(parent.name, parent)
        columns = dict.fromkeys((*known.on_update, *parent.on_update))
        on_delete = known.on_delete or parent.on_delete
        found[parent.name] = replace(known, on_delete=on_delete, on_update=tuple(sorted(columns)))
    return tuple(found[name] for name in sorted(found))


def _certainly_same(kind: Kind, before: pa.Array, after: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a value certainly is what it was. Values of a date, a label or a float may look the same and differ.

    Days that are not in the calendar are all NULL here, and the value of an ENUM that is no label is a text without
    characters. Minus zero equals zero.
    """
    import pyarrow.compute as pc

    if pa.types.is_floating(before.type):
        bits = pa.int32() if before.type.bit_width == 32 else pa.int64()
        before, after = before.view(bits), after.view(bits)
    same = pc.fill_null(pc.equal(before, after), False)
    if kind in _LABELS:
        same = pc.and_(same, pc.fill_null(pc.not_equal(before, ""), False))
    if kind not in _DATES:
        same = pc.or_(same, pc.and_(before.is_null(), after.is_null()))
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
