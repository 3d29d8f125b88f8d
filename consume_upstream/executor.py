"""Turns one epoch's stretch of the log into marked changes in the buffer (RisingWave: UpstreamTableExecutor).

What must be true: when the epoch's buffer commit has landed, every change in `(after, upto]` that no read has seen or
will see is in the buffer, under the epoch's id, and beside it the visibility that decided about the dropped ones. Why
it is:

- The stretch is cut at file starts, which are transaction boundaries, and each piece is read to its end or raises.
- Every piece is of the log that was sampled: the reader of the first file compares its identity in its own dump. Where
  there are more files, or no change at all, the identity is compared again when everything was read.
- A piece marks against the visible prefix *as far as it knows it*: it drops a change only if every transaction of its
  piece up to there is visible. Whether an earlier piece ends the prefix is known afterwards. If one does, the later
  pieces are consumed again with that prefix. Their first files were never committed and are swept up.
- A change of the key is two changes, a delete of the old key (half 0) and an insert of the new one (half 1).
- A statement that may change the table ends the stretch before it. What pieces after it have found or failed at does
  not count: their rows may have another definition. The note says where the stretch ended.

Example, four transactions in two files, t2 not visible yet: file 7 holds t1 t2 t3, file 8 holds t4. t3 sets key 3 to
`old`, t4 sets it to `new`. The first piece keeps t2 and t3, and reports t2 as missing. The second has dropped t4,
because a read will see it. Merged alone, t3 would overwrite the `new` that was read. So file 8 is consumed again with
the prefix ending before t2, and t4 is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext

from consume_upstream.buffer import BufferNote, BufferWriter, ChangeBuffer
from consume_upstream.key_order import KeyOrder, LendSession
from consume_upstream.log.batch import LogBatch
from consume_upstream.log.offset import (
    CdcOffset,
    LoggedTransaction,
    Visibility,
    VisibleAt,
    VisibleGtids,
    is_short_stretch,
    resolve,
)
from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mark import UpstreamMarks, mark_chunk, upstream_marks
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState, Intent
from progress.task_progress import TaskProgress
from vnode_backfill.sinks import FileReceipt
from vnode_backfill.spark.tasks import run_tasks
from vnode_backfill.words import change
from vnode_backfill.words.change import BEFORE_PREFIX, ChangeOp, Mark
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key_range import SplitPlan


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stretch of the log within one file, and everything a worker needs to buffer its changes. Can be pickled."""

    table: UpstreamTable
    plan: SplitPlan
    marks: UpstreamMarks
    visible: Visibility
    prefix: CdcOffset | None
    after: CdcOffset
    upto: CdcOffset
    reader: int
    writer: BufferWriter
    epoch: Epoch
    part: int
    memory: int
    progress: TaskProgress | None = None


@dataclass(frozen=True, slots=True)
class PieceConsumed:
    """What became of a piece: the files written, what was kept, and which transactions were not visible."""

    receipts: tuple[FileReceipt, ...]
    kept: int
    read: int
    missing: tuple[LoggedTransaction, ...]
    newest: int
    cut: LogCut | None = None
    passed: tuple[PassedStatement, ...] = ()
    error: BackfillError | None = None
    """Why the piece was not read to its end."""


