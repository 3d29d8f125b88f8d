"""Derives the effect of a statement from the definition before it, the statements after it and the server's definition.

The log holds statements, and the server knows only its definition of now. Usually there is one statement between the
two. If there are several, the definition after the first is found without parsing a type: names and places of columns
are carried through all statements, and a column is what it was before the chain if no statement up to there has changed
its type, or what the server says now if no later one does. Otherwise nobody knows, and the table is copied again.

    stored      id INT, a INT
    1.          ADD b INT AFTER id        id, b, a        b: not touched later, so it is what the server says
    2.          CHANGE a c BIGINT         id, b, c        a after 1.: not touched yet, so it is as stored
    now         id INT, b INT, c BIGINT   the same names in the same order, so no statement was missed

All clauses of one ALTER TABLE name the columns as they were before it, so `RENAME COLUMN a TO b, RENAME COLUMN b TO a`
exchanges two; only AFTER means a name after the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consume_upstream.mysql.schema.column_steps import Unknown, added_step, rename_steps, retyped_step
from consume_upstream.mysql.schema.current_table import CurrentTable
from consume_upstream.mysql.schema.follow_columns import Chain, Slot, follow
from consume_upstream.mysql.schema.partition_bounds import rows_of
from consume_upstream.mysql.statements.table_actions import (
    ColumnAdded,
    ColumnChanged,
    ColumnDropped,
    ContentChanged,
    KeyChanged,
    Nothing,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
    Unsupported,
)
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.schema_change import (
    Carried,
    ColumnStep,
    DropColumn,
    Emptied,
    Ended,
    NewCopy,
    NoEffect,
    RowsOfPartitions,
    SetAside,
    StatementEffect,
)

__all__ = ["effect_of_first"]

Actions = tuple[TableAction, ...]
_ENDS = (TableGone, TableCame, NotUnderstood, Unsupported)
"""After one of these the server's definition says nothing about the table that was stored."""


def effect_of_first(
    stored: TableDefinition,
    statements: Sequence[Actions],
    now: CurrentTable | None,
    gone: RowsOfPartitions = "reread",
) -> StatementEffect:
    """The effect of `statements[0]` on the table that is `stored` before it.

    `statements` are all statements on the table that the log holds up to the moment when `now` was read, in order, also
    those without effect. `now` is None if the table is not there. `gone` says what becomes of the rows of partitions
    that are dropped.
    """
    first = statements[0]
    whole = _effect_on_the_whole(stored, first, statements[1:], gone)
    if whole is not None:
        return whole
    if all(isinstance(action, Nothing | Repartitioned) for action in first):
        return NoEffect()
    cut = any(isinstance(action, _ENDS) for actions in statements[1:] for action in actions if _counts(action))
    if now is None and not cut:
        return NewCopy("the table is not there, and no statement in the log says why")
    if now is not None and now.refused and not cut:
        return SetAside(now.refused)
    try:
        return _Derivation(stored, follow(stored, statements), statements, None if cut else now).effect()
    except Unknown as reason:
        return NewCopy(str(reason))


def _counts(action: TableAction) -> bool:
    """CREATE TABLE IF NOT EXISTS of a table that exists does nothing."""
    return not (isinstance(action, TableCame) and action.if_not_exists)


def _effect_on_the_whole(
    stored: TableDefinition, first: Actions, later: Sequence[Actions], gone: RowsOfPartitions
) -> StatementEffect | None:
    """The effect of what concerns the table as a whole; None if only columns and keys are concerned."""
    for action in first:
        match action:
            case NotUnderstood(reason) | Unsupported(reason):
                return SetAside(reason)
            case TableGone(how):
                returns = any(isinstance(each, TableCame) for actions in (first, *later) for each in actions)
                return NewCopy(f"the table was {how}, and another has its name") if returns else Ended(how)
            case TableCame(how, if_not_exists) if not if_not_exists:
                return NewCopy(f"the table was {how}")
    reasons = [action.reason for action in first if isinstance(action, ContentChanged)]
    if reasons:
        return NewCopy(reasons[0])
    for action in first:
        if isinstance(action, PartitionsEmptied):
            return _without_partitions(stored, action, gone)
        if isinstance(action, TableEmptied):
            return Emptied(stored)
    return None


def _without_partitions(stored: TableDefinition, action: PartitionsEmptied, gone: RowsOfPartitions) -> StatementEffect:
    """The rows of some partitions go: EXCHANGE may bring others, which the caller finds out."""
    if action.kind == "truncate" and not action.names:
        return Emptied(stored)
    what = f"{action.kind.upper()} PARTITION {', '.join(action.names) or 'ALL'}"
    if gone == "reread" or not action.names:
        return NewCopy(what)
    try:
        return Carried(stored, (rows_of(stored, action.names),))
    except Unknown as reason:
        return NewCopy(f"{what}: {reason}")


