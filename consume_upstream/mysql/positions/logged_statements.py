"""Reads the statements about tables in a stretch of the log: what each does, its place, and where rows begin.

Rows are left alone, and so is every event that is not understood: the reader that captures the rows refuses it. The log
is read under a server id that no reader of the job has: other tables may be captured meanwhile. Tables that are looked
at together share one reading, whatever offsets they begin at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consume_upstream.log.offset import CdcOffset, era_shift
from consume_upstream.log.statement import LogCut
from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.events import LogPosition, Statement, is_ignorable
from consume_upstream.mysql.binlog.judge import EventJudge, TableJudge
from consume_upstream.mysql.binlog.place import Place
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.judged_stretch import judge_stretch
from consume_upstream.mysql.schema.creation import with_rows
from consume_upstream.mysql.statements.actions import actions_of
from consume_upstream.mysql.statements.effect import Effect, text_of
from consume_upstream.mysql.statements.table_actions import Cascades, ContentChanged, TableAction

__all__ = ["CollectsStatements", "LoggedStatement", "collected_statements", "logged_statements", "open_look"]


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement about the table: what it does, and its place.

    `alone` says whether it is a transaction of its own. A log can be read from the end of such a one on.
    """

    actions: tuple[TableAction, ...]
    at: LogCut
    alone: bool = True


def logged_statements(table: KnownTable, after: CdcOffset, upto: CdcOffset, *, folds: bool) -> list[LoggedStatement]:
    """The statements about the table in `(after, upto]`. `folds` is whether the server folds names of tables."""
    return collected_statements([(table, after)], upto, folds=folds)[0].found


def collected_statements(
    tables: Sequence[tuple[KnownTable, CdcOffset]], upto: CdcOffset, *, folds: bool
) -> list[CollectsStatements]:
    """What `(after, upto]` holds of each table, given with its `after`. There is one table at least."""
    judges, judge = open_look(tables, folds=folds)
    judge_stretch(tables[0][0], judge, judge.place.position, LogPosition(upto.file, upto.pos))
    return judges


def open_look(
    tables: Sequence[tuple[KnownTable, CdcOffset]], *, folds: bool
) -> tuple[list[CollectsStatements], EventJudge]:
    """What collects for each table, and the judge that asks all of them; nothing is read yet.

    The judge begins at the lowest offset.
    """
    first = min((after for _, after in tables), key=lambda after: after.order)
    place = Place(LogPosition(first.file, first.pos), TransactionBook(None))
    judges = [CollectsStatements(table, place, after, folds=folds) for table, after in tables]
    return judges, _LenientJudge(place, judges)


class CollectsStatements(TableJudge):
    """Looks at every statement about the table after an offset, and notes where rows of the table begin."""

    def __init__(self, table: KnownTable, place: Place, after: CdcOffset, *, folds: bool) -> None:
        super().__init__(place, table.definition, table.identity.flavour)
        self.found: list[LoggedStatement] = []
        self.before_rows: int | None = None
        """How many of the statements come before the first rows; None if there are no rows."""
        self._after = after.file_number, after.pos
        self._folds, self._era, self._follows_parents = folds, table.era, table.follows_parents

    def note_rows(self) -> None:
        """Rows of the table are here, or what can only be taken as such."""
        if self.before_rows is None and self._is_after():
            self.before_rows = len(self.found)

    def accept_map(self, body: bytes) -> bool:  # noqa: ARG002 - what it says of the rows does not matter
        """Rows are not read, so that nothing is said about their table."""
        self.note_rows()
        return False

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:
        if effect is not Effect.SCHEMA or self.place.begun:
            self.note_rows()
        if effect is not Effect.SCHEMA or not self._is_after():
            return
        actions = actions_of(statement, *self.name, folds_names=self._folds)
        if self._follows_parents:
            actions = tuple(ContentChanged(each.reason) if isinstance(each, Cascades) else each for each in actions)
        if self.place.begun:
            # CREATE … SELECT: rows follow in its transaction.
            actions = with_rows(actions)
        self.found.append(LoggedStatement(actions, self._cut(statement), alone=not self.place.begun))

    def pass_over(self, statement: Statement) -> None:
        self.refuse_statement(Effect.SCHEMA, statement)

    def _is_after(self) -> bool:
        """The place is the end of the event, and `after` is between two transactions."""
        return (self.place.file.number, self.place.pos) > self._after

    def _cut(self, statement: Statement) -> LogCut:
        """Its place, by the numbers that files have in the job's offsets."""
        files = era_shift(self._era)
        (first, begin), (last, end) = self._around(statement)
        around = (first + files, begin), (last + files, end)
        return LogCut(*around, text_of(statement)[:500], *self.place.open_statement(0)[1:])


class _LenientJudge(EventJudge):
    """Passes over every event that is not understood. It may have been about rows, unless it may be passed over."""

    def __init__(self, place: Place, tables: Sequence[CollectsStatements]) -> None:
        super().__init__(place, tables)
        self._collecting = tables

    def judge_unknown(self, event: bytes) -> None:
        if is_ignorable(event):
            return
        for table in self._collecting:
            table.note_rows()
