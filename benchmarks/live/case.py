"""The case `following`: a job follows a large table under scattered updates while somebody reads the lake.

Four processes are at work: the job, as a user starts it; the writer (`scattered`); the reader (`heartbeat`), whose
samples alone say how old the lake is; and this one, which looks at folders and processes once a second. The copy of the
table comes before and is not measured. Nor is the warm-up, which begins when the first heartbeat is in the lake. After
the stretch the job is stopped, the lake is compared with the source, and read beside a compacted copy (`read_back`).
"""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench import Bench
from benchmarks.live.heartbeat import Sample
from benchmarks.live.read_back import ReadBack
from benchmarks.live.stretch import Stretch, percentile
from benchmarks.live.written import WrittenBytes
from benchmarks.process_tree import Cpu, TreeMeter, Usage
from benchmarks.recorder import Mark
from benchmarks.results import Figure, figure
from benchmarks.runs import Background, Job, background, read_marks, run_metered
from benchmarks.source import DATABASE
from devkit.process import free_ports
from devkit.waiting import wait_for
from vnode_backfill.commands.status import read_report
from vnode_backfill.config.job import load_config
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta.due import GONE_AT_MOST, WORTH_BYTES

TABLE = "followed"
_CASE = "following"
_MEGABYTE = 1e6
_LOOK_EVERY_SECONDS = 1.0
_PATIENCE_SECONDS = 600
_APPLIED = "vnode_backfill_merged_changes"
_KEEPS_UP, _READS_AS_WELL = "< 1.2", "< 1.5"


@dataclass(frozen=True, slots=True)
class Goals:
    """Upper bounds of the age's p50 and p99 in seconds and of the megabytes written per minute; empty where none is."""

    p50: str = ""
    p99: str = ""
    megabytes: str = ""


