"""The processes of a driver: which belong to it, which of them a signal reaches, and which are left when it has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from devkit.waiting import wait_for
from tests.system.job_case import JobCase, Started
from vnode_backfill.words.errors import StateError

LOST = "the JVM of Spark"
"""What every driver says whose JVM has ended."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process; `began` tells it apart from a later process of the same number."""

    pid: int
    parent: int
    group: int
    began: str
    command: str

    @classmethod
    def read(cls, pid: int) -> Self | None:
        """The process as it is now; None if there is none, or only its exit code is left."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return None
        return None if fields[0] == "Z" else cls(pid, int(fields[1]), int(fields[2]), fields[19], command)

    @property
    def runs(self) -> bool:
        now = Member.read(self.pid)
        return now is not None and now.began == self.began

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def tree_of(driver: int) -> list[Member]:
    """The driver and everything below it, the driver first."""
    everything = [Member.read(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    known = [member for member in everything if member is not None]
    found = [member for member in known if member.pid == driver]
    for member in found:
        found.extend(child for child in known if child.parent == member.pid)
    return found


def jvm_of(driver: int) -> Member:
    """The JVM that the driver has started."""
    (jvm,) = (member for member in tree_of(driver) if member.parent == driver and "org.apache.spark" in member.command)
    return jvm


def send_all(members: Iterable[Member], number: signal.Signals) -> None:
    """What a supervisor does to end a service: every process of it gets the signal."""
    for member in members:
        member.send(number)


def foreground(members: Iterable[Member]) -> list[Member]:
    """Those that Ctrl-C in a terminal reaches: the driver's own process group."""
    tree = list(members)
    return [member for member in tree if member.group == tree[0].group]


def wait_until_gone(members: Iterable[Member], *, seconds: float = 60) -> None:
    """Return once none of them runs any more."""
    tree = list(members)

    def left() -> list[Member]:
        return [member for member in tree if member.runs]

    wait_for(lambda: not left(), "every process of the tree to end", seconds=seconds, state=left)


def until_copying(case: JobCase, driver: Started) -> None:
    def copies() -> bool:
        driver.check_running()
        try:
            return case.report().rows > 0
        except StateError:
            return False

    wait_for(copies, "the first rows", seconds=180)


def kill_jvm(case: JobCase, driver: Started) -> None:
    """End the JVM as the OOM killer does; the driver must end with the reason, and everything with it."""
    tree = tree_of(driver.pid)
    jvm_of(driver.pid).send(signal.SIGKILL)
    printed = driver.wait(1, seconds=60)
    assert LOST in printed, printed
    assert "Traceback" not in printed, printed
    wait_until_gone(tree)
    failure = case.report().failure
    assert failure is not None
    assert LOST in failure.message


def stop_all(driver: Started, number: signal.Signals = signal.SIGTERM) -> None:
    """End every process of the tree at once, as a supervisor does."""
    tree = tree_of(driver.pid)
    send_all(tree, number)
    driver.wait(0, seconds=120)
    wait_until_gone(tree)
