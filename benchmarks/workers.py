"""Measures the same copy with 1, 2, 4 and 8 workers, and where its lanes spend their time.

More workers than cores must not make a copy slower. A lane's time is what the driver sees of it: from the order to read
ranges to their receipts, and the commits after it. How much of it a lane is on a core comes from the CPU of the Python
workers; the rest it waits, for the source or for a core.
"""

from __future__ import annotations

import os

from benchmarks.bench import TABLE, Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import JobRun

_CASE = "workers"
_COUNTS = (1, 2, 4, 8)
_COMMITS = ("CommitReceipts", "CommitEpoch")


def workers(bench: Bench) -> list[Figure]:
    """The counts take turns, so that each has seen the same machine."""
    runs: dict[int, list[JobRun]] = {count: [] for count in _COUNTS}
    for _ in range(bench.rounds):
        for count in _COUNTS:
            runs[count].append(bench.copied_by_job(TABLE, settings={"workers": count}))
    figures = [line for count in _COUNTS for line in _figures(bench.rows, count, runs[count])]
    return [*figures, *_against_cores(runs)]


def ordered_seconds(run: JobRun, *names: str) -> float:
    """How long orders of these names took in all; those of one name are never carried out at the same time."""
    began: dict[tuple[str, int], float] = {}
    total = 0.0
    for mark in run.marks:
        if mark.name not in names:
            continue
        key = mark.name, mark.epoch
        if mark.moment == "before":
            began[key] = mark.at
        elif key in began:
            total += mark.at - began.pop(key)
    return total


def _figures(rows: int, count: int, runs: list[JobRun]) -> list[Figure]:
    who = f"{count} workers"
    reading = [ordered_seconds(run, "ReadRanges") for run in runs]
    lanes = [100 * run.spent.cpu.workers / (count * taken) for run, taken in zip(runs, reading, strict=True)]
    server = [run.spent.server_cpu / taken for run, taken in zip(runs, reading, strict=True)]
    return [
        figure(_CASE, f"{who}, to live", [run.seconds for run in runs], "s"),
        figure(_CASE, f"{who}, to live", [rows / run.seconds for run in runs], "rows/s"),
        figure(_CASE, f"{who}, whole process", [run.spent.whole_seconds for run in runs], "s"),
        figure(_CASE, f"{who}, lanes read and write", reading, "s"),
        figure(_CASE, f"{who}, a lane is on a core", lanes, "%", note="with the start of its process; else it waits"),
        figure(_CASE, f"{who}, cores that the source uses", server, "", note="while lanes read"),
        figure(_CASE, f"{who}, commits", [ordered_seconds(run, *_COMMITS) for run in runs], "s"),
        figure(_CASE, f"{who}, CPU of client", [run.spent.cpu.total for run in runs], "CPU-s"),
    ]


def _against_cores(runs: dict[int, list[JobRun]]) -> list[Figure]:
    """Each number of workers beyond the cores, against as many as there are cores."""
    cores = max(count for count in _COUNTS if count <= max(1, os.cpu_count() or 1))
    return [
        figure(
            _CASE,
            f"{count} workers against {cores}",
            [run.seconds / base.seconds for run, base in zip(runs[count], runs[cores], strict=True)],
            "×",
            goal="< 1.1",
        )
        for count in _COUNTS
        if count > cores
    ]
