"""Removals are grouped by file and by vector, and the last one counts, whether a checkpoint or a commit tells of it."""

from __future__ import annotations

import json
from pathlib import Path

from deltalake import DeltaTable

from tests.unit.delta.delta_logs import new_table, vector
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.log.names import commit_name
from vnode_backfill.delta.log.removals import removals

RECENT = 4_000_000_000_000
"""A checkpoint leaves out what was removed long ago, so this is far in the future."""


def removed(log: DeltaLog, path: str, time: int | None, held: DeletionVector | None = None) -> None:
    """A commit with this removal alone."""
    action: dict[str, object] = {"path": path, "dataChange": True}
    if time is not None:
        action["deletionTimestamp"] = time
    if held is not None:
        action["deletionVector"] = held.to_action()
    version = log.open().version + 1
    Path(log.storage.path, commit_name(version)).write_text(json.dumps({"remove": action}) + "\n")


def test_the_last_removal_of_a_file_and_of_a_vector_counts(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table", vectors=True)
    one, other = vector(), vector()
    removed(log, "a.parquet", RECENT + 2, one)
    removed(log, "a.parquet", RECENT + 1, other)
    removed(log, "b.parquet", RECENT + 5)
    DeltaTable(log.storage.path).create_checkpoint()
    in_checkpoint = removals(log.storage)
    assert in_checkpoint.files == {"a.parquet": RECENT + 2, "b.parquet": RECENT + 5}
    assert in_checkpoint.vectors == {("u", one.place): RECENT + 2, ("u", other.place): RECENT + 1}
    removed(log, "a.parquet", RECENT + 9, other)
    removed(log, "b.parquet", RECENT + 4)
    found = removals(log.storage)
    assert found.files == {"a.parquet": RECENT + 9, "b.parquet": RECENT + 5}
    assert found.vectors == {("u", one.place): RECENT + 2, ("u", other.place): RECENT + 9}


def test_a_removal_without_a_time_counts_for_nothing(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table", vectors=True)
    removed(log, "a.parquet", None, vector())
    removed(log, "b.parquet", 0)
    found = removals(log.storage)
    assert (found.files, found.vectors) == ({}, {})
