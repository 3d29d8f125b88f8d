"""The change buffer: each epoch once, read with little waste, gone when applied."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from consume_upstream.buffer import BufferFile, BufferNote, ChangeBuffer, buffer_schema
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from tests.tables import ORDERS, Change, change_table, order, table_of
from vnode_backfill.delta.files import FileReceipt
from vnode_backfill.words.change import FILE, POS, VNODE, ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, PlanRefusedError
from vnode_backfill.words.key import VnodeId

FIRST, SECOND = Epoch(1), Epoch(2)
INSERT, UPDATE, DELETE = ChangeOp


def at(pos: int, file: int = 1) -> CdcOffset:
    return CdcOffset("server", "binlog", file, pos, gtids="x:1-5")


NOTE = BufferNote(VisibleAt(at(9)), (LoggedTransaction("x:7", at(5)),), kept=2, read=3, newest=1_700_000_000)
OTHER = BufferNote(VisibleAt(at(1)), (), kept=0)


@pytest.fixture
def buffer(tmp_path: Path) -> ChangeBuffer:
    made = ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "job")
    made.prepare()
    return made


def write(buffer: ChangeBuffer, epoch: Epoch, changes: Sequence[Change], *, file: int = 1) -> FileReceipt:
    return buffer.writer().write(epoch, 0, change_table(ORDERS, changes, epoch=epoch, file=file))


def everything(buffer: ChangeBuffer, upto: CdcOffset, vnodes: int = 8) -> pa.Table:
    files = buffer.files({VnodeId(v): at(0) for v in range(vnodes)}, upto, vnodes, trusted_since=Epoch(0))
    return rows_of(buffer, files)


def rows_of(buffer: ChangeBuffer, files: Sequence[BufferFile]) -> pa.Table:
    reader = buffer.reader()
    return pa.Table.from_batches([batch for file in files for batch in reader.read(file)], schema=reader.schema)


def test_note_with_a_cut_is_not_one_that_earlier_releases_read() -> None:
    """They read version 1, know no cut, and would take the whole stretch of the log for captured."""
    cut = replace(NOTE, cut=FoundStatement(at(9), at(12), "TRUNCATE orders", "x:8", 1_700_000_000))
    assert json.loads(NOTE.to_json())["v"] == 1
    assert json.loads(cut.to_json())["v"] == 2
    assert BufferNote.from_json(cut.to_json()) == cut


def test_an_epoch_is_appended_once_and_the_note_that_landed_counts(buffer: ChangeBuffer) -> None:
    assert buffer.landed(FIRST) is None
    receipt = write(buffer, FIRST, [(INSERT, 3, order(1)), (DELETE, 4, order(2))])
    assert buffer.size().rows == 0
    assert buffer.commit(FIRST, [receipt], NOTE) == NOTE
    assert buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1))])], OTHER) == NOTE
    assert buffer.landed(FIRST) == NOTE
    size = buffer.size()
    assert (size.files, size.rows, size.bytes) == (1, 2, receipt.size)


def test_changes_come_back_as_they_were_written(buffer: ChangeBuffer) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1, "ä")), (DELETE, 4, order(2))])], NOTE)
    found = everything(buffer, at(99)).to_pylist()
    assert [(row["_op"], row[POS], row["id"], row["name"]) for row in found] == [
        (INSERT, 3, 1, "ä"),
        (DELETE, 4, 2, None),
    ]


def test_an_epoch_without_changes_writes_nothing(buffer: ChangeBuffer, tmp_path: Path) -> None:
    before = DeltaTable(tmp_path / "buffer").version()
    assert buffer.commit(FIRST, [], OTHER) == OTHER
    assert DeltaTable(tmp_path / "buffer").version() == before


def test_preparing_again_changes_nothing(buffer: ChangeBuffer, tmp_path: Path) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1))])], NOTE)
    ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "job").prepare()
    assert buffer.size().rows == 1


def test_a_job_of_another_id_does_not_find_the_epoch_done(buffer: ChangeBuffer, tmp_path: Path) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1))])], NOTE)
    assert ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "again").landed(FIRST) is None


def test_a_driver_that_was_replaced_cannot_append(tmp_path: Path) -> None:
    old, new = (ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "job", generation=number) for number in (1, 2))
    old.prepare()
    receipt = write(old, FIRST, [(INSERT, 3, order(1))])
    new.prepare()
    with pytest.raises(FencedError):
        old.commit(FIRST, [receipt], NOTE)
    assert new.size().rows == 0


def test_an_epoch_behind_the_one_in_the_buffer_is_refused(buffer: ChangeBuffer) -> None:
    buffer.commit(SECOND, [write(buffer, SECOND, [(INSERT, 3, order(1))])], NOTE)
    with pytest.raises(FencedError, match="epoch 2"):
        buffer.landed(FIRST)


def test_files_outside_the_asked_stretch_of_the_log_are_not_read(buffer: ChangeBuffer) -> None:
    for epoch, pos in ((1, 10), (2, 20), (3, 30)):
        buffer.commit(Epoch(epoch), [write(buffer, Epoch(epoch), [(INSERT, pos, order(pos))])], NOTE)
    files = buffer.files({VnodeId(0): at(10)}, at(20), 8, trusted_since=Epoch(0))
    assert rows_of(buffer, files).column("id").to_pylist() == [20]


def many(vnodes: int, each: int) -> pa.Table:
    """`each` changes of every vnode, as they come from the log: vnodes mixed."""
    table = change_table(ORDERS, [(INSERT, pos, order(pos)) for pos in range(1, vnodes * each + 1)])
    stored = pa.array(np.arange(len(table)) % vnodes, pa.int32())
    return table.set_column(table.schema.get_field_index(VNODE), VNODE, stored)


def test_reading_few_vnodes_skips_most_row_groups(buffer: ChangeBuffer) -> None:
    buffer.commit(FIRST, [buffer.writer().write(FIRST, 0, many(vnodes=256, each=160))], NOTE)
    files = buffer.files({VnodeId(v): at(0) for v in range(10)}, at(1 << 40), 256, trusted_since=Epoch(0))
    assert len(files) == 1
    found = rows_of(buffer, files)
    assert 10 * 160 <= found.num_rows <= 20_000
    assert buffer.files({VnodeId(0): at(1 << 40)}, at(1 << 41), 256, trusted_since=Epoch(0)) == []


def test_stored_vnodes_of_an_older_plan_are_not_believed(buffer: ChangeBuffer) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1))])], NOTE)
    wanted = {VnodeId(5): at(0)}
    assert buffer.files(wanted, at(9), 8, trusted_since=Epoch(0)) == []
    for since in (SECOND, None):
        (file,) = buffer.files(wanted, at(9), 8, trusted_since=since)
        assert rows_of(buffer, [file]).num_rows == 1


def test_trimming_removes_whole_files_at_or_below_the_offset(buffer: ChangeBuffer) -> None:
    for epoch, places in ((1, (10, 11)), (2, (12, 20)), (3, (21, 30))):
        rows: list[Change] = [(INSERT, pos, order(pos)) for pos in places]
        buffer.commit(Epoch(epoch), [write(buffer, Epoch(epoch), rows)], NOTE)
    assert buffer.trim(at(9)) == 0
    assert buffer.trim(at(20)) == 2
    assert buffer.trim(at(20)) == 0
    assert everything(buffer, at(99)).column(POS).to_pylist() == [21, 30]
    assert buffer.landed(Epoch(3)) == NOTE


def test_trimming_goes_by_the_number_of_the_log_file(buffer: ChangeBuffer) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 900, order(1))], file=999_999)], NOTE)
    buffer.commit(SECOND, [write(buffer, SECOND, [(INSERT, 4, order(2))], file=1_000_000)], NOTE)
    assert buffer.trim(at(3, file=1_000_000)) == 1
    assert everything(buffer, at(99, file=2_000_000)).column(FILE).to_pylist() == [1_000_000]


def test_appending_and_trimming_at_the_same_time_both_happen(buffer: ChangeBuffer, tmp_path: Path) -> None:
    buffer.commit(FIRST, [write(buffer, FIRST, [(INSERT, 3, order(1))])], NOTE)
    other = ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "job")
    stale = buffer._log.open()
    other.trim(at(5))
    with pytest.raises(Exception, match="commit"):
        buffer._log.commit(stale, "buffer", SECOND, [write(buffer, SECOND, [(INSERT, 7, order(2))])])
    buffer.commit(SECOND, [write(buffer, SECOND, [(INSERT, 7, order(2))])], NOTE)
    assert everything(buffer, at(99)).column(POS).to_pylist() == [7]


def test_writers_and_readers_can_be_sent_to_tasks(buffer: ChangeBuffer) -> None:
    writer, reader = (pickle.loads(pickle.dumps(each)) for each in (buffer.writer(), buffer.reader(before=True)))
    buffer.commit(FIRST, [writer.write(FIRST, 0, change_table(ORDERS, [(INSERT, 3, order(1))]))], NOTE)
    (file,) = buffer.files({VnodeId(0): at(0)}, at(9), 8, trusted_since=Epoch(0))
    assert [batch.num_rows for batch in reader.read(file)] == [1]
    assert "_before_id" in reader.schema.names


@pytest.mark.parametrize("name", ["_vnode", "_EPOCH", "_before_id"])
def test_columns_named_like_the_buffers_own_are_refused(name: str) -> None:
    with pytest.raises(PlanRefusedError, match=name.lower()):
        buffer_schema(table_of({"id": "int", name: "int"}, "id"))


def test_a_long_life_leaves_a_short_log(tmp_path: Path) -> None:
    buffer = ChangeBuffer(str(tmp_path / "buffer"), ORDERS, "job")
    buffer.prepare()
    for epoch in range(1, 121):
        buffer.commit(Epoch(epoch), [write(buffer, Epoch(epoch), [(INSERT, epoch, order(1))])], NOTE)
        buffer.trim(at(epoch - 1))
    size = buffer.size()
    assert (size.files, size.rows) == (1, 1)
    assert list((tmp_path / "buffer" / "_delta_log").glob("*.checkpoint*.parquet"))
    assert buffer.landed(Epoch(120)) == NOTE
