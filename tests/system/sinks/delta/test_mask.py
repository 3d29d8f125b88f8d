"""A merge by vectors rewrites nothing: old rows are masked, new ones are in one small file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.system.sinks.delta.overtaking import Meanwhile, staged
from tests.system.sinks.delta.test_sink import DELETE, FIRST, INSERT, PLAN, SECOND, THIRD, UPDATE, changes, read
from tests.tables import ORDERS, order, stored
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta import mask
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.epoch import Epoch

Files = Callable[[], dict[str, DataFile]]


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    made = DeltaSink(str(tmp_path / "target"), ORDERS, "job", creates=MergeMode.VECTORS)
    made.prepare()
    receipts = [read(made, n, *(order(10 * n + k) for k in range(10))) for n in range(3)]
    made.commit_reads(FIRST, receipts, [], PLAN)
    return made


@pytest.fixture
def files(tmp_path: Path) -> Files:
    log = DeltaLog(Storage.of(str(tmp_path / "target")), "", "the table")
    return lambda: {file.path: file for file in log.files(log.open(), ("id",))}


def gone(files: Files) -> dict[int, int]:
    """How many rows are gone of each file of the snapshot, by its lowest key."""
    return {int(str(file.low[0])): file.vector.cardinality for file in files().values() if file.vector}


def test_changed_rows_are_masked_and_nothing_is_written_again(sink: DeltaSink, files: Files, tmp_path: Path) -> None:
    before = set(files())
    sink.apply(SECOND, changes((UPDATE, 1, order(14, "new")), (DELETE, 2, order(25)), (INSERT, 3, order(99))))
    assert before < set(files()), "every file of the snapshot is still there"
    (new,) = set(files()) - before
    assert (files()[new].rows, files()[new].low, files()[new].high) == (2, (14,), (99,))
    assert gone(files) == {10: 1, 20: 1}
    expected = [order(n) for n in range(30) if n not in (14, 25)] + [order(14, "new"), order(99)]
    assert stored(tmp_path / "target") == sorted(expected, key=repr)


def test_a_row_that_is_gone_is_not_met_again(sink: DeltaSink, files: Files) -> None:
    sink.apply(SECOND, changes((DELETE, 1, order(14))))
    version = DeltaLog(Storage.of(str(sink.staging.path)), "", "the table").open().version
    sink.apply(THIRD, changes((DELETE, 1, order(14))))
    assert DeltaLog(Storage.of(str(sink.staging.path)), "", "the table").open().version == version
    sink.apply(Epoch(4), changes((INSERT, 1, order(14, "again"))))
    assert gone(files) == {10: 1}


def test_a_file_without_a_row_left_is_removed(sink: DeltaSink, files: Files, tmp_path: Path) -> None:
    sink.apply(SECOND, changes(*((DELETE, n, order(10 + n)) for n in range(10))))
    assert sorted(int(str(file.low[0])) for file in files().values()) == [0, 20]
    assert stored(tmp_path / "target") == sorted((order(n) for n in range(30) if not 10 <= n < 20), key=repr)


def test_a_merge_that_takes_much_of_a_file_writes_it_again_in_place(
    sink: DeltaSink, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)
    before = set(files())
    sink.apply(SECOND, changes((UPDATE, 1, order(14, "new")), (UPDATE, 2, order(15, "new")), (DELETE, 3, order(16))))
    assert gone(files) == {}
    (new,) = set(files()) - before
    assert (files()[new].rows, files()[new].low, files()[new].high) == (9, (10,), (19,))
    expected = [order(n, "new" if n in (14, 15) else "a") for n in range(30) if n != 16]
    assert stored(tmp_path / "target") == sorted(expected, key=repr)


def test_a_merge_that_takes_a_tenth_of_a_file_masks_it(
    sink: DeltaSink, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)
    sink.apply(SECOND, changes((UPDATE, 1, order(14, "new"))))
    assert gone(files) == {10: 1}


def test_a_merge_after_which_more_than_half_of_a_file_is_gone_writes_it_again(
    sink: DeltaSink, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)
    for number in range(5):
        sink.apply(Epoch(2 + number), changes((DELETE, 1, order(10 + number))))
        assert gone(files) == {10: number + 1}
    sink.apply(Epoch(7), changes((DELETE, 1, order(15))))
    assert gone(files) == {}
    assert sorted(file.rows or 0 for file in files().values()) == [4, 10, 10]
    assert stored(tmp_path / "target") == sorted((order(n) for n in range(30) if not 10 <= n < 16), key=repr)


def test_a_row_that_is_gone_does_not_come_back_when_its_file_is_written_again(
    sink: DeltaSink, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)
    sink.apply(SECOND, changes((UPDATE, 1, order(14, "second"))))
    # Key 14 is in the file at a row that is gone, and in the new one.
    sink.apply(THIRD, changes(*((UPDATE, n, order(n, "third")) for n in (12, 13, 14))))
    assert gone(files) == {}
    expected = [order(n, "third" if n in (12, 13, 14) else "a") for n in range(30)]
    assert stored(tmp_path / "target") == sorted(expected, key=repr)


def test_bytes_of_vectors_are_counted_over_commits_and_checkpoints(sink: DeltaSink, files: Files) -> None:
    sizes = 0
    for number in range(3):
        sink.apply(Epoch(2 + number), changes((DELETE, 1, order(10 + number))))
        (file,) = (file for file in files().values() if file.vector)
        assert file.vector is not None
        sizes += file.vector.size
        assert file.vector_bytes == sizes
    log = DeltaLog(Storage.of(str(sink.staging.path)), "job", "the table")

    DeltaTable(sink.staging.path).create_checkpoint()
    for commit in Path(sink.staging.path, "_delta_log").glob("*.json"):
        commit.unlink()
    (file,) = (file for file in log.files(log.open(), ("id",)) if file.vector)
    assert file.vector_bytes == sizes


def another(tmp_path: Path) -> DeltaSink:
    """A writer of the same table whose commits are no epochs of the job."""
    return DeltaSink(str(tmp_path / "target"), ORDERS, "other")


def test_a_row_that_goes_while_its_file_is_written_again_does_not_come_back(
    sink: DeltaSink, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)
    monkeypatch.setattr(mask, "REWRITE_IN_TASKS_BYTES", -1)
    run = Meanwhile(lambda: another(tmp_path).apply(FIRST, changes((DELETE, 1, order(17)))))
    sink.apply(SECOND, changes((UPDATE, 1, order(14, "new")), (UPDATE, 2, order(15, "new"))), run)
    assert run.asked == [1, 1], "the file has another vector now, so it is written once more"
    assert gone(files) == {}
    expected = [order(n, "new" if n in (14, 15) else "a") for n in range(30) if n != 17]
    assert stored(tmp_path / "target") == sorted(expected, key=repr)


def test_a_row_that_goes_while_others_of_its_file_are_looked_for_does_not_come_back(
    sink: DeltaSink, files: Files, tmp_path: Path
) -> None:
    run = Meanwhile(lambda: another(tmp_path).apply(FIRST, changes((DELETE, 1, order(17)))))
    sink.apply(SECOND, staged(sink, (UPDATE, 1, order(14, "new"))), run)
    assert run.asked == [1, 1, 0], "what was found in the file is right still"
    assert gone(files) == {10: 2}
    expected = [order(n, "new" if n == 14 else "a") for n in range(30) if n != 17]
    assert stored(tmp_path / "target") == sorted(expected, key=repr)


def test_a_row_that_is_gone_is_not_an_extreme_of_the_target(sink: DeltaSink) -> None:
    sink.apply(SECOND, changes((DELETE, 1, order(0)), (DELETE, 2, order(29))))
    assert sorted(sink.key_extremes()) == [(1,), (9,), (10,), (19,), (20,), (28,)]
