"""A target is tidied beside the epochs: checkpoints and sweeps when they are due, and nothing when nothing happens."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from progress.state.backfill_state import BackfillState
from progress.state.target_health import TargetHealth
from tests.job_reports import ImaginaryJob
from tests.tables import ORDERS, batch, change_table, order, plan, stored
from vnode_backfill.config.job import Config, MergeMode, load_config
from vnode_backfill.delta import commits
from vnode_backfill.delta.log import commit_actions
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.log.upkeep import make_checkpoint
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.run.upkeep import SWEEP_EVERY_SECONDS, SWEEP_VECTORS_EVERY_SECONDS, Upkeep
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import due, sink
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch

_JOB = ImaginaryJob(vnodes=16, ranges=64)
READING, LIVE = _JOB.at(0.5), _JOB.live()
ROWS = 400


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Target:
    """A table of 400 rows, the sink of its job, and the job's upkeep."""

    def __init__(self, folder: Path, mode: MergeMode, small_files: int = 200) -> None:
        self.folder, self.clock = folder / "lake", Clock()
        self.sink = DeltaSink(str(self.folder), ORDERS, "job", creates=mode)
        self.sink.prepare()
        receipt = self.sink.writer().write(Epoch(1), 0, 0, [batch(ORDERS, [order(n) for n in range(ROWS)])])
        self.sink.commit_reads(Epoch(1), [receipt], [], plan(ORDERS, (0,), (ROWS,)))
        self.upkeep = Upkeep(self.sink, config_of(folder, small_files), self.clock)
        self.epoch = 1

    def merge(self, times: int = 1) -> None:
        for _ in range(times):
            self.epoch += 1
            change = (ChangeOp.UPDATE, self.epoch, order(self.epoch % ROWS, f"v{self.epoch}"))
            table = change_table(ORDERS, [change]).drop_columns(list(OFFSET_COLUMNS))
            self.sink.apply(Epoch(self.epoch), MemoryChanges(table, ORDERS.key))

    def insert(self, times: int) -> None:
        """Each time a row behind all others, which becomes a small file of its own."""
        for _ in range(times):
            self.epoch += 1
            table = change_table(ORDERS, [(ChangeOp.INSERT, self.epoch, order(ROWS + self.epoch))])
            self.sink.apply(Epoch(self.epoch), MemoryChanges(table.drop_columns(list(OFFSET_COLUMNS)), ORDERS.key))

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[:20]) for path in self.folder.glob("_delta_log/*.checkpoint.parquet"))

    @property
    def vectors(self) -> set[str]:
        return {path.name for path in self.folder.glob("_dv/*.bin")}

    def contents(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.folder.rglob("*") if path.is_file()}

    def age_commits(self, seconds: float) -> None:
        """All but the newest: a version that is held counts only while its commit is as it was."""
        for path in sorted(self.folder.glob("_delta_log/*.json"))[:-1]:
            before = path.stat().st_mtime - seconds
            os.utime(path, (before, before))


def config_of(folder: Path, small_files: int) -> Config:
    settings = {
        "job": "orders",
        "mysql": {"host": "db", "user": "copier", "database": "shop", "table": "orders"},
        "sink": {"delta": {"path": str(folder / "lake"), "compact_small_files": small_files}},
        "state": {"path": str(folder / "state")},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(settings))
    return load_config(path, env={})


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path, MergeMode.VECTORS)


def test_no_epoch_makes_a_checkpoint_and_tidying_makes_it(target: Target) -> None:
    target.merge(252)
    assert target.checkpoints == []
    target.upkeep.tidy(READING)
    assert target.checkpoints == [253]
    assert len(stored(target.folder)) == ROWS


def test_a_commit_is_in_a_checkpoint_after_minutes_however_few_there_were(target: Target) -> None:
    target.merge(3)
    target.upkeep.tidy(LIVE)
    assert target.checkpoints == []
    target.age_commits(sink.CHECKPOINT_AT_LATEST.total_seconds())
    target.upkeep.tidy(LIVE)
    assert target.checkpoints == [4]
    target.merge()
    target.upkeep.tidy(LIVE)
    assert target.checkpoints == [4]


