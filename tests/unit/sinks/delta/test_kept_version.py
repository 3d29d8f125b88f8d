"""The version that readers were told of can be read, however old it is, and costs nothing once it is let go."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from progress.store.rows.job_rows import JobRecord
from tests.system.sinks.delta.aged_table import HOURS, age
from tests.tables import ORDERS, Row, batch, change_table, in_order, order, plan
from vnode_backfill.config.job import MergeMode, load_config
from vnode_backfill.delta.log import commit_actions
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import SinkDescription
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import sink as delta_sink
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch

ROWS, RETENTION = 60, timedelta(hours=6)
INTERVAL = 25
"""After so many commits a table without vectors gets a checkpoint; one with them whenever it is tidied here."""


class Target:
    """A table of 60 rows whose versions are made, aged, and deleted."""

    def __init__(self, folder: Path, mode: MergeMode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.mode, self.epoch = folder / "lake", mode, 1
        self.hours, real = HOURS, commit_actions.milliseconds
        # A checkpoint repeats when files were removed, so that commits say it as of then from the beginning.
        monkeypatch.setattr(commit_actions, "milliseconds", lambda: real() - self.hours * 3_600_000)
        monkeypatch.setattr(delta_sink, "CHECKPOINT_AT_LATEST", timedelta(0))
        self.sink = self.opened()
        self.sink.prepare()
        receipt = self.sink.writer().write(Epoch(1), 0, 0, [batch(ORDERS, [order(n) for n in range(ROWS)])])
        self.sink.commit_reads(Epoch(1), [receipt], [], plan(ORDERS, (0,), (ROWS,)))

    def opened(self) -> DeltaSink:
        return DeltaSink(str(self.path), ORDERS, "job", creates=self.mode, retention=RETENTION)

    def change(self, times: int, *, anew: bool = True) -> int:
        """So many merges, each of every third row; then files are written anew. The version that this makes."""
        for _ in range(times):
            self.epoch += 1
            rows = [(ChangeOp.UPDATE, n + 1, order(n, f"e{self.epoch}")) for n in range(self.epoch % 3, ROWS, 3)]
            changes = change_table(ORDERS, rows).drop_columns(list(OFFSET_COLUMNS))
            self.sink.apply(Epoch(self.epoch), MemoryChanges(changes, ORDERS.key))
        while anew and self.sink.compact(CompactionPolicy.on_request(10**6, folds_all=True)) is not None:
            pass
        return self.newest

    def checkpointed(self) -> int:
        """Change the table and make a checkpoint; the newest version."""
        made = self.change(2)
        DeltaTable(self.path).create_checkpoint()
        return made

    def age(self) -> None:
        """Whatever was done is hours old; what follows is done now."""
        age(self.path)
        self.hours = 0
        self.sink = self.opened()

    @property
    def newest(self) -> int:
        return DeltaTable(self.path).version()

    def rows(self, version: int | None = None) -> list[Row]:
        table = DeltaTable(self.path, version=version)
        found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
        return in_order(tuple(row.values()) for row in found.to_pylist())

    def is_gone(self, version: int) -> bool:
        """Whether a reader of the version fails: the log does not lead to it, or a file is missing."""
        try:
            self.rows(version)
        except Exception as error:  # noqa: BLE001 - the library has no error of its own for files
            return "No files in log segment" in str(error) or "not found" in str(error)
        return False

    def log(self) -> list[int]:
        """The versions that have a commit or a checkpoint."""
        return sorted({int(path.name[:20]) for path in self.path.glob("_delta_log/0*")})

    def files(self) -> set[str]:
        return {str(path) for path in self.path.rglob("*") if path.is_file() and "_delta_log" not in path.parts}

    def tidy(self) -> None:
        """What a job's upkeep deletes, once it is due."""
        self.sink.sweep()
        self.change(1 if self.mode is MergeMode.VECTORS else INTERVAL)
        self.sink.tidy()


@pytest.fixture(params=list(MergeMode), ids=str)
def target(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(tmp_path, request.param, monkeypatch)


def test_a_kept_version_is_read_after_every_upkeep_while_others_are_gone(target: Target) -> None:
    early = target.checkpointed()
    target.checkpointed()
    told = target.change(2, anew=False)
    rows = target.rows(told)
    later = target.change(2)
    target.checkpointed()
    target.age()
    target.sink.keep(told)
    target.tidy()
    target.tidy()
    assert target.rows(told) == rows
    assert (target.is_gone(early), target.is_gone(later)) == (True, True)
    assert early < target.log()[0] <= told
    assert len(target.rows()) == ROWS


def test_a_version_that_is_let_go_is_deleted_by_the_next_upkeep(target: Target) -> None:
    target.checkpointed()
    told = target.change(2, anew=False)
    target.checkpointed()
    target.age()
    target.sink.keep(told)
    target.tidy()
    held = target.files()
    target.sink.keep(None)
    target.tidy()
    assert target.log()[0] > told
    assert held - target.files()
    assert target.is_gone(told)
    assert len(target.rows()) == ROWS


def test_a_version_that_is_gone_already_keeps_nothing(target: Target) -> None:
    told = target.checkpointed()
    target.checkpointed()
    target.age()
    target.tidy()
    before = target.log()[0]
    assert before > told
    target.age()
    target.sink.keep(told)
    target.tidy()
    assert target.log()[0] > before


def described(target: Target) -> SinkDescription:
    settings = {
        "job": "orders",
        "mysql": {"host": "db", "user": "copier", "database": "shop", "table": "orders"},
        "sink": {"delta": {"path": str(target.path), "retention": "6h", "merge": str(target.mode)}},
        "state": {"path": str(target.path.parent / "state")},
    }
    path = target.path.parent / "job.yaml"
    path.write_text(json.dumps(settings))
    return configured_sink(load_config(path, env={}))


def test_it_is_known_until_when_a_version_can_be_read(target: Target) -> None:
    name, sink = f"delta:{target.path}", described(target)
    told, now, second = target.checkpointed(), datetime.now(UTC), timedelta(seconds=60)
    newest = sink.readable_until(name, told)
    assert newest is not None
    assert abs(newest - now - RETENTION) < second, "the next commit may come at once"
    target.checkpointed()
    target.age()
    target.sink.keep(told)
    target.tidy()
    kept = sink.readable_until(name, told)
    assert kept is not None
    assert abs(kept - now - RETENTION + timedelta(hours=HOURS)) < second, "by itself it would be gone"
    assert [sink.readable_until(name, version) for version in (0, told + 1, 10_000)] == [None] * 3
    target.sink.keep(None)
    target.sink.sweep()
    assert sink.readable_until(name, told) is None
    assert sink.readable_until(f"{name}/nothing", told) is None


def test_sweep_of_a_job_leaves_to_no_late_epoch_what_is_older_than_the_job(target: Target) -> None:
    """The files of the copy before it have higher epochs. Their removals may be forgotten when a cut lets them go."""
    created = datetime.now(UTC) - timedelta(days=3)
    old, own = target.path / "e900-i-old-0.parquet", target.path / "e900-i-own-0.parquet"
    for path, age_of_file in ((old, timedelta(days=9)), (own, timedelta(days=2))):
        path.write_bytes(b"x")
        os.utime(path, ((datetime.now(UTC) - age_of_file).timestamp(),) * 2)
    record = JobRecord.new("orders", ORDERS, vnode_count=8, server="s", sink=f"delta:{target.path}", now=created)
    sink, _ = described(target).compacted_by_request(record)
    sink.sweep()
    assert (old.exists(), own.exists()) == (False, True)
