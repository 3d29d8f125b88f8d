"""Measures how fast a table is copied: idle, under write, by size, and what share of it is planning."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.bench import TABLE, Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import CopyRun, JobRun, memory_figures, start
from benchmarks.source import DATABASE
from devkit.waiting import wait_for
from vnode_backfill.config.job import load_config
from vnode_backfill.job.open.source import open_table
from vnode_backfill.snapshot.plan_questions import plan_table
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.plan import target_rows

_CHANGES_PER_SECOND = 500


def snapshot(bench: Bench) -> list[Figure]:
    """The job to live on an idle source, and the plain copy, in turns."""
    pairs = [(bench.copied_by_job(TABLE), bench.copied_plainly(TABLE)) for _ in range(bench.rounds)]
    jobs, copies = [job for job, _ in pairs], [copy for _, copy in pairs]
    goal = ">= 2.0"
    return [
        *_job_figures("snapshot", bench.rows, jobs),
        *_copy_figures("snapshot", bench.rows, copies),
        *_ratios("snapshot", jobs, copies, goal),
    ]


def writer(bench: Bench) -> list[Figure]:
    """The same while a writer changes rows; afterwards the job continues to the end of the log and is compared."""
    case, table = "writer", "busy"
    bench.source.create_table(table, bench.rows, key_step=2)
    with _writing(bench, table) as counts:
        began = time.monotonic()
        pairs = [
            (bench.copied_by_job(table, moving=True), bench.copied_plainly(table, moving=True))
            for _ in range(bench.rounds)
        ]
        job = bench.job(table)
        job.to_live()
        seconds = time.monotonic() - began
    job.to_live()
    bench.check(job.lake, table)
    jobs, copies = [job for job, _ in pairs], [copy for _, copy in pairs]
    after = [float(run.epochs_after_last_range) for run in jobs]
    return [
        figure(case, "changes per second, in fact", [sum(counts) / seconds], "rows/s"),
        *_job_figures(case, bench.rows, jobs),
        *_copy_figures(case, bench.rows, copies),
        *_ratios(case, jobs, copies, ">= 1.5"),
        figure(case, "epochs from the last range to live", after, "", goal="< 4"),
    ]


def growth(bench: Bench) -> list[Figure]:
    """The same job at an eighth, a quarter, a half and the whole of the rows."""
    sizes = [bench.rows // 8, bench.rows // 4, bench.rows // 2, bench.rows]
    names = {size: f"orders_{size}" for size in sizes[:-1]} | {bench.rows: TABLE}
    for size in sizes[:-1]:
        bench.source.create_table(names[size], size)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(bench.rounds):
        for size in sizes:
            seconds[size].append(bench.copied_by_job(names[size]).seconds)
    figures = [
        figure("growth", f"{size:,} rows", [1e6 * taken / size for taken in seconds[size]], "µs/row") for size in sizes
    ]
    last, before = figures[-1], figures[-2]
    # A fixed cost makes the time per row fall; what counts is that it does not rise again. 1.1 leaves room for noise.
    ratio = [last.value / before.value]
    return [*figures, figure("growth", "time per row, whole to half", ratio, "×", goal="< 1.1")]


_OTHER_KEYS = (
    ("text_keys", "MD5(id)", "k VARCHAR(36) PRIMARY KEY", "text keys"),
    ("pair_keys", "id % 997, id", "a INT, b INT, PRIMARY KEY (a, b)", "composite keys"),
)


def planning(bench: Bench) -> list[Figure]:
    """Planning's share of a job, and how even the ranges are; dense keys, and keys with extreme gaps."""
    bench.source.create_gap_table("gaps", TABLE, bench.rows)
    figures: list[Figure] = []
    for table, name in ((TABLE, "dense keys"), ("gaps", "keys with extreme gaps")):
        runs = [bench.copied_by_job(table) for _ in range(bench.rounds)]
        shares = [100 * run.planning_seconds / run.seconds for run in runs]
        figures.append(figure("planning", f"{name}: time", [run.planning_seconds for run in runs], "s"))
        figures.append(figure("planning", f"{name}: share of the job", shares, "%", goal="< 3"))
        figures += _evenness(bench, table, name)
    return [*figures, *_other_keys(bench)]


def _other_keys(bench: Bench) -> list[Figure]:
    """Planning alone, of keys that cannot be divided by arithmetic: how long, and how much of the index is walked."""
    figures: list[Figure] = []
    for table, key, columns, name in _OTHER_KEYS:
        bench.source.create_keyed_table(table, TABLE, key, columns)
        config = load_config(bench.job(table).config)
        seconds, read, ranges = [], [], 0
        for _ in range(bench.rounds):
            before, began = bench.source.index_rows_read(), time.monotonic()
            ranges = len(plan_table(open_table(config), config)[1].ranges)
            seconds.append(time.monotonic() - began)
            read.append(100 * (bench.source.index_rows_read() - before) / bench.rows)
        figures.append(figure("planning", f"{name}: time, planning alone", seconds, "s", note=f"{ranges} ranges"))
        figures.append(figure("planning", f"{name}: rows of the index that are walked", read, "%"))
    return figures


