"""Measures what commands cost beside a job: `verify` against the copy it checks, and how soon `status` answers."""

from __future__ import annotations

import shutil
from dataclasses import replace

from benchmarks.bench import TABLE, Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import Job, Spent, memory_figures, run_metered
from benchmarks.source import DATABASE

_MANY = 100
_ANSWERS = 5
_SMALL_ROWS = 1_000
_AT_ONCE = "< 0.5"


def verify(bench: Bench) -> list[Figure]:
    """A copy to live and a comparison of it, in turns; both whole processes, their start included."""
    copies, comparisons = [], []
    for _ in range(bench.rounds):
        job = bench.job(TABLE)
        copies.append(job.to_live().spent)
        comparisons.append(_command(bench, job, "verify"))
        shutil.rmtree(job.folder)
    ratios = [after.cpu.total / before.cpu.total for before, after in zip(copies, comparisons, strict=True)]
    case = "verify"
    return [
        figure(case, "verify, CPU of client", [each.cpu.total for each in comparisons], "CPU-s"),
        figure(case, "verify, CPU of server", [each.server_cpu for each in comparisons], "CPU-s"),
        figure(case, "verify, whole process", [each.whole_seconds for each in comparisons], "s"),
        figure(case, "copy, CPU of client", [each.cpu.total for each in copies], "CPU-s"),
        figure(case, "copy, CPU of server", [each.server_cpu for each in copies], "CPU-s"),
        figure(case, "CPU of verify against copy", ratios, "×", goal=_AT_ONCE),
        *memory_figures(case, "verify", comparisons),
    ]


def commands(bench: Bench) -> list[Figure]:
    """`status` and a request, of a job of one table and of a job of a hundred, while no driver runs."""
    bench.source.create_table("small", _SMALL_ROWS)
    one = bench.job("small")
    one.to_live()
    names = [f"many_{number}" for number in range(_MANY)]
    for name in names:
        bench.source.execute(f"CREATE TABLE {name} LIKE small", f"INSERT INTO {name} SELECT * FROM small")
    many = replace(bench.job("small"), tables=tuple(f"{DATABASE}.{name}" for name in names))
    many.to_live()
    return [
        *_answered(bench, one, "one table"),
        *_answered(bench, many, f"{_MANY} tables"),
    ]


def _answered(bench: Bench, job: Job, of: str) -> list[Figure]:
    figures = []
    for name in ("status", "pause"):
        found = [_command(bench, job, name) for _ in range(_ANSWERS)]
        seconds, cpu = [each.whole_seconds for each in found], [each.cpu.total for each in found]
        figures.append(figure("commands", f"{name} of {of}", seconds, "s", goal=_AT_ONCE))
        figures.append(figure("commands", f"{name} of {of}", cpu, "CPU-s"))
    return figures


def _command(bench: Bench, job: Job, name: str) -> Spent:
    return run_metered(bench.source, ["-m", "vnode_backfill", name, "--config", str(job.config)])
