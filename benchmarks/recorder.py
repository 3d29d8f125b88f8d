"""Runs the job's command line with a stopwatch: notes every order's begin and end, on the machine's monotonic clock.

`python -m benchmarks.recorder --marks FILE -- run --config job.yaml …` runs as `vnode-backfill run …` and writes one
JSON line per mark. The clock is the same for all processes of a machine, so the process that started this one can
compare.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

from benchmarks.process_tree import Cpu, TreeMeter
from vnode_backfill.commands.cli import main as run_command
from vnode_backfill.decide.protocol import Action, CommitEpoch, ReadRanges
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.order_threads import Moment
from vnode_backfill.snapshot import plan_questions
from vnode_backfill.spark import session

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Mark:
    """`name` began or ended at `at`, in `epoch` or outside any (-1). `ranges` were ordered, `live` was committed.

    `driver` is the CPU time of the driver's process so far, which costs nothing to know.
    """

    at: float
    name: str
    moment: str
    epoch: int = -1
    ranges: int = 0
    live: bool = False
    driver: float = 0.0
    cpu: Cpu | None = None


class Recorder:
    """Writes marks. With `cpu` each holds what the process tree has used, which takes some milliseconds to measure."""

    def __init__(self, file: TextIO, *, cpu: bool) -> None:
        self._file, self._lock = file, threading.Lock()
        self._meter = TreeMeter(os.getpid()) if cpu else None

    def seam(self, moment: Moment, action: Action) -> None:
        epoch, ranges, live = -1, 0, False
        match action:
            case CommitEpoch(state=state):
                epoch, live = state.epoch, state.is_live
            case ReadRanges(barrier=barrier, lanes=lanes):
                epoch, ranges = barrier.epoch, sum(map(len, lanes))
            case _ if (found := getattr(action, "barrier", None)) is not None:
                epoch = found.epoch
        self.mark(type(action).__name__, moment, epoch=epoch, ranges=ranges, live=live)

    def mark(self, name: str, moment: str, *, epoch: int = -1, ranges: int = 0, live: bool = False) -> None:
        with self._lock:
            cpu = self._meter.sample() if self._meter else None
            mark = Mark(time.monotonic(), name, moment, epoch, ranges, live, time.process_time(), cpu)
            self._file.write(json.dumps(asdict(mark)) + "\n")
            self._file.flush()

    def timed(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            self.mark(name, "before")
            try:
                return function(*args, **kwargs)
            finally:
                self.mark(name, "after")

        return call


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--marks", required=True, type=Path, help="where the marks go")
    parser.add_argument("--cpu", action="store_true", help="mark the CPU time used as well")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    with arguments.marks.open("w") as file:
        recorder = Recorder(file, cpu=arguments.cpu)
        order_threads.seam = recorder.seam
        # Each function is replaced in the module whose functions call it.
        opener = import_module("vnode_backfill.job.open.open")
        vars(opener)["open_job"] = recorder.timed("open_job", opener.open_job)
        plan_questions.plan_table = recorder.timed("plan_table", plan_questions.plan_table)
        session.open_session = recorder.timed("open_session", session.open_session)
        run_command([word for word in arguments.command if word != "--"])


if __name__ == "__main__":
    main(sys.argv[1:])
