"""The reader of the heartbeat, on a real Delta table."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.live.heartbeat import read_beat


def put(lake: Path, key: int, written: float) -> None:
    row = pa.table({"id": pa.array([key], pa.int32()), "score": [written]})
    write_deltalake(str(lake), row, mode="append")


def test_a_handle_that_is_kept_finds_the_newest_beat_and_its_age(tmp_path: Path) -> None:
    put(tmp_path, 1, 0.0)
    table = DeltaTable(str(tmp_path))
    put(tmp_path, 8, time.monotonic() - 5)
    sample = read_beat(table, 8)
    assert sample.version == 1
    assert 5 <= sample.age < 65
    assert 0 < sample.cost < 60


def test_a_beat_that_is_missing_or_there_twice_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, 1, 0.0)
    table = DeltaTable(str(tmp_path))
    with pytest.raises(LookupError, match="version 0 of the lake has 0 rows with the key 8"):
        read_beat(table, 8)
    put(tmp_path, 8, 0.0)
    put(tmp_path, 8, 1.0)
    with pytest.raises(LookupError, match="has 2 rows"):
        read_beat(table, 8)
