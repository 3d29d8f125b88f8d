"""Holds what every case gets: the source, a folder, the size and the number of rounds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.runs import CopyRun, Job, JobRun, RunFailedError, plain_copy
from benchmarks.source import Source

TABLE, COLUMNS = "orders", 10


@dataclass
class Bench:
    """A source with `rows` rows in `orders`, and a folder for everything that is written."""

    source: Source
    folder: Path
    rows: int
    rounds: int
    _numbers: count[int] = field(default_factory=count)

    def job(self, table: str, settings: Mapping[str, object] | None = None) -> Job:
        """A job that does not exist yet."""
        return Job(self.source, self.folder / f"job-{next(self._numbers)}", table, settings or {})

    def copied_by_job(self, table: str, *, moving: bool = False) -> JobRun:
        """A new job from nothing to live, checked unless the source is moving, and removed."""
        job = self.job(table)
        run = job.to_live()
        if not moving:
            self.check(job.lake, table)
        shutil.rmtree(job.folder)
        return run

    def copied_plainly(self, table: str, *, moving: bool = False) -> CopyRun:
        folder = self.folder / f"copy-{next(self._numbers)}"
        run = plain_copy(self.source, folder, table)
        if not moving:
            self.check(folder, table)
        shutil.rmtree(folder)
        return run

    def check(self, lake: Path, table: str) -> None:
        """A fast copy of something else would be no result."""
        expected, found = self.source.count_and_sum(table), lake_count_and_sum(lake)
        if expected != found:
            raise RunFailedError(f"{table} has {expected} as count and sum of its keys, the copy {found}")


def lake_count_and_sum(lake: Path) -> tuple[int, int]:
    keys = DeltaTable(str(lake)).to_pyarrow_table(columns=["id"]).column("id")
    return len(keys), int(pc.sum(keys).as_py() or 0)
