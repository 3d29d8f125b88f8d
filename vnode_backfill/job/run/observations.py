"""Holds what a running job has seen of its source, its buffer and its own speed.

Nothing here decides: `Seen` is what faces show, `Pace` is how many rows the next epoch plans and how long it takes.
Each value is written by one thread and may be read by any; a value that is a moment old is harmless. All of it is lost
with the process, and measured again by the next one.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import HeldLog
from progress.faces.alerts import RETENTION_UNKNOWN, Retention
from progress.state.backfill_state import Intent
from progress.state.report import AskedRequest
from progress.state.target_health import TargetHealth

_FIRST_ROWS_PER_SECOND = 200_000
"""Assumed of a worker until it was measured; a lane stops when its time is over, so too much is harmless."""
_MOST_ROWS_PER_SECOND = 5_000_000
_SLICES = 4096
"""While a table is read nothing is merged: what no longer fits makes the target look older than it is, for a moment."""


@dataclass
class Seen:
    """What was seen of the source and the buffer lately, for the faces; None where nobody has looked yet."""

    newest: int = 0
    written: CdcOffset | None = None
    sampled_at: float = 0.0
    """When the source had written that far."""
    target: TargetHealth | None = None
    lengthened_by: str = ""
    buffer_bytes: int | None = None
    held_log: HeldLog | None = None
    throttled_by: str = ""
    asked: tuple[AskedRequest, ...] = ()
    moved_at: float = field(default_factory=time.monotonic)
    """When an order was last carried out, or an actor said that it is further."""
    _slices: deque[tuple[CdcOffset, float]] = field(default_factory=lambda: deque(maxlen=_SLICES))
    """Ends of slices of the log that were captured and may not be merged yet, and of which time each is."""
    _merged: float | None = None
    """Of which time the newest slice is that was merged."""

    def sampled(self, written: CdcOffset, at: float) -> None:
        self.written, self.sampled_at = written, at

    def captured(self, intent: Intent | None, newest: int) -> None:
        """A slice of the log is in the buffer. Its time is that of its newest change, `newest`.

        A slice without a change of the table is of the time when the source was asked how far it had written.
        """
        self.newest = max(self.newest, newest)
        if intent is not None and (newest or intent.written == self.written):
            self._slices.append((intent.written, float(newest) or self.sampled_at))

    def lake_age(self, applied: CdcOffset, now: float) -> float | None:
        """How old the target is: the age of the newest change merged, 0 when everything written is merged.

        None until something was merged in this run. `applied` never falls, except to that of vnodes that are read
        again.
        """
        while self._slices and self._slices[0][0] <= applied:
            self._merged = self._slices.popleft()[1]
        if self.written is not None and self.written <= applied and not self.lag_bytes(applied):
            return 0.0
        return None if self._merged is None else max(0.0, now - self._merged)

    def lag_bytes(self, captured: CdcOffset) -> int | None:
        """How much of the log is written and not captured: by the last sample, or by the files held, whichever is
        newer."""
        sampled = held = None
        if self.written is not None and self.written.number == captured.number:
            sampled = max(0, self.written.pos - captured.pos)
        if self.held_log is not None:
            held = self.held_log.bytes_after(captured)
        return max((each for each in (sampled, held) if each is not None), default=None)

    def retention(self, captured: CdcOffset) -> Retention:
        """How much of the log the source holds before what is captured, and for how long it keeps a file."""
        held = self.held_log
        if held is None:
            return RETENTION_UNKNOWN
        return Retention(held.bytes_before(captured), held.kept_seconds)

    def lag_seconds(self, captured: CdcOffset, now: float) -> float | None:
        """The age of the newest change captured while more is written; 0 when everything is."""
        if self.written is not None and self.written <= captured and not self.lag_bytes(captured):
            return 0.0
        return max(0.0, now - self.newest) if self.newest else None


@dataclass
class Pace:
    """How fast workers were measured to read, and when the epoch in progress began."""

    rows_per_second: float = _FIRST_ROWS_PER_SECOND
    epoch_began: float = 0.0
    read_last: bool = False
    lengthened: int = 1
    """An epoch of a live job takes so many times as long as configured."""

    def rest(self, live_seconds: float, now: float) -> float:
        """How long the epoch in progress still takes, if a live one is configured to take so long."""
        return self.epoch_began + live_seconds * self.lengthened - now

    def measured(self, rows: int, seconds: float, lanes: int, *, everything: bool) -> None:
        """Learn from an epoch without a limit.

        Where all that was planned was read in time, more is planned next: the measured time holds what a Spark job
        costs before its first row, so small epochs would look slow and stay small.
        """
        if rows and seconds > 0:
            seen = rows / seconds / max(lanes, 1)
            slower = 0.5 * self.rows_per_second + 0.5 * seen
            self.rows_per_second = (
                min(max(2 * self.rows_per_second, seen), _MOST_ROWS_PER_SECOND) if everything else slower
            )
