"""Measures what many tables in one job cost: copied beside one large table and beside jobs of their own, and followed.

A hundred tables have the rows of the one large table, divided evenly. A job for each of them is measured five times and
multiplied. Following is measured with the same changes over 1, 10 and 100 tables: a live job is stopped, rows are
updated, and the job is run again until it has applied them.

- **Log stage**: CPU of the driver from the first order to capture the log until the last table has its changes in its
  buffer. The changes are few enough that the driver reads them itself, so no other process takes part.
- **Followed**: CPU of the whole process, less that of a run that finds nothing to do. Merges are in it.
- **In the lake**: seconds from the first order to capture the log until the last table has merged its changes. So long
  the last change lags, without the start of the process.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from benchmarks.bench import TABLE, Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import Job, JobRun, Spent, memory_figures
from benchmarks.source import DATABASE

_TABLES = 100
_ALONE = 5
_CHANGED = (1, 10, 100)
_STATEMENTS, _ROWS_EACH = 400, 100
_CHANGES = _STATEMENTS * _ROWS_EACH


def tables(bench: Bench) -> list[Figure]:
    """A hundred tables in one job, against one table and against a hundred jobs; then the cost of following."""
    rows = bench.rows // _TABLES
    names = [f"part_{number}" for number in range(_TABLES)]
    for number, name in enumerate(names):
        bench.source.split_table(name, TABLE, number * rows, rows)
    return [*_copies(bench, names), *_followed(bench, names)]


def _copies(bench: Bench, names: list[str]) -> list[Figure]:
    pairs = [(bench.copied_by_job(TABLE).spent, _copied(bench, names)) for _ in range(bench.rounds)]
    ones, many = [one for one, _ in pairs], [every for _, every in pairs]
    alone = [bench.copied_by_job(name).spent.cpu.total for name in names[:_ALONE]]
    separate = _TABLES * sum(alone) / len(alone)
    case, of = "tables", f"{_TABLES} tables"
    return [
        figure(case, "one table, whole process", [each.whole_seconds for each in ones], "s"),
        figure(case, "one table, CPU of client", [each.cpu.total for each in ones], "CPU-s"),
        figure(case, f"{of}, whole process", [each.whole_seconds for each in many], "s"),
        figure(case, f"{of}, CPU of client", [each.cpu.total for each in many], "CPU-s"),
        figure(case, "whole process against one", [b.whole_seconds / a.whole_seconds for a, b in pairs], "×", goal="< 2"),
        figure(case, "CPU against one", [b.cpu.total / a.cpu.total for a, b in pairs], "×", goal="< 2"),
        figure(case, f"{_TABLES} jobs, CPU of client", [separate], "CPU-s", note=f"{_ALONE} jobs, multiplied"),
        figure(case, "CPU of jobs against one job", [separate / each.cpu.total for each in many], "×", goal=">= 20"),
        *memory_figures(case, "one table", ones),
        *memory_figures(case, of, many),
        figure(case, "memory against one", [b.peak_pss_bytes / a.peak_pss_bytes for a, b in pairs], "×", goal="< 1.3"),
    ]  # fmt: skip


def _copied(bench: Bench, names: list[str]) -> Spent:
    job = _job(bench, names)
    spent = job.to_live().spent
    for name in names:
        bench.check(job.lake / name, name)
    shutil.rmtree(job.folder)
    return spent


def _job(bench: Bench, names: list[str]) -> Job:
    return replace(bench.job(TABLE), tables=tuple(f"{DATABASE}.{name}" for name in names))


@dataclass(frozen=True, slots=True)
class _Follow:
    """CPU-seconds of the log stage, and of following as a whole; seconds until all changes are in the lake."""

    log: float
    whole: float
    lag: float


def _followed(bench: Bench, names: list[str]) -> list[Figure]:
    found = {count: _follow(bench, names, names[:count]) for count in _CHANGED}
    first = found[_CHANGED[0]]
    figures = []
    for count, each in found.items():
        of = f"{_CHANGES:,} changes of {count}"
        figures.append(figure("tables", f"{of}: log stage", [1e6 * each.log / _CHANGES], "CPU-µs/change"))
        figures.append(figure("tables", f"{of}: followed", [1e6 * each.whole / _CHANGES], "CPU-µs/change"))
        figures.append(figure("tables", f"{of}: in the lake", [each.lag], "s"))
        goal = "< 1.2" if count != _CHANGED[0] else ""
        figures.append(figure("tables", f"{of}: log stage against one", [each.log / first.log], "×", goal=goal))
    return figures


def _follow(bench: Bench, names: list[str], changed: list[str]) -> _Follow:
    """All tables are in the job; the changes are of some of them."""
    job = _job(bench, names)
    job.to_live()
    idle = job.to_live()
    rows = bench.rows // _TABLES
    for number in range(_STATEMENTS):
        first = number // len(changed) * _ROWS_EACH % rows
        bench.source.execute(
            f"UPDATE {changed[number % len(changed)]} SET score = score + 1 "
            f"WHERE id > {first} AND id <= {first + _ROWS_EACH}"
        )
    run = job.to_live()
    for name in changed:
        bench.check(job.lake / name, name)
    shutil.rmtree(job.folder)
    return _Follow(_log_cpu(run), run.spent.cpu.total - idle.spent.cpu.total, _lag(run))


def _lag(run: JobRun) -> float:
    """A table without changes has nothing to merge, and no mark of it."""
    merged = [mark.at for mark in run.marks if mark.name == "MergeEpoch" and mark.moment == "after"]
    return max(merged) - run.at("BufferChanges", "before")


def _log_cpu(run: JobRun) -> float:
    """Of the first round of captures, which takes the whole backlog."""
    captured = [mark for mark in run.marks if mark.name == "BufferChanges"]
    first = min(mark.at for mark in captured if mark.moment == "after")
    begun = [mark for mark in captured if mark.moment == "before" and mark.at <= first]
    ended = [mark for mark in captured if mark.moment == "after"][: len(begun)]
    return ended[-1].driver - begun[0].driver
