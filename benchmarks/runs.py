"""Runs the job or the plain copy once, in its own process, as a user starts it, and times it.

Each run has two times. `seconds` is the work: from the moment the session is up until the job's commit says "live", or
until the copy's table is written. The job examines and plans the table while the JVM starts. What is left of that when
the session is up counts here. All of it counts in `whole_seconds`, the process from its start to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.process_tree import Cpu, Metered
from benchmarks.recorder import Mark
from benchmarks.results import Figure, figure
from benchmarks.source import DATABASE, Source
from devkit.spark import REPOSITORY

DRIVER_MEMORY = "2g"
_END_SECONDS = 600
_MEGABYTE = 1024 * 1024


class RunFailedError(Exception):
    """A process of the benchmark ended with an error; its output is the message."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process cost, whole: its tree, and the server meanwhile."""

    whole_seconds: float
    cpu: Cpu
    server_cpu: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    """With pages that processes share counted once."""
    output: str


def memory_figures(case: str, who: str, spent: Sequence[Spent], goal: str = "") -> list[Figure]:
    """The peak of what the processes held, with shared pages counted once per process, and once."""
    resident = [each.peak_rss_bytes / _MEGABYTE for each in spent]
    proportional = [each.peak_pss_bytes / _MEGABYTE for each in spent]
    return [
        figure(case, f"{who}, peak memory", resident, "MB", note="shared pages once per process"),
        figure(case, f"{who}, peak memory", proportional, "MB", goal=goal, note="shared pages once"),
    ]


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run of the job, with its marks in order of time."""

    spent: Spent
    marks: tuple[Mark, ...]

    @property
    def planning_seconds(self) -> float:
        return self.took("plan_table")

    @property
    def seconds(self) -> float:
        return self.live_at - self.at("open_session", "after")

    @property
    def live_at(self) -> float:
        return next(m.at for m in self.marks if m.name == "CommitEpoch" and m.moment == "after" and m.live)

    @property
    def epochs_after_last_range(self) -> int:
        """How many epochs were committed after the one in which the last range was read, up to the one that is live."""
        last = max(m.epoch for m in self.marks if m.name == "ReadRanges" and m.ranges)
        live = next(m.epoch for m in self.marks if m.name == "CommitEpoch" and m.moment == "after" and m.live)
        return live - last

    def took(self, name: str, epoch: int = -1) -> float:
        """Seconds from the first beginning of `name` (in `epoch`) to its end."""
        return self.at(name, "after", epoch) - self.at(name, "before", epoch)

    def at(self, name: str, moment: str, epoch: int = -1) -> float:
        return self.mark(name, moment, epoch).at

    def mark(self, name: str, moment: str, epoch: int = -1) -> Mark:
        return next(m for m in self.marks if m.name == name and m.moment == moment and epoch in (-1, m.epoch))


@dataclass(frozen=True, slots=True)
class CopyRun:
    """A run of the plain copy, twice in one session: the first with a cold JVM, the second with a warm one."""

    spent: Spent
    seconds: float
    warm_seconds: float
    whole_seconds: float
    """Of a process that copies once: from its start to the end of its first copy."""
    cpu: Cpu
    """Of the same stretch."""
    warm_cpu: Cpu
    """Of the second copy alone."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the benchmark, below `folder`, as a YAML file with the defaults of the product."""

    source: Source
    folder: Path
    table: str
    settings: Mapping[str, object]
    sink: Mapping[str, object] = field(default_factory=dict)
    """Further keys of `sink.delta`."""
    tables: tuple[str, ...] = ()
    """For a job of many tables: their names, in place of `table`."""

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def config(self) -> Path:
        path = self.folder / "job.yaml"
        self.folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, and needs no quoting rules.
        path.write_text(json.dumps(self._settings()))
        return path

    @property
    def marks(self) -> Path:
        return self.folder / "marks.jsonl"

    def to_live(self, *, cpu: bool = False) -> JobRun:
        """`vnode-backfill run --until live`."""
        spent = run_metered(self.source, self.command("--until", "live", cpu=cpu))
        return JobRun(spent, read_marks(self.marks))

    def command(self, *flags: str, cpu: bool = False) -> list[str]:
        """The arguments of Python that run the job and write its marks."""
        recorder = ["-m", "benchmarks.recorder", "--marks", str(self.marks), *(["--cpu"] if cpu else [])]
        return [*recorder, "--", "run", "--config", str(self.config), "--quiet", *flags]

    def _settings(self) -> dict[str, object]:
        mysql = {"host": "127.0.0.1", "port": self.source.port, "user": "root"}
        return {
            "job": "bench",
            "mysql": {**mysql, **self._tables()},
            "sink": {"delta": {"path": f"{self.lake}/{{table}}" if self.tables else str(self.lake), **self.sink}},
            "state": {"path": str(self.folder / "state")},
            "ui": {"port": 0},
            "spark": {"spark.ui.enabled": "false", "spark.driver.memory": DRIVER_MEMORY},
            **self.settings,
        }

    def _tables(self) -> dict[str, object]:
        return {"tables": list(self.tables)} if self.tables else {"database": DATABASE, "table": self.table}


