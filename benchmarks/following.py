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
_BACKLOG_ROWS, _MADE_ROWS, _TRANSACTION_ROWS = 2_000_000, 500_000, 1_000


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
    """A stopped job finds a backlog in the log: new rows, and then changes of rows that it has copied."""
    return [*_inserted(bench), *_changed(bench)]


def _inserted(bench: Bench) -> list[Figure]:
    rows = min(_BACKLOG_ROWS, bench.rows)
    made = min(_MADE_ROWS, rows)
    bench.source.create_table("backlog", made)
    job = bench.job("backlog")
    job.to_live()
    table = open_table(load_config(job.config))
    after = table.written_offset()
    for first in range(0, rows, made):
        bench.source.insert_copies("backlog", min(made, rows - first), each=_TRANSACTION_ROWS)
    upto = table.written_offset()
    # The first time loads the compiled code.
    decoding = [_decode(table, after, upto, rows) for _ in range(2)][-1]
    run = job.to_live(cpu=True)
    bench.check(job.lake, "backlog")
    return [
        figure("catchup", "decoded alone, in one process", [rows / decoding.seconds], "rows/s"),
        figure("catchup", "decoded alone, in one process", [decoding.cpu.driver], "CPU-s"),
        *_caught_up("inserted", rows, run, goal=">= 180000"),
        figure("catchup", "whole process", [run.spent.whole_seconds], "s"),
        *memory_figures("catchup", "job", [run.spent]),
    ]


def _changed(bench: Bench) -> list[Figure]:
    """Every row of a table is updated or deleted, and others are inserted, in transactions of a thousand rows."""
    rows = min(_MADE_ROWS, bench.rows)
    bench.source.create_table("changed", rows)
    job = bench.job("changed")
    job.to_live()
    changes = bench.source.change_rows("changed", rows, each=_TRANSACTION_ROWS)
    run = job.to_live(cpu=True)
    bench.check(job.lake, "changed")
    return _caught_up("updated, deleted and inserted", changes, run)


def _caught_up(what: str, rows: int, run: JobRun, *, goal: str = "") -> list[Figure]:
    """From the first order to capture the log until the last commit: capture and merge are at work side by side."""
    stage = _whole_stage(run.marks)
    epochs = len({mark.epoch for mark in run.marks if mark.name == "BufferChanges"})
    used = f"driver {stage.cpu.driver:.1f}, JVM {stage.cpu.jvm:.1f}, workers {stage.cpu.workers:.1f}"
    note = f"{rows:,} rows in transactions of {_TRANSACTION_ROWS:,}, {epochs} epochs"
    return [
        figure(
            "catchup", f"{what}, first order to last commit", [rows / stage.seconds], "rows/s", goal=goal, note=note
        ),
        figure("catchup", f"{what}, first order to last commit", [stage.cpu.total], "CPU-s", note=used),
        *[
            figure("catchup", f"{what}, {name} of all epochs", [_seconds(run.marks, order)], "s")
            for name, order in (("capture", "BufferChanges"), ("merge", "MergeEpoch"))
        ],
    ]


def _decode(table: UpstreamTable, after: CdcOffset, upto: CdcOffset, rows: int) -> _Stage:
    """Read the stretch of the log to its end and keep nothing."""
    began, cpu = time.monotonic(), time.process_time()
    read = sum(len(batch) for batch in table.read_log(after, upto, 0))
    if read != rows:
        raise RunFailedError(f"{read} rows were decoded, {rows} were inserted")
    return _Stage(time.monotonic() - began, Cpu(driver=time.process_time() - cpu))


def _whole_stage(marks: Sequence[Mark]) -> _Stage:
    first = next(mark for mark in marks if mark.name == "BufferChanges" and mark.moment == "before")
    last = [mark for mark in marks if mark.name == "CommitEpoch" and mark.moment == "after"][-1]
    assert first.cpu is not None
    assert last.cpu is not None
    return _Stage(last.at - first.at, last.cpu.since(first.cpu))


def _seconds(marks: Sequence[Mark], name: str) -> float:
    """All orders of this name together, over the run's epochs."""
    before, after = ([m.at for m in marks if m.name == name and m.moment == when] for when in ("before", "after"))
    return sum(after) - sum(before)
