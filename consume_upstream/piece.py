"""Reads one piece of the log for some tables, marks their changes and writes them for the buffer.

What must be true: every change of a table in the piece that is not proven to be seen by a read is in a file of that
table, or the piece raises, or it says why this table could not be read. A piece is within one file of the log, and it
is read once for all its tables. Memory is bounded for all tables together: the one that holds most is written first.

A piece marks against the visible prefix *as far as it knows it*: it drops a change only if every transaction of the
piece up to there is visible. Transactions come with the changes that need them, or before (see `SharedBatch`).

Parents of a table are read as well, by the same reader, unless they are among the tables already: their changes may
change rows of the table outside the log (`log.cascade`). A parent that cannot be read counts as one that has, and so
does one that a statement may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from consume_upstream.buffer import BufferWriter
from consume_upstream.changes import changes_of
from consume_upstream.key_order import KeyOrder, LendSession, OneSession
from consume_upstream.log.batch import LogBatch, Transaction
from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, Visibility, VisibleAt, VisibleGtids
from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mark import LazyMarks, mark_chunk
from consume_upstream.upstream_table import UpstreamTable
from progress.task_progress import TaskProgress
from vnode_backfill.sinks import FileReceipt
from vnode_backfill.words import change
from vnode_backfill.words.change import Mark
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key import KeyKind
from vnode_backfill.words.key_range import SplitPlan

__all__ = ["LogPiece", "PieceConsumed", "TableShare", "consume_piece"]

Missing = dict[CdcOffset, LoggedTransaction]
"""The transactions that are not visible, by where they begin, in log order."""


@dataclass(frozen=True, slots=True)
class TableShare:
    """Everything a worker needs to buffer one table's changes. Can be pickled."""

    table: UpstreamTable
    plan: SplitPlan
    marks: LazyMarks
    visible: Visibility
    prefix: CdcOffset | None
    writer: BufferWriter
    epoch: Epoch
    peeks: bool = False
    """Whether changes are only counted."""
    parents: tuple[CascadingParent, ...] = ()
    """The tables whose changes are looked at as well."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stretch of the log within one file, and the tables whose changes are wanted. Can be pickled."""

    shares: tuple[TableShare, ...]
    after: CdcOffset
    upto: CdcOffset
    reader: int
    part: int
    memory: int
    progress: TaskProgress | None = None


@dataclass(frozen=True, slots=True)
class PieceConsumed:
    """What became of a table's piece: the files written, what was kept, and which transactions were not visible."""

    receipts: tuple[FileReceipt, ...]
    kept: int
    read: int
    missing: tuple[LoggedTransaction, ...]
    newest: int
    cut: LogCut | None = None
    passed: tuple[PassedStatement, ...] = ()
    error: BackfillError | None = None
    """Why the piece was not read to its end, for no table."""
    refused: BackfillError | None = None
    """Why this table could not be read; nothing else here counts then."""
    cascaded: tuple[int, int] | None = None
    """File number and position of the last change of a parent that may have changed rows outside the log."""

    @property
    def met(self) -> int:
        """How much of the log concerns the table: changes, statements, and changes of its parents."""
        return self.read + len(self.passed) + (self.cut is not None) + (self.cascaded is not None)


def consume_piece(piece: LogPiece, lend: LendSession | None = None) -> list[PieceConsumed]:
    """Read, mark and write one piece; an answer for each of its tables.

    What it fails at for good is part of the answer: it does not count for a table if a piece before this one meets a
    statement about that table.
    """
    try:
        return _consumed(piece, lend)
    except BackfillError as error:
        if error.retryable or piece.part == 0:
            raise
        return [PieceConsumed((), 0, 0, (), 0, error=error) for _ in piece.shares]


def _consumed(piece: LogPiece, lend: LendSession | None) -> list[PieceConsumed]:
    shares, parents = piece.shares, _Parents(piece)
    met = [MetStatements() for _ in parents.tables]
    first, noted = shares[0].table, _Noted(piece)
    with OneSession(first) as session, ExitStack() as orders:
        intakes = _Intakes(piece, lambda share: orders.enter_context(_order(piece, share, lend or session.lend)))
        for number, rows in first.read_together(parents.tables, piece.after, piece.upto, piece.reader, met):
            noted.take(rows.transactions)
            parents.take(number, rows)
            if number < len(shares) and len(rows) and met[number].error is None:
                intakes.take(number, rows, noted.of(shares[number].visible), met[number])
    consumed = [intakes.consumed(number, noted.of(share.visible), met[number]) for number, share in enumerate(shares)]
    cascaded = [parents.cascaded(number, met) for number in range(len(shares))]
    return [replace(each, cascaded=at) if at else each for each, at in zip(consumed, cascaded, strict=True)]