def test_a_job_that_idles_writes_nothing(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target.merge(3)
    monkeypatch.setattr(sink, "CHECKPOINT_AT_LATEST", timedelta(0))
    while target.upkeep.maybe_compact(LIVE) is not None:
        pass
    target.upkeep.tidy(LIVE)
    before = target.contents()
    for _ in range(3):
        target.clock.now += SWEEP_EVERY_SECONDS
        target.upkeep.tidy(LIVE)
        target.upkeep.maybe_compact(LIVE)
    assert target.contents() == before
    assert len(target.checkpoints) == 1


def test_a_checkpoint_of_another_process_counts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target.merge(3)
    monkeypatch.setattr(sink, "CHECKPOINT_AT_LATEST", timedelta(0))
    DeltaSink(str(target.folder), ORDERS, "job").tidy()
    before = target.contents()
    target.upkeep.tidy(LIVE)
    assert target.contents() == before


def test_without_vectors_epochs_make_checkpoints_themselves(tmp_path: Path) -> None:
    target = Target(tmp_path, MergeMode.REWRITE)
    target.merge(25)
    assert target.checkpoints == [24]
    target.age_commits(3600)
    target.merge()
    before = target.contents()
    target.sink.tidy()
    assert target.contents() == before


def test_epochs_commit_while_a_checkpoint_is_made(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for nothing, and the checkpoint counts for what it holds."""
    target.merge(2)

    def slow(storage: Storage, table: TableVersion) -> int:
        target.merge(2)
        return make_checkpoint(storage, table)

    monkeypatch.setattr(commits, "make_checkpoint", slow)
    monkeypatch.setattr(sink, "CHECKPOINT_AT_LATEST", timedelta(0))
    target.sink.tidy()
    assert target.checkpoints == [3]
    assert 0 < target.sink.health().log_bytes < 6_000
    monkeypatch.setattr(sink, "CHECKPOINT_AT_LATEST", timedelta(minutes=5))
    target.sink.tidy()
    assert target.checkpoints == [3]


def test_superseded_vectors_go_when_their_time_is_over_also_behind_a_checkpoint(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint leaves out what was removed long ago; then nothing says that a vector was ever used."""
    with monkeypatch.context() as earlier:
        now = commit_actions.milliseconds()
        earlier.setattr(commit_actions, "milliseconds", lambda: now - int(6.5 * 3_600_000))
        target.merge(3)
    target.merge()
    monkeypatch.setattr(sink, "CHECKPOINT_AT_LATEST", timedelta(0))
    target.sink.tidy()
    held = len(target.vectors)
    target.upkeep.tidy(READING)
    assert (held, len(target.vectors)) == (4, 2)
    assert len(stored(target.folder)) == ROWS


@pytest.mark.parametrize(
    ("mode", "state", "times"),
    [(MergeMode.VECTORS, READING, 3), (MergeMode.VECTORS, LIVE, 3), (MergeMode.REWRITE, LIVE, 1)],
)
def test_tables_with_vectors_are_swept_more_often(
    tmp_path: Path, mode: MergeMode, state: BackfillState, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, swept = Target(tmp_path, mode), list[float]()

    def sweep(_: DeltaSink) -> list[str]:
        swept.append(target.clock.now)
        return []

    monkeypatch.setattr(DeltaSink, "sweep", sweep)
    for _ in range(3):
        target.upkeep.tidy(state)
        target.clock.now += SWEEP_VECTORS_EVERY_SECONDS / 2
        target.upkeep.tidy(state)
        target.clock.now += SWEEP_VECTORS_EVERY_SECONDS / 2
    assert len(swept) == times


def test_the_shape_of_a_target_is_told(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "WORTH_BYTES", 1)
    target.merge(20)
    target.upkeep.tidy(LIVE)
    health = target.upkeep.health
    assert health is not None
    assert (health.files, health.rows) == (21, ROWS + 20)
    assert health.vector_share == pytest.approx(20 / (ROWS + 20))
    assert health.fold_debt_bytes == 0
    assert health.log_bytes > health.logged_bytes > 0
    assert health.write_amplification is not None
    assert health.write_amplification > 10
    target.merge(30)
    target.upkeep.tidy(LIVE)
    worn = target.upkeep.health
    assert worn is not None
    assert worn.fold_debt_bytes == max(path.stat().st_size for path in target.folder.glob("e1-*"))
    assert worn.changed_bytes == pytest.approx(health.changed_bytes * 2.5, rel=0.1)
    target.sink.compact(CompactionPolicy(10**6, 200))
    assert target.sink.health().fold_debt_bytes == 0
    assert target.sink.health().written_bytes > worn.written_bytes


@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize(("small_files", "left"), [(0, 7), (1, 1), (6, 1), (7, 7), (200, 7)])
def test_a_live_job_joins_when_there_are_more_small_files_than_its_file_says(
    tmp_path: Path, mode: MergeMode, small_files: int, left: int
) -> None:
    """One less than a job with vectors joins in any case."""
    target = Target(tmp_path, mode, small_files)
    assert target.upkeep.maybe_compact(LIVE) is None
    target.insert(due.JOINED - 2)
    target.upkeep.maybe_compact(replace(LIVE, revision=LIVE.revision + 1))
    assert target.sink.health().files == left
    assert len(stored(target.folder)) == ROWS + due.JOINED - 2


def test_a_target_without_vectors_has_no_figures_of_them(tmp_path: Path) -> None:
    target = Target(tmp_path, MergeMode.REWRITE)
    target.merge(2)
    health: TargetHealth = target.sink.health()
    assert (health.vectors, health.vector_share, health.fold_debt_bytes) == (None, None, None)
    assert (health.files, health.rows) == (1, ROWS)
    assert health.write_amplification is not None
