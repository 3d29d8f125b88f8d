"""Whether the driver that a task works for still holds its lease: asked by tasks whose writes no table can refuse.

What must be true: no call of a task begins after the lease that its driver had ran out. A takeover waits until then, so two drivers'
tasks never write at the same time, as far as clocks agree: a sixth of the lease is kept back for their difference and for the
call itself. Why it is: the driver writes down how long its lease runs every third of it (`Heartbeat`), and only after it has seen that
nobody took over. A task believes what it has read until that moment has come, then reads again: most calls cost nothing.

A lease that has run out may still be renewed, by a driver that was only slow. The task waits for that as long as a lease
lasts, then gives up with an error that lets the epoch be tried again; a driver that was replaced fails by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from progress.lease import Heartbeat, Lease
from vnode_backfill.errors import SinkUnavailableError

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

    @classmethod
    def of(cls, folder: str, options: Mapping[str, str] | None, lease: Lease) -> LeaseGuard:
        return cls(Heartbeat(folder, options or {}), lease.generation, lease.duration, _less(lease.expires, lease))

    def __call__(self) -> None:
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
                    hint="Another driver may have taken over; if none has, the machine or `state.path` is too slow for `state.lease`.",
                )
            self.wait(_LOOK_SECONDS)


def _less(expires: datetime, lease: Lease) -> datetime:
    return expires - lease.duration / _KEPT_BACK
