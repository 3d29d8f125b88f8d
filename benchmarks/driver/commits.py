"""The case `commits`: a table with deletion vectors takes many small merges, and its log and its folder stay bounded.

The sink itself is at work, in this process, without a source: `--commits` merges of 20 scattered updates each, and what
a live job does beside its epochs: joins and folds, a checkpoint after every 250 commits, a sweep after every 600, which
is ten minutes at one commit a second. Superseded files, their entries and commits stay for as long as 21,600 commits
take here: six hours at one a second. So the log is as long as after a day of following, and takes less than a day to
get there. Every tenth of the way one line says what a reader meets and what upkeep has cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks.bench import Bench
from benchmarks.live.written import kind_in_lake
from benchmarks.results import Figure, figure
from devkit.lake import count_lake
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OP, ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import bound_of, plan_of

_CASE = "commits"
_ROWS = 200_000
_CHANGES = 20
_KEPT_COMMITS = 21_600
_SWEEP_EVERY, _COMPACT_EVERY, _TIDY_EVERY, _SET_EVERY = 600, 4, 50, 2_500
_OPENINGS = 3
_COLUMNS = {"id": "bigint", "name": "varchar(40)", "amount": "double", "version": "int"}
TABLE = TableDefinition(
    "bench",
    "commits",
    tuple(Column.parse(name, kind, nullable=name != "id") for name, kind in _COLUMNS.items()),
    ("id",),
)
_POLICY = CompactionPolicy(128 * 1024 * 1024, small_files=50)


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU-seconds of this process, by what they were spent on."""

    merge: float = 0.0
    compact: float = 0.0
    tidy: float = 0.0
    sweep: float = 0.0

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.merge - before.merge, self.compact - before.compact, self.tidy - before.tidy, self.sweep - before.sweep
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """What the table was like after so many commits, and what the commits since the stage before have cost."""

    commits: int
    spent: Spent
    seconds: float
    checkpoint_bytes: int
    open_seconds: float
    deltalake_seconds: float
    files: int
    disk: dict[str, int]

    def __str__(self) -> str:
        held = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in self.disk.items() if size)
        spent = self.spent
        return (
            f"{self.commits:,} commits: {self.seconds:.0f} s; CPU-s: merges {spent.merge:.0f}, compaction "
            f"{spent.compact:.0f}, checkpoints {spent.tidy:.1f}, sweeps {spent.sweep:.1f}; checkpoint "
            f"{self.checkpoint_bytes / 1e6:.2f} MB; opened in {self.open_seconds:.2f} s, by deltalake in "
            f"{self.deltalake_seconds:.2f} s; {self.files} files; MB on disk: {held}"
        )


