"""Bytes that appear under a job's folders, on real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live.written import WrittenBytes, kind_in_lake


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("part-0.parquet", "data files"),
        ("day=1/part-0.parquet", "data files"),
        ("_dv/deletion_vector_a.bin", "vectors"),
        ("deletion_vector_b.bin", "vectors"),
        ("_delta_log/00000000000000000001.json", "log"),
        ("_delta_log/00000000000000000010.checkpoint.parquet", "checkpoints"),
        ("_delta_log/00000000000000000010.checkpoint.0000000001.0000000002.parquet", "checkpoints"),
        ("_delta_log/_last_checkpoint", "checkpoints"),
    ],
)
def test_files_of_a_table_are_told_apart(path: str, kind: str) -> None:
    assert kind_in_lake(Path(path)) == kind


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_a_file_that_was_seen_counts_after_it_is_deleted(tmp_path: Path) -> None:
    written = WrittenBytes(tmp_path / "lake", tmp_path / "state")
    file = write(tmp_path / "lake" / "part-0.parquet", 10)
    before = written.look()
    file.unlink()
    write(tmp_path / "lake" / "part-1.parquet", 5)
    assert written.look()["data files"] - before["data files"] == 5


def test_a_file_counts_with_its_largest_size_and_again_when_it_is_replaced(tmp_path: Path) -> None:
    written = WrittenBytes(tmp_path / "lake", tmp_path / "state")
    file = write(tmp_path / "lake" / "_delta_log" / "_last_checkpoint", 10)
    written.look()
    write(file, 30)
    assert written.look()["checkpoints"] == 30
    write(tmp_path / "next", 7).rename(file)
    assert written.look()["checkpoints"] == 37


def test_a_file_that_is_being_put_counts_once(tmp_path: Path) -> None:
    written = WrittenBytes(tmp_path / "lake", tmp_path / "state")
    staged = write(tmp_path / "lake" / "part-0.parquet#1", 10)
    written.look()
    staged.rename(tmp_path / "lake" / "part-0.parquet")
    assert written.look()["data files"] == 10


def test_buffer_and_state_are_counted_apart(tmp_path: Path) -> None:
    written = WrittenBytes(tmp_path / "lake", tmp_path / "state")
    write(tmp_path / "state" / "job" / "buffer" / "_delta_log" / "0.json", 3)
    write(tmp_path / "state" / "job" / "checkpoints" / "part-0.parquet", 4)
    found = written.look()
    assert (found["buffer"], found["state"], found["log"]) == (3, 4, 0)
