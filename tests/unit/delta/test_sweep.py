"""A sweep never deletes a file that somebody needs: live ones, vectors in use, and what readers may still hold."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.unit.delta.delta_logs import log_at, named, new_table, receipt, vector
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DeletionVector, Masked
from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.log.removals import removals
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.sweep import Sweep
from vnode_backfill.delta.vectors import vector_path
from vnode_backfill.words.epoch import Epoch

RETENTION = timedelta(hours=48)
DAY = timedelta(days=1)


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    """A table with the files a and b."""
    made, table = new_table(tmp_path / "table", vectors=True)
    made.commit(table, "append", Epoch(1), [receipt("a"), receipt("b")])
    for name in ("a.parquet", "b.parquet"):
        touch(made, name)
    return made


def touch(log: DeltaLog, name: str, age: timedelta = timedelta()) -> None:
    path = Path(log.storage.path, name)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"x")
    at = path.stat().st_mtime - age.total_seconds()
    os.utime(path, (at, at))


def mask(log: DeltaLog, name: str, new: DeletionVector) -> DeletionVector:
    table = log.open()
    log.commit(table, "merge", Epoch(table.version), [], masked=[Masked(named(log.files(table, ()), name), new)])
    path = vector_path(new)
    assert path is not None
    touch(log, path)
    return new


def remove(log: DeltaLog, name: str) -> TableVersion:
    table = log.open()
    return log.remove(table, [named(log.files(table, ()), name)])


def unneeded(
    log: DeltaLog,
    after: timedelta,
    retention: timedelta = RETENTION,
    live: Callable[[], TableVersion] | None = None,
) -> set[str]:
    sweep = Sweep(datetime.now(UTC) + after, retention)
    return set(sweep.unneeded(log.storage.list_files(LOG), live or log.open, lambda: removals(log.storage)))


def test_live_files_stay_for_ever_and_removed_ones_for_the_retention(log: DeltaLog) -> None:
    remove(log, "b")
    assert unneeded(log, timedelta(hours=47)) == set()
    assert unneeded(log, timedelta(hours=49)) == {"b.parquet"}
    assert unneeded(log, timedelta(hours=2), timedelta(hours=1)) == {"b.parquet"}


def test_a_vector_in_use_stays_and_a_superseded_one_goes_after_the_retention(log: DeltaLog) -> None:
    old, new = mask(log, "a", vector()), mask(log, "a", vector())
    assert unneeded(log, timedelta(hours=47)) == set()
    assert unneeded(log, timedelta(hours=49)) == {vector_path(old)}
    assert vector_path(new) not in unneeded(log, timedelta(days=1000))


def test_a_vector_file_stays_while_one_of_its_vectors_is_in_use(log: DeltaLog) -> None:
    number = uuid.uuid4()
    shared = mask(log, "a", vector(number, offset=1))
    mask(log, "b", vector(number, offset=45))
    new = mask(log, "a", vector())
    assert unneeded(log, timedelta(days=1000)) == set()
    remove(log, "b")
    assert unneeded(log, timedelta(days=1000)) == {"b.parquet", vector_path(shared)}
    assert vector_path(new) != vector_path(shared)


@pytest.mark.parametrize("name", ["orphan.parquet", "sub/orphan.parquet", "_dv/deletion_vector_x.bin"])
def test_what_no_commit_names_stays_for_a_day_at_least(log: DeltaLog, name: str) -> None:
    touch(log, name, timedelta(hours=23))
    assert unneeded(log, timedelta(), timedelta(hours=1)) == set()
    touch(log, name, timedelta(hours=25))
    assert unneeded(log, timedelta(), timedelta(hours=1)) == {name}
    assert unneeded(log, timedelta(), RETENTION) == set()


def test_files_of_an_epoch_that_may_still_be_committed_stay_however_old(log: DeltaLog) -> None:
    for epoch in (6, 7, 8):
        touch(log, f"e{epoch}-r0-a0-1.parquet", 30 * DAY)
    log.commit(log.open(), "append", Epoch(7), [])
    assert log.sweep(timedelta(hours=1)) == ["e6-r0-a0-1.parquet"]


@pytest.mark.parametrize(
    "name", ["_staged/x.parquet", ".hidden", "sub/_x/y", "_other/z.bin", "_dv/_x/y.bin", "a/_dv/z"]
)
def test_hidden_files_are_left_alone(log: DeltaLog, name: str) -> None:
    touch(log, name, 100 * DAY)
    assert unneeded(log, 100 * DAY) == set()


def test_vectors_of_other_writers_stay_wherever_they_are(log: DeltaLog) -> None:
    in_root = mask(log, "a", vector(folder=""))
    name = f"deletion_vector_{uuid.uuid4()}.bin"
    for place in (f"file:{log.storage.path}/{name}", f"s3://elsewhere/lake/{name}"):
        mask_absolute(log, "b", place)
        touch(log, name, 100 * DAY)
        assert {vector_path(in_root), name} & unneeded(log, 100 * DAY) == set()


def mask_absolute(log: DeltaLog, name: str, place: str) -> None:
    table = log.open()
    masked = Masked(named(log.files(table, ()), name), DeletionVector("p", place, 1, 40, 1))
    log.commit(table, "merge", Epoch(table.version), [], masked=[masked])


def test_removals_are_known_from_a_checkpoint(log: DeltaLog) -> None:
    old = mask(log, "a", vector())
    mask(log, "a", vector())
    remove(log, "b")
    DeltaTable(log.storage.path).create_checkpoint()
    for commit in Path(log.storage.path, LOG).glob("*.json"):
        commit.unlink()
    fresh = log_at(Path(log.storage.path))
    assert unneeded(fresh, timedelta(hours=47)) == set()
    assert unneeded(fresh, timedelta(hours=49)) == {"b.parquet", vector_path(old)}


def test_a_file_that_is_removed_during_the_sweep_stays(log: DeltaLog) -> None:
    touch(log, "b.parquet", 100 * DAY)
    assert unneeded(log, timedelta(), live=lambda: remove(log, "b")) == set()


def test_links_are_neither_followed_nor_deleted(log: DeltaLog, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.parquet").write_bytes(b"x")
    Path(log.storage.path, "linked").symlink_to(outside)
    Path(log.storage.path, "link.parquet").symlink_to(outside / "precious.parquet")
    assert unneeded(log, 100 * DAY) == set()


def test_a_swept_table_is_whole(log: DeltaLog) -> None:
    remove(log, "b")
    touch(log, "orphan.parquet", 3 * DAY)
    assert log.sweep(timedelta(hours=48)) == ["orphan.parquet"]
    assert sorted(path.name for path in Path(log.storage.path).glob("*.parquet")) == ["a.parquet", "b.parquet"]


def test_the_file_of_a_vector_is_found_from_its_encoded_number() -> None:
    place = "ab^-aqEH.-t@S}K{vb[*k^"
    assert vector_path(DeletionVector("u", place, 4, 40, 6)) == (
        "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    )
    assert vector_path(DeletionVector("i", "x", None, 40, 6)) is None


def test_only_files_that_are_as_young_as_the_job_wait_for_a_late_epoch(log: DeltaLog) -> None:
    """Epochs of a new copy begin again at 1. Removals of the copy before it may be forgotten by then."""
    touch(log, "e900-merge.parquet", DAY)
    touch(log, "e7-merge.parquet")
    begun = datetime.now(UTC)

    def goes(sweep: Sweep) -> list[str]:
        return sweep.unneeded(log.storage.list_files(LOG), log.open, lambda: removals(log.storage))

    assert goes(Sweep(begun + 2 * DAY, RETENTION, newest_epoch=7)) == []
    assert goes(Sweep(begun + 2 * DAY, RETENTION, newest_epoch=7, begun=begun)) == ["e900-merge.parquet"]
