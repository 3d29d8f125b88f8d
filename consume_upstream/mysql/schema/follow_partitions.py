"""Follows the partitions of a table through a chain of statements.

The server shows the partitions of now. A partition is found as it was after a statement in the log if no later
statement has touched it. Otherwise its values are not known, and whoever needs them copies the table again.

    before      p1 10, p2 20
    1.          ADD PARTITION p3          p3: not touched later, so it is what the server says
    2.          DROP PARTITION p1         the server no longer shows p1; what it held was known before 1.
    now         p2 20, p3 30

Of a partition by RANGE only the upper bound is kept: the lower one is the upper bound of the partition before it, also
once others between them are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consume_upstream.mysql.schema.column_steps import Unknown
from consume_upstream.mysql.statements.table_actions import (
    ColumnChanged,
    ColumnDropped,
    ColumnRenamed,
    ContentChanged,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableCame,
    TableGone,
    Unsupported,
)
from consume_upstream.mysql.statements.text import folded
from vnode_backfill.words.partitioning import NOT_KNOWN, Partition, Partitioning

__all__ = ["changes_partitions", "partitions_after"]

Actions = tuple[TableAction, ...]
_TAKES_AWAY = ("drop", "convert")
_OTHER_TABLE = (ContentChanged, NotUnderstood, TableCame, TableGone, Unsupported)


def changes_partitions(actions: Actions, before: Partitioning | None) -> bool:
    """Whether the statement may change the partitions, or what their values mean."""
    return any(_changes(action, before) for action in actions)


def partitions_after(
    before: Partitioning | None, statements: Sequence[Actions], now: Partitioning | None
) -> Partitioning | None:
    """The partitions after the first statement; None if it left them as they were.

    `statements` are all up to the moment when `now` was read, in order.
    """
    first, later = statements[0], statements[1:]
    if not changes_partitions(first, before):
        return None
    if not any(changes_partitions(actions, before) or _is_other_table(actions) for actions in later):
        return now or NOT_KNOWN
    if before is None or not before.partitions:
        # A partition that is added is not the first one, though nobody knows the others.
        return NOT_KNOWN
    try:
        return _Following(before, later, now).after(first)
    except Unknown:
        return NOT_KNOWN


def _changes(action: TableAction, before: Partitioning | None) -> bool:
    match action:
        case Repartitioned():
            return True
        case PartitionsEmptied(kind):
            return kind in _TAKES_AWAY
        case ColumnChanged(old) | ColumnRenamed(old) | ColumnDropped(old):
            return before is not None and folded(old) in folded(before.expression)
        case _:
            return False


def _is_other_table(actions: Actions) -> bool:
    return any(isinstance(action, _OTHER_TABLE) for action in actions)


@dataclass(frozen=True, slots=True)
class _Following:
    """The partitions before the first statement, and what can be known of new ones."""

    before: Partitioning
    later: Sequence[Actions]
    now: Partitioning | None

    def after(self, first: Actions) -> Partitioning:
        partitions = list(self.before.partitions)
        for action in first:
            match action:
                case Repartitioned(old, new) if old is not None and new is not None:
                    partitions = self._replaced(partitions, old, [self._new(name) for name in new])
                case PartitionsEmptied(kind, names) if kind in _TAKES_AWAY:
                    partitions = self._replaced(partitions, names, [])
                case _ if _changes(action, self.before):
                    raise Unknown("nobody knows which partitions came in the place of which")
        return Partitioning(self.before.method, self.before.expression, tuple(partitions))

    def _replaced(
        self, partitions: Sequence[Partition], names: Sequence[str], new: Sequence[Partition]
    ) -> list[Partition]:
        """The new ones in the place of the named ones, or at the end where none is named."""
        gone = set(map(folded, names))
        places = [at for at, each in enumerate(partitions) if folded(each.name) in gone]
        if len(places) != len(gone) or {folded(each.name) for each in new} & (
            {folded(each.name) for each in partitions} - gone
        ):
            raise Unknown("a statement names partitions that the table does not have by then")
        left = [each for each in partitions if folded(each.name) not in gone]
        at = places[0] if places else len(left)
        return [*left[:at], *new, *left[at:]]

    def _new(self, name: str) -> Partition:
        found = [each for each in (self.now or NOT_KNOWN).partitions if folded(each.name) == folded(name)]
        same = self.now is not None and (self.now.method, self.now.expression) == (
            self.before.method,
            self.before.expression,
        )
        touched = any(folded(name) in _named(actions) for actions in self.later)
        unsure = any(_is_unsure(action, self.before) for actions in self.later for action in actions)
        return found[0] if found and same and not touched and not unsure else Partition(name, None)


def _named(actions: Actions) -> set[str]:
    return set(map(folded, _names(actions)))


def _names(actions: Actions) -> Iterator[str]:
    for action in actions:
        match action:
            case Repartitioned(old, new):
                yield from (*(old or ()), *(new or ()))
            case PartitionsEmptied(kind, names) if kind in _TAKES_AWAY:
                yield from names


def _is_unsure(action: TableAction, before: Partitioning) -> bool:
    """Whether any partition may be another one after it."""
    known = isinstance(action, PartitionsEmptied) or (isinstance(action, Repartitioned) and action.old is not None)
    return isinstance(action, _OTHER_TABLE) or (_changes(action, before) and not known)