def commits(bench: Bench) -> list[Figure]:
    """Checkpoints, opening and disk over many commits."""
    life = _Life(bench.folder / "commits")
    stages = []
    count = bench.traffic.commits
    for stage in range(10):
        stages.append(life.after(count * (stage + 1) // 10))
        print(stages[-1], file=sys.stderr, flush=True)
    life.check()
    return _figures(stages)


class _Life:
    """One table and its upkeep. Row n has the key n; its version is the last merge that changed it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._done, self._spent = folder, 0, Spent()
        self._sink = DeltaSink(str(folder), TABLE, _CASE, creates=MergeMode.VECTORS)
        self._log = DeltaLog(Storage.of(str(folder)), _CASE, "the table")
        self._random = np.random.default_rng(5)
        self._began = time.monotonic()
        self._kept = timedelta(hours=1)
        self._versions = np.zeros(_ROWS, np.int32)
        self._sink.prepare()
        receipt = self._sink.writer().write(Epoch(1), 0, 0, self._rows(np.arange(_ROWS), 0).to_batches())
        bounds = [(bound_of(TABLE.key_parts, (n,), [str(n).encode()]), 1) for n in (0, _ROWS)]
        self._sink.commit_reads(Epoch(1), [receipt], [], plan_of(TABLE.key_parts, tuple(bounds), 1))

    def after(self, commits: int) -> Stage:
        """Merge up to so many commits; how the table is then."""
        before, began = self._spent, time.monotonic()
        while self._done < commits:
            self._step()
        seconds, log = time.monotonic() - began, self._folder / "_delta_log"
        newest = max(log.glob("*.checkpoint.parquet"), default=None)
        return Stage(
            self._done, self._spent.since(before), seconds, newest.stat().st_size if newest else 0,
            _best(lambda: DeltaLog(Storage.of(str(self._folder)), _CASE, "the table").open()),
            _best(lambda: DeltaTable(str(self._folder))), len(self._log.open().files), self._disk(),
        )  # fmt: skip

    def check(self) -> None:
        """Whether a reader sees every row once, with the version that was merged last."""
        found = DeltaTable(str(self._folder)).version(), count_lake(self._folder)
        sums = _version_sum(self._folder)
        if found[1] != _ROWS or sums != int(self._versions.sum()):
            raise ValueError(f"version {found[0]} has {found[1]} rows and {sums} as the sum of their versions")

    def _step(self) -> None:
        self._done += 1
        keys = self._random.choice(_ROWS, _CHANGES, replace=False)
        self._versions[keys] = self._done
        rows = self._rows(keys, self._done)
        changes = MemoryChanges(rows.append_column(OP, pa.array([ChangeOp.UPDATE] * _CHANGES, pa.int8())), TABLE.key)
        self._timed("merge", lambda: self._sink.apply(Epoch(1 + self._done), changes))
        if self._done % _COMPACT_EVERY == 0:
            self._timed("compact", lambda: self._sink.compact(_POLICY))
        if self._done % _SET_EVERY == 0:
            self._set_retention()
        if self._done % _SWEEP_EVERY == 0:
            self._timed("sweep", lambda: self._log.sweep(self._kept))
        if self._done % _TIDY_EVERY == 0:
            self._timed("tidy", self._sink.tidy)

    def _timed(self, what: str, work: Callable[[], object]) -> None:
        began = time.process_time()
        work()
        spent = time.process_time() - began
        self._spent = replace(self._spent, **{what: getattr(self._spent, what) + spent})

    def _set_retention(self) -> None:
        """As long as so many commits have taken here so far, for files, their entries (a sixth longer) and the log."""
        seconds = max(60, round((time.monotonic() - self._began) / self._done * _KEPT_COMMITS))
        self._kept = timedelta(seconds=seconds)
        table = self._log.open()
        self._log.redefine(
            table, table.protocol,
            {
                "delta.deletedFileRetentionDuration": f"interval {seconds * 7 // 6} seconds",
                "delta.logRetentionDuration": f"interval {seconds} seconds",
            },
        )  # fmt: skip

    def _rows(self, keys: npt.NDArray[np.int64], version: int) -> pa.Table:
        size = len(keys)
        columns = [
            pa.array(keys, pa.int64()),
            pa.array([f"row {key} of version {version}" for key in keys]),
            pa.array(self._random.random(size)),
            pa.array(np.full(size, version, np.int32)),
        ]
        return pa.table(columns, schema=TABLE.arrow_schema)

    def _disk(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for path in self._folder.rglob("*"):
            if path.is_file():
                kind = kind_in_lake(path.relative_to(self._folder))
                held[kind] = held.get(kind, 0) + path.stat().st_size
        return held


def _version_sum(folder: Path) -> int:
    found = QueryBuilder().register("lake", DeltaTable(str(folder))).execute("SELECT SUM(version) AS s FROM lake")
    return int(found.read_all().column("s")[0].as_py())


def _best(work: Callable[[], object]) -> float:
    """The seconds of the fastest of some tries."""
    took = []
    for _ in range(_OPENINGS):
        began = time.monotonic()
        work()
        took.append(time.monotonic() - began)
    return min(took)


def _figures(stages: Sequence[Stage]) -> list[Figure]:
    """One figure per question, with the values of all stages; the last stage is the one that counts."""
    size, last = stages[-1].commits // len(stages), stages[-1]
    note = f"after {last.commits:,} commits; beside it the smallest and largest of ten stages"

    def found(what: str, values: Sequence[float], unit: str) -> Figure:
        return replace(figure(_CASE, what, values, unit, note=note), value=values[-1])

    return [
        found("newest checkpoint", [stage.checkpoint_bytes / 1e6 for stage in stages], "MB"),
        found("opened from nothing", [stage.open_seconds for stage in stages], "s"),
        found("opened from nothing by deltalake", [stage.deltalake_seconds for stage in stages], "s"),
        found("files of the newest version", [float(stage.files) for stage in stages], ""),
        *[
            found(f"on disk, {kind}", [stage.disk.get(kind, 0) / 1e6 for stage in stages], "MB")
            for kind in ("data files", "vectors", "log", "checkpoints")
        ],
        found("CPU of a merge", [1000 * stage.spent.merge / size for stage in stages], "CPU-ms"),
        found("CPU of joins and folds, per merge", [1000 * stage.spent.compact / size for stage in stages], "CPU-ms"),
        found(
            "CPU of checkpoints and cleanup, per merge", [1000 * stage.spent.tidy / size for stage in stages], "CPU-ms"
        ),
        found("CPU of sweeps, per merge", [1000 * stage.spent.sweep / size for stage in stages], "CPU-ms"),
    ]
