"""Tables that are consumed together get what each gets alone: its own epoch, marks, statement and error.

The logs are in memory; executor, marks and buffers are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.executor import ConsumeOrder, ReaderLot, UpstreamTableExecutor, consume_together
from consume_upstream.log.batch import SharedBatch
from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, VisibleGtids
from consume_upstream.log.statement import MetStatements
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import Intent
from tests.unit.consume_upstream.executor.test_executor import (
    CUT,
    END,
    FOUND,
    LOG,
    PLAN,
    STATE,
    LogInMemory,
    Written,
    merged,
)
from tests.unit.progress.state.state_examples import DEFINITION, at
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, LawBrokenError, LogFormatError

WRONG = LogFormatError("a row image of the log does not hold every column")


@dataclass(frozen=True)
class OneOfMany(LogInMemory):
    """A table that is read with others; `wrong` is what is wrong with it in each file of the log from one on."""

    wrong: tuple[int, BackfillError] | None = None
    reads: tuple[list[CdcOffset], ...] = ()
    """Notes the beginning of each stretch that is read for this table."""
    readers: tuple[list[int], ...] = ()
    """Notes the number of each reader."""

    def read_together(
        self,
        tables: Sequence[LogInMemory],
        after: CdcOffset,
        upto: CdcOffset,
        reader: int,
        met: Sequence[MetStatements],
    ) -> Iterator[SharedBatch]:
        for table, found in zip(tables, met, strict=True):
            assert isinstance(table, OneOfMany)
            for noted in table.reads:
                noted.append(after)
            for numbers in table.readers:
                numbers.append(reader)
            if table.wrong is not None and after.number >= table.wrong[0]:
                found.error = table.wrong[1]
        yield from super().read_together(tables, after, upto, reader, met)


def order(folder: Path, number: int, table: OneOfMany, seen: str = "") -> ConsumeOrder:
    """Each table has a buffer and an epoch of its own, and the same stretch."""
    buffer = ChangeBuffer(str(folder / f"{number}"), DEFINITION, "job")
    buffer.prepare()
    intent = Intent(Epoch(number + 1), BarrierKind.CHECKPOINT, END, VisibleGtids(GtidSet.parse(seen)), ((0,),), 0)
    executor = UpstreamTableExecutor(cast(UpstreamTable, table), buffer, readers=1, memory=1 << 20)
    return ConsumeOrder(executor, STATE, PLAN, intent)


def test_each_table_has_its_own_epoch_and_statement(tmp_path: Path) -> None:
    tables = (OneOfMany(LOG), OneOfMany(LOG, cut=CUT), OneOfMany(()))
    orders = [order(tmp_path, number, table) for number, table in enumerate(tables)]
    notes = consume_together(None, orders)
    assert [note.kept for note in notes if isinstance(note, BufferNote)] == [3, 1, 0]
    assert [note.cut for note in notes if isinstance(note, BufferNote)] == [None, FOUND, None]
    held = [each.executor.buffer.landed(Epoch(number + 1)) for number, each in enumerate(orders)]
    assert held == [notes[0], notes[1], None]


def test_missing_transactions_end_at_the_statement_of_the_table(tmp_path: Path) -> None:
    """Those after it were read for the other table. They are read again, and would count twice."""
    orders = [order(tmp_path, 0, OneOfMany(LOG)), order(tmp_path, 1, OneOfMany(LOG, cut=CUT))]
    whole, cut = consume_together(None, orders)
    assert isinstance(whole, BufferNote)
    assert isinstance(cut, BufferNote)
    assert [each.gtid for each in whole.missing] == [each.gtid for each in LOG]
    assert [each.gtid for each in cut.missing] == [LOG[0].gtid]


@pytest.mark.parametrize("file", [1, 2])
def test_table_that_cannot_be_read_is_an_answer_of_its_own(file: int, tmp_path: Path) -> None:
    orders = [order(tmp_path, 0, OneOfMany(LOG, wrong=(file, WRONG))), order(tmp_path, 1, OneOfMany(LOG))]
    error, note = consume_together(None, orders)
    assert error is WRONG
    assert isinstance(note, BufferNote)
    assert note.kept == 3
    assert orders[0].executor.buffer.landed(Epoch(1)) is None


def test_what_is_wrong_after_its_statement_does_not_count(tmp_path: Path) -> None:
    (note,) = consume_together(None, [order(tmp_path, 0, OneOfMany(LOG, cut=CUT, wrong=(2, WRONG)))])
    assert isinstance(note, BufferNote)
    assert note.cut == FOUND


def test_damaged_log_raises_for_all(tmp_path: Path) -> None:
    orders = [order(tmp_path, 0, OneOfMany(LOG, damaged=2)), order(tmp_path, 1, OneOfMany(LOG))]
    with pytest.raises(LogFormatError, match="event is damaged"):
        consume_together(None, orders)


def test_table_whose_epoch_has_landed_is_not_read_again(tmp_path: Path) -> None:
    first, second = OneOfMany(LOG, reads=([],)), OneOfMany(LOG, reads=([],))
    (before,) = consume_together(None, [order(tmp_path, 0, first)])
    once = len(first.reads[0])
    notes = consume_together(None, [order(tmp_path, 0, first), order(tmp_path, 1, second)])
    assert notes[0] == before
    assert (len(first.reads[0]), len(second.reads[0])) == (once, once)
    assert consume_together(None, [order(tmp_path, 0, first), order(tmp_path, 1, second)]) == notes
    assert (len(first.reads[0]), len(second.reads[0])) == (once, once)


def test_epoch_is_committed_once_also_if_nobody_looked_whether_it_had_landed(tmp_path: Path) -> None:
    first = replace(order(tmp_path, 0, OneOfMany(LOG)), may_have_landed=False)
    notes = consume_together(None, [first])
    assert consume_together(None, [first]) == notes
    assert first.executor.buffer.size().rows == 3


def test_files_after_a_hole_are_consumed_again_for_the_tables_that_have_it(tmp_path: Path) -> None:
    """The example of the executor, beside a table whose statement is before the second file."""
    log = (
        Written(1, at(100), 1, "seen"), Written(2, at(110), 2, "the hole"), Written(3, at(120), 3, "old"),
        Written(4, at(4, number=2), 3, "new"),
    )  # fmt: skip
    seen = ",".join(each.gtid for each in log if each.number != 2)
    tables = (OneOfMany(log, reads=([],)), OneOfMany(log, reads=([],), cut=replace(CUT, start=(1, 130), end=(1, 140))))
    orders = [order(tmp_path, number, table, seen) for number, table in enumerate(tables)]
    whole, cut = consume_together(None, orders)
    assert isinstance(whole, BufferNote)
    assert isinstance(cut, BufferNote)
    assert merged(orders[0].executor.buffer, whole) == {2: "the hole", 3: "new"}
    assert merged(orders[1].executor.buffer, cut) == {2: "the hole", 3: "old"}
    assert [len(table.reads[0]) for table in tables] == [3, 2]


def test_tables_with_different_stretches_are_refused(tmp_path: Path) -> None:
    one, other = order(tmp_path, 0, OneOfMany(LOG)), order(tmp_path, 1, OneOfMany(LOG))
    later = replace(other, state=replace(STATE, written=at(110)))
    with pytest.raises(LawBrokenError, match="different stretches"):
        consume_together(None, [one, later])


def test_memory_is_shared_by_the_tables(tmp_path: Path) -> None:
    """With room for nothing, every batch becomes a file of its own, and no change is lost."""
    orders = [order(tmp_path, number, OneOfMany(LOG)) for number in range(2)]
    for each in orders:
        each.executor.memory = 0
    notes = consume_together(None, orders)
    assert [note.kept for note in notes if isinstance(note, BufferNote)] == [3, 3]
    assert [each.executor.buffer.size().files for each in orders] == [3, 3]


def test_a_look_counts_what_concerns_the_table_and_keeps_nothing(tmp_path: Path) -> None:
    tables = (OneOfMany(LOG), OneOfMany(()), OneOfMany((), cut=CUT), OneOfMany(LOG))
    orders = [order(tmp_path, number, table) for number, table in enumerate(tables)]
    looks = [replace(each, peeks=True) for each in orders[:3]]
    notes = consume_together(None, [*looks, orders[3]])
    assert [note.read for note in notes if isinstance(note, BufferNote)] == [3, 0, 1, 3]
    assert [note.kept for note in notes if isinstance(note, BufferNote)] == [0, 0, 0, 3]
    written = [len(list((tmp_path / f"{number}").glob("**/*.parquet"))) for number in range(4)]
    assert [files > 0 for files in written] == [False, False, False, True]


def test_a_look_finds_the_transactions_that_are_not_visible_as_a_capture_does(tmp_path: Path) -> None:
    seen = LOG[0].gtid
    looked, captured = consume_together(
        None,
        [replace(order(tmp_path, 0, OneOfMany(()), seen), peeks=True), order(tmp_path, 1, OneOfMany(LOG), seen)],
    )
    assert isinstance(looked, BufferNote)
    assert isinstance(captured, BufferNote)
    assert looked.missing == captured.missing


def test_a_stretch_is_read_by_the_readers_that_it_was_given(tmp_path: Path) -> None:
    used: list[int] = []
    table = OneOfMany(LOG, readers=(used,))
    consume_together(None, [order(tmp_path, 0, table)], readers=ReaderLot(3, 1))
    assert set(used) == {3}
