"""Folds and joins are due where they pay, and none of them waits for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from tests.system.sinks.delta.test_sink import DELETE, PLAN, changes, read
from tests.tables import ORDERS, order
from vnode_backfill.commands.compact import Tally, join_all
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, DeletionVector
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.due import due_files, fold_of, is_worn, next_reshapes
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.epoch import Epoch

MB = 1024 * 1024
POLICY = CompactionPolicy(128 * MB, small_files=200)


def file(name: str, size: int, *, gone: int = 0, written: int = 0, low: int = 0, high: int = 1000) -> DataFile:
    vector = DeletionVector("u", name, 1, 10, gone) if gone else None
    return DataFile(name, size, 1000, (low,), (high,), vector, written)


def test_a_file_is_folded_for_its_deleted_rows_or_for_the_bytes_of_its_vectors() -> None:
    assert not is_worn(file("fresh", 40 * MB))
    assert not is_worn(file("a little", 40 * MB, gone=99, written=40 * MB - 1))
    assert is_worn(file("a tenth", 40 * MB, gone=100))
    assert is_worn(file("as many bytes", 40 * MB, gone=1, written=40 * MB))
    assert not is_worn(file("too small", MB // 2, gone=900, written=MB - 1))


def test_the_most_worn_file_is_folded_with_the_small_ones_that_overlap_it() -> None:
    base, worse = file("base", 40 * MB, gone=100, high=500), file("worse", 40 * MB, gone=300, low=501)
    wide, beyond = file("wide", 10_000), file("beyond", 10_000, low=0, high=400)
    (fold,) = next_reshapes([base, worse, wide, beyond], POLICY)
    assert (fold.whole, fold.wide, fold.low, fold.high) == ((worse,), (wide,), 501, 1000)


def test_a_fold_takes_rows_of_no_more_wide_files_than_fit_into_memory() -> None:
    base = file("base", 400 * MB, gone=100)
    wide = [file(f"wide{n}", 20 * MB) for n in range(5)]
    assert len(fold_of(base, [base, *wide]).wide) == 1


def test_joins_come_first_where_many_wait() -> None:
    base = file("base", 40 * MB, gone=500)
    few = [file(f"f{n}", 10_000) for n in range(20)]
    many = [file(f"f{n}", 10_000) for n in range(70)]
    assert next_reshapes([base, *few], POLICY)[0].whole == (base,)
    assert len(next_reshapes([base, *many], POLICY)[0].whole) == 8
    assert next_reshapes(few[:7], POLICY) == ()


def test_files_of_about_the_same_size_are_joined_until_there_are_more_small_ones_than_the_policy_allows() -> None:
    tiers = [file(f"t{tier}-{n}", 10_000 * 8**tier, low=n, high=n) for tier in range(4) for n in range(5)]
    assert next_reshapes(tiers, CompactionPolicy(128 * MB, 20)) == ()
    (join,) = next_reshapes(tiers, CompactionPolicy(128 * MB, 19))
    assert len(join.whole) == due_files(tiers, CompactionPolicy(128 * MB, 19)) == 20
    few = [file(f"f{n}", 10_000, low=n, high=n) for n in range(9)]
    assert [len(next_reshapes(few, CompactionPolicy(128 * MB, n))[0].whole) for n in (1, 8, 9, 200)] == [9, 9, 8, 8]
    assert next_reshapes(few[:1], CompactionPolicy.on_request(128 * MB)) == ()
    assert len(next_reshapes(few[:2], CompactionPolicy.on_request(128 * MB))[0].whole) == 2


def test_compact_folds_every_file_that_has_lost_a_row(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "target"), ORDERS, "job", creates=MergeMode.VECTORS)
    sink.prepare()
    receipts = [read(sink, n, *(order(10 * n + k) for k in range(10))) for n in range(9)]
    sink.commit_reads(Epoch(1), receipts, [], PLAN)
    sink.apply(Epoch(2), changes(*((DELETE, n, order(10 * n)) for n in range(9))))
    join_all(sink, CompactionPolicy.on_request(1, folds_all=True))
    log = DeltaLog(Storage.of(str(tmp_path / "target")), "", "the table")
    assert [found.vector for found in log.files(log.open(), ())] == [None] * 9


def test_compact_joins_everything_though_its_first_step_comes_too_late(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "target"), ORDERS, "job", creates=MergeMode.VECTORS)
    sink.prepare()
    receipts = [read(sink, n, *(order(10 * n + k) for k in range(3))) for n in range(40)]
    sink.commit_reads(Epoch(1), receipts, [], PLAN)
    gone = changes(*((DELETE, k, order(k)) for k in range(3)))

    def while_a_file_goes() -> bool:
        sink.apply(Epoch(2), gone)
        return True

    policy, tally = replace(CompactionPolicy.on_request(128 * MB), most_files=4, step_bytes=1), Tally()
    late = sink.compact(policy, goes_on=while_a_file_goes)
    assert late is not None
    assert (late.removed, late.left) == (0, 39)
    tally.count(late)
    while not tally.is_enough and (step := sink.compact(policy)) is not None:
        tally.count(step)
    assert tally.removed >= 39
    log = DeltaLog(Storage.of(str(tmp_path / "target")), "", "the table")
    assert len(log.files(log.open(), ())) == 1


def test_another_retention_is_set_in_the_table_when_the_job_starts_again(tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    DeltaSink(target, ORDERS, "job", creates=MergeMode.VECTORS).prepare()
    DeltaSink(target, ORDERS, "job", retention=timedelta(hours=72)).prepare()
    log = DeltaLog(Storage.of(target), "", "the table")
    assert log.open().metadata.configuration["delta.logRetentionDuration"] == "interval 72 hours"
    version = log.open().version
    DeltaSink(target, ORDERS, "job", retention=timedelta(hours=72)).prepare()
    assert log.open().version == version
