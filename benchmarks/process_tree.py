"""Measures what a process and everything it started has used: CPU time by role, and the peak of its resident memory.

It reads /proc while the process runs, because a worker that has ended cannot be asked. Its last sample counts, so up to
one sampling interval of each ended process is missing. Memory is the sum of all resident sets; pages that forked
workers share are counted once per process, so the figure is an upper bound. The proportional sum, which divides such
pages among those that share them, is exact but costs the kernel a walk over all pages, so it is taken once a second.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_SECONDS = 0.1
_PROPORTIONAL_EVERY = 10


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU-seconds, user and system, of the parts of a job: the driver's Python, the JVM, the Python workers."""

    driver: float = 0.0
    jvm: float = 0.0
    workers: float = 0.0

    @property
    def total(self) -> float:
        return self.driver + self.jvm + self.workers

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.driver - before.driver, self.jvm - before.jvm, self.workers - before.workers)


@dataclass(frozen=True, slots=True)
class Usage:
    cpu: Cpu
    peak_rss_bytes: int
    peak_pss_bytes: int
    """Zero if it was never asked for."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: int
    name: str
    ticks: int
    pages: int


def process_cpu_seconds(pid: int) -> float:
    """What one process, with its threads and without its children, has used so far."""
    found = _read(pid)
    return found.ticks / _TICKS if found else 0.0


class TreeMeter:
    """Knows every process that `root` started, directly or not, from its first sample on."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[tuple[int, int], tuple[str, int]] = {}
        self._peak_pages = 0
        self._peak_pss = 0

    def sample(self, *, proportional: bool = False) -> Cpu:
        """Look at the tree now; the CPU time of all that was ever seen in it."""
        found = _all_processes()
        members = self._members(found)
        for process in members:
            self._known[process.pid, process.started] = (self._role(process), process.ticks)
        self._peak_pages = max(self._peak_pages, sum(process.pages for process in members))
        if proportional:
            self._peak_pss = max(self._peak_pss, sum(_proportional_bytes(process.pid) for process in members))
        return self._cpu()

    @property
    def usage(self) -> Usage:
        return Usage(self._cpu(), self._peak_pages * _PAGE, self._peak_pss)

    def _members(self, found: list[_Process]) -> list[_Process]:
        """Descendants of the root; those of an ended parent stay members, because they were seen before."""
        inside = {self._root}
        grown = True
        while grown:
            more = {p.pid for p in found if p.pid not in inside and (p.parent in inside or self._seen(p))}
            inside |= more
            grown = bool(more)
        return [process for process in found if process.pid in inside]

    def _seen(self, process: _Process) -> bool:
        return (process.pid, process.started) in self._known

    def _role(self, process: _Process) -> str:
        if process.pid == self._root:
            return "driver"
        return "jvm" if process.name == "java" else "workers"

    def _cpu(self) -> Cpu:
        seconds = dict.fromkeys(("driver", "jvm", "workers"), 0.0)
        for role, ticks in self._known.values():
            seconds[role] += ticks / _TICKS
        return Cpu(**seconds)


class Metered:
    """A meter that samples in the background for as long as the block runs."""

    def __init__(self, root: int) -> None:
        self._meter = TreeMeter(root)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def usage(self) -> Usage:
        return self._meter.usage

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        samples = count()
        while True:
            self._meter.sample(proportional=next(samples) % _PROPORTIONAL_EVERY == 0)
            if self._ended.wait(_SAMPLE_SECONDS):
                return


def _all_processes() -> list[_Process]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in map(_read, pids) if process is not None]


def _read(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets and may hold anything, brackets and spaces included.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return _Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        name=name,
        ticks=int(fields[11]) + int(fields[12]),
        pages=int(fields[21]),
    )


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