def _order(piece: LogPiece, share: TableShare, lend: LendSession) -> KeyOrder:
    return KeyOrder(share.table, share.plan, lend, sharers=len(piece.shares))


class _Parents:
    """Looks at the changes of the tables' parents. `tables` are those of the piece, and then parents that are not."""

    def __init__(self, piece: LogPiece) -> None:
        self.tables = [share.table for share in piece.shares]
        self._upto = piece.upto.order
        self._children: dict[int, list[tuple[int, CascadingParent]]] = {}
        """By the number of a table, those that it is a parent of."""
        self._found: dict[int, tuple[int, int]] = {}
        numbers = {(t.definition.database, t.definition.table): number for number, t in enumerate(self.tables)}
        for child, share in enumerate(piece.shares):
            for parent in share.parents:
                if parent.name not in numbers:
                    numbers[parent.name] = len(self.tables)
                    self.tables.append(share.table.parent(parent))
                self._children.setdefault(numbers[parent.name], []).append((child, parent))

    def take(self, number: int, rows: LogBatch) -> None:
        for child, parent in self._children.get(number, ()) if len(rows) else ():
            last = parent.last_cascade(rows)
            if last is not None:
                self._found[child] = max(self._found.get(child, (0, 0)), (rows.file, last))

    def cascaded(self, child: int, met: Sequence[MetStatements]) -> tuple[int, int] | None:
        """Where the last change was found that may have changed rows of this table."""
        if not self._children:
            return None
        watched = [number for number, of in self._children.items() if any(each == child for each, _ in of)]
        if any(_ends_before(met[number], met[child]) for number in watched if number != child):
            return self._upto
        found = [self._found.get(child), met[child].parent_changed if watched else None]
        return max((place for place in found if place is not None), default=None)


def _ends_before(parent: MetStatements, child: MetStatements) -> bool:
    """Whether some of the parent's changes were not seen in the stretch that is read of its child."""
    if parent.error is not None:
        return True
    return parent.cut is not None and (child.cut is None or parent.cut.start < child.cut.start)


class _Noted:
    """Notes the transactions of a piece that are not visible. Tables of one sample share what is noted."""

    def __init__(self, piece: LogPiece) -> None:
        self._upto = piece.upto
        self._known: list[tuple[Visibility, Missing]] = []
        self._same: dict[int, Missing] = {}
        """The same by identity: most tables share one sample, and comparing sets of transactions takes long."""
        for share in piece.shares:
            if id(share.visible) not in self._same:
                self._same[id(share.visible)] = self._of_equal(share.visible)

    def of(self, visible: Visibility) -> Missing:
        return self._same[id(visible)]

    def _of_equal(self, visible: Visibility) -> Missing:
        for known, missing in self._known:
            if known == visible:
                return missing
        self._known.append((visible, {}))
        return self._known[-1][1]

    def take(self, transactions: Sequence[Transaction]) -> None:
        for visible, missing in self._known:
            if isinstance(visible, VisibleGtids):
                for transaction in transactions:
                    if not visible.covers_transaction(transaction.gtid):
                        number, pos = transaction.start
                        start = replace(self._upto, number=number, pos=pos, log="")
                        missing.setdefault(start, LoggedTransaction(transaction.gtid, start))


