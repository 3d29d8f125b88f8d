"""Follows the columns of a table through a chain of statements: which are there after each, in which order.

Each column has a number that it keeps whatever its name; those of the stored definition have the numbers of their
places. The rules are the server's: an ALTER TABLE drops, changes and renames columns by the names they had before it,
each at its place. Then it puts columns that were added or have a position where they belong, one after the other, and
AFTER means a name as it is by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from consume_upstream.mysql.schema.column_steps import Unknown
from consume_upstream.mysql.statements.table_actions import (
    ColumnAdded,
    ColumnChanged,
    ColumnDropped,
    ColumnRenamed,
    ContentChanged,
    DefaultChanged,
    First,
    Position,
    TableAction,
)
from consume_upstream.mysql.statements.text import folded
from vnode_backfill.words.columns import Column, TableDefinition

__all__ = ["Chain", "Slot", "follow"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One column on its way; `stored` is what it was before the chain, None if it was added in it."""

    number: int
    name: str
    stored: Column | None = None

    @property
    def folded(self) -> str:
        return folded(self.name)

    @staticmethod
    def fold(name: str) -> str:
        """Columns compare without regard to case, on every server."""
        return folded(name)


@dataclass(slots=True)
class Chain:
    """What the statements did to the columns."""

    after: list[list[Slot]] = field(default_factory=list)
    """After each statement the columns in order."""
    touched: dict[int, set[int]] = field(default_factory=dict)
    """By column the statements that may have changed its type."""
    defaults_touched: set[int] = field(default_factory=set)


def follow(stored: TableDefinition, statements: Sequence[tuple[TableAction, ...]]) -> Chain:
    """Carry the columns through all statements; raises `Unknown` where a name is not there."""
    slots = [Slot(number, column.name, column) for number, column in enumerate(stored.columns)]
    chain = Chain(touched={slot.number: set() for slot in slots})
    numbers = count(len(slots))
    for at, actions in enumerate(statements):
        _check_names(slots)
        slots = _Statement(chain, at, slots, numbers).result(actions)
        chain.after.append(slots)
    _check_names(slots)
    return chain


def _check_names(slots: Sequence[Slot]) -> None:
    """Folding may make names equal that the server knows apart; then a statement may mean either column."""
    names = [slot.folded for slot in slots]
    if len(set(names)) < len(names):
        raise Unknown("two columns have names that cannot be told apart")


@dataclass(slots=True)
class _Statement:
    """One statement's work on the columns that were there before it."""

    chain: Chain
    at: int
    before: list[Slot]
    numbers: count[int]

    def result(self, actions: Sequence[TableAction]) -> list[Slot]:
        kept: dict[int, Slot | None] = {slot.number: slot for slot in self.before}
        moved: list[tuple[Slot, Position | None]] = []
        for action in actions:
            self._apply(action, kept, moved)
        away = {slot.number for slot, _ in moved}
        slots = [slot for slot in kept.values() if slot is not None and slot.number not in away]
        for slot, position in moved:
            slots.insert(_place(slots, position), slot)
        if any(isinstance(action, ContentChanged) for action in actions):
            for slot in slots:
                self.chain.touched[slot.number].add(self.at)
        return slots

    def _apply(
        self, action: TableAction, kept: dict[int, Slot | None], moved: list[tuple[Slot, Position | None]]
    ) -> None:
        match action:
            case ColumnDropped(name, if_exists):
                for slot in self._named(name, optional=if_exists):
                    kept[slot.number] = None
            case ColumnRenamed(old, new, if_exists):
                for slot in self._named(old, optional=if_exists):
                    kept[slot.number] = replace(slot, name=new)
            case ColumnChanged(old, new, position, if_exists):
                for slot in self._named(old, optional=if_exists):
                    changed = replace(slot, name=new)
                    kept[slot.number] = changed
                    self.chain.touched[slot.number].add(self.at)
                    if position is not None:
                        moved.append((changed, position))
            case ColumnAdded(name, position, if_not_exists):
                if not (if_not_exists and self._named(name, optional=True)):
                    moved.append((self._new(name), position))
            case DefaultChanged(name):
                self._default_changed(name, [slot for slot, _ in moved])

    def _named(self, name: str, *, optional: bool) -> list[Slot]:
        found = [slot for slot in self.before if slot.folded == folded(name)]
        if not found and not optional:
            raise Unknown(f"a statement in the log names column {name}, which the table does not have by then")
        return found

    def _new(self, name: str) -> Slot:
        slot = Slot(next(self.numbers), name)
        self.chain.touched[slot.number] = set()
        return slot

    def _default_changed(self, name: str, added: Sequence[Slot]) -> None:
        """Also of a column that the same statement adds."""
        for slot in (*self.before, *added):
            if slot.folded == folded(name):
                self.chain.defaults_touched.add(slot.number)


def _place(slots: Sequence[Slot], position: Position | None) -> int:
    if position is None:
        return len(slots)
    if isinstance(position, First):
        return 0
    found = [at for at, slot in enumerate(slots) if slot.folded == folded(position.name)]
    if not found:
        raise Unknown(f"a statement in the log names column {position.name}, which the table does not have by then")
    return found[0] + 1
