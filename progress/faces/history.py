"""Keeps what a driver remembers of its own run: samples, epochs, troubles and alerts, in bounded memory.

There are two series of samples: `recent` holds the last quarter of an hour second by second, for trends; `whole` holds
the whole run in at most 720 samples, for plots. When `whole` is full every second sample is forgotten, and from then on
half as many are taken. So it is always evenly spaced:

    after     12 minutes    720 samples, one per second
    after     24 minutes    720 samples, one in two seconds
    after      9 days       one in 1024 seconds

There is no clock here: times come with the reports, in seconds since 1970. A time that does not advance is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from progress.faces.alerts import (
    RETENTION_UNKNOWN,
    RUNNING_PHASES,
    USUAL,
    Advances,
    Alert,
    Retention,
    Sample,
    Thresholds,
    advances_of,
    alerts_of,
    carried_on,
)
from progress.state.report import Report
from vnode_backfill.words.epoch import Epoch

_RECENT_SECONDS = 900.0
_WHOLE_SAMPLES = 720
_SAMPLE_SECONDS = 1.0
_ALERT_SECONDS = 5.0
_EPOCHS = 12
_TROUBLES = 8


@dataclass(frozen=True, slots=True)
class SeenEpoch:
    """An epoch that ended at `at`; `seconds` and `rows` are since the end of the one seen before."""

    epoch: Epoch
    at: float
    seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error that was retried or that ended the job; `first_at` to `last_at`, seen in `attempts` attempts."""

    message: str
    detail: str
    hint: str
    first_at: float
    last_at: float
    attempts: int = 1


class History:
    """Grows by `add`; everything it gives out is immutable. Not safe for several threads: the owner locks."""

    def __init__(self, thresholds: Thresholds = USUAL) -> None:
        self._thresholds = thresholds
        self._recent: deque[Sample] = deque()
        self._whole: list[Sample] = []
        self._spacing = _SAMPLE_SECONDS
        self._advances = Advances()
        self._looked_at = float("-inf")
        self._last_epoch: SeenEpoch | None = None
        self._epochs: deque[SeenEpoch] = deque(maxlen=_EPOCHS)
        self._troubles: deque[Trouble] = deque(maxlen=_TROUBLES)
        self._alerts: tuple[Alert, ...] = ()

    def add(self, report: Report, at: float, retention: Retention = RETENTION_UNKNOWN) -> None:
        """Remember what a report says; cheap enough to be called several times a second."""
        self._note_epoch(report, at)
        self._note_trouble(report, at)
        if report.phase not in RUNNING_PHASES:
            self._alerts = ()
        if self._recent and at < self._recent[-1].at + _SAMPLE_SECONDS:
            return
        sample = Sample.of(report, at, retention, self._recent[-1] if self._recent else None)
        self._recent.append(sample)
        while self._recent[0].at < at - _RECENT_SECONDS:
            self._recent.popleft()
        self._keep(sample)
        if at >= self._looked_at + _ALERT_SECONDS:
            self._looked_at = at
            self._advances = advances_of(self._advances, report, at)
            found = alerts_of(self._recent, self._advances, report, self._thresholds)
            self._alerts = carried_on(self._alerts, found)

    @property
    def recent(self) -> Sequence[Sample]:
        return tuple(self._recent)

    @property
    def whole(self) -> Sequence[Sample]:
        return tuple(self._whole)

    @property
    def epochs(self) -> Sequence[SeenEpoch]:
        """The last epochs, newest first."""
        return tuple(reversed(self._epochs))

    @property
    def troubles(self) -> Sequence[Trouble]:
        """The last errors, newest first."""
        return tuple(reversed(self._troubles))

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return self._alerts

    def _keep(self, sample: Sample) -> None:
        if self._whole and sample.at < self._whole[-1].at + self._spacing:
            return
        self._whole.append(sample)
        if len(self._whole) > _WHOLE_SAMPLES:
            self._whole = self._whole[::2]
            self._spacing *= 2

    def _note_epoch(self, report: Report, at: float) -> None:
        last = self._last_epoch
        if last is not None and report.epoch <= last.epoch:
            return
        seen = SeenEpoch(report.epoch, at, 0.0 if last is None else at - last.at, report.rows)
        if last is not None:
            self._epochs.append(replace(seen, rows=max(0, report.rows - last.rows)))
        self._last_epoch = seen

    def _note_trouble(self, report: Report, at: float) -> None:
        retry, failure = report.observed.retry, report.failure
        if failure is not None and not report.observed.driver:
            self._troubled(Trouble(failure.message, failure.detail, failure.hint, at, at), attempts=None)
        elif retry is not None:
            self._troubled(Trouble(retry.message, "", "", at, at), attempts=retry.attempt)

    def _troubled(self, trouble: Trouble, attempts: int | None) -> None:
        """The same message again is the same trouble, which continues."""
        if self._troubles and self._troubles[-1].message == trouble.message:
            known = self._troubles.pop()
            trouble = replace(trouble, first_at=known.first_at, attempts=known.attempts)
        self._troubles.append(replace(trouble, attempts=max(trouble.attempts, attempts or 1)))
