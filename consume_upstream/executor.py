"""Turns one epoch's stretch of the log into marked changes in the buffer (RisingWave: UpstreamTableExecutor).

What must be true: when the epoch's buffer commit has landed, every change in `(after, upto]` that no read has seen or
will see is in the buffer, under the epoch's id, and beside it the visibility that decided about the dropped ones. Why
it is:

- The stretch is cut at file starts, which are transaction boundaries, and each piece is read to its end or raises.
- Every piece is of the log that was sampled: the reader of the first file compares its identity in its own dump. Where
  there are more files, or no change at all, the identity is compared again when everything was read.
- A piece marks against the visible prefix *as far as it knows it* (see `piece`). Whether an earlier piece ends the
  prefix is known afterwards. If one does, the later pieces are consumed again with that prefix. Their first files were
  never committed and are swept up.
- A statement that may change the table ends the stretch before it. What pieces after it have found or failed at does
  not count: their rows may have another definition. The note says where the stretch ended.

Example, four transactions in two files, t2 not visible yet: file 7 holds t1 t2 t3, file 8 holds t4. t3 sets key 3 to
`old`, t4 sets it to `new`. The first piece keeps t2 and t3, and reports t2 as missing. The second has dropped t4,
because a read will see it. Merged alone, t3 would overwrite the `new` that was read. So file 8 is consumed again with
the prefix ending before t2, and t4 is kept.

Tables with the same stretch are consumed together: the log is read once. All of the above holds for each of them as if
it were alone, with its own marks, epoch, buffer and statements. A table that cannot be read is an answer of its own,
and the others do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

from consume_upstream.buffer import BufferNote, BufferWriter, ChangeBuffer
from consume_upstream.key_order import LendSession
from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import (
    CdcOffset,
    LoggedTransaction,
    Visibility,
    VisibleAt,
    resolve,
)
from consume_upstream.log.statement import FoundStatement, LogCut, PassedStatement
from consume_upstream.mark import LazyMarks
from consume_upstream.piece import LogPiece, PieceConsumed, TableShare, consume_piece
from consume_upstream.upstream_table import UpstreamTable, is_read_by_driver
from progress.state.backfill_state import BackfillState, Intent
from progress.task_progress import TaskProgress
from vnode_backfill.spark.tasks import Spark, run_tasks
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.errors import BackfillError, LawBrokenError
from vnode_backfill.words.key_range import SplitPlan

__all__ = ["ConsumeOrder", "ReaderLot", "UpstreamTableExecutor", "consume_together"]

Answer = TypeVar("Answer")
ProgressOf = Callable[[int], TaskProgress | None]
Consumed = list[list[PieceConsumed]]
"""What became of each piece, and in it of each table."""
Find = Callable[[LogCut | PassedStatement], FoundStatement]


class UpstreamTableExecutor:
    """Consumes the log epoch by epoch. Consuming an epoch again changes nothing.

    Where keys are text, a reader needs a second connection to ask for their order. In the driver it is lent one, in
    tasks it uses that of another reader. So `readers` is the most connections to the source, whatever the key. Readers
    and memory are the job's: those who are consumed together have the same ones.
    """

    def __init__(
        self, table: UpstreamTable, buffer: ChangeBuffer, *, readers: int, memory: int, lend: LendSession | None = None
    ) -> None:
        self.table, self.buffer, self.lend = table, buffer, lend
        self.readers, self.memory = readers, memory
        self.has_text_key = any(column.kind is Kind.STRING for column in table.definition.key_columns)
        self._writer: BufferWriter | None = None

    def use(self, definition: TableDefinition) -> None:
        """Read and buffer by this version of the definition from now on."""
        if definition != self.table.definition:
            self.table, self._writer = self.table.with_definition(definition), None

    @property
    def writer(self) -> BufferWriter:
        if self._writer is None:
            self._writer = self.buffer.writer(self.table.definition)
        return self._writer

    def consume(
        self,
        spark: Spark | None,
        state: BackfillState,
        plan: SplitPlan,
        intent: Intent,
        progress: ProgressOf = lambda _part: None,
    ) -> BufferNote:
        """Buffer the changes of `(state.written, intent.written]` and commit them as the intent's epoch.

        The stretch ends before the first statement that may change the table. `progress` gives each piece the means to
        report how many changes it has read.
        """
        (outcome,) = consume_together(spark, [ConsumeOrder(self, state, plan, intent)], progress)
        if isinstance(outcome, BackfillError):
            raise outcome
        return outcome


@dataclass(frozen=True, slots=True)
class ConsumeOrder:
    """One table's part of what is consumed together: its state, plan and intent, each with its own epoch."""

    executor: UpstreamTableExecutor
    state: BackfillState
    plan: SplitPlan
    intent: Intent
    may_have_landed: bool = True
    """False where nobody can have consumed the epoch before, such as a first try of an intent made in this process.

    Looking costs a listing of each buffer. The commit looks in any case, so that nothing is committed twice.
    """
    peeks: bool = False
    """Whether the log is only looked at: what is found is counted, and nothing is kept. That needs no intent."""

    def landed(self) -> BufferNote | None:
        return self.executor.buffer.landed(self.intent.epoch) if self.may_have_landed else None

    @property
    def stretch(self) -> tuple[CdcOffset, CdcOffset]:
        return self.state.written, self.intent.written

    def has_stretch_of(self, other: ConsumeOrder) -> bool:
        """Whether both read the same stretch. Looks for tables at the same offset have it in common."""
        if self.state is other.state and self.intent is other.intent:
            return True
        return self.stretch == other.stretch

    def share(self) -> TableShare:
        still = _still_missing(self.intent.visible, self.state.missing)
        return TableShare(
            table=self.executor.table, plan=self.plan, marks=LazyMarks(self.state, self.plan),
            visible=self.intent.visible, prefix=still[0].start if still else None,
            writer=self.executor.writer, epoch=self.intent.epoch, peeks=self.peeks, parents=self._parents,
        )  # fmt: skip

    def looked(self, done: Sequence[PieceConsumed]) -> BufferNote:
        """What a look at the log has found: nothing is kept, and nothing is committed."""
        logged = [transaction for piece in done for transaction in piece.missing]
        visible, missing = resolve(self.intent.visible, self.state.missing, logged, self.intent.written)
        return BufferNote(visible, missing, kept=0, read=sum(piece.met for piece in done))

    @property
    def _parents(self) -> tuple[CascadingParent, ...]:
        """None where a new copy has to follow anyway: it sees what cascades before it begins, and looks from there."""
        return self.executor.table.parents if self.state.schema.cascaded is None else ()

    def commit(self, done: Sequence[PieceConsumed], found: Find) -> BufferNote:
        """Make the changes of the epoch visible, with a note of how far the log was read and what was dropped."""
        logged = [transaction for piece in done for transaction in piece.missing]
        cut = found(done[-1].cut) if done and done[-1].cut else None
        upto = cut.before if cut else self.intent.written
        visible, missing = resolve(self.intent.visible, self.state.missing, logged, upto)
        note = BufferNote(
            visible=visible, missing=missing, kept=sum(piece.kept for piece in done),
            read=sum(piece.read for piece in done), newest=max((piece.newest for piece in done), default=0),
            cut=cut, passed=tuple(found(each) for piece in done for each in piece.passed),
            cascaded=self._cascaded(done),
        )  # fmt: skip
        receipts = [receipt for piece in done for receipt in piece.receipts]
        # Without a change to keep there is nothing to commit: the log does not change, so a repeat finds the same note,
        # and meets the same statement.
        return self.executor.buffer.commit(self.intent.epoch, receipts, note) if receipts else note

    def _cascaded(self, done: Sequence[PieceConsumed]) -> CdcOffset | None:
        found = max((piece.cascaded for piece in done if piece.cascaded is not None), default=None)
        return None if found is None else replace(self.intent.written, number=found[0], pos=found[1], gtids="", log="")


