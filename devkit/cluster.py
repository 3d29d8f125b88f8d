"""Starts a standalone Spark cluster on this machine: one master, some workers, each a process that can be killed.

    with SparkCluster(python, folder, workers=2) as cluster:
        cluster.submit_command(...)       # what a user types: spark-submit --master spark://...
        cluster.workers[1].kill()         # kill -9 of the worker, its executors and their Python processes

What must be true: nothing of this repository is on any search path of the cluster. Its processes run in
their own folder, without PYTHONPATH, with an interpreter that has the dependencies and not the project (see
`installation`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from devkit.process import GuardedProcess, free_ports

HOST = "127.0.0.1"
START_SECONDS = 120
SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True, slots=True)
class ClusterWorker:
    """One worker of the cluster: a process that starts executors."""

    process: GuardedProcess

    @property
    def executors(self) -> list[int]:
        """The processes that run tasks for some application now."""
        return [pid for pid in descendants(self.process.pid) if "CoarseGrainedExecutorBackend" in _command_of(pid)]

    def kill(self) -> None:
        """End the worker and everything it has started by SIGKILL, as the loss of its machine would."""
        below = descendants(self.process.pid)
        self.process.kill()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass
class SparkCluster:
    """Master and workers below `folder`; `python` is the interpreter of driver and executors."""

    python: Path
    folder: Path
    count: int = 2
    cores: int = 3
    workers: list[ClusterWorker] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _port: int = 0

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """For every process of the cluster, and for the one that submits to it."""
        return {
            "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": str(self.python),
            "PYTHONPATH": "", "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m",
        }  # fmt: skip

    def submit_command(self, *words: str | Path) -> list[str]:
        return [str(SPARK_HOME / "bin/spark-submit"), "--master", self.master, *map(str, words)]

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._port, page, *pages = free_ports(2 + self.count)
        master = self._start("master", "master.Master", "--port", str(self._port), "--webui-port", str(page))
        log = self.folder / "master.log"
        master.wait_until(lambda: _says(log, "I have been elected leader"), seconds=START_SECONDS, what="Spark master")
        for number, port in enumerate(pages):
            words = (
                "--cores",
                str(self.cores),
                "--memory",
                "1g",
                "--webui-port",
                str(port),
                "--work-dir",
                f"work{number}",
            )
            process = self._start(f"worker{number}", "worker.Worker", *words, self.master)
            self.workers.append(ClusterWorker(process))
        for number, worker in enumerate(self.workers):
            registered = partial(_says, self.folder / f"worker{number}.log", "Successfully registered")
            worker.process.wait_until(registered, seconds=START_SECONDS, what=f"Spark worker {number}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.kill()
        self._stack.close()

    def _start(self, name: str, main: str, *words: str) -> GuardedProcess:
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{main}", "--host", HOST, *words]
        folder = self.folder / name
        folder.mkdir()
        # A worker's folder is its own, as its machine would be.
        placed = ["env", "-C", str(folder), *command]
        process = GuardedProcess(placed, log=self.folder / f"{name}.log", environment=self.environment)
        self._stack.callback(process.kill)
        return process


def descendants(ancestor: int) -> list[int]:
    """Every process below `ancestor`."""
    parents = {int(stat.parent.name): _parent_of(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return [pid for pid in parents if pid != ancestor and ancestor in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def _parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _says(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text(errors="replace")
