"""The benchmark `following` runs from its table to its document, on a small table for some seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


@pytest.mark.long
def test_following_measures_age_bytes_and_readers_of_a_small_table(tmp_path: Path) -> None:
    document = tmp_path / "found.json"
    size = ["--rows", "20000", "--rounds", "1", "--seconds", "10", "--warm-up", "2", "--prepare-deleted"]
    assert main(["--only", "following", *size, "--sink", "compact_small_files=0", "--out", str(document)]) == 0
    stored = json.loads(document.read_text())
    found = {each["what"]: each["value"] for each in stored["figures"]}
    asked = {"rate": 500, "seconds": 10, "warm_up": 2, "sink": {"compact_small_files": 0}, "prepare_deleted": True}
    assert {**stored["traffic"], **asked} == stored["traffic"]
    assert 0 < found["age of the lake, p50"] <= found["age of the lake, p99"] <= found["age of the lake, largest"]
    assert 0 < found["one read of the reader, p50"] <= found["age of the lake, p50"]
    assert 0 < found["scattered updates, in fact"] < 600
    assert found["changes applied"] > 0
    assert found["epochs"] > 0
    kinds = ("data files", "vectors", "log", "checkpoints", "buffer", "state")
    assert found["written, all of it"] == pytest.approx(sum(found[f"written, {kind}"] for kind in kinds))
    assert min(found["written, data files"], found["written, log"], found["written, buffer"]) > 0
    assert found["peak memory, shared pages once"] <= found["peak memory, resident"]
    for reader in ("Spark", "polars", "deltalake"):
        assert found[f"{reader}, lake against compacted copy"] > 0