@dataclass(frozen=True, slots=True)
class ReaderLot:
    """The readers that a stretch may use: so many, from this number on. Two stretches at once have different ones."""

    first: int
    count: int


def consume_together(
    spark: Spark | None,
    orders: Sequence[ConsumeOrder],
    progress: ProgressOf = lambda _part: None,
    *,
    readers: ReaderLot | None = None,
) -> list[BufferNote | BackfillError]:
    """Buffer one stretch of the log for several tables, and commit each under its own epoch; an answer for each order.

    `readers` are those that it may use, without it all that the job has.

    Demands that all have the same stretch, on one server. An error in place of a note is about that table alone:
    nothing of its epoch is known to be committed. What is wrong with the log raises; the epochs of some tables may be
    committed by then. Calling it again with the same orders reads only for those that are not.
    """
    if not all(order.has_stretch_of(orders[0]) for order in orders):
        raise LawBrokenError("tables with different stretches of the log cannot be read together")
    landed = {number: _alone(order.landed, len(orders)) for number, order in enumerate(orders)}
    left = [number for number, note in landed.items() if note is None]
    lot = readers or ReaderLot(0, orders[0].executor.readers)
    done = dict(zip(left, _consume(spark, [orders[number] for number in left], progress, lot), strict=True))
    return [landed[number] or done[number] for number in range(len(orders))]


def _consume(
    spark: Spark | None, orders: Sequence[ConsumeOrder], progress: ProgressOf, readers: ReaderLot
) -> list[BufferNote | BackfillError]:
    if not orders:
        return []
    pieces = [replace(piece, progress=progress(piece.part)) for piece in _pieces(orders, readers)]
    run = _runner(spark, orders, readers)
    done = run(pieces)
    _consume_again(run, pieces, done)
    counted = [_up_to_cut([piece[number] for piece in done]) for number in range(len(orders))]
    table, stretch = orders[0].executor.table, orders[0].stretch
    if len(pieces) != 1:
        table.check_log(stretch[1])
    # One statement may end what is read of many tables, and finding its offsets may read the log again.
    found = cache(partial(table.found_statement, *stretch))
    answers: list[BufferNote | BackfillError] = []
    looks = _Looks()
    for order, part in zip(orders, counted, strict=True):
        looked: Callable[[], BufferNote] = partial(looks.note_of, order, part)
        commit = looked if order.peeks else partial(order.commit, part, found)
        refused = _refused(part)
        answers.append(_alone(commit, len(orders)) if refused is None else refused)
    return answers


