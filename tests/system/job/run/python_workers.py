"""Killing the Python processes that a Spark has forked to run tasks, and no others."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def kill_python_workers(driver: int) -> int:
    """Kill -9 every worker of the driver's Spark, whichever daemon forked it; how many there were."""
    parents = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    daemons = {pid for pid in parents if "daemon" in _command(pid) and _is_below(driver, pid, parents)}
    workers = [pid for pid, parent in parents.items() if parent in daemons]
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(workers)


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_below(ancestor: int, pid: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