_GOALS: Mapping[tuple[int, int], Goals] = {
    (2_000_000, 500): Goals("< 1.0", "< 2.5", "< 60"),
    # 1.3 times the age at 2,000,000 rows.
    (8_000_000, 500): Goals("< 1.3", "< 3.25", "< 90"),
    (32_000_000, 500): Goals("< 1.3", "< 3.25", "< 150"),
    (8_000_000, 5_000): Goals(p99="< 5"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """What was counted up to a moment."""

    at: float
    cpu: Cpu
    server_cpu: float
    written: Mapping[str, int]
    applied: float
    lag_seconds: float
    base: frozenset[str]


@dataclass(frozen=True, slots=True)
class Followed:
    """A stretch of following: what was counted at its beginning, middle and end, and what was noted meanwhile."""

    points: tuple[Point, Point, Point]
    usage: Usage
    samples: tuple[Sample, ...]
    updated: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...]

    @property
    def stretch(self) -> Stretch:
        return Stretch(self.points[0].at, self.points[-1].at)

    @property
    def ages(self) -> list[float]:
        return [sample.age for sample in self.samples]


def following(bench: Bench) -> list[Figure]:
    """Age of the lake, what following costs, and how the lake reads afterwards."""
    bench.source.create_large_table(TABLE, bench.rows + 1)
    job = _prepared_job(bench)
    found = _Following(bench, job).measured()
    bench.check(job.lake, TABLE)
    goals = _GOALS.get((bench.rows, bench.traffic.rate), Goals())
    return [
        *_age_figures(found, goals),
        *_written_figures(found, goals),
        *_cost_figures(found),
        *_read_figures(_read_back(bench, job.lake)),
    ]


def _prepared_job(bench: Bench) -> Job:
    """A job that is live on a compacted lake and does not run."""
    (port,) = free_ports()
    job = bench.job(TABLE, {"ui": {"port": port}}, sink=bench.traffic.sink)
    job.to_live()
    run_metered(bench.source, ["-m", "vnode_backfill", "compact", "--config", str(job.config)])
    if bench.traffic.prepare_deleted:
        size = sum(_file_sizes(job.lake).values())
        bench.source.execute(
            f"UPDATE {TABLE} SET amount = amount + 1 WHERE id % {one_in(bench.rows, bench.traffic.rate, size)} = 0"
        )
        job.to_live()
    return job


def one_in(rows: int, rate: int, size: int) -> int:
    """One in so many rows is half of those that are gone when a fold is due, of a table of `size` bytes.

    A commit a second takes `rate` rows and writes two bytes for each row that is gone. So the vectors have as many bytes
    as the table when the square root of `size` × `rate` rows are gone; a tenth of all rows is the most.
    """
    due = min(math.sqrt(size * rate), rows / GONE_AT_MOST)
    return round(2 * rows / due)


def _file_sizes(lake: Path) -> dict[str, int]:
    """The files of the newest version."""
    log = DeltaLog(Storage.of(str(lake)), "", "the lake")
    return {file.path: file.size for file in log.files(log.open(), ())}


def _base_files(lake: Path) -> frozenset[str]:
    """The files that are folded for the rows they have lost; smaller ones are joined."""
    return frozenset(path for path, size in _file_sizes(lake).items() if size >= WORTH_BYTES)


class _Following:
    """One live run of a prepared job, with its writer and its reader."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._job = bench, job
        self._samples, self._counter = job.folder / "samples.jsonl", job.folder / "updated.jsonl"
        self._written = WrittenBytes(job.lake, job.folder / "state")
        self._running: list[Background] = []

    def measured(self) -> Followed:
        """Run job, writer and reader for the warm-up and the stretch, then end them in order."""
        traffic = self._bench.traffic
        with ExitStack() as stack:
            # The last to start ends first: the job applies what was written before it stops.
            meter = TreeMeter(self._start(stack, self._job.command()))
            # What was written while the JVM starts would be a backlog, whose end the warm-up might not see.
            wait_for(self._works, "a job that works", seconds=_PATIENCE_SECONDS)
            self._start(stack, self._writer())
            self._start(stack, self._reader())
            wait_for(self._beats, "a heartbeat in the lake", seconds=_PATIENCE_SECONDS)
            self._watch(meter, traffic.warm_up)
            points = [self._point(meter)]
            for _ in range(2):
                self._watch(meter, traffic.seconds / 2)
                points.append(self._point(meter))
        first, middle, last = points
        stretch = Stretch(first.at, last.at)
        samples = tuple(sample for sample in map(_sample, _lines(self._samples)) if stretch.holds(sample.at))
        updated = tuple((float(at), float(count)) for at, count in map(json.loads, _lines(self._counter)))
        return Followed((first, middle, last), meter.usage, samples, updated, read_marks(self._job.marks))

    def _start(self, stack: ExitStack, arguments: Sequence[str]) -> int:
        self._running.append(stack.enter_context(background(arguments, self._job.folder)))
        return self._running[-1].process.pid

    def _writer(self) -> list[str]:
        return [
            "-m", "benchmarks.live.scattered", "--port", str(self._bench.source.port), "--database", DATABASE,
            "--table", TABLE, "--rows", str(self._bench.rows), "--rate", str(self._bench.traffic.rate),
            "--counter", str(self._counter),
        ]  # fmt: skip

    def _reader(self) -> list[str]:
        return [
            "-m", "benchmarks.live.heartbeat", "--lake", str(self._job.lake), "--key", str(self._bench.rows + 1),
            "--samples", str(self._samples),
        ]  # fmt: skip

    def _works(self) -> bool:
        self._check_alive()
        try:
            return bool(_page(load_config(self._job.config).ui.port, "healthz"))
        except urllib.error.URLError:
            return False

    def _beats(self) -> bool:
        """Whether the reader has found a time of this writer; before, the row holds what the table was made with."""
        self._check_alive()
        counted, read = _lines(self._counter), _lines(self._samples)
        if not counted or not read:
            return False
        first_beat = json.loads(counted[0])[0]
        return bool(first_beat <= _sample(read[-1]).written <= time.monotonic())

    def _watch(self, meter: TreeMeter, seconds: float) -> None:
        until, pause = time.monotonic() + seconds, threading.Event()
        while (left := until - time.monotonic()) > 0:
            self._check_alive()
            meter.sample(proportional=True)
            self._written.look()
            pause.wait(min(left, _LOOK_EVERY_SECONDS))

    def _check_alive(self) -> None:
        for each in self._running:
            each.check_alive()

    def _point(self, meter: TreeMeter) -> Point:
        config = load_config(self._job.config)
        lag = read_report(config).observed.lag_seconds
        return Point(
            time.monotonic(), meter.sample(), self._bench.source.cpu_seconds, self._written.look(),
            _applied(config.ui.port), float("nan") if lag is None else lag, _base_files(self._job.lake),
        )  # fmt: skip


def _applied(port: int) -> float:
    """How many changes the job has merged, by its own counter."""
    families = text_string_to_metric_families(_page(port, "metrics"))
    return next(sample.value for family in families if family.name == _APPLIED for sample in family.samples)


def _page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=30) as answer:
        return str(answer.read().decode())


def _lines(path: Path) -> list[str]:
    """The whole lines of a file that somebody may be writing."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def _sample(line: str) -> Sample:
    return Sample(**json.loads(line))


def _read_back(bench: Bench, lake: Path) -> list[ReadBack]:
    spent = run_metered(
        bench.source, ["-m", "benchmarks.live.read_back", "--lake", str(lake), "--rounds", str(bench.rounds)]
    )
    told = json.loads(spent.output.strip().splitlines()[-1])
    return [ReadBack(each["reader"], tuple(each["left"]), tuple(each["compacted"])) for each in told]


def _age_figures(found: Followed, goals: Goals) -> list[Figure]:
    ages, costs = found.ages, [sample.cost for sample in found.samples]
    growth = found.stretch.growth([(sample.at, sample.age) for sample in found.samples])
    read = f"{len(ages):,} reads"
    return [
        figure(_CASE, "scattered updates, in fact", [found.stretch.per_second(found.updated)], "rows/s"),
        figure(_CASE, "age of the lake, p50", [percentile(ages, 50)], "s", goal=goals.p50, note=read),
        figure(_CASE, "age of the lake, p90", [percentile(ages, 90)], "s"),
        figure(_CASE, "age of the lake, p99", [percentile(ages, 99)], "s", goal=goals.p99),
        figure(_CASE, "age of the lake, largest", [max(ages)], "s"),
        figure(_CASE, "age at the end against the middle", [growth], "×", goal=_KEEPS_UP, note="keeps up"),
        figure(_CASE, "lag by status, in the middle", [found.points[1].lag_seconds], "s"),
        figure(_CASE, "lag by status, at the end", [found.points[2].lag_seconds], "s"),
        figure(_CASE, "one read of the reader, p50", [percentile(costs, 50)], "s", note="in the age"),
        figure(_CASE, "one read of the reader, p99", [percentile(costs, 99)], "s"),
    ]


def _written_figures(found: Followed, goals: Goals) -> list[Figure]:
    first, _, last = found.points
    rates = {
        kind: (last.written[kind] - first.written[kind]) / _MEGABYTE / found.stretch.minutes for kind in last.written
    }
    return [
        figure(_CASE, "written, all of it", [sum(rates.values())], "MB/min", goal=goals.megabytes),
        *[figure(_CASE, f"written, {kind}", [rate], "MB/min") for kind, rate in rates.items()],
        figure(
            _CASE,
            "files folded in the stretch",
            [float(len(first.base - last.base))],
            "",
            note=f"of {len(first.base)} of {WORTH_BYTES / _MEGABYTE:.0f} MB or more",
        ),
    ]


def _cost_figures(found: Followed) -> list[Figure]:
    first, _, last = found.points
    minutes, cpu = found.stretch.minutes, last.cpu.since(first.cpu)
    epochs = sum(
        mark.name == "CommitEpoch" and mark.moment == "after" and found.stretch.holds(mark.at) for mark in found.marks
    )
    return [
        figure(_CASE, "changes applied", [(last.applied - first.applied) / minutes], "rows/min", note="last per key"),
        figure(_CASE, "epochs", [epochs / minutes], "/min"),
        figure(_CASE, "CPU of driver", [cpu.driver / minutes], "CPU-s/min"),
        figure(_CASE, "CPU of JVM", [cpu.jvm / minutes], "CPU-s/min"),
        figure(_CASE, "CPU of workers", [cpu.workers / minutes], "CPU-s/min"),
        figure(_CASE, "CPU of server", [(last.server_cpu - first.server_cpu) / minutes], "CPU-s/min"),
        figure(_CASE, "peak memory, resident", [found.usage.peak_rss_bytes / _MEGABYTE], "MB"),
        figure(_CASE, "peak memory, shared pages once", [found.usage.peak_pss_bytes / _MEGABYTE], "MB"),
    ]


def _read_figures(reads: Sequence[ReadBack]) -> list[Figure]:
    figures = []
    for each in reads:
        ratios = [left / compacted for left, compacted in zip(each.left, each.compacted, strict=True)]
        note = f"{statistics.median(each.left):.3g} s against {statistics.median(each.compacted):.3g} s"
        what = f"{each.reader}, lake against compacted copy"
        figures.append(figure(_CASE, what, ratios, "×", goal=_READS_AS_WELL, note=note))
    return figures