class _Looks:
    """Notes of looks at the log. Tables that rest at one offset and are not met have one note in common."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], BufferNote] = {}
        """By the identities of all that a note is made of, which live for as long as this."""

    def note_of(self, order: ConsumeOrder, done: Sequence[PieceConsumed]) -> BufferNote:
        made_of = (id(order.state), id(order.intent), *map(id, done))
        note = self._known.get(made_of)
        if note is None:
            note = self._known[made_of] = order.looked(done)
        return note


def _alone(work: Callable[[], Answer], tables: int) -> Answer | BackfillError:
    """What goes wrong with one buffer of several is about its table alone; a table by itself raises."""
    try:
        return work()
    except BackfillError as error:
        if tables == 1:
            raise
        return error


def _pieces(orders: Sequence[ConsumeOrder], readers: ReaderLot) -> list[LogPiece]:
    first, shares = orders[0].executor, tuple(order.share() for order in orders)
    return [
        LogPiece(
            shares=shares, after=after, upto=upto, reader=readers.first + number % readers.count, part=number,
            memory=first.memory // first.readers,
        )
        for number, (after, upto) in enumerate(first.table.log_stretches(*orders[0].stretch))
    ]  # fmt: skip


def _runner(
    spark: Spark | None, orders: Sequence[ConsumeOrder], readers: ReaderLot
) -> Callable[[Sequence[LogPiece]], Consumed]:
    """A short stretch is read in the driver, a long one in tasks, of which each may need a second connection."""
    first = orders[0].executor
    tasks = readers.count // 2 if any(order.executor.has_text_key for order in orders) else readers.count
    if spark and tasks and not is_read_by_driver(*orders[0].stretch, first.table.held_log):
        return partial(_consume_in_spark, spark, tasks)
    return partial(_consume_here, first.lend)


def _consume_here(lend: LendSession | None, pieces: Sequence[LogPiece]) -> Consumed:
    return [consume_piece(piece, lend) for piece in pieces]


def _consume_in_spark(spark: Spark, readers: int, pieces: Sequence[LogPiece]) -> Consumed:
    """One task per file, at most `readers` at a time: each holds one connection to the source."""
    lanes = [[piece for piece in pieces if piece.reader % readers == reader] for reader in range(readers)]
    lanes = [lane for lane in lanes if lane]
    done = [pair for pairs in run_tasks(spark, _consume_lane, lanes) for pair in pairs]
    return [consumed for _, consumed in sorted(done, key=lambda pair: pair[0])]


def _consume_lane(lane: Sequence[LogPiece]) -> list[tuple[int, list[PieceConsumed]]]:
    return [(piece.part, consume_piece(piece)) for piece in lane]


def _consume_again(run: Callable[[Sequence[LogPiece]], Consumed], pieces: Sequence[LogPiece], done: Consumed) -> None:
    """Consume the pieces after a hole again, for the tables that have it, with the prefix that ends before it."""
    repeats = _repeats(done)
    again = [
        replace(pieces[part], shares=tuple(replace(pieces[part].shares[n], prefix=start) for n, start in of.items()))
        for part, of in repeats.items()
    ]
    for (part, of), consumed in zip(repeats.items(), run(again), strict=True):
        for number, each in zip(of, consumed, strict=True):
            done[part][number] = each


def _repeats(done: Consumed) -> dict[int, dict[int, CdcOffset]]:
    """By piece and table, where the visible prefix ends in a piece before it."""
    found: dict[int, dict[int, CdcOffset]] = {}
    for number in range(len(done[0]) if done else 0):
        counted = _up_to_cut([piece[number] for piece in done])
        hole = _first_hole(counted)
        if hole is not None and _refused(counted) is None:
            for part in range(hole + 1, len(counted)):
                found.setdefault(part, {})[number] = counted[hole].missing[0].start
    return dict(sorted(found.items()))


def _up_to_cut(done: Sequence[PieceConsumed]) -> list[PieceConsumed]:
    """A table's pieces up to the first that met a statement, or could not be read; a log that failed before raises."""
    counted: list[PieceConsumed] = []
    for piece in done:
        if piece.error is not None:
            raise piece.error
        counted.append(piece)
        if piece.cut is not None or piece.refused is not None:
            break
    return counted


def _refused(counted: Sequence[PieceConsumed]) -> BackfillError | None:
    return counted[-1].refused if counted else None


def _first_hole(done: Sequence[PieceConsumed]) -> int | None:
    return next((number for number, piece in enumerate(done) if piece.missing), None)


def _still_missing(visible: Visibility, missing: Sequence[LoggedTransaction]) -> list[LoggedTransaction]:
    if isinstance(visible, VisibleAt):
        return []
    return [transaction for transaction in missing if not visible.covers_transaction(transaction.gtid)]