@dataclass(frozen=True, slots=True)
class _Derivation:
    """The columns after the first statement; `now` is None if later statements leave nothing of it to compare with."""

    stored: TableDefinition
    chain: Chain
    statements: Sequence[Actions]
    now: CurrentTable | None

    def effect(self) -> StatementEffect:
        self._check_end()
        after = self.chain.after[0]
        columns = tuple(self._column(slot) for slot in after)
        names = {slot.number: column.name for slot, column in zip(after, columns, strict=True)}
        definition = replace(self.stored, columns=columns, key=self._key(names))
        steps = self._steps(columns)
        if definition == self.stored:
            return NoEffect()
        return Carried(definition, steps)

    def _column(self, slot: Slot) -> Column:
        """What the column is after the first statement, from whichever end nothing has touched it."""
        found = self._column_now(slot)
        # The server knows best how a name is spelled.
        name = found.name if found is not None and Slot.fold(found.name) == slot.folded else slot.name
        if slot.stored is not None and 0 not in self.chain.touched[slot.number]:
            return replace(slot.stored, name=name)
        later = {at for at in self.chain.touched[slot.number] if at > 0}
        if found is None or later:
            raise Unknown(f"column {slot.name} was changed again by a later statement, and nobody knows what it was")
        return replace(found, name=name)

    def _column_now(self, slot: Slot) -> Column | None:
        """The server's definition of the column; None if it is gone by now."""
        places = [at for at, other in enumerate(self.chain.after[-1]) if other.number == slot.number]
        if not places or self.now is None or self.now.definition is None:
            return None
        return self.now.definition.columns[places[0]]

    def _check_end(self) -> None:
        """The statements must lead to what the server has; otherwise one of them is not in the log."""
        if self.now is None or self.now.definition is None:
            return
        there = self.now.definition
        last = self.chain.after[-1]
        if [slot.folded for slot in last] != [Slot.fold(column.name) for column in there.columns]:
            raise Unknown("the statements in the log do not lead to the columns that the server has now")
        for slot, column in zip(last, there.columns, strict=True):
            same = slot.stored is None or replace(slot.stored, name=column.name) == column
            if not self.chain.touched[slot.number] and not same:
                raise Unknown(f"column {column.name} is another one now, and no statement in the log says why")
        self._check_key()

    def _check_key(self) -> None:
        later = [action for actions in self.statements[1:] for action in actions]
        if any(isinstance(action, ContentChanged) for action in later):
            return
        assert self.now is not None
        assert self.now.definition is not None
        names = {slot.number: column.name for slot, column in zip(self.chain.after[-1], self.now.definition.columns,
                 strict=True)}  # fmt: skip
        if self._key(names) != self.now.definition.key:
            raise Unknown("another key identifies the rows")
        unsettling = (KeyChanged, ColumnChanged, ColumnDropped)
        if not self.now.primary and any(isinstance(action, unsettling) for action in later):
            raise Unknown("the rows have no primary key, and several statements may have changed what identifies them")

    def _key(self, names: dict[int, str]) -> tuple[str, ...]:
        numbers = {column.name: number for number, column in enumerate(self.stored.columns)}
        gone = [name for name in self.stored.key if numbers[name] not in names]
        if gone:
            raise Unknown(f"column {gone[0]} of the key was dropped")
        return tuple(names[numbers[name]] for name in self.stored.key)

    def _steps(self, columns: tuple[Column, ...]) -> tuple[ColumnStep, ...]:
        """Drops, then renames, then types, then new columns: each step finds the names that the ones before it left."""
        after = self.chain.after[0]
        there = {slot.number: column for slot, column in zip(after, columns, strict=True)}
        dropped = [DropColumn(c.name) for number, c in enumerate(self.stored.columns) if number not in there]
        kept = [(c, there[number]) for number, c in enumerate(self.stored.columns) if number in there]
        renames = rename_steps([(old.name, new.name) for old, new in kept])
        retyped = [self._retyped(old, new) for old, new in kept]
        added = [self._added(slot, there[slot.number]) for slot in after if slot.stored is None]
        found: tuple[ColumnStep | None, ...] = (*dropped, *renames, *retyped, *added)
        return tuple(step for step in found if step is not None)

    def _retyped(self, old: Column, new: Column) -> ColumnStep | None:
        slot = next(slot for slot in self.chain.after[0] if slot.stored == old)
        if 0 not in self.chain.touched[slot.number]:
            return None
        assert self.now is not None
        place = next(at for at, other in enumerate(self.chain.after[-1]) if other.number == slot.number)
        return retyped_step(
            old,
            new,
            self.now.columns[place],
            in_key=old.name in self.stored.key,
            computed=any(column.generated for column in self.now.columns),
            computed_before=self._computed_before(),
            strict=self._is_strict(old),
        )

    def _is_strict(self, column: Column) -> bool:
        """Whether the first statement would have been refused if it could not keep a value of the column."""
        changes = [action for action in self.statements[0] if isinstance(action, ColumnChanged)]
        return all(action.strict for action in changes if Slot.fold(action.old) == Slot.fold(column.name))

    def _computed_before(self) -> bool:
        """Whether a column that a later statement dropped or changed may have been a generated one until then."""
        left = {slot.number for slot in self.chain.after[-1]}
        return any(
            slot.number not in left or max(self.chain.touched[slot.number], default=0) > 0
            for slot in self.chain.after[0]
        )

    def _added(self, slot: Slot, column: Column) -> ColumnStep:
        assert self.now is not None
        place = next(at for at, other in enumerate(self.chain.after[-1]) if other.number == slot.number)
        if slot.number in self.chain.defaults_touched:
            raise Unknown(f"the default of column {column.name} was changed after it was added")
        added = next(
            action
            for action in self.statements[0]
            if isinstance(action, ColumnAdded) and Slot.fold(action.name) == slot.folded
        )
        return added_step(column, self.now.columns[place], added.default)
