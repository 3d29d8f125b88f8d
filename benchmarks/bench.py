"""Holds what every case gets: the source, a folder, the size and the number of rounds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from benchmarks.runs import CopyRun, Job, JobRun, RunFailedError, plain_copy
from benchmarks.source import Source

TABLE, COLUMNS = "orders", 10


@dataclass(frozen=True, slots=True)
class Traffic:
    """How the case `following` is run; `sink` are further keys of its job's `sink.delta`.

    With `prepare_deleted` half of the rows that make a fold due are gone when it begins. `commits` is the length of the
    case of this name.
    """

    rate: int = 500
    seconds: float = 120.0
    warm_up: float = 30.0
    sink: Mapping[str, object] = field(default_factory=dict)
    prepare_deleted: bool = False
    commits: int = 20_000


@dataclass
class Bench:
    """A source with `rows` rows in `orders`, and a folder for everything that is written."""

    source: Source
    folder: Path
    rows: int
    rounds: int
    traffic: Traffic
    _numbers: count[int] = field(default_factory=count)

    def job(
        self, table: str, settings: Mapping[str, object] | None = None, sink: Mapping[str, object] | None = None
    ) -> Job:
        """A job that does not exist yet. `settings` are top keys of its file, `sink` further keys of `sink.delta`."""
        return Job(self.source, self.folder / f"job-{next(self._numbers)}", table, settings or {}, sink or {})

    def copied_by_job(
        self, table: str, *, moving: bool = False, settings: Mapping[str, object] | None = None
    ) -> JobRun:
        """A new job from nothing to live, checked unless the source is moving, and removed."""
        job = self.job(table, settings)
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
        expected, found = self.source.count_and_sums(table), lake_count_and_sums(lake)
        if expected != found:
            raise RunFailedError(f"{table} has {expected} as count and sums of keys and amounts, the copy {found}")


def lake_count_and_sums(lake: Path | str, options: Mapping[str, str] | None = None) -> tuple[int, int, int]:
    """As `Source.count_and_sums`, through deletion vectors, which `to_pyarrow_table` would refuse.

    `options` log into an object store.
    """
    query = "SELECT COUNT(id) AS rows, SUM(id) AS keys, SUM(amount) * 10000 AS amounts FROM lake"
    table = DeltaTable(str(lake), storage_options=dict(options or {}))
    found = QueryBuilder().register("lake", table).execute(query).read_all()
    rows, keys, amounts = (int(found.column(name)[0].as_py() or 0) for name in ("rows", "keys", "amounts"))
    return rows, keys, amounts