class UpstreamTableExecutor:
    """Consumes the log epoch by epoch. Consuming an epoch again changes nothing.

    Where keys are text, a reader needs a second connection to ask for their order. In the driver it is lent one, in
    tasks it uses that of another reader. So `readers` is the most connections to the source, whatever the key.
    """

    def __init__(
        self, table: UpstreamTable, buffer: ChangeBuffer, *, readers: int, memory: int, lend: LendSession | None = None
    ) -> None:
        self._table, self._buffer, self._lend = table, buffer, lend
        self._readers, self._memory = readers, memory
        text = any(column.kind is Kind.STRING for column in table.definition.key_columns)
        self._tasks = readers // 2 if text else readers

    def use(self, definition: TableDefinition) -> None:
        """Read and buffer by this version of the definition from now on."""
        if definition != self._table.definition:
            self._table = self._table.with_definition(definition)

    def consume(
        self,
        spark: SparkContext | None,
        state: BackfillState,
        plan: SplitPlan,
        intent: Intent,
        progress: Callable[[int], TaskProgress | None] = lambda _part: None,
    ) -> BufferNote:
        """Buffer the changes of `(state.written, intent.written]` and commit them as the intent's epoch.

        The stretch ends before the first statement that may change the table. `progress` gives each piece the means to
        report how many changes it has read.
        """
        landed = self._buffer.landed(intent.epoch)
        if landed is not None:
            return landed
        pieces = [replace(piece, progress=progress(piece.part)) for piece in self._pieces(state, plan, intent)]
        run = partial(_consume_here, self._lend)
        if spark and self._tasks and not is_short_stretch(state.written, intent.written):
            run = partial(_consume_in_spark, spark, self._tasks)
        done = _up_to_cut(run(pieces))
        hole = _first_hole(done)
        if hole is not None and hole + 1 < len(done):
            prefix = done[hole].missing[0].start
            again = [replace(piece, prefix=prefix) for piece in pieces[hole + 1 : len(done)]]
            done = _up_to_cut([*done[: hole + 1], *run(again)])
        if len(pieces) != 1:
            self._table.check_log(intent.written)
        return self._commit(state, intent, done)

    def _pieces(self, state: BackfillState, plan: SplitPlan, intent: Intent) -> list[LogPiece]:
        stretches = self._table.log_stretches(state.written, intent.written)
        still = _still_missing(intent.visible, state.missing)
        return [
            LogPiece(
                table=self._table, plan=plan, marks=upstream_marks(state, plan), visible=intent.visible,
                prefix=still[0].start if still else None, after=after, upto=upto, reader=number % self._readers,
                writer=self._buffer.writer(self._table.definition), epoch=intent.epoch, part=number, memory=self._memory // self._readers,
            )
            for number, (after, upto) in enumerate(stretches)
        ]  # fmt: skip

    def _commit(self, state: BackfillState, intent: Intent, done: Sequence[PieceConsumed]) -> BufferNote:
        logged = [transaction for piece in done for transaction in piece.missing]
        found = partial(self._table.found_statement, state.written, intent.written)
        cut = found(done[-1].cut) if done and done[-1].cut else None
        visible, missing = resolve(intent.visible, state.missing, logged, cut.before if cut else intent.written)
        note = BufferNote(
            visible=visible, missing=missing, kept=sum(piece.kept for piece in done),
            read=sum(piece.read for piece in done), newest=max((piece.newest for piece in done), default=0),
            cut=cut, passed=tuple(found(each) for piece in done for each in piece.passed),
        )  # fmt: skip
        receipts = [receipt for piece in done for receipt in piece.receipts]
        # Without a change to keep there is nothing to commit: the log does not change, so a repeat finds the same note,
        # and meets the same statement.
        return self._buffer.commit(intent.epoch, receipts, note) if receipts else note


def _consume_here(lend: LendSession | None, pieces: Sequence[LogPiece]) -> list[PieceConsumed]:
    return [consume_piece(piece, lend) for piece in pieces]


def _consume_in_spark(spark: SparkContext, readers: int, pieces: Sequence[LogPiece]) -> list[PieceConsumed]:
    """One task per file, at most `readers` at a time: each holds one connection to the source."""
    lanes = [[piece for piece in pieces if piece.reader % readers == reader] for reader in range(readers)]
    lanes = [lane for lane in lanes if lane]
    done = [pair for pairs in run_tasks(spark, _consume_lane, lanes) for pair in pairs]
    return [consumed for _, consumed in sorted(done, key=lambda pair: pair[0])]


def _consume_lane(lane: Sequence[LogPiece]) -> list[tuple[int, PieceConsumed]]:
    return [(piece.part, consume_piece(piece)) for piece in lane]


def _up_to_cut(done: Sequence[PieceConsumed]) -> list[PieceConsumed]:
    """The pieces up to the first that met a statement; one before it that failed raises."""
    counted: list[PieceConsumed] = []
    for piece in done:
        if piece.error is not None:
            raise piece.error
        counted.append(piece)
        if piece.cut is not None:
            break
    return counted


def _first_hole(done: Sequence[PieceConsumed]) -> int | None:
    return next((number for number, piece in enumerate(done) if piece.missing), None)


def _still_missing(visible: Visibility, missing: Sequence[LoggedTransaction]) -> list[LoggedTransaction]:
    if isinstance(visible, VisibleAt):
        return []
    return [transaction for transaction in missing if not visible.covers_transaction(transaction.gtid)]


def consume_piece(piece: LogPiece, lend: LendSession | None = None) -> PieceConsumed:
    """Read, mark and write one piece in bounded memory: kept changes are written whenever they fill their share.

    What it fails at for good is part of the answer: it does not count if a piece before this one meets a statement.
    """
    try:
        return _consumed(piece, lend)
    except BackfillError as error:
        if error.retryable or piece.part == 0:
            raise
        return PieceConsumed((), 0, 0, (), 0, error=error)


