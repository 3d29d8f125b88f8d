"""A transaction that is not visible makes the later log files of its stretch be consumed again, so that no stale row
wins.

The source is a log of two files in memory; executor, marks, buffer and merge are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.executor import UpstreamTableExecutor
from consume_upstream.log.batch import LogBatch, Transaction
from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, VisibleAt, VisibleGtids
from consume_upstream.mark import merge_view
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import Intent
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, at, beginning, plan_with
from vnode_backfill.merge.last_changes import MergeWindow, last_changes
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import BarrierKind, Epoch

PLAN = plan_with(0, 10)
STATE = beginning(PLAN, pos=100)
END = at(20, number=2)


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

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """One piece for each file, as MySQL's log is cut."""
        starts = [after, *(at(4, number=number) for number in range(after.number + 1, upto.number + 1))]
        ends = [at(1000, number=start.number) for start in starts[:-1]]
        return list(zip(starts, [*ends, upto], strict=True))

    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int = 0) -> Iterator[LogBatch]:  # noqa: ARG002
        return (batch_of(each) for each in self.log if after <= each.start < upto)

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


def consumed(folder: Path, log: tuple[Written, ...], *, unseen: int) -> tuple[ChangeBuffer, BufferNote]:
    """The buffer after one epoch in which every transaction but one is visible."""
    buffer = ChangeBuffer(str(folder), DEFINITION, "job")
    buffer.prepare()
    seen = VisibleGtids(GtidSet.parse(",".join(each.gtid for each in log if each.number != unseen)))
    intent = Intent(Epoch(1), BarrierKind.CHECKPOINT, END, seen, ((0,),), 0)
    executor = UpstreamTableExecutor(cast(UpstreamTable, LogInMemory(log)), buffer, readers=1, memory=1 << 20)
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
