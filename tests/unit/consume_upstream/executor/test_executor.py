"""A transaction that is not visible makes the later log files of its stretch be consumed again, so that no stale row
wins. A statement about the table ends the stretch, and nothing of the files after it counts.

The source is a log of two files in memory; executor, marks, buffer and merge are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.executor import UpstreamTableExecutor, _up_to_cut
from consume_upstream.log.batch import LogBatch, SharedBatch, Transaction
from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt, VisibleGtids
from consume_upstream.log.statement import FoundStatement, LogCut, MetStatements, PassedStatement
from consume_upstream.mark import merge_view
from consume_upstream.piece import PieceConsumed
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import Intent
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, at, beginning, plan_with
from vnode_backfill.merge.last_changes import MergeWindow, last_changes
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LogFormatError, SourceLostError, StateError

PLAN = plan_with(0, 10)
STATE = beginning(PLAN, pos=100)
END = at(20, number=2)
DAMAGED = LogFormatError("event is damaged")


@dataclass(frozen=True)
class Written:
    """One transaction that inserts one row; its event ends where the transaction does."""

    number: int
    start: CdcOffset
    key: int
    note: str

    @property
    def gtid(self) -> str:
        return f"{SERVER}:{self.number}"


@dataclass(frozen=True)
class LogInMemory:
    """The part of an upstream table that a consumer of the log asks: a batch for each transaction, ten bytes long."""

    log: tuple[Written, ...]
    definition: TableDefinition = DEFINITION
    cut: LogCut | None = None
    passed: tuple[PassedStatement, ...] = ()
    damaged: int = 0
    """The number of a file that cannot be read."""
    parents: tuple[CascadingParent, ...] = ()
    of_parents: tuple[LogInMemory, ...] = ()
    """A log for each parent."""
    parent_changed: tuple[int, int] | None = None
    """Where a statement about a parent ends."""

    def parent(self, parent: CascadingParent) -> LogInMemory:
        return self.of_parents[self.parents.index(parent)]

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """One piece for each file, as MySQL's log is cut."""
        starts = [after, *(at(4, number=number) for number in range(after.number + 1, upto.number + 1))]
        ends = [at(1000, number=start.number) for start in starts[:-1]]
        return list(zip(starts, [*ends, upto], strict=True))

    def read_together(
        self,
        tables: Sequence[LogInMemory],
        after: CdcOffset,
        upto: CdcOffset,
        reader: int,
        met: Sequence[MetStatements],
    ) -> Iterator[SharedBatch]:
        """Each table has a log of its own here; what they say of transactions is the same."""
        for number, (table, found) in enumerate(zip(tables, met, strict=True)):
            for batch in table.read_log(after, upto, reader, found):
                yield SharedBatch(number, batch)

    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int, met: MetStatements) -> Iterator[LogBatch]:  # noqa: ARG002
        if after.number == self.damaged:
            raise DAMAGED
        met.passed.extend(each for each in self.passed if after.order <= each.start < upto.order)
        if self.parent_changed and after.order < self.parent_changed <= upto.order:
            met.parent_changed = self.parent_changed
        if self.cut and after.order <= self.cut.start < upto.order:
            met.cut, upto = self.cut, at(self.cut.start[1], number=self.cut.start[0])
        return (batch_of(each) for each in self.log if after <= each.start < upto)

    def found_statement(self, after: CdcOffset, upto: CdcOffset, met: LogCut | PassedStatement) -> FoundStatement:  # noqa: ARG002
        (number, start), (_, end) = met.start, met.end
        return FoundStatement(at(start, number=number), at(end, number=number), met.text)

    def check_log(self, offset: CdcOffset) -> None:
        """The log in memory is always the same one."""


def batch_of(written: Written) -> LogBatch:
    start = written.start.order
    end = (start[0], start[1] + 10)
    return LogBatch(
        file=start[0],
        op=np.array([ChangeOp.INSERT], np.int8),
        pos=np.array([end[1]], np.uint64),
        row=np.zeros(1, np.uint32),
        timestamp=np.ones(1, np.uint32),
        before=pa.RecordBatch.from_pylist([{"id": None, "note": None}], schema=DEFINITION.arrow_schema),
        after=pa.RecordBatch.from_pylist([{"id": written.key, "note": written.note}], schema=DEFINITION.arrow_schema),
        transactions=(Transaction(written.gtid, start, end, timestamp=1),),
    )


