"""A new copy is made beside the table and takes its place in one commit, rows, vectors and marks included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable

from devkit.lake import read_lake
from devkit.object_store import ObjectStore
from tests.tables import table_of
from tests.unit.sinks.delta.shapes import ITEMS, NO_PLAN, Cells, carried, column, items, lake, merge, read, rows
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.copies import discard_copies, has_copy
from vnode_backfill.delta.storage import Storage, StoredFile
from vnode_backfill.delta.sweep import Sweep
from vnode_backfill.sinks.delta import place
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.place import is_beside
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError
from vnode_backfill.words.schema_change import AddColumn, TableShape

THINGS = table_of({"code": "varchar(20)", "size": "double"}, "code")
A: Cells = {"code": "a", "size": 1.0}
B: Cells = {"code": "b", "size": 2.0}
C: Cells = {"code": "c", "size": 3.0}
OLD: Cells = {"id": 1, "name": "old", "count": 1, "price": 1.0}


def beside(
    folder: Path, mode: MergeMode = MergeMode.VECTORS, job: str = "new", generation: int = 1,
    definition: TableDefinition = THINGS,
) -> DeltaSink:  # fmt: skip
    """The new job's sink, as whoever opens the job finds it."""
    path = str(folder / "target")
    return DeltaSink(
        path, definition, job, creates=mode, key_cache=0, target_file_size=20_000, generation=generation,
        retention=timedelta(hours=1), beside=is_beside(Storage.of(path), job) or not (folder / "target/_copies" / job).exists(),
    )  # fmt: skip


@pytest.fixture(params=MergeMode)
def mode(request: pytest.FixtureRequest) -> MergeMode:
    return MergeMode(request.param)


@pytest.fixture
def copy(tmp_path: Path, mode: MergeMode) -> DeltaSink:
    """The old table has one row. The copy has b and c; a was deleted, and b was changed."""
    read(items(tmp_path, mode), 1, ITEMS, OLD)
    made = beside(tmp_path, mode)
    made.prepare()
    read(made, 1, THINGS, A, {**B, "size": 0.0}, C)
    merge(made, 2, THINGS, B, delete=[A])
    return made


def things(folder: Path) -> list[Cells]:
    return [dict(row) for row in lake(folder, by="code")]


def test_readers_see_the_old_table_until_the_copy_is_in_place(copy: DeltaSink, tmp_path: Path) -> None:
    assert (copy.is_beside, lake(tmp_path)) == (True, [OLD])
    copy.put_in_place()
    assert (copy.is_beside, things(tmp_path)) == (False, [B, C])
    assert polars.scan_delta(str(tmp_path / "target")).sort("code").collect().to_dicts() == [B, C]


def test_one_commit_puts_it_in_place(copy: DeltaSink, tmp_path: Path) -> None:
    before = DeltaTable(str(tmp_path / "target")).version()
    copy.put_in_place()
    copy.put_in_place()
    assert DeltaTable(str(tmp_path / "target")).version() == before + 1


def test_the_job_goes_on_in_the_table(copy: DeltaSink, tmp_path: Path) -> None:
    copy.put_in_place()
    merge(copy, 3, THINGS, {**C, "size": 9.0}, A, delete=[B])
    assert things(tmp_path) == [A, {**C, "size": 9.0}]
    for _ in range(3):
        copy.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    assert things(tmp_path) == [A, {**C, "size": 9.0}]


def test_what_landed_beside_has_landed(copy: DeltaSink, tmp_path: Path) -> None:
    """A driver that dies after the last epoch's commit beside asks for its receipts in the table."""
    receipt = copy.writer().write(Epoch(5), 3, 0, [rows(THINGS, [{"code": "d", "size": 4.0}])])
    copy.commit_reads(Epoch(5), [receipt], [], NO_PLAN)
    copy.put_in_place()
    again = beside(tmp_path, generation=2)
    again.prepare()
    assert not again.is_beside
    (landed,), replaced = again.landed_reads(Epoch(5))[0] or (), again.landed_reads(Epoch(5))[1]
    assert (landed.ordinal, landed.rows, replaced) == (3, 1, None)
    assert (tmp_path / "target" / landed.files[0].path).exists()
    assert again.commit_reads(Epoch(5), [receipt], [], NO_PLAN) == (landed,)
    assert not again.merged(Epoch(5))
    with pytest.raises(FencedError):
        again.merged(Epoch(1))
    assert [row["code"] for row in things(tmp_path)] == ["b", "c", "d"]