def _consumed(piece: LogPiece, lend: LendSession | None) -> PieceConsumed:
    met = MetStatements()
    missing: dict[CdcOffset, LoggedTransaction] = {}
    receipts: list[FileReceipt] = []
    waiting: list[pa.Table] = []
    read = kept = newest = 0
    with KeyOrder(piece.table, piece.plan, lend) as order:
        for batch in piece.table.read_log(piece.after, piece.upto, piece.reader, met):
            _note_missing(piece, batch, missing)
            changes = changes_of(batch, piece.table.definition)
            read += len(batch)
            if piece.progress is not None:
                piece.progress.tell(read)
            newest = max(newest, int(batch.timestamp.max(initial=0)))
            if len(changes):
                waiting.append(_kept(piece, changes, order, _prefix(piece, missing)))
                kept += len(waiting[-1])
            if sum(table.nbytes for table in waiting) > piece.memory:
                receipts.append(_write(piece, len(receipts), waiting))
    if any(map(len, waiting)):
        receipts.append(_write(piece, len(receipts), waiting))
    return PieceConsumed(tuple(receipts), kept, read, tuple(missing.values()), newest, met.cut, tuple(met.passed))


def _write(piece: LogPiece, number: int, waiting: list[pa.Table]) -> FileReceipt:
    receipt = piece.writer.write(piece.epoch, piece.part * 10_000 + number, pa.concat_tables(waiting))
    waiting.clear()
    return receipt


def _note_missing(piece: LogPiece, batch: LogBatch, missing: dict[CdcOffset, LoggedTransaction]) -> None:
    if not isinstance(piece.visible, VisibleGtids):
        return
    for transaction in batch.transactions:
        if not piece.visible.covers_transaction(transaction.gtid):
            number, pos = transaction.start
            start = replace(piece.upto, number=number, pos=pos, log="")
            missing.setdefault(start, LoggedTransaction(transaction.gtid, start))


def _prefix(piece: LogPiece, missing: dict[CdcOffset, LoggedTransaction]) -> VisibleAt:
    """The visible prefix as far as this piece knows it."""
    if isinstance(piece.visible, VisibleAt):
        return piece.visible
    known = [piece.prefix] if piece.prefix is not None else []
    return VisibleAt(min([piece.upto, *missing, *known], key=lambda offset: offset.order))


def _kept(piece: LogPiece, changes: pa.Table, order: KeyOrder, visible: VisibleAt) -> pa.Table:
    """The changes that are not dropped, with their vnode and epoch."""
    keys = [changes.column(name).combine_chunks() for name in piece.table.definition.key]
    positions, vnodes = order.places(keys)
    file = changes.column(change.FILE).to_numpy()
    pos = changes.column(change.POS).to_numpy()
    marks = mark_chunk(piece.marks.view(visible), positions, vnodes, file, pos)
    changes = changes.append_column(change.VNODE, pa.array(vnodes, pa.int32()))
    changes = changes.append_column(change.EPOCH, pa.array(np.full(len(vnodes), piece.epoch, np.int64)))
    return changes.filter(pa.array(marks != Mark.DROP))


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
    take: Callable[[pa.Array], pa.Array] = partial(pc.take, indices=pa.array(rows))
    delete = op is ChangeOp.DELETE
    columns: dict[str, pa.Array] = dict(_offsets(batch, rows, op))
    for name in definition.arrow_schema.names:
        if delete and name not in definition.key:
            columns[name] = pa.nulls(len(rows), definition.column(name).arrow_type)
        else:
            columns[name] = take((batch.before if delete else batch.after).column(name))
    for name in definition.arrow_schema.names:
        kind = definition.column(name).arrow_type
        known = op is not ChangeOp.INSERT
        columns[BEFORE_PREFIX + name] = take(batch.before.column(name)) if known else pa.nulls(len(rows), kind)
    return pa.table(columns)


def _offsets(batch: LogBatch, rows: npt.NDArray[np.int64], op: ChangeOp) -> Iterator[tuple[str, pa.Array]]:
    count = len(rows)
    yield change.FILE, pa.array(np.full(count, batch.file, np.int64))
    yield change.POS, pa.array(batch.pos[rows].astype(np.int64))
    yield change.ROW, pa.array(batch.row[rows].astype(np.int64), pa.int64()).cast(pa.int32())
    yield change.HALF, pa.array(np.full(count, 0 if op is ChangeOp.DELETE else 1, np.int8))
    yield change.OP, pa.array(np.full(count, op, np.int8))
    yield change.TIMESTAMP, pa.array(batch.timestamp[rows].astype(np.int64))
