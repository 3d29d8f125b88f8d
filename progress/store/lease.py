"""Keeps a job to one driver: by a lease that runs out, and by a number that fences a driver which lost it.

Two things keep a job to one driver, and they must not be confused:

- The *lease* keeps a second driver from starting while the first one is alive. It is a courtesy, judged by clocks.
- The driver *generation* keeps a driver that lost its lease from committing. It is counted up by every takeover, in the
  same table as the checkpoints, and each commit lands only on top of the version its writer has seen. So a driver that
  slept through a takeover finds its commit refused, whatever its clock says: no clock takes part in safety.

A lease is renewed by every checkpoint. Where a job is idle it writes no checkpoint; then a small file beside the
tables, one per generation, is written over (`Heartbeat`), so that an idle job adds nothing to any table.

A driver that was killed leaves a lease that still runs. If it ran on this machine and its process is gone, nobody has
to wait. Same machine means same boot and same process namespace: a number of another container's process says nothing
here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from progress.store.state_table import state_errors
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.errors import StateError

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """One process and no other: `started` differs between two users of one process number."""

    host: str
    pid: int
    machine: str
    started: str

    @classmethod
    def current(cls) -> Process:
        return _current(os.getpid())

    @property
    def has_ended(self) -> bool:
        """True only if that is certain."""
        return bool(self.machine) and self.machine == _this_machine() and _started(self.pid) != self.started


@lru_cache(maxsize=1)
def _current(pid: int) -> Process:
    """Asked once: a job of many tables has a store for each. A process that is forked has another number."""
    return Process(socket.gethostname(), pid, _this_machine(), _started(pid))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive a job until `expires`, as far as clocks go; `generation` is what commits are checked
    against."""

    generation: int
    owner: str
    process: Process
    since: datetime
    expires: datetime
    duration: timedelta
    released: bool = False

    def held_at(self, now: datetime) -> bool:
        return not self.released and now < self.expires

    def renewed(self, now: datetime) -> Lease:
        return replace(self, expires=now + self.duration)

    def to_json(self) -> str:
        return _StoredLease(
            generation=self.generation,
            owner=self.owner,
            host=self.process.host,
            pid=self.process.pid,
            machine=self.process.machine,
            started=self.process.started,
            since=self.since,
            expires=self.expires,
            duration=self.duration,
            released=self.released,
        ).model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Lease:
        try:
            stored = _StoredLease.model_validate_json(text)
        except ValidationError as error:
            raise StateError("stored lease cannot be read", detail=str(error)) from error
        process = Process(stored.host, stored.pid, stored.machine, stored.started)
        return cls(
            stored.generation,
            stored.owner,
            process,
            stored.since,
            stored.expires,
            stored.duration,
            stored.released,
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The small files of an idle driver, in the job's folder; written whole or not at all."""

    folder: str
    options: Mapping[str, str]

    def write(self, lease: Lease) -> None:
        """Say that the lease runs until `lease.expires`."""
        with state_errors(f"{self.folder} cannot be written"):
            self._files().write_whole(_name(lease.generation), lease.expires.isoformat().encode())

    def expiry(self, generation: int) -> datetime | None:
        """Until when the driver of this generation said last; None if it wrote no heartbeat."""
        with state_errors(f"{self.folder} cannot be read"):
            held = self._files().read_note(_name(generation))
        if held is None:
            return None
        text = held.decode(errors="replace")
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except ValueError as error:
            raise StateError(f"heartbeat {_name(generation)} in {self.folder} is not a time: {text[:80]!r}") from error

    def remove(self, generation: int) -> None:
        with state_errors(f"{self.folder} cannot be written"):
            self._files().remove_file(_name(generation))

    def _files(self) -> Storage:
        return Storage.of(self.folder, self.options)


class _StoredLease(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    generation: int
    owner: str
    host: str
    pid: int
    machine: str
    started: str
    since: datetime
    expires: datetime
    duration: timedelta
    released: bool


def _name(generation: int) -> str:
    return f"heartbeat-{generation}"


def _this_machine() -> str:
    """Empty where the system does not say: then no process counts as ended."""
    try:
        return f"{_BOOT.read_text().strip()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process began, in ticks since the boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name of the program is in brackets and may hold spaces and brackets itself.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