def test_a_crash_before_the_commit_leaves_the_copy_beside(
    copy: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(DeltaLog, "take_in", killed)
        with pytest.raises(KeyboardInterrupt):
            copy.put_in_place()
    again = beside(tmp_path, generation=2)
    again.prepare()
    assert (again.is_beside, lake(tmp_path)) == (True, [OLD])
    merge(again, 3, THINGS, A)
    again.put_in_place()
    assert things(tmp_path) == [A, B, C]


def test_a_crash_after_the_commit_finds_the_table(copy: DeltaSink, tmp_path: Path) -> None:
    place.put_in_place(copy._home, copy._log)
    again = beside(tmp_path, generation=2)
    again.prepare()
    assert not again.is_beside
    again.put_in_place()
    merge(again, 3, THINGS, A)
    assert things(tmp_path) == [A, B, C]


def test_a_driver_that_slept_cannot_put_it_in_place(copy: DeltaSink, tmp_path: Path) -> None:
    """Else what its successor has committed beside since would be lost."""
    again = beside(tmp_path, generation=2)
    again.prepare()
    copy._log.held.table = None
    with pytest.MonkeyPatch.context() as blind:
        # It has looked at the copy before its successor came.
        blind.setattr(type(copy._log), "check_generation", _only_of(copy._home, type(copy._log).check_generation))
        with pytest.raises(FencedError):
            copy.put_in_place()
    merge(again, 3, THINGS, A)
    again.put_in_place()
    assert things(tmp_path) == [A, B, C]


def _only_of(home: DeltaLog, check: object) -> object:
    def checked(log: DeltaLog, table: object) -> None:
        if log.storage == home.storage:
            check(log, table)  # type: ignore[operator]

    return checked


def test_a_successor_notices_that_it_was_put_in_place_meanwhile(copy: DeltaSink, tmp_path: Path) -> None:
    again = beside(tmp_path, generation=2)
    copy.put_in_place()
    again.prepare()
    assert not again.is_beside


def test_the_job_before_can_write_no_more(copy: DeltaSink, tmp_path: Path, mode: MergeMode) -> None:
    before = DeltaSink(str(tmp_path / "target"), ITEMS, "job", creates=mode, generation=7)
    copy.put_in_place()
    with pytest.raises(FencedError):
        merge(before, 2, ITEMS, OLD)


def test_what_the_table_promises_stays(copy: DeltaSink, tmp_path: Path) -> None:
    old = DeltaLog(Storage.of(str(tmp_path / "target")), "job", "the table", 1)
    table = old.open()
    old.redefine(table, table.protocol, {"mine": "yes", "vnodeBackfill.keptColumns": '["size"]'})
    before = old.open()
    copy.put_in_place()
    after = old.open()
    assert (after.metadata.id, after.metadata.configuration["mine"]) == (before.metadata.id, "yes")
    assert "vnodeBackfill.keptColumns" not in after.metadata.configuration
    assert after.metadata.configuration["delta.dataSkippingStatsColumns"].startswith("`code`")
    assert after.protocol == copy._log.open().protocol


def test_columns_change_beside_and_in_place(copy: DeltaSink, tmp_path: Path) -> None:
    shape = TableShape(THINGS)
    first, second = AddColumn(column("x", "int"), "1"), AddColumn(column("y", "int"), "2")
    columns = {"code": "varchar(20)", "size": "double", "x": "int"}
    shape = carried(shape, columns, first, key=("code",))
    copy.change(1, shape, [first])
    copy.put_in_place()
    assert copy.schema_version() == 1
    shape = carried(shape, {**columns, "y": "int"}, second, key=("code",))
    copy.change(2, shape, [second])
    assert things(tmp_path) == [{**B, "x": 1, "y": 2}, {**C, "x": 1, "y": 2}]


def test_a_table_with_vectors_becomes_one_without(tmp_path: Path) -> None:
    """A reader without vectors must not meet commits that it does not know."""
    read(items(tmp_path, MergeMode.VECTORS), 1, ITEMS, OLD)
    made = beside(tmp_path, MergeMode.REWRITE)
    made.prepare()
    read(made, 1, THINGS, A)
    made.put_in_place()
    assert DeltaTable(str(tmp_path / "target")).to_pyarrow_table().to_pylist() == [A]
    assert list((tmp_path / "target/_delta_log").glob("*.checkpoint.parquet"))


def test_copies_that_were_given_up_go_and_no_others(copy: DeltaSink, tmp_path: Path, mode: MergeMode) -> None:
    table = Storage.of(str(tmp_path / "target"))
    copy.put_in_place()
    given_up, next_one = beside(tmp_path, mode, "third"), beside(tmp_path, mode, "fourth")
    given_up.prepare()
    next_one.prepare()
    assert discard_copies(table, {"fourth", "new"}) == ["third"]
    assert (has_copy(table, "third"), has_copy(table, "fourth")) == (False, True)
    assert things(tmp_path) == [B, C]


def stored_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def aged(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """The sweep believes that so many days went by."""
    unneeded = Sweep.unneeded

    def later(self: Sweep, *given: object) -> list[str]:
        moved = Sweep(datetime.now(UTC) + timedelta(days=days), self.retention, self.newest_epoch, self.placed)
        return unneeded(moved, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Sweep, "unneeded", later)


def test_a_sweep_leaves_a_copy_in_progress_alone(
    copy: DeltaSink, tmp_path: Path, mode: MergeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(monkeypatch, days=30)
    before = stored_files(tmp_path / "target/_copies")
    items(tmp_path, mode).sweep()
    assert stored_files(tmp_path / "target/_copies") == before
    copy.sweep()
    copy.put_in_place()
    assert things(tmp_path) == [B, C]


def test_a_sweep_removes_what_a_copy_in_place_no_longer_needs(
    copy: DeltaSink, tmp_path: Path, mode: MergeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.put_in_place()
    (tmp_path / "target/_copies/new/e9-r1-a0-never-committed.parquet").write_bytes(b"x")
    merge(copy, 3, THINGS, {**B, "size": 7.0}, {**C, "size": 8.0})
    now = stored_files(tmp_path / "target")
    copy.sweep()
    assert stored_files(tmp_path / "target") == now
    aged(monkeypatch, days=2)
    copy.sweep()
    left = stored_files(tmp_path / "target")
    live = {
        Path(uri).relative_to(tmp_path / "target").as_posix()
        for uri in DeltaTable(str(tmp_path / "target")).file_uris()
    }
    assert {path for path in left if path.endswith(".parquet") and not path.startswith("_delta_log")} == live
    assert not any(path.startswith("_copies/new/_delta_log") for path in left)
    assert things(tmp_path) == [{**B, "size": 7.0}, {**C, "size": 8.0}]


def test_whoever_still_believes_to_be_beside_sweeps_nothing(
    copy: DeltaSink, tmp_path: Path, mode: MergeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction of the copy's own log, after it was put in place, must not remove files that the table names."""
    other = beside(tmp_path, mode)
    copy.put_in_place()
    other.compact(CompactionPolicy.on_request(20_000, folds_all=True))
    aged(monkeypatch, days=30)
    assert other.sweep() == []
    assert things(tmp_path) == [B, C]


@pytest.mark.parametrize(
    ("path", "looked_at"),
    [
        ("_copies/new/a.parquet", True), ("_copies/new/_dv/v.bin", True), ("_copies/new/_delta_log/0.json", True),
        ("_copies/new/_staged/x.parquet", False), ("_copies/other/a.parquet", False), ("_copies/new", False),
        ("_dv/v.bin", True), ("_staged/x.parquet", False), ("a.parquet", True),
    ],
)  # fmt: skip
def test_which_files_a_sweep_looks_at(path: str, looked_at: bool) -> None:
    now = datetime(2024, 5, 1, tzinfo=UTC)
    sweep = Sweep(now, timedelta(hours=1), 0, frozenset({"new"}))
    file = StoredFile(path, now - timedelta(days=9))
    assert sweep._is_looked_at(file.path) == looked_at


def test_copies_live_in_an_object_store() -> None:
    with ObjectStore("bucket") as store:
        path = f"{store.url}/lake/things"

        def sink(job: str, *, beside: bool) -> DeltaSink:
            return DeltaSink(
                path, THINGS, job, creates=MergeMode.VECTORS, key_cache=0, storage_options=store.options, beside=beside,
                retention=timedelta(hours=1),
            )  # fmt: skip

        old, copy, given_up = sink("job", beside=False), sink("new", beside=True), sink("third", beside=True)
        for each in (old, copy, given_up):
            each.prepare()
            read(each, 1, THINGS, A, B)
        merge(copy, 2, THINGS, C, delete=[A])
        table = Storage.of(path, store.options)
        assert (is_beside(table, "new"), is_beside(table, "job")) == (True, False)
        copy.put_in_place()
        assert discard_copies(table, {"new"}) == ["third"]
        copy.sweep()
        merge(copy, 3, THINGS, A)
        found = read_lake(path, options=store.options).to_pylist()
        assert sorted(found, key=lambda row: str(row["code"])) == [A, B, C]
        assert not is_beside(table, "new")