def consumed(
    folder: Path, log: tuple[Written, ...], *, unseen: int, source: LogInMemory | None = None
) -> tuple[ChangeBuffer, BufferNote]:
    """The buffer after one epoch in which every transaction but one is visible."""
    buffer = ChangeBuffer(str(folder), DEFINITION, "job")
    buffer.prepare()
    seen = VisibleGtids(GtidSet.parse(",".join(each.gtid for each in log if each.number != unseen)))
    intent = Intent(Epoch(1), BarrierKind.CHECKPOINT, END, seen, ((0,),), 0)
    executor = UpstreamTableExecutor(cast(UpstreamTable, source or LogInMemory(log)), buffer, readers=1, memory=1 << 20)
    return buffer, executor.consume(None, STATE, PLAN, intent)


def merged(buffer: ChangeBuffer, note: BufferNote) -> dict[int, str]:
    """What the first merge writes if the range was read in epoch 1: the last unseen change of each key."""
    vnodes = tuple(replace(v, reads=((0, Epoch(1)),)) if PLAN.of_vnode(v.vnode) else v for v in STATE.vnodes)
    state = replace(STATE, vnodes=vnodes, visible=(*STATE.visible, (Epoch(1), note.visible)))
    applied = {vnode.vnode: vnode.applied for vnode in state.vnodes}
    files = buffer.files(applied, END, PLAN.vnode_count, trusted_since=None)
    reader = buffer.reader()
    batches = [batch for file in files for batch in reader.read(file)]
    window = MergeWindow(PLAN, merge_view(state, PLAN), applied, END)
    found = last_changes(batches, reader.schema, window)
    return {row["id"]: row["note"] for row in found.to_pylist()}


def test_a_hole_in_an_earlier_file_keeps_the_newest_row_of_a_later_one(tmp_path: Path) -> None:
    """Key 3 is `old` after the hole and `new` in the next file. The read sees `new`; `old` alone would overwrite it."""
    log = (
        Written(1, at(100), 1, "seen"),
        Written(2, at(110), 2, "the hole"),
        Written(3, at(120), 3, "old"),
        Written(4, at(4, number=2), 3, "new"),
    )
    buffer, note = consumed(tmp_path / "buffer", log, unseen=2)
    assert note.visible == VisibleAt(at(110))
    assert [transaction.gtid for transaction in note.missing] == [log[1].gtid]
    assert merged(buffer, note) == {2: "the hole", 3: "new"}


def test_without_a_hole_every_change_that_the_read_will_see_is_dropped(tmp_path: Path) -> None:
    log = (Written(1, at(100), 1, "seen"), Written(2, at(4, number=2), 3, "new"))
    buffer, note = consumed(tmp_path / "buffer", log, unseen=9)
    assert note.visible == VisibleAt(END)
    assert (note.read, note.kept) == (2, 0)
    assert merged(buffer, note) == {}


def test_a_hole_in_the_last_file_consumes_no_file_again(tmp_path: Path) -> None:
    log = (Written(1, at(100), 1, "seen"), Written(2, at(4, number=2), 3, "the hole"))
    buffer, note = consumed(tmp_path / "buffer", log, unseen=2)
    assert (note.read, note.kept) == (2, 1)
    assert merged(buffer, note) == {3: "the hole"}


LOG = (Written(1, at(100), 1, "before"), Written(2, at(120), 2, "after"), Written(3, at(4, number=2), 3, "after"))
CUT = LogCut((1, 110), (1, 120), "ALTER TABLE orders ADD c INT")
FOUND = FoundStatement(at(110), at(120), CUT.text)


def test_statement_ends_the_stretch_before_it(tmp_path: Path) -> None:
    """Nothing is visible, so every change is kept; those after the statement are not read."""
    log = tuple(replace(each, number=each.number + 10) for each in LOG)
    buffer, note = consumed(tmp_path / "buffer", LOG[:0], unseen=0, source=LogInMemory(log, cut=CUT))
    assert note.cut == FOUND
    assert (note.read, note.kept) == (1, 1)
    assert note.visible == VisibleAt(at(100))
    assert merged(buffer, note) == {1: "before"}


