"""Measures what following the log costs: an epoch's fixed cost, and how fast a backlog is caught up."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench, lake_count_and_sums
from benchmarks.process_tree import Cpu
from benchmarks.recorder import Mark
from benchmarks.results import Figure, figure
from benchmarks.runs import Job, JobRun, RunFailedError, memory_figures, read_marks, start
from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from devkit.object_store import ObjectStore
from devkit.waiting import wait_for
from vnode_backfill.config.job import load_config
from vnode_backfill.job.open.source import open_table

_TINY = {
    # Each epoch reads one range of a hundred rows per worker, and none waits for its length.
    "vnodes": 8,
    "workers": 2,
    "epoch": {"backfill": "1ms", "live": "1ms"},
    "limits": {"range_rows": 100},
}
_TINY_ROWS = 4_000
_CHANGES = 10
_PATIENCE_SECONDS = 600
_BACKLOG_ROWS = 500_000


def epoch(bench: Bench) -> list[Figure]:
    """Epochs with next to nothing to do, so that what is left is their fixed cost: on a local disk, and on a store that
    speaks S3 on the same machine."""
    bench.source.create_table("tiny", _TINY_ROWS)
    local = _epoch_figures(bench, bench.job("tiny", _TINY), "", None)
    with ObjectStore("bench") as store:
        places = {
            "sink": {"delta": {"path": f"{store.url}/lake"}},
            "state": {"path": f"{store.url}/state"},
            "storage": {"options": store.options},
        }
        bench.source.create_table("tiny_in_store", _TINY_ROWS)
        job = bench.job("tiny_in_store", {**_TINY, **places})
        return [*local, *_epoch_figures(bench, job, ", S3 emulator", store)]


def _epoch_figures(bench: Bench, job: Job, where: str, store: ObjectStore | None) -> list[Figure]:
    lake, options = (str(job.lake), None) if store is None else (f"{store.url}/lake", store.options)
    run = job.to_live()
    read = {mark.epoch for mark in run.marks if mark.name == "ReadRanges" and mark.ranges}
    took = _epochs(run.marks)
    # The first pays for the start of the Python workers.
    reading = [seconds for number, seconds in took.items() if number in read and number > min(read)]
    empty = [seconds for number, seconds in took.items() if number not in read]
    process = start(job.command())
    try:
        reached = [_change_reaches_lake(bench, job.table, lake, options, number, process) for number in range(_CHANGES)]
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    if process.returncode != 0:
        raise RunFailedError(output[-6000:])
    live = list(_epochs(read_marks(job.marks)).values())
    goal, soon = ("< 1", "< 0.2") if store is None else ("", "")
    return [
        figure("epoch", f"snapshot, upstream and merge, 100 rows each worker{where}", reading, "s", goal=goal),
        figure("epoch", f"empty, all three actors{where}", empty, "s", goal=soon),
        figure("epoch", f"live, one change{where}", live, "s", goal=goal),
        figure(
            "epoch",
            f"from a change's commit to the lake{where}",
            reached[1:],
            "s",
            note="one epoch, no pause before it",
        ),
    ]


def _epochs(marks: Sequence[Mark]) -> dict[int, float]:
    """Per epoch, the seconds from its first order to its end being committed."""
    began = {mark.epoch: mark.at for mark in reversed(marks) if mark.name == "ReadRanges" and mark.moment == "before"}
    ended = {mark.epoch: mark.at for mark in reversed(marks) if mark.name == "CommitEpoch" and mark.moment == "after"}
    return {number: ended[number] - at for number, at in sorted(began.items()) if number in ended}


def _change_reaches_lake(
    bench: Bench, table: str, lake: str, options: Mapping[str, str] | None, number: int, process: subprocess.Popen[str]
) -> float:
    """Insert a row and wait until readers of the lake see it."""

    def arrived() -> bool:
        if process.poll() is not None:
            raise RunFailedError(f"the live job ended with {process.returncode}")
        return lake_count_and_sums(lake, options)[0] == _TINY_ROWS + number + 1

    bench.source.insert_copies(table, 1)
    began = time.monotonic()
    wait_for(arrived, "the change in the lake", seconds=_PATIENCE_SECONDS)
    return time.monotonic() - began


@dataclass(frozen=True, slots=True)
class _Stage:
    seconds: float
    cpu: Cpu


def catchup(bench: Bench) -> list[Figure]:
    """A live job finds inserted rows in the log: decoded alone, then buffered and merged by the job."""
    rows = min(_BACKLOG_ROWS, bench.rows)
    bench.source.create_table("backlog", rows)
    job = bench.job("backlog")
    job.to_live()
    table = open_table(load_config(job.config))
    after = table.written_offset()
    bench.source.insert_copies("backlog", rows)
    upto = table.written_offset()
    # The first time loads the compiled code.
    decoding = [_decode(table, after, upto, rows) for _ in range(2)][-1]
    run = job.to_live(cpu=True)
    bench.check(job.lake, "backlog")
    stages = {"buffered": _stage(run, "BufferChanges"), "merged": _stage(run, "MergeEpoch")}
    seconds = sum(stage.seconds for stage in stages.values())
    return [
        figure("catchup", "decoded alone, in one process", [rows / decoding.seconds], "rows/s"),
        figure("catchup", "decoded alone, in one process", [decoding.cpu.driver], "CPU-s"),
        *[each for name, stage in stages.items() for each in _stage_figures(name, rows, stage)],
        figure("catchup", "decoded, buffered and merged", [rows / seconds], "rows/s", note=f"{rows:,} inserted rows"),
        figure("catchup", "whole process", [run.spent.whole_seconds], "s"),
        *memory_figures("catchup", "job", [run.spent]),
    ]


def _decode(table: UpstreamTable, after: CdcOffset, upto: CdcOffset, rows: int) -> _Stage:
    """Read the stretch of the log to its end and keep nothing."""
    began, cpu = time.monotonic(), time.process_time()
    read = sum(len(batch) for batch in table.read_log(after, upto, 0))
    if read != rows:
        raise RunFailedError(f"{read} rows were decoded, {rows} were inserted")
    return _Stage(time.monotonic() - began, Cpu(driver=time.process_time() - cpu))


def _stage(run: JobRun, name: str) -> _Stage:
    """All orders of this name together, over the run's epochs. Whatever runs beside them is in their CPU time too."""
    before = [mark for mark in run.marks if mark.name == name and mark.moment == "before"]
    after = [mark for mark in run.marks if mark.name == name and mark.moment == "after"]
    stages = [_between(one, other) for one, other in zip(before, after, strict=True)]
    cpu = Cpu(*(sum(getattr(stage.cpu, role) for stage in stages) for role in ("driver", "jvm", "workers")))
    return _Stage(sum(stage.seconds for stage in stages), cpu)


def _between(before: Mark, after: Mark) -> _Stage:
    assert before.cpu is not None
    assert after.cpu is not None
    return _Stage(after.at - before.at, after.cpu.since(before.cpu))


def _stage_figures(name: str, rows: int, stage: _Stage) -> list[Figure]:
    used = f"driver {stage.cpu.driver:.1f}, JVM {stage.cpu.jvm:.1f}, workers {stage.cpu.workers:.1f}"
    return [
        figure("catchup", name, [rows / stage.seconds], "rows/s"),
        figure("catchup", name, [stage.cpu.total], "CPU-s", note=used),
    ]
