"""Asks whether the driver that a task works for still holds its lease: for tasks whose writes no table can refuse.

What must be true: no call of a task begins after the lease that its driver had ran out. A takeover waits until then, so
two drivers' tasks never write at the same time, as far as clocks agree: a sixth of the lease is kept back for their
difference and for the call itself. Why it is: the driver writes down how long its lease runs every third of it
(`Heartbeat`), and only after it has seen that nobody took over. A task believes what it has read until that moment has
come, then reads again: most calls cost nothing.

A lease that has run out may still be renewed, by a driver that was only slow. The task waits for that as long as a
lease lasts, then gives up with an error that lets the epoch be tried again; a driver that was replaced fails by itself.

A machine whose clock is behind would let its tasks write for too long. A guard that is sent to a task carries the
driver's time: where the task's clock shows an earlier one, it is behind at least by the difference, and more than a
twelfth of the lease is refused.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from progress.store.lease import Heartbeat, Lease
from vnode_backfill.words.errors import SinkError, SinkUnavailableError

_LOOK_SECONDS = 0.2
_KEPT_BACK = 6


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class LeaseGuard:
    """Returns while the lease runs. Can be pickled; each copy remembers for itself how long that is."""

    heartbeat: Heartbeat = field(repr=False)
    generation: int
    duration: timedelta
    until: datetime
    now: Callable[[], datetime] = _now
    wait: Callable[[float], None] = time.sleep
    sent: datetime | None = field(default=None, compare=False)
    """When this copy was made, by the clock of the machine that made it; None once it was compared."""

    @classmethod
    def of(cls, folder: str, options: Mapping[str, str] | None, lease: Lease) -> LeaseGuard:
        return cls(Heartbeat(folder, options or {}), lease.generation, lease.duration, _less(lease.expires, lease))

    def __reduce__(self) -> tuple[object, ...]:
        return LeaseGuard, (
            self.heartbeat, self.generation, self.duration, self.until, self.now, self.wait, self.now(),
        )  # fmt: skip

    def __call__(self) -> None:
        if self.sent is not None:
            self._compare_clocks(self.sent)
        if self.now() < self.until:
            return
        gives_up = self.now() + self.duration
        while True:
            said = self.heartbeat.expiry(self.generation)
            self.until = self.until if said is None else max(self.until, said - self.duration / _KEPT_BACK)
            if self.now() < self.until:
                return
            if self.now() >= gives_up:
                raise SinkUnavailableError(
                    "points cannot be written without a lease",
                    detail=f"That of driver generation {self.generation} ran out at {self.until.isoformat()}.",
                    hint="Another driver may have taken over. If none has, raise `state.lease`: this machine or "
                    "`state.path` is slow.",
                )
            self.wait(_LOOK_SECONDS)

    def _compare_clocks(self, sent: datetime) -> None:
        behind = sent - self.now()
        if behind > self.duration / (2 * _KEPT_BACK):
            raise SinkError(
                f"the clock of {socket.gethostname()} is at least {behind.total_seconds():.3g} s behind the driver's",
                detail="Only clocks keep two drivers of one job apart where the target is IoTDB.",
                hint="Set the clocks of all machines by one time server (NTP), or make `state.lease` longer.",
            )
        self.sent = None


def _less(expires: datetime, lease: Lease) -> datetime:
    return expires - lease.duration / _KEPT_BACK