def plain_copy(source: Source, folder: Path, table: str) -> CopyRun:
    """Copy `table` with Spark's JDBC source into a Delta table in `folder`, and then once more over it."""
    low, high = source.key_range(table)
    began = time.monotonic()
    spent = run_metered(
        source,
        ["-m", "benchmarks.peers.plain_copy", "--port", str(source.port), "--database", DATABASE, "--table", table,
         "--key-range", str(low), str(high), "--memory", DRIVER_MEMORY, "--copies", "2", "--folder", str(folder)],
    )  # fmt: skip
    told = json.loads(spent.output.strip().splitlines()[-1])
    session, first, second = (float(moment) for moment in told["moments"])
    _, once, twice = (Cpu(**used) for used in told["cpu"])
    return CopyRun(spent, first - session, second - first, first - began, once, twice.since(once))


def read_marks(path: Path) -> tuple[Mark, ...]:
    marks = []
    for line in path.read_text().splitlines():
        told = json.loads(line)
        cpu = told.pop("cpu")
        marks.append(Mark(**told, cpu=Cpu(**cpu) if cpu else None))
    return tuple(sorted(marks, key=lambda mark: mark.at))


def run_metered(source: Source, arguments: Sequence[str]) -> Spent:
    """Run Python with these arguments to its end, which must be a good one."""
    return _metered(source, arguments, start)


def run_program(source: Source, words: Sequence[str]) -> Spent:
    """Run a program of somebody else's to its end, which must be a good one."""
    return _metered(source, words, _start_program)


def _metered(source: Source, words: Sequence[str], begin: Callable[[Sequence[str]], subprocess.Popen[str]]) -> Spent:
    began, server = time.monotonic(), source.cpu_seconds
    process = begin(words)
    with Metered(process.pid) as meter:
        output, _ = process.communicate()
    whole = time.monotonic() - began
    if process.returncode != 0:
        raise RunFailedError(f"{' '.join(words)} ended with {process.returncode}:\n{output[-6000:]}")
    usage = meter.usage
    spent = source.cpu_seconds - server
    return Spent(whole, usage.cpu, spent, usage.peak_rss_bytes, usage.peak_pss_bytes, output)


def _start_program(words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@contextmanager
def background(arguments: Sequence[str], folder: Path) -> Iterator[Background]:
    """Python with these arguments for as long as the block runs; then it is asked to end, and must end well."""
    path = folder / f"{arguments[1]}.out"
    with path.open("w") as output:
        process = start(arguments, output)
    running = Background(process, path)
    try:
        yield running
        process.send_signal(signal.SIGTERM)
        process.wait(_END_SECONDS)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RunFailedError(running.ended)


@dataclass(frozen=True, slots=True)
class Background:
    """A process at work; what it prints goes to a file, so that it never waits for somebody who reads it."""

    process: subprocess.Popen[str]
    output: Path

    @property
    def ended(self) -> str:
        return f"{self.output.stem} ended with {self.process.returncode}:\n{self.output.read_text()[-6000:]}"

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise RunFailedError(self.ended)


def start(arguments: Sequence[str], output: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Python with these arguments, in the background."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    # An installation has its bytecode; a checkout has it after the first run, unless nobody may write it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