def test_visibility_ends_at_the_statement(tmp_path: Path) -> None:
    _, note = consumed(tmp_path / "buffer", LOG, unseen=9, source=LogInMemory(LOG, cut=CUT))
    assert note.visible == VisibleAt(at(110))
    assert (note.read, note.kept) == (1, 0)


def test_file_after_a_statement_may_be_unreadable(tmp_path: Path) -> None:
    _, note = consumed(tmp_path / "buffer", LOG, unseen=9, source=LogInMemory(LOG, cut=CUT, damaged=2))
    assert note.cut == FOUND


@pytest.mark.parametrize("damaged", [1, 2])
def test_unreadable_file_before_a_statement_or_without_one_is_an_error(damaged: int, tmp_path: Path) -> None:
    later = LogCut((2, 4), (2, 14), CUT.text)
    cut = later if damaged == 1 else None
    with pytest.raises(LogFormatError, match="event is damaged"):
        consumed(tmp_path / "buffer", LOG, unseen=9, source=LogInMemory(LOG, cut=cut, damaged=damaged))


def test_statements_that_were_passed_over_are_in_the_note_up_to_the_cut(tmp_path: Path) -> None:
    before = PassedStatement((1, 102), (1, 104), "CREATE INDEX i ON orders (note)")
    after = PassedStatement((2, 10), (2, 14), "CREATE INDEX j ON orders (note)")
    source = LogInMemory(LOG, cut=CUT, passed=(before, after))
    _, note = consumed(tmp_path / "buffer", LOG, unseen=9, source=source)
    assert note.passed == (FoundStatement(at(102), at(104), before.text),)


def test_epoch_that_was_cut_is_not_consumed_again(tmp_path: Path) -> None:
    """The log of a repeat may hold other statements by then, were it read."""
    log = tuple(replace(each, number=each.number + 10) for each in LOG)
    _, note = consumed(tmp_path / "buffer", LOG[:0], unseen=0, source=LogInMemory(log, cut=CUT))
    assert consumed(tmp_path / "buffer", LOG, unseen=9)[1] == note


def piece(*, cut: LogCut | None = None, failed: bool = False) -> PieceConsumed:
    return PieceConsumed((), 0, 0, (), 0, cut, error=DAMAGED if failed else None)


def test_pieces_count_up_to_the_first_that_met_a_statement() -> None:
    plain, cut = piece(), piece(cut=CUT)
    assert _up_to_cut([plain, cut, piece(cut=CUT), piece()]) == [plain, cut]
    assert _up_to_cut([plain, cut, piece(failed=True)]) == [plain, cut]
    assert _up_to_cut([plain, plain]) == [plain, plain]
    with pytest.raises(LogFormatError, match="event is damaged"):
        _up_to_cut([piece(failed=True), cut])


@dataclass(frozen=True)
class LostSource(LogInMemory):
    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int, met: MetStatements) -> Iterator[LogBatch]:
        if after.number == 2:
            raise SourceLostError("connection lost")
        return super().read_log(after, upto, reader, met)


def test_failure_that_may_pass_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceLostError, match="connection lost"):
        consumed(tmp_path / "buffer", LOG, unseen=9, source=LostSource(LOG, cut=CUT))


NOTE = BufferNote(VisibleAt(at(9)), (LoggedTransaction("x:7", at(5)),), kept=2, read=3, newest=1_700_000_000)


@pytest.mark.parametrize(
    "note",
    [
        NOTE,
        replace(NOTE, cut=FoundStatement(at(10, gtids="x:1-7"), at(20, gtids="x:1-8"), "ALTER TABLE ü", "x:8", 17)),
        replace(NOTE, passed=(FOUND, FoundStatement(at(1), at(2), "CREATE INDEX"))),
        replace(NOTE, cut=FOUND, passed=(FOUND,)),
    ],
)
def test_stored_note_is_read_back_unchanged(note: BufferNote) -> None:
    assert BufferNote.from_json(note.to_json()) == note


def test_note_without_a_statement_is_as_earlier_releases_wrote_it() -> None:
    assert "cut" not in NOTE.to_json()
    assert "passed" not in NOTE.to_json()


def test_note_of_a_later_release_is_refused() -> None:
    with pytest.raises(StateError, match="unknown version 3"):
        BufferNote.from_json(NOTE.to_json().replace('"v": 1', '"v": 3').replace('"v": 2', '"v": 3'))
