"""A log stays short, and what somebody may still ask for stays in it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.unit.delta.delta_logs import SCHEMA, append_epochs, commits, log_at, receipt
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.log.upkeep import log_retention
from vnode_backfill.words.epoch import Epoch

CONFIGURATION = {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 2 hours"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log_at(tmp_path / "table").create(SCHEMA, CONFIGURATION)
    return tmp_path / "table"


def live(log: DeltaLog, epochs: Iterable[int]) -> None:
    """Commit epochs as the owner of a log does."""
    for epoch in epochs:
        made = log.commit(log.open(), "append", Epoch(epoch), [receipt(f"{log.job_id}-{epoch}")], note=f"note {epoch}")
        log.maintain(made)


def checkpoints(table: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table / "_delta_log").glob("*.checkpoint.parquet"))


def make_older(table: Path, hours: float = 3) -> None:
    newest = commits(table)[-1]
    for path in (table / "_delta_log").iterdir():
        if path == newest:
            continue  # a held version counts only while its commit is as it was
        before = path.stat().st_mtime - hours * 3600
        os.utime(path, (before, before))


def test_a_checkpoint_is_made_after_so_many_commits_as_the_table_says(table: Path) -> None:
    live(log_at(table), range(1, 13))
    assert checkpoints(table) == [4, 9]
    assert len(commits(table)) == 13
    assert log_at(table).open().checkpoint == 9


def test_checkpoints_of_others_count(table: Path) -> None:
    log = log_at(table)
    live(log, range(1, 4))
    DeltaTable(table).create_checkpoint()
    live(log, range(4, 9))
    assert checkpoints(table) == [3, 8]


def test_commits_go_when_a_checkpoint_behind_them_is_older_than_the_retention(table: Path) -> None:
    log = log_at(table)
    live(log, range(1, 13))
    make_older(table)
    live(log, range(13, 15))
    assert checkpoints(table) == [9, 14]
    assert commits(table)[0].name == f"{9:020d}.json"
    assert len(log_at(table).open().files) == 14
    for version in (9, 12, 14):
        assert len(DeltaTable(table, version=version).file_uris()) == version


def test_nothing_goes_within_the_retention_or_where_the_table_says_so(table: Path, tmp_path: Path) -> None:
    log = log_at(table)
    live(log, range(1, 13))
    make_older(table, hours=1)
    live(log, range(13, 20))
    assert len(commits(table)) == 20
    kept = log_at(tmp_path / "kept")
    kept.create(SCHEMA, {**CONFIGURATION, "delta.enableExpiredLogCleanup": "false"})
    live(kept, range(1, 13))
    make_older(tmp_path / "kept")
    live(kept, range(13, 20))
    assert len(commits(tmp_path / "kept")) == 20


@pytest.mark.parametrize("fresh", [False, True])
def test_the_notes_of_the_newest_epoch_stay(table: Path, fresh: bool) -> None:
    """Also where a process begins with a checkpoint and has not seen the commit."""
    log, other = log_at(table), log_at(table, job="other")
    live(log, [1, 2])
    append_epochs(other, range(1, 12))
    log.open()
    DeltaTable(table).create_checkpoint()
    make_older(table)
    writer = log_at(table) if fresh else log
    assert fresh is not ("job/append" in writer.open().places)
    for _ in range(12):
        writer.maintain(writer.rearrange(writer.open(), [receipt("x")], writer.files(writer.open(), ())))
        make_older(table)
    assert log_at(table).note(writer.open(), "append", Epoch(2)) == "note 2"


def test_notes_of_earlier_epochs_hold_nothing_back(table: Path) -> None:
    log = log_at(table)
    live(log, [1])
    for epoch in range(2, 15):
        log.maintain(log.commit(log.open(), "merge", Epoch(epoch), []))
        make_older(table)
    assert commits(table)[0].name > f"{5:020d}"


def test_a_high_generation_does_not_hide_the_notes_of_the_newest_epoch(table: Path) -> None:
    log = log_at(table, generation=10**6)
    live(log, [1, 2])
    log.open()
    for _ in range(12):
        log.maintain(log.remove(log.open(), ()))
        make_older(table)
    assert log_at(table).note(log.open(), "append", Epoch(2)) == "note 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 6 hours", timedelta(hours=6)),
        ("INTERVAL 1 WEEK", timedelta(weeks=1)),
        ("90 minutes", timedelta(minutes=90)),
        ("interval 1 month", timedelta(days=30)),
        ("", timedelta(days=30)),
    ],
)
def test_the_retention_is_read_as_delta_writes_it(tmp_path: Path, text: str, expected: timedelta) -> None:
    table = log_at(tmp_path / "table").create(SCHEMA, {"delta.logRetentionDuration": text})
    assert log_retention(table) == expected