def _evenness(bench: Bench, table: str, name: str) -> list[Figure]:
    config = load_config(bench.job(table).config)
    facts, plan = plan_table(open_table(config), config)
    target = target_rows(facts.estimated_rows, config.vnodes, facts.average_row_bytes, config.limits.range_bytes)
    counts = _rows_per_range(bench, table, plan)
    within = 100 * sum(target <= 2 * rows <= 4 * target for rows in counts) / len(counts)
    return [
        figure("planning", f"{name}: ranges", [float(len(counts))], "", note=f"target {target:,} rows"),
        figure("planning", f"{name}: ranges within 2× of the target", [within], "%", goal=">= 95"),
        figure("planning", f"{name}: largest range", [max(counts) / target], "× target"),
    ]


def _rows_per_range(bench: Bench, table: str, plan: SplitPlan) -> list[int]:
    counts = []
    for planned in plan.ranges:
        low, high = planned.range.low, planned.range.high
        assert low is not None
        assert high is not None
        sign = "<=" if planned.range.closed else "<"
        query = f"SELECT COUNT(*) FROM {table} WHERE id >= {low.key[0]!r} AND id {sign} {high.key[0]!r}"
        counts.append(bench.source.row(query)[0])
    return counts


@contextmanager
def _writing(bench: Bench, table: str) -> Iterator[list[int]]:
    """A writer at work; the list holds how many rows it changed once it has ended."""
    position = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'BINLOG_COMMITS'"
    before = bench.source.row(position)
    process = start(
        ["-m", "devkit.writer", "--port", str(bench.source.port), "--database", DATABASE, "--table", table,
         "--rate", str(_CHANGES_PER_SECOND), "--seed", "7"]
    )  # fmt: skip
    counts: list[int] = []
    try:
        wait_for(lambda: bench.source.row(position) > before, "the writer's first change", seconds=600)
        yield counts
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=600)
    counts += json.loads(output.strip().splitlines()[-1])["counts"].values()


def _job_figures(case: str, rows: int, runs: Sequence[JobRun]) -> list[Figure]:
    return [
        figure(case, "job, to live", [run.seconds for run in runs], "s"),
        figure(case, "job, to live", [rows / run.seconds for run in runs], "rows/s"),
        figure(case, "job, whole process", [run.spent.whole_seconds for run in runs], "s"),
        figure(case, "job, CPU of driver", [run.spent.cpu.driver for run in runs], "CPU-s"),
        figure(case, "job, CPU of JVM", [run.spent.cpu.jvm for run in runs], "CPU-s"),
        figure(case, "job, CPU of workers", [run.spent.cpu.workers for run in runs], "CPU-s"),
        figure(case, "job, CPU of server", [run.spent.server_cpu for run in runs], "CPU-s"),
        *memory_figures(case, "job", [run.spent for run in runs], goal="< 1200"),
    ]


def _copy_figures(case: str, rows: int, runs: Sequence[CopyRun]) -> list[Figure]:
    return [
        figure(case, "plain copy, cold JVM", [run.seconds for run in runs], "s"),
        figure(case, "plain copy, cold JVM", [rows / run.seconds for run in runs], "rows/s"),
        figure(case, "plain copy, warm JVM", [run.warm_seconds for run in runs], "s"),
        figure(case, "plain copy, whole process", [run.whole_seconds for run in runs], "s", note="one copy"),
        figure(
            case, "plain copy, CPU of client", [run.cpu.total for run in runs], "CPU-s", note="one copy, with start"
        ),
        figure(
            case, "plain copy, CPU of client", [run.warm_cpu.total for run in runs], "CPU-s", note="warm copy alone"
        ),
        figure(case, "plain copy, CPU of server", [run.spent.server_cpu / 2 for run in runs], "CPU-s"),
        *memory_figures(case, "plain copy", [run.spent for run in runs]),
    ]


def _ratios(case: str, jobs: Sequence[JobRun], copies: Sequence[CopyRun], goal: str) -> list[Figure]:
    """Per round, so that both sides of a ratio were measured one after the other."""
    pairs = list(zip(jobs, copies, strict=True))
    return [
        figure(case, "job against plain copy", [c.seconds / j.seconds for j, c in pairs], "×", goal=goal),
        figure(case, "job against plain copy, warm JVM", [c.warm_seconds / j.seconds for j, c in pairs], "×"),
        figure(case, "job against plain copy, whole", [c.whole_seconds / j.spent.whole_seconds for j, c in pairs], "×"),
        figure(case, "CPU of plain copy against job", [c.cpu.total / j.spent.cpu.total for j, c in pairs], "×"),
    ]