class _Intake:
    """What one table has taken in: changes that wait to be written, and files."""

    def __init__(self, share: TableShare, order: KeyOrder) -> None:
        self.share, self.order = share, order
        self.waiting: list[pa.Table] = []
        self.bytes = self.kept = self.read = self.newest = 0
        self.receipts: list[FileReceipt] = []

    def take(self, rows: LogBatch, visible: VisibleAt) -> None:
        """Keep the changes that are not dropped, with their vnode and epoch."""
        self.read += len(rows)
        self.newest = max(self.newest, int(rows.timestamp.max(initial=0)))
        kept = self._kept(changes_of(rows, self.share.table.definition), visible)
        self.kept += len(kept)
        if len(kept):
            self.waiting.append(kept)
            self.bytes += kept.nbytes

    def _kept(self, changes: pa.Table, visible: VisibleAt) -> pa.Table:
        keys = [changes.column(name).combine_chunks() for name in self.share.table.definition.key]
        positions, vnodes = self.order.places(keys)
        file = changes.column(change.FILE).to_numpy()
        pos = changes.column(change.POS).to_numpy()
        marks = mark_chunk(self.share.marks.found.view(visible), positions, vnodes, file, pos)
        changes = changes.append_column(change.VNODE, pa.array(vnodes, pa.int32()))
        changes = changes.append_column(change.EPOCH, pa.array(np.full(len(vnodes), self.share.epoch, np.int64)))
        kept = marks != Mark.DROP
        return changes if kept.all() else changes.filter(pa.array(kept))

    @property
    def _is_read_in_parts(self) -> bool:
        """Whether vnodes are merged at different times, or one by one because their keys have to be asked about."""
        text = any(part.kind is KeyKind.TEXT for part in self.share.plan.parts)
        return text or not bool(self.share.marks.found.read.live.all())

    def write(self, part: int) -> None:
        """Write what waits as one file."""
        if self.waiting:
            number, changes = part * 10_000 + len(self.receipts), pa.concat_tables(self.waiting)
            written = self.share.writer.write(self.share.epoch, number, changes, by_vnode=self._is_read_in_parts)
            self.receipts.append(written)
            self.waiting, self.bytes = [], 0


class _Intakes:
    """The intakes of a piece's tables; one is made when the first changes of its table come."""

    def __init__(self, piece: LogPiece, order: Callable[[TableShare], KeyOrder]) -> None:
        self._piece, self._order = piece, order
        self._of_table: dict[int, _Intake] = {}
        self._peeked: dict[int, int] = {}
        self._nothing: dict[int, PieceConsumed] = {}
        self._read = self._bytes = 0

    def take(self, number: int, rows: LogBatch, missing: Missing, met: MetStatements) -> None:
        """Take changes of a table in; what fails for good there is the table's error."""
        share = self._piece.shares[number]
        if share.peeks:
            self._peeked[number] = self._peeked.get(number, 0) + len(rows)
            return
        intake = self._of_table.get(number)
        if intake is None:
            intake = self._of_table[number] = _Intake(share, self._order(share))
        before = intake.bytes
        try:
            intake.take(rows, _prefix(self._piece, share, missing))
        except BackfillError as error:
            if error.retryable:
                raise
            met.error, intake.waiting, intake.bytes = error, [], 0
        self._bytes += intake.bytes - before
        self._read += len(rows)
        if self._piece.progress is not None:
            self._piece.progress.tell(self._read)
        if self._bytes > self._piece.memory:
            self._write_largest()

    def _write_largest(self) -> None:
        """Write those that hold most, until half of the memory is free."""
        for intake in sorted(self._of_table.values(), key=lambda each: each.bytes, reverse=True):
            if 2 * self._bytes <= self._piece.memory:
                return
            self._bytes -= intake.bytes
            intake.write(self._piece.part)

    def consumed(self, number: int, missing: Missing, met: MetStatements) -> PieceConsumed:
        """What became of a table; what it has waiting is written."""
        if met.error is not None:
            return PieceConsumed((), 0, 0, (), 0, refused=met.error)
        intake, peeked = self._of_table.get(number), self._peeked.get(number, 0)
        if intake is None and not peeked and met.cut is None and not met.passed:
            return self._not_met(missing)
        # A statement's own transaction is read again after the statement. Those after it were read for other tables.
        logged = tuple(each for each in missing.values() if met.cut is None or each.start.order <= met.cut.start)
        if intake is None:
            return PieceConsumed((), 0, peeked, logged, 0, met.cut, tuple(met.passed))
        intake.write(self._piece.part)
        return PieceConsumed(
            tuple(intake.receipts), intake.kept, intake.read, logged, intake.newest, met.cut, tuple(met.passed)
        )

    def _not_met(self, missing: Missing) -> PieceConsumed:
        """What became of a table of which the piece holds nothing: the same for all that share a sample."""
        found = self._nothing.get(id(missing))
        if found is None:
            found = self._nothing[id(missing)] = PieceConsumed((), 0, 0, tuple(missing.values()), 0)
        return found


def _prefix(piece: LogPiece, share: TableShare, missing: Missing) -> VisibleAt:
    """The visible prefix as far as this piece knows it."""
    if isinstance(share.visible, VisibleAt):
        return share.visible
    known = [share.prefix] if share.prefix is not None else []
    first = [next(iter(missing))] if missing else []
    return VisibleAt(min([piece.upto, *first, *known], key=lambda offset: offset.order))
